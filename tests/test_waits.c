/* SPDX-License-Identifier: MIT */
/* Who waits for whom, in words: trainers that do not come, that are stopped in the middle of
 * everything, that are still at work when others finish. A stopped process is a real one, and
 * the one that names it is another; a page that all share carries what is to be seen, and how
 * often it was. Waiting is always for a figure in that page, with a bound. */
#include <check.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness/processes.h"
#include "harness/suite.h"
#include "harness/wait.h"
#include "shm/shm.h"
#include "sync/waits.h"

enum { N = 5000, WANTS = 4, MOST = 4, TOLD = 8 };

struct waits_page {
    char want[WANTS][80];       /* (trainer) what its descant_waits is to say; set before forks */
    _Atomic int seen[WANTS];    /* how often it did */
    char said[WANTS][200];      /* what it said last */
    _Atomic int rounds[MOST];
    _Atomic int hold[MOST];     /* an order to make no more steps after so many rounds; 0: none */
    _Atomic int n_told[MOST];
    char told[MOST][TOLD][160]; /* (trainer) warnings of its log, the first n_told of them */
};

static struct waits_page *page;
static char address[64];
static pid_t pids[MOST];
static size_t floats = N;

static void set_up(void)
{
    page = share_memory(sizeof *page);
    snprintf(address, sizeof address, "shm:waits-%d", (int)getpid());
}

static descant_log *logs_to;

static struct descant *open_job(const char *plan, int rank, int size, double start_s)
{
    static int ranks[MOST];
    struct descant_options o = descant_options_default();
    struct descant *job = NULL;
    o.job = address;
    o.plan = plan;
    o.rank = rank;
    o.size = size;
    o.start_s = start_s;
    ranks[rank % MOST] = rank;
    o.log = logs_to;
    o.log_user = &ranks[rank % MOST];
    ck_assert_msg(descant_open(&job, &o) == DESCANT_OK, "%s", descant_last_error());
    ck_assert_ptr_nonnull(descant_alloc(job, "w", floats));
    return job;
}

/* --- a trainer, and a thread in it that asks --- */

static void tell(void *user, enum descant_level level, const char *line)
{
    int rank = *(const int *)user, n = page->n_told[rank];
    if (level != DESCANT_WARNING || n == TOLD)
        return;
    snprintf(page->told[rank][n], sizeof page->told[rank][n], "%s", line);
    page->n_told[rank]++;
}

static void *asker(void *context)
{
    char text[600];
    struct descant *job = context;
    struct descant_members me;
    descant_members(job, &me);
    for (;;) {
        descant_waits(job, text, sizeof text);
        if (page->want[me.rank][0] && strstr(text, page->want[me.rank]))
            page->seen[me.rank]++;
        snprintf(page->said[me.rank], sizeof page->said[0], "%.199s", text);
        clock_sleep_until(clock_now_ns() + 2000000);
    }
    return NULL;
}

static void trainer(const char *plan, int rank, int size)
{
    static float g[N];
    pthread_t thread;
    struct descant_stats s;
    logs_to = tell;
    struct descant *job = open_job(plan, rank, size, 60);
    pthread_create(&thread, NULL, asker, job);
    if (descant_start(job) != DESCANT_OK)
        _exit(1);
    for (;;) {
        if (strcmp(plan, "allreduce") == 0)
            descant_mean(job, g, N);
        if (descant_step(job) != DESCANT_OK)
            _exit(2);
        descant_stats(job, &s);
        page->rounds[rank] = (int)s.rounds;
        while (page->hold[rank] && page->rounds[rank] >= page->hold[rank])
            clock_sleep_until(clock_now_ns() + 1000000);
        clock_sleep_until(clock_now_ns() + 100000);
    }
}

static void launch(const char *plan, int rank, int size)
{
    pids[rank] = fork();
    if (pids[rank] == 0)
        trainer(plan, rank, size);
    ck_assert_int_gt(pids[rank], 0);
}

static void end(int rank)
{
    int how;
    kill(pids[rank], SIGKILL);
    waitpid(pids[rank], &how, 0);
    ck_assert_msg(WIFSIGNALED(how), "trainer %d ended with %x", rank, how);
}

/* --- at the start --- */

START_TEST(those_who_did_not_come_are_named)
{
    snprintf(page->want[2], sizeof page->want[2],
             "trainer 2 waits at its start for trainers 0, 1 and 3\n");
    launch("ma", 2, 4);
    ck_assert(reaches(&page->seen[2], 1));
    struct descant *job = open_job("ma", 0, 4, 0.3);
    ck_assert_int_eq(descant_start(job), DESCANT_TIMEOUT);
    ck_assert_msg(strstr(descant_last_error(), "trainers 1 and 3 of 4 did not come in 0.3 s"),
                  "%s", descant_last_error());
    descant_close(job);
    end(2);
}
END_TEST

static char told[512];

static void keep_warning(void *user, enum descant_level level, const char *line)
{
    (void)user;
    if (level == DESCANT_WARNING)
        snprintf(told, sizeof told, "%s", line);
}

/* Who waits for long says for whom, while there is time to start them. */
START_TEST(a_long_start_says_for_whom)
{
    struct descant_options o = descant_options_default();
    struct descant *job = NULL;
    o.job = address;
    o.plan = "ma";
    o.rank = 0;
    o.size = 3;
    o.start_s = _i ? 1 : 5.2;
    o.log = keep_warning;
    ck_assert_int_eq(descant_open(&job, &o), DESCANT_OK);
    ck_assert_ptr_nonnull(descant_alloc(job, "w", 10));
    ck_assert_int_eq(descant_start(job), DESCANT_TIMEOUT);
    const char *says = "waits at its start for trainers 1 and 2, at most 5.2 s in all";
    ck_assert_msg((strstr(told, says) != NULL) == (_i == 0), "%s", told);
    descant_close(job);
}
END_TEST

/* The members go on and say nothing: a joiner that they do not let in speaks for itself. */
START_TEST(a_joiner_says_for_whom)
{
    for (int i = 0; i < 2; i++)
        launch("ma,every=1", i, 2);
    for (int i = 0; i < 2; i++)
        ck_assert(reaches(&page->rounds[i], 3));
    struct descant_options o = descant_options_default();
    struct descant *job = NULL;
    o.job = address;
    o.plan = "ma,every=1";
    o.rank = 3;
    o.start_s = 5.2;
    o.log = keep_warning;
    ck_assert_int_eq(descant_open(&job, &o), DESCANT_OK);
    ck_assert_ptr_nonnull(descant_alloc(job, "w", floats));
    for (int i = 0; i < 2; i++)
        kill(pids[i], SIGSTOP);
    ck_assert_int_eq(descant_start(job), DESCANT_TIMEOUT);
    for (int i = 0; i < 2; i++)
        kill(pids[i], SIGCONT);
    ck_assert_msg(strstr(told, "trainer 3 waits at its start for ") != NULL, "%s: %s", told,
                  descant_last_error());
    descant_close(job);
    for (int i = 0; i < 2; i++)
        end(i);
}
END_TEST

/* One that has opened and not started is missing too; ranks beyond the size tell no names; a
 * start that may take no time at all is told as well. */
START_TEST(a_timeout_knows_the_opened_and_the_unknown)
{
    static const struct { int rank, other; const char *says; } cases[] = {
        {0, 1, "trainers 1 and 2 of 3 did not come"},
        {0, 7, "trainers 7 and 1 more of 3 did not come"}};
    struct descant *job = open_job("ma", cases[_i].rank, 3, 0);
    struct descant *other = open_job("ma", cases[_i].other, 0, 0);
    ck_assert_int_eq(descant_start(job), DESCANT_TIMEOUT);
    ck_assert_msg(strstr(descant_last_error(), cases[_i].says), "%s", descant_last_error());
    descant_close(other);
    descant_close(job);
}
END_TEST

/* --- in rounds --- */

static const char *const plans[] = {"ma,every=1", "shadow-ma", "allreduce",
                                    "dasgd,every=2,delay=1"};

/* Until trainer `asks` has said so a few times, from now on. */
static void expect_said(int asks, const char *what)
{
    page->want[asks][0] = '\0';
    snprintf(page->want[asks] + 1, sizeof page->want[asks] - 1, "%s", what + 1);
    page->want[asks][0] = *what;
    page->seen[asks] = 0;
    WAIT_UNTIL(page->seen[asks] >= 3, "trainer %d is to say '%s', and says '%s'", asks, what,
               page->said[asks]);
}

/* One of three trainers is stopped wherever it is; another names it; then they go on. */
static void stop_and_see(int asks, int stopped)
{
    char what[40];
    snprintf(what, sizeof what, ") for trainer %d\n", stopped);
    kill(pids[stopped], SIGSTOP);
    expect_said(asks, what);
    int rounds = page->rounds[asks];
    kill(pids[stopped], SIGCONT);
    ck_assert(reaches(&page->rounds[asks], rounds + 5));
}

START_TEST(the_stopped_are_named)
{
    const char *plan = plans[_i];
    for (int i = 0; i < 3; i++)
        launch(plan, i, 3);
    for (int i = 0; i < 3; i++)
        ck_assert(reaches(&page->rounds[i], 3));
    stop_and_see(0, 2);
    stop_and_see(0, 1);
    stop_and_see(1, 0);             /* who leads */
    stop_and_see(2, 0);
    if (strncmp(plan, "shadow", 6) != 0) {      /* a shadow goes on without its workers */
        kill(pids[0], SIGSTOP);     /* so that the figure stands still */
        page->hold[1] = page->hold[2] = page->rounds[0] + 20;
        kill(pids[0], SIGCONT);
        expect_said(0, ") for trainers 1 and 2\n");
    }
    for (int i = 0; i < 3; i++)
        end(i);
}
END_TEST

/* Whatever it was doing: most of the time it is in the middle of a chunk. */
START_TEST(one_stopped_in_a_chunk_is_named)
{
    floats = 2000000;
    for (int i = 0; i < 3; i++)
        launch("ma,every=1", i, 3);
    for (int i = 0; i < 3; i++)
        ck_assert(reaches(&page->rounds[i], 3));
    for (int k = 0; k < 20; k++) {
        clock_sleep_until(clock_now_ns() + 1000000 + (uint64_t)k * 330000);
        stop_and_see(k % 3, (k + 1 + k / 3 % 2) % 3);
    }
    for (int i = 0; i < 3; i++)
        end(i);
}
END_TEST

static void stop_with_a_chunk(enum step step, unsigned slot)
{
    (void)slot;
    if (step == STEP_CLAIMED && page->rounds[2] >= 3) {
        shm_hook = NULL;
        raise(SIGSTOP);
    }
}

START_TEST(one_stopped_with_a_chunk_just_taken_is_named)
{
    for (int i = 0; i < 3; i++) {
        shm_hook = i == 2 ? stop_with_a_chunk : NULL;
        launch("ma,every=1", i, 3);
    }
    shm_hook = NULL;
    expect_said(0, ") for trainer 2\n");
    expect_said(1, ") for trainer 2\n");
    int rounds = page->rounds[0];
    kill(pids[2], SIGCONT);
    ck_assert(reaches(&page->rounds[0], rounds + 5));
    for (int i = 0; i < 3; i++)
        end(i);
}
END_TEST

/* Who waits says so by its log; a shadow does not hold anybody up, and says nothing. */
START_TEST(a_wait_that_lasts_is_told)
{
    static const char *const held_up[] = {"ma,every=1", "allreduce", "dasgd,every=2,delay=1"};
    bool shadow = _i == 3;
    unsigned round, seconds;
    int end_at = 0;
    for (int i = 0; i < 2; i++)
        launch(shadow ? "shadow-ma" : held_up[_i], i, 2);
    for (int i = 0; i < 2; i++)
        ck_assert(reaches(&page->rounds[i], 3));
    kill(pids[1], SIGSTOP);
    if (shadow)
        clock_sleep_until(clock_now_ns() + 1500000000);
    else
        ck_assert(reaches(&page->n_told[0], 1));
    int rounds = page->rounds[0];
    kill(pids[1], SIGCONT);
    ck_assert(reaches(&page->rounds[0], rounds + 5));
    ck_assert(shadow || reaches(&page->n_told[0], 2));
    ck_assert_msg(!shadow || page->n_told[0] + page->n_told[1] == 0, "%s%s", page->told[0][0],
                  page->told[1][0]);
    sscanf(page->told[0][0], "rank 0: trainer 0 waits in round %u (mean) for trainer 1, %u s so far"
           "%n", &round, &seconds, &end_at);
    if (!end_at)                        /* it was stopped with the round's word just turned */
        sscanf(page->told[0][0], "rank 0: trainer 0 waits in round %u (mean) for the others, %u s so "
               "far%n", &round, &seconds, &end_at);
    ck_assert_msg(shadow || (end_at > 0 && page->told[0][0][end_at] == '\0'), "%s",
                  page->told[0][0]);
    ck_assert_msg(shadow || strstr(page->told[0][1], "rank 0: trainer 0 goes on after "), "%s",
                  page->told[0][1]);
    end(0);
    end(1);
}
END_TEST

/* --- what is said when, in a time of the test's own --- */

#define S UINT64_C(1000000000)

static char line_told[256];

static void keep_line(void *user, enum descant_level level, const char *line)
{
    (void)user;
    ck_assert_int_eq(level, DESCANT_WARNING);
    snprintf(line_told, sizeof line_told, "%s", line);
}

/* At that time, in tenths of a second: the line that is said, or "". */
static const char *told_at(struct waits_told *wait, const struct fabric *f, unsigned tenths)
{
    const struct log log = {.fn = keep_line, .rank = -1};
    uint64_t now = 100 * S + tenths * S / 10;
    line_told[0] = '\0';
    waits_tell(wait, f, now - S / 10, now, &log);
    return line_told;
}

START_TEST(a_wait_is_told_after_a_second_and_then_every_ten)
{
    struct waits_told wait = {0};
    struct fabric f = {.rank = 2};
    const char *_Atomic hosts[] = {"alpha", "beta", "gamma"};
    struct awaited a = {.wait = FABRIC_WAIT_ROUND, .kind = EXCHANGE_MEAN, .round = 7};
    awaited_add(&a, 0);
    ck_assert_str_eq(told_at(&wait, &f, 1), "");
    fabric_say(&f, &a);
    ck_assert_str_eq(told_at(&wait, &f, 1), "");        /* it has slept since 0 */
    ck_assert_str_eq(told_at(&wait, &f, 9), "");
    ck_assert_uint_eq(waits_due(&wait, 0), 101 * S);
    ck_assert_str_eq(told_at(&wait, &f, 10),
                     "trainer 2 waits in round 7 (mean) for trainer 0, 1 s so far");
    ck_assert_str_eq(told_at(&wait, &f, 11), "");
    ck_assert_str_eq(told_at(&wait, &f, 109), "");
    ck_assert_uint_eq(waits_due(&wait, 0), 111 * S);
    f.host_names = hosts;
    awaited_add(&a, 1);
    fabric_say(&f, &a);
    ck_assert_str_eq(told_at(&wait, &f, 110), "trainer 2 waits in round 7 (mean) for trainers 0 "
                                              "(alpha) and 1 (beta), 11 s so far");
    fabric_unsay(&f);
    ck_assert_str_eq(told_at(&wait, &f, 120), "trainer 2 goes on after 12 s");
    ck_assert_str_eq(told_at(&wait, &f, 121), "");
    a.wait = FABRIC_WAIT_CENTER;        /* another wait: not within ten seconds of the last line */
    a.round = 0;
    fabric_say(&f, &a);
    ck_assert_str_eq(told_at(&wait, &f, 130), "");
    ck_assert_str_eq(told_at(&wait, &f, 209), "");
    ck_assert_str_eq(told_at(&wait, &f, 210), "trainer 2 waits in an elastic exchange for trainers "
                                              "0 (alpha) and 1 (beta), 8 s so far");
    fabric_unsay(&f);
    f.status = DESCANT_SYSTEM;          /* nor does it go on */
    ck_assert_str_eq(told_at(&wait, &f, 211), "");
}
END_TEST

START_TEST(starts_ends_and_links_are_not_told)
{
    static const enum fabric_wait waits[] = {FABRIC_WAIT_START, FABRIC_WAIT_FINISH,
                                             FABRIC_WAIT_LINK};
    struct waits_told wait = {0};
    struct fabric f = {.rank = 2};
    struct awaited a = {.wait = waits[_i], .round = 7};
    awaited_add(&a, 0);
    fabric_say(&f, &a);
    for (unsigned tenths = 0; tenths < 300; tenths++)
        ck_assert_str_eq(told_at(&wait, &f, tenths), "");
}
END_TEST

/* --- at the end --- */

static void *finisher(void *job)
{
    descant_finish(job, DESCANT_FINAL_MEAN);
    return NULL;
}

START_TEST(those_at_work_are_named_by_who_has_finished)
{
    char text[600] = "";
    pthread_t thread;
    struct descant *jobs[3];
    for (int i = 0; i < 3; i++)
        jobs[i] = open_job("none", i, 0, 20);
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(descant_start(jobs[i]), DESCANT_OK);
    pthread_create(&thread, NULL, finisher, jobs[1]);
    while (!strstr(text, "trainer 1 waits at its finish for trainers 0 and 2\n"))
        ck_assert_uint_gt(descant_waits(jobs[1], text, sizeof text), 0);
    ck_assert_int_eq(descant_close(jobs[0]), DESCANT_OK);
    while (!strstr(text, "trainer 1 waits at its finish for trainer 2\n"))
        descant_waits(jobs[1], text, sizeof text);
    char little[20];
    ck_assert_uint_eq(descant_waits(jobs[1], NULL, 0), strlen(text));
    ck_assert_uint_eq(descant_waits(jobs[1], little, sizeof little), strlen(text));
    ck_assert_uint_eq(strlen(little), sizeof little - 1);
    descant_close(jobs[2]);
    pthread_join(thread, NULL);
    descant_waits(jobs[1], text, sizeof text);
    ck_assert_ptr_null(strstr(text, "waits"));
    descant_close(jobs[1]);
    ck_assert_int_eq(memory_live(), 0);
}
END_TEST

/* --- the fabrics --- */

static struct vector whole(struct fabric *f, struct extent *extent)
{
    *extent = (struct extent){0, N, f->contribution};
    return (struct vector){N, 1, extent};
}

static void to_end(struct fabric *f, const struct exchange *x)
{
    struct fabric_part part;
    ck_assert_int_eq(f->type->begin(f, x), DESCANT_OK);
    while (f->type->poll(f, &part) != FABRIC_DONE)
        ;
}

/* The chunks of the centre are another trainer's: it is asked for by name. */
START_TEST(who_holds_the_centre_is_named)
{
    const struct fabric_start start = {.manifest = "x\n", .n = N, .room = N, .center = true,
                                       .threads = 1};
    struct fabric *f[2];
    struct extent extents[2];
    struct vector in[2];
    struct fabric_part part;
    char text[200];
    for (int i = 0; i < 2; i++) {
        struct fabric_options o = {.address = address + 4, .rank = 3 + i, .start_s = 5};
        ck_assert_int_eq(fabric_shm.open(&f[i], &o), DESCANT_OK);
        ck_assert_int_eq(fabric_shm.start(f[i], &start), DESCANT_OK);
        in[i] = whole(f[i], &extents[i]);
        to_end(f[i], &(struct exchange){.kind = EXCHANGE_STATE, .in = &in[i], .n = N});
    }
    struct shm *shm = (struct shm *)f[0], *peer = (struct shm *)f[1];
    shm->locks[0] = (uint64_t)peer->meet.generation << 32 | (peer->meet.slot + 1);
    const struct exchange x = {.kind = EXCHANGE_ELASTIC, .in = &in[0], .n = N, .alpha = 0.5};
    ck_assert_int_eq(fabric_shm.begin(f[0], &x), DESCANT_OK);
    ck_assert_int_eq(fabric_shm.poll(f[0], &part), FABRIC_WAITING);     /* it does not spin */
    waits_text(f[0], text, sizeof text);
    ck_assert_str_eq(text, "trainer 3 waits in an elastic exchange for trainer 4");
    shm->locks[0] = 0;
    if (_i)                         /* it is late, and has slept long enough already */
        clock_sleep_until(clock_now_ns() + 20000000);
    fabric_shm.wait(f[0], 0);       /* comes back by itself: nobody rings for a chunk */
    ck_assert_int_eq(fabric_shm.poll(f[0], &part), FABRIC_PART);
    ck_assert_int_eq(waits_text(f[0], text, sizeof text), 0);
    fabric_shm.close(f[0]);
    fabric_shm.close(f[1]);
}
END_TEST

START_TEST(the_lowest_ranks_are_kept)
{
    struct awaited a = {.n = 0};
    for (int i = 0; i < 40; i++)
        awaited_add(&a, i * 7 % 40);
    awaited_add(&a, -1);
    ck_assert_int_eq(a.n, 41);
    ck_assert_int_eq(a.n_named, FABRIC_NAMED);
    for (int i = 0; i < FABRIC_NAMED; i++)
        ck_assert_int_eq(a.ranks[i], i);
}
END_TEST

int main(void)
{
    TCase *all = new_case("waits", 120);
    tcase_add_checked_fixture(all, set_up, NULL);
    tcase_add_test(all, those_who_did_not_come_are_named);
    tcase_add_loop_test(all, a_long_start_says_for_whom, 0, 2);
    tcase_add_test(all, a_joiner_says_for_whom);
    tcase_add_loop_test(all, a_timeout_knows_the_opened_and_the_unknown, 0, 2);
    tcase_add_loop_test(all, the_stopped_are_named, 0, N(plans));
    tcase_add_test(all, one_stopped_in_a_chunk_is_named);
    tcase_add_test(all, one_stopped_with_a_chunk_just_taken_is_named);
    tcase_add_loop_test(all, a_wait_that_lasts_is_told, 0, 4);
    tcase_add_test(all, a_wait_is_told_after_a_second_and_then_every_ten);
    tcase_add_loop_test(all, starts_ends_and_links_are_not_told, 0, 3);
    tcase_add_test(all, those_at_work_are_named_by_who_has_finished);
    tcase_add_loop_test(all, who_holds_the_centre_is_named, 0, 2);
    tcase_add_test(all, the_lowest_ranks_are_kept);
    return run_cases(all, NULL);
}
