/* SPDX-License-Identifier: MIT */
/* A segment and its two sides, step by step: its layout, models that are pinned, gradients that are
 * summed. test_segment_faults.c has who dies and what is refused, test_segment_storm.c the same flat
 * out. */
#include "harness/segments.h"
#include "harness/suite.h"

#include "bsp/object.h"

#include <math.h>
#include <stddef.h>

enum { FLOATS = FIVE };

/* --- the document --- */

#define FIELD(table, type, field) {table, #field, offsetof(struct type, field), \
                                   sizeof(((struct type *)0)->field), false}

static struct {
    const char *table, *name;
    size_t at, bytes;
    bool seen;
} fields[] = {
    FIELD("Header", segment_header, magic), FIELD("Header", segment_header, version),
    FIELD("Header", segment_header, slots), FIELD("Header", segment_header, copies),
    FIELD("Header", segment_header, n_parts), FIELD("Header", segment_header, n),
    FIELD("Header", segment_header, bytes), FIELD("Header", segment_header, parts_at),
    FIELD("Header", segment_header, slots_at), FIELD("Header", segment_header, copies_at),
    FIELD("Header", segment_header, copy_bytes), FIELD("Header", segment_header, sums_at),
    FIELD("Header", segment_header, sum_bytes), FIELD("Header", segment_header, pid_namespace),
    FIELD("Header", segment_header, newest), FIELD("Header", segment_header, bound),
    FIELD("Header", segment_header, ended), FIELD("Header", segment_header, keeper),
    FIELD("Part", segment_part, name), FIELD("Part", segment_part, first),
    FIELD("Part", segment_part, n),
    FIELD("Slot", segment_slot, owner), FIELD("Slot", segment_slot, pin),
    FIELD("Slot", segment_slot, flip), FIELD("Slot", segment_slot, gradients),
    FIELD("Slot", segment_slot, examples), FIELD("Slot", segment_slot, stale),
    FIELD("Slot", segment_slot, bad), FIELD("Slot", segment_slot, owners),
    FIELD("Tally", segment_tally, gradients), FIELD("Tally", segment_tally, examples),
    FIELD("Tally", segment_tally, oldest), FIELD("Tally", segment_tally, lag),
    FIELD("Tally", segment_tally, lag_most),
};

static void see(const char *table, const char *name, size_t at, size_t bytes)
{
    for (int i = 0; i < N(fields); i++)
        if (strcmp(fields[i].table, table) == 0 && strcmp(fields[i].name, name) == 0) {
            ck_assert_msg(fields[i].at == at && fields[i].bytes == bytes,
                          "%s of %s is %zu bytes at %zu, not %zu at %zu", name, table,
                          fields[i].bytes, fields[i].at, bytes, at);
            fields[i].seen = true;
            return;
        }
    ck_abort_msg("%s has a field '%s' in the document alone", table, name);
}

START_TEST(the_layout_is_the_documents)
{
    FILE *in = fopen("docs/segment.md", "r");
    ck_assert_ptr_nonnull(in);
    char line[400], table[32] = "", name[32];
    size_t at, bytes;
    while (fgets(line, sizeof line, in)) {
        sscanf(line, "### %31s", table);
        if (sscanf(line, "| %zu | %zu | %*[^|] | `%31[a-z_]` |", &at, &bytes, name) == 3)
            see(table, name, at, bytes);
    }
    fclose(in);
    for (int i = 0; i < N(fields); i++)
        ck_assert_msg(fields[i].seen, "the document lacks %s of %s", fields[i].name,
                      fields[i].table);
}
END_TEST

START_TEST(places_are_as_documented)
{
    struct segment *segment = make_segment(5000, 3, 1);
    struct segment_header *h = segment_memory(segment);
    ck_assert_int_eq(memcmp(h, "DESCBSP\0", 8), 0);
    ck_assert_uint_eq(h->copies, 5);
    ck_assert_uint_eq(h->slots_at % 512, 0);
    ck_assert_uint_eq(h->copies_at % 4096, 0);
    ck_assert_uint_eq(h->copy_bytes, 20480);
    ck_assert_uint_eq(h->sum_bytes, 20480);
    ck_assert_uint_ge(h->parts_at, h->slots_at + 3 * 512);
    ck_assert_uint_ge(h->copies_at, h->parts_at + 2 * 128);
    ck_assert_uint_ge(h->sums_at, h->copies_at + 5 * h->copy_bytes);
    ck_assert_uint_eq(h->bytes, h->sums_at + 9 * h->sum_bytes);
    ck_assert_uint_eq(h->keeper >> 40, (unsigned)getpid());
    ck_assert_uint_eq(segment_slot(h, 1)->flip, 4);
    segment_close(segment);
}
END_TEST

START_TEST(the_documents_example_is_right)
{
    struct segment_header h = object_layout(21, 2, 2);
    ck_assert(h.slots_at == 512 && h.parts_at == 1536 && h.copies_at == 4096);
    ck_assert(h.copy_bytes == 4096 && h.sums_at == 20480);
    ck_assert_uint_eq(newest_make(7, 2), 458755);
    ck_assert_ptr_eq(segment_copy(&h, 2) + 20, (char *)&h + 12368);
    ck_assert_ptr_eq(segment_sum(&h, 1, 1) + 20, (char *)&h + 36944);
}
END_TEST

/* --- attaching --- */

START_TEST(a_module_sees_the_model_and_its_parts)
{
    struct segment *segment = make_segment(FLOATS, 2, 0);
    setenv("DESCANT_SEGMENT", segment_name, 1);
    struct descant_ml *ml;
    struct descant_ml_part part;
    struct descant_ml_model model;
    ck_assert_int_eq(descant_ml_attach(&ml, NULL, 0), DESCANT_OK);
    ck_assert_uint_eq(descant_ml_size(ml), FLOATS);
    ck_assert_uint_eq(descant_ml_parts(ml), 2);
    ck_assert_int_eq(descant_ml_part(ml, 1, &part), DESCANT_OK);
    ck_assert_str_eq(part.name, "w");
    ck_assert(part.first == 1 && part.n == FLOATS - 1);
    ck_assert_int_eq(descant_ml_part(ml, 2, &part), DESCANT_INVALID);
    ck_assert_int_eq(descant_ml_pin(ml, &model), DESCANT_OK);
    ck_assert_uint_eq(model.version, 1);
    store_model(segment, 2);
    store_model(segment, 3);
    for (int i = 0; i < FLOATS; i++)
        ck_assert_float_eq(model.values[i], 1);
    ck_assert_uint_eq(pin_version(ml), 3);
    uint64_t version;
    ck_assert_float_eq(segment_model(segment, &version)[0], 3);
    ck_assert_uint_eq(version, 3);
    ck_assert_int_eq(descant_ml_unpin(ml), DESCANT_OK);
    ck_assert_int_eq(descant_ml_detach(ml), DESCANT_OK);
    ck_assert_int_eq(descant_ml_detach(NULL), DESCANT_OK);
    segment_close(segment);
}
END_TEST

START_TEST(slots_are_taken_and_left)
{
    struct segment *segment = make_segment(FLOATS, 2, 0);
    struct segment_figures figures;
    struct descant_ml *a = attach(), *b = attach(), *c;
    ck_assert_int_eq(descant_ml_attach(&c, segment_name, 0), DESCANT_BAD_SIZE);
    expect_said("2 slots are taken");
    descant_ml_detach(a);
    segment_figures(segment, 0, &figures);
    ck_assert_int_eq(figures.pid, 0);
    c = attach();
    segment_figures(segment, 0, &figures);
    ck_assert_int_eq(figures.pid, getpid());
    ck_assert_uint_eq(figures.owners, 2);
    descant_ml_detach(b);
    descant_ml_detach(c);
    segment_close(segment);
}
END_TEST

START_TEST(pins_hold_every_copy_but_two)
{
    enum { SLOTS = 64 };
    struct segment *segment = make_segment(FLOATS, SLOTS, 0);
    struct descant_ml *ml[SLOTS];
    struct descant_ml_model model[SLOTS];
    for (uint64_t s = 0; s < SLOTS; s++) {
        ml[s] = attach();
        ck_assert_int_eq(descant_ml_pin(ml[s], &model[s]), DESCANT_OK);
        store_model(segment, s + 2);
    }
    for (uint64_t version = 100; version < 110; version++)
        store_model(segment, version);
    for (int s = 0; s < SLOTS; s++) {
        ck_assert_uint_eq(model[s].version, (uint64_t)s + 1);
        for (int i = 0; i < FLOATS; i++)
            ck_assert_float_eq(model[s].values[i], (float)(s + 1));
        descant_ml_detach(ml[s]);
    }
    segment_close(segment);
}
END_TEST

START_TEST(version_0_is_a_version)
{
    struct segment *segment;
    struct descant_ml_model model;
    new_name();
    ck_assert_int_eq(try_segment(&segment, FLOATS, 1, 0, 0), DESCANT_OK);
    struct descant_ml *ml = attach();
    ck_assert_int_eq(descant_ml_pin(ml, &model), DESCANT_OK);
    ck_assert_uint_eq(model.version, 0);
    for (uint64_t version = 1; version < 6; version++)
        store_model(segment, version);
    for (int i = 0; i < FLOATS; i++)
        ck_assert_float_eq(model.values[i], 0);
    descant_ml_detach(ml);
    segment_close(segment);
}
END_TEST

/* What the keeper does between two steps of a module. */
static struct segment *hooked;
static int hooked_times;
static float hooked_value;
static uint64_t hooked_gradients, hooked_models;

static void store_between(enum ml_step step)
{
    if (step != ML_PINNING || hooked_times++ > 0)
        return;
    if (hooked_models > 0)
        segment_store(hooked, 2);       /* its copy was chosen before the pin was wanted */
    for (uint64_t version = 3; version < 2 + hooked_models; version++)
        store_model(hooked, version);
}

static void take_between(enum ml_step step)
{
    struct segment_taken taken;
    if (step != ML_PUBLISHING || hooked_times++ > 0)
        return;
    ck_assert(segment_take(hooked, 0, &taken));
    hooked_value = taken.values[1];
    hooked_gradients = taken.gradients;
}

/* The loop's number of models comes between the second and the third step of a pin. */
START_TEST(a_wanted_pin_is_not_overtaken)
{
    struct segment *segment = hooked = make_segment(FLOATS, 1, 0);
    struct descant_ml *ml = attach();
    struct descant_ml_model model;
    float *next = segment_next(segment);
    for (int i = 0; i < FLOATS; i++)
        next[i] = 2;
    hooked_models = (uint64_t)_i;
    ml_hook = store_between;
    ck_assert_int_eq(descant_ml_pin(ml, &model), DESCANT_OK);
    ck_assert_int_eq(hooked_times, 1);
    for (uint64_t version = 100; version < 105; version++) {
        for (int i = 0; i < FLOATS; i++)
            ck_assert_float_eq(model.values[i], (float)model.version);
        store_model(segment, version);
    }
    descant_ml_detach(ml);
    segment_close(segment);
}
END_TEST

/* --- gradients --- */

START_TEST(sums_are_taken_once)
{
    struct segment *segment = make_segment(FLOATS, 2, 0);
    struct descant_ml *ml = attach(), *other = attach();
    struct segment_taken taken;
    ck_assert(!segment_take(segment, 0, &taken));
    pin_version(ml);
    pin_version(other);
    for (int round = 0; round < 7; round++) {           /* through all roles of the three sums */
        for (int i = 0; i <= round % 3; i++)
            ck_assert_int_eq(descant_ml_add(ml, ramp, 10), DESCANT_OK);
        expect_taken(segment, 0, 10 * (float)(round % 3 + 1), (uint64_t)round % 3 + 1,
                     10 * ((uint64_t)round % 3 + 1));
    }
    ck_assert_int_eq(descant_ml_add(other, ramp, 3), DESCANT_OK);
    ck_assert(!segment_take(segment, 0, &taken));
    expect_taken(segment, 1, 3, 1, 3);
    struct descant_ml_stats stats;
    ck_assert_int_eq(descant_ml_stats(ml, &stats), DESCANT_OK);
    ck_assert(stats.gradients == 13 && stats.examples == 130 && !stats.stale && !stats.bad);
    descant_ml_detach(ml);
    descant_ml_detach(other);
    segment_close(segment);
}
END_TEST

START_TEST(what_is_taken_stays_while_more_comes)
{
    struct segment *segment = make_segment(FLOATS, 1, 0);
    struct descant_ml *ml = attach();
    struct segment_taken taken;
    pin_version(ml);
    ck_assert_int_eq(descant_ml_add(ml, ramp, 5), DESCANT_OK);
    ck_assert(segment_take(segment, 0, &taken));
    for (int k = 0; k < 4; k++)
        ck_assert_int_eq(descant_ml_add(ml, ones, 1), DESCANT_OK);
    for (int i = 0; i < FLOATS; i++)
        ck_assert_float_eq(taken.values[i], 5 * ramp[i]);
    ck_assert(segment_take(segment, 0, &taken));
    for (int i = 0; i < FLOATS; i++)
        ck_assert_float_eq(taken.values[i], 4);
    descant_ml_detach(ml);
    segment_close(segment);
}
END_TEST

START_TEST(a_sum_may_be_taken_before_the_next_is_published)
{
    struct segment *segment = hooked = make_segment(FLOATS, 1, 0);
    struct descant_ml *ml = attach();
    pin_version(ml);
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(descant_ml_add(ml, ones, 1), DESCANT_OK);
    ml_hook = take_between;
    ck_assert_int_eq(descant_ml_add(ml, ramp, 4), DESCANT_OK);
    ck_assert_int_eq(hooked_times, 2);
    ck_assert_float_eq(hooked_value, 2);
    ck_assert_uint_eq(hooked_gradients, 2);
    expect_taken(segment, 0, 4, 1, 4);
    descant_ml_detach(ml);
    segment_close(segment);
}
END_TEST

START_TEST(pieces_are_one_gradient)
{
    struct segment *segment = make_segment(FLOATS, 1, 0);
    struct descant_ml *ml = attach();
    struct segment_taken taken;
    pin_version(ml);
    ck_assert_int_eq(descant_ml_commit(ml, 1), DESCANT_ORDER);
    ck_assert_int_eq(descant_ml_stage(ml, 3, ramp + 3, 2), DESCANT_OK);
    ck_assert(!segment_take(segment, 0, &taken));
    ck_assert_int_eq(descant_ml_stage(ml, 1, ramp + 1, 2), DESCANT_OK);
    ck_assert_int_eq(descant_ml_commit(ml, 2), DESCANT_OK);
    expect_taken(segment, 0, 2, 1, 2);
    ck_assert_int_eq(descant_ml_stage(ml, 0, ones, FLOATS), DESCANT_OK);
    ck_assert_int_eq(descant_ml_drop(ml), DESCANT_OK);
    for (int twice = 0; twice < 2; twice++)             /* a piece is added to what is staged */
        ck_assert_int_eq(descant_ml_stage(ml, 0, ramp, FLOATS), DESCANT_OK);
    ck_assert_int_eq(descant_ml_commit(ml, 1), DESCANT_OK);
    expect_taken(segment, 0, 2, 1, 1);
    ck_assert_int_eq(descant_ml_stage(ml, 1, ones, FLOATS), DESCANT_INVALID);
    ck_assert_int_eq(descant_ml_stage(ml, SIZE_MAX, ones, 2), DESCANT_INVALID);
    expect_said("the model has 5");
    descant_ml_detach(ml);
    segment_close(segment);
}
END_TEST

START_TEST(stale_gradients_are_refused)
{
    struct segment *segment = make_segment(FLOATS, 1, 2);
    struct descant_ml *ml = attach();
    struct segment_figures figures;
    struct segment_taken taken;
    ck_assert_int_eq(descant_ml_add(ml, ramp, 1), DESCANT_ORDER);
    pin_version(ml);
    store_model(segment, 2);
    ck_assert_int_eq(descant_ml_add(ml, ramp, 1), DESCANT_OK);
    store_model(segment, 3);
    descant_ml_unpin(ml);
    ck_assert_int_eq(descant_ml_add(ml, ramp, 1), DESCANT_OK);
    store_model(segment, 4);
    ck_assert_int_eq(descant_ml_add(ml, ramp, 1), DESCANT_STALE);
    expect_said("is on version 1, the model is at 4, allowed: 2 behind");
    pin_version(ml);
    ck_assert_int_eq(descant_ml_add(ml, ramp, 1), DESCANT_OK);
    ck_assert(segment_take(segment, 0, &taken));
    ck_assert(taken.gradients == 3 && taken.oldest == 1 && taken.lag == 3 && taken.lag_most == 2);
    store_model(segment, 2);                            /* an older checkpoint was taken up */
    ck_assert_int_eq(descant_ml_add(ml, ramp, 1), DESCANT_STALE);
    pin_version(ml);
    ck_assert_int_eq(descant_ml_add(ml, ramp, 1), DESCANT_OK);
    ck_assert(segment_take(segment, 0, &taken));
    ck_assert(taken.gradients == 1 && taken.oldest == 2 && taken.lag == 0 && taken.lag_most == 0);
    segment_figures(segment, 0, &figures);
    ck_assert(figures.stale == 2 && figures.gradients == 4 && figures.bad == 0);
    descant_ml_detach(ml);
    segment_close(segment);
}
END_TEST

static const struct { int at; float value; const char *said; } bad_values[] = {
    {0, NAN, "gradient of 'b' has NaN at 0"}, {1, INFINITY, "gradient of 'w' has Inf at 0"},
    {4, -INFINITY, "gradient of 'w' has Inf at 3"}, {2, -NAN, "gradient of 'w' has NaN at 1"},
    {3, 3e38f, "the sum is more than a float holds"}};

START_TEST(bad_gradients_are_refused)
{
    struct segment *segment = make_segment(FLOATS, 1, 0);
    struct descant_ml *ml = attach();
    struct segment_figures figures;
    float bad[FLOATS];
    memcpy(bad, ramp, sizeof bad);
    bad[bad_values[_i].at] = bad_values[_i].value;
    pin_version(ml);
    ck_assert_int_eq(descant_ml_add(ml, bad, 2), DESCANT_NOT_FINITE);   /* into an empty slot */
    expect_said(bad_values[_i].said);
    ck_assert_int_eq(descant_ml_add(ml, ramp, 2), DESCANT_OK);
    ck_assert_int_eq(descant_ml_add(ml, bad, 2), DESCANT_NOT_FINITE);   /* and beside a sum */
    ck_assert_int_eq(descant_ml_stage(ml, 0, bad, FLOATS), DESCANT_OK);
    ck_assert_int_eq(descant_ml_commit(ml, 2), DESCANT_NOT_FINITE);
    ck_assert_int_eq(descant_ml_stage(ml, 0, ramp, FLOATS), DESCANT_OK);
    ck_assert_int_eq(descant_ml_commit(ml, 2), DESCANT_OK);
    ck_assert_int_eq(descant_ml_add(ml, ramp, 0), DESCANT_INVALID);
    expect_taken(segment, 0, 4, 2, 4);
    segment_figures(segment, 0, &figures);
    ck_assert(figures.bad == 3 && figures.gradients == 2 && figures.examples == 4);
    descant_ml_detach(ml);
    segment_close(segment);
}
END_TEST

/* Every length of the loop's last, uneven part. */
START_TEST(every_float_is_tested_and_added)
{
    enum { MOST = 70 };
    float gradient[MOST];
    for (uint64_t n = 2; n <= MOST; n++) {
        struct segment *segment = make_segment(n, 1, 0);
        struct descant_ml *ml = attach();
        struct segment_taken taken;
        pin_version(ml);
        for (uint64_t i = 0; i < n; i++)
            gradient[i] = (float)i;
        for (uint64_t i = 0; i < n; i++) {
            gradient[i] = NAN;
            ck_assert_int_eq(descant_ml_add(ml, gradient, 1), DESCANT_NOT_FINITE);
            gradient[i] = (float)i;
            ck_assert_int_eq(descant_ml_add(ml, gradient, 1), DESCANT_OK);
        }
        ck_assert(segment_take(segment, 0, &taken));
        for (uint64_t i = 0; i < n; i++)
            ck_assert_float_eq(taken.values[i], (float)(n * i));
        descant_ml_detach(ml);
        segment_close(segment);
    }
}
END_TEST

START_TEST(the_end_is_told)
{
    struct segment *segment = make_segment(FLOATS, 1, 0);
    struct descant_ml *ml = attach(), *late;
    struct descant_ml_model model;
    pin_version(ml);
    ck_assert_int_eq(descant_ml_add(ml, ramp, 1), DESCANT_OK);
    segment_end(segment);
    ck_assert_int_eq(descant_ml_pin(ml, &model), DESCANT_ENDED);
    ck_assert_int_eq(descant_ml_add(ml, ramp, 1), DESCANT_ENDED);
    ck_assert_int_eq(descant_ml_attach(&late, segment_name, 0), DESCANT_TIMEOUT);
    expect_taken(segment, 0, 1, 1, 1);
    segment_close(segment);
    ck_assert_int_eq(descant_ml_pin(ml, &model), DESCANT_ENDED);
    ck_assert_int_eq(descant_ml_detach(ml), DESCANT_OK);
}
END_TEST

int main(void)
{
    TCase *tests = new_case("segment", 60);
    tcase_add_test(tests, the_layout_is_the_documents);
    tcase_add_test(tests, the_documents_example_is_right);
    tcase_add_test(tests, places_are_as_documented);
    tcase_add_test(tests, a_module_sees_the_model_and_its_parts);
    tcase_add_test(tests, slots_are_taken_and_left);
    tcase_add_test(tests, pins_hold_every_copy_but_two);
    tcase_add_test(tests, version_0_is_a_version);
    tcase_add_loop_test(tests, a_wanted_pin_is_not_overtaken, 0, 5);
    tcase_add_test(tests, sums_are_taken_once);
    tcase_add_test(tests, what_is_taken_stays_while_more_comes);
    tcase_add_test(tests, a_sum_may_be_taken_before_the_next_is_published);
    tcase_add_test(tests, pieces_are_one_gradient);
    tcase_add_test(tests, stale_gradients_are_refused);
    tcase_add_loop_test(tests, bad_gradients_are_refused, 0, N(bad_values));
    tcase_add_test(tests, every_float_is_tested_and_added);
    tcase_add_test(tests, the_end_is_told);
    return run_cases(tests, NULL);
}
