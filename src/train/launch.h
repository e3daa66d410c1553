/* SPDX-License-Identifier: MIT */
/* A run of training: one trainer in this process, or several that are forked. */
#ifndef LAUNCH_H
#define LAUNCH_H

#include "run/config.h"
#include "train/trainer.h"

/* Trains as the options say. Returns 0, 1 after an error, 2 for options that do not go
 * together, 128 + the signal after a signal. *result is filled if a reporter came to its
 * summary (result->seconds > 0). Must be called before the process has threads. With
 * trainers 0 this process is a trainer: until it trains, a signal ends it. With `watched`
 * a child of this process is the trainer. */
int train_run(const struct train_options *options, FILE *out, FILE *err,
              struct train_result *result);

#endif
