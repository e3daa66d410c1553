/* SPDX-License-Identifier: MIT */
/* Peers that go; and slices whose owner has died, or whose giver has: who has them now
 * (moves.h). */
#include "owners/moves.h"

#include <string.h>

#define CLAIM_NS UINT64_C(10000000000)  /* for a slice without an owner */
#define LOOK_NS UINT64_C(100000000)     /* until the next look for these */

static bool claim(struct service *s, int slice)
{
    moves_comes(s, slice, NOBODY);
    if (!moves_change(s, slice, s->rank, s->map.epoch[slice] + 1, false))
        return false;
    s->moves->heard = true;
    struct moves_entry entry = moves_entry_of(s, slice);
    moves_owe(s, slice);
    return moves_say_all(s, ASK_CLAIM, &entry, 1, 0, 0);
}

/* A slice that was shut only because its owner had not come. */
static bool open_met(struct service *s, int slice)
{
    const struct moving *of = &s->moves->slices[slice];
    const struct owners_peer *owner = &s->peers[s->map.owner[slice]];
    bool met = owner->there && owner->generation == s->moves->owner_is[slice];

    return !met || of->giver != NOBODY || moves_shut(s, slice, false);
}

/* A replica that joined another one, who did not get the slice, is past. */
static bool take_word(struct service *s, int slice, int owner, uint32_t epoch)
{
    struct moving *of = &s->moves->slices[slice];

    if (of->joined && (of->from != owner || of->begun != epoch))
        moves_give_part(s, slice);
    return moves_change(s, slice, owner, epoch, false);
}

bool moves_settle(struct service *s, int slice)
{
    struct moving *of = &s->moves->slices[slice];
    int owner = s->map.owner[slice];
    uint32_t epoch = s->map.epoch[slice];
    bool orphan = moves_orphan(s, slice);

    if (!orphan && !of->unsure)
        return open_met(s, slice);
    if (of->says != NOBODY && (of->unsure || of->said > epoch))
        return take_word(s, slice, of->says, of->said);
    if (!orphan && owner == s->rank)
        return moves_shut(s, slice, false);
    if (of->claims != NOBODY && (of->unsure || of->claimed > epoch))
        return take_word(s, slice, of->claims, of->claimed);
    if (orphan && of->from == owner && of->complete && s->moves->follow_s > 0)
        return claim(s, slice);
    return moves_shut(s, slice, true);
}

bool moves_met(struct service *s, int rank, bool late)
{
    bool good = true;

    for (int slice = 0; good && slice < OWNED_SLICES; slice++) {
        uint64_t *is = &s->moves->owner_is[slice];
        if (s->map.owner[slice] != rank)
            continue;
        *is = *is ? *is : s->peers[rank].generation - late;
        good = moves_settle(s, slice);
    }
    return good;
}

/* Slices on their way to or from the rank that has gone end here. A replica that was to
 * join may lack the last rows of its giver. */
static bool let_go(struct service *s, int slice, int rank)
{
    struct moving *of = &s->moves->slices[slice];
    struct moves_entry entry = moves_entry_of(s, slice);
    uint64_t *owes = &s->moves->peers[rank].owes[slice / 64];
    uint64_t bit = UINT64_C(1) << slice % 64;
    bool good = true, gave = of->giver == rank && s->map.owner[slice] == s->rank;

    for (int k = 0; good && k < TO_MOST; k++) {
        struct follow *f = &of->to[k];
        if (gave && f->roles && f->rank != rank && f->state == FOLLOW_JOINS) {
            good = moves_say(s, f->rank, ASK_DROP, &entry, 1, 0, 0);
            f->roles = 0;
        }
        f->roles = f->rank == rank ? 0 : f->roles;
    }
    if (gave)
        of->giver = NOBODY;
    if (of->early == rank)
        of->early = NOBODY;
    if (of->from == rank)
        moves_give_part(s, slice);
    if (!good || !(*owes & bit))
        return good;
    *owes &= ~bit;
    of->owed--;
    return moves_end_owed(s, slice);
}

/* Where slices move. *lost: rows have gone with it. */
static bool let_all_go(struct service *s, int rank, bool *lost)
{
    struct moves *m = s->moves;
    struct owners_peer *peer = &s->peers[rank];
    bool good = true;
    int had = 0, taken = 0;

    *lost = false;
    peer->generation += !peer->generation;      /* it has died before it came */
    m->peers[rank].counts = false;
    m->plan = m->routes = m->heard = true;
    for (int slice = 0; good && slice < OWNED_SLICES; slice++) {
        struct moving *of = &m->slices[slice];
        bool its = s->map.owner[slice] == rank;
        if (its && !m->owner_is[slice])
            m->owner_is[slice] = peer->generation;
        of->says = of->says == rank ? NOBODY : of->says;
        of->claims = of->claims == rank ? NOBODY : of->claims;
        of->unsure |= of->giver == rank && s->map.shut[slice] && !peer->ended;
        good = moves_settle(s, slice) && let_go(s, slice, rank);
        had += its;
        taken += its && s->map.owner[slice] == s->rank;
        *lost |= !(m->follow_s > 0) && s->map.owner[slice] == rank &&
                 moves_orphan(s, slice);
    }
    if (taken && !s->done)
        log_say(&s->log, DESCANT_WARNING,
                "rank %d has gone: this rank has taken %d of the %d parts of rows that "
                "it owned, from replicas that were at most %g s old", rank, taken, had,
                m->follow_s);
    return good;
}

bool service_loses(struct service *s, int rank)
{
    s->blames = rank;
    return service_fail(s, DESCANT_ENDED, "rank %d has gone, and with it its rows of the "
                        "tables: start again from a checkpoint", rank);
}

/* A peer that goes without ENDED takes its rows with it. That is no loss where both ranks
 * have said DONE. */
bool service_goes(struct service *s, int rank)
{
    struct owners_peer *peer = &s->peers[rank];
    bool lost = owned_slices(&s->map, rank) > 0;

    peer->there = peer->mapped = false;
    peer->gone = true;
    if (s->moves && !let_all_go(s, rank, &lost))
        return false;
    if (lost && !peer->ended && !(peer->done && s->done))
        return service_loses(s, rank);
    return service_works(s, s->link->type->forget(s->link, rank, LINK_PEER));
}

bool service_lose(struct service *s, int rank)
{
    const struct owners_peer *peer = &s->peers[rank];
    bool known = peer->ended || (peer->gone && !peer->there);
    bool matters = s->moves || owned_slices(&s->map, rank) > 0;

    return rank == s->rank || known || !matters || service_goes(s, rank);
}

/* Where the link has met more processes of a rank than the job knows, the job's news is
 * of an older process, and the rank is not lost. */
bool owners_is_lost(struct owners_known *known, const struct owners_life *is,
                    uint64_t now_ns)
{
    uint64_t since_ns = !is->parted ? 0 : known->parted_ns ? known->parted_ns : now_ns;
    bool over = is->lost || (is->parted && now_ns - since_ns >= OWNERS_PARTED_NS);

    if (!is->ended && is->came > known->came &&
        is->came - known->came <= is->lives - known->lives)
        *known = (struct owners_known){.came = is->came, .lives = is->lives};
    known->parted_ns = since_ns;
    return over && known->came == is->came;
}

bool moves_wait_for_claims(struct service *s, uint64_t now_ns)
{
    struct moves *m = s->moves;

    if (m->shut == 0 || s->done || now_ns < m->looks_ns)
        return true;
    m->looks_ns = now_ns + LOOK_NS;
    for (int slice = 0; slice < OWNED_SLICES; slice++) {
        struct moving *of = &m->slices[slice];
        if (!s->map.shut[slice] || !(of->unsure || moves_orphan(s, slice)))
            continue;
        of->waits_ns = of->waits_ns ? of->waits_ns : now_ns;
        if (now_ns - of->waits_ns >= CLAIM_NS)
            return service_fail(s, DESCANT_ENDED, "rank %d has gone, and no rank has "
                                "taken its rows of the tables: start again from a "
                                "checkpoint", s->map.owner[slice]);
    }
    return true;
}
