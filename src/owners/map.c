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

size_t owned_of_each(const struct owned *table, uint64_t *rows)
{
    const struct owned_map *map = table->map;
    bool found[OWNED_SLICES] = {0}, seen[OWNED_SLICES] = {0};
    size_t n = 0, n_seen = 0;

    for (uint64_t row = 0; n_seen < OWNED_SLICES && owned_has(table, row); row++) {
        int slice = owned_slice(table, row), owner = map->owner[slice];
        if (seen[slice])
            continue;
        seen[slice] = true;
        n_seen++;
        if (map->shut[slice] || !found[owner])
            rows[n++] = row;
        found[owner] |= !map->shut[slice];
    }
    return n;
}

void owned_map_change(struct owned_map *map, int slice, int owner, uint32_t epoch)
{
    map->slices[map->owner[slice]]--;
    map->slices[owner]++;
    map->owner[slice] = owner;
    map->epoch[slice] = epoch;
    map->size = owner >= map->size ? owner + 1 : map->size;
    map->version++;
}

/* --- who is to have what --- */

/* Slices in an order in which neighbours are far apart. */
static int spread(int k)
{
    return k * 389 % OWNED_SLICES;
}

/* How many each rank is to have. Rounding leaves some: they stay with those that have the
 * most beyond their part. */
static void parts_of(const struct owned_map *map, const double *shares, int n, int *want)
{
    bool has_more[OWNED_SLICES] = {false};
    double sum = 0;
    int left = OWNED_SLICES;

    for (int k = 0; k < n; k++)
        sum += shares[k];
    for (int k = 0; k < n; k++) {
        want[k] = (int)(OWNED_SLICES * (shares[k] / sum));
        left -= want[k];
    }
    for (; left > 0; left--) {
        int most = -1;
        for (int k = 0; k < n; k++)
            if (shares[k] > 0 && !has_more[k] &&
                (most < 0 || map->slices[k] - want[k] > map->slices[most] - want[most]))
                most = k;
        want[most]++;
        has_more[most] = true;
    }
}

void owned_map_target(const struct owned_map *map, const double *shares, int n,
                      int target[OWNED_SLICES])
{
    int want[OWNED_SLICES], to = 0;

    parts_of(map, shares, n, want);
    for (int k = 0; k < OWNED_SLICES; k++) {
        int slice = spread(k), owner = map->owner[slice];
        bool stays = owner < n && want[owner] > 0;
        target[slice] = stays ? owner : -1;
        if (stays)
            want[owner]--;
    }
    for (int k = 0; k < OWNED_SLICES; k++) {
        int slice = spread(k);
        if (target[slice] >= 0)
            continue;
        while (want[to] <= 0)   /* rank by rank: so what is left stays as it was when */
            to++;               /* some of it has moved */
        target[slice] = to;
        want[to]--;
    }
}
