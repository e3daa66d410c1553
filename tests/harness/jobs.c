/* SPDX-License-Identifier: MIT */
/* Jobs as tests open them: they have 20 seconds to start. */
#include "harness/jobs.h"

#include <check.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

char job_address[80];

void new_address(const char *more)
{
    static int number;
    snprintf(job_address, sizeof job_address, "shm:test-%d-%d%s", (int)getpid(), number++,
             more);
}

static struct descant *open_with(const char *job, const char *plan, int rank, int size,
                                 double sync_cpu)
{
    struct descant_options o = descant_options_default();
    struct descant *opened = NULL;
    o.job = job;
    o.plan = plan;
    o.rank = rank;
    o.size = size;
    o.sync_cpu = sync_cpu;
    o.start_s = 20;
    ck_assert_msg(descant_open(&opened, &o) == DESCANT_OK, "%s", descant_last_error());
    return opened;
}

struct descant *open_here(const char *plan, int rank, int size)
{
    return open_with(job_address, plan, rank, size, 0.5);
}

struct descant *open_job(const char *job, const char *plan, int rank, int size)
{
    return open_with(job, plan, rank, size, 0);
}

void *start_job(void *job)
{
    ck_assert_int_eq(descant_start(job), DESCANT_OK);
    return NULL;
}

void start_both(struct descant *const job[2])
{
    pthread_t other;
    pthread_create(&other, NULL, start_job, job[1]);
    start_job(job[0]);
    pthread_join(other, NULL);
}
