/* SPDX-License-Identifier: MIT */
/* Tables whose rows have owners (descant_owned_table). All tables of the model are one:
 * their rows, one table's behind the other's, as the model numbers them. A machine then
 * holds the rows that its trainers own, and no copy of all. */
#include "run/run.h"
#include "train/shards.h"
#include "train/trainer.h"

/* Of the bytes that are free on a machine, the tables may take so many. */
#define MOST_SHARE 0.8

static const enum descant_rows_optimizer optimizers[] = {
    [ROWS_SGD] = DESCANT_ROWS_SGD,
    [ROWS_ADAGRAD] = DESCANT_ROWS_ADAGRAD,
    [ROWS_ROWWISE_ADAGRAD] = DESCANT_ROWS_ROWWISE_ADAGRAD,
};

/* Replicated tables have a second copy of each row between hosts. On one machine there is
 * one copy either way. */
static bool copies_fit(const struct trainer *t)
{
    size_t state = optimizer_row_floats(&t->optimizer, model_table_rows(t->model),
                                        model_table_width(t->model));
    double floats = (double)model_table_floats(t->model) + (double)state;

    return 2 * floats * sizeof(float) < MOST_SHARE * (double)machine_memory_free();
}

/* Of --tables auto, once for all trainers of a machine: what is free changes while they
 * start. */
static bool has_owners(const struct trainer *t)
{
    enum { COPIES = 1, OWNERS };
    uint32_t none = 0, mine = t->hosts > 1 && !copies_fit(t) ? OWNERS : COPIES;

    if (!atomic_compare_exchange_strong(&t->board->tables_auto, &none, mine))
        mine = none;
    return mine == OWNERS;
}

bool owned_suits(const struct trainer *t)
{
    int tables = t->options->tables;

    if (model_table_width(t->model) == 0 || tables == TABLES_REPLICATE ||
        t->optimizer.rows == ROWS_FTRL)
        return false;
    if (model_shape(t->model)->grows)
        return true;
    return tables == TABLES_SHARD || has_owners(t);
}

_Static_assert((int)DESCANT_ROWS_F32 == 0 && (int)DESCANT_ROWS_BF16 == 1 &&
                   (int)DESCANT_ROWS_Q8 == 2,
               "as the options name them, and the plan");

descant_status owned_declare(struct trainer *t)
{
    const struct train_options *o = t->options;
    struct descant_owned shape = descant_owned_default();
    struct rows_born born = model_rows_born(t->model);

    shape.rows = model_table_rows(t->model);
    shape.grows = model_shape(t->model)->grows;
    if (shape.grows) {
        shape.memory = (uint64_t)o->table_memory;
        shape.admit = o->rows_admit;
        shape.unused_s = o->rows_unused;
    }
    shape.width = (size_t)model_table_width(t->model);
    shape.optimizer = optimizers[t->optimizer.rows];
    shape.wire = (enum descant_rows_wire)(o->rows_wire ? o->rows_wire - 1 : o->plan_wire);
    shape.age = o->rows_age;
    shape.epsilon = t->optimizer.epsilon;
    shape.seed = (uint64_t)o->seed;
    shape.spread = born.spread;
    shape.zeros = born.zeros;
    descant_status status =
        descant_owned_table(t->job, "train.tables", &shape, &t->rows_table);
    return status == DESCANT_OK ? shards_declare(t) : status;
}

/* Under a plan that gathers, workers wait for each other with batches on their way, and
 * must leave one of the feed's blocks to the last of them. */
static int most_ahead(const struct train_options *o)
{
    int64_t others = o->workers - 1, most = o->rows_ahead;
    int64_t room = others > 0 ? (FEED_BLOCKS - 1) / others - 1 : AHEAD_MOST;

    room = room < 0 ? 0 : room;
    return (int)(o->plan_gathers && room < most ? room : most);
}

struct tables_at owned_tables_at(const struct trainer *t)
{
    return (struct tables_at){
        .memory = t->tables, .job = t->owned ? t->job : NULL,
        .table = t->rows_table,
        .most = most_ahead(t->options)};
}
