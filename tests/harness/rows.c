/* SPDX-License-Identifier: MIT */
#include "harness/rows.h"

#include "harness/suite.h"

#include <math.h>

struct descant_owned rows_shape(uint64_t rows, size_t width,
                                enum descant_rows_optimizer optimizer)
{
    return (struct descant_owned){.rows = rows, .width = width, .optimizer = optimizer,
                                  .beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-3, .seed = 5};
}

void rows_let_grow(struct descant_owned *shape)
{
    shape->rows = 0;
    shape->grows = 1;
    shape->admit = 1;
    shape->memory = 2 * slab_least(OWNED_SLICES, shape->width + owned_state(shape));
}

struct simulated *rows_world;
struct rows_side rows_sides[RANKS_MOST];
struct rows_way rows_way;
int rows_n;
char rows_logged[4096];
int rows_inherited;
double rows_pushed[RANKS_ROWS];

static int n_owners;

static void note(void *user, enum descant_level level, const char *line)
{
    (void)user;
    size_t had = strlen(rows_logged);

    if (strstr(line, "that it owned, from replicas"))
        rows_inherited++;
    else if (level >= DESCANT_WARNING)
        snprintf(rows_logged + had, sizeof rows_logged - had, "%s\n", line);
}

static void let_move(struct service *s, int rank, bool late)
{
    static double shares[RANKS_MOST];

    for (int k = 0; k < n_owners; k++)
        shares[k] = 1;
    const struct moves_options options = {.shares = shares, .n = n_owners, .late = late,
                                          .share = rank < n_owners || late,
                                          .follow_s = rows_way.follow_s};
    ck_assert(moves_init(s, &options));
}

static uint64_t now(void)
{
    return simulated_now(rows_world);
}

static void open_side(int rank, bool late)
{
    struct rows_side *side = &rows_sides[rank];
    struct link_entry entry = {.context = rows_world, .rank = rank};
    struct link_place at;
    struct link *link = link_simulated.meet(&entry, &at);
    const struct log log = {note, NULL, rank};
    struct descant_owned shapes[] = {
        rows_shape(RANKS_ROWS, RANKS_WIDTH, DESCANT_ROWS_SGD),
        rows_shape((UINT64_C(1) << 33) + 1, 700, DESCANT_ROWS_SGD)};     /* ids of 8 bytes */

    if (rows_way.moves)                 /* all of its rows are to move */
        shapes[1] = rows_shape(700, 5, DESCANT_ROWS_ADAGRAD);
    shapes[0].wire = rows_way.wire;
    shapes[0].age = rows_way.age;
    if (rows_way.grows)
        rows_let_grow(&shapes[0]);
    if (rows_way.memory)
        shapes[0].memory = rows_way.memory;
    memset(&side->service, 0, sizeof side->service);
    ck_assert_ptr_nonnull(link);
    ck_assert_int_eq(service_init(&side->service, link, &at, n_owners, &log), DESCANT_OK);
    side->service.now_ns = now;
    if (rows_way.moves)
        let_move(&side->service, rank, late);
    for (int k = 0; k < 2; k++) {
        ck_assert(owned_init(&side->tables[k], "t", &shapes[k], k));
        /* the large one: memory for a few rows, as none are born beyond */
        side->memory[k] = k && !rows_way.moves
                              ? NULL
                              : memory_take(owned_bytes(&side->tables[k], &side->service.map,
                                                        rank));
        owned_place(&side->tables[k], &side->service.map, rank, side->memory[k]);
    }
    ck_assert_int_eq(service_open(&side->service, side->tables, 2), DESCANT_OK);
    side->open = true;
}

void rows_open(int rank)
{
    open_side(rank, false);
}

void rows_open_late(int rank)
{
    open_side(rank, true);
}

void rows_open_world(struct simulated_options options, int ranks, int of_them)
{
    options.ranks = ranks;
    options.latency_ns = options.latency_ns ? options.latency_ns : 1000;
    rows_world = simulated_create(&options);
    ck_assert_ptr_nonnull(rows_world);
    rows_n = ranks;
    n_owners = of_them;
    *rows_logged = 0;
    rows_inherited = 0;
    for (int k = 0; k < ranks - rows_way.later; k++)
        rows_open(k);
}

void rows_run(uint64_t ns)
{
    uint64_t until = simulated_now(rows_world) + ns;

    for (;;) {
        bool works = false;
        for (int k = 0; k < rows_n; k++)
            while (rows_sides[k].open && service_turn(&rows_sides[k].service) == OWNERS_WORKED)
                works = true;
        uint64_t next = simulated_next(rows_world), tick = simulated_now(rows_world) + 5000000;
        if (rows_way.moves && next > tick)      /* as a thread looks from time to time */
            next = tick;
        if (!works && simulated_now(rows_world) >= until)
            return;
        if (!works)
            simulated_run(rows_world, next < until ? next : until);
    }
}

void rows_close(int rank)
{
    struct rows_side *side = &rows_sides[rank];

    if (!side->open)
        return;
    side->open = false;
    service_fini(&side->service);
    for (int k = 0; k < 2; k++) {
        owned_fini(&side->tables[k]);
        memory_give(side->memory[k]);
    }
}

void rows_close_world(void)
{
    for (int k = 0; k < rows_n; k++)
        rows_close(k);
    simulated_destroy(rows_world);
    ck_assert_int_eq(memory_live(), 0);
}

float *rows_come(int rank, struct descant_rows *batch)
{
    struct service *s = &rows_sides[rank].service;

    for (int k = 0; k < 1000 && !batch_here(s, batch) && !atomic_load(&s->status); k++)
        rows_run(1000000);
    return batch_ready(batch) ? batch_wait(s, batch) : NULL;
}

/* By row `k` of a test: any number, in a table that grows. */
static uint64_t id_of(uint64_t k)
{
    return rows_way.grows ? k * UINT64_C(0x123456789abcdef1) : k;
}

struct descant_rows *rows_fetch(int rank, const uint64_t *rows, size_t n)
{
    static uint64_t ids[8000];
    struct descant_rows *batch = NULL;

    for (size_t k = 0; k < n; k++)
        ids[k] = id_of(rows[k]);
    ck_assert_int_eq(batch_fetch(&rows_sides[rank].service, 0, ids, n, &batch), DESCANT_OK);
    return batch;
}

/* A batch of random rows, many of them twice, each rows_pushed by -1 or a few. */
void rows_push_some(int rank, struct rng *rng, size_t n)
{
    static uint64_t rows[8000];
    static float g[8000 * RANKS_WIDTH];

    for (size_t k = 0; k < n; k++)
        rows[k] = rng_next(rng) % (k % 2 ? 40 : RANKS_ROWS);
    struct descant_rows *batch = rows_fetch(rank, rows, n);
    if (rng_next(rng) % 4)
        ck_assert_ptr_nonnull(rows_come(rank, batch));
    if (rng_next(rng) % 8 == 0) {
        batch_let_go(&rows_sides[rank].service, batch);      /* also before its rows have come */
        return;
    }
    for (size_t k = 0; k < n; k++) {
        float by = (float)(1 + rng_next(rng) % 3);
        rows_pushed[rows[k]] += (double)by;
        for (int i = 0; i < RANKS_WIDTH; i++)
            g[k * RANKS_WIDTH + (size_t)i] = -by * (float)(i + 1);
    }
    ck_assert_int_eq(batch_push(&rows_sides[rank].service, batch, g, 1), DESCANT_OK);
}

void rows_check(int rank)
{
    static uint64_t rows[RANKS_ROWS];

    for (uint64_t k = 0; k < RANKS_ROWS; k++)
        rows[k] = (k * 7) % RANKS_ROWS;
    struct descant_rows *batch = rows_fetch(rank, rows, RANKS_ROWS);
    const float *block = rows_come(rank, batch);
    ck_assert_ptr_nonnull(block);
    for (size_t k = 0; k < RANKS_ROWS; k++)
        for (int i = 0; i < RANKS_WIDTH; i++) {
            double is = (double)block[k * RANKS_WIDTH + (size_t)i];
            double was = rows_pushed[rows[k]];
            ck_assert_msg(fabs(is - (i + 1) * was) <= (rows_way.wire ? 0.05 * RANKS_WIDTH * was : 0),
                          "rank %d, row %d: %g, not %g", rank, (int)rows[k], is, (i + 1) * was);
        }
    batch_let_go(&rows_sides[rank].service, batch);
}

void rows_end_all(void)
{
    for (int k = 0; k < rows_n; k++)
        if (rows_sides[k].open)
            service_end(&rows_sides[k].service);
    rows_run(UINT64_C(20000000000));
    for (int k = 0; k < rows_n; k++)
        if (rows_sides[k].open)
            ck_assert_int_eq(service_turn(&rows_sides[k].service), OWNERS_ENDED);
}

