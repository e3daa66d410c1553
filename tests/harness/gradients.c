/* SPDX-License-Identifier: MIT */
/* The gradient against finite differences of the loss.
 *
 * Losses are summed in double, but over scores in float, so a difference has noise of
 * about 1e-7 / h, and an error of order h^2 where the loss bends; where a relu turns
 * within h on one side, only the other side's difference is right. No one choice suits
 * all: each parameter is tried with a few h, the central difference and both sides', and
 * the best agreement counts. A wrong gradient agrees with none. */
#include "harness/nn.h"

#include "nn/parts.h"

#include <math.h>

struct checked {
    struct work *work;
    float *w, *tables;
    const struct examples *batch;
    float *g, *scores;
};

/* The mean loss; scores, not the gradient, is the shortest way to it. */
static double loss_at(const struct checked *c)
{
    size_t outputs = (size_t)model_outputs(c->work->model);
    struct matrix scores = {c->scores, outputs};
    model_scores(c->work, c->w, c->tables, c->batch, c->scores);
    return loss_and_gradient(scores, c->batch->n, (int)outputs, c->batch->labels) /
           (double)c->batch->n;
}

static double disagreement(double g, double difference)
{
    return fabs(g - difference) / fmax(1e-3, fabs(g) + fabs(difference));
}

static double error_of(const struct checked *c, float *at, double g)
{
    static const double steps[] = {1e-2, 3e-3, 1e-3};
    double best = INFINITY, here = loss_at(c);
    float kept = *at;
    for (size_t k = 0; k < sizeof steps / sizeof *steps; k++) {
        double h = steps[k] * fmax(1, fabs((double)kept));
        float above = (float)((double)kept + h), below = (float)((double)kept - h);
        *at = above;
        double up = loss_at(c);
        *at = below;
        double down = loss_at(c);
        double error = disagreement(g, (up - down) / ((double)above - (double)below));
        best = fmin(best, error);
        best = fmin(best, disagreement(g, (up - here) / ((double)above - (double)kept)));
        best =
            fmin(best, disagreement(g, (here - down) / ((double)kept - (double)below)));
    }
    *at = kept;
    return best;
}

static const char *name_at(const struct tensor *tensors, size_t n, size_t at)
{
    for (size_t k = 0; k < n; k++)
        if (at < tensors[k].at + tensors[k].n)
            return tensors[k].name;
    return "?";
}

static double check_all(const struct checked *c, int samples, uint64_t seed,
                        const char **worst)
{
    const struct model *m = c->work->model;
    const struct row_grads *rows = work_rows(c->work);
    struct rng rng;
    double most = 0;
    rng_init(&rng, seed);
    model_gradient(c->work, c->w, c->tables, c->batch, c->g, NULL);
    size_t n = rows->n * (size_t)rows->width;
    for (int k = 0; k < samples; k++) {
        bool of_row = n && k % 2;
        size_t at = (size_t)(rng_uniform(&rng) * (double)(of_row ? n : m->n_floats)),
               place = at;
        if (of_row)
            place = rows->rows[at / (size_t)rows->width] * (size_t)rows->width +
                    at % (size_t)rows->width;
        double error = error_of(c, (of_row ? c->tables : c->w) + place,
                                (double)(of_row ? rows->grads : c->g)[at]);
        if (!(error <= most)) {
            most = error;
            *worst = of_row ? name_at(m->tables, m->n_tables, place)
                            : name_at(m->tensors, m->n_tensors, place);
        }
    }
    return most;
}

double model_check(const struct model *model, float *w, float *tables,
                   const struct examples *batch, int samples, uint64_t seed,
                   const char **worst)
{
    struct checked c = {.w = w, .tables = tables, .batch = batch};
    double error = NAN;
    *worst = "memory";
    c.g = memory_take_array(model->n_floats, sizeof *c.g);
    c.scores =
        memory_take_array(batch->n * (size_t)model_outputs(model), sizeof *c.scores);
    if (c.g && c.scores && work_create(&c.work, model, batch->n, NULL) == DESCANT_OK) {
        *worst = "";
        error = check_all(&c, samples, seed, worst);
        work_destroy(c.work);
    }
    memory_give(c.g);
    memory_give(c.scores);
    return error;
}
