/* SPDX-License-Identifier: MIT */
/* descant bench segment: what giving a gradient through a segment costs an ML module.
 *
 * Adding is timed beside the same loop in place in private memory, in turns, and their
 * ratio is the median over the turns. Nothing is taken meanwhile, so each add reads a
 * committed sum: the dearer case. Pinning a model with letting it go, and taking a sum of
 * one gradient, are each timed by two reads of the time-stamp counter, nothing
 * subtracted. A sum is taken right after an add, which leaves nothing else in the caches:
 * so the first one of a read-out also waits for the keeper's code, its data and the
 * addresses of both. The next one is taken right after an empty slot was looked at.
 * Keeper and module are one process with two mappings. */
#include "bench.h"
#include "bsp/segment.h"
#include "descant_ml.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BYTES = 4000000, TURNS = 101, PINS = 100000, TAKES = 101, WARM = 3 };

struct segment_bench {
    int64_t bytes, turns;
    bool json;
};

static const struct option options[] = {
    {.name = "bytes",
     .type = OPTION_BYTES,
     .offset = offsetof(struct segment_bench, bytes),
     .low = 4096,
     .high = 1e12,
     .help = "size of the model"},
    {.name = "turns",
     .type = OPTION_INT,
     .offset = offsetof(struct segment_bench, turns),
     .low = 1,
     .high = 100000,
     .help = "timed adds"},
    {.name = "json",
     .type = OPTION_BOOL,
     .offset = offsetof(struct segment_bench, json),
     .help = "one JSON object on one line"},
};
enum { N_OPTIONS = sizeof options / sizeof *options };

struct bench_memory {
    float *gradient, *sum;
    double *add_ns, *place_ns, *ratio, *small_ns;
};

struct segment_result {
    double add_ns, place_ns, ratio, take_ns, next_ns, pin_ns, pin_p99_ns;
};

/* As the loop of an add (kernels/sums.c), which the Makefile compiles alike. */
static bool add_in_place(float *restrict sum, const float *restrict g, float b, size_t n)
{
    int bad = 0;
    for (size_t i = 0; i < n; i++) {
        float x = sum[i] + b * g[i];
        bad |= !(x * 0.0f == 0.0f);
        sum[i] = x;
    }
    return bad == 0;
}

static bool time_adds(struct descant_ml *ml, const struct segment_bench *o,
                      struct bench_memory *m, struct segment_result *r)
{
    struct descant_ml_model model;
    size_t n = descant_ml_size(ml);
    if (descant_ml_pin(ml, &model) != DESCANT_OK)
        return false;
    for (int64_t i = -WARM; i < o->turns; i++) {
        uint64_t start = clock_now_ns();
        bool good = add_in_place(m->sum, m->gradient, 2, n);
        uint64_t placed = clock_now_ns();
        good = descant_ml_add(ml, m->gradient, 2) == DESCANT_OK && good;
        uint64_t added = clock_now_ns();
        if (!good)
            return false;
        if (i < 0)
            continue;
        m->place_ns[i] = (double)(placed - start);
        m->add_ns[i] = (double)(added - placed);
        m->ratio[i] = m->place_ns[i] / m->add_ns[i];
    }
    r->ratio = bench_percentile(m->ratio, (size_t)o->turns, 0.5);
    r->place_ns = bench_percentile(m->place_ns, (size_t)o->turns, 0.5);
    r->add_ns = bench_percentile(m->add_ns, (size_t)o->turns, 0.5);
    return true;
}

static bool time_pins(struct descant_ml *ml, struct bench_memory *m,
                      struct segment_result *r)
{
    struct descant_ml_model model;
    double scale = bench_ns_per_tick();
    for (int i = 0; i < PINS; i++) {
        uint64_t start = bench_ticks();
        bool good = descant_ml_pin(ml, &model) == DESCANT_OK &&
                    descant_ml_unpin(ml) == DESCANT_OK;
        m->small_ns[i] = (double)(bench_ticks() - start) * scale;
        if (!good)
            return false;
    }
    r->pin_ns = bench_percentile(m->small_ns, PINS, 0.5);
    r->pin_p99_ns = bench_percentile(m->small_ns, PINS, 0.99);
    return true;
}

static bool time_takes(struct segment *segment, struct descant_ml *ml,
                       struct bench_memory *m, bool next, double *ns)
{
    struct segment_taken taken;
    double scale = bench_ns_per_tick();
    segment_take(segment, 0, &taken);
    for (int i = 0; i < TAKES; i++) {
        if (descant_ml_add(ml, m->gradient, 2) != DESCANT_OK)
            return false;
        if (next && segment_take(segment, 1, &taken))
            return false;
        uint64_t start = bench_ticks();
        bool good = segment_take(segment, 0, &taken);
        m->small_ns[i] = (double)(bench_ticks() - start) * scale;
        if (!good)
            return false;
    }
    *ns = bench_percentile(m->small_ns, TAKES, 0.5);
    return true;
}

static bool measure(const struct segment_bench *o, struct bench_memory *m,
                    struct segment_result *r)
{
    char name[32];
    snprintf(name, sizeof name, "bench-%d", (int)getpid());
    const struct segment_part part = {.name = "w",
                                      .n = (uint64_t)o->bytes / sizeof(float)};
    const struct segment_options how = {.name = name,
                                        .slots = 2,
                                        .parts = &part,
                                        .n_parts = 1,
                                        .model = m->gradient,
                                        .version = 1};
    struct segment *segment = NULL;
    struct descant_ml *ml = NULL;
    bool good = segment_open(&segment, &how) == DESCANT_OK &&
                descant_ml_attach(&ml, name, 0) == DESCANT_OK && time_adds(ml, o, m, r) &&
                time_takes(segment, ml, m, false, &r->take_ns) &&
                time_takes(segment, ml, m, true, &r->next_ns) && time_pins(ml, m, r);
    descant_ml_detach(ml);
    segment_close(segment);
    return good;
}

static void print(const struct cli *cli, const struct segment_bench *o,
                  const struct segment_result *r)
{
    if (o->json) {
        struct json json;
        json_begin(&json, cli->out);
        json_text(&json, "bench", "segment");
        json_int(&json, "bytes", o->bytes);
        json_real(&json, "in_place_ns", r->place_ns);
        json_real(&json, "add_ns", r->add_ns);
        json_real(&json, "of_in_place", r->ratio);
        json_real(&json, "take_ns", r->take_ns);
        json_real(&json, "take_next_ns", r->next_ns);
        json_real(&json, "pin_p50_ns", r->pin_ns);
        json_real(&json, "pin_p99_ns", r->pin_p99_ns);
        json_end(&json);
        return;
    }
    cli_say(cli->out, "an add", "%.0f us", r->add_ns * 1e-3);
    cli_say(cli->out, "the loop in place", "%.0f us", r->place_ns * 1e-3);
    cli_say(cli->out, "speed of an add", "%.3f of in place", r->ratio);
    cli_say(cli->out, "taking a sum", "%.0f ns, the next one %.0f ns", r->take_ns,
            r->next_ns);
    cli_say(cli->out, "a pin, median", "%.0f ns, with letting go", r->pin_ns);
    cli_say(cli->out, "a pin, 99 %", "%.0f ns", r->pin_p99_ns);
}

int bench_segment(const struct cli *cli)
{
    struct segment_bench o = {.bytes = BYTES, .turns = TURNS};
    struct segment_result r;
    int status;
    if (!bench_options(cli, options, N_OPTIONS, &o, &status))
        return status;
    size_t n = (size_t)o.bytes / sizeof(float), turns = (size_t)o.turns;
    struct bench_memory m = {
        .gradient = memory_take_array(n, sizeof(float)),
        .sum = memory_take_array(n, sizeof(float)),
        .add_ns = memory_take_array(turns, sizeof(double)),
        .place_ns = memory_take_array(turns, sizeof(double)),
        .ratio = memory_take_array(turns, sizeof(double)),
        .small_ns = memory_take_array(PINS, sizeof(double)),
    };
    bool good = m.gradient && m.sum && m.add_ns && m.place_ns && m.ratio && m.small_ns;
    if (good) {
        bench_fill(m.gradient, n, 1);
        good = measure(&o, &m, &r);
    }
    if (good)
        print(cli, &o, &r);
    else
        fprintf(cli->err, "descant: %s\n", descant_last_error());
    void *const taken[] = {m.gradient, m.sum, m.add_ns, m.place_ns, m.ratio, m.small_ns};
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++)
        memory_give(taken[i]);
    return good ? CLI_DONE : CLI_FAILED;
}
