/* SPDX-License-Identifier: MIT */
/* The parts of which moves are built (moves.h): the map as it changes, memory for slices,
 * and words about them. */
#include "owners/moves.h"

#include <string.h>

/* --- words --- */

struct ask *moves_ask(struct service *s, int rank, enum ask_kind kind, size_t bytes)
{
    struct ask *ask = ask_take(s, bytes, 0);

    if (!ask) {
        service_fail(s, DESCANT_MEMORY, "no memory for slices of tables that move");
        return NULL;
    }
    ask->kind = kind;
    ask->owner = rank;
    ask->batch = NULL;
    ask->places = NULL;
    ask->n = 0;
    ask->row_bytes = 0;
    ask->bytes = bytes;
    if (kind == ASK_PUSH)
        atomic_fetch_add(&s->queued, ask_room(ask));
    s->n_asks++;
    return ask;
}

bool moves_say(struct service *s, int rank, int kind, const struct moves_entry *entries,
               int n, float rate, int of)
{
    struct ask_head head = {.kind = (uint8_t)kind, .n = (uint32_t)n, .rate = rate,
                            .of = (uint32_t)of};
    size_t bytes = (size_t)n * sizeof *entries;

    if (!s->peers[rank].there)
        return true;
    struct ask *ask = moves_ask(s, rank, ASK_KINDS, sizeof head + bytes);
    if (!ask)
        return false;
    memcpy(ask->message, &head, sizeof head);
    if (n)
        memcpy(ask->message + sizeof head, entries, bytes);
    return ask_send(s, ask);
}

bool moves_say_all(struct service *s, int kind, const struct moves_entry *entries, int n,
                   float rate, int of)
{
    bool good = true;

    for (int k = 0; good && k < s->place.size; k++)
        if (k != s->rank)
            good = moves_say(s, k, kind, entries, n, rate, of);
    return good;
}

/* A slice as it is. */
struct moves_entry moves_entry_of(const struct service *s, int slice)
{
    return (struct moves_entry){(uint16_t)slice, (uint16_t)s->map.owner[slice],
                                s->map.epoch[slice], s->moves->owner_is[slice]};
}

/* --- the map --- */

static void shut_locked(struct service *s, int slice, bool shut)
{
    s->moves->shut += shut - s->map.shut[slice];
    s->moves->slices[slice].unsure &= shut;
    s->moves->slices[slice].waits_ns = 0;
    s->map.shut[slice] = shut;
    s->map.version++;
    s->moves->routes = true;
}

/* Before this rank's callers may use a slice themselves, what they have posted of it is
 * served: they read their own pushes. */
static bool serve_posted(struct service *s, int slice)
{
    return s->map.owner[slice] != s->rank || s->map.shut[slice] ||
           (route_all(s) && route_inbox(s));
}

bool moves_shut(struct service *s, int slice, bool shut)
{
    if (s->map.shut[slice] == shut)
        return true;
    pthread_rwlock_wrlock(&s->gate);
    shut_locked(s, slice, shut);
    bool good = serve_posted(s, slice);
    pthread_rwlock_unlock(&s->gate);
    return good;
}

/* Shut also where the owner has died, or is a newer process than the one that is there.
 */
void moves_change_locked(struct service *s, const struct moves_entry *e, bool shut)
{
    struct moving *of = &s->moves->slices[e->slice];
    const struct owners_peer *owner = &s->peers[e->rank];

    owned_map_change(&s->map, e->slice, e->rank, e->epoch);
    s->map.since_ns[e->slice] = s->now_ns();
    s->moves->owner_is[e->slice] = e->generation;
    of->giver = NOBODY;
    of->unsure = false;
    shut_locked(s, e->slice, shut || moves_orphan(s, e->slice) ||
                                 (owner->there && owner->generation < e->generation));
    s->moves->plan = true;
}

bool moves_change_to(struct service *s, const struct moves_entry *e, bool shut)
{
    pthread_rwlock_wrlock(&s->gate);
    moves_change_locked(s, e, shut);
    bool good = serve_posted(s, e->slice);
    pthread_rwlock_unlock(&s->gate);
    return good;
}

bool moves_change(struct service *s, int slice, int owner, uint32_t epoch, bool shut)
{
    struct moves_entry e = {(uint16_t)slice, (uint16_t)owner, epoch,
                            s->peers[owner].generation};
    return moves_change_to(s, &e, shut);
}

bool moves_take_part(struct service *s, int slice)
{
    bool good = true;

    pthread_rwlock_wrlock(&s->gate);
    for (int k = 0; good && k < s->n_tables; k++)
        good = owned_part_take(&s->tables[k], slice);
    for (int k = 0; !good && k < s->n_tables; k++)
        owned_part_give(&s->tables[k], slice);
    pthread_rwlock_unlock(&s->gate);
    return good;
}

void moves_comes(struct service *s, int slice, int from)
{
    struct moving *of = &s->moves->slices[slice];

    s->moves->coming += (from != NOBODY) - (of->from != NOBODY);
    s->moves->heard |= from == NOBODY;  /* asks that wait for it: it comes no more */
    of->from = from;
    of->complete = of->joined = false;
}

void moves_give_part(struct service *s, int slice)
{
    moves_comes(s, slice, NOBODY);
    pthread_rwlock_wrlock(&s->gate);
    for (int k = 0; k < s->n_tables; k++)
        owned_part_give(&s->tables[k], slice);
    pthread_rwlock_unlock(&s->gate);
}

double moves_full(const struct service *s)
{
    const struct moves *m = s->moves;
    double others = 0;
    size_t has = owned_slices(&s->map, s->rank);

    for (int k = 0; k < s->place.size; k++)
        others += k != s->rank && m->peers[k].counts ? m->peers[k].share : 0;
    return has < OWNED_SLICES ? others * (double)has / (double)(OWNED_SLICES - has) : 1;
}
