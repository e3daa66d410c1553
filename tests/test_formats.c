/* SPDX-License-Identifier: MIT */
/* Safetensors files and figures of quality: what is written is read again, by Python too; torn,
 * mutated and foreign files are refused with a reason; a full disk leaves what was there; sums
 * and AUC against naive versions. */
#include "data/safetensors.h"
#include "harness/folder.h"
#include "harness/suite.h"
#include "run/metrics.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

/* --- safetensors --- */

static float floats[6] = {1, -2, 3.5f, 0, 1e-30f, 7};
static unsigned char bytes[5] = {0, 1, 2, 254, 255};
static uint64_t words[2] = {1, UINT64_MAX};

static const struct safetensor three[] = {
    {.name = "bytes", .type = SAFETENSORS_U8, .n_dims = 1, .dims = {5}, .data = bytes, .bytes = 5},
    {.name = "top.0.weight", .type = SAFETENSORS_F32, .n_dims = 2, .dims = {2, 3},
     .data = floats, .bytes = sizeof floats},
    {.name = "step", .type = SAFETENSORS_U64, .n_dims = 1, .dims = {2}, .data = words,
     .bytes = sizeof words},
};
static const struct safetensors_text two_texts[] = {
    {"model", "dlrm \"quoted\" \n \xc3\xa9"}, {"rows", "100"}};

static descant_status write_three(const char *path, const char *previous)
{
    return safetensors_write(path, previous, three, 3, two_texts, 2, NULL);
}

static void check_three(const char *path)
{
    struct safetensors *file;
    ck_assert_msg(safetensors_open(&file, path, NULL) == DESCANT_OK, "%s", descant_last_error());
    ck_assert_uint_eq(safetensors_count(file), 3);
    for (size_t i = 0; i < 3; i++) {
        const struct safetensor *t = safetensors_find(file, three[i].name);
        ck_assert_ptr_nonnull(t);
        ck_assert_int_eq(t->type, three[i].type);
        ck_assert_int_eq(t->n_dims, three[i].n_dims);
        ck_assert_mem_eq(t->dims, three[i].dims, sizeof t->dims);
        ck_assert_uint_eq(t->bytes, three[i].bytes);
        ck_assert_mem_eq(t->data, three[i].data, t->bytes);
        ck_assert_uint_eq((uintptr_t)t->data % (i == 0 ? 1 : i == 1 ? 4 : 8), 0);
    }
    ck_assert_ptr_null(safetensors_find(file, "none"));
    ck_assert_ptr_null(safetensors_at(file, 3));
    ck_assert_str_eq(safetensors_text(file, "model"), two_texts[0].value);
    ck_assert_str_eq(safetensors_text(file, "rows"), "100");
    ck_assert_ptr_null(safetensors_text(file, "none"));
    safetensors_close(file);
}

START_TEST(what_is_written_is_read)
{
    const char *path = in_folder("a.safetensors");
    size_t n;
    ck_assert_int_eq(write_three(path, NULL), DESCANT_OK);
    check_three(path);
    no_file(in_folder("a.safetensors.tmp"));
    char *all = get_file(path, &n);
    uint64_t length;
    memcpy(&length, all, 8);
    ck_assert_uint_eq((length + 8) % 64, 0);
    ck_assert_uint_eq(n, 8 + length + sizeof words + sizeof floats + sizeof bytes);
    free(all);
}
END_TEST

START_TEST(empty_and_scalar)
{
    const char *path = in_folder("a");
    struct safetensors *file;
    struct safetensor odd[] = {
        {.name = "scalar", .type = SAFETENSORS_U64, .data = words, .bytes = 8},
        {.name = "none", .type = SAFETENSORS_F32, .n_dims = 2, .dims = {0, 7}},
    };
    ck_assert_int_eq(safetensors_write(path, NULL, NULL, 0, NULL, 0, NULL), DESCANT_OK);
    ck_assert_int_eq(safetensors_open(&file, path, NULL), DESCANT_OK);
    ck_assert_uint_eq(safetensors_count(file), 0);
    ck_assert_ptr_null(safetensors_text(file, "model"));
    safetensors_close(file);
    ck_assert_int_eq(safetensors_write(path, NULL, odd, 2, NULL, 0, NULL), DESCANT_OK);
    ck_assert_int_eq(safetensors_open(&file, path, NULL), DESCANT_OK);
    ck_assert_int_eq(safetensors_find(file, "scalar")->n_dims, 0);
    ck_assert_uint_eq(safetensors_find(file, "none")->bytes, 0);
    safetensors_close(file);
    safetensors_close(NULL);
}
END_TEST

START_TEST(previous_is_kept)
{
    const char *path = in_folder("a"), *previous = in_folder("a.previous");
    size_t n;
    ck_assert_int_eq(write_three(path, previous), DESCANT_OK);
    no_file(previous);
    for (int i = 0; i < 3; i++) {
        char text[8] = {(char)('0' + i)};
        put_file(path, text, 1);
        ck_assert_int_eq(write_three(path, previous), DESCANT_OK);
        char *old = get_file(previous, &n);
        ck_assert_str_eq(old, text);
        free(old);
    }
    /* a crash between the two renames leaves two names of one file */
    ck_assert_int_eq(unlink(previous), 0);
    ck_assert_int_eq(link(path, previous), 0);
    ck_assert_int_eq(write_three(path, previous), DESCANT_OK);
    check_three(path);
    check_three(previous);
    no_file(in_folder("a.tmp"));
    no_file(in_folder("a.previous.tmp"));
}
END_TEST

START_TEST(what_does_not_go_together_is_refused)
{
    const char *path = in_folder("a");
    for (int k = 0; k < 7; k++) {
        struct safetensor t[2] = {three[1], three[2]};
        struct safetensors_text text = {"k", k == 6 ? "\xff" : "v"};
        t[0].bytes -= k == 0;
        t[0].n_dims = k == 1 ? 3 : 2;
        t[0].data = k == 2 ? NULL : floats;
        t[0].type = k == 3 ? (enum safetensors_type)3 : SAFETENSORS_F32;
        if (k == 4)
            strcpy(t[0].name, "step");
        if (k == 5)
            strcpy(t[0].name, "__metadata__");
        descant_status status = safetensors_write(path, NULL, t, 2, &text, 1, NULL);
        ck_assert_msg(status == (k == 6 ? DESCANT_MEMORY : DESCANT_INVALID), "case %d", k);
        no_file(path);
    }
}
END_TEST

/* The write fails with this in its message, and path is what it was. */
static void check_kept(const char *path, const char *previous, const char *says)
{
    ck_assert_int_eq(write_three(path, previous), DESCANT_SYSTEM);
    ck_assert_msg(strstr(descant_last_error(), says) != NULL, "%s", descant_last_error());
    check_three(path);
    if (previous)
        no_file(previous);
}

START_TEST(a_full_disk_leaves_what_was_there)
{
    const char *path = in_folder("a"), *previous = in_folder("a.previous");
    ck_assert_int_eq(write_three(path, NULL), DESCANT_OK);
    struct rlimit before, limit;
    getrlimit(RLIMIT_FSIZE, &before);
    signal(SIGXFSZ, SIG_IGN);
    for (rlim_t most = 0; most < 400; most += 10) {
        limit = (struct rlimit){most, before.rlim_max};
        ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
        descant_status status = write_three(path, previous);
        setrlimit(RLIMIT_FSIZE, &before);
        if (status == DESCANT_OK)
            break;
        ck_assert_int_eq(status, DESCANT_SYSTEM);
        ck_assert_ptr_nonnull(strstr(descant_last_error(), strerror(EFBIG)));
        ck_assert_uint_le(most, 340);
        check_three(path);
        no_file(in_folder("a.tmp"));
        no_file(previous);
    }
    check_three(previous);
}
END_TEST

enum { MOVING = 3000 };
static _Atomic float moving[MOVING];
static _Atomic bool still;

/* A worker that diverges while the file is written. */
static void *come_and_go(void *of)
{
    (void)of;
    for (unsigned k = 0; !still; k++)
        moving[MOVING - 1] = k & 16 ? (float)NAN : 1.0f;
    return NULL;
}

START_TEST(nan_that_comes_while_it_is_written_is_seen)
{
    const char *path = in_folder("a");
    const struct safetensor t = {.name = "w", .type = SAFETENSORS_F32, .n_dims = 1,
                                 .dims = {MOVING}, .data = (const void *)(uintptr_t)moving,
                                 .bytes = sizeof moving, .finite = true};
    struct safetensors *file;
    pthread_t thread;
    int written = 0, refused_now = 0;
    ck_assert_int_eq(write_three(path, NULL), DESCANT_OK);
    moving[1] = INFINITY;
    ck_assert_int_eq(safetensors_write(path, NULL, &t, 1, NULL, 0, NULL), DESCANT_INVALID);
    ck_assert_ptr_nonnull(strstr(descant_last_error(), "a parameter is NaN or Inf"));
    check_three(path);
    no_file(in_folder("a.tmp"));
    moving[1] = 0;
    ck_assert_int_eq(pthread_create(&thread, NULL, come_and_go, NULL), 0);
    uint64_t until = clock_now_ns() + UINT64_C(20000000000);    /* each waits for its turn */
    for (int i = 0; i < 100 || ((!written || !refused_now) && clock_now_ns() < until); i++) {
        descant_status status = safetensors_write(path, NULL, &t, 1, NULL, 0, NULL);
        refused_now += status == DESCANT_INVALID;
        if (status == DESCANT_INVALID)
            continue;
        ck_assert_int_eq(status, DESCANT_OK);
        ck_assert_int_eq(safetensors_open(&file, path, NULL), DESCANT_OK);
        const float *w = safetensors_find(file, "w")->data;
        for (int k = 0; k < MOVING; k++)
            ck_assert_msg(isfinite(w[k]), "%g was written", (double)w[k]);
        safetensors_close(file);
        written++;
    }
    still = true;
    pthread_join(thread, NULL);
    ck_assert_int_gt(written, 0);
    ck_assert_int_gt(refused_now, 0);
}
END_TEST

struct counter {
    uint64_t next, end;         /* fails there */
};

static bool count_on(void *of, void *to, size_t n)
{
    struct counter *c = of;
    uint64_t *at = to;
    ck_assert_uint_eq(n % sizeof *at, 0);
    for (size_t k = 0; k < n / sizeof *at; k++)
        at[k] = c->next++;
    errno = EIO;
    return c->next <= c->end;
}

static bool halves(void *of, void *to, size_t n)
{
    struct counter *c = of;
    float *at = to;
    for (size_t k = 0; k < n / sizeof *at; k++, c->next++)
        at[k] = c->next == c->end ? NAN : (float)c->next / 2;
    return true;
}

/* Tensors that are in memory piece by piece only; one of them cannot be had at last. */
START_TEST(a_source_is_written_as_it_comes)
{
    enum { WORDS = 100003, FLOATS = 50001 };
    struct counter count = {0, WORDS}, half = {0, FLOATS};
    const struct safetensor t[] = {
        {.name = "half", .type = SAFETENSORS_F32, .n_dims = 2, .dims = {FLOATS / 3, 3},
         .bytes = FLOATS * 4, .finite = true, .source = halves, .of = &half},
        {.name = "count", .type = SAFETENSORS_U64, .n_dims = 1, .dims = {WORDS},
         .bytes = WORDS * 8, .source = count_on, .of = &count},
        {.name = "none", .type = SAFETENSORS_F32, .n_dims = 2, .dims = {0, 7},
         .source = halves, .of = &half},
    };
    const char *path = in_folder("a");
    struct safetensors *file;
    size_t n;
    ck_assert_int_eq(safetensors_write(path, NULL, t, 3, NULL, 0, NULL), DESCANT_OK);
    ck_assert_int_eq(safetensors_open(&file, path, NULL), DESCANT_OK);
    const uint64_t *words_read = safetensors_list(file, "count", SAFETENSORS_U64, &n);
    const float *read = safetensors_find(file, "half")->data;
    ck_assert(words_read && n == WORDS);
    for (size_t k = 0; k < WORDS; k++)
        ck_assert_uint_eq(words_read[k], k);
    for (size_t k = 0; k < FLOATS; k++)
        ck_assert_float_eq(read[k], (float)k / 2);
    safetensors_close(file);
    count = (struct counter){0, WORDS - 1};
    half.next = 0;
    ck_assert_int_eq(safetensors_write(path, NULL, t, 3, NULL, 0, NULL), DESCANT_SYSTEM);
    ck_assert_ptr_nonnull(strstr(descant_last_error(), strerror(EIO)));
    count = (struct counter){0, WORDS};
    half = (struct counter){0, FLOATS - 1};
    ck_assert_int_eq(safetensors_write(path, NULL, t, 3, NULL, 0, NULL), DESCANT_INVALID);
    ck_assert_int_eq(safetensors_open(&file, path, NULL), DESCANT_OK);
    ck_assert_uint_eq(safetensors_count(file), 3);
    safetensors_close(file);
    no_file(in_folder("a.tmp"));
}
END_TEST

START_TEST(a_folder_that_refuses_leaves_what_was_there)
{
    const char *path = in_folder("a");
    ck_assert_int_eq(write_three(in_folder("none/a"), NULL), DESCANT_SYSTEM);
    ck_assert_int_eq(write_three(path, NULL), DESCANT_OK);
    ck_assert_int_eq(mkdir(in_folder("a.tmp"), 0700), 0);    /* in the way, for root too */
    check_kept(path, NULL, "a.tmp: cannot write: Is a directory");
    ck_assert_int_eq(rmdir(in_folder("a.tmp")), 0);
    check_kept(path, in_folder("none/a.previous"), "or the old file as");
    no_file(in_folder("a.tmp"));
    if (geteuid() != 0) {
        chmod(folder, 0500);
        check_kept(path, NULL, strerror(EACCES));
        chmod(folder, 0700);
    }
    char name[5000];
    memset(name, 'x', sizeof name);
    name[sizeof name - 1] = 0;
    ck_assert_int_eq(write_three(name, NULL), DESCANT_SYSTEM);
    ck_assert_int_eq(write_three(path, name), DESCANT_SYSTEM);
    check_three(path);
    no_file(in_folder("a.tmp"));
}
END_TEST

/* Reads bytes as a file; the reason if it is refused, or NULL. */
static const char *refused(const void *all, size_t n)
{
    const char *path = in_folder("try");
    struct safetensors *file = NULL;
    put_file(path, all, n);
    descant_status status = safetensors_open(&file, path, NULL);
    if (status == DESCANT_OK) {
        unsigned sum = 0;
        for (size_t i = 0; i < safetensors_count(file); i++) {  /* all that it promises is there */
            const struct safetensor *t = safetensors_at(file, i);
            for (size_t k = 0; k < t->bytes; k++)
                sum += ((const unsigned char *)t->data)[k];
        }
        safetensors_close(file);
        return sum == UINT32_MAX ? "all bits set" : NULL;
    }
    ck_assert_int_eq(status, DESCANT_CORRUPT);
    ck_assert_ptr_null(file);
    ck_assert_ptr_eq(strstr(descant_last_error(), path), descant_last_error());
    return descant_last_error();
}

START_TEST(torn_at_every_length)
{
    const char *path = in_folder("a");
    size_t n;
    ck_assert_int_eq(write_three(path, NULL), DESCANT_OK);
    char *all = get_file(path, &n);
    for (size_t length = 0; length < n; length++)
        ck_assert_msg(refused(all, length), "read when cut to %zu of %zu", length, n);
    ck_assert_ptr_null(refused(all, n));
    ck_assert_ptr_nonnull(refused(all, n + 1));
    free(all);
}
END_TEST

START_TEST(mutated_bytes_do_no_harm)
{
    const char *path = in_folder("a");
    uint64_t seed = 7;
    size_t n;
    struct rng rng;
    rng_init(&rng, seed);
    ck_assert_int_eq(write_three(path, NULL), DESCANT_OK);
    char *all = get_file(path, &n), *copy = malloc(n);
    size_t header = n - sizeof words - sizeof floats - sizeof bytes, harmless = 0;
    for (int round = 0; round < 3000; round++) {
        memcpy(copy, all, n);
        for (uint64_t k = rng_next(&rng) % 3 + 1; k > 0; k--) {
            size_t at = rng_next(&rng) % header;
            copy[at] = rng_next(&rng) % 2 ? (char)rng_next(&rng)
                                          : "0123456789[]{}\",: -"[rng_next(&rng) % 20];
        }
        harmless += refused(copy, n) == NULL;    /* a letter of a name, a space */
    }
    ck_assert_uint_gt(harmless, 100);
    ck_assert_uint_lt(harmless, 2600);
    free(copy);
    free(all);
}
END_TEST

static const struct {
    const char *header;
    size_t data;
    const char *says;           /* NULL: it is read */
} headers[] = {
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[0,8]}}", 8, NULL},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}}   ", 1, NULL},
    {"{\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[1,3]},"
     "\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 3, NULL},
    {"{}", 0, NULL},
    {"{}", 1, "1 bytes after the last tensor"},
    {" {}", 0, "no JSON object"},
    {"[]", 0, "no JSON object"},
    {"{", 0, "no JSON"},
    {"{}x", 0, "no JSON"},
    {"{\"a\":1}", 0, "not an object of dtype"},
    {"{\"a\":{\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[0,2]}}", 2, "type F16 is not"},
    {"{\"a\":{\"dtype\":3,\"shape\":[1],\"data_offsets\":[0,2]}}", 2, "type (none)"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1,1,1],\"data_offsets\":[0,1]}}", 1, "at most 2 sizes"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[-1],\"data_offsets\":[0,1]}}", 1, "whole numbers"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1.0],\"data_offsets\":[0,1]}}", 1, "whole numbers"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,2]}}", 2, "does not make 2 bytes"},
    {"{\"a\":{\"dtype\":\"U64\",\"shape\":[2305843009213693952,8],\"data_offsets\":[0,0]}}", 0,
     "does not make 0 bytes"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[99999999999999999999],\"data_offsets\":[0,1]}}", 1,
     "no JSON"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,0]}}", 1, "torn?"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}", 1, "torn?"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0]}}", 1, "not two whole"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
     "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[1,3]}}", 3, "overlaps"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
     "\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[2,3]}}", 3, "a gap before"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
     "\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}", 2, "no JSON: duplicate"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
     "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[1,5]}}  ", 5, "not aligned"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"x\":1}}", 1,
     "not an object of"},
    {"{\"__metadata__\":3}", 0, "not an object"},
    {"{\"__metadata__\":{\"a\":3}}", 0, "a is not a text"},
    {"{\"a123456789b123456789c123456789d123456789e123456789f123456789g123\":{}}", 0,
     "longer than 63"},
};
enum { N_HEADERS = sizeof headers / sizeof *headers };

START_TEST(headers_are_read_strictly)
{
    char all[1024] = {0};
    uint64_t length = strlen(headers[_i].header);
    memcpy(all, &length, 8);
    memcpy(all + 8, headers[_i].header, length);
    const char *why = refused(all, 8 + length + headers[_i].data), *says = headers[_i].says;
    ck_assert_msg(says ? why && strstr(why, says) : !why, "%s: %s", headers[_i].header,
                  why ? why : "was read");
}
END_TEST

START_TEST(lengths_of_headers_are_tested)
{
    static const uint64_t lengths[] = {0, 3, 100 << 20, (100 << 20) + 1, INT64_MAX, UINT64_MAX};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        char all[11] = "........{}";
        memcpy(all, &lengths[i], 8);
        ck_assert_ptr_nonnull(refused(all, 10));
    }
    struct safetensors *file;
    ck_assert_int_eq(safetensors_open(&file, in_folder("none"), NULL), DESCANT_SYSTEM);
    ck_assert_int_eq(safetensors_open(&file, folder, NULL), DESCANT_CORRUPT);
    ck_assert_int_eq(mkfifo(in_folder("fifo"), 0600), 0);
    ck_assert_int_eq(safetensors_open(&file, in_folder("fifo"), NULL), DESCANT_CORRUPT);
}
END_TEST

START_TEST(memory_runs_out)
{
    const char *path = in_folder("a");
    int failed = 0;
    ck_assert_int_eq(write_three(path, NULL), DESCANT_OK);
    for (long k = 1; k <= 5; k++) {
        struct safetensors *file = NULL;
        memory_fail_at(k);
        descant_status status = safetensors_open(&file, path, NULL);
        failed += status == DESCANT_MEMORY;
        ck_assert(status == DESCANT_MEMORY || status == DESCANT_OK);
        safetensors_close(file);
        memory_fail_at(0);
    }
    ck_assert_int_eq(failed, 3);
    memory_fail_at(1);
    ck_assert_int_eq(write_three(path, NULL), DESCANT_MEMORY);
    memory_fail_at(0);
    check_three(path);
}
END_TEST

/* Nothing to see where Python's package is not installed; DESCANT_PYTHON names another Python. */
START_TEST(python_reads_and_writes_the_same)
{
    const char *python = getenv("DESCANT_PYTHON");
    char command[1024];
    python = python ? python : "python3";
    snprintf(command, sizeof command, "%s -c 'import safetensors.numpy' 2>/dev/null", python);
    if (system(command) != 0)
        return;
    ck_assert_int_eq(write_three(in_folder("ours"), NULL), DESCANT_OK);
    snprintf(command, sizeof command,
             "cd %s && %s -c '\n"
             "import safetensors, safetensors.numpy as s\n"
             "t = s.load_file(\"ours\")\n"
             "assert t[\"top.0.weight\"].tolist()[0] == [1, -2, 3.5]\n"
             "assert t[\"bytes\"].tolist() == [0, 1, 2, 254, 255]\n"
             "assert t[\"step\"].tolist() == [1, 2**64 - 1]\n"
             "m = safetensors.safe_open(\"ours\", \"numpy\").metadata()\n"
             "assert m[\"rows\"] == \"100\" and \"quoted\" in m[\"model\"]\n"
             "s.save_file(t, \"theirs\", m)'", folder, python);
    ck_assert_int_eq(system(command), 0);
    check_three(in_folder("theirs"));
}
END_TEST

/* --- figures of quality --- */

static double log_of_sum(const float *s, int n)
{
    long double sum = 0;
    for (int c = 0; c < n; c++)
        sum += expl((long double)s[c]);
    return (double)logl(sum);
}

START_TEST(sums_match_long_doubles)
{
    enum { N = 5000 };
    static float scores[N], labels[N];
    struct rng rng;
    struct metrics all = {0}, parts = {0}, part = {0};
    double loss = 0, predicted = 0, clicks = 0, right = 0;
    rng_init(&rng, 11);
    for (int i = 0; i < N; i++) {
        scores[i] = (float)(rng_normal(&rng) * (i % 10 == 0 ? 40 : 2));
        labels[i] = rng_uniform(&rng) < 0.3;
        float pair[2] = {0, scores[i]};
        loss += log_of_sum(pair, 2) - (double)(labels[i] * scores[i]);
        predicted += 1 / (1 + exp(-(double)scores[i]));
        clicks += (double)labels[i];
        right += (scores[i] > 0) == (labels[i] > 0);
    }
    metrics_add(&all, scores, labels, N, 1);
    ck_assert(fabs(metrics_logloss(&all) - loss / N) < 1e-7);
    ck_assert(fabs(metrics_calibration(&all) - predicted / clicks) < 1e-6);
    ck_assert_double_eq(metrics_accuracy(&all), right / N);
    double p = clicks / N, entropy = -(p * log(p) + (1 - p) * log(1 - p));
    ck_assert(fabs(metrics_entropy(&all) - loss / N / entropy) < 1e-6);
    for (size_t i = 0; i < N; i += 777) {
        struct metrics some = {0};
        metrics_add(&some, scores + i, labels + i, N - i < 777 ? N - i : 777, 1);
        metrics_merge(i % 2 ? &parts : &part, &some);
    }
    metrics_merge(&parts, &part);
    ck_assert(parts.n == all.n && parts.positive == all.positive && parts.correct == all.correct);
    ck_assert(fabs(parts.loss - all.loss) < 1e-9 * all.loss);
}
END_TEST

START_TEST(each_loss_is_close)
{
    for (float x = -120; x <= 120; x += 0.0371f) {
        struct metrics m = {0};
        float label = 1, pair[2] = {0, x};
        metrics_add(&m, &x, &label, 1, 1);
        long double z = (long double)x, wanted = z < -1 ? -z + log1pl(expl(z)) : log1pl(expl(-z));
        ck_assert_msg(fabsl((long double)m.loss - wanted) < 1e-7L * (1 + wanted), "at %g",
                      (double)x);
        struct metrics two = {0};
        metrics_add(&two, pair, &label, 1, 2);
        ck_assert(fabs(two.loss - m.loss) < 1e-6 * (1 + m.loss));
        ck_assert(two.positive == 1 && two.correct == m.correct);
    }
}
END_TEST

START_TEST(softmax_sums)
{
    enum { N = 400, CLASSES = 10 };
    static float scores[N * CLASSES], labels[N];
    struct rng rng;
    struct metrics m = {0};
    double loss = 0, right = 0;
    rng_init(&rng, 12);
    for (int i = 0; i < N; i++) {
        float *s = scores + i * CLASSES;
        int best = 0, label = (int)(rng_next(&rng) % CLASSES);
        for (int c = 0; c < CLASSES; c++) {
            s[c] = (float)(3 * rng_normal(&rng));
            best = s[c] > s[best] ? c : best;
        }
        labels[i] = (float)label;
        loss += log_of_sum(s, CLASSES) - (double)s[label];
        right += best == label;
    }
    metrics_add(&m, scores, labels, N, CLASSES);
    ck_assert(fabs(metrics_logloss(&m) - loss / N) < 1e-6);
    ck_assert_double_eq(metrics_accuracy(&m), right / N);
    ck_assert(isnan(metrics_entropy(&m)) && isnan(metrics_calibration(&m)));
    float huge[3] = {1e30f, -1e30f, 0}, label = 0;
    struct metrics far = {0};
    metrics_add(&far, huge, &label, 1, 3);
    ck_assert(far.loss == 0 && far.correct == 1);
    label = 3;                          /* no such class */
    metrics_add(&far, huge, &label, 1, 3);
    ck_assert(isnan(far.loss) && far.correct == 1);
}
END_TEST

START_TEST(edges_of_figures)
{
    struct metrics m = {0};
    ck_assert(isnan(metrics_logloss(&m)) && isnan(metrics_entropy(&m)));
    ck_assert(isnan(metrics_accuracy(&m)) && isnan(metrics_calibration(&m)));
    float scores[3] = {INFINITY, -INFINITY, 0}, labels[3] = {1, 0, 0};
    metrics_add(&m, scores, labels, 3, 1);
    ck_assert(fabs(m.loss - log(2)) < 1e-12 && m.correct == 3);
    labels[0] = 0;
    metrics_add(&m, scores, labels, 1, 1);
    ck_assert(isinf(m.loss) && m.correct == 3);
    labels[2] = 1;
    metrics_add(&m, scores + 2, labels + 2, 1, 1);      /* 0 is not above the threshold */
    ck_assert(m.n == 5 && m.correct == 3);
    struct metrics bad = {0};
    scores[0] = NAN;
    metrics_add(&bad, scores, labels, 1, 1);
    ck_assert(isnan(bad.loss) && bad.correct == 0);
    struct metrics one_kind = {0};
    labels[0] = labels[1] = 1;
    scores[0] = scores[1] = 2;
    metrics_add(&one_kind, scores, labels, 2, 1);
    ck_assert(isnan(metrics_entropy(&one_kind)) && !isnan(metrics_calibration(&one_kind)));
}
END_TEST

static double auc_naive(const float *scores, const float *labels, int n)
{
    double won = 0, pairs = 0;
    for (int i = 0; i < n; i++)
        for (int k = 0; k < n; k++)
            if (labels[i] > labels[k]) {
                pairs++;
                won += scores[i] > scores[k] ? 1 : scores[i] == scores[k] ? 0.5 : 0;
            }
    return won / pairs;
}

START_TEST(auc_is_exact)
{
    enum { N = 1500 };
    static float scores[N], labels[N];
    struct rng rng;
    rng_init(&rng, (uint64_t)_i + 1);
    for (int i = 0; i < N; i++) {
        labels[i] = rng_uniform(&rng) < 0.2;
        scores[i] = (float)(rng_normal(&rng) + (double)labels[i]);
        if (_i % 2)                     /* many ties, and zeros of both signs */
            scores[i] = roundf(scores[i] * 3) / 3;
        if (_i == 3)
            scores[i] *= 1e38f;
    }
    struct auc a = {0};
    for (size_t i = 0; i < N; i += 100)
        ck_assert_int_eq(auc_add(&a, scores + i, labels + i, 100), DESCANT_OK);
    double wanted = auc_naive(scores, labels, N);
    ck_assert(fabs(auc_value(&a) - wanted) < 1e-12);
    memory_fail_at(1);                  /* without the second array */
    ck_assert(fabs(auc_value(&a) - wanted) < 1e-12);
    memory_fail_at(0);
    auc_fini(&a);
}
END_TEST

START_TEST(edges_of_auc)
{
    struct auc a = {0};
    float scores[3] = {0.5f, -0.0f, 0}, labels[3] = {1, 1, 0}, nan = NAN;
    ck_assert(isnan(auc_value(&a)));
    ck_assert_int_eq(auc_add(&a, scores, labels, 2), DESCANT_OK);
    ck_assert(isnan(auc_value(&a)));    /* one class is missing */
    ck_assert_int_eq(auc_add(&a, scores + 2, labels + 2, 1), DESCANT_OK);
    ck_assert_double_eq(auc_value(&a), 0.75);
    memory_fail_at(1);
    size_t room = a.room;
    while (a.n < room)
        ck_assert_int_eq(auc_add(&a, scores, labels, 1), DESCANT_OK);
    ck_assert_int_eq(auc_add(&a, scores, labels, 1), DESCANT_MEMORY);
    ck_assert_uint_eq(a.n, room);
    for (int sign = 0; sign < 2; sign++) {
        nan = copysignf(nan, sign ? -1 : 1);
        ck_assert_int_eq(auc_add(&a, &nan, labels, 1), DESCANT_OK);
        ck_assert(isnan(auc_value(&a)));
        a.n -= sign ? 0 : 1;
    }
    auc_fini(&a);
    auc_fini(&a);
}
END_TEST

int main(void)
{
    TCase *files = new_case("files", 60);
    tcase_add_checked_fixture(files, make_folder, remove_folder);
    tcase_add_test(files, what_is_written_is_read);
    tcase_add_test(files, empty_and_scalar);
    tcase_add_test(files, previous_is_kept);
    tcase_add_test(files, what_does_not_go_together_is_refused);
    tcase_add_test(files, a_full_disk_leaves_what_was_there);
    tcase_add_test(files, nan_that_comes_while_it_is_written_is_seen);
    tcase_add_test(files, a_source_is_written_as_it_comes);
    tcase_add_test(files, a_folder_that_refuses_leaves_what_was_there);
    tcase_add_test(files, torn_at_every_length);
    tcase_add_test(files, mutated_bytes_do_no_harm);
    tcase_add_loop_test(files, headers_are_read_strictly, 0, N_HEADERS);
    tcase_add_test(files, lengths_of_headers_are_tested);
    tcase_add_test(files, memory_runs_out);
    tcase_add_test(files, python_reads_and_writes_the_same);
    TCase *figures = new_case("figures", 60);
    tcase_add_test(figures, sums_match_long_doubles);
    tcase_add_test(figures, each_loss_is_close);
    tcase_add_test(figures, softmax_sums);
    tcase_add_test(figures, edges_of_figures);
    tcase_add_loop_test(figures, auc_is_exact, 0, 4);
    tcase_add_test(figures, edges_of_auc);
    return run_cases(files, figures, NULL);
}
