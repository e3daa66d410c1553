/* SPDX-License-Identifier: MIT */
/* Embedding tables: one copy for all trainers of a machine, and between machines the rows
 * that changed, exchanged in rounds beside training. tables.c has the tables and the
 * workers' part, tables_round.c the rounds: a state machine like the one of round.h,
 * without clock, chance or sleep. */
#ifndef TABLES_H
#define TABLES_H

#include "sync/round.h"

struct table {
    char *name;
    size_t rows, width;
    size_t first;               /* the number of row 0 among the rows of all tables */
    float *w;                   /* (rows, width) the workers', Hogwild; rounds add to
                                   it */
    /* NULL unless rows are exchanged */
    float *base;                /* (rows, width) on which all machines agree; the
                                   leader's */
    size_t state_width;         /* 0: none */
    float *state;               /* (rows, state_width) the optimizer's, handled as w */
    float *state_base;
    _Atomic uint8_t *heat;      /* (rows) touches since the row was last given, 255 for
                                   more; 0: none. Workers count up, the leader takes */
};

/* Lies in memory that the trainers of a machine share. */
struct tables_board {
    _Atomic int32_t at_work;    /* trainers that may still touch: each adds itself in
                                   start, and leaves, release; the leader acquires, before
                                   its last sweep */
    _Atomic uint32_t ended;     /* all rows are the same everywhere: the leader, release;
                                   acquire */
};

/* A part of a round: a head, then row after row. A row is a uint64_t, which is its number
 * and in the highest byte its heat; its update, which is width floats or, where that is
 * shorter, their encoding (wire.h) up to the next float's boundary; and its state's
 * update, state_width floats. */
struct rows_head {
    uint32_t n_rows;
    uint16_t last;              /* this machine has no more rows, now or later */
    uint16_t wire;              /* enum wire */
};

enum tables_state {
    TABLES_IDLE,
    TABLES_INHERITING,          /* the old leader has gone: rows that it had taken are
                                   found again */
    TABLES_SETTLING,            /* the end is near: rows with errors of encoding are
                                   found */
    TABLES_SWEEPING, TABLES_COUNTING, TABLES_PICKING,       /* the part is filled */
    TABLES_EXCHANGING, TABLES_TAKING,
    TABLES_REPLACING,           /* base was replaced: w becomes base */
    TABLES_ENDING,              /* w becomes base */
    TABLES_ENDED
};

/* A walk over the rows of all tables, once round, from any row. */
struct walk {
    size_t table, row;          /* the present place */
    size_t left;                /* rows to come */
    size_t turns;               /* times that it came to the first row */
};

/* Figures: written by the leader's holder of the machine, read by descant_stats; relaxed.
 */
struct tables_stats {
    _Atomic uint64_t rounds, sent, bad;
    _Atomic uint64_t lost;              /* parts that are in no machine's rows but this
                                           one's */
    _Atomic uint64_t waiting;           /* touched rows that had no room in the last
                                           part */
    _Atomic uint64_t since_ns;          /* no waiting row waits since before; 0: none
                                           waits */
};

/* A count of waiting rows, and of their bytes by heat: each round counts one window of
 * all rows anew. */
enum { TABLES_WINDOWS = 16 };
struct census {
    struct walk walk;
    size_t n, at;                       /* windows; the one counted next */
    size_t rows;                        /* of a window */
    uint32_t waiting[TABLES_WINDOWS];   /* touched rows */
    uint64_t bytes[TABLES_WINDOWS][256];
};

struct tables {
    struct fabric *fabric;
    const struct kernels *kernels;
    struct table *list;
    size_t n, room, n_rows;             /* tables, and rows of all */
    bool across;                        /* rows are exchanged: there may be other
                                           machines */
    bool heal;                          /* a row with NaN or Inf takes its base again */
    int64_t hot;                        /* the plan's */
    bool at_work;                       /* counted on the board */
    struct tables_board *board;
    struct tables_stats stats;

    /* the machine; its holder's */
    enum tables_state state;
    bool leads;
    unsigned char *part;
    unsigned char *given;               /* a bit for each row that is in the part */
    float *row;                         /* (widest) a row that is encoded or decoded; or
                                           NULL */
    enum wire wire;                     /* of the part that is filled */
    bool settled;                       /* the errors of encoding are on the map */
    size_t part_room, part_n, sweep_room;
    bool called;                        /* others have begun: give also an empty part */
    bool last;                          /* no trainer here touches any more, and no row
                                           waits after this part */
    bool full, filled;                  /* no row fits any more; the rest is being
                                           filled */
    bool empty;                         /* the last round was not begun, as no row was
                                           touched */
    bool all_last;                      /* so far in this round */
    int n_named;                        /* bad rows that were named */
    struct walk sweep, pick, walk;
    struct census census;
    /* when the sweep last passed its start, and before */
    uint64_t swept_ns, before_ns, now_ns;
    size_t n_waiting;                   /* touched rows that are in no part */
    uint32_t n_given;                   /* rows of the part */
    unsigned char least;                /* least heat of the rows that are picked */
    struct rows_part from;              /* being taken */
    enum wire from_wire;
    size_t at;
    struct vector base;                 /* of all tables, and of their states */
};

void tables_init(struct tables *t, struct fabric *fabric, const struct plan *plan);
/* after the fabric's close, which may read a part */
void tables_fini(struct tables *t);

/* Before start. Fails, after logging why, where the fabric has no memory. */
descant_status tables_add(struct tables *t, const char *name, size_t rows, size_t width,
                          float **w);

/* The same of state that goes with a table's rows. */
descant_status tables_add_state(struct tables *t, const float *w, size_t width,
                                float **state);

/* Appends a line for each table to a manifest, which compares the machines' first rows.
 * Gives the old manifest back; NULL: no memory. */
char *tables_manifest(const struct tables *t, char *manifest);

/* For fabric start: the most bytes of a part. */
size_t tables_part_bytes(const struct tables *t);

/* For fabric start, after all tables were added: the rows on which all machines agree,
 * one after the other. NULL: no machine comes late, or there is no memory for the
 * list. */
const struct vector *tables_base(struct tables *t);

/* After fabric start, before the first state, while rows have their first values. */
descant_status tables_start(struct tables *t);

/* After the first state: if the others train already, this machine takes their rows.
 * UNSUPPORTED where the fabric cannot give them. */
descant_status tables_met(struct tables *t);

/* Tells that rows of a table were changed, after the change. False: there is no such
 * table or row. */
bool tables_touch(struct tables *t, const float *w, const uint64_t *rows, size_t n);

/* This trainer changes no rows any more; rounds go on until tables_ended. Before the
 * fabric's close, at the latest. */
void tables_stop(struct tables *t);

/* Whether rounds of this trainer's machine need no more driving. */
bool tables_ended(const struct tables *t);
/* no trainer of this machine changes rows any more */
bool tables_stopping(const struct tables *t);

/* Advances the rounds, as round_advance does: RESTING, CALLED, WORKED, WAITING, DONE,
 * FAILED. Without other machines, and in trainers that do not lead, rounds rest and
 * cannot begin. A round without rows is DONE, and t->empty, without the others, unless
 * they had called, or it is the end. */
enum round_progress tables_advance(struct tables *t);
bool tables_can_begin(const struct tables *t);
void tables_begin(struct tables *t, uint64_t now_ns);

#endif
