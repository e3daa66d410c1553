/* SPDX-License-Identifier: MIT */
/* Fills a template: text with names in braces, whose values are in a JSON object.
 *
 *   {{name}}                   the value, escaped: a reader sees its bytes, and none of
 *                              them is markup; "–" where it is null
 *   {{,name}}                  the same, and a line may break after each comma
 *   {{{name}}}                 the value as it is: it is markup
 *   {{#name}}...{{/name}}      a section: for each item of an array, which may be none,
 *                              once for another value; for false and null not at all
 *   {{^name}}...{{/name}}      where the section {{#name}} would not stand
 *   {{=name}}...{{/name}}      a part, which {{>name}} puts in its place
 *
 * A name is looked up in the item of the innermost section, then in the items around it;
 * "." is that item itself. A line that begins with spaces continues the line before it.
 * The template is the program's own: a name without a value, or a section without its
 * end, fails an assertion. */
#include "report/report.h"

#include <assert.h>
#include <string.h>

enum { MOST_DEEP = 8, NAME_ROOM = 32 };

struct filling {
    FILE *out;
    const char *text;
    const json_t *around[MOST_DEEP];    /* the values of the sections, outermost first */
    int deep;
};

/* --- text --- */

void report_text(FILE *out, const char *text, bool breaks)
{
    for (; *text; text++)
        switch (*text) {
        case '&': fputs("&amp;", out); break;
        case '<': fputs("&lt;", out); break;
        case '>': fputs("&gt;", out); break;
        case '"': fputs("&quot;", out); break;
        case '\'': fputs("&#39;", out); break;
        case ',': fputs(breaks ? ",<wbr/>" : ",", out); break;
        default: fputc((unsigned char)*text < ' ' || *text == 127 ? ' ' : *text, out);
        }
}

static void put_plain(FILE *out, const char *at, const char *end)
{
    for (; at < end; at++) {
        bool goes_on = *at == '\n' && at[1] == ' ';
        at += goes_on ? strspn(at + 1, " ") : 0;
        if (!goes_on)
            fputc(*at, out);
    }
}

/* --- tags --- */

static const json_t *find(const struct filling *f, const char *name)
{
    const json_t *found = NULL;
    for (int k = f->deep; k > 0 && !found; k--)
        found = strcmp(name, ".") == 0 ? f->around[k - 1]
                                       : json_object_get(f->around[k - 1], name);
    return found;
}

static void put_value(const struct filling *f, char kind, const char *name)
{
    const json_t *value = find(f, name);
    const char *text = json_is_string(value) ? json_string_value(value) : "–";

    assert(json_is_string(value) || json_is_null(value));
    if (kind == '{')
        fputs(text, f->out);
    else
        report_text(f->out, text, kind == ',');
}

/* Reads the tag at `at`; returns the place behind it. */
static const char *read_tag(const char *at, char *kind, char *name)
{
    *kind = strchr("#^/=>,{", at[2]) ? at[2] : 0;
    const char *from = at + 2 + (*kind != 0), *end = strstr(from, "}}");
    assert(end && end - from < NAME_ROOM);
    snprintf(name, NAME_ROOM, "%.*s", (int)(end - from), from);
    return end + 2 + (*kind == '{');
}

static const char *put(struct filling *f, const char *at, bool shown);

/* A section whose tag ends at `at`, or a part, which is passed over. */
static const char *put_section(struct filling *f, const char *at, char kind,
                               const json_t *value, bool shown)
{
    bool one = value && !json_is_false(value) && !json_is_null(value);
    size_t n = json_is_array(value) ? json_array_size(value) : one;
    size_t times = !shown || kind == '=' ? 0 : kind == '^' ? n == 0 : n;
    const char *end = times ? at : put(f, at, false);

    assert(f->deep < MOST_DEEP);
    for (size_t k = 0; k < times; k++) {
        f->around[f->deep++] = json_is_array(value) ? json_array_get(value, k) : value;
        end = put(f, at, true);
        f->deep--;
    }
    return end;
}

/* Puts the text from `at` to the end of its section, or passes over it; returns the place
 * behind that end. */
static const char *put(struct filling *f, const char *at, bool shown)
{
    char kind, name[NAME_ROOM], part[NAME_ROOM + 8];

    for (const char *tag; (tag = strstr(at, "{{")) != NULL;) {
        if (shown)
            put_plain(f->out, at, tag);
        at = read_tag(tag, &kind, name);
        if (kind == '/')
            return at;
        if (kind == '#' || kind == '^' || kind == '=') {
            assert(!shown || kind == '=' || find(f, name));
            at = put_section(f, at, kind, find(f, name), shown);
        } else if (shown && kind == '>') {
            snprintf(part, sizeof part, "{{=%s}}", name);
            const char *found = strstr(f->text, part);
            assert(found);
            put(f, found + strlen(part), true);
        } else if (shown) {
            put_value(f, kind, name);
        }
    }
    put_plain(f->out, at, at + strlen(at));
    return at + strlen(at);
}

void report_fill(FILE *out, const char *template, const json_t *values)
{
    struct filling f = {.out = out, .text = template, .around = {values}, .deep = 1};
    put(&f, template, true);
}
