/* SPDX-License-Identifier: MIT */
/* The ledger: docs/members.md as a state machine, one for each peer.
 *
 * An epoch is decided by its predecessor's members, by Paxos: a candidate gathers
 * promises of members that may go on (FENCE), offers a list and a base version (PROPOSE),
 * and when members that may go on from both epochs have accepted, the epoch stands
 * (STANDS). A promise ends the old epoch for its giver, so a version that a round could
 * still leave is known to the candidate, or will never be built upon. In all else a peer
 * follows its leader: the candidate that it has promised, else the coordinator.
 *
 *   1. An epoch's number has one list. A list that may have been accepted is offered
 *      again.
 *   2. Accepting takes the base version: a version that could be built upon is not lost.
 *   3. A round closes upon a version that is held by members that may go on, as they have
 *      told.
 *   4. A member that has promised gives up the round, arrives nowhere, and takes no
 *      version but the offered one.
 *   5. `merged` goes with the version that is held. No seq at or below it arrives again.
 *   6. A member at its end is in no round of members at work, and an absent one in none.
 *      Both hold their versions all the same, with the state that they ended with, so
 *      that the others may go on.
 *   7. No round closes while a newcomer takes the newest version: it is not outrun.
 *   8. Under a quorum a round may close without some members. Their arrivals, and what
 *      they have not brought yet, count in later rounds, upon the version that the round
 *      left.
 *
 * Safety is by numbers alone. Time decides which peer is a candidate and when words are
 * said again, so a wrong guess costs a round and no more. RULE names the tests on which
 * safety rests, so that tests/test_ledger.c can break them one by one.
 *
 * ledger_round.c has the round that gathers, ledger_epoch.c the founding of epochs,
 * ledger_word.c the words. The ledger leaves out what a round computes (fabric/ruling.c),
 * pieces, transfers, and how peers are found. */
#include "ranks/ledger_state.h"

#include <string.h>

enum {
    ASKED_AT_ONCE = 16,
    EPOCHS_AT_ONCE = 64,    /* epochs that this peer may have missed at once, and */
    EPOCH_NS = 1000000,     /* one more in each such time, for founding takes longer, */
    EPOCHS_MISSED = 1 << 16 /* at most */
};

/* --- changes of this peer's state --- */

/* The arrivals (merged, done] are not in the version that is held now. Those that were
 * lost before are counted already. */
static void lose(struct ledger *l, uint64_t merged)
{
    uint64_t from = merged > l->lost_from ? merged : l->lost_from;

    l->lost += l->done - merged;
    l->lost -= from < l->lost_to ? l->lost_to - from : 0;
    l->lost_from = merged < l->lost_to && merged > l->lost_from ? l->lost_from : merged;
    l->lost_to = l->done;
}

/* Another version is held: the fate of this peer's last arrival is known. */
static void hold(struct ledger *l, struct ledger_version version)
{
    uint64_t merged = merged_of(&l->seats[l->o.rank], l->o.generation);

    l->held = version;
    forget_counts(l);           /* another version is held, and merged */
    l->ready = l->replaces = l->hollow = false;
    l->since_ns = 0;
    l->judged = false;
    l->version_ns = l->now_ns - l->began_ns;
    l->began_ns = l->now_ns;
    l->wanted = (struct ledger_version){0, 0};
    ledger_tell_missed(l);
    if (merged < l->done)
        lose(l, merged);
    else if (merged > l->done)
        tell(l, LEDGER_MERGED);
    l->pending &= RULE(MERGED, merged < l->seq);
    l->done = merged;
}

/* Leaves it to the next arrival to tell of the version, if there is one soon; but a
 * coordinator that was not in the round takes the version before it closes another. */
static void say_later(struct ledger *l)
{
    bool owed = l->o.quorum.arrivals > 0 && l->coordinator >= 0 &&
                !l->seats[l->coordinator].in;

    for (int r = l->first_owed; r < l->o.ranks; r++)
        owed |= (l->seats[r].owes & 1u << LEDGER_HERE) != 0;
    if (!owed && !l->final && !l->leaves && !l->retired && l->o.lazy_ns)
        l->unsaid_ns = l->now_ns + l->o.lazy_ns;
    else
        ledger_say_here(l);
}

static void turn(struct ledger *l)
{
    struct ledger_decision self;
    struct ledger_entry none[1];
    bool more = true;

    while (more) {
        uint64_t accepted = l->accepted;
        l->accepted = 0;                            /* it knows its own list */
        ledger_write_word(l, &self, LEDGER_HERE, l->o.rank, none);
        self.accepted = l->accepted = accepted;
        ledger_tell_of(l, &l->seats[l->o.rank], &self);
        more = ledger_found(l);
    }
    if (l->member && l->coordinator == l->o.rank)
        ledger_watch_quorum(l);
    else
        forget_counts(l);
}

/* --- words that come --- */

/* The coordinator takes the newest version, where it lacks that or its state. */
static void want_newest(struct ledger *l)
{
    if (l->member && l->coordinator == l->o.rank && !l->promised &&
        (l->hollow || !ledger_same(l->held, l->newest)))
        ledger_want_known(l, l->newest);
}

/* Whether a member that lacks a version needs no word of it: where no word is lost, a GO
 * has reached it, and it takes the version once it has arrived. */
static bool needs_none(const struct ledger *l, const struct ledger_seat *s, bool goes_on)
{
    return l->o.fixed && is_here(l, s) && (!tells_all(l) || goes_on || !s->told.seq);
}

/* Where no word is said again: a member can give the newest version, and those that hold
 * it without its state take that. */
static void tell_hollow(struct ledger *l)
{
    if (l->hollow && !l->wanted.epoch)
        want_newest(l);
    for (int r = 0; (!l->counts.known || l->counts.hollow) && r < l->o.ranks; r++)
        if (is_hollow(l, &l->seats[r]) && !l->seats[r].has_take)
            ledger_owe(l, r, LEDGER_TAKE);
}

/* A peer that comes later, or has missed a round, is told of the newer version that is
 * held here. If the peer has a newer one, this peer learns of it. */
static void hear_here(struct ledger *l, struct ledger_seat *s,
                      const struct ledger_decision *w, const struct ledger_entry *list)
{
    ledger_tell_of(l, s, w);
    s->has_go = s->has_take = false;
    if (w->epoch != l->epoch)
        return;
    if (l->mine)
        ledger_hear_promise(l, s, w, list);
    if (l->coordinator == l->o.rank && is_here(l, s) && !w->ballot &&
        ledger_newer(w->version, l->newest)) {
        l->newest = w->version;
        forget_counts(l);
    }
    /* a round without this coordinator has ended */
    if (l->o.quorum.arrivals > 0 && l->coordinator == l->o.rank && !l->promised &&
        !l->seats[l->o.rank].in && !l->wanted.epoch &&
        !ledger_same(l->held, l->newest) && ledger_same(w->version, l->newest))
        ledger_want_known(l, l->newest);
    if (l->o.fixed && tells_all(l) && l->coordinator == l->o.rank &&
        ledger_same(w->version, l->newest) && ledger_gives(l, w->from) > GIVES_BRINGER)
        tell_hollow(l);
    bool lacks = !ledger_same(w->version, l->newest) || (w->hollow && !l->open);
    bool goes_on = l->open && ledger_same(w->version, l->before);
    if (l->coordinator == l->o.rank && !l->promised && lacks &&
        !needs_none(l, s, goes_on))
        ledger_owe(l, w->from, goes_on ? LEDGER_GO : LEDGER_TAKE);
}

/* A newcomer may hear of a ballot here first. A word that comes late may name a version
 * older than that which this epoch's rounds have left here since. */
static void hear_take(struct ledger *l, const struct ledger_decision *w)
{
    bool late = !w->ballot && l->held.epoch == l->epoch &&
                ledger_newer(l->held, w->version);

    if (late)
        return;
    if (w->ballot > l->promised)
        ledger_promise(l, w->ballot);
    if (w->ballot == l->promised)
        ledger_want(l, w->version, w->about, w->cannot_give);
}

static void hear_go(struct ledger *l, const struct ledger_decision *w,
                    const struct ledger_entry *list)
{
    if (l->promised || w->from != l->coordinator || !ledger_newer(w->version, l->newest))
        return;
    ledger_give_up_round(l);
    l->newest = w->version;
    l->before = w->base;
    forget_counts(l);
    for (int r = 0; r < l->o.ranks; r++)
        l->seats[r].in = list[r].seq;
    bool can = ledger_same(l->held, w->base) && (!l->hollow || l->seats[l->o.rank].in);
    l->open = can || (!tells_all(l) && l->final);
    if (l->open)
        tell(l, LEDGER_OPEN);
}

/* An epoch is believed if its teller is a member of it, or of this peer's epoch (a leaver
 * founds the epoch without itself), and if it is no further ahead than the job can have
 * come while this peer was cut off. A newcomer knows no epoch, and believes any. */
static bool is_believed(const struct ledger *l, const struct ledger_seat *s,
                        const struct ledger_decision *w, const struct ledger_entry *list)
{
    uint64_t missed = EPOCHS_AT_ONCE + (l->now_ns - l->stood_ns) / EPOCH_NS;
    uint64_t most = missed < EPOCHS_MISSED ? missed : EPOCHS_MISSED;
    bool member = list[w->from].generation == w->generation ||
                  s->in_list[MEMBER] == w->generation;

    return member && (!l->epoch || w->epoch - l->epoch <= most);
}

void ledger_hear(struct ledger *l, const struct ledger_decision *w,
                 const struct ledger_entry *list)
{
    if (!ledger_word_is_sane(l, w, list))
        return;
    struct ledger_seat *s = &l->seats[w->from];
    s->silent = s->in_list[MEMBER] && s->in_list[MEMBER] != w->generation;
    l->uneven |=
        s->in_list[MEMBER] != w->generation || w->ballot || w->about >= 0 || w->leaves;
    if (w->what != LEDGER_HERE && w->what != LEDGER_STANDS && s->silent)
        return;
    if (w->epoch < l->epoch) {
        ledger_owe(l, w->from, LEDGER_STANDS);
        if (w->from == l->coordinator)      /* it could not use the HERE that it had */
            l->unsaid_ns = l->now_ns;
    }
    if (w->epoch > l->epoch && w->what == LEDGER_STANDS) {
        if (!is_believed(l, s, w, list))
            return;
        ledger_put_list(l, MEMBER, list);
        ledger_stand(l, w->epoch, w->coordinator < 0 ? w->from : w->coordinator);
    } else if (w->epoch > l->epoch) {
        ledger_owe(l, w->from, LEDGER_HERE);
    } else if (w->what == LEDGER_HERE) {
        hear_here(l, s, w, list);
    } else if (w->epoch == l->epoch) {
        if (w->what == LEDGER_FENCE)
            ledger_hear_fence(l, s, w);
        else if (w->what == LEDGER_PROPOSE)
            ledger_hear_proposal(l, w, list);
        else if (w->what == LEDGER_GO)
            hear_go(l, w, list);
        else if (w->what == LEDGER_TAKE)
            hear_take(l, w);
    }
    turn(l);
}

/* --- other events --- */

/* The lowest peer that is heard may have said FENCE before this one missed the
 * coordinator. */
static void promise_late(struct ledger *l)
{
    int r = 0;

    while (r < l->o.ranks && (!l->seats[r].in_list[MEMBER] || l->seats[r].silent))
        r++;
    if (!l->member || !coordinator_is_silent(l) || r >= l->o.rank)
        return;
    uint64_t ballot = l->seats[r].told.ballot;
    if (ballot > l->promised && ballot % (uint64_t)l->o.ranks == (uint64_t)r) {
        ledger_promise(l, ballot);
        ledger_owe(l, r, LEDGER_HERE);
    }
}

void ledger_silent(struct ledger *l, int rank)
{
    struct ledger_seat *s = &l->seats[rank];

    s->silent = rank != l->o.rank && s->in_list[MEMBER];
    l->uneven |= s->silent;
    if (s->told.generation != s->in_list[MEMBER])
        s->told.generation = 0;
    forget_counts(l);
    promise_late(l);
    turn(l);
}

/* Words that were said to the rank before are lost. A newcomer that meets a thousand
 * ranks at once asks some of them, and the others in turn. */
void ledger_came(struct ledger *l, int rank)
{
    if (l->member || l->leaves || l->greeted == ASKED_AT_ONCE)
        return;
    l->greeted++;
    ledger_owe(l, rank, LEDGER_HERE);
}

void ledger_heard(struct ledger *l, int rank)
{
    const struct ledger_seat *s = &l->seats[rank];

    if (s->told.generation != s->in_list[MEMBER])
        return;                 /* another process of that rank */
    l->seats[rank].silent = false;
    turn(l);
}

void ledger_await(struct ledger *l, int rank, bool awaits)
{
    l->seats[rank].is_slow = !awaits;
}

void ledger_outdate(struct ledger *l, int rank)
{
    l->seats[rank].outdated = true;
}

void ledger_lost(struct ledger *l, int rank)
{
    l->seats[rank].lost = true;
    ledger_silent(l, rank);
}

uint64_t ledger_ready(struct ledger *l, bool final, bool replaces)
{
    if (l->open && l->seats[l->o.rank].in)
        return 0;
    if (!l->pending)
        l->seq++;
    l->ready = l->pending = true;
    l->final |= final;
    l->hollow &= !final;        /* the state with which it ends is its version's */
    l->replaces = replaces;
    ledger_say_here(l);
    turn(l);
    return l->seq;
}

void ledger_renumber(struct ledger *l)
{
    l->pending = false;
}

void ledger_unready(struct ledger *l)
{
    l->ready = l->replaces = false;
    ledger_say_here(l);
    turn(l);
}

void ledger_whole(struct ledger *l, uint64_t now_ns)
{
    if (!RULE(FENCE, l->open))
        return;
    l->now_ns = now_ns;
    l->open = false;
    for (int r = 0; r < l->o.ranks; r++)
        if (l->seats[r].in)
            l->seats[r].merged =
                (struct ledger_entry){l->seats[r].in_list[MEMBER], l->seats[r].in};
    hold(l, l->newest);
    say_later(l);
    turn(l);
}

void ledger_waited(struct ledger *l, int rank, uint64_t ns)
{
    l->waited_for = rank;
    l->waited_ns = ns;
    l->waited_in = l->newest;
}

bool ledger_took(struct ledger *l, struct ledger_version version,
                 const struct ledger_entry *merged, bool hollow)
{
    bool later =
        !l->promised && version.epoch == l->epoch && ledger_newer(version, l->wanted);

    if (!l->wanted.epoch || !(ledger_same(version, l->wanted) || later))
        return false;
    ledger_give_up_round(l);
    if (!ledger_same(version, l->held))
        l->accepted = 0;    /* of an older ballot: that list can no longer stand */
    for (int r = 0; r < l->o.ranks; r++)
        l->seats[r].merged = merged[r];
    if (ledger_newer(version, l->newest))
        l->newest = version;
    hold(l, version);
    l->hollow = hollow;
    l->want_ns = hollow ? l->now_ns + l->o.lazy_ns / 8 : l->want_ns;
    ledger_say_here(l);
    turn(l);
    return true;
}

void ledger_not_given(struct ledger *l)
{
    if (l->promised)
        return;
    l->wanted = (struct ledger_version){0, 0};
    l->want_ns = l->now_ns + l->o.lazy_ns / 8;
}

void ledger_retire(struct ledger *l)
{
    l->retired = true;
    ledger_say_here(l);
    turn(l);
}

void ledger_leave(struct ledger *l)
{
    l->leaves = l->uneven = true;
    ledger_say_here(l);
    turn(l);
}

/* A newcomer without a version that hears no member of its epoch forgets it: the job that
 * told it has ended, and another one's epochs need not have higher numbers. Nor does it
 * take a version any more, for its rows are forgotten, too. */
static void forget_epoch(struct ledger *l)
{
    if (l->member || !l->epoch || l->held.epoch)
        return;
    for (int r = 0; r < l->o.ranks; r++)
        if (l->seats[r].in_list[MEMBER] && !l->seats[r].silent)
            return;
    l->epoch = l->promised = 0;
    l->wanted = (struct ledger_version){0, 0};
}

/* Says again all that is still owed; a coordinator says HERE to its members in any
 * case. */
void ledger_time(struct ledger *l, uint64_t now_ns)
{
    l->now_ns = now_ns;
    if (now_ns >= l->unsaid_ns || now_ns >= l->want_ns)
        ledger_say_here(l);
    if (now_ns >= l->want_ns && !l->wanted.epoch)
        want_newest(l);
    l->want_ns = now_ns >= l->want_ns ? UINT64_MAX : l->want_ns;
    if (now_ns >= l->say_ns) {
        l->say_ns = now_ns + l->o.again_ns;
        l->greeted = 0;
        forget_epoch(l);
        if (!l->leaves || l->member)
            ledger_say_here(l);
        l->asked = (l->asked + 1) % l->o.ranks;
        /* all that it knows may be dead, and others in a newer epoch */
        bool stuck = (l->promised || coordinator_is_silent(l)) &&
                     now_ns >= l->stood_ns + l->o.dead_ns;
        if ((!l->member || stuck) && !l->leaves)
            ledger_owe(l, l->asked, LEDGER_HERE);
        if (l->wanted.epoch)
            tell(l, LEDGER_FETCH);
        if (l->mine)
            ledger_found_again(l);
        else if (l->member && l->coordinator == l->o.rank)
            ledger_owe_members(l, LEDGER_HERE);
        want_newest(l);
    }
    turn(l);
}

void ledger_now(struct ledger *l, uint64_t now_ns)
{
    l->now_ns = now_ns;
}

uint64_t ledger_wakes(const struct ledger *l)
{
    uint64_t grace = l->since_ns ? ledger_grace_ends(l) : UINT64_MAX;
    uint64_t say = l->say_ns < l->unsaid_ns ? l->say_ns : l->unsaid_ns;

    say = l->want_ns < say ? l->want_ns : say;
    return grace > l->now_ns && grace < say ? grace : say;
}

struct ledger_view ledger_view(const struct ledger *l)
{
    return (struct ledger_view){.epoch = l->epoch, .lost = l->lost, .held = l->held,
                                .wanted = l->wanted,
                                .coordinator = l->coordinator, .member = l->member,
                                .open = l->open, .hollow = l->hollow,
                                .fenced = l->promised != 0};
}

bool ledger_accepted(const struct ledger *l, struct ledger_entry *list, int *coordinator)
{
    for (int r = 0; r < l->o.ranks; r++)
        list[r].generation = l->seats[r].in_list[ACCEPTED];
    *coordinator = l->accepted_coordinator;
    return l->accepted != 0;
}

uint64_t ledger_series_of(struct ledger_version version)
{
    return version.epoch << 40 | version.number;
}

uint64_t ledger_series(const struct ledger *l)
{
    return ledger_series_of(l->newest);
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
    return sizeof(struct ledger) + (size_t)ranks * sizeof(struct ledger_seat);
}

struct ledger *ledger_init(void *memory, const struct ledger_options *options,
                           uint64_t now_ns, const struct ledger_entry *first, int contact)
{
    struct ledger *l = memory;

    memset(memory, 0, ledger_bytes(options->ranks));
    l->o = *options;
    l->now_ns = now_ns;
    l->say_ns = options->fixed ? UINT64_MAX : now_ns + options->again_ns;
    l->unsaid_ns = l->want_ns = UINT64_MAX;
    l->coordinator = contact;
    if (first) {
        ledger_put_list(l, MEMBER, first);
        l->held = (struct ledger_version){1, 0};
        int hub = options->ranks - 1;
        for (contact = 0; !first[contact].generation; contact++)
            ;
        contact = options->star && first[hub].generation ? hub : contact;
        ledger_stand(l, 1, contact);
    } else {
        ledger_say_here(l);
    }
    turn(l);
    return l;
}
