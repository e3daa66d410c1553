/* SPDX-License-Identifier: MIT */
/* The JSON reader of training's files: the library jansson. jansson and base.h both have
 * a function json_real; base.h's is hidden in the program, so each is found by its own
 * callers. This header hides jansson's, for code that reads JSON makes no numbers with
 * it. */
#ifndef BASE_JANSSON_H
#define BASE_JANSSON_H

#define json_real jansson_real
#include <jansson.h>
#undef json_real

#endif
