/* SPDX-License-Identifier: MIT */
/* A local module keeps segments for control, which reads sums out of it and stores models
 * in it. A local module is in this process, with one segment (local_open), or in another
 * one, behind a fabric (remote.h). One thread at a time. */
#ifndef LOCAL_H
#define LOCAL_H

#include "bsp/gradient.h"
#include "bsp/segment.h"

struct local_sums {
    uint64_t gradients, examples;
    uint64_t lag, lag_most;         /* versions behind when they came: sum, most */
    /* Gradients left out: on models of a run that was undone; in sums with NaN or Inf. */
    uint64_t undone, not_finite;
};

struct local_figures {
    /* of all modules since the local module was opened; bad: refused, or left out, for
     * NaN or Inf */
    uint64_t gradients, examples, stale, bad;
    uint64_t owners;                            /* modules that have attached since
                                                   then */
    int attached;
};

struct local;

/* The contracts are those of the functions below. */
struct local_kind {
    void (*close)(struct local *local);
    void (*end)(struct local *local);
    bool (*taken_over)(const struct local *local);
    uint64_t (*version)(const struct local *local);
    void (*read_out)(struct local *local, struct gradient *g, struct local_sums *sums);
    float *(*next)(struct local *local);        /* NULL: nowhere */
    void (*store)(struct local *local, const float *model, uint64_t version,
                  uint64_t since);
    void (*figures)(const struct local *local, struct local_figures *figures);
    uint64_t (*pending)(const struct local *local);
};

/* The head of both kinds. */
struct local {
    const struct local_kind *kind;
};

/* As segment_open. A segment that a dead keeper has left is taken over with its attached
 * modules; sums with a gradient on a model below options->version are undone, and not
 * read out. */
descant_status local_open(struct local **local, const struct segment_options *options);

/* The segments of a run's local modules in this process: NAME-first and so on. */
struct local_range {
    const char *name;
    int first, n;
};
const char *local_name(const char *run, int number, char *text, size_t room); /* text */
/* o: all but their names. *opened counts those that are open, also after a failure. */
descant_status local_open_range(struct local **locals, int *opened,
                                const struct local_range *range,
                                struct segment_options o);
void local_close(struct local *local);          /* ends its segments. NULL is allowed */
/* tells the modules; sums can still be read */
void local_end(struct local *local);

/* Whether its segments have models of another run, above which the next version must
 * be. */
bool local_taken_over(const struct local *local);
uint64_t local_version(const struct local *local);      /* of the newest model */

/* Adds the slots' sums to g, which stay in place until the next read-out, and their
 * figures to `sums`. A slot's sum with NaN or Inf is left out. */
void local_read_out(struct local *local, struct gradient *g, struct local_sums *sums);

/* Room (n) for the next model, until the next store, which does not copy a model made
 * there. NULL: none. */
float *local_next(struct local *local);

/* Makes w, which must stay as it is until the next store, the newest model. Gradients on
 * versions below `since`, of this store or one before it, are undone. */
void local_store(struct local *local, const float *model, uint64_t version,
                 uint64_t since);

void local_figures(const struct local *local, struct local_figures *figures);
void local_figures_add(struct local_figures *sum, const struct local_figures *figures);
struct local_figures local_figures_of(struct local *const *locals, int n);  /* the sums */

/* The gradients that a read-out would find, about, for modules add meanwhile. */
uint64_t local_pending(const struct local *local);

/* --- of one of this process: another process tends its own modules --- */

/* Gradients that are refused, or left out, for NaN or Inf since this was last asked, in
 * the first slot that has some; 0: none. *pid: the slot's owner now, 0: none. */
uint64_t local_bad(struct local *local, int *pid);

int local_sweep(struct local *local);           /* as segment_sweep */
/* as segment_detached: a module has broken the protocol */
bool local_detached(const struct local *local);

#endif
