/* SPDX-License-Identifier: MIT */
/* Blocks go round: the reader fills a free one, workers take batches off the oldest full one,
 * and the last batch that is done frees it and gives up its claim on the board.
 *
 *   1. A block's examples are written by the reader while it is FREE, read by workers while it is
 *      FULL or DRAINED; `mutex` orders the two, and guards every other field of the feed.
 *   2. A chunk stays claimed until its last batch is trained: what a dead trainer held is exactly
 *      what its seat says, and is trained again by an heir, at most a few chunks' worth.
 *
 * Numbers of chunks must rise for a reader (data.h); a chunk inherited from the dead may be
 * behind, so the files are then opened anew. */
#include "train/feed.h"

#include <pthread.h>
#include <string.h>

enum stage { FREE, FULL, DRAINED };

struct part {
    struct block block;
    enum stage stage;
    size_t taken;               /* examples handed out */
    int out;                    /* batches not yet done */
    uint64_t turn;              /* the order of filling */
    double place;
};

struct feed {
    struct feed_options options;
    struct data *data;
    struct data_shape shape;
    uint64_t next_alone;        /* the cursor where there is no board */
    bool any_read;
    uint64_t last;              /* chunk read last */
    uint64_t old[BOARD_CHUNKS]; /* held by a dead trainer of this very seat */
    int n_old;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t moved;
    struct part parts[BOARD_CHUNKS];
    uint64_t turns;
    bool ended, stop, started;
    _Atomic double place;       /* of the last block read; relaxed, a figure */
    descant_status status;
};

static bool stopped(const struct feed *feed)
{
    return feed->stop || (feed->options.board && board_stopped(feed->options.board));
}

/* A free place; the reader's own from then on. -1: the feed is stopped. */
static int free_part(struct feed *feed)
{
    int found = -1;

    pthread_mutex_lock(&feed->mutex);
    while (found < 0 && !stopped(feed)) {
        for (int k = 0; k < feed->options.depth && found < 0; k++)
            if (feed->parts[k].stage == FREE)
                found = k;
        if (found < 0)
            pthread_cond_wait(&feed->moved, &feed->mutex);
    }
    pthread_mutex_unlock(&feed->mutex);
    return found;
}

static descant_status reopen(struct feed *feed)
{
    data_close(feed->data);
    feed->data = NULL;
    feed->any_read = false;
    return data_open(&feed->data, &feed->options.data);
}

/* Reads chunk into the part. */
static enum data_got read_chunk(struct feed *feed, struct part *part, uint64_t chunk)
{
    if (feed->any_read && chunk <= feed->last && (feed->status = reopen(feed)) != DESCANT_OK)
        return DATA_FAILED;
    feed->any_read = true;
    feed->last = chunk;
    enum data_got got = data_read(feed->data, chunk, &part->block);
    part->place = got == DATA_BLOCK ? data_place(feed->data, chunk) : -1;
    if (got == DATA_BLOCK)
        atomic_store_explicit(&feed->place, part->place, memory_order_relaxed);
    if (got == DATA_BLOCK && feed->options.seat) {
        struct seat *seat = feed->options.seat;
        atomic_fetch_add_explicit(&seat->lines, part->block.lines, memory_order_relaxed);
        atomic_fetch_add_explicit(&seat->bad, part->block.bad, memory_order_relaxed);
    }
    return got;
}

static void give_up(struct feed *feed, int place)
{
    if (feed->options.board)
        board_release(feed->options.seat, place);
}

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
        give_up(feed, place);
}

/* The number of the next chunk for this place. */
static uint64_t next_chunk(struct feed *feed, int place)
{
    if (!feed->options.board)
        return feed->next_alone++;
    if (feed->n_old) {
        uint64_t chunk = feed->old[--feed->n_old];
        atomic_store_explicit(&feed->options.seat->claimed[place], chunk + 1,
                              memory_order_release);
        return chunk;
    }
    return board_claim(feed->options.board, feed->options.seat, place);
}

/* Until the data ends, then what the dead have left. */
static void *read_all(void *of)
{
    struct feed *feed = of;
    bool heir = false;
    enum data_got got = DATA_BLOCK;
    int place;

    while (got != DATA_FAILED && (place = free_part(feed)) >= 0) {
        uint64_t chunk;
        if (!heir)
            chunk = next_chunk(feed, place);
        else if (!feed->options.board ||
                 !board_inherit(feed->options.board, feed->options.seat, place, &chunk))
            break;
        got = read_chunk(feed, &feed->parts[place], chunk);
        if (got == DATA_BLOCK) {
            publish(feed, place);
            continue;
        }
        give_up(feed, place);
        heir = true;
    }
    pthread_mutex_lock(&feed->mutex);
    if (got == DATA_FAILED && feed->status == DESCANT_OK)
        feed->status = data_status(feed->data);
    feed->ended = true;
    pthread_cond_broadcast(&feed->moved);
    pthread_mutex_unlock(&feed->mutex);
    return NULL;
}

/* What a trainer that died in this seat still held. */
static void take_old(struct feed *feed)
{
    for (int k = 0; feed->options.seat && k < BOARD_CHUNKS; k++) {
        uint64_t held = atomic_exchange_explicit(&feed->options.seat->claimed[k], 0,
                                                 memory_order_acq_rel);
        if (held)
            feed->old[feed->n_old++] = held - 1;
    }
}

descant_status feed_start(struct feed **out, const struct feed_options *options)
{
    struct feed *feed = memory_take(sizeof *feed);

    if (!feed)
        return log_fail(options->log, DESCANT_MEMORY, "no memory to read the data");
    feed->options = *options;
    pthread_mutex_init(&feed->mutex, NULL);
    pthread_cond_init(&feed->moved, NULL);
    descant_status status = data_open(&feed->data, &options->data);
    if (status == DESCANT_OK) {
        feed->shape = *data_shape(feed->data);
        take_old(feed);
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

static struct part *oldest_full(struct feed *feed)
{
    struct part *found = NULL;

    for (int k = 0; k < feed->options.depth; k++)
        if (feed->parts[k].stage == FULL && (!found || feed->parts[k].turn < found->turn))
            found = &feed->parts[k];
    return found;
}

/* Of the examples that the limit still allows, at most n. */
static size_t grant(const struct feed *feed, size_t n)
{
    uint64_t limit = feed->options.limit;

    if (!limit || !feed->options.board)
        return n;
    uint64_t before = atomic_fetch_add_explicit(&feed->options.board->granted, n,
                                                memory_order_relaxed);
    return before >= limit ? 0 : before + n > limit ? (size_t)(limit - before) : n;
}

static bool take(struct feed *feed, struct part *part, struct feed_batch *batch)
{
    size_t n = part->block.examples.n - part->taken;

    n = grant(feed, n > feed->options.batch ? feed->options.batch : n);
    if (!n)
        return false;
    batch->examples = examples_slice(&part->block.examples, part->taken, n);
    batch->place = part->place;
    batch->block = (int)(part - feed->parts);
    part->taken += n;
    part->out++;
    if (part->taken == part->block.examples.n)
        part->stage = DRAINED;
    return true;
}

bool feed_next(struct feed *feed, struct feed_batch *batch, uint64_t *waited_ns)
{
    struct part *part = NULL;
    bool got = false;

    pthread_mutex_lock(&feed->mutex);
    while (!stopped(feed) && !(part = oldest_full(feed)) && !feed->ended) {
        uint64_t from = clock_now_ns();
        pthread_cond_wait(&feed->moved, &feed->mutex);
        *waited_ns += clock_now_ns() - from;
    }
    if (!stopped(feed) && part)
        got = take(feed, part, batch);
    pthread_mutex_unlock(&feed->mutex);
    return got;
}

void feed_done(struct feed *feed, const struct feed_batch *batch)
{
    struct part *part = &feed->parts[batch->block];
    bool all;

    pthread_mutex_lock(&feed->mutex);
    all = --part->out == 0 && part->stage == DRAINED;
    pthread_mutex_unlock(&feed->mutex);
    if (!all)
        return;
    give_up(feed, batch->block);
    pthread_mutex_lock(&feed->mutex);
    part->stage = FREE;
    pthread_cond_broadcast(&feed->moved);
    pthread_mutex_unlock(&feed->mutex);
}

double feed_place(const struct feed *feed)
{
    return atomic_load_explicit(&feed->place, memory_order_relaxed);
}

descant_status feed_status(struct feed *feed)
{
    pthread_mutex_lock(&feed->mutex);
    descant_status status = feed->status;
    pthread_mutex_unlock(&feed->mutex);
    return status;
}

void feed_stop(struct feed *feed)
{
    if (!feed)
        return;
    pthread_mutex_lock(&feed->mutex);
    feed->stop = true;
    pthread_cond_broadcast(&feed->moved);
    pthread_mutex_unlock(&feed->mutex);
    if (feed->started)
        pthread_join(feed->thread, NULL);
    data_close(feed->data);
    for (int k = 0; k < BOARD_CHUNKS; k++)
        block_fini(&feed->parts[k].block);
    pthread_cond_destroy(&feed->moved);
    pthread_mutex_destroy(&feed->mutex);
    memory_give(feed);
}
