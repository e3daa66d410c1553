/* SPDX-License-Identifier: MIT */
/* A segment flat out: ML modules that add known integers, and read the model, while its keeper
 * takes sums and stores models as fast as it can; as threads in one mapping, where
 * ThreadSanitizer sees both sides, and as processes that are killed at random. Sums of whole
 * numbers below 2^24 are exact in a float. */
#include "harness/processes.h"
#include "harness/segments.h"
#include "harness/suite.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum {
    MODULES = 3,
#ifdef __SANITIZE_THREAD__
    ADDS = 20000, PINS = 20000,
#else
    ADDS = 333334, PINS = 200000,       /* of each module: a million adds */
#endif
    FLOATS = 101,
    LIVES = 30,                         /* of modules that are killed */
    MODEL = 2 * LIVES + 1
};
#define PATIENCE_NS UINT64_C(30000000000)       /* for a keeper that does not get a core */

/* --- threads --- */

struct storm_module {
    pthread_t thread;
    struct segment_header *memory;
    uint64_t turns;             /* of adds, or pins */
    descant_status status;      /* of the first that failed */
    uint64_t torn, versions;    /* models with mixed values; how many were seen */
    _Atomic bool done;
};

static uint64_t examples_of(uint64_t j)
{
    return 1 + j % 3;
}

static _Atomic uint64_t takes;      /* of the keeper, that sums were found in */

static void await_take(void)
{
    uint64_t until = clock_now_ns() + PATIENCE_NS;
    while (atomic_load(&takes) == 0 && clock_now_ns() < until)
        sched_yield();
}

/* The j-th gradient is j % 5 + 1 everywhere; in a sum times its examples. Half of them come after
 * the keeper has taken something. */
static void *add_flat_out(void *argument)
{
    struct storm_module *m = argument;
    struct descant_ml *ml = NULL;
    struct descant_ml_model model;
    float gradient[FLOATS];
    m->status = ml_attach_at(&ml, m->memory);
    if (m->status == DESCANT_OK)
        m->status = descant_ml_pin(ml, &model);
    for (uint64_t j = 0; j < m->turns && m->status == DESCANT_OK; j++) {
        if (j == m->turns / 2)
            await_take();
        for (int i = 0; i < FLOATS; i++)
            gradient[i] = (float)(j % 5 + 1);
        m->status = descant_ml_add(ml, gradient, examples_of(j));
    }
    descant_ml_detach(ml);
    atomic_store(&m->done, true);
    return NULL;
}

static void start_modules(struct storm_module *modules, struct segment *segment,
                          uint64_t turns, void *(*work)(void *))
{
    for (int k = 0; k < MODULES; k++) {
        modules[k] =
            (struct storm_module){.memory = segment_memory(segment), .turns = turns};
        ck_assert_int_eq(pthread_create(&modules[k].thread, NULL, work, &modules[k]), 0);
    }
}

static bool all_done(struct storm_module *modules)
{
    for (int k = 0; k < MODULES; k++)
        if (!atomic_load(&modules[k].done))
            return false;
    return true;
}

static void join_modules(struct storm_module *modules)
{
    for (int k = 0; k < MODULES; k++) {
        pthread_join(modules[k].thread, NULL);
        ck_assert_int_eq(modules[k].status, DESCANT_OK);
    }
}

START_TEST(each_gradient_is_taken_once)
{
    struct segment *segment = make_segment(FLOATS, MODULES, UINT64_MAX);
    struct storm_module modules[MODULES];
    uint64_t sum = 0, gradients = 0, examples = 0, torn = 0;
    atomic_store(&takes, 0);
    start_modules(modules, segment, ADDS, add_flat_out);
    for (bool last = false, done = false; !last;) {
        last = done;                /* once more after the last module has ended */
        done = all_done(modules);
        for (int slot = 0; slot < MODULES; slot++) {
            struct segment_taken t;
            if (!segment_take(segment, slot, &t))
                continue;
            for (int i = 1; i < FLOATS; i++)
                torn += (uint64_t)t.values[i] != (uint64_t)t.values[0];
            sum += (uint64_t)t.values[0];
            gradients += t.gradients;
            examples += t.examples;
            atomic_fetch_add(&takes, 1);
        }
        sched_yield();
    }
    join_modules(modules);
    uint64_t wanted = 0, wanted_examples = 0;
    for (uint64_t j = 0; j < ADDS; j++) {
        wanted += MODULES * (j % 5 + 1) * examples_of(j);
        wanted_examples += MODULES * examples_of(j);
    }
    ck_assert_uint_eq(torn, 0);
    ck_assert_uint_eq(gradients, MODULES * ADDS);
    ck_assert_uint_eq(examples, wanted_examples);
    ck_assert_uint_eq(sum, wanted);
    ck_assert_uint_gt(atomic_load(&takes), MODULES);
    segment_close(segment);
}
END_TEST

/* All values of the version; two passes, so that the copy has time to change. */
static bool is_whole(const struct descant_ml_model *model, size_t n)
{
    float value = value_of(model->version);
    bool whole = true;
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < n; i++)
            whole &= !(model->values[i] < value) && !(model->values[i] > value);
    return whole;
}

static bool reads_on(const struct storm_module *m, uint64_t j, uint64_t until)
{
    bool enough = j >= m->turns && (m->versions > 1 || clock_now_ns() > until);
    return m->status == DESCANT_OK && !enough;
}

static void *read_flat_out(void *argument)
{
    struct storm_module *m = argument;
    struct descant_ml *ml = NULL;
    uint64_t last = 0, until = clock_now_ns() + PATIENCE_NS;
    m->status = ml_attach_at(&ml, m->memory);
    for (uint64_t j = 0; reads_on(m, j, until); j++) {
        struct descant_ml_model model;
        m->status = descant_ml_pin(ml, &model);
        m->torn += !is_whole(&model, FLOATS) || model.version < last;
        m->versions += model.version != last;
        last = model.version;
        if (j % 3 == 0)
            descant_ml_unpin(ml);
    }
    descant_ml_detach(ml);
    atomic_store(&m->done, true);
    return NULL;
}

START_TEST(models_are_whole)
{
    struct segment *segment = make_segment(FLOATS, MODULES, 0);
    struct storm_module modules[MODULES];
    uint64_t version = 1;
    start_modules(modules, segment, PINS, read_flat_out);
    while (!all_done(modules))      /* the readers get to their end, whatever is stored */
        store_model(segment, ++version);
    join_modules(modules);
    for (int k = 0; k < MODULES; k++) {
        ck_assert_uint_eq(modules[k].torn, 0);
        ck_assert_uint_gt(modules[k].versions, 1);
    }
    segment_close(segment);
}
END_TEST

/* --- processes that are killed --- */

/* Of each life, in memory that all share; written by its process, read when it is dead. */
struct life {
    _Atomic uint64_t begun, done;       /* adds */
    _Atomic uint64_t torn, failed;
};

/* Life l's j-th gradient is j % 3 + 1 at l, and 1 at LIVES + l. */
static void live(struct life *life, int l)
{
    struct descant_ml *ml;
    struct descant_ml_model model;
    float gradient[MODEL] = {0};
    if (descant_ml_attach(&ml, segment_name, 5) != DESCANT_OK) {
        atomic_store(&life->failed, 1);
        fprintf(stderr, "life %d: %s\n", l, descant_last_error());
        return;
    }
    gradient[LIVES + l] = 1;
    for (uint64_t j = 0;; j++) {
        if (descant_ml_pin(ml, &model) != DESCANT_OK)
            atomic_store(&life->failed, 2);
        if (!is_whole(&model, MODEL))
            atomic_fetch_add(&life->torn, 1);
        gradient[l] = (float)(j % 3 + 1);
        atomic_store(&life->begun, j + 1);
        if (descant_ml_add(ml, gradient, 1) != DESCANT_OK)
            atomic_store(&life->failed, 3);
        atomic_store(&life->done, j + 1);
    }
}

static pid_t begin_life(struct life *lives, int l)
{
    pid_t child = fork();
    if (child == 0) {
        live(&lives[l], l);
        _exit(1);
    }
    ck_assert_int_gt(child, 0);
    return child;
}

struct totals {
    double values[MODEL];
    uint64_t gradients;
};

static void take_all(struct segment *segment, struct totals *totals)
{
    for (int slot = 0; slot < MODULES; slot++) {
        struct segment_taken t;
        if (!segment_take(segment, slot, &t))
            continue;
        for (int i = 0; i < MODEL; i++)
            totals->values[i] += (double)t.values[i];
        totals->gradients += t.gradients;
    }
}

static double sum_of(uint64_t adds)
{
    double sum = 0;
    for (uint64_t j = 0; j < adds; j++)
        sum += (double)(j % 3 + 1);
    return sum;
}

static void expect_life(const struct life *life, const struct totals *totals, int l)
{
    uint64_t adds = (uint64_t)totals->values[LIVES + l], done = atomic_load(&life->done);
    ck_assert_uint_eq(atomic_load(&life->failed), 0);
    ck_assert_uint_eq(atomic_load(&life->torn), 0);
    ck_assert_msg(adds >= done && adds <= atomic_load(&life->begun),
                  "life %d: %llu adds were taken, %llu done", l, (unsigned long long)adds,
                  (unsigned long long)done);
    ck_assert_double_eq(totals->values[l], sum_of(adds));
}

START_TEST(killed_modules_count_whole_gradients)
{
    struct segment *segment = make_segment(MODEL, MODULES, UINT64_MAX);
    struct life *lives = share_memory(LIVES * sizeof *lives);
    struct totals totals = {{0}, 0};
    struct rng rng;
    pid_t pids[MODULES];
    uint64_t version = 1;
    int life_of[MODULES], n = 0;
    rng_init(&rng, 5);
    for (int k = 0; k < MODULES; k++) {
        life_of[k] = n;
        pids[k] = begin_life(lives, n++);
    }
    for (int deaths = 0; deaths < LIVES; deaths++) {
        int k = (int)(rng_next(&rng) % MODULES);
        while (pids[k] == 0)
            k = (k + 1) % MODULES;
        uint64_t until = clock_now_ns() + rng_next(&rng) % 20000000;
        do {                            /* it dies when it has added, at some moment */
            take_all(segment, &totals);
            store_model(segment, ++version);
        } while (clock_now_ns() < until || (atomic_load(&lives[life_of[k]].done) == 0 &&
                                            atomic_load(&lives[life_of[k]].failed) == 0));
        kill(pids[k], SIGKILL);
        waitpid(pids[k], NULL, 0);
        pids[k] = 0;
        if (n < LIVES) {                /* it takes the slot of a dead one */
            life_of[k] = n;
            pids[k] = begin_life(lives, n++);
        }
    }
    take_all(segment, &totals);
    double adds = 0;
    for (int l = 0; l < LIVES; l++) {
        expect_life(&lives[l], &totals, l);
        adds += totals.values[LIVES + l];
    }
    ck_assert_double_eq(adds, (double)totals.gradients);
    ck_assert_int_ge(segment_sweep(segment), 1);
    munmap(lives, LIVES * sizeof *lives);
    segment_close(segment);
}
END_TEST

int main(void)
{
    TCase *tests = new_case("storm", 120);
    tcase_add_test(tests, each_gradient_is_taken_once);
    tcase_add_test(tests, models_are_whole);
    tcase_add_test(tests, killed_modules_count_whole_gradients);
    return run_cases(tests, NULL);
}
