/* SPDX-License-Identifier: MIT */
/* The rules of a round that all fabrics share. They are pure: the members' offers go in,
 * the ruling comes out, and a test goes through all small cases (tests/test_ruling.c).
 *
 *   1. A round is of the members at work; where no member is at work, of those at their
 *      end. It closes when all of these have arrived, or, if it is a mean, enough.
 *   2. One STATE among the arrivals makes the round a state. Its source is the member
 *      that offers one with the highest priority; of several, the lowest rank.
 *   3. Members of a mean, and of any final round, must ask for the same. In a state among
 *      means the others only answer a call, and may bring anything.
 *   4. A vector that is not finite has no share. The other vectors share by their
 *      weights.
 *   5. Elastic exchanges arrive only because a STATE has called them. When the STATE's
 *      trainer has gone, their round is void. */
#include "fabric/ruling.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

void weights_to_shares(double *weight, int n)
{
    double most = 0, total = 0;
    int exponent;
    for (int k = 0; k < n; k++)
        if (weight[k] > most)
            most = weight[k];
    frexp(most, &exponent);
    for (int k = 0; k < n; k++)
        total += ldexp(weight[k], -exponent);
    for (int k = 0; k < n; k++)
        weight[k] = most > 0 ? ldexp(weight[k], -exponent) / total : 1.0 / n;
}

void gathering_add(struct gathering *g, enum standing standing, int members, int arrived)
{
    if (members && standing > g->of)
        *g = (struct gathering){.of = standing};
    if (members && standing && standing == g->of) {
        g->members += members;
        g->arrived += arrived;
    }
}

enum { SHOWN = 200 };       /* characters of a manifest's line */

/* The place of a state's source; -1: no STATE has arrived. */
static int source_of(const struct offer *offers, int n)
{
    int best = -1;

    for (int i = 0; i < n; i++) {
        const struct offer *a = &offers[i], *b = &offers[best < 0 ? i : best];
        if (a->kind == EXCHANGE_STATE &&
            (best < 0 || a->priority > b->priority ||
             (a->priority == b->priority && a->rank < b->rank)))
            best = i;
    }
    return best;
}

/* The number of good offers. */
static int share_out(const struct offer *offers, int n, double *shares)
{
    int good = 0;

    for (int i = 0; i < n; i++)
        if (!offers[i].bad)
            shares[good++] = offers[i].weight;
    weights_to_shares(shares, good);
    for (int i = n - 1, left = good; i >= 0; i--)
        shares[i] = offers[i].bad ? 0 : shares[--left];
    return good;
}

static bool any_elastic(const struct offer *offers, int n)
{
    for (int i = 0; i < n; i++)
        if (offers[i].kind == EXCHANGE_ELASTIC)
            return true;
    return false;
}

struct ruling round_rule(const struct offer *offers, struct ruling_of of, double *shares)
{
    int arrived = of.arrived;
    int source = source_of(offers, arrived);
    struct ruling ruling = {.what = RULING_VOID, .one_reference = true};

    if (!arrived || (source < 0 && (of.alone || any_elastic(offers, arrived))))
        return ruling;
    if (arrived < of.members && !(of.enough && source < 0 && !offers[0].final)) {
        ruling.what = RULING_WAITS;
        return ruling;
    }
    ruling.n = offers[0].n;
    for (int i = 1; i < arrived; i++) {
        if ((source < 0 || offers[0].final) && offers_differ(&offers[0], &offers[i])) {
            ruling.what = RULING_DIFFER;
            ruling.place = i;
            return ruling;
        }
        ruling.n = offers[i].n < ruling.n ? offers[i].n : ruling.n;
        ruling.one_reference &= offers[i].refers == offers[0].refers;
    }
    if (source >= 0) {
        ruling.what = RULING_STATE;
        ruling.place = source;
        return ruling;
    }
    ruling.what = share_out(offers, arrived, shares) ? RULING_MEAN : RULING_EMPTY;
    return ruling;
}

bool offers_differ(const struct offer *a, const struct offer *b)
{
    return a->n != b->n || a->agree != b->agree;
}

/* A long mean comes in pieces, and its members agree on the rest of it. */
static uint64_t floats_of(const struct offer *offer)
{
    return offer->agree > offer->n ? offer->agree : offer->n;
}

void offers_say(char *text, size_t room, const struct offer *a, const struct offer *b)
{
    static const char *const ends[] = {"nothing", "the local version", "the mean",
                                       "the central version"};
    enum { N_ENDS = sizeof ends / sizeof *ends };
    if (a->agree != b->agree && a->final && a->agree < N_ENDS && b->agree < N_ENDS)
        snprintf(text, room,
                 "the trainers' ends differ: rank %d asks for %s, rank %d for %s; all "
                 "must ask for the same in the end",
                 a->rank, ends[a->agree], b->rank, ends[b->agree]);
    else
        snprintf(text, room,
                 "the trainers' rounds differ: rank %d brings %llu floats, rank %d %llu; "
                 "all must bring as many",
                 a->rank, (unsigned long long)floats_of(a), b->rank,
                 (unsigned long long)floats_of(b));
}

bool manifests_differ(const char *a, const char *b, struct differing *out)
{
    for (;;) {
        size_t n = strcspn(a, "\n"), m = strcspn(b, "\n");
        if (n != m || memcmp(a, b, n)) {
            out->text[0] = a;
            out->text[1] = b;
            out->n[0] = n < SHOWN ? (int)n : SHOWN;
            out->n[1] = m < SHOWN ? (int)m : SHOWN;
            return true;
        }
        if (!a[n] && !b[m])
            return false;
        a += n + (a[n] != 0);
        b += m + (b[m] != 0);
    }
}
