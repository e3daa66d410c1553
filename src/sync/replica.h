/* SPDX-License-Identifier: MIT */
/* The local version of the parameters: one flat vector, seen as named segments. Each
 * segment starts on a page of the flat vector, so that a fabric can map it alone; between
 * is zero. */
#ifndef REPLICA_H
#define REPLICA_H

#include "fabric/fabric.h"

#include <pthread.h>

struct replica_segment {
    char *name;
    float *memory;      /* NULL: detached. Guarded by replica.lock once training runs */
    size_t at, n;       /* floats of the flat vector */
    bool attached;      /* the caller's memory */
    float *kept;        /* detached: its last values, for peers; ours */
    float *lent;        /* what descant_alloc gave, also when it has been detached;
                           NULL */
    struct kept *keeps; /* that outlives the job; set by descant_leave */
};

struct replica {
    struct replica_segment *segments;
    size_t n_segments, room;
    size_t n;                   /* floats of the flat vector so far */
    bool any_attached;
    struct vector live;         /* the segments' memory; made by replica_fix */
    /* Held by whoever moves floats between segments and anything else, a piece at a time,
     * and by detach: after it nobody touches the caller's memory. */
    pthread_mutex_t lock;
};

void replica_init(struct replica *r);
void replica_fini(struct replica *r);

/* Checks the name and makes room; *at is where the segment will lie. add then takes it
 * in. */
descant_status replica_check(struct replica *r, const char *name, size_t n, size_t *at,
                             const struct log *log);
void replica_add(struct replica *r, float *memory, size_t n, bool attached);
struct replica_segment *replica_find(struct replica *r, const char *name);
/* The first segment that has a part of this memory; NULL: none. */
const struct replica_segment *replica_overlap(const struct replica *r,
                                              const float *memory, size_t n);

/* After the last add: makes r->live. */
descant_status replica_fix(struct replica *r);

/* The segment's memory is the caller's again; keep: exchanges go on with its last values.
 * The caller holds the lock, and no exchange is at work. False: no memory, and nothing
 * has changed. */
bool replica_detach(struct replica *r, struct replica_segment *s, bool keep);

/* The manifest: the plan's line, then a line "name count" for each segment. memory_give
 * it. */
char *replica_manifest(const struct replica *r, const char *plan);

/* Calls fn for each stretch of a segment's memory within [from, from + n) of the flat
 * vector, `at` being its place there. The caller holds the lock. */
typedef void replica_fn(void *context, float *memory, size_t at, size_t n);
void replica_each(struct replica *r, size_t from, size_t n, replica_fn *fn,
                  void *context);

#endif
