/* SPDX-License-Identifier: MIT */
/* Words: the short messages by which ranks agree on members and rounds, and the lists
 * that follow some of them. Their layout is the protocol between ranks. */
#ifndef RANKS_WORDS_H
#define RANKS_WORDS_H

#include "ranks/ledger.h"

enum {
    RANKS_PROTOCOL = 23,        /* of the words and pieces between ranks */
    RANKS_TEXT = 640            /* bytes of a word's text, with its end */
};

enum ranks_what {
    /* to the coordinator; HERE also from it */
    WORD_HELLO,         /* it has started; its manifest follows */
    WORD_HERE,          /* its ledger's state and, if it has arrived, its exchange */
    WORD_LEAVE,         /* it begins nothing more; where the link is fixed */
    /* from the coordinator */
    WORD_CALL,          /* others wait for your arrival */
    WORD_GO,            /* the round is closed; runs of seats follow */
    WORD_VOID,          /* your elastic exchange goes on by itself */
    WORD_MEMBERS,       /* so many take part; `source` no longer does */
    WORD_LATE,          /* the ranks that your round waits for; struct awaited follows */
    WORD_FAIL,          /* the job has failed, or this newcomer differs; text follows */
    WORD_BYE,           /* all have left; where the link is fixed */
    WORD_ROWS, WORD_ROWS_CALL, WORD_ROWS_GO, WORD_ROWS_HAVE, WORD_ROWS_TAKE,
    WORD_LEAD,          /* see rows.c */
    WORD_FENCE, WORD_PROPOSE, WORD_STANDS, WORD_TAKE,   /* members.c */
    WORD_FORM,          /* from rank 0, where ranks come and go: the list with which the
                           job begins */
    WORD_ALIVE,         /* to a member of a round that lasts; final: to all, from one
                           that was told to end */
    WORD_ROWS_NONE, WORD_ROWS_LACK,     /* rows.c */
    WORD_AGREE, WORD_AGREE_HAVE, WORD_AGREED,   /* agree.c */
    WORD_BULLETIN,      /* figures; struct bulletin follows (bulletins.c) */
    WORD_ITEMS, WORD_DEAL       /* leases.h; struct ranks_items and its runs follow */
};

enum { N_WORDS = WORD_DEAL + 1 };

/* The ledger's part of a word (struct ledger_decision). */
struct ranks_ledger {
    uint64_t generation, epoch, ballot, accepted, arrival;
    struct ledger_version version, base;
    int32_t coordinator, about;
    uint32_t fresh, vouched, leaves, final, absent, cannot_give, hollow;
    int32_t slow;
    uint64_t slow_ns;
};

/* An entry of the list that follows such a word, or is part of a version. */
struct ranks_entry {
    int32_t rank;
    uint32_t unused;
    uint64_t generation, seq;   /* seq: of a version */
};

struct ranks_word {
    uint32_t what, protocol;
    uint32_t seq;               /* HERE: the number of the exchange that has arrived */
    uint32_t kind, final, bad;  /* final: HERE, GO; MEMBERS: `source` has begun its
                                   finish; ALIVE: its sender was told to end. bad: HERE;
                                   MEMBERS: `source` was told to end */
    uint64_t refers;            /* HERE: the series of the round whose result is the
                                   sender's reference. BULLETIN: the rank whose figures
                                   follow + 1; 0: the sender's own */
    uint32_t encoded;           /* GO: the mean is sent as the plan's wire says */
    uint32_t round;
    int32_t source;             /* GO: of a state; -1: of a mean without a good
                                   contribution. MEMBERS: the rank that has left */
    uint32_t members, epoch, status, seats;
    uint32_t threads;           /* HELLO */
    int32_t host, local_rank;   /* HELLO */
    /* n: floats; HERE of a newcomer: pieces taken so far */
    uint64_t n, agree, priority, manifest_bytes;
    uint64_t note;              /* HERE: the sender's; GO: of a state, the source's */
    uint64_t stands;            /* the epoch that stands, as far as the sender knows */
    double weight;              /* HERE; GO: of all absent members together, which count
                                   by the last result */
    struct ranks_ledger ledger;
};

/* A member of a round. */
struct ranks_seat {
    int32_t rank;
    uint32_t seq;               /* the number of the member's exchange; 0: it only
                                   helps */
    uint64_t arrival;           /* the ledger's seq of the arrival; 0: it only helps */
    uint32_t threads;           /* of all ranks on its machine */
    uint32_t bad;
    int32_t host, local_rank;   /* host: the lowest rank of its machine; local_rank: its
                                   place there */
    double share;               /* of a mean */
};

/* So many seats whose ranks follow each other and which differ in nothing but their
 * places (seats.c). */
struct ranks_run {
    struct ranks_seat first;
    uint32_t n;
    uint32_t apart;             /* each is alone on its host; 0: all are on one */
};

/* A leader's part in a round of rows. */
struct rows_seat {
    int32_t rank;
    uint32_t unused;
    uint64_t bytes;
    uint64_t generation, seq;   /* the process and number of the part; 0 where the link is
                                   fixed */
};

/* Three lists of runs follow it, one behind another. */
struct ranks_items {
    uint64_t serial;            /* ITEMS: its number; DEAL: that of the last one heard */
    uint64_t grant;             /* ITEMS: the last one taken; DEAL: the one here */
    uint64_t want;              /* ITEMS */
    uint64_t stock;             /* ITEMS: its stock; DEAL: the most that it may have */
    uint64_t end;
    uint64_t each;              /* ITEMS: that one take asks for */
    uint64_t fed;               /* leases.h, rule 6 */
    uint64_t feeder;            /* the process that reads items' bytes; 0: not known */
    int32_t feeder_rank;        /* -1: not known */
    uint32_t unused;
    uint32_t n[3];              /* runs. ITEMS: trained, held, done; DEAL: grant,
                                   pending, done */
    uint32_t flags;             /* ITEMS: trained is wide 1, held is wide 2,
                                   presses 16; DEAL: over
                                   1, final 2; hungry 16;
                                   both: of units 4, cut 8 */
};

#endif
