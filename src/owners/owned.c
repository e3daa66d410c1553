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
    table->parts = memory_take_array(OWNED_SLICES, sizeof *table->parts);
    table->memory = memory_take_array(OWNED_SLICES, sizeof *table->memory);
    if (!table->name || !table->parts || !table->memory) {
        owned_fini(table);
        return false;
    }
    memcpy(table->name, name, strlen(name) + 1);
    table->turn = (uint64_t)number * APART % OWNED_SLICES;
    table->record = shape->width + owned_state(shape);
    table->per_slice = (size_t)((shape->rows + OWNED_SLICES - 1) / OWNED_SLICES);
    return true;
}

void owned_fini(struct owned *table)
{
    for (int slice = 0; table->parts && slice < OWNED_SLICES; slice++) {
        if (table->parts[slice].own)
            memory_give(table->memory[slice]);
        memory_give(table->parts[slice].dirty);
    }
    memory_give(table->memory);
    memory_give(table->parts);
    memory_give(table->name);
    table->memory = NULL;
    table->parts = NULL;
    table->name = NULL;
}

/* --- memory --- */

/* Whole lines: so no two slices share one. */
static size_t part_bytes(const struct owned *table, const struct owned_map *map)
{
    size_t records = table->per_slice * table->record * sizeof(float);

    return table->shape.grows ? grown_part_bytes(table, map) : (records + 63) / 64 * 64;
}

static void place_part(struct owned *table, int slice, void *memory)
{
    table->memory[slice] = memory;
    if (table->shape.grows)
        grown_place_part(table, slice, memory);
}

/* All of the table's slices that are here are one slab. */
static bool is_one(const struct owned *table, const struct owned_map *map)
{
    return table->shape.grows && !map->moves;
}

size_t owned_bytes(const struct owned *table, const struct owned_map *map, int rank)
{
    return is_one(table, map) ? grown_bytes(table, map, rank)
                              : owned_slices(map, rank) * part_bytes(table, map);
}

bool owned_place(struct owned *table, const struct owned_map *map, int rank, void *memory)
{
    unsigned char *at = memory;

    table->map = map;
    table->rank = rank;
    if (is_one(table, map))
        return grown_place(table, memory);
    table->part_bytes = part_bytes(table, map);
    if (table->shape.grows) {
        table->per_slice = grown_part_room(table);
        table->apart = true;
    }
    for (int slice = 0; memory && slice < OWNED_SLICES; slice++) {
        if (map->owner[slice] != rank || map->shut[slice])
            continue;
        place_part(table, slice, at);
        at += table->part_bytes;
    }
    return true;
}

bool owned_part_take(struct owned *table, int slice)
{
    owned_part_give(table, slice);
    void *memory = memory_take(table->part_bytes);
    if (!memory)
        return false;
    place_part(table, slice, memory);
    table->parts[slice].own = true;
    return true;
}

static void add_figures(struct slab_figures *sum, const struct slab_figures *of)
{
    sum->live += of->live;
    sum->evicted += of->evicted;
    sum->refused += of->refused;
}

void owned_part_give(struct owned *table, int slice)
{
    struct owned_part *part = &table->parts[slice];

    if (part->slab) {
        struct slab_figures past = slab_figures(part->slab);
        past.live = 0;
        add_figures(&table->past, &past);
    }
    if (part->own)
        memory_give(table->memory[slice]);
    else if (table->memory[slice])
        memory_drop(table->memory[slice], table->part_bytes);
    table->memory[slice] = NULL;
    table->followed -= part->dirty != NULL;
    memory_give(part->dirty);
    *part = (struct owned_part){0};
}

struct slab_figures owned_figures(const struct owned *table)
{
    struct slab_figures sum = table->past;

    if (!table->apart)
        return slab_figures(&table->slab);
    for (int slice = 0; slice < OWNED_SLICES; slice++) {
        if (!table->parts[slice].slab)
            continue;
        struct slab_figures of = slab_figures(table->parts[slice].slab);
        of.live = table->map->owner[slice] == table->rank ? of.live : 0;
        add_figures(&sum, &of);
    }
    return sum;
}

bool owned_part_follow(struct owned *table, int slice)
{
    struct owned_part *part = &table->parts[slice];

    if (!part->dirty) {
        part->dirty = memory_take((table->per_slice + 63) / 64 * sizeof *part->dirty);
        table->followed += part->dirty != NULL;
    }
    return part->dirty != NULL;
}

/* --- a row --- */

static inline float *record_of(const struct owned *table, uint64_t row)
{
    return (float *)table->memory[owned_slice(table, row)] +
           row / OWNED_SLICES * table->record;
}

/* By its bits: a thread may take denormals for zeros. */
static bool is_plus_zero(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    return bits == 0;
}

static bool is_born(const float *record)
{
    float first;

    __atomic_load(record, &first, __ATOMIC_ACQUIRE);
    return !is_plus_zero(first);
}

/* Its other floats are there. */
static void be_born(float *record, float first)
{
    first = is_plus_zero(first) ? -0.0F : first;
    __atomic_store(record, &first, __ATOMIC_RELEASE);
}

static void note_change(const struct owned *table, uint64_t row)
{
    _Atomic uint64_t *dirty =
        table->followed ? table->parts[owned_slice(table, row)].dirty : NULL;
    size_t at = (size_t)(row / OWNED_SLICES);

    if (dirty)
        atomic_fetch_or_explicit(&dirty[at / 64], UINT64_C(1) << at % 64,
                                 memory_order_release);
}

static void push(struct owned *table, uint64_t row, const float *g, float rate)
{
    float *record = record_of(table, row);

    if (!is_born(record)) {
        float first[OWNED_WIDEST];
        owned_first(table, row, first);
        table->kernels->copy(record + 1, first + 1, table->shape.width - 1);
        be_born(record, *first);
    }
    owned_step(table, record, g, rate);
    if (!is_born(record))
        be_born(record, 0);
    note_change(table, row);
}

/* So many floats of its record. */
static void ask_for(const struct owned *table, const uint64_t *rows,
                    const uint32_t *places, size_t k, size_t n, size_t floats)
{
    if (table->shape.grows)
        grown_ask_for(table, rows, places, k, n);
    if (table->shape.grows || k >= n)
        return;
    const float *record = record_of(table, rows[places ? places[k] : k]);
    for (size_t i = 0; i < floats; i += 16)
        __builtin_prefetch(record + i, 1);
}

void owned_ask_for(const struct owned *table, const uint64_t *rows,
                   const uint32_t *places, size_t k, size_t n)
{
    ask_for(table, rows, places, k, n, table->record);
}

/* --- rows --- */

void owned_read(const struct owned *table, const uint64_t *rows, const uint32_t *places,
                size_t n, float *out)
{
    size_t width = table->shape.width;

    for (size_t k = 0; k < n && k < OWNED_AHEAD; k++)
        ask_for(table, rows, places, k, n, width);
    if (table->shape.grows) {
        grown_read(table, rows, places, n, out);
        return;
    }
    for (size_t k = 0; k < n; k++) {
        size_t at = places ? places[k] : k;
        const float *record = record_of(table, rows[at]);
        ask_for(table, rows, places, k + OWNED_AHEAD, n, width);
        if (is_born(record))
            table->kernels->copy(out + at * width, record, width);
        else
            owned_first(table, rows[at], out + at * width);
    }
}

bool owned_record(const struct owned *table, uint64_t row, float *record)
{
    if (table->shape.grows)
        return grown_record(table, row, record);
    const float *at = record_of(table, row);
    if (is_born(at)) {
        table->kernels->copy(record, at, table->record);
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
        size_t at = places ? places[k] : k;
        const float *g = gradients + at * width;
        owned_ask_for(table, rows, places, k + OWNED_AHEAD, n);
        if (!table->kernels->finite(g, width)) {
            *bad_row = rows[at];
            bad++;
            continue;
        }
        push(table, rows[at], g, rate);
    }
    return bad;
}

/* --- saved --- */

static uint64_t row_at(const struct owned *table, int slice, size_t row)
{
    return row * OWNED_SLICES +
           ((uint64_t)slice + OWNED_SLICES - table->turn) % OWNED_SLICES;
}

/* Takes the row's bit. Where a word has none, *row becomes its last row. */
static bool take_bit(_Atomic uint64_t *bits, size_t *row)
{
    uint64_t bit = UINT64_C(1) << *row % 64;
    uint64_t word = atomic_load_explicit(&bits[*row / 64], memory_order_relaxed);

    if (word == 0)
        *row |= 63;
    if (!(word & bit))
        return false;
    word = atomic_fetch_and_explicit(&bits[*row / 64], ~bit, memory_order_acquire);
    return word & bit;
}

size_t owned_part_next(const struct owned *table, int slice, bool dirty, size_t *at,
                       const struct owned_some *some)
{
    size_t n = 0;

    if (table->shape.grows)
        return grown_part_next(table, slice, dirty, at, some);
    for (; *at < table->per_slice && n < some->n; ++*at) {
        const float *record = (float *)table->memory[slice] + *at * table->record;
        if (!(dirty ? take_bit(table->parts[slice].dirty, at) : is_born(record)))
            continue;
        some->rows[n] = row_at(table, slice, *at);
        if (some->records)
            table->kernels->copy(some->records + n * table->record, record,
                                 table->record);
        n++;
    }
    return n;
}

/* *at: slice by slice, a row or slot of each. */
size_t owned_next(const struct owned *table, uint64_t *at, size_t room, uint64_t *rows,
                  float *records)
{
    uint64_t end = OWNED_SLICES * (uint64_t)table->per_slice;
    size_t n = 0;

    while (*at < end && n < room) {
        int slice = (int)(*at / table->per_slice);
        size_t row = (size_t)(*at % table->per_slice);
        const struct owned_some some = {
            .n = room - n, .rows = rows + n,
            .records = records ? records + n * table->record : NULL};
        if (table->map->owner[slice] == table->rank && table->memory[slice])
            n += owned_part_next(table, slice, false, &row, &some);
        else
            row = table->per_slice;
        *at = (uint64_t)slice * table->per_slice +
              (row < table->per_slice ? row : table->per_slice);
    }
    return n;
}

void owned_part_set(struct owned *table, uint64_t row, uint32_t slot,
                    const float *record)
{
    if (table->shape.grows) {
        grown_part_set(table, row, slot, record);
        return;
    }
    float *at = record_of(table, row);
    table->kernels->copy(at + 1, record + 1, table->record - 1);
    be_born(at, *record);
    note_change(table, row);
}

void owned_set(struct owned *table, const uint64_t *rows, size_t n, const float *records)
{
    for (size_t k = 0; k < n; k++) {
        if (!owned_here(table, rows[k]))
            continue;
        if (table->shape.grows)
            grown_set(table, rows[k], records + k * table->record);
        else
            owned_part_set(table, rows[k], 0, records + k * table->record);
    }
}
