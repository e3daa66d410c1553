/* SPDX-License-Identifier: MIT */
/* descant bsp: control, its local modules and the ML modules' processes, as one program. */
#ifndef CLI_BSP_H
#define CLI_BSP_H

#include "bsp/control.h"
#include "cli/cli.h"
#include "nn/nn.h"

#include <sys/types.h>

enum { BSP_MODULES = 64 };      /* at most */

struct bsp_options {
    const char *name, *params, *model;
    const char *period;             /* NULL: the default, unless every_gradients is given */
    int64_t modules, slots, bound, every_gradients, min_gradients, restarts;
    int optimizer;                  /* enum optimizer_kind */
    double lr, momentum, beta1, beta2, epsilon, l2, clip;
    int64_t supersteps, examples;   /* limits of the run; 0: none */
    double minutes, grace;
    const char *checkpoint, *log;
    double checkpoint_every;
    bool resume, quiet;
    /* what is behind "--", and what period means: not in the table */
    char **command;
    double period_s;
};

extern const struct setting bsp_settings[];
extern const size_t bsp_n_settings;

int bsp_run(const struct cli *cli, const struct bsp_options *o);
int bsp_status(const struct cli *cli);

/* The segment of module k of the run NAME. */
enum { BSP_NAME = 80, BSP_SEGMENT = BSP_NAME + 8 };
const char *bsp_segment_name(const char *name, int k, char *text, size_t room);

/* --- bsp_model.c: the model, its optimizer's state and its checkpoints --- */

struct bsp_model {
    const struct bsp_options *options;
    const struct log *log;
    struct optimizer optimizer;
    struct segment_part *parts;     /* (n_parts) */
    size_t (*dims)[2];              /* (n_parts); dims[k][1] 0: a vector */
    uint32_t n_parts;
    size_t n, n_state;
    float *w;                       /* (n), and behind it the optimizer's state (n_state) */
    float *copy;                    /* of both, that the saver's; NULL: no checkpoint is kept */
    /* of this run and those it goes on from */
    uint64_t version, steps, gradients, examples;
    double seconds;
    bool resumed;
    struct bsp_saver *saver;        /* the thread that writes checkpoints, or NULL */
};

/* By --resume, --model or --params. */
descant_status bsp_model_open(struct bsp_model *model, const struct bsp_options *o,
                              const struct log *log);
void bsp_model_close(struct bsp_model *model);
control_step bsp_model_step;        /* of: a struct bsp_model */

/* Takes a copy and writes it in the background. False: the last one is not written yet. */
bool bsp_model_save(struct bsp_model *model);
bool bsp_model_saving(struct bsp_model *model);
bool bsp_model_save_failed(struct bsp_model *model);    /* the last that was written */

/* --- bsp_modules.c: the processes --- */

enum bsp_module_state { BSP_RUNS, BSP_WAITS, BSP_DONE, BSP_LOST };

struct bsp_module {
    pid_t pid;                      /* its process group, too; 0: none */
    enum bsp_module_state state;
    int restarts;
    uint64_t again_ns;              /* BSP_WAITS: until then */
};

struct bsp_modules {
    const struct bsp_options *options;
    const struct log *log;
    int n;
    struct bsp_module at[BSP_MODULES];
    bool ending;                    /* none is started again */
};

/* Starts one for each segment. After a failure those that were started are running. */
descant_status bsp_modules_start(struct bsp_modules *modules, const struct bsp_options *o,
                                 const struct log *log);
/* Notes who has ended, and starts again those that died, after a while; true: one has ended. */
bool bsp_modules_tend(struct bsp_modules *modules);
uint64_t bsp_modules_next(const struct bsp_modules *modules);   /* when to tend; 0: no need */
int bsp_modules_alive(const struct bsp_modules *modules);       /* running, or waiting to */
int bsp_modules_lost(const struct bsp_modules *modules);        /* not started any more */
int bsp_modules_restarts(const struct bsp_modules *modules);
void bsp_modules_kill(struct bsp_modules *modules, int signal);

#endif
