/* SPDX-License-Identifier: MIT */
/* The protocol of src/ranks/ at scale, over a simulated link: rounds of a mean of floats
 * among 1,024 ranks in one process, where all are there from the start and where they
 * come. What is tested does not depend on the machine: how many messages and bytes
 * travel, how many turns ranks take, and how much memory they have. CPU seconds are
 * printed, and are not tested. */
#include "fabric/fabric.h"
#include "harness/suite.h"
#include "link/simulated.h"
#include "ranks/ranks.h"

#include <check.h>
#include <stdio.h>
#include <sys/resource.h>
#include <time.h>

/* AddressSanitizer takes more of everything. */
#ifdef __SANITIZE_ADDRESS__
enum { RANKS = 128, MOST_MIB = 8192 };
#else
enum { RANKS = 1024, MOST_MIB = 2048 };
#endif
enum { FLOATS = 10000, PIECES = 3 /* of a vector */ };
#define ROUNDS pick(20, 6, 6)
enum { HUB_PIECES = 5 /* of a vector that a hub owns */ };
enum { THERE, COME, STAR };     /* from the start; they come; and to a hub, the last rank */

/* Of each rank but one, at most. */
enum {
    WORDS = 3,                  /* of a round: HERE, CALL, GO */
    WORD_MOST = 300,            /* bytes */
    COMING = 26,                /* messages before the first mean: HELLO, the manifest, a
                                   state; and where ranks come, HERE to 16 of those that
                                   it meets */
    LISTED = 24,                /* bytes of a rank in FORM, which has them all */
    TURNS = 4 * PIECES + WORDS + 1      /* of a round: for each piece at both its ends, each
                                           word where it comes to, and one */
};

struct scale_trainer {
    struct fabric *f;
    struct extent extent;
    struct vector in;
    int rounds;                 /* that it has done */
};

static void begin(struct scale_trainer *t)
{
    bool mean = t->rounds > 0;
    const struct exchange x = {.kind = mean ? EXCHANGE_MEAN : EXCHANGE_STATE,
                               .in = &t->in,
                               .n = FLOATS,
                               .weight = 1};

    for (size_t i = 0; t->rounds == 1 && i < FLOATS; i++)
        t->extent.p[i] = (float)t->f->rank + (float)(i % 7);
    ck_assert_int_eq(fabric_mpi.begin(t->f, &x), DESCANT_OK);
}

static int trainers_of_mean;    /* the lowest ranks */

static void open(struct scale_trainer *t, struct simulated *world, int rank)
{
    const struct fabric_options options = {
        .rank = rank, .link = &link_simulated, .context = world};
    const struct fabric_start start = {.manifest = "x\n",
                                       .n = FLOATS,
                                       .room = FLOATS,
                                       .collective = true,
                                       .threads = 1};

    ck_assert_int_eq(fabric_mpi.open(&t->f, &options), DESCANT_OK);
    ck_assert_int_eq(fabric_mpi.start(t->f, &start), DESCANT_OK);
    t->extent = (struct extent){0, FLOATS, t->f->contribution};
    t->in = (struct vector){FLOATS, 1, &t->extent};
    begin(t);
}

/* Some look at all floats, the others at a few: it is not to be what takes the time. */
static void check(const struct scale_trainer *t, const float *mean)
{
    size_t good = 0, step = t->f->rank % 64 ? FLOATS / 3 : 1;

    while (good < FLOATS && mean[good] == (float)(trainers_of_mean - 1) / 2 + (float)(good % 7))
        good += step;
    ck_assert_uint_ge(good, FLOATS);
}

/* Until it waits. True: it has begun its last round, and done it. */
static bool go_on(struct scale_trainer *t)
{
    struct fabric_part part;

    for (;;)
        switch (fabric_mpi.poll(t->f, &part)) {
        case FABRIC_WAITING:
        case FABRIC_CALLED:
            fabric_mpi.wait(t->f, 0);
            return false;
        case FABRIC_FAILED:
            ck_abort_msg("rank %d: %s", t->f->rank, descant_last_error());
            return true;
        case FABRIC_PART:
            if (part.kind == EXCHANGE_MEAN)
                check(t, part.out);
            break;
        case FABRIC_DONE:
            if (t->rounds++ == ROUNDS)
                return true;
            begin(t);
            break;
        case FABRIC_WORKED:
            break;
        }
}

static double cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void test_figures(const struct simulated *world, uint64_t turns, int pieces)
{
    struct simulated_figures figures = simulated_figures(world);
    uint64_t others = RANKS - 1, rounds = (uint64_t)ROUNDS;

    ck_assert_uint_le(figures.messages,
                      others * (rounds * (2 * (uint64_t)pieces + WORDS) + COMING));
    ck_assert_uint_le(figures.bytes,
                      others * ((2 * rounds + 1) * FLOATS * sizeof(float) +
                                (rounds * WORDS + COMING) * WORD_MOST + RANKS * LISTED));
    ck_assert_uint_le(turns, others * (rounds * TURNS + 2 * COMING));
}

START_TEST(a_thousand_ranks_need_few_messages)
{
    static struct scale_trainer trainers[RANKS];
    const struct simulated_options options = {.ranks = RANKS,
                                              .seed = 1,
                                              .fixed = _i == THERE,
                                              .star = _i == STAR,
                                              .latency_ns = 100000,
                                              .bytes_per_s = 1.25e9};
    struct simulated *world = simulated_create(&options);
    struct rusage usage;
    uint64_t turns = 0;
    int done = 0;
    static const char *const how[] = {"", " that come", ", one a hub"};

    trainers_of_mean = RANKS - (_i == STAR);
    for (int k = 0; k < RANKS; k++)
        open(&trainers[k], world, k);
    for (; done < RANKS; turns++) {
        int rank = simulated_turn(world, UINT64_MAX);
        if (rank < 0)           /* an assertion at each turn would be a file's write */
            ck_abort_msg("all wait for ever");
        done += go_on(&trainers[rank]);
    }
    getrusage(RUSAGE_SELF, &usage);
    printf("%d ranks%s, %d means of %d floats: %.2f s of CPU, %ld MiB, %llu messages, "
           "%llu bytes, %llu turns, %llu events, %.3f s of virtual time\n",
           RANKS, how[_i], ROUNDS, FLOATS, cpu_s(), usage.ru_maxrss / 1024,
           (unsigned long long)simulated_figures(world).messages,
           (unsigned long long)simulated_figures(world).bytes, (unsigned long long)turns,
           (unsigned long long)simulated_figures(world).events,
           1e-9 * (double)simulated_now(world) - 1);
    fflush(stdout);
    test_figures(world, turns, _i == STAR ? HUB_PIECES : PIECES);
    ck_assert_int_le(usage.ru_maxrss / 1024, MOST_MIB);
    for (int k = 0; k < RANKS; k++)
        ranks_free(trainers[k].f);
    simulated_destroy(world);
    ck_assert_int_eq(memory_live(), 0);
}
END_TEST

int main(void)
{
    TCase *all = new_case("all", 300);

    tcase_add_loop_test(all, a_thousand_ranks_need_few_messages, 0, 3);
    return run_cases(all, NULL);
}
