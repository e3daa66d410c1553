/* SPDX-License-Identifier: MIT */
/* The rows of a table that grows (slab.h): what owned.h says of reading, pushing and
 * records, for those. */
#ifndef GROWN_H
#define GROWN_H

#include "owners/owned.h"

/* False, logged: its shape is none of a table that grows. */
bool grown_check(const char *name, const struct descant_owned *shape,
                 const struct log *log);
/* Zeroed bytes of a rank's slices: shape.memory, or more or less where its share is. Each
 * slice of the table has room for as many rows. */
size_t grown_bytes(const struct owned *table, const struct owned_map *map, int rank);
/* By table->map and rank; as owned_place. */
bool grown_place(struct owned *table, void *memory);
void grown_ask_for(const struct owned *table, const uint64_t *rows,
                   const uint32_t *places, size_t k, size_t n);
void grown_read(const struct owned *table, const uint64_t *rows, const uint32_t *places,
                size_t n, float *out);
bool grown_record(const struct owned *table, uint64_t row, float *record);
size_t grown_push(struct owned *table, const uint64_t *rows, const uint32_t *places,
                  size_t n, const float *gradients, float rate, uint64_t *bad_row);
void grown_set(struct owned *table, uint64_t row, const float *record);

#endif
