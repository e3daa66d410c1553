/* SPDX-License-Identifier: MIT */
#include "hub/hub.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void *fail(const char *path, const struct log *log)
{
    log_fail(log, DESCANT_SYSTEM, "%s: %s", path, strerror(errno));
    return NULL;
}

void *kept_read(const char *path, size_t *bytes, const struct log *log)
{
    struct stat of;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);     /* not of a FIFO */
    size_t at = 0;
    ssize_t n = 1;

    *bytes = 0;
    if (fd < 0 && errno == ENOENT)
        return NULL;
    *bytes = 1;
    if (fd < 0 || fstat(fd, &of) != 0) {
        if (fd >= 0)
            close(fd);
        return fail(path, log);
    }
    *bytes = (size_t)of.st_size;
    char *memory = memory_take(*bytes + 1);
    while (memory && at < *bytes && (n = read(fd, memory + at, *bytes - at)) > 0)
        at += (size_t)n;
    int error = !memory ? ENOMEM : n < 0 ? errno : EIO;
    close(fd);
    if (memory && at == *bytes)
        return memory;
    errno = error;
    memory_give(memory);
    *bytes = 1;
    return fail(path, log);
}

static bool write_all(int fd, const char *p, size_t n)
{
    while (n) {
        ssize_t some = write(fd, p, n);
        if (some < 0 && errno != EINTR)
            return false;
        p += some > 0 ? some : 0;
        n -= some > 0 ? (size_t)some : 0;
    }
    return true;
}

/* The folder, too, or the name may be gone after a power cut. */
static bool sync_folder(const char *path)
{
    char folder[PATH_MAX];
    const char *slash = strrchr(path, '/');

    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - path) + 1 : 1,
             slash ? path : ".");
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool good = fd >= 0 && fsync(fd) == 0;
    if (fd >= 0)
        close(fd);
    return good;
}

enum { NAME = PATH_MAX + 8 };

/* The file behind `path`, and beside it the one that will replace it. */
static int open_beside(const char *path, char target[PATH_MAX], char temporary[NAME])
{
    if (!path_follow(path, target, PATH_MAX))
        return -1;
    snprintf(temporary, NAME, "%s.tmp", target);
    return file_anew(temporary);
}

bool kept_check(const char *path, const struct log *log)
{
    char target[PATH_MAX], temporary[NAME];
    int fd = open_beside(path, target, temporary);

    if (fd < 0)
        return fail(path, log);
    close(fd);
    unlink(temporary);
    return true;
}

bool kept_write(const char *path, const void *bytes, size_t n, const struct log *log)
{
    char target[PATH_MAX] = "", temporary[NAME] = "";
    int fd = open_beside(path, target, temporary);
    bool good = fd >= 0 && write_all(fd, bytes, n) && fsync(fd) == 0;
    int error = errno;
    if (fd >= 0)
        close(fd);
    errno = error;
    if (good && rename(temporary, target) == 0) {
        if (!sync_folder(target))
            log_say(log, DESCANT_WARNING, "%s: its folder is not synced: %s", path,
                    strerror(errno));
        return true;
    }
    fail(path, log);
    if (*temporary)
        unlink(temporary);
    return false;
}
