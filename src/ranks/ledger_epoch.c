/* SPDX-License-Identifier: MIT */
/* How the next epoch is founded: ledger.c's Paxos. A candidate gathers promises (FENCE),
 * offers a list upon a base version (PROPOSE), and when enough have accepted it, the
 * epoch stands. This file has the candidate's side, and the others' answers. */
#include "ranks/ledger_state.h"

/* Members for whose death others vouch may have founded epochs that no other member
 * knows: the next number is above theirs. */
enum { EPOCHS_VOUCHED = 16 };

/* Nor does another member know of the epochs that were founded after those, when members
 * had vouched there, too. So the number is drawn, from the process that coordinates the
 * epoch: whoever makes the list stand comes to the same number. */
static uint64_t next_epoch(const struct ledger *l)
{
    int by = l->offer.coordinator;      /* -1: the epoch has no members, and no rounds */
    uint64_t generation = by < 0 ? 0 : l->seats[by].in_list[OFFER];
    uint64_t drawn = generation * UINT64_C(0x9e3779b97f4a7c15) >> 56;

    return l->epoch + (l->offer.vouched ? EPOCHS_VOUCHED + drawn : 1);
}

static bool has_promised(const struct ledger *l, const struct ledger_seat *s)
{
    return s->told.epoch == l->epoch && s->told.ballot == l->mine;
}

static bool has_accepted(const struct ledger *l, const struct ledger_seat *s)
{
    return has_promised(l, s) && s->told.accepted == l->mine;
}

static void owe_offer(struct ledger *l, int r)
{
    const struct ledger_seat *s = &l->seats[r];

    if (s->in_list[OFFER] || s->in_list[MEMBER])
        ledger_owe(l, r,
                   ledger_same(s->told.version, l->offer.base) ? LEDGER_PROPOSE
                                                               : LEDGER_TAKE);
}

static void owe_offers(struct ledger *l)
{
    for (int r = 0; r < l->o.ranks; r++)
        owe_offer(l, r);
}

/* Begins to found, with a ballot above all that this peer has heard of. */
static void found(struct ledger *l)
{
    uint64_t most = l->promised, ranks = (uint64_t)l->o.ranks;

    for (int r = 0; r < l->o.ranks; r++)
        if (is_here(l, &l->seats[r]) && l->seats[r].told.ballot > most)
            most = l->seats[r].told.ballot;
    l->mine = (most / ranks + 1) * ranks + (uint64_t)l->o.rank;
    l->offer = (struct ledger_offer){.ballot = l->accepted,
                              .coordinator = l->accepted_coordinator,
                              .fresh = l->accepted_fresh,
                              .vouched = l->accepted_vouched,
                              .base = l->held};
    ledger_copy_list(l, OFFER, ACCEPTED);
    if (l->open)
        l->gave_way = l->before;
    ledger_promise(l, l->mine);
    ledger_owe_members(l, LEDGER_FENCE);
}

/* Of two members that are here and do not hear each other the higher rank is left out;
 * this peer stays. */
static bool is_deaf(const struct ledger *l, int rank)
{
    for (int r = 0; r < l->o.ranks; r++)
        if ((r == l->o.rank || (r < rank && rank != l->o.rank)) && r != rank &&
            is_here(l, &l->seats[r]) && has_promised(l, &l->seats[r]) &&
            (l->seats[rank].told.about == r || l->seats[r].told.about == rank))
            return true;
    return false;
}

/* All members that are not silent have promised, or have had time to, and those that have
 * may go on. */
static bool gathered(const struct ledger *l)
{
    for (int r = 0; r < l->o.ranks; r++) {
        const struct ledger_seat *s = &l->seats[r];
        if (s->in_list[MEMBER] && !s->silent && !(is_here(l, s) && has_promised(l, s)) &&
            l->now_ns < l->promised_ns + l->o.dead_ns / 2)
            return false;
    }
    return RULE(QUORUM, ledger_enough(l, MEMBER, l->coordinator, has_promised));
}

/* A list is empty only where all members have left, or are dead. A leaver that does not
 * hear the last of the others hands the job over to these, or goes without. */
static void keep_unheard(struct ledger *l)
{
    struct ledger_offer *offer = &l->offer;

    for (int r = 0; r < l->o.ranks; r++) {
        struct ledger_seat *s = &l->seats[r];
        bool leaves = r == l->o.rank || (is_here(l, s) && s->told.leaves);
        if (!s->in_list[MEMBER] || leaves || s->lost)
            continue;
        s->in_list[OFFER] = s->in_list[MEMBER];
        offer->coordinator = offer->coordinator < 0 ? r : offer->coordinator;
    }
}

static void make_new_offer(struct ledger *l)
{
    struct ledger_offer *offer = &l->offer;

    *offer = (struct ledger_offer){.fresh = true, .base = l->held};
    for (int r = 0; r < l->o.ranks; r++) {
        const struct ledger_seat *s = &l->seats[r];
        if (is_here(l, s) && has_promised(l, s) &&
            RULE(BASE, ledger_newer(s->told.version, offer->base)))
            offer->base = s->told.version;
    }
    offer->coordinator = l->leaves ? -1 : l->o.rank;
    for (int r = 0; r < l->o.ranks; r++) {
        struct ledger_seat *s = &l->seats[r];
        offer->vouched |= s->lost && s->in_list[MEMBER];
        bool stays =
            is_here(l, s) && has_promised(l, s) && !s->told.leaves && !is_deaf(l, r);
        bool comes = is_newcomer(l, s) && !s->outdated &&
                     ledger_same(s->told.version, offer->base);
        s->in_list[OFFER] = stays || comes ? s->told.generation : 0;
        if (s->in_list[OFFER] && offer->coordinator < 0)
            offer->coordinator = r;
    }
    const struct ledger_seat *last = &l->seats[l->o.ranks - 1];
    if (is_hub(l, last) && last->in_list[OFFER])
        offer->coordinator = l->o.ranks - 1;
    if (offer->coordinator < 0)
        keep_unheard(l);
}

/* The candidate whose list was accepted last has promised this ballot, so it has not made
 * its list stand, and never will. */
static bool is_void(const struct ledger *l)
{
    const struct ledger_seat *s = &l->seats[l->offer.ballot % (uint64_t)l->o.ranks];
    return l->offer.fresh && is_here(l, s) && has_promised(l, s);
}

static void make_offer(struct ledger *l)
{
    if (RULE(AGAIN, !l->offer.ballot || is_void(l)))
        make_new_offer(l);
    else
        l->offer.fresh = false;
    l->offer.made = true;
    if (!ledger_same(l->held, l->offer.base))
        ledger_want_known(l, l->offer.base);
    owe_offers(l);
}

/* A newcomer that is not in the list is a newcomer in the next epoch, too, and rounds of
 * that wait for it from the beginning. */
static void bring_along(struct ledger *l, int r)
{
    struct ledger_decision *told = &l->seats[r].told;

    told->epoch = next_epoch(l);
    told->ballot = told->accepted = 0;
    ledger_owe(l, r, LEDGER_STANDS);
}

/* False: for now there is nothing more to do. */
static bool go_on_founding(struct ledger *l)
{
    if (l->mine != l->promised || l->now_ns >= l->promised_ns + l->o.dead_ns) {
        l->mine = 0;
        return true;
    }
    if (!l->offer.made) {
        if (!gathered(l))
            return false;
        make_offer(l);
        return true;
    }
    if (l->accepted != l->mine && RULE(ACCEPT, ledger_same(l->held, l->offer.base))) {
        ledger_copy_list(l, ACCEPTED, OFFER);
        l->accepted = l->mine;
        l->accepted_coordinator = l->offer.coordinator;
        l->accepted_fresh = l->offer.fresh;
        l->accepted_vouched = l->offer.vouched;
        return true;
    }
    if (!RULE(STANDS, ledger_enough(l, MEMBER, l->coordinator, has_accepted) &&
                      ledger_enough(l, OFFER, l->offer.coordinator, has_accepted)))
        return false;
    for (int r = 0; r < l->o.ranks; r++) {
        struct ledger_seat *s = &l->seats[r];
        if (is_newcomer(l, s) && !s->in_list[OFFER])
            bring_along(l, r);
        if (s->in_list[MEMBER] || s->in_list[OFFER])
            ledger_owe(l, r, LEDGER_STANDS);
    }
    ledger_copy_list(l, MEMBER, OFFER);
    ledger_stand(l, next_epoch(l), l->offer.coordinator);
    return true;
}

static bool holds_off(const struct ledger *l)
{
    return l->promised && l->now_ns < l->promised_ns + l->o.dead_ns &&
           !l->seats[l->promised % (uint64_t)l->o.ranks].silent;
}

/* The coordinator founds; when it is silent, the lowest rank that is heard does. */
static bool is_candidate(const struct ledger *l)
{
    if (!l->member || holds_off(l))
        return false;
    if (l->coordinator == l->o.rank || l->coordinator < 0 ||
        !l->seats[l->coordinator].in_list[MEMBER])
        return true;
    for (int r = 0; r < l->o.rank; r++)
        if (l->seats[r].in_list[MEMBER] && !l->seats[r].silent)
            return false;
    return coordinator_is_silent(l);
}

/* Nothing is under way: the epoch can end and cost no member a round. */
static bool is_quiet(const struct ledger *l)
{
    for (int r = 0; r < l->o.ranks; r++)
        if (l->seats[r].in_list[MEMBER] && !ledger_holds_newest(l, &l->seats[r]))
            return false;
    return !l->open;
}

/* The open round is given up for a newcomer, which would else wait for the round's end
 * before it can take a state: but not a round at whose end no rank could give one, nor a
 * round that a member has done, nor a second one upon the same version, for else
 * newcomers might come faster than rounds end. */
static bool gives_way(const struct ledger *l)
{
    if (!l->open || !l->before.number || ledger_same(l->gave_way, l->before))
        return false;
    for (int r = 0; r < l->o.ranks; r++) {
        const struct ledger_decision *told = &l->seats[r].told;
        if (l->seats[r].in && (told->final || told->cannot_give || told->hollow ||
                               ledger_same(told->version, l->newest)))
            return false;
    }
    return true;
}

static bool needs_epoch(const struct ledger *l)
{
    if (l->promised || l->coordinator != l->o.rank)
        return true;
    if (!l->uneven)
        return false;
    bool quiet = is_quiet(l);
    for (int r = 0; r < l->o.ranks; r++) {
        const struct ledger_seat *s = &l->seats[r];
        bool member = s->in_list[MEMBER] != 0;
        if ((member && s->silent) ||
            (is_here(l, s) && (s->told.ballot || s->told.about >= 0)) ||
            (quiet && is_here(l, s) && s->told.leaves) ||
            (quiet && is_newcomer(l, s) && !s->outdated &&
             ledger_same(s->told.version, l->held)) ||
            (!quiet && is_newcomer(l, s) && !s->outdated && !s->is_slow && gives_way(l)))
            return true;
    }
    return false;
}

bool ledger_found(struct ledger *l)
{
    if (l->mine)
        return go_on_founding(l);
    if (!is_candidate(l) || !needs_epoch(l))
        return false;
    found(l);
    return true;
}

void ledger_found_again(struct ledger *l)
{
    if (l->offer.made)
        owe_offers(l);
    else
        ledger_owe_members(l, LEDGER_FENCE);
}

void ledger_hear_promise(struct ledger *l, const struct ledger_seat *s,
                         const struct ledger_decision *w, const struct ledger_entry *list)
{
    if (l->offer.made && !has_accepted(l, s)) {
        owe_offer(l, w->from);      /* time repeats it for the others */
    } else if (!l->offer.made && is_here(l, s) && has_promised(l, s) &&
               w->accepted > l->offer.ballot) {
        ledger_put_list(l, OFFER, list);
        l->offer = (struct ledger_offer){.ballot = w->accepted,
                                         .coordinator = w->coordinator,
                                         .fresh = w->fresh,
                                         .vouched = w->vouched,
                                         .base = w->version};
    }
}

/* While the coordinator is heard, it alone gets a promise; once it is silent, the lowest
 * rank gets one, for `dead`. */
void ledger_hear_fence(struct ledger *l, struct ledger_seat *s,
                       const struct ledger_decision *w)
{
    uint64_t ranks = (uint64_t)l->o.ranks;
    bool elsewhere = l->promised ? holds_off(l) && w->ballot % ranks > l->promised % ranks
                                 : !coordinator_is_silent(l);

    if (!l->member || !s->in_list[MEMBER])
        return;
    s->told.ballot = w->ballot > s->told.ballot ? w->ballot : s->told.ballot;
    forget_counts(l);
    if (w->ballot > l->promised && (w->from == l->coordinator || !elsewhere))
        ledger_promise(l, w->ballot);
    ledger_owe(l, w->from, LEDGER_HERE);
}

void ledger_hear_proposal(struct ledger *l, const struct ledger_decision *w,
                          const struct ledger_entry *list)
{
    bool asked = l->member || list[l->o.rank].generation == l->o.generation;

    if (!asked || !RULE(PROMISE, w->ballot >= l->promised))
        return;
    if (w->ballot != l->promised)
        ledger_promise(l, w->ballot);
    ledger_owe(l, w->from, LEDGER_HERE);
    if (!RULE(ACCEPT, ledger_same(l->held, w->base)))
        return;
    ledger_put_list(l, ACCEPTED, list);
    l->accepted = w->ballot;
    l->accepted_coordinator = w->coordinator;
    l->accepted_fresh = w->fresh;
    l->accepted_vouched = w->vouched;
}
