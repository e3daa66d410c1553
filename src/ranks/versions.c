/* SPDX-License-Identifier: MIT */
/* A rank that lacks a version of the state takes it from a donor, a rank that holds it
 * (donor.c), while all others go on. This happens where ranks come and go, or miss
 * rounds. The taker wants
 *
 *   LIST     the list of what is merged in the version, and no floats: if the taker is at
 *            its end, for its own floats are in no more rounds (not where it `carries`);
 *            if it brings a state for all; while no round has been; and where who missed
 *            a round needs nothing of it (`passes`)
 *   RESULT   the mean, bit for bit: if the taker was in the round that left the version,
 *            and did not see the round's end
 *   STATE    else: the vector, or the centre, and the outer vectors; where who missed a
 *            round carries its work on (`carries`), the outer vectors alone, with the
 *            first of which a newcomer's own vector begins
 *   ROWS     where there are tables, and before all else: the rows on which all agree,
 *            which have versions of their own (rows.c)
 *
 * The taker asks for each piece by its number, some at once. An answer says which version
 * and state its piece is of; where that is not the one of the pieces before, the taker
 * begins again. Vectors that arrive with gradients are no state, and are not given.
 *
 * Piece 0 has the list of what is merged; the floats follow it.
 *
 * All of this runs in the thread that holds the round machine. */
#include "kernels/vector.h"
#include "ranks/versions.h"

#include <inttypes.h>
#include <string.h>

/* Some of these may be with a donor that is silent. */
enum { FETCHES = 4 * RANKS_FETCHED };

/* A piece that this rank takes. */
struct fetch {
    struct ranks_op ask, receive;
    struct version_want want;
    struct version_answer *answer;
};

struct ranks_versions {
    struct fetch fetches[FETCHES];
    struct ranks_taken taken;   /* version {0, 0}: nothing is wanted */
    int donor;
    uint64_t donor_generation;
    uint64_t transfer, content;
    size_t pieces, asked, came;
    uint64_t answers;           /* answers that have come, in all */
    int open;                   /* pieces that are asked for and have not come */
    bool whole;
    struct ledger_version later;        /* wanted once the rows are here, and its donor */
    int later_donor;
    uint64_t came_ns;           /* when the last piece came */
    bool list_only;             /* the donor cannot give the version's state */
    struct ledger_version ours; /* a version that has the state which this rank brings */
    struct ledger_version stuck_at;     /* the version held while a newer one was
                                           wanted */
    uint64_t stuck_ns;                  /* since then; 0: none was wanted */
    struct ledger_entry *merged;        /* (size) */
};

/* A rank may go on without the version's state where its own vectors can stand for one.
 * Vectors that arrive with gradients cannot, and where there is a centre a rank that
 * brings a state can give it, too. */
static bool may_be_hollow(const struct ranks *m)
{
    return !m->gradients && !m->f.center && !m->x.final && !m->left;
}

static enum ranks_version without_result(const struct ranks *m)
{
    if (m->passes && m->has_state)
        return VERSION_LIST;
    return m->versions->list_only && may_be_hollow(m) ? VERSION_LIST : VERSION_STATE;
}

/* Chooses the part of the version to want. A result serves only the exchange that was in
 * its round, upon the version that the round was upon. */
static enum ranks_version choose(const struct ranks *m, struct ledger_version version)
{
    const struct ranks_round *r = &m->round;
    struct ledger_version held = ledger_view(m->ledger).held;
    bool was_in = r->series == ledger_series_of(version) && r->ours &&
                  r->base == ledger_series_of(held) && !m->held.state_waits;
    bool brings = m->has_state && m->x.kind == EXCHANGE_STATE &&
                  (m->stage == STAGE_LOOK || m->stage == STAGE_ARRIVED);

    /* else another rank's state was made the job's */
    brings &= !(was_in && r->kind == EXCHANGE_STATE);
    brings &= !ledger_same(m->versions->ours, version);
    brings &= !(m->carries && m->x.final);
    bool at_end = m->left || (m->x.final && !(was_in && r->final));
    if (!version.number || brings || (at_end && !m->carries))
        return VERSION_LIST;
    if (was_in && r->kind == EXCHANGE_MEAN)
        return VERSION_RESULT;
    return without_result(m);
}

static void begin_transfer(struct ranks_versions *v)
{
    v->transfer++;
    v->asked = v->came = 0;
    v->open = 0;
    v->pieces = 1;
    v->whole = false;
}

static void want(struct ranks *m, struct ledger_version version, int donor,
                 enum ranks_version which)
{
    struct ranks_versions *v = m->versions;
    bool rows = which == VERSION_ROWS, had_rows = v->taken.which == VERSION_ROWS;
    bool same_kind =
        rows == had_rows && (which != VERSION_LIST || v->taken.which == which);
    /* the donor may have gone, or have no state to give any more, without a word */
    bool gives = m->now_ns - v->came_ns < m->dead_ns;
    bool goes_on = ledger_same(v->taken.version, version) && same_kind &&
                   (v->donor == donor || (v->came && !rows && gives)) &&
                   m->peers[v->donor].generation == v->donor_generation;

    if (goes_on)
        return;
    v->taken.version = version;
    v->donor = donor;
    v->donor_generation = m->peers[donor].generation;
    v->taken.which = which;
    begin_transfer(v);
}

/* Whether no rank can give this one the version. A member waits for the end of its own
 * round, which may still come; a newcomer has none. */
static bool is_stuck(struct ranks *m)
{
    struct ranks_versions *v = m->versions;
    struct ledger_view view = ledger_view(m->ledger);

    if (!ledger_same(v->stuck_at, view.held) || !v->stuck_ns)
        v->stuck_ns = m->now_ns;
    v->stuck_at = view.held;
    return !view.member || m->now_ns - v->stuck_ns >= m->dead_ns;
}

static void want_chosen(struct ranks *m, struct ledger_version version, int donor)
{
    enum ranks_version which = choose(m, version);

    if (which == VERSION_STATE && m->gradients && is_stuck(m))
        ranks_fail(m, DESCANT_UNSUPPORTED,
                   "rank %d has no part in round %" PRIu64
                   ": rounds are of gradients, so no rank can give it the parameters; "
                   "start all ranks of the job together, or choose a plan of means",
                   m->f.rank, version.number);
    else
        want(m, version, donor, which);
}

/* Rows come first: no rank without them is a member. */
void ranks_versions_want(struct ranks *m, const struct ledger_decision *fetch)
{
    m->versions->later = fetch->version;
    m->versions->later_donor = fetch->about;
    m->versions->list_only = fetch->cannot_give;
    if (!m->base.wanted.epoch)
        want_chosen(m, fetch->version, fetch->about);
}

void ranks_versions_want_rows(struct ranks *m, struct ledger_version version, int donor)
{
    want(m, version, donor, VERSION_ROWS);
}

static void stop(struct ranks_versions *v)
{
    v->transfer++;
    v->open = 0;                /* no answer that still comes is waited for */
    v->taken.version = (struct ledger_version){0, 0};
    v->whole = false;
}

/* Whether the version is still wanted: the ledger may have come to it by itself, or want
 * another one now. */
static bool is_wanted(const struct ranks *m)
{
    const struct ranks_versions *v = m->versions;
    struct ledger_version version = v->taken.version;
    bool rows = v->taken.which == VERSION_ROWS;
    return version.epoch &&
           ledger_same(version, rows ? m->base.wanted : ledger_view(m->ledger).wanted);
}

/* An exchange that was given up for this one may have needed another part of the wanted
 * version. */
void ranks_versions_begun(struct ranks *m)
{
    const struct ranks_versions *v = m->versions;

    if (v && is_wanted(m) && v->taken.which != VERSION_ROWS)
        want_chosen(m, v->taken.version, v->donor);
}

static float *goes_to(struct ranks *m, size_t piece, struct chunk *chunk)
{
    const struct ranks_versions *v = m->versions;
    size_t which = ranks_version_place(m, piece, v->taken.n, chunk);
    bool outer = m->carries && v->taken.which == VERSION_STATE;

    float *vector = outer                              ? m->next_outer[which]
                    : which                            ? m->state_outer[which - 1]
                    : v->taken.which == VERSION_RESULT ? m->mean
                    : m->f.center                      ? m->state_center
                                                       : m->result;
    return vector + chunk->from;
}

/* Each rank is there once, in order. */
static bool read_list(struct ranks *m, const struct version_answer *a, size_t bytes)
{
    const struct ranks_entry *entries = (const void *)a->floats;
    struct ranks_versions *v = m->versions;

    if (bytes != (size_t)m->place.size * sizeof *entries)
        return false;
    for (int k = 0; k < m->place.size; k++) {
        if (entries[k].rank != k)
            return false;
        v->merged[k] = (struct ledger_entry){entries[k].generation, entries[k].seq};
    }
    uint64_t most = v->taken.which == VERSION_RESULT ? m->room
                    : v->taken.which == VERSION_ROWS ? m->base.rows->n
                                                     : m->n;
    if (a->n > most || (v->taken.which >= VERSION_STATE && a->n != most))
        return false;
    v->taken.n = a->n;
    v->taken.note = a->note;
    v->taken.center_state = a->center_state;
    v->content = a->content;
    v->pieces = ranks_version_count(m, v->taken.which, a->n);
    return true;
}

/* The pages of a newcomer's own vector are taken while its state comes, for merging waits
 * for them. */
static void make_ready(const struct ranks *m, struct chunk chunk)
{
    const float *p;

    for (size_t run; chunk.n; chunk.from += run, chunk.n -= run) {
        run = vector_reach(&m->segments, chunk.from, &p);
        run = run < chunk.n ? run : chunk.n;
        if (p)
            memory_ready(p, run * sizeof *p);
    }
}

static bool read_floats(struct ranks *m, const struct version_answer *a, size_t bytes)
{
    bool rows = m->versions->taken.which == VERSION_ROWS;
    struct chunk chunk;

    size_t which = ranks_version_place(m, a->piece, a->n, &chunk);
    if (bytes != chunk.n * sizeof(float))
        return false;
    if (rows) {
        vector_scatter(m->base.rows, chunk, a->floats);
        m->base.came_ns = m->now_ns;
        m->base.pieces++;
        return true;
    }
    m->held.mean = 0;
    memcpy(goes_to(m, a->piece, &chunk), a->floats, bytes);
    if (which == 0 && !m->has_state)
        make_ready(m, chunk);
    return true;
}

/* Whether the state that this rank brings was in a round whose end this rank has not
 * seen, and which other rounds have followed. If it brought that state again, their work
 * would be lost. */
static bool is_overtaken(const struct ranks *m)
{
    const struct ranks_versions *v = m->versions;
    struct ledger_entry own = v->merged[m->f.rank];

    return v->taken.which == VERSION_LIST && v->taken.version.number && !v->list_only &&
           m->has_state && m->stage == STAGE_ARRIVED && m->x.kind == EXCHANGE_STATE &&
           !m->x.final && m->brought == m->seq &&
           own.generation == m->place.generation && own.seq >= m->brought_as;
}

/* False: the sender breaks the protocol. */
static bool take(struct ranks *m, int from, const struct fetch *t, size_t bytes)
{
    struct ranks_versions *v = m->versions;
    const struct version_answer *a = t->answer;

    if (bytes < sizeof *a)
        return false;
    if (from != v->donor || a->transfer != v->transfer || v->whole)
        return true;                    /* the answer is of an earlier transfer */
    v->open--;
    if (!is_wanted(m)) {
        stop(v);
        return true;
    }
    /* the round may end before the transfer */
    if (m->round.active && v->taken.which != VERSION_ROWS) {
        begin_transfer(v);
        return true;
    }
    if (!ledger_same(a->version, v->taken.version) && v->taken.which == VERSION_RESULT) {
        v->taken.which = without_result(m);    /* the donor came later and has no
                                                  result */
        begin_transfer(v);
        return true;
    }
    if (!ledger_same(a->version, v->taken.version)) {
        stop(v);
        if (v->taken.which != VERSION_ROWS)     /* a round of rows tells of rows */
            ledger_not_given(m->ledger);
        return true;
    }
    if (a->which != v->taken.which || a->piece >= v->pieces || (a->piece && !v->came))
        return false;
    if (a->piece && (a->content != v->content || a->n != v->taken.n)) {
        begin_transfer(v);
        return true;
    }
    bytes -= sizeof *a;
    if (!(a->piece ? read_floats(m, a, bytes) : read_list(m, a, bytes)))
        return false;
    if (is_overtaken(m)) {
        v->ours = v->taken.version;
        v->taken.which = VERSION_STATE;
        begin_transfer(v);
        return true;
    }
    v->came_ns = m->now_ns;
    v->whole = ++v->came == v->pieces;
    return true;
}

static bool receive_answer(struct ranks *m, struct fetch *t)
{
    return ranks_receive_any(m, &t->receive, t->answer, ranks_version_bytes(m),
                             TAG_VERSION);
}

/* Answers of an earlier transfer come first, to receives that were meant for this one, so
 * receives are opened again. */
static void came(struct ranks *m, struct ranks_op *op, const struct link_ended *ended)
{
    struct ranks_versions *v = m->versions;
    struct fetch *t = &v->fetches[op->slot];
    int open = 0;

    op->busy = false;
    v->answers++;
    if (!take(m, ended->from, t, ended->bytes)) {
        ranks_refuse(m, ended->from, "it sends no piece of a state");
        return;
    }
    for (int i = 0; i < FETCHES; i++)
        open += v->fetches[i].receive.busy && v->fetches[i].receive.rank == v->donor;
    if (ended->from == v->donor && open < v->open)
        receive_answer(m, t);
}

static void asked(struct ranks *m, struct ranks_op *op, const struct link_ended *ended)
{
    (void)m;
    (void)ended;
    op->busy = false;
}

/* Where the link is fixed all close together, so nobody asks who has left: but for the
 * coordinator, until all have left, since rounds are upon the version that it holds. */
static bool is_over(const struct ranks *m)
{
    return m->place.fixed && m->left && (!m->leads || m->bye);
}

/* A state is written over the last result, which the caller uses until it begins its next
 * exchange; a base into memory of its own, beside the last one, which may wait for the
 * caller. A donor that this rank has not met yet would not get what is asked. */
static bool may_take(struct ranks *m)
{
    const struct ranks_versions *v = m->versions;

    if (!is_wanted(m) || v->whole || !m->peers[v->donor].generation ||
        is_over(m))
        return false;
    if (v->taken.which == VERSION_ROWS)
        return true;
    if (m->round.active)
        return false;
    bool base = m->carries && m->has_state;
    if (v->taken.which != VERSION_STATE || base || m->stage == STAGE_ARRIVED)
        return true;
    m->called |= m->stage == STAGE_IDLE || m->stage == STAGE_ALONE;
    return false;
}

/* Piece 0 is asked for first, alone, for it tells the number of pieces. */
static void ask(struct ranks *m)
{
    struct ranks_versions *v = m->versions;

    if (v->asked == 0)          /* the donor may have been met since it was named */
        v->donor_generation = m->peers[v->donor].generation;
    for (int i = 0; i < FETCHES && v->asked < v->pieces && v->open < RANKS_FETCHED; i++) {
        struct fetch *t = &v->fetches[i];
        if (t->ask.busy || t->receive.busy)
            continue;
        if (!t->answer && !(t->answer = memory_take(ranks_version_bytes(m)))) {
            ranks_fail(m, DESCANT_MEMORY, "no memory to take a state");
            return;
        }
        v->open++;
        t->want = (struct version_want){v->taken.version, v->transfer, v->taken.which,
                                (uint32_t)v->asked++};
        t->ask.rank = t->receive.rank = v->donor;
        if (!receive_answer(m, t) ||
            !ranks_send_op(m, &t->ask, &t->want, sizeof t->want, TAG_WANT))
            return;
        m->moved = true;
    }
}

void ranks_versions_step(struct ranks *m)
{
    if (!m->versions)
        return;
    ranks_donor_step(m);
    if (may_take(m))
        ask(m);
}

bool ranks_versions_came(struct ranks *m, struct ranks_taken *taken)
{
    struct ranks_versions *v = m->versions;

    if (!v || !v->whole || !is_wanted(m) || v->taken.which == VERSION_ROWS)
        return false;
    memcpy(m->list, v->merged, (size_t)m->place.size * sizeof *m->list);
    *taken = v->taken;
    /* one that has left meanwhile, and carries, is asked for its outer vectors still */
    taken->hollow = taken->which == VERSION_LIST && taken->version.number &&
                    !(m->passes && m->has_state) &&
                    (may_be_hollow(m) || (m->carries && m->left));
    stop(v);
    return true;
}

uint64_t ranks_versions_pieces(const struct ranks *m)
{
    return m->versions ? m->versions->answers : 0;
}

bool ranks_versions_quiet(const struct ranks *m)
{
    const struct ranks_versions *v = m->versions;

    for (int i = 0; v && i < FETCHES; i++)
        if (v->fetches[i].ask.busy || v->fetches[i].receive.busy)
            return false;
    return true;
}

bool ranks_versions_rows_came(struct ranks *m)
{
    struct ranks_versions *v = m->versions;

    if (!v->whole || !is_wanted(m) || v->taken.which != VERSION_ROWS)
        return false;
    memcpy(m->base.merged, v->merged, (size_t)m->place.size * sizeof *v->merged);
    stop(v);
    if (v->later.epoch)
        want_chosen(m, v->later, v->later_donor);
    return true;
}

/* --- memory --- */

descant_status ranks_versions_init(struct ranks *m)
{
    struct ranks_versions *v = m->versions = memory_take(sizeof *v);
    size_t size = (size_t)m->place.size;
    bool had = v && (v->merged = memory_take_array(size, sizeof *v->merged));

    if (!had)
        return DESCANT_MEMORY;
    for (unsigned i = 0; i < FETCHES; i++) {
        v->fetches[i].ask = (struct ranks_op){.ended = asked, .slot = i};
        v->fetches[i].receive = (struct ranks_op){.ended = came, .slot = i};
    }
    return ranks_donor_init(m);
}

void ranks_versions_fini(struct ranks *m)
{
    struct ranks_versions *v = m->versions;

    ranks_donor_fini(m);
    if (!v)
        return;
    for (int i = 0; i < FETCHES; i++)
        memory_give(v->fetches[i].answer);
    memory_give(v->merged);
    memory_give(v);
}
