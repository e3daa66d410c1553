/* SPDX-License-Identifier: MIT */
/* For tests and benchmarks: from hold to release no piece of the job's round is made. Its
 * shadow stands still between two pieces, and a call that needs the round waits. The
 * thread that holds a job releases it. A hold pays for nothing that the shadow owes. */
#ifndef HOLD_H
#define HOLD_H

struct descant;

void job_hold(struct descant *job);
void job_release(struct descant *job);

#endif
