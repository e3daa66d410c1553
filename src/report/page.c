/* SPDX-License-Identifier: MIT */
/* The page: one file that needs no other, no script, and follows the reader's choice of
 * light or dark. It has a table of the runs' last figures, the options in which they
 * differ, the charts, and every option, folded away. page.html is the page with places
 * for its values, and page.css its style; this file makes the values. Texts of a log or
 * of the command line are escaped as they are put in their places. All values are made
 * before the first byte is written, so that a page is whole or not there.
 *
 * The colours are those of Okabe and Ito, which the colour-blind can tell apart, a little
 * darker on light ground and lighter on dark. */
#include "report/report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char template[] =
#include "page.html.h"
    ;
static const char style[] =
#include "page.css.h"
    ;

/* In the page's order. A chart is left out where no run has two such values, so charts of
 * descant train and of descant bsp run stand in one table; a new one is a row here. */
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

/* --- figures --- */

/* How a figure of the table is written: LOSS with four decimals, COUNT with k, M, G or T,
 * TIME in its units, and so on. */
enum figure { LOSS, COUNT, TIME, SHARE, STEPS, VERSIONS };

static json_t *figure_text(enum figure figure, double value)
{
    static const char *const suffixes[] = {"", " k", " M", " G", " T"};
    int k = 0;

    if (!isfinite(value))
        return json_null();
    switch (figure) {
    case COUNT:
        for (; value >= 9999.5 && k < 4; k++)
            value /= 1000;
        return json_sprintf("%.*f%s", k && value < 99.95, value, suffixes[k]);
    case TIME:
        return value < 120 ? json_sprintf("%.1f s", value)
               : value < 7200
                   ? json_sprintf("%d min %02d s", (int)value / 60, (int)value % 60)
                   : json_sprintf("%.0f h %02d min", floor(value / 3600),
                                  (int)fmod(value / 60, 60));
    case SHARE:
        k = value < REPORT_ZERO_SHARE ? 0 : value < 0.001 ? 3 : value < 0.1 ? 2 : 1;
        return json_sprintf("%.*f %%", k, 100 * value);
    case STEPS: return json_sprintf("%.*f", value < 99.95, value);
    case VERSIONS: return json_sprintf("%.2f", value);
    default: return json_sprintf("%.4f", value);
    }
}

/* The columns of the runs' table, in its order. A column is left out where no run has its
 * figure; a new one is a row here. `means` is printed below the table. */
static const struct column {
    const char *title, *key;            /* of the summary */
    enum report_field field;            /* of the last interval; REPORT_FIELDS: none */
    enum figure figure;
    int better;                         /* 1: more is, -1: less is, 0: neither */
    const char *means;
    const char *of;                     /* the header's key for the examples that it is a
                                           mean of */
} columns[] = {
    {"examples", "examples", REPORT_EXAMPLES, COUNT, 0, NULL, NULL},
    {"time", "seconds", REPORT_SECONDS, TIME, 0, NULL, NULL},
    {"loss", "loss", REPORT_LOSS, LOSS, -1,
     "Loss: the mean of −ln of the probability given to the true label.", "data"},
    {"NE", "ne", REPORT_NE, LOSS, -1,
     "NE, normalised entropy: the loss ÷ that of a guess by the share of clicks alone. "
     "Loss and NE are those while training.",
     "data"},
    {"loss of its start", "start_loss", REPORT_FIELDS, LOSS, 0,
     "Of its start: of the examples since a resumed run began; its loss and NE are of "
     "all examples that the model was trained on.",
     NULL},
    {"NE of its start", "start_ne", REPORT_FIELDS, LOSS, 0, NULL, NULL},
    {"held-out loss", "eval_loss", REPORT_EVAL_LOSS, LOSS, -1, NULL, "eval"},
    {"held-out NE", "eval_ne", REPORT_EVAL_NE, LOSS, -1, NULL, "eval"},
    {"AUC", "auc", REPORT_AUC, LOSS, 1,
     "AUC: how often a click is scored above another example.", "eval"},
    {"accuracy", "eval_accuracy", REPORT_ACCURACY, LOSS, 1,
     "Accuracy: how often the true label had the highest probability; it and AUC are of "
     "the held-out set.",
     "eval"},
    {"examples/s", "examples_per_s", REPORT_RATE, COUNT, 1, NULL, NULL},
    {"stall", "stall_share", REPORT_STALL, SHARE, -1,
     "Stall: the share of the workers’ time spent waiting for other trainers.", NULL},
    {"stall for rows", "stall_rows", REPORT_FIELDS, SHARE, -1,
     "Stall for rows: the same, for rows of tables that other trainers own.", NULL},
    {"moved", "rows_moved", REPORT_FIELDS, COUNT, 0,
     "Moved: rows that the trainer has sent to others, to own or as replicas.", NULL},
    {"rows", "rows_live", REPORT_FIELDS, COUNT, 0,
     "Rows: of tables that grow, those that there are at the end.", NULL},
    {"evicted", "rows_evicted", REPORT_FIELDS, COUNT, -1,
     "Evicted: rows that have made room for others, or were not used for long.", NULL},
    {"refused", "rows_refused", REPORT_FIELDS, COUNT, 0,
     "Refused: gradients of ids that got no row by --rows-admit.", NULL},
    {"gap", "gap_mean", REPORT_GAP, STEPS, 0,
     "Gap: steps of a trainer between two merges.", NULL},
    {"missed", "missed", REPORT_FIELDS, COUNT, 0,
     "Missed: rounds that closed without a trainer, under a plan with a quorum.", NULL},
    {"merged", "merged_share", REPORT_FIELDS, SHARE, 0,
     "Merged: the share of a trainer’s steps that results have.", NULL},
    {"supersteps", "supersteps", REPORT_FIELDS, COUNT, 0,
     "Supersteps: steps of the global model, each by the mean of the gradients that had "
     "come.",
     NULL},
    {"staleness", "staleness_mean", REPORT_STALENESS, VERSIONS, 0,
     "Staleness: versions that the model had gone on by when a gradient came.", NULL},
    {"stale", "refused_stale", REPORT_FIELDS, COUNT, -1,
     "Stale: gradients that were refused for it.", NULL},
};
enum { N_COLUMNS = sizeof columns / sizeof *columns };

static bool any_figure(const struct column *c, const struct report_run *runs, int n)
{
    for (int r = 0; r < n; r++)
        if (isfinite(report_figure(&runs[r], c->key, c->field)))
            return true;
    return false;
}

/* Qualities on different examples are not compared. Held-out sets have their numbers by
 * then. */
static bool comparable(const struct column *c, const struct report_run *a,
                       const struct report_run *b)
{
    if (c->of && strcmp(c->of, "eval") == 0)
        return a->set == b->set;
    return !c->of || report_same_examples(c->of, a, b);
}

/* The best figure of the runs that are done and can be compared with this one. NaN: all
 * have the same. */
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

/* --- values --- */

struct page {
    const struct report_run *runs;
    int n, sets;
    bool good;                  /* there was memory for all values */
};

/* Both take over `value`; NULL: there was no memory for it. */
static void set(struct page *p, json_t *object, const char *name, json_t *value)
{
    p->good &= json_object_set_new_nocheck(object, name, value) == 0;
}

static void add(struct page *p, json_t *list, json_t *value)
{
    p->good &= json_array_append_new(list, value) == 0;
}

/* The header's value as a text, a new reference; null: the header has none. NULL: no
 * memory. */
static json_t *header_text(const struct report_run *run, const char *key)
{
    json_t *value = json_object_get(run->header, key);

    if (!value || json_is_string(value))
        return value ? json_incref(value) : json_null();
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(9));
    value = text ? json_string_nocheck(text) : NULL;
    free(text);
    return value;
}

/* Whether a launcher has started the trainers. */
static bool started_elsewhere(const struct report_run *run)
{
    const json_t *trainers = json_object_get(run->header, "trainers");
    return json_is_number(trainers) && json_number_value(trainers) < 1;
}

/* The cells of a run's row. A column for which no run has a figure has no cell in any
 * row. */
static json_t *figures_of(struct page *p, const struct report_run *run)
{
    json_t *figures = json_array();

    for (const struct column *c = columns; c < columns + N_COLUMNS; c++) {
        double value = report_figure(run, c->key, c->field);
        bool best = !report_unfinished(run) && value == best_of(c, run, p->runs, p->n);
        if (any_figure(c, p->runs, p->n))
            add(p, figures, json_pack("{s:o,s:b}", "figure",
                                      figure_text(c->figure, value), "best", best));
    }
    return figures;
}

static double of_host(const struct report_host *host, const char *key)
{
    const json_t *value = json_object_get(host->last, key);
    return json_is_number(value) ? json_number_value(value) : (double)NAN;
}

/* The rows of the table of a run's hosts. A host's speed is that of all its time. */
static json_t *hosts_of(struct page *p, const struct report_run *run)
{
    json_t *rows = json_array();

    for (size_t k = 0; k < run->n_hosts; k++) {
        const struct report_host *host = &run->hosts[k];
        const char *name = json_string_value(json_object_get(host->last, "name"));
        const char *state = json_string_value(json_object_get(host->last, "state"));
        double n = of_host(host, "examples"), s = of_host(host, "trained_s");
        if (host->number == REPORT_ALL_HOSTS)
            continue;
        json_t *row = json_pack("{s:o,s:o}", "name",
                                json_sprintf("%d %s", host->number, name ? name : ""),
                                "state", json_string_nocheck(state ? state : ""));
        set(p, row, "examples", figure_text(COUNT, n));
        set(p, row, "speed", figure_text(COUNT, s > 0 ? n / s : (double)NAN));
        set(p, row, "time", figure_text(TIME, s));
        set(p, row, "stall", figure_text(SHARE, of_host(host, "stall_share")));
        set(p, row, "gap", figure_text(STEPS, of_host(host, "gap")));
        double age_ms = 1e3 * of_host(host, "age_s");
        set(p, row, "served", figure_text(COUNT, of_host(host, "rows_served")));
        set(p, row, "age", age_ms < 1000 ? json_sprintf("%.1f ms", age_ms)
                                         : figure_text(TIME, age_ms / 1e3));
        add(p, rows, row);
    }
    return rows;
}

/* The values of one run, for page.html's sections of runs. */
static json_t *run_of(struct page *p, int r)
{
    static const char *const shown[] = {"model", "sync", "workers", "modules",
                                        "parameters", "data"};
    const struct report_run *run = &p->runs[r];
    const char *unfinished = report_unfinished(run);
    char set_name[256];
    json_t *of = json_pack("{s:b,s:b}", "first", r == 0, "bsp", report_of_bsp(run));

    for (size_t k = 0; k < sizeof shown / sizeof *shown; k++)
        set(p, of, shown[k], header_text(run, shown[k]));
    set(p, of, "trainers",
        header_text(run, started_elsewhere(run) ? "size" : "trainers"));
    set(p, of, "colour",
        json_sprintf("c%d%s", r % REPORT_COLOURS, r < REPORT_COLOURS ? "" : " dashed"));
    set(p, of, "label", json_string_nocheck(run->label));
    set(p, of, "path", json_string_nocheck(run->path));
    set(p, of, "unfinished", unfinished ? json_string_nocheck(unfinished) : json_null());
    set(p, of, "failed", run->n_failed ? json_sprintf("%d checkpoint%s", run->n_failed,
                                                      run->n_failed == 1 ? "" : "s")
                                       : json_null());
    set(p, of, "set", run->set < 0 ? json_null()
                                   : json_string_nocheck(report_set_name(
                                         run, set_name, sizeof set_name)));
    set(p, of, "figures", figures_of(p, run));
    set(p, of, "many_hosts", json_boolean(run->n_hosts > 0));
    bool owned = false;         /* rows have owners, which serve them */
    for (size_t k = 0; k < run->n_hosts; k++)
        owned |= isfinite(of_host(&run->hosts[k], "rows_served"));
    set(p, of, "owned", json_boolean(owned));
    set(p, of, "hosts", hosts_of(p, run));
    return of;
}

/* --- options --- */

/* Whether a run's figures may depend on the option. */
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

static bool differs(const char *key, const struct page *p)
{
    for (int r = 1; r < p->n; r++) {
        const json_t *a = json_object_get(p->runs[0].header, key);
        const json_t *b = json_object_get(p->runs[r].header, key);
        if (a != b && !json_equal(a, b))
            return true;
    }
    return false;
}

/* A table of the runs' options: those that differ, or all. */
static json_t *options_of(struct page *p, bool differ)
{
    json_t *rows = json_array(), *names = json_object();

    for (int r = 0; r < p->n; r++) {
        const char *key;
        json_t *value;
        json_object_foreach(p->runs[r].header, key, value) {
            if (json_object_get(names, key) || strcmp(key, "kind") == 0 ||
                (differ && (!differs(key, p) || !matters(key))))
                continue;
            json_t *values = json_array();
            for (int k = 0; k < p->n; k++)
                add(p, values, header_text(&p->runs[k], key));
            set(p, names, key, json_true());
            add(p, rows, json_pack("{s:s,s:o}", "name", key, "values", values));
        }
    }
    json_decref(names);
    bool none = differ && json_array_size(rows) == 0;
    return json_pack("{s:b,s:b,s:o}", "differ", differ, "none", none, "rows", rows);
}

/* --- charts --- */

static bool has_curve(const struct report_run *run, enum report_field field)
{
    size_t points = 0;
    for (size_t i = 0; i < run->n; i++)
        points += isfinite(run->points[i].at[field]) &&
                  (field == REPORT_EVAL_LOSS || !run->points[i].apart);
    return points > 1;
}

/* Notes in place of charts that a reader may look for. */
static void set_missing(struct page *p, json_t *page)
{
    bool held_out = false, evaluated = false, logged = false;

    for (int r = 0; r < p->n; r++) {
        const struct report_run *run = &p->runs[r];
        held_out |= isfinite(report_figure(run, "eval_loss", REPORT_EVAL_LOSS));
        evaluated |= has_curve(run, REPORT_EVAL_LOSS);
        logged |= has_curve(run, REPORT_SECONDS);
    }
    set(p, page, "once", json_boolean(held_out && !evaluated));
    set(p, page, "short", json_boolean(!logged));
}

/* A chart of held-out figures for each set, since figures of two sets are not to be
 * compared. */
static void put_chart(struct page *p, FILE *out, const struct report_chart *chart)
{
    struct report_chart one = *chart;
    bool skips[REPORT_MAX_RUNS];
    char of[256];
    int sets = chart->sparse && p->sets > 1 ? p->sets : 0;

    if (!sets)
        p->good &= report_chart(out, chart, p->runs, p->n);
    for (int s = 0; s < sets && p->good; s++) {
        for (int r = p->n - 1; r >= 0; r--) {
            skips[r] = p->runs[r].set != s;
            one.of = skips[r] ? one.of : report_set_name(&p->runs[r], of, sizeof of);
        }
        one.skips = skips;
        p->good &= report_chart(out, &one, p->runs, p->n);
    }
}

static json_t *charts_of(struct page *p)
{
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);

    for (int c = 0; out && c < N_CHARTS && p->good; c++)
        put_chart(p, out, &charts[c]);
    for (int r = 0; out && r < p->n && p->good; r++)
        p->good &= report_hosts(out, &p->runs[r]);
    json_t *drawn = out && fclose(out) == 0 ? json_string_nocheck(text) : NULL;
    free(text);
    return drawn;
}

/* --- the page --- */

/* Makes the object that page.html is filled with. A value for which there was no memory
 * clears p.good, and then nothing is written. */
bool report_page(FILE *out, struct report_run *runs, int n)
{
    struct page p = {runs, n, report_compare(runs, n), true};
    json_t *page = json_object(), *list = json_array(), *titles = json_array(),
           *meanings = json_array(), *options = json_array();
    bool plans = false, torn = false;

    for (int r = 0; r < n; r++) {
        plans |= !report_of_bsp(&runs[r]);
        torn |= report_unfinished(&runs[r]) != NULL;
        add(&p, list, run_of(&p, r));
    }
    for (const struct column *c = columns; c < columns + N_COLUMNS; c++)
        if (any_figure(c, runs, n)) {
            add(&p, titles, json_string(c->title));
            if (c->means)
                add(&p, meanings, json_string(c->means));
        }
    if (n > 1)
        add(&p, options, options_of(&p, true));
    add(&p, options, options_of(&p, false));
    set(&p, page, "title", n == 1 ? json_string("A training run")
                                  : json_sprintf("%d training runs compared", n));
    set(&p, page, "style", json_string(style));
    set(&p, page, "version", json_string(descant_version()));
    set(&p, page, "others", json_boolean(differs("model", &p) || differs("data", &p)));
    set(&p, page, "several", json_boolean(n > 1));
    set(&p, page, "sets", json_boolean(p.sets > 1));
    set(&p, page, "plans", json_boolean(plans));
    set(&p, page, "torn", json_boolean(torn));
    set(&p, page, "runs", list);
    set(&p, page, "columns", titles);
    set(&p, page, "meanings", meanings);
    set(&p, page, "options", options);
    set(&p, page, "charts", charts_of(&p));
    set_missing(&p, page);
    if (p.good)
        report_fill(out, template, page);
    json_decref(page);
    return p.good;
}
