/* SPDX-License-Identifier: MIT */
#include "harness/tcp.h"
#include "harness/mpi.h"
#include "link/tcp_parts.h"

#include <string.h>
#include <unistd.h>

/* One that the kernel gives to nobody who lets it choose. */
static int free_port(int family)
{
    static unsigned asked;
    bool six = family == AF_INET6, good = false;
    unsigned port = 0;

    for (int tries = 0; tries < 1000 && !good; tries++) {
        struct sockaddr_storage at = {.ss_family = (sa_family_t)family};
        int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        port = 10000 + ((unsigned)getpid() * 61 + 7 * asked++) % 10000;
        *(six ? &((struct sockaddr_in6 *)&at)->sin6_port
              : &((struct sockaddr_in *)&at)->sin_port) = htons((uint16_t)port);
        NEED(fd >= 0);
        good = bind(fd, (struct sockaddr *)&at, six ? sizeof(struct sockaddr_in6)
                                                    : sizeof(struct sockaddr_in)) == 0;
        close(fd);
    }
    NEED(good);
    return (int)port;
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

static int turned(const struct tcp_options *options, int rank, int by)
{
    int most = (int)options->most;
    return options->star && rank >= 0 ? (rank + by + most) % most : rank;
}

int tcp_test_rank(const struct tcp_options *options, int process)
{
    return turned(options, process, -1);
}

int tcp_test_process(const struct tcp_options *options, int rank)
{
    return turned(options, rank, 1);
}

struct link_entry tcp_test_entry(struct tcp_options *options, int process)
{
    bool hub = options->star && process == 0;
    return (struct link_entry){.context = options, .hub = hub,
                               .rank = hub ? -1 : tcp_test_rank(options, process)};
}
