/* SPDX-License-Identifier: MIT */
/* What goes wrong in a long run, from a caller's side: trainers that come late, segments that are
 * taken back, values that are not finite, calls that do not agree, jobs that break. */
#include "harness/jobs.h"
#include "harness/suite.h"
#include "sync/job.h"

#include <pthread.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

enum { N = 3000 };

static float *declare(struct descant *job, bool attached)
{
    float *w = attached ? calloc(N, sizeof *w) : descant_alloc(job, "w", N);
    ck_assert_ptr_nonnull(w);
    if (attached)
        ck_assert_int_eq(descant_attach(job, "w", w, N), DESCANT_OK);
    return w;
}

static void steps(struct descant *job, int n)
{
    for (int t = 0; t < n; t++) {
        ck_assert_msg(descant_step(job) == DESCANT_OK, "%s", descant_last_error());
        clock_sleep_until(clock_now_ns() + 1000000);
    }
}

static float centre(struct descant *job, size_t k)
{
    float values[N + 64];
    size_t bytes = sizeof values;
    ck_assert_int_eq(descant_outer_save(job, values, &bytes), DESCANT_OK);
    return values[(bytes - N * sizeof(float)) / sizeof(float) + k];
}

static void fill(float *w, float value)
{
    for (int k = 0; k < N; k++)
        w[k] = value;
}

/* ------------------------------------------------------------------ coming and going */

/* Alone, the first has gone from 1 to 7; who comes then starts there. */
START_TEST(a_joiner_gets_the_centre_of_now)
{
    static const char *const plans[] = {"shadow-easgd", "easgd,every=4", "easgd,every=4,delay=2"};
    bool attached = _i % 2;
    new_address("");
    struct descant *one = open_here(plans[_i / 2], 0, 1);
    float *w = declare(one, attached);
    fill(w, 1);
    ck_assert_int_eq(descant_start(one), DESCANT_OK);
    while (centre(one, N - 1) < 6.5f) {
        fill(w, 7);
        steps(one, 1);
    }
    struct descant *two = open_here(plans[_i / 2], 1, 0);
    float *v = declare(two, attached);
    ck_assert_int_eq(descant_start(two), DESCANT_OK);
    ck_assert_msg(v[0] >= 6.4f && v[N - 1] >= 6.4f, "%g, %g", (double)v[0], (double)v[N - 1]);
    descant_close(one);
    descant_close(two);
    if (attached) {
        free(w);
        free(v);
    }
}
END_TEST

/* What one has detached stays what it was for the others: the centre is not dragged anywhere. */
START_TEST(a_detached_segment_drags_nothing)
{
    static const char *const plans[] = {"shadow-easgd", "easgd,every=1"};
    struct descant *job[2];
    float *w[2];
    new_address("");
    for (int i = 0; i < 2; i++) {
        job[i] = open_here(plans[_i % 2], i, 0);
        w[i] = declare(job[i], _i / 2);
        fill(w[i], 1);
        ck_assert_int_eq(descant_start(job[i]), DESCANT_OK);
    }
    ck_assert_int_eq(descant_detach(job[0], "w"), DESCANT_OK);
    for (int t = 0; t < 60; t++)
        for (int i = 0; i < 2; i++)
            steps(job[i], 1);
    ck_assert_float_eq(w[1][7], 1);
    ck_assert_float_eq(centre(job[1], 7), 1);
    for (int i = 0; i < 2; i++) {
        descant_close(job[i]);
        if (_i / 2)
            free(w[i]);
    }
}
END_TEST

static void *finish_local(void *job)
{
    ck_assert_int_eq(descant_finish(job, DESCANT_FINAL_LOCAL), DESCANT_OK);
    return NULL;
}

/* The first one's last values are the model, also when it has taken its memory back. */
START_TEST(a_detached_segment_is_the_final_model)
{
    static const char *const plans[] = {"easgd,every=4", "ma,every=1", "dasgd-delta,every=1",
                                        "shadow-easgd,merge=delta", "none"};
    struct descant *job[2];
    float *w[2];
    pthread_t other;
    new_address("");
    for (int i = 0; i < 2; i++) {
        job[i] = open_here(plans[_i], i, 2);
        w[i] = declare(job[i], true);
    }
    start_both(job);
    fill(w[0], 5);
    ck_assert_int_eq(descant_detach(job[0], "w"), DESCANT_OK);
    fill(w[0], -1);
    pthread_create(&other, NULL, finish_local, job[0]);
    finish_local(job[1]);
    pthread_join(other, NULL);
    ck_assert_float_eq(w[1][7], 5);
    ck_assert_float_eq(w[1][N - 1], 5);
    for (int i = 0; i < 2; i++) {
        descant_close(job[i]);
        free(w[i]);
    }
}
END_TEST

static _Atomic bool over;

static void *keep_stepping(void *context)
{
    struct descant *job = context;
    float *w = job->replica.segments[0].memory;
    while (!atomic_load(&over)) {
        fill(w, 0);
        steps(job, 1);
    }
    return NULL;
}

/* Each has made `every` steps by the joiner's first own round: both count the same. */
START_TEST(a_joiner_weighs_what_it_has_done)
{
    const char *plan = _i ? "ma,every=4,weight=steps" : "dasgd,every=4,delay=1,xi=0,weight=steps";
    pthread_t other;
    new_address("");
    struct descant *one = open_here(plan, 0, 1), *two = open_here(plan, 1, 0);
    atomic_store(&over, false);
    declare(one, false);
    float *w = declare(two, false);
    ck_assert_int_eq(descant_start(one), DESCANT_OK);
    pthread_create(&other, NULL, keep_stepping, one);
    ck_assert_int_eq(descant_start(two), DESCANT_OK);
    for (int t = 0; t < (_i ? 4 : 5); t++) {
        fill(w, 1);
        steps(two, 1);
    }
    ck_assert_float_eq(w[7], 0.5f);
    atomic_store(&over, true);
    descant_close(two);
    pthread_join(other, NULL);
    descant_close(one);
}
END_TEST

/* Nobody polls, and yet it is known who is there. */
START_TEST(members_are_those_of_now)
{
    static const char *const plans[] = {"none", "ma,every=1000"};
    struct descant_members m;
    new_address("");
    pid_t child = fork();
    if (child == 0) {
        struct descant *two = open_here(plans[_i], 1, 2);
        declare(two, false);
        if (descant_start(two) == DESCANT_OK)
            pause();
        _exit(1);
    }
    struct descant *one = open_here(plans[_i], 0, 2);
    declare(one, false);
    ck_assert_int_eq(descant_start(one), DESCANT_OK);
    ck_assert_int_eq(descant_members(one, &m), DESCANT_OK);
    ck_assert_int_eq(m.size, 2);
    uint32_t before = m.epoch;
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    while (m.size == 2 || m.epoch == before) {      /* the one changes before the other */
        ck_assert_int_eq(descant_members(one, &m), DESCANT_OK);
        clock_sleep_until(clock_now_ns() + 1000000);
    }
    ck_assert_int_eq(m.size, 1);
    descant_close(one);
}
END_TEST

/* ------------------------------------------------------------------ values */

/* One NaN in a replica of 8: the rest keeps its values, and with heal=1 all is 8 again. */
START_TEST(a_bad_replica_is_kept_or_healed)
{
    static const char *const plans[] = {"easgd,every=4,delay=2", "easgd,every=4,delay=2,heal=1",
                                        "easgd,every=4", "easgd,every=4,heal=1",
                                        "easgd,every=4,merge=delta,heal=1"};
    enum { MANY = 40000 };      /* several chunks */
    bool heals = strstr(plans[_i % 5], "heal") != NULL;
    new_address("");
    if (_i / 5)
        strcpy(job_address, "self");
    struct descant *job = open_here(plans[_i % 5], 0, 1);
    float *w = descant_alloc(job, "w", MANY);
    for (int k = 0; k < MANY; k++)
        w[k] = 8;
    ck_assert_int_eq(descant_start(job), DESCANT_OK);
    w[20000] = NAN;
    steps(job, 6);
    for (int k = 0; k < MANY; k++)
        ck_assert_msg(k == 20000 && !heals ? isnan(w[k]) : w[k] > 7.9f && w[k] < 8.1f,
                      "%s: %d is %g", plans[_i % 5], k, (double)w[k]);
    struct descant_stats s;
    ck_assert_int_eq(descant_stats(job, &s), DESCANT_OK);
    ck_assert_uint_eq(s.bad, 1);
    ck_assert_msg(s.distance >= 0 && s.restarts == 0, "%g, %g", s.distance, (double)s.restarts);
    descant_close(job);
}
END_TEST

/* ------------------------------------------------------------------ calls that do not agree */

struct call {
    struct descant *job;
    int n, which;
    descant_status status;
    char line[200];
};

static void *call_mean(void *context)
{
    struct call *c = context;
    float g[100] = {0};
    c->status = descant_mean(c->job, g, (size_t)c->n);
    snprintf(c->line, sizeof c->line, "%s", descant_last_error());
    return NULL;
}

static void *call_finish(void *context)
{
    struct call *c = context;
    c->status = descant_finish(c->job, (enum descant_final)c->which);
    snprintf(c->line, sizeof c->line, "%s", descant_last_error());
    return NULL;
}

static void disagree(const char *plan, void *(*fn)(void *), struct call *c, const char *const *says)
{
    pthread_t other;
    new_address("");
    for (int i = 0; i < 2; i++) {
        c[i].job = open_here(plan, i, 2);
        declare(c[i].job, false);
    }
    start_both((struct descant *[2]){c[0].job, c[1].job});
    pthread_create(&other, NULL, fn, &c[1]);
    fn(&c[0]);
    pthread_join(other, NULL);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(c[i].status, DESCANT_MISMATCH);
        for (int k = 0; k < 2; k++)
            ck_assert_msg(strstr(c[i].line, says[k]) != NULL, "'%s'", c[i].line);
        ck_assert_ptr_null(strstr(c[i].line, "tag"));
        ck_assert_int_eq(descant_step(c[i].job), DESCANT_MISMATCH);
        descant_close(c[i].job);
    }
}

START_TEST(means_of_different_lengths)
{
    static const char *const says[] = {"rounds differ: rank ", "all must bring as many"};
    struct call c[2] = {{.n = 6}, {.n = 10}};
    disagree("allreduce", call_mean, c, says);
}
END_TEST

START_TEST(different_ends)
{
    static const int ends[][2] = {{DESCANT_FINAL_LOCAL, DESCANT_FINAL_MEAN},
                                  {DESCANT_FINAL_CENTRAL, DESCANT_FINAL_LOCAL},
                                  {DESCANT_FINAL_MEAN, DESCANT_FINAL_CENTRAL}};
    static const char *const words[] = {"for the local version", "for the mean",
                                        "for the central version"};
    const char *const says[] = {words[ends[_i % 3][0]], words[ends[_i % 3][1]]};
    struct call c[2] = {{.which = ends[_i % 3][0]}, {.which = ends[_i % 3][1]}};
    disagree(_i < 3 ? "shadow-easgd" : "bmuf", call_finish, c, says);
}
END_TEST

/* ------------------------------------------------------------------ broken jobs */

static void *last_words(void *context)
{
    struct call *c = context;
    c->status = descant_step(c->job);
    snprintf(c->line, sizeof c->line, "%s", descant_last_error());
    return NULL;
}

START_TEST(every_thread_is_told_what_broke_the_job)
{
    struct descant_options o = descant_options_default();
    struct call c = {.job = NULL};
    pthread_t other;
    new_address("");
    o.job = job_address;
    o.plan = "shadow-ma";
    o.size = 2;
    o.start_s = 0.05;
    ck_assert_int_eq(descant_open(&c.job, &o), DESCANT_OK);
    declare(c.job, false);
    ck_assert_int_eq(descant_start(c.job), DESCANT_TIMEOUT);
    pthread_create(&other, NULL, last_words, &c);
    pthread_join(other, NULL);
    ck_assert_int_eq(c.status, DESCANT_TIMEOUT);
    ck_assert_str_eq(c.line, descant_last_error());
    ck_assert_msg(strstr(c.line, "of 2") != NULL, "'%s'", c.line);
    descant_close(c.job);
}
END_TEST

/* The shadow's round fails while the workers only count: their steps say so. */
START_TEST(steps_end_when_the_shadow_has_failed)
{
    struct call c = {.job = NULL};
    new_address("");
    c.job = open_here("shadow-ma", 0, 1);
    declare(c.job, false);
    ck_assert_int_eq(descant_start(c.job), DESCANT_OK);
    pthread_mutex_lock(&c.job->machine);
    c.job->fabric->status = DESCANT_MEMORY;
    pthread_mutex_unlock(&c.job->machine);
    do
        last_words(&c);
    while (c.status == DESCANT_OK);
    ck_assert_int_eq(c.status, DESCANT_MEMORY);
    ck_assert_int_eq(descant_reload(c.job), DESCANT_MEMORY);
    ck_assert_int_eq(descant_finish(c.job, DESCANT_FINAL_LOCAL), DESCANT_MEMORY);
    descant_close(c.job);
}
END_TEST

/* ------------------------------------------------------------------ opening */

static void *share_many(void *job)
{
    for (int k = 0; k < 100; k++) {
        char name[16];
        void *block = NULL;
        snprintf(name, sizeof name, "b%d", k % 20);
        ck_assert_msg(descant_share(job, name, 64, &block) == DESCANT_OK, "%s",
                      descant_last_error());
        ck_assert_ptr_nonnull(block);
    }
    return NULL;
}

START_TEST(threads_share_at_once)
{
    pthread_t other[3];
    new_address("");
    if (_i)
        strcpy(job_address, "self");
    struct descant *job = open_here("none", 0, 0);
    for (int i = 0; i < 3; i++)
        pthread_create(&other[i], NULL, share_many, job);
    share_many(job);
    for (int i = 0; i < 3; i++)
        pthread_join(other[i], NULL);
    descant_close(job);
}
END_TEST

/* The shadow maps its peers' memory in the first round. ThreadSanitizer looks on. */
START_TEST(blocks_are_shared_while_rounds_run)
{
    struct descant_stats stats = {0};
    struct descant *job[2];
    pthread_t other;
    new_address("");
    for (int i = 0; i < 2; i++) {
        job[i] = open_here("shadow-ma", i, 2);
        ck_assert_ptr_nonnull(descant_alloc(job[i], "w", 1000));
    }
    start_both(job);
    pthread_create(&other, NULL, share_many, job[0]);
    while (stats.rounds < 3) {
        for (int i = 0; i < 2; i++)
            ck_assert_int_eq(descant_step(job[i]), DESCANT_OK);
        ck_assert_int_eq(descant_stats(job[0], &stats), DESCANT_OK);
    }
    pthread_join(other, NULL);
    descant_close(job[0]);
    descant_close(job[1]);
}
END_TEST

static void *open_second(void *context)
{
    struct descant *job = open_here("ma", 1, 2);
    (void)context;
    declare(job, false);
    start_job(job);
    descant_close(job);
    return NULL;
}

START_TEST(one_can_wait_for_ever)
{
    struct descant_options o = descant_options_default();
    struct descant *job = NULL;
    pthread_t other;
    new_address("");
    o.job = job_address;
    o.plan = "ma";
    o.rank = 0;
    o.size = 2;
    o.start_s = _i ? 1e11 : (double)INFINITY;
    ck_assert_int_eq(descant_open(&job, &o), DESCANT_OK);
    declare(job, false);
    pthread_create(&other, NULL, open_second, NULL);
    ck_assert_msg(descant_start(job) == DESCANT_OK, "%s", descant_last_error());
    pthread_join(other, NULL);
    descant_close(job);
}
END_TEST

/* Two runs of one user at once must not meet: without a sign they are not begun. */
START_TEST(a_run_that_looks_like_any_other_is_refused)
{
    static const char *const signs[] = {"MASTER_PORT", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID",
                                        "OMPI_MCA_ess_base_jobid", "PMI_JOBID",
                                        "SLURM_STEP_ID", "PMIX_NAMESPACE"};
    struct descant_options o = descant_options_default();
    struct descant *job = NULL;
    for (int i = 0; i < 7; i++)
        unsetenv(signs[i]);
    setenv("MASTER_ADDR", "localhost", 1);
    setenv("RANK", "0", 1);
    setenv("WORLD_SIZE", "2", 1);
    ck_assert_int_eq(descant_open(&job, &o), DESCANT_BAD_ADDRESS);
    ck_assert_ptr_nonnull(strstr(descant_last_error(), "MASTER_PORT"));
    char port[32];
    snprintf(port, sizeof port, "trouble-%d", (int)getpid());
    setenv(signs[_i], port, 1);
    ck_assert_int_eq(descant_open(&job, &o), DESCANT_OK);
    ck_assert_int_eq(descant_close(job), DESCANT_OK);
}
END_TEST

static void keep_lines(void *lines, enum descant_level level, const char *line)
{
    if (level >= DESCANT_WARNING && strlen(lines) + strlen(line) < 2048)
        strcat(lines, line);
}

/* Ranks of MPI without a module learn which one is missing, and where it was looked for. */
START_TEST(ranks_without_a_module_are_told)
{
    struct descant_options o = descant_options_default();
    struct descant *job = NULL;
    char lines[2048] = "";
    unsetenv("RANK");
    unsetenv("WORLD_SIZE");
    unsetenv("MASTER_PORT");
    setenv("DESCANT_MPI_MODULE", "/nowhere", 1);
    setenv("PMI_RANK", "0", 1);
    setenv("PMI_SIZE", "2", 1);
    o.log = keep_lines;
    o.log_user = lines;
    ck_assert_int_eq(descant_open(&job, &o), DESCANT_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(descant_last_error(), "descant-mpi-mpich.so, for MPICH, in "
                                                       "/nowhere;"));
    char name[32];
    snprintf(name, sizeof name, "trouble-%d", (int)getpid());
    setenv("PMI_JOBID", name, 1);
    *lines = 0;
    ck_assert_int_eq(descant_open(&job, &o), DESCANT_OK);
    ck_assert_ptr_nonnull(strstr(lines, "can meet on one host only: there is no descant-mpi-"));
    ck_assert_int_eq(descant_close(job), DESCANT_OK);
}
END_TEST

/* Told half of who it is, a trainer does not train alone. */
START_TEST(half_a_launcher_is_refused)
{
    static const struct {
        const char *rank, *size, *says;
        descant_status status;
    } halves[] = {
        {NULL, "2", "WORLD_SIZE is set, but not RANK", DESCANT_BAD_RANK},
        {"0", NULL, "RANK is set, but not WORLD_SIZE", DESCANT_BAD_SIZE},
        {NULL, "1", NULL, DESCANT_OK},
        {NULL, NULL, NULL, DESCANT_OK},
        {"one", "2", "RANK one: allowed is a whole number from 0", DESCANT_BAD_RANK},
        {"-1", "2", "RANK -1: allowed is a whole number from 0", DESCANT_BAD_RANK},
        {"0", "0", "WORLD_SIZE 0: allowed is a whole number from 1", DESCANT_BAD_SIZE},
        {"0", "2147483648", "WORLD_SIZE 2147483648: allowed", DESCANT_BAD_SIZE},
        {"0", "", "WORLD_SIZE needs a value: a whole number", DESCANT_BAD_SIZE},
    };
    struct descant_options o = descant_options_default();
    struct descant *job = NULL;
    unsetenv("RANK");
    unsetenv("WORLD_SIZE");
    if (halves[_i].rank)
        setenv("RANK", halves[_i].rank, 1);
    if (halves[_i].size)
        setenv("WORLD_SIZE", halves[_i].size, 1);
    ck_assert_int_eq(descant_open(&job, &o), halves[_i].status);
    if (halves[_i].says)
        ck_assert_msg(strstr(descant_last_error(), halves[_i].says), "%s", descant_last_error());
    descant_close(job);
    job = NULL;
    o.rank = 0;                 /* what the caller says counts */
    o.size = 1;
    ck_assert_int_eq(descant_open(&job, &o), DESCANT_OK);
    ck_assert_int_eq(descant_close(job), DESCANT_OK);
}
END_TEST

/* ------------------------------------------------------------------ what it costs */

START_TEST(what_is_not_moved_is_saved_up_for_a_second)
{
    struct rate_limit pace = {0};
    uint64_t s = 1000000000, now = 5 * s, bytes = 0, rounds = 0;
    pace.paid_ns = now;
    ck_assert(pace_allows(&pace, 100, 0, now));
    ck_assert(!pace_allows(&pace, 100, bytes = 200, now));
    ck_assert(!pace_allows(&pace, 100, bytes, now + 2 * s - 1));
    ck_assert(pace_allows(&pace, 100, bytes, now + 2 * s));
    for (now += 1000 * s; pace_allows(&pace, 100, bytes, now); bytes += 10)
        rounds++;
    ck_assert_uint_eq(rounds, 11);          /* one second's, and the one that is owed */
    ck_assert(pace_allows(&pace, 0, bytes += 1000000, now));
}
END_TEST

static long long reads_so_far(void)
{
    long long n = -1;
    char line[100];
    FILE *f = fopen("/proc/self/io", "re");
    while (f && n < 0 && fgets(line, sizeof line, f))
        sscanf(line, "syscr: %lld", &n);
    if (f)
        fclose(f);
    return n;
}

/* Nothing is opened and read in turn after turn. */
START_TEST(an_idle_shadow_reads_nothing)
{
    struct descant_options o = descant_options_default();
    struct descant *job = NULL;
    o.job = "self";
    o.plan = "shadow-ma";
    ck_assert_int_eq(descant_open(&job, &o), DESCANT_OK);
    declare(job, false);
    ck_assert_int_eq(descant_start(job), DESCANT_OK);
    long long before = reads_so_far();
    steps(job, 100);
    ck_assert_int_lt(reads_so_far() - before, 20);
    descant_close(job);
}
END_TEST

static size_t arena_bytes(void)
{
    for (int fd = 0; fd < 64; fd++) {
        char path[40], name[80] = "";
        struct stat s;
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        if (readlink(path, name, sizeof name - 1) > 0 && strstr(name, "memfd:descant") &&
            fstat(fd, &s) == 0)
            return (size_t)s.st_blocks * 512;
    }
    return 0;
}

/* The table of docs/plans.md, in floats of a replica: what one trainer takes in shared memory, and what the
 * job does. Board, manifest, locks and tables are small beside it. */
static const struct {
    const char *plan;
    int alloc, attach, machine;
} table[] = {
    {"none", 1, 1, 0},
    {"shadow-easgd", 1, 1, 1}, {"easgd", 1, 1, 1}, {"easgd,every=4,delay=2", 2, 1, 1},
    {"shadow-ma", 1, 1, 1}, {"ma", 1, 1, 1},
    {"shadow-bmuf", 3, 3, 1}, {"bmuf", 3, 3, 1}, {"diloco", 3, 3, 1},
    {"dasgd", 2, 1, 1}, {"dasgd-delta", 2, 1, 1}, {"diloco-delta", 4, 3, 1},
    {"allreduce", 2, 1, 1},
};

START_TEST(memory_is_as_the_manual_says)
{
    enum { BIG = 1 << 20, SMALL = 1 << 18 };
    const size_t unit = BIG * sizeof(float);
    bool attached = _i % 2;
    size_t expected = unit * (size_t)(table[_i / 2].machine +
                                      (attached ? table[_i / 2].attach : table[_i / 2].alloc));
    new_address("");
    struct descant *job = open_here(table[_i / 2].plan, 0, 1);
    float *w = attached ? calloc(BIG, sizeof *w) : descant_alloc(job, "w", BIG);
    ck_assert_ptr_nonnull(w);
    if (attached)
        ck_assert_int_eq(descant_attach(job, "w", w, BIG), DESCANT_OK);
    ck_assert_int_eq(descant_start(job), DESCANT_OK);
    size_t bytes = arena_bytes();
    ck_assert_msg(bytes >= expected && bytes < expected + SMALL, "%s%s: %zu bytes, not %zu",
                  table[_i / 2].plan, attached ? ", attached" : "", bytes, expected);
    descant_close(job);
    if (attached)
        free(w);
}
END_TEST

START_TEST(small_gradients_take_little)
{
    new_address("");
    struct descant *job = open_here("allreduce", 0, 1);
    ck_assert_ptr_nonnull(descant_alloc(job, "w", 1000));
    ck_assert_int_eq(descant_start(job), DESCANT_OK);
    ck_assert_uint_lt(arena_bytes(), 1 << 20);
    descant_close(job);
}
END_TEST

int main(void)
{
    TCase *all = new_case("trouble", 60);
    tcase_add_loop_test(all, a_joiner_gets_the_centre_of_now, 0, 6);
    tcase_add_loop_test(all, a_detached_segment_drags_nothing, 0, 4);
    tcase_add_loop_test(all, a_detached_segment_is_the_final_model, 0, 5);
    tcase_add_loop_test(all, a_joiner_weighs_what_it_has_done, 0, 2);
    tcase_add_loop_test(all, members_are_those_of_now, 0, 2);
    tcase_add_loop_test(all, a_bad_replica_is_kept_or_healed, 0, 10);
    tcase_add_test(all, means_of_different_lengths);
    tcase_add_loop_test(all, different_ends, 0, 6);
    tcase_add_test(all, every_thread_is_told_what_broke_the_job);
    tcase_add_test(all, steps_end_when_the_shadow_has_failed);
    tcase_add_loop_test(all, threads_share_at_once, 0, 2);
    tcase_add_test(all, blocks_are_shared_while_rounds_run);
    tcase_add_loop_test(all, one_can_wait_for_ever, 0, 2);
    tcase_add_loop_test(all, a_run_that_looks_like_any_other_is_refused, 0, 7);
    tcase_add_test(all, ranks_without_a_module_are_told);
    tcase_add_loop_test(all, half_a_launcher_is_refused, 0, 9);
    tcase_add_test(all, what_is_not_moved_is_saved_up_for_a_second);
    tcase_add_test(all, an_idle_shadow_reads_nothing);
    tcase_add_loop_test(all, memory_is_as_the_manual_says, 0, 2 * N(table));
    tcase_add_test(all, small_gradients_take_little);
    return run_cases(all, NULL);
}
