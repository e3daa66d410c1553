/* SPDX-License-Identifier: MIT */
/* A job as a test opens it. */
#ifndef OPEN_JOB_H
#define OPEN_JOB_H

#include <check.h>

#include "descant.h"

enum { N = 3000 };

static inline struct descant *open_job(const char *address, const char *plan, int rank, int size)
{
    struct descant_options o = descant_options_default();
    struct descant *job = NULL;
    o.job = address;
    o.plan = plan;
    o.rank = rank;
    o.size = size;
    o.start_s = 20;
    ck_assert_msg(descant_open(&job, &o) == DESCANT_OK, "%s", descant_last_error());
    return job;
}

#endif
