/* SPDX-License-Identifier: MIT */
/* The link over TCP: the receiver's side of streams (tcp_stream.c). */
#include "link/tcp_parts.h"

#include <limits.h>
#include <string.h>

enum { TOLD_AT = LINK_WORDS / 2 };      /* TAKEN is sent after so many words */

/* Its sender may wait for room: it is known to have less than half of what there is. */
static bool is_short(const struct tcp_in *in)
{
    int64_t known = (int64_t)(in->told_opened - in->received);
    int64_t room = (int64_t)(in->opened - in->received);

    return in->want || 2 * known < room;
}

static void owe(struct tcp_peer *peer, struct tcp_in *in)
{
    peer->urges |= !peer->link->lazy || is_short(in);
    if (in->owed)
        return;
    in->owed = true;
    peer->owed_ns = peer->owed ? peer->owed_ns : peer->link->now_ns;
    in->next_owed = NULL;
    if (peer->owed)
        peer->last_owed->next_owed = in;
    else
        peer->owed = in;
    peer->last_owed = in;
}

static void take_owed(struct tcp_peer *peer, struct tcp_in *in)
{
    struct tcp_in **at = &peer->owed, *last = NULL;

    while (*at != in) {
        last = *at;
        at = &(*at)->next_owed;
    }
    *at = in->next_owed;
    if (peer->last_owed == in)
        peer->last_owed = last;
    peer->urges &= peer->owed != NULL;
}

static void free_in(struct tcp_peer *peer, struct tcp_in *in)
{
    struct tcp_link *link = peer->link;
    struct tcp_connection *c = peer->connection;

    if (c && c->stream == in) {
        c->stream = NULL;
        c->into = NULL;
    }
    if (in->owed)
        take_owed(peer, in);
    while (in->receives) {
        struct tcp_receive *r = in->receives;
        in->receives = r->next;
        if (r->any) {           /* it stays open */
            if (!link->any[in->tag])
                link->last_any[in->tag] = r;
            r->next = link->any[in->tag];
            link->any[in->tag] = r;
            continue;
        }
        tcp_ended(link,
                  (struct link_ended){.op = r->op, .from = peer->rank, .failed = true});
        memory_give(r);
    }
    while (in->words) {
        struct tcp_word *word = in->words;
        in->words = word->next;
        memory_give(word);
    }
    peer->n_ins--;
    memory_give(in);
}

static void retire_ins(struct tcp_peer *peer)
{
    struct tcp_in **at = &peer->ins;

    for (int n = 0; *at; n++) {
        struct tcp_in *in = *at;
        bool over = in->series && !in->receives && !in->words && !in->owed && !in->want &&
                    !in->total && in->received == in->opened;
        bool told = in->told_received == in->received && in->told_opened == in->opened;
        if (n >= TCP_KEPT && over && !told)
            owe(peer, in);
        if (n < TCP_KEPT || !over || !told) {
            at = &in->next;
            continue;
        }
        *at = in->next;
        free_in(peer, in);
    }
}

static struct tcp_in *find_in(struct tcp_peer *peer, int tag, uint64_t series, bool heard)
{
    struct tcp_in **at = &peer->ins, *in;

    for (; (in = *at); at = &in->next)
        if (in->tag == tag && in->series == series) {
            *at = in->next;
            in->next = peer->ins;
            peer->ins = in;
            return in;
        }
    if (peer->n_ins >= 2 * TCP_KEPT)
        retire_ins(peer);
    if ((heard && peer->n_ins >= TCP_STREAMS) || !(in = memory_take(sizeof *in)))
        return NULL;
    in->tag = tag;
    in->series = series;
    in->next = peer->ins;
    peer->ins = in;
    peer->n_ins++;
    return in;
}

static void owe_words(struct tcp_peer *peer, struct tcp_in *in)
{
    if (in->received - in->told_received >= TOLD_AT ||
        in->opened - in->told_opened >= TOLD_AT)
        owe(peer, in);
}

static void append(struct tcp_receive **first, struct tcp_receive **last,
                   struct tcp_receive *r)
{
    r->next = NULL;
    if (*first)
        (*last)->next = r;
    else
        *first = r;
    *last = r;
}

static void end_receive(struct tcp_peer *peer, struct tcp_in *in, size_t bytes)
{
    struct tcp_receive *r = in->receives;

    in->receives = r->next;
    tcp_ended(peer->link, (struct link_ended){
                              .op = r->op, .from = peer->rank,
                              .bytes = bytes > r->bytes ? LINK_TOO_LONG : bytes});
    memory_give(r);
}

static void fill(struct tcp_peer *peer, struct tcp_in *in, const void *p, size_t bytes)
{
    if (bytes && bytes <= in->receives->bytes)
        memcpy(in->receives->p, p, bytes);
    end_receive(peer, in, bytes);
}

static void fill_from_words(struct tcp_peer *peer, struct tcp_in *in)
{
    while (in->words && in->receives) {
        struct tcp_word *word = in->words;
        in->words = word->next;
        fill(peer, in, word->p, word->bytes);
        memory_give(word);
    }
}

/* A receive for the next message of this stream that lacks one. */
static void open_receive(struct tcp_peer *peer, struct tcp_in *in, struct tcp_receive *r)
{
    append(&in->receives, &in->last_receive, r);
    in->opened++;
    bool bulk = in->want || r->bytes > LINK_WORD;
    fill_from_words(peer, in);
    if (bulk)
        owe(peer, in);
    else
        owe_words(peer, in);
}

/* A message that lacks a receive takes the first from LINK_ANY. */
static void take_any(struct tcp_peer *peer, struct tcp_in *in)
{
    struct tcp_receive **first = &peer->link->any[in->tag], *r = *first;

    if (!r || in->series || in->receives)
        return;
    *first = r->next;
    open_receive(peer, in, r);
}

/* Messages that wait take the receives from LINK_ANY, peer by peer. */
static void share_any(struct tcp_link *link, int tag)
{
    for (int i = 1; i <= link->size && link->any[tag]; i++) {
        struct tcp_peer *peer = &link->peers[(link->turn + i) % link->size];
        for (struct tcp_in *in = peer->ins; in; in = in->next)
            if (in->tag == tag && !in->series && (in->words || in->want)) {
                take_any(peer, in);
                link->turn = peer->rank;
            }
    }
}

static struct tcp_receive *make_receive(void *p, size_t bytes,
                                        const struct link_message *message)
{
    struct tcp_receive *r = memory_take(sizeof *r);

    if (r)
        *r = (struct tcp_receive){.p = p, .bytes = bytes, .op = message->op,
                                  .any = message->rank == LINK_ANY};
    return r;
}

bool tcp_receive(struct tcp_peer *peer, void *p, size_t bytes,
                 const struct link_message *message)
{
    if (tcp_is_through(peer, message->series)) {
        tcp_ended(peer->link, (struct link_ended){.op = message->op, .failed = true});
        return true;
    }
    struct tcp_in *in = find_in(peer, message->tag, message->series, false);
    struct tcp_receive *r = in ? make_receive(p, bytes, message) : NULL;
    if (!r)
        return tcp_no_memory(peer->link);
    open_receive(peer, in, r);
    return true;
}

bool tcp_receive_any(struct tcp_link *link, void *p, size_t bytes,
                     const struct link_message *message)
{
    struct tcp_receive *r = make_receive(p, bytes, message);
    int tag = message->tag;

    if (!r)
        return tcp_no_memory(link);
    append(&link->any[tag], &link->last_any[tag], r);
    share_any(link, tag);
    return true;
}

static bool hear_word(struct tcp_peer *peer, struct tcp_in *in, const struct tcp_frame *f,
                      const unsigned char *bytes, const char **why)
{
    *why = "a word out of order, or one too many";
    if (f->index != in->received || in->total || in->want ||
        f->index >= in->opened + LINK_WORDS)
        return false;
    in->received++;
    if (in->receives) {
        fill(peer, in, bytes, f->bytes);
    } else {
        struct tcp_word *word = memory_take(sizeof *word + f->bytes);
        if (!word)
            return tcp_no_memory(peer->link);
        word->bytes = f->bytes;
        if (f->bytes)
            memcpy(word->p, bytes, f->bytes);
        if (in->words)
            in->last_word->next = word;
        else
            in->words = word;
        in->last_word = word;
        take_any(peer, in);
    }
    owe_words(peer, in);
    return true;
}

static bool hear_bulk(struct tcp_in *in, const struct tcp_frame *f, unsigned char **into,
                      const char **why)
{
    *why = "bulk out of order, or without room";
    if (f->index != in->received || f->index >= in->opened || f->offset != in->offset ||
        f->total <= LINK_WORD || f->total > INT_MAX || !f->bytes ||
        f->bytes > f->total - f->offset || (in->total && f->total != in->total))
        return false;
    in->total = f->total;
    in->want = 0;
    *into = f->total <= in->receives->bytes ? in->receives->p + f->offset : NULL;
    return true;
}

void tcp_came(struct tcp_peer *peer, struct tcp_in *in, size_t bytes)
{
    in->offset += bytes;
    if (in->offset < in->total)
        return;
    size_t total = in->total;
    in->total = in->offset = 0;
    in->received++;
    end_receive(peer, in, total);
    owe(peer, in);
}

static bool hear_want(struct tcp_peer *peer, struct tcp_in *in, const struct tcp_frame *f,
                      const char **why)
{
    *why = "a wish out of order";
    if (f->index != in->received || in->total || in->want || f->total <= LINK_WORD)
        return false;
    if (f->index < in->opened) {
        peer->urges |= in->owed;
        return true;            /* TAKEN has said so, or is owed */
    }
    in->want = f->total;
    if (!in->words)
        take_any(peer, in);
    return true;
}

bool tcp_hear_in(struct tcp_peer *peer, const struct tcp_frame *f,
                 const unsigned char *bytes, struct tcp_in **stream, unsigned char **into,
                 const char **why)
{
    struct tcp_in *in = find_in(peer, f->tag, f->series, true);
    *why = "it sends too many streams";
    if (!in)
        return false;
    *stream = in;
    if (f->what == TCP_WORD)
        return hear_word(peer, in, f, bytes, why);
    if (f->what == TCP_BULK)
        return hear_bulk(in, f, into, why);
    return hear_want(peer, in, f, why);
}

size_t tcp_write_taken(struct tcp_peer *peer, unsigned char *to)
{
    struct tcp_in *in = peer->owed;

    peer->owed = in->next_owed;
    peer->urges &= peer->owed != NULL;
    in->owed = false;
    in->told_received = in->received;
    in->told_opened = in->opened;
    return tcp_put(to, (struct tcp_frame){.what = TCP_TAKEN, .tag = (uint8_t)in->tag,
                                      .series = in->series, .index = in->received,
                                      .total = in->opened}, NULL);
}

void tcp_owe_all(struct tcp_peer *peer)
{
    for (struct tcp_in *in = peer->ins; in; in = in->next) {
        in->total = in->offset = in->want = 0;
        owe(peer, in);
    }
    peer->urges |= peer->owed != NULL;
}

void tcp_give_up_in(struct tcp_peer *peer, uint64_t below)
{
    for (struct tcp_in **at = &peer->ins, *in; (in = *at);) {
        if (tcp_is_below(in->series, below)) {
            *at = in->next;
            free_in(peer, in);
        } else {
            at = &in->next;
        }
    }
    for (int tag = 0; below == LINK_PEER && tag < LINK_TAGS; tag++)
        share_any(peer->link, tag);     /* those that its bulk had taken */
}
