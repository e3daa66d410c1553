/* SPDX-License-Identifier: MIT */
/* Traps of files.
 *
 * A file that is replaced by renaming another one onto it: a symbolic link must be
 * followed first, for a rename replaces the link. The new file would not be where its
 * owner put it, and the old one would stay where all others look.
 *
 * A file at the limit of its size (ulimit -f, which holds for shared memory, too): the
 * kernel sends SIGXFSZ, which ends a program that does not ignore it. The program descant
 * ignores it; for a caller of the library the signal is held back here. */
#include "base/base.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MOST_LINKS = 40 };       /* as many as the kernel follows */

bool path_follow(const char *path, char *target, size_t room)
{
    char to[PATH_MAX], next[2 * PATH_MAX];

    if (snprintf(target, room, "%s", path) >= (int)room) {
        errno = ENAMETOOLONG;
        return false;
    }
    for (int k = 0; k < MOST_LINKS; k++) {
        ssize_t n = readlink(target, to, sizeof to);
        if (n < 0)
            return errno == EINVAL || errno == ENOENT;  /* no link; or nothing, yet */
        const char *slash = *to == '/' ? NULL : strrchr(target, '/');
        int length = snprintf(next, sizeof next, "%.*s%.*s",
                              slash ? (int)(slash - target + 1) : 0, target, (int)n, to);
        if ((size_t)n == sizeof to || (size_t)length >= room) {
            errno = ENAMETOOLONG;
            return false;
        }
        memcpy(target, next, (size_t)length + 1);
    }
    errno = ELOOP;
    return false;
}

int file_anew(const char *path)
{
    if (unlink(path) != 0 && errno != ENOENT)
        return -1;
    return open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
}

FILE *file_anew_stream(const char *path)
{
    int fd = file_anew(path);
    FILE *file = fd >= 0 ? fdopen(fd, "w") : NULL;
    int error = errno;

    if (fd >= 0 && !file)
        close(fd);
    errno = error;
    return file;
}

off_t file_line_end(int fd, off_t bytes, off_t least)
{
    char some[4096];

    for (off_t at = bytes, n; at > least; at -= n) {
        n = at - least < (off_t)sizeof some ? at - least : (off_t)sizeof some;
        if (pread(fd, some, (size_t)n, at - n) != n)
            return -1;
        const char *end = memrchr(some, '\n', (size_t)n);
        if (end)
            return at - n + (end - some) + 1;
    }
    return least;
}

int file_resize(int fd, uint64_t bytes, bool reserve)
{
    const struct timespec none = {0};
    sigset_t limit, old;
    sigemptyset(&limit);
    sigaddset(&limit, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &limit, &old);
    int failed =
        reserve ? fallocate(fd, 0, 0, (off_t)bytes) : ftruncate(fd, (off_t)bytes);
    int why = errno;
    if (failed && why == EFBIG && !sigismember(&old, SIGXFSZ))
        /* the signal came to this thread, and goes no further */
        sigtimedwait(&limit, NULL, &none);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    errno = why;
    return failed;
}
