/* SPDX-License-Identifier: MIT */
/* A command's output under another name until it is whole, so that a full disk, bad data
 * or a signal leaves the earlier file. The new one has the rights of the file that it
 * replaces. */
#include "files/files.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

bool output_written(FILE *out, const char *name, const struct log *log)
{
    int error = stream_error(out);
    if (error)
        log_fail(log, DESCANT_SYSTEM, "%s: %s", name, strerror(error));
    return !error;
}

/* NULL with errno. The file has the rights of the old one, if there is one. */
static FILE *open_temporary(struct output *out, const struct stat *old)
{
    int n = snprintf(out->temporary, sizeof out->temporary, "%s.tmp", out->name);
    if (n >= (int)sizeof out->temporary) {
        out->temporary[0] = 0;
        errno = ENAMETOOLONG;
        return NULL;
    }
    FILE *file = file_anew_stream(out->temporary);
    if (file && old)
        fchmod(fileno(file), old->st_mode & 07777);
    return file;
}

/* The lock comes before NAME.tmp is made, since another run may be writing that. A pipe
 * or a device is written in place: a rename would put a file there instead. */
bool output_open(struct output *out, const char *name, const char *packed, FILE *standard,
                 const struct log *log)
{
    struct stat old;
    bool there = stat(name, &old) == 0, in_place = there && !S_ISREG(old.st_mode);

    *out = (struct output){.name = name, .log = log};
    out->standard = strcmp(name, "-") == 0;
    if (!out->standard && !in_place &&
        lock_take(&out->lock, name, NULL, true, log) != DESCANT_OK)
        return false;
    out->below = out->standard ? standard
                 : in_place    ? fopen(name, "we")
                               : open_temporary(out, there ? &old : NULL);
    out->file = out->below && packed ? pack_open(out->below, packed) : out->below;
    if (!out->file)
        log_fail(log, DESCANT_SYSTEM, "%s: %s", name, strerror(errno));
    return out->file != NULL;
}

bool output_close(struct output *out, bool good)
{
    bool written = good && output_written(out->file, out->name, out->log),
         whole = written;

    /* The order matters: the compressor's last bytes, then all bytes onto the disk, and
     * only then the rename, so that a crash leaves the old file or the whole new one. The
     * lock is given back when NAME.tmp is gone. */
    errno = 0;
    if (out->file && out->file != out->below)
        whole &= fclose(out->file) == 0;
    if (whole && out->temporary[0])
        whole = fflush(out->below) == 0 && fsync(fileno(out->below)) == 0;
    if (out->below && !out->standard)
        whole &= fclose(out->below) == 0;
    if (whole && out->temporary[0])
        whole = rename(out->temporary, out->name) == 0;
    if (written && !whole)
        log_fail(out->log, DESCANT_SYSTEM, "%s: %s", out->name,
                 strerror(errno ? errno : EIO));
    if (out->temporary[0] && !whole)
        unlink(out->temporary);
    lock_give(&out->lock);
    return whole;
}
