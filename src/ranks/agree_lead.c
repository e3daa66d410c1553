/* SPDX-License-Identifier: MIT */
/* The coordinator's part in agreements (agree.c has the words). In each epoch, in this
 * order:
 *
 *   1. The result that this rank keeps is told to all members, as if it were this
 *      epoch's. If a call ended with a result, all members of that epoch kept it, and
 *      newcomers were told, so the coordinator of this one keeps it.
 *   2. Once all members keep it, it is final: offers with its number are answered.
 *   3. Once all members at work have offered, the offers are folded into the next result
 *      (fabric/agree.c), which is told to all. 2 follows.
 *
 * All of this goes on in the coordinator's polls, also after its trainer has left. */
#include "ranks/lead.h"

#include <string.h>

enum { AGAIN = 4 /* in the time `dead` */ };

struct agree_peer {
    bool has;                   /* it keeps the result that this rank keeps */
    uint32_t serial;            /* of its offer, */
    uint64_t number;
    struct agree_value *offer;  /* as many bytes as it has; NULL: none is open */
};

struct ranks_agree_lead {
    struct agree_peer *peers;   /* by rank */
    struct agree_offer *offers; /* (size) to be folded */
    int n_offers;               /* open */
    uint64_t epoch;             /* of all of this */
    bool told, final;           /* the result that this rank keeps */
    uint64_t said_ns;           /* members were told last */
};

descant_status ranks_agree_lead_init(struct ranks *m)
{
    size_t size = (size_t)m->place.size;
    struct ranks_agree_lead *all = m->agree_lead = memory_take(sizeof *all);

    if (all) {
        all->peers = memory_take_array(size, sizeof *all->peers);
        all->offers = memory_take_array(size, sizeof *all->offers);
    }
    return all && all->peers && all->offers
               ? DESCANT_OK
               : log_fail(&m->f.log, DESCANT_MEMORY, "no memory for agreements");
}

static void drop_offer(struct ranks_agree_lead *all, int rank)
{
    struct agree_peer *peer = &all->peers[rank];

    all->n_offers -= peer->offer != NULL;
    memory_give(peer->offer);
    peer->offer = NULL;
}

void ranks_agree_lead_fini(struct ranks *m)
{
    struct ranks_agree_lead *all = m->agree_lead;

    if (!all)
        return;
    for (int k = 0; all->peers && k < m->place.size; k++)
        drop_offer(all, k);
    memory_give(all->peers);
    memory_give(all->offers);
    memory_give(all);
}

static bool is_member(const struct ranks *m, int rank)
{
    return rank == m->f.rank || m->place.fixed ||
           (m->members[rank] && m->members[rank] == m->peers[rank].generation);
}

/* --- words that come --- */

/* An offer that is said again may have its old number still. One that has been answered
 * comes with the number of the answer, for its sender kept that result before. */
static void hear_offer(struct ranks *m, int from, const struct ranks_word *word)
{
    struct ranks_agree_lead *all = m->agree_lead;
    struct agree_peer *peer = &all->peers[from];

    if (peer->offer && peer->serial == word->seq)
        return;
    drop_offer(all, from);
    peer->offer = memory_take(sizeof *peer->offer - AGREE_BYTES + word->n);
    if (!peer->offer) {
        ranks_fail(m, DESCANT_MEMORY, "no memory for an agreement");
        return;
    }
    all->n_offers++;
    peer->serial = word->seq;
    peer->number = word->agree;
    ranks_agree_unpack(word, peer->offer);
}

static void hear_kept(struct ranks *m, int from, const struct ranks_word *word)
{
    const struct ranks_kept *kept = ranks_agree_kept(m);

    if (m->agree_lead->told && word->agree == kept->number && word->refers == kept->epoch)
        m->agree_lead->peers[from].has = true;
}

/* Begins anew where another epoch stands. */
static void follow_epoch(struct ranks *m)
{
    struct ranks_agree_lead *all = m->agree_lead;
    uint64_t epoch = ledger_view(m->ledger).epoch;

    if (epoch == all->epoch)
        return;
    all->epoch = epoch;
    for (int k = 0; k < m->place.size; k++) {
        drop_offer(all, k);
        all->peers[k].has = false;
    }
    all->told = all->final = m->place.fixed;
    all->said_ns = 0;
}

void ranks_agree_lead_hear(struct ranks *m, int from, const struct ranks_word *word)
{
    if (!m->agree_lead || !m->leads || !is_member(m, from))
        return;
    follow_epoch(m);
    if (word->what == WORD_AGREE)
        hear_offer(m, from, word);
    else
        hear_kept(m, from, word);
    m->moved = true;
}

/* --- steps --- */

/* Whether members are to be told now. */
static bool is_due(struct ranks *m)
{
    struct ranks_agree_lead *all = m->agree_lead;

    if (all->said_ns && m->now_ns - all->said_ns < m->dead_ns / AGAIN)
        return false;
    all->said_ns = m->now_ns;
    return true;
}

/* serial: of the offer that this is the answer to; 0: none */
static bool tell(struct ranks *m, int rank, uint32_t serial, bool final)
{
    const struct ranks_kept *kept = ranks_agree_kept(m);
    struct ranks_word word = {.what = WORD_AGREED, .seq = serial, .final = final,
                              .agree = kept->number};

    ranks_agree_pack(&word, &kept->value);
    return ranks_tell(m, rank, word, kept->value.bytes, kept->value.n);
}

/* 1 */
static void begin_telling(struct ranks *m)
{
    struct ranks_agree_lead *all = m->agree_lead;

    ranks_agree_kept(m)->epoch = all->epoch;
    for (int k = 0; k < m->place.size; k++)
        all->peers[k].has = false;
    all->told = true;
    all->final = m->place.fixed;
    all->said_ns = 0;
}

/* True once all members keep the result. */
static bool tell_all(struct ranks *m)
{
    struct ranks_agree_lead *all = m->agree_lead;
    uint64_t number = ranks_agree_kept(m)->number;
    bool missing = false, due = is_due(m);

    for (int k = 0; k < m->place.size; k++) {
        const struct agree_peer *peer = &all->peers[k];
        if (k == m->f.rank || !m->members[k] || peer->has)
            continue;
        missing = true;
        if (due)
            tell(m, k, peer->offer && peer->number == number ? peer->serial : 0, false);
    }
    return !missing;
}

/* 2 */
static void answer(struct ranks *m)
{
    struct ranks_agree_lead *all = m->agree_lead;
    uint64_t number = ranks_agree_kept(m)->number;

    for (int k = 0; number && k < m->place.size; k++) {
        const struct agree_peer *peer = &all->peers[k];
        if (peer->offer && peer->number == number && tell(m, k, peer->serial, true))
            drop_offer(all, k);
    }
}

/* 3. False: offers are missing. */
static bool fold(struct ranks *m)
{
    struct ranks_agree_lead *all = m->agree_lead;
    struct ranks_kept *kept = ranks_agree_kept(m);
    int n = 0;

    for (int k = 0; k < m->place.size; k++) {
        const struct lead_peer *peer = &m->lead->peers[k];
        if (!m->members[k] || k == m->hub || peer->left || peer->ends)
            continue;
        all->offers[n++] = (struct agree_offer){
            .rank = k, .number = all->peers[k].number, .value = all->peers[k].offer};
    }
    if (!agree_fold(kept->number + 1, all->offers, n, &kept->value))
        return false;
    kept->number++;
    for (int i = 0; i < n; i++)
        if (all->offers[i].in)
            all->peers[all->offers[i].rank].number = kept->number;
    begin_telling(m);
    return true;
}

/* Before all keep the result of an epoch before this one, those that do not. */
void ranks_agree_missing(struct fabric *f, struct awaited *awaited)
{
    const struct ranks *m = ranks_of(f);
    const struct ranks_agree_lead *all = m->agree_lead;

    for (int k = 0; all && m->leads && m->founded && k < m->place.size; k++) {
        const struct lead_peer *peer = &m->lead->peers[k];
        bool works = k != m->f.rank && k != m->hub && m->members[k] && !peer->left &&
                     !peer->ends;
        if (works && !(all->final ? all->peers[k].offer != NULL : all->peers[k].has))
            awaited_add(awaited, k);
    }
}

void ranks_agree_lead_turn(struct ranks *m)
{
    struct ranks_agree_lead *all = m->agree_lead;

    if (!all || !m->leads || !m->founded)
        return;
    follow_epoch(m);
    if (!all->n_offers && (all->final || !all->told))
        return;
    if (ranks_agree_kept(m)->epoch > all->epoch)
        return;                 /* this rank leads no more, and will hear so */
    if (!all->told) {
        begin_telling(m);
        all->final = !ranks_agree_kept(m)->number;
    }
    do {
        all->final = all->final || tell_all(m);
        if (!all->final)
            return;
        answer(m);
    } while (all->n_offers && fold(m));
}
