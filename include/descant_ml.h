/* SPDX-License-Identifier: MIT */
/* An ML module of the BSP system: a process that computes gradients in its own way, and gives
 * them through memory shared with a local BSP module, which it never waits for.
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
 * A struct descant_ml belongs to one thread at a time; a process may have several. After a fork
 * the child's calls fail with FORKED. Failures are told by descant_last_error (descant.h).
 * docs/segment.md has the memory itself, for other languages. */
#ifndef DESCANT_ML_H
#define DESCANT_ML_H

#include "descant.h"

#ifdef __cplusplus
extern "C" {
#endif

struct descant_ml;

/* Takes a slot of the segment; NULL: the one that the variable DESCANT_SEGMENT names. Waits up to
 * wait_s for a segment that is not there yet (TIMEOUT). BAD_SIZE: all slots are taken by modules
 * that live. */
DESCANT_API descant_status descant_ml_attach(struct descant_ml **ml, const char *name,
                                             double wait_s);

/* Lets the model and the slot go; what was committed stays. NULL is allowed. */
DESCANT_API descant_status descant_ml_detach(struct descant_ml *ml);

/* The model's floats, and its parts (layers): they follow each other without gaps. part: INVALID
 * where there is no i-th one. The name is valid until detach. */
struct descant_ml_part {
    const char *name;
    size_t first, n;
};

DESCANT_API size_t descant_ml_size(const struct descant_ml *ml);
DESCANT_API size_t descant_ml_parts(const struct descant_ml *ml);
DESCANT_API descant_status descant_ml_part(const struct descant_ml *ml, size_t i,
                                           struct descant_ml_part *part);

/* The newest model, read where it is: values does not change until the next pin, unpin or detach.
 * ENDED: there will be no more of them. */
struct descant_ml_model {
    const float *values;
    uint64_t version;
};

DESCANT_API descant_status descant_ml_pin(struct descant_ml *ml, struct descant_ml_model *model);
DESCANT_API descant_status descant_ml_unpin(struct descant_ml *ml);

/* A gradient on the model that was pinned last: the mean over so many examples. OK: it is counted
 * once, whatever becomes of this process. Refused and counted as such: STALE, the model is older
 * than the job allows; NOT_FINITE, it has NaN or Inf, or the sum would; the slot is as it was.
 * ENDED: it came too late. */
DESCANT_API descant_status descant_ml_add(struct descant_ml *ml, const float *gradient,
                                          uint64_t examples);

/* The same in pieces: stage adds a piece to the floats from `first` on, what is not staged is
 * zero, commit gives them all as one gradient, or refuses it, and drop forgets them; after either
 * nothing is staged. The first stage takes memory for a gradient. */
DESCANT_API descant_status descant_ml_stage(struct descant_ml *ml, size_t first,
                                            const float *piece, size_t n);
DESCANT_API descant_status descant_ml_commit(struct descant_ml *ml, uint64_t examples);
DESCANT_API descant_status descant_ml_drop(struct descant_ml *ml);

struct descant_ml_stats {
    uint64_t gradients, examples;       /* committed */
    uint64_t stale, bad;                /* refused */
};

/* Since attach. */
DESCANT_API descant_status descant_ml_stats(struct descant_ml *ml, struct descant_ml_stats *out);

#ifdef __cplusplus
}
#endif
#endif
