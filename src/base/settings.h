/* SPDX-License-Identifier: MIT */
/* The names that the benchmarks have for options. */
#ifndef BASE_SETTINGS_H
#define BASE_SETTINGS_H

#include "base/base.h"

#define setting option
#define setting_text option_write
#define SETTING_INT OPTION_INT
#define SETTING_BYTES OPTION_BYTES
#define SETTING_REAL OPTION_REAL
#define SETTING_FLAG OPTION_BOOL
#define SETTING_CHOICE OPTION_CHOICE
#define SETTING_TEXT OPTION_TEXT

#endif
