/* SPDX-License-Identifier: MIT */
/* Tables with owners in jobs of real processes: over TCP each rank owns a part of the rows, on one
 * machine all share them. All that is pushed arrives once; an owner that is killed ends it for
 * all; one that comes late uses the others' rows. */
#include "harness/folder.h"
#include "harness/jobs.h"
#include "harness/processes.h"
#include "harness/suite.h"
#include "harness/tcp.h"
#include "harness/values.h"
#include "harness/wait.h"

#include <math.h>
#include <pthread.h>

enum { MOST = 4, ROWS = 3000, WIDTH = 5, BATCH = THREADS_ALONE ? 400 : 700, THREADS = 3 };

static struct owners_page {
    _Atomic int pushed[ROWS], steps[MOST];
    _Atomic int served[MOST];           /* rows, so far */
    _Atomic int go_on;                  /* 1: they train until it is 0 */
    _Atomic int one_stops;              /* 1: rank 2 does not */
    _Atomic int lost;                   /* pushes that a trainer may have been killed at */
    _Atomic int died;                   /* an owner has; each row has at least, since then, */
    int least[ROWS];
    struct descant_stats stats[MOST];
} *page;

static char address[300];
static const char *plan = "shadow-ma", *shares;
static double age;                      /* of copies; 0: none */
static pid_t pids[MOST];
static int steps;                       /* of each worker, at least */
static bool grows;                      /* the table whose rows are pushed */
static bool moves;                      /* its rows may move, */
static double replica_s;                /* and have replicas */

static struct descant_owned shape(void)
{
    struct descant_owned o = descant_owned_default();
    o.rows = grows ? 0 : ROWS;
    o.grows = grows;
    o.memory = grows ? 2 << 20 : 0;
    o.width = WIDTH;
    o.optimizer = DESCANT_ROWS_SGD;
    o.age = age;
    return o;
}

static void name_rows(uint64_t *ids, const uint64_t *rows, size_t n)
{
    for (size_t k = 0; k < n; k++)
        ids[k] = grows ? rows[k] * UINT64_C(0x123456789abcdef1) : rows[k];
}

static bool over_tcp(void)
{
    return strncmp(address, "tcp", 3) == 0;
}

/* Rows that this one may push: the sums are to be exact, so no two threads step by one row at
 * once. Over TCP an owner's thread steps by all that others push; in shared memory each pusher
 * does, so there each has rows of its own. In a table that grows a step is never lost. */
static bool may_push(uint64_t row, int rank, int size, int thread)
{
    if (grows)
        return true;
    if (moves)                          /* anybody may come to own it */
        return (int)(row % (MOST * THREADS)) == rank * THREADS + thread;
    return over_tcp() ? (int)((row + 389) % 1024) % size != rank
                      : (int)(row % (uint64_t)(size * THREADS)) == rank * THREADS + thread;
}

struct worker {
    struct descant *job;
    int table, rank, size, thread;
    bool good;
    pthread_t id;
    int mine[ROWS];                     /* that this worker has pushed */
};

/* A worker reads all that it has pushed, and nothing that nobody has. */
static bool reads_what_was_pushed(const struct worker *me, const uint64_t *rows, const float *block)
{
    for (size_t k = 0; k < BATCH; k++)
        for (int i = 0; i < WIDTH; i++) {
            float times = block[k * WIDTH + (size_t)i] / (0.5f * (float)(i + 1));
            if ((times < (float)me->mine[rows[k]] && !page->died) ||
                times > (float)page->pushed[rows[k]]) {
                fprintf(stderr, "trainer %d reads %g pushes of row %d, of %d: %d are its own\n",
                        me->rank, (double)times, (int)rows[k], page->pushed[rows[k]],
                        me->mine[rows[k]]);
                return false;
            }
        }
    return true;
}

static bool push_batch(struct worker *me, struct rng *rng)
{
    uint64_t rows[BATCH], ids[BATCH];
    float g[BATCH * WIDTH], *block;
    struct descant_rows *batch;
    size_t n = 0;

    while (n < BATCH) {
        rows[n] = rng_next(rng) % ROWS;
        n += may_push(rows[n], me->rank, me->size, me->thread);
    }
    name_rows(ids, rows, n);
    if (descant_rows_fetch(me->job, me->table, ids, n, &batch) != DESCANT_OK ||
        descant_rows_wait(me->job, batch, &block) != DESCANT_OK)
        return false;
    for (size_t k = 0; k < n; k++)
        for (int i = 0; i < WIDTH; i++)
            g[k * WIDTH + (size_t)i] = -(float)(i + 1);
    if (!reads_what_was_pushed(me, rows, block))
        return false;
    for (size_t k = 0; k < n; k++) {
        page->pushed[rows[k]]++;
        me->mine[rows[k]]++;
    }
    return (rng_next(rng) % 2 ? descant_rows_push : descant_rows_push_more)(
               me->job, batch, g, 0.5) == DESCANT_OK;
}

static void *work(void *of)
{
    struct worker *me = of;
    struct rng rng;

    rng_init(&rng, (uint64_t)(me->rank * THREADS + me->thread));
    me->good = true;
    for (int step = 0; me->good && (step < steps ||
                                    (page->go_on && !(page->one_stops && me->rank == 2))); step++) {
        struct descant_stats s = {0};
        me->good = push_batch(me, &rng) && descant_step(me->job) == DESCANT_OK &&
                   descant_stats(me->job, &s) == DESCANT_OK;
        page->served[me->rank] = (int)s.rows_served;
        page->steps[me->rank]++;
    }
    descant_worker_done(me->job);
    return NULL;
}

static bool all_rows_are_right(struct descant *job, int table)
{
    uint64_t rows[ROWS], ids[ROWS];
    struct descant_rows *batch;
    float *block, missing = 0;

    for (uint64_t k = 0; k < ROWS; k++)
        rows[k] = ROWS - 1 - k;
    name_rows(ids, rows, ROWS);
    if (descant_rows_fetch(job, table, ids, ROWS, &batch) != DESCANT_OK ||
        descant_rows_wait(job, batch, &block) != DESCANT_OK)
        return false;
    for (size_t k = 0; k < ROWS && page->died; k++)
        if (block[k * WIDTH] < 0.5f * (float)page->least[rows[k]] ||
            block[k * WIDTH] > 0.5f * (float)page->pushed[rows[k]])
            return false;
    for (size_t k = 0; k < ROWS && !page->died; k++)
        for (int i = 0; i < WIDTH; i++)
            missing += fabsf(0.5f * (float)((i + 1) * page->pushed[rows[k]]) -
                             block[k * WIDTH + (size_t)i]);
    if (missing > 0.5f * WIDTH * (WIDTH + 1) / 2 * (float)page->lost)
        return false;
    return descant_rows_drop(job, batch) == DESCANT_OK;
}

/* Rows that a trainer fetches, and pushes. */
static uint64_t used_rows(void)
{
    return (uint64_t)(THREADS * steps) * BATCH;
}

enum end { FINISHES, CLOSES, PARTS };
static enum end ends[MOST];

static struct descant *open_one(int rank, int size)
{
    struct descant_options o = descant_options_default();
    struct descant *job = NULL;

    o.job = address;
    o.plan = plan;
    o.rank = rank;
    o.size = size;
    o.start_s = 20;
    o.owned_shares = shares;
    o.owned_moves = moves;
    o.owned_replica_s = replica_s;
    return descant_open(&job, &o) == DESCANT_OK ? job : NULL;
}

/* A hold that another thread has ended, be it at once, is an error, and none is left. */
static bool a_hold_lasts_until_it_is_ended(struct descant *job)
{
    return descant_owned_hold(job, 0) == DESCANT_OK &&
           descant_owned_hold(job, 1) == DESCANT_ORDER &&
           descant_owned_hold(job, 1) == DESCANT_OK && descant_owned_hold(job, 0) == DESCANT_OK;
}

static int train(int rank, int size, int founders)
{
    struct descant *job = open_one(rank, founders);
    struct worker workers[THREADS];
    struct descant_owned of = shape();
    int other, table;
    bool good = true;

    descant_alloc(job, "w", 1000);
    of.rows = grows ? 0 : 7;            /* another one, so that numbers differ */
    if (descant_owned_table(job, "other", &of, &other) != DESCANT_OK)
        return 2;
    of = shape();
    of.spread = 0;
    if (descant_owned_table(job, "rows", &of, &table) != DESCANT_OK ||
        descant_start(job) != DESCANT_OK)
        return 3;
    if (moves && rank == 1 && !a_hold_lasts_until_it_is_ended(job))
        return 9;
    for (int k = 0; k < THREADS; k++) {
        workers[k] = (struct worker){.job = job, .table = table, .rank = rank, .size = size,
                                     .thread = k};
        pthread_create(&workers[k].id, NULL, work, &workers[k]);
    }
    for (int k = 0; k < THREADS; k++) {
        pthread_join(workers[k].id, NULL);
        good &= workers[k].good;
    }
    if (!good)
        return 4;
    if (ends[rank] == PARTS && descant_part(job, 30) != DESCANT_OK)
        return 8;
    if (ends[rank] != FINISHES)
        return descant_close(job) == DESCANT_OK ? 0 : 7;
    if (descant_finish(job, DESCANT_FINAL_MEAN) != DESCANT_OK)
        return 5;
    if (!all_rows_are_right(job, table))
        return 6;
    descant_stats(job, &page->stats[rank]);
    return descant_close(job) == DESCANT_OK ? 0 : 7;
}

static void begin(int rank, int size, int founders)
{
    FILE *out;
    pid_t pid = fork_saying(&out, SIGKILL);

    if (pid == 0) {
        dup2(fileno(out), STDERR_FILENO);
        setenv("DESCANT_LOG", "info", 1);
        _exit(train(rank, size, founders));
    }
    pids[rank] = pid;
}

static void prepare(bool tcp)
{
    struct tcp_options at, rows;

    snprintf(said_file, sizeof said_file, "%s", in_folder("said"));
    unlink(said_file);
    page = share_memory(sizeof *page);
    if (tcp) {
        tcp_test_address(&at, "127.0.0.1", MOST);
        tcp_test_address(&rows, "127.0.0.1", MOST);
        snprintf(address, sizeof address, "tcp:127.0.0.1:%s,ranks=%d,dead=2s,rows=%s", at.port,
                 MOST, rows.port);
    } else {
        new_address("");
        snprintf(address, sizeof address, "%s", job_address);
    }
}

static void need_end(int rank, int with)
{
    int status = end_of(pids[rank]);
    ck_assert_msg(status == with, "trainer %d ends with %d: %.3000s", rank, status,
                  (read_said(), said));
}

START_TEST(all_that_is_pushed_arrives_once)
{
    static const char *const plans[] = {"shadow-ma", "shadow-easgd", "ma,every=4",
                                        "dasgd,every=4,delay=2", "none"};
    int size = 2 + _i % 3;
    uint64_t live = 0;

    plan = plans[_i % 5];
    grows = _i >= 10;
    steps = few(25, 10);
    prepare(_i % 10 < 6);
    if (_i == 1)
        *strstr(address, ",rows=") = 0;         /* the next port */
    for (int k = 0; k < size; k++)
        begin(k, size, size);
    for (int k = 0; k < size; k++)
        need_end(k, 0);
    for (int k = 0; k < size; k++) {
        const struct descant_stats *s = &page->stats[k];
        ck_assert_uint_ge(s->rows_fetched, used_rows() + ROWS);
        ck_assert_uint_eq(s->rows_pushed, used_rows());
        ck_assert_uint_eq(s->rows_bad, 0);
        ck_assert_uint_eq(s->rows_cached, 0);
        ck_assert(over_tcp() == (s->rows_served > 0) && over_tcp() == (s->rows_cpu_s > 0) &&
                  over_tcp() == (s->rows_bytes > 0));
        ck_assert_uint_eq(s->rows_evicted + s->rows_refused, 0);
        live += s->rows_live;
    }
    ck_assert_uint_eq(live, (uint64_t)(!grows ? 0 : over_tcp() ? ROWS : size * ROWS));
}
END_TEST

/* A rank in the middle has no share, and no memory. */
START_TEST(a_table_that_grows_is_parted_by_shares)
{
    static const int parts[] = {1, 0, 2};

    shares = "1,0,2";
    grows = true;
    plan = "shadow-ma";
    prepare(true);
    for (int k = 0; k < 3; k++)
        begin(k, 3, 3);
    for (int k = 0; k < 3; k++)
        need_end(k, 0);
    for (int k = 0; k < 3; k++)
        ck_assert_int_le(abs((int)page->stats[k].rows_live - parts[k] * ROWS / 3), parts[k] * 150);
}
END_TEST

/* Also where ranks keep copies, for so long that only finish makes them see what others have
 * pushed, or for so short that copies are asked for again and again; on one machine there are
 * none. */
START_TEST(copies_lose_nothing)
{
    int size = 2 + _i % 2;

    age = _i % 2 ? 3600 : 0.002;
    grows = _i >= 4;
    prepare(_i % 4 < 2);
    for (int k = 0; k < size; k++)
        begin(k, size, size);
    for (int k = 0; k < size; k++)
        need_end(k, 0);
    for (int k = 0; k < size; k++) {
        const struct descant_stats *s = &page->stats[k];
        ck_assert_uint_le(s->rows_cached, used_rows());
        if (age > 1)
            ck_assert(over_tcp() == (s->rows_cached > used_rows() / 4));
        if (!over_tcp())
            ck_assert_uint_eq(s->rows_cached, 0);
    }
}
END_TEST

START_TEST(one_that_comes_late_owns_none)
{
    prepare(true);
    page->go_on = 1;
    begin(0, 2, 2);
    begin(1, 2, 2);
    WAIT_UNTIL(page->steps[0] > 5 && page->steps[1] > 5, "%.2000s", (read_said(), said));
    begin(2, 2, 2);
    WAIT_UNTIL(page->steps[2] > 5, "%.2000s", (read_said(), said));
    page->go_on = 0;
    for (int k = 0; k < 3; k++)
        need_end(k, 0);
    ck_assert_uint_eq(page->stats[2].rows_served, 0);
}
END_TEST

/* Without its rows there is no end for the others; but an end they have. */
START_TEST(an_owner_that_closes_early_ends_it_for_all)
{
    prepare(true);
    page->go_on = 1;
    ends[_i] = CLOSES;
    for (int k = 0; k < 2; k++)
        begin(k, 2, 2);
    WAIT_UNTIL(page->steps[0] > 5 && page->steps[1] > 5, "%.2000s", (read_said(), said));
    page->go_on = 0;
    need_end(_i, 0);
    int status = end_within(pids[1 - _i], 20);
    ck_assert_msg(status >= 4 && status <= 6, "%d: %.2000s", status, (read_said(), said));
}
END_TEST

START_TEST(one_without_rows_parts_alone)
{
    prepare(true);
    page->go_on = 1;
    begin(0, 2, 2);
    begin(1, 2, 2);
    WAIT_UNTIL(page->steps[0] > 5 && page->steps[1] > 5, "%.2000s", (read_said(), said));
    ends[2] = PARTS;
    page->one_stops = 1;
    begin(2, 2, 2);
    ck_assert_int_eq(end_within(pids[2], 20), 0);
    page->go_on = 0;
    need_end(0, 0);
    need_end(1, 0);
}
END_TEST

/* Nobody waits for its rows: the calls say that they are lost. */
START_TEST(an_owner_that_is_killed_ends_it_for_all)
{
    prepare(true);
    page->go_on = 1;
    for (int k = 0; k < 3; k++)
        begin(k, 3, 3);
    WAIT_UNTIL(page->steps[0] > 5 && page->steps[1] > 5 && page->steps[2] > 5, "%.2000s",
               (read_said(), said));
    kill(pids[_i], SIGKILL);
    end_of(pids[_i]);
    for (int k = 0; k < 3; k++)
        if (k != _i)
            need_end(k, 4);
    for (int k = 0; k < 3; k++) {
        char line[80];
        snprintf(line, sizeof line, "rank %d has gone, and with it its rows of the tables", k);
        ck_assert_msg((times_said(line) > 0) == (k == _i), "%s: %.2000s", line, said);
    }
}
END_TEST

/* On one machine each has rows under its lock all the time; the others go on. */
START_TEST(a_trainer_that_is_killed_leaves_a_table_that_grows)
{
    grows = true;
    plan = "shadow-ma";
    prepare(false);
    page->go_on = 1;
    page->lost = THREADS * BATCH;
    for (int k = 0; k < 3; k++)
        begin(k, 3, 3);
    WAIT_UNTIL(page->steps[0] > 5 && page->steps[1] > 5 && page->steps[2] > 5, "%.2000s",
               (read_said(), said));
    kill(pids[_i], SIGKILL);
    end_of(pids[_i]);
    int before = page->steps[(_i + 1) % 3];
    WAIT_UNTIL(page->steps[(_i + 1) % 3] > before + 20, "%.2000s", (read_said(), said));
    page->go_on = 0;
    for (int k = 0; k < 3; k++)
        if (k != _i)
            need_end(k, 0);
}
END_TEST

/* ------------------------------------------------------------------ rows that move */

/* One comes and gets its part of the rows, and one of those that were there leaves, while all
 * push. Each push arrives once, and each trainer reads its own. */
START_TEST(rows_go_where_ranks_are)
{
    moves = true;
    grows = _i % 3 == 1;
    replica_s = _i % 2 * 0.1;
    age = (double[]){3600, 0, 0.02, 0.2}[_i % 4];
    prepare(true);
    page->go_on = 1;
    begin(0, 2, 2);
    begin(1, 2, 2);
    WAIT_UNTIL(page->steps[0] > 5 && page->steps[1] > 5, "%.2000s", (read_said(), said));
    ends[2] = PARTS;
    begin(2, 2, 2);
    begin(3, 2, 2);
    WAIT_UNTIL(page->steps[2] > 20 && page->steps[3] > 20 && page->served[3] > 100, "%.2000s",
               (read_said(), said));
    page->one_stops = 1;
    int status = end_within(pids[2], 40);
    ck_assert_msg(status == 0, "%d: %.3000s", status, (read_said(), said));
    page->go_on = 0;
    need_end(0, 0);
    need_end(1, 0);
    need_end(3, 0);
    ck_assert_uint_gt(page->stats[0].rows_moved, 100);
    for (int k = 0; age > 1 && k < 4; k++)      /* rank 2 has gone without a word of it */
        ck_assert(k == 2 || page->stats[k].rows_cached > 10);
}
END_TEST

/* The others go on with what its replicas have, and it may come again, at once, too; also while
 * rows go to one that has come late. */
START_TEST(replicas_take_the_rows_of_one_that_is_killed)
{
    int dead = _i % 3, other = (dead + 1) % 3;

    moves = true;
    grows = _i == 3;
    replica_s = 0.1;
    prepare(true);
    page->go_on = 1;
    for (int k = 0; k < 3; k++)
        begin(k, 3, 3);
    WAIT_UNTIL(page->steps[0] > 20 && page->steps[1] > 20 && page->steps[2] > 20, "%.3000s",
               (read_said(), said));
    for (int k = 0; k < ROWS; k++)
        page->least[k] = page->pushed[k];
    int then = page->steps[dead];
    WAIT_UNTIL(page->steps[dead] > then + 40, "%.3000s", (read_said(), said));
    clock_sleep_until(clock_now_ns() + 1000000000);     /* beyond the age of replicas */
    page->died = 1;
    if (_i % 4 > 1) {
        begin(3, 3, 3);
        WAIT_UNTIL(page->steps[3] > _i, "%.3000s", (read_said(), said));
    }
    kill(pids[dead], SIGKILL);
    end_of(pids[dead]);
    if (_i % 2)
        begin(dead, 3, 3);
    int before = page->steps[other];
    WAIT_UNTIL(page->steps[other] > before + 20, "%.3000s", (read_said(), said));
    if (_i % 2 == 0)
        begin(dead, 3, 3);
    then = page->steps[dead];
    WAIT_UNTIL(page->steps[dead] > then + 20, "%.3000s", (read_said(), said));
    page->go_on = 0;
    for (int k = 0; k < 3 + (_i % 4 > 1); k++)
        need_end(k, 0);
}
END_TEST

/* ------------------------------------------------------------------ refused */

START_TEST(rows_that_cannot_move_are_refused)
{
    struct descant_options o = descant_options_default();
    struct descant *job = NULL;

    o.job = "self";
    o.owned_replica_s = 1;
    ck_assert_int_eq(descant_open(&job, &o), DESCANT_INVALID);
    ck_assert_ptr_nonnull(strstr(descant_last_error(), "owned_replica_s needs owned_moves"));
    o.owned_moves = 1;
    o.owned_replica_s = 0.09;
    ck_assert_int_eq(descant_open(&job, &o), DESCANT_INVALID);
    o.owned_replica_s = NAN;
    ck_assert_int_eq(descant_open(&job, &o), DESCANT_INVALID);
}
END_TEST

START_TEST(calls_that_cannot_be_are_refused)
{
    struct descant *job = open_job("self", "none", 0, 1);
    struct descant_owned good = shape(), bad = good;
    struct descant_rows *batch = NULL;
    const uint64_t rows[] = {0, ROWS - 1, ROWS};
    float *block, g[2 * WIDTH] = {0};
    int table = -1;

    bad.width = 0;
    ck_assert_int_eq(descant_owned_table(job, "t", &bad, &table), DESCANT_INVALID);
    bad = good;
    bad.age = -1;
    ck_assert_int_eq(descant_owned_table(job, "t", &bad, &table), DESCANT_INVALID);
    ck_assert_ptr_nonnull(strstr(descant_last_error(), "age is from 0 to 1e9 seconds"));
    ck_assert_int_eq(descant_owned_table(job, "t", NULL, &table), DESCANT_INVALID);
    ck_assert_int_eq(descant_owned_table(job, NULL, &good, &table), DESCANT_INVALID);
    ck_assert_int_eq(descant_owned_table(job, "t", &good, NULL), DESCANT_INVALID);
    ck_assert_int_eq(descant_owned_table(job, "t", &good, &table), DESCANT_OK);
    ck_assert_int_eq(table, 0);
    ck_assert_int_eq(descant_owned_table(job, "t", &good, &table), DESCANT_DUPLICATE);
    ck_assert_int_eq(descant_rows_fetch(job, 0, rows, 2, &batch), DESCANT_ORDER);
    ck_assert_ptr_nonnull(descant_alloc(job, "w", 10));
    ck_assert_int_eq(descant_start(job), DESCANT_OK);
    ck_assert_int_eq(descant_owned_table(job, "u", &good, &table), DESCANT_ORDER);
    ck_assert_int_eq(descant_rows_fetch(job, 1, rows, 2, &batch), DESCANT_INVALID);
    ck_assert_int_eq(descant_rows_fetch(job, -1, rows, 2, &batch), DESCANT_INVALID);
    ck_assert_int_eq(descant_rows_fetch(job, 0, rows, 3, &batch), DESCANT_INVALID);
    ck_assert_ptr_nonnull(strstr(descant_last_error(), "no row 3000"));
    ck_assert_int_eq(descant_rows_fetch(job, 0, NULL, 2, &batch), DESCANT_INVALID);
    ck_assert_int_eq(descant_rows_fetch(job, 0, rows, 2, NULL), DESCANT_INVALID);
    ck_assert_int_eq(descant_rows_fetch(job, 0, rows, 2, &batch), DESCANT_OK);
    ck_assert_int_eq(descant_rows_wait(job, batch, NULL), DESCANT_INVALID);
    ck_assert_int_eq(descant_rows_wait(job, NULL, &block), DESCANT_INVALID);
    ck_assert_int_eq(descant_rows_wait(job, batch, &block), DESCANT_OK);
    ck_assert_int_eq(descant_rows_push(job, batch, NULL, 1), DESCANT_INVALID);
    ck_assert_int_eq(descant_rows_fetch(job, 0, rows, 2, &batch), DESCANT_OK);
    ck_assert_int_eq(descant_rows_push(job, batch, g, NAN), DESCANT_INVALID);
    ck_assert_int_eq(descant_rows_push(job, NULL, g, 1), DESCANT_INVALID);
    ck_assert_int_eq(descant_rows_fetch(job, 0, NULL, 0, &batch), DESCANT_OK);
    ck_assert_int_eq(descant_rows_push(job, batch, NULL, 1), DESCANT_OK);
    ck_assert_int_eq(descant_rows_drop(job, NULL), DESCANT_OK);
    size_t floats, n;
    uint64_t at = 0, numbers[4];
    float records[4 * WIDTH] = {7};
    ck_assert_int_eq(descant_owned_floats(job, 3, &floats), DESCANT_INVALID);
    ck_assert_int_eq(descant_owned_floats(job, 0, NULL), DESCANT_INVALID);
    ck_assert_int_eq(descant_owned_floats(job, 0, &floats), DESCANT_OK);
    ck_assert_uint_eq(floats, WIDTH);
    ck_assert_int_eq(descant_owned_next(job, 0, &at, 4, numbers, records, &n), DESCANT_OK);
    ck_assert_uint_eq(n, 0);
    ck_assert_int_eq(descant_rows_settle(NULL), DESCANT_INVALID);
    int ranks = 0;
    ck_assert_int_eq(descant_owned_ranks(job, NULL), DESCANT_INVALID);
    ck_assert_int_eq(descant_owned_ranks(NULL, &ranks), DESCANT_INVALID);
    ck_assert_int_eq(descant_owned_ranks(job, &ranks), DESCANT_OK);
    ck_assert_int_eq(ranks, 1);
    ck_assert_int_eq(descant_rows_settle(job), DESCANT_OK);
    ck_assert_int_eq(descant_owned_set(job, 0, rows, 3, records), DESCANT_INVALID);
    ck_assert_int_eq(descant_owned_set(job, 0, NULL, 1, records), DESCANT_INVALID);
    ck_assert_int_eq(descant_owned_set(job, 0, rows, 1, records), DESCANT_OK);
    at = 0;
    ck_assert_int_eq(descant_owned_next(job, 0, &at, 4, numbers, records, &n), DESCANT_OK);
    ck_assert(n == 1 && numbers[0] == 0 && records[0] == 7);
    at = 0;
    ck_assert_int_eq(descant_owned_next(job, 0, &at, 4, numbers, NULL, &n), DESCANT_OK);
    ck_assert(n == 1 && numbers[0] == 0);
    ck_assert_int_eq(descant_rows_fetch(job, 0, rows, 2, &batch), DESCANT_OK);     /* and kept */
    ck_assert_int_eq(descant_close(job), DESCANT_OK);
    ck_assert_int_eq(memory_live(), 0);
}
END_TEST

START_TEST(a_table_that_grows_has_rows_of_any_number)
{
    struct descant *job = open_job("self", "none", 0, 1);
    const uint64_t rows[] = {0, UINT64_MAX};
    struct descant_owned of;
    struct descant_rows *batch;
    float g[2 * WIDTH] = {0, -1}, *block;
    struct descant_stats stats;
    int table;

    grows = true;
    of = shape();
    of.memory = 1000;
    ck_assert_int_eq(descant_owned_table(job, "t", &of, &table), DESCANT_INVALID);
    ck_assert_ptr_nonnull(strstr(descant_last_error(), "at least, not 1000"));
    of = shape();
    ck_assert_int_eq(descant_owned_table(job, "t", &of, &table), DESCANT_OK);
    ck_assert_ptr_nonnull(descant_alloc(job, "w", 10));
    descant_stats(job, &stats);
    ck_assert_uint_eq(stats.rows_live, 0);
    ck_assert_int_eq(descant_start(job), DESCANT_OK);
    ck_assert_int_eq(descant_rows_fetch(job, 0, rows, 2, &batch), DESCANT_OK);
    ck_assert_int_eq(descant_rows_wait(job, batch, &block), DESCANT_OK);
    descant_stats(job, &stats);
    ck_assert_uint_eq(stats.rows_live, 0);
    ck_assert_int_eq(descant_rows_push(job, batch, g, 1), DESCANT_OK);
    descant_stats(job, &stats);
    ck_assert_uint_eq(stats.rows_live, 2);
    size_t n;
    uint64_t at = 0, numbers[4];
    float records[4 * WIDTH];
    ck_assert_int_eq(descant_owned_next(job, 0, &at, 4, numbers, records, &n), DESCANT_OK);
    ck_assert(n == 2 && (numbers[0] == 0) != (numbers[1] == 0));
    at = numbers[0] = numbers[1] = 0;
    ck_assert_int_eq(descant_owned_next(job, 0, &at, 4, numbers, NULL, &n), DESCANT_OK);
    ck_assert_uint_eq(n, 2);
    ck_assert_uint_eq(numbers[0] + numbers[1], UINT64_MAX);
    ck_assert_int_eq(descant_owned_set(job, 0, rows, 2, records), DESCANT_OK);
    ck_assert_int_eq(descant_close(job), DESCANT_OK);
    ck_assert_int_eq(memory_live(), 0);
}
END_TEST

/* Rank 0 pushes to rows of rank 1, far more than is served while it does, and settles; rank 1 then
 * finds all of it in its memory. */
enum { PUSHES = 1500 };

static bool push_much(struct descant *job, int table, const uint64_t *rows)
{
    static float g[BATCH * WIDTH];
    struct descant_rows *batch;

    for (size_t k = 0; k < BATCH * WIDTH; k++)
        g[k] = -1;
    for (int k = 0; k < PUSHES; k++)
        if (descant_rows_fetch(job, table, rows, BATCH, &batch) != DESCANT_OK ||
            descant_rows_push(job, batch, g, 1) != DESCANT_OK)
            return false;
    return descant_rows_settle(job) == DESCANT_OK;
}

static bool has_all(struct descant *job, int table)
{
    static float records[BATCH * WIDTH];
    uint64_t at = 0, numbers[BATCH];
    size_t n;

    if (descant_owned_next(job, table, &at, BATCH, numbers, records, &n) != DESCANT_OK ||
        n != BATCH)
        return false;
    for (size_t k = 0; k < BATCH * WIDTH; k++)
        if (!(records[k] >= PUSHES && records[k] <= PUSHES))
            return false;
    return true;
}

static bool copies;             /* rank 0 has them, of all that it pushes to */

static int settle(int rank)
{
    struct descant *job = open_job(address, "shadow-ma", rank, 2);
    struct descant_owned of = shape();
    uint64_t rows[BATCH];
    int table;

    of.rows = 4 * BATCH;
    of.spread = 0;
    of.age = copies ? 100 : 0;
    for (uint64_t k = 0; k < BATCH; k++)
        rows[k] = 2 * k + 1;
    descant_alloc(job, "w", 10);
    int ranks = 0;
    if (descant_owned_ranks(job, &ranks) != DESCANT_OK || ranks != 2 ||
        descant_owned_table(job, "rows", &of, &table) != DESCANT_OK ||
        descant_rows_settle(job) != DESCANT_ORDER || descant_start(job) != DESCANT_OK)
        return 2;
    if (rank == 0) {
        if (!push_much(job, table, rows))
            return 3;
        page->go_on = 1;
    }
    while (!page->go_on)
        usleep(100);
    if (rank == 1 && !has_all(job, table))
        return 4;
    page->steps[rank] = 1;
    while (!page->steps[1 - rank])
        usleep(100);
    if (descant_finish(job, DESCANT_FINAL_MEAN) != DESCANT_OK ||
        descant_rows_settle(job) != DESCANT_OK)
        return 5;
    struct descant_stats s;
    if (descant_stats(job, &s) != DESCANT_OK || s.rows_stall_ns > 0)
        return 7;                       /* a thread that makes no steps does not stall */
    return descant_close(job) == DESCANT_OK ? 0 : 6;
}

START_TEST(what_is_settled_is_in_the_rows)
{
    prepare(true);
    copies = _i;
    for (int k = 0; k < 2; k++) {
        FILE *out;
        pids[k] = fork_saying(&out, SIGKILL);
        if (pids[k] == 0) {
            dup2(fileno(out), STDERR_FILENO);
            _exit(settle(k));
        }
    }
    need_end(0, 0);
    need_end(1, 0);
}
END_TEST

START_TEST(there_is_no_port_after_the_last)
{
    struct descant *job = open_job("tcp:127.0.0.1:65535", "shadow-ma", 0, 1);
    struct descant_owned of = shape();
    int table;

    ck_assert_ptr_nonnull(descant_alloc(job, "w", 10));
    ck_assert_int_eq(descant_owned_table(job, "rows", &of, &table), DESCANT_OK);
    ck_assert_int_eq(descant_start(job), DESCANT_BAD_ADDRESS);
    ck_assert_ptr_nonnull(strstr(descant_last_error(), "no port after 65535: give rows=PORT"));
    descant_close(job);
    ck_assert_int_eq(memory_live(), 0);
}
END_TEST

static int start_with(int rank, size_t width)
{
    struct descant *job = open_job(address, "shadow-ma", rank, 2);
    struct descant_owned of = shape();
    int table;

    of.width = width;
    descant_alloc(job, "w", 10);
    if (descant_owned_table(job, "rows", &of, &table) != DESCANT_OK)
        return 1;
    descant_status status = descant_start(job);
    descant_close(job);
    return 10 + (int)status;
}

START_TEST(tables_that_differ_are_refused)
{
    FILE *out;

    prepare(true);
    for (int k = 0; k < 2; k++) {
        pid_t pid = fork_saying(&out, SIGKILL);
        if (pid == 0)
            _exit(start_with(k, (size_t)(5 + k)));
        pids[k] = pid;
    }
    need_end(0, 10 + DESCANT_MISMATCH);
    need_end(1, 10 + DESCANT_MISMATCH);
}
END_TEST

START_TEST(a_star_has_no_owners)
{
    prepare(true);
    strcat(address, ",star");
    FILE *out;
    pid_t hub = fork_saying(&out, SIGKILL);
    if (hub == 0) {
        struct descant_options o = descant_options_default();
        struct descant *job;
        o.job = address;
        o.hub = 1;
        o.size = 1;
        _exit(descant_open(&job, &o) != DESCANT_OK || descant_start(job) != DESCANT_OK);
    }
    struct descant *job = open_job(address, "shadow-ma", 0, 1);
    struct descant_owned of = shape();
    int table;
    ck_assert_int_eq(descant_owned_table(job, "rows", &of, &table), DESCANT_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(descant_last_error(), "star"));
    kill(hub, SIGKILL);
    descant_close(job);
}
END_TEST

int main(void)
{
    const char *many = getenv("MOVES_MANY");
    int movings = many ? atoi(many) : few(2, 1);
    int deaths = many ? atoi(many) : few(2, 1);
    TCase *jobs = new_case("jobs", 120), *moving = new_case("moves", 120),
          *refused = new_case("refused", 60);

    steps = few(60, 20);
    find_self();
    tcase_add_loop_test(jobs, all_that_is_pushed_arrives_once, few_threads(0, 9), few(20, 12));
    tcase_add_test(jobs, a_table_that_grows_is_parted_by_shares);
    tcase_add_loop_test(jobs, copies_lose_nothing, few_threads(0, 3), few(8, few_threads(6, 5)));
    tcase_add_test(jobs, one_that_comes_late_owns_none);
    tcase_add_loop_test(jobs, an_owner_that_closes_early_ends_it_for_all, 0, few_threads(2, 1));
    tcase_add_test(jobs, one_without_rows_parts_alone);
    tcase_add_loop_test(jobs, an_owner_that_is_killed_ends_it_for_all, 0, few(3, 1));
    tcase_add_loop_test(jobs, a_trainer_that_is_killed_leaves_a_table_that_grows, 0, few(3, 1));
    tcase_add_test(refused, a_table_that_grows_has_rows_of_any_number);
    tcase_add_loop_test(jobs, what_is_settled_is_in_the_rows, 0, few_threads(2, 1));
    tcase_add_loop_test(moving, rows_go_where_ranks_are, 0, movings);
    tcase_add_loop_test(moving, replicas_take_the_rows_of_one_that_is_killed, 1, 1 + deaths);
    tcase_add_test(refused, rows_that_cannot_move_are_refused);
    tcase_add_test(refused, calls_that_cannot_be_are_refused);
    tcase_add_test(refused, tables_that_differ_are_refused);
    tcase_add_test(refused, there_is_no_port_after_the_last);
    tcase_add_test(refused, a_star_has_no_owners);
    return run_cases(jobs, moving, refused, NULL);
}
