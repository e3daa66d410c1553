/* SPDX-License-Identifier: MIT */
/* Seeded schedules of deaths, cuts, partitions, pauses, slow hosts, leavings and comings,
 * through the protocol of ranks on 2 to 16 of them, in virtual time:
 *
 *     faults [FROM[-TO]] [-v] [-a] [-q] [-d] [-s] [-f]    seeds; -v: tells what happens.
 *                                         Other worlds: -a: they make agreements, too; -q:
 *                                         means do not wait for all; -d: they are dealt
 *                                         items; -s: the last rank is a hub; -f: over a
 *                                         fixed link, where nobody dies, comes or leaves
 *
 * Each world trains, or sends parcels, through FAULTS_S seconds of faults, and then
 * without. It is to be safe all the time (ranks_world.h); and once the faults have ended
 * it is to go on, wherever the members that are left may. A seed that fails is printed, and fails again when it is
 * run alone. */
#include "ranks_world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define DEAD_S 0.5
#define STEP_S 0.3
#define AGREE_S 0.2
#define LEAVES_S (1.8 * DEAD_S)     /* less than the time after which a rank just goes */
#define FIXED_LEAVES_S 3            /* there a rank that rests looks each 1.25 s */

#define LONG_PARCEL 1.1e6       /* bytes */

enum { MANY = 1000 /* worlds */, FAULTS_S = 8, QUIET_S = 4, GOES_ON_S = 3, ROUNDS = 6, ROUNDS_OF_ROWS = 1,
       AGREEMENTS = 3 };
enum { MOST_SLOW = 21 };        /* a slow host's factor */

static struct ranks_world w;
static struct faults_figures {
    unsigned long long failed, may_go_on, rounds, fetched, missed, aside, agreements, items, twice;
    double simulated_s, cpu_s;
} figures;

static double chance(void)
{
    return rng_uniform(&w.rng);
}

static int below(int n)
{
    return (int)(chance() * n) % n;
}

/* --- what happens --- */

static int one_who(enum trainer_state state)
{
    int n = 0, which = -1;

    for (int k = 0; k < w.options.ranks; k++)
        if (w.trainers[k].state == state && below(++n) == 0)
            which = k;
    return which;
}

static int count(enum trainer_state state)
{
    int n = 0;

    for (int k = 0; k < w.options.ranks; k++)
        n += w.trainers[k].state == state;
    return n;
}

/* A fixed link does not tell who is silent, so there rounds wait for those that are in them. */
static void happen(void)
{
    double now = world_now(&w), lasts = chance() * chance() * 6 * DEAD_S;
    int one = one_who(TRAINER_TRAINS), other = below(w.options.ranks), absent;

    if (one < 0)
        return;
    switch (w.options.fixed ? 1 + below(5) : below(9)) {
    case 0:
        world_fault(&w, below(2) ? SIMULATED_DIE : SIMULATED_VANISH, now, 0, one, 0, 0);
        break;
    case 1:
        world_fault(&w, SIMULATED_PAUSE, now, lasts, one, 0, 0);
        break;
    case 2:
        if (one != other)
            world_fault(&w, SIMULATED_CUT, now, lasts, one, other, 0);
        break;
    case 3:
        for (int k = 0; k < w.options.ranks; k++)
            if (below(2))
                world_fault(&w, SIMULATED_PART, now, lasts, k, 1, 0);
        break;
    case 4:
        world_fault(&w, SIMULATED_SLOW, now, 0, one, 0, 1 + (MOST_SLOW - 1) * chance() * chance());
        break;
    case 5:
        world_reload(&w, one);
        break;
    case 6:
        if (count(TRAINER_TRAINS) > 2)
            world_leave(&w, one);
        break;
    default:
        absent = one_who(below(2) ? TRAINER_AWAY : TRAINER_DEAD);
        if (absent >= 0)
            world_come(&w, absent);
    }
}

/* --- a seed --- */

static bool is_hub(int rank)
{
    return w.options.star && rank == w.options.ranks - 1;
}

/* A hub alone makes no rounds. */
static bool somebody_trains(void)
{
    bool any = false;

    for (int k = 0; k < w.options.ranks; k++)
        any |= w.trainers[k].state == TRAINER_TRAINS && !is_hub(k);
    return any;
}

static void check_rows(uint64_t before)
{
    uint64_t after = world_rows_rounds(&w);

    if (w.rows && !*w.why && world_may_go_on(&w) && after < before + ROUNDS_OF_ROWS)
        snprintf(w.why, sizeof w.why, "no more than %d rounds of rows, from %d on",
                 (int)(after - before), (int)before);
}

static void check_progress(uint64_t before)
{
    uint64_t after = world_rounds(&w);

    figures.may_go_on += world_may_go_on(&w);
    if (!*w.why && world_may_go_on(&w) && somebody_trains() && after < before + ROUNDS)
        snprintf(w.why, sizeof w.why, "no more than %d rounds, from %d on",
                 (int)(after - before), (int)before);
}

/* Each that trains gets results. */
static void check_agreements(const int *before)
{
    for (int k = 0; k < w.options.ranks && w.agree_ns && world_may_go_on(&w); k++) {
        const struct world_trainer *t = &w.trainers[k];
        bool trains = t->state == TRAINER_TRAINS && !is_hub(k) &&
                      ledger_view(ranks_of(t->f)->ledger).member;
        if (trains && !*w.why && t->agree.n < before[k] + AGREEMENTS)
            snprintf(w.why, sizeof w.why, "rank %d has no more than %d agreements, from %d on",
                     k, t->agree.n - before[k], before[k]);
    }
}

static void check_items(uint64_t before)
{
    bool all = false;

    if (world_may_go_on(&w))
        world_deal_check_calm(&w);
    for (int k = 0; k < w.options.ranks; k++)
        all |= w.trainers[k].deal.over;
    if (w.deals && !w.cut && !*w.why && !all && somebody_trains() && world_may_go_on(&w) && w.n_items == before)
        snprintf(w.why, sizeof w.why, "no items are done, from %d on", (int)before);
}

/* All who train finish; one that was not there when the others did, once they have left. */
static void check_end(void)
{
    bool goes_on = world_may_go_on(&w);
    double leaves_s = w.options.fixed ? FIXED_LEAVES_S : LEAVES_S;

    for (int k = 0; k < w.options.ranks && !*w.why; k++)
        world_finish(&w, k);
    world_run(&w, GOES_ON_S);
    for (int k = 0; k < w.options.ranks && !*w.why; k++)
        if (w.trainers[k].finished && !w.trainers[k].open)
            world_leave(&w, k);
    world_run(&w, leaves_s);
    for (int k = 0; k < w.options.ranks && goes_on && !*w.why; k++)
        if (w.trainers[k].state == TRAINER_LEAVES)
            snprintf(w.why, sizeof w.why, "rank %d has not left within %g s", k, leaves_s);
    world_run(&w, GOES_ON_S);
    for (int k = 0; k < w.options.ranks && goes_on && !*w.why; k++)
        if (w.trainers[k].state == TRAINER_TRAINS && !is_hub(k) &&
            (!w.trainers[k].finished || w.trainers[k].open))
            snprintf(w.why, sizeof w.why, "rank %d has not finished", k);
}

/* The faults have ended. A round takes its trainers' step, and its bytes the link. */
static void check_training(double bytes_per_s)
{
    double bytes = 2.0 * sizeof(float) * (double)w.n * w.options.ranks;

    world_run(&w, QUIET_S);
    uint64_t before = world_rounds(&w), rows_before = world_rows_rounds(&w);
    int agreed[WORLD_MOST];
    for (int k = 0; k < WORLD_MOST; k++)
        agreed[k] = w.trainers[k].agree.n;
    uint64_t items_before = w.n_items;
    world_run(&w, GOES_ON_S + ROUNDS * bytes / bytes_per_s);
    check_items(items_before);
    check_progress(before);
    check_rows(rows_before);
    check_agreements(agreed);
    check_end();
}

/* Where they have parcels instead of rounds. A message that a slow host has begun goes on
 * as slowly when the host is fast again, so rank 0's long ones are waited for. */
static void check_parcels(double bytes_per_s)
{
    double each_s = w.long_parcels ? LONG_PARCEL / bytes_per_s * MOST_SLOW : 0;

    world_run(&w, QUIET_S + each_s * w.options.ranks);
    w.long_parcels = false;
    figures.may_go_on += world_post_ends(&w, GOES_ON_S) > 0;
}

/* False: it has failed. */
static bool run_seed(uint64_t seed, bool verbose, bool agrees, bool quorums, bool deals,
                     bool stars, bool fixed)
{
    struct simulated_options options = {.seed = seed};
    struct rng rng;

    rng_init(&rng, seed);
    options.ranks = 2 + (int)(rng_uniform(&rng) * rng_uniform(&rng) * 15);
    options.latency_ns = (uint64_t)(1e6 * rng_uniform(&rng));
    options.jitter_ns = (uint64_t)(1e7 * rng_uniform(&rng) * rng_uniform(&rng));
    options.bytes_per_s = 1e6 + 1e8 * rng_uniform(&rng);
    int founders = 1 + (int)(rng_uniform(&rng) * options.ranks);
    options.star = stars;
    founders = fixed ? options.ranks : stars && founders < 2 ? 2 : founders;
    options.fixed = fixed;
    options.per_host = fixed && rng_uniform(&rng) < 0.3 ? 2 : 0;
    world_open(&w, &options, founders);
    w.n = rng_uniform(&rng) < 0.05 ? 9000 : WORLD_FLOATS;
    w.wire = rng_uniform(&rng) < 0.2 ? WIRE_Q8 : WIRE_F32;
    w.elastic = w.wire == WIRE_F32 && rng_uniform(&rng) < 0.25;
    w.hasty = rng_uniform(&rng) < 0.5;
    w.rows = rng_uniform(&rng) < 0.4 && !fixed;
    w.post = rng_uniform(&rng) < 0.1 && !stars && !fixed;
    w.long_parcels = rng_uniform(&rng) < 0.1;
    w.agree_ns = agrees && !w.post ? (uint64_t)(AGREE_S * 1e9) : 0;
    w.deals = deals && !w.post;
    w.kind = seed % 2 ? DEAL_ITEMS : DEAL_UNITS;
    w.fed = w.deals && seed % 4 == 1;
    w.quorum = quorums ? (1 + below(20)) / 20.0 : 0;
    w.hasty &= !quorums;
    w.pulls = quorums && w.wire == WIRE_F32 && !w.elastic && seed % 4 == 0;
    w.verbose = verbose;
    w.dead_s = DEAD_S;
    w.step_ns = (uint64_t)(STEP_S * 1e9);
    for (int k = 0; k < founders - stars; k++)
        world_come(&w, k);
    if (stars)
        world_come(&w, options.ranks - 1);
    world_run(&w, DEAD_S);
    while (world_now(&w) < FAULTS_S && !*w.why) {
        happen();
        world_run(&w, chance() * chance() * 3 * DEAD_S);
        world_deal_check(&w);
    }
    for (int k = 0; k < options.ranks; k++)
        world_fault(&w, SIMULATED_SLOW, world_now(&w), 0, k, 0, 1);
    if (w.post)
        check_parcels(options.bytes_per_s);
    else
        check_training(options.bytes_per_s);
    figures.simulated_s += world_now(&w);
    figures.rounds += world_rounds(&w);
    figures.fetched += w.fetched;
    figures.missed += w.missed;
    figures.aside += w.aside;
    figures.agreements += w.agreements;
    figures.items += w.n_items;
    figures.twice += w.items_twice;
    if (*w.why)
        printf("seed %llu, %d ranks: %s\n", (unsigned long long)seed, options.ranks, w.why);
    bool good = !*w.why;
    if (!good && verbose)
        world_tell(&w);
    world_close(&w);
    return good;
}

/* As many processes as there are cores share the seeds. */
int main(int argc, char **argv)
{
    unsigned long long from = 1, to = 1000, failed = 0;
    bool verbose = false, agrees = false, quorums = false, deals = false, stars = false;
    bool fixed = false;
    int cores = (int)sysconf(_SC_NPROCESSORS_ONLN), status;
    char *end;

    for (int i = 2; i < argc; i++) {
        verbose |= strcmp(argv[i], "-v") == 0;
        agrees |= strcmp(argv[i], "-a") == 0;
        quorums |= strcmp(argv[i], "-q") == 0;
        deals |= strcmp(argv[i], "-d") == 0;
        stars |= strcmp(argv[i], "-s") == 0;
        fixed |= strcmp(argv[i], "-f") == 0;
    }
    if (argc > 1) {
        from = to = strtoull(argv[1], &end, 10);
        to = *end == '-' ? strtoull(end + 1, NULL, 10) : to;
    }
    struct faults_figures *all =
        mmap(NULL, (size_t)cores * sizeof *all, PROT_READ | PROT_WRITE,
             MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED)
        return 1;
    for (int k = 0; k < cores; k++) {
        pid_t pid = fork();
        for (unsigned long long seed = from + (unsigned)k; pid == 0 && seed <= to;
             seed += (unsigned)cores)
            figures.failed += !run_seed(seed, verbose, agrees, quorums, deals, stars, fixed);
        if (pid == 0) {
            figures.cpu_s = (double)clock() / CLOCKS_PER_SEC;
            all[k] = figures;
            return 0;
        }
    }
    while (wait(&status) > 0)
        failed += status != 0;
    for (int k = 0; k < cores; k++) {
        failed += all[k].failed;
        figures.may_go_on += all[k].may_go_on;
        figures.rounds += all[k].rounds;
        figures.fetched += all[k].fetched;
        figures.missed += all[k].missed;
        figures.aside += all[k].aside;
        figures.agreements += all[k].agreements;
        figures.items += all[k].items;
        figures.twice += all[k].twice;
        figures.simulated_s += all[k].simulated_s;
        figures.cpu_s += all[k].cpu_s;
    }
    double n = (double)(to - from + 1);
    printf("%.0f worlds of faults: %llu failed; %llu could go on at the end; %.1f rounds and "
           "%.2f ms each, %llu results fetched, %llu missed, %llu aside, %llu agreed on, "
           "%llu items done and %llu twice; %.0f simulated "
           "seconds a second of CPU\n", n,
           failed, figures.may_go_on, (double)figures.rounds / n, 1e3 * figures.cpu_s / n,
           figures.fetched, figures.missed, figures.aside, figures.agreements, figures.items, figures.twice, figures.simulated_s / figures.cpu_s);
    if (quorums && n >= MANY && !figures.aside) {
        puts("no member was ever aside, though links are slow: HERE does not tell who holds "
             "rounds up");
        failed++;
    }
    return failed != 0;
}
