/* SPDX-License-Identifier: MIT */
/* A block being filled: arrays side by side in the block's own memory. Each slot of a
 * block only grows, to the next power of two, so a block that is read again and again
 * takes memory a few times and then never. A parser writes example n at [n] and counts it
 * only when the whole line was good; the next line writes over the values of a bad
 * one. */
#include "data/reader.h"

#include <math.h>

/* Memory of at least `bytes` in a slot, its first `keep` bytes as they were; NULL: none
 * to be had, and the slot is as before. */
void *rows_take(struct block *block, int slot, size_t bytes, size_t keep)
{
    if (bytes <= block->room[slot] && block->memory[slot])
        return block->memory[slot];
    size_t room = 4096;
    while (room < bytes && room <= SIZE_MAX / 4)
        room *= 2;
    void *larger = room < bytes ? NULL : memory_take(room);
    if (!larger)
        return NULL;
    if (keep > 0)
        memcpy(larger, block->memory[slot], keep);
    memory_give(block->memory[slot]);
    block->memory[slot] = larger;
    block->room[slot] = room;
    return larger;
}

void block_fini(struct block *block)
{
    for (size_t i = 0; i < sizeof block->memory / sizeof *block->memory; i++) {
        memory_give(block->memory[i]);
        block->memory[i] = NULL;
        block->room[i] = 0;
    }
    block->examples = (struct examples){0};
}

/* Takes room for `room` examples. That of ids and values in bags is not among it, since
 * rows_grow_ids takes it. There is one offset more than bags: the end of the last bag. */
static bool take_rows(struct rows *r, size_t room)
{
    size_t dense = (size_t)r->n_dense * sizeof(float);
    size_t fields = (size_t)r->n_fields * sizeof(uint32_t);
    r->dense = rows_take(r->block, ROWS_DENSE, room * dense, r->n * dense);
    r->labels =
        rows_take(r->block, ROWS_LABELS, room * sizeof(float), r->n * sizeof(float));
    if (!r->dense || !r->labels)
        return false;
    if (!r->bags)
        return (r->ids = rows_take(r->block, ROWS_IDS, room * fields, r->n * fields));
    size_t used = r->n ? r->n * fields + sizeof(uint32_t) : 0;
    return (r->offsets = rows_take(r->block, ROWS_OFFSETS,
                                   room * fields + sizeof(uint32_t), used));
}

bool rows_begin(struct rows *rows, struct block *block, const struct data_shape *shape,
                size_t expected)
{
    *rows = (struct rows){.block = block, .n_dense = shape->n_dense,
                          .n_fields = shape->n_fields, .bags = shape->bags};
    if (!take_rows(rows, expected))
        return false;
    rows->n_room = expected;
    if (!rows->bags)
        return true;
    rows->offsets[0] = 0;
    return rows_grow_ids(rows, expected);
}

bool rows_grow(struct rows *rows)
{
    if (!take_rows(rows, 2 * rows->n_room + 1))
        return false;
    rows->n_room = 2 * rows->n_room + 1;
    return true;
}

bool rows_grow_ids(struct rows *r, size_t n)
{
    size_t room = r->n_ids + n > 2 * r->ids_room ? r->n_ids + n : 2 * r->ids_room;
    if (r->n_ids + n <= r->ids_room)
        return true;
    size_t bytes = room * sizeof(uint32_t), used = r->n_ids * sizeof(uint32_t);
    uint32_t *ids = rows_take(r->block, ROWS_IDS, bytes, used);
    float *values = rows_take(r->block, ROWS_VALUES, bytes, used);
    /* If only one of them could grow, its old memory is gone, and the rows must know the
     * new one; ids_room stays, so that the next call tries again. */
    if (ids)
        r->ids = ids;
    if (values)
        r->values = values;
    if (!ids || !values)
        return false;
    r->ids_room = room;
    return true;
}

bool rows_blank(struct rows *r)
{
    size_t dense = (size_t)r->n_dense, fields = (size_t)r->n_fields;

    if (r->n == r->n_room && !rows_grow(r))
        return false;
    memset(r->dense + r->n * dense, 0, dense * sizeof *r->dense);
    for (size_t f = 0; f < fields; f++)
        if (r->bags)
            r->offsets[r->n * fields + f + 1] = r->offsets[r->n * fields];
        else
            r->ids[r->n * fields + f] = 0;
    r->labels[r->n++] = NAN;
    return true;
}

void rows_end(struct rows *r)
{
    r->block->examples = (struct examples){
        .n = r->n, .n_dense = r->n_dense, .n_fields = r->n_fields,
        .dense = r->n_dense ? r->dense : NULL, .ids = r->n_fields ? r->ids : NULL,
        .offsets = r->bags ? r->offsets : NULL, .values = r->bags ? r->values : NULL,
        .labels = r->labels};
}
