/* SPDX-License-Identifier: MIT */
/* A group of members that encode a mean, by the calls of wire.h, from the rule in
 * docs/wire.md. */
#ifndef HARNESS_WIRE_H
#define HARNESS_WIRE_H

#include "kernels/wire.h"

enum { N = 9 * WIRE_BLOCK + 37, MEMBERS = 5 };

extern const enum wire wires[2];

struct group {
    enum wire wire;
    int k;
    double share[MEMBERS];
    float x[MEMBERS][N], r[MEMBERS][N], R[N], c[N];
};

/* The mean of k vectors of any length: (k) shares, x and r; R may be c. sent: n
 * floats. */
struct long_group {
    enum wire wire;
    int k;
    size_t n;
    const double *share;
    float *x[MEMBERS], *r[MEMBERS], *R, *c, *sent;
};

void long_group_mean(const struct long_group *g);
void group_mean(struct group *g);

#endif
