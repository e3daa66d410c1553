/* SPDX-License-Identifier: MIT */
/* A supply of batches: one thread claims chunks of the data and parses them ahead of the
 * threads that take batches. */
#ifndef RUN_FEED_H
#define RUN_FEED_H

#include "data/data.h"

struct feed;

enum { FEED_BLOCKS = 8 };

#define FEED_NO_CHUNK UINT64_MAX
#define FEED_LATER SIZE_MAX

struct feed_grant {
    uint64_t from;              /* number of the first example within the limit */
    double begins, ends;        /* shares of the limit, 0 to 1; negative: there is none */
};

/* The chunks that several feeds share. A chunk is claimed for one of a feed's places, and
 * is given up when its last batch is done. */
struct feed_claims {
    /* called by the feed's thread; false: no chunk is left. FEED_NO_CHUNK: none came
     * within a moment, and the feed asks again */
    bool (*claim)(void *of, int place, uint64_t *chunk);
    /* the chunk lies past the end of the data; the feed gives it up next */
    void (*past_end)(void *of, uint64_t chunk);
    void (*failed)(void *of, const char *why);
    /* any thread; done: all that the chunk has was trained */
    void (*give_up)(void *of, int place, bool done);
    /* Returns how many of n examples may be handed out; 0: the limit is reached.
     * FEED_LATER: none now, and the feed asks again */
    size_t (*grant)(void *of, size_t n, struct feed_grant *grant);
    /* these of a grant were trained; or NULL */
    void (*spent)(void *of, uint64_t from, size_t n);
    double (*granted)(void *of);                    /* the share so far */
    void *of;
};

struct feed_counts {
    _Atomic uint64_t lines, bad;    /* relaxed */
};

struct feed_options {
    struct data_options data;
    const struct feed_claims *claims;   /* outlive the feed; NULL: all chunks are the
                                           feed's */
    struct feed_counts *counts; /* lines read are added; or NULL */
    int depth;                  /* blocks held at most, up to FEED_BLOCKS */
    size_t batch;
    int feeds;                  /* that share the chunks as this one begins */
    bool goes_on;               /* the optimizer has sums of what was trained before */
    bool (*stopped)(void *of);  /* asked by any thread some ten times a second; or NULL */
    void *of;
    const struct log *log;
};

struct feed_batch {
    struct examples examples;   /* valid until feed_done */
    double place;               /* of the batch's middle, through the data or up to the
                                   limit, 0 to 1; negative: not known */
    double own;                 /* how far all feeds have come since this one's first
                                   batch: what it has handed out, times feeds, or half of
                                   what all have, if that is more. Where the feed goes on:
                                   the place */
    uint64_t from;              /* see struct feed_grant */
    int block;
};

/* Opens the data and starts the thread. */
descant_status feed_start(struct feed **out, const struct feed_options *options);
const struct data_shape *feed_shape(const struct feed *feed);     /* of every batch */

/* Any thread. False: the data is at its end, or the run is stopped. Blocks while parsing
 * is behind. */
bool feed_next(struct feed *feed, struct feed_batch *batch);
/* The same without blocking: false where there is none now, too. */
bool feed_now(struct feed *feed, struct feed_batch *batch);
void feed_done(struct feed *feed, const struct feed_batch *batch);

/* Whether the run is stopped: no more batches come. Any thread. */
bool feed_stopped(struct feed *feed);

/* How far the reading is, as feed_batch.place; negative also before the reading begins.
 * Any thread. */
double feed_place(const struct feed *feed);

/* OK, or why the reading ended early; *why: the reason in words, valid until feed_stop.
 * Where the reading failed, claims->failed was called. */
descant_status feed_status(struct feed *feed, const char **why);

/* No more batches; ends the thread, and gives up what has not been trained whole. No other
 * thread takes batches any more. */
void feed_end(struct feed *feed);

/* No more batches; ends the thread and releases everything. NULL is allowed. */
void feed_stop(struct feed *feed);

#endif
