/* SPDX-License-Identifier: MIT */
/* The loops of loops.h, which has their formulas, and why races are allowed here.
 *
 * Plain loops that the compiler turns into vectors, and vectors written out where sums
 * must stay in registers. This file is compiled once for each instruction set, with LOOPS
 * naming the table. Fused multiply-adds are welcome; no order of a sum is promised
 * between sets.
 *
 * Invariants:
 *  1 NaN is never hidden: relu passes it on (x < 0 ? 0 : x), so a loss tells.
 *  2 Rows of the commonest width get loops of their own by a constant argument
 *    (`WIDTHS`); the rows of later ids are asked for while earlier ones are worked on.
 *  3 Written-out vectors are as wide as a register (`WIDE`): gcc takes wider ones apart
 *    and keeps the parts in memory.
 *  4 The dots of an example are rows of T T': T is turned once, so that one vector holds
 *    the k-th floats of WIDE vectors, and no sum runs across lanes. TILE rows by LANES
 *    columns are in registers at once. Row i's surplus columns are overwritten by row i +
 *    1, whose last columns are therefore written before its first.
 *
 * Runs on whichever thread holds the data; keeps no state. */
#include "nn/loops.h"


/* floats of a register */
#if defined(__AVX512F__)
enum { WIDE = 16 };
#elif defined(__AVX__)
enum { WIDE = 8 };
#else
enum { WIDE = 4 };
#endif
enum { TILE = 4 };

/* aligned(4): a caller's floats may lie anywhere */
typedef float lanes __attribute__((vector_size(4 * WIDE), aligned(4), may_alias));

#define INLINE static inline __attribute__((always_inline))

/* The body with width a constant for the commonest one. */
#define WIDTHS(width, call)                                                              \
    do {                                                                                 \
        enum { SIXTEEN = 16 };                                                           \
        if ((width) == SIXTEEN) {                                                        \
            const size_t WIDTH = SIXTEEN;                                                \
            call;                                                                        \
        } else {                                                                         \
            const size_t WIDTH = (width);                                                \
            call;                                                                        \
        }                                                                                \
    } while (0)

extern const struct loops LOOPS;

INLINE lanes read_at(const float *p)
{
    return *(const lanes *)p;
}

INLINE void write_at(float *p, lanes x)
{
    *(lanes *)p = x;
}

INLINE float sum_of(lanes x)
{
    float sum = 0;
    for (int i = 0; i < WIDE; i++)
        sum += x[i];
    return sum;
}

/* --- layers --- */

static void fill(float *restrict y, size_t ld, const float *restrict b, size_t n,
                 size_t width)
{
    for (size_t i = 0; i < n; i++) {
        float *row = y + i * ld;
        for (size_t k = 0; k < width; k++)
            row[k] = b[k];
    }
}

static void relu(float *y, size_t ld, size_t n, size_t width)
{
    for (size_t i = 0; i < n; i++) {
        float *row = y + i * ld;
        for (size_t k = 0; k < width; k++)
            row[k] = row[k] < 0 ? 0 : row[k];
    }
}

static void mask(float *d, size_t ld_d, const float *y, size_t ld_y, size_t n,
                 size_t width, float *restrict sums)
{
    for (size_t k = 0; k < width; k++)
        sums[k] = 0;
    for (size_t i = 0; i < n; i++) {
        float *restrict row = d + i * ld_d;
        if (y) {
            const float *restrict act = y + i * ld_y;
            for (size_t k = 0; k < width; k++) {
                float x = act[k] > 0 ? row[k] : 0;
                row[k] = x;
                sums[k] += x;
            }
        } else {
            for (size_t k = 0; k < width; k++)
                sums[k] += row[k];
        }
    }
}

static void add(float *to, const float *x, size_t n, float alpha, float beta)
{
    if (beta == 0)
        for (size_t k = 0; k < n; k++)
            to[k] = alpha * x[k];
    else
        for (size_t k = 0; k < n; k++)
            to[k] = beta * to[k] + alpha * x[k];
}

static void dot(float *y, size_t ld_y, const float *x, size_t ld_x, const float *w,
                size_t n, size_t width)
{
    for (size_t i = 0; i < n; i++) {
        const float *row = x + i * ld_x;
        lanes sum = {0};
        size_t k = 0;
        for (; k + WIDE <= width; k += WIDE)
            sum += read_at(row + k) * read_at(w + k);
        float rest = sum_of(sum);
        for (; k < width; k++)
            rest += row[k] * w[k];
        y[i * ld_y] += rest;
    }
}

static void outer(float *restrict dx, size_t ld_dx, const float *d, size_t ld_d,
                  const float *restrict w, size_t n, size_t width)
{
    for (size_t i = 0; i < n; i++) {
        float *row = dx + i * ld_dx;
        float di = d[i * ld_d];
        for (size_t k = 0; k < width; k++)
            row[k] = di * w[k];
    }
}

static void weigh(float *restrict sums, const float *d, size_t ld_d,
                  const float *restrict x, size_t ld_x, size_t n, size_t width)
{
    for (size_t k = 0; k < width; k++)
        sums[k] = 0;
    for (size_t i = 0; i < n; i++) {
        const float *row = x + i * ld_x;
        float di = d[i * ld_d];
        for (size_t k = 0; k < width; k++)
            sums[k] += di * row[k];
    }
}

/* --- dlrm --- */

INLINE void prefetch(const float *row, size_t width)
{
    for (size_t k = 0; k < width; k += 16)
        __builtin_prefetch(row + k);
}

/* The first id of bag f, counted from the example's first. */
INLINE size_t bag_at(const struct bags *bags, int f)
{
    return bags->offsets ? bags->offsets[f] - bags->offsets[0] : (size_t)f;
}

INLINE void pool_of(float *restrict t, size_t stride, const float *restrict tables,
                    const size_t width, const struct bags *bags)
{
    for (int f = 0; f < bags->n_fields; f++, t += stride) {
        size_t end = bag_at(bags, f + 1);
        for (size_t c = 0; c < width; c++)
            t[c] = 0;
        for (size_t k = bag_at(bags, f); k < end; k++) {
            const float *row = tables + bags->rows[k] * width;
            prefetch(tables + bags->rows[k + ROWS_AHEAD] * width, width);
            float value = bags->values ? bags->values[k] : 1;
            for (size_t c = 0; c < width; c++)
                t[c] += value * row[c];
        }
    }
}

static void pool(float *t, size_t stride, const float *tables, size_t width,
                 const struct bags *bags)
{
    WIDTHS(width, pool_of(t, stride, tables, WIDTH, bags));
}

INLINE void scatter_of(float *restrict tables, const size_t width,
                       const struct bags *bags, const float *restrict dt, size_t stride,
                       float alpha)
{
    for (int f = 0; f < bags->n_fields; f++, dt += stride) {
        size_t end = bag_at(bags, f + 1);
        for (size_t k = bag_at(bags, f); k < end; k++) {
            float *row = tables + bags->rows[k] * width;
            prefetch(tables + bags->rows[k + ROWS_AHEAD] * width, width);
            float step = bags->values ? alpha * bags->values[k] : alpha;
            for (size_t c = 0; c < width; c++)
                row[c] += step * dt[c];
        }
    }
}

static void scatter(float *tables, size_t width, const struct bags *bags, const float *dt,
                    size_t stride, float alpha)
{
    WIDTHS(width, scatter_of(tables, WIDTH, bags, dt, stride, alpha));
}

/* turned (width, room): turned[k][i] = t[i][k], zeros from n on. */
INLINE void turn(float *restrict turned, size_t room, const float *restrict t,
                 size_t stride, size_t n, const size_t width)
{
    for (size_t k = 0; k < width; k++) {
        for (size_t i = 0; i < n; i++)
            turned[k * room + i] = t[i * stride + k];
        for (size_t i = n; i < room; i++)
            turned[k * room + i] = 0;
    }
}

/* Columns [j, j + LANES) of rows [i, i + count), each row's before the next one's. */
INLINE void dots_tile(float *restrict out, const float *restrict t, size_t stride,
                      const float *restrict turned, size_t room, const size_t width,
                      size_t i, const size_t count, size_t j)
{
    enum { VECTORS = LANES / WIDE };
    lanes sum[TILE][VECTORS] = {{{0}}};
    for (size_t k = 0; k < width; k++)
        for (size_t v = 0; v < VECTORS; v++) {
            lanes tj = read_at(turned + k * room + j + v * WIDE);
            for (size_t r = 0; r < count; r++)
                sum[r][v] += t[(i + r) * stride + k] * tj;
        }
    for (size_t r = 0; r < count; r++)
        for (size_t v = 0; j < i + r && v < VECTORS; v++)
            write_at(out + (i + r) * (i + r - 1) / 2 + j + v * WIDE, sum[r][v]);
}

INLINE void dots_of(float *restrict out, const float *restrict t, size_t stride, size_t n,
                    const size_t width, float *restrict turned)
{
    const size_t room = (n + LANES - 1) / LANES * LANES;
    size_t i = 1;
    turn(turned, room, t, stride, n, width);
    for (; i + TILE <= n; i += TILE)
        for (size_t j = (i + TILE - 2) / LANES * LANES + LANES; j > 0; j -= LANES)
            dots_tile(out, t, stride, turned, room, width, i, TILE, j - LANES);
    for (; i < n; i++)
        for (size_t j = (i - 1) / LANES * LANES + LANES; j > 0; j -= LANES)
            dots_tile(out, t, stride, turned, room, width, i, 1, j - LANES);
}

static void dots(float *out, const float *t, size_t stride, size_t n, size_t width,
                 float *turned)
{
    WIDTHS(width, dots_of(out, t, stride, n, WIDTH, turned));
}

/* Rows [i, i + count) of dt begun, and their share added to the rows before: each t[j]
 * and dt[j] is fetched once for all of them. */
INLINE void back_rows(float *restrict dt, const float *restrict g,
                      const float *restrict t, size_t stride, size_t i,
                      const size_t count)
{
    const float *gi[TILE];
    lanes ti[TILE], sum[TILE];
    for (size_t r = 0; r < count; r++) {
        gi[r] = g + (i + r) * (i + r - 1) / 2;
        ti[r] = read_at(t + (i + r) * stride);
        sum[r] = (lanes){0};
    }
    for (size_t j = 0; j < i; j++) {
        lanes tj = read_at(t + j * stride), dj = read_at(dt + j * stride);
        for (size_t r = 0; r < count; r++) {
            sum[r] += gi[r][j] * tj;
            dj += gi[r][j] * ti[r];
        }
        write_at(dt + j * stride, dj);
    }
    for (size_t r = 1; r < count; r++)
        for (size_t q = 0; q < r; q++) {
            sum[r] += gi[r][i + q] * ti[q];
            sum[q] += gi[r][i + q] * ti[r];
        }
    for (size_t r = 0; r < count; r++)
        write_at(dt + (i + r) * stride, sum[r]);
}

static void dots_back(float *dt, const float *g, const float *t, size_t stride, size_t n)
{
    for (size_t c = 0; c < stride; c += WIDE) {
        size_t i = 0;
        for (; i + TILE <= n; i += TILE)
            back_rows(dt + c, g, t + c, stride, i, TILE);
        for (; i < n; i++)
            back_rows(dt + c, g, t + c, stride, i, 1);
    }
}

/* --- linear and fm --- */

INLINE float factors_of(float *restrict sums, float *restrict products,
                        const float *restrict tables, const size_t width,
                        const struct bags *bags)
{
    size_t n = bag_at(bags, bags->n_fields), row_width = 1 + width;
    float score = 0, pairs = 0;
    for (size_t c = 0; c < 2 * width; c++)
        sums[c] = 0;
    for (size_t k = 0; k < n; k++) {
        const float *row = tables + bags->rows[k] * row_width;
        prefetch(tables + bags->rows[k + ROWS_AHEAD] * row_width, row_width);
        float value = bags->values ? bags->values[k] : 1;
        score += value * row[0];
        float *to = products ? products + k * width : NULL;
        for (size_t c = 0; c < width; c++) {
            float x = value * row[1 + c];
            if (to)
                to[c] = x;
            sums[c] += x;
            sums[width + c] += x * x;
        }
    }
    for (size_t c = 0; c < width; c++)
        pairs += sums[c] * sums[c] - sums[width + c];
    return score + 0.5f * pairs;
}

static float factors(float *sums, float *products, const float *tables, size_t width,
                     const struct bags *bags)
{
    float score;
    WIDTHS(width, score = factors_of(sums, products, tables, WIDTH, bags));
    return score;
}

INLINE void factors_back_of(float *restrict tables, const size_t width,
                            const struct bags *bags, const float *restrict sums,
                            const float *restrict products, float d)
{
    size_t n = bag_at(bags, bags->n_fields), row_width = 1 + width;
    for (size_t k = 0; k < n; k++) {
        float *row = tables + bags->rows[k] * row_width;
        prefetch(tables + bags->rows[k + ROWS_AHEAD] * row_width, row_width);
        float step = bags->values ? d * bags->values[k] : d;
        row[0] += step;
        for (size_t c = 0; c < width; c++)
            row[1 + c] += step * (sums[c] - products[k * width + c]);
    }
}

static void factors_back(float *tables, size_t width, const struct bags *bags,
                         const float *sums, const float *products, float d)
{
    WIDTHS(width, factors_back_of(tables, WIDTH, bags, sums, products, d));
}

/* --- optimizers --- */

/* ftrl: sums of squares that leave room in a float, and the count from which a row's
 * older inputs weigh half */
#define MOST_SQUARES 1e38f
#define MOST_MET ((float)(1 << 20))

static void ftrl(float *restrict w, const float *restrict g, float *restrict n,
                 float *restrict z, size_t count, const struct ftrl *f)
{
    struct ftrl c = *f;
    float square = c.scale * c.scale, l1 = c.l1 * c.scale;
    for (size_t k = 0; k < count; k++) {
        float had = n[k], sums = had + g[k] * g[k], at = w[k];
        float now = sums > MOST_SQUARES ? MOST_SQUARES : sums;
        float held =
            square * c.l2 + c.scale * (c.scale * c.beta + __builtin_sqrtf(had)) / c.alpha;
        float more = c.scale * (__builtin_sqrtf(now) - __builtin_sqrtf(had)) / c.alpha;
        /* w is authoritative: others may have moved it since; z is the rest where it is 0
         */
        float sum = at > 0 ? -at * held - l1 : at < 0 ? -at * held + l1 : z[k];
        sum += g[k] - more * at;
        /* NaN stays */
        float pull = sum > l1 ? sum - l1 : sum < -l1 ? sum + l1 : sum - sum;
        float rest = held + more, moved = pull < 0 || pull > 0 ? -pull / rest : pull;
        /* without beta, l2 and gradients a float can square, nothing says how far to step
         */
        bool stays = rest == 0;
        n[k] = now;
        z[k] = stays ? z[k] : pull < 0 || pull > 0 ? 0 : sum;
        w[k] = stays ? at : moved;
    }
}

static float ftrl_meet(float *restrict w, float *restrict met,
                       const float *restrict inputs, size_t width)
{
    float had = met[0] > 0 ? __builtin_sqrtf(met[1] / met[0]) : 1;
    if (!inputs || !(inputs[1] > 0))
        return had;
    /* a larger float would not count on */
    float kept = met[0] > MOST_MET ? 0.5f : 1;
    met[0] = kept * met[0] + inputs[0];
    met[1] = kept * met[1] + inputs[1];
    float now = __builtin_sqrtf(met[1] / met[0]);
    if (now < had || now > had)
        for (size_t k = 0; k < width; k++)
            w[k] *= had / now;
    return now;
}

#define TEXT(x) TEXT_OF(x)
#define TEXT_OF(x) #x

const struct loops LOOPS = {
    .name = TEXT(LOOPS),
    .fill = fill,
    .relu = relu,
    .mask = mask,
    .add = add,
    .dot = dot,
    .outer = outer,
    .weigh = weigh,
    .pool = pool,
    .scatter = scatter,
    .dots = dots,
    .dots_back = dots_back,
    .factors = factors,
    .factors_back = factors_back,
    .ftrl = ftrl,
    .ftrl_meet = ftrl_meet,
};
