/* SPDX-License-Identifier: MIT */
/* Items dealt to real processes, over TCP and MPI, under every kind of plan: each is done, and
 * once, whatever the trainers' speeds; those of a trainer that is killed, also of the
 * coordinator, are done by others; one that comes late gets its share.
 *
 * A trainer makes a few steps for each item, and notes on the page that it has. */
#include "harness/folder.h"
#include "harness/jobs.h"
#include "harness/mpi.h"
#include "harness/tcp.h"
#include "harness/values.h"
#include "harness/wait.h"

#include <math.h>
#include <pthread.h>

enum { N = 2000, MOST = 4, ITEMS = 200, MANY = 1500, STEPS = 4, SLOW = 10, KILLS = 12 };
#define STEP_NS UINT64_C(500000)

static struct deal_page {
    int items;                          /* set before the trainers begin */
    _Atomic int times[MANY];            /* that its steps were made */
    _Atomic int done[MOST];             /* by each trainer */
    _Atomic uint64_t last_ns[MOST];     /* when */
    _Atomic uint64_t longest_ns;        /* that an item took */
    _Atomic uint64_t slow_ns[MANY];        /* when the slow one did it; 0: another one did */
    _Atomic int rest;                   /* items that were done alone, in the end */
    _Atomic bool slowly;                /* all rest after each item */
} *page;

static char address[300];
static const char *plan;
static pid_t pids[MOST];
static float *model;
static int founders, slow, first, threads = 1, stops = -1;    /* stops: after a few items */
static uint64_t each;       /* items are units of a limit, and so many are taken at once; 0: not */

/* Each of several threads has a part of the model for itself, from w on. */
static bool is_made(struct descant *job, int rank, float *w, struct descant_items items, bool alone)
{
    int part = threads > 1 ? (int)(w - model) / (N / MOST) : 0;
    int end = threads > 1 ? (part + 1) * (N / MOST) : N;
    if (items.from >= items.to || items.to > (uint64_t)page->items ||
        items.to - items.from > (each ? each : 1))
        return false;
    uint64_t began = clock_now_ns();
    for (int k = 0; k < STEPS; k++) {
        for (int i = part * (N / MOST); i < end; i++)
            model[i] += 0.01f * (1 - model[i]);
        clock_sleep_until(clock_now_ns() + STEP_NS * (rank == slow ? SLOW : 1));
        if (!alone && descant_step(job) != DESCANT_OK)
            return false;
    }
    for (uint64_t item = items.from; item < items.to; item++)
        page->times[item]++;
    page->done[rank] += (int)(items.to - items.from);
    page->last_ns[rank] = clock_now_ns();
    if (rank == slow)
        page->slow_ns[items.from] = page->last_ns[rank];
    if (page->last_ns[rank] - began > page->longest_ns)
        page->longest_ns = page->last_ns[rank] - began;
    return (each ? descant_deal_spent(job, &items, true)
                 : descant_deal_done(job, items.from)) == DESCANT_OK;
}

/* Now and then units are given back. */
static descant_status take(struct descant *job, struct descant_items *items)
{
    static _Atomic int calls;
    uint64_t item = 0;
    descant_status status = each ? descant_deal_spend(job, 0.01, each, items)
                                 : descant_deal_take(job, 0.01, &item);
    if (!each && status == DESCANT_OK)
        *items = (struct descant_items){item, item + 1};
    if (!each || status != DESCANT_OK || items->from == DESCANT_NO_ITEM || calls++ % 10 != 5)
        return status;
    return descant_deal_spent(job, items, false) == DESCANT_OK ? DESCANT_TIMEOUT : DESCANT_ORDER;
}

struct worker {
    struct descant *job;
    float *w;
    int rank;
    bool good;
    pthread_t thread;
};

/* True: all have been dealt. */
static bool work_on(struct descant *job, int rank, float *w, bool alone)
{
    struct descant_items items = {0};

    for (;;) {
        descant_status status = take(job, &items);
        if (status == DESCANT_OK && items.from == DESCANT_NO_ITEM)
            return true;
        if (status == DESCANT_OK && !is_made(job, rank, w, items, alone))
            return false;
        page->rest += status == DESCANT_OK && alone;
        if (status != DESCANT_OK && status != DESCANT_TIMEOUT)
            return false;
        if (rank == stops && page->done[rank] > 3)
            return true;
        if (page->slowly && status == DESCANT_OK)
            clock_sleep_until(clock_now_ns() + 40 * STEP_NS);
    }
}

static void *work(void *of)
{
    struct worker *me = of;
    me->good = work_on(me->job, me->rank, me->w, false);
    descant_worker_done(me->job);
    return NULL;
}

/* In so many threads, whose steps may wait for each other. */
static bool work_in_threads(struct descant *job, int rank, float *w)
{
    struct worker workers[4];
    bool good = true;

    for (int k = 0; k < threads; k++) {
        workers[k] = (struct worker){.job = job, .w = w + k * (N / MOST), .rank = rank};
        pthread_create(&workers[k].thread, NULL, work, &workers[k]);
    }
    for (int k = 0; k < threads; k++) {
        pthread_join(workers[k].thread, NULL);
        good &= workers[k].good;
    }
    return good;
}

/* The first 10 were done before. */
static int train(int rank, int size)
{
    const struct descant_items before = {0, 10};
    struct descant *job = open_job(address, plan, rank, size);
    float *w = model = descant_alloc(job, "w", N);
    struct descant_items known[ITEMS];
    size_t n;

    if (descant_start(job) != DESCANT_OK ||
        (each && descant_deal_limit(job, 10, (uint64_t)page->items, each) != DESCANT_OK) ||
        (!each && descant_deal_begin(job, &before, 1) != DESCANT_OK) ||
        (!each && descant_deal_end(job, (uint64_t)page->items) != DESCANT_OK))
        return 2;
    if (each && (descant_deal_limit(job, 0, 1, 0) != DESCANT_INVALID ||
                 descant_deal_spend(job, 0, 0, known) != DESCANT_INVALID ||
                 descant_deal_spent(job, &(struct descant_items){4, 4}, 1) != DESCANT_INVALID))
        return 8;
    if (!work_in_threads(job, rank, w))
        return 3;
    if (descant_finish(job, DESCANT_FINAL_MEAN) != DESCANT_OK)
        return 4;
    if (rank == first && (descant_deal_rest(job) != DESCANT_OK ||
                          !work_on(job, rank, w, true)))
        return 5;
    if (rank == first && !each && (descant_deal_known(job, known, ITEMS, &n) != DESCANT_OK ||
                          n != 1 || known[0].from != 0 || known[0].to != (uint64_t)page->items))
        return 6;
    return descant_close(job) == DESCANT_OK ? 0 : 7;
}

static void begin(int rank)
{
    FILE *out;
    pid_t pid = fork_saying(&out, SIGKILL);

    if (pid == 0) {
        dup2(fileno(out), STDERR_FILENO);
        _exit(train(rank, founders));
    }
    pids[rank] = pid;
}

static void begin_all(const char *of_plan, int ranks, int items)
{
    struct tcp_options at;

    snprintf(said_file, sizeof said_file, "%s", in_folder("said"));
    unlink(said_file);
    tcp_test_address(&at, "127.0.0.1", MOST);
    snprintf(address, sizeof address, "tcp:127.0.0.1:%s,ranks=%d,dead=5s", at.port, MOST);
    page = share_memory(sizeof *page);
    page->items = items;
    plan = of_plan;
    founders = ranks;
    for (int k = 0; k < ranks; k++)
        begin(k);
}

#define AWAIT(condition) \
    WAIT_UNTIL(condition, "%d, %d, %d were done, %.2000s", page->done[0], page->done[1], \
               page->done[2], (read_said(), said))

static void end_all(int ranks, int but)
{
    for (int k = 0; k < ranks; k++) {
        if (k == but)
            continue;
        int status = end_of(pids[k]);
        ck_assert_msg(status == 0, "trainer %d ends with %d: %.2000s", k, status,
                      (read_said(), said));
    }
}

static int count_twice(void)
{
    int twice = 0;

    for (int i = 0; i < page->items; i++) {
        ck_assert_msg((page->times[i] > 0) == (i >= 10), "item %d was made %d times", i,
                      page->times[i]);
        twice += page->times[i] > 1;
    }
    return twice;
}

static int done_by_all(int ranks)
{
    int n = 0;

    for (int k = 0; k < ranks; k++)
        n += page->done[k];
    return n;
}

static const char *const plans[] = {"shadow-easgd", "shadow-ma", "easgd,every=4", "ma,every=2",
                                    "ma,every=2,quorum=2", "dasgd,every=4,delay=2",
                                    "dasgd-delta,every=4,delay=2", "diloco,every=4", "none"};
enum { PLANS = sizeof plans / sizeof *plans };

/* The slow one gets fewer: all end at the same time. */
START_TEST(each_item_is_done_once)
{
    slow = 1;
    begin_all(plans[_i], 3, ITEMS);
    end_all(3, -1);
    ck_assert_int_eq(count_twice(), 0);
    ck_assert_int_eq(page->rest, 0);
    for (int k = 0; k < 3; k++)
        ck_assert_int_gt(page->done[k], 0);
    uint64_t last = page->last_ns[1], other = page->last_ns[0];
    uint64_t most = 2 * page->longest_ns + UINT64_C(500000000);
    ck_assert_msg(last < other + most && other < last + most,
                  "the slow one did %d of %d, and ends %g s later", page->done[1], ITEMS,
                  ((double)last - (double)other) * 1e-9);
    int after = 0;
    for (int i = 0; i < ITEMS; i++)
        after += page->slow_ns[i] > other && page->slow_ns[i] > page->last_ns[2];
    ck_assert_msg(after <= 4, "the slow one did %d items after the others had ended", after);
}
END_TEST

START_TEST(each_unit_is_spent_once)
{
    static const char *const some[] = {"shadow-easgd", "ma,every=2", "none"};
    slow = 1;
    each = 3;
    begin_all(some[_i], 3, ITEMS);
    end_all(3, -1);
    ck_assert_int_eq(count_twice(), 0);
    ck_assert_int_eq(page->rest, 0);
    ck_assert_int_eq(done_by_all(3), ITEMS - 10);
}
END_TEST

/* A thread with an item waits, in its steps, for one that waits for an item. */
START_TEST(threads_that_wait_for_each_other_end)
{
    slow = -1;
    threads = 2 + _i % 2;
    begin_all(_i < 2 ? "ma,every=2" : "dasgd,every=4,delay=2", 2, 61 + _i);
    end_all(2, -1);
    ck_assert_int_eq(count_twice(), 0);
    ck_assert_int_eq(page->rest, 0);
}
END_TEST

/* It finishes with items in stock, and waits for the others. */
START_TEST(one_that_stops_early_holds_nobody_up)
{
    slow = -1;
    stops = _i ? 1 : 0;
    first = 2;
    begin_all("shadow-ma", 3, ITEMS);
    end_all(3, -1);
    ck_assert_int_eq(count_twice(), 0);
    ck_assert_int_eq(page->rest, 0);
    ck_assert_int_lt(page->done[stops], 20);
}
END_TEST

/* Also the coordinator; and at the end. */
START_TEST(what_a_dead_one_had_is_done)
{
    int dies = _i % 2 ? 2 : 0, at = _i % 4 < 2 ? ITEMS / 4 : ITEMS - 14;

    slow = dies;
    each = _i < 4 ? 0 : 3;
    first = 1;
    begin_all(_i % 3 ? "shadow-ma" : "dasgd-delta,every=4,delay=2", 3, ITEMS);
    AWAIT(done_by_all(3) >= at && page->done[dies] > 0);
    kill(pids[dies], SIGKILL);
    end_of(pids[dies]);
    end_all(3, dies);
    ck_assert_int_lt(count_twice(), ITEMS / 2);
}
END_TEST

/* Any but one is killed, at any moment, and comes again, over and over. */
START_TEST(deaths_and_comings)
{
    struct rng rng;
    rng_init(&rng, (uint64_t)_i + 1);
    slow = -1;
    first = 1;
    begin_all(_i ? "dasgd-delta,every=4,delay=2" : "shadow-easgd", 3, MANY);
    for (int round = 0; round < KILLS; round++) {
        int dies = rng_next(&rng) % 2 ? 2 : 0, before = page->done[1];
        AWAIT(page->done[1] > before + 2);
        clock_sleep_until(clock_now_ns() + rng_next(&rng) % 8000000);
        kill(pids[dies], SIGKILL);
        end_of(pids[dies]);
        page->slowly = true;            /* lest they end before it comes */
        before = page->done[dies];
        begin(dies);
        AWAIT(page->done[dies] > before);
        page->slowly = false;
    }
    end_all(3, -1);
    int twice = count_twice();
    ck_assert_msg(twice < MANY / 10, "%d of %d items were done twice", twice, MANY);
}
END_TEST

START_TEST(a_late_one_gets_its_share)
{
    slow = -1;
    first = 0;
    begin_all("shadow-easgd", 2, ITEMS);
    AWAIT(done_by_all(2) >= ITEMS / 4);
    page->slowly = true;
    begin(2);
    clock_sleep_until(clock_now_ns() + 1000000000);
    page->slowly = false;
    end_all(3, -1);
    ck_assert_int_eq(count_twice(), 0);
    ck_assert_int_gt(page->done[2], 10);
}
END_TEST

START_TEST(one_machine_deals_nothing)
{
    struct descant *job;

    new_address("");
    job = open_here("none", 0, 1);
    ck_assert_int_eq(descant_deal_end(job, 1), DESCANT_ORDER);
    ck_assert_int_eq(descant_deal_limit(job, 0, 1, 1), DESCANT_ORDER);
    descant_alloc(job, "w", 10);
    ck_assert_int_eq(descant_start(job), DESCANT_OK);
    ck_assert_int_eq(descant_deal_begin(job, NULL, 0), DESCANT_UNSUPPORTED);
    ck_assert(strstr(descant_last_error(), "on one machine"));
    ck_assert_int_eq(descant_deal_limit(job, 0, 1, 1), DESCANT_UNSUPPORTED);
    descant_close(job);
}
END_TEST

/* --- MPI --- */

static int part_deal(void)
{
    for (size_t k = 0; k < PLANS; k++) {
        struct descant_options options = descant_options_default();
        struct descant_members who;
        struct descant *job;
        struct descant_items known;
        size_t n_known;
        uint64_t item = 0;
        double n = 0;

        if (strstr(plans[k], "quorum"))
            continue;
        options.job = "mpi:messages";
        options.plan = plans[k];
        options.start_s = 20;
        options.log = to_stderr;
        NEED(descant_open(&job, &options) == DESCANT_OK);
        NEED(descant_alloc(job, "w", N));
        NEED(descant_start(job) == DESCANT_OK);
        NEED(descant_members(job, &who) == DESCANT_OK);
        NEED(descant_deal_begin(job, NULL, 0) == DESCANT_OK);
        NEED(descant_deal_end(job, 60) == DESCANT_OK);
        for (;;) {
            descant_status status = descant_deal_take(job, 5, &item);
            NEED(status == DESCANT_OK);
            if (item == DESCANT_NO_ITEM)
                break;
            for (int s = 0; s < STEPS; s++)
                NEED(descant_step(job) == DESCANT_OK);
            NEED(descant_deal_done(job, item) == DESCANT_OK);
            n++;
        }
        descant_worker_done(job);
        if (plans[k][0] == 's' || plans[k][0] == 'n') {     /* else steps wait for it */
            NEED(descant_agree_mean(job, &n, 1) == DESCANT_OK);
            NEED(fabs(n * who.size - 60) < 1e-9);
        }
        NEED(descant_finish(job, DESCANT_FINAL_MEAN) == DESCANT_OK);
        NEED(who.rank > 0 || descant_deal_known(job, &known, 1, &n_known) == DESCANT_OK);
        NEED(who.rank > 0 || (n_known == 1 && known.from == 0 && known.to == 60));
        NEED(descant_close(job) == DESCANT_OK);
    }
    return 0;
}

static const struct mpi_part parts[] = {{"deal", part_deal}};

START_TEST(ranks_of_mpi_are_dealt_items)
{
    if (is_there((enum mpi_library)_i))
        need_good((enum mpi_library)_i, 3, "deal");
}
END_TEST

int main(int argc, char **argv)
{
    TCase *all = tcase_create("jobs");
    tcase_set_timeout(all, 120);
    tcase_add_loop_test(all, each_item_is_done_once, 0, few(PLANS, few_threads(3, 2)));
    tcase_add_loop_test(all, threads_that_wait_for_each_other_end, 0, few(4, few_threads(2, 1)));
    tcase_add_loop_test(all, one_that_stops_early_holds_nobody_up, 0, few_threads(2, 1));
    tcase_add_loop_test(all, what_a_dead_one_had_is_done, 0, few(8, few_threads(2, 1)));
    tcase_add_loop_test(all, each_unit_is_spent_once, 0, few(3, few_threads(2, 1)));
    tcase_add_loop_test(all, deaths_and_comings, 0, few_threads(2, 1));
    tcase_add_test(all, a_late_one_gets_its_share);
    tcase_add_test(all, one_machine_deals_nothing);
#ifndef __SANITIZE_THREAD__
    tcase_add_loop_test(all, ranks_of_mpi_are_dealt_items, 0, LIBRARIES_RUN);
#endif
    return run_mpi(argc, argv, parts, sizeof parts / sizeof *parts, all);
}
