/* SPDX-License-Identifier: MIT */
/* What tests of jobs over shm share: an address of their own, and trainers on it. */
#ifndef SHM_JOB_H
#define SHM_JOB_H

#include "sync/job.h"

#include <check.h>
#include <pthread.h>
#include <unistd.h>

static char address[80];

/* more: after the name, such as ",rtt=2ms" */
static inline void new_address(const char *more)
{
    static int number;
    snprintf(address, sizeof address, "shm:test-%d-%d%s", (int)getpid(), number++, more);
}

static inline struct descant *open_job(const char *plan, int rank, int size)
{
    struct descant_options o = descant_options_default();
    struct descant *job = NULL;
    o.job = address;
    o.plan = plan;
    o.rank = rank;
    o.size = size;
    o.sync_cpu = 0.5;
    o.start_s = 20;
    ck_assert_msg(descant_open(&job, &o) == DESCANT_OK, "%s", descant_last_error());
    return job;
}

static inline void *start_job(void *job)
{
    ck_assert_int_eq(descant_start(job), DESCANT_OK);
    return NULL;
}

/* Two trainers that start together. */
static inline void start_both(struct descant *const job[2])
{
    pthread_t other;
    pthread_create(&other, NULL, start_job, job[1]);
    start_job(job[0]);
    pthread_join(other, NULL);
}

#endif
