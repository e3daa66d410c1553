/* SPDX-License-Identifier: MIT */
/* descant train with real processes: every model under every kind of plan, each example trained
 * once, trainers killed, runs stopped and resumed, checkpoints that cannot be written or read,
 * divergence, and what eval and predict make of the result. */
#include "harness/training.h"

#include <sys/resource.h>

/* --- every model, every kind of plan --- */

static const struct {
    int model;
    const char *sync;
    int trainers, workers;
    enum optimizer_kind optimizer;
} runs[] = {
    {MODEL_DLRM, "none", 1, 1, OPTIMIZER_SGD},
    {MODEL_DLRM, "none", 2, 2, OPTIMIZER_ADAGRAD},
    {MODEL_DLRM, "allreduce", 2, 2, OPTIMIZER_SGD},
    {MODEL_DLRM, "allreduce", 3, 1, OPTIMIZER_ADAM},
    {MODEL_DLRM, "shadow-easgd", 2, 2, OPTIMIZER_ADAGRAD},
    {MODEL_DLRM, "shadow-ma", 3, 1, OPTIMIZER_SGD},
    {MODEL_DLRM, "shadow-bmuf", 2, 1, OPTIMIZER_ADAMW},
    {MODEL_DLRM, "easgd", 2, 2, OPTIMIZER_SGD},
    {MODEL_DLRM, "ma", 2, 1, OPTIMIZER_SGD},
    {MODEL_DLRM, "bmuf", 2, 1, OPTIMIZER_SGD},
    {MODEL_DLRM, "dasgd", 2, 2, OPTIMIZER_SGD},
    {MODEL_DLRM, "dasgd-delta", 2, 1, OPTIMIZER_SGD},
    {MODEL_DLRM, "diloco", 2, 1, OPTIMIZER_ADAMW},
    {MODEL_DLRM, "diloco-delta", 2, 1, OPTIMIZER_ADAMW},
    {MODEL_LINEAR, "shadow-easgd", 2, 2, OPTIMIZER_SGD},
    {MODEL_FM, "shadow-ma", 2, 2, OPTIMIZER_ADAGRAD},
    {MODEL_LINEAR, "allreduce", 2, 2, OPTIMIZER_SGD},
    {MODEL_LINEAR, "shadow-easgd", 2, 2, OPTIMIZER_FTRL},
    {MODEL_FM, "dasgd-delta", 2, 2, OPTIMIZER_FTRL},
    {MODEL_FM, "allreduce", 2, 2, OPTIMIZER_FTRL},
    {MODEL_LINEAR, "bsp", 2, 2, OPTIMIZER_FTRL},
    {MODEL_DLRM, "shadow-easgd", 2, 2, OPTIMIZER_FTRL},
};
enum { N_RUNS = sizeof runs / sizeof *runs };

START_TEST(each_example_is_trained_once)
{
    struct train_options o = small();
    struct train_result r;
    o.model = runs[_i].model;
    o.sync = runs[_i].sync;
    o.trainers = runs[_i].trainers;
    o.workers = runs[_i].workers;
    o.optimizer.kind = runs[_i].optimizer;
    bool ftrl = runs[_i].optimizer == OPTIMIZER_FTRL;
    o.lr = !ftrl && runs[_i].optimizer >= OPTIMIZER_ADAM ? 0.002 : 0.05;
    o.table_lr = 0.05;
    o.optimizer.rows = ftrl ? ROWS_FTRL : o.optimizer.rows;
    o.eval = held_out;
    ck_assert_msg(train(&o, &r) == 0, "%s: %s", runs[_i].sync, said);
    ck_assert_uint_eq(r.seen.n, ROWS);
    ck_assert_uint_eq(r.figures.lines, ROWS);
    ck_assert_uint_eq(r.held_out.n, EVAL_ROWS);
    ck_assert_int_eq(r.figures.trainers, runs[_i].trainers);
    char parallel[64];
    snprintf(parallel, sizeof parallel, "examples at a time (ELP)   %d\n",
             32 * runs[_i].trainers * runs[_i].workers);
    says(parallel);
    ck_assert(r.held_out.loss > best);
    /* Copies that nothing keeps together learn each from what it got, which may be a few lines. */
    if (o.trainers == 1 || strcmp(runs[_i].sync, "none") != 0) {
        ck_assert_msg(r.held_out.entropy < 0.99, "%s learned nothing: entropy %g", runs[_i].sync,
                      r.held_out.entropy);
        ck_assert(r.held_out.auc > 0.55);
    }
    if (strncmp(runs[_i].sync, "shadow", 6) == 0)
        ck_assert(!(r.figures.stall_share > 0));
}
END_TEST

static double field(const char *line, const char *name)
{
    char key[40];
    snprintf(key, sizeof key, "\"%s\":", name);
    const char *at = strstr(line, key);
    ck_assert_msg(at != NULL, "no %s: %s", name, line);
    at += strlen(key);
    return strncmp(at, "null", 4) == 0 ? 0 : strtod(at, NULL);
}

/* Each example is in one interval, up to where the run ended, whoever wrote it, and so is each wait
 * and each step between merges; without merges there is nothing to tell of them. */
START_TEST(the_log_tells_of_all_examples)
{
    struct train_options o = small();
    struct train_result r;
    char line[2048], last[2048] = "";
    o.trainers = 2;
    o.sync = _i == 2 ? "shadow-ma" : _i ? "ma" : "none";
    o.log = log_file;
    o.log_every = _i ? 0.05 : 1000;
    o.epochs = _i == 2 ? PASSES(60) : 4;        /* so long that both are there, and merge */
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    double n = 0, loss = 0, before = 0, stall_s = 0, steps_merged = 0;
    FILE *in = fopen(log_file, "re");
    while (fgets(line, sizeof line, in))
        if (strstr(line, "\"kind\":\"interval\"")) {
            double now = strtod(strstr(line, "\"examples\":") + 11, NULL);
            loss += (now - n) * strtod(strstr(line, "\"loss\":") + 7, NULL);
            double per_s = field(line, "examples_per_s");       /* over the share's own seconds */
            stall_s += field(line, "stall_share") *
                       (per_s > 0 ? (now - n) / per_s : field(line, "seconds") - before);
            n = now;
            before = field(line, "seconds");
            steps_merged += 2 * field(line, "rounds") * field(line, "gap");
            if (strstr(line, "\"gap\":null,") == NULL)
                strcpy(last, line);
        }
    fclose(in);
    ck_assert_double_eq(n, (double)o.epochs * ROWS);
    double stalled = r.figures.stall_share * r.seconds, all = (double)r.figures.steps;
    ck_assert_msg(fabs(stall_s - stalled) <= 0.1 * stalled, "%g s, not %g", stall_s, stalled);
    ck_assert_msg(fabs(steps_merged - all) <= 0.5 * all || _i == 0, "%g of %g", steps_merged, all);
    ck_assert_msg(fabs(loss - r.seen.loss) < 1e-6 * loss, "%g, not %g", loss, r.seen.loss);
    ck_assert_msg((*last != 0) == (_i > 0), "%s", last);
    ck_assert_msg(!*last || strstr(last, "\"age_s\":null") == NULL, "%s", last);
    ck_assert_msg((strstr(said, "steps between merges") != NULL) == (_i > 0), "%s", said);
    const char *within = strstr(said, "99 % of exchanges within");
    double ms, steps;
    ck_assert_msg((within != NULL) == (_i > 0), "%s", said);
    if (within)
        ck_assert_msg(sscanf(within, "99 %% of exchanges within %lf ms (%lf steps)", &ms,
                             &steps) == 2 && ms > 0 && isfinite(steps), "%s", said);
}
END_TEST

START_TEST(the_limit_is_exact)
{
    struct train_options o = small();
    struct train_result r;
    o.trainers = 2;
    o.examples = 5001;
    ck_assert_int_eq(train(&o, &r), 0);
    ck_assert_uint_eq(r.seen.n, 5001);
}
END_TEST

START_TEST(epochs_go_over_the_data_again)
{
    struct train_options o = small();
    struct train_result r;
    o.epochs = 3;
    ck_assert_int_eq(train(&o, &r), 0);
    ck_assert_uint_eq(r.seen.n, 3 * ROWS);
}
END_TEST

/* --- deaths and stops --- */

START_TEST(the_rest_is_trained_by_the_others)
{
    struct train_options o = endless();
    pid_t pids[8];
    o.trainers = 3;
    o.epochs = PASSES(40);
    o.sync = _i ? "shadow-ma" : "shadow-easgd";
    pid_t pid = begin(&o);
    wait_examples(ROWS / 2);
    ck_assert_int_eq(children_of(pid, pids, 8), 3);
    wait_heeding(pids, 3);
    kill(pids[_i], SIGKILL);        /* the reporter, or another */
    ck_assert_msg(end_of(pid) == 0, "%s", said);
    says("was killed by signal 9; the others go on");
    const char *at = strstr(said, "  examples  ");
    ck_assert(at);
    double n = strtod(at + 12, NULL), chunk = 400;
    /* nothing left out, and at most what the dead one held done twice */
    static const char *const ranks[] = {"\"rank\":0,", "\"rank\":1,", "\"rank\":2,"};
    int of = 0;                     /* the one that came first; an heir goes on under its rank */
    for (int k = 0; k < 3; k++)
        of += lines_with(log_file, ranks[k]) > 0;
    ck_assert_msg(of == 1, "of whom are they?");
    ck_assert_msg(n >= PASSES(40.0) * ROWS && n <= PASSES(40.0) * ROWS + 4 * chunk,
                  "%.0f examples", n);
}
END_TEST

START_TEST(a_signal_ends_in_good_order)
{
    struct train_options o = endless();
    struct safetensors *file;
    o.trainers = 2;
    pid_t pid = begin(&o);
    wait_examples(ROWS / 2);
    kill(_i ? -pid : pid, _i ? SIGINT : SIGTERM);
    ck_assert_msg(end_of(pid) == 128 + (_i ? SIGINT : SIGTERM), "%s", said);
    says("stopped by signal");
    says("examples/s");
    ck_assert_int_eq(safetensors_open(&file, model_file, NULL), DESCANT_OK);
    safetensors_close(file);
}
END_TEST

/* Killed, all of it, at a moment of chance after a first checkpoint; what follows does the rest. */
START_TEST(a_killed_run_is_resumed)
{
    struct train_options o = endless();
    struct train_result r;
    o.trainers = 2;
    o.sync = _i == 0 ? "shadow-easgd" : _i == 1 ? "bmuf" : "allreduce";
    pid_t pid = begin(&o);
    wait_examples(ROWS);
    wait_file(model_file);
    kill_all(pid);
    double before = examples_kept();
    ck_assert(before > 0);
    o.epochs = (int)(before / ROWS) + PASSES(10);
    double all = (double)o.epochs * ROWS, again = 2 * 4 * 300;
    o.resume = true;
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    /* chunks that were held are done again: at most depth of each trainer, ~280 rows each */
    ck_assert_msg((double)r.seen.n >= all - 1 && (double)r.seen.n <= all + again,
                  "%llu examples, %.0f before", (unsigned long long)r.seen.n, before);
    ck_assert((double)r.own.n < all - before + again);
    double resumed = metrics_logloss(&r.seen);
    o.resume = false;
    o.checkpoint = NULL;
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    double whole = metrics_logloss(&r.seen);
    ck_assert_msg(fabs(resumed - whole) < 0.03 * whole, "loss %g, without a break %g", resumed,
                  whole);
}
END_TEST

/* Two that a launcher started, or one and another that joins it on the way. */
START_TEST(trainers_meet_by_themselves)
{
    struct train_options o = endless();
    char job[64];
    pid_t pids[2];
    o.trainers = 0;
    o.epochs = 2;
    o.checkpoint = NULL;
    snprintf(job, sizeof job, "shm:trainer-%d", (int)getpid());
    o.job = job;
    for (int k = 0; k < 2 && _i == 0; k++)
        pids[k] = begin_rank(&o, k);
    if (_i == 1)
        begin_and_join(&o, &o, 0, pids);
    for (int k = 0; k < 2; k++)
        ck_assert_msg(end_within(pids[k], 120) == 0, "%s", said);
    says("2 trainers x 1 worker\n");
    ck_assert_double_eq(examples_said(), (double)o.epochs * ROWS);
}
END_TEST

/* --- bad ends --- */

START_TEST(divergence_names_the_tensor)
{
    struct train_options o = small();
    struct train_result r;
    o.checkpoint = model_file;
    o.examples = 3200;
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    o.optimizer.kind = OPTIMIZER_SGD;
    o.optimizer.rows = ROWS_SGD;
    o.lr = 1e6;
    o.examples = 0;
    o.optimizer.momentum = _i ? 0.9 : 0;
    o.trainers = 2;
    o.sync = _i ? "allreduce" : "shadow-easgd";
    struct stat was, is;
    ck_assert_int_eq(stat(model_file, &was), 0);
    ck_assert_int_eq(train(&o, &r), 1);
    says("the loss is");
    says("at step");
    ck_assert_msg(strstr(said, "tensor ") || strstr(said, "are finite"), "%s", said);
    says("; lower --lr (it is 1e+06)");
    ck_assert_int_eq(r.stop, STOP_NAN);
    ck_assert_int_eq(stat(model_file, &is), 0);
    ck_assert_uint_eq(was.st_ino, is.st_ino);
}
END_TEST

START_TEST(a_checkpoint_that_cannot_be_written)
{
    struct train_options o = small();
    struct train_result r;
    char path[128];
    snprintf(path, sizeof path, "%s/nowhere/model", folder);
    o.checkpoint = path;
    o.examples = 3200;
    ck_assert_int_eq(train(&o, &r), 1);
    says("No such file");
}
END_TEST

START_TEST(a_full_disk_keeps_the_last_checkpoint)
{
    struct train_options o = small();
    struct train_result r;
    o.checkpoint = model_file;
    o.examples = 3200;
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    double before = examples_kept();
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit limit = {50000, 50000};
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    o.examples = 6400;
    ck_assert_int_eq(train(&o, &r), 1);
    says("checkpoint");
    ck_assert(fabs(examples_kept() - before) < 0.5);
}
END_TEST

START_TEST(a_checkpoint_of_another_model_is_refused)
{
    struct train_options o = small();
    struct train_result r;
    o.checkpoint = model_file;
    o.examples = 3200;
    ck_assert_int_eq(train(&o, &r), 0);
    o.resume = true;
    o.top = "17";
    ck_assert_int_eq(train(&o, &r), 1);
    says("is of another model");
    o = small();
    o.checkpoint = model_file;
    o.resume = true;
    ck_assert_int_eq(truncate(model_file, 5000), 0);
    ck_assert_int_eq(train(&o, &r), 1);
    says("model.safetensors");
}
END_TEST

START_TEST(bad_data_stops_the_run)
{
    struct train_options o = small();
    struct train_result r;
    FILE *out = fopen(clicks, "ae");
    for (int i = 0; i < 3000; i++)
        fputs("this is no click\n", out);
    fclose(out);
    o.trainers = 2;
    ck_assert_int_eq(train(&o, &r), 1);
    says("clicks.tsv:");
    o.max_bad = 1;                  /* one reader may have most of them */
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    ck_assert_uint_eq(r.seen.n, ROWS);
    ck_assert_uint_eq(r.figures.bad, 3000);
}
END_TEST

/* Few lines, and who reads the bad ones may not be who meets the end of the data. */
START_TEST(few_bad_lines_stop_it_too)
{
    struct train_options o = small();
    struct train_result r;
    FILE *out = fopen(clicks, "we");
    for (int i = 0; i < 100; i++)
        fputs("this is no click\n", out);
    fclose(out);
    o.trainers = 3;
    for (int k = 0; k < few(10, 3); k++) {
        ck_assert_int_eq(train(&o, &r), 1);
        says("100 of 100 lines are bad, more than 1 %");
    }
}
END_TEST

/* Of the evaluations while it trained; the last one in the log is of the final model. */
static double least_loss_logged(void)
{
    char line[2048];
    double least = INFINITY, last = INFINITY;
    FILE *in = fopen(log_file, "re");
    while (fgets(line, sizeof line, in)) {
        const char *at = strstr(line, "\"kind\":\"eval\"") ? strstr(line, "\"eval_loss\":") : NULL;
        least = at ? fmin(least, last) : least;
        last = at ? strtod(at + 12, NULL) : last;
    }
    fclose(in);
    return least;
}

/* An evaluation beside training decides; what is kept and told is where all of them stopped. A bad
 * line of the held-out set is said by the first that reads it. */
START_TEST(patience_ends_early)
{
    struct train_options o = small();
    struct train_result r;
    FILE *to = fopen(held_out, "ae");
    ck_assert(to && fputs("torn\n", to) >= 0 && fclose(to) == 0);
    o.trainers = 1 + _i;
    o.checkpoint = model_file;
    o.log = log_file;
    o.log_every = 0.01;
    o.eval = held_out;
    o.epochs = 100000;
    o.eval_every = PASSES(5) * ROWS;
    o.patience = 2;
    o.lr = 0.5;
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    ck_assert_int_eq(r.stop, STOP_EARLY);
    says("no gain in 2 evaluations; the best loss was ");
    double told = strtod(strstr(said, "loss was ") + 9, NULL), least = least_loss_logged();
    ck_assert_msg(told > best && fabs(told - least) < 1e-5, "%g, not %g", told, least);
    ck_assert_uint_eq(r.held_out.n, EVAL_ROWS);
    const char *torn = strstr(said, "held.tsv:4001: ");
    ck_assert_msg(torn && !strstr(torn + 1, "held.tsv:4001: "), "%s", said);
    ck_assert_msg(r.seen.n > 3 * PASSES(5) * ROWS && r.seen.n < 1000 * ROWS, "%llu examples",
                  (unsigned long long)r.seen.n);
    ck_assert_double_eq(examples_kept(), (double)r.seen.n);
}
END_TEST

/* A rate of 0 for the dense part is none for the tables. */
START_TEST(tables_learn_alone)
{
    struct train_options o = small();
    struct train_result r;
    struct saved saved;
    o.optimizer.kind = _i ? OPTIMIZER_ADAGRAD : OPTIMIZER_SGD;
    o.optimizer.rows = _i ? ROWS_ADAGRAD : ROWS_SGD;
    o.lr = 0;
    o.table_lr = 0.05;
    o.examples = 3200;
    o.checkpoint = model_file;
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    ck_assert_int_eq(saved_open(&saved, model_file, NULL), DESCANT_OK);
    size_t n = model_floats(saved.model), rows = model_table_rows(saved.model);
    size_t n_tables = model_table_floats(saved.model);
    float *w = memory_take_array(n + n_tables, sizeof *w), *tables = w + n;
    model_init(saved.model, w, (uint64_t)o.seed);
    model_init_tables(saved.model, tables, 0, rows, (uint64_t)o.seed);
    ck_assert_mem_eq(w, saved.w, n * sizeof *w);
    ck_assert_int_ne(memcmp(tables, saved.tables, n_tables * sizeof *w), 0);
    memory_give(w);
    saved_close(&saved);
}
END_TEST

/* --- the program --- */

/* Criteo's text as a file of blocks. */
static void make_cache(const char *text, const char *path)
{
    ck_assert_msg(program("gen cache --data %s --format criteo --out %s", text, path) == CLI_DONE,
                  "%s", err_text);
    ck_assert_msg(strcmp(err_text, "4000 examples\n") == 0, "%s", err_text);
}

START_TEST(eval_and_predict_use_the_checkpoint)
{
    struct train_options o = small();
    struct train_result r;
    o.checkpoint = model_file;
    o.eval = held_out;
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    ck_assert_msg(program("eval --checkpoint %s --data %s --json", model_file, held_out) == 0,
                  "%s", err_text);
    const char *auc = strstr(out_text, "\"auc\":");
    ck_assert_msg(auc && fabs(strtod(auc + 6, NULL) - r.held_out.auc) < 1e-6,
                  "%g is not in %s", r.held_out.auc,
                  out_text);
    ck_assert_int_eq(program("predict --checkpoint %s --data %s", model_file, held_out), 0);
    int lines = 0;
    double sum = 0;
    for (char *at = out_text; *at; at = strchr(at, '\n') + 1, lines++)
        sum += strtod(at, NULL);
    ck_assert_int_eq(lines, EVAL_ROWS);
    ck_assert(sum / EVAL_ROWS > 0.05 && sum / EVAL_ROWS < 0.6);
    ck_assert_int_eq(program("eval --checkpoint %s --data %s", clicks, held_out), 1);
    ck_assert_int_eq(program("eval --data %s", held_out), 2);
}
END_TEST

static double figure(const char *key)
{
    const char *at = strstr(out_text, key);
    ck_assert_msg(at != NULL, "no %s in %s", key, out_text);
    return strtod(at + strlen(key), NULL);
}

/* Of the same rows: threads take them as they come, so sums of floats differ in the last bits. */
#define SAME_LOSS 1e-7

/* Files are read as in training, caches anyway, or as they are, or as one says. */
START_TEST(eval_reads_what_it_is_told)
{
    struct train_options o = small();
    struct train_result r;
    char text[128], cache[128];
    o.checkpoint = model_file;
    o.examples = 3200;
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    snprintf(text, sizeof text, "%s/held.txt", folder);
    snprintf(cache, sizeof cache, "%s/held", folder);
    ck_assert_int_eq(rename(held_out, text), 0);
    make_cache(text, cache);
    ck_assert_msg(program("eval --checkpoint %s --data %s --json", model_file, text) == 0, "%s",
                  err_text);
    double loss = figure("\"loss\":");
    ck_assert_double_eq(figure("\"examples\":"), EVAL_ROWS);
    static const struct {
        const char *format;
        bool text, cache;           /* whether it reads them */
    } ways[] = {{"saved", true, true}, {"auto", true, true}, {"criteo", true, false},
                {"cache", false, true}};
    for (size_t k = 0; k < sizeof ways / sizeof *ways; k++)
        for (int c = 0; c < 2; c++) {
            int status = program("eval --checkpoint %s --data %s --json --format %s", model_file,
                                 c ? cache : text, ways[k].format);
            ck_assert_msg(status == ((c ? ways[k].cache : ways[k].text) ? CLI_DONE : CLI_FAILED),
                          "%s of %s: %s", ways[k].format, c ? "cache" : "text", err_text);
            if (status == CLI_DONE)
                ck_assert_double_eq_tol(figure("\"loss\":"), loss, SAME_LOSS);
        }
}
END_TEST

START_TEST(a_config_file_has_the_same_names)
{
    struct train_options o = train_options_default();
    char path[128], message[256], *text;
    bool given[MOST_SETTINGS] = {false};
    snprintf(path, sizeof path, "%s/run.conf", folder);
    FILE *out = fopen(path, "we");
    fputs("# a run\n  batch = 64\nmodel=fm   # which\n\nlr = 0.25\nresume\nsync = dasgd,every=8\n"
          "data = a#b.tsv\t# one file\n", out);
    fclose(out);
    ck_assert_msg(config_read(path, &o, given, &text, message, sizeof message), "%s", message);
    ck_assert(o.batch == 64 && o.model == MODEL_FM && o.resume);
    ck_assert(fabs(o.lr - 0.25) < 1e-12);
    ck_assert_str_eq(o.sync, "dasgd,every=8");
    ck_assert_str_eq(o.data, "a#b.tsv");
    free(text);
    out = fopen(path, "we");
    fputs("batch = 64\nbach = 3\n", out);
    fclose(out);
    memset(given, 0, sizeof given);
    ck_assert(!config_read(path, &o, given, &text, message, sizeof message));
    free(text);
    ck_assert_msg(strstr(message, "run.conf:2: unknown setting 'bach'"), "%s", message);
}
END_TEST

static const struct {
    const char *line, *says;
} bad[] = {
    {"train", "give --data, the files to train on"},
    {"train --data /nowhere/x", "--data: /nowhere/x: No such file"},
    {"train --data /dev/null --sync shadow-esgd", "unknown preset 'shadow-esgd'"},
    {"train --data /dev/null --model tree", "--model tree: allowed is linear|fm|dlrm|mlp"},
    {"train --data /dev/null --batch 0",
     "--batch 0: allowed is a whole number from 1 to 1048576\n"},
    {"train --data /dev/null --bottom 64,x", "--bottom 64,x: allowed are up to 14 sizes from 1 to"},
    {"train --data /dev/null --top 0", "--top 0: allowed are up to 14 sizes from 1 to 1048576, as"},
    {"train --data /dev/null --top 1,1,1,1,1,1,1,1,1,1,1,1,1,1,1", "allowed are up to 14 sizes"},
    {"train --data /dev/null --link fast", "--link fast: allowed is none"},
    {"train --data -", "its format cannot be looked at before: give --format"},
    {"train --data /dev/null --resume", "--resume needs --checkpoint"},
    {"train --data /dev/null --job shm:x", "--job needs --trainers 0"},
    {"train --data /dev/null --patience 3", "--patience needs --eval"},
    {"train --bach 3", "unknown option --bach"},
    {"train --config /nowhere/c", "/nowhere/c: No such file"},
    {"train --data /dev/null --config", "--config needs a value"},
    {"train --data /dev/null --link 1gbit,1ms", "--link needs --trainers 2"},
    {"train --data /dev/null --trainers 0 --link 1gbit,1ms", "--link needs --trainers 2"},
    {"eval --config zz", "unknown option --config"},
};
enum { N_BAD = sizeof bad / sizeof *bad };

START_TEST(bad_use_is_said)
{
    ck_assert_int_eq(program("%s", bad[_i].line), CLI_BAD_USE);
    ck_assert_msg(strstr(err_text, bad[_i].says) != NULL, "'%s' is not in: %s", bad[_i].says,
                  err_text);
}
END_TEST

int main(void)
{
    TCase *plans = new_case("plans", 120), *deaths = new_case("deaths", 180);
    TCase *ends = new_case("ends", 120), *use = new_case("use", 60);
    tcase_add_checked_fixture(plans, set_up_training, remove_folder);
    tcase_add_checked_fixture(deaths, set_up_training, remove_folder);
    tcase_add_checked_fixture(ends, set_up_training, remove_folder);
    tcase_add_checked_fixture(use, set_up_training, remove_folder);
    tcase_add_loop_test(plans, each_example_is_trained_once,
                        few(0, few_threads(N_RUNS / 2, N_RUNS - 5)), N_RUNS);
    tcase_add_loop_test(plans, the_log_tells_of_all_examples, few_threads(0, 2), 3);
    tcase_add_test(plans, the_limit_is_exact);
    tcase_add_test(plans, epochs_go_over_the_data_again);
    tcase_add_loop_test(deaths, the_rest_is_trained_by_the_others, 0, few_threads(2, 1));
    tcase_add_loop_test(deaths, a_signal_ends_in_good_order, 0, 2);
    tcase_add_loop_test(deaths, a_killed_run_is_resumed, 0, few(3, 1));
    tcase_add_loop_test(deaths, trainers_meet_by_themselves, 0, 2);
    tcase_add_loop_test(ends, divergence_names_the_tensor, 0, few_threads(2, 1));
    tcase_add_test(ends, a_checkpoint_that_cannot_be_written);
    tcase_add_test(ends, a_full_disk_keeps_the_last_checkpoint);
    tcase_add_test(ends, a_checkpoint_of_another_model_is_refused);
    tcase_add_test(ends, bad_data_stops_the_run);
    tcase_add_test(ends, few_bad_lines_stop_it_too);
    tcase_add_loop_test(ends, patience_ends_early, few_threads(0, 1), 2);
    tcase_add_loop_test(ends, tables_learn_alone, 0, few_threads(2, 0));
    tcase_add_test(use, eval_and_predict_use_the_checkpoint);
    tcase_add_test(use, eval_reads_what_it_is_told);
    tcase_add_test(use, a_config_file_has_the_same_names);
    tcase_add_loop_test(use, bad_use_is_said, 0, few_threads(N_BAD, 0));
    make_clicks();
    return run_cases(plans, deaths, ends, use, NULL);
}
