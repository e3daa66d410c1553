/* SPDX-License-Identifier: MIT */
/* The parts of a simulated world; for its files alone, which call each other downwards:
 *
 *   simulated.c         the link's table, and the driver's functions
 *   simulated_peers.c   ends that are there for each other, gone, forgotten, dead
 *   simulated_wire.c    messages: when they leave, arrive and are taken
 *   simulated_queue.c   events by time, ranks that can go on, what collect tells */
#ifndef LINK_SIMULATED_PARTS_H
#define LINK_SIMULATED_PARTS_H

#include "base/base.h"
#include "link/simulated.h"

struct channel;

struct receive {
    struct receive *next;
    void *p, *op;
    size_t bytes;
    uint64_t since_ns;
};

enum message_state {
    MESSAGE_WAITS,              /* with its sender */
    MESSAGE_MOVES,              /* has left */
    MESSAGE_HERE                /* all of it has come */
};

struct simulated_message {
    struct simulated_message *next;
    struct channel *channel;
    const void *p;              /* the sender's, or copy */
    size_t bytes;
    void *op;
    struct receive *receive;    /* the receive that it will end */
    uint64_t tail_ns;           /* its last byte cannot come before */
    enum message_state state;
    int n_events;               /* events in the heap that have the message */
    bool word, copied;
    bool open;                  /* not ended for its sender yet */
    bool announced;             /* bulk: its receiver knows of it */
    bool dropped;               /* out of its channel; its last event frees it */
    unsigned char copy[];
};

/* The messages from one rank to another with one tag and series. Messages and receives
 * are paired in their orders as soon as both are there, unless the receives are from
 * LINK_ANY. Those lie in a channel whose `from` is NULL, and take the channels that wait
 * in its line in turn. */
struct channel {
    struct channel *chain;      /* of the receiver's table, */
    struct channel *of_peer;    /* and of its view of the sender */
    struct end *from, *to;
    struct channel *any;        /* where the receives from LINK_ANY are */
    uint64_t series;
    int tag, copies;            /* words that are copied and not taken */
    struct simulated_message *first, *last, *unpaired;
    int n_events;               /* of its messages, in the heap */
    struct receive *receives, *last_receive, *spare;    /* spare: not paired yet */
    bool in_line;
    struct channel *line, *line_last, *line_next, *line_before;
};

enum { TABLE_FIRST = 16 };

/* One rank as another sees it. */
enum view_state { VIEW_NONE, VIEW_THERE, VIEW_GONE };

struct simulated_view {
    uint64_t generation;
    uint64_t below;             /* this end has forgotten all lower series of the peer */
    enum view_state state;
    struct channel *channels;   /* from there to here */
};

struct span {
    uint64_t from_ns, until_ns;
};

struct end {
    struct link link;           /* first */
    struct simulated *world;
    int rank, host;
    bool met, alive;            /* its link is open; it has not died */
    uint64_t generation;        /* of its link, or of the last one; 0: it has had none */
    struct channel **table;     /* by sender and tag */
    size_t table_room, n_channels;
    struct simulated_view *views;         /* (ranks) NULL: the world is fixed */
    uint64_t below;             /* it has forgotten all lower series of all peers */
    size_t n_open;              /* messages that it has sent and that have not ended */
    /* news for the next collect, and those of the last one */
    struct link_ended *ended, *told;
    int n_ended, ended_room, told_room;
    struct link_peer *peers, *told_peers;
    int n_peers, peers_room, told_peers_room;
    /* going on */
    bool asleep, queued;
    uint64_t wakes_ns;          /* when its sleep ends */
    uint64_t timer_ns;          /* of the first WAKE in the heap; 0: there is none */
    uint64_t paused_ns;         /* until then */
    struct end *next_ready;
    int side;                   /* of a partition, */
    struct span apart;          /* and when */
};

enum event_kind { EVENT_ANNOUNCE, EVENT_LEAVE, EVENT_HEAD, EVENT_TAIL, EVENT_WAKE,
                  EVENT_CONNECT, EVENT_GONE, EVENT_FAULT };

struct event {
    uint64_t at_ns, order;
    enum event_kind kind;
    int a, b;                   /* CONNECT, GONE: ranks, with generations; WAKE: a */
    uint64_t a_is, b_is;
    void *of;                   /* a message, or a fault */
};

/* One direction of a host's card: the times until which it is busy. */
struct way {
    uint64_t words_ns, bulk_ns;
};

/* A host's network card. */
struct host_card {
    struct way out, in;
    double factor;
};

/* Records that lie ready to be used again, by kind; linked by their first word. */
enum record { RECORD_RECEIVE, RECORD_WORD, RECORD_BULK, RECORDS };

struct simulated {
    struct simulated_options options;
    void *records[RECORDS];
    struct rng rng;
    uint64_t now_ns, n_pushed, generations;
    struct event *heap;
    size_t n_events, events_room;
    struct end *ends;           /* (ranks) */
    struct host_card *hosts;
    struct end *ready, *last_ready, *running;
    struct span *cuts;          /* (ranks, ranks) NULL: there has been none */
    bool failed;                /* no memory */
    struct simulated_figures figures;
    char (*names)[LINK_NAME_ROOM];
    int number;                 /* of the world, in this process */
};

/* True: messages from peer to end may arrive. */
static inline bool simulated_hears(const struct end *end, const struct end *peer,
                                   uint64_t series)
{
    const struct simulated_view *view = end->views ? &end->views[peer->rank] : NULL;
    return !view || (view->state != VIEW_NONE &&
                     (!series || (series >= view->below && series >= end->below)));
}

/* --- simulated_queue.c --- */

void simulated_push(struct simulated *world, struct event event);
struct event simulated_pop(struct simulated *world);
void simulated_ready(struct end *end);          /* the end can go on, also if it slept */
void simulated_ended(struct end *end, struct link_ended ended);
void simulated_told(struct end *end, struct link_peer peer);
/* Finds the channel, or makes it. from NULL: of receives from LINK_ANY. NULL: no
 * memory. */
struct channel *simulated_channel(struct end *to, struct end *from, int tag,
                                  uint64_t series);
void simulated_channel_drop(struct channel *channel);       /* an empty one */
bool simulated_grow(void *array, int *room, int n, size_t size);     /* for n + 1 */
void *simulated_record(struct simulated *world, enum record kind);  /* NULL: no memory */
void simulated_give_record(struct simulated *world, enum record kind, void *record);

/* --- simulated_wire.c --- */

/* The time, from a given one on, when messages from one rank reach the other; UINT64_MAX:
 * never. */
uint64_t simulated_arrives(const struct simulated *world, const struct end *from,
                           const struct end *to, uint64_t at_ns);
bool simulated_send(struct channel *channel, const void *p, size_t bytes, void *op);
bool simulated_receive(struct channel *channel, void *p, size_t bytes, void *op);
void simulated_announced(struct simulated_message *message);
void simulated_leaves(struct simulated_message *message);
void simulated_head(struct simulated_message *message);
void simulated_tail(struct simulated_message *message);
/* Reads no more of the sender's memory; words that have left arrive. tell: the sender's
 * messages end as failed. */
void simulated_sender_stops(struct channel *channel, bool tell);
/* Writes no more to the receiver's memory, and nothing arrives. tell: the receiver's
 * receives end as failed. */
void simulated_receiver_stops(struct channel *channel, bool tell);
/* The same, but messages that arrive wait for the rank's next end. */
void simulated_receiver_closes(struct channel *channel);
void simulated_channel_free(struct channel *channel);
/* if the message was dropped */
void simulated_message_free(struct simulated_message *message);

/* --- simulated_peers.c --- */

void simulated_meets(struct end *end);
void simulated_connects(struct simulated *world, const struct event *event);
void simulated_finds_gone(struct simulated *world, const struct event *event);
void simulated_forgets(struct end *end, struct end *peer);
/* The end forgets all series below this one; peer NULL: of all peers. */
void simulated_through(struct end *end, struct end *peer, uint64_t below);
void simulated_dies(struct end *end, bool told);
bool simulated_closes(struct end *end);             /* link_type.close */

#endif
