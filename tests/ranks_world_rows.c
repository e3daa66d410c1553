/* SPDX-License-Identifier: MIT */
/* Rows of the trainers of ranks_world.h. The p-th process of trainer r gives parts that
 * say: 1 more in float p of row r. So row r of the base counts what is merged of each
 * process of trainer r, and
 *
 *   1 the rows that a round left are the same bits in all that hold it
 *   2 each part is merged once, or counted as lost: what is in is what was, and what was
 *     given, less what was lost
 *   3 no member takes rows from another one: it had them before it was a member */
#include "ranks_world.h"

#include <assert.h>
#include <string.h>

enum { ROW_FLOATS = 40, PART_MOST = 3000 };

struct row_part {
    uint16_t rank, life;
    float more;
};

static float *row_of(const struct trainer_rows *t, int rank)
{
    return t->vector.extents[rank % 2].p + rank / 2 * ROW_FLOATS;
}

static float *count_of(const struct trainer_rows *t, int rank, int life)
{
    return row_of(t, rank) + life % ROW_FLOATS;
}

/* In two pieces of memory, with a gap between them. */
void world_rows_start(struct ranks_world *w, int rank, struct fabric_start *start)
{
    struct trainer_rows *t = &w->trainers[rank].rows;
    size_t n = (WORLD_MOST / 2) * ROW_FLOATS;

    memset(t, 0, sizeof *t);
    if (!w->rows)
        return;
    for (int k = 0; k < 2; k++) {
        t->extents[k] =
            (struct extent){(size_t)k * (n + 16), n, memory_take_array(n, sizeof(float))};
        assert(t->extents[k].p);
    }
    t->vector = (struct vector){2 * n + 16, 2, t->extents};
    t->part = memory_take(PART_MOST);
    assert(t->part);
    start->rows_bytes = PART_MOST;
    start->rows_base = &t->vector;
}

void world_rows_free(struct world_trainer *trainer)
{
    struct trainer_rows *t = &trainer->rows;

    memory_give(t->extents[0].p);
    memory_give(t->extents[1].p);
    memory_give(t->part);
    memset(t, 0, sizeof *t);
}

/* 1 */
static void see(struct ranks_world *w, int rank)
{
    const struct trainer_rows *t = &w->trainers[rank].rows;
    uint64_t series = ledger_series_of(ranks_of(w->trainers[rank].f)->base.held), hash = 0;

    for (int k = 0; k < w->options.ranks; k++)
        for (int i = 0; i < ROW_FLOATS; i++)
            hash = (hash ^ (uint64_t)row_of(t, k)[i]) * UINT64_C(0x9e3779b97f4a7c15);
    for (size_t i = w->n_rows_seen; i-- > 0;)
        if (w->rows_seen[i].series == series) {
            if (w->rows_seen[i].hash != hash)
                world_fail(w, rank, "rows: those of %llu.%llu are not what others have",
                      (unsigned long long)(series >> 40),
                      (unsigned long long)(series & 0xffffffffff));
            return;
        }
    if (w->n_rows_seen == w->rows_seen_room) {
        w->rows_seen_room = w->rows_seen_room ? 2 * w->rows_seen_room : 64;
        struct version_seen *more = memory_take_array(w->rows_seen_room, sizeof *more);
        assert(more);
        if (w->n_rows_seen)
            memcpy(more, w->rows_seen, w->n_rows_seen * sizeof *more);
        memory_give(w->rows_seen);
        w->rows_seen = more;
    }
    w->rows_seen[w->n_rows_seen++] = (struct version_seen){series, hash, 0};
}

/* 2: `lost` of the parts that it has given are not in, the one that is open among
 * them. */
static void check(struct ranks_world *w, int rank, uint64_t lost)
{
    struct trainer_rows *t = &w->trainers[rank].rows;
    uint64_t in = (uint64_t)*count_of(t, rank, w->trainers[rank].lives);
    uint64_t is = t->confirmed + t->open;

    if (in + lost != is)
        world_fail(w, rank, "rows: %llu of its parts are in, of %llu, and %llu are lost",
              (unsigned long long)in, (unsigned long long)is, (unsigned long long)lost);
    t->confirmed = in;
    t->lost += lost;
    t->open = false;
    t->next_ns =
        simulated_now(w->link) +
        (uint64_t)(rng_uniform(&w->rng) * (double)w->step_ns * (1 + w->options.ranks / 2));
    see(w, rank);
    if (w->verbose) {
        struct ledger_version held = ranks_of(w->trainers[rank].f)->base.held;
        printf("  %.6f rank %d: rows %llu.%llu, %llu lost\n", world_now(w), rank,
               (unsigned long long)held.epoch, (unsigned long long)held.number,
               (unsigned long long)t->lost);
    }
}

static void take(struct ranks_world *w, int rank, const struct rows_part *part)
{
    struct trainer_rows *t = &w->trainers[rank].rows;
    struct row_part row;

    if (part->state) {
        t->states++;
        check(w, rank, part->lost);
        return;
    }
    memcpy(&row, part->bytes, sizeof row);
    if (part->n < sizeof row || (int)row.rank != part->rank ||
        part->own != (part->rank == rank) || part->rank <= t->last)
        world_fail(w, rank, "rows: a part of rank %d is of %u", part->rank, row.rank);
    t->last = part->rank;
    *count_of(t, part->rank, row.life) += row.more;
}

static void give(struct ranks_world *w, int rank)
{
    struct trainer_rows *t = &w->trainers[rank].rows;
    const struct row_part row = {(uint16_t)rank, (uint16_t)w->trainers[rank].lives, 1};
    size_t n = sizeof row + (size_t)(rng_uniform(&w->rng) * (PART_MOST - sizeof row));

    memcpy(t->part, &row, sizeof row);
    t->open = true;
    t->last = -1;
    if (ranks_rows_begin(w->trainers[rank].f, t->part, n) != DESCANT_OK)
        world_fail(w, rank, "rows: begin failed");
}

/* 3 */
static void need_rows(struct ranks_world *w, int rank)
{
    const struct ranks *m = ranks_of(w->trainers[rank].f);

    if (ledger_view(m->ledger).member && !m->base.held.epoch)
        world_fail(w, rank, "rows: it is a member, and has none");
}

bool world_rows_turn(struct ranks_world *w, int rank)
{
    struct world_trainer *trainer = &w->trainers[rank];
    struct trainer_rows *t = &trainer->rows;
    struct rows_part part;

    if (!w->rows || trainer->f->status)
        return false;
    need_rows(w, rank);
    if (!trainer->states)
        return false;
    switch (ranks_rows_poll(ranks_of(trainer->f), &part)) {
    case FABRIC_PART:
        take(w, rank, &part);
        return true;
    case FABRIC_DONE:
        t->rounds++;
        check(w, rank, 0);
        return true;
    case FABRIC_CALLED:
        give(w, rank);
        return true;
    default:
        if (t->open || simulated_now(w->link) < t->next_ns)
            return false;
        give(w, rank);
        return true;
    }
}

uint64_t world_rows_due(const struct ranks_world *w, int rank)
{
    const struct world_trainer *t = &w->trainers[rank];
    return w->rows && t->states && !t->rows.open ? t->rows.next_ns : 0;
}

uint64_t world_rows_rounds(const struct ranks_world *w)
{
    return w->n_rows_seen;
}
