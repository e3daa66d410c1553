/* SPDX-License-Identifier: MIT */
/* Turns the options into those of readers and models, and checks all that can be checked
 * before a run begins. */
#include "train/inputs.h"

#include "train/bsp.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct data_options train_data(const struct train_options *o,
                               const struct path_list *list, const struct log *log)
{
    return (struct data_options){
        .paths = list->paths,
        .n_paths = list->n,
        .format = (enum data_format)o->format,
        .hash = !o->plain_ids,
        .n_fields = (int)o->fields,
        .chunk_bytes = (size_t)o->chunk,
        .epochs = (int)o->epochs,
        .seed = (uint64_t)o->seed,
        .max_bad = o->max_bad,
        .log = log,
    };
}

struct data_options held_out_data(const struct train_options *o,
                                  const struct path_list *list, const struct log *log)
{
    struct data_options data = train_data(o, list, log);
    data.epochs = 1;
    data.seed = 0;
    return data;
}

descant_status train_shape(const struct train_options *o, const struct data_shape *shape,
                           struct model_shape *out, const struct log *log)
{
    *out = (struct model_shape){
        .kind = (enum model_kind)o->model,
        .n_dense = shape->n_dense,
        .n_fields = shape->n_fields,
        .n_classes = shape->n_classes,
        .rows = (size_t)o->rows,
        .plain_ids = shape->plain_ids,
        .width = (int)o->width,
    };
    out->n_bottom = config_sizes(o->bottom, out->bottom, TRAIN_LAYERS);
    out->n_top = config_sizes(o->top, out->top, TRAIN_LAYERS);
    if (out->n_bottom < 0)
        return log_fail(log, DESCANT_INVALID, "--bottom %s: sizes, as 512,256,64",
                        o->bottom);
    if (out->n_top < 0)
        return log_fail(log, DESCANT_INVALID, "--top %s: sizes, as 512,256", o->top);
    return DESCANT_OK;
}

/* Two readers of one pipe would tear its lines; stdin has a reader that several processes
 * can share. */
static bool is_pipe(const char *path)
{
    struct stat of;
    return strcmp(path, "-") != 0 && stat(path, &of) == 0 && !S_ISREG(of.st_mode) &&
           !S_ISDIR(of.st_mode);
}

static descant_status check_data(const struct train_options *o, const struct log *log)
{
    struct path_list list;
    bool known =
        o->examples > 0 || (o->schedule == SCHEDULE_CONSTANT && !(o->warmup > 0));
    descant_status status = path_list_init(&list, o->data, log);

    for (size_t k = 0; status == DESCANT_OK && k < list.n; k++) {
        if (is_pipe(list.paths[k]) && o->trainers != 1)
            status = log_fail(log, DESCANT_INVALID,
                              "%s is a pipe, which one trainer alone can read: give it "
                              "as stdin, --data -, or --trainers 1",
                              list.paths[k]);
        else if (!known && (is_pipe(list.paths[k]) || strcmp(list.paths[k], "-") == 0))
            status = log_fail(
                log, DESCANT_INVALID,
                "--schedule and --warmup need to know where %s ends: give --examples",
                list.paths[k]);
    }
    path_list_fini(&list);
    return status;
}

/* A pipe can be read, and so evaluated, only once; stdin is either the data or the
 * held-out set. */
static descant_status check_eval(const struct train_options *o, const struct log *log)
{
    struct path_list list;

    if (!o->eval)
        return DESCANT_OK;
    descant_status status = path_list_init(&list, o->eval, log);
    for (size_t k = 0; status == DESCANT_OK && k < list.n; k++) {
        bool is_stdin = strcmp(list.paths[k], "-") == 0;
        if (is_stdin && strcmp(o->data, "-") == 0)
            status = log_fail(log, DESCANT_INVALID, "stdin cannot be --data and --eval");
        else if (o->eval_every && (is_stdin || is_pipe(list.paths[k])))
            status =
                log_fail(log, DESCANT_INVALID, "--eval-every: %s can be read only once",
                         is_stdin ? "stdin" : list.paths[k]);
    }
    path_list_fini(&list);
    return status;
}

/* A file that is to be written must be writable, or its folder. */
static descant_status check_folder(const char *path, bool replaced, const struct log *log)
{
    char folder[4096];
    const char *slash = path ? strrchr(path, '/') : NULL;

    if (!path)
        return DESCANT_OK;
    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - path + 1) : 1,
             slash ? path : ".");
    if (access(!replaced && access(path, F_OK) == 0 ? path : folder, W_OK) == 0)
        return DESCANT_OK;
    return log_fail(log, DESCANT_SYSTEM, "%s cannot be written: %s", path,
                    strerror(errno));
}

/* The trainers of the plan bsp are on one machine, and know how many they are. */
static descant_status check_plan(const struct train_options *o, const struct log *log)
{
    if (o->plan_controls && o->trainers == 0)
        return log_fail(log, DESCANT_INVALID,
                        "--sync bsp is for one machine, and starts its own trainers: "
                        "--trainers says how many, without a launcher or --job");
    if (o->plan_controls && o->trainers * o->workers > BSP_WORKERS)
        return log_fail(
            log, DESCANT_INVALID,
            "--sync bsp has room for %d workers, --trainers %d x --workers %d are more",
            BSP_WORKERS, (int)o->trainers, (int)o->workers);
    return DESCANT_OK;
}

descant_status train_check(const struct train_options *o, const struct log *log)
{
    descant_status status = check_plan(o, log);

    if (status == DESCANT_OK)
        status = check_data(o, log);

    if (status == DESCANT_OK)
        status = check_eval(o, log);
    if (status == DESCANT_OK)
        status = check_folder(o->checkpoint, true, log);
    return status == DESCANT_OK ? check_folder(o->log, false, log) : status;
}
