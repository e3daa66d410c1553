/* SPDX-License-Identifier: MIT */
#include "harness/tcp.h"
#include "harness/mpi.h"
#include "link/tcp_parts.h"

#include <string.h>
#include <unistd.h>

static int free_port(int family)
{
    struct sockaddr_storage at = {.ss_family = (sa_family_t)family};
    socklen_t length = family == AF_INET6 ? sizeof(struct sockaddr_in6)
                                          : sizeof(struct sockaddr_in);
    int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);

    NEED(fd >= 0 && bind(fd, (struct sockaddr *)&at, length) == 0 &&
         getsockname(fd, (struct sockaddr *)&at, &length) == 0);
    close(fd);
    return ntohs(family == AF_INET6 ? ((struct sockaddr_in6 *)&at)->sin6_port
                                    : ((struct sockaddr_in *)&at)->sin_port);
}

void tcp_test_address(struct tcp_options *options, const char *host, int ranks)
{
    char address[TCP_TEXT];

    snprintf(address, sizeof address, "%s:%d,ranks=%d", host,
             free_port(*host == '[' ? AF_INET6 : AF_INET), ranks);
    NEED(tcp_options_read(options, address, NULL) == DESCANT_OK);
}

void tcp_test_break(struct link *any, uint64_t chance)
{
    struct tcp_link *link = (struct tcp_link *)(void *)any;
    int n = 0;

    for (struct tcp_connection *c = link->connections; c; c = c->next)
        n += c->state == TCP_OPEN;
    if (n == 0)
        return;
    n = (int)(chance % (uint64_t)n);
    for (struct tcp_connection *c = link->connections; c; c = c->next)
        if (c->state == TCP_OPEN && n-- == 0)
            shutdown(c->fd, SHUT_RDWR);
}
