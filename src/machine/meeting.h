/* SPDX-License-Identifier: MIT */
/* Processes of a machine meet by a name, and share blocks by name. */
#ifndef MACHINE_MEETING_H
#define MACHINE_MEETING_H

#include "base/base.h"

struct meet;

/* For blocks alone: a meeting in which this process has that rank. */
descant_status meeting_open(struct meet **out, const char *name, int rank, double start_s,
                            const struct log *log);
void meeting_close(struct meet *meet);

/* The same of a caller's meeting, after meet_init and its own additions. Takes a slot
 * for the rank, which is settled where it is -1. leave takes one that has failed to join,
 * too. */
descant_status meeting_join(struct meet *meet, int *rank);
void meeting_leave(struct meet *meet);

/* The block of that name, one for all, zero at first; until close. */
descant_status meeting_share(struct meet *meet, const char *name, size_t bytes,
                             void **block);

#endif
