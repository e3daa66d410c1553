/* SPDX-License-Identifier: MIT */
/* A group of members that encode a mean, by the calls of wire.h, from the rule in docs/wire.md. */
#ifndef WIRE_GROUP_H
#define WIRE_GROUP_H

#include "fabric/wire.h"

enum { N = 9 * WIRE_BLOCK + 37, MEMBERS = 5 };

static const enum wire wires[] = {WIRE_BF16, WIRE_Q8};

struct group {
    enum wire wire;
    int k;
    double share[MEMBERS];
    float x[MEMBERS][N], r[MEMBERS][N], R[N], c[N];
};

static inline void group_mean(struct group *g)
{
    static float sent[N];
    for (int j = 0; j < g->k; j++) {
        size_t from = wire_slice(N, g->k, j), n = wire_slice(N, g->k, j + 1) - from;
        struct wire_part own = {g->wire, n, g->x[j] + from, g->R + from, g->r[j] + from,
                                g->share[j]};
        if (g->share[j] > 0)
            wire_own(&own);
        for (int i = 0; i < g->k; i++) {
            struct wire_part part = {g->wire, n, g->x[i] + from, g->R + from, g->r[i] + from,
                                     g->share[i]};
            if (i == j || !(g->share[i] > 0))
                continue;
            wire_send(&part, sent);
            wire_add(&own, sent, g->share[i]);
        }
        wire_settle(&own, sent);
        wire_take(g->wire, g->c + from, g->R + from, sent, n);
    }
}

#endif
