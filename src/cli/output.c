/* SPDX-License-Identifier: MIT */
/* A command's output under another name until it is whole, so that a full disk, bad data
 * or a signal leaves the old file. The new file has the rights of the old one. */
#include "cli/output.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool is_standard(const char *name)
{
    return strcmp(name, "-") == 0;
}

bool output_follow(const struct cli *cli, const char *option, const char **name,
                   char *target)
{
    struct stat of;
    bool replaced = !is_standard(*name) && (stat(*name, &of) != 0 || S_ISREG(of.st_mode));
    return !replaced || cli_file_follow(cli, option, name, target);
}

bool output_written(FILE *out, const char *name, const struct log *log)
{
    int error = stream_error(out);
    if (error)
        log_fail(log, DESCANT_SYSTEM, "%s: %s", name, strerror(error));
    return !error;
}

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

bool output_open(struct output *out, const struct cli *cli, const char *name,
                 const struct log *log)
{
    struct stat old;
    bool there = stat(name, &old) == 0, in_place = there && !S_ISREG(old.st_mode);

    *out = (struct output){.name = name, .log = log};
    if (is_standard(name)) {
        out->file = cli->out;
        return true;
    }
    if (!in_place && lock_take(&out->lock, name, NULL, true, log) != DESCANT_OK)
        return false;
    out->file = in_place ? fopen(name, "we") : open_temporary(out, there ? &old : NULL);
    if (!out->file)
        log_fail(log, DESCANT_SYSTEM, "%s: %s", name, strerror(errno));
    return out->file != NULL;
}

bool output_close(struct output *out, const struct cli *cli, bool good)
{
    good = good && output_written(out->file, out->name, out->log);
    if (out->file && out->file != cli->out && fclose(out->file) != 0 && good) {
        log_fail(out->log, DESCANT_SYSTEM, "%s: %s", out->name, strerror(errno));
        good = false;
    }
    if (out->temporary[0] && good && rename(out->temporary, out->name) != 0) {
        log_fail(out->log, DESCANT_SYSTEM, "%s: %s", out->name, strerror(errno));
        good = false;
    }
    if (out->temporary[0] && !good)
        unlink(out->temporary);
    lock_give(&out->lock);
    return good;
}
