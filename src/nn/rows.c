/* SPDX-License-Identifier: MIT */
/* Rows of tables: which rows a batch's ids are, and, for model_gradient, a slot for each
 * different one, so that an id that comes twice has its gradients summed.
 *
 * A batch's ids are turned into row numbers once, in one pass; the loops then follow
 * these numbers and ask for rows ahead (ROWS_AHEAD numbers past the last one may be read:
 * there is room for them, and their values are only hints). A hashed id keeps its high
 * bits: row = id * rows >> 32. The slots come from a hash with open addressing, emptied
 * for each batch.
 *
 * Memory: room for max_batch * n_fields ids from the start; a batch with more ids (bags)
 * than ever before makes it grow, and no other step takes any. */
#include "nn/parts.h"

#include <string.h>

size_t rows_first(const struct examples *batch, size_t i)
{
    size_t bag = i * (size_t)batch->n_fields;
    return batch->offsets ? batch->offsets[bag] - batch->offsets[0] : bag;
}

size_t rows_count(const struct examples *batch)
{
    return batch->n_fields ? rows_first(batch, batch->n) : 0;
}

void rows_fini(struct work_rows *rows)
{
    memory_give(rows->of_id);
    memory_give(rows->slot);
    memory_give(rows->touched);
    memory_give(rows->hash);
    memory_give(rows->grads);
    memory_give(rows->inputs);
    memory_give(rows->products);
    memset(rows, 0, sizeof *rows);
}

bool rows_reserve(struct work *work, size_t n)
{
    struct work_rows *rows = &work->rows;
    size_t width = (size_t)work->model->row_width, hash_room = 64;
    if (n <= rows->room || !width)
        return true;
    while (hash_room < 2 * n)
        hash_room *= 2;
    work->found.n = 0;
    rows_fini(rows);
    rows->of_id = memory_take_array(n + ROWS_AHEAD, sizeof *rows->of_id);
    rows->slot = memory_take_array(n + ROWS_AHEAD, sizeof *rows->slot);
    rows->touched = memory_take_array(n, sizeof *rows->touched);
    rows->hash = memory_take_array(hash_room, sizeof *rows->hash);
    rows->grads = memory_take_array(n, width * sizeof *rows->grads);
    rows->inputs = memory_take_array(n, 2 * sizeof *rows->inputs);
    rows->products = memory_take_array(n, width * sizeof *rows->products);
    if (!rows->of_id || !rows->slot || !rows->touched || !rows->hash || !rows->grads ||
        !rows->inputs || !rows->products) {
        rows_fini(rows);
        log_fail(&work->log, DESCANT_MEMORY, "no memory for a batch of %zu ids", n);
        return false;
    }
    rows->room = n;
    rows->hash_room = hash_room;
    return true;
}

static uint64_t row_of(uint32_t id, const struct model_shape *shape)
{
    return shape->grows       ? id
           : shape->plain_ids ? id % (uint64_t)shape->rows
                              : (uint64_t)id * shape->rows >> 32;
}

void rows_find(struct work *work, const struct examples *batch)
{
    const struct model_shape *shape = &work->model->shape;
    bool own_table = work->model->n_tables > 1;
    size_t n = batch->n * (size_t)batch->n_fields, fields = (size_t)batch->n_fields;
    uint32_t first = batch->offsets ? batch->offsets[0] : 0;
    const uint32_t *ids = batch->ids + first;
    uint64_t of_table = shape->grows ? UINT64_C(1) << 32 : shape->rows;
    uint64_t *row = work->rows.of_id;
    for (size_t bag = 0, f = 0; bag < n; bag++, f = f + 1 == fields ? 0 : f + 1) {
        size_t end = batch->offsets ? batch->offsets[bag + 1] - first : bag + 1;
        uint64_t table = own_table ? f * of_table : 0;
        for (size_t k = batch->offsets ? batch->offsets[bag] - first : bag; k < end; k++)
            row[k] = table + row_of(ids[k], shape);
    }
}

void rows_assign(struct work *work, size_t n_ids)
{
    struct work_rows *rows = &work->rows;
    size_t n = 0, last = rows->hash_room - 1;
    if (n_ids)
        memset(rows->hash, 0, rows->hash_room * sizeof *rows->hash);
    for (size_t k = 0; k < n_ids; k++) {
        uint64_t row = rows->of_id[k];
        size_t at = (size_t)(row * UINT64_C(0x9e3779b97f4a7c15) >> 32) & last;
        while (rows->hash[at] && rows->touched[rows->hash[at] - 1] != row)
            at = (at + 1) & last;
        if (!rows->hash[at]) {
            rows->touched[n] = row;
            rows->hash[at] = (uint32_t)++n;
        }
        rows->slot[k] = rows->hash[at] - 1;
    }
    work->found = (struct row_grads){.n = n, .width = work->model->row_width,
                                     .n_weights = work->model->shape.kind != MODEL_DLRM,
                                     .rows = rows->touched, .grads = rows->grads};
    if (n)
        memset(rows->grads, 0, n * (size_t)work->model->row_width * sizeof *rows->grads);
}

/* so that a million of them have a sum in a float */
#define MOST_SQUARE 1e32f

void rows_inputs(struct work *work, const struct examples *batch)
{
    struct work_rows *rows = &work->rows;
    size_t n = rows_count(batch);
    const float *values = batch->values;
    if (values && batch->offsets)
        values += batch->offsets[0];
    if (work->found.n)
        memset(rows->inputs, 0, work->found.n * 2 * sizeof *rows->inputs);
    for (size_t k = 0; k < n; k++) {
        float square = values ? values[k] * values[k] : 1;
        square = square > MOST_SQUARE ? MOST_SQUARE : square;
        rows->inputs[2 * rows->slot[k]] += square > 0 ? 1 : 0;
        rows->inputs[2 * rows->slot[k] + 1] += square;
    }
    work->found.inputs = rows->inputs;
}

const uint64_t *rows_index(const struct work *work)
{
    return work->blocks ? work->rows.slot : work->rows.of_id;
}

struct bags rows_bags(const struct examples *batch, size_t i, const uint64_t *index)
{
    size_t at = rows_first(batch, i), bag = i * (size_t)batch->n_fields;
    size_t first = batch->offsets ? batch->offsets[0] : 0;
    return (struct bags){
        .n_fields = batch->n_fields,
        .offsets = batch->offsets ? batch->offsets + bag : NULL,
        .rows = index + at,
        .values = batch->values ? batch->values + first + at : NULL,
    };
}
