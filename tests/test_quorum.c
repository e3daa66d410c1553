/* SPDX-License-Identifier: MIT */
/* Rounds that do not wait for everybody (docs/members.md), as real processes over TCP, and
 * over each MPI that is there, where this program is each rank.
 *
 * Each step of each trainer adds 1 to all of its parameters. So where a round's step is plain
 * averaging, the mean of all replicas in the end is the sum of all steps that were made ÷
 * trainers, to the bit: as long as no work is lost, and none counts twice, whoever was late. */
#include "harness/folder.h"
#include "harness/jobs.h"
#include "harness/mpi.h"
#include "harness/processes.h"
#include "harness/suite.h"
#include "harness/tcp.h"
#include "harness/wait.h"

#include <check.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { FLOATS = 3000, TRAINERS = 4 };

struct shown {
    _Atomic uint64_t steps, rounds, missed, stall_ns;
    _Atomic uint64_t cpu_ns, trained_ns;    /* cpu_ns: of all its threads in that time */
    _Atomic int members;
    _Atomic float least, most;      /* of its parameters, at the end */
};

/* In a file, which the ranks of an MPI job map, too. */
static struct page {
    struct shown trainers[TRAINERS];
    _Atomic pid_t pids[TRAINERS];
    enum descant_final final;
    _Atomic uint64_t step_ns[TRAINERS];
    _Atomic bool stop;              /* written by the test, read by trainers */
} *page;

enum { OVER_TCP = -1 };             /* else over this MPI library */
static int over = OVER_TCP;
static pid_t mpirun_pid;

static char address[300];
static enum descant_final final = DESCANT_FINAL_MEAN;

static void map_page(const char *path)
{
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    ck_assert(fd >= 0 && ftruncate(fd, sizeof *page) == 0);
    page = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ck_assert(page != MAP_FAILED);
    close(fd);
}

static void show(struct descant *job, struct shown *mine)
{
    struct descant_stats stats;
    struct descant_members members;

    descant_stats(job, &stats);
    descant_members(job, &members);
    mine->rounds = stats.rounds;
    mine->missed = stats.missed;
    mine->stall_ns = stats.stall_ns;
    mine->members = members.size;
    mine->steps++;
}

static uint64_t process_cpu_ns(void)
{
    struct timespec t = {0};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

/* Its exit status. rank -1: the launcher knows it. */
static int train(const char *plan, int rank)
{
    struct descant *job = open_job(address, plan, rank, TRAINERS);
    float *w = descant_alloc(job, "w", FLOATS);
    struct descant_members members;

    if (descant_start(job) != DESCANT_OK || descant_members(job, &members) != DESCANT_OK)
        return 2;
    rank = members.rank;
    struct shown *mine = &page->trainers[rank];
    page->pids[rank] = getpid();
    uint64_t cpu_ns = process_cpu_ns(), began_ns = clock_now_ns();
    while (!page->stop) {
        for (int k = 0; k < FLOATS; k++)
            w[k] += 1;
        if (descant_step(job) != DESCANT_OK)
            return 4;
        show(job, mine);
        clock_sleep_until(clock_now_ns() + page->step_ns[rank]);
    }
    if (descant_finish(job, page->final) != DESCANT_OK)
        return 5;
    mine->cpu_ns = process_cpu_ns() - cpu_ns;
    mine->trained_ns = clock_now_ns() - began_ns;
    float least = w[0], most = w[0];
    for (int k = 1; k < FLOATS; k++) {
        least = w[k] < least ? w[k] : least;
        most = w[k] > most ? w[k] : most;
    }
    mine->least = least;
    mine->most = most;
    return descant_close(job) == DESCANT_OK ? 0 : 6;
}

#define AWAIT(condition)                                                                \
    do {                                                                                \
        read_said();                                                                    \
        WAIT_UNTIL(condition, "%.2000s", (read_said(), said));                          \
    } while (0)

static void begin_over_tcp(const char *plan)
{
    struct tcp_options at;

    tcp_test_address(&at, "127.0.0.1", TRAINERS);
    snprintf(address, sizeof address, "tcp:127.0.0.1:%s,ranks=%d", at.port, TRAINERS);
    for (int k = 0; k < TRAINERS; k++) {
        FILE *out;
        pid_t pid = fork_saying(&out, SIGKILL);
        if (pid == 0) {
            dup2(fileno(out), STDERR_FILENO);
            setenv("DESCANT_LOG", "info", 1);
            _exit(train(plan, k));
        }
        page->pids[k] = pid;
    }
}

static void begin_over_mpi(const char *plan, const char *path)
{
    char command[3 * PATH_MAX];
    FILE *out;

    mpirun_command(command, sizeof command, (enum mpi_library)over, TRAINERS);
    size_t n = strlen(command);
    snprintf(command + n, sizeof command - n, " rank %s %s", plan, path);
    mpirun_pid = fork_saying(&out, SIGTERM);
    if (mpirun_pid == 0) {
        dup2(fileno(out), STDERR_FILENO);
        setenv("DESCANT_LOG", "info", 1);
        execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(127);
    }
    for (int k = 0; k < TRAINERS; k++)
        AWAIT(page->pids[k] != 0);
}

static void begin_all(const char *plan)
{
    char path[PATH_MAX];

    snprintf(said_file, sizeof said_file, "%s", in_folder("said"));
    unlink(said_file);
    snprintf(path, sizeof path, "%s", in_folder("page"));
    unlink(path);
    map_page(path);
    page->final = final;
    for (int k = 0; k < TRAINERS; k++)
        page->step_ns[k] = 1000000;
    if (over == OVER_TCP)
        begin_over_tcp(plan);
    else
        begin_over_mpi(plan, path);
}

/* False: there is no such library. */
static bool goes_over(int library)
{
    over = library;
    return over == OVER_TCP || is_there((enum mpi_library)over);
}

static uint64_t steps_of(int k)
{
    return page->trainers[k].steps;
}

static uint64_t rounds_of(int k)
{
    return page->trainers[k].rounds;
}

static void await_ends(void)
{
    page->stop = true;
    for (int k = 0; k < TRAINERS && over == OVER_TCP; k++)
        ck_assert_msg(end_of(page->pids[k]) == 0, "trainer %d: %.2000s", k,
                      (read_said(), said));
    if (over != OVER_TCP)
        ck_assert_msg(end_of(mpirun_pid) == 0, "%.2000s", (read_said(), said));
}

/* All end, with the same parameters; returns the sum of all steps. */
static uint64_t end_all(void)
{
    uint64_t sum = 0;

    await_ends();
    for (int k = 0; k < TRAINERS; k++) {
        const struct shown *t = &page->trainers[k];
        double cores = (double)t->cpu_ns / (double)t->trained_ns;
        ck_assert_msg(over == OVER_TCP || cores < 0.5, "trainer %d has taken %.2f of a core",
                      k, cores);
        sum += steps_of(k);
    }
    for (int k = 0; k < TRAINERS; k++) {
        ck_assert_float_eq(page->trainers[k].least, page->trainers[0].least);
        ck_assert_float_eq(page->trainers[k].most, page->trainers[0].most);
    }
    return sum;
}

/* Which trainer is slow: the coordinator of the rounds, which rank 0 is, or another one. */
static const struct {
    const char *plan;
    int slow;
    bool exact;         /* no shadow adds to parameters while a step does */
} cases[] = {
    {"bmuf,every=8,rate=1,momentum=0,quorum=3", 2, true},
    {"bmuf,every=8,rate=1,momentum=0,quorum=0.5", 0, true},
    {"dasgd-delta,every=8,delay=4,quorum=3", 3, true},
    {"dasgd-delta,every=4,delay=4,quorum=2,grace=5ms", 0, true},
    {"diloco-delta,every=10,delay=3,rate=1,momentum=0,quorum=3", 1, true},
    {"ma,every=8,merge=delta,quorum=3", 1, true},
    {"shadow-delta,quorum=3", 2, false},
    {"shadow-bmuf,quorum=2", 1, false},
    {"diloco,every=10,quorum=3", 1, false},
    {"dasgd-delta,every=8,delay=4,wire=q8,quorum=3", 3, false},
    {"ma,every=8,quorum=3", 3, false},
    {"dasgd,every=8,delay=2,quorum=3", 0, false},
    {"shadow-ma,quorum=3", 1, false},
};

static void hold_up_nobody(int i)
{
    int slow = cases[i].slow;
    bool every = strncmp(cases[i].plan, "shadow", 6) != 0;

    begin_all(cases[i].plan);
    for (int k = 0; k < TRAINERS; k++)
        AWAIT(page->trainers[k].members == TRAINERS && rounds_of(k) > 2);
    page->step_ns[slow] = 40000000;
    int other = (slow + 1) % TRAINERS;
    uint64_t slow_steps = steps_of(slow), steps = steps_of(other), rounds = rounds_of(other);
    uint64_t slow_rounds = rounds_of(slow);
    AWAIT(steps_of(other) > steps + 600 && rounds_of(other) > rounds + 20 &&
          rounds_of(slow) > slow_rounds + 2);
    /* with all waiting for it they would make as many steps as it does */
    uint64_t made = steps_of(slow) - slow_steps;
    if (every)
        ck_assert_msg(made * 4 < steps_of(other) - steps, "%d steps of the slow, %d of others",
                      (int)made, (int)(steps_of(other) - steps));
    AWAIT(!every || page->trainers[slow].missed > 3);
    page->step_ns[slow] = 1000000;
    rounds = rounds_of(slow);
    AWAIT(rounds_of(slow) > rounds + 5);
    uint64_t sum = end_all();
    float mean = (float)sum / TRAINERS, got = page->trainers[0].least;
    if (cases[i].exact)
        ck_assert_float_eq(page->trainers[0].most, mean);
    if (cases[i].exact)
        ck_assert_float_eq(got, mean);
    else if (strstr(cases[i].plan, "shadow-delta") || strstr(cases[i].plan, "q8"))
        ck_assert_float_eq_tol(got, mean, mean / 20);
}

START_TEST(the_slow_hold_up_nobody)
{
    int library = _i / N(cases) - 1, i = _i % N(cases);

    /* half of the plans over one MPI library, the other half over the other one */
    if (goes_over(library) && (library == OVER_TCP || (i + library) % pick(1, 2, 2) == 0))
        hold_up_nobody(i);
}
END_TEST

/* One is stopped for a while, again and again, and by chance who; no work is lost. */
enum { PAUSED = 5, PAUSED_OVER_MPI = 2 };       /* of the cases, the first ones */

START_TEST(pauses_lose_no_work)
{
    bool tcp = _i < PAUSED;
    int more = _i - PAUSED;

    if (!goes_over(tcp ? OVER_TCP : more / PAUSED_OVER_MPI))
        return;
    begin_all(cases[tcp ? _i : more % PAUSED_OVER_MPI * 2].plan);
    for (int k = 0; k < TRAINERS; k++)
        AWAIT(page->trainers[k].members == TRAINERS && rounds_of(k) > 2);
    for (int pause = 0; pause < 12; pause++) {
        int one = (pause * 7 + pause / 4) % TRAINERS, other = (one + 1) % TRAINERS;
        kill(page->pids[one], SIGSTOP);
        uint64_t rounds = rounds_of(other), until = clock_now_ns() + 1000000000;
        /* those without their coordinator, and owners of what it is in, wait for it */
        while (rounds_of(other) < rounds + 3 && clock_now_ns() < until)
            clock_sleep_until(clock_now_ns() + 5000000);
        kill(page->pids[one], SIGCONT);
        rounds = rounds_of(one);
        /* a trainer that is slow in two rounds in succession is aside for a while */
        AWAIT(rounds_of(one) > rounds + 3);
    }
    uint64_t sum = end_all();
    ck_assert_float_eq(page->trainers[0].least, (float)sum / TRAINERS);
}
END_TEST

/* The fast ones end, the slow one is still at work, upon an old version. */
START_TEST(the_slow_end_too)
{
    bool central = _i % 2;

    if (!goes_over(_i / 2 - 1))
        return;
    final = central ? DESCANT_FINAL_CENTRAL : DESCANT_FINAL_LOCAL;
    begin_all("diloco,every=8,quorum=3");
    for (int k = 0; k < TRAINERS; k++)
        AWAIT(page->trainers[k].members == TRAINERS && rounds_of(k) > 2);
    page->step_ns[2] = 60000000;
    AWAIT(page->trainers[2].missed > 3);
    await_ends();
    ck_assert(!central || page->trainers[2].least == page->trainers[0].least);
}
END_TEST

/* AddressSanitizer sees the same paths over TCP, and these take minutes. */
#ifdef __SANITIZE_ADDRESS__
enum { OVER_MPI = 0 };
#else
enum { OVER_MPI = LIBRARIES_RUN };
#endif

int main(int argc, char **argv)
{
    TCase *slow = new_case("slow", 120), *pauses = new_case("pauses", 120);

    if (argc > 3 && strcmp(argv[1], "rank") == 0) {
        map_page(argv[3]);
        snprintf(address, sizeof address, "mpi");
        return train(argv[2], -1);
    }
    find_modules();
    tcase_add_loop_test(slow, the_slow_hold_up_nobody, few_threads(0, 3),
                        few_threads((1 + OVER_MPI) * N(cases), 8));
    tcase_add_loop_test(slow, the_slow_end_too, 0, (1 + OVER_MPI) * 2);
    tcase_add_loop_test(pauses, pauses_lose_no_work, 0,
                        few_threads(PAUSED + OVER_MPI * PAUSED_OVER_MPI, 2));
    return run_cases(slow, pauses, NULL);
}
