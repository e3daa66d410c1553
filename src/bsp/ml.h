/* SPDX-License-Identifier: MIT */
/* ML modules that are threads of the keeper's own process, and a hook for tests. */
#ifndef ML_H
#define ML_H

#include "bsp/layout.h"
#include "descant_ml.h"

/* As descant_ml_attach, in memory that stays mapped until detach. */
descant_status ml_attach_at(struct descant_ml **ml, struct segment_header *memory);

/* Called before the compare-and-swap of a pin and of a sum, where a test acts as a keeper
 * would. Set by tests alone. */
enum ml_step { ML_PINNING, ML_PUBLISHING };
extern void (*ml_hook)(enum ml_step step);

#endif
