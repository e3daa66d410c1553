/* SPDX-License-Identifier: MIT */
/* Whom a trainer of shared memory waits for, read off the board. */
#ifndef SHM_WAITS_H
#define SHM_WAITS_H

#include "shm/shm.h"

/* After a poll, by who polled. */
void shm_waits_note(struct shm *shm, enum fabric_progress progress);

/* Sleeps as shm_round_wait does, and says for whom. */
void shm_waits_sleep(struct shm *shm, uint64_t until_ns);

#endif
