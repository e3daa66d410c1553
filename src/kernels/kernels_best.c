/* SPDX-License-Identifier: MIT */
/* Picks the kernels for this CPU. All sets give the same bits, so the trainers of a job
 * may run on different machines. */
#include "kernels/kernels.h"

#if defined(__x86_64__)
extern const struct kernels kernels_avx2, kernels_avx512;
#endif

const struct kernels *kernels_best(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f"))
        return &kernels_avx512;
    if (__builtin_cpu_supports("avx2"))
        return &kernels_avx2;
#endif
    return &kernels_base;
}
