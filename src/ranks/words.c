/* SPDX-License-Identifier: MIT */
/* Words: short messages, most of them between the coordinator and any rank. Receives from
 * any rank are always open, and each is opened again when its word has been heard. Where
 * ranks come and go there are several, and one more for each silent peer: a long word
 * takes a receive before its bytes have come, and a peer that is paused or cut off
 * meanwhile keeps it.
 *
 * Where the link is fixed there is one, so that words of one rank are heard in the order
 * in which they were said, and it is opened after a GO only when the GO's round has begun
 * here, for a rank that only helps in a round may be sent the next GO meanwhile. A rank
 * hears its words to itself at once, so the coordinator closes no round while a GO waits
 * here.
 *
 * A word that is said is copied, and the copy's memory is used again when it has gone
 * out. Nearly all words are short, so room for the longest list is taken only for lists.
 *
 * hear.c acts upon words, and is called through m->hear. */
#include "ranks/leases.h"
#include "ranks/ranks.h"

#include <string.h>

/* So many words may be on their way out while another is heard: a rank that takes none
 * cannot make the others' words pile up here, for they wait in the link. */
enum { OUT_LEAST = 64, OUT_OF_EACH = 4 };

/* Where ranks come and go, a rank that takes no words has at most so many on their way:
 * it is silent, and all words that matter are said again. */
enum { OUT_TO_ONE = 64 };

enum { LISTENERS = 4 };

struct ranks_outgoing {
    struct ranks_op op;
    struct ranks_outgoing *next;      /* idle */
    struct ranks_outgoing *before;    /* the copy allocated before it */
    bool is_long;
    struct ranks_word word[];         /* the word and its tail */
};

struct ranks_listener {
    struct ranks_op op;
    struct ranks_listener *next;
    struct ranks_word word[];         /* word_bytes */
};

/* Words that come at times of their own, whatever else stands still. */
static bool is_aside(const struct ranks_word *word)
{
    return word->what == WORD_BULLETIN || word->what == WORD_ALIVE;
}

static void heard(struct ranks *m, struct ranks_op *op, const struct link_ended *ended)
{
    const struct ranks_listener *listener = op->of;

    op->busy = false;
    bool good = m->hear(m, ended->from, listener->word, ended->bytes);
    m->deaf |= !good && m->place.fixed;
    m->aside = good && is_aside(listener->word);
    ranks_listen(m);
}

static void said(struct ranks *m, struct ranks_op *op, const struct link_ended *ended)
{
    struct ranks_outgoing *out = (struct ranks_outgoing *)(void *)op;

    (void)ended;
    m->aside = is_aside(out->word);
    out->next = m->idle_words[out->is_long];
    m->idle_words[out->is_long] = out;
    m->words_out--;
    m->peers[op->rank].words_out--;
}

static struct ranks_outgoing *take_outgoing(struct ranks *m, size_t bytes)
{
    bool is_long = bytes > LINK_WORD;
    struct ranks_outgoing *out = m->idle_words[is_long];

    if (out) {
        m->idle_words[is_long] = out->next;
        return out;
    }
    out = memory_take(sizeof *out + (is_long ? m->word_bytes : LINK_WORD));
    if (!out) {
        ranks_fail(m, DESCANT_MEMORY, "no memory for a message");
        return NULL;
    }
    out->is_long = is_long;
    out->before = m->last_word;
    m->last_word = out;
    return out;
}

/* Where the link is fixed each word is said once; but CALL is said again in each round,
 * which under a quorum may go on and on without the rank. */
static bool is_lost(const struct ranks *m, int rank, const struct ranks_word *word)
{
    int out = m->peers[rank].words_out;

    if (rank == m->f.rank)
        return false;
    return m->place.fixed ? word->what == WORD_CALL && out >= OUT_OF_EACH
                          : !m->peers[rank].generation || out >= OUT_TO_ONE;
}

bool ranks_tell(struct ranks *m, int rank, struct ranks_word word, const void *tail,
                size_t bytes)
{
    struct ranks_outgoing *out =
        is_lost(m, rank, &word) ? NULL : take_outgoing(m, sizeof word + bytes);

    if (!out)
        return false;
    word.protocol = RANKS_PROTOCOL;
    word.stands = ledger_view(m->ledger).epoch;
    out->word[0] = word;
    if (bytes)
        memcpy(out->word + 1, tail, bytes);
    out->op = (struct ranks_op){.ended = said, .rank = rank, .even_failed = true};
    m->words_out++;
    m->peers[rank].words_out++;
    if (rank == m->f.rank) {
        m->hear(m, rank, out->word, sizeof word + bytes);
        said(m, &out->op, NULL);
    } else if (!ranks_send_op(m, &out->op, out->word, sizeof word + bytes, TAG_WORD)) {
        said(m, &out->op, NULL);
        return false;
    }
    return true;
}

void ranks_take_part(struct ranks *m, const struct ranks_word *word)
{
    m->called &= word->what != WORD_GO;
    if (atomic_load_explicit(&m->f.epoch, memory_order_relaxed) == word->epoch)
        return;
    atomic_store_explicit(&m->f.members, (int)word->members, memory_order_relaxed);
    atomic_store_explicit(&m->f.epoch, word->epoch, memory_order_relaxed);
}

static bool add_listener(struct ranks *m)
{
    struct ranks_listener *listener = memory_take(sizeof *listener + m->word_bytes);

    if (!listener) {
        ranks_fail(m, DESCANT_MEMORY, "no memory for messages");
        return false;
    }
    listener->op = (struct ranks_op){.ended = heard, .rank = LINK_ANY, .of = listener};
    listener->next = m->listeners;
    m->listeners = listener;
    m->n_listeners++;
    return true;
}

bool ranks_listen(struct ranks *m)
{
    int most_out = OUT_LEAST + OUT_OF_EACH * m->place.size;
    bool holds = m->place.fixed &&
                 ((m->go_waits && !m->leads) || m->words_out > most_out), good = true;

    if (m->deaf || holds)
        return true;
    int wanted = m->place.fixed ? 1 : LISTENERS + m->n_silent;
    while (m->n_listeners < wanted && add_listener(m))
        ;
    for (struct ranks_listener *h = m->listeners; h && good; h = h->next)
        good = h->op.busy ||
               ranks_receive_any(m, &h->op, h->word, m->word_bytes, TAG_WORD);
    return good;
}

descant_status ranks_words_init(struct ranks *m)
{
    size_t size = (size_t)m->place.size, runs = size * sizeof(struct ranks_run);

    _Static_assert(sizeof(struct ranks_entry) <= sizeof(struct ranks_run), "room");
    _Static_assert((int)RANKS_TEXT <= (int)RANKS_ITEMS_BYTES, "room");
    _Static_assert((int)AGREE_BYTES <= (int)RANKS_ITEMS_BYTES, "room");
    m->word_bytes = sizeof(struct ranks_word) +
                    (runs > RANKS_ITEMS_BYTES ? runs : (size_t)RANKS_ITEMS_BYTES);
    m->go = memory_take(m->word_bytes);
    m->round.seats = memory_take_array(size, sizeof *m->round.seats);
    m->entries = memory_take_array(size, sizeof *m->entries);
    if (!m->go || !m->round.seats || !m->entries)
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
    while (m->listeners) {
        struct ranks_listener *listener = m->listeners;
        m->listeners = listener->next;
        memory_give(listener);
    }
    memory_give(m->go);
    memory_give(m->round.seats);
    memory_give(m->entries);
}

