/* SPDX-License-Identifier: MIT */
/* A held-out set beside descant bsp run, where --model is a checkpoint of descant train:
 * the checkpoint's texts give the kind of the model, and how its data is read. Between
 * two supersteps control copies the model, by the names of its parts; a thread, the
 * judge, evaluates the copy. Supersteps go on meanwhile, and an evaluation that is due
 * while one is under way is left out. */
#include "control/control.h"
#include "run/beside.h"
#include "run/limits.h"
#include "run/saved.h"

#include <string.h>

struct bsp_eval {
    const struct bsp_options *options;
    const struct log *log;
    struct path_list paths;
    struct data_options data;
    _Atomic uint64_t said;
    struct beside *judge;
    uint64_t at;                        /* examples, as the last one was due; control's */
    /* the judge's while it is busy: */
    struct saved saved;                 /* saved.w and saved.tables are the copy */
    struct held_out figures;
    bool fresh;                         /* the figures are not taken yet */
    descant_status status;              /* of the last one */
    struct patience patience;
};

static bool is_stopped(void *of)
{
    const struct bsp_eval *e = of;
    return beside_stopping(e->judge);
}

/* The judge's thread: evaluates the copy in e->saved. An evaluation that was given up
 * leaves no figures. */
static void judge_copy(void *of)
{
    struct bsp_eval *e = of;
    const struct evaluation how = {
        .model = e->saved.model,
        .w = e->saved.w,
        .tables = {.memory = e->saved.tables},
        .data = e->data,
        .batch = EVALUATE_BATCH,
        .threads = 1,
        .stopped = is_stopped,
        .of = e,
        .log = e->log,
    };

    nn_thread_init();
    e->status = evaluate(&how, &e->figures);
    if (e->status != DESCANT_OK || is_stopped(e))
        return;
    e->fresh = true;
    patience_judge(&e->patience, e->figures.loss, e->figures.at);
}

/* --- the copy --- */

/* Every tensor is a part: both are of one file. */
static void copy_tensors(const struct bsp_model *m, const struct tensor *tensors,
                         size_t n, float *to)
{
    for (size_t k = 0; k < n; k++)
        memcpy(to + tensors[k].at, m->w + bsp_model_part(m, tensors[k].name)->at,
               tensors[k].n * sizeof *to);
}

/* --- the calls of control --- */

bool bsp_eval_begin(struct bsp_eval *e, const struct bsp_model *m)
{
    size_t n;
    if (beside_busy(e->judge) || e->fresh)
        return false;
    const struct tensor *tensors = model_tensors(e->saved.model, &n);
    copy_tensors(m, tensors, n, e->saved.w);
    tensors = model_tables(e->saved.model, &n);
    copy_tensors(m, tensors, n, e->saved.tables);
    e->figures = (struct held_out){.at = m->examples, .seconds = m->seconds};
    beside_begin(e->judge);
    return true;
}

/* The next evaluation is counted from the last one that began, not from one that was left
 * out. */
void bsp_eval_look(struct bsp_eval *e, const struct bsp_model *m)
{
    if (e && due_by_count((uint64_t)e->options->eval_every, e->at, m->examples) &&
        !bsp_eval_enough(e) && bsp_eval_begin(e, m))
        e->at = m->examples;
}

bool bsp_eval_take(struct bsp_eval *e, struct held_out *figures)
{
    if (!e || beside_busy(e->judge) || !e->fresh)
        return false;
    *figures = e->figures;
    e->fresh = false;
    return true;
}

bool bsp_eval_enough(struct bsp_eval *e)
{
    return e && !beside_busy(e->judge) &&
           patience_over(&e->patience, e->options->patience);
}

bool bsp_eval_busy(struct bsp_eval *e)
{
    return beside_busy(e->judge);
}

bool bsp_eval_failed(struct bsp_eval *e)
{
    return e->status != DESCANT_OK;
}

/* --- opening --- */

descant_status bsp_eval_open(struct bsp_eval **out, const struct bsp_model *m)
{
    struct bsp_eval *e = memory_take(sizeof *e);
    if (!e)
        return log_fail(m->log, DESCANT_MEMORY, "no memory for an evaluation");
    e->options = m->options;
    e->log = m->log;
    e->at = m->examples;
    descant_status status = saved_open(&e->saved, e->options->model, e->log);
    if (status == DESCANT_OK && e->saved.rows)
        status = log_fail(e->log, DESCANT_UNSUPPORTED,
                          "%s has tables that grow, which bsp run cannot evaluate",
                          e->options->model);
    if (status == DESCANT_OK)
        status = path_list_init(&e->paths, e->options->eval, e->log);
    if (status == DESCANT_OK) {
        e->data = config_held_out(&e->saved.options, &e->paths, e->log);
        e->data.said = &e->said;
        status = evaluate_look(e->saved.model, &e->data);
    }
    if (status == DESCANT_OK)
        status = beside_start(&e->judge, "evaluations", judge_copy, e, m->log);
    if (status == DESCANT_OK)
        *out = e;
    else
        bsp_eval_close(e);
    return status;
}

void bsp_eval_close(struct bsp_eval *e)
{
    if (!e)
        return;
    beside_stop(e->judge);
    path_list_fini(&e->paths);
    saved_close(&e->saved);
    memory_give(e);
}
