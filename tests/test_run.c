/* SPDX-License-Identifier: MIT */
/* descant run with real processes: ranks that train, die, fail and do not listen. The
 * program itself is a rank's command: test_run train FOLDER trains until FOLDER/stop is
 * there, and keeps its figures in FOLDER/RANK. */
#include "base/base.h"
#include "descant.h"
#include "harness/folder.h"
#include "harness/processes.h"
#include "harness/suite.h"
#include "harness/tcp.h"
#include "harness/wait.h"
#include "hosts/hosts.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

/* --- a rank that trains --- */

struct figures {
    _Atomic pid_t pid;
    _Atomic uint64_t steps, rounds;     /* of this process */
    _Atomic int members;
};

static struct figures *figures_of(const char *where, const char *rank)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", where, rank);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    struct figures *f = MAP_FAILED;
    if (fd >= 0 && ftruncate(fd, sizeof *f) == 0)
        f = mmap(NULL, sizeof *f, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd >= 0)
        close(fd);
    return f == MAP_FAILED ? NULL : f;
}

static bool train_on(struct descant *job, float *w, struct figures *f)
{
    struct descant_stats stats;
    struct descant_members members;
    for (int i = 0; i < 100; i++)
        w[i] -= 0.01f * (w[i] - (float)i);
    usleep(1000);
    if (descant_step(job) || descant_stats(job, &stats) || descant_members(job, &members))
        return false;
    f->members = members.size;
    f->rounds = stats.rounds;
    f->steps++;
    return true;
}

static int train(const char *where)
{
    struct descant_options o = descant_options_default();
    struct descant *job;
    struct figures *f = figures_of(where, getenv("RANK"));
    char stop[PATH_MAX];
    float *w = NULL;
    snprintf(stop, sizeof stop, "%s/stop", where);
    o.plan = "shadow-easgd";
    o.start_s = 30;
    if (!f || descant_open(&job, &o) || !(w = descant_alloc(job, "w", 100)) || descant_start(job))
        return 1;
    f->steps = f->rounds = 0;
    f->members = 0;
    f->pid = getpid();
    while (access(stop, F_OK) != 0)
        if (!train_on(job, w, f))
            return 1;
    if (descant_finish(job, DESCANT_FINAL_MEAN))
        return 1;
    printf("w[7] = %.2f\n", (double)w[7]);
    return descant_close(job) != DESCANT_OK;
}

/* --- a run --- */

enum { RANKS = 3 };

static char sh[] = "sh", c[] = "-c", train_word[] = "train", ssh[] = "ssh";
static struct figures *figures[RANKS];

/* All processes of a test have it in their environment but the test itself. */
#define MARK "TEST_RUN_MARK"

static void set_up(void)
{
    char text[32];
    in_folder("");
    snprintf(said_file, sizeof said_file, "%s/said", folder);
    snprintf(text, sizeof text, "%d-%llx", (int)getpid(), (unsigned long long)clock_now_ns());
    setenv(MARK, text, 1);
    unsetenv("DESCANT_JOB");
    unsetenv("RANK");
    unsetenv("WORLD_SIZE");
}

static struct hosts_options options(int each, double restarts, char **command)
{
    return (struct hosts_options){.each = each, .restarts = restarts, .ssh = ssh,
                                  .command = command};
}

static pid_t begin(const struct hosts_options *o)
{
    FILE *out;
    pid_t pid = fork_saying(&out, SIGKILL);
    if (pid)
        return pid;
    int status = hosts_run(o, out, out);
    fclose(out);
    _exit(status);
}

static bool has_mark(const char *pid)
{
    char path[300], bytes[1 << 14], wanted[64];
    snprintf(path, sizeof path, "/proc/%s/environ", pid);
    FILE *in = fopen(path, "re");
    size_t n = in ? fread(bytes, 1, sizeof bytes, in) : 0;
    if (in)
        fclose(in);
    snprintf(wanted, sizeof wanted, MARK "=%s", getenv(MARK));
    return n && memmem(bytes, n, wanted, strlen(wanted) + 1) != NULL;
}

static int n_left(void)
{
    DIR *all = opendir("/proc");
    int n = 0;
    for (struct dirent *one; (one = readdir(all)) != NULL;)
        n += *one->d_name >= '1' && *one->d_name <= '9' && has_mark(one->d_name);
    closedir(all);
    return n;
}

static void none_left(void)
{
    WAIT_UNTIL(n_left() == 0, "%d processes are left", n_left());
}

/* --- a rank that dies comes back --- */

static void begin_training(struct hosts_options *o, pid_t *run)
{
    for (int k = 0; k < RANKS; k++) {
        char name[16];
        snprintf(name, sizeof name, "%d", k);
        ck_assert_ptr_nonnull(figures[k] = figures_of(folder, name));
    }
    *run = begin(o);
    for (int k = 0; k < RANKS; k++)
        WAIT_UNTIL(figures[k]->steps > 50 && figures[k]->rounds > 0 && figures[k]->members == RANKS,
                   "rank %d has made %d steps: %s", k, (int)figures[k]->steps, (read_said(), said));
}

/* Kills a rank; the others are the same processes, and train, until it is there again. */
static void kill_and_wait(int victim)
{
    pid_t pids[RANKS];
    uint64_t steps[RANKS];
    for (int k = 0; k < RANKS; k++)
        pids[k] = figures[k]->pid;
    ck_assert_int_eq(kill(pids[victim], SIGKILL), 0);
    WAIT_UNTIL(is_gone(pids[victim]), "it lives");
    for (int k = 0; k < RANKS; k++)
        steps[k] = figures[k]->steps;
    WAIT_UNTIL(figures[victim]->pid != pids[victim] && figures[victim]->steps > 50 &&
                   figures[victim]->members == RANKS,
               "rank %d: %s", victim, (read_said(), said));
    for (int k = 0; k < RANKS; k++) {
        if (k == victim)
            continue;
        ck_assert_int_eq(figures[k]->pid, pids[k]);
        WAIT_UNTIL(figures[k]->steps > steps[k] + 50, "rank %d stands still", k);
        WAIT_UNTIL(figures[k]->members == RANKS, "rank %d knows of %d", k, figures[k]->members);
    }
}

/* In memory, and over TCP, where the first rank is the one that all others come to. */
START_TEST(a_killed_rank_comes_back_alone)
{
    char *command[] = {self, train_word, folder, NULL}, text[128];
    struct hosts_options o = options(RANKS, RESTARTS_AUTO, command);
    struct tcp_options at;
    pid_t run;
    tcp_test_address(&at, "127.0.0.1", RANKS);
    o.port = _i ? atoi(at.port) : 0;
    begin_training(&o, &run);
    static const int victims[] = {1, 0, 0};
    for (int k = 0; k < N(victims); k++)
        kill_and_wait(victims[k]);
    put_file(in_folder("stop"), "", 0);
    ck_assert_int_eq(end_of(run), 0);
    says("rank 1 (localhost) was killed by signal 9: it is started again in 1 s; the others go on\n");
    says("rank 0 (localhost) was killed by signal 9: it is started again in 1 s; the others go on\n");
    says("rank 0 (localhost) was killed by signal 9: it is started again in 2 s; the others go on\n");
    for (int k = 0; k < RANKS; k++) {
        snprintf(text, sizeof text, "[%d] w[7] = 7.00\n", k);
        says(text);
    }
    none_left();
}
END_TEST

/* --- statuses --- */

static const struct {
    const char *command;
    int each, status;
    double restarts;
    const char *says[4];
} ends[] = {
    {"exit 0", 2, 0, 0, {NULL}},
    {"echo $RANK/$WORLD_SIZE", 2, 0, 0, {"[0] 0/2\n", "[1] 1/2\n"}},
    {"exit 3", 1, 3, 0, {"rank 0 (localhost) has ended with status 3, and is not started again\n"}},
    {"exit 3", 1, 3, 1, {"has ended with status 3: it is started again in 1 s\n",
                         "has ended with status 3, and is not started again\n"}},
    {"exec /nowhere", 1, 127, RESTARTS_AUTO,
     {"could not be started (status 127), and is not started again\n"}},
    {"kill -s KILL $$", 1, 137, 1, {"was killed by signal 9: it is started again in 1 s\n",
                                    "was killed by signal 9, and is not started again\n"}},
    /* one that refuses its options ends the others, also one that does not listen */
    {"[ $RANK = 1 ] && { until [ -e trap ]; do sleep 0.1; done; exit 2; }; "
     "trap 'echo told; exit 1' TERM; touch trap; while :; do sleep 0.1; done", 2, 2, RESTARTS_AUTO,
     {"rank 1 (localhost) has ended with status 2 at its start, as for wrong options: the run "
      "ends\n", "[0] told\n"}},
    {"trap '' TERM; [ $RANK = 1 ] && { until [ -e trap ]; do sleep 0.1; done; exit 2; }; "
     "touch trap; while :; do sleep 0.1; done", 2, 2, 5, {"at its start, as for wrong options"}},
    {"mkdir was && exit 3; exit 2", 1, 2, 1,
     {"has ended with status 3: it is started again in 1 s\n",
      "has ended with status 2, and is not started again\n"}},
    /* others go on, and the status is of the one that was given up */
    {"[ $RANK = 1 ] && exit 4; until grep -q 'not started' said; do sleep 0.1; done; echo done", 2, 4, 0,
     {"rank 1 (localhost) has ended with status 4, and is not started again; the others go on\n",
      "[0] done\n"}},
    /* the others do not wait for one that comes too late */
    {"[ $RANK = 1 ] && { until grep -q over said; do sleep 0.1; done; kill -s KILL $$; }; echo over", 2,
     137, RESTARTS_AUTO, {"was killed by signal 9: it is started again in 1 s",
                          "rank 1 (localhost) has died, and is not started again since the other ranks "
                          "are done\n"}},
    /* one that is well the second time */
    {"mkdir was || exit 0; exit 7", 1, 0, RESTARTS_AUTO,
     {"has ended with status 7: it is started again in 1 s\n"}},
};

START_TEST(how_it_ends)
{
    char line[256], *command[] = {sh, c, line, NULL};
    struct hosts_options o = options(ends[_i].each, ends[_i].restarts, command);
    strcpy(line, ends[_i].command);
    ck_assert_int_eq(chdir(folder), 0);
    ck_assert_int_eq(end_of(begin(&o)), ends[_i].status);
    for (int k = 0; k < 4 && ends[_i].says[k]; k++)
        says(ends[_i].says[k]);
    none_left();
}
END_TEST

/* Of a pipe, which rank 0 alone has, and only its first process: the writer learns that nobody
 * reads on, while the run lasts. Of a device, as a terminal, no rank has anything. */
START_TEST(the_input_is_rank_0_s)
{
    static char line[] = "if [ $RANK = 1 ]; then until [ -e over ] && [ -e twice ]; do sleep 0.1; done; "
                         "elif [ ! -e once ]; then touch once; head -n 2; exit 7; "
                         "else touch twice; fi; printf '<%s>\\n' \"$(cat)\"";
    char *command[] = {sh, c, line, NULL};
    struct hosts_options o = options(2, 1, command);
    int tube[2], mine = dup(STDIN_FILENO);
    ck_assert_int_eq(chdir(folder), 0);
    ck_assert_int_eq(pipe2(tube, O_CLOEXEC), 0);
    pid_t writer = fork();
    if (writer == 0) {
        signal(SIGPIPE, SIG_DFL);
        close(tube[0]);
        for (;;)
            if (write(tube[1], "a line\n", 7) != 7)
                _exit(1);
    }
    close(tube[1]);
    dup2(_i ? open("/dev/zero", O_RDONLY | O_CLOEXEC) : tube[0], STDIN_FILENO);
    close(tube[0]);
    pid_t run = begin(&o);
    dup2(mine, STDIN_FILENO);
    int status = 0;
    WAIT_UNTIL(waitpid(writer, &status, WNOHANG) == writer, "somebody has the pipe");
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGPIPE);
    close(open(in_folder("over"), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    ck_assert_int_eq(end_of(run), 0);
    if (_i == 0)
        says("[0] a line\n[0] a line\n");
    says("[0] <>\n");
    says("[1] <>\n");
    ck_assert(_i == 0 || !strstr(said, "a line"));
    none_left();
}
END_TEST

/* Ends are heard of whatever was inherited. */
START_TEST(a_parent_that_ignores_its_children)
{
    char line[] = "exit 0", *command[] = {sh, c, line, NULL};
    struct hosts_options o = options(2, 0, command);
    FILE *out;
    pid_t run = fork_saying(&out, SIGKILL);
    if (run == 0) {
        signal(SIGCHLD, SIG_IGN);       /* not in the test: it waits for a child, too */
        _exit(hosts_run(&o, out, out));
    }
    ck_assert_int_eq(end_of(run), 0);
}
END_TEST

/* For lack of descriptors, which is said; nothing is kept of it. */
START_TEST(a_rank_that_cannot_be_started)
{
    enum { TIMES = 50 };
    char line[] = "exit 0", *command[] = {sh, c, line, NULL};
    struct hosts_options o = options(1, 0, command);
    struct rlimit few = {100, 100};
    int fd, last[2] = {-1, -1};
    FILE *out = fopen(said_file, "we");
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &few), 0);
    while ((fd = dup(STDERR_FILENO)) >= 0) {
        last[0] = last[1];
        last[1] = fd;
    }
    ck_assert_int_eq(errno, EMFILE);
    close(last[0]);             /* for the signals; a pipe takes two */
    size_t used = mallinfo2().uordblks;
    for (int k = 0; k < TIMES; k++)
        ck_assert_int_eq(hosts_run(&o, out, out), 1);
    ck_assert_uint_lt(mallinfo2().uordblks, used + TIMES * 500);    /* a script has more */
    close(last[1]);
    fclose(out);
    read_said();
    says("descant: rank 0 cannot be started: Too many open files\n"
         "descant: rank 0 (localhost) has no process, and is not started again\n");
}
END_TEST

static _Atomic int *written;        /* times that there was something to write slowly */

/* A terminal that is slower than what is written to it. */
static ssize_t write_slowly(void *to, const char *bytes, size_t n)
{
    (void)to, (void)bytes;
    usleep(5000);
    ++*written;
    return (ssize_t)n;
}

/* A rank that writes without end holds up neither the other one nor a signal. */
START_TEST(a_rank_that_writes_without_end)
{
    char line[] = "[ $RANK = 1 ] || exec yes; while :; do echo here >&2; sleep 0.05; done",
         *command[] = {sh, c, line, NULL};
    struct hosts_options o = options(2, 0, command);
    FILE *err;
    written = share_memory(sizeof *written);
    pid_t run = fork_saying(&err, SIGKILL);
    if (run == 0) {
        FILE *out = fopencookie(NULL, "w", (cookie_io_functions_t){.write = write_slowly});
        _exit(hosts_run(&o, out, err));
    }
    ck_assert(reaches(written, 10));
    wait_said("[1] here", times_said("[1] here") + 3);
    kill(run, SIGTERM);
    ck_assert_int_eq(end_of(run), 128 + SIGTERM);
    none_left();
}
END_TEST

/* --- signals --- */

static const int signals[] = {SIGINT, SIGTERM};

START_TEST(a_signal_goes_to_all)
{
    char line[] = "trap 'echo heard; exit 0' INT TERM; setsid sleep 4712 & sleep 4712 & echo ready; wait",
         *command[] = {sh, c, line, NULL};
    struct hosts_options o = options(3, RESTARTS_AUTO, command);
    pid_t run = begin(&o);
    wait_said("ready", 3);
    kill(run, signals[_i]);
    ck_assert_int_eq(end_of(run), 128 + signals[_i]);
    wait_said("heard", 3);
    says(_i ? "SIGTERM: it goes to all ranks" : "SIGINT: it goes to all ranks");
    none_left();
}
END_TEST

/* Those that wait for their restart are not started any more. */
START_TEST(a_signal_while_a_rank_waits)
{
    char line[] = "echo began; [ $RANK = 0 ] && exit 3; exec sleep 4712", *command[] = {sh, c, line, NULL};
    struct hosts_options o = options(2, 10, command);
    pid_t run = begin(&o);
    wait_said("it is started again", 1);
    wait_said("[1] began", 1);
    kill(run, SIGTERM);
    ck_assert_int_eq(end_of(run), 128 + SIGTERM);
    none_left();
}
END_TEST

START_TEST(another_signal_kills)
{
    char line[] = "trap '' INT TERM; echo ready; while :; do sleep 1; done", *command[] = {sh, c, line, NULL};
    struct hosts_options o = options(2, RESTARTS_AUTO, command);
    pid_t run = begin(&o);
    wait_said("ready", 2);
    kill(run, SIGTERM);
    wait_said("it goes to all ranks; another one, more than a second later, ends them at once", 1);
    clock_sleep_until(clock_now_ns() + 1100000000);     /* the least that a person waits */
    kill(run, SIGTERM);
    ck_assert_int_eq(end_within(run, 10), 128 + SIGTERM);
    none_left();
}
END_TEST

/* Without a word: what listens ends at once, what does not 10 s later. */
START_TEST(a_run_that_is_killed_leaves_nothing)
{
    static const char *const lines[] = {"echo ready; sleep 4712; sleep 4712",
                                        "trap '' INT TERM; echo ready; while :; do sleep 1; done"};
    char line[128], *command[] = {sh, c, line, NULL};
    struct hosts_options o = options(2, RESTARTS_AUTO, command);
    strcpy(line, lines[_i]);
    pid_t run = begin(&o);
    wait_said("ready", 2);
    ck_assert_int_ge(n_left(), 4);
    kill(run, SIGKILL);
    ck_assert_int_eq(end_of(run), 128 + SIGKILL);
    none_left();
}
END_TEST

/* --- hosts, by a program in place of ssh --- */

/* fake HOST LINE: the host "lost" is not reached for as long as there is no file `found`. */
static const char *put_fake(void)
{
    static const char text[] = "#!/bin/sh\nhost=$1\nshift\n[ $host != lost ] || [ -e found ] || exit 255\n"
                               "exec env -i PATH=\"$PATH\" HOST=$host " MARK "=$" MARK " sh -c \"$*\"\n";
    const char *path = put_file(in_folder("fake"), text, sizeof text - 1);
    ck_assert_int_eq(chmod(path, 0700), 0);
    ck_assert_int_eq(chdir(folder), 0);
    return path;
}

START_TEST(hosts_by_ssh)
{
    char line[] = "echo $HOST $LOCAL_RANK/$LOCAL_WORLD_SIZE $DESCANT_PLAN $ASKED $UNASKED.; "
                  "echo ${DESCANT_JOB%descant-run*}; echo secret ${DESCANT_JOB#*secret=}; "
                  "test -s ${DESCANT_JOB#*secret=} || exit 3",
         *command[] = {sh, c, line, NULL};
    struct hosts_options o = options(2, RESTARTS_AUTO, command);
    o.hosts = "a,me@b";
    o.port = 7000;
    o.env = "ASKED";
    o.ssh = put_fake();
    setenv("DESCANT_PLAN", "ma,every=3", 1);
    setenv("ASKED", "yes  sir", 1);
    setenv("UNASKED", "no", 1);
    ck_assert_int_eq(end_of(begin(&o)), 0);
    says("[0] a 0/2 ma,every=3 yes sir .\n");
    says("[1] a 1/2 ma,every=3 yes sir .\n");
    says("[2] me@b 0/2 ma,every=3 yes sir .\n");
    says("[3] me@b 1/2 ma,every=3 yes sir .\n");
    says("[3] tcp:a:7000,ranks=4,secret=/dev/shm/\n");
    int n = 0;
    for (char *at = said; (at = strstr(at, "] secret ")) != NULL; n++) {
        at += strlen("] secret ");
        at[strcspn(at, "\n")] = 0;
        no_file(at);
        at += strlen(at) + 1;
    }
    ck_assert_int_eq(n, 4);
}
END_TEST

START_TEST(a_host_that_is_lost_is_tried_again)
{
    char line[] = "echo $HOST", *command[] = {sh, c, line, NULL};
    struct hosts_options o = options(1, RESTARTS_AUTO, command);
    o.hosts = "a,lost";
    o.insecure = true;
    o.ssh = put_fake();
    pid_t run = begin(&o);
    wait_said("rank 1 (lost) has lost its connection (ssh ended with status 255): it is started again in", 1);
    put_file(in_folder("found"), "", 0);
    /* its rank comes too late for the other one, which is done */
    ck_assert_int_eq(end_of(run), 255);
    says("has died, and is not started again since the other ranks are done");
}
END_TEST

START_TEST(no_ssh)
{
    char line[] = "exit 0", *command[] = {sh, c, line, NULL};
    struct hosts_options o = options(1, RESTARTS_AUTO, command);
    o.hosts = "a";
    o.ssh = "/nowhere/ssh -p 22";
    ck_assert_int_eq(end_of(begin(&o)), 127);
    says("[0] descant run: /nowhere/ssh cannot be started: No such file or directory\n");
    o.ssh = "  ";
    unlink(said_file);
    ck_assert_int_eq(end_of(begin(&o)), 2);
    says("--ssh '  ': give a command");
}
END_TEST

START_TEST(bad_options)
{
    char *command[] = {sh, NULL};
    struct hosts_options o = options(1, 0, command);
    o.hosts = "a,,b";
    ck_assert_int_eq(end_of(begin(&o)), 2);
    says("descant: --hosts a,,b: give names with commas between them");
    o.hosts = "a,b";
    o.secret = "/nowhere/secret";
    ck_assert_int_eq(end_of(begin(&o)), 2);
    says("descant: secret=/nowhere/secret cannot be read: No such file");
}
END_TEST

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], train_word) == 0)
        return train(argv[2]);
    find_self();
    TCase *all = new_case("run", 120);
    tcase_add_checked_fixture(all, set_up, remove_folder);
    tcase_add_loop_test(all, a_killed_rank_comes_back_alone, 0, 2);
    tcase_add_loop_test(all, how_it_ends, 0, N(ends));
    tcase_add_loop_test(all, the_input_is_rank_0_s, 0, 2);
    tcase_add_test(all, a_parent_that_ignores_its_children);
    tcase_add_test(all, a_rank_that_cannot_be_started);
    tcase_add_test(all, a_rank_that_writes_without_end);
    tcase_add_loop_test(all, a_signal_goes_to_all, 0, N(signals));
    tcase_add_test(all, a_signal_while_a_rank_waits);
    tcase_add_test(all, another_signal_kills);
    tcase_add_loop_test(all, a_run_that_is_killed_leaves_nothing, 0, 2);
    tcase_add_test(all, hosts_by_ssh);
    tcase_add_test(all, a_host_that_is_lost_is_tried_again);
    tcase_add_test(all, no_ssh);
    tcase_add_test(all, bad_options);
    return run_cases(all, NULL);
}
