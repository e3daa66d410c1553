/* SPDX-License-Identifier: MIT */
/* Starts the trainers: forks them, passes signals on, logs deaths, waits for all. The
 * parent holds no part of the job; if it dies, its trainers get SIGTERM and stop in good
 * order. A trainer that is killed is no failure of the run: the others train the rest. A
 * trainer that fails, or is killed, before all have started is one: the others would wait
 * for it in vain, so the parent ends them. Until it trains, a signal ends a trainer at
 * once, also where SIGTERM later means that one trainer leaves; then trainer.c heeds it.
 *
 * A rank of an MPI job is forked, too, though alone: its parent only logs the rank and
 * the host of a rank that was killed. The other ranks cannot know: the launcher ends them
 * with it. */
#include "train/launch.h"

#include "run/checkpoint.h"
#include "run/children.h"
#include "run/signals.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_TRAINERS = 64 };

/* The parent's view of its trainers. */
struct family {
    int n, alive;
    pid_t children[MAX_TRAINERS];   /* (n); 0: it has ended */
    int passed;                 /* the signal that was passed on last; 0: none */
    int code;                   /* of the worst that ended by itself, or by the signal it
                                   was passed; -1: there is none */
    bool broken;                /* one failed before all had started; code is its */
    const struct train_shared *shared;
    FILE *err;
};

static void kill_all(const struct family *f, int signal)
{
    for (int k = 0; k < f->n; k++)
        if (f->children[k] > 0)
            kill(f->children[k], signal);
}

static void pass_on(struct family *f, int signal)
{
    f->passed = signal;
    kill_all(f, signal);
}

static void default_signals(void)
{
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    signal(SIGPIPE, SIG_IGN);
}

static pid_t start(const struct train_options *o, const char *name, int rank, FILE *out,
                   FILE *err, struct train_shared *shared)
{
    int orphans_get = o->trainers ? SIGTERM : SIGKILL;
    pid_t parent = getpid(), pid = fork();

    if (pid != 0)
        return pid;
    default_signals();
    child_begin(parent, orphans_get);
    int code = trainer_run(o, name, rank, (int)o->trainers, out, err, shared);
    if (o->watched)
        exit(code);             /* which ends MPI */
    fflush(out);
    fflush(err);
    _exit(code);
}

static void note_end(struct family *f, int rank, int status)
{
    char how[64];
    bool all_started = atomic_load(&f->shared->started) >= (uint32_t)f->n;
    bool good = WIFEXITED(status) && WEXITSTATUS(status) == 0;

    f->children[rank] = 0;
    f->alive--;
    if (f->broken)
        return;
    if (!good && shown_columns(f->err))
        shown_clear_line(f->err);       /* of the progress, which some trainer has
                                           begun */
    if (!all_started && !good && !f->passed) {
        /* Trainers that have started by now learn it from the board. The others wait for
         * a trainer that will not come, and the signal ends them at once, since they do
         * not train yet. */
        f->broken = true;
        f->code = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
        if (WIFSIGNALED(status))
            fprintf(f->err, "descant: trainer %d %s before all had started%s\n", rank,
                    child_end_text(status, how, sizeof how),
                    f->n > 1 ? ": the run ends" : "");
        else if (f->alive)
            fprintf(f->err, "descant: trainer %d could not start: the run ends\n", rank);
        kill_all(f, SIGTERM);
    } else if (WIFSIGNALED(status) && WTERMSIG(status) == f->passed) {
        f->code = 128 + f->passed > f->code ? 128 + f->passed : f->code;
    } else if (WIFSIGNALED(status)) {
        fprintf(f->err, "descant: trainer %d %s%s\n", rank,
                child_end_text(status, how, sizeof how),
                f->alive ? "; the others go on" : "");
    } else if (WEXITSTATUS(status) > f->code) {
        f->code = WEXITSTATUS(status);
    }
}

/* Sleeps until a signal comes, and passes it on where it asks for the end. */
static void rest(struct family *f, struct signals *signals)
{
    signals->came = 0;
    signals_rest(signals, UINT64_MAX);
    if (signals->came)
        pass_on(f, signals->came);
}

static int collect(struct family *f, struct signals *signals)
{
    int status;
    pid_t pid;

    while (f->alive) {
        while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
            int rank = 0;
            while (rank < f->n && f->children[rank] != pid)
                rank++;
            if (rank < f->n)
                note_end(f, rank, status);
        }
        if (pid < 0 && errno == ECHILD)
            break;
        if (f->alive)
            rest(f, signals);
    }
    return f->code;
}

static int fork_all(const struct train_options *o, FILE *out, FILE *err,
                    struct train_shared *shared)
{
    char name[160] = "self";
    const char *comma = strchr(o->link, ',');
    int length = (int)strcspn(o->link, ",");
    struct signals signals;
    struct family f = {.code = -1, .shared = shared, .err = err};

    if (o->trainers > 1)
        snprintf(name, sizeof name, "shm:train-%d-%llx", (int)getpid(),
                 (unsigned long long)clock_now_ns());
    if (o->trainers > 1 && strcmp(o->link, "none") != 0)
        snprintf(name + strlen(name), sizeof name - strlen(name), ",rate=%.*s%s%s",
                 length, o->link, comma ? ",rtt=" : "", comma ? comma + 1 : "");
    fflush(out);
    fflush(err);
    signals_block(&signals);
    while (f.n < (int)o->trainers) {
        pid_t pid = start(o, name, f.n, out, err, shared);
        if (pid < 0) {
            fprintf(err, "descant: trainer %d cannot be started: %s\n", f.n,
                    strerror(errno));
            pass_on(&f, SIGTERM);
            break;
        }
        f.children[f.n++] = pid;
        f.alive++;
    }
    int code = collect(&f, &signals);
    signals_give_back(&signals);
    if (f.n < (int)o->trainers || code >= 0)
        return f.n < (int)o->trainers ? 1 : code;
    if (o->checkpoint && checkpoint_there(o->checkpoint))
        fprintf(err, "descant: no trainer is left; --resume goes on from %s\n",
                o->checkpoint);
    else
        fputs("descant: no trainer is left, and no checkpoint to go on from\n",
              err);
    return 1;
}

/* A rank of an MPI job. */
static int watch_rank(const struct train_options *o, FILE *out, FILE *err,
                      struct train_shared *shared)
{
    struct signals signals;
    struct family f = {.n = 1};
    char host[64] = "", rank[32] = "a rank", how[64];
    int status = 0;

    fflush(out);
    fflush(err);
    signals_block(&signals);
    f.children[0] = start(o, o->job, -1, out, err, shared);
    if (f.children[0] < 0) {
        fprintf(err, "descant: no process for this rank: %s\n", strerror(errno));
        return 1;
    }
    prctl(PR_SET_NAME, "descant-watch");
    while (waitpid(f.children[0], &status, WNOHANG) == 0)
        rest(&f, &signals);
    signals_give_back(&signals);
    if (WIFEXITED(status))
        return WEXITSTATUS(status);
    if (WTERMSIG(status) != f.passed) {
        gethostname(host, sizeof host - 1);
        if (shared->result.rank >= 0)
            snprintf(rank, sizeof rank, "rank %d", shared->result.rank);
        fprintf(err, "descant: %s (%s) %s: the launcher ends the job%s%s\n", rank, host,
                child_end_text(status, how, sizeof how),
                o->checkpoint ? "; --resume goes on from " : "",
                o->checkpoint ? o->checkpoint : "");
        /* and this process ends as the rank did: MPICH's launcher ends the other hosts'
         * ranks for nothing less */
        fflush(NULL);
        prctl(PR_SET_DUMPABLE, 0);
        signal(WTERMSIG(status), SIG_DFL);
        raise(WTERMSIG(status));
    }
    return 128 + WTERMSIG(status);
}

int train_run(const struct train_options *o, FILE *out, FILE *err,
              struct train_result *result)
{
    struct train_shared *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE,
                                       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct progress progress;
    struct log log = {.fn = progress_log, .user = &progress, .rank = -1};
    int code;

    if (shared == MAP_FAILED) {
        fprintf(err, "descant: no memory: %s\n", strerror(errno));
        return 1;
    }
    progress_open(&progress, err, true);
    shared->result.rank = -1;
    signals_forget();
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
        /* the files are this run's as long as this process or one of its trainers
         * lives */
        struct lock locks[LOCK_FILES];
        code = lock_take_files(locks, o->checkpoint, o->log, NULL, &log) == DESCANT_OK
                   ? fork_all(o, out, err, shared)
                   : 1;
        lock_give_files(locks);
    }
    if (result)
        *result = shared->result;
    munmap(shared, sizeof *shared);
    return code;
}
