/* SPDX-License-Identifier: MIT */
/* Items whose bytes one trainer reads, as from a pipe, dealt to real processes over TCP, a star
 * and MPI: each trainer gets the right bytes of what it is dealt, each item is done once, and
 * what a trainer had that is killed goes to others with its bytes. The memory of the one that
 * reads is bounded, and its death ends the input. */
#include "harness/folder.h"
#include "harness/jobs.h"
#include "harness/mpi.h"
#include "harness/tcp.h"
#include "harness/wait.h"

#include <pthread.h>

enum { N = 500, MOST = 4, ITEMS = 300, STEPS = 3, SLOW = 10, LARGEST = 700000, NONE = -1 };
#define STEP_NS UINT64_C(300000)
#define KEPT ((size_t)8 << 20)

static struct fed_page {
    _Atomic int times[ITEMS];           /* that its steps were made */
    _Atomic int done[MOST];             /* by each trainer */
    _Atomic uint64_t last_ns[MOST];     /* when */
    _Atomic uint64_t longest_ns;        /* that an item took */
    _Atomic uint64_t slow_ns[ITEMS];       /* when the slow one did it; 0: another one did */
    _Atomic bool came_late;
    _Atomic int read, lost;             /* items that were put; whose bytes were gone */
    _Atomic int ahead;                  /* the most bytes that were put and not done, KiB */
    _Atomic int64_t out;                /* bytes that were put and whose steps are not made */
    _Atomic bool stops_reading, reads_on;
    _Atomic bool holds;                 /* no trainer goes on after the item in hand, nor ends */
} *page;

static char address[300];
static const char *plan, *dead = "5s";
static pid_t pids[MOST], hub_pid;
static int founders, slow = NONE;
static size_t kept, size_of_all;        /* size_of_all: of every item; 0: they differ */

static size_t size_of(uint64_t item)
{
    if (size_of_all)
        return size_of_all;
    return item % 7 == 3 ? LARGEST - (size_t)item : 1 + (size_t)(item * 7919 % 90000);
}

static void fill(unsigned char *bytes, uint64_t item)
{
    for (size_t k = 0, n = size_of(item); k < n; k += sizeof(uint64_t)) {
        uint64_t word = rng_mixed(item << 32 | k);
        memcpy(bytes + k, &word, n - k < sizeof word ? n - k : sizeof word);
    }
}

/* --- the one that reads --- */

static void *read_items(void *of)
{
    struct descant *job = of;
    static unsigned char bytes[LARGEST];
    uint64_t item = 0;
    descant_status status = DESCANT_OK;

    for (; item < ITEMS; item++) {
        while (page->stops_reading && item >= ITEMS / 3 && !page->reads_on)
            clock_sleep_until(clock_now_ns() + 1000000);
        fill(bytes, item);
        page->out += (int64_t)size_of(item);
        do
            status = descant_deal_put(job, 0.01, bytes, size_of(item));
        while (status == DESCANT_TIMEOUT);
        if (status != DESCANT_OK)
            break;
        page->read++;
        int kib = (int)(page->out >> 10);
        if (kib > page->ahead)
            page->ahead = kib;
    }
    if (status == DESCANT_OK)
        status = descant_deal_end(job, item);
    return (void *)(uintptr_t)status;
}

/* --- all --- */

/* First into too little room, as one that does not know the size. */
static descant_status get(struct descant *job, uint64_t item, unsigned char *bytes, size_t *n)
{
    descant_status status;
    size_t room = 10;

    do {
        *n = 0;
        status = descant_deal_get(job, 0.01, item, bytes, room, n);
        if (status == DESCANT_OK && *n > room) {
            room = LARGEST;
            status = DESCANT_TIMEOUT;
        }
    } while (status == DESCANT_TIMEOUT);
    return status;
}

static void hold(void)
{
    while (page->holds)
        clock_sleep_until(clock_now_ns() + 1000000);
}

static bool is_made(struct descant *job, int rank, float *w, uint64_t item)
{
    static unsigned char bytes[LARGEST], right[LARGEST];
    size_t n;
    uint64_t began = clock_now_ns();
    descant_status status = get(job, item, bytes, &n);

    if (status == DESCANT_ENDED) {
        page->lost++;
        return descant_deal_done(job, item) == DESCANT_OK;
    }
    if (status == DESCANT_OK && n == 0)         /* another one has done it meanwhile */
        return descant_deal_done(job, item) == DESCANT_OK;
    fill(right, item);
    if (status != DESCANT_OK || item >= ITEMS || n != size_of(item) || memcmp(bytes, right, n))
        return false;
    for (int k = 0; k < STEPS; k++) {
        for (int i = 0; i < N; i++)
            w[i] += 0.01f * (1 - w[i]);
        clock_sleep_until(clock_now_ns() + STEP_NS * (rank == slow ? SLOW : 1));
        if (descant_step(job) != DESCANT_OK)
            return false;
    }
    page->last_ns[rank] = clock_now_ns();
    if (rank == slow)
        page->slow_ns[item] = page->last_ns[rank];
    if (page->last_ns[rank] - began > page->longest_ns)
        page->longest_ns = page->last_ns[rank] - began;
    hold();
    page->out -= (int64_t)n;
    page->times[item]++;
    page->done[rank]++;
    return descant_deal_done(job, item) == DESCANT_OK;
}

static int work(struct descant *job, int rank, float *w)
{
    uint64_t item;

    for (;;) {
        descant_status status = descant_deal_take(job, 0.01, &item);
        if (status == DESCANT_OK && item == DESCANT_NO_ITEM) {
            hold();
            return 0;
        }
        if ((status != DESCANT_OK && status != DESCANT_TIMEOUT) ||
            (status == DESCANT_OK && !is_made(job, rank, w, item)))
            return 3;
    }
}

static int train_in(struct descant *job, int rank)
{
    float *w = descant_alloc(job, "w", N);
    struct descant_members who;
    pthread_t reader;
    void *read_status = NULL;

    if (descant_start(job) != DESCANT_OK || descant_members(job, &who) != DESCANT_OK ||
        descant_deal_feed(job, 0, kept) != DESCANT_OK ||
        descant_deal_begin(job, NULL, 0) != DESCANT_OK)
        return 2;
    bool reads = rank == 0 && !who.late;
    page->came_late |= who.late;
    if (!reads && descant_deal_put(job, 0, w, 4) != DESCANT_ENDED)
        return 8;
    if (reads)
        pthread_create(&reader, NULL, read_items, job);
    int code = work(job, rank, w);
    descant_worker_done(job);
    if (reads)
        pthread_join(reader, &read_status);
    if (code || read_status)
        return code ? code : 7;
    if (descant_finish(job, DESCANT_FINAL_MEAN) != DESCANT_OK)
        return 4;
    return descant_close(job) == DESCANT_OK ? 0 : 5;
}

static int train(int rank)
{
    return train_in(open_job(address, plan, rank, founders), rank);
}

static int hub(void)
{
    struct descant_options o = descant_options_default();
    struct descant *job;

    o.job = address;
    o.hub = 1;
    o.size = founders;
    o.log = to_stderr;
    return descant_open(&job, &o) == DESCANT_OK && descant_start(job) == DESCANT_OK &&
           descant_finish(job, DESCANT_FINAL_MEAN) == DESCANT_OK &&
           descant_close(job) == DESCANT_OK ? 0 : 9;
}

static void begin(pid_t *pid, int rank)
{
    FILE *out;

    *pid = fork_saying(&out, SIGKILL);
    if (*pid == 0) {
        dup2(fileno(out), STDERR_FILENO);
        _exit(rank < 0 ? hub() : train(rank));
    }
}

static void begin_all(const char *of_plan, int ranks, bool star)
{
    struct tcp_options at;

    snprintf(said_file, sizeof said_file, "%s", in_folder("said"));
    unlink(said_file);
    tcp_test_address(&at, "127.0.0.1", MOST);
    snprintf(address, sizeof address, "tcp:127.0.0.1:%s,%s,dead=%s", at.port,
             star ? "star" : "ranks=4", dead);
    page = share_memory(sizeof *page);
    plan = of_plan;
    founders = ranks;
    kept = kept ? kept : KEPT;
    if (star)
        begin(&hub_pid, -1);
    for (int k = 0; k < ranks; k++)
        begin(&pids[k], k);
}

#define AWAIT(condition) \
    WAIT_UNTIL(condition, "%d, %d, %d were done of %d, %.2000s", page->done[0], page->done[1], \
               page->done[2], page->read, (read_said(), said))

static void ends_well(pid_t pid, int k)
{
    int status = end_of(pid);
    ck_assert_msg(status == 0, "trainer %d ends with %d, %d read, %d lost: %.2000s", k, status,
                  page->read, page->lost, (read_said(), said));
}

static void end_all(int ranks, int but)
{
    for (int k = 0; k < ranks; k++)
        if (k != but)
            ends_well(pids[k], k);
    if (hub_pid)
        ends_well(hub_pid, -1);
}

static int count_twice(void)
{
    int twice = 0;

    for (int i = 0; i < ITEMS; i++) {
        ck_assert_msg(page->times[i] > 0, "item %d was not made", i);
        twice += page->times[i] > 1;
    }
    return twice;
}

static const char *const plans[] = {"shadow-easgd", "shadow-delta", "easgd,every=4", "ma,every=2",
                                    "dasgd-delta,every=4,delay=2", "diloco,every=4", "none"};
enum { PLANS = sizeof plans / sizeof *plans };

static void each_once(int ranks)
{
    end_all(ranks, NONE);
    ck_assert_int_eq(count_twice(), 0);
    ck_assert_int_eq(page->lost, 0);
    for (int k = 0; k < ranks; k++)
        ck_assert_int_gt(page->done[k], 0);
}

START_TEST(each_item_is_done_once)
{
    slow = 1;
    begin_all(plans[_i], 3, false);
    each_once(3);
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

/* Bytes go through the hub. */
START_TEST(each_item_is_done_once_in_a_star)
{
    begin_all(_i ? "ma,every=2" : "shadow-delta", 3, true);
    each_once(3);
}
END_TEST

/* What it had been sent, and no common model has, is sent to others. */
START_TEST(what_a_dead_one_had_is_done)
{
    slow = 2;
    begin_all(plans[_i % 3 ? 1 : 4], 3, _i == 2);
    AWAIT(page->done[2] > 2 + _i);
    kill(pids[2], SIGKILL);
    end_of(pids[2]);
    end_all(3, 2);
    ck_assert_int_lt(count_twice(), ITEMS / 3);
    ck_assert_int_eq(page->lost, 0);
}
END_TEST

/* Also one whose steps are in every common model: few items are done twice. */
START_TEST(what_is_in_the_model_is_not_sent_again)
{
    begin_all("ma,every=3", 3, false);
    AWAIT(page->done[2] > ITEMS / 6);
    kill(pids[2], SIGKILL);
    end_of(pids[2]);
    end_all(3, 2);
    ck_assert_int_le(count_twice(), 8);
    ck_assert_int_eq(page->lost, 0);
}
END_TEST

/* A process that is stopped takes no bytes, and holds nobody up. */
START_TEST(a_stopped_one_holds_nobody_up)
{
    dead = "2s";
    begin_all("shadow-easgd", 3, false);
    AWAIT(page->done[2] > 3);
    kill(pids[2], SIGSTOP);
    int before = page->done[0] + page->done[1];
    AWAIT(page->done[0] + page->done[1] > before + ITEMS / 3);
    kill(pids[2], SIGCONT);
    end_all(3, NONE);
    count_twice();
    ck_assert_int_eq(page->lost, 0);
}
END_TEST

START_TEST(the_reader_s_death_ends_the_input)
{
    begin_all(_i ? "ma,every=2" : "shadow-easgd", 3, _i == 2);
    AWAIT(page->done[1] + page->done[2] > 20);
    page->holds = _i == 0;
    kill(pids[0], SIGKILL);
    end_of(pids[0]);
    if (_i == 0)                        /* another process of that rank reads nothing */
        begin(&pids[0], 0);
    if (_i == 0)
        AWAIT(page->came_late);
    page->holds = false;
    end_all(3, _i == 0 ? NONE : 0);
    int made = 0;
    for (int i = 0; i < ITEMS; i++)
        made += page->times[i] > 0;
    ck_assert_int_lt(made, ITEMS);
    ck_assert_msg(made + page->lost + 40 > page->read, "%d made, %d lost, %d read", made,
                  page->lost, page->read);
}
END_TEST

/* A pipe that brings nothing is no end. */
START_TEST(a_pipe_that_rests_is_waited_for)
{
    begin_all("shadow-easgd", 2, false);
    page->stops_reading = true;
    AWAIT(page->done[0] + page->done[1] >= ITEMS / 3);
    clock_sleep_until(clock_now_ns() + 500000000);
    page->reads_on = true;
    each_once(2);
}
END_TEST

/* The reader keeps no more than it was told, whatever the trainers' speed. */
START_TEST(the_reader_s_memory_is_bounded)
{
    slow = 0;
    kept = 1 << 20;
    size_of_all = 100000;
    begin_all("shadow-easgd", 1 + _i, false);
    each_once(1 + _i);
    int most = (int)((kept + 3 * size_of_all) >> 10);
    ck_assert_msg(page->ahead <= most, "%d KiB are kept, %d may be", page->ahead, most);
}
END_TEST

/* Fewer items than the plan's steps between two rounds need: the oldest are let go, and all
 * go on. */
START_TEST(a_plan_whose_rounds_are_rare_goes_on)
{
    kept = 5 * 100000;
    size_of_all = 100000;
    setenv("DESCANT_LOG", "warning", 1);
    begin_all("ma,every=400", 2, false);
    each_once(2);
    read_said();
    ck_assert_ptr_nonnull(strstr(said, "the oldest are let go"));
}
END_TEST

START_TEST(bad_calls_are_refused)
{
    struct tcp_options at;
    unsigned char byte = 1;
    size_t n;

    tcp_test_address(&at, "127.0.0.1", 2);
    snprintf(address, sizeof address, "tcp:127.0.0.1:%s,ranks=2", at.port);
    struct descant *job = open_job(address, "none", 0, 1);
    ck_assert_int_eq(descant_deal_feed(job, 0, 10), DESCANT_ORDER);
    descant_alloc(job, "w", 10);
    ck_assert_int_eq(descant_start(job), DESCANT_OK);
    ck_assert_int_eq(descant_deal_feed(job, 2, 10), DESCANT_INVALID);
    ck_assert_int_eq(descant_deal_feed(job, -1, 10), DESCANT_INVALID);
    ck_assert_int_eq(descant_deal_feed(job, 0, 0), DESCANT_INVALID);
    ck_assert_int_eq(descant_deal_put(job, 0, &byte, 1), DESCANT_ENDED);
    ck_assert_int_eq(descant_deal_feed(job, 0, 10), DESCANT_OK);
    ck_assert_int_eq(descant_deal_begin(job, NULL, 0), DESCANT_OK);
    ck_assert_int_eq(descant_deal_put(job, 0, NULL, 1), DESCANT_INVALID);
    ck_assert_int_eq(descant_deal_put(job, 0, &byte, 0), DESCANT_INVALID);
    ck_assert_int_eq(descant_deal_put(job, -1, &byte, 1), DESCANT_INVALID);
    ck_assert_int_eq(descant_deal_put(job, 0, &byte, 11), DESCANT_INVALID);
    ck_assert_int_eq(descant_deal_get(job, 0, 0, NULL, 1, &n), DESCANT_INVALID);
    ck_assert_int_eq(descant_deal_get(job, 0, 0, &byte, 1, NULL), DESCANT_INVALID);
    ck_assert_int_eq(descant_deal_get(job, 0, 0, &byte, 1, &n), DESCANT_INVALID);
    descant_close(job);
}
END_TEST

/* --- MPI --- */

static int part_fed(void)
{
    page = memory_take(sizeof *page);
    kept = KEPT;
    NEED(page);
    for (int k = 0; k < PLANS; k++) {
        struct descant_options options = descant_options_default();
        struct descant_members who;
        struct descant *job;

        options.job = "mpi:messages";
        options.plan = plans[k];
        options.start_s = 20;
        options.log = to_stderr;
        NEED(descant_open(&job, &options) == DESCANT_OK);
        NEED(descant_members(job, &who) == DESCANT_OK);
        int code = train_in(job, who.rank);
        if (code)
            fprintf(stderr, "%s: rank %d ends with %d\n", plans[k], who.rank, code);
        NEED(code == 0 && page->lost == 0);
    }
    memory_give(page);
    return 0;
}

static const struct mpi_part parts[] = {{"fed", part_fed}};

START_TEST(ranks_of_mpi_get_bytes)
{
    if (is_there((enum mpi_library)_i))
        need_good((enum mpi_library)_i, 3, "fed");
}
END_TEST

int main(int argc, char **argv)
{
    TCase *all = tcase_create("jobs");
    tcase_add_loop_test(all, each_item_is_done_once, 0, few(PLANS, few_threads(3, 2)));
    tcase_add_loop_test(all, each_item_is_done_once_in_a_star, 0, few(2, 1));
    tcase_add_loop_test(all, what_a_dead_one_had_is_done, few(0, 1), few(3, 2));
    tcase_add_test(all, what_is_in_the_model_is_not_sent_again);
    tcase_add_test(all, a_stopped_one_holds_nobody_up);
    tcase_add_loop_test(all, the_reader_s_death_ends_the_input, few(0, 1), few(3, 2));
    tcase_add_test(all, a_pipe_that_rests_is_waited_for);
    tcase_add_loop_test(all, the_reader_s_memory_is_bounded, few(0, 1), 2);
    tcase_add_loop_test(all, a_plan_whose_rounds_are_rare_goes_on, 0, few_threads(1, 0));
    tcase_add_test(all, bad_calls_are_refused);
#ifndef __SANITIZE_THREAD__
    tcase_add_loop_test(all, ranks_of_mpi_get_bytes, 0, LIBRARIES_RUN);
#endif
    return run_mpi(argc, argv, parts, sizeof parts / sizeof *parts, all);
}
