/* SPDX-License-Identifier: MIT */
/* Locks on the files that a run writes: while the run lasts, no other run writes them. */
#ifndef LOCK_H
#define LOCK_H

#include "base/base.h"

struct lock {
    char path[4096];            /* of the lock; "" where nothing is locked */
    int fd;
};

/* Locks FILE for all processes that give the same run id `whose`; NULL: for this process
 * and those that it forks. MISMATCH: another run has the lock. Where `must` is false, a
 * path that is no regular file, or is in a folder that cannot be written, needs no lock.
 * path NULL: nothing is done. */
descant_status lock_take(struct lock *lock, const char *path, const char *whose,
                         bool must, const struct log *log);

/* Locks a run's checkpoint, which must be locked, and its log. Call lock_give_files after
 * a failure, too. */
enum { LOCK_CHECKPOINT, LOCK_LOG, LOCK_FILES };
descant_status lock_take_files(struct lock locks[LOCK_FILES], const char *checkpoint,
                               const char *run_log, const char *whose,
                               const struct log *log);
void lock_give_files(struct lock locks[LOCK_FILES]);

/* The last holder removes the lock file. Only the process that took a lock gives it
 * back. */
void lock_give(struct lock *lock);

#endif
