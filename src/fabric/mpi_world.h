/* SPDX-License-Identifier: MIT */
/* What a rank of the mpi fabric is made of; for its files alone. docs/mpi.md has the protocol.
 *
 *   mpi.c           the table: from open to close, and what a poll does
 *   mpi_word.c      short messages, between any rank and the coordinator, rank 0
 *   mpi_lead.c      the coordinator: who takes part, when a round closes
 *   mpi_mean.c, mpi_state.c, mpi_elastic.c      the floats of an exchange
 *   mpi_host.c      those of a mean among the ranks of one host, in its memory
 *   mpi_wire.c      those of a mean in fewer bits
 *   mpi_rows.c      rounds of rows, between the leaders of hosts
 *   mpi_post.c      parcels between rank 0 and the others
 *   mpi_waits.c     sleeping, whom for, and whether ranks are bound to too few cores
 *   mpi_module.c    which MPI library */
#ifndef MPI_WORLD_H
#define MPI_WORLD_H

#include "fabric/fabric.h"
#include "fabric/mpi_link.h"

enum {
    MPI_PIECE = 32768,          /* floats: 128 KiB */
    MPI_PIECE_LEAST = 4096,
    MPI_DEPTH = 8,              /* pieces in flight to and from one rank, of each sort, at most */
    MPI_TEXT = 640              /* bytes of a word's text, with its end */
};

enum { MPI_PROTOCOL = 6 };          /* of the words and pieces between ranks */

enum mpi_tag { TAG_WORD = 1, TAG_MANIFEST, TAG_GIVE, TAG_TELL, TAG_STATE, TAG_ASK,
               TAG_ROWS, TAG_POST, TAG_POST_TAKEN,
               TAG_ANSWER /* and from there on, one for each seat */ };

struct mpi;

/* A message in flight. Its record stays where it is, and tells what to do when it has ended. */
struct mpi_op {
    void (*ended)(struct mpi *m, struct mpi_op *op, const struct mpi_ended *ended);
    int rank;                   /* to or from whom */
    unsigned slot;
    bool busy;
    float *floats;              /* a piece: give gathers into it, take receives into it */
};

/* --- words --- */

enum mpi_what {
    WORD_HELLO,         /* to 0: has started; its manifest follows */
    WORD_ARRIVE,        /* to 0: has begun an exchange */
    WORD_TAKE_BACK,     /* to 0: not that arrival */
    WORD_LEAVE,         /* to 0: begins nothing more */
    WORD_CALL,          /* from 0: others wait for your arrival */
    WORD_GO,            /* from 0: the round is closed; seats follow */
    WORD_VOID,          /* from 0: your elastic exchange goes on by itself */
    WORD_MEMBERS,       /* from 0: so many take part; `source` does no more */
    WORD_LATE,          /* from 0: for whom your round waits; struct awaited follows */
    WORD_FAIL,          /* from 0: the job has failed; text follows */
    WORD_BYE,           /* from 0: all have left */
    WORD_ROWS, WORD_ROWS_CALL, WORD_ROWS_GO, WORD_ROWS_HAVE, WORD_ROWS_TAKE,
    WORD_LEAD           /* mpi_rows.c has these */
};

struct mpi_word {
    uint32_t what, protocol;
    uint32_t seq;               /* ARRIVE, TAKE_BACK: which of its sender's exchanges */
    uint32_t kind, final, bad;  /* final: ARRIVE, GO; MEMBERS: it has begun its finish */
    uint32_t refers;            /* ARRIVE: the round whose result is the sender's reference */
    uint32_t encoded;           /* GO: the mean is sent as the plan's wire says */
    uint32_t round;
    int32_t source;             /* GO: of a state; -1: of a mean without a good contribution.
                                   MEMBERS: who has left */
    uint32_t members, epoch, status, seats;
    uint32_t threads;           /* HELLO */
    int32_t host, local_rank;   /* HELLO */
    uint32_t unused;
    uint64_t n, agree, priority, manifest_bytes;
    uint64_t note;              /* ARRIVE: the sender's; GO: of a state, the source's */
    double weight;
};

/* A member of a round. */
struct mpi_seat {
    int32_t rank;
    uint32_t seq;               /* of the arrival that counts; 0: it only helps */
    uint32_t threads;           /* of all ranks on its machine */
    uint32_t bad;
    int32_t host, local_rank;   /* its machine, by the lowest rank there; its place on it */
    double share;               /* of a mean */
};

struct mpi_outgoing;

/* --- the floats of a round --- */

/* What goes between this rank and one other. */
struct mpi_lane {
    struct mpi_op give[MPI_DEPTH];      /* our parts of its slice; a state's next */
    struct mpi_op take[MPI_DEPTH];      /* its parts of ours */
    struct mpi_op tell[MPI_DEPTH];      /* our slice, reduced */
    struct mpi_op learn[MPI_DEPTH];     /* its slice, reduced; a state's last */
    size_t given, gave;                 /* begun, ended */
    size_t taken;
    bool took[MPI_DEPTH];               /* by piece modulo depth */
    size_t told, telling;               /* ended, begun */
    size_t learned, learning;           /* encoded: decoded, begun */
    bool here[MPI_DEPTH];               /* encoded pieces of its slice, not decoded yet */
    bool gives;                         /* the share of what it gives is above zero */
    double share;
    int member;                         /* its place in the round */
    bool relays, relayed;               /* it gives to our slice, and is told; we to its slice */
};

struct mpi_round {
    bool active, ours;          /* ours: of the exchange that is open, else we only help */
    bool shown;                 /* a state's part is out, or need not be */
    enum exchange_kind kind;
    bool final;
    enum wire wire;
    uint32_t number, n_bad;
    size_t n, piece;
    uint64_t note;              /* of a state */
    int k, me, source;          /* members; places among them */
    struct mpi_seat *seats;
    const struct vector *in;
    bool gives;
    size_t n_own, reduced;      /* pieces of our slice */
    size_t shown_pieces;        /* by hosts: of our vector, that lie in the host's memory */
    int turns;                  /* pieces that this step may yet encode, or decode */
    size_t n_state, came, coming, passing, passed;      /* pieces of a state */
    bool here[MPI_DEPTH];
    size_t filled;              /* of the centre, from our own vector */
    bool fetching;              /* a final state: the centre from its owners */
};

enum mpi_stage {
    STAGE_IDLE,
    STAGE_LOOK,         /* at the own vector, before arriving */
    STAGE_ARRIVED,      /* the round gathers, or moves its floats */
    STAGE_PART,         /* its part is out */
    STAGE_ALONE         /* elastic */
};

struct mpi_lead;
struct mpi_elastic;
struct mpi_rows;
struct mpi_host;
struct mpi_post;

struct mpi {
    struct fabric f;
    const struct mpi_links *links;
    struct mpi_link *link;
    struct mpi_place place;
    double start_s;
    bool started, had_state, collective, in_place;
    bool messages;                      /* the address says: whatever shares a host */
    bool left, bye;                     /* LEAVE is sent; all have left */
    size_t n, room;
    int n_outer;
    char *manifest;
    struct mpi_op manifest_op;
    struct vector segments;             /* what alloc gave, as one vector */
    size_t segments_room;
    struct vector copy;                 /* the contribution as one */
    struct extent whole;
    struct fabric *machine;             /* shared blocks: an shm job of this machine's ranks */
    struct block *blocks;               /* instead of it, where this rank is alone on its machine */
    /* words */
    struct mpi_op word_op;
    struct mpi_word *heard, *go;        /* word_bytes each */
    size_t word_bytes;
    struct mpi_outgoing *idle_words, *last_word;
    int words_out;
    bool go_waits;                      /* `go` is to be done */
    struct mpi_lead *lead;              /* rank 0 */
    /* the exchange that is open */
    enum mpi_stage stage;
    struct exchange x;
    uint32_t seq;
    size_t looked;
    bool bad, called;
    struct mpi_round round;
    unsigned depth;                     /* pieces in flight of a sort, up to MPI_DEPTH, */
    size_t piece_most;                  /* and the floats that each has at most */
    struct mpi_lane *lanes;             /* by rank */
    float *result, *state_outer[2], *piece;
    struct mpi_host *host;              /* means go by hosts; NULL: each rank is by itself */
    float *mean;                        /* of those: the result, or the host's */
    const float **inputs;
    double *shares;
    /* encoded means */
    uint32_t refers;                    /* the round whose result, or state, outer[0] is */
    float *owed;                        /* (n) */
    float *settled[MPI_DEPTH];          /* pieces of our slice, as they are told */
    struct mpi_elastic *elastic;
    struct mpi_rows *rows;
    struct mpi_post *post;              /* NULL: the lane is not used */
    uint32_t center_epoch;              /* states that gave the centre */
    /* Written by poll and begin, read by wait; relaxed: they only set how long it sleeps. */
    _Atomic uint32_t still;             /* polls in a row in which nothing moved */
    _Atomic uint32_t rest_most_us;
    struct mpi *next;                   /* kept after its close, mpi.c */
    uint64_t moved_ns, said_ns;         /* when something moved last; when we said for whom */
    bool moved;                         /* in this poll */
};

static inline struct mpi *mpi_of(struct fabric *f)
{
    return (struct mpi *)(void *)f;
}

/* --- mpi.c --- */

void mpi_fail(struct mpi *m, descant_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
bool mpi_send_op(struct mpi *m, struct mpi_op *op, const void *p, size_t bytes, enum mpi_tag tag);
bool mpi_receive_op(struct mpi *m, struct mpi_op *op, void *p, size_t bytes, enum mpi_tag tag);

/* What a poll does for others: hears, and helps in what is not of the exchange that is open. */
void mpi_serve(struct mpi *m);

/* Closing in parts, for tests in which all ranks live in one thread: leave says so to the others,
 * stay serves them and is true while any is left, free releases everything. */
void mpi_leave(struct fabric *f);
bool mpi_stay(struct fabric *f);
void mpi_free(struct fabric *f);
void mpi_free_kept(void);       /* jobs that were not, once no message of theirs is under way */

/* --- mpi_word.c --- */

descant_status mpi_words_init(struct mpi *m);
void mpi_words_fini(struct mpi *m);
bool mpi_listen(struct mpi *m);
void mpi_tell(struct mpi *m, int rank, struct mpi_word word, const void *tail, size_t bytes);

/* --- mpi_start.c: of the table --- */

descant_status mpi_open(struct fabric **out, const struct fabric_options *options);
float *mpi_alloc(struct fabric *f, size_t at, size_t n);
descant_status mpi_share(struct fabric *f, const char *name, size_t bytes, void **block);
descant_status mpi_start(struct fabric *f, const struct fabric_start *start);

/* --- mpi_lead.c: rank 0 alone --- */

descant_status mpi_lead_init(struct mpi *m);
void mpi_lead_fini(struct mpi *m);
void mpi_lead_hear(struct mpi *m, int from, const struct mpi_word *word);
void mpi_lead_turn(struct mpi *m);
void mpi_lead_fail(struct mpi *m, descant_status status, const char *text);
/* Whom the round that gathers waits for. */
void mpi_lead_late(const struct mpi *m, struct awaited *awaited);
void mpi_lead_tell_late(struct mpi *m);

/* --- mpi_mean.c --- */

struct chunk;

size_t mpi_piece_room(const struct mpi *m);     /* floats that a piece has at most, */
size_t mpi_lane_floats(const struct mpi *m);    /* and one of a lane, which are many */
descant_status mpi_lanes_init(struct mpi *m);
void mpi_lanes_fini(struct mpi *m);
size_t mpi_slice_at(size_t n, int k, int member);       /* its first float; of k: n */
const float *mpi_reach(const struct vector *v, size_t at, size_t n, float *gathered);
size_t mpi_round_slice(const struct mpi_round *r, int member);      /* the same, of a mean */
size_t mpi_round_pieces(const struct mpi_round *r, int member);     /* of its slice */
struct chunk mpi_round_piece(const struct mpi_round *r, int member, size_t piece);
bool mpi_mean_inputs(struct mpi *m, float *out, int n_in, size_t n);    /* false: none is finite */
void mpi_mean_begin(struct mpi *m);
bool mpi_mean_step(struct mpi *m);      /* true: all is done */
uint64_t mpi_mean_bytes(const struct mpi *m);   /* that this member has sent */

/* --- mpi_host.c --- */

bool mpi_by_hosts(const struct mpi *m);         /* the same for all ranks; after open */
descant_status mpi_host_init(struct mpi *m);    /* the contribution, too, where one is wanted */
void mpi_host_fini(struct mpi *m);
void mpi_host_begin(struct mpi *m);             /* who relays to whom in this round */
bool mpi_host_show(struct mpi *m);              /* a piece of the own vector; false: all is there */
bool mpi_host_shown(const struct mpi *m, size_t piece);     /* by all mates, of every slice */
int mpi_host_inputs(struct mpi *m, size_t at);  /* the mates' parts and shares, to m->inputs */
const float *mpi_host_give(struct mpi *m, struct chunk piece, float *out);  /* those as one */
bool mpi_host_done(struct mpi *m);              /* so is this rank; true: all mates are */
void mpi_host_late(const struct mpi *m, struct awaited *awaited);

/* --- mpi_wire.c: pieces of an encoded mean, of whole blocks --- */

descant_status mpi_wire_init(struct mpi *m);            /* after the lanes, */
void mpi_wire_fini(struct mpi *m);                      /* and before them */
const float *mpi_wire_give(struct mpi *m, struct chunk piece, float *out);
void mpi_wire_reduce(struct mpi *m, struct chunk piece, unsigned slot);
void mpi_wire_learn(struct mpi *m, struct chunk piece, const float *in);
void mpi_wire_forgive(struct mpi *m);                   /* nothing is owed any more */

/* --- mpi_state.c --- */

void mpi_state_begin(struct mpi *m);
bool mpi_state_step(struct mpi *m);
bool mpi_state_fill(struct mpi *m);     /* the source's centre; true: it is full */

/* --- mpi_elastic.c --- */

descant_status mpi_elastic_init(struct mpi *m);
void mpi_elastic_fini(struct mpi *m);
void mpi_elastic_begin(struct mpi *m);          /* x, from its first float */
void mpi_elastic_fetch(struct mpi *m);          /* the whole centre, as its owners have it */
enum fabric_progress mpi_elastic_step(struct mpi *m, struct fabric_part *part);
void mpi_elastic_stop(struct mpi *m);           /* begins no more pieces */
bool mpi_elastic_quiet(const struct mpi *m);    /* and none is in flight */
void mpi_elastic_serve(struct mpi *m);          /* others, whose pieces waited for a state */
void mpi_elastic_late(const struct mpi *m, struct awaited *awaited);

/* --- mpi_rows.c --- */

extern const struct fabric_rows mpi_rows;
descant_status mpi_rows_init(struct mpi *m, size_t bytes);     /* most that a part has */
void mpi_rows_fini(struct mpi *m);
void mpi_rows_lead_hear(struct mpi *m, int from, const struct mpi_word *word);  /* rank 0 */
void mpi_rows_hear(struct mpi *m, const struct mpi_word *word);
void mpi_rows_step(struct mpi *m);
void mpi_rows_leave(struct mpi *m);             /* takes no more parts; sends its own */
bool mpi_rows_quiet(const struct mpi *m);       /* no round is closed here */
bool mpi_rows_open(const struct mpi *m);
bool mpi_rows_closed(const struct mpi *m);      /* rank 0: leaders are in a round that it closed */

/* --- mpi_post.c --- */

extern const struct fabric_post mpi_post;
void mpi_post_fini(struct mpi *m);
bool mpi_post_quiet(const struct mpi *m);       /* nothing that was sent is on its way */

/* --- mpi_waits.c --- */

void mpi_rest(struct mpi *m, uint64_t until_ns);
void mpi_set_rest(struct mpi *m);       /* by what is open now */
void mpi_say(struct mpi *m);
void mpi_look_at_cores(struct mpi *m, int threads);

#endif
