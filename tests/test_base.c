/* SPDX-License-Identifier: MIT */
/* What everything stands on: failures and the log, memory, chance, clocks, futexes, limits
 * of the machine, JSON lines. */
#include "base/base.h"
#include "base/budget.h"
#include "base/slice.h"
#include "harness/suite.h"
#include "machine/blocks.h"

#include <check.h>
#include <errno.h>
#include <malloc.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* --- status --- */

START_TEST(status_has_texts)
{
    ck_assert_str_eq(descant_status_text(DESCANT_OK), "success");
    for (int i = 0; i <= DESCANT_ENDED; i++)
        ck_assert(strlen(descant_status_text((descant_status)i)) > 3);
    ck_assert_str_eq(descant_status_text((descant_status)999), "an unknown status");
    ck_assert_str_eq(descant_version(), DESCANT_VERSION);
}
END_TEST

struct base_heard {
    int lines, inside;
    enum descant_level level;
    char last[2000];
};

static void hear(void *user, enum descant_level level, const char *line)
{
    struct base_heard *heard = user;
    ck_assert_int_eq(heard->inside++, 0);    /* one at a time */
    heard->lines++;
    heard->level = level;
    snprintf(heard->last, sizeof heard->last, "%s", line);
    heard->inside--;
}

START_TEST(fail_logs_and_keeps)
{
    struct base_heard heard = {0};
    struct log log = {.fn = hear, .user = &heard, .rank = -1};
    ck_assert_str_eq(descant_last_error(), "");
    ck_assert_int_eq(log_fail(&log, DESCANT_SYSTEM, "no %s, %d", "luck", 3), DESCANT_SYSTEM);
    ck_assert_str_eq(descant_last_error(), "no luck, 3");
    ck_assert_str_eq(heard.last, "no luck, 3");
    ck_assert_int_eq(heard.level, DESCANT_ERROR);
    log.rank = 2;
    log_say(&log, DESCANT_INFO, "%d steps", 5);
    ck_assert_str_eq(heard.last, "rank 2: 5 steps");
    ck_assert_int_eq(heard.level, DESCANT_INFO);
    ck_assert_str_eq(descant_last_error(), "no luck, 3");
    ck_assert_int_eq(heard.lines, 2);
    log_fail(NULL, DESCANT_MEMORY, "again: %s", descant_last_error());
    ck_assert_str_eq(descant_last_error(), "again: no luck, 3");
    log.fn = NULL;
    log_say(&log, DESCANT_INFO, "nobody hears");
    log_say(NULL, DESCANT_INFO, "nobody hears");
}
END_TEST

START_TEST(long_lines_are_cut)
{
    struct base_heard heard = {0};
    struct log log = {.fn = hear, .user = &heard, .rank = 1};
    log_fail(&log, DESCANT_SYSTEM, "%05000d", 7);
    ck_assert_uint_eq(strlen(descant_last_error()), 1023);
    ck_assert_uint_gt(strlen(heard.last), 1000);
}
END_TEST

static void *say_much(void *argument)
{
    const struct log *log = argument;
    bool clean = descant_last_error()[0] == 0;    /* another thread's error is not ours */
    for (int i = 0; i < 2000; i++)
        log_fail(log, DESCANT_SYSTEM, "line %d", i);
    return clean ? argument : NULL;
}

START_TEST(callbacks_come_one_at_a_time)
{
    struct base_heard heard = {0};
    struct log log = {.fn = hear, .user = &heard, .rank = -1};
    pthread_t threads[4];
    log_fail(NULL, DESCANT_SYSTEM, "mine");
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, say_much, &log), 0);
    for (int i = 0; i < 4; i++) {
        void *result;
        pthread_join(threads[i], &result);
        ck_assert_ptr_nonnull(result);
    }
    ck_assert_int_eq(heard.lines, 8000);
    ck_assert_str_eq(descant_last_error(), "mine");
}
END_TEST

/* --- memory --- */

START_TEST(memory_is_zeroed_and_aligned)
{
    long before = memory_live();
    for (size_t bytes = 0; bytes < 300; bytes += 7) {
        unsigned char *p = memory_take(bytes);
        ck_assert_ptr_nonnull(p);
        ck_assert_uint_eq((uintptr_t)p % 64, 0);
        for (size_t i = 0; i < bytes; i++)
            ck_assert_uint_eq(p[i], 0);
        memset(p, 0xff, bytes);
        ck_assert_int_eq(memory_live(), before + 1);
        memory_give(p);
    }
    memory_give(NULL);
    ck_assert_int_eq(memory_live(), before);
}
END_TEST

/* KiB of this process's memory that the machine has given it. */
static long resident_kb(void)
{
    long kb = 0;
    char line[128];
    FILE *in = fopen("/proc/self/status", "re");
    while (in && kb == 0 && fgets(line, sizeof line, in))
        sscanf(line, "VmRSS: %ld", &kb);
    ck_assert(kb > 0 && fclose(in) == 0);
    return kb;
}

enum { LARGE = 64 << 20 };

static long count_not_zero(const unsigned char *p, size_t n)
{
    long found = 0;
    for (size_t i = 0; i < n; i++)
        found += p[i] != 0;
    return found;
}

START_TEST(large_memory_is_not_touched)
{
    long before = resident_kb();
    unsigned char *p = memory_take(LARGE);
    ck_assert_ptr_nonnull(p);
    ck_assert_int_lt(resident_kb() - before, LARGE / 1024 / 4);
    ck_assert_int_eq(count_not_zero(p, LARGE), 0);
    memory_give(p);
}
END_TEST

START_TEST(memory_is_made_ready)
{
    unsigned char *p = memory_take(LARGE);
    ck_assert_ptr_nonnull(p);
    p[5] = 7;
    long before = resident_kb();
    memory_ready(p + 3, LARGE / 2);
    long grown = resident_kb() - before;
    ck_assert_int_ge(grown, LARGE / 2 / 1024 - 4096);   /* less the page of p[5] */
    ck_assert_int_lt(grown, LARGE / 1024 * 3 / 4);
    ck_assert(p[5] == 7 && count_not_zero(p, LARGE) == 1);
    memory_give(p);
}
END_TEST

/* The allocator hands the same pages out again. */
START_TEST(large_memory_is_zeroed_again)
{
    mallopt(M_MMAP_THRESHOLD, 2 * LARGE);
    mallopt(M_TRIM_THRESHOLD, 4 * LARGE);
    for (int i = 0; i < 3; i++) {
        unsigned char *p = memory_take(LARGE / 2 + 1);
        ck_assert_ptr_nonnull(p);
        ck_assert_int_eq(count_not_zero(p, LARGE / 2 + 1), 0);
        memset(p, 0xff, LARGE / 2 + 1);
        memory_give(p);
    }
}
END_TEST

/* A block is taken only where as much memory is free, and then it is no longer free. */
START_TEST(the_pages_of_a_block_are_taken)
{
    struct memory_block *blocks = NULL;
    void *memory;
    long before = resident_kb();
    ck_assert_int_eq(blocks_share(&blocks, "block", LARGE, &memory, NULL), DESCANT_OK);
    ck_assert_int_ge(resident_kb() - before, LARGE / 1024);
    blocks_give(&blocks);
}
END_TEST

START_TEST(memory_overflow_is_refused)
{
    volatile size_t most = SIZE_MAX;
    ck_assert_ptr_null(memory_take_array(most / 2, 3));
    ck_assert_ptr_null(memory_take_array(most, most));
    ck_assert_ptr_null(memory_take(most));
    ck_assert_ptr_null(memory_take(most - 10));
    void *p = memory_take_array(10, 8);
    ck_assert_ptr_nonnull(p);
    memory_give(p);
    p = memory_take_array(10, 0);
    ck_assert_ptr_nonnull(p);
    memory_give(p);
}
END_TEST

START_TEST(memory_fails_at_the_kth)
{
    for (long k = 1; k <= 5; k++) {
        memory_fail_at(k);
        for (long i = 1; i <= 8; i++) {
            void *p = i == 3 ? NULL : memory_take(10);
            bool failed = i == 3 ? memory_refuse() : !p;
            ck_assert_msg(failed == (i == k), "k %ld, taking %ld", k, i);
            memory_give(p);
        }
    }
    memory_fail_at(1);
    memory_fail_at(0);
    ck_assert(!memory_refuse());
    ck_assert_int_eq(memory_live(), 0);
}
END_TEST

/* --- chance --- */

START_TEST(rng_known_bits)
{
    /* by a separate program in integers of any size, from the authors' definitions */
    static const uint64_t wanted[] = {
        UINT64_C(0x15780b2e0c2ec716), UINT64_C(0x6104d9866d113a7e),
        UINT64_C(0xae17533239e499a1), UINT64_C(0xecb8ad4703b360a1)};
    struct rng rng;
    rng_init(&rng, 42);
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        ck_assert_uint_eq(rng_next(&rng), wanted[i]);
}
END_TEST

START_TEST(rng_same_seed_same_bits)
{
    struct rng a, b, c;
    int differ = 0;
    rng_init(&a, 1);
    rng_init(&b, 1);
    rng_init(&c, 2);
    for (int i = 0; i < 1000; i++) {
        uint64_t x = rng_next(&a);
        ck_assert_uint_eq(x, rng_next(&b));
        differ += x != rng_next(&c);
    }
    ck_assert_int_eq(differ, 1000);
}
END_TEST

START_TEST(rng_moments)
{
    enum { N = 200000 };
    struct rng rng;
    double uniform = 0, sum = 0, square = 0;
    rng_init(&rng, 3);
    for (int i = 0; i < N; i++) {
        double u = rng_uniform(&rng), x = rng_normal(&rng);
        ck_assert(u >= 0 && u < 1);
        uniform += u;
        sum += x;
        square += x * x;
    }
    ck_assert(fabs(uniform / N - 0.5) < 0.005);
    ck_assert(fabs(sum / N) < 0.01);
    ck_assert(fabs(square / N - 1) < 0.02);
}
END_TEST

/* --- clocks and futexes --- */

START_TEST(clock_goes_on)
{
    uint64_t start = clock_now_ns(), cpu = clock_thread_cpu_ns();
    clock_sleep_until(start + 3000000);
    ck_assert_uint_ge(clock_now_ns(), start + 3000000);
    clock_sleep_until(start);    /* in the past: at once */
    volatile double work = 0;
    while (clock_thread_cpu_ns() == cpu)
        work = work + 1;
    ck_assert_uint_gt(clock_thread_cpu_ns(), cpu);
}
END_TEST

START_TEST(futex_times_out)
{
    _Atomic uint32_t word = 5;
    futex_wait(&word, 4, 0);    /* not as expected: at once */
    uint64_t until = clock_now_ns() + 5000000;
    while (clock_now_ns() < until)
        futex_wait(&word, 5, until);
    ck_assert_uint_ge(clock_now_ns(), until);
}
END_TEST

static struct ticket_lock lock;
static int came[2], n_came;             /* guarded by it */

static void *come(void *number)
{
    ticket_take(&lock);
    came[n_came++] = *(const int *)number;
    ticket_give(&lock);
    return NULL;
}

/* Also not by a thread that takes its turn again at once. */
START_TEST(nobody_is_passed_over)
{
    static const int numbers[2] = {7, 8};
    pthread_t threads[2];
    for (int i = 0; i < 100; i++) {
        n_came = 0;
        ticket_take(&lock);
        uint32_t asked = lock.next;
        for (int k = 0; k < 2; k++) {
            pthread_create(&threads[k], NULL, come, (void *)(uintptr_t)&numbers[k]);
            while (lock.next != asked + (uint32_t)k + 1)
                sched_yield();
        }
        ticket_give(&lock);
        ticket_take(&lock);
        ck_assert(n_came == 2 && came[0] == 7 && came[1] == 8);
        ticket_give(&lock);
        for (int k = 0; k < 2; k++)
            pthread_join(threads[k], NULL);
    }
}
END_TEST

START_TEST(futex_wakes_another_process)
{
    _Atomic uint32_t *words = mmap(NULL, 4096, PROT_READ | PROT_WRITE,
                                   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert(words != MAP_FAILED);
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        for (uint32_t i = 0; i < 200; i++) {
            while (atomic_load(&words[0]) == i)
                futex_wait(&words[0], i, 0);
            atomic_store(&words[1], i + 1);
            futex_wake_all(&words[1]);
        }
        _exit(0);
    }
    for (uint32_t i = 0; i < 200; i++) {
        atomic_store(&words[0], i + 1);
        futex_wake_all(&words[0]);
        while (atomic_load(&words[1]) == i)
            futex_wait(&words[1], i, 0);
    }
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
    munmap(words, 4096);
}
END_TEST

/* --- the machine --- */

START_TEST(machine_makes_sense)
{
    double cores = machine_cores();
    ck_assert(cores > 0.005 && cores <= (double)sysconf(_SC_NPROCESSORS_CONF));
    ck_assert_uint_gt(machine_memory_free(), 1 << 20);
    ck_assert_uint_ge(machine_page(), 4096);
    ck_assert_uint_eq(machine_page() & (machine_page() - 1), 0);
}
END_TEST

/* --- JSON --- */

START_TEST(json_line)
{
    char *text = NULL;
    size_t length = 0;
    FILE *out = open_memstream(&text, &length);
    struct json json;
    json_begin(&json, out);
    json_text(&json, "name", "a\"b\\c\nd\te\x01\xc3\xa4");
    json_text(&json, "nothing", NULL);
    json_int(&json, "n", INT64_MIN);
    json_real(&json, "x", 0.25);
    json_real(&json, "nan", (double)NAN);
    json_real(&json, "inf", (double)-INFINITY);
    json_end(&json);
    json_begin(&json, out);
    json_end(&json);
    fclose(out);
    ck_assert_str_eq(text, "{\"name\":\"a\\\"b\\\\c\\nd\\te\\u0001\xc3\xa4\",\"nothing\":null,"
                           "\"n\":-9223372036854775808,\"x\":0.25,\"nan\":null,\"inf\":null}\n"
                           "{}\n");
    free(text);
}
END_TEST

enum { WAKE_NS = 1500000000 };

static uint64_t paid_until(uint64_t used_ns, uint64_t until_ns, double share, uint64_t most_ns)
{
    struct budget b = {clock_thread_cpu_ns() - used_ns, until_ns, BUDGET_BURST_COST, WAKE_NS};

    budget_pay(&b, share, most_ns);
    return b.until_ns;
}

static bool about(uint64_t value, uint64_t wanted)
{
    return value >= wanted && value < wanted + 1000000000;     /* the test itself uses the CPU */
}

START_TEST(budget_is_paid_by_rest)
{
    const uint64_t used = 2000000000, now = clock_now_ns();
    const uint64_t cost = (uint64_t)((double)used * BUDGET_BURST_COST) + WAKE_NS;

    const uint64_t all = UINT64_MAX;

    ck_assert(about(paid_until(used, now, 0.5, all), now + 2 * cost));
    ck_assert(about(paid_until(used, now + used, 0.5, all), now + used + 2 * cost));
    ck_assert(about(paid_until(used, now, 1, all), now + used));
    ck_assert(about(paid_until(used, now, 1, used / 2), now + used / 2));
    ck_assert(about(paid_until(used, now - 5 * used, 0.5, all), now - BUDGET_SAVED_NS + 2 * cost));
}
END_TEST

START_TEST(bursts_end)
{
    struct budget b;

    budget_begin(&b, 1, 0);
    ck_assert(!budget_burst_over(&b));
    while (clock_thread_cpu_ns() - b.cpu_ns < BUDGET_BURST_NS)
        ;
    ck_assert(budget_burst_over(&b));
}
END_TEST

/* Of this thread, where the kernel tells it: else 0. */
static uint64_t slice_now(void)
{
    struct {
        uint32_t size, policy;
        uint64_t flags;
        uint32_t nice, priority;
        uint64_t runtime, deadline, period;
    } s = {0};
    bool normal = syscall(SYS_sched_getattr, 0, &s, (unsigned)sizeof s, 0) == 0 &&
                  (s.policy == SCHED_OTHER || s.policy == SCHED_BATCH);
    return normal ? s.runtime : 0;
}

START_TEST(a_slice_is_asked_for)
{
    bool tells = slice_now() != 0;      /* Linux 6.12 and later */
    int nice = getpriority(PRIO_PROCESS, 0) + 1;

    if (setpriority(PRIO_PROCESS, 0, nice) != 0)
        nice--;
    slice_ask(300000);
    ck_assert_uint_eq(slice_now(), tells ? 300000 : 0);
    ck_assert_int_eq(getpriority(PRIO_PROCESS, 0), nice);
}
END_TEST

/* --- text and files --- */

static const struct {
    const char *is, *shown;
} texts[] = {
    {"plain, with \303\266, \342\202\254 and \360\237\230\200", NULL},
    {"\033]0;title\007", "\\x1b]0;title\\x07"},
    {"\r\033[Ka line\177", "\\x0d\\x1b[Ka line\\x7f"},
    {"C1 \302\233 2J", "C1 \\xc2\\x9b 2J"},
    {"raw \233 2J \377", "raw \\x9b 2J \\xff"},
    {"turned \342\200\256gnp.exe", "turned \\xe2\\x80\\xaegnp.exe"},
    {"cut \342\202", "cut \\xe2\\x82"},
    {"long \300\200 \355\240\200 \364\220\200\200", "long \\xc0\\x80 \\xed\\xa0\\x80 \\xf4\\x90\\x80\\x80"},
};
enum { N_TEXTS = sizeof texts / sizeof *texts };

START_TEST(what_steers_a_terminal_is_shown)
{
    char line[256], *text;
    const char *is = texts[_i].is, *shown = texts[_i].shown ? texts[_i].shown : is;
    size_t n;
    text_line(line, sizeof line, is);
    ck_assert_str_eq(line, shown);
    text_line(line, sizeof line, "two\nlines");
    ck_assert_str_eq(line, "two\\x0alines");
    /* however it is written */
    for (int step = 0; step < 3; step++) {
        FILE *to = open_memstream(&text, &n), *out = shown_open(to, step == 2);
        for (const char *at = is; step == 1 && *at; at++)
            fputc(*at, out);
        if (step != 1)
            fputs(is, out);
        ck_assert_int_eq(stream_error(out), 0);
        ck_assert_int_eq(shown_close(out), 0);
        fclose(to);
        ck_assert_str_eq(text, shown);
        free(text);
    }
}
END_TEST

START_TEST(a_line_of_the_log_is_one_line)
{
    struct base_heard heard = {0};
    struct log log = {.fn = hear, .user = &heard, .rank = -1};
    log_fail(&log, DESCANT_SYSTEM, "%s: no", "a\n\033[2Jb");
    ck_assert_str_eq(heard.last, "a\\x0a\\x1b[2Jb: no");
    ck_assert_str_eq(descant_last_error(), heard.last);
}
END_TEST

START_TEST(a_stream_knows_its_first_error)
{
    FILE *full = fopen("/dev/full", "we");
    setvbuf(full, NULL, _IONBF, 0);
    FILE *out = shown_open(full, true);
    fputs("lost", out);
    fflush(out);
    errno = ETIMEDOUT;
    ck_assert_int_eq(stream_error(out), ENOSPC);
    ck_assert_int_eq(shown_close(out), ENOSPC);
    fclose(full);
}
END_TEST

START_TEST(links_are_followed)
{
    char folder[] = "/tmp/descant-links-XXXXXX", path[64], want[64], target[128];
    ck_assert(mkdtemp(folder));
    ck_assert_int_eq(chdir(folder), 0);
    ck_assert_int_eq(mkdir("sub", 0700) | symlink("sub/one", "first") | symlink("two", "sub/one") |
                     symlink("round", "round"), 0);
    ck_assert(path_follow("first", target, sizeof target));     /* where there is nothing yet */
    ck_assert_str_eq(target, "sub/two");
    snprintf(path, sizeof path, "%s/first", folder);
    snprintf(want, sizeof want, "%s/sub/two", folder);
    ck_assert(path_follow(path, target, sizeof target));
    ck_assert_str_eq(target, want);
    ck_assert(!path_follow("round", target, sizeof target) && errno == ELOOP);
    ck_assert(!path_follow("first", target, 6) && errno == ENAMETOOLONG);
    ck_assert_int_eq(symlink(want, "whole"), 0);
    ck_assert(path_follow("whole", target, sizeof target));
    ck_assert_str_eq(target, want);
    unlink("first"), unlink("sub/one"), unlink("round"), unlink("whole"), rmdir("sub");
    rmdir(folder);
}
END_TEST

/* In a program that has not said what SIGXFSZ is to do. */
START_TEST(a_limit_of_sizes_is_an_error)
{
    struct rlimit limit = {4096, 4096};
    int fd = memfd_create("limit", MFD_CLOEXEC);
    signal(SIGXFSZ, SIG_DFL);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    ck_assert(file_resize(fd, 8192, _i) != 0 && errno == EFBIG);
    ck_assert_int_eq(file_resize(fd, 4096, _i), 0);
    close(fd);
}
END_TEST

int main(void)
{
    TCase *tests = new_case("base", 60);
    tcase_add_test(tests, status_has_texts);
    tcase_add_test(tests, fail_logs_and_keeps);
    tcase_add_test(tests, long_lines_are_cut);
    tcase_add_test(tests, callbacks_come_one_at_a_time);
    tcase_add_test(tests, memory_is_zeroed_and_aligned);
    tcase_add_test(tests, large_memory_is_not_touched);
    tcase_add_test(tests, memory_is_made_ready);
    tcase_add_test(tests, large_memory_is_zeroed_again);
    tcase_add_test(tests, the_pages_of_a_block_are_taken);
    tcase_add_test(tests, memory_overflow_is_refused);
    tcase_add_test(tests, memory_fails_at_the_kth);
    tcase_add_test(tests, rng_known_bits);
    tcase_add_test(tests, rng_same_seed_same_bits);
    tcase_add_test(tests, rng_moments);
    tcase_add_test(tests, clock_goes_on);
    tcase_add_test(tests, futex_times_out);
    tcase_add_test(tests, nobody_is_passed_over);
    tcase_add_test(tests, futex_wakes_another_process);
    tcase_add_test(tests, machine_makes_sense);
    tcase_add_test(tests, budget_is_paid_by_rest);
    tcase_add_test(tests, bursts_end);
    tcase_add_test(tests, a_slice_is_asked_for);
    tcase_add_loop_test(tests, what_steers_a_terminal_is_shown, 0, N_TEXTS);
    tcase_add_test(tests, a_line_of_the_log_is_one_line);
    tcase_add_test(tests, a_stream_knows_its_first_error);
    tcase_add_test(tests, links_are_followed);
    tcase_add_loop_test(tests, a_limit_of_sizes_is_an_error, 0, 2);
    tcase_add_test(tests, json_line);
    return run_cases(tests, NULL);
}
