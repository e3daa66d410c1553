/* SPDX-License-Identifier: MIT */
/* The ledger's words. Words are not queued: a seat owes kinds of words, and each is
 * written from the state as it is when the word leaves. A word that comes is input: its
 * ranks and numbers are tested before the ledger uses them. */
#include "ranks/ledger_state.h"

#include <string.h>

/* --- words that leave --- */

/* Upon the version that it holds, which need not be the newest: a coordinator that has
 * closed a round without this peer is to know that it waits. */
static bool arrives(const struct ledger *l)
{
    bool is_in = l->open && l->seats[l->o.rank].in;

    return l->member && !l->promised && l->ready && l->pending && !is_in && !l->retired;
}

static int first_silent(const struct ledger *l)
{
    for (int r = 0; r < l->o.ranks && l->uneven; r++)
        if (l->seats[r].in_list[MEMBER] && l->seats[r].silent)
            return r;
    return -1;
}

static void write_list(const struct ledger *l, struct ledger_decision *d, enum list which,
                       struct ledger_entry *list)
{
    d->listed = true;
    for (int r = 0; r < l->o.ranks; r++)
        list[r] = (struct ledger_entry){l->seats[r].in_list[which], l->seats[r].in};
}

static void write_here(const struct ledger *l, struct ledger_decision *d,
                       struct ledger_entry *list)
{
    d->accepted = l->accepted;
    d->coordinator = l->accepted_coordinator;
    d->fresh = l->accepted_fresh;
    d->vouched = l->accepted_vouched;
    d->seq = arrives(l) ? l->seq : 0;
    d->final = l->final;
    d->absent = l->leaves || l->retired;
    d->about = first_silent(l);
    d->leaves = l->leaves;
    d->cannot_give = l->replaces;
    if (l->waited_ns && ledger_same(l->waited_in, l->held)) {
        d->slow = l->waited_for;
        d->slow_ns = l->waited_ns;
    }
    /* the vectors of one that leaves are its caller's again */
    bool leaves = l->leaves || (l->retired && l->o.quorum.arrivals > 0);
    d->hollow = (l->hollow && !l->replaces) || (leaves && !l->o.quorum.leavers_give);
    if (l->accepted)
        write_list(l, d, ACCEPTED, list);
}

bool ledger_write_word(const struct ledger *l, struct ledger_decision *d,
                       enum ledger_what what, int to, struct ledger_entry *list)
{
    memset(d, 0, sizeof *d);        /* also the padding: equal words have equal bytes */
    d->what = what;
    d->from = l->o.rank;
    d->to = to;
    d->about = d->slow = -1;
    d->generation = l->o.generation;
    d->epoch = l->epoch;
    d->ballot = l->promised;
    d->version = l->held;
    d->coordinator = l->coordinator;
    switch (what) {
    case LEDGER_HERE:
        write_here(l, d, list);
        return true;
    case LEDGER_FENCE:
        return l->mine != 0;
    case LEDGER_PROPOSE:
        d->base = l->offer.base;
        d->coordinator = l->offer.coordinator;
        d->fresh = l->offer.fresh;
        d->vouched = l->offer.vouched;
        write_list(l, d, OFFER, list);
        return l->mine && l->offer.made;
    case LEDGER_TAKE:
        d->version = l->mine ? l->offer.base : l->open ? l->before : l->newest;
        d->about = ledger_donor(l, d->version, to);
        d->cannot_give =
            is_here(l, &l->seats[to]) && ledger_gives(l, d->about) <= GIVES_BRINGER;
        if (l->o.fixed && d->cannot_give &&         /* it has the list already */
            ledger_same(d->version, l->seats[to].told.version))
            return false;
        return d->about >= 0 && (!l->mine || l->offer.made);
    case LEDGER_GO:
    case LEDGER_OPEN:
        d->version = l->newest;
        d->base = l->before;
        write_list(l, d, MEMBER, list);
        return !l->promised;
    case LEDGER_FETCH:
        d->version = l->wanted;
        d->about = l->donor;
        d->cannot_give = l->list_only;
        return l->wanted.epoch != 0;
    case LEDGER_MERGED:
        d->seq = l->done;
        return true;
    default:
        write_list(l, d, MEMBER, list);
        return true;
    }
}

static bool take_lowest(unsigned *bits, enum ledger_what *what)
{
    if (!*bits)
        return false;
    *what = (enum ledger_what)__builtin_ctz(*bits);
    *bits &= *bits - 1;
    return true;
}

bool ledger_next(struct ledger *l, struct ledger_decision *out, struct ledger_entry *list)
{
    enum ledger_what what;

    while (take_lowest(&l->tells, &what))
        if (ledger_write_word(l, out, what, l->o.rank, list))
            return true;
    for (; l->n_owed; l->first_owed++) {
        struct ledger_seat *s = &l->seats[l->first_owed];
        while (take_lowest(&s->owes, &what)) {
            l->n_owed -= !s->owes;
            if (!ledger_write_word(l, out, what, l->first_owed, list))
                continue;
            s->has_take |= what == LEDGER_TAKE && l->o.fixed;
            return true;
        }
    }
    l->first_owed = l->o.ranks;
    return false;
}

/* --- words that come --- */

static bool is_rank(const struct ledger *l, int rank, bool or_none)
{
    return rank < l->o.ranks && rank >= (or_none ? -1 : 0);
}

/* The coordinator must be in the list. */
static bool list_is_sane(const struct ledger_decision *w,
                         const struct ledger_entry *list)
{
    return w->what == LEDGER_GO || w->coordinator < 0 || list[w->coordinator].generation;
}

/* Numbers are bounded so that no sum overflows, and a series has room for both of its
 * numbers. */
static bool numbers_are_sane(const struct ledger *l, const struct ledger_decision *w)
{
    const uint64_t most = UINT64_C(1) << 40, ballots = most * (uint64_t)l->o.ranks;
    const uint64_t epochs = UINT64_C(1) << 24;

    return w->epoch < epochs && w->version.epoch < epochs && w->base.epoch < epochs &&
           w->version.number < most && w->base.number < most && w->seq < most &&
           w->ballot < ballots && w->accepted < ballots && w->slow_ns < most << 20;
}

/* A ballot's number tells the rank that may propose it. */
static bool ballot_is_sane(const struct ledger *l, const struct ledger_decision *w)
{
    bool own = w->ballot % (uint64_t)l->o.ranks == (uint64_t)w->from;

    if (w->what == LEDGER_TAKE)
        return !w->ballot || own;
    return (w->what != LEDGER_FENCE && w->what != LEDGER_PROPOSE) || (w->ballot && own);
}

static bool go_is_sane(const struct ledger_decision *w)
{
    return w->what != LEDGER_GO || (w->version.epoch == w->epoch &&
                                    w->version.number == w->base.number + 1);
}

bool ledger_word_is_sane(const struct ledger *l, const struct ledger_decision *w,
                         const struct ledger_entry *list)
{
    bool needs_list = w->what == LEDGER_PROPOSE || w->what == LEDGER_STANDS ||
                      w->what == LEDGER_GO || (w->what == LEDGER_HERE && w->accepted);

    return w->what <= LEDGER_TAKE && is_rank(l, w->from, false) &&
           w->from != l->o.rank && w->to == l->o.rank && w->generation &&
           is_rank(l, w->about, true) && is_rank(l, w->slow, true) &&
           is_rank(l, w->coordinator, true) &&
           (!needs_list || (list && list_is_sane(w, list))) && numbers_are_sane(l, w) &&
           ballot_is_sane(l, w) && go_is_sane(w);
}
