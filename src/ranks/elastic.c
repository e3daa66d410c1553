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
 * Run by whoever holds the round machine. */
#include "fabric/kernels.h"
#include "fabric/vector.h"
#include "ranks/ranks.h"

#include <string.h>

enum { SEATS = 16, SERVED = 8, RUNS = 24 };

struct ask {
    uint32_t epoch;             /* of the asker's centre */
    uint32_t seat, fetch, n_runs;
    float alpha;
    uint32_t unused;
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
    uint32_t run;                   /* the next part of the answer */
    size_t at;                      /* where that lies among its floats */
};

/* A piece of somebody else's. */
struct service {
    struct ranks_op receive, answer;
    struct ask *ask;
    bool early;                     /* waits for the state */
};

struct ranks_elastic {
    struct seat seats[SEATS];
    struct service served[SERVED];
    size_t *cursors;                /* by rank: the next float of its slice */
    int next_owner;
    bool stopped, bad, fetch;
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

/* --- serving --- */

static void receive_ask(struct ranks *m, struct service *s)
{
    ranks_receive_any(m, &s->receive, s->ask, most_bytes(m), TAG_ASK);
}

/* Runs of this rank's slice, ascending, as many floats as have come, and how to move them. */
static bool ask_is_good(const struct ranks *m, const struct ask *ask, size_t bytes)
{
    size_t from = ranks_slice_at(m->n, m->place.size, m->f.rank), at = 0;
    size_t to = ranks_slice_at(m->n, m->place.size, m->f.rank + 1);

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

    s->early = ask->epoch > m->center_epoch;
    if (s->early)
        return;
    for (uint32_t k = 0; k < ask->n_runs; k++) {
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
    return &m->elastic->served[op->slot];
}

static void asked(struct ranks *m, struct ranks_op *op, const struct link_ended *ended)
{
    op->busy = false;
    struct service *s = service_of(m, op);
    s->answer.rank = ended->from;
    if (ask_is_good(m, s->ask, ended->bytes))
        serve(m, s);
    else
        ranks_refuse(m, ended->from, "it asks for what is no piece of the centre of rank %d",
                     m->f.rank);
}

static void answer_sent(struct ranks *m, struct ranks_op *op, const struct link_ended *ended)
{
    (void)ended;
    op->busy = false;
    receive_ask(m, service_of(m, op));
}

void ranks_elastic_serve(struct ranks *m)
{
    for (int k = 0; k < SERVED; k++)
        if (m->elastic->served[k].early)
            serve(m, &m->elastic->served[k]);
}

/* --- memory --- */

static void seat_sent(struct ranks *m, struct ranks_op *op, const struct link_ended *ended)
{
    (void)m;
    (void)ended;
    op->busy = false;
}

static void answered(struct ranks *m, struct ranks_op *op, const struct link_ended *ended)
{
    struct seat *seat = &m->elastic->seats[op->slot];
    const struct ask *in = seat->in;
    const float *p = in->floats;

    op->busy = false;
    if (memcmp(in, seat->out, ask_bytes(0)) != 0) {
        ranks_refuse(m, ended->from, "it answers what it was not asked");
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

descant_status ranks_elastic_init(struct ranks *m)
{
    struct ranks_elastic *e = memory_take(sizeof *e);

    m->elastic = e;
    if (!e)
        return DESCANT_MEMORY;
    e->cursors = memory_take_array((size_t)m->place.size, sizeof *e->cursors);
    e->own = memory_take_array(ranks_piece_room(m), sizeof *e->own);
    bool had = e->cursors && e->own;
    for (unsigned k = 0; had && k < SEATS; k++) {
        struct seat *seat = &e->seats[k];
        seat->send = (struct ranks_op){.ended = seat_sent, .slot = k};
        seat->receive = (struct ranks_op){.ended = answered, .slot = k};
        seat->out = memory_take(most_bytes(m));
        seat->in = memory_take(most_bytes(m));
        had = seat->out && seat->in;
    }
    for (unsigned k = 0; had && k < SERVED && m->place.size > 1; k++) {
        struct service *s = &e->served[k];
        s->receive = (struct ranks_op){.ended = asked, .rank = LINK_ANY, .slot = k};
        s->answer = (struct ranks_op){.ended = answer_sent, .slot = k};
        s->ask = memory_take(most_bytes(m));
        had = s->ask != NULL;
        if (had)
            receive_ask(m, s);
    }
    return had ? DESCANT_OK : DESCANT_MEMORY;
}

void ranks_elastic_fini(struct ranks *m)
{
    struct ranks_elastic *e = m->elastic;

    if (!e)
        return;
    for (int k = 0; k < SEATS; k++) {
        memory_give(e->seats[k].out);
        memory_give(e->seats[k].in);
    }
    for (int k = 0; k < SERVED; k++)
        memory_give(e->served[k].ask);
    memory_give(e->cursors);
    memory_give(e->own);
    memory_give(e);
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
    m->elastic->cursors[m->f.rank] = ranks_slice_at(m->n, m->place.size, m->f.rank + 1);
}

void ranks_elastic_stop(struct ranks *m)
{
    m->elastic->stopped = true;
    m->elastic->shown = NULL;
    for (int k = 0; k < SEATS; k++) {
        struct seat *seat = &m->elastic->seats[k];
        seat->stale = seat->taken;
    }
}

static void free_stale(struct ranks_elastic *e)
{
    for (int k = 0; k < SEATS; k++) {
        struct seat *seat = &e->seats[k];
        if (seat->stale && !seat->send.busy && !seat->receive.busy)
            seat->taken = seat->stale = false;
    }
}

bool ranks_elastic_quiet(const struct ranks *m)
{
    for (int k = 0; m->elastic && k < SEATS; k++)
        if (m->elastic->seats[k].send.busy || m->elastic->seats[k].receive.busy)
            return false;
    for (int k = 0; m->elastic && k < SERVED; k++)
        if (m->elastic->served[k].answer.busy)
            return false;
    return true;
}

/* The next runs of an owner's slice, up to a piece. False: it is at its end. */
static bool fill(struct ranks *m, int owner, struct ask *ask, float *floats)
{
    struct ranks_elastic *e = m->elastic;
    size_t end = ranks_slice_at(m->n, m->place.size, owner + 1), *at = &e->cursors[owner];
    size_t first = *at, used = 0;

    *ask = (struct ask){.epoch = m->center_epoch, .fetch = e->fetch, .from = first,
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

static bool more_of(const struct ranks *m, int owner)
{
    size_t end = ranks_slice_at(m->n, m->place.size, owner + 1);

    if (!m->elastic->fetch && m->x.n < end)
        end = m->x.n;
    return m->elastic->cursors[owner] < end;
}

static struct seat *free_seat(struct ranks_elastic *e)
{
    for (int k = 0; k < SEATS; k++)
        if (!e->seats[k].taken)
            return &e->seats[k];
    return NULL;
}

static void ask(struct ranks *m, struct seat *seat, int owner)
{
    struct ask *out = seat->out;
    unsigned number = seat->send.slot;

    if (!fill(m, owner, out, out->floats) || m->elastic->bad)
        return;
    out->seat = number;
    seat->taken = true;
    seat->answered = false;
    seat->run = 0;
    seat->at = 0;
    seat->send.rank = seat->receive.rank = owner;
    size_t n = run_floats(out);
    if (ranks_receive_op(m, &seat->receive, seat->in, ask_bytes(n),
                       (enum ranks_tag)(TAG_ANSWER + number)))
        ranks_send_op(m, &seat->send, out, ask_bytes(out->fetch ? 0 : n), TAG_ASK);
    m->moved = true;
}

/* Of all other owners in turn, while there are seats. */
static void ask_all(struct ranks *m)
{
    struct ranks_elastic *e = m->elastic;
    int size = m->place.size;

    for (int tries = 0; tries < size && !e->bad && !e->stopped && !m->f.status; tries++) {
        struct seat *seat = free_seat(e);
        if (!seat)
            return;
        e->next_owner = (e->next_owner + 1) % size;
        if (e->next_owner == m->f.rank || !more_of(m, e->next_owner))
            continue;
        ask(m, seat, e->next_owner);
        tries = -1;
    }
}

/* A piece of the own slice; a part for each of its runs would be many, so one run at a time. */
static bool move_own(struct ranks *m, struct fabric_part *part)
{
    struct ranks_elastic *e = m->elastic;
    size_t *at = &e->cursors[m->f.rank];

    while (!e->bad && !e->stopped && more_of(m, m->f.rank)) {
        const float *p;
        size_t end = ranks_slice_at(m->n, m->place.size, m->f.rank + 1), from = *at;
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

/* --- what comes back --- */

static struct seat *answered_seat(struct ranks_elastic *e)
{
    for (int k = 0; k < SEATS; k++) {
        struct seat *seat = &e->seats[k];
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
        if (e->seats[k].taken)
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

    free_stale(e);
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
    if (!e->fetch && move_own(m, part))
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
            late |= m->elastic->seats[k].taken && m->elastic->seats[k].receive.rank == rank;
        if (late)
            awaited_add(awaited, rank);
    }
}
