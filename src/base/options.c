/* SPDX-License-Identifier: MIT */
/* One value, by its row of a table: from text into its field and back. The same row says
 * which values are allowed, so that every message, the help and the documents agree.
 *
 * Numbers are read and written as in the C locale, whatever the caller's program has set.
 * They are plain decimal ones: no "inf", no hexadecimal. A whole number may be written as
 * 1e6. A unit follows without a space:
 *
 *   BYTES     B; kB, MB, GB, TB are powers of 1000; KiB, MiB, GiB and K, M, G of 1024
 *   RATE      the same but K, M, G; and bit, kbit, mbit, gbit, tbit, in any case
 *   TIME      s, ms, us or ns, which only 0 may lack
 *   LAPSE     the same; or x, a factor, which is kept below 0
 *   SECONDS   as TIME, and min, h or d; a number alone is seconds
 *
 * Lower-case "gb" could mean bits or bytes and is refused. */
#include "base/base.h"

#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { VALUE_ROOM = 64, VALUE_SHOWN = 100, NUMBER_ROOM = 32, LEAST_DIGITS = 9,
       MOST_DIGITS = 17, RANGE_DIGITS = 12 };
enum { BITS = 1 << OPTION_RATE, POWERS = 1 << OPTION_BYTES, SIZES = BITS | POWERS,
       FACTORS = 1 << OPTION_LAPSE, LONG_TIMES = 1 << OPTION_SECONDS,
       TIMES = 1 << OPTION_TIME | FACTORS | LONG_TIMES };

static const struct unit {
    const char *name;
    double times, over;         /* divided, 10ms is the double nearest to 0.01 */
    int types;
} units[] = {
    {"s", 1, 1, TIMES},          {"ms", 1, 1e3, TIMES},       {"us", 1, 1e6, TIMES},
    {"min", 60, 1, LONG_TIMES},  {"h", 3600, 1, LONG_TIMES}, {"d", 86400, 1, LONG_TIMES},
    {"ns", 1, 1e9, TIMES},       {"B", 1, 1, SIZES},          {"kB", 1e3, 1, SIZES},
    {"KB", 1e3, 1, SIZES},       {"MB", 1e6, 1, SIZES},       {"GB", 1e9, 1, SIZES},
    {"TB", 1e12, 1, SIZES},      {"KiB", 0x1p10, 1, SIZES},   {"MiB", 0x1p20, 1, SIZES},
    {"GiB", 0x1p30, 1, SIZES},   {"K", 0x1p10, 1, POWERS},    {"M", 0x1p20, 1, POWERS},
    {"G", 0x1p30, 1, POWERS},    {"bit", 1, 8, BITS},         {"kbit", 125, 1, BITS},
    {"mbit", 125e3, 1, BITS},    {"gbit", 125e6, 1, BITS},    {"tbit", 125e9, 1, BITS},
    {"x", -1, 1, FACTORS},
};
enum { N_UNITS = sizeof units / sizeof *units };

/* From here to locale_back this thread's locale is C's. Without memory it stays. */
static locale_t locale_plain(void)
{
    return uselocale(newlocale(LC_ALL_MASK, "C", (locale_t)0));
}

static void locale_back(locale_t before)
{
    locale_t plain = uselocale(before);
    if (plain != before)
        freelocale(plain);
}

void real_text(double value, int digits, char *text, size_t room)
{
    locale_t before = locale_plain();
    snprintf(text, room, "%.*g", digits, value);
    locale_back(before);
}

bool real_read(const char *text, double *out, const char **rest)
{
    char *end;
    locale_t before = locale_plain();
    *out = strtod(text, &end);
    locale_back(before);
    *rest = end;
    return end != text && strspn(text, "+-.0123456789eE") >= (size_t)(end - text);
}

static bool read_number(enum option_type type, const char *text, double *out)
{
    const char *unit;
    if (!real_read(text, out, &unit) || (type == OPTION_LAPSE && *out < 0))
        return false;
    if (!*unit)
        return (type != OPTION_TIME && type != OPTION_LAPSE) ||
               fpclassify(*out) == FP_ZERO;
    for (const struct unit *u = units; u < units + N_UNITS; u++)
        if ((u->types & 1 << type) &&
            (u->types == BITS ? strcasecmp(unit, u->name) : strcmp(unit, u->name)) == 0) {
            *out = *out * u->times / u->over;
            return true;
        }
    return false;
}

int option_choice(const char *choices, const char *value)
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

static bool is_allowed(const struct option *o, double value)
{
    value = o->type == OPTION_LAPSE ? fabs(value) : value;
    return value >= o->low && value <= o->high;
}

bool option_read(const struct option *o, const char *text, void *into)
{
    void *field = (char *)into + o->offset;
    const char *words =
        o->type == OPTION_BOOL ? "0|1|no|yes|false|true|off|on" : o->choices;
    int word = words ? option_choice(words, text) : -1;
    double value;
    if (o->type == OPTION_TEXT)
        *(const char **)field = text;
    else if (o->type == OPTION_BOOL && word >= 0)
        *(bool *)field = word % 2;
    else if (o->type == OPTION_CHOICE && word >= 0)
        *(int *)field = word;
    else if (o->type > OPTION_NUMBERS)
        return false;
    else if (word >= 0 && o->type <= OPTION_WHOLE)
        *(int64_t *)field = -1 - word;
    else if (word >= 0)
        *(double *)field = -1 - word;
    else if (!read_number(o->type, text, &value) || !is_allowed(o, value))
        return false;
    else if (o->type > OPTION_WHOLE)
        *(double *)field = value;
    else if (islessgreater(trunc(value), value))
        return false;
    else
        *(int64_t *)field = (int64_t)value;
    return true;
}

double option_number(const struct option *o, const void *from)
{
    const void *field = (const char *)from + o->offset;
    if (o->type == OPTION_BOOL)
        return *(const bool *)field;
    if (o->type == OPTION_CHOICE)
        return *(const int *)field;
    if (o->type <= OPTION_WHOLE)
        return (double)*(const int64_t *)field;
    return *(const double *)field;
}

const char *option_write(const struct option *o, const void *from, char *text,
                         size_t room)
{
    if (o->type == OPTION_TEXT) {
        const char *kept = *(const char *const *)((const char *)from + o->offset);
        snprintf(text, room, "%s", kept ? kept : "");
        return text;
    }
    double value = option_number(o, from), back;
    bool is_number = o->type <= OPTION_NUMBERS;
    if (o->choices && (!is_number || value <= -1)) {
        const char *at = o->choices;
        for (int number = (int)(is_number ? -1 - value : value); number > 0; number--)
            at = strchr(at, '|') + 1;
        snprintf(text, room, "%.*s", (int)strcspn(at, "|"), at);
        return text;
    }
    bool factor = o->type == OPTION_LAPSE && value < 0;
    bool seconds = o->type == OPTION_TIME || o->type == OPTION_LAPSE;
    int digits = o->type <= OPTION_WHOLE ? MOST_DIGITS : LEAST_DIGITS;
    value = factor ? -value : value;
    const char *rest;
    char number[NUMBER_ROOM];
    for (; digits <= MOST_DIGITS; digits++) {
        real_text(value, digits, number, sizeof number);
        if (!real_read(number, &back, &rest) || !islessgreater(back, value))
            break;
    }
    snprintf(text, room, "%s%s", number, factor ? "x" : seconds ? "s" : "");
    return text;
}

static bool is_open(const struct option *o)
{
    return o->low > 0 && o->low <= OPTION_ABOVE_0;
}

const char *option_range(const struct option *o, char *text, size_t room)
{
    bool is_bool = o->type == OPTION_BOOL, is_lapse = o->type == OPTION_LAPSE;
    const char *unit = o->type == OPTION_TIME || is_lapse ? "s" : "";
    const char *words = is_lapse ? "so many x" : o->choices;
    char low[NUMBER_ROOM], high[NUMBER_ROOM];
    real_text(is_open(o) ? 0 : o->low, RANGE_DIGITS, low, sizeof low);
    real_text(o->high, RANGE_DIGITS, high, sizeof high);
    if (o->type <= OPTION_NUMBERS)
        snprintf(text, room, "%s%s%s to %s%s%s%s", is_open(o) ? "above " : "", low, unit,
                 high, unit, words ? ", or " : "", words ? words : "");
    else
        snprintf(text, room, "%s", words ? words : is_bool ? "0 or 1" : "");
    return text;
}

/* Writes the kind of number and its range: "a whole number from 1 to 64". */
static const char *allowed(const struct option *o, char *text, size_t room)
{
    static const char *const kinds[] = {
        [OPTION_INT] = "a whole number",
        [OPTION_BYTES] = "bytes, like 65536, 64K or 64MiB,",
        [OPTION_REAL] = "a number",
        [OPTION_RATE] = "a rate like 1gbit or 2GB, bytes a second",
        [OPTION_TIME] = "a time like 10ms",
        [OPTION_LAPSE] = "a time like 10ms or a factor like 0.1x,",
        [OPTION_SECONDS] = "seconds, or a time like 10ms,",
    };
    bool is_number = o->type <= OPTION_NUMBERS;
    int used = snprintf(text, room, "%s%s", is_number ? kinds[o->type] : "",
                        !is_number ? "" : is_open(o) ? " " : " from ");
    option_range(o, text + used, room - (size_t)used);
    return text;
}

const struct option *option_find(const struct option *table, size_t n, const char *name,
                                 size_t length)
{
    for (size_t i = 0; i < n; i++)
        if (strlen(table[i].name) == length && memcmp(table[i].name, name, length) == 0)
            return &table[i];
    return NULL;
}

struct guess option_guess(const struct option *table, size_t n, const char *name,
                          size_t length)
{
    struct guess guess = {.wrong = name, .length = length};
    for (size_t i = 0; i < n; i++)
        guess_try(&guess, table[i].name, strlen(table[i].name));
    return guess;
}

static struct guess guess_value(const struct option *o, const char *value, size_t length)
{
    struct guess guess = {.wrong = value, .length = length};
    guess_choices(&guess, o->choices ? o->choices : "");
    return guess;
}

bool option_parse(const struct option *o, const char *value, void *into, char *message,
                  size_t room)
{
    char text[512];
    bool bare = o->type == OPTION_TEXT;
    if (!value && o->type == OPTION_BOOL)
        value = "1";
    if (value && !bare)
        value += strspn(value, " \t\n");
    if (value && (*value || bare) && option_read(o, value, into))
        return true;
    if (!value || !*value) {
        snprintf(message, room, "%s needs a value%s%s", o->name, bare ? "" : ": ",
                 allowed(o, text, sizeof text));
        return false;
    }
    struct guess guess = guess_value(o, value, strlen(value));
    snprintf(message, room, "%s %.*s%s: allowed is %s%s", o->name, VALUE_SHOWN, value,
             strlen(value) > VALUE_SHOWN ? "..." : "", allowed(o, text, sizeof text),
             guess_text(&guess, ""));
    return false;
}

static bool unknown_key(struct option_table table, const struct option_text *text,
                        char *message, size_t room)
{
    const struct option *rows = table.options;
    struct guess guess = option_guess(rows, table.n, text->key, text->key_length);
    size_t place = (size_t)(text->key - text->whole) + 1;
    size_t used = (size_t)snprintf(message, room,
                                   "unknown key '%.*s' at place %zu%s; allowed: ",
                                   (int)text->key_length, text->key, place,
                                   guess_text(&guess, ""));
    for (size_t i = 0; i < table.n && used < room; i++)
        used += (size_t)snprintf(message + used, room - used, "%s%s", i ? ", " : "",
                                 rows[i].name);
    return false;
}

bool option_set(struct option_table table, const struct option_text *text, void *into,
                char *message, size_t room)
{
    char value[VALUE_ROOM], names[512];
    size_t length = text->value_length;
    const struct option *o =
        option_find(table.options, table.n, text->key, text->key_length);
    if (!o)
        return unknown_key(table, text, message, room);
    snprintf(value, sizeof value, "%.*s", (int)length, text->value);
    if (length && strlen(value) == length && option_read(o, value, into))
        return true;
    struct guess guess = guess_value(o, text->value, length);
    snprintf(message, room, "%s%s '%.*s' at place %zu%s; allowed: %s", o->name,
             length ? " cannot be" : " has no value,", (int)length, text->value,
             (size_t)(text->value - text->whole) + 1, guess_text(&guess, ""),
             allowed(o, names, sizeof names));
    return false;
}
