/* SPDX-License-Identifier: MIT */
/* The page: one file that needs no other, no script, and follows the reader's choice of
 * light or dark. It has a table of the runs' last figures, the options in which they
 * differ, the charts, and every option, folded away. The colours are those of Okabe and
 * Ito, which the colour-blind can tell apart, a little darker on light ground and lighter
 * on dark. Every text from a log or from the command line goes through report_text. */
#include "report/report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char style[] =
#include "page.css.h"
    ;

static const struct report_chart charts[] = {
    {"Loss over examples", "The mean of each interval, before learning from it.",
     REPORT_EXAMPLES, REPORT_LOSS, .y_name = "loss", .powers = true, .late = true},
    {"Loss over time", "The same by the clock.", REPORT_SECONDS, REPORT_LOSS,
     .y_name = "loss", .powers = true, .late = true},
    {"Held-out loss", "On examples kept apart.", REPORT_EXAMPLES, REPORT_EVAL_LOSS,
     .y_name = "loss", .powers = true, .sparse = true},
    {"Held-out NE", "The same loss ÷ that of a guess by the share of clicks alone.",
     REPORT_EXAMPLES, REPORT_EVAL_NE, .y_name = "NE", .sparse = true},
    {"Held-out AUC", "How often a click is scored above another example.",
     REPORT_EXAMPLES, REPORT_AUC, .y_name = "AUC", .sparse = true},
    {"Held-out calibration", "The mean prediction ÷ the share of clicks.",
     REPORT_EXAMPLES, REPORT_CALIBRATION, .y_name = "predicted ÷ seen", .sparse = true},
    {"Speed", "Examples a second of all trainers.", REPORT_SECONDS, REPORT_RATE,
     .y_name = "examples/s", .from_zero = true},
    {"Gap", "Steps of a trainer between two merges.", REPORT_EXAMPLES, REPORT_GAP,
     .y_name = "steps", .from_zero = true, .powers = true},
    {"Stall", "The share of the workers’ time spent waiting for other trainers.",
     REPORT_SECONDS, REPORT_STALL, REPORT_SHARE, "%", .from_zero = true},
    {"Distance between replicas",
     "‖w − g‖ ÷ ‖g‖ at the last merge: w the replica, g what all share.", REPORT_EXAMPLES,
     REPORT_DISTANCE, .y_name = "share of the norm", .from_zero = true, .powers = true},
    {"Age", "The time between collecting a result and merging it.", REPORT_SECONDS,
     REPORT_AGE, REPORT_TIME, "seconds", .from_zero = true, .powers = true},
    {"Gradients of a superstep", "How many one step of the global model is made of.",
     REPORT_SECONDS, REPORT_GRADIENTS, .y_name = "gradients", .from_zero = true},
    {"Staleness",
     "Versions that the model had gone on by when a gradient came: the mean.",
     REPORT_SECONDS, REPORT_STALENESS, .y_name = "versions", .from_zero = true},
    {"Refused", "The share of the gradients that came too late, or with NaN or Inf.",
     REPORT_SECONDS, REPORT_REFUSED, REPORT_SHARE, "%", .from_zero = true},
    {"Time of a superstep",
     "Reading out, the optimizer’s step and storing; modules do not wait for it.",
     REPORT_SECONDS, REPORT_STEP, REPORT_TIME, "seconds", .from_zero = true,
     .powers = true},
};
enum { N_CHARTS = sizeof charts / sizeof *charts };

/* --- the table of figures --- */

static void put_count(FILE *out, double value)
{
    static const char suffixes[] = " kMGT";
    int k = 0;
    for (; value >= 9999.5 && k < 4; k++)
        value /= 1000;
    fprintf(out, k && value < 99.95 ? "%.1f" : "%.0f", value);
    if (k)
        fprintf(out, " %c", suffixes[k]);
}

static void put_time(FILE *out, double s)
{
    if (s < 120)
        fprintf(out, "%.1f s", s);
    else if (s < 7200)
        fprintf(out, "%d min %02d s", (int)s / 60, (int)s % 60);
    else
        fprintf(out, "%.0f h %02d min", floor(s / 3600), (int)fmod(s / 60, 60));
}

static void put_share(FILE *out, double value)
{
    fprintf(out, "%.*f %%",
            value < REPORT_ZERO_SHARE ? 0
            : value < 0.001           ? 3
            : value < 0.1             ? 2
                                      : 1,
            100 * value);
}

static void put_loss(FILE *out, double value)
{
    fprintf(out, "%.4f", value);
}

static void put_steps(FILE *out, double value)
{
    fprintf(out, "%.*f", value < 99.95, value);
}

static void put_versions(FILE *out, double value)
{
    fprintf(out, "%.2f", value);
}

static const struct column {
    const char *title, *key;            /* of the summary */
    enum report_field field;            /* of the last interval; REPORT_FIELDS: none */
    void (*put)(FILE *out, double value);
    int better;                         /* 1: more is, -1: less is, 0: neither */
    const char *means;
    const char *of;                     /* the header's key for the examples that it is a
                                           mean of */
} columns[] = {
    {"examples", "examples", REPORT_EXAMPLES, put_count, 0, NULL, NULL},
    {"time", "seconds", REPORT_SECONDS, put_time, 0, NULL, NULL},
    {"loss", "loss", REPORT_LOSS, put_loss, -1,
     "Loss: the mean of −ln of the probability given to what was so.", "data"},
    {"NE", "ne", REPORT_NE, put_loss, -1,
     "NE, normalised entropy: the loss ÷ that of a guess by the share of clicks alone. "
     "Loss and NE are those while training.",
     "data"},
    {"loss of its start", "start_loss", REPORT_FIELDS, put_loss, 0,
     "Of its start: of what a resumed run has trained itself; its loss and NE are of all "
     "that the model was trained on.",
     NULL},
    {"NE of its start", "start_ne", REPORT_FIELDS, put_loss, 0, NULL, NULL},
    {"held-out loss", "eval_loss", REPORT_EVAL_LOSS, put_loss, -1, NULL, "eval"},
    {"held-out NE", "eval_ne", REPORT_EVAL_NE, put_loss, -1, NULL, "eval"},
    {"AUC", "auc", REPORT_AUC, put_loss, 1,
     "AUC: how often a click is scored above another example.", "eval"},
    {"accuracy", "eval_accuracy", REPORT_ACCURACY, put_loss, 1,
     "Accuracy: how often what was so had the highest probability; it and AUC are of the "
     "held-out set.",
     "eval"},
    {"examples/s", "examples_per_s", REPORT_RATE, put_count, 1, NULL, NULL},
    {"stall", "stall_share", REPORT_STALL, put_share, -1,
     "Stall: the share of the workers’ time spent waiting for other trainers.", NULL},
    {"gap", "gap_mean", REPORT_GAP, put_steps, 0,
     "Gap: steps of a trainer between two merges.", NULL},
    {"supersteps", "supersteps", REPORT_FIELDS, put_count, 0,
     "Supersteps: steps of the global model, each by the mean of the gradients that had "
     "come.",
     NULL},
    {"staleness", "staleness_mean", REPORT_STALENESS, put_versions, 0,
     "Staleness: versions that the model had gone on by when a gradient came.", NULL},
    {"stale", "refused_stale", REPORT_FIELDS, put_count, -1,
     "Stale: gradients that were refused for it.", NULL},
};
enum { N_COLUMNS = sizeof columns / sizeof *columns };

static bool anybody(const struct column *c, const struct report_run *runs, int n)
{
    for (int r = 0; r < n; r++)
        if (isfinite(report_figure(&runs[r], c->key, c->field)))
            return true;
    return false;
}

/* A model's quality on other examples says nothing. Held-out sets have their numbers by
 * then. */
static bool comparable(const struct column *c, const struct report_run *a,
                       const struct report_run *b)
{
    if (c->of && strcmp(c->of, "eval") == 0)
        return a->set == b->set;
    return !c->of || report_same_examples(c->of, a, b);
}

/* The best of the runs that are done and can be compared with this one. NaN where it
 * tells nobody apart. */
static double best_of(const struct column *c, const struct report_run *this,
                      const struct report_run *runs, int n)
{
    double best = (double)NAN, worst = (double)NAN;
    for (int r = 0; r < n; r++) {
        double value = report_figure(&runs[r], c->key, c->field);
        if (!c->better || report_unfinished(&runs[r]) || !isfinite(value) ||
            !comparable(c, this, &runs[r]))
            continue;
        if (!(value * c->better <= best * c->better))
            best = value;
        if (!(value * c->better >= worst * c->better))
            worst = value;
    }
    return best > worst || best < worst ? best : (double)NAN;
}

static void put_key(FILE *out, int r)
{
    fprintf(out, "<svg class=\"key\" viewBox=\"0 0 22 10\"><g class=\"run c%d%s\">"
            "<path d=\"M1 5H21\" stroke-width=\"3\"/></g></svg>", r % REPORT_COLOURS,
            r >= REPORT_COLOURS ? " dashed" : "");
}

static void put_header(FILE *out, const struct report_run *run, const char *key)
{
    const json_t *value = json_object_get(run->header, key);
    char *text = value && !json_is_string(value)
                     ? json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(9))
                     : NULL;
    if (json_is_string(value))
        report_list(out, json_string_value(value));
    else
        report_list(out, text ? text : "–");
    free(text);
}

/* By a launcher, of whose ranks the run itself has none to start. */
static bool started_elsewhere(const struct report_run *run)
{
    const json_t *trainers = json_object_get(run->header, "trainers");
    return json_is_number(trainers) && json_number_value(trainers) < 1;
}

static void put_run(FILE *out, const struct report_run *run, int r)
{
    fputs("<tr><td>", out);
    put_key(out, r);
    report_text(out, run->label);
    fputs("<small>", out);
    if (report_of_bsp(run)) {
        fputs("bsp run <span>· ", out);
        put_header(out, run, "modules");
        fputs(" modules", out);
    } else {
        put_header(out, run, "model");
        fputs(" · ", out);
        put_header(out, run, "sync");
        fputs(" <span>· ", out);
        put_header(out, run, started_elsewhere(run) ? "size" : "trainers");
        fputs(" × ", out);
        put_header(out, run, "workers");
    }
    fputs("</span></small>", out);
    if (report_unfinished(run)) {
        fputs("<small>", out);
        report_text(out, report_unfinished(run));
        fputs("</small>", out);
    }
    if (run->n_failed)
        fprintf(out, "<small>%d checkpoint%s failed</small>", run->n_failed,
                run->n_failed == 1 ? "" : "s");
    fputs("</td>", out);
}

static void put_figure(FILE *out, const struct column *c, double value, bool bold)
{
    fputs(bold ? "<td><b>" : "<td>", out);
    if (isfinite(value))
        c->put(out, value);
    else
        fputs("–", out);
    fputs(bold ? "</b></td>" : "</td>", out);
}

static bool has_set(const struct report_run *run)
{
    return json_string_length(json_object_get(run->header, "eval")) > 0 ||
           isfinite(report_figure(run, "eval_loss", REPORT_EVAL_LOSS));
}

/* A run's facts about its held-out set: 2 examples and clicks, 1 examples, 0 names alone;
 * -1: it has none. */
static int knows_set(const struct report_run *run)
{
    bool counted = isfinite(report_figure(run, "eval_examples", REPORT_EVAL_EXAMPLES));
    return !has_set(run) ? -1
           : counted ? 1 + isfinite(report_figure(run, "eval_clicks", REPORT_EVAL_CLICKS))
                     : 0;
}

/* Among runs that know as much as each other, "the same examples" parts them into sets. A
 * run that knows less is of their set where it fits one alone; of several it may be any,
 * and so is of none of them. Thus the order of the runs decides nothing but the numbers,
 * as sets appear. */
static void number_sets(struct report_run *runs, int n)
{
    /* from 1, of the set of each run that began one */
    int numbers[REPORT_MAX_RUNS] = {0};

    for (int r = 0; r < n; r++)
        runs[r].set = -1;
    for (int knows = 2; knows >= 0; knows--)
        for (int r = 0; r < n; r++) {
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
    for (int r = 0, sets = 0; r < n; r++)
        if (runs[r].set >= 0) {
            int *number = &numbers[runs[r].set];
            *number = *number ? *number : ++sets;
            runs[r].set = *number - 1;
        }
}

static int count_sets(const struct report_run *runs, int n)
{
    int sets = 0;
    for (int r = 0; r < n; r++)
        sets = runs[r].set >= sets ? runs[r].set + 1 : sets;
    return sets;
}

/* "A: held.tsv, 4000 examples". */
static void name_set(const struct report_run *run, int set, char *text, size_t room)
{
    const char *names = json_string_value(json_object_get(run->header, "eval"));
    double n = report_figure(run, "eval_examples", REPORT_EVAL_EXAMPLES);
    int used = snprintf(text, room, "%c: %.200s", 'A' + set, names ? names : "");
    if (isfinite(n) && (size_t)used < room)
        snprintf(text + used, room - (size_t)used, ", %.0f examples", n);
}

static void put_set(FILE *out, const struct report_run *runs, int r)
{
    int set = runs[r].set;
    char text[256] = "–";
    if (set >= 0)
        name_set(&runs[r], set, text, sizeof text);
    fputs("<td>", out);
    report_text(out, text);
    fputs("</td>", out);
}

static void put_figures(FILE *out, const struct report_run *runs, int n)
{
    bool plans = false, sets = count_sets(runs, n) > 1;
    for (int r = 0; r < n; r++)
        plans |= !report_of_bsp(&runs[r]);
    fprintf(out, "<div class=\"wide\"><table>\n<tr><th>run%s</th>",
            plans ? "<small>model · plan · trainers × workers</small>" : "");
    if (sets)
        fputs("<th>held-out set</th>", out);
    for (int c = 0; c < N_COLUMNS; c++)
        if (anybody(&columns[c], runs, n))
            fprintf(out, "<th>%s</th>", columns[c].title);
    fputs("</tr>\n", out);
    for (int r = 0; r < n; r++) {
        put_run(out, &runs[r], r);
        if (sets)
            put_set(out, runs, r);
        for (int c = 0; c < N_COLUMNS; c++) {
            double value = report_figure(&runs[r], columns[c].key, columns[c].field);
            bool best = !report_unfinished(&runs[r]) &&
                        value == best_of(&columns[c], &runs[r], runs, n);
            if (anybody(&columns[c], runs, n))
                put_figure(out, &columns[c], value, best);
        }
        fputs("</tr>\n", out);
    }
    fputs("</table></div>\n", out);
}

static bool any_unfinished(const struct report_run *runs, int n)
{
    for (int r = 0; r < n; r++)
        if (report_unfinished(&runs[r]))
            return true;
    return false;
}

static void put_summary(FILE *out, const struct report_run *runs, int n)
{
    put_figures(out, runs, n);
    fputs("<p>", out);
    for (int c = 0; c < N_COLUMNS; c++)
        if (columns[c].means && anybody(&columns[c], runs, n))
            fprintf(out, "%s ", columns[c].means);
    if (n > 1)
        fprintf(out, "Bold: the best of the finished runs%s. ", count_sets(runs, n) > 1
                ? "; held-out figures are compared where they are of the same set" : "");
    if (any_unfinished(runs, n))
        fputs("A run that did not finish has figures of its last interval and evaluation "
              "where its log has no summary of them.",
              out);
    fputs("</p>\n", out);
}

/* --- options --- */

/* Of these a run's figures do not depend. */
static bool matters(const char *key)
{
    static const char *const idle[] = {
        "time",  "log",     "log-every", "checkpoint", "checkpoint-every",
        "quiet", "start-s", "job"};
    for (size_t k = 0; k < sizeof idle / sizeof *idle; k++)
        if (strcmp(key, idle[k]) == 0)
            return false;
    return true;
}

static bool differs(const char *key, const struct report_run *runs, int n)
{
    for (int r = 1; r < n; r++) {
        const json_t *a = json_object_get(runs[0].header, key);
        const json_t *b = json_object_get(runs[r].header, key);
        if (a != b && !json_equal(a, b))
            return true;
    }
    return false;
}

/* Is this the first run that has the option? */
static bool first_with(const char *key, const struct report_run *runs, int r)
{
    for (int k = 0; k < r; k++)
        if (json_object_get(runs[k].header, key))
            return false;
    return strcmp(key, "kind") != 0;
}

static void put_option(FILE *out, const char *key, const struct report_run *runs, int n)
{
    fputs("<tr><td>", out);
    report_text(out, key);
    fputs("</td>", out);
    for (int r = 0; r < n; r++) {
        fputs("<td>", out);
        put_header(out, &runs[r], key);
        fputs("</td>", out);
    }
    fputs("</tr>\n", out);
}

static int put_options(FILE *out, const struct report_run *runs, int n, bool all)
{
    int shown = 0;
    fputs("<div class=\"wide\"><table class=\"options\">\n<tr><th>option</th>", out);
    for (int r = 0; r < n; r++) {
        fputs("<th>", out);
        put_key(out, r);
        report_text(out, runs[r].label);
        fputs("</th>", out);
    }
    fputs("</tr>\n", out);
    for (int r = 0; r < n; r++) {
        const char *key;
        json_t *value;
        json_object_foreach(runs[r].header, key, value)
            if (first_with(key, runs, r) &&
                (all || (differs(key, runs, n) && matters(key)))) {
                put_option(out, key, runs, n);
                shown++;
            }
    }
    fputs("</table></div>\n", out);
    return shown;
}

/* --- the page --- */

static bool has_curve(const struct report_run *run, enum report_field field)
{
    size_t points = 0;
    for (size_t i = 0; i < run->n; i++)
        points += isfinite(run->points[i].at[field]) &&
                  (field == REPORT_EVAL_LOSS || !run->points[i].apart);
    return points > 1;
}

/* Why charts that a reader looks for are not there. */
static void put_missing(FILE *out, const struct report_run *runs, int n)
{
    bool held_out = false, evaluated = false, logged = false;
    for (int r = 0; r < n; r++) {
        held_out |= isfinite(report_figure(&runs[r], "eval_loss", REPORT_EVAL_LOSS));
        evaluated |= has_curve(&runs[r], REPORT_EVAL_LOSS);
        logged |= has_curve(&runs[r], REPORT_SECONDS);
    }
    if (held_out && !evaluated)
        fputs("<p>Held-out figures were measured once a run, and are in the table: train "
              "--eval-every gives their curves.</p>\n", out);
    if (!logged)
        fputs("<p>A curve needs two intervals: train --log-every says how many seconds "
              "one takes.</p>\n",
              out);
}

static void put_legend(FILE *out, const struct report_run *runs, int n)
{
    fputs("<h2>Curves</h2>\n<div class=\"legend\">", out);
    for (int r = 0; r < n; r++) {
        fputs("<span>", out);
        put_key(out, r);
        report_text(out, runs[r].label);
        fputs("</span>\n", out);
    }
    fputs("</div>\n", out);
}

static void put_what(FILE *out, const struct report_run *run)
{
    if (report_of_bsp(run)) {
        fputs("descant bsp run, ", out);
        put_header(out, run, "parameters");
        fputs(" parameters", out);
        return;
    }
    put_header(out, run, "model");
    fputs(", on ", out);
    put_header(out, run, "data");
}

static void put_head(FILE *out, const struct report_run *runs, int n)
{
    char title[64];
    snprintf(title, sizeof title, n == 1 ? "A training run" : "%d training runs compared",
             n);
    fprintf(out,
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta "
            "charset=\"utf-8\"/>\n<meta name=\"viewport\" "
            "content=\"width=device-width,initial-scale=1\"/>\n<title>%s</"
            "title>\n<style>\n%s</style>\n</head>\n<body>\n<h1>%s</h1>\n<p>",
            title, style, title);
    put_what(out, &runs[0]);
    fputs(differs("model", runs, n) || differs("data", runs, n) ? ", and others.</p>\n"
                                                                : ".</p>\n", out);
}

/* A chart of held-out figures for each set: those of two are not to be compared. */
static bool put_charts(FILE *out, const struct report_chart *chart,
                       const struct report_run *runs, int n)
{
    struct report_chart one = *chart;
    bool skips[REPORT_MAX_RUNS], good = true;
    char of[256];
    int sets = count_sets(runs, n);
    if (!chart->sparse || sets < 2)
        return report_chart(out, chart, runs, n);
    for (int set = 0; set < sets && good; set++) {
        for (int r = n - 1; r >= 0; r--) {
            skips[r] = runs[r].set != set;
            if (!skips[r])
                name_set(&runs[r], set, of, sizeof of);
        }
        one.of = of;
        one.skips = skips;
        good = report_chart(out, &one, runs, n);
    }
    return good;
}

bool report_page(FILE *out, struct report_run *runs, int n)
{
    bool good = true;
    number_sets(runs, n);
    put_head(out, runs, n);
    put_summary(out, runs, n);
    put_legend(out, runs, n);
    put_missing(out, runs, n);
    fputs("<div class=\"charts\">\n", out);
    for (int c = 0; c < N_CHARTS && good; c++)
        good = put_charts(out, &charts[c], runs, n);
    fputs("</div>\n", out);
    if (n > 1) {
        fputs("<h2>Options that differ</h2>\n", out);
        if (put_options(out, runs, n, false) == 0)
            fputs("<p>None.</p>\n", out);
    }
    fputs("<details><summary>All options</summary>\n", out);
    put_options(out, runs, n, true);
    fprintf(out, "</details>\n<footer>descant report %s, from ", descant_version());
    for (int r = 0; r < n; r++) {
        fputs(r ? ", " : "", out);
        report_text(out, runs[r].path);
    }
    fputs("</footer>\n</body>\n</html>\n", out);
    return good;
}
