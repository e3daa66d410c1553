/* SPDX-License-Identifier: MIT */
/* Messages in flight between ranks, and pairs of a request and its answer. */
#ifndef RANKS_MESSAGES_H
#define RANKS_MESSAGES_H

#include "link/link.h"

enum ranks_tag {
    TAG_WORD = 1, TAG_MANIFEST, TAG_GIVE, TAG_TELL, TAG_STATE, TAG_ASK, TAG_ROWS,
    TAG_POST, TAG_POST_TAKEN, TAG_WANT, TAG_VERSION, TAG_FETCH,
    TAG_FETCHED,
    TAG_ANSWER          /* the first of one for each seat of elastic.h */
};

struct ranks;

/* A message in flight. Its record does not move, and `ended` is called when the message
 * has ended. */
struct ranks_op {
    void (*ended)(struct ranks *m, struct ranks_op *op, const struct link_ended *ended);
    int rank;                   /* the peer */
    unsigned slot;
    bool busy;
    bool any_length;            /* a receive: up to `most` bytes, else exactly `most` */
    bool even_failed;           /* `ended` is called also where the peer has gone */
    bool piece;                 /* of a round */
    uint16_t tag;
    uint32_t most;              /* 0: a send */
    float *floats;              /* a piece: its buffer */
    void *of;                   /* a piece: its lane, or its hearer; else its request */
};

/* A request and its answer, at the head of a user's record; record and buffers are one
 * block of memory. Where the peer holds a request up, the record is parked and another
 * takes its place; a parked record is given back once none of its messages is under
 * way. */
struct ranks_request {
    struct ranks_op send, receive;
    void *out, *in;                     /* the messages' buffers */
    bool parked;
    struct ranks_request *next;         /* parked */
};

/* All requests of one kind. */
struct ranks_requests {
    size_t record, out_bytes, in_bytes; /* of each */
    void (*sent)(struct ranks *m, struct ranks_op *op, const struct link_ended *ended);
    void (*received)(struct ranks *m, struct ranks_op *op,
                     const struct link_ended *ended);
    struct ranks_request *parked;
};

#endif
