/* SPDX-License-Identifier: MIT */
/* Leases: which rank has which items. Pure: words in, words out, and the time is given.
 *
 * The dealer (the coordinator) gives ranges of items, and the lessee (each rank, the
 * coordinator too) tells all of its state in each word, so a lost word is mended by the
 * next one, and another dealer knows all once each lessee has told it:
 *
 *   ITEMS  to the dealer: the items that this rank has, those that are done as far as it
 *          knows, how many it wants, and the number of the last grant that it has taken
 *   DEAL   from the dealer: a grant, and the items that are done as far as it knows
 *
 *   1. The set of done items only grows, and is joined wherever it comes: it needs no
 *      dealer. A rank that has done an item has it until the dealer has heard so.
 *   2. An item is free that is not done, and that no member has. The lowest free items
 *      are dealt first, so what is done is few runs.
 *   3. A grant has a number, and is said again until its number comes back. So each grant
 *      is taken once, and one that went to a rank that has died is free again.
 *   4. A rank that has begun to deal waits until each member has told what it has, for
 *      `patience` at most: a member that tells nothing for longer may have items that are
 *      dealt again, and then done twice. None is left out.
 *   5. A rank has the work of `ahead` in stock, so that it works on while it is cut off.
 *      But no rank has more than `most` in stock: half of all that is not in work yet, in
 *      equal parts. When nothing is free, those that have more give it back. In the end
 *      `most` is 0, each rank has one item in work and none in stock, and all end within
 *      the time that one item takes.
 *
 *   6. Where items have bytes, which one rank reads as from a pipe, those that it has
 *      read are dealt, and no others. If the rank that reads has gone, the input is *cut*:
 *      it ends with the last item that was read, as far as the dealer knows.
 *
 * Where items are small they are taken `each` at a time, in runs: in 5, `each` items then
 * stand for one, and a `most` below that is 0. */
#ifndef LEASES_H
#define LEASES_H

#include "base/runs.h"

enum {
    LEASES_AHEAD = 8,                   /* items with bytes in stock, at most: a rank
                                           cannot fetch more while it is cut off */
    LEASES_RUNS = 256,                  /* of a list in a word, at most */
    LEASES_WANT = 1 << 26               /* items, at most */
};

struct lease_list {
    struct run at[LEASES_RUNS];         /* in any order */
    uint32_t n;
    bool wide;                          /* there was no room: the last run goes on to the
                                           last item, over items that are not in the
                                           list */
};

struct lease_items {
    uint64_t serial;                    /* of this word */
    uint64_t have;                      /* the last grant's number; 0: none */
    uint64_t want;                      /* so many items more */
    uint64_t end;                       /* UINT64_MAX: not known */
    uint64_t stock;                     /* items that are not in work yet */
    uint64_t each;                      /* that one take asks for; 0 is 1 */
    uint64_t fed;                       /* rule 6: 1 + the items that were read; 0: items
                                           have no bytes */
    bool cut;
    bool presses;                       /* it wants to hear what is done, whatever else */
    struct lease_list trained;          /* in no result that the others have */
    struct lease_list held;             /* all other items that it has */
    struct lease_list done;             /* never wide: what has no room is told later */
};

struct lease_deal {
    uint64_t heard;                     /* serial of the rank's last word */
    uint64_t number;                    /* of the grant that came last */
    uint64_t end;
    bool over;                          /* nothing is free, nor in stock */
    uint64_t fed;                       /* as in struct lease_items */
    bool cut;
    bool hungry;                        /* some rank waits for items, and none is free */
    uint64_t most;                      /* in stock */
    bool final;                         /* `pending` is of the final round */
    struct lease_list grant, done;
    struct lease_list pending;          /* done once this rank's final round has ended */
};

enum { RANKS_ITEMS_BYTES = 96 + 3 * LEASES_RUNS * (int)sizeof(struct run) };

/* --- the dealer --- */

struct lessee;

struct leases {
    int size, members;
    struct lessee *of;                  /* (size) */
    struct runs done, busy;             /* busy: done, or some member has them */
    uint64_t end, fed;                  /* fed: rule 6 */
    bool cut;
    uint64_t patience_ns, since_ns;     /* this rank deals since then */
    struct runs pending;                /* trained by those who are in the final round */
    bool final;
    uint64_t each;                      /* the most that a rank has told */
    bool changed;                       /* since these were counted: */
    uint64_t n_free, n_left;
    bool all_told;
};

bool leases_init(struct leases *l, int size, uint64_t patience_ns);
void leases_fini(struct leases *l);

/* This rank begins to deal. */
void leases_begin(struct leases *l, uint64_t now_ns);

/* The rank's process is a member, as `generation` says; 0: it is none, and what it had is
 * free. False, as below: no memory. */
bool leases_member(struct leases *l, int rank, uint64_t generation);

/* The list's runs, and those of `set`, as far as there is room. */
void lease_list_add(struct lease_list *list, const struct runs *set);

bool leases_hear(struct leases *l, int rank, const struct lease_items *items);

/* The rank that reads the items' bytes is no member: no more will come. */
void leases_cut(struct leases *l, uint64_t now_ns);

/* True: `deal` is to be said to the rank. */
bool leases_deal(struct leases *l, int rank, struct lease_deal *deal, uint64_t now_ns);

/* The final round is closed, and has the work of these ranks: all are to be told. */
void leases_final(struct leases *l);
bool leases_final_of(struct leases *l, int rank);

/* --- a rank's own part --- */

/* Items of a rank on their way: in stock; open: in work; trained; brought to an exchange
 * that is under way; fresh: merged; told to the dealer, which has not answered; and done,
 * as far as this rank knows, also by others. */
struct own_items {
    bool begun, alone;                  /* alone: takes what nobody has done */
    bool waits;                         /* see struct fabric_work */
    uint64_t each;                      /* items that one take asks for, at most */
    struct runs stock, open, trained, brought, fresh, told, done;
    struct runs pending;                /* see struct lease_deal */
    uint64_t end;
    uint64_t fed;                       /* rule 6, as far as this rank knows */
    bool cut;
    bool others_starve;                 /* as the dealer said last */
    bool puts, presses;                 /* since the last word this rank has put an item;
                                           has no room for more, until some are done */
    uint64_t have;                      /* the number of the last grant that was taken */
    uint64_t most;                      /* in stock, as the dealer said last, */
    bool over;                          /* and whether all are dealt */
    uint64_t ahead_ns;
    bool ended;                         /* a take has said that all have been dealt */
    uint64_t took;                      /* items, ever */
    uint64_t want;                      /* in stock */
    uint64_t rate_ns, rate_took;        /* a window's begin, and `took` then */
    bool hungry;                        /* some take found nothing since the last word */
    bool starves;                       /* the last take has */
    bool news;                          /* since the last word */
    /* the last word: */
    uint64_t serial, heard, said_ns;    /* heard: the last one that was answered */
    uint64_t told_serial;               /* of the first word that has all of `told` */
    bool asked;                         /* it asked for items, and has no answer */
};

void own_fini(struct own_items *o);
void own_init(struct own_items *o, uint64_t ahead_ns);
bool own_begin(struct own_items *o, const struct run *done, size_t n, uint64_t each,
               bool waits);
void own_feed(struct own_items *o);         /* before begin: items have bytes */
void own_put(struct own_items *o);          /* this rank has read another item */
/* no more is to be taken, but alone */
void own_finish(struct own_items *o);

/* The items that are done, and all that this rank has trained. */
bool own_known(const struct own_items *o, struct runs *known);

/* Up to `most` items that follow each other. False: there is none. From UINT64_MAX: all
 * have been dealt. *good: false: no memory. */
bool own_take(struct own_items *o, uint64_t most, struct run *run, bool *good);
bool own_done(struct own_items *o, struct run run);
bool own_back(struct own_items *o, struct run run);
bool own_brings(struct own_items *o);
bool own_merged(struct own_items *o);
void own_lost(struct own_items *o);         /* what is trained, but not merged */
bool own_ended(struct own_items *o);        /* its final round */
void own_end(struct own_items *o, uint64_t end);

/* This rank was no member for a while: its stock is with others. */
void own_drop(struct own_items *o);
/* What it knows is of a job that has ended. */
void own_forget(struct own_items *o);

/* Whether a word is due. It is also due once the dealer, or the epoch, has changed. */
bool own_due(const struct own_items *o, uint64_t now_ns);
/* The word; it takes its time as said. */
bool own_tell(struct own_items *o, struct lease_items *items, uint64_t now_ns);
bool own_hear(struct own_items *o, const struct lease_deal *deal);

#endif
