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

static void mark(struct notes *notes, enum descant_event_kind kind, int rank)
{
    uint64_t bit = UINT64_C(1) << rank % 64;
    _Atomic uint64_t *gone = &notes->gone[rank / 64], *left = &notes->left[rank / 64];

    if (kind == DESCANT_EVENT_JOINED) {
        atomic_fetch_and_explicit(gone, ~bit, memory_order_relaxed);
        atomic_fetch_and_explicit(left, ~bit, memory_order_relaxed);
    } else if (kind == DESCANT_EVENT_LEFT) {
        atomic_fetch_or_explicit(left, bit, memory_order_relaxed);
    } else if (kind == DESCANT_EVENT_LOST || kind == DESCANT_EVENT_UNFINISHED) {
        atomic_fetch_or_explicit(gone, bit, memory_order_relaxed);
    }
}

static bool has(const _Atomic uint64_t *bits, int rank)
{
    return atomic_load_explicit(&bits[rank / 64], memory_order_relaxed) >> rank % 64 & 1;
}

bool notes_is_gone(const struct notes *notes, int rank)
{
    return has(notes->gone, rank);
}

bool notes_is_left(const struct notes *notes, int rank)
{
    return has(notes->left, rank);
}

void notes_add(struct notes *notes, enum descant_event_kind kind, int rank)
{
    if (notes == NULL)
        return;
    if (rank >= 0 && rank < NOTES_RANKS)
        mark(notes, kind, rank);
    pthread_mutex_lock(&notes->lock);
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
