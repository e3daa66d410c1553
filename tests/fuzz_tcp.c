/* SPDX-License-Identifier: MIT */
/* A target for libFuzzer: a rank over TCP, and all that others may do to it (tcp_bytes.h).
 * An empty folder that is named gets the scripts that tcp_bytes.c has, to begin with. */
#include "tcp_bytes.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);
int LLVMFuzzerInitialize(int *n, char ***arguments);

static bool is_empty(const char *folder)
{
    DIR *dir = opendir(folder);
    struct dirent *entry = dir ? readdir(dir) : NULL;
    bool empty = dir != NULL;

    for (; entry; entry = readdir(dir))
        empty &= *entry->d_name == '.';
    if (dir)
        closedir(dir);
    return empty;
}

static void put_seeds(const char *folder)
{
    for (int i = 0; i < n_tcp_bytes_seeds; i++) {
        const struct tcp_bytes_seed *seed = &tcp_bytes_seeds[i];
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", folder, seed->name);
        FILE *out = fopen(path, "we");
        if (!out || fwrite(seed->bytes, 1, seed->n, out) != seed->n || fclose(out) != 0)
            abort();
    }
}

int LLVMFuzzerInitialize(int *n, char ***arguments)
{
    for (int i = 1; i < *n; i++)
        if ((*arguments)[i][0] != '-' && is_empty((*arguments)[i])) {
            put_seeds((*arguments)[i]);
            break;
        }
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    char why[512];

    if (tcp_bytes_run(bytes, n, why))
        return 0;
    fprintf(stderr, "%s\n", why);
    abort();
}
