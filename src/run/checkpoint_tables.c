/* SPDX-License-Identifier: MIT */
/* The tables of a checkpoint. A run whose hosts have copies of them writes them into the
 * checkpoint, as tensors and as the state of all rows; one whose rows have owners writes
 * shards. Either run goes on from either: both lay a row's values and its state out
 * alike, and a row that was never trained follows from the seed. */
#include "run/checkpoint.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE_ROWS = 4096 };

static size_t state_floats(const struct model *model, const struct optimizer *o)
{
    return optimizer_row_floats(o, 1, model_table_width(model));
}

static struct shard_shape shape_of(const struct checkpoint *c, const struct model *model,
                                   const struct optimizer *o)
{
    const char *optimizer = safetensors_text(c->file, "table-optimizer");
    const char *seed = safetensors_text(c->file, "seed");
    size_t width = (size_t)model_table_width(model);

    return (struct shard_shape){.rows = model_table_rows(model), .width = width,
                                .record = width + state_floats(model, o),
                                .optimizer = optimizer ? optimizer : "?",
                                .seed = seed ? strtoull(seed, NULL, 10) : 0};
}

/* Each shard that is wanted, one after the other. */
static descant_status each_shard(const struct checkpoint *c,
                                 const struct shard_shape *shape, shard_take *take,
                                 void *of)
{
    descant_status status = DESCANT_OK;
    struct shard shard;

    for (int k = 0; status == DESCANT_OK && k < c->shards.n; k++) {
        if (!checkpoint_wants(c, k))
            continue;
        status = shard_open(&shard, &c->shards, c->path, k, shape, c->log);
        if (status != DESCANT_OK)
            break;
        status = shard_each(&shard, take, of, c->log);
        shard_close(&shard);
    }
    return status;
}

static descant_status check_optimizer(const struct checkpoint *c)
{
    const char *was, *is;

    return !c->told || checkpoint_same(c, "table-optimizer", &was, &is)
               ? DESCANT_OK
               : log_fail(c->log, DESCANT_CORRUPT,
                          "%s is of another optimizer: --table-optimizer was %s, not %s",
                          c->path, was, is);
}

/* --- into memory --- */

struct into {
    float *tables, *state;
    size_t width, n_state;
};

static descant_status put(void *of, const uint64_t *rows, size_t n, const float *records)
{
    const struct into *in = of;

    for (size_t k = 0; k < n; k++) {
        const float *record = records + k * (in->width + in->n_state);
        memcpy(in->tables + rows[k] * in->width, record, in->width * sizeof *record);
        if (in->state && in->n_state)
            memcpy(in->state + rows[k] * in->n_state, record + in->width,
                   in->n_state * sizeof *record);
    }
    return DESCANT_OK;
}

descant_status checkpoint_tables(const struct checkpoint *c, const struct model *model,
                                 const struct optimizer *optimizer, float *tables,
                                 float *state)
{
    size_t n, rows = model_table_rows(model), n_state = state_floats(model, optimizer);
    const struct tensor *tensors = model_tables(model, &n);

    if (c->shards.n == 0) {
        descant_status status = checkpoint_take(c, tensors, n, tables);
        return status == DESCANT_OK && state && n_state
                   ? checkpoint_state(c, "table-optimizer", state, rows * n_state)
                   : status;
    }
    struct into in = {tables, state, (size_t)model_table_width(model), n_state};
    const struct shard_shape shape = shape_of(c, model, optimizer);
    descant_status status = state ? check_optimizer(c) : DESCANT_OK;
    if (status != DESCANT_OK)
        return status;
    model_init_tables(model, tables, 0, rows, shape.seed);
    if (state)
        memset(state, 0, rows * n_state * sizeof *state);
    return each_shard(c, &shape, put, &in);
}

/* --- as records --- */

struct records {
    shard_take *take;
    void *of;
    uint64_t seed;
    struct rows_born born;
    size_t width, n_state, n;
    uint64_t rows[PIECE_ROWS];
    float *records, *first;             /* (PIECE_ROWS, width + n_state), (width) */
};

static descant_status hand_on(struct records *r)
{
    size_t n = r->n;

    r->n = 0;
    return n ? r->take(r->of, r->rows, n, r->records) : DESCANT_OK;
}

static bool is_as_born(struct records *r, uint64_t row, const float *w,
                       const float *state)
{
    rng_row(r->first, r->width, r->born.zeros, r->born.spread, r->seed, row);
    if (memcmp(r->first, w, r->width * sizeof *w) != 0)
        return false;
    for (size_t i = 0; i < r->n_state; i++)
        if (state[i] > 0 || state[i] < 0)
            return false;
    return true;
}

static descant_status add_row(struct records *r, uint64_t row, const float *w,
                              const float *state)
{
    if (is_as_born(r, row, w, state))
        return DESCANT_OK;
    float *record = r->records + r->n * (r->width + r->n_state);
    memcpy(record, w, r->width * sizeof *w);
    if (r->n_state)
        memcpy(record + r->width, state, r->n_state * sizeof *state);
    r->rows[r->n++] = row;
    return r->n == PIECE_ROWS ? hand_on(r) : DESCANT_OK;
}

/* Of a checkpoint that has its tables itself. */
static descant_status each_row(const struct checkpoint *c, const struct model *model,
                               const float *state, struct records *r)
{
    size_t n;
    const struct tensor *tensors = model_tables(model, &n);

    for (size_t k = 0; k < n; k++) {
        const struct safetensor *have;
        descant_status status = checkpoint_find(c, &tensors[k], &have);
        const uint64_t first = tensors[k].at / r->width;
        for (size_t i = 0; status == DESCANT_OK && i < tensors[k].n / r->width; i++)
            status = add_row(r, first + i, (const float *)have->data + i * r->width,
                             r->n_state ? state + (first + i) * r->n_state : NULL);
        if (status != DESCANT_OK)
            return status;
    }
    return hand_on(r);
}

descant_status checkpoint_rows(const struct checkpoint *c, const struct model *model,
                               const struct optimizer *optimizer, uint64_t seed,
                               shard_take *take, void *of)
{
    const struct shard_shape shape = shape_of(c, model, optimizer);
    size_t n_state = shape.record - shape.width, n = 0;
    const float *state =
        safetensors_list(c->file, "descant.table_optimizer", SAFETENSORS_F32, &n);
    descant_status status = check_optimizer(c);

    if (status == DESCANT_OK && c->shards.n)
        return each_shard(c, &shape, take, of);
    if (status == DESCANT_OK && n != shape.rows * n_state)
        status = log_fail(c->log, DESCANT_CORRUPT, "%s is of another optimizer: "
                          "descant.table_optimizer does not fit", c->path);
    if (status != DESCANT_OK)
        return status;
    struct records *r = memory_take(sizeof *r);
    if (r) {
        *r = (struct records){.take = take, .of = of, .seed = seed,
                              .born = model_rows_born(model), .width = shape.width,
                              .n_state = n_state};
        r->records = memory_take_array(PIECE_ROWS * shape.record, sizeof *r->records);
        r->first = memory_take_array(shape.width, sizeof *r->first);
    }
    status = r && r->records && r->first
                 ? each_row(c, model, state, r)
                 : log_fail(c->log, DESCANT_MEMORY, "no memory to read %s", c->path);
    memory_give(r ? r->records : NULL);
    memory_give(r ? r->first : NULL);
    memory_give(r);
    return status;
}
