/* SPDX-License-Identifier: MIT */
/* Segments of a test: names that run_cases finds again, models whose values are their
 * version, and the sums of gradients. */
#include "harness/segments.h"
#include "harness/suite.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

char segment_name[64];

void new_name(void)
{
    static int number;
    snprintf(segment_name, sizeof segment_name, "test-%d-%d-%d", (int)suite_pid,
             (int)getpid(), number++);
}

/* Two parts: "b" of one float, and "w" of the others. All values are the version. */
descant_status try_segment(struct segment **segment, uint64_t n, int slots,
                                         uint64_t bound, uint64_t version)
{
    const struct segment_part parts[] = {{.name = "b", .n = 1},
                                         {.name = "w", .n = n - 1}};
    float *model = calloc(n, sizeof *model);
    ck_assert_ptr_nonnull(model);
    for (uint64_t i = 0; i < n; i++)
        model[i] = (float)version;
    const struct segment_options o = {
        .name = segment_name, .slots = slots, .bound = bound, .parts = parts,
        .n_parts = 2, .model = model, .version = version};
    descant_status status = segment_open(segment, &o);
    free(model);
    return status;
}

struct segment *make_segment(uint64_t n, int slots, uint64_t bound)
{
    struct segment *segment = NULL;
    new_name();
    ck_assert_msg(try_segment(&segment, n, slots, bound, 1) == DESCANT_OK, "%s",
                  descant_last_error());
    return segment;
}

/* The version, or what is left of it that a float can hold. */
float value_of(uint64_t version)
{
    return (float)(version % (1 << 24));
}

void store_model(struct segment *segment, uint64_t version)
{
    float *values = segment_next(segment);
    for (uint64_t i = 0; i < segment_n(segment); i++)
        values[i] = value_of(version);
    segment_store(segment, version);
}

struct descant_ml *attach(void)
{
    struct descant_ml *ml = NULL;
    ck_assert_msg(descant_ml_attach(&ml, segment_name, 0) == DESCANT_OK, "%s",
                  descant_last_error());
    return ml;
}

uint64_t pin_version(struct descant_ml *ml)
{
    struct descant_ml_model model;
    ck_assert_int_eq(descant_ml_pin(ml, &model), DESCANT_OK);
    ck_assert_float_eq(model.values[descant_ml_size(ml) - 1], value_of(model.version));
    return model.version;
}

float added(int number, int i)
{
    return (float)((number * 7 + i * 3) % 11 - 5);
}

void add_numbers(struct descant_ml *ml, int number, uint64_t examples)
{
    struct descant_ml_model is;
    int n = (int)descant_ml_size(ml);
    float *gradient = calloc((size_t)n, sizeof *gradient);
    for (int i = 0; i < n; i++)
        gradient[i] = added(number, i);
    ck_assert_int_eq(descant_ml_pin(ml, &is), DESCANT_OK);
    ck_assert_int_eq(descant_ml_add(ml, gradient, examples), DESCANT_OK);
    free(gradient);
}

void expect_said(const char *part)
{
    ck_assert_msg(strstr(descant_last_error(), part) != NULL, "'%s' says nothing of '%s'",
                  descant_last_error(), part);
}

const float ones[FIVE] = {1, 1, 1, 1, 1};
const float ramp[FIVE] = {0, 1, 2, 3, 4};

void expect_taken(struct segment *segment, int slot, float factor,
                                uint64_t gradients, uint64_t examples)
{
    struct segment_taken taken;
    ck_assert(segment_take(segment, slot, &taken));
    for (int i = 0; i < FIVE; i++)
        ck_assert_float_eq(taken.values[i], factor * ramp[i]);
    ck_assert_uint_eq(taken.gradients, gradients);
    ck_assert_uint_eq(taken.examples, examples);
    ck_assert(!segment_take(segment, slot, &taken));
}
