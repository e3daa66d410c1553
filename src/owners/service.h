/* SPDX-License-Identifier: MIT */
/* Rows of tables with owners, between ranks: workers ask for rows ahead of their batch,
 * and push gradients; the owners answer and step. There are no rounds and no votes.
 *
 *   batch.c     a caller's side: a batch's rows are grouped by owner, asked for, awaited,
 *               pushed. Rows that are here it reads and steps by itself
 *   serve.c     the owner's side: what others ask is answered in the order in which it
 *               came
 *   heard.c     what others say of slices that come and go (moves.h)
 *   moves.c     slices that this rank gives to others
 *   follow.c    rows of slices on their way to those that are to have them
 *   slices.c    what these are made of
 *   lost.c      peers that go, and slices whose owner has died
 *   route.c     asks whose slices have gone to another rank
 *   asks.c      asks on their way: sent, and answered
 *   answer.c    an ask is read, and answered or stepped by
 *   copies.c    copies of hot rows of other owners (copies.h)
 *   service.c   a turn over a link, by the service's thread; peers; the end
 *   carry.c     what all of these use: the link, failure, a batch's end
 *
 * Any thread may use batches; one thread at a time turns. A caller fills an ask, and puts
 * it in the service's inbox (locked), which gives it its number. From then on it is the
 * turning thread's, until the link has ended both its messages, and then anybody's again
 * (locked). A caller that steps copies by the gradients of its push holds the ask, too,
 * and reads it; the last of the two to let go gives it back. An answer goes to
 * its batch's block; then `missing` goes down (release), and a caller that finds it 0
 * (acquire) has all rows. A batch is held by its caller and by each answer that is to
 * come; the last of them to let go gives it back. Memory that a failed service leaves
 * under way is given back by service_fini alone, once the link is closed.
 *
 * Where slices move, the turning thread alone changes the map and the tables' parts, and
 * holds `gate` to write; callers hold it to read while they use either and until they
 * have posted what follows from it, and never while they wait. So before a slice becomes
 * this rank's, all that its callers have posted of it can be served. What a caller has
 * grouped by the map has the map's version, and is grouped anew where that has changed.
 */
#ifndef SERVICE_H
#define SERVICE_H

#include "link/link.h"
#include "owners/copies.h"

#include <pthread.h>

enum { ASK_BYTES = 32 << 10 };          /* of an ask or an answer, at most */
enum { ASKS_QUEUED = 32 << 20 };        /* bytes of pushes' asks on their way, before the
                                           next push waits */
enum { ASK_LEAST = 1 << 10, ASK_SIZES = 6 };    /* room of asks: 1, 2, 4 … 32 KiB */
enum { OWNERS_LANES = 16 };             /* asks of one peer that this rank has room for */
enum { OWNERS_ANSWERS = 256 };          /* to one peer at a time */
enum { OWNERS_WORDS = 2 };              /* of OWNERS_DONE: what a peer says at most */
enum owners_tag { OWNERS_ASK, OWNERS_ANSWER, OWNERS_DONE };
enum owners_word { WORD_DONE = -1, WORD_ENDED = -2 };   /* of struct owners_peer */
enum ask_kind {
    ASK_FETCH = 1, ASK_PUSH, ASK_COPY,
    ASK_SET,                            /* the first of moves.h */
    ASK_KINDS = ASK_SET + 24
};

/* An ask: this, then n rows (uint64_t, or uint32_t in tables of at most 2^32 rows that do
 * not grow), and in a push n gradients. The answer to a fetch is the rows' values, in
 * that order. An ask for copies is answered by records, each after a uint32_t, which is 0
 * where a push may be refused, so that a copy cannot follow. Records are floats on every
 * wire, since many small steps go on from them, and one stands for many fetches. */
struct ask_head {
    uint8_t kind, unused;
    uint16_t table;
    uint32_t n;
    float rate;
    uint32_t of;                        /* moves.h; else unused */
};

struct descant_rows {
    struct descant_rows *next;          /* among those that are free */
    struct descant_rows *next_made;
    struct owned *table;
    uint32_t version;                   /* of the map, by which it is grouped: */
    int owners;                         /* so many */
    size_t n, room, floats;             /* room: rows; floats: of block */
    uint64_t *rows;                     /* (room) */
    unsigned char *uses;                /* (room) of copies: enum copy_use of a row */
    uint32_t *places;                   /* (room) by owner and use, in their order */
    float *block;
    size_t *first;                      /* (owners + 1, COPY_USES), and the end: in
                                           places; the last: own rows that are
                                           on their way */
    size_t buckets;                     /* room of first */
    _Atomic uint32_t missing;           /* asks without an answer; a futex */
    _Atomic uint32_t held;              /* by so many: see above */
    bool stalls;                        /* the caller makes steps, and its waits for this
                                           batch are stall; the caller's */
};

enum owners_op_kind {
    OP_ASKED, OP_ANSWER,                /* of an ask: it was sent, and answered */
    OP_HEARD, OP_SERVED,                /* of a lane, and of an answer */
    OP_SAID_DONE, OP_DONE               /* of a peer */
};

/* What the link hands back when a message has ended. */
struct owners_op {
    enum owners_op_kind kind;
    void *of;
};

struct ask {
    struct ask *next, *next_made;
    enum ask_kind kind;
    uint64_t number;                    /* of those that were posted; its poster writes */
    struct descant_rows *batch;         /* NULL: a push */
    uint32_t *places;                   /* (n) of the batch, that it asks for; behind the
                                           answer */
    size_t n;
    uint32_t version;                   /* of the map, by which it was made */
    size_t bytes, row_bytes;            /* row_bytes: of a row in the answer */
    int owner;
    bool sent, answered;
    bool lost;                          /* its owner was, before it answered */
    _Atomic uint32_t held;              /* by the link, and by the caller: see above */
    struct owners_op out, in;
    int size;                           /* of ASK_SIZES */
    size_t answer_room;
    unsigned char *answer;              /* (answer_room) */
    unsigned char message[];            /* (ASK_LEAST << size) */
};

/* A receive for what a peer asks. */
struct lane {
    struct owners_op op;
    int rank;
    bool heard;                         /* it has a message, */
    size_t bytes;                       /* so long */
    unsigned char *message;             /* (ASK_BYTES) */
};

struct answer {
    struct answer *next, *next_made;
    struct owners_op op;
    int rank;
    unsigned char rows[ASK_BYTES];
};

struct owners_peer {
    bool there, gone;                   /* gone: it was there */
    uint64_t generation;                /* of its last process; 0: it has not come */
    uint32_t came;                      /* processes so far */
    bool mapped;                        /* it has said which slices it knows to have
                                           moved; where none move: it is there */
    bool done;                          /* it asks for nothing more */
    bool ended;                         /* it has ended in order: it has given its slices
                                           away, or nobody needs them. Its last word */
    bool told;                          /* that this rank asks for nothing more */
    int32_t says, hears[OWNERS_WORDS];  /* OWNERS_DONE: enum owners_word, or a rank whose
                                           rows are lost */
    struct owners_op said, heard[OWNERS_WORDS];
    struct lane *lanes;                 /* (n_lanes) a ring; NULL: it has not come */
    uint64_t opened, served;            /* lanes so far */
    int n_answers;                      /* on their way to it */
    struct ask *waiting, **last;        /* until it is there */
};

struct owners_stats {                   /* relaxed: figures */
    _Atomic uint64_t fetched, pushed;   /* rows, by this rank's callers */
    _Atomic uint64_t cached;            /* of those fetched: read from copies */
    _Atomic uint64_t served;            /* rows that others asked for or pushed */
    _Atomic uint64_t bytes;             /* sent and received */
    _Atomic uint64_t moved;             /* rows sent to others, to own or as replicas */
    _Atomic uint64_t bad;               /* gradients with NaN or Inf, at the owner */
    _Atomic uint64_t stall_ns;          /* that callers have waited */
    _Atomic uint64_t cpu_ns;            /* of the service's thread */
};

struct service {
    struct log log;
    struct owned *tables;
    struct copies **copies;             /* (n_tables) NULL: the table has none */
    int n_tables;
    struct owned_map map;
    struct moves *moves;                /* NULL: slices stay where they are */
    pthread_rwlock_t gate;              /* see above */
    int rank;
    struct owners_stats stats;
    /* callers: */
    uint64_t (*now_ns)(void);           /* for the age of copies: clock_now_ns, but in
                                           tests */
    _Atomic bool past_copies;           /* fetches go to the owners. Set once, by
                                           service_past_copies; a fetch that reads it
                                           earlier may still use copies */
    pthread_mutex_t lock;               /* guards the next four lines */
    struct descant_rows *free, *made;   /* made: all, for fini */
    struct ask *inbox, **inbox_last;
    uint64_t posted;                    /* asks so far */
    struct ask *free_asks[ASK_SIZES], *made_asks;
    _Atomic size_t queued;              /* bytes of pushes' asks on their way, of callers
                                           and passed on; rows of slices that are copied
                                           have bounds of their own (moves.h) */
    _Atomic uint32_t unqueued;          /* rung when these become few enough; a futex */
    /* flags, sequentially consistent */
    _Atomic int status;                 /* of its failure; 0. Set by the turning thread,
                                           after */
    char why[LOG_LINE];                 /* this, in words, */
    int blames;                         /* and the rank that was lost; -1 */
    _Atomic bool ends;                  /* this rank's callers ask for nothing more */
    _Atomic bool gives_up;              /* the turning thread is to fail */
    bool over;                          /* all ranks have ended: the turning thread's,
                                           then fini's */
    _Atomic uint32_t bell;              /* rung by callers where the link does not wake; a
                                           futex */
    /* the turning thread's: */
    struct link *link;
    struct link_place place;
    struct owners_peer *peers;          /* (place.size) */
    int n_lanes;                        /* of a peer, OWNERS_LANES at most */
    int n_asks;                         /* sent or waiting, and not answered */
    struct answer *free_answers, *made_answers;
    uint64_t *asked;                    /* rows of the ask that is served, */
    float *row;                         /* (OWNED_COPIED) values of some of them, or
                                           a record */
    uint64_t ends_ns;                   /* since then it ends; 0 */
    bool done;                          /* it ends, and all that its callers have asked
                                           for has come: it needs nobody's rows */
};

enum { OWNERS_WORKED = 1, OWNERS_RESTS, OWNERS_ENDED, OWNERS_FAILED };

/* Of a service that is all zeros, whose figures others may read already. link NULL: all
 * rows are here. Else the service has it, and closes it. owners: ranks that have rows.
 * service_fini follows, also where it fails. */
descant_status service_init(struct service *s, struct link *link,
                            const struct link_place *place, int owners,
                            const struct log *log);
/* The tables are placed by s->map. Not OK: it has failed, which is logged. */
descant_status service_open(struct service *s, struct owned *tables, int n_tables);
void service_fini(struct service *s);

/* Does what there is to do, and never blocks. ENDED: service_end was called, and all
 * other ranks have ended, too, or are gone. */
int service_turn(struct service *s);
/* For the thread that turns, after RESTS. bell: where the link does not wake, what it was
 * at the last sleep. */
void service_sleep(struct service *s, uint64_t most_ns, uint32_t *bell);
void service_wake(struct service *s);   /* any thread */
void service_end(struct service *s);    /* any thread */
void service_give_up(struct service *s);        /* any thread: it fails */
void service_past_copies(struct service *s);    /* any thread: no copy is read again */

/* Of a rank: a process that the service's link has met is the one that the job speaks of.
 * Zeros: none yet. */
struct owners_known {
    uint32_t came;                      /* struct owners_peer */
    uint32_t lives;                     /* the job's processes of that rank until then */
    uint64_t parted_ns;                 /* since when the job knows that it has parted */
};

/* A rank's life, as far as the service knows it. */
struct owners_life {
    uint32_t lives;                     /* processes of it that the job has known; */
    bool ended, lost, parted;           /* the last one has ended; by its death; by
                                           descant_part */
    uint32_t came;                      /* processes that have come to the service's link
                                         */
};

/* A rank that has parted has given its rows away, and passes on what still comes, for a
 * moment. If its machine loses power then, nobody says so. */
#define OWNERS_PARTED_NS UINT64_C(60000000000)

/* The last process that has come to the service's link is the one that the job has lost.
 * It is not where the link met it before the job heard of the end of the one before. */
bool owners_is_lost(struct owners_known *known, const struct owners_life *is,
                    uint64_t now_ns);
/* The turning thread's, also in a turn: a rank has gone, or is silent for too long, as
 * others know. False: the service has failed. */
bool service_lose(struct service *s, int rank);
/* After FAILED: lets the others know that this rank is gone. */
void service_part(struct service *s);

/* --- batch.c: any thread --- */

/* INVALID: the table has no such row; MEMORY. Both are logged. */
descant_status batch_fetch(struct service *s, int table, const uint64_t *rows, size_t n,
                           struct descant_rows **out);
/* The same, but past this rank's copies: each owner is asked. */
descant_status batch_ask(struct service *s, int table, const uint64_t *rows, size_t n,
                         struct descant_rows **out);
size_t batch_rows(const struct descant_rows *batch);
bool batch_ready(const struct descant_rows *batch);     /* all are here */
/* The same, also of rows that were this rank's at the fetch, and have moved: then they
 * are asked for. */
bool batch_here(struct service *s, struct descant_rows *batch);
/* Its rows, once all are here; NULL: the service has failed. */
float *batch_wait(struct service *s, struct descant_rows *batch);
/* The caller's part in the batch ends, also where it fails. */
descant_status batch_push(struct service *s, struct descant_rows *batch,
                          const float *gradients, float rate);
/* The same, but the turning thread is not woken: the caller's next fetch wakes it. */
descant_status batch_push_more(struct service *s, struct descant_rows *batch,
                               const float *gradients, float rate);
void batches_fini(struct service *s);

/* --- for the files of the service --- */

/* With room for such a message, and such an answer; NULL: no memory. */
struct ask *ask_take(struct service *s, size_t message, size_t answer);
size_t ask_room(const struct ask *ask);         /* bytes of memory */
void ask_let_go(struct service *s, struct ask *ask);
void ask_post(struct service *s, struct ask *ask);      /* into the inbox */
/* Of the turning thread. False: the service has failed. */
bool ask_send(struct service *s, struct ask *ask);
void ask_answered(struct service *s, struct ask *ask);  /* answer: to its batch */
void ask_done(struct service *s, struct ask *ask);
/* One of its messages has. */
bool asks_ended(struct service *s, struct ask *ask, const struct link_ended *ended);
struct ask *asks_inbox(struct service *s);      /* what callers have posted: a list */
void asks_fini(struct service *s);

/* --- answer.c: the turning thread's --- */

struct read_ask {
    struct ask_head head;
    struct owned *table;
    const unsigned char *gradients;
    bool elsewhere;                     /* some of its rows are another rank's, */
    bool early;                         /* and the slices of some of these come here */
};

/* NULL, or why it is no ask; s->asked becomes its rows. */
const char *ask_read(struct service *s, const unsigned char *message, size_t bytes,
                     struct read_ask *ask);
/* Leaves the rows of a push that are this rank's. */
void ask_keep_own(struct service *s, unsigned char *message, struct read_ask *ask);
void ask_answer(struct service *s, const struct read_ask *ask, unsigned char *out);
void ask_step(struct service *s, const struct read_ask *ask);

/* --- route.c: the turning thread's. False: the service has failed --- */

bool route_inbox(struct service *s);
/* Those that waited for a peer to be there. */
bool route_waiting(struct service *s, int rank);
/* Asks of which some rows have another owner now, or are on their way. */
bool route_anew(struct service *s, struct ask *ask);
/* All that are not sent, by the map as it is now. */
bool route_all(struct service *s);
bool route_ended(struct service *s, struct ask *ask, const struct link_ended *ended);

/* The turning thread's: what peers ask. False: the service has failed. */
bool serve_open(struct service *s, int rank);
/* What has come of a peer, and was too early. */
bool serve_again(struct service *s, int rank, const char **no_ask);
/* *no_ask: why what came is no ask; else NULL. */
bool serve_heard(struct service *s, struct lane *lane, const struct link_ended *ended,
                 const char **no_ask);
bool serve_answered(struct service *s, struct answer *answer);
void serve_fini(struct service *s);

/* --- carry.c --- */

/* Logs why, and sets the service's status; false. */
bool service_fail(struct service *s, descant_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
bool service_works(struct service *s, bool works);      /* what the link returned */
bool service_send(struct service *s, int rank, int tag, const void *p, size_t bytes,
                  struct owners_op *op);
bool service_receive(struct service *s, int rank, int tag, void *p, size_t bytes,
                     struct owners_op *op);
/* The caller's, or an answer's, part in the batch ends. */
void batch_let_go(struct service *s, struct descant_rows *batch);
/* Counts gradients with NaN or Inf, and names the first rows. */
void owners_bad(struct service *s, const struct owned *table, size_t bad, uint64_t row);

/* A caller's, where slices move. */
static inline void gate_in(struct service *s)
{
    if (s->moves)
        pthread_rwlock_rdlock(&s->gate);
}

static inline void gate_out(struct service *s)
{
    if (s->moves)
        pthread_rwlock_unlock(&s->gate);
}

static inline size_t row_id_bytes(const struct owned *table)
{
    bool few = !table->shape.grows && table->shape.rows <= UINT64_C(1) << 32;

    return few ? sizeof(uint32_t) : sizeof(uint64_t);
}

/* Of a row, as an ask or its answer has it. */
static inline size_t ask_row_bytes(const struct owned *table, enum ask_kind kind)
{
    return kind == ASK_COPY ? sizeof(uint32_t) + table->record * sizeof(float)
                            : owned_row_bytes(table);
}

/* The table's copies, where it has some; any thread. */
static inline struct copies *copies_of(const struct service *s, const struct owned *table)
{
    return s->copies ? s->copies[table - s->tables] : NULL;
}

static inline void owners_count(_Atomic uint64_t *figure, uint64_t n)
{
    atomic_fetch_add_explicit(figure, n, memory_order_relaxed);
}

#endif
