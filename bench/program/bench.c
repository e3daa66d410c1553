/* SPDX-License-Identifier: MIT */
/* The table of benchmarks, and what they share. Trainers are processes, forked before any
 * job is opened, because a job does not survive a fork; each hands its figures back
 * through a pipe, and meets the others at a barrier in memory mapped before the fork. A
 * trainer that ends without its figures ends the run: the others are killed, so nothing
 * hangs. A trainer dies with the program. */
#include "bench.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <x86intrin.h>
#endif

struct bench_meeting {
    _Atomic uint32_t arrived, turn;
    double figure;              /* written by one before a barrier, read by all after
                                   it */
};

static const struct {
    const char *name, *help;
    cli_command *run;
} benches[] = {
    {"step", "the cost of descant_step to a worker", bench_step},
    {"exchange", "how fast a fabric's exchange is", bench_exchange},
    {"overlap", "how fast training is under a plan, against none", bench_overlap},
    {"segment", "what giving a gradient through a segment costs", bench_segment},
#ifdef DESCANT_TRAIN
    {"train", "examples a second, beside what matrix products allow", bench_train},
    {"parse", "how fast text becomes blocks", bench_parse},
    {"modules", "what control costs the ML modules that it reads out", bench_modules},
#endif
};

enum { N_BENCHES = sizeof benches / sizeof *benches };

static int which(const struct cli *cli, const char *wrong)
{
    const char *names[N_BENCHES + 1] = {NULL};
    for (size_t i = 0; i < N_BENCHES; i++)
        names[i] = benches[i].name;
    return cli_unknown(cli, "benchmark", wrong, names);
}

static int bench(const struct cli *cli)
{
    char command[32];
    struct cli one = *cli;
    one.command = "bench";
    if (cli->argc < 1)
        return which(&one, "");
    if (cli_is_help(cli->argv[0])) {
        fputs("usage: descant bench NAME [OPTIONS]\n\n", cli->out);
        for (size_t i = 0; i < N_BENCHES; i++)
            fprintf(cli->out, "  %-9s %s\n", benches[i].name, benches[i].help);
        return CLI_DONE;
    }
    for (size_t i = 0; i < N_BENCHES; i++)
        if (strcmp(cli->argv[0], benches[i].name) == 0) {
            snprintf(command, sizeof command, "bench %s", benches[i].name);
            one.command = command;
            one.argc--;
            one.argv++;
            return benches[i].run(&one);
        }
    return which(&one, cli->argv[0]);
}

int bench_main(int argc, char **argv, FILE *out, FILE *err)
{
    return cli_program(bench, argc, argv, out, err);
}

/* --- trainers --- */

static bool write_all(int fd, const char *from, size_t n)
{
    while (n > 0) {
        ssize_t done = write(fd, from, n);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return false;
        from += done;
        n -= (size_t)done;
    }
    return true;
}

static bool read_all(int fd, char *into, size_t n)
{
    while (n > 0) {
        ssize_t done = read(fd, into, n);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return false;
        into += done;
        n -= (size_t)done;
    }
    return true;
}

static void be_trainer(struct bench *bench, int rank, bench_trainer *trainer,
                       const void *how, size_t size, int fd)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    void *result = calloc(1, size);
    bool good =
        result && trainer(bench, rank, how, result) && write_all(fd, result, size);
    fflush(bench->err);
    _exit(good ? 0 : 1);
}

static pid_t fork_trainer(struct bench *bench, int rank, bench_trainer *trainer,
                          const void *how, size_t size, int *fd)
{
    int ends[2];
    if (pipe(ends) != 0)
        return -1;
    pid_t child = fork();
    if (child == 0) {
        close(ends[0]);
        be_trainer(bench, rank, trainer, how, size, ends[1]);
    }
    int error = errno;
    close(ends[1]);
    if (child < 0)
        close(ends[0]);
    else
        *fd = ends[0];
    errno = error;
    return child;
}

/* Takes results as they come, so that the first failure is seen at once. */
static bool collect(const int *fds, int n, char *results, size_t size)
{
    struct pollfd waiting[BENCH_MAX_TRAINERS];
    for (int i = 0; i < n; i++)
        waiting[i] = (struct pollfd){.fd = fds[i], .events = POLLIN};
    for (int left = n; left > 0;) {
        if (poll(waiting, (nfds_t)n, -1) < 0 && errno != EINTR)
            return false;
        for (int i = 0; i < n; i++) {
            if (waiting[i].fd < 0 || !waiting[i].revents)
                continue;
            if (!read_all(fds[i], results + (size_t)i * size, size))
                return false;
            waiting[i].fd = -1;
            left--;
        }
    }
    return true;
}

bool bench_run(struct bench *bench, bench_trainer *trainer, const void *how,
               void *results, size_t size)
{
    pid_t children[BENCH_MAX_TRAINERS];
    int fds[BENCH_MAX_TRAINERS], n = 0;
    char name[64];
    snprintf(name, sizeof name, "bench-%ld", (long)getpid());
    bench->name = name;
    bench->meeting = mmap(NULL, sizeof *bench->meeting, PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (bench->meeting == MAP_FAILED)
        return false;
    fflush(NULL);
    while (n < bench->trainers) {
        children[n] = fork_trainer(bench, n, trainer, how, size, &fds[n]);
        if (children[n] < 0) {
            fprintf(bench->err, "descant: trainer %d cannot be started: %s\n", n,
                    strerror(errno));
            break;
        }
        n++;
    }
    bool good = n == bench->trainers && collect(fds, n, results, size);
    for (int i = 0; i < n; i++) {
        if (!good)
            kill(children[i], SIGKILL);
        close(fds[i]);
        waitpid(children[i], NULL, 0);
    }
    munmap(bench->meeting, sizeof *bench->meeting);
    bench->meeting = NULL;
    if (!good)
        fprintf(bench->err, "descant: a trainer of the benchmark failed\n");
    return good;
}

bool bench_barrier(struct bench *bench, int threads)
{
    struct bench_meeting *m = bench->meeting;
    uint32_t turn = atomic_load(&m->turn);
    if (atomic_fetch_add(&m->arrived, 1) + 1 == (uint32_t)threads) {
        atomic_store(&m->arrived, 0);
        atomic_fetch_add(&m->turn, 1);
        futex_wake_all(&m->turn);
        return true;
    }
    uint64_t spin_until = clock_now_ns() + 200000;
    while (atomic_load(&m->turn) == turn && clock_now_ns() < spin_until)
        ;
    uint64_t until = clock_now_ns() + 300000000000u;
    while (atomic_load(&m->turn) == turn) {
        if (clock_now_ns() > until)
            return false;
        futex_wait(&m->turn, turn, until);
    }
    return true;
}

double *bench_shared(struct bench *bench)
{
    return &bench->meeting->figure;
}

bool bench_threads(int n, void *(*work)(void *), void *each, size_t size)
{
    pthread_t threads[BENCH_MAX_WORKERS];
    int started = 0;
    while (started < n && pthread_create(&threads[started], NULL, work,
                                         (char *)each + (size_t)started * size) == 0)
        started++;
    for (int i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    return started == n;
}

bool bench_open(struct bench *bench, int rank, const struct bench_job *how,
                struct descant **job, float **w)
{
    char address[192];
    struct descant_options d = descant_options_default();
    snprintf(address, sizeof address, "shm:%s%s", bench->name, how->name_tail);
    d.job = address;
    d.plan = how->plan;
    d.rank = rank;
    d.size = bench->trainers;
    d.workers = (int)how->workers;
    d.sync_cpu = how->sync_cpu;
    d.log = cli_log;
    d.log_user = bench->err;
    *job = NULL;
    if (descant_open(job, &d) != DESCANT_OK)
        return false;
    *w = descant_alloc(*job, "w", how->n);
    if (!*w)
        return false;
    bench_fill(*w, how->n, 1);
    return descant_start(*job) == DESCANT_OK;
}

/* --- options --- */

bool bench_options(const struct cli *cli, const struct option *table, size_t n,
                   void *into, int *status)
{
    char usage[64];
    snprintf(usage, sizeof usage, "%s [OPTIONS]", cli->command);
    return settings_take(cli, usage, table, n, into, status);
}

/* --- figures --- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_percentile(double *values, size_t n, double share)
{
    if (n == 0)
        return 0;
    qsort(values, n, sizeof *values, by_value);
    double at = share * (double)(n - 1);
    size_t low = (size_t)at, high = low + 1 < n ? low + 1 : low;
    return values[low] + (at - (double)low) * (values[high] - values[low]);
}

struct bench_ratio bench_pairs(const double *ratio, size_t n)
{
    double of[2], all[BENCH_MAX_PAIRS], some[BENCH_MAX_PAIRS];
    for (size_t order = 0; order < 2; order++) {
        size_t k = 0;
        for (size_t i = order; i < n; i += 2)
            some[k++] = ratio[i];
        of[order] = k > 0 ? bench_percentile(some, k, 0.5) : of[0];
    }
    double middle = sqrt(of[0] * of[1]);
    for (size_t i = 0; i < n; i++)
        all[i] = ratio[i] * middle / of[i % 2];
    return (struct bench_ratio){middle, bench_percentile(all, n, 0.25),
                                bench_percentile(all, n, 0.75)};
}

void bench_fill(float *memory, size_t n, uint64_t seed)
{
    struct rng rng;
    rng_init(&rng, seed);
    for (size_t i = 0; i < n; i++)
        memory[i] = (float)(0.1 * (rng_uniform(&rng) - 0.5));
}

uint64_t bench_ticks(void)
{
#if defined(__x86_64__)
    unsigned processor;
    return __rdtscp(&processor);
#else
    return clock_now_ns();
#endif
}

double bench_ns_per_tick(void)
{
    uint64_t ticks = bench_ticks(), start = clock_now_ns(), now;
    do
        now = clock_now_ns();
    while (now - start < 30000000);
    return (double)(now - start) / (double)(bench_ticks() - ticks);
}
