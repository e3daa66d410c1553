/* SPDX-License-Identifier: MIT */
/* Words: short messages between the coordinator, rank 0, and any rank. One receive from anybody
 * is always open, and opened again when its word has been heard, so that words of one rank are
 * heard in the order in which they were said; after a GO not before its round has begun here, for
 * a rank that only helps in a round may be sent the next GO meanwhile. What rank 0 says to itself it hears
 * at once, so it closes none while one waits here.
 *
 * A word that is said is copied, and its copy used again when it has gone out.
 *
 * What a word means is the business of hear.c, which is called through m->hear. */
#include "ranks/ranks.h"

#include <string.h>

/* Words that are on their way out while another is heard: who takes none cannot make the others'
 * words pile up here, for they wait in the link. */
enum { OUT_LEAST = 64, OUT_OF_EACH = 4 };

struct ranks_outgoing {
    struct ranks_op op;
    struct ranks_outgoing *next;      /* idle */
    struct ranks_outgoing *before;    /* taken from memory before it */
    struct ranks_word word[];         /* and what follows it */
};

static void heard(struct ranks *m, struct ranks_op *op, const struct link_ended *ended)
{
    op->busy = false;
    m->deaf |= !m->hear(m, ended->from, m->heard, ended->bytes);
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
        m->hear(m, rank, out->word, sizeof word + bytes);
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

