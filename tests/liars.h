/* SPDX-License-Identifier: MIT */
/* Ranks that come and go (ranks_world.h), of which one lies: each message that it sends
 * is shown to a function, which may change it, lose it, send it again or put another
 * before it. */
#ifndef LIARS_H
#define LIARS_H

#include "lies.h"
#include "ranks_world.h"

typedef void liars_alter(void *context, struct letter *letter, struct letter *more);

/* After world_open, before anybody comes. */
void liars_open(struct ranks_world *w, int liar, liars_alter *alter, void *context);
void liars_close(struct ranks_world *w);        /* in place of world_close */

/* A world whose liar, beginnings and lies the bytes tell. False: another rank is blamed,
 * somebody never sleeps, or memory grows: `why`, of 512 bytes, says so. */
bool liars_run(const uint8_t *bytes, size_t n, bool verbose, char *why);

#endif
