/* SPDX-License-Identifier: MIT */
/* Says in words where a model is no longer finite. Workers may be writing the model
 * meanwhile; a NaN spreads and does not heal, so the tensor that is named is bad, but
 * need not be the first that was. */
#include "train/trainer.h"

#include <math.h>

bool diverged_in(const float *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!isfinite(p[i]))
            return true;
    return false;
}

/* The first of n tensors, which lie in p, with a NaN or an Inf; NULL: there is none. */
static const struct tensor *bad_tensor(const struct tensor *tensors, size_t n,
                                       const float *p)
{
    for (size_t k = 0; k < n; k++)
        if (diverged_in(p + tensors[k].at, tensors[k].n))
            return &tensors[k];
    return NULL;
}

void diverged_where(struct trainer *t, char *text, size_t room)
{
    size_t n;
    const struct tensor *tensors = model_tensors(t->model, &n);
    const struct tensor *bad = bad_tensor(tensors, n, t->w);

    if (!bad && t->n_tables) {
        tensors = model_tables(t->model, &n);
        bad = bad_tensor(tensors, n, t->tables);
    }
    if (bad)
        snprintf(text, room, "tensor %s has NaN or Inf", bad->name);
    else
        snprintf(text, room, "the parameters are finite, the outputs are not");
}

/* A loss that grows beyond all bounds is nearly always a rate that is too high. */
void diverged_advice(const struct trainer *t, char *text, size_t room)
{
    const struct train_options *o = t->options;

    if (o->table_lr > 0 && t->n_tables)
        snprintf(text, room, "lower --lr (it is %g) or --table-lr (%g)", o->lr,
                 o->table_lr);
    else
        snprintf(text, room, "lower --lr (it is %g)", o->lr);
}
