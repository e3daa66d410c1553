/* SPDX-License-Identifier: MIT */
/* The worker threads of a trainer: take a batch, make a step of the optimizer on the
 * replica and the tables, without locks (Hogwild), tell descant. Plain SGD goes in one
 * pass through the model.
 *
 * Under `allreduce` the workers' gradients are summed first: each adds its own to
 * `gather.sum` under the mutex, the last to arrive has the sum averaged over all trainers
 * (descant_mean), and the rate with it, makes the one step and wakes the others. A worker
 * that runs out of data leaves the group, and makes the step itself if it was the one
 * that the rest waited for.
 * Rows of tables are one copy a machine and are updated by each worker at once.
 *
 * Under `bsp` a worker takes the model that control has stored last, and its gradient
 * goes to control.
 *
 * A smaller last batch of a chunk counts by its examples: its rate is lower in
 * proportion. */
#include "train/bsp.h"
#include "train/monitor.h"

#include <math.h>
#include <string.h>

struct crew_worker {
    struct trainer *t;
    int number;
    pthread_t thread;
    struct work *work;
    struct ahead ahead;
    const float *tables;        /* for the pass over its batch */
    float *g;                   /* (n); NULL in the fused pass */
    float *scores;              /* (batch, outputs) */
    struct cell *cell;
    descant_status status;
};

static bool gathers(const struct trainer *t)
{
    return t->options->plan_gathers && !t->alone;
}

/* The gradients go to control. */
static bool is_module(const struct trainer *t)
{
    return t->bsp && !t->alone;
}

/* Whether gradient and step are one pass through the model, without memory for the
 * gradient: plain SGD for all of it, at one rate. */
static bool is_fused(const struct trainer *t)
{
    return !gathers(t) && !is_module(t) && t->optimizer.kind == OPTIMIZER_SGD &&
           t->optimizer.rows == ROWS_SGD && !(t->optimizer.momentum > 0) &&
           !(t->options->table_lr > 0) && !t->owned;
}

/* The number of the step that begins, from 1: adam corrects its means by it. Relaxed: two
 * workers may make their steps in the other order. */
static uint64_t next_step(struct trainer *t)
{
    return atomic_fetch_add_explicit(&t->steps, 1, memory_order_relaxed) + 1;
}

struct shares {
    double dense, rows;
};

/* ftrl: how much of --lr one feature of linear and fm gets. Each alone would move its
 * part of the score by lr; the share makes their sum one such move: 1 / sqrt(the sum of
 * their inputs' squares). Parts with another optimizer have all of --lr. */
static struct shares shares_of(struct crew_worker *me, const struct examples *examples)
{
    struct trainer *t = me->t;
    enum model_kind kind = model_shape(t->model)->kind;
    double sum = (double)examples->n;
    size_t n = examples->n * (size_t)examples->n_dense;

    if (t->optimizer.rows == ROWS_FTRL && t->n_tables && work_ahead(me->work, examples))
        sum += optimizer_rows_meet(&t->optimizer, t->tables, t->table_state,
                                   work_rows(me->work));
    if (kind != MODEL_LINEAR && kind != MODEL_FM)
        return (struct shares){1, 1};
    for (size_t k = 0; k < n; k++)
        sum += (double)examples->dense[k] * (double)examples->dense[k];
    double share = sqrt((double)examples->n / sum);
    return (struct shares){t->optimizer.kind == OPTIMIZER_FTRL ? share : 1,
                           t->optimizer.rows == ROWS_FTRL ? share : 1};
}

/* After the rows have been changed. */
static descant_status touch_rows(struct crew_worker *me)
{
    struct trainer *t = me->t;
    size_t n;
    const uint64_t *rows = work_touched(me->work, &n);

    return t->n_tables && !t->alone ? descant_touch(t->job, t->tables, rows, n)
                                    : DESCANT_OK;
}

static double rows_rate(const struct trainer *t, double factor)
{
    double lr = t->options->table_lr > 0 ? t->options->table_lr : t->options->lr;

    return lr * factor;
}

/* A pass over the batch; *loss is the summed loss. Rows are stepped as well: by their
 * owners, or after it, but not where the loss is not finite. */
static descant_status gradient(struct crew_worker *me, const float *w,
                               const struct examples *examples, double factor,
                               double *loss)
{
    struct trainer *t = me->t;

    ahead_rate(&me->ahead, rows_rate(t, factor));
    *loss = model_gradient(me->work, w, me->tables, examples, me->g, me->scores);
    if (t->owned)
        return me->ahead.status;
    if (t->n_tables == 0 || !isfinite(*loss))
        return DESCANT_OK;
    optimizer_rows_step(&t->optimizer, t->tables, t->table_state, work_rows(me->work),
                        rows_rate(t, factor));
    return touch_rows(me);
}

/* --- allreduce: one step for all workers of all trainers; the caller holds the mutex ---
 */

/* The group is complete: one mean over all trainers, one step, and the next generation.
 * The rate is a mean, too, so that all make the same step. Waiting in descant_mean under
 * the mutex is fine: all other workers wait for this round, too. */
static void gather_round(struct trainer *t)
{
    struct gather *gather = &t->gather;
    float share = 1.0F / (float)gather->arrived;
    size_t n = gather->n;

    for (size_t i = 0; i < n; i++)
        gather->sum[i] *= share;
    gather->status = descant_mean(t->job, gather->sum, n);
    if (gather->status == DESCANT_OK)
        optimizer_step(&t->optimizer, t->w, gather->sum, t->state, t->n,
                       (double)gather->sum[n - 1], next_step(t));
    if (gather->steps)
        *gather->steps = (float)atomic_load_explicit(&t->steps, memory_order_relaxed);
    memset(gather->sum, 0, n * sizeof *gather->sum);
    gather->arrived = 0;
    gather->generation++;
    pthread_cond_broadcast(&gather->moved);
}

/* Adds this worker's gradient and waits for the round that it is in. Its status is the
 * round's. */
static descant_status gather_step(struct crew_worker *me, double lr, float weight)
{
    struct trainer *t = me->t;
    struct gather *gather = &t->gather;
    uint64_t came = clock_now_ns();

    pthread_mutex_lock(&gather->mutex);
    for (size_t i = 0; i < t->n; i++)
        gather->sum[i] += weight * me->g[i];
    gather->sum[gather->n - 1] += (float)lr;
    uint64_t generation = gather->generation;
    if (++gather->arrived == gather->present) {
        gather_round(t);
    } else {
        while (gather->generation == generation)
            pthread_cond_wait(&gather->moved, &gather->mutex);
        atomic_fetch_add_explicit(&t->gather_ns, clock_now_ns() - came,
                                  memory_order_relaxed);
    }
    descant_status status = gather->status;
    pthread_mutex_unlock(&gather->mutex);
    return status;
}

/* A worker that ends must not be waited for; it may be the one that the rest waited
 * for. */
static void gather_leave(struct trainer *t)
{
    struct gather *gather = &t->gather;

    pthread_mutex_lock(&gather->mutex);
    if (--gather->present == gather->arrived && gather->arrived)
        gather_round(t);
    pthread_mutex_unlock(&gather->mutex);
}

/* --- a worker --- */

static descant_status module_batch(struct crew_worker *me, const struct feed_batch *batch,
                                   double factor, double *loss)
{
    struct trainer *t = me->t;
    const float *w = bsp_model(t->bsp, me->number);
    *loss = 0;
    if (!w)
        return DESCANT_OK;      /* the run has been stopped */
    struct shares shares = shares_of(me, &batch->examples);
    descant_status status =
        gradient(me, w, &batch->examples, factor * shares.rows, loss);
    if (!isfinite(*loss))
        return status;
    double rate = config_rate(t->options, batch->place, batch->own) * shares.dense;
    bsp_add(t->bsp, me->number, me->g, batch->examples.n, rate);
    return status;
}

/* One step on one batch; *loss is the summed loss. */
static descant_status train_batch(struct crew_worker *me, const struct feed_batch *batch,
                                  double *loss)
{
    struct trainer *t = me->t;
    const struct examples *examples = &batch->examples;
    double weight = (double)examples->n / (double)t->options->batch;
    double rate = config_rate(t->options, batch->place, batch->own);
    double lr = t->options->lr * rate;

    if (is_module(t))
        return module_batch(me, batch, rate * weight, loss);
    if (is_fused(t)) {
        *loss = model_sgd(me->work, t->w, t->tables, examples, lr * weight,
                          t->optimizer.l2, me->scores);
        return touch_rows(me);
    }
    struct shares shares = shares_of(me, examples);
    lr *= shares.dense;
    descant_status status =
        gradient(me, t->w, examples, rate * weight * shares.rows, loss);
    if (status != DESCANT_OK || !isfinite(*loss))
        return status;
    if (gathers(t))
        return gather_step(me, lr, (float)weight);
    optimizer_step(&t->optimizer, t->w, me->g, t->state, t->n, lr * weight, next_step(t));
    return DESCANT_OK;
}

/* Adds the batch to the worker's sums, which are of the scores before the step:
 * progressive validation. A loss that is not finite stops the run; the first worker to
 * see one finds the reason. */
static void count(struct crew_worker *me, const struct examples *batch, double loss)
{
    struct trainer *t = me->t;
    struct metrics m = {0};
    char where[96], advice[96];

    metrics_add(&m, me->scores, batch->labels, batch->n, model_outputs(t->model));
    cell_add(me->cell, &m);
    if (isfinite(loss) || !board_halt(t->board, STOP_NAN))
        return;
    struct descant_stats stats = {0};
    descant_stats(t->job, &stats);
    /* takes a while; the others have stopped */
    diverged_where(t, where, sizeof where);
    diverged_advice(t, advice, sizeof advice);
    board_explain(t->board, "the loss is %g at step %llu of trainer %d: %s; %s",
                  fabs(loss), (unsigned long long)stats.steps, t->rank, where, advice);
}

/* A worker's life: batches until the feed has none, or a step fails. It leaves every
 * group it is in, last the job, so that nobody waits for it. */
static void *work(void *of)
{
    struct crew_worker *me = of;
    struct trainer *t = me->t;
    struct feed_batch batch;
    double loss;

    nn_thread_init();
    while (me->status == DESCANT_OK && ahead_next(&me->ahead, &batch, &me->tables)) {
        me->status = train_batch(me, &batch, &loss);
        count(me, &batch.examples, loss);
        if (me->status == DESCANT_OK)
            feed_done(t->feed, &batch);
        if (me->status == DESCANT_OK && !t->alone)
            me->status = descant_step(t->job);
    }
    if (me->status == DESCANT_OK)
        me->status = me->ahead.status;
    ahead_fini(&me->ahead);
    if (me->status != DESCANT_OK)
        board_stop(t->board, STOP_FAILED, "trainer %d: %s", t->rank,
                   descant_last_error());
    if (gathers(t))
        gather_leave(t);
    if (is_module(t))
        bsp_leave(t->bsp, me->number);
    if (!t->alone)
        descant_worker_done(t->job);
    return NULL;
}

/* A failure leaves what crew_work releases. */
static descant_status worker_init(struct crew_worker *me, struct trainer *t, int number)
{
    size_t batch = (size_t)t->options->batch;

    me->t = t;
    me->number = number;
    me->cell = &t->seat->cells[number];
    me->scores =
        memory_take_array(batch * (size_t)model_outputs(t->model), sizeof *me->scores);
    me->g = is_fused(t) ? NULL : memory_take_array(t->n, sizeof *me->g);
    if (!me->scores || (!me->g && !is_fused(t)))
        return log_fail(&t->log, DESCANT_MEMORY, "no memory for worker %d", number);
    descant_status status = work_create(&me->work, t->model, batch, &t->log);
    struct tables_at at = owned_tables_at(t);
    if (status != DESCANT_OK)
        return status;
    ahead_init(&me->ahead, &at, t->feed, me->work);
    ahead_trains(&me->ahead);
    return DESCANT_OK;
}

/* Returns when all workers have ended, with the first failure. If a thread cannot be
 * started, the run is stopped; those that were to come count as gone, or a round would
 * wait for them for ever. */
descant_status crew_work(struct trainer *t)
{
    struct crew_worker workers[BOARD_WORKERS] = {{0}};
    int n = (int)t->options->workers, started = 0;
    descant_status status = DESCANT_OK;

    for (int k = 0; k < n && status == DESCANT_OK; k++)
        status = worker_init(&workers[k], t, k);
    t->gather.present = n;
    while (started < n && status == DESCANT_OK) {
        struct crew_worker *next = &workers[started];
        if (pthread_create(&next->thread, NULL, work, next) == 0) {
            started++;
            continue;
        }
        board_stop(t->board, STOP_FAILED, "trainer %d cannot start worker %d", t->rank,
                   started);
        for (int k = started; k < n && gathers(t); k++)
            gather_leave(t);
        status = log_fail(&t->log, DESCANT_SYSTEM, "no thread for worker %d", started);
    }
    for (int k = 0; k < started; k++) {
        pthread_join(workers[k].thread, NULL);
        if (status == DESCANT_OK)
            status = workers[k].status;
    }
    for (int k = 0; k < n; k++) {
        work_destroy(workers[k].work);
        memory_give(workers[k].g);
        memory_give(workers[k].scores);
    }
    return status;
}
