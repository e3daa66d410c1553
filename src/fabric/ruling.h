/* SPDX-License-Identifier: MIT */
/* The rules of a round: its members and its kind, by the offers that have arrived. */
#ifndef RULING_H
#define RULING_H

#include "fabric/fabric.h"

/* A member's arrival. */
struct offer {
    int rank;
    enum exchange_kind kind;
    bool final;
    bool bad;                   /* its vector has NaN or Inf */
    uint64_t refers;            /* the round whose result is its reference */
    uint64_t n, agree, priority;
    double weight;
};

enum ruling_what {
    RULING_VOID,        /* no arrival wants a round: elastic arrivals go on alone */
    RULING_WAITS,       /* for the members that have not arrived; they are called */
    RULING_DIFFER,      /* members ask for different things: all fail */
    RULING_STATE,
    RULING_MEAN,
    RULING_EMPTY        /* a mean in which no vector is good, without a result */
};

struct ruling {
    enum ruling_what what;
    int place;                  /* STATE: the source's; DIFFER: that of an offer which
                                   differs from place 0's */
    uint64_t n;                 /* floats that all have */
    bool one_reference;         /* all differences are from the same result */
};

/* How a trainer stands to the next round. */
enum standing {
    STANDING_NONE,      /* not here, or absent: it brings nothing */
    STANDING_END,       /* at its end */
    STANDING_WORK
};

/* The members of the next round, and how many of them have arrived. */
struct gathering {
    enum standing of;
    int members, arrived;
};

/* Adds so many trainers of one standing (rule 1). Begin with zeros. */
void gathering_add(struct gathering *g, enum standing standing, int members, int arrived);

struct ruling_of {
    int arrived, members;
    bool enough;        /* those that have arrived are enough for a mean */
    bool alone;         /* exchanges need no other trainer, and only a STATE makes a
                           round */
};

/* The ruling on the offers of those members that have arrived. shares: filled by place
 * for a mean; room for all of them. */
struct ruling round_rule(const struct offer *offers, struct ruling_of of, double *shares);

/* Writes how two offers of a round differ, for the log. */
bool offers_differ(const struct offer *a, const struct offer *b);
void offers_say(char *text, size_t room, const struct offer *a, const struct offer *b);

/* Finds the first lines in which two manifests differ; false: the manifests are the
 * same. */
struct differing {
    int n[2];                   /* characters to show */
    const char *text[2];        /* not ended by 0 */
};
bool manifests_differ(const char *a, const char *b, struct differing *out);

/* Scales weights in place, by a power of two so that no sum overflows; all zero counts as
 * all equal. */
void weights_to_shares(double *weight, int n);

#endif
