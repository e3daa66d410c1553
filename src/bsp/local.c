/* SPDX-License-Identifier: MIT */
/* A local module of this process. Its segment may be an old one: then counts begin where
 * the old counts are, and a sum with a gradient on a model older than this run's first is
 * left out as a whole. Such sums were not taken when the last keeper died, or were
 * published by a module that had looked at the version before the segment changed
 * hands. A run that goes on in its own segment has none. */
#include "bsp/local.h"

#include "kernels/kernels.h"

#include <assert.h>
#include <string.h>

enum { NAME = 120 };

/* --- of any kind --- */

void local_close(struct local *local)
{
    if (local)
        local->kind->close(local);
}

void local_end(struct local *local)
{
    local->kind->end(local);
}

bool local_taken_over(const struct local *local)
{
    return local->kind->taken_over(local);
}

uint64_t local_version(const struct local *local)
{
    return local->kind->version(local);
}

void local_read_out(struct local *local, struct gradient *g, struct local_sums *sums)
{
    local->kind->read_out(local, g, sums);
}

float *local_next(struct local *local)
{
    return local->kind->next ? local->kind->next(local) : NULL;
}

void local_store(struct local *local, const float *model, uint64_t version,
                 uint64_t since)
{
    local->kind->store(local, model, version, since);
}

void local_figures(const struct local *local, struct local_figures *figures)
{
    local->kind->figures(local, figures);
}

uint64_t local_pending(const struct local *local)
{
    return local->kind->pending(local);
}

void local_figures_add(struct local_figures *sum, const struct local_figures *figures)
{
    sum->gradients += figures->gradients;
    sum->examples += figures->examples;
    sum->stale += figures->stale;
    sum->bad += figures->bad;
    sum->owners += figures->owners;
    sum->attached += figures->attached;
}

struct local_figures local_figures_of(struct local *const *locals, int n)
{
    struct local_figures all = {0}, one;
    for (int k = 0; k < n; k++) {
        local_figures(locals[k], &one);
        local_figures_add(&all, &one);
    }
    return all;
}

/* --- with a segment --- */

struct own {
    struct local head;
    struct segment *segment;
    bool taken_over;                        /* taken over, and nothing stored yet */
    uint64_t since;                         /* the run's first version */
    struct local_figures before;            /* figures when it was opened */
    /* room that was given for the next model, or NULL */
    float *next;
    uint64_t read;                          /* gradients committed at the last read-out */
    uint64_t not_finite[SEGMENT_SLOTS];     /* gradients whose sums had NaN or Inf */
    uint64_t bad[SEGMENT_SLOTS];            /* gradients that local_bad has told */
};

static const struct local_kind own_kind;

static struct own *own_of(struct local *local)
{
    assert(local->kind == &own_kind);
    return (struct own *)(void *)local;
}

static const struct own *own_in(const struct local *local)
{
    return (const struct own *)(const void *)local;
}

static struct segment_figures slot_figures(const struct own *own, int slot)
{
    struct segment_figures f;
    segment_figures(own->segment, slot, &f);
    f.bad += own->not_finite[slot];
    return f;
}

static struct local_figures all_figures(const struct own *own)
{
    struct local_figures all = {0};
    for (int s = 0; s < segment_slots(own->segment); s++) {
        struct segment_figures f = slot_figures(own, s);
        all.gradients += f.gradients;
        all.examples += f.examples;
        all.stale += f.stale;
        all.bad += f.bad;
        all.owners += f.owners;
        all.attached += f.pid != 0;
    }
    return all;
}

static void own_close(struct local *local)
{
    segment_close(own_of(local)->segment);
    memory_give(local);
}

static void own_end(struct local *local)
{
    segment_end(own_of(local)->segment);
}

static bool own_taken_over(const struct local *local)
{
    return own_in(local)->taken_over;
}

static uint64_t own_version(const struct local *local)
{
    uint64_t version;
    segment_model(own_in(local)->segment, &version);
    return version;
}

static void own_read_out(struct local *local, struct gradient *g, struct local_sums *sums)
{
    struct own *own = own_of(local);
    struct segment_taken taken;
    own->read = all_figures(own).gradients;
    for (int s = 0; s < segment_slots(own->segment); s++) {
        if (!segment_take(own->segment, s, &taken))
            continue;
        if (taken.oldest < own->since) {
            sums->undone += taken.gradients;
            continue;
        }
        if (!kernels_best()->finite(taken.values, segment_n(own->segment))) {
            own->not_finite[s] += taken.gradients;
            sums->not_finite += taken.gradients;
            continue;
        }
        gradient_take(g, taken.values);
        sums->gradients += taken.gradients;
        sums->examples += taken.examples;
        sums->lag += taken.lag;
        if (taken.lag_most > sums->lag_most)
            sums->lag_most = taken.lag_most;
    }
}

static float *own_next(struct local *local)
{
    struct own *own = own_of(local);
    own->next = segment_next(own->segment);
    return own->next;
}

static void own_store(struct local *local, const float *model, uint64_t version,
                      uint64_t since)
{
    struct own *own = own_of(local);
    float *next = own->next && model == own->next ? NULL : segment_next(own->segment);
    if (next)
        memcpy(next, model, segment_n(own->segment) * sizeof *model);
    segment_store(own->segment, version);
    own->next = NULL;
    /* what a segment had when it was taken over is undone also once a later model is
     * there */
    if (own->taken_over || since > own->since)
        own->since = since;
    own->taken_over = false;
}

static void own_figures(const struct local *local, struct local_figures *figures)
{
    const struct own *own = own_in(local);
    struct local_figures all = all_figures(own);
    *figures = (struct local_figures){
        .gradients = all.gradients - own->before.gradients,
        .examples = all.examples - own->before.examples,
        .stale = all.stale - own->before.stale,
        .bad = all.bad - own->before.bad,
        .owners = all.owners - own->before.owners,
        .attached = all.attached,
    };
}

static uint64_t own_pending(const struct local *local)
{
    return all_figures(own_in(local)).gradients - own_in(local)->read;
}

uint64_t local_bad(struct local *local, int *pid)
{
    struct own *own = own_of(local);
    for (int s = 0; s < segment_slots(own->segment); s++) {
        struct segment_figures f = slot_figures(own, s);
        uint64_t bad = f.bad - own->bad[s];
        own->bad[s] = f.bad;
        *pid = f.pid;
        if (bad)
            return bad;
    }
    return 0;
}

int local_sweep(struct local *local)
{
    return segment_sweep(own_of(local)->segment);
}

bool local_detached(const struct local *local)
{
    return segment_detached(own_in(local)->segment);
}

static const struct local_kind own_kind = {
    .close = own_close,
    .end = own_end,
    .taken_over = own_taken_over,
    .version = own_version,
    .read_out = own_read_out,
    .next = own_next,
    .store = own_store,
    .figures = own_figures,
    .pending = own_pending,
};

descant_status local_open(struct local **local, const struct segment_options *options)
{
    struct own *made = memory_take(sizeof *made);
    if (!made)
        return log_fail(options->log, DESCANT_MEMORY, "no memory for a local module");
    descant_status status = segment_open(&made->segment, options);
    if (status != DESCANT_OK) {
        memory_give(made);
        return status;
    }
    made->head.kind = &own_kind;
    made->taken_over = segment_taken_over(made->segment);
    made->since = options->version;
    made->before = all_figures(made);
    made->read = made->before.gradients;
    for (int s = 0; s < segment_slots(made->segment); s++)
        made->bad[s] = slot_figures(made, s).bad;
    segment_sweep(made->segment);
    *local = &made->head;
    return DESCANT_OK;
}

const char *local_name(const char *run, int number, char *text, size_t room)
{
    snprintf(text, room, "%s-%d", run, number);
    return text;
}

descant_status local_open_range(struct local **locals, int *opened,
                                const struct local_range *range,
                                struct segment_options o)
{
    char name[NAME];
    descant_status status = DESCANT_OK;
    for (int k = 0; k < range->n && status == DESCANT_OK; k++) {
        o.name = local_name(range->name, range->first + k, name, sizeof name);
        status = local_open(&locals[k], &o);
        *opened += status == DESCANT_OK;
    }
    if (status == DESCANT_DUPLICATE)
        log_say(o.log, DESCANT_ERROR,
                "another run has the name %s; --name gives this one another",
                range->name);
    return status;
}
