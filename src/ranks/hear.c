/* SPDX-License-Identifier: MIT */
/* The effects of a word on the rank that hears it. No part of a word is used before
 * check.c has found the word good. */
#include "ranks/check.h"

#include <stdio.h>
#include <string.h>

enum { HEAD_BYTES = 8 /* that words of all protocols have: what, protocol */ };

/* Two ranks with different protocols. Each logs so by itself, for neither can read the
 * other's words. */
static void refuse(struct ranks *m, int rank, uint32_t protocol)
{
    char text[RANKS_TEXT];

    if (!m->place.fixed) {
        ranks_refuse(m, rank, "it has descant protocol %u, not %d", protocol,
                     RANKS_PROTOCOL);
        return;
    }
    snprintf(text, sizeof text, "rank %d (%s) has \"descant protocol %u\", rank %d (%s) "
             "\"descant protocol %d\"", rank, ranks_host_name(m, rank), protocol,
             m->f.rank, ranks_host_name(m, m->f.rank), RANKS_PROTOCOL);
    m->blame(m, DESCANT_MISMATCH, text);
}

/* A round without this rank can end here at once; if it does not, the ledger hears of it
 * again, or of the version that it left. One under way here gives way to it only if it
 * does not end in all that time: its peers have ended it and gone on, and what it waits
 * for may be lost. Where the link is fixed nothing is. */
static void hear_go(struct ranks *m, const struct ranks_word *word)
{
    bool seated = ranks_run_of(ranks_runs(word), word->seats, m->f.rank) != NULL;
    bool lasts = m->place.fixed || m->now_ns - m->round.began_ns < m->dead_ns;
    bool goes_on = m->round.active && lasts;

    if (!seated && (goes_on || m->go_waits))
        return;
    if (!m->place.fixed && m->round.active &&
        ledger_series_of(word->ledger.version) <= m->round.series)
        return;                 /* the round is under way */
    memcpy(m->go, word, sizeof *word + word->seats * sizeof(struct ranks_run));
    m->go_waits = seated;
    m->go_ns = m->now_ns;
    ranks_take_part(m, word);
    if (!seated)
        ranks_members_begin(m);
}

static void hear_form(struct ranks *m, const struct ranks_word *word)
{
    const struct ranks_entry *entries = (const struct ranks_entry *)(word + 1);

    memset(m->list, 0, (size_t)m->place.size * sizeof *m->list);
    for (uint32_t i = 0; i < word->seats; i++)
        m->list[entries[i].rank].generation = entries[i].generation;
    if (m->list[m->f.rank].generation == m->place.generation)
        ranks_members_form(m);
}

/* Of agreements: a result that another rank keeps is for both parts. */
static void hear_agreement(struct ranks *m, int from, const struct ranks_word *word)
{
    if (word->what != WORD_AGREE)
        ranks_agree_hear(m, word);
    if (word->what != WORD_AGREED)
        ranks_agree_lead_hear(m, from, word);
}

/* The rank was told to end: rounds are to be with its last work. */
static void hear_told(struct ranks *m, int rank)
{
    if (m->peers[rank].told)
        return;
    m->peers[rank].told = true;
    ledger_pardon(m->ledger, rank);
    notes_add(m->f.notes, DESCANT_EVENT_TOLD, rank);
}

/* That the word came is enough, but where its sender was told to end. */
static void hear_alive(struct ranks *m, int from, const struct ranks_word *word)
{
    if (word->final)
        hear_told(m, from);
}

static void hear_late(struct ranks *m, const struct ranks_word *word)
{
    struct awaited awaited;

    memcpy(&awaited, word + 1, sizeof awaited);
    if (m->stage == STAGE_ARRIVED && !m->round.active && !m->go_waits)
        fabric_say(&m->f, &awaited);
}

/* VOID: the elastic exchange goes on by itself. If it arrives once more, for another
 * state, that is another arrival. */
static void hear_void(struct ranks *m, const struct ranks_word *word)
{
    m->called = false;
    if (m->stage != STAGE_ARRIVED || word->seq != m->seq)
        return;
    m->stage = STAGE_ALONE;
    m->seq++;
    ranks_members_unready(m);
}

static void hear_members(struct ranks *m, const struct ranks_word *word)
{
    ranks_take_part(m, word);
    if (m->lead)
        ranks_lead_ends(m, word->source, word->final);
    /* its own word that it was told may come later, on another connection */
    if (word->bad && word->source != m->f.rank)
        hear_told(m, word->source);
    bool left = !word->final && m->peers[word->source].told;
    if (word->source != m->f.rank && (left || !m->x.final))
        notes_add(m->f.notes,
                  left          ? DESCANT_EVENT_LEFT
                  : word->final ? DESCANT_EVENT_FINISHED
                                : DESCANT_EVENT_UNFINISHED,
                  word->source);
}

/* A rank that has left does not log the failure, and does not wait long for the
 * others. */
static void hear_fail(struct ranks *m, const struct ranks_word *word)
{
    if (!m->left)
        ranks_fail(m, (descant_status)word->status, "%s", (const char *)(word + 1));
    else if (!m->f.status)
        m->f.status = (descant_status)word->status;
}

/* The coordinator keeps what a rank brings; the ledger hears the rest. */
static void hear_here(struct ranks *m, int from, const struct ranks_word *word)
{
    if (m->lead && !ranks_admission_admits(m, from, word))
        return;
    if (m->lead)
        ranks_lead_hear_here(m, from, word);
    ranks_members_hear(m, from, word);
}

static void act(struct ranks *m, int from, const struct ranks_word *word)
{
    switch ((enum ranks_what)word->what) {
    case WORD_HELLO:
    case WORD_LEAVE:
        if (m->place.fixed)
            ranks_rows_lead_hear(m, from, word);
        ranks_admission_hear(m, from, word);
        break;
    case WORD_HERE:
        hear_here(m, from, word);
        break;
    case WORD_FORM:
        hear_form(m, word);
        break;
    case WORD_ALIVE:
        hear_alive(m, from, word);
        break;
    case WORD_FENCE:
    case WORD_PROPOSE:
    case WORD_STANDS:
    case WORD_TAKE:
        ranks_members_hear(m, from, word);
        break;
    case WORD_ROWS:
    case WORD_ROWS_HAVE:
    case WORD_ROWS_NONE:
        ranks_rows_lead_hear(m, from, word);
        break;
    case WORD_ROWS_CALL:
    case WORD_ROWS_GO:
    case WORD_ROWS_TAKE:
    case WORD_ROWS_LACK:
    case WORD_LEAD:
        ranks_rows_hear(m, word);
        break;
    case WORD_AGREE:
    case WORD_AGREE_HAVE:
    case WORD_AGREED:
        hear_agreement(m, from, word);
        break;
    case WORD_BULLETIN:
        ranks_bulletins_hear(m, from, word);
        break;
    case WORD_ITEMS:
    case WORD_DEAL:
        ranks_deal_hear(m, from, word);
        break;
    case WORD_CALL:
        m->called = true;
        break;
    case WORD_GO:
        hear_go(m, word);
        break;
    case WORD_VOID:
        hear_void(m, word);
        break;
    case WORD_MEMBERS:
        hear_members(m, word);
        break;
    case WORD_LATE:
        hear_late(m, word);
        break;
    case WORD_FAIL:
        hear_fail(m, word);
        break;
    case WORD_BYE:
        m->bye = true;
        break;
    }
}

static struct word_facts facts_of(const struct ranks *m, int from,
                                  const struct ranks_word *word)
{
    bool arrived = m->stage == STAGE_ARRIVED && !m->round.active && !m->go_waits;
    bool may_fail = word->what == WORD_FAIL && ranks_greeted(m, from);
    struct word_facts facts = {
        .rank = m->f.rank, .place = &m->place,
        .coordinator = may_fail ? from : m->coordinator,
        .encodes = m->f.wire != WIRE_F32,
        .quorum = m->quorum.arrivals > 0,
        .carries = m->carries,
        .center = m->f.center != NULL,
        .n = m->n, .room = m->room > m->n ? m->room : m->n, .round = m->round.number,
        .seq = m->seq, .arrived = arrived ? &m->x : NULL, .turns = 1U << WORD_FAIL};

    if (m->started)
        facts.turns |= 1U << WORD_CALL | 1U << WORD_VOID | 1U << WORD_MEMBERS |
                       1U << WORD_LATE | 1U << WORD_AGREED | 1U << WORD_BULLETIN |
                       1U << WORD_DEAL | (uint32_t)(m->lead != NULL) << WORD_ITEMS |
                       (uint32_t)(m->agree_lead != NULL) << WORD_AGREE |
                       (uint32_t)(!m->go_waits || !m->place.fixed) << WORD_GO;
    facts.turns |= (uint32_t)(m->left && m->place.fixed) << WORD_BYE |
                   (uint32_t)(m->versions != NULL) << WORD_TAKE;
    if (m->started && !m->place.fixed)
        facts.turns |= 1U << WORD_FENCE | 1U << WORD_PROPOSE | 1U << WORD_STANDS |
                       1U << WORD_FORM | 1U << WORD_AGREE_HAVE;
    if (!m->place.fixed || m->started)      /* where parcels go nothing is started */
        facts.turns |= 1U << WORD_ALIVE;
    if (m->lead)
        ranks_admission_facts(m, from, word, &facts);
    ranks_rows_facts(m, from, &facts);
    return facts;
}

/* Where ranks come and go a word may be of an epoch that is over, of a rank that was
 * coordinator, or of a process that was this rank's before; or come to a hub that has not
 * started, which listens for manifests alone. */
static bool is_stale(const struct ranks *m, int from, const struct ranks_word *word)
{
    const struct ledger_view view = ledger_view(m->ledger);
    bool by_lead = from == m->coordinator && word->stands == view.epoch;

    if (m->f.hub && !m->started)
        return word->what != WORD_HELLO;
    switch ((enum ranks_what)word->what) {
    case WORD_CALL:
    case WORD_VOID:
    case WORD_MEMBERS:
    case WORD_LATE:
    case WORD_ROWS_CALL:
    case WORD_ROWS_GO:
    case WORD_ROWS_TAKE:
    case WORD_ROWS_LACK:
    case WORD_AGREED:
    case WORD_DEAL:
        return !by_lead;
    case WORD_ROWS:
    case WORD_ROWS_HAVE:
    case WORD_ROWS_NONE:
    case WORD_AGREE:
    case WORD_ITEMS:
        return !m->leads || word->stands != view.epoch;
    case WORD_GO:
        return !by_lead ||
               ledger_series_of(word->ledger.version) <= ledger_series(m->ledger);
    case WORD_FAIL:
        return from != m->coordinator && !ranks_greeted(m, from);
    case WORD_FORM:
        return m->founded;
    case WORD_HERE:
    case WORD_FENCE:
    case WORD_PROPOSE:
    case WORD_STANDS:
    case WORD_TAKE:
        return from != m->f.rank && word->ledger.generation != m->peers[from].generation;
    default:
        return false;
    }
}

bool ranks_hear(struct ranks *m, int from, const struct ranks_word *word, size_t bytes)
{
    char why[CHECK_WHY];

    if (bytes >= HEAD_BYTES && word->protocol != RANKS_PROTOCOL) {
        refuse(m, from, word->protocol);
        return false;
    }
    if (!m->place.fixed && bytes >= sizeof *word && is_stale(m, from, word))
        return true;
    const struct word_facts none = {.rank = m->f.rank, .coordinator = m->coordinator,
                                    .place = &m->place};
    const struct word_facts facts = bytes < sizeof *word ? none : facts_of(m, from, word);
    if (!word_is_good(&facts, from, word, bytes, why)) {
        ranks_refuse(m, from, "%s", why);
        return false;
    }
    act(m, from, word);
    return true;
}
