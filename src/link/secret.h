/* SPDX-License-Identifier: MIT */
/* The secret that the processes of a job share: a file of one line. */
#ifndef LINK_SECRET_H
#define LINK_SECRET_H

#include "descant.h"

#include <stdbool.h>
#include <stddef.h>

enum { SECRET_BYTES = 32, SECRET_LINE = 82 };

struct log;

/* A new one, with its line's end and a 0. False with errno. */
bool secret_make(char line[SECRET_LINE + 1]);

/* Reads a file of such a line. Else INVALID, which is logged: the file is missing, is
 * none of these, or others than its owner can read it. */
descant_status secret_read(unsigned char secret[SECRET_BYTES], const char *path,
                           const struct log *log);

/* Opens a file that only its owner can read, which the option of an address names. -1:
 * it is logged why not. */
int secret_open(const char *option, const char *path, const struct log *log);

#endif
