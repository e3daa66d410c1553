/* SPDX-License-Identifier: MIT */
/* Joint exchanges: elastic exchanges of a host's ranks, made together (joint.c). */
#ifndef RANKS_JOINT_H
#define RANKS_JOINT_H

#include "ranks/elastic.h"

/* The ranks of a host, by local rank, as its first one sees them. */
struct joint_view {
    uint64_t all, here, away;       /* here: wait for the next joint exchange; away: did
                                       not come in time, and are not waited for */
    bool parks;                     /* workers wait meanwhile */
    uint64_t now_ns;
    const uint64_t *came_ns;        /* each that is here waits since then, */
    const uint64_t *closed_ns;      /* and its last joint exchange was closed then */
};

/* Whether those that are here go together now. */
bool ranks_joint_closes(const struct joint_view *view);

/* The pulls of k ranks, one after another, as a single one: returns its alpha, and gives
 * the share of each rank's floats in its vector. */
float ranks_joint_pull(const float *alphas, int k, double *shares);

/* elastic exchanges of this rank are joint; the same for all ranks of its host */
bool ranks_is_joint(const struct ranks *m);
descant_status ranks_joint_init(struct ranks *m);       /* also makes the centre */
void ranks_joint_fini(struct ranks *m);

/* Each poll: a joint exchange closes, and this rank does its share of it. True: it has
 * slices to relay. */
bool ranks_joint_turn(struct ranks *m);
/* the next piece of a slice that this rank relays, as an ask; false: none is ready */
bool ranks_joint_ask(struct ranks *m, int slice, struct ask *ask);
/* the answer to such an ask */
void ranks_joint_take(struct ranks *m, struct ask *answer);
/* There is work for this rank, or it waits. */
bool ranks_joint_busy(const struct ranks *m);

enum joint_progress { JOINT_WAITS, JOINT_PART, JOINT_DONE, JOINT_GIVEN_UP };

/* The exchange that is open; `ends`: it is to be given up as soon as it can. */
enum joint_progress ranks_joint_step(struct ranks *m, bool ends,
                                     struct fabric_part *part);
bool ranks_joint_bad(const struct ranks *m);    /* this rank's floats were not finite */
void ranks_joint_stop(struct ranks *m);         /* the exchange is over for its caller */
bool ranks_joint_quiet(const struct ranks *m);  /* no mate uses this rank's floats */
void ranks_joint_late(const struct ranks *m, struct awaited *awaited);

#endif
