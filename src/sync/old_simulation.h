/* SPDX-License-Identifier: MIT */
/* simulation.h as it was, over the sim fabric: for jobs that simulation.c does not have yet, those
 * in which trainers come late, and those of tables. Both files go when it has them.
 *
 * A whole job in one thread and in virtual time: any number of trainers on the sim fabric, with
 * the real plan and the real round machine. Step times come from a seed, so the same options
 * give the same bits. For tests, and for planning a run before it is paid for. */
#ifndef OLD_SIMULATION_H
#define OLD_SIMULATION_H

#include "fabric/sim.h"
#include "sync/tables.h"

/* g becomes the gradient at w, for step t (from 1) of a trainer. */
typedef void old_simulation_gradient(void *context, int trainer, uint64_t t, const float *w, float *g,
                                 size_t n);

/* Step t of a trainer changes rows of tables->list[..].w and touches them; t 0: their first
 * values. */
typedef void old_simulation_rows(void *context, int trainer, uint64_t t, struct tables *tables);

struct old_simulation_table {
    size_t rows, width;
    size_t state;                   /* width of its optimizer's; 0: none */
};

struct old_simulation_options {
    const char *plan;
    int trainers;
    size_t n;                       /* parameters */
    const float *start;             /* rank 0's values at the start; the others begin with 0 */
    old_simulation_gradient *gradient;
    void *context;
    double rate;                    /* w -= rate * g */
    uint64_t steps;                 /* of each trainer; a dead one makes fewer */
    double step_s;                  /* a step's time */
    double spread;                  /* up to so much longer or shorter, by chance: 0 to 1 */
    const double *slow;             /* (trainers) factors, NULL: all 1 */
    const uint64_t *die_at;         /* (trainers) the step after which one dies; 0: never */
    const double *join_s;           /* (trainers) when one comes; 0: at the start */
    bool attached;                  /* the replicas are the caller's memory, not the fabric's */
    const struct old_simulation_table *tables;      /* (n_tables) */
    size_t n_tables;
    size_t rows_part;               /* bytes of a part at most; 0: as in a real job */
    old_simulation_rows *rows;
    struct sim_options world;       /* per_host: of whom tables are one */
    const struct log *log;
};

struct old_simulation_trainer {
    float *w;                       /* (n); valid until old_simulation_destroy */
    uint64_t steps, rounds;
    bool dead;
    double blocked_s;               /* waited for rounds */
    double gap_mean;
    const struct tables *tables;
};

struct old_simulation;

descant_status old_simulation_run(struct old_simulation **out, const struct old_simulation_options *o);
struct old_simulation_trainer old_simulation_look(const struct old_simulation *s, int trainer);
const float *old_simulation_center(const struct old_simulation *s);     /* (n) elastic: W; else NULL */
double old_simulation_seconds(const struct old_simulation *s);
void old_simulation_destroy(struct old_simulation *s);

#endif
