/* SPDX-License-Identifier: MIT */
/* Runs of descant train on clicks that are generated once for all tests of a program. */
#include "harness/training.h"

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/sendfile.h>

char clicks[96], held_out[96], model_file[96], fifo[96];
double best;

static int made_clicks, made_held_out;      /* files without a name */

static int make(const char *name, uint64_t rows, uint64_t seed)
{
    struct ctr_options o = ctr_options_default();
    struct ctr_summary sum;
    int fd = memfd_create(name, MFD_CLOEXEC);
    FILE *out = fdopen(dup(fd), "w");
    o.rows = rows;
    o.seed = seed;
    o.categories = 1000;
    if (!out || ctr_generate(out, &o, &sum, NULL) != DESCANT_OK || fclose(out) != 0)
        exit(EXIT_FAILURE);
    best = sum.best_logloss;
    return fd;
}

static void copy_made(int fd, const char *path)
{
    int to = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    struct stat of;
    off_t at = 0;
    ck_assert_int_ge(to, 0);
    ck_assert_int_eq(fstat(fd, &of), 0);
    while (at < of.st_size)
        ck_assert_int_gt(sendfile(to, fd, &at, (size_t)(of.st_size - at)), 0);
    ck_assert_int_eq(close(to), 0);
}

void make_clicks(void)
{
    made_clicks = make("clicks", ROWS, 1);
    made_held_out = make("held out", EVAL_ROWS, 2);
}

void put_held_out(const char *path)
{
    copy_made(made_held_out, path);
}

void set_up_training(void)
{
    make_folder();
    snprintf(clicks, sizeof clicks, "%s/clicks.tsv", folder);
    snprintf(held_out, sizeof held_out, "%s/held.tsv", folder);
    snprintf(model_file, sizeof model_file, "%s/model.safetensors", folder);
    snprintf(log_file, sizeof log_file, "%s/run.jsonl", folder);
    snprintf(said_file, sizeof said_file, "%s/said", folder);
    snprintf(fifo, sizeof fifo, "%s/fifo.tsv", folder);
    copy_made(made_clicks, clicks);
    put_held_out(held_out);
}

struct train_options small(void)
{
    struct train_options o = train_options_default();
    o.data = clicks;
    o.format = DATA_CRITEO;
    o.rows = 2000;
    o.width = 4;
    o.bottom = "16";
    o.top = "16";
    o.batch = 32;
    o.chunk = 64 << 10;
    o.optimizer.kind = OPTIMIZER_ADAGRAD;
    o.optimizer.rows = ROWS_ADAGRAD;
    o.lr = 0.05;
    o.start_s = 30;
    o.quiet = true;
    return o;
}

int train(const struct train_options *o, struct train_result *result)
{
    FILE *out = tmpfile();
    struct train_options known = *o;
    train_know_plan(&known);
    memset(result, 0, sizeof *result);
    int status = train_run(&known, out, out, result);
    rewind(out);
    said[fread(said, 1, sizeof said - 1, out)] = 0;
    fclose(out);
    return status;
}

void kill_all(pid_t pid)
{
    int status = 0, other;
    pid_t got = 0;
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    kill(-pid, SIGKILL);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    while ((got = waitpid(-pid, &other, 0)) > 0 || (got < 0 && errno == EINTR))
        continue;
    prctl(PR_SET_CHILD_SUBREAPER, 0);
    ck_assert_msg(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "status %x",
                  (unsigned)status);
}

struct train_options endless(void)
{
    struct train_options o = small();
    o.epochs = 1000000;
    o.log = log_file;
    o.log_every = 0.02;
    o.checkpoint = model_file;
    o.checkpoint_every = 0.05;
    o.lr = 0.01;
    return o;
}

pid_t begin(const struct train_options *o)
{
    FILE *to;
    pid_t pid = fork_saying(&to, SIGTERM);
    if (pid)
        return pid;
    setpgid(0, 0);
    struct train_options known = *o;
    train_know_plan(&known);
    int status = train_run(&known, to, to, NULL);
    fclose(to);
    _exit(status);
}

void wait_examples(double least)
{
    wait_logged("interval", "examples", least);
}

void wait_heeding(const pid_t *pids, int n)
{
    for (int k = 0; k < n; k++)
        WAIT_UNTIL(catches(pids[k], SIGTERM) || is_gone(pids[k]), "process %d; said: %s",
                   (int)pids[k], (read_said(), said));
}

/* Whether the second comes to work while the first is at it: each has n threads then. */
static bool comes_in_time(const pid_t *pids, int n)
{
    for (;; usleep(1000)) {
        bool ended = waitpid(pids[1], NULL, WNOHANG) != 0,
             works = threads_of(pids[1]) >= n;
        if (threads_of(pids[0]) < n)
            return false;
        ck_assert_msg(!ended, "it does not join");
        if (works)
            return true;
    }
}

void begin_and_join(struct train_options *first, struct train_options *second, double before,
                    pid_t *pids)
{
    for (int tries = 0; tries < 3; tries++) {
        first->epochs = second->epochs = PASSES(60) << tries;
        pids[0] = begin(first);
        wait_examples(before + ROWS);
        int n = threads_of(pids[0]);
        pids[1] = begin(second);
        if (comes_in_time(pids, n))
            return;
        ck_assert_msg(end_within(pids[0], 60) == 0, "%s", said);
        kill(pids[1], SIGKILL);
        waitpid(pids[1], NULL, 0);
        ck_assert_int_eq(unlink(log_file) | unlink(said_file), 0);
    }
    ck_abort_msg("nobody joins");
}

double examples_said(void)
{
    const char *at = strstr(said, "  examples  ");
    ck_assert_msg(at != NULL, "no summary in: %s", said);
    ck_assert_msg(!strstr(at + 12, "  examples  "), "two summaries: %s", said);
    return strtod(at + 12, NULL);
}

pid_t begin_rank(struct train_options *o, int rank)
{
    char number[2] = {(char)('0' + rank), 0};
    static char job[64];
    o->trainers = 0;
    snprintf(job, sizeof job, "shm:ends-%d", (int)getpid());
    o->job = job;
    setenv("RANK", number, 1);
    setenv("WORLD_SIZE", "2", 1);
    return begin(o);
}

double examples_kept(void)
{
    struct safetensors *file;
    ck_assert_int_eq(safetensors_open(&file, model_file, NULL), DESCANT_OK);
    double n = strtod(safetensors_text(file, "sums"), NULL);
    safetensors_close(file);
    return n;
}
