/* SPDX-License-Identifier: MIT */
/* How the stripes of slab.h work. A function with a stripe's number runs under its lock,
 * but where it says otherwise.
 *
 * Order of stores, for a process that is killed between any two of them (a signal stops a
 * thread between two instructions, and what it has stored is seen by all, so the
 * compiler's order is enough):
 *   1. `made` goes up before the slot is used;
 *   2. id and record are stored before the state that says that the row is there;
 *   3. that state is taken back before anything else of the slot changes.
 * All else of a stripe follows from its slots: repair. */
#include "owners/slab.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#define SLAB_PREPARED UINT32_MAX
#define SLAB_UNKNOWN UINT32_MAX         /* no slot: a stripe has fewer */
#define WAIT_NS UINT64_C(10000000000)
#define LOOK_NS UINT64_C(1000000)
#define GOLDEN UINT64_C(0x9e3779b97f4a7c15)

enum { LINE = 64, UNITS = 256 /* of age, until a row is unused */ };

/* A row's state: whether it is there, uses that its eviction is put off by, and the time
 * of the last use, in units. */
enum { LIVE = 1, USE = 2, USES = 3 * USE, AGE_AT = 8 };
#define AGES UINT32_C(0xffffff)         /* the time counts round */

struct slot {
    uint64_t id;
    uint32_t next;                      /* 1 + the next of the chain, or of those free */
    _Atomic uint32_t state;
    float record[];
};

/* --- places --- */

static size_t stride_of(size_t record)
{
    size_t align = _Alignof(struct slot) > 16 ? _Alignof(struct slot) : 16;

    return (sizeof(struct slot) + record * sizeof(float) + align - 1) / align * align;
}

static size_t begin_of(size_t stripes)
{
    return LINE + stripes * sizeof(struct slab_stripe);
}

size_t slab_least(size_t stripes, size_t record)
{
    return begin_of(stripes) + LINE +
           stripes * SLAB_LEAST * (stride_of(record) + sizeof(uint32_t));
}

size_t slab_room(size_t stripes, size_t record, size_t bytes)
{
    size_t each = stripes * (stride_of(record) + sizeof(uint32_t));
    size_t room = (bytes - begin_of(stripes) - LINE) / each;

    return room < INT32_MAX ? room : INT32_MAX;
}

static struct slot *slot_at(const struct slab *slab, size_t stripe, uint32_t slot)
{
    return (struct slot *)(slab->slots + (slot * slab->stripes + stripe) * slab->stride);
}

static _Atomic uint32_t *bucket_at(const struct slab *slab, size_t stripe,
                                   uint32_t bucket)
{
    return &slab->buckets[bucket * slab->stripes + stripe];
}

static uint32_t get(const _Atomic uint32_t *word)
{
    return atomic_load_explicit(word, memory_order_relaxed);
}

static void set(_Atomic uint32_t *word, uint32_t value)
{
    atomic_store_explicit(word, value, memory_order_relaxed);
}

static void count(_Atomic uint64_t *figure, int64_t by)
{
    uint64_t was = atomic_load_explicit(figure, memory_order_relaxed);
    atomic_store_explicit(figure, was + (uint64_t)by, memory_order_relaxed);
}

/* The largest power of two that is not above n, which is not 0. */
static uint32_t power_of(uint32_t n)
{
    return UINT32_C(1) << (31 - __builtin_clz(n));
}

/* Buckets 2^l to n - 1 have come out of 0 to n - 1 - 2^l. */
static uint32_t bucket_of(uint64_t id, uint32_t n)
{
    uint32_t power = power_of(n), bucket = slab_hash(id) & (2 * power - 1);

    return bucket < n ? bucket : bucket & (power - 1);
}

static _Atomic uint32_t *chain_of(const struct slab *slab, size_t stripe, uint64_t id)
{
    return bucket_at(slab, stripe, bucket_of(id, get(&slab->stripe[stripe].buckets)));
}

/* --- the block --- */

static void prepare(const struct slab *slab)
{
    pthread_mutexattr_t of;

    pthread_mutexattr_init(&of);
    pthread_mutexattr_setpshared(&of, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&of, PTHREAD_MUTEX_ROBUST);
    for (size_t k = 0; k < slab->stripes; k++) {
        struct slab_stripe *stripe = &slab->stripe[k];
        pthread_mutex_init(&stripe->lock, &of);
        stripe->chance = k;
        set(&stripe->buckets, 1);
    }
    pthread_mutexattr_destroy(&of);
}

static bool is_gone(uint32_t process)
{
    return kill((pid_t)process, 0) != 0 && errno == ESRCH;
}

/* Once for all processes; one that dies at it is followed by another. */
static bool prepare_once(const struct slab *slab)
{
    _Atomic uint32_t *prepared = &slab->head->prepared;
    uint64_t until = clock_now_ns() + WAIT_NS;
    uint32_t by;

    while ((by = atomic_load_explicit(prepared, memory_order_acquire)) != SLAB_PREPARED) {
        if ((by == 0 || is_gone(by)) &&
            atomic_compare_exchange_strong(prepared, &by, (uint32_t)getpid())) {
            prepare(slab);
            atomic_store_explicit(prepared, SLAB_PREPARED, memory_order_release);
            break;
        }
        uint64_t now = clock_now_ns();
        if (now > until)
            return false;
        clock_sleep_until(now + LOOK_NS);
    }
    return true;
}

bool slab_place(struct slab *slab, size_t stripes, size_t record, uint64_t unused_ns,
                void *memory, size_t bytes)
{
    size_t begin = begin_of(stripes), room = slab_room(stripes, record, bytes);
    size_t buckets = (room * stripes * sizeof(uint32_t) + LINE - 1) / LINE * LINE;
    unsigned char *at = memory;

    *slab = (struct slab){.stripes = stripes, .record = record,
                          .stride = stride_of(record), .room = room, .head = memory,
                          .unit_ns = unused_ns ? unused_ns / UNITS + 1 : 0,
                          .stripe = (struct slab_stripe *)(void *)(at + LINE),
                          .buckets = (_Atomic uint32_t *)(void *)(at + begin),
                          .slots = at + begin + buckets};
    return prepare_once(slab);
}

/* --- ages and uses --- */

static uint32_t age_now(const struct slab *slab, uint64_t now_ns)
{
    return slab->unit_ns ? (uint32_t)(now_ns / slab->unit_ns) & AGES : 0;
}

/* Another thread's clock may have been read after this one's: then the row is of the
 * future, which is as far back, and young. */
static bool is_unused(const struct slab *slab, uint32_t state, uint64_t now_ns)
{
    uint32_t age = (age_now(slab, now_ns) - (state >> AGE_AT)) & AGES;

    return age > UNITS && age <= AGES / 2;
}

/* Rows that are used all the time are not written for it. */
static void use(const struct slab *slab, struct slot *slot, uint64_t now_ns)
{
    uint32_t was = get(&slot->state), uses = was & USES;
    uint32_t state = age_now(slab, now_ns) << AGE_AT | LIVE |
                     (uses == USES ? USES : uses + USE);

    if (state != was)
        set(&slot->state, state);
}

/* --- chains --- */

static void link_row(const struct slab *slab, size_t stripe, uint32_t slot,
                     uint32_t bucket)
{
    _Atomic uint32_t *first = bucket_at(slab, stripe, bucket);

    slot_at(slab, stripe, slot)->next = get(first);
    set(first, slot + 1);
}

static void unlink_row(const struct slab *slab, size_t stripe, uint32_t slot)
{
    struct slot *of = slot_at(slab, stripe, slot);
    _Atomic uint32_t *first = chain_of(slab, stripe, of->id);
    uint32_t at = get(first);

    if (at == slot + 1) {
        set(first, of->next);
        return;
    }
    for (struct slot *before; at; at = before->next) {
        before = slot_at(slab, stripe, at - 1);
        slab->stripe[stripe].looked++;
        if (before->next == slot + 1) {
            before->next = of->next;
            return;
        }
    }
}

/* One bucket more: it takes the rows that are its own out of the chain where they are. */
static void split(const struct slab *slab, size_t stripe)
{
    struct slab_stripe *of = &slab->stripe[stripe];
    uint32_t n = get(&of->buckets), from = n - power_of(n);
    uint32_t at = get(bucket_at(slab, stripe, from));

    set(bucket_at(slab, stripe, from), 0);
    set(bucket_at(slab, stripe, n), 0);
    while (at) {
        struct slot *slot = slot_at(slab, stripe, at - 1);
        uint32_t next = slot->next;
        link_row(slab, stripe, at - 1, bucket_of(slot->id, n + 1));
        of->looked++;
        at = next;
    }
    set(&of->buckets, n + 1);
}

/* --- locks --- */

/* Where the list of free slots is unknown, take_over finds it. */
static void free_slot(const struct slab *slab, size_t stripe, uint32_t slot)
{
    struct slab_stripe *of = &slab->stripe[stripe];

    if (of->free == SLAB_UNKNOWN)
        return;
    slot_at(slab, stripe, slot)->next = of->free;
    of->free = slot + 1;
}

/* After a process that was killed under the lock. (At a split, it has left the bucket
 * after the last in any state: the next split empties that.) */
static void repair(const struct slab *slab, size_t stripe)
{
    struct slab_stripe *of = &slab->stripe[stripe];
    uint32_t n = get(&of->buckets), made = get(&of->made);
    uint64_t live = 0;

    for (uint32_t k = 0; k < n; k++)
        set(bucket_at(slab, stripe, k), 0);
    of->free = 0;
    for (uint32_t k = 0; k < made; k++) {
        const struct slot *slot = slot_at(slab, stripe, k);
        if (get(&slot->state) & LIVE) {
            link_row(slab, stripe, k, bucket_of(slot->id, n));
            live++;
        } else {
            free_slot(slab, stripe, k);
        }
    }
    atomic_store_explicit(&of->live, live, memory_order_relaxed);
}

static void lock(const struct slab *slab, size_t stripe)
{
    pthread_mutex_t *of = &slab->stripe[stripe].lock;

    if (pthread_mutex_lock(of) == EOWNERDEAD) {
        repair(slab, stripe);
        pthread_mutex_consistent(of);
    }
}

static void unlock(const struct slab *slab, size_t stripe)
{
    pthread_mutex_unlock(&slab->stripe[stripe].lock);
}

/* --- rows that are there --- */

/* Without the lock, and so are the next lines: it is only a wish. */
void slab_ask_bucket(const struct slab *slab, size_t stripe, uint64_t id)
{
    __builtin_prefetch((const void *)(uintptr_t)chain_of(slab, stripe, id));
}

void slab_ask_slot(const struct slab *slab, size_t stripe, uint64_t id)
{
    uint32_t first = get(chain_of(slab, stripe, id));

    if (!first || first > slab->room)
        return;
    const unsigned char *slot = (const unsigned char *)slot_at(slab, stripe, first - 1);
    for (size_t k = 0; k < slab->stride; k += LINE)
        __builtin_prefetch(slot + k, 1);
}

void slab_open(const struct slab *slab, struct slab_row *row)
{
    lock(slab, row->stripe);
    uint32_t at = get(chain_of(slab, row->stripe, row->id));

    row->record = NULL;
    for (row->chain = 0; at; row->chain++) {
        struct slot *slot = slot_at(slab, row->stripe, at - 1);
        slab->stripe[row->stripe].looked++;
        if (slot->id == row->id) {
            use(slab, slot, row->now_ns);
            row->record = slot->record;
            row->slot = at - 1;
            return;
        }
        at = slot->next;
    }
}

void slab_close(const struct slab *slab, const struct slab_row *row)
{
    unlock(slab, row->stripe);
}

/* --- eviction --- */

static void take_out(const struct slab *slab, size_t stripe, uint32_t slot)
{
    set(&slot_at(slab, stripe, slot)->state, 0);
    atomic_signal_fence(memory_order_seq_cst);  /* 3. */
    unlink_row(slab, stripe, slot);
    free_slot(slab, stripe, slot);
    count(&slab->stripe[stripe].live, -1);
}

static void evict(const struct slab *slab, size_t stripe, uint32_t slot)
{
    take_out(slab, stripe, slot);
    count(&slab->stripe[stripe].evicted, 1);
}

static uint32_t hand_moves(struct slab_stripe *of)
{
    uint32_t at = of->hand < get(&of->made) ? of->hand : 0;

    of->hand = at + 1;
    of->looked++;
    return at;
}

/* Rows that nobody has used for so long. */
static void sweep(const struct slab *slab, const struct slab_row *row)
{
    struct slab_stripe *of = &slab->stripe[row->stripe];

    for (int k = 0; slab->unit_ns && k < SLAB_SWEEP && get(&of->made); k++) {
        uint32_t at = hand_moves(of);
        uint32_t state = get(&slot_at(slab, row->stripe, at)->state);
        if ((state & LIVE) && is_unused(slab, state, row->now_ns))
            evict(slab, row->stripe, at);
    }
}

/* All slots have rows: one of them goes. */
static void make_room(const struct slab *slab, size_t stripe)
{
    uint32_t least = 0, uses = UINT32_MAX;

    for (int k = 0; k < SLAB_LOOKS && uses > 0; k++) {
        uint32_t at = hand_moves(&slab->stripe[stripe]);
        struct slot *slot = slot_at(slab, stripe, at);
        uint32_t state = get(&slot->state);
        if ((state & USES) < uses) {
            least = at;
            uses = state & USES;
        }
        if (state & USES)
            set(&slot->state, state - USE);
    }
    evict(slab, stripe, least);
}

/* The chain has no room for one more. */
static void shorten(const struct slab *slab, const struct slab_row *row)
{
    uint32_t at = get(chain_of(slab, row->stripe, row->id)), least = at;
    uint32_t uses = UINT32_MAX;

    for (const struct slot *slot; at; at = slot->next) {
        slot = slot_at(slab, row->stripe, at - 1);
        slab->stripe[row->stripe].looked++;
        if ((get(&slot->state) & USES) < uses) {
            least = at;
            uses = get(&slot->state) & USES;
        }
    }
    evict(slab, row->stripe, least - 1);
}

/* --- rows that are made --- */

/* The first row that a copy of another stripe makes by itself (slab_make_at): it finds
 * the slots that are free. Its rows are as old as what has come last of each, though
 * they were read meanwhile where they were: they are new from now on. */
static void take_over(const struct slab *slab, const struct slab_row *row)
{
    uint32_t made = get(&slab->stripe[row->stripe].made);

    slab->stripe[row->stripe].free = 0;
    for (uint32_t k = 0; k < made; k++) {
        _Atomic uint32_t *state = &slot_at(slab, row->stripe, k)->state;
        uint32_t was = get(state);
        if (was & LIVE)
            set(state, age_now(slab, row->now_ns) << AGE_AT | (was & (LIVE | USES)));
        else
            free_slot(slab, row->stripe, k);
    }
}

static uint32_t take_slot(const struct slab *slab, const struct slab_row *row)
{
    struct slab_stripe *of = &slab->stripe[row->stripe];
    uint32_t made = get(&of->made);

    if (of->free == SLAB_UNKNOWN)
        take_over(slab, row);
    if (row->chain >= SLAB_CHAIN)
        shorten(slab, row);
    sweep(slab, row);
    if (!of->free && made < slab->room) {
        set(&of->made, made + 1);
        atomic_signal_fence(memory_order_seq_cst);      /* 1. */
        return made;
    }
    if (!of->free)
        make_room(slab, row->stripe);
    uint32_t slot = of->free - 1;
    of->free = slot_at(slab, row->stripe, slot)->next;
    return slot;
}

float *slab_make(const struct slab *slab, struct slab_row *row)
{
    row->slot = take_slot(slab, row);
    struct slot *slot = slot_at(slab, row->stripe, row->slot);
    slot->id = row->id;
    row->record = slot->record;
    return row->record;
}

float *slab_make_at(const struct slab *slab, struct slab_row *row, uint32_t slot)
{
    struct slab_stripe *of = &slab->stripe[row->stripe];
    struct slot *to = slot_at(slab, row->stripe, slot);
    uint32_t made = get(&of->made);

    of->free = SLAB_UNKNOWN;
    if (row->record)
        take_out(slab, row->stripe, row->slot);
    else if (row->chain >= SLAB_CHAIN)
        shorten(slab, row);
    if (get(&to->state) & LIVE)
        take_out(slab, row->stripe, slot);
    set(&of->made, made > slot ? made : slot + 1);
    atomic_signal_fence(memory_order_seq_cst);  /* 1. */
    to->id = row->id;
    row->slot = slot;
    row->record = to->record;
    return row->record;
}

void slab_keep(const struct slab *slab, struct slab_row *row)
{
    struct slab_stripe *of = &slab->stripe[row->stripe];
    uint32_t n = get(&of->buckets);

    atomic_store_explicit(&slot_at(slab, row->stripe, row->slot)->state,
                          age_now(slab, row->now_ns) << AGE_AT | USE | LIVE,
                          memory_order_release);        /* 2. */
    link_row(slab, row->stripe, row->slot, bucket_of(row->id, n));
    count(&of->live, 1);
    if (atomic_load_explicit(&of->live, memory_order_relaxed) > n && n < slab->room)
        split(slab, row->stripe);
}

bool slab_admits(const struct slab *slab, const struct slab_row *row, double admit)
{
    struct slab_stripe *of = &slab->stripe[row->stripe];

    if (admit >= 1)
        return true;
    of->chance += GOLDEN;
    if ((double)(rng_mixed(of->chance) >> 11) * 0x1p-53 < admit)
        return true;
    count(&of->refused, 1);
    return false;
}

/* --- all rows --- */

enum { PIECE = 64 };                    /* slots that are looked at under one lock: a word
                                           of some->only */

/* The slot's bit is taken back before its row is read: a change from then on sets it
 * anew, by a thread that has the lock later. */
static bool take_bit(_Atomic uint64_t *only, uint32_t slot)
{
    uint64_t bit = UINT64_C(1) << slot % 64;

    return !only || (atomic_fetch_and_explicit(&only[slot / 64], ~bit,
                                               memory_order_relaxed) & bit);
}

static size_t next_piece(const struct slab *slab, size_t stripe, size_t *at, size_t found,
                         const struct slab_some *some)
{
    size_t end = (*at / PIECE + 1) * PIECE, made;

    lock(slab, stripe);
    made = get(&slab->stripe[stripe].made);
    for (; *at < made && *at < end && found < some->n; ++*at) {
        const struct slot *slot = slot_at(slab, stripe, (uint32_t)*at);
        if (!take_bit(some->only, (uint32_t)*at) || !(get(&slot->state) & LIVE))
            continue;
        some->ids[found] = slot->id;
        if (some->slots)
            some->slots[found] = (uint32_t)*at;
        if (some->records)
            memcpy(some->records + found * slab->record, slot->record,
                   slab->record * sizeof(float));
        found++;
    }
    unlock(slab, stripe);
    *at = *at < made ? *at : slab->room;
    return found;
}

size_t slab_next(const struct slab *slab, size_t stripe, size_t *at,
                 const struct slab_some *some)
{
    size_t found = 0;

    while (*at < slab->room && found < some->n) {
        if (some->only && *at % PIECE == 0 &&
            !atomic_load_explicit(&some->only[*at / 64], memory_order_relaxed))
            *at += PIECE;
        else
            found = next_piece(slab, stripe, at, found, some);
    }
    return found;
}

struct slab_figures slab_figures(const struct slab *slab)
{
    struct slab_figures sum = {0};
    uint32_t most = 0;

    for (size_t k = 0; k < slab->stripes; k++) {
        const struct slab_stripe *of = &slab->stripe[k];
        uint32_t made = get(&of->made);
        sum.live += atomic_load_explicit(&of->live, memory_order_relaxed);
        sum.evicted += atomic_load_explicit(&of->evicted, memory_order_relaxed);
        sum.refused += atomic_load_explicit(&of->refused, memory_order_relaxed);
        most = made > most ? made : most;
    }
    sum.bytes = begin_of(slab->stripes) +
                most * slab->stripes * (slab->stride + sizeof(uint32_t));
    return sum;
}
