/* SPDX-License-Identifier: MIT */
/* The order in which things happen in a simulated world. Events lie in a binary heap by
 * their time, and events of one time come in the order in which they were pushed, so that
 * a world is the same each time that it runs. Ranks that can go on are in a queue.
 * Channels are found by a table of their receiver. So no step looks at more than a few of
 * the messages, ranks or channels, however many there are.
 *
 * Where memory runs out the world has failed: it does no more, and collect says so. */
#include "link/simulated_parts.h"

#include <string.h>

enum { ROOM_FIRST = 16, EVENTS_FIRST = 256 };

/* --- room --- */

static void *more_room(void *old, size_t n, size_t room, size_t size)
{
    void *more = memory_take_array(room, size);

    if (more && n)
        memcpy(more, old, n * size);
    if (more)
        memory_give(old);
    return more;
}

bool simulated_grow(void *array, int *room, int n, size_t size)
{
    void *old;
    int wanted = *room ? 2 * *room : ROOM_FIRST;

    if (n < *room)
        return true;
    memcpy(&old, array, sizeof old);
    void *more = more_room(old, (size_t)n, (size_t)wanted, size);
    if (!more)
        return false;
    memcpy(array, &more, sizeof more);
    *room = wanted;
    return true;
}

void *simulated_record(struct simulated *world, enum record kind)
{
    static const size_t sizes[RECORDS] = {
        [RECORD_RECEIVE] = sizeof(struct receive),
        [RECORD_WORD] = sizeof(struct simulated_message) + LINK_WORD,
        [RECORD_BULK] = sizeof(struct simulated_message),
    };
    void *record = world->records[kind];

    if (!record)
        return memory_take(sizes[kind]);
    memcpy(&world->records[kind], record, sizeof record);
    return record;
}

void simulated_give_record(struct simulated *world, enum record kind, void *record)
{
    if (!record)
        return;
    memcpy(record, &world->records[kind], sizeof record);
    world->records[kind] = record;
}

/* --- events --- */

static bool before(const struct event *a, const struct event *b)
{
    return a->at_ns < b->at_ns || (a->at_ns == b->at_ns && a->order < b->order);
}

void simulated_push(struct simulated *world, struct event event)
{
    if (world->n_events == world->events_room) {
        size_t room = world->events_room ? 2 * world->events_room : EVENTS_FIRST;
        struct event *more = more_room(world->heap, world->n_events, room, sizeof *more);
        if (!more) {
            world->failed = true;
            return;
        }
        world->heap = more;
        world->events_room = room;
    }
    size_t at = world->n_events++;
    event.order = world->n_pushed++;
    for (; at && before(&event, &world->heap[(at - 1) / 2]); at = (at - 1) / 2)
        world->heap[at] = world->heap[(at - 1) / 2];
    world->heap[at] = event;
}

struct event simulated_pop(struct simulated *world)
{
    struct event *heap = world->heap, first = heap[0];
    size_t n = --world->n_events, at = 0;
    struct event last = heap[n];

    for (size_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && before(&heap[child + 1], &heap[child]))
            child++;
        if (!before(&heap[child], &last))
            break;
        heap[at] = heap[child];
    }
    heap[at] = last;
    return first;
}

/* --- ranks that can go on --- */

void simulated_ready(struct end *end)
{
    struct simulated *world = end->world;

    end->asleep = false;
    if (end->queued)
        return;
    end->queued = true;
    end->next_ready = NULL;
    if (world->ready)
        world->last_ready->next_ready = end;
    else
        world->ready = end;
    world->last_ready = end;
}

static void wake(struct end *end)
{
    if (end->asleep)
        simulated_ready(end);
}

void simulated_ended(struct end *end, struct link_ended ended)
{
    if (!simulated_grow(&end->ended, &end->ended_room, end->n_ended, sizeof ended)) {
        end->world->failed = true;
        return;
    }
    end->ended[end->n_ended++] = ended;
    wake(end);
}

void simulated_told(struct end *end, struct link_peer peer)
{
    if (!simulated_grow(&end->peers, &end->peers_room, end->n_peers, sizeof peer)) {
        end->world->failed = true;
        return;
    }
    end->peers[end->n_peers++] = peer;
    wake(end);
}

/* --- channels --- */

static size_t place(const struct end *to, const struct end *from, int tag,
                    uint64_t series)
{
    uint64_t key = (uint64_t)(from ? from->rank + 1 : 0) * LINK_TAGS + (uint64_t)tag +
                   (series << 20);
    return (size_t)(key * UINT64_C(0x9e3779b97f4a7c15) >> 32) & (to->table_room - 1);
}

static bool grow_table(struct end *to)
{
    struct channel **old = to->table;
    size_t n = to->table_room, room = n ? 4 * n : TABLE_FIRST;
    struct channel **table = memory_take_array(room, sizeof(struct channel *));

    if (!table)
        return false;
    to->table = table;
    to->table_room = room;
    for (size_t i = 0; i < n; i++)
        for (struct channel *c = old[i], *next; c; c = next) {
            struct channel **at = &table[place(to, c->from, c->tag, c->series)];
            next = c->chain;
            c->chain = *at;
            *at = c;
        }
    memory_give(old);
    return true;
}

static struct channel *add_channel(struct end *to, struct end *from, int tag,
                                   uint64_t series)
{
    bool has_any = from && !series;
    struct channel *c = NULL, *any = has_any ? simulated_channel(to, NULL, tag, 0) : NULL;

    if ((any || !has_any) && (to->n_channels < to->table_room || grow_table(to)))
        c = memory_take(sizeof *c);
    if (!c) {
        to->world->failed = true;
        return NULL;
    }
    struct channel **at = &to->table[place(to, from, tag, series)];
    *c = (struct channel){.chain = *at, .from = from, .to = to, .any = any, .tag = tag,
                          .series = series};
    *at = c;
    if (from && to->views) {
        c->of_peer = to->views[from->rank].channels;
        to->views[from->rank].channels = c;
    }
    to->n_channels++;
    return c;
}

struct channel *simulated_channel(struct end *to, struct end *from, int tag,
                                  uint64_t series)
{
    struct channel *c = to->table_room ? to->table[place(to, from, tag, series)] : NULL;

    while (c && (c->from != from || c->tag != tag || c->series != series))
        c = c->chain;
    return c ? c : add_channel(to, from, tag, series);
}

void simulated_channel_drop(struct channel *c)
{
    struct channel **at = &c->to->table[place(c->to, c->from, c->tag, c->series)];
    struct channel **of_peer = &c->to->views[c->from->rank].channels;

    while (*at != c)
        at = &(*at)->chain;
    *at = c->chain;
    while (*of_peer != c)
        of_peer = &(*of_peer)->of_peer;
    *of_peer = c->of_peer;
    c->to->n_channels--;
    memory_give(c);
}
