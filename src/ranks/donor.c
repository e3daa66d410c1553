/* SPDX-License-Identifier: MIT */
/* The donor of a version: it gives pieces of what it holds to ranks that want them
 * (versions.c), and keeps nothing of a transfer. An answer says which version its piece
 * is of; a version that is not held here is answered by {0, 0}.
 *
 * The vector of a state is what the donor has arrived with, so a want waits until the
 * donor has arrived. Where there is a centre it is the centre, with which the taker's own
 * vector begins, too. Where late members carry their work it is the outer vectors, from
 * when the caller has made them of one round until it is told of the next, or such as
 * have come and wait for the caller. No taker holds up the others: a want that waits, and
 * an answer that a silent taker does not take, are parked (messages.c bounds how many
 * are).
 *
 * A newcomer comes first: while pieces of a state are on their way, few pieces of elastic
 * exchanges leave. The link carries the same bytes in any order, and a newcomer does not
 * train before it has the last one.
 *
 * All of this runs in the thread that holds the round machine. */
#include "kernels/vector.h"
#include "ranks/versions.h"

#include <string.h>

enum {
    SERVED = RANKS_FETCHED,
    STATE_SHARE = 32,   /* pieces of a state, for each piece of an elastic exchange */
    PAUSE = 100         /* a state of which no piece has left for dead / 100 is not on its
                           way */
};

/* A piece that another rank wants of this one. */
struct served_want {
    struct ranks_request request;
    uint64_t generation;        /* of the asking process */
    bool waits;                 /* for the wanted piece */
    uint64_t answered_ns;       /* when the answer left */
};

struct ranks_donor {
    struct served_want *served[SERVED];
    struct ranks_requests all;
    uint64_t given, gave_ns;    /* pieces of states that have left; the last one did */
    uint64_t let_given;         /* when a piece of an exchange was let through */
};

/* --- the pieces of a version --- */

/* The same number in all ranks, whichever of them are there. */
static size_t piece_floats(const struct ranks *m)
{
    size_t room = ranks_piece_room(m), most = ranks_piece_most((size_t)m->place.size);
    return room < most ? room : most;
}

size_t ranks_version_bytes(const struct ranks *m)
{
    size_t floats = piece_floats(m) * sizeof(float);
    size_t list = (size_t)m->place.size * sizeof(struct ranks_entry);
    return sizeof(struct version_answer) + (floats > list ? floats : list);
}

static size_t vectors(const struct ranks *m, enum ranks_version which)
{
    return which == VERSION_LIST    ? 0
           : which == VERSION_STATE ? !m->carries + (size_t)m->n_outer
                                    : 1;
}

static size_t pieces_each(const struct ranks *m, uint64_t n)
{
    size_t floats = piece_floats(m);
    return (n + floats - 1) / floats;
}

size_t ranks_version_count(const struct ranks *m, enum ranks_version which, uint64_t n)
{
    return 1 + vectors(m, which) * pieces_each(m, n);
}

/* Pieces follow each other vector by vector, from 1 on. */
size_t ranks_version_place(const struct ranks *m, size_t piece, uint64_t n,
                       struct chunk *chunk)
{
    size_t each = pieces_each(m, n), floats = piece_floats(m);
    size_t at = (piece - 1) % each * floats;

    *chunk = (struct chunk){at, n - at < floats ? n - at : floats};
    return (piece - 1) / each;
}

/* --- wants --- */

/* Whether this rank's vectors, or the centre, are the state of the version that it holds.
 * A rank that brings a state for all has that state in its vectors already, before the
 * round that makes it the job's. */
static bool shows_state(const struct ranks *m)
{
    bool own = m->stage == STAGE_ARRIVED && !m->held.state_waits && !m->gradients &&
               (m->x.kind != EXCHANGE_STATE || m->x.final);

    if (ledger_view(m->ledger).hollow)
        return false;
    if (m->carries)             /* of this rank, or a base that waits for its caller */
        return m->held.state_waits || (m->outer_set && !m->f.outer_loads);
    return !m->round.active && (m->f.center || own);
}

/* The outer vectors will not be those of the version any more: the caller has left in the
 * midst of a part, or brings a state for all. */
static bool shows_never(const struct ranks *m)
{
    bool brings = m->x.kind == EXCHANGE_STATE && !m->x.final && m->has_state &&
                  (m->stage == STAGE_LOOK || m->stage == STAGE_ARRIVED);

    return m->carries && (brings || m->f.outer_loads || !m->quorum.leavers_give);
}

enum verdict { HAS, WAITS, HAS_NONE };

static enum verdict look_for(const struct ranks *m, const struct version_want *want)
{
    struct ledger_version held = ledger_view(m->ledger).held;

    if (want->which == VERSION_ROWS)
        return !m->base.rows || !ledger_same(m->base.held, want->version) ? HAS_NONE
               : m->base.moves                                     ? WAITS
                                                                   : HAS;
    if (!ledger_same(held, want->version))
        return HAS_NONE;
    if (want->which == VERSION_RESULT)
        return m->held.mean != ledger_series_of(held) || m->round.active ? HAS_NONE : HAS;
    if (want->which == VERSION_LIST || shows_state(m))
        return HAS;
    return shows_never(m) ? HAS_NONE : WAITS;
}

static size_t write_list(const struct ranks *m, struct version_answer *out)
{
    struct ranks_entry *entries = (struct ranks_entry *)(void *)out->floats;

    bool rows = out->which == VERSION_ROWS;
    const struct ledger_entry *list = rows ? m->base.merged : m->list;

    ledger_merged(m->ledger, m->list);
    for (int k = 0; k < m->place.size; k++)
        entries[k] = (struct ranks_entry){.rank = k, .generation = list[k].generation,
                                          .seq = list[k].seq};
    return (size_t)m->place.size * sizeof *entries;
}

static size_t write_floats(const struct ranks *m, struct version_answer *out)
{
    const float *center = m->f.center;
    struct chunk chunk;
    size_t which = ranks_version_place(m, out->piece, out->n, &chunk);

    if (out->which == VERSION_ROWS)
        vector_gather(m->base.rows, chunk, out->floats, false);
    else if (out->which == VERSION_RESULT)
        memcpy(out->floats, m->mean + chunk.from, chunk.n * sizeof(float));
    else if (m->carries)
        memcpy(out->floats, (m->held.state_waits ? m->state_outer : m->f.outer)[which] +
               chunk.from, chunk.n * sizeof(float));
    else if (which == 0 && !center)
        vector_gather(m->x.in, chunk, out->floats, false);
    else
        memcpy(out->floats, (which ? m->f.outer[which - 1] : center) + chunk.from,
               chunk.n * sizeof(float));
    return chunk.n * sizeof(float);
}

static uint64_t floats_of(const struct ranks *m, const struct version_want *want)
{
    return want->which == VERSION_RESULT                  ? m->held.mean_n
           : want->which == VERSION_ROWS && m->base.rows ? m->base.rows->n
                                                          : m->n;
}

static void serve(struct ranks *m, struct served_want *s)
{
    const struct version_want *want = s->request.in;
    enum verdict verdict = look_for(m, want);
    struct version_answer *out = s->request.out;
    size_t bytes = 0;

    s->waits = verdict == WAITS;
    if (s->waits) {
        m->called |= m->stage == STAGE_IDLE && !m->f.center;
        return;
    }
    *out = (struct version_answer){.transfer = want->transfer, .which = want->which,
                           .piece = want->piece, .center_state = m->held.center};
    out->n = floats_of(m, want);
    if (verdict == HAS && want->piece < ranks_version_count(m, want->which, out->n)) {
        out->version = want->version;
        bool vector = want->which == VERSION_STATE && !m->f.center && !m->carries;
        out->content = vector ? m->seq : 0;
        out->note = !m->carries          ? m->x.note
                    : m->held.state_waits ? m->held.note
                                          : m->f.outer_note;
        bytes = out->piece ? write_floats(m, out) : write_list(m, out);
    }
    if (out->which == VERSION_STATE && bytes && out->piece) {
        m->donor->given++;
        m->donor->gave_ns = m->now_ns;
    }
    s->answered_ns = m->now_ns;
    ranks_send_op(m, &s->request.send, out, sizeof *out + bytes, TAG_VERSION);
}

/* Makes the place free for another want as soon as it can be: a want that waits is
 * parked, and so is an answer that left `dead` ago, whose taker is silent, slow, or takes
 * nothing. */
static void go_on(struct ranks *m, unsigned slot)
{
    struct ranks_donor *d = m->donor;
    struct served_want *s = d->served[slot];
    struct ranks_request *r = &s->request;
    bool slow = r->send.busy && m->now_ns - s->answered_ns >= m->dead_ns;

    if (r->receive.busy || (r->send.busy && !slow))
        return;
    if (s->waits || slow)
        s = ranks_request_park(m, &d->all, r);
    if (!s)
        return;
    d->served[slot] = s;
    r = &s->request;
    r->receive.rank = LINK_ANY;
    ranks_receive_any(m, &r->receive, r->in, sizeof(struct version_want), TAG_WANT);
}

static void wanted(struct ranks *m, struct ranks_op *op, const struct link_ended *ended)
{
    struct served_want *s = op->of;
    const struct version_want *want = s->request.in;

    op->busy = false;
    if (ended->failed) {                /* of another length */
        go_on(m, op->slot);
        return;
    }
    s->request.send.rank = ended->from;
    s->generation = m->peers[ended->from].generation;
    if (ended->bytes == sizeof *want && want->which <= VERSION_ROWS)
        serve(m, s);
    else
        ranks_refuse(m, ended->from, "it wants no piece of a state");
    go_on(m, op->slot);
}

static void served(struct ranks *m, struct ranks_op *op, const struct link_ended *ended)
{
    struct served_want *s = op->of;

    (void)ended;
    op->busy = false;
    if (s->request.parked)
        ranks_request_release(&m->donor->all, &s->request);
    else
        go_on(m, op->slot);
}

/* Serves a want that waited, if the process that sent it is still there. */
static void serve_again(struct ranks *m, struct served_want *s)
{
    if (s->generation && s->generation == m->peers[s->request.send.rank].generation)
        serve(m, s);
    else
        s->waits = false;
    if (!s->waits)
        ranks_request_release(&m->donor->all, &s->request);
}

bool ranks_donor_gives(const struct ranks *m)
{
    const struct ranks_donor *d = m->donor;
    return d && d->given && m->now_ns < d->gave_ns + m->dead_ns / PAUSE;
}

bool ranks_donor_first(struct ranks *m)
{
    struct ranks_donor *d = m->donor;

    if (!ranks_donor_gives(m))
        return false;
    if (d->given < d->let_given + STATE_SHARE)
        return true;
    d->let_given = d->given;
    return false;
}

void ranks_donor_step(struct ranks *m)
{
    struct ranks_request *next;

    for (struct ranks_request *r = m->donor->all.parked; r; r = next) {
        struct served_want *s = (struct served_want *)(void *)r;
        next = r->next;
        if (s->waits)
            serve_again(m, s);
    }
    for (unsigned i = 0; i < SERVED; i++) {
        if (m->donor->served[i]->waits)
            serve_again(m, m->donor->served[i]);
        go_on(m, i);
    }
}

/* --- memory --- */

descant_status ranks_donor_init(struct ranks *m)
{
    struct ranks_donor *d = m->donor = memory_take(sizeof *d);
    bool had = d != NULL;

    if (!had)
        return DESCANT_MEMORY;
    d->all = (struct ranks_requests){.record = sizeof(struct served_want),
                                     .out_bytes = ranks_version_bytes(m),
                                     .in_bytes = sizeof(struct version_want),
                                     .sent = served, .received = wanted};
    for (unsigned i = 0; had && i < SERVED; i++)
        had = (d->served[i] = ranks_request_make(&d->all, i)) != NULL;
    return had ? DESCANT_OK : DESCANT_MEMORY;
}

void ranks_donor_fini(struct ranks *m)
{
    struct ranks_donor *d = m->donor;

    if (!d)
        return;
    for (int i = 0; i < SERVED; i++)
        memory_give(d->served[i]);
    ranks_requests_fini(&d->all);
    memory_give(d);
}
