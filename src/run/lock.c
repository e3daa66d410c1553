/* SPDX-License-Identifier: MIT */
/* The lock of FILE is an flock on FILE.lock: FILE itself is replaced by renaming while a
 * run goes on, and a lock on it would go with the old one. The kernel gives it back
 * however its holders end; trainers that were forked hold it with their parent, so a run
 * whose parent was killed keeps its files until its last trainer is gone.
 *
 * A run under a launcher has no parent. Each of its trainers holds the lock shared with
 * the others, and FILE.lock has the run's name in it, by which a trainer of another run
 * is refused. The first trainer holds the lock alone for a moment, to write that name.
 *
 * FILE.lock is removed by the last holder, while that holds it alone; a process that
 * opened it before finds that the name has gone, and begins again. A lock file that a
 * killed run leaves harms nothing. */
#include "run/lock.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NAME_ROOM = 64, TRIES = 30, TRY_NS = 10000000 };

enum got { GOT_REFUSED = -2, GOT_REMOVED, GOT_BUSY, GOT_LOCK, GOT_OTHERS };
/* refused: by the system, with errno; removed: the file is gone meanwhile; busy: another
 * process holds the lock for a moment; others: another run has it to its end */

static enum got try_lock(int fd, const char *path, int how)
{
    struct stat mine, there;

    if (flock(fd, how | LOCK_NB) != 0)
        return errno == EWOULDBLOCK ? GOT_BUSY : GOT_REFUSED;
    return fstat(fd, &mine) == 0 && stat(path, &there) == 0 &&
                   mine.st_ino == there.st_ino && mine.st_dev == there.st_dev
               ? GOT_LOCK
               : GOT_REMOVED;
}

static enum got try_share(int fd, const char *path, const char *whose)
{
    char name[NAME_ROOM];
    ssize_t n = (ssize_t)strlen(whose);
    enum got got = try_lock(fd, path, LOCK_EX);

    if (got == GOT_LOCK &&
        (ftruncate(fd, 0) != 0 || pwrite(fd, whose, (size_t)n, 0) != n))
        return GOT_REFUSED;
    /* the first one downgrades its lock, and the others may have got theirs meanwhile */
    if (got == GOT_LOCK || got == GOT_BUSY)
        got = try_lock(fd, path, LOCK_SH);
    if (got == GOT_LOCK && (pread(fd, name, sizeof name, 0) != n ||
                            memcmp(name, whose, (size_t)n) != 0))
        return GOT_OTHERS;
    return got;
}

/* Tries once. *fd is open where the try got the lock. */
static enum got try_open(const char *path, const char *whose, int *fd)
{
    *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (*fd < 0)
        return GOT_REFUSED;
    enum got got = whose ? try_share(*fd, path, whose) : try_lock(*fd, path, LOCK_EX);
    int error = errno;
    if (got != GOT_LOCK)
        close(*fd);
    errno = error;
    return got;
}

descant_status lock_take(struct lock *lock, const char *path, const char *whose,
                         bool must, const struct log *log)
{
    enum got got = GOT_BUSY;
    struct stat of;
    int fd;

    lock->path[0] = 0;
    if (!path || (!must && stat(path, &of) == 0 && !S_ISREG(of.st_mode)))
        return DESCANT_OK;
    if (snprintf(lock->path, sizeof lock->path, "%s.lock", path) >=
        (int)sizeof lock->path) {
        lock->path[0] = 0;
        return log_fail(log, DESCANT_SYSTEM, "%s: the name is too long", path);
    }
    for (int k = 0; k < TRIES && (got == GOT_BUSY || got == GOT_REMOVED); k++) {
        if (k)
            clock_sleep_until(clock_now_ns() + TRY_NS);
        got = try_open(lock->path, whose, &fd);
    }
    if (got == GOT_LOCK) {
        lock->fd = fd;
        return DESCANT_OK;
    }
    lock->path[0] = 0;
    if (got != GOT_REFUSED)
        return log_fail(log, DESCANT_MISMATCH, "%s is in use by another run", path);
    return must ? log_fail(log, DESCANT_SYSTEM, "%s cannot be written: %s", path,
                           strerror(errno))
                : DESCANT_OK;
}

void lock_give(struct lock *lock)
{
    if (!lock->path[0])
        return;
    if (try_lock(lock->fd, lock->path, LOCK_EX) == GOT_LOCK)
        unlink(lock->path);
    close(lock->fd);
    lock->path[0] = 0;
}

descant_status lock_take_files(struct lock locks[LOCK_FILES], const char *checkpoint,
                               const char *run_log, const char *whose,
                               const struct log *log)
{
    locks[LOCK_LOG].path[0] = 0;
    descant_status status =
        lock_take(&locks[LOCK_CHECKPOINT], checkpoint, whose, true, log);
    return status == DESCANT_OK ? lock_take(&locks[LOCK_LOG], run_log, whose, false, log)
                                : status;
}

void lock_give_files(struct lock locks[LOCK_FILES])
{
    for (int k = LOCK_FILES - 1; k >= 0; k--)
        lock_give(&locks[k]);
}
