/* SPDX-License-Identifier: MIT */
/* The shm fabric with real processes: some are killed, some come late, some are strangers.
 * The test process is the parent; a page that all share says what each is to do and how far it
 * is. Waiting is always for a figure in that page, with a bound. */
#include "harness/processes.h"
#include "harness/suite.h"
#include "machine/message.h"
#include "shm/shm.h"

#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST = 8, N = 300000, SECOND = 1000000000, MOST_AWAKE_NS = 5000000 };

struct shared_report {
    _Atomic int freeze, fork_child, exec_now, few_files;    /* orders */
    _Atomic int frozen, rounds, members, rank, status, child;
    _Atomic float value, state;
};

static struct shared_report *page;
static _Atomic int *stop;
static char name[64];
static bool elsewhere;              /* trainers' vectors are not in their contributions */

static void set_up(void)
{
    page = share_memory(65536);
    stop = (_Atomic int *)(page + MOST);
    snprintf(name, sizeof name, "test-%d", (int)getpid());
}

static descant_status open_one(struct fabric **f, int rank, int size)
{
    const struct fabric_options options = {.address = name, .rank = rank, .size = size,
                                           .start_s = 5};
    return fabric_shm.open(f, &options);
}

static descant_status start_one(struct fabric *f)
{
    const struct fabric_start start = {.manifest = "mean\nw 300000\n", .n = N, .room = N,
                                       .collective = true, .n_outer = 2, .threads = 1};
    return fabric_shm.start(f, &start);
}

/* --- a trainer --- */

static void freeze(struct shared_report *mine)
{
    mine->frozen = 1;
    for (;;)
        pause();
}

static float *vector_of(struct fabric *f)
{
    static float memory[N];
    return elsewhere ? memory : f->contribution;
}

/* One exchange. In the middle of it, a trainer told so stops for ever. */
static enum fabric_progress exchange(struct fabric *f, enum exchange_kind kind,
                                     struct shared_report *mine)
{
    struct extent extent = {0, N, vector_of(f)};
    struct vector in = {N, 1, &extent};
    struct exchange x = {.kind = kind, .in = &in, .n = N, .weight = 1};
    struct fabric_part part;
    int worked = 0;

    if (fabric_shm.begin(f, &x))
        return FABRIC_FAILED;
    for (;;) {
        enum fabric_progress progress = fabric_shm.poll(f, &part);
        if (progress == FABRIC_PART && kind == EXCHANGE_STATE && !part.own)
            mine->state = part.out[N - 1] + part.outer[1][0];
        if (progress == FABRIC_PART && kind == EXCHANGE_MEAN)
            mine->value = part.out[N - 1];
        if (progress == FABRIC_DONE || progress == FABRIC_FAILED)
            return progress;
        if (progress == FABRIC_WORKED && ++worked > 1 && mine->freeze)
            freeze(mine);
        if (progress == FABRIC_WORKED && worked > 1 && mine->exec_now)
            execl("/bin/sleep", "sleep", "100", (char *)NULL);
        if (progress == FABRIC_WAITING)
            fabric_shm.wait(f, 0);
    }
}

static void trainer(int k, int rank, int size)
{
    struct shared_report *mine = &page[k];
    struct fabric *f;

    mine->status = -1;
    const struct rlimit few = {40, 40};
    if (mine->few_files)
        setrlimit(RLIMIT_NOFILE, &few);
    descant_status status = open_one(&f, rank, size);
    if (status) {
        mine->status = (int)status;
        _exit(1);
    }
    if (start_one(f))
        _exit(2);
    mine->rank = f->rank;
    for (size_t i = 0; i < N; i++)
        vector_of(f)[i] = (float)(f->rank + 1);
    f->outer[1][0] = 100;
    if (mine->fork_child) {
        pid_t child = fork();
        if (!child)
            freeze(&page[MOST - 1]);
        mine->child = child;
    }
    enum fabric_progress progress = exchange(f, EXCHANGE_STATE, mine);
    while (!*stop && progress != FABRIC_FAILED) {
        progress = exchange(f, EXCHANGE_MEAN, mine);
        mine->members = f->members;
        mine->rounds++;
    }
    fabric_shm.close(f);
    _exit(progress == FABRIC_FAILED ? 3 : 0);
}

static pid_t launch(int k, int rank, int size)
{
    pid_t pid = fork();

    if (!pid)
        trainer(k, rank, size);
    ck_assert_int_gt(pid, 0);
    return pid;
}

/* Time in which this process was awake: little of a pause, in which others may have had none. */
static uint64_t awake_ns;

static bool reaches(const _Atomic int *figure, int value, uint64_t ns)
{
    uint64_t until = awake_ns + ns, last = clock_now_ns(), end = last + 20ull * SECOND;

    while (*figure < value && awake_ns < until && last < end) {
        clock_sleep_until(last + 100000);
        uint64_t now = clock_now_ns(), since = now - last;
        awake_ns += since < MOST_AWAKE_NS ? since : MOST_AWAKE_NS;
        last = now;
    }
    return *figure >= value;
}

static void end_well(pid_t pid)
{
    int status;

    *stop = 1;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void kill_now(pid_t pid)
{
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

static int names_left(void)
{
    char line[512], mine[128];
    int n = 0;
    FILE *in = fopen("/proc/net/unix", "r");

    ck_assert_ptr_nonnull(in);
    snprintf(mine, sizeof mine, "@descant/%s/", name);
    while (fgets(line, sizeof line, in))
        n += strstr(line, mine) != NULL;
    fclose(in);
    return n;
}

/* --- deaths --- */

static const struct { int victim; bool with_child, elsewhere; } deaths[] = {
    {.victim = 0}, {.victim = 1}, {.victim = 2},
    {.victim = 0, .with_child = true}, {.victim = 1, .with_child = true},
    {.victim = 0, .elsewhere = true}, {.victim = 1, .elsewhere = true},
    {.victim = 2, .elsewhere = true}};

START_TEST(the_others_finish_when_one_is_killed)
{
    int victim = deaths[_i].victim;
    pid_t pids[3];

    page[victim].fork_child = deaths[_i].with_child;
    elsewhere = deaths[_i].elsewhere;
    for (int k = 0; k < 3; k++) {
        page[k].rank = -1;
        pids[k] = launch(k, k, 3);
        ck_assert(reaches(&page[k].rank, k, 10ull * SECOND));       /* the slots in this order */
    }
    for (int k = 0; k < 3; k++)
        ck_assert(reaches(&page[k].rounds, 5, 10ull * SECOND));
    page[victim].freeze = 1;
    ck_assert(reaches(&page[victim].frozen, 1, 10ull * SECOND));
    int rounds[3] = {page[0].rounds, page[1].rounds, page[2].rounds};
    kill_now(pids[victim]);
    for (int k = 0; k < 3; k++)
        if (k != victim)
            ck_assert(reaches(&page[k].rounds, rounds[k] + 3, 10ull * SECOND));
    for (int k = 0; k < 3; k++)
        if (k != victim) {
            ck_assert_int_eq(page[k].members, 2);
            ck_assert_float_eq(page[k].value, (float)(6 - victim - 1) / 2);
        }
    /* its rank is free again, whatever its child holds; a living one's is not */
    pid_t refused = launch(3, (victim + 1) % 3, 3);
    waitpid(refused, NULL, 0);
    ck_assert_int_eq(page[3].status, DESCANT_BAD_RANK);
    pid_t again = launch(4, victim, 3);
    ck_assert(reaches(&page[4].rounds, 3, 10ull * SECOND));
    ck_assert_float_eq(page[4].value, 2);
    ck_assert_int_eq(page[4].members, 3);
    for (int k = 0; k < 3; k++)
        if (k != victim)
            end_well(pids[k]);
    end_well(again);
    if (deaths[_i].with_child)
        kill(page[victim].child, SIGKILL);
}
END_TEST

START_TEST(all_killed_and_founded_anew)
{
    pid_t pids[3];

    page[0].fork_child = _i;
    for (int k = 0; k < 3; k++)
        pids[k] = launch(k, k, 3);
    for (int k = 0; k < 3; k++)
        ck_assert(reaches(&page[k].rounds, 2, 10ull * SECOND));
    for (int k = 0; k < 3; k++)
        kill(pids[k], SIGKILL);
    for (int k = 0; k < 3; k++)
        waitpid(pids[k], NULL, 0);
    pid_t founder = launch(5, 0, 1);                    /* another size: another job */
    ck_assert(reaches(&page[5].rounds, 1, 10ull * SECOND));
    ck_assert_int_eq(page[5].members, 1);
    end_well(founder);
    if (_i)
        kill(page[0].child, SIGKILL);
    else
        ck_assert_int_eq(names_left(), 0);
}
END_TEST

/* --- comings --- */

START_TEST(late_joiner_gets_state)
{
    pid_t a = launch(0, 4, 2), b = launch(1, 4 + 1, 2);

    ck_assert(reaches(&page[0].rounds, 5, 10ull * SECOND));
    pid_t late = launch(2, -1, 2);
    ck_assert(reaches(&page[2].rounds, 3, 10ull * SECOND));
    ck_assert(page[2].state >= 105 && page[2].state <= 106);
    ck_assert_int_eq(page[2].rank, 0);
    ck_assert_int_eq(page[2].members, 3);
    ck_assert_float_eq(page[2].value, 4);
    end_well(a);
    end_well(b);
    end_well(late);
    ck_assert_int_eq(names_left(), 0);
}
END_TEST

/* One of the others is stopped while a third joins; when it goes on, each of the two notices the
 * death of the other, also when nobody else is left. */
START_TEST(who_was_stopped_watches_who_came_meanwhile)
{
    page[0].rank = -1;
    pid_t a = launch(0, 0, 2), b;

    ck_assert(reaches(&page[0].rank, 0, 10ull * SECOND));
    b = launch(1, 1, 2);
    ck_assert(reaches(&page[1].rounds, 5, 10ull * SECOND));
    ck_assert_int_eq(kill(b, SIGSTOP), 0);
    page[2].rank = -1;
    pid_t c = launch(2, 2, 2);
    ck_assert(reaches(&page[2].rank, 2, 30ull * SECOND));
    ck_assert_int_eq(kill(b, SIGCONT), 0);
    ck_assert(reaches(&page[2].rounds, 3, 10ull * SECOND));
    kill_now(a);
    kill_now(_i ? b : c);
    int last = _i ? 2 : 1;
    ck_assert(reaches(&page[last].rounds, page[last].rounds + 3, 10ull * SECOND));
    ck_assert_int_eq(page[last].members, 1);
    end_well(_i ? c : b);
}
END_TEST

/* A program that starts itself, or another, in its own place keeps its process, and is gone. */
START_TEST(who_becomes_another_program_is_gone)
{
    pid_t pids[3];

    for (int k = 0; k < 3; k++)
        pids[k] = launch(k, k, 3);
    for (int k = 0; k < 3; k++)
        ck_assert(reaches(&page[k].rounds, 3, 10ull * SECOND));
    page[_i].exec_now = 1;
    for (int k = 0; k < 3; k++)
        for (uint64_t end = clock_now_ns() + 10ull * SECOND; k != _i && page[k].members != 2;
             clock_sleep_until(clock_now_ns() + 1000000))
            ck_assert_uint_lt(clock_now_ns(), end);
    pid_t again = launch(3, _i, 3);
    ck_assert(reaches(&page[3].rounds, 3, 10ull * SECOND));
    kill_now(pids[_i]);
    for (int k = 0; k < 3; k++)
        if (k != _i)
            end_well(pids[k]);
    end_well(again);
}
END_TEST

START_TEST(few_descriptors_are_enough)
{
    page[0].few_files = page[1].few_files = 1;
    pid_t a = launch(0, 0, 1);

    ck_assert(reaches(&page[0].rounds, 3, 10ull * SECOND));
    pid_t b = launch(1, 1, 1);
    ck_assert(reaches(&page[1].rounds, 3, 10ull * SECOND));
    ck_assert_int_eq(page[1].members, 2);
    end_well(a);
    end_well(b);
}
END_TEST

/* With any number of descriptors that is too small the cause is named, and at once. */
START_TEST(too_few_descriptors_are_named)
{
    pid_t a = launch(0, 0, 1);
    ck_assert(reaches(&page[0].rounds, 3, 10ull * SECOND));
    pid_t pid = fork();
    if (pid == 0) {
        int last = 0, refused = 0;
        descant_status status = DESCANT_SYSTEM;
        struct fabric *f;
        while (last < 40)
            last = dup(0);
        for (rlim_t n = (rlim_t)last + 1; status != DESCANT_OK; n++, refused++) {
            const struct rlimit few = {n, 64};
            setrlimit(RLIMIT_NOFILE, &few);
            status = open_one(&f, 1, 1);
            if (status != DESCANT_OK && !strstr(descant_last_error(), strerror(EMFILE)))
                _exit(fprintf(stderr, "%s\n", descant_last_error()) > 0 ? 100 : 101);
        }
        fabric_shm.close(f);
        _exit(refused);
    }
    int status = 0;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) > 3 && WEXITSTATUS(status) < 24, "%x",
                  (unsigned)status);
    end_well(a);
}
END_TEST

static int call(int slot)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    int n = snprintf(to.sun_path + 1, sizeof to.sun_path - 1, "descant/%s/%u/%d", name,
                     (unsigned)getuid(), slot);

    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&to,
                             (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 +
                                         (size_t)n)), 0);
    return fd;
}

START_TEST(strangers_do_no_harm)
{
    char noise[300];
    int silent[20], loud[20];
    uint64_t before = clock_now_ns();
    pid_t a = launch(0, 0, 1);

    ck_assert(reaches(&page[0].rounds, 3, 10ull * SECOND));
    memset(noise, 0x5a, sizeof noise);
    for (int k = 0; k < 20; k++) {
        loud[k] = call(0);
        ck_assert_int_gt(send(loud[k], noise, (size_t)(k * 14 + 1), MSG_NOSIGNAL), 0);
        silent[k] = call(0);
    }
    pid_t b = launch(1, 1, 1);
    ck_assert(reaches(&page[1].rounds, 3, 10ull * SECOND));
    ck_assert_int_eq(page[1].members, 2);
    for (int k = 0; k < 20; k++) {
        struct pollfd p[2] = {{.fd = loud[k], .events = POLLIN},
                              {.fd = silent[k], .events = POLLIN}};
        ck_assert_int_gt(poll(&p[0], 1, 5000), 0);
        ck_assert_int_gt(poll(&p[1], 1, 5000), 0);
        ck_assert_int_le(recv(silent[k], noise, sizeof noise, 0), 0);
        close(silent[k]);
        close(loud[k]);
    }
    ck_assert_uint_lt(clock_now_ns() - before, 16ull * SECOND);     /* one by one, 20 */
    int rounds = page[0].rounds;
    ck_assert(reaches(&page[0].rounds, rounds + 3, 10ull * SECOND));
    end_well(a);
    end_well(b);
}
END_TEST

/* Another user's process says hello just as one of ours does, and gets nothing. */
START_TEST(other_users_get_no_answer)
{
    pid_t a = launch(0, 0, 1);
    int status;

    ck_assert(reaches(&page[0].rounds, 1, 10ull * SECOND));
    for (int other = 0; other < 2; other++) {
        pid_t pid = fork();
        if (!pid) {
            struct message hello = message_of(WHAT_HELLO, 0, 0), member;
            int pidfd = (int)syscall(SYS_pidfd_open, getpid(), 0), fd, fds[2];
            struct sockaddr_un to = {.sun_family = AF_UNIX};
            int n = snprintf(to.sun_path + 1, sizeof to.sun_path - 1, "descant/%s/%u/0", name,
                             (unsigned)getuid());
            if (other && setuid(65534) != 0)
                _exit(2);       /* only root can try it */
            fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
            if (connect(fd, (struct sockaddr *)&to,
                        (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 +
                                    (size_t)n)) != 0)
                _exit(3);
            message_say(fd, &hello, &pidfd, 1);
            struct pollfd p = {.fd = fd, .events = POLLIN};
            _exit(poll(&p, 1, 10000) == 1 ? message_hear(fd, &member, fds, 2) == HEARD : 4);
        }
        ck_assert_int_eq(waitpid(pid, &status, 0), pid);
        ck_assert(WIFEXITED(status));
        if (!other || WEXITSTATUS(status) != 2)
            ck_assert_int_eq(WEXITSTATUS(status), !other);
    }
    end_well(a);
}
END_TEST

/* --- strangers who have names --- */

enum hold { BOUND, LISTENING, FULL, HOLDS };

/* A process of another user takes names of the job: of the door, or of so many slots from one on. It
 * holds them until it is killed. 0: nobody can be another user here. */
static pid_t squat(int from, int n, enum hold how)
{
    int ready[2];
    char done = 0;
    ck_assert_int_eq(pipe(ready), 0);
    unsigned us = (unsigned)getuid();
    pid_t pid = fork();
    if (!pid) {
        done = setuid(65534) == 0 ? 1 : 2;
        for (int k = from; k < from + n && done == 1; k++) {
            struct sockaddr_un at = {.sun_family = AF_UNIX};
            char last[16];
            snprintf(last, sizeof last, k < 0 ? "door" : "%d", k);
            socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 +
                (size_t)snprintf(at.sun_path + 1, sizeof at.sun_path - 1, "descant/%s/%u/%s", name,
                                 us, last));
            int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
            done = bind(fd, (struct sockaddr *)&at, length) == 0 ? 1 : 3;
            if (how != BOUND && listen(fd, how == FULL ? 0 : 10) != 0)
                done = 3;
            for (int one = 0; how == FULL && one < 2; one++) {
                int queue = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0);
                (void)!connect(queue, (struct sockaddr *)&at, length);
            }
        }
        (void)!write(ready[1], &done, 1);
        for (;;)
            pause();
    }
    ck_assert_int_eq(read(ready[0], &done, 1), 1);
    close(ready[0]);
    close(ready[1]);
    ck_assert_int_ne(done, 3);
    if (done == 1)
        return pid;
    ck_assert_int_eq(kill(pid, SIGKILL) | (waitpid(pid, NULL, 0) != pid), 0);
    return 0;
}

/* The door is another user's: the job is refused at once, with his number, however he has it. */
START_TEST(a_stranger_at_the_door_is_named)
{
    struct fabric *f;
    uint64_t before = clock_now_ns();
    const struct fabric_options options = {.address = name, .rank = 0, .size = 1, .start_s = 300};
    pid_t other = squat(-1, 1, (enum hold)_i);
    if (!other)
        return;
    ck_assert_int_eq(fabric_shm.open(&f, &options), DESCANT_SYSTEM);
    ck_assert_msg(strstr(descant_last_error(), "the door of job \"") &&
                  strstr(descant_last_error(), "is held by user 65534"), "%s", descant_last_error());
    ck_assert_uint_lt(clock_now_ns() - before, 20ull * SECOND);
    kill(other, SIGKILL);
    ck_assert_int_eq(waitpid(other, NULL, 0), other);
    end_well(launch(0, 0, 1));      /* and when he is gone, it begins */
}
END_TEST

/* Of some slots, it is done without those; of all, he is named. */
START_TEST(a_stranger_in_the_slots_is_named)
{
    struct fabric *f;
    pid_t other = squat(0, MACHINE_SLOTS - 2, (enum hold)_i);
    if (!other)
        return;
    pid_t a = launch(0, 0, 2), b = launch(1, 1, 2);
    ck_assert(reaches(&page[0].rounds, 2, 60ull * SECOND));
    ck_assert(reaches(&page[1].rounds, 2, 60ull * SECOND));
    ck_assert_int_eq(open_one(&f, -1, 2), DESCANT_SYSTEM);
    ck_assert_msg(strstr(descant_last_error(), "62 of 64 slots of job \"") &&
                  strstr(descant_last_error(), "are held by user 65534"), "%s", descant_last_error());
    int rounds = page[0].rounds;
    ck_assert(reaches(&page[0].rounds, rounds + 2, 60ull * SECOND));
    end_well(a);
    end_well(b);
    kill(other, SIGKILL);
    ck_assert_int_eq(waitpid(other, NULL, 0), other);
}
END_TEST

/* --- nothing left --- */

static int fds_open(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int n = 0;

    ck_assert_ptr_nonnull(dir);
    while (readdir(dir))
        n++;
    closedir(dir);
    return n;
}

static int mappings(void)
{
    char line[512];
    int n = 0;
    FILE *in = fopen("/proc/self/maps", "r");

    ck_assert_ptr_nonnull(in);
    while (fgets(line, sizeof line, in))
        n += strstr(line, "memfd:descant") != NULL;
    fclose(in);
    return n;
}

static descant_status whole_life(void)
{
    struct fabric *f = NULL;
    void *block;
    descant_status status = open_one(&f, -1, 1);

    if (status) {
        ck_assert_ptr_null(f);
        return status;
    }
    if (!fabric_shm.alloc(f, 0, 5000))
        status = DESCANT_MEMORY;
    if (!status)
        status = fabric_shm.share(f, "block", 100, &block);
    if (!status)
        status = start_one(f);
    if (!status && exchange(f, EXCHANGE_STATE, &page[0]) == FABRIC_FAILED)
        status = f->status;
    if (!status && exchange(f, EXCHANGE_MEAN, &page[0]) == FABRIC_FAILED)
        status = f->status;
    fabric_shm.close(f);
    return status;
}

START_TEST(nothing_is_left)
{
    int fds = fds_open();
    descant_status status = DESCANT_MEMORY;

    for (long k = 1; status && k < 200; k++) {
        memory_fail_at(k);
        status = whole_life();
        memory_fail_at(0);
        ck_assert_int_eq(memory_live(), 0);
        ck_assert_int_eq(fds_open(), fds);
        ck_assert_int_eq(mappings(), 0);
        ck_assert_int_eq(names_left(), 0);
        ck_assert(status || k > 10);
    }
    ck_assert_int_eq(status, DESCANT_OK);
}
END_TEST

static const char *const bad_addresses[] = {"", ",rate=1gbit", "a b", "a/b", "a,", "a,rate",
    "a,rate=", "a,rate=x", "a,hue=1", "a,rtt=-1ms",
    "0123456789012345678901234567890123456789012345678901234567890123456789"};

START_TEST(bad_addresses_are_refused)
{
    const struct fabric_options options = {.address = bad_addresses[_i], .rank = -1};
    struct fabric *f = NULL;

    ck_assert_int_eq(fabric_shm.open(&f, &options), DESCANT_BAD_ADDRESS);
    ck_assert_ptr_null(f);
    ck_assert_int_gt((int)strlen(descant_last_error()), 0);
}
END_TEST

START_TEST(links_and_memory_are_checked)
{
    char other[100];
    struct fabric *f, *g = NULL;

    ck_assert_int_eq(open_one(&f, 0, 0), DESCANT_OK);
    snprintf(other, sizeof other, "%s,rtt=1ms", name);
    const struct fabric_options options = {.address = other, .rank = -1, .start_s = 1};
    ck_assert_int_eq(fabric_shm.open(&g, &options), DESCANT_MISMATCH);
    ck_assert_ptr_null(fabric_shm.alloc(f, 0, (size_t)1 << 37));
    fabric_shm.close(f);
}
END_TEST

int main(void)
{
    TCase *all = new_case("processes", 60);
    tcase_add_checked_fixture(all, set_up, NULL);
    tcase_add_loop_test(all, the_others_finish_when_one_is_killed, 0, N(deaths));
    tcase_add_loop_test(all, all_killed_and_founded_anew, 0, 2);
    tcase_add_test(all, late_joiner_gets_state);
    tcase_add_test(all, strangers_do_no_harm);
    tcase_add_loop_test(all, a_stranger_at_the_door_is_named, 0, HOLDS);
    tcase_add_loop_test(all, a_stranger_in_the_slots_is_named, 0, HOLDS);
    tcase_add_test(all, other_users_get_no_answer);
    tcase_add_loop_test(all, who_was_stopped_watches_who_came_meanwhile, 0, 2);
    tcase_add_loop_test(all, who_becomes_another_program_is_gone, 0, 2);
    tcase_add_test(all, few_descriptors_are_enough);
    tcase_add_test(all, too_few_descriptors_are_named);
    tcase_add_test(all, nothing_is_left);
    tcase_add_loop_test(all, bad_addresses_are_refused, 0, N(bad_addresses));
    tcase_add_test(all, links_and_memory_are_checked);
    return run_cases(all, NULL);
}
