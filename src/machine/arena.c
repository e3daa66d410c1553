/* SPDX-License-Identifier: MIT */
/* The arena: a memfd whose size is that of all regions together and whose pages exist
 * only where a process takes them. The memfd is sealed against shrinking, so that no peer
 * can make another one's access a SIGBUS; a page given back reads as zeros.
 *
 * Left out on purpose: huge pages. The kernel's setting for shared memory decides. */
#include "machine/arena.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* A mapping of this process. The list is only for the end: a place that is mapped twice
 * is in it twice. */
struct arena_map {
    struct arena_map *next;
    void *p;
    size_t bytes;
};

#define PUNCH_BYTES ((uint64_t)2 << 20)     /* some 300 us */

void arena_init(struct arena *arena, const struct log *log)
{
    memset(arena, 0, sizeof *arena);
    arena->fd = -1;
    arena->log = log;
}

static size_t page_up(size_t bytes)
{
    size_t page = machine_page();
    return (bytes + page - 1) / page * page;
}

/* The pages are taken before they are written: a write to a page that the machine cannot
 * give would end the process by SIGBUS. A failure gives the whole range back. */
descant_status arena_take(struct arena *arena, uint64_t at, size_t bytes)
{
    uint64_t available = machine_memory_free();

    if (memory_refuse() || bytes > available)
        return log_fail(arena->log, DESCANT_MEMORY,
                        "%zu bytes of shared memory are needed, %llu are free", bytes,
                        (unsigned long long)available);
    while (fallocate(arena->fd, 0, (off_t)at, (off_t)bytes) != 0) {
        if (errno == EINTR)
            continue;
        int why = errno;
        fallocate(arena->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)at,
                  (off_t)bytes);
        return log_fail(arena->log, DESCANT_MEMORY,
                        "%zu bytes of shared memory are needed, %llu are free: %s", bytes,
                        (unsigned long long)available, strerror(why));
    }
    return DESCANT_OK;
}

descant_status arena_map(struct arena *arena, uint64_t at, size_t bytes,
                         enum arena_use use, void **out)
{
    if (bytes > REGION_BYTES)
        return log_fail(arena->log, DESCANT_MEMORY,
                        "%zu bytes are more than a region holds", bytes);
    bytes = page_up(bytes ? bytes : 1);
    struct arena_map *map = memory_take(sizeof *map);
    if (!map)
        return log_fail(arena->log, DESCANT_MEMORY, "no memory for a mapping");
    descant_status status = use == ARENA_TAKE ? arena_take(arena, at, bytes) : DESCANT_OK;
    if (status) {
        memory_give(map);
        return status;
    }
    int access = use == ARENA_READ ? PROT_READ : PROT_READ | PROT_WRITE;
    void *p = memory_refuse()
                  ? MAP_FAILED
                  : mmap(NULL, bytes, access, MAP_SHARED, arena->fd, (off_t)at);
    if (p == MAP_FAILED) {
        memory_give(map);
        return log_fail(arena->log, DESCANT_MEMORY, "%zu bytes cannot be mapped", bytes);
    }
    *map = (struct arena_map){atomic_load(&arena->maps), p, bytes};
    while (!atomic_compare_exchange_weak(&arena->maps, &map->next, map))
        ;
    *out = p;
    return DESCANT_OK;
}

void arena_punch(struct arena *arena, uint64_t at, uint64_t bytes)
{
    while (fallocate(arena->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)at,
                     (off_t)bytes) != 0 && errno == EINTR)
        ;
}

/* Untouched pages do not count as data, and are given back at the end. */
bool arena_punch_piece(struct arena *arena, uint64_t at, uint64_t bytes)
{
    off_t data = lseek(arena->fd, (off_t)at, SEEK_DATA);

    if (data < 0 || (uint64_t)data >= at + bytes) {
        arena_punch(arena, at, bytes);
        return true;
    }
    arena_punch(arena, (uint64_t)data / PUNCH_BYTES * PUNCH_BYTES, PUNCH_BYTES);
    return false;
}

/* Memory that has no name in any file system: it goes when its last process does. A
 * process that has the descriptor can seal nothing more, and resize nothing. */
descant_status arena_found(struct arena *arena, unsigned n_regions)
{
    arena->fd = memory_refuse() ? -1 : memfd_create("descant",
                                                    MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (arena->fd < 0 || file_resize(arena->fd, region_at(n_regions), false) != 0 ||
        fcntl(arena->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
        return log_fail(
            arena->log, DESCANT_SYSTEM, "no shared memory: %s%s", strerror(errno),
            errno == EFBIG ? "; the limit of files' sizes holds for it, too: ulimit -f "
                             "unlimited"
                           : "");
    return DESCANT_OK;
}

/* Size and seal are tested, since every access relies on them; what is in the memory is
 * for the callers to test. */
descant_status arena_enter(struct arena *arena, int fd, unsigned n_regions)
{
    struct stat stat;

    arena->fd = fd;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(fd, &stat) != 0 ||
        (uint64_t)stat.st_size != region_at(n_regions))
        return log_fail(arena->log, DESCANT_MISMATCH,
                        "the memory of the job is not of this version, or not whole");
    return DESCANT_OK;
}

/* Kept memory stays mapped (base/kept.c). */
void arena_fini(struct arena *arena)
{
    struct arena_map *next;

    for (struct arena_map *map = atomic_load(&arena->maps); map; map = next) {
        next = map->next;
        if (!kept_has(map->p))
            munmap(map->p, map->bytes);
        memory_give(map);
    }
    if (arena->fd >= 0)
        close(arena->fd);
    arena_init(arena, arena->log);
}
