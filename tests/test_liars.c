/* SPDX-License-Identifier: MIT */
/* Ranks that come and go, of which one sends what it must not. The others go on without
 * it, or at least none of them crashes, turns for ever, grows or is blamed. */
#include "harness/suite.h"
#include "liars.h"

#include <check.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* --- one lie --- */

enum who { MEMBER, STRANGER, PUT_OUT, WHOS };

enum { RANKS = 4, LIAR = 2, PROTOCOL = -1 };

static struct ranks_world w;

/* The first letter with this tag is longer or shorter; or each word is of another
 * protocol. */
struct told_lie {
    int tag, by;
    bool lies;                  /* from now on */
    int lied;
};

static void alter(void *context, struct letter *letter, struct letter *more)
{
    struct told_lie *lie = context;
    uint32_t protocol = RANKS_PROTOCOL + 1;

    (void)more;
    if (!lie->lies)
        return;
    if (lie->tag == PROTOCOL && letter->tag == TAG_WORD) {
        memcpy(letter->p + offsetof(struct ranks_word, protocol), &protocol,
               sizeof protocol);
        lie->lied++;
    } else if (letter->tag == lie->tag && !lie->lied) {
        memset(letter->p + letter->bytes, 0, 64);
        letter->bytes = (size_t)((int)letter->bytes + (lie->by < 0 && letter->bytes < 64
                                                           ? -1 : lie->by));
        lie->lied++;
    }
}

static uint64_t rounds_of_others(void)
{
    uint64_t n = 0;

    for (int k = 0; k < RANKS; k++)
        if (k != LIAR)
            n += w.elastic ? w.trainers[k].exchanges : w.trainers[k].rounds;
    return n;
}

/* The three others go on, whatever the fourth is when it lies. If it lies to one that does
 * not lead, the others hear both: the higher rank goes, comes back, and goes again. */
static void lie_once(struct told_lie *lie, enum who who, bool elastic)
{
    const struct simulated_options options = {.ranks = RANKS, .seed = 7,
                                              .latency_ns = 100000, .jitter_ns = 50000,
                                              .bytes_per_s = 1e8};

    world_open(&w, &options, who == STRANGER ? RANKS - 1 : RANKS);
    w.elastic = elastic;
    w.dead_s = 0.4;
    w.verbose = getenv("VERBOSE") != NULL;
    liars_open(&w, LIAR, alter, lie);
    lie->lies = who == STRANGER;
    for (int k = 0; k < RANKS; k++)
        if (who != STRANGER || k != LIAR)
            world_come(&w, k);
    world_run(&w, 0.2);
    if (who == STRANGER)
        world_come(&w, LIAR);
    if (who == PUT_OUT)
        world_fault(&w, SIMULATED_PART, world_now(&w), 1, LIAR, 1, 0);
    world_run(&w, who == PUT_OUT ? 0.9 : 0.1);
    lie->lies = true;
    if (lie->tag == TAG_STATE)
        world_reload(&w, LIAR);
    world_run(&w, 2);
    uint64_t before = rounds_of_others(), refused = w.refused;
    world_run(&w, 1);
    ck_assert_msg(!*w.why, "%s", w.why);
    ck_assert_msg(rounds_of_others() > before + 3, "tag %d, %d bytes, of %d: %d rounds",
                  lie->tag, lie->by, (int)who, (int)(rounds_of_others() - before));
    ck_assert_uint_le(refused, 2 * RANKS);
    for (int k = 0; k < RANKS; k++)
        ck_assert_int_eq(w.trainers[k].state == TRAINER_TRAINS || k == LIAR, 1);
    liars_close(&w);
}

START_TEST(another_protocol_is_refused)
{
    for (enum who who = MEMBER; who < WHOS; who++) {
        struct told_lie lie = {.tag = PROTOCOL};
        lie_once(&lie, who, false);
        ck_assert_msg(lie.lied > 0, "%d", (int)who);
        ck_assert_uint_gt(w.refused, 0);
        ck_assert_ptr_nonnull(strstr(w.said, "it has descant protocol"));
    }
}
END_TEST

START_TEST(a_wrong_length_is_refused)
{
    int lied = 0, n = 0;

    for (enum who who = MEMBER; who < WHOS; who++)
        for (int tag = TAG_WORD; tag < LINK_TAGS; tag++)
            for (int by = -64; by <= 64; by += 128)
                for (int elastic = 0; elastic < 2; elastic++) {
                    struct told_lie lie = {.tag = tag, .by = by};
                    if (tag > TAG_ANSWER + 1 || n++ % few(1, 7) != 0)
                        continue;
                    lie_once(&lie, who, elastic);
                    lied += lie.lied;
                }
    ck_assert_int_ge(lied, few(30, 4));
}
END_TEST

/* --- by chance --- */

enum { SEEDS = 400 };

START_TEST(lies_by_chance_crash_nobody)
{
    const char *from = getenv("SEED");
    const char *most = getenv("SEEDS");
    uint64_t seed = from ? strtoull(from, NULL, 10) : 1;
    uint64_t some = (uint64_t)(most ? atoi(most) : pick(SEEDS, 100, 7));
    uint64_t to = from ? seed : some;
    char why[512];

    for (; seed <= to; seed++) {
        uint8_t bytes[256];
        struct rng rng;
        rng_init(&rng, seed);
        for (size_t i = 0; i < sizeof bytes; i++)
            bytes[i] = (uint8_t)(rng_uniform(&rng) * 256);
        ck_assert_msg(liars_run(bytes, sizeof bytes, from != NULL, why), "seed %llu: %s",
                      (unsigned long long)seed, why);
    }
}
END_TEST

int main(void)
{
    TCase *all = new_case("liars", 120);
    tcase_add_test(all, another_protocol_is_refused);
    tcase_add_test(all, a_wrong_length_is_refused);
    tcase_add_test(all, lies_by_chance_crash_nobody);
    return run_cases(all, NULL);
}
