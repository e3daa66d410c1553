/* SPDX-License-Identifier: MIT */
/* One step of a wait that has an end. */
#include "harness/wait.h"

#include <check.h>
#include <stdarg.h>

bool reaches(const _Atomic int *figure, int value)
{
    WAIT_UNTIL(*figure >= value, "it is %d, not %d", *figure, value);
    return true;
}

void wait_on(uint64_t began_ns, const char *file, int line, const char *condition,
             const char *format, ...)
{
    char text[3000];            /* more does not fit into a failure's message */
    va_list list;
    if (clock_now_ns() - began_ns < PATIENCE_S * UINT64_C(1000000000)) {
        clock_sleep_until(clock_now_ns() + 1000000);
        return;
    }
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    ck_abort_msg("%s:%d: waited %d s for %s: %s", file, line, PATIENCE_S, condition,
                 text);
}
