/* SPDX-License-Identifier: MIT */
/* The simulated world: a clock that moves only when it is told, the memory that all trainers
 * share, and the list of those who live, by rank. One thread; no time but its own, no chance but
 * from its seed. */
#include "fabric/sim_world.h"

#include <assert.h>
#include <string.h>

/* --- memory and time --- */

float *world_floats(size_t n)
{
    return memory_take_array(n ? n : 1, sizeof(float));
}

struct sim_world *sim_world_create(const struct sim_options *options)
{
    struct sim_world *w = memory_take(sizeof *w);
    if (!w)
        return NULL;
    w->options = *options;
    rng_init(&w->rng, options->seed);
    w->round = 1;
    return w;
}

void world_unshape(struct sim_world *w)
{
    memory_give(w->manifest);
    memory_give(w->result);
    memory_give(w->pull);
    memory_give(w->center);
    w->manifest = NULL;
    w->result = w->pull = w->center = NULL;
    w->puller = NULL;
    w->formed = false;
}

bool world_shape(struct sim_world *w, const struct fabric_start *start)
{
    const char *manifest = start->manifest ? start->manifest : "";
    size_t length = strlen(manifest) + 1;
    w->manifest = memory_take(length);
    w->result = world_floats(start->room > start->n ? start->room : start->n);
    w->pull = world_floats(start->n);
    w->center = start->center ? world_floats(start->n) : NULL;
    if (!w->manifest || !w->result || !w->pull || (start->center && !w->center)) {
        world_unshape(w);
        return false;
    }
    memcpy(w->manifest, manifest, length);
    w->n = start->n;
    w->room = start->room;
    w->collective = start->collective;
    return true;
}

bool world_started(const struct sim_world *w)
{
    for (int i = 0; i < w->n_trainers; i++)
        if (w->trainers[i]->started)
            return true;
    return false;
}

int world_machine(const struct sim_world *w, int rank)
{
    return w->options.per_host ? rank / w->options.per_host : 0;
}

struct block **world_shares(struct sim_world *w, int rank)
{
    int machine = world_machine(w, rank);
    if (machine >= w->n_shares) {
        struct block **more = memory_take_array((size_t)machine + 1, sizeof(struct block *));
        if (!more)
            return NULL;
        if (w->n_shares)
            memcpy(more, w->shares, (size_t)w->n_shares * sizeof *more);
        memory_give(w->shares);
        w->shares = more;
        w->n_shares = machine + 1;
    }
    return &w->shares[machine];
}

bool world_grow(struct sim_world *w)
{
    if (w->n_trainers < w->room_trainers)
        return true;
    size_t room = w->room_trainers ? 2 * (size_t)w->room_trainers : 16;
    struct trainer **trainers = memory_take_array(room, sizeof *trainers);
    struct rows_part *parts = memory_take_array(room, sizeof *parts);
    const float **piece = memory_take_array(room, sizeof *piece);
    const struct vector **vectors = memory_take_array(room, sizeof *vectors);
    double *share = memory_take_array(room, sizeof *share);
    bool had = trainers && piece && vectors && share && parts;
    if (had) {
        if (w->n_trainers)
            memcpy(trainers, w->trainers, (size_t)w->n_trainers * sizeof *trainers);
        if (w->n_parts)
            memcpy(parts, w->parts, (size_t)w->n_parts * sizeof *parts);
        w->room_trainers = (int)room;
    }
#define TAKE_OVER(array) do { memory_give(had ? w->array : array); \
                              w->array = had ? array : w->array; } while (0)
    TAKE_OVER(trainers);
    TAKE_OVER(piece);
    TAKE_OVER(vectors);
    TAKE_OVER(share);
    TAKE_OVER(parts);
#undef TAKE_OVER
    return had;
}

void sim_world_destroy(struct sim_world *w)
{
    if (!w)
        return;
    assert(!w->n_trainers);
    world_unshape(w);
    for (int i = 0; i < w->n_shares; i++)
        blocks_give(&w->shares[i]);
    memory_give(w->shares);
    blocks_give(&w->graves);
    memory_give(w->trainers);
    memory_give(w->piece);
    memory_give(w->vectors);
    memory_give(w->share);
    memory_give(w->parts);
    memory_give(w->rows);
    memory_give(w);
}

uint64_t sim_world_now(const struct sim_world *w)
{
    return w->now;
}

void sim_world_advance(struct sim_world *w, uint64_t to_ns)
{
    if (to_ns > w->now)
        w->now = to_ns;
    world_turn(w);
}

uint64_t sim_world_next(const struct sim_world *w)
{
    uint64_t next = UINT64_MAX;
    if (w->reducing && w->ready_ns > w->now)
        next = w->ready_ns;
    if (w->rows_sent && w->rows_ready_ns > w->now && w->rows_ready_ns < next)
        next = w->rows_ready_ns;
    for (int i = 0; i < w->n_trainers; i++) {
        const struct trainer *t = w->trainers[i];
        if ((t->phase == PULLING || t->phase == ALONE) && t->ready_ns > w->now &&
            t->ready_ns < next)
            next = t->ready_ns;
    }
    return next;
}

uint64_t world_delay_ns(struct sim_world *w, uint64_t link_ns)
{
    double more = w->options.latency_s;
    if (w->options.jitter_s > 0)
        more += w->options.jitter_s * rng_uniform(&w->rng);
    return link_ns + (uint64_t)(more * 1e9 + 0.5);
}

uint64_t world_rtt_ns(const struct sim_world *w)
{
    return emulated_mean_ns(&w->options.link, 0, 1);
}

/* --- who takes part --- */

int world_count(const struct sim_world *w, enum life life)
{
    int n = 0;
    for (int i = 0; i < w->n_trainers; i++)
        n += w->trainers[i]->life == life;
    return n;
}

void world_changed(struct sim_world *w)
{
    int members = world_count(w, MEMBER), threads = 0;
    for (int i = 0; i < w->n_trainers; i++)
        threads += w->trainers[i]->started ? w->trainers[i]->threads : 0;
    for (int i = 0; i < w->n_trainers; i++) {
        struct fabric *f = &w->trainers[i]->f;
        atomic_store_explicit(&f->members, members, memory_order_relaxed);
        atomic_fetch_add_explicit(&f->epoch, 1, memory_order_relaxed);
        f->machine_threads = threads;
    }
    world_lead_rows(w);
}

void trainer_become(struct trainer *t, enum life life)
{
    bool was = t->life == MEMBER;
    t->life = life;
    if (was != (life == MEMBER))
        world_changed(t->world);
}

void world_remove(struct trainer *t)
{
    struct sim_world *w = t->world;
    int i = 0;
    while (i < w->n_trainers && w->trainers[i] != t)
        i++;
    if (i == w->n_trainers)
        return;
    trainer_drop(t);
    w->n_trainers--;
    memmove(w->trainers + i, w->trainers + i + 1,
            (size_t)(w->n_trainers - i) * sizeof *w->trainers);
    t->life = DEAD;
    world_changed(w);
    world_turn(w);
}

void sim_world_kill(struct sim_world *w, struct fabric *f)
{
    assert(trainer_of(f)->world == w);
    world_remove(trainer_of(f));
    f->status = DESCANT_SYSTEM;
}
