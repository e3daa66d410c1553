/* SPDX-License-Identifier: MIT */
/* The board's small protocols. Claims: `next` gives each number once; the claim is
 * published in the seat before its next reader can see the chunk as gone, except for the
 * instants between the two, in which a death loses one chunk, and a checkpoint leaves one
 * out: less than an interval. Heirs take a claim by compare-and-swap, so that of two
 * heirs one gets it. */
#include "train/board.h"
#include "machine/process.h"

#include <string.h>
#include <unistd.h>

#define RELAXED memory_order_relaxed
#define EXPLAIN_NS UINT64_C(20000000000)
#define TICK_NS 50000000u

static bool lives(const struct seat *seat)
{
    return atomic_load_explicit(&seat->state, memory_order_acquire) == SEAT_TAKEN &&
           process_alive(atomic_load_explicit(&seat->process, RELAXED));
}

/* Where /proc cannot be read, the process's number alone stands for it. */
static uint64_t self(void)
{
    uint64_t process = process_self(NULL);
    return process ? process : (uint64_t)getpid() << 40;
}

bool board_begin(struct board_once *once)
{
    uint64_t me = self();

    for (;;) {
        uint32_t bell = atomic_load(&once->bell);
        uint64_t seen = 0;
        if (atomic_compare_exchange_strong(&once->who, &seen, me))
            return true;
        if (seen == BOARD_DONE)
            return false;
        if (!process_alive(seen) && atomic_compare_exchange_strong(&once->who, &seen, me))
            return true;
        futex_wait(&once->bell, bell, clock_now_ns() + TICK_NS);
    }
}

void board_end(struct board_once *once, bool done)
{
    atomic_store(&once->who, done ? (uint64_t)BOARD_DONE : 0);
    atomic_fetch_add(&once->bell, 1);
    futex_wake_all(&once->bell);
}

bool board_done(const struct board_once *once)
{
    return atomic_load(&once->who) == BOARD_DONE;
}

struct seat *board_sit(struct board *board, int number)
{
    struct seat *seat = &board->seats[number];
    atomic_store_explicit(&seat->process, self(), RELAXED);
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

/* Chunks that a resumed run does first may be past the end themselves, so they are
 * claimed also after an end was met. */
bool board_claim(struct board *board, struct seat *mine, int place, uint64_t *chunk)
{
    uint32_t n = atomic_load_explicit(&board->n_todo, memory_order_acquire), next = n;

    if (atomic_load_explicit(&board->todo_next, RELAXED) < n)
        next = atomic_fetch_add_explicit(&board->todo_next, 1, RELAXED);
    if (next < n)
        *chunk = atomic_load_explicit(&board->todo[next], RELAXED);
    else if (atomic_load_explicit(&board->end, RELAXED))
        return false;
    else
        *chunk = atomic_fetch_add_explicit(&board->next, 1, RELAXED);
    atomic_store_explicit(&mine->claimed[place], *chunk + 1, memory_order_release);
    return true;
}

void board_ended(struct board *board, uint64_t chunk)
{
    uint64_t end = atomic_load_explicit(&board->end, RELAXED);
    while ((!end || chunk + 1 < end) &&
           !atomic_compare_exchange_weak_explicit(&board->end, &end, chunk + 1,
                                                  memory_order_release, RELAXED))
        continue;
}

static bool is_dead(const struct seat *seat)
{
    return atomic_load_explicit(&seat->state, memory_order_acquire) == SEAT_TAKEN &&
           !lives(seat);
}

bool board_orphaned(const struct board *board)
{
    for (int s = 0; s < BOARD_SEATS; s++) {
        const struct seat *seat = &board->seats[s];
        bool holds = false;
        for (int k = 0; k < BOARD_CHUNKS; k++)
            holds |= atomic_load_explicit(&seat->claimed[k], memory_order_acquire) != 0;
        if (holds && is_dead(seat))
            return true;
    }
    return false;
}

bool board_inherit(struct board *board, struct seat *mine, int place, uint64_t *chunk)
{
    for (int s = 0; s < BOARD_SEATS; s++) {
        struct seat *seat = &board->seats[s];
        if (!is_dead(seat))
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

uint64_t board_part(const struct board *board, uint64_t chunk)
{
    uint32_t n = atomic_load_explicit(&board->n_todo, memory_order_acquire);

    for (uint32_t k = 0; k < n; k++)
        if (atomic_load_explicit(&board->todo[k], RELAXED) == (chunk | DATA_REST))
            return chunk | DATA_REST;
    return chunk;
}

static bool is_among(const uint64_t *chunks, size_t n, uint64_t chunk)
{
    for (size_t k = 0; k < n; k++)
        if (chunks[k] == chunk)
            return true;
    return false;
}

/* A chunk to do first that is claimed meanwhile counts as held. */
size_t board_held(const struct board *board, uint64_t *cursor, uint64_t *chunks,
                  size_t most)
{
    size_t n = 0;
    uint32_t todo = atomic_load_explicit(&board->todo_next, RELAXED);
    uint32_t n_todo = atomic_load_explicit(&board->n_todo, memory_order_acquire);
    uint64_t end = atomic_load_explicit(&board->end, memory_order_acquire), held;

    *cursor = atomic_load_explicit(&board->next, memory_order_acquire);
    for (int s = 0; s < BOARD_SEATS; s++)
        for (int k = 0; k < BOARD_CHUNKS; k++) {
            held =
                atomic_load_explicit(&board->seats[s].claimed[k], memory_order_acquire);
            held &= ~DATA_REST;
            if (held && n < most && (!end || held < end))
                chunks[n++] = held - 1;
        }
    for (size_t n_held = n; todo < n_todo && n < most; todo++) {
        held = atomic_load_explicit(&board->todo[todo], RELAXED) & ~DATA_REST;
        if ((!end || held + 1 < end) && !is_among(chunks, n_held, held))
            chunks[n++] = held;
    }
    return n;
}

bool board_halt(struct board *board, enum board_stop why)
{
    int not_yet = STOP_NOT;
    return atomic_compare_exchange_strong(&board->stop, &not_yet, (int)why);
}

static void explain(struct board *board, const char *format, va_list list)
{
    vsnprintf(board->why, sizeof board->why, format, list);
    atomic_store_explicit(&board->why_ready, 1, memory_order_release);
    futex_wake_all(&board->why_ready);
}

void board_explain(struct board *board, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    explain(board, format, list);
    va_end(list);
}

void board_stop(struct board *board, enum board_stop why, const char *format, ...)
{
    va_list list;

    if (!board_halt(board, why))
        return;
    va_start(list, format);
    explain(board, format, list);
    va_end(list);
}

bool board_signalled(struct board *board, int signal)
{
    int none = 0;
    atomic_compare_exchange_strong(&board->signal, &none, signal);
    if (!board_halt(board, STOP_SIGNAL))
        return false;
    board_explain(board, "stopped by signal %d", signal);
    return true;
}

enum board_stop board_stopped(const struct board *board)
{
    return (enum board_stop)atomic_load_explicit(&board->stop, RELAXED);
}

const char *board_why(const struct board *board)
{
    struct board *b = (struct board *)(uintptr_t)board;
    uint64_t until = clock_now_ns() + EXPLAIN_NS;

    while (board_stopped(b) &&
           !atomic_load_explicit(&b->why_ready, memory_order_acquire) &&
           clock_now_ns() < until)
        futex_wait(&b->why_ready, 0, until);
    return atomic_load_explicit(&b->why_ready, memory_order_acquire) ? b->why : "";
}

static void add_whole(_Atomic uint64_t *to, uint64_t n)
{
    atomic_store_explicit(to, atomic_load_explicit(to, RELAXED) + n, RELAXED);
}

static void add_real(_Atomic double *to, double x)
{
    atomic_store_explicit(to, atomic_load_explicit(to, RELAXED) + x, RELAXED);
}

void cell_set(struct cell *cell, const struct metrics *m)
{
    atomic_store_explicit(&cell->n, m->n, RELAXED);
    atomic_store_explicit(&cell->positive, m->positive, RELAXED);
    atomic_store_explicit(&cell->correct, m->correct, RELAXED);
    atomic_store_explicit(&cell->loss, m->loss, RELAXED);
    atomic_store_explicit(&cell->predicted, m->predicted, RELAXED);
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
        if (atomic_load_explicit(&board->seats[s].state, memory_order_acquire) ==
            SEAT_EMPTY)
            continue;
        for (int k = 0; k < BOARD_WORKERS; k++) {
            one = cell_read(&board->seats[s].cells[k]);
            metrics_merge(&sum, &one);
        }
    }
    return sum;
}
