/* SPDX-License-Identifier: MIT */
/* Cuts of a run over several hosts whose rows have owners (cut.h): a thread in each
 * trainer, which looks at the first one's orders and follows them. */
#ifndef CUTS_H
#define CUTS_H

#include "run/shards.h"

struct trainer;

/* Writes this rank's shard of a checkpoint, the k-th from 0 of n, with *rows rows. */
struct cuts_shard {
    uint64_t generation, id;
    int k, n;
};
typedef descant_status cuts_write(struct trainer *t, const struct cuts_shard *shard,
                                  uint64_t *rows);

/* The table in which ranks show orders and marks; before start. */
descant_status cuts_declare(struct trainer *t, cuts_write *write);
descant_status cuts_start(struct trainer *t);
/* The first rank: has all shards written of a generation that is above all before.
 * s->n, s->rows and s->moved become t's. */
descant_status cuts_make(struct trainer *t, struct shards *s);
/* The generation of the last cut that was ordered, as far as this rank knows. */
uint64_t cuts_last(struct trainer *t);
/* The first rank: generations up to `last` that are not kept are removed everywhere. */
void cuts_tidy(struct trainer *t, uint64_t last, const uint64_t *kept);
/* The thread's failure, logged: no cut can be made any more. */
descant_status cuts_status(struct trainer *t);
/* After this rank's finish, with which all ranks' pushes are in the rows: cuts wait for
 * the owners alone. */
void cuts_finished(struct trainer *t);
/* This rank has parted: others need not wait for it any more. Until then it takes part,
 * for its rows do not go while a cut is under way. */
void cuts_leave(struct trainer *t);
/* When the first rank makes no more cuts: waits until it has said so, but where this
 * rank goes without finish. */
void cuts_end(struct trainer *t, bool finished);
void cuts_fini(struct trainer *t);      /* before the job's close */

#endif
