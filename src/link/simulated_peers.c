/* SPDX-License-Identifier: MIT */
/* Of a simulated world: who is there for whom. Each end has a view of each other rank.
 * Two ends are connected when both views are THERE, each with the other's generation:
 *
 *   meeting     an end that meets dials all others. A view of an older generation becomes
 *               GONE, and the connection waits until that end has forgotten it
 *   dying       the views of others become GONE, a latency later, if the host tells them
 *   forgetting  the view becomes NONE, and the other's GONE, a latency later
 *
 * A view that is NONE keeps the generation that was forgotten, which never comes again.
 * In a fixed world there are no views: everybody is there. */
#include "link/simulated_parts.h"

#include <assert.h>

static struct view *view_of(struct end *end, const struct end *peer)
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
    for (int k = 0; end->views && k < world->options.ranks; k++) {
        end->views[k] = (struct view){0};
        if (world->ends[k].alive && k != end->rank)
            dial(end, &world->ends[k]);
    }
}

/* True: end is ready for this generation of its peer. */
static bool accepts(struct end *end, const struct end *peer)
{
    struct view *view = view_of(end, peer);

    if (view->state == VIEW_THERE && view->generation != peer->generation) {
        view->state = VIEW_GONE;
        simulated_told(end, (struct link_peer){peer->rank, view->generation, true});
    }
    return view->state == VIEW_NONE && view->generation != peer->generation;
}

static void come(struct end *end, const struct end *peer)
{
    *view_of(end, peer) = (struct view){peer->generation, VIEW_THERE};
    simulated_told(end, (struct link_peer){peer->rank, peer->generation, false});
}

void simulated_connects(struct simulated *world, const struct event *event)
{
    struct end *a = &world->ends[event->a], *b = &world->ends[event->b];

    if (!a->alive || !b->alive || a->generation != event->a_is ||
        b->generation != event->b_is)
        return;
    bool one = accepts(a, b), other = accepts(b, a);
    if (one && other) {
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
    const struct view *view = view_of(end, peer);
    return end->alive && view->state == VIEW_THERE &&
           view->generation == peer->generation;
}

void simulated_finds_gone(struct simulated *world, const struct event *event)
{
    struct end *end = &world->ends[event->a], *peer = &world->ends[event->b];
    struct view *view = view_of(end, peer);

    if (!end->alive || end->generation != event->a_is || view->state != VIEW_THERE ||
        view->generation != event->b_is)
        return;
    view->state = VIEW_GONE;
    simulated_told(end, (struct link_peer){peer->rank, view->generation, true});
}

/* All channels from one end to another, and all of a receiver, by a function. */
static void each_channel(struct end *to, const struct end *from,
                         void (*act)(struct channel *, bool), bool tell)
{
    for (size_t i = 0; i < to->table_room; i++)
        for (struct channel *c = to->table[i]; c; c = c->chain)
            if (!from || c->from == from)
                act(c, tell);
}

void simulated_forgets(struct end *end, struct end *peer)
{
    struct view *view = view_of(end, peer);

    if (view->state == VIEW_NONE)
        return;
    view->state = VIEW_NONE;
    each_channel(peer, end, simulated_sender_stops, true);
    each_channel(end, peer, simulated_receiver_stops, true);
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
        each_channel(other, end, simulated_sender_stops, false);
        if (told && knows(other, end))
            tell_gone(other, end);
    }
    each_channel(end, NULL, simulated_receiver_stops, false);
}

/* --- closing --- */

/* What is on its way goes on, as MPI's does. True: nothing of the end's own memory is. */
static bool let_go(struct end *to, const struct end *from)
{
    bool quiet = true;

    for (size_t i = 0; i < to->table_room; i++)
        for (struct channel *c = to->table[i]; c; c = c->chain)
            for (struct message *m = c->from == from ? c->first : NULL; m; m = m->next) {
                quiet = quiet && !m->open;
                m->open = false;
            }
    return quiet;
}

static void close_receiver(struct channel *channel, bool tell)
{
    (void)tell;
    simulated_receiver_closes(channel);
}

bool simulated_closes(struct end *end)
{
    struct simulated *world = end->world;
    bool quiet = true;

    if (end->views && end->alive)
        simulated_dies(end, true);
    for (int k = 0; !end->views && k < world->options.ranks; k++)
        quiet &= let_go(&world->ends[k], end);
    if (!end->views)
        each_channel(end, NULL, close_receiver, false);
    end->met = end->alive = end->asleep = false;
    end->n_ended = end->n_peers = 0;
    return quiet;
}
