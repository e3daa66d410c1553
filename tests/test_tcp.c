/* SPDX-License-Identifier: MIT */
/* Jobs over TCP, as real processes on this machine: they meet, come late, leave, die, are
 * stopped and started again, under every kind of plan; and connections from strangers.
 *
 * Trainers pull w towards 1 until the page says stop. Then they finish together, and all
 * that are left must hold the same model, near 1. */
#include "harness/folder.h"
#include "harness/jobs.h"
#include "harness/processes.h"
#include "harness/suite.h"
#include "harness/tcp.h"
#include "harness/wait.h"
#include "link/tcp_parts.h"

#include <arpa/inet.h>
#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <libgen.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N = 3000, MOST = 6, STRANGERS = 300 };

/* What one trainer shows; the test reads. */
struct shown {
    _Atomic int steps, rounds, members, ended;
    _Atomic float value;            /* of its model, at the end */
};

static struct page {
    struct shown trainers[MOST];
    _Atomic bool stop;              /* they finish; written by the test, */
    _Atomic bool comes;             /* as is this: the late one begins */
} *page;                            /* made before they are forked */

static struct tcp_options at;
static char address[300];
static const char *plan;
static pid_t pids[MOST];
static int founders;
static bool still;
static uint64_t step_ns = 500000;

static void step(float *w, float *g)
{
    for (int k = 0; k < N; k++)
        g[k] = 0.02f * (w[k] - 1);
}

static void show(struct descant *job, struct shown *mine)
{
    struct descant_stats stats;
    struct descant_members members;

    descant_stats(job, &stats);
    descant_members(job, &members);
    mine->rounds = (int)stats.rounds;
    mine->members = members.size;
    mine->steps++;
}

/* Its exit status. */
static int train(int rank, int size, float start)
{
    struct descant *job = open_job(address, plan, rank, size);
    static float g[N];
    float *w = descant_alloc(job, "w", N);
    struct descant_members members;

    descant_members(job, &members);
    struct shown *mine = &page->trainers[members.rank];
    bool gradients = strcmp(plan, "allreduce") == 0;
    for (int k = 0; k < N; k++)
        w[k] = start;
    if (descant_start(job) != DESCANT_OK)
        return 2;
    while (!page->stop || gradients) {
        step(w, g);
        /* all stop in the same round */
        g[0] = gradients ? page->stop : g[0];
        if (gradients && descant_mean(job, g, N) != DESCANT_OK)
            return 3;
        if (gradients && g[0] > 0)
            break;
        for (int k = gradients; k < N; k++)
            w[k] -= g[k];
        if (descant_step(job) != DESCANT_OK)
            return 4;
        show(job, mine);
        clock_sleep_until(clock_now_ns() + step_ns);
    }
    if (descant_finish(job, DESCANT_FINAL_MEAN) != DESCANT_OK)
        return 5;
    mine->value = w[N - 1];
    mine->ended = 1;
    return descant_close(job) == DESCANT_OK ? 0 : 6;
}

/* w stands still, but for one step of rank 2, the last before it parts. Its exit
 * status. */
static int train_and_part(int rank)
{
    struct descant *job = open_job(address, plan, rank, founders);
    float *w = descant_alloc(job, "w", N);
    struct shown *mine = &page->trainers[rank];

    if (descant_start(job) != DESCANT_OK)
        return 2;
    while (!page->stop) {
        bool parts = rank == 2 && page->comes;
        for (int k = 0; parts && k < N; k++)
            w[k] += 3;
        if (descant_step(job) != DESCANT_OK)
            return 3;
        if (parts)
            return descant_tell(job) || descant_part(job, 20) || descant_close(job) ? 4
                                                                                    : 0;
        float least = w[0];             /* of all owners' slices */
        for (int k = 1; k < N; k++)
            least = w[k] < least ? w[k] : least;
        mine->value = least;
        show(job, mine);
        clock_sleep_until(clock_now_ns() + 500000);
    }
    return descant_finish(job, DESCANT_FINAL_MEAN) || descant_close(job) ? 5 : 0;
}

static void begin_when(int rank, bool late)
{
    FILE *out;
    pid_t pid = fork_saying(&out, SIGKILL);

    if (pid == 0) {
        dup2(fileno(out), STDERR_FILENO);
        setenv("DESCANT_LOG", "info", 1);
        while (late && !page->comes)
            clock_sleep_until(clock_now_ns() + 1000000);
        _exit(still ? train_and_part(rank) : train(rank, founders, (float)rank + 2));
    }
    pids[rank] = pid;
}

static void begin(int rank)
{
    begin_when(rank, false);
}

static void prepare(const char *of_plan, int ranks, const char *keys)
{
    snprintf(said_file, sizeof said_file, "%s", in_folder("said"));
    unlink(said_file);
    tcp_test_address(&at, "127.0.0.1", MOST);
    snprintf(address, sizeof address, "tcp:127.0.0.1:%s,ranks=%d%s", at.port, MOST, keys);
    page = share_memory(sizeof *page);
    plan = of_plan;
    founders = ranks;
}

static void begin_all(const char *of_plan, int ranks, const char *keys)
{
    prepare(of_plan, ranks, keys);
    for (int k = 0; k < ranks; k++)
        begin(k);
}

#define AWAIT(condition)                                                                \
    do {                                                                                \
        read_said();                                                                    \
        WAIT_UNTIL(condition, "%.2000s", (read_said(), said));                          \
    } while (0)

static int steps_of(int rank)
{
    return page->trainers[rank].steps;
}

static bool takes_part(int rank, int members)
{
    return page->trainers[rank].members == members && page->trainers[rank].rounds > 2;
}

static void await_members(int from, int to, int members)
{
    for (int k = from; k < to; k++)
        AWAIT(takes_part(k, members));
}

/* Each goes on, and under plans with rounds so do these. */
static void goes_on(int from, int to)
{
    for (int k = from; k < to; k++) {
        int steps = steps_of(k), rounds = page->trainers[k].rounds;
        AWAIT(steps_of(k) > steps + 50 && page->trainers[k].rounds > rounds + 2);
    }
}

static void end_all(int from, int to)
{
    page->stop = true;
    for (int k = from; k < to; k++)
        ck_assert_int_eq(end_of(pids[k]), 0);
    float value = page->trainers[from].value;
    ck_assert_float_ge(value, 0.8f);
    ck_assert_float_le(value, 4.5f);
    for (int k = from; k < to; k++)
        ck_assert(page->trainers[k].ended && page->trainers[k].value == value);
}

static void kill_one(int rank)
{
    kill(pids[rank], SIGKILL);
    end_of(pids[rank]);
    page->trainers[rank].members = page->trainers[rank].rounds = 0;
}

/* --- members --- */

static const char *const plans[] = {
    "shadow-easgd", "shadow-ma", "shadow-bmuf", "easgd,every=5", "ma,every=5",
    "dasgd,every=8,delay=4", "diloco,every=10", "diloco-delta,every=10,delay=5",
    "shadow-ma,wire=q8", "allreduce"};
enum { PLANS = sizeof plans / sizeof *plans };

START_TEST(each_plan_trains)
{
    begin_all(plans[_i], 3, "");
    await_members(0, 3, 3);
    goes_on(0, 3);
    end_all(0, 3);
}
END_TEST

/* Elastic exchanges count as rounds, too. */
START_TEST(a_death_stops_nobody)
{
    int dies = _i % 3;              /* three plans each */

    begin_all(plans[_i], 3, "");
    await_members(0, 3, 3);
    kill_one(dies);
    for (int k = 0; k < 3; k++)
        if (k != dies) {
            AWAIT(takes_part(k, 2));
            goes_on(k, k + 1);
        }
    begin(dies);                    /* and its next process is a member again */
    await_members(0, 3, 3);
    goes_on(0, 3);
    end_all(0, 3);
}
END_TEST

/* The last step of a trainer that parts is in the others' models, in all slices of a
 * centre, and they lose nobody. A pull that was under way as the step came takes a part of
 * it back. */
START_TEST(who_parts_leaves_its_work)
{
    still = true;
    /* the last one exchanges seldom: a leaver waits for the heirs of its slices */
    begin_all(_i < PLANS - 1 ? plans[_i] : "shadow-easgd,gap=200", 3, "");
    await_members(0, 3, 3);
    page->comes = true;
    ck_assert_int_eq(end_of(pids[2]), 0);
    await_members(0, 2, 2);
    for (int k = 0; k < 2; k++)
        AWAIT(page->trainers[k].value > 0.1f);
    goes_on(0, 2);
    page->stop = true;
    for (int k = 0; k < 2; k++)
        ck_assert_int_eq(end_of(pids[k]), 0);
    read_said();
    says("rank 0: trainer 2 (");
    says(") was told to end\n");
    ck_assert_msg(!strstr(said, "has died") && !strstr(said, "without descant_finish"),
                  "%s", said);
}
END_TEST

START_TEST(ranks_come_late)
{
    begin_all(plans[4 * _i], 2, "");    /* elastic, mean, encoded mean */
    await_members(0, 2, 2);
    goes_on(0, 2);
    for (int k = 2; k < 5; k++)
        begin(k);
    await_members(0, 5, 5);
    goes_on(0, 5);
    end_all(0, 5);
}
END_TEST

/* Of two rank 1 dies: rank 0 goes on making versions alone. If rank 0 dies, rank 1 trains
 * on, and rank 0's next process takes its model. */
START_TEST(of_two_either_may_die)
{
    int dies = _i;

    begin_all("shadow-ma", 2, ",dead=5s");
    await_members(0, 2, 2);
    goes_on(0, 2);
    kill_one(dies);
    int steps = steps_of(1 - dies);
    AWAIT(steps_of(1 - dies) > steps + 200);
    begin(dies);
    await_members(0, 2, 2);
    goes_on(0, 2);
    end_all(0, 2);
}
END_TEST

/* A process that is stopped is silent, and not dead: after `dead` it is left out, and
 * comes back when it goes on. */
START_TEST(a_stopped_rank_comes_back)
{
    int stops = _i;

    begin_all("shadow-ma", 3, ",dead=4s");
    await_members(0, 3, 3);
    kill(pids[stops], SIGSTOP);
    for (int k = 0; k < 3; k++)
        if (k != stops) {
            AWAIT(takes_part(k, 2));
            goes_on(k, k + 1);
        }
    kill(pids[stops], SIGCONT);
    await_members(0, 3, 3);
    goes_on(0, 3);
    end_all(0, 3);
}
END_TEST

/* Between their rounds, too, trainers answer each other. */
static const char *const slow[] = {"ma,every=1", "dasgd-delta,every=1,delay=1", "allreduce"};
enum { N_SLOW = sizeof slow / sizeof *slow };

START_TEST(a_step_may_be_slower_than_dead)
{
    step_ns = 5000000000;
    begin_all(slow[_i], 2, ",dead=4s");     /* a silent one is found 4.5 s later */
    for (int k = 0; k < 2; k++)
        AWAIT(steps_of(k) >= 2);
    page->stop = true;
    for (int k = 0; k < 2; k++)
        ck_assert_int_eq(end_of(pids[k]), 0);
    read_said();
    ck_assert_msg(!strstr(said, "has died"), "%s", said);
}
END_TEST

/* There is no such job for this process, and the words say why. */
static void refuses(const char *job, int rank, int size, descant_status status,
                    const char *words)
{
    struct descant_options o = descant_options_default();
    struct descant *opened = NULL;

    o.job = job;
    o.rank = rank;
    o.size = size;
    o.start_s = status == DESCANT_BAD_RANK ? 5 : 0.5;
    ck_assert_int_eq(descant_open(&opened, &o), status);
    ck_assert_msg(strstr(descant_last_error(), words) != NULL, "%s", descant_last_error());
}

/* A process without a number comes while all ranks are taken. One rank is stopped, as if
 * its host had gone down: rank 0 learns of its death, and the newcomer takes its place. In
 * a job that stays full it is refused. */
START_TEST(a_newcomer_waits_for_the_rank_of_a_dead_one)
{
    prepare("shadow-ma", 2, "");
    snprintf(address, sizeof address, "tcp:127.0.0.1:%s,ranks=2", at.port);
    begin(0), begin(1);
    await_members(0, 2, 2);
    pid_t dies = pids[1];
    kill(dies, SIGSTOP);
    founders = 0;
    FILE *out;
    pids[1] = fork_saying(&out, SIGKILL);
    if (pids[1] == 0) {
        dup2(fileno(out), STDERR_FILENO);
        setenv("DESCANT_LOG", "info", 1);
        _exit(train(-1, 0, 2));
    }
    AWAIT(times_said("all of the job's 2 ranks are taken") == 1);
    page->trainers[1].members = page->trainers[1].rounds = 0;
    kill(dies, SIGKILL);
    end_of(dies);
    await_members(0, 2, 2);
    goes_on(0, 2);
    refuses(address, -1, 0, DESCANT_BAD_RANK, "all of the job's 2 ranks are taken");
    end_all(0, 2);
}
END_TEST

/* Nobody says which rank is which, nor how many there are. */
START_TEST(an_address_is_enough)
{
    prepare("shadow-ma", 0, "");
    for (int k = 0; k < 3; k++) {
        FILE *out;
        pids[k] = fork_saying(&out, SIGKILL);
        if (pids[k] == 0) {
            dup2(fileno(out), STDERR_FILENO);
            _exit(train(-1, 0, 2));
        }
    }
    int n = 0;
    AWAIT((n = takes_part(0, 3) + takes_part(1, 3) + takes_part(2, 3) + takes_part(3, 3) +
               takes_part(4, 3) + takes_part(5, 3)) == 3);
    page->stop = true;
    for (int k = 0; k < 3; k++)
        ck_assert_int_eq(end_of(pids[k]), 0);
}
END_TEST

/* --- secrets --- */

static const char *make_secret(const char *name, char digit)
{
    name = in_folder(name);
    FILE *out = fopen(name, "we");

    ck_assert(out && fchmod(fileno(out), 0600) == 0);
    fputs("descant-secret-1:", out);
    for (int i = 0; i < 64; i++)
        fputc(digit, out);
    fputc('\n', out);
    fclose(out);
    return name;
}

/* All goes through TLS, also what is sent anew when a rank has died. */
START_TEST(a_secret_is_shared)
{
    char keys[300];

    snprintf(keys, sizeof keys, ",dead=5s,secret=%s", make_secret("secret", 'a'));
    begin_all(plans[_i], 3, keys);
    await_members(0, 3, 3);
    kill_one(_i);
    begin(_i);
    await_members(0, 3, 3);
    goes_on(0, 3);
    end_all(0, 3);
}
END_TEST

/* The job goes on without ranks that have another secret, or none. */
START_TEST(another_secret_is_refused)
{
    char keys[300];
    static char with[400], without[300];

    snprintf(keys, sizeof keys, ",secret=%s", make_secret("secret", 'a'));
    begin_all("shadow-ma", 2, keys);
    await_members(0, 2, 2);
    snprintf(with, sizeof with, "tcp:127.0.0.1:%s,secret=%s", at.port,
             make_secret("other", 'b'));
    snprintf(without, sizeof without, "tcp:127.0.0.1:%s", at.port);
    refuses(with, 3, 2, DESCANT_BAD_RANK, "secret");
    refuses(without, 3, 2, DESCANT_TIMEOUT, "");
    refuses("tcp:192.0.2.1:7000", 1, 2, DESCANT_BAD_ADDRESS, "descant secret > FILE");
    refuses("tcp:127.0.0.1:7000,secret=none", 1, 2, DESCANT_INVALID, "none");
    goes_on(0, 2);
    end_all(0, 2);
    says("came from no rank of the job");
}
END_TEST

/* --- refusals --- */

START_TEST(plans_that_differ_are_told)
{
    char host[64] = "", line[100];

    gethostname(host, sizeof host - 1);
    snprintf(line, sizeof line, "rank 1 (%s) has \"plan shadow-easgd\"", host);
    prepare("shadow-ma", 2, "");
    begin(0);
    plan = "shadow-easgd";
    begin(1);
    ck_assert_int_ne(end_of(pids[0]), 0);
    ck_assert_int_ne(end_of(pids[1]), 0);
    says(line);
}
END_TEST

START_TEST(addresses_are_checked)
{
    static const char *const bad[] = {"tcp:", "tcp:host", "tcp::7000", "tcp:host:",
                                      "tcp:host:port", "tcp:[::1:7000",
                                      "tcp:a:1,ranks", "tcp:a:1,ranks=1",
                                      "tcp:a:1,rank=3", "tcp:a:1,dead=0", "tcp:a:0",
                                      "tcp:a:1,secret=", "tcp:a:1,secret=x,insecure=1",
                                      "tcp:a:1,cert=x", "tcp:a:65536", "tcp:a:123456789",
                                      "tcp:a:1,interface=", "tcp:a:1,ports=",
                                      "tcp:a:1,ports=0", "tcp:a:1,ports=7-",
                                      "tcp:a:1,ports=9-7", "tcp:a:1,ports=7-8-9",
                                      "tcp:a:1,ports=65536", "tcp:a:1,ports=-7"};
    char job[300];

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        refuses(bad[i], 0, 2, DESCANT_BAD_ADDRESS, "tcp:");
    refuses("tcp:no.such.host.invalid:7000", 0, 2, DESCANT_BAD_ADDRESS,
            "no.such.host.invalid");
    prepare("shadow-ma", 2, "");
    snprintf(job, sizeof job, "tcp:127.0.0.1:%s", at.port);
    refuses(job, 1, 2, DESCANT_TIMEOUT, "Connection refused");
    refuses("tcp:192.0.2.1:7000,insecure=1", 0, 2, DESCANT_BAD_ADDRESS, "cannot listen");
    refuses("tcp:192.0.2.1:7000,insecure=1,interface=none0", 1, 2, DESCANT_BAD_ADDRESS,
            "no interface none0");
    refuses("tcp:[2001:db8::1]:7000,insecure=1,interface=none0", 1, 2,
            DESCANT_BAD_ADDRESS, "no interface none0");
    struct descant *first = open_job(job, "shadow-ma", 0, 2);
    refuses(job, 0, 2, DESCANT_BAD_ADDRESS, "Address already in use");
    descant_close(first);
}
END_TEST

/* Some process listens there, by IPv4. */
static bool somebody_listens(int first, int last)
{
    FILE *table = fopen("/proc/net/tcp", "re");
    char line[256];
    unsigned port, state;
    bool found = false;

    ck_assert_ptr_nonnull(table);
    while (fgets(line, sizeof line, table))
        if (sscanf(line, " %*d: %*x:%x %*x:%*x %x", &port, &state) == 2 && state == 10)
            found |= (int)port >= first && (int)port <= last;
    fclose(table);
    return found;
}

START_TEST(ports_are_those_given)
{
    char job[100], keys[100], words[100];
    int taken, port, tries = 0;

    do {                                /* other programs may listen beside it */
        struct sockaddr_in at_port = {.sin_family = AF_INET};
        socklen_t length = sizeof at_port;
        taken = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        ck_assert_int_eq(bind(taken, (struct sockaddr *)&at_port, sizeof at_port), 0);
        ck_assert_int_eq(listen(taken, 1), 0);
        getsockname(taken, (struct sockaddr *)&at_port, &length);
        port = ntohs(at_port.sin_port);
    } while (somebody_listens(port + 1, port + 9) && ++tries < 50);
    snprintf(job, sizeof job, "tcp:127.0.0.1:7000,ports=%d", port);
    snprintf(words, sizeof words, "a port of %d: Address already in use", port);
    refuses(job, 1, 2, DESCANT_SYSTEM, words);
    snprintf(keys, sizeof keys, ",ports=%d-%d", port, port + 9);
    ck_assert(!somebody_listens(port + 1, port + 9));
    begin_all("shadow-ma", 2, keys);
    await_members(0, 2, 2);
    ck_assert(somebody_listens(port + 1, port + 9));
    end_all(0, 2);
    close(taken);
}
END_TEST

/* --- strangers --- */

static int connect_to_first(void)
{
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)atoi(at.port))};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

static void few_lines(void)
{
    int lines = 0;

    for (const char *p = said; (p = strstr(p, "came from no rank of the job")); p++)
        lines++;
    ck_assert_int_ge(lines, 1);
    ck_assert_int_le(lines, 10);
}

/* They say nothing, or anything else than ranks do, and stay. The job goes on, a rank
 * that dies comes again, and the log has few lines of it. */
START_TEST(strangers_stop_nobody)
{
    static const char *const words[] = {"", "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
                                        "\x16\x03\x01\x02", "descant", "\0\0\0\0\0\0\0\0"};
    int fds[STRANGERS];
    char noise[4096];

    memset(noise, 0xa5, sizeof noise);
    begin_all("shadow-ma", 2, "");
    await_members(0, 2, 2);
    for (int i = 0; i < STRANGERS; i++) {
        const char *say = words[i % 5];
        fds[i] = connect_to_first();
        if (send(fds[i], say, i % 5 == 4 ? 8 : strlen(say), MSG_NOSIGNAL) < 0 ||
            (i % 7 == 0 && send(fds[i], noise, sizeof noise, MSG_NOSIGNAL) < 0))
            continue;               /* it has been closed already */
    }
    goes_on(0, 2);
    kill_one(1);
    begin(1);
    await_members(0, 2, 2);
    goes_on(0, 2);
    for (int i = 0; i < STRANGERS; i++)
        close(fds[i]);
    end_all(0, 2);
    few_lines();
}
END_TEST

static struct tcp_hello hello_of(int rank, uint64_t generation)
{
    return (struct tcp_hello){.magic = "descant", .protocol = TCP_PROTOCOL, .rank = rank,
                              .generation = generation, .port = htons(9), .name = "x"};
}

static void put_hello(unsigned char *into, const struct tcp_hello *hello)
{
    const struct tcp_frame frame = {.what = TCP_HELLO, .bytes = sizeof *hello};

    memcpy(into, &frame, sizeof frame);
    memcpy(into + sizeof frame, hello, sizeof *hello);
}

enum { HELLO = sizeof(struct tcp_frame) + sizeof(struct tcp_hello) };

/* The first bytes that come after `n` of `say` and some noise behind them; then the end
 * comes, and no reset. */
static size_t answer_to(const void *say, size_t n, void *heard, size_t room)
{
    char noise[20000], more[1000];
    int fd = connect_to_first();
    size_t have = 0;
    ssize_t got;

    memset(noise, 0x5a, sizeof noise);
    memcpy(noise, say, n);
    ck_assert_int_eq(send(fd, noise, sizeof noise, MSG_NOSIGNAL), (ssize_t)sizeof noise);
    while ((got = recv(fd, more, sizeof more, 0)) > 0) {
        size_t k = (size_t)got < room - have ? (size_t)got : room - have;
        memcpy((char *)heard + have, more, k);
        have += k;
    }
    ck_assert_msg(got == 0, "after %zu bytes: %s", have, strerror(errno));
    close(fd);
    return have;
}

/* The reason comes, though more was said than is read. */
START_TEST(refusals_are_heard)
{
    unsigned char bytes[HELLO];
    struct { struct tcp_frame frame; char why[100]; } heard;
    struct tcp_hello hello = hello_of(4, 1);

    begin_all("shadow-ma", 2, "");
    await_members(0, 2, 2);
    hello.protocol++;
    put_hello(bytes, &hello);
    for (int i = 0; i < 20; i++) {
        memset(&heard, 0, sizeof heard);
        ck_assert_uint_gt(answer_to(bytes, HELLO, &heard, sizeof heard),
                          sizeof heard.frame);
        ck_assert_int_eq(heard.frame.what, TCP_REFUSED);
        ck_assert_ptr_nonnull(strstr(heard.why, "version 3 of the protocol"));
    }
    goes_on(0, 2);
    end_all(0, 2);
}
END_TEST

/* So does TLS's, of a handshake that has failed: here, of a hello without TLS 1.3. */
START_TEST(alerts_are_heard)
{
    enum { BODY = 2 + 32 + 1 + 4 + 2 + 2 };
    unsigned char hello[9 + BODY] = {22, 3, 1, 0, 4 + BODY, 1, 0, 0, BODY, 3, 3};
    unsigned char heard[7];
    char keys[300];

    hello[9 + 36] = 2, hello[9 + 37] = 0x13, hello[9 + 38] = 1;     /* one cipher */
    hello[9 + 39] = 1;                                              /* no compression */
    snprintf(keys, sizeof keys, ",secret=%s", make_secret("secret", 'a'));
    begin_all("shadow-ma", 2, keys);
    await_members(0, 2, 2);
    for (int i = 0; i < 20; i++) {
        ck_assert_uint_eq(answer_to(hello, sizeof hello, heard, sizeof heard), 7);
        ck_assert_msg(heard[0] == 21 && heard[5] == 2, "%d %d", heard[0], heard[5]);
    }
    goes_on(0, 2);
    end_all(0, 2);
}
END_TEST

/* The same HELLO again and again, of a rank that was there, is there, or is nobody. */
START_TEST(replays_stop_nobody)
{
    enum { TIMES = 60 };
    const struct tcp_hello hellos[] = {hello_of(1, 1), hello_of(4, 1), hello_of(-1, 2),
                                       hello_of(0, 1)};
    unsigned char bytes[HELLO];
    int fds[TIMES];

    begin_all("shadow-ma", 2, ",dead=5s");
    await_members(0, 2, 2);
    for (int i = 0; i < TIMES; i++) {
        put_hello(bytes, &hellos[i % 4]);
        fds[i] = connect_to_first();
        ck_assert_int_eq(send(fds[i], bytes, HELLO, MSG_NOSIGNAL), HELLO);
    }
    goes_on(0, 2);
    for (int i = 0; i < TIMES; i++)
        close(fds[i]);
    begin(2);
    AWAIT(takes_part(2, 3));
    goes_on(0, 3);
    end_all(0, 3);
}
END_TEST

enum { CROWD = 10000 };

/* A sanitizer keeps memory that was given back. */
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
enum { MEMORY_COUNTS = 0 };
#else
enum { MEMORY_COUNTS = 1 };
#endif

/* Of a process, in KiB: VmRSS, its memory now, or VmHWM, the most since forget_most. */
static long memory_of(pid_t pid, const char *field)
{
    char path[64], line[256];
    long kib = -1;

    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *in = fopen(path, "re");
    while (in && fgets(line, sizeof line, in))
        if (strncmp(line, field, strlen(field)) == 0)
            kib = atol(line + strlen(field));
    if (in)
        fclose(in);
    ck_assert_int_ge(kib, 0);
    return kib;
}

static void forget_most(pid_t pid)
{
    char path[64];

    snprintf(path, sizeof path, "/proc/%d/clear_refs", (int)pid);
    FILE *out = fopen(path, "we");
    ck_assert(out && fputs("5", out) >= 0 && fclose(out) == 0);
}

static int files_of(pid_t pid)
{
    char path[64];
    int n = 0;

    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    DIR *dir = opendir(path);
    ck_assert_ptr_nonnull(dir);
    while (readdir(dir))
        n++;
    closedir(dir);
    return n;
}

static void connect_crowd(int *fds)
{
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)atoi(at.port))};

    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (int i = 0; i < CROWD; i++) {
        fds[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        ck_assert_int_ge(fds[i], 0);
        ck_assert(connect(fds[i], (struct sockaddr *)&to, sizeof to) == 0 ||
                  errno == EINPROGRESS);
    }
}

static bool may_open(rlim_t files)
{
    struct rlimit most;

    getrlimit(RLIMIT_NOFILE, &most);
    most.rlim_cur = most.rlim_cur > files ? most.rlim_cur : files;
    return most.rlim_cur <= most.rlim_max && setrlimit(RLIMIT_NOFILE, &most) == 0;
}

/* So many connections at a time that say nothing cost one rank little, and a rank that
 * comes late gets in between them. */
START_TEST(a_crowd_stops_nobody)
{
    static int fds[CROWD];
    int files = 0;

    begin_all("shadow-ma", 2, "");
    begin_when(2, true);        /* so that it has no part in the crowd's descriptors */
    await_members(0, 2, 2);
    if (!may_open(CROWD + 100)) {
        printf("a crowd of %d connections needs as many descriptors; ulimit -n allows "
               "fewer, so this is left out\n", CROWD);
        kill_one(2);
        end_all(0, 2);
        return;
    }
    files = files_of(pids[0]);
    forget_most(pids[0]);
    long before = memory_of(pids[0], "VmRSS:");
    connect_crowd(fds);
    uint64_t begun = clock_now_ns();
    page->comes = true;
    int most_files = files_of(pids[0]);
    for (int k = 0; k < 3; k++)
        AWAIT((most_files = files_of(pids[0]) > most_files ? files_of(pids[0]) : most_files,
               takes_part(k, 3)));
    double came_s = (double)(clock_now_ns() - begun) / 1e9;
    goes_on(0, 3);
    long grown = memory_of(pids[0], "VmHWM:") - before;
    printf("a crowd of %d: a late rank takes part after %.1f s; rank 0 had %d descriptors "
           "more, and %ld KiB of memory\n", CROWD, came_s, most_files - files, grown);
    ck_assert_int_le(most_files - files, TCP_STRANGERS + 20);
    ck_assert(grown <= 64 * TCP_STRANGERS || !MEMORY_COUNTS);
    for (int i = 0; i < CROWD; i++)
        close(fds[i]);
    end_all(0, 3);
    few_lines();
}
END_TEST

/* The module that this build has made, if it has. */
static bool find_tls(void)
{
    char path[PATH_MAX];

    find_self();
    snprintf(path, sizeof path, "%s", self);
    setenv("DESCANT_TLS_MODULE", dirname(dirname(path)), 1);
    return tls_module_find(path, sizeof path);
}

static TCase *cases(const char *name)
{
    return new_case(name, 120);
}

int main(void)
{
    bool secure = find_tls();
    TCase *trains = cases("plans"), *deaths = cases("deaths"), *late = cases("late");
    TCase *secrets = cases("secrets"), *silent = cases("silent"), *refused = cases("refused");
    TCase *strange = cases("strange"), *crowd = cases("crowd"), *parts = cases("parts");

    tcase_add_loop_test(trains, each_plan_trains, 0, few(PLANS, few_threads(3, 2)));
    tcase_add_loop_test(deaths, a_death_stops_nobody, few(0, 3), few(PLANS - 1, few_threads(6, 5)));
    tcase_add_loop_test(parts, who_parts_leaves_its_work, few(0, 6), few(PLANS, few_threads(8, 7)));
    tcase_add_loop_test(deaths, of_two_either_may_die, 0, few(2, 1));
    tcase_add_loop_test(late, ranks_come_late, 0, few(3, 1));
    tcase_add_test(late, an_address_is_enough);
    tcase_add_test(late, a_newcomer_waits_for_the_rank_of_a_dead_one);
    tcase_add_loop_test(silent, a_stopped_rank_comes_back, 0, few(3, 1));
    tcase_add_loop_test(silent, a_step_may_be_slower_than_dead, 0, few(N_SLOW, 1));
    tcase_add_loop_test(secrets, a_secret_is_shared, 0, secure ? 3 : 0);
    tcase_add_loop_test(secrets, another_secret_is_refused, 0, secure);
    tcase_add_test(refused, plans_that_differ_are_told);
    tcase_add_test(refused, addresses_are_checked);
    tcase_add_test(refused, ports_are_those_given);
    tcase_add_test(strange, strangers_stop_nobody);
    tcase_add_test(strange, refusals_are_heard);
    tcase_add_loop_test(strange, alerts_are_heard, 0, secure);
    tcase_add_test(strange, replays_stop_nobody);
    tcase_add_test(crowd, a_crowd_stops_nobody);
    return run_cases(trains, parts, deaths, late, silent, secrets, refused, strange, crowd,
                     NULL);
}
