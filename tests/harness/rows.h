/* SPDX-License-Identifier: MIT */
/* A world of ranks whose tables have owners, over the simulated link, in one thread and in virtual
 * time; and batches whose pushes are known, so that each row can be checked. */
#ifndef HARNESS_ROWS_H
#define HARNESS_ROWS_H

#include "link/simulated.h"
#include "owners/moves.h"

enum { RANKS_MOST = 256, RANKS_ROWS = 5000, RANKS_WIDTH = 3 };

struct rows_side {
    struct service service;
    struct owned tables[2];
    void *memory[2];
    bool open;
};

/* What the next world's tables are like. */
struct rows_way {
    enum descant_rows_wire wire;
    bool grows;                         /* the table of which rows are pushed, */
    uint64_t memory;                    /* and takes so much of a rank; 0: rows_let_grow's */
    bool moves;                         /* slices move, */
    double follow_s;                    /* and have replicas */
    double age;                         /* of copies, by the world's clock; 0: none */
    int later;                          /* so many of its last ranks are not there at the start */
};

extern struct simulated *rows_world;
extern struct rows_side rows_sides[RANKS_MOST];
extern struct rows_way rows_way;
extern int rows_n;                      /* ranks */
extern char rows_logged[4096];          /* warnings and errors, but those of the next */
extern int rows_inherited;              /* a rank has said whose rows it has now */
extern double rows_pushed[RANKS_ROWS];  /* to each row, since the test set it to 0 */

struct descant_owned rows_shape(uint64_t rows, size_t width,
                                enum descant_rows_optimizer optimizer);
/* The same of a table that grows, with memory for far more rows than a test has. */
void rows_let_grow(struct descant_owned *shape);

/* The first `of_them` ranks own rows. */
void rows_open_world(struct simulated_options options, int ranks, int of_them);
void rows_open(int rank);
void rows_open_late(int rank);          /* it came after the start */
void rows_close(int rank);
void rows_close_world(void);
/* All turn at each event until then. */
void rows_run(uint64_t ns);
/* The batch's rows, once they have come in virtual time; NULL: they do not. */
float *rows_come(int rank, struct descant_rows *batch);
struct descant_rows *rows_fetch(int rank, const uint64_t *rows, size_t n);
/* A batch of random rows, many of them twice, each pushed by -1 or a few. */
void rows_push_some(int rank, struct rng *rng, size_t n);
/* Each row has what was pushed to it. */
void rows_check(int rank);
void rows_end_all(void);

#endif
