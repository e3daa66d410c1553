/* SPDX-License-Identifier: MIT */
/* Tables: their memory, the line of each in the manifest, and what a worker does, which is to
 * count the rows it has changed.
 *
 * Where all trainers are on one machine a table is a shared block and nothing else: no base, no
 * map, and touch returns at once. So it is under the plan none, which exchanges nothing. Else the
 * machines' first rows are to be the same bits: a sum of them is part of the manifest, so that a
 * machine with another seed or checkpoint is refused by name, before anybody trains.
 *
 * A touch is a count of one byte, without a locked instruction: two workers that count the same
 * row at once may count one, which heat bears. What must not happen is that a change is neither
 * in the part that the leader fills nor marked for the next. The leader takes the count by an
 * exchange, then reads the row; a worker changes the row, then stores the count, release, always,
 * also where it is at its most. So its store is either before the exchange, which then sees the
 * change, or after it, and stays. A worker that overwrites another's count has acquired it: the
 * leader that sees the one sees the other's change, too. */
#include "sync/tables.h"

#include <string.h>

enum {
    PART_BYTES = 1 << 20,       /* of a round, unless a row is longer */
    SWEEP_SHARE = 4             /* one of so many is the sweep's */
};

void tables_init(struct tables *t, struct fabric *fabric, const struct plan *plan)
{
    *t = (struct tables){.fabric = fabric,
                         .kernels = kernels_best(),
                         .across = fabric->many_hosts && plan->when != PLAN_NEVER,
                         .heal = plan->heal,
                         .hot = plan->hot,
                         .part_room = PART_BYTES};
}

void tables_fini(struct tables *t)
{
    for (size_t k = 0; k < t->n; k++)
        memory_give(t->list[k].name);
    memory_give(t->list);
    memory_give(t->part);
    memory_give(t->given);
    memory_give(t->row);
    *t = (struct tables){.n = 0};
}

/* ------------------------------------------------------------------ memory */

static descant_status check(const struct tables *t, const char *name, size_t rows, size_t width)
{
    const struct log *log = &t->fabric->log;
    if (name == NULL || *name == '\0' || strpbrk(name, " \t\r\n") != NULL)
        return log_fail(log, DESCANT_INVALID, "a table needs a name without white space");
    if (rows == 0 || width == 0 || rows > SIZE_MAX / 64 / width)
        return log_fail(log, DESCANT_INVALID, "table '%s': %zu rows of %zu floats cannot be", name,
                        rows, width);
    for (size_t k = 0; k < t->n; k++)
        if (strcmp(t->list[k].name, name) == 0)
            return log_fail(log, DESCANT_DUPLICATE, "table '%s' is there already", name);
    return DESCANT_OK;
}

static descant_status grow(struct tables *t)
{
    if (t->n < t->room)
        return DESCANT_OK;
    size_t room = t->room ? 2 * t->room : 8;
    struct table *more = memory_take_array(room, sizeof *more);
    if (more == NULL)
        return log_fail(&t->fabric->log, DESCANT_MEMORY, "no memory for a table");
    if (t->n > 0)
        memcpy(more, t->list, t->n * sizeof *more);
    memory_give(t->list);
    t->list = more;
    t->room = room;
    return DESCANT_OK;
}

static descant_status share(struct tables *t, const char *kind, const char *name, size_t bytes,
                            void **block)
{
    char whole[256];
    snprintf(whole, sizeof whole, "table%s:%s", kind, name);
    return t->fabric->type->share(t->fabric, whole, bytes, block);
}

static descant_status take(struct tables *t, struct table *x)
{
    size_t bytes = x->rows * x->width * sizeof(float);
    void *w, *base = NULL, *heat = NULL;
    descant_status status = share(t, "", x->name, bytes, &w);
    if (status == DESCANT_OK && t->across)
        status = share(t, ".base", x->name, bytes, &base);
    if (status == DESCANT_OK && t->across)
        status = share(t, ".heat", x->name, x->rows, &heat);
    if (status != DESCANT_OK)
        return status;
    x->w = w;
    x->base = base;
    x->heat = heat;
    return DESCANT_OK;
}

descant_status tables_add(struct tables *t, const char *name, size_t rows, size_t width,
                          float **w)
{
    descant_status status = check(t, name, rows, width);
    if (status == DESCANT_OK)
        status = grow(t);
    if (status != DESCANT_OK)
        return status;
    struct table *x = &t->list[t->n];
    *x = (struct table){.name = memory_take(strlen(name) + 1), .rows = rows, .width = width,
                        .first = t->n_rows};
    if (x->name == NULL)
        return log_fail(&t->fabric->log, DESCANT_MEMORY, "no memory for table '%s'", name);
    strcpy(x->name, name);
    status = take(t, x);
    if (status != DESCANT_OK) {
        memory_give(x->name);
        return status;
    }
    t->n++;
    t->n_rows += rows;
    *w = x->w;
    return DESCANT_OK;
}

/* ------------------------------------------------------------------ start */

static uint64_t sum_of(const struct table *x)
{
    uint64_t sum = x->rows;
    for (size_t i = 0; i < x->rows * x->width; i++) {
        uint32_t bits;
        memcpy(&bits, x->w + i, sizeof bits);
        sum = (sum ^ bits) * UINT64_C(0x9e3779b97f4a7c15);
        sum ^= sum >> 32;
    }
    return sum;
}

char *tables_manifest(const struct tables *t, char *manifest)
{
    size_t used = strlen(manifest), room = used + 1;
    for (size_t k = 0; k < t->n; k++)
        room += strlen(t->list[k].name) + 128;
    char *text = memory_take(room);
    if (text != NULL)
        memcpy(text, manifest, used);
    memory_give(manifest);
    for (size_t k = 0; text != NULL && k < t->n; k++) {
        const struct table *x = &t->list[k];
        used += (size_t)snprintf(text + used, room - used, "table %s %zu x %zu", x->name, x->rows,
                                 x->width);
        if (t->across)
            used += (size_t)snprintf(text + used, room - used, ", first rows %016llx",
                                     (unsigned long long)sum_of(x));
        used += (size_t)snprintf(text + used, room - used, "\n");
    }
    return text;
}

static size_t widest(const struct tables *t)
{
    size_t most = 0;
    for (size_t k = 0; k < t->n; k++)
        most = t->list[k].width > most ? t->list[k].width : most;
    return most;
}

static size_t longest(const struct tables *t)
{
    return sizeof(struct rows_head) + sizeof(uint64_t) + widest(t) * sizeof(float);
}

static size_t at_least(size_t bytes, size_t least)
{
    return bytes > least ? bytes : least;
}

size_t tables_part_bytes(const struct tables *t)
{
    return t->across && t->n > 0 ? at_least(t->part_room, longest(t)) : 0;
}

descant_status tables_start(struct tables *t)
{
    void *board;
    t->part_room = tables_part_bytes(t);
    if (t->part_room == 0)
        return DESCANT_OK;
    t->sweep_room = at_least(t->part_room / SWEEP_SHARE, longest(t));
    t->part = memory_take(t->part_room);
    t->given = memory_take(t->n_rows / 8 + 1);
    t->row = memory_take_array(widest(t), sizeof *t->row);
    if (t->part == NULL || t->given == NULL || t->row == NULL)
        return log_fail(&t->fabric->log, DESCANT_MEMORY, "no memory for rounds of rows");
    descant_status status = share(t, "s", "board", sizeof *t->board, &board);
    if (status != DESCANT_OK)
        return status;
    t->board = board;
    t->at_work = true;
    atomic_fetch_add_explicit(&t->board->at_work, 1, memory_order_relaxed);
    t->leads = atomic_load_explicit(&t->fabric->host_leader, memory_order_relaxed);
    for (size_t k = 0; t->leads && k < t->n; k++)
        t->kernels->copy(t->list[k].base, t->list[k].w, t->list[k].rows * t->list[k].width);
    return DESCANT_OK;
}

descant_status tables_met(const struct tables *t)
{
    if (t->board == NULL || !t->leads || !t->fabric->joined)
        return DESCANT_OK;
    return log_fail(&t->fabric->log, DESCANT_UNSUPPORTED,
                    "the other machines train already, and their tables have moved on from the "
                    "first rows: a machine with tables cannot join late");
}

/* ------------------------------------------------------------------ workers */

static void count(_Atomic uint8_t *heat)
{
    uint8_t before = atomic_load_explicit(heat, memory_order_acquire);
    uint8_t after = (uint8_t)(before + (before < UINT8_MAX));
    atomic_store_explicit(heat, after, memory_order_release);
}

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
        if (rows[k] >= x->rows)
            return false;
        count(&x->heat[rows[k]]);
    }
    return true;
}

void tables_stop(struct tables *t)
{
    if (t->at_work)
        atomic_fetch_sub_explicit(&t->board->at_work, 1, memory_order_release);
    t->at_work = false;
}

bool tables_stopping(const struct tables *t)
{
    return t->board != NULL &&
           atomic_load_explicit(&t->board->at_work, memory_order_acquire) == 0;
}

bool tables_ended(const struct tables *t)
{
    return t->board == NULL ||
           atomic_load_explicit(&t->board->ended, memory_order_acquire) != 0;
}
