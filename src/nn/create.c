/* SPDX-License-Identifier: MIT */
/* A model by its shape: the kinds of models, each a row of a table (parts.h), and the
 * sizes that they may have. */
#include "nn/parts.h"

#include <string.h>

static const struct model_kind_table *const kinds[] = {
    [MODEL_LINEAR] = &kind_linear,
    [MODEL_FM] = &kind_fm,
    [MODEL_DLRM] = &kind_dlrm,
    [MODEL_MLP] = &kind_mlp,
};

enum { MOST = 1 << 20 };                        /* of any size in a shape but rows */
static const uint64_t most_rows = UINT64_C(1) << 32;

static bool sizes_fit(const int *sizes, int n)
{
    if (n < 0 || n > NN_MAX_LAYERS)
        return false;
    for (int k = 0; k < n; k++)
        if (sizes[k] < 1 || sizes[k] > MOST)
            return false;
    return true;
}

static const char *check(const struct model_shape *s)
{
    if ((unsigned)s->kind >= sizeof kinds / sizeof *kinds)
        return "there is no such kind";
    if (s->n_dense < 0 || s->n_dense > MOST || s->n_fields < 0 || s->n_fields > MOST)
        return "0 to 2^20 dense features and fields are possible";
    if (s->n_classes < 1 || s->n_classes > MOST)
        return "1 to 2^20 classes are possible";
    if (s->width < 0 || s->width > MOST)
        return "a width up to 2^20 is possible";
    if (s->rows > most_rows)
        return "2^32 rows a table are possible";
    if (s->grows && s->rows)
        return "tables that grow have no number of rows";
    if (!sizes_fit(s->bottom, s->n_bottom) || !sizes_fit(s->top, s->n_top))
        return "at most 16 hidden layers of 1 to 2^20 are possible";
    return kinds[s->kind]->check(s);
}

static bool add_tables(struct model *m)
{
    size_t rows = m->shape.rows, width = (size_t)m->row_width;
    m->tables = memory_take_array(m->n_tables, sizeof *m->tables);
    if (!m->tables)
        return false;
    for (size_t k = 0; k < m->n_tables; k++) {
        struct tensor *t = &m->tables[k];
        *t = (struct tensor){.name = "table.weight", .n_dims = 2, .dims = {rows, width},
                             .at = k * rows * width, .n = rows * width};
        if (m->shape.kind == MODEL_DLRM)
            snprintf(t->name, sizeof t->name, "tables.%zu.weight", k);
    }
    m->n_rows = m->n_tables * rows;
    return true;
}

descant_status model_create(struct model **out, const struct model_shape *shape,
                            const struct log *log)
{
    const char *wrong = check(shape);
    if (wrong)
        return log_fail(log, DESCANT_INVALID, "the model's shape: %s", wrong);
    if (loops_lacking())
        return log_fail(log, DESCANT_INVALID,
                        "DESCANT_LOOPS=%s: this processor has no such loops; allowed are "
                        "base and, where it can, avx2 and avx512",
                        loops_lacking());
    struct model *m = memory_take(sizeof *m);
    if (!m)
        return log_fail(log, DESCANT_MEMORY, "no memory for a model");
    m->kind = kinds[shape->kind];
    m->loops = loops_best();
    m->shape = *shape;
    m->kind->lay_out(m);
    descant_status status = model_multiplies(m) ? blas_init(log) : DESCANT_OK;
    if (status == DESCANT_OK && !add_tables(m))
        status = log_fail(log, DESCANT_MEMORY, "no memory for a model's tables");
    if (status == DESCANT_OK)
        *out = m;
    else
        model_destroy(m);
    return status;
}
