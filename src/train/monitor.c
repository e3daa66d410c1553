/* SPDX-License-Identifier: MIT */
/* The threads beside the workers. The monitor puts this trainer's figures into its seat,
 * and, in the trainer that reports (the lowest seat alive), shows the progress and writes
 * the log. A second thread, the keeper, makes checkpoints and evaluations when they are
 * due. These may take long; progress and log go on meanwhile. Workers never wait for
 * either: a copy of the model is evaluated, and an evaluation that goes on as training
 * ends is given up. The keeper hands figures to the monitor (news.c). When the reporter
 * dies, the next one goes on within a tenth of a second.
 *
 * The first of several hosts shows and logs all of them (whole.c), and goes on with that
 * while its finish waits for the others.
 *
 * A checkpoint that is under way as the run ends is written to its end, for until the
 * last checkpoint is whole it is the newest. */
#include "train/monitor.h"

#include "nn/loops.h"
#include "run/limits.h"
#include "run/signals.h"
#include "run/tick.h"
#include "train/bsp.h"

#include <limits.h>
#include <math.h>
#include <signal.h>
#include <string.h>

#define TICK_NS 100000000u
#define LEAST_TICK_NS 1000000u
#define RELAXED memory_order_relaxed

enum { WIDE_LINE = 90 };        /* columns that a progress line may take */

void monitor_publish(struct trainer *t)
{
    struct descant_stats s;
    struct seat *seat = t->seat;

    if (descant_stats(t->job, &s) != DESCANT_OK)
        return;
    put(&seat->merged_steps, s.gap_mean * (double)s.rounds);
    put(&seat->stall_ns,
        (double)s.stall_ns + (double)atomic_load_explicit(&t->gather_ns, RELAXED));
    put(&seat->age_s, s.age_s);
    put(&seat->exchange_s, s.exchange_p99_s);
    put(&seat->distance, s.distance);
    put(&seat->shadow_cpu_s, s.shadow_cpu_s);
    put(&seat->rows_sent, (double)s.rows_sent);
    put(&seat->rows_waiting, (double)s.rows_waiting);
    put(&seat->rows_age_s, s.rows_age_s);
    put(&seat->rows_stall_ns, (double)s.rows_stall_ns);
    put(&seat->rows_served, (double)s.rows_served);
    put(&seat->rounds, (double)s.rounds);
    put(&seat->missed, (double)s.missed);
    put(&seat->own_steps, (double)s.merged);
    atomic_store_explicit(&seat->steps, s.steps, RELAXED);
}

/* --- the progress line --- */

/* The monitor's state between two looks. */
struct watch {
    struct window shown;
    double logged_s;            /* when, last */
    struct metrics of_all;      /* of all hosts, as they were shown last */
    double loss_of_all;         /* between the last two such looks; NaN: not known */
};

/* The job's loss between two looks at all hosts, whose figures come once a second. */
static double loss_of_all(struct watch *watch, const struct whole *all)
{
    struct metrics part = all->seen;

    if (all->seen.n < watch->of_all.n)          /* a host has begun anew */
        watch->of_all = all->seen;
    metrics_drop(&part, &watch->of_all);
    if (part.n)
        watch->loss_of_all = metrics_logloss(&part);
    watch->of_all = all->seen;
    return watch->loss_of_all;
}

/* The figures of how far apart the trainers are, or, of several hosts, the hosts. */
static void say_pace(const struct trainer *t, const struct train_figures *f, bool of_all,
                     char *pace, size_t room)
{
    double lag = f->gradients ? (double)f->lag / (double)f->gradients : 0;
    double stall = 100 * f->stall_share;
    char refused[32], gap[32] = "-";

    if (f->rounds > 0)
        snprintf(gap, sizeof gap, "%.*f", f->gap < 99.95, f->gap);
    if (t->bsp)                 /* how old gradients are, and how many were refused */
        snprintf(pace, room, "lag %.*f  refused %s", lag < 9.95, lag,
                 count_text((double)(f->stale + f->not_finite), refused, sizeof refused));
    else if (of_all)
        whole_text(&t->whole, pace, room);
    else
        snprintf(pace, room, "gap %s  stall %.*f %%", gap, stall < 9.95, stall);
}

/* Whatever the figures, it fits into 80 columns; in more of them it has a longer word, in
 * fewer the last figures are left out. */
static void show(struct trainer *t, struct watch *watch, const struct train_figures *f)
{
    const struct window *w = &watch->shown;
    const struct whole *all = whole_look(t) ? &t->whole : NULL;
    char rate[32], remaining[32], seen[32], line[240], percent[16] = " ?";
    char loss[16] = "?", pace[96];
    double n = all ? (double)all->seen.n : (double)w->seen.n;
    double per_s = all ? all->lately : w->per_s;
    double mean = all ? loss_of_all(watch, all) : w->loss;
    double place = all ? all->place : feed_place(t->feed);
    double left = all ? all->left_s : whole_left(t);
    int columns = progress_columns(&t->progress);

    if (place >= 0)
        snprintf(percent, sizeof percent, "%2.0f", 100 * place);
    if (!isnan(mean))
        snprintf(loss, sizeof loss, "%.4f", mean);
    say_pace(t, f, all, pace, sizeof pace);
    snprintf(line, sizeof line, "%s %%  %s %s  %s/s  loss %s  %s  %s left", percent,
             count_text(n, seen, sizeof seen), columns < WIDE_LINE ? "seen" : "examples",
             count_text(per_s, rate, sizeof rate), loss, pace,
             time_text(left, remaining, sizeof remaining));
    progress_show(&t->progress, line);
}

/* --- due work --- */

/* An evaluation beside training is of no use after it: the final one follows. */
static bool is_late(void *of)
{
    struct trainer *t = of;
    pthread_mutex_lock(&t->monitor_mutex);
    bool stop = t->monitor_stop;
    pthread_mutex_unlock(&t->monitor_mutex);
    return trainer_heed(t) || stop;
}

static bool wants_evals(const struct trainer *t)
{
    return t->eval_paths.n && t->options->eval_every && others_is_first(t);
}

static void see_to_eval(struct trainer *t)
{
    struct held_out h = {.at = whole_sum(t).n};
    uint64_t every = (uint64_t)t->options->eval_every;
    uint64_t at = atomic_load_explicit(&t->board->eval_at, RELAXED);

    if (!wants_evals(t) || !due_by_count(every, at, h.at))
        return;
    h.seconds = figures_seconds(t) + get(&t->board->seconds_before);
    atomic_store_explicit(&t->board->eval_at, h.at, RELAXED);
    struct place *place = trainer_keeps_best(t) ? save_place(t) : NULL;
    /* one version of the model, or the replica within the moment that a copy takes */
    const float *w = t->bsp ? bsp_look(t) : t->eval_w;
    if (!t->bsp)
        loops_best()->add(t->eval_w, t->w, t->n, 1, 0);
    if (judge_model(t, w, 1, is_late, &h)) {
        news_eval(t, &h);
        judge_best(t, &h, place, w);
        judge_patience(t);
    }
    bsp_let_go(t->bsp);
    memory_give(place);
}

/* The pace of examples: how many were seen, and when. */
struct pace {
    uint64_t seen, ns;
};

/* The time until the next look, so that an evaluation begins when it is due, and not a
 * tick later. */
static uint32_t keeper_tick(struct trainer *t, struct pace *pace)
{
    uint64_t every = (uint64_t)t->options->eval_every;
    struct pace now = {whole_sum(t).n, clock_now_ns()};

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
    uint64_t now = clock_now_ns(),
             last = atomic_load_explicit(&t->board->checkpoint_ns, RELAXED);

    if (!t->options->checkpoint ||
        (last && !due_by_time(t->options->checkpoint_every, last, now)) || save_waits(t))
        return;
    atomic_store_explicit(&t->board->checkpoint_ns, now, RELAXED);
    if (last && save_checkpoint(t) != DESCANT_OK)
        news_failed_checkpoint(t);
}

/* The signal may be a launcher's that ends the job after a rank's death: then no last
 * round ends, the shadow may be in MPI for ever, with the outer state, and the launcher
 * leaves a second or so. */
static void see_to_signal(struct trainer *t)
{
    enum board_stop stop = board_stopped(t->board);

    if (!t->options->watched || !t->options->checkpoint || t->kept_at_signal ||
        !signals_heard() || !board_reports(t->board, t->seat) ||
        stop == STOP_NAN || stop == STOP_FAILED)
        return;
    t->kept_at_signal = t->in_haste = true;
    save_checkpoint(t);
    t->in_haste = false;
}

static void report(struct trainer *t, struct watch *w)
{
    double s = figures_seconds(t);

    train_log_open(t);
    bool show_due = others_is_first(t) && progress_due(&t->progress);
    bool log_due = t->run_log.file && s - w->logged_s >= t->options->log_every;
    if (!log_due && !show_due)
        return;
    struct train_figures f = figures_gather(t, s);
    if (log_due) {
        train_log_interval(t, &f, s);
        train_log_whole(t, s);
        w->logged_s = s;
    }
    if (show_due) {
        window_look(&w->shown, t);
        show(t, w, &f);
    }
}

static bool rest(struct trainer *t, uint32_t ns)
{
    pthread_mutex_lock(&t->monitor_mutex);
    if (!t->monitor_stop)
        tick_wait(&t->monitor_moved, &t->monitor_mutex, ns);
    bool stop = t->monitor_stop;
    pthread_mutex_unlock(&t->monitor_mutex);
    return !stop;
}

static void *monitor(void *of)
{
    struct trainer *t = of;
    struct watch w = {.shown = {.loss = NAN}, .loss_of_all = NAN};

    nn_thread_init();
    window_look(&w.shown, t);
    while (rest(t, TICK_NS)) {
        double place = feed_place(t->feed);
        if (!t->place_from_ns && place >= 0) {
            t->place_from = place;
            t->place_from_ns = clock_now_ns();
        }
        monitor_publish(t);
        whole_show(t);
        trainer_heed(t);
        news_take(t);
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
    struct pace pace = {whole_sum(t).n, clock_now_ns()};

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

/* Beside the finish: the first host shows and logs the hosts that it waits for. */
static void *wait_for_others(void *of)
{
    struct trainer *t = of;
    struct watch w = {.loss_of_all = NAN, .logged_s = figures_seconds(t)};

    while (rest(t, TICK_NS)) {
        double s = figures_seconds(t);
        whole_show(t);          /* since when it waits */
        if (!others_is_first(t) || !board_reports(t->board, t->seat))
            continue;
        if (progress_due(&t->progress) && whole_look(t)) {
            struct train_figures f = figures_gather(t, s);
            show(t, &w, &f);
        }
        if (s - w.logged_s >= t->options->log_every) {
            train_log_open(t);
            train_log_whole(t, s);
            w.logged_s = s;
        }
    }
    return NULL;
}

void monitor_wait(struct trainer *t)
{
    if (!t->deals)
        return;
    t->monitor_stop = false;
    pthread_mutex_init(&t->monitor_mutex, NULL);
    tick_init(&t->monitor_moved);
    t->monitor_started = pthread_create(&t->monitor, NULL, wait_for_others, t) == 0;
}

descant_status monitor_start(struct trainer *t)
{
    t->monitor_stop = false;
    pthread_mutex_init(&t->monitor_mutex, NULL);
    tick_init(&t->monitor_moved);
    t->monitor_started = pthread_create(&t->monitor, NULL, monitor, t) == 0;
    t->keeper_started =
        t->monitor_started && pthread_create(&t->keeper, NULL, keeper, t) == 0;
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
    news_take(t);
    t->monitor_started = t->keeper_started = false;
    pthread_cond_destroy(&t->monitor_moved);
    pthread_mutex_destroy(&t->monitor_mutex);
    run_log_close(&t->run_log);
}
