/* SPDX-License-Identifier: MIT */
/* The bytes of items, in the trainer that reads them. The list of items begins with the
 * first one that is here: those before it are done, or were let go. An item that a slow
 * trainer has keeps a list of all later ones, 24 bytes for each. */
#include "ranks/store.h"

#include <string.h>

enum { FIRST_ROOM = 64 };

static struct stored *at(const struct store *s, uint64_t item)
{
    return &s->items[item - s->first];
}

static void drop(struct store *s, uint64_t item)
{
    struct stored *it = at(s, item);

    s->bytes -= it->n;
    s->fresh -= it->given ? 0 : it->n;
    memory_give(it->bytes);
    *it = (struct stored){.given = true};
}

/* Moves the list's begin up to the first item that is here. */
static void close_up(struct store *s)
{
    uint64_t gone = 0, n = s->next - s->first;

    while (gone < n && !s->items[gone].bytes)
        gone++;
    if (gone)
        memmove(s->items, s->items + gone, (n - gone) * sizeof *s->items);
    s->first += gone;
}

void store_fini(struct store *s)
{
    for (uint64_t k = s->first; k < s->next; k++)
        memory_give(at(s, k)->bytes);
    memory_give(s->items);
    runs_fini(&s->gone);
    *s = (struct store){0};
}

bool store_has_room(const struct store *s, size_t n)
{
    return !s->bytes || (n <= s->most && s->bytes <= s->most - n);
}

bool store_put(struct store *s, const void *bytes, size_t n)
{
    size_t listed = s->next - s->first;
    size_t wanted = listed + 1 > FIRST_ROOM ? listed + 1 : FIRST_ROOM;

    if (!memory_grow(&s->items, &s->room, listed, wanted, sizeof *s->items))
        return false;
    unsigned char *copy = memory_take(n);
    if (!copy)
        return false;
    memcpy(copy, bytes, n);
    s->items[listed] = (struct stored){.bytes = copy, .n = n};
    s->next++;
    s->bytes += n;
    s->fresh += n;
    return true;
}

const struct stored *store_look(const struct store *s, uint64_t item)
{
    bool listed = item >= s->first && item < s->next;
    return listed && at(s, item)->bytes ? at(s, item) : NULL;
}

bool store_was_done(const struct store *s, uint64_t item)
{
    return item < s->next && !store_look(s, item) && !runs_has(&s->gone, item);
}

void store_given(struct store *s, uint64_t item)
{
    if (!store_look(s, item) || at(s, item)->given)
        return;
    at(s, item)->given = true;
    s->fresh -= at(s, item)->n;
}

bool store_done(struct store *s, const struct runs *done)
{
    bool any = false;

    for (size_t k = 0; k < done->n; k++) {
        uint64_t from = done->at[k].from > s->first ? done->at[k].from : s->first;
        uint64_t to = done->at[k].to < s->next ? done->at[k].to : s->next;
        for (; from < to; from++)
            if (at(s, from)->bytes) {
                drop(s, from);
                any = true;
            }
    }
    close_up(s);
    return any;
}

bool store_let_go(struct store *s, uint64_t *item)
{
    for (uint64_t k = s->first; k < s->next; k++)
        if (at(s, k)->bytes && at(s, k)->given) {
            if (!runs_add(&s->gone, k, k + 1))
                return false;
            *item = k;
            drop(s, k);
            close_up(s);
            return true;
        }
    return false;
}
