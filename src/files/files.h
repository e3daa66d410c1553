/* SPDX-License-Identifier: MIT */
/* The files of a command: the test that they can be written, the writing of a whole file,
 * the facts about a file, and the scores of a checkpoint's model. */
#ifndef FILES_H
#define FILES_H

#include "run/evaluate.h"
#include "run/lock.h"

#include <limits.h>

/* --- named.c --- */

/* The use that a command makes of a file. While a file is written there is a NAME.lock;
 * the files that are also beside it then, or after, are: */
enum file_use {
    FILE_READ,
    FILE_LOGGED,                /* a run's log: NAME.old */
    FILE_PUT,                   /* output_open, below: NAME.tmp; any file, or "-" */
    FILE_MADE,                  /* the same; only a regular file */
    FILE_KEPT,                  /* a checkpoint: NAME.tmp, .previous, .old, and NAME.best
                                   with its .tmp and .old */
};

struct named_file {
    const char *option;         /* NULL: the name follows no option */
    const char **name;          /* *name NULL: not given. Commas between several */
    enum file_use use;
};

/* Whether each file can be used as it is to be, and no file that is written is another
 * one of the list. If files[0] is to be replaced and is a symbolic link, its name becomes
 * the link's target, in `target`, which has room for PATH_MAX. False: message has the
 * option, the file and the fault. */
bool files_good(const struct named_file *files, int n, char *target, char *message,
                size_t room);

/* --- output.c: a file is written as NAME.tmp, and renamed when all is in it. A file that
 * is not regular is written in place, and "-" is the program's own output --- */

struct output {
    FILE *file;                 /* compresses where the name asks for it */
    FILE *below;                /* the file itself */
    const char *name;
    const struct log *log;
    bool standard;
    char temporary[PATH_MAX];   /* empty: it is written in place */
    struct lock lock;
};

/* packed: the name whose ending chooses the compression, or NULL. False after printing
 * the reason; close it all the same. */
bool output_open(struct output *out, const char *name, const char *packed, FILE *standard,
                 const struct log *log);
/* Whether all of the stream is written; if not, the reason was printed. */
bool output_written(FILE *out, const char *name, const struct log *log);
/* good: the file is whole. Else the earlier file stays. */
bool output_close(struct output *out, bool good);

/* --- tell.c --- */

/* Prints the kind and the contents of the file. False after printing why they are not
 * known. */
bool file_tell(const char *path, FILE *out, FILE *err, const struct log *log);

/* --- merge.c --- */

/* Writes a checkpoint whose tables are in shards as one file, as a run whose hosts have
 * copies of the tables would have written it; tables that grow become lists of ids and
 * rows. Prints what it has written. False after logging why it cannot. */
bool file_merge(const char *path, const char *to, FILE *out, const struct log *log);

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
/* Prints a line of probabilities for each line, in the lines' order, so that scores and
 * lines can be put side by side again; for a line that cannot be read it is nan. */
bool score_predict(const struct scoring *s, const char *name, FILE *standard,
                   const struct log *log);

#endif
