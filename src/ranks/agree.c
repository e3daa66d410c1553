/* SPDX-License-Identifier: MIT */
/* Agreements of ranks: this rank's own part. agree_lead.c is the coordinator's.
 *
 *   AGREE       to the coordinator: this rank's offer, said again each dead / 4, and to
 *               each coordinator of a later epoch
 *   AGREED      from the coordinator: a result, which this rank keeps. `final`: all
 *               members have it, and the call to which it is the answer may end
 *   AGREE_HAVE  to the coordinator: this rank keeps that result. With the bytes to a rank
 *               that is to become a member, before PROPOSE and STANDS
 *
 * No call ends with a result that some member of the epoch does not keep
 * (docs/members.md, "Agreements"). Where the link is fixed the epoch is the only one and
 * no word is lost, so AGREED is final at once, and nothing is said twice.
 *
 * offer and look belong to the thread that makes the agreement, all else to the holder of
 * the round machine. */
#include "ranks/ranks.h"

#include <string.h>

enum { AGAIN = 4 /* in the time `dead` */, EPOCHS_AHEAD = 1 << 16 };
#define NUMBERS (UINT64_C(1) << 39)     /* half of what check.c lets through */

struct ranks_agree {
    pthread_mutex_t lock;       /* of what both threads use: */
    bool open;                  /* an offer waits for its answer */
    bool answered, ready;       /* the answer is here; and may be taken */
    uint32_t serial;            /* of the offer */
    uint64_t number, next;      /* the offer's number, and that of the next one; 0: not
                                   known */
    struct agree_value offer, answer;
    /* the machine holder's */
    uint32_t said_serial;       /* the offer that was said last, */
    uint64_t said_epoch, said_ns;
    uint64_t answered_ns;
    struct ranks_kept kept;
};

descant_status ranks_agree_init(struct ranks *m)
{
    m->agree = memory_take(sizeof *m->agree);
    if (!m->agree)
        return log_fail(&m->f.log, DESCANT_MEMORY, "no memory for agreements");
    pthread_mutex_init(&m->agree->lock, NULL);
    m->agree->next = m->place.fixed;
    return DESCANT_OK;
}

void ranks_agree_form(struct ranks *m)
{
    m->agree->next = 1;
}

void ranks_agree_forget(struct ranks *m)
{
    struct ranks_agree *a = m->agree;

    if (!a)
        return;
    memset(&a->kept, 0, offsetof(struct ranks_kept, value.bytes));
    pthread_mutex_lock(&a->lock);
    a->number = a->next = 0;
    pthread_mutex_unlock(&a->lock);
}

void ranks_agree_fini(struct ranks *m)
{
    if (!m->agree)
        return;
    pthread_mutex_destroy(&m->agree->lock);
    memory_give(m->agree);
}

struct ranks_kept *ranks_agree_kept(struct ranks *m)
{
    return &m->agree->kept;
}

uint64_t ranks_agree_number(const struct ranks *m)
{
    return m->agree->number;
}

descant_status ranks_agree_made(struct fabric *f, bool *ready, uint64_t *number,
                                struct agree_value *last)
{
    struct ranks_agree *a = ranks_of(f)->agree;

    *ready = ledger_view(ranks_of(f)->ledger).member;
    *number = a->kept.number;
    if (*number)
        memcpy(last, &a->kept.value, agree_size(&a->kept.value));
    pthread_mutex_lock(&a->lock);
    if (*ready && !*number)     /* the caller offers for the first one, and may be cut off
                                   before that, while the others make it */
        a->next = 1;
    else if (*ready && a->next <= *number)
        a->next = 0;            /* it was cut off, and knows that it is too late */
    pthread_mutex_unlock(&a->lock);
    return DESCANT_OK;
}

/* --- values in words --- */

void ranks_agree_pack(struct ranks_word *word, const struct agree_value *value)
{
    word->kind = value->kind;
    word->status = value->status;
    word->source = value->from;
    word->n = value->n;
}

void ranks_agree_unpack(const struct ranks_word *word, struct agree_value *value)
{
    value->kind = word->kind;
    value->status = word->status;
    value->from = word->source;
    value->n = (uint32_t)word->n;
    memcpy(value->bytes, word + 1, value->n);
}

/* --- words that leave --- */

/* The caller that made the offer waits for its answer, so nobody writes it meanwhile. */
static void say_offer(struct ranks *m)
{
    struct ranks_agree *a = m->agree;
    struct ranks_word word = {.what = WORD_AGREE, .seq = a->serial, .agree = a->number};

    ranks_agree_pack(&word, &a->offer);
    if (!ranks_tell(m, m->coordinator, word, a->offer.bytes, a->offer.n))
        return;
    a->said_serial = word.seq;
    a->said_epoch = ledger_view(m->ledger).epoch;
    a->said_ns = m->now_ns;
}

bool ranks_agree_tell(struct ranks *m, int rank)
{
    const struct ranks_kept *kept = &m->agree->kept;
    struct ranks_word word = {.what = WORD_AGREE_HAVE, .agree = kept->number,
                              .refers = kept->epoch};

    if (!kept->number || rank == m->f.rank)
        return true;
    ranks_agree_pack(&word, &kept->value);
    return ranks_tell(m, rank, word, kept->value.bytes, kept->value.n);
}

/* --- words that come --- */

/* Numbers and epochs that no job comes to are a liar's: kept, they would make honest
 * words look as lies, and newer than all that follow. */
static bool is_believed(const struct ranks *m, const struct ranks_word *word)
{
    uint64_t epoch = ledger_view(m->ledger).epoch;

    return word->agree < NUMBERS && (!epoch || word->refers < epoch + EPOCHS_AHEAD);
}

/* False: what this rank keeps is newer. A later epoch counts for more than a higher
 * number: a number may have been made anew. */
static bool keep(struct ranks_kept *kept, const struct ranks_word *word, uint64_t epoch)
{
    if (epoch < kept->epoch || (epoch == kept->epoch && word->agree < kept->number))
        return false;
    kept->number = word->agree;
    kept->epoch = epoch;
    ranks_agree_unpack(word, &kept->value);
    return true;
}

static void hear_agreed(struct ranks *m, const struct ranks_word *word)
{
    struct ranks_agree *a = m->agree;

    bool kept = keep(&a->kept, word, ledger_view(m->ledger).epoch);
    pthread_mutex_lock(&a->lock);
    if (kept && a->open && !a->answered && word->seq == a->serial) {
        a->number = word->agree;
        a->next = word->agree + 1;
        a->answered = word->final;
        a->answered_ns = m->now_ns;
        if (a->answered)
            memcpy(&a->answer, &a->kept.value, agree_size(&a->kept.value));
    }
    pthread_mutex_unlock(&a->lock);
    const struct ranks_word have = {.what = WORD_AGREE_HAVE, .agree = a->kept.number,
                                    .refers = a->kept.epoch};
    if (!word->final)
        ranks_tell(m, m->coordinator, have, NULL, 0);
    m->moved = true;
}

void ranks_agree_hear(struct ranks *m, const struct ranks_word *word)
{
    if (!is_believed(m, word))
        return;
    if (word->what == WORD_AGREED)
        hear_agreed(m, word);
    else if (word->kind != AGREE_NONE)
        keep(&m->agree->kept, word, word->refers);
}

/* --- a turn --- */

/* Whether the coordinator's words have left: its caller may not poll again for long, and
 * others wait for answers. A rank that takes none is not waited for. */
static bool has_told(const struct ranks *m)
{
    if (!m->leads || m->now_ns - m->agree->answered_ns > m->dead_ns / AGAIN)
        return true;
    for (int k = 0; m->words_out && k < m->place.size; k++)
        if (m->peers[k].words_out && m->members[k] && !m->peers[k].silent)
            return false;
    return true;
}

void ranks_agree_turn(struct ranks *m)
{
    struct ranks_agree *a = m->agree;

    if (!a)
        return;
    const struct ledger_view view = ledger_view(m->ledger);
    bool recent = a->said_epoch == view.epoch &&
                  (m->place.fixed || m->now_ns - a->said_ns < m->dead_ns / AGAIN);
    pthread_mutex_lock(&a->lock);
    bool waits = a->open && !a->answered, said = recent && a->said_serial == a->serial;
    pthread_mutex_unlock(&a->lock);
    if (waits && view.member && !said)
        say_offer(m);
}

/* After the coordinator's turn. */
void ranks_agree_turned(struct ranks *m)
{
    struct ranks_agree *a = m->agree;

    if (!a)
        return;
    pthread_mutex_lock(&a->lock);
    a->ready = a->open && a->answered && has_told(m);
    pthread_mutex_unlock(&a->lock);
}

/* --- the caller --- */

descant_status ranks_agree_offer(struct fabric *f, const struct agree_value *value)
{
    struct ranks_agree *a = ranks_of(f)->agree;

    pthread_mutex_lock(&a->lock);
    memcpy(&a->offer, value, agree_size(value));
    a->serial += a->serial + 1 ? 1 : 2;
    a->number = a->next;
    a->answered = a->ready = false;
    a->open = true;
    pthread_mutex_unlock(&a->lock);
    return DESCANT_OK;
}

bool ranks_agree_look(struct fabric *f, struct agree_value *result)
{
    struct ranks_agree *a = ranks_of(f)->agree;

    pthread_mutex_lock(&a->lock);
    bool ready = a->ready;
    if (ready) {
        memcpy(result, &a->answer, agree_size(&a->answer));
        a->open = a->ready = false;
    }
    pthread_mutex_unlock(&a->lock);
    return ready;
}
