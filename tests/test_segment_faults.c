/* SPDX-License-Identifier: MIT */
/* Segments in trouble: modules and keepers that die, names, numbers and layouts that are refused,
 * memory that is lacking. */
#include "harness/segments.h"
#include "harness/suite.h"

#include "bsp/object.h"
#include "machine/process.h"

#include <fcntl.h>
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

enum { FLOATS = FIVE };

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
    TCase *tests = new_case("segment", 60);
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
    return run_cases(tests, NULL);
}
