/* SPDX-License-Identifier: MIT */
/* A checkpoint is one safetensors file: the dense tensors and the tables by their names,
 * then all that a run needs to go on: the optimizers' state, the plan's outer state, the
 * place in the data, the sums of progressive validation, every option as text.
 *
 *   1. It is written beside training: parameters are read while workers change them, as
 *      every Hogwild reader does. A model that is not finite is not written: the last
 *      good file stays.
 *   2. The place is the cursor, the data's end if it was met, and the chunks before the
 *      cursor that are not done: a resumed run does those first, so that nothing is left
 *      out, and at most those chunks' examples are trained twice; more epochs go on where
 *      the last one ended. It counts chunks; resume.c says when a run may go on from it.
 *      On one machine the board has the place. Of several hosts the first one writes the
 *      checkpoint: the chunks that are done are those whose steps an exchange has merged,
 *      of whichever host, and its own (descant_deal_known); the sums are of all hosts.
 *   3. safetensors_write replaces the file in one step and keeps the previous one beside
 *      it: as PATH.previous a model that this run has written or goes on from, as
 *      PATH.old the model of another run. */
#include "run/checkpoint.h"
#include "run/saved.h"
#include "train/bsp.h"
#include "train/place.h"
#include "train/shards.h"

#include <string.h>
#include <unistd.h>

/* beside the model's, with names that begin with descant: optimizer, table_optimizer,
 * place, files, outer, shards */
enum { RUN_TENSORS = 6 };
enum { MOST_LOOKS = 20 };       /* until a moment in which nothing is trained */

/* A checkpoint that is being written. */
struct saving {
    const struct place *place;
    bool best;                  /* FILE.best */
    struct shards shards;       /* where rows have owners */
    double window_s;            /* of them, and examples that were trained in it */
    uint64_t window_n;
};

/* A copy of the plan's outer state, which the caller gives back. *out is set only on
 * success. */
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

descant_status save_keep_outer(struct trainer *t)
{
    return t->options->checkpoint ? outer_of(t, &t->outer, &t->outer_bytes) : DESCANT_OK;
}

/* The runs that a place has room for: it has a chunk, at least, between two of them. */
static bool dealt_place(struct trainer *t, struct place *place)
{
    size_t room = BOARD_TODO + 1, n = 0;
    struct descant_items *runs = memory_take_array(room, sizeof *runs);
    bool known = runs && descant_deal_known(t->job, runs, room, &n) == DESCANT_OK;

    if (known)
        place_of_runs(place, runs, n < room ? n : room);
    memory_give(runs);
    return known;
}

/* Looks again if something was trained between place and sums, for that would be trained
 * twice; where there is always something, the place is the older of the two. */
struct place *save_place(struct trainer *t)
{
    struct place *place = memory_take(sizeof *place);
    uint64_t before;
    int looks = 0;

    if (!place || (t->deals && !dealt_place(t, place))) {
        memory_give(place);
        return NULL;
    }
    do {
        before = board_sum(t->board).n;
        if (!t->deals)
            place->n = PLACE_HEAD + board_held(t->board, &place->at[0],
                                               place->at + PLACE_HEAD, BOARD_TODO);
        place->at[1] = atomic_load_explicit(&t->board->end, memory_order_relaxed);
        place->sums = whole_sum(t);
    } while (!t->deals && place->sums.n != before && ++looks < MOST_LOOKS);
    for (size_t k = 0; k < t->paths.n; k++) {
        place->files[MARK * k] = atomic_load(&t->board->bytes[k]);
        place->files[MARK * k + 1] = atomic_load(&t->board->hashes[k]);
    }
    return place;
}

static void add_sums(struct contents *c, const char *name, const struct metrics *m,
                     double seconds)
{
    contents_text(c, name, "%llu %llu %llu %.17g %.17g %.3f", (unsigned long long)m->n,
                  (unsigned long long)m->positive, (unsigned long long)m->correct,
                  m->loss, m->predicted, seconds);
}

/* Texts: every option by its name, then how far the run is. resume.c reads "dealt"
 * (the place is of all hosts), "sums" with the seconds of training, "before" (the same of
 * the runs before this one), "began" (examples trained before this data), "steps" of the
 * optimizer and "seconds"; saved.c reads "inputs", the data's shape and format, and
 * "run", the run's number. A text that is added here must be optional there, since older
 * checkpoints lack it. */
static void add_texts(struct contents *c, struct trainer *t, const struct place *place,
                      uint64_t steps)
{
    const struct metrics before = cell_read(&t->board->before);
    struct told told = train_told(t->options);

    contents_told(c, &told);
    contents_text(c, "descant", "%s", descant_version());
    contents_text(c, "hosts", "%d", t->hosts);
    contents_text(c, "dealt", "%d", t->deals);
    contents_text(c, "size", "%d", t->size);
    if (t->run)
        contents_text(c, "run", "%llu", (unsigned long long)t->run);
    add_sums(c, "sums", &place->sums, whole_seconds(t));
    add_sums(c, "before", &before, atomic_load(&t->board->seconds_before));
    contents_text(c, "began", "%llu", (unsigned long long)atomic_load(&t->board->began));
    contents_text(c, "inputs", "%d %d %d %d %d", t->shape.n_dense, t->shape.n_fields,
             t->shape.n_classes, t->shape.plain_ids, (int)t->format);
    contents_text(c, "steps", "%llu", (unsigned long long)steps);
    contents_text(c, "seconds", "%.3f", whole_seconds(t));
}

/* The name of this host's own file beside that of the first one, which has the path that
 * was given. */
void host_file(const struct trainer *t, const char *path, char *own, size_t room)
{
    if (t->host == 0)
        snprintf(own, room, "%s", path);
    else
        snprintf(own, room, "%s.host%d", path, t->host);
}

void save_tidy(const struct trainer *t)
{
    char path[4096];
    host_file(t, t->options->checkpoint, path, sizeof path);
    safetensors_tidy(path);
    if (t->host > 0)
        return;
    resume_best_path(t, path, sizeof path);
    safetensors_tidy(path);
}

/* Whether FILE has the number of the job's run. One that an earlier version wrote has
 * none; it may be that which the job goes on from. */
static bool is_of_job(const struct trainer *t)
{
    struct safetensors *file;

    if (safetensors_open(&file, t->options->checkpoint, NULL) != DESCANT_OK)
        return false;
    uint64_t run = saved_run(file);
    safetensors_close(file);
    return run ? run == t->run : t->run_resumed;
}

/* Whether the file that is there is of this run, or of one that it goes on from. A host
 * that takes over from the first one, and a first host that comes again, may find what
 * that one has written. The best model so far is beside it then. The locks of the files
 * went with the first host: none are taken, lest it be refused when it comes back. */
static bool is_own(struct trainer *t)
{
    if (atomic_load(&t->board->kept) || atomic_load(&t->board->resumed))
        return true;
    if (!is_of_job(t))
        return false;
    if (!atomic_exchange(&t->board->kept, 1))
        resume_best(t);
    return true;
}

/* Replaces FILE. With the first checkpoint of a run that goes on from none, the best
 * model of the run before is put aside as FILE is. */
static descant_status put(struct trainer *t, const struct contents *c)
{
    const char *path = t->options->checkpoint;
    char best[4096 + 8], old[4096 + 16];
    bool own = is_own(t);

    if (!own && (t->host > 0 || t->late) && access(path, F_OK) == 0)
        checkpoint_say_replaced(path, &t->log);
    descant_status status = checkpoint_put(path, own, c, &t->log);
    if (status != DESCANT_OK)
        return status;
    resume_best_path(t, best, sizeof best);
    snprintf(old, sizeof old, "%s.old", best);
    if (!own)
        rename(best, old);
    atomic_store(&t->board->kept, 1);
    return DESCANT_OK;
}

/* Writes FILE.best, without FILE.best.previous. A model of another run becomes
 * FILE.best.old. */
static descant_status put_best(struct trainer *t, struct contents *c)
{
    char path[4096 + 8], old[4096 + 16];

    resume_best_path(t, path, sizeof path);
    snprintf(old, sizeof old, "%s.old", path);
    contents_text(c, "best", "%.17g %llu", atomic_load(&t->board->eval_best),
             (unsigned long long)atomic_load(&t->board->best_at));
    return safetensors_write_by(c->temporary, path,
                                atomic_load(&t->board->best_kept) ? NULL : old,
                                c->tensors, c->n_tensors, c->texts, c->n_texts, &t->log);
}

/* Collects all that a checkpoint has. The outer state is the one that was kept before
 * finish, else it is asked of the job. It is not asked for where there is no time, nor
 * for the best model. */
static descant_status write_all(struct trainer *t, const struct dense *dense,
                                struct contents *c, const struct saving *s)
{
    const struct place *place = s->place;
    size_t n = optimizer_floats(&t->optimizer, t->n), outer_bytes = t->outer_bytes;
    size_t rows = optimizer_row_floats(&t->optimizer, model_table_rows(t->model),
                                       model_table_width(t->model));
    char *outer = t->outer;
    bool kept = outer || (!t->in_haste && !s->best &&
                          outer_of(t, &outer, &outer_bytes) == DESCANT_OK);

    if (n)
        contents_add(c, "descant.optimizer", SAFETENSORS_F32, dense->state, n);
    if (rows && !t->owned)
        contents_add(c, "descant.table_optimizer", SAFETENSORS_F32, t->table_state, rows);
    contents_add(c, "descant.place", SAFETENSORS_U64, place->at, place->n);
    contents_add(c, "descant.files", SAFETENSORS_U64, place->files, MARK * t->paths.n);
    if (kept)
        contents_add(c, "descant.outer", SAFETENSORS_U8, outer, outer_bytes);
    const struct tensor *tensors = model_tensors(t->model, &n);
    contents_tensors(c, tensors, n, dense->w);
    tensors = model_tables(t->model, &n);
    if (t->owned)
        contents_shards(c, &s->shards);
    else
        contents_tensors(c, tensors, n, t->tables);
    add_texts(c, t, place, dense->steps);
    if (t->owned)
        contents_text(c, "window", "%.3f %llu", s->window_s,
                      (unsigned long long)s->window_n);
    if (t->owned && s->shards.moved)
        contents_text(c, "moved", "1");
    descant_status status = s->best ? put_best(t, c) : put(t, c);
    if (outer != t->outer)
        memory_give(outer);
    return status;
}

/* The last look before a file is replaced: a model with NaN or Inf is not written. A host
 * that takes over from the first one writes to its own FILE.hostN.tmp: that one may have
 * counted as dead, and be at FILE.tmp still. */
static descant_status write_from(struct trainer *t, const struct saving *s,
                                 const struct dense *dense)
{
    if (diverged_in(dense->w, t->n) || diverged_in(t->tables, t->n_tables)) {
        char where[96];
        diverged_where(t, where, sizeof where);
        return log_fail(&t->log, DESCANT_INVALID, "no checkpoint is written: %s", where);
    }
    size_t n_dense, n_tables;
    model_tensors(t->model, &n_dense);
    model_tables(t->model, &n_tables);
    struct contents *c = contents_create(n_dense + n_tables + RUN_TENSORS, &t->log);
    char temporary[4096 + 8];
    host_file(t, t->options->checkpoint, temporary, sizeof temporary - 8);
    strcat(temporary, ".tmp");
    if (c && t->host > 0)
        c->temporary = temporary;
    descant_status status = c ? write_all(t, dense, c, s) : DESCANT_MEMORY;
    contents_destroy(c);
    return status;
}

/* Where rows have owners, their shards are written first. The window: from the place in
 * the data up to the moment when the last shard is there. */
static descant_status begin_saving(struct trainer *t, struct saving *s)
{
    uint64_t began_ns = clock_now_ns();

    if (!s->place)
        return log_fail(&t->log, DESCANT_MEMORY, "no memory for a checkpoint");
    descant_status status = t->owned ? shards_save(t, &s->shards) : DESCANT_OK;
    uint64_t seen = whole_sum(t).n, before = s->place->sums.n;
    s->window_s = (double)(clock_now_ns() - began_ns) * 1e-9;
    s->window_n = seen > before ? seen - before : 0;
    return status;
}

/* What is told of a failure is its own reason, not what tidying has met since. */
static descant_status end_saving(struct trainer *t, descant_status status)
{
    char why[LOG_LINE];

    snprintf(why, sizeof why, "%s", descant_last_error());
    shards_saved(t);
    return status == DESCANT_OK ? DESCANT_OK : log_fail(NULL, status, "%s", why);
}

bool save_waits(const struct trainer *t)
{
    return t->owned && t->moves && others_leave(t);
}

/* The place is taken before the model, so that the model has all chunks that count as
 * done. */
descant_status save_checkpoint(struct trainer *t)
{
    if (!others_is_first(t))
        return DESCANT_OK;
    struct place *place = save_place(t);
    struct saving s = {.place = place};
    descant_status status = begin_saving(t, &s);
    if (status == DESCANT_OK) {
        struct dense dense = bsp_copy(t);
        status = write_from(t, &s, &dense);
    }
    memory_give(place);
    return end_saving(t, status);
}

/* The tables and the optimizer's state have gone on since the evaluation began, as they
 * had while it read them. FILE is first, so that FILE.best is never beside another
 * run's. */
descant_status save_best(struct trainer *t, struct place *place, const float *w)
{
    struct saving s = {.place = place, .best = true};
    descant_status status = is_own(t) ? DESCANT_OK : save_checkpoint(t);
    if (status == DESCANT_OK)
        status = begin_saving(t, &s);
    if (status == DESCANT_OK) {
        struct dense dense = bsp_copy(t);
        dense.w = w;
        status = write_from(t, &s, &dense);
    }
    return end_saving(t, status);
}
