/* SPDX-License-Identifier: MIT */
/* The coordinator's side of rounds of rows, also after its trainer has left: the leaders
 * of hosts, the parts given, when a round closes, and whether all take it. rows.c has the
 * words.
 *
 * A round is decided once all ranks in it have voted, and is taken if all votes are for
 * it. The coordinator tells each rank that has the round open. Where ranks come and go
 * each epoch begins with the words of its members, and no round closes before all members
 * have said theirs. The newest round that a member holds is the job's:
 *
 *   open here, with a vote, and the job's the member takes it: all its parts are here
 *   open here else no member of this epoch holds it: it is given up another one is held a
 *   newcomer takes the rows from a member, and becomes a member once it has them
 *   (admission.c)
 *
 * While a newcomer takes the rows no round closes, or it would never have the newest;
 * trainers go on. Rounds wait `dead` for a newcomer that takes nothing more, or does not
 * become a member, and then do not wait for it for twice as long; the time of an open
 * round of vectors does not count. Nor does a round close while the next epoch is
 * founded: a newcomer that is in the epoch's list had the job's rows when it was
 * admitted.
 *
 * A hub holds no rows. It coordinates their rounds as any rank does, and is in none. Where
 * it is the last member the rows are gone, and it admits nobody.
 *
 * The coordinator numbers the rounds of its epoch from 1, so no number out of a word
 * becomes the number of a round. */
#include "ranks/check.h"

/* A rank as the coordinator sees it. */
struct rows_peer {
    int host;                       /* where the link is fixed; -1: it has left */
    bool leads, given, called, seated, voted, bad;
    uint64_t bytes;
    /* as the rank has said, or was told since */
    struct ledger_version held, open;   /* open: the round that the rank is in; epoch 0:
                                           none */
    uint64_t seq;
    /* where ranks come and go */
    uint64_t epoch;                 /* the epoch in which it has said so; 0: none */
    bool absent, asked;             /* asked: it was told that it lacks rows */
    int deaf;                       /* a donor that gives it nothing; -1: none */
    uint32_t pieces;                /* pieces of the rows that it has, */
    uint64_t moved_ns;              /* as many since then */
    /* the round of vectors for which it has waited since */
    uint64_t through;
    uint64_t slow_ns;               /* since then rounds do not wait for it; 0: they do */
    bool compared;                  /* a newcomer whose manifest is the same */
    bool comes;                     /* a newcomer that has told its rounds, in this epoch
                                       or before */
};

struct ranks_rows_lead {
    struct rows_peer *peers;        /* (size) */
    struct rows_seat *closing;      /* (hosts) */
    uint32_t n_closing;
    struct ledger_version newest;   /* the job's round, or the round that is closed and
                                       undecided */
    uint64_t last;                  /* the last number given in this epoch, also to a
                                       round that was undone */
    bool closed;
};

bool ranks_rows_lead_init(struct ranks *m)
{
    struct ranks_rows_lead *rows = m->rows_lead = memory_take(sizeof *rows);

    if (!rows)
        return false;
    rows->peers = memory_take_array((size_t)m->place.size, sizeof *rows->peers);
    rows->closing = memory_take_array((size_t)m->place.hosts, sizeof *rows->closing);
    return rows->peers && rows->closing;
}

void ranks_rows_lead_fini(struct ranks *m)
{
    if (!m->rows_lead)
        return;
    memory_give(m->rows_lead->peers);
    memory_give(m->rows_lead->closing);
    memory_give(m->rows_lead);
}

/* --- leaders and newcomers --- */

/* Whether the member's own process is there, and not a later one of its rank. */
static bool is_there(const struct ranks *m, int rank)
{
    return rank == m->f.rank || m->peers[rank].generation == m->members[rank];
}

static bool is_member(const struct ranks *m, int rank)
{
    const struct rows_peer *peer = &m->rows_lead->peers[rank];
    return m->place.fixed ? peer->leads
                          : rank != m->hub && m->members[rank] && is_there(m, rank);
}

/* A newcomer that has said HELLO here, and is heard. */
static bool is_newcomer(const struct ranks *m, int rank)
{
    const struct rows_peer *peer = &m->rows_lead->peers[rank];
    const struct ranks_peer *p = &m->peers[rank];

    return !m->place.fixed && peer->comes && !peer->absent && p->generation &&
           m->now_ns - p->heard_ns < m->dead_ns && p->generation != m->members[rank];
}

/* A newcomer for which rounds wait. */
static bool is_awaited(const struct ranks *m, int rank)
{
    struct rows_peer *peer = &m->rows_lead->peers[rank];

    if (!is_newcomer(m, rank))
        return false;
    uint64_t series = ledger_series(m->ledger);
    if (ledger_view(m->ledger).open && (!peer->through || peer->through == series)) {
        peer->through = series;
        peer->moved_ns = m->now_ns;
    }
    if (peer->slow_ns && m->now_ns - peer->slow_ns > 2 * m->dead_ns) {
        peer->slow_ns = 0;
        peer->moved_ns = m->now_ns;
    } else if (!peer->slow_ns && m->now_ns - peer->moved_ns > m->dead_ns) {
        peer->slow_ns = m->now_ns;
    }
    return !peer->slow_ns;
}

/* Whether all members of this epoch have told their rounds. */
static bool is_said(struct ranks *m)
{
    struct ranks_rows_lead *rows = m->rows_lead;
    uint64_t epoch = ledger_view(m->ledger).epoch;

    for (int k = 0; k < m->place.size && !m->place.fixed; k++) {
        const struct rows_peer *peer = &rows->peers[k];
        if (!m->members[k] || k == m->hub)
            continue;
        if (peer->epoch != epoch || !is_there(m, k))
            return false;
        if (!rows->closed && ledger_newer(peer->held, rows->newest))
            rows->newest = peer->held;
    }
    return true;
}

/* A member that holds the newest rows: the coordinator, or a donor that gave nothing,
 * only where no other member holds them. */
static int find_donor(const struct ranks *m, int not_this)
{
    const struct ranks_rows_lead *rows = m->rows_lead;
    int donor = -1;

    for (int i = 1; i <= m->place.size && (donor < 0 || donor == not_this); i++) {
        int k = (m->f.rank + i) % m->place.size;
        if (is_member(m, k) && !m->peers[k].silent &&
            ledger_same(rows->peers[k].held, rows->newest))
            donor = k;
    }
    return donor;
}

/* --- words that leave --- */

static void tell_taken(struct ranks *m, int rank)
{
    struct rows_peer *peer = &m->rows_lead->peers[rank];
    bool good = peer->voted && ledger_same(peer->open, m->rows_lead->newest);
    struct ranks_word word = {.what = WORD_ROWS_TAKE, .bad = !good};

    word.ledger.version = peer->open;
    peer->held = good ? peer->open : peer->held;
    peer->given = !good && !peer->bad;
    peer->open = (struct ledger_version){0, 0};
    peer->seated = peer->voted = false;
    ranks_tell(m, rank, word, NULL, 0);
}

static void tell_go(struct ranks *m, int rank)
{
    struct ranks_rows_lead *rows = m->rows_lead;
    struct ranks_word word = {.what = WORD_ROWS_GO, .seats = rows->n_closing};

    word.ledger.version = rows->newest;
    rows->peers[rank].open = rows->newest;
    ranks_tell(m, rank, word, rows->closing, rows->n_closing * sizeof *rows->closing);
}

/* False: the newcomer lacks the newest rows. */
static bool settle(struct ranks *m, int rank)
{
    struct ranks_rows_lead *rows = m->rows_lead;
    struct rows_peer *peer = &rows->peers[rank];
    struct ranks_word word = {.what = WORD_ROWS_LACK};

    if (peer->open.epoch)
        tell_taken(m, rank);
    if (m->place.fixed || peer->absent || ledger_same(peer->held, rows->newest))
        return true;
    if (peer->asked)
        return false;
    peer->asked = true;
    word.ledger.version = rows->newest;
    word.source = find_donor(m, peer->deaf);
    if (word.source >= 0)
        ranks_tell(m, rank, word, NULL, 0);
    return false;
}

static void close_rows(struct ranks *m)
{
    struct ranks_rows_lead *rows = m->rows_lead;

    rows->n_closing = 0;
    rows->newest = (struct ledger_version){ledger_view(m->ledger).epoch, ++rows->last};
    rows->closed = true;
    for (int k = 0; k < m->place.size; k++) {
        struct rows_peer *peer = &rows->peers[k];
        peer->seated = is_member(m, k) && !peer->absent;
        peer->voted = peer->bad = peer->called = false;
        if (!peer->seated && k != m->hub)       /* its rows are old now, also if silent */
            ledger_outdate(m->ledger, k);
        if (peer->seated)
            rows->closing[rows->n_closing++] =
                (struct rows_seat){.rank = k, .bytes = peer->bytes, .seq = peer->seq,
                                   .generation = m->place.fixed ? 0 : m->members[k]};
    }
    for (uint32_t i = 0; i < rows->n_closing; i++)
        tell_go(m, rows->closing[i].rank);
}

static void call_others(struct ranks *m)
{
    struct ranks_word word = {.what = WORD_ROWS_CALL};

    word.ledger.version = m->rows_lead->newest;
    for (int k = 0; k < m->place.size; k++) {
        struct rows_peer *peer = &m->rows_lead->peers[k];
        if (!is_member(m, k) || peer->absent || peer->given || peer->called)
            continue;
        peer->called = true;
        ranks_tell(m, k, word, NULL, 0);
    }
}

/* --- a round --- */

/* False: votes are missing. One vote against the round undoes it, and the newest round is
 * the one before. */
static bool decide(struct ranks *m)
{
    struct ranks_rows_lead *rows = m->rows_lead;
    struct ledger_version before = {0, 0};
    bool bad = false;

    for (int k = 0; k < m->place.size; k++) {
        const struct rows_peer *peer = &rows->peers[k];
        if (peer->seated && !peer->voted)
            return false;
        bad |= peer->seated && peer->bad;
        before = peer->seated ? peer->held : before;
    }
    rows->closed = false;
    rows->newest = bad ? before : rows->newest;
    return true;
}

static void turn(struct ranks *m)
{
    struct ranks_rows_lead *rows = m->rows_lead;
    int members = 0, given = 0;
    bool settled = true;

    if (!m->leads || !is_said(m) || (rows->closed && !decide(m)))
        return;
    for (int k = 0; k < m->place.size; k++) {
        const struct rows_peer *peer = &rows->peers[k];
        bool member = is_member(m, k) && !peer->absent, comes = is_awaited(m, k);
        settled &= !comes || peer->epoch;
        if (comes && !peer->epoch)
            continue;
        if (member || comes || peer->open.epoch)
            settled &= settle(m, k) && !comes;
        members += member;
        given += member && peer->given;
    }
    if (!settled || ledger_view(m->ledger).fenced)
        return;
    if (given && given == members)
        close_rows(m);
    else if (given)
        call_others(m);
}

static void find_heir(struct ranks *m, int from)
{
    struct rows_peer *peers = m->rows_lead->peers;
    int host = peers[from].host;

    peers[from].host = -1;
    if (!peers[from].leads)
        return;
    peers[from].leads = peers[from].given = false;
    for (int k = 0; k < m->place.size; k++)
        if (peers[k].host == host) {
            peers[k].leads = true;
            ranks_tell(m, k, (struct ranks_word){.what = WORD_LEAD}, NULL, 0);
            return;
        }
}

/* A newcomer has taken another piece of rows or of a version. */
void ranks_rows_lead_moved(struct ranks *m, int rank)
{
    if (!m->rows_lead)
        return;
    m->rows_lead->peers[rank].moved_ns = m->now_ns;
    m->rows_lead->peers[rank].through = 0;
}

/* Where ranks come and go: hears a rank's whole state, for the rank may not have heard
 * all words to it. */
static void hear_state(struct ranks *m, int from, const struct ranks_word *word)
{
    struct ranks_rows_lead *rows = m->rows_lead;
    struct rows_peer *peer = &rows->peers[from];
    bool awaited = rows->closed && peer->seated && !peer->voted;
    const struct ledger_version last = {ledger_view(m->ledger).epoch, rows->last};

    if (ledger_newer(word->ledger.version, last) ||
        ledger_newer(word->ledger.base, last)) {
        ranks_refuse(m, from, "it holds rows of a round that has not been");
        return;
    }
    if (!ledger_same(peer->held, word->ledger.version) || peer->pieces != word->round ||
        !peer->comes)
        ranks_rows_lead_moved(m, from);
    peer->pieces = word->round;
    peer->epoch = word->stands;
    peer->comes = peer->compared;
    peer->held = word->ledger.version;
    peer->open = word->ledger.base;
    peer->seq = word->ledger.arrival;
    peer->absent = word->ledger.absent;
    peer->given = word->what == WORD_ROWS;
    peer->voted = word->what == WORD_ROWS_HAVE;
    peer->bad = peer->voted && word->bad;
    peer->bytes = peer->given || peer->voted ? word->n : 0;
    peer->deaf = word->source;
    peer->asked = peer->called = false;
    m->ledger_moved |= is_newcomer(m, from);
    if (!awaited || ledger_same(peer->open, rows->newest))
        return;
    peer->voted = false;
    if (peer->open.epoch) {
        tell_taken(m, from);
        peer->seated = true;
    } else if (peer->given) {
        tell_go(m, from);
    }
}

void ranks_rows_lead_hear(struct ranks *m, int from, const struct ranks_word *word)
{
    struct rows_peer *peer = m->rows_lead ? &m->rows_lead->peers[from] : NULL;

    if (!peer)
        return;
    switch ((enum ranks_what)word->what) {
    case WORD_HELLO:
        peer->host = word->host;
        peer->leads = word->host == from;
        return;
    case WORD_LEAVE:
        find_heir(m, from);
        break;
    default:
        if (!m->place.fixed) {
            hear_state(m, from, word);
        } else if (word->what == WORD_ROWS) {
            peer->given = true;
            peer->bytes = word->n;
        } else {
            peer->voted = true;
            peer->bad = word->bad;
        }
    }
    turn(m);
}

void ranks_rows_lead_facts(const struct ranks *m, int from, struct word_facts *facts)
{
    const struct ranks_rows_lead *rows = m->rows_lead;
    const struct rows_peer *peer = &rows->peers[from];
    bool comes = !m->place.fixed;

    word_allow(facts, WORD_ROWS, comes || (peer->leads && !peer->given));
    word_allow(facts, WORD_ROWS_HAVE,
               comes || (rows->closed && peer->seated && !peer->voted));
    word_allow(facts, WORD_ROWS_NONE, comes);
}

bool ranks_rows_closed(const struct ranks *m)
{
    return m->rows_lead && m->rows_lead->closed;
}

/* --- where ranks come and go --- */

void ranks_rows_lead_changed(struct ranks *m)
{
    struct ranks_rows_lead *rows = m->rows_lead;

    if (!rows)
        return;
    rows->closed = false;
    rows->newest = (struct ledger_version){0, 0};
    rows->last = 0;
    for (int k = 0; k < m->place.size; k++)
        rows->peers[k] = (struct rows_peer){.compared = rows->peers[k].compared,
                                            .comes = rows->peers[k].comes,
                                            .moved_ns = m->now_ns};
}

void ranks_rows_lead_gone(struct ranks *m, int rank)
{
    if (!m->rows_lead)
        return;
    m->rows_lead->peers[rank] = (struct rows_peer){.compared = false};
    turn(m);
}

bool ranks_rows_lead_admits(struct ranks *m, int rank)
{
    struct ranks_rows_lead *rows = m->rows_lead;

    if (!rows || rank == m->hub || !(m->base.rows || m->f.hub))
        return true;
    struct rows_peer *peer = &rows->peers[rank];
    if (!peer->compared) {
        peer->compared = true;
        peer->comes = peer->epoch != 0;
        turn(m);
    }
    return m->leads && is_said(m) && peer->epoch && !rows->closed && !peer->open.epoch &&
           rows->newest.epoch && ledger_same(peer->held, rows->newest);
}
