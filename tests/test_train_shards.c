/* SPDX-License-Identifier: MIT */
/* Checkpoints in shards, through descant train: a run goes on from them on any number of ranks,
 * with the same model, also from and to tables of which each host has a copy; a merged checkpoint
 * has the bits of such a run; runs that are killed, full disks, torn and missing shards. */
#include "harness/steps.h"
#include "harness/tcp.h"
#include "harness/training.h"
#include "run/saved.h"
#include "run/shards.h"
#include "train/place.h"
#include "train/trainer.h"

#include <glob.h>
#include <signal.h>
#include <sys/resource.h>

enum { MOST = 4 };

static pid_t pids[MOST];
static rlim_t room_of_rank_1;           /* of a file; 0: any */

static void set_up(void)
{
    set_up_training();
    room_of_rank_1 = 0;
    signal(SIGXFSZ, SIG_IGN);
}

/* ranks 0: two trainers of this machine. */
struct how {
    int ranks, tables;
    const char *shares;
    bool grows;
};

static struct train_options options_of(const struct how *how)
{
    static char job[300];
    struct train_options o = small();
    struct tcp_options at;
    o.tables = how->tables;
    o.rows_shares = how->shares;
    o.rows = how->grows ? -1 : o.rows;
    o.table_memory = how->grows ? 64 << 20 : 0;
    o.eval = held_out;
    o.checkpoint = model_file;
    o.log = log_file;
    o.log_every = 0.02;
    o.trainers = 2;
    if (how->ranks) {
        tcp_test_address(&at, "127.0.0.1", MOST);
        snprintf(job, sizeof job, "tcp:127.0.0.1:%s,ranks=%d,dead=3s", at.port, MOST);
        o.job = job;
        o.trainers = 0;
        o.over_tcp = true;
    }
    return o;
}

/* Rank k of a job that begins with so many; 0: a machine's trainers. */
static void begin_one(const struct train_options *o, int k, int ranks)
{
    char number[2] = {(char)('0' + k), 0}, size[2] = {(char)('0' + ranks), 0};
    struct rlimit all, less;
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &all), 0);
    less = all;
    less.rlim_cur = room_of_rank_1;
    if (ranks) {
        setenv("RANK", number, 1);
        setenv("WORLD_SIZE", size, 1);
    }
    setrlimit(RLIMIT_FSIZE, k == 1 && room_of_rank_1 ? &less : &all);
    pids[k] = begin(o);
    setrlimit(RLIMIT_FSIZE, &all);
    unsetenv("RANK");
    unsetenv("WORLD_SIZE");
}

static void begin_all(const struct train_options *o, int ranks)
{
    unlink(said_file);
    for (int k = 0; k < (ranks ? ranks : 1); k++)
        begin_one(o, k, ranks);
}

static void end_all(int ranks, int with)
{
    for (int k = 0; k < (ranks ? ranks : 1); k++) {
        int status = end_within(pids[k], 50);
        ck_assert_msg(status == with, "trainer %d ends with %d: %s", k, status, said);
    }
}

/* Runs to the end, and returns the held-out loss. */
static double run_to_end(const struct how *how, const struct train_options *o)
{
    unlink(log_file);
    begin_all(o, how->ranks);
    end_all(how->ranks, 0);
    double loss = logged("summary", "eval_loss");
    ck_assert_msg(loss > 0, "no held-out loss: %s", said);
    return loss;
}

static void like(double a, double b)
{
    ck_assert_msg(fabs(a - b) < 2e-6, "%.9g, %.9g", a, b);
}

static double evaluated(const char *file)
{
    ck_assert_msg(program("eval --json --checkpoint %s --data %s", file, held_out) == 0, "%s",
                  err_text);
    const char *at = strstr(out_text, "\"loss\":");
    ck_assert_ptr_nonnull(at);
    return strtod(at + 7, NULL);
}

/* How many files there are: "model.safetensors" and this. */
static size_t files_like(const char *rest)
{
    char pattern[200];
    glob_t found;
    snprintf(pattern, sizeof pattern, "%s%s", model_file, rest);
    int status = glob(pattern, 0, NULL, &found);
    size_t n = status == 0 ? found.gl_pathc : 0;
    globfree(&found);
    return n;
}

static const char *shard_name(const char *of, int k)
{
    static char path[PATH_MAX];
    struct safetensors *file;
    struct shards s;
    ck_assert_int_eq(safetensors_open(&file, of, NULL), DESCANT_OK);
    ck_assert_int_eq(shards_of(file, of, &s, NULL), DESCANT_OK);
    shards_path(&s, of, k, path, sizeof path);
    safetensors_close(file);
    return path;
}

/* Those that own rows: so many shards there are. */
static size_t owners(const struct how *how)
{
    size_t n = 0;
    for (int k = 0; k < how->ranks; k++)
        n += train_share(how->shares, k) > 0;
    return how->ranks ? n : 1;
}

/* --- from some ranks to others --- */

/* Each run of a chain goes on from the one before. */
static const struct chain {
    int n;
    struct how hows[5];
} chains[] = {
    {5, {{0, TABLES_SHARD, NULL, false}, {3, TABLES_SHARD, NULL, false},
         {2, TABLES_SHARD, NULL, false}, {3, TABLES_SHARD, "2,0,1", false},
         {3, TABLES_SHARD, NULL, false}}},
    {4, {{1, TABLES_SHARD, NULL, false}, {1, TABLES_SHARD, NULL, false},
         {3, TABLES_SHARD, NULL, false}, {0, TABLES_SHARD, NULL, false}}},
    {4, {{3, TABLES_SHARD, NULL, false}, {2, TABLES_REPLICATE, NULL, false},
         {3, TABLES_SHARD, NULL, false}, {0, TABLES_REPLICATE, NULL, false}}},
    {5, {{0, TABLES_SHARD, NULL, true}, {3, TABLES_SHARD, NULL, true},
         {2, TABLES_SHARD, "1,3", true}, {2, TABLES_SHARD, NULL, true},
         {0, TABLES_SHARD, NULL, true}}},
};

static size_t shards_of_run(const struct how *how)
{
    return how->tables == TABLES_SHARD ? owners(how) : 0;
}

/* Without training, on other ranks. */
static void go_on(const struct how *before, const struct how *then, double loss)
{
    struct train_options o = options_of(then);
    o.resume = true;
    like(run_to_end(then, &o), loss);
    ck_assert_msg(!strstr(said, "anew"), "%s", said);
    like(evaluated(model_file), loss);
    like(evaluated(in_folder("model.safetensors.previous")), loss);
    ck_assert_uint_eq(files_like(".rows-*"), shards_of_run(before) + shards_of_run(then));
}

START_TEST(a_run_goes_on_with_the_same_model)
{
    const struct how *how = chains[_i].hows;
    struct train_options o = options_of(how);
    double loss = run_to_end(how, &o);
    like(evaluated(model_file), loss);
    ck_assert_uint_eq(files_like(".rows-00001-*-of-*"), shards_of_run(how));
    for (int k = 1; k < chains[_i].n; k++, how++)
        go_on(how, how + 1, loss);
    o = options_of(how);
    o.resume = true;
    o.epochs = 2;
    loss = run_to_end(how, &o);
    ck_assert_double_gt(examples_kept(), 1.9 * ROWS);
    like(evaluated(model_file), loss);
    ck_assert_uint_eq(files_like("*.tmp"), 0);
    ck_assert_uint_eq(files_like(".rows-*"), 2 * shards_of_run(how));
}
END_TEST

/* --- one file --- */

static const int optimizers[] = {ROWS_ADAGRAD, ROWS_ROWWISE_ADAGRAD, ROWS_SGD};

static void same_tensors(const char *a_name, const char *b_name)
{
    struct safetensors *a, *b;
    ck_assert_int_eq(safetensors_open(&a, a_name, NULL), DESCANT_OK);
    ck_assert_int_eq(safetensors_open(&b, b_name, NULL), DESCANT_OK);
    ck_assert_uint_eq(safetensors_count(a), safetensors_count(b));
    for (size_t k = 0; k < safetensors_count(a); k++) {
        const struct safetensor *x = safetensors_at(a, k), *y = safetensors_find(b, x->name);
        ck_assert_msg(y != NULL, "no %s", x->name);
        ck_assert_mem_eq(x->dims, y->dims, sizeof x->dims);
        if (strcmp(x->name, "descant.outer") != 0)
            ck_assert_msg(memcmp(x->data, y->data, x->bytes) == 0, "%s differs", x->name);
    }
    ck_assert_ptr_null(safetensors_text(b, "shards"));
    safetensors_close(a);
    safetensors_close(b);
}

static void same_text(const char *path, const char *key, const char *text)
{
    struct safetensors *file;
    ck_assert_int_eq(safetensors_open(&file, path, NULL), DESCANT_OK);
    ck_assert_str_eq(safetensors_text(file, key), text);
    safetensors_close(file);
}

/* One trainer has the same bits with tables of both kinds, and so has what it saves. */
START_TEST(a_merged_checkpoint_has_the_same_bits)
{
    static char plain[96], merged[96];
    struct train_options o = options_of(&(struct how){0, TABLES_REPLICATE, NULL, false});
    struct train_result r;
    snprintf(plain, sizeof plain, "%s", in_folder("plain.safetensors"));
    snprintf(merged, sizeof merged, "%s", in_folder("merged.safetensors"));
    o.trainers = o.workers = 1;
    o.sync = "none";
    o.log = NULL;
    o.optimizer.rows = (enum row_optimizer_kind)optimizers[_i];
    o.table_lr = 0.02;
    o.checkpoint = plain;
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    o.tables = TABLES_SHARD;
    o.checkpoint = model_file;
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    ck_assert_msg(program("merge %s %s", model_file, merged) == 0, "%s", err_text);
    ck_assert_ptr_nonnull(strstr(out_text, "merged.safetensors: 52000 rows in 26 tables, "));
    same_tensors(plain, merged);
    same_text(merged, "tables", "replicate");
    like(evaluated(merged), r.held_out.loss);
    /* and the other way round: what goes on from the merged one has shards of the same bits */
    o.checkpoint = merged;
    o.resume = true;
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    ck_assert_msg(program("merge %s %s", merged, in_folder("again.safetensors")) == 0, "%s",
                  err_text);
    same_tensors(plain, in_folder("again.safetensors"));
    ck_assert_int_eq(program("merge %s %s", plain, in_folder("no")), 1);
    ck_assert_ptr_nonnull(strstr(err_text, "has its tables itself"));
    no_file(in_folder("no"));
}
END_TEST

/* --- tables that grow --- */

static const struct how alone = {0, TABLES_SHARD, NULL, true};

static struct train_options grown_alone(int kind)
{
    struct train_options o = options_of(&alone);
    o.trainers = o.workers = 1;
    o.sync = "none";
    o.log = NULL;
    o.model = kind == 0 ? MODEL_DLRM : kind == 1 ? MODEL_FM : MODEL_LINEAR;
    o.width = kind == 1 ? 4 : o.width;
    o.batch = 32;
    o.optimizer.kind = OPTIMIZER_ADAGRAD;
    o.optimizer.rows = (enum row_optimizer_kind)optimizers[kind];
    o.table_lr = 0.02;
    return o;
}

static void merge(const char *from, const char *to)
{
    ck_assert_msg(program("merge %s %s", from, to) == 0, "%s", err_text);
}

/* A run with a break has the bits of one without, also where it goes on from one file. */
START_TEST(a_grown_run_goes_on_with_the_same_bits)
{
    static char whole[96], part[96], once[96];
    struct train_options o = grown_alone(_i);
    struct train_result r;
    snprintf(whole, sizeof whole, "%s", in_folder("whole.safetensors"));
    snprintf(once, sizeof once, "%s", in_folder("once.safetensors"));
    snprintf(part, sizeof part, "%s", in_folder("part.safetensors"));
    o.epochs = 2;
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    merge(model_file, whole);
    double loss = r.held_out.loss;
    like(evaluated(whole), loss);
    like(evaluated(model_file), loss);
    same_text(whole, "rows", "grow");
    o.epochs = 1;
    o.checkpoint = once;
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    merge(once, part);
    o.epochs = 2;
    o.resume = true;
    for (int k = 0; k < 2; k++) {       /* from shards, from one file */
        o.checkpoint = k ? part : once;
        ck_assert_msg(train(&o, &r) == 0, "%s", said);
        ck_assert_double_eq(r.held_out.loss, loss);
        merge(o.checkpoint, in_folder("again.safetensors"));
        same_tensors(whole, in_folder("again.safetensors"));
    }
}
END_TEST

/* The merged file's rows are those of the shards, in the order of their ids, and the scores are
 * the same, also of ids that no row has. */
START_TEST(a_merged_one_has_its_rows_by_table)
{
    static char merged[96];
    struct train_options o = grown_alone(0);
    struct train_result r;
    struct safetensors *file;
    size_t n, scores_n;
    uint64_t all = 0;
    snprintf(merged, sizeof merged, "%s", in_folder("merged.safetensors"));
    o.examples = ROWS / 4;
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    merge(model_file, merged);
    ck_assert_int_eq(safetensors_open(&file, merged, NULL), DESCANT_OK);
    for (int k = 0; k < 26; k++) {
        char name[64];
        snprintf(name, sizeof name, "tables.%d.ids", k);
        const uint64_t *ids = safetensors_list(file, name, SAFETENSORS_U64, &n);
        ck_assert_ptr_nonnull(ids);
        for (size_t i = 1; i < n; i++)
            ck_assert_uint_lt(ids[i - 1], ids[i]);
        snprintf(name, sizeof name, "tables.%d.weight", k);
        ck_assert_uint_eq(safetensors_find(file, name)->dims[0], n);
        all += n;
    }
    safetensors_list(file, "descant.table_optimizer", SAFETENSORS_F32, &n);
    ck_assert_uint_eq(n, all * 4);
    char line[64];
    snprintf(line, sizeof line, ": %llu rows in 26 tables, a row for each id, ",
             (unsigned long long)all);
    ck_assert_msg(strstr(out_text, line) != NULL, "%s", out_text);
    safetensors_close(file);
    like(evaluated(merged), r.held_out.loss);
    ck_assert_int_eq(program("predict --checkpoint %s --data %s --out %s", model_file, held_out,
                             in_folder("a.txt")), 0);
    ck_assert_int_eq(program("predict --checkpoint %s --data %s --out %s", merged, held_out,
                             in_folder("b.txt")), 0);
    char *a = get_file(in_folder("a.txt"), &n), *b = get_file(in_folder("b.txt"), &scores_n);
    ck_assert(n == scores_n && n > EVAL_ROWS && memcmp(a, b, n) == 0);
    free(a);
    free(b);
    ck_assert_int_eq(program("merge %s %s", merged, in_folder("no")), 1);
    ck_assert_ptr_nonnull(strstr(err_text, "has its tables itself"));
}
END_TEST

START_TEST(tables_of_the_other_kind_are_refused)
{
    struct train_options o = grown_alone(0);
    struct train_result r;
    o.examples = 2000;
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    o.resume = true;
    o.rows = 2000;
    o.table_memory = 0;
    for (int k = 0; k < 4; k++) {
        o.tables = k % 2 ? TABLES_SHARD : TABLES_REPLICATE;
        ck_assert_int_ne(train(&o, &r), 0);
        says("--rows was grow, now it is 2000; leave it out to go on with this model");
        if (k == 1)                     /* the same of one file */
            merge(model_file, in_folder("merged.safetensors"));
        o.checkpoint = k ? in_folder("merged.safetensors") : model_file;
    }
    o.checkpoint = in_folder("fixed.safetensors");
    o.resume = false;
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    o.resume = true;
    o.rows = -1;
    o.table_memory = 64 << 20;
    ck_assert_int_ne(train(&o, &r), 0);
    says("--rows was 2000, now it is grow; leave it out to go on with this model");
}
END_TEST

static void bend(const char *path, const char *name, size_t at, const void *bytes, size_t n)
{
    struct safetensors *file;
    size_t all;
    ck_assert_int_eq(safetensors_open(&file, path, NULL), DESCANT_OK);
    const struct safetensor *t = safetensors_find(file, name),
                            *last = safetensors_at(file, safetensors_count(file) - 1);
    long back = (const char *)last->data + last->bytes - (const char *)t->data;
    safetensors_close(file);
    char *whole = get_file(path, &all);
    memcpy(whole + all - back + at, bytes, n);
    put_file(path, whole, all);
    free(whole);
}

/* A merged file that is torn, or has numbers that no run writes; a disk that is full. */
START_TEST(a_bad_merged_file_is_refused)
{
    static char merged[96];
    const uint64_t id = UINT64_C(1) << 32;
    const float bad = NAN;
    struct train_options o = grown_alone(0);
    struct train_result r;
    size_t n;
    snprintf(merged, sizeof merged, "%s", in_folder("merged.safetensors"));
    o.examples = 2000;
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    merge(model_file, merged);
    char *whole = get_file(merged, &n);
    static const char *const names[] = {"tables.3.ids", "tables.3.weight",
                                        "descant.table_optimizer"};
    static const char *const words[] = {"has the id 4294967296, which no data has",
                                        "a row of tables.3.weight has NaN or Inf",
                                        "has NaN or Inf"};
    for (int k = 0; k < N(names); k++) {
        put_file(merged, whole, n);
        bend(merged, names[k], 16, k ? (const void *)&bad : &id, k ? sizeof bad : sizeof id);
        ck_assert_int_eq(program("eval --checkpoint %s --data %s", merged, held_out), 1);
        ck_assert_msg(strstr(err_text, words[k]) != NULL, "%s", err_text);
        o.resume = true;
        o.checkpoint = merged;
        ck_assert_int_ne(train(&o, &r), 0);
        says(words[k]);
    }
    put_file(merged, whole, n - 8);
    ck_assert_int_eq(program("eval --checkpoint %s --data %s", merged, held_out), 1);
    ck_assert_ptr_nonnull(strstr(err_text, "torn"));
    free(whole);
    struct rlimit limit = {(rlim_t)n / 2, (rlim_t)n};
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    ck_assert_int_eq(program("merge %s %s", model_file, in_folder("no")), 1);
    ck_assert_ptr_nonnull(strstr(err_text, "File too large"));
    no_file(in_folder("no"));
    no_file(in_folder("no.tmp"));
    ck_assert(isfinite(evaluated(model_file)));
}
END_TEST

/* There are more rows in the checkpoint than the next run has room for. */
START_TEST(less_memory_is_told)
{
    struct train_options o = grown_alone(0);
    struct train_result r;
    ck_assert_int_eq(program("gen ctr --rows 2000 --zipf 0 --out %s", clicks), 0);
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    ck_assert_ptr_null(strstr(said, "had to go"));
    o.resume = true;
    o.table_memory = 1400 << 10;
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    says("has more rows than --table-memory has room for");
}
END_TEST

/* What info prints behind a line's name. */
static double told_of(const char *file, const char *name)
{
    ck_assert_int_eq(program("info %s", file), 0);
    const char *at = strstr(out_text, name);
    ck_assert_msg(at != NULL, "no %s: %s", name, out_text);
    while (*at && !(*at >= '0' && *at <= '9'))
        at++;
    return strtod(at, NULL);
}

/* Shards and one file tell the same of their rows; a quarter of the rows has more collisions. */
START_TEST(info_tells_of_collisions)
{
    static char merged[96];
    struct train_options o = grown_alone(0);
    struct train_result r;
    snprintf(merged, sizeof merged, "%s", in_folder("merged.safetensors"));
    double shared[2], rows[2], live = 0;
    o.table_memory = 0;
    for (int k = 0; k < 2; k++) {
        o.rows = k ? 500 : 2000;
        ck_assert_msg(train(&o, &r) == 0, "%s", said);
        merge(model_file, merged);
        rows[k] = told_of(model_file, "rows trained");
        shared[k] = told_of(model_file, "share a row");
        ck_assert_double_eq_tol(told_of(merged, "rows trained"), rows[k], 0.02);
        ck_assert_double_eq_tol(told_of(merged, "share a row"), shared[k], 0.1);
    }
    ck_assert(rows[1] > 2 * rows[0] && shared[1] > 2 * shared[0] && shared[0] > 1);
    const char *ids = strstr(out_text, "% of about ");
    ck_assert_ptr_nonnull(ids);
    double told = strtod(ids + 11, NULL);
    o = grown_alone(0);
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    live = told_of(model_file, "\ntables");       /* each id has its row: so many there are */
    ck_assert_double_eq_tol(told / live, 1, 0.1);
    ck_assert_ptr_null(strstr(out_text, "share a row"));
}
END_TEST

START_TEST(info_tells_of_shards)
{
    struct how how = {3, TABLES_SHARD, NULL, _i};
    struct train_options o = options_of(&how);
    run_to_end(&how, &o);
    ck_assert_int_eq(program("info %s", model_file), 0);
    ck_assert(!strstr(out_text, "a row for each id") == !how.grows);
    ck_assert_int_eq(program("info %s", log_file), 0);
    ck_assert(!strstr(out_text, "rows of tables") == !how.grows);
    ck_assert_int_eq(program("report %s --out %s", log_file, in_folder("page.html")), 0);
    size_t n;
    char *page = get_file(in_folder("page.html"), &n);
    ck_assert(!strstr(page, "Evicted: rows") == !how.grows);
    free(page);
    ck_assert_int_eq(program("info %s", model_file), 0);
    ck_assert_ptr_nonnull(strstr(out_text, "in 3 shards of generation 1"));
    ck_assert_ptr_nonnull(strstr(out_text, "all there"));
    ck_assert_int_eq(program("merge %s %s", model_file, shard_name(model_file, 1)), 1);
    ck_assert_ptr_nonnull(strstr(err_text, "and would be written over"));
    ck_assert_int_eq(program("info %s", shard_name(model_file, 1)), 0);
    ck_assert_ptr_nonnull(strstr(out_text, "shard 2 of 3 of a checkpoint of descant train"));
    ck_assert_ptr_nonnull(strstr(out_text, "model.safetensors beside it, generation 1"));
    ck_assert_int_eq(unlink(shard_name(model_file, 1)), 0);
    ck_assert_int_eq(program("info %s", model_file), 1);
    ck_assert_ptr_nonnull(strstr(out_text, "1 of 3 cannot be used"));
    for (int k = 0; k < 2; k++) {
        ck_assert_int_eq(program(k ? "eval --checkpoint %s --data %s" : "merge %s %s", model_file,
                                 k ? held_out : in_folder("out")), 1);
        ck_assert_ptr_nonnull(strstr(err_text, "copy them there"));
    }
}
END_TEST

/* The model's kind is read from FILE before all else. */
START_TEST(resume_needs_no_model)
{
    const char *again = "train --data %s --format criteo --rows 2000 --width 4 --bottom 16 "
                        "--top 16 --batch 32 --chunk 64KiB --optimizer adagrad "
                        "--table-optimizer adagrad --tables shard --checkpoint %s --resume "
                        "--epochs 2 --trainers 1 --quiet";
    struct how how = {0, TABLES_SHARD, NULL, false};
    struct train_options o = options_of(&how);
    run_to_end(&how, &o);
    ck_assert_msg(program(again, clicks, model_file) == 0, "%s", err_text);
}
END_TEST

/* --- rows that move --- */

static int by_number(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* How many rows the checkpoint has; each is in one shard, once. */
static size_t rows_kept(const char *of)
{
    static uint64_t found[26 * 2000];
    struct safetensors *file;
    struct shards s;
    struct shard shard;
    size_t all = 0;
    ck_assert_int_eq(safetensors_open(&file, of, NULL), DESCANT_OK);
    ck_assert_int_eq(shards_of(file, of, &s, NULL), DESCANT_OK);
    for (int k = 0; k < s.n; k++) {
        ck_assert_int_eq(shard_open(&shard, &s, of, k, NULL, NULL), DESCANT_OK);
        ck_assert_uint_eq(shard.n, s.rows[k]);
        ck_assert_uint_le(all + shard.n, N(found));
        for (size_t i = 0; i < shard.n; i++)
            found[all++] = shard.rows[i];
        shard_close(&shard);
    }
    safetensors_close(file);
    qsort(found, all, sizeof *found, by_number);
    for (size_t i = 1; i < all; i++)
        ck_assert_msg(found[i] != found[i - 1], "row %llu comes twice",
                      (unsigned long long)found[i]);
    return all;
}

/* Generations of FILE so far. */
static uint64_t generation(void)
{
    struct safetensors *file;
    struct shards s = {0};
    if (safetensors_open(&file, model_file, NULL) != DESCANT_OK)
        return 0;
    shards_of(file, model_file, &s, NULL);
    safetensors_close(file);
    return s.generation;
}

static void wait_cuts(uint64_t more)
{
    uint64_t from = generation();
    WAIT_UNTIL(generation() >= from + more, "%s", (read_said(), said));
}

static void leave(int rank)
{
    kill(pids[rank], SIGTERM);
    int status = end_within(pids[rank], 40);
    ck_assert_msg(status == 0, "trainer %d leaves with %d: %s", rank, status, said);
}

/* The first chunk that is not done; hosts have leases of chunks, and so a later one may be. */
static uint64_t first_to_do(void)
{
    struct safetensors *file;
    size_t n;
    ck_assert_int_eq(safetensors_open(&file, model_file, NULL), DESCANT_OK);
    const uint64_t *place = safetensors_list(file, "descant.place", SAFETENSORS_U64, &n);
    uint64_t first = place[n > PLACE_HEAD ? PLACE_HEAD : 0];
    safetensors_close(file);
    return first;
}

/* All rows are born in the first pass over the data. */
static void wait_pass(const struct train_options *o)
{
    struct stat of;
    ck_assert_int_eq(stat(clicks, &of), 0);
    uint64_t chunks = (uint64_t)of.st_size / (uint64_t)o->chunk + 1;
    WAIT_UNTIL(first_to_do() >= chunks, "%s", (read_said(), said));
}

/* As many as one trainer has by the same data. */
static size_t rows_of_one(bool grows)
{
    struct train_options o = options_of(&(struct how){0, TABLES_SHARD, NULL, grows});
    struct train_result r;
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    size_t rows = rows_kept(model_file);
    unlink(model_file);
    unlink(log_file);
    unlink(said_file);
    return rows;
}

static struct train_options moving(const struct how *how)
{
    struct train_options o = options_of(how);
    o.epochs = 1000000;
    o.checkpoint_every = 0.02;
    o.batch = 16;
    o.lr = 0.003;
    each_batch_us = 2000;           /* others come, and die, meanwhile */
    return o;
}

/* All of these are told, as by a launcher. */
static void end_told(int n, const int *ranks)
{
    for (int k = 0; k < n; k++)
        kill(pids[ranks[k]], SIGTERM);
    for (int k = 0; k < n; k++) {
        int status = end_within(pids[ranks[k]], 40);
        ck_assert_msg(status == 143, "trainer %d ends with %d: %s", ranks[k], status, said);
    }
    ck_assert_uint_eq(files_like("*.tmp"), 0);
}

static void tells_of_moved(void)
{
    size_t n;
    ck_assert_double_gt(logged("summary", "rows_moved"), 100);
    ck_assert_int_eq(program("info %s", log_file), 0);
    ck_assert_ptr_nonnull(strstr(out_text, "rows moved"));
    ck_assert_int_eq(program("report %s --out %s", log_file, in_folder("page.html")), 0);
    char *page = get_file(in_folder("page.html"), &n);
    ck_assert_ptr_nonnull(strstr(page, "Moved: rows"));
    free(page);
}

/* Three hosts train, one comes, and one leaves; again and again checkpoints are made. Each has each
 * row once, and in the end all rows. Two hosts go on. In one case tables grow. */
START_TEST(hosts_come_and_leave)
{
    static const int stay[] = {0, 2, 3};
    struct how how = {3, TABLES_SHARD, NULL, _i}, two = {2, TABLES_SHARD, NULL, _i};
    size_t rows = rows_of_one(_i);
    struct train_options o = moving(&how);
    o.rows_age = _i ? 0 : 0.2;
    begin_all(&o, 3);
    wait_file(in_folder("model.safetensors.previous"));
    begin_one(&o, 3, 3);
    wait_cuts(2);
    wait_heeding(pids, 4);
    leave(1);
    wait_cuts(2);
    wait_pass(&o);
    end_told(3, stay);
    ck_assert_uint_eq(rows_kept(model_file), rows);
    ck_assert_ptr_nonnull(strstr(shard_name(model_file, 2), "-3-of-3.safetensors"));
    same_text(model_file, "moved", "1");
    tells_of_moved();
    double before = evaluated(model_file);
    ck_assert_double_lt(before, best + 0.3);    /* that of a model without training is 0.33 more */
    o = options_of(&two);
    o.resume = true;
    o.lr = 0.003;
    o.epochs = (int64_t)(examples_kept() / ROWS) + 1;
    each_batch_us = 0;
    double loss = run_to_end(&two, &o);
    ck_assert_msg(!strstr(said, "anew"), "%s", said);
    ck_assert_double_lt(loss, before + 0.02);
    ck_assert_uint_eq(rows_kept(model_file), rows);
}
END_TEST

/* Rank 3 is there before the two that begin. Rank 2 has come when rank 1 had left, of which it has
 * heard nothing. It writes the checkpoints once rank 0 has left, too. */
START_TEST(a_late_host_is_the_first_one)
{
    static const int stay[] = {2, 3};
    struct how how = {2, TABLES_SHARD, NULL, false};
    size_t rows = rows_of_one(false);
    struct train_options o = moving(&how);
    begin_one(&o, 3, 2);
    begin_one(&o, 1, 2);
    begin_one(&o, 0, 2);
    wait_file(in_folder("model.safetensors.previous"));
    wait_heeding((const pid_t[]){pids[0], pids[1], pids[3]}, 3);
    leave(1);
    begin_one(&o, 2, 2);
    wait_cuts(2);
    wait_heeding((const pid_t[]){pids[0], pids[2]}, 2);
    leave(0);
    wait_cuts(2);
    wait_pass(&o);
    end_told(2, stay);
    ck_assert_uint_eq(rows_kept(model_file), rows);
    same_text(model_file, "moved", "1");
}
END_TEST

/* One is killed, the others train on and keep all rows, and it is started again by the same
 * words. Where it is the first one, no checkpoint is written until it is there again. With and
 * without --resume it takes what the job has, and the job's files stay where they are. */
START_TEST(a_host_dies_and_comes_again)
{
    static const int all[] = {0, 1, 2};
    struct how how = {3, TABLES_SHARD, NULL, false};
    int dies = _i ? 0 : 1;
    size_t rows = rows_of_one(false);
    struct train_options o = moving(&how);
    o.rows_move = ROWS_MOVE_YES;
    o.rows_replica = 1;
    o.rows_age = _i ? 0.2 : 0;
    o.resume = !_i;
    begin_all(&o, 3);
    wait_file(in_folder("model.safetensors.previous"));
    wait_pass(&o);
    clock_sleep_until(clock_now_ns() + UINT64_C(2000000000));   /* replicas are whole, and of now */
    kill_all(pids[dies]);
    WAIT_UNTIL((read_said(), strstr(said, "has died: 2 take part")), "%s", said);
    if (dies)
        wait_cuts(2);
    begin_one(&o, dies, 3);
    wait_cuts(3);
    WAIT_UNTIL(strstr(shard_name(model_file, 2), "-3-of-3.safetensors"), "%s", (read_said(), said));
    wait_heeding(pids, 3);
    end_told(3, all);
    ck_assert_uint_eq(rows_kept(model_file), rows);
    ck_assert_uint_eq(files_like(".old"), 0);
    ck_assert_int_ne(access(in_folder("run.jsonl.old"), F_OK), 0);
    ck_assert(!strstr(said, "will be replaced"));
    read_said();
    ck_assert_msg(strstr(said, "parts of rows that it owned, from replicas") &&
                  strstr(said, _i ? "trainer 0 has come again: 3 take part"
                                  : "trainer 1 has come again: 3 take part"), "%s", said);
}
END_TEST

/* Rank 3 has died before the first one comes again, which does not wait for its mark at the end,
 * for half a minute. */
START_TEST(a_rank_that_had_died_before_is_not_awaited)
{
    static const int all[] = {0, 1, 2};
    struct how how = {4, TABLES_SHARD, NULL, false};
    struct train_options o = moving(&how);
    o.rows_replica = 0.5;
    begin_all(&o, 4);
    wait_file(in_folder("model.safetensors.previous"));
    for (int left = 3; left >= 2; left--) {
        char died[64];
        snprintf(died, sizeof died, "has died: %d take part", left);
        clock_sleep_until(clock_now_ns() + UINT64_C(1500000000));       /* replicas are whole */
        kill_all(pids[left == 3 ? 3 : 0]);
        WAIT_UNTIL((read_said(), strstr(said, died)), "%s", said);
    }
    begin_one(&o, 0, 4);
    wait_cuts(2);
    wait_heeding(pids, 3);
    uint64_t from = clock_now_ns();
    end_told(3, all);
    ck_assert_double_lt((double)(clock_now_ns() - from) * 1e-9, 20);
}
END_TEST

static uint64_t run_of(const char *path)
{
    struct safetensors *file;
    ck_assert_int_eq(safetensors_open(&file, path, NULL), DESCANT_OK);
    uint64_t run = saved_run(file);
    safetensors_close(file);
    return run;
}

/* The first one is killed before the job has written a checkpoint, and is started again. FILE is
 * of an earlier run: of one that the job goes on from, or of another one. */
START_TEST(a_first_host_that_comes_again_knows_whose_the_file_is)
{
    static const int all[] = {0, 1, 2};
    static char previous[96], old[96];
    struct how how = {3, TABLES_REPLICATE, NULL, false};
    struct train_options o = options_of(&how);
    snprintf(previous, sizeof previous, "%s", in_folder("model.safetensors.previous"));
    snprintf(old, sizeof old, "%s", in_folder("model.safetensors.old"));
    run_to_end(&how, &o);
    uint64_t before = run_of(model_file);
    ck_assert_uint_gt(before, 0);
    o = moving(&how);
    o.checkpoint_every = 0;
    o.resume = _i;
    unlink(log_file);
    begin_all(&o, 3);
    wait_examples(ROWS / 4);
    kill_all(pids[0]);
    WAIT_UNTIL((read_said(), strstr(said, "has died: 2 take part")), "%s", said);
    o.checkpoint_every = 0.02;
    begin_one(&o, 0, 3);
    wait_file(_i ? previous : old);
    if (!_i)
        wait_file(previous);
    wait_heeding(pids, 3);
    end_told(3, all);
    ck_assert_int_eq(access(old, F_OK) == 0, !_i);
    ck_assert(_i || run_of(old) == before);
    ck_assert_int_eq(run_of(model_file) == before, _i);
    ck_assert_uint_eq(run_of(model_file), run_of(previous));
    ck_assert_int_eq(strstr(said, "will be replaced") != NULL, !_i);
}
END_TEST

/* --- on the way --- */

static void kill_them(int ranks)
{
    for (int k = 0; k < (ranks ? ranks : 1); k++)
        kill_all(pids[k]);
}

/* Killed at any moment, it goes on from what is whole; nothing is left over. */
START_TEST(a_killed_run_goes_on)
{
    static struct how hows[] = {{0, TABLES_SHARD, NULL, false}, {2, TABLES_SHARD, NULL, false},
                                {3, TABLES_SHARD, NULL, false}};
    struct how *how = &hows[_i], *then = &hows[(_i + 1) % 3];
    how->grows = then->grows = _i == 1;
    struct train_options o = options_of(how);
    o.epochs = 1000000;
    o.checkpoint_every = 0.02;
    o.rows_age = _i == 2 ? 0.01 : 0;
    o.workers = 2;
    begin_all(&o, how->ranks);
    wait_file(in_folder("model.safetensors.previous"));
    wait_examples(ROWS / 2);
    kill_them(how->ranks);
    double had = examples_kept();
    ck_assert(isfinite(evaluated(model_file)));
    uint64_t passes = (uint64_t)(had / ROWS) + 1;
    o = options_of(then);
    o.resume = true;
    o.epochs = (int64_t)passes;
    double loss = run_to_end(then, &o), all = examples_kept();
    like(evaluated(model_file), loss);
    ck_assert_msg(!strstr(said, "anew"), "%s", said);
    /* what other hosts have done is known late */
    double least = how->ranks ? had : (double)passes * ROWS;
    ck_assert_msg(all >= least && (how->ranks || all < (double)(passes + 1) * ROWS),
                  "%.0f of %llu passes", all, (unsigned long long)passes);
    ck_assert_uint_eq(files_like("*.tmp"), 0);
    ck_assert_uint_le(files_like(".rows-*"), 6);
}
END_TEST

/* The earlier checkpoint stays whole, and training goes on. */
START_TEST(a_full_disk_on_one_host_is_told)
{
    struct how how = {3, TABLES_SHARD, NULL, false};
    struct train_options o = options_of(&how);
    run_to_end(&how, &o);
    double before = evaluated(model_file);
    room_of_rank_1 = 30000;
    o = options_of(&how);
    o.resume = true;
    o.epochs = 4;
    o.checkpoint_every = 0.02;
    unlink(log_file);
    begin_all(&o, 3);
    for (int k = 0; k < 3; k++) {
        int status = end_within(pids[k], 50);
        ck_assert_msg(status == (k == 0), "trainer %d ends with %d: %s", k, status, said);
    }
    says("rank 1 could not write its shard");
    says("File too large");
    says("the last checkpoint failed");
    like(evaluated(model_file), before);
    ck_assert_uint_eq(files_like(".rows-*"), 3);
    ck_assert_uint_eq(files_like("*.tmp"), 0);
}
END_TEST

static void tear(const char *path)
{
    struct stat of;
    ck_assert_int_eq(stat(path, &of), 0);
    ck_assert_int_eq(truncate(path, of.st_size - 4), 0);
}

START_TEST(a_torn_shard_is_not_gone_on_from)
{
    struct how how = {_i ? 3 : 0, TABLES_SHARD, NULL, _i};
    struct train_options o = options_of(&how);
    char previous[128];
    snprintf(previous, sizeof previous, "%s.previous", model_file);
    double first = run_to_end(&how, &o);
    o = options_of(&how);
    o.resume = true;
    o.epochs = 2;
    run_to_end(&how, &o);
    like(evaluated(previous), first);
    tear(shard_name(model_file, how.ranks / 2));
    ck_assert_int_eq(program("eval --checkpoint %s --data %s", model_file, held_out), 1);
    ck_assert_ptr_nonnull(strstr(err_text, "torn"));
    o = options_of(&how);
    o.resume = true;
    o.epochs = 1;
    like(run_to_end(&how, &o), first);
    says("goes on from");
    tear(shard_name(model_file, 0));
    unlink(shard_name(previous, 0));
    o = options_of(&how);
    o.resume = true;
    o.start_s = 2;                      /* others wait for the rank that has no shard */
    begin_all(&o, how.ranks);
    end_all(how.ranks, 1);
    says("nor can the checkpoint before it be used");
    says("copy them there");
}
END_TEST

/* Each host has a folder of its own, with FILE and the shards that it has written itself; a rank
 * that lacks its shard says which. */
START_TEST(each_host_may_have_its_own_folder)
{
    struct how how = {2, TABLES_SHARD, NULL, false};
    struct train_options o = options_of(&how);
    double first = run_to_end(&how, &o);
    char file[2][128], name[PATH_MAX], to[2 * PATH_MAX];
    for (int k = 0; k < 2; k++) {
        snprintf(file[k], sizeof file[k], "%s/host%d", folder, k);
        ck_assert_int_eq(mkdir(file[k], 0777), 0);
        snprintf(name, sizeof name, "%s", shard_name(model_file, k));
        snprintf(to, sizeof to, "%s/%s", file[k], strrchr(name, '/') + 1);
        ck_assert_int_eq(rename(name, to), 0);
        strcat(file[k], "/model.safetensors");
        ck_assert_int_eq(link(model_file, file[k]), 0);
    }
    o = options_of(&how);
    o.resume = true;
    unlink(log_file);
    unlink(said_file);
    if (_i)
        unlink(to);
    setenv("WORLD_SIZE", "2", 1);
    for (int k = 0; k < 2; k++) {
        setenv("RANK", k ? "1" : "0", 1);
        o.checkpoint = file[k];
        pids[k] = begin(&o);
    }
    if (_i) {
        end_within(pids[1], 50);
        says("-2-of-2.safetensors: No such file or directory");
        says("copy them there");
        kill(pids[0], SIGKILL);
        end_within(pids[0], 50);
        return;
    }
    end_all(2, 0);
    like(logged("summary", "eval_loss"), first);
}
END_TEST

/* Rank 1 has an older FILE than rank 0, none, no --resume, or another rate: with FILE, without it,
 * and where neither is to resume. */
START_TEST(hosts_that_begin_otherwise_are_refused)
{
    static const char *const files[] = {"model.safetensors.previous", "other", "model.safetensors",
                                        "model.safetensors", "other", "model.safetensors"};
    static const char *const says_of_rates[] = {"these are of its FILE", "there is no FILE of",
                                                ": give all the same options"};
    struct how how = {2, TABLES_SHARD, NULL, false};
    struct train_options o = options_of(&how);
    run_to_end(&how, &o);
    o = options_of(&how);
    o.resume = true;
    o.epochs = 2;
    run_to_end(&how, &o);
    o = options_of(&how);
    o.eval = NULL;
    unlink(said_file);
    setenv("WORLD_SIZE", "2", 1);
    for (int k = 0; k < 2; k++) {
        setenv("RANK", k ? "1" : "0", 1);
        o.checkpoint = k ? in_folder(files[_i]) : model_file;
        o.resume = _i < 5 && (!k || _i != 2);
        o.lr *= 1 + (k && _i >= 3);
        pids[k] = begin(&o);
    }
    end_all(2, 1);
    says(_i == 0   ? "this rank has found the checkpoint of generation"
         : _i == 1 ? "and another rank goes on from one: copy it"
         : _i == 2 ? "shard,kept,resume,data="
                   : "the same optimizers and rates, and this one has --optimizer ");
    if (_i >= 3)
        says(says_of_rates[_i - 3]);
    if (_i == 1)
        says("another rank has none, and has said so");
}
END_TEST

/* --patience keeps the best model, with shards of its own. */
START_TEST(the_best_model_has_its_shards)
{
    struct how how = {_i ? 2 : 0, TABLES_SHARD, NULL, false};
    struct train_options o = options_of(&how);
    char best_file[128];
    snprintf(best_file, sizeof best_file, "%s.best", model_file);
    o.epochs = 40;
    o.lr = 0.2;
    o.eval_every = 4000;
    o.patience = 3;
    o.checkpoint_every = 0.05;
    run_to_end(&how, &o);
    ck_assert(isfinite(evaluated(best_file)));
    ck_assert(isfinite(evaluated(model_file)));
    ck_assert_uint_le(files_like(".rows-*"), 3 * (size_t)(how.ranks ? how.ranks : 1));
}
END_TEST

int main(void)
{
    find_self();
    make_clicks();
    TCase *moves_case = new_case("moves", 60), *files = new_case("files", 60),
          *grown = new_case("grown", 60), *kills = new_case("kills", 60),
          *faults = new_case("faults", 60), *coming = new_case("coming", 180);
    tcase_add_checked_fixture(moves_case, set_up, remove_folder);
    tcase_add_loop_test(moves_case, a_run_goes_on_with_the_same_model, few(0, 2), few(N(chains), 3));
    tcase_add_checked_fixture(files, set_up, remove_folder);
    tcase_add_loop_test(files, a_merged_checkpoint_has_the_same_bits, 0, few(N(optimizers), 1));
    tcase_add_loop_test(files, info_tells_of_shards, 0, 2);
    tcase_add_test(files, resume_needs_no_model);
    tcase_add_loop_test(files, each_host_may_have_its_own_folder, 0, few(2, 1));
    tcase_add_loop_test(files, hosts_that_begin_otherwise_are_refused, 0, few(6, 1));
    tcase_add_loop_test(files, the_best_model_has_its_shards, 0, few(2, 1));
    tcase_add_checked_fixture(grown, set_up, remove_folder);
    tcase_add_loop_test(grown, a_grown_run_goes_on_with_the_same_bits, 0, few(N(optimizers), 1));
    tcase_add_test(grown, a_merged_one_has_its_rows_by_table);
    tcase_add_test(grown, tables_of_the_other_kind_are_refused);
    tcase_add_test(grown, a_bad_merged_file_is_refused);
    tcase_add_test(grown, less_memory_is_told);
    tcase_add_test(grown, info_tells_of_collisions);
    tcase_add_checked_fixture(coming, set_up, remove_folder);
    tcase_add_loop_test(coming, hosts_come_and_leave, 0, few(2, 1));
    tcase_add_loop_test(coming, a_host_dies_and_comes_again, 0, few(2, 1));
    tcase_add_loop_test(coming, a_first_host_that_comes_again_knows_whose_the_file_is, 0,
                        few(2, 1));
    tcase_add_loop_test(coming, a_rank_that_had_died_before_is_not_awaited, 0, few(1, 0));
    tcase_add_loop_test(coming, a_late_host_is_the_first_one, 0, few(1, 0));
    tcase_add_checked_fixture(kills, set_up, remove_folder);
    tcase_add_loop_test(kills, a_killed_run_goes_on, 0, few(3, 1));
    tcase_add_checked_fixture(faults, set_up, remove_folder);
    tcase_add_test(faults, a_full_disk_on_one_host_is_told);
    tcase_add_loop_test(faults, a_torn_shard_is_not_gone_on_from, 0, 2);
    return THREADS_ALONE ? run_cases(coming, NULL)
                         : run_cases(moves_case, files, grown, coming, kills, faults, NULL);
}
