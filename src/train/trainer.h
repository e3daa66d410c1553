/* SPDX-License-Identifier: MIT */
/* One trainer: a process with its replica, its worker threads and its part of the reporting. */
#ifndef TRAINER_H
#define TRAINER_H

#include "train/board.h"
#include "train/evaluate.h"
#include "train/feed.h"
#include "train/lock.h"

#include <pthread.h>

/* A list of files, cut at its commas. */
enum { TRAIN_PATHS = BOARD_FILES };
struct path_list {
    char *text;
    const char *paths[TRAIN_PATHS];
    size_t n;
};

/* What a run came to, for whoever started it. */
struct train_result {
    struct metrics seen;            /* progressive validation */
    uint64_t trained;               /* examples, without those of a run that was resumed */
    double own_loss, own_entropy, own_accuracy;     /* of those trained */
    double seconds;                 /* of training */
    double auc, eval_loss, eval_entropy, eval_accuracy, eval_calibration;   /* NaN: none */
    uint64_t eval_n, eval_positive;
    double stall_share, copy_share, feed_share;     /* of the workers' time */
    double gap_mean, gap_max, age_s, distance, shadow_cpu_share, rounds, bytes, rows_sent;
    double exchange_s;              /* 99 of 100 took less */
    uint64_t lines, bad, steps;
    int stop;                       /* enum board_stop */
    int trainers;                   /* that were there at the end */
    int rank;                       /* one that has opened the job; -1: none has */
    double memory_mb;
    /* the plan bsp */
    uint64_t supersteps, gradients, given, stale, not_finite, undone;   /* given: their examples */
    double staleness_mean, staleness_max, control_cpu_share;
};

enum { TRAIN_FAILURES = 16 };

/* What trainers that were forked share with their parent. */
struct train_shared {
    struct train_result result;     /* written by the reporter at the end */
    _Atomic uint32_t started;       /* trainers that have met all others, and begin to train */
    _Atomic uint64_t failures[TRAIN_FAILURES];      /* that were said, as trainer.c has them; set
                                                       once, from the first on */
};

/* How the workers of one trainer sum their gradients under `allreduce`. */
struct gather {
    pthread_mutex_t mutex;          /* guards all below */
    pthread_cond_t moved;
    int present, arrived;
    uint64_t generation;
    float *sum;                     /* of those that have arrived */
    descant_status status;
    double lr;
};

struct bsp;

enum { TRAIN_POINTS = 64 };

struct trainer {
    const struct train_options *options;
    struct log log;
    FILE *out, *err;                /* the summary; the progress line and what goes wrong */
    struct train_shared *shared;
    struct train_result *result;    /* in it */

    struct lock locks[2];           /* of the checkpoint and the log, where no parent has them */
    struct descant *job;
    int rank;
    _Atomic int size;               /* as it has started; on_event reads it, in a thread of the
                                       library's */
    int host, hosts, local_rank;    /* the first host reports and writes the checkpoint */
    bool opening;                   /* the job: what is chosen is shown */
    struct model *model;
    struct optimizer optimizer;
    struct data_shape shape;
    enum data_format format;
    bool counted;                   /* the data: its chunks are known beforehand */
    struct path_list paths, eval_paths;
    size_t n, n_tables;             /* floats */
    float *w;                       /* (n) the replica; Hogwild */
    float *state;                   /* the dense optimizer's; Hogwild */
    struct bsp *bsp;                /* NULL: another plan; there w and state are control's */
    float *tables, *table_state;    /* one for all trainers of the machine; Hogwild */
    struct board *board;
    void *data_shared;
    char *outer;                    /* the outer state as training ended, for the last checkpoint */
    size_t outer_bytes;
    struct seat *seat;
    struct feed *feed;
    struct gather gather;
    bool alone;                     /* after the others: no rounds, only what the dead have left;
                                       changes while no other thread is there */
    _Atomic uint64_t steps;         /* of the dense optimizer, for adam; relaxed */
    _Atomic uint64_t gather_ns, feed_ns;    /* waiting for each other, and for data; relaxed */
    uint64_t began_ns;
    double seconds;                 /* of training, up to now */
    bool kept;                      /* the last checkpoint was written */
    bool kept_at_signal;            /* one as a signal came; the keeper's */
    bool in_haste;                  /* it is being written, without the outer state */

    /* the threads beside the workers (monitor.c) */
    pthread_t monitor, keeper;
    pthread_mutex_t monitor_mutex;  /* guards monitor_stop and what is not in the log yet: */
    pthread_cond_t monitor_moved;
    bool monitor_stop, monitor_started, keeper_started;
    float *eval_w;                  /* (n) the copy that an evaluation beside training is of */
    struct held_out points[TRAIN_POINTS];   /* evaluations */
    int n_points;
    char checkpoint_why[256];       /* one has failed */
    FILE *run_log;                  /* the monitor's while there is one, then the main thread's */
    bool is_terminal;
};

/* Everything from opening the job to the summary. The exit status of the process: 0, 1 after an
 * error, 128 + the signal after one. rank and size -1 and 0: the launcher's. */
int trainer_run(const struct train_options *options, const char *job, int rank, int size,
                FILE *out, FILE *err, struct train_shared *shared);

/* The first signal that asked the process to stop. One more than a second later ends it. */
extern _Atomic int trainer_signal;
void trainer_note(int signal);

/* --- crew.c: the worker threads --- */
descant_status crew_work(struct trainer *t);        /* until the data ends or the run stops */
void crew_name_bad(struct trainer *t, char *text, size_t room);     /* the tensor that is bad */
void crew_advise(const struct trainer *t, char *text, size_t room);     /* what to lower */

/* --- inputs.c: from the options to what data and nn take --- */
descant_status path_list_init(struct path_list *list, const char *names, const struct log *log);
void path_list_fini(struct path_list *list);
uint64_t path_list_bytes(const struct path_list *list);      /* of the files among them */
bool input_is_file(const char *path);       /* which can be read again */
struct data_options train_data(const struct train_options *o, const struct path_list *list,
                               const struct log *log);
/* "PATH, read as FORMAT, has 13 dense features, 26 fields and 1 class". */
enum { INPUTS_ROOM = 512 };
const char *inputs_text(const struct data_options *data, const struct data_shape *shape,
                        char *text, size_t room);
descant_status train_shape(const struct train_options *o, const struct data_shape *shape,
                           struct model_shape *out, const struct log *log);
/* What can be seen to be wrong before anything starts: pipes, schedules and folders. */
descant_status train_check(const struct train_options *o, const struct log *log);

/* --- monitor.c: figures into the seat; progress, checkpoints and evaluations if we report --- */
descant_status monitor_start(struct trainer *t);
void monitor_stop(struct trainer *t);
void monitor_publish(struct trainer *t);
void monitor_end_line(struct trainer *t);           /* of the progress, before other text */
/* Any thread, as often as it likes. True: the run is to end, by a signal or a failure. Of a signal
 * that nobody has seen before, all trainers and the terminal are told. of: a struct trainer. */
bool monitor_heed(void *of);
/* The final model. False: it was given up or has failed, and the run is stopped. */
bool monitor_evaluate(struct trainer *t, struct held_out *h);
struct place;
/* Whether patience is on, and the best model is to be kept; and what an evaluation came to, of a model
 * as it was at that place: true if it is the best so far. */
bool monitor_keeps_best(const struct trainer *t);
bool monitor_judge(struct trainer *t, const struct held_out *h, const struct place *place,
                   const float *w);

/* --- summary.c: the log of the run; the end --- */
extern const char *const train_model_names[];       /* by enum model_kind */
struct figures;
void host_file(const struct trainer *t, const char *path, char *own, size_t room);
void run_log_open(struct trainer *t);
/* seconds: of training, up to it */
void run_log_interval(struct trainer *t, const struct figures *f, double seconds);
void run_log_checkpoint(struct trainer *t, const char *why);   /* one has failed */
void run_log_last(struct trainer *t);   /* an interval more, so that curves go up to the end */
void run_log_written(struct trainer *t, int error);     /* after a line: what json_end returned */
void run_log_close(struct trainer *t);
void summary_make(struct trainer *t, double seconds);       /* and the last evaluation */

/* --- checkpoint.c --- */
struct safetensors;
struct safetensor;
struct safetensors_text;
descant_status checkpoint_write(struct trainer *t);
struct place *checkpoint_place(struct trainer *t);     /* as it is now; memory_give it. NULL: no memory */
/* The model that an evaluation was of, which began at that place. */
descant_status checkpoint_write_best(struct trainer *t, const struct place *place, const float *w);
/* Replaces the file. `own`: what is there is of this run, or of one that it goes on from. What
 * another run has left becomes PATH.old, its own previous one goes. */
descant_status checkpoint_put(const char *path, bool own, const struct safetensor *tensors,
                              size_t n, const struct safetensors_text *texts, size_t n_texts,
                              const struct log *log);
descant_status checkpoint_keep_outer(struct trainer *t);    /* before finish */
bool checkpoint_there(const struct train_options *options);
void checkpoint_forget(struct trainer *t);     /* this host's place, of a run of before */
void checkpoint_tidy(const struct trainer *t);  /* what a run that was killed left unfinished */
descant_status checkpoint_load_model(struct trainer *t);    /* w and state, before start */
descant_status checkpoint_load_tables(struct trainer *t);   /* and the board; one trainer alone */
descant_status checkpoint_load_outer(struct trainer *t);    /* after start */
/* To go on from: the file, or the one before it where it is damaged or gone, which is said where
 * `says`. */
descant_status checkpoint_open(struct safetensors **out, const char *path, bool says,
                               const struct log *log);
bool checkpoint_before(const char *path, char *previous, size_t room);     /* whether it is there */
/* The tensors that a model wants from it. */
descant_status checkpoint_take(const struct safetensors *file, const char *path,
                               const struct tensor *tensors, size_t n, float *p,
                               const struct log *log);

#endif
