/* SPDX-License-Identifier: MIT */
/* Picks the loops, once a process: the best of this CPU, or the set that DESCANT_LOOPS
 * names, so that tests and figures of an older processor can be had on a newer one. */
#include "nn/loops.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
extern const struct loops loops_avx2, loops_avx512;
#endif

const struct loops *loops_named(const char *name)
{
#if defined(__x86_64__)
    if ((!name || strcmp(name, "avx512") == 0) && __builtin_cpu_supports("avx512f") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl"))
        return &loops_avx512;
    if ((!name || strcmp(name, "avx2") == 0) && __builtin_cpu_supports("avx2") &&
        __builtin_cpu_supports("fma"))
        return &loops_avx2;
#endif
    return !name || strcmp(name, "base") == 0 ? &loops_base : NULL;
}

static const struct loops *best;        /* written once */

/* DESCANT_LOOPS; NULL: it is not set, or empty. */
static const char *asked_for(void)
{
    const char *asked = getenv("DESCANT_LOOPS");
    return asked && *asked ? asked : NULL;
}

static void choose(void)
{
    best = loops_named(asked_for());
    if (!best)
        best = loops_named(NULL);
}

const struct loops *loops_best(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, choose);
    return best;
}

const char *loops_lacking(void)
{
    const char *asked = asked_for();
    return loops_named(asked) ? NULL : asked;
}
