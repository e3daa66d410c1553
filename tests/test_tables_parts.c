/* SPDX-License-Identifier: MIT */
/* Two machines' rounds of rows, step by step: parts that are checked, rows that are touched between
 * any two steps, leaders that close within a round; and the loops over rows. */
#include "harness/suite.h"
#include "harness/tables.h"
#include "mpi_loopback.h"

#include <math.h>

enum { MOST_TURNS = 40000 };

START_TEST(touches_are_checked)
{
    struct loopback *world = loopback_create_hosts(2, 1, 1);
    struct fabric_options options = {.rank = 0, .size = 2, .context = world};
    struct fabric *f;
    struct plan plan;
    struct tables t;
    float *a, *b, *state;
    ck_assert_int_eq(plan_parse(&plan, "shadow-ma,hot=0", NULL), DESCANT_OK);
    ck_assert_int_eq(fabric_loopback.open(&f, &options), DESCANT_OK);
    tables_init(&t, f, &plan);
    ck_assert_int_eq(tables_add(&t, "a", 10, 4, &a), DESCANT_OK);
    ck_assert_int_eq(tables_add(&t, "a", 10, 4, &b), DESCANT_DUPLICATE);
    ck_assert_int_eq(tables_add(&t, "a b", 10, 4, &b), DESCANT_INVALID);
    ck_assert_int_eq(tables_add(&t, "b", 0, 4, &b), DESCANT_INVALID);
    ck_assert_int_eq(tables_add(&t, "b", 20, 1, &b), DESCANT_OK);
    ck_assert_int_eq(tables_add_state(&t, b + 1, 1, &state), DESCANT_INVALID);
    ck_assert_int_eq(tables_add_state(&t, b, 0, &state), DESCANT_INVALID);
    ck_assert_int_eq(tables_add_state(&t, b, SIZE_MAX / 128, &state), DESCANT_INVALID);
    ck_assert_int_eq(tables_add_state(&t, b, 3, &state), DESCANT_OK);
    ck_assert_int_eq(tables_add_state(&t, b, 3, &state), DESCANT_DUPLICATE);
    char name[2][301];
    float *w[2];
    for (int k = 0; k < 2; k++) {
        memset(name[k], 'n', 300);
        name[k][299] = (char)('0' + k);
        name[k][300] = '\0';
        ck_assert_int_eq(tables_add(&t, name[k], 10, 4, &w[k]), DESCANT_OK);
    }
    ck_assert_ptr_ne(w[0], w[1]);
    uint64_t rows[] = {9, 10};
    ck_assert(tables_touch(&t, a, rows, 1));
    ck_assert(!tables_touch(&t, a, rows, 2));
    ck_assert(tables_touch(&t, b, rows, 2));
    ck_assert(!tables_touch(&t, a + 1, rows, 1));
    for (int n = 0; n < 300; n++)
        tables_touch(&t, a, rows, 1);
    ck_assert_uint_eq(t.list[0].heat[9], 255);
    ck_assert_uint_eq(t.list[1].heat[10], 1);
    f->type->close(f);
    loopback_destroy(world);
    tables_fini(&t);
    ck_assert_int_eq(memory_live(), 0);
}
END_TEST

/* One of two machines, started. part: bytes of a part, 0: as usual. */
static struct fabric *enter_wire(struct loopback *world, int rank, struct tables *t, float **w,
                                 size_t part, enum wire wire)
{
    struct fabric_options options = {.rank = rank, .size = 2, .wire = wire, .context = world};
    struct fabric_start start = {.manifest = "", .n = N, .room = N, .collective = true};
    struct plan plan;
    struct fabric *f;
    ck_assert_int_eq(plan_parse(&plan, "shadow-ma,hot=0", NULL), DESCANT_OK);
    ck_assert_int_eq(fabric_loopback.open(&f, &options), DESCANT_OK);
    tables_init(t, f, &plan);
    t->part_room = part ? part : t->part_room;
    ck_assert_int_eq(tables_add(t, "a", 10, 4, w), DESCANT_OK);
    ck_assert_int_eq(tables_add(t, "b", 5, 2, &(float *){NULL}), DESCANT_OK);
    start.rows_bytes = tables_part_bytes(t);
    ck_assert_int_eq(fabric_loopback.start(f, &start), DESCANT_OK);
    ck_assert_int_eq(tables_start(t), DESCANT_OK);
    return f;
}

static struct fabric *enter(struct loopback *world, int rank, struct tables *t, float **w,
                            size_t part)
{
    return enter_wire(world, rank, t, w, part, WIRE_F32);
}

static void meet(struct fabric **f)
{
    struct fabric_part part;
    static const struct vector none = {.n = N};
    struct exchange state = {.kind = EXCHANGE_STATE, .in = &none, .n = N};
    bool done[2] = {false};
    for (int k = 0; k < 2; k++)
        ck_assert_int_eq(fabric_loopback.begin(f[k], &state), DESCANT_OK);
    for (int turn = 0; !done[0] || !done[1]; turn++) {
        ck_assert_int_lt(turn, MOST_TURNS);
        done[turn % 2] |= fabric_loopback.poll(f[turn % 2], &part) == FABRIC_DONE;
    }
}

static void close_both(struct loopback *world, struct fabric **f, struct tables *t)
{
    for (int k = 0; k < 2; k++) {
        tables_stop(&t[k]);
        f[k]->type->close(f[k]);
    }
    loopback_destroy(world);
    for (int k = 0; k < 2; k++)
        tables_fini(&t[k]);
    ck_assert_int_eq(memory_live(), 0);
}

static const struct {
    uint64_t number;
    size_t n;                       /* bytes of the part: its head, a number, an update */
    uint16_t wire;
    bool good;
} parts[] = {
    {9, 8 + 8 + 16, 0, true},         {14, 8 + 8 + 8, 0, true},
    {10, 8 + 8 + 8, 0, true},         {15, 8 + 8 + 16, 0, false},
    {UINT64_MAX, 8 + 8 + 16, 0, false}, {9, 8 + 8 + 12, 0, false},
    {9, 8 + 4, 0, false},             {9, 4, 0, false},
    {9, 8 + 8 + 8, WIRE_Q8, true},    {9, 8 + 8 + 4, WIRE_Q8, false},
    {14, 8 + 8 + 4, WIRE_BF16, true}, {14, 8 + 8 + 8, WIRE_Q8, true},
    {9, 8 + 8 + 16, WIRE_Q8 + 1, false},
};

START_TEST(parts_are_checked)
{
    struct loopback *world = loopback_create_hosts(2, 1, 1);
    struct tables t[2];
    float *w, bytes[16] = {0};
    struct fabric *f[2] = {enter(world, 0, &t[0], &w, 0), enter(world, 1, &t[1], &w, 0)};
    meet(f);
    uint32_t one = 1;
    memcpy(bytes, &one, sizeof one);
    memcpy((char *)bytes + offsetof(struct rows_head, wire), &parts[_i].wire, sizeof one / 2);
    memcpy(bytes + 2, &parts[_i].number, sizeof parts[_i].number);
    ck_assert_int_eq(f[1]->type->rows->begin(f[1], bytes, parts[_i].n), DESCANT_OK);
    enum round_progress progress = ROUND_RESTING;
    struct rows_part part;
    for (int turn = 0; progress != ROUND_DONE && progress != ROUND_FAILED; turn++) {
        ck_assert_int_lt(turn, MOST_TURNS);
        progress = tables_advance(&t[0]);
        if (progress == ROUND_CALLED)
            tables_begin(&t[0], 1);
        f[1]->type->rows->poll(f[1], &part);
    }
    ck_assert_int_eq(progress, parts[_i].good ? ROUND_DONE : ROUND_FAILED);
    ck_assert_int_eq(f[0]->status, parts[_i].good ? DESCANT_OK : DESCANT_MISMATCH);
    close_both(world, f, t);
}
END_TEST

static void work(struct tables *t, float *w, uint64_t row)
{
    for (size_t c = 0; c < 4; c++)
        w[4 * row + c] += 1;
    ck_assert(tables_touch(t, w, &row, 1));
}

/* A round of both; it is done. */
static void both(struct tables *t)
{
    enum round_progress last[2] = {ROUND_WORKED, ROUND_WORKED};
    for (int k = 0; k < MOST_TURNS && (last[0] != ROUND_DONE || last[1] != ROUND_DONE); k++)
        if (last[k % 2] != ROUND_DONE)
            last[k % 2] = tables_advance(&t[k % 2]);
    ck_assert(last[0] == ROUND_DONE && last[1] == ROUND_DONE);
}

/* The sweep has put row 0, and the rest is being counted, when it is touched again. */
START_TEST(a_row_is_in_a_part_once)
{
    struct loopback *world = loopback_create_hosts(2, 1, 1);
    struct tables t[2];
    float *w[2];
    struct fabric *f[2] = {enter(world, 0, &t[0], &w[0], 8 + 3 * 24),
                           enter(world, 1, &t[1], &w[1], 8 + 3 * 24)};
    meet(f);
    work(&t[0], w[0], 0);
    work(&t[0], w[0], 1);
    for (int round = 1; round <= 2; round++) {
        for (int k = 0; k < 2; k++) {
            t[k].called = true;         /* by the other */
            tables_begin(&t[k], (uint64_t)round);
        }
        for (int k = 0; round == 1 && t[0].state != TABLES_COUNTING; k++) {
            ck_assert_int_lt(k, 10);
            tables_advance(&t[0]);
        }
        if (round == 1)
            work(&t[0], w[0], 0);
        both(t);
        for (int k = 0; k < 2; k++) {
            ck_assert_float_eq(t[k].list[0].base[0], (float)round);
            ck_assert_float_eq(t[k].list[0].base[4], 1);
            ck_assert_float_eq(w[k][0], (float)(k == 0 ? 2 : round));
            ck_assert_float_eq(w[k][4], 1);
        }
    }
    close_both(world, f, t);
}
END_TEST

static void turn(struct tables *t)
{
    enum round_progress progress = tables_advance(t);
    ck_assert_int_ne(progress, ROUND_FAILED);
    if ((progress == ROUND_RESTING || progress == ROUND_CALLED) && tables_can_begin(t))
        tables_begin(t, 1);
}

enum { SOME_ROWS = 10 };            /* of table a */

static void touched_at_any_time(uint64_t seed, enum wire wire)
{
    struct loopback *world = loopback_create_hosts(2, 1, 1);
    const size_t part = 8 + 7 * (8 + 16);       /* some rows, and one of them is the sweep's */
    struct tables t[2];
    struct rng rng;
    float *w[2], sum[SOME_ROWS] = {0};
    struct fabric *f[2] = {enter_wire(world, 0, &t[0], &w[0], part, wire),
                           enter_wire(world, 1, &t[1], &w[1], part, wire)};
    rng_init(&rng, seed);
    meet(f);
    for (int n = 0; n < 4000 || !tables_ended(&t[0]) || !tables_ended(&t[1]); n++) {
        ck_assert_int_lt(n, MOST_TURNS);
        uint64_t k = rng_next(&rng) % 2, row = rng_next(&rng) % SOME_ROWS;
        turn(&t[k]);
        if (n < 3000 && rng_next(&rng) % 2) {
            work(&t[k], w[k], row);
            sum[row] += 1;
        }
        if (n >= 3000)
            tables_stop(&t[k]);
    }
    for (int k = 0; k < 2; k++) {
        for (size_t at = 0; at < 4 * SOME_ROWS; at++)
            ck_assert_msg(fabsf(w[k][at] - sum[at / 4]) <= (wire == WIRE_F32 ? 0 : 1e-3f),
                          "seed %llu: machine %d, row %zu: %g, not %g",
                          (unsigned long long)seed, k, at / 4, (double)w[k][at],
                          (double)sum[at / 4]);
    }
    close_both(world, f, t);
}

/* Between any two advances, also while the part is filled: of rows that it has already, too. */
START_TEST(rows_may_be_touched_at_any_time)
{
    for (uint64_t seed = 1; seed <= 45; seed++)
        touched_at_any_time(seed, (enum wire)(seed % 3));
}
END_TEST

/* ------------------------------------------------------------------ a leader that closes */

enum { RANKS = 4, PER_HOST = 2 };

/* A trainer on one of two hosts, over the mpi fabric. */
struct rank {
    struct fabric *f;           /* NULL: it has closed */
    struct tables t;
    struct extent extent;
    struct vector in;
    float *w;
    bool closes;
};

static void rank_open(struct rank *rank, struct loopback *world, int k)
{
    struct fabric_options options = {.rank = k, .size = RANKS, .start_s = 10, .context = world};
    struct fabric_start start = {.manifest = "", .n = N, .room = N, .collective = true,
                                 .threads = 1};
    struct plan plan;
    ck_assert_int_eq(plan_parse(&plan, "shadow-ma,hot=0", NULL), DESCANT_OK);
    ck_assert_int_eq(fabric_loopback.open(&rank->f, &options), DESCANT_OK);
    tables_init(&rank->t, rank->f, &plan);
    rank->t.part_room = 8 + 7 * (8 + 16);
    ck_assert_int_eq(tables_add(&rank->t, "a", SOME_ROWS, 4, &rank->w), DESCANT_OK);
    start.rows_bytes = tables_part_bytes(&rank->t);
    ck_assert_int_eq(fabric_loopback.start(rank->f, &start), DESCANT_OK);
    ck_assert_int_eq(tables_start(&rank->t), DESCANT_OK);
    rank->extent = (struct extent){0, N, rank->f->contribution};
    rank->in = (struct vector){N, 1, &rank->extent};
    struct exchange state = {.kind = EXCHANGE_STATE, .in = &rank->in, .n = N};
    ck_assert_int_eq(fabric_loopback.begin(rank->f, &state), DESCANT_OK);
}

static void ranks_meet(struct rank *ranks)
{
    struct fabric_part part;
    unsigned met = 0;
    for (int turns = 0; met != (1 << RANKS) - 1; turns++) {
        ck_assert_int_lt(turns, MOST_TURNS);
        if (fabric_loopback.poll(ranks[turns % RANKS].f, &part) == FABRIC_DONE)
            met |= 1U << turns % RANKS;
    }
}

/* What is asked of who closes: first it takes what it has said to take. */
static void rank_turn(struct rank *rank)
{
    struct fabric_part part;
    fabric_loopback.poll(rank->f, &part);
    if (!rank->closes) {
        turn(&rank->t);
    } else if (rank->f->type->rows->leave(rank->f)) {
        ck_assert_int_ne(tables_advance(&rank->t), ROUND_FAILED);
    } else {
        tables_stop(&rank->t);
        fabric_loopback.close(rank->f);
        rank->f = NULL;
    }
}

static bool ranks_ended(const struct rank *ranks)
{
    for (int k = 0; k < RANKS; k++)
        if (ranks[k].f && (ranks[k].closes || !tables_ended(&ranks[k].t)))
            return false;
    return true;
}

/* The leader of a host closes at any moment of a round: no part is lost, and none comes twice. */
static void leader_closes(uint64_t seed)
{
    struct loopback *world = loopback_create_hosts(RANKS, PER_HOST, seed);
    struct rank ranks[RANKS] = {{0}};
    float sum[SOME_ROWS] = {0};
    struct rng rng;
    rng_init(&rng, seed);
    for (int k = 0; k < RANKS; k++)
        rank_open(&ranks[k], world, k);
    ranks_meet(ranks);
    int leaver = seed % 2 ? 0 : PER_HOST, closes = 1000 + (int)(rng_next(&rng) % 1000);
    for (int n = 0; n < 4000 || !ranks_ended(ranks); n++) {
        struct rank *rank = &ranks[rng_next(&rng) % RANKS];
        uint64_t row = rng_next(&rng) % SOME_ROWS;
        ck_assert_msg(n < MOST_TURNS, "seed %d: it does not end", (int)seed);
        ranks[leaver].closes = n >= closes;
        if (rank->f == NULL)
            continue;
        if (n < 3000 && !rank->closes && rng_next(&rng) % 4 == 0) {
            work(&rank->t, rank->w, row);
            sum[row] += 1;
        }
        if (n >= 3000)
            tables_stop(&rank->t);
        rank_turn(rank);
    }
    for (int k = 0; k < RANKS; k++)
        for (size_t at = 0; at < 4 * SOME_ROWS && k != leaver; at++)
            ck_assert_msg(fabsf(ranks[k].w[at] - sum[at / 4]) <= 0,
                          "seed %d: rank %d, row %zu: %g, not %g", (int)seed, k, at / 4,
                          (double)ranks[k].w[at], (double)sum[at / 4]);
    for (int k = 0; k < RANKS; k++)
        if (ranks[k].f)
            fabric_loopback.close(ranks[k].f);
    loopback_destroy(world);
    for (int k = 0; k < RANKS; k++)
        tables_fini(&ranks[k].t);
    ck_assert_int_eq(memory_live(), 0);
}

START_TEST(a_leader_that_closes_leaves_whole_rounds)
{
    for (uint64_t seed = 1; seed <= 24; seed++)
        leader_closes(seed);
}
END_TEST

/* ------------------------------------------------------------------ kernels */

START_TEST(kernels_agree_with_plain_loops)
{
    const struct kernels *const sets[] = {&kernels_base, kernels_best()};
    const struct kernels *k = sets[_i];
    struct rng rng;
    rng_init(&rng, 9);
    for (size_t n = 0; n < 2000; n += n < 200 ? 1 : 97) {
        float w[2000], base[2000], d[2000];
        unsigned char heat[2000];
        uint32_t counts[256] = {0}, plain[256] = {0};
        bool any;
        for (size_t i = 0; i < n; i++) {
            w[i] = base[i] = (float)rng_uniform(&rng);
            heat[i] = rng_next(&rng) % (n < 200 ? 4 : 400) ? 0 : (unsigned char)rng_next(&rng);
            plain[heat[i]]++;
        }
        ck_assert(k->less(d, w, base, n, &any) && !any);
        for (size_t i = 0; i < n; i++) {
            float kept = w[i];
            w[i] = kept + 1e-30f * (kept == 0) + 1e-6f;
            ck_assert(k->less(d, w, base, n, &any) && any && d[i] == w[i] - base[i]);
            w[i] = NAN;
            ck_assert(!k->less(d, w, base, n, &any));
            w[i] = INFINITY;
            ck_assert(!k->less(d, w, base, n, &any));
            w[i] = kept;
        }
        memcpy(w, base, sizeof w);
        k->add(w, base, 1, n);
        for (size_t i = 0; i < n; i++)
            ck_assert(w[i] == base[i] + base[i]);
        k->tally(heat, n, counts);
        ck_assert_mem_eq(counts + 1, plain + 1, sizeof counts - sizeof *counts);
        for (int least = 1; least < 256; least += 50) {
            size_t first = 0;
            while (first < n && heat[first] < least)
                first++;
            ck_assert_uint_eq(k->hot(heat, n, (unsigned char)least), first);
        }
    }
}
END_TEST

int main(void)
{
    TCase *steps = new_case("steps", 60);
    tcase_add_test(steps, touches_are_checked);
    tcase_add_loop_test(steps, parts_are_checked, 0, N(parts));
    tcase_add_test(steps, a_row_is_in_a_part_once);
    tcase_add_test(steps, rows_may_be_touched_at_any_time);
    tcase_add_test(steps, a_leader_that_closes_leaves_whole_rounds);
    tcase_add_loop_test(steps, kernels_agree_with_plain_loops, 0, 2);
    return run_cases(steps, NULL);
}
