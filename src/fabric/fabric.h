/* SPDX-License-Identifier: MIT */
/* How replicas reach each other. A fabric carries exchanges, not messages, so that each
 * fabric can do an exchange in the best way that it has. A fabric is one const table of
 * eight functions.
 *
 * A vector is flat: n floats, in which every segment starts on a page (fabric_round_up),
 * with zeros between. The thread that holds a trainer's round machine calls begin and
 * poll, one thread at a time; other threads may call wait meanwhile. open, alloc, share,
 * start and close belong to the job's caller. */
#ifndef FABRIC_H
#define FABRIC_H

#include "fabric/agree.h"
#include "fabric/bulletins.h"
#include "kernels/vector.h"
#include "kernels/wire.h"

#include <pthread.h>

struct link;
struct link_place;

enum exchange_kind {
    EXCHANGE_MEAN,      /* all trainers' vectors and weights in, the weighted mean out */
    EXCHANGE_ELASTIC,   /* W <- (1-alpha) W + alpha in, W out; needs no other trainer */
    EXCHANGE_STATE      /* one trainer's vectors, to all: the highest priority, then
                           lowest rank */
};

struct exchange {
    enum exchange_kind kind;
    /* The vector that goes in; the fabric never writes it. With in_place it is the live
     * replica, else the contribution; with any_memory it may be any memory, read live.
     * The vector must stay until the exchange is done, or the next begin has returned; a
     * state's extents until another exchange is done */
    const struct vector *in;
    size_t n;                   /* floats of `in` that count, the same for all */
    double weight;              /* mean: finite, >= 0; all zero counts as all equal */
    double alpha;               /* elastic */
    uint64_t priority;          /* state */
    uint64_t agree;             /* must be the same in all trainers, as n; else all get
                                   MISMATCH. Mean: floats of this piece and of those after
                                   it. Final: 1 + enum descant_final */
    uint64_t note;              /* a number of the caller's that goes with its state */
    bool final;                 /* the last: waits until every living trainer has begun
                                   its last */
};

enum fabric_progress {
    FABRIC_WAITING,     /* there is nothing to do until wait returns */
    FABRIC_CALLED,      /* no exchange is open here, and others wait for one, or to
                           join */
    FABRIC_WORKED,      /* a piece of work is done (100 us at most); poll again */
    FABRIC_PART,        /* *part is filled; poll again after using it */
    FABRIC_DONE,
    FABRIC_FAILED       /* for good: f->status says why. A smaller group is not a
                           failure */
};

/* A part of a result: a mean or a state comes in one part, an elastic exchange in many,
 * in any order. */
struct fabric_part {
    enum exchange_kind kind;    /* STATE where another trainer's STATE made the round one:
                                   take the part as it is */
    const float *out;           /* out[0] is float `from`; mean: valid until the next
                                   begin, else until the next poll */
    size_t from, n;
    const float *outer[2];      /* state: the source's outer vectors, whole; NULL: it has
                                   none */
    bool own;                   /* state: this trainer is the source, and takes nothing */
    uint64_t note;              /* state: the source's */
    int members;                /* mean: trainers that the round was for, the same number
                                   for all that were in it */
    /* A state for a trainer that has one, and that has missed rounds or was cut off: its
     * vector stays, outer is what it goes on from, and an exchange that is open goes on,
     * by way of the next poll. Where start said `carries`; also while none is open.
     * merged: outer has the open exchange's contribution already, and the exchange
     * ends */
    bool base, merged;
    bool final;                 /* a hub, whose exchange is none: the trainers' last
                                   round */
};

/* One machine's part of a round of rows: bytes that only the tables above read. */
struct rows_part {
    const void *bytes;          /* on a float's boundary; valid until the next poll of
                                   rows */
    size_t n;
    int rank;                   /* its giver */
    int parts;                  /* of this round */
    bool own;
    bool state;                 /* not part of a round: the rows at `rows_base`, on which
                                   all machines agree, have been replaced */
    uint64_t lost;              /* state: parts that this machine gave and that those rows
                                   lack */
};

struct fabric_start {
    const char *manifest;       /* lines; all trainers must have the same: plan, then
                                   segments */
    size_t n;                   /* floats of the flat vector */
    size_t room;                /* floats of contribution and result, >= n */
    bool in_place;              /* peers may read alloc'ed segments live: no
                                   contribution */
    bool collective;            /* rounds need all trainers (mean); else each exchanges
                                   alone */
    bool gradients;             /* means are of gradients, and not of replicas */
    /* Means close without trainers that are late, by these numbers (plan.h). 0: never */
    double quorum, grace;
    /* Then a trainer that is absent in a mean counts there by outer[0], and who missed
     * one gets a part that is `base`. outer is the state of the last part from the next
     * poll on, and an exchange that has begun is given up for a state alone. Else who
     * missed one waits for the next, and gets no part */
    bool carries;
    bool center;                /* elastic: a central copy is wanted */
    bool numbered;              /* over a link where ranks come and go: the job begins
                                   with the ranks below its size, since these own the rows
                                   of tables; else with as many as come first */
    int n_outer;                /* 0 to 2 vectors of n that a joiner gets; at least 1
                                   where means are encoded */
    int threads;                /* of this trainer: workers, and a shadow if it has one */
    size_t rows_bytes;          /* the most bytes of a part of a round of rows; 0: no
                                   tables */
    const struct vector *rows_base;     /* the rows on which all machines agree, for
                                           machines that come late. The caller writes
                                           there while it takes parts, the fabric before a
                                           part that is `state`. NULL: no tables */
};

struct link_type;

struct fabric_options {
    const char *address;        /* the text after "shm:", "mpi:" or "tcp:" */
    int rank, size;             /* rank -1: any */
    int most;                   /* over a link where ranks come and go: ranks that there
                                   can be; 0: the address says it */
    double start_s;
    double dead_s;              /* over a link where ranks come and go: a rank that was
                                   silent for so long counts as dead; 0: 10 s */
    bool joins;                 /* over such a link: other ranks begin the job, and rank
                                   -1 does not become 0 */
    bool hub;                   /* over such a link: this rank is the job's hub */
    bool owned;                 /* beside will be called, which a link may have to know */
    double rate;                /* bytes a second that a link may send to each peer; 0: no
                                   limit. The caller spaces exchanges, the link their
                                   bytes */
    enum wire wire;             /* how means are to be sent */
    bool parks;                 /* workers wait for each exchange */
    const struct log *log;
    const struct link_type *link;   /* for tests: the link to use, and its world */
    void *context;
};

/* The reason why an exchange waits. */
enum fabric_wait {
    FABRIC_WAIT_NONE,
    FABRIC_WAIT_START,      /* the first state: for trainers to come, or to let this one
                               in */
    FABRIC_WAIT_ROUND,      /* for trainers that have not arrived, or not done their
                               part */
    FABRIC_WAIT_FINISH,     /* the final exchange: for trainers that have not begun
                               theirs, or as ROUND */
    FABRIC_WAIT_CENTER,     /* elastic: for trainers that hold the chunks that are left */
    FABRIC_WAIT_LINK        /* for the emulated link, and no trainer */
};

enum { FABRIC_NAMED = 16 };

/* The trainers that are awaited: how many, and the lowest ranks of those whose rank is
 * known. */
struct awaited {
    enum fabric_wait wait;
    enum exchange_kind kind;
    uint32_t round;             /* the round's number; 0: none */
    int n, n_named;
    int ranks[FABRIC_NAMED];    /* ascending */
};

struct notes;

struct fabric_type;

/* The head of every fabric's own struct. */
struct fabric {
    const struct fabric_type *type;
    struct log log;
    int rank;                           /* settled by open */
    int size;                           /* as asked for */
    int host, hosts, local_rank;        /* set by open: as in descant_members; hosts 0:
                                           there is one machine, and local ranks are
                                           ranks */
    int begins_with;                    /* set by open, where hosts is: machines that the
                                           job begins with; others may come later */
    const char *_Atomic *host_names;    /* set by open: by rank, until close; NULL: not
                                           known. poll may change them, release; all read
                                           them, acquire, and a name stays until close */
    _Atomic bool *takes_part;           /* set by open: by rank, until close; NULL: all
                                           take part, up to their ends. Written by poll
                                           before it notes who has come or is lost; any
                                           thread reads */
    const char *machine_job;            /* set by open: all trainers are on this machine,
                                           and may meet in its memory instead, by this
                                           name; else NULL */
    bool fixed;                         /* set by open: no trainer comes later, and a
                                           death ends the job */
    bool any_memory;                    /* set by open: `in` need not be the
                                           contribution */
    bool quorums;                       /* set by open: means may close without trainers
                                           that are late */
    bool many_hosts;                    /* set by open: the job may have trainers on other
                                           machines, with which `share` shares nothing */
    enum wire wire;                     /* set by open: how means that are not final are
                                           sent, and how tables encode rows. If it is not
                                           f32, outer[0] is the reference: the same bits
                                           for all members, from each begin to the mean's
                                           part */
    _Atomic bool told;                  /* this trainer was told to end: poll says so to
                                           the others, once or again and again. Any thread
                                           sets it, relaxed */
    descant_status status;              /* of a FAILED poll, for the thread that polls */
    /* where events are noted; NULL: no thread reads them. The thread that starts sets it,
     * the one that closes clears it, and threads in descant_waits may read it before */
    struct notes *_Atomic notes;
    /* Set by the caller before start; NULL: this trainer tells the others no figures.
     * poll asks for them about once a second, also just before a final exchange arrives,
     * and close asks once more */
    void (*figures)(void *of, struct bulletin *own);
    void *figures_of;
    /* The others' last bulletins, n_bulletins slots, until close; NULL: none has come.
     * Set by start or poll, release; any thread reads, acquire. In shared memory they are
     * all trainers', this one too; over a link those told to this one, by rank,
     * and in its own slot what an earlier process of this rank had told last */
    struct bulletin_slot *_Atomic bulletins;
    int n_bulletins;
    bool star, hub;                     /* set by open: the last rank is a hub, and no
                                           trainer; this is the hub */
    /* set by start, then constant */
    float *contribution;                /* room floats to be filled before begin; NULL: in
                                           place */
    float *outer[2];
    uint64_t outer_note;                /* carries: the note of outer; the caller changes
                                           both */
    bool outer_loads;                   /* carries: the caller has outer for itself, until
                                           it has brought a state */
    /* The centre, n floats, for saving and loading; NULL: none. In shared memory it is
     * one for all trainers; over a link it is this trainer's last view of the centre, and
     * whole after a state */
    float *center;
    /* written by poll, and by a wait whose bound is past; read by any thread. Relaxed:
       figures order nothing */
    _Atomic int members;                /* trainers that take part now */
    _Atomic int others;                 /* a hub: trainers that are there, also at their
                                           end; release, so that who sees none of them
                                           sees `ended` */
    _Atomic bool ended;                 /* the last round is done */
    _Atomic uint32_t epoch;             /* changes with each coming and going */
    _Atomic uint64_t restarts, bad, bytes;
    _Atomic uint64_t missed;            /* rounds that have closed without this trainer */
    _Atomic uint64_t rows_bytes;        /* of rounds of rows; not counted in bytes */
    _Atomic uint64_t cpu_ns;            /* of the fabric's own threads */
    _Atomic bool host_leader;           /* this trainer makes the rounds of rows for its
                                           machine; when it leaves, another one does.
                                           Written by start and poll; relaxed */
    /* the last round done, for its holder */
    bool own_bad;                       /* this trainer's contribution had NaN or Inf */
    _Atomic bool joined;                /* set by the first STATE: the job was running
                                           already; relaxed, any thread reads */
    _Atomic int machine_threads;        /* workers and shadows of all trainers of this
                                           machine; written by poll, read by the shadow;
                                           relaxed */
    /* struct awaited: written by wait, ended by poll, read by any thread. Relaxed: it is
       for people, and may be half old and half new */
    _Atomic int wait, wait_kind, wait_n, wait_named, wait_ranks[FABRIC_NAMED];
    _Atomic uint32_t wait_round;
};

/* Rounds of rows: each machine sends the changed rows of its tables to all others. They
 * run beside exchanges: neither waits for the other, and beginning, giving up or ending
 * one changes nothing in the other. Rounds of rows go on while a final exchange is open,
 * and after it.
 *
 * In each round the leader of each machine gives one part, which may be empty; so a slow
 * machine delays rows, and nothing else. The parts of a round are the same for all
 * machines. If a machine leaves before the others have its part, the part is not in the
 * round, and they do not wait for it. The holder of the round machine calls these
 * functions, in leaders alone. */
struct fabric_rows {
    bool joins;         /* machines that come late, or were cut off, get the rows in parts
                           that are `state` */

    /* Gives a part of the next round: 0 to rows_bytes bytes, which must not change until
     * DONE, or until close has returned. No round may be open here, and the first STATE
     * must be done. */
    descant_status (*begin)(struct fabric *f, const void *bytes, size_t n);

    /* WAITING; CALLED: no round is open here, and another machine has begun one; WORKED;
     * PART: one machine's part, also the own one, by rank, in the same order everywhere;
     * DONE: all parts have been shown; FAILED, as in poll. Never blocks. It serves
     * exchanges too, as poll serves rows. */
    enum fabric_progress (*poll)(struct fabric *f, struct rows_part *part);

    /* Announces that close follows, and that no round will be begun. True: this machine
     * has promised to take the open round, so poll on. */
    bool (*leave)(struct fabric *f);
};

/* Parcels between rank 0 and each other rank, for the BSP system: sums of gradients go to
 * control, the model and orders come back. They run beside exchanges, without start, and
 * no rank waits. In each direction between two ranks one parcel is under way at most; a
 * parcel that has arrived stays whole until it is taken, also if its sender dies. One
 * thread calls these functions. */
enum { POST_HEAD = 192 };       /* bytes of a head, which only the caller reads */

struct parcel {
    uint64_t from, to;                  /* processes, by the numbers that `who` gave the
                                           sender */
    const void *head;                   /* on a uint64_t's boundary, as values until it is
                                           taken */
    const float *values;                /* NULL: no room was made for them */
    size_t n;                           /* 0: a head alone */
};

struct fabric_post {
    /* The first call has n 0: then heads can go between this rank and the other. The
     * second call, before the other rank sends floats, has the most floats of a parcel,
     * the same on both sides. */
    descant_status (*room)(struct fabric *f, int rank, size_t n);

    /* The number of the process that has the rank now, which no other process ever gets;
     * 0: none has it. */
    uint64_t (*who)(struct fabric *f, int rank);

    /* Lets parcels move; never blocks. Not OK: for good. */
    descant_status (*move)(struct fabric *f);

    /* Whether the last parcel to the rank has been taken. */
    bool (*free)(struct fabric *f, int rank);
    /* Memory for the next parcel's floats; only while free. */
    float *(*box)(struct fabric *f, int rank);
    void (*send)(struct fabric *f, int rank, const void *head, size_t n);

    /* Whether a parcel has arrived from the rank; taken gives its memory back. */
    bool (*look)(struct fabric *f, int rank, struct parcel *parcel);
    void (*taken)(struct fabric *f, int rank);
};

/* Agreements of all trainers at work (agree.h), between start and the final exchange.
 * They run beside exchanges: neither waits for the other. One thread at a time makes
 * them. A trainer that dies, leaves or begins its final exchange is not waited for. */
struct fabric_agree {
    /* Offers this trainer's value to the next agreement, as no other offer is open. */
    descant_status (*offer)(struct fabric *f, const struct agree_value *value);

    /* True, once: the result is here, the same for all that get it. */
    bool (*look)(struct fabric *f, struct agree_value *result);

    /* Sleeps until something may have moved since the last look, or until_ns. */
    void (*wait)(struct fabric *f, uint64_t until_ns);

    /* Adds the trainers at work whose offers are missing, for people; nobody where
     * another trainer alone knows. For the holder of the round machine where the fabric
     * has serve, else for any thread. */
    void (*missing)(struct fabric *f, struct awaited *awaited);

    /* The number of the last agreement that this trainer knows of, 0: of none, and its
     * result, which is `last`'s only where there is one. A trainer that comes late is no
     * member for a moment, and not *ready; then it knows of each that was made without
     * it. For the same threads as `missing`. */
    descant_status (*made)(struct fabric *f, bool *ready, uint64_t *number,
                           struct agree_value *last);
};

/* Items (descant_deal_begin), and units of a limit (descant_deal_limit). */
enum deal_kind { DEAL_ITEMS, DEAL_UNITS, DEAL_KINDS };

struct fabric_work {
    const struct descant_items *done;   /* (n) before this job */
    size_t n;
    uint64_t each;                      /* that a take asks for, at most */
    bool waits;                         /* of this trainer's threads one may wait, in a
                                           step, for another one that waits for items */
};

/* What has become of an item's bytes: they are here; may come, or have room, later; are
 * nowhere; there is no memory for them; they are more than there may be; the caller has
 * no such item, or has had its bytes. */
enum deal_bytes {
    DEAL_HERE, DEAL_LATER, DEAL_NONE, DEAL_STARVED, DEAL_LARGER, DEAL_WRONG
};

struct deal_room {
    void *bytes;
    size_t most;
    size_t *n;                          /* the item's bytes; set by HERE and LARGER */
};

/* Work by need (descant_deal_begin and what follows it). Any thread calls these. */
struct fabric_deal {
    /* Before begin: the trainer of that rank gives the items' bytes, of which `most` are
     * kept. False: no memory. */
    bool (*feed)(struct fabric *f, int rank, size_t most);
    /* The next item. NONE: this trainer gives no bytes, or not any more. */
    enum deal_bytes (*put)(struct fabric *f, const void *bytes, size_t n);
    /* Of an item that was taken; copied once. HERE with no bytes: another trainer has
     * done the item. */
    enum deal_bytes (*get)(struct fabric *f, uint64_t item, const struct deal_room *room);

    /* False: no memory. */
    bool (*begin)(struct fabric *f, enum deal_kind kind, const struct fabric_work *work);
    void (*end)(struct fabric *f, enum deal_kind kind, uint64_t end);
    /* Items that follow each other. False: none is here now. From DESCANT_NO_ITEM: all
     * have been dealt. */
    bool (*take)(struct fabric *f, enum deal_kind kind, uint64_t most,
                 struct descant_items *items);
    void (*done)(struct fabric *f, enum deal_kind kind,
                 const struct descant_items *items);
    void (*back)(struct fabric *f, enum deal_kind kind,
                 const struct descant_items *items);
    /* An exchange begins: it brings all items that are done, of both kinds. Then: it has
     * merged; or a state has replaced what this trainer has trained. */
    void (*brings)(struct fabric *f);
    void (*merged)(struct fabric *f);
    void (*lost)(struct fabric *f);
    size_t (*known)(struct fabric *f, struct descant_items *out, size_t room);
    void (*rest)(struct fabric *f);
};

struct fabric_type {
    const char *name, *address, *help;
    const struct fabric_rows *rows;     /* NULL: the fabric is never many_hosts */
    const struct fabric_post *post;     /* NULL: the fabric's ranks are one process */
    const struct fabric_agree *agree;   /* NULL: the trainer is alone */
    const struct fabric_deal *deal;     /* NULL: all trainers are on this machine */
    bool shared;                        /* alloc's memory is a mapping that other
                                           processes see */
    uint64_t look_ns;                   /* time that workers lose when the shadow wakes
                                           to look for news, beside its CPU time; 0:
                                           peers wake the shadow */

    /* Meets the other trainers. May block up to options->start_s. After failure nothing
     * is left. */
    descant_status (*open)(struct fabric **out, const struct fabric_options *options);

    /* Zeroed memory for floats [at, at + n) of the replica, which peers can read in
     * place; `at` is on a page. The memory is the fabric's until close, which leaves
     * memory that kept_has. NULL, after a line in the log: no memory. Before start. */
    float *(*alloc)(struct fabric *f, size_t at, size_t n);

    /* The zeroed block of that name, one for all trainers of the machine, until close. */
    descant_status (*share)(struct fabric *f, const char *name, size_t bytes,
                            void **block);

    /* Before the start of a hub: the manifest of a trainer that has come, which stays as
     * it is until the next call; NULL: none has come yet. */
    const char *(*manifest)(struct fabric *f);
    /* Tells the trainers that the hub has no part in a job with that manifest: it fails
     * for all. */
    void (*refuse)(struct fabric *f, descant_status status, const char *why);

    /* Meets the same ranks by a link that another thread may use, beside exchanges. NULL:
     * all trainers are on this machine, or there can be no other link. */
    descant_status (*beside)(struct fabric *f, struct link **link,
                             struct link_place *place);

    /* Takes the memory that rounds need, and compares the manifest with those that are
     * known. Does not wait for other trainers: the exchange STATE that must follow does,
     * and it may fail. The trainer is a member only after that exchange. */
    descant_status (*start)(struct fabric *f, const struct fabric_start *start);

    /* Opens an exchange. An exchange that was open is given up, and its round goes on
     * without this trainer. Peers may still read its contribution, or a state's vector,
     * so the caller leaves these alone until another exchange is done. A final exchange
     * takes no part in the rounds of trainers at work, which are then begun again. */
    descant_status (*begin)(struct fabric *f, const struct exchange *exchange);

    /* A bounded piece of work; never blocks. */
    enum fabric_progress (*poll)(struct fabric *f, struct fabric_part *part);

    /* Sleeps until something has moved since the last poll, also of rows, or until_ns (0:
     * no bound). When that lasts it names the awaited trainers (fabric_say). With a bound
     * in the past it does so at once, brings members and epoch up to date, and notes
     * which trainers came or went. */
    void (*wait)(struct fabric *f, uint64_t until_ns);

    /* Answers other trainers while this one has nothing to poll for; never blocks, and
     * shows no part. For the holder of the round machine. Where trainers come and go, the
     * others take one for dead that neither polls nor serves for `dead_s`. NULL: none
     * needs answers. */
    void (*serve)(struct fabric *f);
    /* Ends the sleep of a thread in wait; for any thread. NULL: its sleep is short. */
    void (*wake)(struct fabric *f);

    /* Leaves, and releases everything, also of a half-opened fabric. The other trainers
     * go on. Over mpi it sleeps, serves them, and returns when all have left. */
    void (*close)(struct fabric *f);
};

extern const struct fabric_type fabric_self, fabric_shm, fabric_mpi, fabric_tcp;

size_t fabric_round_up(size_t n_floats);    /* to a page */

/* --- awaited.c --- */

void awaited_add(struct awaited *awaited, int rank);    /* -1: the rank is not known */
void fabric_say(struct fabric *f, const struct awaited *awaited);
void fabric_unsay(struct fabric *f);        /* no trainer is awaited */
struct awaited fabric_hear(const struct fabric *f);

/* --- notes.c --- */

enum { NOTES_RANKS = 4096, NOTES = 128, N_EVENT_KINDS = DESCANT_EVENT_FINISHED + 1 };

struct fabric_note {
    enum descant_event_kind kind;
    int rank;                   /* -1: several */
    uint64_t count;
};

struct notes {
    _Atomic uint32_t bell;      /* futex: rung by notes_add and notes_ring */
    pthread_mutex_t lock;       /* of the rest */
    int n;
    struct fabric_note list[NOTES];
    /* of each rank: its life, and three bits (notes.c). Set under the lock; any thread
       reads, relaxed */
    _Atomic uint32_t lives[NOTES_RANKS];
};

/* A rank's life, by the notes so far. */
struct rank_life {
    uint32_t life;              /* processes of that rank before this one have ended */
    bool ended;                 /* this one has, too: */
    bool lost;                  /* before its end, and without descant_part; */
    bool parted;                /* before its end, after descant_part */
};

void notes_init(struct notes *notes);
void notes_fini(struct notes *notes);
/* NULL is allowed */
void notes_add(struct notes *notes, enum descant_event_kind kind, int rank);
struct rank_life notes_life(const struct notes *notes, int rank);   /* any thread */
void notes_ring(struct notes *notes);
/* out: room for NOTES; returns how many */
int notes_take(struct notes *notes, struct fabric_note *out);

/* --- fabric.c --- */

/* begin's checks, the same for every fabric. */
struct limits {
    size_t n, room;             /* as started */
    bool started, had_state, center;
};
descant_status exchange_check(const struct exchange *exchange,
                              const struct limits *limits, const struct log *log);

/* MISMATCH if the manifests differ; the log names the first line that does. */
descant_status manifest_check(const char *theirs, const char *mine,
                              const struct log *log);

/* The emulated link: the time that an exchange takes. rate 0: no time but rtt. */
struct emulated {
    double rate;        /* bytes/s */
    double rtt;         /* s */
};
/* for a vector that is sent as so many bytes: 2(k-1)/k bytes/rate + 2rtt */
uint64_t emulated_mean_ns(const struct emulated *link, size_t bytes, int members);
/* for n floats: 4n/rate, the centre's share */
uint64_t emulated_busy_ns(const struct emulated *link, size_t n);

#endif
