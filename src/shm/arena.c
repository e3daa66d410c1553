/* SPDX-License-Identifier: MIT */
/* The arena: a memfd whose size is that of all regions together and whose pages come only
 * where somebody takes them. It is sealed against shrinking, so that no peer can make another
 * one's access a SIGBUS; a page given back reads as zeros.
 *
 * The bits of `members` are changed by several trainers for one another, and slots are used
 * again. So that no change meant for one generation can hit the next:
 *   1. who is about to change the bit of a slot says so in `touching`, then reads the slot's
 *      life, then changes the bit, then takes the word back;
 *   2. who takes over a dead slot changes its life first, and uses it only once no living
 *      trainer touches it, nor closes a round and gives back its pages.
 * Both sides are sequentially consistent: either the first sees the new life, or the second
 * sees the touch. One that dies while touching is not alive, and not waited for.
 *
 * Left out on purpose: huge pages. The kernel's setting for shared memory decides. */
#include "shm/arena.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct arena_map {
    struct arena_map *next;
    void *p;
    size_t bytes;
};

void (*shm_hook)(enum step step, unsigned slot);

#define REGION_BYTES ((uint64_t)1 << 40)
#define PUNCH_BYTES ((uint64_t)2 << 20)     /* some 300 us */
#define ARENA_BYTES (REGION_BYTES * (REGION_SLOTS + SHM_SLOTS * SLOT_REGIONS))

uint64_t region_at(enum region region)
{
    return REGION_BYTES * (uint64_t)region;
}

uint64_t slot_region_at(unsigned slot, enum slot_region region)
{
    return REGION_BYTES * (REGION_SLOTS + (uint64_t)slot * SLOT_REGIONS + (uint64_t)region);
}

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

descant_status arena_map(struct arena *arena, uint64_t at, size_t bytes, bool take, void **out)
{
    if (bytes > REGION_BYTES)
        return log_fail(arena->log, DESCANT_MEMORY, "%zu bytes are more than a region holds",
                        bytes);
    bytes = page_up(bytes ? bytes : 1);
    struct arena_map *map = memory_take(sizeof *map);
    if (!map)
        return log_fail(arena->log, DESCANT_MEMORY, "no memory for a mapping");
    descant_status status = take ? arena_take(arena, at, bytes) : DESCANT_OK;
    if (status) {
        memory_give(map);
        return status;
    }
    void *p = memory_refuse() ? MAP_FAILED : mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                                                  MAP_SHARED, arena->fd, (off_t)at);
    if (p == MAP_FAILED) {
        memory_give(map);
        return log_fail(arena->log, DESCANT_MEMORY, "%zu bytes cannot be mapped", bytes);
    }
    *map = (struct arena_map){arena->maps, p, bytes};
    arena->maps = map;
    *out = p;
    return DESCANT_OK;
}

const float *arena_peer(struct arena *arena, unsigned slot, enum slot_region region,
                        size_t n_floats)
{
    if (arena->peers[slot][region])
        return arena->peers[slot][region];
    size_t bytes = page_up(n_floats * sizeof(float));
    void *p = memory_refuse() ? MAP_FAILED : mmap(NULL, bytes, PROT_READ, MAP_SHARED,
                                    arena->fd, (off_t)slot_region_at(slot, region));
    if (p == MAP_FAILED) {
        log_fail(arena->log, DESCANT_MEMORY, "%zu bytes of slot %u cannot be mapped", bytes,
                 slot);
        return NULL;
    }
    arena->peer_bytes[slot][region] = bytes;
    arena->peers[slot][region] = p;
    return p;
}

static void punch(struct arena *arena, uint64_t from, uint64_t bytes)
{
    while (fallocate(arena->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)from,
                     (off_t)bytes) != 0 && errno == EINTR)
        ;
}

void arena_punch(struct arena *arena, unsigned slot)
{
    punch(arena, slot_region_at(slot, SLOT_REPLICA), SLOT_REGIONS * REGION_BYTES);
}

/* Pages that nobody has touched do not count as data: they go at the end. */
bool arena_punch_piece(struct arena *arena, unsigned slot)
{
    uint64_t from = slot_region_at(slot, SLOT_REPLICA);
    off_t data = lseek(arena->fd, (off_t)from, SEEK_DATA);

    if (data < 0 || (uint64_t)data >= from + SLOT_REGIONS * REGION_BYTES) {
        arena_punch(arena, slot);
        return true;
    }
    punch(arena, (uint64_t)data / PUNCH_BYTES * PUNCH_BYTES, PUNCH_BYTES);
    return false;
}

static descant_status map_board(struct arena *arena, bool take)
{
    void *p;
    descant_status status = arena_map(arena, 0, sizeof(struct board), take, &p);
    if (!status)
        arena->board = p;
    return status;
}

descant_status arena_found(struct arena *arena, const struct emulated *link)
{
    arena->fd = memory_refuse() ? -1 : memfd_create("descant",
                                                    MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (arena->fd < 0 || file_resize(arena->fd, ARENA_BYTES, false) != 0 ||
        fcntl(arena->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
        return log_fail(arena->log, DESCANT_SYSTEM, "no shared memory: %s%s", strerror(errno),
                        errno == EFBIG ? "; the limit of files' sizes holds for it, too: ulimit -f "
                                         "unlimited" : "");
    descant_status status = map_board(arena, true);
    if (status)
        return status;
    struct board *board = arena->board;
    board->magic = MACHINE_MAGIC;
    board->version = MACHINE_VERSION;
    board->link = *link;
    atomic_store_explicit(&board->word, (uint64_t)1 << 32 | 1, memory_order_release);
    return DESCANT_OK;
}

descant_status arena_enter(struct arena *arena, int fd)
{
    struct stat stat;

    arena->fd = fd;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(fd, &stat) != 0 ||
        (uint64_t)stat.st_size != ARENA_BYTES)
        return log_fail(arena->log, DESCANT_MISMATCH, "the job's memory is not ours");
    descant_status status = map_board(arena, false);
    if (status)
        return status;
    if (arena->board->magic != MACHINE_MAGIC || arena->board->version != MACHINE_VERSION)
        return log_fail(arena->log, DESCANT_MISMATCH,
                        "the job's board has version %u, ours is %u", arena->board->version,
                        MACHINE_VERSION);
    return DESCANT_OK;
}

static void unmap_peer(const float *p, size_t bytes)
{
    union { const float *in; void *out; } cast = {.in = p};
    munmap(cast.out, bytes);
}

void arena_fini(struct arena *arena)
{
    for (int s = 0; s < SHM_SLOTS; s++)
        for (int k = 0; k < SLOT_REGIONS; k++)
            if (arena->peers[s][k])
                unmap_peer(arena->peers[s][k], arena->peer_bytes[s][k]);
    while (arena->maps) {
        struct arena_map *map = arena->maps;
        arena->maps = map->next;
        if (!kept_has(map->p))
            munmap(map->p, map->bytes);
        memory_give(map);
    }
    if (arena->fd >= 0)
        close(arena->fd);
    arena_init(arena, arena->log);
}

uint64_t slot_life(const struct board *board, unsigned slot)
{
    return atomic_load_explicit(&board->slots[slot].life, memory_order_seq_cst);
}

bool slot_become(struct board *board, unsigned slot, uint32_t generation, enum life state)
{
    uint64_t life = slot_life(board, slot);

    do {
        if (life_generation(life) != generation || !life_alive(life))
            return false;
    } while (!atomic_compare_exchange_weak_explicit(&board->slots[slot].life, &life,
                                                    life_make(generation, state),
                                                    memory_order_seq_cst,
                                                    memory_order_seq_cst));
    atomic_fetch_add_explicit(&board->lives, 1, memory_order_release);
    return true;
}

void slot_bury(struct board *board, unsigned slot, uint32_t generation, unsigned self,
               enum touch who)
{
    _Atomic uint32_t *touching = &board->slots[self].touching[who];
    bool changed = slot_become(board, slot, generation, LIFE_DEAD);

    atomic_store_explicit(touching, slot + 1, memory_order_seq_cst);
    if (slot_life(board, slot) == life_make(generation, LIFE_DEAD)) {
        uint64_t was = atomic_fetch_and_explicit(&board->members, ~slot_bit(slot),
                                                 memory_order_seq_cst);
        if (was & slot_bit(slot)) {
            atomic_fetch_add_explicit(&board->epoch, 1, memory_order_release);
            changed = true;
        }
    }
    atomic_store_explicit(touching, 0, memory_order_seq_cst);
    if (changed)
        board_ring(board, ~(uint64_t)0);
}

bool slot_untouched(const struct board *board, unsigned slot)
{
    for (unsigned s = 0; s < SHM_SLOTS; s++) {
        const struct slot *other = &board->slots[s];
        if (!life_alive(slot_life(board, s)))
            continue;
        for (int k = 0; k < N_TOUCH; k++) {
            uint32_t touch = atomic_load_explicit(&other->touching[k], memory_order_seq_cst);
            if (touch == slot + 1 || touch == TOUCH_ALL)
                return false;
        }
    }
    return true;
}

void board_ring(struct board *board, uint64_t slots)
{
    for (unsigned s = 0; s < SHM_SLOTS; s++) {
        if (!(slots & slot_bit(s)) || !life_alive(slot_life(board, s)))
            continue;
        atomic_fetch_add_explicit(&board->slots[s].bell, 1, memory_order_release);
        futex_wake_all(&board->slots[s].bell);
    }
}

uint64_t board_alive(const struct board *board)
{
    uint64_t alive = 0;

    for (unsigned s = 0; s < SHM_SLOTS; s++)
        if (life_alive(slot_life(board, s)))
            alive |= slot_bit(s);
    return alive;
}
