/* SPDX-License-Identifier: MIT */
/* Parcels in shared memory: for each rank but 0 two slips, one a direction, and a block
 * of floats for either. One side fills a slip and sets `full`, the other reads the slip
 * and clears `full`; a process that dies in between leaves the slip as it was, for the
 * next process of its rank. The memory lives as long as one of the job's processes. */
#include "shm/shm.h"

#include <string.h>

enum { TO_FIRST, FROM_FIRST, WAYS };    /* first: rank 0 */

struct slip {
    /* The sender sets it (release: all below, and the floats, are written), the receiver
     * clears it (release: all is read); each acquires before it touches slip and
     * floats. */
    CACHE_LINE_ALIGNED _Atomic uint32_t full;
    uint64_t from, to, n;
    _Alignas(uint64_t) unsigned char head[POST_HEAD];
};

struct shm_post {
    struct slip (*slips)[WAYS];         /* (MACHINE_SLOTS) by rank; shared */
    float *floats[MACHINE_SLOTS];    /* of both directions, by rank; shared; NULL: no room
                                        yet */
    size_t n[MACHINE_SLOTS];
};

/* Of the two ranks that a parcel is between, the one that is not 0. */
static int pair(const struct fabric *f, int rank)
{
    return f->rank ? f->rank : rank;
}

static struct slip *slip_out(struct fabric *f, int rank)
{
    return &shm_of(f)->post->slips[pair(f, rank)][f->rank ? TO_FIRST : FROM_FIRST];
}

static struct slip *slip_in(struct fabric *f, int rank)
{
    return &shm_of(f)->post->slips[pair(f, rank)][f->rank ? FROM_FIRST : TO_FIRST];
}

static float *floats_of(struct fabric *f, int rank, bool to_first)
{
    const struct shm_post *post = shm_of(f)->post;
    int k = pair(f, rank);

    return post->floats[k] ? post->floats[k] + (to_first ? 0 : post->n[k]) : NULL;
}

/* Once; all ranks get the same block. What a failure leaves, close gives back. */
static descant_status open_slips(struct fabric *f)
{
    struct shm *shm = shm_of(f);
    void *slips;

    if (!shm->post)
        shm->post = memory_take(sizeof *shm->post);
    if (!shm->post)
        return log_fail(&f->log, DESCANT_MEMORY, "no memory for parcels");
    if (shm->post->slips)
        return DESCANT_OK;
    descant_status status =
        f->type->share(f, "post", MACHINE_SLOTS * WAYS * sizeof(struct slip), &slips);
    if (status == DESCANT_OK)
        shm->post->slips = slips;
    return status;
}

/* The block has a name by its rank, so that both ends find it; a rank that comes anew
 * finds the block of before. NULL floats mean heads alone. */
static descant_status room(struct fabric *f, int rank, size_t n)
{
    char name[32];
    void *floats;
    int k = pair(f, rank);

    if (rank < 0 || k <= 0 || k >= MACHINE_SLOTS || (f->rank && rank))
        return log_fail(&f->log, DESCANT_BAD_RANK,
                        "no parcels go between ranks %d and %d", f->rank, rank);
    descant_status status = open_slips(f);
    if (status != DESCANT_OK || n == 0 || shm_of(f)->post->n[k] == n)
        return status;
    if (n > SIZE_MAX / (WAYS * sizeof(float)))
        return log_fail(&f->log, DESCANT_MEMORY, "%zu floats are too many", n);
    snprintf(name, sizeof name, "post-%d", k);
    status = f->type->share(f, name, WAYS * n * sizeof(float), &floats);
    if (status != DESCANT_OK)
        return status;
    shm_of(f)->post->floats[k] = floats;
    shm_of(f)->post->n[k] = n;
    return DESCANT_OK;
}

/* {generation 32, slot + 1}: a slot's generation rises with each process, so the number
 * is never used again. */
static uint64_t who(struct fabric *f, int rank)
{
    const struct roster *roster = roster_of(shm_of(f));

    for (unsigned s = 0; s < MACHINE_SLOTS; s++) {
        uint64_t life = slot_life(roster, s);
        if (life_alive(life) && roster->slots[s].rank == rank)
            return (uint64_t)life_generation(life) << 32 | (s + 1);
    }
    return 0;
}

static descant_status move(struct fabric *f)
{
    return f->status;
}

static bool is_free(struct fabric *f, int rank)
{
    return !atomic_load_explicit(&slip_out(f, rank)->full, memory_order_acquire);
}

static float *box(struct fabric *f, int rank)
{
    return floats_of(f, rank, f->rank != 0);
}

/* Head and floats first, then `full`: the receiver reads nothing before it. */
static void send(struct fabric *f, int rank, const void *head, size_t n)
{
    struct slip *slip = slip_out(f, rank);

    slip->from = who(f, f->rank);
    slip->to = who(f, rank);
    slip->n = n;
    memcpy(slip->head, head, POST_HEAD);
    atomic_store_explicit(&slip->full, 1, memory_order_release);
    shm_count_bytes(shm_of(f), n * sizeof(float));
}

/* The slip stays full until `taken`, so a receiver that dies in between leaves it to the
 * next process of its rank. */
static bool look(struct fabric *f, int rank, struct parcel *parcel)
{
    const struct slip *slip = slip_in(f, rank);
    const float *values = floats_of(f, rank, f->rank == 0);

    if (!atomic_load_explicit(&slip->full, memory_order_acquire))
        return false;
    if (slip->n > shm_of(f)->post->n[pair(f, rank)])
        values = NULL;          /* the parcel is for the rank's former trainer */
    *parcel = (struct parcel){.from = slip->from, .to = slip->to, .head = slip->head,
                              .values = values, .n = slip->n};
    return true;
}

static void taken(struct fabric *f, int rank)
{
    atomic_store_explicit(&slip_in(f, rank)->full, 0, memory_order_release);
}

const struct fabric_post shm_post = {
    .room = room,
    .who = who,
    .move = move,
    .free = is_free,
    .box = box,
    .send = send,
    .look = look,
    .taken = taken,
};
