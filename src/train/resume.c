/* SPDX-License-Identifier: MIT */
/* A run that goes on from its checkpoint (save.c): the model and the optimizers' state,
 * the plan's outer state, and the place in the data, on any number of hosts, each of
 * which reads the checkpoint. The place counts chunks, so it is only taken over where the
 * options that make a chunk are the same, and where the files are those that were read,
 * which may have grown (place.c); else the data begins anew. */
#include "run/checkpoint.h"
#include "run/saved.h"
#include "train/place.h"
#include "train/trainer.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The file's text `name` as a number; 0: there is none. */
static uint64_t number_of(const struct safetensors *file, const char *name)
{
    const char *text = safetensors_text(file, name);
    return text ? strtoull(text, NULL, 10) : 0;
}

/* Checks settings that the tensors' sizes do not show, and with which the same numbers
 * would mean something else. */
static descant_status check_meaning(const struct trainer *t, const struct checkpoint *c)
{
    static const char *const names[] = {"model", "rows", "width", "bottom", "top"};
    const char *path = c->path, *was, *is;
    const struct data_shape *have = &t->shape;
    struct data_shape had;
    int format = DATA_AUTO;

    for (size_t k = 0; k < sizeof names / sizeof *names; k++)
        if (config_matters(t->options, names[k]) &&
            !checkpoint_same(c, names[k], &was, &is))
            return log_fail(&t->log, DESCANT_CORRUPT,
                            "%s is of another model: --%s was %s, now it is %s; leave "
                            "it out to go on with this model", path, names[k], was, is);
    for (int k = 0; k < (t->options->model == MODEL_MLP ? 1 : 2); k++) {
        const char *name = k ? "table-optimizer" : "optimizer";
        if (!checkpoint_same(c, name, &was, &is))
            return log_fail(&t->log, DESCANT_CORRUPT,
                            "%s is of another optimizer: --%s was %s, not %s; leave it "
                            "out to go on with its state", path, name, was, is);
    }
    if (!saved_inputs(c->file, &had, &format))
        return DESCANT_OK;
    if (had.n_dense != have->n_dense || had.n_fields != have->n_fields)
        return log_fail(&t->log, DESCANT_CORRUPT,
                        "%s is of other data: it had %d dense feature%s and %d field%s, "
                        "now there are %d and %d",
                        path, had.n_dense, had.n_dense == 1 ? "" : "s", had.n_fields,
                        had.n_fields == 1 ? "" : "s", have->n_dense, have->n_fields);
    if (had.n_fields && had.plain_ids != have->plain_ids)
        return log_fail(
            &t->log, DESCANT_CORRUPT,
            "%s is of other data: its ids were %s, now they are %s (--plain-ids)", path,
            had.plain_ids ? "plain" : "hashed", had.plain_ids ? "hashed" : "plain");
    return DESCANT_OK;
}

struct checkpoint resume_checkpoint(const struct trainer *t, struct told *told)
{
    struct checkpoint c = {.path = t->options->checkpoint, .told = told, .log = &t->log};

    *told = train_told(t->options);
    c.owner = -1;
    for (int k = 0; t->owned && t->deals && k < t->owners; k++) {
        bool owns = train_share(t->options->rows_shares, k) > 0;
        if (owns && k == t->rank)
            c.owner = c.owners;
        c.owners += owns;
    }
    return c;
}

/* The start gives the first trainer's to all, which is also the one that says what is
 * missing. */
static descant_status take_outer(struct trainer *t, const struct checkpoint *c)
{
    size_t n = 0;
    const void *outer = safetensors_list(c->file, "descant.outer", SAFETENSORS_U8, &n);
    const char *sync = safetensors_text(c->file, "sync");
    bool same = sync && strcmp(sync, t->options->sync) == 0;

    if (outer && same)
        return t->options->plan_rests ? DESCANT_OK : descant_outer_load(t->job, outer, n);
    if (!outer && t->rank == 0)         /* written in haste, or without a job that could
                                           give it */
        log_say(&t->log, DESCANT_WARNING,
                "%s lacks the plan's outer state, which begins anew",
                t->options->checkpoint);
    else if (t->rank == 0)
        log_say(&t->log, DESCANT_INFO,
                "the checkpoint is of plan %s: the outer state begins anew",
                sync ? sync : "?");
    return DESCANT_OK;
}

/* Each trainer reads the dense part for itself, once the tables are filled. The
 * checkpoint is opened silently: resume_tables has logged whether FILE.previous stands
 * for FILE. */
descant_status resume_model(struct trainer *t)
{
    size_t n, floats = optimizer_floats(&t->optimizer, t->n);
    struct told told;
    struct checkpoint c = resume_checkpoint(t, &told);
    descant_status status = checkpoint_open(&c, false);

    if (status != DESCANT_OK)
        return status;
    const struct tensor *tensors = model_tensors(t->model, &n);
    status = checkpoint_take(&c, tensors, n, t->w);
    if (status == DESCANT_OK && floats)
        status = checkpoint_state(&c, "optimizer", t->state, floats);
    t->run = saved_run(c.file);
    if (safetensors_text(c.file, "steps"))
        atomic_store(&t->steps, number_of(c.file, "steps"));
    if (status == DESCANT_OK)
        status = take_outer(t, &c);
    checkpoint_close(&c);
    return status;
}

/* seconds: 0 where the text has none. */
static struct metrics sums_of(const struct safetensors *file, const char *name,
                              double *seconds)
{
    const char *text = safetensors_text(file, name);
    struct metrics m = {0};

    *seconds = 0;
    if (text && sscanf(text, "%" SCNu64 " %" SCNu64 " %" SCNu64 " %lf %lf %lf", &m.n,
                       &m.positive, &m.correct, &m.loss, &m.predicted, seconds) >= 5)
        return m;
    return (struct metrics){0};
}

/* The place and the sums. False: the file has no place that can be right; its sums are
 * set all the same. */
static bool take_file(struct rest *rest, const struct safetensors *file)
{
    size_t n = 0;
    const uint64_t *at = safetensors_list(file, "descant.place", SAFETENSORS_U64, &n);
    double seconds;

    rest->sums = sums_of(file, "sums", &seconds);
    if (!at || n < PLACE_HEAD || at[0] >= DATA_REST)
        return false;
    rest->end = at[1];
    /* claims have gone by an end that was met */
    rest->next = at[1] && at[1] - 1 < at[0] ? at[1] - 1 : at[0];
    for (size_t k = PLACE_HEAD; k < n; k++)
        if (at[k] < DATA_REST)
            rest_add(rest, at[k]);
    return true;
}

/* --- the data of before --- */

/* The bytes of each file, as they were and as they are. A file that has only grown is the
 * same. False: the files are others; `why` says which. */
static bool same_files(struct trainer *t, const uint64_t *was, size_t n,
                       struct growth *growth, char *why, size_t room)
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
            growth[k].whole =
                t->counted ? whole_lines(t->paths.paths[k], growth[k].was) : 0;
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

/* Whether the data is that of the file, or has that and more: rest is the place in it. A
 * pipe's data goes on, unless the pipe had come to its end. */
static bool same_data(struct trainer *t, const struct checkpoint *c, struct rest *rest,
                      char *why, size_t room)
{
    size_t n = 0;
    const uint64_t *files =
        safetensors_list(c->file, "descant.files", SAFETENSORS_U64, &n);
    const char *was, *is;
    bool named = checkpoint_same(c, "data", &was, &is), pipes = false;
    struct growth growth[BOARD_FILES];

    snprintf(why, room, "--data was %s, now it is %s", was ? was : "?", is);
    for (size_t k = 0; k < t->paths.n; k++)
        pipes |= atomic_load(&t->board->bytes[k]) == UINT64_MAX;
    if (pipes || !files)
        return named && !(pipes && rest->end);
    char what[512];
    bool same = same_files(t, files, n, growth, what, sizeof what);
    if (same && grow(t, c->file, rest, growth))
        return true;
    if (same)
        snprintf(why, room,
                 "its files have grown, and its place in them cannot be found");
    else if (named)
        snprintf(why, room, "%s", what);
    return false;
}

/* The place counts chunks, so it is lost where chunks are cut otherwise. */
static bool same_place(struct trainer *t, const struct checkpoint *c, struct rest *rest)
{
    const char *was, *is, *name = NULL;
    struct data_shape had;
    int format = (int)t->format;
    char why[1200], part[1200] = "";
    uint64_t limit = number_of(c->file, "examples");
    /* whether all was trained that was to be */
    bool over = (rest->end && rest->next + 1 >= rest->end && !rest->n_todo) ||
                (limit && rest->sums.n - number_of(c->file, "began") >= limit);

    saved_inputs(c->file, &had, &format);
    if (format != (int)t->format)
        name = "format";
    else if (t->format != DATA_CACHE && !checkpoint_same(c, "chunk", &was, &is))
        name = "chunk";
    else if (t->format == DATA_IDX && !checkpoint_same(c, "seed", &was, &is))
        name = "seed";
    if (name && checkpoint_same(c, name, &was, &is))
        snprintf(why, sizeof why, "its format was %s, now it is %s",
                 data_format_names[format], data_format_names[t->format]);
    else if (name)
        snprintf(why, sizeof why, "--%s was %s, now it is %s", name, was, is);
    else if (same_data(t, c, rest, why, sizeof why))
        return true;
    checkpoint_same(c, "data", &was, &is);
    if (!name && !over)
        snprintf(part, sizeof part, ", and of --data %s only a part was trained",
                 was ? was : "?");
    log_say(
        &t->log, DESCANT_WARNING,
        "%s has its place in other data: %s; the model goes on, the data begins anew%s",
        t->options->checkpoint, why, part);
    return false;
}

void resume_best_path(const struct trainer *t, char *path, size_t room)
{
    snprintf(path, room, "%s.best", t->options->checkpoint);
}

/* The start of --patience: the evaluation of FILE.best, if it was of the same held-out
 * set. */
static void take_best(struct trainer *t, const struct checkpoint *of)
{
    char path[4096 + 8];
    const char *best, *was, *is;
    struct checkpoint c = *of;
    unsigned long long at;
    double loss;

    resume_best_path(t, path, sizeof path);
    if (!trainer_keeps_best(t) || safetensors_open(&c.file, path, NULL) != DESCANT_OK)
        return;
    best = safetensors_text(c.file, "best");
    if (best && sscanf(best, "%lf %llu", &loss, &at) == 2 && isfinite(loss) &&
        checkpoint_same(&c, "eval", &was, &is)) {
        atomic_store(&t->board->eval_best, loss);
        atomic_store(&t->board->best_at, at);
        atomic_store(&t->board->evals, 1);
        atomic_store(&t->board->best_kept, 1);
    }
    checkpoint_close(&c);
}

void resume_best(struct trainer *t)
{
    struct told told;
    const struct checkpoint c = resume_checkpoint(t, &told);

    take_best(t, &c);
}

/* Puts the place onto the board. Values are stored, not added, for a trainer that filled
 * the board before may have died. */
static void set_board(struct trainer *t, const struct rest *rest, bool placed,
                      uint64_t began)
{
    struct board *board = t->board;

    cell_set(&board->before, &rest->sums);
    cell_set(&board->logged, &rest->sums);
    atomic_store(&board->eval_at, rest->sums.n);
    atomic_store(&board->began, placed ? began : rest->sums.n);
    atomic_store(&board->granted, placed ? rest->sums.n - began : 0);
    if (!placed)
        return;
    atomic_store(&board->next, rest->next);
    for (size_t k = 0; k < rest->n_todo; k++)
        atomic_store(&board->todo[k], rest->todo[k]);
    atomic_store(&board->n_todo, (uint32_t)rest->n_todo);
}

/* A checkpoint of several hosts that an earlier version wrote has the place of one of
 * them alone. */
static bool is_whole(const struct trainer *t, const struct checkpoint *c)
{
    bool whole = number_of(c->file, "hosts") < 2 || number_of(c->file, "dealt");

    if (!whole)
        log_say(&t->log, DESCANT_WARNING,
                "%s has the place in the data of one host alone, since an earlier "
                "version of Descant wrote it; the model goes on, the data begins anew",
                t->options->checkpoint);
    return whole;
}

/* A place that no longer fits the data is no failure: the model goes on, and the data
 * begins anew. */
static descant_status take_place(struct trainer *t, const struct checkpoint *c)
{
    const char *seconds = safetensors_text(c->file, "seconds");
    struct rest rest = {.todo = memory_take_array(BOARD_TODO, sizeof *rest.todo)};

    if (!rest.todo)
        return log_fail(&t->log, DESCANT_MEMORY, "no memory for the place in the data");
    if (seconds)
        atomic_store(&t->board->seconds_before, strtod(seconds, NULL));
    bool placed = take_file(&rest, c->file);
    uint64_t began = number_of(c->file, "began");
    began = began <= rest.sums.n ? began : 0;
    placed = placed && is_whole(t, c) && same_place(t, c, &rest);
    set_board(t, &rest, placed, began);
    if (placed)
        take_best(t, c);
    memory_give(rest.todo);
    return DESCANT_OK;
}

/* The sums and the seconds of the runs before the job's, by a FILE of the job. */
static struct metrics before_of(const struct trainer *t, double *seconds)
{
    struct metrics before = {0};
    struct safetensors *file;

    *seconds = 0;
    if (!t->options->resume || !t->options->checkpoint ||
        safetensors_open(&file, t->options->checkpoint, NULL) != DESCANT_OK)
        return before;
    if (t->run && saved_run(file) == t->run)
        before = sums_of(file, "before", seconds);
    safetensors_close(file);
    return before;
}

/* The start has brought the replica and the plan's outer state, the rows are with their
 * owners, chunks are dealt, and the job's figures come from the others. The optimizer's
 * state of the dense part is each rank's own. The seconds and examples of earlier runs
 * stay, for this rank may come to write the checkpoint. */
void resume_forget(struct trainer *t)
{
    struct board *board = t->board;
    double seconds;
    const struct metrics before = before_of(t, &seconds);

    if (!t->bsp)
        memset(t->state, 0, optimizer_floats(&t->optimizer, t->n) * sizeof *t->state);
    atomic_store(&t->steps, 0);
    atomic_store(&board->resumed, 0);
    cell_set(&board->before, &before);
    cell_set(&board->logged, &before);
    atomic_store(&board->seconds_before, seconds);
    atomic_store(&board->eval_at, before.n);
    atomic_store(&board->granted, 0);
    atomic_store(&board->next, 0);
    atomic_store(&board->n_todo, 0);
    for (size_t k = 0; k < t->paths.n; k++)
        atomic_store(&board->known[k], 0);
}

/* Examples of an earlier run have the lowest numbers. */
static descant_status deal_limit(struct trainer *t)
{
    uint64_t before = cell_read(&t->board->before).n;
    uint64_t began = atomic_load(&t->board->began);
    uint64_t limit = (uint64_t)t->options->examples;

    return limit ? descant_deal_limit(t->job, before > began ? before - began : 0, limit,
                                      (uint64_t)t->options->batch)
                 : DESCANT_OK;
}

/* Where the job deals chunks it hears from each trainer which are done. The end of the
 * data is told as soon as it is known, lest chunks behind it be dealt. A pipe begins with
 * chunk 0, whatever an earlier one had. */
descant_status resume_deal(struct trainer *t, const struct data_options *options)
{
    struct board *board = t->board;
    size_t n = atomic_load_explicit(&board->n_todo, memory_order_acquire), n_runs = 0;
    struct data *data = NULL;

    if (!t->deals)
        return DESCANT_OK;
    uint64_t *todo = memory_take_array(n + 1, sizeof *todo);
    struct descant_items *runs = memory_take_array(n + 1, sizeof *runs);
    for (size_t k = 0; k < n && todo; k++)
        todo[k] = atomic_load(&board->todo[k]);
    if (todo && runs && !piped_is(t))
        n_runs = place_runs(atomic_load(&board->next), todo, n, runs);
    descant_status status =
        todo && runs ? descant_deal_begin(t->job, runs, n_runs)
                     : log_fail(&t->log, DESCANT_MEMORY, "no memory for the place");
    if (status == DESCANT_OK)
        status = deal_limit(t);
    if (status == DESCANT_OK && t->counted)
        status = data_open(&data, options);
    if (status == DESCANT_OK && data) {
        board_ended(board, data_chunks(data));
        status = descant_deal_end(t->job, data_chunks(data));
    }
    data_close(data);
    memory_give(runs);
    memory_give(todo);
    return status;
}

/* In the one trainer that fills the tables, while the others wait. A failure leaves
 * tables that are filled in part; the next trainer that tries fills them anew. */
descant_status resume_tables(struct trainer *t)
{
    struct told told;
    struct checkpoint c = resume_checkpoint(t, &told);
    descant_status status = checkpoint_open(&c, true);

    if (status != DESCANT_OK)
        return status;
    status = check_meaning(t, &c);
    if (status == DESCANT_OK && !t->owned)
        status = checkpoint_tables(&c, t->model, &t->optimizer, t->tables,
                                   t->table_state);
    if (status == DESCANT_OK)
        status = take_place(t, &c);
    checkpoint_close(&c);
    return status;
}
