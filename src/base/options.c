/* SPDX-License-Identifier: MIT */
/* One value of a "name,key=value" string, by a table. The table is also what help is
 * printed from, so every message can say what is allowed.
 *
 * Numbers are read as in the C locale whatever the caller's program has set, and only
 * plain decimal ones: no "inf", no hexadecimal. Rates are bytes a second: bits as bit,
 * kbit, mbit, gbit in any case, bytes as B, kB, MB, GB, KiB, MiB, GiB or nothing.
 * Lower-case "gb" could mean either and is refused. Times need a unit, s, ms, us or ns,
 * unless they are 0. */
#include "base/base.h"

#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { NUMBER_ROOM = 64 };

struct unit {
    const char *name;
    double factor;
};

static const struct unit bit_units[] = {
    {"bit", 0.125}, {"kbit", 125}, {"mbit", 125e3}, {"gbit", 125e6}, {"tbit", 125e9}};
static const struct unit byte_units[] = {
    {"", 1}, {"B", 1}, {"kB", 1e3}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12},
    {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}};
/* divisors, so that 10ms is the double nearest to 0.01 */
static const struct unit time_units[] = {{"s", 1}, {"ms", 1e3}, {"us", 1e6}, {"ns", 1e9}};

/* A decimal number at text; *rest is what follows it. */
static bool read_number(const char *text, double *out, const char **rest)
{
    size_t n = strspn(text, "+-.0123456789");
    char *end;
    if (n && (text[n] == 'e' || text[n] == 'E')) {
        size_t sign = text[n + 1] == '-' || text[n + 1] == '+';
        size_t digits = strspn(text + n + 1 + sign, "0123456789");
        n += digits ? 1 + sign + digits : 0;
    }
    if (!n || n >= NUMBER_ROOM)
        return false;
    char number[NUMBER_ROOM];
    memcpy(number, text, n);
    number[n] = 0;
    locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    double value = plain ? strtod_l(number, &end, plain) : strtod(number, &end);
    if (plain)
        freelocale(plain);
    if (end != number + n || !isfinite(value))
        return false;
    *out = value;
    *rest = text + n;
    return true;
}

static bool read_rate(const char *text, double *out)
{
    const char *unit;
    double number;
    if (!read_number(text, &number, &unit))
        return false;
    for (size_t i = 0; i < sizeof bit_units / sizeof *bit_units; i++)
        if (strcasecmp(unit, bit_units[i].name) == 0)
            return *out = number * bit_units[i].factor, true;
    for (size_t i = 0; i < sizeof byte_units / sizeof *byte_units; i++)
        if (strcmp(unit, byte_units[i].name) == 0)
            return *out = number * byte_units[i].factor, true;
    return false;
}

static bool read_time(const char *text, double *out)
{
    const char *unit;
    double number;
    if (!read_number(text, &number, &unit))
        return false;
    for (size_t i = 0; i < sizeof time_units / sizeof *time_units; i++)
        if (strcmp(unit, time_units[i].name) == 0)
            return *out = number / time_units[i].factor, true;
    *out = 0;
    return !*unit && fpclassify(number) == FP_ZERO;
}

static bool read_real(const char *text, double *out)
{
    const char *rest;
    return read_number(text, out, &rest) && !*rest;
}

static bool read_int(const char *text, int64_t *out)
{
    size_t sign = *text == '-';
    size_t digits = strspn(text + sign, "0123456789");
    if (!digits || digits > 18 || text[sign + digits])
        return false;
    *out = strtoll(text, NULL, 10);
    return true;
}

static bool read_bool(const char *text, bool *out)
{
    static const char *const words[2][4] = {{"0", "no", "false", "off"},
                                            {"1", "yes", "true", "on"}};
    for (int value = 0; value < 2; value++)
        for (int i = 0; i < 4; i++)
            if (strcmp(text, words[value][i]) == 0)
                return *out = value, true;
    return false;
}

static bool read_choice(const char *choices, const char *text, int *out)
{
    size_t length = strlen(text);
    int number = 0;
    for (const char *at = choices; *at; number++) {
        size_t n = strcspn(at, "|");
        if (n == length && memcmp(at, text, n) == 0)
            return *out = number, true;
        at += n + (at[n] == '|');
    }
    return false;
}

static bool in_range(const struct option *option, double value)
{
    if (option->open_low && value <= option->low)
        return false;
    return value >= option->low && value <= option->high;
}

/* The value into its field, or nothing. */
static bool store(const struct option *option, const char *text, void *into)
{
    void *field = (char *)into + option->offset;
    double real = 0;
    int64_t whole = 0;
    switch (option->type) {
    case OPTION_INT:
        if (!read_int(text, &whole) || !in_range(option, (double)whole))
            return false;
        *(int64_t *)field = whole;
        return true;
    case OPTION_BOOL:
        return read_bool(text, field);
    case OPTION_CHOICE:
        return read_choice(option->choices, text, field);
    case OPTION_REAL:
    case OPTION_RATE:
    case OPTION_TIME:
        if (option->word && strcmp(text, option->word) == 0)
            return *(double *)field = option->word_is, true;
        if (!(option->type == OPTION_REAL   ? read_real(text, &real)
              : option->type == OPTION_RATE ? read_rate(text, &real)
                                            : read_time(text, &real)))
            return false;
        if (!in_range(option, real))
            return false;
        *(double *)field = real;
        return true;
    }
    return false;
}

static void describe(const struct option *option, char *text, size_t room)
{
    static const char *const what[] = {
        [OPTION_INT] = "a whole number",
        [OPTION_REAL] = "a number",
        [OPTION_RATE] = "a rate like 1gbit or 2GB, bytes a second",
        [OPTION_TIME] = "a time like 10ms, in seconds",
    };
    if (option->type == OPTION_BOOL)
        snprintf(text, room, "0 or 1");
    else if (option->type == OPTION_CHOICE)
        snprintf(text, room, "%s", option->choices);
    else
        snprintf(text, room, "%s%s %.10g to %.10g%s%s", what[option->type],
                 option->open_low ? " above" : " from", option->low, option->high,
                 option->word ? ", or " : "", option->word ? option->word : "");
}

static void list_names(struct option_table table, char *text, size_t room)
{
    size_t used = 0;
    *text = 0;
    for (size_t i = 0; i < table.n && used < room; i++)
        used += (size_t)snprintf(text + used, room - used, "%s%s", i ? ", " : "",
                                 table.options[i].name);
}

static const struct option *find(struct option_table table, const struct option_text *text)
{
    for (size_t i = 0; i < table.n; i++)
        if (strlen(table.options[i].name) == text->key_length &&
            !memcmp(table.options[i].name, text->key, text->key_length))
            return &table.options[i];
    return NULL;
}

bool option_set(struct option_table table, const struct option_text *text, void *into,
                char *message, size_t room)
{
    char value[NUMBER_ROOM], allowed[512];
    const struct option *option = find(table, text);
    size_t length = text->value_length;
    if (!option) {
        struct guess guess = {.wrong = text->key, .length = text->key_length};
        for (size_t i = 0; i < table.n; i++)
            guess_try(&guess, table.options[i].name, strlen(table.options[i].name));
        list_names(table, allowed, sizeof allowed);
        snprintf(message, room, "unknown key '%.*s' at place %zu%s; allowed: %s",
                 (int)text->key_length, text->key, (size_t)(text->key - text->whole) + 1,
                 guess_text(&guess, ""), allowed);
        return false;
    }
    if (length && length < sizeof value) {
        memcpy(value, text->value, length);
        value[length] = 0;
        if (strlen(value) == length && store(option, value, into))
            return true;
    }
    struct guess guess = {.wrong = text->value, .length = length};
    if (option->type == OPTION_CHOICE)
        guess_choices(&guess, option->choices);
    describe(option, allowed, sizeof allowed);
    snprintf(message, room, "%s%s '%.*s' at place %zu%s; allowed: %s", option->name,
             length ? " cannot be" : " has no value,", (int)length, text->value,
             (size_t)(text->value - text->whole) + 1, guess_text(&guess, ""), allowed);
    return false;
}
