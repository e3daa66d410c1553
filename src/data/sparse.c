/* SPDX-License-Identifier: MIT */
#include "data/reader.h"
bool libsvm_line(struct parser *p, const char *at, const char *end) { (void)at; (void)end; return bad_line(p, "todo"); }
bool libffm_line(struct parser *p, const char *at, const char *end) { (void)at; (void)end; return bad_line(p, "todo"); }
