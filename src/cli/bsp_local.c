/* SPDX-License-Identifier: MIT */
/* descant bsp local, and the ranks of descant bsp run that are not the first: local modules whose
 * control is another process. One thread, as in bsp_run.c. It begins when control tells it of what
 * shape the model is, and ends when control says that the run is over, or by a signal: then its
 * modules leave, what they committed is read out a last time, and control has it before this ends.
 *
 * Without a control it goes on, and so do its modules, until one is there again. */
#include "bsp/branch.h"
#include "cli/bsp.h"

#include <inttypes.h>

#define TICK_NS UINT64_C(100000000)
#define SECOND_NS UINT64_C(1000000000)
#define ALONE_NS (3 * SECOND_NS)
#define LAST_NS (10 * SECOND_NS)            /* that control may take for the last sum */

struct process {
    struct bsp_options o;
    FILE *err;
    struct log log;
    struct bsp_link *link;
    struct branch *branch;
    struct local *locals[BSP_MODULES];      /* the branch's; n_locals 0: there is no model yet */
    int n_locals;
    struct bsp_modules modules;
    struct bsp_signals signals;
    descant_status status;
    uint64_t began_ns, named_ns;
    bool said_alone;
};

static void to_err(void *user, enum descant_level level, const char *line)
{
    struct process *p = user;
    if (level < DESCANT_WARNING)
        return;
    fprintf(p->err, "descant: %s\n", line);
    fflush(p->err);
}

static void say_crew(struct process *p)
{
    bool started = p->modules.n > 0;
    const struct crew_figures crew = {
        .commands = p->o.command != NULL,
        .alive = !p->o.command ? 0 : started ? bsp_modules_alive(&p->modules) : (int)p->o.modules,
        .lost = bsp_modules_lost(&p->modules),
        .restarts = bsp_modules_restarts(&p->modules),
    };
    branch_say_crew(p->branch, &crew);
}

static void look_at_control(struct process *p)
{
    bool heard = false;
    if (p->status != DESCANT_OK)
        return;
    p->status = p->link->f->type->post->move(p->link->f);
    if (p->status == DESCANT_OK)
        p->status = branch_turn(p->branch, &heard);
    if (heard)
        p->link->heard_ns = clock_now_ns();
}

static void tend(struct process *p)
{
    for (int k = 0; k < p->n_locals; k++)
        if (local_detached(p->locals[k]))
            bsp_modules_give_up(&p->modules, k);
    if (bsp_modules_tend(&p->modules))
        for (int k = 0; k < p->n_locals; k++)
            local_sweep(p->locals[k]);
    say_crew(p);
}

static void rest_and_tend(void *of, uint64_t until_ns)
{
    struct process *p = of;
    uint64_t look = bsp_link_look(p->link);
    if (until_ns && bsp_signals_rest(&p->signals, until_ns < look ? until_ns : look))
        fprintf(p->err, "descant: %s: these local modules end; another one, more than a second "
                "later, ends them at once\n",
                bsp_signals_name(&p->signals));
    tend(p);
    look_at_control(p);
}

static void name_bad(struct process *p)
{
    for (int k = 0; k < p->n_locals; k++) {
        int pid;
        uint64_t bad = local_bad(p->locals[k], &pid);
        if (bad)
            log_say(&p->log, DESCANT_WARNING, "module %d, process %d: %" PRIu64 " gradient%s with "
                    "NaN or Inf refused", p->o.first_module + k, pid, bad, bad == 1 ? "" : "s");
    }
    p->named_ns = clock_now_ns();
}

/* With the first model there are segments. */
static void begin_modules(struct process *p)
{
    if (p->n_locals || !branch_locals(p->branch))
        return;
    p->n_locals = branch_locals(p->branch);
    for (int k = 0; k < p->n_locals; k++)
        p->locals[k] = branch_local(p->branch, k);
    p->o.first_module = branch_first(p->branch);
    p->o.all_modules = branch_all(p->branch);
    if (p->o.command)
        p->status = bsp_modules_start(&p->modules, &p->o, &p->log);
}

static void say_if_alone(struct process *p)
{
    if (p->said_alone || p->n_locals || !branch_alone(p->branch) ||
        clock_now_ns() - p->began_ns < ALONE_NS)
        return;
    p->said_alone = true;
    log_say(&p->log, DESCANT_WARNING, "there is no control yet: descant bsp control of this "
            "address is awaited");
}

static void work(struct process *p)
{
    while (p->status == DESCANT_OK && !p->signals.signal && !branch_ended(p->branch)) {
        begin_modules(p);
        say_if_alone(p);
        if (clock_now_ns() - p->named_ns > SECOND_NS)
            name_bad(p);
        uint64_t until = clock_now_ns() + TICK_NS, next = bsp_modules_next(&p->modules);
        rest_and_tend(p, next && next < until ? next : until);
    }
}

static void say_what_is_lost(struct process *p)
{
    uint64_t lost = branch_untaken(p->branch);
    if (lost)
        log_say(&p->log, DESCANT_WARNING, "%" PRIu64 " gradient%s lost: control has not taken %s",
                lost, lost == 1 ? " is" : "s are", lost == 1 ? "it" : "them");
}

static void end(struct process *p)
{
    const struct bsp_ending how = {.modules = &p->modules, .locals = p->locals,
                                   .n_locals = p->n_locals, .signals = &p->signals,
                                   .rest = rest_and_tend, .of = p};
    branch_end(p->branch);
    bsp_end_modules(&how);
    name_bad(p);
    branch_last(p->branch);
    uint64_t until = clock_now_ns() + LAST_NS;
    while (p->status == DESCANT_OK && !branch_done(p->branch) && !branch_alone(p->branch) &&
           !p->signals.hurried && clock_now_ns() < until)
        rest_and_tend(p, until);
    say_what_is_lost(p);
}

int bsp_local(const struct cli *cli, const struct bsp_options *o, struct bsp_link *link)
{
    struct process *p = memory_take(sizeof *p);
    if (!p) {
        fputs("descant: no memory for local modules\n", cli->err);
        bsp_link_close(link, false);
        return CLI_FAILED;
    }
    p->o = *o;
    p->err = cli->err;
    p->link = link;
    p->began_ns = clock_now_ns();
    p->log = (struct log){.fn = to_err, .user = p, .rank = -1};
    bsp_signals_hold(&p->signals);
    const struct branch_options options = {.f = link->f, .name = o->name, .slots = (int)o->slots,
                                           .modules = (int)o->modules, .log = &p->log};
    p->status = branch_open(&p->branch, &options);
    if (p->status == DESCANT_OK) {
        say_crew(p);
        work(p);
        end(p);
    }
    int code = p->status != DESCANT_OK || bsp_modules_lost(&p->modules) ? CLI_FAILED
               : p->signals.signal ? 128 + p->signals.signal : CLI_DONE;
    branch_close(p->branch);
    bsp_link_close(link, p->status == DESCANT_OK && !p->signals.hurried);
    bsp_signals_give_back(&p->signals);
    memory_give(p);
    return code;
}
