/* SPDX-License-Identifier: MIT */
/* Agreements of ranks that come, leave, die and are cut off, over a simulated link. */
#include "comings.h"
#include "harness/suite.h"

#include <math.h>

static void open_of(int ranks, int founders, double agree_s)
{
    open_world(ranks, founders);
    w.agree_ns = (uint64_t)(agree_s * 1e9);
    found();
    run(1);
}

static int agreed(int rank)
{
    return w.trainers[rank].agree.n;
}

/* All who train make so many agreements. */
static void agree_on(int more)
{
    int before[WORLD_MOST];

    for (int k = 0; k < w.options.ranks; k++)
        before[k] = agreed(k);
    run(2);
    for (int k = 0; k < w.options.ranks; k++)
        if (w.trainers[k].state == TRAINER_TRAINS)
            ck_assert_msg(agreed(k) >= before[k] + more, "rank %d: %d agreements more", k,
                          agreed(k) - before[k]);
}

START_TEST(founders_agree)
{
    for (int n = 1; n <= 5; n++) {
        open_of(n, n, 0.02);
        agree_on(50);
        for (int k = 1; k < n; k++)
            ck_assert_int_le(abs(agreed(k) - agreed(0)), 1);
        world_close(&w);
    }
}
END_TEST

/* Rank k takes part, as each that is there knows. */
static void check_member(int k, bool takes_part)
{
    for (int i = 0; i < w.options.ranks; i++)
        if (w.trainers[i].f && i != k)
            ck_assert_int_eq(atomic_load(&w.trainers[i].f->takes_part[k]), takes_part);
}

START_TEST(any_of_three_dies_and_comes_again)
{
    for (int dead = 0; dead < 3; dead++) {
        open_of(3, 3, 0.02);
        agree_on(50);
        world_fault(&w, dead % 2 ? SIMULATED_VANISH : SIMULATED_DIE, world_now(&w), 0, dead, 0, 0);
        check_member(dead, true);
        run(dead % 2 ? 5 : 0.1);
        agree_on(50);
        check_member(dead, false);
        world_come(&w, dead);
        run(1);
        agree_on(20);
        for (int k = 0; k < 3; k++)
            check_member(k, true);
        world_close(&w);
    }
}
END_TEST

START_TEST(one_leaves_and_one_comes_late)
{
    for (int k = 0; k < 3; k++) {
        open_of(4, 3, 0.02);
        world_leave(&w, k);
        run(1);
        agree_on(50);
        check_member(3, false);
        world_come(&w, 3);
        run(1);
        agree_on(20);
        check_member(k, false);         /* the late one, too, though it has heard of no leaving */
        check_member(3, true);
        world_close(&w);
    }
}
END_TEST

/* The others wait for it as long as it may be alive, and then not; it comes back. */
START_TEST(one_is_paused_or_cut_off)
{
    for (int k = 0; k < 6; k++) {
        open_of(3, 3, 0.02);
        world_fault(&w, k < 3 ? SIMULATED_PAUSE : SIMULATED_PART, world_now(&w), 8, k % 3, 1, 0);
        run(0.5);
        int before = agreed((k + 1) % 3);
        run(0.3);
        ck_assert_int_le(agreed((k + 1) % 3), before);
        run(3);
        ck_assert_int_gt(agreed((k + 1) % 3), before + 20);
        run(8);
        agree_on(20);
        world_close(&w);
    }
}
END_TEST

/* Those who begin their finish are not waited for. */
START_TEST(one_finishes)
{
    for (int k = 0; k < 3; k++) {
        open_of(3, 3, 0.02);
        world_finish(&w, k);
        run(0.5);
        ck_assert(w.trainers[k].finished);
        int before = agreed((k + 1) % 3);
        run(1);
        ck_assert_int_gt(agreed((k + 1) % 3), before + 20);
        world_close(&w);
    }
}
END_TEST

/* --- one agreement, step by step --- */

static struct agree_value mean_of(double x)
{
    struct agree_value value = {.kind = AGREE_MEAN, .n = sizeof x};

    memcpy(value.bytes, &x, sizeof x);
    return value;
}

static const double brings[] = {1, 10, 100};

static void offer_all(void)
{
    for (int k = 0; k < w.options.ranks; k++) {
        const struct agree_value value = mean_of(brings[k]);
        ranks_agree.offer(w.trainers[k].f, &value);
    }
}

/* 0: it has none yet. */
static double result_of(int rank)
{
    struct agree_value value;
    double x = 0;

    if (w.trainers[rank].f && ranks_agree.look(w.trainers[rank].f, &value))
        memcpy(&x, value.bytes, sizeof x);
    return x;
}

static bool keeps(int rank)
{
    return ranks_agree_kept(ranks_of(w.trainers[rank].f))->number > 0;
}

/* The coordinator is cut off from one rank at some moment of an agreement, and dies. Whatever the
 * other one got, both get: with the coordinator's offer, where the next one kept that result. */
START_TEST(a_result_outlives_its_coordinator)
{
    int with = 0, without = 0, before = 0, cut_off = 1 + _i, other = 2 - _i;

    for (int moment = 0; moment < 60; moment += FEWER) {
        open_of(3, 3, 0);
        double cut_s = world_now(&w) + moment * 2e-5;
        offer_all();
        world_fault(&w, SIMULATED_CUT, cut_s, 20, 0, cut_off, 0);
        world_fault(&w, SIMULATED_DIE, cut_s + 1e-3, 0, 0, 0, 0);
        run(moment * 2e-5 + 1e-3);
        double early = result_of(other), late = result_of(cut_off);
        bool kept = keeps(1);   /* the next coordinator */
        before += early > 0 && !(late > 0);
        run(5);
        early = early > 0 ? early : result_of(other);
        late = late > 0 ? late : result_of(cut_off);
        ck_assert_msg(early > 0 && early == late, "moment %d: %g and %g", moment, early, late);
        ck_assert_msg(early == (kept ? 37 : 55), "moment %d: %g, kept %d", moment, early, kept);
        with += kept;
        without += !kept;
        world_close(&w);
    }
    ck_assert_int_gt(with, 3 / FEWER);
    ck_assert_int_gt(without, 3 / FEWER);
    ck_assert_int_gt(before, 0);
}
END_TEST

/* A member that keeps a result which is not final is cut off, and the others make another one of
 * that number. It takes theirs when it comes back. */
START_TEST(a_result_that_was_not_final_gives_way)
{
    int other = 0;

    for (int moment = 0; moment < 40; moment += FEWER) {
        open_of(5, 5, 0);
        double at = world_now(&w) + moment * 2e-5;
        for (int k = 0; k < 5; k++) {
            const struct agree_value value = mean_of(k < 2 ? 1 : 11);
            ranks_agree.offer(w.trainers[k].f, &value);
        }
        for (int k = 0; k < 2; k++)             /* the coordinator and rank 1 are apart */
            world_fault(&w, SIMULATED_PART, at, 4, k, 1, 0);
        run(moment * 2e-5 + 3);
        double rest = result_of(2);
        ck_assert(rest > 0 && result_of(3) == rest && result_of(4) == rest);
        ck_assert(rest == 7 || rest == 11);
        run(6);
        for (int k = 0; k < 2; k++) {
            double x = result_of(k);
            ck_assert_msg(x == rest, "moment %d, rank %d: %g and %g", moment, k, x, rest);
        }
        other += rest == 11;
        world_close(&w);
    }
    ck_assert_int_gt(other, 3 / FEWER);
}
END_TEST

/* Rank 3 comes at some moment before or after the first agreement of the others. Once it is a
 * member it knows which: where there was none the others wait for it, and else they have the
 * result that it knows. If it is cut off before it offers (2, 3) the others do without it: it gets
 * what they have made, or asks again (3), and is in the next one. */
START_TEST(a_late_rank_knows_whether_there_was_a_first_one)
{
    int before = 0, after = 0;

    for (int moment = 0; moment < 100; moment += FEWER) {
        struct agree_value known;
        uint64_t made = 0;
        open_of(4, 3, 0);
        world_come(&w, 3);
        run(moment * 5e-5);
        for (int k = 0; k < 3; k++) {
            const struct agree_value value = mean_of(brings[k]);
            ranks_agree.offer(w.trainers[k].f, &value);
        }
        bool ready = false;
        for (int i = 0; i < 10000 && !ready; i++) {
            run(1e-4);
            if (w.trainers[3].states)
                ranks_agree.made(w.trainers[3].f, &ready, &made, &known);
        }
        ck_assert(ready);
        run(_i ? 1 : 0);
        double early[3], x;
        for (int k = 0; k < 3; k++)
            early[k] = result_of(k);
        if (!made) {
            const struct agree_value value = mean_of(33);
            bool cut = _i >= 2, asks = _i == 3;
            ck_assert(!(early[0] > 0) && !(early[1] > 0) && !(early[2] > 0));
            if (cut) {
                world_fault(&w, SIMULATED_PART, world_now(&w), 8, 3, 1, 0);
                run(5);
                for (int k = 0; k < 3; k++)
                    ck_assert_msg((x = result_of(k)) == 37, "moment %d, rank %d: %g", moment, k, x);
                run(6);
            }
            for (int k = 0; k < 3 && asks; k++) {
                const struct agree_value more = mean_of(brings[k]);
                ranks_agree.offer(w.trainers[k].f, &more);
            }
            if (asks) {
                ranks_agree.made(w.trainers[3].f, &ready, &made, &known);
                ck_assert(ready && made == 1);
                made = 0;
            }
            ranks_agree.offer(w.trainers[3].f, &value);
            run(1);
            if (cut && !asks)
                ck_assert_msg((x = result_of(3)) == 37, "moment %d: %g", moment, x);
            for (int k = 0; k < 4 && (!cut || asks); k++)
                ck_assert_msg((x = result_of(k)) == 36, "moment %d, rank %d: %g", moment, k, x);
        } else {
            run(1);
            for (int k = 0; k < 3; k++) {
                x = early[k] > 0 ? early[k] : result_of(k);
                ck_assert_msg(x == 37, "moment %d, rank %d: %g", moment, k, x);
            }
            memcpy(&x, known.bytes, sizeof x);
            ck_assert(made == 1 && x == 37);
        }
        before += !made;
        after += made > 0;
        world_close(&w);
    }
    ck_assert_msg(before > 3 / FEWER && after > 3 / FEWER, "%d %d", before, after);
}
END_TEST

START_TEST(worlds_of_faults)
{
    run_first_faults("-a");
}
END_TEST

/* Each failed once: all members that had the last result had left, or were cut off, when a
 * newcomer that did not know it became the job's coordinator. */
static const char *const rare[] = {"15199 -a", "16265 -a", "21657 -a"};

START_TEST(rare_worlds)
{
    run_faults(rare[_i]);
}
END_TEST

int main(void)
{
    TCase *all = new_case("ranks", 60), *steps = new_case("steps", 60);

    tcase_add_test(all, founders_agree);
    tcase_add_test(all, any_of_three_dies_and_comes_again);
    tcase_add_test(all, one_leaves_and_one_comes_late);
    tcase_add_test(all, one_is_paused_or_cut_off);
    tcase_add_test(all, one_finishes);
    tcase_add_loop_test(steps, a_result_outlives_its_coordinator, 0, 2);
    tcase_add_test(steps, a_result_that_was_not_final_gives_way);
    tcase_add_loop_test(steps, a_late_rank_knows_whether_there_was_a_first_one, 0, 4);
    tcase_add_test(all, worlds_of_faults);
    tcase_add_loop_test(all, rare_worlds, 0, few(3, 1));
    return run_cases(all, steps, NULL);
}
