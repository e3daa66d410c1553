/* SPDX-License-Identifier: MIT */
/* The records and buffers of the floats that a round moves. Among many ranks a mean has
 * few owners, and others in each round: so a rank has lanes to those owners alone. The
 * window, which an owner needs, exists while its rank is an owner. A rank that owns a
 * slice in every round keeps its window.
 *
 * The lanes are one block of memory, and the window is another. A block is taken when a
 * round opens and the last round's is too small. Nothing of a round is in flight then. */
#include "ranks/ranks.h"

#include <string.h>

enum { LANES, WINDOW };

enum { CACHE_LINE = 64, MANY_RANKS = 64 };

descant_status ranks_lanes_init(struct ranks *m)
{
    size_t size = (size_t)m->place.size;

    /* and the last result */
    m->inputs = memory_take_array(size + 1, sizeof *m->inputs);
    m->shares = memory_take_array(size + 1, sizeof *m->shares);
    m->piece = memory_take_array(ranks_piece_room(m), sizeof *m->piece);
    return m->inputs && m->shares && m->piece ? DESCANT_OK : DESCANT_MEMORY;
}

void ranks_lanes_fini(struct ranks *m)
{
    memory_give(m->lanes.memory[LANES]);
    memory_give(m->lanes.memory[WINDOW]);
    memory_give(m->inputs);
    memory_give(m->shares);
    memory_give(m->piece);
}

/* The next n things of a block; base NULL: only their room is counted. */
static void *carve(char *base, size_t *used, size_t n, size_t size)
{
    size_t at = *used;

    *used += (n * size + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
    return base ? base + at : NULL;
}

static char *room_for(struct ranks *m, int which, size_t bytes)
{
    struct ranks_lanes *lanes = &m->lanes;

    if (lanes->bytes[which] < bytes) {
        memory_give(lanes->memory[which]);
        lanes->memory[which] = memory_take(bytes);
        lanes->bytes[which] = lanes->memory[which] ? bytes : 0;
    }
    if (!lanes->memory[which])
        m->blame(m, DESCANT_MEMORY, "no memory for the pieces of a round");
    return lanes->memory[which];
}

bool ranks_lanes_open(struct ranks *m, int n, size_t give_bytes, size_t learn_bytes)
{
    struct ranks_lanes *lanes = &m->lanes;
    unsigned depth = m->round.depth;
    size_t used = 0, room = (size_t)n * depth;

    carve(NULL, &used, (size_t)n, sizeof *lanes->list);
    carve(NULL, &used, 2 * room, sizeof(struct ranks_op));
    carve(NULL, &used, room, sizeof(bool));
    size_t records = used;
    carve(NULL, &used, room, give_bytes + learn_bytes);
    char *base = room_for(m, LANES, used);
    if (!base)
        return false;
    memset(base, 0, records);
    used = 0;
    lanes->list = carve(base, &used, (size_t)n, sizeof *lanes->list);
    struct ranks_op *ops = carve(base, &used, 2 * room, sizeof *ops);
    bool *here = carve(base, &used, room, sizeof *here);
    lanes->n = n;
    lanes->first = lanes->last = NULL;
    base += records;
    for (int k = 0; k < n; k++, ops += 2 * depth, here += depth) {
        struct ranks_lane *lane = &lanes->list[k];
        lane->give = ops;
        lane->learn = ops + depth;
        lane->here = here;
        for (unsigned slot = 0; slot < depth; slot++) {
            lane->give[slot] = (struct ranks_op){.slot = slot, .of = lane};
            lane->learn[slot] = (struct ranks_op){.slot = slot, .of = lane};
            lane->give[slot].floats = (float *)(void *)base;
            lane->learn[slot].floats = (float *)(void *)(base + give_bytes);
            base += give_bytes + learn_bytes;
        }
    }
    return true;
}

static void lay_out(struct ranks_window *w, char *base, size_t *used, size_t sums)
{
    size_t peers = (size_t)w->n_peers;

    w->peers = carve(base, used, peers, sizeof *w->peers);
    w->givers = carve(base, used, peers, sizeof *w->givers);
    w->takes = carve(base, used, w->room, sizeof *w->takes);
    w->here = carve(base, used, w->room, sizeof *w->here);
    w->tells = carve(base, used, w->room, sizeof *w->tells);
    w->idle = carve(base, used, w->room, sizeof *w->idle);
    w->sum = carve(base, used, sums, sizeof *w->sum);
}

bool ranks_window_open(struct ranks *m, int n_peers, size_t room, size_t part_bytes)
{
    struct ranks_window *w = &m->lanes.window;
    bool encoded = m->round.wire != WIRE_F32;
    size_t sums = (size_t)n_peers > room ? m->round.piece : 0;
    size_t used = 0, parts = room + (encoded ? m->round.depth : 0);

    *w = (struct ranks_window){.n_peers = n_peers, .room = room,
                               .piece_bytes = part_bytes};
    lay_out(w, NULL, &used, sums);
    size_t records = used;
    carve(NULL, &used, parts, part_bytes);
    char *base = room_for(m, WINDOW, used);
    if (!base)
        return false;
    memset(base, 0, records);
    used = 0;
    lay_out(w, base, &used, sums);
    base += used;
    for (size_t i = 0; i < room; i++, base += part_bytes) {
        w->takes[i] = (struct ranks_op){.slot = (unsigned)i};
        w->takes[i].floats = (float *)(void *)base;
        w->idle[w->n_idle++] = &w->tells[i];
    }
    w->settled = (float *)(void *)base;
    return true;
}

void ranks_window_close(struct ranks *m)
{
    if (m->place.size <= MANY_RANKS || m->round.owners == m->round.k)
        return;
    memory_give(m->lanes.memory[WINDOW]);
    m->lanes.memory[WINDOW] = NULL;
    m->lanes.bytes[WINDOW] = 0;
}
