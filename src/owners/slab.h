/* SPDX-License-Identifier: MIT */
/* Records by 64-bit ids, in one block of memory whose size is given: a hash table that
 * grows row by row, and never rehashes.
 *
 *   head | stripes | buckets, 4 bytes each | slots: a head of 16 bytes and a record
 *
 * A stripe is a hash table of its own, with its lock, and the caller says to which one an
 * id belongs. A bucket has the first slot of a chain. Bucket b of stripe k of n lies at
 * b n + k, and so do slots: the stripes grow alike, so what is in use of both arrays is
 * their beginning, and the system gives no page beyond. Nothing ever moves.
 *
 * Linear hashing: a row that is made may add one bucket, which takes its rows out of one
 * chain. A chain has SLAB_CHAIN rows at most: one more takes the place of the least used
 * of them (rows of honest ids never come to that). So each call does a bounded work,
 * SLAB_STEPS slots at most, however many rows there are.
 *
 * Copies: a stripe may have the rows of another one, of as many slots, each in the slot
 * that it has there (slab_make_at). The first row that it makes by itself then costs a
 * look at each slot, once.
 *
 * Eviction: a clock's hand goes over a stripe's slots, a little for each row that is
 * made. A use raises a row's count, up to 3; the hand lowers it, and evicts a row of
 * count 0. Where it meets none among SLAB_LOOKS, it takes the least of them.
 *
 * Threads: slab_open locks the row's stripe and slab_close unlocks it; a record is read
 * and written only in between. So no reader follows a place that is given to another id.
 * What a stripe has is guarded by its lock, but for what says otherwise.
 *
 * Processes: all that is in the block has numbers, and no pointers, so processes that map
 * it anywhere share it. The locks are robust. The slots are the truth: a row is there
 * from the store of its state on, which is the last one, to the store that takes that
 * back, which is the first. A process that is killed in between leaves chains in any
 * state; the next that has the lock makes them anew from the slots (the time of one look
 * at each of the stripe's rows, once for each death). What is lost is at most the row
 * that was being made, or was not stepped to the end. A process that is stopped while it
 * has a lock keeps others from that stripe. */
#ifndef SLAB_H
#define SLAB_H

#include "base/base.h"

#include <pthread.h>

enum { SLAB_CHAIN = 32, SLAB_LOOKS = 16, SLAB_SWEEP = 2 };
/* Slots that one call looks at: the search; the hand, and what leaves a chain by it (one
 * row for place, one of a chain that is full, SLAB_SWEEP that were unused); a bucket. */
enum { SLAB_STEPS = SLAB_CHAIN + SLAB_LOOKS + SLAB_SWEEP +
                    (3 + SLAB_SWEEP) * SLAB_CHAIN + SLAB_CHAIN };
enum { SLAB_LEAST = 16 };               /* rows that a stripe has room for, at least */

/* Shared. */
struct slab_head {
    _Atomic uint32_t prepared;          /* 0: not yet; all ones: it is; else this process
                                           is at it. Set by it (release), read (acquire)
                                           before any lock */
};

struct slab_stripe {                    /* shared */
    _Alignas(64) pthread_mutex_t lock;  /* robust */
    uint32_t free;                      /* 1 + the first slot that a row has left; all
                                           ones: they are to be found */
    uint32_t hand;
    uint64_t chance;
    uint64_t looked;                    /* slots so far: tests hold it to SLAB_STEPS */
    /* written under the lock, and read by anybody, relaxed: */
    _Atomic uint32_t made;              /* slots that were ever in use, from 0 on */
    _Atomic uint32_t buckets;
    _Atomic uint64_t live, evicted, refused;    /* figures */
};

struct slab {                           /* of one process */
    size_t stripes;
    size_t record;                      /* floats */
    size_t stride;                      /* bytes from a slot to the next one */
    size_t room;                        /* rows of a stripe */
    uint64_t unit_ns;                   /* of a row's age; 0: rows have none */
    struct slab_head *head;
    struct slab_stripe *stripe;         /* (stripes) */
    _Atomic uint32_t *buckets;          /* (room, stripes): 1 + a slot. Under the lock,
                                           but relaxed reads ask memory ahead */
    unsigned char *slots;               /* (room, stripes) of stride bytes */
};

/* A row that its caller has, or looks for, from slab_open to slab_close. */
struct slab_row {
    uint64_t id;
    size_t stripe;
    uint64_t now_ns;                    /* the caller's clock */
    float *record;                      /* NULL: it is not there */
    uint32_t slot, chain;               /* chain: rows that were looked at for it */
};

/* Bytes that such a slab needs at least. */
size_t slab_least(size_t stripes, size_t record);

/* Rows that each stripe has room for in so many bytes. */
size_t slab_room(size_t stripes, size_t record, size_t bytes);

/* Of a block that is zeroed, or that another process shares; all give the same numbers.
 * unused_ns: rows that are not used for so long may be evicted; 0: none for that. False:
 * another process began to prepare the block, and does not end. */
bool slab_place(struct slab *slab, size_t stripes, size_t record, uint64_t unused_ns,
                void *memory, size_t bytes);

/* Which bits of an id's hash a stripe's buckets use: the upper half. */
static inline uint32_t slab_hash(uint64_t id)
{
    return (uint32_t)(rng_mixed(id) >> 32);
}

/* Asks memory for the bucket of an id, and later for the first slot of its chain. */
void slab_ask_bucket(const struct slab *slab, size_t stripe, uint64_t id);
void slab_ask_slot(const struct slab *slab, size_t stripe, uint64_t id);

/* Sets row->record. A row that is there is used by that. */
void slab_open(const struct slab *slab, struct slab_row *row);
void slab_close(const struct slab *slab, const struct slab_row *row);
/* Of a row that is not there: its place, for the caller to fill; then slab_keep makes it
 * be there. Other rows may be evicted for it. */
float *slab_make(const struct slab *slab, struct slab_row *row);
void slab_keep(const struct slab *slab, struct slab_row *row);
/* Of a row that is there or not: the same, in that slot, below slab->room. So a stripe
 * that gets the rows of another one becomes its copy, and each row that is evicted there
 * goes here when its slot has another row. It evicts none for place, and finds its free
 * slots when it first makes a row by slab_make. */
float *slab_make_at(const struct slab *slab, struct slab_row *row, uint32_t slot);
/* Whether a row that is not there is to be made, with that probability. */
bool slab_admits(const struct slab *slab, const struct slab_row *row, double admit);

/* Where rows go: (n) of each array, but what is NULL. */
struct slab_some {
    size_t n;
    uint64_t *ids;
    uint32_t *slots;
    float *records;
    _Atomic uint64_t *only;             /* a bit for each slot, set under the lock: rows
                                           that have it, which is taken back */
};

/* Rows of a stripe from slot *at on, 0 at first: up to some->n of them. Returns how many;
 * fewer: there are no more. A row that is evicted meanwhile and made again may come
 * twice. */
size_t slab_next(const struct slab *slab, size_t stripe, size_t *at,
                 const struct slab_some *some);

/* Any time, by anybody: the sums over stripes. */
struct slab_figures {
    uint64_t live, evicted, refused;
    uint64_t bytes;                     /* of the block, up to the last slot in use */
};

struct slab_figures slab_figures(const struct slab *slab);

#endif
