/* SPDX-License-Identifier: MIT */
/* Runs that are compared: labels that differ, and numbers for their held-out sets. Among
 * runs whose logs tell equally much, "the same examples" divides them into sets. A run
 * whose log tells less belongs to such a set if it fits only one; if it fits several it
 * belongs to none of them. So the order of the runs decides only the numbers of the
 * sets. */
#include "report/report.h"

#include <math.h>
#include <string.h>

static bool label_taken(const struct report_run *runs, int i, int n)
{
    bool taken = false;
    for (int k = 0; k < n; k++)
        taken |= k != i && strcmp(runs[i].label, runs[k].label) == 0;
    return taken;
}

/* By their paths, and by their place where the path is the same, too. */
static void tell_apart(struct report_run *runs, int n)
{
    bool taken[REPORT_MAX_RUNS];

    for (int i = 0; i < n; i++)
        taken[i] = label_taken(runs, i, n);
    for (int i = 0; i < n; i++) {
        struct report_run *run = &runs[i];
        size_t length = strlen(run->path), room = sizeof run->label;
        const char *end = run->path + (length < room ? 0 : length - room + 1);
        while ((*end & 0xc0) == 0x80)       /* not within a character */
            end++;
        if (taken[i])
            snprintf(run->label, room, "%s", end);
        if (taken[i] && label_taken(runs, i, i))
            snprintf(run->label, room, "%.100s (%d)", run->path, i + 1);
    }
}

/* How much a run's log tells of its held-out set: 2 examples and clicks, 1 examples, 0
 * only names; -1: there is no set. */
static int knows_set(const struct report_run *run)
{
    if (json_string_length(json_object_get(run->header, "eval")) == 0 &&
        !isfinite(report_figure(run, "eval_loss", REPORT_EVAL_LOSS)))
        return -1;
    bool counted = isfinite(report_figure(run, "eval_examples", REPORT_EVAL_EXAMPLES));
    bool clicks = isfinite(report_figure(run, "eval_clicks", REPORT_EVAL_CLICKS));
    return counted ? 1 + clicks : 0;
}

static int number_sets(struct report_run *runs, int n)
{
    /* from 1, of the set of each run that began one */
    int numbers[REPORT_MAX_RUNS] = {0}, sets = 0;

    for (int r = 0; r < n; r++)
        runs[r].set = -1;
    for (int knows = 2; knows >= 0; knows--)
        for (int r = 0; r < n; r++) {
            /* like: the first run that tells as much, of the same examples. fits: the set
             * of runs that tell more, if there is one; several: there are more. */
            int like = r, fits = -1;
            bool several = false;
            for (int k = knows_set(&runs[r]) == knows ? n - 1 : -1; k >= 0; k--) {
                int known = knows_set(&runs[k]);
                if (known < knows || !report_same_examples("eval", &runs[k], &runs[r]))
                    continue;
                like = known == knows ? k : like;
                several |= known > knows && fits >= 0 && fits != runs[k].set;
                fits = known > knows ? runs[k].set : fits;
            }
            if (knows_set(&runs[r]) == knows)
                runs[r].set = fits < 0 || several ? like : fits;
        }
    for (int r = 0; r < n; r++)
        if (runs[r].set >= 0) {
            int *number = &numbers[runs[r].set];
            *number = *number ? *number : ++sets;
            runs[r].set = *number - 1;
        }
    return sets;
}

int report_compare(struct report_run *runs, int n)
{
    tell_apart(runs, n);
    return number_sets(runs, n);
}

const char *report_set_name(const struct report_run *run, char *text, size_t room)
{
    const char *names = json_string_value(json_object_get(run->header, "eval"));
    double n = report_figure(run, "eval_examples", REPORT_EVAL_EXAMPLES);
    int used = snprintf(text, room, "%c: %.200s", 'A' + run->set, names ? names : "");
    if (isfinite(n) && (size_t)used < room)
        snprintf(text + used, room - (size_t)used, ", %.0f examples", n);
    return text;
}
