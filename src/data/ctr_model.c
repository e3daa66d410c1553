/* SPDX-License-Identifier: MIT */
/* The planted model of click logs. Nothing is stored per category: all weights are hashes
 * of the model's seed, the field and the category's rank, so a field may have a billion
 * of them.
 *
 *   category    of field f: rank r of n, from the power law with density x^-zipf on
 *               [1, n + 1), rounded down: close to Zipf's law, and its inverse is one
 *               pow()
 *   dense       exp(mean + spread * normal), rounded down; column 2 is shifted so that it
 *               can be negative; some are missing
 *   logit       bias
 *               + sum over fields of a weight that shrinks with the rank's logarithm
 *                 (rare categories weigh little, so that few rows suffice to come close
 *                 to the bound)
 *               + sum over 8 pairs of fields of the product of two small latent vectors,
 *                 which factorization machines and dot products of embeddings can learn
 *               + for each dense column a slope, for some a square, in log(1 + x)
 *   click       with probability 1 / (1 + exp(-logit - e)), where e is one of 8 values
 *               with equal chance: the eighths' middles of a normal distribution times
 *               `noise`. So a row's probability is the mean over 8, exactly, and the best
 *               log loss that can be reached from the row alone is known.
 *
 * The bias is found by bisection over BIAS_ROWS rows so that clicks have the wished
 * share. All depends on options.model, not options.seed. */
#include "data/ctr.h"

#include <math.h>

enum { BIAS_ROWS = 20000, LATENT = 4 };

static const double eighths[CTR_NOISES] = {-1.5341, -0.8871, -0.4888, -0.1573,
                                           0.1573,  0.4888,  0.8871,  1.5341};

static const unsigned char pairs[CTR_PAIRS][2] = {
    {0, 7}, {1, 12}, {2, 20}, {3, 9}, {4, 17}, {5, 23}, {8, 14}, {11, 25}};

static uint64_t mix(uint64_t z)
{
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static uint64_t bits_of(const struct ctr_model *m, uint64_t what, uint64_t rank)
{
    return mix(m->key + what * UINT64_C(0x9e3779b97f4a7c15) + mix(rank + 1));
}

static double part(uint64_t bits, int i)        /* -1 to 1 */
{
    return (double)(int16_t)(uint16_t)(bits >> 16 * i) * 0x1p-15;
}

static void find_bias(struct ctr_model *m, double positive)
{
    static _Thread_local double logits[BIAS_ROWS];
    struct ctr_row row;
    struct rng rng;
    double low = -40, high = 40;
    rng_init(&rng, m->key);
    for (int i = 0; i < BIAS_ROWS; i++) {
        ctr_draw(m, &rng, &row);
        logits[i] = ctr_logit(m, &row);
    }
    for (int i = 0; i < 40; i++) {
        double middle = (low + high) / 2, sum = 0;
        for (int k = 0; k < BIAS_ROWS; k++)
            sum += ctr_probability(m, logits[k] + middle);
        if (sum / BIAS_ROWS < positive)
            low = middle;
        else
            high = middle;
    }
    m->bias = low;
}

void ctr_model_init(struct ctr_model *model, const struct ctr_options *options)
{
    *model = (struct ctr_model){.key = mix(options->model ^ UINT64_C(0x637472)),
                                .zipf = options->zipf, .n_noises = CTR_NOISES};
    for (int i = 0; i < CTR_NOISES; i++)
        model->noises[i] = options->noise * eighths[i];
    if (options->noise == 0)
        model->n_noises = 1;
    for (int i = 0; i < CTR_FIELDS; i++) {
        double share = 1 - 0.9 * (i * 7 % CTR_FIELDS) / (CTR_FIELDS - 1);
        double size = ceil(pow((double)options->categories, share));
        model->fields[i].size = size < 3 ? 3 : (int64_t)size;
        double n = (double)model->fields[i].size + 1, zipf = model->zipf;
        model->fields[i].reach = zipf == 1 ? log(n) : pow(n, 1 - zipf) - 1;
        model->fields[i].power = zipf == 1 ? 0 : 1 / (1 - zipf);
    }
    for (int i = 0; i < CTR_DENSE; i++) {
        uint64_t bits = bits_of(model, 1000, (uint64_t)i);
        model->dense[i].mean = 1.5 + part(bits, 0);
        model->dense[i].spread = 1 + 0.5 * part(bits, 1);
        model->dense[i].weight = 0.3 * part(bits, 2);
        model->dense[i].square = i % 5 == 2 ? 0.1 * part(bits, 3) : 0;
        model->dense[i].missing = i % 3 == 0 ? 0.02 : 0.02 * i;
    }
    find_bias(model, options->positive);
}

void ctr_draw(const struct ctr_model *m, struct rng *rng, struct ctr_row *row)
{
    for (int i = 0; i < CTR_DENSE; i++) {
        double x = exp(m->dense[i].mean + m->dense[i].spread * rng_normal(rng));
        row->dense[i] = (int64_t)x - (i == 1 ? 3 : 0);
        row->missing[i] = rng_uniform(rng) < m->dense[i].missing;
    }
    for (int i = 0; i < CTR_FIELDS; i++) {
        double x = rng_uniform(rng) * m->fields[i].reach;
        x = m->zipf == 1 ? exp(x) : pow(1 + x, m->fields[i].power);
        int64_t rank = x < 9e15 ? (int64_t)x - 1 : INT64_MAX;
        int64_t last = m->fields[i].size - 1;
        row->ranks[i] = (uint32_t)(rank < 0 ? 0 : rank > last ? last : rank);
    }
}

static double weight(const struct ctr_model *m, int field, uint32_t rank)
{
    uint64_t bits = bits_of(m, (uint64_t)field, rank);
    double w = part(bits, 0) + part(bits, 1) + part(bits, 2);
    int octave = 31 - __builtin_clz(rank | 1);
    return 0.5 * w / (1 + 0.25 * octave);
}

double ctr_logit(const struct ctr_model *m, const struct ctr_row *row)
{
    double sum = m->bias;
    for (int i = 0; i < CTR_FIELDS; i++)
        sum += weight(m, i, row->ranks[i]);
    for (int i = 0; i < CTR_PAIRS; i++) {
        int f = pairs[i][0], g = pairs[i][1];
        uint64_t a = bits_of(m, 100 + (uint64_t)f, row->ranks[f]);
        uint64_t b = bits_of(m, 100 + (uint64_t)g, row->ranks[g]);
        double product = 0;
        for (int k = 0; k < LATENT; k++)
            product += part(a, k) * part(b, k);
        sum += 0.6 * product;
    }
    for (int i = 0; i < CTR_DENSE; i++) {
        if (row->missing[i])
            continue;
        double x = (double)row->dense[i];
        double away = (x < 0 ? -log(1 - x) : log(1 + x)) - m->dense[i].mean;
        sum += m->dense[i].weight * away + m->dense[i].square * away * away;
    }
    return sum;
}

double ctr_probability(const struct ctr_model *m, double logit)
{
    double sum = 0;
    for (int i = 0; i < m->n_noises; i++)
        sum += 1 / (1 + exp(-logit - m->noises[i]));
    return sum / m->n_noises;
}
