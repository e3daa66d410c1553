/* SPDX-License-Identifier: MIT */
/* Touching a page of a mapped file behind the file's end raises SIGBUS. Only a memfd can
 * be sealed against being cut short; but the file of a segment needs a name by which
 * modules find it, and a memfd cannot be linked, and ends with its keeper. So the signal
 * is caught: the handler maps zeros over the whole segment, notes that, and the
 * instruction runs again. Those zeros are this process's alone; others do not see writes
 * to them.
 *
 * The handler reads the list without a lock: `at` is set last and cleared first, and
 * watched memory is not unmapped before. Signals for other addresses go to the previous
 * handler. */
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

/* held while an entry is added or dropped */
static pthread_mutex_t changing = PTHREAD_MUTEX_INITIALIZER;
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
        sigaction(SIGBUS, &before, NULL);       /* the signal comes again, and ends the
                                                   process */
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
