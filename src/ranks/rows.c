/* SPDX-License-Identifier: MIT */
/* Rounds of rows: from the leader of each host to those of all others.
 *
 *   ROWS        to rank 0: a part of so many bytes is there
 *   ROWS_CALL   from 0, to leaders who have given none: others have
 *   ROWS_GO     from 0: every leader has given; who, and how many bytes, follows. Each sends its
 *               part to each other leader as one message; all lengths are known
 *   ROWS_HAVE   to 0: all parts are here; bad: this leader leaves, and will not take them
 *   ROWS_TAKE   from 0: all leaders take them; bad: none does, and the round gathers again
 *   LEAD        from 0: your leader has left, you are its heir
 *
 * 1. Who leaves tells rank 0 when no round of rows is closed here: till then its part is sent.
 * 2. A leader that leaves before its vote undoes the round for all: the others keep what they have
 *    given, and its heir gives. One that has voted takes all parts before it closes (leave), so that
 *    its heir has a table in which the round is whole.
 *
 * The lowest rank of a host leads it. Rank 0 keeps the list (rows_lead.c). Run by whoever holds the
 * round machine. */
#include "ranks/check.h"

#include <limits.h>
#include <string.h>

enum { SLOT_BYTES = 64 };

enum stage { ROWS_IDLE, ROWS_GIVEN, ROWS_CLOSED, ROWS_MOVING, ROWS_VOTED, ROWS_TAKING };

struct ranks_rows {
    size_t most, slot;              /* bytes of a part; of its place in `slots` */
    char *slots;                    /* (hosts) parts, by seat; the own one as it is sent */
    struct ranks_op *give, *take;     /* (hosts) by seat */
    enum stage stage;
    bool called;
    bool leaves, against, gone;     /* gives no vote for a round; gave none; takes no part */
    const void *bytes;              /* what was given, n of them */
    size_t n;
    int k, next, moving;            /* seats; the next part; messages in flight */
    struct rows_seat *seats;        /* (hosts) ascending */
};

/* --- memory --- */

static bool take_memory(struct ranks *m, struct ranks_rows *rows)
{
    size_t hosts = (size_t)m->place.hosts;

    rows->give = memory_take_array(hosts, sizeof *rows->give);
    rows->take = memory_take_array(hosts, sizeof *rows->take);
    rows->seats = memory_take_array(hosts, sizeof *rows->seats);
    rows->slots = rows->slot ? memory_take_array(hosts, rows->slot) : NULL;
    return rows->give && rows->take && rows->seats && (rows->slots || !rows->slot) &&
           (m->f.rank || ranks_rows_lead_init(m));
}

descant_status ranks_rows_init(struct ranks *m, size_t bytes)
{
    struct ranks_rows *rows = memory_take(sizeof *rows);

    m->rows = rows;
    if (bytes > INT_MAX)
        return log_fail(&m->f.log, DESCANT_UNSUPPORTED, "a part of %zu bytes is too long for a message",
                        bytes);
    if (rows) {
        rows->most = bytes;
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
    memory_give(rows);
}

/* --- what is heard --- */

void ranks_rows_facts(const struct ranks *m, int from, struct word_facts *facts)
{
    const struct ranks_rows *rows = m->rows;

    if (!rows)
        return;
    word_allow(facts, WORD_LEAD, true);
    if (!rows->most)
        return;
    facts->part = rows->most;
    facts->own_part = rows->n;
    word_allow(facts, WORD_ROWS_CALL, true);
    word_allow(facts, WORD_ROWS_GO, rows->stage == ROWS_GIVEN);
    word_allow(facts, WORD_ROWS_TAKE, rows->stage == ROWS_VOTED);
    if (m->rows_lead)
        ranks_rows_lead_facts(m, from, facts);
}

/* --- a leader --- */

void ranks_rows_hear(struct ranks *m, const struct ranks_word *word)
{
    struct ranks_rows *rows = m->rows;

    switch ((enum ranks_what)word->what) {
    case WORD_ROWS_CALL:
        rows->called = true;
        break;
    case WORD_ROWS_GO:
        rows->k = (int)word->seats;
        memcpy(rows->seats, word + 1, word->seats * sizeof *rows->seats);
        rows->stage = ROWS_CLOSED;
        break;
    case WORD_ROWS_TAKE:
        rows->next = 0;
        rows->stage = word->bad ? ROWS_GIVEN : rows->gone ? ROWS_IDLE : ROWS_TAKING;
        break;
    default:
        atomic_store_explicit(&m->f.host_leader, true, memory_order_relaxed);
    }
}

static void moved(struct ranks *m, struct ranks_op *op, const struct link_ended *ended)
{
    (void)ended;
    op->busy = false;
    m->rows->moving--;
}

/* What was given is copied: a failed job may close while it is sent, and then it is given back. */
static const char *copy_own(struct ranks *m)
{
    struct ranks_rows *rows = m->rows;
    char *own = rows->slots;

    for (int i = 0; i < rows->k; i++)
        own = rows->seats[i].rank == m->f.rank ? rows->slots + (size_t)i * rows->slot : own;
    if (rows->n)
        memcpy(own, rows->bytes, rows->n);
    return own;
}

static bool move(struct ranks *m, unsigned seat, const char *own)
{
    struct ranks_rows *rows = m->rows;
    const struct rows_seat *s = &rows->seats[seat];
    struct ranks_op op = {.ended = moved, .rank = s->rank, .slot = seat};

    if (s->rank == m->f.rank)
        return true;
    rows->give[seat] = rows->take[seat] = op;
    rows->moving += (s->bytes > 0) + (rows->n > 0);
    return (!s->bytes || ranks_receive_op(m, &rows->take[seat], rows->slots + seat * rows->slot,
                                        s->bytes, TAG_ROWS)) &&
           (!rows->n || ranks_send_op(m, &rows->give[seat], own, rows->n, TAG_ROWS));
}

void ranks_rows_step(struct ranks *m)
{
    struct ranks_rows *rows = m->rows;

    if (rows && rows->stage == ROWS_CLOSED) {
        const char *own = copy_own(m);
        rows->stage = ROWS_MOVING;
        m->moved = true;
        for (int i = 0; i < rows->k; i++)
            if (!move(m, (unsigned)i, own))
                return;
    }
    if (rows && rows->stage == ROWS_MOVING && rows->moving == 0) {
        rows->stage = ROWS_VOTED;
        m->moved = true;
        rows->against = rows->leaves;
        ranks_tell(m, 0, (struct ranks_word){.what = WORD_ROWS_HAVE, .bad = rows->against}, NULL, 0);
    }
}

void ranks_rows_leave(struct ranks *m)
{
    if (!m->rows)
        return;
    m->rows->leaves = m->rows->gone = true;
    if (m->rows->stage == ROWS_TAKING)
        m->rows->stage = ROWS_IDLE;
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

/* --- what the table calls --- */

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
    ranks_tell(m, 0, (struct ranks_word){.what = WORD_ROWS, .n = n}, NULL, 0);
    return f->status;
}

/* As the busier direction of this host's link has them. */
static void count_bytes(struct ranks *m)
{
    const struct ranks_rows *rows = m->rows;
    uint64_t in = 0, out = rows->n * (uint64_t)(rows->k - 1);

    for (int i = 0; i < rows->k; i++)
        in += rows->seats[i].rank == m->f.rank ? 0 : rows->seats[i].bytes;
    atomic_fetch_add_explicit(&m->f.rows_bytes, in > out ? in : out, memory_order_relaxed);
}

static enum fabric_progress take(struct ranks *m, struct rows_part *part)
{
    struct ranks_rows *rows = m->rows;
    int seat = rows->next++;

    if (seat == rows->k) {
        count_bytes(m);
        rows->stage = ROWS_IDLE;
        return FABRIC_DONE;
    }
    bool own = rows->seats[seat].rank == m->f.rank;
    *part = (struct rows_part){.bytes = own ? rows->bytes
                                            : rows->slots + (size_t)seat * rows->slot,
                               .n = rows->seats[seat].bytes, .rank = rows->seats[seat].rank,
                               .parts = rows->k, .own = own};
    return FABRIC_PART;
}

enum fabric_progress ranks_rows_poll(struct ranks *m, struct rows_part *part)
{
    const struct ranks_rows *rows = m->rows;

    if (!rows)
        return FABRIC_WAITING;
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

