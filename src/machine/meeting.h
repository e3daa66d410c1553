/* SPDX-License-Identifier: MIT */
/* Processes of a machine meet by a name, and share blocks by name. */
#ifndef MACHINE_MEETING_H
#define MACHINE_MEETING_H

#include "machine/meet.h"

/* With meet_init; `type` and `user` may be set between. Takes a slot for that rank, which it settles
 * where it is -1. close takes one that failed, and half-built ones. */
descant_status meeting_open(struct meet *meet, int *rank, uint64_t until_ns);
void meeting_close(struct meet *meet);

/* The block of that name, one for all, zero at first; until close. */
descant_status meeting_share(struct meet *meet, const char *name, size_t bytes,
                             uint64_t until_ns, void **block);

#endif
