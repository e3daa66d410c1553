/* SPDX-License-Identifier: MIT */
/* Checkpoints of rows that have owners (run/shards.h). On one machine all trainers share
 * the rows: the one that reports writes them all, as one shard, beside FILE. Over several
 * hosts each rank writes those that it owns, at a cut (cut.h).
 *
 * A checkpoint's generation is above that of each file and of each shard that the writer
 * of FILE finds beside it. So no shard that some FILE names is ever replaced, and shards
 * that none of FILE, FILE.previous, FILE.old, FILE.best and FILE.best.old names can be
 * removed. */
#include "train/shards.h"

#include "run/checkpoint.h"
#include "run/run.h"
#include "train/cut.h"
#include "train/cuts.h"
#include "train/trainer.h"

#include <errno.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* --- files that name shards --- */

/* *generation: 0 where there is no file, or one that names no shards, as a torn one.
 * False: it is there, and cannot be read now. */
static bool generation_of(const char *path, const char *base, uint64_t *generation)
{
    struct safetensors *file;
    struct shards s;

    *generation = 0;
    if (access(path, F_OK) != 0)
        return errno == ENOENT;
    descant_status status = safetensors_open(&file, path, NULL);
    if (status != DESCANT_OK)
        return status == DESCANT_CORRUPT;
    if (shards_of(file, path, &s, NULL) == DESCANT_OK && s.n && strcmp(s.base, base) == 0)
        *generation = s.generation;
    safetensors_close(file);
    return true;
}

static const char *base_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* The generations that files name, 0 where one names none, and the highest. False: there
 * may be more, so none can be removed. */
static bool find_kept(const struct trainer *t, uint64_t kept[CUT_KEPT], uint64_t *highest)
{
    static const char *const names[CUT_KEPT] = {"", ".previous", ".old", ".best",
                                                ".best.old"};
    const char *file = t->options->checkpoint;
    char path[PATH_MAX];
    bool all = true;

    *highest = 0;
    for (int k = 0; k < CUT_KEPT; k++) {
        snprintf(path, sizeof path, "%s%s", file, names[k]);
        all &= generation_of(path, base_of(file), &kept[k]);
        *highest = kept[k] > *highest ? kept[k] : *highest;
    }
    return all;
}

/* --- writing --- */

static struct shard_shape shape_of(const struct trainer *t)
{
    static const char *const names[] = {"sgd", "adagrad", "rowwise-adagrad"};
    int width = model_table_width(t->model);

    return (struct shard_shape){
        .rows = model_rows_end(t->model),
        .grows = model_shape(t->model)->grows,
        .width = (size_t)width,
        .record = (size_t)width + optimizer_row_floats(&t->optimizer, 1, width),
        .seed = (uint64_t)t->options->seed,
        .optimizer = names[t->optimizer.rows],
    };
}

static descant_status next_rows(void *of, uint64_t *at, size_t room, uint64_t *rows,
                                float *records, size_t *n)
{
    struct trainer *t = of;
    return descant_owned_next(t->job, t->rows_table, at, room, rows, records, n);
}

/* This rank's shard. */
static descant_status write_own(struct trainer *t, const struct cuts_shard *shard,
                                uint64_t *rows)
{
    const struct shard_shape shape = shape_of(t);
    const struct shard_source source = {&shape, next_rows, t};
    struct shards s = {.generation = shard->generation, .id = shard->id, .n = shard->n};

    snprintf(s.base, sizeof s.base, "%s", base_of(t->options->checkpoint));
    return shard_write(&s, t->options->checkpoint, shard->k, &source, rows, &t->log);
}

/* Another one than any other checkpoint has. */
static uint64_t new_id(uint64_t generation)
{
    const uint64_t parts[] = {run_number(), generation, (uint64_t)time(NULL)};
    return fnv_add(FNV_BEGIN, parts, sizeof parts) >> 16;
}

descant_status shards_save(struct trainer *t, struct shards *s)
{
    uint64_t kept[CUT_KEPT], highest, there = shards_last(t->options->checkpoint);

    find_kept(t, kept, &highest);
    highest = there > highest ? there : highest;
    highest = t->generation > highest ? t->generation : highest;
    if (t->cuts && cuts_last(t) > highest)      /* of a first rank before this one */
        highest = cuts_last(t);
    if (highest + 1 >= SHARDS_GENERATIONS)
        return log_fail(&t->log, DESCANT_INVALID,
                        "%s has had %llu checkpoints: give the next run another "
                        "--checkpoint", t->options->checkpoint,
                        (unsigned long long)highest);
    *s = (struct shards){.generation = highest + 1};
    s->id = new_id(s->generation);
    t->generation = s->generation;
    snprintf(s->base, sizeof s->base, "%s", base_of(t->options->checkpoint));
    if (t->cuts)
        return cuts_make(t, s);
    const struct cuts_shard all = {.generation = s->generation, .id = s->id, .n = 1};
    descant_status status = write_own(t, &all, &t->shard_rows);
    s->rows = &t->shard_rows;
    s->n = 1;
    return status;
}

void shards_saved(struct trainer *t)
{
    uint64_t kept[CUT_KEPT], highest,
        there = t->cuts ? 0 : shards_last(t->options->checkpoint);

    if ((!t->owned && !there) || (t->cuts && !others_is_first(t)) ||
        !find_kept(t, kept, &highest))
        return;
    highest = there > highest ? there : highest;
    highest = t->generation > highest ? t->generation : highest;
    if (t->cuts)
        cuts_tidy(t, highest, kept);
    else
        shards_tidy(t->options->checkpoint, highest, kept, CUT_KEPT);
}

/* --- the start --- */

descant_status shards_declare(struct trainer *t)
{
    return t->options->checkpoint && t->deals ? cuts_declare(t, write_own) : DESCANT_OK;
}

/* Where trainers share the rows, the one that reports has none to order. */
descant_status shards_begin(struct trainer *t)
{
    if (!t->owned || !t->options->checkpoint)
        return DESCANT_OK;
    if (t->rank == 0)
        shards_saved(t);
    return cuts_start(t);
}

static descant_status set_rows(void *of, const uint64_t *rows, size_t n,
                               const float *records)
{
    struct trainer *t = of;
    return descant_owned_set(t->job, t->rows_table, rows, n, records);
}

/* Tables that grow may have less room than they had. */
static void say_evicted(const struct trainer *t)
{
    struct descant_stats s;

    if (model_shape(t->model)->grows && descant_stats(t->job, &s) == DESCANT_OK &&
        s.rows_evicted)
        log_say(&t->log, DESCANT_WARNING, "%s has more rows than --table-memory has room "
                "for: %llu had to go", t->options->checkpoint,
                (unsigned long long)s.rows_evicted);
}

/* *generation: of the checkpoint; 0: it is not in shards. */
static descant_status read_rows(struct trainer *t, uint64_t *generation)
{
    struct told told = train_told(t->options);
    struct checkpoint c = resume_checkpoint(t, &told);
    descant_status status = checkpoint_open(&c, false);

    *generation = c.shards.generation;
    if (status == DESCANT_OK)
        status = checkpoint_rows(&c, t->model, &t->optimizer,
                                 (uint64_t)t->options->seed, set_rows, t);
    if (status == DESCANT_OK)
        say_evicted(t);
    checkpoint_close(&c);
    return status;
}

/* No rows move before all ranks of the start have read theirs: who comes meanwhile gets
 * its part then. */
static bool holds(const struct trainer *t)
{
    return t->moves && t->owned && atomic_load(&t->board->resumed);
}

descant_status shards_before(struct trainer *t)
{
    return holds(t) ? descant_owned_hold(t->job, 1) : DESCANT_OK;
}

descant_status shards_after(struct trainer *t)
{
    return holds(t) ? descant_owned_hold(t->job, 0) : DESCANT_OK;
}

/* Where trainers share the rows, one reads them for all. */
descant_status shards_read(struct trainer *t, uint64_t *generation)
{
    *generation = 0;
    if (!t->owned || !atomic_load(&t->board->resumed))
        return DESCANT_OK;
    if (t->deals)
        return read_rows(t, generation);
    if (!board_begin(&t->board->rows))
        return DESCANT_OK;
    descant_status status = read_rows(t, generation);
    board_end(&t->board->rows, status == DESCANT_OK);
    return status;
}
