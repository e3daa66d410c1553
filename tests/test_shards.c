/* SPDX-License-Identifier: MIT */
/* Shards of a checkpoint as files: what is written while rows are born is read again, row by row;
 * torn shards, those of another checkpoint or model, and those that are not there are refused with
 * the reason; older ones are removed, and no others. And the rule of a cut through a run, whose
 * shards are of slightly different moments, in many orders of events. */
#include "fabric/agree.h"
#include "harness/folder.h"
#include "harness/suite.h"
#include "run/saved_rows.h"
#include "run/shards.h"
#include "train/cut.h"
#include "train/start.h"

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
    ck_assert_int_eq(said("12 3 abc  m.st", 3, &s), DESCANT_OK);
    ck_assert_str_eq(s.base, " m.st");
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

static descant_status within(void *of, const uint64_t *rows, size_t n, const float *records)
{
    size_t *all = of;
    *all += n;
    for (size_t k = 0; k < n; k++)
        ck_assert_uint_lt(rows[k], ROWS);
    for (size_t k = 0; k < n * RECORD; k++)
        ck_assert(isfinite(records[k]));
    return DESCANT_OK;
}

START_TEST(mutated_shards_do_no_harm)
{
    struct shard shard;
    size_t n, all = 0;
    int refused = 0;
    struct rng rng;
    rng_init(&rng, 3);
    for (int k = 100; k < ROWS; k++)
        table.born[k] = false;
    write_shard(&three, 0);
    char *whole = get_file(name_of(&three, 0), &n), *copy = malloc(n);
    for (int round = 0; round < pick(2000, 2000, 200); round++) {
        memcpy(copy, whole, n);
        for (uint64_t k = rng_next(&rng) % 4 + 1; k > 0; k--)
            copy[rng_next(&rng) % n] =
                round % 2 ? (char)rng_next(&rng) : "0123456789"[rng_next(&rng) % 10];
        put_file(name_of(&three, 0), copy, n);
        if (shard_open(&shard, &three, file(), 0, &shape, NULL) != DESCANT_OK) {
            refused++;
            continue;
        }
        refused += shard_each(&shard, within, &all, NULL) != DESCANT_OK;
        shard_close(&shard);
    }
    ck_assert(refused > pick(300, 300, 30) && all > 0);
    free(copy);
    free(whole);
}
END_TEST

/* --- tables that grow --- */

enum { SLOTS = 3000, TABLES = 3 };

static const struct shard_shape growing = {.rows = (uint64_t)TABLES << 32, .grows = true,
                                           .width = 2, .record = 3, .seed = 5,
                                           .optimizer = "rowwise-adagrad"};

/* Rows come, go, and come again at another place, while they are written. */
static struct {
    uint64_t ids[SLOTS];        /* 0: none */
    float version[SLOTS];
    int calls, fails_at;
    bool moves;
    float bad;
} slots;

static uint64_t id_at(int slot)
{
    return (uint64_t)(slot % TABLES) << 32 | (1 + (uint32_t)slot * 2654435761u);
}

static void move_some(void)
{
    for (int k = 0; k < 50; k++) {
        int from = (slots.calls * 977 + k * 331) % SLOTS, to = (from * 7 + k) % SLOTS;
        if (slots.ids[from] && !slots.ids[to]) {
            slots.ids[to] = slots.ids[from];
            slots.version[to] = slots.version[from] + 1;
            slots.ids[from] = 0;
        }
    }
}

static descant_status next_slot(void *of, uint64_t *at, size_t room, uint64_t *rows, float *records,
                                size_t *n)
{
    (void)of;
    if (++slots.calls == slots.fails_at)
        return log_fail(NULL, DESCANT_ENDED, "an owner has gone");
    if (slots.moves)
        move_some();
    for (*n = 0; *at < SLOTS && *n < room && *n < 100; ++*at) {
        if (!slots.ids[*at])
            continue;
        ck_assert_ptr_nonnull(records);
        float *record = records + *n * 3;
        record[0] = (float)(slots.ids[*at] % 1000);
        record[1] = slots.version[*at];
        record[2] = slots.bad;
        rows[(*n)++] = slots.ids[*at];
    }
    return DESCANT_OK;
}

static const struct shard_source of_slots = {&growing, next_slot, NULL};

/* n rows at every other slot. */
static void fill_slots(int n)
{
    memset(&slots, 0, sizeof slots);
    for (int k = 0; k < n; k++)
        slots.ids[2 * k] = id_at(2 * k);
}

struct found {
    size_t n;
    uint64_t rows[SLOTS];
    float version[SLOTS];
};

static descant_status find(void *of, const uint64_t *rows, size_t n, const float *records)
{
    struct found *f = of;
    for (size_t k = 0; k < n; k++) {
        ck_assert_float_eq(records[3 * k], (float)(rows[k] % 1000));
        f->rows[f->n] = rows[k];
        f->version[f->n++] = records[3 * k + 1];
    }
    return DESCANT_OK;
}

/* Each number stands beside its own record, whether the number of floats is even or odd; one that
 * comes again is newer. */
START_TEST(rows_that_come_and_go_do_no_harm)
{
    static struct found f;
    struct shard shard;
    int again = 0;
    memset(&f, 0, sizeof f);
    fill_slots(1000 + _i % 2);
    slots.moves = _i >= 2;
    ck_assert_int_eq(shard_write(&three, file(), 1, &of_slots, &counts[1], NULL), DESCANT_OK);
    ck_assert_int_eq(shard_open(&shard, &three, file(), 1, &growing, NULL), DESCANT_OK);
    ck_assert_int_eq(shard_each(&shard, find, &f, NULL), DESCANT_OK);
    shard_close(&shard);
    ck_assert_uint_eq(f.n, counts[1]);
    if (!slots.moves)
        ck_assert_uint_eq(f.n, 1000 + (size_t)_i % 2);
    for (size_t a = 0; a < f.n; a++)
        for (size_t b = 0; b < a; b++)
            if (f.rows[a] == f.rows[b]) {
                ck_assert_float_gt(f.version[a], f.version[b]);
                again++;
            }
    ck_assert(slots.moves == (again > 0));
    no_file(in_folder("m.st.rows-00012-2-of-3.safetensors.tmp"));
}
END_TEST

enum { MANY = 150000 };

static descant_status next_of_many(void *of, uint64_t *at, size_t room, uint64_t *rows,
                                   float *records, size_t *n)
{
    (void)of;
    for (*n = 0; *at < MANY && *n < room; ++*at, ++*n) {
        rows[*n] = *at;
        records[3 * *n] = (float)*at;
        records[3 * *n + 1] = records[3 * *n + 2] = 0;
    }
    return DESCANT_OK;
}

static descant_status in_order(void *of, const uint64_t *rows, size_t n, const float *records)
{
    uint64_t *next_row = of;
    for (size_t k = 0; k < n; k++, ++*next_row)
        ck_assert(rows[k] == *next_row && records[3 * k] == (float)*next_row);
    return DESCANT_OK;
}

/* More than the writer notes in one block of numbers. */
START_TEST(many_rows_are_in_order)
{
    const struct shard_source many = {&growing, next_of_many, NULL};
    struct shard shard;
    uint64_t all = 0;
    ck_assert_int_eq(shard_write(&three, file(), 0, &many, &counts[0], NULL), DESCANT_OK);
    ck_assert_int_eq(shard_open(&shard, &three, file(), 0, &growing, NULL), DESCANT_OK);
    ck_assert_int_eq(shard_each(&shard, in_order, &all, NULL), DESCANT_OK);
    ck_assert_uint_eq(all, MANY);
    shard_close(&shard);
}
END_TEST

START_TEST(a_grown_shard_may_have_no_rows)
{
    struct shard shard;
    fill_slots(0);
    ck_assert_int_eq(shard_write(&three, file(), 0, &of_slots, &counts[0], NULL), DESCANT_OK);
    ck_assert_int_eq(shard_open(&shard, &three, file(), 0, &growing, NULL), DESCANT_OK);
    ck_assert_uint_eq(shard.n, 0);
    shard_close(&shard);
}
END_TEST

/* Whatever fails, the shard of before stays, and nothing else. */
START_TEST(what_cannot_be_poured_leaves_what_was_there)
{
    struct shard shard;
    uint64_t n = 0;
    fill_slots(1500);
    ck_assert_int_eq(shard_write(&three, file(), 0, &of_slots, &counts[0], NULL), DESCANT_OK);
    int calls = slots.calls;
    for (int k = 1; k <= calls; k++) {
        slots.calls = 0;
        slots.fails_at = k;
        ck_assert_int_eq(shard_write(&three, file(), 0, &of_slots, &n, NULL), DESCANT_ENDED);
        ck_assert_ptr_nonnull(strstr(descant_last_error(), "cannot be had: an owner has gone"));
    }
    slots.fails_at = 0;
    slots.bad = NAN;
    ck_assert_int_eq(shard_write(&three, file(), 0, &of_slots, &n, NULL), DESCANT_INVALID);
    ck_assert_ptr_nonnull(strstr(descant_last_error(), "has NaN or Inf"));
    slots.bad = 0;
    for (int k = 1; k <= 4; k++) {      /* records, the file, its head, numbers */
        memory_fail_at(k);
        ck_assert_int_eq(shard_write(&three, file(), 0, &of_slots, &n, NULL), DESCANT_MEMORY);
    }
    memory_fail_at(0);
    ck_assert_uint_eq(n, 0);
    struct rlimit limit = {_i ? 22000 : 10000, 40000};  /* within records, or numbers */
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(shard_write(&three, file(), 0, &of_slots, &n, NULL), DESCANT_SYSTEM);
    ck_assert_ptr_nonnull(strstr(descant_last_error(), "File too large"));
    no_file(in_folder("m.st.rows-00012-1-of-3.safetensors.tmp"));
    ck_assert_int_eq(shard_open(&shard, &three, file(), 0, &growing, NULL), DESCANT_OK);
    ck_assert_uint_eq(shard.n, 1500);
    shard_close(&shard);
}
END_TEST

/* FILE, which names one shard. */
static struct safetensors *file_of_shard(const struct shards *s)
{
    char text[400];
    struct safetensors *of;
    const struct safetensor t = {.name = "descant.shards", .type = SAFETENSORS_U64, .n_dims = 1,
                                 .dims = {1}, .data = s->rows, .bytes = 8};
    shards_text(s, text, sizeof text);
    const struct safetensors_text texts[] = {
        {"shards", text}, {"table-optimizer", "rowwise-adagrad"}, {"seed", "5"}};
    ck_assert_int_eq(safetensors_write(file(), NULL, &t, 1, texts, N(texts), NULL), DESCANT_OK);
    ck_assert_int_eq(safetensors_open(&of, file(), NULL), DESCANT_OK);
    return of;
}

static int ascending(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* An index of the shard finds each row once, in its newest state. */
START_TEST(saved_rows_are_found_by_their_ids)
{
    static struct found f;
    static uint64_t sorted[SLOTS];
    struct shards one = {.generation = 3, .id = 7, .n = 1, .base = "m.st", .rows = counts};
    const struct model_shape as = {.kind = MODEL_DLRM, .n_dense = 1, .n_fields = TABLES,
                                   .n_classes = 1, .grows = true, .width = 2};
    const struct optimizer optimizer = {.rows = ROWS_ROWWISE_ADAGRAD};
    struct model *model;
    struct saved_rows *rows;
    struct shard shard;
    memset(&f, 0, sizeof f);
    fill_slots(1001);
    slots.moves = true;
    ck_assert_int_eq(shard_write(&one, file(), 0, &of_slots, &counts[0], NULL), DESCANT_OK);
    ck_assert_int_eq(shard_open(&shard, &one, file(), 0, &growing, NULL), DESCANT_OK);
    ck_assert_int_eq(shard_each(&shard, find, &f, NULL), DESCANT_OK);
    shard_close(&shard);
    ck_assert_int_eq(model_create(&model, &as, NULL), DESCANT_OK);
    struct safetensors *of = file_of_shard(&one);
    const struct checkpoint c = {.file = of, .path = file(), .shards = one};
    for (int k = 1; k <= 3; k++) {
        memory_fail_at(k);
        ck_assert_int_eq(saved_rows_open(&rows, &c, model, &optimizer), DESCANT_MEMORY);
    }
    memory_fail_at(0);
    ck_assert_int_eq(saved_rows_open(&rows, &c, model, &optimizer), DESCANT_OK);
    size_t n = saved_rows_count(rows);
    ck_assert(n < f.n && n > f.n / 2);
    saved_rows_sorted(rows, sorted);
    for (size_t k = 1; k < n; k++)
        ck_assert_uint_lt(sorted[k - 1], sorted[k]);
    for (size_t k = 0; k < f.n; k++) {
        const float *state, *row = saved_rows_at(rows, f.rows[k], &state);
        ck_assert(row && row[0] == (float)(f.rows[k] % 1000) && row[1] >= f.version[k]);
        ck_assert_ptr_eq(state, row + 2);
        ck_assert_ptr_nonnull(bsearch(&f.rows[k], sorted, n, sizeof *sorted, ascending));
        ck_assert_ptr_null(saved_rows_at(rows, f.rows[k] ^ UINT64_C(1) << 31, NULL));
    }
    saved_rows_close(rows);
    safetensors_close(of);
    model_destroy(model);
}
END_TEST

START_TEST(other_kinds_of_shards_are_refused)
{
    struct shard_shape as = growing;
    struct shards s = three;
    const uint64_t row = growing.rows;
    size_t n;
    fill_slots(21);
    ck_assert_int_eq(shard_write(&three, file(), 1, &of_slots, &counts[1], NULL), DESCANT_OK);
    refuse(&three, 1, &shape, DESCANT_CORRUPT, "is of tables that grow, the model's have a number");
    as.rows = UINT64_C(1) << 32;
    refuse(&three, 1, &as, DESCANT_CORRUPT, "another model");
    s.generation++;
    ck_assert_int_eq(link(in_folder("m.st.rows-00012-2-of-3.safetensors"), name_of(&s, 1)), 0);
    refuse(&s, 1, &growing, DESCANT_CORRUPT, "of another checkpoint");
    refuse(&three, 2, &growing, DESCANT_SYSTEM, "copy them there");
    char *all = get_file(name_of(&three, 1), &n), *name;
    poke(name_of(&three, 1), -(long)sizeof row, &row, sizeof row);
    refuse(&three, 1, &growing, DESCANT_CORRUPT, "has row 12884901888, the model has");
    for (size_t length = 0; length < n; length++) {
        struct shard shard;
        put_file(name_of(&three, 1), all, length);
        ck_assert_int_eq(shard_open(&shard, &three, file(), 1, &growing, NULL), DESCANT_CORRUPT);
    }
    name = strstr(all + 8, "\"grows\"");
    ck_assert_ptr_nonnull(name);
    name[1] = 'f';                      /* numbered, with the same numbers */
    put_file(name_of(&three, 1), all, n);
    refuse(&three, 1, &growing, DESCANT_CORRUPT, "is of tables of a number of rows");
    free(all);
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
        "m.st.rows-00003-3-of-4.safetensors", "m.st.rows-00003-2-of-3.safetensors",
        "m.st.rows-00004-1-of-2.safetensors.tmp", "m.st.rows-00002-2-of-2.safetensors.tmp"};
    static const char *const stay[] = {
        "m.st.rows-00002-1-of-3.safetensors", "m.st.rows-00005-1-of-3.safetensors",
        "m.st.rows-00003-0-of-3.safetensors",
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
    shards_tidy(file(), 4, kept, 2);
    for (int k = 0; k < N(go); k++)
        ck_assert_msg(!is_there(go[k]), "%s is left", go[k]);
    for (int k = 0; k < N(stay); k++)
        ck_assert_msg(is_there(stay[k]), "%s is gone", stay[k]);
    shards_tidy(in_folder("no/folder"), 4, kept, 2);
    ck_assert_uint_eq(shards_last(in_folder("no/folder")), 0);
}
END_TEST

/* --- cuts --- */

/* A run of some ranks: parts of rows that move, pushes on their way, files on disk, ranks that
 * come, leave and die. Whatever happens in which order, a cut's shards have each part once, with
 * all that was pushed before it was ordered, FILE and FILE.previous have their shards, and all
 * end. The leader may die in a cut: then no rank holds its rows for that cut, and ranks that come
 * before the leader does have heard of no death. */
enum { RANKS = 5, PARTS = 6, CUTS = 40 };
enum presence { AWAY, CONNECTED, SHOWN, LEAVES, LEFT_IT, DEAD };

struct rank {
    enum presence is;                   /* CONNECTED: it may get rows, and has no mark yet */
    bool runs, looked, holds;           /* looked: it has a view; holds: nothing is given */
    bool saw, doubts;                   /* it was there when the leader died; it has heard so */
    struct cut_mark mine, shown;
    struct cut_mark was[2];             /* shown, one change ago, and two */
    struct cut_mark seen;               /* by the leader: numbers do not fall again */
    struct cut_self self;
    struct cut_order view;
    int pushed[PARTS], stepped[PARTS];
};

static struct world {
    struct rng rng;
    int n, leader;
    struct rank ranks[RANKS];
    int owner[PARTS], from[PARTS];              /* from: it is on its way to its owner; -1 */
    struct cut_order order, last_order;         /* the row; as it was before its last change */
    int at_order[RANKS][PARTS];                 /* pushed when the cut was ordered */
    uint64_t cut, tidy;                         /* under way; to be ordered */
    uint64_t file, previous;                    /* generations that FILE and FILE.previous name */
    int files[CUTS + 2][RANKS][PARTS];          /* parts in the shards of each rank */
    bool down;                          /* the leader is dead, */
    int down_for;                       /* for so many steps */
    int lost;                           /* times that the last order was */
    int made, failed, wanted, moved, came, left, missed, replaced, died, let_go;
} w;

static int roll(int n)
{
    return (int)(rng_next(&w.rng) % (uint64_t)n);
}

static bool alive(const struct rank *r)
{
    return r->is == CONNECTED || r->is == SHOWN || r->is == LEAVES;
}

static int parts_of(int rank)
{
    int n = 0;
    for (int p = 0; p < PARTS; p++)
        n += w.owner[p] == rank;
    return n;
}

static bool gives_any(int rank)
{
    for (int p = 0; p < PARTS; p++)
        if (w.from[p] == rank)
            return true;
    return false;
}

/* As a reader may find a row that is being changed: each number as it is, or as it was. */
static void see_order(struct cut_order *to)
{
    const struct cut_order *is = &w.order, *was = roll(2) ? &w.last_order : is;
    *to = *is;
    to->cut = roll(2) ? is->cut : was->cut;
    to->settle = roll(2) ? is->settle : was->settle;
    to->round = roll(2) ? is->round : was->round;
    to->write = roll(2) ? is->write : was->write;
    to->done = roll(2) ? is->done : was->done;
    to->tidy = roll(2) ? is->tidy : was->tidy;
    to->over = roll(2) ? is->over : was->over;
    for (int k = 0; k < 2; k++)
        to->kept[k] = roll(2) ? is->kept[k] : was->kept[k];
}

/* The details first. */
static void show(struct rank *r)
{
    r->was[1] = r->shown;
    r->shown.parts = r->mine.parts;
    r->shown.rows = r->mine.rows;
    r->was[0] = r->shown;
    r->shown = r->mine;
}

/* Likewise. A reader may stop on its way through the row, and find details that are older than
 * the numbers; not if it has seen the numbers before. */
static uint64_t grow(uint64_t is, uint64_t was, uint64_t *last)
{
    uint64_t it = roll(2) ? is : was;
    *last = it > *last ? it : *last;
    return *last;
}

static struct cut_mark see_mark(struct rank *r, bool again)
{
    const struct cut_mark *is = &r->shown, *was = &r->was[!again && roll(2)];
    return (struct cut_mark){
        .stand = is->stand,             /* it has come before the rank went on */
        .held = grow(is->held, was->held, &r->seen.held),
        .settled = grow(is->settled, was->settled, &r->seen.settled),
        .written = grow(is->written, was->written, &r->seen.written),
        .failed = grow(is->failed, was->failed, &r->seen.failed),
        .gone = grow(is->gone, was->gone, &r->seen.gone),
        .parts = roll(2) ? is->parts : was->parts,
    };
}

static void change_order(struct cut_order to)
{
    w.last_order = w.order;
    w.order = to;
}

static void write_shard_of(int rank)
{
    struct rank *r = &w.ranks[rank];
    bool stands = r->view.write == w.cut;       /* else its leader was replaced, and rows move */
    for (int p = 0; stands && p < PARTS; p++) {
        if (w.owner[p] != rank)
            continue;
        ck_assert_int_eq(w.from[p], -1);
        for (int other = 0; other < w.n; other++)
            if (alive(&w.ranks[other]))
                ck_assert_int_ge(w.ranks[other].stepped[p], w.at_order[other][p]);
    }
    ck_assert(!stands || parts_of(rank) == (int)r->mine.parts);
    if (roll(20) == 0) {
        r->mine.failed = r->view.write;
        return;
    }
    r->mine.written = r->view.write;
    for (int p = 0; p < PARTS; p++)
        w.files[r->view.write][rank][p] = w.owner[p] == rank;
}

static void tidy(struct rank *r)
{
    for (uint64_t c = 1; c <= r->view.tidy; c++)
        if (c != r->view.kept[0] && c != r->view.kept[1])
            memset(w.files[c], 0, sizeof w.files[c]);
    r->self.tidied = r->view.tidy;
}

/* As a rank finds it that looks at all marks. */
static void look_for_gone(struct rank *r)
{
    for (int k = 0; k < w.n; k++) {
        uint64_t gone = roll(2) ? w.ranks[k].shown.gone : w.ranks[k].was[0].gone;
        r->self.gone = gone > r->self.gone ? gone : r->self.gone;
    }
}

static bool all_know(int me)
{
    struct cut_mark marks[RANKS];
    bool lost[RANKS];
    const struct cut_ranks ranks = {marks, lost, NULL, w.n, false, PARTS};
    for (int k = 0; k < w.n; k++) {
        marks[k] = w.ranks[k].shown;
        lost[k] = w.ranks[k].is == DEAD;
    }
    return cut_all_know(&ranks, me);
}

/* A look that has been made, another one for the details, and what follows. */
static void act(int rank)
{
    struct rank *r = &w.ranks[rank];
    r->doubts |= w.down && r->saw && roll(2);
    r->self.led = rank == w.leader || !r->doubts;
    enum cut_act first = cut_act(&r->view, &r->mine, &r->self);
    if (rank != w.leader && (first == CUT_HOLDS || r->self.holds))
        look_for_gone(r);
    if (first == CUT_RESTS && (r->self.holds || !r->holds))
        return;
    see_order(&r->view);
    enum cut_act it = cut_act(&r->view, &r->mine, &r->self);
    r->holds &= it == CUT_HOLDS || r->self.holds;       /* it held when all had come, and let go */
    switch (it) {
    case CUT_HOLDS:
        r->holds = true;
        if (gives_any(rank))            /* it waits, and looks again */
            return;
        r->self.holds = r->mine.held = r->view.cut;
        break;
    case CUT_SETTLES:                   /* each owner has answered: what it gave has come */
        for (int p = 0; p < PARTS; p++)
            w.from[p] = w.owner[p] == rank ? -1 : w.from[p];
        memcpy(r->stepped, r->pushed, sizeof r->stepped);
        r->mine.settled = r->view.round;
        r->mine.parts = (uint64_t)parts_of(rank);
        break;
    case CUT_WRITES:
        write_shard_of(rank);
        break;
    case CUT_DROPS:
        r->mine.gone = r->view.cut;
        break;
    case CUT_RELEASES:
        r->holds = false;
        r->self.holds = 0;
        break;
    case CUT_TIDIES:
        tidy(r);
        break;
    case CUT_ENDS:
        if (rank == w.leader && !all_know(rank))
            return;
        r->mine.stand = CUT_ENDED;
        r->runs = false;
        break;
    case CUT_RESTS:
        break;
    }
    show(r);
}

static void order_one(void)
{
    struct cut_order o = w.order;
    for (int a = 0; a < w.n; a++)
        memcpy(w.at_order[a], w.ranks[a].pushed, sizeof w.at_order[a]);
    o.cut = w.cut = w.order.cut + 1;
    change_order(o);
}

static void end_cut(struct cut_order o)
{
    o.done = w.cut;
    o.kept[0] = w.file;
    o.kept[1] = w.previous;
    change_order(o);                    /* the details first */
    w.tidy = w.cut;
    w.cut = 0;
}

static int times_in(uint64_t cut, int part)
{
    int n = 0;
    for (int k = 0; k < w.n; k++)
        n += w.files[cut][k][part];
    return n;
}

static enum cut_state judge(bool again, int *who)
{
    struct cut_mark marks[RANKS];
    bool lost[RANKS], owns[RANKS];
    const struct cut_ranks ranks = {marks, lost, owns, w.n, false, PARTS};
    for (int k = 0; k < w.n; k++) {
        marks[k] = see_mark(&w.ranks[k], again);
        lost[k] = w.ranks[k].is == DEAD || (w.ranks[k].is == LEFT_IT && roll(2));
        owns[k] = w.ranks[k].is >= SHOWN && parts_of(k) && roll(4);  /* as it has heard */
    }
    return cut_judge(&w.order, &ranks, who);
}

static void lead(void)
{
    int who;
    struct cut_order o = w.order;
    enum cut_state state = judge(false, &who);
    switch (cut_acts(state) ? judge(true, &who) : state) {
    case CUT_HOLDING:
    case CUT_SETTLING:
    case CUT_WRITING:
        ck_assert(who < w.n);
        return;
    case CUT_MISSING:
        w.missed++;
        o.round++;
        change_order(o);
        return;
    case CUT_HELD:
        o.settle = w.cut;
        o.round++;
        change_order(o);
        return;
    case CUT_SETTLED:
        o.write = w.cut;
        change_order(o);
        return;
    case CUT_WRITTEN:
        for (int p = 0; p < PARTS; p++)
            ck_assert_int_eq(times_in(w.cut, p), 1);
        w.previous = w.file;
        w.file = w.cut;
        w.made++;
        break;
    case CUT_FAILED:
        ck_assert(w.ranks[who].shown.failed == w.cut || w.ranks[who].shown.gone >= w.cut);
        w.failed++;
        break;
    }
    end_cut(o);
}

/* A part begins to go, or arrives. */
static void move_one(void)
{
    int p = roll(PARTS), from = w.owner[p], to = roll(w.n);
    if (w.from[p] >= 0) {
        w.from[p] = -1;
        w.moved++;
    } else if (to != from && !w.ranks[from].holds &&
               (w.ranks[to].is == CONNECTED || w.ranks[to].is == SHOWN)) {
        w.owner[p] = to;
        w.from[p] = from;
    }
}

/* Another rank leads: the one before is about to leave, or has died in a cut, which is over. */
static void replace_leader(void)
{
    int next = roll(w.n);
    struct cut_chair chair = {.first = true, .ordered = w.order.cut};
    if (next == w.leader || w.ranks[next].is != SHOWN || !w.ranks[next].runs ||
        !w.ranks[w.leader].runs || w.order.over)
        return;
    for (int k = 0; k < w.n; k++)
        w.ranks[k].doubts = false;
    ck_assert(cut_takes_over(&chair));
    w.leader = next;
    w.replaced++;
    w.failed += w.cut != 0;
    struct cut_order o = w.order;
    o.done = o.cut;
    w.cut = 0;
    change_order(o);
}

/* It has no rows. */
static void leader_dies(void)
{
    struct rank *r = &w.ranks[w.leader];
    r->is = DEAD;
    r->runs = r->holds = false;
    w.down = true;
    w.down_for = 0;
    w.died++;
    for (int k = 0; k < w.n; k++)
        w.ranks[k].saw = w.ranks[k].is == SHOWN || w.ranks[k].is == LEAVES;
}

static void leader_returns(void)
{
    struct rank *r = &w.ranks[w.leader];
    struct cut_mark marks[RANKS];
    const struct cut_order none = {0};
    bool known = false;
    for (int k = 0; k < w.n; k++)
        known |= w.cut && w.ranks[k].shown.gone >= w.cut;
    for (int k = 0; known && k < w.n; k++)
        ck_assert_msg(!w.ranks[k].runs || !w.ranks[k].holds, "rank %d holds for the dead", k);
    w.let_go += known;
    for (int k = 0; k < w.n; k++) {
        marks[k] = w.ranks[k].shown;
        w.ranks[k].seen = (struct cut_mark){.stand = CUT_AWAY};
        w.ranks[k].saw = w.ranks[k].doubts = false;
    }
    *r = (struct rank){.is = SHOWN, .runs = true, .mine = {.stand = CUT_THERE},
                       .shown = r->shown, .self = {.tidied = w.order.tidy}};
    show(r);
    w.failed += w.cut != 0;
    w.cut = 0;
    w.down = false;
    change_order(cut_goes_on(&w.order, &none, marks, w.n));
}

/* Its owner dies, and has been the only one that had the last change. */
static void lose_over(void)
{
    w.lost += w.order.over;
    w.order.over = w.last_order.over = false;
}

/* Ranks other than the leader come, leave once they have no rows, and die without rows. */
static void come_or_go(int rank)
{
    struct rank *r = &w.ranks[rank];
    bool has = parts_of(rank) || gives_any(rank);
    if (rank == w.leader) {
        if (!has && r->runs && !w.order.over && roll(2))
            leader_dies();
        else
            replace_leader();
        return;
    }
    if (!w.down && !w.ranks[w.leader].runs)     /* it has ended, and all are to end */
        return;
    if (r->is == SHOWN && roll(8) == 0)         /* the two do not hear each other */
        r->doubts = !r->doubts;
    if (r->is == AWAY && !w.order.over) {
        r->is = CONNECTED;
        w.came++;
    } else if (r->is == CONNECTED) {
        r->is = SHOWN;
        r->self.tidied = w.order.tidy;
        r->runs = true;
        r->mine.stand = CUT_THERE;
        show(r);
    } else if (r->is == SHOWN && roll(8) == 0) {
        r->is = LEAVES;
    } else if (r->is == LEAVES && !has) {
        r->is = LEFT_IT;
        r->runs = false;
        r->mine.stand = CUT_LEFT;
        show(r);
        w.left++;
    } else if (r->is == SHOWN && !has && roll(8) == 0) {
        r->is = DEAD;
        r->runs = false;
    }
}

static void lead_on(void)
{
    if (w.down && w.down_for++ > 1000)
        leader_returns();
    if (!w.ranks[w.leader].runs)
        return;
    if (w.tidy) {
        struct cut_order o = w.order;
        o.tidy = w.tidy;
        w.tidy = 0;
        change_order(o);
    } else if (w.cut) {
        lead();
    } else if (w.made + w.failed < w.wanted) {
        order_one();
    } else if (!w.order.over) {
        struct cut_order o = w.order;
        o.over = true;
        change_order(o);
    }
}

static void step_world(void)
{
    int rank = roll(w.n), part = roll(PARTS);
    struct rank *r = &w.ranks[rank];
    switch (roll(6)) {
    case 0:
        r->pushed[part] += r->is == SHOWN;
        break;
    case 1:
        r->stepped[part] += r->stepped[part] < r->pushed[part];
        break;
    case 2:
        if (r->looked && r->runs)
            act(rank);
        else
            see_order(&r->view);
        r->looked = !r->looked;
        break;
    case 3:
        move_one();
        break;
    case 4:
        if (roll(20) == 0)
            come_or_go(rank);
        if (roll(40) == 0 && w.lost < 3)
            lose_over();
        break;
    default:
        lead_on();
    }
    for (int p = 0; p < PARTS; p++)
        ck_assert((!w.file || times_in(w.file, p) == 1) &&
                  (!w.previous || times_in(w.previous, p) == 1));
}

START_TEST(each_cut_has_what_was_pushed_before_it)
{
    int made = 0, failed = 0, came = 0, left = 0, moved = 0, missed = 0, replaced = 0;
    int died = 0, let_go = 0, lost = 0;
    for (uint64_t seed = 0; seed < 2000; seed++) {
        memset(&w, 0, sizeof w);
        rng_init(&w.rng, seed);
        w.n = 1 + roll(RANKS);
        w.wanted = 1 + roll(12);
        w.leader = roll(w.n);
        for (int k = 0; k < w.n; k++)
            if (k == w.leader || roll(2)) {
                w.ranks[k].is = SHOWN;
                w.ranks[k].runs = true;
                w.ranks[k].mine.stand = CUT_THERE;
                show(&w.ranks[k]);
            }
        for (int p = 0; p < PARTS; p++) {
            w.from[p] = -1;
            do
                w.owner[p] = roll(w.n);
            while (w.ranks[w.owner[p]].is != SHOWN);
        }
        int steps = 0, runs = 1;
        while (runs) {
            ck_assert_msg(steps++ < 100000, "seed %llu does not end", (unsigned long long)seed);
            step_world();
            runs = 0;
            for (int k = 0; k < w.n; k++)
                runs += w.ranks[k].runs;
        }
        made += w.made;
        failed += w.failed;
        came += w.came;
        left += w.left;
        moved += w.moved;
        missed += w.missed;
        replaced += w.replaced;
        died += w.died;
        let_go += w.let_go;
        lost += w.lost;
    }
    ck_assert_msg(died > 200 && let_go > 50 && lost > 500, "%d %d %d", died, let_go, lost);
    ck_assert_msg(made > 5000 && failed > 500 && came > 500 && left > 100 && moved > 5000 &&
                  missed > 50 && replaced > 500, "%d %d %d %d %d %d %d", made, failed, came, left,
                  moved, missed, replaced);
}
END_TEST

/* Each state of a cut, by marks that are written out. */
static enum cut_state judged(const struct cut_order *o, const struct cut_mark *marks,
                             const char *lost, const char *owns, bool finished, int *who)
{
    bool is_lost[3], is_owner[3];
    const struct cut_ranks ranks = {marks, is_lost, is_owner, 3, finished, 8};
    for (int k = 0; k < 3; k++) {
        is_lost[k] = lost[k] == 'x';
        is_owner[k] = owns[k] == 'x';
    }
    return cut_judge(o, &ranks, who);
}

/* Of three ranks each may be there, away or gone, with a shard that failed in this cut or
 * in the one before, and may have taken the first one for dead then. */
START_TEST(a_cut_that_failed_has_a_reason)
{
    const struct cut_order o = {.cut = 3, .settle = 3, .write = 3};
    bool lost[3], owns[3];
    struct cut_mark m[3];
    const struct cut_ranks ranks = {m, lost, owns, 3, false, 8};
    for (int k = 0; k < 3; k++)
        for (int way = 0; way < 4 * 3 * 3; way++) {
            memset(lost, 0, sizeof lost);
            memset(owns, 0, sizeof owns);
            for (int i = 0; i < 3; i++)
                m[i] = (struct cut_mark){.stand = CUT_THERE, .failed = 2, .gone = 2};
            m[k].stand = way % 4 == 1 ? CUT_LEFT : CUT_THERE;
            lost[k] = way % 4 > 0;
            owns[k] = way % 4 == 3;
            m[k].failed = (uint64_t)(1 + way / 4 % 3);
            m[(k + 1) % 3].gone = (uint64_t)(1 + way / 12);
            enum cut_fault want = m[k].failed == 3          ? CUT_FAULT_SHARD
                                  : way % 4 > 1             ? CUT_FAULT_GONE
                                  : m[(k + 1) % 3].gone == 3 ? CUT_FAULT_DEAD
                                                            : CUT_FAULT_ORDER;
            int who = -1;
            ck_assert_int_eq(cut_fault(&o, &ranks, &who), want);
            if (want != CUT_FAULT_ORDER)
                ck_assert_int_eq(who, want == CUT_FAULT_DEAD ? (k + 1) % 3 : k);
        }
}
END_TEST

START_TEST(who_has_no_rows_is_waited_for_while_it_is_there)
{
    struct cut_mark m[] = {{.stand = CUT_THERE, .held = 3}, {.stand = CUT_FINISHED, .held = 2},
                           {.stand = CUT_LEFT, .held = 1}};
    struct cut_order o = {.cut = 3, .settle = 2, .round = 7};
    int who;
    ck_assert_int_eq(judged(&o, m, "...", "x..", false, &who), CUT_HOLDING);
    ck_assert_int_eq(who, 1);
    ck_assert_int_eq(judged(&o, m, ".x.", "x..", false, &who), CUT_HELD);
    ck_assert_int_eq(judged(&o, m, "...", "x..", true, &who), CUT_HELD);    /* after finish */
    ck_assert_int_eq(judged(&o, m, "...", "xx.", true, &who), CUT_HOLDING);
    ck_assert_int_eq(judged(&o, m, ".x.", "x.x", false, &who), CUT_HOLDING);   /* no mark yet */
    ck_assert_int_eq(who, 2);
    ck_assert_int_eq(judged(&o, m, ".x.", "xx.", false, &who), CUT_FAILED);
    ck_assert_int_eq(who, 1);
    o.settle = 3;
    o.round = 8;
    m[1].held = 3;
    m[0].settled = 8;
    m[1].settled = 7;
    m[0].parts = 5;
    m[1].parts = 3;
    ck_assert_int_eq(judged(&o, m, "...", "xx.", false, &who), CUT_SETTLING);
    ck_assert_int_eq(who, 1);
    m[1].settled = 8;
    ck_assert_int_eq(judged(&o, m, "...", "xx.", false, &who), CUT_SETTLED);
    ck_assert_int_eq(judged(&o, m, ".x.", "x..", false, &who), CUT_MISSING);
    m[1].parts = 2;
    ck_assert_int_eq(judged(&o, m, "...", "xx.", false, &who), CUT_MISSING);
    m[1].parts = 4;
    ck_assert_int_eq(judged(&o, m, "...", "xx.", false, &who), CUT_MISSING);
    m[1].parts = 3;
    o.write = 3;
    m[0].written = 3;
    ck_assert_int_eq(judged(&o, m, "...", "xx.", false, &who), CUT_WRITING);
    ck_assert_int_eq(who, 1);
    ck_assert_int_eq(judged(&o, m, ".x.", "xx.", false, &who), CUT_FAILED);
    ck_assert_int_eq(who, 1);
    ck_assert_int_eq(judged(&o, m, "x..", "xx.", false, &who), CUT_WRITING);    /* first all end */
    m[1].written = 3;
    ck_assert_int_eq(judged(&o, m, "...", "xx.", false, &who), CUT_WRITTEN);
    ck_assert_int_eq(judged(&o, m, "x..", "xx.", false, &who), CUT_FAILED);
    ck_assert_int_eq(who, 0);
    m[2] = (struct cut_mark){.stand = CUT_THERE};            /* it comes, and is not waited for */
    ck_assert_int_eq(judged(&o, m, "...", "xx.", false, &who), CUT_WRITTEN);
    m[1].failed = 3;
    ck_assert_int_eq(judged(&o, m, "...", "xx.", false, &who), CUT_FAILED);
    ck_assert_int_eq(who, 1);
    m[1].failed = 0;
    m[2].gone = 2;
    ck_assert_int_eq(judged(&o, m, "...", "xx.", false, &who), CUT_WRITTEN);
    for (uint64_t gone = 3; gone < 5; gone++) {         /* its rows may have moved since */
        m[2].gone = gone;
        ck_assert_int_eq(judged(&o, m, "..x", "xx.", false, &who), CUT_FAILED);
        ck_assert_int_eq(who, 2);
    }
}
END_TEST

/* The first rank of three stays while another one that is there may not know that it is over. */
START_TEST(the_first_rank_stays_for_the_others)
{
    for (int all = 0; all < CUT_STANDS * CUT_STANDS; all++)
        for (int died = 0; died < 4; died++) {
            int stands[] = {all % CUT_STANDS, all / CUT_STANDS};
            struct cut_mark m[3] = {{.stand = CUT_FINISHED}};
            bool lost[3] = {false, died & 1, died & 2}, waits = false;
            const struct cut_ranks ranks = {.marks = m, .lost = lost, .n = 3};
            for (int k = 0; k < 2; k++) {
                m[k + 1].stand = (enum cut_stand)stands[k];
                waits |= !lost[k + 1] && (stands[k] == CUT_THERE || stands[k] == CUT_FINISHED);
            }
            ck_assert_int_eq(cut_all_know(&ranks, 0), !waits);
        }
}
END_TEST

/* A rank that gives orders and is lost lets the rows of the others move on. */
START_TEST(a_rank_that_is_not_led_lets_go)
{
    const struct cut_order o = {.cut = 3, .settle = 3, .round = 8};
    struct cut_mark m = {.stand = CUT_THERE, .held = 3, .settled = 7};
    struct cut_self self = {.holds = 3, .led = true};
    ck_assert_int_eq(cut_act(&o, &m, &self), CUT_SETTLES);
    self.led = false;
    ck_assert_int_eq(cut_act(&o, &m, &self), CUT_DROPS);        /* the others are to know first */
    m.gone = 3;
    ck_assert_int_eq(cut_act(&o, &m, &self), CUT_RELEASES);
    self.holds = 0;
    ck_assert_int_eq(cut_act(&o, &m, &self), CUT_RESTS);
    m.gone = 0;
    self.led = true;
    ck_assert_int_eq(cut_act(&o, &m, &self), CUT_HOLDS);
    self.gone = 2;                      /* a cut before */
    ck_assert_int_eq(cut_act(&o, &m, &self), CUT_HOLDS);
    self.gone = 3;                      /* another rank has heard of the death, this one has not */
    ck_assert_int_eq(cut_act(&o, &m, &self), CUT_DROPS);
    m.gone = 3;
    ck_assert_int_eq(cut_act(&o, &m, &self), CUT_RESTS);
    self.holds = 3;
    ck_assert_int_eq(cut_act(&o, &m, &self), CUT_RELEASES);
    self.holds = 0;
    self.ends = true;                   /* the leader may only have been cut off */
    ck_assert_int_eq(cut_act(&o, &m, &self), CUT_RESTS);
    self.led = false;
    ck_assert_int_eq(cut_act(&o, &m, &self), CUT_ENDS);
    self.ends = false;
    self.led = true;
    self.gone = m.gone = 0;
    const struct cut_order over = {.cut = 3, .settle = 3, .round = 8, .done = 3, .over = true};
    self.holds = 3;
    ck_assert_int_eq(cut_act(&over, &m, &self), CUT_RELEASES);
    self.holds = 0;
    ck_assert_int_eq(cut_act(&over, &m, &self), CUT_ENDS);
    self.ends = true;                   /* nobody is there to say that it is over */
    ck_assert_int_eq(cut_act(&o, &m, &self), CUT_HOLDS);
    self.led = false;
    m.gone = 3;
    ck_assert_int_eq(cut_act(&o, &m, &self), CUT_ENDS);
    self.holds = 3;
    ck_assert_int_eq(cut_act(&o, &m, &self), CUT_RELEASES);
}
END_TEST

/* A rank takes the lead over when it is the first one, and was not, or another one has written
 * the order; a cut that is waited for fails where it could not be ordered, or is no more. */
START_TEST(a_leader_is_replaced)
{
    static const struct {
        struct cut_chair chair;
        bool takes_over, gives_up;
    } cases[] = {
        {{false, false, false, 7, 0, false}, false, false},
        {{false, true, false, 7, 0, false}, false, false},     /* a lower rank is there again, */
        {{false, true, false, 7, 7, true}, false, true},        /* in a cut of this one */
        {{false, false, false, 7, 8, false}, false, true},
        {{true, false, false, 7, 0, false}, true, false},
        {{true, false, false, 7, 8, false}, true, false},
        {{true, false, false, 7, 7, false}, true, true},       /* the one before has used the number */
        {{true, false, false, 7, 6, false}, true, true},
        {{true, true, false, 7, 0, false}, false, false},
        {{true, true, false, 7, 7, true}, false, false},        /* it is under way */
        {{true, true, false, 7, 7, false}, false, true},        /* another rank's, of that number */
        {{true, true, false, 7, 8, false}, false, false},
        {{true, true, true, 7, 0, false}, true, false},        /* another one has written */
        {{true, true, true, 7, 7, true}, true, true},
        {{true, true, true, 7, 8, false}, true, false},
    };
    for (int k = 0; k < N(cases); k++) {
        ck_assert_msg(cut_takes_over(&cases[k].chair) == cases[k].takes_over, "case %d", k);
        ck_assert_msg(cut_gives_up(&cases[k].chair) == cases[k].gives_up, "case %d", k);
    }
}
END_TEST

/* The order of a moment before: the next one is above all that ranks have seen. */
START_TEST(no_number_comes_twice)
{
    const struct cut_order row = {.cut = 6, .settle = 5, .round = 9, .write = 5, .done = 5, .tidy = 5,
                                  .id = 60, .kept = {5}},
                           given = {.cut = 7, .settle = 7, .round = 10, .write = 6, .done = 6,
                                    .tidy = 6, .id = 70, .kept = {6, 5}, .over = true},
                           none = {0};
    const struct cut_mark marks[] = {{.held = 8, .settled = 11}, {.held = 7, .written = 9},
                                     {.failed = 4, .settled = 12},
                                     {.gone = 10}};
    struct cut_order o = cut_goes_on(&row, &none, marks, 0);
    ck_assert(o.cut == 6 && o.done == 6 && o.write == 5 && o.round == 9 && o.id == 60 && !o.over);
    o = cut_goes_on(&row, &given, marks, 0);
    ck_assert(o.cut == 7 && o.done == 7 && o.settle == 7 && o.round == 10 && o.write == 6);
    ck_assert(o.id == 70 && o.tidy == 6 && o.kept[1] == 5 && o.over);
    o = cut_goes_on(&given, &row, marks, 0);
    ck_assert(o.cut == 7 && o.id == 70 && o.tidy == 6 && o.kept[1] == 5);
    o = cut_goes_on(&row, &given, marks, 1);
    ck_assert(o.cut == 8 && o.done == 8 && o.round == 11);
    o = cut_goes_on(&row, &given, marks, N(marks));
    ck_assert(o.cut == 10 && o.done == 10 && o.round == 12 && o.write == 6);
    for (int k = 0; k < N(marks); k++) {        /* nobody acts on it but to let go */
        struct cut_self self = {.tidied = 6, .holds = marks[k].held, .led = true};
        o.over = false;
        ck_assert_int_eq(cut_act(&o, &marks[k], &self), self.holds ? CUT_RELEASES : CUT_RESTS);
    }
}
END_TEST

/* By their marks ranks have left, or do not come. */
START_TEST(ranks_that_have_left_lead_no_more)
{
    static const bool passed[CUT_STANDS][2] = {[CUT_AWAY] = {false, true},
                                               [CUT_LEFT] = {true, true}};
    for (int stand = 0; stand < CUT_STANDS; stand++)
        for (int late = 0; late < 2; late++) {
            const struct cut_mark m = {.stand = (enum cut_stand)stand};
            ck_assert_int_eq(cut_passed(&m, 2 + late, 3), passed[stand][late]);
        }
}
END_TEST

START_TEST(orders_and_marks_travel_as_floats)
{
    const float none[] = {NAN, -1, INFINITY, 16777216.0f, 1e30f, -INFINITY};
    float row[CUT_FLOATS];
    struct cut_order o = {0xfffffe, 0xfffffd, 0xfffffc, 0xfffffb, 0xfffffa, 0xfffff9,
                          UINT64_C(0xfedcba987654), {1, 2, 0xffffff, 4, 5}, true};
    cut_put_order(&o, row);
    struct cut_order back = cut_get_order(row);
    ck_assert(back.cut == o.cut && back.settle == o.settle && back.round == o.round &&
              back.write == o.write && back.done == o.done && back.tidy == o.tidy &&
              back.id == o.id && back.over);
    ck_assert_mem_eq(back.kept, o.kept, sizeof o.kept);
    for (int i = 0; i < CUT_KEPT; i++) {        /* two ranks have changed it at once */
        cut_put_order(&o, row);
        row[CUT_ORDER_DETAILS + 2 + i] += 1;
        back = cut_get_order(row);
        ck_assert(back.cut == o.cut && back.id == o.id && back.tidy == 0 && back.kept[4] == 0);
    }
    struct cut_mark m = {CUT_LEFT, 8, 7, 0xffffff, 9, 10, 1024, UINT64_C(1) << 40}, again;
    cut_put_mark(&m, row);
    again = cut_get_mark(row);
    ck_assert(again.stand == CUT_LEFT && again.held == 8 && again.settled == 7);
    ck_assert(again.written == 0xffffff && again.failed == 9 && again.gone == 10);
    ck_assert_uint_eq(again.parts, 1024);
    ck_assert_uint_eq(again.rows, m.rows);
    for (int k = 0; k < N(none); k++) {
        for (int i = 0; i < CUT_FLOATS; i++)
            row[i] = none[k];
        again = cut_get_mark(row);
        back = cut_get_order(row);
        ck_assert(again.stand == CUT_AWAY && !again.settled && !again.written && !again.rows);
        ck_assert(!back.cut && !back.write && !back.tidy && !back.over && !back.kept[4]);
    }
}
END_TEST

/* --- the start of a run over several hosts --- */

/* What all get of these ranks. */
static void agreed_by(const struct start *ranks, int n, double out[START_VALUES])
{
    struct agree_value values[8], result;
    struct agree_offer offers[8];
    for (int k = 0; k < n; k++) {
        double x[START_VALUES];
        start_offer(&ranks[k], x);
        values[k] = (struct agree_value){.kind = AGREE_MEAN, .n = sizeof x};
        memcpy(values[k].bytes, x, sizeof x);
        offers[k] = (struct agree_offer){.rank = k, .number = 1, .value = &values[k]};
    }
    ck_assert(agree_fold(1, offers, n, &result));
    memcpy(out, result.bytes, START_VALUES * sizeof *out);
}

static const uint64_t numbers[] = {1, (UINT64_C(1) << 24) - 1, UINT64_C(1) << 24,
                                   UINT64_C(0xabcdef123457), (UINT64_C(1) << 48) - 1};

/* So many of the start, and so many that have come late: these change nothing. */
START_TEST(ranks_of_a_start_go_on_from_one_checkpoint)
{
    for (int n = 1; n <= 5; n++)
        for (int late = 0; late <= 3; late++)
            for (size_t i = 0; i < N(numbers); i++) {
                struct start ranks[8] = {{0}};
                double x[START_VALUES];
                for (int k = 0; k < n + late; k++)
                    ranks[k] = (struct start){.late = k >= 1 && k <= late, .resumed = true,
                                              .run = numbers[i],
                                              .generation = numbers[i % 2]};
                agreed_by(ranks, n + late, x);
                for (int k = 0; k < n + late; k++)
                    ck_assert_int_eq(start_judge(&ranks[k], x), START_GOOD);
                ck_assert(start_resumed(x));
                ck_assert_uint_eq(start_run(x), numbers[i]);
            }
}
END_TEST

/* One of the start, at each place, has found another thing than the others. */
START_TEST(ranks_of_a_start_that_differ_are_told)
{
    const struct start usual = {.resumed = true, .generation = 9, .run = 77};
    const struct {
        struct start is;
        enum start_state here, there;
    } others[] = {
        {{.run = 5}, START_NONE_HERE, START_NONE_THERE},
        {{.resumed = true, .failed = true, .generation = 9}, START_UNREAD, START_UNREAD},
        {{.resumed = true, .generation = 8, .run = 77}, START_OTHER, START_OTHER},
        {{.resumed = true, .generation = 10, .run = 77}, START_OTHER, START_OTHER},
        {{.late = true}, START_GOOD, START_GOOD},
    };
    for (size_t i = 0; i < N(others); i++)
        for (int n = 2; n <= 6; n++)
            for (int at = 0; at < n; at++) {
                struct start ranks[8];
                double x[START_VALUES];
                for (int k = 0; k < n; k++)
                    ranks[k] = k == at ? others[i].is : usual;
                agreed_by(ranks, n, x);
                for (int k = 0; k < n; k++)
                    ck_assert_int_eq(start_judge(&ranks[k], x),
                                     k == at ? others[i].here : others[i].there);
            }
    /* also the mean of as many as can be */
    const double x[START_VALUES] = {1, 1, 0, 9 + 1.0 / 4096, 0, 77};
    ck_assert_int_eq(start_judge(&usual, x), START_OTHER);
}
END_TEST

/* Of numbers that differ all get the same one; without a rank of the start there is none. */
START_TEST(a_run_has_one_number)
{
    struct start ranks[8] = {{0}};
    double x[START_VALUES], no[START_VALUES] = {NAN, NAN, NAN, NAN, NAN, NAN};
    for (size_t i = 0; i < N(numbers); i++)
        ranks[i].run = numbers[i];
    agreed_by(ranks, N(numbers), x);
    ck_assert(start_run(x) > 0 && start_run(x) < UINT64_C(1) << 48);
    ck_assert(!start_resumed(x));
    for (int k = 0; k < 8; k++)
        ranks[k] = (struct start){.late = true, .resumed = true, .run = 5};
    agreed_by(ranks, 8, x);
    ck_assert_uint_eq(start_run(x), 0);
    ck_assert(!start_resumed(x));
    ck_assert_uint_eq(start_run(no), 0);
    ck_assert(!start_resumed(no));
    const double bad[START_VALUES] = {1, 1, 0, 0, 1e300, -5};
    ck_assert_uint_eq(start_run(bad), 1);
}
END_TEST

int main(void)
{
    TCase *shards = new_case("shards", 60);
    tcase_add_checked_fixture(shards, set_up, remove_folder);
    tcase_add_test(shards, names_tell_which_one_it_is);
    tcase_add_test(shards, what_file_says_is_checked);
    tcase_add_loop_test(shards, rows_that_are_born_meanwhile_do_no_harm, 0, 14);
    tcase_add_test(shards, a_shard_may_have_no_rows);
    tcase_add_test(shards, what_cannot_be_written_leaves_what_was_there);
    tcase_add_test(shards, other_shards_are_refused);
    tcase_add_test(shards, a_torn_shard_is_refused_at_every_length);
    tcase_add_test(shards, mutated_shards_do_no_harm);
    tcase_add_loop_test(shards, bad_rows_and_values_are_refused, 0, 2);
    tcase_add_test(shards, older_ones_are_removed_and_no_others);
    TCase *grown = new_case("grown", 60);
    tcase_add_checked_fixture(grown, set_up, remove_folder);
    tcase_add_loop_test(grown, rows_that_come_and_go_do_no_harm, 0, 3);
    tcase_add_test(grown, many_rows_are_in_order);
    tcase_add_test(grown, a_grown_shard_may_have_no_rows);
    tcase_add_loop_test(grown, what_cannot_be_poured_leaves_what_was_there, 0, 2);
    tcase_add_test(grown, saved_rows_are_found_by_their_ids);
    tcase_add_test(grown, other_kinds_of_shards_are_refused);
    TCase *cuts = new_case("cuts", 60);
    tcase_add_test(cuts, each_cut_has_what_was_pushed_before_it);
    tcase_add_test(cuts, who_has_no_rows_is_waited_for_while_it_is_there);
    tcase_add_test(cuts, a_cut_that_failed_has_a_reason);
    tcase_add_test(cuts, the_first_rank_stays_for_the_others);
    tcase_add_test(cuts, a_rank_that_is_not_led_lets_go);
    tcase_add_test(cuts, a_leader_is_replaced);
    tcase_add_test(cuts, no_number_comes_twice);
    tcase_add_test(cuts, ranks_that_have_left_lead_no_more);
    tcase_add_test(cuts, orders_and_marks_travel_as_floats);
    TCase *start = new_case("start", 60);
    tcase_add_test(start, ranks_of_a_start_go_on_from_one_checkpoint);
    tcase_add_test(start, ranks_of_a_start_that_differ_are_told);
    tcase_add_test(start, a_run_has_one_number);
    return run_cases(shards, grown, cuts, start, NULL);
}
