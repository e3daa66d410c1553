/* SPDX-License-Identifier: MIT */
/* A star (docs/members.md): trainers that are connected with a hub alone, as real processes over
 * TCP, and hubs that are killed.
 *
 * Each step of each trainer adds 1 to all of its parameters. So where a round's step is plain
 * averaging, the mean of all replicas in the end is the sum of all steps that were made ÷
 * trainers, to the bit: as long as no work is lost, and none counts twice. */
#include "harness/folder.h"
#include "harness/jobs.h"
#include "harness/processes.h"
#include "harness/suite.h"
#include "harness/tcp.h"
#include "harness/wait.h"

#include <check.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FLOATS = 3000, TRAINERS = 4 };

struct shown {
    _Atomic uint64_t steps, rounds, stall_ns, longest_ns;       /* of a step */
    _Atomic int members, rank;
    _Atomic float least, most;      /* of its parameters, at the end */
    _Atomic float first;            /* and after its start */
};

static struct page {
    struct shown trainers[TRAINERS];
    _Atomic uint64_t step_ns[TRAINERS];
    _Atomic bool stop, hub_started; /* stop: written by the test, read by trainers */
} *page;                            /* made before they are forked */

static char address[300];
static pid_t pids[TRAINERS], hub_pid;

static void show(struct descant *job, struct shown *mine, uint64_t took_ns)
{
    struct descant_stats stats;
    struct descant_members members;

    descant_stats(job, &stats);
    descant_members(job, &members);
    mine->rounds = stats.rounds;
    mine->stall_ns = stats.stall_ns;
    mine->longest_ns = took_ns > mine->longest_ns ? took_ns : mine->longest_ns;
    mine->members = members.size;
    mine->rank = members.rank;
    mine->steps++;
}

static int train(const char *plan, int rank)
{
    struct descant *job = open_job(address, plan, rank, 0);
    struct shown *mine = &page->trainers[rank];
    float *w = descant_alloc(job, "w", FLOATS);

    if (descant_start(job) != DESCANT_OK)
        return 2;
    mine->first = w[FLOATS - 1];
    while (!page->stop) {
        for (int k = 0; k < FLOATS; k++)
            w[k] += 1;
        uint64_t before = clock_now_ns();
        if (descant_step(job) != DESCANT_OK)
            return 4;
        show(job, mine, clock_now_ns() - before);
        clock_sleep_until(clock_now_ns() + page->step_ns[rank]);
    }
    if (descant_finish(job, DESCANT_FINAL_MEAN) != DESCANT_OK)
        return 5;
    float least = w[0], most = w[0];
    for (int k = 1; k < FLOATS; k++) {
        least = w[k] < least ? w[k] : least;
        most = w[k] > most ? w[k] : most;
    }
    mine->least = least;
    mine->most = most;
    return descant_close(job) == DESCANT_OK ? 0 : 6;
}

static int be_hub(int trainers)
{
    struct descant_options o = descant_options_default();
    struct descant *job;

    o.job = address;
    o.hub = 1;
    o.size = trainers;
    o.start_s = 20;
    if (descant_open(&job, &o) != DESCANT_OK)
        return 1;
    if (descant_start(job) != DESCANT_OK)
        return 2;
    page->hub_started = true;
    if (descant_finish(job, DESCANT_FINAL_LOCAL) != DESCANT_OK)
        return 3;
    return descant_close(job) == DESCANT_OK ? 0 : 4;
}

static void start(pid_t *pid, const char *plan, int rank)
{
    FILE *out;

    *pid = fork_saying(&out, SIGKILL);
    if (*pid)
        return;
    int log = open(said_file, O_WRONLY | O_CREAT | O_APPEND, 0600);
    dup2(log, STDERR_FILENO);
    setenv("DESCANT_LOG", "info", 1);
    _exit(plan ? train(plan, rank) : be_hub(rank));
}

#define AWAIT(condition)                                                                \
    do {                                                                                \
        read_said();                                                                    \
        WAIT_UNTIL(condition, "%.3000s", (read_said(), said));                          \
    } while (0)

static void begin_all(const char *plan)
{
    struct tcp_options at;

    snprintf(said_file, sizeof said_file, "%s", in_folder("said"));
    unlink(said_file);
    tcp_test_address(&at, "127.0.0.1", TRAINERS + 1);
    snprintf(address, sizeof address, "tcp:127.0.0.1:%s,star=1,dead=2s", at.port);
    page = share_memory(sizeof *page);
    for (int k = 0; k < TRAINERS; k++)
        page->step_ns[k] = 1000000;
    start(&hub_pid, NULL, TRAINERS);
    for (int k = 0; k < TRAINERS; k++)
        start(&pids[k], plan, k);
    for (int k = 0; k < TRAINERS; k++)
        AWAIT(page->trainers[k].members == TRAINERS && page->trainers[k].rounds > 2);
}

/* All end, with the same parameters, and the hub with them; returns the sum of all steps. */
static uint64_t end_all(void)
{
    uint64_t sum = 0;

    page->stop = true;
    for (int k = 0; k < TRAINERS; k++) {
        int end = end_of(pids[k]);
        ck_assert_msg(end == 0, "trainer %d: %d, %.3000s", k, end, (read_said(), said));
        sum += page->trainers[k].steps;
    }
    int end = end_of(hub_pid);
    ck_assert_msg(end == 0, "the hub: %d, %.3000s", end, (read_said(), said));
    for (int k = 0; k < TRAINERS; k++) {
        ck_assert_int_eq(page->trainers[k].rank, k);
        ck_assert_float_eq(page->trainers[k].least, page->trainers[0].least);
        ck_assert_float_eq(page->trainers[k].most, page->trainers[0].most);
    }
    return sum;
}

static const struct {
    const char *plan;
    bool exact;         /* no shadow adds to parameters while a step does */
} cases[] = {
    {"bmuf,every=8,rate=1,momentum=0,quorum=3", true},
    {"ma,every=5", true},
    {"dasgd-delta,every=8,delay=4", true},
    {"dasgd-delta,every=8,delay=4,quorum=3", true},
    {"diloco-delta,every=10,delay=3,rate=1,momentum=0,quorum=2", true},
    {"shadow-delta,quorum=3", false},
    {"shadow-easgd", false},
    {"easgd,every=8", false},
    {"shadow-bmuf", false},
    {"dasgd,every=8,delay=2,wire=q8", false},
};

START_TEST(a_hub_serves_all)
{
    begin_all(cases[_i].plan);
    page->step_ns[_i % TRAINERS] = 5000000;
    for (int k = 0; k < TRAINERS; k++)
        AWAIT(page->trainers[k].rounds > 20);
    float mean = (float)end_all() / TRAINERS;
    if (cases[_i].exact)
        ck_assert_float_eq(page->trainers[0].most, mean);
    if (cases[_i].exact)
        ck_assert_float_eq(page->trainers[0].least, mean);
}
END_TEST

static void kill_hub(void)
{
    kill(hub_pid, SIGKILL);
    end_of(hub_pid);
    page->hub_started = false;
}

/* Training goes on meanwhile, and nothing is lost, or counts twice. */
START_TEST(a_hub_is_killed)
{
    bool shadow = strncmp(cases[_i].plan, "shadow", 6) == 0;

    begin_all(cases[_i].plan);
    for (int n = 0; n < 4; n++) {
        kill_hub();
        uint64_t steps = page->trainers[n].steps;
        if (shadow)
            AWAIT(page->trainers[n].steps > steps + 200);
        else
            clock_sleep_until(clock_now_ns() + 100000000 * (uint64_t)n);
        start(&hub_pid, NULL, TRAINERS);
        AWAIT(page->hub_started);
        for (int k = 0; k < TRAINERS; k++) {
            uint64_t rounds = page->trainers[k].rounds;
            AWAIT(page->trainers[k].rounds > rounds + 2);
        }
    }
    float mean = (float)end_all() / TRAINERS;
    if (cases[_i].exact)
        ck_assert_float_eq(page->trainers[0].most, mean);
    if (cases[_i].exact)
        ck_assert_float_eq(page->trainers[0].least, mean);
    for (int k = 0; k < TRAINERS && shadow; k++)
        ck_assert_uint_eq(page->trainers[k].stall_ns, 0);
}
END_TEST

/* One that comes again has what the others have. */
START_TEST(a_trainer_is_killed)
{
    begin_all("ma,every=5");
    for (int n = 0; n < TRAINERS; n++) {
        kill(pids[n], SIGKILL);
        end_of(pids[n]);
        page->trainers[n].rounds = 0;
        start(&pids[n], "ma,every=5", n);
        AWAIT(page->trainers[n].rounds > 3 && page->trainers[n].members == TRAINERS);
        ck_assert(page->trainers[n].first > 5);
    }
    end_all();
}
END_TEST

int main(void)
{
    TCase *all = new_case("hub", 120);

    tcase_add_loop_test(all, a_hub_serves_all, 0, N(cases));
    tcase_add_loop_test(all, a_hub_is_killed, 0, N(cases));
    tcase_add_test(all, a_trainer_is_killed);
    return run_cases(all, NULL);
}
