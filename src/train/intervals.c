/* SPDX-License-Identifier: MIT */
/* The log of a machine's trainers: a header, intervals, evaluations, checkpoints that
 * failed and, in the log of the first of several hosts, the figures of all hosts. Only
 * the trainer that reports comes here, its monitor while it trains and its main thread
 * after; the summary is summary.c's.
 *
 * The log is one file, which goes on when the reporter dies: the sums up to its last
 * interval lie on the board (`logged` and its neighbours), so that the next reporter's
 * first interval begins where the last one ended. They are stored before the line is
 * written. A reporter that dies in between leaves an interval out, and none twice.
 *
 * A new key of an interval needs a place in src/report/log.c, if the report is to show
 * it. */
#include "run/summary.h"
#include "train/monitor.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#define RELAXED memory_order_relaxed

/* The time of the last interval; of the run's beginning, where there was none. */
static uint64_t logged_ns(const struct board *b)
{
    uint64_t since = atomic_load_explicit(&b->logged_ns, RELAXED);
    return since ? since : atomic_load_explicit(&b->started_ns, RELAXED);
}

/* The growth of a figure since the last interval. */
static uint64_t lately(_Atomic uint64_t *logged, uint64_t now)
{
    return now - atomic_exchange_explicit(logged, now, RELAXED);
}

/* The same of a sum that may fall: a seat that is taken anew counts from 0. */
static double grown(_Atomic double *logged, double now)
{
    return fmax(now - atomic_exchange_explicit(logged, now, RELAXED), 0);
}

/* Of the interval, which took so long; distance and age are those of the last merge. */
static void log_sync(struct trainer *t, struct json *json, const struct train_figures *f,
                     double took_s)
{
    struct board *b = t->board;
    double merges = grown(&b->sync_logged.merges, f->merges);
    double steps = grown(&b->sync_logged.merged_steps, f->merged_steps);
    double stall_s = grown(&b->sync_logged.stall_s, f->stall_s);
    double workers = (double)t->options->workers * (f->trainers ? f->trainers : 1);

    json_real(json, "rounds", merges / fmax(f->trainers, 1));
    if (f->missed > 0)
        json_real(json, "missed",
                  grown(&b->sync_logged.missed, f->missed) / fmax(f->trainers, 1));
    json_real(json, "gap", merges > 0 ? steps / merges : (double)NAN);
    json_real(json, "stall_share", stall_s / fmax(took_s * workers, 1e-9));
    json_real(json, "distance", merged(f->distance, f->rounds));
    json_real(json, "age_s", merged(f->age_s, f->rounds));
    if (f->rows_sent > 0) {
        json_real(json, "rows_sent", grown(&b->sync_logged.rows_sent, f->rows_sent));
        json_real(json, "rows_waiting", f->rows_waiting);
        json_real(json, "rows_age_s", f->rows_age_s);
    }
    if (t->owned)
        json_real(json, "stall_rows",
                  grown(&b->sync_logged.rows_stall_s, f->rows_stall_s) /
                      fmax(took_s * workers, 1e-9));
}

/* The same of the plan bsp: all keys are of the interval alone. */
static void log_bsp(struct trainer *t, struct json *json, const struct train_figures *f)
{
    struct board *b = t->board;
    uint64_t gradients = lately(&b->bsp_logged.gradients, f->gradients);
    uint64_t lag = lately(&b->bsp_logged.lag, f->lag);
    uint64_t most = atomic_exchange_explicit(&b->bsp.lag_lately, 0, RELAXED);

    json_int(json, "supersteps",
             (int64_t)lately(&b->bsp_logged.supersteps, f->supersteps));
    json_int(json, "gradients", (int64_t)gradients);
    const struct lags lags = {
        .mean = lag_mean(lag, gradients), .most = gradients ? (double)most : (double)NAN,
        .stale = lately(&b->bsp_logged.stale, f->stale),
        .not_finite = lately(&b->bsp_logged.not_finite, f->not_finite),
    };
    lags_json(json, &lags);
}

/* f: as figures_gather has just made them. Moves the board's marks up to now. */
void train_log_interval(struct trainer *t, const struct train_figures *f, double seconds)
{
    struct board *b = t->board;
    uint64_t before_ns = logged_ns(b);
    /* since the last interval, of whichever trainer */
    struct window w = {.seen = cell_read(&b->logged), .at_ns = before_ns, .loss = NAN,
                       .entropy = NAN};
    struct json json;

    window_look(&w, t);
    cell_set(&b->logged, &w.seen);
    atomic_store_explicit(&b->logged_ns, w.at_ns, RELAXED);
    json_begin(&json, t->run_log.file);
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
    run_log_written(&t->run_log, json_end(&json), true);
}

static void log_spread(struct json *json, const char *least, const char *most,
                       const struct spread *s)
{
    json_real(json, least, s->least);
    json_real(json, most, s->most);
}

static void log_host(struct trainer *t, const struct host_figures *h, double seconds)
{
    static const char *const states[] = {"trains", "done", "left", "failed", "died"};
    struct json json;

    json_begin(&json, t->run_log.file);
    json_text(&json, "kind", "host");
    json_real(&json, "seconds", seconds);
    json_int(&json, "host", h->host);
    json_text(&json, "name", h->name);
    json_text(&json, "state", states[h->state]);
    json_int(&json, "trainers", h->trainers);
    json_int(&json, "examples", (int64_t)h->seen.n);
    json_real(&json, "loss", metrics_logloss(&h->seen));
    json_real(&json, "trained_s", h->seconds);
    json_real(&json, "examples_per_s", h->state == HOST_TRAINS ? h->lately : (double)NAN);
    json_real(&json, "stall_share", h->worker_s > 0 ? h->stall_s / h->worker_s : 0);
    json_real(&json, "gap", h->gap);
    json_real(&json, "age_s", h->age_s);
    json_real(&json, "heard_s", h->heard_s);
    if (t->owned)
        json_int(&json, "rows_served", (int64_t)h->served);
    run_log_written(&t->run_log, json_end(&json), false);
}

/* Lines of the kinds whole and host, which others than the first host do not write. Their
 * figures are of this start, and not of the interval, but for examples_per_s, and
 * examples_all, which has those of the run that was resumed, too. */
void train_log_whole(struct trainer *t, double seconds)
{
    const struct whole *w = &t->whole;
    double now_s = seconds + get(&t->board->seconds_before);
    struct json json;
    bool slow;

    if (!t->run_log.file || !others_is_first(t) || !whole_look(t))
        return;
    int slowest = whole_slowest(w, true, &slow);
    for (size_t k = 0; k < w->n && t->run_log.file; k++)
        log_host(t, &w->hosts[k], now_s);
    if (!t->run_log.file)
        return;
    json_begin(&json, t->run_log.file);
    json_text(&json, "kind", "whole");
    json_real(&json, "seconds", now_s);
    json_int(&json, "hosts", (int64_t)w->n);
    json_int(&json, "hosts_at_work", w->at_work);
    json_int(&json, "examples", (int64_t)w->seen.n);
    json_int(&json, "examples_all", (int64_t)whole_sum(t).n);
    json_real(&json, "loss", metrics_logloss(&w->seen));
    json_real(&json, "ne", metrics_entropy(&w->seen));
    json_real(&json, "examples_per_s", w->at_work ? w->lately : (double)NAN);
    json_real(&json, "stall_share", w->stall_share);
    log_spread(&json, "gap_least", "gap_most", &w->gap);
    log_spread(&json, "age_least_s", "age_most_s", &w->age_s);
    if (slowest >= 0) {
        json_int(&json, "slowest", w->hosts[slowest].host);
        json_real(&json, "slowest_per_s", w->hosts[slowest].lately);
    }
    run_log_written(&t->run_log, json_end(&json), true);
}

void train_log_checkpoint(struct trainer *t, const char *why)
{
    struct json json;

    train_log_open(t);
    if (!t->run_log.file)
        return;
    json_begin(&json, t->run_log.file);
    json_text(&json, "kind", "checkpoint");
    json_real(&json, "seconds", figures_seconds(t) + get(&t->board->seconds_before));
    json_text(&json, "failed", why);
    run_log_written(&t->run_log, json_end(&json), true);
}

/* Opens the log in the trainer that has something to write, and not before. The first one
 * that opens it in this run puts an earlier run's log aside, unless the run goes on from
 * that, and writes the header; later ones append. A log that cannot be opened stops the
 * run. */
void train_log_open(struct trainer *t)
{
    struct run_log *l = &t->run_log;
    struct json json;
    struct told told = train_told(t->options);

    if (!t->options->log || l->file || atomic_load(&t->board->log_failed))
        return;
    uint32_t nobody = 0;
    bool first = atomic_compare_exchange_strong(&t->board->log_rank, &nobody,
                                                (uint32_t)t->rank + 1);
    bool goes_on = t->late || atomic_load_explicit(&t->board->resumed, RELAXED);
    host_file(t, t->options->log, l->path, sizeof l->path);
    l->failed = &t->board->log_failed;
    l->log = &t->log;
    if (!run_log_open(l, !first || goes_on, first || board_reports(t->board, t->seat))) {
        if (!atomic_exchange(&t->board->log_failed, 1))
            log_fail(&t->log, DESCANT_SYSTEM, "%s: %s", l->path, strerror(errno));
        board_stop(t->board, STOP_FAILED, "%s cannot be written", l->path);
        return;
    }
    if (!first)
        return;
    run_log_header(l, &json, &told);
    json_int(&json, "hosts", t->hosts);
    json_int(&json, "size", t->size);
    json_int(&json, "parameters", (int64_t)t->n);
    json_int(&json, "table_parameters", (int64_t)model_table_floats(t->model));
    json_int(&json, "elp", train_elp(t));
    run_log_written(l, json_end(&json), true);
}

void train_log_eval(struct trainer *t, const struct held_out *h)
{
    train_log_open(t);
    held_out_log(&t->run_log, h);
}

/* Nothing is written where nothing was trained since the last interval. The run's clock
 * began with its first trainer, so this one's own seconds are set off by how much later
 * it began. */
void train_log_last(struct trainer *t)
{
    uint64_t all_began = atomic_load_explicit(&t->board->started_ns, RELAXED);
    double later = t->began_ns > all_began ? (double)(t->began_ns - all_began) * 1e-9 : 0;
    struct train_figures f = figures_gather(t, t->seconds + later);

    train_log_open(t);
    if (t->run_log.file && board_sum(t->board).n > cell_read(&t->board->logged).n)
        train_log_interval(t, &f, t->seconds + later);
    train_log_whole(t, figures_seconds(t));
}
