/* SPDX-License-Identifier: MIT */
/* Picks the loops for this CPU. */
#include "nn/loops.h"

#if defined(__x86_64__)
extern const struct loops loops_avx2, loops_avx512;
#endif

const struct loops *loops_best(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
        return &loops_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return &loops_avx2;
#endif
    return &loops_base;
}
