/* SPDX-License-Identifier: MIT */
/* A rank's words to MPICH's launchers beside MPI: PMI-1, lines over a descriptor. */
#ifndef PMI_H
#define PMI_H

#include <stdbool.h>

/* Leaves the job as MPI_Finalize does, but for the network: waits until all ranks have
 * come here, calling `progress` meanwhile, and tells the launcher that this rank ends in
 * good order. False: there is no such launcher, or it did not answer as it should, or,
 * which is said, not in so long. */
bool pmi_leave(void (*progress)(void), int most_ms);

/* Tells the launcher, if it is one that speaks so, to end the job: this rank ends with
 * the status, and will not come to MPI_Init, where the others would wait for it for
 * ever. */
void pmi_abort(int status);

#endif
