/* SPDX-License-Identifier: MIT */
/* Runs the cases of a program in a folder of the program's own. Segments of the tests
 * have the program's number in their names (segments.c): those that tests left are
 * said, counted as failures, and removed. */
#include "harness/suite.h"
#include "harness/folder.h"

#include <errno.h>
#include <glob.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

pid_t suite_pid;

#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
enum { UNDER_SANITIZER = true };
#else
enum { UNDER_SANITIZER = false };
#endif

static int remove_segments(void)
{
    char pattern[80];
    glob_t left;
    int n = 0;
    snprintf(pattern, sizeof pattern, "/dev/shm/descant.test-%d-*", (int)suite_pid);
    if (glob(pattern, 0, NULL, &left) != 0)
        return 0;
    for (size_t i = 0; i < left.gl_pathc; i++, n++) {
        printf("%s was left\n", left.gl_pathv[i]);
        unlink(left.gl_pathv[i]);
    }
    globfree(&left);
    return n;
}

int pick(int n, int without_sanitizers, int under_sanitizers)
{
    const char *asked = getenv("DESCANT_TESTS");
    if (asked && strcmp(asked, "whole") == 0)
        return n;
    return UNDER_SANITIZER ? under_sanitizers : without_sanitizers;
}

int few(int n, int under_sanitizers)
{
    return pick(n, n, under_sanitizers);
}

void add_thirds(TCase *to, const TTest *test, int n)
{
    static int turn;
    int step = few(1, 3);
    for (int i = turn++ % step; i < n; i += step)
        tcase_add_loop_test(to, test, i, i + 1);
}

int few_threads(int n, int under_thread_sanitizer)
{
    return THREADS_ALONE ? few(n, under_thread_sanitizer) : n;
}

TCase *new_case(const char *name, int seconds)
{
    TCase *made = tcase_create(name);
    tcase_set_timeout(made, seconds);
    return made;
}

int run_cases(TCase *first, ...)
{
    Suite *suite = suite_create(program_invocation_short_name);
    va_list more;
    suite_pid = getpid();
    if (!open_folders())
        return 1;
    va_start(more, first);
    for (TCase *one = first; one; one = va_arg(more, TCase *))
        suite_add_tcase(suite, one);
    va_end(more);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    close_folders();
    return failed + remove_segments() != 0;
}
