/* SPDX-License-Identifier: MIT */
/* Rounds of the mpi fabric over a simulated link in one thread (mpi_loopback.h): any order of events, what
 * three ranks are told, and what many of them take. */
#include "harness/suite.h"
#include "kernels/kernels.h"
#include "mpi_loopback.h"
#include "ranks/ranks.h"
#include "sync/tables.h"
#include "sync/waits.h"

#include <check.h>
#include <malloc.h>
#include <math.h>
#include <string.h>

/* --- any order of events, in one thread --- */

enum { RESTLESS_MOST = 5, RESTLESS_N = 9000, RESTLESS_SHORT_N = 100, RESTLESS_TURNS = 200000 };

/* AddressSanitizer makes these minutes. */
#ifdef __SANITIZE_ADDRESS__
enum { RESTLESS_SEEDS = 4 };
#else
enum { RESTLESS_SEEDS = 64 };
#endif

struct restless_plan {
    size_t n;
    bool center, final;         /* final: at their end all take the final model, then leave */
    enum exchange_kind last;
};

/* A trainer that begins, gives up, begins something else, and leaves at some time. */
struct restless {
    struct fabric *f;
    struct extent extent;
    struct vector in[2];        /* this exchange's, and that of the one before, which is gone */
    struct vector state;        /* a state's, which may be read until another exchange is done */
    int left;                   /* exchanges that it still begins */
    bool open, kept;            /* kept: it waits for this one */
    bool ends;                  /* it has begun the final one */
    unsigned sleeps;            /* turns that it will miss */
};

static void restless_begin(struct restless *t, struct rng *rng, const struct restless_plan *plan)
{
    struct exchange x = {.in = &t->in[t->left & 1], .n = plan->n, .weight = 1, .alpha = 0.5};
    unsigned chance = (unsigned)(rng_next(rng) % 8);

    x.kind = chance == 0 ? EXCHANGE_STATE : plan->center ? EXCHANGE_ELASTIC : EXCHANGE_MEAN;
    x.priority = rng_next(rng) % 3;
    x.final = t->ends = t->left == 0;
    if (x.final)
        x.kind = plan->last;
    t->in[t->left & 1] = t->state = (struct vector){plan->n, 1, &t->extent};
    if (x.kind == EXCHANGE_STATE)
        x.in = &t->state;
    ck_assert_int_eq(t->f->type->begin(t->f, &x), DESCANT_OK);
    t->in[~t->left & 1] = (struct vector){0};
    t->open = true;
    t->kept = x.final || rng_next(rng) % 3 != 0;
    t->left--;
}

/* At the end of what it wants. */
static bool restless_ends(const struct restless *t, const struct restless_plan *plan)
{
    return t->left <= 0 && (t->ends || !plan->final) && (!t->open || !t->kept);
}

/* Vectors are constant, between 1 and the number of trainers, and so is all that comes of them. */
static void restless_use(const struct restless *t, const struct fabric_part *part, int size)
{
    const float *w = part->own ? t->extent.p : part->out;
    float err = t->f->wire == WIRE_F32 ? 0 : 1e-3f;

    for (size_t i = 1; i < part->n; i++)
        ck_assert_msg(fabsf(w[i] - w[0]) <= err || part->kind != EXCHANGE_MEAN, "%g, then %g",
                      (double)w[0], (double)w[i]);
    for (size_t i = 0; i < part->n; i++)
        ck_assert_msg(w[i] >= 1 - err && w[i] <= (float)size + err, "rank %d has %g", t->f->rank,
                      (double)w[i]);
    if (t->f->wire != WIRE_F32)
        memcpy(t->f->outer[0], w, part->n * sizeof *w);
}

static void restless_turn(struct restless *t, struct rng *rng, const struct restless_plan *plan,
                          int size)
{
    struct fabric_part part;

    switch (t->f->type->poll(t->f, &part)) {
    case FABRIC_PART:
        restless_use(t, &part, size);
        break;
    case FABRIC_DONE:
        t->open = false;
        break;
    case FABRIC_FAILED:
        ck_abort_msg("rank %d: %s", t->f->rank, descant_last_error());
        break;
    case FABRIC_CALLED:
        t->left += t->left == 0;
        break;
    default:
        break;
    }
    if ((t->left > 0 || (t->left == 0 && plan->final)) &&
        (!t->open || (!t->kept && rng_next(rng) % 16 == 0)))
        restless_begin(t, rng, plan);
}

/* Some sleep long, as a process may that has no core. */
static bool restless_sleeps(struct restless *t, struct rng *rng)
{
    if (t->sleeps == 0 && rng_next(rng) % 64 == 0)
        t->sleeps = (unsigned)(rng_next(rng) % 256);
    t->sleeps -= t->sleeps > 0;
    return t->sleeps > 0;
}

static void restless_world(uint64_t seed, bool center, enum wire wire, int per_host)
{
    struct rng rng;
    struct restless t[RESTLESS_MOST] = {{0}};
    const struct restless_plan plan = {
        .n = seed % 4 ? RESTLESS_SHORT_N : RESTLESS_N, .center = center, .final = seed % 3 > 0,
        .last = seed % 3 == 1 ? EXCHANGE_STATE : EXCHANGE_MEAN};
    const struct fabric_start start = {.manifest = "x\n", .n = plan.n, .room = plan.n,
                                       .collective = !center, .center = center, .threads = 1,
                                       .n_outer = wire != WIRE_F32};

    rng_init(&rng, seed);
    int size = 2 + (int)(rng_next(&rng) % (RESTLESS_MOST - 1)), here = size;
    struct loopback *world = loopback_create_hosts(size, per_host, seed);
    for (int k = 0; k < size; k++) {
        struct fabric_options options = {.rank = k, .start_s = 10, .wire = wire,
                                         .context = world};
        ck_assert_int_eq(fabric_loopback.open(&t[k].f, &options), DESCANT_OK);
        ck_assert_int_eq(fabric_loopback.start(t[k].f, &start), DESCANT_OK);
        t[k].extent = (struct extent){0, plan.n, t[k].f->contribution};
        for (size_t i = 0; i < plan.n; i++)
            t[k].extent.p[i] = (float)(k + 1);
        t[k].left = 1 + (int)(rng_next(&rng) % 12);
        struct vector *in = &t[k].in[~t[k].left & 1];
        *in = (struct vector){plan.n, 1, &t[k].extent};
        struct exchange x = {.kind = EXCHANGE_STATE, .in = in, .n = plan.n};
        ck_assert_int_eq(fabric_loopback.begin(t[k].f, &x), DESCANT_OK);
        t[k].open = t[k].kept = true;
    }
    for (int turn = 0; here > 0; turn++) {
        ck_assert_msg(turn < RESTLESS_TURNS, "seed %llu: it does not end",
                      (unsigned long long)seed);
        int k = (int)(rng_next(&rng) % (uint64_t)size);
        if (!t[k].f || restless_sleeps(&t[k], &rng))
            continue;
        restless_turn(&t[k], &rng, &plan, size);
        if (restless_ends(&t[k], &plan)) {
            fabric_loopback.close(t[k].f);
            t[k].f = NULL;
            here--;
        }
    }
    loopback_destroy(world);
    ck_assert_int_eq(memory_live(), 0);
}

static const struct {
    bool center;
    enum wire wire;
    int per_host;
} restless_jobs[] = {
    {false, WIRE_F32, RESTLESS_MOST}, {true, WIRE_F32, RESTLESS_MOST},
    {false, WIRE_Q8, RESTLESS_MOST},  {false, WIRE_F32, 2},
    {true, WIRE_F32, 1},              {true, WIRE_F32, 2},
    {true, WIRE_BF16, 3},
};

START_TEST(rounds_end_whatever_trainers_do)
{
    for (uint64_t seed = 1; seed <= RESTLESS_SEEDS; seed++)
        restless_world(seed, restless_jobs[_i].center, restless_jobs[_i].wire,
                       restless_jobs[_i].per_host);
}
END_TEST

/* --- three ranks, and what they are told --- */

struct trio {
    struct loopback *world;
    const struct link_type *link[3];    /* NULL: the loopback */
    struct fabric *f[3];
    struct extent extents[3];
    struct vector in[3];
    bool center;
    void (*figures)(void *of, struct bulletin *own);
};

static void trio_begin_one(struct trio *t, int k, enum exchange_kind kind, bool final)
{
    const struct exchange x = {.kind = kind, .in = &t->in[k], .n = RESTLESS_N, .weight = 1,
                               .alpha = 0.5, .final = final};
    ck_assert_int_eq(t->f[k]->type->begin(t->f[k], &x), DESCANT_OK);
}

static void trio_begin(struct trio *t, int k, enum exchange_kind kind)
{
    trio_begin_one(t, k, kind, false);
}

static void trio_open(struct trio *t, int k)
{
    const struct fabric_options options = {.rank = k, .link = t->link[k], .context = t->world};
    const struct fabric_start start = {.manifest = "x\n", .n = RESTLESS_N, .room = RESTLESS_N,
                                       .collective = !t->center, .center = t->center,
                                       .threads = 1};

    ck_assert_int_eq(fabric_loopback.open(&t->f[k], &options), DESCANT_OK);
    t->f[k]->figures = t->figures;
    ck_assert_int_eq(fabric_loopback.start(t->f[k], &start), DESCANT_OK);
    t->extents[k] = (struct extent){0, RESTLESS_N, t->f[k]->contribution};
    t->in[k] = (struct vector){RESTLESS_N, 1, &t->extents[k]};
    trio_begin(t, k, EXCHANGE_STATE);
}

/* Polls those of the set in turns for so long, once at least: those that are done, or have failed. */
static unsigned trio_poll(struct trio *t, unsigned set, unsigned ms)
{
    uint64_t until = loopback_now(t->world) + ms * UINT64_C(1000000);
    struct fabric_part part;
    unsigned ended = 0;

    do {
        for (int k = 0; k < 3; k++)
            if (set & ~ended & 1U << k) {
                enum fabric_progress progress = t->f[k]->type->poll(t->f[k], &part);
                ended |= progress == FABRIC_DONE || progress == FABRIC_FAILED ? 1U << k : 0;
            }
    } while (ended != set && loopback_now(t->world) < until);
    return ended;
}

static void trio_close(struct trio *t)
{
    for (int k = 0; k < 3; k++)
        fabric_loopback.close(t->f[k]);
    loopback_destroy(t->world);
    ck_assert_int_eq(memory_live(), 0);
}

static void need_waits(const struct fabric *f, const char *says)
{
    char text[200];
    waits_text(f, text, sizeof text);
    ck_assert_str_eq(text, says);
}

/* Polls those of the set until trainer k says so. */
static void trio_until_says(struct trio *t, unsigned set, int k, const char *says)
{
    uint64_t until = loopback_now(t->world) + 10 * UINT64_C(1000000000);
    char text[200] = "";

    while (strcmp(text, says) != 0 && loopback_now(t->world) < until) {
        trio_poll(t, set, 1);
        waits_text(t->f[k], text, sizeof text);
    }
    ck_assert_str_eq(text, says);
}

/* All who have arrived know whom for, also while other messages move; and if rank 0 cannot tell. */
START_TEST(the_late_are_named_to_all)
{
    struct trio t = {.world = loopback_create_hosts(3, 1, 1)};

    for (int k = 0; k < 3; k++)
        trio_open(&t, k);
    ck_assert_uint_eq(trio_poll(&t, 7, 10000), 7);
    trio_begin(&t, 0, EXCHANGE_MEAN);
    trio_begin(&t, 1, EXCHANGE_MEAN);
    trio_until_says(&t, 3, 0, "trainer 0 waits in round 2 (mean) for trainer 2 (host2)");
    trio_until_says(&t, 3, 1, "trainer 1 waits in round 2 (mean) for trainer 2 (host2)");
    trio_begin(&t, 2, EXCHANGE_MEAN);
    ck_assert_uint_eq(trio_poll(&t, 7, 10000), 7);
    need_waits(t.f[1], "");
    trio_begin(&t, 1, EXCHANGE_MEAN);
    trio_poll(&t, 2, 200);
    need_waits(t.f[1], "");
    trio_until_says(&t, 2, 1, "trainer 1 waits in round 3 (mean) for trainer 0 (host0)");
    trio_begin(&t, 0, EXCHANGE_MEAN);
    trio_poll(&t, 3, 250);
    trio_begin_one(&t, 1, EXCHANGE_MEAN, true);
    trio_until_says(&t, 3, 0, "trainer 0 waits in round 3 (mean) for trainer 2 (host2)");
    trio_until_says(&t, 3, 1, "trainer 1 waits at its finish for trainers 0 (host0) and 2 (host2)");
    trio_close(&t);
}
END_TEST

static void figures(void *of, struct bulletin *own)
{
    (void)of;
    *own = (struct bulletin){.steps = 1};
}

/* Figures come and go each second while a rank stands still in the middle of a round. */
START_TEST(figures_hide_no_wait)
{
    struct trio t = {.world = loopback_create_hosts(3, 1, 1), .figures = figures};

    for (int k = 0; k < 3; k++)
        trio_open(&t, k);
    ck_assert_uint_eq(trio_poll(&t, 7, 10000), 7);
    for (int k = 0; k < 3; k++)
        trio_begin(&t, k, EXCHANGE_MEAN);
    while (!ranks_of(t.f[0])->round.active || !ranks_of(t.f[2])->round.active)
        ck_assert_uint_eq(trio_poll(&t, 7, 0), 0);
    trio_until_says(&t, 5, 0, "trainer 0 waits in round 2 (mean) for trainer 1 (host1)");
    for (int ms = 0; ms < 5000; ms++) {
        trio_poll(&t, 5, 1);
        need_waits(t.f[0], "trainer 0 waits in round 2 (mean) for trainer 1 (host1)");
    }
    ck_assert_uint_eq(trio_poll(&t, 7, 10000), 7);
    need_waits(t.f[0], "");
    trio_close(&t);
}
END_TEST

/* Two of them never come, and every second one has not begun. */
START_TEST(of_many_the_first_are_named)
{
    enum { COME = 100, SIZE = COME + 2, N = 8 };
    static struct fabric *f[COME];
    static struct extent extents[COME];
    static struct vector in[COME];
    struct loopback *world = loopback_create(SIZE, 1);
    const struct fabric_start start = {.manifest = "x\n", .n = N, .room = N, .collective = true,
                                       .threads = 1};
    struct fabric_part part;
    char says[400] = "trainer 4 waits at its start for trainers 1 (host0)", text[400] = "";

    for (int k = 3; k <= 31; k += 2)
        snprintf(says + strlen(says), sizeof says - strlen(says), ", %d (host0)", k);
    strcat(says, " and 36 more");
    for (int k = 0; k < COME; k++) {
        const struct fabric_options options = {.rank = k, .context = world};
        ck_assert_int_eq(fabric_loopback.open(&f[k], &options), DESCANT_OK);
        ck_assert_int_eq(fabric_loopback.start(f[k], &start), DESCANT_OK);
        extents[k] = (struct extent){0, N, f[k]->contribution};
        in[k] = (struct vector){N, 1, &extents[k]};
        const struct exchange x = {.kind = EXCHANGE_STATE, .in = &in[k], .n = N};
        if (k % 2 == 0)
            ck_assert_int_eq(fabric_loopback.begin(f[k], &x), DESCANT_OK);
    }
    for (int turn = 0; strcmp(text, says) != 0; turn++) {
        ck_assert_msg(turn < RESTLESS_TURNS, "it says: %s", text);
        f[turn % COME]->type->poll(f[turn % COME], &part);
        waits_text(f[4], text, sizeof text);
    }
    for (int k = 0; k < COME; k++)
        fabric_loopback.close(f[k]);
    loopback_destroy(world);
    ck_assert_int_eq(memory_live(), 0);
}
END_TEST

/* Whatever has come of the round for which it gave up its exchange: the next one arrives
 * for the next round, also if it did so while the word that closes this one was under
 * way. */
START_TEST(an_exchange_begun_as_a_round_closes_is_in_the_next)
{
    struct trio t = {.world = loopback_create_hosts(3, 1, (uint64_t)_i)};

    for (int k = 0; k < 3; k++)
        trio_open(&t, k);
    ck_assert_uint_eq(trio_poll(&t, 7, 10000), 7);
    for (int k = 0; k < 3; k++)
        trio_begin(&t, k, EXCHANGE_MEAN);
    for (int polls = 0; polls < _i; polls++)
        trio_poll(&t, 7, 0);
    trio_begin_one(&t, 1, EXCHANGE_MEAN, true);
    trio_poll(&t, 2, 0);
    trio_poll(&t, 7, 200);
    trio_begin_one(&t, 0, EXCHANGE_MEAN, true);
    trio_begin_one(&t, 2, EXCHANGE_MEAN, true);
    ck_assert_uint_eq(trio_poll(&t, 7, 10000), 7);
    trio_close(&t);
}
END_TEST

enum { CROWD = 9 };         /* more than a few */

static struct link_type counting;
static const struct link *counted[CROWD];
static int floats_sent[CROWD];

static struct link *meet_counting(struct link_entry *entry, struct link_place *place)
{
    struct link *link = link_loopback.meet(entry, place);
    counted[place->rank] = link;
    link->type = &counting;
    return link;
}

static bool send_counting(struct link *link, const void *p, size_t bytes,
                       const struct link_message *message)
{
    int tag = message->tag;

    for (int k = 0; k < CROWD; k++)
        floats_sent[k] += (tag == TAG_GIVE || tag == TAG_TELL) && link == counted[k];
    return link_loopback.send(link, p, bytes, message);
}

static void crowd_exchange(struct fabric **f, struct vector *in, enum exchange_kind kind)
{
    struct fabric_part part;
    unsigned done = 0;

    for (int k = 0; k < CROWD; k++)
        ck_assert_int_eq(f[k]->type->begin(f[k], &(struct exchange){
            .kind = kind, .in = &in[k], .n = RESTLESS_N, .weight = 1}), DESCANT_OK);
    for (int turn = 0; done != (1U << CROWD) - 1; turn++) {
        ck_assert_int_lt(turn, RESTLESS_TURNS);
        for (int k = 0; k < CROWD; k++)
            if (!(done & 1U << k) && f[k]->type->poll(f[k], &part) == FABRIC_DONE)
                done |= 1U << k;
    }
}

/* 9000 floats are 3 pieces of one slice: in each round all others give them to its owner, who tells
 * them the result, and each rank is the owner once in nine rounds. */
START_TEST(a_short_mean_of_many_has_one_owner_another_in_each_round)
{
    struct loopback *world = loopback_create_hosts(CROWD, 1, 1);
    const struct fabric_start start = {.manifest = "x\n", .n = RESTLESS_N, .room = RESTLESS_N,
                                       .collective = true, .threads = 1};
    struct fabric *f[CROWD];
    struct extent extents[CROWD];
    struct vector in[CROWD];

    counting = link_loopback;
    counting.meet = meet_counting;
    counting.send = send_counting;
    for (int k = 0; k < CROWD; k++) {
        const struct fabric_options options = {.rank = k, .link = &counting, .context = world};
        ck_assert_int_eq(fabric_loopback.open(&f[k], &options), DESCANT_OK);
        ck_assert_int_eq(fabric_loopback.start(f[k], &start), DESCANT_OK);
        extents[k] = (struct extent){0, RESTLESS_N, f[k]->contribution};
        in[k] = (struct vector){RESTLESS_N, 1, &extents[k]};
    }
    crowd_exchange(f, in, EXCHANGE_STATE);
    memset(floats_sent, 0, sizeof floats_sent);
    for (int round = 1; round <= CROWD; round++) {
        int sum = 0;
        crowd_exchange(f, in, EXCHANGE_MEAN);
        for (int k = 0; k < CROWD; k++)
            sum += floats_sent[k];
        ck_assert_int_eq(sum, 2 * 3 * (CROWD - 1) * round);
    }
    for (int k = 0; k < CROWD; k++) {
        ck_assert_int_eq(floats_sent[k], 2 * 3 * (CROWD - 1));
        fabric_loopback.close(f[k]);
    }
    loopback_destroy(world);
    ck_assert_int_eq(memory_live(), 0);
}
END_TEST

enum { WINDOWED = 80 };     /* more than an owner takes at a time */

/* What kernels make of all vectors at once, in the order of ranks; NULL is left out. */
static void need_mean(const float *got, const float *const *vectors, size_t from, size_t n,
                      bool exact)
{
    const float *in[WINDOWED];
    double shares[WINDOWED];
    float wanted[RESTLESS_N];
    int n_in = 0;

    for (int k = 0; k < WINDOWED; k++)
        if (vectors[k])
            in[n_in++] = vectors[k] + from;
    for (int k = 0; k < n_in; k++)
        shares[k] = 1.0 / n_in;
    ck_assert(kernels_best()->mean(wanted, in, shares, n_in, n, false));
    for (size_t i = 0; i < n; i++)
        if (exact ? got[from + i] != wanted[i] : !(fabsf(got[from + i] - wanted[i]) < 1e-6f))
            ck_abort_msg("float %zu is %.9g, not %.9g", from + i, (double)got[from + i],
                         (double)wanted[i]);
}

/* Parts that are added up as they come make the same bits as all at once; and one that is not
 * finite any more is left out of its piece alone. */
START_TEST(a_mean_of_more_than_a_window_has_the_same_bits)
{
    static float got[WINDOWED][RESTLESS_N];
    struct loopback *world = loopback_create_hosts(WINDOWED, 1, 1);
    const struct fabric_start start = {.manifest = "x\n", .n = RESTLESS_N, .room = RESTLESS_N,
                                       .collective = true, .threads = 1};
    struct fabric *f[WINDOWED];
    struct extent extents[WINDOWED];
    struct vector in[WINDOWED];
    const float *vectors[WINDOWED];
    struct rng rng;

    rng_init(&rng, 1);
    for (int k = 0; k < WINDOWED; k++) {
        const struct fabric_options options = {.rank = k, .context = world};
        ck_assert_int_eq(fabric_loopback.open(&f[k], &options), DESCANT_OK);
        ck_assert_int_eq(fabric_loopback.start(f[k], &start), DESCANT_OK);
        extents[k] = (struct extent){0, RESTLESS_N, f[k]->contribution};
        in[k] = (struct vector){RESTLESS_N, 1, &extents[k]};
        vectors[k] = extents[k].p;
    }
    for (int round = 0; round < 4; round++) {
        int left = WINDOWED, arrived = 0, bad = round < 3 ? -1 : 50;
        for (int k = 0; k < WINDOWED; k++) {
            for (size_t i = 0; i < RESTLESS_N; i++)
                extents[k].p[i] = (float)rng_normal(&rng);
            ck_assert_int_eq(f[k]->type->begin(f[k], &(struct exchange){
                .kind = round ? EXCHANGE_MEAN : EXCHANGE_STATE, .in = &in[k], .n = RESTLESS_N,
                .weight = 1}), DESCANT_OK);
        }
        bool done[WINDOWED] = {false};
        for (int turn = 0; left > 0; turn++) {
            struct fabric_part part;
            int k = turn % WINDOWED;
            if (turn > RESTLESS_TURNS)
                ck_abort_msg("round %d does not end", round);
            if (arrived < WINDOWED && ranks_of(f[k])->stage == STAGE_ARRIVED && ++arrived &&
                k == bad)
                extents[k].p[1] = NAN;
            enum fabric_progress progress = done[k] ? FABRIC_WAITING
                                                    : f[k]->type->poll(f[k], &part);
            if (progress == FABRIC_PART && round)
                memcpy(got[k], part.out, sizeof got[k]);
            done[k] |= progress == FABRIC_DONE;
            left -= progress == FABRIC_DONE;
        }
        for (int k = 0; k < WINDOWED && round; k++) {
            vectors[50] = bad < 0 ? extents[50].p : NULL;
            need_mean(got[k], vectors, 0, 4096, bad < 0);
            vectors[50] = extents[50].p;
            need_mean(got[k], vectors, 4096, RESTLESS_N - 4096, true);
        }
    }
    for (int k = 0; k < WINDOWED; k++)
        fabric_loopback.close(f[k]);
    loopback_destroy(world);
    ck_assert_int_eq(memory_live(), 0);
}
END_TEST

/* Rank 0 is through with a round, calls for the next one and takes that back, while others are not
 * through yet: what was meant for the next round must not touch theirs. */
START_TEST(a_call_taken_back_leaves_the_round_before_alone)
{
    struct trio t = {.world = loopback_create_hosts(3, 1, (uint64_t)_i + 1)};
    int early = 0;

    for (int k = 0; k < 3; k++)
        trio_open(&t, k);
    ck_assert_uint_eq(trio_poll(&t, 7, 10000), 7);
    for (int round = 0; round < 100; round++) {
        unsigned ended = 0;
        for (int k = 0; k < 3; k++)
            trio_begin(&t, k, EXCHANGE_MEAN);
        for (int k = 0; !(ended & 1); k = (k + 1) % 3)
            ended |= trio_poll(&t, 4U >> k & ~ended, 0);
        early += ended != 7;
        for (int again = 0; again < 2; again++) {
            trio_begin(&t, 0, EXCHANGE_MEAN);
            trio_poll(&t, 1, 1);
        }
        ck_assert_uint_eq(trio_poll(&t, 6 & ~ended, 10000), 6 & ~ended);
        trio_begin(&t, 1, EXCHANGE_MEAN);
        trio_begin(&t, 2, EXCHANGE_MEAN);
        ck_assert_uint_eq(trio_poll(&t, 7, 10000), 7);
    }
    ck_assert_int_gt(early, 0);
    trio_close(&t);
}
END_TEST

static enum fabric_progress trio_turn(struct trio *t, int k)
{
    struct fabric_part part;
    return t->f[k]->type->poll(t->f[k], &part);
}

/* Rank 1 arrives for rank 0's state, which is taken back before rank 0 hears of that. */
START_TEST(who_comes_after_a_call_was_taken_back_goes_on)
{
    struct trio t = {.world = loopback_create_hosts(3, 1, (uint64_t)_i + 1), .center = true};

    for (int k = 0; k < 3; k++)
        trio_open(&t, k);
    ck_assert_uint_eq(trio_poll(&t, 7, 10000), 7);
    for (int round = 0; round < 20; round++) {
        unsigned ended = 0;
        trio_begin(&t, 0, EXCHANGE_STATE);
        for (int turn = 0; trio_turn(&t, 1) != FABRIC_CALLED; turn++) {
            ck_assert_int_lt(turn, 1000);
            trio_turn(&t, 0);
        }
        trio_begin(&t, 1, EXCHANGE_ELASTIC);
        for (int turn = 0; ranks_of(t.f[1])->stage != STAGE_ARRIVED; turn++) {
            ck_assert_int_lt(turn, 1000);
            trio_turn(&t, 1);
        }
        trio_begin(&t, 0, EXCHANGE_ELASTIC);
        for (int turn = 0; ended != 3; turn++) {
            ck_assert_int_lt(turn, 10000);
            ended |= trio_turn(&t, turn % 3) == FABRIC_DONE ? 1U << turn % 3 : 0;
        }
    }
    trio_close(&t);
}
END_TEST

static const struct link_type *const honest = &link_loopback;
static struct link_type forged;

static struct link *meet_forged(struct link_entry *entry, struct link_place *place)
{
    struct link *link = honest->meet(entry, place);
    link->type = &forged;
    return link;
}

/* As a rank of another version would have it. */
static bool send_forged(struct link *link, const void *p, size_t bytes,
                       const struct link_message *message)
{
    int tag = message->tag;
    struct ranks_word word;

    if (tag != TAG_WORD)
        return honest->send(link, p, bytes, message);
    ck_assert_uint_eq(bytes, sizeof word);
    memcpy(&word, p, sizeof word);
    word.protocol += 71;
    return honest->send(link, &word, sizeof word, message);
}

static bool send_forged_manifest(struct link *link, const void *p, size_t bytes,
                       const struct link_message *message)
{
    int tag = message->tag;
    static char manifest[200];

    if (tag != TAG_MANIFEST)
        return honest->send(link, p, bytes, message);
    ck_assert_uint_le(bytes, sizeof manifest);
    memcpy(manifest, p, bytes);
    ck_assert_int_eq(strncmp(manifest, "descant " DESCANT_VERSION "\n", 9), 0);
    manifest[8] = '9';
    return honest->send(link, manifest, bytes, message);
}

/* Rank 1 is of another version: all are told, in the same words. The fourth rank never comes, for
 * words of another protocol do not say who leaves. */
START_TEST(versions_are_told_by_name_and_value)
{
    struct trio t = {.world = loopback_create_hosts(4, 1, 1)};
    char says[200] = "rank 1 (host1) has \"descant 9";
    if (_i == 0)
        snprintf(says, sizeof says, "rank 1 (host1) has \"descant protocol %d\", rank 0 (host0) "
                 "\"descant protocol %d\"", RANKS_PROTOCOL + 71, RANKS_PROTOCOL);

    forged = *honest;
    forged.meet = meet_forged;
    forged.send = _i ? send_forged_manifest : send_forged;
    t.link[1] = &forged;
    for (int k = 0; k < 3; k++)
        trio_open(&t, k);
    for (int k = 0; k < 3; k++) {
        ck_assert_uint_eq(trio_poll(&t, 1U << k, 10000), 1U << k);
        ck_assert_int_eq(t.f[k]->status, DESCANT_MISMATCH);
        ck_assert_msg(strstr(descant_last_error(), says), "%s", descant_last_error());
    }
    trio_close(&t);
}
END_TEST

/* --- a rank that fails in a round --- */

enum { FAILING_N = 1 << 20 };       /* floats: memory that is given back is gone */

struct duo {
    struct loopback *world;
    struct fabric *f[2];
    struct extent extents[2];
    struct vector in[2];
};

static void duo_begin(struct duo *d, int k, enum exchange_kind kind)
{
    const struct exchange x = {.kind = kind, .in = &d->in[k], .n = FAILING_N, .weight = 1};
    ck_assert_int_eq(fabric_loopback.begin(d->f[k], &x), DESCANT_OK);
}

static void duo_open(struct duo *d, int k)
{
    const struct fabric_options options = {.rank = k, .context = d->world};
    const struct fabric_start start = {.manifest = "x\n", .n = FAILING_N, .room = FAILING_N,
                                       .collective = true, .threads = 1, .rows_bytes = FAILING_N};

    ck_assert_int_eq(fabric_loopback.open(&d->f[k], &options), DESCANT_OK);
    ck_assert_int_eq(fabric_loopback.start(d->f[k], &start), DESCANT_OK);
    d->extents[k] = (struct extent){0, FAILING_N, d->f[k]->contribution};
    d->in[k] = (struct vector){FAILING_N, 1, &d->extents[k]};
    duo_begin(d, k, EXCHANGE_STATE);
}

/* Polls both until the second has long messages on their way. */
static void duo_until_sends(struct duo *d)
{
    uint64_t before = loopback_sent(d->world, 1);
    struct fabric_part part;

    for (int turn = 0; loopback_sent(d->world, 1) == before; turn++) {
        ck_assert_int_lt(turn, 10000);
        ck_assert_int_ne(fabric_loopback.poll(d->f[turn % 2], &part), FABRIC_FAILED);
    }
}

static void duo_fail(struct duo *d, int k)
{
    ranks_fail(ranks_of(d->f[k]), DESCANT_SYSTEM, "as the test has it");
    ranks_leave(d->f[k]);
    ranks_free(d->f[k]);
}

/* What was on its way from one that has gone is read as it was, of a mean or of rows. */
START_TEST(who_fails_keeps_what_is_under_way)
{
    struct duo d = {.world = loopback_create_hosts(2, 1, 1)};
    struct fabric_part part;
    unsigned done = 0;
    void *given[2];

    for (int k = 0; k < 2; k++) {
        duo_open(&d, k);
        given[k] = memory_take(FAILING_N);
    }
    for (int turn = 0; done != 3; turn++) {
        ck_assert_int_lt(turn, 100000);
        done |= fabric_loopback.poll(d.f[turn % 2], &part) == FABRIC_DONE ? 1U << turn % 2 : 0;
    }
    for (int k = 0; k < 2; k++)
        if (_i)
            ck_assert_int_eq(fabric_loopback.rows->begin(d.f[k], given[k], FAILING_N), DESCANT_OK);
        else
            duo_begin(&d, k, EXCHANGE_MEAN);
    duo_until_sends(&d);
    duo_fail(&d, 1);
    memory_give(given[1]);
    for (int turn = 0; turn < 1000; turn++)
        ck_assert_int_ne(fabric_loopback.poll(d.f[0], &part), FABRIC_FAILED);
    duo_fail(&d, 0);
    memory_give(given[0]);
    loopback_destroy(d.world);
    ranks_free_kept();
    ck_assert_int_eq(memory_live(), 0);
}
END_TEST

/* --- many ranks --- */

enum { MANY_N = 1 << 16, MIB = 1 << 20 };

static const struct {
    int ranks;
    enum wire wire;
} many[] = {
    {8, WIRE_F32}, {9, WIRE_F32}, {65, WIRE_F32}, {300, WIRE_F32}, {300, WIRE_BF16},
    {512, WIRE_F32}, {512, WIRE_Q8},
};

/* Of parts of rows, which each host has room for as many as there are hosts. */
static const struct {
    int hosts;
    size_t most;                /* MiB, with what the allocator rounds up */
} many_hosts[] = {{8, 2}, {256, 37}, {300, 37}, {512, 37}};

/* What the allocator has given, as far as it tells. */
static size_t in_use(void)
{
    struct mallinfo2 figures = mallinfo2();
    return figures.uordblks + figures.hblkhd;
}

/* Before a round; tests/test_scale.c has what rounds take. */
START_TEST(many_ranks_do_not_take_much_memory)
{
    struct loopback *world = loopback_create_hosts(many[_i].ranks, 1, 1);
    const struct fabric_options options = {.rank = 1, .wire = many[_i].wire, .context = world};
    const struct fabric_start start = {.manifest = "", .n = MANY_N, .room = MANY_N, .threads = 1,
                                       .collective = true, .n_outer = 1};
    struct fabric *f;
    size_t before = in_use();

    ck_assert_int_eq(fabric_loopback.open(&f, &options), DESCANT_OK);
    ck_assert_int_eq(fabric_loopback.start(f, &start), DESCANT_OK);
    ck_assert_uint_le(in_use() - before, 2 * MIB);
    fabric_loopback.close(f);
    loopback_destroy(world);
    ck_assert_int_eq(memory_live(), 0);
}
END_TEST

START_TEST(many_hosts_do_not_have_much_room_for_rows)
{
    struct loopback *world = loopback_create_hosts(many_hosts[_i].hosts, 1, 1);
    const struct fabric_options options = {.rank = 1, .context = world};
    struct fabric_start start = {.manifest = "", .n = 16, .room = 16, .threads = 1};
    const struct plan plan = {.when = PLAN_SHADOW};
    size_t used[2];
    float *w;

    for (int rows = 0; rows < 2; rows++) {
        struct fabric *f;
        struct tables tables;
        size_t before = in_use();
        ck_assert_int_eq(fabric_loopback.open(&f, &options), DESCANT_OK);
        tables_init(&tables, f, &plan);
        ck_assert_int_eq(tables_add(&tables, "rows", 1000, 16, &w), DESCANT_OK);
        start.rows_bytes = rows ? tables_part_bytes(&tables) : 0;
        ck_assert_int_eq(fabric_loopback.start(f, &start), DESCANT_OK);
        used[rows] = in_use() - before;
        ranks_leave(f);
        ranks_free(f);
        tables_fini(&tables);
    }
    ck_assert_uint_ge(start.rows_bytes, 1 << 15);
    ck_assert_uint_le(start.rows_bytes, 1 << 17);
    ck_assert_uint_le(used[1] - used[0], many_hosts[_i].most * MIB);
    loopback_destroy(world);
    ck_assert_int_eq(memory_live(), 0);
}
END_TEST

int main(void)
{
    TCase *loopback = new_case("loopback", 120);
    tcase_add_loop_test(loopback, rounds_end_whatever_trainers_do, 0,
                        N(restless_jobs));
    tcase_add_test(loopback, the_late_are_named_to_all);
    tcase_add_test(loopback, figures_hide_no_wait);
    tcase_add_test(loopback, of_many_the_first_are_named);
    tcase_add_loop_test(loopback, an_exchange_begun_as_a_round_closes_is_in_the_next, 0,
                        40);
    tcase_add_test(loopback, a_short_mean_of_many_has_one_owner_another_in_each_round);
    tcase_add_test(loopback, a_mean_of_more_than_a_window_has_the_same_bits);
    tcase_add_loop_test(loopback, a_call_taken_back_leaves_the_round_before_alone, 0, 5);
    tcase_add_loop_test(loopback, who_comes_after_a_call_was_taken_back_goes_on, 0, 3);
    tcase_add_loop_test(loopback, versions_are_told_by_name_and_value, 0, 2);
    tcase_add_loop_test(loopback, who_fails_keeps_what_is_under_way, 0, 2);
    tcase_add_loop_test(loopback, many_ranks_do_not_take_much_memory, 0, N(many));
    tcase_add_loop_test(loopback, many_hosts_do_not_have_much_room_for_rows, 0,
                        N(many_hosts));
    return run_cases(loopback, NULL);
}
