/* SPDX-License-Identifier: MIT */
/* Processes of a machine meet by a name, and share blocks by name. */
#ifndef MACHINE_MEETING_H
#define MACHINE_MEETING_H

#include "base/base.h"

struct meet;

/* Opens a meeting for blocks alone, in which this process has that rank. */
descant_status meeting_open(struct meet **out, const char *name, int rank, double start_s,
                            const struct log *log);
void meeting_close(struct meet *meet);

/* The same for a caller's meeting, after meet_init and the caller's own additions. Takes
 * a slot for the rank, which is settled where it is -1. meeting_leave also takes a
 * meeting that has failed to join. */
descant_status meeting_join(struct meet *meet, int *rank);
void meeting_leave(struct meet *meet);

/* The block of that name, shared by all, zero at first; valid until close. */
descant_status meeting_share(struct meet *meet, const char *name, size_t bytes,
                             void **block);

#endif
