/* SPDX-License-Identifier: MIT */
/* The centre of elastic exchanges at its owners. Of n floats rank j owns slice j, and
 * moves it for every rank that asks (elastic.c),
 *     W <- W + alpha (w - W),
 * a piece at a time, in every poll, and after its trainer has left.
 *
 * Where ranks come and go there are as many slices as there can be ranks. Slices of ranks
 * that are no members are drawn among the members. When an owner goes another member has
 * its slice, and goes on from the floats that it saw last, in its own last exchange or in
 * the state that it took. A rank that is asked for another's slice refuses, and the asker
 * asks the owner.
 *
 * A state gives a new centre. Asks of ranks that have had the state may come to an owner
 * before the state does: asks carry the number of the state, and wait for it. If the
 * state's epoch is over, the state was given up or is on its way here, and the ask is
 * refused: the asker asks again, with the state that it has by then.
 *
 * No peer holds up the others. SERVED asks are taken at a time; an ask that waits, and an
 * answer to a rank that is no member, are parked, and others are served in their place
 * (messages.c bounds how many are).
 *
 * All of this runs in the thread that holds the round machine. */
#include "kernels/kernels.h"
#include "ranks/elastic.h"

#include <string.h>

enum { SERVED = 8, BEFORE_AT_ONCE = 1024 };

/* An ask for a piece of this rank's slice; the answer goes out of the same memory. */
struct served_ask {
    struct ranks_request request;
    uint64_t generation;            /* of the asking process */
    bool early;                     /* waits for the state */
    bool yields;                    /* waits: this rank gives a state (donor.c) */
    uint64_t number;                /* of the ask, as they came */
};

/* A rank that asks, since ranks_center_watch: it asks for pieces in turn, so it has seen
 * all of them when it asks for the first one again. */
struct asker {
    uint64_t first;                 /* the piece's first float, + 1; 0: none was asked */
    bool has_seen;
};

struct ranks_center {
    int *owners;                    /* by slice, in the epoch that stands */
    struct asker *askers;           /* by rank */
    struct served_ask *served[SERVED];
    struct ranks_requests all;
    uint64_t asks;                  /* that have come */
};

/* A number drawn from the pair, the same in all ranks. */
static uint64_t draw(int slice, int rank)
{
    struct rng rng;

    rng_init(&rng, (uint64_t)slice << 32 | (uint64_t)rank);
    return rng_next(&rng);
}

/* The owner of a slice: the hub, if there is one. Else slice j is rank j's; if that is no
 * member, the slice is drawn among the members. So members share such slices evenly, and
 * a rank that comes or goes moves its own slices alone. */
static int draw_owner(const struct ranks *m, int slice)
{
    int owner = -1;
    uint64_t most = 0;

    if (m->hub >= 0 && m->members[m->hub])
        return m->hub;
    if (m->members[slice])
        return slice;
    for (int k = 0; k < m->place.size; k++)
        if (m->members[k] && (owner < 0 || draw(slice, k) > most)) {
            owner = k;
            most = draw(slice, k);
        }
    return owner < 0 ? m->f.rank : owner;
}

void ranks_center_changed(struct ranks *m)
{
    for (int k = 0; m->center && !m->place.fixed && k < m->place.size; k++)
        m->center->owners[k] = draw_owner(m, k);
}

int ranks_center_owner(const struct ranks *m, int slice)
{
    return m->place.fixed ? slice : m->center->owners[slice];
}

/* The last slice that begins at the float or before it (ranks_slice_at). */
int ranks_center_slice(const struct ranks *m, uint64_t at)
{
    uint64_t size = (uint64_t)m->place.size, units = (m->n + RANKS_UNIT - 1) / RANKS_UNIT;

    if (at >= m->n)
        return m->place.size - 1;
    return (int)(((at / RANKS_UNIT + 1) * size - 1) / units);
}

/* The centre moves, and p becomes the centre as it was. */
static void exchange_before(float *W, float *p, float alpha, size_t n)
{
    float old[BEFORE_AT_ONCE];

    for (size_t at = 0, some; at < n; at += some) {
        some = n - at < BEFORE_AT_ONCE ? n - at : BEFORE_AT_ONCE;
        memcpy(old, W + at, some * sizeof *old);
        kernels_best()->elastic(W + at, p + at, p + at, alpha, some);
        memcpy(p + at, old, some * sizeof *old);
    }
}

void ranks_center_answer(struct ranks *m, struct ask *ask)
{
    float *p = ask->floats;

    for (uint32_t k = 0; k < ask->n_runs; k++) {
        float *W = m->f.center + ask->from + ask->runs[k].at;
        size_t n = ask->runs[k].n;
        if (ask->fetch)
            memcpy(p, W, n * sizeof *p);
        else if (ask->before)
            exchange_before(W, p, ask->alpha, n);
        else
            kernels_best()->elastic(W, p, p, ask->alpha, n);
        p += n;
    }
}

void ranks_center_watch(struct ranks *m)
{
    if (m->center && m->center->askers)     /* or the start has failed */
        memset(m->center->askers, 0, (size_t)m->place.size * sizeof *m->center->askers);
}

bool ranks_center_seen(const struct ranks *m, int rank)
{
    return !m->center || m->center->askers[rank].has_seen;
}

/* --- asks --- */

/* Receives the next ask into the record. The receive may be open already, for a refused
 * asker may have gone. */
static void receive_ask(struct ranks *m, struct served_ask *s)
{
    if (s->request.receive.busy)
        return;
    s->request.receive.rank = LINK_ANY;
    ranks_receive_any(m, &s->request.receive, s->request.in, ask_bytes_most(m), TAG_ASK);
}

/* Whether an ask's runs lie in this rank's slice, ascending, and have as many floats as
 * came, and alpha is a number. */
static bool ask_is_good(const struct ranks *m, const struct ask *ask, size_t bytes)
{
    bool own = m->place.fixed || bytes < ask_bytes(0);
    int slice = own ? m->f.rank : ranks_center_slice(m, ask->from);
    size_t from = ranks_slice_at(m->n, m->place.size, slice), at = 0;
    size_t to = ranks_slice_at(m->n, m->place.size, slice + 1);

    if (bytes < ask_bytes(0) || ask->seat >= ASK_SEATS || ask->fetch > 1 ||
        ask->before > m->place.fixed || !(ask->alpha >= 0 && ask->alpha <= 1) ||
        ask->n_runs < 1 || ask->n_runs > ASK_RUNS || ask->from < from || ask->from > to)
        return false;
    for (uint32_t k = 0; k < ask->n_runs; k++) {
        if (ask->runs[k].n < 1 || ask->runs[k].at < at)
            return false;
        at = (size_t)ask->runs[k].at + ask->runs[k].n;
        if (at > to - ask->from || at > RANKS_PIECE)
            return false;
    }
    return bytes == ask_bytes(ask->fetch ? 0 : ask_floats(ask));
}

static bool by_member(const struct ranks *m, const struct served_ask *s)
{
    return m->place.fixed || m->members[s->request.send.rank] == s->generation;
}

static void serve(struct ranks *m, struct served_ask *s)
{
    struct ask *ask = s->request.in;
    struct asker *asker = &m->center->askers[s->request.send.rank];
    bool ahead = ask->state > m->held.center;
    bool given_up = !m->place.fixed && ahead &&
                    ask->state < ledger_series_of((struct ledger_version){
                                     ledger_view(m->ledger).epoch, 0});

    ask->refused = given_up || (!m->place.fixed &&
                                ranks_center_owner(m, ranks_center_slice(m, ask->from)) !=
                                    m->f.rank);
    s->early = ahead && !ask->refused;
    s->yields =
        !s->early && !ask->refused && !s->request.parked && ranks_donor_first(m);
    if (s->early || s->yields)
        return;
    if (!ask->refused) {
        ranks_center_answer(m, ask);
        asker->has_seen |= asker->first == ask->from + 1;
        asker->first = asker->first ? asker->first : ask->from + 1;
    }
    ranks_send_op(m, &s->request.send, ask,
                  ask_bytes(ask->refused ? 0 : ask_floats(ask)),
                  (enum ranks_tag)(TAG_ANSWER + ask->seat));
}

/* Makes the place free for another ask as soon as it can be. */
static void go_on(struct ranks *m, struct served_ask *s)
{
    bool held = s->early || (s->request.send.busy && !by_member(m, s));
    struct served_ask *next = s;

    if (held)
        next = ranks_request_park(m, &m->center->all, &s->request);
    else if (s->request.send.busy || s->yields)
        return;
    if (!next)
        return;
    m->center->served[next->request.send.slot] = next;
    receive_ask(m, next);
}

static void asked(struct ranks *m, struct ranks_op *op, const struct link_ended *ended)
{
    struct served_ask *s = op->of;

    if (ended->failed) {                /* of another length */
        receive_ask(m, s);
        return;
    }
    op->busy = s->early = s->yields = false;
    s->request.send.rank = ended->from;
    s->generation = m->peers[ended->from].generation;
    s->number = ++m->center->asks;
    if (ask_is_good(m, s->request.in, ended->bytes))
        serve(m, s);
    else
        ranks_refuse(m, ended->from,
                     "it asks for no piece of the centre of rank %d", m->f.rank);
    go_on(m, s);
}

static void answered(struct ranks *m, struct ranks_op *op, const struct link_ended *ended)
{
    struct served_ask *s = op->of;

    (void)ended;
    op->busy = false;
    if (s->request.parked)
        ranks_request_release(&m->center->all, &s->request);
    else
        receive_ask(m, s);
}

/* An ask that waited, if its process is there still. */
static void serve_again(struct ranks *m, struct served_ask *s)
{
    int rank = s->request.send.rank;

    if (m->place.fixed || (s->generation && s->generation == m->peers[rank].generation))
        serve(m, s);
    else
        s->early = s->yields = false;
    if (s->request.parked && !s->early)
        ranks_request_release(&m->center->all, &s->request);
}

void ranks_center_serve(struct ranks *m)
{
    struct ranks_request *next;

    for (struct ranks_request *r = m->center->all.parked; r; r = next) {
        struct served_ask *s = (struct served_ask *)(void *)r;
        next = r->next;
        if (s->early)
            serve_again(m, s);
    }
    for (int k = 0; k < SERVED; k++) {
        struct served_ask *s = m->center->served[k];
        if (s && s->early)
            serve_again(m, s);
        if (s && !s->request.receive.busy)
            go_on(m, s);
    }
}

/* Answers the asks that have yielded, in the order in which they came. */
void ranks_center_step(struct ranks *m)
{
    struct ranks_center *c = m->center;
    struct served_ask *first;

    do {
        first = NULL;
        for (int k = 0; c && k < SERVED; k++) {
            struct served_ask *s = c->served[k];
            if (s && s->yields && (!first || s->number < first->number))
                first = s;
        }
        if (first)
            serve_again(m, first);
        if (first)
            go_on(m, first);
    } while (first && !first->yields);
}

bool ranks_center_quiet(const struct ranks *m)
{
    const struct ranks_center *c = m->center;

    for (int k = 0; k < SERVED; k++)
        if (c->served[k] && c->served[k]->request.send.busy)
            return false;
    for (const struct ranks_request *r = c->all.parked; r; r = r->next)
        if (r->send.busy && by_member(m, (const struct served_ask *)(const void *)r))
            return false;
    return true;
}

/* --- memory --- */

descant_status ranks_center_init(struct ranks *m)
{
    struct ranks_center *c = m->center = memory_take(sizeof *c);

    if (!c ||
        !(c->owners = memory_take_array((size_t)m->place.size, sizeof *c->owners)) ||
        !(c->askers = memory_take_array((size_t)m->place.size, sizeof *c->askers)))
        return DESCANT_MEMORY;
    ranks_center_changed(m);
    c->all = (struct ranks_requests){.record = sizeof(struct served_ask),
                                     .in_bytes = ask_bytes_most(m),
                                     .sent = answered, .received = asked};
    for (unsigned k = 0; k < SERVED && m->place.size > 1; k++) {
        if (!(c->served[k] = ranks_request_make(&c->all, k)))
            return DESCANT_MEMORY;
        receive_ask(m, c->served[k]);
    }
    return DESCANT_OK;
}

void ranks_center_fini(struct ranks *m)
{
    if (!m->center)
        return;
    for (int k = 0; k < SERVED; k++)
        memory_give(m->center->served[k]);
    ranks_requests_fini(&m->center->all);
    memory_give(m->center->owners);
    memory_give(m->center->askers);
    memory_give(m->center);
}
