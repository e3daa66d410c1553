/* SPDX-License-Identifier: MIT */
/* Jobs over MPI through descant.h, in real processes: one after the other, with tables and encoded
 * means, ranks that differ, and programs that have MPI themselves. */
#include "fabric/fabric.h"
#include "harness/folder.h"
#include "harness/mpi.h"
#include "harness/values.h"

#include <dlfcn.h>
#include <sched.h>

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

enum { JOB_RANKS = 2 };

/* Through descant.h, one job after the other, without an address. Under a shadow plan a rank may
 * have made all its steps, and left, before the other one has made its first. */
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
        NEED(descant_members(job, &members) == DESCANT_OK && members.rank < JOB_RANKS);
        atomic_fetch_add((_Atomic int *)block, 1);
        float x[3] = {(float)members.rank, 1, -2};
        if (k % n == 0) {
            NEED(descant_mean(job, x, 3) == DESCANT_OK);
            NEED(x[0] == (float)(JOB_RANKS - 1) / 2 && x[1] == 1 && x[2] == -2);
        }
        for (int step = 0; step < 40; step++) {
            NEED(descant_step(job) == DESCANT_OK);
            clock_sleep_until(clock_now_ns() + 100000);
        }
        NEED(descant_finish(job, DESCANT_FINAL_MEAN) == DESCANT_OK);
        NEED(atomic_load((_Atomic int *)block) == JOB_RANKS);
        if (k % 2) {
            NEED(descant_close(job) == DESCANT_OK);
            continue;
        }
        float *kept = last_segment, value = kept[4999] = (float)k;
        NEED(descant_leave(job) == DESCANT_OK);
        NEED(kept[4999]++ == value);
        NEED(descant_free(kept) == DESCANT_OK && descant_free(kept) == DESCANT_INVALID);
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

/* The last rank leaves early: it stays, asleep, until the others have left, which they do so long
 * after it has said that it leaves. */
static int part_early(void)
{
    const uint64_t stay_ns = UINT64_C(2000000000);
    struct descant_members who;
    void *block;
    struct descant *job = open_job("mpi", "shadow-ma", "w", 1000);

    NEED(descant_share(job, "leaves", sizeof(uint64_t), &block) == DESCANT_OK);
    NEED(descant_start(job) == DESCANT_OK);
    NEED(descant_members(job, &who) == DESCANT_OK);
    _Atomic uint64_t *leaves = block;
    uint64_t cpu = clock_thread_cpu_ns();
    if (who.rank == 2)
        atomic_store(leaves, clock_now_ns());
    while (atomic_load(leaves) == 0)
        clock_sleep_until(clock_now_ns() + 1000000);
    uint64_t until = atomic_load(leaves) + stay_ns;
    if (who.rank < 2) {
        clock_sleep_until(until);
        NEED(descant_finish(job, DESCANT_FINAL_MEAN) == DESCANT_OK);
    }
    NEED(descant_close(job) == DESCANT_OK);
    NEED(clock_now_ns() >= until);
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

/* A file by which a rank tells the others how far it is. */
static void make_mark(void)
{
    NEED(fclose(fopen(getenv("MARK"), "w")) == 0);
}

static void await_mark(void)
{
    uint64_t began = clock_now_ns();
    while (access(getenv("MARK"), F_OK) != 0) {
        NEED(clock_now_ns() - began < 40 * UINT64_C(1000000000));
        clock_sleep_until(clock_now_ns() + 10000000);
    }
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
        await_mark();
    NEED(descant_close(job) == DESCANT_OK);
    for (int k = 0; k < BLOCKS; k++) {
        blocks[k] = malloc(block_bytes(k));
        NEED(blocks[k]);
        memset(blocks[k], 0xaa, block_bytes(k));
    }
    if (is_first())
        make_mark();
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

/* The first rank waits in vain for those that have not even opened the job, asleep; they come when
 * it has given up, and it tries again. */
static int part_late(void)
{
    struct descant_options options = descant_options_default();
    struct descant *job;
    stop_mpi *stop = start_mpi(3);
    uint64_t began = clock_now_ns(), cpu = clock_thread_cpu_ns();

    options.job = "mpi:messages";
    options.start_s = 0.5;
    if (is_first()) {
        NEED(descant_open(&job, &options) == DESCANT_TIMEOUT);
        NEED(strstr(descant_last_error(), "some of 2 ranks did not come in 0.5 s"));
        NEED(clock_now_ns() - began >= UINT64_C(500000000));
        NEED(clock_thread_cpu_ns() - cpu < UINT64_C(250000000));
        make_mark();
    }
    await_mark();
    job = open_job("mpi:messages", "shadow-ma", "w", 1000);
    NEED(descant_start(job) == DESCANT_OK);
    NEED(descant_finish(job, DESCANT_FINAL_MEAN) == DESCANT_OK);
    NEED(descant_close(job) == DESCANT_OK);
    return stop();
}

static _Atomic int happened[DESCANT_EVENT_FINISHED + 1], to_whom;

static int on_event(void *user, const struct descant_event *event)
{
    (void)user;
    to_whom = event->rank;
    happened[event->kind]++;
    return 0;
}

static bool happens(enum descant_event_kind kind, struct descant *job)
{
    uint64_t until = clock_now_ns() + UINT64_C(20000000000);
    while (!happened[kind] && clock_now_ns() < until)
        NEED(descant_step(job) == DESCANT_OK);
    return happened[kind] && to_whom == 1;
}

/* Rank 1 turns NaN, and then finishes before rank 0, or leaves without that, or was told to
 * and parts. */
static int part_events(void)
{
    static const char *const addresses[] = {"mpi", "mpi:messages"};
    static const char *const plans[] = {"shadow-ma", "shadow-easgd"};

    setenv("DESCANT_LOG", "warning", 1);
    for (int k = 0; k < 12; k++) {
        struct descant_options options = descant_options_default();
        struct descant_members me;
        struct descant *job;
        bool leaves = k >= 4 && k < 8, parts = k >= 8;
        options.job = addresses[k / 2 % 2];
        options.plan = plans[k % 2];
        options.on_event = on_event;
        memset(happened, 0, sizeof happened);
        NEED(descant_open(&job, &options) == DESCANT_OK);
        float *w = descant_alloc(job, "w", 1000);
        NEED(w && descant_start(job) == DESCANT_OK);
        NEED(descant_members(job, &me) == DESCANT_OK);
        w[7] = me.rank == 1 ? NAN : 1;
        if (me.rank == 1 || k % 2 == 0)     /* only its own rank sees what the centre is spared */
            NEED(happens(DESCANT_EVENT_BAD, job));
        NEED(me.rank == 1 ||
             happens(leaves  ? DESCANT_EVENT_UNFINISHED
                     : parts ? DESCANT_EVENT_LEFT
                             : DESCANT_EVENT_FINISHED, job));
        NEED(!happened[DESCANT_EVENT_LOST] && !happened[DESCANT_EVENT_BROKEN]);
        NEED(!parts || me.rank == 1 || happened[DESCANT_EVENT_TOLD] == 1);
        if (me.rank == 1 && parts)
            NEED(descant_tell(job) == DESCANT_OK && descant_part(job, 20) == DESCANT_OK);
        else
            NEED((me.rank == 1 && leaves) || descant_finish(job, DESCANT_FINAL_LOCAL) == DESCANT_OK);
        NEED(descant_close(job) == DESCANT_OK);
        NEED(happened[DESCANT_EVENT_UNFINISHED] == leaves);
    }
    return 0;
}

static const struct mpi_part parts[] = {
    {"tables", part_tables}, {"jobs", part_jobs},         {"plans", part_plans},
    {"models", part_models}, {"multiple", part_multiple}, {"funneled", part_funneled},
    {"reload", part_reload}, {"wire", part_wire},         {"two", part_two},
    {"apart", part_apart},   {"early", part_early},       {"late", part_late},
    {"events", part_events},
};

START_TEST(who_leaves_early_stays_asleep)
{
    if (is_there((enum mpi_library)_i))
        need_good((enum mpi_library)_i, 3, "early");
}
END_TEST

START_TEST(events_are_told)
{
    if (!is_there((enum mpi_library)_i))
        return;
    need_good((enum mpi_library)_i, 2, "events");
    says("descant: rank 0: trainer 1 has NaN or Inf");
}
END_TEST

START_TEST(jobs_need_no_address)
{
    if (!is_there((enum mpi_library)_i))
        return;
    need_good((enum mpi_library)_i, JOB_RANKS, "jobs");
    says("job mpi (from ");
    says("2 ranks on 1 host");
    says(_i == MPI_LIBRARY_OPENMPI ? "mpi: Open MPI" : "mpi: MPICH");
}
END_TEST

START_TEST(too_few_cores_are_named)
{
    if (!is_there((enum mpi_library)_i) || sysconf(_SC_NPROCESSORS_ONLN) < 2)
        return;
    cpu_set_t set;
    char binding[64], what[PATH_MAX + 16];
    int core = 0;
    ck_assert_int_eq(sched_getaffinity(0, sizeof set, &set), 0);
    while (!CPU_ISSET((size_t)core, &set))
        core++;
    snprintf(binding, sizeof binding, "taskset -c %d", core);
    snprintf(what, sizeof what, "-n %d %s jobs", JOB_RANKS, self);
    mpirun((enum mpi_library)_i, binding, what);
    says("runs 2 threads and is bound to 1 of");
    says(_i == MPI_LIBRARY_OPENMPI ? "mpirun --bind-to none" : "mpirun -bind-to none");
}
END_TEST

START_TEST(ranks_of_one_host_have_one_table)
{
    if (!is_there((enum mpi_library)_i))
        return;
    need_good((enum mpi_library)_i, 3, "tables");
    says("rank 2 of 3: 0 rounds of rows");
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
    ck_assert_msg(n == 6 && plans == 2, "%d hashes, %d of them differ:\n%.3000s", n, plans,
                  said);
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
    says("rank 1 (");
    says("plan shadow-ma,alpha=0.25");
    need_good((enum mpi_library)_i, 2, "models");
    says("\"segment w 11\", rank 0");
    says("\"segment w 10\"");
}
END_TEST

START_TEST(a_program_may_have_its_own_mpi)
{
    if (!is_there((enum mpi_library)_i))
        return;
    need_good((enum mpi_library)_i, 2, "multiple");
    says("MPI_THREAD_MULTIPLE, MPI initialised by the program");
    ck_assert_int_ne(launch((enum mpi_library)_i, 2, "funneled"), 0);
    says("MPI runs with MPI_THREAD_FUNNELED");
}
END_TEST

START_TEST(who_does_not_come_is_waited_for_so_long)
{
    setenv("MARK", in_folder("mark"), 1);
    if (is_there((enum mpi_library)_i))
        need_good((enum mpi_library)_i, 2, "late");
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
    setenv("MARK", in_folder("mark"), 1);
    if (is_there(MPI_LIBRARY_MPICH))
        need_good(MPI_LIBRARY_MPICH, 2, "apart");
}
END_TEST

int main(int argc, char **argv)
{
    TCase *all = tcase_create("mpirun");
    tcase_add_loop_test(all, who_leaves_early_stays_asleep, 0, LIBRARIES_RUN);
    tcase_add_loop_test(all, events_are_told, 0, LIBRARIES_RUN);
    tcase_add_loop_test(all, jobs_need_no_address, 0, LIBRARIES_RUN);
    tcase_add_loop_test(all, too_few_cores_are_named, 0, LIBRARIES_RUN);
    tcase_add_loop_test(all, ranks_of_one_host_have_one_table, 0, LIBRARIES_RUN);
    tcase_add_loop_test(all, encoded_means_are_the_same_for_all_and_short, 0,
                        LIBRARIES_RUN);
    tcase_add_loop_test(all, a_reload_brings_the_centre, 0, LIBRARIES_RUN);
    tcase_add_loop_test(all, who_differs_is_told, 0, LIBRARIES_RUN);
    tcase_add_loop_test(all, a_program_may_have_its_own_mpi, 0, LIBRARIES_RUN);
    tcase_add_loop_test(all, who_does_not_come_is_waited_for_so_long, 0, LIBRARIES_RUN);
    tcase_add_loop_test(all, one_job_at_a_time_calls_mpi, 0, LIBRARIES_RUN);
    tcase_add_test(all, who_goes_alone_is_written_to_no_more);
    return run_mpi(argc, argv, parts, sizeof parts / sizeof *parts, all);
}
