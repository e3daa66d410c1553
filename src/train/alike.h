/* SPDX-License-Identifier: MIT */
/* The name of the dense segment: it says all that must be alike in all trainers and that
 * no size shows. Where names differ the library ends the start, and shows both. Pure. */
#ifndef TRAIN_ALIKE_H
#define TRAIN_ALIKE_H

#include "run/config.h"

struct alike {
    const char *model;          /* its kind */
    bool hosts;                 /* there are several: else the name has no more than the
                                   kind and the steps */
    bool owned;                 /* rows have owners */
    bool resumed;               /* goes on from a checkpoint; over TCP: is asked to */
    uint64_t bytes;             /* of the training data */
};

/* Where no rank comes late the name says whether the run goes on from a checkpoint. Over
 * TCP one that comes late may find a checkpoint that the job has written since its start:
 * there the name says whether --resume was given, and the ranks of the start agree on the
 * rest (start.h). Rows that have owners are saved by all ranks, or by none. */
enum { ALIKE_ROOM = 96 };
void alike_name(const struct train_options *o, const struct alike *what,
                char name[ALIKE_ROOM]);

/* Of an error of the library that shows two names: one alone is of a host whose rows have
 * owners; or all is alike but the settings of steps. */
bool alike_but_owners(const char *error);
bool alike_but_steps(const char *error);

#endif
