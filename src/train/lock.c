/* SPDX-License-Identifier: MIT */
/* The lock of FILE is an flock on FILE.lock: FILE itself is replaced by renaming while a run goes
 * on, and a lock on it would go with the old one. The kernel gives it back however its holders
 * end; trainers that were forked hold it with their parent, so a run whose parent was killed keeps
 * its files until its last trainer is gone.
 *
 * A run under a launcher has no parent. Each of its trainers holds the lock shared with the
 * others, and FILE.lock has the run's name in it, by which one of another run knows that it may
 * not. Who comes first holds it alone for a moment, to write that name.
 *
 * FILE.lock is removed by the last holder, while it holds it alone; who opened it before that
 * finds that the name has gone, and begins again. What a killed run leaves harms nobody. */
#include "train/lock.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NAME_ROOM = 64, TRIES = 30, TRY_NS = 10000000 };

/* 1: taken; 0: somebody has it; -1: the file was removed meanwhile, or the system refused. */
static int try_lock(int fd, const char *path, int how)
{
    struct stat mine, there;

    if (flock(fd, how | LOCK_NB) != 0)
        return errno == EWOULDBLOCK ? 0 : -1;
    return fstat(fd, &mine) == 0 && stat(path, &there) == 0 && mine.st_ino == there.st_ino &&
                   mine.st_dev == there.st_dev
               ? 1 : -1;
}

static bool write_name(int fd, const char *whose)
{
    size_t n = strlen(whose);
    return ftruncate(fd, 0) == 0 && pwrite(fd, whose, n, 0) == (ssize_t)n;
}

static bool has_name(int fd, const char *whose)
{
    char name[NAME_ROOM];
    ssize_t n = pread(fd, name, sizeof name, 0);
    return n == (ssize_t)strlen(whose) && memcmp(name, whose, (size_t)n) == 0;
}

/* As try_lock; 2: another run has it. */
static int try_share(int fd, const char *path, const char *whose)
{
    int got = try_lock(fd, path, LOCK_EX);

    if (got > 0 && !write_name(fd, whose))
        return -1;
    if (got >= 0)               /* the first one comes down to the others, who may have come by */
        got = try_lock(fd, path, LOCK_SH);
    return got == 1 && !has_name(fd, whose) ? 2 : got;
}

/* One try; true: *fd is open and has the lock, or *got tells why not. */
static bool try_open(const char *path, const char *whose, int *fd, int *got)
{
    *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (*fd < 0)
        return true;
    *got = whose ? try_share(*fd, path, whose) : try_lock(*fd, path, LOCK_EX);
    if (*got == 1)
        return true;
    close(*fd);
    return *got == 2;
}

static bool is_none(const char *path)
{
    struct stat of;
    return stat(path, &of) == 0 && !S_ISREG(of.st_mode);
}

descant_status lock_take(struct lock *lock, const char *path, const char *whose, bool must,
                         const struct log *log)
{
    int fd = -1, got = 0;
    bool ended = false;

    lock->path[0] = 0;
    if (!path || (!must && is_none(path)))
        return DESCANT_OK;
    if (snprintf(lock->path, sizeof lock->path, "%s.lock", path) >= (int)sizeof lock->path) {
        lock->path[0] = 0;
        return log_fail(log, DESCANT_SYSTEM, "%s: the name is too long", path);
    }
    for (int k = 0; k < TRIES && !ended; k++) {
        ended = try_open(lock->path, whose, &fd, &got);
        if (!ended)
            clock_sleep_until(clock_now_ns() + TRY_NS);
    }
    if (ended && fd >= 0 && got == 1) {
        lock->fd = fd;
        return DESCANT_OK;
    }
    lock->path[0] = 0;
    if (!ended || got == 2)
        return log_fail(log, DESCANT_MISMATCH, "%s is in use by another run", path);
    return must ? log_fail(log, DESCANT_SYSTEM, "%s cannot be written: %s", path, strerror(errno))
                : DESCANT_OK;
}

void lock_give(struct lock *lock)
{
    if (!lock->path[0])
        return;
    if (try_lock(lock->fd, lock->path, LOCK_EX) == 1)
        unlink(lock->path);
    close(lock->fd);
    lock->path[0] = 0;
}
