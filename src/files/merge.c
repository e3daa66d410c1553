/* SPDX-License-Identifier: MIT */
/* descant merge: one file of a checkpoint in shards. All that FILE has itself is copied
 * as it is; in place of its shards come the tables and the state of their optimizer, as
 * tensors, for which memory is taken: rows are in no order in shards.
 *
 * Of tables that grow, memory is taken for an index and for the rows' numbers alone: rows
 * are written out of the shards, table by table, in the order of their ids, which stand
 * beside them as a tensor. */
#include "files/files.h"
#include "run/checkpoint.h"
#include "run/saved.h"
#include "run/saved_rows.h"

#include <string.h>
#include <sys/stat.h>

/* Beside those of FILE and the tables, which may have ids: their optimizer's state. */
enum { MORE_TENSORS = 1 };

static bool is_replaced(const char *text)
{
    return strcmp(text, "shards") == 0 || strcmp(text, "descant.shards") == 0;
}

/* FILE's texts, but for those of shards; tables are replicated from here on, if they can
 * be. */
static size_t take_texts(const struct saved *saved, struct safetensors_text *texts,
                         size_t all)
{
    size_t n = 0;

    safetensors_texts(saved->file, texts, all);
    for (size_t k = 0; k < all; k++) {
        if (is_replaced(texts[k].key))
            continue;
        texts[n] = texts[k];
        if (strcmp(texts[k].key, "tables") == 0 && !saved->rows)
            texts[n].value = "replicate";
        n++;
    }
    return n;
}

/* --- tables that grow --- */

/* Rows of one table, or of all, as a tensor is written of them, float by float. */
struct row_stream {
    const struct saved_rows *from;
    const uint64_t *rows;       /* the next row, */
    size_t at;                  /* and floats of it that were given */
    size_t width;
    bool state;                 /* not the values */
};

static bool give_ids(void *of, void *to, size_t bytes)
{
    struct row_stream *s = of;
    uint64_t *ids = to;

    for (size_t k = 0; k < bytes / sizeof *ids; k++)
        ids[k] = *s->rows++ & UINT32_MAX;
    return true;
}

static bool give_floats(void *of, void *to, size_t bytes)
{
    struct row_stream *s = of;
    size_t left = bytes / sizeof(float);

    for (float *out = to; left > 0;) {
        const float *state, *from = saved_rows_at(s->from, *s->rows, &state);
        size_t n = s->width - s->at < left ? s->width - s->at : left;
        memcpy(out, (s->state ? state : from) + s->at, n * sizeof *out);
        out += n;
        left -= n;
        s->at += n;
        s->rows += s->at == s->width;
        s->at = s->at == s->width ? 0 : s->at;
    }
    return true;
}

struct grown {
    uint64_t *rows;             /* all, ascending */
    struct row_stream *streams; /* (2 n_tables + 1): of ids, of values; of state */
};

static void add_stream(struct contents *c, const char *name, size_t n,
                       struct row_stream *stream)
{
    struct safetensor *t =
        contents_add(c, name, SAFETENSORS_F32, NULL, n * stream->width);

    t->n_dims = 2;
    t->dims[0] = n;
    t->dims[1] = stream->width;
    t->source = give_floats;
    t->of = stream;
}

static void add_grown_table(struct contents *c, const struct tensor *table,
                            const struct row_stream *stream, size_t n,
                            struct row_stream streams[2])
{
    char name[sizeof table->name];

    streams[0] = streams[1] = *stream;
    checkpoint_ids_name(table, name, sizeof name);
    struct safetensor *ids = contents_add(c, name, SAFETENSORS_U64, NULL, n);
    ids->source = give_ids;
    ids->of = &streams[0];
    add_stream(c, table->name, n, &streams[1]);
}

static descant_status add_grown(struct contents *c, const struct saved *saved,
                                struct grown *g, const struct log *log)
{
    size_t n, width = (size_t)model_table_width(saved->model), at = 0;
    size_t state = optimizer_row_floats(&saved->options.optimizer, 1, (int)width);
    const struct tensor *tables = model_tables(saved->model, &n);
    size_t all = saved_rows_count(saved->rows);

    g->rows = memory_take_array(all + 1, sizeof *g->rows);
    g->streams = memory_take_array(2 * n + 1, sizeof *g->streams);
    if (!g->rows || !g->streams)
        return log_fail(log, DESCANT_MEMORY, "no memory to merge a checkpoint");
    saved_rows_sorted(saved->rows, g->rows);
    struct row_stream stream = {.from = saved->rows, .rows = g->rows, .width = width};
    for (size_t k = 0; k < n; k++) {
        size_t from = at;
        while (at < all && g->rows[at] >> 32 == k)
            at++;
        stream.rows = g->rows + from;
        add_grown_table(c, &tables[k], &stream, at - from, &g->streams[2 * k]);
    }
    g->streams[2 * n] = (struct row_stream){saved->rows, g->rows, 0, state, true};
    if (state) {
        add_stream(c, "descant.table_optimizer", all, &g->streams[2 * n]);
        c->tensors[c->n_tensors - 1].n_dims = 1;
        c->tensors[c->n_tensors - 1].dims[0] = all * state;
    }
    return DESCANT_OK;
}

/* --- all --- */

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

    struct grown grown = {0};

    model_tables(saved->model, &n_tables);
    struct contents *c = contents_create(had + 2 * n_tables + MORE_TENSORS, log);
    descant_status status = texts && c ? DESCANT_OK
                                       : log_fail(log, DESCANT_MEMORY,
                                                  "no memory to merge a checkpoint");
    if (status == DESCANT_OK) {
        for (size_t k = 0; k < had; k++)
            if (!is_replaced(safetensors_at(file, k)->name))
                c->tensors[c->n_tensors++] = *safetensors_at(file, k);
        if (saved->rows)
            status = add_grown(c, saved, &grown, log);
        else
            add_tables(c, saved);
    }
    if (status == DESCANT_OK) {
        all = take_texts(saved, texts, all);
        status = safetensors_write(to, NULL, c->tensors, c->n_tensors, texts, all, log);
    }
    memory_give(grown.rows);
    memory_give(grown.streams);
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

static void say_written(FILE *out, const struct saved *saved, const char *to)
{
    size_t n, rows = model_table_rows(saved->model);
    struct stat of = {0};

    model_tables(saved->model, &n);
    if (saved->rows)
        rows = saved_rows_count(saved->rows);
    stat(to, &of);
    fprintf(out, "%s: %zu rows in %zu table%s%s, %lld bytes\n", to, rows, n,
            n == 1 ? "" : "s", saved->rows ? ", a row for each id" : "",
            (long long)of.st_size);
}

bool file_merge(const char *path, const char *to, FILE *out, const struct log *log)
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
    if (status == DESCANT_OK)
        say_written(out, &saved, to);
    saved_close(&saved);
    return status == DESCANT_OK;
}
