/* SPDX-License-Identifier: MIT */
/* Waits as text. */
#ifndef WAITS_H
#define WAITS_H

#include "fabric/fabric.h"

/* What the fabric's exchange waits for: "trainer 0 waits in round 17 (mean) for trainers 2, 3";
 * empty where it does not wait. As snprintf. */
int waits_text(const struct fabric *f, char *text, size_t room);

/* For whom a start waits, while it does. */
void waits_say_start(struct fabric *f, double seconds, const struct log *log);

/* Why a start took too long. */
descant_status waits_timeout(struct fabric *f, double seconds, const struct log *log);

#endif
