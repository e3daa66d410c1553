/* SPDX-License-Identifier: MIT */
/* A parent that dies between the fork and prctl would leave a child that nobody ends, so
 * the child compares its parent's id once more. */
#include "run/children.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

void child_begin(pid_t parent, int orphans_get)
{
    sigset_t none;
    prctl(PR_SET_PDEATHSIG, orphans_get);
    if (getppid() != parent)
        _exit(128 + orphans_get);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

const char *child_end_text(int status, char *text, size_t room)
{
    if (WIFSIGNALED(status))
        snprintf(text, room, "was killed by signal %d", WTERMSIG(status));
    else
        snprintf(text, room, "has ended with status %d", WEXITSTATUS(status));
    return text;
}
