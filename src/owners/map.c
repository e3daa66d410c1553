/* SPDX-License-Identifier: MIT */
/* Which rank has which slices. Shares are dealt as seats of a parliament are (Webster's
 * rule): so neighbours have different owners, and a rank's slices are spread as evenly
 * as its share allows. */
#include "owners/owned.h"

#include <math.h>
#include <string.h>

static void give(struct owned_map *map, int slice, int rank)
{
    map->owner[slice] = rank;
    map->place[slice] = map->slices[rank]++;
}

void owned_map_make(struct owned_map *map, int size)
{
    *map = (struct owned_map){.size = size};
    for (int slice = 0; slice < OWNED_SLICES; slice++)
        give(map, slice, slice % size);
}

/* How many a rank has for its share, with the half of one that it would get. */
static double has(const struct owned_map *map, const double *shares, int rank)
{
    return shares[rank] > 0 ? (map->slices[rank] + 0.5) / shares[rank] : HUGE_VAL;
}

void owned_map_share(struct owned_map *map, const double *shares, int size)
{
    *map = (struct owned_map){.size = size};
    for (int slice = 0; slice < OWNED_SLICES; slice++) {
        int least = 0;
        for (int rank = 1; rank < size; rank++)
            if (has(map, shares, rank) < has(map, shares, least))
                least = rank;
        give(map, slice, least);
    }
}

int owned_shares(const char *text, double *shares, int most)
{
    int n = 0, last = 0;

    for (const char *end; n < most; text = end + 1) {
        if (!real_read(text, &shares[n], &end) ||
            !(shares[n] >= 0 && shares[n] <= 1e6))
            return -1;
        last = shares[n++] > 0 ? n : last;
        if (*end != ',')
            return *end == 0 && last > 0 ? last : -1;
    }
    return -1;
}

size_t owned_owners(const struct owned_map *map)
{
    size_t n = 0;

    for (int rank = 0; rank < map->size; rank++)
        n += map->slices[rank] > 0;
    return n;
}

size_t owned_of_each(const struct owned *table, uint64_t *rows)
{
    bool found[OWNED_SLICES] = {0};
    size_t owners = owned_owners(table->map), n = 0;

    for (uint64_t row = 0; n < owners && owned_has(table, row); row++) {
        int owner = owned_owner(table, row);
        if (!found[owner])
            rows[n++] = row;
        found[owner] = true;
    }
    return n;
}
