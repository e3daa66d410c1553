/* SPDX-License-Identifier: MIT */
/* What training says to who has not read its sources: help, the progress line, how a run ended,
 * and what is wrong, once and with the words that mend it. */
#include "harness/training.h"

#include <sys/ioctl.h>

static char path[128];          /* of a file of the test's */

static void put(const char *name, const char *text, size_t n)
{
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *out = fopen(path, "we");
    ck_assert(out && fwrite(text, 1, n, out) == n && fclose(out) == 0);
}

static int times(const char *text)
{
    int n = 0;
    for (const char *at = said; (at = strstr(at, text)); at += strlen(text))
        n++;
    return n;
}

/* --- help --- */

/* Every setting once, in its part, with what is allowed. */
START_TEST(help_is_in_parts)
{
    static const char *const has[] = {
        "\ndata:\n  --data ", "\nmodel:\n  --model ", "\ntraining:\n  --batch ",
        "kept together:\n  --trainers ", "\nevaluation:\n  --eval-every ",
        "\noutput:\n  --checkpoint ", "an embedding (16; 1 to 1024)\n",
        "passes over the data (1; 1 or more)\n", "learning rate (0.1; 0.7 where linear, fm have ftrl)\n",
        "ftrl (sgd; ftrl where the model is linear or fm)\n", "step (128; 1 where linear, fm ",
        "momentum of sgd (0; 0 to 0.9999)\n", "the embeddings' width (512,256,64)\n"};
    char option[64];
    ck_assert_int_eq(program("train --help"), CLI_DONE);
    for (size_t k = 0; k < sizeof has / sizeof *has; k++)
        ck_assert_msg(strstr(out_text, has[k]) != NULL, "no '%s' in %s", has[k], out_text);
    const char *at = out_text;
    for (size_t k = 0; k < n_train_settings; k++) {
        snprintf(option, sizeof option, "\n  --%s ", train_settings[k].name);
        at = strstr(at, option);
        ck_assert_msg(at && !strstr(at + 1, option), "%s", option);
    }
}
END_TEST

/* The loss of the share of clicks as a guess, beside the best. */
START_TEST(what_a_guess_would_lose_is_said)
{
    double rows, positive, guess;
    ck_assert_int_eq(program("gen ctr --rows 5000 --categories 1000 --out /dev/null"), CLI_DONE);
    const char *at = strstr(err_text, "of a constant guess ");
    ck_assert_msg(sscanf(err_text, "%lf rows, %lf clicks", &rows, &positive) == 2 && at, "%s",
                  err_text);
    guess = strtod(at + 20, NULL);
    double p = positive / rows, entropy = -p * log(p) - (1 - p) * log(1 - p);
    ck_assert_msg(fabs(guess - entropy) < 1e-5, "%g, not %g", guess, entropy);
    ck_assert_int_eq(program("gen ctr --rows 1 --categories 3 --out /dev/null"), CLI_DONE);
    ck_assert_msg(strstr(err_text, "1 row, "), "%s", err_text);
}
END_TEST

START_TEST(other_packings_are_refused)
{
    ck_assert_int_eq(program("gen ctr --rows 5 --out %s/clicks.tsv.bz2", folder), CLI_BAD_USE);
    ck_assert_msg(strstr(err_text, "only .gz and .zst are compressed"), "%s", err_text);
}
END_TEST

/* --- who trains, and by which plan --- */

/* Each process of a launcher is one trainer of the launcher's job, unless it is told otherwise. */
START_TEST(a_launcher_is_not_passed_over)
{
    static const char *const names[][2] = {{"RANK", "WORLD_SIZE"}, {"PMI_RANK", "PMI_SIZE"}};
    setenv(names[_i][0], "0", 1);
    setenv(names[_i][1], "2", 1);
    setenv("DESCANT_MPI_MODULE", "/nowhere", 1);
    unsetenv("MASTER_PORT");
    ck_assert_int_eq(program("train --data %s --trainers 3", clicks), CLI_BAD_USE);
    ck_assert_msg(strstr(err_text, "--trainers 3 under a launcher, which has started 2"), "%s",
                  err_text);
    ck_assert_msg(strstr(err_text, "--trainers 0"), "%s", err_text);
    /* alone it would train; here it cannot meet the other one */
    ck_assert_int_eq(program("train --data %s --top 4 --bottom 4 --rows 100 --quiet", clicks),
                     CLI_FAILED);
    setenv(names[_i][1], "1", 1);
    ck_assert_msg(program("train --data %s --top 4 --bottom 4 --rows 100 --quiet --trainers 2",
                          clicks) == CLI_DONE, "%s", err_text);
}
END_TEST

START_TEST(the_plan_may_be_a_variable)
{
    static const struct {
        const char *plan, *option, *says;
    } ways[] = {{"shadow-ma", "", "\"sync\":\"shadow-ma\""},
                {"shadow-ma", "--sync ma", "\"sync\":\"ma\""}};
    setenv("DESCANT_PLAN", "dasdg", 1);
    ck_assert_int_eq(program("train --data %s", clicks), CLI_BAD_USE);
    ck_assert_msg(strstr(err_text, "--sync from DESCANT_PLAN: plan \"dasdg\""), "%s", err_text);
    for (int k = 0; k < 2; k++) {
        setenv("DESCANT_PLAN", ways[k].plan, 1);
        ck_assert_int_eq(program("train --data %s --top 4 --bottom 4 --rows 100 --quiet "
                                 "--examples 1000 --log %s %s", clicks, log_file, ways[k].option),
                         CLI_DONE);
        ck_assert_msg(lines_with(log_file, ways[k].says) > 0, "%s", ways[k].says);
    }
}
END_TEST

/* --- a model on other data --- */

/* Trained on what was seen to be Criteo's; neither stdin nor such a name tells. */
START_TEST(data_is_read_as_it_was_found)
{
    struct train_options o = small();
    struct train_result r;
    o.format = DATA_AUTO;
    o.examples = 1000;
    o.checkpoint = model_file;
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    ck_assert_ptr_nonnull(freopen(held_out, "re", stdin));
    ck_assert_msg(program("eval --checkpoint %s --data - --json", model_file) == CLI_DONE, "%s",
                  err_text);
    ck_assert_msg(strstr(out_text, "\"examples\":4000,"), "%s", out_text);
    put("plain.svm", "1 1:2 3:4\n", 10);
    ck_assert_int_eq(program("eval --checkpoint %s --data %s", model_file, path), CLI_FAILED);
    ck_assert_msg(strstr(err_text, "plain.svm looks like libsvm, not like criteo: give --format "
                         "libsvm, or auto"), "%s", err_text);
}
END_TEST

START_TEST(no_examples_are_no_result)
{
    struct train_options o = small();
    struct train_result r;
    o.examples = 1000;
    o.checkpoint = model_file;
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    put("empty.tsv", "", 0);
    ck_assert_int_eq(program("%s --checkpoint %s --data %s", _i ? "predict" : "eval", model_file,
                             path), CLI_FAILED);
    ck_assert_msg(strstr(err_text, "there is no example in "), "%s", err_text);
    ck_assert_str_eq(out_text, "");
}
END_TEST

/* The log's last interval ends where the summary's time does; a step of allreduce is its gap. */
START_TEST(the_log_is_of_one_clock)
{
    struct train_options o = small();
    struct train_result r;
    char line[4096];
    double last = -1, all = -1;
    o.trainers = 1 + _i;
    o.sync = _i ? "allreduce" : "none";
    o.log_every = 1000;
    o.log = log_file;
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    FILE *in = fopen(log_file, "re");
    while (in && fgets(line, sizeof line, in)) {
        const char *at = strstr(line, "\"seconds\":"), *gap = strstr(line, "\"gap");
        gap = gap ? strchr(gap, ':') : NULL;
        ck_assert_msg(!gap || strncmp(gap + 1, "null", 4) == 0 || strtod(gap + 1, NULL) >= 1, "%s",
                      line);
        if (strstr(line, "\"interval\"") && at)
            last = strtod(at + 10, NULL);
        else if (strstr(line, "\"summary\"") && at)
            all = strtod(at + 10, NULL);
        else
            ck_assert_msg(strstr(line, _i ? "\"size\":2," : "\"size\":1,") != NULL, "%s", line);
    }
    fclose(in);
    ck_assert_msg(all > 0 && last >= all && last <= all + 30 * _i, "%g, %g", last, all);
}
END_TEST

/* --- while it trains --- */

/* Processes of the test speak to it. */
static int open_terminal(int columns, int *other)
{
    struct winsize size = {.ws_row = 24, .ws_col = (unsigned short)columns};
    int mine = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    ck_assert(mine >= 0 && grantpt(mine) == 0 && unlockpt(mine) == 0);
    *other = open(ptsname(mine), O_RDWR | O_NOCTTY | O_CLOEXEC);
    snprintf(said_file, sizeof said_file, "%s", ptsname(mine));
    ck_assert(*other >= 0 && ioctl(mine, TIOCSWINSZ, &size) == 0);
    return mine;
}

/* What a terminal has got so far, after what it had. */
static size_t listen_to(int terminal, size_t n)
{
    ssize_t got = read(terminal, said + n, sizeof said - 1 - n);
    ck_assert_int_gt(got, 0);
    said[n + (size_t)got] = 0;
    return n + (size_t)got;
}

/* A line of the progress begins with a return and an erasure; it may be torn by a read. Where all of
 * it has no room, whole figures are left out. */
static bool line_fits(const char *line, size_t columns)
{
    size_t n = strcspn(line, "\r\n");
    if (!line[n] || n < 5 || !strstr(line, "loss"))
        return false;
    bool left = strncmp(line + n - 4, "left", 4) == 0;
    bool without = columns < 80 && strncmp(line + n - 2, " %", 2) == 0;
    ck_assert_msg(n < columns && (left || without), "%zu: %.*s", n, (int)n, line);
    return true;
}

START_TEST(the_progress_fits_into_a_terminal)
{
    struct train_options o = endless();
    int columns = (int[]){80, 100, 70}[_i], other, mine = open_terminal(columns, &other), seen = 0;
    size_t n = 0;
    o.quiet = false;
    o.sync = "easgd,every=250";
    pid_t pid = begin(&o);
    while (seen < 4) {
        n = listen_to(mine, n);
        seen = 0;
        for (char *at = said; (at = strstr(at, "\r\033[K")); )
            seen += line_fits(at += 4, (size_t)columns) && strstr(at, "  gap 2") != NULL;
    }
    kill(pid, SIGTERM);
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
    says(_i == 1 ? " examples  " : " seen  ");
    close(mine);
    close(other);
}
END_TEST

/* What the parent has to say stands on a line of its own. */
START_TEST(a_death_is_said_on_a_line_of_its_own)
{
    struct train_options o = endless();
    int other, mine = open_terminal(80, &other);
    pid_t children[2];
    o.quiet = false;
    o.trainers = 2;
    pid_t pid = begin(&o);
    for (size_t n = 0; !strstr(said, "left");)
        n = listen_to(mine, n);
    ck_assert_int_eq(children_of(pid, children, 2), 2);
    kill(children[1], SIGKILL);
    const char *death = NULL;
    for (size_t n = 0; !death || !strchr(death, '\n'); death = strstr(said, "descant: trainer 1 was"))
        n = listen_to(mine, n);
    ck_assert_msg(death - said >= 4 && strncmp(death - 4, "\r\033[K", 4) == 0, "%s", said);
    kill(pid, SIGTERM);
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
    close(mine);
    close(other);
}
END_TEST

/* With the longest figures a point of the curve takes one line. */
START_TEST(a_point_of_the_curve_is_one_line)
{
    struct held_out h = {.at = 99990000, .n = 1, .loss = 12.34567, .entropy = 12.3456,
                         .auc = 0.1234, .calibration = 12.345, .accuracy = 0.1234};
    char text[160];
    ck_assert_msg(strlen(held_out_text(&h, text, sizeof text)) < 80, "%s", text);
    ck_assert_str_eq(text, "held out at 99.99 M: loss 12.34567  NE 12.3456  AUC 0.1234  "
                           "calibration 12.345");
    h.auc = NAN;
    ck_assert_str_eq(held_out_text(&h, text, sizeof text),
                     "held out at 99.99 M: loss 12.34567  accuracy 0.1234");
}
END_TEST

START_TEST(a_stopped_run_says_what_is_kept)
{
    struct train_options o = endless();
    if (_i)
        o.checkpoint = NULL;
    pid_t pid = begin(&o);
    wait_examples(ROWS / 4);
    kill(pid, SIGINT);
    ck_assert_int_eq(end_within(pid, 30), 128 + SIGINT);
    says(_i ? "the model is not kept: --checkpoint FILE keeps it, and --resume goes on from it"
                   : "model.safetensors has the model so far; --resume goes on from it");
}
END_TEST

/* --- what is wrong --- */

/* Two trainers meet it, one says it; no table of figures follows. */
START_TEST(a_failure_is_said_once)
{
    static const struct {
        const char *name, *text, *says;
    } bad[] = {
        {"what", "neither this nor that\n", "its format cannot be told; give --format"},
        {"empty.tsv", "", "there is no example in"},
        {"bad.libsvm", "x x x\n", "lines are bad, more than 1 %"},
    };
    struct train_options o = small();
    struct train_result r;
    put(bad[_i].name, bad[_i].text, strlen(bad[_i].text));
    o.data = path;
    o.format = DATA_AUTO;
    o.model = MODEL_LINEAR;
    for (o.trainers = 1; o.trainers < 4; o.trainers++) {
        ck_assert_int_eq(train(&o, &r), 1);
        ck_assert_msg(times(bad[_i].says) == 1, "%s", said);
        ck_assert_msg(times(path) == 1 + (_i == 2), "%s", said);     /* the bad line, too */
        ck_assert_msg(!strstr(said, "linear under") && !strstr(said, "how far"), "%s", said);
        ck_assert_msg(o.trainers > 1 || !strstr(said, "rank 0"), "%s", said);
    }
}
END_TEST

static const struct {
    enum model_kind model;
    const char *name, *text, *says;
} misfits[] = {
    {MODEL_DLRM, "s.libsvm", "1 3:1 7:2\n0 1:1\n", "dlrm needs a dense feature; %s, read as "
     "libsvm, has 0 dense features, 1 field and 1 class; --model can be linear, fm"},
    {MODEL_MLP, "c.tsv", NULL, "mlp takes no ids; %s, read as criteo, has 13 dense features, 26 "
     "fields and 1 class; --model can be linear, fm, dlrm"},
};

START_TEST(a_model_that_does_not_fit)
{
    struct train_options o = small();
    struct train_result r;
    char says[512];
    if (misfits[_i].text)
        put(misfits[_i].name, misfits[_i].text, strlen(misfits[_i].text));
    else
        snprintf(path, sizeof path, "%s", clicks);
    o.data = path;
    o.format = DATA_AUTO;
    o.model = (int)misfits[_i].model;
    o.trainers = 2;
    ck_assert_int_eq(train(&o, &r), 1);
    const char *hole = strstr(misfits[_i].says, "%s");
    snprintf(says, sizeof says, "%.*s%s%s", (int)(hole - misfits[_i].says), misfits[_i].says, path,
             hole + 2);
    ck_assert_msg(times(says) == 1, "'%s' is not once in: %s", says, said);
}
END_TEST

START_TEST(no_memory_is_no_fault_of_the_model)
{
    struct train_options o = small();
    struct train_result r;
    long k = 0;
    do {
        memory_fail_at(++k);
        ck_assert_msg(train(&o, &r) == 1, "%ld: %s", k, said);
    } while (!strstr(said, "no memory for a model"));
    memory_fail_at(0);
    ck_assert_msg(!strstr(said, "--model can be"), "%s", said);
}
END_TEST

/* Of one trainer and of two, which have memory of another kind. */
START_TEST(tables_that_do_not_fit_are_said_in_numbers)
{
    struct train_options o = small();
    struct train_result r;
    o.trainers = _i + 1;
    o.rows = 1000000000;
    o.width = 8;
    ck_assert_int_eq(train(&o, &r), 1);
    ck_assert_msg(times("are needed") == 1 && times("are free") == 1, "%s", said);
    ck_assert_msg(times("the tables take 1549.72 GiB with their optimizer's state: 26000000000 "
                        "rows of 8 floats; --rows and --width make them smaller") == 1, "%s",
                  said);
}
END_TEST

static const struct {
    const char *text;
    size_t n;
    const char *says;
} configs[] = {
#define TEXT(text) text, sizeof text - 1
    {TEXT("batch = 64\nbatch 64\n"), "conf:2: 'batch 64' is not name = value"},
    {TEXT("--batch = 64\n"), "conf:1: '--batch': names are without dashes here"},
    {TEXT("batch = 64\n\nbatch=32\n"), "conf:3: batch is given twice"},
    {TEXT("resume = maybe\n"), "conf:1: resume maybe: allowed is 0 or 1"},
    {TEXT("batch =\n"), "conf:1: batch needs a value: a whole number from 1 to"},
    {TEXT("bacth = 64\n"), "conf:1: unknown setting 'bacth' (did you mean batch?)"},
    {TEXT("model = linear\nwidth = 16\n"),
     "--width means nothing with --model linear: it is for --model fm|dlrm"},
    {TEXT("batch = 64\n\0lr = 0.1\n"), "conf: it has a NUL byte, and is no text"},
#undef TEXT
};
enum { N_CONFIGS = sizeof configs / sizeof *configs };

START_TEST(a_wrong_config_is_told_by_its_line)
{
    put("conf", configs[_i].text, configs[_i].n);
    ck_assert_int_eq(program("train --data %s --config %s", clicks, path), CLI_BAD_USE);
    ck_assert_msg(strstr(err_text, configs[_i].says) != NULL, "'%s' is not in: %s",
                  configs[_i].says, err_text);
    ck_assert_int_eq(program("train --data %s --config %s", clicks, folder), CLI_BAD_USE);
    ck_assert_msg(strstr(err_text, ": Is a directory\n"), "%s", err_text);
}
END_TEST

/* What means nothing for the model, the optimizer or the format is refused, whatever its value. */
static const struct {
    const char *options, *says;     /* NULL: allowed */
} meanings[] = {
    {"--model linear --width 8", "--width means nothing with --model linear: it is for --model "
                                 "fm|dlrm"},
    {"--width=16 --model mlp", "--width means nothing with --model mlp"},
    {"--model fm --bottom 8", "--bottom means nothing with --model fm: it is for --model dlrm"},
    {"--model linear --top 8", "it is for --model dlrm|mlp"},
    {"--model mlp --rows 8", "it is for --model linear|fm|dlrm"},
    {"--model mlp --table-lr 1", "--table-lr means nothing with --model mlp"},
    {"--model mlp --table-optimizer sgd", "--table-optimizer means nothing with --model mlp"},
    {"--optimizer adagrad --momentum 0.9", "--momentum means nothing with --optimizer adagrad"},
    {"--optimizer sgd --beta1 0.9", "it is for --optimizer adam|adamw"},
    {"--optimizer sgd --table-optimizer sgd --epsilon 1e-6", "--epsilon means nothing with "
                                                             "--optimizer sgd"},
    {"--format criteo --fields 3", "--fields means nothing with --format criteo: it is for "
                                   "--format libffm"},
    {"--format criteo --plain-ids", "it is for --format libsvm|libffm"},
    {"--optimizer sgd --table-optimizer adagrad --epsilon 1e-6", NULL},
    {"--model fm --width 4", NULL},
    {"--model linear --table-lr 0.1", NULL},
};
enum { N_MEANINGS = sizeof meanings / sizeof *meanings };

START_TEST(what_means_nothing_is_refused)
{
    int status = program("train --data %s --examples 100 --quiet %s", clicks,
                         meanings[_i].options);
    ck_assert_int_eq(status, meanings[_i].says ? CLI_BAD_USE : CLI_DONE);
    ck_assert_msg(!meanings[_i].says || strstr(err_text, meanings[_i].says), "%s", err_text);
}
END_TEST

/* --- defaults that go with the model --- */

#define SMALL "--model dlrm --bottom 8 --top 8"

static const struct {
    const char *options, *says[5];      /* in the log's header */
} suited[] = {
    {"--model linear", {"\"optimizer\":\"ftrl\"", "\"table-optimizer\":\"ftrl\"", "\"lr\":0.7,",
                        "\"batch\":1,"}},
    {"--model fm --batch 8 --lr 0.2", {"\"optimizer\":\"ftrl\"", "\"table-optimizer\":\"ftrl\"",
                                       "\"lr\":0.2,", "\"batch\":8,"}},
    {"--model linear --sync allreduce", {"\"optimizer\":\"ftrl\"", "\"batch\":128,"}},
    {"--model linear --optimizer sgd", {"\"table-optimizer\":\"sgd\"", "\"lr\":0.1,",
                                        "\"batch\":1,"}},
    {"--model fm --table-optimizer adagrad", {"\"optimizer\":\"adagrad\"", "\"lr\":0.1,"}},
    {"--model fm --optimizer adamw", {"\"table-optimizer\":\"adagrad\"", "\"lr\":0.1,"}},
    {"--model dlrm --bottom 8 --top 8 --optimizer ftrl", {"\"table-optimizer\":\"sgd\"",
                                                          "\"lr\":0.1,"}},
    {"--model dlrm --bottom 8 --top 8", {"\"optimizer\":\"sgd\"", "\"table-optimizer\":\"sgd\"",
                                         "\"lr\":0.1,", "\"batch\":128,", "\"shadow-easgd\""}},
    {SMALL " --tables shard", {"\"shadow-bmuf,scale=root\""}},
    {SMALL " --tables shard --optimizer adagrad", {"\"shadow-bmuf,scale=root\""}},
    {SMALL " --tables shard --sync shadow-easgd", {"\"shadow-easgd\""}},
    {SMALL " --tables auto --rows grow --table-memory 64M",
     {"\"shadow-bmuf,scale=root\""}},
    {SMALL " --tables auto --optimizer adagrad", {"\"shadow-easgd\""}},
};
enum { N_SUITED = sizeof suited / sizeof *suited };

START_TEST(defaults_go_with_the_model)
{
    char line[4096];
    ck_assert_int_eq(program("train --data %s --examples 300 %s --quiet --log %s %s", clicks,
                             strstr(suited[_i].options, "grow") ? "" : "--rows 100", log_file,
                             suited[_i].options), CLI_DONE);
    FILE *in = fopen(log_file, "re");
    ck_assert_ptr_nonnull(fgets(line, sizeof line, in));
    fclose(in);
    for (int k = 0; k < 5 && suited[_i].says[k]; k++)
        ck_assert_msg(strstr(line, suited[_i].says[k]) != NULL, "no %s in %s", suited[_i].says[k],
                      line);
}
END_TEST

/* 2,000 rows of 12 features in units from thousandths to thousands, and a click of five. */
static void write_units(const char *name)
{
    static char text[2000 * 12 * 24];
    size_t n = 0;
    struct rng rng;
    rng_init(&rng, 5);
    for (int row = 0; row < 2000; row++) {
        double x[12], score = -2;
        for (int k = 0; k < 12; k++)
            score += (x[k] = rng_normal(&rng)) * (k % 3 - 1);
        n += (size_t)sprintf(text + n, "%d", rng_uniform(&rng) < 1 / (1 + exp(-score)));
        for (int k = 0; k < 12; k++)
            n += (size_t)sprintf(text + n, " %d:%.5g", k + 1, x[k] * pow(10, k / 2 - 3));
        text[n++] = '\n';
    }
    put(name, text, n);
}

/* The defaults of a model, on those rows, which are the held-out set, too. */
static struct train_options untouched(int model)
{
    const bool given[MOST_SETTINGS] = {false};
    struct train_options o = train_options_default();
    write_units("units");
    o.model = model;
    train_know_plan(&o);
    config_suit(&o, given);
    o.data = o.eval = path;
    o.format = DATA_LIBSVM;
    o.quiet = true;
    return o;
}

/* One pass, whatever the units: better than a constant guess by far. */
START_TEST(defaults_need_no_care)
{
    struct train_options o = untouched(_i ? MODEL_FM : MODEL_LINEAR);
    struct train_result r;
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    ck_assert_msg(r.held_out.entropy < 0.75, "%s", said);
}
END_TEST

/* Rows of ftrl share their rate whatever the dense part has. */
START_TEST(rows_of_ftrl_share_their_rate)
{
    struct train_options o = untouched(MODEL_LINEAR);
    struct train_result alone, mixed;
    o.data = clicks;
    o.eval = NULL;
    o.format = DATA_CRITEO;
    ck_assert_msg(train(&o, &alone) == 0, "%s", said);
    o.optimizer.kind = _i ? OPTIMIZER_ADAM : OPTIMIZER_SGD;
    o.lr = 0.02;
    o.table_lr = 0.7;
    ck_assert_msg(train(&o, &mixed) == 0, "%s", said);
    ck_assert_double_lt(metrics_entropy(&mixed.seen), metrics_entropy(&alone.seen) + 0.1);
}
END_TEST

/* At rate 0 nothing is learnt, and what the intercept began with is as good as a constant can be. */
START_TEST(the_intercept_is_what_was_seen)
{
    struct train_options o = untouched(MODEL_LINEAR);
    struct train_result r;
    o.lr = 0;
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    ck_assert_double_eq_tol(r.held_out.entropy, 1, 0.01);
}
END_TEST

/* A rate that breaks the model without a NaN is said, too. */
START_TEST(a_rate_too_high_is_said)
{
    struct train_options o = untouched(MODEL_FM);
    struct train_result r;
    o.lr = 3000;
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    says("a constant guess is better than this model; if training has diverged, lower --lr (it is "
                "3000)");
}
END_TEST

/* Output that does not come where it should. */
START_TEST(a_full_disk_takes_no_summary)
{
    struct train_options o = small();
    FILE *full = fopen("/dev/full", "we"), *err = tmpfile();
    o.examples = 3200;
    o.trainers = _i + 1;
    ck_assert_int_eq(train_run(&o, full, err, NULL), 1);
    rewind(err);
    said[fread(said, 1, sizeof said - 1, err)] = 0;
    says("the summary could not be written: No space left");
    fclose(err);
    fclose(full);
}
END_TEST

int main(void)
{
    TCase *all = new_case("words", 60);
    tcase_add_checked_fixture(all, set_up_training, remove_folder);
    tcase_add_test(all, help_is_in_parts);
    tcase_add_test(all, what_a_guess_would_lose_is_said);
    tcase_add_test(all, other_packings_are_refused);
    tcase_add_loop_test(all, a_launcher_is_not_passed_over, 0, 2);
    tcase_add_test(all, the_plan_may_be_a_variable);
    tcase_add_test(all, data_is_read_as_it_was_found);
    tcase_add_loop_test(all, no_examples_are_no_result, 0, 2);
    tcase_add_loop_test(all, the_log_is_of_one_clock, 0, 2);
    tcase_add_loop_test(all, the_progress_fits_into_a_terminal, 0, 3);
    tcase_add_test(all, a_death_is_said_on_a_line_of_its_own);
    tcase_add_test(all, a_point_of_the_curve_is_one_line);
    tcase_add_loop_test(all, a_stopped_run_says_what_is_kept, 0, 2);
    tcase_add_loop_test(all, a_failure_is_said_once, 0, 3);
    tcase_add_loop_test(all, a_model_that_does_not_fit, 0, 2);
    tcase_add_test(all, no_memory_is_no_fault_of_the_model);
    tcase_add_loop_test(all, tables_that_do_not_fit_are_said_in_numbers, 0, 2);
    tcase_add_loop_test(all, a_wrong_config_is_told_by_its_line, 0, N_CONFIGS);
    tcase_add_loop_test(all, what_means_nothing_is_refused, 0, N_MEANINGS);
    tcase_add_loop_test(all, defaults_go_with_the_model, 0, N_SUITED);
    tcase_add_loop_test(all, defaults_need_no_care, 0, 2);
    tcase_add_loop_test(all, rows_of_ftrl_share_their_rate, 0, 2);
    tcase_add_test(all, the_intercept_is_what_was_seen);
    tcase_add_test(all, a_rate_too_high_is_said);
    tcase_add_loop_test(all, a_full_disk_takes_no_summary, 0, 2);
    make_clicks();
    return run_cases(all, NULL);
}
