/* SPDX-License-Identifier: MIT */
/* Supersteps, as the rule has them:
 *
 *   A = sum of the sums, e = sum of their examples;  if there are enough gradients:
 *   model <- optimizer(model, A / e);  version += 1;  store it in every segment
 *
 *   1. What is read out is stepped by exactly once: it stays in A until a step takes it.
 *   2. A version is stored once in each segment, in the order of their numbers; they grow in a
 *      segment whatever run it is of. A run that goes on from a checkpoint finds segments with
 *      models of the supersteps that are undone: its first version is so far above theirs that
 *      the bound refuses every gradient on them.
 *   3. A model with NaN or Inf is never stored.
 *
 * Modules are never waited for: reading out is one atomic a slot, storing a copy a segment. */
#include "bsp/control.h"

#include "bsp/gradient.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

struct control {
    struct control_options o;
    uint64_t since;                 /* the run's first version */
    float *sum;                     /* (n) A */
    struct local_sums sums;         /* what it is made of */
    uint64_t committed;             /* the locals' count at the last read-out */
};

static uint64_t committed(const struct control *c)
{
    uint64_t all = 0;
    for (int k = 0; k < c->o.n_locals; k++) {
        struct local_figures f;
        local_figures(c->o.locals[k], &f);
        all += f.gradients;
    }
    return all;
}

static void store(struct control *c)
{
    for (int k = 0; k < c->o.n_locals; k++)
        local_store(c->o.locals[k], c->o.w, c->o.version, c->since);
}

static void begin_above(struct control *c)
{
    bool any = false;
    for (int k = 0; k < c->o.n_locals; k++) {
        uint64_t above = local_version(c->o.locals[k]) + c->o.bound + 1;
        if (!local_taken_over(c->o.locals[k]))
            continue;
        any = true;
        if (c->o.version < above)
            c->o.version = above;
    }
    c->since = c->o.version;
    if (any)
        store(c);
}

descant_status control_create(struct control **control, const struct control_options *options)
{
    struct control *made = memory_take(sizeof *made);
    float *sum = memory_take_array(options->n, sizeof *sum);
    if (!made || !sum) {
        memory_give(made);
        memory_give(sum);
        return log_fail(options->log, DESCANT_MEMORY, "no memory for a gradient of %zu floats",
                        options->n);
    }
    made->o = *options;
    made->sum = sum;
    begin_above(made);
    *control = made;
    return DESCANT_OK;
}

void control_destroy(struct control *c)
{
    if (!c)
        return;
    memory_give(c->sum);
    memory_give(c);
}

static void forget(struct control *c)
{
    memset(c->sum, 0, c->o.n * sizeof *c->sum);
    c->sums = (struct local_sums){0};
}

/* False: the sum is left out. */
static bool make_gradient(struct control *c, double *norm)
{
    *norm = sqrt(gradient_mean(c->sum, (double)c->sums.examples, c->o.n));
    if (!isfinite(*norm)) {
        log_say(c->o.log, DESCANT_WARNING, "the sum of %" PRIu64 " gradients is more than a float "
                "holds: they are left out", c->sums.gradients);
        return false;
    }
    if (c->o.clip > 0 && *norm > c->o.clip)
        gradient_scale(c->sum, (float)(c->o.clip / *norm), c->o.n);
    return true;
}

static descant_status step(struct control *c)
{
    c->o.steps++;
    c->o.step(c->o.of, c->o.w, c->sum, c->o.steps);
    size_t bad = gradient_first_bad(c->o.w, c->o.n);
    if (bad < c->o.n)
        return log_fail(c->o.log, DESCANT_NOT_FINITE,
                        "step %" PRIu64 " has made the model's float %zu %s", c->o.steps, bad,
                        isnan(c->o.w[bad]) ? "NaN" : "Inf");
    c->o.version++;
    store(c);
    return DESCANT_OK;
}

descant_status control_superstep(struct control *c, struct superstep *superstep)
{
    descant_status status = DESCANT_OK;
    c->committed = committed(c);
    for (int k = 0; k < c->o.n_locals; k++)
        local_read_out(c->o.locals[k], c->sum, &c->sums);
    *superstep = (struct superstep){.sums = c->sums, .norm = NAN};
    if (c->sums.gradients == 0 || c->sums.gradients < c->o.min_gradients)
        return DESCANT_OK;
    if (make_gradient(c, &superstep->norm)) {
        status = step(c);
        superstep->stepped = status == DESCANT_OK;
    }
    forget(c);
    return status;
}

uint64_t control_pending(const struct control *c)
{
    return c->sums.gradients + committed(c) - c->committed;
}

uint64_t control_version(const struct control *c)
{
    return c->o.version;
}

uint64_t control_steps(const struct control *c)
{
    return c->o.steps;
}
