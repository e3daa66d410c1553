/* SPDX-License-Identifier: MIT */
/* Members aside. A quorum is of arrivals: a member that arrives in time, and whose parts
 * of the round then come late, holds all others up, as one on a slow link does. Each HERE
 * names the member for which its sender waited longest in the round before, and how long.
 *
 * 1. A member is slow if more than half of the others in a round have each waited for it
 *    for more than half of the time between the two versions. It waits for all others, so
 *    its own word puts none aside. In a star each waits for the hub alone, so the hub's
 *    word is enough.
 * 2. A member that was slow in both of the last rounds with it is aside, for ASIDE times
 *    what the others waited for it. (One round alone is slow where a member is paused.)
 *    Rounds go on without it while the others make a quorum. It is then as one that is
 *    late: it takes the versions of the others, and its work stays with it. If a quorum
 *    has arrived only with it, the round waits for another member as long as it would for
 *    this one's parts, and then is with it.
 * 3. After that time it is due. The next round waits for it up to DUE times what it took
 *    before, so that it can take that round's version first, and is in. If it does not
 *    come it is aside again, for twice as long.
 * 4. A member that missed two rounds, and had arrived upon an older version both times,
 *    chases: the others make a round in less time than it takes the version. It is due,
 *    too: a round waits for it up to DUE times what the round before took, so that it is
 *    in; but not again before CHASE times as long as that has waited. If it has not come,
 *    the next wait may be twice as long.
 *
 * So rounds spend about (DUE + 1) ÷ ASIDE of their time on each slow member, and 1 ÷ CHASE
 * on one that chases. Two are never aside: the coordinator, without which no round
 * closes, and a member that was told to end, whose last work is to be in. */
#include "ranks/ledger_state.h"

enum { ASIDE = 50, DUE = 3, CHASE = 12 };

static void set_aside(struct ledger *l, struct ledger_seat *s, uint64_t lag_ns)
{
    s->aside = true;
    s->due = s->chases = false;
    s->lag_ns = lag_ns < l->o.dead_ns ? lag_ns : l->o.dead_ns;
    s->aside_ns = l->now_ns + ASIDE * s->lag_ns;
}

/* It had arrived, and lacks the newest version, or has only just taken that: as the
 * coordinator, which closes no round without it. */
static bool is_behind(const struct ledger *l, const struct ledger_seat *s)
{
    bool lacks = s->told.seq > merged_of(s, s->told.generation) &&
                 !ledger_same(s->told.version, l->newest);

    if (s == &l->seats[l->o.rank])
        lacks = l->pending && !l->ready;
    return is_here(l, s) && !s->told.final && lacks;
}

/* Such a member is due if it was behind in the round before, too. */
static void look_behind(struct ledger *l, struct ledger_seat *s)
{
    bool behind = is_behind(l, s);

    if (behind && s->was_behind && !s->due && l->now_ns >= s->aside_ns) {
        uint64_t least = l->version_ns < l->o.dead_ns ? l->version_ns : l->o.dead_ns;
        s->due = s->chases = true;
        s->lag_ns = s->lag_ns > least ? s->lag_ns : least;
    }
    s->was_behind = behind;
}

/* Whether the seat's HERE tells of the round that left the newest version. */
static bool reports(const struct ledger *l, const struct ledger_seat *s)
{
    return s->in && is_here(l, s) && ledger_same(s->told.version, l->newest);
}

void ledger_judge_slow(struct ledger *l)
{
    uint64_t most_ns = l->version_ns / 2;
    int n = 0;

    for (int r = 0; r < l->o.ranks; r++)
        l->seats[r].blamed = 0;
    for (int r = 0; r < l->o.ranks; r++) {
        const struct ledger_seat *s = &l->seats[r];
        n += s->in != 0;
        if (!reports(l, s) || s->told.slow < 0 || s->told.slow == r ||
            s->told.slow_ns <= most_ns)
            continue;
        struct ledger_seat *slow = &l->seats[s->told.slow];
        bool least = !slow->blamed || s->told.slow_ns < slow->slow_ns;
        slow->blamed += is_hub(l, s) ? l->o.ranks : 1;
        slow->slow_ns = least ? s->told.slow_ns : slow->slow_ns;
    }
    for (int r = 0; r < l->o.ranks; r++) {
        struct ledger_seat *s = &l->seats[r];
        bool spared = r == l->o.rank || is_hub(l, s);
        bool may_be = s->in && !spared && s->pardoned != s->in_list[MEMBER];
        bool slow = may_be && 2 * s->blamed > n - 1;
        if (slow && s->was_slow) {
            set_aside(l, s, s->slow_ns);
        } else if (s->aside) {
            s->due = l->now_ns >= s->aside_ns;
            s->aside = !s->due;
        } else {
            s->due &= !s->in;
            if (!is_hub(l, s))
                look_behind(l, s);
        }
        s->was_slow = s->in ? slow : s->was_slow;
    }
    l->judged = true;
    forget_counts(l);
}

uint64_t ledger_slow_ns(const struct ledger *l)
{
    bool needed = l->counts.aside_arrived && !l->counts.spared;
    uint64_t most = 0;

    for (int r = 0; r < l->o.ranks && (l->counts.due || needed); r++) {
        const struct ledger_seat *s = &l->seats[r];
        uint64_t ns = s->due ? DUE * s->lag_ns : s->aside && needed ? s->lag_ns : 0;
        most = ns > most ? ns : most;
    }
    return most;
}

void ledger_closed(struct ledger *l, struct ledger_seat *s, uint64_t waited_ns)
{
    if (s->due && s->chases) {
        uint64_t lag = s->in ? 0 : 2 * s->lag_ns;
        s->due = s->chases = s->was_behind = false;
        s->lag_ns = lag < l->o.dead_ns ? lag : l->o.dead_ns;
        s->aside_ns = l->now_ns + CHASE * waited_ns;
    } else if (s->due && !s->in) {
        set_aside(l, s, 2 * s->lag_ns);
    }
}

void ledger_forget_slow(struct ledger_seat *s)
{
    s->aside = s->due = s->was_slow = s->chases = s->was_behind = false;
    s->aside_ns = s->lag_ns = 0;
}

void ledger_pardon(struct ledger *l, int rank)
{
    ledger_forget_slow(&l->seats[rank]);
    l->seats[rank].pardoned = l->seats[rank].in_list[MEMBER];
    forget_counts(l);
}

bool ledger_is_aside(const struct ledger *l, int rank)
{
    return l->seats[rank].aside;
}

uint64_t ledger_aside_ns(const struct ledger *l, int rank)
{
    return ASIDE * l->seats[rank].lag_ns;
}
