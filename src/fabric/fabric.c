/* SPDX-License-Identifier: MIT */
/* The emulated link, and decisions that are the same in every fabric. */
#include "fabric/ruling.h"

#include <math.h>

size_t fabric_round_up(size_t n_floats)
{
    size_t page = machine_page() / sizeof(float);
    return (n_floats + page - 1) / page * page;
}

static uint64_t ns_of(double seconds)
{
    return seconds > 0 ? (uint64_t)(seconds * 1e9 + 0.5) : 0;
}

uint64_t emulated_mean_ns(const struct emulated *link, size_t bytes, int members)
{
    double k = members > 0 ? members : 1;
    double moved = 2.0 * (k - 1) / k * (double)bytes;
    return ns_of((link->rate > 0 ? moved / link->rate : 0) + 2 * link->rtt);
}

uint64_t emulated_busy_ns(const struct emulated *link, size_t n)
{
    return ns_of(link->rate > 0 ? (double)n * sizeof(float) / link->rate : 0);
}

descant_status exchange_check(const struct exchange *x, const struct limits *limits,
                              const struct log *log)
{
    size_t most = x->kind == EXCHANGE_MEAN ? limits->room : limits->n;

    if (!limits->started)
        return log_fail(log, DESCANT_ORDER, "an exchange before start");
    if (!limits->had_state && x->kind != EXCHANGE_STATE && !x->final)
        return log_fail(log, DESCANT_ORDER,
                        "the first exchange after start is the state");
    if (x->n > most)
        return log_fail(log, DESCANT_INVALID, "an exchange of %zu floats, room for %zu",
                        x->n, most);
    if (x->kind == EXCHANGE_MEAN && !(x->weight >= 0 && isfinite(x->weight)))
        return log_fail(log, DESCANT_INVALID, "%g is no weight", x->weight);
    if (x->kind == EXCHANGE_ELASTIC && (!limits->center || x->final))
        return log_fail(log, DESCANT_INVALID, "an elastic exchange without a centre");
    return DESCANT_OK;
}

descant_status manifest_check(const char *theirs, const char *mine, const struct log *log)
{
    struct differing d;

    if (!manifests_differ(theirs, mine, &d))
        return DESCANT_OK;
    int more = d.n[0] == 0;
    if (d.n[!more] == 0)
        return log_fail(
            log, DESCANT_MISMATCH,
            "%s has \"%.*s\", and %s nothing like it: every "
            "trainer must declare the same segments: give optimizer= in all of them, "
            "or in none",
            more ? "this trainer" : "the job", d.n[more], d.text[more],
            more ? "the job" : "this trainer");
    return log_fail(log, DESCANT_MISMATCH, "the job has \"%.*s\", here it is \"%.*s\"",
                    d.n[0], d.text[0], d.n[1], d.text[1]);
}
