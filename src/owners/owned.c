/* SPDX-License-Identifier: MIT */
#include "owners/grown.h"

#include <string.h>

enum { APART = 389 };           /* slices between the first rows of two tables */

#define MOST_ROWS (UINT64_C(1) << 40)

/* --- shape --- */

static const char *fault_of(const struct descant_owned *shape)
{
    if (!shape->grows && (shape->rows == 0 || shape->rows > MOST_ROWS))
        return "a table has 1 to 2^40 rows";
    if (!shape->grows &&
        (shape->memory != 0 || shape->unused_s != 0 ||
         (shape->admit != 1 && shape->admit != 0)))     /* 1 is descant_owned_default's */
        return "admit, unused_s and memory are for tables that grow: set grows, too";
    if (shape->width == 0 || shape->width > OWNED_WIDEST)
        return "a row has 1 to 4096 floats";
    if ((int)shape->optimizer < 0 || shape->optimizer > DESCANT_ROWS_ADAM)
        return "there is no such optimizer";
    if ((int)shape->wire < 0 || shape->wire > DESCANT_ROWS_Q8)
        return "there is no such wire";
    if (!(shape->momentum >= 0 && shape->momentum < 1 && shape->beta1 >= 0 &&
          shape->beta1 < 1 && shape->beta2 >= 0 && shape->beta2 < 1))
        return "momentum, beta1 and beta2 are from 0 to below 1";
    if (!(shape->epsilon >= 0 && shape->epsilon < 1e30))
        return "epsilon is a number, and not negative";
    if (!(shape->spread >= 0 && shape->spread < 1e30))
        return "spread is a number, and not negative";
    if (!(shape->age >= 0 && shape->age <= 1e9))
        return "age is from 0 to 1e9 seconds";
    if (shape->age > 0 && shape->width + owned_state(shape) > OWNED_COPIED)
        return "a row of more than 8191 floats, with its optimizer's state, has no "
               "copies: set age to 0";
    return NULL;
}

bool owned_check(const char *name, const struct descant_owned *shape,
                 const struct log *log)
{
    if (!name || !*name || !shape) {
        log_fail(log, DESCANT_INVALID, "descant_owned_table needs a name and a shape");
        return false;
    }
    const char *fault = fault_of(shape);
    if (fault)
        log_fail(log, DESCANT_INVALID, "table '%s': %s", name, fault);
    return fault == NULL && (!shape->grows || grown_check(name, shape, log));
}

bool owned_init(struct owned *table, const char *name, const struct descant_owned *shape,
                int number)
{
    *table = (struct owned){.shape = *shape, .kernels = kernels_best()};
    table->name = memory_take(strlen(name) + 1);
    if (!table->name)
        return false;
    memcpy(table->name, name, strlen(name) + 1);
    table->turn = (uint64_t)number * APART % OWNED_SLICES;
    table->record = shape->width + owned_state(shape);
    table->per_slice = (size_t)((shape->rows + OWNED_SLICES - 1) / OWNED_SLICES);
    return true;
}

void owned_fini(struct owned *table)
{
    memory_give(table->name);
}

/* --- memory --- */

/* Words of `born`, whole lines of them. */
static size_t words_of(const struct owned *table, size_t slices)
{
    return (slices * table->per_slice + 511) / 512 * 8;
}

size_t owned_bytes(const struct owned *table, const struct owned_map *map, int rank)
{
    size_t slices = owned_slices(map, rank);

    if (table->shape.grows)
        return grown_bytes(table, map, rank);
    return slices * table->per_slice * table->record * sizeof(float) +
           words_of(table, slices) * sizeof(uint64_t);
}

bool owned_place(struct owned *table, const struct owned_map *map, int rank, void *memory)
{
    table->map = map;
    table->rank = rank;
    if (table->shape.grows)
        return grown_place(table, memory);
    table->born = memory;
    table->records =
        (float *)memory + 2 * words_of(table, owned_slices(map, rank)); /* of 8 bytes */
    return true;
}

static size_t number_of(const struct owned *table, uint64_t row)
{
    size_t place = (size_t)table->map->place[owned_slice(table, row)];

    return place * table->per_slice + (size_t)(row / OWNED_SLICES);
}

static float *record_at(const struct owned *table, size_t number)
{
    return table->records + number * table->record;
}

static bool is_born(const struct owned *table, size_t number)
{
    uint64_t word =
        atomic_load_explicit(&table->born[number / 64], memory_order_acquire);
    return word >> number % 64 & 1;
}

static void set_born(struct owned *table, size_t number)
{
    atomic_fetch_or_explicit(&table->born[number / 64], UINT64_C(1) << number % 64,
                             memory_order_release);
}

static void give_first_values(struct owned *table, uint64_t row, size_t number)
{
    float first[OWNED_WIDEST];

    owned_first(table, row, first);
    table->kernels->copy(record_at(table, number), first, table->shape.width);
    set_born(table, number);
}

void owned_ask_for(const struct owned *table, const uint64_t *rows,
                   const uint32_t *places, size_t k, size_t n)
{
    if (table->shape.grows)
        grown_ask_for(table, rows, places, k, n);
    if (table->shape.grows || k >= n)
        return;
    const float *record =
        record_at(table, number_of(table, rows[places ? places[k] : k]));
    for (size_t i = 0; i < table->record; i += 16)
        __builtin_prefetch(record + i, 1);
}

/* --- rows --- */

void owned_read(const struct owned *table, const uint64_t *rows, const uint32_t *places,
                size_t n, float *out)
{
    size_t width = table->shape.width;

    for (size_t k = 0; k < n && k < OWNED_AHEAD; k++)
        owned_ask_for(table, rows, places, k, n);
    if (table->shape.grows) {
        grown_read(table, rows, places, n, out);
        return;
    }
    for (size_t k = 0; k < n; k++) {
        size_t at = places ? places[k] : k, number = number_of(table, rows[at]);
        owned_ask_for(table, rows, places, k + OWNED_AHEAD, n);
        if (is_born(table, number))
            table->kernels->copy(out + at * width, record_at(table, number), width);
        else
            owned_first(table, rows[at], out + at * width);
    }
}

bool owned_record(const struct owned *table, uint64_t row, float *record)
{
    if (table->shape.grows)
        return grown_record(table, row, record);
    size_t number = number_of(table, row);
    if (is_born(table, number)) {
        table->kernels->copy(record, record_at(table, number), table->record);
        return true;
    }
    memset(record, 0, table->record * sizeof *record);
    owned_first(table, row, record);
    return true;
}

size_t owned_push(struct owned *table, const uint64_t *rows, const uint32_t *places,
                  size_t n, const float *gradients, float rate, uint64_t *bad_row)
{
    size_t width = table->shape.width, bad = 0;

    for (size_t k = 0; k < n && k < OWNED_AHEAD; k++)
        owned_ask_for(table, rows, places, k, n);
    if (table->shape.grows)
        return grown_push(table, rows, places, n, gradients, rate, bad_row);
    for (size_t k = 0; k < n; k++) {
        size_t at = places ? places[k] : k, number = number_of(table, rows[at]);
        const float *g = gradients + at * width;
        owned_ask_for(table, rows, places, k + OWNED_AHEAD, n);
        if (!table->kernels->finite(g, width)) {
            *bad_row = rows[at];
            bad++;
            continue;
        }
        if (!is_born(table, number))
            give_first_values(table, rows[at], number);
        owned_step(table, record_at(table, number), g, rate);
    }
    return bad;
}

/* --- saved --- */

/* The slice at a place of this rank. */
static uint64_t slice_at(const struct owned *table, size_t place)
{
    int slice = 0;

    while (table->map->owner[slice] != table->rank ||
           (size_t)table->map->place[slice] != place)
        slice++;
    return (uint64_t)slice;
}

size_t owned_next(const struct owned *table, uint64_t *at, size_t room, uint64_t *rows,
                  float *records)
{
    size_t end = owned_slices(table->map, table->rank) * table->per_slice, n = 0;
    size_t place = SIZE_MAX;
    uint64_t slice = 0;

    if (table->shape.grows)
        return slab_next(&table->slab, at, room, rows, records);
    for (; *at < end && n < room; ++*at) {
        size_t number = (size_t)*at;
        if (number % 64 == 0 && number + 64 <= end &&
            !atomic_load_explicit(&table->born[number / 64], memory_order_relaxed))
            *at += 63;
        if (!is_born(table, number))
            continue;
        if (number / table->per_slice != place) {
            place = number / table->per_slice;
            slice = slice_at(table, place);
        }
        rows[n] = number % table->per_slice * OWNED_SLICES +
                  (slice + OWNED_SLICES - table->turn) % OWNED_SLICES;
        if (records)
            table->kernels->copy(records + n * table->record, record_at(table, number),
                                 table->record);
        n++;
    }
    return n;
}

void owned_set(struct owned *table, const uint64_t *rows, size_t n, const float *records)
{
    for (size_t k = 0; k < n; k++) {
        if (!owned_here(table, rows[k]))
            continue;
        if (table->shape.grows) {
            grown_set(table, rows[k], records + k * table->record);
            continue;
        }
        size_t number = number_of(table, rows[k]);
        table->kernels->copy(record_at(table, number), records + k * table->record,
                             table->record);
        set_born(table, number);
    }
}
