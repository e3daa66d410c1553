/* SPDX-License-Identifier: MIT */
/* A model out of a checkpoint, to be used and not trained. */
#ifndef RUN_SAVED_H
#define RUN_SAVED_H

#include "run/config.h"

struct safetensors;
struct saved_rows;

struct saved {
    struct train_options options;       /* of the run that wrote it; texts point into
                                           file; the format is the one it found */
    struct safetensors *file;
    struct model *model;
    float *w, *tables;
    struct saved_rows *rows;            /* tables that grow: instead of `tables` and
                                           `state` */
    float *state;                       /* of the tables' optimizer; NULL: not asked for,
                                           or it has none */
};

descant_status saved_open(struct saved *saved, const char *path, const struct log *log);
/* The same, with the state of the tables' optimizer. */
descant_status saved_open_all(struct saved *saved, const char *path,
                              const struct log *log);
/* Sets the options that make the model and its optimizers what they are to those of a
 * checkpoint, to go on with it, but for those that are `known`, by the places of
 * train_settings; these become known. *texts is theirs (malloc), for as long as the
 * options are used. Where there is no such file nothing is set. False: a setting in it is
 * none; message says which. */
bool saved_settings(const char *path, struct train_options *options, bool *known,
                    char **texts, char *message, size_t room);
void saved_close(struct saved *saved);
/* The shape and the format of the data that a checkpoint's model was trained on. *format
 * stays if the file has none, and becomes AUTO if the file's is unknown. False: descant
 * train has not written the file. */
bool saved_inputs(const struct safetensors *file, struct data_shape *shape, int *format);
/* The number of the run over several hosts that wrote the checkpoint; 0: there is
 * none. */
uint64_t saved_run(const struct safetensors *file);

#endif
