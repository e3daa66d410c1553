/* SPDX-License-Identifier: MIT */
/* What MPICH's launchers hear from a rank beside MPI: PMI-1, lines over a descriptor. */
#ifndef PMI_H
#define PMI_H

#include <stdbool.h>

/* Leaves the job as MPI_Finalize does, but for the network: waits until all ranks have come here,
 * calling `progress` meanwhile, and tells the launcher that this rank ends in good order. False:
 * there is no such launcher, or it did not answer as it should, or, which is said, not in so long. */
bool pmi_leave(void (*progress)(void), int most_ms);

#endif
