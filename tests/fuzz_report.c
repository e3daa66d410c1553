/* SPDX-License-Identifier: MIT */
/* A target for libFuzzer: bytes as a run's log, read and made into a page, alone and beside
 * itself. A line that begins with a control character below ' ' stands 32 times as often as that
 * character's number says, so that a few bytes make a log longer than any room that is taken for
 * it at first; a log as it was written is a seed as it is. */
#include "report/report.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

static char path[64];       /* of a file of its own for each process, used again */

static void put_line(FILE *out, const uint8_t *line, size_t n)
{
    int times = 1;
    if (*line < ' ' && *line != '\n') {
        times = 32 * *line++;
        n--;
    }
    while (times-- > 0)
        fwrite(line, 1, n, out);
}

static void put_log(const uint8_t *bytes, size_t n)
{
    static int fd = -1;
    if (fd < 0)
        fd = memfd_create("fuzz", 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    FILE *out = fopen(path, "w");
    if (!out)
        abort();
    for (size_t at = 0, length; at < n; at += length) {
        const uint8_t *end = memchr(bytes + at, '\n', n - at);
        length = end ? (size_t)(end - bytes) - at + 1 : n - at;
        put_line(out, bytes + at, length);
    }
    if (fclose(out) != 0)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    static FILE *nowhere;
    struct report_run runs[2];
    long live = memory_live();
    if (!nowhere && !(nowhere = fopen("/dev/null", "w")))
        abort();
    put_log(bytes, n);
    bool good[2];
    for (int r = 0; r < 2; r++)
        good[r] = report_read(&runs[r], path, nowhere);
    if (good[0] && !report_page(nowhere, runs, 1))
        abort();
    if (good[0] && good[1] && !report_page(nowhere, runs, 2))
        abort();
    for (int r = 0; r < 2; r++)
        report_run_fini(&runs[r]);
    if (memory_live() != live)
        abort();
    return 0;
}
