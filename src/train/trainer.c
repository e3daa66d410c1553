/* SPDX-License-Identifier: MIT */
/* A trainer from its opening to its summary. The order is what matters here:
 *
 *   open the job, share the board; look at the data for its shape; create the model; fill the
 *   replica (seeded, the same everywhere, or from the checkpoint); fill the tables, once a machine;
 *   start, after which all have the first trainer's replica; train; finish, after which all have
 *   the final model; the reporter evaluates it, writes the last checkpoint and the summary.
 *
 * A run that is stopped by a signal goes the same way, with less at the end. After a failure the
 * others are told through the board, and the last checkpoint stays as it is. Before it trains, a
 * trainer has nothing to save, and a signal just ends it.
 *
 * Who dies at the very end, when the others have no more to read, leaves chunks that nobody
 * trains beside the rounds any more: the reporter trains them after the finish, alone, on what is
 * then everybody's model. The others stay until the reporter is done, so that there is an heir. */
#include "train/trainer.h"

#include "train/bsp.h"
#include "train/evaluate.h"
#include "train/launch.h"
#include "train/place.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#define SECOND_SIGNAL_NS UINT64_C(1000000000)

enum { TABLE_ROWS_AT_ONCE = 1 << 16, EVEN_ODDS = 200 };

_Atomic int trainer_signal;
static _Atomic uint64_t signalled_ns;

/* A terminal and a parent that passes it on bring the same signal twice. */
void trainer_note(int signal)
{
    int none = 0;
    if (atomic_compare_exchange_strong(&trainer_signal, &none, signal))
        atomic_store(&signalled_ns, clock_now_ns());
    else if (clock_now_ns() - atomic_load(&signalled_ns) > SECOND_SIGNAL_NS)
        _exit(128 + signal);
}

static void heed_signals(void)
{
    struct sigaction action = {.sa_handler = trainer_note, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

/* Above the rank's byte, the line; numbers in it count for nothing. */
static uint64_t failure(int rank, const char *line)
{
    uint64_t hash = 14695981039346656037u;

    for (; *line; line++)
        if (!isdigit((unsigned char)*line))
            hash = (hash ^ (unsigned char)*line) * 1099511628211u;
    return hash << 8 | (uint64_t)(rank + 1);
}

/* Trainers that were forked write to one terminal: what all of them meet one says, as often as it
 * likes. */
static bool another_has_said(struct trainer *t, const char *line)
{
    uint64_t mine = failure(t->rank, line), said;

    for (int k = 0; k < TRAIN_FAILURES && t->options->trainers; k++) {
        said = 0;
        if (atomic_compare_exchange_strong(&t->shared->failures[k], &said, mine) || said == mine)
            return false;
        if (said >> 8 == mine >> 8)
            return true;
    }
    return false;
}

static void put_line(struct trainer *t, const char *line)
{
    if (strncmp(line, "rank 0: ", 8) == 0 && t->options->trainers == 1)
        line += 8;              /* nobody asks which trainer */
    if (t->is_terminal)
        shown_clear_line(t->err);
    fprintf(t->err, "descant: %s\n", line);
    fflush(t->err);
}

/* One that is to say it is not ended by the parent before it has: another one may have failed
 * after it, and left. */
static void to_log(void *user, enum descant_level level, const char *line)
{
    struct trainer *t = user;
    sigset_t end, old;
    if (level < DESCANT_WARNING && !(t->opening && strncmp(line, "rank 0: ", 8) == 0))
        return;
    sigemptyset(&end);
    sigaddset(&end, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &end, &old);
    if (level != DESCANT_ERROR || !another_has_said(t, line))
        put_line(t, line);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
}

/* True: no line of it. The parent says who dies, each trainer of several that its own values are bad, and
 * the run how it ends. */
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

/* What one host would do alone. */
static descant_status check_hosts(struct trainer *t)
{
    if (strcmp(t->options->data, "-") == 0)
        return log_fail(&t->log, DESCANT_UNSUPPORTED, "stdin cannot be cut between %d hosts: "
                        "--data needs files that all of them have", t->hosts);
    if (t->options->patience)
        return log_fail(&t->log, DESCANT_UNSUPPORTED, "--patience is for one host: this run has "
                        "%d, and the others would not hear of it", t->hosts);
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
    options.log = to_log;
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
        return log_fail(&t->log, DESCANT_BAD_RANK, "rank %d: training has room for %d a machine",
                        members.rank, BOARD_SEATS);
    return t->hosts > 1 ? check_hosts(t) : DESCANT_OK;
}

static descant_status open_board(struct trainer *t)
{
    void *block;
    descant_status status = descant_share(t->job, "train.board", sizeof(struct board), &block);

    if (status != DESCANT_OK)
        return status;
    t->board = block;
    atomic_store(&t->board->host, (uint32_t)t->host);
    atomic_store(&t->board->hosts, (uint32_t)t->hosts);
    return descant_share(t->job, "train.data", data_shared_bytes(), &t->data_shared);
}

/* Trainers that were forked have these locks from their parent; of several hosts the first has
 * them. */
static descant_status lock_files(struct trainer *t)
{
    const struct train_options *o = t->options;
    uint64_t none = 0, mine = clock_now_ns() ^ (uint64_t)getpid() << 40;
    char run[32];

    if (o->trainers || t->host > 0)
        return DESCANT_OK;
    if (atomic_compare_exchange_strong(&t->board->run, &none, mine))
        none = mine;
    snprintf(run, sizeof run, "%016llx", (unsigned long long)none);
    descant_status status = lock_take(&t->locks[0], o->checkpoint, run, true, &t->log);
    return status == DESCANT_OK ? lock_take(&t->locks[1], o->log, run, false, &t->log) : status;
}

static struct data_options training_data(struct trainer *t)
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
    options = training_data(t);
    status = data_open(&data, &options);
    if (status != DESCANT_OK)
        return status;
    t->shape = *data_shape(data);
    t->format = data_format(data);
    t->counted = data_chunks(data) != UINT64_MAX;
    data_close(data);
    return DESCANT_OK;
}

/* The dense segment's name says what all hosts must have alike: where they differ, both names are
 * shown. Machines join no job of several later, so there it may say how the run began. */
static void name_segment(const struct trainer *t, char *name, size_t room)
{
    bool resumed = t->options->resume && checkpoint_there(t->options);

    snprintf(name, room, "%s", train_model_names[t->options->model]);
    if (t->hosts > 1)
        snprintf(name, room, "%s%s,data=%llu", train_model_names[t->options->model],
                 resumed ? ",resumed" : "", (unsigned long long)path_list_bytes(&t->paths));
}

/* Why the model that was asked for cannot be created, and which can. */
static descant_status refuse_model(struct trainer *t, const struct model_shape *shape)
{
    struct data_options data = training_data(t);
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
    return status == DESCANT_OK ? status : log_fail(&t->log, status, "%s", descant_last_error());
}

static void say_turns(const struct trainer *t)
{
    struct log log = t->log;

    log.rank = -1;
    if (t->options->workers > 1 && t->rank == 0 && nn_products_take_turns())
        log_say(&log, DESCANT_WARNING, "this OpenBLAS was built without threads and mixes up the "
                "products of several workers, so these take turns: install libopenblas0-pthread");
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
    status = model_reserve(t->model, (int)t->options->workers + (t->options->eval != NULL), &t->log);
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
        t->state = memory_take_array(optimizer_floats(&t->optimizer, t->n), sizeof(float));
    }
    bool gathers = t->options->plan_gathers;
    t->gather.sum = gathers ? memory_take_array(t->n, sizeof(float)) : NULL;
    if (!t->w || !t->state || (gathers && !t->gather.sum))
        return log_fail(&t->log, DESCANT_MEMORY, "no memory for %zu parameters", t->n);
    if (!t->options->eval)
        return DESCANT_OK;
    if (t->options->eval_every && !t->bsp && !(t->eval_w = memory_take_array(t->n, sizeof(float))))
        return log_fail(&t->log, DESCANT_MEMORY, "no memory for a copy of the model to evaluate");
    struct data_options eval = train_data(t->options, &t->eval_paths, &t->log);
    eval.epochs = 1;
    return evaluate_look(t->model, &eval);
}

/* linear and fm begin with the share of positives in the first chunk, which need not be learnt, as
 * far as it is sure: as many examples of even odds stand against it. Each trainer reads the chunk; what
 * can be read only once is left alone. */
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
        model_set_intercept(t->model, t->w,
                            log(positive / ((double)block.examples.n + EVEN_ODDS - positive)));
    }
    block_fini(&block);
    data_close(data);
}

/* After once_tables: who filled them has decided. A trainer that joins a running job gets the
 * values of those who run, whatever it was told. */
static descant_status fill_replica(struct trainer *t)
{
    if (t->options->resume && atomic_load(&t->board->resumed))
        return checkpoint_load_model(t);
    model_init(t->model, t->w, (uint64_t)t->options->seed);
    set_intercept(t);
    return DESCANT_OK;
}

static void say_missing(const struct trainer *t)
{
    char host[64] = "";

    gethostname(host, sizeof host - 1);
    log_say(&t->log, DESCANT_WARNING, "--resume: there is no %s on %s: it begins anew",
            t->options->checkpoint, host);
}

/* A model of before that this run does not go on from: see checkpoint.c. */
static void say_replaced(const struct trainer *t)
{
    const char *path = t->options->checkpoint;
    struct log log = t->log;

    log.rank = -1;              /* it is the run's */
    if (path && !t->options->resume && checkpoint_there(t->options))
        log_say(&log, DESCANT_WARNING, "%s exists and will be replaced: it becomes %s.old; "
                "--resume would go on from it", path, path);
}

/* What the run reads, whatever becomes of the files meanwhile. */
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
    bool resumed = t->options->resume && checkpoint_there(t->options);

    atomic_store(&t->board->resumed, resumed);
    mark_files(t);
    if (t->options->checkpoint)
        checkpoint_tidy(t);
    if (resumed)
        return checkpoint_load_tables(t);
    if (t->options->resume && t->hosts > 1)
        say_missing(t);
    if (t->host == 0)
        say_replaced(t);
    else if (t->options->checkpoint)
        checkpoint_forget(t);
    for (size_t at = 0; at < rows; at += TABLE_ROWS_AT_ONCE) {
        size_t n = rows - at < TABLE_ROWS_AT_ONCE ? rows - at : TABLE_ROWS_AT_ONCE;
        model_init_tables(t->model, t->tables, at, n, (uint64_t)t->options->seed);
    }
    return DESCANT_OK;
}

/* Beside the amounts that the fabric has said: what they are made of. */
static void say_tables(const struct trainer *t, size_t state)
{
    size_t times = t->hosts > 1 && !t->options->plan_rests ? 2 : 1;
    size_t floats = (t->n_tables + state * model_table_rows(t->model)) * times;

    log_fail(&t->log, DESCANT_MEMORY, "the tables take %.2f GiB%s: %zu rows of %d floats; --rows "
             "and --width make them smaller", (double)floats * sizeof(float) / (double)(1 << 30),
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

/* Once a machine, by whoever comes first. */
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

/* The outer state is one for all of them: the first to start brings it. */
static descant_status once_outer(struct trainer *t)
{
    if (!t->options->resume || !atomic_load(&t->board->resumed) ||
        atomic_exchange(&t->board->outer_taken, 1))
        return DESCANT_OK;
    return checkpoint_load_outer(t);
}

static descant_status start(struct trainer *t)
{
    struct descant_members members;
    descant_status status = descant_start(t->job);

    if (status == DESCANT_OK && (status = descant_members(t->job, &members)) == DESCANT_OK)
        t->size = members.size;
    return status;
}

static descant_status open_all(struct trainer *t, const char *address, int rank, int size)
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

/* The first trainer that trains sets the clock, so that nobody's loading counts. */
static void set_clock(struct trainer *t)
{
    uint32_t no = 0;
    if (t->began_ns)
        return;
    t->began_ns = clock_now_ns();
    if (atomic_compare_exchange_strong(&t->board->clock_set, &no, 1))
        atomic_store(&t->board->started_ns, t->began_ns);
}

static descant_status train(struct trainer *t)
{
    struct feed_options options = {
        .data = training_data(t), .board = t->board, .seat = t->seat,
        .depth = (int)t->options->depth, .batch = (size_t)t->options->batch,
        .limit = (uint64_t)t->options->examples, .heirs_only = t->alone,
        .stopped = monitor_heed, .of = t, .log = &t->log,
    };
    const char *why;
    descant_status status = feed_start(&t->feed, &options);

    if (status == DESCANT_OK)       /* another file may have the name by now */
        status = evaluate_fits(t->model, feed_shape(t->feed), &options.data);
    if (status == DESCANT_OK) {
        set_clock(t);
        status = monitor_start(t);
    }
    if (status == DESCANT_OK)
        status = crew_work(t);
    if (t->began_ns)
        t->seconds = (double)(clock_now_ns() - t->began_ns) * 1e-9;
    monitor_publish(t);
    monitor_stop(t);
    if (status != DESCANT_OK)
        board_stop(t->board, STOP_FAILED, "trainer %d: %s", t->rank, descant_last_error());
    else
        status = feed_status(t->feed, &why);        /* which has stopped the run by itself */
    return status;
}

static enum descant_final which_final(const struct train_options *o)
{
    switch (o->final) {
    case FINAL_LOCAL:
        return DESCANT_FINAL_LOCAL;
    case FINAL_CENTRAL:
        return DESCANT_FINAL_CENTRAL;
    case FINAL_MEAN:
        return DESCANT_FINAL_MEAN;
    }
    return o->plan_rests ? DESCANT_FINAL_LOCAL : DESCANT_FINAL_MEAN;
}

static int exit_status(const struct trainer *t)
{
    enum board_stop stop = board_stopped(t->board);
    int signal = atomic_load(&t->board->signal);

    if (signal && stop != STOP_NAN && stop != STOP_FAILED)
        return 128 + signal;
    return stop == STOP_NOT || stop == STOP_EARLY ? 0 : 1;
}

static bool limit_reached(const struct trainer *t)
{
    uint64_t limit = (uint64_t)t->options->examples;
    return limit && atomic_load(&t->board->granted) >= limit;
}

/* What those left who died after everybody's last look. */
static void train_orphans(struct trainer *t)
{
    descant_status status = DESCANT_OK;

    t->alone = true;
    while (status == DESCANT_OK && !board_stopped(t->board) && !limit_reached(t) &&
           board_orphaned(t->board)) {
        log_say(&t->log, DESCANT_WARNING, "a trainer died at the end of the data: its chunks are "
                "trained by this one now");
        feed_stop(t->feed);
        t->feed = NULL;
        status = train(t);
    }
}

static void write_last(struct trainer *t)
{
    enum board_stop stop = board_stopped(t->board);

    if (stop == STOP_NOT && t->host == 0 && !board_sum(t->board).n) {
        log_fail(&t->log, DESCANT_INVALID, "there is no example in %s", t->options->data);
        board_stop(t->board, STOP_FAILED, "%s", descant_last_error());
        return;
    }
    if (!t->options->checkpoint || stop == STOP_NAN || stop == STOP_FAILED)
        return;
    t->kept = checkpoint_write(t) == DESCANT_OK;
    if (!t->kept) {
        log_say(&t->log, DESCANT_WARNING, "the last checkpoint failed");
        board_stop(t->board, STOP_FAILED, "the last checkpoint failed: %s", descant_last_error());
    }
}

/* After training: what one does for all, and who dies at it has an heir. A run that failed keeps
 * its last good checkpoint. */
static void end_run(struct trainer *t)
{
    if (!board_begin(&t->board->summary))
        return;
    train_orphans(t);
    run_log_last(t);
    write_last(t);
    summary_make(t, t->seconds);
    if (board_stopped(t->board) == STOP_NAN)
        fprintf(t->err, "descant: %s\n", board_why(t->board));
    fflush(t->out);
    board_end(&t->board->summary, true);
}

static int run(struct trainer *t)
{
    t->seat = board_sit(t->board, t->local_rank);
    heed_signals();
    descant_status status = t->bsp ? bsp_start(t->bsp) : DESCANT_OK;
    if (status == DESCANT_OK)
        train(t);
    bsp_finish(t->bsp);
    if (status == DESCANT_OK)
        status = checkpoint_keep_outer(t);
    if (status == DESCANT_OK)
        status = descant_finish(t->job, which_final(t->options));
    if (status != DESCANT_OK)
        board_stop(t->board, STOP_FAILED, "trainer %d: %s", t->rank, descant_last_error());
    end_run(t);
    feed_stop(t->feed);
    board_leave(t->seat);
    return exit_status(t);
}

int trainer_run(const struct train_options *options, const char *job, int rank, int size,
                FILE *out, FILE *err, struct train_shared *shared)
{
    struct trainer t = {
        .options = options, .out = out, .err = err, .shared = shared, .result = &shared->result,
        .rank = rank,
        .log = {.fn = to_log, .rank = -1},
    };
    int code = 1;

    t.log.user = &t;
    pthread_mutex_init(&t.gather.mutex, NULL);
    pthread_cond_init(&t.gather.moved, NULL);
    t.is_terminal = shown_columns(err) > 0;
    if (open_all(&t, job, rank, size) == DESCANT_OK) {
        atomic_fetch_add(&shared->started, 1);
        code = run(&t);
    } else if (t.board) {       /* for those who have met already */
        board_stop(t.board, STOP_FAILED, "trainer %d: %s", t.rank, descant_last_error());
    }
    if (t.bsp)
        t.state = NULL;         /* the job's memory */
    bsp_close(t.bsp);
    descant_close(t.job);
    lock_give(&t.locks[0]);
    lock_give(&t.locks[1]);
    model_destroy(t.model);
    memory_give(t.state);
    memory_give(t.gather.sum);
    memory_give(t.eval_w);
    memory_give(t.outer);
    path_list_fini(&t.paths);
    path_list_fini(&t.eval_paths);
    pthread_cond_destroy(&t.gather.moved);
    pthread_mutex_destroy(&t.gather.mutex);
    return code;
}
