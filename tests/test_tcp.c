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
#include "link/tls.h"

#include <arpa/inet.h>
#include <check.h>
#include <libgen.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
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
    _Atomic bool stop;              /* they finish; written by the test */
} *page;                            /* made before they are forked */

static struct tcp_options at;
static char address[300];
static const char *plan;
static pid_t pids[MOST];
static int founders;

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
        clock_sleep_until(clock_now_ns() + 500000);
    }
    if (descant_finish(job, DESCANT_FINAL_MEAN) != DESCANT_OK)
        return 5;
    mine->value = w[N - 1];
    mine->ended = 1;
    return descant_close(job) == DESCANT_OK ? 0 : 6;
}

static void begin(int rank)
{
    FILE *out;
    pid_t pid = fork_saying(&out, SIGKILL);

    if (pid == 0) {
        dup2(fileno(out), STDERR_FILENO);
        setenv("DESCANT_LOG", "info", 1);
        _exit(train(rank, founders, (float)rank + 2));
    }
    pids[rank] = pid;
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

    begin_all("shadow-ma", 2, ",dead=2s");
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

    begin_all("shadow-ma", 3, ",dead=1s");
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

static void refuses(const char *job, int rank, int size, descant_status status,
                    const char *words)
{
    struct descant_options o = descant_options_default();
    struct descant *opened = NULL;

    o.job = job;
    o.rank = rank;
    o.size = size;
    o.start_s = 0.5;
    ck_assert_int_eq(descant_open(&opened, &o), status);
    ck_assert_msg(strstr(descant_last_error(), words) != NULL, "%s", descant_last_error());
}

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

    snprintf(keys, sizeof keys, ",dead=2s,secret=%s", make_secret("secret", 'a'));
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
                                      "tcp:a:1,cert=x", "tcp:a:65536", "tcp:a:123456789"};
    char job[300];

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        refuses(bad[i], 0, 2, DESCANT_BAD_ADDRESS, "tcp:");
    refuses("tcp:no.such.host.invalid:7000", 0, 2, DESCANT_BAD_ADDRESS,
            "no.such.host.invalid");
    prepare("shadow-ma", 2, "");
    snprintf(job, sizeof job, "tcp:127.0.0.1:%s", at.port);
    refuses(job, 1, 2, DESCANT_TIMEOUT, "Connection refused");
    refuses("tcp:192.0.2.1:7000,insecure=1", 0, 2, DESCANT_BAD_ADDRESS, "cannot listen");
    struct descant *first = open_job(job, "shadow-ma", 0, 2);
    refuses(job, 0, 2, DESCANT_BAD_ADDRESS, "Address already in use");
    descant_close(first);
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
    int lines = 0;
    for (const char *p = said; (p = strstr(p, "came from no rank of the job")) != NULL; p++)
        lines++;
    ck_assert_int_ge(lines, 1);
    ck_assert_int_le(lines, 10);
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
    TCase *secrets = cases("secrets"), *silent = cases("silent"), *refused = cases("refused"), *strange = cases("strange");

    tcase_add_loop_test(trains, each_plan_trains, 0, PLANS);
    tcase_add_loop_test(deaths, a_death_stops_nobody, 0, PLANS - 1);
    tcase_add_loop_test(deaths, of_two_either_may_die, 0, 2);
    tcase_add_loop_test(late, ranks_come_late, 0, 3);
    tcase_add_test(late, an_address_is_enough);
    tcase_add_loop_test(silent, a_stopped_rank_comes_back, 0, 3);
    tcase_add_loop_test(secrets, a_secret_is_shared, 0, secure ? 3 : 0);
    tcase_add_loop_test(secrets, another_secret_is_refused, 0, secure);
    tcase_add_test(refused, plans_that_differ_are_told);
    tcase_add_test(refused, addresses_are_checked);
    tcase_add_test(strange, strangers_stop_nobody);
    return run_cases(trains, deaths, late, silent, secrets, refused, strange, NULL);
}
