/* SPDX-License-Identifier: MIT */
/* descant bsp as a person runs it: real processes, some of them killed. The modules are this
 * program, called with "module KIND"; all their gradients are 3 everywhere, so after s steps of
 * plain SGD with rate 0.5 each float is -1.5 s, whoever gave how many of them. */
#include "cli/cli.h"
#include "data/safetensors.h"
#include "segment_help.h"

#include <libgen.h>
#include <limits.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

enum { FLOATS = 5, EXAMPLES = 4, PATIENCE_MS = 30000 };

static char root[] = "/tmp/descant-bsp-XXXXXX";
static char self[PATH_MAX], said[16384], checkpoint[96], run_log[96], said_file[96];

/* --- a module --- */

static int until_the_end(struct descant_ml *ml, const char *kind, int most)
{
    struct descant_ml_model model;
    float gradient[FLOATS];
    for (int k = 0; k < most; k++) {
        descant_status status = descant_ml_pin(ml, &model);
        bool bad = strcmp(kind, "nan") == 0 && k % 2;
        for (int i = 0; i < FLOATS; i++)
            gradient[i] = bad && i == 3 ? (float)strtod("nan", NULL) : 3;
        if (status == DESCANT_OK)
            status = descant_ml_add(ml, gradient, EXAMPLES);
        if (status == DESCANT_ENDED)
            return 0;
        usleep(300);
    }
    return 0;
}

/* constant, nan: until the run ends; times: 50 gradients; dies: is killed after 20; fails: at once,
 * and first-fails if it is module 0; deaf: never leaves; late: module 0 never comes. */
static int be_module(const char *kind)
{
    struct descant_ml *ml;
    bool first = strcmp(getenv("DESCANT_MODULE"), "0") == 0;
    int most = strcmp(kind, "times") == 0 ? 50 : strcmp(kind, "dies") == 0 ? 20 : INT_MAX;
    if (first && strcmp(kind, "late") == 0)
        pause();
    if (descant_ml_attach(&ml, NULL, 30) != DESCANT_OK)
        return 9;
    if (strcmp(kind, "fails") == 0 || (first && strcmp(kind, "first-fails") == 0))
        return 3;
    int status = until_the_end(ml, kind, most);
    if (strcmp(kind, "dies") == 0)
        raise(SIGKILL);
    if (strcmp(kind, "deaf") == 0) {
        signal(SIGTERM, SIG_IGN);
        for (;;)
            pause();
    }
    descant_ml_detach(ml);
    return status;
}

/* --- a run --- */

static int call(char *line, FILE *out)
{
    static char name[] = "descant", bsp[] = "bsp";
    char *argv[64] = {name, bsp};
    int argc = 2;
    for (char *word = strtok(line, " "); word && argc < 63; word = strtok(NULL, " "))
        argv[argc++] = word;
    return cli_main(argc, argv, out, out);
}

/* "descant bsp run --name ...", with the rest of the line, in a process of its own. */
static pid_t begin(const char *format, ...) __attribute__((format(printf, 1, 2)));

static pid_t begin(const char *format, ...)
{
    char line[2048];
    int n = snprintf(line, sizeof line, "run --quiet --name %s ", segment_name);
    va_list list;
    va_start(list, format);
    vsnprintf(line + n, sizeof line - (size_t)n, format, list);
    va_end(list);
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        FILE *out = fopen(said_file, "ae");
        setvbuf(out, NULL, _IOLBF, 0);
        int status = call(line, out);
        fclose(out);
        _exit(status);
    }
    ck_assert_int_gt(pid, 0);
    return pid;
}

static void read_said(void)
{
    FILE *in = fopen(said_file, "re");
    size_t n = in ? fread(said, 1, sizeof said - 1, in) : 0;
    said[n] = 0;
    if (in)
        fclose(in);
}

/* Its exit status, or 128 + the signal. */
static int end(pid_t pid)
{
    int status = 0, tries = 0;
    while (waitpid(pid, &status, WNOHANG) == 0 && tries++ < PATIENCE_MS)
        usleep(1000);
    read_said();
    if (tries >= PATIENCE_MS)
        kill(pid, SIGKILL);
    ck_assert_msg(tries < PATIENCE_MS, "it does not end: %s", said);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void says(const char *text)
{
    ck_assert_msg(strstr(said, text) != NULL, "'%s' is not in:\n%s", text, said);
}

static bool segment_left(int k)
{
    char path[120];
    snprintf(path, sizeof path, "/dev/shm/descant.%s-%d", segment_name, k);
    return access(path, F_OK) == 0;
}

/* Of the last line of the log that has it; -1: none has. */
static double logged(const char *kind, const char *key)
{
    char line[2048], quoted[64];
    double value = -1;
    FILE *in = fopen(run_log, "re");
    snprintf(quoted, sizeof quoted, "\"%s\":", key);
    while (in && fgets(line, sizeof line, in)) {
        const char *at = strstr(line, kind) ? strstr(line, quoted) : NULL;
        value = at && strchr(line, '\n') ? strtod(at + strlen(quoted), NULL) : value;
    }
    if (in)
        fclose(in);
    return value;
}

static double summed(const char *key, int *lines)
{
    char line[2048], quoted[64];
    double sum = 0;
    FILE *in = fopen(run_log, "re");
    ck_assert_ptr_nonnull(in);
    snprintf(quoted, sizeof quoted, "\"%s\":", key);
    for (*lines = 0; fgets(line, sizeof line, in);) {
        const char *at = strstr(line, "\"kind\":\"superstep\"") ? strstr(line, quoted) : NULL;
        sum += at ? strtod(at + strlen(quoted), NULL) : 0;
        *lines += at != NULL;
    }
    fclose(in);
    return sum;
}

static void wait_steps(double least)
{
    int tries = 0;
    while (logged("superstep\"", "superstep") < least && tries++ < PATIENCE_MS)
        usleep(1000);
    read_said();
    ck_assert_msg(tries < PATIENCE_MS, "no %g supersteps: %s", least, said);
}

/* The checkpoint is what so many steps make, to the bit; returns them. */
static uint64_t check_checkpoint(void)
{
    struct safetensors *file;
    unsigned long long version, steps, gradients, examples;
    ck_assert_msg(safetensors_open(&file, checkpoint, NULL) == DESCANT_OK, "%s",
                  descant_last_error());
    const char *text = safetensors_text(file, "progress");
    ck_assert_int_eq(sscanf(text, "%llu %llu %llu %llu", &version, &steps, &gradients, &examples),
                     4);
    ck_assert_uint_eq(examples, gradients * EXAMPLES);
    const struct safetensor *w = safetensors_find(file, "w");
    ck_assert(w && w->bytes == FLOATS * sizeof(float));
    for (int i = 0; i < FLOATS; i++)
        ck_assert_float_eq(((const float *)w->data)[i], -1.5f * (float)steps);
    safetensors_close(file);
    return steps;
}

static void children_of(pid_t parent, pid_t *pids, int most)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)parent, (int)parent);
    FILE *in = fopen(path, "re");
    for (int k = 0; k < most; k++)
        if (!in || fscanf(in, "%d", &pids[k]) != 1)
            pids[k] = 0;
    if (in)
        fclose(in);
}

/* There is no such process, or nobody has reaped it. */
static bool is_gone(pid_t pid)
{
    char path[64], state = 'Z';
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *in = fopen(path, "re");
    if (in && fscanf(in, "%*d %*s %c", &state) != 1)
        state = 'Z';
    if (in)
        fclose(in);
    return state == 'Z';
}

#define MODEL "--params 5 --lr 0.5 --period 2ms"

/* --- tests --- */

START_TEST(supersteps_of_real_processes)
{
    int lines;
    ck_assert_int_eq(end(begin("--modules 2 " MODEL " --supersteps 20 --checkpoint %s --log %s -- "
                               "%s module constant", checkpoint, run_log, self)), CLI_DONE);
    says("2 local modules, 5 parameters");
    says("all supersteps are made");
    ck_assert_uint_eq(check_checkpoint(), 20);
    double gradients = summed("gradients", &lines), examples = summed("examples", &lines);
    ck_assert_int_eq(lines, 20);
    ck_assert_double_eq(gradients, logged("summary", "gradients"));
    ck_assert_double_eq(examples, EXAMPLES * gradients);
    ck_assert_double_eq(logged("superstep\"", "version"), 21);
    ck_assert(!segment_left(0) && !segment_left(1));
}
END_TEST

/* Fifty each, and not one more or less in all supersteps, the last one after they have left. */
START_TEST(gradients_are_counted_exactly_once)
{
    int lines;
    ck_assert_int_eq(end(begin("--modules 2 --params 5 --lr 0.5 --period %s --checkpoint %s "
                               "--log %s -- %s module times", _i ? "60s" : "2ms", checkpoint, run_log,
                               self)), CLI_DONE);
    says("all modules have done their work");
    ck_assert_double_eq(summed("gradients", &lines), 100);
    ck_assert_int_eq((int)check_checkpoint(), lines);
}
END_TEST

START_TEST(a_superstep_every_so_many_gradients)
{
    ck_assert_int_eq(end(begin("--modules 2 --params 5 --lr 0.5 --every-gradients 7 "
                               "--supersteps 12 --checkpoint %s --log %s -- %s module constant",
                               checkpoint, run_log, self)), CLI_DONE);
    ck_assert_uint_eq(check_checkpoint(), 12);
    char line[2048];
    FILE *in = fopen(run_log, "re");
    while (fgets(line, sizeof line, in)) {
        const char *at = strstr(line, "superstep\"") ? strstr(line, "\"gradients\":") : NULL;
        if (at)
            ck_assert_double_ge(strtod(at + 12, NULL), 7);
    }
    fclose(in);
}
END_TEST

START_TEST(a_killed_module_is_started_again)
{
    pid_t pids[2];
    pid_t run = begin("--modules 2 " MODEL " --checkpoint %s --log %s -- %s module constant",
                      checkpoint, run_log, self);
    wait_steps(3);
    children_of(run, pids, 2);
    ck_assert(pids[0] > 0 && pids[1] > 0);
    ck_assert_int_eq(kill(pids[0], SIGKILL), 0);
    wait_steps(logged("superstep\"", "superstep") + 60);    /* longer than until its new start */
    for (int tries = 0; logged("superstep\"", "modules") < 2 && tries < PATIENCE_MS; tries++)
        usleep(1000);
    ck_assert_double_eq(logged("superstep\"", "modules"), 2);
    kill(run, SIGTERM);
    ck_assert_int_eq(end(run), 128 + SIGTERM);
    says("was killed by signal 9: it is started again (1 of 3)");
    says("restarts of modules        1");
    check_checkpoint();
}
END_TEST

START_TEST(a_module_that_fails_is_given_up)
{
    ck_assert_int_eq(end(begin("--modules 1 --restarts 1 " MODEL " -- %s module fails", self)),
                     CLI_FAILED);
    says("module 0 has ended with status 3: it is started again (1 of 1)");
    says("module 0 has ended with status 3, and is not started again\n");
    says("no module is left");
    ck_assert(!segment_left(0));
}
END_TEST

START_TEST(the_others_go_on)
{
    ck_assert_int_eq(end(begin("--modules 3 --restarts 0 " MODEL " --supersteps 40 --checkpoint %s "
                               "--log %s -- %s module first-fails", checkpoint, run_log, self)),
                     CLI_DONE);
    says("module 0 has ended with status 3, and is not started again; the others go on");
    ck_assert_uint_eq(check_checkpoint(), 40);
}
END_TEST

/* What they committed before they died counts; what the limit leaves does not hang. */
START_TEST(modules_that_die_again_and_again)
{
    int lines;
    ck_assert_int_eq(end(begin("--modules 2 --restarts 2 " MODEL " --checkpoint %s --log %s -- "
                               "%s module dies", checkpoint, run_log, self)), CLI_FAILED);
    says("no module is left");
    says("restarts of modules        4");
    ck_assert_double_eq(summed("gradients", &lines), 2 * 3 * 20);
    ck_assert_int_eq((int)check_checkpoint(), lines);
}
END_TEST

START_TEST(a_module_that_never_leaves_is_killed)
{
    uint64_t began = clock_now_ns();
    ck_assert_int_eq(end(begin("--grace 0.1 " MODEL " --supersteps 3 -- %s module deaf", self)),
                     CLI_DONE);
    ck_assert_uint_lt(clock_now_ns() - began, UINT64_C(20000000000));
    ck_assert(!segment_left(0));
}
END_TEST

START_TEST(a_module_that_has_not_come_is_not_waited_for)
{
    uint64_t began = clock_now_ns();
    ck_assert_int_eq(end(begin("--modules 2 --grace 60 " MODEL " --supersteps 3 -- %s module late",
                               self)), CLI_DONE);
    ck_assert_uint_lt(clock_now_ns() - began, UINT64_C(20000000000));
}
END_TEST

START_TEST(a_signal_ends_it_in_good_order)
{
    int number = _i ? SIGINT : SIGTERM;
    pid_t pids[1];
    pid_t run = begin(MODEL " --checkpoint %s --log %s -- %s module constant", checkpoint, run_log,
                      self);
    wait_steps(5);
    children_of(run, pids, 1);
    kill(run, number);
    ck_assert_int_eq(end(run), 128 + number);
    says(number == SIGINT ? "stopped by SIGINT" : "stopped by SIGTERM");
    says("the run ends with a last checkpoint");
    says("--resume goes on from it");
    ck_assert_int_eq((int)check_checkpoint(), (int)logged("summary", "supersteps"));
    ck_assert(is_gone(pids[0]) && !segment_left(0));
}
END_TEST

START_TEST(nan_is_refused_and_named)
{
    ck_assert_int_eq(end(begin(MODEL " --supersteps 30 --checkpoint %s --log %s -- %s module nan",
                               checkpoint, run_log, self)), CLI_DONE);
    says("module 0, process ");
    says(" with NaN or Inf refused");
    ck_assert_double_ge(logged("summary", "refused_not_finite"), 10);
    ck_assert_uint_eq(check_checkpoint(), 30);
}
END_TEST

static struct descant_ml *attach_to(int k)
{
    char name[80];
    struct descant_ml *ml;
    snprintf(name, sizeof name, "%s-%d", segment_name, k);
    ck_assert_msg(descant_ml_attach(&ml, name, 30) == DESCANT_OK, "%s", descant_last_error());
    return ml;
}

static void wait_file(const char *path)
{
    for (int tries = 0; access(path, F_OK) != 0 && tries < PATIENCE_MS; tries++)
        usleep(1000);
    ck_assert_int_eq(access(path, F_OK), 0);
}

/* A module that came by itself outlives control; what the run had started does not. */
START_TEST(control_is_killed_and_goes_on)
{
    struct descant_ml_model model;
    const float gradient[FLOATS] = {3, 3, 3, 3, 3};
    const char *how = "--slots 2 " MODEL " --checkpoint %s --checkpoint-every 0.02 --log %s "
                      "%s -- %s module constant";
    pid_t started[1], run = begin(how, checkpoint, run_log, "--supersteps 100000", self);
    struct descant_ml *ml = attach_to(0);
    wait_steps(30);
    wait_file(checkpoint);
    children_of(run, started, 1);
    kill(run, SIGKILL);
    ck_assert_int_eq(end(run), 128 + SIGKILL);
    for (int tries = 0; !is_gone(started[0]) && tries < PATIENCE_MS; tries++)
        usleep(1000);
    ck_assert(is_gone(started[0]));
    ck_assert_int_eq(descant_ml_pin(ml, &model), DESCANT_OK);
    ck_assert_int_eq(descant_ml_add(ml, gradient, EXAMPLES), DESCANT_OK);
    uint64_t steps = check_checkpoint(), before = model.version;
    ck_assert_uint_gt(steps, 0);

    char last[64];
    snprintf(last, sizeof last, "--resume --supersteps %d", (int)steps + 50);
    run = begin(how, checkpoint, run_log, last, self);
    while (descant_ml_add(ml, gradient, EXAMPLES) == DESCANT_OK)
        usleep(1000);
    expect_said("refused: the gradient is on version");
    ck_assert_int_eq(descant_ml_pin(ml, &model), DESCANT_OK);
    ck_assert_uint_gt(model.version, before + 16);
    ck_assert_int_eq(descant_ml_add(ml, gradient, EXAMPLES), DESCANT_OK);
    ck_assert_int_eq(end(run), CLI_DONE);
    says("gradients of the run before");
    ck_assert_uint_eq(check_checkpoint(), steps + 50);
    ck_assert_int_eq(descant_ml_pin(ml, &model), DESCANT_ENDED);
    ck_assert_int_eq(descant_ml_detach(ml), DESCANT_OK);
}
END_TEST

START_TEST(a_stopped_run_goes_on)
{
    const char *how = MODEL " --optimizer sgd --supersteps %d --checkpoint %s --log %s %s -- %s "
                      "module constant";
    ck_assert_int_eq(end(begin(how, 10, checkpoint, run_log, "", self)), CLI_DONE);
    ck_assert_int_eq(end(begin(how, 15, checkpoint, run_log, "--resume", self)), CLI_DONE);
    ck_assert_uint_eq(check_checkpoint(), 15);
    ck_assert_int_eq(end(begin(how, 15, checkpoint, run_log, "--resume --clip 1e9", self)),
                     CLI_DONE);
    ck_assert_int_eq(end(begin("--params 6 --checkpoint %s --resume -- %s module constant",
                               checkpoint, self)), CLI_FAILED);
    says("is of another model: it has no tensor w of 6 floats");
    ck_assert_int_eq(end(begin("--optimizer adam --checkpoint %s --resume -- %s module constant",
                               checkpoint, self)), CLI_FAILED);
    says("--optimizer was sgd, not adam");
    ck_assert_uint_eq(check_checkpoint(), 15);
}
END_TEST

/* The bytes of a tensor of the checkpoint. */
static size_t take_tensor(const char *name, unsigned char *bytes, size_t room)
{
    struct safetensors *file;
    ck_assert_int_eq(safetensors_open(&file, checkpoint, NULL), DESCANT_OK);
    const struct safetensor *t = safetensors_find(file, name);
    ck_assert(t && t->bytes <= room);
    size_t n = t->bytes;
    memcpy(bytes, t->data, n);
    safetensors_close(file);
    return n;
}

START_TEST(a_resumed_run_makes_the_same_steps)
{
    unsigned char w[2][64], state[2][64];
    const char *how = "--params 5 --optimizer adam --lr 0.1 --period 2ms --supersteps %d "
                      "--checkpoint %s %s -- %s module constant";
    for (int twice = 0; twice < 2; twice++) {
        if (twice)
            ck_assert_int_eq(end(begin(how, 9, checkpoint, "", self)), CLI_DONE);
        ck_assert_int_eq(end(begin(how, 15, checkpoint, twice ? "--resume" : "", self)), CLI_DONE);
        ck_assert_uint_eq(take_tensor("w", w[twice], 64), FLOATS * sizeof(float));
        ck_assert_uint_eq(take_tensor("descant.optimizer", state[twice], 64),
                          2 * FLOATS * sizeof(float));
        ck_assert_int_eq(unlink(checkpoint), 0);
    }
    ck_assert_int_eq(memcmp(w[0], w[1], FLOATS * sizeof(float)), 0);
    ck_assert_int_eq(memcmp(state[0], state[1], 2 * FLOATS * sizeof(float)), 0);
}
END_TEST

START_TEST(one_run_has_a_name)
{
    pid_t run = begin(MODEL " --log %s -- %s module constant", run_log, self);
    wait_steps(2);
    ck_assert_int_eq(end(begin(MODEL " -- %s module constant", self)), CLI_FAILED);
    says("is kept by process");
    says("another run has the name");
    kill(run, SIGTERM);
    ck_assert_int_eq(end(run), 128 + SIGTERM);
}
END_TEST

START_TEST(a_command_that_is_not_there)
{
    ck_assert_int_eq(end(begin("--modules 2 " MODEL " -- /no/such/program")), CLI_FAILED);
    says("/no/such/program: cannot be started: No such file or directory");
    ck_assert(!segment_left(0) && !segment_left(1));
}
END_TEST

static int ask(char *line)
{
    FILE *out = fopen(said_file, "we");
    int status = call(line, out);
    fclose(out);
    read_said();
    return status;
}

START_TEST(status_tells_who_is_attached)
{
    char line[128];
    pid_t run = begin("--modules 2 --slots 2 " MODEL " --log %s -- %s module constant", run_log,
                      self);
    wait_steps(2);
    snprintf(line, sizeof line, "status %s --over 0.2", segment_name);
    ck_assert_int_eq(ask(line), CLI_DONE);
    says("-0: 5 floats in 1 part; version ");
    says("-1: 5 floats");
    says("bound 16; the run (process ");
    says("runs\n");
    says("  attached ");
    says("  free ");
    snprintf(line, sizeof line, "status %s --over 0.2 --json", segment_name);
    ck_assert_int_eq(ask(line), CLI_DONE);
    says("\"slot\":1,\"owner\":\"free\",\"pid\":0,\"gradients\":0,");
    const char *rate = strstr(said, "\"gradients_per_s\":");
    ck_assert(rate && strtod(rate + 18, NULL) > 0);
    kill(run, SIGTERM);
    end(run);
    snprintf(line, sizeof line, "status %s", segment_name);
    ck_assert_int_eq(ask(line), CLI_FAILED);
    says("there is no run ");
}
END_TEST

static const struct {
    const char *line, *says;
} bad[] = {
    {"", "which one? allowed: run, status"},
    {"walk", "unknown command 'walk'; allowed: run, status"},
    {"run", "--params or --model says what to train"},
    {"run --params 5 --model a", "--params and --model: one of them"},
    {"run --params 0", "--params 0: allowed is"},
    {"run --params w=5,w=6", "--params w=5,w=6: allowed is"},
    {"run --params w=5,7", "--params w=5,7: allowed is"},
    {"run --params 5 --period 5", "--period 5: allowed is 1ms to 3600s"},
    {"run --params 5 --period 5ms --every-gradients 5", "one of them says when to read out"},
    {"run --params 5 --modules 65", "--modules 65: allowed is 1 to 64"},
    {"run --params 5 --name a/b", "--name 'a/b': it has"},
    {"run --params 5 --resume", "--resume needs --checkpoint"},
    {"run --params 5 --checkpoint a --log a", "--log"},
    {"run --params 5 --", "there is no COMMAND after --"},
    {"run --params 5 python3 x.py", "'python3' is not an option"},
    {"status", "the NAME of a run comes first"},
    {"status a --what", "unknown option --what"},
};

START_TEST(bad_use_is_said)
{
    char line[128];
    snprintf(line, sizeof line, "%s", bad[_i].line);
    ck_assert_int_eq(ask(line), CLI_BAD_USE);
    says(bad[_i].says);
}
END_TEST

/* An example learns what it was planted: weights of 2, -2, ... and a bias of 0.5. */
static void run_example(const char *command)
{
    struct safetensors *file;
    ck_assert_int_eq(end(begin("--modules 2 --params weight=6,bias=1 --lr 2 --period 5ms "
                               "--supersteps 200 --min-gradients 4 --checkpoint %s -- %s",
                               checkpoint, command)), CLI_DONE);
    ck_assert_int_eq(safetensors_open(&file, checkpoint, NULL), DESCANT_OK);
    const float *weight = safetensors_find(file, "weight")->data;
    for (int i = 0; i < 6; i++)
        ck_assert_float_eq_tol(weight[i], i % 2 ? -2 : 2, 0.5f);
    ck_assert_float_eq_tol(*(const float *)safetensors_find(file, "bias")->data, 0.5f, 0.4f);
    safetensors_close(file);
}

START_TEST(the_example_in_c)
{
    char path[PATH_MAX], command[PATH_MAX + 32];
    snprintf(path, sizeof path, "%s", self);
    snprintf(command, sizeof command, "%s/examples/bsp/logistic", dirname(dirname(path)));
    run_example(command);
}
END_TEST

#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define PYTHON      /* which is no sanitizer's program */
START_TEST(the_example_in_python)
{
    char path[PATH_MAX], library[PATH_MAX + 32];
    if (system("python3 -c 'import numpy' 2>/dev/null") != 0)
        return;
    snprintf(path, sizeof path, "%s", self);
    snprintf(library, sizeof library, "%s/libdescant.so", dirname(dirname(path)));
    setenv("DESCANT_LIBRARY", library, 1);
    setenv("PYTHONPATH", "python", 1);
    setenv("PYTHONDONTWRITEBYTECODE", "1", 1);
    run_example("python3 examples/bsp/logistic.py");
}
END_TEST
#endif

static void setup(void)
{
    new_name();
    snprintf(checkpoint, sizeof checkpoint, "%s/%d.safetensors", root, (int)getpid());
    snprintf(run_log, sizeof run_log, "%s/%d.jsonl", root, (int)getpid());
    snprintf(said_file, sizeof said_file, "%s/%d.said", root, (int)getpid());
}

static Suite *make_suite(void)
{
    Suite *suite = suite_create("bsp");
    TCase *tests = tcase_create("bsp");
    tcase_set_timeout(tests, 90);
    tcase_add_checked_fixture(tests, setup, NULL);
    tcase_add_test(tests, supersteps_of_real_processes);
    tcase_add_loop_test(tests, gradients_are_counted_exactly_once, 0, 2);
    tcase_add_test(tests, a_superstep_every_so_many_gradients);
    tcase_add_test(tests, a_killed_module_is_started_again);
    tcase_add_test(tests, a_module_that_fails_is_given_up);
    tcase_add_test(tests, the_others_go_on);
    tcase_add_test(tests, modules_that_die_again_and_again);
    tcase_add_test(tests, a_module_that_never_leaves_is_killed);
    tcase_add_test(tests, a_module_that_has_not_come_is_not_waited_for);
    tcase_add_loop_test(tests, a_signal_ends_it_in_good_order, 0, 2);
    tcase_add_test(tests, nan_is_refused_and_named);
    tcase_add_test(tests, control_is_killed_and_goes_on);
    tcase_add_test(tests, a_stopped_run_goes_on);
    tcase_add_test(tests, a_resumed_run_makes_the_same_steps);
    tcase_add_test(tests, one_run_has_a_name);
    tcase_add_test(tests, a_command_that_is_not_there);
    tcase_add_test(tests, status_tells_who_is_attached);
    tcase_add_loop_test(tests, bad_use_is_said, 0, (int)(sizeof bad / sizeof *bad));
    tcase_add_test(tests, the_example_in_c);
#ifdef PYTHON
    tcase_add_test(tests, the_example_in_python);
#endif
    suite_add_tcase(suite, tests);
    return suite;
}

int main(int argc, char **argv)
{
    char command[64];
    if (argc == 3 && strcmp(argv[1], "module") == 0)
        return be_module(argv[2]);
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0 || !mkdtemp(root))
        return EXIT_FAILURE;
    int status = run_segments(make_suite());
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    return system(command) == 0 ? status : EXIT_FAILURE;
}
