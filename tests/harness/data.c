/* SPDX-License-Identifier: MIT */
/* Texts, images and caches in files, and what readers make of them. */
#include "harness/data.h"
#include "harness/folder.h"
#include "harness/suite.h"

const char *put_text(const char *name, const char *text)
{
    return put_file(in_folder(name), text, strlen(text));
}

static size_t gzip(const void *from, size_t n, unsigned char *to, size_t room)
{
    z_stream z = {0};
    ck_assert_int_eq(deflateInit2(&z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY),
                     Z_OK);
    z.next_in = (unsigned char *)(uintptr_t)from;
    z.avail_in = (unsigned)n;
    z.next_out = to;
    z.avail_out = (unsigned)room;
    ck_assert_int_eq(deflate(&z, Z_FINISH), Z_STREAM_END);
    deflateEnd(&z);
    return room - z.avail_out;
}

size_t pack_bytes(int kind, const void *from, size_t n, unsigned char *to, size_t room)
{
    if (kind == STREAM_GZIP)
        return gzip(from, n, to, room);
    if (kind == STREAM_ZSTD)
        return ZSTD_compress(to, room, from, n, 3);
    memcpy(to, from, n);
    return n;
}

const char *put_packed(int kind, const char *name, const void *bytes, size_t n)
{
    size_t room = n + n / 2 + 1000;
    unsigned char *packed = malloc(room);
    const char *path =
        put_file(in_folder(name), packed, pack_bytes(kind, bytes, n, packed, room));
    free(packed);
    return path;
}

bool ends_with(const char *line, const char *end)
{
    size_t n = strlen(line), m = strlen(end);
    return n >= m && strcmp(line + n - m, end) == 0;
}

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
        size_t from = e->offsets ? e->offsets[k] : k,
               to = e->offsets ? e->offsets[k + 1] : k + 1;
        print = print_bytes(print, "|", 1);
        if (to > from)
            print = print_bytes(print, e->ids + from, (to - from) * sizeof(uint32_t));
        if (e->values && to > from)
            print = print_bytes(print, e->values + from, (to - from) * sizeof(float));
    }
    return print;
}

static void add_block(struct data_seen *seen, const struct block *block)
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

struct data_seen read_chunks(const struct data_options *o, uint64_t seed, unsigned who)
{
    struct data_seen seen = {0};
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

struct data_seen read_file(const char *path, enum data_format format)
{
    struct data_options o = {.paths = &path, .n_paths = 1, .format = format,
                             .n_fields = 4, .max_bad = 1, .log = &listening};
    return read_chunks(&o, 0, 0);
}

void assert_same(const struct data_seen *a, const struct data_seen *b)
{
    ck_assert_uint_eq(a->n, b->n);
    for (size_t i = 0; i < a->n; i++)
        ck_assert_msg(a->at[i].print == b->at[i].print, "example %zu differs", i);
    ck_assert_uint_eq(a->lines, b->lines);
    ck_assert_uint_eq(a->bad, b->bad);
}

int by_chunk(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

struct data_seen read_shared(const struct data_options *o, uint64_t seed)
{
    struct data_seen a = read_chunks(o, seed, 0), b = read_chunks(o, seed, 1);
    ck_assert_int_eq(a.got, DATA_END);
    ck_assert_int_eq(b.got, DATA_END);
    struct data_seen all = {
        .n = a.n + b.n, .lines = a.lines + b.lines, .bad = a.bad + b.bad};
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

char *criteo_text(int rows, size_t *n)
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

char *sparse_text(int rows, bool fields, size_t *n)
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
            fprintf(out, "%d:%.5g", (int)(rng_next(&rng) % 100000),
                    rng_uniform(&rng) - 0.5);
        }
        fputs(i % 50 == 49 ? " x\n" : "\n", out);
    }
    fclose(out);
    return text;
}

char *text_of(enum data_format format, int rows, size_t *n)
{
    return format == DATA_CRITEO ? criteo_text(rows, n)
                                 : sparse_text(rows, format == DATA_LIBFFM, n);
}

int image_pixel(int number, int k)
{
    if (number == 7 || k == 0)
        return number;
    return number % 2 == 0 ? 100 + 10 * k : k % 2 == 0 ? 5 : 250;
}

const char *put_images(const char *name, int from, int n, int kind)
{
    unsigned char images[16 + IMAGES * SIDE * SIDE] = {
        0, 0, 8, 3, 0, 0, 0, (unsigned char)n, 0, 0, 0, SIDE, 0, 0, 0, SIDE};
    unsigned char labels[8 + IMAGES] = {0, 0, 8, 1, 0, 0, 0, (unsigned char)n};
    char file[100];
    for (int i = 0; i < n; i++) {
        labels[8 + i] = (unsigned char)((from + i) % 7);
        for (int k = 0; k < SIDE * SIDE; k++)
            images[16 + i * SIDE * SIDE + k] = (unsigned char)image_pixel(from + i, k);
    }
    snprintf(file, sizeof file, "%s-labels-idx1-ubyte", name);
    put_packed(kind, file, labels, 8 + (size_t)n);
    snprintf(file, sizeof file, "%s-images-idx3-ubyte", name);
    return put_packed(kind, file, images, 16 + (size_t)n * SIDE * SIDE);
}

const char *make_cache(const char *name, const struct data_options *o, size_t batch)
{
    const char *path = in_folder(name);
    struct data *data;
    struct block block = {0};
    struct cache_writer *writer;
    ck_assert_int_eq(data_open(&data, o), DESCANT_OK);
    FILE *file = fopen(path, "w");
    ck_assert_int_eq(cache_create(&writer, file, path, data_shape(data), &listening),
                     DESCANT_OK);
    for (uint64_t k = 0; data_read(data, k, &block) == DATA_BLOCK; k++)
        for (size_t i = 0; i < block.examples.n; i += batch) {
            size_t left = block.examples.n - i;
            struct examples part =
                examples_slice(&block.examples, i, left < batch ? left : batch);
            ck_assert_int_eq(cache_add(writer, &part), DESCANT_OK);
        }
    ck_assert_int_eq(cache_close(writer), DESCANT_OK);
    ck_assert_int_eq(fclose(file), 0);
    block_fini(&block);
    data_close(data);
    return path;
}
