/* SPDX-License-Identifier: MIT */
/* The ledger: docs/members.md as a state machine, one for each peer.
 *
 * An epoch is decided by its predecessor's members, by Paxos: a candidate gathers
 * promises of members that may go on (FENCE), offers a list and a base version (PROPOSE),
 * and when members that may go on from both epochs have accepted, the epoch stands
 * (STANDS). A promise ends the old epoch for its giver, so whatever version a round could
 * still leave is known to the candidate, or will never be built upon. Everything else
 * follows its leader: the candidate that it has promised, else the coordinator.
 *
 *   1. An epoch's number has one list. What somebody may have accepted is offered again.
 *   2. Accepting takes the base version: a version that could be built upon is not lost.
 *   3. A round closes upon a version that members who may go on have told that they hold.
 *   4. Who has promised gives up the round, arrives nowhere, and takes no version but the
 *      offered one.
 *   5. `merged` goes with the version that is held. No seq at or below it arrives again.
 *
 * Safety is by numbers alone. Time decides who is a candidate and when words are said
 * again, so a wrong guess costs a round and no more. Words are not queued: a seat owes
 * kinds of words, which are written from the state as it is when they leave. RULE names
 * the tests on which safety rests, so that tests/test_ledger.c can break them one by one.
 *
 * Not here: what a round computes (fabric/ruling.c), pieces, transfers, and how one finds
 * a peer. */
#include "ranks/ledger.h"

#include <string.h>

#ifndef RULE
#define RULE(name, test) (test)
#endif

enum list { MEMBER, ACCEPTED, OFFER, LISTS };

struct seat {
    uint64_t in_list[LISTS];  /* generations: of the epoch, of what may be the next one */
    uint64_t in;                    /* its seq in the round that has closed last */
    struct ledger_entry merged;     /* in the version that is held */
    struct ledger_decision told;    /* its last HERE; generation 0: none */
    bool silent, lost;
    unsigned owes;                  /* words, by kind */
};

struct ledger {
    struct ledger_options o;
    uint64_t now_ns, say_ns;
    uint64_t epoch, promised, promised_ns;
    struct ledger_version held, newest, before;   /* newest closed, and what it is upon */
    struct ledger_version wanted;                   /* epoch 0: nothing is */
    int coordinator, donor;                         /* of what is wanted */
    bool member, open, ready, leaves;
    bool pending;               /* seq is not known to be merged */
    uint64_t seq, done, lost;             /* the newest seq; the newest that was merged */
    uint64_t accepted, mine, since_ns;  /* ballots; the quorum's time plus one, or 0 */
    int accepted_coordinator, asked;
    bool accepted_fresh;
    struct offer {                                  /* mine != 0 */
        bool made, fresh;                        /* fresh: not another candidate's list */
        uint64_t ballot;                     /* that it was accepted with; 0: it is new */
        int coordinator, donor;
        struct ledger_version base;
    } offer;
    unsigned tells;                                 /* decisions, by kind */
    struct seat seats[];
};

/* --- versions, lists --- */

static bool same(struct ledger_version a, struct ledger_version b)
{
    return a.epoch == b.epoch && a.number == b.number;
}

static bool newer(struct ledger_version a, struct ledger_version b)
{
    return a.epoch > b.epoch || (a.epoch == b.epoch && a.number > b.number);
}

static void put_list(struct ledger *l, enum list which, const struct ledger_entry *list)
{
    for (int r = 0; r < l->o.ranks; r++)
        l->seats[r].in_list[which] = list ? list[r].generation : 0;
}

static void copy_list(struct ledger *l, enum list to, enum list from)
{
    for (int r = 0; r < l->o.ranks; r++)
        l->seats[r].in_list[to] = l->seats[r].in_list[from];
}

bool ledger_may_go_on(int members, int of_them, bool with_coordinator)
{
    return 2 * of_them > members || (2 * of_them == members && with_coordinator);
}

typedef bool test(const struct ledger *l, const struct seat *s);

/* Whether those of a list who pass may go on from it. Nobody is needed where all have
 * left. */
static bool enough(const struct ledger *l, enum list which, int coordinator, test *passes)
{
    int members = 0, n = 0;
    bool first = false;

    for (int r = 0; r < l->o.ranks; r++) {
        const struct seat *s = &l->seats[r];
        if (!s->in_list[which] || (s->lost && s->in_list[which] == s->in_list[MEMBER]))
            continue;
        members++;
        if (s->told.generation == s->in_list[which] && passes(l, s)) {
            n++;
            first |= r == coordinator;
        }
    }
    return !members || ledger_may_go_on(members, n, first);
}

static bool is_here(const struct ledger *l, const struct seat *s)
{
    return s->in_list[MEMBER] && s->told.generation == s->in_list[MEMBER] &&
           s->told.epoch == l->epoch;
}

static bool has_promised(const struct ledger *l, const struct seat *s)
{
    return s->told.epoch == l->epoch && s->told.ballot == l->mine;
}

static bool has_accepted(const struct ledger *l, const struct seat *s)
{
    return has_promised(l, s) && s->told.accepted == l->mine;
}

static bool holds_newest(const struct ledger *l, const struct seat *s)
{
    return s->told.epoch == l->epoch && !s->told.ballot &&
           same(s->told.version, l->newest);
}

static bool is_newcomer(const struct ledger *l, const struct seat *s)
{
    return s->told.generation && s->told.generation != s->in_list[MEMBER] &&
           !s->told.leaves && s->told.epoch == l->epoch;
}

static uint64_t merged_of(const struct seat *s, uint64_t generation)
{
    return s->merged.generation == generation ? s->merged.seq : 0;
}

/* --- words --- */

static void owe(struct ledger *l, int rank, enum ledger_what what)
{
    if (rank != l->o.rank)
        l->seats[rank].owes |= 1u << what;
}

static void owe_members(struct ledger *l, enum ledger_what what)
{
    for (int r = 0; r < l->o.ranks; r++)
        if (l->seats[r].in_list[MEMBER])
            owe(l, r, what);
}

static void tell(struct ledger *l, enum ledger_what what)
{
    l->tells |= 1u << what;
}

/* To the coordinator, and to the candidate that has the promise. */
static void say_here(struct ledger *l)
{
    owe(l, l->coordinator, LEDGER_HERE);
    if (l->promised)
        owe(l, (int)(l->promised % (uint64_t)l->o.ranks), LEDGER_HERE);
}

static bool arrives(const struct ledger *l)
{
    return l->member && !l->promised && l->ready && l->pending && !l->open &&
           same(l->held, l->newest);
}

static int first_silent(const struct ledger *l)
{
    for (int r = 0; r < l->o.ranks; r++)
        if (l->seats[r].in_list[MEMBER] && l->seats[r].silent)
            return r;
    return -1;
}

/* A member that has the version; the coordinator only where nobody else has. */
static int donor_of(const struct ledger *l, struct ledger_version version, int not_this)
{
    int donor = -1;
    for (int i = 0; i < l->o.ranks; i++) {
        int r = (l->coordinator + 1 + i) % l->o.ranks;
        const struct seat *s = &l->seats[r];
        if (donor < 0 && r != not_this && is_here(l, s) && !s->silent &&
            same(s->told.version, version))
            donor = r;
    }
    return donor;
}

static void write_list(const struct ledger *l, struct ledger_decision *d, enum list which,
                       struct ledger_entry *list)
{
    d->listed = true;
    for (int r = 0; r < l->o.ranks; r++)
        list[r] = (struct ledger_entry){l->seats[r].in_list[which], l->seats[r].in};
}

/* False: what was owed is out of date. */
static bool write_word(const struct ledger *l, struct ledger_decision *d,
                       enum ledger_what what, int to, struct ledger_entry *list)
{
    *d = (struct ledger_decision){.what = what, .from = l->o.rank, .to = to, .about = -1,
                                  .generation = l->o.generation, .epoch = l->epoch,
                                  .ballot = l->promised, .version = l->held,
                                  .coordinator = l->coordinator};
    switch (what) {
    case LEDGER_HERE:
        d->accepted = l->accepted;
        d->coordinator = l->accepted_coordinator;
        d->fresh = l->accepted_fresh;
        d->seq = arrives(l) ? l->seq : 0;
        d->about = first_silent(l);
        d->leaves = l->leaves;
        if (l->accepted)
            write_list(l, d, ACCEPTED, list);
        return true;
    case LEDGER_FENCE:
        return l->mine != 0;
    case LEDGER_PROPOSE:
        d->base = l->offer.base;
        d->coordinator = l->offer.coordinator;
        d->fresh = l->offer.fresh;
        write_list(l, d, OFFER, list);
        return l->mine && l->offer.made;
    case LEDGER_TAKE:
        d->version = l->mine ? l->offer.base : l->open ? l->before : l->newest;
        d->about = l->mine ? l->offer.donor : donor_of(l, d->version, to);
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
        if (write_word(l, out, what, l->o.rank, list))
            return true;
    for (int r = 0; r < l->o.ranks; r++)
        while (take_lowest(&l->seats[r].owes, &what))
            if (write_word(l, out, what, r, list))
                return true;
    return false;
}

/* --- what changes this peer's state --- */

static void give_up_round(struct ledger *l)
{
    if (l->open)
        tell(l, LEDGER_VOID);
    l->tells &= ~(1u << LEDGER_OPEN);
    l->open = false;
}

static void promise(struct ledger *l, uint64_t ballot)
{
    l->promised = ballot;
    l->promised_ns = l->now_ns;
    l->wanted = (struct ledger_version){0, 0};
    give_up_round(l);
    say_here(l);
}

static void want(struct ledger *l, struct ledger_version version, int donor)
{
    if (donor < 0 || donor == l->o.rank || same(version, l->held))
        return;
    l->wanted = version;
    l->donor = donor;
    tell(l, LEDGER_FETCH);
}

/* Another version is held: the fate of this peer's last arrival is known. */
static void hold(struct ledger *l, struct ledger_version version)
{
    uint64_t merged = merged_of(&l->seats[l->o.rank], l->o.generation);

    l->held = version;
    l->ready = false;
    l->since_ns = 0;
    l->wanted = (struct ledger_version){0, 0};
    if (merged < l->done)
        l->lost += l->done - merged;
    else if (merged > l->done)
        tell(l, LEDGER_MERGED);
    l->pending &= RULE(MERGED, merged < l->seq);
    l->done = merged;
    say_here(l);
}

/* The list is in MEMBER already. */
static void stand(struct ledger *l, uint64_t epoch, int coordinator)
{
    give_up_round(l);
    l->epoch = epoch;
    l->coordinator = coordinator;
    l->member = l->seats[l->o.rank].in_list[MEMBER] == l->o.generation;
    l->promised = l->accepted = l->mine = l->since_ns = 0;
    l->wanted = (struct ledger_version){0, 0};
    l->newest = l->before = l->held;
    put_list(l, ACCEPTED, NULL);
    for (int r = 0; r < l->o.ranks; r++) {
        struct seat *s = &l->seats[r];
        s->in = 0;
        s->lost = false;
        s->owes &= 1u << LEDGER_STANDS | 1u << LEDGER_HERE;
        s->silent &= s->in_list[MEMBER] == s->told.generation;
    }
    tell(l, LEDGER_EPOCH);
    if (!l->member)
        tell(l, LEDGER_OUT);
    if (!l->leaves || l->member)
        say_here(l);
}

/* --- founding the next epoch --- */

static void owe_offer(struct ledger *l)
{
    for (int r = 0; r < l->o.ranks; r++) {
        const struct seat *s = &l->seats[r];
        if (s->in_list[OFFER] || s->in_list[MEMBER])
            owe(l, r,
                same(s->told.version, l->offer.base) ? LEDGER_PROPOSE : LEDGER_TAKE);
    }
}

/* With a ballot above all that this peer has heard of. */
static void found(struct ledger *l)
{
    uint64_t most = l->promised, ranks = (uint64_t)l->o.ranks;

    for (int r = 0; r < l->o.ranks; r++)
        if (is_here(l, &l->seats[r]) && l->seats[r].told.ballot > most)
            most = l->seats[r].told.ballot;
    l->mine = (most / ranks + 1) * ranks + (uint64_t)l->o.rank;
    l->offer = (struct offer){.ballot = l->accepted,
                              .coordinator = l->accepted_coordinator,
                              .fresh = l->accepted_fresh,
                              .base = l->held,
                              .donor = l->o.rank};
    copy_list(l, OFFER, ACCEPTED);
    promise(l, l->mine);
    owe_members(l, LEDGER_FENCE);
}

/* Of two members that are here and do not hear each other the higher rank goes; this one
 * stays. */
static bool is_deaf(const struct ledger *l, int rank)
{
    for (int r = 0; r < l->o.ranks; r++)
        if ((r == l->o.rank || (r < rank && rank != l->o.rank)) && r != rank &&
            is_here(l, &l->seats[r]) && has_promised(l, &l->seats[r]) &&
            (l->seats[rank].told.about == r || l->seats[r].told.about == rank))
            return true;
    return false;
}

/* All have promised who are not silent, or have had time to; and they may go on. */
static bool gathered(const struct ledger *l)
{
    for (int r = 0; r < l->o.ranks; r++) {
        const struct seat *s = &l->seats[r];
        if (s->in_list[MEMBER] && !s->silent && !(is_here(l, s) && has_promised(l, s)) &&
            l->now_ns < l->promised_ns + l->o.dead_ns / 2)
            return false;
    }
    return RULE(QUORUM, enough(l, MEMBER, l->coordinator, has_promised));
}

static void make_new_offer(struct ledger *l)
{
    struct offer *offer = &l->offer;

    *offer = (struct offer){.fresh = true, .base = l->held, .donor = l->o.rank};
    for (int r = 0; r < l->o.ranks; r++) {
        const struct seat *s = &l->seats[r];
        if (is_here(l, s) && has_promised(l, s) &&
            RULE(BASE, newer(s->told.version, offer->base))) {
            offer->base = s->told.version;
            offer->donor = r;
        }
    }
    offer->coordinator = l->leaves ? -1 : l->o.rank;
    for (int r = 0; r < l->o.ranks; r++) {
        struct seat *s = &l->seats[r];
        bool stays =
            is_here(l, s) && has_promised(l, s) && !s->told.leaves && !is_deaf(l, r);
        bool comes = is_newcomer(l, s) && same(s->told.version, offer->base);
        s->in_list[OFFER] = stays || comes ? s->told.generation : 0;
        if (s->in_list[OFFER] && offer->coordinator < 0)
            offer->coordinator = r;
    }
}

/* Whoever offered the list that was accepted last is here, so it has not made it stand,
 * and never will. */
static bool is_void(const struct ledger *l)
{
    const struct seat *s = &l->seats[l->offer.ballot % (uint64_t)l->o.ranks];
    return l->offer.fresh && is_here(l, s) && has_promised(l, s);
}

static void make_offer(struct ledger *l)
{
    if (RULE(AGAIN, !l->offer.ballot || is_void(l)))
        make_new_offer(l);
    else
        l->offer.fresh = false;
    l->offer.made = true;
    want(l, l->offer.base, l->offer.donor);
    owe_offer(l);
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
    if (l->accepted != l->mine && RULE(ACCEPT, same(l->held, l->offer.base))) {
        copy_list(l, ACCEPTED, OFFER);
        l->accepted = l->mine;
        l->accepted_coordinator = l->offer.coordinator;
        l->accepted_fresh = l->offer.fresh;
        return true;
    }
    if (!RULE(STANDS, enough(l, MEMBER, l->coordinator, has_accepted) &&
                      enough(l, OFFER, l->offer.coordinator, has_accepted)))
        return false;
    for (int r = 0; r < l->o.ranks; r++)
        if (l->seats[r].in_list[MEMBER] || l->seats[r].in_list[OFFER])
            owe(l, r, LEDGER_STANDS);
    copy_list(l, MEMBER, OFFER);
    stand(l, l->epoch + 1, l->offer.coordinator);
    return true;
}

static bool holds_off(const struct ledger *l)
{
    return l->promised && l->now_ns < l->promised_ns + l->o.dead_ns &&
           !l->seats[l->promised % (uint64_t)l->o.ranks].silent;
}

/* The coordinator's turn to found, or the lowest rank's that is heard when it is
 * silent. */
static bool is_candidate(const struct ledger *l)
{
    if (!l->member || holds_off(l))
        return false;
    if (l->coordinator == l->o.rank || (!l->seats[l->coordinator].in_list[MEMBER]))
        return true;
    for (int r = 0; r < l->o.rank; r++)
        if (l->seats[r].in_list[MEMBER] && !l->seats[r].silent)
            return false;
    return l->seats[l->coordinator].silent;
}

/* Nothing is under way: an epoch can end and cost nobody a round. */
static bool is_quiet(const struct ledger *l)
{
    for (int r = 0; r < l->o.ranks; r++)
        if (l->seats[r].in_list[MEMBER] && !holds_newest(l, &l->seats[r]))
            return false;
    return !l->open;
}

static bool needs_epoch(const struct ledger *l)
{
    bool quiet = is_quiet(l);

    if (l->promised || l->coordinator != l->o.rank)
        return true;
    for (int r = 0; r < l->o.ranks; r++) {
        const struct seat *s = &l->seats[r];
        bool member = s->in_list[MEMBER] != 0;
        if ((member && s->silent) ||
            (is_here(l, s) && (s->told.ballot || s->told.about >= 0)) ||
            (quiet && is_here(l, s) && s->told.leaves) ||
            (quiet && is_newcomer(l, s) && same(s->told.version, l->held)))
            return true;
    }
    return false;
}

/* --- rounds --- */

static bool has_arrived(const struct ledger *l, const struct seat *s)
{
    return is_here(l, s) && holds_newest(l, s) && s->told.seq &&
           RULE(MERGED, s->told.seq > merged_of(s, s->told.generation));
}

/* The coordinator's, upon a version that it holds itself: so it knows what is merged. */
static bool close_round(struct ledger *l)
{
    int members = 0, n = 0;

    if (l->promised || l->open || !same(l->held, l->newest))
        return false;
    for (int r = 0; r < l->o.ranks; r++) {
        members += l->seats[r].in_list[MEMBER] != 0;
        n += has_arrived(l, &l->seats[r]);
    }
    if (!n || n < (l->o.quorum && l->o.quorum < members ? l->o.quorum : members) ||
        !RULE(HOLD, enough(l, MEMBER, l->coordinator, holds_newest)))
        return false;
    if (!l->since_ns)
        l->since_ns = l->now_ns + 1;
    if (n < members && l->now_ns + 1 < l->since_ns + l->o.grace_ns)
        return false;
    l->since_ns = 0;
    for (int r = 0; r < l->o.ranks; r++) {
        struct seat *s = &l->seats[r];
        s->in = has_arrived(l, s) ? s->told.seq : 0;
        if (s->in_list[MEMBER] || is_newcomer(l, s))
            owe(l, r, LEDGER_GO);
    }
    l->before = l->held;
    l->newest = (struct ledger_version){l->epoch, l->held.number + 1};
    l->open = true;
    tell(l, LEDGER_OPEN);
    return true;
}

static void turn(struct ledger *l)
{
    struct ledger_decision self;
    struct ledger_entry none[1];
    bool more = true;

    while (more) {
        uint64_t accepted = l->accepted;
        l->accepted = 0;                            /* its own list is known */
        write_word(l, &self, LEDGER_HERE, l->o.rank, none);
        self.accepted = l->accepted = accepted;
        l->seats[l->o.rank].told = self;
        if (l->mine)
            more = go_on_founding(l);
        else if ((more = is_candidate(l) && needs_epoch(l)))
            found(l);
        else if (l->member && l->coordinator == l->o.rank)
            more = close_round(l);
    }
}

/* --- what is heard --- */

/* Who comes later, or has missed a round, hears here what it lacks; and this peer, who
 * has newer. */
static void hear_here(struct ledger *l, struct seat *s, const struct ledger_decision *w,
                      const struct ledger_entry *list)
{
    s->told = *w;
    if (w->epoch != l->epoch)
        return;
    if (l->mine && !l->offer.made && is_here(l, s) && has_promised(l, s) &&
        w->accepted > l->offer.ballot) {
        put_list(l, OFFER, list);
        l->offer = (struct offer){.ballot = w->accepted,
                                  .coordinator = w->coordinator,
                                  .fresh = w->fresh,
                                  .base = w->version,
                                  .donor = w->from};
    }
    if (l->mine && l->offer.made)
        owe_offer(l);
    if (l->coordinator == l->o.rank && is_here(l, s) && !w->ballot &&
        newer(w->version, l->newest))
        l->newest = w->version;
    if (l->coordinator == l->o.rank && !l->promised && !same(w->version, l->newest))
        owe(l, w->from, l->open && same(w->version, l->before) ? LEDGER_GO : LEDGER_TAKE);
}

/* While the coordinator is heard it alone gets a promise; after that the lowest rank, for
 * `dead`. */
static void hear_fence(struct ledger *l, struct seat *s, const struct ledger_decision *w)
{
    uint64_t ranks = (uint64_t)l->o.ranks;
    bool elsewhere = l->promised ? holds_off(l) && w->ballot % ranks > l->promised % ranks
                                 : !l->seats[l->coordinator].silent;

    if (!l->member || !s->in_list[MEMBER])
        return;
    s->told.ballot = w->ballot > s->told.ballot ? w->ballot : s->told.ballot;
    if (w->ballot > l->promised && (w->from == l->coordinator || !elsewhere))
        promise(l, w->ballot);
    owe(l, w->from, LEDGER_HERE);
}

static void hear_proposal(struct ledger *l, const struct ledger_decision *w,
                          const struct ledger_entry *list)
{
    bool asked = l->member || list[l->o.rank].generation == l->o.generation;

    if (!asked || !RULE(PROMISE, w->ballot >= l->promised))
        return;
    if (w->ballot != l->promised)
        promise(l, w->ballot);
    owe(l, w->from, LEDGER_HERE);
    if (!RULE(ACCEPT, same(l->held, w->base)))
        return;
    put_list(l, ACCEPTED, list);
    l->accepted = w->ballot;
    l->accepted_coordinator = w->coordinator;
    l->accepted_fresh = w->fresh;
}

/* A newcomer may hear of a ballot here first. */
static void hear_take(struct ledger *l, const struct ledger_decision *w)
{
    if (w->ballot > l->promised)
        promise(l, w->ballot);
    if (w->ballot == l->promised)
        want(l, w->version, w->about);
}

static void hear_go(struct ledger *l, const struct ledger_decision *w,
                    const struct ledger_entry *list)
{
    if (l->promised || w->from != l->coordinator || !newer(w->version, l->newest))
        return;
    give_up_round(l);
    l->newest = w->version;
    l->before = w->base;
    for (int r = 0; r < l->o.ranks; r++)
        l->seats[r].in = list[r].seq;
    l->open = same(l->held, w->base);
    if (l->open)
        tell(l, LEDGER_OPEN);
}

static bool is_sane(const struct ledger *l, const struct ledger_decision *w,
                    const struct ledger_entry *list)
{
    bool needs_list = w->what == LEDGER_PROPOSE || w->what == LEDGER_STANDS ||
                      w->what == LEDGER_GO || (w->what == LEDGER_HERE && w->accepted);

    return w->what <= LEDGER_TAKE && w->from >= 0 && w->from < l->o.ranks &&
           w->from != l->o.rank && w->to == l->o.rank && w->generation &&
           w->about >= -1 && w->about < l->o.ranks && w->coordinator >= -1 &&
           w->coordinator < l->o.ranks && (!needs_list || list);
}

void ledger_hear(struct ledger *l, const struct ledger_decision *w,
                 const struct ledger_entry *list)
{
    if (!is_sane(l, w, list))
        return;
    struct seat *s = &l->seats[w->from];
    s->silent = s->in_list[MEMBER] && s->in_list[MEMBER] != w->generation;
    if (w->what != LEDGER_HERE && w->what != LEDGER_STANDS && s->silent)
        return;
    if (w->epoch < l->epoch)
        owe(l, w->from, LEDGER_STANDS);
    if (w->epoch > l->epoch && w->what == LEDGER_STANDS) {
        put_list(l, MEMBER, list);
        stand(l, w->epoch, w->coordinator < 0 ? w->from : w->coordinator);
    } else if (w->epoch > l->epoch) {
        owe(l, w->from, LEDGER_HERE);
    } else if (w->what == LEDGER_HERE) {
        hear_here(l, s, w, list);
    } else if (w->epoch == l->epoch) {
        if (w->what == LEDGER_FENCE)
            hear_fence(l, s, w);
        else if (w->what == LEDGER_PROPOSE)
            hear_proposal(l, w, list);
        else if (w->what == LEDGER_GO)
            hear_go(l, w, list);
        else if (w->what == LEDGER_TAKE)
            hear_take(l, w);
    }
    turn(l);
}

/* --- what else happens --- */

void ledger_silent(struct ledger *l, int rank)
{
    struct seat *s = &l->seats[rank];

    s->silent = rank != l->o.rank && s->in_list[MEMBER];
    if (s->told.generation != s->in_list[MEMBER])
        s->told.generation = 0;
    turn(l);
}

void ledger_lost(struct ledger *l, int rank)
{
    l->seats[rank].lost = true;
    ledger_silent(l, rank);
}

uint64_t ledger_ready(struct ledger *l)
{
    if (l->open && l->seats[l->o.rank].in)
        return 0;
    if (!l->pending)
        l->seq++;
    l->ready = l->pending = true;
    say_here(l);
    turn(l);
    return l->seq;
}

void ledger_whole(struct ledger *l)
{
    if (!RULE(FENCE, l->open))
        return;
    l->open = false;
    for (int r = 0; r < l->o.ranks; r++)
        if (l->seats[r].in)
            l->seats[r].merged =
                (struct ledger_entry){l->seats[r].in_list[MEMBER], l->seats[r].in};
    hold(l, l->newest);
    turn(l);
}

bool ledger_took(struct ledger *l, struct ledger_version version,
                 const struct ledger_entry *merged)
{
    bool later = !l->promised && version.epoch == l->epoch && newer(version, l->wanted);

    if (!l->wanted.epoch || !(same(version, l->wanted) || later))
        return false;
    give_up_round(l);
    l->accepted = 0;        /* of an older ballot: that list can no longer stand */
    for (int r = 0; r < l->o.ranks; r++)
        l->seats[r].merged = merged[r];
    if (newer(version, l->newest))
        l->newest = version;
    hold(l, version);
    turn(l);
    return true;
}

void ledger_leave(struct ledger *l)
{
    l->leaves = true;
    say_here(l);
    turn(l);
}

/* Everything that is still owed is said again; a coordinator's members hear at least that
 * it is here. */
void ledger_time(struct ledger *l, uint64_t now_ns)
{
    l->now_ns = now_ns;
    if (now_ns >= l->say_ns) {
        l->say_ns = now_ns + l->o.again_ns;
        if (!l->leaves || l->member)
            say_here(l);
        l->asked = (l->asked + 1) % l->o.ranks;
        if (!l->member && !l->leaves)      /* the coordinator that it knows may be dead */
            owe(l, l->asked, LEDGER_HERE);
        if (l->wanted.epoch)
            tell(l, LEDGER_FETCH);
        if (l->mine && l->offer.made)
            owe_offer(l);
        else if (l->mine)
            owe_members(l, LEDGER_FENCE);
        else if (l->member && l->coordinator == l->o.rank)
            owe_members(l, LEDGER_HERE);
        if (l->member && l->coordinator == l->o.rank && !l->promised &&
            !same(l->held, l->newest))
            want(l, l->newest, donor_of(l, l->newest, l->o.rank));
    }
    turn(l);
}

uint64_t ledger_wakes(const struct ledger *l)
{
    uint64_t grace = l->since_ns ? l->since_ns - 1 + l->o.grace_ns : UINT64_MAX;
    return grace < l->say_ns ? grace : l->say_ns;
}

struct ledger_view ledger_view(const struct ledger *l)
{
    return (struct ledger_view){.epoch = l->epoch, .lost = l->lost, .held = l->held,
                                .coordinator = l->coordinator, .member = l->member,
                                .open = l->open, .fenced = l->promised != 0};
}

void ledger_merged(const struct ledger *l, struct ledger_entry *merged)
{
    for (int r = 0; r < l->o.ranks; r++)
        merged[r] = l->seats[r].merged;
}

int ledger_owner(const struct ledger *l, enum ledger_owners owners, uint64_t n, int i)
{
    const uint64_t slice = 16384;
    uint64_t k = 0, few = n / slice + (n % slice != 0), place;

    if (owners == LEDGER_OWNERS_HUB)
        return i == 0 ? l->coordinator : -1;
    for (int r = 0; r < l->o.ranks; r++)
        k += l->seats[r].in != 0;
    few = owners == LEDGER_OWNERS_SOME && few < k ? few : k;
    if (i < 0 || (uint64_t)i >= few)
        return -1;
    place = (l->newest.number + (uint64_t)i) % k;
    for (int r = 0;; r++)
        if (l->seats[r].in && place-- == 0)
            return r;
}

size_t ledger_bytes(int ranks)
{
    return sizeof(struct ledger) + (size_t)ranks * sizeof(struct seat);
}

struct ledger *ledger_init(void *memory, const struct ledger_options *options,
                           uint64_t now_ns, const struct ledger_entry *first, int contact)
{
    struct ledger *l = memory;

    memset(memory, 0, ledger_bytes(options->ranks));
    l->o = *options;
    l->now_ns = now_ns;
    l->say_ns = now_ns + options->again_ns;
    l->coordinator = contact;
    if (first) {
        put_list(l, MEMBER, first);
        l->held = (struct ledger_version){1, 0};
        for (contact = 0; !first[contact].generation; contact++)
            ;
        stand(l, 1, contact);
    } else {
        say_here(l);
    }
    turn(l);
    return l;
}
