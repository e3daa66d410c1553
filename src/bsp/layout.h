/* SPDX-License-Identifier: MIT */
/* The segment as docs/segment.md describes it, byte by byte: the memory that a local
 * module and its ML modules share. Places count from the object's beginning; words have
 * the machine's byte order. The keeper is the process of the local module; the owner of a
 * slot is an ML module's process. Both stand in the segment as numbers of process.h. */
#ifndef LAYOUT_H
#define LAYOUT_H

#include "base/base.h"

#define SEGMENT_MAGIC UINT64_C(0x0050534243534544)      /* "DESCBSP" */
#define SEGMENT_LINE _Alignas(64)

enum {
    SEGMENT_VERSION = 1,
    SEGMENT_SLOTS = 64,         /* at most */
    SEGMENT_PARTS = 65536,      /* at most */
    SEGMENT_PART_NAME = 112,    /* bytes, with the zero */
    SEGMENT_SUMS = 3,           /* of a slot: draining, committed, being written */
    SEGMENT_SLOT_BYTES = 512,   /* slots begin at multiples, so that none is on two
                                   pages */
    SEGMENT_ROUND = 4096        /* bytes; copies and sums begin at multiples */
};
#define SEGMENT_FLOATS ((uint64_t)1 << 40)              /* at most */

/* A piece of the model with a name, such as a layer. Parts follow each other without
 * gaps. */
struct segment_part {
    char name[SEGMENT_PART_NAME];
    uint64_t first, n;
};

/* Constant down to pid_namespace, once the object has its name. */
struct segment_header {
    uint64_t magic;
    uint32_t version, slots, copies, n_parts;
    uint64_t n;                                 /* floats of the model */
    uint64_t bytes;                             /* of the whole object */
    uint64_t parts_at, slots_at;
    uint64_t copies_at, copy_bytes;             /* copy c: copies_at + c copy_bytes */
    /* sum k of slot s: sums_at + (3 s + k) sum_bytes */
    uint64_t sums_at, sum_bytes;
    uint64_t pid_namespace;
    /* {version of the model 48, copy + 1 16}, never 0. The keeper stores, modules load;
     * sequentially consistent, as a Dekker pair with the pins. */
    SEGMENT_LINE _Atomic uint64_t newest;
    /* Versions that a gradient may be behind. The keeper sets; relaxed, a figure. */
    _Atomic uint64_t bound;
    /* Not 0: the job is over. The keeper sets it once; relaxed, for modules see it in
     * time. */
    _Atomic uint64_t ended;
    /* The keeper's process; taken from a dead one by compare-and-swap, acquire and
     * release. */
    _Atomic uint64_t keeper;
};

/* The bytes of the header that are constant. */
enum {
    SEGMENT_CONSTANT = offsetof(struct segment_header, pid_namespace) + sizeof(uint64_t)
};

/* The figures of a sum. The owner writes figures and sum while the sum is the one being
 * written; both read them while it is committed, the keeper while it is drained; ordered
 * by `flip`. */
struct segment_tally {
    SEGMENT_LINE uint64_t gradients;
    uint64_t examples;
    uint64_t oldest;            /* version of the model */
    uint64_t lag, lag_most;     /* versions that gradients were behind when they came:
                                   sum, most */
};

/* An ML module's slot. The tallies lie here, and not with the sums, so that taking a sum
 * touches no other page. */
struct segment_slot {
    /* 0: free. Set from 0, or from a dead owner, by compare-and-swap, set to 0 by the
     * owner; acquire and release. */
    _Alignas(SEGMENT_SLOT_BYTES) _Atomic uint64_t owner;
    /* 0: none; PIN_WANTED; or a value of `newest`, whose copy is not written. The owner
     * stores, and owner and keeper set it from PIN_WANTED by compare-and-swap;
     * sequentially consistent. */
    SEGMENT_LINE _Atomic uint64_t pin;
    /* The roles of the three sums, below. The owner publishes by compare-and-swap
     * (release: its sum is written), the keeper takes by one atomic AND (acquire;
     * release: the last sum is drained). */
    SEGMENT_LINE _Atomic uint64_t flip;
    /* Counted by owners: gradients committed and their examples, gradients refused as
     * stale and for NaN or Inf, and owners; relaxed, figures. */
    SEGMENT_LINE _Atomic uint64_t gradients;
    _Atomic uint64_t examples, stale, bad, owners;
    struct segment_tally tallies[SEGMENT_SUMS];
};

/* --- newest and pin --- */

#define PIN_WANTED UINT64_MAX

/* An earlier run's versions are at most so far ahead of this one's: supersteps not kept,
 * and a bound for each restart. */
#define VERSION_LEAP ((uint64_t)1 << 40)

static inline uint64_t newest_make(uint64_t version, unsigned copy)
{
    return version << 16 | (copy + 1);
}

static inline uint64_t newest_version(uint64_t word)
{
    return word >> 16;
}

static inline unsigned newest_copy(uint64_t word)
{
    return (unsigned)(word & 0xffff) - 1;
}

/* --- flip: {full 1, drained 2, committed 2 bits}, committed being the lowest ---
 *
 *   full       `committed` can be taken; `drained` is with the keeper; the third is being
 *              written
 *   not full   `committed` was taken and is with the keeper; the third is being written
 *
 * Only the owner makes the word full, only the keeper empties it. So the value that a
 * compare-and-swap expects cannot come back unseen, and the swap fails at most once in a
 * row. */

#define FLIP_FULL UINT64_C(16)
#define FLIP_FIRST UINT64_C(4)          /* nothing committed; 0 and 1 count as taken */

static inline unsigned flip_committed(uint64_t flip)
{
    return (unsigned)(flip & 3);
}

static inline unsigned flip_drained(uint64_t flip)
{
    return (unsigned)(flip >> 2 & 3);
}

static inline unsigned flip_writing(uint64_t flip)
{
    return 3 - flip_committed(flip) - flip_drained(flip);
}

/* The sum being written becomes the committed one. */
static inline uint64_t flip_published(uint64_t flip)
{
    unsigned drained = flip & FLIP_FULL ? flip_drained(flip) : flip_committed(flip);
    return flip_writing(flip) | drained << 2 | FLIP_FULL;
}

/* --- places --- */

/* Places, by a layout that no module can write where the segment's own is not trusted. */
static inline void *segment_place(struct segment_header *h, uint64_t at)
{
    return (char *)h + at;
}

static inline struct segment_part *segment_parts(struct segment_header *h)
{
    return (struct segment_part *)(void *)((char *)h + h->parts_at);
}

static inline struct segment_slot *segment_slot(struct segment_header *h, unsigned slot)
{
    return (struct segment_slot *)(void *)((char *)h + h->slots_at) + slot;
}

static inline float *segment_copy(struct segment_header *h, unsigned copy)
{
    return (float *)(void *)((char *)h + h->copies_at + copy * h->copy_bytes);
}

/* A sum of examples x mean gradient. */
static inline float *segment_sum(struct segment_header *h, unsigned slot, unsigned sum)
{
    return (float *)(void *)((char *)h + h->sums_at +
                             ((uint64_t)slot * SEGMENT_SUMS + sum) * h->sum_bytes);
}

#endif
