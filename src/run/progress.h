/* SPDX-License-Identifier: MIT */
/* The progress line of a run: on a terminal one line that is written again and again,
 * elsewhere a line every few seconds. */
#ifndef RUN_PROGRESS_H
#define RUN_PROGRESS_H

#include "base/base.h"

struct progress {
    FILE *err;
    bool is_terminal, quiet;
    uint64_t shown_ns;          /* the last time; only the thread that shows it */
};

void progress_open(struct progress *p, FILE *err, bool quiet);
bool progress_due(const struct progress *p);
int progress_columns(const struct progress *p);     /* INT_MAX: no terminal */
/* Figures, with two spaces between them: in too few columns the last ones are left
 * out. */
void progress_show(struct progress *p, const char *line);
void progress_end_line(const struct progress *p);   /* before other text */
void progress_say(const struct progress *p, const char *line);      /* as other text */
descant_log progress_log;   /* shows warnings and errors; user: a struct progress */

/* "9999", "12.3 k", "4.56 M"; "0:59", "1.5 h", "3 days"; return text. */
const char *count_text(double n, char *text, size_t room);
const char *time_text(double s, char *text, size_t room);

#endif
