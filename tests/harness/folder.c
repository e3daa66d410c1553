/* SPDX-License-Identifier: MIT */
/* The folders of tests. Tests are processes: each one's folder has its process's
 * number for a name. */
#include "harness/folder.h"

#include "base/base.h"

#include <check.h>
#include <errno.h>
#include <ftw.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

char folder[64];

static char all[] = "/tmp/descant-test-XXXXXX";

bool open_folders(void)
{
    return mkdtemp(all) && chmod(all, 0711) == 0;   /* some tests become another user */
}

static int remove_one(const char *path, const struct stat *about, int type,
                      struct FTW *walk)
{
    (void)about, (void)type, (void)walk;
    return remove(path);
}

void close_folders(void)
{
    nftw(all, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

void make_folder(void)
{
    snprintf(folder, sizeof folder, "%s/%d", all, (int)getpid());
    ck_assert_int_eq(mkdir(folder, 0700), 0);
}

void remove_folder(void)
{
    nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    ck_assert_int_eq(memory_live(), 0);
}

const char *in_folder(const char *name)
{
    enum { PATHS = 64 };
    static char paths[PATHS][192];
    char path[192];
    if (!*folder)
        make_folder();
    snprintf(path, sizeof path, "%s/%s", folder, name);
    for (int i = 0; i < PATHS; i++)
        if (!paths[i][0] || strcmp(paths[i], path) == 0)
            return strcpy(paths[i], path);
    ck_abort_msg("too many paths");
}

const char *put_file(const char *path, const void *bytes, size_t n)
{
    FILE *f = fopen(path, "wb");
    ck_assert_msg(f != NULL, "%s: %s", path, strerror(errno));
    ck_assert_uint_eq(fwrite(bytes, 1, n, f), n);
    ck_assert_int_eq(fclose(f), 0);
    return path;
}

char *get_file(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    ck_assert_msg(f != NULL, "%s: %s", path, strerror(errno));
    char *bytes = calloc(1, 1 << 20);
    *n = fread(bytes, 1, (1 << 20) - 1, f);
    fclose(f);
    return bytes;
}

void no_file(const char *path)
{
    ck_assert_msg(access(path, F_OK) != 0, "%s is left", path);
}
