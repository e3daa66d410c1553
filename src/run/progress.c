/* SPDX-License-Identifier: MIT */
/* Any thread may end the line before it prints other text. */
#include "run/progress.h"

#include <limits.h>
#include <math.h>
#include <string.h>

/* between two lines: one that is written over, and one that stays */
#define TERMINAL_NS UINT64_C(200000000)
#define FILE_NS UINT64_C(5000000000)

/* The first line comes after an interval, not at once: there is nothing to tell yet. */
void progress_open(struct progress *p, FILE *err, bool quiet)
{
    *p = (struct progress){err, shown_columns(err) > 0, quiet, clock_now_ns()};
}

bool progress_due(const struct progress *p)
{
    return !p->quiet &&
           clock_now_ns() - p->shown_ns >= (p->is_terminal ? TERMINAL_NS : FILE_NS);
}

int progress_columns(const struct progress *p)
{
    return p->is_terminal ? shown_columns(p->err) : INT_MAX;
}

/* The bytes of the line that fit into the columns. Figures, which have two spaces between
 * them, are not cut. */
static int whole_figures(const char *line, int columns)
{
    int length = (int)strlen(line), n = length < columns ? length : columns - 1;

    for (int k = n; n < length && k > 0; k--)
        if (line[k] == ' ' && line[k + 1] == ' ')
            return k;
    return n;
}

void progress_show(struct progress *p, const char *line)
{
    progress_end_line(p);
    fprintf(p->err, p->is_terminal ? "%.*s" : "%.*s\n",
            whole_figures(line, progress_columns(p)), line);
    fflush(p->err);
    p->shown_ns = clock_now_ns();
}

void progress_end_line(const struct progress *p)
{
    if (p->is_terminal && !p->quiet)
        shown_clear_line(p->err);
}

void progress_say(const struct progress *p, const char *line)
{
    progress_end_line(p);
    fprintf(p->err, "descant: %s\n", line);
    fflush(p->err);
}

void progress_log(void *user, enum descant_level level, const char *line)
{
    if (level >= DESCANT_WARNING)
        progress_say(user, line);
}

/* --- figures as texts --- */

/* A row: the numbers below which it holds, its unit, and the digits behind the point. The
 * last row holds for all others. */
const char *count_text(double n, char *text, size_t room)
{
    static const struct {
        double below, unit;
        int decimals;
        const char *suffix;
    } ways[] = {{1e4, 1, 0, ""},     {1e6, 1e3, 1, " k"},  {1e8, 1e6, 2, " M"},
                {1e9, 1e6, 1, " M"}, {1e11, 1e9, 2, " G"}, {INFINITY, 1e9, 0, " G"}};
    int k = 0;

    while (n >= ways[k].below)
        k++;
    snprintf(text, room, "%.*f%s", ways[k].decimals, n / ways[k].unit, ways[k].suffix);
    return text;
}

/* Seconds are rounded up, so that a time that is left ends with 0:00 only when it is
 * over; "?": not known, or too long. */
const char *time_text(double s, char *text, size_t room)
{
    if (!(s >= 0 && s < 3600e6)) {
        snprintf(text, room, "?");
        return text;
    }
    int all = (int)fmin(ceil(s), 3600);
    if (all < 3600)
        snprintf(text, room, "%d:%02d", all / 60, all % 60);
    else if (s < 48 * 3600)
        snprintf(text, room, "%.1f h", s / 3600);
    else
        snprintf(text, room, "%.0f days", s / 24 / 3600);
    return text;
}
