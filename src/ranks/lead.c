/* SPDX-License-Identifier: MIT */
/* The coordinator, also when its trainer has left: it makes a round of its members'
 * arrivals. Its ledger (members.c) knows the members, and when the round may close; here
 * are the offers that they have brought. Where the link is fixed it is rank 0; where
 * ranks come and go each has this, for it may be the coordinator next. There
 *
 *   founding  once as many as are to found the job have said HELLO to rank 0
 *   coming    whoever says HELLO later is a newcomer, and heard by the ledger once its
 *             manifest is the same; one that differs is told so, alone
 *
 *   forming   all have said HELLO, their manifests are the same, and each has begun its first state
 *   round     of all at work who have arrived. Where exchanges are each trainer's own, only a STATE
 *             makes one, and calls the others to it (where parcels go, nothing forms:
 *             there are no rounds)
 *   final     when nobody is at work, of all who have not left
 *
 * 1. An arrival holds until the round closes, its sender takes it back, or begins another
 *    one.
 * 2. Once a round is closed its members do it to the end, whatever their trainers want
 *    meanwhile; it is never begun again.
 * 3. Vectors that are not finite have said so when they arrive: their share is nothing.
 */
#include "fabric/ruling.h"
#include "ranks/check.h"

#include <inttypes.h>
#include <string.h>

#define LATE_FIRST_NS UINT64_C(50000000)
#define LATE_AGAIN_NS UINT64_C(100000000)

struct lead_peer {
    bool hello, compared, left;
    uint64_t generation;            /* in the epoch that stood when this was looked at
                                       last */
    uint64_t taken;                 /* a newcomer: pieces of its state, as it has told */
    struct ranks_word *here;        /* to be heard once it is compared; NULL: none is */
    bool ends, finished;            /* has begun its finish; and that is not done */
    uint32_t void_seq;              /* of an arrival that goes on alone */
    bool owes_void, owes_call;      /* it is to hear VOID, and CALL after that */
    uint32_t threads;
    int host, local_rank;
    struct offer offer;             /* of its last arrival, */
    uint32_t seq;                   /* as its sender counts its exchanges */
    uint64_t note;
    struct ranks_op manifest_op;
    char *manifest;
    size_t manifest_bytes;
};

struct ranks_lead {
    struct lead_peer *peers;             /* by rank */
    struct offer *offers;           /* of those who have arrived */
    uint32_t *threads;              /* by host, of its ranks, as a round is closed */
    int n_left;                     /* peers that have left */
    bool formed, failed, called, all_left;
    bool owes;                      /* VOID or CALL, to some */
    uint32_t epoch;
    uint64_t since_ns, told_ns;     /* the first arrival of the round; who is late was
                                       told */
    struct awaited late;            /* as it was told */
    uint64_t held_ns;               /* since then newcomers alone hold a round up; 0: none
                                       does */
};

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
    if (m->f.rank == 0)
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

static void tell_all(struct ranks *m, struct ranks_word word, const void *tail,
                     size_t bytes)
{
    for (int k = 0; k < m->place.size; k++)
        ranks_tell(m, k, word, tail, bytes);
}

/* For all, also those who have not begun anything: it is said once. */
void ranks_lead_fail(struct ranks *m, descant_status status, const char *text)
{
    if (m->lead->failed)
        return;
    m->lead->failed = true;
    tell_all(m, (struct ranks_word){.what = WORD_FAIL, .status = (uint32_t)status}, text,
             strlen(text) + 1);
    ranks_fail(m, status, "%s", text);
}

static void set_left(struct ranks_lead *lead, struct lead_peer *peer, bool left)
{
    lead->n_left += left - peer->left;
    peer->left = left;
}

static bool at_work(const struct ranks *m, int rank)
{
    const struct lead_peer *peer = &m->lead->peers[rank];
    return m->lead->formed && m->members[rank] && !peer->left && !peer->finished;
}

static uint32_t count_at_work(const struct ranks *m)
{
    uint32_t n = 0;
    for (int k = 0; k < m->place.size; k++)
        n += at_work(m, k);
    return n;
}

/* --- forming --- */

/* Before the job has begun, a rank that differs ends it for all; later the rank alone
 * fails. */
static void turn_away(struct ranks *m, int rank, const char *text)
{
    struct ranks_word word = {.what = WORD_FAIL, .status = DESCANT_MISMATCH};

    if (m->place.fixed || (!m->founded && m->founders <= m->place.size)) {
        ranks_lead_fail(m, DESCANT_MISMATCH, text);
        return;
    }
    m->lead->peers[rank].compared = false;
    log_say(&m->f.log, DESCANT_WARNING, "turned away: %s", text);
    ranks_tell(m, rank, word, text, strlen(text) + 1);
}

/* A newcomer is heard once its manifest is the same, and it has the rows. */
static void admit(struct ranks *m, int rank)
{
    struct lead_peer *peer = &m->lead->peers[rank];
    struct ranks_word *here = peer->here;

    if (!here || !peer->compared || !ranks_rows_lead_admits(m, rank))
        return;
    peer->here = NULL;
    ranks_members_hear(m, rank, here);
    memory_give(here);
}

static void compare(struct ranks *m, struct ranks_op *op, const struct link_ended *ended)
{
    struct lead_peer *peer = &m->lead->peers[op->rank];
    struct differing d;
    char text[RANKS_TEXT];

    op->busy = false;
    peer->compared = !ended->failed;
    if (peer->compared && m->manifest &&
        manifests_differ(peer->manifest, m->manifest, &d)) {
        snprintf(text, sizeof text, "rank %d (%s) has \"%.*s\", rank %d (%s) \"%.*s\"",
                 op->rank, m->place.names[op->rank], d.n[0], d.text[0], m->f.rank,
                 m->place.names[m->f.rank], d.n[1], d.text[1]);
        turn_away(m, op->rank, text);
    }
    memory_give(peer->manifest);
    peer->manifest = NULL;
    m->ledger_moved = true;
    admit(m, op->rank);
}

static void hear_hello(struct ranks *m, int from, const struct ranks_word *word)
{
    struct lead_peer *peer = &m->lead->peers[from];
    size_t bytes = word->manifest_bytes;

    peer->hello = true;
    peer->threads = word->threads;
    peer->host = word->host;
    peer->local_rank = word->local_rank;
    peer->compared = from == m->f.rank;
    if (peer->compared)
        return;
    if (peer->manifest) {
        ranks_refuse(m, from, "HELLO twice");
        return;
    }
    peer->manifest = memory_take(bytes + 1);
    peer->manifest_op =
        (struct ranks_op){.ended = compare, .rank = from, .even_failed = true};
    if (!peer->manifest)
        ranks_lead_fail(m, DESCANT_MEMORY, "no memory for the lists of segments");
    else
        ranks_receive_op(m, &peer->manifest_op, peer->manifest, bytes, TAG_MANIFEST);
}

/* Where ranks come and go: epoch 1, of those who have come. */
static void found(struct ranks *m)
{
    struct ranks_word word = {.what = WORD_FORM};
    int n = 0;

    memset(m->list, 0, (size_t)m->place.size * sizeof *m->list);
    for (int k = 0; k < m->place.size; k++)
        if (k == m->f.rank || (m->lead->peers[k].compared && m->peers[k].generation)) {
            m->list[k].generation =
                k == m->f.rank ? m->place.generation : m->peers[k].generation;
            m->entries[n++] =
                (struct ranks_entry){.rank = k, .generation = m->list[k].generation};
        }
    if (n < m->founders)
        return;
    word.seats = (uint32_t)n;
    for (int k = 0; k < m->place.size; k++)
        if (m->list[k].generation && k != m->f.rank)
            ranks_tell(m, k, word, m->entries, word.seats * sizeof *m->entries);
    ranks_members_form(m);
}

/* Of which all have arrived once. */
static bool form_epoch(struct ranks *m)
{
    struct ledger_gathering g = ledger_gathering(m->ledger, NULL);

    m->lead->formed = ledger_view(m->ledger).held.number > 0 || g.arrived == g.members;
    return m->lead->formed;
}

/* True once the group is there. */
static bool form(struct ranks *m)
{
    struct ranks_lead *lead = m->lead;
    char text[RANKS_TEXT];

    if (!m->place.fixed)
        return form_epoch(m);
    for (int k = 0; lead->n_left && k < m->place.size; k++)
        if (lead->peers[k].left) {
            snprintf(text, sizeof text, "rank %d (%s) has left before the start", k,
                     m->place.names[k]);
            ranks_lead_fail(m, DESCANT_TIMEOUT, text);
            return false;
        }
    if (ledger_gathering(m->ledger, NULL).arrived < m->place.size)
        return false;
    for (int k = 0; k < m->place.size; k++)
        if (!lead->peers[k].compared)
            return false;
    lead->formed = true;
    lead->epoch++;
    return true;
}

/* --- what is heard --- */

/* Ranks of one host have places there in the order of their ranks, and one of them is the
 * first. */
static bool place_is_taken(const struct ranks *m, int from, const struct ranks_word *word)
{
    const struct lead_peer *peers = m->lead->peers;
    int hosts = 0;

    for (int k = 0; k < m->place.size; k++) {
        if (!peers[k].hello)
            continue;
        hosts += peers[k].local_rank == 0;
        bool before = peers[k].local_rank < word->local_rank,
             after = peers[k].local_rank > word->local_rank;
        if (peers[k].host == word->host && !(k < from ? before : after))
            return true;
    }
    return word->local_rank == 0 && hosts >= m->place.hosts;
}

/* The word is compared here, no more: it is not checked yet. */
void ranks_lead_facts(const struct ranks *m, int from, const struct ranks_word *word,
                      struct word_facts *facts)
{
    const struct lead_peer *peer = &m->lead->peers[from];

    facts->manifest = CHECK_MANIFEST + (m->manifest ? strlen(m->manifest) + 1 : 0);
    if (!m->place.fixed) {
        facts->turns |= 1U << WORD_HELLO | 1U << WORD_HERE;
        return;
    }
    facts->turns |= (uint32_t)!peer->left << WORD_LEAVE |
                    (uint32_t)(!peer->left && !peer->hello) << WORD_HELLO |
                    (uint32_t)peer->hello << WORD_HERE;
    facts->place_taken = word->what == WORD_HELLO && place_is_taken(m, from, word);
}

static void tell_members(struct ranks *m, const struct lead_peer *gone)
{
    struct ranks_lead *lead = m->lead;

    if (!lead->formed || !m->leads)
        return;
    lead->epoch++;
    tell_all(m,
             (struct ranks_word){.what = WORD_MEMBERS,
                                 .epoch = lead->epoch,
                                 .source = (int32_t)(gone - lead->peers),
                                 .final = !gone->left,
                                 .members = count_at_work(m)},
             NULL, 0);
}

static void hear_leave(struct ranks *m, struct lead_peer *peer)
{
    bool was = at_work(m, (int)(peer - m->lead->peers));

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
        lead->late.n = 0;               /* it has not been told */
        if (!lead->since_ns)
            lead->since_ns = m->now_ns;
    }
    peer->ends |= ends;
    peer->finished |= ends;
    if (ends && !peer->left)
        tell_members(m, peer);
    if (word->ledger.leaves && !peer->left)
        hear_leave(m, peer);
}

void ranks_lead_hear(struct ranks *m, int from, const struct ranks_word *word)
{
    m->ledger_moved = true;
    if (word->what == WORD_HELLO)
        hear_hello(m, from, word);
    else
        hear_leave(m, &m->lead->peers[from]);
}

/* --- where ranks come and go --- */

/* In a list that this rank has accepted: a coordinator has admitted it, and its promise
 * may be what makes that list stand. */
static bool was_admitted(const struct ranks *m, int rank, uint64_t generation)
{
    int coordinator;
    bool accepted = ledger_accepted(m->ledger, m->list, &coordinator);

    return accepted && m->list[rank].generation == generation;
}

bool ranks_lead_admits(struct ranks *m, int from, const struct ranks_word *word)
{
    struct lead_peer *peer = &m->lead->peers[from];
    bool newcomer = m->founded && m->members[from] != word->ledger.generation;

    if (m->place.fixed || from == m->f.rank || !newcomer)
        return true;
    if (peer->taken != word->n) {
        peer->taken = word->n;
        ledger_await(m->ledger, from, true);
        ranks_rows_lead_moved(m, from);
        m->lead->held_ns = m->lead->held_ns ? m->now_ns : 0;
    }
    if (word->ledger.epoch < ledger_view(m->ledger).epoch ||
        (peer->compared && (ranks_rows_lead_admits(m, from) ||
                            was_admitted(m, from, word->ledger.generation))))
        return true;
    if (!word->seats && !peer->here)
        peer->here = memory_take(sizeof *word);
    if (!word->seats && peer->here)     /* else it says so again */
        *peer->here = *word;
    return false;
}

void ranks_lead_gone(struct ranks *m, int rank)
{
    struct lead_peer *peer = &m->lead->peers[rank];

    peer->hello = peer->compared = false;
    memory_give(peer->here);
    peer->here = NULL;
    ledger_await(m->ledger, rank, true);
    peer->void_seq = 0;
    peer->owes_void = peer->owes_call = false;
    m->ledger_moved = true;
    ranks_rows_lead_gone(m, rank);
}

void ranks_lead_ends(struct ranks *m, int rank, bool finishes)
{
    struct lead_peer *peer = &m->lead->peers[rank];

    peer->ends |= finishes;
    peer->finished |= finishes;
    set_left(m->lead, peer, peer->left || !finishes);
}

/* Of one that was a member, or is one now, or both. */
static void note_change(struct ranks *m, int rank, bool first)
{
    struct lead_peer *peer = &m->lead->peers[rank];

    if (peer->generation && !peer->ends && !peer->left)
        notes_add(m->f.notes, DESCANT_EVENT_LOST, rank);
    if (m->members[rank] && !first)
        notes_add(m->f.notes, DESCANT_EVENT_JOINED, rank);
    peer->generation = m->members[rank];
    peer->ends = peer->finished = false;
    set_left(m->lead, peer, !peer->generation);
}

/* Epochs that a rank is no member of say nothing to its trainer. The number of members is
 * there before the events are noted, whose lines have it. */
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
        members += m->members[k] && (is_new || (!peer->left && !peer->finished));
    }
    lead->epoch = (uint32_t)ledger_view(m->ledger).epoch << 12;
    atomic_store_explicit(&m->f.members, members, memory_order_relaxed);
    atomic_store_explicit(&m->f.epoch, lead->epoch, memory_order_relaxed);
    for (int k = 0; k < m->place.size; k++) {
        struct lead_peer *peer = &lead->peers[k];
        peer->void_seq = 0;             /* one that arrives still has not heard VOID */
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

/* --- closing --- */

static bool has_arrived(const struct ranks *m, int k)
{
    const struct lead_peer *peer = &m->lead->peers[k];
    return m->list[k].seq && peer->seq != peer->void_seq;
}

/* The offers of the arrivals in m->list. This rank may have become hollow since it has
 * arrived, or be so no more. */
static int gather_offers(struct ranks *m)
{
    int n = 0;

    m->lead->peers[m->f.rank].offer.kind =
        (enum exchange_kind)ranks_members_arrival(m).kind;
    for (int k = 0; k < m->place.size; k++)
        if (has_arrived(m, k))
            m->lead->offers[n++] = m->lead->peers[k].offer;
    return n;
}

static uint32_t next_round(const struct ranks *m)
{
    return (uint32_t)ledger_series(m->ledger) + 1;
}

/* 0: it is not known, for the coordinator was another one when the ranks came. */
static void count_threads(struct ranks *m)
{
    struct ranks_lead *lead = m->lead;

    memset(lead->threads, 0, (size_t)m->place.size * sizeof *lead->threads);
    for (int k = 0; k < m->place.size; k++)
        if (!lead->peers[k].left)
            lead->threads[lead->peers[k].host] += lead->peers[k].threads;
}

/* The members that have arrived; and for a state that gives the centre all others as
 * helpers, which it reaches because they own slices of it, also if they have left. */
static uint32_t sit(struct ranks *m, struct ranks_run *runs, bool all, bool shares)
{
    uint32_t n = 0;
    int nth = 0;

    count_threads(m);
    for (int k = 0; k < m->place.size; k++) {
        struct lead_peer *peer = &m->lead->peers[k];
        bool member = has_arrived(m, k);
        if (!member && (!all || (!m->place.fixed && !m->members[k])))
            continue;
        const struct ranks_seat seat = {
            .rank = k, .seq = member ? peer->seq : 0,
            .arrival = member ? m->list[k].seq : 0, .bad = member && peer->offer.bad,
            .threads = m->lead->threads[peer->host],
            .host = m->place.fixed ? peer->host : k, .local_rank = peer->local_rank,
            .share = shares ? m->shares[nth++] : 0};
        n = ranks_runs_add(runs, n, &seat);
    }
    return n;
}

/* Encoded means are differences from a result that all have taken. A member that gave up
 * the exchange in which others took theirs has an older one; the
 * next result, as it is, serves all again. */
static bool can_encode(const struct ranks *m, const struct ruling *ruling, bool final,
                       uint32_t members)
{
    return m->f.wire != WIRE_F32 && ruling->what == RULING_MEAN && !final &&
           members >= 2 && ruling->n <= m->n && ruling->one_reference;
}

static void begin_finish(struct ranks *m)
{
    for (int k = 0; k < m->place.size; k++)
        m->lead->peers[k].finished = false;
    m->lead->epoch++;
}

static void take_own_seat(struct ranks *m)
{
    const struct ranks_run *runs = ranks_runs(m->go), *end = runs + m->go->seats;

    for (const struct ranks_run *run = runs; run < end; run++)
        for (int k = run->first.rank; m->place.fixed && !run->first.arrival &&
                                      k < run->first.rank + (int)run->n; k++)
            if (k != m->f.rank)
                ranks_tell(m, k, *m->go, runs, m->go->seats * sizeof *runs);
    m->go_waits |= ranks_run_of(runs, m->go->seats, m->f.rank) != NULL;
    m->go_ns = m->now_ns;
}

/* All have arrived. */
static void close_round(struct ranks *m, const struct ledger_gathering *g,
                        const struct ruling *ruling)
{
    struct ranks_lead *lead = m->lead;
    bool state = ruling->what == RULING_STATE, final = lead->offers[0].final;
    struct ranks_word word = {.what = WORD_GO, .n = ruling->n, .final = final,
                            .kind = state ? EXCHANGE_STATE : EXCHANGE_MEAN,
                            .members = (uint32_t)g->members, .source = -1};

    if (ruling->n > (state ? m->n : m->room > m->n ? m->room : m->n)) {
        ranks_refuse(m, lead->offers[state ? ruling->place : 0].rank, "HERE: n %" PRIu64,
                     ruling->n);
        return;
    }
    word.round = next_round(m);
    word.encoded = can_encode(m, ruling, final, word.members);
    word.seats = sit(m, (struct ranks_run *)(m->go + 1), state && m->f.center && !final,
                     ruling->what == RULING_MEAN);
    if (state) {
        word.source = lead->offers[ruling->place].rank;
        word.note = lead->peers[word.source].note;
    } else if (ruling->what == RULING_MEAN) {
        word.source = 0;
    }
    if (g->final)
        begin_finish(m);
    word.epoch = lead->epoch;
    word.protocol = RANKS_PROTOCOL;
    *m->go = word;
    lead->called = false;
    lead->since_ns = lead->told_ns = lead->held_ns = 0;
    lead->late.n = 0;
    ranks_members_close(m);
    take_own_seat(m);
    if (m->go_waits)
        ranks_take_part(m, m->go);
}

/* Each is said once, so they wait for a peer to which too many words are on their way. */
static void say_owed(struct ranks *m)
{
    struct ranks_lead *lead = m->lead;

    lead->owes = false;
    for (int k = 0; k < m->place.size; k++) {
        struct lead_peer *peer = &lead->peers[k];
        const struct ranks_word none = {.what = WORD_VOID, .seq = peer->void_seq};
        const struct ranks_word call = {.what = WORD_CALL};
        peer->owes_void = peer->owes_void && !ranks_tell(m, k, none, NULL, 0);
        peer->owes_call &= lead->called;
        if (!peer->owes_void)
            peer->owes_call = peer->owes_call && !ranks_tell(m, k, call, NULL, 0);
        lead->owes |= peer->owes_void || peer->owes_call;
    }
}

/* Elastic arrivals whose STATE has gone, also those that come after it. A rank that has
 * not arrived may still be in the round before. */
static void make_void(struct ranks *m)
{
    struct ranks_lead *lead = m->lead;

    lead->called = false;
    lead->since_ns = 0;
    for (int k = 0; k < m->place.size; k++) {
        struct lead_peer *peer = &lead->peers[k];
        if (!at_work(m, k))
            continue;
        peer->void_seq = has_arrived(m, k) ? peer->seq : peer->void_seq;
        peer->owes_void = true;
        peer->owes_call = false;
    }
    say_owed(m);
}

static void call_late(struct ranks *m)
{
    m->lead->called = true;
    for (int k = 0; k < m->place.size; k++) {
        struct lead_peer *peer = &m->lead->peers[k];
        peer->owes_call = at_work(m, k) && !has_arrived(m, k);
    }
    say_owed(m);
}

static void gather(struct ranks *m)
{
    struct ranks_lead *lead = m->lead;
    struct ledger_gathering g = ledger_gathering(m->ledger, NULL);
    bool alone = !m->collective && !g.final;
    char text[RANKS_TEXT];

    /* each of many arrivals but the first and the last: nothing that it brings counts yet
     */
    if (m->collective && !m->f.center && g.arrived && g.arrived < g.members &&
        (lead->called || g.final))
        return;
    ledger_gathering(m->ledger, m->list);
    int arrived = gather_offers(m);
    struct ruling ruling = round_rule(lead->offers, arrived, g.members, alone, m->shares);
    switch (ruling.what) {
    case RULING_VOID:
        if (lead->called || arrived)
            make_void(m);
        break;
    case RULING_WAITS:
        if (!lead->called && !g.final)
            call_late(m);
        break;
    case RULING_DIFFER:
        offers_say(text, sizeof text, &lead->offers[0], &lead->offers[ruling.place]);
        ranks_lead_fail(m, DESCANT_MISMATCH, text);
        break;
    case RULING_STATE:
        if (g.may_close)
            close_round(m, &g, &ruling);
        break;
    case RULING_MEAN:
    case RULING_EMPTY:
        if (g.may_close && !g.taken)
            close_round(m, &g, &ruling);
        else if (g.may_close && !lead->held_ns)
            lead->held_ns = m->now_ns;
    }
}

/* Newcomers hold a mean up as long as they take their state; without a piece more, for
 * `dead`. */
void ranks_lead_time(struct ranks *m)
{
    struct ranks_lead *lead = m->lead;

    if (!lead->held_ns || m->now_ns - lead->held_ns < m->dead_ns)
        return;
    lead->held_ns = 0;
    for (int k = 0; k < m->place.size; k++)
        if (m->peers[k].generation != m->members[k])
            ledger_await(m->ledger, k, false);
    m->ledger_moved = true;
}

void ranks_lead_turn(struct ranks *m)
{
    struct ranks_lead *lead = m->lead;

    if (!m->founded && !lead->failed && m->f.rank == 0 && m->started && m->ledger_moved) {
        m->ledger_moved = false;
        found(m);
    }
    if (m->leads && lead->owes)
        say_owed(m);
    while (m->leads && m->ledger_moved && !lead->failed && !m->go_waits) {
        m->ledger_moved = false;
        for (int k = 0; k < m->place.size && m->base.rows; k++)
            admit(m, k);
        if (!lead->formed && (m->post || !form(m)))
            break;
        gather(m);
    }
    if (m->place.fixed && !lead->all_left && lead->n_left == m->place.size &&
        !ranks_rows_closed(m)) {
        lead->all_left = true;
        tell_all(m, (struct ranks_word){.what = WORD_BYE}, NULL, 0);
    }
}

/* --- who is late --- */

void ranks_lead_late(struct ranks *m, struct awaited *awaited)
{
    const struct ranks_lead *lead = m->lead;

    awaited->wait = !lead->formed ? FABRIC_WAIT_START : FABRIC_WAIT_ROUND;
    awaited->round = next_round(m);
    ledger_gathering(m->ledger, m->list);
    for (int k = 0; k < m->place.size; k++)
        if (m->list[k].generation && !has_arrived(m, k) && !lead->peers[k].left)
            awaited_add(awaited, k);
}

/* Those whose trainers have finished wait for all who are at work. */
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
