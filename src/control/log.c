/* SPDX-License-Identifier: MIT */
/* The log of a run of descant bsp is JSON lines, as the trainer's: a header with every
 * option, an object a superstep, a summary. Staleness is the number of versions that a
 * gradient was behind as it came. */
#include "control/log.h"
#include "run/summary.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#define FLUSH_NS UINT64_C(100000000)

/* The figures of all local modules. Gradients that a superstep left out count as bad, as
 * those that a local module refused. */
static struct local_figures all_figures(const struct bsp_run_log *l)
{
    struct local_figures all = local_figures_of(l->locals, l->n_locals);
    all.bad += l->left_out;
    return all;
}

/* --- the file --- */

descant_status bsp_log_open(struct bsp_run_log *l, const struct bsp_model *model,
                            struct local *const *locals, int n_locals)
{
    const char *path = l->options->log;
    l->locals = locals;
    l->n_locals = n_locals;
    struct json json;
    l->stepped_ns = l->last.at_ns = clock_now_ns();
    if (!path)
        return DESCANT_OK;
    snprintf(l->file.path, sizeof l->file.path, "%s", path);
    l->file.failed = &l->failed;
    l->file.log = l->log;
    if (!run_log_open(&l->file, model->resumed, true))
        return log_fail(l->log, DESCANT_SYSTEM, "%s: %s", path, strerror(errno));
    run_log_header(&l->file, &json, &l->options->told);
    json_int(&json, "parameters", (int64_t)model->n);
    json_int(&json, "first_version", (int64_t)model->version);
    run_log_written(&l->file, json_end(&json), true);
    return DESCANT_OK;
}

/* One line. Refusals are those since the line before, for l->stale and l->bad still have
 * the sums of then. */
static void write_step(struct bsp_run_log *l, const struct bsp_model *model,
                       const struct superstep *s, double seconds,
                       const struct local_figures *all)
{
    const struct lags lags = {lag_mean(s->sums.lag, s->sums.gradients),
                              (double)s->sums.lag_most, all->stale - l->stale,
                              all->bad - l->bad};
    struct json json;
    json_begin(&json, l->file.file);
    json_text(&json, "kind", "superstep");
    json_int(&json, "superstep", (int64_t)model->steps);
    json_int(&json, "version", (int64_t)model->version);
    json_real(&json, "seconds", model->seconds);
    json_int(&json, "gradients", (int64_t)s->sums.gradients);
    json_int(&json, "examples", (int64_t)s->sums.examples);
    lags_json(&json, &lags);
    json_int(&json, "undone", (int64_t)s->sums.undone);
    json_real(&json, "norm", s->norm);
    json_real(&json, "step_s", seconds);
    json_int(&json, "modules", all->attached);
    run_log_written(&l->file, json_end(&json), false);
}

/* An evaluation has a line of its own, with the time at which it began. */
void bsp_log_eval(struct bsp_run_log *l, const struct bsp_model *model, bool shown)
{
    if (!bsp_eval_take(model->eval, &l->held_out))
        return;
    held_out_log(&l->file, &l->held_out);
    if (shown)
        held_out_show(&l->progress, &l->held_out);
}

void bsp_log_step(struct bsp_run_log *l, const struct bsp_model *model,
                  const struct superstep *s, double seconds)
{
    struct local_figures all = all_figures(l);
    if (l->file.file)
        write_step(l, model, s, seconds, &all);
    bsp_log_eval(l, model, true);       /* first: figures not taken hold up the next */
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

/* Shows a line if it is due. Rates are over the time since the last line. */
static void show(struct bsp_run_log *l, const struct bsp_model *model, uint64_t now)
{
    if (!progress_due(&l->progress))
        return;
    struct local_figures all = all_figures(l);
    if (all.owners == 0 && all.attached == 0)
        return;                 /* no module has come, in this start or before */
    char steps[32], examples[32], gradients[32], refused[32], line[160];
    double s = (double)(now - l->last.at_ns) * 1e-9, lag = lag_mean(l->lag, l->gradients);
    snprintf(line, sizeof line,
             "%s steps  %s examples/s  %s gradients/s  lag %.1f  refused %s  %d module%s",
             count_text((double)model->steps, steps, sizeof steps),
             count_text((double)(l->examples - l->last.examples) / s, examples,
                        sizeof examples),
             count_text((double)(l->gradients - l->last.gradients) / s, gradients,
                        sizeof gradients),
             isnan(lag) ? 0 : lag,
             count_text((double)(all.stale + all.bad), refused, sizeof refused),
             all.attached, all.attached == 1 ? "" : "s");
    progress_show(&l->progress, line);
    l->last.at_ns = now;
    l->last.gradients = l->gradients;
    l->last.examples = l->examples;
}

void bsp_log_show(struct bsp_run_log *l, const struct bsp_model *model)
{
    uint64_t now = clock_now_ns();
    show(l, model, now);
    if (!l->file.file || now - l->flushed_ns < FLUSH_NS)
        return;
    run_log_written(&l->file, 0, true);
    l->flushed_ns = now;
}

/* --- the summary --- */

static struct lags all_lags(const struct bsp_run_log *l)
{
    return (struct lags){lag_mean(l->lag, l->gradients), (double)l->lag_most, l->stale,
                         l->bad};
}

/* Supersteps, gradients, examples and seconds count all starts of the run; the rate, the
 * lags and the refusals are of this start. */
static void write_summary(struct bsp_run_log *l, const struct bsp_model *model,
                          const struct bsp_end *end)
{
    const struct lags lags = all_lags(l);
    struct json json;
    json_begin(&json, l->file.file);
    json_text(&json, "kind", "summary");
    json_int(&json, "supersteps", (int64_t)model->steps);
    json_int(&json, "gradients", (int64_t)model->gradients);
    json_int(&json, "examples", (int64_t)model->examples);
    json_real(&json, "seconds", model->seconds);
    json_real(&json, "examples_per_s", (double)l->examples / end->seconds);
    lags_json(&json, &lags);
    json_int(&json, "undone", (int64_t)l->undone);
    json_int(&json, "restarts", end->restarts);
    if (l->held_out.n) {
        json_int(&json, "eval_examples", (int64_t)l->held_out.n);
        held_out_json(&json, &l->held_out);
    }
    json_text(&json, "stopped", end->why);
    run_log_written(&l->file, json_end(&json), true);
}

static void print_summary(const struct bsp_run_log *l, const struct bsp_model *model,
                          const struct bsp_end *end)
{
    const struct lags lags = all_lags(l);
    const char *of = model->resumed ? " of this start" : "";
    char name[64];
    fprintf(l->out, "bsp: %d local module%s, %zu parameters\n", end->modules,
            end->modules == 1 ? "" : "s", model->n);
    summary_row(l->out, "supersteps", (double)model->steps, "%.0f");
    summary_row(l->out, "gradients", (double)model->gradients, "%.0f");
    summary_row(l->out, "examples", (double)model->examples, "%.0f");
    snprintf(name, sizeof name, "seconds%s", of);
    summary_row(l->out, name, end->seconds, "%.1f");
    summary_row(l->out, "examples/s", (double)l->examples / end->seconds, "%.0f");
    summary_row(l->out, "gradients/s", (double)l->gradients / end->seconds, "%.1f");
    summary_lags(l->out, &lags);
    if (l->undone)
        summary_row(l->out, "undone", (double)l->undone,
                    "%.0f gradients of the run before");
    if (l->held_out.n)
        summary_held_out(l->out, &l->held_out, false);
    if (end->restarts)
        summary_row(l->out, "restarts of modules", (double)end->restarts, "%.0f");
    fprintf(l->out, "  %s\n", end->why);
    if (end->kept)
        fprintf(l->out, "  %s has the model; --resume goes on from it\n",
                l->options->checkpoint);
    else if (!l->options->checkpoint)
        fputs("  the model is not kept: --checkpoint FILE keeps it\n", l->out);
}

bool bsp_log_end(struct bsp_run_log *l, const struct bsp_model *model,
                 const struct bsp_end *end)
{
    struct local_figures all = all_figures(l);
    l->stale = all.stale;
    l->bad = all.bad;
    progress_end_line(&l->progress);
    bsp_log_eval(l, model, false);
    if (l->file.file)
        write_summary(l, model, end);
    print_summary(l, model, end);
    return !l->failed;
}
