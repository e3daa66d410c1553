/* SPDX-License-Identifier: MIT */
/* What a resumed run goes on with: which data is the same, which is more of the same, which is
 * other data, and what is refused. */
#include "harness/training.h"
#include "train/place.h"

static char other_name[96];

static void setup_data(void)
{
    set_up_training();
    snprintf(other_name, sizeof other_name, "%s/./clicks.tsv", folder);
}

static struct train_options short_run(void)
{
    struct train_options o = small();
    o.model = MODEL_LINEAR;
    o.checkpoint = model_file;
    return o;
}

static void train_well(const struct train_options *o, struct train_result *r, uint64_t trained)
{
    ck_assert_msg(train(o, r) == 0, "%s", said);
    ck_assert_msg(r->own.n == trained, "%llu examples, not %llu: %s",
                  (unsigned long long)r->own.n, (unsigned long long)trained, said);
}

/* Lines from..to of `from` are added to a file; bytes of the last one are left out. */
static void append(const char *path, const char *from, int first, int end, size_t less)
{
    char *line = NULL;
    size_t room = 0;
    FILE *in = fopen(from, "re"), *out = fopen(path, "ae");
    ck_assert(in && out);
    for (int k = 0; k < end; k++) {
        ssize_t n = getline(&line, &room, in);
        ck_assert_int_gt(n, 0);
        size_t bytes = (size_t)n - (k == end - 1 ? less : 0);
        if (k >= first)
            ck_assert_uint_eq(fwrite(line, 1, bytes, out), bytes);
    }
    free(line);
    fclose(in);
    ck_assert_int_eq(fclose(out), 0);
}

/* --- the files --- */

START_TEST(a_replaced_file_begins_anew)
{
    struct train_options o = short_run();
    struct train_result r;
    train_well(&o, &r, ROWS);
    o.resume = true;
    ck_assert_int_eq(unlink(clicks), 0);
    put_held_out(clicks);
    train_well(&o, &r, EVAL_ROWS);
    says("clicks.tsv is not the file that was read; the model goes on, the data begins anew");
    ck_assert_msg(!strstr(said, "only a part"), "%s", said);
}
END_TEST

START_TEST(another_name_is_the_same_data)
{
    struct train_options o = short_run();
    struct train_result r;
    o.examples = 6400;
    train_well(&o, &r, 6400);
    o.resume = true;
    o.examples = 0;
    o.data = other_name;
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    ck_assert_msg(r.seen.n >= ROWS && r.seen.n < ROWS + 1600, "%llu", (unsigned long long)r.seen.n);
    ck_assert_msg(!strstr(said, "anew"), "%s", said);
}
END_TEST

START_TEST(data_that_was_left_is_said)
{
    struct train_options o = endless();
    struct train_result r;
    pid_t pid = begin(&o);
    wait_examples(ROWS);
    wait_file(model_file);
    kill_all(pid);
    o.epochs = 1;
    o.resume = true;
    o.data = held_out;
    train_well(&o, &r, EVAL_ROWS);
    says("clicks.tsv only a part was trained");
}
END_TEST

/* Each hour some lines more, of which the last may not be whole yet. */
START_TEST(a_growing_file_is_trained_once)
{
    struct train_options o = short_run();
    struct train_result r;
    char path[96];
    int at = 0, next;
    snprintf(path, sizeof path, "%s/day.tsv", folder);
    o.data = path;
    o.chunk = _i < 2 ? 4096 : 256 << 10;
    o.trainers = _i == 1 ? 2 : 1;
    o.max_bad = 0.5;
    o.resume = true;
    for (int hour = 0; hour < 5; hour++, at = next) {
        next = at + 301 + 17 * hour;
        append(path, clicks, at, next, 0);
        train_well(&o, &r, (uint64_t)(next - at));
        ck_assert_uint_eq(r.seen.n, (uint64_t)next);
    }
    append(path, clicks, at, at + 101, 60);     /* 100 lines and a torn one, which is bad */
    train_well(&o, &r, 100);
    FILE *in = fopen(clicks, "re"), *out = fopen(path, "re+");
    fseek(out, 0, SEEK_END);
    fseek(in, ftell(out), SEEK_SET);
    for (int c, n = 0; n < 11 && (c = getc(in)) != EOF; n += c == '\n')
        putc(c, out);
    fclose(in);
    fclose(out);
    train_well(&o, &r, 11);
    train_well(&o, &r, 0);
    ck_assert_msg(!strstr(said, "anew"), "%s", said);
}
END_TEST

/* The last line has no end, and is whole. */
START_TEST(a_line_without_an_end_is_trained_once)
{
    struct train_options o = short_run();
    struct train_result r;
    char path[96];
    snprintf(path, sizeof path, "%s/day.tsv", folder);
    o.data = path;
    o.resume = true;
    append(path, clicks, 0, 50, 1);
    train_well(&o, &r, 50);
    FILE *out = fopen(path, "ae");
    fputc('\n', out);
    fclose(out);
    append(path, clicks, 50, 60, 0);
    train_well(&o, &r, 10);
}
END_TEST

/* Of a compressed file the last chunk is trained again, for where it ended is not known. */
START_TEST(a_growing_compressed_file_loses_nothing)
{
    struct train_options o = short_run();
    struct train_result r;
    char path[96], command[512];
    snprintf(path, sizeof path, "%s/day.tsv.gz", folder);
    snprintf(command, sizeof command, "head -n 2000 '%s' | gzip -c > '%s'", clicks, path);
    ck_assert_int_eq(system(command), 0);
    o.data = path;
    o.resume = true;
    train_well(&o, &r, 2000);
    snprintf(command, sizeof command, "tail -n +2001 '%s' | gzip -c >> '%s'", clicks, path);
    ck_assert_int_eq(system(command), 0);
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    ck_assert_msg(r.seen.n >= ROWS && r.seen.n < ROWS + 400, "%llu", (unsigned long long)r.seen.n);
}
END_TEST

/* --- the place, of two files, chunks of 2 bytes, lines of one --- */

enum { MOST = 5, PASSES_HELD = 3 };

static bool done_before(const struct rest *rest, uint64_t chunk)
{
    bool todo = false;
    for (size_t k = 0; k < rest->n_todo; k++)
        todo |= rest->todo[k] == chunk;
    return chunk < rest->next && !todo;
}

/* How often the line is still to do: by what is claimed first, and by what follows. */
static int to_do(const struct rest *rest, uint64_t chunk, bool known)
{
    int n = chunk >= rest->next;
    for (size_t k = 0; k < rest->n_todo; k++)
        n += rest->todo[k] == chunk || (rest->todo[k] == (chunk | DATA_REST) && !known);
    return n;
}

static uint64_t pieces(uint64_t bytes)
{
    return (bytes + 1) / 2;
}

static void check_growth(const struct growth *files, uint64_t next, uint64_t held)
{
    static uint64_t before[BOARD_TODO], after[BOARD_TODO];
    uint64_t was = pieces(files[0].was) + pieces(files[1].was);
    uint64_t is = pieces(files[0].is) + pieces(files[1].is);
    struct rest old = {.next = next, .todo = before}, now = {.next = next, .todo = after};
    if (held < next) {
        old.todo[old.n_todo++] = held;
        now.todo[now.n_todo++] = held;
    }
    ck_assert(rest_grow(&now, files, 2, 2));
    for (uint64_t pass = 0; pass < PASSES_HELD; pass++)
        for (int f = 0; f < 2; f++)
            for (uint64_t line = 0; line < files[f].is; line++) {
                bool known = line < files[f].was;
                bool done = known && done_before(&old, pass * was + line / 2 +
                                                           (f ? pieces(files[0].was) : 0));
                int n = to_do(&now, pass * is + line / 2 + (f ? pieces(files[0].is) : 0), known);
                ck_assert_msg(n == !done, "line %d of file %d, pass %d: %d times; %d to %d and %d "
                              "to %d bytes, %d chunks, but %d", (int)line, f, (int)pass, n,
                              (int)files[0].was, (int)files[0].is, (int)files[1].was,
                              (int)files[1].is, (int)next, (int)held);
            }
}

START_TEST(what_has_grown_is_done_once)
{
    struct growth g[2];
    for (g[0].was = 0; g[0].was <= MOST; g[0].was++)
        for (g[0].is = g[0].was; g[0].is <= MOST; g[0].is++)
            for (g[1].was = 0; g[1].was <= MOST; g[1].was++)
                for (g[1].is = g[1].was; g[1].is <= MOST; g[1].is++) {
                    uint64_t pass = pieces(g[0].was) + pieces(g[1].was);
                    g[0].whole = g[0].was;
                    g[1].whole = g[1].was;
                    for (uint64_t at = 0; at <= pass * PASSES_HELD; at++)
                        for (uint64_t held = 0; held <= at; held++)
                            check_growth(g, at, held);
                }
}
END_TEST

/* --- the place of a job that deals chunks --- */

static bool is_done(const struct descant_items *runs, size_t n, uint64_t chunk)
{
    for (size_t k = 0; k < n; k++)
        if (chunk >= runs[k].from && chunk < runs[k].to)
            return true;
    return false;
}

enum { SOME = 10 };

/* Every set of ten chunks. A chunk of which only the new lines are left is not done. */
START_TEST(a_place_is_what_is_done)
{
    static struct place place;
    for (unsigned set = 0; set < 1 << SOME; set++) {
        struct descant_items runs[SOME], again[SOME + 1];
        size_t n = 0;
        for (uint64_t k = 0; k < SOME; k++)
            if (!(set >> k & 1))
                continue;
            else if (n && runs[n - 1].to == k)
                runs[n - 1].to++;
            else
                runs[n++] = (struct descant_items){k, k + 1};
        place_of_runs(&place, runs, n);
        ck_assert_uint_eq(place.at[0], n ? runs[n - 1].to : 0);
        for (size_t k = PLACE_HEAD; k < place.n; k++)
            ck_assert(!is_done(runs, n, place.at[k]) && place.at[k] < place.at[0]);
        if (place.n > PLACE_HEAD)
            place.at[PLACE_HEAD] |= DATA_REST;
        size_t left = place.n - PLACE_HEAD;
        size_t n_again = place_runs(place.at[0], place.at + PLACE_HEAD, left, again);
        ck_assert_uint_eq(n_again, n);
        for (size_t k = 0; k < n; k++)
            ck_assert(again[k].from == runs[k].from && again[k].to == runs[k].to);
    }
}
END_TEST

/* As the board has held them: in no order, and twice, and one behind the cursor. */
START_TEST(chunks_that_are_left_may_be_in_any_order)
{
    uint64_t todo[] = {7, 2, 9, 2, 0, 3};
    struct descant_items runs[N(todo) + 1];
    ck_assert_uint_eq(place_runs(8, todo, N(todo), runs), 2);
    ck_assert(runs[0].from == 1 && runs[0].to == 2 && runs[1].from == 4 && runs[1].to == 7);
    ck_assert_uint_eq(place_runs(0, todo, 0, runs), 0);
    ck_assert_uint_eq(place_runs(8, todo, 0, runs), 1);
    ck_assert(runs[0].from == 0 && runs[0].to == 8);
}
END_TEST

/* Of each second chunk that is not done there is room for so many; what is behind them is done
 * again. */
START_TEST(a_place_without_room_goes_back)
{
    static struct descant_items runs[BOARD_TODO + 2];
    static struct place place;
    for (uint64_t k = 0; k < N(runs); k++)
        runs[k] = (struct descant_items){2 * k + 1, 2 * k + 2};
    place_of_runs(&place, runs, N(runs));
    ck_assert_uint_eq(place.n, PLACE_HEAD + BOARD_TODO);
    ck_assert_uint_eq(place.at[0], 2 * BOARD_TODO);
    runs[1] = (struct descant_items){BOARD_TODO + 10, BOARD_TODO + 11};
    place_of_runs(&place, runs, 2);
    ck_assert_uint_eq(place.n, PLACE_HEAD + 1);
    ck_assert_uint_eq(place.at[0], 2);
}
END_TEST

/* --- examples --- */

START_TEST(examples_are_of_this_data)
{
    struct train_options o = short_run();
    struct train_result r;
    o.examples = 3200;
    train_well(&o, &r, 3200);
    o.resume = true;
    train_well(&o, &r, 0);
    o.data = held_out;
    train_well(&o, &r, 3200);
    o.examples = 3600;
    train_well(&o, &r, 400);
    ck_assert_uint_eq(r.seen.n, 6800);
}
END_TEST

/* One worker takes the same batches in the same order, so what a stop and a resume lose of an
 * optimizer's state is seen in the last bit. */
START_TEST(a_stop_between_changes_nothing)
{
    static const struct {
        int model;
        enum optimizer_kind optimizer;
        enum row_optimizer_kind rows;
    } runs[] = {{MODEL_LINEAR, OPTIMIZER_FTRL, ROWS_FTRL}, {MODEL_FM, OPTIMIZER_FTRL, ROWS_FTRL},
                {MODEL_DLRM, OPTIMIZER_FTRL, ROWS_FTRL},
                {MODEL_DLRM, OPTIMIZER_ADAGRAD, ROWS_ADAGRAD},
                {MODEL_DLRM, OPTIMIZER_ADAMW, ROWS_SGD}};
    struct train_options o = short_run();
    struct train_result whole, r;
    o.model = runs[_i].model;
    o.optimizer.kind = runs[_i].optimizer;
    o.optimizer.rows = runs[_i].rows;
    o.sync = "none";
    o.eval = held_out;
    o.epochs = 2;
    train_well(&o, &whole, 2 * ROWS);
    ck_assert_int_eq(unlink(model_file), 0);
    o.epochs = 1;
    train_well(&o, &r, ROWS);
    ck_assert_double_ne(r.held_out.loss, whole.held_out.loss);
    o.resume = true;
    o.epochs = 2;
    train_well(&o, &r, ROWS);
    ck_assert_double_eq(r.held_out.loss, whole.held_out.loss);
}
END_TEST

/* The second day is other clicks than the first: of them alone are the figures of this start. */
START_TEST(a_start_has_its_own_figures)
{
    struct train_options o = short_run();
    struct train_result r;
    o.log = log_file;
    train_well(&o, &r, ROWS);
    ck_assert_msg(!strstr(said, "this start"), "%s", said);
    struct metrics first = r.seen;
    o.resume = true;
    o.data = held_out;
    train_well(&o, &r, EVAL_ROWS);
    double loss = (r.seen.loss - first.loss) / EVAL_ROWS;
    ck_assert(fabs(loss - metrics_logloss(&r.seen)) > 1e-4);
    char line[96];
    snprintf(line, sizeof line, "  loss of this start         %.5f\n", loss);
    says(line);
    says("  NE of this start           0.");
    ck_assert_int_eq(program("info %s", log_file), CLI_DONE);
    snprintf(line, sizeof line, "%.6f\n", loss);
    ck_assert_msg(strstr(out_text, line) && strstr(out_text, "loss of its start"), "%s", out_text);
    ck_assert_int_eq(program("report %s --out -", log_file), CLI_DONE);
    snprintf(line, sizeof line, "<td>%.4f</td>", loss);
    ck_assert_msg(strstr(out_text, "NE of its start") && strstr(out_text, line), "%s", out_text);
}
END_TEST

/* One trainer alone has no others whose values it could take: the run's end says all. */
START_TEST(one_alone_diverges_in_one_line)
{
    struct train_options o = short_run();
    struct train_result r;
    o.model = MODEL_DLRM;
    o.optimizer.kind = OPTIMIZER_SGD;
    o.optimizer.rows = ROWS_SGD;
    o.lr = 1e6;
    ck_assert_int_eq(train(&o, &r), 1);
    says("lower --lr (it is 1e+06)");
    ck_assert_msg(!strstr(said, "has NaN or Inf in its values"), "%s", said);
}
END_TEST

/* --- the best --- */

static double number_after(const char *text)
{
    const char *at = strstr(said, text);
    ck_assert_msg(at != NULL, "no '%s' in %s", text, said);
    return strtod(at + strlen(text), NULL);
}

/* Its tables do not move, so the copy that was evaluated is all of it. */
START_TEST(patience_keeps_the_best)
{
    struct train_options o = small();
    struct train_result r;
    char kept[128], old[160];
    struct stat of, is;
    snprintf(kept, sizeof kept, "%s.best", model_file);
    snprintf(old, sizeof old, "%s.old", kept);
    o.checkpoint = model_file;
    o.eval = held_out;
    o.eval_every = ROWS;
    o.epochs = 1000000;
    o.patience = 2;
    o.lr = 0.5;
    o.table_lr = 1e-30;
    if (_i) {
        o.trainers = 2;
        o.sync = "bsp,period=2ms";
    }
    for (int start = 0; start < 2; start++) {
        ck_assert_msg(train(&o, &r) == 0, "%s", said);
        ck_assert_int_eq(r.stop, STOP_EARLY);
        says("no gain in 2 evaluations; the best loss was ");
        says("model.safetensors.best has the model of the best evaluation, at ");
        double told = number_after(" examples: loss ");
        ck_assert(told <= number_after("the best loss was ") &&
                  number_after("best evaluation, at ") >= number_after(", at "));
        ck_assert_int_eq(program("eval --checkpoint %s --data %s --json", kept, held_out), CLI_DONE);
        double loss = strtod(strstr(out_text, "\"loss\":") + 7, NULL);
        ck_assert_msg(fabs(loss - told) < 1e-5, "%g, not %g", loss, told);
        ck_assert_int_ne(access(old, F_OK), 0);
        o.resume = true;
        ck_assert_int_eq(stat(kept, &of), 0);
    }
    o.patience = 3;                 /* no better one comes: the best of before stays */
    o.lr = 0.9;
    double told = number_after(" examples: loss ");
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    if (number_after(" examples: loss ") >= told) {
        ck_assert_int_eq(stat(kept, &is), 0);
        ck_assert(is.st_ino == of.st_ino);
    }
    o.resume = false;
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    ck_assert_int_eq(access(old, F_OK), 0);
}
END_TEST

static double loss_of(const char *path)
{
    ck_assert_int_eq(program("eval --checkpoint %s --data %s --json", path, held_out), CLI_DONE);
    return strtod(strstr(out_text, "\"loss\":") + 7, NULL);
}

/* What is said of FILE.best is true of the file, whatever became of it between two runs. */
START_TEST(the_best_is_what_is_there)
{
    struct train_options o = short_run();
    struct train_result r;
    char kept[128], old[160];
    snprintf(kept, sizeof kept, "%s.best", model_file);
    snprintf(old, sizeof old, "%s.old", kept);
    o.sync = "none";                /* or the centre would move the model at any rate */
    o.eval = held_out;
    o.eval_every = ROWS;
    o.epochs = 1000000;
    o.patience = 2;
    o.lr = 0.5;
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    double first = number_after(" examples: loss ");
    o.resume = true;
    o.patience = 0;                 /* evaluations that are not kept are no best */
    o.examples = (int64_t)r.seen.n + 3 * ROWS;
    o.lr = o.table_lr = 1e-30;
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    o.patience = 2;
    o.examples = 0;
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    ck_assert_msg(fabs(number_after(" examples: loss ") - first) < 1e-5 && access(old, F_OK) != 0,
                  "%g: %s", first, said);
    ck_assert_int_eq(unlink(kept), 0);
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    ck_assert(fabs(number_after(" examples: loss ") - loss_of(kept)) < 1e-5);
    o.resume = false;               /* another run's is not beside this one's */
    o.epochs = 1;
    o.patience = 0;
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    ck_assert(access(kept, F_OK) != 0 && access(old, F_OK) == 0);
}
END_TEST

/* A full disk, or as here a folder that has the name, is said in the log, and takes nothing back. */
START_TEST(a_best_that_cannot_be_kept_is_logged)
{
    struct train_options o = short_run();
    struct train_result r;
    char kept[128], line[8192];
    int failed = 0;
    snprintf(kept, sizeof kept, "%s.best", model_file);
    ck_assert_int_eq(mkdir(kept, 0700), 0);
    snprintf(kept, sizeof kept, "%s.best/x", model_file);
    ck_assert_int_eq(mkdir(kept, 0700), 0);
    snprintf(kept, sizeof kept, "%s.best.old", model_file);
    fclose(fopen(kept, "we"));
    o.eval = held_out;
    o.eval_every = ROWS;
    o.epochs = 3;
    o.patience = 5;
    o.log = log_file;
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    ck_assert_msg(!strstr(said, "has the model of the best"), "%s", said);
    FILE *in = fopen(log_file, "re");
    while (fgets(line, sizeof line, in))
        failed += strstr(line, "\"kind\":\"checkpoint\"") != NULL;
    fclose(in);
    ck_assert_int_ge(failed, 1);
}
END_TEST

/* --- the model --- */

/* The program, with what its trainers say, too. */
static int words(const char *format, ...) __attribute__((format(printf, 1, 2)));

static int words(const char *format, ...)
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
    FILE *out = tmpfile();
    int status = cli_main(argc, argv, out, out);
    rewind(out);
    said[fread(said, 1, sizeof said - 1, out)] = 0;
    fclose(out);
    return status;
}

static const struct {
    const char *first, *then, *says;
} meanings[] = {
    {"--data %s/a.svm", "--data %s/a.svm --plain-ids", "its ids were hashed, now they are plain"},
    {"--data %s/a.svm --plain-ids", "--data %s/a.svm", "its ids were plain, now they are hashed"},
    {"--data %s/a.ffm --fields 8", "--data %s/a.ffm --fields 9",
     "it had 0 dense features and 8 fields, now there are 0 and 9"},
    {"--data %s/a.svm", "--data %s/a.ffm --fields 8",
     "it had 0 dense features and 1 field, now there are 0 and 8"},
    {"--data %s/a.svm --rows 4096", "--data %s/a.svm --rows 4097", "is of another model"},
    {"--data %s/a.svm", "--data %s/a.svm --model fm", "--model was linear, now it is fm"},
    {"--data %s/a.svm --rows 4096", "--data %s/a.svm --rows 4098",
     "--rows was 4096, now it is 4098"},
    {"--data %s/a.svm --optimizer adagrad", "--data %s/a.svm --optimizer sgd",
     "--optimizer was adagrad, not sgd"},
    {"--data %s/a.svm --optimizer adagrad", "--data %s/a.svm --table-optimizer sgd",
     "--table-optimizer was adagrad, not sgd"},
};
enum { N_MEANINGS = sizeof meanings / sizeof *meanings };

static void put_lines(const char *name, const char *one, const char *other)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *out = fopen(path, "we");
    for (int k = 0; k < 500; k++)
        fputs(k % 3 ? one : other, out);
    ck_assert(fclose(out) == 0);
}

#pragma GCC diagnostic ignored "-Wformat-nonliteral"
START_TEST(what_a_row_means_stays)
{
    char first[256], then[256];
    put_lines("a.svm", "0 1:1 3:0.5\n", "1 2:1 3:0.25\n");
    put_lines("a.ffm", "0 0:1:1 3:3:0.5\n", "1 1:2:1 2:3:0.25\n");
    snprintf(first, sizeof first, meanings[_i].first, folder);
    snprintf(then, sizeof then, meanings[_i].then, folder);
    ck_assert_msg(words("train --model linear --quiet --checkpoint %s %s", model_file, first) ==
                      CLI_DONE, "%s", said);
    const char *same = strstr(then, "--model") ? "" : "--model linear";
    ck_assert_int_eq(words("train --quiet --checkpoint %s --resume %s %s", model_file, same, then),
                     CLI_FAILED);
    says(meanings[_i].says);
    /* its model needs not be told */
    ck_assert_msg(words("train --quiet --checkpoint %s --resume %s", model_file, first) ==
                      CLI_DONE, "%s", said);
    says("linear under");
}
END_TEST

/* Another day's data, and no option of the model's told again. */
START_TEST(what_was_not_told_again_stays)
{
    static const char first[] = "train --quiet --checkpoint %s --data %s/a.svm --model fm "
                                "--rows 512 --width 4 --optimizer adagrad --table-optimizer "
                                "rowwise-adagrad --lr 0.02 --table-lr 0.03 --batch 16";
    static const char then[] = "train --quiet --checkpoint %s --data %s/b.svm --resume %s";
    put_lines("a.svm", "0 1:1 3:0.5\n", "1 2:1 3:0.25\n");
    put_lines("b.svm", "0 1:1 2:0.5\n", "1 3:1 2:0.25\n");
    ck_assert_msg(words(first, model_file, folder) == CLI_DONE, "%s", said);
    ck_assert_msg(words(then, model_file, folder, "") == CLI_DONE, "%s", said);
    ck_assert_int_eq(words("info %s", model_file), CLI_DONE);
    says("adagrad, lr 0.02; of tables rowwise-adagrad\n");
    says("512 x 5");
    ck_assert_msg(words(then, model_file, folder, "--lr 0.01") == CLI_DONE, "%s", said);
    ck_assert_int_eq(words("info %s", model_file), CLI_DONE);
    says("adagrad, lr 0.01; of tables rowwise-adagrad\n");
}
END_TEST

static int times(const char *text, const char *word)
{
    int n = 0;
    for (const char *at = text; (at = strstr(at, word)); at += strlen(word))
        n++;
    return n;
}

/* Gone, or damaged. */
START_TEST(the_checkpoint_before_is_for_going_on)
{
    struct train_options o = short_run();
    struct train_result r;
    char previous[128];
    snprintf(previous, sizeof previous, "%s.previous", model_file);
    o.examples = 3200;
    train_well(&o, &r, 3200);
    ck_assert_int_eq(rename(model_file, previous), 0);
    if (_i)
        put_lines("model.safetensors", "this is no checkpoint\n", "nor is this\n");
    for (int k = 0; k < 2; k++) {
        ck_assert_int_eq(program("%s --checkpoint %s --data %s", k ? "predict" : "eval", model_file,
                                 held_out), CLI_FAILED);
        ck_assert_int_eq(times(err_text, "previous would score with the one before it"), 1);
    }
    o.resume = true;
    o.trainers = 2;
    o.examples = 4800;
    train_well(&o, &r, 1600);
    ck_assert_int_eq(times(said, "the run goes on from"), 1);
    ck_assert_int_eq(times(said, "model.safetensors.previous, the checkpoint before it"), 1);
}
END_TEST

int main(void)
{
    TCase *files = new_case("files", 120);
    tcase_add_checked_fixture(files, setup_data, remove_folder);
    tcase_add_test(files, a_replaced_file_begins_anew);
    tcase_add_test(files, another_name_is_the_same_data);
    tcase_add_test(files, data_that_was_left_is_said);
    tcase_add_loop_test(files, a_growing_file_is_trained_once, 0, 3);
    tcase_add_test(files, a_line_without_an_end_is_trained_once);
    tcase_add_test(files, a_growing_compressed_file_loses_nothing);
    tcase_add_test(files, what_has_grown_is_done_once);
    tcase_add_test(files, a_place_is_what_is_done);
    tcase_add_test(files, chunks_that_are_left_may_be_in_any_order);
    tcase_add_test(files, a_place_without_room_goes_back);
    tcase_add_test(files, examples_are_of_this_data);
    tcase_add_loop_test(files, a_stop_between_changes_nothing, few(0, 2), few(5, 4));
    tcase_add_test(files, a_start_has_its_own_figures);
    tcase_add_test(files, one_alone_diverges_in_one_line);
    tcase_add_loop_test(files, patience_keeps_the_best, 0, 2);
    tcase_add_test(files, the_best_is_what_is_there);
    tcase_add_test(files, a_best_that_cannot_be_kept_is_logged);
    tcase_add_loop_test(files, what_a_row_means_stays, 0, N_MEANINGS);
    tcase_add_test(files, what_was_not_told_again_stays);
    tcase_add_loop_test(files, the_checkpoint_before_is_for_going_on, 0, 2);
    make_clicks();
    return run_cases(files, NULL);
}
