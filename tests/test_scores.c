/* SPDX-License-Identifier: MIT */
/* descant predict and descant eval: one score a line whatever is in it, lines without labels, outputs
 * of runs that are refused; what a format is taken for; and held-out sets that hold nothing. */
#include "harness/training.h"

#include <zlib.h>
#include <zstd.h>

enum { LINES = 200 };

static char some[96];           /* a file of the test's */

static void name_of(char *path, const char *name)
{
    snprintf(path, 96, "%s/%s", folder, name);
}

static const char *put(const char *name, const char *text, size_t n)
{
    name_of(some, name);
    FILE *out = fopen(some, "we");
    ck_assert(out && fwrite(text, 1, n, out) == n && fclose(out) == 0);
    return some;
}

static char *text_of(const char *path, size_t *n)
{
    char *text = NULL;
    size_t room = 0;
    FILE *in = fopen(path, "re");
    ck_assert_msg(in != NULL, "%s", path);
    ssize_t got = getdelim(&text, &room, EOF, in);
    fclose(in);
    *n = got < 0 ? 0 : (size_t)got;
    if (got < 0)
        text = calloc(1, 1);
    return text;
}

static void assert_err(const char *text)
{
    ck_assert_msg(strstr(err_text, text) != NULL, "'%s' is not in: %s", text, err_text);
}

static void train_on(const char *data, int model, int format)
{
    struct train_options o = small();
    struct train_result r;
    o.data = data;
    o.model = model;
    o.format = format;
    o.fields = 4;
    o.examples = 6400;
    o.checkpoint = model_file;
    o.lr = 0.02;
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
}

/* The scores of a run as they were printed, to be given to free. */
static char *scores_of(const char *data, const char *more)
{
    ck_assert_msg(program("predict --checkpoint %s --data %s %s", model_file, data, more) == CLI_DONE,
                  "%s", err_text);
    return strdup(out_text);
}

static int count(const char *text, const char *what)
{
    int n = 0;
    for (; (text = strstr(text, what)); text += strlen(what))
        n++;
    return n;
}

/* --- one score a line --- */

static const char *const bad_lines[] = {"bad", "", "\t\t", "1\t2\t3", "0 3:1", NULL};
enum { N_BAD_LINES = 6, LONG_LINE = (1 << 20) + 5 };        /* NULL: a long one */

/* The held-out lines with bad ones between them, and a score `nan` for each of these in *want. */
static void spoil(char *text, const char *scores, FILE *to, FILE *want)
{
    int n = 0;
    for (char *at = text, *next; *at; at = next, n++) {
        next = strchr(at, '\n') + 1;
        const char *end = strchr(scores, '\n') + 1;
        if (n % 97 == 0) {
            const char *line = bad_lines[n / 97 % N_BAD_LINES];
            for (int k = 0; !line && k < LONG_LINE; k++)
                fputc('x', to);
            fprintf(to, "%s\n", line ? line : "");
            fputs("nan\n", want);
        }
        fwrite(at, 1, (size_t)(next - at), to);
        fwrite(scores, 1, (size_t)(end - scores), want);
        scores = end;
    }
}

static const char *packed(int kind, const char *text, size_t n)
{
    if (kind == 0)
        return put("spoiled.tsv", text, n);
    size_t room = n + 1000;
    char *to = malloc(room);
    name_of(some, kind == 1 ? "spoiled.tsv.gz" : "spoiled.tsv.zst");
    if (kind == 1) {
        gzFile file = gzopen(some, "wb1");
        ck_assert_int_eq(gzwrite(file, text, (unsigned)n), (int)n);
        ck_assert_int_eq(gzclose(file), Z_OK);
    } else {
        n = ZSTD_compress(to, room, text, n, 1);
        put("spoiled.tsv.zst", to, n);
    }
    free(to);
    return some;
}

/* Line by line; the last bits of a sum are those of its batch. */
static void assert_like(const char *got, const char *want)
{
    ck_assert_int_eq(count(got, "\n"), count(want, "\n"));
    for (int n = 0; *want; got = strchr(got, '\n') + 1, want = strchr(want, '\n') + 1, n++) {
        bool nan = strncmp(want, "nan\n", 4) == 0;
        ck_assert_msg(nan ? strncmp(got, want, 4) == 0
                          : fabs(strtod(got, NULL) - strtod(want, NULL)) < 1e-5,
                      "line %d: %.10s, not %.10s", n, got, want);
    }
}

START_TEST(each_line_has_a_score)
{
    size_t n, spoiled_n, want_n;
    char *spoiled, *want, *text = text_of(held_out, &n), says[128];
    train_on(clicks, MODEL_DLRM, DATA_CRITEO);
    char *clean = scores_of(held_out, "");
    ck_assert_int_eq(count(clean, "\n"), EVAL_ROWS);
    FILE *to = open_memstream(&spoiled, &spoiled_n), *should = open_memstream(&want, &want_n);
    spoil(text, clean, to, should);
    fclose(to);
    fclose(should);
    packed(_i % 3, spoiled, spoiled_n);
    if (_i == 3)
        ck_assert_ptr_nonnull(freopen(some, "re", stdin));
    char *got = scores_of(_i == 3 ? "-" : some, "--max-bad 0.02");
    assert_like(got, want);
    snprintf(says, sizeof says, "%d of %d lines could not be read: their score is nan",
             count(want, "nan"), count(want, "\n"));
    assert_err(says);
    ck_assert_int_eq(program("predict --checkpoint %s --data %s", model_file, some), CLI_FAILED);
    assert_err("lines are bad, more than 1 %");
    free(got);
    free(want);
    free(spoiled);
    free(clean);
    free(text);
}
END_TEST

/* Bad lines are counted beside the figures. */
START_TEST(eval_tells_of_bad_lines)
{
    size_t n;
    char *text = text_of(held_out, &n);
    train_on(clicks, MODEL_LINEAR, DATA_AUTO);
    text[0] = text[(size_t)(strchr(text, '\n') - text) + 1] = 'x';
    put("spoiled.tsv", text, n);
    ck_assert_int_eq(program("eval --checkpoint %s --data %s", model_file, some), CLI_DONE);
    ck_assert_msg(strstr(out_text, "\nNE  ") && strstr(out_text, "bad lines skipped") && strstr(out_text, " 2 of 4000\n"), "%s",
                  out_text);
    ck_assert_int_eq(program("eval --checkpoint %s --data %s --json", model_file, some), CLI_DONE);
    ck_assert_msg(strstr(out_text, "\"bad_lines\":2}"), "%s", out_text);
    ck_assert_int_eq(program("eval --checkpoint %s --data %s", model_file, held_out), CLI_DONE);
    ck_assert_msg(!strstr(out_text, "bad"), "%s", out_text);
    free(text);
}
END_TEST

/* Of several files each has its lines. */
START_TEST(files_follow_each_other)
{
    char both[400];
    train_on(clicks, MODEL_FM, DATA_CRITEO);
    char *one = scores_of(held_out, "");
    put("bad.tsv", "bad\n", 4);
    snprintf(both, sizeof both, "%s,%s,%s", held_out, some, held_out);
    char *all = scores_of(both, ""), *want = malloc(2 * strlen(one) + 10);
    sprintf(want, "%snan\n%s", one, one);
    ck_assert(strcmp(all, want) == 0);
    free(want);
    free(all);
    free(one);
}
END_TEST

/* --- no labels --- */

/* Criteo's lines without the label's column, or with an empty one. */
static void bare_lines(const char *text, bool column, FILE *to)
{
    for (const char *at = text, *next; *at; at = next) {
        next = strchr(at, '\n') + 1;
        fwrite(at + 1 + column, 1, (size_t)(next - at - 1 - column), to);
    }
}

START_TEST(criteo_needs_no_label)
{
    size_t n, bare_n;
    char *text = text_of(held_out, &n), *bare;
    train_on(clicks, MODEL_DLRM, DATA_CRITEO);
    char *want = scores_of(held_out, "");
    FILE *to = open_memstream(&bare, &bare_n);
    bare_lines(text, _i, to);
    fclose(to);
    put("bare.tsv", bare, bare_n);
    char *got = scores_of(some, "");
    assert_like(got, want);
    ck_assert_str_eq(err_text, "");
    free(got);
    ck_assert_ptr_nonnull(freopen(some, "re", stdin));
    got = scores_of("-", "");
    assert_like(got, want);
    ck_assert_int_eq(program("eval --checkpoint %s --data %s", model_file, some), CLI_FAILED);
    assert_err("they have no label, without which lines can only be scored (descant predict)");
    free(got);
    free(want);
    free(bare);
    free(text);
}
END_TEST

/* Nor is a file without labels because its first line has lost a column. */
START_TEST(a_cut_first_line_is_one_bad_line)
{
    size_t n, cut_n;
    char *text = text_of(held_out, &n), *cut;
    train_on(clicks, MODEL_LINEAR, DATA_CRITEO);
    char *want = scores_of(held_out, ""), *end = strchr(text, '\n');
    FILE *to = open_memstream(&cut, &cut_n);
    char *tab = memrchr(text, '\t', (size_t)(end - text));
    fprintf(to, "%.*s%s", (int)(tab - text), text, end);
    fclose(to);
    put("cut.tsv", cut, cut_n);
    char *got = scores_of(some, "");
    ck_assert_int_eq(strncmp(got, "nan\n", 4), 0);
    ck_assert_str_eq(strchr(got, '\n'), strchr(want, '\n'));
    assert_err("1 of 4000");
    free(got);
    free(want);
    free(cut);
    free(text);
}
END_TEST

/* A line that lost its last column is not one without a label, nor the other way round. */
START_TEST(a_cut_line_is_not_scored)
{
    size_t n, mixed_n;
    char *text = text_of(held_out, &n), *mixed;
    train_on(clicks, MODEL_LINEAR, DATA_CRITEO);
    FILE *to = open_memstream(&mixed, &mixed_n);
    char *second = strchr(text, '\n') + 1, *third = strchr(second, '\n') + 1;
    if (_i) {
        bare_lines(second, true, to);
        fwrite(second, 1, (size_t)(third - second), to);
    } else {
        fwrite(text, 1, n, to);
        char *tab = memrchr(second, '\t', (size_t)(third - second));
        fprintf(to, "%.*s\n", (int)(tab - second), second);
    }
    fclose(to);
    put("mixed.tsv", mixed, mixed_n);
    char *got = scores_of(some, "");
    ck_assert_int_eq(count(got, "nan"), 1);
    ck_assert_int_eq(strcmp(got + strlen(got) - 4, "nan\n"), 0);
    assert_err("1 of 400");
    free(got);
    free(mixed);
    free(text);
}
END_TEST

/* libsvm and libffm: without the label, with a space instead, and as they were. */
START_TEST(sparse_text_needs_no_label)
{
    bool ffm = _i % 2;
    const char *name = ffm ? "s.ffm" : "s.svm";
    char *texts[3];
    size_t n[3];
    FILE *to[3];
    for (int k = 0; k < 3; k++)
        to[k] = open_memstream(&texts[k], &n[k]);
    for (int i = 0; i < LINES; i++)
        for (int k = 0; k < 3; k++)
            fprintf(to[k], ffm ? "%s1:%d:1 3:%d:0.5\n" : "%s%d:1 7%d:0.5\n",
                    k == 0 ? i % 3 ? "0 " : "1 " : k == 1 ? "" : " ", i % 7, i % 3);
    for (int k = 0; k < 3; k++)
        fclose(to[k]);
    put(name, texts[0], n[0]);
    train_on(some, _i < 2 ? MODEL_LINEAR : MODEL_FM, ffm ? DATA_LIBFFM : DATA_LIBSVM);
    char *want = scores_of(some, "");
    ck_assert_int_eq(count(want, "\n"), LINES);
    for (int k = 1; k < 3; k++) {
        char *got = scores_of(put(name, texts[k], n[k]), k == 1 ? "--format auto" : "");
        assert_like(got, want);
        free(got);
        ck_assert_int_eq(program("eval --checkpoint %s --data %s", model_file, some), CLI_FAILED);
        assert_err("200 of 200 lines are bad, more than 1 %: they have no label");
    }
    free(want);
    const char *few = ffm ? "\n1:1:1\n\nx\n" : "\n1:1\n\nx\n";
    char *got = scores_of(put(name, few, strlen(few)), "--max-bad 1");
    ck_assert_msg(strncmp(got, "nan\n0.", 6) == 0 && count(got, "\n0.") == 2 &&
                  strcmp(got + strlen(got) - 5, "\nnan\n") == 0, "%s", got);
    free(got);
    for (int k = 0; k < 3; k++)
        free(texts[k]);
}
END_TEST

/* Images whose file of labels is not there, or has another name; caches, which have labels. */
START_TEST(images_and_caches_are_scored)
{
    enum { IMAGES = 100, SIDE = 4 };
    unsigned char images[16 + IMAGES * SIDE * SIDE] = {0, 0, 8, 3, 0, 0, 0, IMAGES, 0, 0, 0, SIDE,
                                                       0, 0, 0, SIDE};
    unsigned char labels[8 + IMAGES] = {0, 0, 8, 1, 0, 0, 0, IMAGES};
    char cache[96], named[96];
    for (int i = 0; i < IMAGES; i++) {
        labels[8 + i] = (unsigned char)(i % 3);
        for (int k = 0; k < SIDE * SIDE; k++)
            images[16 + i * SIDE * SIDE + k] = (unsigned char)(k % 3 == i % 3 ? 200 : i);
    }
    put("a-labels-idx1-ubyte", (char *)labels, sizeof labels);
    strcpy(named, put("a-images-idx3-ubyte", (char *)images, sizeof images));
    train_on(named, MODEL_MLP, DATA_IDX);
    char *want = scores_of(named, "");
    ck_assert_int_eq(count(want, "\n"), IMAGES);
    name_of(cache, "images.cache");
    ck_assert_int_eq(program("gen cache --data %s --out %s", named, cache), CLI_DONE);
    char *got = scores_of(cache, "--format auto");
    assert_like(got, want);
    free(got);
    put("photographs", (char *)images, sizeof images);
    got = scores_of(some, "");
    assert_like(got, want);
    free(got);
    free(want);
    put("b-images-idx3-ubyte", (char *)images, sizeof images);
    ck_assert_int_eq(program("eval --checkpoint %s --data %s", model_file, some), CLI_FAILED);
    assert_err("without labels images can only be scored (descant predict): ");
    assert_err("b-labels-idx1-ubyte: No such file");
}
END_TEST

/* What was trained on text scores a cache of text, as training takes either. */
START_TEST(a_cache_needs_no_word)
{
    char cache[96];
    train_on(clicks, MODEL_LINEAR, _i ? DATA_CRITEO : DATA_AUTO);
    char *want = scores_of(held_out, "");
    name_of(cache, "held.cache");
    ck_assert_int_eq(program("gen cache --data %s --out %s", held_out, cache), CLI_DONE);
    char *got = scores_of(cache, "");
    assert_like(got, want);
    free(got);
    free(want);
    ck_assert_int_eq(program("eval --checkpoint %s --data %s", model_file, cache), CLI_DONE);
    ck_assert_int_eq(program("eval --checkpoint %s --data %s --format criteo", model_file, cache),
                     CLI_FAILED);
    assert_err("looks like cache, not like criteo");
}
END_TEST

/* --- where scores go --- */

static void assert_file(const char *path, const char *text)
{
    size_t n;
    char *has = text_of(path, &n);
    ck_assert_msg(strcmp(has, text) == 0, "%s has %zu bytes, %.20s", path, n, has);
    free(has);
}

/* What was there stays, under its rights, until all scores are written; a link is followed. */
START_TEST(a_refused_run_leaves_the_scores_of_before)
{
    char out[96], other[96], temporary[104];
    struct stat of;
    size_t n;
    train_on(clicks, MODEL_LINEAR, DATA_CRITEO);
    strcpy(out, put("scores", "of before", 9));
    ck_assert_int_eq(chmod(out, 0640), 0);
    name_of(other, "link");
    ck_assert_int_eq(symlink("scores", other), 0);
    snprintf(temporary, sizeof temporary, "%s.tmp", out);
    char *text = text_of(held_out, &n);
    ck_assert_uint_gt(n, 2 << 18);          /* several chunks are scored before the bad ones */
    text = realloc(text, n + 1000);
    for (int k = 0; k < 100; k++)
        strcpy(text + n + 4 * k, "bad\n");
    put("ends.tsv", text, n + 400);
    ck_assert_int_eq(program("predict --checkpoint %s --data %s --out %s", model_file, some,
                             _i ? other : out), CLI_FAILED);
    assert_err("100 of 4100 lines are bad, more than 1 %");
    assert_file(out, "of before");
    ck_assert_int_ne(access(temporary, F_OK), 0);
    char *want = scores_of(held_out, "");
    ck_assert_int_eq(program("predict --checkpoint %s --data %s --out %s", model_file, held_out,
                             _i ? other : out), CLI_DONE);
    ck_assert_str_eq(out_text, "");
    assert_file(out, want);
    ck_assert(lstat(out, &of) == 0 && S_ISREG(of.st_mode) && (of.st_mode & 0777) == 0640);
    ck_assert(lstat(other, &of) == 0 && S_ISLNK(of.st_mode));
    ck_assert_int_ne(access(temporary, F_OK), 0);
    snprintf(temporary, sizeof temporary, "%s.lock", out);
    ck_assert_int_ne(access(temporary, F_OK), 0);
    ck_assert_int_eq(program("predict --checkpoint %s --data %s --out %s/no/x", model_file, held_out,
                             folder), CLI_FAILED);
    assert_err("/no/x cannot be written: No such file");
    free(want);
    free(text);
}
END_TEST

/* The file beside which a link's target is written is none of the inputs. */
START_TEST(scores_do_not_cost_the_data)
{
    char link[96], data[96];
    size_t n, left;
    char *text = text_of(held_out, &n);
    train_on(clicks, MODEL_LINEAR, DATA_CRITEO);
    name_of(link, "link");
    ck_assert_int_eq(symlink("scores", link), 0);
    strcpy(data, put("scores.tmp", text, n));
    ck_assert_int_eq(program("predict --checkpoint %s --data %s --out %s", model_file, data, link),
                     CLI_BAD_USE);
    assert_err("scores.tmp would be written over by --out");
    char *after = text_of(data, &left);
    ck_assert_uint_eq(left, n);
    free(after);
    free(text);
}
END_TEST

/* --- what a file is taken for --- */

static const struct {
    const char *text, *says;        /* says NULL: it is read */
    int examples;
} looks[] = {
    {"root:x:0:0:root:/root:/bin/bash\ndaemon:x:1:1::/:\n", "its format cannot be told; give", 0},
    {"12:30 and 14:15\n", "its format cannot be told", 0},
    {"{\"kind\":\"header\",\"batch\":128}\n", "its format cannot be told", 0},
    {"a,b,c\n1,2,3\n", "its format cannot be told", 0},
    {"1\tx\ty\n", "3 columns, criteo has 40", 0},
    {"1 3:1 4:2\n0 5:1\n", NULL, 2},
    {"1\t3:1\t4:2\n", NULL, 1},
    {"-1\n1 word:0.5\n", NULL, 2},
    {"0 0:3:1 1:4:2\n", NULL, 1},
};
enum { N_LOOKS = sizeof looks / sizeof *looks };

START_TEST(a_format_is_not_guessed_wrongly)
{
    struct train_options o = small();
    struct train_result r;
    o.data = put("text", looks[_i].text, strlen(looks[_i].text));
    o.format = DATA_AUTO;
    o.model = MODEL_LINEAR;
    int status = train(&o, &r);
    ck_assert_msg((status == 0) == !looks[_i].says, "%s", said);
    ck_assert_uint_eq(r.seen.n, (unsigned)looks[_i].examples);
    if (looks[_i].says)
        says(looks[_i].says);
}
END_TEST

static const struct {
    int format, model;
    const char *says;
} wrong_formats[] = {
    {DATA_LIBSVM, MODEL_DLRM,
     "clicks.tsv looks like criteo, not like libsvm: give --format criteo, or auto"},
    {DATA_LIBFFM, MODEL_LINEAR, "looks like criteo, not like libffm"},
    {DATA_IDX, MODEL_MLP, "looks like criteo, not like idx"},
    {DATA_CACHE, MODEL_LINEAR, "looks like criteo, not like cache"},
};
enum { N_WRONG_FORMATS = sizeof wrong_formats / sizeof *wrong_formats };

START_TEST(a_wrong_format_is_the_cause)
{
    struct train_options o = small();
    struct train_result r;
    o.format = wrong_formats[_i].format;
    o.model = wrong_formats[_i].model;
    o.trainers = 2;
    ck_assert_int_eq(train(&o, &r), 1);
    says(wrong_formats[_i].says);
    ck_assert_msg(!strstr(said, "dense feature"), "%s", said);
    ck_assert_int_eq(program("train --data %s --quiet --fields 3", clicks), CLI_BAD_USE);
    assert_err("--fields means nothing with data found to be of the format criteo: it is for "
               "--format libffm");
}
END_TEST

/* The names of columns, in the first line of each file: said, and no line. */
START_TEST(a_header_is_skipped)
{
    size_t n, headed_n;
    char *text = text_of(held_out, &n), *headed, both[200];
    train_on(clicks, MODEL_LINEAR, DATA_CRITEO);
    char *want = scores_of(held_out, "");
    FILE *to = open_memstream(&headed, &headed_n);
    fputs("label", to);
    for (int k = 1; k < 40; k++)
        fprintf(to, "\t%c%d", k < 14 ? 'I' : 'C', k < 14 ? k : k - 13);
    fprintf(to, "%s\n%s", _i ? "\r" : "", text);
    fclose(to);
    put("headed.tsv", headed, headed_n);
    char *got = scores_of(some, "");
    assert_like(got, want);
    assert_err("headed.tsv:1: a header is skipped: label");
    ck_assert_int_eq(count(err_text, "\n"), 1);
    snprintf(both, sizeof both, "%s,%s", some, some);
    ck_assert_int_eq(program("eval --checkpoint %s --data %s --json --max-bad 0", model_file, both),
                     CLI_DONE);
    ck_assert_msg(strstr(out_text, "\"examples\":8000,"), "%s", out_text);
    ck_assert_int_eq(count(err_text, "a header is skipped"), 2);
    struct train_options o = small();
    struct train_result r;
    o.data = some;
    o.epochs = 3;
    o.trainers = 2;
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    ck_assert_uint_eq(r.seen.n, 3 * EVAL_ROWS);
    ck_assert_uint_eq(r.figures.bad, 0);
    ck_assert_int_eq(count(said, "a header is skipped"), 1);
    free(got);
    free(headed);
    free(want);
    free(text);
}
END_TEST

/* --- descant info --- */

static void assert_out(const char *text)
{
    ck_assert_msg(strstr(out_text, text) != NULL, "'%s' is not in: %s", text, out_text);
}

static void tell(const char *path)
{
    ck_assert_msg(program("info %s", path) == CLI_DONE, "%s", err_text);
    ck_assert_str_eq(err_text, "");
}

START_TEST(a_file_is_told)
{
    struct train_options o = small();
    struct train_result r;
    char text[400], cache[96];
    o.checkpoint = model_file;
    o.log = log_file;
    o.eval = held_out;
    o.sync = "ma,every=4";
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    tell(model_file);
    assert_out("is                 a checkpoint of descant train " DESCANT_VERSION "\n");
    assert_out("model              dlrm: 13 dense features, 26 fields, 1 class\n");
    assert_out("plan               ma,every=4, 1 trainer x 1 worker on 1 host\n");
    assert_out("examples           20000 in ");
    assert_out("bottom.0.weight              16 x 13, f32\n");
    assert_out("parameters         2");
    assert_out("for --resume       ");
    ck_assert_ptr_null(strstr(out_text, "other than 0"));
    const char *at = strstr(out_text, "parameters ");
    snprintf(text, sizeof text, "%.*s\n", (int)(strstr(at, " in ") - at), at);
    tell(log_file);
    assert_out(text);
    assert_out("is                 a log of descant train\n");
    assert_out("plan               ma,every=4\n");
    assert_out("examples           20000\n");
    snprintf(text, sizeof text, "held-out loss      %.6f\n", r.held_out.loss);
    assert_out(text);
    tell(held_out);
    assert_out("is                 data of the format criteo\n");
    assert_out("shape              13 dense features, 26 fields, 1 class\n");
    assert_out("examples           4000\n");
    assert_out("clicks             ");
    name_of(cache, "held.cache");
    ck_assert_int_eq(program("gen cache --data %s --out %s", held_out, cache), CLI_DONE);
    tell(cache);
    assert_out("is                 a cache of descant gen cache: ids hashed\n");
    assert_out("examples           4000\n");
    tell(put("x.ffm", "1 0:3:1 6:4:2\nbad\n0 2:1:1\n", 26));
    assert_out("data of the format libffm\n");
    assert_out("7 fields");
    assert_out("to train on        --fields 7 or more, 32 without it\n");
    assert_out("bad lines          1 of 3\none of them        ");
    assert_out("/x.ffm:2: label 'bad': allowed is 0 and 1, or -1 and +1\n");
    tell(put("x.svm", "3:1 4:2\n", 8));
    assert_out("examples           1\nlabels             none: it can be scored, not trained on\n");
    tell(put("y.svm", "3 1:1\n9 2:1\n0 3:1\n", 18));
    assert_out("0 dense features, 1 field, 10 classes\nexamples           3\n");
    ck_assert_ptr_null(strstr(out_text, "bad lines"));
    tell(put("photographs", "\0\0\010\003\0\0\0\001\0\0\0\001\0\0\0\001x", 17));
    assert_out("examples           1\nlabels             none: it can be scored, not trained on\n");
    tell(put("labels", "\0\0\010\001\0\0\0\001x", 9));
    assert_out("is                 the IDX labels of images, which are read with them\n");
    tell(put("notes", "to do: \033[2Jnothing\n", 19));
    assert_out("is                 a text file\n");
    tell(put("none", "", 0));
    assert_out("is                 an empty file\n");
    ck_assert_int_eq(program("info %s/nowhere %s", folder, held_out), CLI_FAILED);
    assert_err("nowhere: No such file");
    assert_out("examples           4000\n");
    ck_assert_int_eq(program("info %s", put("torn.gz", "\x1f\x8b\x08\0 no gzip at all", 19)),
                     CLI_FAILED);
    assert_err("torn.gz: ");
}
END_TEST

/* A run that was stopped, with the figures of its last evaluation; a model that --l1 has thinned. */
START_TEST(a_stopped_run_is_told)
{
    static const char log[] =
        "{\"kind\":\"header\",\"model\":\"linear\",\"parameters\":14,\"table_parameters\":2000}\n"
        "{\"kind\":\"eval\",\"examples\":900,\"seconds\":1,\"eval_loss\":0.5,\"auc\":0.75,"
        "\"eval_accuracy\":0.8}\n"
        "{\"kind\":\"summary\",\"auc\":null,\"stopped\":\"stopped by signal 2\"}\n";
    struct train_options o = small();
    struct train_result r;
    tell(put("stopped.jsonl", log, sizeof log - 1));
    assert_out("is                 a log of descant train, stopped by signal 2\n");
    assert_out("parameters         2014\nintervals          0\n");
    assert_out("AUC                0.750000\naccuracy           0.800000\n");
    o.model = MODEL_LINEAR;
    o.optimizer.kind = OPTIMIZER_FTRL;
    o.optimizer.rows = ROWS_FTRL;
    o.optimizer.l1 = 1e5;
    o.checkpoint = model_file;
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    tell(model_file);
    assert_out("parameters         2014 in ");
    const char *at = strstr(out_text, "other than 0       ");
    ck_assert_msg(at && strtod(at + 19, NULL) <= 14 && strstr(at, " of them\n"), "%s", out_text);
}
END_TEST

/* A file of another kind is called what it is, wherever a checkpoint is wanted. */
START_TEST(what_is_no_checkpoint_is_called_by_its_kind)
{
    static const char *const commands[] = {"eval", "predict"};
    for (int k = 0; k < 2; k++) {
        ck_assert_int_eq(program("%s --data %s --checkpoint %s", commands[k], held_out,
                                 put("notes", "to do: nothing\n", 15)), CLI_FAILED);
        assert_err("notes is a text file, no checkpoint");
        ck_assert_int_eq(program("%s --data %s --checkpoint %s", commands[k], held_out, clicks),
                         CLI_FAILED);
        assert_err("clicks.tsv is data to train on, no checkpoint");
        ck_assert_int_eq(program("%s --data %s --checkpoint %s", commands[k], held_out,
                                 put("none", "", 0)), CLI_FAILED);
        assert_err("none is an empty file, no checkpoint");
    }
    struct train_options o = small();
    struct train_result r;
    o.resume = true;
    o.checkpoint = put("notes", "to do: nothing\n", 15);
    ck_assert_int_eq(train(&o, &r), 1);
    says("notes is a text file, no checkpoint");
    ck_assert_int_eq(program("bsp run --name test-kind-%d --model %s", (int)getpid(), clicks),
                     CLI_FAILED);
    assert_err("clicks.tsv is data to train on, no checkpoint");
}
END_TEST

/* --- held-out sets without an example --- */

static const struct {
    const char *name, *text, *says;
} nothing[] = {
    {"empty.tsv", "", "there is no example in "},
    {"bad.tsv", "bad\nbad\n", "2 of 2 lines are bad, more than 1 %"},
    {"bare.tsv", "1\t2\t3\t4\t5\t6\t7\t8\t9\t10\t11\t12\t13\ta\tb\tc\td\te\tf\tg\th\ti\tj\tk\tl\tm\tn\t"
                 "o\tp\tq\tr\ts\tt\tu\tv\tw\tx\ty\tz\n", "they have no label"},
};
enum { N_NOTHING = 3, N_WAYS = 6 };

START_TEST(training_needs_an_example_to_evaluate)
{
    static const char *const plans[] = {"none", "shadow-easgd", "bsp"};
    const int models[] = {MODEL_DLRM, MODEL_FM, MODEL_LINEAR};
    struct train_options o = small();
    int way = _i % N_WAYS, which = _i / N_WAYS;
    o.eval = put(nothing[which].name, nothing[which].text, strlen(nothing[which].text));
    o.model = models[way % 3];
    o.checkpoint = model_file;
    o.epochs = 1000000;             /* it is refused at the start, or the test never ends */
    if (way < 3) {
        o.trainers = 1 + way % 2 + (way == 2);
        o.sync = plans[way];
        struct train_result r;
        ck_assert_int_eq(train(&o, &r), 1);
        ck_assert_int_eq(count(said, nothing[which].says), 1);
    } else if (way < 5) {
        pid_t pids[2];
        for (int k = 0; k < 2; k++)
            pids[k] = begin_rank(&o, k);
        for (int k = 0; k < 2; k++)
            ck_assert_int_eq(end_within(pids[k], 60), 1);
    } else {
        ck_assert_int_eq(unsetenv("RANK") | unsetenv("WORLD_SIZE"), 0);
        o.trainers = 1;
        o.sync = "bsp";
        struct train_result r;
        ck_assert_int_eq(train(&o, &r), 1);
    }
    says(nothing[which].says);
    ck_assert_msg(!strstr(said, "linear under") && !strstr(said, "held-out"), "%s", said);
    ck_assert_int_ne(access(model_file, F_OK), 0);
}
END_TEST

/* What can be read only once is refused when it has been. */
START_TEST(an_empty_pipe_is_no_held_out_set)
{
    struct train_options o = small();
    struct train_result r;
    ck_assert_ptr_nonnull(freopen("/dev/null", "re", stdin));
    o.eval = "-";
    o.examples = 1000;
    ck_assert_int_eq(train(&o, &r), 1);
    says("there is no example in -");
}
END_TEST

int main(void)
{
    TCase *all = new_case("scores", 120);
    tcase_add_checked_fixture(all, set_up_training, remove_folder);
    tcase_add_loop_test(all, each_line_has_a_score, 0, 4);
    tcase_add_test(all, files_follow_each_other);
    tcase_add_loop_test(all, criteo_needs_no_label, 0, 2);
    tcase_add_test(all, a_cut_first_line_is_one_bad_line);
    tcase_add_test(all, scores_do_not_cost_the_data);
    tcase_add_loop_test(all, a_cut_line_is_not_scored, 0, 2);
    tcase_add_loop_test(all, sparse_text_needs_no_label, 0, 4);
    tcase_add_test(all, images_and_caches_are_scored);
    tcase_add_test(all, eval_tells_of_bad_lines);
    tcase_add_loop_test(all, a_cache_needs_no_word, 0, 2);
    tcase_add_loop_test(all, a_refused_run_leaves_the_scores_of_before, 0, 2);
    tcase_add_loop_test(all, a_format_is_not_guessed_wrongly, 0, N_LOOKS);
    tcase_add_loop_test(all, a_wrong_format_is_the_cause, 0, N_WRONG_FORMATS);
    tcase_add_loop_test(all, a_header_is_skipped, 0, 2);
    tcase_add_test(all, a_file_is_told);
    tcase_add_test(all, a_stopped_run_is_told);
    tcase_add_test(all, what_is_no_checkpoint_is_called_by_its_kind);
    tcase_add_loop_test(all, training_needs_an_example_to_evaluate, 0,
                        N_NOTHING * N_WAYS);
    tcase_add_test(all, an_empty_pipe_is_no_held_out_set);
    make_clicks();
    return run_cases(all, NULL);
}
