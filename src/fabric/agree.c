/* SPDX-License-Identifier: MIT */
/* The rule of an agreement, which all fabrics share. It is pure: offers in, result out.
 *
 *   1. Every trainer at work has offered, or there is no result yet. A trainer that has
 *      died, left or begun its finish is not at work.
 *   2. The offers of this number must be alike: the same kind, and the same number of
 *      values or the same giver. Else the result is MISMATCH, for all, and names two that
 *      differ.
 *   3. An offer without this number is in if it is like the others, so that a newcomer's
 *      first call is the one that the others make next, and else waits. Where no offer
 *      has this number the one of the lowest rank says what the others must be like.
 *   4. The giver of a broadcast that cannot give offers its error, which is the result.
 *   5. Values are added in the order of ranks, so all who fold the same offers get the
 *      same bits. */
#include "fabric/agree.h"

#include <string.h>

bool agree_is_good(const struct agree_value *value, bool result)
{
    if (value->n > AGREE_BYTES || value->kind < AGREE_MEAN ||
        value->kind > AGREE_BROADCAST || value->status > DESCANT_ENDED)
        return false;
    if (value->kind == AGREE_BROADCAST && value->from < 0)
        return false;
    if (value->status != DESCANT_OK)
        return (result || value->kind == AGREE_BROADCAST) && value->n > 0;
    if (value->kind == AGREE_MEAN)
        return value->n > 0 && value->n % sizeof(double) == 0;
    return value->kind == AGREE_BROADCAST || value->n == 1;
}

void agree_say(const struct agree_value *value, char *text, size_t room)
{
    size_t n = value->n / sizeof(double);

    if (value->kind == AGREE_MEAN)
        snprintf(text, room, "a mean of %zu value%s", n, n == 1 ? "" : "s");
    else if (value->kind == AGREE_ANY)
        snprintf(text, room, "any");
    else
        snprintf(text, room, "a broadcast from trainer %d", (int)value->from);
}

bool agree_alike(const struct agree_value *a, const struct agree_value *b)
{
    return a->kind == b->kind && (a->kind != AGREE_MEAN || a->n == b->n) &&
           (a->kind != AGREE_BROADCAST || a->from == b->from);
}

static void fail(struct agree_value *result, descant_status status)
{
    result->status = (uint32_t)status;
    result->n = (uint32_t)strlen((char *)result->bytes) + 1;
}

static void differ(const struct agree_offer *a, const struct agree_offer *b,
                   struct agree_value *result)
{
    char one[64], other[64];

    agree_say(a->value, one, sizeof one);
    agree_say(b->value, other, sizeof other);
    snprintf((char *)result->bytes, AGREE_BYTES,
             "trainer %d asks for %s, and trainer %d for %s: all trainers make the same "
             "agreements, in the same order", a->rank, one, b->rank, other);
    fail(result, DESCANT_MISMATCH);
}

static void add(struct agree_value *result, const struct agree_value *value)
{
    for (size_t at = 0; at < result->n; at += sizeof(double)) {
        double sum, one;
        memcpy(&sum, result->bytes + at, sizeof sum);
        memcpy(&one, value->bytes + at, sizeof one);
        sum += one;
        memcpy(result->bytes + at, &sum, sizeof sum);
    }
}

static void divide(struct agree_value *result, int n)
{
    for (size_t at = 0; at < result->n; at += sizeof(double)) {
        double sum;
        memcpy(&sum, result->bytes + at, sizeof sum);
        sum /= n;
        memcpy(result->bytes + at, &sum, sizeof sum);
    }
}

/* Of offers that are alike. */
static void combine(const struct agree_offer *offers, int n, struct agree_value *result)
{
    const struct agree_offer *giver = NULL;
    int n_in = 0;

    for (int i = 0; i < n; i++) {
        const struct agree_value *value = offers[i].value;
        if (!offers[i].in)
            continue;
        n_in++;
        if (result->kind == AGREE_MEAN)
            add(result, value);
        else if (result->kind == AGREE_ANY)
            result->bytes[0] |= value->bytes[0] != 0;
        else if (offers[i].rank == result->from)
            giver = &offers[i];
    }
    if (result->kind == AGREE_MEAN)
        divide(result, n_in);
    if (result->kind != AGREE_BROADCAST)
        return;
    if (giver) {
        result->status = giver->value->status;
        result->n = giver->value->n;
        memcpy(result->bytes, giver->value->bytes, result->n);
        return;
    }
    snprintf((char *)result->bytes, AGREE_BYTES,
             "trainer %d, from which this broadcast is to come, is not at work: it has "
             "died, left or finished, or was never there", (int)result->from);
    fail(result, DESCANT_BAD_RANK);
}

bool agree_fold(uint64_t number, struct agree_offer *offers, int n,
                struct agree_value *result)
{
    const struct agree_offer *first = NULL;

    for (int i = 0; i < n; i++) {
        if (!offers[i].value)
            return false;
        if (!first || (first->number != number && offers[i].number == number))
            first = &offers[i];
    }
    if (!first)
        return false;
    *result = (struct agree_value){.kind = first->value->kind, .from = first->value->from,
                                   .n = first->value->n};
    if (result->kind == AGREE_BROADCAST)
        result->n = 0;
    bool strict = first->number != number;
    const struct agree_offer *other = NULL;
    for (int i = 0; i < n; i++) {
        bool counts = strict || offers[i].number == number;
        bool like = agree_alike(offers[i].value, first->value);
        offers[i].in = like || counts;
        if (!like && counts && !other)
            other = &offers[i];
    }
    if (other)
        differ(first, other, result);
    else
        combine(offers, n, result);
    return true;
}
