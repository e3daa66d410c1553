/* SPDX-License-Identifier: MIT */
/* How the floats of a mean are sent: as they are, as bf16, or as 8 bits with a scale for
 * each block of 256. docs/wire.md has the rule; a fabric calls these in its order.
 *
 * Members encode the difference from the reference R, which all hold with the same bits.
 * The error of encoding is owed: r, n floats of each member, in units of the mean, is
 * added the next time. Stretches begin at multiples of WIRE_BLOCK, and are encoded and
 * decoded each on its own. The loops are those of kernels.c. */
#ifndef WIRE_H
#define WIRE_H

#include <stdbool.h>
#include <stddef.h>

enum wire { WIRE_F32, WIRE_BF16, WIRE_Q8 };
enum { WIRE_BLOCK = 256 };      /* floats that share a scale */

extern const char *const wire_names[];      /* as the plan writes them */

/* Of n floats, exactly: 4n, 2n, n and 4 for each block. */
size_t wire_bytes(enum wire wire, size_t n);

/* The first float of a slice, of as many slices as there are members; slice = slices: n.
 */
size_t wire_slice(size_t n, int slices, int slice);

/* A stretch of one member's part in a mean, bf16 or q8. */
struct wire_part {
    enum wire wire;
    size_t n;
    const float *x;     /* the member's vector; may change meanwhile */
    const float *R;     /* the reference */
    float *r;           /* owed */
    double share;       /* of the mean, above 0; all members' shares make 1 */
};

/* A member that does not own the slice: out = Q(x - R + r / share), and r the error.
 * False: x had NaN or Inf, which counted as R. out and in are aligned to 4 bytes. */
bool wire_send(const struct wire_part *part, void *out);

/* The owner gathers in r: its own part, then the parts of all senders, always in the same
 * order, */
bool wire_own(const struct wire_part *part);        /* false as wire_send */
void wire_add(const struct wire_part *part, const void *in, double share);

/* and settles: out = Q(r), which goes to all, and r the error. */
void wire_settle(const struct wire_part *part, void *out);

/* All, with the same bits: c = R + in. c may be R. */
void wire_take(enum wire wire, float *c, const float *R, const void *in, size_t n);

#endif
