/* SPDX-License-Identifier: MIT */
/* The ML modules' processes: one command for each segment, which it finds in
 * DESCANT_SEGMENT. Each is a process group of its own, so that a terminal's Ctrl-C
 * reaches the run alone, and processes that a command has started end with the command.
 * If the run is killed, the kernel sends its modules SIGTERM.
 *
 * A module that ends with status 0 has done its work. A module that dies or fails is
 * started again after a while that doubles, up to --restarts times; the others go on.
 *
 * Signals are blocked in the run's threads, but not in its modules. */
#include "control/control.h"
#include "run/children.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define FIRST_WAIT_NS UINT64_C(100000000)
#define NAME_NS UINT64_C(1000000000)
enum { MOST_DOUBLINGS = 7 };

/* A module is no rank of the job, so the variables by which an MPI library would take it
 * for one are removed. */
static void forget_launcher(void)
{
    static const char *const begins[] = {"OMPI_", "PMIX_", "PMI_", "MPI_LOCAL"};
    for (char **at = environ; *at;) {
        char name[128];
        bool launcher = false;
        for (size_t i = 0; i < sizeof begins / sizeof *begins; i++)
            launcher |= strncmp(*at, begins[i], strlen(begins[i])) == 0;
        snprintf(name, sizeof name, "%.*s", (int)strcspn(*at, "="), *at);
        if (!launcher || unsetenv(name) != 0 || strlen(name) + 1 == sizeof name)
            at++;
    }
}

/* In the child: becomes the command. `failed` is a pipe that exec closes, or that brings
 * the parent errno. */
static void become_module(const struct bsp_options *o, int k, pid_t parent, int failed)
{
    char name[BSP_SEGMENT], number[16], all[16];
    int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
    setpgid(0, 0);
    for (int s = 1; s < NSIG; s++)
        signal(s, SIG_DFL);
    child_begin(parent, SIGTERM);
    if (nothing >= 0)
        dup2(nothing, STDIN_FILENO);
    forget_launcher();
    snprintf(number, sizeof number, "%d", o->first_module + k);
    snprintf(all, sizeof all, "%d", o->all_modules);
    setenv("DESCANT_SEGMENT",
           local_name(o->name, o->first_module + k, name, sizeof name), 1);
    setenv("DESCANT_MODULE", number, 1);
    setenv("DESCANT_MODULES", all, 1);
    execvp(o->command[0], o->command);
    int why = errno;
    if (write(failed, &why, sizeof why) < 0)
        _exit(126);
    _exit(127);
}

/* Returns once the command runs, or has failed to start. */
static descant_status start(struct bsp_modules *m, int k)
{
    int ends[2], why = 0;
    pid_t parent = getpid();
    if (pipe2(ends, O_CLOEXEC) != 0)
        return log_fail(m->log, DESCANT_SYSTEM, "module %d: no pipe: %s",
                        m->options->first_module + k, strerror(errno));
    pid_t pid = fork();
    if (pid == 0)
        become_module(m->options, k, parent, ends[1]);
    int error = errno;
    close(ends[1]);
    bool failed = pid > 0 && read(ends[0], &why, sizeof why) == (ssize_t)sizeof why;
    close(ends[0]);
    if (pid < 0)
        return log_fail(m->log, DESCANT_SYSTEM, "module %d: no process: %s",
                        m->options->first_module + k, strerror(error));
    if (failed) {
        waitpid(pid, NULL, 0);
        return log_fail(m->log, DESCANT_SYSTEM, "%s: cannot be started: %s",
                        m->options->command[0], strerror(why));
    }
    m->at[k].pid = pid;
    m->at[k].state = BSP_RUNS;
    return DESCANT_OK;
}

descant_status bsp_modules_start(struct bsp_modules *m)
{
    descant_status status = DESCANT_OK;
    m->n = (int)m->options->modules;
    for (int k = 0; k < m->n && status == DESCANT_OK; k++)
        status = start(m, k);
    return status;
}

/* Settles the state of a module that was reaped with this status: done, lost, or to be
 * started again. */
static void note_end(struct bsp_modules *m, int k, int status)
{
    struct bsp_module *one = &m->at[k];
    int number = m->options->first_module + k;
    char how[64];
    one->pid = 0;
    if (one->state == BSP_LOST)
        return;
    one->state = BSP_DONE;
    if (m->ending || (WIFEXITED(status) && WEXITSTATUS(status) == 0))
        return;
    child_end_text(status, how, sizeof how);
    if (one->restarts == m->options->restarts) {
        one->state = BSP_LOST;
        log_say(m->log, DESCANT_WARNING, "module %d %s, and is not started again%s",
                number, how, bsp_modules_alive(m) ? "; the others go on" : "");
        return;
    }
    int doublings = one->restarts < MOST_DOUBLINGS ? one->restarts : MOST_DOUBLINGS;
    one->again_ns = clock_now_ns() + (FIRST_WAIT_NS << doublings);
    one->state = BSP_WAITS;
    one->restarts++;
    log_say(m->log, DESCANT_WARNING, "module %d %s: it is started again (%d of %d)",
            number, how, one->restarts, (int)m->options->restarts);
}

/* Its children end with it; until it is reaped, no other process can have the number. */
static bool has_ended(pid_t pid, int *status)
{
    siginfo_t info = {0};
    if (pid <= 0 || waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
        info.si_pid != pid)
        return false;
    kill(-pid, SIGTERM);
    return waitpid(pid, status, 0) == pid;
}

/* Ends a module whose segment is detached. */
static void give_up(struct bsp_modules *m, int k)
{
    if (k >= m->n || m->at[k].state == BSP_LOST)
        return;
    m->at[k].state = BSP_LOST;
    if (m->at[k].pid > 0)
        kill(-m->at[k].pid, SIGKILL);
    log_say(m->log, DESCANT_WARNING,
            "module %d has written where it must not: it is ended, and is not started "
            "again%s",
            m->options->first_module + k,
            bsp_modules_alive(m) > (m->at[k].pid > 0) ? "; the others go on" : "");
}

/* Detached segments come first: note_end sees that their modules are lost, and starts
 * none again. */
void bsp_modules_tend(struct bsp_modules *m)
{
    bool any = false;
    int status;
    for (int k = 0; k < m->n_locals; k++)
        if (local_detached(m->locals[k]))
            give_up(m, k);
    for (int k = 0; k < m->n; k++) {
        if (has_ended(m->at[k].pid, &status)) {
            note_end(m, k, status);
            any = true;
        }
        if (m->at[k].state != BSP_WAITS || clock_now_ns() < m->at[k].again_ns)
            continue;
        if (m->ending)
            m->at[k].state = BSP_DONE;
        else if (start(m, k) != DESCANT_OK)
            m->at[k].state = BSP_LOST;
    }
    for (int k = 0; k < m->n_locals && any; k++)
        local_sweep(m->locals[k]);
}

void bsp_modules_name_bad(struct bsp_modules *m, bool now)
{
    int pid;
    if (!now && clock_now_ns() - m->named_ns <= NAME_NS)
        return;
    for (int k = 0; k < m->n_locals; k++) {
        uint64_t bad = local_bad(m->locals[k], &pid);
        if (bad)
            log_say(m->log, DESCANT_WARNING,
                    "module %d, process %d: %" PRIu64
                    " gradient%s with NaN or Inf refused",
                    m->options->first_module + k, pid, bad, bad == 1 ? "" : "s");
    }
    m->named_ns = clock_now_ns();
}

uint64_t bsp_modules_next(const struct bsp_modules *m)
{
    uint64_t next = 0;
    for (int k = 0; k < m->n; k++)
        if (m->at[k].state == BSP_WAITS && (!next || m->at[k].again_ns < next))
            next = m->at[k].again_ns;
    return next;
}

int bsp_modules_alive(const struct bsp_modules *m)
{
    int n = 0;
    for (int k = 0; k < m->n; k++)
        n += m->at[k].pid > 0 || (m->at[k].state == BSP_WAITS && !m->ending);
    return n;
}

struct crew_figures bsp_modules_figures(const struct bsp_modules *m)
{
    struct crew_figures all = {.commands = m->n > 0, .alive = bsp_modules_alive(m)};
    for (int k = 0; k < m->n; k++) {
        all.lost += m->at[k].state == BSP_LOST;
        all.restarts += m->at[k].restarts;
    }
    return all;
}

void bsp_modules_kill(struct bsp_modules *m, int signal)
{
    for (int k = 0; k < m->n; k++)
        if (m->at[k].pid > 0)
            kill(-m->at[k].pid, signal);
}
