/* SPDX-License-Identifier: MIT */
/* descant bsp as a person runs it: real processes, some of them killed. */
#include "harness/bsp.h"

#include <libgen.h>

/* --- a run --- */

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
    return program_aside("bsp %s", line);
}

#define MODEL "--params 5 --lr 0.5 --period 2ms"

/* --- tests --- */

START_TEST(supersteps_of_real_processes)
{
    int lines;
    ck_assert_int_eq(end_of(begin("--modules 2 " MODEL " --supersteps 20 --checkpoint %s --log %s -- "
                               "%s module constant", checkpoint, log_file, self)), CLI_DONE);
    says("2 local modules, 5 parameters");
    says("all supersteps are made");
    ck_assert_uint_eq(check_checkpoint(), 20);
    double gradients = summed("superstep", "gradients", &lines), examples = summed("superstep", "examples", &lines);
    ck_assert_int_eq(lines, 20);
    ck_assert_double_eq(gradients, logged("summary", "gradients"));
    ck_assert_double_eq(examples, EXAMPLES * gradients);
    ck_assert_double_eq(logged("superstep", "version"), 21);
    ck_assert(!segment_left(0) && !segment_left(1));
}
END_TEST

/* Fifty each, and not one more or less in all supersteps, the last one after they have left. */
START_TEST(gradients_are_counted_exactly_once)
{
    int lines;
    ck_assert_int_eq(end_of(begin("--modules 2 --params 5 --lr 0.5 --period %s " NEVER_STALE
                               " --checkpoint %s --log %s -- %s module times",
                               _i ? "60s" : "2ms", checkpoint, log_file, self)), CLI_DONE);
    says("all modules have done their work");
    ck_assert_double_eq(summed("superstep", "gradients", &lines), 100);
    ck_assert_int_eq((int)check_checkpoint(), lines);
}
END_TEST

/* A parent that ignores SIGCHLD hands that on. */
START_TEST(ends_are_heard_of_whatever_was_inherited)
{
    signal(SIGCHLD, SIG_IGN);
    pid_t pid = begin("--modules 2 " MODEL " -- %s module times", self);
    signal(SIGCHLD, SIG_DFL);
    ck_assert_int_eq(end_of(pid), CLI_DONE);
    says("all modules have done their work");
}
END_TEST

START_TEST(a_superstep_every_so_many_gradients)
{
    ck_assert_int_eq(end_of(begin("--modules 2 --params 5 --lr 0.5 --every-gradients 7 "
                               "--supersteps 12 --checkpoint %s --log %s -- %s module constant",
                               checkpoint, log_file, self)), CLI_DONE);
    ck_assert_uint_eq(check_checkpoint(), 12);
    char line[2048];
    FILE *in = fopen(log_file, "re");
    while (fgets(line, sizeof line, in)) {
        const char *at = strstr(line, "superstep\"") ? strstr(line, "\"gradients\":") : NULL;
        if (at)
            ck_assert_double_ge(strtod(at + 12, NULL), 7);
    }
    fclose(in);
}
END_TEST

START_TEST(too_few_at_the_end_are_said)
{
    ck_assert_int_eq(end_of(begin("--min-gradients 1000 " MODEL " -- %s module times", self)),
                     CLI_DONE);
    says("the last 50 gradients are left out: a step takes 1000 at least");
}
END_TEST

START_TEST(a_killed_module_is_started_again)
{
    pid_t pids[2];
    pid_t run = begin("--modules 2 " MODEL " --checkpoint %s --log %s -- %s module constant",
                      checkpoint, log_file, self);
    wait_steps(3);
    children_of(run, pids, 2);
    ck_assert(pids[0] > 0 && pids[1] > 0);
    ck_assert_int_eq(kill(pids[0], SIGKILL), 0);
    wait_said("was killed by signal 9: it is started again (1 of 3)", 1);
    wait_steps(logged("superstep", "superstep") + 60);    /* longer than until its new start */
    wait_modules(2);
    kill(run, SIGTERM);
    ck_assert_int_eq(end_of(run), 128 + SIGTERM);
    says("was killed by signal 9: it is started again (1 of 3)");
    says("restarts of modules        1");
    check_checkpoint();
}
END_TEST

START_TEST(a_module_that_fails_is_given_up)
{
    ck_assert_int_eq(end_of(begin("--modules 1 --restarts 1 " MODEL " -- %s module fails", self)),
                     CLI_FAILED);
    says("module 0 has ended with status 3: it is started again (1 of 1)");
    says("module 0 has ended with status 3, and is not started again\n");
    says("no module is left");
    ck_assert(!segment_left(0));
}
END_TEST

START_TEST(the_others_go_on)
{
    pid_t run = begin("--modules 3 --restarts 0 " MODEL " --checkpoint %s --log %s -- %s module "
                      "first-fails", checkpoint, log_file, self);
    wait_said("module 0 has ended with status 3, and is not started again; the others go on", 1);
    wait_steps(logged("superstep", "superstep") + 40);
    kill(run, SIGTERM);
    ck_assert_int_eq(end_of(run), 128 + SIGTERM);
    ck_assert_int_eq((int)check_checkpoint(), (int)logged("summary", "supersteps"));
}
END_TEST

/* What they committed before they died counts; what the limit leaves does not hang. */
START_TEST(modules_that_die_again_and_again)
{
    int lines;
    ck_assert_int_eq(end_of(begin("--modules 2 --restarts 2 " MODEL " " NEVER_STALE " --checkpoint %s "
                               "--log %s -- %s module dies", checkpoint, log_file, self)),
                     CLI_FAILED);
    says("no module is left");
    says("restarts of modules        4");
    ck_assert_double_eq(summed("superstep", "gradients", &lines), 2 * 3 * 20);
    ck_assert_int_eq((int)check_checkpoint(), lines);
}
END_TEST

START_TEST(a_module_that_never_leaves_is_killed)
{
    uint64_t began = clock_now_ns();
    ck_assert_int_eq(end_of(begin("--grace 0.1 " MODEL " --supersteps 3 -- %s module deaf", self)),
                     CLI_DONE);
    ck_assert_uint_lt(clock_now_ns() - began, UINT64_C(20000000000));
    ck_assert(!segment_left(0));
}
END_TEST

START_TEST(a_module_that_has_not_come_is_not_waited_for)
{
    uint64_t began = clock_now_ns();
    ck_assert_int_eq(end_of(begin("--modules 2 --grace 60 " MODEL " --supersteps 3 -- %s module late",
                               self)), CLI_DONE);
    ck_assert_uint_lt(clock_now_ns() - began, UINT64_C(20000000000));
}
END_TEST

START_TEST(a_signal_ends_it_in_good_order)
{
    int number = _i ? SIGINT : SIGTERM;
    pid_t pids[1];
    pid_t run = begin(MODEL " --checkpoint %s --log %s -- %s module constant", checkpoint, log_file,
                      self);
    wait_steps(5);
    children_of(run, pids, 1);
    kill(run, number);
    ck_assert_int_eq(end_of(run), 128 + number);
    says(number == SIGINT ? "stopped by SIGINT" : "stopped by SIGTERM");
    says("the run ends with a last checkpoint");
    says("--resume goes on from it");
    ck_assert_int_eq((int)check_checkpoint(), (int)logged("summary", "supersteps"));
    ck_assert(is_gone(pids[0]) && !segment_left(0));
}
END_TEST

START_TEST(nan_is_refused_and_named)
{
    ck_assert_int_eq(end_of(begin(MODEL " --supersteps 30 --checkpoint %s --log %s -- %s module nan",
                               checkpoint, log_file, self)), CLI_DONE);
    says("module 0, process ");
    says(" with NaN or Inf refused");
    ck_assert_double_ge(logged("summary", "refused_not_finite"), 10);
    ck_assert_uint_eq(check_checkpoint(), 30);
}
END_TEST

START_TEST(a_wild_module_costs_its_own_gradients)
{
    const char *kind = _i ? "cut" : "wild";
    pid_t run = begin("--modules 2 " NEVER_STALE " " MODEL " --checkpoint %s --log %s -- %s "
                      "module %s", checkpoint, log_file, self, kind);
    wait_said("module 0 has written where it must not: it is ended, and is not started again; the "
              "others go on", 1);
    wait_steps(logged("superstep", "superstep") + 40);
    kill(run, SIGTERM);
    ck_assert_int_eq(end_of(run), 128 + SIGTERM);
    says("-0' is detached: a module has ");
    /* a sum whose bytes go while a step reads it counts as zeros: control.c, rule 4 */
    ck_assert_int_eq((int)check_checkpoint_but(_i ? 1 : 0), (int)logged("summary", "supersteps"));
    ck_assert(!segment_left(0) && !segment_left(1));
}
END_TEST

START_TEST(one_that_is_wild_and_alone_ends_the_run)
{
    ck_assert_int_eq(end_of(begin(MODEL " --checkpoint %s -- %s module wild", checkpoint, self)),
                     CLI_FAILED);
    says("no module is left");
    check_checkpoint();
}
END_TEST

START_TEST(without_a_command_it_says_what_it_waits_for)
{
    char line[200];
    snprintf(line, sizeof line, "run --name %s " MODEL, segment_name);
    pid_t run = program_aside("bsp %s", line);
    wait_said("no module has come yet, and there is no COMMAND after --", 1);
    kill(run, SIGTERM);
    ck_assert_int_eq(end_of(run), 128 + SIGTERM);
    says("DESCANT_SEGMENT=");
    ck_assert_ptr_null(strstr(said, "0 modules"));
}
END_TEST

START_TEST(a_module_from_before_a_restart_has_come)
{
    const char *how = MODEL " --minutes 0.1 --checkpoint %s %s";
    pid_t run = begin(how, checkpoint, "--checkpoint-every 0.02");
    struct descant_ml *ml = attach_to(0);
    struct descant_ml_model model;
    const float gradient[FLOATS] = {3, 3, 3, 3, 3};
    ck_assert_int_eq(descant_ml_pin(ml, &model), DESCANT_OK);
    ck_assert_int_eq(descant_ml_add(ml, gradient, EXAMPLES), DESCANT_OK);
    wait_file(checkpoint);
    kill(run, SIGKILL);
    ck_assert_int_eq(end_of(run), 128 + SIGKILL);
    ck_assert_int_eq(end_of(begin(how, checkpoint, "--resume")), CLI_DONE);
    ck_assert_ptr_null(strstr(said, "no module has come yet"));
    ck_assert_int_eq(descant_ml_detach(ml), DESCANT_OK);
}
END_TEST

/* Without a COMMAND nobody else's end would end the run. */
START_TEST(a_run_without_a_segment_ends)
{
    struct object object = {0};
    char name[80];
    pid_t run = begin(MODEL);
    struct descant_ml *ml = attach_to(0);
    snprintf(name, sizeof name, "%s-0", segment_name);
    ck_assert_int_eq(object_open(&object, name, NULL), DESCANT_OK);
    atomic_fetch_add(&object.header->bound, 1);
    ck_assert_int_eq(end_of(run), CLI_FAILED);
    says("no segment is left");
    object_close(&object);
    descant_ml_detach(ml);
}
END_TEST

/* A module that came by itself outlives control; what the run had started does not. */
START_TEST(control_is_killed_and_goes_on)
{
    struct descant_ml_model model;
    const float gradient[FLOATS] = {3, 3, 3, 3, 3};
    const char *how = "--slots 2 " MODEL " --checkpoint %s --checkpoint-every 0.02 --log %s "
                      "%s -- %s module constant";
    char line[128];
    int lines;
    descant_status status;
    pid_t started[1], run = begin(how, checkpoint, log_file, "", self);
    struct descant_ml *ml = attach_to(0);
    wait_steps(30);
    wait_file(checkpoint);
    WAIT_UNTIL(check_checkpoint() > 0, "the first one has the model as it began");
    children_of(run, started, 1);
    kill(run, SIGKILL);
    ck_assert_int_eq(end_of(run), 128 + SIGKILL);
    WAIT_UNTIL(is_gone(started[0]), "module %d", (int)started[0]);
    snprintf(line, sizeof line, "status %s --over 0.1", segment_name);
    ck_assert_int_eq(ask("bsp %s", line), CLI_FAILED);
    ck_assert_int_eq(descant_ml_pin(ml, &model), DESCANT_OK);
    ck_assert_int_eq(descant_ml_add(ml, gradient, EXAMPLES), DESCANT_OK);
    uint64_t steps = check_checkpoint(), before = model.version;
    ck_assert_uint_gt(steps, 0);

    ck_assert_int_eq(unlink(log_file), 0);
    run = begin(how, checkpoint, log_file, "--resume", self);
    while (descant_ml_add(ml, gradient, EXAMPLES) == DESCANT_OK)
        usleep(1000);
    expect_said("refused: the gradient is on version");
    do {                                /* it may be late again */
        ck_assert_int_eq(descant_ml_pin(ml, &model), DESCANT_OK);
        ck_assert_uint_gt(model.version, before + 16);
        status = descant_ml_add(ml, gradient, EXAMPLES);
    } while (status == DESCANT_STALE);
    ck_assert_int_eq(status, DESCANT_OK);
    wait_steps((double)steps + 50);
    kill(run, SIGTERM);
    ck_assert_int_eq(end_of(run), 128 + SIGTERM);
    says("gradients of the run before");
    summed("superstep", "gradients", &lines);
    ck_assert_int_eq((int)steps + lines, (int)logged("summary", "supersteps"));
    ck_assert_int_eq((int)steps + lines, (int)check_checkpoint());
    ck_assert_int_eq(descant_ml_pin(ml, &model), DESCANT_ENDED);
    ck_assert_int_eq(descant_ml_detach(ml), DESCANT_OK);
}
END_TEST

START_TEST(a_stopped_run_goes_on)
{
    const char *how = MODEL " --optimizer sgd --supersteps %d --checkpoint %s --log %s %s -- %s "
                      "module constant";
    ck_assert_int_eq(end_of(begin(how, 10, checkpoint, log_file, "", self)), CLI_DONE);
    ck_assert_int_eq(end_of(begin(how, 15, checkpoint, log_file, "--resume", self)), CLI_DONE);
    ck_assert_uint_eq(check_checkpoint(), 15);
    ck_assert_int_eq(end_of(begin(how, 15, checkpoint, log_file, "--resume --clip 1e9", self)),
                     CLI_DONE);
    ck_assert_int_eq(end_of(begin("--params 6 --checkpoint %s --resume -- %s module constant",
                               checkpoint, self)), CLI_FAILED);
    says("is of another model: it has no tensor w of 6 floats");
    ck_assert_int_eq(end_of(begin("--optimizer adam --checkpoint %s --resume -- %s module constant",
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
            ck_assert_int_eq(end_of(begin(how, 9, checkpoint, "", self)), CLI_DONE);
        ck_assert_int_eq(end_of(begin(how, 15, checkpoint, twice ? "--resume" : "", self)), CLI_DONE);
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
    pid_t run = begin(MODEL " --log %s -- %s module constant", log_file, self);
    wait_steps(2);
    ck_assert_int_eq(end_of(begin(MODEL " -- %s module constant", self)), CLI_FAILED);
    says("is kept by process");
    says("another run has the name");
    kill(run, SIGTERM);
    ck_assert_int_eq(end_of(run), 128 + SIGTERM);
}
END_TEST

START_TEST(a_command_that_is_not_there)
{
    ck_assert_int_eq(end_of(begin("--modules 2 " MODEL " -- /no/such/program")), CLI_FAILED);
    says("/no/such/program: cannot be started: No such file or directory");
    ck_assert(!segment_left(0) && !segment_left(1));
}
END_TEST

START_TEST(status_tells_who_is_attached)
{
    char line[128];
    pid_t run = begin("--modules 2 --slots 2 " MODEL " --log %s -- %s module constant", log_file,
                      self);
    wait_modules(2);
    snprintf(line, sizeof line, "status %s --over 0.2", segment_name);
    ck_assert_int_eq(ask("bsp %s", line), CLI_DONE);
    says("-0: 5 floats in 1 part; version ");
    says("-1: 5 floats");
    says("bound 16; the run (process ");
    says("runs\n");
    says("  attached ");
    says("  free ");
    snprintf(line, sizeof line, "status %s --over 0.2 --json", segment_name);
    ck_assert_int_eq(ask("bsp %s", line), CLI_DONE);
    says("\"slot\":1,\"owner\":\"free\",\"pid\":0,\"gradients\":0,");
    const char *rate = NULL;            /* of a moment */
    WAIT_UNTIL((rate = strstr(said, "\"gradients_per_s\":")) && (strtod(rate + 18, NULL) > 0 ||
               (ask("bsp %s", line), false)), "%s", said);
    kill(run, SIGTERM);
    end_of(run);
    snprintf(line, sizeof line, "status %s", segment_name);
    ck_assert_int_eq(ask("bsp %s", line), CLI_FAILED);
    says("there is no run ");
}
END_TEST

static const struct {
    const char *line, *says;
} bad[] = {
    {"", "which one? allowed: run, control, local, status"},
    {"walk", "unknown command 'walk'; allowed: run, control, local, status"},
    {"run", "give --params or --model for the model to train"},
    {"run --params 5 --model a", "give --params or --model, not both"},
    {"run --params 0", "--params 0: allowed is"},
    {"run --params w=5,w=6", "--params w=5,w=6: allowed is"},
    {"run --params w=5,7", "--params w=5,7: allowed is"},
    {"run --params 5 --period 5",
     "--period 5: allowed is a time like 10ms from 0.001s to 3600s\n"},
    {"run --params 5 --period 5ms --every-gradients 5", "one of them says when to read out"},
    {"run --params 5 --modules 65",
     "--modules 65: allowed is a whole number from 1 to 64\n"},
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
    ck_assert_int_eq(ask("bsp %s", line), CLI_BAD_USE);
    says(bad[_i].says);
}
END_TEST

/* An example learns what it was planted: weights of 2, -2, ... and a bias of 0.5. */
static void run_example(const char *command)
{
    struct safetensors *file;
    ck_assert_int_eq(end_of(begin("--modules 2 --params weight=6,bias=1 --lr 2 --period 5ms "
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

static TCase *make_case(void)
{
    TCase *tests = new_case("bsp", 90);
    tcase_add_checked_fixture(tests, set_up_bsp, remove_folder);
    tcase_add_test(tests, supersteps_of_real_processes);
    tcase_add_loop_test(tests, gradients_are_counted_exactly_once, 0, 2);
    tcase_add_test(tests, ends_are_heard_of_whatever_was_inherited);
    tcase_add_test(tests, a_superstep_every_so_many_gradients);
    tcase_add_test(tests, too_few_at_the_end_are_said);
    tcase_add_test(tests, a_killed_module_is_started_again);
    tcase_add_test(tests, a_module_that_fails_is_given_up);
    tcase_add_test(tests, the_others_go_on);
    tcase_add_test(tests, modules_that_die_again_and_again);
    tcase_add_test(tests, a_module_that_never_leaves_is_killed);
    tcase_add_test(tests, a_module_that_has_not_come_is_not_waited_for);
    tcase_add_loop_test(tests, a_signal_ends_it_in_good_order, 0, 2);
    tcase_add_test(tests, nan_is_refused_and_named);
    tcase_add_loop_test(tests, a_wild_module_costs_its_own_gradients, 0, 2);
    tcase_add_test(tests, one_that_is_wild_and_alone_ends_the_run);
    tcase_add_test(tests, without_a_command_it_says_what_it_waits_for);
    tcase_add_test(tests, a_module_from_before_a_restart_has_come);
    tcase_add_test(tests, a_run_without_a_segment_ends);
    tcase_add_test(tests, control_is_killed_and_goes_on);
    tcase_add_test(tests, a_stopped_run_goes_on);
    tcase_add_test(tests, a_resumed_run_makes_the_same_steps);
    tcase_add_test(tests, one_run_has_a_name);
    tcase_add_test(tests, a_command_that_is_not_there);
    tcase_add_test(tests, status_tells_who_is_attached);
    tcase_add_loop_test(tests, bad_use_is_said, 0, N(bad));
    tcase_add_test(tests, the_example_in_c);
#ifdef PYTHON
    tcase_add_test(tests, the_example_in_python);
#endif
    return tests;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "module") == 0)
        return be_module(argv[2]);
    find_self();
    return run_cases(make_case(), NULL);
}
