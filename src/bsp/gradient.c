/* SPDX-License-Identifier: MIT */
/* A vector was drained and finite when it was taken, but a broken module can still write
 * to it. So each block is copied before it is tested and added, and a block with NaN or
 * Inf counts as zeros. */
#include "bsp/gradient.h"

#include "base/base.h"
#include "kernels/kernels.h"

#include <string.h>

enum { BLOCK = 4096 };

bool gradient_init(struct gradient *g, float *sum, size_t n, int room)
{
    *g = (struct gradient){.sum = sum, .n = n, .room = room + 1};
    g->from = memory_take_array((size_t)g->room, sizeof *g->from);
    return g->from != NULL;
}

void gradient_fini(struct gradient *g)
{
    memory_give(g->from);
    g->from = NULL;
}

void gradient_clear(struct gradient *g)
{
    g->n_from = 0;
}

/* Adds block by block, so that the sum stays in the cache until its last vector is
 * added. */
void gradient_gather(struct gradient *g)
{
    const struct kernels *kernels = kernels_best();
    const bool begun = g->n_from > 0 && g->from[0] == g->sum;
    float block[BLOCK];
    for (size_t at = 0, m; at < g->n && g->n_from > begun; at += m) {
        m = g->n - at < BLOCK ? g->n - at : BLOCK;
        if (!begun && !kernels->copy(g->sum + at, g->from[0] + at, m))
            memset(g->sum + at, 0, m * sizeof *g->sum);
        for (int k = 1; k < g->n_from; k++)
            if (kernels->copy(block, g->from[k] + at, m))
                kernels->add(g->sum + at, block, 1, m);
    }
    g->from[0] = g->sum;
    g->n_from = g->n_from > 0;
}

void gradient_take(struct gradient *g, const float *values)
{
    if (g->n_from == g->room)
        gradient_gather(g);
    g->from[g->n_from++] = values;
}

void gradient_add(struct gradient *g, const float *values)
{
    gradient_take(g, values);
    gradient_gather(g);
}
