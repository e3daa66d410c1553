/* SPDX-License-Identifier: MIT */
/* What --tables auto chooses between hosts: a copy of all rows on each (replicate), or
 * one owner for each row (shard); and whether rows with owners move, by --rows-move auto.
 * Functions of numbers, without clock and memory. */
#ifndef TABLES_AUTO_H
#define TABLES_AUTO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* All numbers are above 0, but where 0 is said. */
struct tables_case {
    int hosts;
    bool fits;          /* a host has memory for two copies of all rows */
    double rows;        /* of all tables */
    double row_floats;  /* of a row and the state of its optimizer */
    double sent_bytes;  /* of a row that is fetched, as it travels */
    double fields;      /* rows that an example uses */
    double example_s;   /* CPU time of an example, without rows of others */
    double workers;     /* of a host */
    double budget;      /* the shadow's share of a core; 0: the default */
    double rate;        /* bytes/s that the shadow may send; 0: no limit */
    double link;        /* bytes/s of a host's link; 0: not known */
};

/* Why it chose so. From TABLES_NO_ROOM on each row has an owner. */
enum tables_why {
    TABLES_ONE_HOST = 1,    /* there is one copy either way */
    TABLES_ALIKE,           /* rounds reach each row soon enough */
    TABLES_SLOW,            /* they do not, but to fetch rows would cost more */
    TABLES_NO_ROOM,         /* copies do not fit */
    TABLES_LATE             /* copies would be too late, and rows can be fetched */
};

/* late_s: how long it takes until each row has gone to all hosts once. speed: the share
 * of its examples/s that a host keeps where it fetches rows. */
struct tables_choice {
    enum tables_why why;
    double late_s, speed;
};

struct tables_choice tables_choose(const struct tables_case *c);
static inline bool tables_owned(enum tables_why why)
{
    return why >= TABLES_NO_ROOM;
}

/* "shard: ...", for the log; returns text. */
const char *tables_choice_text(const struct tables_choice *choice, char *text,
                               size_t room);

/* --rows-move auto follows from these. No row of a model is too wide to move: with its
 * optimizer's state it has at most twice the floats of --width, and two. */
struct tables_moving {
    bool over_tcp;      /* elsewhere no rank comes or leaves */
    int64_t ranks;      /* that the job can have */
};
enum { TABLES_MOVE_RANKS = 1024 };      /* the library's bound, the parts of all rows */
bool tables_move(const struct tables_moving *m);

#endif
