/* SPDX-License-Identifier: MIT */
/* The ledger of one member, word by word: the words that it owes at once, where saying
 * them again in time would also end well (tests/test_ledger.c). */
#include "harness/suite.h"
#include "ranks/ledger.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 3 };

#define S UINT64_C(1000000000)

static void *memory;

/* Member `rank` of epoch 1, whose members are 0 to members - 1, and 0 coordinates. */
static struct ledger *member(int rank, int members)
{
    const struct ledger_options options = {.rank = rank, .ranks = MOST,
                                           .generation = (uint64_t)rank + 1,
                                           .again_ns = S, .lazy_ns = S / 20,
                                           .dead_ns = 4 * S};
    struct ledger_entry first[MOST] = {{0}};

    for (int r = 0; r < members; r++)
        first[r].generation = (uint64_t)r + 1;
    free(memory);
    memory = malloc(ledger_bytes(MOST));
    ck_assert_ptr_nonnull(memory);
    return ledger_init(memory, &options, 0, first, 0);
}

static struct ledger_decision word(enum ledger_what what, int from, int to, uint64_t epoch)
{
    return (struct ledger_decision){.what = what, .from = from, .to = to, .about = -1,
                                    .generation = (uint64_t)from + 1, .epoch = epoch,
                                    .version = {1, 0}};
}

/* All decisions until there is none; how often `what` goes to the rank. */
static int says(struct ledger *l, enum ledger_what what, int to)
{
    struct ledger_decision d;
    struct ledger_entry list[MOST];
    int n = 0;

    while (ledger_next(l, &d, list)) {
        ck_assert(d.to >= 0 && d.to < MOST);
        n += d.what == what && d.to == to;
    }
    return n;
}

/* Candidate 1 says FENCE before this member misses the coordinator: the promise is made
 * as soon as the coordinator is missed. */
START_TEST(an_early_fence_is_answered)
{
    struct ledger *l = member(2, 3);
    struct ledger_decision fence = word(LEDGER_FENCE, 1, 2, 1);

    fence.ballot = 4;
    ledger_hear(l, &fence, NULL);
    ck_assert(!ledger_view(l).fenced);
    says(l, LEDGER_HERE, 1);
    ledger_silent(l, 0);
    ck_assert(ledger_view(l).fenced);
    ck_assert_int_eq(says(l, LEDGER_HERE, 1), 1);
}
END_TEST

/* A coordinator that lacks this epoch drops this member's HERE. It is told of the epoch,
 * and then hears HERE again, without waiting for again_ns. */
START_TEST(a_coordinator_hears_here_after_stands)
{
    struct ledger *l = member(1, 3);
    const struct ledger_entry list[MOST] = {{1, 0}, {2, 0}};
    struct ledger_decision stands = word(LEDGER_STANDS, 2, 1, 2);
    struct ledger_decision old = word(LEDGER_HERE, 0, 1, 1);

    ledger_hear(l, &stands, list);
    ck_assert_int_eq(ledger_view(l).coordinator, 0);
    says(l, LEDGER_HERE, 0);
    ledger_hear(l, &old, NULL);
    ck_assert_int_eq(says(l, LEDGER_STANDS, 0), 1);
    ck_assert_uint_le(ledger_wakes(l), 0);
    ledger_time(l, 0);
    ck_assert_int_eq(says(l, LEDGER_HERE, 0), 1);
}
END_TEST

/* A donor lacks the version that it was to give: the coordinator is asked soon for another
 * one. */
START_TEST(a_version_that_is_not_given_is_asked_for_anew)
{
    struct ledger *l = member(1, 3);
    struct ledger_decision take = word(LEDGER_TAKE, 0, 1, 1);

    take.version = (struct ledger_version){1, 1};
    take.about = 2;
    ledger_hear(l, &take, NULL);
    ck_assert_int_eq(says(l, LEDGER_FETCH, 1), 1);
    ledger_not_given(l);
    ck_assert_uint_eq(ledger_view(l).wanted.epoch, 0);
    ck_assert_uint_lt(ledger_wakes(l), S / 20);
    ledger_time(l, S / 20);
    ck_assert_int_eq(says(l, LEDGER_HERE, 0), 1);
}
END_TEST

/* A leaver that misses the only other member founds no epoch without both. It does if that
 * one is known to be dead, or leaves, too. */
START_TEST(a_leaver_keeps_a_member_that_it_does_not_hear)
{
    for (int how = 0; how < 3; how++) {
        struct ledger *l = member(0, 2);
        struct ledger_decision leaves = word(LEDGER_HERE, 1, 0, 1);

        leaves.leaves = true;
        ledger_leave(l);
        if (how == 0)
            ledger_silent(l, 1);
        else if (how == 1)
            ledger_lost(l, 1);
        else
            ledger_hear(l, &leaves, NULL);
        for (int i = 1; i < 20; i++) {
            says(l, LEDGER_OUT, 0);
            ledger_time(l, (uint64_t)i * S);
        }
        ck_assert_msg(ledger_view(l).member == (how == 0), "%d", how);
    }
}
END_TEST

/* The last member leaves, and founds an epoch without members and without a coordinator.
 * Whatever comes after, it owes no word to a rank that is none. */
START_TEST(a_founder_of_nothing_owes_nobody_a_word)
{
    struct ledger *l = member(0, 1);

    ledger_leave(l);
    says(l, LEDGER_OUT, 0);
    ck_assert(!ledger_view(l).member);
    ck_assert_int_eq(ledger_view(l).coordinator, -1);
    ledger_unready(l);
    ledger_retire(l);
    for (int i = 1; i < 20; i++) {
        says(l, LEDGER_HERE, 0);
        ledger_time(l, (uint64_t)i * S);
    }
}
END_TEST

/* Member 1 arrives upon the version, and so does this coordinator, whose round closes. */
static void close_a_round(struct ledger *l, struct ledger_decision here,
                          struct ledger_version version)
{
    here.version = version;
    here.seq = ledger_ready(l, here.final, false);
    ledger_hear(l, &here, NULL);
    ck_assert(ledger_close(l));
    says(l, LEDGER_GO, 1);
}

/* Rank 2 comes, and knows the epoch. */
static void hear_newcomer(struct ledger *l, uint64_t epoch)
{
    struct ledger_decision here = word(LEDGER_HERE, 2, 0, epoch);

    here.version = (struct ledger_version){0, 0};
    ledger_hear(l, &here, NULL);
}

/* A round gives way to a newcomer, once for each version, and is waited with in the next
 * epoch until the newcomer has the version. */
START_TEST(a_round_gives_way_to_a_newcomer)
{
    struct ledger *l = member(0, 2);
    struct ledger_decision one = word(LEDGER_HERE, 1, 0, 1);

    close_a_round(l, one, (struct ledger_version){1, 0});
    hear_newcomer(l, 1);
    ck_assert(!ledger_view(l).fenced);          /* there is no state to be taken yet */
    ledger_silent(l, 2);
    ledger_whole(l, 0);
    close_a_round(l, one, (struct ledger_version){1, 1});
    ck_assert(!ledger_view(l).fenced);
    hear_newcomer(l, 1);
    ck_assert(ledger_view(l).fenced);
    ck_assert_int_eq(says(l, LEDGER_FENCE, 1), 1);

    one.version = (struct ledger_version){1, 1};
    one.ballot = 3;
    ledger_hear(l, &one, NULL);                 /* of two members the coordinator is enough */
    ck_assert_uint_eq(ledger_view(l).epoch, 2);
    ck_assert_int_eq(says(l, LEDGER_STANDS, 2), 1);

    one = word(LEDGER_HERE, 1, 0, 2);
    one.version = (struct ledger_version){1, 1};
    one.seq = ledger_ready(l, false, false);
    ledger_hear(l, &one, NULL);
    struct ledger_gathering g = ledger_gathering(l, NULL);
    ck_assert(g.may_close && g.taken);
    ck_assert(ledger_close(l));                 /* all the same, as after `dead` */
    says(l, LEDGER_GO, 1);
    hear_newcomer(l, 2);
    ck_assert(!ledger_view(l).fenced);
    ledger_whole(l, 0);
    close_a_round(l, one, (struct ledger_version){2, 2});
    hear_newcomer(l, 2);
    ck_assert(ledger_view(l).fenced);
}
END_TEST

/* It gives way neither where no rank could give a state afterwards, nor where a member has
 * done it, nor to a newcomer that takes nothing. */
START_TEST(a_round_does_not_give_way)
{
    for (int how = 0; how < 5; how++) {
        struct ledger *l = member(0, 2);
        struct ledger_decision one = word(LEDGER_HERE, 1, 0, 1);

        close_a_round(l, one, (struct ledger_version){1, 0});
        ledger_whole(l, 0);
        one.cannot_give = how == 1;
        one.final = how == 2;
        close_a_round(l, one, (struct ledger_version){1, 1});
        if (how == 3) {
            one.version = (struct ledger_version){1, 2};
            ledger_hear(l, &one, NULL);
        }
        ledger_await(l, 2, how != 4);
        hear_newcomer(l, 1);
        ck_assert_msg(ledger_view(l).fenced == (how == 0), "%d", how);
    }
}
END_TEST

int main(void)
{
    TCase *words = new_case("words", 30);

    tcase_add_test(words, an_early_fence_is_answered);
    tcase_add_test(words, a_coordinator_hears_here_after_stands);
    tcase_add_test(words, a_version_that_is_not_given_is_asked_for_anew);
    tcase_add_test(words, a_leaver_keeps_a_member_that_it_does_not_hear);
    tcase_add_test(words, a_founder_of_nothing_owes_nobody_a_word);
    tcase_add_test(words, a_round_gives_way_to_a_newcomer);
    tcase_add_test(words, a_round_does_not_give_way);
    return run_cases(words, NULL);
}
