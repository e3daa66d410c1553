/* SPDX-License-Identifier: MIT */
/* Asks on their way. An ask leaves with a receive for its answer, and answers come in the
 * order of the asks, since an owner serves a rank's asks in that order. */
#include "owners/service.h"

#include <string.h>

size_t ask_room(const struct ask *ask)
{
    return sizeof *ask + ((size_t)ASK_LEAST << ask->size);
}

static void give(struct service *s, struct ask *ask)
{
    pthread_mutex_lock(&s->lock);
    ask->next = s->free_asks[ask->size];
    s->free_asks[ask->size] = ask;
    pthread_mutex_unlock(&s->lock);
}

void ask_let_go(struct service *s, struct ask *ask)
{
    if (atomic_fetch_sub(&ask->held, 1) == 1)
        give(s, ask);
}

static struct ask *make_ask(struct service *s, int size)
{
    struct ask *ask = memory_take(sizeof *ask + ((size_t)ASK_LEAST << size));

    if (!ask)
        return NULL;
    ask->size = size;
    pthread_mutex_lock(&s->lock);
    ask->next_made = s->made_asks;
    s->made_asks = ask;
    pthread_mutex_unlock(&s->lock);
    return ask;
}

struct ask *ask_take(struct service *s, size_t message, size_t answer)
{
    int size = 0;

    while (((size_t)ASK_LEAST << size) < message)
        size++;
    pthread_mutex_lock(&s->lock);
    struct ask *ask = s->free_asks[size];
    if (ask)
        s->free_asks[size] = ask->next;
    pthread_mutex_unlock(&s->lock);
    if (!ask)
        ask = make_ask(s, size);
    if (ask && memory_grow(&ask->answer, &ask->answer_room, 0, answer, 1)) {
        ask->next = NULL;
        atomic_store(&ask->held, 1);
        ask->out = (struct owners_op){OP_ASKED, ask};
        ask->in = (struct owners_op){OP_ANSWER, ask};
        ask->sent = false;
        ask->answered = answer == 0;
        ask->lost = false;
        return ask;
    }
    if (ask)
        give(s, ask);
    log_fail(&s->log, DESCANT_MEMORY, "no memory for rows on their way");
    return NULL;
}

void ask_post(struct service *s, struct ask *ask)
{
    if (ask->kind == ASK_PUSH)
        atomic_fetch_add(&s->queued, ask_room(ask));
    pthread_mutex_lock(&s->lock);
    ask->number = ++s->posted;
    *s->inbox_last = ask;
    s->inbox_last = &ask->next;
    pthread_mutex_unlock(&s->lock);
}

static void no_more_queued(struct service *s, size_t bytes)
{
    size_t before = atomic_fetch_sub(&s->queued, bytes);

    if (before <= ASKS_QUEUED || before - bytes > ASKS_QUEUED)
        return;
    atomic_fetch_add(&s->unqueued, 1);
    futex_wake_all(&s->unqueued);
}

bool ask_send(struct service *s, struct ask *ask)
{
    size_t answer = ask->n * ask->row_bytes;

    owners_count(&s->stats.bytes, ask->bytes);
    return (!ask->batch || service_receive(s, ask->owner, OWNERS_ANSWER, ask->answer,
                                           answer, &ask->in)) &&
           service_send(s, ask->owner, OWNERS_ASK, ask->message, ask->bytes, &ask->out);
}

struct ask *asks_inbox(struct service *s)
{
    pthread_mutex_lock(&s->lock);
    struct ask *ask = s->inbox;
    s->inbox = NULL;
    s->inbox_last = &s->inbox;
    pthread_mutex_unlock(&s->lock);
    return ask;
}

/* A record goes to the row's place in the batch, and to its copy, if that can follow what
 * is pushed. */
static void take_record(struct copies *copies, const struct ask *ask, size_t k)
{
    const struct descant_rows *batch = ask->batch;
    const unsigned char *from = ask->answer + k * ask->row_bytes;
    uint32_t place = ask->places[k], follows;
    size_t width = batch->table->shape.width;
    float record[OWNED_COPIED];

    memcpy(&follows, from, sizeof follows);
    memcpy(record, from + sizeof follows, ask->row_bytes - sizeof follows);
    memcpy(batch->block + place * width, record, width * sizeof *record);
    if (follows)
        copies_fill(copies, batch->rows[place], ask->number, record);
    else
        copies_forget(copies, batch->rows[place]);
}

/* The answer's rows go to their places in the batch's block. */
static void scatter(const struct service *s, const struct ask *ask)
{
    struct descant_rows *batch = ask->batch;

    for (size_t k = 0; k < ask->n; k++)
        if (ask->kind == ASK_COPY)
            take_record(copies_of(s, batch->table), ask, k);
        else
            owned_decode(batch->table, ask->answer + k * ask->row_bytes,
                         batch->block + ask->places[k] * batch->table->shape.width);
}

void ask_done(struct service *s, struct ask *ask)
{
    struct descant_rows *batch = ask->batch;

    if (ask->kind == ASK_PUSH)
        no_more_queued(s, ask_room(ask));
    ask_let_go(s, ask);
    s->n_asks--;
    if (!batch)
        return;
    if (atomic_fetch_sub(&batch->missing, 1) == 1)
        futex_wake_all(&batch->missing);
    batch_let_go(s, batch);
}

void ask_answered(struct service *s, struct ask *ask)
{
    scatter(s, ask);
}

bool asks_ended(struct service *s, struct ask *ask, const struct link_ended *ended)
{
    bool answer = ended->op == &ask->in;

    if (answer && !ended->failed && ended->bytes != ask->n * ask->row_bytes)
        return service_fail(s, DESCANT_CORRUPT,
                            "rank %d has answered %zu rows by %zu bytes", ask->owner,
                            ask->n, ended->bytes);
    if (answer && !ended->failed) {
        owners_count(&s->stats.bytes, ended->bytes);
        scatter(s, ask);
    }
    *(answer ? &ask->answered : &ask->sent) = true;
    ask->lost |= answer && ended->failed;
    return true;
}

void asks_fini(struct service *s)
{
    for (struct ask *ask = s->made_asks, *next; ask; ask = next) {
        next = ask->next_made;
        memory_give(ask->answer);
        memory_give(ask);
    }
}
