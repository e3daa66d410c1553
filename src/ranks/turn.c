/* SPDX-License-Identifier: MIT */
/* The work of one poll, in its order:
 *
 *   1. Messages move, and those that have arrived are ended.
 *   2. The coordinator looks whether a round closes.
 *   3. The rows of a closed round move (rows.c).
 *   4. A bounded piece of a closed round's floats moves. The round is done to its end
 *      even if the exchange that brought this rank into it has been given up.
 *   5. The exchange that is open tests its vector, arrives, takes its part. */
#include "kernels/kernels.h"
#include "kernels/vector.h"
#include "ranks/ranks.h"

#include <string.h>

enum {
    LOOK_AT_ONCE = 1 << 17,     /* floats */
    LISTEN_AT_ONCE = 64         /* words */
};

/* --- where ranks come and go --- */

/* Gives up the round that is open here, which ends nowhere. The arrival of an exchange
 * that waits for the round is made again; an arrival whose exchange was given up is taken
 * back. */
static void void_round(struct ranks *m)
{
    struct ranks_round *r = &m->round;

    m->voided = false;
    m->go_waits &= ledger_series_of(m->go->ledger.version) > ledger_series(m->ledger);
    if (!r->active)
        return;
    m->link->type->forget(m->link, LINK_ANY, r->series + 1);
    if (r->fetching)
        ranks_elastic_stop(m);
    ranks_wire_revert(m);
    r->active = r->fetching = false;
    m->moved = true;
    if (!r->ours && r->seats[r->me].arrival && m->stage != STAGE_ARRIVED)
        ranks_members_unready(m);
}

/* Acts upon the ledger's decisions since the last look. */
static void follow(struct ranks *m)
{
    ranks_peers_time(m);
    if (m->voided)
        void_round(m);
    if (!m->changed)
        return;
    m->changed = false;
    m->go_waits &= m->go->ledger.version.epoch == ledger_view(m->ledger).epoch;
    ranks_lead_changed(m);
    ranks_peers_changed(m);
    if (m->elastic)
        ranks_elastic_changed(m);
    m->moved = true;
}

/* --- listening --- */

/* Words are heard one at a time, and one of them may close a round for which others lie
 * ready. */
static void listen_all(struct ranks *m)
{
    ranks_listen(m);
    ranks_peers_tell(m);
    ranks_bulletins_tell(m);
    ranks_members_time(m);
    for (int i = 0; i < LISTEN_AT_ONCE && ranks_collect(m); i++)
        ;
    if (!m->place.fixed)
        follow(m);
    if (m->lead)
        ranks_lead_turn(m);
    ranks_agree_turn(m);
    ranks_agree_lead_turn(m);
    ranks_agree_turned(m);
    ranks_deal_turn(m);
}

/* --- begin --- */

static void moved_now(struct ranks *m)
{
    m->moved_ns = m->now_ns;
    atomic_store_explicit(&m->still, 0, memory_order_relaxed);
    /* no message that moves while a round gathers is of that round: the last LATE
     * stands */
    if (m->stage != STAGE_ARRIVED || m->round.active || m->go_waits)
        fabric_unsay(&m->f);
}

/* A helper's vector: the contribution, or the segments themselves. A state comes from the
 * vectors with which it was given, for the others have no other. */
static const struct vector *own_vector(const struct ranks *m, enum exchange_kind kind)
{
    if (kind == EXCHANGE_STATE && m->state_in.n)
        return &m->state_in;
    return m->f.contribution ? &m->copy : &m->segments;
}

/* The caller does not use the outer vectors any more, and others may want them. */
static void settle_outer(struct ranks *m)
{
    for (int i = 0; i < m->n_outer; i++)
        memcpy(m->f.outer[i], m->state_outer[i], m->n * sizeof(float));
    m->f.outer_note = m->held.note;
    m->held.state_waits = false;
    m->outer_set = true;
}

/* A state for all replaces the outer vectors, and the base that waits; a last one, which
 * is of the vector alone, leaves them to others. */
static void replace_outer(struct ranks *m, bool final)
{
    if (final && m->held.state_waits)
        settle_outer(m);
    m->outer_set &= final;
    m->held.state_waits = false;
}

/* A round that is under way goes on after its exchange, whose vector may be gone. */
void ranks_abandon(struct ranks *m)
{
    m->round.ours = false;
    m->round.in = own_vector(m, m->round.kind);
}

descant_status ranks_begin(struct fabric *f, const struct exchange *exchange)
{
    struct ranks *m = ranks_of(f);
    const struct limits limits = {m->n, m->room, m->started, m->had_state, f->center};
    descant_status status = f->status;

    if (!status)
        status = exchange_check(exchange, &limits, &f->log);
    if (status)
        return status;
    m->had_state |= exchange->kind == EXCHANGE_STATE;
    if (exchange->kind == EXCHANGE_STATE)
        m->state_in = *exchange->in;
    if (m->stage == STAGE_ARRIVED && !m->round.active && !m->go_waits)
        ranks_members_unready(m);
    if (m->stage == STAGE_ALONE)
        ranks_elastic_stop(m);
    ranks_abandon(m);
    m->outer_set |= m->stage == STAGE_BASE;
    if (exchange->kind == EXCHANGE_STATE && m->carries && m->has_state)
        replace_outer(m, exchange->final);
    m->x = *exchange;
    if (exchange->final) {
        m->bulletin_ns = 0;
        ranks_deal_soon(m);
    }
    m->seq++;
    m->looked = exchange->kind == EXCHANGE_MEAN ? 0 : exchange->n;
    m->bad = f->own_bad = false;
    m->stage = exchange->kind == EXCHANGE_ELASTIC ? STAGE_ALONE : STAGE_LOOK;
    ranks_versions_begun(m);
    if (m->stage == STAGE_ALONE)
        ranks_elastic_begin(m);
    ranks_set_rest(m);
    moved_now(m);
    m->moved_ns = 0;            /* set by the next poll, for the last may be long ago */
    return f->status;
}

/* --- a poll --- */

static void arrive(struct ranks *m)
{
    struct ranks_word own = ranks_members_arrival(m);

    m->stage = STAGE_ARRIVED;
    m->moved = true;
    if (m->held.state_waits)
        return;
    ranks_members_ready(m);
    if (!m->lead)
        return;
    own.ledger.arrival = 1;
    own.ledger.final = m->x.final;
    ranks_lead_hear_here(m, m->f.rank, &own);
    ranks_lead_turn(m);
}

/* The exchange arrives once no earlier round is under way here. */
static void look_and_arrive(struct ranks *m)
{
    size_t left = m->x.n - m->looked, n = left < LOOK_AT_ONCE ? left : LOOK_AT_ONCE;

    if (n) {
        for (size_t at = m->looked, run; at < m->looked + n; at += run) {
            const float *p;
            run = vector_reach(m->x.in, at, &p);
            run = run < m->looked + n - at ? run : m->looked + n - at;
            m->bad |= p && !kernels_best()->finite(p, run);
        }
        m->looked += n;
        m->moved = true;
    } else if (!m->round.active && !m->go_waits && ranks_elastic_quiet(m)) {
        arrive(m);
    }
}

static void begin_round(struct ranks *m)
{
    const struct ranks_word *word = m->go;
    struct ranks_round *r = &m->round;

    m->go_waits = false;
    if (!ranks_members_begin(m)) {
        if (m->place.fixed)
            ranks_refuse(m, m->coordinator, "GO: a round that follows no other");
        return;
    }
    ranks_listen(m);
    r->active = true;
    m->held.mean = 0;
    r->began_ns = m->now_ns;
    r->kind = (enum exchange_kind)word->kind;
    r->final = word->final;
    r->wire = word->encoded ? m->f.wire : WIRE_F32;
    r->number = word->round;
    r->n = word->n;
    r->k = ranks_runs_seats(ranks_runs(word), word->seats, r->seats);
    r->absent = r->kind == EXCHANGE_MEAN && word->source >= 0 ? word->weight : 0;
    r->n_bad = 0;
    r->series = ledger_series_of(word->ledger.version);
    r->base = ledger_series_of(ledger_view(m->ledger).held);
    r->note = word->note;
    r->source = r->hub = -1;
    r->fetching = false;
    for (int i = 0; i < r->k; i++) {
        r->hub = r->seats[i].rank == m->hub ? i : r->hub;
        r->n_bad += r->seats[i].bad;
        r->me = r->seats[i].rank == m->f.rank ? i : r->me;
        r->source = r->seats[i].rank == word->source ? i : r->source;
    }
    bool is_sane = word->members <= (uint32_t)m->place.size;
    int least = r->k - (r->hub >= 0);
    r->members = is_sane && (int)word->members > least ? (int)word->members : least;
    bool in = m->stage == STAGE_ARRIVED && r->seats[r->me].seq == m->seq;
    r->lends = in && r->kind == EXCHANGE_STATE && r->me == r->source &&
               m->x.kind != EXCHANGE_STATE;
    r->in = in ? m->x.in : own_vector(m, r->kind);
    r->ours = in && !r->lends;
    if (m->place.fixed)
        atomic_store_explicit(&m->f.machine_threads, (int)r->seats[r->me].threads,
                              memory_order_relaxed);
    else
        m->link->type->forget(m->link, LINK_ANY, r->series);
    m->moved = true;
    ranks_late_begin(m);
    if (r->kind == EXCHANGE_STATE)
        ranks_state_begin(m);
    else if (word->source >= 0)
        ranks_mean_begin(m);
    else
        r->n = 0;               /* no rank has a good contribution */
}

static enum fabric_progress end_mean(struct ranks *m, struct fabric_part *part)
{
    const struct ranks_round *r = &m->round;

    m->f.own_bad = r->seats[r->me].bad;
    atomic_fetch_add_explicit(&m->f.bad, r->n_bad, memory_order_relaxed);
    for (int i = 0; r->n_bad && i < r->k; i++)
        if (r->seats[i].bad)
            notes_add(m->f.notes, DESCANT_EVENT_BAD, r->seats[i].rank);
    if (!r->n) {
        m->stage = STAGE_IDLE;
        return FABRIC_DONE;
    }
    m->outer_set = false;
    if (!r->final)
        m->refers = r->series;
    atomic_fetch_add_explicit(&m->f.bytes, ranks_mean_bytes(m), memory_order_relaxed);
    *part = (struct fabric_part){.kind = EXCHANGE_MEAN, .out = m->mean, .n = r->n,
                                 .members = r->members, .final = m->f.hub && r->final};
    m->stage = STAGE_PART;
    return FABRIC_PART;
}

static enum fabric_progress end_state(struct ranks *m, struct fabric_part *part)
{
    const struct ranks_round *r = &m->round;

    m->stage = STAGE_IDLE;
    m->has_state = true;
    m->refers = r->series;
    m->outer_set = r->me == r->source;
    if (r->me == r->source)
        return FABRIC_DONE;
    atomic_fetch_add_explicit(&m->f.bytes, r->n * sizeof(float), memory_order_relaxed);
    *part = (struct fabric_part){.kind = EXCHANGE_STATE, .out = m->result, .n = r->n,
                                 .note = r->note, .final = m->f.hub && r->final};
    for (int i = 0; i < m->n_outer; i++)
        part->outer[i] = m->state_outer[i];
    m->stage = STAGE_PART;
    return FABRIC_PART;
}

/* The source has its own part out before it gives. */
static enum fabric_progress show_state(struct ranks *m, struct fabric_part *part)
{
    struct ranks_round *r = &m->round;

    m->moved = true;
    if (!ranks_state_fill(m))
        return FABRIC_WORKED;
    r->shown = true;
    if (!r->ours)
        return FABRIC_WORKED;
    *part = (struct fabric_part){.kind = EXCHANGE_STATE, .n = r->n, .own = true,
                                 .note = r->note};
    for (int i = 0; i < m->n_outer; i++)
        part->outer[i] = m->f.outer[i];
    vector_reach(r->in, 0, &part->out);
    return FABRIC_PART;
}

/* The round's result is here. */
static enum fabric_progress end_round(struct ranks *m, struct fabric_part *part)
{
    struct ranks_round *r = &m->round;

    /* after its exchange the caller may have changed the reference of an encoded mean */
    bool right = r->kind == EXCHANGE_MEAN && (r->ours || r->wire == WIRE_F32);
    m->held.mean = right ? r->series : 0;
    m->held.mean_n = r->n;
    if (r->kind == EXCHANGE_STATE && m->f.center && !r->final)
        ranks_state_end(m);
    if (r->kind == EXCHANGE_STATE && (m->f.center || m->carries) && !r->final)
        m->held.center = r->series;
    if (r->kind == EXCHANGE_STATE && m->owed && !r->lends)
        ranks_wire_forgive(m);
    m->moved = true;
    if (r->kind == EXCHANGE_MEAN)
        ranks_late_end(m);
    if (r->active && r->seats[r->me].arrival)
        ranks_members_whole(m);
    r->active = false;
    if (r->final)
        atomic_store_explicit(&m->f.ended, true, memory_order_relaxed);
    if (m->f.center)
        ranks_center_serve(m);
    if (r->ours)
        return r->kind == EXCHANGE_STATE ? end_state(m, part) : end_mean(m, part);
    m->outer_set = false;       /* the caller has given this exchange up */
    /* an exchange before this one has been merged, or the coordinator has closed this
     * round of others while one before it went on here: this exchange arrives upon the
     * version that is held now */
    if (m->stage == STAGE_ARRIVED && (r->seats[r->me].arrival || !m->go_waits))
        ranks_members_ready(m);
    return FABRIC_WORKED;
}

/* This rank's vector is in no more means. */
static bool at_last_state(const struct ranks *m)
{
    return m->left || (m->x.final && m->x.kind == EXCHANGE_STATE);
}

static void count_missed(struct ranks *m, struct ledger_version before,
                         struct ledger_version now)
{
    uint64_t rounds = now.number > before.number ? now.number - before.number : 1;

    atomic_fetch_add_explicit(&m->f.missed, rounds, memory_order_relaxed);
}

/* Takes a state that has come. Returns whether it waits to be handed out: not where this
 * rank's vector is in no more means. */
static bool take_state(struct ranks *m, const struct ranks_taken *taken,
                       struct ledger_entry own, uint64_t center)
{
    m->held.note = taken->note;
    for (int i = 0; i < m->n_outer && m->carries; i++) {
        float *came_outer = m->next_outer[i];
        m->next_outer[i] = m->state_outer[i];
        m->state_outer[i] = came_outer;
    }
    if (m->carries && at_last_state(m)) {
        settle_outer(m);
        return false;
    }
    m->held.replaced =
        (m->held.state_waits && m->held.replaced) || taken->center_state != center;
    m->held.state_waits = true;
    m->held.own = own.generation == m->place.generation ? own.seq : 0;
    m->refers = ledger_series_of(taken->version);
    float *came = m->state_center;
    if (m->f.center && !m->has_state) { /* its caller cannot have looked at the centre */
        m->state_center = m->f.center;
        m->f.center = came;
    } else if (m->f.center) {
        memcpy(m->f.center, came, m->n * sizeof(float));
    }
    return true;
}

/* A whole version has come (versions.c): the result of a round that this rank was in, or
 * a state. A state is handed out once this rank has arrived. */
static enum fabric_progress take_version(struct ranks *m, struct fabric_part *part)
{
    struct ranks_taken taken;
    struct ledger_version before = ledger_view(m->ledger).held;
    uint64_t center = m->held.center;

    if (!ranks_versions_came(m, &taken))
        return FABRIC_WAITING;
    struct ledger_entry own = m->list[m->f.rank];
    if (!ranks_members_took(m, &taken))
        return FABRIC_WAITING;
    if (m->has_state && !m->x.final && m->quorum.arrivals > 0 &&
        taken.which != VERSION_RESULT)
        count_missed(m, before, taken.version);
    m->moved = true;
    bool result = taken.which == VERSION_RESULT;
    bool its = result && m->round.series == ledger_series_of(taken.version);
    if (its)                    /* the round's result counts after all */
        ranks_wire_revert(m);
    if (its && m->round.ours) {
        m->round.n = taken.n;
        return end_round(m, part);
    }
    if (result) {
        m->held.mean = ledger_series_of(taken.version);
        m->held.mean_n = taken.n;
    } else {
        m->held.mean = 0;
        if (taken.which == VERSION_STATE || !m->carries)    /* a list has no outer vectors */
            m->held.center = taken.center_state;
    }
    bool waits = taken.which == VERSION_STATE && take_state(m, &taken, own, center);
    if (!waits && m->stage == STAGE_ARRIVED)
        ranks_members_ready(m);
    return FABRIC_WORKED;
}

/* A member that carries its work has a state already: its exchange, if one is open, goes
 * on upon the version that has come, unless a state for all has come between. */
static bool is_base(const struct ranks *m)
{
    return m->carries && m->has_state && m->x.kind != EXCHANGE_STATE &&
           !m->held.replaced;
}

/* Hands the result out at once, for a newer version would write over it. */
static enum fabric_progress hand_out_state(struct ranks *m, struct fabric_part *part)
{
    m->held.state_waits = false;
    m->outer_set = false;
    if (m->x.kind == EXCHANGE_STATE && !m->has_state)
        atomic_store_explicit(&m->f.joined, true, memory_order_relaxed);
    bool base = is_base(m);
    bool merged = base && m->stage == STAGE_ARRIVED && m->arrived == m->seq &&
                  m->held.own >= m->arrived_as;
    if (merged) {               /* it was in that round */
        atomic_fetch_sub_explicit(&m->f.missed, 1, memory_order_relaxed);
        if (m->owed && m->round.seats[m->round.me].arrival == m->arrived_as)
            ranks_wire_revert(m);
    }
    m->has_state = true;
    m->moved = true;
    m->resumes = m->stage;
    m->stage = base && !merged ? STAGE_BASE : STAGE_PART;
    if (m->owed && !base)
        ranks_wire_forgive(m);
    *part = (struct fabric_part){.kind = EXCHANGE_STATE, .n = m->n, .base = base,
                                 .merged = merged,
                                 .out = m->f.center  ? m->f.center
                                        : m->carries ? m->state_outer[0]
                                                     : m->result,
                                 .note = m->held.note};
    for (int i = 0; i < m->n_outer; i++)
        part->outer[i] = m->state_outer[i];
    return FABRIC_PART;
}

static enum fabric_progress step_round(struct ranks *m, struct fabric_part *part)
{
    struct ranks_round *r = &m->round;
    bool state = r->kind == EXCHANGE_STATE;

    if (state && !r->shown)
        return show_state(m, part);
    bool done = state ? r->fetching || ranks_state_step(m) : !r->n || ranks_mean_step(m);
    if (done && state && r->final && r->ours && m->f.center && !r->fetching) {
        ranks_elastic_fetch(m);
        r->fetching = true;
    }
    if (done && r->fetching)
        done = ranks_elastic_step(m, part) == FABRIC_DONE;
    if (!done)
        ranks_late_look(m);
    /* a word of this poll may have made the ledger give the round up */
    return done && !m->voided && !m->f.status ? end_round(m, part) : FABRIC_WAITING;
}

static enum fabric_progress step_exchange(struct ranks *m, struct fabric_part *part)
{
    switch (m->stage) {
    case STAGE_IDLE:
        return m->called && !m->x.final ? FABRIC_CALLED : FABRIC_WAITING;
    case STAGE_LOOK:
        look_and_arrive(m);
        return FABRIC_WAITING;
    case STAGE_ARRIVED:
        return FABRIC_WAITING;
    case STAGE_ALONE:
        return ranks_elastic_step(m, part);
    case STAGE_BASE:            /* the vector has moved, and is looked at again */
        m->stage = m->resumes == STAGE_IDLE ? STAGE_IDLE : STAGE_LOOK;
        m->looked = 0;
        m->moved = true;
        m->outer_set = true;
        return FABRIC_WORKED;
    case STAGE_PART:
        break;
    }
    m->stage = STAGE_IDLE;
    m->outer_set = true;
    return FABRIC_DONE;
}

/* A round begins once all pieces of a round that was given up have come back. */
static bool may_begin_round(const struct ranks *m)
{
    return !m->round.active && m->go_waits &&
           (m->place.fixed || (!m->pieces_open && ranks_peers_seated(m)));
}

static enum fabric_progress turn(struct ranks *m, struct fabric_part *part)
{
    enum fabric_progress progress = FABRIC_WAITING;

    if (m->stage == STAGE_PART || m->stage == STAGE_BASE)
        return step_exchange(m, part);
    if (may_begin_round(m))
        begin_round(m);
    if (m->round.active)
        progress = step_round(m, part);
    else if (m->versions)
        progress = take_version(m, part);
    bool idle = m->stage == STAGE_IDLE && is_base(m) && !m->x.final;
    if (m->held.state_waits && (m->stage == STAGE_ARRIVED || idle))
        progress = hand_out_state(m, part);
    if (progress == FABRIC_WAITING)
        progress = step_exchange(m, part);
    return progress;
}

static void note_moves(struct ranks *m)
{
    ranks_set_rest(m);
    if (m->moved)
        moved_now(m);
    else
        atomic_fetch_add_explicit(&m->still, 1, memory_order_relaxed);
}

void ranks_serve(struct fabric *f)
{
    struct ranks *m = ranks_of(f);
    struct fabric_part part;

    m->moved = false;
    if (!m->f.status)
        listen_all(m);
    if (!m->f.status)
        ranks_rows_step(m);
    ranks_versions_step(m);
    if (!m->f.status && m->elastic)
        ranks_elastic_turn(m);
    ranks_center_step(m);
    bool shown = m->stage == STAGE_PART || m->stage == STAGE_BASE;
    if (!m->f.status && may_begin_round(m) && !shown)
        begin_round(m);
    bool waits = m->round.ours && m->stage == STAGE_ARRIVED;
    if (!m->f.status && m->round.active && !m->round.ours)
        step_round(m, &part);
    else if (!m->f.status && m->versions && !m->round.active && !waits && !shown)
        take_version(m, &part);
    note_moves(m);
}

enum fabric_progress ranks_poll(struct fabric *f, struct fabric_part *part)
{
    struct ranks *m = ranks_of(f);
    enum fabric_progress progress = FABRIC_WAITING;

    m->moved = false;
    if (!f->status)
        listen_all(m);
    if (!f->status) {
        ranks_rows_step(m);
        ranks_versions_step(m);
        if (m->elastic)
            ranks_elastic_turn(m);
        ranks_center_step(m);
        progress = turn(m, part);
    }
    if (f->status)
        return FABRIC_FAILED;
    bool open = m->stage != STAGE_IDLE || m->round.active;
    note_moves(m);
    if (progress == FABRIC_DONE && m->x.final)
        ranks_deal_ended(m);
    if (progress != FABRIC_WAITING)
        return progress;
    ranks_say(m);
    return m->moved && open ? FABRIC_WORKED : FABRIC_WAITING;
}

