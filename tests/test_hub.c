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
#include "hub/hub.h"

#include <check.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
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
    _Atomic bool stop;              /* written by the test, read by trainers */
} *page;                            /* made before they are forked */

static char address[300], state_file[300], *state;
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
    const struct hub_options o = {.address = address, .trainers = trainers, .state = state,
                                  .state_every = 0.1};
    return hub_run(&o, stderr);
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
    snprintf(address, sizeof address, "tcp:127.0.0.1:%s,star,dead=5s", at.port);
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
}

static void begin_hub(void)
{
    start(&hub_pid, NULL, TRAINERS);
    for (int k = 0; k < TRAINERS; k++) {
        uint64_t rounds = page->trainers[k].rounds;
        AWAIT(page->trainers[k].rounds > rounds + 2);
    }
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
        begin_hub();
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

static void keep_state(void)
{
    snprintf(state_file, sizeof state_file, "%s", in_folder("state"));
    unlink(state_file);
    state = state_file;
}

static void start_trainers(const char *plan)
{
    for (int k = 0; k < TRAINERS; k++) {
        page->trainers[k].rounds = 0;
        page->trainers[k].first = 0;
        start(&pids[k], plan, k);
    }
    for (int k = 0; k < TRAINERS; k++)
        AWAIT(page->trainers[k].rounds > 2);
}

/* The next ones begin with the file. */
START_TEST(all_are_killed)
{
    static const char *const plans[] = {"ma,every=5", "shadow-easgd", "bmuf,every=8",
                                        "dasgd-delta,every=8,delay=4"};
    struct stat of;
    float most = 0;

    keep_state();
    begin_all(plans[_i]);
    AWAIT(page->trainers[0].steps > 300 && page->trainers[1].steps > 300);
    struct timespec seen = {0, 0};
    for (int n = 0; n < 3; n++) {       /* written after the steps */
        AWAIT(stat(state_file, &of) == 0 && (of.st_mtim.tv_sec != seen.tv_sec ||
                                             of.st_mtim.tv_nsec != seen.tv_nsec));
        seen = of.st_mtim;
    }
    for (int k = 0; k < TRAINERS; k++) {
        kill(pids[k], SIGKILL);
        end_of(pids[k]);
        most = (float)page->trainers[k].steps > most ? (float)page->trainers[k].steps : most;
    }
    kill_hub();
    start(&hub_pid, NULL, TRAINERS);
    start_trainers(plans[_i]);
    for (int k = 0; k < TRAINERS; k++)
        ck_assert_msg(page->trainers[k].first > 100 && page->trainers[k].first <= most + 1,
                      "trainer %d begins with %g, after %g steps", k,
                      (double)page->trainers[k].first, (double)most);
    end_all();
}
END_TEST

START_TEST(a_file_that_is_torn_is_refused)
{
    struct tcp_options at;
    FILE *file;

    keep_state();
    file = fopen(state_file, "w");
    fputs("this is no state", file);
    fclose(file);
    tcp_test_address(&at, "127.0.0.1", 2);
    snprintf(said_file, sizeof said_file, "%s", in_folder("said"));
    unlink(said_file);
    snprintf(address, sizeof address, "tcp:127.0.0.1:%s,star", at.port);
    page = share_memory(sizeof *page);
    page->step_ns[0] = 1000000;
    start(&hub_pid, NULL, 1);
    start(&pids[0], "ma,every=5", 0);
    ck_assert_int_eq(end_of(hub_pid), 1);
    says("an outer state of 16 bytes is torn");
    kill(pids[0], SIGKILL);
    end_of(pids[0]);
}
END_TEST

/* Before any trainer has come. */
START_TEST(a_file_that_cannot_be_written_is_refused)
{
    struct tcp_options at;

    keep_state();
    snprintf(state_file, sizeof state_file, "%s", in_folder("no such folder/state"));
    tcp_test_address(&at, "127.0.0.1", 2);
    snprintf(said_file, sizeof said_file, "%s", in_folder("said"));
    unlink(said_file);
    snprintf(address, sizeof address, "tcp:127.0.0.1:%s,star", at.port);
    page = share_memory(sizeof *page);
    start(&hub_pid, NULL, 1);
    ck_assert_int_eq(end_of(hub_pid), 1);
    says("no such folder/state: No such file or directory");
}
END_TEST

/* It writes what it knows, and the trainers wait for another one. */
START_TEST(a_hub_is_told_to_end)
{
    struct stat of;

    keep_state();
    begin_all("ma,every=5");
    kill(hub_pid, SIGTERM);
    ck_assert_int_eq(end_of(hub_pid), 128 + SIGTERM);
    ck_assert(stat(state_file, &of) == 0 && of.st_size > (off_t)(FLOATS * sizeof(float)));
    wait_said("the hub has gone: rounds wait until it is started again",
              TRAINERS);
    begin_hub();
    wait_said("the hub is there again", TRAINERS);
    ck_assert_float_eq(page->trainers[0].first, 0);
    float mean = (float)end_all() / TRAINERS;
    ck_assert_float_eq(page->trainers[0].most, mean);
}
END_TEST

START_TEST(its_figures_are_shown)
{
    char *text = NULL;
    size_t n;
    FILE *out = open_memstream(&text, &n);

    begin_all("ma,every=5");
    int status = 1;
    for (int tries = 0; tries < 100 && status; tries++) {
        clock_sleep_until(clock_now_ns() + 20000000);
        status = hub_status(address, out, stderr);
    }
    fclose(out);
    ck_assert_int_eq(status, 0);
    ck_assert_msg(strstr(text, "4 trainers, ") == text, "%s", text);
    free(text);
    end_all();
    ck_assert_int_eq(hub_status(address, stderr, stderr), 1);
}
END_TEST

/* It has no part in what trainers do. */
START_TEST(a_hub_does_not_train)
{
    struct descant_options o = descant_options_default();
    struct tcp_options at;
    struct descant *job;

    tcp_test_address(&at, "127.0.0.1", 2);
    snprintf(said_file, sizeof said_file, "%s", in_folder("said"));
    unlink(said_file);
    snprintf(address, sizeof address, "tcp:127.0.0.1:%s,star", at.port);
    page = share_memory(sizeof *page);
    page->step_ns[0] = 1000000;
    start(&pids[0], "ma,every=5", 0);
    o.job = address;
    o.hub = 1;
    o.start_s = 20;
    ck_assert_int_eq(descant_open(&job, &o), DESCANT_OK);
    ck_assert_int_eq(descant_start(job), DESCANT_OK);
    ck_assert_int_eq(descant_step(job), DESCANT_ORDER);
    ck_assert_int_eq(descant_pause(job), DESCANT_ORDER);
    ck_assert_int_eq(descant_part(job, 1), DESCANT_ORDER);
    ck_assert_ptr_nonnull(strstr(descant_last_error(), "wants a job that is started, this one is "
                                                       "a hub"));
    AWAIT(page->trainers[0].rounds > 3);
    page->stop = true;
    ck_assert_int_eq(descant_finish(job, DESCANT_FINAL_LOCAL), DESCANT_OK);
    ck_assert_int_eq(end_of(pids[0]), 0);
    ck_assert_int_eq(descant_close(job), DESCANT_OK);
}
END_TEST

/* All hear why. */
START_TEST(a_plan_that_has_no_hub_is_refused)
{
    struct tcp_options at;

    tcp_test_address(&at, "127.0.0.1", 2);
    snprintf(said_file, sizeof said_file, "%s", in_folder("said"));
    unlink(said_file);
    snprintf(address, sizeof address, "tcp:127.0.0.1:%s,star", at.port);
    page = share_memory(sizeof *page);
    start(&hub_pid, NULL, 1);
    start(&pids[0], "allreduce", 0);
    ck_assert_int_eq(end_of(hub_pid), 1);
    ck_assert_int_eq(end_of(pids[0]), 2);
    ck_assert_int_eq(times_said("a hub has no part in the plan allreduce"), 2);
}
END_TEST

int main(void)
{
    TCase *all = new_case("hub", 120);

    tcase_add_loop_test(all, a_hub_serves_all, 0, few(N(cases), few_threads(7, 4)));
    tcase_add_loop_test(all, a_hub_is_killed, few(0, 3), few(N(cases), few_threads(6, 5)));
    tcase_add_test(all, a_trainer_is_killed);
    tcase_add_loop_test(all, all_are_killed, 0, few(4, 1));
    tcase_add_test(all, a_file_that_is_torn_is_refused);
    tcase_add_test(all, a_file_that_cannot_be_written_is_refused);
    tcase_add_test(all, a_hub_is_told_to_end);
    tcase_add_test(all, its_figures_are_shown);
    tcase_add_test(all, a_plan_that_has_no_hub_is_refused);
    tcase_add_test(all, a_hub_does_not_train);
    return run_cases(all, NULL);
}
