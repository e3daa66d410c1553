/* SPDX-License-Identifier: MIT */
/* The control module: the global model, and supersteps over the local modules. It knows
 * no clock, no file and no optimizer: the caller decides when, and brings the step. One
 * thread. */
#ifndef CONTROL_H
#define CONTROL_H

#include "bsp/local.h"

/* Makes a piece of a step: n floats w of the model, from `at` on, by their gradient g,
 * which may be changed. Pieces come in order. */
struct control_piece {
    float *w, *g;
    size_t at, n;
    uint64_t step;                  /* counts from 1 */
};
typedef void control_step(void *of, const struct control_piece *piece);

struct control_options {
    struct local *const *locals;    /* (n_locals), the caller's, with models of n
                                       floats */
    int n_locals;
    size_t n;
    float *w;                       /* (n) the global model, the caller's; changes in
                                       supersteps */
    uint64_t version, steps;        /* of the model; steps so far */
    uint64_t bound;                 /* the segments' */
    uint64_t since;                 /* the run's first version, where this process goes on
                                       with the run that is in the segments; 0: a run
                                       begins */
    uint64_t min_gradients;         /* a step takes so many at least */
    double clip;                    /* the longest mean gradient; 0: any */
    control_step *step;
    void *of;
    const struct log *log;
};

struct control;

/* Where a run begins: stores the model w in segments that were taken over, with a version
 * on which no gradient of the run before counts. */
descant_status control_create(struct control **control,
                              const struct control_options *options);
void control_destroy(struct control *control);

/* The same for locals that come while the run goes on. */
void control_meet(struct control *control);

struct superstep {
    bool stepped;                   /* false: the sums wait for more gradients */
    struct local_sums sums;         /* since the last step */
    uint64_t left_out;              /* gradients whose sum overflows a float */
    double norm;                    /* of the mean gradient, before clipping */
};

/* Reads out all segments, and steps and stores if there is enough. NOT_FINITE, after
 * logging where: the model has NaN or Inf now, and was not stored. Sums that overflow
 * only together are left out, with a line in the log. */
descant_status control_superstep(struct control *control, struct superstep *superstep);

/* Reads out all segments for a later superstep. */
void control_read_out(struct control *control);

/* Gradients that a superstep would find: those read out, and those committed since. The
 * number may be a little off, for modules add meanwhile. */
uint64_t control_pending(const struct control *control);

uint64_t control_version(const struct control *control);
uint64_t control_steps(const struct control *control);

#endif
