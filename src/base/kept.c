/* SPDX-License-Identifier: MIT */
/* Memory of segments that outlives its job, until descant_free.
 *
 * 1 Closing a job gives back no memory that is in the list. The caller cannot free it
 *   meanwhile, for it has the memory only when close has returned.
 * 2 A mapping that other processes see is changed for private pages, at the same place
 *   and with the same values: the slot it was in may be another trainer's tomorrow. The
 *   pages are mapped before the job is left, which can still be refused then. */
#include "base/base.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

struct kept {
    struct kept *next;
    void *memory;
    void *spare;            /* private pages for a shared mapping, until it is settled */
    size_t bytes;           /* of each, whole pages */
    bool settled, shared;   /* shared: the memory was and is a mapping; else it is
                               memory_give's */
    bool held;              /* the memory is still read elsewhere: it is never given
                               back */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;    /* of list, and of held */
static struct kept *list;

struct kept *kept_add(void *memory, size_t bytes, bool shared)
{
    size_t page = machine_page();
    struct kept *kept = memory_take(sizeof *kept);

    if (!kept)
        return NULL;
    *kept = (struct kept){.memory = memory, .bytes = (bytes + page - 1) / page * page,
                          .shared = shared};
    if (shared)
        kept->spare = memory_refuse() ? MAP_FAILED
                                      : mmap(NULL, kept->bytes, PROT_READ | PROT_WRITE,
                                             MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (kept->spare == MAP_FAILED) {
        memory_give(kept);
        return NULL;
    }
    pthread_mutex_lock(&lock);
    kept->next = list;
    list = kept;
    pthread_mutex_unlock(&lock);
    return kept;
}

/* Near the most mappings of a process, mremap needs more of them than are left for a
 * moment. */
static bool change_pages(struct kept *kept)
{
    memcpy(kept->spare, kept->memory, kept->bytes);
    if (mremap(kept->spare, kept->bytes, kept->bytes, MREMAP_MAYMOVE | MREMAP_FIXED,
               kept->memory) != MAP_FAILED)
        return true;
    bool can = mmap(kept->memory, kept->bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED;
    if (can)
        memcpy(kept->memory, kept->spare, kept->bytes);
    munmap(kept->spare, kept->bytes);
    return can;
}

bool kept_settle(struct kept *kept)
{
    kept->settled = true;
    return !kept->shared || change_pages(kept);
}

/* The caller holds the lock. */
static struct kept **find(const void *memory)
{
    struct kept **at = &list;

    while (*at && (*at)->memory != memory)
        at = &(*at)->next;
    return at;
}

bool kept_has(const void *memory)
{
    pthread_mutex_lock(&lock);
    bool has = *find(memory) != NULL;
    pthread_mutex_unlock(&lock);
    return has;
}

void kept_hold(const void *memory)
{
    pthread_mutex_lock(&lock);
    struct kept *kept = *find(memory);
    if (kept)
        kept->held = true;
    pthread_mutex_unlock(&lock);
}

bool kept_give(void *memory)
{
    pthread_mutex_lock(&lock);
    struct kept **at = find(memory), *kept = *at;
    bool held = kept && kept->held;
    if (kept && !held)
        *at = kept->next;
    pthread_mutex_unlock(&lock);
    if (!kept || held)
        return held;
    if (kept->shared)
        munmap(kept->settled ? memory : kept->spare, kept->bytes);
    else if (kept->settled)
        memory_give(memory);
    memory_give(kept);
    return true;
}
