/* SPDX-License-Identifier: MIT */
/* Rows are asked for as soon as a batch is parsed, and awaited when its turn comes: by
 * then they are here, if the depth suits the link. It begins at one batch, and grows
 * while more than half a percent of the time is waited, up to a bound: a row's values are
 * as old as its batch is deep, and that costs quality (docs/owners.md). All time with a
 * depth counts, so that one pause of a machine does not deepen a long run.
 *
 * A batch's rows are found twice, when they are asked for and before its pass, so that
 * nothing of it must be kept meanwhile: a hundredth of what the pass takes. */
#include "run/ahead.h"

enum { WAITS_ONE_OF = 200, RING = AHEAD_MOST + 1 };

void ahead_init(struct ahead *a, const struct tables_at *at, struct feed *feed,
                struct work *work)
{
    *a = (struct ahead){.at = *at, .feed = feed, .work = work};
    a->pace.depth = at->most > 0;
    a->block.of = at->saved;
    if (at->job || at->saved)
        work_on_blocks(work);
}

int ahead_depth(int depth, uint64_t waited_ns, uint64_t of_ns, int most)
{
    return waited_ns > of_ns / WAITS_ONE_OF && depth < most ? depth + 1 : depth;
}

void ahead_count(struct ahead_pace *pace, bool ready, uint64_t began_ns, uint64_t now_ns,
                 int most)
{
    uint64_t took = now_ns - began_ns;

    pace->read_ns = ready ? took : pace->read_ns;
    pace->waited_ns += took > pace->read_ns ? took - pace->read_ns : 0;
    if (++pace->seen % AHEAD_LOOK)
        return;
    bool first = !pace->since_ns;
    int depth = first ? pace->depth
                      : ahead_depth(pace->depth, pace->waited_ns,
                                    now_ns - pace->since_ns, most);
    if (!first && depth == pace->depth)
        return;
    pace->depth = depth;
    pace->since_ns = now_ns;
    pace->waited_ns = 0;
}

/* --- ahead --- */

static bool find_rows(struct ahead *a, const struct examples *examples)
{
    if (!work_ahead(a->work, examples))
        a->status = DESCANT_MEMORY;
    return a->status == DESCANT_OK;
}

/* One more batch on its way. False: there is none now. */
static bool ask(struct ahead *a)
{
    struct ahead_batch *next = &a->ring[(a->first + a->n) % RING];

    next->rows = NULL;
    if (!(a->n ? feed_now(a->feed, &next->batch) : feed_next(a->feed, &next->batch)))
        return false;
    a->n++;
    if (find_rows(a, &next->batch.examples)) {
        const struct row_grads *found = work_rows(a->work);
        a->status = descant_rows_fetch(a->at.job, a->at.table, found->rows, found->n,
                                       &next->rows);
    }
    return a->status == DESCANT_OK;
}

static void drop_now(struct ahead *a)
{
    if (a->now)
        descant_rows_drop(a->at.job, a->now);
    a->now = NULL;
}

/* The oldest batch becomes the caller's. */
static bool take(struct ahead *a, struct feed_batch *batch, const float **tables)
{
    struct ahead_batch *oldest = &a->ring[a->first];
    float *block = NULL;

    *batch = oldest->batch;
    a->now = oldest->rows;
    a->first = (a->first + 1) % RING;
    a->n--;
    bool ready = descant_rows_ready(a->at.job, a->now);
    uint64_t began = clock_now_ns();
    a->status = descant_rows_wait(a->at.job, a->now, &block);
    ahead_count(&a->pace, ready, began, clock_now_ns(), a->at.most);
    *tables = block;
    return a->status == DESCANT_OK && find_rows(a, &batch->examples);
}

/* Out of files there is nothing to wait for. */
static bool next_saved(struct ahead *a, struct feed_batch *batch, const float **tables)
{
    if (!feed_next(a->feed, batch))
        return false;
    *tables = saved_block_fill(&a->block, a->work, &batch->examples);
    a->status = *tables ? DESCANT_OK : DESCANT_MEMORY;
    return *tables != NULL;
}

bool ahead_next(struct ahead *a, struct feed_batch *batch, const float **tables)
{
    *tables = a->at.memory;
    if (a->at.saved)
        return next_saved(a, batch, tables);
    if (!a->at.job)
        return feed_next(a->feed, batch);
    drop_now(a);
    while (a->status == DESCANT_OK && a->n <= a->pace.depth && ask(a))
        ;
    return a->status == DESCANT_OK && a->n && !feed_stopped(a->feed) &&
           take(a, batch, tables);
}

descant_status ahead_push(struct ahead *a, double rate)
{
    struct descant_rows *rows = a->now;

    a->now = NULL;
    return descant_rows_push(a->at.job, rows, work_rows(a->work)->grads, rate);
}

void ahead_fini(struct ahead *a)
{
    saved_block_fini(&a->block);
    if (!a->at.job)
        return;
    drop_now(a);
    for (; a->n; a->n--, a->first = (a->first + 1) % RING)
        if (a->ring[a->first].rows)
            descant_rows_drop(a->at.job, a->ring[a->first].rows);
}
