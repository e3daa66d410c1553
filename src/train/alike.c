/* SPDX-License-Identifier: MIT */
/* The settings of steps are in the name by a hash: as text they are longer than what an
 * error shows of a name. */
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
    char steps[CONFIG_STEPS], more[64] = "";
    uint64_t hash = FNV_BEGIN;

    config_steps(o, steps);
    hash = fnv_add(hash, steps, strlen(steps));
    if (what->hosts)
        snprintf(more, sizeof more, "%s%s%s,data=%" PRIu64, what->owned ? OWNED : "",
                 what->owned && o->checkpoint ? ",kept" : "",
                 !what->resumed ? "" : o->over_tcp ? ",resume" : ",resumed", what->bytes);
    snprintf(name, ALIKE_ROOM, "%s%s" STEPS "%08" PRIx32, what->model, more,
             (uint32_t)(hash ^ hash >> 32));
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
    enum { DIGITS = 8 };
    const char *end, *other_end, *one = next_name(error, &end);
    const char *other = one ? next_name(end, &other_end) : NULL;
    const char *steps = other ? find(STEPS, one, end) : NULL;
    size_t at = steps ? (size_t)(steps - one) + strlen(STEPS) : 0;
    size_t n = steps ? (size_t)(end - one) : 0;

    if (!steps || other_end - other != end - one || n < at + DIGITS)
        return false;
    return memcmp(one, other, at) == 0 && memcmp(one + at, other + at, DIGITS) != 0 &&
           memcmp(one + at + DIGITS, other + at + DIGITS, n - at - DIGITS) == 0;
}
