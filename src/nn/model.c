/* SPDX-License-Identifier: MIT */
/* Models: the layout of the flat vector, its contents, the first values.
 *
 * The layers of a kind (parts.h) become tensors here, with the names that PyTorch gives
 * to the members of nn.Sequential: every second number, for relu counts there. All is
 * decided by the shape, so two processes with the same shape agree.
 *
 * First values. Layers before relu: normal, deviation sqrt(2 / in) (He et al. 2015); a
 * last layer: sqrt(1 / in); biases 0. Rows of dlrm and fm: uniform in +-1 / (4
 * sqrt(width)), so that dots of two vectors start near 0.02, small beside the other
 * scores and large enough to let the product's gradient begin; linear weights 0. Each row
 * has chance of its own, from the seed and its number, so that tables can be filled in
 * parts. */
#include "nn/parts.h"

#include <math.h>
#include <string.h>

/* --- layout --- */

static void add_tensor(struct model *m, const char *stack, int number, const char *what,
                       size_t out, size_t in)
{
    struct tensor *t = &m->tensors[m->n_tensors++];
    if (number >= 0)
        snprintf(t->name, sizeof t->name, "%s.%d.%s", stack, number, what);
    else
        snprintf(t->name, sizeof t->name, "%s.%s", stack, what);
    t->n_dims = in ? 2 : 1;
    t->dims[0] = out;
    t->dims[1] = in;
    t->at = m->n_floats;
    t->n = in ? out * in : out;
    m->n_floats += t->n;
}

static void add_layer(struct model *m, struct stack *stack, const char *name, int number,
                      struct layer layer)
{
    layer.weight = m->n_floats;
    if (layer.n_in)
        add_tensor(m, name, number, "weight", (size_t)layer.n_out, (size_t)layer.n_in);
    layer.bias = m->n_floats;
    add_tensor(m, name, number, "bias", (size_t)layer.n_out, 0);
    stack->layers[stack->n++] = layer;
}

void model_add_layer(struct model *model, struct stack *stack, const char *name, int n_in,
                     int n_out, bool relu)
{
    struct layer layer = {.n_in = n_in, .n_out = n_out, .relu = relu};
    add_layer(model, stack, name, -1, layer);
}

void model_add_stack(struct model *model, struct stack *stack, const char *name, int n_in,
                     const int *hidden, int n_hidden, int n_out, bool last_relu)
{
    for (int k = 0; k <= n_hidden; k++) {
        int out = k < n_hidden ? hidden[k] : n_out;
        struct layer layer = {
            .n_in = n_in, .n_out = out, .relu = k < n_hidden || last_relu};
        add_layer(model, stack, name, 2 * k, layer);
        n_in = out;
    }
}

static bool stack_multiplies(const struct stack *stack)
{
    for (int k = 0; k < stack->n; k++)
        if (stack->layers[k].n_out != 1)
            return true;
    return false;
}

/* Layers of one output have loops of their own. */
bool model_multiplies(const struct model *m)
{
    return stack_multiplies(&m->bottom) || stack_multiplies(&m->top);
}

descant_status model_reserve(const struct model *model, int threads,
                             const struct log *log)
{
    return model_multiplies(model) ? blas_reserve(threads, log) : DESCANT_OK;
}

void model_destroy(struct model *model)
{
    if (!model)
        return;
    memory_give(model->tables);
    memory_give(model);
}

/* --- contents --- */

const struct model_shape *model_shape(const struct model *model)
{
    return &model->shape;
}

int model_outputs(const struct model *model)
{
    return model->shape.n_classes;
}

size_t model_floats(const struct model *model)
{
    return model->n_floats;
}

size_t model_table_floats(const struct model *model)
{
    return model->n_rows * (size_t)model->row_width;
}

size_t model_table_rows(const struct model *model)
{
    return model->n_rows;
}

uint64_t model_rows_end(const struct model *model)
{
    return model->shape.grows ? (uint64_t)model->n_tables << 32 : model->n_rows;
}

int model_table_width(const struct model *model)
{
    return model->row_width;
}

const struct tensor *model_tensors(const struct model *model, size_t *n)
{
    *n = model->n_tensors;
    return model->tensors;
}

const struct tensor *model_tables(const struct model *model, size_t *n)
{
    *n = model->n_tables;
    return model->tables;
}

/* Forward, weights and inputs: three products a layer, each 2 in out; the features have
 * no gradient. */
static double stack_flops(const struct stack *stack, bool want_dx)
{
    double sum = 0;
    for (int k = 0; k < stack->n; k++) {
        const struct layer *l = &stack->layers[k];
        sum += (k || want_dx ? 3.0 : 2.0) * 2 * l->n_in * l->n_out;
    }
    return sum;
}

double model_flops(const struct model *model)
{
    bool inner = model->bottom.n;
    return stack_flops(&model->bottom, false) + stack_flops(&model->top, inner) +
           model->kind->flops(model);
}

/* --- first values --- */

static void init_stack(const struct stack *stack, float *w, struct rng *rng)
{
    for (int k = 0; k < stack->n; k++) {
        const struct layer *l = &stack->layers[k];
        size_t n = (size_t)l->n_in * (size_t)l->n_out;
        double deviation = sqrt((l->relu ? 2.0 : 1.0) / l->n_in);
        for (size_t i = 0; i < n; i++)
            w[l->weight + i] = (float)(rng_normal(rng) * deviation);
        for (int i = 0; i < l->n_out; i++)
            w[l->bias + (size_t)i] = 0;
    }
}

void model_init(const struct model *model, float *w, uint64_t seed)
{
    struct rng rng;
    rng_init(&rng, seed);
    if (model->shape.kind == MODEL_LINEAR || model->shape.kind == MODEL_FM) {
        memset(w, 0, model->n_floats * sizeof *w);
        return;
    }
    init_stack(&model->bottom, w, &rng);
    init_stack(&model->top, w, &rng);
}

void model_set_intercept(const struct model *model, float *w, double score)
{
    if (model->shape.kind == MODEL_LINEAR || model->shape.kind == MODEL_FM)
        w[model->top.layers[0].bias] = (float)score;
}

struct rows_born rows_born_of(enum model_kind kind, size_t row_width)
{
    size_t zeros = kind == MODEL_DLRM ? 0 : 1;
    double spread = row_width > zeros ? 0.25 / sqrt((double)(row_width - zeros)) : 0;
    return (struct rows_born){zeros, spread};
}

struct rows_born model_rows_born(const struct model *model)
{
    return rows_born_of(model->shape.kind, (size_t)model->row_width);
}

void model_init_tables(const struct model *model, float *tables, size_t from, size_t n,
                       uint64_t seed)
{
    struct rows_born born = model_rows_born(model);
    size_t width = (size_t)model->row_width;
    for (size_t r = from; r < from + n; r++)
        rng_row(tables + r * width, width, born.zeros, born.spread, seed, r);
}
