/* SPDX-License-Identifier: MIT */
/* The board's small protocols. Claims: `cursor` gives each number once; the claim is published in
 * the seat before the cursor's next reader can see the chunk as gone, except for the instants
 * between the two, in which a death loses one chunk, and a checkpoint leaves one out: less than an
 * interval. Heirs take a claim by compare-and-swap, so that of two heirs one gets it. */
#include "train/board.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#define RELAXED memory_order_relaxed

static bool lives(const struct seat *seat)
{
    if (atomic_load_explicit(&seat->state, memory_order_acquire) != SEAT_TAKEN)
        return false;
    return kill(atomic_load_explicit(&seat->pid, RELAXED), 0) == 0 || errno != ESRCH;
}

struct seat *board_sit(struct board *board, int number)
{
    struct seat *seat = &board->seats[number];
    atomic_store_explicit(&seat->pid, (int)getpid(), RELAXED);
    atomic_store_explicit(&seat->state, SEAT_TAKEN, memory_order_release);
    return seat;
}

void board_leave(struct seat *seat)
{
    atomic_store_explicit(&seat->state, SEAT_LEFT, memory_order_release);
}

bool board_reports(const struct board *board, const struct seat *mine)
{
    for (const struct seat *seat = board->seats; seat != mine; seat++)
        if (lives(seat))
            return false;
    return true;
}

int board_running(const struct board *board)
{
    int n = 0;
    for (int s = 0; s < BOARD_SEATS; s++)
        n += lives(&board->seats[s]);
    return n;
}

uint64_t board_claim(struct board *board, struct seat *mine, int place)
{
    uint32_t n = atomic_load_explicit(&board->n_todo, memory_order_acquire), next = n;
    uint64_t chunk;

    if (atomic_load_explicit(&board->todo_next, RELAXED) < n)
        next = atomic_fetch_add_explicit(&board->todo_next, 1, RELAXED);
    if (next < n)
        chunk = atomic_load_explicit(&board->todo[next], RELAXED);
    else
        chunk = atomic_fetch_add_explicit(&board->cursor, 1, RELAXED);
    atomic_store_explicit(&mine->claimed[place], chunk + 1, memory_order_release);
    return chunk;
}

bool board_inherit(struct board *board, struct seat *mine, int place, uint64_t *chunk)
{
    for (int s = 0; s < BOARD_SEATS; s++) {
        struct seat *seat = &board->seats[s];
        if (atomic_load_explicit(&seat->state, memory_order_acquire) != SEAT_TAKEN || lives(seat))
            continue;
        for (int k = 0; k < BOARD_CHUNKS; k++) {
            uint64_t held = atomic_load_explicit(&seat->claimed[k], memory_order_acquire);
            if (!held || !atomic_compare_exchange_strong_explicit(
                             &seat->claimed[k], &held, 0, memory_order_acq_rel, RELAXED))
                continue;
            atomic_store_explicit(&mine->claimed[place], held, memory_order_release);
            *chunk = held - 1;
            return true;
        }
    }
    return false;
}

void board_release(struct seat *mine, int place)
{
    atomic_store_explicit(&mine->claimed[place], 0, memory_order_release);
}

size_t board_held(const struct board *board, uint64_t *cursor, uint64_t *chunks, size_t most)
{
    size_t n = 0;
    uint32_t todo = atomic_load_explicit(&board->todo_next, RELAXED);
    uint32_t n_todo = atomic_load_explicit(&board->n_todo, memory_order_acquire);

    *cursor = atomic_load_explicit(&board->cursor, memory_order_acquire);
    for (int s = 0; s < BOARD_SEATS; s++)
        for (int k = 0; k < BOARD_CHUNKS; k++) {
            uint64_t held = atomic_load_explicit(&board->seats[s].claimed[k],
                                                 memory_order_acquire);
            if (held && n < most)
                chunks[n++] = held - 1;
        }
    for (; todo < n_todo && n < most; todo++)
        chunks[n++] = atomic_load_explicit(&board->todo[todo], RELAXED);
    return n;
}

void board_stop(struct board *board, enum board_stop why, const char *format, ...)
{
    int not_yet = STOP_NOT;
    va_list list;

    if (!atomic_compare_exchange_strong(&board->stop, &not_yet, (int)why))
        return;
    va_start(list, format);
    vsnprintf(board->why, sizeof board->why, format, list);
    va_end(list);
    atomic_store_explicit(&board->why_ready, 1, memory_order_release);
}

enum board_stop board_stopped(const struct board *board)
{
    return (enum board_stop)atomic_load_explicit(&board->stop, RELAXED);
}

const char *board_why(const struct board *board)
{
    return atomic_load_explicit(&board->why_ready, memory_order_acquire) ? board->why : "";
}

static void add_whole(_Atomic uint64_t *to, uint64_t n)
{
    atomic_store_explicit(to, atomic_load_explicit(to, RELAXED) + n, RELAXED);
}

static void add_real(_Atomic double *to, double x)
{
    atomic_store_explicit(to, atomic_load_explicit(to, RELAXED) + x, RELAXED);
}

void cell_add(struct cell *cell, const struct metrics *m)
{
    add_whole(&cell->n, m->n);
    add_whole(&cell->positive, m->positive);
    add_whole(&cell->correct, m->correct);
    add_real(&cell->loss, m->loss);
    add_real(&cell->predicted, m->predicted);
}

struct metrics cell_read(const struct cell *cell)
{
    return (struct metrics){
        .n = atomic_load_explicit(&cell->n, RELAXED),
        .positive = atomic_load_explicit(&cell->positive, RELAXED),
        .correct = atomic_load_explicit(&cell->correct, RELAXED),
        .loss = atomic_load_explicit(&cell->loss, RELAXED),
        .predicted = atomic_load_explicit(&cell->predicted, RELAXED),
    };
}

struct metrics board_sum(const struct board *board)
{
    struct metrics sum = cell_read(&board->before), one;

    for (int s = 0; s < BOARD_SEATS; s++) {
        if (atomic_load_explicit(&board->seats[s].state, memory_order_acquire) == SEAT_EMPTY)
            continue;
        for (int k = 0; k < BOARD_WORKERS; k++) {
            one = cell_read(&board->seats[s].cells[k]);
            metrics_merge(&sum, &one);
        }
    }
    return sum;
}
