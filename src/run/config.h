/* SPDX-License-Identifier: MIT */
/* The options of a run of training: one struct, one table. A checkpoint has all of them,
 * so that a user of its model knows the kind of the model, and how its data is read. */
#ifndef RUN_CONFIG_H
#define RUN_CONFIG_H

#include "base/base.h"
#include "data/data.h"
#include "data/paths.h"
#include "nn/nn.h"
#include "run/told.h"

#include <stdio.h>

enum train_schedule { SCHEDULE_CONSTANT, SCHEDULE_LINEAR, SCHEDULE_COSINE };
enum train_tables { TABLES_REPLICATE, TABLES_SHARD, TABLES_AUTO };
enum train_rows_move { ROWS_MOVE_AUTO, ROWS_MOVE_NO, ROWS_MOVE_YES };
enum train_on_term { ON_TERM_AUTO, ON_TERM_LEAVE, ON_TERM_ALL };
enum train_final { FINAL_AUTO, FINAL_LOCAL, FINAL_MEAN, FINAL_CENTRAL };

/* Hidden layers of a stack, and the size of each. */
enum { TRAIN_LAYERS = NN_MAX_LAYERS - 2, TRAIN_MOST_SIZE = 1 << 20 };

struct train_options {
    /* the data */
    const char *data, *eval;        /* files, commas between them; "-": stdin */
    int format;                     /* enum data_format */
    bool plain_ids;                 /* libsvm, libffm: indexes as they are */
    int64_t fields, epochs, examples, chunk, depth;
    double max_bad;
    /* the model */
    int model;                      /* enum model_kind */
    int64_t rows, width, rows_ahead;    /* rows below 0: they grow, */
    int64_t table_memory;           /* up to so many bytes */
    double rows_admit, rows_unused, rows_age, rows_replica;
    int tables;                     /* enum train_tables */
    int rows_move;                  /* enum train_rows_move */
    const char *rows_shares;        /* as descant_options.owned_shares */
    int rows_wire;                  /* 0: the plan's; 1 + enum descant_rows_wire */
    const char *bottom, *top;       /* "512,256,64" */
    /* the optimizer */
    int64_t batch;
    struct optimizer optimizer;
    double lr, table_lr;
    int schedule;               /* enum train_schedule */
    double warmup;
    int64_t seed;
    /* trainers, and how they are kept together */
    int64_t trainers, workers;      /* trainers 0: this process is one, started by a
                                       launcher */
    bool watched;                   /* trainers 0: a rank of an MPI job; the caller sets
                                       it */
    bool over_tcp;                  /* trainers 0: the job's address is one over TCP; as
                                       `watched` */
    int64_t job_ranks;              /* that job can have, by its address; likewise */
    const char *sync, *job, *link;
    double sync_cpu, sync_rate, start_s;
    bool plan_gathers;              /* the caller parses `sync` into these: gradients are
                                       summed */
    bool plan_frees;                /* no step waits for a round, or makes a round due */
    bool plan_rests;                /* no round ever runs, replicas have nothing in
                                       common */
    bool plan_controls;             /* the plan bsp: trainers give gradients, one has
                                       control */
    int plan_wire;                  /* enum descant_rows_wire */
    double plan_period_s;           /* between its supersteps, or */
    int64_t plan_every;             /* gradients, 0: by the period */
    int64_t plan_bound;             /* versions that a gradient may be behind */
    int on_term;                /* enum train_on_term */
    int final;
    /* quality */
    int64_t eval_every, patience;
    /* output */
    const char *checkpoint;
    double checkpoint_every;
    bool resume;
    const char *log;
    double log_every;
    bool quiet;
};

struct train_options train_options_default(void);

extern const struct option train_settings[];
extern const size_t n_train_settings;
struct told train_told(const struct train_options *o);

/* Reads "name = value" lines ('#' after a space, or first, begins a comment) into o;
 * given[k], false before, becomes true if setting k was there. The text is kept by *text,
 * which the caller frees after the last use of o. False: message has file, line and
 * error. */
bool config_read(const char *path, struct train_options *o, bool *given, char **text,
                 char *message, size_t room);

/* Defaults that go with the model: linear and fm have ftrl, a rate of its own, and
 * batches of one where the plan does not count steps. And the plan that goes with rows
 * that have owners. `given` as config_read fills it; call this before config_means. */
void config_suit(struct train_options *o, const bool *given);

/* Whether the setting has a meaning with the model, optimizers and format of these. */
bool config_matters(const struct train_options *o, const char *name);

/* Whether all settings that were given have a meaning for the model, the optimizers and
 * the format: that of the options or, where that is auto, the one found; AUTO: not known
 * yet. False: message names the setting without a meaning, and its use. */
bool config_means(const struct train_options *o, enum data_format found,
                  const bool *given, char *message, size_t room);

/* "512,256" into sizes; the number of them, or -1. */
int config_sizes(const char *text, int *sizes, int most);

/* The options of readers and of models. A held-out set is read once, and in its own
 * order. */
struct data_options config_data(const struct train_options *o,
                                const struct path_list *list, const struct log *log);
struct data_options config_held_out(const struct train_options *o,
                                    const struct path_list *list, const struct log *log);
descant_status config_shape(const struct train_options *o, const struct data_shape *shape,
                            struct model_shape *out, const struct log *log);

/* The learning rate's factor at a place (0 to 1; negative: unknown, then no decay), with
 * the trainer's own part of it (the same, no rise). See struct feed_batch. */
double config_rate(const struct train_options *o, double place, double own);

/* The settings of the steps that mean something, from --optimizer to --warmup, as the
 * command line would have them. */
enum { CONFIG_STEPS = 512 };
const char *config_steps(const struct train_options *o, char text[CONFIG_STEPS]);

#endif
