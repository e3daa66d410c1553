/* SPDX-License-Identifier: MIT */
/* A log for tests: it keeps its lines. */
#ifndef HARNESS_HEARD_H
#define HARNESS_HEARD_H

#include "base/base.h"

struct heard_lines {
    enum descant_level least;   /* lines below it do not count */
    int n;                      /* lines, of which as many are kept as have room: */
    char lines[40][400];
    char text[8192];            /* with an end for each */
};

/* Of a log, whose user is a struct heard_lines. */
void hear(void *user, enum descant_level level, const char *line);

extern struct heard_lines heard;
extern const struct log listening;      /* to that one */

#endif
