/* SPDX-License-Identifier: MIT */
/* A page of a mapped file that lies behind its end is SIGBUS when it is touched. The file
 * of a segment must have a name by which modules find it, so that it cannot be a memfd,
 * which alone the kernel seals against that (a memfd cannot be linked, and ends with its
 * keeper). So the signal is caught: the handler maps zeros over the whole segment, notes
 * it, and the instruction is run again. What is mapped so is this process's alone;
 * nothing it writes there is seen by others.
 *
 * The handler reads the list without a lock: `at` is set last and cleared first, and what
 * is watched is not unmapped before. Signals for other addresses go to the handler that
 * was there. */
#include "bsp/guard.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>

enum { GUARDS = 256 };

static struct guard {
    _Atomic uintptr_t at;               /* 0: free */
    _Atomic size_t bytes;
    _Atomic bool tripped;
} guards[GUARDS];

static pthread_mutex_t changing = PTHREAD_MUTEX_INITIALIZER;     /* who adds and drops */
static struct sigaction before;
static bool installed;

static bool cover(struct guard *g, uintptr_t address)
{
    uintptr_t at = atomic_load_explicit(&g->at, memory_order_acquire);
    size_t bytes = atomic_load_explicit(&g->bytes, memory_order_relaxed);
    if (at == 0 || address < at || address - at >= bytes)
        return false;
    void *zeros = mmap((void *)at, bytes, PROT_READ | PROT_WRITE,
                       MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (zeros == MAP_FAILED)
        return false;
    atomic_store_explicit(&g->tripped, true, memory_order_release);
    return true;
}

static void on_bus(int signal, siginfo_t *info, void *context)
{
    int error = errno;
    bool covered = false, sent = info->si_code <= 0; /* by kill: there is no address */
    for (int i = 0; i < GUARDS && !covered && !sent; i++)
        covered = cover(&guards[i], (uintptr_t)info->si_addr);
    errno = error;
    if (covered)
        return;
    if (before.sa_flags & SA_SIGINFO)
        before.sa_sigaction(signal, info, context);
    else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN)
        before.sa_handler(signal);
    else if (before.sa_handler == SIG_DFL || !sent) {
        sigaction(SIGBUS, &before, NULL);       /* it comes again, and ends the process */
        if (sent)
            raise(signal);
    }
}

static struct guard *find(uintptr_t at)
{
    for (int i = 0; i < GUARDS; i++)
        if (atomic_load_explicit(&guards[i].at, memory_order_relaxed) == at)
            return &guards[i];
    return NULL;
}

bool guard_watch(void *at, size_t bytes)
{
    struct sigaction action = {.sa_flags = SA_SIGINFO | SA_ONSTACK};
    action.sa_sigaction = on_bus;
    sigemptyset(&action.sa_mask);
    pthread_mutex_lock(&changing);
    installed = installed || sigaction(SIGBUS, &action, &before) == 0;
    struct guard *g = installed ? find(0) : NULL;
    if (g) {
        atomic_store_explicit(&g->bytes, bytes, memory_order_relaxed);
        atomic_store_explicit(&g->tripped, false, memory_order_relaxed);
        atomic_store_explicit(&g->at, (uintptr_t)at, memory_order_release);
    }
    pthread_mutex_unlock(&changing);
    return g != NULL;
}

bool guard_tripped(const void *at)
{
    struct guard *g = at ? find((uintptr_t)at) : NULL;
    return g && atomic_load_explicit(&g->tripped, memory_order_acquire);
}

void guard_drop(const void *at)
{
    pthread_mutex_lock(&changing);
    struct guard *g = at ? find((uintptr_t)at) : NULL;
    if (g)
        atomic_store_explicit(&g->at, 0, memory_order_release);
    pthread_mutex_unlock(&changing);
}
