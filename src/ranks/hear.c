/* SPDX-License-Identifier: MIT */
/* What a word does to the rank that hears it. Nothing of it is used before check.c has found it
 * good. */
#include "ranks/check.h"

#include <stdio.h>
#include <string.h>

enum { HEAD_BYTES = 8 /* that words of all protocols have: what, protocol */ };

/* Each side says it by itself: neither can read what else the other has to say. */
static void refuse(struct ranks *m, int rank, uint32_t protocol)
{
    char text[RANKS_TEXT];

    snprintf(text, sizeof text, "rank %d (%s) has \"descant protocol %u\", rank %d (%s) "
             "\"descant protocol %d\"", rank, m->place.names[rank], protocol, m->f.rank,
             m->place.names[m->f.rank], RANKS_PROTOCOL);
    m->blame(m, DESCANT_MISMATCH, text);
}

static void take_part(struct ranks *m, const struct ranks_word *word)
{
    if (atomic_load_explicit(&m->f.epoch, memory_order_relaxed) == word->epoch)
        return;
    atomic_store_explicit(&m->f.members, (int)word->members, memory_order_relaxed);
    atomic_store_explicit(&m->f.epoch, word->epoch, memory_order_relaxed);
}

static void hear_go(struct ranks *m, const struct ranks_word *word)
{
    memcpy(m->go, word, sizeof *word + word->seats * sizeof(struct ranks_seat));
    m->go_waits = true;
    m->called = false;
    take_part(m, word);
}

static void hear_late(struct ranks *m, const struct ranks_word *word)
{
    struct awaited awaited;

    memcpy(&awaited, word + 1, sizeof awaited);
    if (m->stage == STAGE_ARRIVED && !m->round.active && !m->go_waits)
        fabric_say(&m->f, &awaited);
}

static void act(struct ranks *m, int from, const struct ranks_word *word)
{
    switch ((enum ranks_what)word->what) {
    case WORD_HELLO:
    case WORD_ARRIVE:
    case WORD_TAKE_BACK:
    case WORD_LEAVE:
        if (word->what == WORD_HELLO || word->what == WORD_LEAVE)
            ranks_rows_lead_hear(m, from, word);
        ranks_lead_hear(m, from, word);
        break;
    case WORD_ROWS:
    case WORD_ROWS_HAVE:
        ranks_rows_lead_hear(m, from, word);
        break;
    case WORD_ROWS_CALL:
    case WORD_ROWS_GO:
    case WORD_ROWS_TAKE:
    case WORD_LEAD:
        ranks_rows_hear(m, word);
        break;
    case WORD_CALL:
        m->called = true;
        break;
    case WORD_GO:
        hear_go(m, word);
        break;
    case WORD_VOID:
        m->called = false;
        if (m->stage == STAGE_ARRIVED && word->seq == m->seq)
            m->stage = STAGE_ALONE;
        break;
    case WORD_MEMBERS:
        take_part(m, word);
        if (word->source != m->f.rank && !m->x.final)
            notes_add(m->f.notes, word->final ? DESCANT_EVENT_LEFT : DESCANT_EVENT_UNFINISHED,
                      word->source);
        break;
    case WORD_LATE:
        hear_late(m, word);
        break;
    case WORD_FAIL:
        if (!m->left)
            ranks_fail(m, (descant_status)word->status, "%s", (const char *)(word + 1));
        else if (!m->f.status)      /* it says no more, and does not wait long for the others */
            m->f.status = (descant_status)word->status;
        break;
    case WORD_BYE:
        m->bye = true;
        break;
    }
}

static struct word_facts facts_of(const struct ranks *m, int from, const struct ranks_word *word)
{
    bool arrived = m->stage == STAGE_ARRIVED && !m->round.active && !m->go_waits;
    struct word_facts facts = {
        .rank = m->f.rank, .place = &m->place, .encodes = m->f.wire != WIRE_F32,
        .center = m->f.center != NULL,
        .n = m->n, .room = m->room > m->n ? m->room : m->n, .round = m->round.number,
        .seq = m->seq, .arrived = arrived ? &m->x : NULL, .turns = 1U << WORD_FAIL};

    if (m->started)
        facts.turns |= 1U << WORD_CALL | 1U << WORD_VOID | 1U << WORD_MEMBERS | 1U << WORD_LATE |
                       (uint32_t)!m->go_waits << WORD_GO;
    facts.turns |= (uint32_t)m->left << WORD_BYE;
    if (m->lead)
        ranks_lead_facts(m, from, word, &facts);
    ranks_rows_facts(m, from, &facts);
    return facts;
}

bool ranks_hear(struct ranks *m, int from, const struct ranks_word *word, size_t bytes)
{
    char why[CHECK_WHY];

    if (bytes >= HEAD_BYTES && word->protocol != RANKS_PROTOCOL) {
        refuse(m, from, word->protocol);
        return false;
    }
    const struct word_facts none = {.rank = m->f.rank, .place = &m->place};
    const struct word_facts facts = bytes < sizeof *word ? none : facts_of(m, from, word);
    if (!word_is_good(&facts, from, word, bytes, why)) {
        ranks_refuse(m, from, "%s", why);
        return false;
    }
    act(m, from, word);
    return true;
}
