/* SPDX-License-Identifier: MIT */
/* How replicas reach each other. A fabric carries exchanges, not messages, so that each can do
 * them the best way it knows; it is one const table of eight functions.
 *
 * A vector is flat: n floats, in which every segment starts on a page (fabric_round_up), with
 * zeros between. Whoever holds a trainer's round machine calls begin and poll, one thread at a
 * time; wait may be called beside them. open, alloc, share, start and close are the caller's. */
#ifndef FABRIC_H
#define FABRIC_H

#include "base/base.h"
#include "fabric/wire.h"

#include <pthread.h>

/* Pieces of a flat vector in memory: ascending, not overlapping; what lies between is zero. */
struct extent {
    size_t at, n;       /* floats */
    float *p;
};

struct vector {
    size_t n;           /* floats of the whole */
    size_t n_extents;
    struct extent *extents;
};

enum exchange_kind {
    EXCHANGE_MEAN,      /* everyone's vector and weight in, the weighted mean out */
    EXCHANGE_ELASTIC,   /* W <- (1-alpha) W + alpha in, W out; needs nobody else */
    EXCHANGE_STATE      /* one trainer's vectors, to all: the highest priority, then lowest rank */
};

struct exchange {
    enum exchange_kind kind;
    const struct vector *in;    /* never written. Live where start was told in_place, else it is
                                   the contribution; where any_memory is set, the contribution
                                   or any memory, read live. Must stay until done, or until
                                   the next begin has returned; the extents of a state, until
                                   another exchange is done */
    size_t n;                   /* floats of it that count, the same for all */
    double weight;              /* mean: finite, >= 0; all zero counts as all equal */
    double alpha;               /* elastic */
    uint64_t priority;          /* state */
    uint64_t agree;             /* alike in all trainers, as n is; else all get MISMATCH. Mean:
                                   floats of this piece and of those after it. Final: 1 + enum
                                   descant_final */
    uint64_t note;              /* of the caller's, kept with its vectors: whoever takes its state
                                   gets it, too */
    bool final;                 /* the last: waits until every trainer alive has begun one */
};

enum fabric_progress {
    FABRIC_WAITING,     /* nothing to do until wait returns */
    FABRIC_CALLED,      /* no exchange is open here, and others wait for one, or to join */
    FABRIC_WORKED,      /* did a bounded piece (about 100 us at most); call again */
    FABRIC_PART,        /* *part is filled; call again when it has been used */
    FABRIC_DONE,
    FABRIC_FAILED       /* for good: f->status says why. A smaller group is not a failure */
};

/* What came out: a mean or a state in one part, an elastic exchange in many, in any order. */
struct fabric_part {
    enum exchange_kind kind;    /* STATE where another trainer made it one: take it as it is */
    const float *out;           /* out[0] is float `from`; mean: valid until the next begin, else
                                   until the next poll */
    size_t from, n;
    const float *outer[2];      /* state: the source's outer vectors, whole; NULL: it has none */
    bool own;                   /* state: this trainer is the source, nothing to take */
    uint64_t note;              /* state: the source's */
    int members;                /* mean: of the round, the same for all who are in it */
};

/* One machine's part of a round of rows, as a buffer whose bytes are the engine's business. */
struct rows_part {
    const void *bytes;          /* on a float's boundary; valid until the next poll of rows */
    size_t n;
    int rank;                   /* of who gave it */
    int parts;                  /* of this round */
    bool own;
    bool state;                 /* it is no part of a round: the rows at `rows_base` are others now, on
                                   which all machines agree */
    uint64_t lost;              /* so many parts that this machine gave are not in those rows */
};

struct fabric_start {
    const char *manifest;       /* lines; all trainers must have the same: plan, then segments */
    size_t n;                   /* floats of the flat vector */
    size_t room;                /* floats of contribution and result, >= n */
    bool in_place;              /* peers may read alloc'ed segments live: no contribution */
    bool collective;            /* rounds need everyone (mean); else anyone exchanges alone */
    bool gradients;             /* means are of gradients, and not of replicas */
    bool center;                /* elastic: a central copy is wanted */
    int n_outer;                /* 0 to 2 vectors of n that a joiner gets; at least 1 where means
                                   are encoded */
    int threads;                /* that this trainer runs: workers, and a shadow if it has one */
    size_t rows_bytes;          /* most that a part of a round of rows has; 0: there are none */
    const struct vector *rows_base;     /* the rows on which all machines agree, for those who come
                                   late: only the caller writes there, while it takes parts, and
                                   the fabric, before a part that is `state`. NULL: there are none */
};

struct link_type;

struct fabric_options {
    const char *address;        /* what follows "shm:" */
    int rank, size;             /* rank -1: any */
    double start_s;
    double dead_s;              /* where ranks come and go: one that was not heard for so long
                                   counts as dead; 0: 10 s; */
    bool joins;                     /* and the job has begun: this rank comes to it, and founds none */
    enum wire wire;             /* how means are to be sent */
    const struct log *log;
    const struct link_type *link;   /* of tests: what the ranks go over, instead of MPI, */
    void *context;                  /* and its world */
};

/* What an exchange waits for. */
enum fabric_wait {
    FABRIC_WAIT_NONE,
    FABRIC_WAIT_START,      /* its first state: those to come, or those to let it in */
    FABRIC_WAIT_ROUND,      /* those who have not arrived, or have not done their part */
    FABRIC_WAIT_FINISH,     /* its final one: those who have not begun theirs, or as ROUND */
    FABRIC_WAIT_CENTER,     /* elastic: those who hold the chunks that are left */
    FABRIC_WAIT_LINK        /* nobody: the emulated link */
};

enum { FABRIC_NAMED = 16 };

/* Whom for: n trainers, the lowest ranks of those that are known by name. */
struct awaited {
    enum fabric_wait wait;
    enum exchange_kind kind;
    uint32_t round;             /* its number; 0: it has none */
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
    int size;                           /* asked for */
    int host, hosts, local_rank;        /* set by open: as in descant_members; hosts 0: it knows of
                                           one machine, and local ranks are ranks */
    const char **host_names;            /* set by open: by rank, until close; NULL: not known */
    const char *machine_job;            /* set by open: all trainers are on this machine, and may
                                           meet in its memory instead, by this name; NULL */
    bool fixed;                         /* set by open: nobody comes later, and one that dies
                                           ends the job */
    bool any_memory;                    /* set by open: `in` need not be the contribution */
    bool many_hosts;                    /* set by open: the job may have trainers on other machines,
                                           with which `share` shares nothing */
    enum wire wire;                     /* set by open: how means are sent, but final ones, and how
                                           tables are to encode rows. Other than f32, outer[0] is
                                           the reference: the same bits for all members, from each
                                           begin to the mean's part */
    descant_status status;              /* why FAILED; the holder of the machine's */
    struct notes *_Atomic notes;        /* set by the thread that starts, cleared by the one that
                                           closes; threads that ask who is late may read it before;
                                           NULL: nobody reads them */
    /* set by start, then constant */
    float *contribution;                /* room floats to be filled before begin; NULL: in place */
    float *outer[2];
    float *center;                      /* n floats; NULL: none. For saving and loading. Shared; or,
                                           over mpi, as this trainer saw it last, and whole after
                                           a state */
    /* written by poll, and by a wait whose bound is past; read by anyone, relaxed: figures, they
       order nothing */
    _Atomic int members;                /* that take part now */
    _Atomic uint32_t epoch;             /* changes with each coming and going */
    _Atomic uint64_t restarts, bad, bytes;
    _Atomic uint64_t rows_bytes;        /* as bytes, which has them not: of rounds of rows */
    _Atomic uint64_t cpu_ns;            /* of the fabric's own threads */
    _Atomic bool host_leader;           /* makes the rounds of rows for its machine; one that leaves
                                           has an heir. Written by start and poll; relaxed */
    /* the last round done, for its holder */
    bool own_bad;                       /* this trainer's contribution had NaN or Inf */
    bool joined;                        /* set by the first STATE: the group was running before */
    _Atomic int machine_threads;        /* workers and shadows of all trainers of this machine;
                                           written by poll, read by the shadow; relaxed */
    /* struct awaited: written by wait, ended by poll, read by anyone; relaxed: it is for
       people, who bear it half old and half new */
    _Atomic int wait, wait_kind, wait_n, wait_named, wait_ranks[FABRIC_NAMED];
    _Atomic uint32_t wait_round;
};

/* Rounds of rows: what the tables of one machine have that the others' lack, from each machine to
 * all. A lane beside begin and poll: neither waits for the other, and what is begun, given up or done
 * in one changes nothing in the other. Rounds go on while a final exchange is open and after it.
 *
 * In each round the leader of each machine gives one part, be it empty, so a slow machine holds up
 * the rows alone. Whose parts make up a round is the same for all: a machine that leaves is in it
 * or not, and if it leaves before the others have its part it is not, and they do not wait for it.
 * Called by the holder of the round machine, of leaders alone. */
struct fabric_rows {
    bool joins;         /* who comes late, or was cut off, gets the rows: parts that are `state` */

    /* Gives a part of the next round: 0 to rows_bytes bytes, which stay as they are until DONE, or
     * until close has returned. No round is open here, and the first STATE is done. */
    descant_status (*begin)(struct fabric *f, const void *bytes, size_t n);

    /* WAITING; CALLED: none is open here, and another machine has begun one; WORKED; PART: one
     * machine's, the own among them, by rank, in the same order everywhere; DONE: that was all;
     * FAILED, as in poll. Never blocks. It serves exchanges too, as poll serves rows. */
    enum fabric_progress (*poll)(struct fabric *f, struct rows_part *part);

    /* Close follows, and nothing more is begun: what others can still do without is not taken
     * here. True as long as this machine has said that it takes the round in hand: poll on. */
    bool (*leave)(struct fabric *f);
};

/* Parcels between rank 0 and each other rank, for the BSP system: sums of gradients to control, the
 * model and its orders back. A lane beside exchanges, and without start: nobody waits in it for
 * anybody. In each direction between two ranks one parcel is on its way at most; it is there,
 * whole, until it is taken, also when its sender dies. Called by one thread. */
enum { POST_HEAD = 192 };       /* bytes of a head; what they mean is the caller's business */

struct parcel {
    uint64_t from, to;                  /* as `who` told them to its sender */
    const void *head;                   /* on a uint64_t's boundary, as values until it is taken */
    const float *values;                /* NULL: no room was made for them */
    size_t n;                           /* 0: a head alone */
};

struct fabric_post {
    /* Before all others, with n 0: heads can go between here and the rank. Then once with the most
     * floats that a parcel has, the same on both sides; before the other sends floats. */
    descant_status (*room)(struct fabric *f, int rank, size_t n);

    /* Who has the rank now, by a number that nobody had before; 0: nobody. */
    uint64_t (*who)(struct fabric *f, int rank);

    /* Lets parcels move; never blocks. Not OK: for good. */
    descant_status (*move)(struct fabric *f);

    bool (*free)(struct fabric *f, int rank);       /* the last one to it has been taken */
    float *(*box)(struct fabric *f, int rank);      /* where its floats are put; while free */
    void (*send)(struct fabric *f, int rank, const void *head, size_t n);

    bool (*look)(struct fabric *f, int rank, struct parcel *parcel);    /* one from it is there */
    void (*taken)(struct fabric *f, int rank);
};

struct fabric_type {
    const char *name, *address, *help;
    const struct fabric_rows *rows;     /* NULL: it is never many_hosts */
    const struct fabric_post *post;     /* NULL: its ranks are one process */
    bool shared;                        /* alloc's memory is a mapping that other processes see */
    uint64_t look_ns;                   /* what it costs workers that the shadow wakes to look, beside
                                           its CPU; 0 where peers wake it */

    /* Meets the others. May block up to options->start_s. After failure nothing is left. */
    descant_status (*open)(struct fabric **out, const struct fabric_options *options);

    /* Zeroed memory for floats [at, at + n) of the replica, at on a page, that peers can read in
     * place; the fabric's, until close, which leaves alone what kept_has. NULL, and logged, if it
     * cannot be had. Before start. */
    float *(*alloc)(struct fabric *f, size_t at, size_t n);

    /* The block of that name, one for all trainers of the machine; zero at first; until close. */
    descant_status (*share)(struct fabric *f, const char *name, size_t bytes, void **block);

    /* Takes what rounds need and checks the manifest against those that are known. Does not wait
     * for the others: the exchange STATE that must follow does, and may be what fails. Only after
     * it is the trainer a member. */
    descant_status (*start)(struct fabric *f, const struct fabric_start *start);

    /* Opens an exchange; one that was open is given up, and its round goes on without us: what
     * was in the contribution, or the vector of a state, may still be read, so it is left alone
     * until another exchange is done. A final one is not in the rounds of others, which are then
     * begun again. */
    descant_status (*begin)(struct fabric *f, const struct exchange *exchange);

    /* A bounded piece of work; never blocks. */
    enum fabric_progress (*poll)(struct fabric *f, struct fabric_part *part);

    /* Sleeps until something has moved since the last poll, also of rows, or until_ns (0: no
     * bound). Says whom it waits for (fabric_say) when that lasts, and at once where the bound
     * is past: then members and epoch are also made those of now, and who came or went is noted. */
    void (*wait)(struct fabric *f, uint64_t until_ns);

    /* Leaves. The others go on without us. Releases everything, also half-opened. Over mpi it
     * returns when all have left: until then it serves them, asleep. */
    void (*close)(struct fabric *f);
};

extern const struct fabric_type fabric_self, fabric_shm, fabric_mpi;

size_t fabric_round_up(size_t n_floats);    /* to a page */

/* --- awaited.c --- */

void awaited_add(struct awaited *awaited, int rank);    /* -1: it is not known */
void fabric_say(struct fabric *f, const struct awaited *awaited);
void fabric_unsay(struct fabric *f);        /* waits for nobody */
struct awaited fabric_hear(const struct fabric *f);

/* --- notes.c --- */

enum { NOTES = 128, N_EVENT_KINDS = DESCANT_EVENT_BROKEN + 1 };

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
};

void notes_init(struct notes *notes);
void notes_fini(struct notes *notes);
void notes_add(struct notes *notes, enum descant_event_kind kind, int rank);    /* NULL is allowed */
void notes_ring(struct notes *notes);
int notes_take(struct notes *notes, struct fabric_note *out);      /* room for NOTES; how many */

/* --- fabric.c --- */

/* What every fabric refuses at begin. */
struct limits {
    size_t n, room;             /* as started */
    bool started, had_state, center;
};
descant_status exchange_check(const struct exchange *exchange, const struct limits *limits,
                              const struct log *log);

/* MISMATCH, and the first line that differs is named. */
descant_status manifest_check(const char *theirs, const char *mine, const struct log *log);

/* The emulated link: how long an exchange takes. rate 0: no time but rtt. */
struct emulated {
    double rate;        /* bytes/s */
    double rtt;         /* s */
};
/* of a vector that is sent as so many bytes: 2(k-1)/k bytes/rate + 2rtt */
uint64_t emulated_mean_ns(const struct emulated *link, size_t bytes, int members);
/* of n floats: 4n/rate, the centre's share */
uint64_t emulated_busy_ns(const struct emulated *link, size_t n);

#endif
