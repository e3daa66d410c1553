/* SPDX-License-Identifier: MIT */
/* The threads beside the workers. The monitor puts this trainer's figures into its seat, and, in
 * the trainer that reports (the lowest seat alive), shows the progress and writes the log. A second
 * one, the keeper, sees to checkpoints and evaluations when they are due, which may take long:
 * progress and log go on meanwhile. Workers never wait for either: what an evaluation is of is copied
 * beside them, and one that goes on as training ends is given up. The keeper hands figures to the
 * monitor, whose the log is. When the reporter dies, the next
 * one goes on within a tenth of a second.
 *
 * A signal is for all trainers, and is heeded by whoever sees it first: the monitor, a worker
 * between two batches, the reader, an evaluation. A checkpoint under way thus delays nobody; it
 * is written to its end, for until the last one is whole it is the newest there is. */
#include "train/monitor.h"

#include "nn/loops.h"
#include "train/bsp.h"
#include "train/tick.h"

#include <limits.h>
#include <math.h>
#include <signal.h>
#include <string.h>

#define TICK_NS 100000000u
#define LEAST_TICK_NS 1000000u
#define RELAXED memory_order_relaxed

enum { WIDE_LINE = 90 };        /* columns that a progress line may take */
enum { EVAL_BATCH = 512 };

void monitor_publish(struct trainer *t)
{
    struct descant_stats s;
    struct seat *seat = t->seat;

    if (descant_stats(t->job, &s) != DESCANT_OK)
        return;
    put(&seat->merged_steps, s.gap_mean * (double)s.rounds);
    put(&seat->gap_max, (double)s.gap_max);
    put(&seat->stall_ns, (double)s.stall_ns + (double)atomic_load_explicit(&t->gather_ns, RELAXED));
    put(&seat->copy_ns, (double)s.copy_ns);
    put(&seat->age_s, s.age_s);
    put(&seat->exchange_s, s.exchange_p99_s);
    put(&seat->distance, s.distance);
    put(&seat->shadow_cpu_s, s.shadow_cpu_s);
    put(&seat->bytes, (double)s.bytes);
    put(&seat->rows_sent, (double)s.rows_sent);
    put(&seat->rows_waiting, (double)s.rows_waiting);
    put(&seat->rows_age_s, s.rows_age_s);
    put(&seat->rounds, (double)s.rounds);
    atomic_store_explicit(&seat->steps, s.steps, RELAXED);
}

/* --- the progress line --- */

static const char *time_text(double s, char *text, size_t room)
{
    if (!(s >= 0 && s < 3600e6)) {
        snprintf(text, room, "?");
        return text;
    }
    int all = (int)fmin(ceil(s), 3600);
    if (all < 3600)
        snprintf(text, room, "%d:%02d", all / 60, all % 60);
    else if (s < 48 * 3600)
        snprintf(text, room, "%.1f h", s / 3600);
    else
        snprintf(text, room, "%.0f days", s / 24 / 3600);
    return text;
}

/* What the monitor keeps between two looks. */
struct watch {
    struct window shown;
    double logged_s, shown_s;   /* when, last */
    double from_place;          /* in the data, when it was first known, */
    uint64_t from_ns;           /* at this time; 0: not yet. A resumed run does not begin at 0 */
};

static void mark_begin(const struct trainer *t, struct watch *w)
{
    double place = feed_place(t->feed);

    if (w->from_ns || place < 0)
        return;
    w->from_place = place;
    w->from_ns = clock_now_ns();
}

/* At the pace so far; negative: not known. */
static double seconds_left(const struct watch *w, double place)
{
    double done = place - w->from_place;
    return w->from_ns && done > 0
               ? (double)(clock_now_ns() - w->from_ns) * 1e-9 * (1 - place) / done
               : -1;
}

static const char *gap_text(const struct trainer *t, const struct figures *f, char *text,
                            size_t room)
{
    char gap[32] = "-";
    double stall = 100 * figures_stall(t, f);
    if (f->rounds > 0)
        snprintf(gap, sizeof gap, "%.*f", f->gap < 99.95, f->gap);
    snprintf(text, room, "gap %s  stall %.*f %%", gap, stall < 9.95, stall);
    return text;
}

/* Under the plan bsp: how old gradients are, and how many were refused. */
static const char *lag_text(const struct figures *f, char *text, size_t room)
{
    char refused[32];
    double lag = f->gradients ? (double)f->lag / (double)f->gradients : 0;
    snprintf(text, room, "lag %.*f  refused %s", lag < 9.95, lag,
             count_text((double)(f->stale + f->not_finite), refused, sizeof refused));
    return text;
}

/* How much of the line is in fewer columns: figures, two spaces between them, are not cut. */
static int whole_figures(const char *line, int columns)
{
    int length = (int)strlen(line), n = length < columns ? length : columns - 1;

    for (int k = n; n < length && k > 0; k--)
        if (line[k] == ' ' && line[k + 1] == ' ')
            return k;
    return n;
}

/* Whatever the figures, it fits into 80 columns; in more of them it has a longer word, in fewer
 * the last figures are left out. */
static void show(struct trainer *t, const struct watch *watch, const struct figures *f)
{
    const struct window *w = &watch->shown;
    char rate[32], left[32], seen[32], line[240], percent[16] = " ?";
    char loss[16] = "?", pace[64];
    double place = feed_place(t->feed);
    int columns = t->is_terminal ? shown_columns(t->err) : INT_MAX;

    if (place >= 0)
        snprintf(percent, sizeof percent, "%2.0f", 100 * place);
    if (!isnan(w->loss))
        snprintf(loss, sizeof loss, "%.4f", w->loss);
    snprintf(line, sizeof line, "%s %%  %s %s  %s/s  loss %s  %s  %s left",
             percent, count_text((double)w->seen.n, seen, sizeof seen),
             columns < WIDE_LINE ? "seen" : "examples", count_text(w->per_s, rate, sizeof rate),
             loss, t->bsp ? lag_text(f, pace, sizeof pace) : gap_text(t, f, pace, sizeof pace),
             time_text(seconds_left(watch, place), left, sizeof left));
    if (t->is_terminal)
        shown_clear_line(t->err);
    fprintf(t->err, t->is_terminal ? "%.*s" : "%.*s\n", whole_figures(line, columns), line);
    fflush(t->err);
}

void monitor_end_line(struct trainer *t)
{
    if (t->is_terminal && !t->options->quiet)
        shown_clear_line(t->err);
}

/* --- what is due --- */

bool monitor_heed(void *of)
{
    struct trainer *t = of;
    int signal = atomic_load_explicit(&trainer_signal, RELAXED);

    if (signal && board_signalled(t->board, signal)) {
        const char *name = signal == SIGINT ? "SIGINT" : "SIGTERM";
        monitor_end_line(t);
        if (t->host > 0)
            log_say(&t->log, DESCANT_WARNING, "%s: this host stops training its part of the data; "
                    "hosts without a signal go on", name);
        else
            fprintf(t->err, "descant: %s: the run ends%s; another one, more than a second "
                    "later, ends it at once\n", name,
                    !t->options->checkpoint ? ""
                    : t->options->watched   ? " with a last checkpoint, which is written now if the "
                                              "launcher leaves the time"
                                            : " with a last checkpoint");
        fflush(t->err);
    }
    enum board_stop stop = board_stopped(t->board);
    return signal || stop == STOP_SIGNAL || stop == STOP_NAN || stop == STOP_FAILED;
}

static bool is_stopping(struct trainer *t)
{
    pthread_mutex_lock(&t->monitor_mutex);
    bool stop = t->monitor_stop;
    pthread_mutex_unlock(&t->monitor_mutex);
    return stop;
}

/* An evaluation beside training is of no use after it: the final one follows. */
static bool is_late(void *of)
{
    return monitor_heed(of) || is_stopping(of);
}

/* The dense part that an evaluation beside training looks at: one version of the model under the plan
 * bsp, else the replica as it is within the moment that a copy takes. */
static const float *copy_dense(struct trainer *t)
{
    if (t->bsp)
        return bsp_look(t);
    loops_best()->add(t->eval_w, t->w, t->n, 1, 0);
    return t->eval_w;
}

static bool evaluate_model(struct trainer *t, const float *w, int threads,
                           bool (*stopped)(void *of), struct held_out *h)
{
    struct evaluation e = {
        .model = t->model, .w = w, .tables = t->tables, .batch = EVAL_BATCH,
        .data = train_data(t->options, &t->eval_paths, &t->log), .threads = threads,
        .stopped = stopped, .of = t, .log = &t->log,
    };
    struct metrics sum;
    double auc;

    e.data.epochs = 1;
    e.data.seed = 0;
    e.data.said = &t->board->eval_said;
    descant_status status = evaluate(&e, &sum, &auc);
    if (status != DESCANT_OK)
        board_stop(t->board, STOP_FAILED, "%s", descant_last_error());
    held_out_set(h, &sum, auc);
    return status == DESCANT_OK && !stopped(t);
}

bool monitor_evaluate(struct trainer *t, struct held_out *h)
{
    return evaluate_model(t, t->w, (int)t->options->workers, monitor_heed, h);
}

bool monitor_keeps_best(const struct trainer *t)
{
    return t->options->patience > 0 && t->options->checkpoint;
}

/* The run goes on, and its log has it. */
static void note_failed_checkpoint(struct trainer *t)
{
    if (!t->monitor_started) {      /* at the end there is no monitor */
        run_log_checkpoint(t, descant_last_error());
        return;
    }
    monitor_end_line(t);
    fputs("descant: this checkpoint failed; training goes on\n", t->err);
    pthread_mutex_lock(&t->monitor_mutex);
    snprintf(t->checkpoint_why, sizeof t->checkpoint_why, "%s", descant_last_error());
    pthread_mutex_unlock(&t->monitor_mutex);
}

bool monitor_judge(struct trainer *t, const struct held_out *h, const struct place *place,
                   const float *w)
{
    struct board *b = t->board;
    double best = get(&b->eval_best);
    uint64_t best_at = atomic_load_explicit(&b->best_at, RELAXED);

    if (atomic_load_explicit(&b->evals, RELAXED) && !(h->loss < best))
        return false;
    put(&b->eval_best, h->loss);
    atomic_store_explicit(&b->best_at, h->at, RELAXED);
    if (monitor_keeps_best(t) && checkpoint_write_best(t, place, w) != DESCANT_OK) {
        put(&b->eval_best, best);               /* that of the file, which has stayed */
        atomic_store_explicit(&b->best_at, best_at, RELAXED);
        note_failed_checkpoint(t);
        return true;
    }
    atomic_store(&b->best_kept, monitor_keeps_best(t));
    atomic_store_explicit(&b->evals, 1, RELAXED);
    return true;
}

/* Stops the run where patience is over. */
static void count_worse(struct trainer *t, bool better)
{
    struct board *b = t->board;
    uint32_t worse = better ? 0 : atomic_load_explicit(&b->evals_worse, RELAXED) + 1;

    atomic_store_explicit(&b->evals_worse, worse, RELAXED);
    if (t->options->patience > 0 && worse >= (uint32_t)t->options->patience)
        board_stop(b, STOP_EARLY, "no gain in %u evaluation%s; the best loss was %.5f, at %llu "
                   "examples", worse, worse == 1 ? "" : "s", get(&b->eval_best),
                   (unsigned long long)atomic_load_explicit(&b->best_at, RELAXED));
}

/* To the monitor, which takes them within a tick, unless a disk holds it up for very long. */
static void hand_over(struct trainer *t, const struct held_out *h)
{
    pthread_mutex_lock(&t->monitor_mutex);
    if (t->n_points < TRAIN_POINTS)
        t->points[t->n_points++] = *h;
    pthread_mutex_unlock(&t->monitor_mutex);
}

static void take_news(struct trainer *t)
{
    struct held_out points[TRAIN_POINTS];
    char text[160], why[sizeof t->checkpoint_why];

    pthread_mutex_lock(&t->monitor_mutex);
    int n = t->n_points;
    memcpy(points, t->points, (size_t)n * sizeof *points);
    memcpy(why, t->checkpoint_why, sizeof why);
    t->n_points = 0;
    *t->checkpoint_why = 0;
    pthread_mutex_unlock(&t->monitor_mutex);
    if (*why)
        run_log_checkpoint(t, why);
    for (int k = 0; k < n; k++) {
        run_log_open(t);
        if (t->run_log)
            run_log_written(t, held_out_log(t->run_log, &points[k]));
        if (t->options->quiet)
            continue;
        monitor_end_line(t);
        fprintf(t->err, "%s\n", held_out_text(&points[k], text, sizeof text));
    }
}

static bool wants_evals(const struct trainer *t)
{
    return t->host == 0 && t->eval_paths.n && t->options->eval_every;
}

static void see_to_eval(struct trainer *t)
{
    struct held_out h = {.at = board_sum(t->board).n};
    uint64_t every = (uint64_t)t->options->eval_every;
    uint64_t at = atomic_load_explicit(&t->board->eval_at, RELAXED);

    if (!wants_evals(t) || h.at / every <= at / every)
        return;
    h.seconds = figures_seconds(t) + get(&t->board->seconds_before);
    atomic_store_explicit(&t->board->eval_at, h.at, RELAXED);
    struct place *place = monitor_keeps_best(t) ? checkpoint_place(t) : NULL;
    const float *w = copy_dense(t);
    if (evaluate_model(t, w, 1, is_late, &h)) {
        hand_over(t, &h);
        count_worse(t, monitor_judge(t, &h, place, w));
    }
    bsp_let_go(t->bsp);
    memory_give(place);
}

/* How fast examples come. */
struct pace {
    uint64_t seen, ns;
};

/* Until the next look: an evaluation is to begin where it is due, not a tick later. */
static uint32_t keeper_tick(struct trainer *t, struct pace *pace)
{
    uint64_t every = (uint64_t)t->options->eval_every;
    struct pace now = {board_sum(t->board).n, clock_now_ns()};

    if (!wants_evals(t) || !board_reports(t->board, t->seat))
        return TICK_NS;
    if (now.seen <= pace->seen || now.ns <= pace->ns)
        return 10 * LEAST_TICK_NS;      /* it begins, or waits for data */
    double each_ns = (double)(now.ns - pace->ns) / (double)(now.seen - pace->seen);
    double wait_ns = each_ns * (double)(every - now.seen % every);
    *pace = now;
    return (uint32_t)fmin(fmax(wait_ns, LEAST_TICK_NS), TICK_NS);
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
        note_failed_checkpoint(t);
}

/* The signal may be a launcher's that ends the job after a rank's death: then no last round ends,
 * the shadow may be in MPI for ever, with the outer state, and the launcher leaves a second or so. */
static void see_to_signal(struct trainer *t)
{
    enum board_stop stop = board_stopped(t->board);

    if (!t->options->watched || !t->options->checkpoint || t->kept_at_signal ||
        !atomic_load_explicit(&trainer_signal, RELAXED) || !board_reports(t->board, t->seat) ||
        stop == STOP_NAN || stop == STOP_FAILED)
        return;
    t->kept_at_signal = t->in_haste = true;
    checkpoint_write(t);
    t->in_haste = false;
}

static void report(struct trainer *t, struct watch *w)
{
    double s = figures_seconds(t), show_every = t->is_terminal ? 0.2 : 5;
    bool log_due, shows = t->host == 0 && !t->options->quiet;
    bool show_due = shows && s - w->shown_s >= show_every;

    run_log_open(t);
    log_due = t->run_log && s - w->logged_s >= t->options->log_every;
    if (log_due || show_due) {
        struct figures f = figures_gather(t);
        if (log_due) {
            run_log_interval(t, &f, s);
            w->logged_s = s;
        }
        if (show_due) {
            window_look(&w->shown, t);
            show(t, w, &f);
            w->shown_s = s;
        }
    }
}

static bool rest(struct trainer *t, uint32_t ns)
{
    bool stop;

    pthread_mutex_lock(&t->monitor_mutex);
    if (!t->monitor_stop)
        tick_wait(&t->monitor_moved, &t->monitor_mutex, ns);
    stop = t->monitor_stop;
    pthread_mutex_unlock(&t->monitor_mutex);
    return !stop;
}

static void *monitor(void *of)
{
    struct trainer *t = of;
    struct watch w = {.shown = {.loss = NAN}};

    nn_thread_init();
    window_look(&w.shown, t);
    while (rest(t, TICK_NS)) {
        mark_begin(t, &w);
        monitor_publish(t);
        monitor_heed(t);
        take_news(t);
        if (!board_reports(t->board, t->seat))
            window_look(&w.shown, t);       /* an heir goes on from where it takes over */
        else
            report(t, &w);
    }
    return NULL;
}

static void *keeper(void *of)
{
    struct trainer *t = of;

    struct pace pace = {board_sum(t->board).n, clock_now_ns()};

    nn_thread_init();
    while (rest(t, keeper_tick(t, &pace)))
        if (board_reports(t->board, t->seat) && bsp_ready(t->bsp)) {
            see_to_signal(t);
            see_to_eval(t);
            see_to_checkpoint(t);
        }
    see_to_signal(t);
    return NULL;
}

descant_status monitor_start(struct trainer *t)
{
    t->monitor_stop = false;
    pthread_mutex_init(&t->monitor_mutex, NULL);
    tick_init(&t->monitor_moved);
    t->monitor_started = pthread_create(&t->monitor, NULL, monitor, t) == 0;
    t->keeper_started = t->monitor_started && pthread_create(&t->keeper, NULL, keeper, t) == 0;
    return t->keeper_started ? DESCANT_OK : log_fail(&t->log, DESCANT_SYSTEM,
                                                     "no thread for the reports");
}

void monitor_stop(struct trainer *t)
{
    if (!t->monitor_started)
        return;
    pthread_mutex_lock(&t->monitor_mutex);
    t->monitor_stop = true;
    pthread_cond_broadcast(&t->monitor_moved);
    pthread_mutex_unlock(&t->monitor_mutex);
    if (t->keeper_started)
        pthread_join(t->keeper, NULL);
    pthread_join(t->monitor, NULL);
    take_news(t);
    t->monitor_started = t->keeper_started = false;
    pthread_cond_destroy(&t->monitor_moved);
    pthread_mutex_destroy(&t->monitor_mutex);
    run_log_close(t);
}
