/* SPDX-License-Identifier: MIT */
/* What the tests of training share: a folder with generated clicks, a small run of
 * descant train in this process or a child, and the program's commands. */
#ifndef HARNESS_TRAINING_H
#define HARNESS_TRAINING_H

#include "data/data.h"
#include "data/safetensors.h"
#include "harness/folder.h"
#include "harness/log.h"
#include "harness/processes.h"
#include "harness/program.h"
#include "harness/suite.h"
#include "harness/wait.h"
#include "train/launch.h"
#include "run/saved.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <sys/stat.h>

/* Passes over the data of runs that must last a while: fewer where each takes longer. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define PASSES(n) ((n) / 5)
#else
#define PASSES(n) (n)
#endif

enum { ROWS = 20000, EVAL_ROWS = 4000 };

/* Each test's own copies, in its folder, and names for what a run writes; fifo: a name
 * for one. */
extern char clicks[96], held_out[96], model_file[96], fifo[96];
extern double best;             /* loss that a model of them can have */

void make_clicks(void);         /* main, before run_cases */
void set_up_training(void);     /* a fixture; remove_folder ends it */
void put_held_out(const char *path);

struct train_options small(void);

/* What was printed, to stdout and stderr alike, is in `said`. */
int train(const struct train_options *o, struct train_result *result);

/* Kills a run that goes on, and waits until the last of its trainers is gone: until
 * then they keep its files for themselves. */
void kill_all(pid_t pid);

struct train_options endless(void);

/* runs in a group of its own; said: said_file */
pid_t begin(const struct train_options *o);
void wait_examples(double least);                   /* until the log tells of so many */
/* After wait_examples: until each of the trainers heeds signals, and so counts as started. */
void wait_heeding(const pid_t *pids, int n);

/* Begins a run, and one that joins it once it has made a pass after `before` examples; again, for
 * longer, where that came too late. */
void begin_and_join(struct train_options *first, struct train_options *second, double before,
                    pid_t *pids);

double examples_said(void);         /* of the summary */
double examples_kept(void);         /* of the checkpoint */

/* Of a launcher's trainers: this is one of two. */
pid_t begin_rank(struct train_options *o, int rank);

#endif
