/* SPDX-License-Identifier: MIT */
/* Elastic exchanges with a centre that is spread over all ranks (center.c), from the side
 * of a rank that makes one. The rank asks owners: it sends its w and gets W back, some
 * pieces at once and of all owners in turn, so that the link is kept busy while owners
 * sleep. It moves its own slice itself.
 *
 * An ask carries runs of floats that lie in segments; gaps between segments are not
 * moved. f->center is this rank's view of the centre: its own slice is the centre itself,
 * the rest is as the last answers brought it.
 *
 * A piece that has NaN or Inf is not sent, and ends the exchange. When a STATE is called,
 * all answers in flight come back first.
 *
 * Where ranks come and go an ask that was refused, or whose owner has gone, is made
 * again, of the owner that is known by then. If the owner is silent and is no member any
 * more, the ask is parked, as it may still be on its way, and another record takes its
 * place.
 *
 * Where a host has several ranks, they ask together (joint.c): in any poll a rank asks
 * owners on other hosts for itself and its mates.
 *
 * All of this runs in the thread that holds the round machine. */
#include "kernels/kernels.h"
#include "kernels/vector.h"
#include "ranks/joint.h"

#include <string.h>

enum { AGAIN = 64 /* a refused ask is made again dead / 64 after it was made */ };

/* A piece of this rank's in flight. */
struct ask_seat {
    struct ranks_request request;
    bool taken, answered, stale;    /* stale: of an exchange that was given up */
    bool again;                     /* to be asked once more */
    uint64_t asked_ns;              /* the last ask left; 0: none from this seat */
    uint32_t run;                   /* the next part of the answer */
    size_t at;                      /* where that part lies among the answer's floats */
};

struct ranks_elastic {
    struct ask_seat *seats[ASK_SEATS];
    struct ranks_requests all;
    size_t *cursors;                /* by rank: the next float of its slice */
    int next_owner;
    bool stopped, bad, fetch;
    uint64_t asks;
    struct ask_seat *shown;         /* its part is out */
    float *own;                     /* a piece of the own slice, when its part is out */
};

static int owner_of(const struct ranks *m, uint64_t at)
{
    return ranks_center_owner(m, ranks_center_slice(m, at));
}

static bool is_busy(const struct ask_seat *seat)
{
    return seat->request.send.busy || seat->request.receive.busy;
}

/* --- answers --- */

static bool receive_answer(struct ranks *m, struct ask_seat *seat)
{
    struct ranks_request *r = &seat->request;
    enum ranks_tag tag = (enum ranks_tag)(TAG_ANSWER + r->send.slot);

    if (!m->place.fixed)
        return ranks_receive_any(m, &r->receive, r->in, ask_bytes_most(m), tag);
    return ranks_receive_op(m, &r->receive, r->in, ask_bytes(ask_floats(r->out)), tag);
}

/* It lies in the request's `in`. */
static void take_answer(struct ranks *m, struct ask_seat *seat,
                        const struct link_ended *ended)
{
    struct ask *in = seat->request.in;
    const struct ask *out = seat->request.out;
    const float *p = in->floats;
    size_t bytes = ended->bytes;

    seat->again = !m->place.fixed && bytes == ask_bytes(0) && in->refused;
    if (seat->again)
        return;
    if (memcmp(in, out, ask_bytes(0)) != 0 || bytes != ask_bytes(ask_floats(out))) {
        ranks_refuse(m, ended->from, "it answers an ask that was not made");
        seat->again = !m->place.fixed;
        return;
    }
    atomic_fetch_add_explicit(&m->f.bytes, 2 * ask_floats(in) * sizeof *p,
                              memory_order_relaxed);
    if (in->before) {
        ranks_joint_take(m, in);
        seat->taken = false;
        return;
    }
    seat->answered = true;
    for (uint32_t k = 0; k < in->n_runs; k++) {
        memcpy(m->f.center + in->from + in->runs[k].at, p, in->runs[k].n * sizeof *p);
        p += in->runs[k].n;
    }
}

/* Finds the ask of an answer. Where ranks come and go an answer may come to the receive
 * of an earlier ask, which was taken for lost. */
static void answered(struct ranks *m, struct ranks_op *op, const struct link_ended *ended)
{
    struct ask_seat *seat = op->of, *own = m->elastic->seats[op->slot];
    const struct ask *in = seat->request.in, *out = own->request.out;
    bool waits = own->taken && !own->answered && !own->again;

    op->busy = false;
    if (m->place.fixed) {
        take_answer(m, seat, ended);
        return;
    }
    bool its = waits && !ended->failed && ended->bytes >= ask_bytes(0) &&
               in->number == out->number;
    if (its && seat != own)
        memcpy(own->request.in, in, ended->bytes);
    if (its)
        take_answer(m, own, ended);
    else if (seat == own && waits && ended->failed)
        own->again = true;
    else if (seat == own && waits)
        receive_answer(m, own);
    ranks_request_release(&m->elastic->all, &seat->request);
}

static void asked(struct ranks *m, struct ranks_op *op, const struct link_ended *ended)
{
    struct ask_seat *seat = op->of;

    (void)ended;
    op->busy = false;
    ranks_request_release(&m->elastic->all, &seat->request);
}

/* Parks an ask of a rank that is no member now, or does not own the slice any more. */
static void park(struct ranks *m, unsigned k)
{
    struct ranks_elastic *e = m->elastic;
    struct ask_seat *seat = e->seats[k], *other;
    const struct ask *out = seat->request.out;
    int rank = seat->request.send.rank;

    if (m->place.fixed || seat->answered || !is_busy(seat) ||
        (m->members[rank] && (!seat->taken || owner_of(m, out->from) == rank)) ||
        !(other = ranks_request_park(m, &e->all, &seat->request)))
        return;
    memcpy(other->request.out, out, ask_bytes_most(m));
    other->taken = other->again = seat->taken && !seat->stale;
    e->seats[k] = other;
}

/* Another epoch stands: ranks that were asked, or have asked, may be no members of it. */
void ranks_elastic_changed(struct ranks *m)
{
    for (unsigned k = 0; k < ASK_SEATS; k++)
        park(m, k);
    ranks_center_serve(m);
}

/* --- asking --- */

static void start(struct ranks *m, bool fetch)
{
    struct ranks_elastic *e = m->elastic;

    e->stopped = e->bad = false;
    e->fetch = fetch;
    e->shown = NULL;
    e->next_owner = m->f.rank;
    for (int k = 0; k < m->place.size; k++)
        e->cursors[k] = ranks_slice_at(m->n, m->place.size, k);
}

void ranks_elastic_begin(struct ranks *m)
{
    start(m, false);
}

void ranks_elastic_fetch(struct ranks *m)
{
    start(m, true);
}

void ranks_elastic_stop(struct ranks *m)
{
    if (m->joint) {             /* what it asks for is for its mates, too */
        ranks_joint_stop(m);
        return;
    }
    m->elastic->stopped = true;
    m->elastic->shown = NULL;
    for (int k = 0; k < ASK_SEATS; k++) {
        struct ask_seat *seat = m->elastic->seats[k];
        seat->stale = seat->taken;
        seat->again = false;
    }
}

static void free_stale(struct ranks *m)
{
    struct ranks_elastic *e = m->elastic;

    for (unsigned k = 0; k < ASK_SEATS; k++) {
        park(m, k);
        struct ask_seat *seat = e->seats[k];
        if (seat->stale && !is_busy(seat))
            seat->taken = seat->stale = false;
    }
}

bool ranks_elastic_quiet(const struct ranks *m)
{
    for (int k = 0; m->elastic && k < ASK_SEATS; k++)
        if (m->elastic->seats[k] && is_busy(m->elastic->seats[k]))
            return false;       /* no seat: the start has failed */
    return (!m->joint || ranks_joint_quiet(m)) &&
           (!m->center || ranks_center_quiet(m));
}

/* The next runs of an owner's slice, up to a piece. False: it is at its end. */
static bool fill(struct ranks *m, int owner, struct ask *ask, float *floats)
{
    struct ranks_elastic *e = m->elastic;
    size_t end = ranks_slice_at(m->n, m->place.size, owner + 1), *at = &e->cursors[owner];
    size_t first = *at, used = 0;

    *ask = (struct ask){.state = m->held.center, .fetch = e->fetch, .from = first,
                        .alpha = (float)m->x.alpha};
    end = e->fetch || m->x.n > end ? end : m->x.n;
    while (*at < end && *at - first < RANKS_PIECE && ask->n_runs < ASK_RUNS) {
        const float *p = NULL;
        size_t left = end - *at, room = RANKS_PIECE - (*at - first);
        size_t run = e->fetch ? left : vector_reach(m->x.in, *at, &p);
        run = run < left ? run : left;
        run = run < room ? run : room;
        if (p || e->fetch) {
            ask->runs[ask->n_runs].at = (uint32_t)(*at - first);
            ask->runs[ask->n_runs++].n = (uint32_t)run;
        }
        if (p && !kernels_best()->copy(floats + used, p, run))
            e->bad = true;
        used += p ? run : 0;
        *at += run;
    }
    return ask->n_runs > 0;
}

/* A rank need not fetch its own slices. */
static bool more_of(const struct ranks *m, int slice)
{
    size_t end = ranks_slice_at(m->n, m->place.size, slice + 1);

    if (m->elastic->fetch && ranks_center_owner(m, slice) == m->f.rank)
        return false;
    if (!m->elastic->fetch && m->x.n < end)
        end = m->x.n;
    return m->elastic->cursors[slice] < end;
}

static struct ask_seat *idle_seat(struct ranks_elastic *e)
{
    for (int k = 0; k < ASK_SEATS; k++)
        if (!e->seats[k]->taken && !is_busy(e->seats[k]))
            return e->seats[k];
    return NULL;
}

/* It is in the request's `out`. */
static void send_ask(struct ranks *m, struct ask_seat *seat, int owner)
{
    struct ranks_request *r = &seat->request;
    struct ask *out = r->out;
    size_t bytes = ask_bytes(out->fetch ? 0 : ask_floats(out));

    seat->again = false;
    out->number = ++m->elastic->asks;
    seat->asked_ns = m->now_ns;
    r->send.rank = r->receive.rank = owner;
    if (receive_answer(m, seat))
        ranks_send_op(m, &r->send, out, bytes, TAG_ASK);
    m->moved = true;
}

static bool ask(struct ranks *m, struct ask_seat *seat, int slice, bool joint)
{
    struct ask *out = seat->request.out;

    if (joint ? !ranks_joint_ask(m, slice, out)
              : !fill(m, slice, out, out->floats) || m->elastic->bad)
        return false;
    out->seat = seat->request.send.slot;
    seat->taken = true;
    seat->answered = false;
    seat->run = 0;
    seat->at = 0;
    send_ask(m, seat, ranks_center_owner(m, slice));
    return true;
}

/* This rank has become the owner of a piece that it asked for, and answers itself. */
static void answer_self(struct ranks *m, struct ask_seat *seat)
{
    const struct ask *out = seat->request.out;

    memcpy(seat->request.in, out, ask_bytes(out->fetch ? 0 : ask_floats(out)));
    ranks_center_answer(m, seat->request.in);
    seat->again = false;
    seat->answered = true;
}

/* Asks again for pieces whose owners have gone, or were none. */
static void ask_again(struct ranks *m)
{
    for (int k = 0; k < ASK_SEATS && !m->f.status; k++) {
        struct ask_seat *seat = m->elastic->seats[k];
        struct ask *out = seat->request.out;
        if (!seat->again || seat->stale || is_busy(seat) ||
            m->now_ns - seat->asked_ns < m->dead_ns / AGAIN)
            continue;
        if (m->called && !m->elastic->fetch) {      /* a state replaces the exchange */
            seat->taken = seat->again = false;
            continue;
        }
        int owner = owner_of(m, out->from);
        out->state = m->held.center;
        if (owner == m->f.rank)
            answer_self(m, seat);
        else if (m->peers[owner].generation == m->members[owner])
            send_ask(m, seat, owner);
    }
}

/* Asks all other owners in turn, while there are seats; joint: for the mates, too. */
static void ask_all(struct ranks *m, bool joint)
{
    struct ranks_elastic *e = m->elastic;
    int size = m->place.size;

    for (int tries = 0; tries < size && !m->f.status; tries++) {
        struct ask_seat *seat = idle_seat(e);
        if (!seat || (!joint && (e->bad || e->stopped)))
            return;
        e->next_owner = (e->next_owner + 1) % size;
        int slice = e->next_owner;
        bool more = joint ||
                    (more_of(m, slice) && ranks_center_owner(m, slice) != m->f.rank);
        if (more && !joint && ranks_donor_first(m))
            return;
        if (more && (ask(m, seat, slice, joint) || !joint))
            tries = -1;
    }
}

void ranks_elastic_turn(struct ranks *m)
{
    if (m->joint && ranks_joint_turn(m))
        ask_all(m, true);
}

/* A piece of the own slice, one run at a time: each is a part. */
static bool move_own(struct ranks *m, int slice, struct fabric_part *part)
{
    struct ranks_elastic *e = m->elastic;
    size_t *at = &e->cursors[slice];

    while (!e->bad && !e->stopped && more_of(m, slice)) {
        const float *p;
        size_t end = ranks_slice_at(m->n, m->place.size, slice + 1), from = *at;
        size_t left = (m->x.n < end ? m->x.n : end) - from;
        size_t n = vector_reach(m->x.in, from, &p);
        n = n < left ? n : left;
        if (p && n > RANKS_PIECE)
            n = RANKS_PIECE;
        *at += n;
        m->moved = true;
        if (!p)
            continue;
        e->bad = !kernels_best()->copy(e->own, p, n);
        if (e->bad)
            return false;
        kernels_best()->elastic(m->f.center + from, e->own, e->own, (float)m->x.alpha, n);
        *part = (struct fabric_part){
            .kind = EXCHANGE_ELASTIC, .out = e->own, .from = from, .n = n};
        return true;
    }
    return false;
}

static bool move_all_own(struct ranks *m, struct fabric_part *part)
{
    if (m->place.fixed)
        return move_own(m, m->f.rank, part);
    for (int slice = 0; slice < m->place.size; slice++)
        if (ranks_center_owner(m, slice) == m->f.rank && move_own(m, slice, part))
            return true;
    return false;
}

/* --- answers become parts --- */

static struct ask_seat *answered_seat(struct ranks_elastic *e)
{
    for (int k = 0; k < ASK_SEATS; k++) {
        struct ask_seat *seat = e->seats[k];
        if (seat->taken && seat->answered && !seat->request.send.busy && !seat->stale)
            return seat;
    }
    return NULL;
}

/* Makes a part of the next run of the answer that is shown; a fetch shows nothing. */
static bool show_run(struct ranks *m, struct fabric_part *part)
{
    struct ranks_elastic *e = m->elastic;
    struct ask_seat *seat = e->shown ? e->shown : answered_seat(e);

    e->shown = NULL;
    if (!seat)
        return false;
    m->moved = true;
    const struct ask *in = seat->request.in;
    if (e->fetch || seat->run == in->n_runs) {
        seat->taken = false;
        return show_run(m, part);
    }
    uint32_t k = seat->run++;
    *part = (struct fabric_part){.kind = EXCHANGE_ELASTIC, .out = in->floats + seat->at,
                                 .from = in->from + in->runs[k].at, .n = in->runs[k].n};
    seat->at += in->runs[k].n;
    e->shown = seat;
    return true;
}

static bool all_home(const struct ranks_elastic *e)
{
    for (int k = 0; k < ASK_SEATS; k++)
        if (e->seats[k]->taken)
            return false;
    return true;
}

static bool all_moved(const struct ranks *m)
{
    for (int k = 0; k < m->place.size; k++)
        if (more_of(m, k))
            return false;
    return true;
}

static enum fabric_progress end(struct ranks *m, bool bad)
{
    m->f.own_bad = bad;
    if (bad) {
        atomic_fetch_add_explicit(&m->f.bad, 1, memory_order_relaxed);
        notes_add(m->f.notes, DESCANT_EVENT_BAD, m->f.rank);
    }
    if (!m->elastic->fetch)
        m->stage = STAGE_IDLE;
    return FABRIC_DONE;
}

/* A STATE was called: the exchange arrives for it. */
static void arrive_for_state(struct ranks *m)
{
    m->looked = m->x.n;
    m->stage = STAGE_LOOK;
    m->moved = true;
}

static enum fabric_progress joint_step(struct ranks *m, struct fabric_part *part)
{
    switch (ranks_joint_step(m, m->called, part)) {
    case JOINT_PART:
        return FABRIC_PART;
    case JOINT_DONE:
        return end(m, ranks_joint_bad(m));
    case JOINT_GIVEN_UP:
        arrive_for_state(m);
        break;
    case JOINT_WAITS:
        break;
    }
    return FABRIC_WAITING;
}

enum fabric_progress ranks_elastic_step(struct ranks *m, struct fabric_part *part)
{
    struct ranks_elastic *e = m->elastic;

    if (m->joint && !e->fetch)
        return joint_step(m, part);
    free_stale(m);
    if (!m->place.fixed)
        ask_again(m);
    if (!m->called || e->fetch)
        ask_all(m, false);
    if (show_run(m, part))
        return FABRIC_PART;
    if (m->called && !e->fetch) {           /* once all answers are back */
        if (all_home(e))
            arrive_for_state(m);
        return FABRIC_WAITING;
    }
    if (!e->fetch && move_all_own(m, part))
        return FABRIC_PART;
    if (all_home(e) && (e->bad || all_moved(m)))
        return end(m, e->bad);
    return FABRIC_WAITING;
}

void ranks_elastic_late(const struct ranks *m, struct awaited *awaited)
{
    bool late = false;

    if (m->joint)
        ranks_joint_late(m, awaited);
    for (int rank = 0; rank < m->place.size && !m->joint; rank++, late = false) {
        for (int k = 0; k < ASK_SEATS; k++) {
            const struct ask_seat *seat = m->elastic->seats[k];
            late |= seat->taken && seat->request.send.rank == rank;
        }
        if (late)
            awaited_add(awaited, rank);
    }
}

/* --- memory --- */

descant_status ranks_elastic_init(struct ranks *m)
{
    struct ranks_elastic *e = m->elastic = memory_take(sizeof *e);

    if (!e)
        return DESCANT_MEMORY;
    e->all = (struct ranks_requests){.record = sizeof(struct ask_seat),
                                     .out_bytes = ask_bytes_most(m),
                                     .in_bytes = ask_bytes_most(m),
                                     .sent = asked, .received = answered};
    e->cursors = memory_take_array((size_t)m->place.size, sizeof *e->cursors);
    e->own = memory_take_array(ranks_piece_room(m), sizeof *e->own);
    bool had = e->cursors && e->own;
    for (unsigned k = 0; had && k < ASK_SEATS; k++)
        had = (e->seats[k] = ranks_request_make(&e->all, k)) != NULL;
    return had ? ranks_center_init(m) : DESCANT_MEMORY;
}

void ranks_elastic_fini(struct ranks *m)
{
    struct ranks_elastic *e = m->elastic;

    ranks_center_fini(m);
    if (!e)
        return;
    for (int k = 0; k < ASK_SEATS; k++)
        memory_give(e->seats[k]);
    ranks_requests_fini(&e->all);
    memory_give(e->cursors);
    memory_give(e->own);
    memory_give(e);
}
