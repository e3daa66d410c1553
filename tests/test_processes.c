/* SPDX-License-Identifier: MIT */
/* What descant.h promises where there are several trainers: real processes under every kind of plan,
 * that end, come late, wait and are killed. */
#include <check.h>
#include <dirent.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/base.h"
#include "harness/jobs.h"
#include "harness/processes.h"
#include "harness/suite.h"
#include "harness/values.h"
#include "harness/wait.h"

enum { N = 3000 };

/* What trainers and the test tell each other. */
struct processes_page {
    _Atomic int made[3];        /* steps; written by the trainer of that rank, INT_MAX by the test
                                   for one that is not waited for */
    _Atomic bool endless;       /* they go on; written by the test */
    _Atomic bool settled;       /* set by the first that has seen enough: nobody trains on alone */
};

static struct processes_page *page; /* set before they are forked */

static void page_make(int trainers)
{
    page = share_memory(sizeof *page);
    for (int i = trainers; i < 3; i++)
        page->made[i] = INT_MAX;
}

/* What one trainer has seen since it had made its own steps. */
struct processes_seen {
    int made[3], rounds;
    uint64_t round;
};

/* A round counts once every trainer has made 20 steps since the last that did: a shadow merges
 * also while its worker, or another's, has no core. Outer momentum 0.75 halves an overshoot in
 * five rounds, by sqrt(0.75) each. */
static bool settled(struct processes_seen *seen, uint64_t round)
{
    bool counts = round > seen->round;
    for (int i = 0; i < 3; i++)
        counts &= page->made[i] - 20 >= seen->made[i];
    if (counts) {
        for (int i = 0; i < 3; i++)
            seen->made[i] = page->made[i] < INT_MAX ? page->made[i] : 0;
        seen->round = round;
        seen->rounds++;
    }
    if (seen->rounds == 60)
        page->settled = true;
    return page->settled && round > 2;      /* its own shadow has had a core, too */
}

/* Outer momentum first carries replicas past their optimum, 1. */
static float least_near_start(const char *plan)
{
    return strstr(plan, "bmuf") || strstr(plan, "diloco") ? -1.5f : 0.9f;
}

/* Who exchanges with the centre waits for nobody: one that has just begun would pull it, and with
 * it those who are at their last step, back to where it began. */
static void await_others(int size, int steps)
{
    uint64_t until = clock_now_ns() + 20 * UINT64_C(1000000000);
    for (int i = 0; i < size; i++)
        while (page->made[i] < steps && clock_now_ns() < until)
            clock_sleep_until(clock_now_ns() + 100000);
}

/* A step towards the optimum, 1. */
ONE_THREAD static void gradient(float *g, const float *w, float noise, uint32_t *seed)
{
    for (int k = 0; k < N; k++) {
        *seed = *seed * 1664525 + 1013904223;
        g[k] = w[k] - 1 + noise * ((float)(*seed >> 8) / (1 << 24) - 0.5f);
    }
}

ONE_THREAD static void descend(float *w, const float *g)
{
    for (int k = 0; k < N; k++)
        w[k] -= 0.05f * g[k];
}

/* Trains towards a known optimum; the start differs in every trainer, so that only the start's
 * sharing makes them alike. Returns 0 where all is as promised. */
static int trainer(const char *job_name, const char *plan, int rank, int size, int steps,
                   bool attached, enum descant_final final)
{
    struct descant *job = open_job(job_name, plan, rank, size);
    float *mine = calloc(N, sizeof *mine), *w = mine;
    if (!attached)
        w = descant_alloc(job, "w", N);
    else if (descant_attach(job, "w", mine, N) != DESCANT_OK)
        return 1;
    if (w == NULL)
        return 1;
    for (int k = 0; k < N; k++)
        w[k] = (float)rank + 3;
    if (descant_start(job) != DESCANT_OK)
        return 2;
    bool shadow = strncmp(plan, "shadow", 6) == 0;     /* its rounds may have begun already */
    if (!(w[0] > (shadow ? least_near_start(plan) : 2.5f) && w[0] < 3.5f &&
          (shadow || w[N - 1] == w[0])))
        return 3;
    bool allreduce = strncmp(plan, "allreduce", 9) == 0;
    float *g = calloc(N, sizeof *g);
    uint32_t seed = (uint32_t)rank + 1;
    struct descant_stats s = {0};
    struct processes_seen seen = {{0}, 0, 0};
    for (int t = 0; t < steps || page->endless ||
                    (shadow && !settled(&seen, s.rounds) && t < 10000000); t++) {
        if (strncmp(plan, "easgd", 5) == 0 && t == steps - 100 && !page->endless)
            await_others(size, t - 1);
        float noise = shadow && t >= steps ? 0 : 0.05f;     /* outer momentum makes more of it */
        gradient(g, w, noise, &seed);
        if (allreduce && descant_mean(job, g, N) != DESCANT_OK)
            return 4;
        descend(w, g);
        if (descant_step(job) != DESCANT_OK)
            return 5;
        descant_stats(job, &s);
        page->made[rank] = t;
    }
    if (shadow && s.stall_ns + s.copy_ns != 0)
        return 6;
    if (descant_finish(job, final) != DESCANT_OK)
        return 7;
    for (int k = 0; k < N; k++)
        if (!(fabsf(w[k] - 1) < 0.02f))
            return 8;
    if (strcmp(plan, "none") != 0 && s.rounds == 0)
        return 9;
    if (descant_close(job) != DESCANT_OK)
        return 10;
    free(mine);
    free(g);
    return memory_live() == 0 ? 0 : 11;
}

static void expect_all(const pid_t *pids, int n, const char *what)
{
    for (int i = 0; i < n; i++) {
        int how = 0;
        waitpid(pids[i], &how, 0);
        ck_assert_msg(how == 0, "%s: trainer %d ended with %x", what, i, how);
    }
}

static const char *const plans[] = {"none", "allreduce", "shadow-easgd", "shadow-ma", "shadow-bmuf",
                                    "easgd", "ma", "bmuf", "dasgd", "dasgd-delta",
                                    "diloco,every=20", "diloco-delta,every=20,delay=5",
                                    "shadow-delta", "dasgd,every=3,delay=3",
                                    "easgd,every=4,delay=2"};

START_TEST(processes_train_together)
{
    const char *plan = plans[pick(_i / 2, _i, _i)];
    bool attached = _i % 2;
    char name[64];
    snprintf(name, sizeof name, "shm:job-%d-%d", (int)getpid(), _i);
    pid_t pids[3];
    page_make(3);
    for (int i = 0; i < 3; i++)
        if ((pids[i] = fork()) == 0)
            _exit(trainer(name, plan, i, 3, 600, attached, DESCANT_FINAL_MEAN));
    expect_all(pids, 3, plan);
}
END_TEST

START_TEST(processes_end_at_the_centre)
{
    static const char *const some[] = {"shadow-easgd", "shadow-bmuf", "bmuf", "easgd,every=4"};
    const char *plan = some[_i];
    char name[64];
    snprintf(name, sizeof name, "shm:centre-%d-%d", (int)getpid(), _i);
    pid_t pids[2];
    page_make(2);
    for (int i = 0; i < 2; i++)
        if ((pids[i] = fork()) == 0)
            _exit(trainer(name, plan, i, 2, 1500, i, DESCANT_FINAL_CENTRAL));
    expect_all(pids, 2, plan);
}
END_TEST

/* One trainer's replica turns NaN: it is left out of the mean, and with heal=1 takes the mean. */
static int healed(const char *name, const char *plan, int rank)
{
    struct descant *job = open_job(name, plan, rank, 2);
    float *w = descant_alloc(job, "w", 8);
    struct descant_stats s;
    if (w == NULL || descant_start(job) != DESCANT_OK)
        return 1;
    bool heals = strstr(plan, "heal=1") != NULL;
    for (uint64_t round = 1; round <= 100; round++) {
        for (int k = 0; k < 8; k++)
            w[k] = rank ? NAN : 5;
        if (descant_step(job) != DESCANT_OK || descant_stats(job, &s) != DESCANT_OK)
            return 2;
        if (rank == 0 || heals ? w[3] != 5 : !isnan(w[3]))
            return 3;
        if (s.bad != round)
            return 4;
        if (isnan(s.distance) || s.restarts != 0)
            return 6;
    }
    return descant_close(job) == DESCANT_OK ? 0 : 5;
}

START_TEST(nan_is_left_out_and_healed)
{
    static const char *const some[] = {"ma,every=1", "ma,every=1,heal=1"};
    char name[64];
    snprintf(name, sizeof name, "shm:nan-%d-%d", (int)getpid(), _i);
    pid_t pids[2];
    for (int i = 0; i < 2; i++)
        if ((pids[i] = fork()) == 0)
            _exit(healed(name, some[_i], i));
    expect_all(pids, 2, some[_i]);
}
END_TEST

/* Moments are averaged with the parameters. */
static int keeps_state(const char *name, int rank)
{
    struct descant *job = open_job(name, "ma,every=1", rank, 2);
    float *w = descant_alloc(job, "w", 8), v[8] = {0};
    if (w == NULL || descant_state(job, "v", v, 8, 1) != DESCANT_OK ||
        descant_start(job) != DESCANT_OK)
        return 1;
    for (int k = 0; k < 8; k++)
        v[k] = rank ? 6 : 2;
    if (descant_step(job) != DESCANT_OK)
        return 2;
    for (int k = 0; k < 8; k++)
        if (v[k] != 4)
            return 3;
    return descant_close(job) == DESCANT_OK ? 0 : 4;
}

START_TEST(optimizer_state_is_kept_in_step)
{
    char name[64];
    pid_t pids[2];
    snprintf(name, sizeof name, "shm:state-%d", (int)getpid());
    for (int i = 0; i < 2; i++)
        if ((pids[i] = fork()) == 0)
            _exit(keeps_state(name, i));
    expect_all(pids, 2, "ma");
}
END_TEST

static void *finisher(void *job)
{
    descant_finish(job, DESCANT_FINAL_MEAN);
    return NULL;
}

/* While one call waits for the others, another thread is told so, and does not wait itself. */
START_TEST(waits_answers_while_a_call_waits)
{
    char name[64], text[200] = "";
    pthread_t waiting;
    snprintf(name, sizeof name, "shm:waits-%d", (int)getpid());
    struct descant *one = open_job(name, "none", 0, 0), *two = open_job(name, "none", 1, 0);
    ck_assert_ptr_nonnull(descant_alloc(one, "w", 8));
    ck_assert_ptr_nonnull(descant_alloc(two, "w", 8));
    ck_assert_int_eq(descant_start(one), DESCANT_OK);
    ck_assert_int_eq(descant_start(two), DESCANT_OK);
    pthread_create(&waiting, NULL, finisher, one);
    while (strstr(text, "waiting caller") == NULL)
        ck_assert_uint_gt(descant_waits(one, text, sizeof text), 0);
    ck_assert_int_eq(descant_close(two), DESCANT_OK);
    pthread_join(waiting, NULL);
    ck_assert_int_eq(descant_detach(one, "w"), DESCANT_OK);
    ck_assert_int_eq(descant_close(one), DESCANT_OK);
}
END_TEST

static void *start_once(void *job)
{
    ck_assert_int_eq(descant_start(job), DESCANT_OK);
    return NULL;
}

static void *step_once(void *job)
{
    ck_assert_int_eq(descant_step(job), DESCANT_OK);
    return NULL;
}

/* The others' means go on with the last values, whatever becomes of the memory. */
START_TEST(detached_values_stay_in_the_mean)
{
    static float a[2][N], b[2][N];
    struct descant *jobs[2];
    pthread_t other;
    char name[64];
    snprintf(name, sizeof name, "shm:detached-%d", (int)getpid());
    for (int k = 0; k < 2; k++) {
        jobs[k] = open_job(name, "ma,every=1", k, 2);
        ck_assert_int_eq(descant_attach(jobs[k], "a", a[k], N), DESCANT_OK);
        ck_assert_int_eq(descant_attach(jobs[k], "b", b[k], N), DESCANT_OK);
    }
    pthread_create(&other, NULL, start_once, jobs[1]);
    ck_assert_int_eq(descant_start(jobs[0]), DESCANT_OK);
    pthread_join(other, NULL);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < N; i++) {
            a[0][i] = round < 1 ? 1 : 100;
            a[1][i] = 3;
            b[0][i] = 4;
            b[1][i] = 6;
        }
        pthread_create(&other, NULL, step_once, jobs[1]);
        ck_assert_int_eq(descant_step(jobs[0]), DESCANT_OK);
        pthread_join(other, NULL);
        for (int i = 0; i < N; i++) {       /* of 2, the first mean, and 3 */
            ck_assert_float_eq(a[1][i], round < 1 ? 2 : 2.5f);
            ck_assert_float_eq(a[0][i], round < 1 ? 2 : 100);
            ck_assert_float_eq(b[0][i], 5);
        }
        if (round == 0)
            ck_assert_int_eq(descant_detach(jobs[0], "a"), DESCANT_OK);
    }
    for (int k = 0; k < 2; k++)
        ck_assert_int_eq(descant_close(jobs[k]), DESCANT_OK);
}
END_TEST

/* Its slot, and the pages of it, are another's then. */
START_TEST(memory_outlives_its_job)
{
    static const char *const addresses[] = {"self", "shm:kept-%d"};
    char name[64];
    snprintf(name, sizeof name, addresses[_i], (int)getpid());
    long live = memory_live();
    struct descant *other = _i ? open_job(name, "none", 1, 0) : NULL;
    struct descant *job = open_job(name, "none", 0, 0);
    float *a[3], *b = descant_alloc(job, "b", 5);
    ck_assert(!other || descant_alloc(other, "a", N));
    ck_assert_ptr_nonnull(b);
    for (int k = 0; k < 3; k++) {
        a[k] = descant_alloc(job, "a", N);
        ck_assert_ptr_nonnull(a[k]);
        for (int i = 0; i < N; i++) {
            ck_assert_float_eq(a[k][i], 0);
            a[k][i] = (float)(k + 1);
        }
        ck_assert_int_eq(descant_leave(job), DESCANT_OK);
        job = open_job(name, "none", 0, 0);
    }
    ck_assert_int_eq(descant_close(job), DESCANT_OK);
    ck_assert_int_eq(descant_close(other), DESCANT_OK);
    for (int k = 0; k < 3; k++) {
        for (int i = 0; i < N; i++)
            ck_assert_float_eq(a[k][i]++, (float)(k + 1));
        ck_assert_int_eq(descant_free(a[k]), DESCANT_OK);
        ck_assert_int_eq(descant_free(a[k]), DESCANT_INVALID);
    }
    b[4] = 1;
    ck_assert_int_eq(descant_free(b), DESCANT_OK);
    ck_assert_int_eq(memory_live(), live);
}
END_TEST

START_TEST(missing_trainers_are_a_timeout)
{
    struct descant_options o = descant_options_default();
    struct descant *job = NULL;
    char name[64];
    snprintf(name, sizeof name, "shm:missing-%d", (int)getpid());
    o.job = name;
    o.plan = "shadow-ma";
    o.size = 3;
    o.start_s = 0.2;
    ck_assert_int_eq(descant_open(&job, &o), DESCANT_OK);
    ck_assert_ptr_nonnull(descant_alloc(job, "w", 8));
    ck_assert_int_eq(descant_start(job), DESCANT_TIMEOUT);
    ck_assert_msg(strstr(descant_last_error(), "trainers 1 and 2 of 3 did not come in 0.2 s"),
                  "%s", descant_last_error());
    ck_assert_int_eq(descant_step(job), DESCANT_TIMEOUT);
    descant_close(job);
    ck_assert_int_eq(memory_live(), 0);
}
END_TEST

START_TEST(a_killed_trainer_is_not_missed)
{
    static const char *const some[] = {"shadow-easgd", "shadow-ma", "dasgd", "ma", "allreduce"};
    const char *plan = some[_i];
    char name[64];
    snprintf(name, sizeof name, "shm:kill-%d-%d", (int)getpid(), _i);
    pid_t pids[3];
    page_make(3);
    for (int i = 0; i < 3; i++)
        if ((pids[i] = fork()) == 0)
            _exit(trainer(name, plan, i, 3, i == 0 ? 100000000 : 4000, false,
                          DESCANT_FINAL_MEAN));
    reaches(&page->made[0], 1000);
    kill(pids[0], SIGKILL);
    waitpid(pids[0], NULL, 0);
    page->made[0] = INT_MAX;
    expect_all(pids + 1, 2, plan);
}
END_TEST

START_TEST(a_late_joiner_gets_the_state)
{
    static const char *const some[] = {"shadow-easgd", "shadow-ma", "shadow-bmuf", "dasgd", "ma",
                                       "diloco,every=20", "allreduce"};
    const char *plan = some[_i];
    char name[64];
    snprintf(name, sizeof name, "shm:join-%d-%d", (int)getpid(), _i);
    pid_t pids[3];
    page_make(2);
    page->endless = true;
    for (int i = 0; i < 2; i++)
        if ((pids[i] = fork()) == 0)
            _exit(trainer(name, plan, i, 2, 6000, false, DESCANT_FINAL_MEAN));
    for (int i = 0; i < 2; i++)
        reaches(&page->made[i], 1);
    if ((pids[2] = fork()) == 0) {
        /* values near 3 only at the very start: a joiner has whatever the others have reached */
        struct descant *job = open_job(name, plan, -1, 0);
        float *w = descant_alloc(job, "w", N);
        if (w == NULL || descant_start(job) != DESCANT_OK)
            _exit(2);
        float least = least_near_start(plan);       /* its own were 0 */
        if (!(w[0] > least && w[0] < 3.5f && w[N - 1] > least && w[0] != 0))
            _exit(3);
        _exit(0);       /* and dies: the others go on */
    }
    expect_all(&pids[2], 1, plan);
    page->endless = false;
    expect_all(pids, 2, plan);
}
END_TEST

/* Trains until the given moment, then ends with the others; 0 where the result is right. */
static int trainer_until(const char *job_name, const char *plan, int rank, uint64_t until_ns)
{
    struct descant *job = open_job(job_name, plan, rank, 3);
    float *w = descant_alloc(job, "w", N);
    if (w == NULL || descant_start(job) != DESCANT_OK)
        return 1;
    struct rng rng;
    rng_init(&rng, (uint64_t)rank + 1);
    while (clock_now_ns() < until_ns) {
        for (int k = 0; k < N; k++)
            w[k] -= 0.01f * (w[k] - 1 + 0.1f * (float)(rng_uniform(&rng) - 0.5));
        if (descant_step(job) != DESCANT_OK)
            return 2;
    }
    if (descant_finish(job, DESCANT_FINAL_MEAN) != DESCANT_OK)
        return 3;
    for (int k = 0; k < N; k++)
        if (!(fabsf(w[k] - 1) < 0.02f))
            return 4;
    return descant_close(job) == DESCANT_OK ? 0 : 5;
}

/* Trainers are killed at random moments, also while they join, and their ranks are taken again.
 * DESCANT_SOAK_S seconds, by default as many as that; `make soak` gives it a minute a plan. */
#define SOAK_S pick(3, 1, 1)

START_TEST(killed_at_random)
{
    static const char *const some[] = {"shadow-ma", "shadow-easgd", "dasgd", "bmuf"};
    const char *plan = some[_i], *seconds = getenv("DESCANT_SOAK_S");
    double soak_s = seconds ? atof(seconds) : SOAK_S;
    uint64_t until = clock_now_ns() + (uint64_t)(soak_s * 1e9) + 2000000000u;
    char name[64];
    pid_t pids[3] = {0};
    struct rng rng;
    uint64_t seed = (uint64_t)getpid();
    rng_init(&rng, seed);
    snprintf(name, sizeof name, "shm:soak-%d-%d", (int)getpid(), _i);
    int victim = -1, kills = 0;
    do {
        for (int i = 0; i < 3; i++)
            if ((victim < 0 || victim == i) && (pids[i] = fork()) == 0)
                _exit(trainer_until(name, plan, i, until));
        clock_sleep_until(clock_now_ns() + 5000000 + (uint64_t)(rng_uniform(&rng) * 3e8));
        victim = (int)(rng_uniform(&rng) * 3);
        if (clock_now_ns() + 2000000000u >= until)
            break;
        kill(pids[victim], SIGKILL);
        int how;
        waitpid(pids[victim], &how, 0);
        ck_assert_msg(WIFSIGNALED(how), "%s, seed %llu, kill %d: trainer %d had ended with %x",
                      plan, (unsigned long long)seed, kills, victim, how);
        kills++;
    } while (true);
    ck_assert_int_gt(kills, (int)soak_s);
    expect_all(pids, 3, plan);
}
END_TEST
int main(void)
{
    TCase *many = new_case("processes", 60), *soak = tcase_create("soak");
    const char *seconds = getenv("DESCANT_SOAK_S");
    tcase_set_timeout(soak, 30 + (seconds ? atof(seconds) : SOAK_S));
    tcase_add_loop_test(many, processes_train_together, few_threads(0, 2),
                        pick(2 * N(plans), N(plans), few_threads(N(plans), 10)));
    tcase_add_loop_test(many, processes_end_at_the_centre, few_threads(0, 1), few_threads(4, 3));
    tcase_add_loop_test(many, nan_is_left_out_and_healed, 0, 2);
    tcase_add_test(many, optimizer_state_is_kept_in_step);
    tcase_add_test(many, waits_answers_while_a_call_waits);
    tcase_add_test(many, detached_values_stay_in_the_mean);
    tcase_add_loop_test(many, memory_outlives_its_job, 0, 2);
    tcase_add_test(many, missing_trainers_are_a_timeout);
    tcase_add_loop_test(many, a_killed_trainer_is_not_missed, 0, few(5, few_threads(2, 1)));
    tcase_add_loop_test(many, a_late_joiner_gets_the_state, 0, few(7, few_threads(3, 1)));
    tcase_add_loop_test(soak, killed_at_random, 0, few(4, few_threads(2, 1)));
    return run_cases(many, soak, NULL);
}
