/* SPDX-License-Identifier: MIT */
/* A batch's rows are asked for in the pass before, as soon as that has pushed its own
 * (work_turns), and awaited when the batch's pass first needs them. Between the two lies
 * work that needs no rows: the gradients of the top layers' weights, the backward pass of
 * the bottom layers, the dense step, and the forward pass of the bottom layers. So rows
 * lack no push of this worker's, and those of the others for one batch's time.
 *
 * Where the link takes longer than that, they are asked for some batches ahead, up to a
 * bound, for a row's values are as old as its batch is deep, and that costs quality
 * (docs/owners.md). One more, while over 1/128 of the time is waited. One less once, of
 * 256 batches, at most 1/128 had a successor whose rows were not there when their own
 * were needed: with one batch less, that is when they would be needed.
 *
 * With a depth a batch's rows are found twice, when they are asked for and before its
 * pass, so that nothing of it must be kept meanwhile: a hundredth of what the pass takes.
 */
#include "run/ahead.h"

enum { WAITS_ONE_OF = 128, LATE_ONE_OF = 128, RING = AHEAD_MOST + 1 };

void ahead_init(struct ahead *a, const struct tables_at *at, struct feed *feed,
                struct work *work)
{
    *a = (struct ahead){.at = *at, .feed = feed, .work = work, .found = -1};
    a->pace = (struct ahead_pace){.depth = at->most > 0, .skip = AHEAD_LOOK};
    a->block.of = at->saved;
    if (at->job || at->saved)
        work_on_blocks(work, NULL);
}

int ahead_depth(int depth, const struct ahead_seen *seen, int most)
{
    if (seen->waited_ns > seen->of_ns / WAITS_ONE_OF)
        return depth < most ? depth + 1 : depth;
    if (seen->batches < AHEAD_LEARN || seen->late > seen->batches / LATE_ONE_OF)
        return depth;
    return depth > 0 ? depth - 1 : 0;
}

void ahead_count(struct ahead_pace *pace, const struct ahead_met *met, int most)
{
    struct ahead_seen *seen = &pace->with;
    uint64_t took = met->now_ns - met->began_ns, of = met->now_ns - pace->last_ns;
    bool others = pace->skip > 0;

    pace->read_ns = met->ready ? took : pace->read_ns;
    pace->last_ns = met->now_ns;
    pace->skip -= others;
    if (others)
        return;
    seen->of_ns += of;
    seen->waited_ns += took > pace->read_ns ? took - pace->read_ns : 0;
    seen->late += !met->next_ready;
    if (++seen->batches % AHEAD_LOOK)
        return;
    int depth = ahead_depth(pace->depth, seen, most);
    if (depth != pace->depth) {
        pace->skip = pace->depth + 1;
        pace->depth = depth;
        *seen = (struct ahead_seen){0};
    } else if (seen->batches >= AHEAD_LEARN) {
        *seen = (struct ahead_seen){seen->of_ns / 2, seen->waited_ns / 2, 0, 0};
    }
}

/* --- ahead --- */

static bool find_rows(struct ahead *a, int place)
{
    if (place != a->found && !work_ahead(a->work, &a->ring[place].batch.examples))
        a->status = DESCANT_MEMORY;
    a->found = place;
    return a->status == DESCANT_OK;
}

/* One more batch, of which nothing is asked. False: it is not the time, or there is none
 * now. */
static bool next_batch(struct ahead *a, bool waits)
{
    struct ahead_batch *next = &a->ring[(a->first + a->n) % RING];

    next->rows = NULL;
    if (a->n > a->pace.depth || !(waits ? feed_next(a->feed, &next->batch)
                                        : feed_now(a->feed, &next->batch)))
        return false;
    a->n++;
    a->found = -1;
    return true;
}

/* The rows of the last batch are on their way. */
static void ask(struct ahead *a)
{
    int place = (a->first + a->n - 1) % RING;

    if (find_rows(a, place)) {
        const struct row_grads *found = work_rows(a->work);
        a->status = descant_rows_fetch(a->at.job, a->at.table, found->rows, found->n,
                                       &a->ring[place].rows);
    }
}

static void ask_more(struct ahead *a, bool waits)
{
    while (a->status == DESCANT_OK && next_batch(a, waits && !a->n))
        ask(a);
}

static void drop_now(struct ahead *a)
{
    if (a->now)
        descant_rows_drop(a->at.job, a->now);
    a->now = NULL;
}

/* NULL: they have not come, and status says why. */
static const float *await_rows(void *of)
{
    struct ahead *a = of;
    float *block = NULL;
    struct ahead_met met = {
        .ready = descant_rows_ready(a->at.job, a->now),
        .next_ready = a->n && descant_rows_ready(a->at.job, a->ring[a->first].rows),
        .began_ns = clock_now_ns()};
    a->status = descant_rows_wait(a->at.job, a->now, &block);
    met.now_ns = clock_now_ns();
    ahead_count(&a->pace, &met, a->at.most);
    return a->status == DESCANT_OK ? block : NULL;
}

/* The oldest batch becomes the caller's. */
static bool take(struct ahead *a, struct feed_batch *batch, const float **tables)
{
    int place = a->first;

    *batch = a->ring[place].batch;
    a->now = a->ring[place].rows;
    a->first = (a->first + 1) % RING;
    a->n--;
    if (!a->trains)
        *tables = await_rows(a);
    return a->status == DESCANT_OK && find_rows(a, place);
}

static void done(void *of)
{
    struct ahead *a = of;
    struct descant_rows *rows = a->now;

    if (a->status != DESCANT_OK)
        return;
    a->now = NULL;
    bool asks = a->at.most >= 0 && next_batch(a, false);
    a->status = (asks ? descant_rows_push_more : descant_rows_push)(
        a->at.job, rows, work_rows(a->work)->grads, a->rate);
    if (!asks || a->status != DESCANT_OK)
        return;
    ask(a);
    ask_more(a, false);
}

void ahead_trains(struct ahead *a)
{
    const struct work_turns turns = {.of = a, .needed = await_rows, .done = done};

    a->trains = a->at.job != NULL;
    if (!a->trains)
        return;
    work_on_blocks(a->work, &turns);
}

void ahead_rate(struct ahead *a, double rate)
{
    a->rate = rate;
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
    ask_more(a, true);
    return a->status == DESCANT_OK && a->n && !feed_stopped(a->feed) &&
           take(a, batch, tables);
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
