/* SPDX-License-Identifier: MIT */
/* An ML module of the BSP system: a process that computes gradients in its own way. It
 * adds them to memory that it shares with a local BSP module, for which it never waits.
 *
 *     struct descant_ml *ml;
 *     struct descant_ml_model model;
 *     if (descant_ml_attach(&ml, NULL, 60) != DESCANT_OK) …
 *     while (descant_ml_pin(ml, &model) == DESCANT_OK) {       until the job has ended
 *         gradient_of(model.values, batch, gradient);          the mean over the batch
 *         descant_ml_add(ml, gradient, batch_size);
 *     }
 *     descant_ml_detach(ml);
 *
 * A struct descant_ml belongs to one thread at a time; a process may have several. After
 * a fork the child's calls fail with FORKED. descant_last_error (descant.h) has the
 * message of a failure. docs/segment.md describes the memory itself, for other languages.
 */
#ifndef DESCANT_ML_H
#define DESCANT_ML_H

#include "descant.h"

#ifdef __cplusplus
extern "C" {
#endif

struct descant_ml;

/* Takes a slot of the segment. With name NULL the variable DESCANT_SEGMENT names the
 * segment. Waits up to wait_s for a segment that is not there yet, then returns TIMEOUT.
 * BAD_SIZE: living modules have all slots. */
DESCANT_API descant_status descant_ml_attach(struct descant_ml **ml, const char *name,
                                             double wait_s);

/* Gives the model and the slot back; committed gradients stay. NULL is allowed. */
DESCANT_API descant_status descant_ml_detach(struct descant_ml *ml);

/* The model's floats, and its parts (layers), which follow each other without gaps. part
 * returns INVALID if there is no i-th one. The name is valid until detach. */
struct descant_ml_part {
    const char *name;
    size_t first, n;
};

DESCANT_API size_t descant_ml_size(const struct descant_ml *ml);
DESCANT_API size_t descant_ml_parts(const struct descant_ml *ml);
DESCANT_API descant_status descant_ml_part(const struct descant_ml *ml, size_t i,
                                           struct descant_ml_part *part);

/* The newest model, read in place: values does not change until the next pin, unpin or
 * detach. ENDED: no other model will come. */
struct descant_ml_model {
    const float *values;
    uint64_t version;
};

DESCANT_API descant_status descant_ml_pin(struct descant_ml *ml,
                                          struct descant_ml_model *model);
DESCANT_API descant_status descant_ml_unpin(struct descant_ml *ml);

/* Adds a gradient on the model that was pinned last: the mean over so many examples. OK:
 * it counts once, even if this process dies now. A gradient may be refused, and then
 * counts as refused, and the slot is unchanged: STALE, its model is older than the job
 * allows; NOT_FINITE, it has NaN or Inf, or the sum would. ENDED: it came too late. */
DESCANT_API descant_status descant_ml_add(struct descant_ml *ml, const float *gradient,
                                          uint64_t examples);

/* The same in pieces. stage adds a piece to the floats from `first` on; floats without a
 * piece are zero. commit gives all pieces as one gradient, or refuses it; drop forgets
 * them. After either nothing is staged. The first stage takes memory for a gradient. */
DESCANT_API descant_status descant_ml_stage(struct descant_ml *ml, size_t first,
                                            const float *piece, size_t n);
DESCANT_API descant_status descant_ml_commit(struct descant_ml *ml, uint64_t examples);
DESCANT_API descant_status descant_ml_drop(struct descant_ml *ml);

struct descant_ml_stats {
    uint64_t gradients, examples;       /* committed */
    uint64_t stale, bad;                /* refused */
};

/* Since attach. */
DESCANT_API descant_status descant_ml_stats(struct descant_ml *ml,
                                            struct descant_ml_stats *out);

#ifdef __cplusplus
}
#endif
#endif
