/* SPDX-License-Identifier: MIT */
/* Workers that use a table with owners as fast as they can, for bench/owners.py: each has some
 * batches of random rows under way, waits for the oldest, makes a gradient of it, and pushes that.
 *
 *   rows ROWS WIDTH FIELDS BATCH DEPTH SECONDS THREADS WIRE [fill] [zipf=S] [age=S] [cached=N]
 *        [batches=N]
 *
 * The job is that of DESCANT_JOB, RANK and WORLD_SIZE. WIRE: 0 f32, 1 bf16, 2 q8. fill: each rank
 * first pushes to its part of all rows, so that all are born. zipf: each field has a part of the
 * rows, whose k-th row comes with a chance near k^-S; a batch fetches each of its rows once. age,
 * cached: of copies of other ranks' rows. batches: each worker makes so many, in place of SECONDS.
 * Prints one line of JSON at the end; `cached` is the share of the fetched rows that copies serve. */
#define _GNU_SOURCE
#include <descant.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 64 };

static struct descant *job;
static struct descant_owned shape;
static int table, depth;
static size_t fields, batch;
static double zipf;                     /* 0: all rows come alike */
static unsigned long long batches;      /* of each worker; 0: for so many seconds */
static _Atomic int stops;

struct flight {
    struct descant_rows *rows;
    size_t n;
};

struct worker {
    pthread_t thread;
    uint64_t seed;
    unsigned long long examples;
    double cpu_s;
};

static double seconds(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static uint64_t next(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static void need(descant_status status, const char *what)
{
    if (status != DESCANT_OK) {
        fprintf(stderr, "rows: %s: %s\n", what, descant_last_error());
        exit(1);
    }
}

/* A row from 0 to n - 1, by a power law of real numbers that is rounded down. */
static uint64_t powered(uint64_t n, uint64_t chance)
{
    double u = (double)(chance >> 11) * 0x1p-53, most = (double)n + 1, rest = 1 - zipf;
    double x = fabs(rest) < 1e-6 ? exp(u * log(most))
                                 : pow(1 + u * (pow(most, rest) - 1), 1 / rest);
    uint64_t row = (uint64_t)x - 1;

    return row < n ? row : n - 1;
}

static int compare(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

/* Draws a batch's rows; returns how many they are. */
static size_t draw(uint64_t *seed, uint64_t *rows)
{
    size_t n = 0, all = fields * batch;
    uint64_t part = shape.rows / fields;

    for (size_t k = 0; k < all; k++)
        rows[k] = zipf > 0 ? k % fields * part + powered(part, next(seed))
                           : (uint64_t)((unsigned __int128)next(seed) * shape.rows >> 64);
    if (zipf == 0)
        return all;
    qsort(rows, all, sizeof *rows, compare);
    for (size_t k = 0; k < all; k++)
        if (n == 0 || rows[k] != rows[n - 1])
            rows[n++] = rows[k];
    return n;
}

static void fetch(uint64_t *seed, uint64_t *rows, struct flight *flight)
{
    flight->n = draw(seed, rows);
    need(descant_rows_fetch(job, table, rows, flight->n, &flight->rows), "fetch");
}

static void *work(void *of)
{
    struct worker *me = of;
    size_t n = fields * batch * shape.width;
    uint64_t *rows = malloc(fields * batch * sizeof *rows);
    float *g = malloc(n * sizeof *g), *block;
    struct flight under_way[MOST];
    uint64_t seed = me->seed;
    double began = seconds(CLOCK_THREAD_CPUTIME_ID);

    for (int k = 0; k < depth; k++)
        fetch(&seed, rows, &under_way[k]);
    unsigned long long most = batches ? batches * batch : ~0ull;
    for (int at = 0; !stops && me->examples < most; at = (at + 1) % depth) {
        need(descant_rows_wait(job, under_way[at].rows, &block), "wait");
        for (size_t k = 0; k < under_way[at].n * shape.width; k++)
            g[k] = 0.01f * block[k] + 1e-3f;
        need(descant_rows_push(job, under_way[at].rows, g, 0.01), "push");
        fetch(&seed, rows, &under_way[at]);
        need(descant_step(job), "step");
        me->examples += batch;
    }
    for (int k = 0; k < depth; k++)
        need(descant_rows_drop(job, under_way[k].rows), "drop");
    me->cpu_s = seconds(CLOCK_THREAD_CPUTIME_ID) - began;
    free(rows);
    free(g);
    return NULL;
}

static void fill(int rank, int size)
{
    enum { PIECE = 4096 };
    static uint64_t rows[PIECE];
    float *g = calloc(PIECE, shape.width * sizeof *g);
    struct descant_rows *made;

    for (size_t k = 0; k < PIECE * shape.width; k++)
        g[k] = 1e-3f;
    for (uint64_t row = (uint64_t)rank; row < shape.rows;) {
        size_t n = 0;
        for (; n < PIECE && row < shape.rows; row += (uint64_t)size)
            rows[n++] = row;
        need(descant_rows_fetch(job, table, rows, n, &made), "fetch");
        need(descant_rows_push(job, made, g, 0.01), "push");
    }
    free(g);
}

/* Sets what the words of the command line say. Returns whether all rows are to be pushed first. */
static bool read_words(int argc, char **argv)
{
    bool fills = false;

    shape = descant_owned_default();
    shape.rows = strtoull(argv[1], NULL, 10);
    shape.width = strtoull(argv[2], NULL, 10);
    shape.spread = 0.01;
    shape.wire = (enum descant_rows_wire)atoi(argv[8]);
    fields = strtoull(argv[3], NULL, 10);
    batch = strtoull(argv[4], NULL, 10);
    depth = atoi(argv[5]);
    for (int k = 9; k < argc; k++) {
        fills |= strcmp(argv[k], "fill") == 0;
        if (strncmp(argv[k], "zipf=", 5) == 0)
            zipf = atof(argv[k] + 5);
        if (strncmp(argv[k], "age=", 4) == 0)
            shape.age = atof(argv[k] + 4);
        if (strncmp(argv[k], "cached=", 7) == 0)
            shape.cached = strtoull(argv[k] + 7, NULL, 10);
        if (strncmp(argv[k], "batches=", 8) == 0)
            batches = strtoull(argv[k] + 8, NULL, 10);
    }
    return fills;
}

static void open_all(int threads)
{
    struct descant_options options = descant_options_default();

    options.plan = "shadow-ma";
    options.workers = threads;
    options.owned = 1;
    need(descant_open(&job, &options), "open");
    if (!descant_alloc(job, "w", 1000))
        exit(1);
    need(descant_owned_table(job, "rows", &shape, &table), "table");
    need(descant_start(job), "start");
}

int main(int argc, char **argv)
{
    struct descant_members members;
    struct descant_stats before, after;
    struct worker workers[MOST] = {{0}};
    int threads = argc > 7 ? atoi(argv[7]) : 0;

    if (argc < 9 || threads < 1 || threads > MOST || atoi(argv[5]) < 1 || atoi(argv[5]) > MOST) {
        fprintf(stderr, "usage: rows ROWS WIDTH FIELDS BATCH DEPTH SECONDS THREADS WIRE [fill] "
                        "[zipf=S] [age=S] [cached=N] [batches=N]\n");
        return 2;
    }
    bool fills = read_words(argc, argv);
    open_all(threads);
    need(descant_members(job, &members), "members");
    if (fills)
        fill(members.rank, members.hosts);
    need(descant_stats(job, &before), "stats");
    double began = seconds(CLOCK_MONOTONIC);
    for (int k = 0; k < threads; k++) {
        workers[k].seed = (uint64_t)(members.rank * MOST + k) << 32;
        pthread_create(&workers[k].thread, NULL, work, &workers[k]);
    }
    if (!batches) {
        usleep((useconds_t)(atof(argv[6]) * 1e6));
        stops = 1;
    }
    unsigned long long examples = 0;
    double cpu_s = 0;
    for (int k = 0; k < threads; k++) {
        pthread_join(workers[k].thread, NULL);
        examples += workers[k].examples;
        cpu_s += workers[k].cpu_s;
    }
    double wall_s = seconds(CLOCK_MONOTONIC) - began;
    need(descant_stats(job, &after), "stats");
    need(descant_finish(job, DESCANT_FINAL_MEAN), "finish");
    if (batches)                        /* with what slower ranks have asked for since */
        need(descant_stats(job, &after), "stats");
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    printf("{\"rank\":%d,\"examples\":%llu,\"wall_s\":%.3f,\"worker_us\":%.3f,\"owner_us\":%.3f,"
           "\"bytes\":%.1f,\"stall\":%.4f,\"fetched\":%.3f,\"cached\":%.4f,"
           "\"memory_mb\":%.1f}\n", members.rank, examples, wall_s,
           cpu_s * 1e6 / (double)examples,
           (after.rows_cpu_s - before.rows_cpu_s) * 1e6 / (double)examples,
           (double)(after.rows_bytes - before.rows_bytes) / (double)examples,
           (double)(after.rows_stall_ns - before.rows_stall_ns) * 1e-9 / wall_s / threads,
           (double)(after.rows_fetched - before.rows_fetched) / (double)examples,
           (double)(after.rows_cached - before.rows_cached) /
               (double)(after.rows_fetched - before.rows_fetched),
           (double)used.ru_maxrss / 1e3);
    return descant_close(job) == DESCANT_OK ? 0 : 1;
}
