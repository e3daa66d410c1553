/* SPDX-License-Identifier: MIT */
/* Messages on their way out and in, and their failures. */
#include "ranks/ranks.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>

void ranks_fail(struct ranks *m, descant_status status, const char *format, ...)
{
    char text[LOG_LINE];
    va_list list;

    if (m->f.status)
        return;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    m->f.status = log_fail(&m->f.log, status, "%s", text);
}

void ranks_blame_alone(struct ranks *m, descant_status status, const char *text)
{
    ranks_fail(m, status, "%s", text);
}

/* rank: LINK_ANY where the failure was not in a message with one peer. */
static bool broken(struct ranks *m, int rank)
{
    const struct link_type *type = m->link->type;
    char with[LINK_NAME_ROOM + 48] = "";

    if (rank >= 0)
        snprintf(with, sizeof with, ", in a message with rank %d on %s", rank,
                 ranks_host_name(m, rank));
    if (!m->broken)
        ranks_fail(m, DESCANT_SYSTEM, "%s: %s%s", type->name, type->why(m->link), with);
    m->broken = true;
    return false;
}

void ranks_refuse(struct ranks *m, int rank, const char *format, ...)
{
    char text[RANKS_TEXT];
    va_list list;
    int n = snprintf(text, sizeof text, "rank %d (%s) breaks the protocol: ", rank,
                     ranks_host_name(m, rank));

    if (!m->place.fixed && !m->peers[rank].generation)
        return;                 /* the message is given up already */
    va_start(list, format);
    vsnprintf(text + n, sizeof text - (size_t)n, format, list);
    va_end(list);
    if (!m->place.fixed) {      /* the peer is given up; the others go on */
        log_say(&m->f.log, DESCANT_WARNING, "%s; its messages are ignored", text);
        const struct link_peer gone = {rank, m->peers[rank].generation, true, NULL};
        m->met(m, &gone);
        return;
    }
    m->deaf = true;
    m->blame(m, DESCANT_MISMATCH, text);
}

/* A piece has its round's series, so that giving the round up ends the piece. */
static struct link_message message_of(struct ranks *m, struct ranks_op *op,
                                      enum ranks_tag tag)
{
    bool piece = tag == TAG_GIVE || tag == TAG_TELL || tag == TAG_STATE;

    assert(!op->busy);          /* or its memory would be in two messages */
    op->tag = (uint16_t)tag;
    op->piece = piece;
    m->pieces_open += piece;
    uint64_t series = piece ? m->round.series : tag == TAG_ROWS ? m->rows_series : 0;
    return (struct link_message){op->rank, (int)tag, series, op};
}

bool ranks_send_op(struct ranks *m, struct ranks_op *op, const void *p, size_t bytes,
                   enum ranks_tag tag)
{
    const struct link_message message = message_of(m, op, tag);

    op->most = 0;
    op->busy = m->link->type->send(m->link, p, bytes, &message);
    return op->busy || broken(m, op->rank);
}

static bool receive(struct ranks *m, struct ranks_op *op, void *p, size_t most,
                    enum ranks_tag tag)
{
    const struct link_message message = message_of(m, op, tag);

    op->most = (uint32_t)most;
    op->busy = m->link->type->receive(m->link, p, most, &message);
    return op->busy || broken(m, op->rank);
}

bool ranks_receive_op(struct ranks *m, struct ranks_op *op, void *p, size_t bytes,
                      enum ranks_tag tag)
{
    op->any_length = false;
    return receive(m, op, p, bytes, tag);
}

bool ranks_receive_any(struct ranks *m, struct ranks_op *op, void *p, size_t most,
                       enum ranks_tag tag)
{
    op->any_length = true;
    return receive(m, op, p, most, tag);
}

/* A message of the wrong length is not used. */
static bool length_is_good(struct ranks *m, struct ranks_op *op,
                           const struct link_ended *ended)
{
    static const char *const names[] = {
        [TAG_WORD] = "a word", [TAG_MANIFEST] = "a manifest",
        [TAG_GIVE] = "a part of a mean", [TAG_TELL] = "a piece of a mean",
        [TAG_STATE] = "a piece of a state", [TAG_ASK] = "an ask",
        [TAG_ROWS] = "a part of rows", [TAG_POST] = "a parcel",
        [TAG_POST_TAKEN] = "a parcel's answer", [TAG_WANT] = "a wish for a state",
        [TAG_VERSION] = "a piece of a state", [TAG_FETCH] = "a wish for an item",
        [TAG_FETCHED] = "a piece of an item", [TAG_ANSWER] = "an answer"};
    char length[24] = "too many";

    if (!op->most || ended->bytes == op->most ||
        (op->any_length && ended->bytes < op->most))
        return true;
    op->busy = false;
    if (ended->bytes != LINK_TOO_LONG)
        snprintf(length, sizeof length, "%zu", ended->bytes);
    ranks_refuse(m, ended->from, "%s of %s bytes, where %u belong%s",
                 names[op->tag < TAG_ANSWER ? op->tag : TAG_ANSWER], length, op->most,
                 op->any_length ? " at most" : "");
    return false;
}

static void end(struct ranks *m, struct ranks_op *op, const struct link_ended *ended)
{
    m->pieces_open -= op->piece;
    m->aside = false;
    if (ended->failed && m->place.fixed) {
        broken(m, op->rank);
    } else if (ended->failed) {
        op->busy = false;
        if (op->even_failed)
            op->ended(m, op, ended);
    } else {
        if (op->most)
            m->peers[ended->from].heard_ns = m->now_ns;
        struct link_ended failed = *ended;
        failed.failed = true;
        if (length_is_good(m, op, ended))
            op->ended(m, op, ended);
        else if (!m->place.fixed && op->even_failed)
            op->ended(m, op, &failed);
    }
    m->moved |= !m->aside;
}

/* True if a message has ended, or a peer has come or gone. */
bool ranks_collect(struct ranks *m)
{
    struct link_news news;
    bool works = m->link->type->collect(m->link, &news);

    m->now_ns = news.now_ns;
    if (!m->moved_ns)
        m->moved_ns = m->now_ns;
    if (!works)
        return broken(m, LINK_ANY);
    for (int i = 0; i < news.n_peers; i++)
        if (!news.peers[i].gone)
            m->met(m, &news.peers[i]);
    for (int i = 0; i < news.n_ended; i++)
        end(m, news.ended[i].op, &news.ended[i]);
    for (int i = 0; i < news.n_peers; i++)
        if (news.peers[i].gone)
            m->met(m, &news.peers[i]);
    return news.n_ended > 0 || news.n_peers > 0;
}


/* --- requests --- */

/* A peer that holds up so many requests of one kind counts as one that takes nothing. */
enum { PARKED_OF_ONE = 64 };

static size_t whole_lines(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

void *ranks_request_make(const struct ranks_requests *all, unsigned slot)
{
    size_t record = whole_lines(all->record), out = whole_lines(all->out_bytes);
    char *memory = memory_take(record + out + all->in_bytes);
    struct ranks_request *r = (struct ranks_request *)(void *)memory;

    if (!r)
        return NULL;
    r->send = (struct ranks_op){
        .ended = all->sent, .slot = slot, .even_failed = true, .of = r};
    r->receive = (struct ranks_op){
        .ended = all->received, .slot = slot, .even_failed = true, .of = r};
    r->out = memory + record;
    r->in = memory + record + out;
    return r;
}

void *ranks_request_park(struct ranks *m, struct ranks_requests *all,
                         struct ranks_request *r)
{
    struct ranks_request *other;
    int n = 0;

    for (const struct ranks_request *p = all->parked; p; p = p->next)
        n += p->send.rank == r->send.rank;
    if (n >= PARKED_OF_ONE)
        ranks_refuse(m, r->send.rank, "it has held up %d messages", n);
    if (n >= PARKED_OF_ONE || !(other = ranks_request_make(all, r->send.slot)))
        return NULL;
    r->parked = true;
    r->next = all->parked;
    all->parked = r;
    return other;
}

void ranks_request_release(struct ranks_requests *all, struct ranks_request *r)
{
    struct ranks_request **at = &all->parked;

    if (!r->parked || r->send.busy || r->receive.busy)
        return;
    while (*at != r)
        at = &(*at)->next;
    *at = r->next;
    memory_give(r);
}

void ranks_requests_fini(struct ranks_requests *all)
{
    while (all->parked) {
        struct ranks_request *r = all->parked;
        all->parked = r->next;
        memory_give(r);
    }
}
