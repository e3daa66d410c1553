/* SPDX-License-Identifier: MIT */
/* How fast a mean is encoded: vectors of 64 MiB, each call of wire.h alone on one core.
 * One JSON object each, with the bytes that it moves a second beside those of memcpy in
 * the same run: a call that is bound by memory comes near 1. */
#include "kernels/wire.h"

#include "base/base.h"

#include <stdio.h>
#include <string.h>

enum { N = 1 << 24, RUNS = 7 };

static float *x, *R, *r;
static void *sent;

enum wire_call { COPY, SEND, OWN, ADD, SETTLE, TAKE, N_CALLS };
static const char *const names[] = {"memcpy", "send", "own", "add", "settle", "take"};

static void call(enum wire_call which, enum wire wire)
{
    const struct wire_part part = {wire, N, x, R, r, 0.5};
    if (which == COPY)
        memcpy(r, x, N * sizeof *r);
    else if (which == SEND)
        wire_send(&part, sent);
    else if (which == OWN)
        wire_own(&part);
    else if (which == ADD)
        wire_add(&part, sent, 0.5);
    else if (which == SETTLE)
        wire_settle(&part, sent);
    else
        wire_take(wire, r, R, sent, N);
}

/* Read and written, once each. */
static double moved(enum wire_call which, enum wire wire)
{
    static const int vectors[] = {2, 4, 4, 2, 2, 2};
    double encoded = which == COPY || which == OWN ? 0 : (double)wire_bytes(wire, N);
    return vectors[which] * (double)N * sizeof(float) + encoded;
}

static double best_rate(enum wire_call which, enum wire wire)
{
    double best = 0;
    for (int run = 0; run < RUNS; run++) {
        uint64_t began = clock_now_ns();
        call(which, wire);
        double rate = moved(which, wire) / (double)(clock_now_ns() - began);
        best = rate > best ? rate : best;
    }
    return best;
}

static void report(enum wire_call which, enum wire wire)
{
    struct json json;
    double copy = best_rate(COPY, wire), rate = best_rate(which, wire);
    json_begin(&json, stdout);
    json_text(&json, "bench", "wire");
    json_text(&json, "call", names[which]);
    json_text(&json, "wire", wire_names[wire]);
    json_real(&json, "ms", moved(which, wire) / rate * 1e-6);
    json_real(&json, "gb_per_s", rate);
    json_real(&json, "of_memcpy", rate / copy);
    json_end(&json);
}

int main(void)
{
    struct rng rng;
    x = memory_take_array(N, sizeof *x);
    R = memory_take_array(N, sizeof *R);
    r = memory_take_array(N, sizeof *r);
    sent = memory_take_array(N, sizeof *x);
    if (!x || !R || !r || !sent)
        return 1;
    rng_init(&rng, 1);
    for (size_t k = 0; k < N; k++) {
        x[k] = (float)rng_uniform(&rng);
        R[k] = (float)rng_uniform(&rng);
    }
    for (int which = SEND; which < N_CALLS; which++)
        for (enum wire wire = WIRE_BF16; wire <= WIRE_Q8; wire++)
            report((enum wire_call)which, wire);
    memory_give(x);
    memory_give(R);
    memory_give(r);
    memory_give(sent);
    return 0;
}
