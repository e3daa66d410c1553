/* SPDX-License-Identifier: MIT */
/* A checkpoint is one safetensors file: the dense tensors and the tables by their names, then what
 * a run needs to go on and a model does not: the optimizers' state, the plan's outer state, the
 * place in the data, the sums of progressive validation, every option as text.
 *
 *   1. It is written beside training: parameters are read while workers change them, as every
 *      Hogwild reader does. What is not finite is not written: the last good file stays.
 *   2. The place is the cursor, the data's end if it was met, and the chunks that were held: a
 *      resumed run does those first, so that nothing is left out, and at most those chunks'
 *      examples are trained twice; more epochs go on where the last one ended. It counts chunks,
 *      so it is only taken over where what makes a chunk is the same, and where the files are those
 *      that were read, which may have grown (place.c); else the data begins anew.
 *      With several hosts the first one's place is in the checkpoint, the others' beside it in
 *      PATH.host1, PATH.host2 and so on, with their sums and without a model. A resumed run, on
 *      however many hosts, reads them all: each of its hosts comes to the same rest of the data,
 *      and takes its part of that.
 *   3. safetensors_write replaces the file in one step and keeps the previous one beside it: as
 *      PATH.previous what this run has written or goes on from, as PATH.old the model of a run
 *      that it does not go on from. */
#include "data/safetensors.h"

#include "train/bsp.h"
#include "train/place.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RUN_TENSORS = 5, PLACE_HEAD = 2, MARK = 2, MAX_TEXTS = 128, MOST_HOSTS = 4096 };
enum { MOST_LOOKS = 20 };       /* for a moment in which nothing is trained */

struct list {
    struct safetensor *at;      /* room for the model's and RUN_TENSORS */
    size_t n;
};

static struct safetensor *add(struct list *list, const char *name, enum safetensors_type type,
                              const void *data, size_t n)
{
    struct safetensor *s = &list->at[list->n++];
    snprintf(s->name, sizeof s->name, "%s", name);
    s->type = type;
    s->n_dims = 1;
    s->dims[0] = n;
    s->data = data;
    s->bytes = n * (type == SAFETENSORS_F32 ? 4 : type == SAFETENSORS_U64 ? 8 : 1);
    s->finite = true;
    return s;
}

static void add_tensors(struct list *list, const struct tensor *tensors, size_t n, const float *p)
{
    for (size_t k = 0; k < n; k++) {
        const struct tensor *from = &tensors[k];
        struct safetensor *s = add(list, from->name, SAFETENSORS_F32, p + from->at, from->n);
        s->n_dims = from->n_dims;
        s->dims[0] = from->dims[0];
        s->dims[1] = from->dims[1];
    }
}

static void add_model(struct list *list, struct trainer *t, const struct dense *dense)
{
    size_t n;
    const struct tensor *tensors = model_tensors(t->model, &n);

    add_tensors(list, tensors, n, dense->w);
    tensors = model_tables(t->model, &n);
    add_tensors(list, tensors, n, t->tables);
}

static bool finite_all(const float *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!isfinite(p[i]))
            return false;
    return true;
}

static descant_status outer_of(struct trainer *t, char **out, size_t *bytes)
{
    descant_status status = descant_outer_save(t->job, NULL, bytes);
    if (status != DESCANT_OK)
        return status;
    char *outer = memory_take(*bytes);
    if (!outer)
        return log_fail(&t->log, DESCANT_MEMORY, "no memory for the outer state");
    status = descant_outer_save(t->job, outer, bytes);
    if (status == DESCANT_OK)
        *out = outer;
    else
        memory_give(outer);
    return status;
}

descant_status checkpoint_keep_outer(struct trainer *t)
{
    return t->options->checkpoint ? outer_of(t, &t->outer, &t->outer_bytes) : DESCANT_OK;
}

struct place {
    uint64_t at[PLACE_HEAD + BOARD_TODO];
    size_t n;
    struct metrics sums;        /* of what was trained by then */
    uint64_t files[MARK * BOARD_FILES];     /* file_mark of each */
};

/* Looks again if something was trained between place and sums, for that would be trained twice;
 * where there is always something, the place is the older of the two. */
static void find_place(struct trainer *t, struct place *place)
{
    uint64_t before;
    int looks = 0;

    do {
        before = board_sum(t->board).n;
        place->n = PLACE_HEAD + board_held(t->board, &place->at[0], place->at + PLACE_HEAD,
                                           BOARD_TODO);
        place->at[1] = atomic_load_explicit(&t->board->end, memory_order_relaxed);
        place->sums = board_sum(t->board);
    } while (place->sums.n != before && ++looks < MOST_LOOKS);
    for (size_t k = 0; k < t->paths.n; k++) {
        place->files[MARK * k] = atomic_load(&t->board->bytes[k]);
        place->files[MARK * k + 1] = atomic_load(&t->board->hashes[k]);
    }
}

struct place *checkpoint_place(struct trainer *t)
{
    struct place *place = memory_take(sizeof *place);
    if (place)
        find_place(t, place);
    return place;
}

/* Texts: every option, then the sums. */
struct texts {
    struct safetensors_text at[MAX_TEXTS];
    char room[MAX_TEXTS][CONFIG_TEXT];
    size_t n;
};

static void add_text(struct texts *texts, const char *key, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void add_text(struct texts *texts, const char *key, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(texts->room[texts->n], sizeof texts->room[0], format, list);
    va_end(list);
    texts->at[texts->n] = (struct safetensors_text){key, texts->room[texts->n]};
    texts->n++;
}

static void add_texts(struct texts *texts, struct trainer *t, const struct place *place,
                      uint64_t steps)
{
    const struct metrics *m = &place->sums;
    char *text;

    for (size_t k = 0; k < n_train_settings; k++) {
        text = texts->room[texts->n];
        config_text(&train_settings[k], t->options, text, CONFIG_TEXT);
        texts->at[texts->n++] = (struct safetensors_text){train_settings[k].name, text};
    }
    add_text(texts, "descant", "%s", descant_version());
    add_text(texts, "hosts", "%u", board_hosts(t->board));
    add_text(texts, "size", "%d", t->size);
    add_text(texts, "sums", "%llu %llu %llu %.17g %.17g", (unsigned long long)m->n,
             (unsigned long long)m->positive, (unsigned long long)m->correct, m->loss,
             m->predicted);
    add_text(texts, "began", "%llu", (unsigned long long)atomic_load(&t->board->began));
    add_text(texts, "inputs", "%d %d %d %d %d", t->shape.n_dense, t->shape.n_fields,
             t->shape.n_classes, t->shape.plain_ids, (int)t->format);
    add_text(texts, "steps", "%llu", (unsigned long long)steps);
    add_text(texts, "seconds", "%.3f",
             atomic_load(&t->board->seconds_before) +
                 (double)(clock_now_ns() - atomic_load(&t->board->started_ns)) * 1e-9);
}

static void add_place(struct list *list, const struct place *place)
{
    add(list, "descant.place", SAFETENSORS_U64, place->at, place->n);
}

static void add_run(struct list *list, struct trainer *t, const struct dense *dense,
                    const struct place *place)
{
    size_t n = optimizer_floats(&t->optimizer, t->n);
    size_t rows = optimizer_row_floats(&t->optimizer, model_table_rows(t->model),
                                       model_table_width(t->model));

    if (n)
        add(list, "descant.optimizer", SAFETENSORS_F32, dense->state, n);
    if (rows)
        add(list, "descant.table_optimizer", SAFETENSORS_F32, t->table_state, rows);
    add_place(list, place);
    add(list, "descant.files", SAFETENSORS_U64, place->files, MARK * t->paths.n);
}

static void host_path(const struct trainer *t, int host, char *path, size_t room)
{
    snprintf(path, room, "%s.host%d", t->options->checkpoint, host);
}

static void best_path(const struct trainer *t, char *path, size_t room)
{
    snprintf(path, room, "%s.best", t->options->checkpoint);
}

void checkpoint_forget(struct trainer *t)
{
    char path[4096];
    host_path(t, t->host, path, sizeof path);
    unlink(path);
}

void checkpoint_tidy(const struct trainer *t)
{
    char path[4096];
    host_file(t, t->options->checkpoint, path, sizeof path);
    safetensors_tidy(path);
    if (t->host > 0)
        return;
    best_path(t, path, sizeof path);
    safetensors_tidy(path);
}

/* Another host's than the first: it has the same model. */
static descant_status write_host(struct trainer *t, struct list *list, struct texts *texts,
                                 const struct place *place)
{
    char path[4096];

    host_file(t, t->options->checkpoint, path, sizeof path);
    add_place(list, place);
    add_texts(texts, t, place, atomic_load(&t->steps));
    return safetensors_write(path, NULL, list->at, list->n, texts->at, texts->n, &t->log);
}

/* What is there is of this run, or of one that it goes on from. */
static bool is_own(const struct trainer *t)
{
    return atomic_load(&t->board->kept) || atomic_load(&t->board->resumed);
}

descant_status checkpoint_put(const char *path, bool own, const struct safetensor *tensors,
                              size_t n, const struct safetensors_text *texts, size_t n_texts,
                              const struct log *log)
{
    char previous[4096], old[4096];
    bool there = access(path, F_OK) == 0;

    snprintf(previous, sizeof previous, "%s.previous", path);
    snprintf(old, sizeof old, "%s.old", path);
    descant_status status = safetensors_write(path, own ? previous : old, tensors, n, texts,
                                              n_texts, log);
    if (status != DESCANT_OK)
        return status;
    if (!own && there)
        unlink(previous);
    else if (!own)
        rename(previous, old);
    return DESCANT_OK;
}

static descant_status put(struct trainer *t, const struct list *list, const struct texts *texts)
{
    descant_status status = checkpoint_put(t->options->checkpoint, is_own(t), list->at, list->n,
                                           texts->at, texts->n, &t->log);
    char best[4096 + 8], old[4096 + 16];

    if (status != DESCANT_OK)
        return status;
    best_path(t, best, sizeof best);
    snprintf(old, sizeof old, "%s.old", best);
    if (!is_own(t))
        rename(best, old);
    atomic_store(&t->board->kept, 1);
    return DESCANT_OK;
}

/* FILE.best, without the one before it; one that does not count here becomes FILE.best.old. */
static descant_status put_best(struct trainer *t, const struct list *list, struct texts *texts)
{
    char path[4096 + 8], old[4096 + 16];

    best_path(t, path, sizeof path);
    snprintf(old, sizeof old, "%s.old", path);
    add_text(texts, "best", "%.17g %llu", atomic_load(&t->board->eval_best),
             (unsigned long long)atomic_load(&t->board->best_at));
    return safetensors_write(path, atomic_load(&t->board->best_kept) ? NULL : old, list->at, list->n,
                             texts->at, texts->n, &t->log);
}

static descant_status write_all(struct trainer *t, const struct dense *dense, struct list *list,
                                struct texts *texts, const struct place *place, bool best)
{
    if (t->host > 0)
        return write_host(t, list, texts, place);
    size_t outer_bytes = t->outer_bytes;
    char *outer = t->outer;
    bool kept = outer || (!t->in_haste && !best && outer_of(t, &outer, &outer_bytes) == DESCANT_OK);

    add_run(list, t, dense, place);
    if (kept)
        add(list, "descant.outer", SAFETENSORS_U8, outer, outer_bytes);
    add_model(list, t, dense);
    add_texts(texts, t, place, dense->steps);
    descant_status status = best ? put_best(t, list, texts) : put(t, list, texts);
    if (outer != t->outer)
        memory_give(outer);
    return status;
}

static descant_status write_from(struct trainer *t, const struct place *place,
                                 const struct dense *dense, bool best)
{
    if (!finite_all(dense->w, t->n) || !finite_all(t->tables, t->n_tables)) {
        char where[96];
        crew_name_bad(t, where, sizeof where);
        return log_fail(&t->log, DESCANT_INVALID, "no checkpoint is written: %s", where);
    }
    size_t n_dense, n_tables;
    model_tensors(t->model, &n_dense);
    model_tables(t->model, &n_tables);
    struct list list = {memory_take_array(n_dense + n_tables + RUN_TENSORS, sizeof *list.at), 0};
    struct texts *texts = memory_take(sizeof *texts);
    descant_status status = list.at && texts
                                ? write_all(t, dense, &list, texts, place, best)
                                : log_fail(&t->log, DESCANT_MEMORY, "no memory for a checkpoint");
    memory_give(texts);
    memory_give(list.at);
    return status;
}

/* The place comes before the model: what is done by then is in it. */
descant_status checkpoint_write(struct trainer *t)
{
    struct place *place = checkpoint_place(t);
    if (!place)
        return log_fail(&t->log, DESCANT_MEMORY, "no memory for a checkpoint");
    struct dense dense = bsp_copy(t);
    descant_status status = write_from(t, place, &dense, false);
    memory_give(place);
    return status;
}

/* The tables and the optimizer's state have gone on since the evaluation began, as they had when it
 * looked at them. FILE is first, so that FILE.best is never beside another run's. */
descant_status checkpoint_write_best(struct trainer *t, const struct place *place, const float *w)
{
    descant_status status = is_own(t) ? DESCANT_OK : checkpoint_write(t);
    struct dense dense = bsp_copy(t);
    dense.w = w;
    if (status != DESCANT_OK)
        return status;
    if (!place)
        return log_fail(&t->log, DESCANT_MEMORY, "no memory for a checkpoint");
    return write_from(t, place, &dense, true);
}

/* --- reading --- */

bool checkpoint_before(const char *path, char *previous, size_t room)
{
    char target[4096];

    snprintf(previous, room, "%s.previous",
             path_follow(path, target, sizeof target) ? target : path);
    return access(previous, F_OK) == 0;
}

bool checkpoint_there(const struct train_options *o)
{
    char previous[4096 + 16];
    return access(o->checkpoint, F_OK) == 0 ||
           checkpoint_before(o->checkpoint, previous, sizeof previous);
}

descant_status checkpoint_open(struct safetensors **out, const char *path, bool says,
                               const struct log *log)
{
    char previous[4096 + 16], why[LOG_LINE];
    descant_status status = safetensors_open(out, path, NULL);

    if (status == DESCANT_OK)
        return DESCANT_OK;
    snprintf(why, sizeof why, "%s", descant_last_error());
    if (!checkpoint_before(path, previous, sizeof previous))
        return log_fail(log, status, "%s", why);
    status = safetensors_open(out, previous, NULL);
    if (status != DESCANT_OK)
        return log_fail(log, status, "%s; nor can the checkpoint before it be used: %s", why,
                        descant_last_error());
    if (says)
        log_say(log, DESCANT_WARNING, "%s; the run goes on from %s, the checkpoint before it", why,
                previous);
    return DESCANT_OK;
}

static descant_status take_tensor(const struct safetensors *file, const char *path,
                                  const struct tensor *want, float *p, const struct log *log)
{
    const struct safetensor *have = safetensors_find(file, want->name);

    if (!have)
        return log_fail(log, DESCANT_CORRUPT, "%s is of another model: it has no tensor %s", path,
                        want->name);
    if (have->type != SAFETENSORS_F32 || have->n_dims != want->n_dims ||
        have->dims[0] != want->dims[0] || (want->n_dims > 1 && have->dims[1] != want->dims[1]))
        return log_fail(log, DESCANT_CORRUPT,
                        "%s is of another model: its tensor %s has %zu x %zu, not %zu x %zu", path,
                        want->name, have->dims[0], have->n_dims > 1 ? have->dims[1] : 1,
                        want->dims[0], want->n_dims > 1 ? want->dims[1] : 1);
    memcpy(p + want->at, have->data, have->bytes);
    return DESCANT_OK;
}

descant_status checkpoint_take(const struct safetensors *file, const char *path,
                               const struct tensor *tensors, size_t n, float *p,
                               const struct log *log)
{
    for (size_t k = 0; k < n; k++) {
        descant_status status = take_tensor(file, path, &tensors[k], p, log);
        if (status != DESCANT_OK)
            return status;
    }
    return DESCANT_OK;
}

/* Whether the file's text of a setting is this run's; so it is where the file has none. *was is
 * the file's, *is this run's: valid until the next call in this thread. */
static bool same_text(const struct trainer *t, const struct safetensors *file, const char *name,
                      const char **was, const char **is)
{
    static _Thread_local char now[CONFIG_TEXT];
    const struct option *s =
        option_find(train_settings, n_train_settings, name, strlen(name));

    *was = safetensors_text(file, name);
    *is = config_text(s, t->options, now, sizeof now);
    return !*was || strcmp(*was, *is) == 0;
}

/* What the tensors' sizes do not tell: the same numbers would mean something else. */
static descant_status check_meaning(const struct trainer *t, const struct safetensors *file)
{
    const char *path = t->options->checkpoint, *was, *is;
    const char *inputs = safetensors_text(file, "inputs");
    const struct data_shape *have = &t->shape;
    int n_dense, n_fields, plain;

    if (!same_text(t, file, "model", &was, &is))
        return log_fail(&t->log, DESCANT_CORRUPT, "%s is of another model: --model was %s, now it is "
                        "%s", path, was, is);
    if (!inputs || sscanf(inputs, "%d %d %*d %d", &n_dense, &n_fields, &plain) != 3)
        return DESCANT_OK;
    if (n_dense != have->n_dense || n_fields != have->n_fields)
        return log_fail(&t->log, DESCANT_CORRUPT, "%s is of other data: it had %d dense feature%s "
                        "and %d field%s, now there are %d and %d", path, n_dense,
                        n_dense == 1 ? "" : "s", n_fields, n_fields == 1 ? "" : "s", have->n_dense,
                        have->n_fields);
    if (n_fields && plain != have->plain_ids)
        return log_fail(&t->log, DESCANT_CORRUPT, "%s is of other data: its ids were %s, now they "
                        "are %s (--plain-ids)", path, plain ? "plain" : "hashed",
                        plain ? "hashed" : "plain");
    return DESCANT_OK;
}

/* n floats of state, which only the optimizer that made them can read. */
static descant_status take_state(const struct trainer *t, const struct safetensors *file,
                                 const char *setting, float *p, size_t n)
{
    const char *path = t->options->checkpoint, *was, *is;
    const struct log *log = &t->log;
    bool tables = strcmp(setting, "optimizer") != 0;
    const char *name = tables ? "descant.table_optimizer" : "descant.optimizer";
    size_t n_had = 0;
    const float *had = safetensors_list(file, name, SAFETENSORS_F32, &n_had);

    if (!n)
        return DESCANT_OK;
    if (!same_text(t, file, setting, &was, &is))
        return log_fail(log, DESCANT_CORRUPT, "%s is of another optimizer: --%s was %s, not %s",
                        path, setting, was, is);
    if (!had || n_had != n)
        return log_fail(log, DESCANT_CORRUPT, "%s is of another optimizer: %s does not fit", path,
                        name);
    memcpy(p, had, n * sizeof *p);
    return DESCANT_OK;
}

descant_status checkpoint_load_model(struct trainer *t)
{
    const char *path = t->options->checkpoint, *steps;
    struct safetensors *file;
    size_t n;
    descant_status status = checkpoint_open(&file, path, false, &t->log);

    if (status != DESCANT_OK)
        return status;
    const struct tensor *tensors = model_tensors(t->model, &n);
    status = checkpoint_take(file, path, tensors, n, t->w, &t->log);
    if (status == DESCANT_OK)
        status = take_state(t, file, "optimizer", t->state,
                            optimizer_floats(&t->optimizer, t->n));
    if ((steps = safetensors_text(file, "steps")))
        atomic_store(&t->steps, strtoull(steps, NULL, 10));
    safetensors_close(file);
    return status;
}

static void take_sums(const struct safetensors *file, struct metrics *sums)
{
    const char *text = safetensors_text(file, "sums");
    unsigned long long n, positive, correct;
    struct metrics m = {0};

    if (!text || sscanf(text, "%llu %llu %llu %lf %lf", &n, &positive, &correct, &m.loss,
                        &m.predicted) != 5)
        return;
    m.n = n;
    m.positive = positive;
    m.correct = correct;
    metrics_merge(sums, &m);
}

static bool take_host(struct rest *rest, int host, const struct safetensors *file)
{
    size_t n = 0;
    const uint64_t *at = safetensors_list(file, "descant.place", SAFETENSORS_U64, &n);

    take_sums(file, &rest->sums);
    if (!at || n < PLACE_HEAD || at[0] < (uint64_t)host)
        return false;
    rest->cursors[host] = at[0];
    if (at[1] && (!rest->end || at[1] < rest->end))
        rest->end = at[1];
    for (size_t k = PLACE_HEAD; k < n; k++)
        if (at[k] < DATA_REST)
            rest_add(rest, at[k]);
    return true;
}

/* A host's file that cannot be had: it is taken to be as far as the first. */
static void take_other(const struct trainer *t, struct rest *rest, int host)
{
    char path[4096];
    struct safetensors *file;
    bool taken = false;

    host_path(t, host, path, sizeof path);
    if (access(path, F_OK) == 0 && safetensors_open(&file, path, &t->log) == DESCANT_OK) {
        taken = take_host(rest, host, file);
        safetensors_close(file);
    }
    if (taken)
        return;
    rest->cursors[host] = rest->cursors[0] + (uint64_t)host;
    log_say(&t->log, DESCANT_WARNING, "%s cannot be used: that host is taken to be as far in the "
            "data as the first", path);
}

/* --- the data of before --- */

/* Of the file's text `name`, which is a number; 0: it has none. */
static uint64_t number_of(const struct safetensors *file, const char *name)
{
    const char *text = safetensors_text(file, name);
    return text ? strtoull(text, NULL, 10) : 0;
}

/* The bytes of each file, as they were and as they are. A file of before that has only grown is
 * the same. False: they are others; `why` says which. */
static bool same_files(struct trainer *t, const uint64_t *was, size_t n, struct growth *growth,
                       char *why, size_t room)
{
    bool text = t->format != DATA_CACHE && t->format != DATA_IDX;

    snprintf(why, room, "it was of %zu file%s, now it is of %zu", n / MARK,
             n == MARK ? "" : "s", t->paths.n);
    if (n != MARK * t->paths.n)
        return false;
    for (size_t k = 0; k < t->paths.n; k++, was += MARK) {
        const char *path = t->paths.paths[k];
        uint64_t is = atomic_load(&t->board->bytes[k]);
        struct file_mark mark = file_mark(path, was[0]);
        snprintf(why, room, "%s is not the file that was read", path);
        if (mark.bytes != was[0] || mark.hash != was[1] || (!text && is != was[0]))
            return false;
        growth[k] = (struct growth){was[0], is, was[0]};
        atomic_store(&t->board->known[k], was[0]);
    }
    return true;
}

/* The place where files have grown. False: there is none. */
static bool grow(struct trainer *t, const struct safetensors *file, struct rest *rest,
                 struct growth *growth)
{
    uint64_t chunk_bytes = (uint64_t)t->options->chunk;
    bool grown = false, once = t->options->epochs == 1 && number_of(file, "epochs") == 1;

    for (size_t k = 0; k < t->paths.n; k++)
        if (growth[k].is > growth[k].was) {
            growth[k].whole = t->counted ? whole_lines(t->paths.paths[k], growth[k].was) : 0;
            grown = true;
        }
    if (!grown)
        return true;
    if (t->counted)
        return rest_grow(rest, growth, t->paths.n, chunk_bytes);
    if (t->paths.n == 1 && once)
        rest_back(rest);
    return t->paths.n == 1 && once;
}

/* Whether all was trained that was to be. */
static bool is_over(const struct safetensors *file, const struct rest *rest)
{
    uint64_t limit = number_of(file, "examples");
    bool all = rest->end && rest->origin + 1 >= rest->end && !rest->n_todo;
    return all || (limit && rest->sums.n - number_of(file, "began") >= limit);
}

/* Whether the data is that of the file, or has that and more: rest is the place in it. What a pipe
 * brings goes on, unless it had come to its end. */
static bool same_data(struct trainer *t, const struct safetensors *file, struct rest *rest,
                      char *why, size_t room)
{
    size_t n = 0;
    const uint64_t *files = safetensors_list(file, "descant.files", SAFETENSORS_U64, &n);
    const char *was, *is;
    bool named = same_text(t, file, "data", &was, &is), pipes = false;
    struct growth growth[BOARD_FILES];

    snprintf(why, room, "--data was %s, now it is %s", was ? was : "?", is);
    for (size_t k = 0; k < t->paths.n; k++)
        pipes |= atomic_load(&t->board->bytes[k]) == UINT64_MAX;
    if (pipes || !files)
        return named && !(pipes && rest->end);
    char what[512];
    bool same = same_files(t, files, n, growth, what, sizeof what);
    if (same && grow(t, file, rest, growth))
        return true;
    if (same)
        snprintf(why, room, "its files have grown, and its place in them cannot be found");
    else if (named)
        snprintf(why, room, "%s", what);
    return false;
}

/* The place counts chunks: it is another one where the chunks are. */
static bool same_place(struct trainer *t, const struct safetensors *file, struct rest *rest)
{
    const char *inputs = safetensors_text(file, "inputs"), *was, *is, *name = NULL;
    int format = (int)t->format;
    char why[1200], part[1200] = "";
    bool over = is_over(file, rest);

    if (inputs)
        sscanf(inputs, "%*d %*d %*d %*d %d", &format);
    format = format > DATA_CACHE || format < 0 ? DATA_AUTO : format;
    if (format != (int)t->format)
        name = "format";
    else if (t->format != DATA_CACHE && !same_text(t, file, "chunk", &was, &is))
        name = "chunk";
    else if (t->format == DATA_IDX && !same_text(t, file, "seed", &was, &is))
        name = "seed";
    if (name && same_text(t, file, name, &was, &is))
        snprintf(why, sizeof why, "its format was %s, now it is %s",
                 data_format_names[format], data_format_names[t->format]);
    else if (name)
        snprintf(why, sizeof why, "--%s was %s, now it is %s", name, was, is);
    else if (same_data(t, file, rest, why, sizeof why))
        return true;
    same_text(t, file, "data", &was, &is);
    if (!name && !over)
        snprintf(part, sizeof part, ", and of --data %s only a part was trained",
                 was ? was : "?");
    log_say(&t->log, DESCANT_WARNING, "%s has its place in other data: %s; the model goes on, the "
            "data begins anew%s", t->options->checkpoint, why, part);
    return false;
}

static bool gather_rest(const struct trainer *t, const struct safetensors *file,
                        struct rest *rest)
{
    bool placed = take_host(rest, 0, file);

    for (int host = 1; host < rest->hosts; host++)
        take_other(t, rest, host);
    rest_join(rest);
    return placed;
}

/* What --patience counts from: the evaluation of the same held-out set that FILE.best says it has. */
static void take_best(struct trainer *t)
{
    char path[4096 + 8];
    const char *best, *was, *is;
    struct safetensors *file;
    unsigned long long at;
    double loss;

    best_path(t, path, sizeof path);
    if (!monitor_keeps_best(t) || safetensors_open(&file, path, NULL) != DESCANT_OK)
        return;
    best = safetensors_text(file, "best");
    if (best && sscanf(best, "%lf %llu", &loss, &at) == 2 && isfinite(loss) &&
        same_text(t, file, "eval", &was, &is)) {
        atomic_store(&t->board->eval_best, loss);
        atomic_store(&t->board->best_at, at);
        atomic_store(&t->board->evals, 1);
        atomic_store(&t->board->best_kept, 1);
    }
    safetensors_close(file);
}

/* Onto the board; stored, not added, for who filled it before may have died. Each host does its
 * part of what is to do; the sums of before are the first one's. */
static void set_board(struct trainer *t, const struct rest *rest, bool placed, uint64_t began)
{
    struct board *board = t->board;
    uint32_t n = 0;

    if (t->host == 0) {
        cell_set(&board->before, &rest->sums);
        cell_set(&board->logged, &rest->sums);
        atomic_store(&board->eval_at, rest->sums.n);
    }
    atomic_store(&board->began, placed ? began : rest->sums.n);
    atomic_store(&board->granted, placed ? rest->sums.n - began : 0);
    if (!placed)
        return;
    take_best(t);
    atomic_store(&board->origin, rest->origin);
    for (size_t k = (size_t)t->host; k < rest->n_todo; k += board_hosts(board))
        atomic_store(&board->todo[n++], rest->todo[k]);
    atomic_store(&board->n_todo, n);
}

static descant_status take_place(struct trainer *t, const struct safetensors *file)
{
    const char *hosts = safetensors_text(file, "hosts");
    const char *seconds = safetensors_text(file, "seconds");
    struct rest rest = {.hosts = hosts ? atoi(hosts) : 1};

    if (rest.hosts < 1 || rest.hosts > MOST_HOSTS)
        return log_fail(&t->log, DESCANT_CORRUPT, "%s is of %s hosts", t->options->checkpoint,
                        hosts);
    if (seconds)
        atomic_store(&t->board->seconds_before, strtod(seconds, NULL));
    rest.cursors = memory_take_array((size_t)rest.hosts, sizeof *rest.cursors);
    rest.todo = memory_take_array(BOARD_TODO, sizeof *rest.todo);
    bool room = rest.cursors && rest.todo;
    if (room) {
        bool placed = gather_rest(t, file, &rest);
        uint64_t began = number_of(file, "began");
        began = began <= rest.sums.n ? began : 0;
        set_board(t, &rest, placed && same_place(t, file, &rest), began);
    }
    memory_give(rest.todo);
    memory_give(rest.cursors);
    return room ? DESCANT_OK
                : log_fail(&t->log, DESCANT_MEMORY, "no memory for the place in the data");
}

descant_status checkpoint_load_tables(struct trainer *t)
{
    const char *path = t->options->checkpoint;
    struct safetensors *file;
    size_t n;
    descant_status status = checkpoint_open(&file, path, true, &t->log);

    if (status != DESCANT_OK)
        return status;
    const struct tensor *tensors = model_tables(t->model, &n);
    status = check_meaning(t, file);
    if (status == DESCANT_OK)
        status = checkpoint_take(file, path, tensors, n, t->tables, &t->log);
    if (status == DESCANT_OK)
        status = take_state(t, file, "table-optimizer", t->table_state,
                            optimizer_row_floats(&t->optimizer, model_table_rows(t->model),
                                                 model_table_width(t->model)));
    if (status == DESCANT_OK)
        status = take_place(t, file);
    safetensors_close(file);
    return status;
}

descant_status checkpoint_load_outer(struct trainer *t)
{
    struct safetensors *file;
    descant_status status = checkpoint_open(&file, t->options->checkpoint, false, &t->log);

    if (status != DESCANT_OK)
        return status;
    size_t n = 0;
    const void *outer = safetensors_list(file, "descant.outer", SAFETENSORS_U8, &n);
    const char *sync = safetensors_text(file, "sync");
    bool same = outer && sync && strcmp(sync, t->options->sync) == 0;
    if (same && !t->options->plan_rests) {
        status = descant_pause(t->job);
        if (status == DESCANT_OK)
            status = descant_outer_load(t->job, outer, n);
        if (status == DESCANT_OK)
            status = descant_reload(t->job);
    } else if (!outer) {        /* written in haste, or without a job that could say it */
        log_say(&t->log, DESCANT_WARNING, "%s lacks the plan's outer state, which begins anew",
                t->options->checkpoint);
    } else if (!same) {
        log_say(&t->log, DESCANT_INFO, "the checkpoint is of plan %s: the outer state begins anew",
                sync ? sync : "?");
    }
    safetensors_close(file);
    return status;
}
