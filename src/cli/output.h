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

/* The target of a link is replaced, and not the link: *name becomes the target's path, in
 * `target`, which has room for PATH_MAX. False after saying why not. */
bool output_follow(const struct cli *cli, const char *option, const char **name,
                   char *target);
/* False after saying why not; call output_close all the same. */
bool output_open(struct output *out, const struct cli *cli, const char *name,
                 const struct log *log);
/* Whether the stream's contents are written; false after saying why not. */
bool output_written(FILE *out, const char *name, const struct log *log);
/* good: the file is whole, and replaces the old one. Else the old file stays. */
bool output_close(struct output *out, const struct cli *cli, bool good);

#endif
