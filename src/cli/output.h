/* SPDX-License-Identifier: MIT */
/* A file that a command makes: as NAME.tmp, renamed when all is in it; NAME.lock is there
 * meanwhile. A file that is not regular is written in place, and "-" is the command's own
 * output. */
#ifndef CLI_OUTPUT_H
#define CLI_OUTPUT_H

#include "cli/cli.h"
#include "run/lock.h"

#include <limits.h>

struct output {
    FILE *file;
    const char *name;
    const struct log *log;
    char temporary[PATH_MAX];   /* empty: it is written in place */
    struct lock lock;
};

/* The file that a link names is replaced, and not the link: *name becomes that, in
 * `target`, which has room for PATH_MAX. False after saying why not. */
bool output_follow(const struct cli *cli, const char *option, const char **name,
                   char *target);
/* False after saying why not; it is to be closed all the same. */
bool output_open(struct output *out, const struct cli *cli, const char *name,
                 const struct log *log);
/* Whether all that was put into the stream is written; else it has said why not. */
bool output_written(FILE *out, const char *name, const struct log *log);
/* good: all is in it. Else what was there stays. */
bool output_close(struct output *out, const struct cli *cli, bool good);

#endif
