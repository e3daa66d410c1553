/* SPDX-License-Identifier: MIT */
/* The library Check, whose header this one hides. For each assertion that holds, Check
 * writes the line to a file, which the parent reads when the test ends: in a time that
 * grows with the square of their number, which was most of the time of some suites. Here
 * it writes none, and so a test that a signal ends is told without the line. */
#ifndef TESTS_CHECK_H
#define TESTS_CHECK_H

#include_next <check.h>

#define _mark_point(file, line) ((void)0)

#endif
