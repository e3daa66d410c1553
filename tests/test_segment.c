/* SPDX-License-Identifier: MIT */
/* A segment and its two sides, step by step: what is promised, what is refused, and who dies.
 * test_segment_storm.c has the same flat out. */
#include "segment_help.h"

#include "bsp/object.h"
#include "bsp/process.h"

#include <fcntl.h>
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define N(array) ((int)(sizeof(array) / sizeof *(array)))

enum { FLOATS = 5 };
static const float ones[FLOATS] = {1, 1, 1, 1, 1};
static const float ramp[FLOATS] = {0, 1, 2, 3, 4};

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
    segment_close(segment);
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

static void expect_taken(struct segment *segment, int slot, float factor, uint64_t gradients,
                         uint64_t examples)
{
    struct segment_taken taken;
    ck_assert(segment_take(segment, slot, &taken));
    for (int i = 0; i < FLOATS; i++)
        ck_assert_float_eq(taken.values[i], factor * ramp[i]);
    ck_assert_uint_eq(taken.gradients, gradients);
    ck_assert_uint_eq(taken.examples, examples);
    ck_assert(!segment_take(segment, slot, &taken));
}

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

/* --- who dies --- */

static void kill_child(pid_t child)
{
    int status;
    ck_assert_int_eq(kill(child, SIGKILL), 0);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFSIGNALED(status));
}

static void expect_good(pid_t child)
{
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child's status is %d",
                  status);
}

/* A child that runs `be`, says so through a pipe, and sleeps until it is killed. */
static pid_t start_child(void (*be)(void))
{
    int ends[2];
    char byte;
    ck_assert_int_eq(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        be();
        if (write(ends[1], "", 1) != 1)
            _exit(1);
        pause();
        _exit(1);
    }
    ck_assert_int_gt(child, 0);
    close(ends[1]);
    ck_assert_int_eq(read(ends[0], &byte, 1), 1);
    close(ends[0]);
    return child;
}

static void commit_and_stop_halfway(void)
{
    struct descant_ml *ml = attach();
    pin_version(ml);
    ck_assert_int_eq(descant_ml_add(ml, ramp, 3), DESCANT_OK);
    struct object object = {0};
    ck_assert_int_eq(object_open(&object, segment_name, NULL), DESCANT_OK);
    uint64_t flip = segment_slot(object.header, 0)->flip;
    segment_sum(object.header, 0, flip_writing(flip))[2] = NAN;
}

START_TEST(a_dead_module_spoils_nothing)
{
    struct segment *segment = make_segment(FLOATS, 1, 0);
    struct segment_figures figures;
    pid_t child = start_child(commit_and_stop_halfway);
    ck_assert_int_eq(segment_sweep(segment), 0);
    segment_figures(segment, 0, &figures);
    ck_assert_int_eq(figures.pid, child);
    store_model(segment, 2);
    uint64_t pin = segment_slot(segment_memory(segment), 0)->pin;
    ck_assert_uint_eq(newest_version(pin), 1);
    kill_child(child);
    if (_i == 0) {      /* else whoever attaches does it */
        ck_assert_int_eq(segment_sweep(segment), 1);
        ck_assert_int_eq(segment_sweep(segment), 0);
        ck_assert_uint_eq(segment_slot(segment_memory(segment), 0)->pin, 0);
        segment_figures(segment, 0, &figures);
        ck_assert_int_eq(figures.pid, 0);
    }
    struct descant_ml *ml = attach();
    ck_assert_uint_eq(segment_slot(segment_memory(segment), 0)->pin, 0);
    ck_assert_uint_eq(pin_version(ml), 2);
    ck_assert_int_eq(descant_ml_add(ml, ramp, 4), DESCANT_OK);
    expect_taken(segment, 0, 7, 2, 7);
    segment_figures(segment, 0, &figures);
    ck_assert(figures.owners == 2 && figures.gradients == 2 && figures.examples == 7);
    struct descant_ml_stats stats;
    ck_assert_int_eq(descant_ml_stats(ml, &stats), DESCANT_OK);
    ck_assert_uint_eq(stats.gradients, 1);
    descant_ml_detach(ml);
    segment_close(segment);
}
END_TEST

START_TEST(a_zombie_is_dead)
{
    struct segment *segment = make_segment(FLOATS, 1, 0);
    pid_t child = start_child(commit_and_stop_halfway);
    siginfo_t ended;
    kill(child, SIGKILL);
    ck_assert_int_eq(waitid(P_PID, (id_t)child, &ended, WEXITED | WNOWAIT), 0);
    ck_assert_int_eq(segment_sweep(segment), 1);
    waitpid(child, NULL, 0);
    segment_close(segment);
}
END_TEST

START_TEST(a_number_used_again_is_another_process)
{
    struct segment *segment = make_segment(FLOATS, 1, 0);
    uint64_t self = process_self(NULL);
    ck_assert_int_eq(process_pid(self), getpid());
    ck_assert(process_alive(self));
    ck_assert(!process_alive(self + 1));
    segment_slot(segment_memory(segment), 0)->owner = self + 1;
    descant_ml_detach(attach());
    segment_close(segment);
}
END_TEST

START_TEST(a_forked_child_is_refused)
{
    struct segment *segment = make_segment(FLOATS, 1, 0);
    struct descant_ml *ml = attach();
    struct descant_ml_model model;
    pin_version(ml);
    pid_t child = fork();
    if (child == 0)
        _exit(descant_ml_pin(ml, &model) != DESCANT_FORKED ||
              descant_ml_add(ml, ramp, 1) != DESCANT_FORKED ||
              descant_ml_detach(ml) != DESCANT_FORKED || descant_ml_size(ml) != 0);
    expect_good(child);
    ck_assert_int_eq(descant_ml_add(ml, ramp, 1), DESCANT_OK);
    expect_taken(segment, 0, 1, 1, 1);
    descant_ml_detach(ml);
    segment_close(segment);
}
END_TEST

/* 0: with one descriptor left, the keeper is named all the same. */
static int keep_with_one_descriptor(void)
{
    struct segment *segment;
    int next = dup(0);
    struct rlimit limit = {(rlim_t)next + 1, (rlim_t)next + 1};
    close(next);
    if (next < 0 || setrlimit(RLIMIT_NOFILE, &limit) != 0)
        return 1;
    if (try_segment(&segment, FLOATS, 1, 0, 1) != DESCANT_OK)
        return 2;
    int named = process_pid(segment_memory(segment)->keeper);
    segment_close(segment);
    return named == getpid() ? 0 : 3;
}

START_TEST(a_keeper_is_always_named)
{
    new_name();
    pid_t child = fork();
    if (child == 0)
        _exit(keep_with_one_descriptor());
    expect_good(child);
}
END_TEST

static void keep(void)
{
    struct segment *segment;
    ck_assert_int_eq(try_segment(&segment, FLOATS, 1, 0, 1), DESCANT_OK);
    store_model(segment, 7);
    segment_next(segment)[0] = NAN;     /* it dies while it writes the next one */
}

START_TEST(a_keeper_is_succeeded)
{
    struct segment *segment;
    new_name();
    pid_t child = start_child(keep);
    struct descant_ml *ml = attach();
    ck_assert_uint_eq(pin_version(ml), 7);
    ck_assert_int_eq(descant_ml_add(ml, ramp, 1), DESCANT_OK);
    ck_assert_int_eq(try_segment(&segment, FLOATS, 1, 0, 1), DESCANT_DUPLICATE);
    expect_said("which lives");
    kill_child(child);
    ck_assert_int_eq(descant_ml_add(ml, ramp, 1), DESCANT_OK);
    ck_assert_int_eq(try_segment(&segment, FLOATS, 1, 5, 1), DESCANT_OK);
    ck_assert(segment_taken_over(segment));
    uint64_t version;
    ck_assert_float_eq(segment_model(segment, &version)[0], 7);
    ck_assert_uint_eq(version, 7);
    store_model(segment, 12);
    ck_assert_int_eq(descant_ml_add(ml, ramp, 1), DESCANT_OK);      /* by the new bound */
    ck_assert_uint_eq(pin_version(ml), 12);
    expect_taken(segment, 0, 3, 3, 3);
    descant_ml_detach(ml);
    segment_close(segment);
}
END_TEST

START_TEST(another_shape_replaces_what_was_left)
{
    struct segment *segment;
    struct descant_ml_model model;
    new_name();
    pid_t child = start_child(keep);
    struct descant_ml *ml = attach();
    kill_child(child);
    ck_assert_int_eq(try_segment(&segment, FLOATS + 1, 1, 0, 1), DESCANT_OK);
    ck_assert(!segment_taken_over(segment));
    ck_assert_int_eq(descant_ml_pin(ml, &model), DESCANT_ENDED);
    descant_ml_detach(ml);
    ml = attach();
    ck_assert_uint_eq(descant_ml_size(ml), FLOATS + 1);
    descant_ml_detach(ml);
    segment_close(segment);
}
END_TEST

/* --- what is refused --- */

static const char *const bad_names[] = {"", "a/b", "a b", "\xc3\xa4", "..//x"};

START_TEST(names_are_checked)
{
    struct descant_ml *ml;
    struct segment *segment;
    snprintf(segment_name, sizeof segment_name, "%s", bad_names[_i]);
    ck_assert_int_eq(descant_ml_attach(&ml, segment_name, 0), DESCANT_BAD_ADDRESS);
    expect_said("a name has 1 to 100 letters");
    ck_assert_int_eq(try_segment(&segment, FLOATS, 1, 0, 1), DESCANT_BAD_ADDRESS);
}
END_TEST

START_TEST(numbers_are_checked)
{
    struct segment *segment;
    new_name();
    ck_assert_int_eq(try_segment(&segment, FLOATS, 0, 0, 1), DESCANT_INVALID);
    ck_assert_int_eq(try_segment(&segment, FLOATS, 65, 0, 1), DESCANT_INVALID);
    expect_said("65 slots; allowed: 1 to 64");
    const struct segment_options none = {.name = segment_name, .slots = 1};
    ck_assert_int_eq(segment_open(&segment, &none), DESCANT_INVALID);
    expect_said("a model of 0 floats");
    unsetenv("DESCANT_SEGMENT");
    struct descant_ml *ml;
    ck_assert_int_eq(descant_ml_attach(&ml, NULL, 0), DESCANT_BAD_ADDRESS);
    expect_said("DESCANT_SEGMENT is not set");
    ck_assert_int_eq(descant_ml_attach(&ml, "x", (double)NAN), DESCANT_INVALID);
    uint64_t start = clock_now_ns();
    ck_assert_int_eq(descant_ml_attach(&ml, segment_name, 0.05), DESCANT_TIMEOUT);
    expect_said("waited 0.05 s");
    ck_assert_uint_ge(clock_now_ns() - start, 50000000);
    ck_assert_int_eq(descant_ml_pin(NULL, NULL), DESCANT_INVALID);
}
END_TEST

static void spoil_magic(struct segment_header *h)
{
    h->magic++;
}

static void spoil_version(struct segment_header *h)
{
    h->version = 2;
}

static void spoil_n(struct segment_header *h)
{
    h->n += 4096;
}

static void spoil_slots(struct segment_header *h)
{
    h->slots = 0x10000001;
}

static void spoil_place(struct segment_header *h)
{
    h->sums_at -= 4096;
}

static void spoil_part(struct segment_header *h)
{
    segment_parts(h)[1].n++;
}

static void spoil_name(struct segment_header *h)
{
    memset(segment_parts(h)[0].name, 'x', SEGMENT_PART_NAME);
}

static void spoil_namespace(struct segment_header *h)
{
    h->pid_namespace++;
}

static const struct {
    void (*spoil)(struct segment_header *h);
    descant_status status;
    const char *said;
} spoils[] = {
    {spoil_magic, DESCANT_CORRUPT, "is not a segment of Descant"},
    {spoil_version, DESCANT_MISMATCH, "has version 2 of the layout, this library knows 1"},
    {spoil_n, DESCANT_CORRUPT, "sizes do not fit"},
    {spoil_slots, DESCANT_CORRUPT, "sizes do not fit"},
    {spoil_place, DESCANT_CORRUPT, "sizes do not fit"},
    {spoil_part, DESCANT_CORRUPT, "parts do not follow"},
    {spoil_name, DESCANT_CORRUPT, "parts do not follow"},
    {spoil_namespace, DESCANT_MISMATCH, "another PID namespace"},
};

START_TEST(foreign_layouts_are_refused)
{
    struct segment *segment = make_segment(FLOATS, 1, 0);
    struct segment_header *h = segment_memory(segment), before = *h;
    struct segment_part parts[2];
    struct descant_ml *ml;
    memcpy(parts, segment_parts(h), sizeof parts);
    spoils[_i].spoil(h);
    ck_assert_int_eq(descant_ml_attach(&ml, segment_name, 1), spoils[_i].status);
    expect_said(spoils[_i].said);
    expect_said(segment_name);
    memcpy(h, &before, sizeof before);
    memcpy(segment_parts(h), parts, sizeof parts);
    ml = attach();
    descant_ml_detach(ml);
    segment_close(segment);
}
END_TEST

START_TEST(a_cut_object_is_refused)
{
    struct descant_ml *ml;
    struct segment *segment;
    char object[80];
    new_name();
    snprintf(object, sizeof object, "/descant.%s", segment_name);
    int fd = shm_open(object, O_RDWR | O_CREAT, 0600);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(descant_ml_attach(&ml, segment_name, 0), DESCANT_CORRUPT);
    const struct segment_header h = object_layout(FLOATS, 1, 1);
    ck_assert_int_eq(pwrite(fd, &h, sizeof h, 0), sizeof h);
    ck_assert_int_eq(descant_ml_attach(&ml, segment_name, 0), DESCANT_CORRUPT);
    expect_said("192 bytes");
    ck_assert_int_eq(try_segment(&segment, FLOATS, 1, 0, 1), DESCANT_CORRUPT);
    close(fd);
    shm_unlink(object);
}
END_TEST

START_TEST(another_users_segment_is_refused)
{
    struct segment *segment = make_segment(FLOATS, 1, 0);
    struct descant_ml *ml;
    char path[100];
    struct stat of;
    snprintf(path, sizeof path, "/dev/shm/descant.%s", segment_name);
    ck_assert_int_eq(stat(path, &of), 0);
    ck_assert_uint_eq(of.st_mode & 0777, 0600);
    if (geteuid() == 0) {
        pid_t child = fork();
        if (child == 0)
            _exit(setuid(65534) != 0 ||
                  descant_ml_attach(&ml, segment_name, 1) != DESCANT_SYSTEM ||
                  !strstr(descant_last_error(), "belongs to user 0, this process to user 65534"));
        expect_good(child);
        ck_assert_int_eq(chown(path, 1, 1), 0);
        ck_assert_int_eq(descant_ml_attach(&ml, segment_name, 1), DESCANT_SYSTEM);
        expect_said("belongs to user 1, this process to user 0");
    }
    segment_close(segment);
}
END_TEST

/* 0: as it should be; 77: this process may not mount. */
static int fill_small_shm(void)
{
    struct segment *segment;
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("small", "/dev/shm", "tmpfs", 0, "size=1m") != 0)
        return 77;
    if (try_segment(&segment, 1 << 20, 1, 0, 1) != DESCANT_MEMORY ||
        !strstr(descant_last_error(), "/dev/shm has 1048576 free of 1048576: No space left"))
        return 1;
    if (try_segment(&segment, 1000, 1, 0, 1) != DESCANT_OK)      /* nothing of it was left */
        return 2;
    segment_close(segment);
    return 0;
}

START_TEST(too_little_memory_is_told)
{
    struct segment *segment;
    new_name();
    const struct segment_part much = {.name = "w", .n = SEGMENT_FLOATS};
    const struct segment_options o = {.name = segment_name, .slots = 64, .parts = &much,
                                      .n_parts = 1, .model = ones, .version = 1};
    ck_assert_int_eq(segment_open(&segment, &o), DESCANT_MEMORY);
    expect_said("of memory are free");
    pid_t child = fork();
    if (child == 0)
        _exit(fill_small_shm());
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77)
        printf("a full /dev/shm was not tried: nothing can be mounted here\n");
    else
        ck_assert_int_eq(WEXITSTATUS(status), 0);
}
END_TEST

START_TEST(every_taking_may_fail)
{
    struct segment *segment = NULL;
    struct descant_ml *ml = NULL;
    long k;
    new_name();
    for (k = 1; !segment; k++) {
        memory_fail_at(k);
        descant_status status = try_segment(&segment, FLOATS, 1, 0, 1);
        ck_assert(status == DESCANT_OK || status == DESCANT_MEMORY || status == DESCANT_SYSTEM);
    }
    ck_assert_int_ge(k, 4);
    for (k = 1; !ml; k++) {
        memory_fail_at(k);
        descant_status status = descant_ml_attach(&ml, segment_name, 0);
        ck_assert(status == DESCANT_OK || status == DESCANT_MEMORY);
    }
    ck_assert_int_ge(k, 3);
    memory_fail_at(1);
    ck_assert_int_eq(descant_ml_stage(ml, 0, ones, 1), DESCANT_MEMORY);
    memory_fail_at(0);
    ck_assert_int_eq(descant_ml_stage(ml, 0, ones, 1), DESCANT_OK);
    descant_ml_detach(ml);
    segment_close(segment);
    ck_assert_int_eq(memory_live(), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("segment");
    TCase *tests = tcase_create("segment");
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, the_layout_is_the_documents);
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
    tcase_add_loop_test(tests, a_dead_module_spoils_nothing, 0, 2);
    tcase_add_test(tests, a_zombie_is_dead);
    tcase_add_test(tests, a_number_used_again_is_another_process);
    tcase_add_test(tests, a_forked_child_is_refused);
    tcase_add_test(tests, a_keeper_is_always_named);
    tcase_add_test(tests, a_keeper_is_succeeded);
    tcase_add_test(tests, another_shape_replaces_what_was_left);
    tcase_add_loop_test(tests, names_are_checked, 0, N(bad_names));
    tcase_add_test(tests, numbers_are_checked);
    tcase_add_loop_test(tests, foreign_layouts_are_refused, 0, N(spoils));
    tcase_add_test(tests, a_cut_object_is_refused);
    tcase_add_test(tests, another_users_segment_is_refused);
    tcase_add_test(tests, too_little_memory_is_told);
    tcase_add_test(tests, every_taking_may_fail);
    suite_add_tcase(suite, tests);
    return run_segments(suite);
}
