/* SPDX-License-Identifier: MIT */
/* Rows as they travel: as they are, as bf16, or as 8 bits with a scale for each row.
 * Values are rounded to the nearest. Gradients are rounded up or down by chance, so that
 * their mean is exact: what is too small for one push still counts in many. Of NaN and
 * Inf something stays that is not finite, so that the owner sees it. */
#include "owners/owned.h"

#include <math.h>
#include <string.h>

size_t owned_row_bytes(const struct owned *table)
{
    size_t n = table->shape.width;

    switch (table->shape.wire) {
    case DESCANT_ROWS_BF16:
        return (2 * n + 3) / 4 * 4;
    case DESCANT_ROWS_Q8:
        return sizeof(float) + (n + 3) / 4 * 4;
    case DESCANT_ROWS_F32:
        break;
    }
    return n * sizeof(float);
}

static uint32_t next(uint64_t *chance)
{
    *chance = *chance * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*chance >> 33);
}

static void put_bf16(unsigned char *to, const float *row, size_t n, uint64_t *chance)
{
    for (size_t k = 0; k < n; k++) {
        uint32_t bits, add;
        memcpy(&bits, &row[k], sizeof bits);
        add = chance ? next(chance) & 0xffff : 0x7fff + (bits >> 16 & 1);
        bool finite = (bits >> 23 & 0xff) != 0xff;
        uint16_t high = (uint16_t)((finite ? bits + add : bits | 0x400000) >> 16);
        memcpy(to + 2 * k, &high, sizeof high);
    }
}

static void put_q8(unsigned char *to, const float *row, size_t n, uint64_t *chance)
{
    float top = 0;

    for (size_t k = 0; k < n; k++)      /* NaN stays */
        top = isnan(top) || fabsf(row[k]) <= top ? top : fabsf(row[k]);
    bool none = top < 0x1p-100f;
    float scale = none ? 0 : top / 127, up = none ? 0 : 127 / top;
    memcpy(to, &scale, sizeof scale);
    for (size_t k = 0; k < n; k++) {
        float share = chance ? (float)(next(chance) >> 7) * 0x1p-24f : 0.5f;
        float q = floorf(row[k] * up + share);
        q = q < -127 ? -127 : q < 127 ? q : 127;        /* also of NaN */
        to[sizeof scale + k] = (unsigned char)(int8_t)q;
    }
}

void owned_encode(const struct owned *table, const float *row, void *out,
                  uint64_t *chance)
{
    size_t n = table->shape.width;

    switch (table->shape.wire) {
    case DESCANT_ROWS_BF16:
        put_bf16(out, row, n, chance);
        break;
    case DESCANT_ROWS_Q8:
        put_q8(out, row, n, chance);
        break;
    case DESCANT_ROWS_F32:
        memcpy(out, row, n * sizeof *row);
        break;
    }
}

void owned_decode(const struct owned *table, const void *in, float *row)
{
    size_t n = table->shape.width;
    const unsigned char *from = in;
    float scale;

    switch (table->shape.wire) {
    case DESCANT_ROWS_BF16:
        for (size_t k = 0; k < n; k++) {
            uint32_t bits = (uint32_t)from[2 * k] << 16 | (uint32_t)from[2 * k + 1] << 24;
            memcpy(&row[k], &bits, sizeof bits);
        }
        break;
    case DESCANT_ROWS_Q8:
        memcpy(&scale, from, sizeof scale);
        for (size_t k = 0; k < n; k++)
            row[k] = scale * (float)(int8_t)from[sizeof scale + k];
        break;
    case DESCANT_ROWS_F32:
        memcpy(row, from, n * sizeof *row);
        break;
    }
}
