/* SPDX-License-Identifier: MIT */
/* Files of a test: each test has a folder of its own, in one that main makes and removes, so
 * that a test that fails leaves nothing behind either. */
#ifndef FOLDER_H
#define FOLDER_H

#include "base/base.h"

#include <check.h>
#include <errno.h>
#include <ftw.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[] = "/tmp/descant-test-XXXXXX", folder[64];

static void make_folder(void)
{
    snprintf(folder, sizeof folder, "%s/%d", root, (int)getpid());
    ck_assert_int_eq(mkdir(folder, 0700), 0);
}

static int remove_one(const char *path, const struct stat *about, int type, struct FTW *walk)
{
    (void)about, (void)type, (void)walk;
    return remove(path);
}

static void remove_folder(void)
{
    nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    ck_assert_int_eq(memory_live(), 0);
}

/* A path in it, valid until the test's end. */
static inline const char *in_folder(const char *name)
{
    static char paths[16][160];
    char path[160];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    for (int i = 0; i < 16; i++)
        if (!paths[i][0] || strcmp(paths[i], path) == 0)
            return strcpy(paths[i], path);
    ck_abort_msg("too many paths");
}

static inline void put_file(const char *path, const void *bytes, size_t n)
{
    FILE *f = fopen(path, "wb");
    ck_assert_ptr_nonnull(f);
    ck_assert_uint_eq(fwrite(bytes, 1, n, f), n);
    ck_assert_int_eq(fclose(f), 0);
}

static inline char *get_file(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    ck_assert_msg(f != NULL, "%s: %s", path, strerror(errno));
    char *bytes = calloc(1, 1 << 20);
    *n = fread(bytes, 1, (1 << 20) - 1, f);
    fclose(f);
    return bytes;
}

static inline void no_file(const char *path)
{
    ck_assert_msg(access(path, F_OK) != 0, "%s is left", path);
}

/* Runs the suite; main returns what it returns. */
static int run_in_folder(Suite *suite)
{
    if (!mkdtemp(root))
        return 1;
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    nftw(root, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    return failed != 0;
}

#endif
