/* SPDX-License-Identifier: MIT */
/* A trainer from its opening to its summary, in this order:
 *
 *   open the job, share the board; look at the data for its shape; create the model; fill
 *   the replica (seeded, the same everywhere, or from the checkpoint); fill the tables,
 *   once a machine; start, after which all have the first trainer's replica; train;
 *   finish, after which all have the final model; the reporter evaluates it, writes the
 *   last checkpoint and the summary.
 *
 * A run that is stopped by a signal goes the same way, with less at the end. A trainer
 * that leaves alone (others.c) writes its part first, while its shadow, if the plan has
 * one, still serves the others, and makes a last exchange in place of finish. After a
 * failure the others are told through the board, and the last checkpoint stays as it is.
 * Before it trains, a trainer has nothing to save, and a signal just ends it.
 *
 * A trainer that dies at the very end, when the others have no more to read, leaves
 * chunks that are no longer trained beside the rounds: the reporter, of several hosts
 * that of the first one, trains them after the finish, alone, on the model that is then
 * common to all. The others of its machine stay until the reporter is done, so that it
 * has an heir. */
#include "train/trainer.h"

#include "run/run.h"
#include "run/signals.h"
#include "train/bsp.h"
#include "train/cut.h"
#include "train/cuts.h"
#include "train/shards.h"

#include <ctype.h>
#include <math.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#define LEAVES_S 26.0           /* after the signal: a spot notice leaves 30 s, and the
                                   close takes some of them */
#define LAST_EXCHANGE_S 5.0     /* at least, however long the checkpoint took, */
#define ROWS_S 300.0            /* and where it has rows to give: if they go with it, the
                                   job ends */
#define LOOK_NS UINT64_C(10000000)

/* Forked trainers write to one terminal: a failure that all of them meet is logged by the
 * first alone. A failure is a hash of its line without the numbers; the low byte is its
 * rank. */
static bool another_has_said(struct trainer *t, const char *line)
{
    uint64_t hash = FNV_BEGIN, said;

    for (const char *at = line; *at; at++)
        if (!isdigit((unsigned char)*at))
            hash = fnv_add(hash, at, 1);
    uint64_t mine = hash << 8 | (uint64_t)(t->rank + 1);
    for (int k = 0; k < TRAIN_FAILURES && t->options->trainers; k++) {
        said = 0;
        if (atomic_compare_exchange_strong(&t->shared->failures[k], &said, mine) ||
            said == mine)
            return false;
        if (said >> 8 == mine >> 8)
            return true;
    }
    return false;
}

/* The parent does not end the trainer before the line is logged: another one may have
 * failed after it, and left. */
static void to_log(void *user, enum descant_level level, const char *line)
{
    struct trainer *t = user;
    sigset_t end, old;
    bool first = strncmp(line, "rank 0: ", 8) == 0;
    if (t->declares || (level < DESCANT_WARNING && !(t->opening && first)))
        return;
    sigemptyset(&end);
    sigaddset(&end, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &end, &old);
    if (level != DESCANT_ERROR || !another_has_said(t, line))
        /* no rank for a single trainer */
        progress_say(&t->progress, first && t->options->trainers == 1 ? line + 8 : line);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
}

static bool is_over(void *of)
{
    const struct trainer *t = of;
    return trainer_heed(of) || board_stopped(t->board) != STOP_NOT;
}

static descant_status train(struct trainer *t)
{
    t->claims = (struct claims){.board = t->board,
                                .seat = t->seat,
                                .rank = t->rank,
                                .deals = t->deals ? t->job : NULL,
                                .limit = (uint64_t)t->options->examples,
                                .heirs_only = t->alone};
    struct feed_options options = {
        .data = trainer_data(t),
        .claims = claims_begin(&t->claims),
        .counts = &t->seat->read,
        .depth = t->owned ? FEED_BLOCKS : (int)t->options->depth,
        .batch = (size_t)t->options->batch,
        .feeds = t->size,
        /* with the state of an optimizer that has made steps: the others', too */
        .goes_on = t->alone || atomic_load(&t->board->resumed) ||
                   atomic_load(&t->steps) > 0,
        .stopped = is_over,
        .of = t,
        .log = &t->log,
    };
    const char *why;
    uint32_t no = 0;
    descant_status status = feed_start(&t->feed, &options);

    if (status == DESCANT_OK)       /* another file may have the name by now */
        status = evaluate_fits(t->model, feed_shape(t->feed), &options.data);
    if (status == DESCANT_OK && !t->began_ns) {
        t->began_ns = clock_now_ns();
        /* the first trainer that trains sets the clock, so that no trainer's loading
         * counts */
        if (atomic_compare_exchange_strong(&t->board->clock_set, &no, 1))
            atomic_store(&t->board->started_ns, t->began_ns);
    }
    if (status == DESCANT_OK)
        status = monitor_start(t);
    if (status == DESCANT_OK)
        status = crew_work(t);
    if (t->began_ns)
        t->seconds = (double)(clock_now_ns() - t->began_ns) * 1e-9;
    if (t->deals && t->feed)    /* what is left of its chunks is for the others */
        feed_end(t->feed);
    monitor_publish(t);
    monitor_stop(t);
    t->ended = true;
    whole_show(t);
    if (status != DESCANT_OK)
        board_stop(t->board, STOP_FAILED, "trainer %d: %s", t->rank,
                   descant_last_error());
    else
        /* which has stopped the run by itself */
        status = feed_status(t->feed, &why);
    return status;
}

/* Chunks and units of the limit that the job would deal are looked at, and given back for
 * the feed to take. */
static bool orphaned(struct trainer *t)
{
    struct descant_items units = {0};
    uint64_t item = DESCANT_NO_ITEM, limit = (uint64_t)t->options->examples;

    if (!t->deals)
        return board_orphaned(t->board) &&
               !(limit && atomic_load(&t->board->granted) >= limit);
    if (limit && (descant_deal_spend(t->job, 0, 1, &units) != DESCANT_OK ||
                  units.from == DESCANT_NO_ITEM ||
                  descant_deal_spent(t->job, &units, false) != DESCANT_OK))
        return false;
    if (descant_deal_take(t->job, 0, &item) != DESCANT_OK || item == DESCANT_NO_ITEM)
        return false;
    return descant_deal_back(t->job, item) == DESCANT_OK;
}

/* Trains chunks of trainers that died after the last look of all others. */
static void train_orphans(struct trainer *t)
{
    descant_status status = DESCANT_OK;

    t->alone = true;
    if (t->deals && !board_stopped(t->board) && others_is_first(t))
        status = descant_deal_rest(t->job);
    while (status == DESCANT_OK && !board_stopped(t->board) && others_is_first(t) &&
           orphaned(t)) {
        log_say(&t->log, DESCANT_WARNING, "%s: its chunks are trained by this one now",
                t->deals ? "a trainer ended or died with a part of the data"
                         : "a trainer died at the end of the data");
        feed_stop(t->feed);
        t->feed = NULL;
        status = train(t);
    }
}

static void write_last(struct trainer *t)
{
    enum board_stop stop = board_stopped(t->board);

    if (stop == STOP_NOT && t->host == 0 && !whole_sum(t).n) {
        log_fail(&t->log, DESCANT_INVALID, "there is no example in %s", t->options->data);
        board_stop(t->board, STOP_FAILED, "%s", descant_last_error());
        return;
    }
    if (!t->options->checkpoint || stop == STOP_NAN || stop == STOP_FAILED)
        return;
    t->kept = save_checkpoint(t) == DESCANT_OK;
    t->bad |= !t->kept;
    if (!t->kept) {
        log_say(&t->log, DESCANT_WARNING, "the last checkpoint failed");
        board_stop(t->board, STOP_FAILED, "the last checkpoint failed: %s",
                   descant_last_error());
    }
}

/* The lowest trainer alive, which the other hosts tell their figures. */
static bool begin_end(struct trainer *t)
{
    struct board_once *end = &t->board->summary;

    while (t->hosts > 1 && !board_done(end) && !board_reports(t->board, t->seat))
        clock_sleep_until(clock_now_ns() + LOOK_NS);
    return board_begin(end);
}

/* After training: work that one trainer does for all, with an heir should it die. A run
 * that failed keeps its last good checkpoint. */
static void end_run(struct trainer *t)
{
    if (!begin_end(t))
        return;
    train_orphans(t);
    train_log_last(t);
    write_last(t);
    summary_make(t);
    if (board_stopped(t->board) == STOP_NAN)
        fprintf(t->err, "descant: %s\n", board_why(t->board));
    fflush(t->out);
    board_end(&t->board->summary, true);
}

/* Gradients are with the others once their step is made. */
static uint64_t steps_given_up(struct trainer *t)
{
    struct descant_stats s;

    if (t->options->plan_gathers || descant_stats(t->job, &s) != DESCANT_OK)
        return 0;
    return s.steps > s.merged ? s.steps - s.merged : 0;
}

/* Of the rows that have owners. */
static int own_parts(struct trainer *t)
{
    int parts[CUT_RANKS] = {0};

    return t->owned && t->rank < CUT_RANKS &&
                   descant_owned_parts(t->job, CUT_RANKS, parts, NULL) == DESCANT_OK
               ? parts[t->rank] : 0;
}

/* Its part of the summary and the checkpoint is written by now. A shadow, if the plan has
 * one, was at work meanwhile; else the others have waited. A last exchange that failed
 * has been logged; the signal leaves no time for more. */
static void leave(struct trainer *t)
{
    double passed_s = (double)(clock_now_ns() - atomic_load(&t->told_ns)) * 1e-9;
    double least_s = own_parts(t) ? ROWS_S : LAST_EXCHANGE_S;
    descant_status status = descant_part(t->job, fmax(LEAVES_S - passed_s, least_s));
    int parts = own_parts(t);
    if (!parts)                         /* which another rank may still wait for */
        cuts_leave(t);
    unsigned long long lost = status == DESCANT_OK ? 0 : steps_given_up(t);
    char host[64] = "", what[64] = "last exchange";

    gethostname(host, sizeof host - 1);
    if (!lost && t->n_tables)
        snprintf(what, sizeof what, "last rows");
    else if (lost)
        snprintf(what, sizeof what, "last %llu step%s", lost, lost == 1 ? "" : "s");
    fprintf(t->err, "descant: rank %d (%s) has left: SIGTERM; ", t->rank, host);
    if (status == DESCANT_OK)
        fputs("its steps are with the others, which go on\n", t->err);
    else if (parts)
        fprintf(t->err, "%d of %d parts of the rows of tables go with it, and the job "
                "ends\n", parts, (int)CUT_PARTS);
    else
        fprintf(t->err, "the others go on without its %s\n", what);
}

/* How the run ends where a signal has stopped it. A launcher should not take it for a
 * failure that all trainers end in good order because one was told to. */
static enum term_end end_by_signal(struct trainer *t)
{
    bool all = t->term == TERM_ENDS_ALL && atomic_load(&t->board->signal) == SIGTERM;
    bool leaves = t->term == TERM_LEAVES && atomic_load(&t->told_ns);

    return all || leaves ? others_end(t) : TERM_END_SIGNAL;
}

/* A trainer that was told when nothing was left to train, and has finished with the
 * others, has ended in good order. A first host that is stopped trains no orphans: it
 * looks whether there are some. */
static enum term_end end_with_others(struct trainer *t, bool finished)
{
    if (!finished || !atomic_load(&t->told_ns) ||
        (others_is_first(t) &&
         (descant_deal_rest(t->job) != DESCANT_OK || orphaned(t))))
        return TERM_END_SIGNAL;
    fprintf(t->err, "descant: rank %d ends with the others: SIGTERM came when all data "
            "was dealt\n", t->rank);
    return TERM_END_ALL;
}

static int run(struct trainer *t)
{
    static const enum descant_final finals[] = {[FINAL_LOCAL] = DESCANT_FINAL_LOCAL,
                                                [FINAL_MEAN] = DESCANT_FINAL_MEAN,
                                                [FINAL_CENTRAL] = DESCANT_FINAL_CENTRAL};
    int final = t->options->final != FINAL_AUTO ? t->options->final
                : t->options->plan_rests        ? FINAL_LOCAL
                                                : FINAL_MEAN;

    t->seat_was_empty = atomic_load(&t->board->seats[t->local_rank].state) == SEAT_EMPTY;
    t->seat = board_sit(t->board, t->local_rank);
    signals_heed();
    descant_status status = shards_begin(t);
    if (status == DESCANT_OK && t->bsp)
        status = bsp_start(t->bsp);
    if (status == DESCANT_OK)
        train(t);
    bsp_finish(t->bsp);
    if (status == DESCANT_OK)
        status = save_keep_outer(t);
    if (status == DESCANT_OK)           /* others may wait for a cut of this rank's */
        status = cuts_status(t);
    bool stopped = status == DESCANT_OK && board_stopped(t->board) == STOP_SIGNAL;
    enum term_end end = stopped ? end_by_signal(t) : TERM_END_SIGNAL;
    bool leaves = end == TERM_END_LEFT;
    if (status == DESCANT_OK && !leaves) {
        monitor_wait(t);
        status = descant_finish(t->job, finals[final]);
        piped_end(t);
        monitor_stop(t);
    }
    t->bad = status != DESCANT_OK;
    if (t->bad)
        board_stop(t->board, STOP_FAILED, "trainer %d: %s", t->rank,
                   descant_last_error());
    bool finished = !t->bad && !leaves;
    if (finished)
        cuts_finished(t);
    end_run(t);
    if (!leaves)
        cuts_end(t, finished);
    piped_end(t);
    if (leaves)
        leave(t);
    feed_stop(t->feed);
    board_leave(t->seat);
    enum board_stop stop = board_stopped(t->board);
    int signal = atomic_load(&t->board->signal);
    if (stop == STOP_NAN || stop == STOP_FAILED)
        return RUN_FAILED;
    if (signal && t->term == TERM_LEAVES && !leaves)
        end = end_with_others(t, finished && (!stopped || end == TERM_END_ALL));
    else if (signal && !stopped && t->term == TERM_ENDS_ALL)    /* it came late */
        end = end_by_signal(t);
    if (signal)
        return end == TERM_END_SIGNAL ? 128 + signal : t->bad ? RUN_FAILED : RUN_DONE;
    return stop == STOP_NOT || stop == STOP_EARLY ? RUN_DONE : RUN_FAILED;
}

int trainer_run(const struct train_options *options, const char *job, int rank, int size,
                FILE *out, FILE *err, struct train_shared *shared)
{
    struct trainer t = {
        .options = options,
        .out = out,
        .err = err,
        .shared = shared,
        .result = &shared->result,
        .rank = rank,
        .log = {.fn = to_log, .rank = -1},
    };
    int code = RUN_FAILED;

    t.log.user = &t;
    pthread_mutex_init(&t.gather.mutex, NULL);
    pthread_cond_init(&t.gather.moved, NULL);
    progress_open(&t.progress, err, options->quiet);
    descant_status opened = trainer_open(&t, job, rank, size);
    if (opened == DESCANT_OK) {
        atomic_fetch_add(&shared->started, 1);
        code = run(&t);
    } else if (t.board) {       /* for trainers that have met already */
        board_stop(t.board, STOP_FAILED, "trainer %d: %s", t.rank, descant_last_error());
    }
    if (opened == DESCANT_INVALID && t.deals)   /* what another start makes no better: a
                                                   launcher is not to try again */
        code = RUN_BAD_USE;
    if (t.bsp)
        t.state = NULL;         /* the job's memory */
    bsp_close(t.bsp);
    piped_fini(&t);
    cuts_fini(&t);
    descant_close(t.job);
    lock_give_files(t.locks);
    model_destroy(t.model);
    memory_give(t.state);
    memory_give(t.gather.sum);
    memory_give(t.eval_w);
    memory_give(t.outer);
    whole_fini(&t.whole);
    path_list_fini(&t.paths);
    path_list_fini(&t.eval_paths);
    pthread_cond_destroy(&t.gather.moved);
    pthread_mutex_destroy(&t.gather.mutex);
    return code;
}
