/* SPDX-License-Identifier: MIT */
/* The frame of a test program. main makes its cases by Check, and returns what
 * run_cases returns. */
#ifndef HARNESS_SUITE_H
#define HARNESS_SUITE_H

/* with what each program uses */
#include <check.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define N(array) ((int)(sizeof(array) / sizeof *(array)))

/* Sanitizers make each test several times as long, and what they look for is in the code
 * that a test reaches, not in how often it does. So there a loop over many moments or seeds
 * takes each FEWER-th of them, and a loop over n kinds only as many as few() is told. All of
 * them where DESCANT_TESTS is "whole" (make test-whole SAN=...), and without a sanitizer. */
#define FEWER few(1, 7)
int few(int n, int under_sanitizers);

/* few() for kinds of threads: AddressSanitizer, which is faster, has all n of them. */
int few_threads(int n, int under_thread_sanitizer);

/* ThreadSanitizer has nothing to say to tests of one thread: where they take long, a program
 * leaves them out there. */
#ifdef __SANITIZE_THREAD__
enum { THREADS_ALONE = true };
#else
enum { THREADS_ALONE = false };
#endif

TCase *new_case(const char *name, int seconds);     /* a test of it may take so long */

/* Runs the cases, up to NULL: 0 where all tests have passed and left nothing in shared
 * memory. Removes the folders of all tests (folder.h). */
int run_cases(TCase *first, ...) __attribute__((sentinel));

extern pid_t suite_pid;         /* of the program; each test is a process of its own */

#endif
