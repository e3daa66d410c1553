/* SPDX-License-Identifier: MIT */
/* A word is looked up in /proc/PID/stat. The number of a process alone is used again;
 * with the process's start it is not. Locks were not taken for it: record locks go when
 * any descriptor of the file is closed, flock's stay with forked children, and a robust
 * mutex belongs to a thread and has no layout that other languages could write. A pidfd
 * wakes a process that waits for a death, which a word does not, but it is one process's,
 * and has to be handed over: so trainers that meet hand theirs over (doorman.c), and
 * words lie in memory that outlives its readers.
 *
 * Both say dead of a zombie without other threads, whose memory the kernel has taken
 * away, and both take a program that the process has become by execve for the process. A
 * word holds in one PID namespace (process_namespace); a pidfd in all. A process that
 * /proc hides (hidepid) counts as living while its number is in use. */
#include "machine/process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { START_BITS = 40 };

struct about {
    char state;
    long threads;
    uint64_t start;
};

/* False: there is no such process; or, with *why other than ENOENT and ESRCH, the system
 * does not tell. */
static bool look(const char *pid, struct about *out, int *why)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%s/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    *why = errno;
    if (fd >= 0)
        close(fd);
    if (n <= 0)
        return false;
    text[n] = 0;
    unsigned long long start;
    const char *name_end = strrchr(text, ')');      /* the name may have any character */
    *why = EINVAL;
    if (!name_end || sscanf(name_end + 1,
                            " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d "
                            "%*d %*d %ld %*d %llu",
                            &out->state, &out->threads, &start) != 3)
        return false;
    out->start = start & (((uint64_t)1 << START_BITS) - 1);
    return true;
}

uint64_t process_self(const struct log *log)
{
    struct about about;
    int why;
    if (!look("self", &about, &why)) {
        log_fail(log, DESCANT_SYSTEM, "/proc/self/stat cannot be read: %s",
                 strerror(why));
        return 0;
    }
    return (uint64_t)getpid() << START_BITS | about.start;
}

bool process_alive(uint64_t process)
{
    char pid[16];
    struct about about;
    int why;
    snprintf(pid, sizeof pid, "%d", process_pid(process));
    if (!look(pid, &about, &why))
        return (why != ENOENT && why != ESRCH) ||
               (process && (kill(process_pid(process), 0) == 0 || errno != ESRCH));
    uint64_t start = process & (((uint64_t)1 << START_BITS) - 1);
    if (start && about.start != start)
        return false;
    return (about.state != 'Z' && about.state != 'X') || about.threads > 1;
}

uint64_t process_namespace(void)
{
    struct stat of;
    return stat("/proc/self/ns/pid", &of) == 0 ? (uint64_t)of.st_ino : 0;
}

int process_watch(int pid)
{
    return memory_refuse() ? -1 : (int)syscall(SYS_pidfd_open, pid, 0);
}

bool pidfd_dead(int pidfd)
{
    struct pollfd p = {.fd = pidfd, .events = POLLIN};
    return poll(&p, 1, 0) > 0;
}
