/* SPDX-License-Identifier: MIT */
/* The rows of tables that grow. A slice of the table is a stripe of its slab. A row is
 * read and stepped under its stripe's lock, so no step is lost here, as one may be in
 * tables of another kind. A row that is not there has its first values, whether it was
 * never made or was evicted, and only a push makes it. */
#include "owners/grown.h"

#include <string.h>

#define MOST_MEMORY (UINT64_C(1) << 50)

bool grown_check(const char *name, const struct descant_owned *shape,
                 const struct log *log)
{
    size_t least = slab_least(OWNED_SLICES, shape->width + owned_state(shape));
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

size_t grown_bytes(const struct owned *table, const struct owned_map *map, int rank)
{
    uint64_t owners = 0;

    for (int k = 0; k < map->size; k++)
        owners += map->slices[k] > 0;
    uint64_t equal = (OWNED_SLICES + owners - 1) / owners;      /* slices, at most */
    return (size_t)(table->shape.memory * owned_slices(map, rank) / equal);
}

bool grown_place(struct owned *table, void *memory)
{
    size_t slices = owned_slices(table->map, table->rank);
    double unused_s = table->shape.unused_s;
    uint64_t unused_ns = unused_s > 0 ? (uint64_t)(unused_s * 1e9) + 1 : 0;

    return slices == 0 ||
           slab_place(&table->slab, slices, table->record, unused_ns, memory,
                      grown_bytes(table, table->map, table->rank));
}

static size_t stripe_of(const struct owned *table, uint64_t row)
{
    return (size_t)table->map->place[owned_slice(table, row)];
}

/* The slot of a row is known when its bucket has come: half as far ahead. */
void grown_ask_for(const struct owned *table, const uint64_t *rows,
                   const uint32_t *places, size_t k, size_t n)
{
    if (k < n) {
        uint64_t row = rows[places ? places[k] : k];
        slab_ask_bucket(&table->slab, stripe_of(table, row), row);
    }
    k -= OWNED_AHEAD / 2;
    if (k < n) {
        uint64_t row = rows[places ? places[k] : k];
        slab_ask_slot(&table->slab, stripe_of(table, row), row);
    }
}

/* Ages need a clock, and cost one look at it for all rows of a call. */
static uint64_t now_for(const struct owned *table)
{
    return table->shape.unused_s > 0 ? clock_now_ns() : 0;
}

static void open_row(const struct owned *table, uint64_t id, struct slab_row *row)
{
    row->id = id;
    row->stripe = stripe_of(table, id);
    slab_open(&table->slab, row);
}

void grown_read(const struct owned *table, const uint64_t *rows, const uint32_t *places,
                size_t n, float *out)
{
    struct slab_row row = {.now_ns = now_for(table)};
    size_t width = table->shape.width;

    for (size_t k = 0; k < n; k++) {
        size_t at = places ? places[k] : k;
        grown_ask_for(table, rows, places, k + OWNED_AHEAD, n);
        open_row(table, rows[at], &row);
        if (row.record)
            memcpy(out + at * width, row.record, width * sizeof *out);
        slab_close(&table->slab, &row);
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

    open_row(table, id, &row);
    bool there = row.record != NULL;
    if (there)
        memcpy(record, row.record, table->record * sizeof *record);
    slab_close(&table->slab, &row);
    if (!there)
        first_record(table, id, record);
    return there || table->shape.admit >= 1;
}

/* The row is there; or it is made, if it is admitted. */
static bool there_or_made(struct owned *table, struct slab_row *row)
{
    if (row->record)
        return true;
    if (!slab_admits(&table->slab, row, table->shape.admit))
        return false;
    first_record(table, row->id, slab_make(&table->slab, row));
    slab_keep(&table->slab, row);
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
        open_row(table, rows[at], &row);
        if (there_or_made(table, &row))
            owned_step(table, row.record, g, rate);
        slab_close(&table->slab, &row);
    }
    return bad;
}

void grown_set(struct owned *table, uint64_t id, const float *record)
{
    struct slab_row row = {.now_ns = now_for(table)};

    open_row(table, id, &row);
    bool there = row.record != NULL;
    float *to = there ? row.record : slab_make(&table->slab, &row);
    memcpy(to, record, table->record * sizeof *to);
    if (!there)
        slab_keep(&table->slab, &row);
    slab_close(&table->slab, &row);
}
