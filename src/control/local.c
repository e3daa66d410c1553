/* SPDX-License-Identifier: MIT */
/* descant bsp local, and the ranks of descant bsp run that are not the first: local
 * modules whose control is another process. One thread, as in run.c. It begins when
 * control sends the model's shape, and ends when control says that the run is over, or by
 * a signal: then its modules leave, their last gradients are read out, and control has
 * these before this process ends.
 *
 * Without a control this process and its modules go on until one is there again. */
#include "bsp/branch.h"
#include "control/control.h"
#include "run/progress.h"

#include <inttypes.h>

#define TICK_NS UINT64_C(100000000)
#define SECOND_NS UINT64_C(1000000000)
#define ALONE_NS (3 * SECOND_NS)
#define LAST_NS (10 * SECOND_NS)            /* for control to take the last sum */

struct process {
    struct bsp_options o;
    struct progress progress;
    struct log log;
    struct bsp_link *link;
    struct branch *branch;
    /* the branch's; n_locals 0: there is no model yet */
    struct local *locals[BSP_MODULES];
    int n_locals;
    struct bsp_modules modules;
    struct signals signals;
    descant_status status;
    uint64_t began_ns;
    bool said_alone;
};

/* Tells control of the commands here. Commands that are about to be started count as
 * alive, lest control take the run for done. */
static void say_crew(struct process *p)
{
    struct crew_figures crew = bsp_modules_figures(&p->modules);
    if (p->o.command && !crew.commands)     /* they are about to be started */
        crew = (struct crew_figures){.commands = 1, .alive = (int32_t)p->o.modules};
    branch_say_crew(p->branch, &crew);
}

/* Sleeps until until_ns (0: not at all), a signal or the next look for parcels, then
 * hears and says all. Modules are tended first, so that control hears at once of those
 * that have ended. */
static void rest_and_tend(void *of, uint64_t until_ns)
{
    struct process *p = of;
    uint64_t look = bsp_link_look(p->link);
    bool heard = false;
    if (until_ns &&
        signals_rest(&p->signals, until_ns < look ? until_ns : look) == SIGNAL_ENDS)
        fprintf(p->progress.err,
                "descant: %s: these local modules end; " SIGNALS_AGAIN "them at once\n",
                signal_name(p->signals.came));
    bsp_modules_tend(&p->modules);
    say_crew(p);
    if (p->status == DESCANT_OK)
        p->status = p->link->f->type->post->move(p->link->f);
    if (p->status == DESCANT_OK)
        p->status = branch_turn(p->branch, &heard);
    if (heard)
        p->link->heard_ns = clock_now_ns();
}

/* With the first model there are segments. */
static void begin_modules(struct process *p)
{
    p->n_locals = branch_locals(p->branch);
    for (int k = 0; k < p->n_locals; k++)
        p->locals[k] = branch_local(p->branch, k);
    p->o.first_module = branch_first(p->branch);
    p->o.all_modules = branch_all(p->branch);
    p->modules.n_locals = p->n_locals;
    if (p->o.command)
        p->status = bsp_modules_start(&p->modules);
}

static void work(struct process *p)
{
    while (p->status == DESCANT_OK && !first_signal(&p->signals.first) &&
           !branch_ended(p->branch)) {
        if (!p->n_locals && branch_locals(p->branch))
            begin_modules(p);
        if (!p->said_alone && !p->n_locals && branch_alone(p->branch) &&
            clock_now_ns() - p->began_ns >= ALONE_NS) {
            p->said_alone = true;
            log_say(&p->log, DESCANT_WARNING,
                    "there is no control yet: descant bsp control of this address is "
                    "awaited");
        }
        bsp_modules_name_bad(&p->modules, false);
        uint64_t until = clock_now_ns() + TICK_NS, next = bsp_modules_next(&p->modules);
        rest_and_tend(p, next && next < until ? next : until);
    }
}

/* The order matters: segments end, so that modules leave; once the modules are gone the
 * last sum is read out; then the process stays until control has that sum, is gone, or
 * LAST_NS are over. */
static void end(struct process *p)
{
    const struct bsp_ending how = {.modules = &p->modules, .signals = &p->signals,
                                   .rest = rest_and_tend, .of = p};
    branch_end(p->branch);
    bsp_end_modules(&how);
    bsp_modules_name_bad(&p->modules, true);
    branch_last(p->branch);
    uint64_t until = clock_now_ns() + LAST_NS;
    while (p->status == DESCANT_OK && !branch_done(p->branch) &&
           !branch_alone(p->branch) && !p->signals.hurried && clock_now_ns() < until)
        rest_and_tend(p, until);
    uint64_t lost = branch_untaken(p->branch);
    if (lost)
        log_say(&p->log, DESCANT_WARNING,
                "%" PRIu64 " gradient%s lost: control has not taken %s", lost,
                lost == 1 ? " is" : "s are", lost == 1 ? "it" : "them");
}

int bsp_local(const struct bsp_options *o, struct bsp_link *link, FILE *err)
{
    struct process *p = memory_take(sizeof *p);
    if (!p) {
        fputs("descant: no memory for local modules\n", err);
        bsp_link_close(link, false);
        return RUN_FAILED;
    }
    p->o = *o;
    progress_open(&p->progress, err, true);
    p->link = link;
    p->began_ns = clock_now_ns();
    p->log = (struct log){.fn = progress_log, .user = &p->progress, .rank = -1};
    p->modules =
        (struct bsp_modules){.options = &p->o, .log = &p->log, .locals = p->locals};
    signals_block(&p->signals);
    const struct branch_options options = {.f = link->f,
                                           .name = o->name,
                                           .slots = (int)o->slots,
                                           .modules = (int)o->modules,
                                           .log = &p->log};
    p->status = branch_open(&p->branch, &options);
    if (p->status == DESCANT_OK) {
        say_crew(p);
        work(p);
        end(p);
    }
    int signal = first_signal(&p->signals.first);
    int code = p->status != DESCANT_OK || bsp_modules_figures(&p->modules).lost
                   ? RUN_FAILED
               : signal ? 128 + signal
                        : RUN_DONE;
    branch_close(p->branch);
    bsp_link_close(link, p->status == DESCANT_OK && !p->signals.hurried);
    signals_give_back(&p->signals);
    memory_give(p);
    return code;
}
