/* SPDX-License-Identifier: MIT */
/* descant bsp run. One thread has everything: it keeps the segments, makes the supersteps, tends
 * the modules and sleeps in one place, until the next of these is due or a signal comes. Beside it
 * there is the saver of checkpoints alone (bsp_model.c). The order of an end is what matters:
 *
 *   the segments are ended, so that modules leave by themselves; who has not left after a while is
 *   told by SIGTERM, then SIGKILL; what they had committed is one last superstep, unless the limit
 *   of the run was met; the last checkpoint, the summary. Then the segments lose their names.
 *
 * With --every-gradients nobody tells control that a gradient came: it looks. */
#include "cli/bsp.h"
#include "cli/bsp_log.h"
#include "train/lock.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#define LOOK_MIN_NS UINT64_C(200000)
#define LOOK_MOST_NS UINT64_C(10000000)
#define TICK_NS UINT64_C(100000000)
#define SECOND_NS UINT64_C(1000000000)
#define TERM_NS (2 * SECOND_NS)

struct run {
    struct bsp_run_log shown;           /* its figures, and where they go */
    const struct bsp_options *o;
    struct log log;
    struct lock locks[2];
    struct bsp_model model;
    struct local *locals[BSP_MODULES];
    int n_locals;
    struct control *control;
    struct bsp_modules modules;
    sigset_t held, old;
    int signal;
    uint64_t signalled_ns;
    bool hurried;                       /* by a second one */
    const char *why;                    /* the end; NULL: it goes on */
    bool limited, failed;
    bool bad;                           /* the model; it is not to be kept */
    uint64_t began_ns, due_ns, saved_ns, named_ns;
    double before_s;                    /* seconds of the runs that this one goes on from */
    double pace_ns;                     /* of a gradient, lately */
};

static void to_err(void *user, enum descant_level level, const char *line)
{
    struct run *r = user;
    if (level < DESCANT_WARNING)
        return;
    bsp_log_end_line(&r->shown);
    fprintf(r->shown.err, "descant: %s\n", line);
    fflush(r->shown.err);
}

/* --- signals: blocked, and taken here --- */

static void hold_signals(struct run *r)
{
    sigemptyset(&r->held);
    sigaddset(&r->held, SIGINT);
    sigaddset(&r->held, SIGTERM);
    sigaddset(&r->held, SIGCHLD);
    sigaddset(&r->held, SIGPIPE);
    sigprocmask(SIG_BLOCK, &r->held, &r->old);
}

/* Those that nobody has taken stay with the run. */
static void give_signals_back(struct run *r)
{
    const struct timespec none = {0};
    while (sigtimedwait(&r->held, NULL, &none) > 0)
        continue;
    sigprocmask(SIG_SETMASK, &r->old, NULL);
}

/* A terminal and a parent that passes it on bring the same signal twice. */
static void note(struct run *r, int signal)
{
    uint64_t now = clock_now_ns();
    if (signal != SIGINT && signal != SIGTERM)
        return;
    if (r->signal) {
        r->hurried |= now - r->signalled_ns > SECOND_NS;
        return;
    }
    r->signal = signal;
    r->signalled_ns = now;
    r->why = signal == SIGINT ? "stopped by SIGINT" : "stopped by SIGTERM";
    bsp_log_end_line(&r->shown);
    fprintf(r->shown.err, "descant: %s: the run ends%s; another one ends it at once\n",
            signal == SIGINT ? "SIGINT" : "SIGTERM",
            r->o->checkpoint ? " with a last checkpoint" : "");
    fflush(r->shown.err);
}

/* The one place where the run sleeps; a signal ends it early. */
static void rest_until(struct run *r, uint64_t when_ns)
{
    uint64_t now = clock_now_ns(), ns = when_ns > now ? when_ns - now : 0;
    const struct timespec most = {(time_t)(ns / SECOND_NS), (long)(ns % SECOND_NS)};
    int signal = sigtimedwait(&r->held, NULL, &most);
    if (signal > 0)
        note(r, signal);
}

/* --- opening --- */

static descant_status lock_files(struct run *r)
{
    descant_status status = lock_take(&r->locks[0], r->o->checkpoint, NULL, true, &r->log);
    return status == DESCANT_OK ? lock_take(&r->locks[1], r->o->log, NULL, false, &r->log) : status;
}

static descant_status open_locals(struct run *r)
{
    char name[BSP_SEGMENT];
    for (int k = 0; k < r->o->modules; k++) {
        const struct segment_options options = {
            .name = bsp_segment_name(r->o->name, k, name, sizeof name),
            .slots = (int)r->o->slots, .bound = (uint64_t)r->o->bound, .parts = r->model.parts,
            .n_parts = r->model.n_parts, .model = r->model.w, .version = r->model.version,
            .log = &r->log,
        };
        descant_status status = local_open(&r->locals[k], &options);
        if (status == DESCANT_DUPLICATE)
            log_say(&r->log, DESCANT_ERROR, "another run has the name %s; --name gives this one "
                    "another", r->o->name);
        if (status != DESCANT_OK)
            return status;
        r->n_locals++;
    }
    return DESCANT_OK;
}

static descant_status open_control(struct run *r)
{
    uint64_t least = (uint64_t)r->o->min_gradients, every = (uint64_t)r->o->every_gradients;
    const struct control_options options = {
        .locals = r->locals, .n_locals = r->n_locals, .n = r->model.n, .w = r->model.w,
        .version = r->model.version, .steps = r->model.steps, .bound = (uint64_t)r->o->bound,
        .min_gradients = least > every ? least : every, .clip = r->o->clip,
        .step = bsp_model_step, .of = &r->model, .log = &r->log,
    };
    descant_status status = control_create(&r->control, &options);
    if (status == DESCANT_OK)
        r->model.version = control_version(r->control);
    return status;
}

/* The run may have come so far before it was resumed. */
static void look_at_limits(struct run *r)
{
    const struct bsp_model *m = &r->model;
    if (r->why)
        return;
    if (r->o->supersteps && m->steps >= (uint64_t)r->o->supersteps)
        r->why = "all supersteps are made";
    else if (r->o->examples && m->examples >= (uint64_t)r->o->examples)
        r->why = "there were enough examples";
    r->limited = r->why != NULL;
}

static descant_status open_all(struct run *r)
{
    descant_status status = lock_files(r);
    if (status == DESCANT_OK)
        status = bsp_model_open(&r->model, r->o, &r->log);
    if (status == DESCANT_OK)
        status = open_locals(r);
    if (status == DESCANT_OK)
        status = open_control(r);
    r->before_s = r->model.seconds;
    r->began_ns = r->due_ns = r->saved_ns = clock_now_ns();
    if (status == DESCANT_OK)
        status = bsp_log_open(&r->shown, &r->model, r->locals, r->n_locals);
    look_at_limits(r);
    if (status == DESCANT_OK && r->o->command && !r->why)
        status = bsp_modules_start(&r->modules, r->o, &r->log);
    return status;
}

/* --- supersteps --- */

static void name_bad(struct run *r)
{
    for (int k = 0; k < r->n_locals; k++) {
        int pid;
        uint64_t bad = local_bad(r->locals[k], &pid);
        if (bad)
            log_say(&r->log, DESCANT_WARNING, "module %d, process %d: %" PRIu64 " gradient%s with "
                    "NaN or Inf refused", k, pid, bad, bad == 1 ? "" : "s");
    }
    r->named_ns = clock_now_ns();
}

static void count_step(struct run *r, const struct superstep *s, uint64_t began)
{
    struct bsp_model *m = &r->model;
    uint64_t now = clock_now_ns();
    m->version = control_version(r->control);
    m->steps = control_steps(r->control);
    m->gradients += s->sums.gradients;
    m->examples += s->sums.examples;
    m->seconds = r->before_s + (double)(now - r->began_ns) * 1e-9;
    r->pace_ns = (double)(now - r->shown.stepped_ns) / (double)s->sums.gradients;
    bsp_log_step(&r->shown, m, s, (double)(now - began) * 1e-9);
}

static void superstep(struct run *r)
{
    struct superstep s;
    uint64_t began = clock_now_ns();
    if (control_superstep(r->control, &s) != DESCANT_OK) {
        r->failed = r->bad = true;
        r->why = "the model has NaN or Inf";
    } else if (s.stepped) {
        count_step(r, &s, began);
    }
    r->due_ns = began + (uint64_t)(r->o->period_s * 1e9);
}

/* Half of the time that the gradients which are missing take, at the last superstep's pace or, if
 * that is slower, at this one's so far. */
static uint64_t look_after(const struct run *r, uint64_t pending)
{
    uint64_t every = (uint64_t)r->o->every_gradients;
    double missing = pending < every ? (double)(every - pending) : 0;
    double so_far = (double)(clock_now_ns() - r->shown.stepped_ns) / (double)(pending + 1);
    double half = 0.5 * missing * fmax(so_far, r->pace_ns);
    uint64_t rest = half < LOOK_MOST_NS ? (uint64_t)half : LOOK_MOST_NS;
    return rest > LOOK_MIN_NS ? rest : LOOK_MIN_NS;
}

/* Makes one if it is time, and says when to look again. */
static uint64_t step_if_due(struct run *r)
{
    uint64_t now = clock_now_ns(), every = (uint64_t)r->o->every_gradients;
    if (!every) {
        if (now >= r->due_ns)
            superstep(r);
        return r->due_ns;
    }
    uint64_t pending = control_pending(r->control);
    if (pending >= every) {
        superstep(r);
        pending = control_pending(r->control);
    }
    return clock_now_ns() + look_after(r, pending);
}

static void look_at_end(struct run *r)
{
    double minutes = (double)(clock_now_ns() - r->began_ns) / 60e9;
    look_at_limits(r);
    if (!r->why && r->o->minutes > 0 && minutes >= r->o->minutes)
        r->why = "the time is over";
    if (!r->why && r->o->command && bsp_modules_alive(&r->modules) == 0) {
        r->failed = bsp_modules_lost(&r->modules) > 0;
        r->why = r->failed ? "no module is left" : "all modules have done their work";
    }
}

static void save_if_due(struct run *r)
{
    uint64_t now = clock_now_ns();
    if (!r->o->checkpoint || !(r->o->checkpoint_every > 0) ||
        (double)(now - r->saved_ns) * 1e-9 < r->o->checkpoint_every ||
        bsp_model_saving(&r->model))
        return;
    if (bsp_model_save_failed(&r->model))
        log_say(&r->log, DESCANT_WARNING, "a checkpoint failed; training goes on");
    bsp_model_save(&r->model);
    r->saved_ns = now;
}

static void tend_modules(struct run *r)
{
    if (!bsp_modules_tend(&r->modules))
        return;
    for (int k = 0; k < r->n_locals; k++)
        local_sweep(r->locals[k]);
}

static uint64_t earlier(uint64_t a, uint64_t b)
{
    return b && b < a ? b : a;
}

static void train(struct run *r)
{
    while (!r->why) {
        uint64_t next = step_if_due(r);
        tend_modules(r);
        save_if_due(r);
        if (clock_now_ns() - r->named_ns > SECOND_NS)
            name_bad(r);
        bsp_log_show(&r->shown, &r->model);
        look_at_end(r);
        if (!r->why)
            rest_until(r, earlier(earlier(next, bsp_modules_next(&r->modules)),
                                  clock_now_ns() + TICK_NS));
    }
}

/* --- the end --- */

static bool left_within(struct run *r, uint64_t ns)
{
    uint64_t until = clock_now_ns() + ns;
    tend_modules(r);
    while (bsp_modules_alive(&r->modules) && clock_now_ns() < until && !r->hurried) {
        rest_until(r, earlier(until, clock_now_ns() + TICK_NS));
        tend_modules(r);
    }
    return bsp_modules_alive(&r->modules) == 0;
}

/* One that has not attached yet would wait for a segment that is not about to end. */
static void end_who_never_came(struct run *r)
{
    for (int k = 0; k < r->modules.n; k++) {
        const struct bsp_module *module = &r->modules.at[k];
        struct local_figures f;
        local_figures(r->locals[k], &f);
        if (module->pid > 0 && f.attached == 0 && f.owners <= (uint64_t)module->restarts)
            kill(-module->pid, SIGTERM);
    }
}

static void end_modules(struct run *r)
{
    r->modules.ending = true;
    for (int k = 0; k < r->n_locals; k++)
        local_end(r->locals[k]);
    end_who_never_came(r);
    if (left_within(r, (uint64_t)(r->o->grace * 1e9)))
        return;
    bsp_modules_kill(&r->modules, SIGTERM);
    if (left_within(r, TERM_NS))
        return;
    bool hurried = r->hurried;
    r->hurried = false;
    bsp_modules_kill(&r->modules, SIGKILL);
    left_within(r, TERM_NS);
    r->hurried = hurried;
}

static void wait_saver(struct run *r)
{
    while (bsp_model_saving(&r->model) && !r->hurried)
        rest_until(r, clock_now_ns() + TICK_NS / 10);
}

/* False: it could not be written. */
static bool last_checkpoint(struct run *r)
{
    wait_saver(r);
    bool good = bsp_model_save(&r->model);
    wait_saver(r);
    return good && !bsp_model_saving(&r->model) && !bsp_model_save_failed(&r->model);
}

static void end(struct run *r)
{
    struct bsp_end how = {.seconds = (double)(clock_now_ns() - r->began_ns) * 1e-9};
    end_modules(r);
    if (!r->limited && !r->bad && !r->hurried)
        superstep(r);
    name_bad(r);
    if (r->o->checkpoint && r->shown.steps && !r->bad) {
        how.kept = last_checkpoint(r);
        r->failed |= !how.kept;
        if (!how.kept)
            log_say(&r->log, DESCANT_ERROR, "the last checkpoint was not written");
    }
    how.why = r->why;
    how.restarts = bsp_modules_restarts(&r->modules);
    r->failed |= !bsp_log_end(&r->shown, &r->model, &how);
}

static void close_all(struct run *r)
{
    control_destroy(r->control);
    for (int k = 0; k < r->n_locals; k++)
        local_close(r->locals[k]);
    bsp_log_close(&r->shown);
    if (r->hurried && bsp_model_saving(&r->model)) {
        fflush(NULL);
        _exit(128 + r->signal);         /* the last whole checkpoint stays */
    }
    bsp_model_close(&r->model);
    lock_give(&r->locks[1]);
    lock_give(&r->locks[0]);
}

int bsp_run(const struct cli *cli, const struct bsp_options *o)
{
    struct run *r = memory_take(sizeof *r);
    if (!r) {
        fputs("descant: no memory for a run\n", cli->err);
        return CLI_FAILED;
    }
    r->o = o;
    r->log = (struct log){.fn = to_err, .user = r, .rank = -1};
    r->shown = (struct bsp_run_log){.options = o, .out = cli->out, .err = cli->err,
                                    .log = &r->log};
    hold_signals(r);
    nn_thread_init();
    descant_status status = open_all(r);
    if (status == DESCANT_OK) {
        train(r);
        end(r);
    } else {
        r->failed = r->modules.ending = true;
        bsp_modules_kill(&r->modules, SIGKILL);
        left_within(r, TERM_NS);
    }
    int code = status == DESCANT_INVALID ? CLI_BAD_USE
               : r->failed               ? CLI_FAILED
               : r->signal               ? 128 + r->signal
                                         : CLI_DONE;
    close_all(r);
    give_signals_back(r);
    memory_give(r);
    return code;
}
