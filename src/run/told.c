/* SPDX-License-Identifier: MIT */
/* Settings as texts. A path may have any bytes, but a log and a checkpoint are UTF-8. */
#include "run/told.h"

#include <string.h>

const char *told_text(const struct told *told, const struct option *setting, char *text,
                      size_t room)
{
    option_write(setting, told->values, text, room);
    /* bytes that are no UTF-8, or a part of a character that was cut, become '?' */
    for (char *at = text; *at;) {
        int n = text_character(at, strlen(at));
        if (n <= 0)
            *at = '?';
        at += n > 0 ? n : 1;
    }
    return text;
}

void told_json(const struct told *told, struct json *json)
{
    char text[TOLD_TEXT];

    for (const struct option *s = told->table; s < told->table + told->n; s++) {
        told_text(told, s, text, sizeof text);
        if (s->type == OPTION_TEXT || s->type == OPTION_CHOICE)
            json_text(json, s->name, text);
        else
            json_real(json, s->name, option_number(s, told->values));
    }
}
