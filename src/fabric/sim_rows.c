/* SPDX-License-Identifier: MIT */
/* Rounds of rows among simulated machines: `per_host` trainers each, by rank.
 *
 *   given     a leader has begun; the round waits for every other leader that has its state
 *   sent      all have; the link takes as long as the machine that sends or receives most
 *             needs: max(k-1 times its own part, all others' parts) / rate + rtt
 *   taking    the parts are copied into the world, and each polls them, by rank; nobody can begin
 *             the round after the next before all have
 *
 * Who dies or leaves before the end of `sent` is not in the round; who does later is, for all. The
 * link is another than the dense exchanges': they do not slow each other. */
#include "fabric/sim_world.h"

#include <string.h>

static bool leads(const struct trainer *t)
{
    return atomic_load_explicit(&t->f.host_leader, memory_order_relaxed);
}

/* One of [from, to), who are on one machine: whoever leads already, else the first. */
static void lead_one(const struct sim_world *w, int from, int to)
{
    struct trainer *first = NULL;
    for (int i = from; i < to; i++) {
        struct trainer *t = w->trainers[i];
        if (leads(t))
            return;
        if (!first && t->started)
            first = t;
    }
    if (first)
        atomic_store_explicit(&first->f.host_leader, true, memory_order_relaxed);
}

void world_lead_rows(struct sim_world *w)
{
    int from = 0;
    for (int i = 1; w->options.per_host && i <= w->n_trainers; i++)
        if (i == w->n_trainers ||
            world_machine(w, w->trainers[from]->f.rank) !=
                world_machine(w, w->trainers[i]->f.rank)) {
            lead_one(w, from, i);
            from = i;
        }
}

bool world_reserve_rows(struct sim_world *w, size_t bytes)
{
    char *more = memory_take(w->rows_room + bytes);
    if (!more)
        return false;
    if (w->rows)
        memcpy(more, w->rows, w->rows_room);
    for (int k = 0; k < w->n_parts; k++)
        w->parts[k].bytes = more + ((const char *)w->parts[k].bytes - w->rows);
    memory_give(w->rows);
    w->rows = more;
    w->rows_room += bytes;
    return true;
}

static bool takes_part(const struct trainer *t)
{
    return t->rows_bytes && leads(t) && (t->life == MEMBER || t->life == FINAL);
}

/* What the busiest machine's link carries. */
static size_t busiest(const struct sim_world *w)
{
    size_t all = 0, most = 0, k = 0;
    for (int i = 0; i < w->n_trainers; i++)
        if (w->trainers[i]->rows_phase == ROWS_GIVEN) {
            all += w->trainers[i]->rows_n;
            k++;
        }
    for (int i = 0; i < w->n_trainers; i++)
        if (w->trainers[i]->rows_phase == ROWS_GIVEN) {
            size_t own = w->trainers[i]->rows_n, out = own * (k - 1), in = all - own;
            most = out > most ? out : most;
            most = in > most ? in : most;
        }
    return most;
}

static void deliver(struct sim_world *w)
{
    size_t most = busiest(w);
    char *to = w->rows;
    w->n_parts = 0;
    for (int i = 0; i < w->n_trainers; i++) {
        struct trainer *t = w->trainers[i];
        if (t->rows_phase != ROWS_GIVEN)
            continue;
        if (t->rows_n)
            memcpy(to, t->rows, t->rows_n);
        w->parts[w->n_parts++] =
            (struct rows_part){.bytes = to, .n = t->rows_n, .rank = t->f.rank};
        to += t->rows_n;
        t->rows_phase = ROWS_TAKING;
        t->rows_next = 0;
        atomic_fetch_add_explicit(&t->f.rows_bytes, most, memory_order_relaxed);
    }
    w->rows_sent = false;
}

void world_turn_rows(struct sim_world *w)
{
    int given = 0;
    for (int i = 0; i < w->n_trainers; i++) {
        const struct trainer *t = w->trainers[i];
        if (takes_part(t) && t->rows_phase != ROWS_GIVEN)
            return;
        given += t->rows_phase == ROWS_GIVEN;
    }
    if (!given)
        w->rows_sent = false;
    if (!given)
        return;
    if (!w->rows_sent)
        w->rows_ready_ns = w->now + world_delay_ns(w, emulated_busy_ns(&w->options.link,
                                                                   busiest(w) / sizeof(float)) +
                                                          world_rtt_ns(w) / 2);
    w->rows_sent = true;
    if (w->now >= w->rows_ready_ns)
        deliver(w);
}

static descant_status begin(struct fabric *f, const void *bytes, size_t n)
{
    struct trainer *t = trainer_of(f);
    if (f->status)
        return f->status;
    if (!takes_part(t) || t->rows_phase != ROWS_IDLE)
        return log_fail(&f->log, DESCANT_ORDER, "a round of rows cannot be begun so");
    if (n > t->rows_bytes)
        return log_fail(&f->log, DESCANT_INVALID, "a part of %zu bytes, room for %zu", n,
                        t->rows_bytes);
    t->rows = bytes;
    t->rows_n = n;
    t->rows_phase = ROWS_GIVEN;
    world_turn_rows(t->world);
    return DESCANT_OK;
}

static bool called(const struct sim_world *w)
{
    for (int i = 0; i < w->n_trainers; i++)
        if (w->trainers[i]->rows_phase == ROWS_GIVEN)
            return true;
    return false;
}

static enum fabric_progress poll(struct fabric *f, struct rows_part *part)
{
    struct trainer *t = trainer_of(f);
    const struct sim_world *w = t->world;
    if (f->status)
        return FABRIC_FAILED;
    if (t->rows_phase == ROWS_IDLE)
        return takes_part(t) && called(w) ? FABRIC_CALLED : FABRIC_WAITING;
    if (t->rows_phase == ROWS_GIVEN)
        return FABRIC_WAITING;
    if (t->rows_next == w->n_parts) {
        t->rows_phase = ROWS_IDLE;
        return FABRIC_DONE;
    }
    *part = w->parts[t->rows_next++];
    part->parts = w->n_parts;
    part->own = part->rank == f->rank;
    return FABRIC_PART;
}

static bool leave(struct fabric *f)
{
    return !f->status && trainer_of(f)->rows_phase == ROWS_TAKING;
}

const struct fabric_rows sim_rows = {.begin = begin, .poll = poll, .leave = leave};
