/* SPDX-License-Identifier: MIT */
/* The parts of descant report: a run as its log tells it, the charts, the page. */
#ifndef REPORT_H
#define REPORT_H

#include "base/jansson.h"
#include "base/base.h"

#include <stdio.h>

enum { REPORT_MAX_RUNS = 16, REPORT_COLOURS = 8 };

/* Those of evaluations: EVAL_LOSS, and from EVAL_NE on. */
enum report_field {
    REPORT_EXAMPLES, REPORT_SECONDS, REPORT_LOSS, REPORT_EVAL_LOSS, REPORT_NE,
    REPORT_RATE, REPORT_GAP, REPORT_STALL, REPORT_DISTANCE, REPORT_AGE,
    REPORT_GRADIENTS,           /* of a superstep */
    REPORT_STALENESS,
    REPORT_REFUSED,             /* share of the gradients that came */
    REPORT_STEP,                /* seconds that a superstep took */
    REPORT_EVAL_NE, REPORT_AUC, REPORT_CALIBRATION, REPORT_ACCURACY, REPORT_EVAL_EXAMPLES,
    REPORT_EVAL_CLICKS,
    REPORT_FIELDS
};

struct report_point {
    double at[REPORT_FIELDS];   /* NaN: missing or null */
    bool apart;                 /* an evaluation: no interval, and in none of their
                                   curves */
};

struct report_host;

struct report_run {
    char label[128];
    const char *path;
    json_t *header;             /* the last one, if the run was taken up again */
    json_t *summary;            /* NULL: the run is still going, or was ended from
                                   outside */
    json_t *failed;             /* why the last of n_failed checkpoints beside training
                                   failed */
    int n_failed;
    int set;                    /* the number of its held-out set, from 0; -1: it has
                                   none */
    struct report_point *points;
    size_t n, room;
    struct report_host *hosts;  /* (n_hosts) of a run on several; else NULL */
    size_t n_hosts, hosts_room;
};

enum { REPORT_MOST_HOSTS = 4096, REPORT_ALL_HOSTS = -1 };

/* A host of a run, or all of them. */
struct report_host {
    int number;                 /* REPORT_ALL_HOSTS: of all */
    json_t *last;               /* the last line about it */
    struct report_run curve;    /* its points alone */
};

/* --- log.c --- */

/* False after printing to err the file, the line and the reason. */
bool report_read(struct report_run *run, const char *path, FILE *err);
void report_run_fini(struct report_run *run);

/* A log of descant bsp run: supersteps instead of intervals. */
bool report_of_bsp(const struct report_run *run);

/* NULL: the run came to its end. Else why not, in the log's words, or that the run is
 * going still. */
const char *report_unfinished(const struct report_run *run);

/* Whether figures of the two runs are of the same examples: of held-out sets for key
 * "eval", of the data that was trained on for "data". */
bool report_same_examples(const char *key, const struct report_run *a,
                          const struct report_run *b);

/* The summary's figure, or else the last interval's that has one, or NaN. */
double report_figure(const struct report_run *run, const char *summary_key,
                     enum report_field field);

/* --- chart.c --- */

#define REPORT_ZERO_SHARE 5e-6          /* a share below is shown as 0 */

enum report_unit { REPORT_PLAIN, REPORT_SHARE, REPORT_TIME };

struct report_chart {
    const char *title, *note;
    enum report_field x, y;
    enum report_unit unit;      /* of y */
    const char *y_name;
    bool from_zero;             /* the axis begins there, unless it is logarithmic */
    bool powers;                /* may be logarithmic, all values being above zero */
    bool late;                  /* the last three quarters matter: see report_chart.c */
    bool sparse;                /* of evaluations: joined across all lines between them */
    const char *of;             /* the subject of the chart, behind the note; or NULL */
    const bool *skips;          /* (n) runs that the chart leaves out; NULL: none */
};

/* A <figure>, or nothing where no run has two such values. False without memory. */
bool report_chart(FILE *out, const struct report_chart *chart,
                  const struct report_run *runs, int n);

/* --- hosts.c --- */

/* The speed of a run's hosts over time, as report_chart; nothing where there are none. */
bool report_hosts(FILE *out, const struct report_run *run);

/* --- runs.c --- */

/* Makes the labels of the runs differ, and numbers their held-out sets; returns the
 * number of sets. */
int report_compare(struct report_run *runs, int n);
/* Writes "A: held.tsv, 4000 examples", for a run that has a set; returns text. */
const char *report_set_name(const struct report_run *run, char *text, size_t room);

/* --- template.c --- */

/* Writes text as HTML; breaks: a line may end after a comma. */
void report_text(FILE *out, const char *text, bool breaks);
/* values: an object of texts, arrays of sections, and booleans. */
void report_fill(FILE *out, const char *template, const json_t *values);

/* --- page.c --- */

/* Writes the page that compares the runs. False, with nothing written: no memory. */
bool report_page(FILE *out, struct report_run *runs, int n);

#endif
