/* SPDX-License-Identifier: MIT */
/* Batches with their rows. Where rows have owners (descant_owned_table), those of the
 * next batches are on their way while one is trained or scored; else this hands on what
 * the feed has. Belongs to one thread. */
#ifndef RUN_AHEAD_H
#define RUN_AHEAD_H

#include "descant.h"
#include "nn/nn.h"
#include "run/feed.h"
#include "run/saved_rows.h"

enum { AHEAD_MOST = 16 };               /* batches, beside the one that is trained */

/* Where a model's tables are: in memory, with owners, or in a checkpoint's files. */
struct tables_at {
    float *memory;
    const struct saved_rows *saved;     /* NULL: not in files */
    struct descant *job;        /* NULL: without owners */
    int table;                  /* of descant_owned_table */
    int most;                   /* batches ahead, up to AHEAD_MOST; 0: the next one alone,
                                   in the pass before; -1: not even that */
};

struct ahead_batch {
    struct feed_batch batch;
    struct descant_rows *rows;
};

/* With one depth: of so much time so much was waited for rows. Of so many batches, so
 * many had a successor whose rows were not there when their own were needed. */
struct ahead_seen {
    uint64_t of_ns, waited_ns;
    int batches, late;
};

/* How many batches ahead, and what that goes by. */
struct ahead_pace {
    int depth;                  /* batches ahead now */
    int skip;                   /* batches that were asked for before that, or are the
                                   first ones: they do not count */
    uint64_t last_ns;           /* of the last batch */
    uint64_t read_ns;           /* what it last took to read rows that were all there */
    struct ahead_seen with;     /* half of it is forgotten each AHEAD_LEARN batches */
};

/* The rows of a batch, and of the next one, when a pass needed the batch's (began_ns):
 * whether they were there. The batch's have been read by now_ns. */
struct ahead_met {
    bool ready, next_ready;
    uint64_t began_ns, now_ns;
};

struct ahead {
    struct tables_at at;
    struct feed *feed;
    struct work *work;
    descant_status status;      /* why it has ended; OK: there are no more batches */
    struct ahead_batch ring[AHEAD_MOST + 1];    /* n on their way, from first on */
    int first, n;
    int found;                  /* the place whose batch's rows `work` has; -1: another's
                                   */
    bool trains;                /* rows are awaited and pushed in the pass */
    double rate;                /* of the push */
    struct ahead_pace pace;
    struct descant_rows *now;   /* of the batch that the caller has; */
    struct saved_block block;   /* or these, out of files */
};

/* work is the caller's, and from here on made for these tables. */
void ahead_init(struct ahead *a, const struct tables_at *at, struct feed *feed,
                struct work *work);

/* Owners: from here on rows are awaited when a pass first needs them, and their gradients
 * go to the owners as soon as they are there, at ahead_rate; then the next batch's rows
 * are asked for. A failure of either is in `status`. */
void ahead_trains(struct ahead *a);
void ahead_rate(struct ahead *a, double rate);

/* As feed_next: after a stop what is on its way is not trained. *tables: for the pass
 * over this batch. The batch before must have been given back to the feed. False also
 * after a failure. */
bool ahead_next(struct ahead *a, struct feed_batch *batch, const float **tables);

/* Drops what is under way. Its batches are not done. */
void ahead_fini(struct ahead *a);

/* The rule: how many batches ahead, given what was seen with `depth`. It is asked each
 * AHEAD_LOOK batches, and goes back only after AHEAD_LEARN. */
enum { AHEAD_LOOK = 8, AHEAD_LEARN = 256 };
int ahead_depth(int depth, const struct ahead_seen *seen, int most);

/* The count, batch by batch. Rows that were there when they were needed take time only to
 * be read; what others take beyond that was waited. */
void ahead_count(struct ahead_pace *pace, const struct ahead_met *met, int most);

#endif
