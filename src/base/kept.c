/* SPDX-License-Identifier: MIT */
/* Memory of segments that outlives its job, until descant_free.
 *
 * 1 Who closes a job gives none of it back that is in the list. Nobody frees it meanwhile: the
 *   caller has it only when close has returned.
 * 2 A mapping that other processes see is changed for private pages, at the same place and with the
 *   same values: the slot it was in may be another trainer's tomorrow. The pages are had before the
 *   job is left, so that nothing can fail then. */
#include "base/base.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

struct kept {
    struct kept *next;
    void *memory, *spare;   /* spare: private pages, until it is settled */
    size_t bytes;           /* of both, whole pages */
    bool mapped;            /* the pages were the spare's; else memory_give's */
    bool held;              /* something else still looks into it: it is never given back */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;    /* of list, and of held */
static struct kept *list;

struct kept *kept_add(void *memory, size_t bytes)
{
    size_t page = machine_page();
    struct kept *kept = memory_take(sizeof *kept);

    if (!kept)
        return NULL;
    *kept = (struct kept){.memory = memory, .bytes = bytes ? (bytes + page - 1) / page * page : page};
    kept->spare = memory_refuse() ? MAP_FAILED : mmap(NULL, kept->bytes, PROT_READ | PROT_WRITE,
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

void kept_settle(struct kept *kept, bool shared)
{
    kept->mapped = shared;
    if (shared) {
        memcpy(kept->spare, kept->memory, kept->bytes);
        mremap(kept->spare, kept->bytes, kept->bytes, MREMAP_MAYMOVE | MREMAP_FIXED, kept->memory);
    } else {
        munmap(kept->spare, kept->bytes);
    }
    kept->spare = NULL;
}

/* The caller has the lock. */
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
    if (kept->spare)                    /* never settled: the job's still */
        munmap(kept->spare, kept->bytes);
    else if (kept->mapped)
        munmap(memory, kept->bytes);
    else
        memory_give(memory);
    memory_give(kept);
    return true;
}
