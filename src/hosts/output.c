/* SPDX-License-Identifier: MIT */
/* What ranks print, in whole lines with the rank before each, so that ranks do not break
 * into each other's lines. A line of over 16 KiB comes in several. */
#include "hosts/hosts.h"

#include <string.h>

void output_init(struct output_lines *lines, FILE *to, int rank)
{
    lines->to = to;
    lines->rank = rank;
    lines->n = 0;
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
    while (n > 0) {
        const char *end = memchr(bytes, '\n', n);
        size_t part = end ? (size_t)(end - bytes) : n, room = LINE_MOST - lines->n;
        bool whole = end && part <= room;
        part = part < room ? part : room;
        memcpy(lines->line + lines->n, bytes, part);
        lines->n += part;
        if (whole || lines->n == LINE_MOST)
            put_line(lines);
        bytes += part + whole;
        n -= part + whole;
    }
    fflush(lines->to);
}

void output_end(struct output_lines *lines)
{
    if (lines->n > 0)
        put_line(lines);
    fflush(lines->to);
}
