/* SPDX-License-Identifier: MIT */
/* descant train under the plan bsp, with real processes: each example is in one gradient, each
 * gradient in one superstep or counted as refused; whoever dies, the others go on, control too. */
#include "harness/training.h"

static struct train_options bsp(const char *plan, int trainers, int workers)
{
    struct train_options o = small();
    o.sync = plan;
    o.trainers = trainers;
    o.workers = workers;
    return o;
}

static bool log_line(const char *kind, char *line, size_t room)
{
    char next[4096];
    bool found = false;
    FILE *in = fopen(log_file, "re");
    while (in && fgets(next, sizeof next, in))
        if (strstr(next, kind)) {
            snprintf(line, room, "%s", next);
            found = true;
        }
    if (in)
        fclose(in);
    return found;
}

static double field(const char *line, const char *name)
{
    char key[64];
    snprintf(key, sizeof key, "\"%s\":", name);
    const char *at = strstr(line, key);
    ck_assert_msg(at != NULL, "no %s in %s", name, line);
    return strtod(at + strlen(key), NULL);
}

/* --- what is counted --- */

static const struct {
    int model;
    const char *plan;
    int trainers, workers;
    enum optimizer_kind optimizer;
} runs[] = {
    {MODEL_DLRM, "bsp,period=2ms,bound=1000000000", 2, 2, OPTIMIZER_ADAGRAD},
    {MODEL_DLRM, "bsp,every=3,bound=1000000000", 3, 1, OPTIMIZER_ADAM},
    {MODEL_LINEAR, "bsp,every=1,bound=1000000000", 1, 2, OPTIMIZER_SGD},
    {MODEL_FM, "bsp,period=50ms,bound=1000000000", 2, 1, OPTIMIZER_ADAGRAD},
};
enum { N_RUNS = sizeof runs / sizeof *runs };

START_TEST(each_example_is_in_one_gradient)
{
    struct train_options o = bsp(runs[_i].plan, runs[_i].trainers, runs[_i].workers);
    struct train_result r;
    char line[4096];
    o.model = runs[_i].model;
    o.optimizer.kind = runs[_i].optimizer;
    o.lr = runs[_i].optimizer >= OPTIMIZER_ADAM ? 0.002 : 0.02;
    o.table_lr = 0.05;
    o.eval = held_out;
    o.log = log_file;
    ck_assert_msg(train(&o, &r) == 0, "%s: %s", runs[_i].plan, said);
    ck_assert_uint_eq(r.seen.n, ROWS);
    ck_assert_uint_eq(r.figures.given, ROWS);
    ck_assert_uint_eq(r.figures.gradients, r.figures.steps);
    ck_assert_uint_eq(r.figures.stale + r.figures.not_finite + r.figures.lost, 0);
    ck_assert_uint_le(r.figures.supersteps, r.figures.gradients);
    ck_assert_uint_ge(r.figures.supersteps, o.plan_every ? r.figures.gradients / 64 : 1);
    ck_assert(!(r.figures.stall_share > 0));
    /* a control that hardly had a core has made few steps */
    ck_assert_msg(r.held_out.entropy < 0.99 || r.figures.supersteps < 20,
                  "%s learned nothing: %g", runs[_i].plan,
                  r.held_out.entropy);
    says("  supersteps  ");
    says("  staleness, mean  ");
    says("  refused as stale           0\n");
    ck_assert(log_line("\"kind\":\"summary\"", line, sizeof line));
    ck_assert_double_eq(field(line, "gradient_examples"), ROWS);
}
END_TEST

static struct safetensors *model_of(struct train_options *o)
{
    struct train_result r;
    struct safetensors *file;
    o->optimizer.kind = OPTIMIZER_SGD;
    o->lr = 0.5;
    o->table_lr = 1e-30;
    o->checkpoint = model_file;
    ck_assert_msg(train(o, &r) == 0, "%s: %s", o->sync, said);
    ck_assert_uint_eq(r.seen.n, ROWS);
    ck_assert_int_eq(safetensors_open(&file, model_file, NULL), DESCANT_OK);
    ck_assert_str_eq(safetensors_text(file, "steps"), "1");
    return file;
}

/* The largest difference between two models, in floats. */
static double apart(const struct safetensors *a, const struct safetensors *b)
{
    double most = 0;
    for (size_t k = 0; k < safetensors_count(a); k++) {
        const struct safetensor *x = safetensors_at(a, k);
        const struct safetensor *y = safetensors_find(b, x->name);
        const float *p = x->data, *q = y ? y->data : NULL;
        if (x->type != SAFETENSORS_F32 || strncmp(x->name, "descant.", 8) == 0)
            continue;
        ck_assert(y && y->bytes == x->bytes);
        for (size_t i = 0; i < x->bytes / sizeof *p; i++)
            most = fmax(most, fabs((double)p[i] - (double)q[i]));
    }
    return most;
}

/* The one superstep at the end is a step by the mean over all examples, whoever had which; that is what
 * one trainer does with all of them as one batch. */
START_TEST(a_superstep_is_a_step_by_the_mean)
{
    struct train_options o = bsp("bsp,period=3600s,bound=0", 2, 2);
    struct safetensors *here = model_of(&o), *there, *begin;
    o = bsp("none", 1, 1);
    o.batch = ROWS;
    o.chunk = 1 << 24;
    there = model_of(&o);
    o.lr = 0;
    ck_assert_msg(apart(here, there) < 1e-5, "%g", apart(here, there));
    struct train_result r;
    ck_assert_int_eq(train(&o, &r), 0);
    ck_assert_int_eq(safetensors_open(&begin, model_file, NULL), DESCANT_OK);
    ck_assert_msg(apart(here, begin) > 1e-2, "%g", apart(here, begin));
    safetensors_close(begin);
    safetensors_close(there);
    safetensors_close(here);
}
END_TEST

START_TEST(stale_gradients_are_refused_and_told)
{
    struct train_options o = bsp("bsp,every=1,bound=0", 2, 2);
    struct train_result r;
    char line[4096];
    o.log = log_file;
    o.log_every = 0.02;
    o.epochs = 3;
    int tries = 0;              /* none is stale where control has no core meanwhile */
    do
        ck_assert_msg(train(&o, &r) == 0, "%s", said);
    while (r.figures.stale == 0 && ++tries < 5);
    ck_assert_uint_eq(r.seen.n, 3 * ROWS);
    ck_assert_uint_gt(r.figures.stale, 0);
    ck_assert_uint_eq(r.figures.gradients + r.figures.stale, r.figures.steps);
    ck_assert_uint_lt(r.figures.given, 3 * ROWS);
    ck_assert_uint_eq(r.figures.lag_most, 0);
    double gradients = 0, stale = 0, supersteps = 0;
    FILE *in = fopen(log_file, "re");
    while (fgets(line, sizeof line, in))
        if (strstr(line, "\"kind\":\"interval\"")) {
            gradients += field(line, "gradients");
            stale += field(line, "refused_stale");
            supersteps += field(line, "supersteps");
        }
    fclose(in);
    ck_assert_double_eq(gradients, (double)r.figures.gradients);
    ck_assert_double_eq(stale, (double)r.figures.stale);
    ck_assert_double_eq(supersteps, (double)r.figures.supersteps);
}
END_TEST

/* A slow gradient is some versions behind, and is counted as such. */
START_TEST(staleness_is_told)
{
    struct train_options o = bsp("bsp,every=1,bound=1000000000", 2, 2);
    struct train_result r;
    int tries = 0;
    do
        ck_assert_msg(train(&o, &r) == 0, "%s", said);
    while (r.figures.lag == 0 && ++tries < 5);
    ck_assert(r.figures.lag > 0 && r.figures.lag_most * r.figures.gradients >= r.figures.lag);
}
END_TEST

/* --- checkpoints and evaluations --- */

static double text_of(const char *name)
{
    struct safetensors *file;
    ck_assert_int_eq(safetensors_open(&file, model_file, NULL), DESCANT_OK);
    const char *text = safetensors_text(file, name);
    double value = text ? strtod(text, NULL) : (double)NAN;
    safetensors_close(file);
    return value;
}

START_TEST(a_run_goes_on_from_its_checkpoint)
{
    struct train_options o = bsp("bsp,every=2", 2, 1);
    struct train_result r;
    o.optimizer.kind = OPTIMIZER_ADAM;
    o.lr = 0.002;
    o.table_lr = 0.05;
    o.checkpoint = model_file;
    o.examples = ROWS / 2;
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    double steps = (double)r.figures.supersteps;
    ck_assert_double_eq(text_of("steps"), steps);
    o.resume = true;
    o.examples = 0;
    o.eval = held_out;
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    ck_assert_uint_ge(r.seen.n, ROWS);
    ck_assert_uint_eq(r.own.n, r.seen.n - ROWS / 2);
    ck_assert_double_eq(text_of("steps"), steps + (double)r.figures.supersteps);
    ck_assert(r.held_out.entropy < 0.99);
    ck_assert_int_eq(program("eval --checkpoint %s --data %s", model_file, held_out), CLI_DONE);
    const char *loss = strstr(out_text, "log loss ");
    ck_assert_double_eq_tol(loss ? strtod(loss + 9, NULL) : 0, r.held_out.loss, 1e-6);
}
END_TEST

START_TEST(it_is_evaluated_meanwhile)
{
    struct train_options o = bsp("bsp,period=2ms", 2, 1);
    struct train_result r;
    char line[4096];
    o.eval = held_out;
    o.eval_every = 4000;
    o.epochs = 1000;
    o.patience = 2;
    o.lr = 0;           /* no gain */
    o.table_lr = 1e-30;
    o.log = log_file;
    o.log_every = 0.02;
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    says("no gain in 2 evaluations");
    ck_assert(log_line("\"eval_loss\":0", line, sizeof line));
}
END_TEST

/* --- deaths and stops --- */

/* 0: the trainer that has control, 1: another. */
START_TEST(the_others_go_on)
{
    struct train_options o = endless();
    char before[4096], after[4096];
    pid_t pids[8];
    o.trainers = 3;
    o.epochs = PASSES(40);
    o.sync = "bsp,period=2ms";
    pid_t pid = begin(&o);
    wait_examples(2 * ROWS);
    ck_assert_int_eq(children_of(pid, pids, 8), 3);
    wait_heeding(pids, 3);
    ck_assert(log_line("\"kind\":\"interval\"", before, sizeof before));
    kill(pids[_i], SIGKILL);
    ck_assert_int_eq(end_within(pid, 120), 0);
    says("was killed by signal 9; the others go on");
    double n = examples_said();
    ck_assert_msg(n >= PASSES(40.0) * ROWS && n <= PASSES(40.0) * ROWS + 4 * 400, "%.0f", n);
    ck_assert(log_line("\"kind\":\"summary\"", after, sizeof after));
    double supersteps = field(after, "supersteps");
    ck_assert_msg(supersteps > 100, "%g supersteps", supersteps);
    /* nearly all examples came to the model: what was lost is a period's and a batch a worker */
    double given = field(after, "gradient_examples");
    /* one that it had given, and not counted yet, may be more */
    ck_assert_msg(given > 0.9 * n && given <= n + (double)o.batch, "%g of %g", given, n);
    ck_assert_double_gt(text_of("steps"), 100);
}
END_TEST

START_TEST(a_signal_ends_in_good_order)
{
    struct train_options o = endless();
    struct train_result r;
    o.trainers = 2;
    o.sync = "bsp,every=4";
    pid_t pid = begin(&o);
    wait_examples(ROWS / 2);
    kill(_i ? -pid : pid, _i ? SIGINT : SIGTERM);
    ck_assert_int_eq(end_within(pid, 60), 128 + (_i ? SIGINT : SIGTERM));
    says("stopped by signal");
    double n = examples_said();
    o.resume = true;
    o.epochs = 1;
    o.examples = (int64_t)n + ROWS;
    o.epochs = 1000000;
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    ck_assert_uint_eq(r.seen.n, (uint64_t)o.examples);
}
END_TEST

/* All of it, at a moment of chance after a first checkpoint. */
START_TEST(a_killed_run_is_resumed)
{
    struct train_options o = endless();
    struct train_result r;
    o.trainers = 2;
    o.sync = "bsp,period=2ms";
    pid_t pid = begin(&o);
    wait_examples(ROWS);
    wait_file(model_file);
    kill_all(pid);
    double had = text_of("sums");
    o.resume = true;
    o.examples = (int64_t)had + ROWS;
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    ck_assert_uint_ge(r.seen.n, (uint64_t)o.examples);
    ck_assert_uint_gt(r.figures.supersteps, 0);
}
END_TEST

/* Though no superstep was due: what is behind the place in the data is in the model. */
START_TEST(a_checkpoint_has_what_was_given)
{
    struct train_options o = endless();
    o.trainers = 2;
    o.sync = "bsp,period=3600s";
    pid_t pid = begin(&o);
    /* the first one may come before anything was given */
    WAIT_UNTIL(access(model_file, F_OK) == 0 && text_of("sums") > 0, "%s", (read_said(), said));
    kill_all(pid);
    ck_assert_double_ge(text_of("steps"), 1);
}
END_TEST

START_TEST(a_model_that_breaks_is_named)
{
    struct train_options o = bsp("bsp,every=4", 2, 1);
    struct train_result r;
    o.optimizer.kind = OPTIMIZER_SGD;
    o.lr = 1e30;
    o.epochs = 1000;            /* until a gradient is of the broken model */
    o.checkpoint = model_file;
    ck_assert_int_eq(train(&o, &r), 1);
    ck_assert_msg(strstr(said, "has broken the model: tensor ") || strstr(said, "the loss is "), "%s",
                  said);
    ck_assert_int_ne(access(model_file, F_OK), 0);
}
END_TEST

/* --- words --- */

static const char *const refused[][2] = {
    {"--trainers 0", "without a launcher or --job"},
    {"--trainers 16 --workers 4", "room for 63 workers"},
    {"--final central", "keeps no central or global version"},
    {"--sync bsp,period=1us", "period cannot be '1us'"},
};

START_TEST(what_cannot_be_is_said)
{
    ck_assert_int_eq(program("train --data %s --quiet %s %s", clicks,
                             strstr(refused[_i][0], "--sync") ? "" : "--sync bsp", refused[_i][0]),
                     CLI_BAD_USE);
    ck_assert_msg(strstr(err_text, refused[_i][1]) != NULL, "%s", err_text);
}
END_TEST

START_TEST(a_job_is_told_what_to_use_instead)
{
    struct descant_options options = descant_options_default();
    struct descant *job = NULL;
    options.job = "self";
    options.plan = "bsp,period=10ms";
    ck_assert_int_eq(descant_open(&job, &options), DESCANT_UNSUPPORTED);
    ck_assert_ptr_null(job);
    ck_assert_ptr_nonnull(strstr(descant_last_error(), "descant bsp run"));
    ck_assert_ptr_nonnull(strstr(descant_last_error(), "descant train --sync bsp"));
}
END_TEST

int main(void)
{
    TCase *counts = tcase_create("counts"), *deaths = tcase_create("deaths");
    TCase *words = tcase_create("words");
    TCase *const cases[] = {counts, deaths, words};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        tcase_add_checked_fixture(cases[k], set_up_training, remove_folder);
        tcase_set_timeout(cases[k], 300);
    }
    tcase_add_loop_test(counts, each_example_is_in_one_gradient, 0, few_threads(N_RUNS, 2));
    tcase_add_test(counts, a_superstep_is_a_step_by_the_mean);
    tcase_add_test(counts, stale_gradients_are_refused_and_told);
    tcase_add_test(counts, staleness_is_told);
    tcase_add_test(counts, a_run_goes_on_from_its_checkpoint);
    tcase_add_test(counts, it_is_evaluated_meanwhile);
    tcase_add_loop_test(deaths, the_others_go_on, 0, few_threads(2, 1));
    tcase_add_loop_test(deaths, a_signal_ends_in_good_order, 0, few_threads(2, 1));
    tcase_add_test(deaths, a_killed_run_is_resumed);
    tcase_add_test(deaths, a_checkpoint_has_what_was_given);
    tcase_add_test(deaths, a_model_that_breaks_is_named);
    tcase_add_loop_test(words, what_cannot_be_is_said, 0, few_threads(N(refused), 0));
    tcase_add_test(words, a_job_is_told_what_to_use_instead);
    make_clicks();
    return run_cases(counts, deaths, words, NULL);
}
