/* SPDX-License-Identifier: MIT */
/* A line of descant info has a name, and a text, which may come out of a file. */
#include "files/say.h"

#include <stdarg.h>
#include <string.h>

void say(FILE *out, const char *name, const char *format, ...)
{
    char text[1024];
    va_list list;

    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    for (char *at = text; (at = strpbrk(at, "\n\t")) != NULL;)
        *at = '?';
    fprintf(out, "%-18s %s\n", name, text);
}
