/* SPDX-License-Identifier: MIT */
/* Figures over all trainers of the machine, from the seats of its board.
 *
 * Other processes write the seats meanwhile, each field by itself: a figure may be a tick
 * old, and two figures of one seat need not be of the same moment. The seat of a trainer
 * that has left or died stays in the sums with its last figures. A sum falls only where
 * another trainer takes such a seat, since that one's figures of synchronisation begin at
 * 0; intervals.c allows for it. */
#include "train/monitor.h"

#include <math.h>

#define RELAXED memory_order_relaxed

/* Of the seats that are taken, or were: counts, rows, and seconds of stall and of CPU are
 * sums; exchange_s and rows_age_s are the largest; gap, age_s and distance are means over
 * the trainers that have merged at least once; rounds is the mean over all. The shares
 * are of the time that all of them together had in these seconds. The figures of the plan
 * bsp come from the board, where control has put them, and are 0 under other plans. */
struct train_figures figures_gather(const struct trainer *t, double seconds)
{
    const struct board_bsp *bsp = &t->board->bsp;
    struct train_figures f = {0};
    double merging = 0;         /* trainers that have merged */

    for (int s = 0; s < BOARD_SEATS; s++) {
        const struct seat *seat = &t->board->seats[s];
        if (atomic_load_explicit(&seat->state, memory_order_acquire) == SEAT_EMPTY)
            continue;
        f.trainers++;
        f.stall_s += get(&seat->stall_ns) * 1e-9;
        f.rows_stall_s += get(&seat->rows_stall_ns) * 1e-9;
        f.age_s += get(&seat->age_s);
        f.exchange_s = fmax(f.exchange_s, get(&seat->exchange_s));
        f.distance += get(&seat->distance);
        f.shadow_cpu_s += get(&seat->shadow_cpu_s);
        f.rows_sent += get(&seat->rows_sent);
        f.rows_waiting += get(&seat->rows_waiting);
        f.rows_age_s = fmax(f.rows_age_s, get(&seat->rows_age_s));
        double merges = get(&seat->rounds), steps = get(&seat->merged_steps);
        f.rounds += merges;
        f.merges += merges;
        f.merged_steps += steps;
        f.missed += get(&seat->missed);
        f.own_steps += get(&seat->own_steps);
        f.gap += merges > 0 ? steps / merges : 0;
        merging += merges > 0;
        f.lines += atomic_load_explicit(&seat->read.lines, RELAXED);
        f.bad += atomic_load_explicit(&seat->read.bad, RELAXED);
        f.steps += atomic_load_explicit(&seat->steps, RELAXED);
        f.stale += atomic_load_explicit(&seat->stale, RELAXED);
        f.not_finite += atomic_load_explicit(&seat->not_finite, RELAXED);
    }
    f.supersteps = atomic_load_explicit(&bsp->supersteps, RELAXED);
    f.gradients = atomic_load_explicit(&bsp->gradients, RELAXED);
    f.given = atomic_load_explicit(&bsp->examples, RELAXED);
    f.lag = atomic_load_explicit(&bsp->lag, RELAXED);
    f.lag_most = atomic_load_explicit(&bsp->lag_most, RELAXED);
    f.lost = atomic_load_explicit(&bsp->lost, RELAXED);
    f.control_cpu_s = get(&bsp->cpu_s);
    double n = f.trainers ? f.trainers : 1;
    f.stall_share = f.stall_s / (seconds * n * (double)t->options->workers);
    f.rows_stall_share =
        f.rows_stall_s / (seconds * n * (double)t->options->workers);
    f.shadow_share = f.shadow_cpu_s / (seconds * n);
    f.gap /= fmax(merging, 1);
    f.age_s /= fmax(merging, 1);
    f.distance /= fmax(merging, 1);
    f.rounds /= n;
    return f;
}

double figures_seconds(const struct trainer *t)
{
    uint64_t began = atomic_load_explicit(&t->board->started_ns, RELAXED);
    return (double)(clock_now_ns() - began) * 1e-9;
}

/* Takes what all trainers have done since the last look. Where that is nothing, the loss
 * stays as it was shown, and the pace becomes 0. */
void window_look(struct window *w, const struct trainer *t)
{
    struct metrics all = board_sum(t->board), part = all;
    uint64_t now = clock_now_ns();

    metrics_drop(&part, &w->seen);
    if (part.n) {
        w->loss = metrics_logloss(&part);
        w->entropy = metrics_entropy(&part);
    }
    w->per_s = (double)part.n / ((double)(now - w->at_ns) * 1e-9);
    w->seen = all;
    w->at_ns = now;
}
