/* SPDX-License-Identifier: MIT */
/* A struct of settings, described by a table: the command line, a config file, a log's header and
 * a checkpoint all read the same rows, so that what is understood is what is shown. */
#ifndef BASE_SETTINGS_H
#define BASE_SETTINGS_H

#include "base/base.h"

enum setting_type { SETTING_FLAG, SETTING_TEXT, SETTING_CHOICE, SETTING_INT, SETTING_BYTES,
                    SETTING_REAL };

struct setting {
    const char *name;           /* as after "--" */
    enum setting_type type;
    size_t offset;              /* bool, const char *, int (the choice's number), int64_t,
                                   int64_t, double */
    double low, high;           /* of numbers, both allowed */
    const char *choices;        /* "mean|elastic" */
    const char *help;           /* after a tab, if any: what the default is, and where, other than
                                   the one that is shown */
};

const struct setting *setting_find(const struct setting *table, size_t n, const char *name,
                                   size_t length);

/* The setting that a name which is none was meant to be. */
struct guess setting_guess(const struct setting *table, size_t n, const char *name, size_t length);

/* Sets it from text, which a SETTING_TEXT keeps a pointer to. NULL is a flag's true. False:
 * message says what is wrong and what is allowed. */
bool setting_set(const struct setting *setting, void *into, const char *value, char *message,
                 size_t room);

/* The number, from 0, of a value among those with | between them; -1: it is none of them. */
int setting_choice(const char *choices, const char *value);

/* Its value as text that setting_set would read; returns text. */
const char *setting_text(const struct setting *setting, const void *from, char *text, size_t room);

#endif
