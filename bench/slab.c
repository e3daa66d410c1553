/* SPDX-License-Identifier: MIT */
/* What a row of a table that grows costs: 16 floats with Adagrad, and all slices on one
 * rank, with memory for 10^6 and for 10^7 rows. One JSON object each at 50 and 90 % of
 * these, and where the first row is evicted: the bytes that the system has given for a
 * row, and the time of one that is made and of one that is read, in any order, by one
 * thread. */
#include "owners/slab.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { STRIPES = 1024, RECORD = 32, EACH = 16 + 4 * RECORD + 4, SOME = 4096 };

static struct slab slab;
static uint64_t made;                   /* ids: 0 and those after it, mixed */

static struct slab_row row_of(uint64_t k)
{
    uint64_t id = rng_mixed(k + 1);
    return (struct slab_row){.id = id, .stripe = rng_mixed(id) % STRIPES};
}

static size_t resident(void)
{
    size_t all = 0, here = 0;
    FILE *file = fopen("/proc/self/statm", "r");

    if (!file || fscanf(file, "%zu %zu", &all, &here) != 2)
        here = 0;
    if (file)
        fclose(file);
    return here * machine_page();
}

static void make(void)
{
    struct slab_row row = row_of(made++);

    slab_open(&slab, &row);
    memset(slab_make(&slab, &row), 1, RECORD * sizeof(float));
    slab_keep(&slab, &row);
    slab_close(&slab, &row);
}

static double read_ns(struct rng *rng)
{
    float values[16], sum = 0;
    uint64_t began = clock_now_ns();

    for (int k = 0; k < SOME; k++) {
        struct slab_row row = row_of(rng_next(rng) % made);
        slab_open(&slab, &row);
        if (row.record)
            memcpy(values, row.record, sizeof values);
        slab_close(&slab, &row);
        sum += values[k % 16];
    }
    return sum >= 0 ? (double)(clock_now_ns() - began) / SOME : NAN;
}

/* Until so much of it is full, or a row has been evicted. */
static void fill(double full, size_t before)
{
    struct slab_figures f = slab_figures(&slab);
    double room = (double)(slab.room * STRIPES), ns = 0;
    struct json json;
    struct rng rng;

    while ((double)f.live < full * room && !f.evicted) {
        uint64_t began = clock_now_ns();
        for (int k = 0; k < SOME; k++)
            make();
        ns = (double)(clock_now_ns() - began) / SOME;
        f = slab_figures(&slab);
    }
    rng_init(&rng, 1);
    json_begin(&json, stdout);
    json_text(&json, "bench", "slab");
    json_real(&json, "room", room);
    json_real(&json, "full", (double)f.live / room);
    json_int(&json, "evicted", (int64_t)f.evicted);
    json_real(&json, "bytes_a_row", (double)(resident() - before) / (double)f.live);
    json_real(&json, "make_ns", ns);
    json_real(&json, "read_ns", read_ns(&rng));
    json_end(&json);
}

int main(void)
{
    for (size_t rows = 1000000; rows <= 10000000; rows *= 10) {
        size_t bytes = slab_least(STRIPES, RECORD) + (rows - SLAB_LEAST * STRIPES) * EACH;
        size_t before = resident();
        void *memory = memory_take(bytes);
        if (!memory || !slab_place(&slab, STRIPES, RECORD, 0, memory, bytes))
            return 1;
        made = 0;
        fill(0.5, before);
        fill(0.9, before);
        fill(1, before);
        memory_give(memory);
    }
    return 0;
}
