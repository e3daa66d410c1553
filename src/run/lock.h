/* SPDX-License-Identifier: MIT */
/* A file that a run writes is its own while it lasts, whoever else wants to write it. */
#ifndef LOCK_H
#define LOCK_H

#include "base/base.h"

struct lock {
    char path[4096];            /* of the lock; "" where nothing is locked */
    int fd;
};

/* Takes FILE for the run of that id, and for all others who say the same id; `whose`
 * NULL: for this process and those it forks. MISMATCH: another run has it. A file that is
 * none, or in a folder that cannot be written, needs no lock if `must` is false. path
 * NULL: nothing is done. */
descant_status lock_take(struct lock *lock, const char *path, const char *whose,
                         bool must, const struct log *log);

/* A run's own two: its checkpoint, which must be locked, and its log. After a failure,
 * too, what was taken is to be given back. */
enum { LOCK_CHECKPOINT, LOCK_LOG, LOCK_FILES };
descant_status lock_take_files(struct lock locks[LOCK_FILES], const char *checkpoint,
                               const char *run_log, const char *whose,
                               const struct log *log);
void lock_give_files(struct lock locks[LOCK_FILES]);

/* The last one to give it back removes what is beside the file. Only by who took it. */
void lock_give(struct lock *lock);

#endif
