/* SPDX-License-Identifier: MIT */
/* The files that commands are told to write: none that another option names, none that another
 * run has, none that cannot be one; and what is said of a model that is there already. */
#include "harness/training.h"

#include "run/lock.h"

static char text_file[96];

static void setup_files(void)
{
    set_up_training();
    snprintf(text_file, sizeof text_file, "%s/text", folder);
}

static void put(const char *path, const char *text)
{
    FILE *out = fopen(path, "we");
    ck_assert(out && fputs(text, out) >= 0 && fclose(out) == 0);
}

static void assert_has(const char *path, const char *text)
{
    char some[64] = "";
    FILE *in = fopen(path, "re");
    ck_assert_msg(in != NULL, "%s has gone", path);
    ck_assert(fgets(some, sizeof some, in) != NULL);
    fclose(in);
    ck_assert_str_eq(some, text);
}

/* %1$s: the folder, in which are text (a text), link (to it), second (a second link). */
static const struct {
    const char *line, *says;
} clashes[] = {
    {"merge %1$s/text %1$s/text", "descant merge: %1$s/text would be written over\n"},
    {"merge %1$s/text %1$s/no/folder", "descant merge: %1$s/no/folder: cannot be written: "},
    {"train --data %1$s/text --log %1$s/text", "--data %1$s/text would be written over by --log"},
    {"train --data %1$s/clicks.tsv,%1$s/text --log %1$s/link", "would be written over by --log"},
    {"train --data %1$s/text --checkpoint %1$s/second", "would be written over by --checkpoint"},
    {"train --data %1$s/clicks.tsv --eval %1$s/text --log %1$s/../%2$s/text",
     "--eval %1$s/text would be written over by --log"},
    {"train --data %1$s/clicks.tsv --checkpoint %1$s/x --log %1$s/x",
     "--log %1$s/x would be written over by --checkpoint\n"},
    {"train --data %1$s/clicks.tsv --checkpoint %1$s/x --log %1$s/x.tmp",
     "--log %1$s/x.tmp would be written over by --checkpoint, which also writes x.tmp"},
    {"train --data %1$s/clicks.tsv --checkpoint %1$s/x --log %1$s/x.best.tmp",
     "--log %1$s/x.best.tmp would be written over by --checkpoint, which also writes x.best.tmp"},
    {"train --data %1$s/clicks.tsv --checkpoint %1$s/x --log %1$s/x.old",
     "--log %1$s/x.old would be written over by --checkpoint, which also writes x.old"},
    {"train --data %1$s/clicks.tsv --checkpoint %1$s/x.old --log %1$s/x",
     "--checkpoint %1$s/x.old would be written over by --log, which also writes x.old"},
    {"train --data %1$s/clicks.tsv --log %1$s/text", "--log %1$s/text: it is a text file, and is left"},
    {"train --data %1$s/clicks.tsv --log %1$s/held.tsv", "it is data to train on, and is left"},
    {"bsp run --params 5 --log %1$s/text -- true", "--log %1$s/text: it is a text file, and is left"},
    {"train --data %1$s/clicks.tsv --eval %1$s/y.previous --checkpoint %1$s/y",
     "--eval %1$s/y.previous would be written over by --checkpoint, which also writes y.previous"},
    {"train --data %1$s/clicks.tsv --config %1$s/config --log %1$s/config",
     "--config %1$s/config would be written over by --log"},
    {"predict --checkpoint %1$s/clicks.tsv --data %1$s/text --out %1$s/text",
     "--data %1$s/text would be written over by --out"},
    {"predict --checkpoint %1$s/text --data %1$s/clicks.tsv --out %1$s/second",
     "--checkpoint %1$s/text would be written over by --out"},
    {"predict --checkpoint %1$s/y --data %1$s/clicks.tsv --out %1$s/y.previous",
     "--checkpoint %1$s/y.previous would be written over by --out"},
};
enum { N_CLASHES = sizeof clashes / sizeof *clashes };

#pragma GCC diagnostic ignored "-Wformat-nonliteral"
START_TEST(what_is_written_is_nothing_else)
{
    char command[1024], says[512], path[128];
    const char *name = strrchr(folder, '/') + 1;
    static const char *const texts[] = {"text", "config", "y.previous"};
    for (int k = 0; k < 3; k++) {
        snprintf(path, sizeof path, "%s/%s", folder, texts[k]);
        put(path, "# of its owner");
    }
    snprintf(path, sizeof path, "%s/link", folder);
    ck_assert_int_eq(symlink("text", path), 0);
    snprintf(path, sizeof path, "%s/second", folder);
    ck_assert_int_eq(link(text_file, path), 0);
    snprintf(command, sizeof command, clashes[_i].line, folder, name);
    snprintf(says, sizeof says, clashes[_i].says, folder);
    ck_assert_int_eq(program("%s", command), CLI_BAD_USE);
    ck_assert_msg(strstr(err_text, says) != NULL, "%s", err_text);
    for (int k = 0; k < 3; k++) {
        snprintf(path, sizeof path, "%s/%s", folder, texts[k]);
        assert_has(path, "# of its owner");
    }
}
END_TEST

/* The log of a run that is not gone on from is kept, beside what a link names. */
START_TEST(an_earlier_log_is_kept)
{
    char old[128], link[128];
    snprintf(old, sizeof old, "%s.old", log_file);
    snprintf(link, sizeof link, "%s/link", folder);
    ck_assert_int_eq(symlink("run.jsonl", link), 0);
    const char *run = "train --data %s --model linear --rows 100 --quiet --log %s --examples %d "
                      "--checkpoint %s %s";
    ck_assert_msg(program(run, clicks, link, 320, model_file, "") == 0, "%s", err_text);
    ck_assert_msg(program(run, clicks, link, 640, model_file, "--resume") == 0, "%s", err_text);
    ck_assert_int_ne(access(old, F_OK), 0);
    ck_assert_int_eq(lines_with(log_file, "\"header\""), 2);
    ck_assert_msg(program(run, clicks, link, 320, model_file, "") == 0, "%s", err_text);
    ck_assert_int_eq(lines_with(old, "\"header\""), 2);
    ck_assert_int_eq(lines_with(log_file, "\"header\""), 1);
}
END_TEST

/* A device may be named twice, and files of one name in two folders are two. */
START_TEST(what_is_apart_is_allowed)
{
    char path[128];
    snprintf(path, sizeof path, "%s/other", folder);
    ck_assert_int_eq(mkdir(path, 0700), 0);
    ck_assert_msg(program("train --data %s --model linear --rows 100 --examples 3200 --quiet "
                          "--checkpoint %s/model --log %s/other/model", clicks, folder, folder) ==
                      CLI_DONE, "%s", err_text);
    ck_assert_int_eq(program("train --data %s --model linear --rows 100 --examples 3200 --quiet "
                             "--log /dev/null --eval /dev/null", clicks), CLI_FAILED);
    ck_assert_msg(!strstr(err_text, "written over"), "%s", err_text);
    snprintf(path, sizeof path, "%s/model.lock", folder);
    ck_assert_int_ne(access(path, F_OK), 0);
}
END_TEST

/* The model is no checkpoint: the scores of before stay. */
START_TEST(scores_are_not_lost_to_a_failure)
{
    put(text_file, "scores");
    ck_assert_int_eq(program("predict --checkpoint %s --data %s --out %s", clicks, clicks,
                             text_file), CLI_FAILED);
    assert_has(text_file, "scores");
    struct train_options o = small();
    struct train_result r;
    o.examples = 3200;
    o.checkpoint = model_file;
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    ck_assert_int_eq(program("predict --checkpoint %s --data %s/nowhere --out %s", model_file,
                             folder, text_file), CLI_FAILED);
    assert_has(text_file, "scores");
}
END_TEST

static const char *const no_models[] = {".", "..", "%s", "%s/", "%s/new/", "/proc/m", "/dev/null",
                                        "%s/no/m"};
enum { N_NO_MODELS = sizeof no_models / sizeof *no_models };

/* As a folder that is not there: status 2. */
START_TEST(a_folder_must_be_open)
{
    int status;
    if (geteuid() != 0)
        return;
    ck_assert(chmod(folder, 0555) == 0 && chmod(clicks, 0444) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        if (setgid(65534) != 0 || setuid(65534) != 0)
            _exit(99);
        status = program("train --data %s --checkpoint %s/m", clicks, folder);
        _exit(strstr(err_text, "/m: cannot be written: Permission denied") ? status : 98);
    }
    ck_assert(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
    ck_assert_int_eq(WEXITSTATUS(status), CLI_BAD_USE);
    ck_assert_int_eq(chmod(folder, 0700), 0);
}
END_TEST

START_TEST(a_checkpoint_is_a_file)
{
    char path[128];
    snprintf(path, sizeof path, no_models[_i], folder);
    ck_assert_int_ne(program("train --data %s --checkpoint %s", clicks, path), CLI_DONE);
    ck_assert_msg(strstr(err_text, path) != NULL, "%s", err_text);
    ck_assert_str_eq(out_text, "");         /* nothing was trained */
}
END_TEST
#pragma GCC diagnostic warning "-Wformat-nonliteral"

START_TEST(a_final_version_must_be_kept)
{
    static const char *const plans[] = {"none", "ma", "dasgd", "allreduce"};
    for (int k = 0; k < 4; k++) {
        ck_assert_int_eq(program("train --data %s --sync %s --final central", clicks, plans[k]),
                         CLI_BAD_USE);
        ck_assert_msg(strstr(err_text, "--final central: the plan"), "%s", err_text);
    }
    ck_assert_msg(program("train --data %s --model linear --rows 100 --examples 3200 --quiet "
                          "--sync bmuf --final central", clicks) == CLI_DONE, "%s", err_text);
}
END_TEST

/* --- two runs --- */

static bool locked(const char *path)
{
    char lock[160];
    snprintf(lock, sizeof lock, "%.150s.lock", path);
    return access(lock, F_OK) == 0;
}

/* Of a run under a launcher, and of one that forks its trainers: what it writes is its own. */
START_TEST(a_file_is_of_one_run)
{
    struct train_options o = endless(), other = small();
    struct train_result r;
    o.trainers = _i == 1 ? 0 : 2;
    pid_t pid = begin(&o);
    wait_examples(ROWS / 4);
    ck_assert(locked(model_file) && locked(log_file));
    for (int k = 0; k < 4; k++) {
        other.trainers = k < 2;
        other.checkpoint = k % 2 ? model_file : NULL;
        other.log = k % 2 ? NULL : log_file;
        ck_assert_int_eq(train(&other, &r), 1);
        says("is in use by another run");
        says(k % 2 ? model_file : log_file);
    }
    kill(pid, SIGTERM);
    ck_assert_int_eq(end_within(pid, 30), 128 + SIGTERM);
    ck_assert(!locked(model_file) && !locked(log_file));
    ck_assert_msg(train(&other, &r) == 0, "%s", said);
}
END_TEST

static int torn_bytes(void)
{
    int n = 0;
    FILE *in = fopen(log_file, "re");
    for (int c; in && (c = fgetc(in)) != EOF;)
        n = c == '\n' ? 0 : n + 1;
    if (in)
        fclose(in);
    return n;
}

/* A log whose last line was torn goes on at that line's place, and can be read. */
START_TEST(a_torn_log_goes_on)
{
    struct train_options o = small();
    struct train_result r;
    o.checkpoint = model_file;
    o.log = log_file;
    o.examples = 3200;
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    FILE *out = fopen(log_file, "ae");
    for (int k = 0; k < (_i ? 1000 : 1); k++)
        fputs("{\"kind\":\"interval\",\"exam", out);
    ck_assert_int_eq(fclose(out), 0);
    o.examples = 6400;
    o.resume = true;
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    ck_assert_int_eq(torn_bytes(), 0);
    ck_assert_msg(program("report %s -o %s/page.html", log_file, folder) == CLI_DONE, "%s", err_text);
    ck_assert_str_eq(err_text, "");
    ck_assert_msg(program("info %s", log_file) == CLI_DONE, "%s", err_text);
}
END_TEST

/* Lines behind what is compressed would be lost. */
START_TEST(a_compressed_log_is_left)
{
    char command[512];
    static const char run[] = "train --data %s --model linear --rows 100 --quiet --log %s --examples 320 "
                      "--checkpoint %s --resume";
    struct stat of, is;
    ck_assert_msg(program(run, clicks, log_file, model_file) == 0, "%s", err_text);
    snprintf(command, sizeof command, "gzip '%s' && mv '%s.gz' '%s'", log_file, log_file, log_file);
    ck_assert_int_eq(system(command), 0);
    ck_assert_int_eq(stat(log_file, &of), 0);
    ck_assert_int_eq(program(run, clicks, log_file, model_file), CLI_BAD_USE);
    ck_assert_ptr_nonnull(strstr(err_text, "it is a compressed log, to which no line can be added"));
    ck_assert(stat(log_file, &is) == 0 && is.st_size == of.st_size);
}
END_TEST

/* Two that make one file: the second is refused, and the first is whole. */
START_TEST(a_cache_is_made_by_one)
{
    char cache[128];
    struct lock lock;
    snprintf(cache, sizeof cache, "%s/c.cache", folder);
    ck_assert_int_eq(lock_take(&lock, cache, NULL, true, NULL), DESCANT_OK);
    ck_assert_int_eq(program("gen cache --data %s --format criteo --out %s", clicks, cache),
                     CLI_FAILED);
    ck_assert_msg(strstr(err_text, "c.cache is in use by another run") != NULL, "%s", err_text);
    lock_give(&lock);
    ck_assert_msg(program("gen cache --data %s --format criteo --out %s", clicks, cache) ==
                      CLI_DONE, "%s", err_text);
    ck_assert(!locked(cache));
}
END_TEST

/* What is left of a run that was killed stops nobody; its trainers, while they live, do. */
START_TEST(a_dead_run_has_no_files)
{
    struct train_options o = endless();
    struct train_result r;
    pid_t pids[8];
    o.trainers = 2;
    o.checkpoint_every = 1000;
    pid_t pid = begin(&o);
    wait_examples(ROWS / 4);
    ck_assert_int_eq(children_of(pid, pids, 8), 2);
    wait_heeding(pids, 2);
    for (int k = 0; k < 2; k++)
        kill(pids[k], SIGKILL);
    ck_assert_int_eq(end_within(pid, 10), 1);
    says("no trainer is left, and no checkpoint to go on from");
    pid = begin(&o);
    WAIT_UNTIL(children_of(pid, pids, 8) == 2, "%s", (read_said(), said));
    kill(pid, SIGKILL);         /* its trainers stop in good order, and let go then */
    waitpid(pid, NULL, 0);
    o = small();
    o.checkpoint = model_file;
    o.log = log_file;
    WAIT_UNTIL(train(&o, &r) == 0, "%s", said);
}
END_TEST

/* Also if the next run, which removes it, writes none. */
START_TEST(what_was_half_written_goes)
{
    struct train_options o = small();
    struct train_result r;
    char half[128];
    snprintf(half, sizeof half, _i ? "%s.best.tmp" : "%s.tmp", model_file);
    fclose(fopen(half, "we"));
    o.checkpoint = model_file;
    o.optimizer.kind = OPTIMIZER_SGD;
    o.lr = 1e30;
    ck_assert_int_eq(train(&o, &r), 1);
    ck_assert(access(model_file, F_OK) != 0 && access(half, F_OK) != 0);
}
END_TEST

START_TEST(it_is_said_from_what_a_killed_run_goes_on)
{
    struct train_options o = endless();
    pid_t pids[8];
    pid_t pid = begin(&o);
    wait_file(model_file);
    ck_assert_int_eq(children_of(pid, pids, 8), 1);
    kill(pids[0], SIGKILL);
    ck_assert_int_eq(end_within(pid, 10), 1);
    says("no trainer is left; --resume goes on from ");
    says(model_file);
}
END_TEST

/* --- again --- */

START_TEST(what_is_replaced_is_said)
{
    struct train_options o = small();
    struct train_result r;
    o.checkpoint = model_file;
    o.examples = 3200;
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    ck_assert_msg(!strstr(said, "replaced"), "%s", said);
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    says("exists and will be replaced");
    says("--resume would go on from it");
}
END_TEST

static ino_t number_of(const char *path)
{
    struct stat of;
    return stat(path, &of) == 0 ? of.st_ino : 0;
}

/* However many checkpoints a run writes: the model that it does not go on from is there. */
START_TEST(an_earlier_model_stays)
{
    struct train_options o = endless();
    struct train_result r;
    char previous[128], old[128];
    snprintf(previous, sizeof previous, "%s.previous", model_file);
    snprintf(old, sizeof old, "%s.old", model_file);
    o.epochs = 1;
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    ino_t first = number_of(model_file);
    ck_assert_uint_eq(number_of(old), 0);
    unlink(previous);
    if (_i)                 /* only the previous one is left */
        ck_assert_int_eq(rename(model_file, previous), 0);
    o.epochs = 1000000;
    pid_t pid = begin(&o);
    WAIT_UNTIL(number_of(previous) && number_of(previous) != first, "%s", previous);
    kill(pid, SIGTERM);
    ck_assert_int_eq(end_within(pid, 30), 128 + SIGTERM);
    ck_assert_uint_eq(number_of(old), first);
    ck_assert_uint_ne(number_of(previous), 0);
    o.resume = true;
    o.examples = 1;
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    ck_assert_uint_eq(number_of(old), first);
}
END_TEST

/* No checkpoint can be written: what there is keeps its name. */
START_TEST(what_is_not_replaced_stays)
{
    struct train_options o = small();
    struct train_result r;
    char previous[128], temporary[128];
    snprintf(previous, sizeof previous, "%s.previous", model_file);
    snprintf(temporary, sizeof temporary, "%s.tmp", model_file);
    o.checkpoint = model_file;
    o.examples = 3200;
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    ck_assert_int_eq(rename(model_file, previous), 0);
    ck_assert_int_eq(mkdir(temporary, 0700), 0);
    ck_assert_int_eq(train(&o, &r), 1);
    says("the last checkpoint failed");
    ck_assert_int_eq(access(previous, F_OK), 0);
}
END_TEST

/* A checkpoint was written, then none could be: the last one did not come to the signal. */
START_TEST(a_last_checkpoint_that_failed_has_not_the_model_so_far)
{
    struct train_options o = endless();
    char temporary[128];
    snprintf(temporary, sizeof temporary, "%s.tmp", model_file);
    pid_t pid = begin(&o);
    wait_examples(3200);
    wait_file(model_file);
    WAIT_UNTIL(mkdir(temporary, 0700) == 0, "%s", temporary);
    WAIT_UNTIL(lines_with(log_file, "\"kind\":\"checkpoint\""), "%s", temporary);
    kill(pid, SIGTERM);
    ck_assert_int_eq(end_within(pid, 30), 128 + SIGTERM);
    says("the last checkpoint failed");
    ck_assert_msg(!strstr(said, "has the model so far"), "%s", said);
    ck_assert_int_eq(program("info %s", log_file), CLI_DONE);
    ck_assert_msg(strstr(out_text, "checkpoint") && strstr(out_text, ".tmp: cannot write: "), "%s",
                  out_text);
    ck_assert_int_eq(program("report %s -o %s/page.html", log_file, folder), CLI_DONE);
    ck_assert_int_eq(program("info %s", model_file), CLI_DONE);
    ck_assert_msg(strstr(out_text, "1 trainer x 1 worker on 1 host"), "%s", out_text);
}
END_TEST

START_TEST(a_resumed_run_tells_of_this_start)
{
    struct train_options o = small();
    struct train_result r;
    o.checkpoint = model_file;
    o.examples = 3200;
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    ck_assert_msg(!strstr(said, "of this start"), "%s", said);
    o.resume = true;
    o.examples = 6400;
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    ck_assert_msg(!strstr(said, "replaced") && !strstr(said, "nothing is left"), "%s", said);
    ck_assert_double_eq(examples_said(), 6400);
    says("examples of this start     3200\n");
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    says("nothing is left to train: raise --epochs or --examples for more");
}
END_TEST

int main(void)
{
    TCase *all = new_case("files", 120);
    tcase_add_checked_fixture(all, setup_files, remove_folder);
    tcase_add_loop_test(all, what_is_written_is_nothing_else, 0, N_CLASHES);
    tcase_add_test(all, what_is_apart_is_allowed);
    tcase_add_test(all, an_earlier_log_is_kept);
    tcase_add_test(all, scores_are_not_lost_to_a_failure);
    tcase_add_loop_test(all, a_checkpoint_is_a_file, 0, N_NO_MODELS);
    tcase_add_test(all, a_final_version_must_be_kept);
    tcase_add_loop_test(all, a_file_is_of_one_run, 0, 2);
    tcase_add_test(all, a_dead_run_has_no_files);
    tcase_add_loop_test(all, what_was_half_written_goes, 0, 2);
    tcase_add_loop_test(all, a_torn_log_goes_on, 0, 2);
    tcase_add_test(all, a_compressed_log_is_left);
    tcase_add_test(all, a_cache_is_made_by_one);
    tcase_add_test(all, a_folder_must_be_open);
    tcase_add_test(all, it_is_said_from_what_a_killed_run_goes_on);
    tcase_add_test(all, what_is_replaced_is_said);
    tcase_add_loop_test(all, an_earlier_model_stays, 0, 2);
    tcase_add_test(all, what_is_not_replaced_stays);
    tcase_add_test(all, a_last_checkpoint_that_failed_has_not_the_model_so_far);
    tcase_add_test(all, a_resumed_run_tells_of_this_start);
    make_clicks();
    return run_cases(all, NULL);
}
