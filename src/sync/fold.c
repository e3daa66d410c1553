/* SPDX-License-Identifier: MIT */
/* What training has changed in parameters on a device goes into their segments, and what
 * rounds have changed comes out, in one pass: three vectors are read and written once. It
 * takes no job, so that a binding's thread can be in it whatever the job's threads do. A
 * shadow may write the segments meanwhile, as it does beside workers (kernels.h). */
#include "kernels/kernels.h"

#include "descant.h"

int descant_fold(float *const *segments, const size_t *sizes, size_t count, float *shown,
                 float *values)
{
    const struct kernels *kernels = kernels_best();
    int finite = 1;

    for (size_t k = 0; k < count; k++) {
        if (segments[k] && !kernels->fold(segments[k], shown, values, sizes[k]))
            finite = 0;
        shown += sizes[k];
        values += sizes[k];
    }
    return finite;
}
