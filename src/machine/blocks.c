/* SPDX-License-Identifier: MIT */
/* Blocks for fabrics that need no memory of several processes: a job of one trainer, and
 * a rank that has its machine to itself. "Shared" means there that every caller of a name
 * gets the same memory. All is zeroed, taken only where the machine has as much free, and
 * given back in one go at the job's end; memory that a caller keeps beyond its job
 * (base/kept.c) stays. Pages are used at once, so that they are no longer free when the
 * next block is taken.
 *
 * A list belongs to one job, and the thread that opens and closes it: there is no
 * lock. */
#include "machine/blocks.h"

#include <string.h>

/* Zeroed, put at the head of the list, or NULL. */
static struct memory_block *take(struct memory_block **list, const char *name,
                                 size_t bytes)
{
    size_t length = strlen(name);
    struct memory_block *block = memory_take(sizeof *block + length + 1);
    if (!block)
        return NULL;
    block->memory = bytes <= machine_memory_free() ? memory_take(bytes) : NULL;
    if (!block->memory) {
        memory_give(block);
        return NULL;
    }
    memset(block->memory, 0, bytes);
    memcpy(block->name, name, length);
    block->bytes = bytes;
    block->next = *list;
    *list = block;
    return block;
}

/* Blocks of alloc have no name, and are not found by share: each call makes a new one. */
float *blocks_alloc(struct memory_block **list, size_t at, size_t n,
                    const struct log *log)
{
    struct memory_block *block =
        n <= SIZE_MAX / sizeof(float) ? take(list, "", n * sizeof(float)) : NULL;
    if (!block) {
        log_fail(log, DESCANT_MEMORY, "no memory for %zu floats", n);
        return NULL;
    }
    block->at = at;
    return block->memory;
}

static struct memory_block *find(struct memory_block *list, const char *name)
{
    while (list && strcmp(list->name, name))
        list = list->next;
    return list;
}

/* The first call of a name takes the memory; later ones must give the same number of
 * bytes. There are few blocks, so a list is searched. */
descant_status blocks_share(struct memory_block **list, const char *name, size_t bytes,
                            void **memory, const struct log *log)
{
    struct memory_block *block = find(*list, name);
    if (block && block->bytes != bytes)
        return log_fail(log, DESCANT_MISMATCH, "block \"%s\" has %zu bytes, not %zu",
                        name, block->bytes, bytes);
    if (!block)
        block = take(list, name, bytes);
    if (!block)
        return log_fail(log, DESCANT_MEMORY,
                        "%zu bytes of memory are needed for block \"%s\", "
                        "%llu are free",
                        bytes, name, (unsigned long long)machine_memory_free());
    *memory = block->memory;
    return DESCANT_OK;
}

void blocks_give(struct memory_block **list)
{
    while (*list) {
        struct memory_block *block = *list;
        *list = block->next;
        if (!kept_has(block->memory))
            memory_give(block->memory);
        memory_give(block);
    }
}
