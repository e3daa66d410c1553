/* SPDX-License-Identifier: MIT */
/* descant train with tables whose rows have owners: alone, where each number must be the same as
 * with tables in memory, and as real processes over TCP. */
#include "harness/tcp.h"
#include "harness/training.h"
#include "owners/moves.h"
#include "run/ahead.h"
#include "run/feed.h"
#include "train/trainer.h"

enum { TRAINERS = 3 };

static pid_t pids[TRAINERS];

/* --- how far ahead --- */

START_TEST(late_batches_are_asked_for_earlier)
{
    int wrong = 0;
    for (int most = 0; most <= AHEAD_MOST; most++)
        for (int depth = 0; depth <= most; depth++)
            for (uint64_t waited = 0; waited <= 20000; waited += 100)
                for (int batches = 0; batches <= 2 * AHEAD_LEARN; batches += AHEAD_LEARN / 2)
                    for (int late = 0; late < 10; late++) {
                        struct ahead_seen seen = {1000000, waited, batches, late};
                        bool waits = waited > 7812;
                        bool soon = depth > 0 && batches >= 256 && 128 * late <= batches;
                        wrong += ahead_depth(depth, &seen, most) !=
                                 depth + (waits ? depth < most : -soon);
                    }
    ck_assert_int_eq(wrong, 0);
}
END_TEST

/* Where workers wait for each other one batch stays for the last of them: with a batch a
 * block, all others hold one in hand, that which is next, and those that are further ahead. */
START_TEST(the_last_worker_has_a_batch)
{
    struct train_options o = {.rows_ahead = AHEAD_MOST};
    for (o.workers = 1; o.workers <= FEED_BLOCKS; o.workers++) {
        o.plan_gathers = false;
        ck_assert_int_eq(owned_most_ahead(&o), AHEAD_MOST);
        o.plan_gathers = true;
        int most = owned_most_ahead(&o);
        ck_assert_int_ge(most, -1);
        ck_assert_int_lt((o.workers - 1) * (2 + most), FEED_BLOCKS);
    }
    o.workers = 2;
    o.rows_ahead = 1;
    ck_assert_int_eq(owned_most_ahead(&o), 1);
}
END_TEST

/* Batch by batch: what was waited, whether the next one's rows came late, and the time. */
struct counted {
    uint64_t waited_ns, now_ns;
    bool late;
};

/* As it is said: the first AHEAD_LOOK batches do not count, nor those that were asked for with the
 * depth before; looks after each AHEAD_LOOK others; half is forgotten after AHEAD_LEARN. */
static int depth_by(const struct counted *all, int n, int most)
{
    int depth = 1, last = AHEAD_LOOK;
    uint64_t old_ns = 0, old_waited = 0;
    for (int look = 2 * AHEAD_LOOK; look <= n; look += AHEAD_LOOK) {
        struct ahead_seen seen = {.of_ns = old_ns + all[look - 1].now_ns - all[last - 1].now_ns,
                                  .waited_ns = old_waited, .batches = look - last};
        for (int k = last; k < look; k++) {
            seen.waited_ns += all[k].waited_ns;
            seen.late += all[k].late;
        }
        int next = ahead_depth(depth, &seen, most);
        if (next != depth) {
            last = look += depth + 1;
            old_ns = old_waited = 0;
        } else if (look - last >= AHEAD_LEARN) {
            last = look;
            old_ns = seen.of_ns / 2;
            old_waited = seen.waited_ns / 2;
        }
        depth = next;
    }
    return depth;
}

/* Of two kinds: rows that are there are read in some time, and others take that and more. */
START_TEST(waited_time_is_counted)
{
    enum { BATCHES = 5 * AHEAD_LEARN / 2 };
    static struct counted all[BATCHES];
    struct rng rng;
    int grown = 0, fallen = 0;
    for (uint64_t seed = 0; seed < 200; seed++) {
        struct ahead_pace pace = {.depth = 1, .skip = AHEAD_LOOK};
        uint64_t now = 1 + seed, read = 0;
        int most = 1 + (int)(seed % 5), before = 1;
        rng_init(&rng, seed);
        for (int k = 0; k < BATCHES; k++) {
            bool ready = rng_next(&rng) % 4 > 0, late = rng_next(&rng) % (UINT64_C(5) << seed % 6) == 0;
            uint64_t took = 1000 + rng_next(&rng) % 1000;
            uint64_t more = ready || rng_next(&rng) % (1 + seed % 7) ? 0 : rng_next(&rng) % 90000;
            uint64_t began = now + rng_next(&rng) % 1000000;
            now = began + took + more;
            read = ready ? took : read;
            all[k] = (struct counted){took + more > read ? took + more - read : 0, now, late};
            struct ahead_met met = {ready, !late, began, now};
            ahead_count(&pace, &met, most);
            if (pace.depth != before || k % 50 == 0)
                ck_assert_int_eq(pace.depth, depth_by(all, k + 1, most));
            grown += pace.depth > before;
            fallen += pace.depth < before;
            before = pace.depth;
        }
    }
    ck_assert_msg(grown > 50 && fallen > 20, "%d and %d", grown, fallen);
}
END_TEST

/* A pause of a second before the first look, or rows that are only read slowly, deepen nothing; 2 %
 * of the time does, at each look, but for batches that were asked for before the last one. */
START_TEST(only_waits_deepen)
{
    const uint64_t ms = 1000000;
    for (int kind = 0; kind < 3; kind++) {
        struct ahead_pace pace = {.depth = 1, .skip = AHEAD_LOOK};
        uint64_t now = ms;
        for (int k = 0; k < 4 * AHEAD_LOOK; k++) {
            bool waits = kind == 2 && k >= 2 * AHEAD_LOOK;
            uint64_t began = now + ms, wait = kind == 0 && k == 3 ? 1000 * ms : waits ? ms / 50 : 0;
            now = began + (kind == 1 ? ms : 0) + wait;
            struct ahead_met met = {kind == 1, false, began, now};
            ahead_count(&pace, &met, AHEAD_MOST);
            ck_assert_int_eq(pace.depth, 1 + (kind == 2 && k + 1 >= 3 * AHEAD_LOOK));
        }
    }
}
END_TEST

/* Waits that end with the first batch that is asked for with the new depth deepen once, from
 * whatever depth. */
START_TEST(a_new_depth_is_judged_by_its_own_batches)
{
    for (int depth = 0; depth < AHEAD_MOST; depth++) {
        struct ahead_pace pace = {.depth = depth};
        for (uint64_t k = 0; k < 100; k++) {
            bool waits = k < AHEAD_LOOK + (uint64_t)depth + 1;
            struct ahead_met met = {!waits, false, 1000 * (k + 1), 1000 * (k + 1) + 500 * waits};
            ahead_count(&pace, &met, AHEAD_MOST);
        }
        ck_assert_int_eq(pace.depth, depth + 1);
    }
}
END_TEST

/* Rows that come long before they are needed are asked for later, step by step. */
START_TEST(rows_that_wait_are_asked_for_later)
{
    struct ahead_pace pace = {.depth = 4, .skip = AHEAD_LOOK};
    int until = AHEAD_LOOK + AHEAD_LEARN, depth = 4;
    for (int k = 1; k < 6 * AHEAD_LEARN; k++) {
        struct ahead_met met = {true, true, 1000 + 10 * (uint64_t)k, 1001 + 10 * (uint64_t)k};
        ahead_count(&pace, &met, AHEAD_MOST);
        if (k == until) {
            until += depth > 0 ? depth + 1 + AHEAD_LEARN : AHEAD_LEARN;
            depth -= depth > 0;
        }
        ck_assert_int_eq(pace.depth, depth);
    }
    ck_assert_int_eq(depth, 0);
}
END_TEST

/* --- one trainer --- */

static const struct {
    int model, dense, rows;
    double table_lr;
} alone[] = {
    {MODEL_DLRM, OPTIMIZER_ADAGRAD, ROWS_ADAGRAD, 0},
    {MODEL_DLRM, OPTIMIZER_ADAM, ROWS_ROWWISE_ADAGRAD, 0.02},
    {MODEL_DLRM, OPTIMIZER_SGD, ROWS_SGD, 0.02},
    {MODEL_FM, OPTIMIZER_ADAGRAD, ROWS_ADAGRAD, 0},
    {MODEL_LINEAR, OPTIMIZER_SGD, ROWS_ADAGRAD, 0.1},
};

static struct train_result with_tables(struct train_options *o, int tables)
{
    struct train_result result;
    o->tables = tables;
    ck_assert_msg(train(o, &result) == 0, "%s", said);
    return result;
}

START_TEST(one_trainer_has_the_same_bits)
{
    struct train_options o = small();
    o.sync = "none";
    o.trainers = o.workers = 1;
    o.eval = held_out;
    o.model = alone[_i].model;
    o.optimizer.kind = (enum optimizer_kind)alone[_i].dense;
    o.optimizer.rows = (enum row_optimizer_kind)alone[_i].rows;
    o.table_lr = alone[_i].table_lr;
    struct train_result a = with_tables(&o, TABLES_REPLICATE), b = with_tables(&o, TABLES_SHARD);
    ck_assert_uint_eq(b.seen.n, ROWS);
    ck_assert_msg(a.seen.loss >= b.seen.loss && a.seen.loss <= b.seen.loss, "%.17g, %.17g",
                  a.seen.loss, b.seen.loss);
    ck_assert_msg(a.held_out.loss >= b.held_out.loss && a.held_out.loss <= b.held_out.loss,
                  "%.17g, %.17g", a.held_out.loss, b.held_out.loss);
}
END_TEST

/* They share the rows. `auto` is a copy on one machine. */
START_TEST(trainers_of_a_machine)
{
    struct train_options o = small();
    o.trainers = o.workers = 2;
    o.eval = held_out;
    o.sync = _i ? "bsp" : "shadow-easgd";
    struct train_result a = with_tables(&o, TABLES_SHARD);
    ck_assert(strstr(said, "stall for rows"));
    ck_assert_uint_eq(a.seen.n, ROWS);
    ck_assert(isfinite(a.held_out.loss));
    ck_assert(_i || a.held_out.loss < best + 0.12);
    with_tables(&o, TABLES_AUTO);
    ck_assert(!strstr(said, "stall for rows"));
}
END_TEST

static struct train_options of_job(void)
{
    static char job[300];
    struct train_options o = small();
    struct tcp_options at;
    tcp_test_address(&at, "127.0.0.1", TRAINERS);
    snprintf(job, sizeof job, "tcp:127.0.0.1:%s,ranks=%d,dead=5s", at.port, TRAINERS);
    o.job = job;
    o.trainers = 0;
    o.over_tcp = true;
    o.tables = TABLES_SHARD;
    o.workers = 2;
    o.log = log_file;
    o.log_every = 0.05;
    return o;
}

/* Each id has a row; with --rows-admit those that come often. */
START_TEST(tables_grow)
{
    struct train_options o = small();
    o.sync = "none";
    o.trainers = o.workers = 1;
    o.eval = held_out;
    o.log = log_file;
    o.rows = -1;
    o.table_memory = 64 << 20;
    struct train_result a = with_tables(&o, TABLES_SHARD);
    double live = logged("summary", "rows_live");
    ck_assert_double_gt(live, 2000);
    ck_assert(logged("summary", "rows_evicted") < 1);
    o.rows_admit = 0.05;
    struct train_result b = with_tables(&o, TABLES_SHARD);
    ck_assert_double_lt(logged("summary", "rows_live"), live * 0.85);
    ck_assert_double_gt(logged("summary", "rows_refused"), 1000);
    ck_assert(isfinite(b.held_out.loss));
    ck_assert_double_lt(a.held_out.loss, best + 0.15);
    o.table_memory = 1 << 16;
    ck_assert_int_ne(train(&o, &b), 0);
    says("table 'train.tables'");
}
END_TEST

START_TEST(what_cannot_be_is_said)
{
    struct train_options o = small();
    struct train_result result;
    o.tables = TABLES_SHARD;
    o.trainers = 1;
    o.model = MODEL_LINEAR;
    o.optimizer.rows = ROWS_FTRL;
    ck_assert_int_ne(train(&o, &result), 0);
    says("--table-optimizer can be sgd, adagrad and rowwise-adagrad");
    o = small();
    o.rows = -1;
    o.table_memory = 1 << 30;
    ck_assert_int_ne(train(&o, &result), 0);
    says("--rows grow needs --tables shard");
    o.tables = TABLES_SHARD;
    o.table_memory = 0;
    ck_assert_int_ne(train(&o, &result), 0);
    says("--rows grow needs --table-memory");
    o = small();
    o.tables = TABLES_SHARD;
    o.rows_shares = "1,x";
    ck_assert_int_eq(train(&o, &result), 2);
    says("--rows-shares 1,x: give a number for each of the first ranks");
    o.rows_shares = NULL;
    o.rows = -1;
    o.table_memory = 5;
    ck_assert_int_ne(train(&o, &result), 0);
    says("descant: --table-memory: table 'train.tables': a table that grows needs memory");
    ck_assert(!strstr(strstr(said, "that grows") + 1, "that grows"));   /* once */
    o = of_job();
    o.on_term = ON_TERM_LEAVE;
    o.rows_move = ROWS_MOVE_NO;
    ck_assert_int_ne(train(&o, &result), 0);
    says("--on-term leave needs --tables replicate, or rows that move (--rows-move yes)");
    o = of_job();
    o.rows_replica = 5;
    o.rows_move = ROWS_MOVE_NO;
    ck_assert_int_ne(train(&o, &result), 0);
    says("--rows-replica: rows do not move here; it needs a job over tcp");
    o.rows_move = ROWS_MOVE_YES;
    o.rows_replica = 0.05;
    ck_assert_int_ne(train(&o, &result), 0);
    says("--rows-replica is 0, or 0.1 seconds or more");
}
END_TEST

/* Over TCP rows move, where they can and nobody says no. */
START_TEST(rows_move_where_they_can)
{
    struct train_options o = of_job();
    ck_assert(owned_moves(&o));
    o.tables = TABLES_AUTO;
    ck_assert(owned_moves(&o));
    o.rows_age = 0.1;
    o.rows = -1;
    ck_assert(owned_moves(&o));
    o = of_job();
    o.over_tcp = false;
    ck_assert(!owned_moves(&o));
    o.rows_move = ROWS_MOVE_YES;
    ck_assert(owned_moves(&o));
    o.tables = TABLES_REPLICATE;
    ck_assert(!owned_moves(&o));
    o = of_job();
    o.rows_move = ROWS_MOVE_NO;
    ck_assert(!owned_moves(&o));
    o = of_job();
    o.job_ranks = 1025;
    ck_assert(!owned_moves(&o));
}
END_TEST

/* --rows-move auto looks at no width: even the widest row, of fm with its state, can move. */
START_TEST(no_row_is_too_wide_to_move)
{
    const struct option *o = option_find(train_settings, n_train_settings, "width", 5);
    ck_assert_double_le(2 * (o->high + 1), MOVES_WIDEST);
}
END_TEST

/* The trainer looks at shares before it opens the job, by a rule that is the library's. */
START_TEST(shares_are_read_as_the_library_reads_them)
{
    static const char *const texts[] = {"", "0", "1", "0,0", "0,1", "1,", ",1", "1,,1", "1;2",
                                        "-1,2", "nan", "inf", "1e6", "1e7", "1 2", "1,x", "2,1,1", "0.5,0"};
    char many[2 * OWNED_SLICES + 8] = "1";
    double shares[OWNED_SLICES];
    for (int i = 0; i < N(texts); i++)
        ck_assert_msg(train_shares_good(texts[i]) ==
                      (owned_shares(texts[i], shares, OWNED_SLICES) > 0), "'%s'", texts[i]);
    for (int n = 1; n <= OWNED_SLICES + 1; n++) {
        ck_assert_int_eq(train_shares_good(many), n <= OWNED_SLICES);
        ck_assert_int_eq(owned_shares(many, shares, OWNED_SLICES) > 0, n <= OWNED_SLICES);
        strcat(many, ",1");
    }
}
END_TEST

/* --- hosts --- */

static void begin_all(struct train_options *o)
{
    for (int k = 0; k < TRAINERS; k++) {
        char number[2] = {(char)('0' + k), 0};
        setenv("RANK", number, 1);
        setenv("WORLD_SIZE", "3", 1);
        pids[k] = begin(o);
    }
}

static const char *const plans[] = {"shadow-ma,wire=bf16", "diloco,every=5", "allreduce", "none"};
static const char *const wires[] = {"bf16, of the plan", "f32", "bf16", "q8"};

START_TEST(hosts_train_one_model)
{
    struct train_options o = of_job();
    o.sync = plans[_i];
    o.rows_wire = _i;
    o.rows = _i == 3 ? -1 : o.rows;
    o.table_memory = 64 << 20;
    o.rows_ahead = _i == 2 ? 0 : _i == 3 ? AHEAD_MOST : 2;
    o.rows_age = _i == 2 ? 0.2 : 0;
    o.rows_shares = _i == 1 ? "3,1" : NULL;     /* the third owns none */
    o.eval = held_out;
    o.epochs = 2;
    begin_all(&o);
    for (int k = 0; k < TRAINERS; k++)
        ck_assert_msg(end_within(pids[k], 50) == 0, "trainer %d: %s: %s", k, wires[_i], said);
    double loss = logged("summary", "eval_loss"), all = logged("summary", "job_examples");
    if (o.rows < 0) {                   /* all hosts', as they have told last */
        double own = logged("summary", "rows_live"), rows = logged("summary", "job_rows_live");
        ck_assert_msg(rows > 1.5 * own, "%.0f of %.0f", own, rows);
        says("rows of tables");
        says("wire of rows               q8");
    }
    if (o.rows_age > 0)
        says("age of copied rows         0.2 s");
    ck_assert_msg(all >= 2 * ROWS && all <= 2 * ROWS, "%.0f examples", all);
    /* under "none" the dense part is one trainer's */
    ck_assert_msg(loss > 0 && loss < best + (_i == 3 ? 0.2 : 0.12), "loss %g, %g is best", loss,
                  best);
    ck_assert(logged("interval", "stall_rows") >= 0);
    ck_assert(logged("summary", "stall_rows") >= 0);
    ck_assert((logged("summary", "rows_cached") > 0) == (_i == 2));
    ck_assert(logged("summary", "rows_served") > 0);
    ck_assert((logged("host", "rows_served") > 0) == (_i != 1));    /* of the third */
    says("rows served");
}
END_TEST

/* All choose by the same numbers: so little may be sent that copies would be too late. */
START_TEST(hosts_choose_alike)
{
    struct train_options o = of_job();
    o.tables = TABLES_AUTO;
    o.quiet = false;
    o.sync_rate = _i ? 1 : 0;
    begin_all(&o);
    for (int k = 0; k < TRAINERS; k++)
        ck_assert_msg(end_within(pids[k], 50) == 0, "trainer %d: %s", k, said);
    ck_assert((logged("summary", "rows_served") > 0) == _i);
    says(_i ? "--tables auto is shard: rows of copies would need"
            : "--tables auto is replicate: each row can go to all hosts in");
}
END_TEST

/* One host that has less memory, as it were. */
START_TEST(hosts_that_choose_otherwise_are_told_what_to_give)
{
    struct train_options o = of_job();
    for (int k = 0; k < TRAINERS; k++) {
        char number[2] = {(char)('0' + k), 0};
        setenv("RANK", number, 1);
        setenv("WORLD_SIZE", "3", 1);
        o.tables = k == _i ? TABLES_SHARD : TABLES_AUTO;
        pids[k] = begin(&o);
    }
    for (int k = 0; k < TRAINERS; k++)
        ck_assert_int_eq(end_within(pids[k], 40), 1);
    says("give all of them --tables shard, or --tables replicate");
}
END_TEST

START_TEST(shares_for_ranks_that_are_not_there)
{
    struct train_options o = of_job();
    o.rows_shares = "1,1,1,1";
    begin_all(&o);
    for (int k = 0; k < TRAINERS; k++)
        ck_assert_int_eq(end_within(pids[k], 40), 1);
    says("--rows-shares) has shares for 4 ranks, and the job begins with 3");
}
END_TEST

/* Its rows are gone, and so is the job; all say whose they were. */
START_TEST(an_owner_that_is_killed_ends_the_job)
{
    struct train_options o = of_job();
    o.epochs = 1000000;
    begin_all(&o);
    wait_examples(1000);
    kill_all(pids[1]);
    for (int k = 0; k < TRAINERS; k += 2)
        ck_assert_int_eq(end_within(pids[k], 40), 1);
    says("rank 1");
}
END_TEST

/* Whose rows stay cannot leave before the others. */
START_TEST(all_end_when_one_is_told_to)
{
    struct train_options o = of_job();
    o.rows_move = ROWS_MOVE_NO;
    o.epochs = 1000000;
    begin_all(&o);
    wait_heeding(pids, TRAINERS);
    wait_examples(1000);
    kill(pids[2], SIGTERM);
    for (int k = 0; k < TRAINERS; k++)
        ck_assert_msg(end_within(pids[k], 40) == 0, "trainer %d: %s", k, said);
    says("all trainers end");
}
END_TEST

int main(void)
{
    find_self();
    make_clicks();
    TCase *tests = new_case("train_owned", 120);
    tcase_add_checked_fixture(tests, set_up_training, remove_folder);
    tcase_add_test(tests, late_batches_are_asked_for_earlier);
    tcase_add_test(tests, the_last_worker_has_a_batch);
    tcase_add_test(tests, waited_time_is_counted);
    tcase_add_test(tests, only_waits_deepen);
    tcase_add_test(tests, a_new_depth_is_judged_by_its_own_batches);
    tcase_add_test(tests, rows_that_wait_are_asked_for_later);
    tcase_add_loop_test(tests, one_trainer_has_the_same_bits, 0, few(N(alone), few_threads(1, 0)));
    tcase_add_loop_test(tests, trainers_of_a_machine, 0, few(2, 1));
    tcase_add_test(tests, tables_grow);
    tcase_add_test(tests, what_cannot_be_is_said);
    tcase_add_test(tests, rows_move_where_they_can);
    tcase_add_test(tests, no_row_is_too_wide_to_move);
    tcase_add_test(tests, shares_are_read_as_the_library_reads_them);
    tcase_add_loop_test(tests, hosts_train_one_model, few(0, 1), few(N(plans), 3));
    tcase_add_loop_test(tests, hosts_choose_alike, 0, few(2, few_threads(1, 0)));
    tcase_add_loop_test(tests, hosts_that_choose_otherwise_are_told_what_to_give, 0, few_threads(2, 1));
    tcase_add_test(tests, shares_for_ranks_that_are_not_there);
    tcase_add_test(tests, an_owner_that_is_killed_ends_the_job);
    tcase_add_test(tests, all_end_when_one_is_told_to);
    return run_cases(tests, NULL);
}
