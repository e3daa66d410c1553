/* SPDX-License-Identifier: MIT */
/* The link over TCP: the sender's side of streams (tcp_stream.c). */
#include "link/tcp_parts.h"

#include <string.h>

static void take_ready(struct tcp_peer *peer, struct tcp_out *out)
{
    struct tcp_out **at = &peer->ready, *last = NULL;

    while (*at != out) {
        last = *at;
        at = &(*at)->next_ready;
    }
    *at = out->next_ready;
    if (peer->last_ready == out)
        peer->last_ready = last;
    out->ready = false;
}

static void free_out(struct tcp_peer *peer, struct tcp_out *out)
{
    if (peer->connection && peer->connection->chunk_of == out) {
        peer->connection->chunk = NULL;
        peer->connection->chunk_of = NULL;
    }
    if (out->ready)
        take_ready(peer, out);
    while (out->first) {
        struct tcp_message *m = out->first;
        out->first = m->next;
        if (m->open)
            tcp_ended(peer->link, (struct link_ended){
                                      .op = m->op, .from = peer->rank, .failed = true});
        memory_give(m);
    }
    memory_give(out);
}

static void retire_outs(struct tcp_peer *peer)      /* 5 */
{
    struct tcp_out **at = &peer->outs;

    for (int n = 0; *at; n++) {
        struct tcp_out *out = *at;
        bool over = out->series && !out->first && out->n == out->opened;
        if (n < TCP_KEPT || !over) {
            at = &out->next;
            continue;
        }
        *at = out->next;
        free_out(peer, out);
    }
}

/* heard: it is the peer that names the stream. */
static struct tcp_out *find_out(struct tcp_peer *peer, int tag, uint64_t series,
                                bool heard)
{
    struct tcp_out **at = &peer->outs, *out;
    int n = 0;

    for (; (out = *at); at = &out->next, n++)
        if (out->tag == tag && out->series == series) {
            *at = out->next;            /* the one that was used last comes first */
            out->next = peer->outs;
            peer->outs = out;
            return out;
        }
    if (n >= 2 * TCP_KEPT)
        retire_outs(peer);
    if ((heard && n >= TCP_STREAMS) || !(out = memory_take(sizeof *out)))
        return NULL;
    out->tag = tag;
    out->series = series;
    out->next = peer->outs;
    peer->outs = out;
    return out;
}

static bool is_word(const struct tcp_message *m)
{
    return m->bytes <= LINK_WORD;
}

static bool may_leave(const struct tcp_out *out)
{
    const struct tcp_message *m = out->at;
    return m && m->index < out->opened + (is_word(m) ? LINK_WORDS : 0);
}

static bool has_due(const struct tcp_peer *peer, const struct tcp_out *out)
{
    if (peer->link->closing && out->at && out->at->open)
        return false;
    return may_leave(out) || (out->at && !is_word(out->at) && !out->wanted);
}

static void make_ready(struct tcp_peer *peer, struct tcp_out *out)
{
    if (out->ready || !has_due(peer, out))
        return;
    out->ready = true;
    out->next_ready = NULL;
    if (peer->ready)
        peer->last_ready->next_ready = out;
    else
        peer->ready = out;
    peer->last_ready = out;
}

/* A word has ended for its sender once there is a copy. */
static void copy_words(struct tcp_peer *peer, struct tcp_out *out)
{
    uint64_t room = out->opened + LINK_WORDS;

    for (struct tcp_message *m = out->first; m && m->index < room && out->n_uncopied;
         m = m->next)
        if (m->open && is_word(m)) {
            if (m->bytes)
                memcpy(m->copy, m->p, m->bytes);
            m->p = m->copy;
            m->open = false;
            out->n_uncopied--;
            tcp_ended(peer->link, (struct link_ended){.op = m->op, .from = peer->rank});
        }
}

bool tcp_send(struct tcp_peer *peer, const void *p, size_t bytes,
              const struct link_message *message)
{
    if (tcp_is_through(peer, message->series)) {
        tcp_ended(peer->link, (struct link_ended){.op = message->op, .failed = true});
        return true;
    }
    struct tcp_out *out = find_out(peer, message->tag, message->series, false);
    struct tcp_message *m =
        out ? memory_take(sizeof *m + (bytes <= LINK_WORD ? bytes : 0)) : NULL;
    if (!m)
        return tcp_no_memory(peer->link);
    m->p = p;
    m->bytes = bytes;
    m->op = message->op;
    m->index = out->n++;
    m->open = true;
    out->n_uncopied += is_word(m);
    if (out->first)
        out->last->next = m;
    else
        out->first = m;
    out->last = m;
    if (!out->at)
        out->at = m;
    copy_words(peer, out);
    make_ready(peer, out);
    return true;
}

/* The last part of the message before `at` is still read by the connection. */
static bool is_leaving(const struct tcp_peer *peer, const struct tcp_out *out)
{
    const struct tcp_connection *c = peer->connection;
    return c && c->chunk_left && c->chunk_of == out && !out->offset;
}

bool tcp_hear_taken(struct tcp_peer *peer, const struct tcp_frame *f, const char **why)
{
    struct tcp_out *out = find_out(peer, f->tag, f->series, true);

    if (!out) {
        *why = "it receives too many streams";
        return false;
    }
    if (!out->n && f->index)
        return true;                    /* 5: it was given up here, and is at rest */
    uint64_t sent = (out->at ? out->at->index : out->n) - is_leaving(peer, out);
    if (f->index > sent || f->index < out->received || f->total < out->opened ||
        f->total > INT64_MAX) {
        *why = "it has taken what was not sent";
        return false;
    }
    out->received = f->index;
    out->opened = f->total;
    while (out->first && out->first->index < out->received) {
        struct tcp_message *m = out->first;
        out->first = m->next;
        if (m->open)
            tcp_ended(peer->link, (struct link_ended){.op = m->op, .from = peer->rank});
        memory_give(m);
    }
    copy_words(peer, out);
    make_ready(peer, out);
    return true;
}

static void step(struct tcp_out *out)
{
    out->at = out->at->next;
    out->offset = 0;
    out->wanted = false;
}

/* The first stream that has a word or a WANT; else the first. */
static struct tcp_out *choose(const struct tcp_peer *peer)
{
    for (struct tcp_out *out = peer->ready; out; out = out->next_ready)
        if (is_word(out->at) || !may_leave(out))
            return out;
    return peer->link->closing ? NULL : peer->ready;
}

size_t tcp_write_out(struct tcp_peer *peer, unsigned char *to,
                     const unsigned char **chunk, size_t *chunk_bytes,
                     struct tcp_out **of)
{
    struct tcp_out *out = peer->goes_on ? choose(peer) : NULL;
    if (!out)
        return 0;
    const struct tcp_message *m = out->at;
    struct tcp_frame frame = {.what = TCP_WANT, .tag = (uint8_t)out->tag,
                              .series = out->series, .index = m->index,
                              .total = m->bytes};
    const void *bytes = NULL;
    take_ready(peer, out);
    if (!may_leave(out)) {
        out->wanted = true;
    } else if (is_word(m)) {
        frame.what = TCP_WORD;
        frame.bytes = (uint32_t)m->bytes;
        bytes = m->p;
        step(out);
    } else {
        size_t left = m->bytes - out->offset;
        size_t most = tcp_is_far(peer) ? TCP_PART : TCP_CHUNK;
        frame.what = TCP_BULK;
        frame.offset = (uint32_t)out->offset;
        frame.bytes = (uint32_t)(left < most ? left : most);
        *chunk = m->p + out->offset;
        *chunk_bytes = frame.bytes;
        *of = out;
        out->offset += frame.bytes;
        if (out->offset == m->bytes)
            step(out);
    }
    make_ready(peer, out);
    return tcp_put(to, frame, bytes);
}

void tcp_go_on(struct tcp_peer *peer)
{
    peer->goes_on = true;
    for (struct tcp_out *out = peer->outs; out; out = out->next) {
        out->at = out->first;
        out->offset = 0;
        out->wanted = false;
        if (out->ready)
            take_ready(peer, out);
        make_ready(peer, out);
    }
}

void tcp_give_up_out(struct tcp_peer *peer, uint64_t below)
{
    for (struct tcp_out **at = &peer->outs, *out; (out = *at);) {
        if (tcp_is_below(out->series, below)) {
            *at = out->next;
            free_out(peer, out);
        } else {
            at = &out->next;
        }
    }
}

/* Words that have ended and can leave: not those behind bulk, which is given up. */
bool tcp_has_words(const struct tcp_peer *peer)
{
    for (const struct tcp_out *out = peer->outs; out; out = out->next)
        if (out->at && !out->at->open)
            return true;
    return false;
}
