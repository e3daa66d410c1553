/* SPDX-License-Identifier: MIT */
/* descant bsp run with a held-out set: its figures are those of the model as it is, and it ends a run
 * that gains nothing. The module is a thread of this process, whose gradients are 1 everywhere. */
#include "harness/training.h"

#include "descant_ml.h"

#include <pthread.h>

enum { FILES = 250 };
static char segment[80], name[64];

static void *module(void *of)
{
    struct descant_ml *ml;
    struct descant_ml_model model;
    float *g = of;
    if (descant_ml_attach(&ml, segment, 30) != DESCANT_OK)
        return NULL;
    for (size_t i = 0; i < descant_ml_size(ml); i++)
        g[i] = 1;
    while (descant_ml_pin(ml, &model) == DESCANT_OK) {
        descant_ml_add(ml, g, 10);
        usleep(200);
    }
    descant_ml_detach(ml);
    return NULL;
}

/* A trained model to begin with; returns its held-out loss. */
static double make_model(void)
{
    struct train_options o = small();
    struct train_result r;
    o.checkpoint = model_file;
    o.eval = held_out;
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    return r.held_out.loss;
}

static int run(const char *eval, const char *options)
{
    static float gradient[1 << 20];
    pthread_t thread;
    snprintf(name, sizeof name, "test-eval-%d", (int)getpid());
    snprintf(segment, sizeof segment, "%s-0", name);
    ck_assert_int_eq(pthread_create(&thread, NULL, module, gradient), 0);
    int status = program("bsp run --quiet --name %s --period 2ms --model %s --log %s --eval %s %s",
                         name, model_file, log_file, eval, options);
    pthread_join(thread, NULL);
    return status;
}

static double said_loss(void)
{
    const char *at = strstr(out_text, "  held-out loss ");
    ck_assert_msg(at != NULL, "%s%s", out_text, err_text);
    return strtod(at + 16, NULL);
}

START_TEST(a_run_without_gain_ends)
{
    double loss = make_model();
    int status = run(held_out, "--lr 0 --eval-every 100 --patience 2 --minutes 1");
    ck_assert_msg(status == CLI_DONE, "%s", err_text);
    ck_assert_msg(strstr(out_text, "the held-out loss falls no more") != NULL, "%s", out_text);
    ck_assert_double_eq_tol(said_loss(), loss, 1e-5);
    int evals = lines_with(log_file, "\"kind\":\"eval\"");
    ck_assert_int_ge(evals, 4);
    ck_assert_int_eq(lines_with(log_file, "\"auc\""), evals + 1);
    ck_assert_int_eq(lines_with(log_file, "\"eval_calibration\""), evals + 1);
}
END_TEST

/* What is bad of the held-out set is said by the first look at it. */
START_TEST(bad_lines_are_said_once)
{
    make_model();
    FILE *to = fopen(held_out, "ae");
    ck_assert(to && fputs("torn\n", to) >= 0 && fclose(to) == 0);
    ck_assert_msg(run(held_out, "--lr 0 --eval-every 100 --patience 2 --minutes 1") == CLI_DONE, "%s",
                  err_text);
    ck_assert_int_ge(lines_with(log_file, "\"kind\":\"eval\""), 4);
    const char *at = strstr(err_text, "held.tsv:4001: ");
    ck_assert_msg(at && !strstr(at + 1, "held.tsv:4001: "), "%s", err_text);
}
END_TEST

/* The figures are of what the steps have made, not of what there was. */
START_TEST(the_model_that_is_judged_is_the_last)
{
    double loss = make_model();
    ck_assert_msg(run(held_out, "--lr 0.002 --supersteps 20") == CLI_DONE, "%s", err_text);
    ck_assert_msg(fabs(said_loss() - loss) > 1e-3, "%g, before %g", said_loss(), loss);
    ck_assert_int_eq(lines_with(log_file, "\"kind\":\"eval\""), 1);
    ck_assert_int_eq(lines_with(log_file, "\"eval_loss\""), 2);
}
END_TEST

/* A signal ends the last look, too: the files are many, all of them one, and then a pipe that
 * nobody writes to. */
START_TEST(a_signal_does_not_wait_for_figures)
{
    char files[2 * FILES + 2] = "h";
    make_model();
    ck_assert_int_eq(chdir(folder), 0);
    ck_assert_int_eq(symlink(held_out, "h"), 0);
    ck_assert_int_eq(mkfifo("p", 0600), 0);
    for (int k = 1; k < FILES; k++)
        strcat(files, ",h");
    strcat(files, ",p");
    pid_t pid = fork();
    if (pid == 0)
        _exit(run(files, "--lr 0 --supersteps 5 --checkpoint c"));
    wait_file("c");
    WAIT_UNTIL(has_open(pid, held_out), "the last look has not begun");
    kill(pid, SIGTERM);
    ck_assert_int_eq(end_within(pid, 60), 128 + SIGTERM);
    ck_assert_int_eq(lines_with(log_file, "stopped by SIGTERM"), 1);
    ck_assert_int_eq(lines_with(log_file, "\"eval_loss\""), 0);
}
END_TEST

static const char *const bad[][2] = {
    {"--params 5 --eval %s", "--eval needs --model"},
    {"--model %s --eval-every 5", "--eval-every needs --eval"},
    {"--model %s --patience 5", "--patience needs --eval-every"},
};

START_TEST(bad_use_is_said)
{
    char line[256];
    snprintf(line, sizeof line, bad[_i][0], held_out);
    ck_assert_int_eq(program("bsp run --name none %s", line), CLI_BAD_USE);
    ck_assert_msg(strstr(err_text, bad[_i][1]) != NULL, "%s", err_text);
}
END_TEST

/* Parts that nobody knows how to compute with. */
START_TEST(a_foreign_model_cannot_be_judged)
{
    struct safetensor tensor = {.name = "w", .type = SAFETENSORS_F32, .n_dims = 1, .dims = {2},
                                .data = (float[]){1, 2}, .bytes = 8, .finite = true};
    ck_assert_int_eq(safetensors_write(model_file, NULL, &tensor, 1, NULL, 0, NULL), DESCANT_OK);
    ck_assert_int_eq(program("bsp run --quiet --name test-eval-%d --model %s --eval %s --supersteps 1",
                             (int)getpid(), model_file, held_out), CLI_FAILED);
    ck_assert_msg(strstr(err_text, "was not written by descant train") != NULL, "%s", err_text);
}
END_TEST

int main(void)
{
    TCase *tests = new_case("bsp_eval", 120);
    tcase_add_checked_fixture(tests, set_up_training, remove_folder);
    tcase_add_test(tests, a_run_without_gain_ends);
    tcase_add_test(tests, bad_lines_are_said_once);
    tcase_add_test(tests, the_model_that_is_judged_is_the_last);
    tcase_add_test(tests, a_signal_does_not_wait_for_figures);
    tcase_add_loop_test(tests, bad_use_is_said, 0, N(bad));
    tcase_add_test(tests, a_foreign_model_cannot_be_judged);
    make_clicks();
    return run_cases(tests, NULL);
}
