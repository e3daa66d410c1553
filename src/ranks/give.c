/* SPDX-License-Identifier: MIT */
/* A version of the state, from a rank that holds it to one that lacks it, while all
 * others go on. Only where ranks come and go. What is wanted depends on who wants it:
 *
 *   LIST     of a rank at its end: what is merged in the version, for it takes part in
 *            no more rounds with its own floats; of one that brings a state for all; and
 *            of any where no round has been yet
 *   RESULT   of a rank that was in the round which left the version, and did not see the
 *            round's end: the mean, bit for bit
 *   STATE    of all others: the vector, the outer vectors, and the centre
 *
 * The taker asks for each piece by its number, some at once. The giver keeps nothing of a
 * transfer: an answer says what it is of, and where that is not what the pieces before it
 * were of, the taker begins again. The vector of a state is what the giver has arrived
 * with, or the centre; a giver that has not arrived answers when it has.
 *
 * Piece 0 has the list of what is merged; the floats follow it.
 *
 * Run by whoever holds the round machine. */
#include "fabric/vector.h"
#include "ranks/ranks.h"

#include <stddef.h>
#include <string.h>

enum { SERVED = 4, TAKEN = 4 * RANKS_DEPTH /* some may be with a giver that is silent */ };

struct want {
    struct ledger_version version;
    uint64_t transfer;          /* of the taker's, from 1 */
    uint32_t which, piece;
};

struct answer {
    struct ledger_version version;      /* {0, 0}: the giver has nothing of the kind */
    uint64_t transfer, content; /* content: alike in all pieces of one state */
    uint64_t n, note;           /* n: floats of a result */
    uint32_t which, piece;
    uint64_t center_state;
    float floats[];             /* or, of piece 0, entries */
};

/* A piece that this rank takes. */
struct taken {
    struct ranks_op ask, receive;
    struct want want;
    struct answer *answer;
};

/* A piece that it gives. */
struct given {
    struct ranks_op receive, answer;
    struct want want;
    struct answer *out;
    uint64_t generation;        /* of the process that asked */
    bool waits;                 /* for what is wanted to be there */
    struct given *parked;       /* the next in the list of those */
};

struct ranks_give {
    struct taken taken[TAKEN];
    struct given *given[SERVED];
    struct given *parked;       /* an answer is on its way to one that is silent; another has
                                   the place */
    struct ledger_version version;      /* wanted; epoch 0: nothing is */
    enum ranks_version which;
    int donor;
    uint64_t donor_generation;
    uint64_t transfer, content, note, n;
    size_t pieces, asked, came;
    int open;                   /* pieces of this transfer that are asked for and have not come */
    bool listening, whole;
    struct ledger_entry *merged;        /* (size) */
};

static void free_given(struct given *g)
{
    if (g)
        memory_give(g->out);
    memory_give(g);
}

/* --- what a version consists of --- */

static size_t most_bytes(const struct ranks *m)
{
    size_t floats = ranks_lane_floats(m) * sizeof(float);
    size_t list = (size_t)m->place.size * sizeof(struct ranks_entry);
    return sizeof(struct answer) + (floats > list ? floats : list);
}

static size_t vectors(const struct ranks *m, enum ranks_version which)
{
    return which == VERSION_LIST     ? 0
           : which == VERSION_RESULT ? 1
                                     : 1 + (size_t)m->n_outer + (m->f.center != NULL);
}

static size_t pieces_each(const struct ranks *m, uint64_t n)
{
    size_t floats = ranks_lane_floats(m);
    return (n + floats - 1) / floats;
}

static size_t count_pieces(const struct ranks *m, enum ranks_version which, uint64_t n)
{
    return 1 + vectors(m, which) * pieces_each(m, n);
}

/* Of piece `piece`, from 1: the vector that it is of, and where it lies there. */
static size_t place_of(const struct ranks *m, size_t piece, uint64_t n, struct chunk *chunk)
{
    size_t each = pieces_each(m, n), floats = ranks_lane_floats(m);
    size_t at = (piece - 1) % each * floats;

    *chunk = (struct chunk){at, n - at < floats ? n - at : floats};
    return (piece - 1) / each;
}

/* --- giving --- */

static bool same(struct ledger_version a, struct ledger_version b)
{
    return a.epoch == b.epoch && a.number == b.number;
}

/* A rank that gives a state to all has it in its vectors already, before the round that
 * makes it the job's. */
static bool shows_state(const struct ranks *m)
{
    bool own = m->stage == STAGE_ARRIVED && !m->state_waits &&
               (m->x.kind != EXCHANGE_STATE || m->x.final);

    return !m->round.active && (m->f.center || own);
}

enum verdict { GIVES, WAITS, HAS_NONE };

static enum verdict can_give(const struct ranks *m, const struct want *want)
{
    struct ledger_version held = ledger_view(m->ledger).held;

    if (!same(held, want->version))
        return HAS_NONE;
    if (want->which == VERSION_RESULT)
        return m->result_series == ledger_series_of(held) && !m->round.active ? GIVES : HAS_NONE;
    return want->which == VERSION_LIST || shows_state(m) ? GIVES : WAITS;
}

static size_t write_list(const struct ranks *m, struct answer *out)
{
    struct ranks_entry *entries = (struct ranks_entry *)(void *)out->floats;

    ledger_merged(m->ledger, m->list);
    for (int k = 0; k < m->place.size; k++)
        entries[k] = (struct ranks_entry){.rank = k,
                                          .generation = m->list[k].generation,
                                          .seq = m->list[k].seq};
    return (size_t)m->place.size * sizeof *entries;
}

static size_t write_floats(const struct ranks *m, struct answer *out)
{
    const float *center = m->f.center;
    struct chunk chunk;
    size_t which = place_of(m, out->piece, out->n, &chunk);

    if (out->which == VERSION_RESULT)
        memcpy(out->floats, m->mean + chunk.from, chunk.n * sizeof(float));
    else if (which == 0 && !center)
        vector_gather(m->x.in, chunk, out->floats, false);
    else if (which == 0 || which > (size_t)m->n_outer)
        memcpy(out->floats, center + chunk.from, chunk.n * sizeof(float));
    else
        memcpy(out->floats, m->f.outer[which - 1] + chunk.from, chunk.n * sizeof(float));
    return chunk.n * sizeof(float);
}

static void answer(struct ranks *m, struct given *g)
{
    enum verdict verdict = can_give(m, &g->want);
    struct answer *out = g->out;
    size_t bytes = 0;

    g->waits = verdict == WAITS;
    if (g->waits)
        return;
    *out = (struct answer){.transfer = g->want.transfer, .which = g->want.which,
                           .piece = g->want.piece};
    out->center_state = m->center_state;
    out->n = g->want.which == VERSION_RESULT ? m->result_n : m->n;
    if (verdict == GIVES && g->want.piece < count_pieces(m, g->want.which, out->n)) {
        out->version = g->want.version;
        out->content = g->want.which == VERSION_STATE && !m->f.center ? m->seq : 0;
        out->note = m->x.note;
        bytes = out->piece ? write_floats(m, out) : write_list(m, out);
    }
    ranks_send_op(m, &g->answer, out, sizeof *out + bytes, TAG_VERSION);
}

static void listen(struct ranks *m, struct given *g)
{
    g->receive.rank = LINK_ANY;
    ranks_receive_any(m, &g->receive, &g->want, sizeof g->want, TAG_WANT);
}

static void wanted(struct ranks *m, struct ranks_op *op, const struct link_ended *ended)
{
    struct given *g = m->give->given[op->slot];

    op->busy = false;
    if (ended->failed) {                /* of another length */
        listen(m, g);
        return;
    }
    g->answer.rank = ended->from;
    g->generation = m->peers[ended->from].generation;
    if (ended->bytes != sizeof g->want || g->want.which > VERSION_STATE) {
        ranks_refuse(m, ended->from, "it wants what is no piece of a state");
        listen(m, g);
        return;
    }
    answer(m, g);
}

static void answered(struct ranks *m, struct ranks_op *op, const struct link_ended *ended)
{
    struct given *g = (struct given *)(void *)((char *)op - offsetof(struct given, answer));
    struct given **at = &m->give->parked;

    (void)ended;
    op->busy = false;
    while (*at && *at != g)
        at = &(*at)->parked;
    if (!*at) {
        listen(m, g);
        return;
    }
    *at = g->parked;
    free_given(g);
}

static struct given *make_given(const struct ranks *m, unsigned slot)
{
    struct given *g = memory_take(sizeof *g);

    if (!g)
        return NULL;
    g->receive = (struct ranks_op){.ended = wanted, .slot = slot, .even_failed = true};
    g->answer = (struct ranks_op){.ended = answered, .slot = slot, .even_failed = true};
    if ((g->out = memory_take(most_bytes(m))))
        return g;
    free_given(g);
    return NULL;
}

static void park(struct ranks *m, unsigned slot)
{
    struct ranks_give *give = m->give;
    struct given *g = give->given[slot], *other;

    if (!g->answer.busy || m->now_ns - m->peers[g->answer.rank].heard_ns < m->dead_ns ||
        !(other = make_given(m, slot)))
        return;
    g->parked = give->parked;
    give->parked = g;
    give->given[slot] = other;
    listen(m, other);
}

/* --- taking --- */

/* A result is worth something to the exchange that the round was of, upon the version
 * that the round was upon. */
static enum ranks_version choose(const struct ranks *m, struct ledger_version version)
{
    const struct ranks_round *r = &m->round;
    struct ledger_version held = ledger_view(m->ledger).held;
    bool was_in = r->series == ledger_series_of(version) && r->ours &&
                  r->base == ledger_series_of(held) && !m->state_waits;
    bool brings = m->has_state && m->x.kind == EXCHANGE_STATE &&
                  (m->stage == STAGE_LOOK || m->stage == STAGE_ARRIVED);

    if (!version.number || m->left || brings || (m->x.final && !(was_in && r->final)))
        return VERSION_LIST;
    return was_in && r->kind == EXCHANGE_MEAN ? VERSION_RESULT : VERSION_STATE;
}

static void begin_transfer(struct ranks_give *give)
{
    give->transfer++;
    give->asked = give->came = 0;
    give->open = 0;
    give->pieces = 1;
    give->whole = false;
}

void ranks_give_want(struct ranks *m, struct ledger_version version, int donor)
{
    struct ranks_give *give = m->give;
    enum ranks_version which = choose(m, version);
    bool goes_on = same(give->version, version) && (give->donor == donor || give->came) &&
                   (which != VERSION_LIST || give->which == which) &&
                   m->peers[give->donor].generation == give->donor_generation;

    if (goes_on)
        return;
    give->version = version;
    give->donor = donor;
    give->donor_generation = m->peers[donor].generation;
    give->which = which;
    begin_transfer(give);
}

static void stop(struct ranks_give *give)
{
    give->transfer++;
    give->version = (struct ledger_version){0, 0};
    give->whole = false;
}

/* The ledger may have come to the version by itself, or want another one now. */
static bool is_wanted(const struct ranks *m)
{
    const struct ranks_give *give = m->give;
    return give->version.epoch && same(give->version, ledger_view(m->ledger).wanted);
}

static float *goes_to(struct ranks *m, size_t piece, struct chunk *chunk)
{
    const struct ranks_give *give = m->give;
    size_t which = place_of(m, piece, give->n, chunk);

    if (which == 0)
        return (give->which == VERSION_RESULT ? m->mean : m->result) + chunk->from;
    return (which <= (size_t)m->n_outer ? m->state_outer[which - 1] : m->state_center) +
           chunk->from;
}

/* Each rank is there once, in order. */
static bool read_list(struct ranks *m, const struct answer *a, size_t bytes)
{
    const struct ranks_entry *entries = (const struct ranks_entry *)(const void *)a->floats;
    struct ranks_give *give = m->give;

    if (bytes != (size_t)m->place.size * sizeof *entries)
        return false;
    for (int k = 0; k < m->place.size; k++) {
        if (entries[k].rank != k)
            return false;
        give->merged[k] = (struct ledger_entry){entries[k].generation, entries[k].seq};
    }
    if (a->n > (give->which == VERSION_RESULT ? m->room : m->n) ||
        (give->which == VERSION_STATE && a->n != m->n))
        return false;
    give->n = a->n;
    give->note = a->note;
    m->give_state = a->center_state;
    give->content = a->content;
    give->pieces = count_pieces(m, give->which, a->n);
    return true;
}

static bool read_floats(struct ranks *m, const struct answer *a, size_t bytes)
{
    struct chunk chunk;
    float *to = goes_to(m, a->piece, &chunk);

    if (bytes != chunk.n * sizeof(float))
        return false;
    m->result_series = 0;
    memcpy(to, a->floats, bytes);
    return true;
}

/* False: the sender breaks the protocol. */
static bool take(struct ranks *m, const struct taken *t, size_t bytes)
{
    struct ranks_give *give = m->give;
    const struct answer *a = t->answer;

    if (bytes < sizeof *a)
        return false;
    if (a->transfer != give->transfer || give->whole)
        return true;                    /* of a transfer before this one */
    give->open--;
    if (!is_wanted(m)) {
        stop(give);
        return true;
    }
    if (m->round.active) {              /* it may end before the transfer */
        begin_transfer(give);
        return true;
    }
    if (!same(a->version, give->version) && give->which == VERSION_RESULT) {
        give->which = VERSION_STATE;    /* a giver that came later has no result */
        begin_transfer(give);
        return true;
    }
    if (!same(a->version, give->version)) {
        stop(give);                     /* the ledger knows better by now, or will */
        return true;
    }
    if (a->which != give->which || a->piece >= give->pieces || (a->piece && !give->came))
        return false;
    if (a->piece && (a->content != give->content || a->n != give->n)) {
        begin_transfer(give);
        return true;
    }
    bytes -= sizeof *a;
    if (!(a->piece ? read_floats(m, a, bytes) : read_list(m, a, bytes)))
        return false;
    give->whole = ++give->came == give->pieces;
    return true;
}

static bool receive_answer(struct ranks *m, struct taken *t)
{
    return ranks_receive_any(m, &t->receive, t->answer, most_bytes(m), TAG_VERSION);
}

/* Answers to what was asked for before come first, to receives that were meant for
 * others. */
static void came(struct ranks *m, struct ranks_op *op, const struct link_ended *ended)
{
    struct ranks_give *give = m->give;
    struct taken *t = &give->taken[op->slot];
    int open = 0;

    op->busy = false;
    if (!take(m, t, ended->bytes)) {
        ranks_refuse(m, ended->from, "it gives what is no piece of a state");
        return;
    }
    for (int i = 0; i < TAKEN; i++)
        open += give->taken[i].receive.busy && give->taken[i].receive.rank == give->donor;
    if (ended->from == give->donor && open < give->open)
        receive_answer(m, t);
}

static void asked(struct ranks *m, struct ranks_op *op, const struct link_ended *ended)
{
    (void)m;
    (void)ended;
    op->busy = false;
}

/* A state is written where the last result is, which the caller has until it begins its
 * next exchange. */
static bool may_take(struct ranks *m)
{
    const struct ranks_give *give = m->give;

    if (!is_wanted(m) || give->whole || m->round.active)
        return false;
    if (give->which != VERSION_STATE || m->stage == STAGE_ARRIVED)
        return true;
    m->called |= m->stage == STAGE_IDLE;
    return false;
}

/* Piece 0 alone first: it says how many there are. */
static void ask(struct ranks *m)
{
    struct ranks_give *give = m->give;

    for (int i = 0; i < TAKEN && give->asked < give->pieces && give->open < RANKS_DEPTH; i++) {
        struct taken *t = &give->taken[i];
        if (t->ask.busy || t->receive.busy)
            continue;
        if (!t->answer && !(t->answer = memory_take(most_bytes(m)))) {
            ranks_fail(m, DESCANT_MEMORY, "no memory to take a state");
            return;
        }
        give->open++;
        t->want = (struct want){give->version, give->transfer, give->which,
                                (uint32_t)give->asked++};
        t->ask.rank = t->receive.rank = give->donor;
        if (!receive_answer(m, t) ||
            !ranks_send_op(m, &t->ask, &t->want, sizeof t->want, TAG_WANT))
            return;
        m->moved = true;
    }
}

void ranks_give_step(struct ranks *m)
{
    struct ranks_give *give = m->give;

    if (!give)
        return;
    for (unsigned i = 0; i < SERVED; i++) {
        park(m, i);
        struct given *g = give->given[i];
        bool gone = g->waits && (!g->generation ||
                                 g->generation != m->peers[g->answer.rank].generation);
        g->waits &= !gone;
        if (!give->listening || gone)
            listen(m, g);
        else if (g->waits)
            answer(m, g);
    }
    give->listening = true;
    if (may_take(m))
        ask(m);
}

bool ranks_give_came(struct ranks *m, struct ledger_version *version,
                     enum ranks_version *which, uint64_t *note)
{
    struct ranks_give *give = m->give;

    if (!give || !give->whole || !is_wanted(m))
        return false;
    memcpy(m->list, give->merged, (size_t)m->place.size * sizeof *m->list);
    *version = give->version;
    *which = give->which;
    *note = give->note;
    if (give->which == VERSION_RESULT)
        m->result_n = give->n;
    stop(give);
    return true;
}

/* --- memory --- */

descant_status ranks_give_init(struct ranks *m)
{
    struct ranks_give *give = m->give = memory_take(sizeof *give);
    bool had = give && (give->merged = memory_take_array((size_t)m->place.size,
                                                         sizeof *give->merged));

    for (unsigned i = 0; had && i < TAKEN; i++) {
        give->taken[i].ask = (struct ranks_op){.ended = asked, .slot = i};
        give->taken[i].receive = (struct ranks_op){.ended = came, .slot = i};
    }
    for (unsigned i = 0; had && i < SERVED; i++)
        had = (give->given[i] = make_given(m, i)) != NULL;
    return had ? DESCANT_OK : DESCANT_MEMORY;
}

void ranks_give_fini(struct ranks *m)
{
    if (!m->give)
        return;
    for (int i = 0; i < TAKEN; i++)
        memory_give(m->give->taken[i].answer);
    for (int i = 0; i < SERVED; i++)
        free_given(m->give->given[i]);
    while (m->give->parked) {
        struct given *g = m->give->parked;
        m->give->parked = g->parked;
        free_given(g);
    }
    memory_give(m->give->merged);
    memory_give(m->give);
}
