/* SPDX-License-Identifier: MIT */
/* descant bsp: control, its local modules and the ML modules' processes, as one program
 * or as several that meet over a fabric. */
#ifndef CONTROL_RUN_H
#define CONTROL_RUN_H

#include "bsp/control.h"
#include "bsp/parcel.h"
#include "fabric/fabric.h"
#include "nn/nn.h"
#include "run/run.h"
#include "run/signals.h"
#include "run/told.h"
#include "run/evaluate.h"

#include <string.h>
#include <sys/types.h>

enum { BSP_MODULES = 64 };      /* at most */

struct bsp_options {
    /* The run's name: its segments are NAME-0, NAME-1 and so on. params, the model's file
     * or a checkpoint gives the model. */
    const char *name, *params, *model;
    const char *period;             /* NULL: the default, unless every_gradients is
                                       given */
    /* modules: segments of this process; slots: ML modules of each segment; bound:
     * versions that a gradient may be behind; every_gradients: pending gradients that
     * begin a superstep, 0: the period does; min_gradients: of a step, at least;
     * restarts: of each module in the whole run */
    int64_t modules, slots, bound, every_gradients, min_gradients, restarts;
    int64_t locals, number;         /* control: ranks to come; local: its number, or -1 */
    struct optimizer optimizer;
    double lr, clip;
    int64_t supersteps, examples;   /* limits of the run; 0: none */
    double minutes, grace;          /* a limit, too; seconds that modules have to leave */
    const char *eval;
    /* examples between evaluations, 0: a last one only; evaluations without gain that end
     * the run, 0: none do */
    int64_t eval_every, patience;
    const char *checkpoint, *log;
    double checkpoint_every;
    bool resume, quiet;
    /* fields that the table of options does not fill: the command after "--", the period
     * in seconds, and the place among the ranks */
    struct told told;               /* the table, and this struct */
    char **command;
    double period_s;
    const char *address;            /* NULL: the launcher gives it, or there is none */
    int first_module, all_modules;  /* this process has `modules` of all_modules, from
                                       first_module on */
};

/* Both return the exit status of the process (run.h) and close the link. bsp_run: rank
 * 0's link to the local modules elsewhere, or NULL. */
struct bsp_link;
int bsp_run(const struct bsp_options *o, struct bsp_link *link, FILE *out, FILE *err);
int bsp_local(const struct bsp_options *o, struct bsp_link *link, FILE *err);

/* Prints the state of the run's segments, and the changes in them within over_s seconds.
 * False: there is no such run, or the run is dead. */
bool bsp_status(const char *run, double over_s, bool as_json, FILE *out, FILE *err);

enum { BSP_NAME = 80, BSP_SEGMENT = BSP_NAME + 8 };     /* of a run, and its segments */

/* The numbers of the segments that run NAME has on this machine; returns how many. */
int bsp_find_segments(const char *name, int numbers[BSP_MODULES]);

/* Starts a process that removes this one's segments if this one is killed, for jobs that
 * end with a dead process. Call it before this process has threads. */
descant_status bsp_sweeper_start(const char *name, const struct log *log);

/* --- model.c: the model, its optimizer's state and its checkpoints --- */

struct bsp_model {
    const struct bsp_options *options;
    const struct log *log;
    struct segment_part *parts;     /* (n_parts), */
    struct tensor *tensors;         /* which are these */
    uint32_t n_parts;
    size_t n, n_state;
    float *w;                       /* (n), followed by the optimizer's state (n_state) */
    float *copy;                    /* a copy of w and state for the saver; NULL: no
                                       checkpoints */
    /* of this run and the runs that it goes on from */
    uint64_t version, steps, gradients, examples;
    double seconds;
    bool resumed;
    struct bsp_saver *saver;        /* the thread that writes checkpoints, or NULL */
    struct bsp_eval *eval;          /* the evaluation on a held-out set, or NULL */
};

/* Makes the model by --resume, --model or --params. */
descant_status bsp_model_open(struct bsp_model *model, const struct bsp_options *o,
                              const struct log *log);
void bsp_model_close(struct bsp_model *model);
control_step bsp_model_step;        /* of: a struct bsp_model */
/* NULL: the model has no such part. */
static inline const struct tensor *bsp_model_part(const struct bsp_model *model,
                                                  const char *name)
{
    for (uint32_t k = 0; k < model->n_parts; k++)
        if (strcmp(model->tensors[k].name, name) == 0)
            return &model->tensors[k];
    return NULL;
}

/* Copies the model and writes the copy in the background. False: the last copy is not
 * written yet. */
bool bsp_model_save(struct bsp_model *model);
bool bsp_model_saving(struct bsp_model *model);
/* Whether the last checkpoint failed. Not while one is being written. */
bool bsp_model_save_failed(struct bsp_model *model);

/* --- link.c: the fabric to local modules elsewhere --- */

struct bsp_link {
    struct fabric *f;
    int ranks;                      /* of the job, rank 0 among them */
    uint64_t heard_ns;              /* the last time that something came */
};

enum bsp_role { BSP_RUN, BSP_CONTROL, BSP_LOCAL };

/* Opens the link as the rank that the launcher gives, or by o->address and the role.
 * *link NULL: the run is one process. */
descant_status bsp_link_open(struct bsp_link **link, enum bsp_role role,
                             const struct bsp_options *o, const struct log *log);
/* good: all ranks have left or will leave; else a job over MPI is left to its launcher.
 * NULL is allowed */
void bsp_link_close(struct bsp_link *link, bool good);
/* the time of the next look for messages; takes no NULL */
uint64_t bsp_link_look(const struct bsp_link *link);

/* --- eval.c: the held-out set; eval is NULL where there is none --- */

/* The model's parts are those of --model, a file that descant train has written. */
descant_status bsp_eval_open(struct bsp_eval **eval, const struct bsp_model *model);
void bsp_eval_close(struct bsp_eval *eval);

/* After a superstep: an evaluation begins, in the background, if it is due. */
void bsp_eval_look(struct bsp_eval *eval, const struct bsp_model *model);
/* True: takes the figures of an evaluation, if they are new. */
bool bsp_eval_take(struct bsp_eval *eval, struct held_out *figures);
bool bsp_eval_enough(struct bsp_eval *eval);            /* patience is over */
/* Begins an evaluation of the model as it is. False: another is under way, or its figures
 * are not taken yet. This and the next two do not take NULL. */
bool bsp_eval_begin(struct bsp_eval *eval, const struct bsp_model *model);
bool bsp_eval_busy(struct bsp_eval *eval);
/* the last one failed, and has logged why */
bool bsp_eval_failed(struct bsp_eval *eval);

/* --- modules.c: the processes --- */

/* A module that dies goes from RUNS to WAITS, and from WAITS to RUNS, as often as it may
 * be started again. DONE: it has ended with status 0, or as the run ended. LOST: it has
 * died once too often, could not be started again, or wrote where it must not. */
enum bsp_module_state { BSP_RUNS, BSP_WAITS, BSP_DONE, BSP_LOST };

struct bsp_module {
    pid_t pid;                      /* its process group, too; 0: none */
    enum bsp_module_state state;
    int restarts;                   /* so far */
    uint64_t again_ns;              /* BSP_WAITS: until then */
};

struct bsp_modules {
    /* set by the caller; all segments of this process, once they exist */
    const struct bsp_options *options;
    const struct log *log;
    struct local *const *locals;    /* (n_locals) */
    int n_locals;

    int n;                          /* commands; 0: modules come by themselves */
    struct bsp_module at[BSP_MODULES];
    bool ending;                    /* no module is started again */
    uint64_t named_ns;              /* the last look for bad gradients */
};

/* Starts one command for each segment. After a failure the commands that were started are
 * running. */
descant_status bsp_modules_start(struct bsp_modules *modules);
/* Reaps modules that have ended, and starts those that died again after a while; gives up
 * a module whose segment is detached, and takes back slots and copies that the dead
 * held. */
void bsp_modules_tend(struct bsp_modules *modules);
/* Logs which modules' gradients had NaN or Inf, once a second, or now. */
void bsp_modules_name_bad(struct bsp_modules *modules, bool now);
/* the next time to tend; 0: none */
uint64_t bsp_modules_next(const struct bsp_modules *modules);
/* running, or waiting for a restart */
int bsp_modules_alive(const struct bsp_modules *modules);
struct crew_figures bsp_modules_figures(const struct bsp_modules *modules);
void bsp_modules_kill(struct bsp_modules *modules, int signal);

/* --- end.c: their end, in good order --- */

struct bsp_ending {
    struct bsp_modules *modules;    /* their segments have been ended */
    struct signals *signals;
    void (*rest)(void *of, uint64_t until_ns);      /* also tends the modules */
    void *of;
};

void bsp_end_modules(const struct bsp_ending *how);
/* true: no module is left */
bool bsp_end_within(const struct bsp_ending *how, uint64_t ns);

#endif
