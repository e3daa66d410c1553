/* SPDX-License-Identifier: MIT */
/* The JSON reader of training's files: the library jansson. Its json_real and that of
 * base.h are two functions of one name; ours is hidden in the program, so each is found
 * by its own callers. Here jansson's is put out of sight: who reads JSON makes no numbers
 * with it. */
#ifndef BASE_JANSSON_H
#define BASE_JANSSON_H

#define json_real jansson_real
#include <jansson.h>
#undef json_real

#endif
