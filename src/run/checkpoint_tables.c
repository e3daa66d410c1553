/* SPDX-License-Identifier: MIT */
/* The tables of a checkpoint. A run whose hosts have copies of them writes them into the
 * checkpoint, as tensors and as the state of all rows; one whose rows have owners writes
 * shards. Either run goes on from either: both lay a row's values and its state out
 * alike, and a row that was never trained follows from the seed.
 *
 * Tables that grow are in shards, too, or, after descant merge, in the checkpoint: for
 * each table its ids beside its rows, and one state for all, table after table. */
#include "run/checkpoint.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE_ROWS = 4096 };

static size_t state_floats(const struct model *model, const struct optimizer *o)
{
    return optimizer_row_floats(o, 1, model_table_width(model));
}

struct shard_shape checkpoint_shape(const struct checkpoint *c, const struct model *model,
                                    const struct optimizer *o)
{
    const char *optimizer = safetensors_text(c->file, "table-optimizer");
    const char *seed = safetensors_text(c->file, "seed");
    size_t width = (size_t)model_table_width(model);

    return (struct shard_shape){.rows = model_rows_end(model),
                                .grows = model_shape(model)->grows, .width = width,
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

/* --- tables that grow --- */

void checkpoint_ids_name(const struct tensor *table, char *name, size_t room)
{
    snprintf(name, room, "%.*s.ids", (int)strcspn(table->name, ".") +
             (strncmp(table->name, "tables.", 7) == 0
                  ? 1 + (int)strcspn(table->name + 7, ".") : 0), table->name);
}

/* Bytes that a training run could not have written. */
static descant_status check_grown(const struct checkpoint *c, const struct grown_rows *g,
                                  const char *name)
{
    bool finite = true;

    for (size_t k = 0; k < g->n; k++)
        if (g->ids[k] > UINT32_MAX)
            return log_fail(c->log, DESCANT_CORRUPT, "%s: %s has the id %" PRIu64
                            ", which no data has", c->path, name, g->ids[k]);
    for (size_t k = 0; k < g->n * g->width; k++)
        finite &= isfinite(g->values[k]) != 0;
    for (size_t k = 0; k < g->n * g->n_state; k++)
        finite &= isfinite(g->state[k]) != 0;
    return finite ? DESCANT_OK
                  : log_fail(c->log, DESCANT_CORRUPT, "%s: a row of %s has NaN or Inf",
                             c->path, name);
}

/* The ids and the values of one table; false: they are not there, or do not fit. */
static bool find_grown(const struct checkpoint *c, const struct tensor *table,
                       struct grown_rows *g)
{
    char name[sizeof table->name];
    const struct safetensor *have = safetensors_find(c->file, table->name);

    checkpoint_ids_name(table, name, sizeof name);
    g->ids = safetensors_list(c->file, name, SAFETENSORS_U64, &g->n);
    if (!g->ids || !have || have->type != SAFETENSORS_F32 || have->n_dims != 2 ||
        have->dims[0] != g->n || have->dims[1] != g->width)
        return false;
    g->values = have->data;
    return true;
}

descant_status checkpoint_grown(const struct checkpoint *c, const struct model *model,
                                const struct optimizer *optimizer, struct grown_rows *out)
{
    size_t n, all = 0, n_state = state_floats(model, optimizer), n_had = 0;
    const struct tensor *tables = model_tables(model, &n);
    const float *state =
        safetensors_list(c->file, "descant.table_optimizer", SAFETENSORS_F32, &n_had);

    for (size_t k = 0; k < n; k++) {
        out[k] = (struct grown_rows){.first = (uint64_t)k << 32, .n_state = n_state,
                                     .width = (size_t)model_table_width(model)};
        if (!find_grown(c, &tables[k], &out[k]))
            return log_fail(c->log, DESCANT_CORRUPT, "%s is of another model: its tensor "
                            "%s and the ids of it do not fit", c->path, tables[k].name);
        all += out[k].n;
    }
    if (n_had != all * n_state)
        return log_fail(c->log, DESCANT_CORRUPT, "%s is of another optimizer: "
                        "descant.table_optimizer does not fit", c->path);
    descant_status status = DESCANT_OK;
    for (size_t k = 0, at = 0; k < n && status == DESCANT_OK; at += out[k++].n) {
        out[k].state = n_state ? state + at * n_state : NULL;
        status = check_grown(c, &out[k], tables[k].name);
    }
    return status;
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
    const struct shard_shape shape = checkpoint_shape(c, model, optimizer);
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
        for (size_t i = 0; status == DESCANT_OK && i < tensors[k].n / r->width; i++) {
            const float *w = (const float *)have->data + i * r->width;
            const float *of = r->n_state ? state + (first + i) * r->n_state : NULL;
            if (!is_as_born(r, first + i, w, of))
                status = add_row(r, first + i, w, of);
        }
        if (status != DESCANT_OK)
            return status;
    }
    return hand_on(r);
}

/* The same of tables that grow. */
static descant_status each_id(const struct checkpoint *c, const struct model *model,
                              const struct optimizer *optimizer, struct records *r)
{
    size_t n;

    model_tables(model, &n);
    struct grown_rows *tables = memory_take_array(n, sizeof *tables);
    descant_status status = tables ? checkpoint_grown(c, model, optimizer, tables)
                                   : log_fail(c->log, DESCANT_MEMORY,
                                              "no memory to read %s", c->path);
    for (const struct grown_rows *g = tables; g < tables + n; g++)
        for (size_t i = 0; status == DESCANT_OK && i < g->n; i++)
            status = add_row(r, g->first + g->ids[i], g->values + i * g->width,
                             g->state ? g->state + i * g->n_state : NULL);
    memory_give(tables);
    return status == DESCANT_OK ? hand_on(r) : status;
}

descant_status checkpoint_rows(const struct checkpoint *c, const struct model *model,
                               const struct optimizer *optimizer, uint64_t seed,
                               shard_take *take, void *of)
{
    const struct shard_shape shape = checkpoint_shape(c, model, optimizer);
    size_t n_state = shape.record - shape.width, n = 0;
    const float *state =
        safetensors_list(c->file, "descant.table_optimizer", SAFETENSORS_F32, &n);
    descant_status status = check_optimizer(c);

    if (status == DESCANT_OK && c->shards.n)
        return each_shard(c, &shape, take, of);
    if (status == DESCANT_OK && !shape.grows && n != shape.rows * n_state)
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
    if (!r || !r->records || !r->first)
        status = log_fail(c->log, DESCANT_MEMORY, "no memory to read %s", c->path);
    else
        status = shape.grows ? each_id(c, model, optimizer, r)
                             : each_row(c, model, state, r);
    memory_give(r ? r->records : NULL);
    memory_give(r ? r->first : NULL);
    memory_give(r);
    return status;
}
