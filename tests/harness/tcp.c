/* SPDX-License-Identifier: MIT */
#include "harness/tcp.h"
#include "harness/mpi.h"
#include "link/tcp_parts.h"

#include <stddef.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

enum { PORTS_FROM = 10000, BLOCKS = 1250, BLOCK = 8 };

/* A name without a file, which one process has, and those it forks, until they end. */
static bool take_block(unsigned block)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    int n = snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "descant-test-ports-%u", block);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    NEED(fd >= 0);
    if (bind(fd, (struct sockaddr *)&name,
             (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n)) == 0)
        return true;
    close(fd);
    return false;
}

static bool is_free(int family, unsigned port)
{
    bool six = family == AF_INET6;
    struct sockaddr_storage at = {.ss_family = (sa_family_t)family};
    int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);

    NEED(fd >= 0);
    *(six ? &((struct sockaddr_in6 *)&at)->sin6_port
          : &((struct sockaddr_in *)&at)->sin_port) = htons((uint16_t)port);
    bool good = bind(fd, (struct sockaddr *)&at, six ? sizeof(struct sockaddr_in6)
                                                     : sizeof(struct sockaddr_in)) == 0;
    close(fd);
    return good;
}

/* One that the kernel gives to nobody who lets it choose. A job takes the port behind it, too,
 * for rows: each has a block. */
static int free_port(int family)
{
    static unsigned asked;
    unsigned block = 0;
    bool good = false;

    for (int tries = 0; tries < BLOCKS && !good; tries++) {
        block = ((unsigned)getpid() * 61 + asked++) % BLOCKS;
        good = take_block(block) && is_free(family, PORTS_FROM + BLOCK * block);
    }
    NEED(good);
    return (int)(PORTS_FROM + BLOCK * block);
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
