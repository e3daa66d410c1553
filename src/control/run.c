/* SPDX-License-Identifier: MIT */
/* descant bsp run and control: control, and local modules of its own, or of other
 * processes over a fabric (local.c), or both. One thread does all: it keeps the segments,
 * makes the supersteps, tends the modules and sleeps in one place, until the next of
 * these is due or a signal comes. Beside it there are the saver of checkpoints (model.c)
 * and, over MPI, a warden (warden.c).
 *
 * A superstep first orders a read-out from local modules elsewhere, and is made when they
 * have answered, or half a period later: a sum that is late counts in the next superstep,
 * and a local module that was late is not waited for until it has answered. A run ends in
 * this order:
 *
 *   the segments are ended, so that modules leave by themselves, or are made to (end.c);
 *   gradients that they had committed make one last superstep, unless the limit was met;
 *   the last checkpoint, the summary. Then the segments lose their names.
 *
 * With --every-gradients control polls for gradients. */
#include "bsp/remote.h"
#include "control/control.h"
#include "control/log.h"
#include "control/warden.h"
#include "data/safetensors.h"
#include "run/limits.h"
#include "run/lock.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#define LOOK_MIN_NS UINT64_C(200000)
#define LOOK_MOST_NS UINT64_C(10000000)
#define TICK_NS UINT64_C(100000000)
#define SECOND_NS UINT64_C(1000000000)
#define TERM_NS (2 * SECOND_NS)
#define GREET_NS (2 * SECOND_NS)            /* for local modules that are there to say
                                               so */
#define LEAVE_NS (5 * SECOND_NS)            /* beyond the grace of their modules */
#define ALONE_NS (3 * SECOND_NS)
#define LATE_NS (SECOND_NS / 4)             /* with --every-gradients */

struct run {
    struct bsp_run_log shown;           /* the run's figures and its output */
    const struct bsp_options *o;
    struct log log;
    struct lock locks[LOCK_FILES];
    struct bsp_model model;
    struct bsp_link *link;              /* NULL: all local modules are here */
    struct local **locals;              /* (n_locals): the first n_own here, the others
                                           elsewhere */
    int n_locals, n_own;
    struct control *control;
    struct bsp_modules modules;
    struct signals signals;
    uint64_t order;                     /* the newest read-out; asked: it is open */
    bool asked;
    uint64_t asked_ns;                  /* the time of that order */
    const char *why;                    /* why the run ends; NULL: it goes on */
    bool limited, failed;               /* limited: a limit of the options ends the run */
    uint64_t left;                      /* gradients read out and in no step */
    bool bad;                           /* the model is bad: no checkpoint of it */
    bool bad_link, said_alone;          /* bad_link: no other rank can be reached */
    uint64_t began_ns, due_ns, saved_ns;        /* training began; the next superstep, by
                                                   the period; the last checkpoint */
    double before_s;                    /* seconds trained by the runs before it */
    double pace_ns;                     /* between gradients, lately */
    struct warden warden;               /* started where a call of MPI may not return */
};

/* --- local modules elsewhere --- */

/* A job over MPI. A signal or a failure there may mean that a rank has died: other ranks
 * will not answer, and the launcher ends the job in a second or so. */
static bool is_fixed(const struct run *r)
{
    return r->link && r->link->f->fixed;
}

/* Logs why the run ends. Over MPI also writes a checkpoint, which may be the last one,
 * unless one is being written. */
static void say_end(struct run *r, const char *why, bool by_signal)
{
    bool keeps = r->o->checkpoint && r->shown.steps && !r->bad;
    bool begun = keeps && is_fixed(r) && bsp_model_save(&r->model);
    progress_end_line(&r->shown.progress);
    signals_say_end(r->shown.progress.err, why, begun   ? RUN_KEEPS_NOW
                                       : keeps ? RUN_KEEPS_LAST
                                               : RUN_KEEPS_NOTHING, by_signal);
}

/* Segments of an earlier run need a version above theirs. A sum that no superstep is
 * about to take is taken now, for a local module sends nothing else before: no last sum,
 * no figures. */
static void look_at_link(struct run *r)
{
    bool comes = false, waits = false;
    if (!r->link)
        return;
    warden_enter(&r->warden);
    bool moved = r->link->f->type->post->move(r->link->f) == DESCANT_OK;
    warden_leave(&r->warden);
    if (!moved && !r->why) {
        r->failed = r->bad_link = true;
        r->why = "the other ranks cannot be reached";
        say_end(r, r->why, false);
    }
    for (int k = r->n_own; k < r->n_locals && !r->bad_link; k++)
        if (remote_turn(r->locals[k]))
            r->link->heard_ns = clock_now_ns();
    for (int k = r->n_own; k < r->n_locals && r->control; k++) {
        comes |= local_taken_over(r->locals[k]);
        waits |= remote_news(r->locals[k]).held && !r->asked;
    }
    if (waits)
        control_read_out(r->control);
    if (!comes)
        return;
    control_meet(r->control);
    r->model.version = control_version(r->control);
}

static void await_saver(struct run *r)
{
    while (bsp_model_saving(&r->model))
        clock_sleep_until(clock_now_ns() + TICK_NS / 5);
}

/* Called by the warden once it has taken the run: the model stays as it is. */
static void last_words(void *of)
{
    struct run *r = of;
    await_saver(r);                 /* of an earlier model */
    say_end(r, "SIGTERM, and MPI does not return", false);
    bsp_modules_kill(&r->modules, SIGKILL);
    await_saver(r);
}

static uint64_t earlier(uint64_t a, uint64_t b)
{
    return b && b < a ? b : a;
}

/* The one place where the run sleeps; a signal ends it early. */
static void rest_until(struct run *r, uint64_t when_ns)
{
    if (r->link)
        when_ns = earlier(when_ns, bsp_link_look(r->link));
    if (signals_rest(&r->signals, when_ns) == SIGNAL_ENDS) {
        bool term = r->signals.came == SIGTERM;
        r->why = term ? "stopped by SIGTERM" : "stopped by SIGINT";
        say_end(r, signal_name(r->signals.came), true);
    }
    look_at_link(r);
}

/* Figures of the processes here, and of those elsewhere as they have sent them. The last
 * figures of a process that died count on. */
struct all_locals {
    bool commands;                      /* at least one process has started commands */
    bool greeted, left;                 /* all that are there have */
    int alive, lost, restarts;          /* commands; alive: also processes to come */
    int modules;                        /* segments */
    uint64_t gradients_lost;
};

static struct all_locals look_at_all(const struct run *r)
{
    struct crew_figures own = bsp_modules_figures(&r->modules);
    struct all_locals all = {r->o->command != NULL, true,     true, own.alive, own.lost,
                             own.restarts,          r->n_own, 0};
    for (int k = r->n_own; k < r->n_locals; k++) {
        struct remote_news news = remote_news(r->locals[k]);
        all.commands |= news.crew.commands != 0;
        all.greeted &= !news.here || news.welcome;
        all.left &= !news.here || news.left;
        all.alive += news.crew.alive;
        all.alive += !news.came || (news.here && !news.left && !news.crew.commands);
        all.lost += news.crew.lost;
        all.restarts += news.crew.restarts;
        all.modules += news.modules;
        all.gradients_lost += news.lost;
    }
    return all;
}

/* --- opening --- */

/* Opens the segments here, then a remote local module for each other rank. A failure
 * leaves those that are open in r->locals, and n_locals counts them. */
static descant_status open_locals(struct run *r)
{
    const struct bsp_model *m = &r->model;
    const struct local_range range = {r->o->name, 0, (int)r->o->modules};
    const struct segment_options own = {.slots = (int)r->o->slots,
                                        .bound = (uint64_t)r->o->bound,
                                        .parts = m->parts, .n_parts = m->n_parts,
                                        .model = m->w, .version = m->version,
                                        .log = &r->log};
    struct remote_options other = {.n = m->n, .parts = m->parts, .n_parts = m->n_parts,
                                   .bound = own.bound, .run = run_number(),
                                   .first_rank = r->o->modules ? 0 : 1,
                                   .model = m->w, .version = m->version, .log = &r->log};
    size_t most = (size_t)r->o->modules + (r->link ? (size_t)r->link->ranks : 0);
    r->locals = memory_take_array(most, sizeof *r->locals);
    if (!r->locals)
        return log_fail(&r->log, DESCANT_MEMORY, "no memory for a list of local modules");
    descant_status status = local_open_range(r->locals, &r->n_own, &range, own);
    r->modules.locals = r->locals;
    r->modules.n_locals = r->n_locals = r->n_own;
    for (int rank = 1; r->link && rank < r->link->ranks && status == DESCANT_OK; rank++) {
        other.f = r->link->f;
        other.rank = rank;
        other.n_ranks = r->link->ranks - !r->o->modules;
        status = remote_open(&r->locals[r->n_locals], &other);
        r->n_locals += status == DESCANT_OK;
    }
    return status;
}

static uint64_t least_of_step(const struct bsp_options *o)
{
    return (uint64_t)(o->min_gradients > o->every_gradients ? o->min_gradients
                                                            : o->every_gradients);
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
    else if (bsp_eval_enough(m->eval))
        r->why = "the held-out loss falls no more";
    r->limited = r->why != NULL;
}

/* The order matters. A killed writer's file is removed once the checkpoint is locked; the
 * model has its shape before segments are made; local modules elsewhere tell their
 * versions before control chooses its own; modules start when the model is in their
 * segments. */
static descant_status open_all(struct run *r)
{
    struct bsp_model *m = &r->model;
    descant_status status =
        lock_take_files(r->locks, r->o->checkpoint, r->o->log, NULL, &r->log);
    if (status == DESCANT_OK && r->o->checkpoint)
        safetensors_tidy(r->o->checkpoint);
    if (status == DESCANT_OK)
        status = bsp_model_open(m, r->o, &r->log);
    if (status == DESCANT_OK)
        status = open_locals(r);
    if (status == DESCANT_OK) {
        /* wait for local modules that are there, so that the first version is above
         * theirs */
        uint64_t until = clock_now_ns() + GREET_NS;
        look_at_link(r);
        while (r->link && !look_at_all(r).greeted && clock_now_ns() < until && !r->why)
            rest_until(r, until);
        const struct control_options options = {
            .locals = r->locals, .n_locals = r->n_locals, .n = m->n, .w = m->w,
            .version = m->version, .steps = m->steps, .bound = (uint64_t)r->o->bound,
            .min_gradients = least_of_step(r->o), .clip = r->o->clip,
            .step = bsp_model_step, .of = m, .log = &r->log,
        };
        status = control_create(&r->control, &options);
    }
    if (status == DESCANT_OK)
        m->version = control_version(r->control);
    r->before_s = m->seconds;
    r->began_ns = r->due_ns = r->saved_ns = clock_now_ns();
    if (status == DESCANT_OK)
        status = bsp_log_open(&r->shown, m, r->locals, r->n_locals);
    look_at_limits(r);
    if (status == DESCANT_OK && r->o->command && !r->why)
        status = bsp_modules_start(&r->modules);
    return status;
}

/* --- supersteps --- */

/* Makes a superstep of the sums that are here. Gradients that it leaves for a later one
 * are r->left. */
static void superstep(struct run *r)
{
    struct bsp_model *m = &r->model;
    struct superstep s = {0};
    uint64_t began = clock_now_ns();
    if (control_superstep(r->control, &s) != DESCANT_OK) {
        r->failed = r->bad = true;
        r->why = "the model has NaN or Inf";
    } else if (s.stepped) {
        uint64_t now = clock_now_ns();
        m->version = control_version(r->control);
        m->steps = control_steps(r->control);
        m->gradients += s.sums.gradients;
        m->examples += s.sums.examples;
        m->seconds = r->before_s + (double)(now - r->began_ns) * 1e-9;
        r->pace_ns = (double)(now - r->shown.stepped_ns) / (double)s.sums.gradients;
        bsp_log_step(&r->shown, m, &s, (double)(now - began) * 1e-9);
    }
    r->left = s.stepped || s.left_out ? 0 : s.sums.gradients;
    r->shown.left_out += s.left_out;
}

/* Orders a read-out, or makes the superstep of the last order; true: it was made. */
static bool advance(struct run *r)
{
    uint64_t patience =
        r->o->every_gradients ? LATE_NS : (uint64_t)(r->o->period_s * 0.5e9);
    bool awaits = false;
    if (!r->asked) {
        r->asked = true;
        r->asked_ns = clock_now_ns();
        r->order++;
        for (int k = r->n_own; k < r->n_locals; k++)
            remote_ask(r->locals[k], r->order);
    }
    for (int k = r->n_own; k < r->n_locals; k++)
        awaits |= remote_awaited(r->locals[k], r->order);
    if (awaits && clock_now_ns() < r->asked_ns + patience)
        return false;
    for (int k = r->n_own; k < r->n_locals; k++)
        remote_pass_over(r->locals[k], r->order);
    r->asked = false;
    superstep(r);
    r->due_ns = r->asked_ns + (uint64_t)(r->o->period_s * 1e9);
    return true;
}

/* Half of the time that the missing gradients take, at the last superstep's pace or, if
 * that is slower, at this superstep's so far. */
static uint64_t look_after(const struct run *r, uint64_t pending)
{
    uint64_t every = (uint64_t)r->o->every_gradients;
    double missing = pending < every ? (double)(every - pending) : 0;
    double so_far =
        (double)(clock_now_ns() - r->shown.stepped_ns) / (double)(pending + 1);
    double half = 0.5 * missing * fmax(so_far, r->pace_ns);
    uint64_t rest = half < LOOK_MOST_NS ? (uint64_t)half : LOOK_MOST_NS;
    return rest > LOOK_MIN_NS ? rest : LOOK_MIN_NS;
}

/* Makes a superstep if it is due, and returns the time of the next look. */
static uint64_t step_if_due(struct run *r)
{
    uint64_t now = clock_now_ns(), every = (uint64_t)r->o->every_gradients;
    if (!every)
        return now < r->due_ns || advance(r) ? r->due_ns : now + LOOK_MOST_NS;
    uint64_t pending = control_pending(r->control);
    if ((r->asked || pending >= every) && advance(r))
        pending = control_pending(r->control);
    return clock_now_ns() + look_after(r, pending);
}

/* Sets r->why if a reason to end has come. The first reason stays. */
static void look_at_end(struct run *r)
{
    double minutes = (double)(clock_now_ns() - r->began_ns) / 60e9;
    const struct all_locals all = look_at_all(r);
    /* Whether no segment is left that a module could attach to. With a COMMAND the
     * modules' ends tell that. */
    bool detached = !r->o->command && r->n_own > 0 && r->n_own == r->n_locals;
    for (int k = 0; k < r->n_own && detached; k++)
        detached = local_detached(r->locals[k]);
    look_at_limits(r);
    if (!r->why && r->o->minutes > 0 && minutes >= r->o->minutes)
        r->why = "the time is over";
    if (!r->why && all.commands && all.alive == 0) {
        r->failed = all.lost > 0;
        r->why = r->failed ? "no module is left" : "all modules have done their work";
    }
    if (!r->why && detached) {
        r->failed = true;
        r->why = "no segment is left";
    }
}

static void save_if_due(struct run *r)
{
    uint64_t now = clock_now_ns();
    if (!r->o->checkpoint || !due_by_time(r->o->checkpoint_every, r->saved_ns, now) ||
        bsp_model_saving(&r->model))
        return;
    if (bsp_model_save_failed(&r->model))
        log_say(&r->log, DESCANT_WARNING, "a checkpoint failed; training goes on");
    bsp_model_save(&r->model);
    r->saved_ns = now;
}

/* Warns once if no module has come. Modules that a COMMAND starts are logged by
 * modules.c. */
static void say_if_alone(struct run *r)
{
    if (r->o->command || r->said_alone || clock_now_ns() - r->began_ns < ALONE_NS)
        return;
    const struct local_figures all = local_figures_of(r->locals, r->n_locals);
    bool any = all.owners > 0 || all.attached > 0;
    for (int k = r->n_own; k < r->n_locals; k++)
        any |= remote_news(r->locals[k]).came;
    if (any)
        return;
    r->said_alone = true;
    if (r->n_own)
        log_say(&r->log, DESCANT_WARNING,
                "no module has come yet, and there is no COMMAND after --: start one "
                "with DESCANT_SEGMENT=%s-0",
                r->o->name);
    else
        log_say(&r->log, DESCANT_WARNING,
                "there are no local modules yet: descant bsp local of this address is "
                "awaited");
}

/* One turn makes a superstep if it is due, tends everything else, and sleeps until the
 * next of them is due, for TICK_NS at most. */
static void train(struct run *r)
{
    while (!r->why) {
        uint64_t next = step_if_due(r);
        bsp_modules_tend(&r->modules);
        save_if_due(r);
        say_if_alone(r);
        bsp_modules_name_bad(&r->modules, false);
        bsp_log_show(&r->shown, &r->model);
        look_at_end(r);
        if (!r->why)
            rest_until(r, earlier(earlier(next, bsp_modules_next(&r->modules)),
                                  clock_now_ns() + TICK_NS));
    }
}

/* --- the end --- */

static void rest_and_tend(void *of, uint64_t until_ns)
{
    struct run *r = of;
    if (until_ns)
        rest_until(r, until_ns);
    bsp_modules_tend(&r->modules);
}

static struct bsp_ending ending(struct run *r)
{
    return (struct bsp_ending){.modules = &r->modules, .signals = &r->signals,
                               .rest = rest_and_tend, .of = r};
}

/* Waits for local modules elsewhere. While a sum waits to be read out, the last one
 * cannot come. */
static void await_others(struct run *r, uint64_t until)
{
    while (!look_at_all(r).left && clock_now_ns() < until && !r->signals.hurried &&
           !r->bad_link) {
        control_read_out(r->control);
        rest_until(r, until);
    }
    if (!look_at_all(r).left)
        log_say(
            &r->log, DESCANT_WARNING,
            "not all local modules have ended: gradients that they have not handed on "
            "are left out");
}

static void wait_saver(struct run *r)
{
    while (bsp_model_saving(&r->model) && !r->signals.hurried)
        rest_until(r, clock_now_ns() + TICK_NS / 10);
}

static int signalled(const struct run *r)
{
    return first_signal(&r->signals.first);
}

/* Evaluates the final model; a signal ends the evaluation. False: it failed. */
static bool judge_last(struct run *r)
{
    struct bsp_eval *eval = r->model.eval;
    if (!eval || r->bad)
        return true;
    while (!signalled(r) && bsp_eval_busy(eval))
        rest_until(r, clock_now_ns() + TICK_NS / 10);
    bsp_log_eval(&r->shown, &r->model, true);
    if (!signalled(r))
        bsp_eval_begin(eval, &r->model);
    while (!signalled(r) && bsp_eval_busy(eval))
        rest_until(r, clock_now_ns() + TICK_NS / 10);
    return signalled(r) || !bsp_eval_failed(eval);
}

/* The order that the head of this file tells. `until` bounds the wait for other
 * processes: they have the grace of their modules, two signals' time to end them, and
 * LEAVE_NS to hand on the last sums. */
static void end(struct run *r)
{
    struct bsp_end how = {.seconds = (double)(clock_now_ns() - r->began_ns) * 1e-9};
    const struct bsp_ending modules = ending(r);
    uint64_t grace = (uint64_t)(r->o->grace * 1e9) + 2 * TERM_NS + LEAVE_NS;
    uint64_t until = clock_now_ns() + grace;
    for (int k = 0; k < r->n_locals; k++)
        local_end(r->locals[k]);
    bsp_end_modules(&modules);
    await_others(r, until);
    if (!r->limited && !r->bad && !r->signals.hurried)
        superstep(r);
    uint64_t lost = look_at_all(r).gradients_lost;
    if (lost)
        log_say(&r->log, DESCANT_WARNING,
                "%" PRIu64 " gradient%s lost with local modules that died", lost,
                lost == 1 ? " was" : "s were");
    if (r->left && !r->limited && !r->bad)
        log_say(&r->log, DESCANT_WARNING,
                "the last %" PRIu64 " gradient%s left out: a step takes %" PRIu64
                " at least",
                r->left, r->left == 1 ? " is" : "s are", least_of_step(r->o));
    bsp_modules_name_bad(&r->modules, true);
    if (r->o->checkpoint && r->shown.steps && !r->bad) {
        wait_saver(r);
        bool good = bsp_model_save(&r->model);
        wait_saver(r);
        how.kept =
            good && !bsp_model_saving(&r->model) && !bsp_model_save_failed(&r->model);
        r->failed |= !how.kept;
        if (!how.kept)
            log_say(&r->log, DESCANT_ERROR, "the last checkpoint was not written");
    }
    r->failed |= !judge_last(r);
    how.why = r->why;
    how.modules = look_at_all(r).modules;
    how.restarts = look_at_all(r).restarts;
    r->failed |= !bsp_log_end(&r->shown, &r->model, &how);
}

/* The log is closed first, for a hurried end exits while the saver still writes. */
static void close_all(struct run *r)
{
    control_destroy(r->control);
    for (int k = 0; k < r->n_locals; k++)
        local_close(r->locals[k]);
    memory_give(r->locals);
    run_log_close(&r->shown.file);
    if (r->signals.hurried && bsp_model_saving(&r->model)) {
        fflush(NULL);
        _exit(128 + signalled(r));         /* the last whole checkpoint stays */
    }
    bsp_model_close(&r->model);
    lock_give_files(r->locks);
}

int bsp_run(const struct bsp_options *o, struct bsp_link *link, FILE *out, FILE *err)
{
    struct run *r = memory_take(sizeof *r);
    if (!r) {
        fputs("descant: no memory for a run\n", err);
        bsp_link_close(link, false);
        return RUN_FAILED;
    }
    r->o = o;
    r->link = link;
    r->log = (struct log){.fn = progress_log, .user = &r->shown.progress, .rank = -1};
    r->shown = (struct bsp_run_log){.options = o, .out = out, .log = &r->log};
    progress_open(&r->shown.progress, err, o->quiet);
    r->modules = (struct bsp_modules){.options = o, .log = &r->log};
    signals_block(&r->signals);
    nn_thread_init();
    descant_status status = open_all(r);
    if (status == DESCANT_OK) {
        if (is_fixed(r) && r->o->checkpoint)
            warden_start(&r->warden, last_words, r);
        train(r);
        end(r);
        warden_stop(&r->warden);
    } else {
        const struct bsp_ending how = ending(r);
        r->failed = r->modules.ending = true;
        bsp_modules_kill(&r->modules, SIGKILL);
        bsp_end_within(&how, TERM_NS);
    }
    int code = status == DESCANT_INVALID ? RUN_BAD_USE
               : r->failed               ? RUN_FAILED
               : signalled(r)            ? 128 + signalled(r)
                                         : RUN_DONE;
    close_all(r);
    bsp_link_close(link, status == DESCANT_OK && !r->bad_link && !r->signals.hurried);
    signals_give_back(&r->signals);
    memory_give(r);
    return code;
}
