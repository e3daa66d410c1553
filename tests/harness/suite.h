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

/* Of n kinds, moments or seeds as many as are to be tested. All n where DESCANT_TESTS is
 * "whole" (make test-whole, also with SAN=...). Else fewer: what a sanitizer looks for is in
 * the code that a test reaches, not in how often it does, and each test takes several times
 * as long there. Without a sanitizer fewer, too, in programs that take long. */
int pick(int n, int without_sanitizers, int under_sanitizers);
int few(int n, int under_sanitizers);               /* pick(n, n, under_sanitizers) */
#define FEWER pick(1, 5, 9)    /* a loop over many moments takes each FEWER-th of them; odd,
                                  as half of them differ by at % 2 */

/* A loop test over the numbers below n, of which a sanitizer gets each third; which third is
 * another one for each test, so that tests of the same kinds have them all together. */
void add_thirds(TCase *to, const TTest *test, int n);

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
