/* SPDX-License-Identifier: MIT */
/* Images in IDX files, as MNIST and Fashion-MNIST come, plain or compressed. A file of
 * images is named; its labels are in the file whose name has "labels-idx1" where the
 * images' has "images-idx3". All numbers of the headers are 32 bits, big-endian:
 *
 *   images      0x00000803, n, height, width, then n * height * width bytes, one a pixel
 *   labels      0x00000801, n, then n bytes
 *
 * Both are wholly in memory, as bytes; several files must have images of one size. A
 * chunk is as many examples as chunk_bytes has pixels for. Each image's pixels have mean
 * 0 and deviation 1: that needs no other image, so a later reader of an image sees the
 * same. With a seed the order is new in each epoch: a permutation (Fisher and Yates) by
 * seed and epoch, so that all processes that share the input have the same one, and each
 * example is in one chunk of every epoch. */
#include "data/reader.h"

#include <errno.h>
#include <math.h>
#include <unistd.h>

struct images {
    unsigned char *pixels, *labels;     /* as the files are, headers too; labels NULL:
                                           only scored */
};

struct idx {
    const struct log *log;
    struct images *files;
    size_t n_files;
    uint32_t *order;            /* (n): file order, or this epoch's; examples counted
                                   through */
    uint64_t *first;            /* (n_files + 1): each file's first example */
    size_t n, per_chunk;
    uint64_t epoch, epochs;     /* UINT64_MAX: order is not made yet */
    uint64_t seed;
    struct data_shape shape;
};

enum { IMAGES_MAGIC = 0x803, LABELS_MAGIC = 0x801, IMAGES_HEADER = 16, LABELS_HEADER = 8,
       PIXELS_LIMIT = 1 << 24 };

static uint32_t big_endian(const unsigned char *at)
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

/* The file's length by its header; 0: the bytes are no header. stream_read_file reads one
 * byte more at most. */
static size_t length_of(const unsigned char *at, size_t n)
{
    if (n >= LABELS_HEADER && big_endian(at) == LABELS_MAGIC)
        return LABELS_HEADER + (size_t)big_endian(at + 4);
    if (n < IMAGES_HEADER || big_endian(at) != IMAGES_MAGIC)
        return 0;
    uint64_t pixels = (uint64_t)big_endian(at + 8) * big_endian(at + 12);
    return pixels > PIXELS_LIMIT ? 0
                                 : IMAGES_HEADER + (size_t)(big_endian(at + 4) * pixels);
}

/* Compares the header with the file's length and with the images of earlier files. *n:
 * the file's images. */
static descant_status check_images(struct idx *idx, const char *path,
                                   const unsigned char *at, size_t bytes, uint32_t *n)
{
    if (bytes < IMAGES_HEADER || big_endian(at) != IMAGES_MAGIC)
        return log_fail(idx->log, DESCANT_CORRUPT, "%s: not an IDX file of images", path);
    uint64_t pixels = (uint64_t)big_endian(at + 8) * big_endian(at + 12);
    *n = big_endian(at + 4);
    if (pixels == 0 || pixels > PIXELS_LIMIT)
        return log_fail(idx->log, DESCANT_CORRUPT, "%s: images of %llu pixels", path,
                        (unsigned long long)pixels);
    if (bytes != IMAGES_HEADER + *n * pixels)
        return log_fail(idx->log, DESCANT_CORRUPT,
                        "%s: %zu bytes, but %u images of %llu pixels are %llu", path,
                        bytes, *n, (unsigned long long)pixels,
                        (unsigned long long)(IMAGES_HEADER + *n * pixels));
    if (idx->shape.n_dense && (uint64_t)idx->shape.n_dense != pixels)
        return log_fail(idx->log, DESCANT_INVALID,
                        "%s: images of %llu pixels, those before have %d", path,
                        (unsigned long long)pixels, idx->shape.n_dense);
    idx->shape.n_dense = (int)pixels;
    return DESCANT_OK;
}

/* Reads the labels of n images, and raises n_classes to the largest label plus 1. */
static descant_status load_labels(struct idx *idx, const char *path,
                                  struct images *images, uint32_t n)
{
    static const char from[] = "images-idx3", to[] = "labels-idx1";
    const char *slash = strrchr(path, '/');
    const char *part = strstr(slash ? slash : path, from);
    char name[4096];
    size_t bytes;
    if (!part)
        return log_fail(idx->log, DESCANT_INVALID,
                        "%s: its labels' name is not known, for its own has no '%s'",
                        path, from);
    int length = snprintf(name, sizeof name, "%.*s%s%s", (int)(part - path), path, to,
                          part + sizeof from - 1);
    if (length < 0 || (size_t)length >= sizeof name)
        return log_fail(idx->log, DESCANT_INVALID, "%s: the name is too long", path);
    if (access(name, F_OK) != 0)
        return log_fail(
            idx->log, DESCANT_SYSTEM,
            "%s: without labels images can only be scored (descant predict): %s: %s",
            path, name, strerror(errno));
    descant_status status =
        stream_read_file(name, length_of, &images->labels, &bytes, idx->log);
    if (status != DESCANT_OK)
        return status;
    const unsigned char *at = images->labels;
    if (bytes < LABELS_HEADER || big_endian(at) != LABELS_MAGIC)
        return log_fail(idx->log, DESCANT_CORRUPT, "%s: not an IDX file of labels", name);
    if (big_endian(at + 4) != n || bytes != LABELS_HEADER + (uint64_t)n)
        return log_fail(idx->log, DESCANT_CORRUPT,
                        "%s: %u labels in %zu bytes, for %u images", name,
                        big_endian(at + 4), bytes, n);
    for (uint32_t i = 0; i < n; i++)
        if (at[LABELS_HEADER + i] >= idx->shape.n_classes)
            idx->shape.n_classes = at[LABELS_HEADER + i] + 1;
    return DESCANT_OK;
}

static descant_status load_all(struct idx *idx, const struct data_options *o)
{
    idx->files = memory_take_array(o->n_paths, sizeof *idx->files);
    idx->first = memory_take_array(o->n_paths + 1, sizeof *idx->first);
    if (!idx->files || !idx->first)
        return log_fail(o->log, DESCANT_MEMORY, "no memory for images");
    idx->n_files = o->n_paths;
    for (size_t i = 0; i < o->n_paths; i++) {
        struct images *images = &idx->files[i];
        uint32_t n = 0;
        size_t bytes;
        descant_status status =
            stream_read_file(o->paths[i], length_of, &images->pixels, &bytes, idx->log);
        if (status == DESCANT_OK)
            status = check_images(idx, o->paths[i], images->pixels, bytes, &n);
        if (status == DESCANT_OK && !o->scoring)
            status = load_labels(idx, o->paths[i], images, n);
        if (status != DESCANT_OK)
            return status;
        idx->first[i + 1] = idx->first[i] + n;
    }
    idx->n = idx->first[o->n_paths];
    if (idx->n > UINT32_MAX)
        return log_fail(o->log, DESCANT_INVALID, "more than 2^32 images");
    idx->order = memory_take_array(idx->n, sizeof *idx->order);
    return idx->order
               ? DESCANT_OK
               : log_fail(o->log, DESCANT_MEMORY, "no memory for %zu images", idx->n);
}

descant_status idx_open(struct idx **out, const struct data_options *o,
                        struct data_shape *shape)
{
    struct idx *idx = memory_take(sizeof *idx);
    if (!idx)
        return log_fail(o->log, DESCANT_MEMORY, "no memory for images");
    idx->log = o->log;
    idx->epoch = UINT64_MAX;
    idx->epochs = o->epochs > 0 ? (uint64_t)o->epochs : 1;
    idx->seed = o->seed;
    idx->shape.n_classes = 2;
    descant_status status = load_all(idx, o);
    if (status != DESCANT_OK) {
        idx_close(idx);
        return status;
    }
    size_t bytes = o->chunk_bytes ? o->chunk_bytes : CHUNK_BYTES;
    idx->per_chunk = bytes / (size_t)idx->shape.n_dense;
    idx->per_chunk += idx->per_chunk == 0;
    *shape = idx->shape;
    *out = idx;
    return DESCANT_OK;
}

void idx_close(struct idx *idx)
{
    if (!idx)
        return;
    for (size_t i = 0; i < idx->n_files; i++) {
        memory_give(idx->files[i].pixels);
        memory_give(idx->files[i].labels);
    }
    memory_give(idx->files);
    memory_give(idx->first);
    memory_give(idx->order);
    memory_give(idx);
}

static uint64_t chunks_an_epoch(const struct idx *idx)
{
    return idx->n / idx->per_chunk + (idx->n % idx->per_chunk > 0);
}

uint64_t idx_chunks(const struct idx *idx)
{
    return chunks_an_epoch(idx) * idx->epochs;
}

/* Makes the order of an epoch, unless it is there. k is a number below i by a
 * multiplication, whose bias is below i / 2^32. */
static void order_epoch(struct idx *idx, uint64_t epoch)
{
    struct rng rng;
    if (idx->epoch == epoch)
        return;
    idx->epoch = epoch;
    for (size_t i = 0; i < idx->n; i++)
        idx->order[i] = (uint32_t)i;
    if (!idx->seed)
        return;
    rng_init(&rng, idx->seed + epoch * UINT64_C(0x9e3779b97f4a7c15));
    for (size_t i = idx->n; i > 1; i--) {
        size_t k = (size_t)(((rng_next(&rng) >> 32) * i) >> 32);
        uint32_t other = idx->order[k];
        idx->order[k] = idx->order[i - 1];
        idx->order[i - 1] = other;
    }
}

/* A deviation of less than 1 / sqrt(n) is taken for that, of pixels between 0 and 1: the
 * noise of an image that is all but even is not made large. */
static void standardise(float *to, const unsigned char *pixels, size_t n)
{
    uint64_t sum = 0, squares = 0;
    for (size_t i = 0; i < n; i++) {
        sum += pixels[i];
        squares += (uint64_t)pixels[i] * pixels[i];
    }
    double mean = (double)sum / (double)n;
    double variance = (double)squares / (double)n - mean * mean;
    double least = 255.0 * 255.0 / (double)n;
    double by = 1 / sqrt(variance > least ? variance : least);
    for (size_t i = 0; i < n; i++)
        to[i] = (float)((pixels[i] - mean) * by);
}

enum data_got idx_read(struct idx *idx, uint64_t chunk, struct block *block,
                       descant_status *status)
{
    struct rows rows;
    if (chunk >= idx_chunks(idx))
        return DATA_END;
    order_epoch(idx, chunk / chunks_an_epoch(idx));
    size_t from = (size_t)(chunk % chunks_an_epoch(idx)) * idx->per_chunk;
    size_t n = idx->n - from < idx->per_chunk ? idx->n - from : idx->per_chunk;
    if (!rows_begin(&rows, block, &idx->shape, n)) {
        *status = log_fail(idx->log, DESCANT_MEMORY, "no memory for a block");
        return DATA_FAILED;
    }
    for (; rows.n < n; rows.n++) {
        uint32_t number = idx->order[from + rows.n];
        size_t file = 0, width = (size_t)idx->shape.n_dense;
        while (number >= idx->first[file + 1])
            file++;
        const struct images *images = &idx->files[file];
        size_t k = number - idx->first[file];
        standardise(rows.dense + rows.n * width,
                    images->pixels + IMAGES_HEADER + k * width, width);
        rows.labels[rows.n] = images->labels ? images->labels[LABELS_HEADER + k] : 0;
    }
    rows_end(&rows);
    block->lines = n;
    return DATA_BLOCK;
}
