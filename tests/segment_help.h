/* SPDX-License-Identifier: MIT */
/* Segments of a test: each has a name of its own, and main removes what a failed test leaves. */
#ifndef SEGMENT_HELP_H
#define SEGMENT_HELP_H

#include "bsp/ml.h"
#include "bsp/segment.h"

#include <check.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char prefix[40], segment_name[64];

static inline void new_name(void)
{
    static int number;
    snprintf(segment_name, sizeof segment_name, "%s%d-%d", prefix, (int)getpid(), number++);
}

/* Two parts: "b" of one float, and "w" of the others. All values are the version. */
static inline descant_status try_segment(struct segment **segment, uint64_t n, int slots,
                                         uint64_t bound, uint64_t version)
{
    const struct segment_part parts[] = {{.name = "b", .n = 1}, {.name = "w", .n = n - 1}};
    float *model = calloc(n, sizeof *model);
    ck_assert_ptr_nonnull(model);
    for (uint64_t i = 0; i < n; i++)
        model[i] = (float)version;
    const struct segment_options o = {.name = segment_name, .slots = slots, .bound = bound,
                                      .parts = parts, .n_parts = 2, .model = model,
                                      .version = version};
    descant_status status = segment_open(segment, &o);
    free(model);
    return status;
}

static inline struct segment *make_segment(uint64_t n, int slots, uint64_t bound)
{
    struct segment *segment = NULL;
    new_name();
    ck_assert_msg(try_segment(&segment, n, slots, bound, 1) == DESCANT_OK, "%s",
                  descant_last_error());
    return segment;
}

/* The version, or what is left of it that a float can hold. */
static inline float value_of(uint64_t version)
{
    return (float)(version % (1 << 24));
}

static inline void store_model(struct segment *segment, uint64_t version)
{
    float *values = segment_next(segment);
    for (uint64_t i = 0; i < segment_n(segment); i++)
        values[i] = value_of(version);
    segment_store(segment, version);
}

static inline struct descant_ml *attach(void)
{
    struct descant_ml *ml = NULL;
    ck_assert_msg(descant_ml_attach(&ml, segment_name, 0) == DESCANT_OK, "%s",
                  descant_last_error());
    return ml;
}

static inline uint64_t pin_version(struct descant_ml *ml)
{
    struct descant_ml_model model;
    ck_assert_int_eq(descant_ml_pin(ml, &model), DESCANT_OK);
    ck_assert_float_eq(model.values[descant_ml_size(ml) - 1], value_of(model.version));
    return model.version;
}

static inline void expect_said(const char *part)
{
    ck_assert_msg(strstr(descant_last_error(), part) != NULL, "'%s' says nothing of '%s'",
                  descant_last_error(), part);
}

static inline int run_segments(Suite *suite)
{
    char pattern[80];
    glob_t left;
    snprintf(prefix, sizeof prefix, "test-%d-", (int)getpid());
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    snprintf(pattern, sizeof pattern, "/dev/shm/descant.%s*", prefix);
    if (glob(pattern, 0, NULL, &left) == 0) {
        for (size_t i = 0; i < left.gl_pathc; i++) {
            printf("%s was left\n", left.gl_pathv[i]);
            unlink(left.gl_pathv[i]);
            failed++;
        }
        globfree(&left);
    }
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

#endif
