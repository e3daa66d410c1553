/* SPDX-License-Identifier: MIT */
/* A target for libFuzzer: two or three ranks in one thread, of which one sends what the
 * bytes make of its messages (hostile.h). */
#include "hostile.h"

#include <check.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

/* What Check's macros call, without Check, which knows its own processes alone. */
void _mark_point(const char *file, int line)
{
    (void)file;
    (void)line;
}

void _ck_assert_failed(const char *file, int line, const char *expression,
                       const char *format, ...)
{
    va_list list;

    fprintf(stderr, "%s:%d: %s: ", file, line, expression);
    va_start(list, format);
    if (format)
        vfprintf(stderr, format, list);
    va_end(list);
    abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    hostile_run_bytes(bytes, n);
    return 0;
}
