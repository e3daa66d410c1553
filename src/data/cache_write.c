/* SPDX-License-Identifier: MIT */
/* Writes a cache of other files' examples: reads chunk after chunk, and adds each block
 * as it comes. The first failure ends it. Then the file has only a part of the examples,
 * and no index, so that nobody takes it for a whole cache. */
#include "data/reader.h"

descant_status cache_write(FILE *file, const char *name, const struct data_options *from,
                           uint64_t *n)
{
    struct cache_writer *w = NULL;
    struct block block = {0};
    struct data *data;
    enum data_got got = DATA_BLOCK;
    descant_status status = data_open(&data, from);

    *n = 0;
    if (status != DESCANT_OK)
        return status;
    status = cache_create(&w, file, name, data_shape(data), from->log);
    for (uint64_t k = 0; status == DESCANT_OK && got == DATA_BLOCK; k++) {
        got = data_read(data, k, &block);
        if (got == DATA_BLOCK) {
            status = cache_add(w, &block.examples);
            *n += block.examples.n;
        }
    }
    block_fini(&block);
    status = got == DATA_FAILED ? data_status(data) : status;
    data_close(data);
    if (status == DESCANT_OK)
        return cache_close(w);
    cache_drop(w);
    return status;
}
