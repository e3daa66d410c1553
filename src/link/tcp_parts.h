/* SPDX-License-Identifier: MIT */
/* The parts of the link over TCP; for its files alone, which call each other downwards:
 *
 *   tcp.c           the link's table: meeting, collecting, sleeping, closing
 *   tcp_turn.c      one turn: sockets are read, dialled, swept away and written
 *   tcp_meet.c      HELLO, and addresses: who is there, and who is not any more
 *   tcp_star.c      a star: ranks that meet each other through rank 0
 *   tcp_peers.c     a peer comes, goes, is forgotten
 *   tcp_socket.c    connections: bytes between sockets and frames
 *   tcp_pass.c      a star: frames that rank 0 passes on from one rank to another
 *   tcp_stream.c    messages, and the frames by which they travel; it knows no socket
 *   tcp_out.c       the sender's side of a stream
 *   tcp_in.c        the receiver's side
 *   tcp_ended.c     what both sides do
 *   tcp_options.c   the address
 *
 * The link's thread (link.h, 1) has everything; a sleeper beside it touches the
 * descriptor `epoll` alone. */
#ifndef LINK_TCP_PARTS_H
#define LINK_TCP_PARTS_H

#include "base/base.h"
#include "link/tcp.h"
#include "link/tls.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/uio.h>

enum { TCP_CHUNK = 128 << 10 };         /* bytes of bulk in one frame */
enum { TCP_STREAMS = 1024 };            /* from one peer at a time */
enum { TCP_KEPT = TCP_STREAMS / 4 };    /* of those at rest (tcp_stream.c, 5) */
enum { TCP_PROTOCOL = 2, TCP_RANKS = 4096, TCP_MEETINGS = 8 };

enum tcp_what {
    TCP_HELLO, TCP_REFUSED, TCP_WORD, TCP_BULK, TCP_WANT, TCP_TAKEN, TCP_GOES_ON,
    TCP_PEER, TCP_BYE, TCP_ROOM, TCP_KINDS
};

struct tcp_frame {
    uint8_t what, tag;
    uint16_t rank;              /* star: the other rank that it is for, or from; 0: this
                                   connection's own two */
    uint32_t bytes;             /* that follow */
    uint64_t series, index;     /* of the stream; of the message in it */
    uint64_t total;             /* bytes of the message; TAKEN: receives */
    uint32_t offset;
    uint32_t turn;              /* star: of these two ranks' meetings */
};

struct tcp_hello {
    char magic[8];
    uint32_t protocol, most;
    int32_t rank, to;           /* the sender's, -1: it wants one; the receiver's, as the
                                   sender believes */
    uint64_t generation, to_generation;     /* 0: any */
    uint16_t port;              /* where it listens, at the address that it comes from; as
                                   in a sockaddr */
    uint8_t star;               /* 1: its address says so */
    uint8_t unused[5];
    char name[LINK_NAME_ROOM];  /* of its machine, for people */
};

/* Where a rank listens, as another one is told; in a star, that it may be reached. */
struct tcp_place {
    int32_t rank;
    uint16_t port, family;      /* family 0: on rank 0's machine */
    uint64_t generation;
    uint8_t address[16];
    uint32_t turn, window;      /* star: 0: this generation is gone; else bytes to it that
                                   rank 0 has room for */
    char name[LINK_NAME_ROOM];  /* star: of its machine */
};

/* --- messages: tcp_stream.c --- */

struct tcp_message {
    struct tcp_message *next;
    const unsigned char *p;     /* the sender's memory, or `copy` */
    size_t bytes;
    void *op;
    uint64_t index;
    bool open;                  /* it has not ended for its sender */
    unsigned char copy[];
};

/* Messages to a peer that it has not said to have whole. */
struct tcp_out {
    struct tcp_out *next, *next_ready;
    int tag;
    uint64_t series, n;         /* n: messages so far */
    uint64_t opened, received;  /* at the other end, as it has said */
    struct tcp_message *first, *last, *at;      /* at: the next to leave, */
    size_t offset;                              /* from there on */
    int n_uncopied;             /* words for which there was no room */
    bool ready, wanted;         /* in the line of those that may send; WANT was sent */
};

struct tcp_receive {
    struct tcp_receive *next;
    unsigned char *p;
    size_t bytes;
    void *op;
    bool any;                   /* it was from LINK_ANY */
};

struct tcp_word {
    struct tcp_word *next;
    size_t bytes;
    unsigned char p[];
};

/* Messages from a peer. There are receives without messages, or words without receives,
 * and never both. */
struct tcp_in {
    struct tcp_in *next, *next_owed;
    int tag;
    uint64_t series, received, opened;
    uint64_t told_received, told_opened;
    struct tcp_receive *receives, *last_receive;
    struct tcp_word *words, *last_word;
    uint64_t want;              /* bytes of the next message, which waits for room; 0 */
    uint64_t total, offset;     /* of bulk that is coming; total 0: none is */
    bool owed;                  /* in the line of those that TAKEN is to be sent for */
};

struct tcp_peer {
    struct tcp_link *link;
    int rank;
    uint64_t below;             /* series that this end is through with */
    struct tcp_out *outs, *ready, *last_ready;
    struct tcp_in *ins, *owed, *last_owed;
    int n_ins;
    bool urges;                 /* one of those that are owed is not to wait */
    uint64_t owed_ns;           /* since when they wait */
    bool goes_on, told_goes_on; /* GOES_ON has come and left on this connection */
    /* tcp_meet.c */
    uint64_t generation;        /* 0: no process is there */
    uint64_t newest;            /* generation that was ever there */
    bool told;                  /* collect has told that it is there */
    bool gone, listens;         /* listens: `address` is known */
    char host[LINK_NAME_ROOM];  /* as it says */
    struct tcp_connection *connection;      /* NULL: there is none that is open */
    struct tcp_connection *dialing;
    struct sockaddr_storage address;
    uint64_t at;                /* generation of the process that listens there */
    uint64_t dial_ns;           /* not before then */
    uint64_t refused_ns;        /* since then no process listens there; 0 */
    unsigned tests;             /* since its connection broke: times that it listened */
    /* A star, where this rank is 0 (tcp_pass.c). */
    struct tcp_pair *pairs;     /* (size) from it to each other rank, once it came */
    struct tcp_passed *passed, *last_passed;    /* to it, in their order */
    uint64_t closed_ns;         /* since then its host has closed its connection; 0 */
    bool owes;                  /* rank 0: PEER or ROOM; else BYE, of peers[0] */
    /* A star, where neither this rank nor the peer is 0. `connection` is rank 0's while
       the two meet in `turn`. */
    uint32_t turn, next_turn;   /* next: of process `at`, which comes once the one before
                                   it is forgotten; 0: none */
    uint32_t bye_turn;          /* BYE is to be sent; 0 */
    uint32_t window;
    uint64_t sent, room;        /* bytes in this turn; so many may be */
    bool next_goes_on;          /* GOES_ON has come in next_turn */
};

/* --- a star: tcp_pass.c --- */

enum { TCP_PART = 32 << 10 };           /* bytes of bulk in one frame that is passed on */

/* Frames from one rank to another, at rank 0, which passes them on. */
struct tcp_pair {
    uint64_t left, told_left;   /* bytes in this turn that are held no more; as the
                                   sender was told */
    uint32_t turn;              /* 0: they do not meet */
    uint32_t held;              /* bytes */
};

/* A frame that rank 0 has, or reads. */
struct tcp_passed {
    struct tcp_passed *next;
    struct tcp_peer *from, *to;
    uint32_t turn;
    size_t bytes;
    unsigned char p[];          /* its head, with the sender's rank, and what follows */
};

/* --- connections: tcp_socket.c --- */

enum { TCP_IN = 16 << 10, TCP_OUT = 32 << 10 };      /* of a peer that is known, */
enum { TCP_FIRST = 2 << 10 };                        /* and before that, each way */
enum { TCP_STRANGERS = 256 };           /* connections that are no peer's, at a time */
enum { TCP_BREAKS_MS = 8000 };          /* bytes that are not confirmed for so long break
                                           a connection */

enum tcp_state {
    TCP_CONNECTING, TCP_GREETS, TCP_LISTENS,    /* LISTENS: for a stranger's HELLO */
    TCP_OPEN, TCP_ENDS                          /* ENDS: it is closed once all is sent */
};

struct tcp_connection {
    struct tcp_connection *next;
    struct tcp_link *link;
    struct tcp_peer *peer;      /* NULL: not known so far */
    int fd;
    enum tcp_state state;
    uint64_t since_ns;          /* of its state */
    struct tls_peer *tls;       /* NULL: bytes go as they are */
    bool shakes;                /* TLS has not ended its handshake */
    bool polled_out;            /* epoll looks at whether it takes bytes */
    bool full;                  /* it took no more, and epoll has told nothing since */
    bool bye, shut;             /* ENDS: BYE is to be sent; nothing more is */
    bool broken, bad;           /* to be swept away; bad: the peer has broken
                                   the protocol */
    bool strange;               /* accepted, and no peer's so far: it is counted */
    int error;                  /* of connect; of the socket's end; 0 */
    /* coming: frames from in[in_at, in_n); `left` bytes of a frame go to `into`, or
       nowhere */
    unsigned char *in;          /* (in_room) */
    size_t in_room, in_at, in_n, left;
    int low;                    /* epoll tells once so many bytes have come */
    size_t swallowed;           /* bytes that came after its end */
    unsigned char *into;
    struct tcp_in *stream;      /* that the bulk is of; NULL: thrown away */
    struct tcp_peer *from;      /* whose stream it is */
    struct tcp_passed *reads;   /* a frame to be passed on */
    /* going: out[out_at, out_n), then chunk_left bytes of `chunk`, which are chunk_of's,
       or zeros */
    unsigned char *out;         /* (out_room) */
    size_t out_room, out_at, out_n, chunk_left;
    const unsigned char *chunk;
    struct tcp_out *chunk_of;
    struct tcp_peer *to;        /* whose stream it is */
    struct tcp_passed *writes;  /* the chunk is this frame */
    int turn;                   /* star: the rank whose frame was the last to leave; rank
                                   0's: 1: it was passed on */
    char why[TCP_TEXT];         /* it is of no use, where there are words */
    unsigned char first_in[TCP_FIRST], first_out[TCP_FIRST];
};

struct tcp_link {
    struct link link;           /* first */
    const struct log *log;
    struct tcp_options options;
    struct tls *tls;            /* NULL: the job stays on this machine, or is insecure */
    int rank, size, epoll, timer, listener;
    int turn;                   /* the peer whose message was the last to take a receive
                                   from LINK_ANY */
    uint64_t generation, now_ns, timer_ns;
    uint64_t below;             /* series that it is through with, of all peers */
    struct tcp_peer *peers;     /* (size) */
    struct tcp_receive *any[LINK_TAGS], *last_any[LINK_TAGS];
    struct tcp_connection *connections;
    struct tcp_connection *meeter;      /* while this rank has none */
    int n_strangers;                    /* that are open */
    int meet_error;                     /* errno of the meeter's last try */
    int n_unmet;                        /* tries that TLS has refused */
    uint64_t full_ns;                   /* since then rank 0 has no free rank; 0 */
    bool holds;                 /* so many strangers that no more are let in */
    bool *owes_place;           /* rank 0: (size, size) the first is to be told of the
                                   second; NULL elsewhere */
    bool again;                 /* a connection that was written may have more to say */
    uint32_t n_turns;           /* rank 0 of a star: of all ranks' meetings */
    struct sockaddr_storage meeting;    /* rank 0's address, */
    struct sockaddr_storage meetings[TCP_MEETINGS];     /* of those that its name has */
    int n_meetings, next_meeting;
    bool lazy;                  /* TAKEN may wait (link.h), where the sender has room */
    double rate;                /* bytes a second of each connection; 0: no limit */
    struct sockaddr_storage from;   /* the interface's address; family 0: any */
    uint16_t port;              /* where this rank listens */
    struct link_ended *ended, *told;
    int n_ended, ended_room, told_room;
    struct link_peer *news, *told_news;
    int n_news, news_room, told_news_room;
    uint64_t said_ns, n_unsaid; /* of strangers */
    bool failed, met;           /* met: its rank and size are known */
    bool closing;               /* only words leave */
    /* Set by the link's thread, or by a sleeper, before either looks at the other one. */
    _Atomic bool stirs;         /* collect has something to do or to tell */
    _Atomic int sleepers;
    int bell;                   /* eventfd: a sleeper is woken */
    char why[TCP_TEXT], name[LINK_NAME_ROOM];
    char (*names)[LINK_NAME_ROOM];
    unsigned char nowhere[TCP_IN];      /* bytes that are thrown away */
};

/* --- tcp_ended.c --- */

void tcp_ended(struct tcp_link *link, struct link_ended ended);
bool tcp_no_memory(struct tcp_link *link);      /* the link has failed: false */
bool tcp_is_through(const struct tcp_peer *peer, uint64_t series);
bool tcp_is_below(uint64_t series, uint64_t below);
/* Writes a frame, with its bytes if there are any, and returns how many. */
size_t tcp_put(unsigned char *to, struct tcp_frame frame, const void *bytes);

/* --- tcp_out.c, tcp_in.c: each side's part of tcp_stream.c --- */

bool tcp_hear_taken(struct tcp_peer *peer, const struct tcp_frame *frame,
                    const char **why);
bool tcp_hear_in(struct tcp_peer *peer, const struct tcp_frame *frame,
                 const unsigned char *bytes, struct tcp_in **stream, unsigned char **into,
                 const char **why);
size_t tcp_write_out(struct tcp_peer *peer, unsigned char *to,
                     const unsigned char **chunk, size_t *chunk_bytes,
                     struct tcp_out **of);
size_t tcp_write_taken(struct tcp_peer *peer, unsigned char *to);
void tcp_owe_all(struct tcp_peer *peer);        /* TAKEN of all streams */
void tcp_give_up_out(struct tcp_peer *peer, uint64_t below);
void tcp_give_up_in(struct tcp_peer *peer, uint64_t below);

/* --- tcp_stream.c and its sides --- */

/* False: no memory. */
bool tcp_send(struct tcp_peer *peer, const void *p, size_t bytes,
              const struct link_message *message);
bool tcp_receive(struct tcp_peer *peer, void *p, size_t bytes,
                 const struct link_message *message);
bool tcp_receive_any(struct tcp_link *link, void *p, size_t bytes,
                     const struct link_message *message);
/* A frame that is of messages, with the bytes of a WORD. False: it breaks the protocol;
 * why says how. BULK: *into has where its bytes go, NULL: nowhere. */
bool tcp_hear(struct tcp_peer *peer, const struct tcp_frame *frame,
              const unsigned char *bytes, struct tcp_in **stream, unsigned char **into,
              const char **why);
/* The bytes of a BULK frame have come. */
void tcp_came(struct tcp_peer *peer, struct tcp_in *stream, size_t bytes);
/* Writes a frame that is due, of at most `room` bytes, and returns how many: 0, none is
 * due or has room. BULK: its bytes, and their stream, are to follow. */
size_t tcp_write(struct tcp_peer *peer, unsigned char *to, size_t room,
                 const unsigned char **chunk, size_t *chunk_bytes, struct tcp_out **of);
/* A new connection: TAKEN is owed of all streams, and messages that the other end lacks
 * are sent again once it has said which ones it has. */
void tcp_begin_again(struct tcp_peer *peer);
void tcp_go_on(struct tcp_peer *peer);
/* Messages below a series fail, or, LINK_PEER, all. */
void tcp_give_up(struct tcp_peer *peer, uint64_t below);
bool tcp_has_words(const struct tcp_peer *peer);    /* that have ended and not left */

/* --- tcp_pass.c --- */

static inline bool tcp_is_hub(const struct tcp_link *link)
{
    return link->options.star && link->rank == 0;
}

/* The other rank is reached through rank 0. */
static inline bool tcp_is_far(const struct tcp_peer *peer)
{
    return peer->link->options.star && peer->link->rank > 0 && peer->rank > 0;
}

uint32_t tcp_window(const struct tcp_link *link);   /* of frames from a rank to another */
/* A frame from this connection's rank to another one, with the bytes of a WORD. False: it
 * breaks the protocol; why says how. Bytes of BULK go to c->into. */
bool tcp_pass(struct tcp_connection *c, const struct tcp_frame *frame,
              const unsigned char *bytes, const char **why);
void tcp_pass_read(struct tcp_connection *c);       /* its bytes have come */
/* Takes the next frame for this connection's rank: into `to`, and returns its bytes; or
 * as its chunk. */
size_t tcp_pass_on(struct tcp_connection *c, unsigned char *to, size_t room);
void tcp_pass_written(struct tcp_connection *c);    /* that chunk */
void tcp_pass_drop(struct tcp_connection *c);       /* what it reads and writes */
void tcp_pass_clear(struct tcp_peer *to);   /* what is for it is thrown away */
bool tcp_tells_room(const struct tcp_link *link, const struct tcp_pair *pair);

/* --- tcp_socket.c --- */

struct tcp_connection *tcp_accept(struct tcp_link *link);
/* name: the one that the other end's certificate must have; NULL: any. */
struct tcp_connection *tcp_connect(struct tcp_link *link,
                                   const struct sockaddr_storage *address,
                                   const char *name);
/* TLS goes on. False: the connection has failed, and `why` says how, or waits. */
bool tcp_shake(struct tcp_connection *c);
/* Nothing more is said or heard; the other end has time to read what was said. */
void tcp_linger(struct tcp_connection *c);
void tcp_counts(struct tcp_connection *c, bool strange);    /* among the strangers */
bool tcp_is_known(struct tcp_connection *c);    /* its buffers grow; false: no memory */
void tcp_free(struct tcp_connection *c);
void tcp_drop(struct tcp_connection *c);        /* at once; its memory goes with sweep */
bool tcp_say(struct tcp_connection *c, struct tcp_frame frame, const void *bytes);
/* A whole frame that is not of messages. False: the connection is no good. */
typedef bool tcp_heard(struct tcp_connection *c, const struct tcp_frame *frame,
                       const unsigned char *bytes);
void tcp_read(struct tcp_connection *c, tcp_heard *heard);
/* Says what is due that is not of messages, of its peer's connection. False: there is no
 * room for all of it. */
typedef bool tcp_says(struct tcp_connection *c);
void tcp_flush(struct tcp_connection *c, tcp_says *says);
void tcp_swallow(struct tcp_connection *c);     /* reads, and throws the bytes away */
int tcp_error(struct tcp_connection *c);        /* of a connect that is over; errno */

/* --- times --- */

#define TCP_MS UINT64_C(1000000)
enum { TCP_AGAIN_MS = 500 };                    /* between two tries to connect */
enum { TCP_CLOSED_MS = 4000 };      /* a star: before a rank is gone that was closed, and
                                       does not come again */

static inline uint64_t tcp_after(const struct tcp_link *link, unsigned ms)
{
    return link->now_ns + ms * TCP_MS;
}

static inline bool tcp_is_there(const struct tcp_peer *peer)
{
    return peer->generation && !peer->gone;
}

/* This rank connects to the peer, and makes a connection anew that has broken. */
static inline bool tcp_mends(const struct tcp_link *link, const struct tcp_peer *peer)
{
    return link->rank > peer->rank;
}

/* --- tcp_peers.c --- */

bool tcp_make_peers(struct tcp_link *link);     /* once the size is known */
/* The connection is the peer's from now on. */
void tcp_opens(struct tcp_connection *c, struct tcp_peer *peer, uint64_t generation);
void tcp_comes(struct tcp_peer *peer, uint64_t generation);     /* if it was not there */
void tcp_goes(struct tcp_peer *peer);           /* collect tells, if it was there */
void tcp_forget(struct tcp_peer *peer);
void tcp_lost(struct tcp_peer *peer);           /* its connection is none any more */
/* This rank and a far peer meet no more; they meet, if they can. */
void tcp_part(struct tcp_peer *peer);
void tcp_begin_turn(struct tcp_peer *peer);

/* --- tcp_star.c --- */

/* Rank 0 tells others of a rank. False: it cannot yet. */
bool tcp_find_far_place(struct tcp_peer *to, struct tcp_peer *of,
                        struct tcp_place *place);
/* False: the connection has no room. */
bool tcp_say_room(struct tcp_connection *c, int rank);
bool tcp_say_byes(struct tcp_connection *c);
bool tcp_hear_far_place(struct tcp_peer *peer, const struct tcp_place *place);
bool tcp_hear_far(struct tcp_connection *c, const struct tcp_frame *frame);
bool tcp_has_left(const struct tcp_link *link);     /* nor is BYE owed to a far peer */

/* --- tcp_meet.c --- */

bool tcp_meet_heard(struct tcp_connection *c, const struct tcp_frame *frame,
                    const unsigned char *bytes);
void tcp_meet_connected(struct tcp_connection *c);      /* or it could not */
/* A try to connect is over; answers: the peer's host was heard. */
void tcp_dial_later(struct tcp_peer *peer, bool answers);
bool tcp_meet_says(struct tcp_connection *c);

/* --- tcp_turn.c --- */

/* Reads all sockets, does what is due by time, and then writes all that can leave. */
void tcp_turn(struct tcp_link *link);
/* Words that have ended leave, and then BYE. True: nothing is on its way any more. */
bool tcp_leaves(struct tcp_link *link);

/* In a star the process at the job's address, rank 0 here, is the hub, and the last rank
 * for the link's user; the others are his from 0. */
static inline int tcp_turned(const struct tcp_link *link, int rank, int by)
{
    return link->options.star && rank >= 0 ? (rank + by + link->size) % link->size : rank;
}

struct tcp_name {
    char text[24];
};

/* As people know it. */
static inline struct tcp_name tcp_name_of(const struct tcp_link *link, int rank)
{
    struct tcp_name name = {"the hub"};

    if (!link->options.star || rank > 0)
        snprintf(name.text, sizeof name.text, "rank %d",
                 link->options.star && rank > 0 ? rank - 1 : rank);     /* tcp_turned */
    return name;
}

#endif
