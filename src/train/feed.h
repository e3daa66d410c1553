/* SPDX-License-Identifier: MIT */
/* A trainer's supply of batches: one thread claims chunks and parses them ahead of the workers. */
#ifndef FEED_H
#define FEED_H

#include "data/data.h"
#include "train/board.h"

struct feed;

struct feed_options {
    struct data_options data;
    struct board *board;        /* NULL: nothing is shared, and all chunks are this feed's */
    struct seat *seat;
    int depth;                  /* blocks held at most, up to BOARD_CHUNKS */
    size_t batch;
    uint64_t limit;             /* examples of all trainers together; 0: all */
    bool heirs_only;            /* reads what the dead hold, and nothing new */
    bool (*stopped)(void *of);  /* asked by any thread, some ten times a second; NULL: the board
                                   alone stops the feed */
    void *of;
    const struct log *log;
};

struct feed_batch {
    struct examples examples;   /* valid until feed_done */
    double place;               /* through the data or up to the limit, 0 to 1, of the batch's
                                   middle; negative: not known */
    int block;
};

/* Opens the data and starts the thread. */
descant_status feed_start(struct feed **out, const struct feed_options *options);
const struct data_shape *feed_shape(const struct feed *feed);     /* of every batch */

/* Any thread. False: the data is at its end, or the run is stopped. Blocks while parsing is
 * behind; *waited_ns grows by that. */
bool feed_next(struct feed *feed, struct feed_batch *batch, uint64_t *waited_ns);
void feed_done(struct feed *feed, const struct feed_batch *batch);

/* How far the reading is, as feed_batch.place; negative before it begins, too. Any thread. */
double feed_place(const struct feed *feed);

/* OK, or why the reading ended early; `why` in words, valid until feed_stop. A feed with a board
 * has stopped the run with them. */
descant_status feed_status(struct feed *feed, const char **why);

/* No more batches; ends the thread and releases everything. NULL is allowed. */
void feed_stop(struct feed *feed);

#endif
