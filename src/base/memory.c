/* SPDX-License-Identifier: MIT */
/* Memory that tests can make run out. Every block is zeroed and starts on a cache line,
 * so that two blocks never share one. The pages of a large block are fresh ones, which
 * the kernel gives, zeroed, when they are first used: a vector of a round that is not
 * made yet costs a rank that joins neither memory nor time. The count of live blocks and
 * the countdown to the failure are atomics of their own: relaxed, for they order nothing
 * and only tests read them exactly. */
#include "base/base.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { ALIGNMENT = 64, HUGE_PAGE = 2 << 20, LEAST_ROOM = 16 };

static atomic_long live;
static atomic_long countdown;    /* 1: the next taking fails; 0 or below: none does */

bool memory_refuse(void)
{
    if (atomic_load_explicit(&countdown, memory_order_relaxed) <= 0)
        return false;
    return atomic_fetch_sub_explicit(&countdown, 1, memory_order_relaxed) == 1;
}

void memory_fail_at(long k)
{
    atomic_store_explicit(&countdown, k, memory_order_relaxed);
}

long memory_live(void)
{
    return atomic_load_explicit(&live, memory_order_relaxed);
}

void *memory_take(size_t bytes)
{
    if (memory_refuse() || bytes > SIZE_MAX / 2)
        return NULL;
    size_t align = bytes >= 2 * HUGE_PAGE ? HUGE_PAGE : ALIGNMENT;
    size_t rounded = bytes ? (bytes + align - 1) / align * align : align;
    void *taken = aligned_alloc(align, rounded);
    if (!taken)
        return NULL;
    if (align == HUGE_PAGE)
        madvise(taken, rounded, MADV_HUGEPAGE);     /* a wish: tables are read all over */
    if (align != HUGE_PAGE || madvise(taken, rounded, MADV_DONTNEED) != 0)
        memset(taken, 0, rounded);                  /* locked pages are not given back */
    atomic_fetch_add_explicit(&live, 1, memory_order_relaxed);
    return taken;
}

void memory_ready(const void *p, size_t bytes)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t from = (uintptr_t)p / page * page;
    uintptr_t to = ((uintptr_t)p + bytes + page - 1) / page * page;

    madvise((void *)from, to - from, MADV_POPULATE_WRITE);
}

void memory_drop(void *p, size_t bytes)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t from = ((uintptr_t)p + page - 1) / page * page;
    uintptr_t to = ((uintptr_t)p + bytes) / page * page;

    if (to > from)
        madvise((void *)from, to - from, MADV_DONTNEED);
}

void *memory_take_array(size_t n, size_t size)
{
    if (size && n > SIZE_MAX / size)
        return NULL;
    return memory_take(n * size);
}

void memory_give(void *taken)
{
    if (!taken)
        return;
    atomic_fetch_sub_explicit(&live, 1, memory_order_relaxed);
    free(taken);
}

bool memory_grow(void *array, size_t *room, size_t n, size_t wanted, size_t size)
{
    void *was;
    if (wanted <= *room)
        return true;
    size_t more = *room < SIZE_MAX / 2 && 2 * *room > wanted ? 2 * *room : wanted;
    more = more < LEAST_ROOM ? LEAST_ROOM : more;
    void *larger = memory_take_array(more, size);
    if (!larger)
        return false;
    memcpy(&was, array, sizeof was);
    if (n > 0)
        memcpy(larger, was, n * size);
    memory_give(was);
    memcpy(array, &larger, sizeof larger);
    *room = more;
    return true;
}
