/* SPDX-License-Identifier: MIT */
/* OpenBLAS, races by design under ThreadSanitizer, and training that must reach a planted best. */
#include "harness/nn.h"
#include "harness/suite.h"

#include <cblas.h>
#include <float.h>
#include <pthread.h>

/* --- OpenBLAS and threads --- */

/* OpenBLAS is loaded by a model that multiplies. */
static const struct model_shape multiplying = {.kind = MODEL_MLP, .n_dense = 4, .n_classes = 2};

/* Unless its own variable asks for something else; and the variable stays as it was. */
START_TEST(blas_knows_the_processor)
{
    const char *asked = getenv("OPENBLAS_CORETYPE");
    struct trained t = trained_create(&multiplying, 1);
    ck_assert_ptr_eq(getenv("OPENBLAS_CORETYPE"), asked);
#if defined(__x86_64__)
    if (!asked && __builtin_cpu_supports("avx2"))
        ck_assert_str_ne(openblas_get_corename(), "Prescott");
#endif
    trained_destroy(&t);
}
END_TEST

/* CI runs this with such a build, too. */
START_TEST(only_a_build_without_threads_takes_turns)
{
    const char *path = getenv("LD_LIBRARY_PATH");
    struct trained t = trained_create(&multiplying, 1);
    bool serial = openblas_get_parallel() == OPENBLAS_SEQUENTIAL;
    ck_assert(nn_products_take_turns() == serial);
    ck_assert(serial || !path || !strstr(path, "openblas-serial"));
    trained_destroy(&t);
}
END_TEST

START_TEST(small_numbers_are_flushed)
{
#if defined(__SSE__)
    volatile float small = FLT_MIN;
    ck_assert_float_gt(small / 4, 0);
    nn_thread_init();
    ck_assert_float_eq(small / 4, 0);
#endif
}
END_TEST

struct learning_worker {
    struct trained *shared;     /* its w and tables */
    const struct model_shape *shape;
    uint64_t seed;
    size_t n;
    double first, last;         /* summed losses */
};

/* Learns that the sign of the first dense feature is the label. */
static void *work_away(void *argument)
{
    struct learning_worker *worker = argument;
    struct batch *batch = memory_take(sizeof *batch);
    struct work *work;
    struct rng rng;
    rng_init(&rng, worker->seed);
    nn_thread_init();
    if (work_create(&work, worker->shared->model, worker->n, NULL) != DESCANT_OK)
        return NULL;
    for (int step = 0; step < 300; step++) {
        batch_fill(batch, worker->shape, worker->n, step % 2, &rng);
        for (size_t i = 0; i < worker->n; i++)
            batch->labels[i] = batch->dense[i * (size_t)worker->shape->n_dense] > 0;
        double loss = model_sgd(work, worker->shared->w, worker->shared->tables,
                                &batch->examples, 0.05, 0, NULL);
        *(step < 50 ? &worker->first : &worker->last) = loss;
    }
    work_destroy(work);
    memory_give(batch);
    return argument;
}

static const int threaded[] = {0, 2, 4, 8};

/* Both threads step the same parameters: a race by design, that ThreadSanitizer must not see. */
START_TEST(two_threads_share_parameters)
{
    const struct model_shape *shape = &shapes[threaded[_i]];
    struct trained t = trained_create(shape, 1);
    struct learning_worker workers[2];
    pthread_t threads[2];
    for (int k = 0; k < 2; k++) {
        workers[k] = (struct learning_worker){
            .shared = &t, .shape = shape, .seed = (uint64_t)k, .n = 32};
        pthread_create(&threads[k], NULL, work_away, &workers[k]);
    }
    for (int k = 0; k < 2; k++) {
        void *result;
        pthread_join(threads[k], &result);
        ck_assert_ptr_nonnull(result);
        ck_assert(isfinite(workers[k].last));
        ck_assert_double_lt(workers[k].last, 0.8 * 32 * log(2));
    }
    trained_destroy(&t);
}
END_TEST

/* Products of several threads at once do not disturb each other. */
START_TEST(threads_of_their_own_give_the_same)
{
    enum { THREADS = 4 };
    struct trained alone[THREADS], t[THREADS];
    struct learning_worker workers[THREADS];
    pthread_t threads[THREADS];
    for (int k = 0; k < THREADS; k++) {
        struct learning_worker w = {.shape = &shapes[4], .seed = (uint64_t)k, .n = 32};
        alone[k] = trained_create(&shapes[4], 1);
        t[k] = trained_create(&shapes[4], 1);
        w.shared = &alone[k];
        pthread_create(&threads[k], NULL, work_away, &w);
        pthread_join(threads[k], NULL);
        workers[k] = w;
        workers[k].shared = &t[k];
    }
    for (int k = 0; k < THREADS; k++)
        pthread_create(&threads[k], NULL, work_away, &workers[k]);
    for (int k = 0; k < THREADS; k++) {
        pthread_join(threads[k], NULL);
        ck_assert_mem_eq(t[k].w, alone[k].w, model_floats(t[k].model) * sizeof(float));
        ck_assert_mem_eq(t[k].tables, alone[k].tables,
                         model_table_floats(t[k].model) * sizeof(float));
        trained_destroy(&alone[k]);
        trained_destroy(&t[k]);
    }
}
END_TEST

/* --- training reaches a planted best --- */

/* Fills labels; returns the summed loss of whoever knows the truth. */
typedef double plant(struct batch *batch, struct rng *rng);

static double draw(float *label, double logit, struct rng *rng)
{
    double p = 1 / (1 + exp(-logit));
    *label = rng_uniform(rng) < p;
    return *label > 0 ? -log(p) : -log(1 - p);
}

/* Odd and even ids of two fields: only the pair tells. */
static double plant_pairs(struct batch *b, struct rng *rng)
{
    double best = 0;
    for (size_t i = 0; i < b->examples.n; i++) {
        uint32_t *ids = b->ids + 2 * i;
        for (int f = 0; f < 2; f++)
            ids[f] = (uint32_t)(rng_next(rng) % 10) + 10 * (uint32_t)f;
        best += draw(&b->labels[i], (ids[0] + ids[1]) % 2 ? 2 : -2, rng);
    }
    return best;
}

/* A pair of fields and a dense feature. */
static double plant_clicks(struct batch *b, struct rng *rng)
{
    double best = 0;
    for (size_t i = 0; i < b->examples.n; i++) {
        uint32_t *ids = b->ids + 3 * i;
        for (int f = 0; f < 3; f++)
            ids[f] = (uint32_t)(rng_next(rng) % 10);
        double logit = (ids[0] + ids[2]) % 2 ? 1.5 : -1.5;
        best += draw(&b->labels[i], logit + 2 * (double)b->dense[2 * i], rng);
    }
    return best;
}

static double plant_xor(struct batch *b, struct rng *rng)
{
    (void)rng;
    for (size_t i = 0; i < b->examples.n; i++)
        b->labels[i] = b->dense[2 * i] * b->dense[2 * i + 1] > 0;
    return 0;
}

static double plant_quadrants(struct batch *b, struct rng *rng)
{
    (void)rng;
    for (size_t i = 0; i < b->examples.n; i++)
        b->labels[i] = (float)((b->dense[2 * i] > 0) + 2 * (b->dense[2 * i + 1] > 0));
    return 0;
}

static const struct {
    struct model_shape shape;
    plant *plant;
    double lr, above;           /* the mean loss may end this much above the best */
} planted[] = {
    {{.kind = MODEL_FM, .n_fields = 2, .n_classes = 1, .rows = 20, .width = 8, .plain_ids = true},
     plant_pairs, 0.5, 0.02},
    {{.kind = MODEL_DLRM, .n_dense = 2, .n_fields = 3, .n_classes = 1, .rows = 10, .width = 8,
      .plain_ids = true, .n_bottom = 1, .bottom = {16}, .n_top = 1, .top = {32}},
     plant_clicks, 0.3, 0.03},
    {{.kind = MODEL_MLP, .n_dense = 2, .n_classes = 1, .n_top = 2, .top = {32, 16}},
     plant_xor, 0.3, 0.08},
    {{.kind = MODEL_MLP, .n_dense = 2, .n_classes = 4, .n_top = 1, .top = {32}},
     plant_quadrants, 0.3, 0.08},
};

START_TEST(training_reaches_the_best)
{
    enum { STEPS = 4000, LAST = 500 };
    static struct batch batch;
    struct trained t = trained_create(&planted[_i].shape, 64);
    struct rng rng;
    rng_init(&rng, 6);
    double loss = 0, best = 0;
    for (int step = 0; step < STEPS; step++) {
        batch_fill(&batch, &planted[_i].shape, 64, false, &rng);
        batch.examples.offsets = NULL;
        double perfect = planted[_i].plant(&batch, &rng);
        double had = model_sgd(t.work, t.w, t.tables, &batch.examples, planted[_i].lr, 0, NULL);
        if (step >= STEPS - LAST) {
            loss += had / (64 * LAST);
            best += perfect / (64 * LAST);
        }
    }
    ck_assert_msg(loss < best + planted[_i].above, "%g, the best is %g", loss, best);
    trained_destroy(&t);
}
END_TEST

int main(void)
{
    TCase *tests = new_case("learning", 120);
    tcase_add_test(tests, blas_knows_the_processor);
    tcase_add_test(tests, only_a_build_without_threads_takes_turns);
    tcase_add_test(tests, small_numbers_are_flushed);
    tcase_add_loop_test(tests, two_threads_share_parameters, 0, N(threaded));
    tcase_add_test(tests, threads_of_their_own_give_the_same);
    tcase_add_loop_test(tests, training_reaches_the_best, 0, few_threads(N(planted), 0));
    return run_cases(tests, NULL);
}
