/* SPDX-License-Identifier: MIT */
/* Notes of trainers that came, went, died or were left out, on their way from the thread
 * that sees these events to the one that reports them (sync/events.c).
 *
 * Fabrics write them in poll and wait, which may be a worker's step; so a writer holds
 * the lock for a few comparisons, allocates nothing, and never sleeps for the reader,
 * which takes the whole list out at once. A repeated event is counted in the unread note
 * that is there; without room it is counted under the rank -1. */
#include "fabric/fabric.h"

#include <string.h>

void notes_init(struct notes *notes)
{
    pthread_mutex_init(&notes->lock, NULL);
    notes->n = 0;
}

void notes_fini(struct notes *notes)
{
    pthread_mutex_destroy(&notes->lock);
}

static struct fabric_note *find(struct notes *notes, enum descant_event_kind kind,
                                int rank)
{
    for (int i = 0; i < notes->n; i++)
        if (notes->list[i].kind == kind && notes->list[i].rank == rank)
            return &notes->list[i];
    if (notes->n >= NOTES - N_EVENT_KINDS && rank >= 0)
        return find(notes, kind, -1);
    notes->list[notes->n] = (struct fabric_note){.kind = kind, .rank = rank};
    return &notes->list[notes->n++];
}

enum { LIFE_ENDED = 1, LIFE_LOST = 2, LIFE_PARTED = 4, LIFE_NEXT = 8 };

/* Those that are there from the start were never JOINED. */
static void mark(struct notes *notes, enum descant_event_kind kind, int rank)
{
    _Atomic uint32_t *life = &notes->lives[rank];
    uint32_t was = atomic_load_explicit(life, memory_order_relaxed), is = was;

    if (kind == DESCANT_EVENT_LOST || kind == DESCANT_EVENT_UNFINISHED)
        is |= LIFE_ENDED | LIFE_LOST;
    else if (kind == DESCANT_EVENT_LEFT)
        is |= LIFE_ENDED | LIFE_PARTED;
    else if (kind == DESCANT_EVENT_FINISHED)
        is |= LIFE_ENDED;
    else if (kind == DESCANT_EVENT_JOINED && was & LIFE_ENDED)
        is = (was / LIFE_NEXT + 1) * LIFE_NEXT;
    atomic_store_explicit(life, is, memory_order_relaxed);
}

struct rank_life notes_life(const struct notes *notes, int rank)
{
    uint32_t is = atomic_load_explicit(&notes->lives[rank], memory_order_relaxed);

    return (struct rank_life){.life = is / LIFE_NEXT, .ended = is & LIFE_ENDED,
                              .lost = is & LIFE_LOST, .parted = is & LIFE_PARTED};
}

void notes_add(struct notes *notes, enum descant_event_kind kind, int rank)
{
    if (notes == NULL)
        return;
    pthread_mutex_lock(&notes->lock);
    if (rank >= 0 && rank < NOTES_RANKS)
        mark(notes, kind, rank);
    find(notes, kind, rank)->count++;
    pthread_mutex_unlock(&notes->lock);
    notes_ring(notes);
}

void notes_ring(struct notes *notes)
{
    atomic_fetch_add(&notes->bell, 1);
    futex_wake_all(&notes->bell);
}

int notes_take(struct notes *notes, struct fabric_note *out)
{
    pthread_mutex_lock(&notes->lock);
    int n = notes->n;
    memcpy(out, notes->list, (size_t)n * sizeof *out);
    notes->n = 0;
    pthread_mutex_unlock(&notes->lock);
    return n;
}
