/* SPDX-License-Identifier: MIT */
/* Tables: their memory, the line of each in the manifest, and a worker's part, which is
 * to count the rows that it has changed.
 *
 * Where all trainers are on one machine a table is only a shared block: it has no base
 * and no map, and touch returns at once. The same holds under the plan none, which
 * exchanges nothing. Else the machines' first rows are to be the same bits: a sum of them
 * is part of the manifest, so that a machine with another seed or checkpoint is refused
 * by name, before any training.
 *
 * A touch is a count of one byte, without a locked instruction: two workers that count
 * the same row at once may count one, which does not harm heat. But each change must be
 * in the part that the leader fills, or be marked for the next one. The leader takes the
 * count by an exchange, then reads the row; a worker changes the row, then always stores
 * the count (release), also a count that is at its most. So the worker's store is either
 * before the exchange, which then sees the change, or after it, and stays. A worker that
 * overwrites another's count has acquired it: the leader that sees the one sees the
 * other's change, too. */
#include "sync/tables.h"

#include <string.h>

enum {
    PART_BYTES = 1 << 17,       /* a part, unless a row is longer: some thousand rows */
    PARTS_BYTES = 1 << 25,      /* all parts of a round: each machine has room for them */
    PART_LEAST = 1 << 15,       /* a part among 1,024 machines or more */
    TOUCH_AHEAD = 16,           /* rows whose heat is fetched before it is counted */
    SWEEP_SHARE = 4,            /* the sweep's share of a part, one in so many */
    WINDOW_LEAST = 1 << 16      /* rows */
};

void tables_init(struct tables *t, struct fabric *fabric, const struct plan *plan)
{
    /* the same on all machines */
    size_t part = fabric->hosts > 0 ? (size_t)PARTS_BYTES / (size_t)fabric->hosts
                                    : PART_BYTES;
    part = part < PART_BYTES ? part : PART_BYTES;
    part = part > PART_LEAST ? part : PART_LEAST;
    *t = (struct tables){.fabric = fabric,
                         .kernels = kernels_best(),
                         .across = fabric->many_hosts && plan->when != PLAN_NEVER,
                         .heal = plan->heal,
                         .hot = plan->hot,
                         .part_room = part / sizeof(uint64_t) * sizeof(uint64_t)};
}

void tables_fini(struct tables *t)
{
    for (size_t k = 0; k < t->n; k++)
        memory_give(t->list[k].name);
    memory_give(t->list);
    memory_give(t->part);
    memory_give(t->given);
    memory_give(t->row);
    memory_give(t->base.extents);
    *t = (struct tables){.n = 0};
}

/* ------------------------------------------------------------------ memory */

static descant_status check(const struct tables *t, const char *name, size_t rows,
                            size_t width)
{
    const struct log *log = &t->fabric->log;
    if (name == NULL || *name == '\0' || strpbrk(name, " \t\r\n") != NULL)
        return log_fail(log, DESCANT_INVALID, "a table needs a name without white space");
    if (rows == 0 || width == 0 || rows > SIZE_MAX / 64 / width)
        return log_fail(log, DESCANT_INVALID,
                        "table '%s': %zu rows of %zu floats cannot be", name, rows,
                        width);
    for (size_t k = 0; k < t->n; k++)
        if (strcmp(t->list[k].name, name) == 0)
            return log_fail(log, DESCANT_DUPLICATE, "table '%s' is there already", name);
    return DESCANT_OK;
}

static descant_status share(struct tables *t, const char *kind, const char *name,
                            size_t bytes, void **block)
{
    size_t room = sizeof "table:" + strlen(kind) + strlen(name);
    char *whole = memory_take(room);
    if (whole == NULL)
        return log_fail(&t->fabric->log, DESCANT_MEMORY, "no memory for table '%s'",
                        name);
    snprintf(whole, room, "table%s:%s", kind, name);
    descant_status status = t->fabric->type->share(t->fabric, whole, bytes, block);
    memory_give(whole);
    return status;
}

/* (rows, width) floats, and as many for their base. */
static descant_status take(struct tables *t, const struct table *x, const char *kind,
                           size_t width, float **w, float **base)
{
    size_t bytes = x->rows * width * sizeof(float);
    char base_kind[16];
    void *block;
    descant_status status = share(t, kind, x->name, bytes, &block);
    if (status != DESCANT_OK)
        return status;
    *w = block;
    if (!t->across)
        return DESCANT_OK;
    snprintf(base_kind, sizeof base_kind, "%s.base", kind);
    status = share(t, base_kind, x->name, bytes, &block);
    *base = status == DESCANT_OK ? block : NULL;
    return status;
}

descant_status tables_add(struct tables *t, const char *name, size_t rows, size_t width,
                          float **w)
{
    void *heat;
    descant_status status = check(t, name, rows, width);
    if (status == DESCANT_OK &&
        !memory_grow(&t->list, &t->room, t->n, t->n + 1, sizeof *t->list))
        status = log_fail(&t->fabric->log, DESCANT_MEMORY, "no memory for a table");
    if (status != DESCANT_OK)
        return status;
    struct table *x = &t->list[t->n];
    *x = (struct table){.name = memory_take(strlen(name) + 1), .rows = rows,
                        .width = width, .first = t->n_rows};
    if (x->name == NULL)
        return log_fail(&t->fabric->log, DESCANT_MEMORY, "no memory for table '%s'",
                        name);
    strcpy(x->name, name);
    status = take(t, x, "", x->width, &x->w, &x->base);
    if (status == DESCANT_OK && t->across)
        status = share(t, ".heat", x->name, x->rows, &heat);
    if (status != DESCANT_OK) {
        memory_give(x->name);
        return status;
    }
    x->heat = t->across ? heat : NULL;
    t->n++;
    t->n_rows += rows;
    *w = x->w;
    return DESCANT_OK;
}

descant_status tables_add_state(struct tables *t, const float *w, size_t width,
                                float **state)
{
    const struct log *log = &t->fabric->log;
    struct table *x = t->list, *end = t->list + t->n;
    while (x < end && x->w != w)
        x++;
    if (x == end)
        return log_fail(log, DESCANT_INVALID,
                        "there is no such table for state to go with");
    if (x->state_width > 0)
        return log_fail(log, DESCANT_DUPLICATE, "table '%s' has its state already",
                        x->name);
    if (width == 0 || x->rows > SIZE_MAX / 64 / width)
        return log_fail(log, DESCANT_INVALID,
                        "state of table '%s': %zu rows of %zu floats cannot be", x->name,
                        x->rows, width);
    descant_status status = take(t, x, ".state", width, &x->state, &x->state_base);
    if (status != DESCANT_OK)
        return status;
    x->state_width = width;
    *state = x->state;
    return DESCANT_OK;
}

/* ------------------------------------------------------------------ start */

static uint64_t sum_of(const float *w, size_t n, uint64_t sum)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, w + i, sizeof bits);
        sum = (sum ^ bits) * UINT64_C(0x9e3779b97f4a7c15);
        sum ^= sum >> 32;
    }
    return sum;
}

char *tables_manifest(const struct tables *t, char *manifest)
{
    size_t used = strlen(manifest), room = used + 1;
    for (size_t k = 0; k < t->n; k++)
        room += strlen(t->list[k].name) + 160;
    char *text = memory_take(room);
    if (text != NULL)
        memcpy(text, manifest, used);
    memory_give(manifest);
    for (size_t k = 0; text != NULL && k < t->n; k++) {
        const struct table *x = &t->list[k];
        used += (size_t)snprintf(text + used, room - used, "table %s %zu x %zu", x->name,
                                 x->rows, x->width);
        if (x->state_width > 0)
            used +=
                (size_t)snprintf(text + used, room - used, " and %zu", x->state_width);
        if (t->across) {
            uint64_t sum = sum_of(x->w, x->rows * x->width, x->rows);
            sum = sum_of(x->state, x->rows * x->state_width, sum);
            used += (size_t)snprintf(text + used, room - used, ", first rows %016llx",
                                     (unsigned long long)sum);
        }
        used += (size_t)snprintf(text + used, room - used, "\n");
    }
    return text;
}

static size_t longest(const struct tables *t)
{
    size_t most = 0;
    for (size_t k = 0; k < t->n; k++) {
        size_t floats = t->list[k].width + t->list[k].state_width;
        most = floats > most ? floats : most;
    }
    return sizeof(struct rows_head) + sizeof(uint64_t) + most * sizeof(float);
}

static size_t at_least(size_t bytes, size_t least)
{
    return bytes > least ? bytes : least;
}

size_t tables_part_bytes(const struct tables *t)
{
    return t->across && t->n > 0 ? at_least(t->part_room, longest(t)) : 0;
}

static void append(struct vector *v, float *base, size_t n)
{
    if (n == 0)
        return;
    v->extents[v->n_extents++] = (struct extent){v->n, n, base};
    v->n += n;
}

const struct vector *tables_base(struct tables *t)
{
    if (tables_part_bytes(t) == 0 || t->fabric->fixed)
        return NULL;
    t->base.extents = memory_take_array(2 * t->n, sizeof *t->base.extents);
    for (size_t k = 0; t->base.extents != NULL && k < t->n; k++) {
        const struct table *x = &t->list[k];
        append(&t->base, x->base, x->rows * x->width);
        append(&t->base, x->state_base, x->rows * x->state_width);
    }
    return t->base.extents != NULL ? &t->base : NULL;
}

descant_status tables_start(struct tables *t)
{
    void *board;
    size_t widest = 0, windows = t->n_rows / WINDOW_LEAST;
    t->part_room = tables_part_bytes(t);
    if (t->part_room == 0)
        return DESCANT_OK;
    for (size_t k = 0; k < t->n; k++)
        widest = t->list[k].width > widest ? t->list[k].width : widest;
    t->sweep_room = at_least(t->part_room / SWEEP_SHARE, longest(t));
    t->part = memory_take(t->part_room);
    t->given = memory_take(t->n_rows / 8 + 1);
    t->row = memory_take_array(widest, sizeof *t->row);
    if (t->part == NULL || t->given == NULL || t->row == NULL)
        return log_fail(&t->fabric->log, DESCANT_MEMORY, "no memory for rounds of rows");
    descant_status status = share(t, "s", "board", sizeof *t->board, &board);
    if (status != DESCANT_OK)
        return status;
    t->board = board;
    t->at_work = true;
    atomic_fetch_add_explicit(&t->board->at_work, 1, memory_order_relaxed);
    t->leads = atomic_load_explicit(&t->fabric->host_leader, memory_order_relaxed);
    for (size_t k = 0; t->leads && k < t->n; k++) {
        struct table *x = &t->list[k];
        t->kernels->copy(x->base, x->w, x->rows * x->width);
        t->kernels->copy(x->state_base, x->state, x->rows * x->state_width);
    }
    struct census *c = &t->census;
    c->n = windows < 1 ? 1 : windows < TABLES_WINDOWS ? windows : TABLES_WINDOWS;
    c->rows = (t->n_rows + c->n - 1) / c->n;
    return DESCANT_OK;
}

descant_status tables_met(struct tables *t)
{
    enum round_progress progress = ROUND_WORKED;
    if (t->board == NULL || !t->leads || !t->fabric->joined)
        return DESCANT_OK;
    while (t->fabric->type->rows->joins && progress == ROUND_WORKED)
        progress = tables_advance(t);
    if (t->fabric->type->rows->joins)
        return t->fabric->status;
    return log_fail(&t->fabric->log, DESCANT_UNSUPPORTED,
                    "the other machines train already, and their tables have moved on "
                    "from the first rows: a machine with tables cannot join late");
}

/* ------------------------------------------------------------------ workers */

bool tables_touch(struct tables *t, const float *w, const uint64_t *rows, size_t n)
{
    if (!t->across)
        return true;
    const struct table *x = t->list, *end = t->list + t->n;
    while (x < end && x->w != w)
        x++;
    if (x == end)
        return false;
    for (size_t k = 0; k < n; k++) {
        if (k + TOUCH_AHEAD < n)
            __builtin_prefetch(&x->heat[rows[k + TOUCH_AHEAD]], 1);
        if (rows[k] >= x->rows)
            return false;
        _Atomic uint8_t *heat = &x->heat[rows[k]];
        uint8_t before = atomic_load_explicit(heat, memory_order_acquire);
        uint8_t after = (uint8_t)(before + (before < UINT8_MAX));
        atomic_store_explicit(heat, after, memory_order_release);
    }
    return true;
}

void tables_stop(struct tables *t)
{
    if (t->at_work)
        atomic_fetch_sub_explicit(&t->board->at_work, 1, memory_order_release);
    t->at_work = false;
}

bool tables_ended(const struct tables *t)
{
    return t->board == NULL ||
           atomic_load_explicit(&t->board->ended, memory_order_acquire) != 0;
}
