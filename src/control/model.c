/* SPDX-License-Identifier: MIT */
/* Control's model: parts with names, one flat vector, the optimizer's state. A checkpoint
 * is a safetensors file as the trainer's: the parts, then "descant.optimizer", the
 * options and how far the run is as texts.
 *
 * Control copies the model and the state between two supersteps, and a thread, the saver,
 * writes the copy. So a checkpoint is of exactly one superstep, and a run that goes on
 * from it makes the same steps of the same sums as the first run would have made. */
#include "control/control.h"
#include "kernels/kernels.h"
#include "run/beside.h"
#include "run/checkpoint.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_NAMED = 256 };

struct bsp_saver {
    struct beside *thread;
    const struct bsp_model *model;
    /* the thread's while it is busy, with model->copy: */
    struct contents *contents;      /* of that copy; the texts are listed for each
                                       write */
    char progress[160];
    bool own;                       /* the file at the path is of this run */
    bool failed;
};

/* --- the shape --- */

static descant_status take_parts(struct bsp_model *m, size_t n)
{
    m->parts = memory_take_array(n, sizeof *m->parts);
    m->tensors = memory_take_array(n, sizeof *m->tensors);
    return m->parts && m->tensors
               ? DESCANT_OK
               : log_fail(m->log, DESCANT_MEMORY, "no memory for a list of parts");
}

/* Adds a part of rows x columns floats behind those before; columns 0: it has one
 * dimension. take_parts has made room. */
static void add_part(struct bsp_model *m, const char *name, size_t rows, size_t columns)
{
    struct segment_part *part = &m->parts[m->n_parts];
    struct tensor *tensor = &m->tensors[m->n_parts++];
    *tensor = (struct tensor){.n_dims = columns ? 2 : 1, .dims = {rows, columns},
                              .at = m->n, .n = rows * (columns ? columns : 1)};
    snprintf(tensor->name, sizeof tensor->name, "%s", name);
    snprintf(part->name, sizeof part->name, "%s", name);
    part->first = m->n;
    part->n = tensor->n;
    m->n += tensor->n;
}

/* "1000" is a part w; else "weight=1000,bias=1". False: the text is neither. */
static bool parse_params(struct bsp_model *m, const char *text)
{
    static const char letters[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    while (m->n_parts < MOST_NAMED) {
        char name[64] = "w", *end;
        size_t length = strspn(text, letters);
        if (text[length] == '=') {
            if (length == 0 || length >= sizeof name || strncmp(text, "descant.", 8) == 0)
                return false;
            snprintf(name, sizeof name, "%.*s", (int)length, text);
            text += length + 1;
        } else if (m->n_parts > 0) {
            return false;
        }
        if (*text < '1' || *text > '9' || strspn(text, "0123456789") > 13 ||
            bsp_model_part(m, name))
            return false;
        add_part(m, name, strtoull(text, &end, 10), 0);
        if (!*end)
            return m->n <= SEGMENT_FLOATS;
        if (*end != ',')
            return false;
        text = end + 1;
    }
    return false;
}

/* Whether a tensor of a file is a part of the model, and not state of the run that wrote
 * it. */
static bool is_part(const struct safetensor *t)
{
    return t->type == SAFETENSORS_F32 && t->bytes > 0 &&
           strncmp(t->name, "descant.", 8) != 0;
}

static descant_status parts_of_file(struct bsp_model *m, const char *path,
                                    const struct safetensors *file)
{
    size_t n = safetensors_count(file);
    descant_status status = take_parts(m, n);
    for (size_t k = 0; k < n && status == DESCANT_OK; k++) {
        const struct safetensor *t = safetensors_at(file, k);
        if (is_part(t))
            add_part(m, t->name, t->n_dims ? t->dims[0] : 1,
                     t->n_dims > 1 ? t->dims[1] : 0);
    }
    if (status == DESCANT_OK && (m->n == 0 || m->n_parts > SEGMENT_PARTS))
        status =
            log_fail(m->log, DESCANT_CORRUPT, "%s has no tensors of F32, or more than %d",
                     path, SEGMENT_PARTS);
    return status;
}

/* --- its values --- */

/* Takes zeroed memory for the model and the optimizer's state in one piece, which a
 * checkpoint copies at once. */
static descant_status take_values(struct bsp_model *m)
{
    m->n_state = optimizer_floats(&m->options->optimizer, m->n);
    m->w = memory_take_array(m->n + m->n_state, sizeof *m->w);
    if (m->options->checkpoint)
        m->copy = memory_take_array(m->n + m->n_state, sizeof *m->copy);
    return m->w && (m->copy || !m->options->checkpoint)
               ? DESCANT_OK
               : log_fail(m->log, DESCANT_MEMORY, "no memory for a model of %zu floats",
                          m->n);
}

/* The file has every part in the same shape: the shape was read from the file, or was
 * compared. */
static void read_values(struct bsp_model *m, const struct safetensors *file)
{
    for (uint32_t k = 0; k < m->n_parts; k++) {
        const struct safetensor *t = safetensors_find(file, m->parts[k].name);
        memcpy(m->w + m->parts[k].first, t->data, t->bytes);
    }
}

static descant_status open_model(struct bsp_model *m)
{
    const char *path = m->options->model;
    struct safetensors *file;
    descant_status status = safetensors_open(&file, path, m->log);
    if (status != DESCANT_OK)
        return status;
    status = parts_of_file(m, path, file);
    if (status == DESCANT_OK)
        status = take_values(m);
    if (status == DESCANT_OK)
        read_values(m, file);
    for (const struct tensor *t = m->tensors;
         status == DESCANT_OK && t < m->tensors + m->n_parts; t++)
        if (!kernels_best()->finite(m->w + t->at, t->n))
            status = log_fail(m->log, DESCANT_CORRUPT, "%s: the tensor %s has NaN or Inf",
                              path, t->name);
    safetensors_close(file);
    return status;
}

/* --- going on from a checkpoint --- */

/* Checks --params and --model given beside --resume against the checkpoint. */
static descant_status compare(const struct bsp_model *m, const char *path,
                              const struct safetensors *file)
{
    uint32_t n = 0;
    for (size_t k = 0; k < safetensors_count(file); k++)
        n += is_part(safetensors_at(file, k));
    for (uint32_t k = 0; k < m->n_parts; k++) {
        const struct safetensor *t = safetensors_find(file, m->parts[k].name);
        if (!t || !is_part(t) || t->bytes != m->parts[k].n * sizeof(float))
            return log_fail(m->log, DESCANT_CORRUPT,
                            "%s is of another model: it has no tensor %s of %" PRIu64
                            " floats",
                            path, m->parts[k].name, m->parts[k].n);
    }
    if (n != m->n_parts)
        return log_fail(m->log, DESCANT_CORRUPT,
                        "%s is of another model: it has %u parts, not %u", path, n,
                        m->n_parts);
    return DESCANT_OK;
}

/* Reads the numbers that bsp_model_save writes, in their order. A file of another program
 * has none. */
static descant_status read_progress(struct bsp_model *m, const char *path,
                                    const struct safetensors *file)
{
    const char *text = safetensors_text(file, "progress");
    if (text &&
        sscanf(text, "%" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %lf", &m->version,
               &m->steps, &m->gradients, &m->examples, &m->seconds) == 5 &&
        m->version > 0)
        return DESCANT_OK;
    return log_fail(m->log, DESCANT_CORRUPT,
                    "%s was not written by descant bsp; --model begins with its tensors",
                    path);
}

/* With --params or --model the model has its shape already, and the checkpoint must have
 * the same; else the checkpoint gives the shape. */
static descant_status resume(struct bsp_model *m)
{
    struct checkpoint c = {.path = m->options->checkpoint, .told = &m->options->told,
                           .log = m->log};
    bool shaped = m->n_parts > 0;
    descant_status status = checkpoint_open(&c, true);
    if (status == DESCANT_OK)
        status = shaped ? compare(m, c.path, c.file) : parts_of_file(m, c.path, c.file);
    if (status == DESCANT_OK && !shaped)
        status = take_values(m);
    if (status == DESCANT_OK)
        status = read_progress(m, c.path, c.file);
    if (status == DESCANT_OK)
        status = checkpoint_state(&c, "optimizer", m->w + m->n, m->n_state);
    if (status == DESCANT_OK) {
        read_values(m, c.file);
        m->resumed = true;
    }
    checkpoint_close(&c);
    return status;
}

/* --- writing --- */

/* The saver's thread: writes model->copy and the texts. The texts are made anew, since
 * the progress differs. */
static void write_copy(void *of)
{
    struct bsp_saver *s = of;
    const struct bsp_options *o = s->model->options;
    s->contents->n_texts = 0;
    contents_text(s->contents, "descant", "%s", descant_version());
    contents_text(s->contents, "progress", "%s", s->progress);
    contents_told(s->contents, &o->told);
    s->failed =
        checkpoint_put(o->checkpoint, s->own, s->contents, s->model->log) != DESCANT_OK;
    s->own |= !s->failed;
}

/* The list of tensors is made once: they lie in model->copy for the whole run. */
static descant_status open_saver(struct bsp_model *m)
{
    struct bsp_saver *s = m->saver = memory_take(sizeof *s);
    if (!s)
        return log_fail(m->log, DESCANT_MEMORY, "no memory for checkpoints");
    s->model = m;
    s->own = m->resumed;
    s->contents = contents_create(m->n_parts + 1, m->log);
    if (!s->contents)
        return DESCANT_MEMORY;
    contents_tensors(s->contents, m->tensors, m->n_parts, m->copy);
    if (m->n_state)
        contents_add(s->contents, "descant.optimizer", SAFETENSORS_F32, m->copy + m->n,
                     m->n_state);
    return beside_start(&s->thread, "checkpoints", write_copy, s, m->log);
}

bool bsp_model_save(struct bsp_model *m)
{
    struct bsp_saver *s = m->saver;
    if (beside_busy(s->thread))
        return false;
    memcpy(m->copy, m->w, (m->n + m->n_state) * sizeof *m->w);
    snprintf(s->progress, sizeof s->progress,
             "%" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %.3f", m->version, m->steps,
             m->gradients, m->examples, m->seconds);
    beside_begin(s->thread);
    return true;
}

bool bsp_model_saving(struct bsp_model *m)
{
    return m->saver && beside_busy(m->saver->thread);
}

bool bsp_model_save_failed(struct bsp_model *m)
{
    return m->saver->failed;
}

/* --- all of it --- */

void bsp_model_step(void *of, const struct control_piece *piece)
{
    const struct bsp_model *m = of;
    const struct optimizer_piece p = {piece->w,  piece->g, m->w + m->n,
                                      piece->at, piece->n, m->n};
    optimizer_step_piece(&m->options->optimizer, &p, m->options->lr, piece->step);
}

/* The model comes from --params, from --model, or else from the checkpoint; --resume then
 * sets its values. */
static descant_status open_all(struct bsp_model *m)
{
    const struct bsp_options *o = m->options;
    bool here = o->checkpoint && checkpoint_there(o->checkpoint);
    descant_status status = DESCANT_OK;
    if (o->params) {
        status = take_parts(m, MOST_NAMED);
        if (status == DESCANT_OK && !parse_params(m, o->params))
            status = log_fail(
                m->log, DESCANT_INVALID,
                "--params %s: allowed is a number of floats, as 1000, or up to %d parts "
                "with names, each once, as weight=1000,bias=1",
                o->params, MOST_NAMED);
        if (status == DESCANT_OK)
            status = take_values(m);
    } else if (o->model) {
        status = open_model(m);
    } else if (!o->resume || !here) {
        status =
            log_fail(m->log, DESCANT_INVALID,
                     "give --params or --model for the model to train%s",
                     o->resume ? ": there is no checkpoint to resume" : "");
    }
    if (status == DESCANT_OK && o->resume && here)
        status = resume(m);
    else if (status == DESCANT_OK && o->resume)
        log_say(m->log, DESCANT_WARNING, "--resume: there is no %s: the run begins anew",
                o->checkpoint);
    else if (status == DESCANT_OK && here)
        checkpoint_say_replaced(o->checkpoint, m->log);
    return status;
}

descant_status bsp_model_open(struct bsp_model *m, const struct bsp_options *o,
                              const struct log *log)
{
    *m = (struct bsp_model){.options = o, .log = log, .version = 1};
    descant_status status = open_all(m);
    if (status == DESCANT_OK && o->checkpoint)
        status = open_saver(m);
    if (status == DESCANT_OK && o->eval)
        status = bsp_eval_open(&m->eval, m);
    if (status != DESCANT_OK)
        bsp_model_close(m);
    return status;
}

void bsp_model_close(struct bsp_model *m)
{
    bsp_eval_close(m->eval);
    if (m->saver) {
        beside_stop(m->saver->thread);
        contents_destroy(m->saver->contents);
    }
    memory_give(m->saver);
    memory_give(m->copy);
    memory_give(m->w);
    memory_give(m->tensors);
    memory_give(m->parts);
    *m = (struct bsp_model){0};
}
