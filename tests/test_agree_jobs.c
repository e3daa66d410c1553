/* SPDX-License-Identifier: MIT */
/* Agreements of real processes, over shm, TCP and MPI, under every kind of plan; trainers, the
 * coordinator among them, that are killed while an agreement is open.
 *
 * In each trainer one thread steps, and the main thread agrees, so often as it can, on the mean of
 * its rank and on `any`. All results are kept on the page: those of one number must be the same. */
#include "harness/folder.h"
#include "harness/jobs.h"
#include "harness/mpi.h"
#include "harness/tcp.h"
#include "harness/values.h"
#include "harness/wait.h"

#include <errno.h>
#include <pthread.h>

enum { N = 2000, MOST = 4, HISTORY = 1 << 19 };

/* Of one trainer; the test reads. */
struct agreeing {
    _Atomic int steps, agreed, rounds, calls;   /* calls: begun */
    _Atomic uint64_t stall_ns;
    double history[HISTORY];
};

static struct agree_page {
    struct agreeing trainers[MOST];
    _Atomic bool stop;
    _Atomic bool holds[MOST];           /* this one begins no agreement; written by the test, */
    _Atomic bool held[MOST];            /* and it has begun none since; by the trainer */
} *page;

static char address[300];
static const char *plan;
static pid_t pids[MOST];
static int founders;
static bool gives;                      /* the first agreement is one that cannot be made */

struct work {
    struct descant *job;
    struct agreeing *mine;
    float *w;
    _Atomic bool stop;
};

static void *step_on(void *context)
{
    struct work *work = context;

    while (!work->stop) {
        for (int k = 0; k < N; k++)
            work->w[k] += 0.01f * (1 - work->w[k]);
        if (descant_step(work->job) != DESCANT_OK)
            break;
        work->mine->steps++;
        clock_sleep_until(clock_now_ns() + 500000);
    }
    descant_worker_done(work->job);
    return NULL;
}

/* Whether all are to stop: 1, 0, or -1 where it fails. */
static int agree(struct descant *job, struct agreeing *mine, int rank)
{
    double x[512] = {rank, 1, rank * rank};
    int flag = page->stop;

    mine->calls++;
    if (descant_agree_any(job, &flag) != DESCANT_OK ||
        descant_agree_mean(job, x, 512) != DESCANT_OK || x[1] != 1)
        return -1;
    mine->history[mine->agreed % HISTORY] = x[0] + 100 * x[2];
    mine->agreed++;
    return flag;
}

/* The giver has too many bytes: all are told how many, and the next one is made. */
static bool gives_too_many(struct descant *job, int rank)
{
    char bytes[5000] = {0};
    size_t n = rank == 1 ? sizeof bytes : 0;

    if (descant_agree_broadcast(job, bytes, sizeof bytes, &n, 1) != DESCANT_INVALID ||
        !strstr(descant_last_error(), "trainer 1 gives 5000 bytes, at most 4096"))
        return false;
    n = rank == 1 ? 4096 : 0;
    return descant_agree_broadcast(job, bytes, sizeof bytes, &n, 1) == DESCANT_OK &&
           n == 4096;
}

static int train(int rank, int size)
{
    struct descant *job = open_job(address, plan, rank, size);
    struct work work = {.job = job, .mine = &page->trainers[rank],
                        .w = descant_alloc(job, "w", N)};
    struct descant_stats stats;
    pthread_t worker;
    bool shadow = strncmp(plan, "shadow", 6) == 0;
    int stops = 0;

    if (descant_start(job) != DESCANT_OK)
        return 2;
    if (gives && !gives_too_many(job, rank))
        return 3;
    if (shadow)
        pthread_create(&worker, NULL, step_on, &work);
    while (stops == 0) {
        for (; page->holds[rank]; clock_sleep_until(clock_now_ns() + 1000000))
            page->held[rank] = true;
        page->held[rank] = false;
        stops = agree(job, work.mine, rank);
        for (int i = 0; !shadow && stops == 0 && i < 4; i++)
            if (descant_step(job) != DESCANT_OK)
                return 4;
        descant_stats(job, &stats);
        work.mine->rounds = (int)stats.rounds;
        work.mine->stall_ns = stats.stall_ns;
    }
    work.stop = true;
    if (shadow)
        pthread_join(worker, NULL);
    if (stops < 0)
        return 5;
    if (descant_finish(job, DESCANT_FINAL_MEAN) != DESCANT_OK)
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

enum { OVER_SHM, OVER_TCP, FABRICS };

/* ThreadSanitizer finds fault with the MPI libraries. */
#ifdef __SANITIZE_THREAD__
enum { MPI_RUN = 0 };
#else
enum { MPI_RUN = LIBRARIES_RUN };
#endif

static void begin_all(int over, const char *of_plan, int ranks)
{
    struct tcp_options at;

    snprintf(said_file, sizeof said_file, "%s", in_folder("said"));
    unlink(said_file);
    if (over == OVER_SHM) {
        new_address("");
        snprintf(address, sizeof address, "%s", job_address);
    } else {
        tcp_test_address(&at, "127.0.0.1", MOST);
        snprintf(address, sizeof address, "tcp:127.0.0.1:%s,ranks=%d,dead=3s", at.port, MOST);
    }
    page = share_memory(sizeof *page);
    plan = of_plan;
    founders = ranks;
    for (int k = 0; k < ranks; k++)
        begin(k);
}

#define AWAIT(condition) WAIT_UNTIL(condition, "%.2000s", (read_said(), said))

static void agree_on(int from, int to, int more)
{
    for (int k = from; k < to; k++) {
        int before = page->trainers[k].agreed;
        AWAIT(page->trainers[k].agreed >= before + more);
    }
}

/* Founders' calls wait for this one, which makes none: they are in the agreement after its
 * last. */
static void hold(int rank, int ranks)
{
    page->holds[rank] = true;
    AWAIT(page->held[rank]);
    for (int k = 0; k < ranks; k++) {
        const struct agreeing *one = &page->trainers[k];
        AWAIT(k == rank ||
              (one->agreed == page->trainers[rank].agreed && one->calls > one->agreed));
    }
}

/* Founders have the same numbers. */
static void same_history(int one, int other)
{
    const struct agreeing *a = &page->trainers[one], *b = &page->trainers[other];
    int n = a->agreed < b->agreed ? a->agreed : b->agreed;

    ck_assert_int_lt(n, HISTORY);
    for (int i = 0; i < n; i++)
        ck_assert_msg(a->history[i] == b->history[i], "agreement %d: %g and %g", i,
                      a->history[i], b->history[i]);
}

static void end_all(int ranks, int but)
{
    page->stop = true;
    for (int k = 0; k < ranks; k++) {
        if (k == but)
            continue;
        int status = end_of(pids[k]);
        ck_assert_msg(status == 0, "trainer %d ends with %d: %.2000s", k, status,
                      (read_said(), said));
    }
    for (int k = 0; k < ranks; k++)
        for (int i = 0; i < k; i++)
            if (k != but && i != but)
                same_history(i, k);
}

static double history_of(const int *ranks, int n)
{
    double sum = 0, squares = 0;

    for (int i = 0; i < n; i++) {
        sum += ranks[i];
        squares += ranks[i] * ranks[i];
    }
    return sum / n + 100 * (squares / n);
}

static const char *const plans[] = {"shadow-easgd", "shadow-ma", "easgd,every=4", "ma,every=2",
                                    "dasgd,every=4,delay=2", "none"};
enum { PLANS = sizeof plans / sizeof *plans };

START_TEST(every_plan_agrees)
{
    begin_all(_i / PLANS, plans[_i % PLANS], 3);
    agree_on(0, 3, 30);
    end_all(3, -1);
    ck_assert(page->trainers[0].history[7] == history_of((const int[]){0, 1, 2}, 3));
}
END_TEST

/* Over TCP a long result leaves while its sender polls, which rank 0, the coordinator, does in
 * no call but this under the plan `none`. */
START_TEST(a_giver_that_cannot_give_holds_nobody_up)
{
    gives = true;
    begin_all(_i, "shadow-ma", 3);
    agree_on(0, 3, 3);
    end_all(3, -1);
}
END_TEST

START_TEST(who_has_the_result_need_not_poll)
{
    begin_all(OVER_TCP, "none", 3);
    for (int i = 0; i < 10; i++) {
        agree_on(0, 3, 3);
        hold(0, 3);
        for (int k = 1; k < 3; k++)
            AWAIT(page->trainers[k].agreed == page->trainers[0].agreed);
        page->holds[0] = false;
    }
    end_all(3, -1);
}
END_TEST

/* Rounds and steps go on while two wait for the third. */
START_TEST(a_shadow_plan_is_not_stalled)
{
    begin_all(_i, "shadow-ma", 3);
    agree_on(0, 3, 3);
    hold(1, 3);
    for (int k = 0; k < 3; k++) {
        const struct agreeing *one = &page->trainers[k];
        int steps = one->steps;
        AWAIT(one->steps > steps + 100);
    }
    page->holds[1] = false;
    int rounds = page->trainers[0].rounds;
    agree_on(0, 3, 3);
    AWAIT(page->trainers[0].rounds > rounds + 3);
    end_all(3, -1);
    for (int k = 0; k < 3; k++)
        ck_assert_uint_eq(page->trainers[k].stall_ns, 0);
}
END_TEST

/* Rank 0 is the coordinator over TCP. */
START_TEST(a_death_in_an_open_agreement)
{
    int over = _i / 2, dies = _i % 2 ? 2 : 0;
    const int left[] = {dies == 0 ? 1 : 0, dies == 2 ? 1 : 2};

    begin_all(over, "shadow-easgd", 3);
    agree_on(0, 3, 3);
    hold(dies, 3);
    int number = page->trainers[left[0]].agreed;
    kill(pids[dies], SIGKILL);
    end_of(pids[dies]);
    for (int i = 0; i < 2; i++)
        AWAIT(page->trainers[left[i]].agreed > number + 5);
    ck_assert(page->trainers[left[0]].history[number] == history_of(left, 2));
    end_all(3, dies);
}
END_TEST

/* At full speed, at any moment; and its next process joins in. */
START_TEST(deaths_at_any_moment)
{
    begin_all(_i, "shadow-ma", 3);
    agree_on(0, 3, 3);
    for (int round = 0; round < 4; round++) {
        int dies = 2 * (round % 2);
        agree_on(1, 2, 5);
        clock_sleep_until(clock_now_ns() + 700000 * (uint64_t)(round + 1));
        kill(pids[dies], SIGKILL);
        end_of(pids[dies]);
        agree_on(1, 2, 3);
        int number = page->trainers[1].agreed;
        page->trainers[dies].agreed = page->trainers[dies].calls = 0;
        begin(dies);
        agree_on(dies, dies + 1, 3);
        AWAIT(page->trainers[1].agreed > number + 3);
    }
    agree_on(0, 3, 3);
    page->stop = true;
    for (int k = 0; k < 3; k++)
        ck_assert_int_eq(end_of(pids[k]), 0);
    for (int k = 0; k < 3; k++) {       /* and all were in the last ones */
        const struct agreeing *one = &page->trainers[k];
        ck_assert(one->history[(one->agreed - 1) % HISTORY] == history_of((const int[]){0, 1, 2}, 3));
    }
}
END_TEST

/* --- MPI --- */

/* Rank 0 begins its finish first; the others agree on, and then the last one alone. */
static int part_agree(void)
{
    for (size_t k = 0; k < 2 * PLANS; k++) {
        struct descant_options options = descant_options_default();
        struct descant_members who;
        struct descant *job;

        options.job = k < PLANS ? "mpi:messages" : NULL;
        options.plan = plans[k % PLANS];
        options.start_s = 20;
        options.log = to_stderr;
        NEED(descant_open(&job, &options) == DESCANT_OK);
        NEED(descant_alloc(job, "w", N));
        NEED(descant_start(job) == DESCANT_OK);
        NEED(descant_members(job, &who) == DESCANT_OK);
        for (int i = 0; i < 10; i++) {
            double x[512] = {[0] = who.rank, [511] = i};
            int flag = i == 5 && who.rank == 2;
            int bytes[1024] = {[1023] = who.rank};
            size_t n = who.rank == 1 ? sizeof bytes : 0;
            NEED(descant_agree_mean(job, x, 512) == DESCANT_OK);
            NEED(x[0] == (who.size - 1) / 2.0 && x[511] == i);
            NEED(descant_agree_any(job, &flag) == DESCANT_OK && flag == (i == 5));
            NEED(descant_agree_broadcast(job, bytes, sizeof bytes, &n, 1) == DESCANT_OK);
            NEED(n == sizeof bytes && bytes[1023] == 1);
            for (int s = 0; s < 4; s++)
                NEED(descant_step(job) == DESCANT_OK);
        }
        double mine = who.rank;
        NEED((who.rank == 0 ? descant_agree_mean(job, &mine, 1)
                            : descant_agree_any(job, &(int){1})) == DESCANT_MISMATCH);
        NEED(gives_too_many(job, who.rank));
        size_t none = 0;
        NEED(descant_agree_broadcast(job, &mine, sizeof mine, &none, who.size + 5) ==
             DESCANT_BAD_RANK);
        for (int left = 0; left < who.rank; left++) {
            size_t n = 0;
            mine = who.rank;
            NEED(descant_agree_mean(job, &mine, 1) == DESCANT_OK);
            NEED(mine == (left + who.size) / 2.0);
            NEED(descant_agree_broadcast(job, &mine, sizeof mine, &n, left) ==
                 DESCANT_BAD_RANK);
        }
        NEED(descant_finish(job, DESCANT_FINAL_MEAN) == DESCANT_OK);
        NEED(descant_close(job) == DESCANT_OK);
    }
    return 0;
}

static const struct mpi_part parts[] = {{"agree", part_agree}};

START_TEST(ranks_of_mpi_agree)
{
    if (is_there((enum mpi_library)_i))
        need_good((enum mpi_library)_i, 3, "agree");
}
END_TEST

int main(int argc, char **argv)
{
    TCase *all = tcase_create("jobs");
    tcase_add_loop_test(all, every_plan_agrees, few_threads(0, PLANS - 2),
                        few_threads(FABRICS * PLANS, PLANS + 2));
    tcase_add_loop_test(all, a_giver_that_cannot_give_holds_nobody_up, 0, FABRICS);
    tcase_add_test(all, who_has_the_result_need_not_poll);
    tcase_add_loop_test(all, a_shadow_plan_is_not_stalled, 0, FABRICS);
    tcase_add_loop_test(all, a_death_in_an_open_agreement, few_threads(0, 1),
                        few_threads(2 * FABRICS, 3));
    tcase_add_loop_test(all, deaths_at_any_moment, 0, FABRICS);
    tcase_add_loop_test(all, ranks_of_mpi_agree, 0, MPI_RUN);
    return run_mpi(argc, argv, parts, sizeof parts / sizeof *parts, all);
}
