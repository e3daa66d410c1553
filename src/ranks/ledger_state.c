/* SPDX-License-Identifier: MIT */
/* A ledger's knowledge of the members, and the changes to its state that both rounds and
 * the founding of epochs make: an epoch stands, a ballot is promised, a round is given
 * up, a word is owed. */
#include "ranks/ledger_state.h"

/* A new process of a rank is not silent because the one before was. */
static void put(struct ledger_seat *s, enum list which, uint64_t generation)
{
    s->silent &= which != MEMBER || s->in_list[MEMBER] == generation;
    s->in_list[which] = generation;
}

void ledger_put_list(struct ledger *l, enum list which, const struct ledger_entry *list)
{
    for (int r = 0; r < l->o.ranks; r++)
        put(&l->seats[r], which, list ? list[r].generation : 0);
    forget_counts(l);
}

void ledger_copy_list(struct ledger *l, enum list to, enum list from)
{
    for (int r = 0; r < l->o.ranks; r++)
        put(&l->seats[r], to, l->seats[r].in_list[from]);
    forget_counts(l);
}

bool ledger_may_go_on(int members, int of_them, bool with_coordinator)
{
    return 2 * of_them > members || (2 * of_them == members && with_coordinator);
}

bool ledger_enough(const struct ledger *l, enum list which, int coordinator,
                   ledger_test *passes)
{
    int members = 0, n = 0;
    bool first = false;

    for (int r = 0; r < l->o.ranks; r++) {
        const struct ledger_seat *s = &l->seats[r];
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

/* Whether a seat holds the newest version. A member at its end, or an absent one, that is
 * told of no round counts as holding it. */
bool ledger_holds_newest(const struct ledger *l, const struct ledger_seat *s)
{
    if (!tells_all(l) && s->told.epoch == l->epoch && (s->told.final || s->told.absent))
        return true;
    return s->told.epoch == l->epoch && !s->told.ballot &&
           ledger_same(s->told.version, l->newest);
}

void ledger_owe(struct ledger *l, int rank, enum ledger_what what)
{
    if (rank == l->o.rank || rank < 0)
        return;
    l->n_owed += !l->seats[rank].owes;
    l->seats[rank].owes |= 1u << what;
    l->first_owed = rank < l->first_owed ? rank : l->first_owed;
}

void ledger_owe_members(struct ledger *l, enum ledger_what what)
{
    for (int r = 0; r < l->o.ranks; r++)
        if (l->seats[r].in_list[MEMBER])
            ledger_owe(l, r, what);
}

/* Owes HERE to the coordinator, and to the candidate that has the promise. */
void ledger_say_here(struct ledger *l)
{
    l->unsaid_ns = UINT64_MAX;
    ledger_owe(l, l->coordinator, LEDGER_HERE);
    if (l->promised)
        ledger_owe(l, (int)(l->promised % (uint64_t)l->o.ranks), LEDGER_HERE);
}

void ledger_give_up_round(struct ledger *l)
{
    if (l->open)
        tell(l, LEDGER_VOID);
    l->tells &= ~(1u << LEDGER_OPEN);
    l->open = false;
}

void ledger_promise(struct ledger *l, uint64_t ballot)
{
    l->promised = ballot;
    l->promised_ns = l->now_ns;
    l->wanted = (struct ledger_version){0, 0};
    ledger_give_up_round(l);
    ledger_say_here(l);
}

enum gives ledger_gives(const struct ledger *l, int donor)
{
    const struct ledger_seat *s = &l->seats[donor < 0 ? 0 : donor];

    return donor < 0                        ? GIVES_NONE
           : s->told.hollow                 ? GIVES_HOLLOW
           : s->told.cannot_give            ? GIVES_BRINGER
           : at_end(l, s) || s->told.absent ? GIVES_ENDED
                                            : GIVES_WORKER;
}

/* The best donor is a member at work; then one at its end; then one whose vectors have no
 * state of the version now. The coordinator is asked only where no equally good donor is
 * known. */
int ledger_donor(const struct ledger *l, struct ledger_version version, int not_this)
{
    int donor = -1;
    enum gives best = GIVES_NONE;

    for (int i = 0; i < l->o.ranks && best < GIVES_WORKER; i++) {
        int r = (l->coordinator + 1 + i) % l->o.ranks;
        const struct ledger_seat *s = &l->seats[r];
        if (r == not_this || !is_here(l, s) || s->silent ||
            !ledger_same(s->told.version, version))
            continue;
        enum gives good = ledger_gives(l, r);
        donor = good > best ? r : donor;
        best = good > best ? good : best;
    }
    return donor;
}

void ledger_want(struct ledger *l, struct ledger_version version, int donor,
                 bool list_only)
{
    bool has = ledger_same(version, l->held) && (list_only || !l->hollow);

    if (donor < 0 || donor == l->o.rank || has)
        return;
    l->wanted = version;
    l->donor = donor;
    l->list_only = list_only;
    tell(l, LEDGER_FETCH);
}

void ledger_want_known(struct ledger *l, struct ledger_version version)
{
    int donor = ledger_donor(l, version, l->o.rank);
    ledger_want(l, version, donor, ledger_gives(l, donor) <= GIVES_BRINGER);
}

void ledger_stand(struct ledger *l, uint64_t epoch, int coordinator)
{
    ledger_give_up_round(l);
    forget_counts(l);
    l->epoch = epoch;
    l->stood_ns = l->now_ns;
    l->coordinator = coordinator;
    l->member = l->seats[l->o.rank].in_list[MEMBER] == l->o.generation;
    l->promised = l->accepted = l->mine = l->since_ns = 0;
    l->wanted = (struct ledger_version){0, 0};
    l->newest = l->before = l->held;
    l->uneven = l->leaves;
    ledger_put_list(l, ACCEPTED, NULL);
    for (int r = 0; r < l->o.ranks; r++) {
        struct ledger_seat *s = &l->seats[r];
        s->in = 0;
        s->lost = s->missed = false;
        ledger_forget_slow(s);
        l->n_owed -= s->owes != 0;
        s->owes &= 1u << LEDGER_STANDS | 1u << LEDGER_HERE;
        l->n_owed += s->owes != 0;
        s->silent &= s->in_list[MEMBER] == s->told.generation;
        l->uneven |= s->silent;
    }
    tell(l, LEDGER_EPOCH);
    if (!l->member)
        tell(l, LEDGER_OUT);
    if (!l->o.fixed && (!l->leaves || l->member))
        ledger_say_here(l);
}
