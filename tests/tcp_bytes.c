/* SPDX-License-Identifier: MIT */
/* A rank over TCP, and what others may do to it (tcp_bytes.h). The link is the real one
 * from its table down to its reads; frames are put together here, most of them as the
 * rank expects them next, so that chance comes far. After each step these must hold:
 *
 *   1. A message ends once at most; bytes beside its memory stay as they were, and so
 *      does its memory once it has ended.
 *   2. Counts of a stream never go back, and fit to what is kept of it.
 *   3. The rank has the memory that its connections, streams and messages account for, to
 *      the block; others make it take no more than tcp_stream.c says.
 *   4. Every byte that it sends is a frame's, and a message is sent as it was given.
 *   5. The link fails only where it was refused.
 *   6. A close gives everything back.
 *   7. The rank wakes for what is worth it: once the rest of a frame is there, and not for a
 *      part of it; and once a socket that took no more bytes takes some. */
#include "tcp_bytes.h"
#include "link/tcp_parts.h"
#include "sockets.h"

#include <stdlib.h>
#include <string.h>

#if defined __SANITIZE_ADDRESS__
#define SANITIZED 1
#elif defined __has_feature
#if __has_feature(address_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

enum { OPS = 400, RANKS = 4, TAGS = 4, ANY_TAG = 2, SERIES = 4, BLANK = 0xee };
enum { GUARD = SANITIZED ? 0 : 64 };    /* beyond a message's memory */

#define MS UINT64_C(1000000)

struct tcp_bytes_sum tcp_bytes_sum;

/* A message of this rank's. */
struct op {
    unsigned char *p;
    size_t size;
    unsigned char value;        /* each byte of what is sent */
    bool open, receives;
};

/* A connection, as far as this rank has told it. */
struct told {
    struct tcp_frame frame;
    size_t have;                /* bytes of the frame's head and of what follows */
    bool any;                   /* a frame was told */
};

/* The counts of a stream at the last look. */
struct seen {
    uint64_t in_received, in_opened, in_told_received, in_told_opened;
    uint64_t out_received, out_opened, out_n;
};

static struct {
    const uint8_t *bytes;       /* [at, n) is still to come */
    size_t at, n;
    struct tcp_link *link;      /* NULL: there is none so far */
    bool meets, closes, answers, floods, star;
    size_t read_most;
    struct op ops[OPS];
    int n_ops;
    struct told told[SOCKETS];
    struct seen seen[RANKS][TAGS][SERIES];
    uint64_t there[RANKS];      /* its generation; 0: nobody, as far as was told */
    bool gone[RANKS];
    long live;
    char *why;
} run;

#define BROKEN(...) (*run.why ? (void)0 : (void)snprintf(run.why, 512, __VA_ARGS__))
#define HOLDS(condition)                                                                \
    ((condition) ? (void)0 : BROKEN("line %d: %s", __LINE__, #condition))

static const size_t sizes[] = {0, 1, 100, 1000, 1024, 1025, 2000, 5000, 140000};

static uint8_t next(void)
{
    return run.at < run.n ? run.bytes[run.at++] : 0;
}

static size_t next_size(void)
{
    return sizes[next() % (sizeof sizes / sizeof *sizes)];
}

static unsigned char value_of(int tag, uint64_t series, uint64_t bytes)
{
    return (unsigned char)(1 + ((unsigned)tag * 37 + series * 11 + bytes * 5) % 200);
}

/* --- what the rank says --- */

static void hear_head(const struct told *t)
{
    const struct tcp_frame *f = &t->frame;
    bool greets = f->what == TCP_HELLO || f->what == TCP_REFUSED;

    HOLDS(!f->rank || (run.star && f->turn));
    if (f->rank && run.link->rank == 0 && f->what != TCP_ROOM) {
        HOLDS(f->what >= TCP_WORD && f->what <= TCP_BYE && f->what != TCP_PEER);
        HOLDS(f->bytes <= TCP_PART);    /* the rest is for its receiver to look at */
        tcp_bytes_sum.passed += f->what == TCP_WORD || f->what == TCP_BULK;
        return;
    }
    HOLDS(f->what < TCP_KINDS && f->tag < LINK_TAGS);
    HOLDS(t->any || greets || f->what == TCP_BYE);
    HOLDS(f->what != TCP_HELLO || f->bytes == sizeof(struct tcp_hello));
    HOLDS(f->what != TCP_WORD || f->bytes <= LINK_WORD);
    HOLDS(f->what != TCP_BULK || (f->bytes > 0 && f->bytes <= TCP_CHUNK &&
                                  f->total > LINK_WORD && f->offset < f->total &&
                                  f->bytes <= f->total - f->offset));
    HOLDS(f->what < TCP_WANT || f->what == TCP_PEER || f->bytes == 0);
    tcp_bytes_sum.refused += f->what == TCP_REFUSED;
    tcp_bytes_sum.goes_on += f->what == TCP_GOES_ON;
}

static void hear_bytes(const struct tcp_frame *f, const uint8_t *bytes, size_t n)
{
    unsigned char is = value_of(f->tag, f->series,
                                f->what == TCP_BULK ? f->total : f->bytes);

    if ((f->what != TCP_WORD && f->what != TCP_BULK) || (f->rank && run.link->rank == 0))
        return;             /* it may be another's, passed on */
    bool same = n == 0 || memcmp(bytes, bytes + 1, n - 1) == 0;
    if (n > 0 && !(same && (*bytes == is || (f->what == TCP_BULK && *bytes == 0))))
        BROKEN("bytes of a message of tag %d are not %d", f->tag, is);
}

static void hear_sent(int fd, const uint8_t *bytes, size_t n)
{
    struct told *t = &run.told[fd - SOCKETS_FIRST];
    enum { HEAD = sizeof t->frame };

    while (n > 0) {
        size_t whole = HEAD + (t->have < HEAD ? 0 : t->frame.bytes);
        size_t k = whole - t->have < n ? whole - t->have : n;
        if (t->have < HEAD)
            memcpy((char *)&t->frame + t->have, bytes, k);
        else
            hear_bytes(&t->frame, bytes, k);
        t->have += k;
        bytes += k;
        n -= k;
        if (t->have == HEAD)
            hear_head(t);
        if (t->have >= HEAD && t->have == HEAD + t->frame.bytes) {
            t->have = 0;
            t->any = true;
        }
    }
}

static void hear_closed(int fd)
{
    run.told[fd - SOCKETS_FIRST] = (struct told){.any = false};
    tcp_bytes_sum.dropped++;
}

/* --- what others say --- */

static struct tcp_connection *connection_of(int fd)
{
    struct tcp_connection *c = run.link ? run.link->connections : NULL;

    while (c && c->fd != fd)
        c = c->next;
    return c;
}

static struct tcp_peer *peer_of(int fd)
{
    struct tcp_connection *c = connection_of(fd);
    return c && c->state == TCP_OPEN ? c->peer : NULL;
}

static void put_frame(int fd, struct tcp_frame frame, const void *bytes)
{
    sockets_put(fd, &frame, sizeof frame);
    if (bytes && frame.bytes)
        sockets_put(fd, bytes, frame.bytes);
}

/* A HELLO as this rank expects it, where the connection is one that it has dialled, but
 * for what is wrong. */
static void put_hello(int fd, uint8_t who, uint8_t wrong)
{
    const struct tcp_connection *c = connection_of(fd);
    const struct tcp_peer *peer = c ? c->peer : NULL;
    bool dialled = c && c->state <= TCP_GREETS;
    struct tcp_hello hello = {.magic = "descant", .protocol = TCP_PROTOCOL, .most = 3,
                              .rank = (who & 7) - 1, .to = run.link->rank, .port = 9,
                              .generation = (uint64_t)(who >> 3) + 1, .name = "there"};

    if (dialled && !(wrong & 128)) {
        hello.rank = peer ? peer->rank : 0;
        hello.to = run.link->rank < 0 ? 2 : run.link->rank;
        if (peer && peer->generation)
            hello.generation = peer->generation;
    }
    hello.protocol += wrong & 1;
    hello.magic[0] = (char)(hello.magic[0] + (wrong & 2));
    hello.to_generation = wrong & 4 ? 5 : 0;
    hello.to += (wrong & 8) != 0;
    hello.port = wrong & 16 ? 0 : hello.port;
    hello.star = run.star != ((wrong & 80) == 80);
    hello.most = wrong & 32 ? 4097 : hello.most;
    if (wrong & 64)
        memset(hello.name, 0xff, sizeof hello.name);
    put_frame(fd, (struct tcp_frame){.what = TCP_HELLO, .bytes = sizeof hello}, &hello);
}

/* The stream that a byte names; two bits are left over. */
static int tag_of(uint8_t stream)
{
    return stream % TAGS;
}

static uint64_t series_of(uint8_t stream)
{
    return tag_of(stream) == ANY_TAG ? 0 : stream / TAGS % SERIES;
}

static const struct tcp_in *in_of(const struct tcp_peer *peer, int tag, uint64_t series)
{
    const struct tcp_in *in = peer ? peer->ins : NULL;

    while (in && (in->tag != tag || in->series != series))
        in = in->next;
    return in;
}

static const struct tcp_out *out_of(const struct tcp_peer *peer, int tag, uint64_t series)
{
    const struct tcp_out *out = peer ? peer->outs : NULL;

    while (out && (out->tag != tag || out->series != series))
        out = out->next;
    return out;
}

static void spoil(struct tcp_frame *f, uint8_t wrong)
{
    f->index += wrong & 1 ? 1 : 0;
    f->index -= wrong & 2 ? 1 : 0;
    f->total += wrong & 4 ? 1 : 0;
    f->total = wrong & 8 ? UINT64_MAX - f->total : f->total;
    f->offset += wrong & 16 ? 1 : 0;
    f->tag = (uint8_t)(f->tag + (wrong & 32 ? 62 : 0));
    f->bytes += wrong & 64 ? 1 : 0;
    f->bytes = wrong & 128 ? UINT32_MAX - f->bytes : f->bytes;
}

/* The rank that a frame of a star names, by two bits: one that is not at the connection's other
 * end, in their turn; rank 0: nobody. */
struct far {
    uint16_t rank;
    uint32_t turn;
    const struct tcp_peer *peer;        /* whose streams it is of, if this rank has any */
};

static struct far far_of(int fd, unsigned bits)
{
    const struct tcp_peer *peer = peer_of(fd), *other;
    int rank = (int)(bits & 3);

    if (!run.star || !rank || !peer || rank >= run.link->size)
        return (struct far){.peer = peer};
    if (run.link->rank == 0)
        return (struct far){(uint16_t)rank, peer->pairs[rank].turn, NULL};
    other = &run.link->peers[rank];
    return (struct far){(uint16_t)rank, other->connection ? other->turn : other->next_turn,
                        other};
}

static unsigned char data[150000];      /* of others' messages */

/* A frame of a stream, as it is to come next where all that was said before is read. */
static void put_of_stream(int fd, enum tcp_what what)
{
    uint8_t stream = next();
    struct far far = far_of(fd, stream / 16);
    const struct tcp_peer *peer = far.peer;
    size_t size = next_size();
    uint8_t wrong = next();
    int tag = tag_of(stream);
    uint64_t series = series_of(stream);
    const struct tcp_in *in = in_of(peer, tag, series);
    const struct tcp_out *out = out_of(peer, tag, series);
    struct tcp_frame f = {.what = (uint8_t)what, .tag = (uint8_t)tag, .series = series,
                          .index = in ? in->received : 0, .rank = far.rank,
                          .turn = far.turn};

    if (what == TCP_WORD) {
        f.bytes = (uint32_t)(size > LINK_WORD ? LINK_WORD : size);
    } else if (what == TCP_BULK) {
        f.total = in && in->total ? in->total : size;
        f.offset = in ? (uint32_t)in->offset : 0;
        size_t left = (size_t)(f.total - f.offset);
        size_t most = far.rank ? TCP_PART : TCP_CHUNK;
        f.bytes = (uint32_t)(left < most ? left : most);
        f.bytes = stream & 64 ? (f.bytes + 1) / 2 : f.bytes;
    } else if (what == TCP_WANT) {
        f.total = size;
    } else {                            /* TAKEN: of what has left, so many */
        uint64_t left = out ? (out->at ? out->at->index : out->n) - out->received : 0;
        f.index = out ? out->received + (stream & 64 ? left : left / 2) : 0;
        f.total = (out ? out->opened : 0) + size % 20;
    }
    size_t bytes = f.bytes;
    spoil(&f, wrong);
    put_frame(fd, f, NULL);
    sockets_put(fd, data, bytes);
}

static void talk(int fd)
{
    static const enum tcp_what kinds[] = {TCP_GOES_ON, TCP_BYE, TCP_PEER, TCP_REFUSED,
                                          TCP_KINDS};
    uint8_t b = next(), more = next();
    enum tcp_what what = kinds[b % 5];
    struct tcp_frame f = {.what = (uint8_t)what};
    struct tcp_place place = {.rank = more % 8, .port = more & 8 ? 0 : 5,
                              .family = more & 16 ? AF_INET6 : more & 32 ? AF_INET : 0,
                              .generation = (uint64_t)(more >> 6) + 1,
                              .turn = more & 8 ? 0 : (more / 16 & 3) + 1u,
                              .window = 1 << 20};
    struct far far = far_of(fd, b / 5);

    if (run.star && what == TCP_KINDS && b & 1)
        f.what = TCP_ROOM;
    f.rank = far.rank;
    f.turn = far.turn;
    f.total = f.what == TCP_ROOM ? more * 65536u : 0;
    f.rank = what == TCP_PEER && !(b & 64) ? 0 : f.rank;

    if (what == TCP_PEER) {
        f.bytes = sizeof place - (b & 128 ? 1 : 0);
        put_frame(fd, f, &place);
    } else if (what == TCP_REFUSED) {
        f.offset = more % 6;
        f.index = more & 32 ? UINT64_MAX : more;
        f.bytes = more & 64 ? 1024 : b & 128 ? 3 : 0;
        put_frame(fd, f, data);
    } else {
        f.bytes = b & 128 ? more * 8u : 0;
        put_frame(fd, f, data);
    }
}

static void flood(int fd)
{
    uint8_t b = next();
    int n = 8 * next();
    enum tcp_what what = (enum tcp_what)(TCP_WORD + b % 4);

    if (!run.floods)
        return;
    run.floods = false;
    for (int i = 0; i < n; i++) {
        struct tcp_frame f = {.what = (uint8_t)what, .tag = 3,
                              .series = SERIES + (uint64_t)i};
        f.bytes = what == TCP_WORD ? 5 : 0;
        f.total = what == TCP_WANT ? 2000 : 0;
        put_frame(fd, f, data);
    }
}

/* --- what the rank does --- */

static struct op *make_op(size_t size, unsigned char value, bool receives)
{
    struct op *op = &run.ops[run.n_ops++];

    *op = (struct op){.p = malloc(size + GUARD + !size), .size = size, .value = value,
                      .open = true, .receives = receives};
    if (!op->p)
        abort();
    memset(op->p, value, size);
    memset(op->p + size, BLANK, GUARD);
    return op;
}

static void look_beside(const struct op *op)
{
    for (size_t i = op->size; i < op->size + GUARD; i++)
        HOLDS(op->p[i] == BLANK);
}

/* From now on nobody may touch it. */
static void end_op(struct op *op)
{
    op->open = false;
    look_beside(op);
    if (SANITIZED) {
        free(op->p);
        op->p = NULL;
    } else {
        memset(op->p, BLANK, op->size);
    }
}

static bool takes_steps(void)
{
    return run.link && !run.meets && !run.closes && !run.link->failed;
}

/* As the link's user numbers ranks (tcp.c), and back. */
static int turned(int rank, int by)
{
    return run.star && rank >= 0 ? (rank + by + run.link->size) % run.link->size : rank;
}

/* Another rank, where the byte names one. */
static int rank_of(uint8_t b)
{
    int rank = b % run.link->size;
    return rank == run.link->rank ? (rank + 1) % run.link->size : rank;
}

static void begin_message(uint8_t who, bool receives)
{
    uint8_t stream = next();
    size_t size = next_size();
    int tag = tag_of(stream);
    uint64_t series = series_of(stream);

    if (!takes_steps() || run.n_ops == OPS)
        return;
    struct op *op = make_op(size, receives ? BLANK : value_of(tag, series, size),
                            receives);
    struct link_message m = {.rank = receives && tag == ANY_TAG ? LINK_ANY
                                                               : turned(rank_of(who), -1),
                             .tag = tag, .series = series, .op = op};
    struct link *link = &run.link->link;
    bool good = receives ? link_tcp.receive(link, op->p, size, &m)
                         : link_tcp.send(link, op->p, size, &m);
    if (!good)
        BROKEN("the link failed at a message: %s", link_tcp.why(link));
}

static void forget_seen(int rank, uint64_t below)
{
    for (int k = 0; k < RANKS; k++)
        for (int tag = 0; tag < TAGS; tag++)
            for (uint64_t s = 0; s < SERIES; s++)
                if ((rank == LINK_ANY || k == rank) &&
                    (below == LINK_PEER || (s && s < below)))
                    run.seen[k][tag][s] = (struct seen){.out_n = 0};
}

static void forget(uint8_t who)
{
    uint8_t b = next();

    if (!takes_steps())
        return;
    int rank = who & 8 ? LINK_ANY : rank_of(who);
    uint64_t below = b & 8 && rank != LINK_ANY ? LINK_PEER : b % (SERIES + 1);
    if (who == 15)
        below = 5000;           /* also what a flood was of */
    forget_seen(rank, below);
    link_tcp.forget(&run.link->link, turned(rank, -1), below);
    if (below == LINK_PEER && rank < RANKS)
        run.there[rank] = 0;
}

/* --- looking --- */

static bool is_in(const struct tcp_peer *peer, const struct tcp_in *in)
{
    const struct tcp_in *at = peer->ins;

    while (at && at != in)
        at = at->next;
    return at != NULL;
}

static long look_at_ins(const struct tcp_peer *peer)
{
    long blocks = 0;
    int n = 0, owed = 0, in_line = 0;

    for (const struct tcp_in *in = peer->ins; in; in = in->next, n++) {
        uint64_t receives = 0, words = 0;
        for (const struct tcp_receive *r = in->receives; r; r = r->next)
            receives++;
        for (const struct tcp_word *w = in->words; w; w = w->next, words++)
            HOLDS(w->bytes <= LINK_WORD);
        HOLDS(receives == (in->opened > in->received ? in->opened - in->received : 0));
        HOLDS(words == (in->received > in->opened ? in->received - in->opened : 0));
        HOLDS(words <= LINK_WORDS);
        HOLDS(in->told_received <= in->received && in->told_opened <= in->opened);
        HOLDS(in->total ? in->offset < in->total && receives : in->offset == 0);
        HOLDS(!in->want || !in->total);
        owed += in->owed;
        blocks += 1 + (long)(receives + words);
    }
    for (const struct tcp_in *in = peer->owed; in; in = in->next_owed, in_line++)
        HOLDS(in->owed);
    HOLDS(owed == in_line && n == peer->n_ins);
    return blocks;
}

static long look_at_outs(const struct tcp_peer *peer)
{
    long blocks = 0;
    int ready = 0, in_line = 0;

    for (const struct tcp_out *out = peer->outs; out; out = out->next) {
        uint64_t index = 0;
        bool at = !out->at;
        int uncopied = 0;
        for (const struct tcp_message *m = out->first; m; m = m->next, blocks++) {
            HOLDS(m == out->first || m->index == index + 1);
            HOLDS(m->index >= out->received && m->index < out->n);
            at |= m == out->at;
            uncopied += m->open && m->bytes <= LINK_WORD;
            index = m->index;
        }
        HOLDS(at && (!out->first || index == out->n - 1));
        HOLDS(out->received <= out->n && (out->at || out->offset == 0));
        HOLDS(out->n_uncopied == uncopied);
        ready += out->ready;
        blocks++;
    }
    for (const struct tcp_out *out = peer->ready; out; out = out->next_ready, in_line++)
        HOLDS(out->ready && out->at);
    HOLDS(ready == in_line);
    return blocks;
}

/* A stream of a series may be given up at rest, behind TCP_KEPT others; then its
 * counts begin anew. */
static bool may_retire(uint64_t series, int n_streams)
{
    return series && n_streams >= TCP_KEPT;
}

/* Counts never go back. */
static void look_back(const struct tcp_peer *peer)
{
    int n_outs = 0;

    for (const struct tcp_out *out = peer->outs; out; out = out->next)
        n_outs++;
    if (tcp_is_far(peer) && !peer->generation)      /* another that comes begins anew */
        forget_seen(peer->rank, LINK_PEER);
    for (int tag = 0; tag < TAGS; tag++)
        for (uint64_t series = 0; series < SERIES; series++) {
            struct seen *s = &run.seen[peer->rank][tag][series];
            const struct tcp_in *in = in_of(peer, tag, series);
            const struct tcp_out *out = out_of(peer, tag, series);
            struct seen is = {in ? in->received : 0, in ? in->opened : 0,
                              in ? in->told_received : 0, in ? in->told_opened : 0,
                              out ? out->received : 0, out ? out->opened : 0,
                              out ? out->n : 0};
            if (may_retire(series, peer->n_ins))
                s->in_received = s->in_opened = s->in_told_received = s->in_told_opened = 0;
            if (may_retire(series, n_outs))
                s->out_received = s->out_opened = s->out_n = 0;
            HOLDS(is.in_received >= s->in_received && is.in_opened >= s->in_opened);
            HOLDS(is.in_told_received >= s->in_told_received);
            HOLDS(is.in_told_opened >= s->in_told_opened);
            HOLDS(is.out_received >= s->out_received && is.out_opened >= s->out_opened);
            HOLDS(is.out_n >= s->out_n);
            *s = is;
        }
}

/* Bytes that are on their way to a receive fit into it. */
static void look_at_bulk(const struct tcp_connection *c)
{
    if (!c->left || !c->stream)
        return;
    HOLDS(is_in(c->from, c->stream));
    if (*run.why)
        return;
    const struct tcp_receive *r = c->stream->receives;
    HOLDS(r && c->stream->total && c->left <= c->stream->total - c->stream->offset);
    HOLDS(!c->into || !r ||
          (c->into == r->p + c->stream->offset && c->stream->total <= r->bytes));
}

static long look_at_connections(const struct tcp_link *link)
{
    long blocks = 0;
    int strangers = 0;

    for (struct tcp_connection *c = link->connections; c; c = c->next) {
        strangers += c->strange;
        blocks += 1 + (c->in != c->first_in) + (c->out != c->first_out);
        HOLDS(c->in_at <= c->in_n && c->in_n <= c->in_room);
        HOLDS(c->out_at <= c->out_n && c->out_n <= c->out_room);
        if (c->broken)
            continue;
        HOLDS(c->state != TCP_OPEN || (c->peer && c->peer->connection == c));
        HOLDS(c->state != TCP_LISTENS || c->strange);
        HOLDS(c->state != TCP_OPEN || sockets_low(c->fd) == (c->left ? c->left : 1));
        HOLDS(!c->full || c->polled_out);
        look_at_bulk(c);
    }
    HOLDS(strangers == link->n_strangers && strangers <= TCP_STRANGERS);
    return blocks;
}

/* Rank 0 of a star holds no more for others than it may, and counts it. */
static long look_at_passed(const struct tcp_link *link)
{
    long blocks = 0;
    uint32_t held[RANKS][RANKS] = {{0}};

    for (int k = 0; k < link->size && link->peers; k++) {
        const struct tcp_peer *peer = &link->peers[k];
        blocks += peer->pairs != NULL;
        for (const struct tcp_passed *f = peer->passed; f; f = f->next, blocks++) {
            HOLDS(f->to == peer && f->turn);
            held[f->from->rank][k] += (uint32_t)f->bytes;
        }
    }
    for (const struct tcp_connection *c = link->connections; c; c = c->next) {
        const struct tcp_passed *under_way[] = {c->reads, c->writes};
        for (int i = 0; i < 2; i++)
            if (under_way[i]) {
                held[under_way[i]->from->rank][under_way[i]->to->rank] +=
                    (uint32_t)under_way[i]->bytes;
                blocks++;
            }
    }
    for (int k = 0; k < link->size && link->peers; k++)
        for (int j = 0; link->peers[k].pairs && j < link->size; j++) {
            const struct tcp_pair *pair = &link->peers[k].pairs[j];
            HOLDS(pair->held == held[k][j] && pair->left >= pair->told_left);
            HOLDS(pair->held <= tcp_window(link) + sizeof(struct tcp_frame));
        }
    return blocks;
}

static void look(void)
{
    const struct tcp_link *link = run.link;
    long blocks = 1 + (link->ended != NULL) + (link->told != NULL) +
                  (link->news != NULL) + (link->told_news != NULL) +
                  (link->peers != NULL) + (link->names != NULL) +
                  (link->owes_place != NULL);

    blocks += look_at_connections(link);
    if (run.star)
        blocks += look_at_passed(link);
    for (int tag = 0; tag < LINK_TAGS; tag++)
        for (const struct tcp_receive *r = link->any[tag]; r; r = r->next)
            blocks++;
    for (int k = 0; link->peers && k < link->size && !*run.why; k++) {
        blocks += look_at_ins(&link->peers[k]) + look_at_outs(&link->peers[k]);
        if (k < RANKS)
            look_back(&link->peers[k]);
        HOLDS(link->peers[k].n_ins <= TCP_STREAMS + OPS);
        HOLDS(!tcp_is_far(&link->peers[k]) || !link->peers[k].connection ||
              link->peers[k].connection == link->peers[0].connection);
    }
    if (memory_live() - run.live != blocks)
        BROKEN("%ld blocks of memory are taken, and %ld accounted for",
               memory_live() - run.live, blocks);
}

static void take_news(const struct link_news *news)
{
    for (int i = 0; i < news->n_peers; i++) {
        const struct link_peer *is = &news->peers[i];
        HOLDS(is->rank >= 0 && is->rank < run.link->size && is->generation);
        int rank = turned(is->rank, 1);
        if (rank >= RANKS)
            continue;
        HOLDS(is->gone ? run.there[rank] == is->generation && !run.gone[rank]
                       : !run.there[rank]);
        run.there[rank] = is->generation;
        run.gone[rank] = is->gone;
        tcp_bytes_sum.gone += is->gone;
        tcp_bytes_sum.known += !is->gone;
    }
    for (int i = 0; i < news->n_ended; i++) {
        struct op *op = news->ended[i].op;
        const struct link_ended *is = &news->ended[i];
        HOLDS(op >= run.ops && op < run.ops + run.n_ops && op->open);
        if (*run.why)
            return;
        HOLDS(is->failed || !op->receives || is->bytes <= op->size ||
              is->bytes == LINK_TOO_LONG);
        HOLDS(is->failed || (is->from >= 0 && is->from < run.link->size));
        tcp_bytes_sum.failed += is->failed;
        tcp_bytes_sum.words += !is->failed && op->receives && is->bytes <= LINK_WORD;
        tcp_bytes_sum.bulk += !is->failed && op->receives && is->bytes > LINK_WORD;
        tcp_bytes_sum.sent += !is->failed && !op->receives;
        end_op(op);
    }
}

static void collect(uint8_t how)
{
    static const unsigned ms[] = {0, 0, 0, 0, 1, 20, 60, 101, 310, 501, 1000, 2001, 3001,
                                  5001, 8000, 60000};
    struct link_news news;

    if (!takes_steps())
        return;
    sockets_pass(ms[how] * MS);
    bool good = link_tcp.collect(&run.link->link, &news);
    HOLDS(good == !run.link->failed);
    const char *why = link_tcp.why(&run.link->link);
    if (!good && !strstr(why, "a newer process"))
        BROKEN("the link failed: %s", link_tcp.why(&run.link->link));
    if (good)
        take_news(&news);
    look();
}

/* --- the script --- */

static void step(void)
{
    static const size_t most[] = {SIZE_MAX, 1, 7, 60, 5000}, room[] = {SIZE_MAX, 0, 1, 50,
                                                                      3000, 200000};
    uint8_t b = next(), a = b >> 4, first;
    int fd = sockets_nth(a);
    bool needs = false;

    switch ((enum tcp_step)(b & 15)) {
    case STEP_COLLECT:
        collect(a);
        break;
    case STEP_STRANGER:
        fd = sockets_stranger();
        if (fd >= 0)
            sockets_limit(fd, run.read_most, SIZE_MAX);
        break;
    case STEP_RAW:
        for (first = next(); first > 0; first--) {
            uint8_t byte = next();
            if (fd >= 0)
                sockets_put(fd, &byte, 1);
        }
        break;
    case STEP_RECEIVE:
        begin_message(a, true);
        break;
    case STEP_SEND:
        begin_message(a, false);
        break;
    case STEP_FORGET:
        forget(a);
        break;
    case STEP_DIAL:
        sockets_dial((enum sockets_dial)(a % 5));
        if (a & 8 && fd >= 0)
            sockets_connect(fd);
        break;
    case STEP_BREAK:
        if (fd >= 0)
            sockets_hang_up(fd, next() & 1);
        break;
    case STEP_LIMIT:
        first = next();
        if (fd >= 0)
            sockets_limit(fd, most[first % 5], room[first / 5 % 6]);
        break;
    default:
        needs = true;
    }
    if (!needs || fd < 0)
        return;
    switch ((enum tcp_step)(b & 15)) {
    case STEP_HELLO:
        first = next();
        put_hello(fd, first, next());
        break;
    case STEP_WORD:
        put_of_stream(fd, TCP_WORD);
        break;
    case STEP_BULK:
        put_of_stream(fd, TCP_BULK);
        break;
    case STEP_WANT:
        put_of_stream(fd, TCP_WANT);
        break;
    case STEP_TAKEN:
        put_of_stream(fd, TCP_TAKEN);
        break;
    case STEP_TALK:
        talk(fd);
        break;
    case STEP_FLOOD:
        flood(fd);
        break;
    default:
        break;
    }
}

enum { GENERATION = 4 };

/* While the rank meets, and while it closes. */
static void rest(void)
{
    int fd = sockets_nth(0);

    if (!run.link) {
        run.link = sockets_timer();
        run.link->generation = GENERATION;
    }
    if (run.meets && run.answers && fd >= 0) {
        const struct tcp_connection *c = connection_of(fd);
        if (c && c->state == TCP_GREETS) {
            put_hello(fd, 0, 0);
            run.answers = false;
        }
    } else if (run.at < run.n) {
        step();
    }
}

static void count_line(void *user, enum descant_level level, const char *line)
{
    (void)level, (void)line;
    ++*(long *)user;
}

static void begin(uint8_t first)
{
    static const size_t most[] = {1, 7, 60, SIZE_MAX};
    static const struct sockets_calls calls = {rest, hear_sent, hear_closed};
    static struct tcp_options options = {.host = "127.0.0.1", .port = "7000"};
    static long lines;
    const struct log log = {.fn = count_line, .user = &lines, .rank = -1};
    struct link_entry entry = {.context = &options, .rank = first & 3, .start_s = 2,
                               .log = &log};
    struct link_place place;

    options.most = first & 32 ? 2 : RANKS;
    entry.rank = entry.rank == 3 ? -1 : entry.rank;
    run.answers = first & 4;
    run.floods = (first & 192) == 192;
    run.star = options.star = (first & 192) == 64;
    entry.lazy = (first & 192) == 128;
    entry.hub = run.star && entry.rank == 0;
    entry.rank -= run.star && entry.rank > 0;
    run.read_most = most[first / 8 % 4];
    sockets_begin(&calls);
    run.meets = true;
    struct link *link = link_tcp.meet(&entry, &place);
    run.meets = false;
    run.link = (struct tcp_link *)(void *)link;
    if (!link)
        return;
    tcp_bytes_sum.met++;
    run.link->generation = GENERATION;
    run.link->log = NULL;
    HOLDS(place.rank >= 0 && place.rank < place.size && place.size <= TCP_RANKS);
}

static void end_ops(void)
{
    for (int i = 0; i < run.n_ops; i++) {
        struct op *op = &run.ops[i];
        if (!op->p)
            continue;
        look_beside(op);
        for (size_t k = 0; !op->open && k < op->size; k++)
            if (op->p[k] != BLANK) {
                BROKEN("byte %zu of a message that had ended was written", k);
                break;
            }
        free(op->p);
    }
}

bool tcp_bytes_run(const uint8_t *bytes, size_t n, char *why)
{
    *why = 0;
    memset(&run, 0, sizeof run);
    run.bytes = bytes;
    run.n = n;
    run.why = why;
    run.live = memory_live();
    begin(next());
    while (run.link && run.at < run.n && !*why)
        step();
    collect(0);
    collect(4);
    run.closes = true;
    if (run.link)
        link_tcp.close(&run.link->link, true);
    run.link = NULL;
    end_ops();
    int left = sockets_end();
    if (left > 0)
        BROKEN("%d descriptors are open after a close", left);
    if (memory_live() != run.live)
        BROKEN("%ld blocks of memory are taken after a close", memory_live() - run.live);
    return !*why;
}

/* --- scripts that reach something --- */

#define STEP(step, argument) (uint8_t)(step | argument << 4)
#define COLLECTS STEP(STEP_COLLECT, 0)
#define GOES_ON(c) STEP(STEP_TALK, c), 0, 0
#define RANK_1_COMES STEP(STEP_STRANGER, 0), COLLECTS, STEP(STEP_HELLO, 0), 2, 0, COLLECTS

enum { ALL = 24, SEVEN = 8, ANSWERED = 4, STAR = 64 };     /* of the first byte */

/* Words before and behind their receives, bulk into two, and one that is too long. */
static const uint8_t messages[] = {
    ALL, RANK_1_COMES, GOES_ON(0),
    STEP(STEP_RECEIVE, 1), 0, 3, STEP(STEP_WORD, 0), 0, 2, 0, COLLECTS,
    STEP(STEP_WORD, 0), 0, 3, 0, COLLECTS, STEP(STEP_RECEIVE, 1), 0, 3, COLLECTS,
    STEP(STEP_WANT, 0), 1, 7, 0, COLLECTS, STEP(STEP_RECEIVE, 1), 1, 7, COLLECTS,
    STEP(STEP_BULK, 0), 65, 7, 0, COLLECTS, STEP(STEP_BULK, 0), 1, 7, 0, COLLECTS,
    STEP(STEP_RECEIVE, 1), 1, 5, STEP(STEP_BULK, 0), 1, 8, 0, COLLECTS,
    STEP(STEP_BULK, 0), 1, 8, 0, COLLECTS,
    STEP(STEP_RECEIVE, 1), 2, 3, STEP(STEP_WORD, 0), 2, 2, 0, COLLECTS};

/* The rank sends words, and bulk that its receiver has room for. */
static const uint8_t sends[] = {
    ALL, RANK_1_COMES, GOES_ON(0), COLLECTS,
    STEP(STEP_SEND, 1), 0, 3, COLLECTS, STEP(STEP_TAKEN, 0), 64, 1, 0, COLLECTS,
    STEP(STEP_SEND, 1), 1, 8, COLLECTS, STEP(STEP_TAKEN, 0), 1, 1, 0, COLLECTS,
    STEP(STEP_TAKEN, 0), 65, 0, 0, COLLECTS};

/* A connection breaks in the middle of bulk each way, and rank 1 comes again. */
static const uint8_t breaks[] = {
    ALL, RANK_1_COMES, GOES_ON(0),
    STEP(STEP_RECEIVE, 1), 1, 7, STEP(STEP_SEND, 1), 1, 8, COLLECTS,
    STEP(STEP_LIMIT, 0), 20, STEP(STEP_TAKEN, 0), 1, 1, 0, COLLECTS,
    STEP(STEP_BULK, 0), 65, 7, 0, COLLECTS, STEP(STEP_BREAK, 0), 1, COLLECTS,
    RANK_1_COMES, GOES_ON(0), COLLECTS, STEP(STEP_BULK, 0), 1, 7, 0, COLLECTS,
    STEP(STEP_TAKEN, 0), 65, 1, 0, COLLECTS, STEP(STEP_TALK, 0), 1, 0, COLLECTS};

/* A series is given up while bulk of it comes and leaves. */
static const uint8_t gives_up[] = {
    ALL, RANK_1_COMES, GOES_ON(0),
    STEP(STEP_RECEIVE, 1), 5, 8, STEP(STEP_SEND, 1), 5, 8, COLLECTS,
    STEP(STEP_LIMIT, 0), 24, STEP(STEP_TAKEN, 0), 5, 1, 0, COLLECTS,
    STEP(STEP_BULK, 0), 69, 8, 0, COLLECTS, STEP(STEP_FORGET, 8), 2, COLLECTS,
    STEP(STEP_LIMIT, 0), 0, COLLECTS, STEP(STEP_BULK, 0), 5, 8, 0, COLLECTS};

/* Rank 2 meets rank 0, hears of rank 1, and dials it. */
static const uint8_t dials[] = {
    2 | ANSWERED | SEVEN, COLLECTS, COLLECTS, GOES_ON(0), STEP(STEP_TALK, 0), 2, 1,
    COLLECTS, COLLECTS, STEP(STEP_COLLECT, 5), COLLECTS, STEP(STEP_HELLO, 1), 2, 0, COLLECTS, COLLECTS,
    STEP(STEP_DIAL, 1), STEP(STEP_BREAK, 1), 0, COLLECTS, STEP(STEP_COLLECT, 8),
    STEP(STEP_COLLECT, 9), STEP(STEP_COLLECT, 9), COLLECTS};

/* Rank 0 dies, and its host resets the first try to connect, for the process had not ended. */
#define IN_60_MS STEP(STEP_COLLECT, 6), COLLECTS
static const uint8_t dies[] = {
    2 | ANSWERED | ALL, COLLECTS, COLLECTS, GOES_ON(0), COLLECTS, STEP(STEP_DIAL, 4),
    STEP(STEP_BREAK, 0), 1, COLLECTS, COLLECTS, STEP(STEP_DIAL, 2), IN_60_MS, IN_60_MS, IN_60_MS};

/* Strangers: another protocol, replays, noise, many streams. */
static const uint8_t strangers[] = {
    ALL, STEP(STEP_STRANGER, 0), STEP(STEP_STRANGER, 0), STEP(STEP_STRANGER, 0), COLLECTS,
    STEP(STEP_HELLO, 0), 2, 1, STEP(STEP_HELLO, 1), 2, 0, STEP(STEP_HELLO, 2), 2, 0,
    COLLECTS, STEP(STEP_RAW, 2), 3, 1, 2, 3, COLLECTS, COLLECTS, COLLECTS, STEP(STEP_SEND, 1), 0, 3,
    STEP(STEP_RECEIVE, 1), 0, 3, STEP(STEP_COLLECT, 13)};

/* TAKEN of more streams than a peer may name, and then a message of the rank's own. */
static const uint8_t streams[] = {
    ALL | 192, RANK_1_COMES, GOES_ON(0), STEP(STEP_FLOOD, 0), 3, 128, COLLECTS,
    STEP(STEP_SEND, 1), 0, 3, STEP(STEP_RECEIVE, 1), 0, 3, COLLECTS};

/* A word has come, and its stream is at rest behind so many others that it is given up. */
static const uint8_t rests[] = {
    ALL | 192, RANK_1_COMES, GOES_ON(0), STEP(STEP_RECEIVE, 1), 4, 3,
    STEP(STEP_WORD, 0), 4, 2, 0, COLLECTS, STEP(STEP_FLOOD, 0), 0, 70, COLLECTS, COLLECTS,
    STEP(STEP_RECEIVE, 1), 8, 3, COLLECTS};

/* Words without receives, one more than a peer may say. */
#define WORD STEP(STEP_WORD, 0), 0, 2, 0, COLLECTS
#define FOUR_WORDS WORD, WORD, WORD, WORD
static const uint8_t words[] = {ALL, RANK_1_COMES, GOES_ON(0), FOUR_WORDS, FOUR_WORDS,
                                FOUR_WORDS, FOUR_WORDS, WORD};

/* A peer says that it has bulk whose last bytes have not left. */
static const uint8_t lies[] = {
    ALL, RANK_1_COMES, GOES_ON(0), COLLECTS, STEP(STEP_SEND, 1), 1, 6, COLLECTS,
    STEP(STEP_LIMIT, 0), 15, STEP(STEP_TAKEN, 0), 1, 1, 0, COLLECTS,
    STEP(STEP_TAKEN, 0), 65, 0, 0, COLLECTS, STEP(STEP_LIMIT, 0), 0, COLLECTS};

/* Rank 2 forgets rank 0 before it is told that rank 0 is there. */
static const uint8_t forgets[] = {2 | ANSWERED | ALL, STEP(STEP_FORGET, 0), 8, COLLECTS,
                                  COLLECTS};

/* Rank 0 of a star passes on a word and bulk from rank 1 to rank 2, which breaks. */
static const uint8_t hub[] = {
    ALL | STAR, RANK_1_COMES, GOES_ON(0), STEP(STEP_STRANGER, 0), COLLECTS,
    STEP(STEP_HELLO, 1), 3, 0, COLLECTS, GOES_ON(1), COLLECTS, STEP(STEP_TALK, 0), 10, 0,
    STEP(STEP_WORD, 0), 32, 2, 0, COLLECTS, STEP(STEP_BULK, 0), 32, 8, 0, COLLECTS,
    STEP(STEP_LIMIT, 1), 5, STEP(STEP_BULK, 0), 32, 8, 0, STEP(STEP_BULK, 0), 32, 8, 0,
    STEP(STEP_WORD, 1), 16, 2, 0, COLLECTS, STEP(STEP_BREAK, 1), 1, COLLECTS,
    STEP(STEP_COLLECT, 14), COLLECTS};

/* Rank 2 of a star meets rank 1 through rank 0, and forgets it. */
#define MEETS_1 STEP(STEP_TALK, 0), 2, 1, COLLECTS, STEP(STEP_TALK, 0), 5, 0, COLLECTS
static const uint8_t far[] = {
    2 | ANSWERED | ALL | STAR, COLLECTS, COLLECTS, GOES_ON(0), MEETS_1,
    STEP(STEP_RECEIVE, 1), 0, 3, STEP(STEP_WORD, 0), 16, 2, 0, COLLECTS,
    STEP(STEP_RECEIVE, 1), 1, 7, STEP(STEP_SEND, 1), 1, 8, COLLECTS,
    STEP(STEP_LIMIT, 0), 20, STEP(STEP_TAKEN, 0), 17, 1, 0, COLLECTS,
    STEP(STEP_BULK, 0), 81, 7, 0, COLLECTS, MEETS_1, STEP(STEP_LIMIT, 0), 0,
    STEP(STEP_BULK, 0), 17, 7, 0, COLLECTS, STEP(STEP_TAKEN, 0), 81, 0, 0, COLLECTS,
    STEP(STEP_FORGET, 1), 8, COLLECTS, MEETS_1};

#define SEED(of) {#of, of, sizeof of}
const struct tcp_bytes_seed tcp_bytes_seeds[] = {SEED(messages), SEED(sends), SEED(breaks),
                                                 SEED(gives_up), SEED(dials),
                                                 SEED(strangers), SEED(streams), SEED(words),
                                                 SEED(lies), SEED(forgets), SEED(rests), SEED(dies),
                                                 SEED(hub), SEED(far)};
const int n_tcp_bytes_seeds = sizeof tcp_bytes_seeds / sizeof *tcp_bytes_seeds;
