/* SPDX-License-Identifier: MIT */
/* How often the shadow looks while a round waits for others: a job "self" whose fabric is told that
 * nobody wakes it, and that never gets on while it is stuck. And when it rests: a round takes ROUND
 * pieces of a millisecond, and then is paid for. */
#include <check.h>

#include "harness/suite.h"
#include "sync/job.h"

enum { LOOK_NS = 2000000, STUCK_NS = 500000000, TRIES = 5 };
enum { ROUND = 30, ROUNDS = 3, MOST_ROUNDS = 7, PIECE_NS = 1000000 };
#define SHARE 0.1       /* of a core */
#define OWED_S (1e-9 * ROUND * PIECE_NS / SHARE)

static const struct fabric_type *inner;
static struct fabric_type type;
static _Atomic bool stuck;
static _Atomic int looks, waits;

static enum fabric_progress count_poll(struct fabric *f, struct fabric_part *part)
{
    atomic_store(&f->machine_threads, 1000);    /* its budget: no core is to spare */
    if (!atomic_load(&stuck))
        return inner->poll(f, part);
    atomic_fetch_add(&looks, 1);
    return FABRIC_WAITING;
}

static void count_wait(struct fabric *f, uint64_t until_ns)
{
    atomic_fetch_add(&waits, 1);
    if (atomic_load(&stuck))
        clock_sleep_until(clock_now_ns() + 500000);     /* as over mpi, whatever the bound */
    else
        inner->wait(f, until_ns);
}

/* When pieces were done: written by the shadow before it counts them. */
static uint64_t done_ns[MOST_ROUNDS * ROUND];
static int rounds = ROUNDS;     /* set while no shadow runs, */
static int asked_rounds = ROUNDS;       /* and after how many peers no longer ask */
static _Atomic int n_done;
static int left;                /* of a round's pieces; the shadow's own, as what follows */
static bool opened;             /* a round, */
static uint64_t polled_ns, rest_ns;     /* the latest poll, and the longest time without one */
static uint64_t asked_ns;       /* the work that peers ask of it at each look between rounds, */
static bool called;             /* and whether they call it to a round; set while no shadow runs */
static int asks;                /* the shadow's own while it runs */

static void work_for(uint64_t ns)
{
    for (uint64_t start = clock_thread_cpu_ns(); clock_thread_cpu_ns() - start < ns;)
        ;
}

static descant_status begin_work(struct fabric *f, const struct exchange *exchange)
{
    opened = true;
    left = exchange->kind == EXCHANGE_MEAN && !exchange->final ? ROUND : 0;
    return inner->begin(f, exchange);
}

static enum fabric_progress work_poll(struct fabric *f, struct fabric_part *part)
{
    int n = atomic_load(&n_done);
    uint64_t now = clock_now_ns();
    bool between = !opened && n > 0 && n < rounds * ROUND;
    if (n > 0 && n < rounds * ROUND && now - polled_ns > rest_ns)
        rest_ns = now - polled_ns;
    polled_ns = now;
    atomic_store(&f->machine_threads, 1000);
    if (between && asked_ns > 0 && n <= asked_rounds * ROUND) {
        work_for(asked_ns);
        asks++;
    }
    if (left == 0 || n == rounds * ROUND) {
        enum fabric_progress progress = inner->poll(f, part);
        opened &= progress != FABRIC_DONE;
        return between && called && progress == FABRIC_WAITING ? FABRIC_CALLED : progress;
    }
    work_for(PIECE_NS);
    left--;
    done_ns[n] = clock_now_ns();
    atomic_store(&n_done, n + 1);
    return FABRIC_WORKED;
}

typedef enum fabric_progress poll_fn(struct fabric *, struct fabric_part *);

static struct descant *open_with(double sync_cpu, uint64_t look_ns, poll_fn *poll)
{
    struct descant_options o = descant_options_default();
    struct descant *job;
    o.job = "self";
    o.plan = "shadow-ma";
    o.sync_cpu = sync_cpu;
    ck_assert_int_eq(descant_open(&job, &o), DESCANT_OK);
    inner = job->fabric->type;
    type = *inner;
    type.begin = begin_work;
    type.poll = poll;
    type.wait = count_wait;
    type.look_ns = look_ns;
    job->fabric->type = &type;
    ck_assert_ptr_nonnull(descant_alloc(job, "w", 100));
    ck_assert_int_eq(descant_start(job), DESCANT_OK);
    return job;
}

static void close_it(struct descant *job)
{
    ck_assert_int_eq(descant_finish(job, DESCANT_FINAL_LOCAL), DESCANT_OK);
    descant_close(job);
}

/* From the first piece of the round before. */
static double seconds_to(int round)
{
    return (double)(done_ns[round * ROUND] - done_ns[(round - 1) * ROUND]) * 1e-9;
}

/* Until all rounds are done: the seconds from the first one's first piece to the second one's. */
static double make_rounds(uint64_t asked, bool calls)
{
    atomic_store(&n_done, 0);
    rest_ns = 0;
    asks = 0;
    asked_ns = asked;
    called = calls;
    struct descant *job = open_with(SHARE, 0, work_poll);
    while (atomic_load(&n_done) < rounds * ROUND) {
        ck_assert_int_eq(descant_step(job), DESCANT_OK);
        clock_sleep_until(clock_now_ns() + 1000000);
    }
    close_it(job);
    return seconds_to(1);
}

/* The seconds that its round was stuck; counts are of these. */
static double look_while_stuck(uint64_t look_ns, double sync_cpu)
{
    struct descant *job = open_with(sync_cpu, look_ns, count_poll);
    atomic_store(&stuck, true);
    atomic_store(&looks, 0);
    do {
        ck_assert_int_eq(descant_step(job), DESCANT_OK);
        clock_sleep_until(clock_now_ns() + 1000000);
    } while (atomic_load(&looks) == 0);         /* a round has begun */
    clock_sleep_until(clock_now_ns() + 50000000);
    atomic_store(&looks, 0);
    atomic_store(&waits, 0);
    uint64_t start = clock_now_ns();
    clock_sleep_until(start + STUCK_NS);
    double seconds = (double)(clock_now_ns() - start) * 1e-9;
    atomic_store(&stuck, false);
    close_it(job);
    return seconds;
}

/* One in LOOK_NS / 2 % = 0.1 s, and one for what was saved up. */
START_TEST(looks_are_paid_for)
{
    double seconds = look_while_stuck(LOOK_NS, 0);

    ck_assert_int_le(atomic_load(&looks), (int)(seconds / 0.1) + 2);
}
END_TEST

/* The rest that is owed, 15 ms, is shorter than a wait may grow to. Looks after sleeps that were
 * too long by that owe nothing, and wait. */
START_TEST(one_sleep_does_for_a_look)
{
    for (int tries = 0; tries < TRIES; tries++) {
        look_while_stuck(3 * LOOK_NS / 20, 0);
        if (atomic_load(&looks) > 5 && 2 * atomic_load(&waits) <= atomic_load(&looks))
            return;
    }
    ck_abort_msg("%d looks, %d waits", atomic_load(&looks), atomic_load(&waits));
}
END_TEST

START_TEST(looks_are_free_where_peers_wake_the_shadow)
{
    for (int tries = 0; tries < TRIES; tries++) {
        look_while_stuck(0, 0);
        if (atomic_load(&looks) > 10 && atomic_load(&waits) > 10)
            return;
    }
    ck_abort_msg("%d looks, %d waits", atomic_load(&looks), atomic_load(&waits));
}
END_TEST

START_TEST(looks_are_free_under_a_budget_that_was_given)
{
    for (int tries = 0; tries < TRIES; tries++) {
        look_while_stuck(LOOK_NS, 0.02);
        if (atomic_load(&looks) > 10)
            return;
    }
    ck_abort_msg("%d looks", atomic_load(&looks));
}
END_TEST

/* OWED_S is what the pieces would take if each were paid for by itself. While a round is paid for,
 * peers are answered as soon as after a single piece. */
START_TEST(a_round_is_made_at_once_and_then_paid_for)
{
    for (int tries = 0; tries < TRIES; tries++) {
        double both_s = make_rounds(0, false);
        double round_s = (double)(done_ns[ROUND - 1] - done_ns[0]) * 1e-9;
        ck_assert_double_gt(both_s, 0.8 * OWED_S);
        if (round_s < 0.5 * both_s && (double)rest_ns * 1e-9 < 0.5 * both_s)
            return;
    }
    ck_abort_msg("rounds take as long as what they cost, or nobody is answered after them");
}
END_TEST

/* Peers ask at each look, and each answer costs more rest than a burst does; so all of the shadow's
 * rests are for answers, each as long as its own costs. */
START_TEST(peers_who_ask_put_a_round_off_once_more)
{
    double second_s, third_s, most;
    for (int tries = 0; tries < TRIES; tries++) {
        second_s = make_rounds(5 * PIECE_NS, false);
        third_s = seconds_to(2);
        most = SHARE * (second_s + third_s) / (5e-9 * PIECE_NS);
        ck_assert_int_le(asks, (int)most + ROUNDS);
        if (second_s < 3 * OWED_S && third_s < 3 * OWED_S)
            return;
    }
    ck_abort_msg("rounds begin %g and %g s after the last one", second_s, third_s);
}
END_TEST

/* The first round after that may still be late, for answers before it. */
START_TEST(answers_leave_no_debt)
{
    int tries = 0;

    rounds = MOST_ROUNDS;
    asked_rounds = MOST_ROUNDS - 3;
    do
        make_rounds(5 * PIECE_NS, false);
    while (seconds_to(MOST_ROUNDS - 1) > 1.5 * OWED_S && ++tries < TRIES);
    rounds = asked_rounds = ROUNDS;
    ck_assert_int_lt(tries, TRIES);
}
END_TEST

/* The second one begins at once, and the third one when the first is paid for. */
START_TEST(a_call_is_heeded_once_what_was_before_is_paid_for)
{
    for (int tries = 0; tries < TRIES; tries++) {
        double second_s = make_rounds(0, true);
        double third_s = (double)(done_ns[2 * ROUND] - done_ns[0]) * 1e-9;
        ck_assert_double_gt(third_s, 0.8 * OWED_S);
        if (second_s < 0.5 * OWED_S && third_s < 1.5 * OWED_S)
            return;
    }
    ck_abort_msg("calls wait until all is paid for");
}
END_TEST

int main(void)
{
    TCase *looking = new_case("shadow", 60);
    tcase_add_test(looking, looks_are_paid_for);
    tcase_add_test(looking, one_sleep_does_for_a_look);
    tcase_add_test(looking, looks_are_free_where_peers_wake_the_shadow);
    tcase_add_test(looking, looks_are_free_under_a_budget_that_was_given);
    tcase_add_test(looking, a_round_is_made_at_once_and_then_paid_for);
    tcase_add_test(looking, peers_who_ask_put_a_round_off_once_more);
    tcase_add_test(looking, answers_leave_no_debt);
    tcase_add_test(looking, a_call_is_heeded_once_what_was_before_is_paid_for);
    return run_cases(looking, NULL);
}
