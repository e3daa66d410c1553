/* SPDX-License-Identifier: MIT */
/* The plan bsp in a trainer: its workers are ML modules, and one trainer has control.
 * NULL takes the place of a struct bsp under other plans. */
#ifndef TRAIN_BSP_H
#define TRAIN_BSP_H

#include "train/trainer.h"

struct bsp;

/* At most so many trainers x workers, so that a slot is left for reading the model. */
enum { BSP_WORKERS = 63 };

/* Makes t->bsp, and t->state in memory that the trainers share. */
descant_status bsp_open(struct trainer *t);
void bsp_close(struct bsp *bsp);

/* After t->w and t->state have their first values, before the job starts: the segment is
 * the first trainer's, and each worker has a slot of it. */
descant_status bsp_meet(struct bsp *bsp);

/* Starts the thread that has control, or will have control once this trainer reports. */
descant_status bsp_start(struct bsp *bsp);

/* --- a worker: any thread, but one for each number --- */

/* The newest model, which does not change until the worker's next; NULL: training is
 * over. */
const float *bsp_model(struct bsp *bsp, int worker);

/* Adds the mean gradient over so many examples on that model; a refused gradient is
 * counted. rate: the share of --lr that a step by it may take. */
void bsp_add(struct bsp *bsp, int worker, const float *gradient, size_t examples,
             double rate);
void bsp_leave(struct bsp *bsp, int worker);

/* --- the reporter: one thread --- */

/* False: this trainer is to have control, but does not have it yet. */
bool bsp_ready(struct bsp *bsp);

/* The model, which does not change until bsp_let_go; t->w under other plans, and at the
 * end. */
const float *bsp_look(struct trainer *t);
void bsp_let_go(struct bsp *bsp);

/* The model and the optimizer's state as one superstep has left them, which has all
 * gradients that were given before; valid until the next copy. Under other plans, and at
 * the end, they are t's own. */
struct dense {
    const float *w, *state;
    uint64_t steps;             /* of the optimizer */
};
struct dense bsp_copy(struct trainer *t);

/* Waits until all trainers' gradients are in the model, which then is t->w. */
void bsp_finish(struct bsp *bsp);

#endif
