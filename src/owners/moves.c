/* SPDX-License-Identifier: MIT */
/* What an owner does with its slices (moves.h): it copies them to others, gives them
 * away, and answers for those it has given until nobody asks for them any more. */
#include "owners/moves.h"

#include <string.h>

/* --- begin and end --- */

bool moves_init(struct service *s, const struct moves_options *options)
{
    struct moves *m = s->moves = memory_take(sizeof *m);

    if (!m)
        return false;
    m->peers = memory_take_array((size_t)s->place.size, sizeof *m->peers);
    m->message = memory_take(ASK_BYTES);
    m->records = memory_take(ASK_BYTES);
    m->rows = memory_take(ASK_BYTES);
    m->slots = memory_take(ASK_BYTES);
    m->last = &m->held;
    m->follow_s = options->follow_s;
    m->late = options->late;
    m->met = !options->late;
    m->plan = true;
    if (!m->peers || !m->message || !m->records || !m->rows || !m->slots)
        return false;
    s->map.moves = true;
    /* late: those of the start that have not left will say so */
    for (int k = 0; k < options->n && k < s->place.size; k++)
        m->peers[k] = (struct moves_peer){.share = options->shares[k],
                                          .counts = !options->late};
    m->peers[s->rank] = (struct moves_peer){.share = options->share, .counts = true};
    for (int slice = 0; slice < OWNED_SLICES; slice++) {
        struct moving *of = &m->slices[slice];
        of->from = of->giver = of->says = of->claims = of->early = NOBODY;
        if (s->map.owner[slice] != s->rank)
            continue;
        /* late: another process had it, and who has it now will say so */
        m->owner_is[slice] = s->place.generation - options->late;
        s->map.shut[slice] = options->late;
        m->shut += options->late;
    }
    return true;
}

void moves_fini(struct service *s)
{
    struct moves *m = s->moves;

    if (!m)
        return;
    memory_give(m->peers);
    memory_give(m->message);
    memory_give(m->records);
    memory_give(m->rows);
    memory_give(m->slots);
    memory_give(m);
    s->moves = NULL;
}

static double own_share(const struct service *s)
{
    const struct moves *m = s->moves;
    return atomic_load(&m->leaves) || !m->met ? 0 : m->peers[s->rank].share;
}

/* Of each slice it knows the owner, and has heard from it what has moved. */
static bool has_met_owners(const struct service *s)
{
    bool met = true;

    for (int slice = 0; met && slice < OWNED_SLICES; slice++) {
        const struct owners_peer *owner = &s->peers[s->map.owner[slice]];
        met = moves_owns(s, slice) ||
              (owner->there && owner->mapped &&
               owner->generation == s->moves->owner_is[slice]);
    }
    return met;
}

bool moves_come(struct service *s, int rank)
{
    struct moves_entry moved[OWNED_SLICES], open[OWNED_SLICES], unsure[OWNED_SLICES];
    struct moves_peer *peer = &s->moves->peers[rank];
    int n = 0, n_open = 0, n_unsure = 0;

    for (int slice = 0; slice < OWNED_SLICES; slice++) {
        bool sure = !s->map.shut[slice] || s->map.owner[slice] == s->rank;
        if (s->map.epoch[slice])
            *(sure ? &moved[n++] : &unsure[n_unsure++]) = moves_entry_of(s, slice);
        if (peer->opens[slice / 64] >> slice % 64 & 1 && s->map.owner[slice] == s->rank)
            open[n_open++] = moves_entry_of(s, slice);
    }
    memset(peer->owes, 0, sizeof peer->owes);
    memset(peer->opens, 0, sizeof peer->opens);
    return moves_say(s, rank, ASK_UNSURE, unsure, n_unsure, 0, 0) &&
           moves_say(s, rank, ASK_MAP, moved, n, (float)own_share(s), s->moves->late) &&
           moves_say(s, rank, ASK_OPEN, open, n_open, 0, 0);
}

/* --- who is to have what --- */

static bool frozen(const struct service *s)
{
    bool freeze = atomic_load(&s->ends);

    for (int k = 0; k < s->place.size; k++)
        freeze |= s->peers[k].there && s->peers[k].done;
    return freeze && !atomic_load(&s->moves->leaves);
}

/* It is there, and will be. */
static bool takes(const struct service *s, int rank)
{
    const struct owners_peer *peer = &s->peers[rank];

    return peer->there && peer->mapped && !peer->done && s->moves->peers[rank].counts;
}

/* The next rank that is there and has a share, and, where there are others, not the one
 * that is to have the slice. */
static int neighbour(const struct service *s, int but)
{
    const struct moves *m = s->moves;
    int found = NOBODY;

    for (int k = 1; (found == NOBODY || found == but) && k < s->place.size; k++) {
        int rank = (s->rank + k) % s->place.size;
        if (takes(s, rank) && m->peers[rank].share > 0)
            found = rank;
    }
    return found;
}

static bool plan(struct service *s)
{
    struct moves *m = s->moves;
    double shares[OWNED_SLICES] = {0}, sum = 0;
    int target[OWNED_SLICES];
    int n = s->place.size < OWNED_SLICES ? s->place.size : OWNED_SLICES;
    bool good = true, still = frozen(s), moves = !m->holds_now && !still;

    for (int k = 0; k < n; k++) {
        shares[k] = k == s->rank ? own_share(s)
                                 : m->peers[k].counts && !s->peers[k].done
                                       ? m->peers[k].share : 0;
        sum += shares[k];
    }
    atomic_store(&m->stuck, !(sum > 0));
    if (sum > 0)
        owned_map_target(&s->map, shares, n, target);
    for (int slice = 0; good && slice < OWNED_SLICES; slice++) {
        struct moving *of = &m->slices[slice];
        bool settled = of->giver == NOBODY;
        int to = sum > 0 && moves && settled ? target[slice] : NOBODY;
        if (s->map.owner[slice] != s->rank) {
            moves_forget_followers(of);
            continue;
        }
        if (s->map.shut[slice] || of->owed > 0)
            continue;
        to = to != s->rank && to != NOBODY && takes(s, to) ? to : NOBODY;
        const struct follow *now = moves_with_role(of, TO_FOLLOW);
        int follows = !(m->follow_s > 0) ? NOBODY
                      : !still           ? neighbour(s, to)
                      : now              ? now->rank
                                         : NOBODY;
        good = moves_set_role(s, slice, TO_FOLLOW, follows) &&
               moves_set_role(s, slice, TO_MOVE, to);
    }
    m->plan = false;
    return good;
}

/* --- a slice is given away --- */

void moves_owe(struct service *s, int slice)
{
    struct moving *of = &s->moves->slices[slice];

    of->owed = 0;
    for (int k = 0; k < s->place.size; k++)
        if (k != s->rank && s->peers[k].there) {
            s->moves->peers[k].owes[slice / 64] |= UINT64_C(1) << slice % 64;
            of->owed++;
        }
}

static void leave(struct service *s, int slice)
{
    s->moves->left += !s->moves->serves_on[slice];
    s->moves->serves_on[slice] = true;
    moves_owe(s, slice);
}

bool moves_end_owed(struct service *s, int slice)
{
    struct moving *of = &s->moves->slices[slice];
    int owner = s->map.owner[slice];
    struct moves_entry entry = moves_entry_of(s, slice);

    s->moves->plan |= owner == s->rank;
    if (!s->moves->serves_on[slice] || of->owed > 0)
        return true;
    s->moves->serves_on[slice] = false;
    s->moves->left--;
    moves_give_part(s, slice);
    return owner == s->rank || moves_say(s, owner, ASK_SETTLED, &entry, 1, 0, 0);
}

/* The rank that has a whole replica, and goes on with it; `to`: there is none. */
static int replica_of(struct moving *of, int to)
{
    const struct follow *next = moves_with_role(of, TO_FOLLOW);
    const struct follow *old = moves_with_role(of, TO_OLD);

    return next && next->state == FOLLOW_FOLLOWS  ? next->rank
           : old && old->state == FOLLOW_FOLLOWS ? old->rank
                                                 : to;
}

/* No rank but the next owner has a whole replica, and one is about to have it: the slice
 * waits, lest it die with its next owner. */
static bool lacks_replica(struct moving *of)
{
    const struct follow *next = moves_with_role(of, TO_FOLLOW);
    const struct follow *old = moves_with_role(of, TO_OLD);
    const struct follow *to = moves_with_role(of, TO_MOVE);

    return next && next != to && next->state != FOLLOW_FOLLOWS &&
           next->state != FOLLOW_REFUSED &&
           !(old && old != to && old->state == FOLLOW_FOLLOWS);
}

static bool give(struct service *s, int slice)
{
    struct moving *of = &s->moves->slices[slice];
    int to = moves_with_role(of, TO_MOVE)->rank, replica = replica_of(of, to);
    struct moves_entry moved = {(uint16_t)slice, (uint16_t)to, s->map.epoch[slice] + 2,
                                s->peers[to].generation};
    struct moves_entry end = moved;

    end.generation = s->peers[replica].generation;
    pthread_rwlock_wrlock(&s->gate);
    bool good = moves_send_changed(s, slice);
    moves_change_locked(s, &moved, true);
    pthread_rwlock_unlock(&s->gate);
    moves_forget_followers(of);
    of->giver = s->rank;
    leave(s, slice);
    return good && moves_say(s, to, ASK_END, &end, 1, 0, replica) &&
           moves_say_all(s, ASK_MOVED, &moved, 1, 0, replica) &&
           moves_say(s, to, ASK_FENCED, &moved, 1, 0, s->rank);
}

bool moves_yield(struct service *s, const struct moves_entry *e)
{
    moves_forget_followers(&s->moves->slices[e->slice]);
    if (!moves_change_to(s, e, false))
        return false;
    leave(s, e->slice);
    return moves_say_all(s, ASK_MOVED, e, 1, 0, e->rank);
}

bool moves_fenced(struct service *s, int rank, const struct moves_entry *e)
{
    struct moving *of = &s->moves->slices[e->slice];
    struct moves_entry entry = moves_entry_of(s, e->slice);
    uint64_t *owes = &s->moves->peers[rank].owes[e->slice / 64];
    uint64_t bit = UINT64_C(1) << e->slice % 64;
    bool of_claim = e->rank == s->rank;

    if (!(*owes & bit) || of_claim == s->moves->serves_on[e->slice])
        return true;
    *owes &= ~bit;
    of->owed--;
    return (of_claim || moves_say(s, entry.rank, ASK_FENCED, &entry, 1, 0, rank)) &&
           moves_end_owed(s, e->slice);
}

/* Those rows of the ask in s->asked whose slices rank `owner` has now. */
static bool pass_to(struct service *s, const struct read_ask *from, int owner,
                    const bool *goes)
{
    size_t id = row_id_bytes(from->table), row = owned_row_bytes(from->table), n = 0;
    struct ask_head head = from->head;
    struct ask *ask;

    for (size_t k = 0; k < from->head.n; k++)
        n += goes[k] && owned_owner(from->table, s->asked[k]) == owner;
    if (!s->peers[owner].there || n == 0)
        return true;
    ask = moves_ask(s, owner, ASK_PUSH, sizeof head + n * (id + row));
    if (!ask)
        return false;
    head.n = (uint32_t)n;
    memcpy(ask->message, &head, sizeof head);
    unsigned char *ids = ask->message + sizeof head, *gradients = ids + n * id;
    for (size_t k = 0; k < from->head.n; k++) {
        if (!goes[k] || owned_owner(from->table, s->asked[k]) != owner)
            continue;
        memcpy(ids, &s->asked[k], id);
        memcpy(gradients, from->gradients + k * row, row);
        ids += id;
        gradients += row;
    }
    return ask_send(s, ask);
}

/* This rank has given it away, and its owner has not died. */
static bool passes(const struct service *s, int slice)
{
    return s->moves->serves_on[slice] && !moves_orphan(s, slice);
}

bool moves_pass_on(struct service *s, const struct read_ask *ask)
{
    bool goes[ASK_BYTES / sizeof(uint32_t)], good = true;

    if (!s->moves->left)
        return true;
    for (size_t k = 0; k < ask->head.n; k++)
        goes[k] = passes(s, owned_slice(ask->table, s->asked[k]));
    for (size_t k = 0; good && k < ask->head.n; k++) {
        int owner = owned_owner(ask->table, s->asked[k]);
        if (!goes[k])
            continue;
        good = pass_to(s, ask, owner, goes);
        for (size_t i = k; i < ask->head.n; i++)
            goes[i] &= owned_owner(ask->table, s->asked[i]) != owner;
    }
    return good;
}

/* --- a turn --- */

/* The rank to which something of the slice is to be sent next; NULL. */
static struct follow *next_of(const struct service *s, struct moving *of)
{
    struct follow *to = moves_with_role(of, TO_MOVE);

    if (moves_one_is(of, FOLLOW_JOINS))
        return NULL;
    if (to && moves_has_room(s, to->rank, MOVES_QUEUED) &&
        (to->state == FOLLOW_FOLLOWS ? !lacks_replica(of) : to->state <= FOLLOW_COPIES))
        return to;
    for (int k = 0; k < TO_MOST; k++)
        if (of->to[k].roles && of->to[k].state <= FOLLOW_COPIES &&
            moves_has_room(s, of->to[k].rank, MOVES_QUEUED))
            return &of->to[k];
    return NULL;
}

/* The next slice of which something is to be sent. */
static bool go_on(struct service *s, bool *worked)
{
    struct moves *m = s->moves;

    for (int k = 0; k < OWNED_SLICES; k++) {
        int slice = (m->at + k) % OWNED_SLICES;
        struct follow *f = next_of(s, &m->slices[slice]);
        if (!f)
            continue;
        m->at = slice;
        *worked = true;
        return f->state == FOLLOW_BEGINS   ? moves_begin(s, slice, f)
               : f->state == FOLLOW_COPIES ? moves_copy_some(s, slice, f)
                                           : give(s, slice);
    }
    m->rests = true;
    return true;
}

bool moves_has(const struct service *s)
{
    return owned_slices(&s->map, s->rank) > 0 || s->moves->left > 0 ||
           s->moves->coming > 0;
}

/* What other threads want, and what they are told. */
static bool tell(struct service *s)
{
    struct moves *m = s->moves;
    bool leaves = atomic_load(&m->leaves), holds = atomic_load(&m->holds) > 0;
    bool good = true;

    if (leaves && m->peers[s->rank].share > 0) {
        m->peers[s->rank].share = 0;
        m->plan = true;
        good = moves_say_all(s, ASK_SHARE, NULL, 0, 0, 0);
    }
    if (good && !m->met && has_met_owners(s)) {
        m->met = m->plan = true;
        good = moves_say_all(s, ASK_SHARE, NULL, 0, (float)own_share(s), 0);
    }
    if (holds != m->holds_now) {
        m->holds_now = holds;
        m->plan = true;
    }
    atomic_store(&m->still, holds && !m->plan && m->shut == 0);
    atomic_store(&m->away, leaves && !m->shut && !moves_has(s));
    return good;
}

bool moves_turn(struct service *s, uint64_t now_ns, bool *worked)
{
    struct moves *m = s->moves;

    if (m->plan && !plan(s))
        return false;
    if (!tell(s))
        return false;
    moves_offer_again(s, now_ns);
    if (m->follow_s > 0 && !moves_sweep(s, now_ns))
        return false;
    if (!m->rests && !go_on(s, worked))
        return false;
    if (m->routes) {
        m->routes = false;
        *worked = true;
        if (!route_all(s))
            return false;
    }
    *worked |= m->plan;
    return true;
}

/* --- any thread --- */

void moves_leave(struct service *s)
{
    atomic_store(&s->moves->leaves, true);
    service_wake(s);
}

void moves_hold(struct service *s, bool hold)
{
    atomic_fetch_add(&s->moves->holds, hold ? 1 : -1);
    if (hold)
        atomic_store(&s->moves->still, false);
    service_wake(s);
}
