/* SPDX-License-Identifier: MIT */
/* The bytes of items, in the trainer that reads them (descant_deal_put). Pure: no clock,
 * no lock.
 *
 * An item's bytes stay until the item is done, since its trainer may die before that. So
 * the store holds items that nobody has yet, which are *fresh*, and items that some
 * trainer has. It holds at most `most` bytes, or one item that is larger. */
#ifndef RANKS_STORE_H
#define RANKS_STORE_H

#include "base/runs.h"

struct stored {
    unsigned char *bytes;       /* NULL: not here any more */
    size_t n;
    bool given;                 /* some trainer has had all of it */
};

struct store {
    size_t most;
    size_t bytes, fresh;        /* that are here; of items that nobody has had */
    uint64_t first, next;       /* the items first … next - 1 may be here */
    struct stored *items;       /* (room) item k is at k - first */
    size_t room;
    struct runs gone;           /* items that were let go */
};

void store_fini(struct store *s);

/* Whether there is room for an item of n bytes. */
bool store_has_room(const struct store *s, size_t n);
/* The next item, whose bytes are copied. False: no memory, and nothing has changed. */
bool store_put(struct store *s, const void *bytes, size_t n);

/* NULL: the item is not here: it was not put yet, is done, or was let go. */
const struct stored *store_look(const struct store *s, uint64_t item);
/* The item was put, and is done. */
bool store_was_done(const struct store *s, uint64_t item);
void store_given(struct store *s, uint64_t item);       /* to a trainer, whole */

/* Gives up the bytes of items that are done. True: there were some. */
bool store_done(struct store *s, const struct runs *done);
/* Gives up the bytes of the lowest item that some trainer has. False: there is none, or
 * no memory. */
bool store_let_go(struct store *s, uint64_t *item);

#endif
