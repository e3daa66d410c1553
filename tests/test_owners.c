/* SPDX-License-Identifier: MIT */
/* Rows with owners: where they lie, their first values, their optimizers; and the service between
 * ranks, over the simulated link in one thread: all that is pushed arrives once, in worlds with
 * jitter, cuts, deaths and liars. */
#include "harness/rows.h"
#include "harness/suite.h"

#include <math.h>

enum { FEW = 8, ROWS = RANKS_ROWS, WIDTH = RANKS_WIDTH, SEEDS = 30 };

extern const struct kernels kernels_avx2, kernels_avx512;

static const struct kernels *set_of(int i)
{
    const struct kernels *best = kernels_best();
#if defined(__x86_64__)
    if (i == 1)
        return best == &kernels_base ? NULL : &kernels_avx2;
    if (i == 2)
        return best == &kernels_avx512 ? best : NULL;
#endif
    return i == 0 ? &kernels_base : NULL;
}

static const struct log silent = {.rank = -1};

static void *place(struct owned *table, const struct owned_map *map, int rank,
                   const struct descant_owned *shape, int number)
{
    ck_assert(owned_init(table, "t", shape, number));
    void *memory = memory_take(owned_bytes(table, map, rank));
    ck_assert_ptr_nonnull(memory);
    ck_assert(owned_place(table, map, rank, memory));
    return memory;
}

/* ------------------------------------------------------------------ rows */

/* A row of each owner, so that its answer is waited for; of slices that are shut each, for it is
 * not known who answers for them. Small tables have fewer slices. */
START_TEST(a_settle_asks_each_owner)
{
    static const uint64_t sizes[] = {3, 100, OWNED_SLICES, 5000};
    static struct owned_map map;
    static uint64_t rows[OWNED_SLICES];
    struct descant_owned shape = rows_shape(sizes[_i % N(sizes)], 1, DESCANT_ROWS_SGD);
    struct owned table;
    struct rng chance;

    rng_init(&chance, (uint64_t)_i);
    owned_map_make(&map, 1 + (int)(rng_next(&chance) % 40));
    ck_assert(owned_init(&table, "t", &shape, _i));
    table.map = &map;
    for (int k = 0; k < OWNED_SLICES; k++)
        map.shut[k] = _i % 3 && rng_next(&chance) % (_i % 3 == 1 ? 50 : 2) == 0;
    size_t n = owned_of_each(&table, rows);
    bool asked[OWNED_SLICES] = {false}, owners[OWNED_SLICES] = {false};
    for (size_t k = 0; k < n; k++) {
        ck_assert(owned_has(&table, rows[k]) && (k == 0 || rows[k] > rows[k - 1]));
        int slice = owned_slice(&table, rows[k]);
        asked[slice] = true;
        ck_assert(map.shut[slice] || !owners[map.owner[slice]]);
        owners[map.owner[slice]] |= !map.shut[slice];
    }
    for (uint64_t row = 0; row < shape.rows; row++) {
        int slice = owned_slice(&table, row);
        ck_assert(map.shut[slice] ? asked[slice] : owners[map.owner[slice]]);
    }
    owned_fini(&table);
}
END_TEST

START_TEST(each_row_has_one_owner_and_a_place)
{
    static const int sizes[] = {1, 2, 3, 7, 64, 1024};
    static struct owned_map map;
    static bool taken[OWNED_SLICES][ROWS / OWNED_SLICES + 1];

    for (int i = 0; i < N(sizes); i++) {
        int size = sizes[i], counts[1024] = {0};
        struct descant_owned shape = rows_shape(ROWS, 2, DESCANT_ROWS_SGD);
        struct owned table;
        owned_map_make(&map, size);
        void *memory = place(&table, &map, 0, &shape, 3);
        memset(taken, 0, sizeof taken);
        for (uint64_t row = 0; row < ROWS; row++) {
            bool *at = &taken[owned_slice(&table, row)][row / OWNED_SLICES];
            ck_assert(!*at);
            *at = true;
            counts[owned_owner(&table, row)]++;
        }
        for (int k = 0; k < size; k++)
            ck_assert_int_le(abs(counts[k] - ROWS / size), ROWS / OWNED_SLICES + 2);
        owned_fini(&table);
        memory_give(memory);
    }
    ck_assert_int_eq(memory_live(), 0);
}
END_TEST

/* Each rank has its share of the slices, and of any 64 that follow each other; equal shares are
 * turns. */
START_TEST(shares_are_kept)
{
    static const struct {
        const char *text;
        int size;
    } good[] = {{"1", 1}, {"1,1,1", 3}, {"2,1,1", 3}, {"0,3,0.5,1,0", 4}, {"7,0,1", 3}};
    static const char *const bad[] = {"", "0", "0,0", "1,", ",1", "1;2",
                                      "-1,2", "nan", "1 2", "1,x"};
    static struct owned_map map, turns;
    double shares[8];

    for (int i = 0; i < N(good); i++) {
        int size = owned_shares(good[i].text, shares, 8);
        double sum = 0;
        ck_assert_int_eq(size, good[i].size);
        owned_map_share(&map, shares, size);
        ck_assert_int_eq(map.size, size);
        for (int k = 0; k < size; k++)
            sum += shares[k];
        for (int k = 0; k < size; k++) {
            double part = shares[k] / sum;
            int places = 0, near = 0;
            for (int s = 0; s < OWNED_SLICES; s++) {
                if (map.owner[s] == k)
                    ck_assert_int_eq(map.place[s], places++);
                near += (map.owner[s] == k) - (s >= 64 && map.owner[s - 64] == k);
                ck_assert(s < 63 || fabs(near - 64 * part) <= 3);
            }
            ck_assert_int_eq(map.slices[k], places);
            ck_assert(fabs(places - OWNED_SLICES * part) <= 1);
        }
    }
    owned_map_make(&turns, 3);
    owned_map_share(&map, (double[]){1, 1, 1}, 3);
    ck_assert_mem_eq(&map, &turns, sizeof map);
    for (int i = 0; i < N(bad); i++)
        ck_assert_msg(owned_shares(bad[i], shares, 8) == -1, "'%s'", bad[i]);
    ck_assert_int_eq(owned_shares("1,1,1,1,1,1,1,1", shares, 8), 8);
    ck_assert_int_eq(owned_shares("1,1,1,1,1,1,1,1,1", shares, 8), -1);
}
END_TEST

/* Also where another number of ranks owns the rows, and in any order. */
START_TEST(first_values_follow_from_the_seed)
{
    struct owned_map one, many;
    struct owned whole, part;
    struct descant_owned shape = rows_shape(ROWS, WIDTH, DESCANT_ROWS_ADAGRAD);
    float a[WIDTH], b[WIDTH], before[WIDTH] = {0};
    double sum = 0, squares = 0;

    shape.spread = 0.25;
    owned_map_make(&one, 1);
    owned_map_make(&many, 5);
    void *memories[] = {place(&whole, &one, 0, &shape, 0), place(&part, &many, 2, &shape, 0)};
    for (uint64_t row = 0; row < ROWS; row++) {
        owned_read(&whole, &row, NULL, 1, a);
        ck_assert(memcmp(a, before, sizeof a) != 0);
        memcpy(before, a, sizeof a);
        if (owned_here(&part, row)) {
            owned_read(&part, &row, NULL, 1, b);
            ck_assert_mem_eq(a, b, sizeof a);
        }
        for (int k = 0; k < WIDTH; k++) {
            ck_assert(a[k] >= -0.25f && a[k] < 0.25f);
            sum += (double)a[k];
            squares += (double)(a[k] * a[k]);
        }
    }
    ck_assert(fabs(sum / (ROWS * WIDTH)) < 0.01);
    ck_assert(fabs(squares / (ROWS * WIDTH) - 0.25 * 0.25 / 3) < 0.001);
    owned_fini(&whole);
    owned_fini(&part);
    memory_give(memories[0]);
    memory_give(memories[1]);
}
END_TEST

/* One float of one row, as PyTorch's pages have the rules, in double. `mean`: of g g over the
 * row. */
static double naive(const struct descant_owned *o, double *state, double w, double g, double mean,
                    double rate)
{
    switch (o->optimizer) {
    case DESCANT_ROWS_SGD:
        state[0] = o->momentum * state[0] + g;
        return w - rate * state[0];
    case DESCANT_ROWS_ADAGRAD:
        state[0] += g * g;
        return w - rate * g / (sqrt(state[0]) + o->epsilon);
    case DESCANT_ROWS_ROWWISE_ADAGRAD:
        state[0] += mean;
        return w - rate * g / (sqrt(state[0]) + o->epsilon);
    case DESCANT_ROWS_ADAM:
        state[0] = o->beta1 * state[0] + (1 - o->beta1) * g;
        state[1] = o->beta2 * state[1] + (1 - o->beta2) * g * g;
        state[2]++;
        return w - rate * (state[0] / (1 - pow(o->beta1, state[2]))) /
                       (sqrt(state[1] / (1 - pow(o->beta2, state[2]))) + o->epsilon);
    }
    return NAN;
}

START_TEST(optimizers_step_as_naive_ones)
{
    enum { WIDEST = 37, STEPS = 50 };
    static const struct {
        enum descant_rows_optimizer optimizer;
        double momentum;
    } kinds[] = {{DESCANT_ROWS_SGD, 0}, {DESCANT_ROWS_SGD, 0.9}, {DESCANT_ROWS_ADAGRAD, 0},
                 {DESCANT_ROWS_ROWWISE_ADAGRAD, 0}, {DESCANT_ROWS_ADAM, 0}};
    const struct kernels *kernels = set_of(_i % 3);
    struct owned_map map;
    struct rng rng;

    if (!kernels)
        return;
    owned_map_make(&map, 1);
    rng_init(&rng, 3);
    for (int kind = 0; kind < N(kinds); kind++)
        for (size_t width = 1; width <= WIDEST; width += width < 18 ? 1 : 19) {
            struct descant_owned shape = rows_shape(40, width, kinds[kind].optimizer);
            struct owned table;
            double w[WIDEST], state[WIDEST][3] = {{0}};
            float g[WIDEST], out[WIDEST];
            uint64_t row = 17, bad_row;
            shape.momentum = kinds[kind].momentum;
            shape.spread = 1;
            if (_i >= 3)
                rows_let_grow(&shape);
            void *memory = place(&table, &map, 0, &shape, 1);
            table.kernels = kernels;
            owned_read(&table, &row, NULL, 1, out);
            for (size_t k = 0; k < width; k++)
                w[k] = (double)out[k];
            for (int step = 0; step < STEPS; step++) {
                double mean = 0;
                for (size_t k = 0; k < width; k++) {
                    g[k] = (float)rng_normal(&rng);
                    mean += (double)g[k] * (double)g[k] / (double)width;
                }
                for (size_t k = 0; k < width; k++)
                    w[k] = naive(&shape, state[k], w[k], (double)g[k], mean, 0.0625);
                ck_assert_uint_eq(owned_push(&table, &row, NULL, 1, g, 0.0625f, &bad_row), 0);
            }
            owned_read(&table, &row, NULL, 1, out);
            for (size_t k = 0; k < width; k++)
                ck_assert_msg(fabs((double)out[k] - w[k]) < 2e-4,
                              "%s, optimizer %d, width %zu: %g, not %g", kernels->name, kind, width,
                              (double)out[k], w[k]);
            owned_fini(&table);
            memory_give(memory);
        }
}
END_TEST

/* The loops of kernels.c, for all instruction sets: the same bits, and nothing beyond the ends. */
START_TEST(sets_of_instructions_agree)
{
    enum { LONGEST = 70, ROOM = LONGEST + 8 };
    const struct kernels *sets[] = {set_of(0), set_of(_i)};
    const struct adam a = {0.9f, 0.99f, 0.1f, 0.01f, 1e-3f, 0.1f, 1.3f, 0.1f, 0.95f};
    float of[2][5][ROOM];
    struct rng rng;

    rng_init(&rng, 2);
    for (size_t n = 0; sets[1] && n <= LONGEST; n++) {
        for (int x = 0; x < 5; x++)
            for (int k = 0; k < ROOM; k++)
                of[0][x][k] = of[1][x][k] = (float)fabs(rng_normal(&rng));
        for (int k = 0; k < 2; k++) {
            float (*x)[ROOM] = of[k];
            sets[k]->momentum(x[0] + 1, x[1], x[2], n, 0.1f, 0.9f, 0.01f);
            sets[k]->adagrad(x[0], x[1] + 1, x[3] + 2, n, 0.1f, 1e-3f, 0.01f);
            sets[k]->adam(x[0] + 3, x[1], x[2], x[4] + 1, n, &a);
            if (n)
                sets[k]->rowwise(x[0], x[1] + 2, x[3] + ROOM - 1, n, 0.1f, 1e-3f);
        }
        ck_assert_msg(memcmp(of[0], of[1], sizeof of[0]) == 0, "%s, %zu floats", sets[1]->name, n);
    }
}
END_TEST

/* Zeros are no sign that a row is unborn, whether they come by a step or are set. */
START_TEST(a_row_of_zeros_stays)
{
    struct owned_map map;
    struct owned table;
    struct descant_owned shape = rows_shape(ROWS, WIDTH, DESCANT_ROWS_SGD);
    const uint64_t rows[] = {4, 9, 7};
    uint64_t bad_row, saved[3], at = 0;
    float first[3 * WIDTH], out[3 * WIDTH], records[3 * WIDTH] = {0};

    shape.spread = 0.1;
    owned_map_make(&map, 1);
    void *memory = place(&table, &map, 0, &shape, 0);
    owned_read(&table, rows, NULL, 3, first);
    ck_assert(first[0] != 0 && first[WIDTH] != 0);
    ck_assert_uint_eq(owned_push(&table, rows, NULL, 2, first, 1, &bad_row), 0);
    owned_set(&table, &rows[2], 1, records);
    owned_read(&table, rows, NULL, 3, out);
    for (int k = 0; k < 3 * WIDTH; k++)
        ck_assert(out[k] == 0);
    ck_assert_uint_eq(owned_push(&table, rows, NULL, 3, first, -1, &bad_row), 0);
    ck_assert_uint_eq(owned_push(&table, rows, NULL, 3, first, 1, &bad_row), 0);
    ck_assert_uint_eq(owned_next(&table, &at, 3, saved, records), 3);
    for (int k = 0; k < 3 * WIDTH; k++)
        ck_assert(records[k] == 0);
    owned_fini(&table);
    memory_give(memory);
}
END_TEST

START_TEST(gradients_that_are_not_finite_are_left_out)
{
    struct owned_map map;
    struct owned table;
    struct descant_owned shape = rows_shape(ROWS, WIDTH, DESCANT_ROWS_SGD);
    const uint64_t rows[] = {4, 9, 7};
    float g[] = {1, 1, 1, 2, NAN, 2, 3, 3, -INFINITY}, out[9];
    uint64_t bad_row = 0;

    owned_map_make(&map, 1);
    void *memory = place(&table, &map, 0, &shape, 0);
    ck_assert_uint_eq(owned_push(&table, rows, NULL, 3, g, -1, &bad_row), 2);
    ck_assert_uint_eq(bad_row, 7);
    owned_read(&table, rows, NULL, 3, out);
    for (int k = 0; k < 9; k++)
        ck_assert(out[k] == (k < 3 ? 1 : 0));
    owned_fini(&table);
    memory_give(memory);
}
END_TEST

/* Values to the nearest, gradients by chance with an exact mean; of a row of NaN or Inf something
 * stays that is not finite. */
START_TEST(rows_travel_in_fewer_bits)
{
    static const double error[] = {0, 0x1p-8, 0.51 / 127};
    enum { WIDEST = 19, TIMES = 20000 };
    struct owned table = {.shape = rows_shape(5, 1, DESCANT_ROWS_SGD)};
    uint64_t chance = 1;
    struct rng rng;

    rng_init(&rng, 1);
    table.shape.wire = (enum descant_rows_wire)_i;
    for (size_t width = 1; width <= WIDEST; width++) {
        float row[WIDEST], out[WIDEST + 1];
        unsigned char bytes[4 * WIDEST + 8];
        double sum[WIDEST] = {0}, top = 0;
        table.shape.width = width;
        ck_assert_uint_eq(owned_row_bytes(&table) % 4, 0);
        ck_assert_uint_le(owned_row_bytes(&table), _i ? 2 * width + 8 : 4 * width);
        memset(bytes, 77, sizeof bytes);
        for (size_t k = 0; k < width; k++) {
            row[k] = (float)(rng_normal(&rng) * exp(rng_normal(&rng)));
            top = fmax(top, fabs((double)row[k]));
        }
        out[width] = 5;
        owned_encode(&table, row, bytes, NULL);
        owned_decode(&table, bytes, out);
        ck_assert(bytes[owned_row_bytes(&table)] == 77 && out[width] == 5);
        for (size_t k = 0; k < width; k++)
            ck_assert(fabs((double)(out[k] - row[k])) <= error[_i] * top);
        for (int time = 0; _i && time < TIMES; time++) {
            owned_encode(&table, row, bytes, &chance);
            owned_decode(&table, bytes, out);
            for (size_t k = 0; k < width; k++) {
                ck_assert(fabs((double)(out[k] - row[k])) <= 2.1 * error[_i] * top);
                sum[k] += (double)out[k];
            }
        }
        for (size_t k = 0; _i && k < width; k++)        /* 5 deviations */
            ck_assert_msg(fabs(sum[k] / TIMES - (double)row[k]) <=
                          5 * error[_i] * top / sqrt(TIMES) + 1e-6 * top,
                          "wire %d, width %zu: %g, not %g", _i, width, sum[k] / TIMES,
                          (double)row[k]);
        for (int bad = 0; bad < 3; bad++) {
            row[width / 2] = bad == 0 ? NAN : bad == 1 ? INFINITY : -INFINITY;
            owned_encode(&table, row, bytes, bad % 2 ? &chance : NULL);
            owned_decode(&table, bytes, out);
            ck_assert(!kernels_best()->finite(out, width));
        }
    }
}
END_TEST

/* What ranks have saved is taken by another number of ranks. */
START_TEST(records_go_to_any_number_of_ranks)
{
    enum { RECORD = 2 * WIDTH, ROOM = 97 };
    struct owned_map of_three, of_two;
    struct owned three[3], two[2];
    void *memory[5];
    struct descant_owned shape = rows_shape(ROWS, WIDTH, DESCANT_ROWS_ADAGRAD);
    static uint64_t rows[ROOM];
    static float records[ROOM * RECORD], before[ROWS * WIDTH], after[ROWS * WIDTH];
    struct rng rng;
    int born = 0, seen = 0;

    shape.spread = 1;
    if (_i)
        rows_let_grow(&shape);
    rng_init(&rng, 1);
    owned_map_make(&of_three, 3);
    owned_map_make(&of_two, 2);
    for (int k = 0; k < 3; k++)
        memory[k] = place(&three[k], &of_three, k, &shape, 5);
    for (int k = 0; k < 2; k++)
        memory[3 + k] = place(&two[k], &of_two, k, &shape, 5);
    for (uint64_t row = 0; row < ROWS; row++) {
        struct owned *x = &three[owned_owner(&three[0], row)];
        float g[] = {(float)rng_normal(&rng), 2, 3};
        uint64_t bad_row;
        if (rng_next(&rng) % 3 == 0) {
            owned_push(x, &row, NULL, 1, g, 0.1f, &bad_row);
            born++;
        }
        owned_read(x, &row, NULL, 1, before + row * WIDTH);
    }
    for (int k = 0; k < 3; k++) {
        uint64_t at = 0;
        size_t n;
        while ((n = owned_next(&three[k], &at, ROOM, rows, records)) > 0) {
            seen += (int)n;
            for (int to = 0; to < 2; to++)
                owned_set(&two[to], rows, n, records);
        }
    }
    ck_assert_int_eq(seen, born);
    seen = 0;
    for (int k = 0; k < 2; k++) {
        uint64_t at = 0;
        size_t n;
        while ((n = owned_next(&two[k], &at, ROOM, rows, records)) > 0)
            for (size_t i = 0; i < n; i++, seen++)
                ck_assert(owned_owner(&two[k], rows[i]) == k && records[i * RECORD + WIDTH] > 0);
    }
    ck_assert_int_eq(seen, born);
    for (uint64_t row = 0; row < ROWS; row++)
        owned_read(&two[owned_owner(&two[0], row)], &row, NULL, 1, after + row * WIDTH);
    ck_assert_mem_eq(before, after, sizeof before);
    for (int k = 0; k < 5; k++) {
        owned_fini(k < 3 ? &three[k] : &two[k - 3]);
        memory_give(memory[k]);
    }
}
END_TEST

/* ------------------------------------------------------------------ tables that grow */

static float third_of(const struct owned *table, uint64_t row)
{
    float values[WIDTH];

    owned_read(table, &row, NULL, 1, values);
    return values[2];
}

START_TEST(ids_of_any_kind_are_spread_over_the_ranks)
{
    enum { SIZE = 12, IDS = 60000 };
    struct owned_map map;
    struct descant_owned shape = rows_shape(0, WIDTH, DESCANT_ROWS_SGD);
    struct owned table;
    int counts[SIZE] = {0};

    owned_map_make(&map, SIZE);
    rows_let_grow(&shape);
    void *memory = place(&table, &map, 0, &shape, 7);
    for (uint64_t k = 0; k < IDS; k++)
        counts[owned_owner(&table, _i == 0 ? k : _i == 1 ? k << 44 : k * 1024)]++;
    for (int k = 0; k < SIZE; k++)      /* 5 deviations, and slices that are one more */
        ck_assert_int_le(abs(counts[k] - IDS / SIZE),
                         (int)(5 * sqrt(IDS / SIZE)) + IDS / OWNED_SLICES);
    owned_fini(&table);
    memory_give(memory);
}
END_TEST

/* By shares, too, of which some are 0: a slice has as many rows everywhere, but for rounding. */
START_TEST(memory_is_parted_as_rows_are)
{
    static const double shares[][4] = {{1, 1, 1, 1}, {2, 1, 0, 1}, {1000, 1, 0, 0}, {0, 0, 0, 1}};
    struct descant_owned shape = rows_shape(0, WIDTH, DESCANT_ROWS_SGD);
    struct owned_map map;
    struct owned table;
    size_t room = 0, sum = 0, owners = 0;

    rows_let_grow(&shape);
    shape.memory = slab_least(OWNED_SLICES, WIDTH);
    owned_map_share(&map, shares[_i], 4);
    for (int rank = 0; rank < 4; rank++) {
        void *memory = place(&table, &map, rank, &shape, 0);
        ck_assert_uint_eq(table.slab.stripes, (size_t)map.slices[rank]);
        if (map.slices[rank]) {
            ck_assert_uint_ge(table.slab.room, SLAB_LEAST);
            ck_assert(!room || (table.slab.room >= room - 5 && table.slab.room <= room + 5));
            room = table.slab.room;
            owners++;
        }
        sum += owned_bytes(&table, &map, rank);
        if (_i == 0)
            ck_assert_uint_le(owned_bytes(&table, &map, rank), shape.memory);
        owned_fini(&table);
        memory_give(memory);
    }
    ck_assert(sum <= owners * shape.memory && sum + shape.memory / 100 > owners * shape.memory);
}
END_TEST

/* Also where there are fewer rows than ranks, and ranks without a share. */
START_TEST(a_row_of_each_owner_is_found)
{
    static const double shares[] = {2, 0, 1, 0, 0, 5, 0.001};
    static struct owned_map maps[4];
    static uint64_t rows[OWNED_SLICES];
    struct owned table;

    owned_map_make(&maps[0], 1);
    owned_map_make(&maps[1], 7);
    owned_map_make(&maps[2], OWNED_SLICES);
    owned_map_share(&maps[3], shares, N(shares));
    for (int k = 0; k < N(maps); k++)
        for (uint64_t of = 0; of < 6000; of = of ? of * 5 : 1) {    /* 0: it grows */
            struct descant_owned shape = rows_shape(of, WIDTH, DESCANT_ROWS_SGD);
            int has[OWNED_SLICES] = {0};
            if (of == 0)
                rows_let_grow(&shape);
            ck_assert(owned_init(&table, "t", &shape, 3));
            table.map = &maps[k];
            for (uint64_t row = 0; row < (of ? of : 20000); row++)
                has[owned_owner(&table, row)] = 1;
            size_t n = owned_of_each(&table, rows);
            for (size_t i = 0; i < n; i++)
                ck_assert_int_eq(has[owned_owner(&table, rows[i])]--, 1);
            for (int rank = 0; rank < maps[k].size; rank++)
                ck_assert_int_eq(has[rank], 0);
            owned_fini(&table);
        }
}
END_TEST

/* Of each slice that is on its way, too, also where an owner has no others. */
START_TEST(a_row_of_each_slice_on_its_way_is_found)
{
    static struct owned_map map;
    static uint64_t rows[OWNED_SLICES];
    struct descant_owned shape = rows_shape(5000, WIDTH, DESCANT_ROWS_SGD);
    struct owned table;
    int asked[OWNED_SLICES] = {0}, open[4] = {0}, closed = 0;

    if (_i)
        rows_let_grow(&shape);
    owned_map_make(&map, 4);
    for (int s = 0; s < OWNED_SLICES; s++)
        map.shut[s] = map.owner[s] == 2 || s % 10 == 3;
    ck_assert(owned_init(&table, "t", &shape, 3));
    table.map = &map;
    size_t n = owned_of_each(&table, rows);
    ck_assert_uint_lt(n, OWNED_SLICES);
    for (size_t i = 0; i < n; i++) {
        int slice = owned_slice(&table, rows[i]);
        open[map.owner[slice]] += !map.shut[slice];
        asked[slice]++;
    }
    for (int s = 0; s < OWNED_SLICES; s++) {
        ck_assert(!map.shut[s] || asked[s] == 1);
        closed += map.shut[s];
    }
    ck_assert_uint_eq(n, (size_t)closed + 3);
    for (int k = 0; k < 4; k++)
        ck_assert_int_eq(open[k], k != 2);
    owned_fini(&table);
}
END_TEST

/* Each slice has memory to itself: all have equal room, and together they take no more than the
 * ranks of the start may. With the least memory that a table can have. */
START_TEST(slices_that_move_have_equal_room)
{
    static const double shares[][4] = {{1, 1, 1, 0}, {1}, {3, 1, 0, 0.5}, {1, 1, 1, 1}};
    struct descant_owned shape = rows_shape(0, WIDTH, DESCANT_ROWS_SGD);
    static struct owned_map map;
    struct owned table;
    size_t room = 0, sum = 0, owners = 0;

    rows_let_grow(&shape);
    while (owned_check("t", &shape, &silent))
        shape.memory -= 64;
    shape.memory += 64;
    owned_map_share(&map, shares[_i], 4);
    map.moves = true;
    for (int rank = 0; rank < 4; rank++) {
        void *memory = place(&table, &map, rank, &shape, 0);
        ck_assert_uint_ge(table.per_slice, SLAB_LEAST);
        ck_assert(!room || table.per_slice == room);
        room = table.per_slice;
        owners += map.slices[rank] > 0;
        sum += owned_bytes(&table, &map, rank);
        for (int s = 0; s < OWNED_SLICES; s++) {
            ck_assert((table.parts[s].slab != NULL) == (map.owner[s] == rank));
            if (!table.parts[s].slab)
                ck_assert(owned_part_take(&table, s));
            ck_assert_uint_eq(table.parts[s].slab->room, room);
        }
        owned_fini(&table);
        memory_give(memory);
    }
    ck_assert_uint_eq(room, _i == 1 ? SLAB_LEAST : room);
    ck_assert(sum <= owners * shape.memory && sum > owners * shape.memory * 9 / 10);
    ck_assert_int_eq(memory_live(), 0);
}
END_TEST

/* A slice leaves with its rows, and what was evicted in it stays counted. */
START_TEST(figures_are_of_the_slices_that_are_owned)
{
    enum { IDS = 40000 };
    struct descant_owned shape = rows_shape(0, WIDTH, DESCANT_ROWS_SGD);
    static struct owned_map map;
    struct owned table;
    const float g[WIDTH] = {0, 0, -1};
    uint64_t bad_row, left = 0;

    rows_let_grow(&shape);
    owned_map_make(&map, 1);
    map.moves = true;
    void *memory = place(&table, &map, 0, &shape, 0);
    for (uint64_t id = 0; id < IDS; id++)
        owned_push(&table, &id, NULL, 1, g, 1, &bad_row);
    struct slab_figures f = owned_figures(&table);
    ck_assert_uint_eq(f.live + f.evicted, IDS);
    ck_assert_uint_gt(f.evicted, IDS / 10);
    for (int s = 0; s < 500; s++) {
        left += table.parts[s].slab->stripe->live;
        owned_map_change(&map, s, 1, 2);
    }
    ck_assert_uint_eq(owned_figures(&table).live, f.live - left);
    for (int s = 0; s < 500; s++)
        owned_part_give(&table, s);
    ck_assert_uint_eq(owned_figures(&table).live, f.live - left);
    ck_assert_uint_eq(owned_figures(&table).evicted, f.evicted);
    owned_fini(&table);
    memory_give(memory);
}
END_TEST

/* By pushes that are admitted. */
START_TEST(only_pushes_make_rows)
{
    enum { IDS = 3000 };
    struct owned_map map;
    struct descant_owned shape = rows_shape(0, WIDTH, DESCANT_ROWS_SGD);
    struct owned table;
    const float g[WIDTH] = {0, 0, -1}, bad[WIDTH] = {0, NAN, 0};
    uint64_t bad_row, there = 0;
    static float first[IDS];

    owned_map_make(&map, 1);
    rows_let_grow(&shape);
    shape.admit = 0.25;
    shape.spread = 0.5;
    void *memory = place(&table, &map, 0, &shape, 0);
    for (uint64_t id = 0; id < IDS; id++) {
        first[id] = third_of(&table, id << 32);
        ck_assert_uint_eq(owned_push(&table, &(uint64_t){id << 32}, NULL, 1, bad, 1, &bad_row), 1);
    }
    ck_assert_uint_eq(slab_figures(&table.slab).live, 0);
    ck_assert_uint_eq(slab_figures(&table.slab).refused, 0);
    for (uint64_t id = 0; id < IDS; id++)
        owned_push(&table, &(uint64_t){id << 32}, NULL, 1, g, 1, &bad_row);
    for (uint64_t id = 0; id < IDS; id++) {
        float now = third_of(&table, id << 32);
        ck_assert(now == first[id] || now == first[id] + 1);
        there += now != first[id];
    }
    ck_assert(fabs((double)there - 0.25 * IDS) < 5 * sqrt(0.25 * 0.75 * IDS));
    ck_assert_uint_eq(slab_figures(&table.slab).live, there);
    ck_assert_uint_eq(slab_figures(&table.slab).refused, IDS - there);
    owned_fini(&table);
    memory_give(memory);
}
END_TEST

/* More than there is memory for, by pushes and by set: it goes on with those that came last, and an
 * evicted row begins anew, with its optimizer's state. */
START_TEST(memory_bounds_the_rows)
{
    enum { IDS = 60000, RECORD = 2 * WIDTH };
    struct owned_map map;
    struct descant_owned shape = rows_shape(0, WIDTH, DESCANT_ROWS_ADAGRAD);
    struct owned table;
    float record[RECORD] = {0, 0, 1, 5, 5, 5};
    const float g[WIDTH] = {0, 0, -1};
    uint64_t bad_row, again;

    owned_map_make(&map, 1);
    rows_let_grow(&shape);
    shape.memory = slab_least(OWNED_SLICES, RECORD);
    void *memory = place(&table, &map, 0, &shape, 0);
    for (uint64_t id = 0; id < IDS; id++) {
        if (_i)
            owned_set(&table, &id, 1, record);
        else
            owned_push(&table, &id, NULL, 1, g, 1, &bad_row);
        ck_assert(fabs((double)third_of(&table, id) - 1) < 0.01);
    }
    struct slab_figures f = slab_figures(&table.slab);
    ck_assert_uint_eq(f.live, OWNED_SLICES * SLAB_LEAST);
    ck_assert_uint_eq(f.evicted, IDS - f.live);
    ck_assert_uint_le(f.bytes, shape.memory);
    for (again = 0; third_of(&table, again) != 0; again++)
        ;
    owned_push(&table, &again, NULL, 1, g, 1, &bad_row);
    ck_assert(fabs((double)third_of(&table, again) - 1) < 0.01);
    owned_fini(&table);
    memory_give(memory);
}
END_TEST

START_TEST(bad_shapes_are_refused)
{
    const struct descant_owned good = rows_shape(5, 3, DESCANT_ROWS_ADAM);
    struct descant_owned bad[24], grows = good;

    ck_assert(owned_check("t", &good, &silent));
    ck_assert(!owned_check("", &good, &silent) && !owned_check(NULL, &good, &silent) &&
              !owned_check("t", NULL, &silent));
    rows_let_grow(&grows);
    grows.memory = OWNED_SLICES * (128 + slab_least(1, 3 + 7));
    ck_assert(owned_check("t", &grows, &silent));
    for (int k = 0; k < N(bad); k++)
        bad[k] = k < 14 || k > 20 ? good : grows;
    bad[0].rows = 0;
    bad[1].rows = UINT64_MAX;
    bad[2].width = 0;
    bad[3].width = 5000;
    bad[4].optimizer = (enum descant_rows_optimizer)4;
    bad[5].momentum = 1;
    bad[6].beta1 = NAN;
    bad[7].beta2 = -0.1;
    bad[8].epsilon = INFINITY;
    bad[9].spread = -1;
    bad[10].spread = NAN;
    bad[11].memory = 1 << 30;
    bad[12].admit = 0.5;
    bad[13].unused_s = 1;
    bad[14].rows = 5;
    bad[15].memory = 0;
    bad[16].memory = OWNED_SLICES * (128 + slab_least(1, 3 + 7)) - 1;
    bad[17].admit = 0;
    bad[18].admit = 1.01;
    bad[19].unused_s = NAN;
    bad[20].memory = UINT64_MAX;
    bad[21].age = -1;
    bad[22].age = NAN;
    bad[23].age = 1;                    /* a record of 3 x 4096 floats is too long to be copied */
    bad[23].width = 4096;
    for (int k = 0; k < N(bad); k++)
        ck_assert_msg(!owned_check("t", &bad[k], &silent), "shape %d", k);
}
END_TEST

/* ------------------------------------------------------------------ ranks */

/* By all ranks at once, with batches of any size; ranks that own nothing are among them. */
START_TEST(all_that_is_pushed_arrives_once)
{
    struct rng rng;
    int ranks = 1 + _i % FEW;

    rng_init(&rng, (uint64_t)_i);
    memset(rows_pushed, 0, sizeof rows_pushed);
    rows_way.grows = _i % 4 > 1;
    rows_open_world((struct simulated_options){.seed = (uint64_t)_i, .fixed = _i % 2,
                                          .jitter_ns = _i % 3 ? 100000 : 0,
                                          .bytes_per_s = _i % 5 ? 1e9 : 0}, ranks,
               _i % 7 == 6 && ranks > 1 ? ranks - 1 : ranks);
    for (int k = 0; k < 12 * ranks; k++)
        rows_push_some((int)(rng_next(&rng) % (uint64_t)ranks), &rng,
                  rng_next(&rng) % (k % 5 ? 60 : 8000));
    rows_run(UINT64_C(1000000000));
    for (int k = 0; k < ranks; k++)
        rows_check(k);
    rows_end_all();
    ck_assert_str_eq(rows_logged, "");
    rows_close_world();
}
END_TEST

START_TEST(all_arrives_in_fewer_bits)
{
    struct rng rng;

    rng_init(&rng, 1);
    memset(rows_pushed, 0, sizeof rows_pushed);
    rows_way.wire = (enum descant_rows_wire)_i;
    rows_open_world((struct simulated_options){.jitter_ns = 10000}, 3, 3);
    for (int k = 0; k < 30; k++)
        rows_push_some(k % 3, &rng, rng_next(&rng) % 3000);
    rows_run(UINT64_C(1000000000));
    for (int k = 0; k < 3; k++)
        rows_check(k);
    rows_end_all();
    rows_close_world();
}
END_TEST

START_TEST(a_rank_reads_its_own_pushes)
{
    const uint64_t rows[] = {0, 1, 2, 3, 1};
    float g[5 * WIDTH];

    memset(rows_pushed, 0, sizeof rows_pushed);
    rows_open_world((struct simulated_options){.jitter_ns = 50000}, 4, 4);
    for (int k = 0; k < 5 * WIDTH; k++)
        g[k] = -1;
    for (int step = 1; step < 50; step++) {
        struct descant_rows *batch = rows_fetch(2, rows, 5);
        const float *block = rows_come(2, batch);
        ck_assert_ptr_nonnull(block);
        ck_assert(block[0] == (float)(step - 1) && block[3] == (float)(2 * step - 2));
        ck_assert_int_eq(batch_push(&rows_sides[2].service, batch, g, 1), DESCANT_OK);
    }
    rows_end_all();
    rows_close_world();
}
END_TEST

static uint32_t wakes_since(uint32_t *bell)
{
    uint32_t before = *bell;

    *bell = atomic_load(&rows_sides[1].service.bell);
    return *bell - before;
}

/* The simulated link does not wake, so that service_wake rings the service's own bell. */
START_TEST(a_push_and_the_next_fetch_wake_the_service_once)
{
    static const uint64_t rows[] = {0, 1, 2, 3, 4, 5, 6, 7};
    static const float g[8 * RANKS_WIDTH];
    struct service *s = &rows_sides[1].service;

    rows_open_world((struct simulated_options){.seed = 1, .fixed = true}, 3, 3);
    rows_run(1000000);
    struct descant_rows *batch = rows_fetch(1, rows, 8), *next;
    ck_assert_ptr_nonnull(rows_come(1, batch));
    uint32_t bell = atomic_load(&s->bell);
    ck_assert_int_eq(batch_push_more(s, batch, g, 1), DESCANT_OK);
    ck_assert_uint_eq(wakes_since(&bell), 0);
    next = rows_fetch(1, rows, 8);
    ck_assert_uint_eq(wakes_since(&bell), 1);
    ck_assert_ptr_nonnull(rows_come(1, next));
    ck_assert_int_eq(batch_push(s, next, g, 1), DESCANT_OK);
    ck_assert_uint_eq(wakes_since(&bell), 1);
    rows_end_all();
    rows_close_world();
}
END_TEST

START_TEST(cuts_that_heal_lose_nothing)
{
    struct rng rng;

    rng_init(&rng, (uint64_t)_i);
    memset(rows_pushed, 0, sizeof rows_pushed);
    rows_open_world((struct simulated_options){.seed = (uint64_t)_i, .jitter_ns = 10000}, 3, 3);
    for (int k = 0; k < 30; k++) {
        uint64_t now = simulated_now(rows_world);
        const struct simulated_fault cut = {.kind = SIMULATED_CUT, .rank = k % 3,
                                            .other = (k + 1) % 3, .at_ns = now,
                                            .until_ns = now + rng_next(&rng) % 3000000};
        if (k % 4 == 0)
            ck_assert(simulated_fault(rows_world, &cut));
        rows_push_some(k % 3, &rng, rng_next(&rng) % 900);
    }
    rows_run(UINT64_C(1000000000));
    rows_check(0);
    rows_end_all();
    rows_close_world();
}
END_TEST

/* With its rows; one that owns none goes without harm, and may come again. */
START_TEST(an_owner_that_dies_ends_it_for_all)
{
    struct rng rng;
    int dies = _i ? 1 : 3;
    const uint64_t rows[] = {1, 2, 3, 4, 5, 6, 7, 8};

    rng_init(&rng, 1);
    memset(rows_pushed, 0, sizeof rows_pushed);
    rows_open_world((struct simulated_options){.seed = 1}, 4, 3);
    rows_push_some(3, &rng, 50);
    rows_run(1000000000);
    const struct simulated_fault death = {.kind = SIMULATED_DIE, .rank = dies,
                                          .at_ns = simulated_now(rows_world)};
    ck_assert(simulated_fault(rows_world, &death));
    rows_close(dies);
    rows_run(1000000000);
    if (dies == 3) {
        rows_push_some(0, &rng, 300);
        rows_run(1000000000);
        rows_open(3);
        rows_push_some(3, &rng, 300);
        rows_run(1000000000);
        rows_check(3);
        rows_end_all();
    } else {
        ck_assert_ptr_nonnull(strstr(rows_logged, "rank 1 has gone, and with it its rows"));
        ck_assert_int_eq(service_turn(&rows_sides[0].service), OWNERS_FAILED);
        struct descant_rows *batch = NULL;
        ck_assert_int_eq(batch_fetch(&rows_sides[0].service, 0, rows, 8, &batch), DESCANT_OK);
        ck_assert_ptr_null(batch_wait(&rows_sides[0].service, batch));
        float g[8 * WIDTH] = {0};
        ck_assert_int_eq(batch_push(&rows_sides[0].service, batch, g, 1), DESCANT_ENDED);
    }
    rows_close_world();
}
END_TEST

/* However many ranks: a row costs its values, its gradient, two ids, and a part of two heads. */
/* 256 ranks, with OWNERS_MANY, take 5 GB. */
START_TEST(bytes_follow_the_law)
{
    enum { BATCH = 3328 };
    static const int sizes[] = {2, 16, 64, 256};
    static uint64_t rows[BATCH];
    static float g[BATCH * WIDTH];
    int ranks = sizes[_i];
    uint64_t bytes = 0, served = 0;
    struct rng rng;

    rng_init(&rng, 3);
    rows_open_world((struct simulated_options){.seed = 3, .bytes_per_s = 1e9}, ranks, ranks);
    for (int k = 0; k < ranks; k++) {
        for (int i = 0; i < BATCH; i++)
            rows[i] = rng_next(&rng) % ROWS;
        struct descant_rows *batch = rows_fetch(k, rows, BATCH);
        ck_assert_ptr_nonnull(rows_come(k, batch));
        ck_assert_int_eq(batch_push(&rows_sides[k].service, batch, g, 1), DESCANT_OK);
    }
    rows_run(1000000000);
    for (int k = 0; k < ranks; k++) {
        bytes += rows_sides[k].service.stats.bytes;
        served += rows_sides[k].service.stats.served;
    }
    double remote = (double)ranks * BATCH * (ranks - 1) / ranks, law = 2 * remote * (8 * WIDTH + 8);
    ck_assert(fabs((double)served / (2 * remote) - 1) < 0.02);
    ck_assert_msg((double)bytes > 0.98 * law && (double)bytes < 1.1 * law, "%g of the law",
                  (double)bytes / law);
    rows_end_all();
    rows_close_world();
}
END_TEST

/* As another link knows; also one that has never come, and one that is silent. */
START_TEST(a_lost_owner_ends_it_for_all)
{
    const uint64_t rows[] = {1, 2, 3};

    rows_open_world((struct simulated_options){.seed = 1}, 3, 3);
    const struct simulated_fault pause = {.kind = SIMULATED_VANISH, .rank = 1,
                                          .at_ns = simulated_now(rows_world) +
                                                   (_i ? 0 : 1000000000)};
    ck_assert(simulated_fault(rows_world, &pause));
    rows_run(_i ? 1 : 2000000000);
    struct descant_rows *batch = rows_fetch(0, rows, 3);
    rows_run(UINT64_C(60000000000));
    ck_assert_uint_gt(atomic_load(&batch->missing), 0);
    ck_assert(!service_lose(&rows_sides[0].service, 1));
    ck_assert_int_eq(service_turn(&rows_sides[0].service), OWNERS_FAILED);
    ck_assert_ptr_null(batch_wait(&rows_sides[0].service, batch));
    batch_let_go(&rows_sides[0].service, batch);
    service_part(&rows_sides[0].service);
    rows_close_world();
}
END_TEST

/* One without rows ends when it likes. */
START_TEST(a_rank_without_rows_ends_alone)
{
    struct rng rng;

    rng_init(&rng, 1);
    memset(rows_pushed, 0, sizeof rows_pushed);
    rows_open_world((struct simulated_options){.seed = 1}, 3, 2);
    rows_push_some(2, &rng, 300);
    service_end(&rows_sides[2].service);
    rows_run(1000000000);
    ck_assert_int_eq(service_turn(&rows_sides[2].service), OWNERS_ENDED);
    rows_close(2);
    rows_push_some(1, &rng, 300);
    rows_run(1000000000);
    rows_check(0);
    service_end(&rows_sides[0].service);
    rows_run(1000000000);
    ck_assert_int_ne(service_turn(&rows_sides[0].service), OWNERS_ENDED);    /* rank 1 may ask it */
    rows_check(1);
    rows_end_all();
    rows_close_world();
}
END_TEST

/* Each taking of memory fails once; nothing is lost but the call. */
START_TEST(calls_without_memory_fail_alone)
{
    struct rng rng;
    uint64_t rows[900];
    float g[900 * WIDTH];
    int failed = 0;

    rng_init(&rng, 1);
    for (long at = 1; at < 60; at++) {
        memset(rows_pushed, 0, sizeof rows_pushed);
        rows_open_world((struct simulated_options){.seed = 1, .fixed = true}, 3, 3);
        for (int k = 0; k < 900; k++)
            rows[k] = rng_next(&rng) % ROWS;
        memset(g, 0, sizeof g);
        rows_run(1000000);
        memory_fail_at(at);
        struct descant_rows *batch = NULL;
        if (batch_fetch(&rows_sides[0].service, 0, rows, 900, &batch) == DESCANT_OK &&
            batch_push(&rows_sides[0].service, batch, g, 1) == DESCANT_OK)
            failed--;
        memory_fail_at(0);
        failed++;
        rows_run(1000000000);
        if (!atomic_load(&rows_sides[1].service.status) &&
            !atomic_load(&rows_sides[2].service.status)) {
            rows_check(0);
            rows_end_all();
        }
        rows_close_world();
    }
    ck_assert_int_gt(failed, 5);
}
END_TEST

/* ------------------------------------------------------------------ liars */

static struct link *liar;
static unsigned char lie[2 * ASK_BYTES];

static void open_liar(int rank)
{
    struct link_entry entry = {.context = rows_world, .rank = rank};
    struct link_place at;
    liar = link_simulated.meet(&entry, &at);
    ck_assert_ptr_nonnull(liar);
}

static void liar_collects(void)
{
    struct link_news news;
    ck_assert(link_simulated.collect(liar, &news));
}

/* A rank without rows says what is no ask: it is forgotten, and the others go on. */
START_TEST(what_is_no_ask_is_refused)
{
    static const char *const way = "in no known way", *const number = "another number of rows",
                             *const length = "longer than an ask", *const others = "another rank's",
                             *const no_row = "a row that there is not",
                             *const none = "copies of a table that has none";
    static const struct {
        struct ask_head head;
        uint32_t row;
        size_t bytes;
        const char *const *why;
    } lies[] = {
        {{.kind = 0, .n = 1}, 0, 20, &way},
        {{.kind = ASK_COPY + 1, .n = 1}, 0, 20, &way},
        {{.kind = ASK_COPY, .n = 1}, 0, 20, &none},     /* these tables have no age */
        {{.kind = ASK_FETCH, .n = 0}, 0, 16, &number},
        {{.kind = ASK_FETCH, .n = 1}, 0, 16, &number},
        {{.kind = ASK_FETCH, .n = 1}, 0, 24, &number},
        {{.kind = ASK_FETCH, .n = 1, .table = 2}, 0, 20, &way},
        {{.kind = ASK_FETCH, .n = 1}, ROWS, 20, &no_row},
        {{.kind = ASK_FETCH, .n = 1}, 1, 20, &others},
        {{.kind = ASK_FETCH, .n = UINT32_MAX}, 0, 20, &number},
        {{.kind = ASK_FETCH, .n = 40, .table = 1}, 1, 336, &number},    /* its answer is too long */
        {{.kind = ASK_PUSH, .n = 1}, 0, 20, &number},
        {{.kind = ASK_PUSH, .n = 1, .rate = NAN}, 0, 32, &way},
        {{.kind = ASK_PUSH, .n = 1}, 0, 15, &length},
        {{.kind = ASK_FETCH, .n = 1}, 0, 2 * ASK_BYTES, &length},
    };
    struct rng rng;

    rng_init(&rng, 1);
    memset(rows_pushed, 0, sizeof rows_pushed);
    rows_open_world((struct simulated_options){.seed = 1}, 3, 2);
    rows_close(2);
    rows_run(1000000000);
    open_liar(2);
    rows_run(1000000000);
    memset(lie, 0, sizeof lie);
    memcpy(lie, &lies[_i].head, sizeof lies[_i].head);
    memcpy(lie + sizeof lies[_i].head, &lies[_i].row, sizeof lies[_i].row);
    liar_collects();
    for (int k = 0; k < 3; k++)
        ck_assert(link_simulated.send(liar, lie, lies[_i].bytes,
                                      &(struct link_message){0, OWNERS_ASK, 0, NULL}));
    rows_run(1000000000);
    const char *line = strstr(rows_logged, "rank 2 breaks the protocol");
    ck_assert_msg(line && strstr(line, *lies[_i].why), "%d: %s", _i, rows_logged);
    ck_assert_ptr_null(strstr(line + 1, "rank 2 breaks"));      /* once */
    rows_push_some(1, &rng, 300);
    rows_run(1000000000);
    rows_check(0);
    link_simulated.close(liar, false);
    rows_end_all();
    rows_close_world();
}
END_TEST

/* A rank that asks and takes no answers is heard no more, and costs a bounded memory. */
START_TEST(answers_that_nobody_takes_are_bounded)
{
    struct ask_head head = {.kind = ASK_FETCH, .n = 2000};
    struct rng rng;

    rng_init(&rng, 1);
    memset(rows_pushed, 0, sizeof rows_pushed);
    rows_open_world((struct simulated_options){.seed = 1}, 3, 1);
    rows_close(2);
    rows_run(1000000000);
    open_liar(2);
    rows_run(1000000000);
    memset(lie, 0, sizeof lie);
    memcpy(lie, &head, sizeof head);
    liar_collects();
    for (int k = 0; k < 4 * OWNERS_ANSWERS; k++) {
        ck_assert(link_simulated.send(liar, lie, sizeof head + 4 * head.n,
                                      &(struct link_message){0, OWNERS_ASK, 0, NULL}));
        rows_run(1000000);
        liar_collects();
    }
    ck_assert_int_ge(rows_sides[0].service.peers[2].n_answers, OWNERS_ANSWERS);
    ck_assert_int_lt(rows_sides[0].service.peers[2].n_answers, OWNERS_ANSWERS + OWNERS_LANES);
    rows_push_some(1, &rng, 3000);
    rows_run(1000000000);
    rows_check(1);
    link_simulated.close(liar, false);
    rows_run(1000000000);
    ck_assert_int_eq(rows_sides[0].service.peers[2].n_answers, 0);
    rows_end_all();
    rows_close_world();
}
END_TEST

int main(void)
{
    TCase *rows = new_case("rows", 60), *ranks = new_case("ranks", 120),
          *liars = new_case("liars", 60);

    tcase_add_test(rows, each_row_has_one_owner_and_a_place);
    tcase_add_loop_test(rows, a_settle_asks_each_owner, 0, 24);
    tcase_add_test(rows, shares_are_kept);
    tcase_add_test(rows, first_values_follow_from_the_seed);
    tcase_add_loop_test(rows, optimizers_step_as_naive_ones, 0, 6);
    tcase_add_loop_test(rows, sets_of_instructions_agree, 1, 3);
    tcase_add_test(rows, a_row_of_zeros_stays);
    tcase_add_test(rows, gradients_that_are_not_finite_are_left_out);
    tcase_add_loop_test(rows, rows_travel_in_fewer_bits, 0, 3);
    tcase_add_loop_test(rows, records_go_to_any_number_of_ranks, 0, 2);
    tcase_add_loop_test(rows, ids_of_any_kind_are_spread_over_the_ranks, 0, 3);
    tcase_add_loop_test(rows, memory_is_parted_as_rows_are, 0, 4);
    tcase_add_test(rows, a_row_of_each_owner_is_found);
    tcase_add_loop_test(rows, a_row_of_each_slice_on_its_way_is_found, 0, 2);
    tcase_add_loop_test(rows, slices_that_move_have_equal_room, 0, 4);
    tcase_add_test(rows, figures_are_of_the_slices_that_are_owned);
    tcase_add_test(rows, only_pushes_make_rows);
    tcase_add_loop_test(rows, memory_bounds_the_rows, 0, 2);
    tcase_add_test(rows, bad_shapes_are_refused);
    tcase_add_loop_test(ranks, all_that_is_pushed_arrives_once, 0, few(SEEDS, 4));
    tcase_add_loop_test(ranks, all_arrives_in_fewer_bits, 1, 3);
    tcase_add_loop_test(ranks, bytes_follow_the_law, 0, getenv("OWNERS_MANY") ? 4 : 3);
    tcase_add_test(ranks, a_rank_reads_its_own_pushes);
    tcase_add_test(ranks, a_push_and_the_next_fetch_wake_the_service_once);
    tcase_add_loop_test(ranks, cuts_that_heal_lose_nothing, 0, few(SEEDS / 3, 3));
    tcase_add_loop_test(ranks, an_owner_that_dies_ends_it_for_all, 0, 2);
    tcase_add_loop_test(ranks, a_lost_owner_ends_it_for_all, 0, 2);
    tcase_add_test(ranks, a_rank_without_rows_ends_alone);
    tcase_add_test(ranks, calls_without_memory_fail_alone);
    tcase_add_loop_test(liars, what_is_no_ask_is_refused, 0, 15);
    tcase_add_test(liars, answers_that_nobody_takes_are_bounded);
    return run_cases(rows, ranks, liars, NULL);
}
