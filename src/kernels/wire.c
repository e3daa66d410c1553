/* SPDX-License-Identifier: MIT */
/* Encoded stretches of a mean (wire.h), in pieces that stay in the first cache between
 * the two loops of an encoding: the exact values, which need memory, and their rounding.
 * Keeps no state; runs on any thread that holds the vectors. */
#include "kernels/wire.h"

#include "kernels/kernels.h"

#include <assert.h>
#include <stdint.h>

enum { PIECE = 8 * WIRE_BLOCK };

/* A share below it changes nothing in a mean; debts may be lost there, but must not
 * become infinite. */
#define LEAST_SHARE 0x1p-60

const char *const wire_names[] = {"f32", "bf16", "q8"};

size_t wire_bytes(enum wire wire, size_t n)
{
    switch (wire) {
    case WIRE_BF16:
        return n * sizeof(uint16_t);
    case WIRE_Q8:
        return n + (n + WIRE_BLOCK - 1) / WIRE_BLOCK * sizeof(float);
    case WIRE_F32:
        break;
    }
    return n * sizeof(float);
}

size_t wire_slice(size_t n, int slices, int slice)
{
    size_t blocks = (n + WIRE_BLOCK - 1) / WIRE_BLOCK;
    size_t at = blocks * (size_t)slice / (size_t)slices * WIRE_BLOCK;
    return at < n ? at : n;
}

static size_t piece(size_t at, size_t n)
{
    return n - at < PIECE ? n - at : PIECE;
}

/* out = Q(u), u = a (u - out) */
static void put(enum wire wire, void *out, float *u, float a, size_t n)
{
    assert(wire != WIRE_F32);
    if (wire == WIRE_BF16)
        kernels_best()->bf16_put(out, u, a, n);
    else
        kernels_best()->q8_put(out, u, a, n);
}

/* sum = from + a in */
static void add(enum wire wire, float *sum, const float *from, const void *in, size_t n,
                float a)
{
    assert(wire != WIRE_F32);
    if (wire == WIRE_BF16)
        kernels_best()->bf16_add(sum, from, in, a, n);
    else
        kernels_best()->q8_add(sum, from, in, a, n);
}

bool wire_send(const struct wire_part *p, void *out)
{
    /* r is in units of the mean, and x - R is not: r is divided by the share before the
     * encoding, and the error multiplied by the share after it. */
    double most = 1 / (p->share > LEAST_SHARE ? p->share : LEAST_SHARE);
    bool finite = true;
    for (size_t at = 0, n; at < p->n; at += n) {
        n = piece(at, p->n);
        finite &= kernels_best()->owe(p->r + at, p->x + at, p->R + at, 1, (float)most, n);
        put(p->wire, (char *)out + wire_bytes(p->wire, at), p->r + at, (float)p->share,
            n);
    }
    return finite;
}

bool wire_own(const struct wire_part *p)
{
    return kernels_best()->owe(p->r, p->x, p->R, (float)p->share, 1, p->n);
}

void wire_add(const struct wire_part *p, const void *in, double share)
{
    add(p->wire, p->r, p->r, in, p->n, (float)share);
}

void wire_settle(const struct wire_part *p, void *out)
{
    put(p->wire, out, p->r, 1, p->n);
}

void wire_take(enum wire wire, float *c, const float *R, const void *in, size_t n)
{
    add(wire, c, R, in, n, 1);
}
