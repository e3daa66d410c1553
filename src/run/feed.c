/* SPDX-License-Identifier: MIT */
/* Blocks go round: the reader fills a free one, workers take batches off the oldest full
 * one, and the last batch that is done frees it and gives up its claim.
 *
 *   1. A block's examples are written by the reader while it is FREE, read by workers
 *      while it is FULL or DRAINED; `mutex` orders reader and workers.
 *   2. A chunk stays claimed until its last batch is done: an heir of a dead trainer
 *      trains exactly the chunks again that the dead one had claimed, at most a few.
 *
 * Numbers of chunks must rise for a reader (data.h); a chunk inherited from the dead may
 * be behind, so the files are then opened anew.
 *
 * A thread that waits here looks every tick whether the run is stopped: a reader may be
 * in a read() from a pipe that brings nothing. */
#include "run/feed.h"

#include "run/tick.h"

#include <math.h>
#include <string.h>

#define TICK_NS 50000000u
#define LATER_NS 2000000u       /* until the limit is asked again */
#define OWN_LEAST 0.5           /* of what all have trained since a feed's first batch */

enum part_stage { FREE, FULL, DRAINED };

struct part {
    struct block block;
    enum part_stage stage;
    size_t taken;               /* examples handed out */
    int out;                    /* batches not yet done */
    uint64_t turn;              /* the order of filling */
    double place, place_end;    /* of its first example, and behind its last */
};

struct feed {
    /* set before the thread starts */
    struct feed_options options;
    struct data_shape shape;
    bool started;
    pthread_t thread;

    /* the reader's own */
    struct data *data;
    uint64_t next_alone;        /* the cursor where there is no board */
    bool any_read, past_end;
    uint64_t last;              /* chunk read last */
    descant_status status;      /* for others once `ended` is set */
    char why[256];              /* of status */

    pthread_mutex_t mutex;      /* guards the fields below, but for blocks (1) */
    pthread_cond_t moved;
    struct part parts[FEED_BLOCKS];
    uint64_t turns;
    double handed;              /* the share of all that was handed out, times feeds */
    double first;               /* where the first batch began; negative: there was none */
    bool ended, stop;
    _Atomic double place;       /* of the last block read; relaxed, a figure */
};

static bool stopped(const struct feed *feed)
{
    const struct feed_options *o = &feed->options;
    return feed->stop || (o->stopped && o->stopped(o->of));
}

bool feed_stopped(struct feed *feed)
{
    pthread_mutex_lock(&feed->mutex);
    bool yes = stopped(feed);
    pthread_mutex_unlock(&feed->mutex);
    return yes;
}

/* Asked by the reading of a pipe. */
static bool reading_stops(void *of)
{
    return feed_stopped(of);
}

/* A free place, which from then on is the reader's own. -1: the feed is stopped. */
static int free_part(struct feed *feed)
{
    int found = -1;

    pthread_mutex_lock(&feed->mutex);
    while (found < 0 && !stopped(feed)) {
        for (int k = 0; k < feed->options.depth && found < 0; k++)
            if (feed->parts[k].stage == FREE)
                found = k;
        if (found < 0)
            tick_wait(&feed->moved, &feed->mutex, TICK_NS);
    }
    pthread_mutex_unlock(&feed->mutex);
    return found;
}

/* Workers count on the shape that was seen first. */
static descant_status reopen(struct feed *feed)
{
    const struct data_shape *was = &feed->shape;

    data_close(feed->data);
    feed->data = NULL;
    feed->any_read = false;
    descant_status status = data_open(&feed->data, &feed->options.data);
    if (status != DESCANT_OK)
        return status;
    const struct data_shape *is = data_shape(feed->data);
    if (is->n_dense == was->n_dense && is->n_fields == was->n_fields &&
        is->n_classes <= was->n_classes && is->plain_ids == was->plain_ids)
        return DESCANT_OK;
    return log_fail(feed->options.log, DESCANT_MISMATCH,
                    "the files changed while they were read");
}

/* How far through the data the block begins and ends. Where the number of chunks is not
 * known, the data knows where a block ends, and those before it count as equally long. */
static void set_places(const struct feed *feed, struct part *part, uint64_t number)
{
    double at = data_place(feed->data, number);
    double end = data_place(feed->data, number + 1);
    bool known = data_chunks(feed->data) != UINT64_MAX;

    part->place = at < 0 || known ? at : at * (double)number / ((double)number + 1);
    part->place_end = fmax(part->place, end);
}

/* Reads chunk into the part. */
static enum data_got read_chunk(struct feed *feed, struct part *part, uint64_t chunk)
{
    uint64_t number = chunk & ~DATA_REST;
    if (feed->any_read && number <= feed->last &&
        (feed->status = reopen(feed)) != DESCANT_OK)
        return DATA_FAILED;
    feed->any_read = true;
    feed->last = number;
    enum data_got got = data_read(feed->data, chunk, &part->block);
    if (got == DATA_BLOCK) {
        set_places(feed, part, number);
        atomic_store_explicit(&feed->place, part->place, memory_order_relaxed);
    }
    struct feed_counts *counts = feed->options.counts;
    if (got == DATA_BLOCK && counts) {
        atomic_fetch_add_explicit(&counts->lines, part->block.lines,
                                  memory_order_relaxed);
        atomic_fetch_add_explicit(&counts->bad, part->block.bad, memory_order_relaxed);
    }
    return got;
}

static void give_up(struct feed *feed, int place, bool done)
{
    const struct feed_claims *claims = feed->options.claims;
    if (claims)
        claims->give_up(claims->of, place, done);
}

/* Hands the block over. A block without examples, as of bad lines alone, is free again at
 * once; the claim may be given up after that, since only this thread claims for the
 * place. */
static void publish(struct feed *feed, int place)
{
    struct part *part = &feed->parts[place];

    pthread_mutex_lock(&feed->mutex);
    part->taken = 0;
    part->out = 0;
    part->turn = feed->turns++;
    part->stage = part->block.examples.n ? FULL : FREE;
    pthread_cond_broadcast(&feed->moved);
    pthread_mutex_unlock(&feed->mutex);
    if (!part->block.examples.n)
        give_up(feed, place, true);
}

static bool next_chunk(struct feed *feed, int place, uint64_t *chunk)
{
    const struct feed_claims *claims = feed->options.claims;
    bool any;

    if (!claims) {
        *chunk = feed->next_alone++;
        return !feed->past_end;
    }
    do
        any = claims->claim(claims->of, place, chunk);
    while (any && *chunk == FEED_NO_CHUNK && !reading_stops(feed));
    return any && *chunk != FEED_NO_CHUNK;
}

static void past_end(struct feed *feed, int place, uint64_t chunk)
{
    const struct feed_claims *claims = feed->options.claims;
    feed->past_end = true;
    if (claims)
        claims->past_end(claims->of, chunk & ~DATA_REST);
    give_up(feed, place, false);
}

/* The reader's own failure. A read that fails because the run was stopped is none. */
static void fail(struct feed *feed)
{
    const struct feed_claims *claims = feed->options.claims;
    descant_status status =
        feed->status == DESCANT_OK ? data_status(feed->data) : feed->status;

    if (reading_stops(feed))
        status = DESCANT_OK;
    if (status != DESCANT_OK)
        snprintf(feed->why, sizeof feed->why, "%s", descant_last_error());
    if (status != DESCANT_OK && claims)
        claims->failed(claims->of, feed->why);
    feed->status = status;
}

/* The reader. Ends at a failure, at a stop, or when no chunk is left to claim. Where
 * another reader has met the data's end, this one tests its share of bad lines itself. */
static void *read_all(void *of)
{
    struct feed *feed = of;
    enum data_got got = DATA_BLOCK;
    uint64_t chunk;
    int place = -1;

    while (got != DATA_FAILED && (place = free_part(feed)) >= 0 &&
           next_chunk(feed, place, &chunk)) {
        got = read_chunk(feed, &feed->parts[place], chunk);
        if (got == DATA_BLOCK)
            publish(feed, place);
        else if (got == DATA_END)
            past_end(feed, place, chunk);
    }
    if (place >= 0 && got == DATA_BLOCK && data_finish(feed->data) != DESCANT_OK)
        got = DATA_FAILED;
    if (got == DATA_FAILED)
        fail(feed);
    pthread_mutex_lock(&feed->mutex);
    feed->ended = true;
    pthread_cond_broadcast(&feed->moved);
    pthread_mutex_unlock(&feed->mutex);
    return NULL;
}

descant_status feed_start(struct feed **out, const struct feed_options *options)
{
    struct feed *feed = memory_take(sizeof *feed);

    if (!feed)
        return log_fail(options->log, DESCANT_MEMORY, "no memory to read the data");
    feed->options = *options;
    feed->options.data.stopped = reading_stops;
    feed->options.data.of = feed;
    feed->first = -1;
    atomic_store_explicit(&feed->place, -1, memory_order_relaxed);
    pthread_mutex_init(&feed->mutex, NULL);
    tick_init(&feed->moved);
    descant_status status = data_open(&feed->data, &feed->options.data);
    if (status == DESCANT_OK) {
        feed->shape = *data_shape(feed->data);
        if (pthread_create(&feed->thread, NULL, read_all, feed) != 0)
            status = log_fail(options->log, DESCANT_SYSTEM, "no thread to read the data");
        else
            feed->started = true;
    }
    if (status != DESCANT_OK) {
        feed_stop(feed);
        return status;
    }
    *out = feed;
    return DESCANT_OK;
}

const struct data_shape *feed_shape(const struct feed *feed)
{
    return &feed->shape;
}

/* In the order of filling, so that batches come in the order in which their chunks were
 * claimed. */
static struct part *oldest_full(struct feed *feed)
{
    struct part *found = NULL;

    for (int k = 0; k < feed->options.depth; k++)
        if (feed->parts[k].stage == FULL && (!found || feed->parts[k].turn < found->turn))
            found = &feed->parts[k];
    return found;
}

/* A batch's place, and its share of all, are the larger of those by the data and those by
 * the limit. */
static void place_batch(struct feed *feed, const struct part *part,
                        const struct feed_grant *grant, struct feed_batch *batch)
{
    const struct feed_options *o = &feed->options;
    double all = (double)part->block.examples.n, length = part->place_end - part->place;
    double from = (double)part->taken / all, part_of = (double)batch->examples.n / all;
    double begins = fmax(part->place + length * from, grant->begins);
    double ends = fmax(part->place + length * (from + part_of), grant->ends);
    double half = 0.5 * o->feeds * fmax(length * part_of, grant->ends - grant->begins);

    if (feed->first < 0)
        feed->first = begins;
    batch->place = 0.5 * (begins + ends);
    batch->own = begins < 0 || o->goes_on ? batch->place
                 : fmax(feed->handed + half, OWN_LEAST * (batch->place - feed->first));
    feed->handed += 2 * half;
}

/* Called under the mutex. Returns the examples of the batch; 0: the limit is reached, for
 * all others, too. */
static size_t take(struct feed *feed, struct part *part, struct feed_batch *batch)
{
    const struct feed_claims *claims = feed->options.claims;
    size_t all = part->block.examples.n, n = all - part->taken;
    struct feed_grant grant = {.begins = -1, .ends = -1};

    n = n > feed->options.batch ? feed->options.batch : n;
    n = claims ? claims->grant(claims->of, n, &grant) : n;
    if (!n || n == FEED_LATER)
        return n;
    batch->examples = examples_slice(&part->block.examples, part->taken, n);
    place_batch(feed, part, &grant, batch);
    batch->from = grant.from;
    batch->block = (int)(part - feed->parts);
    part->taken += n;
    part->out++;
    if (part->taken == part->block.examples.n)
        part->stage = DRAINED;
    return n;
}

bool feed_next(struct feed *feed, struct feed_batch *batch)
{
    size_t n = FEED_LATER;

    pthread_mutex_lock(&feed->mutex);
    while (n == FEED_LATER && !stopped(feed)) {
        struct part *part = oldest_full(feed);
        n = part ? take(feed, part, batch) : feed->ended ? 0 : FEED_LATER;
        if (n == FEED_LATER)
            tick_wait(&feed->moved, &feed->mutex, part ? LATER_NS : TICK_NS);
    }
    pthread_mutex_unlock(&feed->mutex);
    return n && n != FEED_LATER;
}

bool feed_now(struct feed *feed, struct feed_batch *batch)
{
    pthread_mutex_lock(&feed->mutex);
    struct part *part = stopped(feed) ? NULL : oldest_full(feed);
    size_t n = part ? take(feed, part, batch) : 0;
    pthread_mutex_unlock(&feed->mutex);
    return n && n != FEED_LATER;
}

/* The claim is given up before the part is free: after that the reader may claim the next
 * chunk for the same place. */
void feed_done(struct feed *feed, const struct feed_batch *batch)
{
    const struct feed_claims *claims = feed->options.claims;
    struct part *part = &feed->parts[batch->block];

    if (claims && claims->spent)
        claims->spent(claims->of, batch->from, batch->examples.n);
    pthread_mutex_lock(&feed->mutex);
    bool all = --part->out == 0 && part->stage == DRAINED;
    pthread_mutex_unlock(&feed->mutex);
    if (!all)
        return;
    give_up(feed, batch->block, true);
    pthread_mutex_lock(&feed->mutex);
    part->stage = FREE;
    pthread_cond_broadcast(&feed->moved);
    pthread_mutex_unlock(&feed->mutex);
}

double feed_place(const struct feed *feed)
{
    const struct feed_claims *claims = feed->options.claims;
    double place = atomic_load_explicit(&feed->place, memory_order_relaxed);

    return claims ? fmax(place, claims->granted(claims->of)) : place;
}

descant_status feed_status(struct feed *feed, const char **why)
{
    pthread_mutex_lock(&feed->mutex);
    descant_status status = feed->ended ? feed->status : DESCANT_OK;
    pthread_mutex_unlock(&feed->mutex);
    *why = feed->why;
    return status;
}

static void end_thread(struct feed *feed)
{
    pthread_mutex_lock(&feed->mutex);
    feed->stop = true;
    pthread_cond_broadcast(&feed->moved);
    pthread_mutex_unlock(&feed->mutex);
    if (feed->started)
        pthread_join(feed->thread, NULL);
    feed->started = false;
}

void feed_end(struct feed *feed)
{
    end_thread(feed);
    for (int k = 0; k < feed->options.depth; k++)
        if (feed->parts[k].stage != FREE) {
            feed->parts[k].stage = FREE;
            give_up(feed, k, false);
        }
}

void feed_stop(struct feed *feed)
{
    if (!feed)
        return;
    end_thread(feed);
    data_close(feed->data);
    for (int k = 0; k < FEED_BLOCKS; k++)
        block_fini(&feed->parts[k].block);
    pthread_cond_destroy(&feed->moved);
    pthread_mutex_destroy(&feed->mutex);
    memory_give(feed);
}
