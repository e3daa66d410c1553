/* SPDX-License-Identifier: MIT */
/* Shards of a checkpoint as files: what is written while rows are born is read again, row by row;
 * torn shards, those of another checkpoint or model, and those that are not there are refused with
 * the reason; older ones are removed, and no others. */
#include "harness/folder.h"
#include "harness/suite.h"
#include "run/shards.h"

#include <errno.h>
#include <math.h>
#include <sys/resource.h>
#include <sys/stat.h>

enum { ROWS = 5000, WIDTH = 3, RECORD = 4 };

static const struct shard_shape shape = {.rows = ROWS, .width = WIDTH, .record = RECORD, .seed = 5,
                                         .optimizer = "rowwise-adagrad"};

/* A table as an owner has it: born rows, in an order that is not theirs by number. */
static struct table {
    bool born[ROWS];
    int calls, births_at;       /* from this call on rows are born; 0: none are */
    int fails_at;
    size_t stops_at;            /* rows that it has at most; 0: all */
    float bad;                  /* is added to a value of row 77 */
} table;

static uint64_t row_at(uint64_t at)
{
    return at * 7 % ROWS;
}

static float value_of(uint64_t row, size_t i)
{
    return (float)row + (float)i / 8;
}

static descant_status next(void *of, uint64_t *at, size_t room, uint64_t *rows, float *records,
                           size_t *n)
{
    struct table *t = of;
    t->calls++;
    if (t->fails_at && t->calls >= t->fails_at)
        return DESCANT_ENDED;
    if (t->births_at && t->calls >= t->births_at)
        for (int k = 0; k < 40; k++)
            t->born[(t->calls * 131 + k * 61) % ROWS] = true;
    for (*n = 0; *at < (t->stops_at ? t->stops_at : ROWS) && *n < room && *n < 300; ++*at) {
        uint64_t row = row_at(*at);
        if (!t->born[row])
            continue;
        for (size_t i = 0; records && i < RECORD; i++)
            records[*n * RECORD + i] = value_of(row, i) + (row == 77 && i == 1 ? t->bad : 0);
        rows[(*n)++] = row;
    }
    return DESCANT_OK;
}

static const struct shard_source source = {&shape, next, &table};
static uint64_t counts[3];
static struct shards three = {.generation = 12, .id = 0xabc, .n = 3, .base = "m.st",
                              .rows = counts};

static void set_up(void)
{
    make_folder();
    table = (struct table){0};
    for (int k = 0; k < ROWS; k++)
        table.born[k] = k % 5 == 2;
    memset(counts, 0, sizeof counts);
}

static const char *file(void)
{
    return in_folder("m.st");
}

static const char *name_of(const struct shards *s, int k)
{
    static char paths[3][PATH_MAX];
    shards_path(s, file(), k, paths[k], sizeof paths[k]);
    return paths[k];
}

static void write_shard(const struct shards *s, int k)
{
    descant_status status = shard_write(s, file(), k, &source, &counts[k], NULL);
    ck_assert_msg(status == DESCANT_OK, "%s", descant_last_error());
}

/* --- names --- */

START_TEST(names_tell_which_one_it_is)
{
    char path[PATH_MAX];
    shards_path(&three, "a/b/m.st.previous", 1, path, sizeof path);
    ck_assert_str_eq(path, "a/b/m.st.rows-00012-2-of-3.safetensors");
    shards_path(&three, "m.st", 2, path, sizeof path);
    ck_assert_str_eq(path, "m.st.rows-00012-3-of-3.safetensors");
    ck_assert_int_eq(mkdir(in_folder("there"), 0777), 0);
    ck_assert_int_eq(symlink("there/m.st", in_folder("link")), 0);
    shards_path(&three, in_folder("link"), 0, path, sizeof path);
    ck_assert_str_eq(path, in_folder("there/m.st.rows-00012-1-of-3.safetensors"));
}
END_TEST

/* FILE's words are read as they were written; others are refused, however they are wrong. */
static descant_status said(const char *text, size_t n_rows, struct shards *s)
{
    uint64_t rows[8] = {1, 2, 3};
    const struct safetensor t = {.name = "descant.shards", .type = SAFETENSORS_U64, .n_dims = 1,
                                 .dims = {n_rows}, .data = rows, .bytes = n_rows * 8};
    const struct safetensors_text texts[] = {{"shards", text}};
    struct safetensors *of;
    ck_assert_int_eq(safetensors_write(file(), NULL, &t, 1, texts, text ? 1 : 0, NULL), DESCANT_OK);
    ck_assert_int_eq(safetensors_open(&of, file(), NULL), DESCANT_OK);
    descant_status status = shards_of(of, file(), s, NULL);
    safetensors_close(of);
    return status;
}

START_TEST(what_file_says_is_checked)
{
    static const char *const bad[] = {
        "", "12", "12 3", "12 3 abc", "12 3 abc ", "12 0 abc m", "12 -3 abc m", "12 1025 abc m",
        "12 3 xyz m", "12 3 abc ../m", "12 3 abc /etc/m", "16777216 3 abc m", "12 2 abc m",
        "12 4 abc m"};
    struct shards s;
    char text[400];
    shards_text(&three, text, sizeof text);
    ck_assert_int_eq(said(text, 3, &s), DESCANT_OK);
    ck_assert(s.n == 3 && s.id == 0xabc && s.generation == 12);
    ck_assert_str_eq(s.base, "m.st");
    ck_assert_int_eq(said("12 3 abc my model.st", 3, &s), DESCANT_OK);
    ck_assert_str_eq(s.base, "my model.st");
    ck_assert_int_eq(said(NULL, 3, &s), DESCANT_OK);
    ck_assert_int_eq(s.n, 0);
    for (int k = 0; k < N(bad); k++)
        ck_assert_msg(said(bad[k], 3, &s) == DESCANT_CORRUPT, "'%s' is taken", bad[k]);
    char name[300];
    memset(name, 'x', sizeof name);
    name[299] = 0;
    snprintf(text, sizeof text, "12 3 abc %s", name);
    ck_assert_int_eq(said(text, 3, &s), DESCANT_CORRUPT);
}
END_TEST

/* Against the owners of all slices. */
START_TEST(a_rank_needs_the_shards_with_its_rows)
{
    static const int sizes[] = {1, 2, 3, 4, 5, 7, 8, 12, 16, 64, 100, 1000, 1023, 1024};
    for (int a = 0; a < N(sizes); a++)
        for (int b = 0; b < N(sizes); b++) {
            int n = sizes[a], size = sizes[b], needs = 0;
            for (int k = 0; k < n; k += 1 + n / 9)
                for (int rank = 0; rank < size; rank += 1 + size / 9) {
                    bool wants = false;
                    for (int slice = 0; slice < 1024; slice++)
                        wants |= slice % n == k && slice % size == rank;
                    ck_assert_int_eq(shard_needed(k, n, rank, size), wants);
                    needs += wants;
                }
            ck_assert_int_gt(needs, 0);
        }
    ck_assert(!shard_needed(3, 3, 0, 1));
}
END_TEST

/* --- written and read --- */

static bool seen[ROWS];

static descant_status see(void *of, const uint64_t *rows, size_t n, const float *records)
{
    size_t *all = of;
    *all += n;
    for (size_t k = 0; k < n; k++) {
        ck_assert_msg(!seen[rows[k]], "row %llu comes twice", (unsigned long long)rows[k]);
        seen[rows[k]] = true;
        for (size_t i = 0; i < RECORD; i++)
            ck_assert_float_eq(records[k * RECORD + i], value_of(rows[k], i));
    }
    return DESCANT_OK;
}

/* All rows that were there when the writing began, whatever is born meanwhile. */
START_TEST(rows_that_are_born_meanwhile_do_no_harm)
{
    static bool first[ROWS];
    struct shard shard;
    size_t all = 0;
    memset(seen, 0, sizeof seen);
    memcpy(first, table.born, sizeof first);
    table.births_at = _i;
    write_shard(&three, 1);
    int calls = table.calls;
    ck_assert_int_eq(shard_open(&shard, &three, file(), 1, &shape, NULL), DESCANT_OK);
    ck_assert_int_eq(shard_each(&shard, see, &all, NULL), DESCANT_OK);
    shard_close(&shard);
    ck_assert_uint_eq(all, counts[1]);
    ck_assert_uint_ge(all, ROWS / 5);
    for (int k = 0; k < ROWS; k++)
        ck_assert(seen[k] || !first[k]);
    if (_i == 0 || _i > 5)      /* none was born while rows were counted */
        ck_assert_mem_eq(seen, first, sizeof first);
    ck_assert_int_gt(calls, 12);
    ck_assert(_i == 0 || memcmp(first, table.born, sizeof first) != 0);
    no_file(in_folder("m.st.rows-00012-2-of-3.safetensors.tmp"));
}
END_TEST

START_TEST(a_shard_may_have_no_rows)
{
    struct shard shard;
    size_t all = 0;
    memset(table.born, 0, sizeof table.born);
    write_shard(&three, 0);
    ck_assert_uint_eq(counts[0], 0);
    ck_assert_int_eq(shard_open(&shard, &three, file(), 0, &shape, NULL), DESCANT_OK);
    ck_assert_int_eq(shard_each(&shard, see, &all, NULL), DESCANT_OK);
    ck_assert_uint_eq(all, 0);
    shard_close(&shard);
}
END_TEST

/* The shard of before stays, and nothing else. */
START_TEST(what_cannot_be_written_leaves_what_was_there)
{
    struct shard shard;
    uint64_t n = 0;
    write_shard(&three, 0);
    int calls = table.calls;
    for (int k = 1; k <= calls; k++) {
        table.calls = 0;
        table.fails_at = k;
        ck_assert_int_ne(shard_write(&three, file(), 0, &source, &n, NULL), DESCANT_OK);
        ck_assert_uint_eq(n, 0);
    }
    table.fails_at = 0;
    table.bad = NAN;
    ck_assert_int_eq(shard_write(&three, file(), 0, &source, &n, NULL), DESCANT_INVALID);
    table.bad = 0;
    for (int k = 1; k < 5; k++) {
        memory_fail_at(k);
        descant_status status = shard_write(&three, file(), 0, &source, &n, NULL);
        ck_assert_int_eq(status, k < 5 ? DESCANT_MEMORY : DESCANT_OK);
    }
    memory_fail_at(0);
    struct rlimit limit = {10000, 10000};
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(shard_write(&three, file(), 0, &source, &n, NULL), DESCANT_SYSTEM);
    no_file(in_folder("m.st.rows-00012-1-of-3.safetensors.tmp"));
    ck_assert_int_eq(shard_open(&shard, &three, file(), 0, &shape, NULL), DESCANT_OK);
    ck_assert_uint_eq(shard.n, ROWS / 5);
    shard_close(&shard);
}
END_TEST

/* --- refused --- */

static void refuse(const struct shards *s, int k, const struct shard_shape *as,
                   descant_status status, const char *says)
{
    struct shard shard;
    ck_assert_int_eq(shard_open(&shard, s, file(), k, as, NULL), status);
    ck_assert_ptr_null(shard.file);
    ck_assert_msg(strstr(descant_last_error(), says) != NULL, "not '%s': %s", says,
                  descant_last_error());
}

START_TEST(other_shards_are_refused)
{
    struct shard_shape as = shape;
    struct shards s = three;
    refuse(&three, 1, &shape, DESCANT_SYSTEM, "copy them there");
    write_shard(&three, 1);
    s.id = 0xabd;
    refuse(&s, 1, &shape, DESCANT_CORRUPT, "another checkpoint, whose id is 0000000000000abc");
    ck_assert_int_eq(rename(name_of(&three, 1), name_of(&three, 2)), 0);
    refuse(&three, 2, &shape, DESCANT_CORRUPT, "is shard 2 of 3 of another");
    write_shard(&three, 1);
    as.rows++;
    refuse(&three, 1, &as, DESCANT_CORRUPT, "another model: its tables have 5000 rows of 3 floats");
    as = shape;
    as.width++;
    refuse(&three, 1, &as, DESCANT_CORRUPT, "another model");
    as = shape;
    as.optimizer = "adagrad";
    refuse(&three, 1, &as, DESCANT_CORRUPT, "--table-optimizer was rowwise-adagrad, not adagrad");
    as = shape;
    as.record++;
    refuse(&three, 1, &as, DESCANT_CORRUPT, "do not fit");
    counts[1]++;
    refuse(&three, 1, &shape, DESCANT_CORRUPT, "has 1000 rows, its checkpoint has noted 1001");
    put_file(name_of(&three, 1), "hello", 5);
    refuse(&three, 1, &shape, DESCANT_CORRUPT, "safetensors");
}
END_TEST

START_TEST(a_torn_shard_is_refused_at_every_length)
{
    struct shard shard;
    size_t n;
    for (int k = 20; k < ROWS; k++)
        table.born[k] = false;
    write_shard(&three, 0);
    char *all = get_file(name_of(&three, 0), &n);
    for (size_t length = 0; length < n; length++) {
        put_file(name_of(&three, 0), all, length);
        ck_assert_int_eq(shard_open(&shard, &three, file(), 0, &shape, NULL), DESCANT_CORRUPT);
    }
    free(all);
}
END_TEST

/* Bytes of rows and records, not of the head. */
static void poke(const char *path, long back, const void *bytes, size_t n)
{
    FILE *out = fopen(path, "re+");
    ck_assert(out && fseek(out, back, SEEK_END) == 0 && fwrite(bytes, 1, n, out) == n);
    ck_assert_int_eq(fclose(out), 0);
}

START_TEST(bad_rows_and_values_are_refused)
{
    struct shard shard;
    size_t all = 0;
    const uint64_t row = ROWS;
    const float bad[] = {NAN, INFINITY};
    write_shard(&three, 0);
    poke(name_of(&three, 0), -(long)sizeof(float), &bad[_i], sizeof *bad);
    ck_assert_int_eq(shard_open(&shard, &three, file(), 0, &shape, NULL), DESCANT_OK);
    ck_assert_int_eq(shard_each(&shard, see, &all, NULL), DESCANT_CORRUPT);
    ck_assert_ptr_nonnull(strstr(descant_last_error(), "NaN or Inf"));
    shard_close(&shard);
    long records = (long)(counts[0] * RECORD * sizeof(float));
    poke(name_of(&three, 0), -records - (long)sizeof row, &row, sizeof row);
    refuse(&three, 0, &shape, DESCANT_CORRUPT, "has row 5000, the model has 5000");
}
END_TEST

/* --- removed --- */

static void touch(const char *name)
{
    put_file(in_folder(name), "x", 1);
}

static bool is_there(const char *name)
{
    return access(in_folder(name), F_OK) == 0;
}

START_TEST(older_ones_are_removed_and_no_others)
{
    static const char *const go[] = {
        "m.st.rows-00001-1-of-3.safetensors", "m.st.rows-00003-1-of-3.safetensors",
        "m.st.rows-00003-3-of-4.safetensors", "m.st.rows-00009-1-of-2.safetensors.tmp"};
    static const char *const stay[] = {
        "m.st.rows-00002-1-of-3.safetensors", "m.st.rows-00005-1-of-3.safetensors",
        "m.st.rows-00003-2-of-3.safetensors", "m.st.rows-00003-0-of-3.safetensors",
        "m.st.rows-00003-4-of-3.safetensors", "m.st.rows-00003-1-of-3.safetensors.old",
        "m.st.rows-00003-1-of-3", "other.m.st.rows-00003-1-of-3.safetensors",
        "m.st2.rows-00003-1-of-3.safetensors", "m.st", "m.st.previous", "m.st.tmp",
        "m.st.rows-00009-2-of-2.safetensors.tmp", "m.st.rows-x-1-of-3.safetensors"};
    const uint64_t kept[] = {2, 9};
    for (int k = 0; k < N(go); k++)
        touch(go[k]);
    for (int k = 0; k < N(stay); k++)
        touch(stay[k]);
    ck_assert_uint_eq(shards_last(file()), 5);
    shards_tidy(file(), 0, 2, 4, kept, 2);
    for (int k = 0; k < N(go); k++)
        ck_assert_msg(!is_there(go[k]), "%s is left", go[k]);
    for (int k = 0; k < N(stay); k++)
        ck_assert_msg(is_there(stay[k]), "%s is gone", stay[k]);
    shards_tidy(in_folder("no/folder"), 0, 2, 4, kept, 2);
    ck_assert_uint_eq(shards_last(in_folder("no/folder")), 0);
}
END_TEST

int main(void)
{
    TCase *shards = new_case("shards", 60);
    tcase_add_checked_fixture(shards, set_up, remove_folder);
    tcase_add_test(shards, names_tell_which_one_it_is);
    tcase_add_test(shards, what_file_says_is_checked);
    tcase_add_test(shards, a_rank_needs_the_shards_with_its_rows);
    tcase_add_loop_test(shards, rows_that_are_born_meanwhile_do_no_harm, 0, 14);
    tcase_add_test(shards, a_shard_may_have_no_rows);
    tcase_add_test(shards, what_cannot_be_written_leaves_what_was_there);
    tcase_add_test(shards, other_shards_are_refused);
    tcase_add_test(shards, a_torn_shard_is_refused_at_every_length);
    tcase_add_loop_test(shards, bad_rows_and_values_are_refused, 0, 2);
    tcase_add_test(shards, older_ones_are_removed_and_no_others);
    return run_cases(shards, NULL);
}
