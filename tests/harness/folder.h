/* SPDX-License-Identifier: MIT */
/* Files of a test: each test has a folder of its own, in one that run_cases makes and
 * removes, so that a test that fails leaves nothing behind either. */
#ifndef HARNESS_FOLDER_H
#define HARNESS_FOLDER_H

#include <stdbool.h>
#include <stddef.h>

extern char folder[64];

/* Fixtures; after the second no memory of the library may be left. */
void make_folder(void);
void remove_folder(void);

/* A path in it, which is valid until the test's end; the folder is made where it is
 * not there. */
const char *in_folder(const char *name);
const char *put_file(const char *path, const void *bytes, size_t n);    /* the path */
/* up to a MiB, with a 0 behind it; to be freed */
char *get_file(const char *path, size_t *n);
void no_file(const char *path);                     /* there is none of that name */

bool open_folders(void);        /* run_cases calls these two */
void close_folders(void);

#endif
