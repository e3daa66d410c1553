/* SPDX-License-Identifier: MIT */
/* The thread of a trainer that answers newcomers and notices deaths. */
#ifndef MACHINE_DOORMAN_H
#define MACHINE_DOORMAN_H

#include "machine/meet.h"

/* With a seat. From here to stop, peers and callers are the doorman's. stop takes one that has
 * not started. */
descant_status doorman_start(struct meet *meet);
void doorman_stop(struct meet *meet);

#endif
