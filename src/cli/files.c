/* SPDX-License-Identifier: MIT */
/* The files that a command reads and writes. A file that is written must be none of the
 * others, by whatever name: a path, a link, a second link. A pipe or a device may be
 * named twice; "-" is no file. A file that is not there yet is known by its folder and
 * its name. */
#include "cli/cli.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_ROOM = 4096 };

struct file_place {
    dev_t device;
    ino_t number;               /* of the file, or of the folder that will have it */
    const char *name;           /* there; NULL: the file itself */
};

static const char *last_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static const char *folder_name(const char *path, char *folder)
{
    int n = (int)(last_name(path) - path);

    snprintf(folder, PATH_ROOM, "%.*s", n ? n : 1, n ? path : ".");
    return folder;
}

static bool folder_of(const char *path, struct stat *of)
{
    char folder[PATH_ROOM];
    return stat(folder_name(path, folder), of) == 0;
}

/* To be written in. */
static bool folder_open(const char *path)
{
    char folder[PATH_ROOM];
    return access(folder_name(path, folder), W_OK) == 0;
}

/* False: the path is no file, nor can be one. */
static bool find(const char *path, struct file_place *out)
{
    struct stat of;

    if (strcmp(path, "-") == 0)
        return false;
    out->name = NULL;
    if (stat(path, &of) != 0) {
        out->name = last_name(path);
        if (!folder_of(path, &of))
            return false;
    } else if (!S_ISREG(of.st_mode)) {
        return false;
    }
    out->device = of.st_dev;
    out->number = of.st_ino;
    return true;
}

static bool same(const char *a, const char *b)
{
    struct file_place x, y;

    if (!find(a, &x) || !find(b, &y) || x.device != y.device || x.number != y.number)
        return false;
    return x.name && y.name ? strcmp(x.name, y.name) == 0 : !x.name && !y.name;
}

/* Whether one of the names, which have commas between them, is the file at `path`:
 * *found. The text may also be one name with commas in it. */
static bool among(const char *names, const char *path, char *found)
{
    snprintf(found, PATH_ROOM, "%s", names);
    if (same(found, path))
        return true;
    for (const char *at = names; *at;) {
        size_t n = strcspn(at, ",");
        snprintf(found, PATH_ROOM, "%.*s", (int)n, at);
        if (same(found, path))
            return true;
        at += n + (at[n] == ',');
    }
    return false;
}

/* The files that are written: this one, and others beside it. */
enum { MOST_SUFFIXES = 9 };
static const char *const suffixes[][MOST_SUFFIXES] = {
    [CLI_WRITES] = {"", ".lock", ".old"},
    [CLI_MAKES] = {"", ".lock", ".tmp"},
    [CLI_REPLACES] = {"", ".lock", ".tmp", ".previous", ".old", ".best", ".best.tmp",
                      ".best.old"},
};

static bool apart(const struct cli *cli, const struct cli_file *writer,
                  const struct cli_file *other)
{
    char path[PATH_ROOM], found[PATH_ROOM];

    for (int i = 0; i < MOST_SUFFIXES && suffixes[writer->kind][i]; i++) {
        snprintf(path, sizeof path, "%s%s", writer->name, suffixes[writer->kind][i]);
        if (!among(other->name, path, found))
            continue;
        const char *option = other->option;
        cli_bad_use(cli, "%s%s%s%s would be written over by --%s%s%s", option ? "--" : "",
                    option ? option : "", option ? " " : "", found, writer->option,
                    i ? ", which also writes " : "", i ? last_name(path) : "");
        return false;
    }
    return true;
}

bool cli_files_apart(const struct cli *cli, const struct cli_file *files, int n)
{
    for (int i = 0; i < n; i++)
        for (int k = 0; k < n; k++) {
            const struct cli_file *writer = &files[i], *other = &files[k];
            if (i != k && writer->kind != CLI_READS && writer->name && other->name &&
                !apart(cli, writer, other))
                return false;
        }
    return true;
}

bool cli_file_follow(const struct cli *cli, const char *option, const char **path,
                     char *target)
{
    if (!*path)
        return true;
    if (!path_follow(*path, target, PATH_MAX)) {
        cli_bad_use(cli, "--%s %s: %s", option, *path, strerror(errno));
        return false;
    }
    *path = target;
    return true;
}

bool cli_file_good(const struct cli *cli, const char *option, const char *path)
{
    struct stat of;
    bool there = stat(path, &of) == 0;

    if (there ? S_ISDIR(of.st_mode) : !*last_name(path))
        cli_bad_use(cli, "--%s %s: a folder is no file", option, path);
    else if (there && !S_ISREG(of.st_mode))
        cli_bad_use(cli, "--%s %s: it is no regular file", option, path);
    else if (!folder_of(path, &of) || !folder_open(path))
        cli_bad_use(cli, "--%s %s: cannot be written: %s", option, path, strerror(errno));
    else
        return true;
    return false;
}
