/* SPDX-License-Identifier: MIT */
/* The settings of a run as texts, for its log and its checkpoints: a struct of values and
 * the table of its options. */
#ifndef RUN_TOLD_H
#define RUN_TOLD_H

#include "base/base.h"

struct told {
    const struct option *table;
    size_t n;
    const void *values;
};

/* Writes the value of a setting as UTF-8, and returns `text`. */
enum { TOLD_TEXT = 4096 };
const char *told_text(const struct told *told, const struct option *setting, char *text,
                      size_t room);

/* Adds each setting to an object. */
void told_json(const struct told *told, struct json *json);

#endif
