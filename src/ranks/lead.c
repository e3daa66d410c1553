/* SPDX-License-Identifier: MIT */
/* The coordinator's record of each rank: its offer, whether it is at its end or has left.
 * Where the link is fixed the coordinator is rank 0; where ranks come and go every rank
 * keeps all of this, for it may be the coordinator next. A rank stays coordinator after
 * its trainer has left.
 *
 * admission.c decides which ranks may take part, and lead_round.c makes rounds of their
 * offers.
 *
 * An offer holds until its round closes, or until its sender takes it back or begins
 * another exchange. Ranks say when they arrive that their vectors are not finite, and
 * then have no share in a mean. */
#include "ranks/lead.h"

#include <string.h>

#define LATE_FIRST_NS UINT64_C(50000000)
#define LATE_AGAIN_NS UINT64_C(100000000)

descant_status ranks_lead_init(struct ranks *m)
{
    size_t size = (size_t)m->place.size;

    m->lead = memory_take(sizeof *m->lead);
    if (!m->lead)
        return log_fail(&m->f.log, DESCANT_MEMORY, "no memory for the coordinator");
    m->lead->peers = memory_take_array(size, sizeof *m->lead->peers);
    m->lead->offers = memory_take_array(size, sizeof *m->lead->offers);
    m->lead->threads = memory_take_array(size, sizeof *m->lead->threads);
    if (!m->lead->peers || !m->lead->offers || !m->lead->threads)
        return log_fail(&m->f.log, DESCANT_MEMORY, "no memory for the coordinator");
    if (m->f.rank == ranks_founder(m))
        m->blame = ranks_lead_fail;
    return DESCANT_OK;
}

void ranks_lead_fini(struct ranks *m)
{
    if (!m->lead)
        return;
    for (int k = 0; m->lead->peers && k < m->place.size; k++) {
        memory_give(m->lead->peers[k].manifest);
        memory_give(m->lead->peers[k].here);
    }
    memory_give(m->lead->peers);
    memory_give(m->lead->offers);
    memory_give(m->lead->threads);
    memory_give(m->lead);
}

void ranks_lead_tell_all(struct ranks *m, struct ranks_word word, const void *tail,
                     size_t bytes)
{
    for (int k = 0; k < m->place.size; k++)
        ranks_tell(m, k, word, tail, bytes);
}

/* Tells all ranks, also those that have not begun anything, once. */
void ranks_lead_fail(struct ranks *m, descant_status status, const char *text)
{
    if (m->lead->failed)
        return;
    m->lead->failed = true;
    ranks_lead_tell_all(
        m, (struct ranks_word){.what = WORD_FAIL, .status = (uint32_t)status}, text,
        strlen(text) + 1);
    ranks_fail(m, status, "%s", text);
}

static void set_left(struct ranks_lead *lead, struct lead_peer *peer, bool left)
{
    lead->n_left += left - peer->left;
    peer->left = left;
}

static uint32_t count_at_work(const struct ranks *m)
{
    uint32_t n = 0;
    for (int k = 0; k < m->place.size; k++)
        n += at_work(m, k);
    return n;
}

/* --- words that come --- */

static void tell_members(struct ranks *m, const struct lead_peer *gone)
{
    struct ranks_lead *lead = m->lead;

    if (!lead->formed || !m->leads)
        return;
    lead->epoch++;
    ranks_lead_tell_all(m,
             (struct ranks_word){.what = WORD_MEMBERS,
                                 .epoch = lead->epoch,
                                 .source = (int32_t)(gone - lead->peers),
                                 .final = !gone->left,
                                 .bad = m->peers[gone - lead->peers].told,
                                 .members = count_at_work(m)},
             NULL, 0);
}

void ranks_lead_hear_leave(struct ranks *m, int from)
{
    struct lead_peer *peer = &m->lead->peers[from];
    bool was = at_work(m, from) && !peer->ends;

    set_left(m->lead, peer, true);
    if (was)
        tell_members(m, peer);
}

void ranks_lead_hear_here(struct ranks *m, int from, const struct ranks_word *word)
{
    struct ranks_lead *lead = m->lead;
    struct lead_peer *peer = &lead->peers[from];
    bool ends = word->ledger.final && !peer->ends;

    if (word->ledger.arrival) {
        peer->offer = (struct offer){
            .rank = from, .kind = (enum exchange_kind)word->kind, .final = word->final,
            .bad = word->bad, .refers = word->refers, .n = word->n, .agree = word->agree,
            .priority = word->priority, .weight = word->weight};
        peer->seq = word->seq;
        peer->note = word->note;
        lead->late.n = 0;               /* the offer changes the list of late ranks */
        if (!lead->since_ns)
            lead->since_ns = m->now_ns;
    }
    peer->ends |= ends;
    peer->finished |= ends;
    if (ends && !peer->left)
        tell_members(m, peer);
    if (word->ledger.leaves && !peer->left)
        ranks_lead_hear_leave(m, from);
}

void ranks_lead_ends(struct ranks *m, int rank, bool finishes)
{
    struct lead_peer *peer = &m->lead->peers[rank];

    peer->ends |= finishes;
    peer->finished |= finishes;
    set_left(m->lead, peer, peer->left || !finishes);
}

/* Notes that a rank was a member, or is one now, or that another process has the rank.
 * One that has left was noted when it said so (MEMBERS): else it is lost. */
static void note_change(struct ranks *m, int rank, bool first)
{
    struct lead_peer *peer = &m->lead->peers[rank];

    if (peer->generation && !peer->ends && !peer->left && rank != m->hub)
        notes_add(m->f.notes, DESCANT_EVENT_LOST, rank);
    if (m->members[rank] && !first && rank != m->hub)
        notes_add(m->f.notes, DESCANT_EVENT_JOINED, rank);
    peer->generation = m->members[rank];
    peer->ends = peer->finished = false;
    set_left(m->lead, peer, !peer->generation);
}

/* Another epoch stands. A rank that is no member of it tells its trainer nothing. The
 * members and their number are set before the events are noted, for their lines have the
 * number. */
void ranks_lead_changed(struct ranks *m)
{
    struct ranks_lead *lead = m->lead;
    bool first = !lead->peers[m->f.rank].generation;
    int members = 0;

    if (!m->members[m->f.rank])
        return;
    for (int k = 0; k < m->place.size; k++) {
        const struct lead_peer *peer = &lead->peers[k];
        bool is_new = peer->generation != m->members[k];
        atomic_store(&m->f.takes_part[k], m->members[k] != 0);
        members += m->members[k] && k != m->hub &&
                   (is_new || (!peer->left && !peer->finished));
    }
    lead->epoch = (uint32_t)ledger_view(m->ledger).epoch << 12;
    atomic_store_explicit(&m->f.members, members, memory_order_relaxed);
    atomic_store_explicit(&m->f.epoch, lead->epoch, memory_order_relaxed);
    for (int k = 0; k < m->place.size; k++) {
        struct lead_peer *peer = &lead->peers[k];
        peer->void_seq = 0;             /* a rank that still arrives has not heard VOID */
        peer->owes_void = peer->owes_call = false;
        if (peer->generation != m->members[k])
            note_change(m, k, first || k == m->f.rank);
    }
    lead->formed |= ledger_view(m->ledger).held.number > 0;
    lead->called = false;
    lead->since_ns = lead->told_ns = lead->held_ns = 0;
    lead->late.n = 0;
    m->blame = m->leads ? ranks_lead_fail : ranks_blame_alone;
    m->ledger_moved = true;
}

/* --- late ranks --- */

void ranks_lead_late(struct ranks *m, struct awaited *awaited)
{
    const struct ranks_lead *lead = m->lead;

    awaited->wait = !lead->formed ? FABRIC_WAIT_START : FABRIC_WAIT_ROUND;
    awaited->round = next_round(m);
    ledger_gathering(m->ledger, m->list);
    for (int k = 0; k < m->place.size; k++)
        if (m->list[k].generation && !has_arrived(m, k) && !lead->peers[k].left &&
            !ledger_is_aside(m->ledger, k))
            awaited_add(awaited, k);
}

/* A rank whose trainer has finished waits for all that are at work. */
static struct awaited late_for(const struct ranks *m, const struct lead_peer *peer,
                               const struct awaited *late)
{
    struct awaited awaited = *late;

    awaited.kind = peer->offer.kind;
    if (!peer->finished)
        return awaited;
    awaited = (struct awaited){.wait = FABRIC_WAIT_FINISH, .kind = awaited.kind,
                               .round = awaited.round};
    for (int k = 0; k < m->place.size; k++)
        if (at_work(m, k))
            awaited_add(&awaited, k);
    return awaited;
}

void ranks_lead_tell_late(struct ranks *m)
{
    struct ranks_lead *lead = m->lead;
    uint64_t now = m->now_ns;
    struct awaited late = {.n = 0};

    if (!lead->since_ns || lead->failed || now - lead->since_ns < LATE_FIRST_NS ||
        now - lead->told_ns < LATE_AGAIN_NS)
        return;
    lead->told_ns = now;
    ranks_lead_late(m, &late);
    if (memcmp(&late, &lead->late, sizeof late) == 0)
        return;
    lead->late = late;
    for (int k = 0; k < m->place.size; k++) {
        const struct lead_peer *peer = &lead->peers[k];
        if (peer->left || !ledger_arrived(m->ledger, k) || peer->seq == peer->void_seq)
            continue;
        struct awaited theirs = late_for(m, peer, &late);
        ranks_tell(m, k, (struct ranks_word){.what = WORD_LATE}, &theirs, sizeof theirs);
    }
}
