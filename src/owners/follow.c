/* SPDX-License-Identifier: MIT */
/* The ranks that get the rows of a slice (moves.h): why each gets them, the messages that
 * bring them, and what these ranks answer.
 *
 * A rank gets all rows of a slice, table by table, and then those that have changed
 * meanwhile. A row that changes is marked (owned.h), and one mark stands for all ranks
 * that follow the slice; so what has changed is sent to all of them at once. Messages
 * have as many rows as there is room for, of several tables and slices.
 *
 * The bytes on their way to a rank are bounded. Copies stop at MOVES_QUEUED bytes.
 * Changed rows go before copies, since they are to come in time, and stop at twice
 * that. */
#include "owners/moves.h"

#include <limits.h>
#include <string.h>

#define AGAIN_NS UINT64_C(50000000)     /* until what was refused is offered again */

enum { MESSAGES = 2 };                  /* of rows, in a turn */

/* --- why --- */

struct follow *moves_with_role(struct moving *of, unsigned role)
{
    for (int k = 0; k < TO_MOST; k++)
        if (of->to[k].roles & role)
            return &of->to[k];
    return NULL;
}

static struct follow *of_rank(struct moving *of, int rank)
{
    for (int k = 0; k < TO_MOST; k++)
        if (of->to[k].roles && of->to[k].rank == rank)
            return &of->to[k];
    return NULL;
}

/* A rank that has no role any more gives the rows back. */
static bool take_role(struct service *s, int slice, unsigned role)
{
    struct follow *f = moves_with_role(&s->moves->slices[slice], role);
    struct moves_entry entry = moves_entry_of(s, slice);

    if (!f)
        return true;
    f->roles &= ~role;
    return f->roles || moves_say(s, f->rank, ASK_DROP, &entry, 1, 0, 0);
}

static struct follow *give_role(struct moving *of, unsigned role, int rank)
{
    struct follow *f = of_rank(of, rank);

    for (int k = 0; !f && k < TO_MOST; k++)
        if (!of->to[k].roles) {
            f = &of->to[k];
            *f = (struct follow){.rank = rank};
        }
    f->roles |= role;                   /* as many places as roles: one was free */
    return f;
}

bool moves_set_role(struct service *s, int slice, unsigned role, int rank)
{
    struct moving *of = &s->moves->slices[slice];
    struct follow *f = moves_with_role(of, role);
    bool stays = f && role == TO_FOLLOW && rank != NOBODY && f->state == FOLLOW_FOLLOWS;

    if (rank == (f ? f->rank : NOBODY))
        return true;
    s->moves->rests = false;
    if (stays) {
        if (!take_role(s, slice, TO_OLD))
            return false;
        f->roles |= TO_OLD;
    }
    if (!take_role(s, slice, role))
        return false;
    f = rank == NOBODY ? NULL : give_role(of, role, rank);
    bool whole = !f || f->state == FOLLOW_FOLLOWS;
    return role != TO_FOLLOW || !whole || take_role(s, slice, TO_OLD);
}

void moves_forget_followers(struct moving *of)
{
    for (int k = 0; k < TO_MOST; k++)
        of->to[k].roles = 0;
}

/* --- rows that are sent --- */

/* A SET that is being made in moves.message. */
struct set_message {
    int to[TO_MOST], n;                 /* its ranks */
    size_t bytes, rows;
    uint32_t parts;
};

static const struct set_message empty = {.bytes = sizeof(struct ask_head)};

/* Sends it. From then on it is empty, for the same ranks. */
static bool send_set(struct service *s, struct set_message *p)
{
    struct ask_head head = {.kind = ASK_SET, .n = p->parts};
    size_t bytes = p->bytes;
    bool good = true;

    memcpy(s->moves->message, &head, sizeof head);
    for (int k = 0; p->parts && good && k < p->n; k++) {
        if (!s->peers[p->to[k]].there)
            continue;
        struct ask *ask = moves_ask(s, p->to[k], ASK_SET, bytes);
        if (!ask)
            return false;
        memcpy(ask->message, s->moves->message, bytes);
        s->moves->peers[ask->owner].queued += ask_room(ask);
        owners_count(&s->stats.moved, p->rows);
        good = ask_send(s, ask);
    }
    p->bytes = sizeof head;
    p->rows = p->parts = 0;
    return good;
}

bool moves_has_room(const struct service *s, int rank, size_t most)
{
    return s->moves->peers[rank].queued < most;
}

/* Rows of a slice of a table, from row `at` on: those that are born, or, `dirty`, that
 * have changed. */
struct rows_of {
    int table, slice;
    bool dirty;
    size_t at;
    int times;                          /* so many messages, at most */
};

/* Puts them into the message, which is sent as often as it is full. True, and `times`
 * left: there are no more. */
static bool pack(struct service *s, struct set_message *p, struct rows_of *r)
{
    struct moves *m = s->moves;
    const struct owned *of = &s->tables[r->table];
    size_t record = of->record * sizeof(float), each = moves_row_bytes(of) + record;
    size_t ids = sizeof *m->rows, slots = moves_row_bytes(of) - ids;

    while (r->at < of->per_slice && r->times > 0) {
        struct moves_part part = {.table = (uint32_t)r->table};
        size_t left = ASK_BYTES - p->bytes;
        size_t room = left > sizeof part ? (left - sizeof part) / each : 0;
        unsigned char *to = m->message + p->bytes;
        if (room == 0) {
            r->times--;
            if (!send_set(s, p))
                return false;
            continue;
        }
        const struct owned_some some = {.n = room, .rows = m->rows, .slots = m->slots,
                                        .records = m->records};
        size_t n = owned_part_next(of, r->slice, r->dirty, &r->at, &some);
        if (n == 0)
            break;
        part.n = (uint32_t)n;
        memcpy(to, &part, sizeof part);
        to += sizeof part;
        memcpy(to, m->rows, n * ids);
        memcpy(to + n * ids, m->slots, n * slots);
        memcpy(to + n * (ids + slots), m->records, n * record);
        p->bytes += sizeof part + n * each;
        p->rows += n;
        p->parts++;
    }
    return true;
}

static bool has_begun(const struct follow *f)
{
    return f->roles && (f->state == FOLLOW_COPIES || f->state == FOLLOW_ENDS ||
                        f->state == FOLLOW_FOLLOWS);
}

bool moves_one_is(const struct moving *of, enum follow_state state)
{
    bool is = false;

    for (int k = 0; k < TO_MOST; k++)
        is |= of->to[k].roles && of->to[k].state == state;
    return is;
}

/* A message to all that have begun to get the slice: in ascending order, so that slices
 * with the same ranks have equal ones. */
static struct set_message message_of(const struct moving *of)
{
    struct set_message p = empty;

    for (int k = 0; k < TO_MOST; k++) {
        int at = p.n;
        if (!has_begun(&of->to[k]))
            continue;
        for (; at > 0 && p.to[at - 1] > of->to[k].rank; at--)
            p.to[at] = p.to[at - 1];
        p.to[at] = of->to[k].rank;
        p.n++;
    }
    return p;
}

/* The rows of a slice that have changed. */
static bool pack_changed(struct service *s, struct set_message *p, int slice)
{
    bool good = true;

    for (int k = 0; good && k < s->n_tables; k++) {
        struct rows_of r = {.table = k, .slice = slice, .dirty = true, .times = INT_MAX};
        if (s->tables[k].parts[slice].dirty)
            good = pack(s, p, &r);
    }
    return good;
}

bool moves_send_changed(struct service *s, int slice)
{
    struct set_message p = message_of(&s->moves->slices[slice]);

    return pack_changed(s, &p, slice) && send_set(s, &p);
}

bool moves_note_changes(struct service *s, int slice)
{
    bool good = true;

    pthread_rwlock_wrlock(&s->gate);
    for (int k = 0; good && k < s->n_tables; k++)
        good = owned_part_follow(&s->tables[k], slice);
    pthread_rwlock_unlock(&s->gate);
    return good || service_fail(s, DESCANT_MEMORY,
                                "no memory to note which rows change");
}

bool moves_begin(struct service *s, int slice, struct follow *f)
{
    struct moves *m = s->moves;
    struct moves_entry entry = moves_entry_of(s, slice);
    bool replica = !(f->roles & TO_MOVE);

    if (!moves_note_changes(s, slice))
        return false;
    m->numbers = m->numbers < INT_MAX ? m->numbers + 1 : 1;
    *f = (struct follow){.rank = f->rank, .roles = f->roles, .state = FOLLOW_COPIES,
                         .number = m->numbers};
    return moves_say(s, f->rank, ASK_BEGIN, &entry, 1, replica, f->number);
}

bool moves_copy_some(struct service *s, int slice, struct follow *f)
{
    struct moves_entry entry = moves_entry_of(s, slice);
    struct set_message p = empty;
    struct rows_of r = {f->table, slice, false, f->at, MESSAGES};

    p.to[p.n++] = f->rank;
    for (; r.table < s->n_tables; r.table++, r.at = 0) {
        if (!pack(s, &p, &r))
            return false;
        f->table = r.table;
        f->at = r.at;
        if (r.times == 0)
            return true;
    }
    f->state = FOLLOW_ENDS;
    return send_set(s, &p) && moves_send_changed(s, slice) &&
           moves_say(s, f->rank, ASK_COMPLETE, &entry, 1, 0, 0);
}

/* --- changed rows, from time to time --- */

/* The rank gets the rows of a slice for one of these roles, and its queue is full. */
static bool is_full(const struct service *s, const struct follow *f, unsigned roles)
{
    return has_begun(f) && f->roles & roles &&
           !moves_has_room(s, f->rank, 2 * MOVES_QUEUED);
}

/* Where a replica's queue is full, the slice waits. Where only the new owner's queue is
 * full, its copy begins anew later, so that the replica does not wait for it. */
static bool waits_for_replica(const struct service *s, const struct moving *of)
{
    bool waits = false;

    for (int k = 0; k < TO_MOST; k++)
        waits |= is_full(s, &of->to[k], TO_FOLLOW | TO_OLD);
    return waits;
}

/* Rows that the new owner does not get from here on go to the replica alone. Where this
 * rank died, the new owner could claim the slice without these rows: so it is to drop
 * what it has. */
static bool drop_full(struct service *s, int slice)
{
    struct moves_entry entry = moves_entry_of(s, slice);
    bool good = true;

    for (int k = 0; good && k < TO_MOST; k++) {
        struct follow *f = &s->moves->slices[slice].to[k];
        if (!is_full(s, f, TO_MOVE))
            continue;
        f->state = FOLLOW_BEGINS;
        good = moves_say(s, f->rank, ASK_DROP, &entry, 1, 0, 0);
    }
    return good;
}

/* Of the slices that are due, those that go to the same ranks as the first one. *more:
 * there are others. */
static bool sweep_some(struct service *s, bool *more)
{
    struct moves *m = s->moves;
    struct set_message p = empty;
    int first = m->sweep, waits = -1;

    *more = false;
    for (int k = 0; k < OWNED_SLICES; k++) {
        int slice = (first + k) % OWNED_SLICES;
        struct moving *of = &m->slices[slice];
        bool follows = moves_one_is(of, FOLLOW_FOLLOWS) || moves_one_is(of, FOLLOW_ENDS);
        if (!m->due[slice])
            continue;
        if (follows && waits_for_replica(s, of)) {
            waits = waits < 0 ? slice : waits;
            continue;
        }
        if (follows && !drop_full(s, slice))
            return false;
        const struct set_message own = message_of(of);
        p = p.n || !follows ? p : own;
        if (follows && (own.n != p.n || memcmp(own.to, p.to, sizeof own.to) != 0)) {
            *more = true;
            continue;
        }
        m->due[slice] = false;
        m->n_due--;
        if (follows && !pack_changed(s, &p, slice))
            return false;
    }
    m->sweep = waits < 0 ? first : waits;
    return send_set(s, &p);
}

/* The changed rows of all slices are due twice in follow_s. These go before copies: they
 * may fill a rank's queue beyond the bound of copies, as what has changed is to come in
 * time. A rank that takes nothing keeps its own slices waiting; where it is slow, these
 * go on where they stopped. */
bool moves_sweep(struct service *s, uint64_t now_ns)
{
    struct moves *m = s->moves;
    bool good = true;

    if (now_ns - m->swept_ns >= (uint64_t)(m->follow_s * 0.5e9)) {
        memset(m->due, true, sizeof m->due);
        m->n_due = OWNED_SLICES;
        m->swept_ns = now_ns;
        m->sweeps = true;
    }
    for (bool more = m->sweeps && m->n_due; good && more;)
        good = sweep_some(s, &more);
    m->sweeps = false;
    return good;
}

/* --- what they answer --- */

/* It is of a gift that has not come yet. */
static bool is_early(struct service *s, int rank, const struct moves_entry *e, bool joins)
{
    struct moving *of = &s->moves->slices[e->slice];

    if (e->epoch <= s->map.epoch[e->slice])
        return false;
    of->early = rank;
    of->early_joins = joins;
    of->early_of = e->epoch;
    return true;
}

/* An answer to an older BEGIN says nothing of the newer one. */
bool moves_followed(struct service *s, int rank, const struct moves_entry *e, int number)
{
    struct follow *f = of_rank(&s->moves->slices[e->slice], rank);
    struct moves_entry entry = moves_entry_of(s, e->slice);

    if (is_early(s, rank, e, true))
        return true;
    if (!f)
        return moves_say(s, rank, ASK_DROP, &entry, 1, 0, 0);
    if (f->number != number || (f->state != FOLLOW_ENDS && f->state != FOLLOW_JOINS))
        return true;
    f->state = FOLLOW_FOLLOWS;
    s->moves->rests = false;
    return !(f->roles & TO_FOLLOW) || take_role(s, e->slice, TO_OLD);
}

void moves_refused(struct service *s, int rank, const struct moves_entry *e, int number)
{
    struct follow *f = of_rank(&s->moves->slices[e->slice], rank);

    if (is_early(s, rank, e, false) || !f || f->number != number ||
        f->state == FOLLOW_BEGINS)
        return;
    f->roles &= ~(unsigned)TO_OLD;
    f->state = FOLLOW_REFUSED;
    s->moves->refused = true;
    s->moves->rests = false;
}

/* Those that were refused are offered again. */
void moves_offer_again(struct service *s, uint64_t now_ns)
{
    struct moves *m = s->moves;

    m->refused_ns = m->refused && !m->refused_ns ? now_ns : m->refused_ns;
    if (!m->refused || now_ns - m->refused_ns < AGAIN_NS)
        return;
    for (int slice = 0; slice < OWNED_SLICES; slice++)
        for (int k = 0; k < TO_MOST; k++)
            if (m->slices[slice].to[k].state == FOLLOW_REFUSED)
                m->slices[slice].to[k].state = FOLLOW_BEGINS;
    m->refused = m->rests = false;
    m->refused_ns = 0;
}

