/* SPDX-License-Identifier: MIT */
/* Messages over sockets that keep message bounds (SOCK_SEQPACKET): one struct of five
 * numbers, and up to two descriptors. No function blocks. A message of another form, by a
 * stranger or another version, is refused as a whole, and the descriptors that came with
 * it are closed. */
#include "machine/message.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

void fd_close(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

int ms_until(uint64_t until_ns)
{
    uint64_t now = clock_now_ns();
    if (now >= until_ns)
        return 0;
    uint64_t ms = (until_ns - now + 999999) / 1000000;
    return ms > 60000 ? 60000 : (int)ms;
}

void nap(void)
{
    clock_sleep_until(clock_now_ns() + 1000000);
}

union control_room {
    struct cmsghdr align;
    char room[CMSG_SPACE(2 * sizeof(int))];
};

/* MSG_DONTWAIT: a queue that is full makes this false, as a peer that has gone does. */
bool message_say(int fd, const struct message *message, const int *fds, size_t n_fds)
{
    struct message copy = *message;
    struct iovec part = {&copy, sizeof copy};
    union control_room control;
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

/* Takes the descriptors that came along; the caller closes them. */
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

/* Any process may connect, so nothing is believed: length, magic and cut flags are tested
 * before a field is read. */
enum heard message_take(int fd, struct message *message, int fds[2])
{
    struct iovec part = {message, sizeof *message};
    union control_room control;
    struct msghdr head = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.room,
                          .msg_controllen = sizeof control.room};
    ssize_t n = recvmsg(fd, &head, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);

    fds[0] = fds[1] = -1;
    if (n < 0)
        return errno == EAGAIN || errno == EINTR ? HEARD_NOTHING : HEARD_END;
    if (n == 0)
        return HEARD_END;
    size_t n_fds = take_fds(&head, fds);
    if (n == (ssize_t)sizeof *message && !(head.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) &&
        message->magic == MACHINE_MAGIC)
        return HEARD;
    fd_close(&fds[0]);
    fd_close(&fds[1]);
    return head.msg_flags & MSG_CTRUNC && n_fds < 2 ? HEARD_CUT : HEARD_NOISE;
}

/* A message that has more or fewer descriptors than it should is noise, and they are
 * closed. */
enum heard message_hear(int fd, struct message *message, int *fds, size_t n_fds)
{
    int got[2];
    enum heard heard = message_take(fd, message, got);

    if (heard == HEARD && (n_fds < 1) == (got[0] < 0) && (n_fds < 2) == (got[1] < 0)) {
        for (size_t k = 0; k < n_fds; k++)
            fds[k] = got[k];
        return HEARD;
    }
    fd_close(&got[0]);
    fd_close(&got[1]);
    return heard == HEARD ? HEARD_NOISE : heard;
}

struct message message_of(enum what what, unsigned slot, uint32_t generation)
{
    return (struct message){MACHINE_MAGIC, MACHINE_VERSION, (uint32_t)what, slot,
                            generation};
}
