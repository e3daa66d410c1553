/* SPDX-License-Identifier: MIT */
/* The search for a run's segments on this machine, by their names. */
#include "control/control.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

static int by_number(const void *a, const void *b)
{
    int x = *(const int *)a, y = *(const int *)b;
    return (x > y) - (x < y);
}

/* Names are descant.RUN-NUMBER in /dev/shm. Numbers come back in ascending order. */
int bsp_find_segments(const char *run, int numbers[BSP_MODULES])
{
    char begin[BSP_SEGMENT + 16];
    int n = 0, length = snprintf(begin, sizeof begin, "descant.%s-", run);
    DIR *dir = opendir("/dev/shm");
    struct dirent *entry;
    while (dir && n < BSP_MODULES && (entry = readdir(dir)) != NULL) {
        const char *number = entry->d_name + length;
        if (strncmp(entry->d_name, begin, (size_t)length) == 0 && *number &&
            strlen(number) < 7 && strspn(number, "0123456789") == strlen(number))
            numbers[n++] = atoi(number);
    }
    if (dir)
        closedir(dir);
    qsort(numbers, (size_t)n, sizeof *numbers, by_number);
    return n;
}
