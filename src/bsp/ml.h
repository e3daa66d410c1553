/* SPDX-License-Identifier: MIT */
/* ML modules that are threads of the keeper's own process, and what tests need. */
#ifndef ML_H
#define ML_H

#include "bsp/layout.h"
#include "descant_ml.h"

/* As descant_ml_attach, in memory that stays mapped until detach. */
descant_status ml_attach_at(struct descant_ml **ml, struct segment_header *memory);

/* Called before the compare-and-swap of a pin and of a sum: what a keeper may do there, a
 * test does. Set by tests alone. */
enum ml_step { ML_PINNING, ML_PUBLISHING };
extern void (*ml_hook)(enum ml_step step);

#endif
