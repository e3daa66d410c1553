/* SPDX-License-Identifier: MIT */
/* All hosts as one. Each trainer shows its examples, their loss, its time and its place
 * in the data to the others (descant_show), and the library adds steps, gap and age. The
 * host that reports merges what it has heard: by hosts, since the trainers of one machine
 * are one host, and then into the job.
 *
 *   1. Merging is pure: figures in, figures out. What a peer sent is looked at before it
 *      is added, for a peer may be broken or hostile; a trainer whose numbers cannot be
 *      is left out.
 *   2. The job's examples/s are all examples ÷ the time of the host that trained
 *      longest, since the job lasts so long. A host's own are of its own time, so that
 *      a host that holds the job up is seen, whether it had as many examples as the
 *      others or fewer.
 *   3. A host that has gone stays in the figures with what it had done. A trainer that
 *      comes again goes on from what its earlier process had shown (descant_shown), so
 *      that the sums of the job keep it.
 *   4. Lately: over windows of WINDOW_S on the host's own clock, for its figures come
 *      once a second. A host that is not heard for SILENT_S does nothing lately. */
#include "train/whole.h"

#include "run/summary.h"
#include "train/monitor.h"

#include <math.h>
#include <string.h>

#define WINDOW_S 2.5
#define SILENT_S 5.0
#define LAST_S 1.0              /* a host that ends so much later is named */
#define SLOW_SHARE 0.5          /* of the others' examples/s */
#define MOST_COUNT 1e15
#define MOST_S 1e9

enum { MOST_HOST = 1 << 20 };

/* --- one trainer's figures --- */

static bool is_within(double x, double least, double most)
{
    return x >= least && x <= most;             /* nor NaN */
}

static double share(double x, double least, double most)
{
    return is_within(x, least, most) ? x : -1;
}

static enum host_state state_of(const struct descant_peer *p)
{
    switch (p->last) {
    case DESCANT_EVENT_LOST:
        return HOST_DIED;
    case DESCANT_EVENT_UNFINISHED:
        return HOST_FAILED;
    case DESCANT_EVENT_LEFT:
        return HOST_LEFT;
    default:
        break;
    }
    return p->values[SHOWN_ENDED] > 0 ? HOST_DONE : HOST_TRAINS;
}

static bool values_are_good(const double *v, size_t n)
{
    return n >= N_SHOWN &&
           is_within(v[SHOWN_LAYOUT], SHOWN_LAYOUT_NOW, SHOWN_LAYOUT_NOW) &&
           is_within(v[SHOWN_HOST], 0, MOST_HOST) &&
           is_within(v[SHOWN_N], 0, MOST_COUNT) &&
           is_within(v[SHOWN_POSITIVE], 0, v[SHOWN_N]) &&
           is_within(v[SHOWN_CORRECT], 0, v[SHOWN_N]) &&
           is_within(v[SHOWN_SECONDS], 0, MOST_S) &&
           is_within(v[SHOWN_STALL_S], 0, MOST_COUNT) &&
           is_within(v[SHOWN_ROWS], 0, MOST_COUNT) &&
           is_within(v[SHOWN_EVICTED], 0, MOST_COUNT) &&
           is_within(v[SHOWN_REFUSED], 0, MOST_COUNT) &&
           is_within(v[SHOWN_SERVED], 0, MOST_COUNT);
}

static struct metrics metrics_of(const double *v)
{
    return (struct metrics){
        .n = (uint64_t)v[SHOWN_N],
        .positive = (uint64_t)v[SHOWN_POSITIVE],
        .correct = (uint64_t)v[SHOWN_CORRECT],
        .loss = v[SHOWN_LOSS] >= 0 ? v[SHOWN_LOSS] : (double)NAN,
        .predicted = v[SHOWN_PREDICTED] >= 0 ? v[SHOWN_PREDICTED] : (double)NAN};
}

bool whole_add_earlier(double *values, const double *earlier, size_t n)
{
    static const enum shown sums[] = {
        SHOWN_N,       SHOWN_POSITIVE, SHOWN_CORRECT, SHOWN_LOSS,    SHOWN_PREDICTED,
        SHOWN_SECONDS, SHOWN_STALL_S,  SHOWN_EVICTED, SHOWN_REFUSED, SHOWN_SERVED};

    if (!values_are_good(earlier, n) ||
        !is_within(earlier[SHOWN_LOSS], 0, MOST_COUNT) ||
        !is_within(earlier[SHOWN_PREDICTED], 0, MOST_COUNT))
        return false;
    for (size_t k = 0; k < sizeof sums / sizeof *sums; k++)
        values[sums[k]] += earlier[sums[k]];
    return true;
}

static bool read_figures(const struct descant_peer *p, struct host_figures *h)
{
    const double *v = p->values;

    if (!values_are_good(v, p->n_values))
        return false;
    bool merges = p->rounds > 0;
    *h = (struct host_figures){
        .host = (int)v[SHOWN_HOST],
        .trainers = 1,
        .state = state_of(p),
        .name = p->host,
        .seen = metrics_of(v),
        .seconds = v[SHOWN_SECONDS],
        .stall_s = v[SHOWN_STALL_S],
        .worker_s = v[SHOWN_SECONDS] * (p->workers > 0 ? p->workers : 1),
        .gap = merges ? p->gap_mean : (double)NAN,
        .age_s = merges ? p->age_s : (double)NAN,
        .served = v[SHOWN_SERVED],
        .place = share(v[SHOWN_PLACE], 0, 1),
        .left_s = share(v[SHOWN_LEFT_S], 0, MOST_S),
        .ended_s = share(v[SHOWN_ENDED] - 1, 0, MOST_S),
        .rows = {v[SHOWN_ROWS], v[SHOWN_EVICTED], v[SHOWN_REFUSED]},
        .heard_s = p->heard_s,
    };
    if (h->ended_s >= 0)
        h->ended_s += p->heard_s;
    return true;
}

/* --- merging --- */

static double mean_of(double a, int n, double b)
{
    return isnan(a) ? b : isnan(b) ? a : (a * n + b) / (n + 1);
}

static double known_max(double a, double b)
{
    return a < 0 || b < 0 ? -1 : fmax(a, b);
}

static void add_rows(struct rows_figures *sum, const struct rows_figures *one)
{
    sum->live += one->live;
    sum->evicted += one->evicted;
    sum->refused += one->refused;
}

static void add_trainer(struct host_figures *h, const struct host_figures *one)
{
    add_rows(&h->rows, &one->rows);
    h->gap = mean_of(h->gap, h->trainers, one->gap);
    h->age_s = mean_of(h->age_s, h->trainers, one->age_s);
    h->trainers++;
    if (one->state == HOST_TRAINS || h->state == HOST_TRAINS)
        h->state = HOST_TRAINS;
    else if (one->state > h->state)
        h->state = one->state;
    metrics_merge(&h->seen, &one->seen);
    h->seconds = fmax(h->seconds, one->seconds);
    h->stall_s += one->stall_s;
    h->worker_s += one->worker_s;
    h->served += one->served;
    h->place = known_max(h->place, one->place);
    h->left_s = known_max(h->left_s, one->left_s);
    h->ended_s = h->ended_s < 0 || one->ended_s < 0 ? -1 : fmin(h->ended_s, one->ended_s);
    h->heard_s = fmin(h->heard_s, one->heard_s);
}

static void insert(struct whole *w, const struct host_figures *one)
{
    size_t k = w->n;

    while (k > 0 && w->hosts[k - 1].host > one->host)
        k--;
    if (k > 0 && w->hosts[k - 1].host == one->host) {
        add_trainer(&w->hosts[k - 1], one);
        return;
    }
    memmove(w->hosts + k + 1, w->hosts + k, (w->n - k) * sizeof *w->hosts);
    w->hosts[k] = *one;
    w->n++;
}

/* A peer may have sent the least second that there is. */
static double rate_of(double n, double seconds)
{
    return seconds > 1e-6 ? n / seconds : 0;
}

static bool is_at_work(const struct host_figures *h)
{
    return h->state == HOST_TRAINS && h->heard_s < SILENT_S;
}

static double rate_lately(struct host_past *past, const struct host_figures *h)
{
    double n = (double)h->seen.n, took = h->seconds - past->seconds;

    if (n < past->n || took < 0)                /* another process */
        past->n = past->seconds = took = 0;
    if (past->seconds <= 0)
        past->rate = rate_of(n, h->seconds);
    if (took >= WINDOW_S) {
        past->rate = (n - past->n) / took;
        past->n = n;
        past->seconds = h->seconds;
    }
    return is_at_work(h) ? past->rate : 0;
}

/* The past of the hosts that there are now; both lists ascend. */
static void take_past(struct whole *w, size_t n_before)
{
    struct host_past *before = w->past;
    size_t at = 0;

    for (size_t k = 0; k < w->n; k++) {
        while (at < n_before && before[at].host < w->hosts[k].host)
            at++;
        bool known = at < n_before && before[at].host == w->hosts[k].host;
        w->spare[k] = known ? before[at] : (struct host_past){.host = w->hosts[k].host};
    }
    w->past = w->spare;
    w->spare = before;
}

static void widen(struct spread *s, double x)
{
    s->least = fmin(s->least, x);               /* which pass over NaN */
    s->most = fmax(s->most, x);
}

void whole_merge(struct whole *w, const struct descant_peer *peers, size_t n)
{
    size_t n_before = w->n;
    double stall_s = 0, worker_s = 0;
    struct host_figures one;

    w->n = 0;
    for (size_t i = 0; i < n; i++)
        if (read_figures(&peers[i], &one))
            insert(w, &one);
    take_past(w, n_before);
    w->seen = (struct metrics){0};
    w->at_work = 0;
    w->seconds = w->lately = w->place = w->left_s = 0;
    w->rows = (struct rows_figures){0};
    w->gap = w->age_s = (struct spread){(double)NAN, (double)NAN};
    for (size_t k = 0; k < w->n; k++) {
        struct host_figures *h = &w->hosts[k];
        h->per_s = rate_of((double)h->seen.n, h->seconds);
        h->lately = rate_lately(&w->past[k], h);
        w->at_work += is_at_work(h);
        metrics_merge(&w->seen, &h->seen);
        w->seconds = fmax(w->seconds, h->seconds);
        w->lately += h->lately;
        stall_s += h->stall_s;
        worker_s += h->worker_s;
        add_rows(&w->rows, &h->rows);
        widen(&w->gap, h->gap);
        widen(&w->age_s, h->age_s);
        w->place = h->place < 0 || w->place < 0 ? -1 : w->place + h->place;
        if (is_at_work(h))
            w->left_s = known_max(w->left_s, h->left_s);
    }
    w->per_s = rate_of((double)w->seen.n, w->seconds);
    w->stall_share = worker_s > 0 ? stall_s / worker_s : 0;
    w->place = w->place > 0 ? w->place / (double)w->n : w->place;
}

struct metrics whole_others(const struct whole *w, int host)
{
    struct metrics sum = {0};

    for (size_t k = 0; k < w->n; k++)
        if (w->hosts[k].host != host)
            metrics_merge(&sum, &w->hosts[k].seen);
    return sum;
}

int whole_slowest(const struct whole *w, bool lately, bool *slow)
{
    double all = 0, least = INFINITY;
    int slowest = -1, n = 0;

    *slow = false;
    for (size_t k = 0; k < w->n; k++) {
        const struct host_figures *h = &w->hosts[k];
        double rate = lately ? h->lately : h->per_s;
        if (lately ? h->state != HOST_TRAINS || h->seconds < WINDOW_S : h->seconds <= 0)
            continue;
        n++;
        all += rate;
        slowest = rate < least ? (int)k : slowest;
        least = fmin(least, rate);
    }
    if (n < 2)
        return -1;
    *slow = least < SLOW_SHARE * (all - least) / (n - 1);
    return slowest;
}

/* --- words --- */

/* "12.3 ms", "1.2 s"; "-": NaN. */
static const char *seconds_text(double s, char *text, size_t room)
{
    if (isnan(s))
        snprintf(text, room, "-");
    else
        snprintf(text, room, s < 1 ? "%.1f ms" : "%.1f s",
                 s < 1 ? 1e3 * s : fmin(s, 1e6));
    return text;
}

static const char *steps_text(double steps, char *text, size_t room)
{
    if (isnan(steps))
        snprintf(text, room, "-");
    else
        snprintf(text, room, "%.*f", steps < 999.95, fmin(steps, 1e9));
    return text;
}

/* The one host that still trains, while the others wait for it; NULL: there is none. */
static const struct host_figures *last_at_work(const struct whole *w)
{
    for (size_t k = 0; k < w->n && w->at_work == 1; k++)
        if (is_at_work(&w->hosts[k]))
            return &w->hosts[k];
    return NULL;
}

/* Short, for a line that has all else, too: how many hosts train, the slow one if there
 * is one, and else the gap. */
const char *whole_text(const struct whole *w, char *text, size_t room)
{
    char rate[32], least[32], most[32], in[48] = "";
    const struct host_figures *last = last_at_work(w);
    bool slow;
    int slowest = whole_slowest(w, true, &slow);

    bool all = (size_t)w->at_work == w->n;
    if (all)
        snprintf(in, sizeof in, "%zu hosts", w->n);
    else
        snprintf(in, sizeof in, "%d of %zu hosts", w->at_work, w->n);
    if (slow)
        snprintf(text, room, "%s, slow: host %d %.20s %s/s", in, w->hosts[slowest].host,
                 w->hosts[slowest].name,
                 count_text(w->hosts[slowest].lately, rate, sizeof rate));
    else if (last)
        snprintf(text, room, "%s: host %d %.20s", in, last->host, last->name);
    else if (!all)
        snprintf(text, room, "%s", in);
    else
        snprintf(text, room, "%s  gap %s-%s", in,
                 steps_text(w->gap.least, least, sizeof least),
                 steps_text(w->gap.most, most, sizeof most));
    return text;
}

/* served: there are rows that have owners, and a column for them. */
static void print_host(const struct host_figures *h, bool slowest, bool served, FILE *out)
{
    static const char *const states[] = {"", "", "left", "failed", "died"};
    char name[40], gap[32], age[32], rows[32] = "", note[64] = "", silent[32];
    const char *state = states[h->state];
    double stalled = h->worker_s > 0 ? h->stall_s / h->worker_s : 0;

    if (h->state == HOST_TRAINS && h->heard_s >= SILENT_S) {
        snprintf(silent, sizeof silent, "not heard for %.0f s", fmin(h->heard_s, 1e6));
        state = silent;
    }
    if (slowest || *state)
        snprintf(note, sizeof note, "  %s%s%s", slowest ? "slowest" : "",
                 slowest && *state ? ", " : "", state);
    snprintf(name, sizeof name, "%d %.20s", h->host, h->name);
    if (served)
        snprintf(rows, sizeof rows, " %12.0f", h->served);
    fprintf(out, "  %-14.14s %11.0f %10.0f %7.1f %6.1f %% %6s %8s%s%s\n", name,
            (double)h->seen.n, h->per_s, fmin(h->seconds, 1e6), 100 * fmin(stalled, 1),
            steps_text(h->gap, gap, sizeof gap), seconds_text(h->age_s, age, sizeof age),
            rows, note);
}

static void print_spread(FILE *out, const char *name, const char *least, const char *most,
                         const char *unit)
{
    bool one = strcmp(least, most) == 0;

    if (strcmp(least, "-") != 0)
        fprintf(out, "  %-26s %s%s%s%s\n", name, least, one ? "" : " to ",
                one ? "" : most, unit);
}

/* The host that the others waited for at the end, and how long: of those that have come
 * to their end, the last one and the one before it. */
static void print_last(const struct whole *w, FILE *out)
{
    double latest = -INFINITY, before = -INFINITY;
    const struct host_figures *last = NULL;

    for (const struct host_figures *h = w->hosts; h < w->hosts + w->n; h++) {
        if (h->state != HOST_DONE || h->ended_s < 0)
            continue;
        before = fmax(before, fmin(latest, -h->ended_s));
        last = -h->ended_s > latest ? h : last;
        latest = fmax(latest, -h->ended_s);
    }
    if (last && before > -INFINITY && latest - before >= LAST_S)
        fprintf(out, "  %-26s %d %.20s, %.1f s after the others\n", "last host to end",
                last->host, last->name, fmin(latest - before, 1e6));
}

void whole_print(const struct whole *w, FILE *out)
{
    char least[32], most[32], all[32];
    bool slow, served = false;
    int slowest = whole_slowest(w, false, &slow);

    for (size_t k = 0; k < w->n; k++)
        served |= w->hosts[k].served > 0;
    fprintf(out, "  %-14s %11s %10s %7s %8s %6s %8s%s\n", "host", "examples",
            "examples/s", "seconds", "stall", "gap", "age",
            served ? "  rows served" : "");
    for (size_t k = 0; k < w->n; k++)
        print_host(&w->hosts[k], slow && (int)k == slowest, served, out);
    snprintf(all, sizeof all, "all %zu hosts", w->n);
    fprintf(out, "  %-14s %11.0f %10.0f %7.1f %6.1f %%\n", all, (double)w->seen.n,
            w->per_s, fmin(w->seconds, 1e6), 100 * fmin(w->stall_share, 1));
    summary_row(out, "loss of all hosts", metrics_logloss(&w->seen), "%.5f");
    print_spread(out, "gap of a host", steps_text(w->gap.least, least, sizeof least),
                 steps_text(w->gap.most, most, sizeof most), " steps");
    print_spread(out, "age of a merge", seconds_text(w->age_s.least, least, sizeof least),
                 seconds_text(w->age_s.most, most, sizeof most), "");
    print_last(w, out);
}

/* --- the run's --- */

bool whole_room(struct whole *w, size_t n)
{
    struct whole more = *w;

    more.hosts = memory_take_array(n, sizeof *more.hosts);
    more.past = memory_take_array(n, sizeof *more.past);
    more.spare = memory_take_array(n, sizeof *more.spare);
    more.peers = memory_take_array(n, sizeof *more.peers);
    more.room = n;
    bool good = more.hosts && more.past && more.spare && more.peers;
    if (good && w->n) {
        memcpy(more.hosts, w->hosts, w->n * sizeof *w->hosts);
        memcpy(more.past, w->past, w->n * sizeof *w->past);
    }
    whole_fini(good ? w : &more);
    if (good)
        *w = more;
    return good;
}

void whole_fini(struct whole *w)
{
    memory_give(w->peers);
    memory_give(w->hosts);
    memory_give(w->past);
    memory_give(w->spare);
}

static double place_of(const struct trainer *t)
{
    return t->feed ? feed_place(t->feed) : -1;
}

/* At the pace so far. */
double whole_left(const struct trainer *t)
{
    double place = place_of(t), done = place - t->place_from;
    uint64_t took = clock_now_ns() - t->place_from_ns;

    return t->place_from_ns && place >= 0 && done > 0
               ? (double)took * 1e-9 * (1 - place) / done
               : -1;
}

struct rows_figures whole_rows(const struct trainer *t)
{
    struct descant_stats s;

    if (!t->owned || !model_shape(t->model)->grows ||
        descant_stats(t->job, &s) != DESCANT_OK)
        return (struct rows_figures){0};
    return (struct rows_figures){(double)s.rows_live, (double)s.rows_evicted,
                                 (double)s.rows_refused};
}

/* In the thread that shows figures. Where the seat was another trainer's before, the sums
 * of that one are still in it. */
static void go_on_from_earlier(struct trainer *t, double *values)
{
    double earlier[N_SHOWN] = {0};
    size_t n = 0;

    if (descant_shown(t->job, earlier, N_SHOWN, &n) != DESCANT_OK || !t->seat_was_empty ||
        !whole_add_earlier(values, earlier, n))
        return;
    struct metrics m = metrics_of(earlier);
    cell_set(&t->seat->earlier, &m);
}

void whole_show(struct trainer *t)
{
    const struct rows_figures rows = whole_rows(t);
    double now_s = (double)(clock_now_ns() - t->began_ns) * 1e-9;
    double values[N_SHOWN] = {
        [SHOWN_LAYOUT] = SHOWN_LAYOUT_NOW,
        [SHOWN_HOST] = t->host,
        [SHOWN_SECONDS] = t->ended ? t->seconds : t->began_ns ? now_s : 0,
        [SHOWN_STALL_S] = get(&t->seat->stall_ns) * 1e-9,
        [SHOWN_PLACE] = t->ended ? 1 : place_of(t),
        [SHOWN_LEFT_S] = t->ended ? 0 : whole_left(t),
        [SHOWN_ENDED] = t->ended ? 1 + now_s - t->seconds : 0,
        [SHOWN_ROWS] = rows.live,
        [SHOWN_EVICTED] = rows.evicted,
        [SHOWN_REFUSED] = rows.refused,
        [SHOWN_SERVED] = get(&t->seat->rows_served)};
    struct metrics seen = {0}, one;

    for (int k = 0; k < BOARD_WORKERS; k++) {
        one = cell_read(&t->seat->cells[k]);
        metrics_merge(&seen, &one);
    }
    values[SHOWN_N] = (double)seen.n;
    values[SHOWN_POSITIVE] = (double)seen.positive;
    values[SHOWN_CORRECT] = (double)seen.correct;
    values[SHOWN_LOSS] = seen.loss;
    values[SHOWN_PREDICTED] = seen.predicted;
    if (t->deals)
        go_on_from_earlier(t, values);
    descant_show(t->job, values, N_SHOWN);
}

static bool look(struct trainer *t, struct whole *w)
{
    size_t n = 0;

    if (!t->deals || descant_peers(t->job, w->peers, w->room, &n) != DESCANT_OK)
        return false;
    if (n > w->room && (!whole_room(w, n) ||
                        descant_peers(t->job, w->peers, w->room, &n) != DESCANT_OK))
        return false;
    whole_merge(w, w->peers, n < w->room ? n : w->room);
    return w->n > 1;
}

bool whole_look(struct trainer *t)
{
    return look(t, &t->whole);
}

/* A rank that came late is younger than the job. */
double whole_seconds(struct trainer *t)
{
    struct whole w = {0};

    look(t, &w);
    double seconds = fmax(figures_seconds(t), w.seconds);
    whole_fini(&w);
    return seconds + get(&t->board->seconds_before);
}

/* This host's own are on the board, also those of its trainers that have died. */
struct metrics whole_sum(struct trainer *t)
{
    struct metrics sum = board_sum(t->board), others;
    struct whole w = {0};

    for (int s = 0; s < BOARD_SEATS; s++) {
        others = cell_read(&t->board->seats[s].earlier);
        metrics_merge(&sum, &others);
    }
    look(t, &w);
    others = whole_others(&w, t->host);
    metrics_merge(&sum, &others);
    whole_fini(&w);
    return sum;
}
