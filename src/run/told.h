/* SPDX-License-Identifier: MIT */
/* What a run was told: the struct of its settings and their table, as texts that a log
 * and a checkpoint can keep. */
#ifndef RUN_TOLD_H
#define RUN_TOLD_H

#include "base/base.h"

struct told {
    const struct option *table;
    size_t n;
    const void *values;
};

/* The value as UTF-8. */
enum { TOLD_TEXT = 4096 };
const char *told_text(const struct told *told, const struct option *setting, char *text,
                      size_t room);

/* Adds each setting to an object. */
void told_json(const struct told *told, struct json *json);

#endif
