/* SPDX-License-Identifier: MIT */
/* How long a simulated job takes: 64 replicas, 1,000 rounds of a 10,000-parameter
 * problem; then 1,024 replicas. One JSON object each. The bar is 10 s for the first. */
#include "harness/simulation.h"

static void gradient(void *context, int i, uint64_t t, const float *w, float *g, size_t n)
{
    (void)context;
    float push = (float)(((uint64_t)i + t) & 3) - 1.5f;
    for (size_t k = 0; k < n; k++)
        g[k] = 0.01f * w[k] + push;
}

static int time_one(const char *plan, int trainers, uint64_t rounds, size_t n)
{
    struct simulation_options o = {.plan = plan,
                                   .trainers = trainers,
                                   .n = n,
                                   .gradient = gradient,
                                   .rate = 0.01,
                                   .steps = rounds,
                                   .step_s = 1e-3,
                                   .fabric = &simulated_ranks,
                                   .world = {.latency_s = 1e-4, .seed = 1}};
    struct simulation *s;
    uint64_t start = clock_now_ns();
    if (simulation_run(&s, &o) != DESCANT_OK)
        return 1;
    double seconds = (double)(clock_now_ns() - start) * 1e-9;
    struct json json;
    json_begin(&json, stdout);
    json_text(&json, "bench", "sim");
    json_text(&json, "plan", plan);
    json_int(&json, "trainers", trainers);
    json_int(&json, "parameters", (int64_t)n);
    json_int(&json, "rounds", (int64_t)simulation_look(s, 0).rounds);
    json_real(&json, "seconds", seconds);
    json_end(&json);
    simulation_destroy(s);
    return 0;
}

int main(void)
{
    return time_one("ma,every=1", 64, 1000, 10000) |
           time_one("ma,every=1", 1024, 20, 10000);
}
