/* SPDX-License-Identifier: MIT */
/* The ids of data, and the rows of tables that they share: lines of descant info. */
#ifndef IDS_H
#define IDS_H

#include "data/data.h"
#include "run/shards.h"

/* The different ids of each field, as an estimate, in 16 KiB for each field that has
 * ids. */
struct ids_seen;

struct ids_seen *ids_create(void);      /* NULL: no memory */
void ids_destroy(struct ids_seen *ids);
/* Ids that a block had before count once all the same. */
void ids_add(struct ids_seen *ids, const struct examples *e);
/* How many there are, and, of hashed ones, which share of them has its row with another
 * one in tables of the usual number of rows. */
void ids_say(const struct ids_seen *ids, const struct data_shape *shape, FILE *out);

/* The same of a checkpoint's tables, as the rows that were trained tell it. shards: all
 * are there, or it has none. */
void ids_say_trained(const struct safetensors *file, const char *path,
                     const struct shards *shards, FILE *out);

#endif
