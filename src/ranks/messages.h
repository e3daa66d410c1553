/* SPDX-License-Identifier: MIT */
/* Messages in flight between ranks, and pairs of a request and its answer. */
#ifndef RANKS_MESSAGES_H
#define RANKS_MESSAGES_H

#include "link/link.h"

enum ranks_tag {
    TAG_WORD = 1, TAG_MANIFEST, TAG_GIVE, TAG_TELL, TAG_STATE, TAG_ASK, TAG_ROWS,
    TAG_POST, TAG_POST_TAKEN, TAG_WANT, TAG_VERSION,
    TAG_ANSWER          /* the first of one for each seat of elastic.h */
};

struct ranks;

/* A message in flight. Its record stays where it is, and tells what to do when it has
 * ended. */
struct ranks_op {
    void (*ended)(struct ranks *m, struct ranks_op *op, const struct link_ended *ended);
    int rank;                   /* to or from whom */
    unsigned slot;
    bool busy;
    bool any_length;            /* a receive: up to `most` bytes, else just as many */
    bool even_failed;           /* `ended` is called, too, where the peer has gone */
    bool piece;                 /* of a round */
    uint16_t tag;
    uint32_t most;              /* 0: it is a send */
    float *floats;              /* a piece: its buffer */
    void *of;                   /* a piece: its lane, or its hearer; else its request */
};

/* A request and its answer, at the head of a record of their user's; its memory is one
 * block. Where the peer holds a request up, another takes its place, and it is parked:
 * it goes once nothing of it is under way. */
struct ranks_request {
    struct ranks_op send, receive;
    void *out, *in;                     /* what they carry */
    bool parked;
    struct ranks_request *next;         /* parked */
};

/* All of one kind. */
struct ranks_requests {
    size_t record, out_bytes, in_bytes; /* of each */
    void (*sent)(struct ranks *m, struct ranks_op *op, const struct link_ended *ended);
    void (*received)(struct ranks *m, struct ranks_op *op,
                     const struct link_ended *ended);
    struct ranks_request *parked;
};

#endif
