/* SPDX-License-Identifier: MIT */
/* A table whose rows have owners (descant.h, descant_owned): the rows that this rank has,
 * and the map that says which rank has a row.
 *
 * Rows lie in slices: row r of table t is in slice (r + turn) mod OWNED_SLICES, where it
 * is row r / OWNED_SLICES. So rows that are used alike, as those of small numbers, are
 * spread over all slices, and a slice can move as a whole. A row's values and the state
 * of its optimizer lie side by side.
 *
 * In a table that grows, rows are named by any numbers: a row's slice follows from a hash
 * of its number, and the slice's rows lie in a hash table, a stripe of a slab (slab.h,
 * grown.c). Where slices stay, it is one slab for all of a table's slices that are here,
 * which trainers of one machine share. Where they move, each slice has a slab of its own,
 * which has one stripe. The following is of the other tables.
 *
 * A row is born by its first push. Until then it has its first values, which follow from
 * the seed and its number, so nothing is filled at the start. Memory begins as zeros, and
 * the first float of a row that is born is never +0: it is kept as -0. So a look at the
 * row itself says whether it is born, and touches one page.
 *
 * Any thread reads and pushes, at once with others: the races are those of Hogwild, and
 * all floats are moved by kernels.h. At a birth the first float is written (release)
 * after the others; who looks reads it (acquire) before them. A row to which two threads
 * give first values at once loses what was pushed meanwhile. A step by which the first
 * float becomes +0 makes the row unborn until the same thread writes -0, next: others
 * read its first values meanwhile, lose what they push, and a save leaves the row out.
 * `dirty` has a bit for each row, where others follow the slice (moves.h): it is set
 * (release) after each step, and taken back (acquire) before the row is read for them.
 *
 * Where slices move, the map and the parts are changed by one thread, which holds the
 * map's lock to write; callers hold it to read (service.h). Where they do not, nobody
 * changes them after owned_place. */
#ifndef OWNED_H
#define OWNED_H

#include "base/base.h"
#include "kernels/kernels.h"
#include "owners/slab.h"

enum { OWNED_SLICES = 1024, OWNED_MOST = 256 /* tables */, OWNED_WIDEST = 4096 };
enum { OWNED_COPIED = 8191 };           /* floats of a record that others may copy */

struct owned_map {
    int size;                           /* above all ranks that own rows */
    int owner[OWNED_SLICES];
    int slices[OWNED_SLICES];           /* (size) of each rank */
    int place[OWNED_SLICES];            /* at the start: of the slice among those of its
                                           owner; for tables that grow, where slices stay
                                           */
    bool shut[OWNED_SLICES];            /* the slice is on its way: its owner cannot be
                                           asked yet, or use it */
    uint32_t epoch[OWNED_SLICES];       /* grows with each change of its owner */
    uint64_t since_ns[OWNED_SLICES];    /* it has this owner since then; 0: from the
                                           start */
    uint32_t version;                   /* of all of this */
    bool moves;                         /* owners may change. Set before tables are placed
                                         */
};

/* A slice of a table, where its rows are here. */
struct owned_part {
    _Atomic uint64_t *dirty;            /* (per_slice) NULL: nobody follows */
    const struct slab *slab;            /* in a table that grows: a slab of its own, where
                                           tables are apart */
    bool own;                           /* the memory is; else it is owned_place's */
};

struct owned {
    char *name;
    struct descant_owned shape;
    uint64_t turn;
    size_t record;                      /* floats of a row with its state */
    size_t per_slice;                   /* rows; in a table that grows, those that a slice
                                           has room for, since owned_place */
    size_t part_bytes;                  /* of a slice that has memory to itself, since
                                           owned_place */
    const struct kernels *kernels;
    const struct owned_map *map;
    int rank;                           /* whose slices lie here */
    void **memory;                      /* (OWNED_SLICES) of each slice, (per_slice,
                                           record) floats where the table does not grow;
                                           NULL: it is not here */
    struct owned_part *parts;           /* (OWNED_SLICES) */
    int followed;                       /* parts that have `dirty` */
    /* in a table that grows: */
    bool apart;                         /* each slice has a slab of its own, of one
                                           stripe; else those that are here have */
    struct slab slab;                   /* this one, with stripes by map->place */
    struct slab_figures past;           /* apart: what slices have evicted and refused
                                           that are here no more */
};

/* --- map.c --- */

/* Slices by turns to so many ranks, 1 to OWNED_SLICES. */
void owned_map_make(struct owned_map *map, int size);
/* By their shares, of which one is above 0: each slice to the rank that has the fewest
 * for its share. */
void owned_map_share(struct owned_map *map, const double *shares, int size);
/* "2,1,1" into shares. Their number, up to the last one above 0; -1: it is no such text,
 * or has more than `most`. */
int owned_shares(const char *text, double *shares, int most);
/* The first row of each owner, but of those that have none of the table, and of each
 * slice that is on its way: into (OWNED_SLICES) rows. Returns how many. */
size_t owned_of_each(const struct owned *table, uint64_t *rows);
/* A slice has another owner from now on. */
void owned_map_change(struct owned_map *map, int slice, int owner, uint32_t epoch);
/* Who is to have each slice, by the shares of n ranks, of which one is above 0: as few
 * slices as possible change their owner, and all ranks that know the same find the same.
 */
void owned_map_target(const struct owned_map *map, const double *shares, int n,
                      int target[OWNED_SLICES]);

static inline size_t owned_slices(const struct owned_map *map, int rank)
{
    return rank >= 0 && rank < map->size ? (size_t)map->slices[rank] : 0;
}

/* --- owned.c --- */

/* False, logged: it is no table. */
bool owned_check(const char *name, const struct descant_owned *shape,
                 const struct log *log);
/* Takes no memory but the name; number: of the table in its job. False: no memory. */
bool owned_init(struct owned *table, const char *name, const struct descant_owned *shape,
                int number);
void owned_fini(struct owned *table);   /* its rows are the caller's */

/* The zeroed bytes that this rank needs for its slices. */
size_t owned_bytes(const struct owned *table, const struct owned_map *map, int rank);
/* False: owned_bytes of it are shared, and another process that prepares them does not
 * end; only in a table that grows. */
bool owned_place(struct owned *table, const struct owned_map *map, int rank,
                 void *memory);

/* Whether there can be such a row. */
static inline bool owned_has(const struct owned *table, uint64_t row)
{
    return table->shape.grows || row < table->shape.rows;
}

static inline int owned_slice(const struct owned *table, uint64_t row)
{
    uint64_t number = table->shape.grows ? rng_mixed(row) : row;

    return (int)((number + table->turn) % OWNED_SLICES);
}

static inline int owned_owner(const struct owned *table, uint64_t row)
{
    return table->map->owner[owned_slice(table, row)];
}

/* Whether this rank's callers may use it. */
static inline bool owned_here(const struct owned *table, uint64_t row)
{
    int slice = owned_slice(table, row);

    return table->map->owner[slice] == table->rank && !table->map->shut[slice];
}

enum { OWNED_AHEAD = 8 };
/* Asks memory for row k of n, where there is one. Rows lie far apart, so several are
 * asked for before the first is used. */
void owned_ask_for(const struct owned *table, const uint64_t *rows,
                   const uint32_t *places, size_t k, size_t n);

/* Rows that are here. The values of rows[k] go to out + k width, or, with places, to out
 * + places[k] width, of rows[places[k]]. */
void owned_read(const struct owned *table, const uint64_t *rows, const uint32_t *places,
                size_t n, float *out);

/* Steps by gradients, laid out in the same way. Returns those that had NaN or Inf, and
 * were left out; *bad_row becomes the row of one. */
size_t owned_push(struct owned *table, const uint64_t *rows, const uint32_t *places,
                  size_t n, const float *gradients, float rate, uint64_t *bad_row);

/* The record of a row that is here, or what its first push begins with. False: there is
 * no such row, and a push may be refused. */
bool owned_record(const struct owned *table, uint64_t row, float *record);

/* --- steps.c: one row --- */

size_t owned_state(const struct descant_owned *shape);  /* floats of the optimizer's */
void owned_first(const struct owned *table, uint64_t row, float *out);  /* its values */
/* By a finite gradient; of the table it reads the shape. */
void owned_step(const struct owned *table, float *record, const float *g, float rate);

/* --- codec.c: a row as it travels --- */

size_t owned_row_bytes(const struct owned *table);
/* chance NULL: rounded to the nearest; else by chance, of which that is the state. */
void owned_encode(const struct owned *table, const float *row, void *out,
                  uint64_t *chance);
void owned_decode(const struct owned *table, const void *in, float *row);

/* --- owned.c: saved --- */

/* The rows that were pushed, or set, and are here, from *at on (0 at first): up to room
 * of them, with their records (NULL: without). Returns how many; 0: there are no more.
 */
size_t owned_next(const struct owned *table, uint64_t *at, size_t room, uint64_t *rows,
                  float *records);
/* Takes the records of those of n rows that are here; in a table that grows, others may
 * be evicted for them. */
void owned_set(struct owned *table, const uint64_t *rows, size_t n, const float *records);

/* --- owned.c: slices that come and go --- */

/* Memory for a slice that comes, all of its rows unborn. False: there is none. */
bool owned_part_take(struct owned *table, int slice);
void owned_part_give(struct owned *table, int slice);
/* From now on its dirty rows are noted. False: no memory. */
bool owned_part_follow(struct owned *table, int slice);

/* Rows of a slice, (n) of each. */
struct owned_some {
    size_t n;
    uint64_t *rows;
    float *records;                     /* NULL: without */
    uint32_t *slots;                    /* of a table that grows; NULL: without */
};

/* From *at on, 0 at first, up to some->n rows that are born, or, `dirty`, that were
 * changed since they were last taken. Returns how many; fewer: there are no more. */
size_t owned_part_next(const struct owned *table, int slice, bool dirty, size_t *at,
                       const struct owned_some *some);
/* A record, also of a slice of another rank, whose memory is here. slot: its place in
 * the slice that this one is the copy of, below per_slice; of tables that grow. */
void owned_part_set(struct owned *table, uint64_t row, uint32_t slot,
                    const float *record);

/* Of a table that grows: rows of slices that this rank owns, and what was evicted and
 * refused here so far. Others: 0. */
struct slab_figures owned_figures(const struct owned *table);

#endif
