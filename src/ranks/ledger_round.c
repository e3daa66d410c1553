/* SPDX-License-Identifier: MIT */
/* The coordinator's view of the round that gathers: the members that it is of, those that
 * have arrived, and whether it may close. Each HERE is counted as it comes, so that a
 * round of a thousand members is not counted a thousand times. */
#include "ranks/ledger_state.h"

#include <math.h>

static bool has_arrived(const struct ledger *l, const struct ledger_seat *s)
{
    return is_here(l, s) && ledger_holds_newest(l, s) && s->told.seq &&
           RULE(MERGED, s->told.seq > merged_of(s, s->told.generation));
}

bool ledger_arrived(const struct ledger *l, int rank)
{
    return has_arrived(l, &l->seats[rank]);
}

/* A hollow member, which holds the newest version without its state, is in a round only
 * where all that hold the version are hollow. */
static bool is_counted(const struct ledger *l, const struct ledger_seat *s)
{
    return has_arrived(l, s) &&
           !(s->aside && l->counts.spared) &&
           (!s->told.hollow ||
            ledger_gives(l, ledger_donor(l, l->newest, -1)) == GIVES_HOLLOW);
}

/* Whether a newcomer is taking the newest version. */
static bool is_taken(const struct ledger *l)
{
    for (int r = 0; r < l->o.ranks; r++) {
        const struct ledger_seat *s = &l->seats[r];
        if (is_newcomer(l, s) && !s->is_slow && !ledger_same(s->told.version, l->newest))
            return true;
    }
    return false;
}

/* Members at their end are waited for. */
static int quorum_of(const struct ledger *l, const struct gathering *g)
{
    double arrivals = l->o.quorum.arrivals;

    if (arrivals < 1)
        arrivals = ceil(arrivals * g->members - 1e-9);
    return g->of == STANDING_WORK && arrivals > 0 && arrivals < g->members
               ? (int)arrivals
               : g->members;
}

uint64_t ledger_grace_ends(const struct ledger *l)
{
    const struct ledger_quorum *q = &l->o.quorum;
    uint64_t since = l->since_ns - 1, slow = ledger_slow_ns(l);
    uint64_t grace =
        q->grace_ns + (uint64_t)(q->grace_share * (double)(since - l->began_ns));

    return since + (grace > slow ? grace : slow);
}

/* So many left out that those who were in may not go on by themselves take the version at
 * once; else, and where nobody dies, only those who have arrived again need it. */
void ledger_tell_missed(struct ledger *l)
{
    int members = 0, in = 0;

    if (!(l->o.quorum.arrivals > 0) || !l->member || l->coordinator != l->o.rank)
        return;
    for (int r = 0; r < l->o.ranks; r++) {
        members += l->seats[r].in_list[MEMBER] != 0;
        in += l->seats[r].in_list[MEMBER] && l->seats[r].in;
    }
    bool all = !l->o.fixed && 2 * in <= members;
    for (int r = 0; r < l->o.ranks; r++) {
        const struct ledger_seat *s = &l->seats[r];
        if (is_here(l, s) && !s->in && (s->told.seq || all) && !s->has_take &&
            !ledger_same(s->told.version, l->held))
            ledger_owe(l, r, LEDGER_TAKE);
    }
}

static enum standing standing_of(const struct ledger *l, const struct ledger_seat *s)
{
    if (!s->in_list[MEMBER] || (is_here(l, s) && s->told.absent))
        return STANDING_NONE;
    return at_end(l, s) ? STANDING_END : STANDING_WORK;
}

/* It has missed the round before, and has not arrived: not even upon an older version, so
 * that it takes the newest now. */
static bool is_late(const struct ledger *l, const struct ledger_seat *s)
{
    bool arrives = is_here(l, s) && s->told.seq > merged_of(s, s->told.generation);

    return s->missed && !arrives;
}

static void count(struct ledger *l, const struct ledger_seat *s, int by)
{
    enum standing standing = standing_of(l, s);
    bool hollow = is_hollow(l, s) && standing == STANDING_WORK;
    bool arrived = has_arrived(l, s);
    bool at_work = standing == STANDING_WORK && !hollow, aside = at_work && s->aside;
    bool missing = at_work && !s->due && is_late(l, s);

    if (is_hub(l, s))
        return;
    l->counts.members[standing] += by;
    l->counts.arrived[standing] += arrived && !hollow ? by : 0;
    l->counts.missing += missing ? by : 0;
    l->counts.aside += aside ? by : 0;
    l->counts.aside_arrived += aside && arrived ? by : 0;
    l->counts.aside_missing += aside && missing ? by : 0;
    l->counts.due += at_work && s->due && !arrived ? by : 0;
    l->counts.bringing += at_work && arrived && s->told.cannot_give ? by : 0;
    l->counts.hollow += hollow ? by : 0;
    l->counts.hollow_arrived += arrived && hollow ? by : 0;
}

/* A seat's HERE is counted as it comes; any other change makes all seats be counted
 * anew. */
void ledger_tell_of(struct ledger *l, struct ledger_seat *s,
                    const struct ledger_decision *here)
{
    if (l->counts.known)
        count(l, s, -1);
    s->told = *here;
    s->outdated = false;
    if (l->counts.known)
        count(l, s, 1);
}

/* If a member can give the newest version's state, the round waits until the hollow
 * members have taken it. If all members that had it bring another state for all, the
 * round is of those, and the hollow members take the state that it leaves. */
static void add_hollow(const struct ledger *l, struct gathering *g)
{
    if (g->of != STANDING_WORK || !l->counts.hollow)
        return;
    enum gives gives = ledger_gives(l, ledger_donor(l, l->newest, -1));
    if (gives == GIVES_BRINGER)
        g->members -= l->counts.hollow;
    else if (gives == GIVES_HOLLOW)
        g->arrived += l->counts.hollow_arrived;
}

static struct gathering gather(struct ledger *l)
{
    struct gathering g = {0};

    for (int r = 0; !l->counts.known && r < l->o.ranks; r++)
        count(l, &l->seats[r], 1);
    l->counts.known = true;
    for (enum standing s = STANDING_END; s <= STANDING_WORK; s++)
        gathering_add(&g, s, l->counts.members[s], l->counts.arrived[s]);
    add_hollow(l, &g);
    l->counts.spared = g.of == STANDING_WORK && l->counts.aside && !l->counts.bringing &&
                       g.arrived - l->counts.aside_arrived >= quorum_of(l, &g);
    if (l->counts.spared)
        g.arrived -= l->counts.aside_arrived;
    return g;
}

/* A hub that is no member yet, or no longer, is not waited for: the members own the slices
 * then. Nor is a hollow one where nobody can give it the state. */
static bool hub_is_ready(const struct ledger *l)
{
    const struct ledger_seat *s = &l->seats[l->o.ranks - 1];

    if (!is_hub(l, s) || !s->in_list[MEMBER])
        return true;
    if (is_hollow(l, s))
        return ledger_gives(l, ledger_donor(l, l->newest, -1)) < GIVES_ENDED;
    return has_arrived(l, s);
}

/* Whether the seat is in the round, if it has arrived. */
static bool is_of(const struct ledger *l, const struct ledger_seat *s, enum standing of)
{
    return of && (is_hub(l, s) ? s->in_list[MEMBER] != 0 : standing_of(l, s) == of);
}

/* The grace is for those who were in the round before, and for those due. */
static bool grace_is_over(const struct ledger *l, struct gathering g)
{
    int spared = l->counts.spared ? l->counts.aside - l->counts.aside_missing : 0;
    int out = l->counts.missing + spared;

    return g.arrived + out >= g.members || l->now_ns >= ledger_grace_ends(l);
}

/* A round closes only upon a version that the coordinator holds itself, so that it knows
 * what is merged; and that enough others hold, where members may die. */
static bool may_close(const struct ledger *l, struct gathering g)
{
    return l->member && l->coordinator == l->o.rank && !l->promised && !l->open &&
           ledger_same(l->held, l->newest) && g.arrived && l->since_ns &&
           g.arrived >= quorum_of(l, &g) && grace_is_over(l, g) && hub_is_ready(l) &&
           RULE(HOLD, l->o.fixed || ledger_enough(l, MEMBER, l->coordinator,
                                                  ledger_holds_newest));
}

/* Since when a quorum has arrived. */
void ledger_watch_quorum(struct ledger *l)
{
    struct gathering g = gather(l);

    if (!g.arrived || g.arrived < quorum_of(l, &g))
        l->since_ns = 0;
    else if (!l->since_ns)
        l->since_ns = l->now_ns + 1;
}

void ledger_set_quorum(struct ledger *l, const struct ledger_quorum *quorum)
{
    l->o.quorum = *quorum;
}

struct ledger_gathering ledger_gathering(struct ledger *l, struct ledger_entry *list)
{
    struct gathering g = gather(l);
    bool closes = may_close(l, g);

    if (closes && !l->judged && l->o.quorum.arrivals > 0 && g.of == STANDING_WORK) {
        ledger_judge_slow(l);
        g = gather(l);
        closes = may_close(l, g);
    }
    for (int r = 0; list && r < l->o.ranks; r++) {
        const struct ledger_seat *s = &l->seats[r];
        bool of = is_of(l, s, g.of);
        list[r].generation = of ? s->in_list[MEMBER] : 0;
        list[r].seq = of && is_counted(l, s) ? s->told.seq : 0;
    }
    return (struct ledger_gathering){
        .members = g.members,
        .arrived = g.arrived,
        .present = l->counts.members[STANDING_WORK] + l->counts.members[STANDING_END],
        .final = g.of != STANDING_WORK,
        .may_close = closes,
        .taken = closes && is_taken(l)};
}

/* Of a round without it. Where no word is lost, one that was told of such a round is told
 * of no other one before it has said HERE, so that no words pile up for a member that is
 * stopped; and one that brings nothing any more needs none. */
static bool hears_of_round(const struct ledger *l, const struct ledger_seat *s)
{
    return !l->o.fixed || (tells_all(l) && !s->has_go && !s->told.absent);
}

bool ledger_close(struct ledger *l)
{
    struct gathering g = gather(l);

    if (!may_close(l, g))
        return false;
    uint64_t waited_ns = l->now_ns - (l->since_ns - 1);
    l->since_ns = 0;
    for (int r = 0; r < l->o.ranks; r++) {
        struct ledger_seat *s = &l->seats[r];
        s->in = is_of(l, s, g.of) && is_counted(l, s) ? s->told.seq : 0;
        s->missed = !s->in;
        if (g.of == STANDING_WORK)
            ledger_closed(l, s, waited_ns);
        if (!s->in_list[MEMBER] || !(s->in || hears_of_round(l, s)))
            continue;
        ledger_owe(l, r, LEDGER_GO);
        s->has_go = l->o.fixed && !s->in;
    }
    l->before = l->held;
    l->newest = (struct ledger_version){l->epoch, l->held.number + 1};
    l->open = true;
    forget_counts(l);
    gather(l);
    tell(l, LEDGER_OPEN);
    return true;
}
