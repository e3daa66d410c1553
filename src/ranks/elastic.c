/* SPDX-License-Identifier: MIT */
/* Elastic exchanges with a centre that is spread over all ranks: of n floats, rank j owns slice j,
 * and moves it for everybody,
 *     W <- W + alpha (w - W),
 * a piece at a time. Who exchanges asks: it sends its w and gets W back, some pieces at once and of
 * all owners in turn, so that the link is kept busy while owners sleep. Its own slice it moves
 * itself. Owners serve in every poll, and after their trainer has left.
 *
 * An ask carries runs of floats that lie in segments; what lies between is not moved. All of f->center
 * is this rank's view: its own slice is the centre itself, the rest as it came back last.
 *
 * A piece that has NaN or Inf is not sent, and ends the exchange. When a STATE is called, what is in
 * flight comes home first. The centre that a state gives may come to an owner after asks of those
 * who have had it: these carry the number of the state and wait for it.
 *
 * Where ranks come and go the slices are as many as there can be ranks, and each is of the
 * first member from its number on. When its owner goes the next one has it, and goes on
 * from what it has seen last, in its own last exchange or in the state that it took. Who
 * asks a rank that is not the owner is told so, and asks again; and so does one whose
 * owner has gone, or is silent and was left out: what was asked of that one is parked, as
 * it may still be on its way.
 *
 * Run by whoever holds the round machine. */
#include "fabric/kernels.h"
#include "fabric/vector.h"
#include "ranks/ranks.h"

#include <stddef.h>
#include <string.h>

enum { SEATS = 16, SERVED = 8, RUNS = 24 };

struct ask {
    uint64_t state;             /* the last that gave the asker's centre */
    uint32_t seat, fetch, n_runs;
    float alpha;
    uint32_t unused;
    uint32_t refused;           /* an answer: of one that does not own it; no floats follow */
    uint64_t number;            /* of the asker's asks */
    uint64_t from;
    struct {
        uint32_t at, n;         /* from `from` on */
    } runs[RUNS];
    float floats[];             /* of the runs, one after another */
};

/* A piece of ours in flight. */
struct seat {
    struct ranks_op send, receive;
    struct ask *out, *in;
    bool taken, answered, stale;    /* stale: of an exchange that was given up */
    bool again;                     /* it is to be asked once more */
    struct seat *parked;            /* the next in the list of those */
    uint32_t run;                   /* the next part of the answer */
    size_t at;                      /* where that lies among its floats */
};

/* A piece of somebody else's. */
struct service {
    struct ranks_op receive, answer;
    struct ask *ask;
    uint64_t generation;            /* of the process that asked */
    bool early;                     /* waits for the state */
    uint64_t since_ns;              /* when it has come, if it is early */
    struct service *parked;         /* the next in the list of those */
};

struct ranks_elastic {
    struct seat *seats[SEATS];
    struct seat *parked;            /* what is still to leave for a rank that is silent; others
                                       have their places */
    struct service *served[SERVED], *parked_services;
    size_t *cursors;                /* by rank: the next float of its slice */
    int next_owner;
    bool stopped, bad, fetch;
    uint64_t asks;
    struct seat *shown;             /* whose part is out */
    float *own;                     /* a piece of the own slice, when its part is out */
};

static size_t ask_bytes(size_t n)
{
    return sizeof(struct ask) + n * sizeof(float);
}

static size_t most_bytes(const struct ranks *m)
{
    return ask_bytes(ranks_piece_room(m));
}

static size_t run_floats(const struct ask *ask)
{
    size_t n = 0;
    for (uint32_t k = 0; k < ask->n_runs && k < RUNS; k++)
        n += ask->runs[k].n;
    return n;
}

/* --- owners --- */

static int owner_of(const struct ranks *m, int slice)
{
    int size = m->place.size;

    if (m->place.fixed)
        return slice;
    for (int i = 0; i < size; i++)
        if (m->members[(slice + i) % size])
            return (slice + i) % size;
    return m->f.rank;
}

/* That the float lies in. */
static int slice_of(const struct ranks *m, uint64_t at)
{
    int slice = 0;

    while (slice + 1 < m->place.size && ranks_slice_at(m->n, m->place.size, slice + 1) <= at)
        slice++;
    return slice;
}

/* --- serving --- */

static void receive_ask(struct ranks *m, struct service *s)
{
    ranks_receive_any(m, &s->receive, s->ask, most_bytes(m), TAG_ASK);
}

/* Runs of this rank's slice, ascending, as many floats as have come, and how to move them. */
static bool ask_is_good(const struct ranks *m, const struct ask *ask, size_t bytes)
{
    int slice = m->place.fixed || bytes < ask_bytes(0) ? m->f.rank : slice_of(m, ask->from);
    size_t from = ranks_slice_at(m->n, m->place.size, slice), at = 0;
    size_t to = ranks_slice_at(m->n, m->place.size, slice + 1);

    if (bytes < ask_bytes(0) || ask->seat >= SEATS || ask->fetch > 1 || !(ask->alpha >= 0 && ask->alpha <= 1) ||
        ask->n_runs < 1 || ask->n_runs > RUNS || ask->from < from || ask->from > to)
        return false;
    for (uint32_t k = 0; k < ask->n_runs; k++) {
        if (ask->runs[k].n < 1 || ask->runs[k].at < at)
            return false;
        at = (size_t)ask->runs[k].at + ask->runs[k].n;
        if (at > to - ask->from || at > RANKS_PIECE)
            return false;
    }
    return bytes == ask_bytes(ask->fetch ? 0 : run_floats(ask));
}

static void serve(struct ranks *m, struct service *s)
{
    struct ask *ask = s->ask;
    float *p = ask->floats;

    bool waits = ask->state > m->center_state;

    s->since_ns = s->early ? s->since_ns : m->now_ns;
    ask->refused = !m->place.fixed && (owner_of(m, slice_of(m, ask->from)) != m->f.rank ||
                                       (waits && m->now_ns - s->since_ns >= m->dead_ns / 2));
    s->early = waits && !ask->refused;
    if (s->early)
        return;
    for (uint32_t k = 0; k < ask->n_runs && !ask->refused; k++) {
        float *W = m->f.center + ask->from + ask->runs[k].at;
        size_t n = ask->runs[k].n;
        if (ask->fetch)
            memcpy(p, W, n * sizeof *p);
        else
            kernels_best()->elastic(W, p, p, ask->alpha, n);
        p += n;
    }
    ranks_send_op(m, &s->answer, ask, ask_bytes((size_t)(p - ask->floats)),
                (enum ranks_tag)(TAG_ANSWER + ask->seat));
}

static struct service *service_of(struct ranks *m, const struct ranks_op *op)
{
    return m->elastic->served[op->slot];
}

static void free_service(struct service *s)
{
    if (!s)
        return;
    memory_give(s->ask);
    memory_give(s);
}

static void asked(struct ranks *m, struct ranks_op *op, const struct link_ended *ended)
{
    op->busy = false;
    struct service *s = service_of(m, op);
    if (ended->failed) {                /* of another length */
        receive_ask(m, s);
        return;
    }
    s->answer.rank = ended->from;
    s->generation = m->peers[ended->from].generation;
    if (ask_is_good(m, s->ask, ended->bytes))
        serve(m, s);
    else
        ranks_refuse(m, ended->from, "it asks for what is no piece of the centre of rank %d",
                     m->f.rank);
    if (!s->answer.busy && !s->early && !m->place.fixed)
        receive_ask(m, s);
}

static void answer_sent(struct ranks *m, struct ranks_op *op, const struct link_ended *ended)
{
    struct service *s = (struct service *)(void *)((char *)op - offsetof(struct service, answer));
    struct service **at = &m->elastic->parked_services;

    (void)ended;
    op->busy = false;
    while (*at && *at != s)
        at = &(*at)->parked;
    if (!*at) {
        receive_ask(m, s);
        return;
    }
    *at = s->parked;
    free_service(s);
}

static struct service *make_service(struct ranks *m, unsigned k)
{
    struct service *s = memory_take(sizeof *s);

    if (!s)
        return NULL;
    s->receive = (struct ranks_op){.ended = asked, .rank = LINK_ANY, .slot = k,
                                    .even_failed = true};
    s->answer = (struct ranks_op){.ended = answer_sent, .slot = k, .even_failed = true};
    s->ask = memory_take(most_bytes(m));
    if (s->ask)
        return s;
    free_service(s);
    return NULL;
}

/* An answer to a rank that was left out may be on its way for long: others are served
 * from another place. */
static void park_services(struct ranks *m)
{
    struct ranks_elastic *e = m->elastic;

    for (unsigned k = 0; k < SERVED && !m->place.fixed; k++) {
        struct service *s = e->served[k], *other;
        if (!s || !s->answer.busy || m->members[s->answer.rank] || !(other = make_service(m, k)))
            continue;
        s->parked = e->parked_services;
        e->parked_services = s;
        e->served[k] = other;
        receive_ask(m, other);
    }
}

void ranks_elastic_serve(struct ranks *m)
{
    for (int k = 0; k < SERVED; k++) {
        struct service *s = m->elastic->served[k];
        if (!s || !s->early)
            continue;
        if (m->place.fixed ||
            (s->generation && s->generation == m->peers[s->answer.rank].generation))
            serve(m, s);
        else
            s->early = false;
        if (!s->early && !s->answer.busy)
            receive_ask(m, s);
    }
}

/* --- memory --- */

static void free_seat(struct seat *seat)
{
    if (!seat)
        return;
    memory_give(seat->out);
    memory_give(seat->in);
    memory_give(seat);
}

/* True: the seat is parked, and goes once nothing of it is on its way. */
static bool is_parked(struct ranks *m, struct seat *seat)
{
    struct seat **at = &m->elastic->parked;

    while (*at && *at != seat)
        at = &(*at)->parked;
    if (!*at)
        return false;
    if (!seat->send.busy && !seat->receive.busy) {
        *at = seat->parked;
        free_seat(seat);
    }
    return true;
}

static void seat_sent(struct ranks *m, struct ranks_op *op, const struct link_ended *ended)
{
    (void)ended;
    op->busy = false;
    is_parked(m, (struct seat *)(void *)((char *)op - offsetof(struct seat, send)));
}

static bool receive_answer(struct ranks *m, struct seat *seat)
{
    enum ranks_tag tag = (enum ranks_tag)(TAG_ANSWER + seat->send.slot);
    size_t bytes = ask_bytes(run_floats(seat->out));

    return m->place.fixed ? ranks_receive_op(m, &seat->receive, seat->in, bytes, tag)
                          : ranks_receive_any(m, &seat->receive, seat->in, most_bytes(m), tag);
}

/* What lies in seat->in. */
static void take_answer(struct ranks *m, struct seat *seat, const struct link_ended *ended)
{
    const struct ask *in = seat->in;
    const float *p = in->floats;

    seat->again = !m->place.fixed && ended->bytes == ask_bytes(0) && in->refused;
    if (seat->again)
        return;
    if (memcmp(in, seat->out, ask_bytes(0)) != 0 ||
        ended->bytes != ask_bytes(run_floats(seat->out))) {
        ranks_refuse(m, ended->from, "it answers what it was not asked");
        seat->again = !m->place.fixed;
        return;
    }
    seat->answered = true;
    for (uint32_t k = 0; k < in->n_runs; k++) {
        memcpy(m->f.center + in->from + in->runs[k].at, p, in->runs[k].n * sizeof *p);
        p += in->runs[k].n;
    }
    atomic_fetch_add_explicit(&m->f.bytes, 2 * (uint64_t)(p - in->floats) * sizeof *p,
                              memory_order_relaxed);
}

/* Where ranks come and go an answer may come to the receive of an ask before it, which
 * was taken for lost. */
static void answered(struct ranks *m, struct ranks_op *op, const struct link_ended *ended)
{
    struct seat *seat = (struct seat *)(void *)((char *)op - offsetof(struct seat, receive));
    struct seat *own = m->elastic->seats[op->slot];
    bool waits = own->taken && !own->answered && !own->again;

    op->busy = false;
    if (m->place.fixed) {
        take_answer(m, seat, ended);
        return;
    }
    bool its = waits && !ended->failed && ended->bytes >= ask_bytes(0) &&
               seat->in->number == own->out->number;
    if (its && seat != own)
        memcpy(own->in, seat->in, ended->bytes);
    if (seat != own)
        is_parked(m, seat);
    if (its)
        take_answer(m, own, ended);
    else if (seat == own && waits && ended->failed)
        own->again = true;
    else if (seat == own && waits)
        receive_answer(m, own);
}

static struct seat *make_seat(struct ranks *m, unsigned k)
{
    struct seat *seat = memory_take(sizeof *seat);

    if (!seat)
        return NULL;
    seat->send = (struct ranks_op){.ended = seat_sent, .slot = k, .even_failed = true};
    seat->receive = (struct ranks_op){.ended = answered, .slot = k, .even_failed = true};
    seat->out = memory_take(most_bytes(m));
    seat->in = memory_take(most_bytes(m));
    if (seat->out && seat->in)
        return seat;
    free_seat(seat);
    return NULL;
}

descant_status ranks_elastic_init(struct ranks *m)
{
    struct ranks_elastic *e = memory_take(sizeof *e);

    m->elastic = e;
    if (!e)
        return DESCANT_MEMORY;
    e->cursors = memory_take_array((size_t)m->place.size, sizeof *e->cursors);
    e->own = memory_take_array(ranks_piece_room(m), sizeof *e->own);
    bool had = e->cursors && e->own;
    for (unsigned k = 0; had && k < SEATS; k++)
        had = (e->seats[k] = make_seat(m, k)) != NULL;
    for (unsigned k = 0; had && k < SERVED && m->place.size > 1; k++) {
        had = (e->served[k] = make_service(m, k)) != NULL;
        if (had)
            receive_ask(m, e->served[k]);
    }
    return had ? DESCANT_OK : DESCANT_MEMORY;
}

void ranks_elastic_fini(struct ranks *m)
{
    struct ranks_elastic *e = m->elastic;

    if (!e)
        return;
    for (int k = 0; k < SEATS; k++)
        free_seat(e->seats[k]);
    while (e->parked) {
        struct seat *seat = e->parked;
        e->parked = seat->parked;
        free_seat(seat);
    }
    for (int k = 0; k < SERVED; k++)
        free_service(e->served[k]);
    while (e->parked_services) {
        struct service *parked = e->parked_services;
        e->parked_services = parked->parked;
        free_service(parked);
    }
    memory_give(e->cursors);
    memory_give(e->own);
    memory_give(e);
}

/* What was asked of a rank that is no member now, or does not own it any more. */
static void park(struct ranks *m, unsigned k)
{
    struct ranks_elastic *e = m->elastic;
    struct seat *seat = e->seats[k], *other;
    int rank = seat->send.rank;

    if (m->place.fixed || seat->answered || (!seat->send.busy && !seat->receive.busy) ||
        (m->members[rank] &&
         (!seat->taken || owner_of(m, slice_of(m, seat->out->from)) == rank)) ||
        !(other = make_seat(m, k)))
        return;
    memcpy(other->out, seat->out, most_bytes(m));
    other->taken = other->again = seat->taken && !seat->stale;
    seat->parked = e->parked;
    e->parked = seat;
    e->seats[k] = other;
}

/* Some that were asked, or have asked, may be left out by now. */
void ranks_elastic_changed(struct ranks *m)
{
    for (unsigned k = 0; k < SEATS; k++)
        park(m, k);
    park_services(m);
    ranks_elastic_serve(m);
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
    m->elastic->stopped = true;
    m->elastic->shown = NULL;
    for (int k = 0; k < SEATS; k++) {
        struct seat *seat = m->elastic->seats[k];
        seat->stale = seat->taken;
        seat->again = false;
    }
}

static void free_stale(struct ranks *m)
{
    struct ranks_elastic *e = m->elastic;

    for (unsigned k = 0; k < SEATS; k++) {
        park(m, k);
        struct seat *seat = e->seats[k];
        if (seat->stale && !seat->send.busy && !seat->receive.busy)
            seat->taken = seat->stale = false;
    }
}

bool ranks_elastic_quiet(const struct ranks *m)
{
    for (int k = 0; m->elastic && k < SEATS; k++)
        if (m->elastic->seats[k]->send.busy || m->elastic->seats[k]->receive.busy)
            return false;
    for (int k = 0; m->elastic && k < SERVED; k++)
        if (m->elastic->served[k] && m->elastic->served[k]->answer.busy)
            return false;
    return true;
}

/* The next runs of an owner's slice, up to a piece. False: it is at its end. */
static bool fill(struct ranks *m, int owner, struct ask *ask, float *floats)
{
    struct ranks_elastic *e = m->elastic;
    size_t end = ranks_slice_at(m->n, m->place.size, owner + 1), *at = &e->cursors[owner];
    size_t first = *at, used = 0;

    *ask = (struct ask){.state = m->center_state, .fetch = e->fetch, .from = first,
                        .alpha = (float)m->x.alpha};
    end = e->fetch || m->x.n > end ? end : m->x.n;
    while (*at < end && *at - first < RANKS_PIECE && ask->n_runs < RUNS) {
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

/* Its own slices a rank need not fetch. */
static bool more_of(const struct ranks *m, int slice)
{
    size_t end = ranks_slice_at(m->n, m->place.size, slice + 1);

    if (m->elastic->fetch && owner_of(m, slice) == m->f.rank)
        return false;
    if (!m->elastic->fetch && m->x.n < end)
        end = m->x.n;
    return m->elastic->cursors[slice] < end;
}

static struct seat *idle_seat(struct ranks_elastic *e)
{
    for (int k = 0; k < SEATS; k++)
        if (!e->seats[k]->taken && !e->seats[k]->send.busy && !e->seats[k]->receive.busy)
            return e->seats[k];
    return NULL;
}

/* What is in seat->out. */
static void send_ask(struct ranks *m, struct seat *seat, int owner)
{
    struct ask *out = seat->out;
    size_t n = run_floats(out);

    seat->again = false;
    out->state = m->center_state;
    out->number = ++m->elastic->asks;
    seat->send.rank = seat->receive.rank = owner;
    if (receive_answer(m, seat))
        ranks_send_op(m, &seat->send, out, ask_bytes(out->fetch ? 0 : n), TAG_ASK);
    m->moved = true;
}

static void ask(struct ranks *m, struct seat *seat, int slice)
{
    struct ask *out = seat->out;

    if (!fill(m, slice, out, out->floats) || m->elastic->bad)
        return;
    out->seat = seat->send.slot;
    seat->taken = true;
    seat->answered = false;
    seat->run = 0;
    seat->at = 0;
    send_ask(m, seat, owner_of(m, slice));
}

/* This rank has become the owner of what it asked for. */
static void answer_self(struct ranks *m, struct seat *seat)
{
    const struct ask *out = seat->out;
    const float *w = out->floats;
    float *p = seat->in->floats;

    memcpy(seat->in, out, ask_bytes(0));
    for (uint32_t k = 0; k < out->n_runs; k++) {
        float *W = m->f.center + out->from + out->runs[k].at;
        size_t n = out->runs[k].n;
        memcpy(p, out->fetch ? W : w, n * sizeof *p);
        if (!out->fetch)
            kernels_best()->elastic(W, p, p, out->alpha, n);
        p += n;
        w += out->fetch ? 0 : n;
    }
    seat->again = false;
    seat->answered = true;
}

/* Of owners that have gone, or were none. */
static void ask_again(struct ranks *m)
{
    for (int k = 0; k < SEATS && !m->f.status; k++) {
        struct seat *seat = m->elastic->seats[k];
        if (!seat->again || seat->stale || seat->send.busy || seat->receive.busy)
            continue;
        int owner = owner_of(m, slice_of(m, seat->out->from));
        if (owner == m->f.rank)
            answer_self(m, seat);
        else if (m->peers[owner].generation == m->members[owner])
            send_ask(m, seat, owner);
    }
}

/* Of all other owners in turn, while there are seats. */
static void ask_all(struct ranks *m)
{
    struct ranks_elastic *e = m->elastic;
    int size = m->place.size;

    for (int tries = 0; tries < size && !e->bad && !e->stopped && !m->f.status; tries++) {
        struct seat *seat = idle_seat(e);
        if (!seat)
            return;
        e->next_owner = (e->next_owner + 1) % size;
        if (!more_of(m, e->next_owner) || owner_of(m, e->next_owner) == m->f.rank)
            continue;
        ask(m, seat, e->next_owner);
        tries = -1;
    }
}

/* A piece of the own slice; a part for each of its runs would be many, so one run at a time. */
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
        *part = (struct fabric_part){.kind = EXCHANGE_ELASTIC, .out = e->own, .from = from,
                                     .n = n};
        return true;
    }
    return false;
}

static bool move_all_own(struct ranks *m, struct fabric_part *part)
{
    if (m->place.fixed)
        return move_own(m, m->f.rank, part);
    for (int slice = 0; slice < m->place.size; slice++)
        if (owner_of(m, slice) == m->f.rank && move_own(m, slice, part))
            return true;
    return false;
}

/* --- what comes back --- */

static struct seat *answered_seat(struct ranks_elastic *e)
{
    for (int k = 0; k < SEATS; k++) {
        struct seat *seat = e->seats[k];
        if (seat->taken && seat->answered && !seat->send.busy && !seat->stale)
            return seat;
    }
    return NULL;
}

/* The next run of the answer that is shown; a fetch shows nothing. */
static bool show_run(struct ranks *m, struct fabric_part *part)
{
    struct ranks_elastic *e = m->elastic;
    struct seat *seat = e->shown ? e->shown : answered_seat(e);

    e->shown = NULL;
    if (!seat)
        return false;
    m->moved = true;
    const struct ask *in = seat->in;
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
    for (int k = 0; k < SEATS; k++)
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

static enum fabric_progress end(struct ranks *m)
{
    struct ranks_elastic *e = m->elastic;

    m->f.own_bad = e->bad;
    if (e->bad) {
        atomic_fetch_add_explicit(&m->f.bad, 1, memory_order_relaxed);
        notes_add(m->f.notes, DESCANT_EVENT_BAD, m->f.rank);
    }
    if (!e->fetch)
        m->stage = STAGE_IDLE;
    return FABRIC_DONE;
}

enum fabric_progress ranks_elastic_step(struct ranks *m, struct fabric_part *part)
{
    struct ranks_elastic *e = m->elastic;

    free_stale(m);
    if (!m->place.fixed)
        ask_again(m);
    if (!m->called || e->fetch)
        ask_all(m);
    if (show_run(m, part))
        return FABRIC_PART;
    if (m->called && !e->fetch) {           /* a STATE: arrives there, once all is home */
        if (all_home(e)) {
            m->looked = m->x.n;
            m->stage = STAGE_LOOK;
            m->moved = true;
        }
        return FABRIC_WAITING;
    }
    if (!e->fetch && move_all_own(m, part))
        return FABRIC_PART;
    if (all_home(e) && (e->bad || all_moved(m)))
        return end(m);
    return FABRIC_WAITING;
}

void ranks_elastic_late(const struct ranks *m, struct awaited *awaited)
{
    bool late = false;

    for (int rank = 0; rank < m->place.size; rank++, late = false) {
        for (int k = 0; k < SEATS; k++)
            late |= m->elastic->seats[k]->taken && m->elastic->seats[k]->receive.rank == rank;
        if (late)
            awaited_add(awaited, rank);
    }
}
