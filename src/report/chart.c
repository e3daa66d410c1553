/* SPDX-License-Identifier: MIT */
/* One chart: a <figure> with an SVG made here, a line for each run.
 *
 * The axes come from all runs together, so that all are compared at one scale. Ticks are
 * 1, 2 or 5 times a power of ten. A y axis that may be is logarithmic where all values
 * are above zero and the largest is more than WIDE times the smallest. Else, where a few
 * values (2 %) lie far above all others, it ends below them, and the note says so. A loss
 * falls steeply at first, and runs differ by little at the end: there the axis ends at
 * four times the height of the lower three quarters of the values.
 *
 * Shares below a percent are not stretched to the height of the chart.
 *
 * A run of many intervals is drawn by at most MOST_POINTS means of neighbours. A missing
 * value is a gap in the line; a value between two gaps is a dot. A chart without a run of
 * two values is left out: the table has them. Colours are classes of the page's style, c0
 * to c7; a ninth run begins again with dashes. */
#include "report/report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    WIDTH = 640,
    HEIGHT = 270,
    LEFT = 66,
    RIGHT = 24,
    TOP = 24,
    BOTTOM = 40,
    MOST_POINTS = 400,
    WIDE = 30,
    TICKS = 6
};

static const double least_share = 0.01;

struct curve {
    size_t n;
    struct {
        double x, y;
    } at[MOST_POINTS];
};

struct axis {
    double low, high;           /* in units, of the logarithm if logarithmic */
    double unit;                /* ticks count values ÷ unit */
    bool logarithmic;
    char name[48];
};

struct drawing {
    const struct report_chart *chart;
    const struct report_run *runs;
    int n_runs;
    struct curve *curves;       /* (n_runs) */
    struct axis x, y;
    size_t n_above;             /* values above the axis */
    double most;
    bool thinned;
    bool zero;                  /* all shares are shown as 0 */
};

/* --- curves --- */

/* Means of `every` neighbours; a sparse curve keeps its values. */
static void make_curve(struct curve *curve, const struct report_run *run,
                       const struct report_chart *chart, size_t every)
{
    double x = 0, y = 0;
    size_t n = 0, seen = 0;
    curve->n = 0;
    for (size_t i = 0; i < run->n; i++) {
        const double *at = run->points[i].at;
        bool there = isfinite(at[chart->x]) && isfinite(at[chart->y]);
        if (run->points[i].apart && !chart->sparse && i + 1 < run->n)
            continue;
        if (there) {
            x += at[chart->x];
            y += at[chart->y];
            n++;
        }
        seen += there || !chart->sparse;
        if (seen < every && i + 1 < run->n)
            continue;
        if (n > 0 || !chart->sparse) {
            curve->at[curve->n].x = n ? x / (double)n : (double)NAN;
            curve->at[curve->n++].y = n ? y / (double)n : (double)NAN;
        }
        x = y = 0;
        n = seen = 0;
    }
}

static void make_curves(struct drawing *d)
{
    for (int r = 0; r < d->n_runs; r++) {
        size_t every = d->runs[r].n / MOST_POINTS + 1;
        if (d->chart->skips && d->chart->skips[r])
            continue;
        d->thinned |= every > 1;
        make_curve(&d->curves[r], &d->runs[r], d->chart, every);
    }
}

/* --- axes --- */

static int by_value(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

static size_t values_of(const struct curve *curve)
{
    size_t n = 0;
    for (size_t i = 0; i < curve->n; i++)
        n += isfinite(curve->at[i].y) ? 1 : 0;
    return n;
}

/* All y of the curves, sorted. */
static size_t collect(const struct drawing *d, double *values)
{
    size_t n = 0;
    for (int r = 0; r < d->n_runs; r++)
        for (size_t i = 0; i < d->curves[r].n; i++)
            if (isfinite(d->curves[r].at[i].y))
                values[n++] = d->curves[r].at[i].y;
    qsort(values, n, sizeof *values, by_value);
    return n;
}

/* The largest unit of which the axis has at least two. */
static void name_axis(struct axis *axis, const char *name, double most, bool time)
{
    static const struct {
        const char *name;
        double unit;
        bool time;
    } units[] = {{"hours", 3600, true},        {"minutes", 60, true},
                 {"seconds", 1, true},         {"milliseconds", 1e-3, true},
                 {"microseconds", 1e-6, true}, {"billions", 1e9, false},
                 {"millions", 1e6, false},     {"thousands", 1e3, false}};
    snprintf(axis->name, sizeof axis->name, "%s", time ? "seconds" : name);
    axis->unit = 1;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (units[i].time == time && most >= 2 * units[i].unit) {
            snprintf(axis->name, sizeof axis->name, "%s%s%s", time ? "" : name,
                     time ? "" : ", ", units[i].name);
            axis->unit = units[i].unit;
            return;
        }
}

/* As far as any run went, whether or not it has this figure. */
static void make_x(struct drawing *d)
{
    double most = 0;
    for (int r = 0; r < d->n_runs; r++)
        for (size_t i = 0; i < d->runs[r].n; i++)
            if (isfinite(d->runs[r].points[i].at[d->chart->x]))
                most = fmax(most, d->runs[r].points[i].at[d->chart->x]);
    name_axis(&d->x, "examples", most, d->chart->x == REPORT_SECONDS);
    d->x.low = 0;
    d->x.high = (most > 0 ? most : 1) / d->x.unit;
}

/* Where the axis ends; counts the values above it. values: sorted. */
static double cut(struct drawing *d, const double *values, size_t n, double low)
{
    double high = values[n - 1], usual = values[(n - 1) * 98 / 100];
    if (d->chart->late)
        usual = low + 4 * (values[(n - 1) * 3 / 4] - low);
    bool far = d->chart->late ? high - low > 1.2 * (usual - low)
                              : high - low > 2.5 * (usual - low);
    if (n < 50 || !far || usual <= low)
        return high;
    d->most = high;
    while (values[n - 1 - d->n_above] > usual)
        d->n_above++;
    return usual;
}

static void make_powers(struct drawing *d, double low, double high)
{
    const struct report_chart *chart = d->chart;
    struct axis *y = &d->y;
    y->unit = 1;
    snprintf(y->name, sizeof y->name, "%s", chart->y_name);
    if (chart->unit == REPORT_TIME)
        name_axis(y, chart->y_name, high, true);
    size_t length = strlen(y->name);
    snprintf(y->name + length, sizeof y->name - length, " (logarithmic)");
    y->low = log10(low / y->unit) - 0.05;
    y->high = log10(high / y->unit) + 0.05;
}

/* The axis of y, logarithmic if it may be and the values are far apart. values:
 * sorted. */
static void make_y(struct drawing *d, const double *values, size_t n)
{
    const struct report_chart *chart = d->chart;
    double low = values[0], high = values[n - 1];
    d->y.logarithmic = chart->powers && low > 0 && high > WIDE * low;
    if (d->y.logarithmic) {
        make_powers(d, low, high);
        return;
    }
    if (chart->from_zero && low > 0)
        low = 0;
    high = cut(d, values, n, low);
    name_axis(&d->y, chart->y_name, high, chart->unit == REPORT_TIME);
    if (chart->unit == REPORT_SHARE) {
        d->y.unit = 0.01;
        d->zero = low >= 0 && high < REPORT_ZERO_SHARE;
        high = fmax(high, least_share);
    }
    double margin = high > low ? 0.05 * (high - low) : fmax(0.1 * fabs(high), 1e-3);
    d->y.low = (chart->from_zero && low >= 0 ? 0 : low - margin) / d->y.unit;
    d->y.high = (high + margin) / d->y.unit;
}

/* The place of a value on the axis: 0 at its low end, 1 at its high end. */
static double along(const struct axis *axis, double value)
{
    double units = value / axis->unit, at = axis->logarithmic ? log10(units) : units;
    return (at - axis->low) / (axis->high - axis->low);
}

static double place_x(const struct drawing *d, double value)
{
    return LEFT + along(&d->x, value) * (WIDTH - LEFT - RIGHT);
}

static double place_y(const struct drawing *d, double value)
{
    return HEIGHT - BOTTOM - along(&d->y, value) * (HEIGHT - TOP - BOTTOM);
}

/* A tick of x is a short line below the axis, one of y a line across the chart. */
static void draw_tick(FILE *out, const struct drawing *d, bool of_x, double value,
                      const char *text)
{
    if (of_x) {
        double x = place_x(d, value);
        fprintf(out, "<line class=\"tick\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\"/>"
                "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s</text>\n", x, x,
                HEIGHT - BOTTOM, HEIGHT - BOTTOM + 4, x, HEIGHT - BOTTOM + 17, text);
        return;
    }
    double y = place_y(d, value);
    fprintf(out,
            "<line class=\"grid\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/><text "
            "x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n",
            LEFT, WIDTH - RIGHT, y, y, LEFT - 7, y + 4, text);
}

/* The distance of ticks, 1, 2 or 5 times a power of ten, so that at most about TICKS of
 * them fit. */
static double round_step(double range)
{
    double raw = range / TICKS, power = pow(10, floor(log10(raw))), part = raw / power;
    return power * (part <= 1 ? 1 : part <= 2 ? 2 : part <= 5 ? 5 : 10);
}

static void draw_ticks(FILE *out, const struct drawing *d, bool of_x)
{
    const struct axis *axis = of_x ? &d->x : &d->y;
    double step = round_step(axis->high - axis->low), slack = 1e-9 * step;
    int decimals = step < 1 ? (int)ceil(-log10(step) - 1e-9) : 0;
    char text[32];
    double first = ceil((axis->low - slack) / step);
    /* counted: from 2^53 on a double plus one is the same double */
    for (int i = 0; i <= 2 * TICKS && (first + i) * step <= axis->high + slack; i++) {
        double value = (first + i) * step + 0.0;      /* no -0 */
        if (decimals <= 6 && fabs(value) < 1e9)
            snprintf(text, sizeof text, "%.*f", decimals, value);
        else
            snprintf(text, sizeof text, "%.3g", value);
        draw_tick(out, d, of_x, value * axis->unit, text);
    }
}

/* 1, 2 and 5 of each power of ten over up to two of them, else powers alone. */
static void draw_powers(FILE *out, const struct drawing *d)
{
    static const double parts[] = {1, 2, 5};
    char text[32];
    int dense = d->y.high - d->y.low <= 2.2 ? 3 : 1;
    for (double power = floor(d->y.low); power <= d->y.high; power++)
        for (int i = 0; i < dense; i++) {
            double value = parts[i] * pow(10, power);
            if (log10(value) < d->y.low || log10(value) > d->y.high)
                continue;
            if (value >= 0.99e-4 && value < 0.99e6)
                snprintf(text, sizeof text, "%.*f", power < 0 ? (int)-power : 0, value);
            else
                snprintf(text, sizeof text, "%.3g", value);
            draw_tick(out, d, false, value * d->y.unit, text);
        }
}

static void draw_axes(FILE *out, const struct drawing *d)
{
    if (d->y.logarithmic)
        draw_powers(out, d);
    else
        draw_ticks(out, d, false);
    draw_ticks(out, d, true);
    fprintf(out, "<line class=\"axis\" x1=\"%d\" x2=\"%d\" y1=\"%d\" y2=\"%d\"/>\n", LEFT,
            WIDTH - RIGHT, HEIGHT - BOTTOM, HEIGHT - BOTTOM);
    fprintf(out, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">%s</text>\n", WIDTH - RIGHT,
            HEIGHT - 6, d->x.name);
    fprintf(out, "<text x=\"%d\" y=\"%d\">%s</text>\n", 4, TOP - 12, d->y.name);
}

/* --- lines --- */

/* Whether point i is one of the curve, and no gap. */
static bool there(const struct curve *curve, size_t i)
{
    return i < curve->n && isfinite(curve->at[i].x) && isfinite(curve->at[i].y);
}

/* All values of a sparse curve, and of others the single values between two gaps. */
static void draw_dots(FILE *out, const struct drawing *d, const struct curve *curve)
{
    for (size_t i = 0; i < curve->n; i++)
        if (there(curve, i) && (d->chart->sparse || (!there(curve, i + 1) &&
                                                     (i == 0 || !there(curve, i - 1)))))
            fprintf(out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"2.2\"/>",
                    place_x(d, curve->at[i].x), place_y(d, curve->at[i].y));
}

static void draw_curve(FILE *out, const struct drawing *d, int r)
{
    const struct curve *curve = &d->curves[r];
    fprintf(out, "<g class=\"run c%d%s\"><title>", r % REPORT_COLOURS,
            r >= REPORT_COLOURS ? " dashed" : "");
    report_text(out, d->runs[r].label, false);
    fputs("</title><path d=\"", out);
    for (size_t i = 0; i < curve->n; i++)
        if (there(curve, i))
            fprintf(out, "%c%.1f %.1f", i > 0 && there(curve, i - 1) ? 'L' : 'M',
                    place_x(d, curve->at[i].x), place_y(d, curve->at[i].y));
    fputs("\"/>", out);
    draw_dots(out, d, curve);
    fputs("</g>\n", out);
}

static void draw(FILE *out, const struct drawing *d)
{
    const struct report_chart *chart = d->chart;
    fputs("<figure>\n<figcaption><b>", out);
    report_text(out, chart->title, false);
    fprintf(out, "</b> %s", chart->note);
    if (chart->of) {
        fputc(' ', out);
        report_text(out, chart->of, false);
    }
    if (d->n_above)
        fprintf(out, " %zu value%s above the axis, up to %.3g%s, not shown.", d->n_above,
                d->n_above == 1 ? "" : "s", d->most / d->y.unit,
                chart->unit == REPORT_SHARE ? " %" : "");
    if (d->zero)
        fputs(" It is zero throughout.", out);
    if (d->thinned)
        fputs(" Means of neighbouring intervals.", out);
    fprintf(out, "</figcaption>\n<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"",
            WIDTH, HEIGHT);
    report_text(out, chart->title, false);
    fputs("\">\n", out);
    draw_axes(out, d);
    /* a window of its own cuts lines above the axis */
    fprintf(
        out,
        "<svg x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" viewBox=\"%d %d %d %d\">\n",
        LEFT, TOP - 3, WIDTH - LEFT - RIGHT + 4, HEIGHT - TOP - BOTTOM + 5, LEFT, TOP - 3,
        WIDTH - LEFT - RIGHT + 4, HEIGHT - TOP - BOTTOM + 5);
    for (int r = 0; r < d->n_runs; r++)
        draw_curve(out, d, r);
    fputs("</svg>\n</svg>\n</figure>\n", out);
}

bool report_chart(FILE *out, const struct report_chart *chart,
                  const struct report_run *runs, int n)
{
    struct drawing d = {.chart = chart, .runs = runs, .n_runs = n};
    d.curves = memory_take_array((size_t)n, sizeof *d.curves);
    double *values = memory_take_array((size_t)n * MOST_POINTS, sizeof *values);
    bool good = d.curves && values;
    if (good)
        make_curves(&d);
    size_t found = good ? collect(&d, values) : 0;
    bool line = false;
    for (int r = 0; r < n && good; r++)
        line |= values_of(&d.curves[r]) > 1;
    if (line) {
        make_x(&d);
        make_y(&d, values, found);
        draw(out, &d);
    }
    memory_give(values);
    memory_give(d.curves);
    return good;
}
