/* SPDX-License-Identifier: MIT */
/* The rules of a round, in every world of up to three members: each has not arrived, or
 * has brought any of the offers below; the shared code against the rules as they are
 * written. */
#include "fabric/ruling.h"
#include "harness/suite.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What one member may bring. Place 0: it has not arrived. */
static struct offer choices[64];
static int n_choices;

static void make_choices(void)
{
    n_choices = 1;
    for (int kind = EXCHANGE_MEAN; kind <= EXCHANGE_STATE; kind++)
        for (int bits = 0; bits < 16; bits++)
            choices[n_choices++] = (struct offer){
                .kind = (enum exchange_kind)kind, .n = 10 + (bits & 1), .agree = bits >> 1 & 1,
                .priority = bits >> 2 & 1, .bad = bits >> 3, .weight = bits & 1 ? 3 : 1,
                .refers = bits >> 1 & 1};
}

struct ruling_world {
    struct offer offers[3];
    int arrived, members;
    bool alone, final;
};

/* Rules 2 and 5 of src/fabric/ruling.c. */
static int best_state(const struct ruling_world *w)
{
    int best = -1;
    for (int i = 0; i < w->arrived; i++) {
        const struct offer *o = &w->offers[i];
        bool beaten = o->kind != EXCHANGE_STATE;
        for (int j = 0; j < w->arrived; j++) {
            const struct offer *other = &w->offers[j];
            beaten |= other->kind == EXCHANGE_STATE &&
                      (other->priority > o->priority ||
                       (other->priority == o->priority && other->rank < o->rank));
        }
        best = beaten ? best : i;
    }
    return best;
}

static bool has(const struct ruling_world *w, enum exchange_kind kind)
{
    for (int i = 0; i < w->arrived; i++)
        if (w->offers[i].kind == kind)
            return true;
    return false;
}

static bool alike(const struct ruling_world *w)
{
    for (int i = 1; i < w->arrived; i++)
        if (w->offers[i].n != w->offers[0].n || w->offers[i].agree != w->offers[0].agree)
            return false;
    return true;
}

static enum ruling_what wanted(const struct ruling_world *w)
{
    bool state = has(w, EXCHANGE_STATE);
    if (!state && (w->arrived == 0 || w->alone || has(w, EXCHANGE_ELASTIC)))
        return RULING_VOID;
    if (w->arrived < w->members)
        return RULING_WAITS;
    if ((!state || w->final) && !alike(w))
        return RULING_DIFFER;
    if (state)
        return RULING_STATE;
    for (int i = 0; i < w->arrived; i++)
        if (!w->offers[i].bad)
            return RULING_MEAN;
    return RULING_EMPTY;
}

static void check_shares(const struct ruling_world *w, const double *shares)
{
    double sum = 0, weights = 0;
    for (int i = 0; i < w->arrived; i++)
        weights += w->offers[i].bad ? 0 : w->offers[i].weight;
    for (int i = 0; i < w->arrived; i++) {
        double share = w->offers[i].bad ? 0 : w->offers[i].weight / weights;
        ck_assert_double_eq_tol(shares[i], share, 1e-15);
        sum += shares[i];
    }
    ck_assert_double_eq_tol(sum, 1, 1e-15);
}

static void check_world(const struct ruling_world *w)
{
    double shares[3] = {-1, -1, -1};
    struct ruling ruling = round_rule(
        w->offers, (struct ruling_of){w->arrived, w->members, false, w->alone}, shares);
    ck_assert_int_eq(ruling.what, wanted(w));
    if (ruling.what == RULING_STATE)
        ck_assert_int_eq(ruling.place, best_state(w));
    if (ruling.what == RULING_MEAN) {
        bool one = true;
        check_shares(w, shares);
        for (int i = 1; i < w->arrived; i++)
            one &= w->offers[i].refers == w->offers[0].refers;
        ck_assert(ruling.one_reference == one);
        ck_assert_uint_eq(ruling.n, w->offers[0].n);
    }
    if (ruling.what == RULING_STATE)
        for (int i = 0; i < w->arrived; i++)
            ck_assert_uint_le(ruling.n, w->offers[i].n);
    if (ruling.what == RULING_DIFFER)
        ck_assert(offers_differ(&w->offers[0], &w->offers[ruling.place]));
}

/* Ranks do not ascend with places: slots of shared memory are taken in any order. */
START_TEST(every_round_of_three_is_as_the_rules_say)
{
    static const int ranks[3] = {4, 2, 7};
    long worlds = 0;
    int picks[3];

    make_choices();
    for (int members = 0; members <= 3; members++) {
        memset(picks, 0, sizeof picks);
        for (bool more = true; more; worlds += 4) {
            struct ruling_world w = {.members = members};
            for (int i = 0; i < members; i++)
                if (picks[i]) {
                    w.offers[w.arrived] = choices[picks[i]];
                    w.offers[w.arrived++].rank = ranks[i];
                }
            for (int flags = 0; flags < 4; flags++) {
                w.alone = flags & 1;
                w.final = flags & 2;
                for (int i = 0; i < w.arrived; i++)
                    w.offers[i].final = w.final;
                check_world(&w);
            }
            int i = 0;
            while (i < members && ++picks[i] == n_choices)
                picks[i++] = 0;
            more = i < members;
        }
    }
    ck_assert_int_gt(worlds, 400000);
}
END_TEST

/* Rule 1: four trainers, each nowhere, at its end or at work, and arrived or not. */
START_TEST(a_round_is_of_those_at_work_else_of_those_at_their_end)
{
    for (int world = 0; world < 6 * 6 * 6 * 6; world++) {
        int members[3] = {0}, arrived[3] = {0};
        struct gathering one = {0}, many = {0};
        for (int i = 0, left = world; i < 4; i++, left /= 6) {
            int standing = left % 6 / 2, here = left % 2;
            gathering_add(&one, (enum standing)standing, 1, here);
            members[standing]++;
            arrived[standing] += here;
        }
        enum standing of = members[STANDING_WORK]  ? STANDING_WORK
                           : members[STANDING_END] ? STANDING_END
                                                   : STANDING_NONE;
        ck_assert_int_eq(one.of, of);
        ck_assert_int_eq(one.members, of ? members[of] : 0);
        ck_assert_int_eq(one.arrived, of ? arrived[of] : 0);
        for (int s = STANDING_WORK; s >= STANDING_NONE; s--)
            gathering_add(&many, (enum standing)s, members[s], arrived[s]);
        ck_assert_mem_eq(&many, &one, sizeof one);
    }
}
END_TEST

START_TEST(the_first_line_that_differs_is_found)
{
    struct differing d;
    ck_assert(!manifests_differ("", "", &d));
    ck_assert(!manifests_differ("a\nb\n", "a\nb\n", &d));
    ck_assert(!manifests_differ("a\nb", "a\nb\n", &d));
    ck_assert(manifests_differ("a\nbc\nd\n", "a\nb\nd\n", &d));
    ck_assert_int_eq(d.n[0], 2);
    ck_assert_int_eq(d.n[1], 1);
    ck_assert(strncmp(d.text[0], "bc", 2) == 0 && strncmp(d.text[1], "b", 1) == 0);
    ck_assert(manifests_differ("a\n", "a\nb\n", &d));
    ck_assert_int_eq(d.n[0], 0);
    char wide[1000];
    memset(wide, 'x', sizeof wide - 1);
    wide[sizeof wide - 1] = 0;
    ck_assert(manifests_differ(wide, "x\n", &d));
    ck_assert_int_eq(d.n[0], 200);
}
END_TEST

int main(void)
{
    TCase *rules = new_case("rules", 60);
    tcase_add_test(rules, every_round_of_three_is_as_the_rules_say);
    tcase_add_test(rules, a_round_is_of_those_at_work_else_of_those_at_their_end);
    tcase_add_test(rules, the_first_line_that_differs_is_found);
    return run_cases(rules, NULL);
}
