/* SPDX-License-Identifier: MIT */
/* Figures over all trainers of the machine, its log of a run (a header, intervals, a summary, one
 * JSON object a line), and its end: the last evaluation and the summary. Only the trainer that
 * reports comes here, its monitor while it trains and its main thread after. */
#include "train/monitor.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define RELAXED memory_order_relaxed

const char *const train_model_names[] = {"linear", "fm", "dlrm", "mlp"};

struct figures figures_gather(const struct trainer *t)
{
    struct figures f = {0};
    double merging = 0;         /* trainers that have merged */

    for (int s = 0; s < BOARD_SEATS; s++) {
        const struct seat *seat = &t->board->seats[s];
        if (atomic_load_explicit(&seat->state, memory_order_acquire) == SEAT_EMPTY)
            continue;
        f.trainers++;
        f.gap_max = fmax(f.gap_max, get(&seat->gap_max));
        f.stall_s += get(&seat->stall_ns) * 1e-9;
        f.copy_s += get(&seat->copy_ns) * 1e-9;
        f.age_s += get(&seat->age_s);
        f.exchange_s = fmax(f.exchange_s, get(&seat->exchange_s));
        f.distance += get(&seat->distance);
        f.shadow_cpu_s += get(&seat->shadow_cpu_s);
        f.bytes += get(&seat->bytes);
        f.rows_sent += get(&seat->rows_sent);
        f.rows_waiting += get(&seat->rows_waiting);
        f.rows_age_s = fmax(f.rows_age_s, get(&seat->rows_age_s));
        double merges = get(&seat->rounds), steps = get(&seat->merged_steps);
        f.rounds += merges;
        f.merges += merges;
        f.merged_steps += steps;
        f.gap += merges > 0 ? steps / merges : 0;
        merging += merges > 0;
        f.lines += atomic_load_explicit(&seat->lines, RELAXED);
        f.bad += atomic_load_explicit(&seat->bad, RELAXED);
        f.steps += atomic_load_explicit(&seat->steps, RELAXED);
        f.stale += atomic_load_explicit(&seat->stale, RELAXED);
        f.not_finite += atomic_load_explicit(&seat->not_finite, RELAXED);
    }
    f.supersteps = atomic_load_explicit(&t->board->bsp.supersteps, RELAXED);
    f.gradients = atomic_load_explicit(&t->board->bsp.gradients, RELAXED);
    f.lag = atomic_load_explicit(&t->board->bsp.lag, RELAXED);
    double n = f.trainers ? f.trainers : 1;
    f.gap /= fmax(merging, 1);
    f.age_s /= fmax(merging, 1);
    f.distance /= fmax(merging, 1);
    f.rounds /= n;
    return f;
}

double figures_seconds(const struct trainer *t)
{
    uint64_t began = atomic_load_explicit(&t->board->started_ns, RELAXED);
    return (double)(clock_now_ns() - began) * 1e-9;
}

double figures_stall(const struct trainer *t, const struct figures *f)
{
    int trainers = f->trainers ? f->trainers : 1;
    double worked = figures_seconds(t) * (double)t->options->workers * trainers;
    return f->stall_s / fmax(worked, 1e-9);
}

/* Example-level parallelism (ShadowSync): examples that are worked on at the same time. */
static int64_t elp(const struct trainer *t)
{
    return t->options->batch * t->options->workers * t->size;
}

/* --- the log --- */

/* After a line, of which so much has failed: 0, or an errno. A log that could not be written ends
 * there, so that only its last line may be torn; training goes on, and the run fails at its end. */
void run_log_written(struct trainer *t, int error)
{
    char path[4096];

    if (!error)
        error = stream_error(t->run_log);
    if (!error)
        return;
    host_file(t, t->options->log, path, sizeof path);
    if (!atomic_exchange(&t->board->log_failed, 1))
        log_fail(&t->log, DESCANT_SYSTEM, "%s: the log could not be written, and ends here: %s", path,
                 strerror(error));
    run_log_close(t);
}

static void log_header(struct trainer *t)
{
    struct json json;

    config_log(&json, t->run_log, train_settings, n_train_settings, t->options);
    json_int(&json, "hosts", t->hosts);
    json_int(&json, "size", t->size);
    json_int(&json, "parameters", (int64_t)t->n);
    json_int(&json, "table_parameters", (int64_t)t->n_tables);
    json_int(&json, "elp", elp(t));
    run_log_written(t, json_end(&json));
}

/* What is known of merges, where there was one. */
static double merged(double figure, double rounds)
{
    return rounds > 0 ? figure : (double)NAN;
}

void window_look(struct window *w, const struct trainer *t)
{
    struct metrics all = board_sum(t->board), part = all;
    uint64_t now = clock_now_ns();

    metrics_drop(&part, &w->seen);
    if (part.n) {
        w->loss = metrics_logloss(&part);
        w->entropy = metrics_entropy(&part);
    }
    w->per_s = (double)part.n / ((double)(now - w->at_ns) * 1e-9);
    w->seen = all;
    w->at_ns = now;
}

static uint64_t logged_ns(const struct board *b)
{
    uint64_t since = atomic_load_explicit(&b->logged_ns, RELAXED);
    return since ? since : atomic_load_explicit(&b->started_ns, RELAXED);
}

/* Since the last interval, whoever wrote it. */
static struct window look_on(struct trainer *t)
{
    struct board *b = t->board;
    struct window w = {
        .seen = cell_read(&b->logged),
        .at_ns = logged_ns(b),
        .loss = NAN, .entropy = NAN,
    };

    window_look(&w, t);
    cell_set(&b->logged, &w.seen);
    atomic_store_explicit(&b->logged_ns, w.at_ns, RELAXED);
    return w;
}

static double per_gradient(uint64_t lag, uint64_t gradients)
{
    return gradients ? (double)lag / (double)gradients : (double)NAN;
}

/* What there was of a figure since the last interval. */
static uint64_t lately(_Atomic uint64_t *logged, uint64_t now)
{
    return now - atomic_exchange_explicit(logged, now, RELAXED);
}

/* A seat that is taken anew counts from 0. */
static double grown(_Atomic double *logged, double now)
{
    return fmax(now - atomic_exchange_explicit(logged, now, RELAXED), 0);
}

/* Of the interval, which took so long; distance and age are those of the last merge. */
static void log_sync(struct trainer *t, struct json *json, const struct figures *f, double took_s)
{
    struct board *b = t->board;
    double merges = grown(&b->sync_logged.merges, f->merges);
    double steps = grown(&b->sync_logged.merged_steps, f->merged_steps);
    double stall_s = grown(&b->sync_logged.stall_s, f->stall_s);
    double workers = (double)t->options->workers * (f->trainers ? f->trainers : 1);

    json_real(json, "rounds", merges / fmax(f->trainers, 1));
    json_real(json, "gap", merges > 0 ? steps / merges : (double)NAN);
    json_real(json, "stall_share", stall_s / fmax(took_s * workers, 1e-9));
    json_real(json, "distance", merged(f->distance, f->rounds));
    json_real(json, "age_s", merged(f->age_s, f->rounds));
    if (f->rows_sent > 0) {
        json_real(json, "rows_sent", grown(&b->sync_logged.rows_sent, f->rows_sent));
        json_real(json, "rows_waiting", f->rows_waiting);
        json_real(json, "rows_age_s", f->rows_age_s);
    }
}

static void log_bsp(struct trainer *t, struct json *json, const struct figures *f)
{
    struct board *b = t->board;
    uint64_t gradients = lately(&b->bsp_logged.gradients, f->gradients);
    uint64_t lag = lately(&b->bsp_logged.lag, f->lag);
    uint64_t most = atomic_exchange_explicit(&b->bsp.lag_lately, 0, RELAXED);

    json_int(json, "supersteps", (int64_t)lately(&b->bsp_logged.supersteps, f->supersteps));
    json_int(json, "gradients", (int64_t)gradients);
    json_real(json, "staleness_mean", per_gradient(lag, gradients));
    json_real(json, "staleness_max", gradients ? (double)most : (double)NAN);
    json_int(json, "refused_stale", (int64_t)lately(&b->bsp_logged.stale, f->stale));
    json_int(json, "refused_not_finite", (int64_t)lately(&b->bsp_logged.not_finite, f->not_finite));
}

void run_log_interval(struct trainer *t, const struct figures *f, double seconds)
{
    struct board *b = t->board;
    uint64_t before_ns = logged_ns(b);
    struct window w = look_on(t);
    struct json json;

    json_begin(&json, t->run_log);
    json_text(&json, "kind", "interval");
    json_int(&json, "rank", (int64_t)atomic_load_explicit(&b->log_rank, RELAXED) - 1);
    json_int(&json, "examples", (int64_t)w.seen.n);
    json_real(&json, "seconds", seconds + get(&b->seconds_before));
    json_real(&json, "loss", w.loss);
    json_real(&json, "ne", w.entropy);
    json_real(&json, "examples_per_s", w.per_s);
    log_sync(t, &json, f, (double)(w.at_ns - before_ns) * 1e-9);
    if (t->bsp)
        log_bsp(t, &json, f);
    run_log_written(t, json_end(&json));
}

void run_log_checkpoint(struct trainer *t, const char *why)
{
    struct json json;

    run_log_open(t);
    if (!t->run_log)
        return;
    json_begin(&json, t->run_log);
    json_text(&json, "kind", "checkpoint");
    json_real(&json, "seconds", figures_seconds(t) + get(&t->board->seconds_before));
    json_text(&json, "failed", why);
    run_log_written(t, json_end(&json));
}

/* The first host has the path that was given, each other one its own beside it. */
void host_file(const struct trainer *t, const char *path, char *own, size_t room)
{
    if (t->host == 0)
        snprintf(own, room, "%s", path);
    else
        snprintf(own, room, "%s.host%d", path, t->host);
}

/* A line that a kill or a full disk has torn is no start of the next one. */
static bool cut_torn_line(const char *path)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    off_t bytes = fd >= 0 ? lseek(fd, 0, SEEK_END) : -1;
    off_t end = bytes >= 0 ? file_line_end(fd, bytes, 0) : -1;
    bool good = end >= 0 && (end == bytes || ftruncate(fd, end) == 0);
    int error = errno;

    if (fd >= 0)
        close(fd);
    errno = error;
    return good;
}

/* The log of an earlier run becomes PATH.old, where this one does not go on from it. Nobody else's
 * line is cut while it is written: `alone`. */
FILE *run_log_file(const char *path, bool goes_on, bool alone)
{
    char target[4096], old[4096 + 8];
    struct stat of;
    bool there = stat(path, &of) == 0 && S_ISREG(of.st_mode) && of.st_size > 0;

    if (there && goes_on && alone && !cut_torn_line(path))
        return NULL;
    if (there && !goes_on) {
        if (path_follow(path, target, sizeof target))
            path = target;
        snprintf(old, sizeof old, "%s.old", path);
        if (rename(path, old) != 0)
            return NULL;
    }
    return fopen(path, "ae");
}

void run_log_open(struct trainer *t)
{
    if (!t->options->log || t->run_log || atomic_load(&t->board->log_failed))
        return;
    uint32_t nobody = 0;
    bool first = atomic_compare_exchange_strong(&t->board->log_rank, &nobody,
                                                (uint32_t)t->rank + 1);
    bool resumed = atomic_load_explicit(&t->board->resumed, RELAXED);
    char path[4096];
    host_file(t, t->options->log, path, sizeof path);
    t->run_log = run_log_file(path, !first || resumed, first || board_reports(t->board, t->seat));
    if (!t->run_log) {
        if (!atomic_exchange(&t->board->log_failed, 1))
            log_fail(&t->log, DESCANT_SYSTEM, "%s: %s", path, strerror(errno));
        board_stop(t->board, STOP_FAILED, "%s cannot be written", path);
        return;
    }
    if (first)
        log_header(t);
}

void run_log_close(struct trainer *t)
{
    if (t->run_log)
        fclose(t->run_log);     /* after run_log_written, it holds nothing back */
    t->run_log = NULL;
}

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
    r->staleness_mean = per_gradient(f->lag, f->gradients);
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
    r->auc = r->eval_loss = r->eval_entropy = r->eval_accuracy = r->eval_calibration = NAN;
}

static void final_eval(struct trainer *t)
{
    struct train_result *r = t->result;
    struct held_out h = {.at = r->seen.n, .seconds = r->seconds + get(&t->board->seconds_before)};

    if (t->host > 0 || !t->eval_paths.n || r->stop == STOP_SIGNAL || r->stop == STOP_NAN ||
        r->stop == STOP_FAILED)
        return;
    if (!monitor_evaluate(t, &h)) {
        r->stop = (int)board_stopped(t->board);
        return;
    }
    if (monitor_keeps_best(t)) {
        struct place *place = checkpoint_place(t);
        monitor_judge(t, &h, place, t->w);
        memory_give(place);
    }
    run_log_open(t);
    if (t->run_log)
        run_log_written(t, held_out_log(t->run_log, &h));
    r->auc = h.auc;
    r->eval_n = h.n;
    r->eval_positive = h.positive;
    r->eval_loss = h.loss;
    r->eval_entropy = h.entropy;
    r->eval_accuracy = h.accuracy;
    r->eval_calibration = h.calibration;
}

static void row(FILE *out, const char *name, double value, const char *format)
{
    char text[64];
    if (!isfinite(value))
        return;
    snprintf(text, sizeof text, format, value);
    fprintf(out, "  %-26s %s\n", name, text);
}

/* On the held-out set: a short run without one has a loss that is mostly of its first steps. */
static bool worse_than_constant(const struct train_result *r)
{
    return r->eval_n && r->eval_entropy > 1;
}

/* How it ended, where it was not by the data's end. Why it failed has been said, by a trainer that
 * under a launcher may be elsewhere. */
static void say_end(const struct trainer *t, bool resumed)
{
    const struct train_result *r = t->result;
    bool signal = r->stop == STOP_SIGNAL, failed = r->stop == STOP_FAILED || r->stop == STOP_NAN;
    char advice[96];

    if (failed && t->options->trainers)
        fputs("  it failed: this is how far it came\n", t->out);
    else if (r->stop != STOP_NOT)
        fprintf(t->out, "  %s\n", board_why(t->board));
    if (monitor_keeps_best(t) && atomic_load(&t->board->best_kept))
        fprintf(t->out, "  %s.best has the model of the best evaluation, at %llu examples: loss "
                "%.5f\n", t->options->checkpoint,
                (unsigned long long)atomic_load(&t->board->best_at), get(&t->board->eval_best));
    if (signal && t->kept)
        fprintf(t->out, "  %s has the model so far; --resume goes on from it\n",
                t->options->checkpoint);
    else if (signal && !t->options->checkpoint)
        fputs("  nothing is kept: --checkpoint names a file that --resume goes on from\n", t->out);
    else if (r->stop == STOP_NOT && resumed && !r->trained)
        fputs("  nothing was left to train: more comes with --epochs or --examples\n", t->out);
    if (r->stop == STOP_NOT && worse_than_constant(r)) {
        crew_advise(t, advice, sizeof advice);
        fprintf(t->out, "  a constant guess is better than this model; if it has diverged, %s\n",
                advice);
    }
}

static void print_bsp(const struct trainer *t)
{
    const struct train_result *r = t->result;

    row(t->out, "supersteps", (double)r->supersteps, "%.0f");
    row(t->out, "gradients", (double)r->gradients, "%.0f");
    row(t->out, "staleness, mean", r->staleness_mean, "%.2f versions");
    row(t->out, "staleness, most", r->staleness_max, "%.0f versions");
    row(t->out, "refused as stale", (double)r->stale, "%.0f");
    row(t->out, "refused for NaN or Inf", (double)r->not_finite, "%.0f");
    if (r->undone)
        row(t->out, "lost with a trainer", (double)r->undone, "%.0f gradients");
    row(t->out, "control's share of a core", 100 * r->control_cpu_share, "%.2f %%");
}

/* In steps, too, as they are without waiting: what a plan's delay has to cover. */
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
    bool classes = model_outputs(t->model) > 1;

    int workers = (int)t->options->workers;
    bool resumed = atomic_load_explicit(&t->board->resumed, RELAXED);

    fprintf(t->out, "%s under %s: %d trainer%s x %d worker%s",
            train_model_names[t->options->model], t->options->sync, r->trainers,
            r->trainers == 1 ? "" : "s", workers, workers == 1 ? "" : "s");
    if (t->hosts > 1)
        fprintf(t->out, " on the first of %d hosts", t->hosts);
    fputc('\n', t->out);
    row(t->out, "examples", (double)r->seen.n, "%.0f");
    if (resumed)
        row(t->out, "examples of this start", (double)r->trained, "%.0f");
    row(t->out, resumed ? "seconds of this start" : "seconds", r->seconds, "%.1f");
    row(t->out, "examples/s", (double)r->trained / r->seconds, "%.0f");
    row(t->out, "examples at a time (ELP)", (double)elp(t), "%.0f");
    row(t->out, "loss while training", metrics_logloss(&r->seen), "%.5f");
    row(t->out, classes ? "accuracy while training" : "NE while training",
        classes ? metrics_accuracy(&r->seen) : metrics_entropy(&r->seen), "%.5f");
    if (resumed) {
        row(t->out, "loss of this start", r->own_loss, "%.5f");
        row(t->out, classes ? "accuracy of this start" : "NE of this start",
            classes ? r->own_accuracy : r->own_entropy, "%.5f");
    }
    if (r->eval_n)
        row(t->out, "held-out examples", (double)r->eval_n, "%.0f");
    row(t->out, "held-out loss", r->eval_loss, "%.5f");
    if (!classes) {
        row(t->out, "held-out NE", r->eval_entropy, "%.5f");
        row(t->out, "held-out AUC", r->auc, "%.5f");
        row(t->out, "held-out calibration", r->eval_calibration, "%.4f");
    }
    row(t->out, "held-out accuracy", r->eval_accuracy, "%.4f");
    row(t->out, "stall", 100 * r->stall_share, "%.2f %%");
    row(t->out, "steps between merges", merged(r->gap_mean, r->rounds), "%.1f");
    print_exchange(t->out, r);
    row(t->out, "shadow's share of a core", merged(100 * r->shadow_cpu_share, r->rounds),
        "%.2f %%");
    if (r->rows_sent > 0)
        row(t->out, "rows sent to other hosts", r->rows_sent, "%.0f");
    if (t->bsp)
        print_bsp(t);
    if (r->bad)
        row(t->out, "bad lines skipped", (double)r->bad, "%.0f");
    row(t->out, "memory of a trainer", r->memory_mb, "%.0f MB");
    say_end(t, resumed);
    int error = stream_error(t->out);
    if (!error)
        return;
    log_fail(&t->log, DESCANT_SYSTEM, "the summary could not be written: %s", strerror(error));
    board_stop(t->board, STOP_FAILED, "the summary could not be written");
}

void run_log_last(struct trainer *t)
{
    struct figures f = figures_gather(t);
    uint64_t all_began = atomic_load_explicit(&t->board->started_ns, RELAXED);
    double later = t->began_ns > all_began ? (double)(t->began_ns - all_began) * 1e-9 : 0;

    run_log_open(t);
    if (t->run_log && board_sum(t->board).n > cell_read(&t->board->logged).n)
        run_log_interval(t, &f, t->seconds + later);
}

static void log_summary(struct trainer *t)
{
    const struct train_result *r = t->result;
    struct json json;

    run_log_open(t);
    if (!t->run_log)
        return;
    json_begin(&json, t->run_log);
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
    json_int(&json, "elp", elp(t));
    json_real(&json, "stall_share", r->stall_share);
    json_real(&json, "gap_mean", merged(r->gap_mean, r->rounds));
    json_real(&json, "exchange_p99_s", merged(r->exchange_s, r->rounds));
    if (t->bsp) {
        json_int(&json, "supersteps", (int64_t)r->supersteps);
        json_int(&json, "gradients", (int64_t)r->gradients);
        json_int(&json, "gradient_examples", (int64_t)r->given);
        json_real(&json, "staleness_mean", r->staleness_mean);
        json_real(&json, "staleness_max", r->staleness_max);
        json_int(&json, "refused_stale", (int64_t)r->stale);
        json_int(&json, "refused_not_finite", (int64_t)r->not_finite);
    }
    if (r->eval_n) {            /* by these the report knows one held-out set from another */
        json_int(&json, "eval_examples", (int64_t)r->eval_n);
        json_int(&json, "eval_clicks", (int64_t)r->eval_positive);
    }
    json_real(&json, "eval_loss", r->eval_loss);
    json_real(&json, "eval_ne", r->eval_entropy);
    json_real(&json, "auc", r->auc);
    json_real(&json, "eval_calibration", r->eval_calibration);
    json_real(&json, "eval_accuracy", r->eval_accuracy);
    json_real(&json, "memory_mb", r->memory_mb);
    json_text(&json, "stopped", board_why(t->board));
    run_log_written(t, json_end(&json));
    run_log_close(t);
}

void summary_make(struct trainer *t, double seconds)
{
    monitor_end_line(t);
    fill_result(t, seconds);
    final_eval(t);
    log_summary(t);
    if (t->host == 0 && (t->result->trained || t->result->stop != STOP_FAILED))
        print_summary(t);
    if (atomic_load(&t->board->log_failed))
        board_stop(t->board, STOP_FAILED, "the log could not be written");
}
