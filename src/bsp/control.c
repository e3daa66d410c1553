/* SPDX-License-Identifier: MIT */
/* Supersteps, by this rule:
 *
 *   A = sum of the sums, e = sum of their examples;  if there are enough gradients:
 *   model <- optimizer(model, A / e);  version += 1;  store it in every segment
 *
 *   1. A sum that is read out is in exactly one step: it stays in A until a step takes
 *      it.
 *   2. Versions are stored once in each segment, in the order of their numbers, which
 *      grow in a segment across runs. A run that goes on from a checkpoint finds segments
 *      with models of the supersteps that are undone: its first version is so far above
 *      theirs that the bound refuses every gradient on them.
 *   3. A model with NaN or Inf is never stored.
 *
 *   4. A sum that has been read out stays in memory that its module can write, so each
 *      piece is tested again: a piece that is no longer finite counts as zeros, as does
 *      one whose file was cut short (guard.c). A module that does so harms its own
 *      gradients.
 *
 * Modules are never waited for: reading out is one atomic a slot, storing a copy a
 * segment. The cost of a superstep is memory's way through the caches, so there are two
 * passes over the slots' sums: one tests whether A is finite, and one takes a piece of A
 * through the mean, the optimizer, the test for NaN and into the segments before it goes
 * to the next piece. Where there are many sums, A is made first. */
#include "bsp/control.h"

#include "kernels/kernels.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { PIECE = 4096, FEW = 2, PAST_CACHES = 4 << 20 };      /* floats; sums; floats */

struct control {
    struct control_options o;
    const struct kernels *kernels;
    uint64_t since;                 /* the run's first version; 0: none yet */
    struct gradient a;              /* A; between supersteps it lies in */
    float *sum;                     /* (n) this room */
    struct local_sums sums;         /* the gradients in A */
    float **next;                   /* (n_locals) room of local modules for the next
                                       model, or NULL */
    bool broken;                    /* w has NaN or Inf */
    float g[PIECE], one[PIECE];
};

static void store(struct control *c)
{
    for (int k = 0; k < c->o.n_locals; k++)
        local_store(c->o.locals[k], c->next[k] ? c->next[k] : c->o.w, c->o.version,
                    c->since);
    memset(c->next, 0, (size_t)c->o.n_locals * sizeof *c->next);
}

void control_meet(struct control *c)
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
    if (!c->since)
        c->since = c->o.version;
    if (any && !c->broken)
        store(c);
}

descant_status control_create(struct control **control,
                              const struct control_options *options)
{
    struct control *made = memory_take(sizeof *made);
    float *sum = memory_take_array(options->n, sizeof *sum);
    float **next = memory_take_array((size_t)options->n_locals, sizeof *next);
    if (!made || !sum || !next ||
        !gradient_init(&made->a, sum, options->n, options->n_locals * SEGMENT_SLOTS)) {
        memory_give(made);
        memory_give(sum);
        memory_give(next);
        return log_fail(options->log, DESCANT_MEMORY,
                        "no memory for a gradient of %zu floats", options->n);
    }
    made->o = *options;
    made->kernels = kernels_best();
    made->sum = sum;
    made->next = next;
    made->since = options->since;
    if (!made->since)
        control_meet(made);
    *control = made;
    return DESCANT_OK;
}

void control_destroy(struct control *c)
{
    if (!c)
        return;
    gradient_fini(&c->a);
    memory_give(c->sum);
    memory_give(c->next);
    memory_give(c);
}

static const float *piece_of(struct control *c, double share, size_t at, size_t n)
{
    const float *const in[FEW] = {c->a.from[0] + at,
                                  c->a.n_from > 1 ? c->a.from[1] + at : NULL};
    if (c->a.n_from == 1 && share == 1)
        return in[0];
    if (c->a.n_from == 1)
        c->kernels->scale(c->g, in[0], share, n);
    else
        c->kernels->mean(c->g, in, (double[FEW]){share, share}, FEW, n, false);
    return c->g;
}

/* The same without values that are not finite; in c->g. */
static const float *sound_piece_of(struct control *c, double share, size_t at, size_t n)
{
    memset(c->g, 0, n * sizeof *c->g);
    for (int k = 0; k < c->a.n_from; k++)
        if (c->kernels->copy(c->one, c->a.from[k] + at, n))
            c->kernels->add(c->g, c->one, (float)share, n);
    return c->g;
}

static size_t piece_at(const struct control *c, size_t at)
{
    return c->o.n - at < PIECE ? c->o.n - at : PIECE;
}

/* The norm of the mean gradient. Not finite, after logging it: the sum is left out. */
static double norm_of(struct control *c)
{
    double squares = 0, norm;
    if (c->a.n_from > FEW)
        gradient_gather(&c->a);
    for (size_t at = 0; at < c->o.n; at += PIECE) {
        size_t n = piece_at(c, at);
        double square = c->kernels->square(piece_of(c, 1, at, n), n);
        squares += isfinite(square) ? square
                                    : c->kernels->square(sound_piece_of(c, 1, at, n), n);
    }
    norm = sqrt(squares) / (double)c->sums.examples;
    if (!isfinite(norm))
        log_say(c->o.log, DESCANT_WARNING,
                "the sum of %" PRIu64
                " gradients is more than a float holds: they are left out",
                c->sums.gradients);
    return norm;
}

static descant_status broken(const struct control *c, size_t at)
{
    while (isfinite(c->o.w[at]))
        at++;
    return log_fail(c->o.log, DESCANT_NOT_FINITE,
                    "step %" PRIu64 " has made the model's float %zu %s", c->o.steps, at,
                    isnan(c->o.w[at]) ? "NaN" : "Inf");
}

/* share: the factor of the sum, in double, so that the mean is rounded once. Copies are
 * tested as they are made. */
static descant_status step_piece(struct control *c, double share, size_t at, size_t n)
{
    const struct control_piece piece = {.w = c->o.w + at, .g = c->g, .at = at, .n = n,
                                        .step = c->o.steps};
    bool finite = false, tested = false;
    const float *g = piece_of(c, share, at, n);
    if (g != c->g)
        memcpy(c->g, g, n * sizeof *g);
    if (!c->kernels->finite(c->g, n) &&
        !c->kernels->finite(sound_piece_of(c, share, at, n), n))
        memset(c->g, 0, n * sizeof *c->g);
    c->o.step(c->o.of, &piece);
    for (int k = 0; k < c->o.n_locals; k++) {
        if (!c->next[k])
            continue;
        finite = (c->o.n < PAST_CACHES ? c->kernels->copy : c->kernels->copy_past)
                     (c->next[k] + at, piece.w, n);
        tested = true;
    }
    return (tested ? finite : c->kernels->finite(piece.w, n)) ? DESCANT_OK
                                                              : broken(c, at);
}

static descant_status step(struct control *c, double norm)
{
    const double clip = c->o.clip > 0 && norm > c->o.clip ? c->o.clip / norm : 1;
    const double share = clip / (double)c->sums.examples;
    descant_status status = DESCANT_OK;
    c->o.steps++;
    for (int k = 0; k < c->o.n_locals; k++)
        c->next[k] = local_next(c->o.locals[k]);
    for (size_t at = 0; at < c->o.n && status == DESCANT_OK; at += PIECE)
        status = step_piece(c, share, at, piece_at(c, at));
    if (status != DESCANT_OK) {
        memset(c->next, 0, (size_t)c->o.n_locals * sizeof *c->next);
        c->broken = true;
        return status;
    }
    c->o.version++;
    store(c);
    return DESCANT_OK;
}

static void read_out(struct control *c)
{
    for (int k = 0; k < c->o.n_locals; k++)
        local_read_out(c->o.locals[k], &c->a, &c->sums);
}

void control_read_out(struct control *c)
{
    read_out(c);
    gradient_gather(&c->a);
}

descant_status control_superstep(struct control *c, struct superstep *superstep)
{
    descant_status status = DESCANT_OK;
    read_out(c);
    *superstep = (struct superstep){.sums = c->sums, .norm = NAN};
    if (c->sums.gradients == 0 || c->sums.gradients < c->o.min_gradients) {
        gradient_gather(&c->a);
        return DESCANT_OK;
    }
    superstep->norm = norm_of(c);
    if (isfinite(superstep->norm)) {
        status = step(c, superstep->norm);
        superstep->stepped = status == DESCANT_OK;
    } else {
        superstep->left_out = c->sums.gradients;
    }
    gradient_clear(&c->a);
    c->sums = (struct local_sums){0};
    return status;
}

uint64_t control_pending(const struct control *c)
{
    uint64_t all = c->sums.gradients;
    for (int k = 0; k < c->o.n_locals; k++)
        all += local_pending(c->o.locals[k]);
    return all;
}

uint64_t control_version(const struct control *c)
{
    return c->o.version;
}

uint64_t control_steps(const struct control *c)
{
    return c->o.steps;
}
