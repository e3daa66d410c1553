/* SPDX-License-Identifier: MIT */
/* Turns the options into those of data/ and nn/. */
#ifndef TRAIN_INPUTS_H
#define TRAIN_INPUTS_H

#include "data/paths.h"
#include "train/config.h"

struct data_options train_data(const struct train_options *o,
                               const struct path_list *list, const struct log *log);
/* A held-out set is read once, and in its own order. */
struct data_options held_out_data(const struct train_options *o,
                                  const struct path_list *list, const struct log *log);
descant_status train_shape(const struct train_options *o, const struct data_shape *shape,
                           struct model_shape *out, const struct log *log);
/* Checks pipes, schedules and folders before anything starts. */
descant_status train_check(const struct train_options *o, const struct log *log);

#endif
