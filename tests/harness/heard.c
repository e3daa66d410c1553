/* SPDX-License-Identifier: MIT */
/* Keeps the lines of a log. */
#include "harness/heard.h"
#include "harness/suite.h"

struct heard_lines heard;
const struct log listening = {.fn = hear, .user = &heard, .rank = -1};

void hear(void *user, enum descant_level level, const char *line)
{
    struct heard_lines *to = user;
    size_t used = strlen(to->text);
    if (level < to->least)
        return;
    if (to->n < N(to->lines))
        snprintf(to->lines[to->n], sizeof to->lines[0], "%s", line);
    to->n++;
    snprintf(to->text + used, sizeof to->text - used, "%s\n", line);
}
