/* SPDX-License-Identifier: MIT */
/* How soon a thread that wakes gets a core from another thread. */
#ifndef SLICE_H
#define SLICE_H

#include <stdint.h>

/* The calling thread asks for so short a slice, in Linux from 0.1 to 100 ms: for a thread
 * that works a little and sleeps again, and is to run at once, not when another's slice
 * has ended. Its share of the core stays as it is. Linux has this from 6.12 on; elsewhere
 * nothing happens. */
void slice_ask(uint64_t ns);

#endif
