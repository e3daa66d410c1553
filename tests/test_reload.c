/* SPDX-License-Identifier: MIT */
/* Checkpoints taken up by a running job: under every preset all trainers end with exactly the
 * values that one of them brought, and with the outer state that it loaded. Trainers are threads
 * of this process; the link of their job is slow, so that rounds are in flight at any moment. */
#include "harness/jobs.h"
#include "harness/suite.h"
#include "harness/tcp.h"
#include "sync/hold.h"
#include "sync/job.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { N = 3000, MORE = 24 };

#define RESTORED 100.0f

/* The presets, with periods that a short test reaches. */
static const struct { const char *plan; int every; } rows[] = {
    {"allreduce", 1}, {"shadow-easgd", 1}, {"shadow-ma", 1}, {"shadow-bmuf", 1},
    {"easgd,every=4", 4}, {"ma,every=4", 4}, {"bmuf,every=4", 4}, {"dasgd", 4},
    {"dasgd-delta", 4}, {"diloco,every=4", 4}, {"diloco-delta,every=4,delay=2", 4},
    {"easgd,every=4,delay=2", 4}, {"shadow-ma,merge=delta", 1}, {"shadow-easgd,merge=delta", 1},
    {"dasgd,every=3,delay=3", 3},
};
#define N_ROWS ((int)(sizeof rows / sizeof *rows))

struct reload_trainer {
    const char *plan;
    int rank, every;
    bool attached, source;
    _Atomic bool *still, *stands, *restored;    /* shared: train no more; seen; has arrived */
    float *w, g[N];
    int t;
};

static void step(struct descant *job, struct reload_trainer *x)
{
    if (strncmp(x->plan, "allreduce", 9) == 0)
        ck_assert_int_eq(descant_mean(job, x->g, N), DESCANT_OK);
    ck_assert_msg(descant_step(job) == DESCANT_OK, "%s", descant_last_error());
    x->t++;
    clock_sleep_until(clock_now_ns() + 200000);
}

static bool all_are(const float *w, float value)
{
    for (int k = 0; k < N; k++)
        if (w[k] < value || w[k] > value)
            return false;
    return true;
}

static void restore(struct descant *job, struct reload_trainer *x)
{
    ck_assert_msg(descant_pause(job) == DESCANT_OK, "%s", descant_last_error());
    for (int k = 0; k < N; k++) {
        x->w[k] = RESTORED;
        if (k == N / 2)
            clock_sleep_until(clock_now_ns() + 10000000);   /* rounds that went on would end */
    }
    ck_assert_int_eq(descant_reload(job), DESCANT_OK);
}

static void *train(void *context)
{
    struct reload_trainer *x = context;
    struct descant *job = open_here(x->plan, x->rank, 2);
    float *mine = calloc(N, sizeof *mine);
    x->w = x->attached ? mine : descant_alloc(job, "w", N);
    if (x->attached)
        ck_assert_int_eq(descant_attach(job, "w", mine, N), DESCANT_OK);
    ck_assert_int_eq(descant_start(job), DESCANT_OK);
    for (int t = 0; t < 20 || !atomic_load(x->still); t++) {
        for (int k = 0; k < N; k++)
            x->w[k] += x->rank ? 1 : -2;
        step(job, x);
        if (x->source && t >= 20)
            atomic_store(x->still, true);
    }
    if (!x->source)
        atomic_store(x->stands, true);
    while (x->source && !(atomic_load(x->stands) && x->t % x->every == 0))
        step(job, x);
    if (x->source)
        restore(job, x);
    while (!atomic_load(x->restored)) {
        if (!x->source && all_are(x->w, RESTORED))
            atomic_store(x->restored, true);
        step(job, x);
    }
    for (int t = 0; t < MORE; t++) {
        step(job, x);
        ck_assert_msg(all_are(x->w, RESTORED), "%s, trainer %d: %g", x->plan, x->rank,
                      (double)x->w[7]);
    }
    ck_assert_int_eq(descant_finish(job, DESCANT_FINAL_LOCAL), DESCANT_OK);
    ck_assert(all_are(x->w, RESTORED));
    ck_assert_int_eq(descant_close(job), DESCANT_OK);
    free(mine);
    return NULL;
}

START_TEST(all_take_what_was_restored)
{
    _Atomic bool still = false, stands = false, restored = false;
    static struct reload_trainer x[2];
    int source = _i / 2 % 2;
    pthread_t other;
    new_address(",rtt=2ms");
    for (int i = 0; i < 2; i++)
        x[i] = (struct reload_trainer){.plan = rows[_i / 2].plan,
                                       .every = rows[_i / 2].every,
                                       .rank = i,
                                       .attached = _i % 2,
                                       .source = i == source,
                                       .still = &still,
                                       .stands = &stands,
                                       .restored = &restored};
    pthread_create(&other, NULL, train, &x[1]);
    train(&x[0]);
    pthread_join(other, NULL);
    ck_assert_int_eq(memory_live(), 0);
}
END_TEST

/* Whoever goes to the end straight away: the others have it all the same. */
static void *follow(void *context)
{
    struct descant *job = open_here(context, 0, 2);
    float *w = descant_alloc(job, "w", N);
    ck_assert_int_eq(descant_start(job), DESCANT_OK);
    while (!all_are(w, RESTORED)) {
        ck_assert_int_eq(descant_step(job), DESCANT_OK);
        clock_sleep_until(clock_now_ns() + 200000);
    }
    ck_assert_int_eq(descant_finish(job, DESCANT_FINAL_LOCAL), DESCANT_OK);
    ck_assert(all_are(w, RESTORED));
    ck_assert_int_eq(descant_close(job), DESCANT_OK);
    return NULL;
}

START_TEST(a_reload_before_the_end_is_given)
{
    static char plans[][20] = {"shadow-easgd", "shadow-ma", "easgd,every=4", "ma,every=4",
                               "dasgd"};
    pthread_t other;
    new_address(",rtt=2ms");
    pthread_create(&other, NULL, follow, plans[_i]);
    struct reload_trainer x = {.plan = plans[_i], .rank = 1};
    struct descant *job = open_here(plans[_i], 1, 2);
    x.w = descant_alloc(job, "w", N);
    ck_assert_int_eq(descant_start(job), DESCANT_OK);
    restore(job, &x);
    ck_assert_int_eq(descant_finish(job, DESCANT_FINAL_LOCAL), DESCANT_OK);
    pthread_join(other, NULL);
    ck_assert_int_eq(descant_close(job), DESCANT_OK);
}
END_TEST

struct ending {
    struct descant *job;
    enum descant_final which;
    pthread_t thread;
};

static void *end(void *context)
{
    struct ending *e = context;
    ck_assert_msg(descant_finish(e->job, e->which) == DESCANT_OK, "%s", descant_last_error());
    return NULL;
}

static void open_two(const char *plan, struct descant *job[2], float *w[2])
{
    new_address(",rtt=2ms");
    for (int i = 0; i < 2; i++) {
        job[i] = open_here(plan, i, 2);
        w[i] = descant_alloc(job[i], "w", N);
    }
    start_both(job);
}

/* Both end with what the second has restored, which finishes here. */
static void end_restored(struct descant *const job[2], float *const w[2], struct ending *first)
{
    struct ending last = {.job = job[1], .which = first->which};
    end(&last);
    pthread_join(first->thread, NULL);
    for (int i = 0; i < 2; i++) {
        ck_assert_msg(all_are(w[i], RESTORED), "trainer %d: %g", i, (double)w[i][7]);
        ck_assert_int_eq(descant_close(job[i]), DESCANT_OK);
    }
    ck_assert_int_eq(memory_live(), 0);
}

/* The first has left the rounds, and has seen more of them, when the other reloads. */
START_TEST(who_has_finished_takes_a_reload_at_its_end)
{
    static const struct { const char *plan; enum descant_final which; } cases[] = {
        {"shadow-easgd", DESCANT_FINAL_LOCAL}, {"shadow-ma", DESCANT_FINAL_LOCAL},
        {"easgd,every=4", DESCANT_FINAL_LOCAL}, {"ma,every=4", DESCANT_FINAL_LOCAL},
        {"dasgd", DESCANT_FINAL_LOCAL}, {"allreduce", DESCANT_FINAL_LOCAL},
        {"shadow-easgd", DESCANT_FINAL_CENTRAL}, {"shadow-bmuf", DESCANT_FINAL_CENTRAL},
    };
    struct descant *job[2];
    struct descant_members m = {.size = 2};
    float *w[2];
    open_two(cases[_i].plan, job, w);
    atomic_fetch_add(&job[0]->stats.rounds, 1000);
    struct ending first = {.job = job[0], .which = cases[_i].which};
    pthread_create(&first.thread, NULL, end, &first);
    while (m.size == 2) {
        clock_sleep_until(clock_now_ns() + 1000000);
        ck_assert_int_eq(descant_members(job[1], &m), DESCANT_OK);
    }
    struct reload_trainer x = {.plan = cases[_i].plan, .rank = 1, .w = w[1]};
    restore(job[1], &x);
    end_restored(job, w, &first);
}
END_TEST

static uint64_t rounds_of(struct descant *job)
{
    struct descant_stats s;
    ck_assert_int_eq(descant_stats(job, &s), DESCANT_OK);
    return s.rounds;
}

/* Until the first job has had so many rounds more; their shadows make them. */
static void have_rounds(struct descant *const job[2], uint64_t more)
{
    uint64_t until = rounds_of(job[0]) + more;
    while (rounds_of(job[0]) < until) {
        for (int i = 0; i < 2; i++)
            ck_assert_int_eq(descant_step(job[i]), DESCANT_OK);
        clock_sleep_until(clock_now_ns() + 1000000);
    }
}

/* Every step has been in a round, and none is in hand (or one is, where `open`). */
static bool served(struct descant *job, bool open)
{
    pthread_mutex_lock(&job->machine);
    bool yes = job->begun_steps == workers_steps(&job->workers) &&
               (open || job->round.state == ROUND_IDLE);
    pthread_mutex_unlock(&job->machine);
    return yes;
}

static void settle(struct descant *const job[2])
{
    while (!(served(job[0], false) && served(job[1], false) && served(job[0], false)))
        clock_sleep_until(clock_now_ns() + 1000000);
}

static bool waits_for(struct descant *job, const char *whom)
{
    char text[400] = "";
    clock_sleep_until(clock_now_ns() + 1000000);
    descant_waits(job, text, sizeof text);
    return strstr(text, whom) != NULL;
}

/* The first is told to finish while its round, in which a reload has come, is only to be closed. */
START_TEST(who_finishes_takes_the_reload_of_its_round)
{
    static const char *const plans[] = {"shadow-ma", "shadow-bmuf,momentum=0.5"};
    struct descant *job[2];
    float *w[2];
    open_two(plans[_i], job, w);
    have_rounds(job, 1);            /* else the second may have answered a call of the start */
    settle(job);
    ck_assert_int_eq(descant_pause(job[1]), DESCANT_OK);
    while (!waits_for(job[0], "for trainer 1"))
        ck_assert_int_eq(descant_step(job[0]), DESCANT_OK);
    job_hold(job[0]);
    struct ending first = {.job = job[0], .which = DESCANT_FINAL_MEAN};
    pthread_create(&first.thread, NULL, end, &first);
    while (!atomic_load(&job[0]->shadow_stop))
        clock_sleep_until(clock_now_ns() + 1000000);
    for (int k = 0; k < N; k++)
        w[1][k] = RESTORED;
    ck_assert_int_eq(descant_reload(job[1]), DESCANT_OK);
    while (!waits_for(job[1], "for trainer 0"))
        ;
    job_release(job[0]);
    end_restored(job, w, &first);
}
END_TEST

/* ------------------------------------------------------------------ the outer state */

static unsigned char *outer_state(struct descant *job, size_t *bytes)
{
    unsigned char *state = NULL;
    ck_assert_int_eq(descant_outer_save(job, NULL, bytes), DESCANT_OK);
    state = malloc(*bytes);
    ck_assert_int_eq(descant_outer_save(job, state, bytes), DESCANT_OK);
    return state;
}

/* Whatever rounds the others make meanwhile, what was loaded is what all go on from. */
START_TEST(what_was_loaded_stays)
{
    static const char *const plans[] = {"shadow-easgd", "shadow-bmuf,momentum=0.5",
                                        "shadow-bmuf,merge=delta"};
    struct descant *job[2];
    float *w[2];
    size_t bytes;
    new_address(",rtt=2ms");
    for (int i = 0; i < 2; i++) {
        job[i] = open_here(plans[_i], i, 0);
        w[i] = descant_alloc(job[i], "w", N);
        ck_assert_int_eq(descant_start(job[i]), DESCANT_OK);
    }
    for (int r = 0; r < 3; r++) {
        for (int k = 0; k < N; k++)
            w[0][k] += (float)k;
        have_rounds(job, 1);
    }
    unsigned char *saved = outer_state(job[1], &bytes), *now;
    have_rounds(job, 5);
    settle(job);
    ck_assert_int_eq(descant_outer_load(job[1], saved, bytes), DESCANT_ORDER);
    ck_assert_int_eq(descant_pause(job[1]), DESCANT_OK);
    for (int k = 0; k < N; k++)
        w[1][k] = RESTORED;
    ck_assert_int_eq(descant_outer_load(job[1], saved, bytes), DESCANT_OK);
    ck_assert_int_eq(descant_step(job[0]), DESCANT_OK);
    while (!served(job[0], true))
        clock_sleep_until(clock_now_ns() + 1000000);
    ck_assert_int_eq(descant_step(job[1]), DESCANT_ORDER);
    ck_assert_int_eq(descant_pause(job[1]), DESCANT_ORDER);
    ck_assert_int_eq(descant_reload(job[1]), DESCANT_OK);
    ck_assert_int_eq(descant_reload(job[1]), DESCANT_ORDER);
    while (!all_are(w[0], RESTORED))
        clock_sleep_until(clock_now_ns() + 1000000);
    settle(job);
    for (int i = 0; i < 2; i++) {
        now = outer_state(job[i], &bytes);
        ck_assert_mem_eq(now, saved, bytes);
        free(now);
    }
    free(saved);
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(descant_close(job[i]), DESCANT_OK);
    ck_assert_int_eq(memory_live(), 0);
}
END_TEST

/* An outer state of rounds that one trainer made alone. */
static unsigned char *made_alone(const char *plan, float by, size_t *bytes)
{
    struct descant *job = open_job("self", plan, -1, 0);
    float *w = descant_alloc(job, "w", N);
    ck_assert_int_eq(descant_start(job), DESCANT_OK);
    for (int r = 0; r < 12; r++) {
        for (int k = 0; k < N; k++)
            w[k] += by * (float)k;
        ck_assert_int_eq(descant_step(job), DESCANT_OK);
    }
    ck_assert_int_eq(descant_finish(job, DESCANT_FINAL_LOCAL), DESCANT_OK);
    unsigned char *state = outer_state(job, bytes);
    ck_assert_int_eq(descant_close(job), DESCANT_OK);
    return state;
}

struct beginner {
    const char *plan;
    int rank, size;
    float first;
    const void *loads;      /* NULL: nothing */
    size_t bytes;
    struct descant *job;
    float *w;
};

static void *begin(void *context)
{
    struct beginner *x = context;
    x->job = open_job(job_address, x->plan, x->rank, x->size);
    x->w = descant_alloc(x->job, "w", N);
    for (int k = 0; k < N; k++)
        x->w[k] = x->first;
    if (x->loads)
        ck_assert_int_eq(descant_outer_load(x->job, x->loads, x->bytes), DESCANT_OK);
    ck_assert_msg(descant_start(x->job) == DESCANT_OK, "%s", descant_last_error());
    return NULL;
}

static void begin_both(struct beginner of[2])
{
    pthread_t other;
    pthread_create(&other, NULL, begin, &of[1]);
    begin(&of[0]);
    pthread_join(other, NULL);
}

/* What a trainer has after its start, unless a shadow, which took the other's start for a call,
 * has begun a round since: then false. */
static bool is_restored(struct beginner *x, const unsigned char *saved, size_t bytes)
{
    size_t n;
    unsigned char *now = outer_state(x->job, &n);
    bool same = all_are(x->w, RESTORED) && n == bytes && memcmp(now, saved, bytes) == 0;
    bool still = served(x->job, false) && rounds_of(x->job) == 0;
    free(now);
    ck_assert(same || !still);
    return same;
}

static bool both_are_restored(struct beginner of[2], const unsigned char *saved, size_t bytes)
{
    begin_both(of);
    bool restored[2];
    for (int i = 0; i < 2; i++)
        restored[i] = is_restored(&of[i], saved, bytes);
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(descant_close(of[i].job), DESCANT_OK);
    return restored[0] && restored[1];
}

/* Over shared memory and over TCP. */
START_TEST(what_was_loaded_before_start_is_there_at_once)
{
    static const char *const plans[] = {"shadow-easgd", "shadow-bmuf,momentum=0.5", "bmuf,every=4",
                                        "diloco-delta,every=4,delay=2"};
    const char *plan = plans[_i / 2];
    size_t bytes;
    unsigned char *saved = made_alone(plan, 1, &bytes);
    struct beginner of[2] = {{plan, 0, 2, 1, NULL, 0, NULL, NULL},
                             {plan, 1, 2, RESTORED, saved, bytes, NULL, NULL}};
    struct tcp_options at;
    do {
        new_address("");
        tcp_test_address(&at, "127.0.0.1", 2);
        if (_i % 2)
            snprintf(job_address, sizeof job_address, "tcp:127.0.0.1:%s,ranks=2", at.port);
    } while (!both_are_restored(of, saved, bytes));
    free(saved);
    ck_assert_int_eq(memory_live(), 0);
}
END_TEST

/* Whatever it has loaded: another state, with another replica. */
START_TEST(who_comes_late_takes_what_the_job_has)
{
    size_t bytes;
    unsigned char *saved = made_alone("shadow-easgd", 1, &bytes);
    unsigned char *others = made_alone("shadow-easgd", 2, &bytes);
    struct beginner of[2] = {{"shadow-easgd", 0, 0, 1, others, bytes, NULL, NULL},
                             {"shadow-easgd", 1, 0, RESTORED, saved, bytes, NULL, NULL}};
    size_t n;
    new_address("");
    begin(&of[1]);
    begin(&of[0]);
    ck_assert(all_are(of[1].w, RESTORED));
    for (int i = 0; i < 2; i++) {
        unsigned char *now = outer_state(of[i].job, &n);
        ck_assert_mem_eq(now, saved, bytes);
        free(now);
        ck_assert_int_eq(descant_close(of[i].job), DESCANT_OK);
    }
    free(saved);
    free(others);
    ck_assert_int_eq(memory_live(), 0);
}
END_TEST

/* Torn bytes are refused at once, segments that came after the load at the start. */
START_TEST(what_does_not_fit_is_not_begun_with)
{
    size_t bytes;
    unsigned char *saved = made_alone("shadow-easgd", 1, &bytes);
    struct descant *job = open_job("self", "shadow-easgd", -1, 0);
    ck_assert_int_eq(descant_outer_load(job, saved, bytes), DESCANT_CORRUPT);
    ck_assert_ptr_nonnull(descant_alloc(job, "w", N));
    ck_assert_int_eq(descant_outer_load(job, saved, bytes - 1), DESCANT_CORRUPT);
    ck_assert_int_eq(descant_outer_load(job, saved, bytes), DESCANT_OK);
    ck_assert_int_eq(descant_outer_load(job, saved, bytes), DESCANT_OK);
    ck_assert_ptr_nonnull(descant_alloc(job, "v", 10));
    ck_assert_int_eq(descant_start(job), DESCANT_CORRUPT);
    ck_assert_ptr_nonnull(strstr(descant_last_error(), "1 vectors of 3000 floats, this job 1 of 3010"));
    descant_close(job);
    job = open_job("self", "shadow-easgd", -1, 0);
    ck_assert_ptr_nonnull(descant_alloc(job, "w", N));
    ck_assert_int_eq(descant_outer_load(job, saved, bytes), DESCANT_OK);
    descant_close(job);             /* never started */
    free(saved);
    ck_assert_int_eq(memory_live(), 0);
}
END_TEST

START_TEST(who_paused_may_finish)
{
    new_address("");
    struct descant *job = open_here("shadow-ma,alpha=1", -1, 0);
    float *w = descant_alloc(job, "w", N);
    ck_assert_int_eq(descant_start(job), DESCANT_OK);
    ck_assert_int_eq(descant_step(job), DESCANT_OK);
    ck_assert_int_eq(descant_pause(job), DESCANT_OK);
    for (int k = 0; k < N; k++)
        w[k] = RESTORED;
    ck_assert_msg(descant_finish(job, DESCANT_FINAL_MEAN) == DESCANT_OK, "%s", descant_last_error());
    ck_assert(all_are(w, RESTORED));
    ck_assert_int_eq(descant_close(job), DESCANT_OK);
}
END_TEST

START_TEST(there_is_nothing_to_pause_without_rounds)
{
    new_address(",rtt=2ms");
    struct descant *job = open_here("none", -1, 0);
    ck_assert_ptr_nonnull(descant_alloc(job, "w", N));
    ck_assert_int_eq(descant_pause(job), DESCANT_ORDER);
    ck_assert_int_eq(descant_start(job), DESCANT_OK);
    ck_assert_int_eq(descant_pause(job), DESCANT_UNSUPPORTED);
    ck_assert_int_eq(descant_step(job), DESCANT_OK);
    descant_close(job);
}
END_TEST

int main(void)
{
    TCase *all = new_case("reload", 60);
    tcase_add_loop_test(all, all_take_what_was_restored, 0, 2 * N_ROWS);
    tcase_add_loop_test(all, a_reload_before_the_end_is_given, 0, 5);
    tcase_add_loop_test(all, who_has_finished_takes_a_reload_at_its_end, 0, 8);
    tcase_add_loop_test(all, who_finishes_takes_the_reload_of_its_round, 0, 2);
    tcase_add_loop_test(all, what_was_loaded_stays, 0, 3);
    tcase_add_loop_test(all, what_was_loaded_before_start_is_there_at_once, 0, 8);
    tcase_add_test(all, who_comes_late_takes_what_the_job_has);
    tcase_add_test(all, what_does_not_fit_is_not_begun_with);
    tcase_add_test(all, who_paused_may_finish);
    tcase_add_test(all, there_is_nothing_to_pause_without_rounds);
    return run_cases(all, NULL);
}
