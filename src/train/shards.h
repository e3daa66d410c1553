/* SPDX-License-Identifier: MIT */
/* The rows that have owners, in the checkpoints of a run. */
#ifndef TRAIN_SHARDS_H
#define TRAIN_SHARDS_H

#include "run/shards.h"

struct trainer;

/* Before start: what several ranks need to make checkpoints. */
descant_status shards_declare(struct trainer *t);
/* Then, once it is known whether the run goes on from a checkpoint. */
descant_status shards_before(struct trainer *t);
/* After start: the rows of the checkpoint that this run goes on from, if it does.
 * *generation: of the checkpoint, or 0. */
descant_status shards_read(struct trainer *t, uint64_t *generation);
/* Once all ranks of the start have theirs. */
descant_status shards_after(struct trainer *t);
/* Then: ready to save; what a killed run has left is removed. */
descant_status shards_begin(struct trainer *t);

/* Writes all shards of a new generation, for the first host's FILE. s->rows is valid
 * until the next call. */
descant_status shards_save(struct trainer *t, struct shards *s);
/* After FILE was written, or has failed: shards that no file names are removed, also
 * those of a run before whose rows had owners. Whole shards of a generation above all
 * that files name, as a killed run may leave, go after the next save. */
void shards_saved(struct trainer *t);

#endif
