/* SPDX-License-Identifier: MIT */
/* A cable between two network namespaces on which packets take a time: two TAP devices,
 * and this program between them.
 *
 *     delay PID NAME PID NAME DELAYms
 *
 * makes a device of that name in the network namespace of each process, and brings every
 * packet from either device to the other after DELAY, in order. Once both are there it
 * prints its own process's number; they go when it ends.
 *
 * The kernel hands over packets of up to 64 KiB with the header that tells how to cut
 * them (IFF_VNET_HDR), so a packet here is as large as on a veth. All packets that are
 * under way lie in memory, a ring of 16 MiB for each direction, which is to hold rate ×
 * DELAY; what would not fit waits in the device's queue, and is lost when that is full. A
 * rate is the device's (tc, in hosts).
 *
 * It runs before other processes (SCHED_FIFO), as a cable does, but not for free: each
 * packet is copied twice, and what the receiver's kernel does with it is this process's
 * CPU, too. So while packets are under way it looks five times in each DELAY, and brings
 * what is due by then, as a card does that interrupts once for several packets: a packet
 * takes DELAY, give or take a fifth. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum { RING = 16 << 20, MOST = 68 << 10, ALIGN = 8, LOOKS = 5 };

/* A packet under way; its bytes follow. */
struct late {
    int64_t due_ns;
    int64_t bytes;
};

/* One direction. first and end count bytes since it was last empty, so that the same
 * memory serves again, while caches still have it; the ring lies twice in memory, one
 * copy behind the other, so that no packet is in two pieces. */
struct way {
    int from, to;
    char *ring;
    uint64_t first, end;
};

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static int make_device(const char *pid, const char *name)
{
    char path[64];
    struct ifreq request = {.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR};
    snprintf(path, sizeof path, "/proc/%s/ns/net", pid);
    snprintf(request.ifr_name, sizeof request.ifr_name, "%s", name);
    int space = open(path, O_RDONLY | O_CLOEXEC);
    if (space < 0 || setns(space, CLONE_NEWNET))
        fail(path);
    close(space);
    int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 || ioctl(fd, TUNSETIFF, &request) ||
        ioctl(fd, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6))
        fail("/dev/net/tun");
    return fd;
}

static struct way make_way(int from, int to)
{
    int fd = memfd_create("ring", MFD_CLOEXEC);
    char *ring = mmap(NULL, 2 * (size_t)RING, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (fd < 0 || ftruncate(fd, RING) || ring == MAP_FAILED)
        fail("a ring");
    for (int k = 0; k < 2; k++)
        if (mmap(ring + (size_t)k * RING, RING, PROT_READ | PROT_WRITE,
                 MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED)
            fail("a ring");
    close(fd);
    return (struct way){.from = from, .to = to, .ring = ring};
}

static struct late *at(const struct way *w, uint64_t place)
{
    return (struct late *)(w->ring + place % RING);
}

static int has_room(const struct way *w)
{
    return w->end - w->first <= RING - MOST;
}

static void take(struct way *w, int64_t delay_ns)
{
    while (has_room(w)) {
        struct late *packet = at(w, w->end);
        packet->bytes = read(w->from, packet + 1, MOST - sizeof *packet);
        if (packet->bytes <= 0)
            return;
        packet->due_ns = now_ns() + delay_ns;
        w->end += sizeof *packet + (uint64_t)(packet->bytes + ALIGN - 1) / ALIGN * ALIGN;
    }
}

/* A packet that the device does not take is lost. */
static void give(struct way *w)
{
    int64_t now = now_ns();
    while (w->first != w->end) {
        struct late *packet = at(w, w->first);
        if (packet->due_ns > now)
            return;
        (void)!write(w->to, packet + 1, (size_t)packet->bytes);
        w->first += sizeof *packet + (uint64_t)(packet->bytes + ALIGN - 1) / ALIGN * ALIGN;
    }
    w->first = w->end = 0;
}

/* On average a packet waits half a look to be read and half a look after it is due, so its
 * due time is one look early. The first one after a rest is read at once. */
static void carry(struct way way[2], int64_t delay_ns)
{
    int64_t look_ns = delay_ns / LOOKS, early_ns = 0;
    for (;;) {
        for (int k = 0; k < 2; k++) {
            take(&way[k], delay_ns - early_ns);
            give(&way[k]);
        }
        early_ns = way[0].end || way[1].end ? look_ns : 0;
        if (early_ns) {
            nanosleep(&(struct timespec){.tv_nsec = look_ns}, NULL);
            continue;
        }
        struct pollfd polled[2] = {{.fd = way[0].from, .events = POLLIN},
                                   {.fd = way[1].from, .events = POLLIN}};
        poll(polled, 2, -1);
    }
}

int main(int argc, char **argv)
{
    char *unit = NULL;
    double delay_ms = argc == 6 ? strtod(argv[5], &unit) : -1;
    struct sched_param first = {.sched_priority = 1};
    if (!(delay_ms >= 1 && delay_ms <= 1000) || strcmp(unit, "ms") != 0) {
        fputs("usage: delay PID NAME PID NAME DELAYms, of 1ms to 1000ms\n", stderr);
        return 2;
    }
    int ends[2] = {make_device(argv[1], argv[2]), make_device(argv[3], argv[4])};
    struct way ways[2] = {make_way(ends[0], ends[1]), make_way(ends[1], ends[0])};
    prctl(PR_SET_TIMERSLACK, 1);
    if (sched_setscheduler(0, SCHED_FIFO, &first))
        fail("SCHED_FIFO");
    printf("%d\n", (int)getpid());
    if (fclose(stdout))
        fail("stdout");
    carry(ways, (int64_t)(delay_ms * 1e6));
}
