/* SPDX-License-Identifier: MIT */
/* A rank's messages to MPICH's launchers outside of MPI: PMI-1, lines over a
 * descriptor. */
#ifndef PMI_H
#define PMI_H

#include <stdbool.h>

/* Leaves the job as MPI_Finalize does, but for the network: waits until all ranks have
 * come here, calling `progress` meanwhile, and tells the launcher that this rank ends in
 * good order. False: there is no such launcher, or its answer was wrong, or (which is
 * logged) late. */
bool pmi_leave(void (*progress)(void), int most_ms);

/* Tells a launcher that speaks PMI-1 to end the job: this rank ends with the status, and
 * will not come to MPI_Init, where the others would wait for it for ever. */
void pmi_abort(int status);

#endif
