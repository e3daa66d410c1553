/* SPDX-License-Identifier: MIT */
/* The connections of a simulated world. Each end has a view of each other rank. Two ends
 * are connected when both views are THERE, each with the other's generation:
 *
 *   meeting     an end that meets dials all others. A view of an older generation becomes
 *               GONE, and the connection waits until that end has forgotten it
 *   dying       the views of others become GONE, a latency later, if the host tells them
 *   forgetting  the view becomes NONE, and the other's GONE, a latency later
 *
 * A view that is NONE keeps the generation that was forgotten, which never comes again.
 * In a fixed world there are no views: all ranks are there. */
#include "link/simulated_parts.h"

#include <assert.h>

#define GONE_AGAIN_NS UINT64_C(1000000)

static struct simulated_view *view_of(struct end *end, const struct end *peer)
{
    return &end->views[peer->rank];
}

/* --- meeting --- */

static void dial(struct end *end, struct end *peer)
{
    struct simulated *world = end->world;

    simulated_push(
        world, (struct event){.at_ns = simulated_arrives(world, end, peer, world->now_ns),
                              .kind = EVENT_CONNECT,
                              .a = end->rank,
                              .b = peer->rank,
                              .a_is = end->generation,
                              .b_is = peer->generation});
}

void simulated_meets(struct end *end)
{
    struct simulated *world = end->world;

    end->generation = ++world->generations;
    end->below = 0;
    for (int k = 0; end->views && k < world->options.ranks; k++) {
        end->views[k] = (struct simulated_view){.channels = end->views[k].channels};
        if (world->ends[k].alive && k != end->rank)
            dial(end, &world->ends[k]);
    }
}

/* True: end is ready for this generation of its peer. */
static bool accepts(struct end *end, const struct end *peer)
{
    struct simulated_view *view = view_of(end, peer);

    if (view->state == VIEW_THERE && view->generation != peer->generation) {
        view->state = VIEW_GONE;
        simulated_told(end, (struct link_peer){peer->rank, view->generation, true, NULL});
    }
    return view->state == VIEW_NONE && view->generation != peer->generation;
}

static void come(struct end *end, const struct end *peer)
{
    struct simulated_view *view = view_of(end, peer);

    view->generation = peer->generation;
    view->state = VIEW_THERE;
    simulated_told(end, (struct link_peer){peer->rank, peer->generation, false, NULL});
}

/* The channels from one end to another, without those of receives from LINK_ANY. */
static struct channel *channels_of(struct end *to, const struct end *from)
{
    return to->views ? view_of(to, from)->channels : NULL;
}

/* Calls a function for all channels from one end to another. */
static void each_of_peer(struct end *to, const struct end *from,
                         void (*act)(struct channel *, bool), bool tell)
{
    for (struct channel *c = channels_of(to, from); c; c = c->of_peer)
        act(c, tell);
}

/* Calls a function for all channels of a receiver. */
static void each_channel(struct end *to, void (*act)(struct channel *, bool), bool tell)
{
    for (size_t i = 0; i < to->table_room; i++)
        for (struct channel *c = to->table[i]; c; c = c->chain)
            act(c, tell);
}

void simulated_connects(struct simulated *world, const struct event *event)
{
    struct end *a = &world->ends[event->a], *b = &world->ends[event->b];

    if (!a->alive || !b->alive || a->generation != event->a_is ||
        b->generation != event->b_is)
        return;
    bool one = accepts(a, b), other = accepts(b, a);
    if (one && other) {
        /* messages that are still on their way are of processes before these two */
        each_of_peer(a, b, simulated_receiver_stops, true);
        each_of_peer(b, a, simulated_receiver_stops, true);
        come(a, b);
        come(b, a);
    }
}

/* --- going --- */

static void tell_gone(struct end *end, const struct end *peer)
{
    struct simulated *world = end->world;

    simulated_push(
        world, (struct event){.at_ns = simulated_arrives(world, peer, end, world->now_ns),
                              .kind = EVENT_GONE,
                              .a = end->rank,
                              .b = peer->rank,
                              .a_is = end->generation,
                              .b_is = peer->generation});
}

static bool knows(struct end *end, const struct end *peer)
{
    const struct simulated_view *view = view_of(end, peer);
    return end->alive && view->state == VIEW_THERE &&
           view->generation == peer->generation;
}

/* Whether a message that left before its sender went has not come yet. */
static bool still_comes(struct end *end, const struct end *peer)
{
    for (const struct channel *c = channels_of(end, peer); c; c = c->of_peer)
        for (const struct simulated_message *m = c->first; m; m = m->next)
            if (m->copied && m->state == MESSAGE_MOVES)
                return true;
    return false;
}

/* The end of a connection comes after all messages that were sent on it. */
void simulated_finds_gone(struct simulated *world, const struct event *event)
{
    struct end *end = &world->ends[event->a], *peer = &world->ends[event->b];
    struct simulated_view *view = view_of(end, peer);

    if (!end->alive || end->generation != event->a_is || view->state != VIEW_THERE ||
        view->generation != event->b_is)
        return;
    if (still_comes(end, peer)) {
        struct event later = *event;
        later.at_ns = world->now_ns + GONE_AGAIN_NS;
        simulated_push(world, later);
        return;
    }
    view->state = VIEW_GONE;
    simulated_told(end, (struct link_peer){peer->rank, view->generation, true, NULL});
}

/* Frees an empty channel. Messages on their way in it are thrown away when they come
 * (simulated_tail). */
static void stop_receiving(struct end *end, const struct end *peer, uint64_t below)
{
    for (size_t i = 0; i < end->table_room; i++)
        for (struct channel *c = end->table[i], *next; c; c = next) {
            next = c->chain;
            if (!c->series || c->series >= below || (peer && c->from != peer))
                continue;
            simulated_receiver_stops(c, true);
            if (!c->first && !c->n_events)
                simulated_channel_drop(c);
        }
}

static void stop_sending(struct end *end, struct end *peer, uint64_t below)
{
    for (struct channel *c = channels_of(peer, end); c && end->n_open; c = c->of_peer)
        if (c->series && c->series < below)
            simulated_sender_stops(c, true);
}

void simulated_through(struct end *end, struct end *peer, uint64_t below)
{
    uint64_t *through = peer ? &view_of(end, peer)->below : &end->below;

    *through = below > *through ? below : *through;
    if (peer)
        stop_sending(end, peer, below);
    for (int k = 0; !peer && end->n_open && k < end->world->options.ranks; k++)
        if (k != end->rank)
            stop_sending(end, &end->world->ends[k], below);
    stop_receiving(end, peer, below);
}

void simulated_forgets(struct end *end, struct end *peer)
{
    struct simulated_view *view = view_of(end, peer);

    if (view->state == VIEW_NONE)
        return;
    view->state = VIEW_NONE;
    each_of_peer(peer, end, simulated_sender_stops, true);
    each_of_peer(end, peer, simulated_receiver_stops, true);
    if (knows(peer, end))
        tell_gone(peer, end);
    if (peer->alive && peer->generation != view->generation)
        dial(end, peer);
}

void simulated_dies(struct end *end, bool told)
{
    struct simulated *world = end->world;

    assert(end->views);
    end->alive = end->asleep = false;
    end->n_ended = end->n_peers = 0;
    for (int k = 0; k < world->options.ranks; k++) {
        struct end *other = &world->ends[k];
        view_of(end, other)->state = VIEW_NONE;
        each_of_peer(other, end, simulated_sender_stops, false);
        if (told && knows(other, end))
            tell_gone(other, end);
    }
    each_channel(end, simulated_receiver_stops, false);
    end->n_open = 0;
}

/* --- closing --- */

/* Messages that are on their way go on, as MPI's do. */
static void let_go(struct end *to, struct end *from)
{
    for (size_t i = 0; i < to->table_room && from->n_open; i++)
        for (struct channel *c = to->table[i]; c; c = c->chain)
            for (struct simulated_message *m = c->from == from ? c->first : NULL; m;
                 m = m->next) {
                from->n_open -= m->open;
                m->open = false;
            }
}

static void close_receiver(struct channel *channel, bool tell)
{
    (void)tell;
    simulated_receiver_closes(channel);
}

bool simulated_closes(struct end *end)
{
    struct simulated *world = end->world;
    bool quiet = end->views || !end->n_open;    /* nothing reads the end's own memory */

    if (end->views && end->alive)
        simulated_dies(end, true);
    for (int k = 0; end->n_open && k < world->options.ranks; k++)
        let_go(&world->ends[k], end);
    if (!end->views)
        each_channel(end, close_receiver, false);
    end->met = end->alive = end->asleep = false;
    end->n_ended = end->n_peers = 0;
    return quiet;
}
