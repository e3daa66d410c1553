/* SPDX-License-Identifier: MIT */
/* A segment from its keeper's side: a local module stores models and takes sums of
 * gradients. One thread at a time; nothing here waits for an ML module.
 * include/descant_ml.h is the other side.
 *
 * ML modules can write all of it. A keeper that finds a word which the protocol does not
 * allow detaches the segment: it logs that, tells the modules that the job is over, and
 * removes the name. From then on the segment has no sums and no room for models, and
 * keeps its figures. */
#ifndef SEGMENT_H
#define SEGMENT_H

#include "bsp/layout.h"

struct segment;

struct segment_options {
    const char *name;
    int slots;                          /* ML modules at once, 1 to SEGMENT_SLOTS */
    uint64_t bound;                     /* versions that a gradient may be behind; 0:
                                           none */
    const struct segment_part *parts;   /* name and n of each; `first` is not read */
    uint32_t n_parts;
    const float *model;                 /* the first model, and its version */
    uint64_t version;
    const struct log *log;
    /* NULL: the segment is a shared memory object of that name. Else the caller's
     * segment_bytes, zero at first, at a multiple of SEGMENT_ROUND, which outlive the
     * segment; the name is for messages alone. */
    void *memory;
};

/* The bytes of the segment; 0, after logging why: there cannot be such a segment. */
uint64_t segment_bytes(const struct segment_options *options);

/* Makes a new segment with its first model, or takes over the segment of a dead keeper,
 * if that has the same shape: with its models, its sums and its attached modules. A
 * segment of another shape is ended and replaced. DUPLICATE: its keeper lives. */
descant_status segment_open(struct segment **segment,
                            const struct segment_options *options);
bool segment_taken_over(const struct segment *segment);
bool segment_detached(const struct segment *segment);

/* Tells the modules that the job is over. Sums can still be taken. */
void segment_end(struct segment *segment);

/* Ends the segment, and removes its name. NULL is allowed. */
void segment_close(struct segment *segment);

uint64_t segment_n(const struct segment *segment);
int segment_slots(const struct segment *segment);

/* --- models --- */

/* The newest model, valid until the segment_next that follows the next store. Modules may
 * have written to the floats. */
const float *segment_model(const struct segment *segment, uint64_t *version);

/* A copy that no module reads, to be written, and stored as the newest by segment_store.
 * Versions are below 2^47 and grow. NULL: the segment is detached. */
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
 * values may be any bits, and change. */
bool segment_take(struct segment *segment, int slot, struct segment_taken *taken);

struct segment_figures {
    uint64_t gradients, examples, stale, bad;   /* of all owners of the slot */
    uint64_t owners;                            /* owners so far */
    int pid;                                    /* of the present owner; 0: none */
};

void segment_figures(struct segment *segment, int slot, struct segment_figures *figures);

/* Frees the slots of modules that died, and the models that they had pinned; returns how
 * many. Committed sums stay to be taken. A module that attaches does the same for the
 * slot that it takes. */
int segment_sweep(struct segment *segment);

/* For an ML module in this process, a thread: the memory to attach to (ml.h). */
struct segment_header *segment_memory(struct segment *segment);

#endif
