/* SPDX-License-Identifier: MIT */
/* The rounds of docs/shm.md among any number of trainers in one thread, on a clock that moves
 * only when it is told. No message, no thread, no wait: world_turn looks at everybody after
 * each change and does what has become possible; the rest waits for the clock.
 *
 *   forming    nobody is a member, and `size` trainers wait with a STATE (later: any): they are
 *   gather     members begin; the round closes when all have
 *   reduce     at ready_ns (the emulated link, latency, chance) the result is computed once,
 *                  mean = sum of weight_k / total x_k, in double, by rank,
 *              into the one result buffer of the world
 *   take       each takes it; the next round cannot close before all members begin again
 *
 * 1. A trainer that leaves, dies or begins anew while the round reduces puts it back to gather;
 *    it closes again at once among those who stay. So too when the source of a state goes
 *    before all have pulled.
 * 2. The closing of a round waits for every member, also those just admitted, so whoever a
 *    joiner pulls from stays where it is until the joiner has begun the same round.
 * 3. A final exchange takes its trainer out of the members; when nobody is a member or waits,
 *    and all alive have begun one, they become the members of the last round. Who waits when
 *    there are no members but those at their end takes the state of one of them.
 * 4. An elastic exchange is between one trainer and the centre, whose link is busy with one
 *    at a time. While a STATE gathers it becomes an arrival there. */
#include "fabric/sim_world.h"

#include "fabric/kernels.h"
#include "fabric/ruling.h"

#include <string.h>

/* --- who takes part --- */

static bool in_round(const struct sim_world *w, const struct trainer *t)
{
    if (w->reducing)
        return t->phase == REDUCING;
    return w->kind == EXCHANGE_STATE && w->source &&
           (t->phase == TAKE || t->phase == TAKEN || t->phase == PULLED);
}

/* Back to gather, all with the same inputs. */
static void round_restart(struct sim_world *w)
{
    for (int i = 0; i < w->n_trainers; i++) {
        struct trainer *t = w->trainers[i];
        if (!in_round(w, t))
            continue;
        atomic_fetch_add_explicit(&t->f.restarts, 1, memory_order_relaxed);
        t->phase = ARRIVED;
        t->f.own_bad = false;
    }
    w->reducing = false;
    w->source = NULL;
}

void trainer_drop(struct trainer *t)
{
    struct sim_world *w = t->world;
    bool inside = in_round(w, t);
    t->phase = IDLE;
    t->from = NULL;
    if (w->puller == t)
        w->puller = NULL;
    if (inside && (w->reducing || w->source == t))
        round_restart(w);
}

struct trainer *world_standby(const struct sim_world *w)
{
    for (int i = 0; i < w->n_trainers; i++) {
        struct trainer *t = w->trainers[i];
        if (t->life == FINAL && t->had_state && t->phase == ARRIVED)
            return t;
    }
    return NULL;
}

static void world_form(struct sim_world *w)
{
    if (world_count(w, MEMBER))
        return;
    int waiting = world_count(w, WAITING), size = 1;
    for (int i = 0; i < w->n_trainers; i++)
        if (w->trainers[i]->life == WAITING && w->trainers[i]->f.size > size)
            size = w->trainers[i]->f.size;
    enum life from = WAITING;
    if (waiting && world_standby(w)) {
        world_admit(w);
        return;
    }
    if (!waiting) {
        if (!w->n_trainers || world_count(w, FINAL) < w->n_trainers)
            return;
        from = FINAL;
    } else if (!w->formed && waiting < size) {
        return;
    }
    w->formed = true;
    for (int i = 0; i < w->n_trainers; i++)
        if (w->trainers[i]->life == from)
            w->trainers[i]->life = MEMBER;
    world_changed(w);
}

static void admit(struct trainer *t)
{
    t->phase = PULLING;
    t->ready_ns = t->world->now +
                  world_delay_ns(t->world, emulated_busy_ns(&t->world->options.link, t->x.n) +
                                     world_rtt_ns(t->world));
    if (t->world->collective)
        trainer_become(t, MEMBER);
}

void world_admit(struct sim_world *w)
{
    for (int i = 0; i < w->n_trainers; i++)
        if (w->trainers[i]->life == WAITING && w->trainers[i]->phase == ARRIVED)
            admit(w->trainers[i]);
}

bool trainer_settled(const struct trainer *t)
{
    return t->life == MEMBER && t->phase != PULLING;
}

/* Joiners whose last member has gone wait for a group again. */
static void world_orphans(struct sim_world *w)
{
    for (int i = 0; i < w->n_trainers; i++)
        if (trainer_settled(w->trainers[i]))
            return;
    if (world_standby(w))
        return;
    for (int i = 0; i < w->n_trainers; i++)
        if (w->trainers[i]->phase == PULLING) {
            w->trainers[i]->phase = ARRIVED;
            trainer_become(w->trainers[i], WAITING);
        }
}

/* --- a round --- */

static bool before(const struct trainer *a, const struct trainer *b)
{
    return !b || a->x.priority > b->x.priority;     /* ranks ascend */
}

struct trainer *world_caller(const struct sim_world *w)
{
    struct trainer *best = NULL;
    for (int i = 0; i < w->n_trainers; i++) {
        struct trainer *t = w->trainers[i];
        if (t->life == MEMBER && t->phase == ARRIVED && t->x.kind == EXCHANGE_STATE &&
            before(t, best))
            best = t;
    }
    return best;
}

void trainer_go_alone(struct trainer *t)
{
    struct sim_world *w = t->world;
    uint64_t start = w->center_busy_ns > w->now ? w->center_busy_ns : w->now;
    w->center_busy_ns = start + emulated_busy_ns(&w->options.link, t->x.n);
    t->phase = ALONE;
    t->looked = false;
    t->at = 0;
    t->ready_ns = w->center_busy_ns + world_delay_ns(w, world_rtt_ns(w));
}

/* Members ask for different things, and all fail. */
static bool members_differ(struct sim_world *w)
{
    const struct trainer *first = NULL, *other = NULL;
    for (int i = 0; i < w->n_trainers; i++) {
        const struct trainer *t = w->trainers[i];
        if (t->life != MEMBER)
            continue;
        first = first ? first : t;
        if (t->x.n != first->x.n || t->x.agree != first->x.agree)
            other = t;
    }
    if (!other)
        return false;
    char text[160];
    offers_say(text, sizeof text, &(struct offer){.n = first->x.n, .agree = first->x.agree,
                                                  .final = first->x.final, .rank = first->f.rank},
               &(struct offer){.n = other->x.n, .agree = other->x.agree, .final = other->x.final,
                               .rank = other->f.rank});
    for (int i = 0; i < w->n_trainers; i++) {
        struct trainer *t = w->trainers[i];
        if (t->life != MEMBER)
            continue;
        t->phase = IDLE;
        t->f.status = log_fail(&t->f.log, DESCANT_MISMATCH, "%s", text);
    }
    return true;
}

static void round_close(struct sim_world *w)
{
    struct trainer *source = world_caller(w);
    int group = 0;
    size_t n = 0;
    bool final = false;
    if (!source)        /* elastic arrivals whose STATE has gone */
        for (int i = 0; i < w->n_trainers; i++)
            if (w->trainers[i]->life == MEMBER && w->trainers[i]->phase == ARRIVED &&
                w->trainers[i]->x.kind == EXCHANGE_ELASTIC)
                trainer_go_alone(w->trainers[i]);
    for (int i = 0; i < w->n_trainers; i++) {
        struct trainer *t = w->trainers[i];
        if (t->life != MEMBER)
            continue;
        if (t->phase != ARRIVED)
            return;
        group++;
        n = t->x.n;
        final = t->x.final;
    }
    if (!group || ((!source || final) && members_differ(w)))
        return;
    for (int i = 0; i < w->n_trainers; i++)
        if (w->trainers[i]->life == MEMBER)
            w->trainers[i]->phase = REDUCING;
    w->kind = source ? EXCHANGE_STATE : EXCHANGE_MEAN;
    w->group = group;
    w->source = source;
    w->reducing = true;
    w->ready_ns = w->now + world_delay_ns(w, emulated_mean_ns(&w->options.link,
                                                          wire_bytes(world_wire(w), n), group));
}

static bool mean_piece(struct sim_world *w, int n_in, size_t at, size_t *n)
{
    bool all = true;
    for (int k = 0; k < n_in; k++) {
        size_t run = vector_reach(w->vectors[k], at, &w->piece[k]);
        *n = run < *n ? run : *n;
        all = all && w->piece[k];
    }
    return all;
}

/* The good, and their shares. Returns how many there are. */
static int mean_shares(struct sim_world *w)
{
    int good = 0, n_in = 0;
    uint64_t bad = 0;
    for (int i = 0; i < w->n_trainers; i++) {
        struct trainer *t = w->trainers[i];
        if (t->phase != REDUCING)
            continue;
        t->f.own_bad = !vector_finite(t->x.in, t->x.n);
        bad += t->f.own_bad;
        if (!t->f.own_bad)
            w->share[good++] = t->x.weight;
    }
    weights_to_shares(w->share, good);
    for (int i = 0, k = 0; i < w->n_trainers; i++) {
        struct trainer *t = w->trainers[i];
        if (t->phase != REDUCING)
            continue;
        atomic_fetch_add_explicit(&t->f.bad, bad, memory_order_relaxed);
        t->share = t->f.own_bad ? 0 : w->share[k++];
        if (t->share > 0) {
            w->vectors[n_in] = t->x.in;
            w->share[n_in++] = t->share;
        }
    }
    return n_in;
}

static void round_mean(struct sim_world *w, size_t n)
{
    int n_in = mean_shares(w);
    w->empty = !n_in;
    if (n_in && world_wire(w) != WIRE_F32) {
        world_mean_encoded(w, n);
        return;
    }
    for (size_t at = 0, run; n_in && at < n; at += run) {
        run = n - at;
        if (mean_piece(w, n_in, at, &run))
            kernels_best()->mean(w->result + at, w->piece, w->share, n_in, run, false);
        else
            memset(w->result + at, 0, run * sizeof(float));
    }
}

static void round_state(struct sim_world *w)
{
    vector_gather(w->source->x.in, (struct chunk){0, w->source->x.n}, w->result, false);
    if (w->center && !w->source->x.final)
        memcpy(w->center, w->result, w->source->x.n * sizeof(float));
    for (int i = 0; i < w->n_trainers; i++)
        if (w->trainers[i]->phase == REDUCING)
            trainer_owes_nothing(w->trainers[i]);
}

/* Of an exchange of n floats among so many. */
static uint64_t bytes_of(const struct sim_world *w, const struct trainer *t, int group, size_t n)
{
    if (w->kind == EXCHANGE_STATE)
        return t == w->source ? 0 : n * sizeof(float);
    if (world_wire(w) != WIRE_F32)
        return world_bytes_encoded(w, t, n);
    return (uint64_t)(2.0 * (group - 1) / group * (double)(n * sizeof(float)));
}

static void round_commit(struct sim_world *w)
{
    int group = 0;
    size_t n = 0;
    for (int i = 0; i < w->n_trainers; i++)
        if (w->trainers[i]->phase == REDUCING) {
            group++;
            n = w->trainers[i]->x.n;
        }
    if (w->kind == EXCHANGE_STATE)
        round_state(w);
    else
        round_mean(w, n);
    for (int i = 0; i < w->n_trainers; i++) {
        struct trainer *t = w->trainers[i];
        if (t->phase == REDUCING)
            atomic_fetch_add_explicit(&t->f.bytes, bytes_of(w, t, group, n),
                                      memory_order_relaxed);
    }
    for (int i = 0; i < w->n_trainers; i++)
        if (w->trainers[i]->phase == REDUCING)
            w->trainers[i]->phase = TAKE;
    w->reducing = false;
    w->round++;
}

void world_turn(struct sim_world *w)
{
    world_orphans(w);
    world_form(w);
    if (!w->reducing)
        round_close(w);
    if (w->reducing && w->now >= w->ready_ns)
        round_commit(w);
    world_turn_rows(w);
}
