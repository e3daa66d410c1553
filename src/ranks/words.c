/* SPDX-License-Identifier: MIT */
/* Words: short messages between the coordinator, rank 0, and any rank. One receive from anybody
 * is always open, and opened again when its word has been heard, so that words of one rank are
 * heard in the order in which they were said; after a GO not before its round has begun here, for
 * who only helps in one may be sent the next one's meanwhile. What rank 0 says to itself it hears
 * at once, so it closes none while one waits here.
 *
 * A word that is said is copied, and its copy used again when it has gone out.
 *
 * Nothing of a word is used before check.c has found it good. */
#include "ranks/check.h"

#include <stdlib.h>
#include <string.h>

/* Words that are on their way out while another is heard: who takes none cannot make the others'
 * words pile up here, for they wait in the link. */
enum { OUT_LEAST = 64, OUT_OF_EACH = 4,
       HEAD_BYTES = 8 /* that words of all protocols have: what, protocol */ };

struct ranks_outgoing {
    struct ranks_op op;
    struct ranks_outgoing *next;      /* idle */
    struct ranks_outgoing *before;    /* taken from memory before it */
    struct ranks_word word[];         /* and what follows it */
};

static bool hear(struct ranks *m, int from, const struct ranks_word *word, size_t bytes);

/* Each side says it by itself: neither can read what else the other has to say. */
static void refuse(struct ranks *m, int rank, uint32_t protocol)
{
    char text[RANKS_TEXT];

    snprintf(text, sizeof text, "rank %d (%s) has \"descant protocol %u\", rank %d (%s) "
             "\"descant protocol %d\"", rank, m->place.names[rank], protocol, m->f.rank,
             m->place.names[m->f.rank], RANKS_PROTOCOL);
    if (m->lead)
        ranks_lead_fail(m, DESCANT_MISMATCH, text);
    else
        ranks_fail(m, DESCANT_MISMATCH, "%s", text);
}

static void heard(struct ranks *m, struct ranks_op *op, const struct link_ended *ended)
{
    op->busy = false;
    if (ended->bytes >= HEAD_BYTES && m->heard->protocol != RANKS_PROTOCOL) {
        m->deaf = true;
        refuse(m, ended->from, m->heard->protocol);
    } else if (!hear(m, ended->from, m->heard, ended->bytes)) {
        m->deaf = true;
    }
    ranks_listen(m);
}

static void said(struct ranks *m, struct ranks_op *op, const struct link_ended *ended)
{
    struct ranks_outgoing *out = (struct ranks_outgoing *)(void *)op;

    (void)ended;
    out->next = m->idle_words;
    m->idle_words = out;
    m->words_out--;
}

static struct ranks_outgoing *take_outgoing(struct ranks *m)
{
    struct ranks_outgoing *out = m->idle_words;

    if (out) {
        m->idle_words = out->next;
        return out;
    }
    out = memory_take(sizeof *out + m->word_bytes);
    if (!out) {
        ranks_fail(m, DESCANT_MEMORY, "no memory for a message");
        return NULL;
    }
    out->before = m->last_word;
    m->last_word = out;
    return out;
}

void ranks_tell(struct ranks *m, int rank, struct ranks_word word, const void *tail, size_t bytes)
{
    struct ranks_outgoing *out = take_outgoing(m);

    if (!out)
        return;
    word.protocol = RANKS_PROTOCOL;
    out->word[0] = word;
    if (bytes)
        memcpy(out->word + 1, tail, bytes);
    out->op = (struct ranks_op){.ended = said, .rank = rank};
    m->words_out++;
    if (rank == m->f.rank) {
        hear(m, rank, out->word, sizeof word + bytes);
        said(m, &out->op, NULL);
    } else if (!ranks_send_op(m, &out->op, out->word, sizeof word + bytes, TAG_WORD)) {
        said(m, &out->op, NULL);
    }
}

bool ranks_listen(struct ranks *m)
{
    if (m->word_op.busy || m->deaf || (m->go_waits && !m->lead) ||
        m->words_out > OUT_LEAST + OUT_OF_EACH * m->place.size)
        return true;
    m->word_op.ended = heard;
    m->word_op.rank = LINK_ANY;
    return ranks_receive_any(m, &m->word_op, m->heard, m->word_bytes, TAG_WORD);
}

descant_status ranks_words_init(struct ranks *m)
{
    size_t seats = (size_t)m->place.size * sizeof(struct ranks_seat);

    m->word_bytes = sizeof(struct ranks_word) + (seats > RANKS_TEXT ? seats : RANKS_TEXT);
    m->heard = memory_take(m->word_bytes);
    m->go = memory_take(m->word_bytes);
    m->round.seats = memory_take(seats);
    if (!m->heard || !m->go || !m->round.seats)
        return log_fail(&m->f.log, DESCANT_MEMORY, "no memory for messages");
    return ranks_listen(m) ? DESCANT_OK : m->f.status;
}

void ranks_words_fini(struct ranks *m)
{
    while (m->last_word) {
        struct ranks_outgoing *out = m->last_word;
        m->last_word = out->before;
        memory_give(out);
    }
    memory_give(m->heard);
    memory_give(m->go);
    memory_give(m->round.seats);
}

/* --- what a member hears --- */

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
        if (m->lead && (word->what == WORD_HELLO || word->what == WORD_LEAVE))
            ranks_rows_lead_hear(m, from, word);
        if (m->lead)
            ranks_lead_hear(m, from, word);
        break;
    case WORD_ROWS:
    case WORD_ROWS_HAVE:
        if (m->lead)
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
        if (!m->left)           /* it says no more than that */
            ranks_fail(m, (descant_status)word->status, "%s", (const char *)(word + 1));
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

/* False: the word may not be acted upon, and the job has failed. */
static bool hear(struct ranks *m, int from, const struct ranks_word *word, size_t bytes)
{
    const struct word_facts facts = facts_of(m, from, word);
    char why[CHECK_WHY];

    if (!word_is_good(&facts, from, word, bytes, why)) {
        ranks_refuse(m, from, "%s", why);
        return false;
    }
    act(m, from, word);
    return true;
}
