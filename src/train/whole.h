/* SPDX-License-Identifier: MIT */
/* The figures of all hosts of a run, as the host that reports has them. */
#ifndef WHOLE_H
#define WHOLE_H

#include "descant.h"
#include "run/metrics.h"

struct rank_bits;
struct trainer;

/* The numbers that a trainer shows to the others (descant_show), of this start
 * of the job: with those of its earlier processes. */
enum shown { SHOWN_LAYOUT, SHOWN_HOST, SHOWN_N, SHOWN_POSITIVE, SHOWN_CORRECT, SHOWN_LOSS,
             SHOWN_PREDICTED, SHOWN_SECONDS, SHOWN_STALL_S, SHOWN_PLACE, SHOWN_LEFT_S,
             /* 1 + the seconds since its training ended; 0: it trains */
             SHOWN_ENDED, SHOWN_ROWS, SHOWN_EVICTED, SHOWN_REFUSED, SHOWN_SERVED, N_SHOWN };
enum { SHOWN_LAYOUT_NOW = 4 };          /* another version of Descant has another one */

enum host_state { HOST_TRAINS, HOST_DONE, HOST_LEFT, HOST_FAILED, HOST_DIED };

/* Of tables that grow. */
struct rows_figures {
    double live, evicted, refused;
};

/* One host's, over its trainers. */
struct host_figures {
    int host, trainers;
    enum host_state state;
    const char *name;           /* of the machine, until the job is closed */
    struct metrics seen;
    double seconds;             /* of training: of the trainer that trained longest */
    double stall_s, worker_s;   /* of all workers: waited; in all */
    double gap, age_s;          /* means over its trainers that have merged; NaN: none
                                   has */
    double served;              /* rows that have owners: fetched from it or pushed to
                                   it by other ranks */
    double place, left_s;       /* in the data, 0 to 1; until its end. -1: not known */
    double ended_s;             /* since its training ended; -1: it has not */
    struct rows_figures rows;
    double heard_s;             /* the age of these figures */
    double per_s, lately;       /* examples/s: of its seconds; of the last ones */
};

/* A host's figures at an earlier look, by which `lately` is known. */
struct host_past {
    int host;
    double n, seconds, rate;
};

struct spread {
    double least, most;         /* NaN: none is known */
};

struct whole {
    size_t n, room;
    struct host_figures *hosts; /* (n) ascending by number */
    struct host_past *past, *spare;     /* (n) of the same hosts; for the next look */
    struct descant_peer *peers;         /* (room) as the library gave them */
    int at_work;                /* hosts that train */
    struct metrics seen;
    double seconds;             /* of the host that trained longest */
    double per_s, lately;
    double stall_share;
    struct spread gap, age_s;   /* over the hosts */
    struct rows_figures rows;
    double place, left_s;       /* the mean place; the longest time. -1: not known */
};

/* Makes room for so many trainers, more than before. False: no memory, and nothing is
 * changed. */
bool whole_room(struct whole *w, size_t n);
void whole_fini(struct whole *w);

/* Merges n trainers' figures, by hosts. Figures that no trainer of this version can
 * have are left out. Room for n must be there. */
void whole_merge(struct whole *w, const struct descant_peer *peers, size_t n);

/* Adds to the values that a trainer shows those that its earlier process has shown.
 * False: these n numbers are no trainer's of this version. */
bool whole_add_earlier(double *values, const double *earlier, size_t n);

/* The sums of all hosts but that one. */
struct metrics whole_others(const struct whole *w, int host);

/* The host with the least examples/s, of its whole time or, `lately`, of those that train
 * and have for a while; its index, or -1: there are not two to compare. *slow: it has
 * less than half of what the others have in the mean. */
int whole_slowest(const struct whole *w, bool lately, bool *slow);

/* "3 hosts  gap 1.2-12.1", "3 hosts, slow: host 1 beta 800/s", "2 of 3 hosts",
 * "1 of 3 hosts: 1 beta": how many train, and the one that is slow, or the last; returns
 * text. */
const char *whole_text(const struct whole *w, char *text, size_t room);
/* The table of hosts in the summary. */
void whole_print(const struct whole *w, FILE *out);

/* Seconds until this trainer is at the end of its data; -1: not known. */
double whole_left(const struct trainer *t);
/* The rows of this trainer, or of all of a machine, who share them; 0 where tables do not
 * grow. */
struct rows_figures whole_rows(const struct trainer *t);
/* This trainer's numbers, to the others. */
void whole_show(struct trainer *t);
/* Brings t->whole up to date. False: there are no figures of other hosts. */
bool whole_look(struct trainer *t);
/* The seconds of training of the run that was resumed, and since: of this host, or of the
 * one that has trained longest. Any thread. */
double whole_seconds(struct trainer *t);
/* The sums of the run that was resumed and of all hosts since, as far as this one has
 * heard. Any thread. */
struct metrics whole_sum(struct trainer *t);

#endif
