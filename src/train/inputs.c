/* SPDX-License-Identifier: MIT */
/* From what a person wrote to what the readers and the models take: lists of files, the model's
 * shape out of the data's. */
#include "train/trainer.h"

#include <stdlib.h>
#include <string.h>

descant_status path_list_init(struct path_list *list, const char *names, const struct log *log)
{
    memset(list, 0, sizeof *list);
    list->text = strdup(names);
    if (!list->text)
        return log_fail(log, DESCANT_MEMORY, "no memory for the list of files");
    for (char *at = list->text, *next; at; at = next) {
        next = strchr(at, ',');
        if (next)
            *next++ = 0;
        if (!*at)
            continue;
        if (list->n == TRAIN_PATHS)
            return log_fail(log, DESCANT_INVALID, "more than %d files", TRAIN_PATHS);
        list->paths[list->n++] = at;
    }
    return list->n ? DESCANT_OK : log_fail(log, DESCANT_INVALID, "no file in '%s'", names);
}

void path_list_fini(struct path_list *list)
{
    free(list->text);
    list->text = NULL;
}

struct data_options train_data(const struct train_options *o, const struct path_list *list,
                               const struct log *log)
{
    return (struct data_options){
        .paths = list->paths, .n_paths = list->n, .format = (enum data_format)o->format,
        .hash = !o->plain_ids, .n_fields = (int)o->fields, .chunk_bytes = (size_t)o->chunk,
        .epochs = (int)o->epochs, .seed = (uint64_t)o->seed, .max_bad = o->max_bad, .log = log,
    };
}

descant_status train_shape(const struct train_options *o, const struct data_shape *shape,
                           struct model_shape *out, const struct log *log)
{
    *out = (struct model_shape){
        .kind = (enum model_kind)o->model, .n_dense = shape->n_dense,
        .n_fields = shape->n_fields, .n_classes = shape->n_classes, .rows = (size_t)o->rows,
        .plain_ids = shape->plain_ids, .width = (int)o->width,
    };
    out->n_bottom = config_sizes(o->bottom, out->bottom, NN_MAX_LAYERS - 2);
    out->n_top = config_sizes(o->top, out->top, NN_MAX_LAYERS - 2);
    if (out->n_bottom < 0)
        return log_fail(log, DESCANT_INVALID, "--bottom %s: sizes, as 512,256,64", o->bottom);
    if (out->n_top < 0)
        return log_fail(log, DESCANT_INVALID, "--top %s: sizes, as 512,256", o->top);
    return DESCANT_OK;
}
