/* SPDX-License-Identifier: MIT */
/* The index is a table of places with open addressing: a place is the number of a file's
 * list of rows, and of the row in it; the row's own number stands there. A row that comes
 * twice is the one that comes later (shards_write.c). */
#include "run/saved_rows.h"

#include <stdlib.h>
#include <string.h>

#define SOURCE_AT 40            /* places of a source; there may be 2^24 of these */
_Static_assert(SHARDS_MOST < 1 << (64 - SOURCE_AT - 1), "places have room for shards");

/* A shard, or a table of a merged checkpoint. */
struct rows_source {
    struct shard shard;         /* file NULL: it is none */
    const uint64_t *rows;       /* (n) */
    size_t n;
    uint64_t first;             /* is added to each */
    const float *values, *state;
    size_t stride, state_stride;
};

struct saved_rows {
    struct rows_source *sources;        /* (n_sources) */
    size_t n_sources, n;
    uint64_t *places;                   /* (last + 1) 1 + a place; 0: free */
    size_t last;
    size_t width;
    struct rows_born born;
    uint64_t seed;
};

/* --- the index --- */

static uint64_t row_at(const struct saved_rows *s, uint64_t place)
{
    const struct rows_source *source = &s->sources[place >> SOURCE_AT];

    return source->first + source->rows[place & ((UINT64_C(1) << SOURCE_AT) - 1)];
}

/* Of the row, or where it is to be. */
static uint64_t *slot_of(const struct saved_rows *s, uint64_t row)
{
    size_t at = (size_t)rng_mixed(row) & s->last;

    while (s->places[at] && row_at(s, s->places[at] - 1) != row)
        at = (at + 1) & s->last;
    return &s->places[at];
}

static void index_source(struct saved_rows *s, size_t k)
{
    const struct rows_source *source = &s->sources[k];

    for (size_t i = 0; i < source->n; i++) {
        uint64_t *slot = slot_of(s, source->first + source->rows[i]);
        s->n += *slot == 0;
        *slot = 1 + ((uint64_t)k << SOURCE_AT | i);
    }
}

static descant_status index_all(struct saved_rows *s, const struct checkpoint *c)
{
    size_t all = 0, room = 64;

    for (size_t k = 0; k < s->n_sources; k++)
        all += s->sources[k].n;
    while (room / 2 < all - all / 4)    /* at most 2/3 full */
        room *= 2;
    s->last = room - 1;
    s->places = memory_take_array(room, sizeof *s->places);
    if (!s->places)
        return log_fail(c->log, DESCANT_MEMORY, "no memory for the index of %zu rows of "
                        "%s", all, c->path);
    for (size_t k = 0; k < s->n_sources; k++)
        index_source(s, k);
    return DESCANT_OK;
}

/* --- sources --- */

static descant_status look_at(void *of, const uint64_t *rows, size_t n,
                              const float *records)
{
    (void)of;
    (void)rows;
    (void)n;
    (void)records;
    return DESCANT_OK;
}

/* All values are looked at once: shard_each refuses those that are no numbers. */
static descant_status open_shards(struct saved_rows *s, const struct checkpoint *c,
                                  const struct shard_shape *shape)
{
    descant_status status = DESCANT_OK;

    for (size_t k = 0; k < s->n_sources && status == DESCANT_OK; k++) {
        struct rows_source *source = &s->sources[k];
        status = shard_open(&source->shard, &c->shards, c->path, (int)k, shape, c->log);
        if (status != DESCANT_OK)
            break;
        status = shard_each(&source->shard, look_at, NULL, c->log);
        source->rows = source->shard.rows;
        source->n = source->shard.n;
        source->values = source->shard.records;
        source->stride = source->state_stride = shape->record;
        source->state = shape->record > shape->width ? source->values + shape->width
                                                     : NULL;
    }
    return status;
}

static descant_status open_tables(struct saved_rows *s, const struct checkpoint *c,
                                  const struct model *model,
                                  const struct optimizer *optimizer)
{
    struct grown_rows *tables = memory_take_array(s->n_sources, sizeof *tables);
    descant_status status = tables ? checkpoint_grown(c, model, optimizer, tables)
                                   : log_fail(c->log, DESCANT_MEMORY,
                                              "no memory to read %s", c->path);

    for (size_t k = 0; k < s->n_sources && status == DESCANT_OK; k++) {
        const struct grown_rows *g = &tables[k];
        s->sources[k] = (struct rows_source){
            .rows = g->ids, .n = g->n, .first = g->first, .values = g->values,
            .state = g->state, .stride = g->width, .state_stride = g->n_state};
    }
    memory_give(tables);
    return status;
}

descant_status saved_rows_open(struct saved_rows **out, const struct checkpoint *c,
                               const struct model *model,
                               const struct optimizer *optimizer)
{
    const struct shard_shape shape = checkpoint_shape(c, model, optimizer);
    struct saved_rows *s = memory_take(sizeof *s);
    size_t n;

    model_tables(model, &n);
    if (s) {
        s->n_sources = c->shards.n ? (size_t)c->shards.n : n;
        s->sources = memory_take_array(s->n_sources, sizeof *s->sources);
        s->width = shape.width;
        s->born = model_rows_born(model);
        s->seed = shape.seed;
    }
    descant_status status = s && s->sources
                                ? DESCANT_OK
                                : log_fail(c->log, DESCANT_MEMORY,
                                           "no memory to read %s", c->path);
    if (status == DESCANT_OK)
        status = c->shards.n ? open_shards(s, c, &shape)
                             : open_tables(s, c, model, optimizer);
    if (status == DESCANT_OK)
        status = index_all(s, c);
    if (status == DESCANT_OK)
        *out = s;
    else
        saved_rows_close(s);
    return status;
}

void saved_rows_close(struct saved_rows *s)
{
    if (!s)
        return;
    for (size_t k = 0; k < s->n_sources && s->sources; k++)
        if (s->sources[k].shard.file)
            shard_close(&s->sources[k].shard);
    memory_give(s->sources);
    memory_give(s->places);
    memory_give(s);
}

/* --- reading --- */

size_t saved_rows_count(const struct saved_rows *s)
{
    return s->n;
}

static int by_number(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

void saved_rows_sorted(const struct saved_rows *s, uint64_t *rows)
{
    size_t n = 0;

    for (size_t at = 0; at <= s->last; at++)
        if (s->places[at])
            rows[n++] = row_at(s, s->places[at] - 1);
    qsort(rows, n, sizeof *rows, by_number);
}

const float *saved_rows_at(const struct saved_rows *s, uint64_t row, const float **state)
{
    const uint64_t *slot = slot_of(s, row);

    if (!*slot)
        return NULL;
    const struct rows_source *source = &s->sources[(*slot - 1) >> SOURCE_AT];
    size_t k = (size_t)((*slot - 1) & ((UINT64_C(1) << SOURCE_AT) - 1));
    if (state)
        *state = source->state ? source->state + k * source->state_stride : NULL;
    return source->values + k * source->stride;
}

const float *saved_block_fill(struct saved_block *b, struct work *work,
                              const struct examples *batch)
{
    const struct saved_rows *s = b->of;

    if (!work_ahead(work, batch))
        return NULL;
    const struct row_grads *found = work_rows(work);
    if (!memory_grow(&b->rows, &b->room, 0, found->n * s->width, sizeof *b->rows))
        return NULL;
    for (size_t k = 0; k < found->n; k++) {
        float *to = b->rows + k * s->width;
        const float *row = saved_rows_at(s, found->rows[k], NULL);
        if (row)
            memcpy(to, row, s->width * sizeof *to);
        else
            rng_row(to, s->width, s->born.zeros, s->born.spread, s->seed, found->rows[k]);
    }
    return b->rows;
}

void saved_block_fini(struct saved_block *b)
{
    memory_give(b->rows);
    *b = (struct saved_block){0};
}
