/* SPDX-License-Identifier: MIT */
/* The window of text through which files and stdin are read. */
#include "data/reader.h"

#include <string.h>

uint64_t count_line_ends(const char *at, const char *end)
{
    uint64_t n = 0;
    for (; at < end && (at = memchr(at, '\n', (size_t)(end - at))); at++)
        n++;
    return n;
}

/* Room counts text alone: READER_PAD bytes more are taken, which a parser may load. */
descant_status input_room(struct input *in, size_t bytes)
{
    if (in->room >= bytes)
        return DESCANT_OK;
    char *larger = memory_take(bytes + READER_PAD);
    if (!larger)
        return log_fail(in->log, DESCANT_MEMORY, "no memory for %zu bytes of text",
                        bytes);
    if (in->filled > 0)
        memcpy(larger, in->text, in->filled);
    memory_give(in->text);
    in->text = larger;
    in->room = bytes;
    return DESCANT_OK;
}
