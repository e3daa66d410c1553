/* SPDX-License-Identifier: MIT */
#include "data/reader.h"
descant_status idx_open(struct idx **out, const struct data_options *o, struct data_shape *s) {(void)out;(void)s; return log_fail(o->log, DESCANT_UNSUPPORTED, "todo");}
void idx_close(struct idx *idx) {(void)idx;}
uint64_t idx_chunks(const struct idx *idx) {(void)idx; return 0;}
enum data_got idx_read(struct idx *idx, uint64_t chunk, struct block *block, descant_status *status) {(void)idx;(void)chunk;(void)block;(void)status; return DATA_END;}
