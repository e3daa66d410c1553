/* SPDX-License-Identifier: MIT */
/* Ids and rows. A table of fixed rows takes an id to a row by its hash, and two ids in
 * one row share its weights. How many do follows from two numbers, for hashes are even:
 * of n ids in r rows, an id has a row to itself with the probability (1 - 1/r)^(n - 1).
 *
 * Data has its ids, whose number is estimated. A checkpoint has rows, and not the ids
 * that they were trained for; but n ids use r (1 - (1 - 1/r)^n) rows in the mean, so the
 * rows that were trained tell n. Where rows are in the checkpoint itself, those that have
 * no longer their first values were trained, and a sample of them is looked at. */
#include "files/ids.h"

#include "data/distinct.h"
#include "files/say.h"
#include "run/config.h"
#include "run/saved.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SAMPLE = 1 << 16, MOST_TABLES = 4096, MOST_WIDTH = 4096 };

/* --- data --- */

struct ids_seen {
    size_t n, room;
    struct distinct **fields;           /* (n) NULL: no id yet */
    bool lacks;                         /* there was no memory for one */
};

struct ids_seen *ids_create(void)
{
    return memory_take(sizeof(struct ids_seen));
}

void ids_destroy(struct ids_seen *ids)
{
    for (size_t f = 0; ids && f < ids->n; f++)
        memory_give(ids->fields[f]);
    memory_give(ids ? ids->fields : NULL);
    memory_give(ids);
}

/* Makes room for so many fields. */
static bool reserve(struct ids_seen *ids, size_t n)
{
    if (!memory_grow(&ids->fields, &ids->room, ids->n, n, sizeof *ids->fields))
        return false;
    for (; ids->n < n; ids->n++)
        ids->fields[ids->n] = NULL;
    return true;
}

static void add_bag(struct ids_seen *ids, size_t field, const uint32_t *list, size_t n)
{
    if (n && !ids->fields[field])
        ids->fields[field] = memory_take(sizeof(struct distinct));
    ids->lacks |= n && !ids->fields[field];
    for (size_t k = 0; k < n && !ids->lacks; k++)
        distinct_add(ids->fields[field], list[k]);
}

void ids_add(struct ids_seen *ids, const struct examples *e)
{
    size_t fields = (size_t)e->n_fields;

    if (!e->ids || !fields)
        return;
    ids->lacks |= !reserve(ids, fields);
    for (size_t i = 0; i < e->n && !ids->lacks; i++)
        for (size_t f = 0; f < fields && !ids->lacks; f++) {
            size_t bag = i * fields + f;
            if (e->offsets)
                add_bag(ids, f, e->ids + e->offsets[bag],
                        e->offsets[bag + 1] - e->offsets[bag]);
            else
                add_bag(ids, f, e->ids + bag, 1);
        }
}

void ids_say(const struct ids_seen *ids, const struct data_shape *shape, FILE *out)
{
    double all = 0, most = 0, shared = 0, rows = (double)train_options_default().rows;
    size_t fields = 0;

    for (size_t f = 0; f < ids->n; f++) {
        double n = ids->fields[f] ? distinct_count(ids->fields[f]) : 0;
        all += n;
        most = fmax(most, n);
        shared += n * collisions_share(n, rows);
        fields += n > 0;
    }
    if (ids->lacks || fields == 0)
        return;
    say(out, "different ids", "about %.0f%s, up to %.0f in a field (standard error "
        "%.1f %% of a field's)", all, shape->plain_ids ? "" : ", hashed", most,
        100 * DISTINCT_ERROR);
    if (shape->plain_ids)
        return;
    say(out, "share a row", "%.2f %% of them in one table of --rows %.0f",
        100 * collisions_share(all, rows), rows);
    if (shape->n_dense > 0 && !shape->bags)
        say(out, "", "%.2f %% with a table for each field (dlrm); none with --rows grow",
            100 * shared / all);
}

/* --- checkpoints --- */

/* Tables of one number of rows, and how many of these were trained. */
struct trained {
    size_t n;                           /* tables */
    uint64_t rows;                      /* of each */
    double used[MOST_TABLES];
};

static bool count_shards(const char *path, const struct shards *shards, struct trained *t)
{
    struct shard shard;

    for (int k = 0; k < shards->n; k++) {
        if (shard_open(&shard, shards, path, k, NULL, NULL) != DESCANT_OK)
            return false;
        for (size_t i = 0; i < shard.n; i++)
            if (shard.rows[i] / t->rows < t->n)
                t->used[shard.rows[i] / t->rows]++;
        shard_close(&shard);
    }
    return true;
}

/* A table that the checkpoint has itself. */
struct sampled {
    const float *values, *state;        /* (rows, width), (rows, n_state) */
    size_t width, n_state;
    struct rows_born born;
    uint64_t first, seed;               /* number of its first row */
};

static bool is_trained(const struct sampled *s, uint64_t row)
{
    float first[MOST_WIDTH];

    for (size_t i = 0; i < s->n_state; i++)
        if (s->state[row * s->n_state + i] > 0 || s->state[row * s->n_state + i] < 0)
            return true;
    rng_row(first, s->width, s->born.zeros, s->born.spread, s->seed, s->first + row);
    return memcmp(first, s->values + row * s->width, s->width * sizeof *first) != 0;
}

static double used_of(const struct sampled *s, uint64_t rows)
{
    uint64_t step = rows / SAMPLE + 1, looked = 0, used = 0;

    for (uint64_t row = 0; row < rows; row += step, looked++)
        used += is_trained(s, row);
    return (double)used * (double)rows / (double)looked;
}

static bool count_tables(const struct safetensors *file, enum model_kind kind,
                         struct trained *t)
{
    const char *seed = safetensors_text(file, "seed");
    size_t n_state = 0, all = t->n * t->rows;
    const float *state =
        safetensors_list(file, "descant.table_optimizer", SAFETENSORS_F32, &n_state);
    struct sampled s = {.seed = seed ? strtoull(seed, NULL, 10) : 0};

    s.n_state = n_state / all;
    if (n_state % all != 0)
        return false;
    for (size_t k = 0; k < t->n; k++) {
        char name[64] = "table.weight";
        if (kind == MODEL_DLRM)
            snprintf(name, sizeof name, "tables.%zu.weight", k);
        const struct safetensor *table = safetensors_find(file, name);
        if (!table || table->type != SAFETENSORS_F32 || table->n_dims != 2 ||
            table->dims[0] != t->rows || table->dims[1] < 1 ||
            table->dims[1] > MOST_WIDTH)
            return false;
        s.values = table->data;
        s.width = table->dims[1];
        s.born = rows_born_of(kind, s.width);
        s.first = k * t->rows;
        s.state = s.n_state ? state + s.first * s.n_state : NULL;
        t->used[k] = used_of(&s, t->rows);
    }
    return true;
}

/* The sum over tables: an id is of one of them. */
static void say_used(const struct trained *t, bool plain, FILE *out)
{
    double used = 0, ids = 0, shared = 0, rows = (double)t->rows;
    bool full = false;

    for (size_t k = 0; k < t->n; k++) {
        double n = collisions_ids(t->used[k], rows);
        used += t->used[k];
        ids += n;
        shared += n * collisions_share(n, rows);
        full |= t->used[k] > rows - 1;
    }
    say(out, "rows trained", "%.2f %% of %.0f", 100 * used / (rows * (double)t->n),
        rows * (double)t->n);
    if (!plain && ids > 0)
        say(out, "share a row", "%s %.2f %% of %s %.0f trained ids",
            full ? "at least" : "about", 100 * shared / ids,
            full ? "at least" : "about", ids);
}

/* False: the file does not tell, or its tables have no number of rows. */
static bool read_kind(const struct safetensors *file, struct trained *t,
                      enum model_kind *kind, bool *plain)
{
    const char *model = safetensors_text(file, "model"),
               *rows = safetensors_text(file, "rows");
    const struct option *s = option_find(train_settings, n_train_settings, "model", 5);
    struct data_shape shape;
    int format = DATA_AUTO, found = model ? option_choice(s->choices, model) : -1;

    if (found < 0 || found == MODEL_MLP || !rows || !saved_inputs(file, &shape, &format))
        return false;
    *kind = (enum model_kind)found;
    *plain = shape.plain_ids;
    t->rows = strtoull(rows, NULL, 10);         /* "grow": 0 */
    t->n = *kind == MODEL_DLRM ? (size_t)shape.n_fields : 1;
    return t->rows > 0 && t->rows <= UINT64_C(1) << 32 && shape.n_fields > 0 &&
           shape.n_fields <= MOST_TABLES;
}

void ids_say_trained(const struct safetensors *file, const char *path,
                     const struct shards *shards, FILE *out)
{
    struct trained *t = memory_take(sizeof *t);
    enum model_kind kind;
    bool plain;

    if (t && read_kind(file, t, &kind, &plain) &&
        (shards->n ? count_shards(path, shards, t) : count_tables(file, kind, t)))
        say_used(t, plain, out);
    memory_give(t);
}
