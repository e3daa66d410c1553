/* SPDX-License-Identifier: MIT */
/* The log of a run of descant bsp is JSON lines, as the trainer's: a header with every option, an
 * object a superstep, a summary. Staleness is versions that gradients were behind as they came. */
#include "cli/bsp_log.h"
#include "train/config.h"
#include "train/monitor.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TERMINAL_NS UINT64_C(200000000)
#define FILE_NS UINT64_C(5000000000)
#define FLUSH_NS UINT64_C(100000000)

static double mean_lag(uint64_t lag, uint64_t gradients)
{
    return gradients ? (double)lag / (double)gradients : (double)NAN;
}

static struct local_figures all_figures(const struct bsp_run_log *l)
{
    struct local_figures all = {0};
    for (int k = 0; k < l->n_locals; k++) {
        struct local_figures f;
        local_figures(l->locals[k], &f);
        all.stale += f.stale;
        all.bad += f.bad;
        all.owners += f.owners;
        all.attached += f.attached;
    }
    all.bad += l->left_out;
    return all;
}

/* --- the file --- */

/* After a line, of which so much has failed: 0, or an errno. A log that could not be written ends
 * there, so that only its last line may be torn; the run goes on, and fails at its end. */
static void written(struct bsp_run_log *l, int error, bool now)
{
    if (!error && now)
        error = stream_error(l->file);
    if (!error)
        return;
    l->failed = true;
    log_fail(l->log, DESCANT_SYSTEM, "%s: the log could not be written, and ends here: %s",
             l->options->log, strerror(error));
    bsp_log_close(l);
}

static void write_header(struct bsp_run_log *l, const struct bsp_model *model)
{
    struct json json;

    config_log(&json, l->file, bsp_settings, bsp_n_settings, l->options);
    json_int(&json, "parameters", (int64_t)model->n);
    json_int(&json, "first_version", (int64_t)model->version);
    written(l, json_end(&json), true);
}

descant_status bsp_log_open(struct bsp_run_log *l, const struct bsp_model *model,
                            struct local *const *locals, int n_locals)
{
    const char *path = l->options->log;
    l->locals = locals;
    l->n_locals = n_locals;
    l->is_terminal = shown_columns(l->err) > 0;
    l->stepped_ns = l->last.at_ns = clock_now_ns();
    if (!path)
        return DESCANT_OK;
    l->file = run_log_file(path, model->resumed, true);
    if (!l->file)
        return log_fail(l->log, DESCANT_SYSTEM, "%s: %s", path, strerror(errno));
    write_header(l, model);
    return DESCANT_OK;
}

static void write_step(struct bsp_run_log *l, const struct bsp_model *model,
                       const struct superstep *s, double seconds, const struct local_figures *all)
{
    struct json json;
    json_begin(&json, l->file);
    json_text(&json, "kind", "superstep");
    json_int(&json, "superstep", (int64_t)model->steps);
    json_int(&json, "version", (int64_t)model->version);
    json_real(&json, "seconds", model->seconds);
    json_int(&json, "gradients", (int64_t)s->sums.gradients);
    json_int(&json, "examples", (int64_t)s->sums.examples);
    json_real(&json, "staleness_mean", mean_lag(s->sums.lag, s->sums.gradients));
    json_int(&json, "staleness_max", (int64_t)s->sums.lag_most);
    json_int(&json, "refused_stale", (int64_t)(all->stale - l->stale));
    json_int(&json, "refused_not_finite", (int64_t)(all->bad - l->bad));
    json_int(&json, "undone", (int64_t)s->sums.undone);
    json_real(&json, "norm", s->norm);
    json_real(&json, "step_s", seconds);
    json_int(&json, "modules", all->attached);
    written(l, json_end(&json), false);
}

/* It is a line of its own, of when it began. */
void bsp_log_eval(struct bsp_run_log *l, const struct bsp_model *model, bool shown)
{
    char text[160];
    if (!bsp_eval_take(model->eval, &l->held_out))
        return;
    if (l->file)
        written(l, held_out_log(l->file, &l->held_out), false);
    if (!shown || l->options->quiet)
        return;
    bsp_log_end_line(l);
    fprintf(l->err, "%s\n", held_out_text(&l->held_out, text, sizeof text));
}

void bsp_log_step(struct bsp_run_log *l, const struct bsp_model *model, const struct superstep *s,
                  double seconds)
{
    struct local_figures all = all_figures(l);
    if (l->file)
        write_step(l, model, s, seconds, &all);
    bsp_log_eval(l, model, true);
    bsp_eval_look(model->eval, model);
    l->steps++;
    l->gradients += s->sums.gradients;
    l->examples += s->sums.examples;
    l->lag += s->sums.lag;
    l->lag_most = s->sums.lag_most > l->lag_most ? s->sums.lag_most : l->lag_most;
    l->undone += s->sums.undone;
    l->stale = all.stale;
    l->bad = all.bad;
    l->stepped_ns = clock_now_ns();
}

/* --- the progress line --- */

static void show(struct bsp_run_log *l, const struct bsp_model *model, uint64_t now)
{
    uint64_t ns = now - l->last.at_ns;
    if (l->options->quiet || ns < (l->is_terminal ? TERMINAL_NS : FILE_NS))
        return;
    struct local_figures all = all_figures(l);
    if (all.owners == 0 && all.attached == 0)
        return;                 /* nobody has come yet, nor is there from before this start */
    char steps[32], examples[32], gradients[32], refused[32], line[160];
    double s = (double)ns * 1e-9, lag = mean_lag(l->lag, l->gradients);
    snprintf(line, sizeof line, "%s steps  %s examples/s  %s gradients/s  lag %.1f  refused %s  "
             "%d module%s", count_text((double)model->steps, steps, sizeof steps),
             count_text((double)(l->examples - l->last.examples) / s, examples, sizeof examples),
             count_text((double)(l->gradients - l->last.gradients) / s, gradients,
                        sizeof gradients), isnan(lag) ? 0 : lag,
             count_text((double)(all.stale + all.bad), refused, sizeof refused), all.attached,
             all.attached == 1 ? "" : "s");
    if (l->is_terminal)
        shown_clear_line(l->err);
    fprintf(l->err, l->is_terminal ? "%.*s" : "%.*s\n",
            l->is_terminal ? shown_columns(l->err) - 1 : INT_MAX, line);
    fflush(l->err);
    l->last.at_ns = now;
    l->last.gradients = l->gradients;
    l->last.examples = l->examples;
}

void bsp_log_show(struct bsp_run_log *l, const struct bsp_model *model)
{
    uint64_t now = clock_now_ns();
    show(l, model, now);
    if (!l->file || now - l->flushed_ns < FLUSH_NS)
        return;
    written(l, 0, true);
    l->flushed_ns = now;
}

void bsp_log_end_line(struct bsp_run_log *l)
{
    if (l->is_terminal && !l->options->quiet)
        shown_clear_line(l->err);
}

/* --- the summary --- */

static void write_summary(struct bsp_run_log *l, const struct bsp_model *model,
                          const struct bsp_end *end)
{
    struct json json;
    json_begin(&json, l->file);
    json_text(&json, "kind", "summary");
    json_int(&json, "supersteps", (int64_t)model->steps);
    json_int(&json, "gradients", (int64_t)model->gradients);
    json_int(&json, "examples", (int64_t)model->examples);
    json_real(&json, "seconds", model->seconds);
    json_real(&json, "examples_per_s", (double)l->examples / end->seconds);
    json_real(&json, "staleness_mean", mean_lag(l->lag, l->gradients));
    json_int(&json, "staleness_max", (int64_t)l->lag_most);
    json_int(&json, "refused_stale", (int64_t)l->stale);
    json_int(&json, "refused_not_finite", (int64_t)l->bad);
    json_int(&json, "undone", (int64_t)l->undone);
    json_int(&json, "restarts", end->restarts);
    if (l->held_out.n) {
        json_int(&json, "eval_examples", (int64_t)l->held_out.n);
        json_real(&json, "eval_loss", l->held_out.loss);
        json_real(&json, "eval_ne", l->held_out.entropy);
        json_real(&json, "auc", l->held_out.auc);
        json_real(&json, "eval_calibration", l->held_out.calibration);
        json_real(&json, "eval_accuracy", l->held_out.accuracy);
    }
    json_text(&json, "stopped", end->why);
    written(l, json_end(&json), true);
}

static void row(FILE *out, const char *name, double value, const char *format)
{
    char text[64];
    if (!isfinite(value))
        return;
    snprintf(text, sizeof text, format, value);
    fprintf(out, "  %-26s %s\n", name, text);
}

static void print_summary(const struct bsp_run_log *l, const struct bsp_model *model,
                          const struct bsp_end *end)
{
    const char *of = model->resumed ? " of this start" : "";
    char name[64];
    fprintf(l->out, "bsp: %d local module%s, %zu parameters\n", end->modules,
            end->modules == 1 ? "" : "s", model->n);
    row(l->out, "supersteps", (double)model->steps, "%.0f");
    row(l->out, "gradients", (double)model->gradients, "%.0f");
    row(l->out, "examples", (double)model->examples, "%.0f");
    snprintf(name, sizeof name, "seconds%s", of);
    row(l->out, name, end->seconds, "%.1f");
    row(l->out, "examples/s", (double)l->examples / end->seconds, "%.0f");
    row(l->out, "gradients/s", (double)l->gradients / end->seconds, "%.1f");
    row(l->out, "staleness, mean", mean_lag(l->lag, l->gradients), "%.2f versions");
    if (l->gradients)
        row(l->out, "staleness, most", (double)l->lag_most, "%.0f versions");
    row(l->out, "refused as stale", (double)l->stale, "%.0f");
    row(l->out, "refused for NaN or Inf", (double)l->bad, "%.0f");
    if (l->undone)
        row(l->out, "undone", (double)l->undone, "%.0f gradients of the run before");
    if (l->held_out.n) {
        row(l->out, "held-out loss", l->held_out.loss, "%.5f");
        row(l->out, "held-out NE", l->held_out.entropy, "%.5f");
        row(l->out, "held-out AUC", l->held_out.auc, "%.5f");
        row(l->out, "held-out calibration", l->held_out.calibration, "%.4f");
        row(l->out, "held-out accuracy", l->held_out.accuracy, "%.4f");
    }
    if (end->restarts)
        row(l->out, "restarts of modules", (double)end->restarts, "%.0f");
    fprintf(l->out, "  %s\n", end->why);
    if (end->kept)
        fprintf(l->out, "  %s has the model; --resume goes on from it\n", l->options->checkpoint);
    else if (!l->options->checkpoint)
        fputs("  nothing is kept: --checkpoint names a file for the model\n", l->out);
}

bool bsp_log_end(struct bsp_run_log *l, const struct bsp_model *model, const struct bsp_end *end)
{
    struct local_figures all = all_figures(l);
    l->stale = all.stale;
    l->bad = all.bad;
    bsp_log_end_line(l);
    bsp_log_eval(l, model, false);
    if (l->file)
        write_summary(l, model, end);
    print_summary(l, model, end);
    return !l->failed;
}

void bsp_log_close(struct bsp_run_log *l)
{
    if (l->file)
        fclose(l->file);
    l->file = NULL;
}
