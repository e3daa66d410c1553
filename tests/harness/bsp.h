/* SPDX-License-Identifier: MIT */
/* Runs of descant bsp as real processes. The modules are the test's own program,
 * called with "module KIND"; all their gradients are 3 everywhere, so after s steps of
 * plain SGD with rate 0.5 each float is -1.5 s, whoever gave how many of them. */
#ifndef HARNESS_BSP_H
#define HARNESS_BSP_H

#include "bsp/object.h"
#include "data/safetensors.h"
#include "harness/folder.h"
#include "harness/log.h"
#include "harness/processes.h"
#include "harness/program.h"
#include "harness/segments.h"
#include "harness/suite.h"
#include "harness/wait.h"

enum { FLOATS = 5, EXAMPLES = 4 };

#define NEVER_STALE "--bound 1000000000" /* each gradient counts, however late it comes */

/* constant, nan: until the run ends; times: 50 gradients; dies: is killed after 20;
 * fails: at once, and first-fails if it is module 0; deaf: never leaves; late: module
 * 0 never comes; wild, cut: module 0 writes where it must not. */
int be_module(const char *kind);

bool segment_left(int k);

/* The checkpoint is what so many steps make, to the bit; returns them. */
uint64_t check_checkpoint(void);
/* The same where up to `lost` steps have found zeros for their gradients. */
uint64_t check_checkpoint_but(int lost);

struct descant_ml *attach_to(int k);

extern char checkpoint[96];     /* of the test's run */
void set_up_bsp(void);          /* a fixture */
void wait_steps(double least);
void wait_modules(double n);    /* until so many are at work */

#endif
