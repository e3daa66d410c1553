/* SPDX-License-Identifier: MIT */
/* Readers: every format's values and defects, chunks of any size shared in any way, compressed
 * files and stdin against plain ones, images, caches, mutated bytes, memory that runs out, and
 * the generator of click logs. */
#include "data/ctr.h"
#include "data/data.h"
#include "data/reader.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define N(array) ((int)(sizeof(array) / sizeof *(array)))

static char folder[200];

/* --- files --- */

static const char *place(const char *name)
{
    static char paths[8][400];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%ld-%s", folder, (long)getpid(), name);
    return path;
}

static const char *put(const char *name, const void *bytes, size_t n)
{
    const char *path = place(name);
    FILE *file = fopen(path, "wb");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(bytes, 1, n, file), n);
    fclose(file);
    return path;
}

static const char *put_text(const char *name, const char *text)
{
    return put(name, text, strlen(text));
}

static size_t gzip(const void *from, size_t n, unsigned char *to, size_t room)
{
    z_stream z = {0};
    ck_assert_int_eq(deflateInit2(&z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
    z.next_in = (unsigned char *)(uintptr_t)from;
    z.avail_in = (unsigned)n;
    z.next_out = to;
    z.avail_out = (unsigned)room;
    ck_assert_int_eq(deflate(&z, Z_FINISH), Z_STREAM_END);
    deflateEnd(&z);
    return room - z.avail_out;
}

static size_t pack(int kind, const void *from, size_t n, unsigned char *to, size_t room)
{
    if (kind == STREAM_GZIP)
        return gzip(from, n, to, room);
    if (kind == STREAM_ZSTD)
        return ZSTD_compress(to, room, from, n, 3);
    memcpy(to, from, n);
    return n;
}

static const char *put_packed(int kind, const char *name, const void *bytes, size_t n)
{
    size_t room = n + n / 2 + 1000;
    unsigned char *packed = malloc(room);
    const char *path = put(name, packed, pack(kind, bytes, n, packed, room));
    free(packed);
    return path;
}

/* --- what is logged --- */

static struct {
    int n;
    char lines[40][400];
} heard;

static void hear(void *user, enum descant_level level, const char *line)
{
    (void)user;
    (void)level;
    if (heard.n < N(heard.lines))
        snprintf(heard.lines[heard.n], sizeof heard.lines[0], "%s", line);
    heard.n++;
}

static const struct log listening = {.fn = hear, .rank = -1};

static bool ends_with(const char *line, const char *end)
{
    size_t n = strlen(line), m = strlen(end);
    return n >= m && strcmp(line + n - m, end) == 0;
}

/* --- what is read: one number an example, so that runs can be compared --- */

struct seen {
    struct {
        uint64_t chunk, print;
    } *at;
    size_t n, room;
    uint64_t lines, bad;
    enum data_got got;
    descant_status status;
};

static uint64_t print_bytes(uint64_t print, const void *bytes, size_t n)
{
    const unsigned char *at = bytes;
    for (size_t i = 0; i < n; i++)
        print = (print ^ at[i]) * 0x100000001b3u;
    return print;
}

static uint64_t print_example(const struct examples *e, size_t i)
{
    size_t f = (size_t)e->n_fields, d = (size_t)e->n_dense;
    uint64_t print = print_bytes(1469598103934665603u, &e->labels[i], sizeof(float));
    if (d)
        print = print_bytes(print, e->dense + i * d, d * sizeof(float));
    for (size_t k = i * f; k < (i + 1) * f; k++) {
        size_t from = e->offsets ? e->offsets[k] : k, to = e->offsets ? e->offsets[k + 1] : k + 1;
        print = print_bytes(print, "|", 1);
        if (to > from)
            print = print_bytes(print, e->ids + from, (to - from) * sizeof(uint32_t));
        if (e->values && to > from)
            print = print_bytes(print, e->values + from, (to - from) * sizeof(float));
    }
    return print;
}

static void add_block(struct seen *seen, const struct block *block)
{
    for (size_t i = 0; i < block->examples.n; i++) {
        if (seen->n == seen->room) {
            seen->room = 2 * seen->room + 64;
            seen->at = realloc(seen->at, seen->room * sizeof *seen->at);
        }
        seen->at[seen->n].chunk = block->chunk;
        seen->at[seen->n++].print = print_example(&block->examples, i);
    }
    seen->lines += block->lines;
    seen->bad += block->bad;
}

/* Reads the chunks for which mine says so; 0: all of them. */
static struct seen read_chunks(const struct data_options *o, uint64_t seed, unsigned who)
{
    struct seen seen = {0};
    struct data *data;
    struct block block = {0};
    seen.status = data_open(&data, o);
    if (seen.status != DESCANT_OK) {
        seen.got = DATA_FAILED;
        return seen;
    }
    for (uint64_t k = 0; seen.got == DATA_BLOCK; k++) {
        if (seed && ((k + seed) * 0x9e3779b97f4a7c15u >> 63) != who)
            continue;
        seen.got = data_read(data, k, &block);
        if (seen.got == DATA_BLOCK)
            add_block(&seen, &block);
    }
    seen.status = data_status(data);
    block_fini(&block);
    data_close(data);
    return seen;
}

static struct seen read_file(const char *path, enum data_format format)
{
    return read_chunks(&(struct data_options){.paths = &path, .n_paths = 1, .format = format,
                                              .n_fields = 4, .max_bad = 1, .log = &listening},
                       0, 0);
}

static void assert_same(const struct seen *a, const struct seen *b)
{
    ck_assert_uint_eq(a->n, b->n);
    for (size_t i = 0; i < a->n; i++)
        ck_assert_msg(a->at[i].print == b->at[i].print, "example %zu differs", i);
    ck_assert_uint_eq(a->lines, b->lines);
    ck_assert_uint_eq(a->bad, b->bad);
}

static int by_chunk(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Two readers, each with its chunks, put together in the chunks' order. */
static struct seen read_shared(const struct data_options *o, uint64_t seed)
{
    struct seen a = read_chunks(o, seed, 0), b = read_chunks(o, seed, 1);
    ck_assert_int_eq(a.got, DATA_END);
    ck_assert_int_eq(b.got, DATA_END);
    struct seen all = {.n = a.n + b.n, .lines = a.lines + b.lines, .bad = a.bad + b.bad};
    all.at = malloc((all.n + 1) * sizeof *all.at);
    size_t i = 0, j = 0;
    while (i + j < all.n) {
        bool first = j == b.n || (i < a.n && by_chunk(&a.at[i], &b.at[j]) < 0);
        all.at[i + j] = first ? a.at[i] : b.at[j];
        if (first)
            i++;
        else
            j++;
    }
    free(a.at);
    free(b.at);
    return all;
}

/* --- texts --- */

/* Rows of every kind, some bad, some ends with '\r'; the last one has no end. */
static char *criteo_text(int rows, size_t *n)
{
    char *text = NULL;
    FILE *out = open_memstream(&text, n);
    struct rng rng;
    rng_init(&rng, 7);
    for (int i = 0; i < rows; i++) {
        fprintf(out, "%d", (int)(rng_next(&rng) % 2));
        for (int k = 0; k < 13; k++)
            if (rng_next(&rng) % 5 == 0)
                fputc('\t', out);
            else
                fprintf(out, "\t%lld",
                        (long long)(rng_next(&rng) >> (rng_next(&rng) % 59 + 5)) - 3);
        for (int k = 0; k < 26 - (i % 40 == 39); k++)
            if (rng_next(&rng) % 7 == 0)
                fputc('\t', out);
            else
                fprintf(out, "\t%0*x", (int)(rng_next(&rng) % 12 + 1),
                        (unsigned)(rng_next(&rng) % 1000));
        fputs(i + 1 == rows ? "" : i % 3 == 2 ? "\r\n" : "\n", out);
    }
    fclose(out);
    return text;
}

static char *sparse_text(int rows, bool fields, size_t *n)
{
    char *text = NULL;
    FILE *out = open_memstream(&text, n);
    struct rng rng;
    rng_init(&rng, 8);
    for (int i = 0; i < rows; i++) {
        fputs(i % 2 ? "+1" : "-1", out);
        for (uint64_t k = rng_next(&rng) % 30; k > 0; k--) {
            fputc(' ', out);
            if (fields)
                fprintf(out, "%d:", (int)(rng_next(&rng) % 4));
            fprintf(out, "%d:%.5g", (int)(rng_next(&rng) % 100000), rng_uniform(&rng) - 0.5);
        }
        fputs(i % 50 == 49 ? " x\n" : "\n", out);
    }
    fclose(out);
    return text;
}

static char *text_of(enum data_format format, int rows, size_t *n)
{
    return format == DATA_CRITEO ? criteo_text(rows, n)
                                 : sparse_text(rows, format == DATA_LIBFFM, n);
}

/* --- hash --- */

START_TEST(hash_is_the_stated_one)
{
    const char token[] = "68fd1e64abc";
    for (uint32_t field = 0; field < 3; field++)
        for (size_t n = 0; n < sizeof token; n++) {
            uint64_t h = (field + 1) * UINT64_C(0x9e3779b97f4a7c15) +
                         n * UINT64_C(0xd6e8feb86659fd93);
            for (size_t at = 0; at < n; at += 8) {
                uint64_t word = 0;
                for (size_t i = at; i < n && i < at + 8; i++)
                    word |= (uint64_t)(unsigned char)token[i] << 8 * (i - at);
                h = (h ^ word) * UINT64_C(0xff51afd7ed558ccd);
                h ^= h >> 32;
            }
            if (n == 0)
                h ^= h >> 32;
            h = h * UINT64_C(0xc4ceb9fe1a85ec53) >> 32;
            ck_assert_uint_eq(data_hash(field, token, n), h);
        }
}
END_TEST

/* Rows are chosen by the upper bits: tokens that count up must fill them evenly. */
START_TEST(hash_fills_rows_evenly)
{
    enum { TOKENS = 1 << 16, ROWS = 1 << 10 };
    for (uint32_t field = 0; field < 4; field++) {
        static int counts[ROWS];
        double chi = 0;
        memset(counts, 0, sizeof counts);
        for (unsigned i = 0; i < TOKENS; i++) {
            char token[16];
            int n = snprintf(token, sizeof token, field % 2 ? "%x" : "%08x", i);
            counts[((uint64_t)data_hash(field, token, (size_t)n) * ROWS) >> 32]++;
        }
        for (int i = 0; i < ROWS; i++)
            chi += pow(counts[i] - TOKENS / ROWS, 2) / (TOKENS / (double)ROWS);
        ck_assert_double_lt(fabs(chi - ROWS), 6 * sqrt(2.0 * ROWS));
    }
}
END_TEST

/* --- Criteo --- */

#define REST "\t4\t5\t6\t7\t8\t9\t10\t11\t12"
#define CATEGORIES "\ta\tb\tc\td\te\tf\tg\th\ti\tj\tk\tl\tm\tn\to\tp\tq\tr\ts\tt\tu\tv\tw\tx"

static void assert_near(float value, double wanted)
{
    ck_assert_msg(value == (float)wanted, "%.9g is not %.9g", (double)value, wanted);
}

START_TEST(criteo_values)
{
    const char *path = put_text("a.tsv",
        "1\t1\t-3\t\t4095" REST CATEGORIES "\t68fd1e64\t\n"
        "0\t0\t4096\t123456789012345678\t99999999" REST CATEGORIES "\tlonger-than-8\t0\r\n"
        "0\t-0\t1000000\t12345678\t123456789" REST CATEGORIES "\t\t\xff\x80");
    struct data *data;
    struct block block = {0};
    struct data_options o = {.paths = &path, .n_paths = 1, .log = &listening};
    ck_assert_int_eq(data_open(&data, &o), DESCANT_OK);
    const struct data_shape *shape = data_shape(data);
    ck_assert_int_eq(shape->n_dense, 13);
    ck_assert_int_eq(shape->n_fields, 26);
    ck_assert_int_eq(shape->n_classes, 1);
    ck_assert(!shape->bags && !shape->plain_ids);
    ck_assert_uint_eq(data_chunks(data), 1);
    ck_assert_int_eq(data_read(data, 0, &block), DATA_BLOCK);
    const struct examples *e = &block.examples;
    ck_assert_uint_eq(e->n, 3);
    ck_assert(!e->offsets && !e->values);
    const double x[3][4] = {{log(2), -log(4), 0, log(4096)},
                            {0, log(4097), log(123456789012345679.0), log(1e8)},
                            {0, log(1000001), log(12345679), log(123456790)}};
    for (int i = 0; i < 3; i++) {
        ck_assert_float_eq(e->labels[i], i == 0);
        for (int k = 0; k < 4; k++)
            assert_near(e->dense[13 * i + k], x[i][k]);
        for (int k = 4; k < 13; k++)
            assert_near(e->dense[13 * i + k], log(1.0 + k));
        for (uint32_t k = 0; k < 24; k++)
            ck_assert_uint_eq(e->ids[26 * i + (int)k], data_hash(k, &"abcdefghijklmnopqrstuvwx"[k], 1));
    }
    const char *last[3][2] = {{"68fd1e64", ""}, {"longer-than-8", "0"}, {"", "\xff\x80"}};
    for (int i = 0; i < 3; i++)
        for (uint32_t k = 0; k < 2; k++)
            ck_assert_uint_eq(e->ids[26 * i + 24 + (int)k],
                              data_hash(24 + k, last[i][k], strlen(last[i][k])));
    ck_assert_uint_eq(block.lines, 3);
    ck_assert_uint_eq(block.bad, 0);
    ck_assert_int_eq(data_read(data, 1, &block), DATA_END);
    block_fini(&block);
    data_close(data);
    ck_assert_int_eq(heard.n, 0);
}
END_TEST

/* Every number of up to 9 digits at its ends, and around them. */
START_TEST(criteo_integers)
{
    char *text = NULL;
    size_t n;
    int64_t values[200];
    int rows = 0;
    FILE *out = open_memstream(&text, &n);
    for (int64_t ten = 1; ten < 1000000000000; ten *= 10)
        for (int64_t d = -2; d <= 2; d++)
            values[rows++] = ten + d;
    for (int i = 0; i < rows; i++)
        fprintf(out, "0\t%lld\t1\t2\t3" REST CATEGORIES "\t1\t2\n", (long long)values[i]);
    fclose(out);
    const char *path = put("i.tsv", text, n);
    struct data *data;
    struct block block = {0};
    struct data_options o = {.paths = &path, .n_paths = 1, .log = &listening};
    ck_assert_int_eq(data_open(&data, &o), DESCANT_OK);
    ck_assert_int_eq(data_read(data, 0, &block), DATA_BLOCK);
    ck_assert_uint_eq(block.examples.n, (size_t)rows);
    for (int i = 0; i < rows; i++) {
        double x = (double)values[i];
        assert_near(block.examples.dense[13 * i], x < 0 ? -log(1 - x) : log(1 + x));
    }
    block_fini(&block);
    data_close(data);
    free(text);
}
END_TEST

/* --- bad lines --- */

#define GOOD_CRITEO "1\t1\t2\t3\t4" REST CATEGORIES "\t1\t2"

static const struct defect {
    enum data_format format;
    const char *line, *reason;
    size_t n;                   /* 0: strlen */
} defects[] = {
    {DATA_CRITEO, "", "1 columns, 40 are needed", 0},
    {DATA_CRITEO, "1\t2\t3", "3 columns, 40 are needed", 0},
    {DATA_CRITEO, GOOD_CRITEO "\t", "more than 40 columns, 40 are needed", 0},
    {DATA_CRITEO, "2\t1\t2\t3\t4" REST CATEGORIES "\t1\t2", "label '2': allowed is 0 or 1", 0},
    {DATA_CRITEO, "-1\t1\t2\t3\t4" REST CATEGORIES "\t1\t2", "label '-1': allowed is 0 or 1", 0},
    {DATA_CRITEO, "\t1\t2\t3\t4" REST CATEGORIES "\t1\t2", "label '': allowed is 0 or 1", 0},
    {DATA_CRITEO, "0\t1x\t2\t3\t4" REST CATEGORIES "\t1\t2",
     "column 2: '1x' is not a whole number", 0},
    {DATA_CRITEO, "0\t1\t-\t3\t4" REST CATEGORIES "\t1\t2",
     "column 3: '-' is not a whole number", 0},
    {DATA_CRITEO, "0\t1\t2\t1.5\t4" REST CATEGORIES "\t1\t2",
     "column 4: '1.5' is not a whole number", 0},
    {DATA_CRITEO, "0\t1\t2\t3\t1234567890123456789" REST CATEGORIES "\t1\t2",
     "column 5: '1234567890123456789' is too large", 0},
    {DATA_CRITEO, "0\t1\t2\t3\t123456789012a" REST CATEGORIES "\t1\t2",
     "column 5: '123456789012a' is not a whole number", 0},
    {DATA_CRITEO, GOOD_CRITEO "\0", "a NUL byte", sizeof GOOD_CRITEO},
    {DATA_LIBSVM, "", "label '': allowed is 0 and 1, or -1 and +1", 0},
    {DATA_LIBSVM, "2 1:1", "label '2': allowed is 0 and 1, or -1 and +1", 0},
    {DATA_LIBSVM, "x 1:1", "label 'x': allowed is 0 and 1, or -1 and +1", 0},
    {DATA_LIBSVM, "1 1:1 7", "pair 2: '7' is not index:value", 0},
    {DATA_LIBSVM, "1 :1", "pair 1: ':1' is not index:value", 0},
    {DATA_LIBSVM, "1 -3:1", "pair 1: '-3' is not a whole number below 2^32", 0},
    {DATA_LIBSVM, "1 4294967296:1", "pair 1: '4294967296' is not a whole number below 2^32", 0},
    {DATA_LIBSVM, "1 qid:1", "pair 1: 'qid' is not a whole number below 2^32", 0},
    {DATA_LIBSVM, "1 3:", "pair 1: '' is not a number, or too large", 0},
    {DATA_LIBSVM, "1 3:.", "pair 1: '.' is not a number, or too large", 0},
    {DATA_LIBSVM, "1 3:1e", "pair 1: '1e' is not a number, or too large", 0},
    {DATA_LIBSVM, "1 3:nan", "pair 1: 'nan' is not a number, or too large", 0},
    {DATA_LIBSVM, "1 3:-inf", "pair 1: '-inf' is not a number, or too large", 0},
    {DATA_LIBSVM, "1 3:1e39", "pair 1: '1e39' is not a number, or too large", 0},
    {DATA_LIBSVM, "1 3:1e999999999999999999999",
     "pair 1: '1e999999999999999999999' is not a number, or too large", 0},
    {DATA_LIBSVM, "1 3:4\0", "a NUL byte", 6},
    {DATA_LIBFFM, "1 1:1", "pair 1: '1' is not index:value", 0},
    {DATA_LIBFFM, "1 7", "pair 1: '7' is not field:index:value", 0},
    {DATA_LIBFFM, "1 4:1:1", "pair 1: '4' is not a field: allowed is 0 to 3", 0},
    {DATA_LIBFFM, "1 -1:1:1", "pair 1: '-1' is not a field: allowed is 0 to 3", 0},
    {DATA_LIBFFM, "1 3:1:1 :1:1", "pair 2: '' is not a field: allowed is 0 to 3", 0},
    {DATA_LIBFFM, "1 3:1:1:1", "pair 1: '1:1' is not a number, or too large", 0},
};

static const char *good_line(enum data_format format)
{
    return format == DATA_CRITEO ? GOOD_CRITEO "\n"
         : format == DATA_LIBSVM ? "1 3:1\n" : "1 3:3:1\n";
}

START_TEST(bad_lines_are_told_and_skipped)
{
    const struct defect *d = &defects[_i];
    char text[4096], want[400];
    size_t n = (size_t)snprintf(text, sizeof text, "%s%s", good_line(d->format),
                                good_line(d->format));
    struct seen good = read_file(put("g", text, n), d->format);
    n = strlen(good_line(d->format));
    size_t m = d->n ? d->n : strlen(d->line);
    memcpy(text + n, d->line, m);
    n += m;
    text[n++] = '\n';
    n += (size_t)snprintf(text + n, sizeof text - n, "%s", good_line(d->format));
    const char *path = put("b", text, n);
    struct seen bad = read_file(path, d->format);
    ck_assert_int_eq(bad.got, DATA_END);
    ck_assert_uint_eq(bad.bad, 1);
    ck_assert_uint_eq(bad.lines, 3);
    ck_assert_int_eq(heard.n, 1);
    snprintf(want, sizeof want, "%s:2: %s", path, d->reason);
    ck_assert_str_eq(heard.lines[0], want);
    good.lines++;
    good.bad++;
    assert_same(&good, &bad);
    free(good.at);
    free(bad.at);
}
END_TEST

START_TEST(too_many_bad_lines_end_it)
{
    char *text = NULL;
    size_t n;
    FILE *out = open_memstream(&text, &n);
    for (int i = 0; i < 3000; i++)
        fputs(i % 50 == 9 ? "bad\n" : "1 3:1\n", out);
    fclose(out);
    const char *path = put("m.svm", text, n);
    struct data_options o = {.paths = &path, .n_paths = 1, .max_bad = 0.025, .log = &listening,
                             .chunk_bytes = 1 << 10};
    struct seen seen = read_chunks(&o, 0, 0);
    ck_assert_int_eq(seen.got, DATA_END);
    ck_assert_uint_eq(seen.bad, 60);
    ck_assert_int_eq(heard.n, 5);
    ck_assert(ends_with(heard.lines[4], "m.svm:210: label 'bad': allowed is 0 and 1, or -1 and +1"));
    free(seen.at);
    heard.n = 0;
    o.max_bad = 0.0199;
    seen = read_chunks(&o, 0, 0);
    ck_assert_int_eq(seen.got, DATA_FAILED);
    ck_assert_int_eq(seen.status, DESCANT_CORRUPT);
    ck_assert_uint_ge(seen.lines, 800);
    ck_assert_uint_lt(seen.lines, 1300);
    char want[400];
    snprintf(want, sizeof want, "lines are bad, more than 1.99 %%; the last one reported: %s:210: "
             "label 'bad': allowed is 0 and 1, or -1 and +1", path);
    ck_assert_msg(ends_with(heard.lines[5], want), "%s", heard.lines[5]);
    free(seen.at);
    free(text);
}
END_TEST

START_TEST(few_lines_are_judged_at_the_end)
{
    const char *path = put_text("few.svm", "1 3:1\nbad\n0 3:1\n1\n");
    struct data_options o = {.paths = &path, .n_paths = 1, .max_bad = 0.25, .log = &listening};
    struct seen seen = read_chunks(&o, 0, 0);
    ck_assert_int_eq(seen.got, DATA_END);
    ck_assert_uint_eq(seen.n, 3);
    free(seen.at);
    o.max_bad = 0.24;
    seen = read_chunks(&o, 0, 0);
    ck_assert_int_eq(seen.got, DATA_FAILED);
    ck_assert_uint_eq(seen.n, 3);
    free(seen.at);
    o.max_bad = 0;
    seen = read_chunks(&o, 0, 0);
    ck_assert_int_eq(seen.got, DATA_FAILED);
    ck_assert_int_eq(strncmp(heard.lines[heard.n - 1], "1 of 4 lines are bad, more than 0 %", 35),
                     0);
    free(seen.at);
}
END_TEST

/* --- sparse text --- */

START_TEST(libsvm_values)
{
    const char *path = put_text("a.libsvm",
        "+1 0:1 4294967295:-0.5  7:1e3\t3:+12345678901234567890e-10 \r\n-1\n"
        "0 1:1e-50 2:.5 3:3. 4:0.1E+1\n1.0 9:340282346638528859811704183484516925440");
    struct data *data;
    struct block block = {0};
    struct data_options o = {.paths = &path, .n_paths = 1, .log = &listening};
    ck_assert_int_eq(data_open(&data, &o), DESCANT_OK);
    ck_assert(data_shape(data)->plain_ids && data_shape(data)->bags);
    ck_assert_int_eq(data_shape(data)->n_fields, 1);
    ck_assert_int_eq(data_read(data, 0, &block), DATA_BLOCK);
    const struct examples *e = &block.examples;
    const uint32_t offsets[] = {0, 4, 4, 8, 9}, ids[] = {0, UINT32_MAX, 7, 3, 1, 2, 3, 4, 9};
    const float values[] = {1, -0.5f, 1000, 1234567890.123456789f, 0, 0.5f, 3, 1, 0x1.fffffep127f};
    const float labels[] = {1, 0, 0, 1};
    ck_assert_uint_eq(e->n, 4);
    ck_assert_mem_eq(e->offsets, offsets, sizeof offsets);
    ck_assert_mem_eq(e->ids, ids, sizeof ids);
    ck_assert_mem_eq(e->labels, labels, sizeof labels);
    for (int i = 0; i < N(values); i++)
        ck_assert_msg(fabsf(e->values[i] - values[i]) <= 1e-40f, "value %d: %g", i,
                      (double)e->values[i]);
    block_fini(&block);
    data_close(data);
    ck_assert_int_eq(heard.n, 0);
}
END_TEST

START_TEST(libsvm_classes_and_hashes)
{
    const char *path = put_text("c.svm", "3 word:1 other:2\n0\n4 x:1\n2.5 x:1\n-1 x:1\n");
    struct data *data;
    struct block block = {0};
    struct data_options o = {.paths = &path, .n_paths = 1, .log = &listening, .hash = true,
                             .n_classes = 4, .max_bad = 1};
    ck_assert_int_eq(data_open(&data, &o), DESCANT_OK);
    ck_assert(!data_shape(data)->plain_ids);
    ck_assert_int_eq(data_shape(data)->n_classes, 4);
    ck_assert_int_eq(data_read(data, 0, &block), DATA_BLOCK);
    ck_assert_uint_eq(block.examples.n, 2);
    ck_assert_float_eq(block.examples.labels[0], 3);
    ck_assert_uint_eq(block.examples.ids[0], data_hash(0, "word", 4));
    ck_assert_uint_eq(block.examples.ids[1], data_hash(0, "other", 5));
    ck_assert_int_eq(heard.n, 3);
    ck_assert(ends_with(heard.lines[0], "c.svm:3: label '4': allowed is 0 to 3"));
    ck_assert(ends_with(heard.lines[2], "c.svm:5: label '-1': allowed is 0 to 3"));
    block_fini(&block);
    data_close(data);
}
END_TEST

START_TEST(libffm_values)
{
    const char *path = put_text("a.ffm", "1 2:10:1 0:5:0.5 2:11:2\n0\n1 3:1:1 1:2:3\n");
    struct data *data;
    struct block block = {0};
    struct data_options o = {.paths = &path, .n_paths = 1, .log = &listening, .n_fields = 4};
    ck_assert_int_eq(data_open(&data, &o), DESCANT_OK);
    ck_assert_int_eq(data_read(data, 0, &block), DATA_BLOCK);
    const uint32_t offsets[] = {0, 1, 1, 3, 3, 3, 3, 3, 3, 3, 4, 4, 5}, ids[] = {5, 10, 11, 2, 1};
    const float values[] = {0.5f, 1, 2, 3, 1};
    ck_assert_uint_eq(block.examples.n, 3);
    ck_assert_mem_eq(block.examples.offsets, offsets, sizeof offsets);
    ck_assert_mem_eq(block.examples.ids, ids, sizeof ids);
    ck_assert_mem_eq(block.examples.values, values, sizeof values);
    data_close(data);
    o.hash = true;
    ck_assert_int_eq(data_open(&data, &o), DESCANT_OK);
    ck_assert_int_eq(data_read(data, 0, &block), DATA_BLOCK);
    ck_assert_uint_eq(block.examples.ids[0], data_hash(0, "5", 1));
    ck_assert_uint_eq(block.examples.ids[2], data_hash(2, "11", 2));
    block_fini(&block);
    data_close(data);
    o.n_fields = 0;
    ck_assert_int_eq(data_open(&data, &o), DESCANT_INVALID);
}
END_TEST

/* --- chunks --- */

static const size_t chunk_sizes[] = {7, 64, 1 << 10, 1 << 20};

/* Two files, plain or packed, of each size of chunks, read by one and by two readers. */
START_TEST(chunks_share_each_line_once)
{
    static const enum data_format formats[] = {DATA_CRITEO, DATA_LIBSVM, DATA_LIBFFM};
    enum data_format format = formats[_i / 3];
    int kind = _i % 3;
    size_t n;
    char *text = text_of(format, 300, &n);
    size_t half = n / 2;
    while (text[half - 1] != '\n')
        half++;
    struct seen whole = read_file(put("whole", text, n), format);
    ck_assert_int_eq(whole.got, DATA_END);
    ck_assert_uint_eq(whole.lines, 300);
    ck_assert_uint_ge(whole.bad, 6);
    const char *paths[] = {put_packed(kind, "1", text, half), put("empty", "", 0),
                           put_packed(kind == 1 ? 2 : kind, "2", text + half, n - half)};
    for (int i = 0; i < N(chunk_sizes); i++) {
        struct data_options o = {.paths = paths, .n_paths = 3, .format = format, .n_fields = 4,
                                 .chunk_bytes = chunk_sizes[i], .max_bad = 1,
                                 .log = &listening};
        struct seen all = read_chunks(&o, 0, 0);
        ck_assert_int_eq(all.got, DATA_END);
        assert_same(&whole, &all);
        free(all.at);
        for (uint64_t seed = 1; seed < 6; seed++) {
            all = read_shared(&o, seed);
            assert_same(&whole, &all);
            free(all.at);
        }
    }
    free(whole.at);
    free(text);
}
END_TEST

START_TEST(line_numbers_are_the_files)
{
    size_t n;
    char *text = criteo_text(200, &n);
    for (int kind = 0; kind < 3; kind++)
        for (int i = 0; i < N(chunk_sizes); i++) {
            const char *path = put_packed(kind, "n", text, n);
            struct data_options o = {.paths = &path, .n_paths = 1, .format = DATA_CRITEO,
                                     .chunk_bytes = chunk_sizes[i], .max_bad = 1,
                                     .log = &listening};
            heard.n = 0;
            struct seen seen = read_chunks(&o, 0, 0);
            ck_assert_int_eq(heard.n, 5);
            for (int k = 0; k < 5; k++) {
                char want[400];
                snprintf(want, sizeof want, "%s:%d: 39 columns, 40 are needed", path,
                         40 * (k + 1));
                ck_assert_str_eq(heard.lines[k], want);
            }
            free(seen.at);
        }
    free(text);
}
END_TEST

START_TEST(epochs_follow_each_other)
{
    size_t n;
    char *text = criteo_text(100, &n);
    for (int kind = 0; kind < 3; kind++) {
        const char *paths[] = {put_packed(kind, "e1", text, n), put_packed(kind, "e2", text, n)};
        struct data_options o = {.paths = paths, .n_paths = 2, .format = DATA_CRITEO,
                                 .chunk_bytes = 1000, .max_bad = 1, .log = &listening};
        struct seen once = read_chunks(&o, 0, 0);
        o.epochs = 3;
        struct seen all = read_chunks(&o, 0, 0), shared = read_shared(&o, 5);
        ck_assert_uint_eq(all.n, 3 * once.n);
        ck_assert_uint_eq(all.at[all.n - 1].chunk, 6 * ((n + 999) / 1000) - 1);
        for (size_t i = 0; i < all.n; i++)
            ck_assert_uint_eq(all.at[i].print, once.at[i % once.n].print);
        assert_same(&all, &shared);
        free(once.at);
        free(all.at);
        free(shared.at);
    }
    free(text);
}
END_TEST

START_TEST(places_and_counts)
{
    size_t n;
    char *text = criteo_text(100, &n);
    for (int kind = 0; kind < 3; kind++) {
        const char *path = put_packed(kind, "p", text, n);
        struct data_options o = {.paths = &path, .n_paths = 1, .format = DATA_CRITEO,
                                 .chunk_bytes = 1000, .max_bad = 1, .epochs = 2};
        struct data *data;
        struct block block = {0};
        uint64_t chunks = 2 * ((n + 999) / 1000);
        ck_assert_int_eq(data_open(&data, &o), DESCANT_OK);
        ck_assert_uint_eq(data_chunks(data), kind ? UINT64_MAX : chunks);
        double before = 0;
        uint64_t k = 0;
        for (; data_read(data, k, &block) == DATA_BLOCK; k++) {
            double place_now = data_place(data, k);
            ck_assert(place_now >= before && place_now <= 1);
            before = place_now;
        }
        ck_assert_uint_eq(k, chunks);
        ck_assert_uint_eq(data_chunks(data), chunks);
        ck_assert_double_eq(data_place(data, k), 1);
        block_fini(&block);
        data_close(data);
    }
    free(text);
}
END_TEST

/* Longer than LINE_LIMIT, at the start, in the middle, at the end: bad, wherever chunks end. */
START_TEST(long_lines_are_bad_ones)
{
    enum { LONG = LINE_LIMIT + 100000 };
    char *text = malloc(2 * LONG + 100);
    static const size_t sizes[] = {1000, 100000, 1 << 20, 8 << 20};
    size_t n = (size_t)sprintf(text, "1 3:1\n0 4:1\n");
    memset(text + n, 'x', LONG);
    n += LONG;
    n += (size_t)sprintf(text + n, "\n1 5:1\n");
    memset(text + n, ' ', LONG);
    text[n] = '1';
    n += LONG;
    for (int kind = 0; kind < 3; kind++)
        for (int i = 0; i < N(sizes); i++) {
            const char *path = put_packed(kind, "l", text, n);
            struct data_options o = {.paths = &path, .n_paths = 1, .format = DATA_LIBSVM,
                                     .chunk_bytes = sizes[i], .max_bad = 1,
                                     .log = &listening};
            heard.n = 0;
            struct seen seen = read_chunks(&o, 0, 0);
            ck_assert_uint_eq(seen.n, 3);
            ck_assert_uint_eq(seen.lines, 5);
            ck_assert_uint_eq(seen.bad, 2);
            ck_assert(ends_with(heard.lines[0], "l:3: the line is longer than 1048576 bytes"));
            ck_assert(ends_with(heard.lines[1], "l:5: the line is longer than 1048576 bytes"));
            free(seen.at);
        }
    free(text);
}
END_TEST

/* --- files that are not as they should be --- */

START_TEST(files_that_cannot_be_read)
{
    static const struct {
        const char *name, *end;
        descant_status status;
    } cases[] = {{"/nowhere/x.tsv", "/nowhere/x.tsv: No such file or directory", DESCANT_SYSTEM},
                 {"/", "/: Is a directory", DESCANT_SYSTEM}};
    for (int i = 0; i < N(cases); i++) {
        struct seen seen = read_file(cases[i].name, DATA_CRITEO);
        ck_assert_int_eq(seen.status, cases[i].status);
        ck_assert_str_eq(heard.lines[i], cases[i].end);
    }
    const char *paths[] = {"-", "/dev/null"};
    struct data *data;
    struct data_options o = {.paths = paths, .n_paths = 2, .format = DATA_CRITEO,
                             .log = &listening};
    ck_assert_int_eq(data_open(&data, &o), DESCANT_INVALID);
    o.n_paths = 1;
    o.epochs = 2;
    ck_assert_int_eq(data_open(&data, &o), DESCANT_INVALID);
    o.n_paths = 0;
    ck_assert_int_eq(data_open(&data, &o), DESCANT_INVALID);
    for (int kind = 0; kind < 3; kind++) {
        struct seen seen = read_file(put_packed(kind, "z", "", 0), DATA_CRITEO);
        ck_assert_int_eq(seen.got, DATA_END);
        ck_assert_uint_eq(seen.n + seen.lines, 0);
    }
}
END_TEST

START_TEST(a_file_that_shrinks)
{
    size_t n;
    char *text = criteo_text(500, &n);
    const char *path = put("s.tsv", text, n);
    struct data_options o = {.paths = &path, .n_paths = 1, .chunk_bytes = 5000,
                             .max_bad = 1, .log = &listening};
    struct data *data;
    struct block block = {0};
    enum data_got got;
    ck_assert_int_eq(data_open(&data, &o), DESCANT_OK);
    ck_assert_int_eq(data_read(data, 0, &block), DATA_BLOCK);
    ck_assert_int_eq(truncate(path, 20000), 0);
    for (uint64_t k = 1; (got = data_read(data, k, &block)) == DATA_BLOCK; k++)
        ;
    ck_assert_int_eq(got, DATA_FAILED);
    ck_assert_int_eq(data_status(data), DESCANT_SYSTEM);
    ck_assert(ends_with(descant_last_error(), "s.tsv: it became shorter while it was read"));
    ck_assert_int_eq(data_read(data, 100, &block), DATA_FAILED);
    block_fini(&block);
    data_close(data);
    free(text);
}
END_TEST

/* Cut at every length, and after its end: an error that names the file, or nothing at all. */
START_TEST(packed_files_that_are_cut)
{
    int kind = _i + 1;
    size_t n;
    char *text = criteo_text(8, &n);
    unsigned char *packed = malloc(2 * n + 1000);
    size_t m = pack(kind, text, n, packed, 2 * n + 1000);
    for (size_t cut = 4; cut < m; cut += cut < 64 || m - cut < 64 ? 1 : 37) {
        heard.n = 0;
        struct seen seen = read_file(put("cut", packed, cut), DATA_CRITEO);
        ck_assert_msg(seen.got == DATA_FAILED, "cut at %zu of %zu", cut, m);
        ck_assert_int_eq(seen.status, DESCANT_CORRUPT);
        ck_assert(strstr(heard.lines[heard.n - 1], kind == 1 ? "cut: the gzip data is damaged: "
                                                             : "cut: the zstd data is damaged: "));
        free(seen.at);
    }
    ck_assert(ends_with(descant_last_error(), "it ends too early"));
    memcpy(packed + m, "rest", 4);
    struct seen seen = read_file(put("cut", packed, m + 4), DATA_CRITEO);
    ck_assert_int_eq(seen.status, DESCANT_CORRUPT);
    free(seen.at);
    packed[m / 2] ^= 0x55;
    seen = read_file(put("cut", packed, m), DATA_CRITEO);
    ck_assert(kind == 2 || seen.status == DESCANT_CORRUPT);    /* zstd without a checksum */
    free(seen.at);
    free(packed);
    free(text);
}
END_TEST

START_TEST(packed_files_in_pieces)
{
    size_t n;
    char *text = criteo_text(60, &n);
    struct seen whole = read_file(put("w", text, n), DATA_CRITEO);
    for (int kind = 1; kind < 3; kind++) {
        unsigned char *packed = malloc(4 * n + 4000);
        size_t m = pack(kind, text, n / 3, packed, 2 * n);
        m += pack(kind, "", 0, packed + m, 2 * n);
        m += pack(kind, text + n / 3, n - n / 3, packed + m, 2 * n);
        struct seen seen = read_file(put("pieces", packed, m), DATA_CRITEO);
        ck_assert_int_eq(seen.got, DATA_END);
        assert_same(&whole, &seen);
        free(seen.at);
        memset(packed + m, 0, 512);
        if (kind == STREAM_GZIP) {
            seen = read_file(put("padded", packed, m + 512), DATA_CRITEO);
            ck_assert_int_eq(seen.got, DATA_END);
            assert_same(&whole, &seen);
            free(seen.at);
        }
        free(packed);
    }
    free(whole.at);
    free(text);
}
END_TEST

START_TEST(formats_are_guessed)
{
    static const struct {
        const char *name, *text;
        int fields;
    } cases[] = {{"g1.tsv", "", 26},        {"g2.svm.gz", "", 1},  {"g3.ffm", "", 4},
                 {"g4", GOOD_CRITEO, 26},   {"g5", "1 3:1\n", 1},  {"g6", "0 1:2:1", 4},
                 {"g7", "nothing\nwe know", 0}, {"g8", "", 0}};
    for (int i = 0; i < 2 * N(cases); i++) {
        const char *text = cases[i / 2].text;
        const char *path = put_packed(i % 2, cases[i / 2].name, text, strlen(text));
        struct data_options o = {.paths = &path, .n_paths = 1, .n_fields = 4, .log = &listening};
        struct data *data;
        descant_status status = data_open(&data, &o);
        ck_assert_int_eq(status, cases[i / 2].fields ? DESCANT_OK : DESCANT_INVALID);
        if (status == DESCANT_OK) {
            ck_assert_int_eq(data_shape(data)->n_fields, cases[i / 2].fields);
            data_close(data);
        }
    }
    ck_assert(ends_with(descant_last_error(), "g8: its format cannot be told; name it"));
}
END_TEST

/* --- stdin --- */

static struct seen read_stdin(void *shared, size_t chunk_bytes)
{
    const char *path = "-";
    return read_chunks(&(struct data_options){.paths = &path, .n_paths = 1, .max_bad = 1,
                                              .format = DATA_CRITEO, .log = &listening,
                                              .chunk_bytes = chunk_bytes, .shared = shared},
                       0, 0);
}

static void stdin_from(const char *path)
{
    int fd = open(path, O_RDONLY);
    ck_assert_int_ge(fd, 0);
    dup2(fd, 0);
    close(fd);
}

START_TEST(stdin_is_like_a_file)
{
    size_t n;
    char *text = criteo_text(300, &n);
    struct seen whole = read_file(put("w", text, n), DATA_CRITEO);
    for (int kind = 0; kind < 3; kind++)
        for (int i = 0; i < N(chunk_sizes); i++) {
            stdin_from(put_packed(kind, "stdin", text, n));
            heard.n = 0;
            struct seen seen = read_stdin(NULL, chunk_sizes[i]);
            ck_assert_int_eq(seen.got, DATA_END);
            assert_same(&whole, &seen);
            ck_assert_str_eq(heard.lines[1], "stdin:80: 39 columns, 40 are needed");
            free(seen.at);
        }
    free(whole.at);
    free(text);
}
END_TEST

static int by_print(const void *a, const void *b)
{
    return by_chunk((const uint64_t *)a + 1, (const uint64_t *)b + 1);
}

static void *map_shared(size_t bytes)
{
    void *shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(shared, MAP_FAILED);
    return shared;
}

/* Three processes take turns; together they have each example once. */
START_TEST(stdin_is_shared)
{
    enum { READERS = 3, ROWS = 2000 };
    struct {
        _Atomic size_t n;
        uint64_t at[2 * ROWS][2];
    } *all = map_shared(sizeof *all);
    size_t n;
    char *text = criteo_text(ROWS, &n);
    struct seen whole = read_file(put("w", text, n), DATA_CRITEO);
    void *shared = map_shared(data_shared_bytes());
    stdin_from(put_packed(_i, "stdin", text, n));
    for (int i = 0; i < READERS; i++)
        if (fork() == 0) {
            struct seen seen = read_stdin(shared, 4096);
            for (size_t k = 0; k < seen.n; k++)
                memcpy(all->at[atomic_fetch_add(&all->n, 1)], &seen.at[k], 16);
            _exit(seen.got == DATA_END ? 0 : 1);
        }
    for (int i = 0; i < READERS; i++) {
        int status;
        wait(&status);
        ck_assert_int_eq(status, 0);
    }
    ck_assert_uint_eq(all->n, whole.n);
    qsort(all->at, all->n, 16, by_chunk);
    for (size_t i = 1; i < all->n; i++)
        ck_assert_uint_le(all->at[i][0] - all->at[i - 1][0], 1);
    qsort(all->at, all->n, 16, by_print);
    qsort(whole.at, whole.n, 16, by_print);
    for (size_t i = 0; i < whole.n; i++)
        ck_assert_uint_eq(all->at[i][1], whole.at[i].print);
    free(whole.at);
    free(text);
}
END_TEST

/* A reader dies while it waits for bytes, with the lock and half a line: the next one goes on
 * after that line. Compressed data cannot go on. */
START_TEST(stdin_survives_its_reader)
{
    int ends[2], status;
    size_t n, half, left = 1;
    char *text = criteo_text(20, &n);
    unsigned char packed[20000];
    void *shared = map_shared(data_shared_bytes());
    n = pack(_i, text, n, packed, sizeof packed);
    half = n / 2;
    ck_assert_int_eq(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[0], 0);
        close(ends[1]);
        read_stdin(shared, 1 << 20);
        _exit(0);
    }
    ck_assert_int_eq(write(ends[1], packed, half), (ssize_t)half);
    while (left > 0)
        ck_assert_int_eq(ioctl(ends[0], FIONREAD, &left), 0);
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    ck_assert_int_eq(write(ends[1], packed + half, n - half), (ssize_t)(n - half));
    close(ends[1]);
    dup2(ends[0], 0);
    struct seen seen = read_stdin(shared, 1 << 20);
    if (_i == 0) {
        struct seen whole = read_file(put("w", text, n), DATA_CRITEO);
        ck_assert_int_eq(seen.got, DATA_END);
        ck_assert_str_eq(heard.lines[0], "stdin: a process died while it read; some lines are lost");
        ck_assert(seen.n >= 5 && seen.n < 15);
        for (size_t i = 1; i <= seen.n; i++)
            ck_assert_uint_eq(seen.at[seen.n - i].print, whole.at[whole.n - i].print);
        free(whole.at);
    } else {
        ck_assert_int_eq(seen.status, DESCANT_CORRUPT);
        ck_assert_str_eq(heard.lines[0], "stdin: a process died while it decompressed");
    }
    free(seen.at);
    free(text);
}
END_TEST

/* --- images --- */

enum { IMAGES = 50, SIDE = 3 };

static const char *put_images(const char *name, int from, int n, int kind)
{
    unsigned char images[16 + IMAGES * SIDE * SIDE] = {0, 0, 8, 3, 0, 0, 0, (unsigned char)n,
                                                       0, 0, 0, SIDE, 0, 0, 0, SIDE};
    unsigned char labels[8 + IMAGES] = {0, 0, 8, 1, 0, 0, 0, (unsigned char)n};
    char file[100];
    for (int i = 0; i < n; i++) {
        labels[8 + i] = (unsigned char)((from + i) % 7);
        for (int k = 0; k < SIDE * SIDE; k++)
            images[16 + i * SIDE * SIDE + k] = (unsigned char)(from + i + k);
    }
    snprintf(file, sizeof file, "%s-labels-idx1-ubyte", name);
    put_packed(kind, file, labels, 8 + (size_t)n);
    snprintf(file, sizeof file, "%s-images-idx3-ubyte", name);
    return put_packed(kind, file, images, 16 + (size_t)n * SIDE * SIDE);
}

static void read_images(const struct data_options *o, int epoch, int order[IMAGES])
{
    struct data *data;
    struct block block = {0};
    ck_assert_int_eq(data_open(&data, o), DESCANT_OK);
    ck_assert_int_eq(data_shape(data)->n_dense, SIDE * SIDE);
    ck_assert_int_eq(data_shape(data)->n_classes, 7);
    uint64_t chunks = data_chunks(data) / 3;
    int n = 0;
    for (uint64_t k = 0; k < chunks; k++) {
        ck_assert_int_eq(data_read(data, chunks * (uint64_t)epoch + k, &block), DATA_BLOCK);
        for (size_t i = 0; i < block.examples.n; i++, n++) {
            const float *x = block.examples.dense + i * SIDE * SIDE;
            order[n] = (int)lrintf(x[0] * 255);
            ck_assert_float_eq(block.examples.labels[i], (float)(order[n] % 7));
            for (int p = 0; p < SIDE * SIDE; p++)
                ck_assert_float_eq(x[p], (float)(order[n] + p) / 255);
        }
    }
    ck_assert_int_eq(n, IMAGES);
    ck_assert_int_eq(data_read(data, 3 * chunks, &block), DATA_END);
    block_fini(&block);
    data_close(data);
}

START_TEST(images_come_in_a_new_order_each_epoch)
{
    const char *paths[] = {put_images("a", 0, 20, _i), put_images("b", 20, 30, _i)};
    struct data_options o = {.paths = paths, .n_paths = 2, .epochs = 3, .chunk_bytes = 63,
                             .log = &listening};
    int orders[5][IMAGES];
    read_images(&o, 1, orders[0]);
    for (int i = 0; i < IMAGES; i++)
        ck_assert_int_eq(orders[0][i], i);
    o.seed = 5;
    read_images(&o, 0, orders[0]);
    read_images(&o, 2, orders[1]);
    read_images(&o, 0, orders[2]);
    o.seed = 6;
    read_images(&o, 0, orders[3]);
    ck_assert_mem_eq(orders[0], orders[2], sizeof orders[0]);
    ck_assert_mem_ne(orders[0], orders[1], sizeof orders[0]);
    ck_assert_mem_ne(orders[0], orders[3], sizeof orders[0]);
    for (int k = 0; k < 4; k++) {
        bool there[IMAGES] = {false};
        for (int i = 0; i < IMAGES; i++)
            there[orders[k][i]] = true;
        for (int i = 0; i < IMAGES; i++)
            ck_assert(there[i]);
    }
    ck_assert_int_eq(heard.n, 0);
}
END_TEST

START_TEST(images_that_are_not)
{
    static const unsigned char good[16 + 4] = {0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 2};
    static const unsigned char labels[9] = {0, 0, 8, 1, 0, 0, 0, 1, 3};
    static const struct {
        int at;
        unsigned char value;
        size_t n, n_labels;
        const char *end;
    } cases[] = {
        {0, 1, 20, 9, "x-images-idx3-ubyte: not an IDX file of images"},
        {0, 0, 15, 9, "x-images-idx3-ubyte: not an IDX file of images"},
        {0, 0, 19, 9, "x-images-idx3-ubyte: 19 bytes, but 1 images of 4 pixels are 20"},
        {7, 2, 20, 9, "x-images-idx3-ubyte: 20 bytes, but 2 images of 4 pixels are 24"},
        {4, 255, 20, 9,
         "x-images-idx3-ubyte: 20 bytes, but 4278190081 images of 4 pixels are 17112760340"},
        {8, 255, 20, 9, "x-images-idx3-ubyte: images of 8556380164 pixels"},
        {11, 0, 20, 9, "x-images-idx3-ubyte: images of 0 pixels"},
        {0, 0, 20, 8, "x-labels-idx1-ubyte: 1 labels in 8 bytes, for 1 images"},
        {0, 0, 20, 3, "x-labels-idx1-ubyte: not an IDX file of labels"},
    };
    for (int i = 0; i < N(cases); i++) {
        unsigned char bytes[sizeof good];
        memcpy(bytes, good, sizeof good);
        bytes[cases[i].at] = cases[i].value;
        put("x-labels-idx1-ubyte", labels, cases[i].n_labels);
        struct seen seen = read_file(put("x-images-idx3-ubyte", bytes, cases[i].n), DATA_AUTO);
        ck_assert_int_eq(seen.status, DESCANT_CORRUPT);
        ck_assert_msg(ends_with(descant_last_error(), cases[i].end), "%s", descant_last_error());
    }
    struct seen seen = read_file(put("odd-name", good, sizeof good), DATA_IDX);
    ck_assert_int_eq(seen.status, DESCANT_INVALID);
    seen = read_file(put("alone-images-idx3", good, sizeof good), DATA_IDX);
    ck_assert_int_eq(seen.status, DESCANT_SYSTEM);
    ck_assert(ends_with(descant_last_error(), "alone-labels-idx1: No such file or directory"));
}
END_TEST

START_TEST(fashion_is_read_where_it_is)
{
    const char *path = "/usr/share/datasets/fashion-mnist/t10k-images-idx3-ubyte.gz";
    if (access(path, R_OK) != 0)
        return;
    struct data_options o = {.paths = &path, .n_paths = 1, .log = &listening, .seed = 1};
    struct seen seen = read_chunks(&o, 0, 0);
    ck_assert_int_eq(seen.got, DATA_END);
    ck_assert_uint_eq(seen.n, 10000);
    free(seen.at);
}
END_TEST

/* --- caches --- */

static const char *make_cache(const char *name, const struct data_options *o, size_t batch)
{
    const char *path = place(name);
    struct data *data;
    struct block block = {0};
    struct cache_writer *writer;
    ck_assert_int_eq(data_open(&data, o), DESCANT_OK);
    ck_assert_int_eq(cache_create(&writer, path, data_shape(data), &listening), DESCANT_OK);
    for (uint64_t k = 0; data_read(data, k, &block) == DATA_BLOCK; k++)
        for (size_t i = 0; i < block.examples.n; i += batch) {
            size_t left = block.examples.n - i;
            struct examples part = examples_slice(&block.examples, i, left < batch ? left : batch);
            ck_assert_int_eq(cache_add(writer, &part), DESCANT_OK);
        }
    ck_assert_int_ne(access(path, F_OK), 0);
    ck_assert_int_eq(cache_close(writer, true), DESCANT_OK);
    block_fini(&block);
    data_close(data);
    return path;
}

START_TEST(caches_give_back_what_went_in)
{
    static const enum data_format formats[] = {DATA_CRITEO, DATA_LIBSVM, DATA_LIBFFM, DATA_IDX};
    size_t n;
    char *text = text_of(formats[_i], 200, &n);
    const char *path = formats[_i] == DATA_IDX ? put_images("c", 0, IMAGES, 0)
                                               : put("plain", text, n);
    struct data_options o = {.paths = &path, .n_paths = 1, .format = formats[_i], .n_fields = 4,
                             .chunk_bytes = 3000, .max_bad = 1, .log = &listening};
    struct seen plain = read_chunks(&o, 0, 0);
    const char *paths[] = {make_cache("one", &o, 17), make_cache("two", &o, 1000)};
    struct data_options c = {.paths = paths, .n_paths = 2, .epochs = 2, .log = &listening};
    struct seen all = read_chunks(&c, 0, 0), shared = read_shared(&c, 3);
    ck_assert_int_eq(all.got, DATA_END);
    assert_same(&all, &shared);
    ck_assert_uint_eq(all.n, 4 * plain.n);
    for (size_t i = 0; i < all.n; i++)
        ck_assert_uint_eq(all.at[i].print, plain.at[i % plain.n].print);
    struct data *a, *b;
    ck_assert_int_eq(data_open(&a, &o), DESCANT_OK);
    ck_assert_int_eq(data_open(&b, &c), DESCANT_OK);
    ck_assert_mem_eq(data_shape(a), data_shape(b), sizeof *data_shape(a));
    data_close(a);
    data_close(b);
    free(plain.at);
    free(all.at);
    free(shared.at);
    free(text);
}
END_TEST

/* Cut anywhere, or any byte changed: it is seen. */
START_TEST(torn_caches_are_seen)
{
    const char *path = put_text("t.ffm", "1 2:10:1 0:5:0.5\n0 1:1:1\n1 3:1:1 1:2:3\n");
    struct data_options o = {.paths = &path, .n_paths = 1, .n_fields = 4, .log = &listening};
    path = make_cache("torn", &o, 2);
    unsigned char bytes[1000];
    FILE *file = fopen(path, "rb");
    size_t n = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    ck_assert(n > 200 && n < sizeof bytes);
    for (size_t i = 0; i < n; i++) {
        struct seen seen = read_file(put("cut", bytes, i), DATA_CACHE);
        ck_assert_msg(seen.status == DESCANT_CORRUPT, "cut at %zu", i);
        free(seen.at);
        bytes[i] ^= 1 << i % 8;
        seen = read_file(put("changed", bytes, n), DATA_CACHE);
        ck_assert_msg(seen.status == DESCANT_CORRUPT, "byte %zu changed", i);
        free(seen.at);
        bytes[i] ^= 1 << i % 8;
    }
    struct seen seen = read_file(put_text("foreign", "no cache, but long enough to be one: "
                                          "a head and a tail would fit into this text"),
                                 DATA_CACHE);
    ck_assert_int_eq(seen.status, DESCANT_CORRUPT);
    ck_assert(ends_with(descant_last_error(), "foreign: not a cache"));
}
END_TEST

START_TEST(caches_that_are_not_kept)
{
    const char *path = place("gone"), *partial = place("gone.tmp");
    struct data_shape shape = {.n_dense = 1, .n_classes = 1};
    struct cache_writer *w;
    float one = 1;
    struct examples e = {.n = 1, .n_dense = 1, .dense = &one, .labels = &one};
    ck_assert_int_eq(cache_create(&w, path, &shape, &listening), DESCANT_OK);
    ck_assert_int_eq(cache_add(w, &e), DESCANT_OK);
    ck_assert_int_eq(access(partial, F_OK), 0);
    ck_assert_int_eq(cache_close(w, false), DESCANT_OK);
    ck_assert_int_ne(access(partial, F_OK), 0);
    ck_assert_int_ne(access(path, F_OK), 0);
    ck_assert_int_eq(cache_create(&w, path, &shape, &listening), DESCANT_OK);
    e.n_dense = 2;
    ck_assert_int_eq(cache_add(w, &e), DESCANT_INVALID);
    ck_assert_int_eq(cache_close(w, true), DESCANT_INVALID);
    ck_assert_int_ne(access(path, F_OK), 0);
    ck_assert_int_eq(cache_create(&w, "/nowhere/cache", &shape, &listening), DESCANT_SYSTEM);
}
END_TEST

/* --- anything at all --- */

/* Writes over some bytes, takes some out, or puts some in; returns where the first change is. */
static size_t mutate(unsigned char *bytes, size_t *n, size_t room, struct rng *rng)
{
    static const char likely[] = "\t\n\r :-+.e019\0\xff";
    size_t first = *n;
    for (uint64_t changes = 1 + rng_next(rng) % 4; changes > 0; changes--) {
        size_t at = rng_next(rng) % (*n + 1), m = 1 + rng_next(rng) % 9;
        uint64_t how = rng_next(rng) % 3;
        first = at < first ? at : first;
        if (how == 0 && at + m <= *n) {
            memmove(bytes + at, bytes + at + m, *n - at - m);
            *n -= m;
        } else if (how == 1 && *n + m <= room) {
            memmove(bytes + at + m, bytes + at, *n - at);
            *n += m;
        }
        for (size_t i = at; how && i < at + m && i < *n; i++)
            bytes[i] = (unsigned char)(rng_next(rng) % 2 ? likely[rng_next(rng) % sizeof likely]
                                                         : (char)rng_next(rng));
    }
    return first;
}

static size_t lines_before(const unsigned char *bytes, size_t n)
{
    size_t lines = 0;
    for (size_t i = 0; i < n; i++)
        lines += bytes[i] == '\n';
    return lines;
}

/* Mutated files are read to an end, without harm; lines before the first change are as ever. */
START_TEST(mutated_input)
{
    enum { ROUNDS = 2500, ROOM = 1 << 16 };
    static const enum data_format formats[] = {DATA_CRITEO, DATA_LIBSVM, DATA_LIBFFM};
    enum data_format format = formats[_i / 3];
    int kind = _i % 3;
    size_t n, m;
    char *text = text_of(format, 30, &n);
    unsigned char *bytes = malloc(ROOM);
    int fd = memfd_create("mutated", 0);
    char path[64];
    const char *name = path;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    struct seen whole = read_file(put("w", text, n), format);
    struct rng rng;
    for (uint64_t seed = 0; seed < ROUNDS; seed++) {
        rng_init(&rng, seed);
        m = pack(kind, text, n, bytes, ROOM);
        size_t first = mutate(bytes, &m, ROOM, &rng);
        ck_assert_int_eq(ftruncate(fd, 0), 0);
        ck_assert_int_eq(pwrite(fd, bytes, m, 0), (ssize_t)m);
        struct data_options o = {.paths = &name, .n_paths = 1, .format = format, .n_fields = 4,
                                 .hash = seed % 2, .chunk_bytes = 1 + rng_next(&rng) % 4000,
                                 .max_bad = 1};
        struct seen seen = read_chunks(&o, 0, 0);
        ck_assert_msg(kind || seen.got == DATA_END, "seed %d", (int)seed);
        size_t same = kind ? 0 : lines_before(bytes, first);
        ck_assert_msg(seen.n + seen.bad >= same, "seed %d", (int)seed);
        for (size_t i = 0; i < same && i < 30 && (format == DATA_CRITEO || !o.hash); i++)
            ck_assert_msg(seen.at[i].print == whole.at[i].print, "seed %d", (int)seed);
        free(seen.at);
    }
    close(fd);
    free(whole.at);
    free(bytes);
    free(text);
}
END_TEST

/* --- memory that runs out --- */

static const char *input_of(int format, int kind, char *text, size_t n)
{
    struct data_options o = {.n_paths = 1, .format = DATA_CRITEO, .max_bad = 1};
    if (format == DATA_IDX)
        return put_images("m", 0, IMAGES, kind);
    const char *path = put_packed(format == DATA_CACHE ? 0 : kind, "m", text, n);
    o.paths = &path;
    return format == DATA_CACHE ? make_cache("m.cache", &o, 10) : path;
}

START_TEST(memory_runs_out)
{
    enum data_format format = (enum data_format)(DATA_CRITEO + _i / 3);
    size_t n;
    char *text = text_of(format == DATA_CACHE || format == DATA_IDX ? DATA_CRITEO : format, 400,
                         &n);
    const char *path = input_of((int)format, _i % 3, text, n);
    long live = memory_live();
    for (long k = 1;; k++) {
        ck_assert_int_lt((int)k, 300);
        memory_fail_at(k);
        struct seen seen = read_file(path, format);
        bool spared = !memory_refuse();
        memory_fail_at(0);
        free(seen.at);
        ck_assert_int_eq(memory_live(), live);
        if (seen.got == DATA_END)
            break;
        ck_assert(spared || seen.got == DATA_FAILED);
        ck_assert_int_eq(seen.status, DESCANT_MEMORY);
    }
    free(text);
}
END_TEST

/* --- the generator --- */

static char *generate(struct ctr_options *o, size_t *n, struct ctr_summary *sum)
{
    char *text = NULL;
    FILE *out = open_memstream(&text, n);
    ck_assert_int_eq(ctr_generate(out, o, sum, &listening), DESCANT_OK);
    fclose(out);
    return text;
}

START_TEST(clicks_are_as_wished)
{
    struct ctr_options o = ctr_options_default();
    struct ctr_summary one, two, other;
    size_t n, m;
    o.rows = 40000;
    o.zipf = _i == 0 ? 1 : 1.2;
    o.noise = _i == 2 ? 0 : 0.5;
    o.positive = _i == 0 ? 0.04 : 0.4;
    char *a = generate(&o, &n, &one), *b = generate(&o, &m, &two);
    ck_assert_uint_eq(n, m);
    ck_assert_mem_eq(a, b, n);
    o.seed++;
    char *c = generate(&o, &m, &other);
    ck_assert(n != m || memcmp(a, c, n) != 0);
    double p = (double)one.clicks / 40000, spread = sqrt(p * (1 - p) / 40000);
    ck_assert_double_lt(fabs(p - o.positive), 6 * spread);
    ck_assert_double_lt(one.best_logloss, 0.97 * -(p * log(p) + (1 - p) * log(1 - p)));
    ck_assert_double_lt(fabs(one.best_logloss - other.best_logloss), 0.02);
    struct seen seen = read_file(put("ctr.tsv", a, n), DATA_CRITEO);
    ck_assert_uint_eq(seen.n, 40000);
    ck_assert_uint_eq(seen.bad, 0);
    free(seen.at);
    free(a);
    free(b);
    free(c);
}
END_TEST

/* The same rows drawn again, their probabilities from the plain formula. */
START_TEST(the_best_loss_is_the_planted_one)
{
    struct ctr_options o = ctr_options_default();
    struct ctr_summary sum;
    struct ctr_model model;
    struct ctr_row row;
    struct rng rng;
    size_t n;
    o.rows = 5000;
    char *text = generate(&o, &n, &sum), *at = text;
    ctr_model_init(&model, &o);
    rng_init(&rng, o.seed);
    double loss = 0, told = 0;
    uint64_t clicks = 0;
    for (int i = 0; i < 5000; i++) {
        ctr_draw(&model, &rng, &row);
        double logit = ctr_logit(&model, &row), p = 0;
        for (int k = 0; k < CTR_NOISES; k++)
            p += 0.125 / (1 + exp(-logit - model.noises[k]));
        bool click = rng_uniform(&rng) < p;
        clicks += click;
        ck_assert_int_eq(*at, click ? '1' : '0');
        at = strchr(at, '\n') + 1;
        loss -= p * log(p) + (1 - p) * log(1 - p);
        told -= click ? log(p) : log(1 - p);
    }
    ck_assert_uint_eq(sum.clicks, clicks);
    ck_assert_double_lt(fabs(sum.best_logloss - loss / 5000), 1e-9);
    ck_assert_double_lt(fabs(told - loss) / 5000, 0.03);
    free(text);
}
END_TEST

START_TEST(clicks_that_cannot_be)
{
    struct ctr_options o = ctr_options_default();
    struct ctr_summary sum;
    FILE *full = fopen("/dev/full", "w");
    ck_assert_int_eq(ctr_generate(full, &o, &sum, &listening), DESCANT_SYSTEM);
    ck_assert_str_eq(heard.lines[0], "rows cannot be written: No space left on device");
    o.positive = 1;
    ck_assert_int_eq(ctr_generate(full, &o, &sum, &listening), DESCANT_INVALID);
    o.positive = 0.5;
    o.categories = 2;
    ck_assert_int_eq(ctr_generate(full, &o, &sum, &listening), DESCANT_INVALID);
    fclose(full);
}
END_TEST

static int remove_one(const char *path, const struct stat *stat, int kind, struct FTW *where)
{
    (void)stat;
    (void)kind;
    (void)where;
    return remove(path);
}

int main(void)
{
    const char *temporary = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/descant-data-XXXXXX", temporary ? temporary : "/tmp");
    if (!mkdtemp(folder))
        return EXIT_FAILURE;
    Suite *suite = suite_create("data");
    TCase *tests = tcase_create("data");
    tcase_set_timeout(tests, 300);
    tcase_add_test(tests, hash_is_the_stated_one);
    tcase_add_test(tests, hash_fills_rows_evenly);
    tcase_add_test(tests, criteo_values);
    tcase_add_test(tests, criteo_integers);
    tcase_add_loop_test(tests, bad_lines_are_told_and_skipped, 0, N(defects));
    tcase_add_test(tests, too_many_bad_lines_end_it);
    tcase_add_test(tests, few_lines_are_judged_at_the_end);
    tcase_add_test(tests, libsvm_values);
    tcase_add_test(tests, libsvm_classes_and_hashes);
    tcase_add_test(tests, libffm_values);
    tcase_add_loop_test(tests, chunks_share_each_line_once, 0, 9);
    tcase_add_test(tests, line_numbers_are_the_files);
    tcase_add_test(tests, epochs_follow_each_other);
    tcase_add_test(tests, places_and_counts);
    tcase_add_test(tests, long_lines_are_bad_ones);
    tcase_add_test(tests, files_that_cannot_be_read);
    tcase_add_test(tests, a_file_that_shrinks);
    tcase_add_loop_test(tests, packed_files_that_are_cut, 0, 2);
    tcase_add_test(tests, packed_files_in_pieces);
    tcase_add_test(tests, formats_are_guessed);
    tcase_add_test(tests, stdin_is_like_a_file);
    tcase_add_loop_test(tests, stdin_is_shared, 0, 3);
    tcase_add_loop_test(tests, stdin_survives_its_reader, 0, 3);
    tcase_add_loop_test(tests, images_come_in_a_new_order_each_epoch, 0, 2);
    tcase_add_test(tests, images_that_are_not);
    tcase_add_test(tests, fashion_is_read_where_it_is);
    tcase_add_loop_test(tests, caches_give_back_what_went_in, 0, 4);
    tcase_add_test(tests, torn_caches_are_seen);
    tcase_add_test(tests, caches_that_are_not_kept);
    tcase_add_loop_test(tests, mutated_input, 0, 9);
    tcase_add_loop_test(tests, memory_runs_out, 0, 15);
    tcase_add_loop_test(tests, clicks_are_as_wished, 0, 3);
    tcase_add_test(tests, the_best_loss_is_the_planted_one);
    tcase_add_test(tests, clicks_that_cannot_be);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
