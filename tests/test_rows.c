/* SPDX-License-Identifier: MIT */
/* Rounds of rows among hosts, over a simulated link. All trainers live in this thread and are
 * turned by chance; whatever that chance is, all leaders must have been shown the same parts in the
 * same order, with the bytes that were given. */
#include "harness/suite.h"
#include "ranks/ranks.h"
#include "mpi_loopback.h"

#include <check.h>
#include <string.h>

enum { MOST = 8, N = 3000, BYTES = 5000, ROUNDS = 25, TURNS = 2000000, SEEDS = 6 };

static const struct {
    int size, per_host;
} rows[] = {{1, 1}, {2, 1}, {3, 1}, {4, 2}, {5, 2}, {7, 3}};

enum { N_ROWS = sizeof rows / sizeof *rows };

/* What a leader was shown: a sum over rounds, ranks and bytes in their order. */
struct rows_trainer {
    struct fabric *f;
    struct extent extent;
    struct vector in;
    _Alignas(float) unsigned char part[BYTES];
    size_t n;
    bool open, leads, heir, busy;       /* rows; an exchange is open */
    int rounds, last_rank, exchanges;
    bool own_seen;
    uint64_t sum;                       /* of all rounds that are done */
    uint64_t round_sum;
};

static struct rows_world {
    int row;
    struct rng rng;
    struct loopback *ranks;
    struct rows_trainer t[MOST];
    uint64_t sums[ROUNDS + MOST];       /* after each round, as the first has it */
    int slow;                           /* is turned rarely; -1: nobody */
} w;

static uint64_t mix(uint64_t sum, const void *bytes, size_t n)
{
    const unsigned char *p = bytes;
    for (size_t i = 0; i < n; i++)
        sum = (sum ^ p[i]) * UINT64_C(0x100000001b3);
    return sum;
}

static void open_world(int row, uint64_t seed)
{
    memset(&w, 0, sizeof w);
    w.row = row;
    w.slow = -1;
    rng_init(&w.rng, seed);
    int size = rows[row].size;
    w.ranks = loopback_create_hosts(size, rows[row].per_host, seed);
    for (int k = 0; k < size; k++) {
        struct rows_trainer *t = &w.t[k];
        struct fabric_options o = {.rank = k, .size = size, .address = "", .context = w.ranks};
        struct fabric_start start = {.manifest = "x\n", .n = N, .room = N, .collective = true,
                                     .threads = 1, .rows_bytes = BYTES};
        ck_assert_int_eq(fabric_loopback.open(&t->f, &o), DESCANT_OK);
        ck_assert(t->f->many_hosts == (size > rows[row].per_host));
        ck_assert_int_eq(fabric_loopback.start(t->f, &start), DESCANT_OK);
        t->extent = (struct extent){0, N, t->f->contribution};
        t->in = (struct vector){N, 1, &t->extent};
    }
}

static void close_trainer(int k)
{
    if (w.t[k].f)
        fabric_loopback.close(w.t[k].f);
    w.t[k].f = NULL;
}

static void close_world(void)
{
    for (int k = 0; k < rows[w.row].size; k++)
        close_trainer(k);
    loopback_destroy(w.ranks);
    ck_assert_int_eq(memory_live(), 0);
}

static void begin(struct rows_trainer *t, enum exchange_kind kind, bool final)
{
    struct exchange x = {.kind = kind, .in = &t->in, .n = N, .weight = 1, .final = final};
    ck_assert_int_eq(t->f->type->begin(t->f, &x), DESCANT_OK);
    t->busy = true;
}

static void turn_exchange(struct rows_trainer *t)
{
    struct fabric_part part;
    enum fabric_progress progress = t->f->type->poll(t->f, &part);
    ck_assert_int_ne(progress, FABRIC_FAILED);
    if (progress == FABRIC_DONE) {
        t->busy = false;
        t->exchanges++;
    }
}

static void meet(void)
{
    for (int k = 0; k < rows[w.row].size; k++)
        begin(&w.t[k], EXCHANGE_STATE, false);
    for (int busy = 1, turn = 0; busy; turn++) {
        ck_assert_int_lt(turn, TURNS);
        busy = 0;
        for (int k = 0; k < rows[w.row].size; k++) {
            turn_exchange(&w.t[k]);
            busy += w.t[k].busy;
        }
    }
}

static bool leads(const struct rows_trainer *t)
{
    return atomic_load(&t->f->host_leader);
}

/* Some parts are empty, some as long as can be. */
static void give(struct rows_trainer *t)
{
    uint64_t kind = rng_next(&w.rng) % 4;
    t->n = kind == 0 ? 0 : kind == 1 ? BYTES : rng_next(&w.rng) % BYTES / 4 * 4;
    for (size_t i = 0; i < t->n; i++)
        t->part[i] = (unsigned char)rng_next(&w.rng);
    t->last_rank = -1;
    t->own_seen = false;
    t->round_sum = 0;
    ck_assert_int_eq(t->f->type->rows->begin(t->f, t->part, t->n), DESCANT_OK);
    t->open = true;
}

static void look(struct rows_trainer *t, const struct rows_part *part)
{
    ck_assert_int_gt(part->rank, t->last_rank);
    t->last_rank = part->rank;
    ck_assert_uint_eq((uintptr_t)part->bytes % sizeof(float), 0);
    ck_assert(part->own == (part->rank == t->f->rank));
    if (part->own) {
        ck_assert_uint_eq(part->n, t->n);
        ck_assert(t->n == 0 || memcmp(part->bytes, t->part, t->n) == 0);
        t->own_seen = true;
    }
    t->round_sum = mix(t->round_sum, &part->rank, sizeof part->rank);
    t->round_sum = mix(t->round_sum, part->bytes, part->n);
}

static void end_round(struct rows_trainer *t)
{
    ck_assert(t->own_seen);
    t->open = false;
    if (t->heir)                        /* its first: the number is that of the others */
        for (t->rounds = 0; w.sums[t->rounds] && w.sums[t->rounds] != t->round_sum;)
            t->rounds++;
    t->heir = false;
    if (w.sums[t->rounds] == 0)
        w.sums[t->rounds] = t->round_sum;
    ck_assert_uint_eq(w.sums[t->rounds], t->round_sum);
    t->rounds++;
}

/* True if it may begin one: another has, or this is the first. */
static bool turn_rows(struct rows_trainer *t)
{
    struct rows_part part;
    enum fabric_progress progress = t->f->type->rows->poll(t->f, &part);
    ck_assert_int_ne(progress, FABRIC_FAILED);
    if (progress == FABRIC_PART)
        look(t, &part);
    if (progress == FABRIC_DONE)
        end_round(t);
    ck_assert(progress != FABRIC_CALLED || !t->open);
    return progress == FABRIC_CALLED;
}

/* Gives where others have, or by itself. */
static void turn_one(int k, bool first, int rounds)
{
    struct rows_trainer *t = &w.t[k];
    if (!leads(t)) {
        turn_exchange(t);               /* hears that it is one */
        return;
    }
    t->heir |= !t->leads && k % rows[w.row].per_host > 0;
    t->leads = true;
    bool called = turn_rows(t);
    if (!t->open && (called || (first && t->rounds < rounds)))
        give(t);
}

static int first_leader(void)
{
    int k = 0;
    while (!w.t[k].f || !leads(&w.t[k]))
        k++;
    return k;
}

static bool all_have(int rounds)
{
    for (int k = 0; k < rows[w.row].size; k++)
        if (w.t[k].f && leads(&w.t[k]) && (w.t[k].rounds < rounds || w.t[k].open))
            return false;
    return true;
}

static int chosen(void)
{
    int k = (int)(rng_next(&w.rng) % (uint64_t)rows[w.row].size);
    return k == w.slow && rng_next(&w.rng) % 50 ? (k + 1) % rows[w.row].size : k;
}

static int most_rounds(void)
{
    int most = 0;
    for (int k = 0; k < rows[w.row].size; k++)
        most = w.t[k].rounds > most ? w.t[k].rounds : most;
    return most;
}

static void run_rounds(int rounds, bool exchanges)
{
    for (int turn = 0; !all_have(rounds); turn++) {
        ck_assert_msg(turn < TURNS, "row %d: the rounds do not end", w.row);
        int k = chosen();
        if (!w.t[k].f)
            continue;
        turn_one(k, k == first_leader(), rounds);
        if (exchanges && !w.t[k].busy)
            begin(&w.t[k], EXCHANGE_MEAN, false);
        if (exchanges)
            turn_exchange(&w.t[k]);
    }
}

START_TEST(all_leaders_have_all_parts)
{
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        open_world(_i, seed);
        int size = rows[_i].size, per_host = rows[_i].per_host;
        meet();
        for (int k = 0; k < size; k++)
            ck_assert(leads(&w.t[k]) == (k % per_host == 0));
        w.slow = seed % 2 ? size - 1 : -1;
        run_rounds(ROUNDS, seed % 3 == 0);
        if (size > per_host)
            ck_assert_uint_gt(atomic_load(&w.t[0].f->rows_bytes), 0);
        close_world();
    }
}
END_TEST

/* A final exchange that is open, and waits for one, holds up no rows; nor do rows hold it up. */
START_TEST(rows_go_on_while_a_final_exchange_waits)
{
    open_world(_i, 3);
    int size = rows[_i].size;
    meet();
    for (int k = 0; k + 1 < size; k++)
        begin(&w.t[k], EXCHANGE_MEAN, true);
    run_rounds(ROUNDS, false);
    for (int turn = 0; turn < 100; turn++) {
        for (int k = 0; k + 1 < size; k++)
            turn_exchange(&w.t[k]);
    }
    for (int k = 0; k + 1 < size; k++)
        ck_assert(w.t[k].busy);
    begin(&w.t[size - 1], EXCHANGE_MEAN, true);
    give(&w.t[0]);                      /* nobody else does */
    for (int turn = 0, busy = 1; busy; turn++) {
        ck_assert_int_lt(turn, TURNS);
        busy = 0;
        for (int k = 0; k < size; k++) {
            if (w.t[k].busy)
                turn_exchange(&w.t[k]);
            busy += w.t[k].busy;
        }
    }
    close_world();
}
END_TEST

/* Whoever leaves, at any point of a round, is not waited for; the next of its host leads. */
START_TEST(a_leader_that_leaves_has_an_heir)
{
    int size = rows[_i].size, per_host = rows[_i].per_host;
    for (uint64_t seed = 1; seed <= 4 * SEEDS && size > 1; seed++) {
        open_world(_i, seed);
        meet();
        int leaver = (int)(seed % (uint64_t)((size + per_host - 1) / per_host)) * per_host;
        for (uint64_t turn = rng_next(&w.rng) % 400; turn > 0; turn--) {
            turn_one(chosen(), true, ROUNDS);
        }
        close_trainer(leaver);
        run_rounds(most_rounds() + 4, false);
        for (int k = 0; k < size; k++)
            if (w.t[k].f && k / per_host == leaver / per_host && k < leaver + 2)
                ck_assert(leads(&w.t[k]));
        bool more = true;               /* what the first has begun beside the others */
        for (int turn = 0; more; turn++) {
            ck_assert_int_lt(turn, TURNS);
            more = false;
            for (int k = 0; k < size; k++) {
                if (w.t[k].f)
                    turn_one(k, false, ROUNDS + 1);
                more |= w.t[k].f && w.t[k].open;
            }
        }
        close_world();
    }
}
END_TEST

/* Rank 0 is no leader any more, and serves a round of others who leave in it, too. */
START_TEST(all_may_leave_within_a_round)
{
    for (uint64_t seed = 1; seed <= 4 * SEEDS && rows[_i].size > 1; seed++) {
        open_world(_i, seed);
        meet();
        close_trainer(0);
        for (uint64_t turn = rng_next(&w.rng) % 400; turn > 0; turn--) {
            int k = chosen();
            if (w.t[k].f)
                turn_one(k, true, ROUNDS);
        }
        close_world();
    }
}
END_TEST

START_TEST(what_cannot_be_begun_is_refused)
{
    open_world(_i, 1);
    struct fabric *f = w.t[0].f;
    ck_assert_int_eq(f->type->rows->begin(f, w.t[0].part, 8), DESCANT_ORDER);
    meet();
    ck_assert_int_eq(f->type->rows->begin(f, w.t[0].part, BYTES + 1), DESCANT_INVALID);
    give(&w.t[0]);
    ck_assert_int_eq(f->type->rows->begin(f, w.t[0].part, 8), DESCANT_ORDER);
    if (rows[_i].per_host > 1) {
        f = w.t[1].f;
        ck_assert_int_eq(f->type->rows->begin(f, w.t[1].part, 8), DESCANT_ORDER);
    }
    close_world();
}
END_TEST

int main(void)
{
    TCase *all = new_case("rounds", 60);
    tcase_add_loop_test(all, all_leaders_have_all_parts, 0, N_ROWS);
    tcase_add_loop_test(all, rows_go_on_while_a_final_exchange_waits, 0, N_ROWS);
    tcase_add_loop_test(all, a_leader_that_leaves_has_an_heir, 0, N_ROWS);
    tcase_add_loop_test(all, all_may_leave_within_a_round, 0, N_ROWS);
    tcase_add_loop_test(all, what_cannot_be_begun_is_refused, 0, N_ROWS);
    return run_cases(all, NULL);
}
