/* SPDX-License-Identifier: MIT */
/* A target for libFuzzer: bytes as a file, read to its end in some format. The first byte says
 * which, and with which chunks; what follows is the file. Every id, value and label is looked
 * at, so that an address sanitizer sees a block that points outside of itself. (Images have two
 * files, and checks that fit into a table: test_data.c.) */
#include "data/data.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

static volatile float seen;      /* so that no look is left out */

static void look_at(const struct examples *e)
{
    float sum = 0;
    size_t bags = e->n * (size_t)e->n_fields;
    size_t from = e->offsets ? e->offsets[0] : 0, to = e->offsets ? e->offsets[bags] : bags;
    for (size_t i = 0; i < e->n; i++)
        sum += e->labels[i];
    for (size_t i = 0; i < e->n * (size_t)e->n_dense; i++)
        sum += e->dense[i];
    for (size_t i = from; i < to; i++)
        sum += (float)e->ids[i] + (e->values ? e->values[i] : 1);
    for (size_t i = 0; e->offsets && i < bags; i++)
        if (e->offsets[i] > e->offsets[i + 1])
            abort();
    seen = sum;
}

/* A file of its own for each process, used again. */
static const char *file_of(const uint8_t *bytes, size_t n)
{
    static char path[64];
    static int fd = -1;
    if (fd < 0)
        fd = memfd_create("fuzz", 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (ftruncate(fd, 0) != 0 || pwrite(fd, bytes, n, 0) != (ssize_t)n)
        abort();
    return path;
}

static void read_all(const struct data_options *o)
{
    struct data *data;
    struct block block = {0};
    if (data_open(&data, o) != DESCANT_OK)
        return;
    for (uint64_t k = 0; data_read(data, k, &block) == DATA_BLOCK; k++)
        look_at(&block.examples);
    data_close(data);
    block_fini(&block);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    static const enum data_format formats[] = {DATA_AUTO, DATA_CRITEO, DATA_LIBSVM, DATA_LIBFFM,
                                               DATA_CACHE};
    static const size_t chunks[] = {1, 7, 100, 1 << 20};
    if (n < 1)
        return 0;
    const char *path = file_of(bytes + 1, n - 1);
    long live = memory_live();
    read_all(&(struct data_options){.paths = &path, .n_paths = 1, .max_bad = 1, .n_fields = 5,
                                    .format = formats[bytes[0] % 5], .hash = bytes[0] & 64,
                                    .scoring = bytes[0] & 32,
                                    .n_classes = bytes[0] & 128 ? 10 : 1,
                                    .chunk_bytes = chunks[bytes[0] / 5 % 4]});
    if (memory_live() != live)
        abort();
    return 0;
}
