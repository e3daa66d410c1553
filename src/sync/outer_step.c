/* SPDX-License-Identifier: MIT */
/* The length of the outer step of a block. b = c - G is the change of a round, and the
 * outer step
 *
 *   s = mu s + b;   G += eta (nesterov ? b + mu s : s)
 *
 * drives changes that all point one way eta / (1 - mu) times as far as plain averaging,
 * which is eta 1, mu 0. That gain is wanted in a long run, whose rounds are many and
 * small beside it; in a short run momentum carries G past the trainers' goal before it
 * has learnt anything. So `auto` is
 *
 *   no fixed interval (shadow plans), or one below 20 steps:  eta 1, mu 0
 *   round r, from 0:  mu = 1 - 20 / r, from 0 to 0.9: the step remembers a twentieth of
 *                     the run
 *                     eta = 1 - (1 - best) mu / 0.9, from 1 to the best rate of mu 0.9
 *
 * best was measured on long runs of 1, 2, 4 and 8 trainers (arXiv 2503.09799, "Scaling
 * laws for DiLoCo"). Short intervals have no momentum because the trainers' own
 * optimizers already have it, and the two multiply (docs/decisions.md). A number in the
 * plan stays as it is.
 *
 * k trainers that share a pass make a k-th of its steps each, and their mean has moved as
 * far as one of them. With scale=root mu is 1 - (1 - mu) / sqrt(k): changes that point
 * one way go sqrt(k) times as far, once there have been 1 / (1 - mu) of them. Under
 * Adagrad, whose steps shrink by the root of their number, so far does one trainer go in
 * all steps. It is not eta that grows: where the trainers have reached their goal within
 * a round, eta 2 carries G to its other side, each time, and momentum swings less and
 * less (by the root of mu a round).
 *
 * The watch is the cosine of b and s. A step that overshoots is followed by changes that
 * lead back, against s, or nowhere; one that lags leaves most of each change to be made
 * again, along s. Noise turns changes back, too, where G rests near an optimum: that is a
 * sign only of a gain well above 1 that was asked for. With `auto` the DLRM of
 * docs/quality.md has cosines of -0.1 from its 22nd round on, and ends where plain
 * averaging does. A cosine near 1, which under plain averaging is a long way to go, is a
 * sign only of a gain below 1. And where replicas take G in part, or while they train
 * (alpha below 1, shadow plans), c is behind G in any case: there the cosine is only a
 * figure.
 *
 * Pure: state in, decision out. round.c drives it. */
#include "sync/outer_step.h"

#include <math.h>

enum {
    ROUNDS_OF_MEMORY = 20,      /* of the run, to one of the momentum's */
    LEAST_EVERY = 20,           /* steps */
    WATCHED = 8,                /* rounds before anything is said */
    OF_LATE = 4                 /* rounds that the mean cosine remembers */
};

static const double most_momentum = 0.9;

/* Thresholds of the cosine. Noise alone has 0: a small GPT (docs/torch.md) under 0.7 /
 * 0.9 Nesterov, which loses as much as no rounds at all, goes down from 0.85 to between
 * -0.1 and 0.05 within eight rounds. */
static const double overshooting = 0.05, lagging = 0.9, long_gain = 1.5;

struct outer_step outer_step_of(const struct plan *plan, uint64_t rounds, int members)
{
    double momentum = plan->momentum, rate = plan->rate;
    double best = members < 2 ? 0.4 : members < 8 ? 0.6 : 0.8;
    bool remembers = plan->when == PLAN_EVERY && plan->every >= LEAST_EVERY &&
                     rounds > ROUNDS_OF_MEMORY;
    if (momentum < 0)
        momentum =
            remembers ? fmin(1 - ROUNDS_OF_MEMORY / (double)rounds, most_momentum) : 0;
    if (rate < 0)
        rate = 1 - (1 - best) * (momentum < most_momentum ? momentum / most_momentum : 1);
    if (plan->scale == PLAN_AS_ROOT)    /* IEEE's root is exact: all have the same bits */
        momentum = 1 - (1 - momentum) / sqrt(members);
    return (struct outer_step){(float)rate, (float)momentum, plan->nesterov};
}

enum outer_verdict outer_watch(struct outer_watch *watch, const struct plan *plan,
                               struct outer_step step, const struct turn *turn)
{
    double product = turn->b2 * turn->s2;
    if (!(product > 0) || !isfinite(product) || !isfinite(turn->bs))
        return OUTER_FITS;
    double cosine = turn->bs / sqrt(product);
    watch->rounds++;
    double share = 1.0 / (double)(watch->rounds < OF_LATE ? watch->rounds : OF_LATE);
    watch->cosine += share * (cosine - watch->cosine);
    double gain = (double)step.rate / (1 - (double)step.momentum);
    bool asked = plan->momentum >= 0 || plan->rate > 1 || plan->scale == PLAN_AS_ROOT;
    bool overshoots = asked && gain > long_gain && watch->cosine < overshooting;
    bool lags = gain < 1 && watch->cosine > lagging;
    bool whole = plan->when == PLAN_EVERY && plan->alpha >= 1;
    if (!whole || watch->said || watch->rounds < WATCHED || !(overshoots || lags))
        return OUTER_FITS;
    watch->said = true;
    return overshoots ? OUTER_OVERSHOOTS : OUTER_LAGS;
}
