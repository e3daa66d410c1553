/* SPDX-License-Identifier: MIT */
/* A sum of vectors that is made only where it must be: as long as what it is the sum of
 * stays where it was taken, it is a list of that. One thread. */
#ifndef GRADIENT_H
#define GRADIENT_H

#include <stdbool.h>
#include <stddef.h>

struct gradient {
    float *sum;                     /* (n), the caller's, for what is added up */
    size_t n;
    const float **from;             /* it is the sum of these, of which `sum` may be the
                                       first */
    int n_from, room;
};

/* room: for so many vectors that stay. False: no memory. */
bool gradient_init(struct gradient *g, float *sum, size_t n, int room);
void gradient_fini(struct gradient *g);
void gradient_clear(struct gradient *g);

/* which stay until the next two */
void gradient_take(struct gradient *g, const float *values);
void gradient_add(struct gradient *g, const float *values); /* which may go afterwards */
void gradient_gather(struct gradient *g);       /* into sum: all that was taken may go */

#endif
