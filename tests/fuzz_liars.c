/* SPDX-License-Identifier: MIT */
/* A target for libFuzzer: two to five ranks that come and go, in one thread, of which one
 * sends what the bytes make of its messages (liars.h). */
#include "liars.h"

#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    char why[512];

    if (liars_run(bytes, n, false, why))
        return 0;
    fprintf(stderr, "%s\n", why);
    abort();
}
