/* SPDX-License-Identifier: MIT */
/* OpenBLAS made ready: the right kernels, one thread, and products that do not mix.
 *
 * OpenBLAS chooses its kernels by the processor's model number when it is loaded. Releases up to
 * 0.3.24 take Intel models that they have not heard of for a Prescott of 2004 (its issue 4267),
 * and their products are then 4 to 5 times slower. So where Prescott was chosen on a processor
 * with AVX2 or AVX-512, and no OPENBLAS_CORETYPE asks for it, the choice is made again under
 * that very variable. The functions for it are exported but not in the header, hence weak: a
 * build without them, or another BLAS, stays as it is.
 *
 * Builds with threads of their own would fight with the workers; they are told to use one.
 *
 * Builds without (Debian's openblas-serial) hand the same buffer to two threads that multiply at
 * once, and both products are wrong, one in ten where cores are busy. Under such a build products
 * take turns.
 *
 * A result that is to be overwritten is cleared here and then added to. OpenBLAS does the same,
 * but for processors without AVX-512 by a loop that clears a float at a time: 3 % of a DLRM's step.
 *
 * Once a process, before its first product: model_create calls blas_init. */
#include "nn/parts.h"

#include <cblas.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#pragma weak openblas_set_num_threads
#pragma weak openblas_get_corename
#pragma weak openblas_get_parallel

void gotoblas_dynamic_init(void) __attribute__((weak, visibility("default")));
void gotoblas_dynamic_quit(void) __attribute__((weak, visibility("default")));

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
    if (!core || getenv(variable) || !openblas_get_corename || !gotoblas_dynamic_init ||
        !gotoblas_dynamic_quit || strcmp(openblas_get_corename(), "Prescott") != 0)
        return;
    setenv(variable, core, 1);
    gotoblas_dynamic_quit();
    gotoblas_dynamic_init();
    unsetenv(variable);
}

static bool in_turns;       /* written once, before any product */

static void init_once(void)
{
    choose_core();
    if (openblas_set_num_threads)
        openblas_set_num_threads(1);
    in_turns = openblas_get_parallel && openblas_get_parallel() == OPENBLAS_SEQUENTIAL;
}

void blas_init(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, init_once);
}

bool nn_products_take_turns(void)
{
    blas_init();
    return in_turns;
}

void blas_sgemm(bool a_turned, bool b_turned, int m, int n, int k, float alpha, const float *a,
                int lda, const float *b, int ldb, float beta, float *c, int ldc)
{
    static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
    for (int i = 0; beta == 0 && i < m; i++)
        memset(c + (size_t)i * (size_t)ldc, 0, (size_t)n * sizeof *c);
    if (in_turns)
        pthread_mutex_lock(&turn);
    cblas_sgemm(CblasRowMajor, a_turned ? CblasTrans : CblasNoTrans,
                b_turned ? CblasTrans : CblasNoTrans, m, n, k, alpha, a, lda, b, ldb,
                beta == 0 ? 1 : beta, c, ldc);
    if (in_turns)
        pthread_mutex_unlock(&turn);
}
