/* SPDX-License-Identifier: MIT */
/* The coordinator, rank 0, also when its trainer has left: who takes part, and when a round closes.
 * The world is fixed, so this is less than what docs/shm.md does: nobody comes later, and who dies
 * ends the job.
 *
 *   forming   all have said HELLO, their manifests are the same, and each has begun its first state
 *   round     closes when every member has arrived; a leaver is no member any more. Where exchanges
 *             are each trainer's own, only a STATE makes a round, and calls the others to it
 *             (where parcels go, nothing forms: there are no rounds)
 *   final     when nobody is a member, and all who have not left have begun a final exchange
 *
 * 1. An arrival holds until the round closes, its sender takes it back, or begins another one.
 * 2. Once a round is closed its members do it to the end, whatever their trainers want meanwhile;
 *    it is never begun again.
 * 3. Vectors that are not finite have said so when they arrive: their share is nothing. */
#include "fabric/ruling.h"
#include "ranks/check.h"

#include <inttypes.h>
#include <string.h>

#define LATE_FIRST_NS UINT64_C(50000000)
#define LATE_AGAIN_NS UINT64_C(100000000)

enum life { LIFE_OPENED, LIFE_MEMBER, LIFE_FINAL, LIFE_LEFT };

struct peer {
    enum life life;
    bool hello, compared, arrived;
    uint32_t threads;
    int host, local_rank;
    struct ranks_word arrival;        /* where it has arrived */
    struct ranks_op manifest_op;
    char *manifest;
    size_t manifest_bytes;
};

struct ranks_lead {
    struct peer *peers;             /* by rank */
    struct ranks_seat *seats;
    struct offer *offers;           /* of those who have arrived */
    bool changed, formed, failed, called, all_left;
    uint32_t round, epoch;
    uint64_t since_ns, told_ns;     /* the first arrival of the round; who is late was told */
    struct awaited late;            /* as it was told */
};

descant_status ranks_lead_init(struct ranks *m)
{
    size_t size = (size_t)m->place.size;

    m->lead = memory_take(sizeof *m->lead);
    if (!m->lead)
        return log_fail(&m->f.log, DESCANT_MEMORY, "no memory for the coordinator");
    m->lead->peers = memory_take_array(size, sizeof *m->lead->peers);
    m->lead->seats = memory_take_array(size, sizeof *m->lead->seats);
    m->lead->offers = memory_take_array(size, sizeof *m->lead->offers);
    if (!m->lead->peers || !m->lead->seats || !m->lead->offers)
        return log_fail(&m->f.log, DESCANT_MEMORY, "no memory for the coordinator");
    m->blame = ranks_lead_fail;
    m->lead->round = 1;
    return DESCANT_OK;
}

void ranks_lead_fini(struct ranks *m)
{
    if (!m->lead)
        return;
    for (int k = 0; m->lead->peers && k < m->place.size; k++)
        memory_give(m->lead->peers[k].manifest);
    memory_give(m->lead->peers);
    memory_give(m->lead->seats);
    memory_give(m->lead->offers);
    memory_give(m->lead);
}

static void tell_all(struct ranks *m, struct ranks_word word, const void *tail, size_t bytes)
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

static int count(const struct ranks *m, enum life life)
{
    int n = 0;
    for (int k = 0; k < m->place.size; k++)
        n += m->lead->peers[k].life == life;
    return n;
}

/* --- forming --- */

static void compare(struct ranks *m, struct ranks_op *op, const struct link_ended *ended)
{
    struct peer *peer = &m->lead->peers[op->rank];
    struct differing d;
    char text[RANKS_TEXT];

    (void)ended;
    op->busy = false;
    peer->compared = true;
    if (m->manifest && manifests_differ(peer->manifest, m->manifest, &d)) {
        snprintf(text, sizeof text, "rank %d (%s) has \"%.*s\", rank 0 (%s) \"%.*s\"", op->rank,
                 m->place.names[op->rank], d.n[0], d.text[0],
                 m->place.names[0], d.n[1], d.text[1]);
        ranks_lead_fail(m, DESCANT_MISMATCH, text);
    }
    memory_give(peer->manifest);
    peer->manifest = NULL;
    m->lead->changed = true;
}

static void hear_hello(struct ranks *m, int from, const struct ranks_word *word)
{
    struct peer *peer = &m->lead->peers[from];
    size_t bytes = word->manifest_bytes;

    peer->hello = true;
    peer->threads = word->threads;
    peer->host = word->host;
    peer->local_rank = word->local_rank;
    peer->compared = from == m->f.rank;
    if (peer->compared)
        return;
    peer->manifest = memory_take(bytes + 1);
    peer->manifest_op = (struct ranks_op){.ended = compare, .rank = from};
    if (!peer->manifest)
        ranks_lead_fail(m, DESCANT_MEMORY, "no memory for the lists of segments");
    else
        ranks_receive_op(m, &peer->manifest_op, peer->manifest, bytes, TAG_MANIFEST);
}

/* True once the group is there. */
static bool form(struct ranks *m)
{
    struct ranks_lead *lead = m->lead;
    char text[RANKS_TEXT];

    for (int k = 0; k < m->place.size; k++)
        if (lead->peers[k].life == LIFE_LEFT) {
            snprintf(text, sizeof text, "rank %d (%s) has left before the start", k,
                     m->place.names[k]);
            ranks_lead_fail(m, DESCANT_TIMEOUT, text);
            return false;
        }
    for (int k = 0; k < m->place.size; k++)
        if (!lead->peers[k].compared || !lead->peers[k].arrived)
            return false;
    for (int k = 0; k < m->place.size; k++)
        if (lead->peers[k].life == LIFE_OPENED)
            lead->peers[k].life = LIFE_MEMBER;
    lead->formed = true;
    lead->epoch++;
    return true;
}

/* --- what is heard --- */

/* Ranks of one host have places there in the order of their ranks, and one of them is the first. */
static bool place_is_taken(const struct ranks *m, int from, const struct ranks_word *word)
{
    const struct peer *peers = m->lead->peers;
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
/* A later exchange takes the place of one that was given up in a round of others. */
static bool may_arrive(const struct peer *peer, const struct ranks_word *word)
{
    return !peer->arrived || (int32_t)(word->seq - peer->arrival.seq) > 0;
}

void ranks_lead_facts(const struct ranks *m, int from, const struct ranks_word *word,
                      struct word_facts *facts)
{
    const struct peer *peer = &m->lead->peers[from];
    bool here = peer->life != LIFE_LEFT, known = here && peer->hello;

    facts->manifest = CHECK_MANIFEST + (m->manifest ? strlen(m->manifest) + 1 : 0);
    facts->turns |= (uint32_t)here << WORD_LEAVE | (uint32_t)(here && !known) << WORD_HELLO |
                    (uint32_t)(known && may_arrive(peer, word)) << WORD_ARRIVE |
                    (uint32_t)known << WORD_TAKE_BACK;
    facts->place_taken = word->what == WORD_HELLO && place_is_taken(m, from, word);
}

static void tell_members(struct ranks *m, const struct peer *gone)
{
    struct ranks_lead *lead = m->lead;

    if (!lead->formed)
        return;
    lead->epoch++;
    tell_all(m, (struct ranks_word){.what = WORD_MEMBERS, .epoch = lead->epoch,
                                  .source = (int32_t)(gone - lead->peers),
                                  .final = gone->life == LIFE_FINAL,
                                  .members = (uint32_t)count(m, LIFE_MEMBER)}, NULL, 0);
}

static void become(struct ranks *m, struct peer *peer, enum life life)
{
    bool was = peer->life == LIFE_MEMBER;

    peer->life = life;
    if (was && life != LIFE_MEMBER)
        tell_members(m, peer);
}

static void hear_arrive(struct ranks *m, struct peer *peer, const struct ranks_word *word)
{
    struct ranks_lead *lead = m->lead;

    peer->arrival = *word;
    peer->arrived = true;
    lead->late.n = 0;               /* it has not been told */
    if (!lead->since_ns)
        lead->since_ns = m->now_ns;
    if (word->final)
        become(m, peer, LIFE_FINAL);
}

void ranks_lead_hear(struct ranks *m, int from, const struct ranks_word *word)
{
    struct peer *peer = &m->lead->peers[from];

    m->lead->changed = true;
    switch ((enum ranks_what)word->what) {
    case WORD_HELLO:
        hear_hello(m, from, word);
        break;
    case WORD_ARRIVE:
        hear_arrive(m, peer, word);
        break;
    case WORD_TAKE_BACK:
        peer->arrived &= peer->arrival.seq != word->seq;
        break;
    default:
        peer->arrived = false;
        become(m, peer, LIFE_LEFT);
    }
}

/* --- closing --- */

/* What those of that life have brought who have arrived. */
static int gather_offers(struct ranks *m, enum life life)
{
    int n = 0;

    for (int k = 0; k < m->place.size; k++) {
        const struct ranks_word *a = &m->lead->peers[k].arrival;
        if (m->lead->peers[k].life == life && m->lead->peers[k].arrived)
            m->lead->offers[n++] = (struct offer){
                .rank = k, .kind = (enum exchange_kind)a->kind, .final = a->final, .bad = a->bad,
                .refers = a->refers, .n = a->n, .agree = a->agree, .priority = a->priority,
                .weight = a->weight};
    }
    return n;
}

static uint32_t machine_threads(const struct ranks *m, int host)
{
    uint32_t sum = 0;
    for (int k = 0; k < m->place.size; k++)
        if (m->lead->peers[k].host == host && m->lead->peers[k].life != LIFE_LEFT)
            sum += m->lead->peers[k].threads;
    return sum;
}

/* Those of that life; and for a state that gives the centre all others as helpers, whom it reaches
 * because they own slices of it, also if they have left. */
static int sit(struct ranks *m, enum life life, bool all)
{
    struct ranks_lead *lead = m->lead;
    int n = 0;

    for (int k = 0; k < m->place.size; k++) {
        struct peer *peer = &lead->peers[k];
        bool member = peer->life == life;
        if (!member && !all)
            continue;
        lead->seats[n++] = (struct ranks_seat){
            .rank = k, .seq = member ? peer->arrival.seq : 0, .bad = member && peer->arrival.bad,
            .threads = machine_threads(m, peer->host), .host = peer->host,
            .local_rank = peer->local_rank};
        peer->arrived &= !member;
    }
    return n;
}

/* Encoded means are differences from a result that all have taken. Who gave up the exchange in
 * which others took theirs has an older one; the next result, as it is, serves all again. */
static bool can_encode(const struct ranks *m, const struct ruling *ruling, bool final, uint32_t members)
{
    return m->f.wire != WIRE_F32 && ruling->what == RULING_MEAN && !final && members >= 2 &&
           ruling->n <= m->n && ruling->one_reference;
}

/* All of that life have arrived. */
static void close_round(struct ranks *m, enum life life, const struct ruling *ruling)
{
    struct ranks_lead *lead = m->lead;
    bool state = ruling->what == RULING_STATE, final = lead->offers[0].final;
    struct ranks_word word = {.what = WORD_GO, .round = lead->round, .n = ruling->n, .final = final,
                            .kind = state ? EXCHANGE_STATE : EXCHANGE_MEAN,
                            .members = (uint32_t)count(m, life), .source = -1};

    if (ruling->n > (state ? m->n : m->room > m->n ? m->room : m->n)) {
        ranks_refuse(m, lead->offers[state ? ruling->place : 0].rank, "ARRIVE: n %" PRIu64,
                     ruling->n);
        return;
    }
    word.encoded = can_encode(m, ruling, final, word.members);
    word.seats = (uint32_t)sit(m, life, state && m->f.center && !final);
    if (state) {
        word.source = lead->offers[ruling->place].rank;
        word.note = lead->peers[word.source].arrival.note;
    } else if (ruling->what == RULING_MEAN) {
        word.source = 0;
    }
    for (uint32_t i = 0; i < word.seats && ruling->what == RULING_MEAN; i++)
        lead->seats[i].share = m->shares[i];
    if (life == LIFE_FINAL) {
        for (int k = 0; k < m->place.size; k++)
            if (lead->peers[k].life == LIFE_FINAL)
                lead->peers[k].life = LIFE_MEMBER;
        lead->epoch++;
    }
    word.epoch = lead->epoch;
    lead->round++;
    lead->called = false;
    lead->since_ns = lead->told_ns = 0;
    lead->late.n = 0;
    for (uint32_t i = 0; i < word.seats; i++)
        ranks_tell(m, lead->seats[i].rank, word, lead->seats, word.seats * sizeof *lead->seats);
}

/* Elastic arrivals whose STATE has gone, also those that come after it. Who has not arrived may
 * still be in the round before. */
static void make_void(struct ranks *m)
{
    struct ranks_lead *lead = m->lead;

    lead->called = false;
    lead->since_ns = 0;
    for (int k = 0; k < m->place.size; k++) {
        struct peer *peer = &lead->peers[k];
        if (peer->life != LIFE_MEMBER)
            continue;
        uint32_t seq = peer->arrived ? peer->arrival.seq : 0;   /* 0: of none */
        peer->arrived = false;
        ranks_tell(m, k, (struct ranks_word){.what = WORD_VOID, .seq = seq}, NULL, 0);
    }
}

static void call_late(struct ranks *m)
{
    m->lead->called = true;
    for (int k = 0; k < m->place.size; k++)
        if (m->lead->peers[k].life == LIFE_MEMBER && !m->lead->peers[k].arrived)
            ranks_tell(m, k, (struct ranks_word){.what = WORD_CALL}, NULL, 0);
}

static void gather(struct ranks *m, enum life life)
{
    struct ranks_lead *lead = m->lead;
    int arrived = gather_offers(m, life);
    bool alone = !m->collective && life != LIFE_FINAL;
    struct ruling ruling = round_rule(lead->offers, arrived, count(m, life), alone, m->shares);
    char text[RANKS_TEXT];

    switch (ruling.what) {
    case RULING_VOID:
        if (lead->called || arrived)
            make_void(m);
        break;
    case RULING_WAITS:
        if (!lead->called && life == LIFE_MEMBER)
            call_late(m);
        break;
    case RULING_DIFFER:
        offers_say(text, sizeof text, &lead->offers[0], &lead->offers[ruling.place]);
        ranks_lead_fail(m, DESCANT_MISMATCH, text);
        break;
    case RULING_STATE:
    case RULING_MEAN:
    case RULING_EMPTY:
        close_round(m, life, &ruling);
    }
}

void ranks_lead_turn(struct ranks *m)
{
    struct ranks_lead *lead = m->lead;

    while (lead->changed && !lead->failed && !m->go_waits) {
        lead->changed = false;
        if (!lead->formed && (m->post || !form(m)))
            break;
        if (count(m, LIFE_MEMBER))
            gather(m, LIFE_MEMBER);
        else if (count(m, LIFE_FINAL))
            gather(m, LIFE_FINAL);
    }
    if (!lead->all_left && count(m, LIFE_LEFT) == m->place.size && !ranks_rows_closed(m)) {
        lead->all_left = true;
        tell_all(m, (struct ranks_word){.what = WORD_BYE}, NULL, 0);
    }
}

/* --- who is late --- */

void ranks_lead_late(const struct ranks *m, struct awaited *awaited)
{
    const struct ranks_lead *lead = m->lead;
    bool members = count(m, LIFE_MEMBER) > 0;

    awaited->wait = !lead->formed ? FABRIC_WAIT_START : FABRIC_WAIT_ROUND;
    awaited->round = lead->round;
    for (int k = 0; k < m->place.size; k++) {
        enum life life = lead->peers[k].life;
        if ((life == LIFE_OPENED || life == LIFE_MEMBER || (life == LIFE_FINAL && !members)) &&
            !lead->peers[k].arrived)
            awaited_add(awaited, k);
    }
}

/* Those whose trainers have finished wait for all who are at work. */
static struct awaited late_for(const struct ranks *m, const struct peer *peer,
                               const struct awaited *late)
{
    struct awaited awaited = *late;

    awaited.kind = (enum exchange_kind)peer->arrival.kind;
    if (peer->life != LIFE_FINAL)
        return awaited;
    awaited = (struct awaited){.wait = FABRIC_WAIT_FINISH, .kind = awaited.kind,
                               .round = awaited.round};
    for (int k = 0; k < m->place.size; k++)
        if (m->lead->peers[k].life < LIFE_FINAL)
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
        const struct peer *peer = &lead->peers[k];
        if (peer->life == LIFE_LEFT || !peer->arrived)
            continue;
        struct awaited theirs = late_for(m, peer, &late);
        ranks_tell(m, k, (struct ranks_word){.what = WORD_LATE}, &theirs, sizeof theirs);
    }
}
