/* SPDX-License-Identifier: MIT */
/* Control and two branches in one thread, over every fabric that carries parcels, with ML modules
 * that are this process, too: supersteps against a scalar reference, to the bit; who is late; who is
 * gone. */
#include "bsp/branch.h"
#include "bsp/control.h"
#include "bsp/remote.h"
#include "harness/heard.h"
#include "harness/segments.h"
#include "harness/suite.h"
#include "mpi_loopback.h"

enum { FLOATS = 37, RANKS = 3, SLOTS = 2, BOUND = 3, TURNS = 200000 };

static const struct fabric_type *const rows[] = {&fabric_shm, &fabric_loopback};
enum { N_ROWS = sizeof rows / sizeof *rows };

static struct segment_part parts[] = {{.name = "b", .n = 1}, {.name = "w", .n = FLOATS - 1}};
enum { PARTS_FLOATS = sizeof(parts) / (sizeof(float)) };
static const struct fabric_type *type;
static struct loopback *ranks;
static struct fabric *f[RANKS];
static struct local *remotes[RANKS - 1];
static struct branch *branches[RANKS - 1];
static struct descant_ml *modules[RANKS - 1][SLOTS];
static struct control *control;
static float model[FLOATS], want[FLOATS];
static uint64_t order, run, bound = BOUND;

static void step(void *of, const struct control_piece *piece)
{
    (void)of;
    for (size_t i = 0; i < piece->n; i++)
        piece->w[i] -= piece->g[i] / (float)piece->step;
}

/* --- opening --- */

static void open_rank(int k)
{
    const struct fabric_options o = {.address = type == &fabric_shm ? segment_name : "", .rank = k,
                                     .start_s = 20, .context = ranks};
    ck_assert_msg(type->open(&f[k], &o) == DESCANT_OK, "%s", descant_last_error());
}

static void open_branch(int k)
{
    const struct branch_options o = {.f = f[k + 1], .name = segment_name, .modules = 1,
                                     .slots = SLOTS, .log = &listening};
    ck_assert_int_eq(branch_open(&branches[k], &o), DESCANT_OK);
}

static void open_remotes(uint64_t version)
{
    run++;
    for (int k = 0; k < RANKS - 1; k++) {
        const struct remote_options o = {
            .f = f[0], .rank = k + 1, .n = FLOATS, .parts = parts, .n_parts = 2, .bound = bound,
            .run = run, .first_rank = 1, .n_ranks = RANKS - 1, .model = model,
            .version = version, .log = &listening};
        ck_assert_int_eq(remote_open(&remotes[k], &o), DESCANT_OK);
    }
}

static void open_control(uint64_t version)
{
    const struct control_options o = {.locals = remotes, .n_locals = RANKS - 1, .n = FLOATS,
                                      .w = model, .version = version, .bound = bound,
                                      .step = step, .log = &listening};
    ck_assert_int_eq(control_create(&control, &o), DESCANT_OK);
}

/* All but one that is stopped; -1: all. */
static void turn(int stopped)
{
    for (int k = 0; k < RANKS; k++)
        if (f[k])
            ck_assert_int_eq(type->post->move(f[k]), DESCANT_OK);
    for (int k = 0; k < RANKS - 1; k++) {
        bool now_heard;
        if (f[0])
            remote_turn(remotes[k]);
        if (f[k + 1] && k != stopped)
            ck_assert_msg(branch_turn(branches[k], &now_heard) == DESCANT_OK, "%s",
                          descant_last_error());
    }
    if (control && f[0])
        control_meet(control);
}

static void turn_until(bool (*is)(void), int stopped)
{
    for (int turns = 0; !is(); turns++) {
        ck_assert_msg(turns < TURNS, "it does not come to it: %s", heard.text);
        turn(stopped);
    }
}

static bool have_segments(void)
{
    return branch_locals(branches[0]) && branch_locals(branches[1]);
}

static bool have_newest(void)
{
    for (int k = 0; k < RANKS - 1; k++)
        if (local_version(branch_local(branches[k], 0)) != control_version(control))
            return false;
    return true;
}

static bool have_said_hello(void)
{
    return remote_news(remotes[0]).welcome && remote_news(remotes[1]).welcome;
}

static bool none_awaited(void)
{
    return !remote_awaited(remotes[0], order) && !remote_awaited(remotes[1], order);
}

static void attach_all(void)
{
    char name[80];
    for (int k = 0; k < RANKS - 1; k++)
        for (int s = 0; s < SLOTS; s++) {
            snprintf(name, sizeof name, "%s-%d", segment_name, k);
            ck_assert_int_eq(descant_ml_attach(&modules[k][s], name, 0), DESCANT_OK);
        }
}

static void open_all(int row)
{
    type = rows[row];
    new_name();
    heard.text[0] = 0;
    ranks = type == &fabric_loopback ? loopback_create_hosts(RANKS, 1, 11) : NULL;
    for (int i = 0; i < FLOATS; i++)
        model[i] = want[i] = (float)(i % 5) - 2;
    for (int k = 0; k < RANKS; k++)
        open_rank(k);
    open_remotes(1);
    for (int k = 0; k < RANKS - 1; k++)
        open_branch(k);
    open_control(1);
    turn_until(have_segments, -1);
    attach_all();
}

static void close_branch(int k)
{
    for (int s = 0; s < SLOTS; s++) {
        descant_ml_detach(modules[k][s]);
        modules[k][s] = NULL;
    }
    branch_close(branches[k]);
    type->close(f[k + 1]);
    branches[k] = NULL;
    f[k + 1] = NULL;
}

static void close_control(void)
{
    control_destroy(control);
    control = NULL;
    for (int k = 0; k < RANKS - 1; k++)
        local_close(remotes[k]);
    type->close(f[0]);
    f[0] = NULL;
}

static void close_all(void)
{
    if (f[0])
        close_control();
    for (int k = 0; k < RANKS - 1; k++)
        if (f[k + 1])
            close_branch(k);
    loopback_destroy(ranks);
    ck_assert_int_eq(memory_live(), 0);
}

/* --- adding and stepping --- */

static void ask(void)
{
    order++;
    for (int k = 0; k < RANKS - 1; k++)
        remote_ask(remotes[k], order);
}

static struct superstep superstep(void)
{
    struct superstep s;
    for (int k = 0; k < RANKS - 1; k++)
        remote_pass_over(remotes[k], order);
    ck_assert_int_eq(control_superstep(control, &s), DESCANT_OK);
    return s;
}

/* Who adds how many examples in which superstep; in each they are a power of two. */
static const struct {
    int superstep, k, slot;
    uint64_t examples;
} adds[] = {
    {0, 0, 0, 3}, {0, 0, 1, 1}, {0, 1, 0, 4},
    {1, 1, 1, 1},
    {2, 0, 0, 5}, {2, 0, 0, 2}, {2, 1, 0, 8}, {2, 1, 1, 1},
    {3, 0, 1, 2}, {3, 1, 1, 2}, {3, 0, 0, 28},
};
enum { N_ADDS = sizeof adds / sizeof *adds, SUPERSTEPS = 4 };

/* The rule, by hand, over those adds that are of it. */
static void refer(const int *numbers, const uint64_t *examples, int n, int number)
{
    double all = 0;
    for (int a = 0; a < n; a++)
        all += (double)examples[a];
    for (int i = 0; i < FLOATS; i++) {
        float g = 0;
        for (int a = 0; a < n; a++)
            g += (float)examples[a] * added(numbers[a], i);
        want[i] -= (float)((double)g / all) / (float)number;
    }
}

static void expect_models(void)
{
    struct descant_ml_model is;
    turn_until(have_newest, -1);
    for (int k = 0; k < RANKS - 1; k++) {
        ck_assert_int_eq(descant_ml_pin(modules[k][0], &is), DESCANT_OK);
        ck_assert_uint_eq(is.version, control_version(control));
        ck_assert_int_eq(memcmp(is.values, want, sizeof want), 0);
    }
}

START_TEST(supersteps_are_exact)
{
    open_all(_i);
    for (int number = 0; number < SUPERSTEPS; number++) {
        int which[N_ADDS], n = 0;
        uint64_t examples[N_ADDS];
        for (int a = 0; a < N_ADDS; a++)
            if (adds[a].superstep == number) {
                add_numbers(modules[adds[a].k][adds[a].slot], a, adds[a].examples);
                which[n] = a;
                examples[n++] = adds[a].examples;
            }
        ask();
        turn_until(none_awaited, -1);
        struct superstep s = superstep();
        ck_assert(s.stepped && s.sums.gradients == (uint64_t)n && s.sums.undone == 0);
        refer(which, examples, n, number + 1);
        expect_models();
    }
    ck_assert_uint_eq(control_version(control), SUPERSTEPS + 1);
    ask();
    turn_until(none_awaited, -1);
    ck_assert(!superstep().stepped);
    close_all();
}
END_TEST

/* A branch that is not turned holds nobody up, is not waited for in the next order, and its sum
 * counts, once, in the superstep after it came. */
START_TEST(a_late_sum_counts_later)
{
    const int first[] = {1}, later[] = {2, 3};
    const uint64_t one[] = {4}, two[] = {3, 5};
    open_all(_i);
    expect_models();
    add_numbers(modules[0][0], 1, 4);
    add_numbers(modules[1][0], 2, 3);
    ask();
    for (int turns = 0; remote_awaited(remotes[0], order); turns++) {
        ck_assert_int_lt(turns, TURNS);
        turn(1);
    }
    ck_assert(remote_awaited(remotes[1], order));
    struct superstep s = superstep();
    ck_assert(s.stepped && s.sums.gradients == 1);
    refer(first, one, 1, 1);
    for (int turns = 0; local_version(branch_local(branches[0], 0)) < 2; turns++) {
        ck_assert_int_lt(turns, TURNS);
        turn(1);
    }
    ck_assert_uint_eq(local_version(branch_local(branches[1], 0)), 1);
    ask();
    ck_assert(!remote_awaited(remotes[1], order));
    turn_until(none_awaited, 1);
    ck_assert(!superstep().stepped);

    add_numbers(modules[0][1], 3, 5);
    ask();
    turn_until(none_awaited, -1);
    for (int turns = 0; turns < 500; turns++)
        turn(-1);
    s = superstep();
    ck_assert(s.stepped && s.sums.gradients == 2 && s.sums.lag == 1 && s.sums.lag_most == 1);
    refer(later, two, 2, 2);
    expect_models();
    ask();
    ck_assert(remote_awaited(remotes[1], order));
    close_all();
}
END_TEST

/* Later than the bound it is refused, as its gradients would be at the add. */
START_TEST(a_sum_that_is_too_late_is_refused)
{
    struct local_figures figures;
    int late = BOUND + _i / N_ROWS;
    open_all(_i % N_ROWS);
    expect_models();
    add_numbers(modules[1][0], 2, 3);
    for (int k = 0; k < late; k++) {
        add_numbers(modules[0][0], 1, 4);
        ask();
        for (int turns = 0; remote_awaited(remotes[0], order); turns++) {
            ck_assert_int_lt(turns, TURNS);
            turn(1);
        }
        ck_assert(superstep().stepped);
        for (int turns = 0; turns < 200; turns++)
            turn(1);
    }
    ck_assert_uint_eq(control_version(control), (uint64_t)late + 1);
    for (int turns = 0; turns < 500; turns++)
        turn(-1);
    struct superstep s = superstep();
    ck_assert_uint_eq(s.sums.gradients, late > BOUND ? 0 : 1);
    local_figures(remotes[1], &figures);
    ck_assert_uint_eq(figures.stale, late > BOUND ? 1 : 0);
    ck_assert_uint_eq(s.sums.lag_most, late > BOUND ? 0 : BOUND);
    close_all();
}
END_TEST

/* None at all, where no gradient may be behind. */
START_TEST(a_bound_of_0_is_one)
{
    struct local_figures figures;
    bound = 0;
    open_all(_i);
    expect_models();
    add_numbers(modules[0][0], 1, 4);
    add_numbers(modules[1][0], 2, 3);
    ask();
    for (int turns = 0; remote_awaited(remotes[0], order); turns++) {
        ck_assert_int_lt(turns, TURNS);
        turn(1);
    }
    ck_assert_uint_eq(superstep().sums.gradients, 1);
    turn_until(none_awaited, -1);
    for (int turns = 0; turns < 500; turns++)
        turn(-1);
    ck_assert(!superstep().stepped);
    local_figures(remotes[1], &figures);
    ck_assert_uint_eq(figures.stale, 1);
    close_all();
}
END_TEST

/* What control will read out can be known without its order. */
START_TEST(pending_gradients_are_told)
{
    open_all(_i);
    expect_models();
    ck_assert_uint_eq(control_pending(control), 0);
    add_numbers(modules[0][0], 1, 1);
    add_numbers(modules[0][0], 2, 1);
    add_numbers(modules[1][1], 3, 1);
    for (int turns = 0; control_pending(control) != 3; turns++) {
        ck_assert_int_lt(turns, TURNS);
        usleep(100);
        turn(-1);
    }
    ask();
    turn_until(none_awaited, -1);
    ck_assert_uint_eq(control_pending(control), 3);
    ck_assert_uint_eq(superstep().sums.gradients, 3);
    ck_assert_uint_eq(control_pending(control), 0);
    close_all();
}
END_TEST

/* Segments and modules go on without control; the next one is above them, and takes no gradient on
 * what the first one made: neither from a segment, nor what was on its way. */
START_TEST(another_control_finds_the_branches)
{
    struct descant_ml_model is;
    bool now_heard;
    const int which[] = {5, 6};
    const uint64_t examples[] = {2, 6};
    open_all(0);
    add_numbers(modules[0][0], 1, 1);
    ask();
    turn_until(none_awaited, -1);
    superstep();
    turn_until(have_newest, -1);
    add_numbers(modules[0][0], 4, 1);
    ask();
    ck_assert_int_eq(branch_turn(branches[0], &now_heard), DESCANT_OK);
    ck_assert_uint_eq(local_pending(branch_local(branches[0], 0)), 0);
    close_control();
    turn(-1);
    ck_assert(branch_alone(branches[0]) && branch_alone(branches[1]));
    ck_assert(strstr(heard.text, "control is gone: segments and modules go on"));
    add_numbers(modules[0][1], 2, 1);
    add_numbers(modules[1][0], 3, 1);

    for (int i = 0; i < FLOATS; i++)
        model[i] = want[i] = (float)i;
    open_rank(0);
    open_remotes(1);
    turn_until(have_said_hello, -1);
    open_control(1);
    ck_assert_uint_eq(control_version(control), 2 + BOUND + 1);
    expect_models();
    ask();
    turn_until(none_awaited, -1);
    struct superstep s = superstep();
    ck_assert(!s.stepped && s.sums.gradients == 0 && s.sums.undone == 3);
    add_numbers(modules[0][0], 5, 2);
    add_numbers(modules[1][1], 6, 6);
    ask();
    turn_until(none_awaited, -1);
    s = superstep();
    ck_assert(s.stepped && s.sums.gradients == 2);
    refer(which, examples, 2, 1);
    expect_models();
    ck_assert_int_eq(descant_ml_pin(modules[0][0], &is), DESCANT_OK);
    ck_assert(strstr(heard.text, "there is a control again"));
    close_all();
}
END_TEST

/* As many floats in as many parts, and one has another name, or other ends. */
START_TEST(another_model_is_refused)
{
    bool now_heard;
    descant_status status = DESCANT_OK;
    open_all(0);
    turn_until(have_newest, -1);
    close_control();
    turn(-1);
    if (_i == 0)
        snprintf(parts[1].name, sizeof parts[1].name, "v");
    parts[0].n += _i == 1;
    parts[1].n -= _i == 1;
    open_rank(0);
    open_remotes(1);
    for (int turns = 0; status == DESCANT_OK; turns++) {
        ck_assert_msg(turns < TURNS, "it is taken: %s", heard.text);
        for (int k = 0; k < 2; k++)
            ck_assert_int_eq(type->post->move(f[k]), DESCANT_OK);
        remote_turn(remotes[0]);
        status = branch_turn(branches[0], &now_heard);
    }
    ck_assert_int_eq(status, DESCANT_MISMATCH);
    ck_assert_msg(strstr(heard.text, _i ? "its part 0 is 'b' of 2 floats, that of these segments 'b' of 1"
                                  : "its part 1 is 'v' of"), "%s", heard.text);
    ck_assert_uint_eq(local_version(branch_local(branches[0], 0)), 1);
    close_all();
}
END_TEST

/* What was sent counts, what was not is lost and told; who comes for it has the model. */
START_TEST(a_branch_that_dies_is_said)
{
    open_all(0);
    turn_until(have_newest, -1);
    add_numbers(modules[0][0], 1, 4);
    add_numbers(modules[1][0], 2, 4);
    ask();
    turn_until(none_awaited, -1);
    add_numbers(modules[1][0], 3, 4);
    add_numbers(modules[1][1], 4, 4);
    superstep();
    for (int turns = 0; control_pending(control) != 2; turns++) {
        ck_assert_int_lt(turns, TURNS);
        usleep(100);
        turn(-1);
    }
    close_branch(1);
    remote_turn(remotes[1]);
    ck_assert(strstr(heard.text, "the local modules of rank 2 have died, with 2 gradients that were not "
                           "read out; the others go on"));
    ck_assert_uint_eq(remote_news(remotes[1]).lost, 2);
    ask();
    ck_assert(!remote_awaited(remotes[1], order));

    open_rank(2);
    open_branch(1);
    turn_until(have_segments, -1);
    memcpy(want, model, sizeof want);
    char name[80];
    snprintf(name, sizeof name, "%s-1", segment_name);
    for (int s = 0; s < SLOTS; s++)
        ck_assert_int_eq(descant_ml_attach(&modules[1][s], name, 0), DESCANT_OK);
    expect_models();
    turn_until(none_awaited, -1);
    ck_assert(!superstep().stepped);
    add_numbers(modules[1][0], 7, 1);
    ask();
    ck_assert(remote_awaited(remotes[1], order));
    turn_until(none_awaited, -1);
    ck_assert_uint_eq(superstep().sums.gradients, 1);
    ck_assert_uint_eq(remote_news(remotes[1]).lost, 2);
    close_all();
}
END_TEST

/* What control before this one had taken, or was sent, is not lost with a branch that dies later. */
START_TEST(what_another_control_had_is_not_lost)
{
    bool now_heard;
    open_all(0);
    turn_until(have_newest, -1);
    for (int k = 0; k < 9; k++) {
        add_numbers(modules[1][0], k, 4);
        ask();
        turn_until(none_awaited, -1);
        superstep();
        turn_until(have_newest, -1);
    }
    add_numbers(modules[1][0], 2, 4);
    ask();
    ck_assert_int_eq(branch_turn(branches[1], &now_heard), DESCANT_OK);     /* and is not taken */
    close_control();
    turn(-1);
    add_numbers(modules[1][1], 3, 4);
    open_rank(0);
    open_remotes(1);
    turn_until(have_said_hello, -1);
    open_control(1);
    turn_until(have_newest, -1);
    ask();
    turn_until(none_awaited, -1);
    ck_assert_uint_eq(superstep().sums.undone, 2);
    add_numbers(modules[1][0], 4, 4);
    add_numbers(modules[1][0], 5, 4);
    add_numbers(modules[1][1], 6, 4);
    for (int turns = 0; control_pending(control) != 3; turns++) {
        ck_assert_int_lt(turns, TURNS);
        usleep(100);
        turn(-1);
    }
    close_branch(1);
    remote_turn(remotes[1]);
    ck_assert_msg(strstr(heard.text, "the local modules of rank 2 have died, with 3 gradients that were "
                               "not read out; the others go on"), "%s", heard.text);
    ck_assert_uint_eq(remote_news(remotes[1]).lost, 3);
    close_all();
}
END_TEST

static bool all_left(void)
{
    return remote_news(remotes[0]).left && remote_news(remotes[1]).left &&
           branch_done(branches[0]) && branch_done(branches[1]);
}

static bool both_ended(void)
{
    return branch_ended(branches[0]) && branch_ended(branches[1]);
}

START_TEST(the_last_sums_are_read_out)
{
    struct descant_ml_model is;
    open_all(_i);
    add_numbers(modules[0][0], 1, 1);
    add_numbers(modules[1][0], 2, 1);
    for (int k = 0; k < RANKS - 1; k++)
        local_end(remotes[k]);
    turn_until(both_ended, -1);
    for (int k = 0; k < RANKS - 1; k++) {
        branch_end(branches[k]);
        branch_last(branches[k]);
        ck_assert_int_eq(descant_ml_pin(modules[k][0], &is), DESCANT_ENDED);
    }
    for (int turns = 0; !all_left(); turns++) {
        ck_assert_int_lt(turns, TURNS);
        turn(-1);
        control_read_out(control);
    }
    struct superstep s = superstep();
    ck_assert(s.stepped && s.sums.gradients == 2);
    ck_assert_uint_eq(remote_news(remotes[0]).lost + remote_news(remotes[1]).lost, 0);
    close_all();
}
END_TEST

/* It does not stay for the branches: they find the end when it is gone. */
START_TEST(the_end_outlives_control)
{
    open_all(0);
    turn_until(have_newest, -1);
    for (int k = 0; k < RANKS - 1; k++)
        local_end(remotes[k]);
    close_control();
    turn(-1);
    ck_assert(both_ended());
    ck_assert(branch_alone(branches[0]) && branch_alone(branches[1]));
    ck_assert_ptr_null(strstr(heard.text, "another one is awaited"));
    close_all();
}
END_TEST

START_TEST(who_comes_at_the_end_hears_of_it)
{
    open_all(0);
    turn_until(have_newest, -1);
    for (int k = 0; k < RANKS - 1; k++)
        local_end(remotes[k]);
    turn_until(both_ended, -1);
    close_branch(1);
    turn(1);
    open_rank(2);
    open_branch(1);
    turn_until(both_ended, -1);
    close_all();
}
END_TEST

static void send_down(uint32_t what, uint64_t version, const void *values, size_t n)
{
    const struct down down = {.what = what, .run = run, .version = version, .since = 1, .n = FLOATS,
                              .n_parts = 2, .room = PARTS_FLOATS, .bound = bound};
    unsigned char head[POST_HEAD] = {0};
    memcpy(head, &down, sizeof down);
    memcpy(type->post->box(f[0], 2), values, n * sizeof(float));
    ck_assert(type->post->free(f[0], 2));
    type->post->send(f[0], 2, head, n);
}

/* A model for who had the rank before, which died meanwhile, and words that come twice. */
START_TEST(words_for_another_do_no_harm)
{
    bool now_heard;
    open_all(0);
    turn_until(have_newest, -1);
    close_branch(1);
    open_rank(2);
    open_branch(1);
    ck_assert_int_eq(branch_turn(branches[1], &now_heard), DESCANT_OK);
    send_down(DOWN_MODEL | DOWN_READ, 1, model, FLOATS);
    ck_assert_msg(branch_turn(branches[1], &now_heard) == DESCANT_OK, "%s", heard.text);
    ck_assert(now_heard && branch_locals(branches[1]) == 0);
    turn_until(have_segments, -1);
    turn_until(have_newest, -1);

    uint64_t version = control_version(control);
    send_down(DOWN_SHAPE, 0, parts, PARTS_FLOATS);
    ck_assert_msg(branch_turn(branches[1], &now_heard) == DESCANT_OK, "%s", heard.text);
    send_down(DOWN_MODEL, version, model, FLOATS);
    for (int turns = 0; turns < 10; turns++)
        turn(-1);
    ck_assert_uint_eq(control_version(control), version);
    send_down(DOWN_SHAPE, 0, model, FLOATS);
    ck_assert_int_eq(branch_turn(branches[1], &now_heard), DESCANT_CORRUPT);
    close_all();
}
END_TEST

/* A version that no run has come to moves nobody else's; who says it is left out. */
START_TEST(versions_are_not_believed_blindly)
{
    static const uint64_t versions[] = {UINT64_MAX, UINT64_MAX - BOUND, (uint64_t)1 << 47};
    unsigned char head[POST_HEAD] = {0};
    const struct up up = {.what = UP_HELLO | UP_ABOVE, .modules = 1, .run = run + 7,
                          .version = versions[_i]};
    open_all(0);
    turn_until(have_newest, -1);
    memcpy(head, &up, sizeof up);
    ck_assert(type->post->free(f[2], 0));
    type->post->send(f[2], 0, head, 0);
    for (int turns = 0; turns < 10; turns++)
        turn(-1);
    ck_assert_uint_eq(control_version(control), 1);
    ck_assert_msg(strstr(heard.text, "rank 2 says that its segments have version "), "%s", heard.text);
    add_numbers(modules[0][0], 1, 4);
    ask();
    turn_until(none_awaited, -1);
    ck_assert_uint_eq(superstep().sums.gradients, 1);
    ck_assert_uint_eq(control_version(control), 2);
    close_all();
}
END_TEST

int main(void)
{
    TCase *tests = new_case("branch", 60);
    tcase_add_loop_test(tests, supersteps_are_exact, 0, N_ROWS);
    tcase_add_loop_test(tests, a_late_sum_counts_later, 0, N_ROWS);
    tcase_add_loop_test(tests, a_sum_that_is_too_late_is_refused, 0, 2 * N_ROWS);
    tcase_add_loop_test(tests, a_bound_of_0_is_one, 0, N_ROWS);
    tcase_add_loop_test(tests, pending_gradients_are_told, 0, N_ROWS);
    tcase_add_test(tests, another_control_finds_the_branches);
    tcase_add_loop_test(tests, another_model_is_refused, 0, 2);
    tcase_add_test(tests, a_branch_that_dies_is_said);
    tcase_add_test(tests, what_another_control_had_is_not_lost);
    tcase_add_loop_test(tests, the_last_sums_are_read_out, 0, N_ROWS);
    tcase_add_test(tests, the_end_outlives_control);
    tcase_add_test(tests, who_comes_at_the_end_hears_of_it);
    tcase_add_test(tests, words_for_another_do_no_harm);
    tcase_add_loop_test(tests, versions_are_not_believed_blindly, 0, 3);
    return run_cases(tests, NULL);
}
