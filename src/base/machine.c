/* SPDX-License-Identifier: MIT */
/* The limits of this process on this machine: cores by affinity and by the quota of its
 * cgroup, memory by the kernel's estimate and by the cgroup's limit. Both versions of
 * cgroups are read, for the process's own group and every group above it; a file that is
 * not there limits nothing. Cached files that the kernel can drop do not count as used.
 * In a container the path of /proc/self/cgroup may not exist below the mount, so the walk
 * always ends at the mount itself. */
#include "base/base.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATH_ROOM = 4096 };

/* The first line of a file below a group's folder, without its end. */
static bool read_line(const char *folder, const char *name, char *line, int room)
{
    char path[PATH_ROOM + 64];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    bool got = fgets(line, room, file) != NULL;
    fclose(file);
    if (got)
        line[strcspn(line, "\n")] = 0;
    return got;
}

static bool read_number(const char *folder, const char *name, double *out)
{
    char line[64], *end;
    if (!read_line(folder, name, line, sizeof line))
        return false;
    double value = strtod(line, &end);
    if (end == line)    /* "max" */
        return false;
    *out = value;
    return true;
}

/* This process's path in the hierarchy that has the controller; "" is version 2's. */
static bool own_path(const char *controller, char *path, size_t room)
{
    char line[PATH_ROOM];
    bool found = false;
    FILE *file = fopen("/proc/self/cgroup", "re");
    if (!file)
        return false;
    while (!found && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        char *names = strchr(line, ':');
        char *at = names ? strchr(names + 1, ':') : NULL;
        if (!at)
            continue;
        *at++ = 0;
        names++;
        char *rest = names;
        for (char *name; !found && (name = strsep(&rest, ",")) != NULL;)
            found = strcmp(name, controller) == 0;
        if (found)
            found = (size_t)snprintf(path, room, "%s", at) < room;
    }
    fclose(file);
    return found;
}

typedef double group_limit(const char *folder, double least);

/* The least of a limit over the process's group and all above it, up to the mount. */
static double least_of_groups(const char *mount, const char *controller,
                              group_limit *limit, double least)
{
    char path[PATH_ROOM / 2], folder[PATH_ROOM];
    if (!own_path(controller, path, sizeof path))
        return least;
    for (;;) {
        snprintf(folder, sizeof folder, "%s%s", mount, path);
        least = limit(folder, least);
        char *slash = strrchr(path, '/');
        if (!slash)
            return least;
        if (slash == path && !path[1])
            return least;
        slash[slash == path] = 0;
    }
}

static double smaller(double a, double b)
{
    return a < b ? a : b;
}

static double cpu_v2(const char *folder, double least)
{
    char line[64];
    double quota, period;
    if (!read_line(folder, "cpu.max", line, sizeof line) ||
        sscanf(line, "%lf %lf", &quota, &period) != 2 || quota <= 0 || period <= 0)
        return least;
    return smaller(least, quota / period);
}

static double cpu_v1(const char *folder, double least)
{
    double quota, period;
    if (!read_number(folder, "cpu.cfs_quota_us", &quota) ||
        !read_number(folder, "cpu.cfs_period_us", &period) || quota <= 0 || period <= 0)
        return least;
    return smaller(least, quota / period);
}

/* The number of that name in memory.stat; 0 if there is none. */
static double cached(const char *folder, const char *name)
{
    char path[PATH_ROOM + 64], line[128];
    size_t length = strlen(name);
    double bytes = 0;
    snprintf(path, sizeof path, "%s/memory.stat", folder);
    FILE *file = fopen(path, "re");
    while (file && bytes <= 0 && fgets(line, sizeof line, file))
        if (strncmp(line, name, length) == 0 && line[length] == ' ')
            bytes = (double)strtoull(line + length, NULL, 10);
    if (file)
        fclose(file);
    return bytes;
}

static double room_left(double limit, double used, double least)
{
    return smaller(least, limit > used ? limit - used : 0);
}

static double memory_v2(const char *folder, double least)
{
    double limit, used;
    if (!read_number(folder, "memory.max", &limit) ||
        !read_number(folder, "memory.current", &used))
        return least;
    return room_left(limit, used - cached(folder, "inactive_file"), least);
}

static double memory_v1(const char *folder, double least)
{
    double limit, used;
    if (!read_number(folder, "memory.limit_in_bytes", &limit) ||
        !read_number(folder, "memory.usage_in_bytes", &used))
        return least;
    return room_left(limit, used - cached(folder, "total_inactive_file"), least);
}

/* Grown until the kernel's own mask fits: machines may have more cores than cpu_set_t. */
static double affinity_cores(void)
{
    for (size_t room = 1024; room <= 1 << 20; room *= 4) {
        cpu_set_t *set = CPU_ALLOC(room);
        size_t bytes = CPU_ALLOC_SIZE(room);
        if (!set)
            break;
        int n = sched_getaffinity(0, bytes, set) == 0 ? CPU_COUNT_S(bytes, set) : 0;
        CPU_FREE(set);
        if (n > 0)
            return n;
    }
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (double)n : 1;
}

double machine_cores(void)
{
    double cores = affinity_cores();
    cores = least_of_groups("/sys/fs/cgroup", "", cpu_v2, cores);
    cores = least_of_groups("/sys/fs/cgroup/cpu", "cpu", cpu_v1, cores);
    return cores;
}

static double available(void)
{
    char line[128];
    unsigned long long kib;
    FILE *file = fopen("/proc/meminfo", "re");
    double bytes = -1;
    while (file && bytes < 0 && fgets(line, sizeof line, file))
        if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1)
            bytes = (double)kib * 1024;
    if (file)
        fclose(file);
    if (bytes < 0)
        bytes = (double)sysconf(_SC_AVPHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    return bytes;
}

uint64_t machine_memory_free(void)
{
    double bytes = available();
    bytes = least_of_groups("/sys/fs/cgroup", "", memory_v2, bytes);
    bytes = least_of_groups("/sys/fs/cgroup/memory", "memory", memory_v1, bytes);
    return (uint64_t)bytes;
}

size_t machine_page(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

void signals_hold(sigset_t *before)
{
    sigset_t held;
    sigfillset(&held);
    sigdelset(&held, SIGSEGV);
    sigdelset(&held, SIGBUS);
    sigdelset(&held, SIGFPE);
    sigdelset(&held, SIGILL);
    pthread_sigmask(SIG_SETMASK, &held, before);
}

const char *machine_why(int error)
{
    return error == EMFILE ? "Too many open files; ulimit -n raises the limit"
                           : strerror(error);
}
