/* SPDX-License-Identifier: MIT */
/* OpenBLAS made ready: the right kernels, one thread, and products that do not mix.
 *
 * OpenBLAS chooses its kernels by the processor's model number when it is loaded.
 * Releases up to 0.3.24 take Intel models that they have not heard of for a Prescott of
 * 2004 (its issue 4267), and their products are then 4 to 5 times slower. So where
 * Prescott was chosen on a processor with AVX2 or AVX-512, and no OPENBLAS_CORETYPE asks
 * for it, the choice is made again under that very variable. The functions for it are
 * exported but not in the header, hence weak: a build without them, or another BLAS,
 * stays as it is.
 *
 * Builds with threads of their own would fight with the workers; they are told to use
 * one. They start theirs while they are loaded, one for each further core with a buffer
 * of 128 MB, and where there is not so much address space (ulimit -v) these ask for it
 * for ever, so that not even a process that multiplies nothing comes to its end. So
 * OpenBLAS is loaded by the first model that multiplies, with the variable by which there
 * are none.
 *
 * Each thread that multiplies has such a buffer while it does, which OpenBLAS keeps for
 * the next one; it, too, is asked for without end. blas_reserve has them made before: it
 * maps as much itself to see whether it can be had, and then holds as many at once as
 * there will be threads.
 *
 * Builds without (Debian's openblas-serial) hand the same buffer to two threads that
 * multiply at once, and both products are wrong, one in ten where cores are busy. Under
 * such a build products take turns.
 *
 * A result that is to be overwritten is cleared here and then added to. OpenBLAS does the
 * same, but for processors without AVX-512 by a loop that clears a float at a time.
 *
 * Once a process, before its first product: model_create calls blas_init, where it will
 * multiply. */
#include "nn/parts.h"

#include <cblas.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { BUFFER_MOST = 256 << 20, BUFFER_LEAST = 1 << 20, MOST_BUFFERS = 512 };

/* The symbols used; all but the first may be missing. */
static struct {
    __typeof__(&cblas_sgemm) sgemm;
    __typeof__(&openblas_set_num_threads) set_num_threads;
    __typeof__(&openblas_get_corename) get_corename;
    __typeof__(&openblas_get_parallel) get_parallel;
    void (*dynamic_init)(void), (*dynamic_quit)(void);
    void *(*memory_alloc)(int where);
    void (*memory_free)(void *buffer);
} blas;

static char why_not[256];       /* it could not be loaded; written once */

static const char *better_core(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
        return "SkylakeX";
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return "Haswell";
#endif
    return NULL;
}

static void choose_core(void)
{
    static const char variable[] = "OPENBLAS_CORETYPE";
    const char *core = better_core();
    if (!core || getenv(variable) || !blas.get_corename || !blas.dynamic_init ||
        !blas.dynamic_quit || strcmp(blas.get_corename(), "Prescott") != 0)
        return;
    setenv(variable, core, 1);
    blas.dynamic_quit();
    blas.dynamic_init();
    unsetenv(variable);
}

static bool in_turns;       /* written once, before any product */

static void *load(void)
{
    static const char variable[] = "OPENBLAS_NUM_THREADS";
    const char *before = getenv(variable);
    char *kept = before ? strdup(before) : NULL;

    setenv(variable, "1", 1);
    void *library = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        snprintf(why_not, sizeof why_not, "%s", dlerror());
    if (kept)
        setenv(variable, kept, 1);
    else
        unsetenv(variable);
    free(kept);
    return library;
}

static void init_once(void)
{
    void *library = load();
    if (!library)
        return;
    blas.sgemm = (__typeof__(blas.sgemm))dlsym(library, "cblas_sgemm");
    blas.set_num_threads =
        (__typeof__(blas.set_num_threads))dlsym(library, "openblas_set_num_threads");
    blas.get_corename =
        (__typeof__(blas.get_corename))dlsym(library, "openblas_get_corename");
    blas.get_parallel =
        (__typeof__(blas.get_parallel))dlsym(library, "openblas_get_parallel");
    blas.dynamic_init = (void (*)(void))dlsym(library, "gotoblas_dynamic_init");
    blas.dynamic_quit = (void (*)(void))dlsym(library, "gotoblas_dynamic_quit");
    blas.memory_alloc = (void *(*)(int))dlsym(library, "blas_memory_alloc");
    blas.memory_free = (void (*)(void *))dlsym(library, "blas_memory_free");
    if (!blas.sgemm)
        snprintf(why_not, sizeof why_not, "libopenblas.so.0 has no cblas_sgemm");
    choose_core();
    if (blas.set_num_threads)
        blas.set_num_threads(1);
    in_turns = blas.get_parallel && blas.get_parallel() == OPENBLAS_SEQUENTIAL;
}

descant_status blas_init(const struct log *log)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, init_once);
    return blas.sgemm
               ? DESCANT_OK
               : log_fail(log, DESCANT_SYSTEM, "OpenBLAS cannot be loaded: %s", why_not);
}

/* --- buffers --- */

static size_t address_space(void)
{
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    if (file && fscanf(file, "%lu", &pages) != 1)
        pages = 0;
    if (file)
        fclose(file);
    return pages * machine_page();
}

static bool can_have(size_t bytes)
{
    void *p = memory_refuse() ? MAP_FAILED : mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                                                  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p != MAP_FAILED)
        munmap(p, bytes);
    return p != MAP_FAILED;
}

/* How large one is shows when the first is made. */
static descant_status make_buffers(int n, const struct log *log)
{
    static size_t bytes = BUFFER_MOST;
    void *held[MOST_BUFFERS];
    int k = 0;

    for (; k < n && can_have(bytes + BUFFER_LEAST); k++) {
        size_t before = address_space();
        held[k] = blas.memory_alloc(0);
        size_t now = address_space();
        if (now > before + BUFFER_LEAST && now - before < bytes)
            bytes = now - before;
    }
    for (int i = 0; i < k; i++)
        blas.memory_free(held[i]);
    return k == n ? DESCANT_OK
                  : log_fail(log, DESCANT_MEMORY,
                             "no memory for products in %d thread%s: OpenBLAS wants up "
                             "to %zu MB of address space for each, and there was as much "
                             "for %d (ulimit -v shows its limit); fewer --workers need "
                             "less, --model linear and fm none",
                             n, n == 1 ? "" : "s", bytes >> 20, k);
}

descant_status blas_reserve(int threads, const struct log *log)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static int made;
    descant_status status = blas_init(log);
    int n = in_turns ? 1 : threads < MOST_BUFFERS ? threads : MOST_BUFFERS;

    pthread_mutex_lock(&lock);
    if (status == DESCANT_OK && blas.memory_alloc && blas.memory_free && n > made)
        status = make_buffers(n, log);
    if (status == DESCANT_OK && n > made)
        made = n;
    pthread_mutex_unlock(&lock);
    return status;
}

bool nn_products_take_turns(void)
{
    return in_turns;
}

void blas_sgemm(bool a_turned, bool b_turned, int m, int n, int k, float alpha,
                const float *a, int lda, const float *b, int ldb, float beta, float *c,
                int ldc)
{
    static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
    for (int i = 0; beta == 0 && i < m; i++)
        memset(c + (size_t)i * (size_t)ldc, 0, (size_t)n * sizeof *c);
    if (in_turns)
        pthread_mutex_lock(&turn);
    blas.sgemm(CblasRowMajor, a_turned ? CblasTrans : CblasNoTrans,
               b_turned ? CblasTrans : CblasNoTrans, m, n, k, alpha, a, lda, b, ldb,
               beta == 0 ? 1 : beta, c, ldc);
    if (in_turns)
        pthread_mutex_unlock(&turn);
}

void nn_multiply(bool a_turned, bool b_turned, int m, int n, int k, const float *a,
                 const float *b, float *c)
{
    if (blas_init(NULL) != DESCANT_OK)      /* of a model that multiplies nothing */
        return;
    blas.sgemm(CblasRowMajor, a_turned ? CblasTrans : CblasNoTrans,
               b_turned ? CblasTrans : CblasNoTrans, m, n, k, 1, a, a_turned ? m : k, b,
               b_turned ? k : n, 0, c, n);
}
