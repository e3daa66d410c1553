/* SPDX-License-Identifier: MIT */
/* One JSON object on one line. Numbers that are not finite become null, characters that
 * steer a terminal become escapes, bytes that are no UTF-8 become U+FFFD. */
#include "base/base.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

static void put_string(FILE *out, const char *text)
{
    fputc('"', out);
    for (size_t left = strlen(text); left > 0;) {
        int n = text_character(text, left);
        unsigned steers = n > 0 ? text_steers(text, n) : 0;
        if (n <= 0)
            fputs("\\ufffd", out);
        else if (*text == '"' || *text == '\\')
            fprintf(out, "\\%c", *text);
        else if (*text == '\n')
            fputs("\\n", out);
        else if (*text == '\t')
            fputs("\\t", out);
        else if (steers)
            fprintf(out, "\\u%04x", steers);
        else
            fwrite(text, 1, (size_t)n, out);
        text += n > 0 ? n : 1;
        left -= (size_t)(n > 0 ? n : 1);
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
    errno = 0;
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
    char text[32];
    real_text(value, 9, text, sizeof text);
    fputs(text, json->out);
}

int json_end(struct json *json)
{
    fputs("}\n", json->out);
    return ferror(json->out) ? errno ? errno : EIO : 0;
}
