/* SPDX-License-Identifier: MIT */
/* The lines of descant info. */
#ifndef SAY_H
#define SAY_H

#include <stdio.h>

/* Prints a line of a file's own text: `out` makes bytes that steer a terminal visible,
 * except line ends and tabs. */
void say(FILE *out, const char *name, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static inline const char *many(double n)
{
    return n > 1 || n < 1 ? "s" : "";
}

#endif
