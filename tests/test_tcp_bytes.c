/* SPDX-License-Identifier: MIT */
/* A rank over TCP, and scripts of all that others may do to it: those that reach
 * something, and those of chance. tests/fuzz_tcp.c has more time for it. */
#include "harness/suite.h"
#include "base/base.h"
#include "tcp_bytes.h"

#ifdef __SANITIZE_ADDRESS__
enum { SEEDS = 1000 };
#else
enum { SEEDS = 4000 };
#endif
enum { LONGEST = 300 };

START_TEST(scripts_reach_something)
{
    const struct tcp_bytes_seed *seed = &tcp_bytes_seeds[_i];
    const struct tcp_bytes_sum *sum = &tcp_bytes_sum;
    char why[512];

    ck_assert_msg(tcp_bytes_run(seed->bytes, seed->n, why), "%s: %s", seed->name, why);
    ck_assert_int_eq(sum->met, 1);
    ck_assert_int_eq(sum->known > 0, strcmp(seed->name, "forgets") != 0);
    if (strcmp(seed->name, "messages") == 0)
        ck_assert(sum->words == 3 && sum->bulk == 2);   /* bulk: one was too long */
    if (strcmp(seed->name, "sends") == 0)
        ck_assert_int_eq(sum->sent, 2);
    if (strcmp(seed->name, "breaks") == 0)
        ck_assert(sum->bulk == 1 && sum->sent == 1 && sum->goes_on == 2 && sum->gone == 1);
    if (strcmp(seed->name, "gives_up") == 0)
        ck_assert_int_eq(sum->failed, 2);
    if (strcmp(seed->name, "dials") == 0)
        ck_assert(sum->known == 2 && sum->gone == 1);
    if (strcmp(seed->name, "strangers") == 0)
        ck_assert(sum->refused == 1 && sum->goes_on == 1);
    if (strcmp(seed->name, "streams") == 0)
        ck_assert_int_eq(sum->gone, 0);
    if (strcmp(seed->name, "words") == 0)
        ck_assert_int_eq(sum->gone, 1);
    if (strcmp(seed->name, "lies") == 0)
        ck_assert(sum->gone == 1 && sum->sent == 0);
}
END_TEST

/* Half of them begin as a script that reaches something. */
static size_t make_script(struct rng *rng, uint8_t *bytes)
{
    const struct tcp_bytes_seed *seed =
        &tcp_bytes_seeds[rng_next(rng) % (uint64_t)n_tcp_bytes_seeds];
    size_t n = rng_next(rng) % LONGEST, kept = rng_next(rng) % (2 * seed->n);

    kept = kept > seed->n ? 0 : kept;
    for (size_t i = 0; i < n; i++)
        bytes[i] = i < kept && rng_next(rng) % 32 ? seed->bytes[i] : (uint8_t)rng_next(rng);
    return n;
}

START_TEST(scripts_of_chance)
{
    uint8_t bytes[LONGEST];
    char why[512];
    uint64_t begun = clock_now_ns();

    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        struct rng rng;
        rng_init(&rng, seed);
        size_t n = make_script(&rng, bytes);
        ck_assert_msg(tcp_bytes_run(bytes, n, why), "seed %d: %s", (int)seed, why);
    }
    const struct tcp_bytes_sum *s = &tcp_bytes_sum;
    printf("%d scripts in %.2f s: %ld peers, %ld gone, %ld connections, %ld refused; %ld "
           "words and %ld bulk came, %ld messages left, %ld failed\n", SEEDS,
           (double)(clock_now_ns() - begun) / 1e9, s->known, s->gone, s->dropped,
           s->refused, s->words, s->bulk, s->sent, s->failed);
    ck_assert(s->known > SEEDS / 10 && s->gone > SEEDS / 40 && s->refused > SEEDS / 100);
    ck_assert(s->words > SEEDS / 40 && s->bulk > SEEDS / 200 && s->sent > SEEDS / 40);
}
END_TEST

int main(void)
{
    TCase *all = new_case("bytes", 120);
    tcase_add_loop_test(all, scripts_reach_something, 0, n_tcp_bytes_seeds);
    tcase_add_test(all, scripts_of_chance);
    return run_cases(all, NULL);
}
