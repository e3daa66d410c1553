/* SPDX-License-Identifier: MIT */
/* Logs of descant train and descant bsp run, read into memory: one JSON object a line.
 * The first line is a header; then come intervals, or supersteps, evaluations between
 * them, and at the end a summary. Other kinds of lines are passed over, so that logs may
 * learn new ones. A log may be
 *   - still being written: a last line without its end that is no JSON is left out;
 *   - taken up again after a stop: another header; the curves have a gap there. A line
 *     that was torn as it stopped may stand before that header, without its end;
 *   - ended within an interval: that interval is too short to tell a loss or a speed by;
 *   - of several ranks: the intervals of the first rank seen are those shown;
 *   - of a run on several hosts: lines of the kinds whole and host have the figures of
 *     all hosts, and the first host's intervals get the speed of all.
 * Anything else is refused with the file and the line. */
#include "report/report.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The key of each field in an interval's, a superstep's or an evaluation's line. Fields
 * without a key are computed (take_gradients). */
static const char *const keys[REPORT_FIELDS] = {
    [REPORT_EXAMPLES] = "examples",
    [REPORT_SECONDS] = "seconds",
    [REPORT_LOSS] = "loss",
    [REPORT_EVAL_LOSS] = "eval_loss",
    [REPORT_NE] = "ne",
    [REPORT_RATE] = "examples_per_s",
    [REPORT_GAP] = "gap",
    [REPORT_STALL] = "stall_share",
    [REPORT_DISTANCE] = "distance",
    [REPORT_EVAL_NE] = "eval_ne",
    [REPORT_AUC] = "auc",
    [REPORT_CALIBRATION] = "eval_calibration",
    [REPORT_ACCURACY] = "eval_accuracy",
    [REPORT_EVAL_EXAMPLES] = "eval_examples",
    [REPORT_EVAL_CLICKS] = "eval_clicks",
    [REPORT_AGE] = "age_s",
    [REPORT_STALENESS] = "staleness_mean",
    [REPORT_STEP] = "step_s",
};

static const char header_begins[] = "{\"kind\":\"header\"";

struct reading {
    struct report_run *run;
    FILE *err;
    long line;
    json_int_t rank;            /* whose intervals count; -1 until the first */
    double examples, seconds;   /* up to the last superstep */
    size_t given;               /* the last point with the speed of all hosts */
};

static bool wrong(const struct reading *r, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static bool wrong(const struct reading *r, const char *format, ...)
{
    va_list args;
    fprintf(r->err, "descant report: %s:%ld: ", r->run->path, r->line);
    va_start(args, format);
    vfprintf(r->err, format, args);
    va_end(args);
    fputc('\n', r->err);
    return false;
}

static bool add_point_to(const struct reading *r, struct report_run *run,
                         const struct report_point *point)
{
    if (!memory_grow(&run->points, &run->room, run->n, run->n + 1, sizeof *run->points))
        return wrong(r, "no memory for %zu intervals", run->n + 1);
    run->points[run->n++] = *point;
    return true;
}

static bool add_point(const struct reading *r, const struct report_point *point)
{
    return add_point_to(r, r->run, point);
}

static double number(const json_t *line, const char *key)
{
    const json_t *value = json_object_get(line, key);
    return json_is_number(value) ? json_number_value(value) : (double)NAN;
}

/* Of one superstep, or of those of an interval. */
static void take_gradients(const json_t *line, struct report_point *point)
{
    double gradients = number(line, "gradients"), steps = number(line, "supersteps");
    double refused = number(line, "refused_stale") + number(line, "refused_not_finite");
    double came = gradients + refused;
    point->at[REPORT_GRADIENTS] = isnan(steps) ? gradients : steps > 0 ? gradients / steps
                                                                       : (double)NAN;
    point->at[REPORT_REFUSED] = came > 0 ? refused / came : (double)NAN;
}

/* Fields that the line lacks, or that are null, are NaN. False: one is neither that nor a
 * number. */
static bool take_fields(const struct reading *r, const json_t *line,
                        struct report_point *point)
{
    *point = (struct report_point){.apart = false};
    for (int f = 0; f < REPORT_FIELDS; f++) {
        const json_t *value = keys[f] ? json_object_get(line, keys[f]) : NULL;
        if (value && !json_is_number(value) && !json_is_null(value))
            return wrong(r, "%s is not a number", keys[f]);
        point->at[f] = json_is_number(value) ? json_number_value(value) : (double)NAN;
    }
    return true;
}

/* An evaluation is a point apart. Its line has no gradients. */
static bool add_eval(struct reading *r, const json_t *line)
{
    struct report_point point;
    if (!take_fields(r, line, &point))
        return false;
    point.apart = true;
    point.at[REPORT_GRADIENTS] = point.at[REPORT_REFUSED] = (double)NAN;
    return add_point(r, &point);
}

/* *shown: the line is of the rank whose lines are shown, and *point has its figures. */
static bool take_line(struct reading *r, const json_t *line, struct report_point *point,
                      bool *shown)
{
    json_int_t rank = json_integer_value(json_object_get(line, "rank"));
    if (r->rank < 0)
        r->rank = rank;
    *shown = rank == r->rank;
    if (!take_fields(r, line, point))
        return false;
    take_gradients(line, point);
    return true;
}

static bool add_interval(struct reading *r, const json_t *line)
{
    struct report_point point;
    bool shown;
    return take_line(r, line, &point, &shown) && (!shown || add_point(r, &point));
}

/* An evaluation's line tells of the evaluation alone; the curves are over all examples,
 * and over time. */
static bool add_superstep(struct reading *r, const json_t *line)
{
    struct report_point point;
    bool shown;
    if (!take_line(r, line, &point, &shown))
        return false;
    if (!shown)
        return true;
    double *at = point.at, now = at[REPORT_SECONDS];
    r->examples += isfinite(at[REPORT_EXAMPLES]) ? at[REPORT_EXAMPLES] : 0;
    at[REPORT_RATE] =
        now > r->seconds ? at[REPORT_EXAMPLES] / (now - r->seconds) : (double)NAN;
    at[REPORT_EXAMPLES] = r->examples;
    r->seconds = now;
    return add_point(r, &point);
}

/* The last interval before point n; NULL: there is none. */
static struct report_point *interval_before(struct report_run *run,
                                            const struct report_point *point)
{
    struct report_point *p =
        point ? run->points + (point - run->points) : run->points + run->n;
    while (p > run->points)
        if (!(--p)->apart)
            return p;
    return NULL;
}

/* --- hosts --- */

/* The curve of a host, which the first line about it begins; NULL, with *good false, for
 * lack of memory. The first curve is that of all hosts, number -1. */
static struct report_host *host_of(struct reading *r, int number, bool *good)
{
    struct report_run *run = r->run;

    for (size_t k = 0; k < run->n_hosts; k++)
        if (run->hosts[k].number == number)
            return &run->hosts[k];
    if (run->n_hosts >= REPORT_MOST_HOSTS)
        return NULL;
    if (!memory_grow(&run->hosts, &run->hosts_room, run->n_hosts, run->n_hosts + 1,
                     sizeof *run->hosts)) {
        *good = wrong(r, "no memory for %zu hosts", run->n_hosts + 1);
        return NULL;
    }
    run->hosts[run->n_hosts] = (struct report_host){.number = number};
    return &run->hosts[run->n_hosts++];
}

/* A line of the kind whole, of number -1, or host. Its curve is over the time of the run.
 * A run with more hosts than REPORT_MOST_HOSTS is shown without the rest. */
static bool add_host(struct reading *r, json_t *line, int number)
{
    struct report_point point;
    bool good = take_fields(r, line, &point);
    struct report_host *host = good ? host_of(r, number, &good) : NULL;

    if (!host)
        return good;
    json_decref(host->last);
    host->last = json_incref(line);
    return add_point_to(r, &host->curve, &point);
}

/* A line about all hosts follows the first host's interval, whose speed and examples were
 * that host's alone. After the last interval there is no speed. Older logs lack the
 * examples that belong to the interval's. */
static bool add_whole(struct reading *r, json_t *line)
{
    double rate = number(line, "examples_per_s"), all = number(line, "examples_all");
    struct report_point *last = interval_before(r->run, NULL);

    if (last && (isfinite(rate) || r->given != (size_t)(last - r->run->points))) {
        last->at[REPORT_RATE] = rate;
        r->given = (size_t)(last - r->run->points);
    }
    if (last && all >= last->at[REPORT_EXAMPLES])
        last->at[REPORT_EXAMPLES] = all;
    return add_host(r, line, REPORT_ALL_HOSTS);
}

/* A header behind the first begins another start of the run: the summary and the failed
 * checkpoints before it are forgotten, and a point without values makes the gap in the
 * curves. */
static bool add_header(struct reading *r, json_t *line)
{
    struct report_run *run = r->run;
    struct report_point gap = {.apart = false};
    for (int f = 0; f < REPORT_FIELDS; f++)
        gap.at[f] = (double)NAN;
    json_decref(run->header);
    run->header = json_incref(line);
    json_decref(run->summary);
    run->summary = NULL;
    run->n_failed = 0;
    r->seconds = (double)NAN;
    for (size_t k = 0; k < run->n_hosts; k++)
        if (!add_point_to(r, &run->hosts[k].curve, &gap))
            return false;
    return run->n == 0 || add_point(r, &gap);
}

bool report_of_bsp(const struct report_run *run)
{
    return json_object_get(run->header, "modules") != NULL;
}

const char *report_unfinished(const struct report_run *run)
{
    /* How the reasons begin that descant train and descant bsp run log for an end in good
     * order (train/judge.c, control/run.c); other reasons are shown. */
    static const char *const ends[] = {"no gain in ",
                                       "all supersteps are made",
                                       "there were enough examples",
                                       "the held-out loss falls no more",
                                       "the time is over",
                                       "all modules have done their work"};
    const char *why = json_string_value(json_object_get(run->summary, "stopped"));

    if (!run->summary)
        return run->n ? "not finished" : "nothing logged yet";
    for (size_t k = 0; why && k < sizeof ends / sizeof *ends; k++)
        if (strncmp(why, ends[k], strlen(ends[k])) == 0)
            return NULL;
    return why && *why ? why : NULL;
}

/* The last interval, where it has less than half the examples of the one before. */
static void fade_last(struct report_run *run)
{
    struct report_point *last = run->n ? interval_before(run, NULL) : NULL;
    const struct report_point *second = last ? interval_before(run, last) : NULL;
    const struct report_point *first = second ? interval_before(run, second) : NULL;
    if (!first)
        return;
    double before = second->at[REPORT_EXAMPLES];
    if (last->at[REPORT_EXAMPLES] - before < (before - first->at[REPORT_EXAMPLES]) / 2)
        last->at[REPORT_LOSS] = last->at[REPORT_RATE] = (double)NAN;
}

/* Takes a line by its kind. A kind that is not known here is passed over. */
static bool add_line(struct reading *r, json_t *line)
{
    const char *kind = json_string_value(json_object_get(line, "kind"));
    if (!r->run->header && (!kind || strcmp(kind, "header") != 0))
        return wrong(r, "not a log of descant: it does not begin with a header");
    if (!kind)
        return wrong(r, "a line without its kind");
    if (strcmp(kind, "header") == 0)
        return add_header(r, line);
    if (strcmp(kind, "interval") == 0)
        return add_interval(r, line);
    if (strcmp(kind, "eval") == 0)
        return add_eval(r, line);
    if (strcmp(kind, "superstep") == 0)
        return add_superstep(r, line);
    if (strcmp(kind, "whole") == 0)
        return add_whole(r, line);
    if (strcmp(kind, "host") == 0) {
        const json_t *host = json_object_get(line, "host");
        json_int_t number = json_integer_value(host);
        if (!json_is_integer(host) || number < 0 || number > INT_MAX)
            return wrong(r, "host is not a number");
        return add_host(r, line, (int)number);
    }
    if (strcmp(kind, "checkpoint") == 0) {
        json_decref(r->run->failed);
        r->run->failed = json_incref(json_object_get(line, "failed"));
        r->run->n_failed++;
    }
    if (strcmp(kind, "summary") == 0) {
        json_decref(r->run->summary);
        r->run->summary = json_incref(line);
        if (!report_of_bsp(r->run))
            fade_last(r->run);
    }
    return true;
}

/* Reads the log to its end. A line that is no JSON is an error, but for the last one
 * without its end and one torn before a header. */
static bool read_lines(struct reading *r, FILE *in)
{
    char *text = NULL;
    size_t room = 0;
    bool good = true;
    for (ssize_t length; good && (length = getline(&text, &room, in)) > 0;) {
        json_error_t error;
        r->line++;
        json_t *line = json_loadb(text, (size_t)length, JSON_REJECT_DUPLICATES, &error);
        const char *header = line || !r->run->header ? NULL : strstr(text, header_begins);
        if (header && (line = json_loads(header, JSON_REJECT_DUPLICATES, &error)))
            fprintf(r->err, "descant report: %s:%ld: a line that was torn is left out\n",
                    r->run->path, r->line);
        if (line)
            good = add_line(r, line);
        else if (text[length - 1] == '\n' || !r->run->header)
            good = wrong(r, "%s: no JSON: %s", r->run->header ? "damaged" :
                         "not a log of descant", error.text);
        json_decref(line);
    }
    free(text);
    if (good && ferror(in))
        return wrong(r, "cannot be read further: %s", strerror(errno));
    return good && (r->run->header || wrong(r, "not a log of descant: it is empty"));
}

/* A text that does not fit is cut, but not within a character. */
static void set_label(struct report_run *run, const char *text, size_t length)
{
    if (length >= sizeof run->label)
        for (length = sizeof run->label - 1; length > 0 && (text[length] & 0xc0) == 0x80;)
            length--;
    memcpy(run->label, text, length);
    run->label[length] = 0;
}

/* The log's name without its folder and .jsonl. */
static void make_label(struct report_run *run)
{
    const char *slash = strrchr(run->path, '/'), *name = slash ? slash + 1 : run->path;
    size_t length = strlen(name);
    if (length > 6 && strcmp(name + length - 6, ".jsonl") == 0)
        length -= 6;
    set_label(run, name, length);
}

bool report_read(struct report_run *run, const char *path, FILE *err)
{
    struct reading r = {.run = run, .err = err, .rank = -1, .given = SIZE_MAX};
    *run = (struct report_run){.path = path};
    FILE *in = fopen(path, "r");
    if (!in) {
        fprintf(err, "descant report: %s: cannot open: %s\n", path, strerror(errno));
        return false;
    }
    bool good = read_lines(&r, in);
    fclose(in);
    if (good)
        make_label(run);
    return good;
}

void report_run_fini(struct report_run *run)
{
    json_decref(run->header);
    json_decref(run->summary);
    json_decref(run->failed);
    memory_give(run->points);
    for (size_t k = 0; k < run->n_hosts; k++) {
        json_decref(run->hosts[k].last);
        memory_give(run->hosts[k].curve.points);
    }
    memory_give(run->hosts);
    *run = (struct report_run){0};
}

/* The files' names without their folders, which are others on another machine. */
static bool same_names(const char *a, const char *b)
{
    while (*a && *b) {
        size_t n = strcspn(a, ","), m = strcspn(b, ",");
        const char *x = memrchr(a, '/', n), *y = memrchr(b, '/', m);
        x = x ? x + 1 : a;
        y = y ? y + 1 : b;
        size_t left = n - (size_t)(x - a);
        if (left != m - (size_t)(y - b) || memcmp(x, y, left) != 0)
            return false;
        a += n + (a[n] == ',');
        b += m + (b[m] == ',');
    }
    return *a == *b;
}

/* Where both have counted their examples, and these are as many with as many clicks, the
 * files' names are enough; else they must be named by the same words. */
bool report_same_examples(const char *key, const struct report_run *a,
                          const struct report_run *b)
{
    static const enum report_field counts[] = {REPORT_EVAL_EXAMPLES, REPORT_EVAL_CLICKS};
    const char *x = json_string_value(json_object_get(a->header, key));
    const char *y = json_string_value(json_object_get(b->header, key));
    bool counted = strcmp(key, "eval") == 0;

    for (int k = 0; k < 2 && counted; k++) {
        double n = report_figure(a, keys[counts[k]], counts[k]);
        double m = report_figure(b, keys[counts[k]], counts[k]);
        if (n < m || n > m)
            return false;
        counted = isfinite(n) && isfinite(m);
    }
    x = x ? x : "";
    y = y ? y : "";
    return counted ? same_names(x, y) : strcmp(x, y) == 0;
}

/* The summary's figure. Of a run on several hosts it is the job's, where there is one. A
 * resumed run has such sums of its last start alone. */
static const json_t *summary_figure(const struct report_run *run, const char *key)
{
    static const char *const sums[] = {"examples", "seconds", "loss", "ne"};
    bool resumed = json_object_get(run->summary, "start_examples") != NULL;
    char of_job[64];

    for (size_t k = 0; k < sizeof sums / sizeof *sums; k++)
        if (resumed && strcmp(key, sums[k]) == 0)
            return json_object_get(run->summary, key);
    snprintf(of_job, sizeof of_job, "job_%s", key);
    const json_t *value = json_object_get(run->summary, of_job);
    return json_is_number(value) ? value : json_object_get(run->summary, key);
}

/* An evaluation's examples and seconds are those at which it began, so for these the last
 * interval counts. */
double report_figure(const struct report_run *run, const char *summary_key,
                     enum report_field field)
{
    const json_t *value = summary_key ? summary_figure(run, summary_key) : NULL;
    if (json_is_number(value))
        return json_number_value(value);
    for (size_t i = run->n; i > 0 && field < REPORT_FIELDS; i--)
        if (isfinite(run->points[i - 1].at[field]) &&
            !(run->points[i - 1].apart && field <= REPORT_SECONDS))
            return run->points[i - 1].at[field];
    return (double)NAN;
}
