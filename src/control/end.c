/* SPDX-License-Identifier: MIT */
/* The end of modules. Their segments have been ended, so that modules leave by
 * themselves; a module that has not left after a while gets SIGTERM, then SIGKILL. */
#include "control/control.h"

#define TICK_NS UINT64_C(100000000)
#define TERM_NS UINT64_C(2000000000)

bool bsp_end_within(const struct bsp_ending *how, uint64_t ns)
{
    uint64_t until = clock_now_ns() + ns, now = 0;
    how->rest(how->of, 0);
    while (bsp_modules_alive(how->modules) && (now = clock_now_ns()) < until &&
           !how->signals->hurried)
        how->rest(how->of, until < now + TICK_NS ? until : now + TICK_NS);
    return bsp_modules_alive(how->modules) == 0;
}

/* A second signal cuts the waits short, but not the last one: killed modules end at once,
 * and are to be reaped. */
void bsp_end_modules(const struct bsp_ending *how)
{
    struct bsp_modules *m = how->modules;
    if (m->n == 0)
        return;
    m->ending = true;
    /* A module that has not attached yet would wait for its segment, which has ended. */
    for (int k = 0; k < m->n && k < m->n_locals; k++) {
        struct local_figures f;
        local_figures(m->locals[k], &f);
        if (m->at[k].pid > 0 && f.attached == 0 &&
            f.owners <= (uint64_t)m->at[k].restarts)
            kill(-m->at[k].pid, SIGTERM);
    }
    if (bsp_end_within(how, (uint64_t)(m->options->grace * 1e9)))
        return;
    bsp_modules_kill(m, SIGTERM);
    if (bsp_end_within(how, TERM_NS))
        return;
    bool hurried = how->signals->hurried;
    how->signals->hurried = false;
    bsp_modules_kill(m, SIGKILL);
    bsp_end_within(how, TERM_NS);
    how->signals->hurried = hurried;
}
