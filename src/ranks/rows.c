/* SPDX-License-Identifier: MIT */
/* Rounds of rows: from the leader of each host to those of all others.
 *
 *   ROWS        to the coordinator: this leader gives a part of so many bytes
 *   ROWS_CALL   from it, to leaders that have given no part: others have
 *   ROWS_GO     from it: every leader has given; a list of leaders and lengths follows.
 *               Each sends its part to each other leader as one message
 *   ROWS_HAVE   to it: a vote: all parts are here; bad: this leader leaves, and will not
 *               take them
 *   ROWS_TAKE   from it: all leaders take them; bad: none does, and the round gathers
 *               again
 *   LEAD        from rank 0: your leader has left, you are its heir
 *
 * 1. A leaver tells rank 0 only when no closed round is under way here: till then it
 *    sends its part.
 * 2. A leader that leaves before its vote undoes the round for all: the others keep their
 *    parts, and its heir gives one. A leader that has voted takes all parts before it
 *    closes (leave), so that its heir has a table in which the round is whole.
 *
 * The lowest rank of a host leads it. The coordinator keeps the list (rows_lead.c).
 *
 * Where ranks come and go each is its own host, rounds have numbers as versions have,
 * (epoch, number), and each word to the coordinator says which round its sender holds,
 * and which one is open there. A rank says so when it changes, in each new epoch, and
 * again each dead / 4:
 *
 *   ROWS_NONE   to the coordinator: this rank has neither a part nor a vote
 *   ROWS_LACK   from it, to a newcomer: the rows of this round are the job's, and a
 *               member has them
 *
 * 3. A round that some member has taken has the votes of all that were in it. So the
 *    members of the next epoch can decide by their own words: a member that has voted
 *    takes the round if another one holds it; else the round is given up (rows_lead.c). A
 *    member that has not voted when another epoch stands gives the round up at once.
 * 4. `merged` has how many parts of each rank are in the rows. So a rank whose rows are
 *    replaced knows how many of the parts that it has given are in. The others are lost.
 *
 * All of this runs in the thread that holds the round machine. */
#include "ranks/check.h"

#include <limits.h>
#include <string.h>

enum { SLOT_BYTES = 64 };

/* Of the epoch's rounds those of rows have the highest series. */
#define ROWS_SERIES (UINT64_C(1) << 39)

enum { AGAIN = 4 /* words are said again each dead / 4 */,
       DEAF = 2 /* another donor is wanted after dead / 2 without a piece */ };

enum rows_stage {
    ROWS_IDLE, ROWS_GIVEN, ROWS_CLOSED, ROWS_MOVING, ROWS_VOTED, ROWS_TAKING
};

/* The last words to the coordinator, and its rank. */
struct rows_said {
    uint64_t to, epoch, seq, held, open;
    enum ranks_what what;
    int absent, deaf, unused;
};

struct ranks_rows {
    size_t most, slot;              /* bytes of a part; bytes of a place in `slots` */
    char *slots;                    /* (hosts) parts by seat, with the own one as it is
                                       sent */
    struct ranks_op *give, *take;     /* (hosts) by seat */
    enum rows_stage stage;
    bool called;
    bool leaves, against, gone;     /* votes for no round; has voted against one; takes no
                                       part */
    const void *bytes;              /* the part that was given, n bytes */
    size_t n;
    int k, next, moving;            /* seats; the next part; messages in flight */
    struct rows_seat *seats;        /* (hosts) ascending */
    /* where ranks come and go */
    struct ledger_version open;     /* the round not decided yet; epoch 0: none */
    uint64_t seq;                   /* of the last part given: so many were given */
    uint64_t lost;                  /* how many of them the caller was told to be lost */
    bool spoilt;                    /* a part of the round will not come any more */
    bool state_waits;               /* the base was replaced; the caller is not told
                                       yet */
    bool forgets;                   /* messages of older epochs are to be forgotten */
    uint64_t began_ns, said_ns;
    struct rows_said said;          /* last */
};

/* --- memory --- */

static bool take_memory(struct ranks *m, struct ranks_rows *rows)
{
    size_t hosts = (size_t)m->place.hosts;

    if (!rows->slot || m->f.hub) {
        bool leads = m->place.fixed ? m->f.rank == 0 : rows->slot > 0;
        return !leads || ranks_rows_lead_init(m);
    }
    m->base.merged = memory_take_array((size_t)m->place.size, sizeof *m->base.merged);
    rows->give = memory_take_array(hosts, sizeof *rows->give);
    rows->take = memory_take_array(hosts, sizeof *rows->take);
    rows->seats = memory_take_array(hosts, sizeof *rows->seats);
    rows->slots = memory_take_array(hosts, rows->slot);
    return rows->give && rows->take && rows->seats && rows->slots &&
           m->base.merged &&
           ((m->place.fixed && m->f.rank) || ranks_rows_lead_init(m));
}

descant_status ranks_rows_init(struct ranks *m, const struct fabric_start *start)
{
    struct ranks_rows *rows = memory_take(sizeof *rows);
    size_t bytes = start->rows_bytes;

    m->rows = rows;
    if (bytes > INT_MAX)
        return log_fail(&m->f.log, DESCANT_UNSUPPORTED,
                        "a part of %zu bytes is too long for a message", bytes);
    if (rows) {
        rows->most = bytes;
        m->base.rows = m->place.fixed ? NULL : start->rows_base;
        m->base.donor = m->base.deaf = -1;
        /* the first rows are the same everywhere */
        m->base.held = (struct ledger_version){1, 0};
        rows->slot = (bytes + SLOT_BYTES - 1) / SLOT_BYTES * SLOT_BYTES;
    }
    if (!rows || !take_memory(m, rows))
        return log_fail(&m->f.log, DESCANT_MEMORY, "no memory for rounds of rows");
    atomic_store_explicit(&m->f.host_leader, m->place.rank == m->place.host,
                          memory_order_relaxed);
    return DESCANT_OK;
}

void ranks_rows_fini(struct ranks *m)
{
    struct ranks_rows *rows = m->rows;

    if (!rows)
        return;
    memory_give(rows->slots);
    memory_give(rows->give);
    memory_give(rows->take);
    memory_give(rows->seats);
    memory_give(m->base.merged);
    memory_give(rows);
}

/* --- words that come --- */

void ranks_rows_facts(const struct ranks *m, int from, struct word_facts *facts)
{
    const struct ranks_rows *rows = m->rows;
    bool comes = !m->place.fixed;

    if (!rows)
        return;
    word_allow(facts, WORD_LEAD, !comes);
    if (!rows->most)
        return;
    facts->part = rows->most;
    facts->own_part = rows->n;
    if (m->f.hub) {
        ranks_rows_lead_facts(m, from, facts);
        return;
    }
    word_allow(facts, WORD_ROWS_CALL, true);
    word_allow(facts, WORD_ROWS_GO, comes || rows->stage == ROWS_GIVEN);
    word_allow(facts, WORD_ROWS_TAKE, comes || rows->stage == ROWS_VOTED);
    word_allow(facts, WORD_ROWS_LACK, comes);
    if (m->rows_lead)
        ranks_rows_lead_facts(m, from, facts);
}

/* --- a leader --- */

/* Where words are said again a word may come twice, or for a part that is no longer
 * given. */
static bool awaits_go(const struct ranks *m, const struct ranks_word *word)
{
    const struct ranks_rows *rows = m->rows;
    const struct rows_seat *seats = (const struct rows_seat *)(const void *)(word + 1);

    if (m->place.fixed)
        return true;
    for (uint32_t i = 0; i < word->seats; i++)
        if (seats[i].rank == m->f.rank)
            return rows->stage == ROWS_GIVEN && !rows->state_waits &&
                   seats[i].bytes == rows->n && seats[i].seq == rows->seq &&
                   seats[i].generation == m->place.generation;
    return false;
}

static void hear_go(struct ranks *m, const struct ranks_word *word)
{
    struct ranks_rows *rows = m->rows;

    if (!awaits_go(m, word))
        return;
    rows->k = (int)word->seats;
    memcpy(rows->seats, word + 1, word->seats * sizeof *rows->seats);
    rows->open = word->ledger.version;
    rows->began_ns = m->now_ns;
    rows->stage = ROWS_CLOSED;
}

/* The part stays given. */
static void give_up(struct ranks_rows *rows)
{
    rows->open = (struct ledger_version){0, 0};
    rows->stage = ROWS_GIVEN;
}

static void add_merged(struct ranks *m, const struct rows_seat *seat)
{
    struct ledger_entry *merged = &m->base.merged[seat->rank];

    if (merged->generation != seat->generation)
        *merged = (struct ledger_entry){.generation = seat->generation};
    merged->seq++;
}

static void hear_take(struct ranks *m, const struct ranks_word *word)
{
    struct ranks_rows *rows = m->rows;

    if (!m->place.fixed &&
        (rows->stage != ROWS_VOTED || !ledger_same(rows->open, word->ledger.version)))
        return;
    if (word->bad || rows->gone) {
        give_up(rows);
        rows->stage = word->bad ? ROWS_GIVEN : ROWS_IDLE;
        return;
    }
    rows->next = 0;
    m->base.held = rows->open;
    rows->open = (struct ledger_version){0, 0};
    for (int i = 0; i < rows->k; i++)
        add_merged(m, &rows->seats[i]);
    m->base.moves = true;
    rows->stage = ROWS_TAKING;
}

/* The base here is older, or of another history, and is dropped. A rank that leaves keeps
 * its base, for its caller makes the last rows of it. */
static void hear_lack(struct ranks *m, const struct ranks_word *word)
{
    struct ranks_rows *rows = m->rows;

    if (!m->base.rows || (rows->stage != ROWS_IDLE && rows->stage != ROWS_GIVEN) ||
        ledger_same(m->base.held, word->ledger.version) || word->source == m->f.rank ||
        rows->leaves)
        return;
    m->base.held = (struct ledger_version){0, 0};
    m->base.wanted = word->ledger.version;
    if (m->base.donor != word->source)
        m->base.came_ns = m->now_ns;
    m->base.donor = word->source;
    ranks_versions_want_rows(m, m->base.wanted, word->source);
}

void ranks_rows_hear(struct ranks *m, const struct ranks_word *word)
{
    struct ranks_rows *rows = m->rows;

    switch ((enum ranks_what)word->what) {
    case WORD_ROWS_CALL:        /* the word may be late, of a round that is over */
        rows->called |= m->place.fixed ||
                        (rows->stage == ROWS_IDLE &&
                         ledger_same(m->base.held, word->ledger.version));
        break;
    case WORD_ROWS_GO:
        hear_go(m, word);
        break;
    case WORD_ROWS_TAKE:
        hear_take(m, word);
        break;
    case WORD_ROWS_LACK:
        hear_lack(m, word);
        break;
    default:
        atomic_store_explicit(&m->f.host_leader, true, memory_order_relaxed);
    }
}

/* --- words that leave --- */

static enum ranks_what own_word(const struct ranks *m)
{
    const struct ranks_rows *rows = m->rows;
    bool given = rows->stage == ROWS_GIVEN && !rows->state_waits && !m->base.wanted.epoch;

    return given                       ? WORD_ROWS
           : rows->stage == ROWS_VOTED ? WORD_ROWS_HAVE
                                       : WORD_ROWS_NONE;
}

static void say(struct ranks *m, enum ranks_what what)
{
    const struct ranks_rows *rows = m->rows;
    struct ranks_word word = {.what = what, .n = rows->n,
                              .bad = what == WORD_ROWS_HAVE && rows->against};

    if (!m->place.fixed) {
        word.n = what == WORD_ROWS_NONE ? 0 : rows->n;
        word.source = m->base.deaf;
        word.round = m->base.pieces;
        word.ledger = (struct ranks_ledger){.generation = m->place.generation,
                                            .version = m->base.held, .base = rows->open,
                                            .arrival = rows->seq, .absent = rows->leaves};
    }
    ranks_tell(m, m->coordinator, word, NULL, 0);
}

/* Where the link is fixed a part and a vote are told once. */
static void say_again(struct ranks *m)
{
    struct ranks_rows *rows = m->rows;
    int to = m->coordinator;
    uint64_t generation = to == m->f.rank ? m->place.generation : m->peers[to].generation;
    bool met = m->members[m->f.rank] == m->place.generation || ranks_greeted(m, to);
    struct rows_said now = {.to = generation, .epoch = ledger_view(m->ledger).epoch,
                            .seq = rows->seq, .held = ledger_series_of(m->base.held),
                            .open = ledger_series_of(rows->open), .what = own_word(m),
                            .absent = rows->leaves, .deaf = m->base.deaf};

    if (!m->founded || !m->had_state || !met || !generation ||
        (m->now_ns - rows->said_ns < m->dead_ns / AGAIN &&
         memcmp(&now, &rows->said, sizeof now) == 0))
        return;
    rows->said = now;
    rows->said_ns = m->now_ns;
    say(m, now.what);
}

/* --- parts --- */

static void moved(struct ranks *m, struct ranks_op *op, const struct link_ended *ended)
{
    op->busy = false;
    m->rows->moving--;
    m->rows->spoilt |= ended->failed;
}

/* The part is copied, for a failed job may close, and give its memory back, while the
 * part is sent. */
static const char *copy_own(struct ranks *m)
{
    struct ranks_rows *rows = m->rows;
    char *own = rows->slots;

    for (int i = 0; i < rows->k; i++)
        if (rows->seats[i].rank == m->f.rank)
            own = rows->slots + (size_t)i * rows->slot;
    if (rows->n)
        memcpy(own, rows->bytes, rows->n);
    return own;
}

static bool move(struct ranks *m, unsigned seat, const char *own)
{
    struct ranks_rows *rows = m->rows;
    const struct rows_seat *s = &rows->seats[seat];
    struct ranks_op op = {.ended = moved, .rank = s->rank, .slot = seat,
                          .even_failed = !m->place.fixed};

    if (s->rank == m->f.rank)
        return true;
    rows->give[seat] = rows->take[seat] = op;
    rows->moving += (s->bytes > 0) + (rows->n > 0);
    return (!s->bytes || ranks_receive_op(m, &rows->take[seat],
                                          rows->slots + seat * rows->slot, s->bytes,
                                          TAG_ROWS)) &&
           (!rows->n || ranks_send_op(m, &rows->give[seat], own, rows->n, TAG_ROWS));
}

static void forget(struct ranks *m)
{
    const struct ledger_version first = {ledger_view(m->ledger).epoch, 0};

    m->rows->forgets = false;
    m->link->type->forget(m->link, LINK_ANY, ledger_series_of(first));
}

/* All leaders are there, and all messages of a round that was given up have come back. */
static bool may_move(const struct ranks *m)
{
    const struct ranks_rows *rows = m->rows;

    for (int i = 0; i < rows->k && !m->place.fixed; i++)
        if (rows->seats[i].rank != m->f.rank &&
            m->peers[rows->seats[i].rank].generation != rows->seats[i].generation)
            return false;
    return rows->moving == 0;
}

/* A whole base has come from a donor. */
static void take_base(struct ranks *m)
{
    struct ranks_rows *rows = m->rows;

    if (m->base.wanted.epoch && m->now_ns - m->base.came_ns > m->dead_ns / DEAF)
        m->base.deaf = m->base.donor;
    if (!m->base.wanted.epoch || !ranks_versions_rows_came(m))
        return;
    m->base.deaf = m->base.donor = -1;
    m->base.held = m->base.wanted;
    m->base.wanted = (struct ledger_version){0, 0};
    rows->state_waits = true;
    m->moved = true;
}

void ranks_rows_step(struct ranks *m)
{
    struct ranks_rows *rows = m->rows;

    if (!rows || !rows->most || m->f.hub)
        return;
    if (rows->forgets)
        forget(m);
    if (!m->place.fixed)
        take_base(m);
    if (rows->stage == ROWS_CLOSED && may_move(m)) {
        const char *own = copy_own(m);
        rows->stage = ROWS_MOVING;
        rows->spoilt = false;
        m->moved = true;
        m->rows_series =
            m->place.fixed ? 0 : ledger_series_of(rows->open) | ROWS_SERIES;
        for (int i = 0; i < rows->k; i++)
            if (!move(m, (unsigned)i, own))
                return;
    }
    if (rows->stage == ROWS_MOVING && rows->moving == 0 && !rows->spoilt) {
        rows->stage = ROWS_VOTED;
        m->moved = true;
        rows->against = rows->leaves;
        if (m->place.fixed)
            say(m, WORD_ROWS_HAVE);
    }
    if (!m->place.fixed)
        say_again(m);
}

/* --- where ranks come and go --- */

void ranks_rows_changed(struct ranks *m)
{
    struct ranks_rows *rows = m->rows;

    if (!rows || !rows->most)
        return;
    rows->forgets = true;
    if (rows->stage == ROWS_CLOSED || rows->stage == ROWS_MOVING)
        give_up(rows);
    ranks_rows_lead_changed(m);
}

void ranks_rows_forget(struct ranks *m)
{
    m->base.held = m->base.wanted = (struct ledger_version){0, 0};
    m->base.moves = false;
}

uint64_t ranks_rows_since(const struct ranks *m, int rank)
{
    const struct ranks_rows *rows = m->rows;

    if (!rows || (rows->stage != ROWS_CLOSED && rows->stage != ROWS_MOVING))
        return 0;
    for (int i = 0; i < rows->k; i++)
        if (rows->seats[i].rank == rank)
            return rows->began_ns;
    return 0;
}

uint64_t ranks_rows_lost(const struct ranks *m)
{
    return m->rows ? m->rows->lost : 0;
}

/* --- the end --- */

void ranks_rows_leave(struct ranks *m)
{
    if (!m->rows)
        return;
    m->rows->leaves = m->rows->gone = true;
    if (m->rows->stage != ROWS_TAKING)
        return;
    m->rows->stage = ROWS_IDLE;
    ranks_rows_forget(m);       /* only a part of a round is in the rows */
}

bool ranks_rows_quiet(const struct ranks *m)
{
    return !m->rows || m->rows->stage == ROWS_IDLE || m->rows->stage == ROWS_GIVEN;
}

bool ranks_rows_taking(const struct ranks *m)
{
    return m->rows && m->rows->stage == ROWS_TAKING;
}

bool ranks_rows_open(const struct ranks *m)
{
    return m->rows && m->rows->stage != ROWS_IDLE;
}

/* --- calls of the table --- */

descant_status ranks_rows_begin(struct fabric *f, const void *bytes, size_t n)
{
    struct ranks *m = ranks_of(f);
    struct ranks_rows *rows = m->rows;

    if (f->status)
        return f->status;
    if (!rows || !rows->most || !m->had_state || rows->stage != ROWS_IDLE ||
        !atomic_load_explicit(&f->host_leader, memory_order_relaxed))
        return log_fail(&f->log, DESCANT_ORDER, "a round of rows cannot be begun so");
    if (n > rows->most)
        return log_fail(&f->log, DESCANT_INVALID, "a part of %zu bytes, room for %zu", n,
                        rows->most);
    rows->bytes = bytes;
    rows->n = n;
    rows->called = false;
    rows->stage = ROWS_GIVEN;
    rows->seq++;
    if (m->place.fixed)
        say(m, WORD_ROWS);
    return f->status;
}

/* The bytes in the busier direction of this host's link. */
static void count_bytes(struct ranks *m)
{
    const struct ranks_rows *rows = m->rows;
    uint64_t in = 0, out = rows->n * (uint64_t)(rows->k - 1);

    for (int i = 0; i < rows->k; i++)
        in += rows->seats[i].rank == m->f.rank ? 0 : rows->seats[i].bytes;
    atomic_fetch_add_explicit(&m->f.rows_bytes, in > out ? in : out,
                              memory_order_relaxed);
}

static enum fabric_progress take(struct ranks *m, struct rows_part *part)
{
    struct ranks_rows *rows = m->rows;
    int seat = rows->next++;

    if (seat == rows->k) {
        m->base.moves = false;
        count_bytes(m);
        rows->stage = ROWS_IDLE;
        return FABRIC_DONE;
    }
    bool own = rows->seats[seat].rank == m->f.rank;
    *part = (struct rows_part){.bytes = own ? rows->bytes
                                            : rows->slots + (size_t)seat * rows->slot,
                               .n = rows->seats[seat].bytes,
                               .rank = rows->seats[seat].rank, .parts = rows->k,
                               .own = own};
    return FABRIC_PART;
}

/* A part that was given and is not in these rows never will be. So each part is in them
 * or lost, whatever was lost before. A peer may lie about how many are in. */
static enum fabric_progress hand_out_base(struct ranks *m, struct rows_part *part)
{
    struct ranks_rows *rows = m->rows;
    const struct ledger_entry *own = &m->base.merged[m->f.rank];
    uint64_t merged = own->generation == m->place.generation ? own->seq : 0;
    uint64_t lost = rows->seq > merged ? rows->seq - merged : 0;

    rows->state_waits = false;
    rows->stage = ROWS_IDLE;
    *part = (struct rows_part){.state = true, .lost = lost - rows->lost};
    rows->lost = lost;
    return FABRIC_PART;
}

enum fabric_progress ranks_rows_poll(struct ranks *m, struct rows_part *part)
{
    struct ranks_rows *rows = m->rows;

    if (!rows)
        return FABRIC_WAITING;
    if (rows->state_waits)
        return hand_out_base(m, part);
    if (rows->stage == ROWS_TAKING)
        return take(m, part);
    if (rows->stage == ROWS_IDLE)
        return rows->called ? FABRIC_CALLED : FABRIC_WAITING;
    return m->moved ? FABRIC_WORKED : FABRIC_WAITING;
}

bool ranks_rows_takes(struct fabric *f)
{
    struct ranks_rows *rows = ranks_of(f)->rows;

    if (!rows || f->status)
        return false;
    rows->leaves = true;
    return rows->stage == ROWS_TAKING || (rows->stage == ROWS_VOTED && !rows->against);
}

