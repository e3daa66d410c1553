/* SPDX-License-Identifier: MIT */
/* What the tests of training share: a folder with generated clicks, a small run of descant train
 * in this process or a child, and the program's commands. */
#ifndef TRAINING_H
#define TRAINING_H

#include "data/data.h"
#include "data/safetensors.h"
#include "programs.h"
#include "train/launch.h"
#include "train/saved.h"

#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define UNUSED __attribute__((unused))

/* Passes over the data of runs that must last a while: fewer where each takes longer. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define PASSES(n) ((n) / 5)
#else
#define PASSES(n) (n)
#endif

enum { ROWS = 20000, EVAL_ROWS = 4000 };

static char folder[64], clicks[96], held_out[96], model_file[96], log_file[96], said_file[96];
UNUSED static char fifo[96];         /* a name for one */
static double best;

static int made_clicks, made_held_out;      /* files without a name: main generates once */

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

UNUSED static void setup(void)
{
    snprintf(folder, sizeof folder, "/tmp/descant-trainer-XXXXXX");
    ck_assert(mkdtemp(folder));
    snprintf(clicks, sizeof clicks, "%s/clicks.tsv", folder);
    snprintf(held_out, sizeof held_out, "%s/held.tsv", folder);
    snprintf(model_file, sizeof model_file, "%s/model.safetensors", folder);
    snprintf(log_file, sizeof log_file, "%s/run.jsonl", folder);
    snprintf(said_file, sizeof said_file, "%s/said", folder);
    snprintf(fifo, sizeof fifo, "%s/fifo.tsv", folder);
    copy_made(made_clicks, clicks);
    copy_made(made_held_out, held_out);
}

UNUSED static void teardown(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    ck_assert_int_eq(system(command), 0);
}

UNUSED static struct train_options small(void)
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
    o.optimizer = OPTIMIZER_ADAGRAD;
    o.table_optimizer = ROWS_ADAGRAD;
    o.lr = 0.05;
    o.start_s = 30;
    o.quiet = true;
    return o;
}

static char said[8192];

/* What was printed, to stdout and stderr alike, is in `said`. */
UNUSED static int train(const struct train_options *o, struct train_result *result)
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

UNUSED static void assert_says(const char *text)
{
    ck_assert_msg(strstr(said, text) != NULL, "'%s' is not in:\n%s", text, said);
}

/* Trains in a child of its own. */
UNUSED static pid_t train_aside(const struct train_options *o, int out)
{
    pid_t pid = fork();
    if (pid)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    setpgid(0, 0);
    FILE *to = fdopen(out, "w");
    setvbuf(to, NULL, _IOLBF, 0);
    struct train_options known = *o;
    train_know_plan(&known);
    int status = train_run(&known, to, to, NULL);
    fclose(to);
    _exit(status);
}

/* Kills a run that goes on, and waits until the last of its trainers is gone: until then they keep
 * its files for themselves. */
UNUSED static void kill_all(pid_t pid)
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

/* Waits until the log tells of so many examples. */
UNUSED static void wait_examples(double least)
{
    char line[2048];
    double seen = 0;
    for (int tries = 0; tries < 6000 && seen < least; tries++) {
        FILE *in = fopen(log_file, "re");
        while (in && fgets(line, sizeof line, in)) {
            const char *at = strstr(line, "\"interval\"") ? strstr(line, "\"examples\":") : NULL;
            seen = at ? strtod(at + 11, NULL) : seen;
        }
        if (in)
            fclose(in);
        usleep(5000);
    }
    ck_assert_msg(seen >= least, "the log came to %g examples only", seen);
}

UNUSED static void read_back(int fd)
{
    ssize_t n = pread(fd, said, sizeof said - 1, 0);
    said[n > 0 ? n : 0] = 0;
}

UNUSED static struct train_options endless(void)
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

UNUSED static int said_open(void)
{
    int fd = open(said_file, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    ck_assert_int_ge(fd, 0);
    return fd;
}

/* Runs aside; what it says comes to said_file. */
UNUSED static pid_t begin(const struct train_options *o)
{
    int fd = said_open();
    pid_t pid = train_aside(o, fd);
    close(fd);
    return pid;
}

/* Its exit status; it may not take so long. */
UNUSED static int end_within(pid_t pid, double seconds)
{
    int status = -1, fd;
    pid_t got = 0;
    for (double s = 0; s < seconds && (got = waitpid(pid, &status, WNOHANG)) == 0; s += 0.01)
        usleep(10000);
    fd = said_open();
    read_back(fd);
    close(fd);
    if (got == 0)
        kill(-pid, SIGKILL);
    ck_assert_msg(got == pid, "it does not end: %s", said);
    ck_assert_msg(WIFEXITED(status) || WIFSIGNALED(status), "status %x", (unsigned)status);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static int threads_of(pid_t pid)
{
    char path[64];
    int n = 0;
    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    DIR *dir = opendir(path);
    for (struct dirent *one; dir && (one = readdir(dir));)
        n += *one->d_name != '.';
    if (dir)
        closedir(dir);
    return n;
}

/* Whether the second comes to work while the first is at it: each has n threads then. */
static bool comes_in_time(const pid_t *pids, int n)
{
    for (;; usleep(1000)) {
        bool ended = waitpid(pids[1], NULL, WNOHANG) != 0, works = threads_of(pids[1]) >= n;
        if (threads_of(pids[0]) < n)
            return false;
        ck_assert_msg(!ended, "it does not join");
        if (works)
            return true;
    }
}

/* Begins a run, and one that joins it on the way; again, for longer, where that came too late. */
UNUSED static void begin_and_join(struct train_options *first, struct train_options *second,
                                  pid_t *pids)
{
    for (int tries = 0; tries < 3; tries++) {
        first->epochs = second->epochs = PASSES(60) << tries;
        pids[0] = begin(first);
        wait_examples(ROWS);
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

UNUSED static double examples_said(void)
{
    const char *at = strstr(said, "  examples  ");
    ck_assert_msg(at != NULL, "no summary in: %s", said);
    ck_assert_msg(!strstr(at + 12, "  examples  "), "two summaries: %s", said);
    return strtod(at + 12, NULL);
}

/* Of a launcher's trainers: this is one of two. */
UNUSED static pid_t begin_rank(struct train_options *o, int rank)
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

/* The pids of a process's children. */
UNUSED static int children_of(pid_t parent, pid_t *pids, int most)
{
    char path[64];
    int n = 0;
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)parent, (int)parent);
    FILE *in = fopen(path, "re");
    while (in && n < most && fscanf(in, "%d", &pids[n]) == 1)
        n++;
    if (in)
        fclose(in);
    return n;
}

static char *out_text, *err_text;

/* A file's, in which the words of forked trainers are, too. */
UNUSED static void take_text(FILE *from, char **text)
{
    long n = fseek(from, 0, SEEK_END) == 0 ? ftell(from) : -1;
    ck_assert_int_ge(n, 0);
    rewind(from);
    free(*text);
    *text = calloc(1, (size_t)n + 1);
    ck_assert_uint_eq(fread(*text, 1, (size_t)n, from), (size_t)n);
    fclose(from);
}

static int program(const char *format, ...) __attribute__((format(printf, 1, 2)));

UNUSED static int program(const char *format, ...)
{
    static char line[2048], name[] = "descant";
    char *argv[64] = {name};
    int argc = 1;
    va_list list;
    va_start(list, format);
    vsnprintf(line, sizeof line, format, list);
    va_end(list);
    for (char *word = strtok(line, " "); word && argc < 63; word = strtok(NULL, " "))
        argv[argc++] = word;
    FILE *out = tmpfile(), *err = tmpfile();
    setvbuf(out, NULL, _IOLBF, 0);
    setvbuf(err, NULL, _IOLBF, 0);
    int status = call_program(argc, argv, out, err);
    take_text(out, &out_text);
    take_text(err, &err_text);
    return status;
}

/* main's: each test has a folder with its own copies of the data. */
UNUSED static int run_training(Suite *suite)
{
    made_clicks = make("clicks", ROWS, 1);
    made_held_out = make("held out", EVAL_ROWS, 2);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}

#endif
