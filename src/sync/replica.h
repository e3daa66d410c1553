/* SPDX-License-Identifier: MIT */
/* The local version of the parameters: one flat vector, seen as named segments. Each
 * segment starts on a page of the flat vector, so that a fabric can map it alone; gaps
 * are zero. */
#ifndef REPLICA_H
#define REPLICA_H

#include "fabric/fabric.h"

#include <pthread.h>

struct replica_segment {
    char *name;
    float *memory;      /* NULL: detached. Guarded by replica.lock once training runs */
    size_t at, n;       /* floats of the flat vector */
    bool attached;      /* the caller's memory */
    float *kept;        /* detached: the last values, for peers; the replica's own */
    float *lent;        /* the memory of descant_alloc, also after detach; else NULL */
    struct kept *keeps; /* memory that outlives the job; set by descant_leave */
};

struct replica {
    struct replica_segment *segments;
    size_t n_segments, room;
    size_t n;                   /* floats of the flat vector so far */
    bool any_attached;
    struct vector live;         /* the segments' memory; made by replica_fix */
    /* Held by the thread that moves floats to or from segments, a piece at a time, and by
     * detach, after which the caller's memory is not touched. */
    pthread_mutex_t lock;
};

void replica_init(struct replica *r);
void replica_fini(struct replica *r);

/* Checks the name and makes room; *at is the segment's place. replica_add then takes it
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

/* Gives the segment's memory back to the caller; keep: exchanges go on with its last
 * values. The caller holds the lock, and no exchange is at work. False: no memory, and
 * nothing has changed. */
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
