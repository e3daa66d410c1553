/* SPDX-License-Identifier: MIT */
/* A whole job in one thread and in virtual time: any number of trainers, with the real
 * plan, round machine and fabric, over a simulated link. Step times come from a seed, so
 * the same options give the same bits. For tests, and for planning a run before it is
 * paid for.
 *
 * A simulated job on one machine is a cost model of shared memory: the ranks of one host
 * exchange the same means by messages that take the near latency alone. The words in
 * shared memory, the order of elastic exchanges and the cost of copies are not simulated;
 * tests/models and the process tests have those. */
#ifndef SIMULATION_H
#define SIMULATION_H

#include "link/simulated.h"
#include "sync/tables.h"

/* The functions by which trainers exchange. */
struct simulation_fabric {
    const struct fabric_type *type;
    const struct link_type *link;   /* fabric_options.link; its world is a struct
                                       simulated */
    /* Closing in parts, since all trainers live in one thread: leave tells the others;
     * stay, called in the trainer's turns, is true while the others still need it; free
     * gives everything back, at any time. */
    void (*leave)(struct fabric *f);
    bool (*stay)(struct fabric *f);
    void (*free)(struct fabric *f);
    void (*free_kept)(void);        /* at the very end: frees jobs that had messages under
                                       way */
};

/* The simulated hosts and their links (link/simulated.h). */
struct simulation_world {
    double latency_s, jitter_s;
    double bytes_per_s;             /* 0: messages take latency alone */
    int per_host;                   /* trainers of one host; 0: each has its own */
    uint64_t seed;
};

/* Writes to g the gradient at w, for step t (from 1) of a trainer. */
typedef void simulation_gradient(void *context, int trainer, uint64_t t, const float *w,
                                 float *g, size_t n);

/* Step t of a trainer changes rows of tables->list[..].w and touches them; t 0: their
 * first values. */
typedef void simulation_rows(void *context, int trainer, uint64_t t,
                             struct tables *tables);

struct simulation_table {
    size_t rows, width;
    size_t state;                   /* width of the optimizer's state; 0: none */
};

struct simulation_options {
    const char *plan;
    int trainers;
    size_t n;                       /* parameters */
    const float *start;             /* rank 0's values at the start; the others begin with
                                       0 */
    simulation_gradient *gradient;
    void *context;
    double rate;                    /* w -= rate * g */
    uint64_t steps;                 /* of each trainer; a dead one makes fewer */
    double step_s;                  /* a step's time */
    double spread;                  /* up to so much longer or shorter, by chance: 0 to
                                       1 */
    const double *slow;             /* (trainers) factors, NULL: all 1 */
    const uint64_t *die_at;         /* (trainers) the step after which one dies; 0:
                                       never */
    const double *join_s;           /* (trainers) when one comes; 0: at the start. Neither
                                       for all: the link is fixed */
    bool attached;                  /* the replicas are the caller's memory, not the
                                       fabric's */
    const struct simulation_table *tables;      /* (n_tables) */
    size_t n_tables;
    size_t rows_part;               /* bytes of a part at most; 0: as in a real job */
    simulation_rows *rows;
    const struct simulation_fabric *fabric;
    struct simulation_world world;  /* tables of one host are one, where the link is
                                       fixed */
    const struct log *log;
};

struct simulation_trainer {
    float *w;                       /* (n); valid until simulation_destroy */
    uint64_t steps, rounds;
    bool dead;
    double gap_mean;
    const struct tables *tables;
    const float *center;            /* (n) elastic: W as this trainer has it; else NULL */
};

struct simulation;

descant_status simulation_run(struct simulation **out,
                              const struct simulation_options *o);
struct simulation_trainer simulation_look(const struct simulation *s, int trainer);
void simulation_destroy(struct simulation *s);

#endif
