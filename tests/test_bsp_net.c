/* SPDX-License-Identifier: MIT */
/* descant bsp control and local as a person runs them, over shm, over TCP and under mpirun: real processes,
 * some of them killed. This program is also what mpirun starts: "bsp ..." is descant's own command
 * line. */
#include "harness/bsp.h"
#include "harness/mpi.h"
#include "harness/tcp.h"

static char meeting[300];       /* the address where control and locals meet */

static void meet_over(bool tcp)
{
    struct tcp_options at;

    snprintf(meeting, sizeof meeting, "shm:%s", segment_name);
    if (!tcp)
        return;
    tcp_test_address(&at, "127.0.0.1", 8);
    snprintf(meeting, sizeof meeting, "tcp:127.0.0.1:%s", at.port);
}

static void set_up(void)
{
    set_up_bsp();
    meet_over(false);
}

static pid_t begin_control(const char *more)
{
    return program_aside("bsp control %s --quiet --name %s --params 5 --lr 0.5 --checkpoint %s --log %s "
                  "%s", meeting, segment_name, checkpoint, log_file, more);
}

static pid_t begin_local(const char *more, const char *kind)
{
    return program_aside("bsp local %s --name %s %s -- %s module %s", meeting, segment_name, more,
                  self, kind);
}

/* Whoever comes first, and whether control waits for them or they for it. */
START_TEST(control_and_locals_are_processes)
{
    int lines;
    pid_t control = 0, locals[2];
    meet_over(_i / 2);
    if (_i % 2)
        control = begin_control("--locals 2 --period 5ms");
    for (int k = 0; k < 2; k++)
        locals[k] = begin_local(_i % 2 ? k ? "--modules 2 --number 0" : "--modules 2 --number 1"
                                       : "--modules 2", "constant");
    if (!(_i % 2))
        control = begin_control("--locals 2 --period 5ms");
    wait_modules(4);
    wait_steps(60);
    kill(control, SIGTERM);
    ck_assert_int_eq(end_of(control), 128 + SIGTERM);
    for (int k = 0; k < 2; k++)
        ck_assert_int_eq(end_of(locals[k]), CLI_DONE);
    says("bsp: 4 local modules, 5 parameters");
    ck_assert_double_eq(summed("superstep", "examples", &lines), EXAMPLES * summed("superstep", "gradients", &lines));
    ck_assert_int_eq(lines, (int)logged("summary", "supersteps"));
    ck_assert_int_eq(lines, (int)check_checkpoint());
    for (int k = 0; k < 4; k++)
        ck_assert(!segment_left(k));
}
END_TEST

/* Fifty each, and not one more or less, the last ones after their modules have left. */
START_TEST(gradients_are_counted_exactly_once)
{
    int lines;
    pid_t locals[2];
    meet_over(_i == 3);
    pid_t control = begin_control(_i % 3 == 0   ? NEVER_STALE " --locals 2 --period 5ms"
                                  : _i == 1 ? NEVER_STALE " --locals 2 --every-gradients 7"
                                            : NEVER_STALE " --locals 2 --period 60s");
    for (int k = 0; k < 2; k++)
        locals[k] = begin_local("--modules 2", "times");
    ck_assert_int_eq(end_of(control), CLI_DONE);
    for (int k = 0; k < 2; k++)
        ck_assert_int_eq(end_of(locals[k]), CLI_DONE);
    says("all modules have done their work");
    uint64_t gradients = (uint64_t)summed("superstep", "gradients", &lines);
    ck_assert_int_eq((int)check_checkpoint(), lines);
    if (_i == 1 && gradients < 200) {
        char left[64];
        snprintf(left, sizeof left, "the last %d gradient%s left out: a step takes 7 at least",
                 200 - (int)gradients, gradients == 199 ? " is" : "s are");
        says(left);
        ck_assert_uint_gt(gradients, 193);
    } else {
        ck_assert_uint_eq(gradients, 200);
    }
}
END_TEST

/* Control is killed: segments and modules stay, the modules being the same processes; the next one
 * goes on from the checkpoint, and no gradient of before counts. */
START_TEST(control_is_killed_and_finds_the_locals)
{
    int lines;
    pid_t modules[2] = {0}, locals[2];
    struct descant_ml_model model;
    meet_over(_i);
    pid_t control = begin_control("--locals 2 --period 5ms --checkpoint-every 0.02");
    for (int k = 0; k < 2; k++)
        locals[k] = begin_local(k ? "--number 1 --slots 2" : "--number 0 --slots 2", "constant");
    wait_modules(2);
    wait_steps(20);
    wait_file(checkpoint);
    children_of(locals[0], &modules[0], 1);
    children_of(locals[1], &modules[1], 1);
    struct descant_ml *ml = attach_to(1);
    kill(control, SIGKILL);
    ck_assert_int_eq(end_of(control), 128 + SIGKILL);
    uint64_t steps = check_checkpoint();
    ck_assert_int_eq(descant_ml_pin(ml, &model), DESCANT_OK);
    uint64_t before = model.version;
    wait_said("control is gone: segments and modules go on", 2);
    ck_assert_int_eq(descant_ml_pin(ml, &model), DESCANT_OK);
    ck_assert(!is_gone(modules[0]) && !is_gone(modules[1]));

    ck_assert_int_eq(unlink(log_file), 0);
    control = begin_control("--locals 2 --period 5ms --resume");
    WAIT_UNTIL(descant_ml_pin(ml, &model) == DESCANT_OK && model.version > before + 16,
               "version %llu, now %llu", (unsigned long long)before,
               (unsigned long long)model.version);
    pid_t now[2];
    children_of(locals[0], &now[0], 1);
    children_of(locals[1], &now[1], 1);
    ck_assert(now[0] == modules[0] && now[1] == modules[1]);
    wait_modules(3);            /* both locals are with it, so both hear of the end */
    wait_steps((double)steps + 30);
    kill(control, SIGTERM);
    ck_assert_int_eq(end_of(control), 128 + SIGTERM);
    for (int k = 0; k < 2; k++)
        ck_assert_int_eq(end_of(locals[k]), CLI_DONE);
    says("there is a control again");
    says("gradients of the run before");
    summed("superstep", "gradients", &lines);
    ck_assert_int_eq((int)steps + lines, (int)logged("summary", "supersteps"));
    ck_assert_int_eq((int)steps + lines, (int)check_checkpoint());
    descant_ml_detach(ml);
}
END_TEST

/* What is given to a segment without a keeper is found by the next one, and left out. */
START_TEST(a_local_is_killed_and_comes_again)
{
    const float gradient[FLOATS] = {3, 3, 3, 3, 3};
    struct descant_ml_model model;
    pid_t locals[2], module = 0;
    meet_over(_i);
    pid_t control = begin_control("--locals 2 --period 5ms");
    locals[0] = begin_local("--number 0 --slots 2", "constant");
    locals[1] = begin_local("--number 1 --slots 2", "constant");
    wait_modules(2);
    struct descant_ml *ml = attach_to(1);
    ck_assert_int_eq(children_of(locals[1], &module, 1), 1);
    kill(locals[1], SIGKILL);
    ck_assert_int_eq(end_of(locals[1]), 128 + SIGKILL);
    wait_said("the local modules of rank 2 have died, with ", 1);
    says("the others go on");
    double steps = logged("superstep", "superstep");
    wait_steps(steps + 20);
    ck_assert_int_eq(descant_ml_pin(ml, &model), DESCANT_OK);
    for (int k = 0; k < 5; k++)
        ck_assert_int_eq(descant_ml_add(ml, gradient, EXAMPLES), DESCANT_OK);
    WAIT_UNTIL(is_gone(module), "module %d", (int)module);     /* and its slot is free */
    locals[1] = begin_local("--slots 2", "constant");
    wait_steps(steps + 40);
    wait_modules(3);
    wait_steps(logged("superstep", "superstep") + 5);
    descant_ml_detach(ml);
    kill(control, SIGTERM);
    ck_assert_int_eq(end_of(control), 128 + SIGTERM);
    for (int k = 0; k < 2; k++)
        ck_assert_int_eq(end_of(locals[k]), CLI_DONE);
    ck_assert_uint_gt(check_checkpoint(), 0);
    ck_assert_double_ge(logged("summary", "undone"), 5);
    ck_assert(!segment_left(0) && !segment_left(1));
}
END_TEST

/* A process of local modules that is stopped holds up nobody, and comes back by itself. */
START_TEST(a_stopped_local_holds_up_nobody)
{
    pid_t locals[2];
    pid_t control = begin_control(_i ? "--locals 2 --every-gradients 3"
                                     : "--locals 2 --period 5ms");
    for (int k = 0; k < 2; k++)
        locals[k] = begin_local("--slots 1", "constant");
    wait_modules(2);
    kill(locals[1], SIGSTOP);
    wait_steps(logged("superstep", "superstep") + 100);
    kill(locals[1], SIGCONT);
    wait_steps(logged("superstep", "superstep") + 20);
    kill(control, SIGTERM);
    ck_assert_int_eq(end_of(control), 128 + SIGTERM);
    for (int k = 0; k < 2; k++)
        ck_assert_int_eq(end_of(locals[k]), CLI_DONE);
    ck_assert(strstr(said, "died") == NULL);
    check_checkpoint();
}
END_TEST

/* Whether local process k has taken the sum of its first slot. */
static bool is_taken(int k)
{
    struct object object = {0};
    char name[80];
    snprintf(name, sizeof name, "%s-%d", segment_name, k);
    ck_assert_int_eq(object_open(&object, name, NULL), DESCANT_OK);
    uint64_t flip = atomic_load(&segment_slot(object.header, 0)->flip);
    object_close(&object);
    return !(flip & FLIP_FULL);
}

/* Its sum, which is late and too small for a step, keeps nothing back that comes after it. */
START_TEST(a_late_sum_blocks_nothing)
{
    const float gradient[FLOATS] = {3, 3, 3, 3, 3};
    struct descant_ml_model model;
    struct descant_ml *mls[2];
    pid_t locals[2];
    pid_t control = begin_control("--locals 2 --every-gradients 10 --supersteps 2");
    for (int k = 0; k < 2; k++) {
        locals[k] = program_aside("bsp local shm:%s --name %s --number %d", segment_name, segment_name, k);
        mls[k] = attach_to(k);
    }
    kill(locals[1], SIGSTOP);
    for (int k = 0; k < 13; k++) {
        struct descant_ml *ml = mls[k < 3];
        ck_assert_int_eq(descant_ml_pin(ml, &model), DESCANT_OK);
        ck_assert_int_eq(descant_ml_add(ml, gradient, EXAMPLES), DESCANT_OK);
    }
    wait_steps(1);
    ck_assert(!is_taken(1));
    kill(locals[1], SIGCONT);
    WAIT_UNTIL(is_taken(1), "%s", (read_said(), said));
    for (int k = 0; k < 7; k++) {
        ck_assert_int_eq(descant_ml_pin(mls[1], &model), DESCANT_OK);
        ck_assert_int_eq(descant_ml_add(mls[1], gradient, EXAMPLES), DESCANT_OK);
    }
    ck_assert_int_eq(end_of(control), CLI_DONE);
    for (int k = 0; k < 2; k++) {
        ck_assert_int_eq(end_of(locals[k]), CLI_DONE);
        descant_ml_detach(mls[k]);
    }
    says("all supersteps are made");
    ck_assert_uint_eq(check_checkpoint(), 2);
}
END_TEST

/* A local process that is told to end hands on what its modules, which came by themselves, have
 * given. */
START_TEST(a_local_leaves_in_good_order)
{
    int lines;
    const float gradient[FLOATS] = {3, 3, 3, 3, 3};
    struct descant_ml_model model;
    pid_t control = begin_control("--locals 2 --period 60s");
    pid_t local = program_aside("bsp local shm:%s --name %s", segment_name, segment_name);
    struct descant_ml *ml = attach_to(0);
    ck_assert_int_eq(descant_ml_pin(ml, &model), DESCANT_OK);
    for (int k = 0; k < 7; k++)
        ck_assert_int_eq(descant_ml_add(ml, gradient, EXAMPLES), DESCANT_OK);
    kill(local, SIGTERM);
    ck_assert_int_eq(end_of(local), 128 + SIGTERM);
    ck_assert(!segment_left(0));
    ck_assert_int_eq(descant_ml_pin(ml, &model), DESCANT_ENDED);
    descant_ml_detach(ml);
    kill(control, SIGINT);
    ck_assert_int_eq(end_of(control), 128 + SIGINT);
    ck_assert_double_eq(summed("superstep", "gradients", &lines), 7);
    ck_assert(strstr(said, "lost") == NULL && strstr(said, "died") == NULL);
    ck_assert_uint_eq(check_checkpoint(), 1);
}
END_TEST

START_TEST(a_local_says_what_nobody_takes)
{
    const float gradient[FLOATS] = {3, 3, 3, 3, 3};
    struct descant_ml_model model;
    pid_t control = begin_control("--locals 1 --period 60s");
    pid_t local = program_aside("bsp local shm:%s --name %s", segment_name, segment_name);
    struct descant_ml *ml = attach_to(0);
    kill(control, SIGKILL);
    ck_assert_int_eq(end_of(control), 128 + SIGKILL);
    ck_assert_int_eq(descant_ml_pin(ml, &model), DESCANT_OK);
    for (int k = 0; k < 7; k++)
        ck_assert_int_eq(descant_ml_add(ml, gradient, EXAMPLES), DESCANT_OK);
    kill(local, SIGTERM);
    ck_assert_int_eq(end_of(local), 128 + SIGTERM);
    says("7 gradients are lost: control has not taken them");
    descant_ml_detach(ml);
}
END_TEST

START_TEST(status_sees_the_segments_of_both)
{
    char line[128];
    pid_t control = begin_control("--locals 2 --period 5ms");
    pid_t locals[2] = {begin_local("--number 0 --modules 2", "constant"),
                       begin_local("--number 1 --modules 2", "constant")};
    wait_modules(4);
    snprintf(line, sizeof line, "status %s --over 0.2", segment_name);
    ck_assert_int_eq(ask("bsp %s", line), CLI_DONE);
    for (int k = 0; k < 4; k++) {
        snprintf(line, sizeof line, "%s-%d: 5 floats in 1 part; version ", segment_name, k);
        says(line);
    }
    kill(control, SIGTERM);
    ck_assert_int_eq(end_of(control), 128 + SIGTERM);
    for (int k = 0; k < 2; k++)
        ck_assert_int_eq(end_of(locals[k]), CLI_DONE);
}
END_TEST

/* Under mpirun each rank has its modules, and the first is control, too. */
START_TEST(one_job_under_mpirun)
{
    char what[3 * PATH_MAX];
    int lines;
    if (!is_there((enum mpi_library)_i))
        return;
    snprintf(what, sizeof what, "-n 3 %s bsp run --name %s --quiet --modules 2 --params 5 --lr 0.5 "
             "--period 5ms " NEVER_STALE " --checkpoint %s --log %s -- %s module times", self,
             segment_name, checkpoint, log_file, self);
    int status = mpirun((enum mpi_library)_i, "", what);
    ck_assert_msg(status == 0, "%d: %s", status, said);
    says("all modules have done their work");
    ck_assert_msg(summed("superstep", "gradients", &lines) == 300, "%g: %s", summed("superstep", "gradients", &lines), said);
    ck_assert_int_eq((int)check_checkpoint(), lines);
    for (int k = 0; k < 6; k++)
        ck_assert(!segment_left(k));
}
END_TEST

START_TEST(control_and_locals_under_mpirun)
{
    char what[4 * PATH_MAX];
    if (!is_there((enum mpi_library)_i))
        return;
    snprintf(what, sizeof what, "-n 1 %s bsp control --name %s --quiet --params 5 --lr 0.5 "
             "--period 5ms --supersteps 40 --checkpoint %s --log %s : -n 2 %s bsp local --name %s "
             "-- %s module constant", self, segment_name, checkpoint, log_file, self, segment_name,
             self);
    int status = mpirun((enum mpi_library)_i, "", what);
    ck_assert_msg(status == 0, "%d: %s", status, said);
    says("all supersteps are made");
    ck_assert_uint_eq(check_checkpoint(), 40);
}
END_TEST

static void make_data(char *path, size_t room)
{
    snprintf(path, room, "%s.svm", checkpoint);
    FILE *out = fopen(path, "we");
    for (int k = 0; k < 100; k++)
        fprintf(out, "%d %d:1\n", k % 2, 1 + k % 3);
    ck_assert(out && fclose(out) == 0);
}

/* Where one rank does not come to MPI_Init, the others must not wait for it for ever. */
START_TEST(a_rank_that_fails_early_ends_the_job)
{
    static const struct {
        const char *bad, *good, *says;
    } ways[] = {
        {"train --data /nowhere", "train --data %s", "/nowhere"},
        {"train --rowz 4", "train --data %s", "rowz"},
        {"train --data %1$s --trainers 2", "train --data %s", "--trainers 2 under a launcher"},
        {"train --data %1$s --checkpoint /nowhere/m", "train --data %s", "/nowhere/m"},
        {"bsp run --parms 5", "bsp run --params 5 -- sleep 100", "parms"},
    };
    char what[4 * PATH_MAX], data[PATH_MAX], bad[256], good[256];
    int n = (int)(sizeof ways / sizeof *ways);
    if (!is_there((enum mpi_library)(_i / n)))
        return;
    make_data(data, sizeof data);
    snprintf(bad, sizeof bad, ways[_i % n].bad, data);
    snprintf(good, sizeof good, ways[_i % n].good, data);
    snprintf(what, sizeof what, "-n 1 %s %s : -n 1 %s %s", self, good, self, bad);
    uint64_t began;
    int status, tries = 3;
    do {            /* MPICH's mpiexec itself may die, of SIGPIPE, when a rank ends at once */
        began = clock_now_ns();
        status = mpirun((enum mpi_library)(_i / n), "", what);
    } while (status == 128 + SIGPIPE && !*said && --tries > 0);
    ck_assert_msg(status == CLI_BAD_USE, "%d: %s", status, said);
    ck_assert(clock_now_ns() - began < UINT64_C(40000000000));
    says(ways[_i % n].says);
}
END_TEST

/* A rank that hangs before it is one that the others give up, though not as soon as MPI_Init may
 * have its normal work to do. */
START_TEST(a_rank_that_does_not_come_is_given_up)
{
    char what[4 * PATH_MAX], data[PATH_MAX];
    if (!is_there((enum mpi_library)_i))
        return;
    make_data(data, sizeof data);
    snprintf(what, sizeof what, "-n 2 %s train --data %s --start-s 6 : -n 1 sleep 50", self, data);
    int status = mpirun((enum mpi_library)_i, "", what);
    ck_assert_msg(status == CLI_FAILED, "%d: %s", status, said);
    says("trainer 0 waits in MPI_Init for ranks that have not come to it, at most 10 s in all");
    says("some ranks did not come to MPI_Init in 10 s: this process ends, because MPI_Init cannot "
         "be cancelled");
}
END_TEST

static const struct {
    const char *line, *says;
    int status;
} bad[] = {
    {"control shm:x", "give --params or --model for the model to train", CLI_BAD_USE},
    {"control shm:x --params 5 -- true", "COMMAND belongs to descant bsp local", CLI_BAD_USE},
    {"control shm:x --params 5 --modules 2", "--modules belongs to descant bsp local", CLI_BAD_USE},
    {"control shm:x --params=5 --slots=2", "--slots belongs to descant bsp local", CLI_BAD_USE},
    {"control shm:x --name --slots --number 1", "--number belongs to descant bsp local",
     CLI_BAD_USE},
    {"local shm:x --params 5", "--params belongs to descant bsp control", CLI_BAD_USE},
    {"local shm:x --modules 2 --lr=1", "--lr belongs to descant bsp control", CLI_BAD_USE},
    {"local shm:x --optimizer sgd", "--optimizer belongs to descant bsp control", CLI_BAD_USE},
    {"local shm:x --resume", "--resume belongs to descant bsp control", CLI_BAD_USE},
    {"local shm:x --locals 2", "--locals belongs to descant bsp control", CLI_BAD_USE},
    {"control --params 5", "control and local modules meet over shm:NAME, tcp:HOST:PORT, or mpi", CLI_BAD_USE},
    {"control self --params 5", "control and local modules meet over shm:NAME", CLI_BAD_USE},
    {"control udp:x --params 5", "'udp:x' is no job address", CLI_BAD_USE},
    {"control tcp:x --params 5", "the address is tcp:HOST:PORT", CLI_BAD_USE},
    {"control shm:a/b --params 5", "a name has 1 to 64 characters", CLI_BAD_USE},
    {"control shm:x --params 5 --locals 64",
     "--locals 64: allowed is a whole number from 1 to 63\n", CLI_BAD_USE},
    {"control shm:x --params 0", "--params 0: allowed is", CLI_BAD_USE},
    {"local shm:x --number 63",
     "--number 63: allowed is a whole number from -1 to 62\n", CLI_BAD_USE},
    {"local shm:x --name a/b", "--name 'a/b': it has", CLI_BAD_USE},
    {"local shm:x --", "there is no COMMAND after --", CLI_BAD_USE},
    {"local", "control and local modules meet over shm:NAME, tcp:HOST:PORT, or mpi", CLI_BAD_USE},
};

START_TEST(bad_use_is_said)
{
    char line[128];
    snprintf(line, sizeof line, "%s", bad[_i].line);
    ck_assert_int_eq(ask("bsp %s", line), bad[_i].status);
    says(bad[_i].says);
}
END_TEST

START_TEST(there_is_one_control)
{
    char line[256];
    pid_t control = begin_control("--locals 1 --period 5ms");
    pid_t local = begin_local("--number 0", "constant");
    wait_steps(2);
    snprintf(line, sizeof line, "control shm:%s --params 5", segment_name);
    ck_assert_int_eq(end_of(program_aside("bsp %s", line)), CLI_FAILED);
    says("rank 0 of job");
    says("is held by a living trainer");
    snprintf(line, sizeof line, "local shm:%s --number 0", segment_name);
    ck_assert_int_eq(end_of(program_aside("bsp %s", line)), CLI_FAILED);
    says("rank 1 of job");
    kill(control, SIGTERM);
    ck_assert_int_eq(end_of(control), 128 + SIGTERM);
    ck_assert_int_eq(end_of(local), CLI_DONE);
}
END_TEST

static TCase *make_case(void)
{
    TCase *tests = new_case("bsp_net", 90);
    tcase_add_checked_fixture(tests, set_up, remove_folder);
    tcase_add_loop_test(tests, control_and_locals_are_processes, 0, 4);
    tcase_add_loop_test(tests, gradients_are_counted_exactly_once, 0, 4);
    tcase_add_loop_test(tests, control_is_killed_and_finds_the_locals, 0, 2);
    tcase_add_loop_test(tests, a_local_is_killed_and_comes_again, 0, 2);
    tcase_add_loop_test(tests, a_stopped_local_holds_up_nobody, 0, 2);
    tcase_add_test(tests, a_late_sum_blocks_nothing);
    tcase_add_test(tests, a_local_leaves_in_good_order);
    tcase_add_test(tests, a_local_says_what_nobody_takes);
    tcase_add_test(tests, status_sees_the_segments_of_both);
    tcase_add_test(tests, there_is_one_control);
    tcase_add_loop_test(tests, bad_use_is_said, 0, N(bad));
    tcase_add_loop_test(tests, one_job_under_mpirun, 0, MPI_LIBRARIES);
    tcase_add_loop_test(tests, control_and_locals_under_mpirun, 0, MPI_LIBRARIES);
    tcase_add_loop_test(tests, a_rank_that_fails_early_ends_the_job, 0,
                        MPI_LIBRARIES * 5);
    tcase_add_loop_test(tests, a_rank_that_does_not_come_is_given_up, 0, MPI_LIBRARIES);
    return tests;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "module") == 0)
        return be_module(argv[2]);
    if (argc > 2 && (strcmp(argv[1], "bsp") == 0 || strcmp(argv[1], "train") == 0))
        return cli_main(argc, argv, stdout, stderr);
    find_modules();
    return run_cases(make_case(), NULL);
}
