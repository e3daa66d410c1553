/* SPDX-License-Identifier: MIT */
/* One setting at a time, by its row of the table. Numbers are whole decimal ones; bytes may end
 * in K, M or G (powers of 1024). Nothing here owns memory. */
#include "base/settings.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct setting *setting_find(const struct setting *table, size_t n, const char *name,
                                   size_t length)
{
    for (size_t i = 0; i < n; i++)
        if (strlen(table[i].name) == length && strncmp(table[i].name, name, length) == 0)
            return &table[i];
    return NULL;
}

struct guess setting_guess(const struct setting *table, size_t n, const char *name, size_t length)
{
    struct guess guess = {.wrong = name, .length = length};

    for (size_t i = 0; i < n; i++)
        guess_try(&guess, table[i].name, strlen(table[i].name));
    return guess;
}

static bool parse_number(const char *text, bool suffix, double *out)
{
    char *end;
    errno = 0;
    double value = strtod(text, &end);
    if (errno || end == text)
        return false;
    const char *at = suffix && *end ? strchr("KMG", *end) : NULL;
    if (at) {
        value *= (double)((int64_t)1 << 10 * (at - "KMG" + 1));
        end++;
    }
    *out = value;
    return *end == 0;
}

int setting_choice(const char *choices, const char *value)
{
    size_t length = strlen(value);
    for (int number = 0;; number++) {
        size_t n = strcspn(choices, "|");
        if (n == length && strncmp(choices, value, n) == 0)
            return number;
        if (!choices[n])
            return -1;
        choices += n + 1;
    }
}

static bool set_number(const struct setting *s, void *field, const char *value, char *message,
                       size_t room)
{
    double number;
    if (!parse_number(value, s->type == SETTING_BYTES, &number)) {
        snprintf(message, room, "--%s %s: not a number%s", s->name, value,
                 s->type == SETTING_BYTES ? " of bytes (64M, 64K)" : "");
        return false;
    }
    if (!(number >= s->low && number <= s->high)) {
        snprintf(message, room, "--%s %s: allowed is %.12g to %.12g", s->name, value, s->low,
                 s->high);
        return false;
    }
    if (s->type == SETTING_REAL) {
        *(double *)field = number;
        return true;
    }
    int64_t whole = (int64_t)number;
    if ((double)whole < number) {
        snprintf(message, room, "--%s %s: not a whole number", s->name, value);
        return false;
    }
    *(int64_t *)field = whole;
    return true;
}

static bool set_flag(const struct setting *s, void *field, const char *value, char *message,
                     size_t room)
{
    bool yes = !value || strcmp(value, "1") == 0 || strcmp(value, "true") == 0;
    if (!yes && strcmp(value, "0") != 0 && strcmp(value, "false") != 0) {
        snprintf(message, room, "--%s %s: allowed is 1, true, 0 or false", s->name, value);
        return false;
    }
    *(bool *)field = yes;
    return true;
}

bool setting_set(const struct setting *s, void *into, const char *value, char *message,
                 size_t room)
{
    void *field = (char *)into + s->offset;
    if (s->type == SETTING_FLAG)
        return set_flag(s, field, value, message, room);
    if (!value) {
        snprintf(message, room, "--%s needs a value", s->name);
        return false;
    }
    if (s->type == SETTING_TEXT) {
        *(const char **)field = value;
        return true;
    }
    if (s->type != SETTING_CHOICE)
        return set_number(s, field, value, message, room);
    int number = setting_choice(s->choices, value);
    if (number < 0) {
        struct guess guess = {.wrong = value, .length = strlen(value)};
        guess_choices(&guess, s->choices);
        snprintf(message, room, "--%s %s: allowed is %s%s", s->name, value, s->choices,
                 guess_text(&guess, ""));
        return false;
    }
    *(int *)field = number;
    return true;
}

const char *setting_text(const struct setting *s, const void *from, char *text, size_t room)
{
    const void *field = (const char *)from + s->offset;
    const char *at = s->choices, *words;

    switch (s->type) {
    case SETTING_FLAG:
        snprintf(text, room, "%d", *(const bool *)field);
        break;
    case SETTING_TEXT:
        words = *(const char *const *)field;
        snprintf(text, room, "%s", words ? words : "");
        break;
    case SETTING_CHOICE:
        for (int number = *(const int *)field; number > 0; number--)
            at = strchr(at, '|') + 1;
        snprintf(text, room, "%.*s", (int)strcspn(at, "|"), at);
        break;
    case SETTING_INT:
    case SETTING_BYTES:
        snprintf(text, room, "%lld", (long long)*(const int64_t *)field);
        break;
    case SETTING_REAL:
        snprintf(text, room, "%.9g", *(const double *)field);
        break;
    }
    return text;
}
