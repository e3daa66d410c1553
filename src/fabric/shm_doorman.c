/* SPDX-License-Identifier: MIT */
/* The doorman is a thread asleep in poll; it answers joiners, watches pidfds, and buries. What
 * it is told is checked: callers of another user are dropped at once, those that are silent
 * after a second, those that say something else at once. It runs with all signals blocked.
 * Other threads touch its fields only before it starts and after it has stopped.
 *
 * A joiner calls twice: hello, upon which it gets the arena and our pidfd for its own; and
 * the slot that it is about to take, which we watch from then on. */
#include "fabric/shm_doorman.h"
#include "fabric/shm_message.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define CALLER_NS 1000000000u   /* that a caller may be silent */

static void drop_caller(struct meet_caller *caller)
{
    fd_close(&caller->fd);
    fd_close(&caller->pidfd);
}

static bool answer_hello(struct meet *meet, struct meet_caller *caller)
{
    struct message hello, member = message_of(WHAT_MEMBER, meet->slot, meet->generation);
    int fds[2] = {meet->arena->fd, meet->pidfd};

    return message_hear(caller->fd, &hello, &caller->pidfd, 1) && hello.what == WHAT_HELLO &&
           message_say(caller->fd, &member, fds, 2);
}

static bool answer_seat(struct meet *meet, struct meet_caller *caller)
{
    struct message seat, seated = message_of(WHAT_SEATED, meet->slot, meet->generation);

    if (!message_hear(caller->fd, &seat, NULL, 0) || seat.what != WHAT_SEAT ||
        seat.version != SHM_VERSION || seat.slot >= SHM_SLOTS || seat.slot == meet->slot)
        return false;
    int pidfd = fcntl(caller->pidfd, F_DUPFD_CLOEXEC, 0);
    if (pidfd < 0)
        return false;
    fd_close(&meet->peers[seat.slot]);
    meet->peers[seat.slot] = pidfd;
    meet->peer_generations[seat.slot] = seat.generation;
    return message_say(caller->fd, &seated, NULL, 0);
}

static void serve_caller(struct meet *meet, struct meet_caller *caller)
{
    bool good = caller->pidfd < 0 ? answer_hello(meet, caller) : answer_seat(meet, caller);

    caller->until_ns = clock_now_ns() + CALLER_NS;
    if (!good || ++caller->messages > 2 * SHM_SLOTS)
        drop_caller(caller);
}

static void accept_caller(struct meet *meet, struct meet_caller *caller)
{
    struct ucred who;
    socklen_t n = sizeof who;
    int fd = accept4(meet->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

    if (fd < 0) {
        if (errno == EMFILE || errno == ENFILE || errno == ENOMEM)
            nap();
        return;
    }
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &n) != 0 || who.uid != getuid()) {
        close(fd);
        return;
    }
    *caller = (struct meet_caller){fd, -1, 0, clock_now_ns() + CALLER_NS};
}

enum { POLL_STOP, POLL_LISTENER, POLL_PEERS, POLL_CALLERS = POLL_PEERS + SHM_SLOTS,
       N_POLL = POLL_CALLERS + MEET_CALLERS };

static struct meet_caller *free_caller(struct meet *meet)
{
    for (int k = 0; k < MEET_CALLERS; k++)
        if (meet->callers[k].fd < 0)
            return &meet->callers[k];
    return NULL;
}

/* Drops the callers whose time is up; returns for how long to sleep. */
static int prepare_poll(struct meet *meet, struct pollfd *p)
{
    int timeout = -1;

    p[POLL_STOP] = (struct pollfd){.fd = meet->stop, .events = POLLIN};
    for (int s = 0; s < SHM_SLOTS; s++)
        p[POLL_PEERS + s] = (struct pollfd){.fd = meet->peers[s], .events = POLLIN};
    for (int k = 0; k < MEET_CALLERS; k++) {
        struct meet_caller *caller = &meet->callers[k];
        int left = caller->fd < 0 ? -1 : ms_until(caller->until_ns);
        if (left == 0)
            drop_caller(caller);
        else if (left > 0 && (timeout < 0 || left < timeout))
            timeout = left;
        p[POLL_CALLERS + k] = (struct pollfd){.fd = caller->fd, .events = POLLIN};
    }
    p[POLL_LISTENER] = (struct pollfd){.fd = free_caller(meet) ? meet->listener : -1,
                                       .events = POLLIN};
    return timeout;
}

static void bury_dead(struct meet *meet, const struct pollfd *p)
{
    for (unsigned s = 0; s < SHM_SLOTS; s++)
        if (p[POLL_PEERS + s].fd >= 0 && p[POLL_PEERS + s].revents) {
            slot_bury(meet->arena->board, s, meet->peer_generations[s], meet->slot,
                      TOUCH_DOORMAN);
            fd_close(&meet->peers[s]);
        }
}

static void *doorman(void *argument)
{
    struct meet *meet = argument;
    struct pollfd p[N_POLL];

    for (;;) {
        int timeout = prepare_poll(meet, p);
        atomic_store_explicit(meet->cpu_ns, clock_thread_cpu_ns(), memory_order_relaxed);
        if (poll(p, N_POLL, timeout) < 0)
            continue;
        if (p[POLL_STOP].revents)
            return NULL;
        bury_dead(meet, p);
        for (int k = 0; k < MEET_CALLERS; k++)
            if (p[POLL_CALLERS + k].fd >= 0 && p[POLL_CALLERS + k].revents)
                serve_caller(meet, &meet->callers[k]);
        if (p[POLL_LISTENER].fd >= 0 && p[POLL_LISTENER].revents)
            accept_caller(meet, free_caller(meet));
    }
}

descant_status doorman_start(struct meet *meet)
{
    sigset_t all, before;

    meet->stop = memory_refuse() ? -1 : eventfd(0, EFD_CLOEXEC);
    if (meet->stop < 0)
        return log_fail(meet->log, DESCANT_SYSTEM, "no eventfd");
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int why = memory_refuse() ? EAGAIN
                              : pthread_create(&meet->doorman, NULL, doorman, meet);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (why)
        return log_fail(meet->log, DESCANT_SYSTEM, "no thread for the doorman: %s",
                        strerror(why));
    meet->watching = true;
    return DESCANT_OK;
}

void doorman_stop(struct meet *meet)
{
    uint64_t one = 1;

    if (meet->watching) {
        while (write(meet->stop, &one, sizeof one) < 0 && errno == EINTR)
            ;
        pthread_join(meet->doorman, NULL);
        meet->watching = false;
    }
    for (int k = 0; k < MEET_CALLERS; k++)
        drop_caller(&meet->callers[k]);
    fd_close(&meet->stop);
}
