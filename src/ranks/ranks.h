/* SPDX-License-Identifier: MIT */
/* The parts of a rank, for the files of this folder alone. docs/mpi.md has the protocol.
 *
 *   ranks.c        the table of the fabric
 *   start.c, turn.c, close.c      the time before the first poll, a poll, the end
 *   hear.c         the effects of words; check.c: whether a word may have any
 *   peers.c        which ranks are there: coming, going, silence
 *   admission.c    the coordinator admits ranks: HELLO, manifests, founding, newcomers
 *   lead_round.c   the coordinator makes rounds of offers, which lead.c keeps
 *   members.c      drives the ledger (ledger.h): members, and when a round may close
 *   versions.c, donor.c           a version of the state, taken and given
 *   mean.c, state.c, elastic.c    the floats of an exchange
 *   center.c       the slices of an elastic centre that this rank owns
 *   lanes.c        the records and buffers of floats that are under way (lanes.h)
 *   joint.c, joint_moves.c        elastic exchanges of the ranks of one host, made
 *                  together (joint.h)
 *   hosts.c        means among the ranks of one host, in its memory
 *   wire.c         means in fewer bits
 *   rows.c, rows_lead.c           rounds of rows; the coordinator's side of them
 *   post.c         parcels between rank 0 and the others
 *   agree.c, agree_lead.c         agreements; the coordinator's side of them
 *   deal.c         items for ranks by need, by the rules of leases.h
 *   fetch.c        the bytes of items, which one rank reads (store.h)
 *   bulletins.c    each rank's figures, told to the lowest ranks
 *   waits.c        sleeping, awaited ranks, ranks that are bound to too few cores
 *   pieces.c       where the pieces of a mean lie
 *   seats.c        the members of a round in a GO
 *   words.c        short messages between ranks (words.h)
 *   messages.c     all messages on their way (messages.h)
 *
 * No two of these files call each other in a circle: a word that is heard, and a peer
 * that is refused, go up through m->hear and m->blame. */
#ifndef RANKS_H
#define RANKS_H

#include "fabric/fabric.h"
#include "link/link.h"
#include "ranks/lanes.h"
#include "ranks/ledger.h"
#include "ranks/messages.h"
#include "ranks/words.h"

/* The rows on which all machines agree, as they are given to machines that come late
 * (rows.c, versions.c). */
struct ranks_base {
    const struct vector *rows;          /* NULL: no machine comes late */
    struct ledger_version held, wanted; /* the round that left them; epoch 0: of none */
    struct ledger_entry *merged;        /* (size) of each rank's last generation that has
                                           any: how many of its parts are in them */
    bool moves;                         /* a round is being added */
    uint32_t pieces;                    /* of the wanted rows that have come */
    uint64_t came_ns;                   /* the last piece of the wanted rows came, */
    int donor, deaf;                    /* from this donor; one that gave none for too
                                           long, or -1 */
};

struct ranks_outgoing;

/* A rank as this one sees it. */
struct ranks_peer {
    uint64_t generation;        /* of the process that is there; 0: none */
    uint64_t greeted;           /* of the process to which this rank has said HELLO */
    uint64_t heard_ns;          /* something came from it last */
    uint64_t came_look;         /* how often this rank had looked when the process came */
    uint64_t late_ns;           /* in the open mean this rank has waited for it so long */
    int words_out;              /* to it, not sent yet */
    bool silent;                /* the ledger was told so */
    bool told;                  /* its process was told to end */
    struct ranks_op manifest_op;    /* this rank's manifest to it, which a silent rank may
                                       hold up */
};

enum ranks_stage {
    STAGE_IDLE,
    STAGE_LOOK,         /* tests its own vector, before arriving */
    STAGE_ARRIVED,      /* the round gathers, or moves its floats */
    STAGE_PART,         /* its part is out */
    STAGE_BASE,         /* a part that ends nothing is out */
    STAGE_ALONE         /* elastic */
};

struct ranks_lead;
struct ranks_elastic;
struct ranks_center;
struct ranks_joint;
struct ranks_rows;
struct ranks_rows_lead;
struct ranks_host;
struct ranks_post;
struct ranks_versions;
struct ranks_donor;
struct ranks_agree;
struct ranks_agree_lead;
struct ranks_deal;
struct ranks_fetch;

/* The parts of the version that a rank holds. */
struct ranks_held {
    uint64_t mean;              /* the series of the mean in ranks.mean; 0: none */
    size_t mean_n;              /* the mean's floats */
    bool state_waits;           /* a state that was taken is to be handed out */
    uint64_t note;              /* that state's donor's note */
    uint64_t own;               /* this rank's newest seq in it */
    bool replaced;              /* a state for all has come since the last one that this
                                   rank has had */
    uint64_t center;            /* the series of the last state that gave the centre, or
                                   the outer vectors that late members carry on */
};

/* The name of a host that came later than this rank. */
struct ranks_name {
    struct ranks_name *before;
    char text[LINK_NAME_ROOM];
};

struct ranks {
    struct fabric f;
    struct link *link;
    struct link_place place;
    uint64_t now_ns;                    /* of the last poll */
    double start_s;
    bool started, had_state, collective, in_place;
    bool parks;                         /* workers wait for each exchange */
    bool messages;                      /* the address asks for messages also within a
                                           host */
    bool left, bye;                     /* LEAVE is sent; all have left */
    size_t n, room;
    int n_outer;
    char *manifest;
    struct vector segments;             /* all memory of alloc as one vector */
    size_t segments_room;
    struct vector copy;                 /* the contribution as one */
    struct extent whole;
    struct meet *machine;               /* of this machine's ranks, for blocks; NULL
                                           before share */
    struct memory_block *blocks;        /* instead of `machine`, where this rank has the
                                           machine alone */
    /* words */
    struct ranks_listener *listeners;   /* n_listeners */
    int n_listeners;
    int n_silent;                       /* peers that are there, at the last look */
    struct ranks_word *go;              /* word_bytes */
    size_t word_bytes;
    struct ranks_outgoing *idle_words[2], *last_word;   /* short, long */
    int words_out;
    bool go_waits;                      /* the round of `go` is to begin */
    bool deaf;                          /* a peer has broken the protocol: words are
                                           dropped */
    bool broken;                        /* the link has failed, which was logged */
    struct ranks_peer *peers;           /* by rank */
    struct ranks_name *names;           /* the newest; f.host_names points into them */
    int pieces_open;                    /* messages with a series that have not ended */
    int founders;                       /* the job begins with so many ranks, */
    bool numbered;                      /* and with those whose numbers are below that */
    int hub;                            /* the last rank, in a star; -1: the job is none */
    uint64_t dead_ns;                   /* a rank that was not heard for so long is
                                           silent */
    int threads;
    int coordinator;                    /* by the ledger */
    bool leads;                         /* this rank is the coordinator */
    bool founded;                       /* there is an epoch */
    bool voided, changed;               /* still to be acted upon: the round is given up;
                                           another epoch stands */
    uint64_t stands_ns;                 /* the epoch stands since then */
    uint64_t looked_ns, alive_ns;       /* last look for silent ranks; last ALIVE */
    uint64_t told_ns;                   /* last ALIVE of a rank that was told to end */
    uint64_t bulletin_ns;               /* this rank's next bulletin is due; 0: now */
    uint64_t looks;                     /* at most one in dead / 8, and one in a pause */
    int leader;                         /* the coordinator or, where that is silent, the
                                           member that is to found the next epoch */
    uint64_t leader_ns;                 /* it leads since then */
    uint64_t leaving_ns;                /* this rank stays only as long as it must since
                                           then */
    uint64_t left_ns, go_ns;            /* when this rank left; when GO came */
    float *state_center;                /* a state's centre comes here; where the link is
                                           fixed, the centre itself */
    bool has_state;                     /* the caller has had a state, or given its own */
    bool gradients;                     /* means are of gradients: vectors are no state */
    struct ledger_quorum quorum;
    bool carries;                       /* who missed a round takes the state that it
                                           left: the outer vectors */
    bool passes;                        /* who missed a round takes nothing */
    bool outer_set;                     /* carries: the outer vectors are the state of the
                                           version that is held */
    struct ranks_held held;
    struct ledger *ledger;              /* in ledger_memory */
    void *ledger_memory;
    struct ledger_entry *list;          /* (size) a list for the ledger, or out of it */
    struct ranks_entry *entries;        /* (size) a list in a word */
    bool ledger_moved;                  /* since the coordinator looked last */
    /* by rank: the generation of the member in the epoch that stands, where ranks come
     * and go; 0: no member */
    uint64_t *members;
    struct ranks_lead *lead;            /* of a rank that may be the coordinator */
    struct ranks_versions *versions;    /* NULL: the link is fixed, and rounds wait for
                                           all */
    struct ranks_donor *donor;          /* as versions */
    struct ranks_agree *agree;          /* NULL: not started */
    struct ranks_agree_lead *agree_lead;    /* as lead */
    struct ranks_deal *deal;            /* NULL: not started */
    struct ranks_fetch *fetch;          /* as deal */
    /* A peer has come or gone. */
    void (*met)(struct ranks *m, const struct link_peer *peer);
    /* False: the word may not be acted upon, and the job has failed. */
    bool (*hear)(struct ranks *m, int from, const struct ranks_word *word, size_t bytes);
    /* The job has failed; the coordinator tells all. */
    void (*blame)(struct ranks *m, descant_status status, const char *text);
    /* the exchange that is open */
    enum ranks_stage stage, resumes;    /* resumes: after BASE */
    struct exchange x;
    struct vector state_in;             /* of the last state that was begun */
    uint32_t seq;
    uint32_t brought;           /* the last exchange that arrived with a state for all, */
    uint64_t brought_as;        /* with this seq of the ledger */
    uint32_t arrived;           /* the last exchange that arrived, */
    uint64_t arrived_as;        /* with this seq */
    size_t looked;
    bool bad, called;
    struct ranks_round round;
    struct ranks_lanes lanes;
    float *result, *state_outer[2], *piece;
    float *next_outer[2];               /* carries: the next base comes here */
    /* means go by hosts; NULL: each rank is by itself */
    struct ranks_host *host;
    float *mean;                        /* the result of a mean, or the host's */
    const float **inputs;
    double *shares;
    /* encoded means */
    uint64_t refers;                    /* the series of the round that made outer[0] */
    float *owed, *owed_else;            /* (n) owed_else: where ranks come and go */
    struct ranks_elastic *elastic;
    struct ranks_center *center;
    struct ranks_joint *joint;          /* NULL: each elastic exchange is by itself */
    struct ranks_rows *rows;
    struct ranks_base base;
    struct ranks_rows_lead *rows_lead;  /* as lead */
    uint64_t rows_series;               /* of a round of rows; 0 where the link is
                                           fixed */
    struct ranks_post *post;              /* NULL: the lane is not used */
    /* Written by poll and begin, read by wait; relaxed: they only set how long wait
     * sleeps. */
    _Atomic uint32_t still;             /* polls in a row in which nothing moved */
    _Atomic uint32_t rest_most_us;
    struct ranks *next;                   /* the next job that close.c keeps */
    uint64_t moved_ns, said_ns;         /* something moved last; awaited ranks were logged
                                           last */
    bool moved;                         /* something moved in this poll */
    bool aside;                         /* the message that has ended holds nobody up */
};

static inline struct ranks *ranks_of(struct fabric *f)
{
    return (struct ranks *)(void *)f;
}

/* The rank that founds the job, and to which ranks come first. */
static inline int ranks_founder(const struct ranks *m)
{
    return m->hub >= 0 ? m->hub : 0;
}

static inline const char *ranks_host_name(const struct ranks *m, int rank)
{
    return atomic_load_explicit(&m->f.host_names[rank], memory_order_acquire);
}

/* The rank has had this newcomer's HELLO, and may turn it away. */
static inline bool ranks_greeted(const struct ranks *m, int rank)
{
    const struct ranks_peer *peer = &m->peers[rank];
    return peer->greeted && peer->greeted == peer->generation;
}

/* --- messages.c --- */

enum { RANKS_UNIT = 16 };           /* floats: a cache line */

void ranks_fail(struct ranks *m, descant_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void ranks_blame_alone(struct ranks *m, descant_status status, const char *text);
/* A peer breaks the protocol: the job ends here and, if this rank leads, for all. */
void ranks_refuse(struct ranks *m, int rank, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
bool ranks_send_op(struct ranks *m, struct ranks_op *op, const void *p, size_t bytes,
                   enum ranks_tag tag);
/* Receive exactly so many bytes; or, receive_any, up to `most`, which `ended` tests. */
bool ranks_receive_op(struct ranks *m, struct ranks_op *op, void *p, size_t bytes,
                      enum ranks_tag tag);
bool ranks_receive_any(struct ranks *m, struct ranks_op *op, void *p, size_t most,
                       enum ranks_tag tag);
bool ranks_collect(struct ranks *m);        /* true: a message has ended */
/* Makes a record for place `slot` of its kind; NULL: no memory. memory_give gives a
 * record back that is not parked. */
void *ranks_request_make(const struct ranks_requests *all, unsigned slot);
/* Parks a record and returns another one for its place. NULL: the record stays where it
 * is. A peer for which too many are parked is refused. */
void *ranks_request_park(struct ranks *m, struct ranks_requests *all,
                         struct ranks_request *r);
/* Gives a parked record back, if none of its messages is under way. */
void ranks_request_release(struct ranks_requests *all, struct ranks_request *r);
void ranks_requests_fini(struct ranks_requests *all);

/* --- words.c --- */

descant_status ranks_words_init(struct ranks *m);
void ranks_words_fini(struct ranks *m);
/* opens the receive for a word, if one may be heard now; false: the link fails */
bool ranks_listen(struct ranks *m);
/* False: the word is lost, for the rank takes none or is not there. */
bool ranks_tell(struct ranks *m, int rank, struct ranks_word word, const void *tail,
                size_t bytes);
/* sets the members and the epoch that a GO or MEMBERS tells */
void ranks_take_part(struct ranks *m, const struct ranks_word *word);

/* --- seats.c --- */

static inline const struct ranks_run *ranks_runs(const struct ranks_word *go)
{
    return (const struct ranks_run *)(const void *)(go + 1);
}

struct ranks_seat ranks_run_seat(const struct ranks_run *run, uint32_t i);
/* Adds a seat after n runs; returns the number of runs then. */
uint32_t ranks_runs_add(struct ranks_run *runs, uint32_t n,
                        const struct ranks_seat *seat);
/* Writes the seats of n runs; returns their number. */
int ranks_runs_seats(const struct ranks_run *runs, uint32_t n, struct ranks_seat *seats);
const struct ranks_run *ranks_run_of(const struct ranks_run *runs, uint32_t n, int rank);

/* --- start.c: of the table --- */

/* options->link is set. */
descant_status ranks_open(struct fabric **out, const struct fabric_type *type,
                          const struct fabric_options *options);
float *ranks_alloc(struct fabric *f, size_t at, size_t n);
descant_status ranks_beside(struct fabric *f, struct link **link,
                            struct link_place *place);
descant_status ranks_start(struct fabric *f, const struct fabric_start *start);

/* --- turn.c --- */

/* of the table */
descant_status ranks_begin(struct fabric *f, const struct exchange *exchange);
enum fabric_progress ranks_poll(struct fabric *f, struct fabric_part *part);
/* A poll's work for others: hears words, and helps outside of the exchange that is
 * open. */
void ranks_serve(struct fabric *f);
/* gives up the exchange that is open; its round goes on */
void ranks_abandon(struct ranks *m);

/* --- close.c --- */

/* Closing in parts, for tests in which all ranks live in one thread: leave tells the
 * others, stay serves them and is true while any is left, free releases all. */
void ranks_leave(struct fabric *f);
bool ranks_stay(struct fabric *f);
void ranks_free(struct fabric *f);
void ranks_free_kept(void);       /* frees kept jobs that have no message under way any
                                     more */
void ranks_close(struct fabric *f);

/* --- hear.c --- */

bool ranks_hear(struct ranks *m, int from, const struct ranks_word *word, size_t bytes);

/* --- peers.c --- */

descant_status ranks_peers_init(struct ranks *m);
void ranks_peers_fini(struct ranks *m);
void ranks_peers_met(struct ranks *m, const struct link_peer *peer);
void ranks_names_fini(struct ranks *m);
void ranks_peers_time(struct ranks *m);
void ranks_peers_tell(struct ranks *m);
void ranks_peers_changed(struct ranks *m);          /* another epoch stands */
/* true: all ranks of m->go's round are there */
bool ranks_peers_seated(const struct ranks *m);
bool ranks_peers_hello(struct ranks *m, int rank);  /* the manifest follows */

/* --- members.c --- */

descant_status ranks_members_init(struct ranks *m);
void ranks_members_fini(struct ranks *m);
void ranks_members_hear(struct ranks *m, int from, const struct ranks_word *word);
void ranks_members_time(struct ranks *m);
struct ranks_word ranks_members_arrival(const struct ranks *m);    /* x as a HERE */
void ranks_members_ready(struct ranks *m);          /* x has arrived */
void ranks_members_unready(struct ranks *m);        /* x is taken back */
void ranks_members_leave(struct ranks *m);          /* no more from this rank */
/* the coordinator closes the round of m->go */
void ranks_members_close(struct ranks *m);
/* begins the round of m->go; false: this rank has no part in it */
bool ranks_members_begin(struct ranks *m);
void ranks_members_whole(struct ranks *m);          /* the round's result is there */
/* Where ranks come and go: */
/* founds epoch 1 with the members in m->list */
void ranks_members_form(struct ranks *m);
void ranks_members_lost(struct ranks *m, int rank);      /* others vouch for its death */
void ranks_members_silent(struct ranks *m, int rank);
void ranks_members_came(struct ranks *m, int rank);
/* the rank is not silent any more */
void ranks_members_heard(struct ranks *m, int rank);
struct ranks_taken;
/* merged: m->list */
bool ranks_members_took(struct ranks *m, const struct ranks_taken *taken);

/* --- versions.c --- */

enum ranks_version { VERSION_LIST, VERSION_RESULT, VERSION_STATE, VERSION_ROWS };

struct ranks_taken {
    struct ledger_version version;
    enum ranks_version which;
    uint64_t n, note;           /* n: floats of a result; note: the donor's */
    uint64_t center_state;
    bool hollow;                /* a list came, where this rank needs the state */
};

descant_status ranks_versions_init(struct ranks *m);
void ranks_versions_fini(struct ranks *m);
void ranks_versions_want(struct ranks *m, const struct ledger_decision *fetch);
void ranks_versions_begun(struct ranks *m);         /* another exchange */
void ranks_versions_want_rows(struct ranks *m, struct ledger_version version, int donor);
/* true, once: all of the wanted rows have come */
bool ranks_versions_rows_came(struct ranks *m);
/* asks for pieces, and answers others */
void ranks_versions_step(struct ranks *m);
/* True, once: all of the version has come; m->list has the arrivals that are merged in
 * it. */
bool ranks_versions_came(struct ranks *m, struct ranks_taken *taken);
/* pieces that have come, of all versions */
uint64_t ranks_versions_pieces(const struct ranks *m);
/* no piece that was asked for is on its way */
bool ranks_versions_quiet(const struct ranks *m);

/* --- donor.c --- */

bool ranks_donor_gives(const struct ranks *m);  /* a state is on its way from here */
/* Whether a piece of an elastic exchange, an ask or an answer, is to stay for now,
 * because a state is on its way from here; if false, the piece is to leave. */
bool ranks_donor_first(struct ranks *m);

/* --- lead.c: the coordinator, or a rank that may become it --- */

descant_status ranks_lead_init(struct ranks *m);
void ranks_lead_fini(struct ranks *m);
void ranks_lead_hear_here(struct ranks *m, int from, const struct ranks_word *word);
void ranks_lead_hear_leave(struct ranks *m, int from);
/* The coordinator says that this rank begins its finish, or has left. */
void ranks_lead_ends(struct ranks *m, int rank, bool finishes);
void ranks_lead_changed(struct ranks *m);           /* another epoch stands */
/* Ends the job for all ranks. */
void ranks_lead_fail(struct ranks *m, descant_status status, const char *text);
/* Fills in the ranks that the round that gathers waits for. */
void ranks_lead_late(struct ranks *m, struct awaited *awaited);
/* Tells ranks that have arrived the ranks that their round waits for. */
void ranks_lead_tell_late(struct ranks *m);

/* --- admission.c --- */

struct word_facts;
void ranks_admission_facts(const struct ranks *m, int from, const struct ranks_word *word,
                           struct word_facts *facts);
void ranks_admission_hear(struct ranks *m, int from, const struct ranks_word *word);
void ranks_admission_started(struct ranks *m);
/* Of a hub that has not started: a manifest that has come; NULL: none has. */
const char *ranks_admission_manifest(const struct ranks *m);
/* False: HERE is of a newcomer whose manifest is not known yet, and is heard later. */
bool ranks_admission_admits(struct ranks *m, int from, const struct ranks_word *word);
void ranks_admission_gone(struct ranks *m, int rank);       /* its process has gone */

/* --- lead_round.c --- */

void ranks_lead_turn(struct ranks *m);
void ranks_lead_time(struct ranks *m);

/* --- pieces.c --- */

struct chunk;

size_t ranks_piece_room(const struct ranks *m);     /* floats of a piece, at most */
/* Floats of a piece among k ranks, at most: many ranks have shorter ones in flight to
 * each, and all of them together still fill a link. All ranks come to the same number. */
size_t ranks_piece_most(size_t k);
/* Pieces in flight to and from each of `with` ranks, of a sort, of n floats: as many as
 * the buffers have room for, since a long link holds many. Where no link wakes a sleeper
 * each one costs time in every look, and there are few. */
unsigned ranks_depth(const struct ranks *m, size_t k, size_t with, size_t n);
/* the first float of a member's slice, of k slices; member k: n */
size_t ranks_slice_at(size_t n, int k, int member);
const float *ranks_reach(const struct vector *v, size_t at, size_t n, float *gathered);
struct chunk ranks_round_slice(const struct ranks_round *r,
                               int member); /* of a mean; 0 floats: the member owns
                                               none */
/* of the member's slice */
size_t ranks_round_pieces(const struct ranks_round *r, int member);
struct chunk ranks_round_piece(const struct ranks_round *r, int member, size_t piece);
/* nth of r->owners, ascending */
int ranks_round_owner(const struct ranks_round *r, int nth);
/* false: no part is finite */
bool ranks_mean_inputs(struct ranks *m, float *out, int n_in, size_t n);

/* --- lanes.c --- */

descant_status ranks_lanes_init(struct ranks *m);
void ranks_lanes_fini(struct ranks *m);
/* Opens n lanes with buffers of so many bytes to give and to learn, 0: without. False:
 * the job has failed, for lack of memory. */
bool ranks_lanes_open(struct ranks *m, int n, size_t give_bytes, size_t learn_bytes);
/* Opens a window for n_peers, of which all may give parts of so many bytes. */
bool ranks_window_open(struct ranks *m, int n_peers, size_t room, size_t part_bytes);
/* gives the window back, unless all rounds need it */
void ranks_window_close(struct ranks *m);

/* --- mean.c --- */

void ranks_mean_begin(struct ranks *m);
bool ranks_mean_step(struct ranks *m);      /* true: the mean is done */
uint64_t ranks_mean_bytes(const struct ranks *m);   /* sent by this member */
void ranks_mean_late(const struct ranks *m, struct awaited *awaited);

/* --- hosts.c --- */

/* of the table */
descant_status ranks_share(struct fabric *f, const char *name, size_t bytes,
                           void **block);
/* whether means go by hosts: the same for all ranks, after open */
bool ranks_by_hosts(const struct ranks *m);
/* also makes the contribution, where one is wanted */
descant_status ranks_host_init(struct ranks *m);
void ranks_host_fini(struct ranks *m);
void ranks_host_begin(struct ranks *m);
/* of the member's whole host */
double ranks_host_share(const struct ranks *m, int member);
/* relays: in this round the member gives its host's parts of this rank's slice, and is
 * told the result. relayed: the other way round. */
bool ranks_host_relays(const struct ranks *m, int member);
bool ranks_host_relayed(const struct ranks *m, int member);
/* shows a piece of this rank's vector; false: all is shown */
bool ranks_host_show(struct ranks *m);
/* all mates have shown the piece of every slice */
bool ranks_host_shown(const struct ranks *m, size_t piece);
/* puts the mates' parts and shares into m->inputs */
int ranks_host_inputs(struct ranks *m, size_t at);
/* the mates' parts as one */
const float *ranks_host_give(struct ranks *m, struct chunk piece, float *out);
/* this rank is done with the round; true: all mates are */
bool ranks_host_done(struct ranks *m);
void ranks_host_late(const struct ranks *m, struct awaited *awaited);

/* --- wire.c: pieces of an encoded mean, of whole blocks --- */

descant_status ranks_wire_init(struct ranks *m);            /* after the lanes */
void ranks_wire_fini(struct ranks *m);                      /* before the lanes */
const float *ranks_wire_give(struct ranks *m, struct chunk piece, float *out);
void ranks_wire_reduce(struct ranks *m, struct chunk piece, int n_in, float *settled);
void ranks_wire_learn(struct ranks *m, struct chunk piece, const float *in);
/* sets what is owed to zero */
void ranks_wire_forgive(struct ranks *m);
/* the round is given up; a second call takes that back */
void ranks_wire_revert(struct ranks *m);

/* --- state.c --- */

void ranks_state_begin(struct ranks *m);
bool ranks_state_step(struct ranks *m);
void ranks_state_end(struct ranks *m);
bool ranks_state_fill(struct ranks *m);     /* fills the source's centre; true: it is
                                               full */

/* --- elastic.c --- */

descant_status ranks_elastic_init(struct ranks *m);
void ranks_elastic_fini(struct ranks *m);
void ranks_elastic_begin(struct ranks *m);          /* begins x at its first float */
/* begins to fetch the whole centre from its owners */
void ranks_elastic_fetch(struct ranks *m);
/* each poll's work for the ranks of this host */
void ranks_elastic_turn(struct ranks *m);
enum fabric_progress ranks_elastic_step(struct ranks *m, struct fabric_part *part);
void ranks_elastic_stop(struct ranks *m);           /* begins no more pieces */
/* no piece is in flight, of others either */
bool ranks_elastic_quiet(const struct ranks *m);
void ranks_elastic_changed(struct ranks *m);        /* another epoch stands */
void ranks_elastic_late(const struct ranks *m, struct awaited *awaited);

/* --- center.c: called by elastic.c --- */

descant_status ranks_center_init(struct ranks *m);
void ranks_center_fini(struct ranks *m);
void ranks_center_changed(struct ranks *m);     /* the members have changed */
/* serves asks that waited for a state, or for another epoch */
void ranks_center_serve(struct ranks *m);
/* serves asks that have yielded to a state that this rank gives, as many as may leave */
void ranks_center_step(struct ranks *m);
/* no answer to a member is on its way */
bool ranks_center_quiet(const struct ranks *m);
/* Whether the rank has seen all of this rank's slices since the watch began. */
void ranks_center_watch(struct ranks *m);
bool ranks_center_seen(const struct ranks *m, int rank);

/* --- rows.c --- */

descant_status ranks_rows_init(struct ranks *m, const struct fabric_start *start);
void ranks_rows_fini(struct ranks *m);
void ranks_rows_facts(const struct ranks *m, int from, struct word_facts *facts);
void ranks_rows_hear(struct ranks *m, const struct ranks_word *word);
void ranks_rows_step(struct ranks *m);
/* this rank takes no more parts, but sends its own */
void ranks_rows_leave(struct ranks *m);
/* no closed round is under way here */
bool ranks_rows_quiet(const struct ranks *m);
bool ranks_rows_open(const struct ranks *m);
bool ranks_rows_taking(const struct ranks *m);      /* parts are being handed out */
/* of the table */
descant_status ranks_rows_begin(struct fabric *f, const void *bytes, size_t n);
enum fabric_progress ranks_rows_poll(struct ranks *m, struct rows_part *part);
/* before close: takes the round in hand */
bool ranks_rows_takes(struct fabric *f);
/* Where ranks come and go: */
void ranks_rows_changed(struct ranks *m);           /* another epoch stands */
/* The rows that this rank has, or takes, are not the job's. */
void ranks_rows_forget(struct ranks *m);
/* Since when a round with both the rank and this one goes on; 0: there is none. */
uint64_t ranks_rows_since(const struct ranks *m, int rank);
/* the number of this rank's parts that are in no rows */
uint64_t ranks_rows_lost(const struct ranks *m);

/* --- rows_lead.c: the coordinator, or a rank that may become it --- */

bool ranks_rows_lead_init(struct ranks *m);
void ranks_rows_lead_fini(struct ranks *m);
void ranks_rows_lead_facts(const struct ranks *m, int from, struct word_facts *facts);
void ranks_rows_lead_hear(struct ranks *m, int from, const struct ranks_word *word);
/* a round that this rank closed is under way */
bool ranks_rows_closed(const struct ranks *m);
/* Where ranks come and go: */
void ranks_rows_lead_changed(struct ranks *m);      /* another epoch stands */
void ranks_rows_lead_gone(struct ranks *m, int rank);   /* its process has */
void ranks_rows_lead_moved(struct ranks *m, int rank);
/* Admits a newcomer, whose manifest is the same. False: it has to take the rows first. */
bool ranks_rows_lead_admits(struct ranks *m, int rank);

/* --- post.c --- */

extern const struct fabric_post ranks_post;
void ranks_post_fini(struct ranks *m);
/* no message that was sent is on its way */
bool ranks_post_quiet(const struct ranks *m);

/* --- ranks.c --- */

extern const struct fabric_agree ranks_agree;

/* --- agree.c --- */

/* The last result of an agreement that this rank knows, and the epoch in which a
 * coordinator told it last. */
struct ranks_kept {
    uint64_t number, epoch;             /* number 0: none */
    struct agree_value value;
};

descant_status ranks_agree_offer(struct fabric *f, const struct agree_value *value);
bool ranks_agree_look(struct fabric *f, struct agree_value *result);
descant_status ranks_agree_made(struct fabric *f, bool *ready, uint64_t *number,
                                struct agree_value *last);
descant_status ranks_agree_init(struct ranks *m);
void ranks_agree_fini(struct ranks *m);
void ranks_agree_form(struct ranks *m);     /* this rank is one of the founders */
void ranks_agree_forget(struct ranks *m);   /* what it knows is of a job that has ended */
struct ranks_kept *ranks_agree_kept(struct ranks *m);
uint64_t ranks_agree_number(const struct ranks *m);     /* of the last answer; tests */
void ranks_agree_pack(struct ranks_word *word, const struct agree_value *value);
void ranks_agree_unpack(const struct ranks_word *word, struct agree_value *value);
void ranks_agree_hear(struct ranks *m, const struct ranks_word *word);
/* Tells a rank that may become a member which result this one keeps. False: the word is
 * lost. */
bool ranks_agree_tell(struct ranks *m, int rank);
void ranks_agree_turn(struct ranks *m);         /* before the coordinator's turn */
void ranks_agree_turned(struct ranks *m);       /* after it */

/* --- agree_lead.c: the coordinator, or a rank that may become it --- */

descant_status ranks_agree_lead_init(struct ranks *m);
void ranks_agree_lead_fini(struct ranks *m);
void ranks_agree_lead_hear(struct ranks *m, int from, const struct ranks_word *word);
void ranks_agree_lead_turn(struct ranks *m);
void ranks_agree_missing(struct fabric *f, struct awaited *awaited);

/* --- deal.c --- */

extern const struct fabric_deal ranks_deals;
descant_status ranks_deal_init(struct ranks *m);
void ranks_deal_fini(struct ranks *m);
void ranks_deal_hear(struct ranks *m, int from, const struct ranks_word *word);
void ranks_deal_turn(struct ranks *m);          /* after the coordinator's turn */
/* Before its next arrival, or before it leaves, this rank tells what it has. */
void ranks_deal_soon(struct ranks *m);
void ranks_deal_ended(struct ranks *m);         /* this rank's final exchange */
void ranks_deal_forget(struct ranks *m);    /* what it knows is of a job that has ended */
struct leases;
struct own_items;
/* for tests; leases: NULL: this rank does not deal */
const struct own_items *ranks_deal_own(const struct ranks *m, enum deal_kind kind);
const struct leases *ranks_deal_leases(const struct ranks *m, enum deal_kind kind);
/* The coordinator closes the final round of the members in m->list: a mean, source -1, or
 * a state. */
void ranks_deal_final(struct ranks *m, int source);

/* --- bulletins.c --- */

void ranks_bulletins_hear(struct ranks *m, int from, const struct ranks_word *word);
void ranks_bulletins_tell(struct ranks *m);     /* this rank's, if it is due */
/* the time when it is due; UINT64_MAX: this rank tells none */
uint64_t ranks_bulletins_due(const struct ranks *m);
void ranks_bulletins_fini(struct ranks *m);

/* --- waits.c --- */

void ranks_rest(struct ranks *m, uint64_t until_ns);
void ranks_set_rest(struct ranks *m);       /* by the exchange that is open now */
void ranks_say(struct ranks *m);
/* Note for the ledger for which members this rank waits in the open mean: call them at its
 * begin, after each step that did not end it, and at its end. */
void ranks_late_begin(struct ranks *m);
void ranks_late_look(struct ranks *m);
void ranks_late_end(struct ranks *m);
void ranks_look_at_cores(struct ranks *m, int threads);

#endif
