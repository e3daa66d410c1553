/* SPDX-License-Identifier: MIT */
/* What descant.h promises, from a caller's side: statuses and messages for wrong use, one trainer
 * alone, outer state, reload, forked children, failing memory. */
#include <check.h>
#include <dirent.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/base.h"
#include "harness/jobs.h"
#include "harness/suite.h"

enum { N = 3000 };

/* ------------------------------------------------------------------ wrong use */

static const struct {
    const char *job, *plan;
    int rank, size;
    descant_status status;
    const char *says;
} bad_options[] = {
    {"self", "shadow-eagsd", -1, 0, DESCANT_BAD_PLAN, "shadow-eagsd"},
    {"self", "dasgd,every=0", -1, 0, DESCANT_BAD_PLAN, "every"},
    {"self", "dasgd,delay=9", -1, 0, DESCANT_BAD_PLAN, "delay"},
    {"self", "dasgd,alpha=0.1,xi=0.2", -1, 0, DESCANT_BAD_PLAN, "xi"},
    {"tcp:host", "none", -1, 0, DESCANT_BAD_ADDRESS, "tcp:host"},
    {"sim", "none", -1, 0, DESCANT_BAD_ADDRESS, "sim"},
    {"shm:", "none", -1, 0, DESCANT_BAD_ADDRESS, "name"},
    {"shm:a b", "none", -1, 0, DESCANT_BAD_ADDRESS, "a b"},
    {"shm:x,rate=fast", "none", -1, 0, DESCANT_BAD_ADDRESS, "rate"},
    {"self", "none", 3, 2, DESCANT_BAD_RANK, "3"},
    {"self", "none", -2, 2, DESCANT_BAD_RANK, "-2"},
    {"self", "none", -1, -1, DESCANT_BAD_SIZE, "-1"},
};

START_TEST(bad_options_are_named)
{
    struct descant_options o = descant_options_default();
    struct descant *job = NULL;
    o.job = bad_options[_i].job;
    o.plan = bad_options[_i].plan;
    o.rank = bad_options[_i].rank;
    o.size = bad_options[_i].size;
    ck_assert_int_eq(descant_open(&job, &o), bad_options[_i].status);
    ck_assert_ptr_null(job);
    ck_assert_msg(strstr(descant_last_error(), bad_options[_i].says) != NULL, "'%s' has no '%s'",
                  descant_last_error(), bad_options[_i].says);
    ck_assert_int_eq(memory_live(), 0);
}
END_TEST

START_TEST(options_are_copied)
{
    struct descant_options o = descant_options_default();
    struct descant *job = NULL;
    char name_of_all[32];
    snprintf(name_of_all, sizeof name_of_all, "shm:copied-%d", (int)getpid());
    char *address = strdup(name_of_all), *plan = strdup("ma,every=2"), *name = strdup("w");
    o.job = address;
    o.plan = plan;
    ck_assert_int_eq(descant_open(&job, &o), DESCANT_OK);
    memset(address, '!', strlen(address));
    memset(plan, '!', strlen(plan));
    free(address);
    free(plan);
    ck_assert_ptr_nonnull(descant_alloc(job, name, 10));
    memset(name, '!', strlen(name));
    free(name);
    ck_assert_int_eq(descant_start(job), DESCANT_OK);
    for (int k = 0; k < 4; k++)
        ck_assert_int_eq(descant_step(job), DESCANT_OK);
    ck_assert_int_eq(descant_detach(job, "w"), DESCANT_OK);
    ck_assert_int_eq(descant_close(job), DESCANT_OK);
}
END_TEST

START_TEST(a_plan_says_what_it_needs)
{
    static const struct {
        const char *plan;
        struct descant_needs needs;     /* gradients, waits, squares, central */
    } cases[] = {{"none", {0, 0, 1, 0}}, {"allreduce", {1, 1, 1, 0}},
                 {"shadow-easgd", {0, 0, 1, 1}}, {"shadow-ma,merge=delta", {0, 0, 0, 0}},
                 {"ma", {0, 1, 1, 0}}, {"dasgd", {0, 1, 1, 0}}, {"dasgd-delta", {0, 1, 0, 0}},
                 {"diloco", {0, 1, 0, 1}}};
    struct descant *job = open_job("self", cases[_i].plan, -1, 0);
    struct descant_needs needs;
    float m[8] = {0}, v[8] = {0};
    ck_assert_int_eq(descant_needs(NULL, &needs), DESCANT_INVALID);
    ck_assert_int_eq(descant_needs(job, NULL), DESCANT_INVALID);
    ck_assert_int_eq(descant_needs(job, &needs), DESCANT_OK);
    ck_assert_mem_eq(&needs, &cases[_i].needs, sizeof needs);
    ck_assert_ptr_nonnull(descant_alloc(job, "w", 8));
    ck_assert_int_eq(descant_state(job, "m", m, 8, 0), DESCANT_OK);
    ck_assert_int_eq(descant_state(job, "v", v, 8, 1),
                     needs.squares ? DESCANT_OK : DESCANT_UNSUPPORTED);
    ck_assert(needs.squares || strstr(descant_last_error(), "'v' must not fall below zero"));
    ck_assert_int_eq(descant_start(job), DESCANT_OK);
    ck_assert_int_eq(descant_finish(job, DESCANT_FINAL_CENTRAL),
                     needs.central ? DESCANT_OK : DESCANT_UNSUPPORTED);
    descant_close(job);
}
END_TEST

START_TEST(calls_in_the_wrong_order)
{
    struct descant *job = open_job("self", "shadow-ma", -1, 0);
    float w[4];
    ck_assert_int_eq(descant_step(job), DESCANT_ORDER);
    ck_assert_int_eq(descant_start(job), DESCANT_ORDER);        /* no segment */
    ck_assert_int_eq(descant_finish(job, DESCANT_FINAL_LOCAL), DESCANT_ORDER);
    ck_assert_int_eq(descant_attach(job, "w", w, 4), DESCANT_OK);
    ck_assert_int_eq(descant_attach(job, "w", w, 4), DESCANT_DUPLICATE);
    ck_assert_int_eq(descant_attach(job, "a b", w, 4), DESCANT_INVALID);
    ck_assert_int_eq(descant_attach(job, "x", NULL, 4), DESCANT_INVALID);
    ck_assert_int_eq(descant_attach(job, "x", w, 0), DESCANT_INVALID);
    ck_assert_int_eq(descant_attach(job, "x", w + 3, 4), DESCANT_INVALID);
    ck_assert_str_eq(descant_last_error(), "the memory of 'x' overlaps that of 'w', which is "
                                           "attached: each float is of one segment");
    ck_assert_ptr_null(descant_alloc(job, "huge", (size_t)1 << 60));
    ck_assert_int_eq(descant_start(job), DESCANT_OK);
    ck_assert_int_eq(descant_start(job), DESCANT_ORDER);
    int is = 2;
    ck_assert_int_eq(descant_is_member(NULL, 0, &is), DESCANT_INVALID);
    ck_assert_int_eq(descant_is_member(job, -1, &is), DESCANT_INVALID);
    ck_assert_int_eq(descant_is_member(job, 0, NULL), DESCANT_INVALID);
    ck_assert(is == 2 && descant_is_member(job, 1, &is) == DESCANT_OK && is == 0);
    ck_assert(descant_is_member(job, 0, &is) == DESCANT_OK && is == 1);
    ck_assert_ptr_null(descant_alloc(job, "late", 4));
    ck_assert_int_eq(descant_mean(job, w, 4), DESCANT_UNSUPPORTED);
    ck_assert_int_eq(descant_finish(job, DESCANT_FINAL_CENTRAL), DESCANT_UNSUPPORTED);
    ck_assert_int_eq(descant_step(job), DESCANT_OK);
    ck_assert_int_eq(descant_finish(job, DESCANT_FINAL_MEAN), DESCANT_OK);
    ck_assert_int_eq(descant_step(job), DESCANT_ORDER);
    ck_assert_int_eq(descant_close(job), DESCANT_OK);
    ck_assert_int_eq(descant_close(NULL), DESCANT_OK);
    ck_assert_int_eq(descant_step(NULL), DESCANT_INVALID);
    ck_assert_int_eq(descant_attach(NULL, "w", w, 4), DESCANT_INVALID);
    ck_assert_int_eq(memory_live(), 0);
}
END_TEST

START_TEST(a_forked_child_is_refused)
{
    struct descant *job = open_job("self", "shadow-ma", -1, 0);
    ck_assert_ptr_nonnull(descant_alloc(job, "w", 100));
    ck_assert_int_eq(descant_start(job), DESCANT_OK);
    pid_t child = fork();
    if (child == 0)
        _exit(descant_step(job) == DESCANT_FORKED && descant_close(job) == DESCANT_FORKED ? 0
                                                                                         : 1);
    int how;
    waitpid(child, &how, 0);
    ck_assert_int_eq(how, 0);
    ck_assert_int_eq(descant_step(job), DESCANT_OK);
    descant_close(job);
}
END_TEST

START_TEST(shadow_steps_never_stall)
{
    struct descant *job = open_job("self", "shadow-bmuf", -1, 0);
    float *w = descant_alloc(job, "w", N);
    ck_assert_int_eq(descant_start(job), DESCANT_OK);
    for (int i = 0; i < 200000; i++) {
        w[i % N] += 1;
        ck_assert_int_eq(descant_step(job), DESCANT_OK);
    }
    struct descant_stats s;
    do {
        ck_assert_int_eq(descant_step(job), DESCANT_OK);
        ck_assert_int_eq(descant_stats(job, &s), DESCANT_OK);
    } while (s.rounds < 3);
    ck_assert_uint_ge(s.steps, 200000);
    ck_assert_uint_eq(s.stall_ns, 0);
    ck_assert_uint_eq(s.copy_ns, 0);
    ck_assert(s.gap_mean > 0 && s.gap_p99 <= (double)s.gap_max);
    descant_close(job);
}
END_TEST

static int open_files(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    while (d && readdir(d))
        n++;
    closedir(d);
    return n;
}

static descant_status whole_life(const char *address, const char *plan)
{
    struct descant_options o = descant_options_default();
    struct descant *job = NULL;
    o.job = address;
    o.plan = plan;
    descant_status status = descant_open(&job, &o);
    if (status != DESCANT_OK)
        return status;
    float mine[50] = {0};
    void *block;
    float *a = descant_alloc(job, "a", 100);
    status = a ? DESCANT_OK : DESCANT_MEMORY;
    if (status == DESCANT_OK)
        status = descant_attach(job, "b", mine, 50);
    if (status == DESCANT_OK)
        status = descant_share(job, "cursor", 64, &block);
    if (status == DESCANT_OK)
        status = descant_start(job);
    if (status == DESCANT_OK)
        status = descant_finish(job, DESCANT_FINAL_LOCAL);
    if (descant_leave(job) != DESCANT_OK) {
        descant_close(job);
        return DESCANT_MEMORY;
    }
    if (a)
        a[99] += 1;
    descant_free(a);
    return status;
}

START_TEST(failing_memory_leaks_nothing)
{
    char shm[64];
    const char *const jobs[] = {"self", shm};
    static const char *const plans[] = {"shadow-easgd", "shadow-bmuf", "dasgd"};
    snprintf(shm, sizeof shm, "shm:job-fail-%d", (int)getpid());
    for (int j = 0; j < 2; j++)
        for (int p = 0; p < 3; p++) {
            ck_assert_int_eq(whole_life(jobs[j], plans[p]), DESCANT_OK);
            int files = open_files();
            long k = 1;
            for (descant_status status = DESCANT_MEMORY; status != DESCANT_OK; k++) {
                memory_fail_at(k);
                status = whole_life(jobs[j], plans[p]);
                ck_assert_int_eq(memory_live(), 0);
                ck_assert_int_eq(open_files(), files);
                ck_assert_int_lt(k, 200);
            }
            memory_fail_at(0);
            ck_assert_int_gt(k, 6);
        }
}
END_TEST

/* ------------------------------------------------------------------ outer state, reload */

START_TEST(outer_state_is_saved_and_loaded)
{
    struct descant *job = open_job("self", "bmuf,every=1,momentum=0.5", -1, 0);
    float *w = descant_alloc(job, "w", 10);
    ck_assert_int_eq(descant_start(job), DESCANT_OK);
    for (int t = 0; t < 5; t++) {
        w[3] += 1;
        ck_assert_int_eq(descant_step(job), DESCANT_OK);
    }
    size_t bytes = 0;
    ck_assert_int_eq(descant_outer_save(job, NULL, &bytes), DESCANT_OK);
    unsigned char *state = malloc(bytes);
    size_t less = bytes - 1;
    ck_assert_int_eq(descant_outer_save(job, state, &less), DESCANT_INVALID);
    ck_assert_int_eq(descant_outer_save(job, state, &bytes), DESCANT_OK);
    float kept[10], next[10];
    memcpy(kept, w, sizeof kept);
    w[3] += 1;
    descant_step(job);
    memcpy(next, w, sizeof next);
    ck_assert_int_eq(descant_outer_load(job, state, bytes), DESCANT_ORDER);
    ck_assert_int_eq(descant_pause(job), DESCANT_OK);
    memcpy(w, kept, sizeof kept);
    ck_assert_int_eq(descant_outer_load(job, state, bytes), DESCANT_OK);
    ck_assert_int_eq(descant_reload(job), DESCANT_OK);
    descant_step(job);          /* gives it to all */
    w[3] += 1;
    descant_step(job);
    ck_assert_mem_eq(w, next, sizeof next);         /* the same step again, from the saved state */
    ck_assert_int_eq(descant_pause(job), DESCANT_OK);
    ck_assert_int_eq(descant_outer_load(job, state, bytes - 4), DESCANT_CORRUPT);
    state[bytes - 1] ^= 1;
    ck_assert_int_eq(descant_outer_load(job, state, bytes), DESCANT_CORRUPT);
    free(state);
    descant_close(job);
}
END_TEST

int main(void)
{
    TCase *use = new_case("use", 60);
    tcase_add_loop_test(use, bad_options_are_named, 0, N(bad_options));
    tcase_add_test(use, calls_in_the_wrong_order);
    tcase_add_test(use, options_are_copied);
    tcase_add_loop_test(use, a_plan_says_what_it_needs, 0, 8);
    tcase_add_test(use, a_forked_child_is_refused);
    tcase_add_test(use, shadow_steps_never_stall);
    tcase_add_test(use, failing_memory_leaks_nothing);
    tcase_add_test(use, outer_state_is_saved_and_loaded);
    return run_cases(use, NULL);
}
