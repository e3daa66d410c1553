/* SPDX-License-Identifier: MIT */
/* The round machine.
 *
 *   snapshot    copy the replica into the contribution, a piece at a time, testing for
 *               NaN; left out where the fabric reads the replica itself, or only this
 *               trainer reads it
 *   exchanging  polls the fabric until a part of the result is here
 *   merging     adds the part, a piece at a time, to the live replica, as an increment:
 *                 pull    w += alpha (g - w)          delta   w += alpha (g - snap)
 *               block first steps the outer state, piece by piece: b = c - G; s = mu s +
 *               b; G += eta (nesterov ? b + mu s : s), and merges g = G; eta and mu are
 *               the plan's or those of outer_step.c, by the number of the round, which
 *               goes with G and s
 *   stepping    the outer state alone, where late members carry their work and the merge
 *               is delayed: others may need G before
 *
 * Where late members carry their work (plan_carries), a trainer that has missed rounds
 * gets a base, the G' that they left, before its next snapshot or while its exchange is
 * open: w += G' - G, so that w - G stays, and the same to a contribution that has not
 * been in a round. Of a contribution that is in the base already, for this trainer did
 * not see its round's end, the base is the result.
 *
 * Invariants. 1 Only the state exchange stores into a replica; all else adds. 2 G and s
 * of all trainers are the same bits between rounds: they come from the same c by the same
 * operations. So is the last result, which outer[0] keeps where a mean is sent in fewer
 * bits (docs/wire.md).
 * 3 A mean comes in one part and stays until the next begin, so a delayed merge reads it
 * in place; elastic parts are merged as they come, or kept in `held` where the merge is
 * delayed.
 * 4 Nothing is allocated after init.
 *
 * All of this runs in the thread that holds the machine (drive.c, simulation.c). */
#include "sync/round.h"

#include <math.h>
#include <string.h>

enum {
    PIECE = 1 << 15,            /* floats: 128 KiB, some 20 to 50 us of work */
    PAST_CACHES = 1 << 20,      /* floats: a replica of 4 MiB or more has left the caches
                                   anyway */
    ROOM_BESIDE = 1 << 10,      /* floats of a gradient plan's rounds, beside those of the
                                   replica: a loop's own figures go with a gradient; */
    LEAST_ROOM = 1 << 16,       /* where the replica is small; */
    UNKNOWN_ROOM = 1 << 20      /* where there is none */
};

static bool uses_outer(const struct plan *plan)
{
    return plan->what == PLAN_BLOCK;
}

/* Encoded means of this plan are differences from the last result, which outer[0] then
 * holds; a block's are differences from G, which is outer[0] anyway. The same where
 * absent members count by the last result. */
static bool keeps_result(const struct plan *plan, const struct fabric *fabric)
{
    return plan->what == PLAN_MEAN && (fabric->wire != WIRE_F32 || plan_carries(plan));
}

/* descant_mean takes any buffer, in pieces of this room; most are gradients of the
 * replica. */
size_t round_room(const struct plan *plan, const struct replica *replica)
{
    if (plan->what != PLAN_GRADIENT)
        return replica->n;
    if (replica->n == 0)
        return UNKNOWN_ROOM;
    size_t room = replica->n + ROOM_BESIDE;
    return room > LEAST_ROOM ? room : LEAST_ROOM;
}

struct fabric_start round_needs(const struct plan *plan, const struct fabric *fabric,
                                const struct replica *replica)
{
    bool collective = plan->what == PLAN_MEAN || plan->what == PLAN_BLOCK ||
                      plan->what == PLAN_GRADIENT;
    return (struct fabric_start){
        .n = replica->n,
        .room = round_room(plan, replica),
        .in_place = !replica->any_attached && !plan_needs_snapshot(plan) &&
                    plan->what != PLAN_GRADIENT,
        .collective = collective,
        .gradients = plan->what == PLAN_GRADIENT,
        .quorum = plan->quorum,
        .grace = plan->grace,
        .carries = plan_carries(plan),
        .center = plan->what == PLAN_ELASTIC,
        .n_outer = uses_outer(plan) ? 2 : keeps_result(plan, fabric),
    };
}

descant_status round_init(struct round *r, const struct plan *plan, struct fabric *fabric,
                          struct replica *replica)
{
    *r = (struct round){
        .plan = plan,
        .fabric = fabric,
        .replica = replica,
        .kernels = kernels_best(),
        .copy = {.n = replica->n, .n_extents = 1},
        .copy_extent = {.at = 0, .n = replica->n, .p = fabric->contribution},
    };
    r->copy.extents = &r->copy_extent;
    if (plan->what == PLAN_ELASTIC && plan->delay > 0) {
        r->held = memory_take_array(replica->n, sizeof(float));
        if (r->held == NULL)
            return log_fail(&fabric->log, DESCANT_MEMORY, "no memory for %zu floats",
                            replica->n);
    }
    return DESCANT_OK;
}

void round_fini(struct round *r)
{
    memory_give(r->held);
    memory_give(r->loaded);
    r->held = r->loaded = NULL;
}

/* Whether the contribution is filled: a delta merge reads it, and so do the peers of a
 * mean or a state where the fabric does not give them what they need. An elastic pull
 * reads the replica itself, attached or not. A state or a last mean may follow an
 * exchange that was given up and whose contribution peers still read: the fabric fills it
 * itself, when they have read it. */
static bool copies(const struct round *r)
{
    if (r->fabric->contribution == NULL)
        return false;
    bool delta = r->exchange.kind != EXCHANGE_STATE && !r->exchange.final;
    return (plan_needs_snapshot(r->plan) && delta) ||
           (r->exchange.kind != EXCHANGE_ELASTIC && !r->fabric->any_memory);
}

/* Begins the outer state anew: G = w, s = 0, and the last result is w. */
static bool renews_outer(const struct round *r)
{
    bool renews =
        keeps_result(r->plan, r->fabric) || (uses_outer(r->plan) && !r->outer_loaded);
    return renews && r->exchange.kind == EXCHANGE_STATE && !r->exchange.final;
}

void round_set_outer(struct round *r, uint64_t rounds)
{
    r->outer_rounds = r->fabric->outer_note = rounds;
    r->watch = (struct outer_watch){.cosine = 0};
}

static void open_round(struct round *r, struct exchange exchange, bool released)
{
    r->exchange = exchange;
    r->exchange.n = r->replica->n;
    if (renews_outer(r))
        round_set_outer(r, 0);
    r->exchange.note = r->outer_rounds;
    r->exchange.in = copies(r) ? &r->copy : &r->replica->live;
    r->at = 0;
    r->released = released;
    r->arrived = r->bad = r->reloaded = r->call = r->asked = r->stepped = false;
    r->part = (struct fabric_part){.n = 0};
    r->sum = (struct distance){0, 0};
    r->turn = (struct turn){0, 0, 0};
    r->state = ROUND_SNAPSHOT;
}

void round_begin(struct round *r, double weight, bool released)
{
    bool elastic = r->plan->what == PLAN_ELASTIC;
    open_round(r, (struct exchange){.kind = elastic ? EXCHANGE_ELASTIC : EXCHANGE_MEAN,
                                    .weight = r->plan->weight == PLAN_STEPS ? weight : 1,
                                    .alpha = r->plan->alpha}, released);
}

void round_begin_state(struct round *r, uint64_t priority, bool final)
{
    open_round(r, (struct exchange){.kind = EXCHANGE_STATE, .priority = priority,
                                    .final = final}, true);
}

void round_begin_final_mean(struct round *r)
{
    open_round(r, (struct exchange){.kind = EXCHANGE_MEAN, .weight = 1, .final = true},
               true);
}

void round_release(struct round *r)
{
    r->released = true;
}

bool round_ends(const struct round *r, int due)
{
    uint64_t missed = atomic_load_explicit(&r->fabric->missed, memory_order_relaxed);
    bool result = r->state == ROUND_MERGING && r->part.merged;
    bool late = !r->arrived && !result && missed != r->missed;
    return r->state != ROUND_IDLE && due != 0 && !(late && !(due & PLAN_DUE_SNAPSHOT));
}

void round_abandon(struct round *r)
{
    r->state = ROUND_IDLE;
}

void round_keep(struct round *r, const struct replica_segment *segment)
{
    float *copy = r->fabric->contribution;
    if (segment->memory != NULL && copy != NULL &&
        (plan_needs_snapshot(r->plan) || !r->fabric->any_memory))
        r->kernels->copy(copy + segment->at, segment->memory, segment->n);
}

struct copy_in {
    struct round *round;
    bool finite;
};

static void copy_in(void *context, float *memory, size_t at, size_t n)
{
    struct copy_in *c = context;
    struct round *r = c->round;
    if (copies(r)) {
        float *to = r->fabric->contribution + at;
        c->finite &= r->replica->n >= PAST_CACHES ? r->kernels->copy_past(to, memory, n)
                                                  : r->kernels->copy(to, memory, n);
    }
    if (renews_outer(r)) {
        r->kernels->copy(r->fabric->outer[0] + at, memory, n);
        if (uses_outer(r->plan))
            memset(r->fabric->outer[1] + at, 0, n * sizeof(float));
    }
}

static size_t piece(const struct round *r, size_t end)
{
    return end - r->at < PIECE ? end - r->at : PIECE;
}

static void each(struct round *r, size_t n, replica_fn *fn, void *context)
{
    pthread_mutex_lock(&r->replica->lock);
    replica_each(r->replica, r->at, n, fn, context);
    pthread_mutex_unlock(&r->replica->lock);
    r->at += n;
}

static enum round_progress take_base(struct round *r, const struct fabric_part *part)
{
    r->part = *part;
    r->at = part->from;
    r->stepped = false;
    r->back = r->state;
    r->state = ROUND_MERGING;
    return ROUND_WORKED;
}

/* Polls while no exchange is open, and takes the base of rounds that were missed. */
static enum round_progress look_for_base(struct round *r)
{
    struct fabric_part part;
    enum fabric_progress progress = r->fabric->type->poll(r->fabric, &part);

    if (progress == FABRIC_FAILED)
        return ROUND_FAILED;
    if (progress == FABRIC_PART && part.base)
        return take_base(r, &part);
    return progress == FABRIC_CALLED ? ROUND_CALLED : ROUND_RESTING;
}

static enum round_progress take_snapshot(struct round *r)
{
    if (plan_carries(r->plan) && r->exchange.kind == EXCHANGE_MEAN && !r->asked) {
        r->asked = true;
        return look_for_base(r) == ROUND_FAILED ? ROUND_FAILED : ROUND_WORKED;
    }
    if ((copies(r) || renews_outer(r)) && r->at < r->replica->n) {
        struct copy_in c = {r, true};
        each(r, piece(r, r->replica->n), copy_in, &c);
        r->bad |= !c.finite;
        return ROUND_WORKED;
    }
    r->missed = atomic_load_explicit(&r->fabric->missed, memory_order_relaxed);
    if (r->fabric->type->begin(r->fabric, &r->exchange) != DESCANT_OK)
        return ROUND_FAILED;
    r->state = ROUND_EXCHANGING;
    return ROUND_WORKED;
}

/* The mean of a final round replaces w. */
static void merge_piece(void *context, float *memory, size_t at, size_t n)
{
    struct round *r = context;
    const struct plan *plan = r->plan;
    struct distance unused = {0, 0};
    if (r->part.base && r->settled)
        return;
    if (r->part.base && !r->part.merged) {
        r->kernels->delta(memory, r->part.outer[0] + at, r->fabric->outer[0] + at, 1, n,
                          &unused);
        return;
    }
    const float *g = r->part.out + (at - r->part.from);
    bool outer = uses_outer(plan) && !r->part.base;
    if ((r->part.kind == EXCHANGE_STATE && !r->part.base) || r->exchange.final) {
        if (!r->part.own && !r->call)
            r->kernels->copy(memory, g, n);
        return;
    }
    if (outer)
        g = r->fabric->outer[0] + at;
    float alpha = (float)plan->alpha;
    if (r->bad && plan->heal)
        r->kernels->copy(memory, g, n);
    else if (plan->merge == PLAN_DELTA && plan_needs_snapshot(plan))
        r->kernels->delta(memory, g, r->fabric->contribution + at, alpha, n, &r->sum);
    else
        r->kernels->pull(memory, g, alpha, n, &r->sum);
}

/* The outer state beside a piece: stepped by a mean, taken or begun anew by a state. The
 * source of a state gives the centre that was loaded before any other trainer goes on. */
static void outer_piece(struct round *r, size_t from, size_t n)
{
    float *G = r->fabric->outer[0], *s = r->fabric->outer[1];
    const struct plan *plan = r->plan;
    struct distance unused = {0, 0};
    bool brings = r->back == ROUND_EXCHANGING && copies(r) && !r->settled;
    if (r->part.base && !r->part.merged && brings)
        r->kernels->delta(r->fabric->contribution + from, r->part.outer[0] + from,
                          G + from, 1, n, &unused);
    if (r->loaded != NULL && r->outer_loaded && r->part.own)
        r->kernels->copy(r->fabric->center + from, r->loaded + from, n);
    if (G == NULL)
        return;
    const float *out = r->part.out + (from - r->part.from);
    if (r->part.kind != EXCHANGE_STATE) {
        r->step = outer_step_of(plan, r->outer_rounds, r->part.members);
        if (!r->exchange.final && uses_outer(plan))
            r->kernels->block(G + from, s + from, out, r->step, n, &r->turn);
        else if (!r->exchange.final)
            r->kernels->copy(G + from, out, n);
        return;
    }
    if (r->part.own)
        return;
    if (r->part.outer[0] != NULL)
        r->kernels->copy(G + from, r->part.outer[0] + from, n);
    if (r->part.outer[1] != NULL)
        r->kernels->copy(s + from, r->part.outer[1] + from, n);
}

/* The outer state is the part's from here on. One trainer logs its growth for all, which
 * have the same figures. */
static void end_outer(struct round *r)
{
    static const char *const words[] = {
        [OUTER_OVERSHOOTS] = "overshoots: rounds no longer go where its momentum does",
        [OUTER_LAGS] = "lags: each round repeats the change of the one before"};
    if (r->part.n == 0 || r->part.own || !uses_outer(r->plan))
        return;
    if (r->part.kind == EXCHANGE_STATE)
        round_set_outer(r, r->part.note);
    if (r->part.kind == EXCHANGE_STATE || r->exchange.final)
        return;
    r->fabric->outer_note = ++r->outer_rounds;
    enum outer_verdict verdict = outer_watch(&r->watch, r->plan, r->step, &r->turn);
    if (verdict != OUTER_FITS && r->fabric->rank == 0)
        log_say(
            &r->fabric->log, DESCANT_WARNING,
            "the outer step (rate %g, momentum %g) %s (mean cosine %.2f after %llu "
            "rounds); rate=1,momentum=0 is plain averaging, and auto the plan's default",
            (double)r->step.rate, (double)r->step.momentum, words[verdict],
            r->watch.cosine, (unsigned long long)r->outer_rounds);
}

static enum round_progress finish(struct round *r)
{
    if (r->exchange.kind == EXCHANGE_STATE && !r->call)
        r->outer_loaded = r->fabric->outer_loads = false;
    r->states += r->reloaded && !r->call;
    r->distance = r->sum.g2 > 0 && isfinite(r->sum.d2) ? r->sum.d2 / r->sum.g2 : 0;
    r->state = ROUND_IDLE;
    return ROUND_DONE;
}

static enum round_progress merge(struct round *r)
{
    size_t end = r->part.from + r->part.n, from = r->at;
    if (from < end) {
        size_t n = piece(r, end);
        if (!r->part.base && !r->stepped)
            outer_piece(r, from, n);
        each(r, n, merge_piece, r);
        if (r->part.base)       /* the vector moves from G to the base */
            outer_piece(r, from, n);
        return ROUND_WORKED;
    }
    if (!r->stepped)
        end_outer(r);
    if (r->part.base && !r->part.merged) {
        r->state = r->back;
        r->at = 0;
        return ROUND_WORKED;
    }
    if (r->arrived)
        return finish(r);
    r->state = ROUND_EXCHANGING;
    return ROUND_WORKED;
}

static enum round_progress step_outer(struct round *r)
{
    size_t end = r->part.from + r->part.n;
    if (r->at < end) {
        size_t n = piece(r, end);
        outer_piece(r, r->at, n);
        r->at += n;
        return ROUND_WORKED;
    }
    end_outer(r);
    r->stepped = true;
    r->state = ROUND_EXCHANGING;
    return ROUND_WORKED;
}

static bool delayed(const struct round *r)
{
    return r->plan->when == PLAN_EVERY && r->plan->delay > 0 &&
           r->exchange.kind != EXCHANGE_STATE && !r->exchange.final;
}

static enum round_progress take_part(struct round *r, const struct fabric_part *part)
{
    if (part->kind == EXCHANGE_STATE) {
        r->reloaded = true;
        r->released = true;
    } else if (delayed(r) && r->held != NULL) {
        memcpy(r->held + part->from, part->out, part->n * sizeof(float));
        return ROUND_WORKED;
    }
    r->exchange.final |= part->final;
    r->part = *part;
    r->at = part->from;
    r->state = ROUND_MERGING;
    return ROUND_WORKED;
}

/* A bad contribution ended its elastic exchange early: the parts that came are not
 * merged, and a replica that is to be healed takes the centre. */
static enum round_progress exchange_done(struct round *r)
{
    bool elastic = r->exchange.kind == EXCHANGE_ELASTIC, own_bad = r->fabric->own_bad;
    bool heals = elastic && own_bad && r->plan->heal;
    r->bad |= own_bad;
    if (r->reloaded || r->part.base || (!delayed(r) && !heals))
        return finish(r);
    r->arrived = true;
    if (elastic)
        r->part = (struct fabric_part){
            .kind = EXCHANGE_ELASTIC,
            .out = heals ? r->fabric->center : r->held,
            .n = heals || (!own_bad && r->held != NULL) ? r->replica->n : 0};
    r->at = r->part.from;
    return ROUND_WORKED;
}

static enum round_progress exchange(struct round *r)
{
    if (r->arrived) {               /* delayed, and the result waits for its step */
        if (!r->released)
            return ROUND_HELD;
        r->state = ROUND_MERGING;
        return ROUND_WORKED;
    }
    struct fabric_part part;
    switch (r->fabric->type->poll(r->fabric, &part)) {
    case FABRIC_WAITING:
    case FABRIC_CALLED:
        return ROUND_WAITING;
    case FABRIC_WORKED:
        return ROUND_WORKED;
    case FABRIC_PART:
        if (part.base)
            return take_base(r, &part);
        r->bad |= r->fabric->own_bad;
        if (delayed(r) && r->held == NULL && part.kind != EXCHANGE_STATE) {
            r->part = part;         /* a mean stays in place until the next begin */
            r->at = part.from;
            r->state = plan_carries(r->plan) ? ROUND_STEPPING : r->state;
            return ROUND_WORKED;
        }
        return take_part(r, &part);
    case FABRIC_DONE:
        return exchange_done(r);
    case FABRIC_FAILED:
        break;
    }
    return ROUND_FAILED;
}

enum round_progress round_advance(struct round *r)
{
    switch (r->state) {
    case ROUND_IDLE:
        return look_for_base(r);
    case ROUND_SNAPSHOT:
        return take_snapshot(r);
    case ROUND_EXCHANGING:
        return exchange(r);
    case ROUND_STEPPING:
        return step_outer(r);
    case ROUND_MERGING:
        return merge(r);
    }
    return ROUND_FAILED;
}

enum round_progress round_open(struct round *r)
{
    while (r->state == ROUND_SNAPSHOT ||
           (r->state == ROUND_MERGING && r->part.base && !r->part.merged))
        if (round_advance(r) == ROUND_FAILED)
            return ROUND_FAILED;
    return ROUND_WORKED;
}
