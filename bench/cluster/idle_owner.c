/* SPDX-License-Identifier: MIT */
/* The cost of an idle owner, over MPI: rank 0 makes elastic exchanges of 4 KiB, half of
 * which are owned by rank 1, which takes no step and only sleeps. Rank 0 tells how long
 * its exchanges took, rank 1 the CPU of its shadow. One JSON object each. */
#include <descant.h>

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { FLOATS = 1024, EXCHANGES = 100, PAUSE_MS = 40, IDLE_S = 8 };

static void sleep_ms(long ms)
{
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
}

static struct descant_stats stats(struct descant *job)
{
    struct descant_stats s;
    if (descant_stats(job, &s) != DESCANT_OK)
        exit(1);
    return s;
}

static int ascending(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

static void exchange(struct descant *job)
{
    static double ms[EXCHANGES];
    for (int k = 0; k < EXCHANGES; k++) {
        uint64_t before = stats(job).rounds;
        for (descant_step(job); stats(job).rounds == before; )
            sleep_ms(1);
        ms[k] = 1e3 * stats(job).age_s;
        sleep_ms(PAUSE_MS);
    }
    qsort(ms, EXCHANGES, sizeof *ms, ascending);
    printf("{\"bench\":\"idle_owner\",\"exchanges\":%d,\"median_ms\":%.2f,\"p90_ms\":%."
           "2f}\n",
           EXCHANGES, ms[EXCHANGES / 2], ms[EXCHANGES * 9 / 10]);
}

int main(void)
{
    struct descant_options o = descant_options_default();
    struct descant_members who;
    struct descant *job;
    o.job = "mpi";
    o.plan = "shadow-easgd,gap=1";
    if (descant_open(&job, &o) || !descant_alloc(job, "w", FLOATS) ||
        descant_start(job) || descant_members(job, &who))
        return 1;
    double before = stats(job).shadow_cpu_s;
    sleep_ms(1000 * IDLE_S / 2);        /* nobody asks; then rank 0 does */
    double idle = stats(job).shadow_cpu_s - before;
    if (who.rank == 0)
        exchange(job);
    else
        printf("{\"bench\":\"idle_shadow\",\"core_share\":%.5f}\n", idle / (IDLE_S / 2));
    fflush(stdout);
    return descant_finish(job, DESCANT_FINAL_MEAN) || (descant_close(job), 0);
}
