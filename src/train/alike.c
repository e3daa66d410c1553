/* SPDX-License-Identifier: MIT */
#include "train/alike.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define SEGMENT "\"segment "
#define OWNED ",shard"
#define STEPS ",steps="

void alike_name(const struct train_options *o, const struct alike *what,
                char name[ALIKE_ROOM])
{
    snprintf(name, ALIKE_ROOM, "%s", what->model);
    if (!what->hosts)
        return;
    snprintf(name, ALIKE_ROOM, "%s%s%s%s,data=%" PRIu64 STEPS "%08" PRIx32,
             what->model, what->owned ? OWNED : "",
             what->owned && o->checkpoint ? ",kept" : "",
             !what->resumed ? "" : o->over_tcp ? ",resume" : ",resumed", what->bytes,
             config_steps(o));
}

/* The next name after `at`; its end is the quote. NULL: there is none. */
static const char *next_name(const char *at, const char **end)
{
    at = strstr(at, SEGMENT);
    *end = at ? strchr(at + 1, '"') : NULL;
    return *end ? at + strlen(SEGMENT) : NULL;
}

static const char *find(const char *mark, const char *at, const char *end)
{
    const char *found = strstr(at, mark);
    return found && found < end ? found : NULL;
}

bool alike_but_owners(const char *error)
{
    int marks = 0;
    const char *end;

    for (const char *at = error; (at = next_name(at, &end)) != NULL; at = end)
        marks += find(OWNED, at, end) != NULL;
    return marks == 1;
}

bool alike_but_steps(const char *error)
{
    const char *end, *other_end, *one = next_name(error, &end);
    const char *other = one ? next_name(end, &other_end) : NULL;
    const char *steps = other ? find(STEPS, one, end) : NULL;
    const char *others = other ? find(STEPS, other, other_end) : NULL;
    size_t n = steps ? (size_t)(steps - one) : 0, of_steps = strlen(STEPS) + 8;

    return steps && others && others - other == steps - one &&
           memcmp(one, other, n) == 0 && strncmp(steps, others, of_steps) != 0;
}
