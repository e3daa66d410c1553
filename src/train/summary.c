/* SPDX-License-Identifier: MIT */
/* The end of a run, in the main thread of the trainer that reports: the last evaluation,
 * and the summary, in the log and for a person.
 *
 * Training is over, so that w and the tables are at rest, and no thread beside this one
 * writes the log. The same figures go to both places: into struct train_result, from
 * which they are written as one line of JSON (src/report/log.c reads its keys) and as
 * rows of text. A figure that a run does not have is NaN: null in the log, and no row in
 * the text. */
#include "run/summary.h"
#include "train/monitor.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#define RELAXED memory_order_relaxed

/* in the order of enum model_kind, which is also that of the choices of --model */
const char *const train_model_names[] = {"linear", "fm", "dlrm", "mlp"};

/* --- the end --- */

/* The most memory that this process has had at once, as the kernel counts it; NaN: not
 * known. */
static double memory_mb(void)
{
    double kb = NAN;
    char line[128];
    FILE *file = fopen("/proc/self/status", "re");

    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "VmHWM: %lf kB", &kb) == 1)
            break;
    if (file)
        fclose(file);
    return kb / 1024;
}

/* Evaluates the final model. A run that was stopped by a signal or a failure has no time
 * for it, or no model; only the first host evaluates. The model may be the best so far,
 * and is kept then. */
static void final_eval(struct trainer *t)
{
    struct train_result *r = t->result;
    struct held_out h = {.at = r->seen.n,
                         .seconds = r->seconds + get(&t->board->seconds_before)};
    enum board_stop stop = board_stopped(t->board);

    if (!others_is_first(t) || !t->eval_paths.n || stop == STOP_SIGNAL ||
        stop == STOP_NAN || stop == STOP_FAILED ||
        !judge_model(t, t->w, (int)t->options->workers, trainer_heed, &h))
        return;
    if (trainer_keeps_best(t)) {
        struct place *place = save_place(t);
        judge_best(t, &h, place, t->w);
        memory_give(place);
    }
    train_log_eval(t, &h);
    r->held_out = h;
}

/* The reason of an end before the data's end. The reason of a failure has been logged,
 * under a launcher maybe by a trainer elsewhere. */
static void say_end(const struct trainer *t, bool resumed)
{
    const struct train_result *r = t->result;
    bool signal = r->stop == STOP_SIGNAL,
         failed = r->stop == STOP_FAILED || r->stop == STOP_NAN;
    char advice[96];

    if (failed && t->options->trainers)
        fputs("  it failed: this is how far it came\n", t->out);
    else if (r->stop != STOP_NOT)
        fprintf(t->out, "  %s\n", board_why(t->board));
    if (trainer_keeps_best(t) && atomic_load(&t->board->best_kept))
        fprintf(t->out,
                "  %s.best has the model of the best evaluation, at %llu examples: loss "
                "%.5f\n",
                t->options->checkpoint,
                (unsigned long long)atomic_load(&t->board->best_at),
                get(&t->board->eval_best));
    if (signal && t->kept)
        fprintf(t->out, "  %s has the model so far; --resume goes on from it\n",
                t->options->checkpoint);
    else if (signal && !t->options->checkpoint)
        fputs("  the model is not kept: --checkpoint FILE keeps it, and --resume goes on "
              "from it\n", t->out);
    else if (r->stop == STOP_NOT && resumed && !r->own.n && !t->whole.seen.n)
        fputs("  nothing is left to train: raise --epochs or --examples for more\n",
              t->out);
    /* on the held-out set: a short run without one has a loss that is mostly of its first
     * steps */
    if (r->stop == STOP_NOT && r->held_out.n && r->held_out.entropy > 1) {
        diverged_advice(t, advice, sizeof advice);
        fprintf(t->out,
                "  a constant guess is better than this model; if training has diverged, "
                "%s\n", advice);
    }
}

static struct lags lags_of(const struct train_figures *f)
{
    return (struct lags){lag_mean(f->lag, f->gradients), (double)f->lag_most, f->stale,
                         f->not_finite};
}

static void print_bsp(FILE *out, const struct train_result *r)
{
    const struct train_figures *f = &r->figures;
    const struct lags lags = lags_of(f);

    summary_row(out, "supersteps", (double)f->supersteps, "%.0f");
    summary_row(out, "gradients", (double)f->gradients, "%.0f");
    summary_lags(out, &lags);
    if (f->lost)
        summary_row(out, "in no superstep", (double)f->lost, "%.0f gradients");
    summary_row(out, "control's share of a core", 100 * f->control_cpu_s / r->seconds,
                "%.2f %%");
}

/* The rows for a person. Output that cannot be written is a failure of the run, although
 * its model may be whole. */
static void print_training(struct trainer *t, bool resumed)
{
    const struct train_result *r = t->result;
    const struct train_figures *f = &r->figures;
    bool classes = model_outputs(t->model) > 1;
    int workers = (int)t->options->workers;

    fprintf(t->out, "%s under %s: %d trainer%s x %d worker%s",
            train_model_names[t->options->model], t->options->sync, f->trainers,
            f->trainers == 1 ? "" : "s", workers, workers == 1 ? "" : "s");
    if (t->hosts > 1 && t->host == 0)
        fprintf(t->out, " on this host, the first of %d hosts", t->hosts);
    else if (t->hosts > 1)
        fprintf(t->out, " on this host, number %d, of %d hosts at the start",
                t->host, t->hosts);
    fputc('\n', t->out);
    bool all = t->whole.n > 1;  /* earlier sums are of all hosts, rows of this one */
    if (resumed && all)
        summary_row(t->out, "examples of all starts", (double)whole_sum(t).n, "%.0f");
    else
        summary_row(t->out, "examples", (double)r->seen.n, "%.0f");
    if (resumed)
        summary_row(t->out, all ? "examples of this host" : "examples of this start",
            (double)r->own.n, "%.0f");
    summary_row(t->out, !resumed ? "seconds" : all ? "seconds of this host"
                                                   : "seconds of this start",
                r->seconds, "%.1f");
    summary_row(t->out, "examples/s", (double)r->own.n / r->seconds, "%.0f");
    summary_row(t->out, "examples at a time (ELP)", (double)train_elp(t), "%.0f");
    if (!resumed || !all) {
        summary_row(t->out, "loss while training", metrics_logloss(&r->seen), "%.5f");
        summary_row(t->out, classes ? "accuracy while training" : "NE while training",
            classes ? metrics_accuracy(&r->seen) : metrics_entropy(&r->seen), "%.5f");
    }
    if (resumed) {
        summary_row(t->out, all ? "loss of this host" : "loss of this start",
                    metrics_logloss(&r->own), "%.5f");
        summary_row(t->out,
                    all && classes ? "accuracy of this host"
                    : all          ? "NE of this host"
                    : classes      ? "accuracy of this start"
                                   : "NE of this start",
                    classes ? metrics_accuracy(&r->own) : metrics_entropy(&r->own),
                    "%.5f");
    }
    if (r->held_out.n)
        summary_row(t->out, "held-out examples", (double)r->held_out.n, "%.0f");
    summary_held_out(t->out, &r->held_out, classes);
}

/* Of tables that grow, in all; of hosts, as they have told last. */
static void print_grown(struct trainer *t)
{
    bool all = t->whole.n > 1;
    const struct rows_figures rows = all ? t->whole.rows : whole_rows(t);

    summary_row(t->out, "rows of tables", rows.live, "%.0f");
    summary_row(t->out, "rows evicted", rows.evicted, "%.0f");
    summary_row(t->out, "gradients without a row", rows.refused, "%.0f");
}

/* How rows travelled, where that is not as it is without options. */
static void print_rows(struct trainer *t)
{
    static const char *const wires[] = {"f32", "bf16", "q8"};   /* as in owned.c */
    const struct train_options *o = t->options;
    int wire = o->rows_wire ? o->rows_wire - 1 : o->plan_wire;
    char age[32];

    if (!t->owned)
        return;
    if (t->deals && wire)
        fprintf(t->out, "  %-26s %s\n", "wire of rows", wires[wire]);
    if (t->deals && o->rows_age > 0) {
        snprintf(age, sizeof age, "%.6g s", o->rows_age);
        fprintf(t->out, "  %-26s %s\n", "age of copied rows", age);
    }
    if (model_shape(t->model)->grows)
        print_grown(t);
}

static void log_rows(struct trainer *t, struct json *json)
{
    struct descant_stats s;

    if (!t->owned || descant_stats(t->job, &s) != DESCANT_OK)
        return;
    json_int(json, "rows_fetched", (int64_t)s.rows_fetched);
    json_int(json, "rows_cached", (int64_t)s.rows_cached);
    json_int(json, "rows_served", (int64_t)s.rows_served);
    if (t->moves)
        json_int(json, "rows_moved", (int64_t)s.rows_moved);
    if (!model_shape(t->model)->grows)
        return;
    json_int(json, "rows_live", (int64_t)s.rows_live);
    json_int(json, "rows_evicted", (int64_t)s.rows_evicted);
    json_int(json, "rows_refused", (int64_t)s.rows_refused);
    if (t->whole.n > 1) {
        json_int(json, "job_rows_live", (int64_t)t->whole.rows.live);
        json_int(json, "job_rows_evicted", (int64_t)t->whole.rows.evicted);
        json_int(json, "job_rows_refused", (int64_t)t->whole.rows.refused);
    }
}

static void print_synchronisation(struct trainer *t)
{
    const struct train_result *r = t->result;
    const struct train_figures *f = &r->figures;

    summary_row(t->out, "stall", 100 * f->stall_share, "%.2f %%");
    if (t->owned)
        summary_row(t->out, "stall for rows", 100 * f->rows_stall_share, "%.2f %%");
    summary_row(t->out, "steps between merges", merged(f->gap, f->rounds), "%.1f");
    if (f->rounds > 0)
        /* in steps as they are without waiting: a plan's delay has to cover as many */
        fprintf(t->out, "  %-26s %.1f ms (%.1f steps)\n", "99 % of exchanges within",
                1e3 * f->exchange_s,
                f->exchange_s * (double)f->steps / f->trainers /
                    (r->seconds * (1 - f->stall_share)));
    summary_row(t->out, "shadow's share of a core",
                merged(100 * f->shadow_share, f->rounds), "%.2f %%");
    if (f->missed > 0) {
        summary_row(t->out, "rounds missed", f->missed / f->trainers, "%.0f");
        summary_row(t->out, "steps that results have",
                    100 * f->own_steps / fmax((double)f->steps, 1), "%.1f %%");
    }
    if (f->rows_sent > 0)
        summary_row(t->out, "rows sent to other hosts", f->rows_sent, "%.0f");
}

static void print_summary(struct trainer *t)
{
    const struct train_result *r = t->result;
    bool resumed = atomic_load_explicit(&t->board->resumed, RELAXED);

    print_training(t, resumed);
    print_synchronisation(t);
    print_rows(t);
    if (t->bsp)
        print_bsp(t->out, r);
    if (r->figures.bad)
        summary_row(t->out, "bad lines skipped", (double)r->figures.bad, "%.0f");
    summary_row(t->out, "memory of a trainer", r->memory_mb, "%.0f MB");
    if (t->whole.n > 1)
        whole_print(&t->whole, t->out);
    say_end(t, resumed);
    int error = stream_error(t->out);
    if (!error)
        return;
    log_fail(&t->log, DESCANT_SYSTEM, "the summary could not be written: %s",
             strerror(error));
    board_stop(t->board, STOP_FAILED, "the summary could not be written");
}

/* Of all hosts, of this start: the job, and the host that had the least examples/s. */
static void log_all(const struct whole *w, struct json *json)
{
    bool slow;
    int slowest = whole_slowest(w, false, &slow);

    json_int(json, "job_hosts", (int64_t)w->n);
    json_int(json, "job_examples", (int64_t)w->seen.n);
    json_real(json, "job_seconds", w->seconds);
    json_real(json, "job_examples_per_s", w->per_s);
    json_real(json, "job_loss", metrics_logloss(&w->seen));
    json_real(json, "job_ne", metrics_entropy(&w->seen));
    json_real(json, "job_stall_share", w->stall_share);
    if (slowest >= 0) {
        json_int(json, "slowest_host", w->hosts[slowest].host);
        json_real(json, "slowest_per_s", w->hosts[slowest].per_s);
    }
}

/* The log's last line. Trainers of other hosts write it, too, each into its host's
 * log. */
static void log_summary(struct trainer *t)
{
    const struct train_result *r = t->result;
    const struct train_figures *f = &r->figures;
    const struct lags lags = lags_of(f);
    struct json json;

    train_log_open(t);
    if (!t->run_log.file)
        return;
    json_begin(&json, t->run_log.file);
    bool resumed = atomic_load_explicit(&t->board->resumed, RELAXED);
    bool all = resumed && t->whole.n > 1;       /* as in print_training */
    const struct metrics seen = all ? whole_sum(t) : r->seen;
    const struct metrics own = all ? t->whole.seen : r->own;
    json_text(&json, "kind", "summary");
    json_int(&json, "examples", (int64_t)seen.n);
    json_real(&json, "seconds", r->seconds + get(&t->board->seconds_before));
    json_real(&json, "loss", metrics_logloss(&seen));
    json_real(&json, "ne", metrics_entropy(&seen));
    if (resumed) {
        json_int(&json, "start_examples", (int64_t)own.n);
        json_real(&json, "start_loss", metrics_logloss(&own));
        json_real(&json, "start_ne", metrics_entropy(&own));
    }
    json_real(&json, "examples_per_s", (double)r->own.n / r->seconds);
    json_int(&json, "elp", train_elp(t));
    json_real(&json, "stall_share", f->stall_share);
    if (t->owned)
        json_real(&json, "stall_rows", f->rows_stall_share);
    log_rows(t, &json);
    json_real(&json, "gap_mean", merged(f->gap, f->rounds));
    json_real(&json, "exchange_p99_s", merged(f->exchange_s, f->rounds));
    if (f->missed > 0) {
        json_real(&json, "missed", f->missed / f->trainers);
        json_real(&json, "merged_share", f->own_steps / fmax((double)f->steps, 1));
    }
    if (t->bsp) {
        json_int(&json, "supersteps", (int64_t)f->supersteps);
        json_int(&json, "gradients", (int64_t)f->gradients);
        json_int(&json, "gradient_examples", (int64_t)f->given);
        lags_json(&json, &lags);
    }
    if (r->held_out.n) {        /* by these the report knows one held-out set from
                                   another */
        json_int(&json, "eval_examples", (int64_t)r->held_out.n);
        json_int(&json, "eval_clicks", (int64_t)r->held_out.positive);
    }
    held_out_json(&json, &r->held_out);
    json_real(&json, "memory_mb", r->memory_mb);
    if (t->whole.n > 1)
        log_all(&t->whole, &json);
    json_text(&json, "stopped", board_why(t->board));
    run_log_written(&t->run_log, json_end(&json), true);
    run_log_close(&t->run_log);
}

/* The order matters: the figures are taken before the evaluation, whose time is no
 * training; the reason of the end after it, since the evaluation may fail; the log's
 * failure last, since the summary's line may be the first that cannot be written. */
void summary_make(struct trainer *t)
{
    struct train_result *r = t->result;
    struct metrics before = cell_read(&t->board->before);

    progress_end_line(&t->progress);
    r->seen = r->own = board_sum(t->board);
    metrics_drop(&r->own, &before);
    r->seconds = t->seconds;
    r->figures = figures_gather(t, t->seconds);
    whole_show(t);
    if (others_is_first(t))
        whole_look(t);
    r->held_out = (struct held_out){.loss = NAN, .entropy = NAN, .auc = NAN,
                                    .accuracy = NAN, .calibration = NAN};
    r->memory_mb = memory_mb();
    final_eval(t);
    r->stop = (int)board_stopped(t->board);
    log_summary(t);
    if (others_is_first(t) && (r->own.n || r->stop != STOP_FAILED))
        print_summary(t);
    if (atomic_load(&t->board->log_failed))
        board_stop(t->board, STOP_FAILED, "the log could not be written");
}
