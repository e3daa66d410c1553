/* SPDX-License-Identifier: MIT */
/* What readers make of each format: values, bad lines, images, caches, the hash; and the
 * generator of click logs. */
#include "data/ctr.h"
#include "files/files.h"
#include "harness/data.h"
#include "harness/folder.h"
#include "harness/suite.h"

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
            ck_assert_uint_eq(e->ids[26 * i + (int)k],
                              data_hash(k, &"abcdefghijklmnopqrstuvwx"[k], 1));
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
    const char *path = put_file(in_folder("i.tsv"), text, n);
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

static const struct defect {
    enum data_format format;
    const char *line, *reason;
    size_t n;                   /* 0: strlen */
} defects[] = {
    {DATA_CRITEO, "", "an empty line, criteo has 40 columns with tabs between them", 0},
    {DATA_CRITEO, "1,2,3", "a line without a tab, criteo has 40 columns with tabs between them", 0},
    {DATA_CRITEO, "1\t2\t3", "3 columns, criteo has 40", 0},
    {DATA_CRITEO, GOOD_CRITEO "\t", "more than 40 columns, criteo has 40", 0},
    {DATA_CRITEO, "2\t1\t2\t3\t4" REST CATEGORIES "\t1\t2", "label '2': allowed is 0 or 1", 0},
    {DATA_CRITEO, "-1\t1\t2\t3\t4" REST CATEGORIES "\t1\t2", "label '-1': allowed is 0 or 1", 0},
    {DATA_CRITEO, "\t1\t2\t3\t4" REST CATEGORIES "\t1\t2", "there is no label", 0},
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
    {DATA_LIBSVM, "1 3:1 qid:1", "pair 2: 'qid' is not a whole number below 2^32", 0},
    {DATA_LIBSVM, "1 id#:1", "pair 1: 'id#' is not a whole number below 2^32", 0},
    {DATA_LIBFFM, "1 qid:1:1", "pair 1: 'qid' is not a field: allowed is 0 to 3", 0},
    {DATA_LIBSVM, "1 3:", "pair 1: '' is not a number, or too large", 0},
    {DATA_LIBSVM, "1 3:.", "pair 1: '.' is not a number, or too large", 0},
    {DATA_LIBSVM, "1 3:1e", "pair 1: '1e' is not a number, or too large", 0},
    {DATA_LIBSVM, "1 3:nan", "pair 1: 'nan' is not a number, or too large", 0},
    {DATA_LIBSVM, "1 3:-inf", "pair 1: '-inf' is not a number, or too large", 0},
    {DATA_LIBSVM, "1 3:1e39", "pair 1: '1e39' is not a number, or too large", 0},
    {DATA_LIBSVM, "1 3:-1e17", "pair 1: '-1e17' is not a number, or too large", 0},
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
    struct data_seen good = read_file(put_file(in_folder("g"), text, n), d->format);
    n = strlen(good_line(d->format));
    size_t m = d->n ? d->n : strlen(d->line);
    memcpy(text + n, d->line, m);
    n += m;
    text[n++] = '\n';
    n += (size_t)snprintf(text + n, sizeof text - n, "%s", good_line(d->format));
    const char *path = put_file(in_folder("b"), text, n);
    struct data_seen bad = read_file(path, d->format);
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
    const char *path = put_file(in_folder("m.svm"), text, n);
    struct data_options o = {.paths = &path, .n_paths = 1, .max_bad = 0.025, .log = &listening,
                             .chunk_bytes = 1 << 10};
    struct data_seen seen = read_chunks(&o, 0, 0);
    ck_assert_int_eq(seen.got, DATA_END);
    ck_assert_uint_eq(seen.bad, 60);
    ck_assert_int_eq(heard.n, 5);
    ck_assert(ends_with(heard.lines[4],
                        "m.svm:210: label 'bad': allowed is 0 and 1, or -1 and +1"));
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
    struct data_seen seen = read_chunks(&o, 0, 0);
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
        "0 1:1e-50 2:.5 3:3. 4:0.1E+1\n1.0 9:10000000000000000");
    struct data *data;
    struct block block = {0};
    struct data_options o = {.paths = &path, .n_paths = 1, .log = &listening};
    ck_assert_int_eq(data_open(&data, &o), DESCANT_OK);
    ck_assert(data_shape(data)->plain_ids && data_shape(data)->bags);
    ck_assert_int_eq(data_shape(data)->n_fields, 1);
    ck_assert_int_eq(data_read(data, 0, &block), DATA_BLOCK);
    const struct examples *e = &block.examples;
    const uint32_t offsets[] = {0, 4, 4, 8, 9}, ids[] = {0, UINT32_MAX, 7, 3, 1, 2, 3, 4, 9};
    const float values[] = {1, -0.5f, 1000, 1234567890.123456789f, 0, 0.5f, 3, 1, 1e16f};
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

/* SVMlight's comments and numbers of queries are no features. */
START_TEST(what_is_no_feature_is_passed_over)
{
    static const struct {
        const char *as, *is;
        bool hash;
    } same[] = {
        {"1 qid:7 3:1 # a: comment\n0 qid:8 4:2\t#doc = 5\n1\t#\n", "1 3:1\n0 4:2\n1\n", false},
        {"1 qid:7 a:1 # b:1\n0 c#:2 #\n", "1 a:1\n0 c#:2\n", true},
        {"1 1:3:1 # 2:4:1\n0 2:4:1 #x\n", "1 1:3:1\n0 2:4:1\n", false},
    };
    for (int i = 0; i < N(same); i++) {
        struct data_seen seen[2];
        for (int k = 0; k < 2; k++) {
            const char *path = put_text("q", k ? same[i].is : same[i].as);
            seen[k] = read_chunks(&(struct data_options){.paths = &path, .n_paths = 1, .n_fields = 4,
                                                         .hash = same[i].hash, .log = &listening},
                                  0, 0);
            ck_assert_int_eq(seen[k].got, DATA_END);
        }
        assert_same(&seen[0], &seen[1]);
        free(seen[0].at);
        free(seen[1].at);
    }
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

/* --- images --- */

/* Mean 0 and deviation 1; a deviation below 1 / SIDE of the range of a pixel is taken for that. */
static double standard(int number, int k)
{
    double mean = 0, variance = 0, least = 255. / SIDE;
    for (int i = 0; i < SIDE * SIDE; i++)
        mean += image_pixel(number, i) / (double)(SIDE * SIDE);
    for (int i = 0; i < SIDE * SIDE; i++)
        variance += pow(image_pixel(number, i) - mean, 2) / (SIDE * SIDE);
    return (image_pixel(number, k) - mean) / fmax(sqrt(variance), least);
}

static int number_of(const float *image)
{
    for (int number = 0; number < IMAGES; number++)
        if (fabs(image[0] - standard(number, 0)) < 1e-6)
            return number;
    ck_abort_msg("an image of first pixel %f", image[0]);
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
            order[n] = number_of(x);
            ck_assert_float_eq(block.examples.labels[i], (float)(order[n] % 7));
            for (int p = 0; p < SIDE * SIDE; p++)
                ck_assert_double_eq_tol(x[p], standard(order[n], p), 1e-6);
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

/* Gzip or zstd of 64 MiB that have a header of 24 bytes: no more than these are unpacked. */
START_TEST(images_that_unpack_to_more)
{
    enum { BYTES = 64 << 20 };
    unsigned char head[] = {0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 2};
    unsigned char *all = calloc(1, BYTES);
    unsigned char *packed = malloc(BYTES);
    ck_assert(all && packed);
    memcpy(all, head, sizeof head);
    const char *path = put_file(in_folder("b-images-idx3"), packed, pack_bytes(1 + _i, all, BYTES, packed, BYTES));
    struct data_seen seen = read_file(path, DATA_IDX);
    ck_assert_int_eq(seen.status, DESCANT_CORRUPT);
    ck_assert_msg(ends_with(descant_last_error(), ": 65536 bytes, but 2 images of 4 pixels are 24"),
                  "%s", descant_last_error());
    free(packed);
    free(all);
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
        put_file(in_folder("x-labels-idx1-ubyte"), labels, cases[i].n_labels);
        struct data_seen seen = read_file(
            put_file(in_folder("x-images-idx3-ubyte"), bytes, cases[i].n), DATA_AUTO);
        ck_assert_int_eq(seen.status, DESCANT_CORRUPT);
        ck_assert_msg(ends_with(descant_last_error(), cases[i].end), "%s", descant_last_error());
    }
    struct data_seen seen =
        read_file(put_file(in_folder("odd-name"), good, sizeof good), DATA_IDX);
    ck_assert_int_eq(seen.status, DESCANT_INVALID);
    seen = read_file(put_file(in_folder("alone-images-idx3"), good, sizeof good), DATA_IDX);
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
    struct data_seen seen = read_chunks(&o, 0, 0);
    ck_assert_int_eq(seen.got, DATA_END);
    ck_assert_uint_eq(seen.n, 10000);
    free(seen.at);
}
END_TEST

/* --- caches --- */

START_TEST(caches_give_back_what_went_in)
{
    static const enum data_format formats[] = {DATA_CRITEO, DATA_LIBSVM, DATA_LIBFFM, DATA_IDX};
    size_t n;
    char *text = text_of(formats[_i], 200, &n);
    const char *path = formats[_i] == DATA_IDX ? put_images("c", 0, IMAGES, 0)
                                               : put_file(in_folder("plain"), text, n);
    struct data_options o = {.paths = &path, .n_paths = 1, .format = formats[_i], .n_fields = 4,
                             .chunk_bytes = 3000, .max_bad = 1, .log = &listening};
    struct data_seen plain = read_chunks(&o, 0, 0);
    const char *paths[] = {make_cache("one", &o, 17), make_cache("two", &o, 1000)};
    struct data_options c = {.paths = paths, .n_paths = 2, .epochs = 2, .log = &listening};
    struct data_seen all = read_chunks(&c, 0, 0), shared = read_shared(&c, 3);
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
        struct data_seen seen =
            read_file(put_file(in_folder("cut"), bytes, i), DATA_CACHE);
        ck_assert_msg(seen.status == DESCANT_CORRUPT, "cut at %zu", i);
        free(seen.at);
        bytes[i] = (unsigned char)(bytes[i] ^ 1 << i % 8);
        seen = read_file(put_file(in_folder("changed"), bytes, n), DATA_CACHE);
        ck_assert_msg(seen.status == DESCANT_CORRUPT, "byte %zu changed", i);
        free(seen.at);
        bytes[i] = (unsigned char)(bytes[i] ^ 1 << i % 8);
    }
    struct data_seen seen =
        read_file(put_text("foreign", "no cache, but long enough to be one: "
                                      "a head and a tail would fit into this text"),
                  DATA_CACHE);
    ck_assert_int_eq(seen.status, DESCANT_CORRUPT);
    ck_assert(ends_with(descant_last_error(), "foreign: not a cache"));
}
END_TEST

/* Only what is whole gets the name: a temporary file goes with a cache that is not. */
START_TEST(caches_that_are_not_kept)
{
    const char *path = in_folder("gone"), *partial = in_folder("gone.tmp");
    struct data_shape shape = {.n_dense = 1, .n_classes = 1};
    struct cache_writer *w;
    struct output out;
    float one = 1;
    struct examples e = {.n = 1, .n_dense = 1, .dense = &one, .labels = &one};
    ck_assert(output_open(&out, path, NULL, stdout, &listening));
    ck_assert_int_eq(cache_create(&w, out.file, path, &shape, &listening), DESCANT_OK);
    ck_assert_int_eq(cache_add(w, &e), DESCANT_OK);
    ck_assert_int_eq(access(partial, F_OK), 0);
    ck_assert_int_ne(access(path, F_OK), 0);
    e.n_dense = 2;
    ck_assert_int_eq(cache_add(w, &e), DESCANT_INVALID);
    ck_assert_int_eq(cache_close(w), DESCANT_INVALID);
    ck_assert(!output_close(&out, false));
    ck_assert_int_ne(access(partial, F_OK), 0);
    ck_assert_int_ne(access(path, F_OK), 0);
    ck_assert(!output_open(&out, "/nowhere/cache", NULL, stdout, &listening));
    ck_assert(!output_close(&out, false));
}
END_TEST

/* Nor does a file look like a whole cache of which only a part could be read. */
START_TEST(caches_of_a_part)
{
    const char *path = put_text("part.svm", "1 3:1\n0 3:1\nbad\nbad\nbad\n");
    struct data_options o = {.paths = &path, .n_paths = 1, .chunk_bytes = 12, .log = &listening};
    struct data_seen seen = read_chunks(&o, 0, 0);
    ck_assert(seen.got == DATA_FAILED && seen.n == 2);
    free(seen.at);
    const char *cache = in_folder("part");
    FILE *file = fopen(cache, "w");
    uint64_t n;
    ck_assert_int_eq(cache_write(file, cache, &o, &n), DESCANT_CORRUPT);
    ck_assert_uint_eq(n, 2);
    ck_assert_int_eq(fclose(file), 0);
    seen = read_file(cache, DATA_CACHE);
    ck_assert(seen.status == DESCANT_CORRUPT && seen.n == 0);
    ck_assert(ends_with(descant_last_error(), "part: the cache is cut off"));
    free(seen.at);
}
END_TEST

/* What no reader makes of a line is not to be trained, though the sums are right. */
START_TEST(caches_of_what_cannot_be)
{
    static const float bad[][2] = {{NAN, 1}, {1, NAN}, {INFINITY, 1}, {1, 2}, {1, -1},
                                  {1, 0.5f}};
    struct data_shape shape = {.n_dense = 1, .n_classes = 1};
    struct cache_writer *w;
    struct examples e = {.n = 1, .n_dense = 1, .dense = &bad[_i][0], .labels = &bad[_i][1]};
    const char *path = in_folder("bad");
    FILE *file = fopen(path, "w");
    ck_assert_int_eq(cache_create(&w, file, path, &shape, &listening), DESCANT_OK);
    ck_assert_int_eq(cache_add(w, &e), DESCANT_OK);
    ck_assert_int_eq(cache_close(w), DESCANT_OK);
    ck_assert_int_eq(fclose(file), 0);
    struct data_seen seen = read_file(path, DATA_CACHE);
    ck_assert_int_eq(seen.status, DESCANT_CORRUPT);
    ck_assert(ends_with(descant_last_error(), "a block has NaN, Inf, or a label of no class"));
    free(seen.at);
}
END_TEST

/* A link at the other name is not followed. */
START_TEST(an_output_is_a_file_of_its_own)
{
    const char *path = in_folder("own"), *partial = in_folder("own.tmp");
    const char *victim = put_text("victim", "of its owner");
    struct output out;
    char text[32] = "";
    ck_assert_int_eq(symlink(victim, partial), 0);
    ck_assert(output_open(&out, path, NULL, stdout, &listening));
    fputs("its own", out.file);
    ck_assert(output_close(&out, true));
    FILE *file = fopen(victim, "r");
    ck_assert(file && fgets(text, sizeof text, file));
    fclose(file);
    ck_assert_str_eq(text, "of its owner");
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
    struct data_seen seen = read_file(put_file(in_folder("ctr.tsv"), a, n), DATA_CRITEO);
    ck_assert_uint_eq(seen.n, 40000);
    ck_assert_uint_eq(seen.bad, 0);
    free(seen.at);
    free(a);
    free(b);
    free(c);
}
END_TEST

/* The rows in a compressed file are those of a plain one; a full disk is told. */
START_TEST(clicks_are_compressed_by_name)
{
    static const char *const names[] = {"rows.tsv", "rows.tsv.gz", "rows.tsv.zst"};
    struct ctr_options o = ctr_options_default();
    struct ctr_summary sum;
    struct data_seen all[3];
    struct output out;
    o.rows = 3000;
    for (int k = 0; k < 3; k++) {
        const char *path = in_folder(names[k]);
        ck_assert(output_open(&out, path, names[k], stdout, &listening));
        ck_assert_int_eq(ctr_generate(out.file, &o, &sum, &listening), DESCANT_OK);
        ck_assert(output_close(&out, true));
        all[k] = read_file(path, DATA_CRITEO);
        ck_assert_uint_eq(all[k].n, 3000);
        ck_assert_mem_eq(all[k].at, all[0].at, 3000 * sizeof *all[k].at);
        ck_assert(output_open(&out, "/dev/full", names[k], stdout, &listening));
        fputs("a row", out.file);
        ck_assert(!output_close(&out, true));
        ck_assert_msg(ends_with(descant_last_error(), "No space left on device"), "%s: %s",
                      names[k], descant_last_error());
    }
    for (int k = 0; k < 3; k++)
        free(all[k].at);
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

int main(void)
{
    TCase *tests = new_case("data", 300);
    tcase_add_test(tests, hash_is_the_stated_one);
    tcase_add_test(tests, hash_fills_rows_evenly);
    tcase_add_test(tests, criteo_values);
    tcase_add_test(tests, criteo_integers);
    tcase_add_loop_test(tests, bad_lines_are_told_and_skipped, 0, N(defects));
    tcase_add_test(tests, too_many_bad_lines_end_it);
    tcase_add_test(tests, few_lines_are_judged_at_the_end);
    tcase_add_test(tests, libsvm_values);
    tcase_add_test(tests, what_is_no_feature_is_passed_over);
    tcase_add_test(tests, libsvm_classes_and_hashes);
    tcase_add_test(tests, libffm_values);
    tcase_add_loop_test(tests, images_come_in_a_new_order_each_epoch, 0, 2);
    tcase_add_test(tests, images_that_are_not);
    tcase_add_loop_test(tests, images_that_unpack_to_more, 0, 2);
    tcase_add_loop_test(tests, caches_of_what_cannot_be, 0, 6);
    tcase_add_test(tests, an_output_is_a_file_of_its_own);
    tcase_add_test(tests, fashion_is_read_where_it_is);
    tcase_add_loop_test(tests, caches_give_back_what_went_in, 0, 4);
    tcase_add_test(tests, torn_caches_are_seen);
    tcase_add_test(tests, caches_that_are_not_kept);
    tcase_add_test(tests, caches_of_a_part);
    tcase_add_loop_test(tests, clicks_are_as_wished, 0, 3);
    tcase_add_test(tests, clicks_are_compressed_by_name);
    tcase_add_test(tests, the_best_loss_is_the_planted_one);
    tcase_add_test(tests, clicks_that_cannot_be);
    return run_cases(tests, NULL);
}
