/* SPDX-License-Identifier: MIT */
/* A trainer's opening, in the order of trainer.c's head: the job and its trainers' shared
 * memory, the files, the data's shape, the model, its first values, and the start with
 * all others. */
#include "run/checkpoint.h"
#include "run/run.h"
#include "train/bsp.h"
#include "train/place.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

enum { TABLE_ROWS_AT_ONCE = 1 << 16, EVEN_ODDS = 200 };

/* True: the event is not logged here. The parent logs deaths, each trainer of several its
 * own bad values, and the run its end. */
static int on_event(void *user, const struct descant_event *event)
{
    const struct trainer *t = user;
    switch (event->kind) {
    case DESCANT_EVENT_JOINED:
    case DESCANT_EVENT_LEFT:
    case DESCANT_EVENT_LOST:
        return t->options->trainers > 0;
    case DESCANT_EVENT_BAD:
        return event->rank != t->rank || t->size == 1;
    case DESCANT_EVENT_UNFINISHED:
        return event->rank == t->rank || t->options->trainers > 0;
    case DESCANT_EVENT_NO_ROUND:
    case DESCANT_EVENT_BROKEN:
        break;
    }
    return 0;
}

/* Refuses options that only a run on one host can have. */
static descant_status check_hosts(struct trainer *t)
{
    if (strcmp(t->options->data, "-") == 0)
        return log_fail(&t->log, DESCANT_UNSUPPORTED,
                        "stdin cannot be cut between %d hosts: --data needs files that "
                        "all of them have",
                        t->hosts);
    if (t->options->patience)
        return log_fail(&t->log, DESCANT_UNSUPPORTED,
                        "--patience is for one host: this run has %d, and the others "
                        "would not hear of it",
                        t->hosts);
    return DESCANT_OK;
}

static descant_status open_job(struct trainer *t, const char *address, int rank, int size)
{
    const struct train_options *o = t->options;
    struct descant_options options = descant_options_default();
    struct descant_members members;

    options.job = address;
    options.plan = o->plan_controls ? "none" : o->sync;
    options.rank = rank;
    options.size = size;
    options.workers = (int)o->workers;
    options.sync_cpu = o->sync_cpu;
    options.sync_rate = o->sync_rate;
    options.start_s = o->start_s;
    options.log = t->log.fn;
    options.log_user = options.event_user = t;
    options.on_event = on_event;
    t->opening = o->trainers == 0 && !o->quiet;
    descant_status status = descant_open(&t->job, &options);
    t->opening = false;
    if (status == DESCANT_OK)
        status = descant_members(t->job, &members);
    if (status != DESCANT_OK)
        return status;
    t->rank = t->log.rank = members.rank;
    t->result->rank = members.rank;
    t->host = members.host;
    t->hosts = members.hosts;
    t->local_rank = members.local_rank;
    if (t->local_rank < 0 || t->local_rank >= BOARD_SEATS)
        return log_fail(&t->log, DESCANT_BAD_RANK,
                        "rank %d: training has room for %d a machine", members.rank,
                        BOARD_SEATS);
    return t->hosts > 1 ? check_hosts(t) : DESCANT_OK;
}

static descant_status open_board(struct trainer *t)
{
    void *block;
    descant_status status =
        descant_share(t->job, "train.board", sizeof(struct board), &block);

    if (status != DESCANT_OK)
        return status;
    t->board = block;
    atomic_store(&t->board->host, (uint32_t)(t->host % t->hosts));
    atomic_store(&t->board->hosts, (uint32_t)t->hosts);
    return descant_share(t->job, "train.data", data_shared_bytes(), &t->data_shared);
}

/* Forked trainers have these locks from their parent; of several hosts the first holds
 * them. */
static descant_status lock_files(struct trainer *t)
{
    const struct train_options *o = t->options;
    uint64_t none = 0, mine = run_number();
    char run[32];

    if (o->trainers || t->host > 0)
        return DESCANT_OK;
    if (atomic_compare_exchange_strong(&t->board->run, &none, mine))
        none = mine;
    snprintf(run, sizeof run, "%016llx", (unsigned long long)none);
    return lock_take_files(t->locks, o->checkpoint, o->log, run, &t->log);
}

struct data_options trainer_data(struct trainer *t)
{
    struct data_options options = train_data(t->options, &t->paths, &t->log);
    options.shared = t->data_shared;
    options.bytes = board_done(&t->board->tables) ? t->board->bytes : NULL;
    options.known = t->board->known;
    return options;
}

static descant_status look_at_data(struct trainer *t)
{
    struct data_options options;
    struct data *data;
    descant_status status = path_list_init(&t->paths, t->options->data, &t->log);

    if (status == DESCANT_OK && t->options->eval)
        status = path_list_init(&t->eval_paths, t->options->eval, &t->log);
    if (status != DESCANT_OK)
        return status;
    options = trainer_data(t);
    status = data_open(&data, &options);
    if (status != DESCANT_OK)
        return status;
    t->shape = *data_shape(data);
    t->format = data_format(data);
    t->counted = data_chunks(data) != UINT64_MAX;
    data_close(data);
    return DESCANT_OK;
}

/* The dense segment's name has all that must be the same on all hosts: where they differ,
 * both names are shown. No machine joins a job of several machines later, so there the
 * name may also say how the run began. */
static void name_segment(const struct trainer *t, char *name, size_t room)
{
    bool resumed = t->options->resume && checkpoint_there(t->options->checkpoint);

    snprintf(name, room, "%s", train_model_names[t->options->model]);
    if (t->hosts > 1)
        snprintf(name, room, "%s%s,data=%llu", train_model_names[t->options->model],
                 resumed ? ",resumed" : "",
                 (unsigned long long)path_list_bytes(&t->paths));
}

/* Says why the model that was asked for cannot be created, and which can. */
static descant_status refuse_model(struct trainer *t, const struct model_shape *shape)
{
    struct data_options data = trainer_data(t);
    char why[256], what[INPUTS_ROOM], fit[64] = "";
    struct model_shape other = *shape;
    struct model *model;

    data.format = t->format;
    snprintf(why, sizeof why, "%s", descant_last_error());
    for (int k = MODEL_LINEAR; k <= MODEL_MLP; k++) {
        other.kind = (enum model_kind)k;
        if (model_create(&model, &other, NULL) != DESCANT_OK)
            continue;
        snprintf(fit + strlen(fit), sizeof fit - strlen(fit), "%s%s", *fit ? ", " : "",
                 train_model_names[k]);
        model_destroy(model);
    }
    if (!*fit)                  /* it is not for the model's kind */
        return log_fail(&t->log, DESCANT_INVALID, "%s", why);
    return log_fail(&t->log, DESCANT_INVALID, "%s; %s; --model can be %s", why,
                    inputs_text(&data, &t->shape, what, sizeof what), fit);
}

static descant_status create_model(struct trainer *t, const struct model_shape *shape)
{
    descant_status status = model_create(&t->model, shape, NULL);

    if (status == DESCANT_INVALID)
        return refuse_model(t, shape);
    return status == DESCANT_OK ? status
                                : log_fail(&t->log, status, "%s", descant_last_error());
}

static void say_turns(const struct trainer *t)
{
    struct log log = t->log;

    log.rank = -1;
    if (t->options->workers > 1 && t->rank == 0 && nn_products_take_turns())
        log_say(&log, DESCANT_WARNING,
                "this OpenBLAS was built without threads and mixes up the products of "
                "several workers, so these take turns: install libopenblas0-pthread");
}

static descant_status open_model(struct trainer *t)
{
    struct model_shape shape;
    char name[96];
    descant_status status = train_shape(t->options, &t->shape, &shape, &t->log);

    if (status == DESCANT_OK)
        status = create_model(t, &shape);
    if (status != DESCANT_OK)
        return status;
    /* one more: an evaluation beside training */
    status = model_reserve(
        t->model, (int)t->options->workers + (t->options->eval != NULL), &t->log);
    if (status != DESCANT_OK)
        return status;
    say_turns(t);
    t->n = model_floats(t->model);
    t->n_tables = model_table_floats(t->model);
    t->optimizer = config_optimizer(t->options);
    name_segment(t, name, sizeof name);
    t->w = descant_alloc(t->job, name, t->n);
    if (t->options->plan_controls) {
        status = bsp_open(t);
        if (status != DESCANT_OK)
            return status;
    } else {
        t->state =
            memory_take_array(optimizer_floats(&t->optimizer, t->n), sizeof(float));
    }
    bool gathers = t->options->plan_gathers;
    t->gather.sum = gathers ? memory_take_array(t->n, sizeof(float)) : NULL;
    if (!t->w || !t->state || (gathers && !t->gather.sum))
        return log_fail(&t->log, DESCANT_MEMORY, "no memory for %zu parameters", t->n);
    if (!t->options->eval)
        return DESCANT_OK;
    if (t->options->eval_every && !t->bsp &&
        !(t->eval_w = memory_take_array(t->n, sizeof(float))))
        return log_fail(&t->log, DESCANT_MEMORY,
                        "no memory for a copy of the model to evaluate");
    struct data_options eval = held_out_data(t->options, &t->eval_paths, &t->log);
    return evaluate_look(t->model, &eval);
}

/* linear and fm begin with the share of positives in the first chunk, so that it need not
 * be learnt. Some examples of even odds are added, so that a small chunk counts for
 * little. Each trainer reads the chunk; data that can be read only once is not
 * touched. */
static void set_intercept(struct trainer *t)
{
    struct data_options options = train_data(t->options, &t->paths, NULL);
    struct block block = {0};
    struct data *data;
    double positive = EVEN_ODDS / 2;

    if (t->options->model != MODEL_LINEAR && t->options->model != MODEL_FM)
        return;
    for (size_t k = 0; k < t->paths.n; k++)
        if (!input_is_file(t->paths.paths[k]))
            return;
    if (model_outputs(t->model) > 1 || data_open(&data, &options) != DESCANT_OK)
        return;
    if (data_read(data, 0, &block) == DATA_BLOCK) {
        for (size_t i = 0; i < block.examples.n; i++)
            positive += block.examples.labels[i] > 0.5f;
        model_set_intercept(
            t->model, t->w,
            log(positive / ((double)block.examples.n + EVEN_ODDS - positive)));
    }
    block_fini(&block);
    data_close(data);
}

/* After once_tables: the trainer that filled the tables has decided whether the run was
 * resumed. A trainer that joins a running job gets the values of the running ones,
 * whatever its options. */
static descant_status fill_replica(struct trainer *t)
{
    if (t->options->resume && atomic_load(&t->board->resumed))
        return resume_model(t);
    model_init(t->model, t->w, (uint64_t)t->options->seed);
    set_intercept(t);
    return DESCANT_OK;
}

static void say_missing(const struct trainer *t)
{
    char host[64] = "";

    gethostname(host, sizeof host - 1);
    log_say(&t->log, DESCANT_WARNING,
            "--resume: there is no %s on %s: the run begins anew",
            t->options->checkpoint, host);
}

/* Warns of a model in FILE that this run does not go on from (run/checkpoint.h). */
static void say_replaced(const struct trainer *t)
{
    const char *path = t->options->checkpoint;
    struct log log = t->log;

    log.rank = -1;              /* it is the run's */
    if (path && !t->options->resume && checkpoint_there(t->options->checkpoint))
        checkpoint_say_replaced(path, &log);
}

/* Marks the files as they are when the run begins, whatever becomes of them meanwhile. */
static void mark_files(struct trainer *t)
{
    for (size_t k = 0; k < t->paths.n; k++) {
        struct file_mark mark = file_mark(t->paths.paths[k], UINT64_MAX);
        atomic_store(&t->board->bytes[k], mark.bytes);
        atomic_store(&t->board->hashes[k], mark.hash);
    }
}

static descant_status fill_tables(struct trainer *t)
{
    size_t rows = model_table_rows(t->model);
    bool resumed = t->options->resume && checkpoint_there(t->options->checkpoint);

    atomic_store(&t->board->resumed, resumed);
    mark_files(t);
    if (t->options->checkpoint)
        save_tidy(t);
    if (resumed)
        return resume_tables(t);
    if (t->options->resume && t->hosts > 1)
        say_missing(t);
    if (t->host == 0)
        say_replaced(t);
    else if (t->options->checkpoint)
        save_forget(t);
    for (size_t at = 0; at < rows; at += TABLE_ROWS_AT_ONCE) {
        size_t n = rows - at < TABLE_ROWS_AT_ONCE ? rows - at : TABLE_ROWS_AT_ONCE;
        model_init_tables(t->model, t->tables, at, n, (uint64_t)t->options->seed);
    }
    return DESCANT_OK;
}

/* Logs the parts of the amounts that the fabric has logged. */
static void say_tables(const struct trainer *t, size_t state)
{
    size_t times = t->hosts > 1 && !t->options->plan_rests ? 2 : 1;
    size_t floats = (t->n_tables + state * model_table_rows(t->model)) * times;

    log_fail(&t->log, DESCANT_MEMORY,
             "the tables take %.2f GiB%s: %zu rows of %d floats; --rows and --width make "
             "them smaller",
             (double)floats * sizeof(float) / (double)(1 << 30),
             state ? " with their optimizer's state" : "", model_table_rows(t->model),
             model_table_width(t->model));
}

static descant_status share_tables(struct trainer *t)
{
    size_t state = optimizer_row_floats(&t->optimizer, 1, model_table_width(t->model));
    descant_status status = DESCANT_OK;

    if (t->n_tables)
        status = descant_table(t->job, "train.tables", model_table_rows(t->model),
                               (size_t)model_table_width(t->model), &t->tables);
    if (status == DESCANT_OK && t->n_tables && state)
        status = descant_table_state(t->job, t->tables, state, &t->table_state);
    if (status == DESCANT_MEMORY)
        say_tables(t, state);
    return status;
}

/* Fills the tables once a machine, in the first trainer that comes. */
static descant_status once_tables(struct trainer *t)
{
    if (!board_begin(&t->board->tables))
        return DESCANT_OK;
    descant_status status = fill_tables(t);
    if (status == DESCANT_OK)
        atomic_store(&t->board->started_ns, clock_now_ns());
    board_end(&t->board->tables, status == DESCANT_OK);
    return status;
}

/* All trainers have one outer state: the first one that starts brings it. */
static descant_status once_outer(struct trainer *t)
{
    if (!t->options->resume || !atomic_load(&t->board->resumed) ||
        atomic_exchange(&t->board->outer_taken, 1))
        return DESCANT_OK;
    return resume_outer(t);
}

static descant_status start(struct trainer *t)
{
    struct descant_members members;
    descant_status status = descant_start(t->job);

    if (status == DESCANT_OK &&
        (status = descant_members(t->job, &members)) == DESCANT_OK)
        t->size = members.size;
    return status;
}

descant_status trainer_open(struct trainer *t, const char *address, int rank, int size)
{
    descant_status status = open_job(t, address, rank, size);

    if (status == DESCANT_OK)
        status = open_board(t);
    if (status == DESCANT_OK)
        status = lock_files(t);
    if (status == DESCANT_OK)
        status = look_at_data(t);
    if (status == DESCANT_OK)
        status = open_model(t);
    if (status == DESCANT_OK)
        status = share_tables(t);
    if (status == DESCANT_OK)
        status = once_tables(t);
    if (status == DESCANT_OK)
        status = fill_replica(t);
    if (status == DESCANT_OK && t->bsp)
        status = bsp_meet(t->bsp);
    if (status == DESCANT_OK)
        status = start(t);
    if (status == DESCANT_OK)
        status = once_outer(t);
    return status;
}
