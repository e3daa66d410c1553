/* SPDX-License-Identifier: MIT */
/* The frame of a test program. main makes its cases by Check, and returns what
 * run_cases returns. */
#ifndef HARNESS_SUITE_H
#define HARNESS_SUITE_H

/* with what each program uses */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define N(array) ((int)(sizeof(array) / sizeof *(array)))

/* Loops over many moments take each FEWER-th of them: AddressSanitizer makes each several
 * times as long. */
#ifdef __SANITIZE_ADDRESS__
enum { FEWER = 3 };
#else
enum { FEWER = 1 };
#endif

TCase *new_case(const char *name, int seconds);     /* a test of it may take so long */

/* Runs the cases, up to NULL: 0 where all tests have passed and left nothing in shared
 * memory. Removes the folders of all tests (folder.h). */
int run_cases(TCase *first, ...) __attribute__((sentinel));

extern pid_t suite_pid;         /* of the program; each test is a process of its own */

#endif
