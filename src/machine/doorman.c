/* SPDX-License-Identifier: MIT */
/* The doorman is a thread asleep in poll; it answers joiners, watches pidfds and lines,
 * and buries. It checks all that it receives: callers of another user are dropped at
 * once, silent callers after a second, callers with another message at once. It runs with
 * all signals blocked. Other threads touch its fields only before it starts and after it
 * has stopped.
 *
 * A joiner sends two messages: hello, upon which it gets the arena and this process's
 * pidfd for its own; and the slot that it is about to take, which the doorman watches
 * from then on. The connection then becomes the line between the two processes, which
 * both keep as long as they live. A pidfd tells of a death at once, even where the dead
 * has children that live; a line breaks also when its trainer has become another program
 * (execve), which a pidfd does not show.
 *
 * A trainer that was stopped finds in its queues the messages that joiners sent
 * meanwhile: its doorman therefore reads a caller's messages before it drops the caller,
 * and all of a line's before it takes the line as cut. */
#include "machine/meet.h"
#include "machine/message.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define CALLER_NS 1000000000u   /* that a caller may be silent */
/* once the caller has said hello: it may wait for another trainer */
#define SEAT_NS 10000000000u

static void drop_caller(struct meet_caller *caller)
{
    fd_close(&caller->fd);
    fd_close(&caller->pidfd);
}

/* If the caller has gone, its next message still counts. */
static bool answer_hello(struct meet *meet, struct meet_caller *caller)
{
    struct message hello, member = message_of(WHAT_MEMBER, meet->slot, meet->generation);
    int fds[2] = {meet->arena.fd, meet->pidfd};

    if (message_hear(caller->fd, &hello, &caller->pidfd, 1) != HEARD ||
        hello.what != WHAT_HELLO)
        return false;
    message_say(caller->fd, &member, fds, 2);
    return true;
}

/* Whether the slot is free, or the caller has it already, where the message is late. */
static bool is_seat(const struct meet *meet, const struct message *seat)
{
    if (seat->what != WHAT_SEAT || seat->version != MACHINE_VERSION ||
        seat->slot >= MACHINE_SLOTS || seat->slot == meet->slot)
        return false;
    uint64_t life = slot_life(meet->roster, seat->slot);
    return !life_alive(life) || life_generation(life) == seat->generation;
}

/* The caller with this message will be that slot's next trainer. */
static void seat_peer(struct meet *meet, const struct message *seat, int *line,
                      int *pidfd)
{
    struct message seated = message_of(WHAT_SEATED, meet->slot, meet->generation);
    unsigned s = seat->slot;
    int new_line = *line, new_pidfd = *pidfd;

    *line = *pidfd = -1;
    fd_close(&meet->lines[s]);
    fd_close(&meet->peers[s]);
    meet->lines[s] = new_line;
    meet->peers[s] = new_pidfd;
    meet->peer_generations[s] = seat->generation;
    message_say(new_line, &seated, NULL, 0);
}

/* True: the connection is the line to that slot, and the caller's place is free again. */
static bool answer_seat(struct meet *meet, struct meet_caller *caller)
{
    struct message seat;

    if (message_hear(caller->fd, &seat, NULL, 0) != HEARD || !is_seat(meet, &seat))
        return false;
    seat_peer(meet, &seat, &caller->fd, &caller->pidfd);
    return true;
}

/* A pidfd tells how far the caller is: without one, its hello is awaited. */
static void serve_caller(struct meet *meet, struct meet_caller *caller)
{
    bool good =
        caller->pidfd < 0 ? answer_hello(meet, caller) : answer_seat(meet, caller);

    caller->until_ns = clock_now_ns() + SEAT_NS;
    if (!good)
        drop_caller(caller);
}

/* The generation is the one that was seated: a slot that has been taken anew since
 * stays. */
static void bury(struct meet *meet, unsigned slot)
{
    slot_bury(meet->roster, slot, meet->peer_generations[slot], meet->slot,
              TOUCH_DOORMAN);
    fd_close(&meet->peers[slot]);
    fd_close(&meet->lines[slot]);
}

/* Hears a joiner that tries another slot, or a late answer to this trainer's joining; any
 * other message ends the line. */
static void serve_line(struct meet *meet, unsigned slot)
{
    struct message message;
    int fds[2];

    switch (message_take(meet->lines[slot], &message, fds)) {
    case HEARD:
        fd_close(&fds[0]);
        fd_close(&fds[1]);
        if (is_seat(meet, &message) && message.slot != slot)
            seat_peer(meet, &message, &meet->lines[slot], &meet->peers[slot]);
        break;
    case HEARD_END:
        bury(meet, slot);
        break;
    case HEARD_NOISE:
    case HEARD_CUT:
    case HEARD_NOTHING:
        break;
    }
}

/* Out of descriptors or memory, it sleeps a moment: the listener would else wake the poll
 * again at once. */
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
    *caller = (struct meet_caller){fd, -1, clock_now_ns() + CALLER_NS};
}

/* The descriptors for poll, in this order; of slots and callers only those there are. */
struct poll_set {
    struct pollfd p[2 + 2 * MACHINE_SLOTS + MEET_CALLERS];
    nfds_t n;
    int timeout;
};

static struct meet_caller *free_caller(struct meet *meet)
{
    for (int k = 0; k < MEET_CALLERS; k++)
        if (meet->callers[k].fd < 0)
            return &meet->callers[k];
    return NULL;
}

static void watch_fd(struct poll_set *watch, int fd)
{
    if (fd >= 0)
        watch->p[watch->n++] = (struct pollfd){.fd = fd, .events = POLLIN};
}

static void prepare_poll(struct meet *meet, struct poll_set *watch)
{
    watch->n = 0;
    watch->timeout = -1;
    watch_fd(watch, meet->stop);
    for (int s = 0; s < MACHINE_SLOTS; s++) {
        watch_fd(watch, meet->peers[s]);
        watch_fd(watch, meet->lines[s]);
    }
    for (int k = 0; k < MEET_CALLERS; k++) {
        const struct meet_caller *caller = &meet->callers[k];
        int left = caller->fd < 0 ? -1 : ms_until(caller->until_ns);
        if (left >= 0 && (watch->timeout < 0 || left < watch->timeout))
            watch->timeout = left;
        watch_fd(watch, caller->fd);
    }
    if (free_caller(meet))
        watch_fd(watch, meet->listener);
}

static bool has_moved(const struct poll_set *watch, int fd)
{
    for (nfds_t k = 0; fd >= 0 && k < watch->n; k++)
        if (watch->p[k].fd == fd)
            return watch->p[k].revents != 0;
    return false;
}

/* Descriptors that this closes or opens are not looked at again before the next poll:
 * what has moved is noted for all of them first, since a number that is closed may be
 * another connection's a line later. Deaths come first, for a joiner may be about to take
 * a dead trainer's slot. */
static void serve(struct meet *meet, const struct poll_set *watch)
{
    uint64_t dead = 0, lines = 0, callers = 0, now = clock_now_ns();

    for (unsigned s = 0; s < MACHINE_SLOTS; s++) {
        dead |= has_moved(watch, meet->peers[s]) ? slot_bit(s) : 0;
        lines |= has_moved(watch, meet->lines[s]) ? slot_bit(s) : 0;
    }
    for (int k = 0; k < MEET_CALLERS; k++)
        callers |= has_moved(watch, meet->callers[k].fd) ? slot_bit((unsigned)k) : 0;
    bool knocks = has_moved(watch, meet->listener);

    for (unsigned s = 0; s < MACHINE_SLOTS; s++)
        if (dead & slot_bit(s))
            bury(meet, s);
    for (unsigned s = 0; s < MACHINE_SLOTS; s++)
        if (lines & ~dead & slot_bit(s) && meet->lines[s] >= 0)
            serve_line(meet, s);
    for (unsigned k = 0; k < MEET_CALLERS; k++) {
        struct meet_caller *caller = &meet->callers[k];
        if (callers & slot_bit(k))
            serve_caller(meet, caller);
        else if (caller->fd >= 0 && caller->until_ns <= now)
            drop_caller(caller);
    }
    if (knocks && free_caller(meet))
        accept_caller(meet, free_caller(meet));
}

static void *doorman(void *argument)
{
    struct meet *meet = argument;
    struct poll_set watch;

    for (;;) {
        prepare_poll(meet, &watch);
        if (meet->cpu_ns)
            atomic_store_explicit(meet->cpu_ns, clock_thread_cpu_ns(),
                                  memory_order_relaxed);
        if (poll(watch.p, watch.n, watch.timeout) < 0) {
            if (errno != EINTR)
                nap();
            continue;
        }
        if (has_moved(&watch, meet->stop))
            return NULL;
        serve(meet, &watch);
    }
}

descant_status doorman_start(struct meet *meet)
{
    sigset_t before;

    meet->stop = memory_refuse() ? -1 : eventfd(0, EFD_CLOEXEC);
    if (meet->stop < 0)
        return log_fail(meet->log, DESCANT_SYSTEM, "no eventfd: %s", machine_why(errno));
    signals_hold(&before);
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
