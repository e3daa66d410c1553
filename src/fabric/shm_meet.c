/* SPDX-License-Identifier: MIT */
/* Meeting: abstract sockets as names, which the kernel takes back by itself.
 *
 *   1. The door is a name that one process can hold. Whoever holds it changes slots, founds,
 *      compares manifests, adds blocks; the others sleep on a connection to it, which breaks
 *      when the holder lets go or dies.
 *   2. A joiner tells every member which slot and generation it will be, and has their answer,
 *      before it takes the slot: from its first moment its death is noticed by all of them.
 *   3. A member's death is its pidfd becoming readable, never a closed connection: a child
 *      that it forked may hold its sockets on for as long as it likes.
 *   4. A slot that is alive in the board but whose name nobody living holds is buried by the
 *      next joiner: its trainer died before it had told everyone.
 *
 * The doorman is a thread asleep in poll; it answers joiners, watches pidfds, and buries. What
 * it is told is checked: callers of another user are dropped at once, those that are silent
 * after a second, those that say something else at once. It runs with all signals blocked.
 * Other threads touch its fields only before it starts and after it has stopped.
 *
 * Left out on purpose: a process that forks while it holds the door keeps it shut until that
 * child ends; the joiners' waiting is bounded. */
#include "fabric/shm_meet.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#define CALL_NS 2000000000u     /* that a living member has to answer */
#define CALLER_NS 1000000000u   /* that a caller may be silent */
#define TOUCH_NS 100000000u

enum what { WHAT_HELLO = 1, WHAT_MEMBER, WHAT_SEAT, WHAT_SEATED };

struct message {
    uint32_t magic, version, what, slot, generation;
};

/* --- descriptors --- */

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static int open_pidfd(pid_t pid)
{
    return memory_refuse() ? -1 : (int)syscall(SYS_pidfd_open, pid, 0);
}

static bool pidfd_dead(int pidfd)
{
    struct pollfd p = {.fd = pidfd, .events = POLLIN};
    return poll(&p, 1, 0) > 0;
}

static int open_socket(void)
{
    if (memory_refuse()) {
        errno = ENOMEM;
        return -1;
    }
    return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

static socklen_t make_name(const struct meet *meet, int slot, struct sockaddr_un *name)
{
    char last[16] = "door";

    memset(name, 0, sizeof *name);
    name->sun_family = AF_UNIX;
    if (slot >= 0)
        snprintf(last, sizeof last, "%d", slot);
    int n = snprintf(name->sun_path + 1, sizeof name->sun_path - 1, "descant/%s/%u/%s",
                     meet->name, (unsigned)getuid(), last);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

/* A listener of that name, or -1 and errno. */
static int hold_name(const struct meet *meet, int slot)
{
    struct sockaddr_un name;
    socklen_t length = make_name(meet, slot, &name);
    int fd = open_socket();

    if (fd >= 0 && (bind(fd, (struct sockaddr *)&name, length) != 0 || listen(fd, 128) != 0)) {
        int why = errno;
        close(fd);
        errno = why;
        fd = -1;
    }
    return fd;
}

/* A connection to that name, or -1 and errno. */
static int reach_name(const struct meet *meet, int slot)
{
    struct sockaddr_un name;
    socklen_t length = make_name(meet, slot, &name);
    int fd = open_socket();

    if (fd >= 0 && connect(fd, (struct sockaddr *)&name, length) != 0) {
        int why = errno;
        close(fd);
        errno = why;
        fd = -1;
    }
    return fd;
}

/* --- messages, with up to two descriptors --- */

union control {
    struct cmsghdr align;
    char room[CMSG_SPACE(2 * sizeof(int))];
};

static bool say(int fd, const struct message *message, const int *fds, size_t n_fds)
{
    struct message copy = *message;
    struct iovec part = {&copy, sizeof copy};
    union control control;
    struct msghdr head = {.msg_iov = &part, .msg_iovlen = 1};

    if (n_fds) {
        memset(&control, 0, sizeof control);
        head.msg_control = control.room;
        head.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
        struct cmsghdr *c = CMSG_FIRSTHDR(&head);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
        memcpy(CMSG_DATA(c), fds, n_fds * sizeof(int));
    }
    return sendmsg(fd, &head, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)sizeof copy;
}

/* Takes what descriptors came along; the caller's to close. */
static size_t take_fds(struct msghdr *head, int fds[2])
{
    size_t n = 0;

    for (struct cmsghdr *c = CMSG_FIRSTHDR(head); c; c = CMSG_NXTHDR(head, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        for (size_t k = 0; CMSG_LEN((k + 1) * sizeof(int)) <= c->cmsg_len; k++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + k * sizeof(int), sizeof fd);
            if (n < 2)
                fds[n++] = fd;
            else
                close(fd);
        }
    }
    return n;
}

/* False unless it is one whole message of ours with that many descriptors. */
static bool hear(int fd, struct message *message, int *fds, size_t n_fds)
{
    struct iovec part = {message, sizeof *message};
    union control control;
    struct msghdr head = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.room,
                          .msg_controllen = sizeof control.room};
    int got[2] = {-1, -1};
    ssize_t n = recvmsg(fd, &head, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);

    if (n < 0)
        return false;
    size_t n_got = take_fds(&head, got);
    if (n == (ssize_t)sizeof *message && !(head.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) &&
        message->magic == SHM_MAGIC && n_got == n_fds) {
        for (size_t k = 0; k < n_fds; k++)
            fds[k] = got[k];
        return true;
    }
    close_fd(&got[0]);
    close_fd(&got[1]);
    return false;
}

static struct message message_of(enum what what, unsigned slot, uint32_t generation)
{
    return (struct message){SHM_MAGIC, SHM_VERSION, (uint32_t)what, slot, generation};
}

/* --- the door --- */

static int ms_until(uint64_t until_ns)
{
    uint64_t now = clock_now_ns();
    if (now >= until_ns)
        return 0;
    uint64_t ms = (until_ns - now + 999999) / 1000000;
    return ms > 60000 ? 60000 : (int)ms;
}

static void nap(void)
{
    clock_sleep_until(clock_now_ns() + 1000000);
}

void meet_init(struct meet *meet, struct arena *arena, const char *name)
{
    memset(meet, 0, sizeof *meet);
    meet->arena = arena;
    meet->log = arena->log;
    snprintf(meet->name, sizeof meet->name, "%s", name);
    meet->door = meet->listener = meet->stop = meet->pidfd = -1;
    for (int s = 0; s < SHM_SLOTS; s++)
        meet->calls[s] = meet->peers[s] = -1;
    for (int k = 0; k < MEET_CALLERS; k++)
        meet->callers[k] = (struct meet_caller){-1, -1, 0, 0};
}

static void await_door(const struct meet *meet, uint64_t until_ns)
{
    int fd = reach_name(meet, -1);

    if (fd < 0) {
        nap();          /* just opened, or a long queue */
        return;
    }
    struct pollfd p = {.fd = fd, .events = POLLIN};
    poll(&p, 1, ms_until(until_ns));
    close(fd);
}

descant_status meet_door_take(struct meet *meet, uint64_t until_ns)
{
    for (;;) {
        meet->door = hold_name(meet, -1);
        if (meet->door >= 0)
            return DESCANT_OK;
        if (errno != EADDRINUSE)
            return log_fail(meet->log, DESCANT_SYSTEM, "no socket for job \"%s\": %s",
                            meet->name, strerror(errno));
        if (clock_now_ns() >= until_ns)
            return log_fail(meet->log, DESCANT_TIMEOUT,
                            "somebody else has been joining job \"%s\" all the time",
                            meet->name);
        await_door(meet, until_ns);
    }
}

void meet_door_give(struct meet *meet)
{
    close_fd(&meet->door);
}

/* --- calling --- */

static bool peer_is_ours(int fd, bool *dead)
{
    struct ucred who;
    socklen_t n = sizeof who;

    *dead = false;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &n) != 0 || who.uid != getuid())
        return false;
    int pidfd = (int)syscall(SYS_pidfd_open, who.pid, 0);
    *dead = pidfd < 0 ? errno == ESRCH : pidfd_dead(pidfd);
    close_fd(&pidfd);
    return true;
}

/* Connects to a slot and says hello; what answers is in calls. Who cannot be told from
 * nobody is `silent`: no job may be founded beside it. */
static descant_status call_slot(struct meet *meet, unsigned slot, uint64_t until_ns)
{
    struct message hello = message_of(WHAT_HELLO, 0, 0);
    bool dead;
    int fd;

    while ((fd = reach_name(meet, (int)slot)) < 0 && errno == EAGAIN &&
           clock_now_ns() < until_ns)
        nap();
    if (fd < 0 && errno == ECONNREFUSED)
        meet->unreachable |= slot_bit(slot);
    else if (fd < 0 && errno == EAGAIN)
        meet->silent |= slot_bit(slot);
    else if (fd < 0)
        return log_fail(meet->log, DESCANT_SYSTEM, "slot %u cannot be called: %s", slot,
                        strerror(errno));
    if (fd < 0)
        return DESCANT_OK;
    if (peer_is_ours(fd, &dead) && !dead && say(fd, &hello, &meet->pidfd, 1)) {
        meet->calls[slot] = fd;
        return DESCANT_OK;
    }
    if (dead)
        meet->unreachable |= slot_bit(slot);
    close(fd);
    return DESCANT_OK;
}

/* True if fd is the arena that we have entered. */
static bool same_arena(const struct meet *meet, int fd)
{
    struct stat a, b;
    return fstat(fd, &a) == 0 && fstat(meet->arena->fd, &b) == 0 && a.st_ino == b.st_ino &&
           a.st_dev == b.st_dev;
}

/* Those who have not answered, or have hung up: dead after all, or to be passed over. */
static void drop_silent(struct meet *meet, uint64_t waiting)
{
    bool dead;

    for (unsigned s = 0; s < SHM_SLOTS; s++) {
        if (!(waiting & slot_bit(s)))
            continue;
        if (peer_is_ours(meet->calls[s], &dead) && !dead)
            meet->silent |= slot_bit(s);
        close_fd(&meet->calls[s]);
    }
}

static descant_status take_answer(struct meet *meet, unsigned slot)
{
    struct message answer;
    int fds[2];
    descant_status status = DESCANT_OK;

    if (!hear(meet->calls[slot], &answer, fds, 2)) {
        drop_silent(meet, slot_bit(slot));
        return DESCANT_OK;
    }
    if (answer.version != SHM_VERSION || answer.slot != slot)
        status = log_fail(meet->log, DESCANT_MISMATCH,
                          "job \"%s\" is of version %u of the protocol, this is %u",
                          meet->name, answer.version, SHM_VERSION);
    else if (meet->arena->fd < 0)
        status = arena_enter(meet->arena, fds[0]);
    else if (!same_arena(meet, fds[0]))
        close_fd(&meet->calls[slot]);
    if (meet->arena->fd != fds[0])
        close(fds[0]);
    if (status || meet->calls[slot] < 0) {
        close(fds[1]);
        return status;
    }
    meet->peers[slot] = fds[1];
    meet->peer_generations[slot] = answer.generation;
    return DESCANT_OK;
}

/* Waits until all calls marked have something to hear, or are gone. */
static uint64_t await_calls(struct meet *meet, uint64_t slots, uint64_t until_ns)
{
    struct pollfd p[SHM_SLOTS];
    uint64_t ready = 0;

    for (unsigned s = 0; s < SHM_SLOTS; s++)
        p[s] = (struct pollfd){.fd = slots & slot_bit(s) ? meet->calls[s] : -1,
                               .events = POLLIN};
    poll(p, SHM_SLOTS, ms_until(until_ns));
    for (unsigned s = 0; s < SHM_SLOTS; s++)
        if (p[s].fd >= 0 && p[s].revents)
            ready |= slot_bit(s);
    return ready;
}

static uint64_t calls_open(const struct meet *meet)
{
    uint64_t open = 0;

    for (unsigned s = 0; s < SHM_SLOTS; s++)
        if (meet->calls[s] >= 0)
            open |= slot_bit(s);
    return open;
}

static descant_status take_answers(struct meet *meet, uint64_t ready)
{
    descant_status status = DESCANT_OK;

    for (unsigned s = 0; s < SHM_SLOTS && !status; s++)
        if (ready & slot_bit(s))
            status = take_answer(meet, s);
    return status;
}

static descant_status call_all(struct meet *meet, uint64_t until)
{
    descant_status status = DESCANT_OK;

    meet->silent = meet->unreachable = 0;
    for (unsigned s = 0; s < SHM_SLOTS && !status; s++)
        status = call_slot(meet, s, until);
    uint64_t waiting = calls_open(meet);
    while (waiting && !status && clock_now_ns() < until) {
        uint64_t ready = await_calls(meet, waiting, until);
        status = take_answers(meet, ready);
        waiting &= ~ready;
    }
    drop_silent(meet, waiting);
    return status;
}

/* Again while somebody who is leaving hangs up on us. */
descant_status meet_call(struct meet *meet)
{
    uint64_t until = clock_now_ns() + CALL_NS;
    descant_status status;

    meet->pidfd = open_pidfd(getpid());
    if (meet->pidfd < 0)
        return log_fail(meet->log, DESCANT_SYSTEM, "no pidfd: %s", strerror(errno));
    while (!(status = call_all(meet, until)) && meet->arena->fd < 0 && meet->silent) {
        if (clock_now_ns() >= until)
            return log_fail(meet->log, DESCANT_TIMEOUT,
                            "a trainer of job \"%s\" is alive (slot %d) and does not answer",
                            meet->name, __builtin_ctzll(meet->silent));
        nap();
    }
    return status;
}

/* --- taking a slot --- */

static bool announce(struct meet *meet, unsigned slot, uint32_t generation)
{
    struct message seat = message_of(WHAT_SEAT, slot, generation), answer;
    uint64_t waiting = 0, until = clock_now_ns() + CALL_NS;
    bool all = true;

    for (unsigned s = 0; s < SHM_SLOTS; s++)
        if (meet->calls[s] >= 0 && say(meet->calls[s], &seat, NULL, 0))
            waiting |= slot_bit(s);
    while (waiting && clock_now_ns() < until) {
        uint64_t ready = await_calls(meet, waiting, until);
        for (unsigned s = 0; s < SHM_SLOTS; s++)
            if (ready & slot_bit(s) && !hear(meet->calls[s], &answer, NULL, 0))
                all = false;
        waiting &= ~ready;
    }
    return all && !waiting;
}

/* May a joiner have it? A dead one's memory must not be read by a round any more. */
static bool slot_vacant(const struct board *board, uint64_t life)
{
    uint64_t word = atomic_load_explicit(&board->word, memory_order_acquire);
    return life_state(life) == LIFE_FREE || (life_state(life) == LIFE_DEAD && !(word & 2));
}

static bool settle(struct meet *meet, unsigned slot, uint64_t life, int rank)
{
    struct board *board = meet->arena->board;
    struct slot *mine = &board->slots[slot];
    uint32_t generation = life_generation(life) + 1;
    uint64_t until = clock_now_ns() + TOUCH_NS;

    mine->rank = rank;
    mine->pid = (int32_t)getpid();
    mine->in_place = 0;
    atomic_store_explicit(&mine->arrived, 0, memory_order_relaxed);
    atomic_store_explicit(&mine->pulled, 0, memory_order_relaxed);
    atomic_store_explicit(&mine->whole, 0, memory_order_relaxed);
    atomic_store_explicit(&mine->put, 0, memory_order_relaxed);
    atomic_store_explicit(&mine->reduced, 0, memory_order_relaxed);
    atomic_store_explicit(&mine->hungry, 0, memory_order_relaxed);
    atomic_store_explicit(&mine->threads, 1, memory_order_relaxed);
    for (int k = 0; k < N_TOUCH; k++)
        atomic_store_explicit(&mine->touching[k], 0, memory_order_relaxed);
    if (!atomic_compare_exchange_strong_explicit(&mine->life, &life,
            life_make(generation, LIFE_JOINED), memory_order_seq_cst, memory_order_seq_cst))
        return false;
    while (!slot_untouched(board, slot)) {
        if (clock_now_ns() > until) {
            atomic_store_explicit(&mine->life, life_make(generation, LIFE_DEAD),
                                  memory_order_seq_cst);
            return false;
        }
        nap();
    }
    atomic_fetch_and_explicit(&board->members, ~slot_bit(slot), memory_order_seq_cst);
    arena_punch(meet->arena, slot);
    meet->slot = slot;
    meet->generation = generation;
    meet->seated = true;
    atomic_fetch_add_explicit(&board->lives, 1, memory_order_relaxed);
    return true;
}

static void bury_unreachable(struct meet *meet)
{
    struct board *board = meet->arena->board;

    for (unsigned s = 0; s < SHM_SLOTS; s++) {
        uint64_t life = slot_life(board, s);
        if (s != meet->slot && meet->unreachable & slot_bit(s) && life_alive(life))
            slot_bury(board, s, life_generation(life), meet->slot, TOUCH_DOORMAN);
    }
}

static bool rank_taken(const struct meet *meet, int rank)
{
    for (unsigned s = 0; s < SHM_SLOTS; s++)
        if (meet->arena->board->slots[s].rank == rank && !(meet->unreachable & slot_bit(s)) &&
            life_alive(slot_life(meet->arena->board, s)) &&
            !(meet->peers[s] >= 0 && pidfd_dead(meet->peers[s])))
            return true;
    return false;
}

descant_status meet_rank(const struct meet *meet, int *rank)
{
    if (*rank >= 0 && rank_taken(meet, *rank))
        return log_fail(meet->log, DESCANT_BAD_RANK, "rank %d is held by a living trainer",
                        *rank);
    for (int k = 0; *rank < 0; k++)
        if (!rank_taken(meet, k))
            *rank = k;
    return DESCANT_OK;
}

descant_status meet_seat(struct meet *meet, int rank)
{
    struct board *board = meet->arena->board;

    for (unsigned s = 0; s < SHM_SLOTS; s++) {
        uint64_t life = slot_life(board, s);
        if (!slot_vacant(board, life))
            continue;
        meet->listener = hold_name(meet, (int)s);
        if (meet->listener < 0 && errno != EADDRINUSE)
            return log_fail(meet->log, DESCANT_SYSTEM, "no socket for slot %u: %s", s,
                            strerror(errno));
        if (meet->listener < 0)
            continue;
        announce(meet, s, life_generation(life) + 1);
        if (slot_vacant(board, life) && settle(meet, s, life, rank)) {
            bury_unreachable(meet);
            return DESCANT_OK;
        }
        close_fd(&meet->listener);
    }
    return log_fail(meet->log, DESCANT_BAD_SIZE, "job \"%s\" has %d trainers already",
                    meet->name, SHM_SLOTS);
}

/* --- the doorman --- */

static void drop_caller(struct meet_caller *caller)
{
    close_fd(&caller->fd);
    close_fd(&caller->pidfd);
}

static bool answer_hello(struct meet *meet, struct meet_caller *caller)
{
    struct message hello, member = message_of(WHAT_MEMBER, meet->slot, meet->generation);
    int fds[2] = {meet->arena->fd, meet->pidfd};

    return hear(caller->fd, &hello, &caller->pidfd, 1) && hello.what == WHAT_HELLO &&
           say(caller->fd, &member, fds, 2);
}

static bool answer_seat(struct meet *meet, struct meet_caller *caller)
{
    struct message seat, seated = message_of(WHAT_SEATED, meet->slot, meet->generation);

    if (!hear(caller->fd, &seat, NULL, 0) || seat.what != WHAT_SEAT ||
        seat.version != SHM_VERSION || seat.slot >= SHM_SLOTS || seat.slot == meet->slot)
        return false;
    int pidfd = fcntl(caller->pidfd, F_DUPFD_CLOEXEC, 0);
    if (pidfd < 0)
        return false;
    close_fd(&meet->peers[seat.slot]);
    meet->peers[seat.slot] = pidfd;
    meet->peer_generations[seat.slot] = seat.generation;
    return say(caller->fd, &seated, NULL, 0);
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
            close_fd(&meet->peers[s]);
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

descant_status meet_watch(struct meet *meet)
{
    sigset_t all, before;

    for (int s = 0; s < SHM_SLOTS; s++)
        close_fd(&meet->calls[s]);
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

static void stop_doorman(struct meet *meet)
{
    uint64_t one = 1;

    while (write(meet->stop, &one, sizeof one) < 0 && errno == EINTR)
        ;
    pthread_join(meet->doorman, NULL);
    meet->watching = false;
}

/* Its own bit goes first: nobody waits for a dead one's touch. */
static void leave(struct meet *meet)
{
    struct board *board = meet->arena->board;
    uint64_t bit = slot_bit(meet->slot);

    if (atomic_fetch_and_explicit(&board->members, ~bit, memory_order_seq_cst) & bit)
        atomic_fetch_add_explicit(&board->epoch, 1, memory_order_relaxed);
    slot_become(board, meet->slot, meet->generation, LIFE_DEAD);
    board_ring(board, ~(uint64_t)0);
    meet->seated = false;
}

void meet_fini(struct meet *meet)
{
    if (meet->watching)
        stop_doorman(meet);
    if (meet->seated)
        leave(meet);
    for (int k = 0; k < MEET_CALLERS; k++)
        drop_caller(&meet->callers[k]);
    for (int s = 0; s < SHM_SLOTS; s++) {
        close_fd(&meet->calls[s]);
        close_fd(&meet->peers[s]);
    }
    close_fd(&meet->listener);
    close_fd(&meet->stop);
    close_fd(&meet->pidfd);
    close_fd(&meet->door);
}
