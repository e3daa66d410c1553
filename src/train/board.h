/* SPDX-License-Identifier: MIT */
/* The board is shared by the trainers of one machine, beside the model: the place in the
 * data, a seat for each trainer with its figures, and the field that stops the run. It
 * lies in memory of descant_share, zero at first. Every field is atomic; figures are
 * relaxed, since they order nothing.
 *
 * The board hands out chunks to the trainers of one machine. Between machines the job
 * deals them (claims.h), and the board has no claims.
 *
 * A trainer that dies leaves its seat as it was: another trainer finds the process gone,
 * takes over the chunks that it held and, if it was the reporter, its reports. A process
 * that is dead but not yet waited for by its parent (a zombie) is gone too. */
#ifndef BOARD_H
#define BOARD_H

#include "data/paths.h"
#include "run/feed.h"
#include "run/metrics.h"
#include "run/config.h"

enum { BOARD_SEATS = 64, BOARD_WORKERS = 64, BOARD_CHUNKS = FEED_BLOCKS };
enum { BOARD_TODO = 1 << 16, BOARD_FILES = MOST_PATHS };

/* A piece of work that one process does once for all. */
struct board_once {
    _Atomic uint64_t who;       /* 0, the process that does it, or BOARD_DONE */
    _Atomic uint32_t bell;      /* futex: woken when `who` has changed */
};

enum board_stop { STOP_NOT, STOP_SIGNAL, STOP_EARLY, STOP_NAN, STOP_FAILED };

/* One worker's sums; it alone writes them. */
struct cell {
    _Alignas(64) _Atomic uint64_t n;
    _Atomic uint64_t positive, correct;
    _Atomic double loss, predicted;
};

/* The plan bsp: written by the trainer that has control, unless said otherwise. Figures
 * are of this start. */
struct board_bsp {
    struct board_once made;     /* the segment */
    _Atomic uint32_t over;      /* all gradients are in the model; release, acquire */
    _Atomic uint32_t added;     /* gradients, where every=K asks for it; workers count */
    _Atomic uint32_t taken;     /* of them, as the last superstep began */
    _Atomic uint64_t steps;     /* of the optimizer, with those of the run before */
    _Atomic uint64_t supersteps, gradients, examples;
    _Atomic uint64_t lag, lag_most;     /* versions behind as they came: sum, most */
    _Atomic uint64_t lag_lately;        /* most since the log's last interval, which takes
                                           it */
    _Atomic uint64_t lost;      /* given, and in no superstep; written at the end */
    _Atomic double rate;        /* share of --lr for the gradient that came last; relaxed,
                                   and there before the first gradient */
    _Atomic double cpu_s;
};

enum seat_state { SEAT_EMPTY, SEAT_TAKEN, SEAT_LEFT };

struct seat {
    /* its trainer: release; readers: acquire */
    _Atomic int state;
    /* as process_self has it; before state */
    _Atomic uint64_t process;
    /* chunk + 1 that it holds; 0: none. Set by the trainer, cleared by it or by its
       heir */
    _Atomic uint64_t claimed[BOARD_CHUNKS];
    struct feed_counts read;
    _Atomic uint64_t steps;
    _Atomic uint64_t stale, not_finite;     /* gradients that were refused */
    _Atomic double merged_steps, stall_ns, age_s, exchange_s, distance, shadow_cpu_s,
        rounds, missed, own_steps, rows_sent, rows_waiting, rows_age_s, rows_stall_ns,
        rows_served;
    struct cell cells[BOARD_WORKERS];
    /* what an earlier process of this rank has done, whose machine's board is gone; its
       trainer writes. In the sums of the job, not in those of the board */
    struct cell earlier;
};

struct board {
    /* the next chunk to claim; where the job deals chunks, the one that was next when the
       run began. Before tables */
    _Atomic uint64_t next;
    /* the lowest chunk + 1 that is past the data; 0: not known. Claims have gone by it,
       once a trainer */
    _Atomic uint64_t end;
    /* where there is a limit: the examples handed out; where the job deals them, the
       highest number that this machine has seen. Those trained before this run are the
       lowest */
    _Atomic uint64_t granted;
    _Atomic uint32_t todo_next, n_todo;     /* chunks that a resumed run does first */
    _Atomic uint64_t todo[BOARD_TODO];      /* some with DATA_REST, as claims of them */
    /* file_mark of the files that the run reads, as it began; before tables */
    _Atomic uint64_t bytes[BOARD_FILES], hashes[BOARD_FILES];
    /* their bytes as an earlier run has read them; as those */
    _Atomic uint64_t known[BOARD_FILES];
    /* examples trained before any of this data; as those */
    _Atomic uint64_t began;
    /* a number of this run, set by the first trainer */
    _Atomic uint64_t run;
    /* the standard input of the trainer that came first; 0: none has looked (piped.c) */
    _Atomic uint64_t input;
    struct board_once tables;               /* filling the tables */
    struct board_once rows;     /* the same where rows have owners, on one machine */
    /* they were filled from a checkpoint; before tables */
    _Atomic uint32_t resumed;
    struct cell before;                     /* sums of the run that was resumed */
    _Atomic double seconds_before;
    _Atomic uint32_t clock_set;             /* a trainer trains, and has set started_ns */
    _Atomic uint64_t started_ns;            /* of clock_now_ns */
    struct board_once summary;
    /* the rank that wrote the log's header, + 1; 0: none yet */
    _Atomic uint32_t log_rank;
    /* sums up to the log's last interval; the reporter writes */
    struct cell logged;
    _Atomic uint64_t logged_ns;             /* and the two below; 0: started_ns */
    /* logged once; the run exits with a failure after its summary */
    _Atomic uint32_t log_failed;
    /* when the last checkpoint began, and at how many examples the last evaluation */
    _Atomic uint64_t checkpoint_ns, eval_at;
    /* this run has written its checkpoint; as those two */
    _Atomic uint32_t kept;
    /* these four are a struct patience; the reporter writes */
    _Atomic double eval_best;
    _Atomic uint64_t best_at;
    _Atomic uint32_t evals, evals_worse;
    _Atomic uint32_t best_kept;             /* FILE.best has it */
    /* chunks of the held-out set: see data_options */
    _Atomic uint64_t eval_said;
    struct {                                /* as `logged`, of the trainers'
                                               synchronisation */
        _Atomic double merges, merged_steps, missed, stall_s, rows_sent, rows_stall_s;
    } sync_logged;
    _Atomic uint32_t tables_auto;           /* enum tables_why; 0: not decided
                                               (owned.c) */
    struct board_bsp bsp;
    struct {
        _Atomic uint64_t supersteps, gradients, lag, stale, not_finite;
    /* up to the log's last interval, as `logged` */
    } bsp_logged;
    /* enum board_stop; set once, by compare-and-swap */
    _Atomic int stop;
    _Atomic int signal;                     /* that stopped the run; set before stop */
    _Atomic uint32_t why_ready;
    /* written by the process that set stop, before why_ready */
    char why[256];
    struct seat seats[BOARD_SEATS];
};

/* Takes the seat of that number. The counts of a dead trainer that had the seat stay in
 * it. */
struct seat *board_sit(struct board *board, int number);
void board_leave(struct seat *seat);

/* The reporter is the lowest seat whose process lives. */
bool board_reports(const struct board *board, const struct seat *mine);

/* True: the caller is to do the work, as the first or because the process before died at
 * it. False once the work is done. */
enum { BOARD_DONE = 1 };
bool board_begin(struct board_once *once);
void board_end(struct board_once *once, bool done);     /* not done: the next may try */
bool board_done(const struct board_once *once);

/* The next chunk to read; false: all chunks left to claim are past the data's end. */
bool board_claim(struct board *board, struct seat *mine, int place, uint64_t *chunk);
bool board_inherit(struct board *board, struct seat *mine, int place, uint64_t *chunk);
void board_release(struct seat *mine, int place);
/* that chunk is past the data's end */
void board_ended(struct board *board, uint64_t chunk);
bool board_orphaned(const struct board *board);     /* the dead hold chunks */

/* A chunk as it is to be read: with DATA_REST where the resumed run has only a rest of it
 * to do. */
uint64_t board_part(const struct board *board, uint64_t chunk);

/* The chunks held now, and the cursor: the next chunk to claim, before which all but the
 * held ones are done. Returns the number of chunks held. */
size_t board_held(const struct board *board, uint64_t *cursor, uint64_t *chunks,
                  size_t most);

/* Stops the run; only the first reason counts. board_halt and board_explain are for a
 * reason that takes long to find. */
void board_stop(struct board *board, enum board_stop why, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* true: board_explain follows */
bool board_halt(struct board *board, enum board_stop why);
void board_explain(struct board *board, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
bool board_signalled(struct board *board, int signal); /* true to the first caller */
enum board_stop board_stopped(const struct board *board);
/* waits a little for the explanation */
const char *board_why(const struct board *board);

void cell_set(struct cell *cell, const struct metrics *m);
void cell_add(struct cell *cell, const struct metrics *m);
struct metrics cell_read(const struct cell *cell);
struct metrics board_sum(const struct board *board); /* of all, also of the run before */

#endif
