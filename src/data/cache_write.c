/* SPDX-License-Identifier: MIT */
/* Writes a cache of other files' examples. */
#include "data/reader.h"

static descant_status copy_blocks(struct cache_writer *w, struct data *data, uint64_t *n)
{
    struct block block = {0};
    enum data_got got = DATA_BLOCK;
    descant_status status = DESCANT_OK;

    for (uint64_t k = 0; status == DESCANT_OK && got == DATA_BLOCK; k++) {
        got = data_read(data, k, &block);
        if (got == DATA_BLOCK) {
            status = cache_add(w, &block.examples);
            *n += block.examples.n;
        }
    }
    block_fini(&block);
    return got == DATA_FAILED ? data_status(data) : status;
}

descant_status cache_write(const char *path, const struct data_options *from, uint64_t *n)
{
    struct cache_writer *w = NULL;
    struct data *data;
    descant_status status = data_open(&data, from);

    *n = 0;
    if (status != DESCANT_OK)
        return status;
    status = cache_create(&w, path, data_shape(data), from->log);
    if (status == DESCANT_OK)
        status = copy_blocks(w, data, n);
    descant_status closed = cache_close(w, status == DESCANT_OK);
    data_close(data);
    return status == DESCANT_OK ? closed : status;
}
