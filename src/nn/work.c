/* SPDX-License-Identifier: MIT */
/* One thread's work: its buffers, and the three passes over a batch: scores, gradient,
 * and a step of SGD.
 *
 * Gradient and step are one pass with different sinks (parts.h): alpha 1 and beta 0 into
 * the caller's g and the slots of rows, or alpha -lr and beta 1 - lr l2 into the
 * parameters and tables themselves. Everything is taken by work_create, for max_batch
 * examples of one id a field; only a batch with more ids than any before takes more
 * (rows.c). If that fails, scores and loss are NaN: a step has no other way to say so,
 * and the log has the reason. */
#include "nn/parts.h"

#include <assert.h>
#include <limits.h>
#include <math.h>
#include <string.h>
#if defined(__SSE__)
#include <immintrin.h>
#endif

void nn_thread_init(void)
{
#if defined(__SSE__)
    enum { FLUSH_TO_ZERO = 0x8000, DENORMALS_ARE_ZERO = 0x40 };
    _mm_setcsr(_mm_getcsr() | FLUSH_TO_ZERO | DENORMALS_ARE_ZERO);
#endif
}

bool work_matrix(const struct work *work, struct matrix *m, size_t width)
{
    m->ld = room_of(width);
    if (m->ld && work->max_batch > SIZE_MAX / m->ld)
        return false;
    m->at = memory_take_array(work->max_batch * m->ld, sizeof *m->at);
    return m->at;
}

/* The last layer's output is elsewhere. */
static bool reserve_stack(const struct work *work, const struct stack *stack,
                          struct matrix *y, struct matrix *d)
{
    for (int k = 0; k < stack->n; k++) {
        size_t width = (size_t)stack->layers[k].n_out;
        if (!work_matrix(work, &d[k], width) ||
            (k + 1 < stack->n && !work_matrix(work, &y[k], width)))
            return false;
    }
    return true;
}

static void give_stack(const struct stack *stack, const struct matrix *y,
                       const struct matrix *d)
{
    for (int k = 0; k < stack->n; k++) {
        memory_give(d[k].at);
        if (k + 1 < stack->n)
            memory_give(y[k].at);
    }
}

static size_t widest(const struct stack *stack, size_t so_far)
{
    for (int k = 0; k < stack->n; k++) {
        size_t in = (size_t)stack->layers[k].n_in, out = (size_t)stack->layers[k].n_out;
        so_far = in > so_far ? in : so_far;
        so_far = out > so_far ? out : so_far;
    }
    return so_far;
}

static bool reserve(struct work *work)
{
    const struct model *m = work->model;
    size_t width = widest(&m->top, widest(&m->bottom, 1));
    work->column = memory_take_array(room_of(width), sizeof *work->column);
    return work->column &&
           reserve_stack(work, &m->bottom, work->bottom, work->bottom_d) &&
           reserve_stack(work, &m->top, work->top, work->top_d) &&
           (!m->kind->reserve || m->kind->reserve(work)) &&
           rows_reserve(work, work->max_batch * (size_t)m->shape.n_fields);
}

descant_status work_create(struct work **out, const struct model *model, size_t max_batch,
                           const struct log *log)
{
    if (max_batch < 1 || max_batch > INT_MAX)
        return log_fail(log, DESCANT_INVALID, "a batch of %zu examples", max_batch);
    descant_status status = model_reserve(model, 1, log);
    if (status != DESCANT_OK)
        return status;
    struct work *work = memory_take(sizeof *work);
    if (!work)
        return log_fail(log, DESCANT_MEMORY, "no memory for a worker");
    work->model = model;
    work->max_batch = max_batch;
    if (log)
        work->log = *log;
    if (!reserve(work)) {
        work_destroy(work);
        return log_fail(log, DESCANT_MEMORY, "no memory for a worker's batches of %zu",
                        max_batch);
    }
    *out = work;
    return DESCANT_OK;
}

void work_destroy(struct work *work)
{
    if (!work)
        return;
    const struct model *m = work->model;
    give_stack(&m->bottom, work->bottom, work->bottom_d);
    give_stack(&m->top, work->top, work->top_d);
    memory_give(work->column);
    memory_give(work->vectors.at);
    memory_give(work->top_in.at);
    memory_give(work->top_in_d.at);
    memory_give(work->one);
    memory_give(work->turned);
    rows_fini(&work->rows);
    memory_give(work);
}

const struct row_grads *work_rows(const struct work *work)
{
    return &work->found;
}

const uint64_t *work_touched(const struct work *work, size_t *n)
{
    *n = work->n_changed;
    return work->changed;
}

static bool find_rows(struct work *work, const struct examples *batch)
{
    assert(batch->n >= 1 && batch->n <= work->max_batch);
    assert(batch->n_dense == work->model->shape.n_dense);
    assert(batch->n_fields == work->model->shape.n_fields);
    work->n_changed = 0;
    if (!rows_reserve(work, rows_count(batch)))
        return false;
    if (batch->n_fields)
        rows_find(work, batch);
    return true;
}

static double no_memory(size_t n, float *scores)
{
    for (size_t k = 0; scores && k < n; k++)
        scores[k] = NAN;
    return (double)NAN;
}

void model_scores(struct work *work, const float *w, const float *tables,
                  const struct examples *batch, float *scores)
{
    size_t outputs = (size_t)model_outputs(work->model);
    struct params p = {w, tables};
    bool found = work->blocks ? work->ahead : find_rows(work, batch);
    work->ahead = false;
    if (found)
        work->model->kind->forward(work, &p, batch, (struct matrix){scores, outputs},
                                   false);
    else
        no_memory(batch->n * outputs, scores);
}

static double pass(struct work *work, const struct params *p,
                   const struct examples *batch, const struct sink *sink, float *scores)
{
    const struct model *m = work->model;
    size_t outputs = (size_t)model_outputs(m);
    struct matrix *last = &work->top_d[m->top.n - 1], d = {last->at, outputs};
    *last = d;                  /* scores lie without gaps */
    m->kind->forward(work, p, batch, d, true);
    if (scores)
        memcpy(scores, d.at, batch->n * outputs * sizeof *scores);
    double loss = loss_and_gradient(d, batch->n, (int)outputs, batch->labels);
    work->finite = isfinite(loss);
    m->kind->backward(work, p, batch, sink);
    return loss;
}

static bool assign_rows(struct work *work, const struct examples *batch)
{
    if (!find_rows(work, batch))
        return false;
    rows_assign(work, rows_count(batch));
    work->changed = work->rows.touched;
    work->n_changed = work->found.n;
    return true;
}

bool work_ahead(struct work *work, const struct examples *batch)
{
    work->ahead = assign_rows(work, batch);
    if (work->ahead && !work->blocks)
        rows_inputs(work, batch);
    return work->ahead;
}

void work_on_blocks(struct work *work, const struct work_turns *turns)
{
    work->blocks = true;
    work->turns = turns ? *turns : (struct work_turns){0};
}

/* Without rows the pass goes on with zeros: there is room for a gradient of each. */
const float *work_tables(struct work *work, const float *tables)
{
    const struct work_turns *turns = &work->turns;
    const float *rows = turns->needed ? turns->needed(turns->of) : tables;

    return rows ? rows : work->rows.grads;
}

bool work_rows_first(const struct work *work)
{
    return work->turns.done;
}

void work_rows_done(struct work *work)
{
    if (work_rows_first(work) && work->finite)
        work->turns.done(work->turns.of);
}

double model_gradient(struct work *work, const float *w, const float *tables,
                      const struct examples *batch, float *g, float *scores)
{
    size_t outputs = (size_t)model_outputs(work->model);
    assert(work->ahead || !work->blocks);
    if (!work->ahead && !assign_rows(work, batch)) {
        memset(g, 0, model_floats(work->model) * sizeof *g);
        return no_memory(batch->n * outputs, scores);
    }
    work->ahead = false;
    struct params p = {w, tables};
    struct sink sink = {
        .w = g, .rows = work->rows.grads, .index = work->rows.slot, .alpha = 1};
    return pass(work, &p, batch, &sink, scores);
}

double model_sgd(struct work *work, float *w, float *tables, const struct examples *batch,
                 double lr, double l2, float *scores)
{
    size_t outputs = (size_t)model_outputs(work->model);
    work->found.n = 0;
    if (!find_rows(work, batch))
        return no_memory(batch->n * outputs, scores);
    work->changed = work->rows.of_id;
    work->n_changed = rows_count(batch);
    struct params p = {w, tables};
    struct sink sink = {.w = w, .rows = tables, .index = work->rows.of_id,
                        .alpha = (float)-lr, .beta = (float)(1 - lr * l2)};
    return pass(work, &p, batch, &sink, scores);
}
