/* SPDX-License-Identifier: MIT */
/* Names are abstract sockets: the kernel takes them back by itself, in whichever way a
 * process ends. Any process on the machine may take a name, too, and hold it for as long
 * as it likes; the number of the user is in a name only so that two users can have jobs
 * of one name. So only the kernel is believed about the holder of a name:
 *
 *   1. If the holder listens, a connection tells the user and the process that called
 *      listen (SO_PEERCRED), also before accept.
 *   2. If the holder does not listen, or its queue is full, there is no connection. The
 *      user is then in the kernel's list of sockets (sock_diag), which some containers
 *      lack. */
#include "machine/name.h"
#include "base/base.h"

#include <errno.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <linux/unix_diag.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#ifndef UDIAG_SHOW_UID          /* of Linux 5.3 */
#define UDIAG_SHOW_UID 0x40
#endif
enum { ATTRIBUTE_NAME = 0, ATTRIBUTE_UID = 7 };

static int open_socket(void)
{
    if (memory_refuse()) {
        errno = ENOMEM;
        return -1;
    }
    return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

/* "descant/JOB/USER/door" or "descant/JOB/USER/3", behind the zero byte that makes a name
 * abstract. Returns the length of the address, for such a name has no end of its own. */
static socklen_t make_name(const char *job, int slot, struct sockaddr_un *name)
{
    char last[16] = "door";

    memset(name, 0, sizeof *name);
    name->sun_family = AF_UNIX;
    if (slot >= 0)
        snprintf(last, sizeof last, "%d", slot);
    int n = snprintf(name->sun_path + 1, sizeof name->sun_path - 1, "descant/%s/%u/%s",
                     job, (unsigned)getuid(), last);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

/* Closes, and keeps errno. Returns -1. */
static int close_failed(int fd)
{
    int why = errno;
    close(fd);
    errno = why;
    return -1;
}

/* bind fails where the name is taken; listen follows at once, since a holder that does
 * not listen cannot be reached. */
int name_hold(const char *job, int slot)
{
    struct sockaddr_un name;
    socklen_t length = make_name(job, slot, &name);
    int fd = open_socket();

    if (fd >= 0 &&
        (bind(fd, (struct sockaddr *)&name, length) != 0 || listen(fd, 128) != 0))
        return close_failed(fd);
    return fd;
}

int name_reach(const char *job, int slot)
{
    struct sockaddr_un name;
    socklen_t length = make_name(job, slot, &name);
    int fd = open_socket();

    if (fd >= 0 && connect(fd, (struct sockaddr *)&name, length) != 0)
        return close_failed(fd);
    return fd;
}

bool name_peer(int fd, struct holder *who)
{
    struct ucred peer;
    socklen_t n = sizeof peer;

    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &n) != 0)
        return false;
    *who = (struct holder){peer.uid, peer.pid};
    return true;
}

/* --- the kernel's list of sockets --- */

/* A socket from which the kernel's list of local sockets can be read, where each read
 * waits for a second at most; -1 and errno. */
static int ask_for_sockets(void)
{
    struct {
        struct nlmsghdr head;
        struct unix_diag_req what;
    } ask = {
        .head = {.nlmsg_len = sizeof ask,
                 .nlmsg_type = SOCK_DIAG_BY_FAMILY,
                 .nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP},
        /* not those that are connected, which have the listener's name */
        .what = {.sdiag_family = AF_UNIX,
                 .udiag_states = 1 << TCP_LISTEN | 1 << TCP_CLOSE,
                 .udiag_show = UDIAG_SHOW_NAME | UDIAG_SHOW_UID},
    };
    const struct timeval most = {.tv_sec = 1};
    int fd = memory_refuse() ? -1 : socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC,
                                           NETLINK_SOCK_DIAG);

    if (fd >= 0 && (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most) != 0 ||
                    send(fd, &ask, sizeof ask, 0) != (ssize_t)sizeof ask))
        return close_failed(fd);
    return fd;
}

/* One socket: true if it has that name and the user is told. */
static bool is_holder(const struct nlmsghdr *head, const char *name, size_t length,
                      unsigned *uid)
{
    const struct unix_diag_msg *socket =
        (const void *)((const char *)head + NLMSG_HDRLEN);
    const char *at = (const char *)(socket + 1),
               *end = (const char *)head + head->nlmsg_len;
    bool named = false, told = false;
    struct nlattr one;

    if (head->nlmsg_len < NLMSG_LENGTH(sizeof *socket) ||
        socket->udiag_type != SOCK_SEQPACKET)
        return false;
    for (; end - at >= (ptrdiff_t)sizeof one; at += NLMSG_ALIGN(one.nla_len)) {
        memcpy(&one, at, sizeof one);
        if (one.nla_len < sizeof one || one.nla_len > end - at)
            break;
        size_t n = one.nla_len - sizeof one;
        if (one.nla_type == ATTRIBUTE_NAME)
            named = n == length && memcmp(at + sizeof one, name, n) == 0;
        if (one.nla_type == ATTRIBUTE_UID && n == sizeof *uid) {
            memcpy(uid, at + sizeof one, n);
            told = true;
        }
    }
    return named && told;
}

/* Reads the list up to the name, or to its end. The kernel tells the user of each socket,
 * not the process. */
bool name_holder(const char *job, int slot, struct holder *who)
{
    struct sockaddr_un name;
    size_t length = make_name(job, slot, &name) - offsetof(struct sockaddr_un, sun_path);
    _Alignas(struct nlmsghdr) char some[16384];
    int fd = ask_for_sockets();
    bool found = false, more = fd >= 0;

    who->pid = 0;
    while (more && !found) {
        ssize_t n = recv(fd, some, sizeof some, 0);
        size_t left = n > 0 ? (size_t)n : 0;
        more = n > 0;
        for (struct nlmsghdr *head = (void *)some; more && !found && NLMSG_OK(head, left);
             head = NLMSG_NEXT(head, left)) {
            more = head->nlmsg_type != NLMSG_DONE && head->nlmsg_type != NLMSG_ERROR;
            found = more && is_holder(head, name.sun_path, length, &who->uid);
        }
    }
    if (fd >= 0)
        close(fd);
    return found;
}
