/* SPDX-License-Identifier: MIT */
/* A run's checkpoint FILE: a safetensors file with the model's tensors, what the run
 * needs to go on ("descant.optimizer" and others), and texts: every setting, and how far
 * the run is.
 *
 * FILE.previous is the one before it, of this run or of one that it goes on from;
 * FILE.old is the model of a run that this one does not go on from. */
#ifndef RUN_CHECKPOINT_H
#define RUN_CHECKPOINT_H

#include "data/safetensors.h"
#include "nn/nn.h"
#include "run/told.h"

/* --- writing --- */

enum { CONTENTS_TEXTS = 128 };
struct contents {
    struct safetensor *tensors;     /* room for as many as contents_create was told */
    size_t n_tensors;
    struct safetensors_text texts[CONTENTS_TEXTS];
    char room[CONTENTS_TEXTS][TOLD_TEXT];
    size_t n_texts;
};

/* NULL: no memory, which is logged. */
struct contents *contents_create(size_t tensors, const struct log *log);
void contents_destroy(struct contents *c);

/* One dimension; the caller may give it two. The data is read when it is written. */
struct safetensor *contents_add(struct contents *c, const char *name,
                                enum safetensors_type type, const void *data, size_t n);
/* Those of a model, which are in p. */
void contents_tensors(struct contents *c, const struct tensor *tensors, size_t n,
                      const float *p);
void contents_text(struct contents *c, const char *key, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void contents_told(struct contents *c, const struct told *told);    /* all its settings */

/* Replaces FILE. `own`: it is of this run, or of one that this run goes on from. */
descant_status checkpoint_put(const char *path, bool own, const struct contents *c,
                              const struct log *log);
/* Says that FILE is there, and what becomes of it. */
void checkpoint_say_replaced(const char *path, const struct log *log);

/* --- reading --- */

struct checkpoint {
    struct safetensors *file;       /* NULL: it is not open */
    const char *path;               /* as it was named */
    const struct told *told;        /* this run's; NULL: nothing goes on from it */
    const struct log *log;
};

bool checkpoint_there(const char *path);    /* it, or the one before it */
bool checkpoint_before(const char *path, char *previous, size_t room);
/* To go on from: FILE, or the one before it where FILE is damaged or gone, which is said
 * where `says`. The other fields are set. */
descant_status checkpoint_open(struct checkpoint *c, bool says);
void checkpoint_close(struct checkpoint *c);

/* The tensors that a model wants from it. */
descant_status checkpoint_take(const struct checkpoint *c, const struct tensor *tensors,
                               size_t n, float *p);
/* n floats of an optimizer's state, which only the optimizer of the same setting can
 * read: "optimizer", or "table-optimizer". */
descant_status checkpoint_state(const struct checkpoint *c, const char *setting, float *p,
                                size_t n);
/* Whether its text of a setting is this run's; so it is where it has none. *was is its,
 * *is this run's: valid until the next call in this thread. */
bool checkpoint_same(const struct checkpoint *c, const char *name, const char **was,
                     const char **is);

#endif
