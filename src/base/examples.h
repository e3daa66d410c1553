/* SPDX-License-Identifier: MIT */
/* Examples as the readers make them and the models take them: arrays side by side, no
 * copies in between. Part of a block is a batch: examples_slice moves the pointers. */
#ifndef BASE_EXAMPLES_H
#define BASE_EXAMPLES_H

#include <stddef.h>
#include <stdint.h>

struct examples {
    size_t n;
    int n_dense, n_fields;
    const float *dense;         /* (n, n_dense) */
    const uint32_t *ids;        /* hashed to 32 bits, or plain indexes
                                   (data_shape.plain_ids) */
    const uint32_t *offsets;    /* (n * n_fields + 1) into ids and values: the bag of
                                   field f of example i begins at [i * n_fields + f] and
                                   ends where the next begins. NULL: each bag is one id,
                                   ids[i * n_fields + f] */
    const float *values;        /* one an id; NULL: all 1 */
    const float *labels;        /* (n): 0 or 1, or the number of the class */
};

/* Examples [from, from + n). */
static inline struct examples examples_slice(const struct examples *all, size_t from,
                                             size_t n)
{
    struct examples part = *all;
    part.n = n;
    part.dense = all->dense ? all->dense + from * (size_t)all->n_dense : NULL;
    part.labels = all->labels ? all->labels + from : NULL;
    if (all->offsets)
        part.offsets = all->offsets + from * (size_t)all->n_fields;
    else if (all->ids) {
        part.ids = all->ids + from * (size_t)all->n_fields;
        part.values = all->values ? all->values + from * (size_t)all->n_fields : NULL;
    }
    return part;
}

#endif
