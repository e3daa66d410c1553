/* SPDX-License-Identifier: MIT */
/* Agreements: small values of all trainers at work become one result, the same for
 * all. */
#ifndef AGREE_H
#define AGREE_H

#include "base/base.h"

enum { AGREE_BYTES = 4096, AGREE_MOST = AGREE_BYTES / sizeof(double) };

enum agree_kind { AGREE_NONE, AGREE_MEAN, AGREE_ANY, AGREE_BROADCAST };

/* The offer of a trainer, or the result. */
struct agree_value {
    uint32_t kind;              /* enum agree_kind */
    uint32_t status;            /* of a result, or of a giver that cannot give:
                                   descant_status. If it is not OK, the bytes are text,
                                   with its end */
    int32_t from;               /* BROADCAST: the rank that gives */
    uint32_t n;                 /* bytes */
    /* MEAN: doubles; ANY: one byte, 0 or 1; BROADCAST: of `from` alone */
    _Alignas(double) unsigned char bytes[AGREE_BYTES];
};

static inline size_t agree_size(const struct agree_value *value)
{
    return offsetof(struct agree_value, bytes) + value->n;
}

/* Whether the numbers of an offer, or of a result, are right. The bytes are not read. */
bool agree_is_good(const struct agree_value *value, bool result);

/* Whether they are of one agreement: of the same kind, and as many values or the same
 * giver. */
bool agree_alike(const struct agree_value *a, const struct agree_value *b);

/* A trainer at work, and what it has offered. */
struct agree_offer {
    int rank;
    uint64_t number;            /* of the agreement, by the trainer's count; 0: it has had
                                   no result yet */
    const struct agree_value *value;        /* NULL: none yet */
    bool in;                    /* set by agree_fold: the result is of this offer, too */
};

/* Makes the result of agreement `number` of the offers of all trainers at work, ascending
 * by rank. A trainer whose number is another one has come late, or was away: its offer
 * counts if it is like those of the others, and waits for a later agreement if it is not.
 * False: offers are missing. */
bool agree_fold(uint64_t number, struct agree_offer *offers, int n,
                struct agree_value *result);

/* "a mean of 3 values", "any", "a broadcast from trainer 2" */
void agree_say(const struct agree_value *value, char *text, size_t room);

#endif
