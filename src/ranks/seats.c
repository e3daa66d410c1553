/* SPDX-License-Identifier: MIT */
/* The members of a round in a GO: runs of ranks that follow each other and are alike.
 * Most rounds are of all members, with equal shares and as many arrivals each, so a GO
 * among 1,024 ranks is one word. Where all members differ, a GO has a run for each rank.
 *
 * The ranks of a run are on one host, at places that follow each other; or each is alone
 * on its host, and the hosts follow each other as the ranks do (`apart`). */
#include "ranks/ranks.h"

struct ranks_seat ranks_run_seat(const struct ranks_run *run, uint32_t i)
{
    struct ranks_seat seat = run->first;

    seat.rank += (int32_t)i;
    *(run->apart ? &seat.host : &seat.local_rank) += (int32_t)i;
    return seat;
}

static bool is_alike(const struct ranks_run *run, const struct ranks_seat *seat)
{
    const struct ranks_seat *first = &run->first;
    int32_t n = (int32_t)run->n;
    bool local = seat->host == first->host && seat->local_rank == first->local_rank + n;
    bool apart = seat->host == first->host + n && !seat->local_rank && !first->local_rank;

    return seat->rank == first->rank + n && seat->seq == first->seq &&
           seat->arrival == first->arrival && seat->threads == first->threads &&
           seat->bad == first->bad && seat->share == first->share &&
           (n == 1 ? local || apart : run->apart ? apart : local);
}

uint32_t ranks_runs_add(struct ranks_run *runs, uint32_t n, const struct ranks_seat *seat)
{
    struct ranks_run *last = runs + n - (n > 0);

    if (n && is_alike(last, seat)) {
        last->n++;
        last->apart = seat->host != last->first.host;
        return n;
    }
    runs[n] = (struct ranks_run){.first = *seat, .n = 1};
    return n + 1;
}

int ranks_runs_seats(const struct ranks_run *runs, uint32_t n, struct ranks_seat *seats)
{
    int k = 0;

    for (uint32_t r = 0; r < n; r++)
        for (uint32_t i = 0; i < runs[r].n; i++)
            seats[k++] = ranks_run_seat(&runs[r], i);
    return k;
}

const struct ranks_run *ranks_run_of(const struct ranks_run *runs, uint32_t n, int rank)
{
    for (uint32_t r = 0; r < n; r++)
        if (rank >= runs[r].first.rank && rank - runs[r].first.rank < (int)runs[r].n)
            return &runs[r];
    return NULL;
}
