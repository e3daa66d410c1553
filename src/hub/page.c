/* SPDX-License-Identifier: MIT */
/* The page of figures: a small file in memory, made anew each second by the hub and read
 * by `descant hub ADDRESS --status` of the same user. */
#include "hub/hub.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST = 4096, PAGE = 1 << 20 };

void page_path(const char *address, char *path, size_t room)
{
    const char *end = address + strcspn(address, ","), *colon = NULL;

    for (const char *p = address; p < end; p++)
        colon = *p == ':' ? p : colon;
    int port = colon ? atoi(colon + 1) : 0;
    *path = 0;
    if (port > 0)
        snprintf(path, room, "/dev/shm/descant-hub-%u-%d", (unsigned)geteuid(), port);
}

/* How a trainer is, in a word. */
static const char *state_of(const struct descant_peer *p)
{
    switch (p->last) {
    case DESCANT_EVENT_FINISHED:
        return "has finished";
    case DESCANT_EVENT_LEFT:
        return "has left";
    case DESCANT_EVENT_UNFINISHED:
        return "left without an end";
    case DESCANT_EVENT_LOST:
        return "died";
    default:
        return p->heard_s > 5 ? "is not heard" : "";
    }
}

static void put_trainers(FILE *out, struct descant *job, int own)
{
    static struct descant_peer peers[MOST];
    size_t n = 0;

    if (descant_peers(job, peers, MOST, &n) != DESCANT_OK)
        return;
    fprintf(out, "  %-22s %12s %9s %8s %9s %9s\n", "trainer", "steps", "rounds", "gap",
            "age", "heard");
    for (size_t i = 0; i < n && i < MOST; i++) {
        const struct descant_peer *p = &peers[i];
        if (p->rank == own)
            continue;
        fprintf(out, "  %4d %-17.17s %12llu %9llu %8.1f %6.0f ms %7.1f s  %s\n", p->rank,
                p->host, (unsigned long long)p->steps, (unsigned long long)p->rounds,
                p->gap_mean, 1e3 * p->age_s, p->heard_s, state_of(p));
    }
}

static void put(FILE *out, struct descant *job, uint64_t kept_ns)
{
    struct descant_members members;
    struct descant_stats stats;

    if (descant_members(job, &members) != DESCANT_OK ||
        descant_stats(job, &stats) != DESCANT_OK)
        return;
    fprintf(out, "pid %ld\n", (long)getpid());
    fprintf(out, "%d trainers, %llu rounds, %.1f MB moved, %llu rounds begun again, %llu "
            "vectors left out\n", members.size, (unsigned long long)stats.rounds,
            (double)stats.bytes * 1e-6, (unsigned long long)stats.restarts,
            (unsigned long long)stats.bad);
    if (kept_ns)
        fprintf(out, "state on disk %.0f s old\n",
                (double)(clock_now_ns() - kept_ns) * 1e-9);
    put_trainers(out, job, members.rank);
}

void page_write(const char *path, struct descant *job, uint64_t kept_ns)
{
    char next[128];

    if (!*path)
        return;
    snprintf(next, sizeof next, "%s.tmp", path);
    FILE *out = file_anew_stream(next);
    if (!out)
        return;                 /* there are no figures, and training goes on */
    if (job)
        put(out, job, kept_ns);
    else
        fprintf(out, "pid %ld\nwaits for trainers\n", (long)getpid());
    bool good = fflush(out) == 0;
    fclose(out);
    if (!good || rename(next, path) != 0)
        unlink(next);
}

/* A file of another user is no page. */
static char *page_read(const char *path)
{
    struct stat of;
    char *text = memory_take(PAGE);
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    bool own = fd >= 0 && fstat(fd, &of) == 0 && S_ISREG(of.st_mode) &&
               of.st_uid == geteuid();
    ssize_t n = own && text ? read(fd, text, PAGE - 1) : -1;

    if (fd >= 0)
        close(fd);
    if (n > 0)
        return text;
    memory_give(text);
    return NULL;
}

int hub_status(const char *address, FILE *out, FILE *err)
{
    char path[128];
    long pid = 0;

    page_path(address, path, sizeof path);
    char *text = *path ? page_read(path) : NULL;
    const char *rest = text ? strchr(text, '\n') : NULL;
    bool runs = rest && sscanf(text, "pid %ld", &pid) == 1 && pid > 0 &&
                kill((pid_t)pid, 0) == 0;
    if (runs)
        fprintf(out, "%s", rest + 1);
    else
        fprintf(err, "descant: no hub of this user runs here at %s\n", address);
    memory_give(text);
    return runs ? 0 : 1;
}
