/* SPDX-License-Identifier: MIT */
/* descant bench overlap: how fast training runs under a plan, as a share of none.
 *
 * A step of a worker is dense products that read the replica (a row of 512 floats times 512 x 16)
 * and an in-place update of 2 MB of it, moving on through larger ones. How many rows make a step
 * last --step-ms is calibrated under none, with all workers of all trainers at work.
 *
 * Every trainer keeps two jobs open, none and the plan, each with a replica of its own, both on
 * shm. A pair trains one, then the other, for the same number of steps, in changing order; the
 * ratio of their steps/s (summed over trainers) is the pair's efficiency, and the median over
 * pairs is reported. A run lasts 0.5 s, or longer where a round on the link does. Between two
 * runs the plan's job comes to rest: it is waited for until its round machine has been idle for
 * QUIET_NS, so that no round runs into none's time. Shares are of the plan's runs alone. */
#include "cli/cli.h"

#include <stdlib.h>
#include <string.h>

enum { COLUMNS = 512, BATCH = 16, WINDOW = 2 << 20, MAX_PAIRS = 101, QUIET_NS = 150000000,
       SETTLE_S = 60, NONE = 0, PLAN = 1 };

typedef float batch __attribute__((vector_size(4 * BATCH), aligned(4)));

struct overlap_options {
    const char *plan, *link;
    int64_t trainers, workers, bytes, pairs;
    double step_ms, run_s, sync_cpu;
    bool json;
    char suffix[64];            /* of the job's name */
};

#define AT(field) offsetof(struct overlap_options, field)
static const struct cli_option options[] = {
    {.name = "plan", .type = CLI_TEXT, .offset = AT(plan), .help = "the plan; shadow-easgd"},
    {.name = "trainers", .type = CLI_INT, .offset = AT(trainers), .low = 1,
     .high = BENCH_MAX_TRAINERS, .help = "processes; 2"},
    {.name = "workers", .type = CLI_INT, .offset = AT(workers), .low = 1,
     .high = BENCH_MAX_WORKERS, .help = "threads of each; 1"},
    {.name = "bytes", .type = CLI_BYTES, .offset = AT(bytes), .low = 4096, .high = 1e12,
     .help = "of the replica; 2M"},
    {.name = "step-ms", .type = CLI_REAL, .offset = AT(step_ms), .low = 0.01, .high = 10000,
     .help = "length of a step under none; 5"},
    {.name = "link", .type = CLI_TEXT, .offset = AT(link),
     .help = "emulated: 1gbit,1ms; none: as fast as memory"},
    {.name = "pairs", .type = CLI_INT, .offset = AT(pairs), .low = 1, .high = MAX_PAIRS,
     .help = "pairs of runs; 15"},
    {.name = "run-s", .type = CLI_REAL, .offset = AT(run_s), .low = 0.01, .high = 3600,
     .help = "length of a run; 0.5, or 1.5 rounds on the link"},
    {.name = "sync-cpu", .type = CLI_REAL, .offset = AT(sync_cpu), .low = 0.0001, .high = 1,
     .help = "the shadow's share of a core; the library's default"},
    {.name = "json", .type = CLI_FLAG, .offset = AT(json), .help = "one JSON object on a line"},
};
#undef AT
enum { N_OPTIONS = sizeof options / sizeof *options };

struct overlap_result {
    double steps_per_s[2][MAX_PAIRS];
    double wall_s, stall_s, copy_s, shadow_s;   /* summed over the plan's runs */
    double gap_mean, gap_p99;
    uint64_t rounds;
};

struct side {
    const struct overlap_options *o;
    struct bench *bench;
    int rank;
    struct descant *job[2];
    float *w[2];
    size_t n, rows;             /* floats; rows of products a step */
    float x[COLUMNS * BATCH];
};

struct worker {
    struct side *side;
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

static void step(struct worker *k)
{
    struct side *s = k->side;
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
    struct worker *k = context;
    struct descant *job = k->side->job[k->which];
    k->good = true;
    for (int64_t i = 0; k->good && i < k->steps; i++) {
        step(k);
        k->good = descant_step(job) == DESCANT_OK;
    }
    k->good &= descant_worker_done(job) == DESCANT_OK;
    return NULL;
}

/* All workers of this trainer make so many steps; how long that took, or below 0. */
static double train(struct side *s, int which, int64_t steps)
{
    struct worker workers[BENCH_MAX_WORKERS];
    int n = (int)s->o->workers;
    for (int i = 0; i < n; i++) {
        size_t part = s->n / (size_t)n / COLUMNS * COLUMNS * (size_t)i;
        workers[i] = (struct worker){.side = s, .which = which, .steps = steps,
                                     .at = part + WINDOW / sizeof(float) <= s->n ? part : 0};
    }
    bool good = bench_barrier(s->bench, s->bench->trainers);
    uint64_t start = clock_now_ns();
    good = good && bench_threads(n, work, workers, sizeof *workers);
    for (int i = 0; good && i < n; i++)
        good = workers[i].good;
    return good ? (double)(clock_now_ns() - start) * 1e-9 : -1;
}

/* Until the plan's job has rested for a while. */
static void settle(struct side *s)
{
    char text[256];
    uint64_t now = clock_now_ns(), give_up = now + SETTLE_S * 1000000000ull, since = now;
    uint64_t rounds = 0;
    while (now < give_up && now - since < QUIET_NS) {
        struct descant_stats stats;
        descant_waits(s->job[PLAN], text, sizeof text);
        bool same = descant_stats(s->job[PLAN], &stats) == DESCANT_OK && stats.rounds == rounds;
        rounds = stats.rounds;
        clock_sleep_until(now + 5000000);
        now = clock_now_ns();
        if (!same || !strstr(text, "round idle"))
            since = now;
    }
}

/* The first trainer's figure is everyone's. */
static bool calibrate(struct side *s)
{
    s->rows = 64;
    for (int turn = 0; turn < 4; turn++) {
        double wanted = s->o->step_ms * 1e-3, run = turn < 1 ? 0.03 : 0.15 * turn;
        int64_t steps = 1 + (int64_t)(run / wanted);
        double seconds = train(s, NONE, steps);
        if (seconds < 0)
            return false;
        if (s->rank == 0)
            *bench_shared(s->bench) = (double)s->rows * wanted * (double)steps / seconds;
        if (!bench_barrier(s->bench, s->bench->trainers))
            return false;
        double rows = *bench_shared(s->bench);
        s->rows = rows < 1 ? 1 : rows > 1e9 ? 1000000000 : (size_t)rows;
        if (!bench_barrier(s->bench, s->bench->trainers))
            return false;
    }
    return true;
}

static bool open_one(struct side *s, int which)
{
    char tail[80];
    snprintf(tail, sizeof tail, "-%s%s", which ? "plan" : "none", which ? s->o->suffix : "");
    struct bench_job one = {.name_tail = tail, .plan = which ? s->o->plan : "none",
                            .workers = s->o->workers, .sync_cpu = s->o->sync_cpu, .n = s->n};
    return bench_open(s->bench, s->rank, &one, &s->job[which], &s->w[which]);
}

static bool train_plan(struct side *s, int64_t steps, struct overlap_result *r, double *seconds)
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
    r->rounds += b.rounds - a.rounds;
    r->gap_mean = b.gap_mean;
    r->gap_p99 = b.gap_p99;
    return true;
}

static bool pairs(struct side *s, struct overlap_result *r)
{
    int64_t steps = 1 + (int64_t)(s->o->run_s * 1e3 / s->o->step_ms);
    double total = (double)(steps * s->o->workers);
    for (int64_t pair = -1; pair < s->o->pairs; pair++)     /* the first is a warm-up */
        for (int turn = 0; turn < 2; turn++) {
            int which = (turn + (int)(pair & 1)) % 2;
            double seconds;
            struct overlap_result aside = {.wall_s = 0};
            if (which == NONE)
                seconds = train(s, NONE, steps);
            else if (!train_plan(s, steps, pair < 0 ? &aside : r, &seconds))
                return false;
            else
                settle(s);
            if (seconds < 0)
                return false;
            if (pair >= 0)
                r->steps_per_s[which][pair] = total / seconds;
        }
    return true;
}

static bool trainer(struct bench *bench, int rank, const void *how, void *result)
{
    struct side s = {.o = how, .bench = bench, .rank = rank};
    s.n = (size_t)s.o->bytes / sizeof(float) / COLUMNS * COLUMNS;
    bench_fill(s.x, COLUMNS * BATCH, 7);
    bool good = open_one(&s, NONE) && open_one(&s, PLAN) && calibrate(&s) && pairs(&s, result) &&
                bench_barrier(bench, bench->trainers);
    descant_close(s.job[PLAN]);
    descant_close(s.job[NONE]);
    return good;
}

struct figures {
    double speed, none, efficiency, stall, copy, gap_mean, gap_p99, shadow;
    uint64_t rounds;
};

static struct figures figures(const struct overlap_result *results,
                              const struct overlap_options *o)
{
    double speed[2][MAX_PAIRS], ratio[MAX_PAIRS];
    struct figures f = {.rounds = results[0].rounds};
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
        f.gap_mean += r->gap_mean / (double)o->trainers;
        f.gap_p99 = r->gap_p99 > f.gap_p99 ? r->gap_p99 : f.gap_p99;
    }
    f.speed = bench_percentile(speed[PLAN], n, 0.5);
    f.none = bench_percentile(speed[NONE], n, 0.5);
    f.efficiency = bench_percentile(ratio, n, 0.5);
    return f;
}

static void report_json(const struct cli *cli, const struct overlap_options *o,
                        const struct figures *f)
{
    struct json json;
    json_begin(&json, cli->out);
    json_text(&json, "bench", "overlap");
    json_text(&json, "plan", o->plan);
    json_text(&json, "link", o->link);
    json_int(&json, "bytes", o->bytes);
    json_real(&json, "steps_per_s", f->speed);
    json_real(&json, "none_steps_per_s", f->none);
    json_real(&json, "efficiency", f->efficiency);
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
                   const struct figures *f)
{
    bench_say(cli->out, "plan", "%s, %d trainers of %d workers, %lld bytes, link %s%s", o->plan,
              (int)o->trainers, (int)o->workers, (long long)o->bytes, o->link,
              *o->suffix ? " (emulated, no network CPU)" : "");
    bench_say(cli->out, "steps/s", "%.1f, under none %.1f", f->speed, f->none);
    bench_say(cli->out, "efficiency", "%.4f", f->efficiency);
    bench_say(cli->out, "stall, copy", "%.3f %%, %.3f %% of the workers' time", 100 * f->stall,
              100 * f->copy);
    bench_say(cli->out, "gap", "%.1f steps, 99 %% %.1f", f->gap_mean, f->gap_p99);
    bench_say(cli->out, "shadow's cpu", "%.3f %% of a core", 100 * f->shadow);
    bench_say(cli->out, "rounds", "%llu", (unsigned long long)f->rounds);
}

int cli_bench_overlap(const struct cli *cli)
{
    struct overlap_options o = {.plan = "shadow-easgd", .link = "none", .trainers = 2,
                                .workers = 1, .bytes = 2 << 20, .pairs = 15, .step_ms = 5};
    double rate, rtt;
    int status;
    if (!bench_options(cli, options, N_OPTIONS, &o, &status))
        return status;
    if (!bench_plan_ok(cli, o.plan))
        return CLI_BAD_USE;
    if (!bench_link(o.link, o.suffix, sizeof o.suffix, &rate, &rtt))
        return cli_bad_use(cli, "--link %s: allowed is none or RATE,RTT as 1gbit,1ms", o.link);
    if (o.run_s <= 0) {
        double k = (double)o.trainers;
        double round_s = rate > 0 ? 2 * (k - 1) / k * (double)o.bytes / rate + 2 * rtt : 0;
        o.run_s = 1.5 * round_s > 0.5 ? 1.5 * round_s : 0.5;
    }
    struct bench bench = {.trainers = (int)o.trainers, .err = cli->err};
    struct overlap_result *results = calloc((size_t)o.trainers, sizeof *results);
    bool good = results && bench_run(&bench, trainer, &o, results, sizeof *results);
    if (good) {
        struct figures f = figures(results, &o);
        if (o.json)
            report_json(cli, &o, &f);
        else
            report(cli, &o, &f);
    }
    free(results);
    return good ? CLI_DONE : CLI_FAILED;
}
