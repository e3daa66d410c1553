/* SPDX-License-Identifier: MIT */
/* The thread beside the workers: puts this trainer's figures into its seat, passes a signal on to
 * all trainers, and, in the trainer that reports (the lowest seat alive), shows the progress,
 * writes the log, and sees to checkpoints and evaluations when they are due. Workers never wait
 * for it. When the reporter dies, the next one goes on within a tenth of a second. */
#include "train/evaluate.h"
#include "train/trainer.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static const char *const model_names[] = {"linear", "fm", "dlrm", "mlp"};

#define TICK_NS 100000000u
#define RELAXED memory_order_relaxed

/* What the last line was measured against. */
struct window {
    struct metrics seen;
    uint64_t at_ns;
    double loss, entropy, per_s;
};

static void put(_Atomic double *to, double x)
{
    atomic_store_explicit(to, x, RELAXED);
}

static double get(const _Atomic double *from)
{
    return atomic_load_explicit(from, RELAXED);
}

void monitor_publish(struct trainer *t)
{
    struct descant_stats s;
    struct seat *seat = t->seat;

    if (descant_stats(t->job, &s) != DESCANT_OK)
        return;
    put(&seat->gap, s.gap_mean);
    put(&seat->gap_max, (double)s.gap_max);
    put(&seat->stall_ns, (double)s.stall_ns + (double)atomic_load_explicit(&t->gather_ns, RELAXED));
    put(&seat->copy_ns, (double)s.copy_ns);
    put(&seat->age_s, s.age_s);
    put(&seat->distance, s.distance);
    put(&seat->shadow_cpu_s, s.shadow_cpu_s);
    put(&seat->bytes, (double)s.bytes);
    put(&seat->rounds, (double)s.rounds);
    atomic_store_explicit(&seat->steps, s.steps, RELAXED);
}

/* Means over the seats that are taken. */
struct figures {
    double gap, gap_max, stall_s, copy_s, age_s, distance, shadow_cpu_s, bytes, rounds;
    uint64_t lines, bad, steps;
    int trainers;
};

static struct figures gather_figures(const struct trainer *t)
{
    struct figures f = {0};

    for (int s = 0; s < BOARD_SEATS; s++) {
        const struct seat *seat = &t->board->seats[s];
        if (atomic_load_explicit(&seat->state, memory_order_acquire) == SEAT_EMPTY)
            continue;
        f.trainers++;
        f.gap += get(&seat->gap);
        f.gap_max = fmax(f.gap_max, get(&seat->gap_max));
        f.stall_s += get(&seat->stall_ns) * 1e-9;
        f.copy_s += get(&seat->copy_ns) * 1e-9;
        f.age_s += get(&seat->age_s);
        f.distance += get(&seat->distance);
        f.shadow_cpu_s += get(&seat->shadow_cpu_s);
        f.bytes += get(&seat->bytes);
        f.rounds += get(&seat->rounds);
        f.lines += atomic_load_explicit(&seat->lines, RELAXED);
        f.bad += atomic_load_explicit(&seat->bad, RELAXED);
        f.steps += atomic_load_explicit(&seat->steps, RELAXED);
    }
    double n = f.trainers ? f.trainers : 1;
    f.gap /= n;
    f.age_s /= n;
    f.distance /= n;
    f.rounds /= n;
    return f;
}

static double seconds_run(const struct trainer *t)
{
    uint64_t began = atomic_load_explicit(&t->board->started_ns, RELAXED);
    return (double)(clock_now_ns() - began) * 1e-9;
}

static double worker_seconds(const struct trainer *t, const struct figures *f)
{
    return seconds_run(t) * (double)t->options->workers * (f->trainers ? f->trainers : 1);
}

static double place_of(const struct trainer *t)
{
    double place = feed_place(t->feed);
    if (t->options->examples > 0) {
        double by_limit = (double)atomic_load_explicit(&t->board->granted, RELAXED) /
                          (double)t->options->examples;
        place = fmax(place, by_limit > 1 ? 1 : by_limit);
    }
    return place;
}

/* --- the progress line --- */

static const char *time_text(double s, char *text, size_t room)
{
    if (s < 0 || !isfinite(s))
        snprintf(text, room, "?");
    else if (s < 3600)
        snprintf(text, room, "%d:%02d", (int)s / 60, (int)s % 60);
    else
        snprintf(text, room, "%d:%02d:%02d", (int)s / 3600, (int)s / 60 % 60, (int)s % 60);
    return text;
}

static const char *count_text(double n, char *text, size_t room)
{
    if (n < 1e4)
        snprintf(text, room, "%.0f", n);
    else if (n < 1e6)
        snprintf(text, room, "%.1f k", n / 1e3);
    else
        snprintf(text, room, "%.2f M", n / 1e6);
    return text;
}

static void show(struct trainer *t, const struct window *w, const struct figures *f)
{
    char rate[32], left[32], seen[32], line[160], percent[16] = "  ?";
    double place = place_of(t), s = seconds_run(t);
    double stall = f->stall_s / fmax(worker_seconds(t, f), 1e-9);

    if (place >= 0)
        snprintf(percent, sizeof percent, "%3.0f", 100 * place);
    snprintf(line, sizeof line,
             "%s %%  %s examples  %s/s  loss %.4f  gap %.1f  stall %.1f %%  %s left", percent,
             count_text((double)w->seen.n, seen, sizeof seen),
             count_text(w->per_s, rate, sizeof rate), w->loss, f->gap, 100 * stall,
             time_text(place > 0 ? s * (1 - place) / place : -1, left, sizeof left));
    if (!t->is_terminal) {
        fprintf(t->err, "%s\n", line);
        return;
    }
    struct winsize size;
    int columns = ioctl(fileno(t->err), TIOCGWINSZ, &size) == 0 && size.ws_col ? size.ws_col : 80;
    fprintf(t->err, "\r\033[K%.*s", columns - 1, line);
    fflush(t->err);
}

static void end_line(struct trainer *t)
{
    if (t->is_terminal && !t->options->quiet) {
        fputs("\r\033[K", t->err);
        fflush(t->err);
    }
}

/* --- the log --- */

static void log_header(struct trainer *t)
{
    struct json json;
    char text[512], now[32];
    time_t seconds = time(NULL);
    struct tm utc;

    strftime(now, sizeof now, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&seconds, &utc));
    json_begin(&json, t->run_log);
    json_text(&json, "kind", "header");
    json_text(&json, "descant", descant_version());
    json_text(&json, "time", now);
    for (size_t k = 0; k < n_train_settings; k++) {
        const struct setting *s = &train_settings[k];
        setting_text(s, t->options, text, sizeof text);
        if (s->type == SETTING_TEXT || s->type == SETTING_CHOICE)
            json_text(&json, s->name, text);
        else
            json_real(&json, s->name, strtod(text, NULL));
    }
    json_int(&json, "parameters", (int64_t)t->n);
    json_int(&json, "table_parameters", (int64_t)t->n_tables);
    json_end(&json);
}

static void log_interval(struct trainer *t, const struct window *w, const struct figures *f)
{
    struct json json;

    json_begin(&json, t->run_log);
    json_text(&json, "kind", "interval");
    json_int(&json, "rank", t->rank);
    json_int(&json, "examples", (int64_t)w->seen.n);
    json_real(&json, "seconds", seconds_run(t) + get(&t->board->seconds_before));
    json_real(&json, "loss", w->loss);
    json_real(&json, "ne", w->entropy);
    json_real(&json, "examples_per_s", w->per_s);
    json_real(&json, "gap", f->gap);
    json_real(&json, "stall_share", f->stall_s / fmax(worker_seconds(t, f), 1e-9));
    json_real(&json, "distance", f->distance);
    json_real(&json, "age_s", f->age_s);
    if (atomic_load_explicit(&t->board->evals, RELAXED) > 0)
        json_real(&json, "eval_loss", get(&t->board->eval_loss));
    json_end(&json);
    fflush(t->run_log);
}

static void log_open(struct trainer *t)
{
    if (!t->options->log || t->run_log)
        return;
    bool first = !atomic_exchange_explicit(&t->board->logged, 1, RELAXED);
    t->run_log = fopen(t->options->log, first && !t->options->resume ? "we" : "ae");
    if (!t->run_log) {
        board_stop(t->board, STOP_FAILED, "%s: %s", t->options->log, strerror(errno));
        return;
    }
    if (first)
        log_header(t);
}

/* --- what is due --- */

static void look(struct trainer *t, struct window *w)
{
    struct metrics all = board_sum(t->board), part = all;
    uint64_t now = clock_now_ns();

    part.n -= w->seen.n;
    part.positive -= w->seen.positive;
    part.correct -= w->seen.correct;
    part.loss -= w->seen.loss;
    part.predicted -= w->seen.predicted;
    if (part.n) {
        w->loss = metrics_logloss(&part);
        w->entropy = metrics_entropy(&part);
    }
    w->per_s = w->at_ns ? (double)part.n / ((double)(now - w->at_ns) * 1e-9) : 0;
    w->seen = all;
    w->at_ns = now;
}

static void evaluate_now(struct trainer *t, int threads, struct metrics *sum, double *auc)
{
    struct evaluation e = {
        .model = t->model, .w = t->w, .tables = t->tables, .batch = (size_t)t->options->batch,
        .data = train_data(t->options, &t->eval_paths, &t->log), .threads = threads,
        .log = &t->log,
    };
    e.data.epochs = 1;
    e.data.seed = 0;
    if (evaluate(&e, sum, auc) != DESCANT_OK)
        board_stop(t->board, STOP_FAILED, "%s", descant_last_error());
}

/* Keeps the figure, and stops the run where patience is over. */
static void judge(struct trainer *t, double loss)
{
    struct board *b = t->board;
    bool better = !atomic_load_explicit(&b->evals, RELAXED) || loss < get(&b->eval_best);

    put(&b->eval_loss, loss);
    if (better)
        put(&b->eval_best, loss);
    atomic_store_explicit(&b->evals_worse, better ? 0 : atomic_load_explicit(&b->evals_worse, RELAXED) + 1,
                          RELAXED);
    atomic_fetch_add_explicit(&b->evals, 1, RELAXED);
    if (t->options->patience > 0 &&
        atomic_load_explicit(&b->evals_worse, RELAXED) >= (uint32_t)t->options->patience)
        board_stop(b, STOP_EARLY, "no gain in %u evaluations; the best loss was %.5f",
                   atomic_load_explicit(&b->evals_worse, RELAXED), get(&b->eval_best));
}

static void see_to_eval(struct trainer *t)
{
    struct metrics sum;
    uint64_t seen = board_sum(t->board).n;
    double auc;
    uint64_t every = (uint64_t)t->options->eval_every;
    uint64_t at = atomic_load_explicit(&t->board->eval_at, RELAXED);

    if (!t->eval_paths.n || !every || seen / every <= at / every)
        return;
    atomic_store_explicit(&t->board->eval_at, seen, RELAXED);
    evaluate_now(t, 1, &sum, &auc);
    judge(t, metrics_logloss(&sum));
}

static void see_to_checkpoint(struct trainer *t)
{
    uint64_t now = clock_now_ns(), last = atomic_load_explicit(&t->board->checkpoint_ns, RELAXED);

    if (!t->options->checkpoint || !(t->options->checkpoint_every > 0))
        return;
    if (last && (double)(now - last) * 1e-9 < t->options->checkpoint_every)
        return;
    atomic_store_explicit(&t->board->checkpoint_ns, now, RELAXED);
    if (last && checkpoint_write(t) != DESCANT_OK)
        end_line(t), fprintf(t->err, "descant: the checkpoint failed, training goes on: %s\n",
                             descant_last_error());
}

static void report(struct trainer *t, struct window *w, double *logged, double *shown)
{
    double s = seconds_run(t), show_every = t->is_terminal ? 0.2 : 5;
    bool log_due = s - *logged >= t->options->log_every, show_due = s - *shown >= show_every;

    log_open(t);
    if ((t->run_log && log_due) || (!t->options->quiet && show_due)) {
        struct figures f = gather_figures(t);
        look(t, w);
        if (t->run_log && log_due) {
            log_interval(t, w, &f);
            *logged = s;
        }
        if (!t->options->quiet && show_due) {
            show(t, w, &f);
            *shown = s;
        }
    }
    see_to_eval(t);
    see_to_checkpoint(t);
}

static bool rest(struct trainer *t)
{
    struct timespec until;
    bool stop;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += TICK_NS;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&t->monitor_mutex);
    if (!t->monitor_stop)
        pthread_cond_timedwait(&t->monitor_moved, &t->monitor_mutex, &until);
    stop = t->monitor_stop;
    pthread_mutex_unlock(&t->monitor_mutex);
    return !stop;
}

static void *monitor(void *of)
{
    struct trainer *t = of;
    struct window w = {.loss = NAN, .entropy = NAN};
    double logged = 0, shown = 0;

    nn_thread_init();
    while (rest(t)) {
        int signal = atomic_load_explicit(&trainer_signal, RELAXED);
        monitor_publish(t);
        if (signal)
            board_stop(t->board, STOP_SIGNAL, "stopped by signal %d", signal);
        if (board_reports(t->board, t->seat))
            report(t, &w, &logged, &shown);
    }
    return NULL;
}

descant_status monitor_start(struct trainer *t)
{
    t->is_terminal = isatty(fileno(t->err));
    pthread_mutex_init(&t->monitor_mutex, NULL);
    pthread_cond_init(&t->monitor_moved, NULL);
    if (pthread_create(&t->monitor, NULL, monitor, t) != 0)
        return log_fail(&t->log, DESCANT_SYSTEM, "no thread for the reports");
    t->monitor_started = true;
    return DESCANT_OK;
}

void monitor_stop(struct trainer *t)
{
    if (!t->monitor_started)
        return;
    pthread_mutex_lock(&t->monitor_mutex);
    t->monitor_stop = true;
    pthread_cond_signal(&t->monitor_moved);
    pthread_mutex_unlock(&t->monitor_mutex);
    pthread_join(t->monitor, NULL);
    t->monitor_started = false;
    pthread_cond_destroy(&t->monitor_moved);
    pthread_mutex_destroy(&t->monitor_mutex);
    if (t->run_log)
        fclose(t->run_log);
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

static void fill_result(struct trainer *t, double seconds)
{
    struct train_result *r = t->result;
    struct figures f = gather_figures(t);
    double worked = seconds * (double)t->options->workers * (f.trainers ? f.trainers : 1);

    r->seen = board_sum(t->board);
    r->trained = r->seen.n - cell_read(&t->board->before).n;
    r->seconds = seconds;
    r->stall_share = f.stall_s / worked;
    r->copy_share = f.copy_s / worked;
    r->gap_mean = f.gap;
    r->gap_max = f.gap_max;
    r->age_s = f.age_s;
    r->distance = f.distance;
    r->shadow_cpu_share = f.shadow_cpu_s / (seconds * (f.trainers ? f.trainers : 1));
    r->rounds = f.rounds;
    r->bytes = f.bytes;
    r->lines = f.lines;
    r->bad = f.bad;
    r->stop = (int)board_stopped(t->board);
    r->trainers = f.trainers;
    r->memory_mb = memory_mb();
    r->auc = r->eval_loss = r->eval_entropy = r->eval_accuracy = r->eval_calibration = NAN;
}

static void final_eval(struct trainer *t)
{
    struct train_result *r = t->result;
    struct metrics sum;

    if (!t->eval_paths.n || r->stop == STOP_SIGNAL || r->stop == STOP_NAN ||
        r->stop == STOP_FAILED)
        return;
    evaluate_now(t, (int)t->options->workers, &sum, &r->auc);
    r->eval_n = sum.n;
    r->eval_loss = metrics_logloss(&sum);
    r->eval_entropy = metrics_entropy(&sum);
    r->eval_accuracy = metrics_accuracy(&sum);
    r->eval_calibration = metrics_calibration(&sum);
}

static void row(FILE *out, const char *name, double value, const char *format)
{
    char text[64];
    if (!isfinite(value))
        return;
    snprintf(text, sizeof text, format, value);
    fprintf(out, "  %-26s %s\n", name, text);
}

static void print_summary(struct trainer *t)
{
    const struct train_result *r = t->result;
    const char *why = board_why(t->board);
    bool classes = model_outputs(t->model) > 1;

    fprintf(t->out, "%s under %s: %d trainers x %d workers\n", model_names[t->options->model],
            t->options->sync, r->trainers, (int)t->options->workers);
    row(t->out, "examples", (double)r->seen.n, "%.0f");
    row(t->out, "seconds", r->seconds, "%.1f");
    row(t->out, "examples/s", (double)r->trained / r->seconds, "%.0f");
    row(t->out, "loss while training", metrics_logloss(&r->seen), "%.5f");
    row(t->out, classes ? "accuracy while training" : "normalised entropy",
        classes ? metrics_accuracy(&r->seen) : metrics_entropy(&r->seen), "%.5f");
    row(t->out, "held-out loss", r->eval_loss, "%.5f");
    if (!classes) {
        row(t->out, "held-out entropy", r->eval_entropy, "%.5f");
        row(t->out, "held-out AUC", r->auc, "%.5f");
        row(t->out, "held-out calibration", r->eval_calibration, "%.4f");
    }
    row(t->out, "held-out accuracy", r->eval_accuracy, "%.4f");
    row(t->out, "stall", 100 * r->stall_share, "%.2f %%");
    row(t->out, "steps between merges", r->gap_mean, "%.1f");
    row(t->out, "shadow's share of a core", 100 * r->shadow_cpu_share, "%.2f %%");
    if (r->bad)
        row(t->out, "bad lines skipped", (double)r->bad, "%.0f");
    row(t->out, "memory of a trainer", r->memory_mb, "%.0f MB");
    if (*why)
        fprintf(t->out, "  %s\n", why);
    fflush(t->out);
}

static void log_summary(struct trainer *t)
{
    const struct train_result *r = t->result;
    struct json json;

    log_open(t);
    if (!t->run_log)
        return;
    json_begin(&json, t->run_log);
    json_text(&json, "kind", "summary");
    json_int(&json, "examples", (int64_t)r->seen.n);
    json_real(&json, "seconds", r->seconds + get(&t->board->seconds_before));
    json_real(&json, "loss", metrics_logloss(&r->seen));
    json_real(&json, "ne", metrics_entropy(&r->seen));
    json_real(&json, "examples_per_s", (double)r->trained / r->seconds);
    json_real(&json, "stall_share", r->stall_share);
    json_real(&json, "gap_mean", r->gap_mean);
    json_real(&json, "eval_loss", r->eval_loss);
    json_real(&json, "eval_ne", r->eval_entropy);
    json_real(&json, "auc", r->auc);
    json_real(&json, "eval_accuracy", r->eval_accuracy);
    json_real(&json, "memory_mb", r->memory_mb);
    json_text(&json, "stopped", board_why(t->board));
    json_end(&json);
    fclose(t->run_log);
    t->run_log = NULL;
}

void monitor_summary(struct trainer *t, double seconds)
{
    end_line(t);
    fill_result(t, seconds);
    final_eval(t);
    log_summary(t);
    print_summary(t);
}
