/* SPDX-License-Identifier: MIT */
/* ML modules that are threads of the keeper's own process. */
#ifndef ML_H
#define ML_H

#include "bsp/layout.h"
#include "descant_ml.h"

/* As descant_ml_attach, in memory that stays mapped until detach. */
descant_status ml_attach_at(struct descant_ml **ml, struct segment_header *memory);

#endif
