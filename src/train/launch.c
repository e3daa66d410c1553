/* SPDX-License-Identifier: MIT */
/* Starts the trainers: forks them, passes signals on, says who died, waits for all. The parent
 * holds no part of the job; if it dies, its trainers get SIGTERM and stop in good order. A trainer
 * that is killed is no failure of the run: the others train the rest. One that fails, or is killed,
 * before all have started is: the others would wait for it in vain, so the parent ends them. Until
 * it trains, a signal ends a trainer at once; then trainer.c heeds it.
 *
 * A rank of an MPI job is forked, too, though alone: its parent has nothing to do but to say which
 * rank on which host was killed. The other ranks cannot know: the launcher ends them with it. */
#include "train/launch.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_TRAINERS = 64 };

static pid_t children[MAX_TRAINERS];

static void pass_on(int signal)
{
    atomic_store_explicit(&trainer_signal, signal, memory_order_relaxed);
    for (int k = 0; k < MAX_TRAINERS; k++)
        if (children[k] > 0)
            kill(children[k], signal);
}

static void default_signals(void)
{
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    signal(SIGPIPE, SIG_IGN);
}

static void job_name(const struct train_options *o, char *name, size_t room)
{
    const char *comma = strchr(o->link, ',');

    if (o->trainers == 1)
        snprintf(name, room, "self");
    else if (strcmp(o->link, "none") == 0)
        snprintf(name, room, "shm:train-%d-%llx", (int)getpid(),
                 (unsigned long long)clock_now_ns());
    else
        snprintf(name, room, "shm:train-%d-%llx,rate=%.*s%s%s", (int)getpid(),
                 (unsigned long long)clock_now_ns(),
                 (int)(comma ? comma - o->link : (long)strlen(o->link)), o->link,
                 comma ? ",rtt=" : "", comma ? comma + 1 : "");
}

/* Blocked signals come to the child once their handlers are those of a child. */
static pid_t start(const struct train_options *o, const char *name, int rank, FILE *out, FILE *err,
                   struct train_shared *shared)
{
    int orphans_get = o->trainers ? SIGTERM : SIGKILL;
    pid_t parent = getpid(), pid = fork();

    if (pid != 0)
        return pid;
    sigset_t none;
    memset(children, 0, sizeof children);
    atomic_store(&trainer_signal, 0);
    default_signals();
    prctl(PR_SET_PDEATHSIG, orphans_get);
    if (getppid() != parent)
        _exit(128 + orphans_get);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    int code = trainer_run(o, name, rank, (int)o->trainers, out, err, shared);
    if (o->watched)
        exit(code);             /* which ends MPI */
    fflush(out);
    fflush(err);
    _exit(code);
}

static int rank_of(pid_t pid, int n)
{
    for (int k = 0; k < n; k++)
        if (children[k] == pid)
            return k;
    return -1;
}

/* What the parent knows of its trainers. */
struct family {
    int n, alive;
    int code;                   /* of the worst that ended by itself, or by the signal it was
                                   passed; -1: there is none */
    bool broken;                /* one failed before all had started; code is its */
    const struct train_shared *shared;
    FILE *err;
};

/* Those that have started by now learn it from the board, the others wait for somebody who will not
 * come: until it trains, the signal ends a trainer at once. */
static void break_off(struct family *f, int rank, int status)
{
    f->broken = true;
    f->code = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
    if (WIFSIGNALED(status))
        fprintf(f->err, "descant: trainer %d was killed by signal %d before all had started%s\n",
                rank, WTERMSIG(status), f->n > 1 ? ": the run ends" : "");
    else if (f->alive)
        fprintf(f->err, "descant: trainer %d could not start: the run ends\n", rank);
    for (int k = 0; k < f->n; k++)
        if (children[k] > 0)
            kill(children[k], SIGTERM);
}

static void note_end(struct family *f, int rank, int status)
{
    int passed = atomic_load(&trainer_signal);
    bool all_started = atomic_load(&f->shared->started) >= (uint32_t)f->n;
    bool good = WIFEXITED(status) && WEXITSTATUS(status) == 0;

    children[rank] = 0;
    f->alive--;
    if (f->broken)
        return;
    if (!good && shown_columns(f->err))
        shown_clear_line(f->err);       /* of the progress, which some trainer has begun */
    if (!all_started && !good && !passed)
        break_off(f, rank, status);
    else if (WIFSIGNALED(status) && WTERMSIG(status) == passed)
        f->code = 128 + passed > f->code ? 128 + passed : f->code;
    else if (WIFSIGNALED(status))
        fprintf(f->err, "descant: trainer %d was killed by signal %d%s\n", rank, WTERMSIG(status),
                f->alive ? "; the others go on" : "");
    else if (WEXITSTATUS(status) > f->code)
        f->code = WEXITSTATUS(status);
}

/* Waits for all children, passing signals on: all that are in `held` come here alone. */
static int collect(struct family *f, const sigset_t *held)
{
    int status;
    pid_t pid;

    while (f->alive) {
        while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
            int rank = rank_of(pid, f->n);
            if (rank >= 0)
                note_end(f, rank, status);
        }
        if (pid < 0 && errno == ECHILD)
            break;
        int signal = f->alive ? sigwaitinfo(held, NULL) : 0;
        if (signal == SIGINT || signal == SIGTERM)
            pass_on(signal);
    }
    return f->code;
}

/* All were killed: a status, after saying what is left. */
static int say_none_left(const struct train_options *o, FILE *err)
{
    if (o->checkpoint && checkpoint_there(o))
        fprintf(err, "descant: no trainer is left; --resume goes on from %s\n", o->checkpoint);
    else
        fputs("descant: no trainer is left, and nothing that the run could go on from\n", err);
    return 1;
}

/* One that is ignored, as a parent may have handed it on, would come to nobody. */
static void hold_signals(sigset_t *held, sigset_t *old)
{
    signal(SIGCHLD, SIG_DFL);
    sigemptyset(held);
    sigaddset(held, SIGINT);
    sigaddset(held, SIGTERM);
    sigaddset(held, SIGCHLD);
    signal(SIGCHLD, SIG_DFL);       /* where who started us ignores it, no child's end is told */
    sigprocmask(SIG_BLOCK, held, old);
}

static int fork_all(const struct train_options *o, FILE *out, FILE *err,
                    struct train_shared *shared)
{
    char name[160];
    sigset_t held, old;
    int n = (int)o->trainers, started;

    job_name(o, name, sizeof name);
    fflush(out);
    fflush(err);
    hold_signals(&held, &old);
    for (started = 0; started < n; started++) {
        pid_t pid = start(o, name, started, out, err, shared);
        if (pid < 0) {
            fprintf(err, "descant: trainer %d cannot be started: %s\n", started, strerror(errno));
            pass_on(SIGTERM);
            break;
        }
        children[started] = pid;
    }
    struct family f = {.n = started, .alive = started, .code = -1, .shared = shared, .err = err};
    int code = collect(&f, &held);
    sigprocmask(SIG_SETMASK, &old, NULL);
    if (started < n)
        return 1;
    return code < 0 ? say_none_left(o, err) : code;
}

/* The files are this run's as long as this process or one of its trainers lives. */
static int fork_locked(const struct train_options *o, FILE *out, FILE *err,
                       struct train_shared *shared, const struct log *log)
{
    struct lock checkpoint = {0}, run_log = {0};
    int code = 1;

    if (lock_take(&checkpoint, o->checkpoint, NULL, true, log) == DESCANT_OK &&
        lock_take(&run_log, o->log, NULL, false, log) == DESCANT_OK)
        code = fork_all(o, out, err, shared);
    lock_give(&run_log);
    lock_give(&checkpoint);
    return code;
}

/* --- a rank of an MPI job --- */

static void say_rank_killed(const struct train_options *o, const struct train_result *result,
                            int signal, FILE *err)
{
    char host[64] = "", rank[32] = "a rank";

    gethostname(host, sizeof host - 1);
    if (result->rank >= 0)
        snprintf(rank, sizeof rank, "rank %d", result->rank);
    fprintf(err, "descant: %s (%s) was killed by signal %d: the launcher ends the job%s%s\n", rank,
            host, signal, o->checkpoint ? "; --resume goes on from " : "",
            o->checkpoint ? o->checkpoint : "");
}

/* As the rank did: MPICH's launcher ends the other hosts' ranks for nothing less. */
static void end_by(int number)
{
    fflush(NULL);
    prctl(PR_SET_DUMPABLE, 0);
    signal(number, SIG_DFL);
    raise(number);
}

static int watch_rank(const struct train_options *o, FILE *out, FILE *err,
                      struct train_shared *shared)
{
    sigset_t held, old;
    int status = 0, signal;

    fflush(out);
    fflush(err);
    hold_signals(&held, &old);
    children[0] = start(o, o->job, -1, out, err, shared);
    if (children[0] < 0) {
        fprintf(err, "descant: no process for this rank: %s\n", strerror(errno));
        return 1;
    }
    prctl(PR_SET_NAME, "descant-watch");
    while (waitpid(children[0], &status, WNOHANG) == 0)
        if ((signal = sigwaitinfo(&held, NULL)) == SIGINT || signal == SIGTERM)
            pass_on(signal);
    children[0] = 0;
    sigprocmask(SIG_SETMASK, &old, NULL);
    if (WIFEXITED(status))
        return WEXITSTATUS(status);
    if (WTERMSIG(status) != atomic_load(&trainer_signal)) {
        say_rank_killed(o, &shared->result, WTERMSIG(status), err);
        end_by(WTERMSIG(status));
    }
    return 128 + WTERMSIG(status);
}

static void to_err(void *user, enum descant_level level, const char *line)
{
    if (level >= DESCANT_WARNING)
        fprintf(user, "descant: %s\n", line);
}

int train_run(const struct train_options *o, FILE *out, FILE *err, struct train_result *result)
{
    struct train_shared *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE,
                                       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct log log = {.fn = to_err, .user = err, .rank = -1};
    int code;

    if (shared == MAP_FAILED) {
        fprintf(err, "descant: no memory: %s\n", strerror(errno));
        return 1;
    }
    shared->result.rank = -1;
    atomic_store(&trainer_signal, 0);
    descant_status checked = train_check(o, &log);
    if (checked != DESCANT_OK) {
        code = checked == DESCANT_INVALID ? 2 : 1;
    } else if (o->watched) {
        code = watch_rank(o, out, err, shared);
    } else if (o->trainers == 0) {
        default_signals();
        code = trainer_run(o, o->job, -1, 0, out, err, shared);
        default_signals();
    } else {
        code = fork_locked(o, out, err, shared, &log);
    }
    if (result)
        *result = shared->result;
    munmap(shared, sizeof *shared);
    return code;
}
