/* SPDX-License-Identifier: MIT */
/* A group of members that encode a mean, by the calls of wire.h, from the rule in docs/wire.md. */
#ifndef WIRE_GROUP_H
#define WIRE_GROUP_H

#include "kernels/wire.h"

enum { N = 9 * WIRE_BLOCK + 37, MEMBERS = 5 };

static const enum wire wires[] = {WIRE_BF16, WIRE_Q8};

struct group {
    enum wire wire;
    int k;
    double share[MEMBERS];
    float x[MEMBERS][N], r[MEMBERS][N], R[N], c[N];
};

/* The mean of k vectors of any length: (k) shares, x and r; R may be c. sent: n floats. */
struct long_group {
    enum wire wire;
    int k;
    size_t n;
    const double *share;
    float *x[MEMBERS], *r[MEMBERS], *R, *c, *sent;
};

static inline void long_group_mean(const struct long_group *g)
{
    for (int j = 0; j < g->k; j++) {
        size_t from = wire_slice(g->n, g->k, j), n = wire_slice(g->n, g->k, j + 1) - from;
        struct wire_part own = {g->wire, n, g->x[j] + from, g->R + from, g->r[j] + from,
                                g->share[j]};
        if (g->share[j] > 0)
            wire_own(&own);
        for (int i = 0; i < g->k; i++) {
            struct wire_part part = {g->wire, n, g->x[i] + from, g->R + from, g->r[i] + from,
                                     g->share[i]};
            if (i == j || !(g->share[i] > 0))
                continue;
            wire_send(&part, g->sent);
            wire_add(&own, g->sent, g->share[i]);
        }
        wire_settle(&own, g->sent);
        wire_take(g->wire, g->c + from, g->R + from, g->sent, n);
    }
}

static inline void group_mean(struct group *g)
{
    static float sent[N];
    struct long_group all = {g->wire, g->k, N, g->share, .R = g->R, .c = g->c, .sent = sent};
    for (int i = 0; i < g->k; i++) {
        all.x[i] = g->x[i];
        all.r[i] = g->r[i];
    }
    long_group_mean(&all);
}

#endif
