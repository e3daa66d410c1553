/* SPDX-License-Identifier: MIT */
/* The end of PMI-1's wire protocol, as MPICH's mpirun and Slurm's pmi2 plugin speak it
 * (flux-framework.readthedocs.io/projects/flux-rfc/en/latest/spec_13.html): one line is
 * sent, one comes back. MPICH has opened the connection, uses it in MPI_Init and
 * MPI_Finalize alone, and leaves nothing unread on it, so that between the two it can be
 * spoken on here; and before MPI_Init by a process that will not come to it.
 *
 * The launcher keeps the barrier, and no message of MPI carries it. Once all ranks are in
 * the barrier, each has received all it wants; until then a rank must move what it has
 * sent, for MPI may hold the rest of a send that it has called complete. A rank comes to
 * the barrier as its process ends, which may be long after the end of the job: the other
 * ranks wait for it there, because a launcher may end the whole run when one rank
 * ends. */
#include "link/pmi.h"

#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

enum { ABORT_MS = 1000, REST_MS = 2, ANSWER = 256 };

static int descriptor(void)
{
    const char *fd = getenv("PMI_FD");
    char *end = NULL;
    long number = fd && *fd ? strtol(fd, &end, 10) : -1;

    int type = 0;
    socklen_t n = sizeof type;

    if (!end || *end || number < 0 || number >= 1 << 20)
        return -1;
    bool stream = getsockopt((int)number, SOL_SOCKET, SO_TYPE, &type, &n) == 0 &&
                  /* else the number is now another descriptor */
                  type == SOCK_STREAM;
    return stream ? (int)number : -1;
}

static int64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Reads one line that begins so, in at most so many milliseconds; false: another line, or
 * none. */
static bool hear(int fd, const char *want, void (*progress)(void), int most_ms)
{
    char line[ANSWER];
    size_t n = 0;
    int64_t until = now_ms() + most_ms;

    while (n < sizeof line && (n == 0 || line[n - 1] != '\n')) {
        struct pollfd in = {.fd = fd, .events = POLLIN};
        int ready = poll(&in, 1, REST_MS);
        progress();
        if (ready < 0 && errno != EINTR)
            return false;
        if (ready <= 0 && now_ms() >= until) {
            fprintf(stderr,
                    "descant: the other ranks have not ended for %d s (the launcher has "
                    "not said '%s'): leaving by MPI_Finalize\n",
                    most_ms / 1000, want);
            return false;
        }
        if (ready <= 0)
            continue;
        ssize_t got = recv(fd, line + n, 1, 0);
        if (got == 0 || (got < 0 && errno != EINTR))
            return false;
        n += got > 0;
    }
    return n > strlen(want) && strncmp(line, want, strlen(want)) == 0;
}

static bool ask(int fd, const char *line, const char *want, void (*progress)(void),
                int most_ms)
{
    ssize_t n = (ssize_t)strlen(line);

    return send(fd, line, (size_t)n, MSG_NOSIGNAL) == n &&
           hear(fd, want, progress, most_ms);
}

bool pmi_leave(void (*progress)(void), int most_ms)
{
    int fd = descriptor();

    return fd >= 0 && ask(fd, "cmd=barrier_in\n", "cmd=barrier_out", progress, most_ms) &&
           ask(fd, "cmd=finalize\n", "cmd=finalize_ack", progress, most_ms);
}

/* The answer to the first line is waited for, and left unread: this process ends. */
void pmi_abort(int status)
{
    static const char init[] = "cmd=init pmi_version=1 pmi_subversion=1\n";
    char line[64];
    struct pollfd in = {.fd = descriptor(), .events = POLLIN};
    int n = snprintf(line, sizeof line, "cmd=abort exitcode=%d\n", status);

    if (in.fd >= 0 && send(in.fd, init, sizeof init - 1, MSG_NOSIGNAL) > 0 &&
        poll(&in, 1, ABORT_MS) > 0)
        send(in.fd, line, (size_t)n, MSG_NOSIGNAL);
}
