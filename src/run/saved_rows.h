/* SPDX-License-Identifier: MIT */
/* The rows of a checkpoint whose tables grow, to be read and not trained. They stay in
 * its files, which are mapped: an index of 12 to 24 bytes a row finds them. A row that is not
 * there has the first values that follow from the seed, as in the run. Nothing changes
 * once it is open, so any threads may read. */
#ifndef RUN_SAVED_ROWS_H
#define RUN_SAVED_ROWS_H

#include "run/checkpoint.h"

struct saved_rows;

/* c->file stays the caller's, and open for as long. */
descant_status saved_rows_open(struct saved_rows **out, const struct checkpoint *c,
                               const struct model *model,
                               const struct optimizer *optimizer);
void saved_rows_close(struct saved_rows *s);

size_t saved_rows_count(const struct saved_rows *s);
/* All their numbers, ascending, into (saved_rows_count). */
void saved_rows_sorted(const struct saved_rows *s, uint64_t *rows);
/* A row's values, and its state, which is NULL where the optimizer has none; NULL: it is
 * not there. */
const float *saved_rows_at(const struct saved_rows *s, uint64_t row, const float **state);

/* One thread's: the rows of a batch, as model_scores wants them of work_on_blocks. */
struct saved_block {
    const struct saved_rows *of;
    float *rows;                /* (room) floats */
    size_t room;
};

/* Valid until the next call. NULL: no memory. */
const float *saved_block_fill(struct saved_block *b, struct work *work,
                              const struct examples *batch);
void saved_block_fini(struct saved_block *b);

#endif
