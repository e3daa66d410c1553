/* SPDX-License-Identifier: MIT */
/* What befalls the trainers of a job, as a program and a person are told: in real processes, which
 * come, close, are killed and turn NaN. Each is at work until the test has seen what it waits for;
 * what its callbacks and its standard error have said goes into memory that all share. */
#include <check.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness/processes.h"
#include "harness/suite.h"
#include "harness/tcp.h"
#include "harness/wait.h"
#include "sync/job.h"

enum { N = 3000, MOST = 4, KINDS = DESCANT_EVENT_FINISHED + 1, TEXT = 1 << 14 };

struct observed_trainer {
    _Atomic int opened, steps;
    _Atomic int order;                      /* enum order, of the test */
    _Atomic int events[KINDS], of[KINDS];   /* how often, and the last one's rank */
    _Atomic int foreign;                    /* calls of on_event by a thread that steps */
    _Atomic int held_at;                    /* steps when a callback began to wait */
    _Atomic int n_lines;
    char lines[TEXT];                       /* of the log: "LEVEL text\n" */
};

enum order { GO_ON, TURN_NAN, TELL, CLOSE, FINISH, EXIT, PART };

static struct {
    struct observed_trainer trainers[MOST];
    _Atomic bool hold;                      /* on_event does not return before it is false */
} *page;

static char address[64];
static pid_t pids[MOST];
static pthread_t stepping;
static bool silences;                       /* on_event wants no lines */

static void set_up(void)
{
    page = share_memory(sizeof *page);
    snprintf(address, sizeof address, "shm:events-%d", (int)getpid());
    setenv("DESCANT_LOG", "warning", 1);
}

/* --- the side of a trainer --- */

static void take_line(void *user, enum descant_level level, const char *line)
{
    struct observed_trainer *t = user;
    size_t used = strlen(t->lines);
    snprintf(t->lines + used, sizeof t->lines - used, "%d %s\n", (int)level, line);
    t->n_lines++;
}

static int take_event(void *user, const struct descant_event *event)
{
    struct observed_trainer *t = user;
    t->foreign += pthread_equal(pthread_self(), stepping) != 0;
    t->held_at = t->steps;
    t->of[event->kind] = event->rank;
    t->events[event->kind] += (int)event->count;
    while (page->hold)
        clock_sleep_until(clock_now_ns() + 1000000);
    return silences;
}

enum { OWN_LOG = 1, OWN_EVENTS = 2 };

static int train(const char *plan, int rank, int size, int how)
{
    struct observed_trainer *me = &page->trainers[rank];
    struct descant_options o = descant_options_default();
    struct descant *job = NULL;
    float *w = NULL;
    o.job = address;
    o.plan = plan;
    o.rank = rank;
    o.size = size;
    o.start_s = 20;
    o.log = how & OWN_LOG ? take_line : NULL;
    o.log_user = o.event_user = me;
    o.on_event = how & OWN_EVENTS ? take_event : NULL;
    stepping = pthread_self();
    if (descant_open(&job, &o) != DESCANT_OK || (w = descant_alloc(job, "w", N)) == NULL)
        return 2;
    me->opened = 1;
    if (descant_start(job) != DESCANT_OK)
        return 2;
    bool gradients = strcmp(plan, "allreduce") == 0;
    while (me->order <= TELL) {
        for (int k = 0; k < N; k++)
            w[k] = me->order == TURN_NAN ? NAN : 1;
        float g[4] = {me->order == TURN_NAN ? NAN : 1};
        if ((gradients && descant_mean(job, g, 4) != DESCANT_OK) || descant_step(job) != DESCANT_OK)
            return 3;
        if (me->order == TELL && descant_tell(job) != DESCANT_OK)
            return 7;
        me->steps++;
        clock_sleep_until(clock_now_ns() + 100000);
    }
    if (me->order == EXIT)
        exit(0);
    if (me->order == PART &&
        (descant_tell(job) != DESCANT_OK || descant_part(job, 20) != DESCANT_OK))
        return 7;
    if (me->order == FINISH && descant_finish(job, DESCANT_FINAL_LOCAL) != DESCANT_OK)
        return 4;
    if (descant_close(job) != DESCANT_OK)
        return 5;
    return memory_live() == 0 ? 0 : 6;
}

/* Its standard error goes to the lines, too, where it has no log of its own. */
static void start(const char *plan, int rank, int size, int how)
{
    int ends[2];
    ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
    if ((pids[rank] = fork()) == 0) {
        if (!(how & OWN_LOG))
            dup2(ends[1], STDERR_FILENO);
        int code = train(plan, rank, size, how);
        exit(code);
    }
    close(ends[1]);
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    ck_assert_int_eq(dup2(ends[0], 100 + rank), 100 + rank);
    close(ends[0]);
}

static const char *words_of(int rank)
{
    static char text[TEXT];
    size_t n = 0;
    ssize_t got;
    while ((got = read(100 + rank, text + n, sizeof text - 1 - n)) > 0)
        n += (size_t)got;
    text[n] = 0;
    return n ? text : page->trainers[rank].lines;
}

static void order_end(int rank, enum order order)
{
    page->trainers[rank].order = order;
}

static void need_end(int rank)
{
    int how = 0;
    waitpid(pids[rank], &how, 0);
    ck_assert_msg(how == 0, "trainer %d ended with %x: %s", rank, how, words_of(rank));
}

static void end_all(int n, enum order order)
{
    for (int i = 0; i < n; i++)
        order_end(i, order);
    for (int i = 0; i < n; i++)
        need_end(i);
}

static int count_of(const char *text, const char *part)
{
    int n = 0;
    for (; (text = strstr(text, part)) != NULL; text += strlen(part))
        n++;
    return n;
}

/* But those of waits, which a lack of cores makes long. */
static int warnings_of(const char *lines)
{
    return count_of(lines, "2 rank") - count_of(lines, " waits in ") -
           count_of(lines, " goes on after ");
}

/* --- the side of Check --- */

START_TEST(a_death_is_told)
{
    static const char *const plans[] = {"shadow-easgd", "shadow-ma", "ma,every=4", "dasgd", "none",
                                        "easgd", "allreduce"};
    for (int i = 0; i < 3; i++)
        start(plans[_i], i, 3, OWN_LOG | OWN_EVENTS);
    for (int i = 0; i < 3; i++)
        ck_assert(reaches(&page->trainers[i].steps, 20));
    kill(pids[1], SIGKILL);
    waitpid(pids[1], NULL, 0);
    for (int i = 0; i < 3; i += 2) {
        struct observed_trainer *t = &page->trainers[i];
        ck_assert_msg(reaches(&t->events[DESCANT_EVENT_LOST], 1), "%s: %d", plans[_i], i);
        ck_assert_int_eq(t->of[DESCANT_EVENT_LOST], 1);
    }
    order_end(0, FINISH);
    order_end(2, FINISH);
    need_end(0);
    need_end(2);
    for (int i = 0; i < 3; i += 2) {
        struct observed_trainer *t = &page->trainers[i];
        ck_assert_int_eq(warnings_of(t->lines), 1);
        ck_assert_ptr_nonnull(strstr(t->lines, ": trainer 1 has died: 2 take part"));
        ck_assert_int_eq(t->events[DESCANT_EVENT_LOST], 1);
        ck_assert_int_eq(t->events[DESCANT_EVENT_JOINED], 0);
        ck_assert_int_eq(t->foreign, 0);
    }
}
END_TEST

START_TEST(coming_and_leaving_are_told)
{
    for (int i = 0; i < 2; i++)
        start("shadow-ma", i, 2, OWN_LOG | OWN_EVENTS);
    for (int i = 0; i < 2; i++)
        ck_assert(reaches(&page->trainers[i].steps, 20));
    start("shadow-ma", 2, 0, OWN_LOG | OWN_EVENTS);
    ck_assert(reaches(&page->trainers[0].events[DESCANT_EVENT_JOINED], 1));
    ck_assert_int_eq(page->trainers[0].of[DESCANT_EVENT_JOINED], 2);
    ck_assert(reaches(&page->trainers[2].steps, 20));
    order_end(2, _i ? CLOSE : FINISH);
    enum descant_event_kind kind = _i ? DESCANT_EVENT_UNFINISHED : DESCANT_EVENT_FINISHED;
    ck_assert(reaches(&page->trainers[0].events[kind], 1));
    ck_assert_int_eq(page->trainers[0].of[kind], 2);
    if (_i)
        need_end(2);
    end_all(2, FINISH);
    if (!_i)
        need_end(2);
    const char *lines = page->trainers[0].lines;
    ck_assert_ptr_nonnull(strstr(lines, "1 rank 0: trainer 2 has come: 3 take part\n"));
    if (_i)
        ck_assert_ptr_nonnull(strstr(lines, "2 rank 0: trainer 2 has left without descant_finish: 2 "
                                            "take part; they get the items that the job dealt it, "
                                            "and nobody does other work that it had\n"));
    else
        ck_assert_ptr_nonnull(strstr(lines, "0 rank 0: trainer 2 has finished: 2 take part\n"));
    ck_assert_int_eq(warnings_of(lines), _i);
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(page->trainers[i].events[DESCANT_EVENT_LOST], 0);
    ck_assert_int_eq(page->trainers[2].events[DESCANT_EVENT_UNFINISHED], _i);
}
END_TEST

static void go_over_tcp(void)
{
    struct tcp_options at;
    tcp_test_address(&at, "127.0.0.1", MOST);
    snprintf(address, sizeof address, "tcp:127.0.0.1:%s,ranks=3", at.port);
}

/* It leaves alone, and nobody misses its work. Under the plan none ranks over TCP say
 * nothing to each other. */
START_TEST(who_was_told_parts)
{
    static const char *const plans[] = {"shadow-ma", "shadow-easgd", "ma,every=4", "none"};
    if (_i >= 4)
        go_over_tcp();
    for (int i = 0; i < 3; i++)
        start(plans[_i % 4], i, 3, OWN_LOG | OWN_EVENTS);
    for (int i = 0; i < 3; i++)
        ck_assert(reaches(&page->trainers[i].steps, 20));
    order_end(2, PART);
    need_end(2);
    for (int i = 0; i < 2; i++) {
        struct observed_trainer *t = &page->trainers[i];
        ck_assert(reaches(&t->events[DESCANT_EVENT_TOLD], 1));
        ck_assert(reaches(&t->events[DESCANT_EVENT_LEFT], 1));
        ck_assert_int_eq(t->of[DESCANT_EVENT_TOLD], 2);
        ck_assert(reaches(&t->steps, t->steps + 20));
    }
    end_all(2, FINISH);
    for (int i = 0; i < 3; i++) {
        struct observed_trainer *t = &page->trainers[i];
        ck_assert_int_eq(t->events[DESCANT_EVENT_UNFINISHED], 0);
        ck_assert_int_eq(t->events[DESCANT_EVENT_LOST], 0);
        ck_assert_int_eq(count_of(t->lines, " was told to end\n"), i < 2);
        ck_assert_int_eq(count_of(t->lines, " has left: 2 take part\n"), i < 2);
        ck_assert_int_eq(count_of(t->lines, ": trainer 2") -
                             count_of(t->lines, ": trainer 2 waits in ") -
                             count_of(t->lines, ": trainer 2 goes on after "), 2 * (i < 2));
    }
}
END_TEST

/* Between machines one that waits in its finish may have to do what the leaver did. */
START_TEST(who_waits_in_finish_hears_of_a_leaver)
{
    go_over_tcp();
    for (int i = 0; i < 3; i++)
        start("shadow-ma", i, 3, OWN_LOG | OWN_EVENTS);
    for (int i = 0; i < 3; i++)
        ck_assert(reaches(&page->trainers[i].steps, 20));
    order_end(1, FINISH);
    ck_assert(reaches(&page->trainers[0].events[DESCANT_EVENT_FINISHED], 1));
    order_end(2, PART);
    need_end(2);
    ck_assert(reaches(&page->trainers[1].events[DESCANT_EVENT_LEFT], 1));
    ck_assert_int_eq(page->trainers[1].events[DESCANT_EVENT_FINISHED], 0);
    order_end(0, FINISH);
    need_end(0);
    need_end(1);
}
END_TEST

/* A trainer that was told to end, and dies before it has left, is lost. */
START_TEST(who_was_told_may_die)
{
    if (_i)
        go_over_tcp();
    for (int i = 0; i < 3; i++)
        start("shadow-ma", i, 3, OWN_LOG | OWN_EVENTS);
    for (int i = 0; i < 3; i++)
        ck_assert(reaches(&page->trainers[i].steps, 20));
    order_end(2, TELL);
    for (int i = 0; i < 2; i++)
        ck_assert(reaches(&page->trainers[i].events[DESCANT_EVENT_TOLD], 1));
    kill(pids[2], SIGKILL);
    waitpid(pids[2], NULL, 0);
    for (int i = 0; i < 2; i++) {
        struct observed_trainer *t = &page->trainers[i];
        ck_assert_msg(reaches(&t->events[DESCANT_EVENT_LOST], 1), "%d: %s", i, t->lines);
        ck_assert_int_eq(t->of[DESCANT_EVENT_LOST], 2);
    }
    end_all(2, FINISH);
    for (int i = 0; i < 2; i++)
        ck_assert_ptr_null(strstr(page->trainers[i].lines, "trainer 2 has left"));
}
END_TEST

/* Under the plan none nobody's work is kept together, so that none of it is lost. */
START_TEST(without_rounds_leaving_is_no_loss)
{
    struct observed_trainer *other = &page->trainers[0];
    for (int i = 0; i < 3; i++)
        start("none", i, 3, OWN_LOG | OWN_EVENTS);
    for (int i = 0; i < 3; i++)
        ck_assert(reaches(&page->trainers[i].steps, 20));
    order_end(2, CLOSE);
    need_end(2);
    start("none", 3, 0, OWN_LOG | OWN_EVENTS);
    ck_assert(reaches(&other->events[DESCANT_EVENT_JOINED], 1));    /* the close came before */
    order_end(3, FINISH);
    end_all(2, FINISH);
    need_end(3);
    ck_assert_int_eq(other->events[DESCANT_EVENT_UNFINISHED], 0);
    ck_assert_ptr_null(strstr(other->lines, "without descant_finish"));
}
END_TEST

/* A NaN in every round is one line, until ten seconds have passed or the job ends. */
START_TEST(nan_is_told_once)
{
    static const char *const plans[] = {"ma,every=1", "shadow-easgd", "shadow-ma", "allreduce"};
    struct observed_trainer *bad = &page->trainers[1], *other = &page->trainers[0];
    bool seen = _i != 1;            /* the centre's other users do not see it */
    for (int i = 0; i < 2; i++)
        start(plans[_i], i, 2, OWN_LOG | OWN_EVENTS);
    for (int i = 0; i < 2; i++)
        ck_assert(reaches(&page->trainers[i].steps, 20));
    order_end(1, TURN_NAN);
    ck_assert(reaches(&bad->events[DESCANT_EVENT_BAD], 30));
    ck_assert(!seen || reaches(&other->events[DESCANT_EVENT_BAD], 30));
    WAIT_UNTIL(count_of(bad->lines, "trainer 1 has NaN") > 0, "%s", bad->lines);
    WAIT_UNTIL(!seen || count_of(other->lines, "trainer 1 has NaN") > 0, "%s", other->lines);
    int more = bad->events[DESCANT_EVENT_BAD] + 2;      /* held back: the line at the end has them */
    ck_assert(reaches(&bad->events[DESCANT_EVENT_BAD], more));
    ck_assert_int_eq(count_of(bad->lines, "2 rank 1: trainer 1 has NaN"), 1);
    ck_assert_int_eq(count_of(other->lines, "2 rank 0: trainer 1 has NaN"), seen);
    ck_assert_int_eq(bad->of[DESCANT_EVENT_BAD], 1);
    end_all(2, CLOSE);
    ck_assert_int_eq(count_of(bad->lines, "trainer 1 has NaN"), 2);
    ck_assert_ptr_nonnull(strstr(bad->lines, "was left out of a round ("));
}
END_TEST

/* What to do about NaN depends on what the plan has, and can have. */
START_TEST(nan_has_advice)
{
    static const char *const cases[][3] = {
        {"ma,every=1", "heal=1 in the plan", "descant_state"},
        {"ma,every=1,heal=1", "descant_state", "heal=1 in the plan"},
        {"allreduce", "learning rate", "heal"}};
    for (int i = 0; i < 2; i++)
        start(cases[_i][0], i, 2, OWN_LOG | OWN_EVENTS);
    for (int i = 0; i < 2; i++)
        ck_assert(reaches(&page->trainers[i].steps, 20));
    order_end(1, TURN_NAN);
    ck_assert(reaches(&page->trainers[1].events[DESCANT_EVENT_BAD], 3));
    end_all(2, FINISH);
    const char *line = strstr(page->trainers[1].lines, "has NaN");
    ck_assert_ptr_nonnull(line);
    ck_assert_msg(strstr(line, cases[_i][1]) && !strstr(line, cases[_i][2]), "%s", line);
}
END_TEST

START_TEST(one_alone_hears_of_nan_only)
{
    start("shadow-ma", 0, 1, OWN_LOG | OWN_EVENTS);
    ck_assert(reaches(&page->trainers[0].steps, 20));
    order_end(0, TURN_NAN);
    ck_assert(reaches(&page->trainers[0].events[DESCANT_EVENT_BAD], 1));
    end_all(1, CLOSE);
    ck_assert_ptr_nonnull(strstr(page->trainers[0].lines, "trainer 0 has NaN or Inf in its values"));
    ck_assert_ptr_null(strstr(page->trainers[0].lines, "left out of a round"));
    ck_assert_ptr_null(strstr(page->trainers[0].lines, "others"));
    ck_assert_ptr_null(strstr(page->trainers[0].lines, "descant_finish"));
    ck_assert_int_eq(page->trainers[0].events[DESCANT_EVENT_UNFINISHED], 0);
}
END_TEST

START_TEST(a_slow_callback_stalls_nobody)
{
    struct observed_trainer *t = &page->trainers[0];
    page->hold = true;
    for (int i = 0; i < 3; i++)
        start(_i ? "ma,every=4" : "shadow-ma", i, 3, OWN_LOG | OWN_EVENTS);
    for (int i = 0; i < 3; i++)
        ck_assert(reaches(&page->trainers[i].steps, 20));
    kill(pids[2], SIGKILL);
    waitpid(pids[2], NULL, 0);
    ck_assert(reaches(&t->events[DESCANT_EVENT_LOST], 1));
    ck_assert(reaches(&t->steps, t->held_at + 500));        /* it stands in the callback still */
    ck_assert(page->hold);
    ck_assert_ptr_null(strstr(t->lines, "died"));
    page->hold = false;
    end_all(2, FINISH);
    ck_assert_int_eq(count_of(t->lines, "trainer 2 has died"), 1);
}
END_TEST

START_TEST(a_program_may_silence_the_log)
{
    silences = true;
    for (int i = 0; i < 2; i++)
        start("shadow-ma", i, 2, OWN_LOG | OWN_EVENTS);
    for (int i = 0; i < 2; i++)
        ck_assert(reaches(&page->trainers[i].steps, 20));
    kill(pids[1], SIGKILL);
    waitpid(pids[1], NULL, 0);
    ck_assert(reaches(&page->trainers[0].events[DESCANT_EVENT_LOST], 1));
    end_all(1, FINISH);
    ck_assert_ptr_null(strstr(page->trainers[0].lines, "died"));
}
END_TEST

/* Ends too early for a round, with and without finish. */
START_TEST(an_end_without_rounds_is_told)
{
    static const enum order orders[] = {FINISH, CLOSE};
    for (int i = 0; i < 2; i++)
        start("diloco,every=1000000", i, 2, OWN_LOG | OWN_EVENTS);
    for (int i = 0; i < 2; i++)
        ck_assert(reaches(&page->trainers[i].steps, 5));
    end_all(2, orders[_i]);
    for (int i = 0; i < 2; i++) {
        struct observed_trainer *t = &page->trainers[i];
        ck_assert_int_eq(t->events[DESCANT_EVENT_NO_ROUND], 1);
        int unfinished = t->events[DESCANT_EVENT_UNFINISHED];       /* its own, and perhaps the other's */
        ck_assert(_i ? unfinished == 1 || unfinished == 2 : unfinished == 0);
        ck_assert_int_eq(count_of(t->lines, "no round has been made in"), 1);
        ck_assert_int_eq(count_of(t->lines, "the job ends without descant_finish"), _i);
    }
}
END_TEST

/* Without callbacks: to standard error, by DESCANT_LOG. */
START_TEST(standard_error_has_it_by_default)
{
    static const struct {
        const char *level;
        int died, came, opened, paced;
    } cases[] = {{"", 1, 1, 0, 0}, {"warning", 1, 0, 0, 0}, {"info", 1, 1, 0, 0},
                 {"debug", 1, 1, 1, 1}, {"error", 0, 0, 0, 0}, {"off", 0, 0, 0, 0}};
    setenv("DESCANT_LOG", cases[_i].level, 1);
    start("shadow-ma", 0, 0, OWN_EVENTS);
    ck_assert(reaches(&page->trainers[0].steps, 20));
    start("shadow-ma", 1, 0, OWN_LOG | OWN_EVENTS);
    start("shadow-ma", 2, 0, OWN_LOG | OWN_EVENTS);
    for (int i = 1; i < 3; i++)
        ck_assert(reaches(&page->trainers[i].steps, 20));
    ck_assert(reaches(&page->trainers[0].events[DESCANT_EVENT_JOINED], 2));
    kill(pids[1], SIGKILL);
    waitpid(pids[1], NULL, 0);
    ck_assert(reaches(&page->trainers[0].events[DESCANT_EVENT_LOST], 1));
    order_end(0, FINISH);
    order_end(2, FINISH);
    need_end(0);
    need_end(2);
    const char *text = words_of(0);
    ck_assert_msg(count_of(text, "descant: rank 0: trainer 1 has died") == cases[_i].died, "%s",
                  text);
    ck_assert_msg(count_of(text, "trainer 2 has come") == cases[_i].came, "%s", text);
    ck_assert_msg(count_of(text, "plan shadow-ma") == cases[_i].opened, "%s", text);
    ck_assert_msg((count_of(text, " steps from one to the next") > 0) == cases[_i].paced, "%s", text);
}
END_TEST

/* Without callbacks a program that waits at its start says for whom after five seconds. */
START_TEST(a_start_that_waits_says_for_whom)
{
    char text[TEXT] = "";
    size_t n = 0;
    uint64_t until = clock_now_ns() + 30000000000u;
    start("shadow-ma", 0, 2, 0);
    while (!strstr(text, "\n") && clock_now_ns() < until) {
        ssize_t got = read(100, text + n, sizeof text - 1 - n);
        n += got > 0 ? (size_t)got : 0;
        text[n] = 0;
        clock_sleep_until(clock_now_ns() + 1000000);
    }
    ck_assert_str_eq(text, "descant: rank 0: trainer 0 waits at its start for trainer 1, at most "
                           "20 s in all\n");
    start("shadow-ma", 1, 2, 0);
    ck_assert(reaches(&page->trainers[0].steps, 1));
    end_all(2, FINISH);
}
END_TEST

/* Of trainers that wait for each other one does not agree: all fail at once, and all hear why. */
START_TEST(a_refusal_is_told_to_all)
{
    char line[64];
    int how = 0, refused = 0;

    start("shadow-ma", 0, 3, 0);
    start("shadow-ma", 2, 3, 0);
    for (int i = 0; i < 3; i += 2)
        ck_assert(reaches(&page->trainers[i].opened, 1));
    start("ma,every=4", 1, 3, 0);
    for (int i = 0; i < 3; i++) {
        waitpid(pids[i], &how, 0);
        ck_assert(WIFEXITED(how) && WEXITSTATUS(how) == 2);
        const char *text = words_of(i);
        snprintf(line, sizeof line, "rank %d: the job has \"plan ", i);
        refused += strstr(text, line) != NULL;
        ck_assert_msg(strstr(text, line) || strstr(text, "the job cannot start: trainer "), "%s",
                      text);
    }
    ck_assert(refused == 1 || refused == 2);
}
END_TEST

/* main returns, or exit is called, with a job that is open. */
START_TEST(an_exit_without_close_is_told)
{
    setenv("DESCANT_LOG", _i == 2 ? "off" : "warning", 1);
    for (int i = 0; i < 2; i++)
        start("shadow-ma", i, 2, _i == 1 ? OWN_EVENTS : 0);
    for (int i = 0; i < 2; i++)
        ck_assert(reaches(&page->trainers[i].steps, 20));
    end_all(2, EXIT);
    const char *text = words_of(0);
    ck_assert_msg(count_of(text, "the process ends, and descant_close was not called") == (_i < 2),
                  "%s", text);
    ck_assert_int_eq(page->trainers[0].events[DESCANT_EVENT_UNFINISHED], 0);
}
END_TEST

/* More kinds and ranks than there is room for. */
START_TEST(no_note_is_lost_for_room)
{
    struct notes notes;
    struct fabric_note taken[NOTES];
    uint64_t count[N_EVENT_KINDS] = {0};
    notes_init(&notes);
    for (int rank = 0; rank < 200; rank++)
        for (int kind = 0; kind < N_EVENT_KINDS; kind++)
            notes_add(&notes, (enum descant_event_kind)kind, rank);
    int n = notes_take(&notes, taken);
    ck_assert_int_le(n, NOTES);
    for (int i = 0; i < n; i++)
        count[taken[i].kind] += taken[i].count;
    for (int kind = 0; kind < N_EVENT_KINDS; kind++)
        ck_assert_uint_eq(count[kind], 200);
    notes_fini(&notes);
}
END_TEST

static void is_life(const struct notes *notes, int rank, bool lost, bool parted)
{
    const struct rank_life life = notes_life(notes, rank);

    ck_assert_int_eq(life.lost, lost);
    ck_assert_int_eq(life.parted, parted);
}

/* Ranks that are no longer there are remembered until they come again: one that has parted is
 * given up only after a while, for it may have words on their way. */
START_TEST(ranks_that_have_gone_are_remembered)
{
    static const struct {
        enum descant_event_kind kind;
        bool gone, left;
    } cases[] = {{DESCANT_EVENT_LOST, true, false}, {DESCANT_EVENT_UNFINISHED, true, false},
                 {DESCANT_EVENT_LEFT, false, true}, {DESCANT_EVENT_FINISHED, false, false},
                 {DESCANT_EVENT_TOLD, false, false}, {DESCANT_EVENT_BAD, false, false}};
    struct notes notes = {0};
    notes_init(&notes);
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++)
        for (int rank = 63; rank < NOTES_RANKS; rank += 100) {
            notes_add(&notes, cases[k].kind, rank);
            is_life(&notes, rank, cases[k].gone, cases[k].left);
            is_life(&notes, rank + 1, false, false);
            is_life(&notes, rank - 1, false, false);
            notes_add(&notes, DESCANT_EVENT_JOINED, rank);
            is_life(&notes, rank, false, false);
        }
    notes_fini(&notes);
    struct owners_known known = {.came = 1, .lives = 1};
    struct owners_life is = {.lives = 1, .ended = true, .parted = true, .came = 1};
    ck_assert(!owners_is_lost(&known, &is, 5) && !owners_is_lost(&known, &is, OWNERS_PARTED_NS + 4));
    ck_assert(owners_is_lost(&known, &is, OWNERS_PARTED_NS + 5));
    is = (struct owners_life){.lives = 2, .came = 2};           /* it comes again, and parts again */
    ck_assert(!owners_is_lost(&known, &is, OWNERS_PARTED_NS + 6));
    is.ended = is.parted = true;
    ck_assert(!owners_is_lost(&known, &is, 2 * OWNERS_PARTED_NS));
}
END_TEST

static void open_alone(struct descant **job, struct observed_trainer *me,
                       descant_on_event *fn)
{
    struct descant_options o = descant_options_default();
    o.job = "self";
    o.plan = "shadow-ma";
    o.log = take_line;
    o.log_user = me;
    o.on_event = fn;
    o.event_user = job;
    ck_assert_int_eq(descant_open(job, &o), DESCANT_OK);
    ck_assert_ptr_nonnull(descant_alloc(*job, "w", N));
    ck_assert_int_eq(descant_start(*job), DESCANT_OK);
}

/* Many trainers' lines are held back, too: those without a place of their own as one. */
START_TEST(many_trainers_are_told_together)
{
    struct observed_trainer *me = &page->trainers[0];
    struct descant *job;
    open_alone(&job, me, NULL);
    struct notes *notes = &job->events.notes;
    for (int rank = 1; rank <= 200; rank++) {
        bool taken = false;
        notes_add(notes, DESCANT_EVENT_LEFT, rank);
        while (!taken) {
            pthread_mutex_lock(&notes->lock);
            taken = notes->n == 0;
            pthread_mutex_unlock(&notes->lock);
        }
    }
    ck_assert_int_eq(descant_close(job), DESCANT_OK);
    int own = count_of(me->lines, ": trainer "), rest = count_of(me->lines, ": another trainer has");
    /* the line that was held back is said again after ten seconds */
    ck_assert_msg(own == NOTES - N_EVENT_KINDS && (rest == 2 || rest == 3), "%d and %d", own, rest);
}
END_TEST

static _Atomic int refusals;

static int end_in_a_callback(void *user, const struct descant_event *event)
{
    struct descant *job = *(struct descant **)user;
    (void)event;
    refusals += descant_finish(job, DESCANT_FINAL_LOCAL) == DESCANT_INVALID;
    refusals += descant_leave(job) == DESCANT_INVALID;
    refusals += descant_close(job) == DESCANT_INVALID;
    refusals += strstr(descant_last_error(), "descant_close: not in a callback") != NULL;
    return 0;
}

START_TEST(a_callback_cannot_end_the_job)
{
    struct descant *job;
    open_alone(&job, &page->trainers[0], end_in_a_callback);
    notes_add(&job->events.notes, DESCANT_EVENT_LEFT, 1);
    ck_assert(reaches(&refusals, 4));
    ck_assert_int_eq(descant_finish(job, DESCANT_FINAL_LOCAL), DESCANT_OK);
    ck_assert_int_eq(descant_close(job), DESCANT_OK);
    ck_assert_int_eq(memory_live(), 0);
}
END_TEST

/* The kernel ends a process whose instruction causes a signal that its thread has blocked, and asks
 * no handler. */
START_TEST(threads_keep_the_signals_of_their_instructions)
{
    sigset_t before, held;
    signals_hold(&before);
    pthread_sigmask(SIG_SETMASK, &before, &held);
    ck_assert(sigismember(&held, SIGTERM) && sigismember(&held, SIGCHLD));
    ck_assert(!sigismember(&held, SIGBUS) && !sigismember(&held, SIGSEGV));
}
END_TEST

START_TEST(an_unknown_level_is_refused)
{
    struct descant_options o = descant_options_default();
    struct descant *job = NULL;
    setenv("DESCANT_LOG", "loud", 1);
    o.job = "self";
    ck_assert_int_eq(descant_open(&job, &o), DESCANT_INVALID);
    ck_assert_ptr_nonnull(strstr(descant_last_error(), "DESCANT_LOG=loud: it is debug, info"));
}
END_TEST

int main(void)
{
    TCase *all = new_case("events", 90);
    tcase_add_checked_fixture(all, set_up, NULL);
    tcase_add_loop_test(all, a_death_is_told, 0, 7);
    tcase_add_loop_test(all, coming_and_leaving_are_told, 0, 2);
    tcase_add_loop_test(all, who_was_told_parts, 0, 7);
    tcase_add_test(all, who_waits_in_finish_hears_of_a_leaver);
    tcase_add_loop_test(all, who_was_told_may_die, 0, 2);
    tcase_add_test(all, without_rounds_leaving_is_no_loss);
    tcase_add_loop_test(all, nan_is_told_once, 0, 4);
    tcase_add_loop_test(all, nan_has_advice, 0, 3);
    tcase_add_test(all, one_alone_hears_of_nan_only);
    tcase_add_loop_test(all, a_slow_callback_stalls_nobody, 0, 2);
    tcase_add_test(all, a_program_may_silence_the_log);
    tcase_add_loop_test(all, an_end_without_rounds_is_told, 0, 2);
    tcase_add_loop_test(all, standard_error_has_it_by_default, 0, 6);
    tcase_add_test(all, a_start_that_waits_says_for_whom);
    tcase_add_test(all, a_refusal_is_told_to_all);
    tcase_add_loop_test(all, an_exit_without_close_is_told, 0, 3);
    tcase_add_test(all, no_note_is_lost_for_room);
    tcase_add_test(all, ranks_that_have_gone_are_remembered);
    tcase_add_test(all, many_trainers_are_told_together);
    tcase_add_test(all, a_callback_cannot_end_the_job);
    tcase_add_test(all, threads_keep_the_signals_of_their_instructions);
    tcase_add_test(all, an_unknown_level_is_refused);
    return run_cases(all, NULL);
}
