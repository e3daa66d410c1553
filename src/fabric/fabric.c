/* SPDX-License-Identifier: MIT */
/* The list of fabrics, the emulated link, and what the fabrics that live inside one process
 * (self, sim) share: named blocks of memory, and vectors read through their extents.
 *
 * A vector is flat but lies in pieces; vector_reach walks it as alternating runs, in an extent
 * (a pointer) or between two (NULL: zeros). Everything else here is a loop over such runs. */
#include "fabric/fabric.h"
#include "fabric/kernels.h"
#include "fabric/sim.h"

#include <math.h>
#include <string.h>

const struct fabric_type *const fabric_types[] = {&fabric_self, &fabric_shm, &fabric_sim, NULL};

size_t fabric_round_up(size_t n_floats)
{
    size_t page = machine_page() / sizeof(float);
    return (n_floats + page - 1) / page * page;
}

static uint64_t ns_of(double seconds)
{
    return seconds > 0 ? (uint64_t)(seconds * 1e9 + 0.5) : 0;
}

uint64_t link_mean_ns(const struct link *link, size_t n, int members)
{
    double k = members > 0 ? members : 1;
    double bytes = 2.0 * (k - 1) / k * (double)n * sizeof(float);
    return ns_of((link->rate > 0 ? bytes / link->rate : 0) + 2 * link->rtt);
}

uint64_t link_busy_ns(const struct link *link, size_t n)
{
    return ns_of(link->rate > 0 ? (double)n * sizeof(float) / link->rate : 0);
}

descant_status exchange_check(const struct exchange *x, const struct limits *limits,
                              const struct log *log)
{
    size_t most = x->kind == EXCHANGE_MEAN ? limits->room : limits->n;

    if (!limits->started)
        return log_fail(log, DESCANT_ORDER, "an exchange before start");
    if (!limits->had_state && x->kind != EXCHANGE_STATE && !x->final)
        return log_fail(log, DESCANT_ORDER, "the first exchange after start is the state");
    if (x->n > most)
        return log_fail(log, DESCANT_INVALID, "an exchange of %zu floats, room for %zu", x->n,
                        most);
    if (x->kind == EXCHANGE_MEAN && !(x->weight >= 0 && isfinite(x->weight)))
        return log_fail(log, DESCANT_INVALID, "%g is no weight", x->weight);
    if (x->kind == EXCHANGE_ELASTIC && (!limits->center || x->final))
        return log_fail(log, DESCANT_INVALID, "an elastic exchange without a centre");
    return DESCANT_OK;
}

void *block_take(struct block **list, const char *name, size_t at, size_t bytes)
{
    size_t length = name ? strlen(name) : 0;
    if (length >= SIZE_MAX - sizeof(struct block) - 1)
        return NULL;
    struct block *block = memory_take(sizeof *block + length + 1);
    if (!block)
        return NULL;
    block->memory = memory_take(bytes ? bytes : 1);
    if (!block->memory) {
        memory_give(block);
        return NULL;
    }
    if (length)
        memcpy(block->name, name, length);
    block->at = at;
    block->bytes = bytes;
    block->next = *list;
    *list = block;
    return block->memory;
}

struct block *block_find(struct block *list, const char *name)
{
    while (list && strcmp(list->name, name))
        list = list->next;
    return list;
}

void blocks_give(struct block **list)
{
    while (*list) {
        struct block *block = *list;
        *list = block->next;
        memory_give(block->memory);
        memory_give(block);
    }
}

size_t vector_reach(const struct vector *v, size_t at, const float **p)
{
    *p = NULL;
    for (size_t i = 0; i < v->n_extents; i++) {
        const struct extent *e = &v->extents[i];
        if (at < e->at)
            return e->at - at;
        if (at - e->at < e->n) {
            *p = e->p + (at - e->at);
            return e->n - (at - e->at);
        }
    }
    return SIZE_MAX;
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

bool vector_gather(const struct vector *v, size_t n, float *out)
{
    bool finite = true;
    for (size_t at = 0, run; at < n; at += run) {
        const float *p;
        run = least(vector_reach(v, at, &p), n - at);
        if (!p)
            memset(out + at, 0, run * sizeof *out);
        else if (!kernels_best()->copy(out + at, p, run))
            finite = false;
    }
    return finite;
}

bool vector_finite(const struct vector *v, size_t n)
{
    for (size_t at = 0, run; at < n; at += run) {
        const float *p;
        run = least(vector_reach(v, at, &p), n - at);
        if (p && !kernels_best()->finite(p, run))
            return false;
    }
    return true;
}

void vector_elastic(float *W, const struct vector *v, const struct chunk *chunk, float alpha,
                    float *out)
{
    for (size_t i = 0, run; i < chunk->n; i += run) {
        const float *p;
        run = least(vector_reach(v, chunk->from + i, &p), chunk->n - i);
        if (p)
            kernels_best()->elastic(W + chunk->from + i, p, out + i, alpha, run);
        else
            memset(out + i, 0, run * sizeof *out);
    }
}
