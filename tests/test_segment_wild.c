/* SPDX-License-Identifier: MIT */
/* Modules that write where they must not. Control has two segments: in the first one anything may
 * stand, the second has a module in good order. Whatever the first one does, control goes on, its
 * model stays finite, and no gradient of the second one is lost. */
#include "bsp/control.h"
#include "bsp/object.h"
#include "harness/heard.h"
#include "kernels/kernels.h"

#include "harness/segments.h"
#include "harness/suite.h"

#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

/* The model is larger than a piece of a step. */
enum { FLOATS = 5000, SLOTS = 2, BOUND = 5, SEEDS = 40 };

static float model[FLOATS], all_ones[FLOATS];
static struct local *locals[2];
static char names[2][64];
static struct control *control;
static struct descant_ml *good, *wild;
static struct object memory;            /* the first segment's, as its modules have it */

/* Called as the first piece of a step has been made. */
static void (*meanwhile)(void);

static void step(void *of, const struct control_piece *piece)
{
    (void)of;
    for (size_t i = 0; i < piece->n; i++)
        piece->w[i] -= 0.5f * piece->g[i];
    if (meanwhile && piece->at == 0)
        meanwhile();
}

static void open_all(double clip)
{
    const struct segment_part parts[] = {{.name = "b", .n = 1}, {.name = "w", .n = FLOATS - 1}};
    const struct control_options how = {.locals = locals, .n_locals = 2, .n = FLOATS, .w = model,
                                        .version = 1, .bound = BOUND, .clip = clip, .step = step,
                                        .log = &listening};
    memset(model, 0, sizeof model);
    heard = (struct heard_lines){.least = DESCANT_WARNING};
    for (int i = 0; i < FLOATS; i++)
        all_ones[i] = 1;
    for (int k = 0; k < 2; k++) {
        new_name();
        snprintf(names[k], sizeof names[k], "%s", segment_name);
        const struct segment_options o = {.name = names[k], .slots = SLOTS, .bound = BOUND,
                                          .parts = parts, .n_parts = 2, .model = model,
                                          .version = 1, .log = &listening};
        ck_assert_msg(local_open(&locals[k], &o) == DESCANT_OK, "%s", descant_last_error());
    }
    ck_assert_int_eq(control_create(&control, &how), DESCANT_OK);
    ck_assert_int_eq(descant_ml_attach(&wild, names[0], 0), DESCANT_OK);
    ck_assert_int_eq(descant_ml_attach(&good, names[1], 0), DESCANT_OK);
    ck_assert_int_eq(object_open(&memory, names[0], NULL), DESCANT_OK);
    ck_assert_int_eq(object_guard(&memory, names[0], NULL), DESCANT_OK);
}

/* The first one's memory may be nonsense by now, and its module does not touch it. */
static void close_all(void)
{
    descant_ml_detach(good);
    control_destroy(control);
    local_close(locals[0]);
    local_close(locals[1]);
    object_close(&memory);
}

static void add(struct descant_ml *ml)
{
    struct descant_ml_model is;
    ck_assert_int_eq(descant_ml_pin(ml, &is), DESCANT_OK);
    ck_assert_int_eq(descant_ml_add(ml, all_ones, 2), DESCANT_OK);
}

/* One in which the good module's gradient is counted. */
static struct superstep superstep(void)
{
    struct superstep s;
    struct local_figures f;
    add(good);
    ck_assert_int_eq(control_superstep(control, &s), DESCANT_OK);
    ck_assert(s.stepped && s.sums.gradients >= 1);
    ck_assert(kernels_best()->finite(model, FLOATS));
    for (int k = 0; k < 2; k++) {
        local_figures(locals[k], &f);
        local_pending(locals[k]);
        local_sweep(locals[k]);
    }
    ck_assert(!local_detached(locals[1]));
    return s;
}

/* After it is detached the model moves as the good module says, to the bit. */
static void expect_alone(const char *why)
{
    float before = model[FLOATS - 1];
    struct superstep s = superstep();
    ck_assert(local_detached(locals[0]));
    ck_assert_msg(strstr(heard.text, names[0]) && strstr(heard.text, "is detached: a module has ") &&
                  strstr(heard.text, why), "%s", heard.text);
    ck_assert_uint_eq(s.sums.gradients, 1);
    ck_assert_uint_eq(s.sums.examples, 2);
    ck_assert_float_eq(model[FLOATS - 1], before - 0.5f);
    char path[100];
    snprintf(path, sizeof path, "/dev/shm/descant.%s", names[0]);
    ck_assert_int_ne(access(path, F_OK), 0);
}

/* --- each word --- */

static const uint64_t extremes[] = {
    0, 1, 2, 3, 4, 0xf, 0x10, 0x1f, 0x20, 0xffff, 0x10001, 0x1ffff, UINT64_C(1) << 31, UINT32_MAX,
    UINT64_C(1) << 40, UINT64_C(1) << 47, UINT64_C(1) << 62, INT64_MAX, UINT64_C(1) << 63,
    UINT64_MAX - 1, UINT64_MAX, UINT64_C(0x7fc000007fc00000), UINT64_C(0x7f7fffff7f7fffff)};
enum { EXTREMES = sizeof extremes / sizeof *extremes };

/* Each extreme there, with a gradient to be taken and without; must: another value is seen. */
static void write_word(uint64_t at, bool must)
{
    for (int k = 0; k < 2 * EXTREMES; k++) {
        open_all(0);
        uint64_t *word = segment_place(memory.header, at), before = *word;
        if (k % 2)
            add(wild);
        before = *word;
        *word = extremes[k / 2];
        superstep();
        if (must && before != extremes[k / 2])
            expect_alone("");
        superstep();
        close_all();
    }
}

START_TEST(every_word_of_the_header)
{
    for (uint64_t at = 0; at < sizeof(struct segment_header); at += sizeof at)
        write_word(at, at < 96 || at == 128 || at == 136 || at == 152);
}
END_TEST

START_TEST(every_word_of_a_slot)
{
    for (uint64_t at = 0; at < SEGMENT_SLOT_BYTES; at += sizeof at)
        write_word(sizeof(struct segment_header) + 320 + at, false);
}
END_TEST

/* The slot without a module, too. */
START_TEST(what_a_slot_cannot_have)
{
    static const struct {
        uint64_t at, value;
        const char *why;
    } of[] = {
        {64, UINT64_C(1) << 63, "pinned a model that never was"},
        {64, 5 << 16 | 1, "pinned a model that never was"},
        {64, 1 << 16 | 40, "pinned a model that never was"},
        {128, 3, "changed the owners of its sums"},
        {128, 0x15, "changed the owners of its sums"},
        {128, 0x1c, "changed the owners of its sums"},
        {128, 9, "changed the owners of its sums"},
        {192, UINT64_C(1) << 50, "changed its counts"},
        {224, UINT64_MAX, "changed its counts"},
    };
    for (size_t k = 0; k < sizeof of / sizeof *of; k++)
        for (unsigned slot = 0; slot < SLOTS; slot++) {
            open_all(0);
            char *p = segment_place(memory.header, memory.layout.slots_at);
            *(uint64_t *)(void *)(p + slot * SEGMENT_SLOT_BYTES + of[k].at) = of[k].value;
            superstep();
            expect_alone(of[k].why);
            close_all();
        }
}
END_TEST

/* --- sums --- */

static void spoil_sums(void)
{
    float *sums = segment_place(memory.header, memory.layout.sums_at);
    for (uint64_t i = 0; i < SEGMENT_SUMS * memory.layout.sum_bytes / sizeof *sums; i++)
        sums[i] = NAN;
}

START_TEST(a_sum_that_is_not_finite_costs_its_own_gradients)
{
    struct local_figures f;
    int pid;
    open_all(0);
    add(wild);
    add(wild);
    spoil_sums();
    struct superstep s = superstep();
    ck_assert_uint_eq(s.sums.gradients, 1);
    ck_assert_uint_eq(s.sums.examples, 2);
    ck_assert_float_eq(model[0], -0.5f);
    local_figures(locals[0], &f);
    ck_assert_uint_eq(f.bad, 2);
    ck_assert_uint_eq(local_bad(locals[0], &pid), 2);
    ck_assert_int_eq(pid, getpid());
    ck_assert_uint_eq(local_bad(locals[0], &pid), 0);
    add(wild);                          /* the next one is as good as any */
    ck_assert_uint_eq(superstep().sums.gradients, 2);
    ck_assert(!local_detached(locals[0]));
    descant_ml_detach(wild);
    close_all();
}
END_TEST

/* Taken, and looked at; but it is still the module's memory. */
START_TEST(a_sum_that_changes_while_a_step_is_made_counts_no_more)
{
    open_all(0);
    add(wild);
    meanwhile = spoil_sums;
    ck_assert_uint_eq(superstep().sums.gradients, 2);
    meanwhile = NULL;
    ck_assert_float_eq(model[0], -0.5f);                    /* of both, as all before it */
    ck_assert_float_eq(model[FLOATS - 1], -0.25f);          /* of the good one, and nothing */
    superstep();
    descant_ml_detach(wild);
    close_all();
}
END_TEST

/* With more sums than a step reads where they are, and while what is read out waits for more. */
START_TEST(a_sum_that_changes_while_it_waits_counts_no_more)
{
    struct gradient g;
    float sum[FLOATS], first[FLOATS], second[FLOATS], third[FLOATS];
    ck_assert(gradient_init(&g, sum, FLOATS, 3));
    for (int i = 0; i < FLOATS; i++) {
        first[i] = 1;
        second[i] = i == 4500 ? (float)NAN : 2;
        third[i] = i == 3 ? (float)INFINITY : 4;
    }
    gradient_take(&g, first);
    gradient_take(&g, second);
    gradient_take(&g, third);
    gradient_gather(&g);
    ck_assert_float_eq(sum[0], 3);
    ck_assert_float_eq(sum[4095], 3);
    ck_assert_float_eq(sum[FLOATS - 1], 5);
    gradient_take(&g, second);
    gradient_gather(&g);
    ck_assert_float_eq(sum[0], 5);
    ck_assert_float_eq(sum[FLOATS - 1], 5);
    gradient_fini(&g);
}
END_TEST

/* --- its length --- */

static void cut_to(off_t bytes)
{
    char object[80];
    snprintf(object, sizeof object, "/descant.%s", names[0]);
    int fd = shm_open(object, O_RDWR, 0);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(ftruncate(fd, bytes), 0);
    close(fd);
}

static void cut_all(void)
{
    cut_to(0);
}

static const off_t lengths[] = {0, 1, 4096, 40000, 100000};

START_TEST(one_that_is_cut_short)
{
    open_all(0);
    add(wild);
    cut_to(lengths[_i]);
    for (int k = 0; k < 3 && !local_detached(locals[0]); k++)
        superstep();
    expect_alone("");
    close_all();
}
END_TEST

START_TEST(one_that_is_cut_short_while_a_step_is_made)
{
    open_all(0);
    add(wild);
    meanwhile = cut_all;
    superstep();
    meanwhile = NULL;
    superstep();
    expect_alone("");
    close_all();
}
END_TEST

/* --- at random, by a process that does nothing else --- */

static uint64_t chance(uint64_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed;
}

/* From there on; a quarter of the words are extreme, a quarter what was there but for a bit. */
static void scribble(uint64_t seed, uint64_t from)
{
    const uint64_t words = (memory.bytes - from) / sizeof(uint64_t);
    uint64_t *at = segment_place(memory.header, from);
    for (;;) {
        uint64_t where = chance(&seed) % 4 ? chance(&seed) % words
                                           : chance(&seed) % (words < 160 ? words : 160);
        uint64_t what = chance(&seed), how = chance(&seed) % 4;
        at[where] = how == 0   ? extremes[what % EXTREMES]
                    : how == 1 ? at[where] ^ UINT64_C(1) << what % 64
                               : what;
    }
}

static pid_t start(uint64_t seed, uint64_t from)
{
    pid_t child = fork();
    if (child == 0)
        scribble(seed, from);
    ck_assert_int_gt(child, 0);
    return child;
}

static void stop(pid_t child)
{
    int status;
    kill(child, SIGKILL);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
}

START_TEST(a_process_that_scribbles_over_all_of_it)
{
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        open_all(1);
        add(wild);
        pid_t child = start(seed * UINT64_C(0x9e3779b97f4a7c15), 0);
        while (!local_detached(locals[0]))
            superstep();
        stop(child);
        for (int k = 0; k < 3; k++)
            superstep();
        close_all();
    }
}
END_TEST

/* And goes on giving sums, whose words are those of one in good order. */
START_TEST(a_process_that_scribbles_over_sums_and_models)
{
    uint64_t counted = 0;
    open_all(1);
    pid_t child = start(7, memory.layout.copies_at);
    for (int k = 0; k < 300; k++) {
        struct descant_ml_model is;
        ck_assert_int_eq(descant_ml_pin(wild, &is), DESCANT_OK);
        descant_ml_add(wild, all_ones, 2);          /* refused, or not */
        counted += superstep().sums.gradients;
    }
    stop(child);
    ck_assert(!local_detached(locals[0]));
    ck_assert_uint_ge(counted, 300);
    descant_ml_detach(wild);
    close_all();
}
END_TEST

/* --- what is left of one --- */

static void keep_and_die(void)
{
    struct segment *segment;
    if (try_segment(&segment, FLOATS, SLOTS, 0, 1) != DESCANT_OK)
        _exit(1);
    raise(SIGKILL);
}

START_TEST(what_a_wild_module_has_left_is_replaced)
{
    static const struct {
        uint64_t at, value;
    } of[] = {{128, 0}, {128, 1 << 16 | 50}, {128, UINT64_MAX}, {512 + 128, 5}, {512 + 64, 9},
              {1024 + 128, 0x20}, {128, (((uint64_t)1 << 47) - 2) << 16 | 1}};
    for (size_t k = 0; k < sizeof of / sizeof *of; k++) {
        struct segment *segment;
        int status;
        new_name();
        pid_t child = fork();
        if (child == 0)
            keep_and_die();
        ck_assert_int_eq(waitpid(child, &status, 0), child);
        ck_assert_int_eq(object_open(&memory, segment_name, NULL), DESCANT_OK);
        *(uint64_t *)segment_place(memory.header, of[k].at) = of[k].value;
        object_close(&memory);
        ck_assert_int_eq(try_segment(&segment, FLOATS, SLOTS, 0, 1), DESCANT_OK);
        ck_assert(!segment_taken_over(segment));
        store_model(segment, 2);
        segment_close(segment);
    }
}
END_TEST

/* A SIGBUS that a process is sent is no access to a segment. */
START_TEST(a_signal_that_is_sent_ends_the_process)
{
    int status;
    char path[100];
    new_name();
    pid_t child = fork();
    if (child == 0) {
        struct segment *segment;
        signal(SIGBUS, SIG_DFL);        /* not a sanitizer's */
        if (try_segment(&segment, FLOATS, SLOTS, 0, 1) != DESCANT_OK)
            _exit(1);
        kill(getpid(), SIGBUS);
        _exit(0);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
    snprintf(path, sizeof path, "/descant.%s", segment_name);
    ck_assert_int_eq(shm_unlink(path), 0);
}
END_TEST

int main(void)
{
    TCase *tests = new_case("wild", 300);
    tcase_add_test(tests, every_word_of_the_header);
    tcase_add_test(tests, every_word_of_a_slot);
    tcase_add_test(tests, what_a_slot_cannot_have);
    tcase_add_test(tests, a_sum_that_is_not_finite_costs_its_own_gradients);
    tcase_add_test(tests, a_sum_that_changes_while_a_step_is_made_counts_no_more);
    tcase_add_test(tests, a_sum_that_changes_while_it_waits_counts_no_more);
    tcase_add_loop_test(tests, one_that_is_cut_short, 0, N(lengths));
    tcase_add_test(tests, one_that_is_cut_short_while_a_step_is_made);
    tcase_add_test(tests, a_process_that_scribbles_over_all_of_it);
    tcase_add_test(tests, a_process_that_scribbles_over_sums_and_models);
    tcase_add_test(tests, what_a_wild_module_has_left_is_replaced);
    tcase_add_test(tests, a_signal_that_is_sent_ends_the_process);
    return run_cases(tests, NULL);
}
