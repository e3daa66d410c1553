/* SPDX-License-Identifier: MIT */
/* The hash of the hashing trick, so that models of other programs can be compared or
 * filled. All arithmetic is modulo 2^64, words are 8 bytes of the token, little-endian,
 * the last one filled up with zero bytes:
 *
 *   h = (field + 1) * 0x9e3779b97f4a7c15 + length * 0xd6e8feb86659fd93
 *   for each word:  h = (h ^ word) * 0xff51afd7ed558ccd;  h = h ^ (h >> 32)
 *   (an empty token, without words:                       h = h ^ (h >> 32))
 *   result: the upper 32 bits of h * 0xc4ceb9fe1a85ec53
 *
 * A multiplication carries differences upwards only; the shift brings them down before
 * the last one, so the upper bits of the result, which choose a table's row, depend on
 * all bits of the token. Up to 8 bytes cost two multiplications one after the other
 * (hash_short). */
#include "data/reader.h"

uint32_t data_hash(uint32_t field, const char *token, size_t length)
{
    uint64_t h = hash_key(field) + length * HASH_LENGTH;
    if (length == 0)
        return hash_end(h ^ h >> 32);
    for (; length >= 8; length -= 8, token += 8)
        h = hash_step(h, load_word(token));
    if (length > 0) {
        char last[8] = {0};
        memcpy(last, token, length);
        h = hash_step(h, load_word(last));
    }
    return hash_end(h);
}
