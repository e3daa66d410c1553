/* SPDX-License-Identifier: MIT */
/* The coordinator makes rounds of its members' arrivals. The ledger (members.c) says
 * when a round may close; fabric/ruling.h says what the offers make:
 *
 *   a round     of all members at work that have arrived. Where exchanges are each
 *               trainer's own, only a STATE makes a round, and CALL asks the others to
 *               it. Where parcels go there are no rounds
 *   a last one  of all members at their end, once no member is at work
 *
 * Once a round is closed its members do it to the end, whatever their trainers want
 * meanwhile; it is never begun again. A round of rows has its own coordinator's part,
 * rows_lead.c. */
#include "ranks/lead.h"

#include <inttypes.h>
#include <string.h>

/* A hub offers nothing, but for the state of a job that has ended before this one. */
static bool offers(const struct ranks *m, int rank)
{
    const struct offer *offer = &m->lead->peers[rank].offer;
    return rank != m->hub || (offer->kind == EXCHANGE_STATE && offer->priority > 0);
}

/* The offers of the arrivals in m->list. This rank may have become hollow since it has
 * arrived, or may have a state again. */
static int gather_offers(struct ranks *m)
{
    int n = 0;

    m->lead->peers[m->f.rank].offer.kind =
        (enum exchange_kind)ranks_members_arrival(m).kind;
    for (int k = 0; k < m->place.size; k++)
        if (offers(m, k) && has_arrived(m, k))
            m->lead->offers[n++] = m->lead->peers[k].offer;
    return n;
}

/* Counts the threads of each host; 0: not known, for another rank was coordinator when
 * the host's ranks came. */
static void count_threads(struct ranks *m)
{
    struct ranks_lead *lead = m->lead;

    memset(lead->threads, 0, (size_t)m->place.size * sizeof *lead->threads);
    for (int k = 0; k < m->place.size; k++)
        if (!lead->peers[k].left)
            lead->threads[lead->peers[k].host] += lead->peers[k].threads;
}

/* The share of the members that have arrived: where late members carry their work, the
 * others have the rest, also those at their end, which go on from each result. */
static double share_in(const struct ranks *m, const struct ledger_gathering *g)
{
    return m->carries && !g->final ? (double)g->arrived / g->present : 1;
}

/* Seats the members that have arrived. For a state that gives the centre it seats all
 * others as helpers, also those that have left, for they own slices of the centre.
 * in: of a mean, the share of all seats together; else 0. */
static uint32_t sit(struct ranks *m, struct ranks_run *runs, bool all, double in)
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
            .share = in > 0 && member && k != m->hub ? in * m->shares[nth++] : 0};
        n = ranks_runs_add(runs, n, &seat);
    }
    return n;
}

/* Encoded means are differences from a result that all members have taken. A member that
 * gave up the exchange in which the others took that result has an older one; after the
 * next mean, which is not encoded, all have the same again. */
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

static void say_aside(struct ranks *m)
{
    for (int k = 0; k < m->place.size; k++) {
        struct lead_peer *peer = &m->lead->peers[k];
        bool aside = ledger_is_aside(m->ledger, k);
        if (aside == peer->aside)
            continue;
        peer->aside = aside;
        if (aside)
            log_say(&m->f.log, DESCANT_INFO,
                    "trainer %d (%s) holds rounds up: they go on without it for %.3g s",
                    k, ranks_host_name(m, k),
                    (double)ledger_aside_ns(m->ledger, k) * 1e-9);
        else
            log_say(&m->f.log, DESCANT_INFO, "rounds wait for trainer %d (%s) again", k,
                    ranks_host_name(m, k));
    }
}

/* Closes the round: enough members have arrived. */
static void close_round(struct ranks *m, const struct ledger_gathering *g,
                        const struct ruling *ruling)
{
    struct ranks_lead *lead = m->lead;
    bool state = ruling->what == RULING_STATE, final = lead->offers[0].final;
    struct ranks_word word = {.what = WORD_GO, .n = ruling->n, .final = final,
                            .kind = state ? EXCHANGE_STATE : EXCHANGE_MEAN,
                            .members = (uint32_t)(m->carries ? g->present : g->members),
                            .source = -1};

    if (ruling->n > (state ? m->n : m->room > m->n ? m->room : m->n)) {
        ranks_refuse(m, lead->offers[state ? ruling->place : 0].rank, "HERE: n %" PRIu64,
                     ruling->n);
        return;
    }
    word.round = next_round(m);
    word.encoded = can_encode(m, ruling, final, word.members);
    double in = ruling->what == RULING_MEAN ? share_in(m, g) : 0;
    word.weight = in > 0 ? 1 - in : 0;
    word.seats =
        sit(m, (struct ranks_run *)(m->go + 1), state && m->f.center && !final, in);
    if (state) {
        word.source = lead->offers[ruling->place].rank;
        word.note = lead->peers[word.source].note;
    } else if (ruling->what == RULING_MEAN) {
        word.source = 0;
    }
    if (g->final) {
        begin_finish(m);
        ranks_deal_final(m, state ? lead->offers[ruling->place].rank : -1);
    }
    word.epoch = lead->epoch;
    word.protocol = RANKS_PROTOCOL;
    *m->go = word;
    lead->called = false;
    lead->since_ns = lead->told_ns = lead->held_ns = 0;
    lead->late.n = 0;
    ranks_members_close(m);
    if (m->quorum.arrivals > 0)
        say_aside(m);
    take_own_seat(m);
    if (m->go_waits)
        ranks_take_part(m, m->go);
}

/* Says VOID and CALL, each once: where too many words are on their way to a peer, they
 * wait. */
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

/* Elastic arrivals lose their STATE: its source has gone or has taken it back. Ranks that
 * arrive later hear VOID, too; one of them may still be in the round before. */
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
        peer->owes_call = (at_work(m, k) || k == m->hub) && !has_arrived(m, k);
    }
    say_owed(m);
}

/* The hub comes to a round when it is called, once. */
static bool lacks_hub(const struct ranks *m)
{
    return m->hub >= 0 && m->members[m->hub] && !has_arrived(m, m->hub) &&
           !m->lead->peers[m->hub].owes_call && !m->lead->called;
}

static void gather(struct ranks *m)
{
    struct ranks_lead *lead = m->lead;
    struct ledger_gathering g = ledger_gathering(m->ledger, NULL);
    bool alone = !m->collective && !g.final;
    char text[RANKS_TEXT];

    /* of many arrivals only the first, the last and a quorum's can change anything */
    if (m->collective && !m->f.center && g.arrived && g.arrived < g.members &&
        !g.may_close && (lead->called || g.final))
        return;
    ledger_gathering(m->ledger, m->list);
    int arrived = gather_offers(m);
    struct ruling ruling = round_rule(
        lead->offers, (struct ruling_of){arrived, g.members, g.may_close, alone},
        m->shares);
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
        else if (lacks_hub(m))
            call_late(m);
        break;
    case RULING_MEAN:
    case RULING_EMPTY:
        if (!g.may_close && lacks_hub(m))
            call_late(m);
        else if (g.may_close && !g.taken)
            close_round(m, &g, &ruling);
        else if (g.may_close && !lead->held_ns)
            lead->held_ns = m->now_ns;
    }
}

/* A mean waits for newcomers while they take their state. If no piece comes to them for
 * `dead`, the mean goes on without them. */
void ranks_lead_time(struct ranks *m)
{
    struct ranks_lead *lead = m->lead;

    if (m->leads && lead->called)       /* a rank that knew an older epoch dropped it */
        call_late(m);
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
    bool founder = m->f.rank == ranks_founder(m);

    if (!m->founded && !lead->failed && founder && m->started && m->ledger_moved) {
        m->ledger_moved = false;
        ranks_admission_found(m);
    }
    if (m->leads && lead->owes)
        say_owed(m);
    while (m->leads && m->ledger_moved && !lead->failed && !m->go_waits) {
        m->ledger_moved = false;
        for (int k = 0; k < m->place.size && (m->base.rows || m->f.hub); k++)
            ranks_admission_admit(m, k);
        if (!lead->formed && (m->post || !ranks_admission_form(m)))
            break;
        gather(m);
    }
    if (m->place.fixed && !lead->all_left && lead->n_left == m->place.size &&
        !ranks_rows_closed(m) && ranks_versions_quiet(m)) {
        lead->all_left = true;
        ranks_lead_tell_all(m, (struct ranks_word){.what = WORD_BYE}, NULL, 0);
    }
}
