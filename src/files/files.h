/* SPDX-License-Identifier: MIT */
/* Files that a command is told of: which of them it may write, how one is made whole,
 * what one is and has, and what a checkpoint's model says of the examples in others. */
#ifndef FILES_H
#define FILES_H

#include "run/evaluate.h"
#include "run/lock.h"

#include <limits.h>

/* --- named.c --- */

/* What becomes of a file. While it is written there is a NAME.lock, and what else is
 * beside it meanwhile, or after: */
enum file_use {
    FILE_READ,
    FILE_LOGGED,                /* a run's log: NAME.old */
    FILE_PUT,                   /* output_open, below: NAME.tmp; any file, or "-" */
    FILE_MADE,                  /* the same of a regular file */
    FILE_KEPT,                  /* a checkpoint: NAME.tmp, .previous, .old, and NAME.best
                                   with its .tmp and .old */
};

struct named_file {
    const char *option;         /* NULL: it is a word of no option */
    const char **name;          /* *name NULL: it is not given. Commas between several */
    enum file_use use;
};

/* Whether each can be written as it is to be, and none of those is another one of them.
 * files[0], unless it is only read, becomes what a symbolic link of that name leads to,
 * in `target`, which has room for PATH_MAX. False: message has the option, the file and
 * what is wrong. */
bool files_good(const struct named_file *files, int n, char *target, char *message,
                size_t room);

/* --- output.c: a file as NAME.tmp, renamed when all is in it. One that is not regular is
 * written in place, and "-" is the program's own output --- */

struct output {
    FILE *file;                 /* what is put there is compressed, where the name says
                                   so */
    FILE *below;                /* the file itself */
    const char *name;
    const struct log *log;
    bool standard;
    char temporary[PATH_MAX];   /* empty: it is written in place */
    struct lock lock;
};

/* packed: the name by whose ending it is compressed, or NULL. False after saying why not;
 * it is to be closed all the same. */
bool output_open(struct output *out, const char *name, const char *packed, FILE *standard,
                 const struct log *log);
/* Whether all that was put into the stream is written; else it has said why not. */
bool output_written(FILE *out, const char *name, const struct log *log);
/* good: all is in it. Else what was there stays. */
bool output_close(struct output *out, bool good);

/* --- tell.c --- */

/* What the file is and has. False after saying why that cannot be told. */
bool file_tell(const char *path, FILE *out, FILE *err, const struct log *log);

/* --- score.c --- */

struct scoring {
    const char *checkpoint, *data;
    int format;                 /* 0: the checkpoint's; else enum data_format + 1 */
    int64_t workers, batch;
    double max_bad;
};

/* The figures of files with labels. *classes: the model has several outputs. */
descant_status score_evaluate(const struct scoring *s, struct held_out *figures,
                              struct feed_counts *counts, bool *classes,
                              const struct log *log);
/* Puts a line of probabilities for each line, in their order, so that scores and lines
 * can be put side by side again: one that cannot be read has nan. */
bool score_predict(const struct scoring *s, const char *name, FILE *standard,
                   const struct log *log);

#endif
