/* SPDX-License-Identifier: MIT */
/* The chart of a run's hosts: a line for each host and one for all of them, from which
 * one sees who was in when, and who was slow. It is drawn as the chart of as many runs
 * would be, with a legend of its own. Of many hosts those that made the least examples a
 * second are drawn. */
#include "report/report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static double speed(const struct report_host *host)
{
    double n = json_number_value(json_object_get(host->last, "examples"));
    double s = json_number_value(json_object_get(host->last, "trained_s"));
    return s > 0 ? n / s : INFINITY;
}

/* All hosts together first, then the slowest ones. */
static int by_speed(const void *a, const void *b)
{
    const struct report_host *x = *(const struct report_host *const *)a;
    const struct report_host *y = *(const struct report_host *const *)b;
    bool all_x = x->number == REPORT_ALL_HOSTS, all_y = y->number == REPORT_ALL_HOSTS;
    double of_x = speed(x), of_y = speed(y);

    if (all_x || all_y)
        return all_y - all_x;
    return of_x < of_y ? -1 : of_x > of_y ? 1 : x->number - y->number;
}

static void put_legend(FILE *out, const struct report_run *curves, int n, size_t n_hosts)
{
    fputs("Examples a second, lately, while it trained.", out);
    if ((size_t)n < n_hosts)
        fprintf(out, " The %d slowest of %zu hosts.", n - 1, n_hosts - 1);
    for (int k = 0; k < n; k++) {
        fprintf(out, " <span><svg class=\"key\" viewBox=\"0 0 22 10\"><g class=\"run "
                "c%d%s\"><path d=\"M1 5H21\" stroke-width=\"3\"/></g></svg>",
                k % REPORT_COLOURS, k < REPORT_COLOURS ? "" : " dashed");
        report_text(out, curves[k].label, false);
        fputs("</span>", out);
    }
}

bool report_hosts(FILE *out, const struct report_run *run)
{
    struct report_run curves[REPORT_MAX_RUNS];
    char *note = NULL;
    size_t bytes;
    char title[160];
    struct report_chart chart = {.title = title, .x = REPORT_SECONDS, .y = REPORT_RATE,
                                 .y_name = "examples/s", .from_zero = true};
    int n = run->n_hosts < REPORT_MAX_RUNS ? (int)run->n_hosts : REPORT_MAX_RUNS;
    const struct report_host **hosts;

    if (!run->n_hosts)
        return true;
    snprintf(title, sizeof title, "Hosts of %s", run->label);
    hosts = memory_take_array(run->n_hosts, sizeof *hosts);
    if (!hosts)
        return false;
    for (size_t k = 0; k < run->n_hosts; k++)
        hosts[k] = &run->hosts[k];
    qsort(hosts, run->n_hosts, sizeof *hosts, by_speed);
    for (int k = 0; k < n; k++) {
        const char *name = json_string_value(json_object_get(hosts[k]->last, "name"));
        curves[k] = hosts[k]->curve;
        if (hosts[k]->number == REPORT_ALL_HOSTS)
            snprintf(curves[k].label, sizeof curves[k].label, "all hosts");
        else
            snprintf(curves[k].label, sizeof curves[k].label, "%d %.64s",
                     hosts[k]->number, name ? name : "");
    }
    memory_give(hosts);
    FILE *to = open_memstream(&note, &bytes);
    if (to)
        put_legend(to, curves, n, run->n_hosts);
    bool good = to && fclose(to) == 0;
    chart.note = note;
    good = good && report_chart(out, &chart, curves, n);
    free(note);
    return good;
}
