/* SPDX-License-Identifier: MIT */
/* Means of vectors that peers cannot read where they are: a trainer's own memory,
 * attached to the job. Each member of the round reduces one slice. It reads its own part
 * of the slice in place; the others copy their parts, chunk by chunk, into their
 * contributions. So of k members each copies (k-1)/k of its vector, and none of it before
 * the round is closed.
 *
 * Members put out chunk 0 of every other's slice, then chunk 1, and so on; `put` counts
 * these positions, `reduced` the chunks of the own slice. A place whose chunk has been
 * reduced is used again, so while all keep pace the copies stay in a few hundred KiB, and
 * in the caches: memory then moves as much as for vectors that are read in place. A
 * trainer that is ahead goes on into fresh places, and the contribution has room for all,
 * so no trainer ever waits for a place: one that works in short bursts is not tied to the
 * bursts of the others. A table behind the contribution has the place of each position.
 *
 *   1. `put` and `reduced` carry the round's tag, so a count of another round is ignored.
 *   2. A place is written again only after its reader has said `reduced`; in another
 *      round only after its reader has arrived there.
 *   3. A trainer that finds nothing to do sets `hungry`, looks again, and sleeps; a
 *      trainer that puts out or reduces looks for the hungry afterwards. Both are
 *      sequentially consistent: one sees the other.
 *
 * A dead member's slice is not taken over: its death fails the round anyway (leader.c),
 * as its vector was to be part of the mean. An exchange that is given up fails its round
 * too, for its memory is the caller's again. All of this runs in the thread that holds
 * the round machine. */
#include "shm/shm.h"

#include <string.h>

enum {
    LEAD = 4,           /* chunks put out for each member before one is reduced */
    FAR = 16,           /* so many ahead of their readers, copies go past the caches */
    STEPS = 4,          /* chunks a poll: some 40 us */
    WHOLE_PIECE = 65536 /* floats */
};

#define NO_PLACE UINT32_MAX

/* --- out of the caller's memory --- */

/* The floats in place, if they lie together. */
static const float *read_own(const struct shm *shm, size_t from, size_t n)
{
    const struct vector *in = shm->round.exchange.in;
    const float *p;

    if (vector_reach(in, from, &p) >= n && p)
        return p;
    vector_gather(in, (struct chunk){from, n}, shm->piece, false);
    return shm->piece;
}

bool shm_put_whole(struct shm *shm)
{
    size_t from = shm->round.whole, n = shm->round.exchange.n - from;

    if (n > WHOLE_PIECE)
        n = WHOLE_PIECE;
    vector_gather(shm->round.exchange.in, (struct chunk){from, n},
                  shm->fabric.contribution + from, true);
    shm->round.whole += n;
    return shm->round.whole < shm->round.exchange.n;
}

/* --- places --- */

static const uint32_t *table_of(const struct shm *shm, unsigned slot)
{
    return (const uint32_t *)(const void *)(shm->round.in[slot] +
                                            shm_table_at(shm->start.room));
}

static uint32_t *own_table(const struct shm *shm)
{
    return (uint32_t *)(void *)(shm->fabric.contribution + shm_table_at(shm->start.room));
}

static uint32_t slice_first(const struct shm *shm, uint32_t member)
{
    return (uint32_t)((uint64_t)board_of(shm)->record.n_chunks * member /
                      shm->round.slices.k);
}

static uint32_t slice_length(const struct shm *shm, uint32_t member)
{
    return slice_first(shm, member + 1) - slice_first(shm, member);
}

/* The use of a position of this trainer's. */
struct position {
    uint32_t member, chunk;     /* of its slice */
    bool empty;                 /* the slice has no such chunk */
};

static struct position position_at(const struct shm *shm, uint32_t at)
{
    const struct slices *s = &shm->round.slices;
    struct position p = {(s->mine + 1 + at % (s->k - 1)) % s->k, at / (s->k - 1), false};

    p.empty = p.chunk >= slice_length(shm, p.member);
    return p;
}

static uint32_t counted(const struct shm *shm, const _Atomic uint64_t *count)
{
    uint64_t value = atomic_load_explicit(count, memory_order_seq_cst);
    return word_tag(value) == shm->round.tag ? (uint32_t)value : 0;
}

static struct arrival *arrival_of(const struct shm *shm, uint32_t member)
{
    return &board_of(shm)->arrivals[shm->round.slices.slot[member]];
}

/* Frees positions that have been reduced. */
static void free_places(struct shm *shm)
{
    struct slices *s = &shm->round.slices;

    while (s->freed < s->put) {
        struct position p = position_at(shm, s->freed);
        if (!p.empty && counted(shm, &arrival_of(shm, p.member)->reduced) <= p.chunk)
            return;
        s->freed++;
    }
}

static uint32_t take_place(struct shm *shm)
{
    struct slices *s = &shm->round.slices;

    while (s->reused < s->freed) {
        uint32_t place = own_table(shm)[s->reused++];
        if (place != NO_PLACE)
            return place;
    }
    return s->fresh++;
}

static void tell(struct shm *shm, _Atomic uint64_t *count, uint32_t value)
{
    const struct slices *s = &shm->round.slices;

    atomic_store_explicit(count, word_make(shm->round.tag, value), memory_order_seq_cst);
    for (uint32_t k = 0; k < s->k; k++) {
        _Atomic uint32_t *hungry = &arrival_of(shm, k)->hungry;
        if (k != s->mine && atomic_load_explicit(hungry, memory_order_seq_cst) &&
            atomic_exchange_explicit(hungry, 0, memory_order_seq_cst))
            roster_ring(roster_of(shm), slot_bit(s->slot[k]));
    }
}

/* --- the work --- */

static size_t chunk_floats(const struct round_record *record, size_t from)
{
    return record->n - from < record->chunk ? record->n - from : record->chunk;
}

static void put_chunk(struct shm *shm)
{
    const struct round_record *record = &board_of(shm)->record;
    struct slices *s = &shm->round.slices;
    struct position p = position_at(shm, s->put);
    uint32_t place = NO_PLACE;

    if (!p.empty) {
        size_t from = (slice_first(shm, p.member) + p.chunk) * record->chunk;
        place = take_place(shm);
        vector_gather(shm->round.exchange.in,
                      (struct chunk){from, chunk_floats(record, from)},
                      shm->fabric.contribution + place * record->chunk,
                      s->put - s->freed >= FAR * (s->k - 1));
    }
    own_table(shm)[s->put++] = place;
    tell(shm, &own_arrival(shm)->put, s->put);
}

/* The position of a member that has the next chunk of this trainer's slice. */
static uint32_t position_for_us(const struct slices *s, uint32_t member)
{
    return s->reduced * (s->k - 1) + (s->mine + s->k - member) % s->k - 1;
}

static bool puts_out(const struct shm *shm, uint32_t member)
{
    const struct round_record *record = &board_of(shm)->record;
    unsigned slot = shm->round.slices.slot[member];
    return record->live & slot_bit(slot) && record->share[slot] > 0;
}

static bool is_ready(const struct shm *shm)
{
    const struct slices *s = &shm->round.slices;

    for (uint32_t k = 0; k < s->k; k++)
        if (k != s->mine && puts_out(shm, k) &&
            counted(shm, &arrival_of(shm, k)->put) <= position_for_us(s, k))
            return false;
    return true;
}

static void reduce_chunk(struct shm *shm, uint64_t word)
{
    const struct round_record *record = &board_of(shm)->record;
    struct slices *s = &shm->round.slices;
    size_t from = (slice_first(shm, s->mine) + s->reduced) * record->chunk;
    size_t n = chunk_floats(record, from);
    const float *in[MACHINE_SLOTS];

    for (uint32_t k = 0; k < s->k; k++) {
        unsigned slot = s->slot[k];
        if (!puts_out(shm, k))
            in[slot] = shm->round.in[slot] + from;
        else if (k == s->mine)
            in[slot] = read_own(shm, from, n);
        else
            in[slot] = shm->round.in[slot] +
                       table_of(shm, slot)[position_for_us(s, k)] * record->chunk;
    }
    if (!shm_mean_chunk(shm, word, in, from, n))
        return;
    s->reduced++;
    tell(shm, &own_arrival(shm)->reduced, s->reduced);
    if (s->reduced == s->n_own)
        shm_count_chunks(shm, word, s->n_own);
}

/* False: nothing to do now. */
static bool step(struct shm *shm, uint64_t word)
{
    struct slices *s = &shm->round.slices;
    bool more = s->put < s->n_put;

    free_places(shm);
    if (more && s->put - s->freed < LEAD * (s->k - 1))
        put_chunk(shm);
    else if (s->reduced < s->n_own && is_ready(shm))
        reduce_chunk(shm, word);
    else if (more)
        put_chunk(shm);
    else
        return false;
    return true;
}

static void begin_slices(struct shm *shm)
{
    const struct round_record *record = &board_of(shm)->record;
    struct slices *s = &shm->round.slices;

    memset(s, 0, sizeof *s);
    for (unsigned slot = 0; slot < MACHINE_SLOTS; slot++)
        if (record->group & slot_bit(slot)) {
            if (slot == shm->meet.slot)
                s->mine = s->k;
            s->slot[s->k++] = slot;
        }
    s->n_own = slice_length(shm, s->mine);
    if (puts_out(shm, s->mine))
        s->n_put = (record->n_chunks + s->k - 1) / s->k * (s->k - 1);
}

enum fabric_progress shm_reduce_slices(struct shm *shm, uint64_t word)
{
    struct shm_board *board = board_of(shm);
    const struct slices *s = &shm->round.slices;
    int steps = 0;

    if (!shm->round.seen) {
        if (!shm_map_group(shm))
            return shm_fail(shm, DESCANT_MEMORY);
        begin_slices(shm);
        atomic_store_explicit(&own_arrival(shm)->reducing, word_tag(word),
                              memory_order_relaxed);
    }
    if (shm->round.abandoned && board->record.live & own_bit(shm)) {
        shm_end_round(shm, word, false);
        return FABRIC_WORKED;
    }
    while (steps < STEPS && load_word(board) == word && step(shm, word))
        steps++;
    if (steps || load_word(board) != word)
        return FABRIC_WORKED;
    if (s->reduced == s->n_own) {
        atomic_store_explicit(&own_arrival(shm)->reducing, 0, memory_order_relaxed);
        return FABRIC_WAITING;
    }
    atomic_store_explicit(&own_arrival(shm)->hungry, 1, memory_order_seq_cst);
    if (!step(shm, word))
        return FABRIC_WAITING;
    atomic_store_explicit(&own_arrival(shm)->hungry, 0, memory_order_seq_cst);
    return FABRIC_WORKED;
}
