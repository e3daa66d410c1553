/* SPDX-License-Identifier: MIT */
/* The rows of tables that grow. A slice of the table is a stripe of a slab. A row is read
 * and stepped under its stripe's lock, so no step is lost here, as one may be in a table
 * of another kind. A row that is not there has its first values, whether it was never
 * made or was evicted, and only a push makes it.
 *
 * A slice that has memory to itself has its slab's struct there, too, and then the slab's
 * block. All slices of a table have room for as many rows, whoever owns them: a slice
 * that comes has its rows in the slots that they had, so it has those that its owner has,
 * also where that evicts some. `dirty` has a bit for each slot, which is set under the
 * stripe's lock where its row is made, stepped or set, and taken back under it. */
#include "owners/grown.h"

#include <string.h>

#define MOST_MEMORY (UINT64_C(1) << 50)

enum { SLAB_HEAD = (sizeof(struct slab) + 63) / 64 * 64 };

/* Each slice may have memory to itself. */
static size_t least_bytes(const struct descant_owned *shape)
{
    return OWNED_SLICES * (SLAB_HEAD + slab_least(1, shape->width + owned_state(shape)));
}

bool grown_check(const char *name, const struct descant_owned *shape,
                 const struct log *log)
{
    size_t least = least_bytes(shape);
    const char *fault = NULL;

    if (shape->rows != 0)
        fault = "it grows, so its rows are not numbered: let rows be 0";
    else if (!(shape->admit > 0 && shape->admit <= 1))
        fault = "admit is above 0, and at most 1";
    else if (!(shape->unused_s >= 0 && shape->unused_s <= 1e9))
        fault = "unused_s is 0, or up to 1e9 seconds";
    else if (shape->memory > MOST_MEMORY || shape->memory > SIZE_MAX / 4)
        fault = "memory is more than any machine has";
    if (fault) {
        log_fail(log, DESCANT_INVALID, "table '%s': %s", name, fault);
        return false;
    }
    if (shape->memory < least)
        log_fail(log, DESCANT_INVALID, "table '%s': a table that grows needs memory, the "
                 "bytes that it may take on each rank: %zu at least, not %llu", name,
                 least, (unsigned long long)shape->memory);
    return shape->memory >= least;
}

/* Slices of a rank, where all owners have equal parts, at most. */
static uint64_t equal_part(const struct owned_map *map)
{
    uint64_t owners = 0;

    for (int k = 0; k < map->size; k++)
        owners += map->slices[k] > 0;
    return (OWNED_SLICES + owners - 1) / owners;
}

size_t grown_part_bytes(const struct owned *table, const struct owned_map *map)
{
    return (size_t)(table->shape.memory / equal_part(map) / 64 * 64);
}

size_t grown_bytes(const struct owned *table, const struct owned_map *map, int rank)
{
    return (size_t)(table->shape.memory * owned_slices(map, rank) / equal_part(map));
}

static uint64_t unused_ns(const struct owned *table)
{
    double unused_s = table->shape.unused_s;

    return unused_s > 0 ? (uint64_t)(unused_s * 1e9) + 1 : 0;
}

bool grown_place(struct owned *table, void *memory)
{
    const struct owned_map *map = table->map;
    size_t slices = owned_slices(map, table->rank);

    if (slices == 0)
        return true;
    if (!slab_place(&table->slab, slices, table->record, unused_ns(table), memory,
                    grown_bytes(table, map, table->rank)))
        return false;
    table->per_slice = table->slab.room;
    for (int slice = 0; slice < OWNED_SLICES; slice++)
        if (map->owner[slice] == table->rank)
            table->memory[slice] = memory;
    return true;
}

void grown_place_part(const struct owned *table, int slice, void *memory)
{
    struct slab *slab = memory;

    /* it is no other process's, for which this may wait */
    slab_place(slab, 1, table->record, unused_ns(table),
               (unsigned char *)memory + SLAB_HEAD, table->part_bytes - SLAB_HEAD);
    slab->stripe->chance = (uint64_t)slice;
    table->parts[slice].slab = slab;
}

size_t grown_part_room(const struct owned *table)
{
    return slab_room(1, table->record, table->part_bytes - SLAB_HEAD);
}

/* --- rows --- */

/* Where a slice has its rows. */
static const struct slab *slab_of(const struct owned *table, int slice)
{
    return table->apart ? table->parts[slice].slab : &table->slab;
}

static size_t stripe_of(const struct owned *table, int slice)
{
    return table->apart ? 0 : (size_t)table->map->place[slice];
}

/* The slot of a row is known when its bucket has come: half as far ahead. */
void grown_ask_for(const struct owned *table, const uint64_t *rows,
                   const uint32_t *places, size_t k, size_t n)
{
    if (k < n) {
        uint64_t row = rows[places ? places[k] : k];
        int slice = owned_slice(table, row);
        slab_ask_bucket(slab_of(table, slice), stripe_of(table, slice), row);
    }
    k -= OWNED_AHEAD / 2;
    if (k < n) {
        uint64_t row = rows[places ? places[k] : k];
        int slice = owned_slice(table, row);
        slab_ask_slot(slab_of(table, slice), stripe_of(table, slice), row);
    }
}

/* Ages need a clock, and cost one look at it for all rows of a call. */
static uint64_t now_for(const struct owned *table)
{
    return table->shape.unused_s > 0 ? clock_now_ns() : 0;
}

/* Its slab; slab_close follows. */
static const struct slab *open_row(const struct owned *table, uint64_t id,
                                   struct slab_row *row)
{
    int slice = owned_slice(table, id);
    const struct slab *slab = slab_of(table, slice);

    row->id = id;
    row->stripe = stripe_of(table, slice);
    slab_open(slab, row);
    return slab;
}

/* Of a row that is open. */
static void note_change(const struct owned *table, const struct slab_row *row)
{
    if (!table->apart)
        return;
    _Atomic uint64_t *dirty = table->parts[owned_slice(table, row->id)].dirty;
    if (dirty)
        atomic_fetch_or_explicit(&dirty[row->slot / 64], UINT64_C(1) << row->slot % 64,
                                 memory_order_relaxed);
}

void grown_read(const struct owned *table, const uint64_t *rows, const uint32_t *places,
                size_t n, float *out)
{
    struct slab_row row = {.now_ns = now_for(table)};
    size_t width = table->shape.width;

    for (size_t k = 0; k < n; k++) {
        size_t at = places ? places[k] : k;
        grown_ask_for(table, rows, places, k + OWNED_AHEAD, n);
        const struct slab *slab = open_row(table, rows[at], &row);
        if (row.record)
            memcpy(out + at * width, row.record, width * sizeof *out);
        slab_close(slab, &row);
        if (!row.record)
            owned_first(table, rows[at], out + at * width);
    }
}

/* What a row begins with. */
static void first_record(const struct owned *table, uint64_t id, float *record)
{
    size_t width = table->shape.width;

    owned_first(table, id, record);
    memset(record + width, 0, (table->record - width) * sizeof *record);
}

bool grown_record(const struct owned *table, uint64_t id, float *record)
{
    struct slab_row row = {.now_ns = now_for(table)};

    const struct slab *slab = open_row(table, id, &row);
    bool there = row.record != NULL;
    if (there)
        memcpy(record, row.record, table->record * sizeof *record);
    slab_close(slab, &row);
    if (!there)
        first_record(table, id, record);
    return there || table->shape.admit >= 1;
}

/* The row is there; or it is made, if it is admitted. */
static bool there_or_made(const struct owned *table, const struct slab *slab,
                          struct slab_row *row)
{
    if (row->record)
        return true;
    if (!slab_admits(slab, row, table->shape.admit))
        return false;
    first_record(table, row->id, slab_make(slab, row));
    slab_keep(slab, row);
    return true;
}

size_t grown_push(struct owned *table, const uint64_t *rows, const uint32_t *places,
                  size_t n, const float *gradients, float rate, uint64_t *bad_row)
{
    struct slab_row row = {.now_ns = now_for(table)};
    size_t width = table->shape.width, bad = 0;

    for (size_t k = 0; k < n; k++) {
        size_t at = places ? places[k] : k;
        const float *g = gradients + at * width;
        grown_ask_for(table, rows, places, k + OWNED_AHEAD, n);
        if (!table->kernels->finite(g, width)) {
            *bad_row = rows[at];
            bad++;
            continue;
        }
        const struct slab *slab = open_row(table, rows[at], &row);
        if (there_or_made(table, slab, &row)) {
            owned_step(table, row.record, g, rate);
            note_change(table, &row);
        }
        slab_close(slab, &row);
    }
    return bad;
}

void grown_set(struct owned *table, uint64_t id, const float *record)
{
    struct slab_row row = {.now_ns = now_for(table)};
    const struct slab *slab = open_row(table, id, &row);
    bool there = row.record != NULL;
    float *to = there ? row.record : slab_make(slab, &row);

    memcpy(to, record, table->record * sizeof *to);
    if (!there)
        slab_keep(slab, &row);
    note_change(table, &row);
    slab_close(slab, &row);
}

void grown_part_set(struct owned *table, uint64_t id, uint32_t slot, const float *record)
{
    struct slab_row row = {.now_ns = now_for(table)};
    const struct slab *slab = open_row(table, id, &row);
    bool there = row.record && row.slot == slot;
    float *to = there ? row.record : slab_make_at(slab, &row, slot);

    memcpy(to, record, table->record * sizeof *to);
    if (!there)
        slab_keep(slab, &row);
    slab_close(slab, &row);
}

size_t grown_part_next(const struct owned *table, int slice, bool dirty, size_t *at,
                       const struct owned_some *some)
{
    const struct slab_some rows = {.n = some->n, .ids = some->rows, .slots = some->slots,
                                   .records = some->records,
                                   .only = dirty ? table->parts[slice].dirty : NULL};

    return slab_next(slab_of(table, slice), stripe_of(table, slice), at, &rows);
}
