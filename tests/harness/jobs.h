/* SPDX-License-Identifier: MIT */
/* Jobs as tests open them. */
#ifndef HARNESS_JOBS_H
#define HARNESS_JOBS_H

#include "descant.h"

extern char job_address[80];

/* Makes job_address that of another job over shm; more: after its name, such as
 * ",rtt=2ms". */
void new_address(const char *more);
struct descant *open_job(const char *job, const char *plan, int rank, int size);
/* Opens the job at job_address, with half a core for its shadow. */
struct descant *open_here(const char *plan, int rank, int size);
void *start_job(void *job);
void start_both(struct descant *const job[2]);      /* two trainers that start together */

#endif
