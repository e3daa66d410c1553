/* SPDX-License-Identifier: MIT */
#include "data/reader.h"
const char cache_magic[CACHE_MAGIC_BYTES + 1] = "DSCCACHE";
descant_status cache_open(struct cache **out, const struct data_options *o, struct data_shape *s) {(void)out;(void)s; return log_fail(o->log, DESCANT_UNSUPPORTED, "todo");}
void cache_fini(struct cache *c) {(void)c;}
uint64_t cache_chunks(const struct cache *c) {(void)c; return 0;}
enum data_got cache_read(struct cache *c, uint64_t chunk, struct block *block, descant_status *status) {(void)c;(void)chunk;(void)block;(void)status; return DATA_END;}
