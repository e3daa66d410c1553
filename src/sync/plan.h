/* SPDX-License-Identifier: MIT */
/* The plan: when a round runs, what it computes, how it is merged. One string makes one:
 * a preset, then changes to it, or changes alone (to "none"). One table holds every key,
 * one every preset; the parser, the help and the log's header read them. */
#ifndef PLAN_H
#define PLAN_H

#include "kernels/wire.h"

#include "base/base.h"

enum plan_when { PLAN_NEVER, PLAN_SHADOW, PLAN_EVERY, PLAN_CONTROL };
enum plan_what {
    PLAN_NOTHING,
    PLAN_MEAN,
    PLAN_ELASTIC,
    PLAN_BLOCK,
    PLAN_GRADIENT,
    PLAN_SUM
};
enum plan_merge { PLAN_PULL, PLAN_DELTA };
enum plan_weight { PLAN_EQUAL, PLAN_STEPS };
enum plan_scale { PLAN_AS_ONE, PLAN_AS_ROOT };

/* rate and momentum that outer_step_of chooses in each round: the option's word. */
#define PLAN_AUTO (-1.0)

struct plan {
    const char *preset;     /* its row's name; "custom" where none was named */
    int when, what, merge, weight;
    int64_t every;          /* tau; 0 in shadow plans; of control: gradients, or 0 and
                               period */
    int64_t delay;          /* d */
    int64_t gap;            /* shadow: at least so many steps between rounds */
    double period;          /* control: seconds between two supersteps, or 0 and every */
    int64_t bound;          /* control: versions that a gradient may be behind */
    double alpha;           /* the merge's and elastic's */
    double rate;            /* eta of block, or PLAN_AUTO */
    double momentum;        /* mu of block, or PLAN_AUTO */
    bool nesterov;
    bool heal;              /* a trainer whose contribution was bad takes the global
                               version */
    int wire;               /* enum wire: how a mean's floats are sent */
    /* tables: touches between rounds after which rows are averaged over machines, by
     * degrees, instead of summed; 0: all are summed */
    int64_t hot;
    /* members that close a round once the grace is over: a number, below 1 a share of
     * all; 0: all. Grace: seconds; below 0, a factor of the time that the quorum took */
    double quorum, grace;
    int scale;              /* of block: what eta is multiplied by */
};

struct plan_preset {
    const char *name;
    const char *changes;    /* from the defaults, as a plan string */
    const char *help;       /* "published as", one line */
};

/* preset NULL at the end. descant_open refuses the plans of control, which are none of a
 * job. */
extern const struct plan_preset plan_presets[];
extern const struct option plan_options[];
extern const size_t plan_n_options;

/* On failure BAD_PLAN, logged, with the key, its place and the allowed values. */
descant_status plan_parse(struct plan *plan, const char *text, const struct log *log);

/* The canonical string: the preset and every key that its row does not have; parses back
 * to the same plan. Returns the length needed. */
size_t plan_text(const struct plan *plan, char *text, size_t room);

/* The work due at step number t (from 1). Merge first, then snapshot. */
enum { PLAN_DUE_MERGE = 1, PLAN_DUE_SNAPSHOT = 2 };
int plan_due(const struct plan *plan, uint64_t t);

/* The merge needs a copy of the replica as it was when the round began. */
bool plan_needs_snapshot(const struct plan *plan);

/* Whether a merge stays between the two vectors that it merges, so that sums of squares
 * stay above zero. */
bool plan_keeps_squares(const struct plan *plan);

/* With a quorum, who missed a round carries its work on to the next result, and counts in
 * the round by the last one; else it pulls towards nothing. */
bool plan_carries(const struct plan *plan);

/* Whether there is a central copy, or a global version. */
bool plan_has_central(const struct plan *plan);

#endif
