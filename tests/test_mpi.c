/* SPDX-License-Identifier: MIT */
/* Real processes, started by the mpirun of each MPI library that is there. This program is both
 * sides: under Check it starts itself, with the name of a part and under mpirun, and a part that
 * finds something wrong prints it and exits with 1. */
#include "fabric/mpi_link.h"
#include "fabric/mpi_world.h"
#include "mpi_loopback.h"
#include "sync/waits.h"

#include <check.h>
#include <dlfcn.h>
#include <limits.h>
#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N = 120007, GAP_AT = 1000 };

/* --- the side of the ranks --- */

#define NEED(condition)                                                                       \
    do {                                                                                      \
        if (!(condition)) {                                                                   \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition,                \
                    descant_last_error());                                                    \
            exit(1);                                                                          \
        }                                                                                     \
    } while (0)

static void to_stderr(void *user, enum descant_level level, const char *line)
{
    (void)user;
    (void)level;
    fprintf(stderr, "%s\n", line);
}

struct peer {
    struct fabric *f;
    struct extent extents[2];
    struct vector in;
    float *got;
    float alpha;
    int parts;
};

static float value(int k, size_t i, int r)
{
    return (float)sin((double)i * 0.37 + k * 1.7 + r * 0.9) * (float)(k + 1);
}

static void fill(struct peer *p, int r)
{
    for (size_t e = 0; e < p->in.n_extents; e++)
        for (size_t i = 0; i < p->extents[e].n; i++)
            p->extents[e].p[i] = value(p->f->rank, p->extents[e].at + i, r);
}

static void open_peer(struct peer *p, bool in_place, bool center)
{
    static const struct log log = {.fn = to_stderr, .rank = -1};
    struct fabric_options options = {.rank = -1, .start_s = 30, .log = &log};
    size_t at = fabric_round_up(GAP_AT), n = at + N;
    struct fabric_start start = {.manifest = "plan x\n", .n = n, .room = n,
                                 .in_place = in_place, .collective = !center,
                                 .center = center, .n_outer = center ? 0 : 2, .threads = 1};

    memset(p, 0, sizeof *p);
    NEED(fabric_mpi.open(&p->f, &options) == DESCANT_OK);
    p->extents[0] = (struct extent){0, GAP_AT, NULL};
    p->extents[1] = (struct extent){at, N, NULL};
    for (int e = 0; e < 2 && in_place; e++) {
        p->extents[e].p = fabric_mpi.alloc(p->f, p->extents[e].at, p->extents[e].n);
        NEED(p->extents[e].p);
    }
    NEED(fabric_mpi.start(p->f, &start) == DESCANT_OK);
    for (int e = 0; e < 2 && !in_place; e++)
        p->extents[e].p = p->f->contribution + p->extents[e].at;
    p->in = (struct vector){n, 2, p->extents};
    p->got = calloc(n, sizeof *p->got);
    NEED(p->got);
}

static void close_peer(struct peer *p)
{
    fabric_mpi.close(p->f);
    free(p->got);
}

static void use(struct peer *p, const struct fabric_part *part)
{
    p->parts++;
    if (part->own)
        return;
    memcpy(p->got + part->from, part->out, part->n * sizeof *part->out);
    for (size_t e = 0; e < 2 && part->kind == EXCHANGE_ELASTIC; e++)
        for (size_t i = 0; i < part->n; i++) {
            size_t at = part->from + i;
            struct extent *x = &p->extents[e];
            if (at >= x->at && at < x->at + x->n)
                x->p[at - x->at] += p->alpha * (part->out[i] - x->p[at - x->at]);
        }
}

static void exchange(struct peer *p, struct exchange x)
{
    uint64_t until = clock_now_ns() + 30 * UINT64_C(1000000000);
    struct fabric_part part;

    x.in = &p->in;
    x.n = p->in.n;
    p->parts = 0;
    p->alpha = (float)x.alpha;
    NEED(fabric_mpi.begin(p->f, &x) == DESCANT_OK);
    for (;;) {
        enum fabric_progress progress = fabric_mpi.poll(p->f, &part);
        NEED(progress != FABRIC_FAILED && clock_now_ns() < until);
        if (progress == FABRIC_DONE)
            return;
        if (progress == FABRIC_PART)
            use(p, &part);
        else if (progress == FABRIC_WAITING)
            fabric_mpi.wait(p->f, 0);
    }
}

static bool in_gap(size_t i)
{
    return i >= GAP_AT && i < fabric_round_up(GAP_AT);
}

static void need_mean(const struct peer *p, const double *weight, int n_in, int r)
{
    double total = 0;

    for (int k = 0; k < n_in; k++)
        total += weight[k];
    for (size_t i = 0; i < p->in.n; i++) {
        double sum = 0, scale = 0;
        for (int k = 0; k < n_in && !in_gap(i); k++) {
            sum += weight[k] / total * value(k, i, r);
            scale += fabs(weight[k] / total * value(k, i, r));
        }
        double ulp = nextafterf(fabsf(p->got[i]), INFINITY) - fabsf(p->got[i]);
        NEED(fabs(p->got[i] - sum) <= 0.5 * ulp + 1e-14 * scale);
    }
}

static void means(bool in_place)
{
    struct peer p;
    double weight[16];

    open_peer(&p, in_place, false);
    int size = p.f->size, last = size - 1;
    fill(&p, 0);
    exchange(&p, (struct exchange){.kind = EXCHANGE_STATE});
    for (size_t i = 0; i < p.in.n && p.f->rank > 0; i++)
        NEED(p.got[i] == (in_gap(i) ? 0 : value(0, i, 0)));
    NEED(p.f->members == size && p.f->machine_threads == size);
    for (int r = 1; r <= 4; r++) {
        fill(&p, r);
        for (int k = 0; k < size; k++)
            weight[k] = r == 3 && k == last && last > 0 ? 0 : k + 1;
        if (r == 3 && last > 0 && p.f->rank == last)
            p.extents[1].p[N - 1] = NAN;
        exchange(&p, (struct exchange){.weight = p.f->rank + 1});
        NEED(p.f->own_bad == (r == 3 && last > 0 && p.f->rank == last));
        need_mean(&p, weight, size, r);
    }
    fill(&p, 9);
    exchange(&p, (struct exchange){.weight = p.f->rank + 1, .final = true});
    need_mean(&p, weight, size, 9);
    close_peer(&p);
}

/* (1 - alpha) W + all w stays what it was; all see the same centre at the end. */
static void elastics(bool in_place)
{
    enum { TIMES = 10 };
    const double alpha = 0.25;
    struct peer p;

    open_peer(&p, in_place, true);
    int size = p.f->size;
    fill(&p, 0);
    exchange(&p, (struct exchange){.kind = EXCHANGE_STATE});
    fill(&p, 1);
    for (int r = 0; r < TIMES; r++) {
        exchange(&p, (struct exchange){.kind = EXCHANGE_ELASTIC, .alpha = alpha});
        NEED(p.parts > 0);
    }
    exchange(&p, (struct exchange){.kind = EXCHANGE_STATE, .final = true});
    float *center = malloc(p.in.n * sizeof *center);
    NEED(center);
    memcpy(center, p.f->center, p.in.n * sizeof *center);
    exchange(&p, (struct exchange){.weight = 1, .final = true});
    for (size_t i = 0; i < p.in.n; i++) {
        double sum = (1 - alpha) * value(0, i, 0);
        for (int k = 0; k < size; k++)
            sum += value(k, i, 1);
        if (!in_gap(i))
            NEED(fabs((1 - alpha) * center[i] + (double)size * p.got[i] - sum) < 1e-4);
        NEED(!in_gap(i) || center[i] == 0);
    }
    for (size_t e = 0; e < 2; e++)
        memcpy(p.extents[e].p, center + p.extents[e].at, p.extents[e].n * sizeof *center);
    exchange(&p, (struct exchange){.weight = 1, .final = true});
    NEED(memcmp(p.got, center, p.in.n * sizeof *center) == 0);
    free(center);
    close_peer(&p);
}

static int part_exchanges(void)
{
    for (int in_place = 0; in_place < 2; in_place++) {
        means(in_place);
        elastics(in_place);
    }
    return 0;
}

/* The last rank leaves early, then the first, who leads; their slices are still served. */
static int part_leavers(void)
{
    double weight[16] = {1, 1, 1, 1, 1, 1, 1, 1};
    struct peer p;

    for (int center = 0; center < 2; center++) {
        open_peer(&p, false, center);
        int size = p.f->size, last = size - 1;
        fill(&p, 0);
        exchange(&p, (struct exchange){.kind = EXCHANGE_STATE});
        for (int r = 1; r <= 2 && p.f->rank < last; r++) {
            fill(&p, r);
            if (center)
                exchange(&p, (struct exchange){.kind = EXCHANGE_ELASTIC, .alpha = 0.5});
            else
                exchange(&p, (struct exchange){.weight = 1});
            if (!center && p.f->members == last)
                need_mean(&p, weight, last, r);
        }
        for (int r = 3; r <= 4 && p.f->rank > 0 && p.f->rank < last; r++) {
            fill(&p, r);
            exchange(&p, (struct exchange){.kind = center ? EXCHANGE_ELASTIC : EXCHANGE_MEAN,
                                           .weight = 1, .alpha = 0.5});
        }
        if (p.f->rank > 0 && p.f->rank < last && size == 3 && !center)
            NEED(p.f->members == 1);
        close_peer(&p);
    }
    return 0;
}

static float *last_segment;

static struct descant *open_job(const char *address, const char *plan, const char *name, size_t n)
{
    struct descant *job;
    struct descant_options options = descant_options_default();

    options.job = address;
    options.plan = plan;
    options.start_s = 20;
    options.log = to_stderr;
    if (descant_open(&job, &options) != DESCANT_OK)
        exit(3);
    last_segment = descant_alloc(job, name, n);
    NEED(last_segment);
    return job;
}

/* Through descant.h, one job after the other, without an address. */
static int part_jobs(void)
{
    static const char *const plans[] = {"allreduce", "shadow-ma", "shadow-easgd", "ma,every=2",
                                        "dasgd", "shadow-bmuf"};
    struct descant_members members;
    void *block, *again;

    size_t n = sizeof plans / sizeof *plans;
    for (size_t k = 0; k < 2 * n; k++) {
        struct descant *job = open_job(k < n ? NULL : "mpi:messages", plans[k % n], "w", 5000);
        NEED(descant_share(job, "block", 100, &block) == DESCANT_OK);
        NEED(descant_share(job, "block", 100, &again) == DESCANT_OK);
        NEED(descant_start(job) == DESCANT_OK);
        NEED(descant_members(job, &members) == DESCANT_OK && members.size > 1);
        atomic_fetch_add((_Atomic int *)block, 1);
        float x[3] = {(float)members.rank, 1, -2};
        if (k % n == 0) {
            NEED(descant_mean(job, x, 3) == DESCANT_OK);
            NEED(x[0] == (float)(members.size - 1) / 2 && x[1] == 1 && x[2] == -2);
        }
        for (int step = 0; step < 40; step++) {
            NEED(descant_step(job) == DESCANT_OK);
            clock_sleep_until(clock_now_ns() + 100000);
        }
        NEED(descant_finish(job, DESCANT_FINAL_MEAN) == DESCANT_OK);
        NEED(atomic_load((_Atomic int *)block) == members.size);
        NEED(descant_close(job) == DESCANT_OK);
    }
    return 0;
}

enum { TABLE_ROWS = 5000, TABLE_WIDTH = 8, TABLE_STEPS = 300, TABLE_A_STEP = 20 };

/* Each rank has rows of its own, so sums of whole numbers are exact on every host. */
static void train_rows(struct descant *job, float *table, const struct descant_members *who,
                       float *sums)
{
    struct rng rng;
    uint64_t touched[TABLE_A_STEP], size = (uint64_t)who->size, rank = (uint64_t)who->rank;

    for (uint64_t of = 0; of < size; of++) {
        rng_init(&rng, of + 1);
        for (int t = 0; t < TABLE_STEPS; t++) {
            for (int n = 0; n < TABLE_A_STEP; n++) {
                double u = rng_uniform(&rng);
                touched[n] = (uint64_t)(u * u * (TABLE_ROWS / (int)size)) * size + of;
                sums[touched[n]] += 1;
                for (size_t c = 0; c < TABLE_WIDTH && of == rank; c++)
                    table[touched[n] * TABLE_WIDTH + c] += 1;
            }
            if (of != rank)
                continue;
            NEED(descant_touch(job, table, touched, TABLE_A_STEP) == DESCANT_OK);
            NEED(descant_step(job) == DESCANT_OK);
            clock_sleep_until(clock_now_ns() + 1000000);
        }
    }
}

static int part_tables(void)
{
    static const char *const plans[] = {"shadow-easgd,hot=0", "ma,every=3,hot=0",
                                        "shadow-ma,hot=0,wire=q8"};
    static float sums[TABLE_ROWS];
    struct descant_members who;
    struct descant_stats stats;
    float *table;

    for (size_t k = 0; k < sizeof plans / sizeof *plans; k++) {
        float err = strstr(plans[k], "wire=") ? 1e-3f : 0;     /* encoded updates round */
        struct descant *job = open_job("mpi:messages", plans[k], "w", 1000);
        NEED(descant_table(job, "rows", TABLE_ROWS, TABLE_WIDTH, &table) == DESCANT_OK);
        NEED(descant_start(job) == DESCANT_OK);
        NEED(descant_members(job, &who) == DESCANT_OK);
        memset(sums, 0, sizeof sums);
        train_rows(job, table, &who, sums);
        NEED(descant_finish(job, DESCANT_FINAL_MEAN) == DESCANT_OK);
        for (size_t row = 0; row < TABLE_ROWS; row++)
            for (size_t c = 0; c < TABLE_WIDTH; c++)
                NEED(fabsf(table[row * TABLE_WIDTH + c] - sums[row]) <= err);
        NEED(descant_stats(job, &stats) == DESCANT_OK);
        fprintf(stderr, "rank %d of %d: %llu rounds of rows, %llu rows sent, sums are exact\n",
                who.rank, who.size, (unsigned long long)stats.rows_rounds,
                (unsigned long long)stats.rows_sent);
        NEED(descant_close(job) == DESCANT_OK);
    }
    return 0;
}

enum { STILL_N = 200000, STILL_STEPS = 12 };

/* Rounds of replicas that stand still where ranks begin apart: the bytes that they take. */
static uint64_t stand_still(const char *plan, float *last, int *size)
{
    struct descant_stats before, after;
    struct descant_members who;
    struct descant *job = open_job("mpi:messages", plan, "w", STILL_N);
    float *w = last_segment;
    uint64_t hash = 1;
    uint32_t bits;

    NEED(descant_start(job) == DESCANT_OK);
    NEED(descant_members(job, &who) == DESCANT_OK && who.size > 1);
    NEED(descant_stats(job, &before) == DESCANT_OK);
    for (size_t i = 0; i < STILL_N; i++)
        w[i] = value(who.rank, i, 1);
    for (int step = 0; step < STILL_STEPS; step++) {
        NEED(descant_step(job) == DESCANT_OK);
        for (size_t i = 0; i < STILL_N && step > 1; i++) {     /* merges far apart round */
            memcpy(&bits, &w[i], sizeof bits);
            hash = (hash ^ bits) * UINT64_C(0x100000001b3);
        }
    }
    NEED(descant_stats(job, &after) == DESCANT_OK && after.rounds - before.rounds >= STILL_STEPS);
    memcpy(last, w, STILL_N * sizeof *w);
    fprintf(stderr, "rank %d hash %016llx\n", who.rank, (unsigned long long)hash);
    NEED(descant_finish(job, DESCANT_FINAL_MEAN) == DESCANT_OK);
    NEED(descant_close(job) == DESCANT_OK);
    *size = who.size;
    return (after.bytes - before.bytes) / (after.rounds - before.rounds);
}

static int part_wire(void)
{
    static float w[STILL_N];
    int size;
    uint64_t plain = stand_still("ma,every=1", w, &size);
    uint64_t encoded = stand_still("ma,every=1,wire=q8", w, &size);

    for (size_t i = 0; i < STILL_N; i++) {
        double mean = 0;
        for (int k = 0; k < size; k++)
            mean += (double)value(k, i, 1) / size;
        NEED(fabs((double)w[i] - mean) < 1e-5);
    }
    fprintf(stderr, "%llu bytes a round, %llu as floats\n", (unsigned long long)encoded,
            (unsigned long long)plain);
    NEED((double)encoded < 0.26 * (double)plain);
    return 0;
}

static bool is_first(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK"};
    for (int k = 0; k < 2; k++)
        if (getenv(names[k]))
            return atoi(getenv(names[k])) == 0;
    return true;
}

/* The last rank leaves early: it stays, asleep, until the others have left. */
static int part_early(void)
{
    struct descant_members who;
    struct descant *job = open_job("mpi", "shadow-ma", "w", 1000);

    NEED(descant_start(job) == DESCANT_OK);
    NEED(descant_members(job, &who) == DESCANT_OK);
    uint64_t began = clock_now_ns(), cpu = clock_thread_cpu_ns();
    if (who.rank < 2) {
        clock_sleep_until(began + UINT64_C(2000000000));
        NEED(descant_finish(job, DESCANT_FINAL_MEAN) == DESCANT_OK);
    }
    NEED(descant_close(job) == DESCANT_OK);
    NEED(clock_now_ns() - began > UINT64_C(1000000000));
    NEED(clock_thread_cpu_ns() - cpu < UINT64_C(1000000000));
    return 0;
}

static int start_differently(const char *address, const char *plan, const char *name, size_t n)
{
    struct descant *job = open_job(address, plan, name, n);
    descant_status status = descant_start(job);

    fprintf(stderr, "started: %s\n", descant_status_text(status));
    descant_close(job);
    return status == DESCANT_MISMATCH ? 0 : 1;
}

static int part_plans(void)
{
    return start_differently("mpi", is_first() ? "shadow-ma" : "shadow-ma,alpha=0.25", "w", 10);
}

static int part_models(void)
{
    return start_differently("mpi:messages", "shadow-ma", "w", is_first() ? 10 : 11);
}

typedef int stop_mpi(void);

/* Levels are numbered alike in both libraries. */
static stop_mpi *start_mpi(int level)
{
    static const char *const files[] = {"libmpi.so.40", "libmpich.so.12"};
    void *library = dlopen(files[mpi_module_wanted()], RTLD_NOW | RTLD_GLOBAL);
    int given = -1;

    NEED(library);
    int (*start)(int *, char ***, int, int *) =
        (int (*)(int *, char ***, int, int *))dlsym(library, "MPI_Init_thread");
    stop_mpi *stop = (stop_mpi *)dlsym(library, "MPI_Finalize");
    NEED(start && stop && start(NULL, NULL, level, &given) == 0 && given == level);
    return stop;
}

/* The program has MPI to itself, before and after. */
static int with_own_mpi(int level)
{
    stop_mpi *stop = start_mpi(level);
    struct descant *job = open_job("mpi:messages", "shadow-ma", "w", 1000);
    NEED(descant_start(job) == DESCANT_OK);
    NEED(descant_finish(job, DESCANT_FINAL_MEAN) == DESCANT_OK);
    NEED(descant_close(job) == DESCANT_OK);
    return stop();
}

static int part_multiple(void)
{
    return with_own_mpi(3);
}

/* Two jobs at once would call MPI from two threads. */
static int part_two(void)
{
    struct descant *second, *job = open_job("mpi:messages", "shadow-ma", "w", 10);
    struct descant_options options = descant_options_default();

    options.job = "mpi:messages";
    NEED(descant_start(job) == DESCANT_OK);
    NEED(descant_open(&second, &options) == DESCANT_UNSUPPORTED);
    NEED(strstr(descant_last_error(), "MPI_THREAD_MULTIPLE"));
    NEED(descant_finish(job, DESCANT_FINAL_MEAN) == DESCANT_OK);
    NEED(descant_close(job) == DESCANT_OK);
    NEED(descant_open(&second, &options) == DESCANT_OK);
    NEED(descant_close(second) == DESCANT_OK);
    return 0;
}

static int part_funneled(void)
{
    return with_own_mpi(1);
}

enum { BLOCKS = 2000, BLOCK_LEAST = 600 };

static size_t block_bytes(int k)
{
    return BLOCK_LEAST + (size_t)(k % 40) * 8;
}

/* A job fails, and rank 0 does not wait for the rank that is busy elsewhere: what that one sends
 * later must not be written into memory that is the program's again. */
static int part_apart(void)
{
    static unsigned char *blocks[BLOCKS];
    stop_mpi *stop = start_mpi(3);
    struct descant *job = open_job("mpi:messages", "allreduce", "w", 10);
    float x[2] = {0, 0};

    NEED(descant_start(job) == DESCANT_OK);
    NEED(descant_mean(job, x, is_first() ? 1 : 2) == DESCANT_MISMATCH);
    if (!is_first())
        clock_sleep_until(clock_now_ns() + UINT64_C(3000000000));
    NEED(descant_close(job) == DESCANT_OK);
    for (int k = 0; k < BLOCKS; k++) {
        blocks[k] = malloc(block_bytes(k));
        NEED(blocks[k]);
        memset(blocks[k], 0xaa, block_bytes(k));
    }
    job = open_job("mpi:messages", "allreduce", "w", 10);   /* lets messages move */
    for (int k = 0; k < BLOCKS; k++) {
        for (size_t i = 0; i < block_bytes(k); i++)
            NEED(blocks[k][i] == 0xaa);
        free(blocks[k]);
    }
    NEED(descant_close(job) == DESCANT_OK);
    return stop();
}

static void all_become(float *w, size_t n, float to)
{
    for (size_t i = 0; i < n; i++)
        w[i] = to;
}

static void *saved_center(size_t *bytes)
{
    size_t n = 5000;
    struct descant *job = open_job("mpi:messages", "shadow-easgd,gap=1000000", "w", n);
    all_become(last_segment, n, 3);
    NEED(descant_start(job) == DESCANT_OK);
    NEED(descant_outer_save(job, NULL, bytes) == DESCANT_OK);
    void *memory = malloc(*bytes);
    NEED(memory && descant_outer_save(job, memory, bytes) == DESCANT_OK);
    NEED(descant_close(job) == DESCANT_OK);
    return memory;
}

/* One rank reloads: all have its replica, and the centre that it brings, in slices of all ranks. */
static int part_reload(void)
{
    size_t bytes, n = 5000;
    void *center = saved_center(&bytes);
    struct descant_members members;
    struct descant *job = open_job("mpi:messages", "shadow-easgd,gap=1000000", "w", n);
    float *w = last_segment;

    all_become(w, n, 1);
    NEED(descant_start(job) == DESCANT_OK);
    NEED(descant_members(job, &members) == DESCANT_OK);
    if (members.rank == members.size - 1) {
        NEED(descant_pause(job) == DESCANT_OK);
        all_become(w, n, 2);
        NEED(descant_outer_load(job, center, bytes) == DESCANT_OK);
        NEED(descant_reload(job) == DESCANT_OK);
    }
    uint64_t until = clock_now_ns() + 20 * UINT64_C(1000000000);
    while (*(volatile float *)&w[n - 1] != 2) {
        clock_sleep_until(clock_now_ns() + 1000000);
        NEED(clock_now_ns() < until);
    }
    NEED(descant_finish(job, DESCANT_FINAL_CENTRAL) == DESCANT_OK);
    for (size_t i = 0; i < n; i++)
        NEED(w[i] == 3);
    NEED(descant_close(job) == DESCANT_OK);
    free(center);
    return 0;
}

static const struct part {
    const char *name;
    int (*run)(void);
} parts[] = {
    {"exchanges", part_exchanges}, {"leavers", part_leavers},   {"tables", part_tables},
    {"jobs", part_jobs},           {"plans", part_plans},       {"models", part_models},
    {"multiple", part_multiple},   {"funneled", part_funneled}, {"reload", part_reload},
    {"wire", part_wire},           {"two", part_two},
    {"apart", part_apart},
    {"early", part_early},
};

/* --- any order of events, in one thread --- */

enum { RESTLESS_MOST = 5, RESTLESS_N = 9000, RESTLESS_SHORT_N = 100, RESTLESS_TURNS = 200000 };

/* AddressSanitizer makes these minutes. */
#ifdef __SANITIZE_ADDRESS__
enum { RESTLESS_SEEDS = 4, LIBRARIES_RUN = 1 };
#else
enum { RESTLESS_SEEDS = 32, LIBRARIES_RUN = MPI_LIBRARIES };
#endif

struct restless_plan {
    size_t n;
    bool center, final;         /* final: at their end all take the final model, then leave */
    enum exchange_kind last;
};

/* A trainer that begins, gives up, begins something else, and leaves at some time. */
struct restless {
    struct fabric *f;
    struct extent extent;
    struct vector in[2];        /* this exchange's, and that of the one before, which is gone */
    int left;                   /* exchanges that it still begins */
    bool open, kept;            /* kept: it waits for this one */
    bool ends;                  /* it has begun the final one */
    unsigned sleeps;            /* turns that it will miss */
};

static void restless_begin(struct restless *t, struct rng *rng, const struct restless_plan *plan)
{
    struct exchange x = {.in = &t->in[t->left & 1], .n = plan->n, .weight = 1, .alpha = 0.5};
    unsigned chance = (unsigned)(rng_next(rng) % 8);

    x.kind = chance == 0 ? EXCHANGE_STATE : plan->center ? EXCHANGE_ELASTIC : EXCHANGE_MEAN;
    x.priority = rng_next(rng) % 3;
    x.final = t->ends = t->left == 0;
    if (x.final)
        x.kind = plan->last;
    t->in[t->left & 1] = (struct vector){plan->n, 1, &t->extent};
    ck_assert_int_eq(t->f->type->begin(t->f, &x), DESCANT_OK);
    t->in[~t->left & 1] = (struct vector){0};
    t->open = true;
    t->kept = x.final || rng_next(rng) % 3 != 0;
    t->left--;
}

/* At the end of what it wants. */
static bool restless_ends(const struct restless *t, const struct restless_plan *plan)
{
    return t->left <= 0 && (t->ends || !plan->final) && (!t->open || !t->kept);
}

/* Vectors are constant, between 1 and the number of trainers, and so is all that comes of them. */
static void restless_use(const struct restless *t, const struct fabric_part *part, int size)
{
    const float *w = part->own ? t->extent.p : part->out;
    float err = t->f->wire == WIRE_F32 ? 0 : 1e-3f;

    for (size_t i = 1; i < part->n; i++)
        ck_assert_msg(fabsf(w[i] - w[0]) <= err || part->kind != EXCHANGE_MEAN, "%g, then %g",
                      (double)w[0], (double)w[i]);
    for (size_t i = 0; i < part->n; i++)
        ck_assert_msg(w[i] >= 1 - err && w[i] <= (float)size + err, "rank %d has %g", t->f->rank,
                      (double)w[i]);
    if (t->f->wire != WIRE_F32)
        memcpy(t->f->outer[0], w, part->n * sizeof *w);
}

static void restless_turn(struct restless *t, struct rng *rng, const struct restless_plan *plan,
                          int size)
{
    struct fabric_part part;

    switch (t->f->type->poll(t->f, &part)) {
    case FABRIC_PART:
        restless_use(t, &part, size);
        break;
    case FABRIC_DONE:
        t->open = false;
        break;
    case FABRIC_FAILED:
        ck_abort_msg("rank %d: %s", t->f->rank, descant_last_error());
        break;
    case FABRIC_CALLED:
        t->left += t->left == 0;
        break;
    default:
        break;
    }
    if ((t->left > 0 || (t->left == 0 && plan->final)) &&
        (!t->open || (!t->kept && rng_next(rng) % 16 == 0)))
        restless_begin(t, rng, plan);
}

/* Some sleep long, as a process may that has no core. */
static bool restless_sleeps(struct restless *t, struct rng *rng)
{
    if (t->sleeps == 0 && rng_next(rng) % 64 == 0)
        t->sleeps = (unsigned)(rng_next(rng) % 256);
    t->sleeps -= t->sleeps > 0;
    return t->sleeps > 0;
}

static void restless_world(uint64_t seed, bool center, enum wire wire)
{
    struct rng rng;
    struct restless t[RESTLESS_MOST] = {{0}};
    const struct restless_plan plan = {
        .n = seed % 4 ? RESTLESS_SHORT_N : RESTLESS_N, .center = center, .final = seed % 3 > 0,
        .last = seed % 3 == 1 ? EXCHANGE_STATE : EXCHANGE_MEAN};
    const struct fabric_start start = {.manifest = "x\n", .n = plan.n, .room = plan.n,
                                       .collective = !center, .center = center, .threads = 1,
                                       .n_outer = wire != WIRE_F32};

    rng_init(&rng, seed);
    int size = 2 + (int)(rng_next(&rng) % (RESTLESS_MOST - 1)), here = size;
    struct loopback *world = loopback_create(size, seed);
    for (int k = 0; k < size; k++) {
        struct fabric_options options = {.rank = k, .wire = wire, .context = world};
        ck_assert_int_eq(fabric_loopback.open(&t[k].f, &options), DESCANT_OK);
        ck_assert_int_eq(fabric_loopback.start(t[k].f, &start), DESCANT_OK);
        t[k].extent = (struct extent){0, plan.n, t[k].f->contribution};
        for (size_t i = 0; i < plan.n; i++)
            t[k].extent.p[i] = (float)(k + 1);
        t[k].left = 1 + (int)(rng_next(&rng) % 12);
        struct vector *in = &t[k].in[~t[k].left & 1];
        *in = (struct vector){plan.n, 1, &t[k].extent};
        struct exchange x = {.kind = EXCHANGE_STATE, .in = in, .n = plan.n};
        ck_assert_int_eq(fabric_loopback.begin(t[k].f, &x), DESCANT_OK);
        t[k].open = t[k].kept = true;
    }
    for (int turn = 0; here > 0; turn++) {
        ck_assert_msg(turn < RESTLESS_TURNS, "seed %llu: it does not end",
                      (unsigned long long)seed);
        int k = (int)(rng_next(&rng) % (uint64_t)size);
        if (!t[k].f || restless_sleeps(&t[k], &rng))
            continue;
        restless_turn(&t[k], &rng, &plan, size);
        if (restless_ends(&t[k], &plan)) {
            fabric_loopback.close(t[k].f);
            t[k].f = NULL;
            here--;
        }
    }
    loopback_destroy(world);
    ck_assert_int_eq(memory_live(), 0);
}

START_TEST(rounds_end_whatever_trainers_do)
{
    for (uint64_t seed = 1; seed <= RESTLESS_SEEDS; seed++)
        restless_world(seed, _i == 1, _i == 2 ? WIRE_Q8 : WIRE_F32);
}
END_TEST

/* --- three ranks, and what they are told --- */

struct trio {
    struct loopback *world;
    struct fabric *f[3];
    struct extent extents[3];
    struct vector in[3];
    bool center;
};

static void trio_begin_one(struct trio *t, int k, enum exchange_kind kind, bool final)
{
    const struct exchange x = {.kind = kind, .in = &t->in[k], .n = RESTLESS_N, .weight = 1,
                               .alpha = 0.5, .final = final};
    ck_assert_int_eq(t->f[k]->type->begin(t->f[k], &x), DESCANT_OK);
}

static void trio_begin(struct trio *t, int k, enum exchange_kind kind)
{
    trio_begin_one(t, k, kind, false);
}

static void trio_open(struct trio *t, int k)
{
    const struct fabric_options options = {.rank = k, .context = t->world};
    const struct fabric_start start = {.manifest = "x\n", .n = RESTLESS_N, .room = RESTLESS_N,
                                       .collective = !t->center, .center = t->center,
                                       .threads = 1};

    ck_assert_int_eq(fabric_loopback.open(&t->f[k], &options), DESCANT_OK);
    ck_assert_int_eq(fabric_loopback.start(t->f[k], &start), DESCANT_OK);
    t->extents[k] = (struct extent){0, RESTLESS_N, t->f[k]->contribution};
    t->in[k] = (struct vector){RESTLESS_N, 1, &t->extents[k]};
    trio_begin(t, k, EXCHANGE_STATE);
}

/* Polls those of the set in turns for so long, once at least: those that are done, or have failed. */
static unsigned trio_poll(struct trio *t, unsigned set, unsigned ms)
{
    uint64_t until = clock_now_ns() + ms * UINT64_C(1000000);
    struct fabric_part part;
    unsigned ended = 0;

    do {
        for (int k = 0; k < 3; k++)
            if (set & ~ended & 1U << k) {
                enum fabric_progress progress = t->f[k]->type->poll(t->f[k], &part);
                ended |= progress == FABRIC_DONE || progress == FABRIC_FAILED ? 1U << k : 0;
            }
    } while (ended != set && clock_now_ns() < until);
    return ended;
}

static void trio_close(struct trio *t)
{
    for (int k = 0; k < 3; k++)
        fabric_loopback.close(t->f[k]);
    loopback_destroy(t->world);
    ck_assert_int_eq(memory_live(), 0);
}

static void need_waits(const struct fabric *f, const char *says)
{
    char text[200];
    waits_text(f, text, sizeof text);
    ck_assert_str_eq(text, says);
}

/* Polls those of the set until trainer k says so. */
static void trio_until_says(struct trio *t, unsigned set, int k, const char *says)
{
    uint64_t until = clock_now_ns() + 10 * UINT64_C(1000000000);
    char text[200] = "";

    while (strcmp(text, says) != 0 && clock_now_ns() < until) {
        trio_poll(t, set, 1);
        waits_text(t->f[k], text, sizeof text);
    }
    ck_assert_str_eq(text, says);
}

/* All who have arrived know whom for, also while other messages move; and if rank 0 cannot tell. */
START_TEST(the_late_are_named_to_all)
{
    struct trio t = {.world = loopback_create_hosts(3, 1, 1)};
    char text[200];

    for (int k = 0; k < 3; k++)
        trio_open(&t, k);
    ck_assert_uint_eq(trio_poll(&t, 7, 10000), 7);
    trio_begin(&t, 0, EXCHANGE_MEAN);
    trio_begin(&t, 1, EXCHANGE_MEAN);
    trio_until_says(&t, 3, 0, "trainer 0 waits in round 2 (mean) for trainer 2 (host2)");
    trio_until_says(&t, 3, 1, "trainer 1 waits in round 2 (mean) for trainer 2 (host2)");
    trio_begin(&t, 2, EXCHANGE_MEAN);
    ck_assert_uint_eq(trio_poll(&t, 7, 10000), 7);
    need_waits(t.f[1], "");
    uint64_t began = clock_now_ns();
    trio_begin(&t, 1, EXCHANGE_MEAN);
    trio_poll(&t, 2, 200);
    waits_text(t.f[1], text, sizeof text);
    ck_assert_msg(!*text || clock_now_ns() - began > 300 * UINT64_C(1000000), "%s", text);
    trio_until_says(&t, 2, 1, "trainer 1 waits in round 3 (mean) for trainer 0 (host0)");
    trio_begin(&t, 0, EXCHANGE_MEAN);
    trio_poll(&t, 3, 250);
    trio_begin_one(&t, 1, EXCHANGE_MEAN, true);
    trio_until_says(&t, 3, 0, "trainer 0 waits in round 3 (mean) for trainer 2 (host2)");
    trio_until_says(&t, 3, 1, "trainer 1 waits at its finish for trainers 0 (host0) and 2 (host2)");
    trio_close(&t);
}
END_TEST

/* Rank 0 is through with a round, calls for the next one and takes that back, while others are not
 * through yet: what was meant for the next round must not touch theirs. */
START_TEST(a_call_taken_back_leaves_the_round_before_alone)
{
    struct trio t = {.world = loopback_create_hosts(3, 1, (uint64_t)_i + 1)};
    int early = 0;

    for (int k = 0; k < 3; k++)
        trio_open(&t, k);
    ck_assert_uint_eq(trio_poll(&t, 7, 10000), 7);
    for (int round = 0; round < 100; round++) {
        unsigned ended = 0;
        for (int k = 0; k < 3; k++)
            trio_begin(&t, k, EXCHANGE_MEAN);
        for (int k = 0; !(ended & 1); k = (k + 1) % 3)
            ended |= trio_poll(&t, 4U >> k & ~ended, 0);
        early += ended != 7;
        for (int again = 0; again < 2; again++) {
            trio_begin(&t, 0, EXCHANGE_MEAN);
            trio_poll(&t, 1, 1);
        }
        ck_assert_uint_eq(trio_poll(&t, 6 & ~ended, 10000), 6 & ~ended);
        trio_begin(&t, 1, EXCHANGE_MEAN);
        trio_begin(&t, 2, EXCHANGE_MEAN);
        ck_assert_uint_eq(trio_poll(&t, 7, 10000), 7);
    }
    ck_assert_int_gt(early, 0);
    trio_close(&t);
}
END_TEST

static enum fabric_progress trio_turn(struct trio *t, int k)
{
    struct fabric_part part;
    return t->f[k]->type->poll(t->f[k], &part);
}

/* Rank 1 arrives for rank 0's state, which is taken back before rank 0 hears of that. */
START_TEST(who_comes_after_a_call_was_taken_back_goes_on)
{
    struct trio t = {.world = loopback_create_hosts(3, 1, (uint64_t)_i + 1), .center = true};

    for (int k = 0; k < 3; k++)
        trio_open(&t, k);
    ck_assert_uint_eq(trio_poll(&t, 7, 10000), 7);
    for (int round = 0; round < 20; round++) {
        unsigned ended = 0;
        trio_begin(&t, 0, EXCHANGE_STATE);
        for (int turn = 0; trio_turn(&t, 1) != FABRIC_CALLED; turn++) {
            ck_assert_int_lt(turn, 1000);
            trio_turn(&t, 0);
        }
        trio_begin(&t, 1, EXCHANGE_ELASTIC);
        for (int turn = 0; mpi_of(t.f[1])->stage != STAGE_ARRIVED; turn++) {
            ck_assert_int_lt(turn, 1000);
            trio_turn(&t, 1);
        }
        trio_begin(&t, 0, EXCHANGE_ELASTIC);
        for (int turn = 0; ended != 3; turn++) {
            ck_assert_int_lt(turn, 10000);
            ended |= trio_turn(&t, turn % 3) == FABRIC_DONE ? 1U << turn % 3 : 0;
        }
    }
    trio_close(&t);
}
END_TEST

static const struct mpi_links *honest;

/* As a rank of another version would have it. */
static bool send_forged(struct mpi_link *link, const void *p, size_t bytes, int to, int tag,
                        void *op)
{
    struct mpi_word word;

    if (tag != TAG_WORD)
        return honest->send(link, p, bytes, to, tag, op);
    ck_assert_uint_eq(bytes, sizeof word);
    memcpy(&word, p, sizeof word);
    word.protocol += 71;
    return honest->send(link, &word, sizeof word, to, tag, op);
}

static bool send_forged_manifest(struct mpi_link *link, const void *p, size_t bytes, int to,
                                 int tag, void *op)
{
    static char manifest[200];

    if (tag != TAG_MANIFEST)
        return honest->send(link, p, bytes, to, tag, op);
    ck_assert_uint_le(bytes, sizeof manifest);
    memcpy(manifest, p, bytes);
    ck_assert_int_eq(strncmp(manifest, "descant " DESCANT_VERSION "\n", 9), 0);
    manifest[8] = '9';
    return honest->send(link, manifest, bytes, to, tag, op);
}

/* Rank 1 is of another version: all are told, in the same words. The fourth rank never comes, for
 * words of another protocol do not say who leaves. */
START_TEST(versions_are_told_by_name_and_value)
{
    struct trio t = {.world = loopback_create_hosts(4, 1, 1)};
    const struct mpi_links **links = (const struct mpi_links **)(void *)t.world;
    struct mpi_links forged = **links;
    char says[200] = "rank 1 (host1) has \"descant 9";
    if (_i == 0)
        snprintf(says, sizeof says, "rank 1 (host1) has \"descant protocol %d\", rank 0 (host0) "
                 "\"descant protocol %d\"", MPI_PROTOCOL + 71, MPI_PROTOCOL);

    honest = *links;
    forged.send = _i ? send_forged_manifest : send_forged;
    for (int k = 0; k < 3; k++) {
        *links = k == 1 ? &forged : honest;
        trio_open(&t, k);
    }
    for (int k = 0; k < 3; k++) {
        ck_assert_uint_eq(trio_poll(&t, 1U << k, 10000), 1U << k);
        ck_assert_int_eq(t.f[k]->status, DESCANT_MISMATCH);
        ck_assert_msg(strstr(descant_last_error(), says), "%s", descant_last_error());
    }
    trio_close(&t);
}
END_TEST

/* --- the side of Check --- */

static char folder[PATH_MAX], program[PATH_MAX], said[1 << 16];

static const struct {
    const char *mpirun, *flags;
} launchers[MPI_LIBRARIES] = {
    {"mpirun.openmpi", "--oversubscribe --bind-to none"},
    {"mpirun.mpich", ""},
};

static bool is_there(enum mpi_library library)
{
    char path[PATH_MAX], command[100];

    snprintf(command, sizeof command, "command -v %s >/dev/null", launchers[library].mpirun);
    if (mpi_module_find(library, path, sizeof path) && system(command) == 0)
        return true;
    printf("%s: not tested, there is no %s or no module\n", mpi_module_name(library),
           launchers[library].mpirun);
    return false;
}

/* Runs the part on so many ranks; its exit status, and what it said in `said`. */
static int launch_bound(const char *binding, enum mpi_library library, int ranks,
                        const char *part)
{
    char command[3 * PATH_MAX];
    size_t n = 0, got;

    snprintf(command, sizeof command, "timeout -k 5 60 %s %s %s -n %d %s %s 2>&1", binding,
             launchers[library].mpirun, launchers[library].flags, ranks, program, part);
    FILE *out = popen(command, "r");
    ck_assert_ptr_nonnull(out);
    while ((got = fread(said + n, 1, sizeof said - 1 - n, out)) > 0)
        n += got;
    said[n] = 0;
    int status = pclose(out);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

static int launch(enum mpi_library library, int ranks, const char *part)
{
    return launch_bound("", library, ranks, part);
}

static void need_good(enum mpi_library library, int ranks, const char *part)
{
    int status = launch(library, ranks, part);
    ck_assert_msg(status == 0, "%s, %s on %d ranks: status %d\n%s", mpi_module_name(library), part,
                  ranks, status, said);
}

static void need_said(const char *text)
{
    ck_assert_msg(strstr(said, text), "\"%s\" was not said, but\n%s", text, said);
}

START_TEST(exchanges_are_exact)
{
    static const int sizes[] = {1, 2, 3, 5};
    for (int k = 0; k < 4 && is_there((enum mpi_library)_i); k++)
        need_good((enum mpi_library)_i, sizes[k], "exchanges");
}
END_TEST

START_TEST(leavers_serve_to_the_end)
{
    if (is_there((enum mpi_library)_i))
        need_good((enum mpi_library)_i, 3, "leavers");
}
END_TEST

START_TEST(who_leaves_early_stays_asleep)
{
    if (is_there((enum mpi_library)_i))
        need_good((enum mpi_library)_i, 3, "early");
}
END_TEST

START_TEST(jobs_need_no_address)
{
    if (!is_there((enum mpi_library)_i))
        return;
    need_good((enum mpi_library)_i, 2, "jobs");
    need_said("job mpi (from ");
    need_said("2 ranks on 1 host");
    need_said(_i == MPI_LIBRARY_OPENMPI ? "mpi: Open MPI" : "mpi: MPICH");
}
END_TEST

START_TEST(too_few_cores_are_named)
{
    if (!is_there((enum mpi_library)_i) || sysconf(_SC_NPROCESSORS_ONLN) < 2)
        return;
    cpu_set_t set;
    char binding[64];
    int core = 0;
    ck_assert_int_eq(sched_getaffinity(0, sizeof set, &set), 0);
    while (!CPU_ISSET((size_t)core, &set))
        core++;
    snprintf(binding, sizeof binding, "taskset -c %d", core);
    launch_bound(binding, (enum mpi_library)_i, 2, "jobs");
    need_said("runs 2 threads and is bound to 1 of");
    need_said(_i == MPI_LIBRARY_OPENMPI ? "mpirun --bind-to none" : "mpirun -bind-to none");
}
END_TEST

START_TEST(ranks_of_one_host_have_one_table)
{
    if (!is_there((enum mpi_library)_i))
        return;
    need_good((enum mpi_library)_i, 3, "tables");
    need_said("rank 2 of 3: 0 rounds of rows");
}
END_TEST

/* Under each of the two plans all ranks have the same bits. */
START_TEST(encoded_means_are_the_same_for_all_and_short)
{
    if (!is_there((enum mpi_library)_i))
        return;
    need_good((enum mpi_library)_i, 3, "wire");
    const char *at = said;
    char hash[2][17] = {"", ""};
    int n = 0, plans = 0;
    for (; (at = strstr(at, " hash ")) != NULL; n++) {
        at += strlen(" hash ");
        int same = strncmp(hash[0], at, 16) == 0 || strncmp(hash[1], at, 16) == 0;
        if (!same && plans < 2)
            snprintf(hash[plans], sizeof *hash, "%s", at);
        plans += !same;
    }
    ck_assert_msg(n == 6 && plans == 2, "%d hashes, %d of them differ:\n%s", n, plans, said);
}
END_TEST

START_TEST(a_reload_brings_the_centre)
{
    if (is_there((enum mpi_library)_i))
        need_good((enum mpi_library)_i, 3, "reload");
}
END_TEST

START_TEST(who_differs_is_told)
{
    if (!is_there((enum mpi_library)_i))
        return;
    need_good((enum mpi_library)_i, 2, "plans");
    need_said("rank 1 (");
    need_said("plan shadow-ma,alpha=0.25");
    need_good((enum mpi_library)_i, 2, "models");
    need_said("\"segment w 11\", rank 0");
    need_said("\"segment w 10\"");
}
END_TEST

START_TEST(a_program_may_have_its_own_mpi)
{
    if (!is_there((enum mpi_library)_i))
        return;
    need_good((enum mpi_library)_i, 2, "multiple");
    need_said("MPI_THREAD_MULTIPLE, MPI initialised by the program");
    ck_assert_int_ne(launch((enum mpi_library)_i, 2, "funneled"), 0);
    need_said("MPI runs with MPI_THREAD_FUNNELED");
}
END_TEST

START_TEST(one_job_at_a_time_calls_mpi)
{
    if (is_there((enum mpi_library)_i))
        need_good((enum mpi_library)_i, 2, "two");
}
END_TEST

START_TEST(who_goes_alone_is_written_to_no_more)
{
    if (is_there(MPI_LIBRARY_MPICH))
        need_good(MPI_LIBRARY_MPICH, 2, "apart");
}
END_TEST

START_TEST(what_is_missing_is_named)
{
    struct fabric *f;
    struct fabric_options options = {.rank = -1};

    setenv("DESCANT_MPI_MODULE", "/nowhere", 1);
    ck_assert_int_eq(fabric_mpi.open(&f, &options), DESCANT_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(descant_last_error(), "libopenmpi-dev"));
}
END_TEST

static void find_program(void)
{
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    if (n <= 0)
        exit(1);
    snprintf(folder, sizeof folder, "%.*s/..", (int)(strrchr(program, '/') - program), program);
    setenv("DESCANT_MPI_MODULE", folder, 1);
    setenv("ASAN_OPTIONS", "detect_leaks=0", 1);        /* MPI's own */
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
}

int main(int argc, char **argv)
{
    for (size_t k = 0; argc > 1 && k < sizeof parts / sizeof *parts; k++)
        if (strcmp(argv[1], parts[k].name) == 0)
            return parts[k].run();
    find_program();
    Suite *suite = suite_create("mpi");
    TCase *all = tcase_create("mpirun");
    tcase_set_timeout(all, 200);
    tcase_add_loop_test(all, exchanges_are_exact, 0, LIBRARIES_RUN);
    tcase_add_loop_test(all, leavers_serve_to_the_end, 0, LIBRARIES_RUN);
    tcase_add_loop_test(all, who_leaves_early_stays_asleep, 0, LIBRARIES_RUN);
    tcase_add_loop_test(all, jobs_need_no_address, 0, LIBRARIES_RUN);
    tcase_add_loop_test(all, too_few_cores_are_named, 0, LIBRARIES_RUN);
    tcase_add_loop_test(all, ranks_of_one_host_have_one_table, 0, LIBRARIES_RUN);
    tcase_add_loop_test(all, encoded_means_are_the_same_for_all_and_short, 0, LIBRARIES_RUN);
    tcase_add_loop_test(all, a_reload_brings_the_centre, 0, LIBRARIES_RUN);
    tcase_add_loop_test(all, who_differs_is_told, 0, LIBRARIES_RUN);
    tcase_add_loop_test(all, a_program_may_have_its_own_mpi, 0, LIBRARIES_RUN);
    tcase_add_loop_test(all, one_job_at_a_time_calls_mpi, 0, LIBRARIES_RUN);
    tcase_add_test(all, who_goes_alone_is_written_to_no_more);
    tcase_add_test(all, what_is_missing_is_named);
    suite_add_tcase(suite, all);
    TCase *loopback = tcase_create("loopback");
    tcase_set_timeout(loopback, 120);
    tcase_add_loop_test(loopback, rounds_end_whatever_trainers_do, 0, 3);
    tcase_add_test(loopback, the_late_are_named_to_all);
    tcase_add_loop_test(loopback, a_call_taken_back_leaves_the_round_before_alone, 0, 5);
    tcase_add_loop_test(loopback, who_comes_after_a_call_was_taken_back_goes_on, 0, 3);
    tcase_add_loop_test(loopback, versions_are_told_by_name_and_value, 0, 2);
    suite_add_tcase(suite, loopback);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
