/* SPDX-License-Identifier: MIT */
/* Sizes of the tests of tables in virtual time: the real rounds of rows over a
 * simulated link, beside a dense part that stands still. */
#ifndef HARNESS_TABLES_H
#define HARNESS_TABLES_H

#include "harness/simulation.h"

/* floats of the dense part; bytes of a small part of rows */
enum { N = 5, PART = 2048 };
enum { ROW_MESSAGES = 7 };          /* of a round of rows, at most, one after the other */

#endif
