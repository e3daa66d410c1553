/* SPDX-License-Identifier: MIT */
/* Under MPI a rank's death ends the job, and the launcher kills its other processes: the
 * segments have no successor, and would fill /dev/shm until the next run of that name. So
 * a rank has a child that outlives it, in a session of its own, which the launcher does
 * not know. The child waits for the end of a pipe that the rank alone holds open, and
 * removes the segments whose keeper was the rank. A rank that ended in good order has
 * left none. */
#include "bsp/object.h"
#include "machine/process.h"
#include "control/control.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

/* Becomes the keeper as a successor would: of the two only one does. */
static void sweep(const char *run, uint64_t keeper)
{
    int numbers[BSP_MODULES];
    uint64_t self = process_self(NULL);
    int n = bsp_find_segments(run, numbers);
    for (int k = 0; k < n; k++) {
        char name[BSP_SEGMENT];
        struct object object;
        local_name(run, numbers[k], name, sizeof name);
        if (object_open(&object, name, NULL) != DESCANT_OK)
            continue;
        uint64_t now = keeper;
        if (self && object_guard(&object, name, NULL) == DESCANT_OK &&
            atomic_compare_exchange_strong_explicit(&object.header->keeper, &now, self,
                                                    memory_order_acq_rel,
                                                    memory_order_acquire)) {
            atomic_store_explicit(&object.header->ended, 1, memory_order_relaxed);
            object_hide(&object, name);
        }
        object_close(&object);
    }
}

/* False: the list of open files cannot be read. */
static bool close_but_stdin(void)
{
    DIR *open = opendir("/proc/self/fd");
    if (!open)
        return false;
    for (struct dirent *entry; (entry = readdir(open)) != NULL;) {
        int fd = atoi(entry->d_name);
        if (fd > STDIN_FILENO && fd != dirfd(open))
            close(fd);
    }
    closedir(open);
    return true;
}

/* Closes all that the rank had open, for its launcher waits for the ends of its streams.
 * SIGBUS is guard.c's. */
static void be_sweeper(int pipe_end, const char *run, uint64_t keeper)
{
    char byte;
    setsid();
    for (int s = 1; s < NSIG; s++)
        if (s != SIGBUS)
            signal(s, s == SIGHUP || s == SIGINT || s == SIGTERM || s == SIGPIPE
                          ? SIG_IGN
                          : SIG_DFL);
    prctl(PR_SET_NAME, "descant-sweep");
    if (dup2(pipe_end, STDIN_FILENO) < 0 || !close_but_stdin())
        _exit(1);
    while (read(STDIN_FILENO, &byte, 1) < 0 && errno == EINTR)
        continue;
    sweep(run, keeper);
    _exit(0);
}

descant_status bsp_sweeper_start(const char *run, const struct log *log)
{
    int ends[2];
    uint64_t self = process_self(log);
    if (self == 0)
        return DESCANT_SYSTEM;
    if (pipe2(ends, O_CLOEXEC) != 0)
        return log_fail(log, DESCANT_SYSTEM, "no pipe: %s", strerror(errno));
    pid_t pid = fork();
    if (pid == 0)
        be_sweeper(ends[0], run, self);
    int why = errno;
    close(ends[0]);             /* the other end stays open while this process lives */
    if (pid > 0)
        return DESCANT_OK;
    close(ends[1]);
    return log_fail(log, DESCANT_SYSTEM, "no process to take segments away: %s",
                    strerror(why));
}
