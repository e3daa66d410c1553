/* SPDX-License-Identifier: MIT */
/* A sum of vectors that is made only where it must be: while the vectors stay in place,
 * the sum is a list of them. One thread. */
#ifndef GRADIENT_H
#define GRADIENT_H

#include <stdbool.h>
#include <stddef.h>

struct gradient {
    float *sum;                     /* (n) the caller's, for vectors that are added up */
    size_t n;
    const float **from;             /* the terms, of which `sum` may be the first */
    int n_from, room;
};

/* room: the most vectors that stay in place. False: no memory. */
bool gradient_init(struct gradient *g, float *sum, size_t n, int room);
void gradient_fini(struct gradient *g);
void gradient_clear(struct gradient *g);

/* takes a vector, which must stay until the sum is gathered or cleared */
void gradient_take(struct gradient *g, const float *values);
/* the vector may go afterwards */
void gradient_add(struct gradient *g, const float *values);
void gradient_gather(struct gradient *g);       /* adds all vectors up in `sum`: they may
                                                   go */

#endif
