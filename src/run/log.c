/* SPDX-License-Identifier: MIT */
/* A last line that a kill or a full disk has torn is cut off, where no other process
 * writes the file. Lines are appended (O_APPEND), so that the log of a run may go from
 * one process to the next when its writer dies. A log is UTF-8, one object a line: a
 * header, the lines of the run, and a summary. */
#include "run/log.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* Ends the file behind its last line's end. False with errno. */
static bool cut_torn_line(const char *path)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    off_t bytes = fd >= 0 ? lseek(fd, 0, SEEK_END) : -1;
    off_t end = bytes >= 0 ? file_line_end(fd, bytes, 0) : -1;
    bool good = end >= 0 && (end == bytes || ftruncate(fd, end) == 0);
    int error = errno;

    if (fd >= 0)
        close(fd);
    errno = error;
    return good;
}

/* An empty file, a pipe and a device are written as they are. A link stays, and the log
 * that it leads to is put aside. */
bool run_log_open(struct run_log *l, bool goes_on, bool alone)
{
    char target[4096], old[4096 + 8];
    const char *path = l->path;
    struct stat of;
    bool there = stat(path, &of) == 0 && S_ISREG(of.st_mode) && of.st_size > 0;

    if (there && goes_on && alone && !cut_torn_line(path))
        return false;
    if (there && !goes_on) {
        if (path_follow(path, target, sizeof target))
            path = target;
        snprintf(old, sizeof old, "%s.old", path);
        if (rename(path, old) != 0)
            return false;
    }
    l->file = fopen(path, "ae");
    return l->file != NULL;
}

void run_log_header(struct run_log *l, struct json *json, const struct told *told)
{
    char now[32];
    time_t seconds = time(NULL);
    struct tm utc;

    strftime(now, sizeof now, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&seconds, &utc));
    json_begin(json, l->file);
    json_text(json, "kind", "header");
    json_text(json, "descant", descant_version());
    json_text(json, "time", now);
    told_json(told, json);
}

/* Without `now` only the caller's own error is looked at; a line may be in the stream's
 * buffer still. */
void run_log_written(struct run_log *l, int error, bool now)
{
    if (!error && now)
        error = stream_error(l->file);
    if (!error)
        return;
    if (!atomic_exchange(l->failed, 1))
        log_fail(l->log, DESCANT_SYSTEM,
                 "%s: the log could not be written, and ends here: %s", l->path,
                 strerror(error));
    run_log_close(l);
}

void run_log_close(struct run_log *l)
{
    if (l->file)
        fclose(l->file);
    l->file = NULL;
}
