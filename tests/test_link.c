/* SPDX-License-Identifier: MIT */
/* How much a job may move: the emulated link of an shm address, and descant_options.sync_rate.
 *
 * Times are real. What a link costs is a lower bound that no machine can undercut, so it is tested
 * exactly; the upper bounds have room for a machine that is busy with other things. What the
 * link should cost is written here once more, from the words of the manual. */
#include <check.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "fabric/fabric.h"
#include "harness/suite.h"

enum { N = 500000, MOST = 4, MEANS = 3 };

#define RATE 125e6      /* 1gbit, in bytes a second */
#define RTT 0.01
#define BYTES (N * 4.0)

static struct fabric *f[MOST];
static struct extent extents[MOST];
static struct vector in[MOST];

static void open_all(int k, bool elastic)
{
    static int number;
    char address[100];
    snprintf(address, sizeof address, "link-%d-%d,rate=1gbit,rtt=10ms", (int)getpid(), number++);
    const struct fabric_start start = {.manifest = "x\n", .n = N, .room = N, .threads = 1,
                                       .collective = !elastic, .center = elastic};
    for (int i = 0; i < k; i++) {
        struct fabric_options o = {.address = address, .rank = i, .size = k, .start_s = 10};
        ck_assert_int_eq(fabric_shm.open(&f[i], &o), DESCANT_OK);
        ck_assert_int_eq(fabric_shm.start(f[i], &start), DESCANT_OK);
        extents[i] = (struct extent){0, N, f[i]->contribution};
        in[i] = (struct vector){N, 1, &extents[i]};
    }
}

static void close_all(int k)
{
    for (int i = 0; i < k; i++)
        f[i]->type->close(f[i]);
}

/* One exchange of all, in turn in this thread: seconds until the first has its first part, and
 * until the last is done. */
static void exchange_all(int k, enum exchange_kind kind, double *first_s, double *last_s)
{
    struct exchange x = {.kind = kind, .n = N, .weight = 1, .alpha = 0.5};
    bool done[MOST] = {false};
    uint64_t began = clock_now_ns(), first = 0;
    for (int i = 0; i < k; i++) {
        x.in = &in[i];
        ck_assert_int_eq(f[i]->type->begin(f[i], &x), DESCANT_OK);
    }
    for (int left = k; left > 0;) {
        for (int i = 0; i < k; i++) {
            struct fabric_part part;
            if (done[i])
                continue;
            enum fabric_progress progress = f[i]->type->poll(f[i], &part);
            if (progress == FABRIC_PART && !first)
                first = clock_now_ns();
            done[i] = progress == FABRIC_DONE;
            left -= done[i];
        }
    }
    *first_s = (double)(first - began) * 1e-9;
    *last_s = (double)(clock_now_ns() - began) * 1e-9;
}

/* No exchange can be quicker than the link; that the best of some is not much slower shows that
 * it is the link that they wait for, also where the machine has other things to do. */
struct best {
    double link_s, seconds;     /* seconds 0: none yet */
};

static void expect_least(struct best *best, double seconds)
{
    ck_assert_msg(seconds > best->link_s - 1e-8, "%g s, the link takes %g s", seconds,
                  best->link_s);
    if (!(best->seconds > 0) || seconds < best->seconds)
        best->seconds = seconds;
}

static void expect_most(const struct best *best)
{
    double most = 3 * best->link_s + 0.2;
    ck_assert_msg(best->seconds < most, "%g s, at most %g s", best->seconds, most);
}

/* 2 (k-1)/k bytes over the link, and there and back twice; nobody has anything before. */
START_TEST(a_mean_takes_its_time)
{
    int k = _i;
    double first_s, last_s;
    struct best first = {.link_s = 2.0 * (k - 1) / k * BYTES / RATE + 2 * RTT}, last = first;
    open_all(k, false);
    exchange_all(k, EXCHANGE_STATE, &first_s, &last_s);
    for (int m = 0; m < MEANS; m++) {
        exchange_all(k, EXCHANGE_MEAN, &first_s, &last_s);
        expect_least(&first, first_s);
        expect_least(&last, last_s);
    }
    expect_most(&first);
    expect_most(&last);
    close_all(k);
}
END_TEST

/* The centre has one link: of k exchanges that begin together the first waits for its own
 * bytes, the last for those of all. */
START_TEST(the_link_of_the_centre_is_shared)
{
    int k = _i;
    double first_s, last_s;
    struct best first = {.link_s = BYTES / RATE + RTT}, last = {.link_s = k * BYTES / RATE + RTT};
    open_all(k, true);
    exchange_all(k, EXCHANGE_STATE, &first_s, &last_s);
    for (int m = 0; m < MEANS; m++) {
        exchange_all(k, EXCHANGE_ELASTIC, &first_s, &last_s);
        expect_least(&first, first_s);
        expect_least(&last, last_s);
    }
    expect_most(&first);
    expect_most(&last);
    close_all(k);
}
END_TEST

/* --- sync_rate --- */

enum { W = 102400, ROUNDS = 5 };

#define SYNC_RATE 4e6
#define ROUND_BYTES (2.0 * W * 4)       /* there and back; a mean of two moves half of it */

/* Two trainers in this process make steps until the first has had so many rounds. */
static struct descant_stats train(const char *plan, double sync_rate, uint64_t rounds)
{
    static int number;
    char address[64];
    struct descant *job[2];
    struct descant_stats s = {0};
    struct descant_options o = descant_options_default();
    snprintf(address, sizeof address, "shm:rate-%d-%d", (int)getpid(), number++);
    o.job = address;
    o.plan = plan;
    o.sync_cpu = 1;
    o.sync_rate = sync_rate;
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(descant_open(&job[i], &o), DESCANT_OK);
        ck_assert_ptr_nonnull(descant_alloc(job[i], "w", W));
    }
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(descant_start(job[i]), DESCANT_OK);
    while (s.rounds < rounds) {
        for (int i = 0; i < 2; i++)
            ck_assert_int_eq(descant_step(job[i]), DESCANT_OK);
        clock_sleep_until(clock_now_ns() + 50000);
        descant_stats(job[0], &s);
        if (sync_rate > 0)
            ck_assert_msg((double)s.bytes <= sync_rate * s.wall_s + ROUND_BYTES,
                          "%s: %g bytes in %g s", plan, (double)s.bytes, s.wall_s);
    }
    for (int i = 0; i < 2; i++)
        descant_close(job[i]);
    return s;
}

START_TEST(rounds_keep_to_the_rate)
{
    static const char *const plans[] = {"shadow-easgd", "shadow-ma"};
    struct descant_stats s = train(plans[_i], SYNC_RATE, ROUNDS);
    double per_round = (double)s.bytes / (double)s.rounds;
    ck_assert(per_round > 0.9 * ROUND_BYTES / (1 + _i) && per_round <= 1.01 * ROUND_BYTES);
    s = train(plans[_i], 0, 16 * ROUNDS);
    ck_assert_msg((double)s.bytes > SYNC_RATE * s.wall_s + 2 * ROUND_BYTES,
                  "%s: %g bytes in %g s", plans[_i], (double)s.bytes, s.wall_s);
}
END_TEST

/* --- the time of an exchange --- */

enum { EVERY = 5000 };

struct threaded_trainer {
    const char *address;
    pthread_t thread;
    struct descant_stats stats;
};

/* The first round begins with the start. */
static void *delay(void *context)
{
    struct threaded_trainer *t = context;
    struct descant *job;
    struct descant_options o = descant_options_default();
    o.job = t->address;
    o.plan = "dasgd,every=5000,delay=5000";      /* EVERY */
    if (descant_open(&job, &o) != DESCANT_OK)
        return NULL;
    descant_alloc(job, "w", W);
    descant_start(job);
    for (int i = 0; i < 3 * EVERY; i++) {
        descant_step(job);
        clock_sleep_until(clock_now_ns() + 50000);
    }
    descant_stats(job, &t->stats);
    descant_close(job);
    return NULL;
}

/* A delayed round lasts until its step has come, its exchange no longer than the link. */
START_TEST(an_exchange_is_timed)
{
    char address[100];
    struct threaded_trainer t[2];
    double link_s = W * 4 / RATE + 2 * RTT;
    snprintf(address, sizeof address, "shm:time-%d,rate=1gbit,rtt=10ms", (int)getpid());
    for (int i = 0; i < 2; i++) {
        t[i] = (struct threaded_trainer){.address = address};
        ck_assert_int_eq(pthread_create(&t[i].thread, NULL, delay, &t[i]), 0);
    }
    for (int i = 0; i < 2; i++)
        pthread_join(t[i].thread, NULL);
    for (int i = 0; i < 2; i++) {
        const struct descant_stats *s = &t[i].stats;
        ck_assert_uint_ge(s->rounds, 2);
        ck_assert_msg(s->exchange_p50_s > link_s * 15 / 16 && s->exchange_p50_s < s->age_s / 2,
                      "%g s of a round of %g s, the link takes %g s", s->exchange_p50_s, s->age_s,
                      link_s);
        ck_assert(s->exchange_p99_s >= s->exchange_p50_s);
    }
}
END_TEST

int main(void)
{
    TCase *all = new_case("link", 60);
    tcase_add_loop_test(all, a_mean_takes_its_time, 2, MOST + 1);
    tcase_add_loop_test(all, the_link_of_the_centre_is_shared, 2, MOST + 1);
    tcase_add_loop_test(all, rounds_keep_to_the_rate, 0, 2);
    tcase_add_test(all, an_exchange_is_timed);
    return run_cases(all, NULL);
}
