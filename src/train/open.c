/* SPDX-License-Identifier: MIT */
/* A trainer's opening, in the order of trainer.c's head: the job and its trainers' shared
 * memory, the files, the data's shape, the model, its first values, and the start with
 * all others.
 *
 * All trainers of a machine go through the same steps at the same time, in processes of
 * their own. What is done once for all of them, filling the tables, is done by the
 * trainer that comes to it first (board_begin), and the others wait. A step that fails
 * leaves the trainer half open, and trainer.c closes it as it is. */
#include "run/checkpoint.h"
#include "run/run.h"
#include "run/signals.h"
#include "train/alike.h"
#include "train/bsp.h"
#include "train/place.h"
#include "train/shards.h"
#include "train/start.h"
#include "train/tables_auto.h"

#include <math.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* EVEN_ODDS: examples, half of them positive, that set_intercept adds */
enum { TABLE_ROWS_AT_ONCE = 1 << 16, EVEN_ODDS = 200 };

/* True: the event is not logged here. The parent logs deaths, each trainer of several its
 * own bad values, and the run its end. */
static int on_event(void *user, const struct descant_event *event)
{
    struct trainer *t = user;
    if (others_hear(t, event))
        return 1;
    switch (event->kind) {
    case DESCANT_EVENT_JOINED:
    case DESCANT_EVENT_LEFT:
    case DESCANT_EVENT_FINISHED:
        return t->options->trainers > 0;
    case DESCANT_EVENT_BAD:
        return event->rank != t->rank || t->size == 1;
    case DESCANT_EVENT_LOST:
    case DESCANT_EVENT_UNFINISHED:
        if (event->rank != t->rank && t->options->trainers == 0)
            others_say_lost(t, event);
        return 1;
    case DESCANT_EVENT_NO_ROUND:
    case DESCANT_EVENT_BROKEN:
    case DESCANT_EVENT_TOLD:
        break;
    }
    return 0;
}

/* Opens the job and sets the trainer's place in it. The plan bsp has no rounds: its
 * gradients go through a segment that the trainers share (bsp.c), so its job is one of
 * the plan none. `opening` has the job's choices shown, in a trainer that a launcher has
 * started. */
static descant_status open_job(struct trainer *t, const char *address, int rank, int size)
{
    const struct train_options *o = t->options;
    struct descant_options options = descant_options_default();
    struct descant_members members;
    size_t n_shown;

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
    options.owned = o->tables != TABLES_REPLICATE;
    options.owned_shares = o->rows_shares;
    options.owned_moves = t->moves = owned_moves(o);
    options.owned_replica_s = t->moves ? o->rows_replica : 0;
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
    t->deals = t->hosts > 1 || o->over_tcp;
    if (t->deals)               /* figures of an earlier process are kept for this one */
        descant_shown(t->job, NULL, 0, &n_shown);
    if (t->local_rank < 0 || t->local_rank >= BOARD_SEATS)
        return log_fail(&t->log, DESCANT_BAD_RANK,
                        "rank %d: a machine has room for %d trainers", members.rank,
                        BOARD_SEATS);
    return others_settle(t);
}

/* The board is zero at first. */
static descant_status open_board(struct trainer *t)
{
    void *block;
    descant_status status =
        descant_share(t->job, "train.board", sizeof(struct board), &block);

    if (status != DESCANT_OK)
        return status;
    t->board = block;
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

/* The sizes of files are the board's once the first trainer has put them there: a file
 * may grow while the trainers start, and all must cut it into the same chunks. */
struct data_options trainer_data(struct trainer *t)
{
    struct data_options options = config_data(t->options, &t->paths, &t->log);
    options.shared = t->data_shared;
    options.bytes = board_done(&t->board->tables) ? t->board->bytes : NULL;
    options.known = t->board->known;
    if (piped_is(t)) {
        options.fetch = piped_fetch;
        options.fetch_of = t;
    }
    return options;
}

/* The shape and the format, which the model follows from. The feed opens the data again,
 * to read it. */
static descant_status look_at_data(struct trainer *t)
{
    struct data *data;
    descant_status status = path_list_init(&t->paths, t->options->data, &t->log);

    if (status == DESCANT_OK && t->options->eval)
        status = path_list_init(&t->eval_paths, t->options->eval, &t->log);
    if (status != DESCANT_OK)
        return status;
    const struct data_options options = trainer_data(t);
    status = data_open(&data, &options);
    if (status != DESCANT_OK)
        return status;
    t->shape = *data_shape(data);
    t->format = data_format(data);
    t->counted = data_chunks(data) != UINT64_MAX;
    data_close(data);
    return DESCANT_OK;
}

/* Else logs why the model that was asked for cannot be created, and which can. */
static descant_status create_model(struct trainer *t, const struct model_shape *shape)
{
    struct data_options data = trainer_data(t);
    char why[256], what[INPUTS_ROOM], fit[64] = "";
    struct model_shape other = *shape;
    struct model *model;
    descant_status status = model_create(&t->model, shape, NULL);

    if (status == DESCANT_OK)
        return status;
    data.format = t->format;
    snprintf(why, sizeof why, "%s", descant_last_error());
    if (status != DESCANT_INVALID)
        return log_fail(&t->log, status, "%s", why);
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

/* A trainer that joins under a plan that gathers has to make the steps of the others, so
 * it gets the optimizer's state from them, with the number of steps behind it. */
static descant_status share_state(struct trainer *t, size_t floats)
{
    const struct train_options *o = t->options;
    bool fixed = t->deals || o->watched || o->trainers > 0;    /* nobody can join */

    if (!o->plan_gathers || fixed)
        return DESCANT_OK;
    t->gather.steps = t->state + floats;
    return descant_state(t->job, "train.optimizer", t->state, floats + 1, true);
}

/* Everything with floats in it but the tables: the replica, in the job's memory; the
 * optimizer's state, in this process's own or, under the plan bsp, in what all trainers
 * share; a sum of gradients under a plan that gathers; and a copy for evaluations beside
 * training. The replica's name shows the other trainers the kind of the model, so that a
 * trainer of another model is refused as the job starts. */
static descant_status open_model(struct trainer *t)
{
    const struct train_options *o = t->options;
    struct model_shape shape;
    char name[ALIKE_ROOM];
    size_t floats;
    struct log run_log = t->log;
    descant_status status = config_shape(o, &t->shape, &shape, &t->log);

    if (status == DESCANT_OK)
        status = create_model(t, &shape);
    if (status == DESCANT_OK)       /* one more: an evaluation beside training */
        status = model_reserve(t->model, (int)o->workers + (o->eval != NULL), &t->log);
    if (status != DESCANT_OK)
        return status;
    run_log.rank = -1;
    if (o->workers > 1 && t->rank == 0 && nn_products_take_turns())
        log_say(&run_log, DESCANT_WARNING,
                "this OpenBLAS was built without threads and mixes up the products of "
                "several workers, so these take turns: install libopenblas0-pthread");
    t->n = model_floats(t->model);
    t->owned = owned_suits(t);
    t->n_tables = t->owned ? 0 : model_table_floats(t->model);
    t->optimizer = o->optimizer;
    floats = optimizer_floats(&t->optimizer, t->n);
    status = descant_owned_ranks(t->job, &t->owners);
    if (status != DESCANT_OK)
        return status;
    const struct alike what = {
        .model = train_model_names[o->model], .hosts = t->hosts > 1, .owned = t->owned,
        .bytes = path_list_bytes(&t->paths),
        .resumed = o->resume && (o->over_tcp || checkpoint_there(o->checkpoint))};
    alike_name(o, &what, name);
    t->w = descant_alloc(t->job, name, t->n);
    if (o->plan_controls) {
        status = bsp_open(t);
        if (status != DESCANT_OK)
            return status;
    } else {
        t->state = memory_take_array(floats + 1, sizeof(float));
    }
    t->gather.n = t->n + 1;
    t->gather.sum =
        o->plan_gathers ? memory_take_array(t->gather.n, sizeof(float)) : NULL;
    if (!t->w || !t->state || (o->plan_gathers && !t->gather.sum))
        return log_fail(&t->log, DESCANT_MEMORY, "no memory for %zu parameters", t->n);
    status = share_state(t, floats);
    if (status != DESCANT_OK)
        return status;
    if (!o->eval)
        return DESCANT_OK;
    if (o->eval_every && !t->bsp &&
        !(t->eval_w = memory_take_array(t->n, sizeof(float))))
        return log_fail(&t->log, DESCANT_MEMORY,
                        "no memory for a copy of the model to evaluate");
    struct data_options eval = config_held_out(o, &t->eval_paths, &t->log);
    return evaluate_look(t->model, &eval);
}

/* linear and fm begin with the share of positives in the first chunk, so that it need not
 * be learnt. Some examples of even odds are added, so that a small chunk counts for
 * little. Each trainer reads the chunk; data that can be read only once is not
 * touched. */
static void set_intercept(struct trainer *t)
{
    struct data_options options = config_data(t->options, &t->paths, NULL);
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

/* A run that goes on from no checkpoint, though one may be there, or should be. */
static void say_anew(struct trainer *t)
{
    const struct train_options *o = t->options;
    struct log run_log = t->log;
    char host[64] = "";

    if (!o->checkpoint || atomic_load(&t->board->resumed))
        return;
    gethostname(host, sizeof host - 1);
    if (o->resume && t->hosts > 1)
        log_say(&t->log, DESCANT_WARNING,
                "--resume: there is no %s on %s: it begins anew", o->checkpoint, host);
    run_log.rank = -1;
    if (t->host == 0 && checkpoint_there(o->checkpoint))
        checkpoint_say_replaced(o->checkpoint, &run_log);
}

/* Called once a machine. Decides for all its trainers whether the run is resumed, and
 * notes the files' sizes as they are now. Each host fills tables of its own, to the same
 * values. */
static descant_status fill_tables(struct trainer *t)
{
    const struct train_options *o = t->options;
    size_t rows = model_table_rows(t->model);
    bool there = o->checkpoint && checkpoint_there(o->checkpoint);

    atomic_store(&t->board->resumed, o->resume && there);
    for (size_t k = 0; k < t->paths.n; k++) {   /* of the files as they are now */
        struct file_mark mark = file_mark(t->paths.paths[k], UINT64_MAX);
        atomic_store(&t->board->bytes[k], mark.bytes);
        atomic_store(&t->board->hashes[k], mark.hash);
    }
    if (o->checkpoint)
        save_tidy(t);
    if (o->resume && there)
        return resume_tables(t);
    if (!o->over_tcp)               /* else a rank may find that it has come late */
        say_anew(t);
    for (size_t at = 0; at < rows && !t->owned; at += TABLE_ROWS_AT_ONCE) {
        size_t n = rows - at < TABLE_ROWS_AT_ONCE ? rows - at : TABLE_ROWS_AT_ONCE;
        model_init_tables(t->model, t->tables, at, n, (uint64_t)t->options->seed);
    }
    return DESCANT_OK;
}

/* `times`: between hosts the job keeps a second copy of all rows, those that the hosts
 * agree on. */
static descant_status share_tables(struct trainer *t)
{
    size_t rows = model_table_rows(t->model);
    int width = model_table_width(t->model);
    size_t state = optimizer_row_floats(&t->optimizer, 1, width);
    size_t times = t->hosts > 1 && !t->options->plan_rests ? 2 : 1;
    size_t floats = (t->n_tables + state * rows) * times;
    descant_status status = t->owned ? owned_declare(t) : DESCANT_OK;

    if (t->n_tables)
        status = descant_table(t->job, "train.tables", rows, (size_t)width, &t->tables);
    if (status == DESCANT_OK && t->n_tables && state)
        status = descant_table_state(t->job, t->tables, state, &t->table_state);
    if (status == DESCANT_MEMORY)   /* the fabric has said the amounts */
        log_fail(&t->log, DESCANT_MEMORY,
                 "the tables take %.2f GiB%s: %zu rows of %d floats; --rows and --width "
                 "make them smaller",
                 (double)floats * sizeof(float) / (double)(1 << 30),
                 state ? " with their optimizer's state" : "", rows, width);
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

/* By --resume a rank has those of the FILE that it found. */
static void advise_on_steps(struct trainer *t, descant_status status)
{
    const struct train_options *o = t->options;
    char steps[CONFIG_STEPS];

    config_steps(o, steps);
    const char *what = !o->resume ? "give all the same options"
                       : atomic_load(&t->board->resumed)
                           ? "these are of its FILE; others have another FILE, or none: "
                             "copy it to them, or give all the same options"
                           : "there is no FILE of --checkpoint here: copy it here, with "
                             "its shards, or give this rank the job's options";
    log_fail(&t->log, status, "all trainers of a job have the same optimizers and rates, "
             "and this one has %s: %s", steps, what);
}

/* The library knows no options of the command line. */
static void advise(struct trainer *t, descant_status status)
{
    bool grows = t->owned && model_shape(t->model)->grows;

    if (status == DESCANT_MISMATCH && t->options->tables == TABLES_AUTO &&
        alike_but_owners(descant_last_error()))
        log_fail(&t->log, status, "--tables auto goes by a host's free memory, cores and "
                 "workers, and has not chosen the same on all hosts: give all of them "
                 "--tables shard, or --tables replicate");
    if (status == DESCANT_MISMATCH && alike_but_steps(descant_last_error()))
        advise_on_steps(t, status);
    if (status == DESCANT_MISMATCH && t->options->over_tcp && t->n_tables &&
        strstr(descant_last_error(), ", first rows "))
        log_fail(&t->log, status, "copies of tables begin alike on all hosts, with the "
                 "same --seed or from the same checkpoint; a rank comes without --resume "
                 "to a job that has begun anew");
    if (status == DESCANT_UNSUPPORTED && strstr(descant_last_error(), "owned_moves: "))
        log_fail(&t->log, status, "the rows of tables cannot move here: give --rows-move "
                 "no");
    if (status == DESCANT_MEMORY && t->owned)
        log_fail(&t->log, status, "the rows that this rank owns do not fit: %s, or more "
                 "ranks, make them fewer, and --rows-shares gives this one less",
                 grows ? "a lower --table-memory" : "--rows and --width");
}

/* Under the plan bsp the segment is made before the job starts, since no worker may come
 * to a model that is not there. The number of steps goes with the optimizer's state,
 * where that is the job's. */
static descant_status start(struct trainer *t)
{
    struct descant_members members;
    float steps = (float)atomic_load(&t->steps);
    descant_status status = t->bsp ? bsp_meet(t->bsp) : DESCANT_OK;

    if (t->gather.steps)
        *t->gather.steps = steps;
    if (status == DESCANT_OK)
        status = descant_start(t->job);
    if (status == DESCANT_OK && t->gather.steps && *t->gather.steps != steps)
        atomic_store(&t->steps, (uint64_t)*t->gather.steps);
    if (status != DESCANT_OK)
        advise(t, status);
    if (status == DESCANT_OK)
        status = descant_members(t->job, &members);
    if (status == DESCANT_OK) {
        t->size = members.size;
        t->late = t->deals && members.late;
    }
    /* a rank that came late may own rows by now, and cannot just end */
    if (status == DESCANT_OK && t->moves && t->owned)
        signals_heed();
    return status;
}

static descant_status say_start(const struct trainer *t, enum start_state state,
                                uint64_t generation)
{
    const char *file = t->options->checkpoint ? t->options->checkpoint : "FILE";
    char host[64] = "";

    gethostname(host, sizeof host - 1);
    switch (state) {
    case START_NONE_THERE:
        return log_fail(&t->log, DESCANT_MISMATCH, "this rank goes on from %s, and "
                        "another rank has none, and has said so", file);
    case START_NONE_HERE:
        return log_fail(&t->log, DESCANT_MISMATCH, "--resume: there is no %s on %s, and "
                        "another rank goes on from one: copy it, with its shards, to all "
                        "hosts", file, host);
    case START_UNREAD:
        return log_fail(&t->log, DESCANT_ENDED, "another rank could not read its rows "
                        "from %s, and has said why", file);
    case START_OTHER:
        return log_fail(&t->log, DESCANT_MISMATCH,
                        "%s: this rank has found the checkpoint of generation %llu, and "
                        "another rank another one: copy the same FILE, with its shards, "
                        "to all hosts", file, (unsigned long long)generation);
    case START_GOOD:
        break;
    }
    return DESCANT_OK;
}

/* Before this run has agreed on a number. */
static uint64_t draw_run(void)
{
    const uint64_t parts[] = {run_number(), (uint64_t)time(NULL)};
    return fnv_add(FNV_BEGIN, parts, sizeof parts) >> 16;
}

/* The rank's part in the agreement of start.h, after which it knows the job's run.
 * `status`: of reading its rows, which no rank fetches before all have theirs. */
static descant_status agree(struct trainer *t, descant_status status, uint64_t generation)
{
    struct start mine = {.late = t->late, .failed = status != DESCANT_OK,
                         .resumed = atomic_load(&t->board->resumed),
                         .generation = generation};
    double values[START_VALUES];
    uint64_t made = 0;
    descant_status agreed = DESCANT_OK;

    mine.run = mine.resumed && t->run ? t->run : draw_run();
    if (t->late)
        agreed = descant_agreed(t->job, &made, values, START_VALUES);
    if (agreed == DESCANT_OK && !made) {
        start_offer(&mine, values);
        agreed = descant_agree_mean(t->job, values, START_VALUES);
    }
    if (status != DESCANT_OK || agreed != DESCANT_OK)
        return status != DESCANT_OK ? status : agreed;
    t->run = start_run(values);
    t->run_resumed = start_resumed(values);
    return say_start(t, start_judge(&mine, values), generation);
}

/* The ranks of the start read the rows of the checkpoint that they go on from, if they
 * do. */
static descant_status begin_run(struct trainer *t)
{
    uint64_t generation = 0;
    descant_status status = t->late ? DESCANT_OK : shards_read(t, &generation);

    if (t->deals)
        status = agree(t, status, generation);
    if (status == DESCANT_OK)
        status = shards_after(t);
    if (t->late)
        resume_forget(t);
    else if (status == DESCANT_OK && t->options->over_tcp)
        say_anew(t);
    return status;
}

static descant_status begin_deal(struct trainer *t)
{
    const struct data_options options = trainer_data(t);
    descant_status status = piped_begin(t);

    if (status == DESCANT_OK)
        status = resume_deal(t, &options);
    return status == DESCANT_OK ? piped_start(t) : status;
}

/* Each step needs those before it: locks take the run's number from the board; the model
 * follows from the data's shape, and the tables from the model; whether the replica is a
 * checkpoint's is known once the tables are filled; the job starts when all values are
 * there, those of the plan's outer state, too, but for rows that have owners, which only
 * a job that has started has; only after the start a rank knows that it has come late,
 * and takes what the job has in the place of all that it found; and only a job that has
 * started deals chunks. */
descant_status trainer_open(struct trainer *t, const char *address, int rank, int size)
{
    descant_status (*const steps[])(struct trainer *) = {
        open_board,   piped_check, lock_files,   look_at_data, open_model,
        share_tables, once_tables, fill_replica, shards_before, start,
        begin_run,    begin_deal};
    descant_status status = open_job(t, address, rank, size);

    for (size_t k = 0; k < sizeof steps / sizeof *steps && status == DESCANT_OK; k++)
        status = steps[k](t);
    return status;
}
