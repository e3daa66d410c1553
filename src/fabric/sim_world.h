/* SPDX-License-Identifier: MIT */
/* What a simulated world is made of; for the files of the sim fabric alone: sim_world.c (clock,
 * memory, who is there), sim_round.c (rounds), sim_rows.c (rounds of rows), sim_waits.c, sim.c
 * (what the table calls). */
#ifndef SIM_WORLD_H
#define SIM_WORLD_H

#include "machine/blocks.h"
#include "fabric/sim.h"
#include "fabric/vector.h"

enum phase {
    IDLE,
    ARRIVED,            /* begun, the round gathers (or, WAITING: not yet admitted) */
    REDUCING,           /* in the closed group */
    TAKE, TAKEN,        /* the result is there; its part is out */
    PULLED,             /* state: waits for the others of the group */
    PULLING, JOINED,    /* an admitted joiner, and when its part is out */
    ALONE               /* elastic */
};

enum rows_phase {
    ROWS_IDLE,
    ROWS_GIVEN,         /* its part is there, the round waits for others or for the link */
    ROWS_TAKING         /* the parts are out */
};

enum life { OPENED, WAITING, MEMBER, FINAL, DEAD };

struct trainer {
    struct fabric f;
    struct sim_world *world;
    struct block *segments;
    enum life life;
    enum phase phase;
    bool started, in_place;
    bool had_state;             /* was a member that had it */
    int threads;
    int n_outer;
    struct exchange x;
    uint64_t ready_ns;          /* PULLING, ALONE */
    bool looked;                /* ALONE: its values are finite */
    size_t at;                  /* ALONE: the next chunk */
    float *out;                 /* ALONE: one chunk */
    const struct trainer *from; /* whose outer vectors the part that is out shows */
    size_t rows_bytes;          /* most of a part; 0: it has no tables */
    enum rows_phase rows_phase;
    const void *rows;           /* GIVEN: rows_n bytes, the caller's */
    size_t rows_n;
    int rows_next;              /* TAKING: the next part */
    double share;               /* REDUCING: of the mean; 0: it does not count */
    float *owed;                /* encoded means (wire.h): r */
    uint32_t pulled;            /* JOINED: the round in which its part came */
};

struct sim_world {
    struct sim_options options;
    struct rng rng;
    uint64_t now;
    struct trainer **trainers;  /* alive, by rank */
    int n_trainers, room_trainers;
    const float **piece;        /* of a mean: room_trainers of each */
    const struct vector **vectors;
    double *share;
    struct block **shares;      /* (n_shares) of each machine; */
    int n_shares;               /* those that have asked for one */
    struct block *graves;
    /* as the first that started had it */
    char *manifest;
    size_t n, room;
    bool collective;
    float *result, *pull, *center;
    const struct trainer *puller;       /* holds `pull` */
    bool formed;
    /* the round */
    uint32_t round;                     /* its number, from 1 */
    bool reducing;
    enum exchange_kind kind;
    struct trainer *source;             /* state: NULL when all have pulled */
    uint64_t ready_ns;
    int group;                          /* members in it */
    bool empty;                         /* a mean without a good contribution */
    uint64_t center_busy_ns;
    /* the round of rows: its parts are copied at its end, for a giver may die before all have
     * them */
    char *rows;                         /* rows_room bytes: rows_bytes for each who started */
    size_t rows_room;
    struct rows_part *parts;            /* (room_trainers) n_parts of them */
    int n_parts;
    bool rows_sent;                     /* all have given; there at rows_ready_ns */
    uint64_t rows_ready_ns;
};

static inline struct trainer *trainer_of(struct fabric *f)
{
    return (struct trainer *)(void *)f;
}

/* --- sim_world.c --- */

float *world_floats(size_t n);
/* The blocks of a rank's machine; NULL: no memory. */
struct block **world_shares(struct sim_world *w, int rank);
int world_machine(const struct sim_world *w, int rank);
bool world_grow(struct sim_world *w);       /* room for one trainer more */
bool world_started(const struct sim_world *w);
bool world_shape(struct sim_world *w, const struct fabric_start *start);
void world_unshape(struct sim_world *w);
uint64_t world_delay_ns(struct sim_world *w, uint64_t link_ns);     /* latency and chance added */
uint64_t world_rtt_ns(const struct sim_world *w);
int world_count(const struct sim_world *w, enum life life);
void world_changed(struct sim_world *w);    /* somebody came, went, or became another */
void world_remove(struct trainer *t);
void trainer_become(struct trainer *t, enum life life);

/* --- sim_round.c --- */

void world_turn(struct sim_world *w);       /* after each change: does what has become possible */
void world_admit(struct sim_world *w);      /* those who wait to join */
void trainer_drop(struct trainer *t);       /* its exchange */
void trainer_go_alone(struct trainer *t);   /* elastic */
bool trainer_settled(const struct trainer *t);                  /* a member that has its state */
struct trainer *world_standby(const struct sim_world *w);       /* at its end, with a state */
struct trainer *world_caller(const struct sim_world *w);        /* of a STATE that gathers */

/* --- sim_rows.c --- */

void world_turn_rows(struct sim_world *w);
bool world_reserve_rows(struct sim_world *w, size_t bytes);   /* room for one part more */
void world_lead_rows(struct sim_world *w);        /* who leads each machine now */
extern const struct fabric_rows sim_rows;

/* --- sim_wire.c: encoded means --- */

enum wire world_wire(const struct sim_world *w);            /* of the mean that reduces */
void world_mean_encoded(struct sim_world *w, size_t n);     /* into w->result */
uint64_t world_bytes_encoded(const struct sim_world *w, const struct trainer *t, size_t n);
void trainer_owes_nothing(struct trainer *t);

/* --- sim_waits.c --- */

struct awaited trainer_waits(const struct trainer *t);

#endif
