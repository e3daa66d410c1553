/* SPDX-License-Identifier: MIT */
/* What the conformance suites over every fabric share: the fabrics, and jobs of them.
 * All trainers live in this thread and are polled in turn; when all wait, the last
 * one's wait takes simulated time forward, and a real fabric is given a millisecond.
 * Nothing here waits for ever. */
#ifndef HARNESS_FABRICS_H
#define HARNESS_FABRICS_H

#include "mpi_loopback.h"
#include "ranks/ranks.h"

enum { MOST = 10, BOUND_S = 10, SPINS = 20000000 };

struct fabric_row {
    const struct fabric_type *type;
    int size;
    bool elsewhere;  /* what is not in place is in memory of the callers' own */
    bool fixed;                 /* nobody comes later */
    bool free;                  /* ranks of MOST come, leave and die */
    int per_host;               /* trainers of one host, of several; 0: all are of one */
    enum wire wire;
};

/* Those of shm are the last; each second one is of another parity, for tests that are
 * in place on odd rows. */
enum { ROWS_WITHOUT_SHM = 18, N_ROWS = 29 };
extern const struct fabric_row rows[N_ROWS];

struct peer {
    struct fabric *f;
    struct extent extents[2];
    struct vector in;
    float *got;                 /* the last result */
    float *outer;               /* of the last state */
    float *memory;              /* elsewhere: the vector, one float off a cache line */
    enum exchange_kind kind;
    float alpha;
    int parts;
    uint64_t note;              /* of the last state, */
    int members;                /* and of the last mean */
    bool own, open, final;
};

struct job {
    const struct fabric_row *row;
    struct loopback *ranks;
    char address[64], line[512];
    struct log log;
    struct fabric_start start;
    size_t n;
    bool elsewhere;
    bool split;                 /* not the contribution: two extents with a gap between */
    struct peer peers[MOST];
};

void job_init(struct job *job, int row, size_t n, bool in_place);
struct fabric_options options_of(struct job *job, int k);
bool takes_joiners(const struct job *job);

/* Float i of the centre, where it is one's own if not everybody's. */
float *center_at(struct job *job, size_t i);

void peer_open(struct job *job, int k);
void peer_start(struct job *job, int k);

/* Its vector stays: the loopback closes at once, and may give what was brought until
 * all know. */
void peer_close(struct job *job, int k);

void job_fini(struct job *job);
float *at_float(const struct peer *peer, size_t i);
void peer_fill(struct job *job, int k, int r);
void fill_all(struct job *job, int r);
void peer_begin(struct job *job, int k, struct exchange x);
void begin_all(struct job *job, struct exchange x);
void begin_final(struct job *job, int k);
bool peer_turn(struct job *job, struct peer *peer);      /* polls one; false: it waits */
uint64_t job_now(const struct job *job);

/* Until trainer `wanted` (-1: everybody) has nothing open; false: all wait for
 * something else. */
bool drive(struct job *job, int wanted, double seconds);

void finish(struct job *job);

/* All open, started, and given the first one's state. */
void job_form(struct job *job);

void peer_again(struct job *job, int k, int r);

/* peer's result is the mean with these weights, within half a unit in the last place. */
void check_mean(struct job *job, const struct peer *peer, const double *weight, int n_in,
                int r);

void check_state(struct job *job, int source, int r);
void check_taken(struct job *job, int k, int source, int r);

#endif
