/* SPDX-License-Identifier: MIT */
/* Shards of a checkpoint: the rows of its tables, in files beside FILE, which names them.
 * Each is a safetensors file with the tensors
 *
 *   rows       (n)          U64: their numbers, over all tables, one behind another
 *   records    (n, record)  F32: a row's `width` values, then its optimizer's state
 *
 * and texts that say whose it is. Only rows that were ever trained are in a shard; others
 * have the first values that follow from the seed. Where the tables grow, a row's number
 * is its id, with its table's number above its 32 bits, and the shard has the rows that
 * were there; one that comes twice is the one that comes later.
 *
 * FILE.rows-00003-2-of-4.safetensors is shard 2 of 4 of the third generation. Each
 * checkpoint of a FILE is of another generation, so that FILE.previous keeps its shards
 * while new ones are written; all files of one checkpoint have its id in a text. */
#ifndef RUN_SHARDS_H
#define RUN_SHARDS_H

#include "data/safetensors.h"

#include <limits.h>

enum { SHARDS_MOST = 1024 };    /* as many as ranks that can own rows */
#define SHARDS_GENERATIONS (UINT64_C(1) << 24)      /* the number is below */

/* What FILE says of its shards: the text "shards", "generation n id base", and the tensor
 * "descant.shards". */
struct shards {
    uint64_t generation, id;
    int n;                      /* 0: FILE has its tables itself */
    char base[NAME_MAX + 1];    /* FILE's name as it was written, without its folder */
    const uint64_t *rows;       /* (n) of each shard; in FILE, or the caller's */
    bool moved;                 /* rows were with other ranks than at the start: the text
                                   "moved" */
};

/* The tables, as one. */
struct shard_shape {
    uint64_t rows;              /* above each row's number */
    bool grows;
    size_t width, record;       /* floats of a row; with its state */
    uint64_t seed;              /* of first values */
    const char *optimizer;
};

/* CORRUPT: the text, or the tensor, is none that a run has written. */
descant_status shards_of(const struct safetensors *file, const char *path,
                         struct shards *out, const struct log *log);
void shards_text(const struct shards *s, char *text, size_t room);
/* The name of shard k, from 0, beside FILE, or beside FILE.previous and the like. */
void shards_path(const struct shards *s, const char *beside, int k, char *path,
                 size_t room);
/* --- writing: shards_write.c --- */

/* As descant_owned_next. But where the tables grow, the rows come in the same order at
 * each pass, and none goes; more may come. */
typedef descant_status shard_next(void *of, uint64_t *at, size_t room, uint64_t *rows,
                                  float *records, size_t *n);

struct shard_source {
    const struct shard_shape *shape;
    shard_next *next;
    void *of;
};

/* Writes shard k beside FILE, with the rows that there are now. A row that is born
 * meanwhile is not in it; of others the values are those of the moment in which they are
 * written. *n: the rows. A failure leaves no file of that name but an older one. */
descant_status shard_write(const struct shards *s, const char *beside, int k,
                           const struct shard_source *source, uint64_t *n,
                           const struct log *log);

/* Removes from FILE's folder generations up to `last` but those `kept`, and what a killed
 * writer has left of any up to `last`: later ones may be under way. */
void shards_tidy(const char *beside, uint64_t last, const uint64_t *kept, size_t n_kept);
/* The highest generation of which FILE's folder has a shard; 0: none. */
uint64_t shards_last(const char *beside);

/* --- reading --- */

struct shard {
    struct safetensors *file;
    char path[PATH_MAX];
    size_t n, record;
    const uint64_t *rows;       /* (n) each below the shape's */
    const float *records;       /* (n, record) */
};

/* Opens shard k, and checks all but the values. shape NULL: any. SYSTEM: there is no such
 * file; CORRUPT: it is torn, or of another checkpoint. */
descant_status shard_open(struct shard *shard, const struct shards *s, const char *beside,
                          int k, const struct shard_shape *shape, const struct log *log);
void shard_close(struct shard *shard);

typedef descant_status shard_take(void *of, const uint64_t *rows, size_t n,
                                  const float *records);
/* Gives all its rows in pieces. CORRUPT: a value is NaN or Inf; rows before it were
 * given. */
descant_status shard_each(const struct shard *shard, shard_take *take, void *of,
                          const struct log *log);

/* A shard's own texts. False: the file is no shard. */
struct shard_said {
    struct shards of;           /* without rows */
    int k;
    unsigned long long table_rows;
    bool grows;
    size_t width;
    const char *optimizer;
};
bool shard_said(const struct safetensors *file, struct shard_said *said);

#endif
