/* SPDX-License-Identifier: MIT */
/* What a person sees of a run of descant bsp: the progress line, the log, the summary. */
#ifndef CONTROL_LOG_H
#define CONTROL_LOG_H

#include "control/control.h"
#include "run/log.h"
#include "run/progress.h"

/* The first four are the caller's to set. */
struct bsp_run_log {
    const struct bsp_options *options;
    const struct log *log;
    FILE *out;                  /* the summary */
    struct progress progress;

    struct run_log file;
    _Atomic uint32_t failed;    /* it could not be written to its end */
    struct local *const *locals;
    int n_locals;
    uint64_t stepped_ns, flushed_ns;                        /* the last step; the file */
    uint64_t steps, gradients, examples;                    /* of this start */
    uint64_t lag, lag_most, undone, stale, bad;             /* the same */
    uint64_t left_out;                              /* of supersteps, as not finite */
    struct held_out held_out;                            /* of the last look; n 0: none */
    struct {
        uint64_t at_ns, gradients, examples;
    } last;                     /* as the progress was shown */
};

struct bsp_end {
    const char *why;
    bool kept;                  /* the last checkpoint is whole */
    int modules, restarts;      /* modules: local ones, here and elsewhere */
    double seconds;             /* of training, in this start */
};

/* Opens the file, if there is to be one, and writes its header. */
descant_status bsp_log_open(struct bsp_run_log *l, const struct bsp_model *model,
                            struct local *const *locals, int n_locals);
void bsp_log_step(struct bsp_run_log *l, const struct bsp_model *model,
                  const struct superstep *s, double seconds);
/* The evaluation that has ended, if there is one that nobody has taken: in the log, and
 * shown. */
void bsp_log_eval(struct bsp_run_log *l, const struct bsp_model *model, bool shown);
/* The progress, and what is in the file, if it is time. */
void bsp_log_show(struct bsp_run_log *l, const struct bsp_model *model);
bool bsp_log_end(struct bsp_run_log *l, const struct bsp_model *model,
                 const struct bsp_end *end);

#endif
