/* SPDX-License-Identifier: MIT */
/* A held-out set beside descant bsp run, where --model is a checkpoint of descant train: its texts say
 * what the model is, and how its data is read. Between two supersteps control copies the model, by
 * the names of its parts; a thread of its own, the judge, looks at the copy. Supersteps go on meanwhile,
 * and an evaluation that is due while one is under way is left out. */
#include "cli/bsp.h"
#include "train/evaluate.h"
#include "train/saved.h"
#include "train/trainer.h"

#include <errno.h>
#include <string.h>

enum { BATCH = 512 };

struct bsp_eval {
    const struct bsp_options *options;
    const struct log *log;
    struct saved saved;                 /* its w and tables are the copy: the judge's while busy */
    struct path_list paths;
    struct data_options data;
    _Atomic uint64_t said;
    pthread_t thread;
    bool started;
    pthread_mutex_t mutex;              /* guards all below */
    pthread_cond_t moved;
    bool busy, stop, fresh;             /* fresh: nobody has taken the figures yet */
    descant_status status;              /* of the last one */
    struct held_out begun, figures;     /* begun: how far the copy was trained */
    double best;
    int64_t evals, worse;
    /* control's */
    uint64_t at;                        /* examples, as the last one was due */
};

static bool is_stopped(void *of)
{
    struct bsp_eval *e = of;
    pthread_mutex_lock(&e->mutex);
    bool stop = e->stop;
    pthread_mutex_unlock(&e->mutex);
    return stop;
}

static descant_status judge_copy(struct bsp_eval *e, struct held_out *f)
{
    const struct evaluation how = {
        .model = e->saved.model, .w = e->saved.w, .tables = e->saved.tables, .data = e->data,
        .batch = BATCH, .threads = 1, .stopped = is_stopped, .of = e, .log = e->log,
    };
    struct metrics sum = {0};
    double auc;
    descant_status status = evaluate(&how, &sum, &auc);
    held_out_set(f, &sum, auc);
    return status;
}

/* The mutex is held. */
static void note(struct bsp_eval *e, descant_status status, const struct held_out *f)
{
    e->status = status;
    if (status != DESCANT_OK || e->stop)
        return;
    bool better = e->evals == 0 || f->loss < e->best;
    e->figures = *f;
    e->fresh = true;
    e->best = better ? f->loss : e->best;
    e->worse = better ? 0 : e->worse + 1;
    e->evals++;
}

static void *judge(void *of)
{
    struct bsp_eval *e = of;
    nn_thread_init();
    pthread_mutex_lock(&e->mutex);
    while (!e->stop) {
        struct held_out f = e->begun;
        if (!e->busy) {
            pthread_cond_wait(&e->moved, &e->mutex);
            continue;
        }
        pthread_mutex_unlock(&e->mutex);
        descant_status status = judge_copy(e, &f);
        pthread_mutex_lock(&e->mutex);
        note(e, status, &f);
        e->busy = false;
    }
    pthread_mutex_unlock(&e->mutex);
    return NULL;
}

/* --- the copy --- */

static const struct segment_part *find_part(const struct bsp_model *m, const char *name)
{
    for (uint32_t k = 0; k < m->n_parts; k++)
        if (strcmp(m->parts[k].name, name) == 0)
            return &m->parts[k];
    return NULL;
}

/* Every tensor is a part: both are of one file. */
static void copy_tensors(const struct bsp_model *m, const struct tensor *tensors, size_t n, float *to)
{
    for (size_t k = 0; k < n; k++)
        memcpy(to + tensors[k].at, m->w + find_part(m, tensors[k].name)->first,
               tensors[k].n * sizeof *to);
}

static void copy_model(struct bsp_eval *e, const struct bsp_model *m)
{
    size_t n;
    const struct tensor *tensors = model_tensors(e->saved.model, &n);
    copy_tensors(m, tensors, n, e->saved.w);
    tensors = model_tables(e->saved.model, &n);
    copy_tensors(m, tensors, n, e->saved.tables);
}

/* --- what control asks --- */

bool bsp_eval_begin(struct bsp_eval *e, const struct bsp_model *m)
{
    pthread_mutex_lock(&e->mutex);
    bool idle = !e->busy;
    if (idle) {
        copy_model(e, m);
        e->begun = (struct held_out){.at = m->examples, .seconds = m->seconds};
        e->busy = true;
        pthread_cond_signal(&e->moved);
    }
    pthread_mutex_unlock(&e->mutex);
    return idle;
}

void bsp_eval_look(struct bsp_eval *e, const struct bsp_model *m)
{
    uint64_t every = e ? (uint64_t)e->options->eval_every : 0;
    if (every && m->examples / every > e->at / every && bsp_eval_begin(e, m))
        e->at = m->examples;
}

bool bsp_eval_take(struct bsp_eval *e, struct held_out *figures)
{
    if (!e)
        return false;
    pthread_mutex_lock(&e->mutex);
    bool fresh = e->fresh;
    *figures = e->figures;
    e->fresh = false;
    pthread_mutex_unlock(&e->mutex);
    return fresh;
}

bool bsp_eval_enough(struct bsp_eval *e)
{
    if (!e || !e->options->patience)
        return false;
    pthread_mutex_lock(&e->mutex);
    bool enough = e->worse >= e->options->patience;
    pthread_mutex_unlock(&e->mutex);
    return enough;
}

bool bsp_eval_busy(struct bsp_eval *e)
{
    pthread_mutex_lock(&e->mutex);
    bool busy = e->busy;
    pthread_mutex_unlock(&e->mutex);
    return busy;
}

bool bsp_eval_failed(struct bsp_eval *e)
{
    pthread_mutex_lock(&e->mutex);
    bool failed = e->status != DESCANT_OK;
    pthread_mutex_unlock(&e->mutex);
    return failed;
}

/* --- opening --- */

static descant_status open_files(struct bsp_eval *e)
{
    descant_status status = saved_open(&e->saved, e->options->model, e->log);
    if (status == DESCANT_OK)
        status = path_list_init(&e->paths, e->options->eval, e->log);
    if (status != DESCANT_OK)
        return status;
    e->saved.options.epochs = 1;
    e->data = train_data(&e->saved.options, &e->paths, e->log);
    e->data.seed = 0;
    e->data.said = &e->said;
    return evaluate_look(e->saved.model, &e->data);
}

descant_status bsp_eval_open(struct bsp_eval **out, const struct bsp_model *m)
{
    struct bsp_eval *e = memory_take(sizeof *e);
    if (!e)
        return log_fail(m->log, DESCANT_MEMORY, "no memory for an evaluation");
    e->options = m->options;
    e->log = m->log;
    e->at = m->examples;
    pthread_mutex_init(&e->mutex, NULL);
    pthread_cond_init(&e->moved, NULL);
    descant_status status = open_files(e);
    int error = status == DESCANT_OK ? pthread_create(&e->thread, NULL, judge, e) : 0;
    e->started = status == DESCANT_OK && error == 0;
    if (error != 0)
        status = log_fail(m->log, DESCANT_SYSTEM, "no thread for evaluations: %s",
                          strerror(error));
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
    pthread_mutex_lock(&e->mutex);
    e->stop = true;
    pthread_cond_signal(&e->moved);
    pthread_mutex_unlock(&e->mutex);
    if (e->started)
        pthread_join(e->thread, NULL);
    path_list_fini(&e->paths);
    saved_close(&e->saved);
    pthread_cond_destroy(&e->moved);
    pthread_mutex_destroy(&e->mutex);
    memory_give(e);
}
