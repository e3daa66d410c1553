/* SPDX-License-Identifier: MIT */
/* What tests of tables in virtual time share: the real rounds of rows over a simulated link, beside a
 * dense part that stands still. */
#ifndef TABLES_SIM_H
#define TABLES_SIM_H

#include "simulation_ranks.h"

#include <check.h>
#include <string.h>

enum { N = 5, PART = 2048 };        /* floats of the dense part; bytes of a small part of rows */
enum { ROW_MESSAGES = 7 };          /* of a round of rows, at most, one after the other */

static inline void no_gradient(void *context, int i, uint64_t t, const float *w, float *g, size_t n)
{
    (void)context, (void)i, (void)t, (void)w;
    memset(g, 0, n * sizeof *g);
}

static inline const struct table *table_of(const struct simulation *sim, int i, size_t k)
{
    return &simulation_look(sim, i).tables->list[k];
}

/* One case, or several, of the tests of a program. */
static inline int run_tables(TCase *const *cases, int n)
{
    Suite *suite = suite_create("tables");
    for (int k = 0; k < n; k++) {
        tcase_set_timeout(cases[k], 60);
        suite_add_tcase(suite, cases[k]);
    }
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}

#endif
