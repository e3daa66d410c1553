/* SPDX-License-Identifier: MIT */
/* The end of a run, in the main thread of the trainer that reports: the last evaluation,
 * and the summary, in the log and for a person. */
#include "run/summary.h"
#include "train/monitor.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#define RELAXED memory_order_relaxed

const char *const train_model_names[] = {"linear", "fm", "dlrm", "mlp"};

/* --- the end --- */

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

static void fill_bsp(struct trainer *t, const struct figures *f, double seconds)
{
    const struct board_bsp *b = &t->board->bsp;
    struct train_result *r = t->result;

    r->supersteps = f->supersteps;
    r->gradients = f->gradients;
    r->given = atomic_load_explicit(&b->examples, RELAXED);
    r->stale = f->stale;
    r->not_finite = f->not_finite;
    r->undone = atomic_load_explicit(&b->undone, RELAXED);
    r->staleness_mean = lag_mean(f->lag, f->gradients);
    r->staleness_max = (double)atomic_load_explicit(&b->lag_most, RELAXED);
    r->control_cpu_share = get(&b->cpu_s) / seconds;
}

static void fill_result(struct trainer *t, double seconds)
{
    struct train_result *r = t->result;
    struct figures f = figures_gather(t);
    double worked = seconds * (double)t->options->workers * (f.trainers ? f.trainers : 1);

    r->seen = board_sum(t->board);
    struct metrics before = cell_read(&t->board->before), own = r->seen;
    metrics_drop(&own, &before);
    r->trained = own.n;
    r->own_loss = metrics_logloss(&own);
    r->own_entropy = metrics_entropy(&own);
    r->own_accuracy = metrics_accuracy(&own);
    r->seconds = seconds;
    r->stall_share = f.stall_s / worked;
    r->copy_share = f.copy_s / worked;
    r->gap_mean = f.gap;
    r->gap_max = f.gap_max;
    r->age_s = f.age_s;
    r->exchange_s = f.exchange_s;
    r->distance = f.distance;
    r->shadow_cpu_share = f.shadow_cpu_s / (seconds * (f.trainers ? f.trainers : 1));
    r->rounds = f.rounds;
    r->bytes = f.bytes;
    r->rows_sent = f.rows_sent;
    r->lines = f.lines;
    r->bad = f.bad;
    r->steps = f.steps;
    r->stop = (int)board_stopped(t->board);
    r->trainers = f.trainers;
    r->memory_mb = memory_mb();
    fill_bsp(t, &f, seconds);
    r->auc = r->eval_loss = r->eval_entropy = r->eval_accuracy = r->eval_calibration =
        NAN;
}

static void final_eval(struct trainer *t)
{
    struct train_result *r = t->result;
    struct held_out h = {.at = r->seen.n,
                         .seconds = r->seconds + get(&t->board->seconds_before)};

    if (t->host > 0 || !t->eval_paths.n || r->stop == STOP_SIGNAL ||
        r->stop == STOP_NAN || r->stop == STOP_FAILED)
        return;
    if (!judge_final(t, &h)) {
        r->stop = (int)board_stopped(t->board);
        return;
    }
    if (trainer_keeps_best(t)) {
        struct place *place = save_place(t);
        judge_best(t, &h, place, t->w);
        memory_give(place);
    }
    train_log_eval(t, &h);
    r->auc = h.auc;
    r->eval_n = h.n;
    r->eval_positive = h.positive;
    r->eval_loss = h.loss;
    r->eval_entropy = h.entropy;
    r->eval_accuracy = h.accuracy;
    r->eval_calibration = h.calibration;
}

static struct held_out held_out_of(const struct train_result *r)
{
    return (struct held_out){.loss = r->eval_loss,
                             .entropy = r->eval_entropy,
                             .auc = r->auc,
                             .accuracy = r->eval_accuracy,
                             .calibration = r->eval_calibration};
}

/* Goes by the held-out set, for the loss of a short run is mostly of its first steps. */
static bool worse_than_constant(const struct train_result *r)
{
    return r->eval_n && r->eval_entropy > 1;
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
        fputs("  nothing is kept: --checkpoint names a file that --resume goes on from\n",
              t->out);
    else if (r->stop == STOP_NOT && resumed && !r->trained)
        fputs("  nothing was left to train: more comes with --epochs or --examples\n",
              t->out);
    if (r->stop == STOP_NOT && worse_than_constant(r)) {
        diverged_advice(t, advice, sizeof advice);
        fprintf(t->out,
                "  a constant guess is better than this model; if it has diverged, %s\n",
                advice);
    }
}

static struct lags lags_of(const struct train_result *r)
{
    return (struct lags){r->staleness_mean, r->staleness_max, r->stale, r->not_finite};
}

static void print_bsp(const struct trainer *t)
{
    const struct train_result *r = t->result;
    struct lags lags = lags_of(r);

    summary_row(t->out, "supersteps", (double)r->supersteps, "%.0f");
    summary_row(t->out, "gradients", (double)r->gradients, "%.0f");
    summary_lags(t->out, &lags);
    if (r->undone)
        summary_row(t->out, "lost with a trainer", (double)r->undone, "%.0f gradients");
    summary_row(t->out, "control's share of a core", 100 * r->control_cpu_share,
                "%.2f %%");
}

/* Shows the time also in steps without waiting, which a plan's delay has to cover. */
static void print_exchange(FILE *out, const struct train_result *r)
{
    double steps_s = (double)r->steps / r->trainers / (r->seconds * (1 - r->stall_share));
    if (r->rounds > 0)
        fprintf(out, "  %-26s %.1f ms (%.1f steps)\n", "99 % of exchanges within",
                1e3 * r->exchange_s, r->exchange_s * steps_s);
}

static void print_summary(struct trainer *t)
{
    const struct train_result *r = t->result;
    const struct held_out h = held_out_of(r);
    bool classes = model_outputs(t->model) > 1;

    int workers = (int)t->options->workers;
    bool resumed = atomic_load_explicit(&t->board->resumed, RELAXED);

    fprintf(t->out, "%s under %s: %d trainer%s x %d worker%s",
            train_model_names[t->options->model], t->options->sync, r->trainers,
            r->trainers == 1 ? "" : "s", workers, workers == 1 ? "" : "s");
    if (t->hosts > 1)
        fprintf(t->out, " on the first of %d hosts", t->hosts);
    fputc('\n', t->out);
    summary_row(t->out, "examples", (double)r->seen.n, "%.0f");
    if (resumed)
        summary_row(t->out, "examples of this start", (double)r->trained, "%.0f");
    summary_row(t->out, resumed ? "seconds of this start" : "seconds", r->seconds,
                "%.1f");
    summary_row(t->out, "examples/s", (double)r->trained / r->seconds, "%.0f");
    summary_row(t->out, "examples at a time (ELP)", (double)train_elp(t), "%.0f");
    summary_row(t->out, "loss while training", metrics_logloss(&r->seen), "%.5f");
    summary_row(t->out, classes ? "accuracy while training" : "NE while training",
        classes ? metrics_accuracy(&r->seen) : metrics_entropy(&r->seen), "%.5f");
    if (resumed) {
        summary_row(t->out, "loss of this start", r->own_loss, "%.5f");
        summary_row(t->out, classes ? "accuracy of this start" : "NE of this start",
            classes ? r->own_accuracy : r->own_entropy, "%.5f");
    }
    if (r->eval_n)
        summary_row(t->out, "held-out examples", (double)r->eval_n, "%.0f");
    summary_held_out(t->out, &h, classes);
    summary_row(t->out, "stall", 100 * r->stall_share, "%.2f %%");
    summary_row(t->out, "steps between merges", merged(r->gap_mean, r->rounds), "%.1f");
    print_exchange(t->out, r);
    summary_row(t->out, "shadow's share of a core",
                merged(100 * r->shadow_cpu_share, r->rounds), "%.2f %%");
    if (r->rows_sent > 0)
        summary_row(t->out, "rows sent to other hosts", r->rows_sent, "%.0f");
    if (t->bsp)
        print_bsp(t);
    if (r->bad)
        summary_row(t->out, "bad lines skipped", (double)r->bad, "%.0f");
    summary_row(t->out, "memory of a trainer", r->memory_mb, "%.0f MB");
    say_end(t, resumed);
    int error = stream_error(t->out);
    if (!error)
        return;
    log_fail(&t->log, DESCANT_SYSTEM, "the summary could not be written: %s",
             strerror(error));
    board_stop(t->board, STOP_FAILED, "the summary could not be written");
}

static void log_summary(struct trainer *t)
{
    const struct train_result *r = t->result;
    const struct held_out h = held_out_of(r);
    const struct lags lags = lags_of(r);
    struct json json;

    train_log_open(t);
    if (!t->run_log.file)
        return;
    json_begin(&json, t->run_log.file);
    json_text(&json, "kind", "summary");
    json_int(&json, "examples", (int64_t)r->seen.n);
    json_real(&json, "seconds", r->seconds + get(&t->board->seconds_before));
    json_real(&json, "loss", metrics_logloss(&r->seen));
    json_real(&json, "ne", metrics_entropy(&r->seen));
    if (atomic_load_explicit(&t->board->resumed, RELAXED)) {
        json_int(&json, "start_examples", (int64_t)r->trained);
        json_real(&json, "start_loss", r->own_loss);
        json_real(&json, "start_ne", r->own_entropy);
    }
    json_real(&json, "examples_per_s", (double)r->trained / r->seconds);
    json_int(&json, "elp", train_elp(t));
    json_real(&json, "stall_share", r->stall_share);
    json_real(&json, "gap_mean", merged(r->gap_mean, r->rounds));
    json_real(&json, "exchange_p99_s", merged(r->exchange_s, r->rounds));
    if (t->bsp) {
        json_int(&json, "supersteps", (int64_t)r->supersteps);
        json_int(&json, "gradients", (int64_t)r->gradients);
        json_int(&json, "gradient_examples", (int64_t)r->given);
        lags_json(&json, &lags);
    }
    if (r->eval_n) {            /* by these the report knows one held-out set from
                                   another */
        json_int(&json, "eval_examples", (int64_t)r->eval_n);
        json_int(&json, "eval_clicks", (int64_t)r->eval_positive);
    }
    held_out_json(&json, &h);
    json_real(&json, "memory_mb", r->memory_mb);
    json_text(&json, "stopped", board_why(t->board));
    run_log_written(&t->run_log, json_end(&json), true);
    run_log_close(&t->run_log);
}

void summary_make(struct trainer *t, double seconds)
{
    progress_end_line(&t->progress);
    fill_result(t, seconds);
    final_eval(t);
    log_summary(t);
    if (t->host == 0 && (t->result->trained || t->result->stop != STOP_FAILED))
        print_summary(t);
    if (atomic_load(&t->board->log_failed))
        board_stop(t->board, STOP_FAILED, "the log could not be written");
}
