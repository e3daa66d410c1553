/* SPDX-License-Identifier: MIT */
/* Lists of memory blocks of trainers in one process, or of a machine's only rank. */
#ifndef MACHINE_BLOCKS_H
#define MACHINE_BLOCKS_H

#include "base/base.h"

struct memory_block {
    struct memory_block *next;
    void *memory;
    size_t at, bytes;       /* at: of a segment, in floats of the replica */
    char name[];            /* of a block of share */
};

/* For alloc and share of a fabric (fabric.h); the memory is the list's. */
float *blocks_alloc(struct memory_block **list, size_t at, size_t n,
                    const struct log *log);
descant_status blocks_share(struct memory_block **list, const char *name, size_t bytes,
                            void **memory, const struct log *log);
void blocks_give(struct memory_block **list);

#endif
