/* SPDX-License-Identifier: MIT */
/* The link over TCP: in a star, frames from one rank above 0 to another, which rank 0,
 * the hub, passes on. It looks at a frame's kind, length, turn and receiver alone.
 *
 *   1. The head of a frame names the other rank: on its way to the hub the receiver, and
 *      behind it the sender. The hub puts the sender there by the connection that the
 *      frame came over, so no rank speaks for another.
 *   2. Two ranks meet in turns (tcp_star.c). The hub throws away frames of another turn
 *      than the present one, and those for a rank that has no connection. Their sender
 *      keeps the messages, and sends them again in the next turn.
 *   3. The hub holds at most tcp_window bytes, and a frame's head, from each rank to each
 *      other one: 16 MiB of all that one rank has sent, but 4 MiB for each other rank at
 *      most and 64 KiB at least. The sender counts what it has sent in a turn, and the
 *      hub tells it how much it may have sent (ROOM). So the hub reads all connections at
 *      all times, and a slow rank holds up only what is for it.
 *   4. A frame is passed on once the hub has it whole, so the end of its sender cuts none
 *      short. */
#include "link/tcp_parts.h"

#include <stddef.h>
#include <string.h>

enum {
    HELD = 16 << 20, HELD_MOST = 4 << 20, HELD_LEAST = 64 << 10,
    SMALL = 2 << 10             /* such frames are copied, and several leave at once */
};

uint32_t tcp_window(const struct tcp_link *link)
{
    uint32_t share = HELD / (uint32_t)(link->size > 2 ? link->size - 2 : 1);

    return share > HELD_MOST ? HELD_MOST : share < HELD_LEAST ? HELD_LEAST : share;
}

bool tcp_tells_room(const struct tcp_link *link, const struct tcp_pair *pair)
{
    return pair->turn && pair->left - pair->told_left >= tcp_window(link) / 4;
}

/* The frame has left, or is thrown away. */
static void let_go(struct tcp_passed *f)
{
    struct tcp_link *link = f->to->link;
    struct tcp_pair *pair = &f->from->pairs[f->to->rank];

    pair->held -= (uint32_t)f->bytes;
    pair->left += f->turn == pair->turn ? f->bytes : 0;
    f->from->owes |= tcp_tells_room(link, pair);
    link->again |= f->from->owes || f->to->owes;    /* PEER may have waited for it, too */
    memory_give(f);
}

static void append(struct tcp_passed *f)
{
    struct tcp_peer *to = f->to;

    if (to->passed)
        to->last_passed->next = f;
    else
        to->passed = f;
    to->last_passed = f;
}

static bool is_passed_on(const struct tcp_frame *f)
{
    size_t most = f->what == TCP_BULK ? TCP_PART : f->what == TCP_WORD ? LINK_WORD : 0;

    return f->what >= TCP_WORD && f->what <= TCP_BYE && f->what != TCP_PEER &&
           f->bytes <= most && (f->what != TCP_BULK || f->bytes);
}

bool tcp_pass(struct tcp_connection *c, const struct tcp_frame *head,
              const unsigned char *bytes, const char **why)
{
    struct tcp_link *link = c->link;
    struct tcp_peer *from = c->peer, *to = &link->peers[head->rank];
    struct tcp_pair *pair = &from->pairs[to->rank];
    size_t all = sizeof *head + head->bytes;
    struct tcp_frame stamped = *head;

    c->stream = NULL;
    c->into = NULL;
    *why = "a frame that is not passed on";
    if (to == from || !is_passed_on(head))
        return false;
    if (!head->turn || head->turn != pair->turn || !to->connection)
        return true;                    /* 2 */
    *why = "more for another rank than there is room for";
    if (pair->held + all > tcp_window(link) + sizeof *head)
        return false;
    struct tcp_passed *f = memory_take(sizeof *f + all);
    if (!f) {
        *why = "no memory";
        return tcp_no_memory(link);
    }
    *f = (struct tcp_passed){.from = from, .to = to, .turn = head->turn, .bytes = all};
    stamped.rank = (uint16_t)from->rank;
    tcp_put(f->p, stamped, head->what == TCP_BULK ? NULL : bytes);
    pair->held += (uint32_t)all;
    if (head->what == TCP_BULK) {
        c->reads = f;
        c->into = f->p + sizeof stamped;
    } else {
        append(f);
    }
    return true;
}

void tcp_pass_read(struct tcp_connection *c)
{
    struct tcp_passed *f = c->reads;

    c->reads = NULL;
    c->into = NULL;
    if (f->turn == f->from->pairs[f->to->rank].turn && f->to->connection)
        append(f);
    else
        let_go(f);
}

size_t tcp_pass_on(struct tcp_connection *c, unsigned char *to, size_t room)
{
    struct tcp_passed *f = c->peer->passed;
    size_t bytes = f ? f->bytes : 0;

    if (!f)
        return 0;
    c->peer->passed = f->next;
    if (bytes <= room && bytes <= SMALL) {
        memcpy(to, f->p, bytes);
        let_go(f);
        return bytes;
    }
    c->writes = f;
    c->chunk = f->p;
    c->chunk_left = bytes;
    c->chunk_of = NULL;
    c->to = NULL;
    return 0;
}

void tcp_pass_written(struct tcp_connection *c)
{
    let_go(c->writes);
    c->writes = NULL;
    c->chunk = NULL;
}

void tcp_pass_drop(struct tcp_connection *c)
{
    if (c->reads) {
        let_go(c->reads);
        c->into = NULL;
    }
    if (c->writes)
        tcp_pass_written(c);
    c->reads = NULL;
}

void tcp_pass_clear(struct tcp_peer *to)
{
    while (to->passed) {
        struct tcp_passed *f = to->passed;
        to->passed = f->next;
        let_go(f);
    }
}
