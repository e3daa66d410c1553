/* SPDX-License-Identifier: MIT */
/* Bulletins: numbers that a peer may send, who tells whom over a simulated link, and what
 * programs get of it. */
#include "comings.h"
#include "harness/jobs.h"
#include "harness/suite.h"
#include "harness/wait.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

/* --- numbers --- */

static bool good_with(size_t at, uint64_t bits)
{
    struct bulletin b = {.steps = 1, .gap = 1};

    memcpy((char *)&b + at, &bits, sizeof bits);
    return bulletin_is_good(&b);
}

static uint64_t bits_of(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* Every word of it, at its bounds and beyond. */
START_TEST(numbers_have_bounds)
{
    const uint64_t most = UINT64_C(1) << 60;
    const double bad[] = {(double)NAN, -(double)NAN, (double)INFINITY, -(double)INFINITY,
                          -1, -5e-324, 1.2e18};
    const double fine[] = {0, 5e-324, 1, (double)most};

    for (size_t at = 0; at < offsetof(struct bulletin, gap); at += 8) {
        ck_assert(good_with(at, 0) && good_with(at, most));
        ck_assert(!good_with(at, most + 1) && !good_with(at, UINT64_MAX));
    }
    for (size_t at = offsetof(struct bulletin, gap);
         at < offsetof(struct bulletin, n_values); at += 8) {
        for (int i = 0; i < N(bad); i++)
            ck_assert_msg(!good_with(at, bits_of(bad[i])), "%zu: %g", at, bad[i]);
        for (int i = 0; i < N(fine); i++)
            ck_assert_msg(good_with(at, bits_of(fine[i])), "%zu: %g", at, fine[i]);
    }
    for (uint64_t n = 0; n < 40; n++)
        ck_assert_int_eq(good_with(offsetof(struct bulletin, n_values), n),
                         n <= DESCANT_VALUES);
    ck_assert(!good_with(offsetof(struct bulletin, n_values), UINT64_MAX));
    for (size_t at = offsetof(struct bulletin, values); at < sizeof(struct bulletin);
         at += 8)
        for (int i = 0; i < N(bad); i++)
            ck_assert(good_with(at, bits_of(bad[i])));
}
END_TEST

START_TEST(the_last_one_is_kept)
{
    struct bulletin_slot slot = {.heard_ns = 0};
    struct bulletin b = {.steps = 0}, got;
    uint64_t heard_ns;
    int rank;

    ck_assert(!bulletin_get(&slot, &got, &rank, &heard_ns));
    for (uint64_t k = 1; k < 4; k++) {
        b.steps = k;
        b.values[DESCANT_VALUES - 1] = (double)k;
        bulletin_put(&slot, 7, &b, 10 * k);
        ck_assert(bulletin_get(&slot, &got, &rank, &heard_ns));
        ck_assert(rank == 7 && heard_ns == 10 * k && memcmp(&got, &b, sizeof b) == 0);
    }
}
END_TEST

/* --- who tells whom --- */

static void open_of(int ranks, int founders)
{
    open_world(ranks, founders);
    w.figures = true;
    found();
}

/* What the rank knows of another one: steps, or -1. */
static double known(int rank, int of, double *age_s)
{
    const struct fabric *f = w.trainers[rank].f;
    const struct bulletin_slot *slots = f->bulletins;
    struct bulletin b;
    uint64_t heard_ns;
    int said;

    if (!slots || !bulletin_get(&slots[of], &b, &said, &heard_ns))
        return -1;
    ck_assert_int_eq(said, of);
    if (age_s)
        *age_s = world_now(&w) + 1 - (double)heard_ns * 1e-9;
    return (double)b.steps;
}

static bool knows_of(int rank, int of, double within_s)
{
    double age_s = 0;
    return known(rank, of, &age_s) > 0 && age_s < within_s;
}

START_TEST(the_two_lowest_know_all)
{
    for (int n = 2; n <= 6; n++) {
        open_of(n, n);
        run(4);
        for (int rank = 0; rank < n; rank++)
            for (int of = 0; of < n; of++)
                ck_assert_msg(knows_of(rank, of, 1.3) ==
                                  (rank != of && (rank < 2 || (rank == 2 && of < 2))),
                              "of %d, rank %d of rank %d: %g", n, rank, of,
                              known(rank, of, NULL));
        world_close(&w);
    }
}
END_TEST

/* One a second, of all that each sends. */
START_TEST(they_cost_little)
{
    open_of(4, 4);
    run(2);
    uint64_t before = w.told;
    run(10);
    ck_assert_uint_ge(w.told - before, 4 * 9);
    ck_assert_uint_le(w.told - before, 4 * 10);
    ck_assert_uint_le(2 * (sizeof(struct ranks_word) + sizeof(struct bulletin)), 1000);
    world_close(&w);
}
END_TEST

/* The lowest dies, or leaves: the next one has the last figures of all, and the one after
 * it is told from then on. */
START_TEST(the_next_one_takes_over)
{
    static const int kinds[] = {SIMULATED_DIE, SIMULATED_VANISH, -1};

    for (int k = 0; k < N(kinds); k++) {
        open_of(4, 4);
        run(3);
        double of_first = known(1, 0, NULL);
        ck_assert(of_first > 0);
        if (kinds[k] < 0)
            world_leave(&w, 0);
        else
            world_fault(&w, (enum simulated_fault_kind)kinds[k], world_now(&w), 0, 0, 0, 0);
        run(kinds[k] == SIMULATED_VANISH ? 8 : 3);
        ck_assert_double_ge(known(1, 0, NULL), of_first);
        ck_assert(knows_of(1, 2, 1.3) && knows_of(1, 3, 1.3));
        ck_assert(knows_of(2, 1, 1.3) && knows_of(2, 3, 1.3));
        ck_assert(!knows_of(3, 1, 1.3) || knows_of(3, 2, 1.3));
        world_come(&w, 0);
        run(4);
        ck_assert(knows_of(0, 1, 1.3) && knows_of(0, 2, 1.3) && knows_of(0, 3, 1.3));
        world_close(&w);
    }
}
END_TEST

/* Words are lost, or late; figures age, and are fresh again. */
START_TEST(a_rank_that_is_cut_off_is_heard_again)
{
    open_of(3, 3);
    run(3);
    world_fault(&w, SIMULATED_PAUSE, world_now(&w), 5, 2, 0, 0);
    run(4.5);
    ck_assert(known(0, 2, NULL) > 0 && !knows_of(0, 2, 4));
    ck_assert(knows_of(0, 1, 1.3));
    run(6);
    ck_assert(knows_of(0, 2, 1.3) && knows_of(1, 2, 1.3));
    world_close(&w);
}
END_TEST

/* As the first one's final exchange is done it has the figures with which each of the
 * others began its own, whoever comes last. */
START_TEST(the_last_figures_are_there_at_the_end)
{
    for (int last = 0; last < 3; last++) {
        open_of(3, 3);
        run(2.35);
        for (int k = 1; k <= 3; k++) {
            world_finish(&w, (last + k) % 3);
            run(k < 3 ? 0.31 : 0);
        }
        for (int i = 0; i < 1000 && (w.trainers[0].open || !w.trainers[0].finished); i++)
            run(0.001);
        ck_assert(w.trainers[0].finished && !w.trainers[0].open);
        for (int k = 1; k < 3; k++)
            ck_assert_msg(known(0, k, NULL) >= (double)w.trainers[k].begun,
                          "last %d, rank %d: %g of %llu", last, k, known(0, k, NULL),
                          (unsigned long long)w.trainers[k].begun);
        world_close(&w);
    }
}
END_TEST

/* What it did after its last bulletin is in one more. */
START_TEST(a_leaver_tells_once_more)
{
    open_of(3, 3);
    run(2.7);
    double begun = (double)w.trainers[2].begun;
    world_leave(&w, 2);
    run(2);
    ck_assert(w.trainers[2].state == TRAINER_AWAY);
    ck_assert_double_ge(known(0, 2, NULL), begun);
    ck_assert_double_ge(known(1, 2, NULL), begun);
    world_close(&w);
}
END_TEST

static double value_of(int rank, int of)
{
    const struct bulletin_slot *slots = w.trainers[rank].f->bulletins;
    struct bulletin b;
    uint64_t heard_ns;
    int said;

    return slots && bulletin_get(&slots[of], &b, &said, &heard_ns) ? b.values[0] : -1;
}

/* A rank dies and comes again, twice. What its earlier processes had done stays in its
 * figures at another rank, which never fall, and is counted once. */
START_TEST(what_the_dead_have_done_is_kept)
{
    for (int of = 0; of < 4; of++) {
        int at = of == 0 ? 1 : 0;
        open_of(4, 4);
        w.goes_on = true;
        run(3);
        for (int life = 2; life < 4; life++) {
            double before = value_of(at, of), seen = before;
            ck_assert_double_gt(before, 0);
            world_fault(&w, SIMULATED_DIE, world_now(&w), 0, of, 0, 0);
            run(3);
            world_come(&w, of);
            for (int k = 0; k < 400; k++) {
                run(0.01);
                double now = value_of(at, of);
                ck_assert_msg(now >= seen, "rank %d, life %d: %g after %g", of, life, now,
                              seen);
                seen = now;
            }
            double begun = (double)w.trainers[of].begun;
            ck_assert_double_gt(begun, 0);
            ck_assert_double_gt(seen, before);
            ck_assert_double_le(seen, before + begun + 20);
        }
        world_close(&w);
    }
}
END_TEST

/* The lowest one comes again when another rank has gone for ever. */
START_TEST(a_rank_that_comes_hears_of_the_gone)
{
    open_of(4, 4);
    w.goes_on = true;
    run(3);
    world_fault(&w, SIMULATED_DIE, world_now(&w), 0, 3, 0, 0);
    run(3);
    double of_gone = value_of(0, 3);
    ck_assert_double_gt(of_gone, 0);
    world_fault(&w, SIMULATED_DIE, world_now(&w), 0, 0, 0, 0);
    run(3);
    world_come(&w, 0);
    run(4);
    ck_assert_double_ge(value_of(0, 3), of_gone - 20);
    world_close(&w);
}
END_TEST

/* Every relation of processes and depths. */
START_TEST(figures_wait_until_they_go_on)
{
    for (uint64_t kept = 0; kept < 4; kept++)
        for (uint64_t told = 0; told < 4; told++)
            for (uint64_t another = 0; another < 2; another++) {
                const struct bulletin a = {.process = 5, .depth = kept},
                                      b = {.process = 5 + another, .depth = told};
                ck_assert_int_eq(bulletin_goes_on(&a, &b),
                                 !another || told == 0 || told > kept);
            }
}
END_TEST

/* --- programs --- */

static struct descant *jobs[3];

static void open_three(void)
{
    pthread_t threads[2];

    new_address("");
    for (int k = 0; k < 3; k++) {
        jobs[k] = open_here("shadow-ma", k, 3);
        ck_assert_ptr_nonnull(descant_alloc(jobs[k], "w", 100));
    }
    for (int k = 0; k < 2; k++)
        pthread_create(&threads[k], NULL, start_job, jobs[k]);
    start_job(jobs[2]);
    for (int k = 0; k < 2; k++)
        pthread_join(threads[k], NULL);
}

static size_t peers(int of, struct descant_peer *out, size_t room)
{
    size_t n = 0;
    ck_assert_int_eq(descant_peers(jobs[of], out, room, &n), DESCANT_OK);
    return n;
}

static bool shows(int of, int rank, double value)
{
    struct descant_peer p[4];
    size_t n = peers(of, p, 4);

    for (size_t i = 0; i < n; i++)
        if (p[i].rank == rank && p[i].n_values == 2 && p[i].values[1] == value)
            return true;
    return false;
}

START_TEST(all_of_a_machine_know_all)
{
    struct descant_peer p[4];
    double values[DESCANT_VALUES + 1] = {0};

    open_three();
    for (int k = 0; k < 3; k++) {
        for (int i = 0; i <= k; i++)
            ck_assert_int_eq(descant_step(jobs[k]), DESCANT_OK);
        values[1] = 10 + k;
        ck_assert_int_eq(descant_show(jobs[k], values, 2), DESCANT_OK);
    }
    for (int of = 0; of < 3; of++)
        for (int rank = 0; rank < 3; rank++)
            WAIT_UNTIL(shows(of, rank, 10 + rank), "trainer %d of %d", of, rank);
    for (size_t room = 0; room <= 4; room++) {
        memset(p, 0, sizeof p);
        ck_assert_uint_eq(peers(1, p, room), 3);
        for (size_t i = 0; i < 3 && i < room; i++) {
            ck_assert_int_eq(p[i].rank, (int)i);
            ck_assert_uint_eq(p[i].steps, i + 1);
            ck_assert_int_eq(p[i].workers, 1);
            ck_assert(p[i].heard_s >= 0 && (i != 1 || p[i].heard_s == 0));
            ck_assert_int_eq(p[i].last, DESCANT_EVENT_JOINED);
            ck_assert_str_eq(p[i].host, "");
        }
    }
    ck_assert_int_eq(descant_close(jobs[2]), DESCANT_OK);
    WAIT_UNTIL(peers(0, p, 4) == 3 && p[2].last == DESCANT_EVENT_UNFINISHED, "%d",
               (int)p[2].last);
    ck_assert_uint_eq(p[2].steps, 3);
    for (int k = 0; k < 2; k++)
        ck_assert_int_eq(descant_close(jobs[k]), DESCANT_OK);
}
END_TEST

START_TEST(wrong_use_is_refused)
{
    struct descant *job = open_job("self", "none", -1, 0);
    double values[DESCANT_VALUES + 1] = {0};
    struct descant_peer p;
    size_t n = 9;

    ck_assert_int_eq(descant_show(NULL, values, 1), DESCANT_INVALID);
    ck_assert_int_eq(descant_show(job, values, DESCANT_VALUES + 1), DESCANT_INVALID);
    ck_assert_ptr_nonnull(strstr(descant_last_error(), "17 values: 16 at most"));
    ck_assert_int_eq(descant_show(job, NULL, 1), DESCANT_INVALID);
    ck_assert_int_eq(descant_shown(NULL, values, 1, &n), DESCANT_INVALID);
    ck_assert_int_eq(descant_shown(job, NULL, 1, &n), DESCANT_INVALID);
    ck_assert_int_eq(descant_shown(job, values, 1, NULL), DESCANT_INVALID);
    ck_assert_int_eq(descant_peers(NULL, &p, 1, &n), DESCANT_INVALID);
    ck_assert_int_eq(descant_peers(job, NULL, 1, &n), DESCANT_INVALID);
    ck_assert_int_eq(descant_peers(job, &p, 1, NULL), DESCANT_INVALID);
    ck_assert_uint_eq(n, 9);
    ck_assert_int_eq(descant_show(job, values, DESCANT_VALUES), DESCANT_OK);
    ck_assert_int_eq(descant_peers(job, &p, 1, &n), DESCANT_OK);
    ck_assert(n == 1 && p.rank == 0 && p.n_values == DESCANT_VALUES);
    ck_assert_int_eq(descant_shown(job, values, DESCANT_VALUES, &n), DESCANT_OK);
    ck_assert_uint_eq(n, 0);            /* nobody came before it */
    ck_assert_int_eq(descant_show(job, NULL, 0), DESCANT_OK);
    ck_assert_int_eq(descant_peers(job, NULL, 0, &n), DESCANT_OK);
    ck_assert_uint_eq(n, 1);
    ck_assert_int_eq(descant_close(job), DESCANT_OK);
}
END_TEST

/* A simulated world has one thread, to which ThreadSanitizer has nothing to say. */
#if defined __SANITIZE_THREAD__
enum { SIMULATED = false };
#else
enum { SIMULATED = true };
#endif

int main(void)
{
    TCase *numbers = new_case("numbers", 10), *ranks = new_case("ranks", 200);
    TCase *programs = new_case("programs", 60);

    tcase_add_test(numbers, numbers_have_bounds);
    tcase_add_test(numbers, the_last_one_is_kept);
    tcase_add_test(ranks, the_two_lowest_know_all);
    tcase_add_test(ranks, they_cost_little);
    tcase_add_test(ranks, the_next_one_takes_over);
    tcase_add_test(ranks, a_rank_that_is_cut_off_is_heard_again);
    tcase_add_test(ranks, the_last_figures_are_there_at_the_end);
    tcase_add_test(ranks, a_leaver_tells_once_more);
    tcase_add_test(ranks, what_the_dead_have_done_is_kept);
    tcase_add_test(ranks, a_rank_that_comes_hears_of_the_gone);
    tcase_add_test(numbers, figures_wait_until_they_go_on);
    tcase_add_test(programs, all_of_a_machine_know_all);
    tcase_add_test(programs, wrong_use_is_refused);
    if (SIMULATED)
        return run_cases(numbers, ranks, programs, NULL);
    return run_cases(numbers, programs, NULL);
}
