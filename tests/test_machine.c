/* SPDX-License-Identifier: MIT */
/* What processes of one machine know of each other: blocks by name, and who lives. Children are
 * killed, stopped, left unburied, and have their numbers used again; a page that all share says how
 * far each of them is. */
#include "harness/processes.h"
#include "harness/suite.h"
#include "machine/meet.h"
#include "machine/meeting.h"
#include "machine/process.h"

#include <check.h>
#include <errno.h>
#include <linux/sched.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 10000 };

static struct machine_page {
    _Atomic int there;              /* the child is as far as it is to come */
    _Atomic int go;                 /* it may go on */
    _Atomic uint64_t word;          /* of the child: process_self */
} * page;
static char name[64];

static void set_up(void)
{
    static int number;
    page = share_memory(4096);
    snprintf(name, sizeof name, "machine-%d-%d", (int)getpid(), number++);
}

static bool until(bool (*done)(const void *what), const void *what)
{
    uint64_t end = clock_now_ns() + 10000000000u;
    while (!done(what))
        if (clock_now_ns() > end)
            return false;
        else
            clock_sleep_until(clock_now_ns() + 100000);
    return true;
}

static bool is_set(const void *word)
{
    return *(const _Atomic int *)word != 0;
}

static struct meet *open_as(int rank)
{
    struct meet *meet = NULL;
    ck_assert_int_eq(meeting_open(&meet, name, rank, 60, NULL), DESCANT_OK);
    return meet;
}

static char *share(struct meet *meet, const char *block)
{
    void *memory = NULL;
    ck_assert_int_eq(meeting_share(meet, block, BYTES, &memory), DESCANT_OK);
    return memory;
}

/* A child that has done what it is to, and then pauses for ever. Before this process has threads:
 * sanitizers let no forked child of one that has begin its own. */
static pid_t start_child(void (*what)(void))
{
    page->there = 0;
    pid_t child = fork();
    if (child == 0) {
        page->word = process_self(NULL);
        what();
        page->there = 1;
        for (;;)
            pause();
    }
    ck_assert_int_gt(child, 0);
    ck_assert(until(is_set, &page->there));
    return child;
}

static void bury(pid_t child)
{
    ck_assert_int_eq(kill(child, SIGKILL), 0);
    ck_assert_int_eq(waitpid(child, NULL, 0), child);
}

/* --- blocks --- */

START_TEST(a_block_is_one_for_all)
{
    struct meet *a = open_as(0), *b = open_as(1);
    void *memory;
    char *of_a = share(a, "x"), *of_b = share(b, "x"), *other = share(b, "y");

    for (int i = 0; i < BYTES; i++)
        ck_assert_int_eq(of_a[i], 0);
    strcpy(of_a + BYTES - 10, "written");
    ck_assert_str_eq(of_b + BYTES - 10, "written");
    ck_assert_int_eq(other[BYTES - 10], 0);
    ck_assert_int_eq(meeting_share(b, "x", BYTES + 1, &memory), DESCANT_MISMATCH);
    ck_assert_int_eq(meeting_share(b, "", 1, &memory), DESCANT_INVALID);
    ck_assert_int_eq(meeting_share(b, "z", (size_t)1 << 50, &memory), DESCANT_MEMORY);
    meeting_close(a);
    ck_assert_str_eq(share(b, "x") + BYTES - 10, "written");
    meeting_close(b);
    ck_assert_int_eq(memory_live(), 0);
}
END_TEST

enum { MAPPERS = 4, MAPPINGS = 8000 };

static void *map_often(void *arena)
{
    void *p;
    atomic_fetch_add(&page->there, 1);
    while (atomic_load(&page->there) < MAPPERS)
        sched_yield();
    for (int i = 0; i < MAPPINGS; i++)
        ck_assert_int_eq(arena_map(arena, region_at(REGION_BLOCKS), 1, ARENA_READ, &p), DESCANT_OK);
    return NULL;
}

/* One that is lost is a block of memory that nobody gives back, and ThreadSanitizer tells
 * of it whenever two threads map. */
START_TEST(threads_map_at_once_and_no_mapping_is_lost)
{
    pthread_t threads[MAPPERS];
    struct arena arena;
    long before = memory_live();
    arena_init(&arena, NULL);
    ck_assert_int_eq(arena_found(&arena, MACHINE_REGIONS), DESCANT_OK);
    for (int i = 0; i < MAPPERS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, map_often, &arena), 0);
    for (int i = 0; i < MAPPERS; i++)
        pthread_join(threads[i], NULL);
    ck_assert_int_eq(memory_live() - before, MAPPERS * MAPPINGS);
    arena_fini(&arena);
    ck_assert_int_eq(memory_live(), before);
}
END_TEST

START_TEST(a_rank_is_one_process)
{
    struct meet *a = open_as(1), *b;

    ck_assert_int_eq(meeting_open(&b, name, 1, 5, NULL), DESCANT_BAD_RANK);
    meeting_close(a);
    b = open_as(1);
    meeting_close(b);
}
END_TEST

START_TEST(memory_may_be_short_for_a_meeting)
{
    struct meet *a = open_as(0), *b;
    void *memory;
    long live = memory_live();
    int failed = 0;

    for (long k = 1; k <= 40; k++) {
        memory_fail_at(k);
        descant_status status = meeting_open(&b, name, 1, 5, NULL);
        bool opened = status == DESCANT_OK;
        if (opened)
            status = meeting_share(b, "x", BYTES, &memory);
        memory_fail_at(0);
        failed += status != DESCANT_OK;
        if (opened)
            meeting_close(b);
        ck_assert_msg(memory_live() == live, "failure %ld leaves memory behind", k);
    }
    ck_assert_int_gt(failed, 3);
    meeting_close(a);
    ck_assert_int_eq(memory_live(), 0);
}
END_TEST

/* --- who lives in a meeting --- */

static void open_and_share(void)
{
    strcpy(share(open_as(1), "x"), "of the child");
}

static bool slot_dead(const void *meet)
{
    return life_state(slot_life(((const struct meet *)meet)->roster, 0)) == LIFE_DEAD;
}

START_TEST(a_killed_process_loses_its_slot_and_leaves_its_blocks)
{
    pid_t child = start_child(open_and_share);
    struct meet *mine = open_as(0);

    ck_assert(life_alive(slot_life(mine->roster, 0)));
    ck_assert_int_eq(kill(child, SIGKILL), 0);
    ck_assert(until(slot_dead, mine));          /* though nobody has waited for it */
    ck_assert_str_eq(share(mine, "x"), "of the child");
    struct meet *next = open_as(1);
    ck_assert_uint_eq(next->slot, 0);
    ck_assert_uint_eq(next->generation, 2);
    ck_assert_int_eq(waitpid(child, NULL, 0), child);
    meeting_close(next);
    meeting_close(mine);
}
END_TEST

START_TEST(a_stopped_process_keeps_its_slot)
{
    pid_t child = start_child(open_and_share);
    struct meet *mine = open_as(0), *other;

    ck_assert_int_eq(kill(child, SIGSTOP), 0);
    ck_assert_int_eq(meeting_open(&other, name, 1, 5, NULL), DESCANT_BAD_RANK);
    other = open_as(2);
    ck_assert_uint_eq(other->slot, 2);
    ck_assert(life_alive(slot_life(mine->roster, 0)));
    meeting_close(other);
    bury(child);
    ck_assert(until(slot_dead, mine));
    meeting_close(mine);
}
END_TEST

static void take_the_door(void)
{
    struct meet *meet = open_as(1);

    page->there = 1;
    ck_assert(until(is_set, &page->go));
    ck_assert_int_eq(meet_door_take(meet), DESCANT_OK);
    page->go = 0;
}

static bool is_clear(const void *word)
{
    return !is_set(word);
}

/* Who waits at the door when its holder is killed goes in; no bound is needed for it. */
START_TEST(a_killed_process_lets_go_of_the_door)
{
    pid_t child = start_child(take_the_door);
    struct meet *mine = open_as(0);

    page->go = 1;
    ck_assert(until(is_clear, &page->go));
    pid_t killer = fork();
    if (killer == 0) {
        wait_asleep(getppid());
        _exit(kill(child, SIGKILL));
    }
    uint64_t before = clock_now_ns();
    ck_assert_int_eq(meet_door_take(mine), DESCANT_OK);
    ck_assert_uint_lt(clock_now_ns() - before, 30 * UINT64_C(1000000000));
    meet_door_give(mine);
    ck_assert_int_eq(waitpid(child, NULL, 0), child);
    ck_assert_int_eq(waitpid(killer, NULL, 0), killer);
    meeting_close(mine);
}
END_TEST

/* --- who lives, by word and by descriptor --- */

static void nothing(void)
{
}

static bool lives(int pidfd)
{
    ck_assert_int_ge(pidfd, 0);
    ck_assert_msg(process_alive(page->word) == !pidfd_dead(pidfd), "word and descriptor differ");
    return process_alive(page->word);
}

static bool is_dead(const void *pidfd)
{
    return pidfd_dead(*(const int *)pidfd);
}

START_TEST(a_killed_process_is_dead_before_anybody_has_waited_for_it)
{
    pid_t child = start_child(nothing);
    int pidfd = process_watch(child);

    ck_assert_int_eq(process_pid(page->word), child);
    ck_assert(lives(pidfd));
    kill(child, SIGKILL);
    ck_assert(until(is_dead, &pidfd));
    ck_assert(!lives(pidfd));               /* a zombie */
    ck_assert_int_eq(waitpid(child, NULL, 0), child);
    ck_assert(!lives(pidfd));
    ck_assert_int_eq(process_watch(child), -1);
    ck_assert_int_eq(errno, ESRCH);
    close(pidfd);
}
END_TEST

START_TEST(a_stopped_process_lives)
{
    pid_t child = start_child(nothing);
    int pidfd = process_watch(child);

    kill(child, SIGSTOP);
    ck_assert_int_eq(waitpid(child, NULL, WUNTRACED), child);
    ck_assert(lives(pidfd));
    bury(child);
    ck_assert(!lives(pidfd));
    close(pidfd);
}
END_TEST

static void *go_on(void *nothing_more)
{
    for (;;)
        pause();
    return nothing_more;
}

static void end_the_first_thread(void)
{
    pthread_t thread;

    ck_assert_int_eq(pthread_create(&thread, NULL, go_on, NULL), 0);
    page->there = 1;
    syscall(SYS_exit, 0);
}

static bool is_zombie(const void *pid)
{
    char path[64], text[512];

    snprintf(path, sizeof path, "/proc/%d/stat", *(const pid_t *)pid);
    FILE *in = fopen(path, "re");
    ck_assert_ptr_nonnull(in);
    text[fread(text, 1, sizeof text - 1, in)] = 0;
    fclose(in);
    return strstr(text, ") Z ") != NULL;
}

/* It is shown as a zombie, and the other thread writes to memory. */
START_TEST(a_process_lives_as_long_as_one_of_its_threads)
{
    pid_t child = start_child(end_the_first_thread);
    int pidfd = process_watch(child);

    ck_assert(until(is_zombie, &child));
    ck_assert(lives(pidfd));
    bury(child);
    ck_assert(!lives(pidfd));
    close(pidfd);
}
END_TEST

static pid_t fork_as(pid_t number)
{
    struct clone_args how = {.exit_signal = SIGCHLD, .set_tid = (uint64_t)(uintptr_t)&number,
                             .set_tid_size = 1};
    return (pid_t)syscall(SYS_clone3, &how, sizeof how);
}

/* The start of a process cannot always be read, as when it may open no more files. */
START_TEST(a_word_without_a_start_is_its_number)
{
    pid_t child = start_child(nothing);

    ck_assert(process_alive((uint64_t)getpid() << 40));
    ck_assert(process_alive((uint64_t)child << 40));
    bury(child);
    ck_assert(!process_alive((uint64_t)child << 40));
}
END_TEST

START_TEST(a_number_used_again_is_another_process)
{
    pid_t child = start_child(nothing), again;
    int pidfd = process_watch(child);

    bury(child);
    clock_sleep_until(clock_now_ns() + 30000000);       /* the start is in ticks of 10 ms */
    again = fork_as(child);
    if (again == 0)
        for (;;)
            pause();
    if (again < 0) {
        ck_assert(errno == EPERM || errno == ENOSYS || errno == EEXIST);
        close(pidfd);
        return;
    }
    ck_assert_int_eq(again, child);
    ck_assert_int_eq(kill(child, 0), 0);
    ck_assert(!lives(pidfd));
    bury(again);
    close(pidfd);
}
END_TEST

static void become_another(void)
{
    pid_t child = unshare(CLONE_NEWPID) == 0 ? fork() : 0;

    if (child == 0) {
        page->word = process_namespace();
        page->there = 1;
        _exit(0);
    }
    waitpid(child, NULL, 0);
}

START_TEST(words_of_another_pid_namespace_are_told)
{
    pid_t child = start_child(become_another);
    ck_assert_uint_ne(page->word, 0);
    if (geteuid() == 0 && page->word == process_namespace())
        ck_assert_int_ne(unshare(CLONE_NEWPID), 0);     /* this machine allows none */
    bury(child);
}
END_TEST

int main(void)
{
    TCase *all = new_case("machine", 60);
    tcase_add_checked_fixture(all, set_up, NULL);
    tcase_add_test(all, a_block_is_one_for_all);
    tcase_add_test(all, threads_map_at_once_and_no_mapping_is_lost);
    tcase_add_test(all, a_rank_is_one_process);
    tcase_add_test(all, memory_may_be_short_for_a_meeting);
    tcase_add_test(all, a_killed_process_loses_its_slot_and_leaves_its_blocks);
    tcase_add_test(all, a_stopped_process_keeps_its_slot);
    tcase_add_test(all, a_killed_process_lets_go_of_the_door);
    tcase_add_test(all, a_killed_process_is_dead_before_anybody_has_waited_for_it);
    tcase_add_test(all, a_stopped_process_lives);
    tcase_add_test(all, a_process_lives_as_long_as_one_of_its_threads);
    tcase_add_test(all, a_word_without_a_start_is_its_number);
    tcase_add_test(all, a_number_used_again_is_another_process);
    tcase_add_test(all, words_of_another_pid_namespace_are_told);
    return run_cases(all, NULL);
}
