/* SPDX-License-Identifier: MIT */
/* descant bench overlap: how fast training runs under a plan, as a share of none.
 *
 * A step of a worker is dense products that read the replica (a row of 512 floats times
 * 512 x 16) and an in-place update of 2 MB of it, moving on through larger ones. How many
 * rows make a step last --step-ms is calibrated under none, with all workers of all
 * trainers at work.
 *
 * Every trainer keeps two jobs open, none and the plan, each with a replica of its own,
 * both on shm. A pair trains one for a run, then the other, in changing order; the ratio
 * of their steps/s (summed over trainers) is the pair's efficiency; what is reported is
 * the middle of bench_pairs.
 *
 * 1 Between its runs the plan's job stands still in the middle of whatever round it has
 *   open: the trainer holds the job (sync/hold.h), and its shadow makes no further piece.
 *   So the shadow's work, all of it, falls into timed runs of the plan, and none of it
 *   into none's; a round may well be longer than a run. Every figure but gap_p99, which
 *   knows the warm-up too, is of those runs alone.
 * 2 The wall clock does not stand still: an emulated link goes on carrying what it has
 *   begun, for up to a run of none. That lets a run of the plan hold more of the shadow's
 *   work than training without pauses would, never less; but a delayed plan that waits
 *   for its link is spared one wait a run, and looks better by it. The lengths below keep
 *   this small.
 * 3 A run of none lasts NONE_S. One of the plan lasts as long as a round, which the
 *   warm-up measures under the shadow's budget, so that --pairs runs hold about as many
 *   rounds, and at least five times what the link may gain by a pause (a fifth then, at
 *   most, of a run); but not less than NONE_S and not more than MOST_S. --run-s sets
 *   both.
 *
 * Nobody else waits for a job that is held: in shadow plans no worker needs its round,
 * and in the others no worker is at work in a pause. */
#include "bench.h"
#include "sync/hold.h"
#include "sync/plan.h"

#include <stdlib.h>
#include <string.h>

enum { COLUMNS = 512, BATCH = 16, WINDOW = 2 << 20, MAX_PAIRS = BENCH_MAX_PAIRS,
       WARM_ROUNDS = 3, WARM_S = 12, NONE_S = 1, MOST_S = 10, NONE = 0, PLAN = 1 };

typedef float batch __attribute__((vector_size(4 * BATCH), aligned(4)));

struct overlap_options {
    const char *plan, *link;
    int64_t trainers, workers, bytes, pairs;
    double step_ms, run_s, sync_cpu;
    double link_s;              /* that the link takes for a round */
    bool json;
    char suffix[64];            /* of the job's name */
};

#define AT(field) offsetof(struct overlap_options, field)
static const struct option options[] = {
    {.name = "plan", .type = OPTION_TEXT, .offset = AT(plan), .help = "the plan"},
    {.name = "trainers",
     .type = OPTION_INT,
     .offset = AT(trainers),
     .low = 1,
     .high = BENCH_MAX_TRAINERS,
     .help = "processes"},
    {.name = "workers",
     .type = OPTION_INT,
     .offset = AT(workers),
     .low = 1,
     .high = BENCH_MAX_WORKERS,
     .help = "threads of each"},
    {.name = "bytes",
     .type = OPTION_BYTES,
     .offset = AT(bytes),
     .low = 4096,
     .high = 1e12,
     .help = "of the replica"},
    {.name = "step-ms",
     .type = OPTION_REAL,
     .offset = AT(step_ms),
     .low = 0.01,
     .high = 10000,
     .help = "length of a step under none"},
    {.name = "link",
     .type = OPTION_TEXT,
     .offset = AT(link),
     .help = "emulated: 1gbit,1ms; none: as fast as memory"},
    {.name = "pairs",
     .type = OPTION_INT,
     .offset = AT(pairs),
     .low = 1,
     .high = MAX_PAIRS,
     .help = "pairs of runs"},
    {.name = "run-s",
     .type = OPTION_SECONDS,
     .offset = AT(run_s),
     .low = 0.01,
     .high = 3600,
     .help = "length of a run; 1, and for the plan 1 to 10, about a round"},
    {.name = "sync-cpu",
     .type = OPTION_REAL,
     .offset = AT(sync_cpu),
     .low = 0.0001,
     .high = 1,
     .help = "the shadow's share of a core; the library's default"},
    {.name = "json",
     .type = OPTION_BOOL,
     .offset = AT(json),
     .help = "one JSON object on a line"},
};
#undef AT
enum { N_OPTIONS = sizeof options / sizeof *options };

struct overlap_result {
    double steps_per_s[2][MAX_PAIRS];
    double wall_s, stall_s, copy_s, shadow_s;   /* summed over the plan's runs */
    double gap_p99, run_s;                      /* run_s: the length of one */
    uint64_t steps, rounds;
};

struct overlap_side {
    const struct overlap_options *o;
    struct bench *bench;
    int rank;
    struct descant *job[2];
    float *w[2];
    bool frozen;                /* the plan's job is held */
    size_t n, rows;             /* floats; rows of products a step */
    float x[COLUMNS * BATCH];
};

/* A worker thread. */
struct hand {
    struct overlap_side *side;
    int which;
    int64_t steps;
    size_t at;                  /* the window's place */
    batch sum;
    bool good;
};

static inline void product(const float *w, const float *x, batch *sum)
{
    batch a = {0}, b = {0};
    for (int c = 0; c < COLUMNS; c += 2) {
        a += w[c] * *(const batch *)(x + c * BATCH);
        b += w[c + 1] * *(const batch *)(x + (c + 1) * BATCH);
    }
    *sum += a + b;
}

static void step(struct hand *k)
{
    struct overlap_side *s = k->side;
    size_t window = s->n < WINDOW / sizeof(float) ? s->n : WINDOW / sizeof(float);
    float *w = s->w[k->which] + k->at;
    k->sum = (batch){0};
    for (size_t row = 0; row < s->rows; row++)
        product(w + row % (window / COLUMNS) * COLUMNS, s->x, &k->sum);
    float pull = 1e-6f * k->sum[0] / (1 + k->sum[0] * k->sum[0]);
    for (size_t i = 0; i < window; i++)
        w[i] -= 1e-4f * w[i] + pull;
    k->at = k->at + 2 * window <= s->n ? k->at + window : 0;
}

static void *work(void *context)
{
    struct hand *k = context;
    struct descant *job = k->side->job[k->which];
    k->good = true;
    for (int64_t i = 0; k->good && i < k->steps; i++) {
        step(k);
        k->good = descant_step(job) == DESCANT_OK;
    }
    k->good &= descant_worker_done(job) == DESCANT_OK;
    return NULL;
}

static void freeze(struct overlap_side *s)
{
    if (!s->frozen)
        job_hold(s->job[PLAN]);
    s->frozen = true;
}

static void thaw(struct overlap_side *s)
{
    if (s->frozen)
        job_release(s->job[PLAN]);
    s->frozen = false;
}

/* All workers of this trainer make so many steps; how long that took, or below 0. */
static double train(struct overlap_side *s, int which, int64_t steps)
{
    struct hand hands[BENCH_MAX_WORKERS];
    int n = (int)s->o->workers;
    for (int i = 0; i < n; i++) {
        size_t part = s->n / (size_t)n / COLUMNS * COLUMNS * (size_t)i;
        hands[i] = (struct hand){.side = s, .which = which, .steps = steps,
                                 .at = part + WINDOW / sizeof(float) <= s->n ? part : 0};
    }
    bool good = bench_barrier(s->bench, s->bench->trainers);
    if (which == PLAN)
        thaw(s);
    uint64_t start = clock_now_ns();
    good = good && bench_threads(n, work, hands, sizeof *hands);
    double seconds = (double)(clock_now_ns() - start) * 1e-9;
    if (which == PLAN)
        freeze(s);
    for (int i = 0; good && i < n; i++)
        good = hands[i].good;
    return good ? seconds : -1;
}

/* The first trainer's figure becomes everyone's. */
static bool agree(struct overlap_side *s, double *figure)
{
    if (s->rank == 0)
        *bench_shared(s->bench) = *figure;
    if (!bench_barrier(s->bench, s->bench->trainers))
        return false;
    *figure = *bench_shared(s->bench);
    return bench_barrier(s->bench, s->bench->trainers);
}

static bool calibrate(struct overlap_side *s)
{
    s->rows = 64;
    for (int turn = 0; turn < 4; turn++) {
        double wanted = s->o->step_ms * 1e-3, run = turn < 1 ? 0.03 : 0.15 * turn;
        int64_t steps = 1 + (int64_t)(run / wanted);
        double seconds = train(s, NONE, steps);
        double rows = (double)s->rows * wanted * (double)steps / seconds;
        if (seconds < 0 || !agree(s, &rows))
            return false;
        s->rows = rows < 1 ? 1 : rows > 1e9 ? 1000000000 : (size_t)rows;
    }
    return true;
}

static bool open_one(struct overlap_side *s, int which)
{
    char tail[80];
    snprintf(tail, sizeof tail, "-%s%s", which ? "plan" : "none",
             which ? s->o->suffix : "");
    struct bench_job one = {.name_tail = tail,
                            .plan = which ? s->o->plan : "none",
                            .workers = s->o->workers,
                            .sync_cpu = s->o->sync_cpu,
                            .n = s->n};
    return bench_open(s->bench, s->rank, &one, &s->job[which], &s->w[which]);
}

/* A run of the plan, added to r. */
static bool train_plan(struct overlap_side *s, int64_t steps, struct overlap_result *r,
                       double *seconds)
{
    struct descant_stats a, b;
    if (descant_stats(s->job[PLAN], &a) != DESCANT_OK)
        return false;
    *seconds = train(s, PLAN, steps);
    if (*seconds < 0 || descant_stats(s->job[PLAN], &b) != DESCANT_OK)
        return false;
    r->wall_s += *seconds;
    r->stall_s += (double)(b.stall_ns - a.stall_ns) * 1e-9;
    r->copy_s += (double)(b.copy_ns - a.copy_ns) * 1e-9;
    r->shadow_s += b.shadow_cpu_s - a.shadow_cpu_s;
    r->steps += b.steps - a.steps;
    r->rounds += b.rounds - a.rounds;
    r->gap_p99 = b.gap_p99;
    return true;
}

static int64_t steps_in(const struct overlap_side *s, double seconds)
{
    return 1 + (int64_t)(seconds * 1e3 / s->o->step_ms);
}

/* Warms the plan up, and says how long a round of its shadow takes. */
static bool measure_round(struct overlap_side *s, double *round_s)
{
    struct overlap_result warm = {.wall_s = 0};
    double seconds;
    for (*round_s = 0; *round_s <= 0;) {
        if (!train_plan(s, steps_in(s, NONE_S), &warm, &seconds))
            return false;
        if (warm.rounds >= WARM_ROUNDS || warm.wall_s >= WARM_S)
            *round_s = warm.wall_s / (double)(warm.rounds ? warm.rounds : 1);
        if (!agree(s, round_s))
            return false;
    }
    return true;
}

static bool choose_lengths(struct overlap_side *s, double run_s[2])
{
    double gain = s->o->link_s < NONE_S ? s->o->link_s : NONE_S, round_s = 0;
    run_s[NONE] = run_s[PLAN] = s->o->run_s;
    if (s->o->run_s > 0)
        return true;
    struct plan plan;
    if (plan_parse(&plan, s->o->plan, NULL) != DESCANT_OK ||
        (plan.when == PLAN_SHADOW && !measure_round(s, &round_s)))
        return false;
    double wanted = round_s > 5 * gain ? round_s : 5 * gain;
    run_s[NONE] = NONE_S;
    run_s[PLAN] = wanted < NONE_S ? NONE_S : wanted > MOST_S ? MOST_S : wanted;
    return true;
}

static bool pairs(struct overlap_side *s, struct overlap_result *r)
{
    double run_s[2], seconds;
    if (!choose_lengths(s, run_s))
        return false;
    r->run_s = run_s[PLAN];
    for (int64_t pair = -1; pair < s->o->pairs; pair++)     /* the first is a warm-up */
        for (int turn = 0; turn < 2; turn++) {
            int which = (turn + (int)(pair & 1)) % 2;
            int64_t steps = steps_in(s, run_s[which]);
            struct overlap_result aside = {.wall_s = 0};
            if (which == NONE)
                seconds = train(s, NONE, steps);
            else if (!train_plan(s, steps, pair < 0 ? &aside : r, &seconds))
                return false;
            if (seconds < 0)
                return false;
            if (pair >= 0)
                r->steps_per_s[which][pair] = (double)(steps * s->o->workers) / seconds;
        }
    return true;
}

static bool trainer(struct bench *bench, int rank, const void *how, void *result)
{
    struct overlap_side s = {.o = how, .bench = bench, .rank = rank};
    s.n = (size_t)s.o->bytes / sizeof(float) / COLUMNS * COLUMNS;
    bench_fill(s.x, COLUMNS * BATCH, 7);
    bool good = open_one(&s, NONE) && open_one(&s, PLAN);
    if (good)
        freeze(&s);
    good = good && calibrate(&s) && pairs(&s, result) &&
           bench_barrier(bench, bench->trainers);
    thaw(&s);
    descant_close(s.job[PLAN]);
    descant_close(s.job[NONE]);
    return good;
}

struct overlap_figures {
    struct bench_ratio efficiency;
    double speed, none, stall, copy, gap_mean, gap_p99, shadow, run_s;
    uint64_t rounds;            /* of a trainer, on average */
};

static struct overlap_figures figures(const struct overlap_result *results,
                                      const struct overlap_options *o)
{
    double speed[2][MAX_PAIRS], ratio[MAX_PAIRS];
    struct overlap_figures f = {.run_s = results[0].run_s};
    uint64_t rounds = 0, steps = 0;
    size_t n = (size_t)o->pairs;
    for (size_t i = 0; i < n; i++) {
        speed[NONE][i] = speed[PLAN][i] = 0;
        for (int64_t k = 0; k < o->trainers; k++)
            for (int which = 0; which < 2; which++)
                speed[which][i] += results[k].steps_per_s[which][i];
        ratio[i] = speed[PLAN][i] / speed[NONE][i];
    }
    for (int64_t k = 0; k < o->trainers; k++) {
        const struct overlap_result *r = &results[k];
        double workers = r->wall_s * (double)(o->workers * o->trainers);
        f.stall += r->stall_s / workers;
        f.copy += r->copy_s / workers;
        f.shadow += r->shadow_s / r->wall_s / (double)o->trainers;
        rounds += r->rounds;
        steps += r->steps;
        f.gap_p99 = r->gap_p99 > f.gap_p99 ? r->gap_p99 : f.gap_p99;
    }
    f.rounds = (rounds + (uint64_t)o->trainers / 2) / (uint64_t)o->trainers;
    f.gap_mean = rounds ? (double)steps / (double)rounds : 0;
    f.speed = bench_percentile(speed[PLAN], n, 0.5);
    f.none = bench_percentile(speed[NONE], n, 0.5);
    f.efficiency = bench_pairs(ratio, n);
    return f;
}

static void report_json(const struct cli *cli, const struct overlap_options *o,
                        const struct overlap_figures *f)
{
    struct json json;
    json_begin(&json, cli->out);
    json_text(&json, "bench", "overlap");
    json_text(&json, "plan", o->plan);
    json_text(&json, "link", o->link);
    json_int(&json, "bytes", o->bytes);
    json_real(&json, "steps_per_s", f->speed);
    json_real(&json, "none_steps_per_s", f->none);
    json_real(&json, "efficiency", f->efficiency.middle);
    json_real(&json, "efficiency_low", f->efficiency.low);
    json_real(&json, "efficiency_high", f->efficiency.high);
    json_real(&json, "stall_share", f->stall);
    json_real(&json, "copy_share", f->copy);
    json_real(&json, "gap_mean", f->gap_mean);
    json_real(&json, "gap_p99", f->gap_p99);
    json_real(&json, "shadow_cpu_share", f->shadow);
    json_int(&json, "rounds", (int64_t)f->rounds);
    if (*o->suffix)
        json_text(&json, "note", "emulated, no network CPU");
    json_end(&json);
}

static void report(const struct cli *cli, const struct overlap_options *o,
                   const struct overlap_figures *f)
{
    cli_say(cli->out, "plan", "%s, %d trainers of %d workers, %lld bytes, link %s%s",
            o->plan, (int)o->trainers, (int)o->workers, (long long)o->bytes, o->link,
            *o->suffix ? " (emulated, no network CPU)" : "");
    cli_say(cli->out, "steps/s", "%.1f, under none %.1f", f->speed, f->none);
    cli_say(cli->out, "efficiency", "%.4f (quartiles %.4f to %.4f)", f->efficiency.middle,
            f->efficiency.low, f->efficiency.high);
    cli_say(cli->out, "stall, copy", "%.3f %%, %.3f %% of the workers' time",
            100 * f->stall, 100 * f->copy);
    cli_say(cli->out, "gap", "%.1f steps, 99 %% %.1f", f->gap_mean, f->gap_p99);
    cli_say(cli->out, "shadow's cpu", "%.3f %% of a core", 100 * f->shadow);
    cli_say(cli->out, "rounds", "%llu a trainer, in %d runs of %.2f s",
            (unsigned long long)f->rounds, (int)o->pairs, f->run_s);
}

int bench_overlap(const struct cli *cli)
{
    struct overlap_options o = {.plan = "shadow-easgd",
                                .link = "none",
                                .trainers = 2,
                                .workers = 1,
                                .bytes = 2 << 20,
                                .pairs = 15,
                                .step_ms = 5};
    double rate, rtt;
    int status;
    if (!bench_options(cli, options, N_OPTIONS, &o, &status))
        return status;
    if (!cli_plan_ok(cli, "plan", o.plan))
        return CLI_BAD_USE;
    if (!cli_link_ok(cli, o.link, o.suffix, sizeof o.suffix, &rate, &rtt))
        return CLI_BAD_USE;
    double k = (double)o.trainers;
    o.link_s = rate > 0 ? 2 * (k - 1) / k * (double)o.bytes / rate + 2 * rtt : 2 * rtt;
    struct bench bench = {.trainers = (int)o.trainers, .err = cli->err};
    struct overlap_result *results = calloc((size_t)o.trainers, sizeof *results);
    bool good = results && bench_run(&bench, trainer, &o, results, sizeof *results);
    if (good) {
        struct overlap_figures f = figures(results, &o);
        if (o.json)
            report_json(cli, &o, &f);
        else
            report(cli, &o, &f);
    }
    free(results);
    return good ? CLI_DONE : CLI_FAILED;
}
