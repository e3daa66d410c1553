/* SPDX-License-Identifier: MIT */
/* Tables across machines through descant.h, with real shadows and workers: jobs "self" in threads
 * of one process, each a machine of its own. Their fabrics are wrapped here so that they have
 * rounds of rows, by way of memory; all else is self's. */
#include <check.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "harness/suite.h"
#include "sync/job.h"

enum { MACHINES = 3, ROWS = 4000, WIDTH = 8, STEPS = 3000, A_STEP = 20 };

/* ------------------------------------------------------------------ several machines */

/* Guards all of the exchange, which is of one round: given by all, then taken by all. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct machine {
    struct fabric f;            /* what the job sees */
    struct fabric *inner;
    struct fabric_type type;
    bool given, gone;
    const void *bytes;
    size_t n;
    void *parts[MACHINES];      /* copies, in what all have given */
    size_t sizes[MACHINES];
    int next;                   /* of the parts; -1: no round is there to be taken */
    bool holds;                 /* shows no part before it is told to leave */
    bool cut;                   /* has closed within a round that was its own to take */
    uint64_t round_cost_ns;     /* CPU time that each of its exchanges takes, at least, */
    uint64_t poll_cost_ns;      /* and each of its polls */
} machines[MACHINES];

static struct machine *machine_of(struct fabric *f)
{
    return (struct machine *)(void *)f;
}

/* The head is the job's; what it is made of, self's. */
static void copy_head(struct machine *m)
{
    m->f.contribution = m->inner->contribution;
    m->f.center = m->inner->center;
    m->f.outer[0] = m->inner->outer[0];
    m->f.outer[1] = m->inner->outer[1];
    m->f.own_bad = m->inner->own_bad;
    m->f.members = m->inner->members;
    m->f.machine_threads = 1000;            /* the budget of a machine without a core to spare */
}

/* A piece of a round, of a known cost. */
static void work_for(uint64_t cpu_ns)
{
    uint64_t until = clock_thread_cpu_ns() + cpu_ns;
    while (cpu_ns > 0 && clock_thread_cpu_ns() < until)
        ;
}

static float *wrap_alloc(struct fabric *f, size_t at, size_t n)
{
    return machine_of(f)->inner->type->alloc(machine_of(f)->inner, at, n);
}

static descant_status wrap_share(struct fabric *f, const char *name, size_t bytes, void **block)
{
    return machine_of(f)->inner->type->share(machine_of(f)->inner, name, bytes, block);
}

static descant_status wrap_start(struct fabric *f, const struct fabric_start *start)
{
    struct machine *m = machine_of(f);
    descant_status status = m->inner->type->start(m->inner, start);
    copy_head(m);
    for (int k = 0; k < MACHINES; k++)
        m->parts[k] = memory_take(start->rows_bytes + 1);
    atomic_store(&f->host_leader, true);
    return status;
}

static descant_status wrap_begin(struct fabric *f, const struct exchange *exchange)
{
    work_for(machine_of(f)->round_cost_ns);
    return machine_of(f)->inner->type->begin(machine_of(f)->inner, exchange);
}

static enum fabric_progress wrap_poll(struct fabric *f, struct fabric_part *part)
{
    work_for(machine_of(f)->poll_cost_ns);
    enum fabric_progress progress = machine_of(f)->inner->type->poll(machine_of(f)->inner, part);
    copy_head(machine_of(f));
    return progress;
}

static void wrap_wait(struct fabric *f, uint64_t until_ns)
{
    uint64_t soon = clock_now_ns() + 200000;
    machine_of(f)->inner->type->wait(machine_of(f)->inner,
                                     until_ns && until_ns < soon ? until_ns : soon);
}

static void deliver(void)
{
    for (int k = 0; k < MACHINES; k++)
        if (!machines[k].gone && !machines[k].given)
            return;
    for (int to = 0; to < MACHINES; to++) {
        struct machine *m = &machines[to];
        m->next = m->gone ? -1 : 0;
        for (int k = 0; k < MACHINES && !m->gone; k++) {
            m->sizes[k] = machines[k].gone ? 0 : machines[k].n;
            if (m->sizes[k])
                memcpy(m->parts[k], machines[k].bytes, m->sizes[k]);
        }
    }
    for (int k = 0; k < MACHINES; k++)
        machines[k].given = false;
}

static void wrap_close(struct fabric *f)
{
    struct machine *m = machine_of(f);
    pthread_mutex_lock(&mutex);
    m->gone = true;
    m->given = false;
    m->cut = m->next >= 0;
    deliver();
    for (int k = 0; k < MACHINES; k++)
        memory_give(m->parts[k]);
    pthread_mutex_unlock(&mutex);
    m->inner->type->close(m->inner);
}

static descant_status rows_begin(struct fabric *f, const void *bytes, size_t n)
{
    struct machine *m = machine_of(f);
    pthread_mutex_lock(&mutex);
    m->bytes = bytes;
    m->n = n;
    m->given = true;
    deliver();
    pthread_mutex_unlock(&mutex);
    return DESCANT_OK;
}

static bool anyone_given(void)
{
    for (int k = 0; k < MACHINES; k++)
        if (machines[k].given)
            return true;
    return false;
}

static enum fabric_progress rows_poll(struct fabric *f, struct rows_part *part)
{
    struct machine *m = machine_of(f);
    enum fabric_progress progress = FABRIC_WAITING;
    pthread_mutex_lock(&mutex);
    while (m->next >= 0 && m->next < MACHINES && m->sizes[m->next] == 0)
        m->next++;
    if (m->next >= 0 && m->holds) {
        progress = FABRIC_WAITING;
    } else if (m->next == MACHINES) {
        m->next = -1;
        progress = FABRIC_DONE;
    } else if (m->next >= 0) {
        *part = (struct rows_part){m->parts[m->next], m->sizes[m->next], m->next,
                                   MACHINES, m == &machines[m->next], false, 0};
        m->next++;
        progress = FABRIC_PART;
    } else if (!m->given && anyone_given()) {
        progress = FABRIC_CALLED;
    }
    pthread_mutex_unlock(&mutex);
    return progress;
}

static bool rows_leave(struct fabric *f)
{
    struct machine *m = machine_of(f);
    pthread_mutex_lock(&mutex);
    m->holds = false;
    bool takes = m->next >= 0;
    pthread_mutex_unlock(&mutex);
    return takes;
}

static const struct fabric_rows wrap_rows = {.begin = rows_begin, .poll = rows_poll, .leave = rows_leave};

static void wrap(struct descant *job, int k)
{
    struct machine *m = &machines[k];
    *m = (struct machine){.inner = job->fabric, .next = -1};
    m->type = (struct fabric_type){.name = "wrap", .rows = &wrap_rows, .alloc = wrap_alloc,
                                   .share = wrap_share, .start = wrap_start, .begin = wrap_begin,
                                   .poll = wrap_poll, .wait = wrap_wait, .close = wrap_close};
    m->f.type = &m->type;
    m->f.rank = k;
    m->f.many_hosts = true;
    job->fabric = &m->f;
    tables_init(&job->tables, job->fabric, &job->plan);
    job->tables.part_room = 4096;           /* a backlog that a part does not hold */
}

/* ------------------------------------------------------------------ machines that train */

struct site {
    const char *plan;
    int number;
    pthread_t thread;
    struct descant *job;
    float *table;
    float *state;               /* a float a row */
    float sums[ROWS];           /* of what it has added */
    struct descant_stats stats;
    bool leaves;                /* early, by close */
};

static pthread_barrier_t all_open, all_done;

/* Rows of its own, so that sums are exact: Hogwild among workers is no part of this. */
static void *train(void *of)
{
    struct site *site = of;
    struct rng rng;
    uint64_t rows[A_STEP];
    rng_init(&rng, (uint64_t)site->number);
    for (int t = 0; t < STEPS / (site->leaves ? 3 : 1); t++) {
        for (int n = 0; n < A_STEP; n++) {
            double u = rng_uniform(&rng);
            rows[n] = (uint64_t)(u * u * ROWS) / MACHINES * MACHINES + (uint64_t)site->number;
            rows[n] = rows[n] < ROWS ? rows[n] : (uint64_t)site->number;
            for (size_t c = 0; c < WIDTH; c++)
                site->table[rows[n] * WIDTH + c] += 1;
            site->state[rows[n]] += 1;
            site->sums[rows[n]] += 1;
        }
        ck_assert_int_eq(descant_touch(site->job, site->table, rows, A_STEP), DESCANT_OK);
        ck_assert_int_eq(descant_step(site->job), DESCANT_OK);
        if (t % 100 == 0)
            clock_sleep_until(clock_now_ns() + 2000000);
    }
    return NULL;
}

/* Until there is a round that its machine has to take, and has not. */
static void hold_round(struct machine *m)
{
    bool there = false;
    for (int tries = 0; !there; tries++) {
        ck_assert_int_lt(tries, 20000);
        pthread_mutex_lock(&mutex);
        m->holds = true;
        there = m->next >= 0;
        pthread_mutex_unlock(&mutex);
        clock_sleep_until(clock_now_ns() + 1000000);
    }
}

static void *live(void *of)
{
    struct site *site = of;
    struct descant_options o = descant_options_default();
    o.job = "self";
    o.plan = site->plan;
    o.sync_cpu = 0.2;
    ck_assert_int_eq(descant_open(&site->job, &o), DESCANT_OK);
    wrap(site->job, site->number);
    pthread_barrier_wait(&all_open);
    float *w = descant_alloc(site->job, "w", 100);
    ck_assert_ptr_nonnull(w);
    ck_assert_int_eq(descant_table(site->job, "rows", ROWS, WIDTH, &site->table), DESCANT_OK);
    ck_assert_int_eq(descant_table_state(site->job, site->table, 1, &site->state), DESCANT_OK);
    for (size_t k = 0; k < ROWS * WIDTH; k++)
        site->table[k] = (float)(k % 50);
    ck_assert_int_eq(descant_start(site->job), DESCANT_OK);
    pthread_t worker;
    pthread_create(&worker, NULL, train, site);
    pthread_join(worker, NULL);
    if (!site->leaves)
        ck_assert_msg(descant_finish(site->job, DESCANT_FINAL_LOCAL) == DESCANT_OK, "%s",
                      descant_last_error());
    ck_assert_int_eq(descant_stats(site->job, &site->stats), DESCANT_OK);
    if (site->leaves) {
        hold_round(&machines[site->number]);
        descant_close(site->job);
    }
    pthread_barrier_wait(&all_done);
    return NULL;
}

static void run_sites(struct site *sites, const char *plan, int leaver)
{
    pthread_barrier_init(&all_open, NULL, MACHINES);
    pthread_barrier_init(&all_done, NULL, MACHINES);
    for (int k = 0; k < MACHINES; k++) {
        sites[k] = (struct site){.plan = plan, .number = k, .leaves = k == leaver};
        pthread_create(&sites[k].thread, NULL, live, &sites[k]);
    }
    for (int k = 0; k < MACHINES; k++)
        pthread_join(sites[k].thread, NULL);
}

static void close_sites(struct site *sites)
{
    for (int k = 0; k < MACHINES; k++)
        if (!sites[k].leaves)
            ck_assert_int_eq(descant_close(sites[k].job), DESCANT_OK);
    pthread_barrier_destroy(&all_open);
    pthread_barrier_destroy(&all_done);
    ck_assert_int_eq(memory_live(), 0);
}

static const char *const plans[] = {"shadow-easgd,hot=0", "shadow-ma,hot=0", "easgd,every=3,hot=0",
                                    "dasgd,every=5,hot=0", "allreduce,hot=0"};

/* Each row was added to on one machine alone, and so was its state. */
static void need_exact(const struct site *site, const struct site *sites)
{
    for (size_t row = 0; row < ROWS; row++) {
        float sum = sites[row % MACHINES].sums[row];
        ck_assert_msg(site->state[row] == sum, "machine %d, state of row %zu is %g, not %g",
                      site->number, row, (double)site->state[row], (double)sum);
        for (size_t c = 0; c < WIDTH; c++) {
            size_t at = row * WIDTH + c;
            float want = (float)(at % 50) + sum;
            ck_assert_msg(site->table[at] == want, "machine %d, row %zu has %g, not %g",
                          site->number, row, (double)site->table[at], (double)want);
        }
    }
}

START_TEST(rows_are_exact_under_every_kind_of_plan)
{
    static struct site sites[MACHINES];
    run_sites(sites, plans[_i], -1);
    for (int k = 0; k < MACHINES; k++) {
        need_exact(&sites[k], sites);
        ck_assert_uint_gt(sites[k].stats.rows_rounds, 3);
        ck_assert_uint_gt(sites[k].stats.rows_sent, 100);
        ck_assert_uint_eq(sites[k].stats.rows_bad, 0);
        ck_assert_uint_eq(sites[k].stats.rows_waiting, 0);
        ck_assert(sites[k].stats.rows_age_s <= 0);
        if (_i < 2)
            ck_assert_uint_eq(sites[k].stats.stall_ns, 0);
    }
    close_sites(sites);
}
END_TEST

START_TEST(a_machine_may_leave_early)
{
    static struct site sites[MACHINES];
    run_sites(sites, "shadow-easgd,hot=0", 1);
    ck_assert(!machines[1].cut);
    ck_assert_mem_eq(sites[0].table, sites[2].table, ROWS * WIDTH * sizeof(float));
    for (size_t row = 0; row < ROWS; row++)
        if (row % MACHINES != 1)
            ck_assert(sites[0].table[row * WIDTH] ==
                      (float)(row * WIDTH % 50) + sites[row % MACHINES].sums[row]);
    close_sites(sites);
}
END_TEST

START_TEST(a_machine_that_comes_late_is_refused)
{
    struct descant_options o = descant_options_default();
    struct descant *job;
    float *table;
    o.job = "self";
    o.plan = "shadow-easgd";
    ck_assert_int_eq(descant_open(&job, &o), DESCANT_OK);
    wrap(job, 0);
    machines[0].f.joined = true;
    ck_assert_ptr_nonnull(descant_alloc(job, "w", 10));
    ck_assert_int_eq(descant_table(job, "t", 100, 4, &table), DESCANT_OK);
    ck_assert_int_eq(descant_start(job), DESCANT_UNSUPPORTED);
    ck_assert_msg(strstr(descant_last_error(), "late"), "%s", descant_last_error());
    machines[1].gone = machines[2].gone = true;
    descant_close(job);
    ck_assert_int_eq(memory_live(), 0);
}
END_TEST

/* ------------------------------------------------------------------ rows before the replica */

enum { MANY_ROWS = 1 << 16, ROUNDS_LEAST = 10, ROUND_COST_NS = 3000000 };
enum { STEPS_A_LOOK = 50 };     /* many, so that a worker that seldom has a core still makes them */

/* A job that is alone, with more touched rows than parts have room for. */
static struct descant *open_busy(const char *plan, double sync_cpu, uint64_t look_ns,
                                 float **table)
{
    struct descant_options o = descant_options_default();
    struct descant *job;
    o.job = "self";
    o.plan = plan;
    o.sync_cpu = sync_cpu;
    ck_assert_int_eq(descant_open(&job, &o), DESCANT_OK);
    wrap(job, 0);
    machines[1].gone = machines[2].gone = true;
    machines[0].round_cost_ns = ROUND_COST_NS;
    machines[0].type.look_ns = look_ns;
    ck_assert_ptr_nonnull(descant_alloc(job, "w", 10));
    ck_assert_int_eq(descant_table(job, "rows", MANY_ROWS, WIDTH, table), DESCANT_OK);
    ck_assert_int_eq(descant_start(job), DESCANT_OK);
    return job;
}

static void touch_all(struct descant *job, float *table)
{
    static uint64_t rows[MANY_ROWS];
    for (uint64_t row = 0; row < MANY_ROWS; row++) {
        rows[row] = row;
        table[row * WIDTH] += 1;
    }
    ck_assert_int_eq(descant_touch(job, table, rows, MANY_ROWS), DESCANT_OK);
}

/* Until there were so many rounds more, of so many steps at most; rows wait all the time. */
static void step_on(struct descant *job, float *table, int most, uint64_t rounds,
                    struct descant_stats *stats)
{
    uint64_t until = clock_now_ns() + 40 * UINT64_C(1000000000);
    int steps = 0;
    ck_assert_int_eq(descant_stats(job, stats), DESCANT_OK);
    for (rounds += stats->rounds; stats->rounds < rounds || stats->rows_waiting == 0;) {
        uint64_t before = stats->rounds;
        ck_assert_msg(clock_now_ns() < until, "%llu rounds of the replica",
                      (unsigned long long)stats->rounds);
        if (stats->rows_waiting < MANY_ROWS / 2)
            touch_all(job, table);
        for (int k = 0; k < STEPS_A_LOOK && steps < most; k++, steps++)
            ck_assert_int_eq(descant_step(job), DESCANT_OK);
        ck_assert_int_eq(descant_stats(job, stats), DESCANT_OK);
        steps = stats->rounds == before ? steps : 0;
    }
}

/* What rounds take of the shadow's CPU time. */
static double share_of_rounds(const char *plan, int most)
{
    struct descant_stats before, after;
    float *table;
    struct descant *job = open_busy(plan, 0.5, 0, &table);
    step_on(job, table, most, 1, &before);
    step_on(job, table, most, ROUNDS_LEAST, &after);
    double cost = 1e-9 * ROUND_COST_NS * (double)(after.rounds - before.rounds);
    descant_close(job);
    ck_assert_int_eq(memory_live(), 0);
    return cost / (after.shadow_cpu_s - before.shadow_cpu_s);
}

/* The first of some tries that lies there, else the last: while the worker has no core rows go on, and
 * then there are none. */
static double share_between(const char *plan, int most, double low, double high)
{
    double share = share_of_rounds(plan, most);
    for (int tries = 1; tries < 5 && (share <= low || share >= high); tries++)
        share = share_of_rounds(plan, most);
    return share;
}

/* A quarter; in turns with rows it would be nine tenths. */
START_TEST(rows_that_wait_come_before_rounds_of_the_replica)
{
    double share = share_between("shadow-ma", 100, 0, 0.35);
    ck_assert_msg(share < 0.35, "rounds of the replica take %g of the shadow's time", share);
    share = share_between("shadow-ma,gap=300", 500, 0, 0.35);
    ck_assert_msg(share < 0.35, "with a wide gap they take %g of the shadow's time", share);
}
END_TEST

/* Where the last one is hundreds of steps old, a half; a seventh if rounds always gave way. */
START_TEST(rows_that_wait_do_not_hold_up_the_replica)
{
    double share = share_between("shadow-ma", INT_MAX, 0.22, 0.6);
    ck_assert_msg(share > 0.22 && share < 0.6,
                  "rounds of the replica take %g of the shadow's time", share);
}
END_TEST

/* Exchanges with a deadline run at once, whatever they cost, and rows have the budget to
 * themselves: else it would be in debt for exchanges all the time, and rows would not go. */
START_TEST(rows_go_on_beside_costly_exchanges)
{
    struct descant_stats before, after;
    float *table;
    struct descant *job = open_busy("dasgd,every=100,delay=50", 0.05, 0, &table);
    machines[0].round_cost_ns = 0;
    machines[0].poll_cost_ns = ROUND_COST_NS;
    step_on(job, table, INT_MAX, 1, &before);
    do
        step_on(job, table, INT_MAX, ROUNDS_LEAST, &after);
    while (after.rows_rounds < before.rows_rounds + 3);
    descant_close(job);
    ck_assert_int_eq(memory_live(), 0);
}
END_TEST

/* With rows that are touched again and again, or that are all sent by and by (of_rows: 0). */
static void expect_budget(struct descant *job, float *table, double of_rows)
{
    uint64_t until = clock_now_ns() + 40 * UINT64_C(1000000000);
    bool rows_wait = of_rows > 0;
    double budget = rows_wait ? of_rows : 0.02;
    struct descant_stats stats = {.budget = 0};
    while ((stats.rows_waiting > 0) != rows_wait || fabs(stats.budget - budget) > 1e-9) {
        ck_assert_msg(clock_now_ns() < until, "%llu rows wait, the budget is %g",
                      (unsigned long long)stats.rows_waiting, stats.budget);
        if (rows_wait)
            touch_all(job, table);
        clock_sleep_until(clock_now_ns() + 1000000);
        ck_assert_int_eq(descant_stats(job, &stats), DESCANT_OK);
    }
}

/* Over a link that must be looked at, and over one that wakes the shadow. */
static const struct budget_case {
    uint64_t look_ns;
    double of_rows;
} budget_cases[] = {{300000, 0.04}, {0, 0.03}};

START_TEST(while_rows_wait_the_budget_is_larger)
{
    const struct budget_case *c = &budget_cases[_i];
    float *table;
    struct descant *job = open_busy("shadow-ma", 0, c->look_ns, &table);
    machines[0].round_cost_ns = 0;
    for (int k = 0; k < 2; k++) {
        expect_budget(job, table, c->of_rows);
        expect_budget(job, table, 0);
    }
    descant_close(job);
    ck_assert_int_eq(memory_live(), 0);
}
END_TEST

/* ------------------------------------------------------------------ one machine, and wrong use */

static const char *const alone[] = {"self", "shm:tables"};

START_TEST(one_machine_has_one_copy_and_no_cost)
{
    struct descant_options o = descant_options_default();
    struct descant *jobs[2] = {NULL};
    float *tables[2], *state;
    char address[64];
    int n = _i == 0 ? 1 : 2;
    snprintf(address, sizeof address, "%s%s%d", alone[_i], _i ? "-" : "", _i ? (int)getpid() : 0);
    o.job = _i ? address : "self";
    o.plan = "shadow-easgd";
    for (int k = 0; k < n; k++) {
        ck_assert_int_eq(descant_open(&jobs[k], &o), DESCANT_OK);
        ck_assert_int_eq(descant_table(jobs[k], "t", 100, 4, &tables[k]), DESCANT_OK);
        ck_assert_int_eq(descant_table(jobs[k], "t", 100, 4, &tables[k]), DESCANT_DUPLICATE);
        ck_assert_int_eq(descant_table(jobs[k], "u", 100, 4, NULL), DESCANT_INVALID);
        ck_assert_int_eq(descant_table_state(jobs[k], tables[k], 1, NULL), DESCANT_INVALID);
        ck_assert_ptr_nonnull(descant_alloc(jobs[k], "w", 10));
        tables[k][17] += 1;
        ck_assert_ptr_null(jobs[k]->tables.list[0].base);
        ck_assert_ptr_null(jobs[k]->tables.list[0].heat);
    }
    ck_assert(tables[0][17] == (float)n);
    uint64_t row = 3;
    ck_assert_int_eq(descant_touch(jobs[0], tables[0], &row, 1), DESCANT_ORDER);
    ck_assert_int_eq(descant_start(jobs[0]), DESCANT_OK);
    ck_assert_int_eq(descant_touch(jobs[0], tables[0], &row, 1), DESCANT_OK);
    ck_assert_int_eq(descant_table(jobs[0], "v", 100, 4, &tables[0]), DESCANT_ORDER);
    ck_assert_int_eq(descant_table_state(jobs[0], tables[0], 1, &state), DESCANT_ORDER);
    for (int k = 0; k < n; k++)
        ck_assert_int_eq(descant_close(jobs[k]), DESCANT_OK);
    ck_assert_int_eq(memory_live(), 0);
}
END_TEST

START_TEST(trainers_with_other_tables_are_refused)
{
    struct descant_options o = descant_options_default();
    struct descant *jobs[2] = {NULL};
    char address[64];
    float *table;
    snprintf(address, sizeof address, "shm:tables-other-%d", (int)getpid());
    o.job = address;
    for (int k = 0; k < 2; k++) {
        ck_assert_int_eq(descant_open(&jobs[k], &o), DESCANT_OK);
        ck_assert_ptr_nonnull(descant_alloc(jobs[k], "w", 10));
        ck_assert_int_eq(descant_table(jobs[k], k ? "b" : "a", 100, 4, &table), DESCANT_OK);
    }
    ck_assert_int_eq(descant_start(jobs[0]), DESCANT_OK);
    ck_assert_int_eq(descant_start(jobs[1]), DESCANT_MISMATCH);
    ck_assert_msg(strstr(descant_last_error(), "table b 100 x 4"), "%s", descant_last_error());
    for (int k = 0; k < 2; k++)
        descant_close(jobs[k]);
}
END_TEST

int main(void)
{
    TCase *all = new_case("jobs", 60);
    tcase_add_loop_test(all, rows_are_exact_under_every_kind_of_plan, 0, N(plans));
    tcase_add_test(all, a_machine_may_leave_early);
    tcase_add_test(all, a_machine_that_comes_late_is_refused);
    tcase_add_test(all, rows_that_wait_come_before_rounds_of_the_replica);
    tcase_add_test(all, rows_that_wait_do_not_hold_up_the_replica);
    tcase_add_test(all, rows_go_on_beside_costly_exchanges);
    tcase_add_loop_test(all, while_rows_wait_the_budget_is_larger, 0, N(budget_cases));
    tcase_add_loop_test(all, one_machine_has_one_copy_and_no_cost, 0, 2);
    tcase_add_test(all, trainers_with_other_tables_are_refused);
    return run_cases(all, NULL);
}
