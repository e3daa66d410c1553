/* SPDX-License-Identifier: MIT */
/* descant bench step: what one descant_step costs the thread that calls it.
 *
 * One call is timed by two reads of the time-stamp counter, nothing is subtracted.
 * Between two timed calls a worker updates a few floats of the replica, so that the job's
 * words have a chance to leave its core as they would in training. Figures are over all
 * workers' calls; stall is what the stats say. The job is on shm, with its shadow at
 * work. */
#include "bench.h"

#include <stdlib.h>
#include <string.h>

enum { CALLS = 200000, WARM = 2000, FLOATS = 65536, WORK = 512 };

struct step_options {
    const char *plan;
    int64_t workers, bytes, calls;
    bool json;
};

static const struct option options[] = {
    {.name = "plan",
     .type = OPTION_TEXT,
     .offset = offsetof(struct step_options, plan),
     .help = "the plan"},
    {.name = "workers",
     .type = OPTION_INT,
     .offset = offsetof(struct step_options, workers),
     .low = 1,
     .high = BENCH_MAX_WORKERS,
     .help = "threads that step"},
    {.name = "bytes",
     .type = OPTION_BYTES,
     .offset = offsetof(struct step_options, bytes),
     .low = 4096,
     .high = 1e12,
     .help = "size of the replica"},
    {.name = "calls",
     .type = OPTION_INT,
     .offset = offsetof(struct step_options, calls),
     .low = 100,
     .high = 1e7,
     .help = "timed calls of each worker"},
    {.name = "json",
     .type = OPTION_BOOL,
     .offset = offsetof(struct step_options, json),
     .help = "one JSON object on one line"},
};
enum { N_OPTIONS = sizeof options / sizeof *options };

struct step_worker {
    struct descant *job;
    float *w;
    size_t n;
    int64_t calls;
    double ns_per_tick;
    double *ns;                 /* calls of them */
    descant_status status;
};

static void *work(void *context)
{
    struct step_worker *k = context;
    for (int64_t i = -WARM; i < k->calls; i++) {
        float *w = k->w + ((size_t)(i + WARM) * WORK) % (k->n - WORK + 1);
        for (int j = 0; j < WORK; j++)
            w[j] += 1e-6f * (0.5f - w[j]);
        uint64_t before = bench_ticks();
        descant_status status = descant_step(k->job);
        uint64_t after = bench_ticks();
        if (status != DESCANT_OK) {
            k->status = status;
            return NULL;
        }
        if (i >= 0)
            k->ns[i] = (double)(after - before) * k->ns_per_tick;
    }
    k->status = descant_worker_done(k->job);
    return NULL;
}

struct step_result {
    double p50_ns, p99_ns;
    uint64_t stall_ns;
};

static bool measure(struct descant *job, float *w, const struct step_options *o,
                    struct step_result *r)
{
    struct step_worker workers[BENCH_MAX_WORKERS];
    size_t n = (size_t)(o->workers * o->calls);
    double *ns = calloc(n, sizeof *ns), scale = bench_ns_per_tick();
    if (!ns)
        return false;
    for (int64_t i = 0; i < o->workers; i++)
        workers[i] = (struct step_worker){.job = job,
                                          .w = w,
                                          .n = (size_t)o->bytes / sizeof *w,
                                          .calls = o->calls,
                                          .ns_per_tick = scale,
                                          .ns = ns + i * o->calls};
    bool good = bench_threads((int)o->workers, work, workers, sizeof *workers);
    for (int64_t i = 0; good && i < o->workers; i++)
        good = workers[i].status == DESCANT_OK;
    struct descant_stats stats;
    good = good && descant_stats(job, &stats) == DESCANT_OK;
    if (good)
        *r = (struct step_result){.p50_ns = bench_percentile(ns, n, 0.5),
                                  .p99_ns = bench_percentile(ns, n, 0.99),
                                  .stall_ns = stats.stall_ns};
    free(ns);
    return good;
}

static bool trainer(struct bench *bench, int rank, const void *how, void *result)
{
    const struct step_options *o = how;
    struct bench_job one = {.name_tail = "", .plan = o->plan, .workers = o->workers,
                            .n = (size_t)o->bytes / sizeof(float)};
    struct descant *job;
    float *w;
    bool good = bench_open(bench, rank, &one, &job, &w) && measure(job, w, o, result);
    descant_close(job);
    return good;
}

int bench_step(const struct cli *cli)
{
    struct step_options o = {.plan = "shadow-easgd", .workers = 1,
                             .bytes = FLOATS * sizeof(float), .calls = CALLS};
    int status;
    if (!bench_options(cli, options, N_OPTIONS, &o, &status))
        return status;
    if (!cli_plan_ok(cli, "plan", o.plan))
        return CLI_BAD_USE;
    struct bench bench = {.trainers = 1, .err = cli->err};
    struct step_result r;
    if (!bench_run(&bench, trainer, &o, &r, sizeof r))
        return CLI_FAILED;
    if (o.json) {
        struct json json;
        json_begin(&json, cli->out);
        json_text(&json, "bench", "step");
        json_text(&json, "plan", o.plan);
        json_int(&json, "workers", o.workers);
        json_real(&json, "p50_ns", r.p50_ns);
        json_real(&json, "p99_ns", r.p99_ns);
        json_int(&json, "stall_ns", (int64_t)r.stall_ns);
        json_end(&json);
        return CLI_DONE;
    }
    cli_say(cli->out, "plan", "%s", o.plan);
    cli_say(cli->out, "workers", "%d", (int)o.workers);
    cli_say(cli->out, "a step, median", "%.1f ns", r.p50_ns);
    cli_say(cli->out, "a step, 99 %", "%.1f ns", r.p99_ns);
    cli_say(cli->out, "stall", "%llu ns", (unsigned long long)r.stall_ns);
    return CLI_DONE;
}
