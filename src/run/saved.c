/* SPDX-License-Identifier: MIT */
/* The options and the inputs' shape are texts in the checkpoint, so that a file is all
 * that `descant eval` and `descant predict` need. */
#include "run/saved.h"

#include "run/checkpoint.h"
#include "run/saved_rows.h"

#include <stdlib.h>
#include <string.h>

/* A setting that the file lacks keeps its default: older files have fewer settings. */
static descant_status read_options(struct saved *saved, const char *path,
                                   const struct log *log)
{
    char message[256];

    saved->options = train_options_default();
    for (size_t k = 0; k < n_train_settings; k++) {
        const struct option *s = &train_settings[k];
        const char *text = safetensors_text(saved->file, s->name);
        if (text && (*text || s->type == OPTION_TEXT) &&
            !option_parse(s, text, &saved->options, message, sizeof message))
            return log_fail(log, DESCANT_CORRUPT, "%s: %s", path, message);
    }
    return DESCANT_OK;
}

/* The text is "dense fields classes plain format", as train/save.c writes it; older files
 * have no format. */
bool saved_inputs(const struct safetensors *file, struct data_shape *shape, int *format)
{
    const char *text = safetensors_text(file, "inputs");
    int plain;

    *shape = (struct data_shape){0};
    if (!text || sscanf(text, "%d %d %d %d %d", &shape->n_dense, &shape->n_fields,
                        &shape->n_classes, &plain, format) < 4)
        return false;
    shape->plain_ids = plain != 0;
    *format = *format < 0 || *format > DATA_CACHE ? DATA_AUTO : *format;
    return true;
}

/* Into memory, with the state of the tables' optimizer where it is wanted. */
static descant_status read_tables(struct saved *saved, const struct checkpoint *c,
                                  bool with_state)
{
    const struct optimizer *o = &saved->options.optimizer;
    size_t state = optimizer_row_floats(o, model_table_rows(saved->model),
                                        model_table_width(saved->model));

    saved->tables = memory_take_array(model_table_floats(saved->model), sizeof(float));
    if (with_state && state)
        saved->state = memory_take_array(state, sizeof(float));
    if (!saved->tables || (with_state && state && !saved->state))
        return log_fail(c->log, DESCANT_MEMORY, "no memory for the tables of %s",
                        c->path);
    return checkpoint_tables(c, saved->model, o, saved->tables, saved->state);
}

/* Copies the tensors, for the file is mapped and the model wants them in its own order;
 * the rows of tables that grow stay in the files. */
static descant_status read_model(struct saved *saved, const char *path, bool with_state,
                                 const struct log *log)
{
    size_t n;
    const struct tensor *tensors = model_tensors(saved->model, &n);
    struct told told = train_told(&saved->options);
    struct checkpoint c = {
        .file = saved->file, .path = path, .told = &told, .log = log};

    saved->w = memory_take_array(model_floats(saved->model), sizeof(float));
    if (!saved->w)
        return log_fail(log, DESCANT_MEMORY, "no memory for the model of %s", path);
    descant_status status = shards_of(saved->file, path, &c.shards, log);
    if (status == DESCANT_OK)
        status = checkpoint_take(&c, tensors, n, saved->w);
    if (status != DESCANT_OK)
        return status;
    return model_shape(saved->model)->grows
               ? saved_rows_open(&saved->rows, &c, saved->model,
                                 &saved->options.optimizer)
               : read_tables(saved, &c, with_state);
}

/* Exactly the files that were named are scored. */
static descant_status open_named(struct safetensors **out, const char *path,
                                 const struct log *log)
{
    char previous[4096 + 16], why[LOG_LINE];
    descant_status status = safetensors_open(out, path, NULL);

    if (status == DESCANT_OK)
        return DESCANT_OK;
    snprintf(why, sizeof why, "%s", descant_last_error());
    if (!checkpoint_before(path, previous, sizeof previous))
        return log_fail(log, status, "%s", why);
    return log_fail(log, status, "%s; --checkpoint %s would score with the one before it",
                    why, previous);
}

/* Settings that make a model and its steps what they are. */
static const char *const of_model[] = {
    "model", "rows", "table-memory", "rows-admit", "rows-unused", "width", "bottom",
    "top", "batch", "optimizer", "table-optimizer", "lr", "table-lr", "momentum", "beta1",
    "beta2", "epsilon", "beta", "l1", "l2"};

/* Room for the texts that options point to: at most those of all that are read. */
static char *room_of(const struct safetensors *file)
{
    size_t n = 1;

    for (size_t k = 0; k < sizeof of_model / sizeof *of_model; k++) {
        const char *text = safetensors_text(file, of_model[k]);
        n += text ? strlen(text) + 1 : 0;
    }
    return malloc(n);
}

bool saved_settings(const char *path, struct train_options *options, bool *known,
                    char **texts, char *message, size_t room)
{
    /* of another rank than the one that owns rows: no shard need be there */
    struct checkpoint c = {.path = path, .owner = -1, .owners = 1};
    char what[256] = "no memory";
    bool good = true;

    *texts = NULL;
    if (checkpoint_open(&c, false) != DESCANT_OK)
        return true;            /* resume.c logs the failure */
    char *to = *texts = room_of(c.file);
    good = to != NULL;
    for (size_t k = 0; good && k < sizeof of_model / sizeof *of_model; k++) {
        const struct option *s = option_find(train_settings, n_train_settings,
                                             of_model[k], strlen(of_model[k]));
        const char *text = safetensors_text(c.file, s->name);
        if (!text || (!*text && s->type != OPTION_TEXT) || known[s - train_settings])
            continue;
        size_t bytes = strlen(text) + 1;
        memcpy(to, text, bytes);
        good = option_parse(s, to, options, what, sizeof what);
        known[s - train_settings] = true;
        to += bytes;
    }
    if (!good)
        snprintf(message, room, "%s, from which --resume goes on: %s", path, what);
    safetensors_close(c.file);
    return good;
}

/* A failure leaves *saved empty, so that saved_close may be called all the same. */
static descant_status open_saved(struct saved *saved, const char *path, bool with_state,
                                 const struct log *log)
{
    struct data_shape data;
    struct model_shape shape;
    int format = DATA_AUTO;

    memset(saved, 0, sizeof *saved);
    descant_status status = open_named(&saved->file, path, log);
    if (status == DESCANT_OK)
        status = read_options(saved, path, log);
    if (status == DESCANT_OK && !saved_inputs(saved->file, &data, &format))
        status = log_fail(log, DESCANT_CORRUPT, "%s was not written by descant train",
                          path);
    /* a cache is known by its first bytes, so that other files need not be refused */
    if (saved->options.format == DATA_AUTO && format < DATA_CACHE)
        saved->options.format = format;
    if (status == DESCANT_OK)
        status = config_shape(&saved->options, &data, &shape, log);
    if (status == DESCANT_OK)
        status = model_create(&saved->model, &shape, log);
    if (status == DESCANT_OK)
        status = read_model(saved, path, with_state, log);
    if (status != DESCANT_OK)
        saved_close(saved);
    return status;
}

descant_status saved_open(struct saved *saved, const char *path, const struct log *log)
{
    return open_saved(saved, path, false, log);
}

descant_status saved_open_all(struct saved *saved, const char *path,
                              const struct log *log)
{
    return open_saved(saved, path, true, log);
}

uint64_t saved_run(const struct safetensors *file)
{
    const char *text = safetensors_text(file, "run");
    return text ? strtoull(text, NULL, 10) : 0;
}

void saved_close(struct saved *saved)
{
    model_destroy(saved->model);
    memory_give(saved->w);
    memory_give(saved->tables);
    memory_give(saved->state);
    saved_rows_close(saved->rows);
    if (saved->file)
        safetensors_close(saved->file);
    memset(saved, 0, sizeof *saved);
}
