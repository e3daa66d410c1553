/* SPDX-License-Identifier: MIT */
/* The rows of a table that grows (slab.h): what owned.h says of reading, pushing and
 * records, for those. */
#ifndef GROWN_H
#define GROWN_H

#include "owners/owned.h"

/* False, logged: its shape is none of a table that grows. */
bool grown_check(const char *name, const struct descant_owned *shape,
                 const struct log *log);
/* Where slices stay: zeroed bytes of a rank's slices, which are shape.memory, or more or
 * less where its share is. Each slice of the table has room for as many rows. */
size_t grown_bytes(const struct owned *table, const struct owned_map *map, int rank);
/* By table->map and rank; as owned_place. */
bool grown_place(struct owned *table, void *memory);

/* Where they move, by the map of the start: of each slice. */
size_t grown_part_bytes(const struct owned *table, const struct owned_map *map);
/* By table->part_bytes: rows that a slice has room for, and a slice in zeroed memory. */
size_t grown_part_room(const struct owned *table);
void grown_place_part(const struct owned *table, int slice, void *memory);

void grown_ask_for(const struct owned *table, const uint64_t *rows,
                   const uint32_t *places, size_t k, size_t n);
void grown_read(const struct owned *table, const uint64_t *rows, const uint32_t *places,
                size_t n, float *out);
bool grown_record(const struct owned *table, uint64_t row, float *record);
size_t grown_push(struct owned *table, const uint64_t *rows, const uint32_t *places,
                  size_t n, const float *gradients, float rate, uint64_t *bad_row);
void grown_set(struct owned *table, uint64_t row, const float *record);
size_t grown_part_next(const struct owned *table, int slice, bool dirty, size_t *at,
                       const struct owned_some *some);
void grown_part_set(struct owned *table, uint64_t row, uint32_t slot,
                    const float *record);

#endif
