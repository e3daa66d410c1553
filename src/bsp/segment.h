/* SPDX-License-Identifier: MIT */
/* A segment as its keeper, a local module, has it: stores models, takes sums of
 * gradients. One thread at a time; nothing here waits for an ML module.
 * include/descant_ml.h is the other side.
 *
 * ML modules can write all of it. A keeper that finds what the protocol does not allow
 * detaches the segment: it says so, tells the modules that the job is over, takes the
 * name away, and from then on the segment has nothing to take, nowhere to store, and the
 * figures it had. */
#ifndef SEGMENT_H
#define SEGMENT_H

#include "bsp/layout.h"

struct segment;

struct segment_options {
    const char *name;
    int slots;                          /* ML modules at once, 1 to SEGMENT_SLOTS */
    uint64_t bound;                     /* versions that a gradient may be behind; 0:
                                           none */
    const struct segment_part *parts;   /* name and n of each; first is not looked at */
    uint32_t n_parts;
    const float *model;                 /* the first one, and its version */
    uint64_t version;
    const struct log *log;
    /* NULL: a shared memory object of that name. Else the caller's segment_bytes, zero at
     * first, at a multiple of SEGMENT_ROUND, which outlive the segment; the name is for
     * messages alone. */
    void *memory;
};

/* What the segment takes; 0, after saying why: it cannot be. */
uint64_t segment_bytes(const struct segment_options *options);

/* A new segment with its first model; or the one that a keeper which died has left, if it
 * is of the same shape: then with its models, its sums and the modules that are attached.
 * One of another shape is ended and replaced. DUPLICATE: its keeper lives. */
descant_status segment_open(struct segment **segment,
                            const struct segment_options *options);
bool segment_taken_over(const struct segment *segment);
bool segment_detached(const struct segment *segment);

/* Tells the modules that the job is over. Sums can still be taken. */
void segment_end(struct segment *segment);

/* Ends it, and takes away its name. NULL is allowed. */
void segment_close(struct segment *segment);

uint64_t segment_n(const struct segment *segment);
int segment_slots(const struct segment *segment);

/* --- models --- */

/* The newest, as it was stored; valid until the segment_next that follows the next store.
 * Modules may have written to the floats. */
const float *segment_model(const struct segment *segment, uint64_t *version);

/* A copy that nobody reads, to be written, and stored as the newest. Versions are below
 * 2^47 and grow. NULL: it is detached. */
float *segment_next(struct segment *segment);
void segment_store(struct segment *segment, uint64_t version);

/* --- gradients --- */

struct segment_taken {
    const float *values;                /* sum of examples x mean gradient */
    uint64_t gradients, examples;
    uint64_t oldest;                    /* version of the model */
    uint64_t lag, lag_most;             /* versions behind when they came: sum, most */
};

/* The sum that was committed in a slot since it was last taken, valid until this slot is
 * taken again; false: nothing. A sum that a keeper has taken is lost if it dies. The
 * values may be anything, and change. */
bool segment_take(struct segment *segment, int slot, struct segment_taken *taken);

struct segment_figures {
    uint64_t gradients, examples, stale, bad;   /* of all that had the slot */
    uint64_t owners;                            /* so many */
    int pid;                                    /* of who has it; 0: nobody */
};

void segment_figures(struct segment *segment, int slot, struct segment_figures *figures);

/* Frees the slots, and the models they had pinned, of modules that died; how many. What
 * they had committed stays to be taken. A module that attaches does so too, for the slot
 * it takes. */
int segment_sweep(struct segment *segment);

/* For an ML module in this process, a thread: the memory to attach to (ml.h). */
struct segment_header *segment_memory(struct segment *segment);

#endif
