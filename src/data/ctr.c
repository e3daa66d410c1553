/* SPDX-License-Identifier: MIT */
/* Click logs in Criteo's format from the planted model of ctr_model.c: a row is drawn,
 * its probability computed, a click drawn with it, and the row written. The summary has
 * the mean of
 *
 *   -(p log p + (1 - p) log(1 - p))
 *
 * over the rows: the expected log loss of a model that knows every p. A category's token
 * is 8 hexadecimal digits, a permutation of 32 bits applied to its rank, so no two
 * categories of a field share a token; in every fourth field the second most frequent
 * category is the empty one.
 *
 * The same options give the same bytes wherever exp, log and pow round alike (one C
 * library on one kind of processor). */
#include "data/ctr.h"

#include <errno.h>
#include <math.h>
#include <string.h>

enum { BUFFER = 1 << 16, ROW_ROOM = 1024 };

struct ctr_options ctr_options_default(void)
{
    return (struct ctr_options){.rows = 1000000, .seed = 1, .model = 1, .zipf = 1.1,
                                .categories = 1000000, .noise = 0.3, .positive = 0.25};
}

/* Within these ranges the casts of the model's numbers to integers hold, which no later
 * code tests. */
static descant_status check(const struct ctr_options *o, const struct log *log)
{
    if (!(o->zipf >= 0 && o->zipf <= 10))
        return log_fail(log, DESCANT_INVALID, "zipf %g: allowed is 0 to 10", o->zipf);
    if (o->categories < 3 || o->categories > 1000000000)
        return log_fail(log, DESCANT_INVALID,
                        "%lld categories: allowed is 3 to 1000000000",
                        (long long)o->categories);
    if (!(o->noise >= 0 && o->noise <= 10))
        return log_fail(log, DESCANT_INVALID, "noise %g: allowed is 0 to 10", o->noise);
    if (!(o->positive > 0 && o->positive < 1))
        return log_fail(log, DESCANT_INVALID,
                        "a share of %g clicks: allowed is between 0 and 1", o->positive);
    return DESCANT_OK;
}

static char *put_int(char *at, int64_t value)
{
    char digits[24];
    int n = 0;
    uint64_t rest = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    if (value < 0)
        *at++ = '-';
    do
        digits[n++] = (char)('0' + rest % 10);
    while (rest /= 10);
    while (n > 0)
        *at++ = digits[--n];
    return at;
}

/* Writes the row's line at `at`, where ROW_ROOM bytes are free; returns the line's
 * end. */
static char *put_row(char *at, const struct ctr_model *m, const struct ctr_row *row,
                     bool click)
{
    *at++ = click ? '1' : '0';
    for (int i = 0; i < CTR_DENSE; i++) {
        *at++ = '\t';
        if (!row->missing[i])
            at = put_int(at, row->dense[i]);
    }
    for (uint32_t i = 0; i < CTR_FIELDS; i++) {
        *at++ = '\t';
        if (i % 4 == 2 && row->ranks[i] == 1)
            continue;
        uint32_t x = row->ranks[i] + i * 0x9e3779b9u + (uint32_t)m->key;
        x = (x ^ x >> 16) * 0x7feb352du;        /* a permutation */
        x = (x ^ x >> 15) * 0x846ca68bu;
        x ^= x >> 16;
        for (int digit = 28; digit >= 0; digit -= 4)
            *at++ = "0123456789abcdef"[x >> digit & 15];
    }
    *at++ = '\n';
    return at;
}

/* The expected log loss of a row whose probability p is known. */
static double entropy(double p)
{
    return (p > 0 ? -p * log(p) : 0) + (p < 1 ? -(1 - p) * log1p(-p) : 0);
}

descant_status ctr_generate(FILE *out, const struct ctr_options *options,
                            struct ctr_summary *summary, const struct log *log)
{
    struct ctr_model model;
    struct ctr_row row;
    struct rng rng;
    struct ctr_summary sum = {.rows = options->rows};
    char buffer[BUFFER], *at = buffer;
    descant_status status = check(options, log);
    if (status != DESCANT_OK)
        return status;
    ctr_model_init(&model, options);
    rng_init(&rng, options->seed);
    errno = 0;
    bool good = true;
    for (uint64_t i = 0; i < options->rows && good; i++) {
        ctr_draw(&model, &rng, &row);
        double p = ctr_probability(&model, ctr_logit(&model, &row));
        bool click = rng_uniform(&rng) < p;
        sum.clicks += click;
        sum.best_logloss += entropy(p);
        at = put_row(at, &model, &row, click);
        if (at - buffer < BUFFER - ROW_ROOM && i + 1 < options->rows)
            continue;
        good = fwrite(buffer, 1, (size_t)(at - buffer), out) == (size_t)(at - buffer);
        at = buffer;
    }
    if (!good || fflush(out) != 0)
        return log_fail(log, DESCANT_SYSTEM, "rows cannot be written: %s",
                        strerror(errno));
    if (sum.rows)
        sum.best_logloss /= (double)sum.rows;
    *summary = sum;
    return DESCANT_OK;
}
