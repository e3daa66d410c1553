/* SPDX-License-Identifier: MIT */
/* Tables whose rows have owners (descant_owned_table). All tables of the model are one:
 * their rows, one table's behind the other's, as the model numbers them. A machine then
 * holds the rows that its trainers own, and no copy of all. */
#include "run/run.h"
#include "train/shards.h"
#include "train/tables_auto.h"
#include "train/trainer.h"

#include <math.h>

/* Of the bytes that are free on a machine, the tables may take so many. */
#define MOST_SHARE 0.8

/* CPU seconds of an example of the default layers, and how many products a core makes in
 * a second, for larger ones (bench/README.md). */
static const double example_s[] = {
    [MODEL_LINEAR] = 0.3e-6, [MODEL_FM] = 1e-6, [MODEL_DLRM] = 27e-6};
#define FLOPS 1e10

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

static size_t travels(const struct train_options *o, size_t width)
{
    int wire = o->rows_wire ? o->rows_wire - 1 : o->plan_wire;

    return wire == DESCANT_ROWS_F32    ? 4 * width
           : wire == DESCANT_ROWS_BF16 ? 2 * width
                                       : width + 4;
}

static struct tables_case case_of(const struct trainer *t)
{
    const struct train_options *o = t->options;
    size_t width = (size_t)model_table_width(t->model);
    size_t state = optimizer_row_floats(&t->optimizer, 1, (int)width);
    double trainers = o->trainers > 1 ? (double)o->trainers : 1;
    double workers = (double)o->workers * trainers;

    return (struct tables_case){
        .hosts = t->hosts,
        .fits = copies_fit(t),
        .rows = (double)model_table_rows(t->model),
        .row_floats = (double)(width + state),
        .sent_bytes = (double)travels(o, width),
        .fields = model_shape(t->model)->n_fields,
        .example_s = fmax(example_s[o->model], model_flops(t->model) / FLOPS),
        .workers = workers,
        .budget = o->sync_cpu > 0 ? o->sync_cpu : workers < machine_cores() ? 1 : 0,
        .rate = o->sync_rate,
    };
}

/* One line of the job. */
static void say_choice(struct trainer *t, const struct tables_choice *choice)
{
    char text[160];

    if (t->rank != 0 || t->hosts < 2)
        return;
    t->opening = t->options->trainers == 0 && !t->options->quiet;
    log_say(&t->log, DESCANT_INFO, "--tables auto is %s",
            tables_choice_text(choice, text, sizeof text));
    t->opening = false;
}

/* Of --tables auto, once for all trainers of a machine: what is free changes while they
 * start. Other machines may choose otherwise, which the start refuses (open.c). */
static bool has_owners(struct trainer *t)
{
    const struct tables_case c = case_of(t);
    const struct tables_choice choice = tables_choose(&c);
    uint32_t why = 0;

    if (atomic_compare_exchange_strong(&t->board->tables_auto, &why, choice.why))
        why = choice.why;
    if (why == choice.why)
        say_choice(t, &choice);
    return tables_owned((enum tables_why)why);
}

bool owned_suits(struct trainer *t)
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

/* The library names fields of descant_owned, and users know the options. Faults of other
 * fields are not among the values that options can have. */
static descant_status explain(struct trainer *t, descant_status status)
{
    char why[512];

    snprintf(why, sizeof why, "%s", descant_last_error());
    if (status == DESCANT_INVALID)
        return log_fail(&t->log, status, "%s: %s",
                        model_shape(t->model)->grows ? "--table-memory" : "--rows", why);
    if (status == DESCANT_UNSUPPORTED)
        return log_fail(&t->log, status, "--tables shard: %s; --tables replicate keeps a "
                        "copy on each host", why);
    return log_fail(&t->log, status, "%s", why);
}

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
    t->declares = true;
    descant_status status =
        descant_owned_table(t->job, "train.tables", &shape, &t->rows_table);
    t->declares = false;
    return status == DESCANT_OK ? shards_declare(t) : explain(t, status);
}

/* Under a plan that gathers, workers wait for each other with a batch in hand and others
 * on their way, and must leave one of the feed's blocks to the last of them. */
int owned_most_ahead(const struct train_options *o)
{
    int64_t others = o->workers - 1, most = o->rows_ahead;
    int64_t room = others > 0 ? (FEED_BLOCKS - 1) / others - 2 : AHEAD_MOST;

    room = room < -1 ? -1 : room;
    return (int)(o->plan_gathers && room < most ? room : most);
}

struct tables_at owned_tables_at(const struct trainer *t)
{
    return (struct tables_at){
        .memory = t->tables, .job = t->owned ? t->job : NULL,
        .table = t->rows_table,
        .most = owned_most_ahead(t->options)};
}
