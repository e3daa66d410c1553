/* SPDX-License-Identifier: MIT */
/* The output of a run of descant bsp: the progress line, the log, the summary. */
#ifndef CONTROL_LOG_H
#define CONTROL_LOG_H

#include "control/control.h"
#include "run/log.h"
#include "run/progress.h"

/* The caller sets the first four fields. */
struct bsp_run_log {
    const struct bsp_options *options;
    const struct log *log;
    FILE *out;                  /* the summary */
    struct progress progress;

    struct run_log file;
    _Atomic uint32_t failed;    /* the log could not be written to its end */
    struct local *const *locals;
    int n_locals;
    uint64_t stepped_ns, flushed_ns;                        /* the last step; the file */
    uint64_t steps, gradients, examples;                    /* of this start */
    uint64_t lag, lag_most, undone, stale, bad;             /* the same */
    /* supersteps whose gradients were not finite */
    uint64_t left_out;
    /* of the last evaluation; n 0: none */
    struct held_out held_out;
    struct {
        uint64_t at_ns, gradients, examples;
    } last;                     /* when the progress was shown last */
};

struct bsp_end {
    const char *why;
    bool kept;                  /* the last checkpoint is whole */
    int modules, restarts;      /* modules: local ones, here and elsewhere */
    double seconds;             /* of training, in this start */
};

/* Opens the log, if the options name one, and writes its header. */
descant_status bsp_log_open(struct bsp_run_log *l, const struct bsp_model *model,
                            struct local *const *locals, int n_locals);
void bsp_log_step(struct bsp_run_log *l, const struct bsp_model *model,
                  const struct superstep *s, double seconds);
/* Takes the figures of an evaluation that has ended, if there are new ones, logs them,
 * and shows them where `shown`. */
void bsp_log_eval(struct bsp_run_log *l, const struct bsp_model *model, bool shown);
/* Shows the progress and flushes the log, when either is due. */
void bsp_log_show(struct bsp_run_log *l, const struct bsp_model *model);
/* Writes and prints the summary. False: the log could not be written to its end. */
bool bsp_log_end(struct bsp_run_log *l, const struct bsp_model *model,
                 const struct bsp_end *end);

#endif
