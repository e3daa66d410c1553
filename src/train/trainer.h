/* SPDX-License-Identifier: MIT */
/* One trainer: a process with its replica, its worker threads and its part of the
 * reporting. */
#ifndef TRAINER_H
#define TRAINER_H

#include "data/paths.h"
#include "run/ahead.h"
#include "run/evaluate.h"
#include "run/feed.h"
#include "run/lock.h"
#include "run/log.h"
#include "run/progress.h"
#include "train/board.h"
#include "train/claims.h"
#include "train/tables_auto.h"
#include "train/whole.h"

#include <pthread.h>
#include <string.h>

/* Over all trainers of the machine, since the start; means over the seats that are
 * taken. */
struct train_figures {
    double gap, stall_s, age_s, distance, shadow_cpu_s, rounds;
    double rows_stall_s;                            /* waiting for rows of other ranks */
    double stall_share, rows_stall_share;           /* of the workers' time */
    double shadow_share;                            /* of a core */
    double exchange_s;                              /* 99 of 100 took less */
    double merges, merged_steps;                    /* of all seats together, */
    double missed, own_steps;   /* and the rounds that they missed, the steps of theirs
                                   that results have */
    double rows_sent, rows_waiting, rows_age_s;     /* of the one that exchanges them */
    uint64_t lines, bad, steps;
    int trainers;
    /* of the plan bsp, all of it; given: examples of the gradients */
    uint64_t supersteps, gradients, given, lag, lag_most, stale, not_finite, lost;
    double control_cpu_s;
};

/* A run's result, for the caller. */
struct train_result {
    struct metrics seen, own;       /* progressive validation; own: without what a run
                                       that was resumed had seen */
    double seconds;                 /* of training */
    struct train_figures figures;         /* as it ended */
    struct held_out held_out;       /* NaN: none */
    int stop;                       /* enum board_stop */
    int rank;                       /* one that has opened the job; -1: none has */
    double memory_mb;
};

enum { TRAIN_FAILURES = 16 };

/* A set of ranks; a rank of 4096 or more is in no set. Any thread. */
enum { RANK_BITS = 4096 };
struct rank_bits {
    _Atomic uint64_t word[RANK_BITS / 64];
};

/* The meaning of SIGTERM to one trainer. */
enum term {
    TERM_ENDS_RUN,      /* all trainers of this machine end; there are no others */
    TERM_LEAVES,        /* this one leaves */
    TERM_ENDS_ALL       /* all end, on all machines */
};
/* How a run ends after it: as after any signal, by itself, or with all others. */
enum term_end { TERM_END_SIGNAL, TERM_END_LEFT, TERM_END_ALL };

/* Memory that forked trainers share with their parent. */
struct train_shared {
    struct train_result result;     /* written by the reporter at the end */
    _Atomic uint32_t started;       /* trainers that have met all others, and begin to
                                       train */
    /* hashes of failures that were logged (trainer.c); set once, from the first on */
    _Atomic uint64_t failures[TRAIN_FAILURES];
};

/* The sum of one trainer's workers' gradients under `allreduce`. */
struct gather {
    pthread_mutex_t mutex;          /* guards all below */
    pthread_cond_t moved;
    int present, arrived;
    uint64_t generation;
    size_t n;
    float *sum;                     /* (n) of the gradients of those that have arrived;
                                       the last float is the sum of their rates */
    float *steps;                   /* how many were made, to 24 bits: behind the
                                       optimizer's state, in its segment. NULL: that state
                                       is this trainer's own. Beside the mutex's holder,
                                       descant_start and descant_finish write it, while no
                                       worker is at work */
    descant_status status;
};

struct bsp;

/* Stdin of rank 0, which feeds all hosts (piped.c). */
struct piped {
    /* in rank 0: */
    struct data_cutter *cutter;         /* the thread's, once it is started */
    char *item;                 /* (item_room) as cutter */
    size_t item_room;
    pthread_t thread;
    bool started;
    _Atomic bool stop;
    /* the feed's thread's: */
    char *text;                 /* (text_room) */
    size_t text_room;
    uint64_t lost;              /* chunks */
};

enum { TRAIN_POINTS = 64 };

struct cuts;

struct trainer {
    const struct train_options *options;
    struct log log;
    FILE *out, *err;                /* the summary; the progress line and the log's
                                       lines */
    struct train_shared *shared;
    struct train_result *result;    /* in it */

    struct lock locks[LOCK_FILES];  /* of the checkpoint and the log, where no parent has
                                       them */
    struct descant *job;
    int rank;
    _Atomic int size;               /* as it has started; on_event reads it, in a thread
                                       of the library's */
    int host, hosts, local_rank;    /* the first host reports and writes the checkpoint */
    bool deals;                     /* the job deals the chunks: its trainers are, or may
                                       come to be, on several machines */
    bool late;                      /* it came to a job that ran, and has what that has,
                                       without --resume; since the start */
    uint64_t run;                   /* over several hosts the number of the job's run, once
                                       it has started (start.h); before, that of the
                                       checkpoint; 0: none */
    bool run_resumed;               /* the job goes on from a checkpoint */
    bool opening;                   /* the job: its choices are shown */
    bool declares;                  /* its tables with owners: the library's errors are put
                                       into this program's words, not shown */
    enum term term;                 /* set before start */
    _Atomic uint64_t told_ns;       /* this process saw its SIGTERM; 0: none came */
    _Atomic int told_of;            /* members then */
    struct rank_bits told, gone;    /* other ranks; the library's thread writes, and of
                                       `gone` that of cuts, too */
    struct rank_bits lost;          /* died, or ended in failure, and have not come back;
                                       likewise */
    struct model *model;
    struct optimizer optimizer;
    struct data_shape shape;
    enum data_format format;
    bool counted;                   /* the data: its chunks are known beforehand */
    struct path_list paths, eval_paths;
    size_t n, n_tables;             /* floats here; n_tables 0 where rows have owners */
    float *w;                       /* (n) the replica; Hogwild */
    float *state;                   /* the dense optimizer's; Hogwild */
    struct bsp *bsp;                /* NULL: another plan; there w and state are
                                       control's */
    float *tables, *table_state;    /* one for all trainers of the machine; Hogwild. NULL
                                       where rows have owners: */
    bool owned, moves;              /* moves: they go where ranks are (owned.c) */
    int rows_table;                 /* of descant_owned_table */
    int owners;                     /* ranks that own rows at the start; 1 where trainers
                                       share them */
    struct cuts *cuts;              /* NULL: no other rank has rows, or there is no
                                       checkpoint */
    uint64_t generation, shard_rows;    /* of the last checkpoint in shards, and its rows
                                           where it is one; the keeper's, at the end the
                                           main thread's */
    struct board *board;
    void *data_shared;
    char *outer;                    /* the outer state as training ended, for the last
                                       checkpoint */
    size_t outer_bytes;
    struct seat *seat;
    struct claims claims;
    struct piped piped;
    struct feed *feed;              /* with these */
    struct gather gather;
    bool alone;                     /* after the finish: no rounds, only chunks of the
                                       dead; changes while there is no other thread */
    _Atomic uint64_t steps;         /* of the dense optimizer, for adam; relaxed */
    _Atomic uint64_t gather_ns;     /* waiting for each other; relaxed */
    uint64_t began_ns;
    double seconds;                 /* of training, up to now */
    bool ended;                     /* its training; written while there is no monitor */
    /* the place in the data when it was first known, and when that was; 0: not yet. A
       resumed run does not begin at 0. As run_log */
    double place_from;
    uint64_t place_from_ns;
    struct whole whole;             /* as run_log */
    bool kept;                      /* the last checkpoint was written */
    bool bad;                       /* the finish or that checkpoint has failed, also
                                       where a signal had stopped the run before */
    bool kept_at_signal;            /* a checkpoint was made for the signal; the
                                       keeper's */
    bool in_haste;                  /* it is being written, without the outer state */

    /* the threads beside the workers (monitor.c) */
    pthread_t monitor, keeper;
    pthread_mutex_t monitor_mutex;  /* guards monitor_stop and figures that are not logged
                                       yet: */
    pthread_cond_t monitor_moved;
    bool monitor_stop, monitor_started, keeper_started;
    float *eval_w;                  /* (n) the copy that an evaluation beside training is
                                       of */
    struct held_out points[TRAIN_POINTS];   /* evaluations */
    int n_points;
    char checkpoint_why[256];       /* one has failed */
    struct run_log run_log;         /* the monitor's while there is one, then the main
                                       thread's */
    struct progress progress;       /* shown by the same; any thread ends the line */
    bool seat_was_empty;            /* as this trainer sat down in it */
    struct rank_bits waits;         /* have begun their finish untold; as `told` */
};

/* All from opening the job to the summary. Returns the exit status of the process: 0, 1
 * after an error, 2 where a job over hosts cannot begin as its options are, 128 + the
 * signal after a signal. rank -1 and size 0: the launcher gives
 * them. */
int trainer_run(const struct train_options *options, const char *job, int rank, int size,
                FILE *out, FILE *err, struct train_shared *shared);

/* Whether patience is on, and the best model is to be kept. */
static inline bool trainer_keeps_best(const struct trainer *t)
{
    return t->options->patience > 0 && t->options->checkpoint;
}

/* --- check.c: faults that can be known before anything starts --- */
descant_status train_check(const struct train_options *o, const struct log *log);
bool train_shares_good(const char *text);       /* of --rows-shares */
/* Of a rank, by a text that is good; NULL: equal shares. 0: it has none there. */
double train_share(const char *text, int rank);

/* --- open.c: up to the first step --- */
descant_status trainer_open(struct trainer *t, const char *address, int rank, int size);
struct data_options trainer_data(struct trainer *t); /* as it is read to train on */

/* --- owned.c: tables whose rows have owners --- */
/* Whether they are to, once the model is known. */
bool owned_suits(struct trainer *t);
/* Whether they may move, once they are. */
static inline bool owned_moves(const struct train_options *o)
{
    const struct tables_moving moving = {o->over_tcp, o->job_ranks};

    return (o->rows_move == ROWS_MOVE_YES ||
            (o->rows_move == ROWS_MOVE_AUTO && tables_move(&moving))) &&
           o->tables != TABLES_REPLICATE && o->model != MODEL_MLP;
}

descant_status owned_declare(struct trainer *t);
struct tables_at owned_tables_at(const struct trainer *t);
/* tables_at.most */
int owned_most_ahead(const struct train_options *o);

/* --- piped.c: stdin of rank 0 for all hosts --- */
static inline bool piped_is(const struct trainer *t)
{
    return t->deals && strcmp(t->options->data, "-") == 0;
}

/* Where the job does not deal: whether all trainers here have the same stdin. */
descant_status piped_check(struct trainer *t);
descant_status piped_begin(struct trainer *t);      /* before the job deals */
descant_status piped_start(struct trainer *t);      /* once it deals */
/* Ends the reading; what was read stays until close. */
void piped_end(struct trainer *t);
void piped_fini(struct trainer *t);
/* As data_options.fetch; of: a struct trainer. */
descant_status piped_fetch(void *of, uint64_t chunk, struct data_text *text);

/* --- crew.c: the worker threads --- */
/* until the data ends or the run stops */
descant_status crew_work(struct trainer *t);

/* --- diverged.c --- */
bool diverged_in(const float *p, size_t n);             /* one is NaN or Inf */
void diverged_where(struct trainer *t, char *text, size_t room);        /* the tensor */
/* the options to lower */
void diverged_advice(const struct trainer *t, char *text, size_t room);

/* --- heed.c --- */
/* Any thread, as often as it likes. True: the run is to end, by a signal or a failure.
 * The first call that sees a signal puts it on the board and on the terminal. of: a
 * struct trainer. */
bool trainer_heed(void *of);

/* --- others.c: trainers of other machines --- */
bool rank_is(const struct rank_bits *bits, int rank);
/* The rule: of so many members this one and so many others were told to end; whether
 * others have finished, and wait. */
enum term_end term_judge(enum term term, bool told, int members, int others_told,
                         bool others_wait);
/* Whether that holds: after a look so long, in which all have been told for so long. */
bool term_known(enum term term, enum term_end end, uint64_t looked_ns, uint64_t all_ns);
descant_status others_settle(struct trainer *t);    /* what SIGTERM means */
/* An event of the job's. True: it is logged here, or is none to log. */
bool others_hear(struct trainer *t, const struct descant_event *event);
/* Logs that another rank has died, or gone without finish. */
void others_say_lost(struct trainer *t, const struct descant_event *event);
void others_tell(struct trainer *t);    /* that this one was told; once */
/* Whether this host writes the model, evaluates and reports. Any thread. */
bool others_is_first(const struct trainer *t);
/* Where each host is one rank: the rank that does, or is awaited. */
int others_first(const struct trainer *t);
bool others_led(const struct trainer *t);       /* it is there */
/* In a rank that came late: that rank is lost, where it is not there. */
void others_look(struct trainer *t, int rank);
/* A mark of that rank was read: it has left or never come, or is there. */
void others_seen(struct trainer *t, int rank, bool passed);
bool others_leave(const struct trainer *t);     /* one is about to */
/* How this trainer ends, after SIGTERM; waits until others that were told are known. */
enum term_end others_end(struct trainer *t);

/* --- monitor.c: figures into the seat; the reporter's progress, checkpoints and
 * evaluations --- */
descant_status monitor_start(struct trainer *t);
/* Shows and logs the other hosts, which this trainer waits for in its finish, until
 * stop. */
void monitor_wait(struct trainer *t);
void monitor_stop(struct trainer *t);
void monitor_publish(struct trainer *t);

/* --- judge.c --- */
struct place;
/* Evaluates the model, whose dense part is w, on the held-out set. False: the evaluation
 * was stopped, or has failed and stopped the run. */
bool judge_model(struct trainer *t, const float *w, int threads,
                 bool (*stopped)(void *of), struct held_out *h);
/* Whether these figures, of the model as it was at that place, are the best so far; then
 * the model is kept. */
void judge_best(struct trainer *t, const struct held_out *h, struct place *place,
                const float *w);
void judge_patience(struct trainer *t);     /* stops the run where it is over */

/* --- news.c: the keeper's, and the monitor's --- */
void news_eval(struct trainer *t, const struct held_out *h);
/* why is this thread's last error */
void news_failed_checkpoint(struct trainer *t);
void news_take(struct trainer *t);

/* --- intervals.c: the log of the run --- */
void train_log_open(struct trainer *t);     /* if there is one, and it is not open */
/* seconds: of training, up to it */
void train_log_interval(struct trainer *t, const struct train_figures *f, double seconds);
/* the figures of all hosts, in the log of the one that reports for all */
void train_log_whole(struct trainer *t, double seconds);
void train_log_checkpoint(struct trainer *t, const char *why);      /* one has failed */
void train_log_eval(struct trainer *t, const struct held_out *h);
/* an interval more, so that curves go up to the end */
void train_log_last(struct trainer *t);

/* --- summary.c --- */
extern const char *const train_model_names[];       /* by enum model_kind */
void summary_make(struct trainer *t);       /* and the last evaluation */

/* --- save.c --- */
/* The first host has the path that was given, each other one its own beside it. */
void host_file(const struct trainer *t, const char *path, char *own, size_t room);
descant_status save_checkpoint(struct trainer *t);      /* of the first host; others:
                                                           nothing */
/* None is to begin beside training: it would hold up the rows of a rank that leaves. */
bool save_waits(const struct trainer *t);
/* as it is now; to be given back. NULL: no memory */
struct place *save_place(struct trainer *t);
/* Keeps the model of an evaluation that began at that place. */
descant_status save_best(struct trainer *t, struct place *place, const float *w);
descant_status save_keep_outer(struct trainer *t);    /* before finish */
void save_tidy(const struct trainer *t);  /* removes files that a killed run left
                                             unfinished */

/* --- resume.c --- */
struct checkpoint;
descant_status resume_model(struct trainer *t);    /* w, state and the plan's outer state,
                                                       before start */
descant_status resume_tables(struct trainer *t);   /* and the board; one trainer alone */
/* The checkpoint that this run goes on from, not opened; *told has to live as long. */
struct checkpoint resume_checkpoint(const struct trainer *t, struct told *told);
/* Takes back what was taken of a checkpoint, in a rank that came late. */
void resume_forget(struct trainer *t);
/* Tells a job that deals chunks which are done, and the data's end; after start, and also
 * where nothing is resumed. */
descant_status resume_deal(struct trainer *t, const struct data_options *options);
/* The best model so far is that of FILE.best; the reporter alone. */
void resume_best_path(const struct trainer *t, char *path, size_t room); /* FILE.best */
void resume_best(struct trainer *t);

#endif
