/* SPDX-License-Identifier: MIT */
/* The output of ranks, in whole lines with the rank before each, so that ranks do not
 * break into each other's lines. A line of over 16 KiB is printed as several, and so is a
 * line that carriage returns begin anew, such as progress. */
#include "hosts/hosts.h"

#include <string.h>

void output_init(struct output_lines *lines, FILE *to, int rank)
{
    lines->to = to;
    lines->rank = rank;
    lines->n = 0;
    lines->returned = false;
}

static void put_line(struct output_lines *lines)
{
    if (lines->rank >= 0)
        fprintf(lines->to, "[%d] ", lines->rank);
    fwrite(lines->line, 1, lines->n, lines->to);
    fputc('\n', lines->to);
    lines->n = 0;
}

void output_put(struct output_lines *lines, const char *bytes, size_t n)
{
    for (const char *end = bytes + n; bytes < end; bytes++) {
        bool ends = *bytes == '\n' || *bytes == '\r';
        bool second = *bytes == '\n' && lines->returned;
        lines->returned = *bytes == '\r';
        if (!ends)
            lines->line[lines->n++] = *bytes;
        if ((ends && !second) || lines->n == LINE_MOST)
            put_line(lines);
    }
    fflush(lines->to);
}

void output_end(struct output_lines *lines)
{
    if (lines->n > 0)
        put_line(lines);
    fflush(lines->to);
}
