/* SPDX-License-Identifier: MIT */
/* descant merge: one file of a checkpoint in shards. All that FILE has itself is copied
 * as it is; in place of its shards come the tables and the state of their optimizer, as
 * tensors, for which memory is taken: rows are in no order in shards. */
#include "files/files.h"
#include "run/checkpoint.h"
#include "run/saved.h"

#include <string.h>
#include <sys/stat.h>

/* Beside those of FILE: the tables' optimizer's state. */
enum { MORE_TENSORS = 1 };

static bool is_replaced(const char *text)
{
    return strcmp(text, "shards") == 0 || strcmp(text, "descant.shards") == 0;
}

/* FILE's texts, but for those of shards; tables are replicated from here on. */
static size_t take_texts(const struct safetensors *file, struct safetensors_text *texts,
                         size_t all)
{
    size_t n = 0;

    safetensors_texts(file, texts, all);
    for (size_t k = 0; k < all; k++) {
        if (is_replaced(texts[k].key))
            continue;
        texts[n] = texts[k];
        if (strcmp(texts[k].key, "tables") == 0)
            texts[n].value = "replicate";
        n++;
    }
    return n;
}

static void add_tables(struct contents *c, const struct saved *saved)
{
    size_t n;
    const struct tensor *tensors = model_tables(saved->model, &n);

    contents_tensors(c, tensors, n, saved->tables);
    if (saved->state)
        contents_add(c, "descant.table_optimizer", SAFETENSORS_F32, saved->state,
                     optimizer_row_floats(&saved->options.optimizer,
                                          model_table_rows(saved->model),
                                          model_table_width(saved->model)));
}

static descant_status write_merged(const struct saved *saved, const char *to,
                                   const struct log *log)
{
    const struct safetensors *file = saved->file;
    size_t had = safetensors_count(file), n_tables,
           all = safetensors_texts(file, NULL, 0);
    struct safetensors_text *texts = memory_take_array(all + 1, sizeof *texts);

    model_tables(saved->model, &n_tables);
    struct contents *c = contents_create(had + n_tables + MORE_TENSORS, log);
    descant_status status = texts && c ? DESCANT_OK
                                       : log_fail(log, DESCANT_MEMORY,
                                                  "no memory to merge a checkpoint");
    if (status == DESCANT_OK) {
        for (size_t k = 0; k < had; k++)
            if (!is_replaced(safetensors_at(file, k)->name))
                c->tensors[c->n_tensors++] = *safetensors_at(file, k);
        add_tables(c, saved);
        all = take_texts(file, texts, all);
        status = safetensors_write(to, NULL, c->tensors, c->n_tensors, texts, all, log);
    }
    contents_destroy(c);
    memory_give(texts);
    return status;
}

/* Whether both are there, and one file. */
static bool is_one(const char *a, const char *b)
{
    struct stat x, y;

    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev &&
           x.st_ino == y.st_ino;
}

/* Before memory is taken. Of a FILE that is none of a run's saved_open_all says so. */
static descant_status look_at(const char *path, const char *to, const struct log *log)
{
    struct safetensors *file;
    struct shards shards = {0};
    char shard[PATH_MAX];
    descant_status status = DESCANT_OK;

    if (safetensors_open(&file, path, NULL) != DESCANT_OK)
        return DESCANT_OK;
    if (safetensors_text(file, "inputs"))
        status = shards_of(file, path, &shards, log);
    if (status == DESCANT_OK && safetensors_text(file, "inputs") && !shards.n)
        status = log_fail(log, DESCANT_INVALID,
                          "%s has its tables itself: there is nothing to merge", path);
    for (int k = 0; k < shards.n && status == DESCANT_OK; k++) {
        shards_path(&shards, path, k, shard, sizeof shard);
        if (is_one(shard, to))
            status = log_fail(log, DESCANT_INVALID,
                              "%s is a shard of %s, and would be written over", to, path);
    }
    safetensors_close(file);
    return status;
}

bool file_merge(const char *path, const char *to, const struct log *log)
{
    struct saved saved;
    struct lock lock = {0};

    if (look_at(path, to, log) != DESCANT_OK ||
        saved_open_all(&saved, path, log) != DESCANT_OK)
        return false;
    descant_status status = lock_take(&lock, to, NULL, true, log);
    if (status == DESCANT_OK)
        status = write_merged(&saved, to, log);
    lock_give(&lock);
    saved_close(&saved);
    return status == DESCANT_OK;
}
