/* SPDX-License-Identifier: MIT */
/* One JSON object on one line. Numbers that are not finite become null, bytes below a space
 * become escapes; other bytes go out as they are, so text should be UTF-8. */
#include "base/base.h"

#include <inttypes.h>
#include <locale.h>
#include <math.h>

static void put_string(FILE *out, const char *text)
{
    fputc('"', out);
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\')
            fprintf(out, "\\%c", c);
        else if (c == '\n')
            fputs("\\n", out);
        else if (c == '\t')
            fputs("\\t", out);
        else if (c < ' ')
            fprintf(out, "\\u%04x", (unsigned)c);
        else
            fputc(c, out);
    }
    fputc('"', out);
}

static void put_key(struct json *json, const char *key)
{
    if (!json->first)
        fputc(',', json->out);
    json->first = false;
    put_string(json->out, key);
    fputc(':', json->out);
}

void json_begin(struct json *json, FILE *out)
{
    *json = (struct json){.out = out, .first = true};
    fputc('{', out);
}

void json_text(struct json *json, const char *key, const char *value)
{
    put_key(json, key);
    if (value)
        put_string(json->out, value);
    else
        fputs("null", json->out);
}

void json_int(struct json *json, const char *key, int64_t value)
{
    put_key(json, key);
    fprintf(json->out, "%" PRId64, value);
}

void json_real(struct json *json, const char *key, double value)
{
    put_key(json, key);
    if (!isfinite(value)) {
        fputs("null", json->out);
        return;
    }
    /* a program may have set a locale with decimal commas */
    locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    locale_t before = plain ? uselocale(plain) : (locale_t)0;
    fprintf(json->out, "%.9g", value);
    if (plain) {
        uselocale(before);
        freelocale(plain);
    }
}

void json_end(struct json *json)
{
    fputs("}\n", json->out);
}
