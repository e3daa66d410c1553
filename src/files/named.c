/* SPDX-License-Identifier: MIT */
/* The files that a command is told to read and to write. A file that is written must be
 * none of the others, under any name: a path, a link, a second link. A pipe or a device
 * may be named twice; "-" is no file. A file that is not there yet is known by its folder
 * and its name. */
#include "data/kind.h"
#include "data/paths.h"
#include "files/files.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { OPTION_LEAD = 64 };

/* The identity of a file, also of one that does not exist yet. */
struct file_id {
    dev_t device;
    ino_t number;               /* of the file, or of the folder that will have it */
    const char *name;           /* there; NULL: the file itself */
};

static const char *last_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* Whether there is a folder that has the file, or will. */
static bool folder_of(const char *path, struct stat *of, bool writable)
{
    char folder[PATH_MAX];
    int n = (int)(last_name(path) - path);

    snprintf(folder, sizeof folder, "%.*s", n ? n : 1, n ? path : ".");
    return stat(folder, of) == 0 && (!writable || access(folder, W_OK) == 0);
}

/* False: it is no file, and cannot become one. */
static bool find(const char *path, struct file_id *out)
{
    struct stat of;

    if (strcmp(path, "-") == 0)
        return false;
    out->name = NULL;
    if (stat(path, &of) != 0) {
        out->name = last_name(path);
        if (!folder_of(path, &of, false))
            return false;
    } else if (!S_ISREG(of.st_mode)) {
        return false;
    }
    out->device = of.st_dev;
    out->number = of.st_ino;
    return true;
}

/* Files that are not there yet are one where folder and name are the same. A file that is
 * there has no name here, so it is none of those. */
static bool same(const char *a, const char *b)
{
    struct file_id x, y;

    if (!find(a, &x) || !find(b, &y) || x.device != y.device || x.number != y.number)
        return false;
    return x.name && y.name ? strcmp(x.name, y.name) == 0 : !x.name && !y.name;
}

/* Whether one of the names, which have commas between them, is the file at `path`:
 * *found. The whole text may also be one name. */
static bool among(const char *names, const char *path, char *found)
{
    snprintf(found, PATH_MAX, "%s", names);
    if (same(found, path))
        return true;
    for (const char *at = names; *at;) {
        size_t n = strcspn(at, ",");
        snprintf(found, PATH_MAX, "%.*s", (int)n, at);
        if (same(found, path))
            return true;
        at += n + (at[n] == ',');
    }
    return false;
}

/* "--option ", or nothing where the file is named by its place. */
static const char *dashed(const char *option, char lead[OPTION_LEAD])
{
    snprintf(lead, OPTION_LEAD, option ? "--%s " : "%s", option ? option : "");
    return lead;
}

/* Whether none of the files that the first one makes, itself and those beside it, is the
 * other one. */
static bool apart(const struct named_file *writer, const struct named_file *other,
                  char *message, size_t room)
{
    enum { MOST_SUFFIXES = 9 };
    /* For each use the ends of the names that it writes: "" is the file itself. The table
     * is that of enum file_use, and NULL ends a row. */
    static const char *const suffixes[][MOST_SUFFIXES] = {
        [FILE_READ] = {NULL},
        [FILE_LOGGED] = {"", ".lock", ".old"},
        [FILE_PUT] = {"", ".lock", ".tmp"},
        [FILE_MADE] = {"", ".lock", ".tmp"},
        [FILE_KEPT] = {"", ".lock", ".tmp", ".previous", ".old", ".best", ".best.tmp",
                       ".best.old"},
    };
    char path[PATH_MAX], found[PATH_MAX], lead[OPTION_LEAD];

    for (int i = 0; i < MOST_SUFFIXES && suffixes[writer->use][i]; i++) {
        snprintf(path, sizeof path, "%s%s", *writer->name, suffixes[writer->use][i]);
        if (!among(*other->name, path, found))
            continue;
        const char *by = writer->option;
        snprintf(message, room, "%s%s would be written over%s%s%s%s%s",
                 dashed(other->option, lead), found, by || i ? " by " : "",
                 by ? "--" : "", by ? by : i ? *writer->name : "",
                 i ? ", which also writes " : "", i ? last_name(path) : "");
        return false;
    }
    return true;
}

/* Whether a log can be written there: no file, a plain one, or no regular file. */
static bool log_good(const char *option, const char *path, char *message, size_t room)
{
    enum file_kind kind = input_is_file(path) ? file_kind_of(path) : FILE_EMPTY;
    FILE *log = kind == FILE_LOG ? fopen(path, "re") : NULL;
    bool good = kind == FILE_EMPTY || (log && getc(log) == '{');

    if (log)
        fclose(log);
    if (!good)
        snprintf(message, room,
                 "--%s %s: it is %s, and is left as it is: remove it, or give the log "
                 "another name",
                 option, path,
                 kind == FILE_LOG ? "a compressed log, to which no line can be added"
                                  : file_kind_text(kind));
    return good;
}

/* Whether a regular file can be put there, in place of one or as a new one. */
static bool replace_good(const char *option, const char *path, char *message, size_t room)
{
    struct stat of;
    char lead[OPTION_LEAD];
    bool there = stat(path, &of) == 0;

    dashed(option, lead);
    if (there ? S_ISDIR(of.st_mode) : !*last_name(path))
        snprintf(message, room, "%s%s: it is a folder", lead, path);
    else if (there && !S_ISREG(of.st_mode))
        snprintf(message, room, "%s%s: it is not a regular file", lead, path);
    else if (!folder_of(path, &of, true))
        snprintf(message, room, "%s%s: cannot be written: %s", lead, path,
                 strerror(errno));
    else
        return true;
    return false;
}

/* A file that is replaced goes by the target of its symbolic link; a device keeps its
 * name. */
static bool follow(const struct named_file *file, char *target, char *message,
                   size_t room)
{
    struct stat of;
    char lead[OPTION_LEAD];
    const char *path = *file->name;

    if (!path || file->use == FILE_READ || file->use == FILE_LOGGED ||
        (file->use == FILE_PUT && (strcmp(path, "-") == 0 ||
                                   (stat(path, &of) == 0 && !S_ISREG(of.st_mode)))))
        return true;
    if (!path_follow(path, target, PATH_MAX)) {
        int error = errno;
        snprintf(message, room, "%s%s: %s", dashed(file->option, lead), path,
                 strerror(error));
        return false;
    }
    *file->name = target;
    return true;
}

/* The link is followed first, for all tests are of the file that will be replaced. */
bool files_good(const struct named_file *files, int n, char *target, char *message,
                size_t room)
{
    bool good = follow(&files[0], target, message, room);

    for (int i = 0; i < n * n && good; i++) {
        const struct named_file *writer = &files[i / n], *other = &files[i % n];
        good = writer == other || !*writer->name || !*other->name ||
               apart(writer, other, message, room);
    }
    for (const struct named_file *f = files; f < files + n && good; f++) {
        if (*f->name && f->use == FILE_LOGGED)
            good = log_good(f->option, *f->name, message, room);
        else if (*f->name && (f->use == FILE_MADE || f->use == FILE_KEPT))
            good = replace_good(f->option, *f->name, message, room);
    }
    return good;
}
