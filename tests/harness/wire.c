/* SPDX-License-Identifier: MIT */
/* Means by the rule in docs/wire.md, without a fabric. */
#include "harness/wire.h"

const enum wire wires[2] = {WIRE_BF16, WIRE_Q8};

void long_group_mean(const struct long_group *g)
{
    for (int j = 0; j < g->k; j++) {
        size_t from = wire_slice(g->n, g->k, j), n = wire_slice(g->n, g->k, j + 1) - from;
        struct wire_part own = {g->wire, n, g->x[j] + from, g->R + from, g->r[j] + from,
                                g->share[j]};
        if (g->share[j] > 0)
            wire_own(&own);
        for (int i = 0; i < g->k; i++) {
            struct wire_part part = {
                g->wire, n, g->x[i] + from, g->R + from, g->r[i] + from, g->share[i]};
            if (i == j || !(g->share[i] > 0))
                continue;
            wire_send(&part, g->sent);
            wire_add(&own, g->sent, g->share[i]);
        }
        wire_settle(&own, g->sent);
        wire_take(g->wire, g->c + from, g->R + from, g->sent, n);
    }
}

void group_mean(struct group *g)
{
    static float sent[N];
    struct long_group all = {g->wire,   g->k,      N,           g->share,
                             .R = g->R, .c = g->c, .sent = sent};
    for (int i = 0; i < g->k; i++) {
        all.x[i] = g->x[i];
        all.r[i] = g->r[i];
    }
    long_group_mean(&all);
}
