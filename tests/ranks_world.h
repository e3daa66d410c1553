/* SPDX-License-Identifier: MIT */
/* Trainers that come and go: ranks over a simulated link that is not fixed, in one thread
 * and in virtual time, with exchanges of integers that show at once what is wrong.
 *
 * All keep the same vector G. Trainer r brings G with 1 added to float r; the mean says
 * for each float how many of its 1s are in the round, and G grows by that. So G[r] counts
 * what was merged of trainer r. The float after the last trainer's has the number of the
 * reload that G goes back to; the next one, 0 in G, has a number of each exchange in what
 * is brought. These floats repeat to the end of the vector. In each world:
 *
 * Under a quorum who is late carries its 1 on to the G of the round that it missed.
 * Elastic exchanges move the centre, in which no float may be anything but what somebody
 * has brought. Where means are encoded they are not exact, and 5 stands for 2.
 *
 *   1 a version is the same bits in all that hold it
 *   2 each contribution is merged once, or was lost with a version that was given up
 *   3 no peer is refused and no trainer fails, unless the test expects it
 *   4 a state that is taken is of one version, and of one exchange of its giver
 *   5 of what all bring to an encoded mean and owe before it, nothing is lost and nothing
 *     is twice in it and in what they owe then
 *   6 few words wait for a rank that takes none */
#ifndef RANKS_WORLD_H
#define RANKS_WORLD_H

#include "link/simulated.h"
#include "ranks/ranks.h"

enum { WORLD_MOST = 16, WORLD_FLOATS = 24 };

enum trainer_state { TRAINER_AWAY, TRAINER_DEAD, TRAINER_TRAINS, TRAINER_LEAVES, TRAINER_FAILED };

/* ranks_world_rows.c */
struct trainer_rows {
    struct extent extents[2];
    struct vector vector;       /* what all agree on */
    unsigned char *part;
    bool open;
    int last;                   /* whose part was taken */
    uint64_t confirmed, lost;   /* its parts: in the rows; in none */
    uint64_t rounds, states;    /* taken */
    uint64_t next_ns;           /* gives its next part then */
};

/* ranks_world_agree.c */
enum { AGREED_KEPT = 64 };

struct agreed {
    uint64_t number, hash;
    uint64_t epoch;             /* that stood */
};

struct trainer_agree {
    bool open;
    uint64_t next_ns;           /* it offers then */
    int n;                      /* results; the last ones: */
    struct agreed last[AGREED_KEPT];
};

/* ranks_world_deal.c */
enum { WORLD_ITEMS = 3000 };

struct trainer_deal {
    bool begun, over;
    int item, to;               /* in work: item … to - 1; -1: none */
    uint64_t until_ns, missed;
    bool reads, wants;          /* fed: it puts items; waits for the bytes of `item` */
    bool trained[WORLD_ITEMS], brought[WORLD_ITEMS];
};

/* ranks_world_post.c: parcels between this process and another rank */
struct trainer_lane {
    uint64_t who, met;          /* who has the rank; the last process that had it */
    uint64_t number, to;        /* of the last parcel that was sent, until its lane is free */
    uint64_t here, taken;       /* of the parcel that is here; of the last that was taken */
    uint64_t sends_ns, takes_ns;
    int lost, stale, n_taken;
};

struct world_trainer {
    int seats;                  /* in the round before */
    uint32_t aside;             /* members that it has put aside, by rank */
    struct fabric *f;
    struct ranks_world *world;
    enum trainer_state state;
    uint64_t step_ends_ns;      /* begins its next exchange then */
    int lives;                  /* it is the rank's process of this number, from 1 */
    bool came, open, took, finishes, finished, reloads, reloading;
    uint64_t lineage;           /* of the last reload that its state is of */
    float *G, *next;
    float *owed;                /* when its exchange began */
    struct extent live_extent;
    struct vector live;         /* of reloads and of the last exchange */
    uint64_t confirmed, begun;  /* its contributions: merged as it knows; given */
    uint64_t former;            /* of `confirmed`, those of the processes before it */
    uint64_t lost, looked;      /* as its ledger has counted when that was looked at last;
                                   how many were given then */
    uint64_t rounds, states, exchanges; /* done */
    uint64_t mean;              /* a hash of the one that it has taken */
    struct notes notes;
    int n_notes[N_EVENT_KINDS];
    struct trainer_rows rows;
    struct trainer_agree agree;
    struct trainer_deal deal;
    uint64_t self;              /* its process, to those who get its parcels */
    struct trainer_lane lanes[WORLD_MOST];
};

/* Of an encoded mean, over those who have taken it so far: what they brought and what they owed
 * before, less what they owe after it. */
struct settled {
    uint64_t series;
    int n;
    double *sum;
};

struct version_seen {
    uint64_t series, hash, mean;
};

struct ranks_world {
    struct simulated *link;
    struct simulated_options options;
    int founders;
    bool numbered;              /* the first ranks found it */
    size_t n;                   /* floats */
    enum wire wire;
    bool gradients;
    double quorum;              /* rounds close without those who are late; 0: never */
    bool pulls;                 /* who was late needs nothing then, and is given nothing; what
                                   is in a mean is not counted */
    bool elastic;               /* all bring 1 in each float, and 1 more after each reload */
    bool hasty;                 /* whoever is to finish gives up what it has open */
    uint64_t reloads, exchanges;
    uint64_t missed;            /* bases of rounds that their taker was not in */
    uint64_t aside;             /* members that were put aside by a majority */
    uint64_t fetched;           /* results of rounds whose end their taker did not see */
    double dead_s;
    uint64_t step_ns;           /* of training between exchanges, at most */
    struct rng rng;
    struct world_trainer trainers[WORLD_MOST];
    struct version_seen *seen;
    size_t n_seen, seen_room;
    bool rows;                  /* they have tables */
    uint64_t agree_ns;          /* between a trainer's agreements, at most; 0: they make none */
    uint64_t agreements;        /* results, each of one trainer */
    bool deals;                 /* items are dealt, of this kind: */
    enum deal_kind kind;
    bool fed;                   /* items have bytes, which rank 0's first process reads */
    uint64_t read;              /* so many so far */
    uint64_t n_lost;            /* items whose bytes were nowhere */
    bool cut;                   /* some trainer takes the input for cut */
    bool items[WORLD_ITEMS];    /* that were in an exchange that merged */
    uint64_t n_items, items_twice;
    bool figures;               /* each tells how many exchanges it has begun */
    uint64_t told;              /* bulletins that were asked for */
    bool post, long_parcels;    /* parcels instead of rounds; some in several messages */
    size_t parcel_room;         /* floats */
    uint64_t parcels;           /* that were sent */
    struct version_seen *rows_seen;
    size_t n_rows_seen, rows_seen_room;
    struct settled settled[WORLD_MOST];     /* by number */
    char why[512];              /* what is wrong; "": nothing */
    bool lied_to;               /* by this rank: then nothing counts but that nobody else is */
    int liar;                   /* blamed, and that all sleep */
    uint64_t refused;           /* how often the liar was */
    const char *manifest;
    const struct link_type *over;   /* what comes next goes over; NULL: link_simulated */
    char said[512];             /* the last warning or error */
    bool verbose;
    bool goes_on;               /* with figures: each tells as a value those of all
                                   processes of its rank */
};

void world_open(struct ranks_world *w, const struct simulated_options *options, int founders);
void world_close(struct ranks_world *w);
void world_come(struct ranks_world *w, int rank);
void world_leave(struct ranks_world *w, int rank);
void world_reload(struct ranks_world *w, int rank);     /* it gives its state to all, now */
void world_finish(struct ranks_world *w, int rank);     /* its next exchange is its last */
/* In virtual time; what it finds out of order is in w->why, and ends it. */
void world_run(struct ranks_world *w, double seconds);
double world_now(const struct ranks_world *w);          /* seconds since the start */
void world_fault(struct ranks_world *w, enum simulated_fault_kind kind, double at_s,
                 double for_s, int rank, int other, double factor);
/* The live members of the newest epoch may go on. */
bool world_may_go_on(const struct ranks_world *w);
/* The number of the newest version; or exchanges, where they are elastic. */
uint64_t world_rounds(const struct ranks_world *w);
/* The first thing that is wrong stays. */
void world_fail(struct ranks_world *w, int rank, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void world_tell(const struct ranks_world *w);            /* how all are */

/* --- ranks_world_rows.c --- */

void world_rows_start(struct ranks_world *w, int rank, struct fabric_start *start);
void world_rows_free(struct world_trainer *trainer);
bool world_rows_turn(struct ranks_world *w, int rank);          /* false: nothing moves */
uint64_t world_rows_due(const struct ranks_world *w, int rank); /* gives by then; 0: it does not */
uint64_t world_rows_rounds(const struct ranks_world *w);    /* that somebody has taken */

/* --- ranks_world_agree.c --- */

void world_agree_turn(struct ranks_world *w, int rank);
uint64_t world_agree_due(const struct ranks_world *w, int rank);    /* as world_rows_due */

/* --- ranks_world_deal.c --- */

void world_deal_start(struct ranks_world *w, int rank);
void world_deal_turn(struct ranks_world *w, int rank);
uint64_t world_deal_due(const struct ranks_world *w, int rank);
void world_deal_begins(struct ranks_world *w, int rank);        /* an exchange */
void world_deal_merges(struct ranks_world *w, int rank);
void world_deal_loses(struct ranks_world *w, int rank);
void world_deal_check(struct ranks_world *w);
void world_deal_check_calm(struct ranks_world *w);    /* takes a second */

/* --- ranks_world_post.c --- */

void world_post_start(struct ranks_world *w, int rank);
void world_post_turn(struct ranks_world *w, int rank);
void world_post_hear(struct world_trainer *t, const char *line); /* a line of its log */
/* Once the faults have ended: those who have met go on, all others meet, and leave. Returns
 * how many of rank 0's lanes were alive. */
int world_post_ends(struct ranks_world *w, double seconds);

#endif
