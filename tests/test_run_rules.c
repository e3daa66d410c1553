/* SPDX-License-Identifier: MIT */
/* The rules and the parts of a long run, without a run. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "control/warden.h"
#include "data/safetensors.h"
#include "run/beside.h"
#include "run/checkpoint.h"
#include "run/children.h"
#include "run/config.h"
#include "run/limits.h"
#include "run/progress.h"
#include "run/signals.h"

/* --- signals --- */

#define SECOND UINT64_C(1000000000)
enum { GRAIN = 256 };           /* nanoseconds that a first signal's time may be off */

START_TEST(one_more_than_a_second_later_hurries)
{
    struct first_signal first = {0};
    const uint64_t at = 7 * SECOND;
    ck_assert_int_eq(first_signal(&first), 0);
    ck_assert_int_eq(first_signal_note(&first, SIGINT, at), SIGNAL_ENDS);
    ck_assert_int_eq(first_signal_note(&first, SIGTERM, at - SECOND / 2), SIGNAL_NOTHING);
    ck_assert_int_eq(first_signal_note(&first, SIGINT, at), SIGNAL_NOTHING);
    ck_assert_int_eq(first_signal_note(&first, SIGTERM, at + SECOND - GRAIN), SIGNAL_NOTHING);
    ck_assert_int_eq(first_signal_note(&first, SIGTERM, at + SECOND + GRAIN), SIGNAL_HURRIES);
    ck_assert_int_eq(first_signal_note(&first, SIGINT, at + 9 * SECOND), SIGNAL_HURRIES);
    ck_assert_int_eq(first_signal(&first), SIGINT);
    ck_assert_str_eq(signal_name(first_signal(&first)), "SIGINT");
}
END_TEST

START_TEST(signals_are_taken_where_a_run_sleeps)
{
    struct signals s;
    signals_block(&s);
    ck_assert_int_eq(signals_rest(&s, clock_now_ns()), SIGNAL_NOTHING);
    raise(SIGPIPE);
    ck_assert_int_eq(signals_rest(&s, UINT64_MAX), SIGNAL_NOTHING);
    ck_assert_int_eq(s.came, 0);
    raise(SIGTERM);
    ck_assert_int_eq(signals_rest(&s, UINT64_MAX), SIGNAL_ENDS);
    s.first.word += 60 * SECOND;        /* a second may pass here */
    raise(SIGINT);
    ck_assert_int_eq(signals_rest(&s, UINT64_MAX), SIGNAL_NOTHING);
    ck_assert_int_eq(s.came, SIGINT);
    ck_assert_int_eq(first_signal(&s.first), SIGTERM);
    ck_assert(!s.hurried);
    s.first.word -= 62 * SECOND;
    raise(SIGINT);
    ck_assert_int_eq(signals_rest(&s, UINT64_MAX), SIGNAL_HURRIES);
    ck_assert(s.hurried);
    raise(SIGINT);              /* would end this process */
    signals_give_back(&s);
}
END_TEST

/* --- children --- */

static int end_of(int code, int signal)
{
    int status = 0;
    pid_t parent = getpid(), pid = fork();
    if (pid == 0) {
        child_begin(parent, SIGKILL);
        if (signal)
            raise(signal);
        _exit(code);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    return status;
}

START_TEST(a_child_s_end_is_told)
{
    char text[64];
    struct signals s;
    ck_assert_str_eq(child_end_text(end_of(3, 0), text, sizeof text), "has ended with status 3");
    ck_assert_str_eq(child_end_text(end_of(0, SIGKILL), text, sizeof text),
                     "was killed by signal 9");
    signals_block(&s);          /* its child's are not blocked */
    ck_assert_str_eq(child_end_text(end_of(0, SIGTERM), text, sizeof text),
                     "was killed by signal 15");
    signals_give_back(&s);
}
END_TEST

/* --- patience --- */

/* Every sequence of six losses out of falling, equal, rising and NaN, against a plain count. */
START_TEST(patience_is_over_after_so_many_without_gain)
{
    enum { STEPS = 6, WAYS = 4, ALL = 1 << (2 * STEPS) };
    for (int number = 0; number < ALL; number++) {
        struct patience p = {0};
        double loss = 1, best = INFINITY;
        uint32_t worse = 0;
        for (int k = 0; k < STEPS; k++) {
            int way = number >> (2 * k) & (WAYS - 1);
            loss = way == 0 ? loss - 0.125 : way == 1 ? loss + 0.125 : loss;
            double said = way == 3 ? (double)NAN : loss;
            bool better = k == 0 || said < best;
            best = better ? said : best;
            worse = better ? 0 : worse + 1;
            ck_assert(patience_judge(&p, said, (uint64_t)k + 1) == better);
            ck_assert(better == (p.best_at == (uint64_t)k + 1));
            ck_assert(p.best == best || (isnan(p.best) && isnan(best)));
            ck_assert(!patience_over(&p, 0));
            for (int64_t most = 1; most <= STEPS; most++)
                ck_assert(patience_over(&p, most) == (worse >= most));
        }
    }
}
END_TEST

START_TEST(what_is_due)
{
    ck_assert(!due_by_count(0, 0, 100));
    ck_assert(!due_by_count(10, 0, 9) && due_by_count(10, 0, 10) && due_by_count(10, 9, 31));
    ck_assert(!due_by_count(10, 10, 19) && due_by_count(10, 19, 20));
    ck_assert(!due_by_time(0, 0, 100 * SECOND));
    ck_assert(!due_by_time(2, SECOND, 3 * SECOND - 1) && due_by_time(2, SECOND, 3 * SECOND));
}
END_TEST

/* --- a thread beside a run --- */

struct beside_sums {
    struct beside *beside;
    int given, sum, works;
    bool stopped;
};

static void add_given(void *of)
{
    struct beside_sums *s = of;
    s->sum += s->given;
    s->works++;
    while (s->given < 0 && !s->stopped)
        s->stopped = beside_stopping(s->beside);
}

START_TEST(work_is_handed_over_and_taken_back)
{
    struct beside_sums s = {0};
    struct log log = {.rank = -1};
    ck_assert_int_eq(beside_start(&s.beside, "sums", add_given, &s, &log), DESCANT_OK);
    for (int k = 1; k <= 1000; k++) {
        while (beside_busy(s.beside))
            continue;
        ck_assert_int_eq(s.works, k - 1);
        s.given = k;
        beside_begin(s.beside);
    }
    while (beside_busy(s.beside))
        continue;
    ck_assert_int_eq(s.sum, 500500);
    s.given = -1;               /* does not end before it is stopped, and is waited for */
    beside_begin(s.beside);
    beside_stop(s.beside);
    ck_assert(s.stopped);
    ck_assert_int_eq(s.works, 1001);
    ck_assert(!beside_busy(NULL));
}
END_TEST

START_TEST(work_that_was_handed_over_is_done)
{
    struct beside_sums s = {0};
    struct log log = {.rank = -1};
    for (int k = 1; k <= 2000; k++) {
        ck_assert_int_eq(beside_start(&s.beside, "sums", add_given, &s, &log), DESCANT_OK);
        beside_begin(s.beside);
        beside_stop(s.beside);
        ck_assert_int_eq(s.works, k);
    }
}
END_TEST

/* --- a call that does not return --- */

static void say_last(void *of)
{
    if (write(*(int *)of, "L", 1) != 1)
        _exit(1);
}

/* A process that SIGTERM finds in such a call, or beside one. Its exit status. */
static int end_of_warded(bool in_call, bool *said)
{
    int ends[2], status, signal;
    char byte;
    ck_assert_int_eq(pipe(ends), 0);
    pid_t pid = fork();
    if (pid == 0) {
        struct warden w = {.started = false};
        sigset_t term;
        sigemptyset(&term);
        sigaddset(&term, SIGTERM);
        sigprocmask(SIG_BLOCK, &term, NULL);
        warden_start(&w, say_last, &ends[1]);
        warden_enter(&w);
        if (!in_call)
            warden_leave(&w);
        alarm(30);
        pthread_kill(w.thread, SIGTERM);        /* as the process's it might be the main thread's */
        while (in_call)
            pause();
        sigwait(&term, &signal);
        warden_stop(&w);
        _exit(7);
    }
    close(ends[1]);
    *said = read(ends[0], &byte, 1) == 1;
    close(ends[0]);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFEXITED(status));
    return WEXITSTATUS(status);
}

START_TEST(a_call_that_does_not_return_is_ended)
{
    bool said;
    ck_assert_int_eq(end_of_warded(true, &said), 128 + SIGTERM);
    ck_assert(said);
    ck_assert_int_eq(end_of_warded(false, &said), 7);
    ck_assert(!said);
}
END_TEST

/* --- the learning rate --- */

static const struct {
    int schedule;
    double warmup, place, own, rate;
} rates[] = {
    {SCHEDULE_CONSTANT, 0, 0, 0, 1},
    {SCHEDULE_CONSTANT, 0.2, 0, 0, 0},
    {SCHEDULE_CONSTANT, 0.2, 0.05, 0.05, 0.25},
    {SCHEDULE_CONSTANT, 0.2, 0.15, 0.05, 0.25},         /* of a chunk that lies far behind */
    {SCHEDULE_CONSTANT, 0.2, 0.2, 0.2, 1},
    {SCHEDULE_CONSTANT, 0.2, -1, -1, 1},
    {SCHEDULE_LINEAR, 0, 0.25, 0.25, 0.75},
    {SCHEDULE_LINEAR, 0, -1, -1, 1},
    {SCHEDULE_LINEAR, 0.2, 0.1, 0.1, 0.5},
    {SCHEDULE_LINEAR, 0.2, 0.2, 0.2, 1},
    {SCHEDULE_LINEAR, 0.2, 0.6, 0.6, 0.5},
    {SCHEDULE_LINEAR, 0.2, 0.6, 0.1, 0.25},             /* of a host that came late */
    {SCHEDULE_LINEAR, 1, 0.5, 0.5, 0.5},
    {SCHEDULE_LINEAR, 0, 1, 1, 0},
    {SCHEDULE_LINEAR, 0, 1.5, 1.5, 0},
    {SCHEDULE_COSINE, 0, 0.5, 0.5, 0.5},
    {SCHEDULE_COSINE, 0.2, 0.6, 0.1, 0.25},
    {SCHEDULE_COSINE, 0, 0.75, 0.75, 0.146446609406726},
};
enum { N_RATES = sizeof rates / sizeof *rates };

START_TEST(the_rate_rises_and_falls)
{
    const struct train_options o = {.schedule = rates[_i].schedule, .warmup = rates[_i].warmup};
    ck_assert_double_eq_tol(config_rate(&o, rates[_i].place, rates[_i].own), rates[_i].rate,
                            1e-12);
}
END_TEST

/* --- the progress line --- */

START_TEST(progress_off_a_terminal)
{
    char text[256] = "";
    FILE *out = fmemopen(text, sizeof text, "w");
    struct progress p;
    progress_open(&p, out, false);
    ck_assert(!p.is_terminal);
    ck_assert(!progress_due(&p));
    p.shown_ns -= 5 * SECOND;
    ck_assert(progress_due(&p));
    progress_show(&p, "12 steps  3 modules");
    ck_assert(!progress_due(&p));
    progress_end_line(&p);
    fclose(out);
    ck_assert_str_eq(text, "12 steps  3 modules\n");
    p.shown_ns -= 5 * SECOND;
    p.quiet = true;
    ck_assert(!progress_due(&p));
}
END_TEST

/* --- a checkpoint --- */

/* FILE, FILE.previous and FILE.old after runs of their own that begin anew (n) or go on (g). */
START_TEST(what_is_there_is_kept_as_it_should_be)
{
    static const struct {
        const char *runs, *previous, *old;
    } cases[] = {
        {"n", "", ""}, {"ng", "n", ""}, {"nn", "", "n"}, {"ngn", "", "g"}, {"nng", "n", "n"},
        {"ngg", "g", ""}, {"nnn", "", "n"},
    };
    char path[64], other[80];
    struct log log = {.rank = -1};
    snprintf(path, sizeof path, "/tmp/descant-run-rules-%d", (int)getpid());
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        for (const char *run = cases[k].runs; *run; run++) {
            struct contents *c = contents_create(1, &log);
            contents_text(c, "run", "%c", *run);
            ck_assert_int_eq(checkpoint_put(path, *run == 'g', c, &log), DESCANT_OK);
            contents_destroy(c);
        }
        for (int old = 0; old < 2; old++) {
            const char *want = old ? cases[k].old : cases[k].previous;
            struct safetensors *file;
            snprintf(other, sizeof other, "%s.%s", path, old ? "old" : "previous");
            bool there = safetensors_open(&file, other, NULL) == DESCANT_OK;
            ck_assert_msg(there == (*want != 0), "%s: %s", cases[k].runs, other);
            if (there) {
                ck_assert_str_eq(safetensors_text(file, "run"), want);
                safetensors_close(file);
            }
            unlink(other);
        }
        ck_assert(checkpoint_there(path));
        unlink(path);
        ck_assert(!checkpoint_there(path));
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("run_rules");
    TCase *rules = tcase_create("rules");
    tcase_set_timeout(rules, 60);
    tcase_add_test(rules, one_more_than_a_second_later_hurries);
    tcase_add_test(rules, signals_are_taken_where_a_run_sleeps);
    tcase_add_test(rules, a_child_s_end_is_told);
    tcase_add_test(rules, patience_is_over_after_so_many_without_gain);
    tcase_add_test(rules, what_is_due);
    tcase_add_test(rules, work_is_handed_over_and_taken_back);
    tcase_add_test(rules, work_that_was_handed_over_is_done);
    tcase_add_test(rules, a_call_that_does_not_return_is_ended);
    tcase_add_loop_test(rules, the_rate_rises_and_falls, 0, N_RATES);
    tcase_add_test(rules, progress_off_a_terminal);
    tcase_add_test(rules, what_is_there_is_kept_as_it_should_be);
    suite_add_tcase(suite, rules);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
