/* SPDX-License-Identifier: MIT */
/* A run's checkpoint FILE: a safetensors file with the model's tensors, what the run
 * needs to go on ("descant.optimizer" and others), and texts: every setting, and how far
 * the run is.
 *
 * FILE.previous is the checkpoint before FILE, of this run or of a run that this one goes
 * on from; FILE.old is the model of a run that this one does not go on from. */
#ifndef RUN_CHECKPOINT_H
#define RUN_CHECKPOINT_H

#include "data/safetensors.h"
#include "nn/nn.h"
#include "run/shards.h"
#include "run/told.h"

/* --- writing --- */

enum { CONTENTS_TEXTS = 128 };
struct contents {
    const char *temporary;          /* written, then renamed; NULL: FILE.tmp */
    struct safetensor *tensors;     /* room for as many as contents_create was told */
    size_t n_tensors;
    struct safetensors_text texts[CONTENTS_TEXTS];
    char room[CONTENTS_TEXTS][TOLD_TEXT];
    size_t n_texts;
};

/* NULL: no memory, which is logged. */
struct contents *contents_create(size_t tensors, const struct log *log);
void contents_destroy(struct contents *c);

/* A tensor of one dimension; the caller may set a second one. The data is read when the
 * file is written. */
struct safetensor *contents_add(struct contents *c, const char *name,
                                enum safetensors_type type, const void *data, size_t n);
/* Those of a model, which are in p. */
void contents_tensors(struct contents *c, const struct tensor *tensors, size_t n,
                      const float *p);
void contents_text(struct contents *c, const char *key, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void contents_told(struct contents *c, const struct told *told);    /* all its settings */
/* In place of the tables: the shards that have their rows. */
void contents_shards(struct contents *c, const struct shards *shards);

/* Replaces FILE. `own`: the FILE that is there is of this run, or of one that this run
 * goes on from. */
descant_status checkpoint_put(const char *path, bool own, const struct contents *c,
                              const struct log *log);
/* Warns that FILE is there and will become FILE.old. */
void checkpoint_say_replaced(const char *path, const struct log *log);

/* --- reading --- */

struct checkpoint {
    struct safetensors *file;       /* NULL: it is not open */
    const char *path;               /* as it was named */
    const struct told *told;        /* this run's; NULL: nothing goes on from it */
    const struct log *log;
    int owner, owners;              /* shards with rows of this one are wanted, of so many
                                       ranks that own rows at the start; -1: none are; of
                                       0: all are */
    struct shards shards;           /* as the file has them */
};

bool checkpoint_there(const char *path);    /* the file, or FILE.previous */
bool checkpoint_before(const char *path, char *previous, size_t room);
/* Opens FILE to go on from it, or FILE.previous where FILE, or a shard of it, is damaged
 * or gone; `says`: logs that. The caller has set the fields other than `file` and
 * `shards`. */
descant_status checkpoint_open(struct checkpoint *c, bool says);
void checkpoint_close(struct checkpoint *c);

/* Copies a model's tensors from the checkpoint to p. */
descant_status checkpoint_take(const struct checkpoint *c, const struct tensor *tensors,
                               size_t n, float *p);
/* Copies n floats of an optimizer's state; CORRUPT where this run's setting
 * ("optimizer", or "table-optimizer") is not the checkpoint's. */
descant_status checkpoint_state(const struct checkpoint *c, const char *setting, float *p,
                                size_t n);

/* Whether the checkpoint's text of a setting is this run's; true also where the
 * checkpoint has none. *was is the checkpoint's text, *is is this run's, both valid until
 * the next call in this thread. */
bool checkpoint_same(const struct checkpoint *c, const char *name, const char **was,
                     const char **is);
/* The file's tensor, which is as the model has it. CORRUPT, logged: it is not, or there
 * is none. */
descant_status checkpoint_find(const struct checkpoint *c, const struct tensor *want,
                               const struct safetensor **out);
/* Whether this rank may have rows of shard k. */
bool checkpoint_wants(const struct checkpoint *c, int k);

/* --- checkpoint_tables.c: the tables, which are in the file or in its shards --- */

/* As its shards have to be for this model. */
struct shard_shape checkpoint_shape(const struct checkpoint *c, const struct model *model,
                                    const struct optimizer *optimizer);
/* The model's tables and their optimizer's state, (rows, state); state NULL: without. */
descant_status checkpoint_tables(const struct checkpoint *c, const struct model *model,
                                 const struct optimizer *optimizer, float *tables,
                                 float *state);
/* The name of the tensor with the ids of a table that grows: "tables.0.ids". */
void checkpoint_ids_name(const struct tensor *table, char *name, size_t room);
/* The rows of a table that grows, in a checkpoint without shards. */
struct grown_rows {
    uint64_t first;             /* is added to an id for the row's number */
    size_t n, width, n_state;
    const uint64_t *ids;        /* (n) */
    const float *values;        /* (n, width) */
    const float *state;         /* (n, n_state), or NULL */
};
/* Those of all tables of the model. */
descant_status checkpoint_grown(const struct checkpoint *c, const struct model *model,
                                const struct optimizer *optimizer,
                                struct grown_rows *out);
/* Gives rows with their records, as descant_owned_set takes them: all, or, of shards,
 * those that are wanted. Left out are rows that are as a row begins with this seed. */
descant_status checkpoint_rows(const struct checkpoint *c, const struct model *model,
                               const struct optimizer *optimizer, uint64_t seed,
                               shard_take *take, void *of);

#endif
