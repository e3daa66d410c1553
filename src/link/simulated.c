/* SPDX-License-Identifier: MIT */
/* The simulated link: its table, and the functions by which a driver takes time forward
 * (simulated.h). An end does nothing by itself: its functions push events, and
 * simulated_run makes them happen. sleep returns at once; the driver goes on with other
 * ranks meanwhile.
 *
 * The world owns all memory that its ends use, so that a message on its way outlives an
 * end that has closed or died. */
#include "link/simulated.h"
#include "link/simulated_parts.h"

#include <assert.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#define BEGIN_NS UINT64_C(1000000000)

static struct end *end_of(struct link *link)
{
    return (struct end *)(void *)link;
}

/* --- the table --- */

static void look_around(struct end *end, struct link_place *place)
{
    const struct simulated *world = end->world;
    int ranks = world->options.ranks, per = world->options.per_host,
        left = ranks - end->host * per;

    *place = (struct link_place){.rank = end->rank,
                                 .size = ranks,
                                 .generation = end->generation,
                                 .fixed = !end->views,
                                 .star = world->options.star,
                                 .wakes = true,
                                 .host = end->host * per,
                                 .host_number = end->host,
                                 .local_rank = end->rank % per,
                                 .local_size = left < per ? left : per,
                                 .hosts = (ranks + per - 1) / per,
                                 .most_local = per < ranks ? per : ranks,
                                 .version = "virtual time",
                                 .names = (const char(*)[LINK_NAME_ROOM])world->names};
    snprintf(place->job, sizeof place->job, "simulated-%ld-%d-%d", (long)getpid(),
             world->number, end->host);
}

static struct link *meet(struct link_entry *entry, struct link_place *place)
{
    struct simulated *world = entry->context;
    int rank = entry->rank, ranks = world->options.ranks;

    for (int k = 0; rank < 0 && k < ranks; k++)
        rank = world->ends[k].met ? rank : k;
    if (rank < 0 || rank >= ranks || world->ends[rank].met) {
        entry->status = log_fail(entry->log, DESCANT_BAD_RANK,
                                 "rank %d is taken, or none of %d", rank, ranks);
        return NULL;
    }
    struct end *end = &world->ends[rank];
    if (!world->options.fixed && !end->views &&
        !(end->views = memory_take_array((size_t)ranks, sizeof *end->views))) {
        entry->status =
            log_fail(entry->log, DESCANT_MEMORY, "no memory for %d peers", ranks);
        return NULL;
    }
    end->link.type = &link_simulated;
    simulated_meets(end);
    end->met = end->alive = true;
    simulated_ready(end);
    look_around(end, place);
    return &end->link;
}

/* Where the peer is not there, the message has ended. */
static bool is_absent(struct end *end, const struct link_message *message)
{
    int rank = message->rank;

    assert(rank != end->rank && rank < end->world->options.ranks);
    if (rank == LINK_ANY ||
        simulated_hears(end, &end->world->ends[rank], message->series))
        return false;
    simulated_ended(end, (struct link_ended){.op = message->op, .from = rank,
                                             .failed = true});
    return true;
}

/* A fixed world has one series. */
static uint64_t series_of(const struct end *end, const struct link_message *message)
{
    return end->views ? message->series : 0;
}

static bool send_to(struct link *link, const void *p, size_t bytes,
                    const struct link_message *message)
{
    struct end *end = end_of(link);
    struct simulated *world = end->world;

    assert(message->rank >= 0 && message->tag >= 0 && message->tag < LINK_TAGS);
    if (!end->alive || is_absent(end, message))
        return !world->failed;
    struct channel *channel = simulated_channel(&world->ends[message->rank], end,
                                                message->tag, series_of(end, message));
    world->failed =
        !channel || !simulated_send(channel, p, bytes, message->op) || world->failed;
    return !world->failed;
}

static bool receive_from(struct link *link, void *p, size_t bytes,
                         const struct link_message *message)
{
    struct end *end = end_of(link);
    struct simulated *world = end->world;

    assert(message->rank >= LINK_ANY && message->tag >= 0 && message->tag < LINK_TAGS);
    if (!end->alive || is_absent(end, message))
        return !world->failed;
    assert(message->rank >= 0 || !message->series);
    struct channel *channel =
        simulated_channel(end, message->rank >= 0 ? &world->ends[message->rank] : NULL,
                          message->tag, series_of(end, message));
    world->failed =
        !channel || !simulated_receive(channel, p, bytes, message->op) || world->failed;
    return !world->failed;
}

static void tell_ended(struct end *end, struct link_news *news)
{
    struct link_ended *told = end->ended;
    int room = end->ended_room;

    news->ended = told;
    news->n_ended = end->n_ended;
    end->ended = end->told;
    end->ended_room = end->told_room;
    end->told = told;
    end->told_room = room;
    end->n_ended = 0;
}

static void tell_peers(struct end *end, struct link_news *news)
{
    struct link_peer *told = end->peers;
    int room = end->peers_room;

    news->peers = told;
    news->n_peers = end->n_peers;
    end->peers = end->told_peers;
    end->peers_room = end->told_peers_room;
    end->told_peers = told;
    end->told_peers_room = room;
    end->n_peers = 0;
}

static bool collect(struct link *link, struct link_news *news)
{
    struct end *end = end_of(link);

    *news = (struct link_news){.now_ns = end->world->now_ns};
    if (end->world->failed)
        return false;
    if (end->n_ended)
        tell_ended(end, news);
    if (end->n_peers)
        tell_peers(end, news);
    return true;
}

static void set_timer(struct end *end)
{
    if (end->timer_ns && end->timer_ns <= end->wakes_ns)
        return;                 /* set again when the pause is over */
    end->timer_ns = end->wakes_ns;
    simulated_push(end->world, (struct event){.at_ns = end->wakes_ns, .kind = EVENT_WAKE,
                                              .a = end->rank});
}

static void wake_at(struct end *end, uint64_t at_ns)
{
    end->asleep = true;
    end->wakes_ns = at_ns;
    set_timer(end);
}

static void sleep_for(struct link *link, uint64_t most_ns, uint64_t until_ns)
{
    struct end *end = end_of(link);
    uint64_t now = end->world->now_ns,
             at = most_ns < UINT64_MAX - now ? now + most_ns : UINT64_MAX;

    if (end->n_ended || end->n_peers || !end->alive)
        return;
    if (until_ns && until_ns < at)
        at = until_ns > now ? until_ns : now;
    wake_at(end, at);
}

static bool forget(struct link *link, int rank, uint64_t below)
{
    struct end *end = end_of(link);
    struct end *peer = rank == LINK_ANY ? NULL : &end->world->ends[rank];

    if (end->views && end->alive && rank != end->rank) {
        if (below == LINK_PEER)
            simulated_forgets(end, peer);
        else
            simulated_through(end, peer, below);
    }
    return end->views != NULL;
}

static const char *why_of(const struct link *link)
{
    const struct end *end = (const struct end *)(const void *)link;
    return end->world->failed ? "no memory for a simulated world"
                              : "no rank comes or goes";
}

static bool close_end(struct link *link, bool together)
{
    (void)together;
    return simulated_closes(end_of(link));
}

const struct link_type link_simulated = {
    .version = LINK_VERSION,
    .name = "simulated",
    .meet = meet,
    .send = send_to,
    .receive = receive_from,
    .collect = collect,
    .sleep = sleep_for,
    .forget = forget,
    .why = why_of,
    .close = close_end,
};

/* --- the world --- */

static bool make_room(struct simulated *world)
{
    size_t ranks = (size_t)world->options.ranks;

    world->ends = memory_take_array(ranks, sizeof *world->ends);
    world->hosts = memory_take_array(ranks, sizeof *world->hosts);
    world->names = memory_take_array(ranks, sizeof *world->names);
    return world->ends && world->hosts && world->names;
}

struct simulated *simulated_create(const struct simulated_options *options)
{
    static atomic_int worlds;
    struct simulated *world = memory_take(sizeof *world);

    if (!world)
        return NULL;
    world->options = *options;
    world->options.per_host = options->per_host > 0 ? options->per_host : 1;
    world->number = atomic_fetch_add(&worlds, 1);
    world->now_ns = BEGIN_NS;
    rng_init(&world->rng, options->seed);
    if (!make_room(world)) {
        simulated_destroy(world);
        return NULL;
    }
    for (int k = 0; k < options->ranks; k++) {
        world->ends[k] =
            (struct end){.world = world, .rank = k, .host = k / world->options.per_host};
        world->hosts[k].factor = 1;
        snprintf(world->names[k], sizeof world->names[k], "host%d", world->ends[k].host);
    }
    return world;
}

static void free_end(struct end *end)
{
    assert(!end->met);
    for (size_t i = 0; i < end->table_room; i++)
        for (struct channel *c = end->table[i], *next; c; c = next) {
            next = c->chain;
            simulated_channel_free(c);
        }
    memory_give(end->table);
    memory_give(end->views);
    memory_give(end->ended);
    memory_give(end->told);
    memory_give(end->peers);
    memory_give(end->told_peers);
}

static bool is_of_message(const struct event *event)
{
    return event->kind <= EVENT_TAIL;
}

void simulated_destroy(struct simulated *world)
{
    if (!world)
        return;
    for (size_t i = 0; i < world->n_events; i++) {
        struct event *event = &world->heap[i];
        if (event->kind == EVENT_FAULT)
            memory_give(event->of);
        if (!is_of_message(event))
            continue;
        struct simulated_message *message = event->of;
        message->n_events--;
        simulated_message_free(message);
    }
    for (int k = 0; world->ends && k < world->options.ranks; k++)
        free_end(&world->ends[k]);
    for (enum record kind = 0; kind < RECORDS; kind++)
        while (world->records[kind])
            memory_give(simulated_record(world, kind));
    memory_give(world->heap);
    memory_give(world->ends);
    memory_give(world->hosts);
    memory_give(world->names);
    memory_give(world->cuts);
    memory_give(world);
}

/* --- faults --- */

bool simulated_fault(struct simulated *world, const struct simulated_fault *fault)
{
    size_t ranks = (size_t)world->options.ranks;

    if (fault->kind == SIMULATED_CUT && !world->cuts)
        world->cuts = memory_take_array(ranks * ranks, sizeof *world->cuts);
    if (world->failed || (fault->kind == SIMULATED_CUT && !world->cuts))
        return false;
    struct simulated_fault *copy = memory_take(sizeof *copy);
    if (!copy)
        return false;
    *copy = *fault;
    simulated_push(world, (struct event){.at_ns = fault->at_ns,
                                         .kind = EVENT_FAULT,
                                         .of = copy,
                                         .a = fault->rank,
                                         .b = fault->other});
    if (world->failed)
        memory_give(copy);
    return !world->failed;
}

/* A cut that begins during another one makes that longer. */
static void cut(struct simulated *world, const struct simulated_fault *fault)
{
    int a = fault->rank, b = fault->other, low = a < b ? a : b, high = a < b ? b : a;
    struct span *span =
        &world->cuts[(size_t)low * (size_t)world->options.ranks + (size_t)high];

    if (span->until_ns <= world->now_ns)
        *span = (struct span){world->now_ns, fault->until_ns};
    else if (fault->until_ns > span->until_ns)
        span->until_ns = fault->until_ns;
}

static void happen(struct simulated *world, struct simulated_fault *fault)
{
    struct end *end = &world->ends[fault->rank];

    switch (fault->kind) {
    case SIMULATED_SLOW:
        world->hosts[end->host].factor = fault->factor;
        break;
    case SIMULATED_PAUSE:
        end->paused_ns =
            fault->until_ns > end->paused_ns ? fault->until_ns : end->paused_ns;
        break;
    case SIMULATED_CUT:
        cut(world, fault);
        break;
    case SIMULATED_PART:
        end->side = fault->other;
        end->apart = (struct span){world->now_ns, fault->until_ns};
        break;
    case SIMULATED_DIE:
    case SIMULATED_VANISH:
        if (end->alive)
            simulated_dies(end, fault->kind == SIMULATED_DIE);
        break;
    }
    memory_give(fault);
}

bool simulated_lives(const struct simulated *world, int rank)
{
    return world->ends[rank].alive;
}

/* --- time --- */

static void mix(struct simulated *world, uint64_t value)
{
    uint64_t hash = (world->figures.trace ^ value) * UINT64_C(0x9e3779b97f4a7c15);
    world->figures.trace = hash ^ hash >> 32;
}

static void trace(struct simulated *world, const struct event *event)
{
    world->figures.events++;
    mix(world, event->at_ns * 8 + (uint64_t)event->kind);
    if (is_of_message(event)) {
        const struct simulated_message *m = event->of;
        mix(world,
            (uint64_t)m->channel->from->rank << 32 | (uint64_t)m->channel->to->rank);
        mix(world, m->bytes * LINK_TAGS + (uint64_t)m->channel->tag);
    } else {
        mix(world, (uint64_t)event->a << 32 | (uint64_t)event->b);
    }
}

static void move(struct event *event)
{
    struct simulated_message *message = event->of;

    message->n_events--;
    message->channel->n_events--;
    if (message->dropped)
        simulated_message_free(message);
    else if (event->kind == EVENT_ANNOUNCE)
        simulated_announced(message);
    else if (event->kind == EVENT_LEAVE)
        simulated_leaves(message);
    else if (event->kind == EVENT_HEAD)
        simulated_head(message);
    else
        simulated_tail(message);
}

static void wake(struct end *end, const struct event *event)
{
    if (end->timer_ns == event->at_ns)
        end->timer_ns = 0;
    if (end->asleep && end->wakes_ns <= end->world->now_ns)
        simulated_ready(end);
    else if (end->asleep)
        set_timer(end);
}

static void step(struct simulated *world)
{
    struct event event = simulated_pop(world);

    if (event.at_ns > world->now_ns)
        world->now_ns = event.at_ns;
    trace(world, &event);
    if (is_of_message(&event))
        move(&event);
    else if (event.kind == EVENT_WAKE)
        wake(&world->ends[event.a], &event);
    else if (event.kind == EVENT_CONNECT)
        simulated_connects(world, &event);
    else if (event.kind == EVENT_GONE)
        simulated_finds_gone(world, &event);
    else
        happen(world, event.of);
}

uint64_t simulated_now(const struct simulated *world)
{
    return world->now_ns;
}

uint64_t simulated_next(const struct simulated *world)
{
    return world->n_events ? world->heap[0].at_ns : UINT64_MAX;
}

void simulated_run(struct simulated *world, uint64_t until_ns)
{
    while (!world->failed && simulated_next(world) <= until_ns && until_ns < UINT64_MAX)
        step(world);
    if (until_ns > world->now_ns && until_ns < UINT64_MAX)
        world->now_ns = until_ns;
}

/* The first in the queue that can go on. */
static struct end *take_ready(struct simulated *world)
{
    while (world->ready) {
        struct end *end = world->ready;
        world->ready = end->next_ready;
        end->queued = false;
        if (end->alive && end->paused_ns <= world->now_ns)
            return end;
        if (end->alive)
            wake_at(end, end->paused_ns);
    }
    return NULL;
}

int simulated_turn(struct simulated *world, uint64_t until_ns)
{
    struct end *end = world->running;

    if (end && end->alive && !end->asleep)
        simulated_ready(end);
    world->running = NULL;
    while (!world->failed && simulated_next(world) <= world->now_ns &&
           world->heap[0].kind == EVENT_CONNECT)
        step(world);            /* a rank that meets a thousand at once is woken once */
    while (!(end = take_ready(world))) {
        uint64_t next = simulated_next(world);
        if (world->failed || next > until_ns || next == UINT64_MAX) {
            simulated_run(world, until_ns);
            return -1;
        }
        step(world);
    }
    world->running = end;
    return end->rank;
}

bool simulated_sleeps(const struct simulated *world, int rank)
{
    return world->ends[rank].asleep;
}

struct simulated_figures simulated_figures(const struct simulated *world)
{
    return world->figures;
}
