/* SPDX-License-Identifier: MIT */
#include "base/slice.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

/* As the kernel has it; the C library of Debian 12 does not. */
struct scheduling {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
};

void slice_ask(uint64_t ns)
{
    struct scheduling s = {0};
    if (syscall(SYS_sched_getattr, 0, &s, (unsigned)sizeof s, 0) != 0)
        return;
    if (s.policy != SCHED_OTHER && s.policy != SCHED_BATCH)
        return;                 /* there, runtime means another thing */
    s.runtime = ns;
    syscall(SYS_sched_setattr, 0, &s, 0);
}
