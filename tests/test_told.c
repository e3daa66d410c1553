/* SPDX-License-Identifier: MIT */
/* SIGTERM to one trainer of descant train, with real processes: over TCP it leaves, and
 * the others go on; under mpirun all end. The program itself is a rank of an MPI job:
 * test_told rank CLICKS FOLDER [leave|once]. */
#include "harness/mpi.h"
#include "harness/steps.h"
#include "harness/tcp.h"
#include "harness/training.h"

#include <sys/stat.h>

enum { TRAINERS = 3, HOST_FILE = 128, CHUNK_ROWS = 300 /* at most */ };

/* --- the rule --- */

START_TEST(the_rule)
{
    for (int members = 0; members <= 4; members++)
        for (int others = 0; others <= 4; others++)
            for (int k = 0; k < 4; k++) {
                bool told = k % 2, wait = k / 2;        /* others have finished */
                bool all = told && others + 1 >= members && !wait;
                ck_assert_int_eq(term_judge(TERM_ENDS_RUN, told, members, others, wait),
                                 TERM_END_SIGNAL);
                ck_assert_int_eq(term_judge(TERM_LEAVES, told, members, others, wait),
                                 all            ? TERM_END_SIGNAL
                                 : told && !wait ? TERM_END_LEFT
                                                 : TERM_END_ALL);
                ck_assert_int_eq(term_judge(TERM_ENDS_ALL, told, members, others, wait),
                                 all ? TERM_END_SIGNAL : TERM_END_ALL);
            }
}
END_TEST

/* Members may have left whose word is on its way for a look of the events, 200 ms. */
START_TEST(the_rule_holds_for_a_while)
{
    static const uint64_t ms[] = {0, 1, 200, 249, 250, 999, 1000, 60000};
    for (int looked = 0; looked < N(ms); looked++)
        for (int all = 0; all <= looked; all++)
            for (int term = TERM_ENDS_RUN; term <= TERM_ENDS_ALL; term++)
                for (int end = TERM_END_SIGNAL; end <= TERM_END_ALL; end++) {
                    bool known = end != TERM_END_SIGNAL ? ms[looked] >= 1000
                                 : term == TERM_LEAVES  ? ms[all] >= 250
                                                        : true;
                    ck_assert_int_eq(term_known((enum term)term, (enum term_end)end,
                                                ms[looked] * 1000000, ms[all] * 1000000),
                                     known);
                }
}
END_TEST

/* --- over TCP --- */

static char job[300];
static pid_t pids[TRAINERS];

static const char *file_of(const char *path, int host)
{
    static char own[HOST_FILE];
    snprintf(own, sizeof own, host ? "%s.host%d" : "%s", path, host);
    return own;
}

static double logged_of(int host, const char *kind, const char *key)
{
    char first[sizeof log_file];
    snprintf(first, sizeof first, "%s", log_file);
    snprintf(log_file, sizeof log_file, "%s", file_of(first, host));
    double value = access(log_file, R_OK) == 0 ? logged(kind, key) : -1;
    strcpy(log_file, first);
    return value;
}

static void wait_trained(int host, double least)
{
    WAIT_UNTIL(logged_of(host, "interval", "examples") >= least, "host %d: %s", host,
               (read_said(), said));
}

static struct train_options of_job(void)
{
    struct train_options o = endless();
    struct tcp_options at;
    tcp_test_address(&at, "127.0.0.1", TRAINERS);
    snprintf(job, sizeof job, "tcp:127.0.0.1:%s,ranks=%d,dead=5s", at.port, TRAINERS);
    o.job = job;
    o.trainers = 0;
    o.over_tcp = true;
    return o;
}

static void begin_one(const struct train_options *o, int rank)
{
    char number[2] = {(char)('0' + rank), 0};
    setenv("RANK", number, 1);
    setenv("WORLD_SIZE", "3", 1);
    pids[rank] = begin(o);
}

/* Until they are told to end they train at their leisure. */
static void begin_all(const struct train_options *o)
{
    each_batch_us = 1000;
    for (int k = 0; k < TRAINERS; k++)
        begin_one(o, k);
    each_batch_us = 0;
    for (int k = 0; k < TRAINERS; k++)
        wait_trained(k, ROWS / 4);
}

/* Or, where it hears of no other's signal for a second, as one that leaves; the last one does not. */
static bool ends_by_signal(pid_t pid)
{
    int status = end_within(pid, 20);
    ck_assert_msg(status == 128 + SIGTERM || status == 0, "%d: %s", status, said);
    return status != 0;
}

/* Returns how many ended by the signal. */
static int end_others(int gone)
{
    int by_signal = 0;
    for (int k = 0; k < TRAINERS; k++)
        if (k != gone)
            kill(pids[k], SIGTERM);
    for (int k = 0; k < TRAINERS; k++)
        if (k != gone)
            by_signal += ends_by_signal(pids[k]);
    ck_assert_msg(by_signal > 0, "%s", said);
    return by_signal;
}

static void does_not_say(const char *text)
{
    ck_assert_msg(!strstr(said, text), "'%s' is in:\n%s", text, said);
}

/* That all of them have trained, by their own logs. */
static double examples_of_all(void)
{
    double all = 0;
    for (int k = 0; k < TRAINERS; k++)
        all += logged_of(k, "summary", "examples");
    return all;
}

/* Passes over the data, whose chunks are begun in: hosts are dealt work ahead. */
static int64_t epochs_begun(void)
{
    struct safetensors *file;
    struct stat of;
    size_t n = 0;
    ck_assert_int_eq(safetensors_open(&file, model_file, NULL), DESCANT_OK);
    ck_assert_int_eq(stat(clicks, &of), 0);
    const uint64_t *place = safetensors_list(file, "descant.place", SAFETENSORS_U64, &n);
    ck_assert_msg(n >= 2, "%s has no place", model_file);
    int64_t cursor = (int64_t)place[0], chunk = of_job().chunk;
    int64_t chunks = (of.st_size + chunk - 1) / chunk;
    safetensors_close(file);
    return (cursor + chunks - 1) / chunks;
}

static ino_t inode_of(const char *path)
{
    struct stat of;
    return stat(path, &of) == 0 ? of.st_ino : 0;
}

static useconds_t before_the_end_us;    /* that the end of the others than rank 0 takes longer */

void __real_train_log_last(struct trainer *t);
void __wrap_train_log_last(struct trainer *t);
void __wrap_train_log_last(struct trainer *t)
{
    if (t->rank > 0)
        usleep(before_the_end_us);
    __real_train_log_last(t);
}

/* All are told. The first host has gone before the others end, and is the one that has
 * written the model all the same. */
START_TEST(the_first_one_that_ends_is_not_replaced)
{
    struct train_options o = of_job();
    before_the_end_us = 600000;
    begin_all(&o);
    if (end_others(-1) < TRAINERS)
        return;                 /* one has left for itself */
    char *first = strstr(said, " has the model so far");
    ck_assert_msg(first && !strstr(first + 1, " has the model so far"), "%s", said);
}
END_TEST

/* Rank 0, which coordinates, writes and reports, or another one. The checkpoint has the
 * place and the sums of all hosts, also of the one that has left, whoever writes it. One
 * trainer goes on from it, and does again only what hosts had in hand. */
START_TEST(one_leaves_and_the_others_go_on)
{
    struct train_options o = of_job();
    struct train_result r;
    int leaver = _i, other = 1 - _i;
    char line[96];
    begin_all(&o);
    kill(pids[leaver], SIGTERM);
    ck_assert_msg(end_within(pids[leaver], 20) == 0, "%s", said);
    snprintf(line, sizeof line, "descant: rank %d (", leaver);
    says(line);
    says(") has left: SIGTERM; its steps are with the others, which go on\n");
    snprintf(line, sizeof line, "rank 2: trainer %d (", leaver);
    wait_said(line, 1);
    wait_said(") was told to end (SIGTERM): it leaves, and the others go on\n", 1);
    does_not_say("has died");
    does_not_say("without descant_finish");
    ino_t model = inode_of(model_file);
    wait_trained(other, logged_of(other, "interval", "examples") + ROWS / 4);
    wait_trained(2, logged_of(2, "interval", "examples") + ROWS / 4);
    WAIT_UNTIL(inode_of(model_file) != model, "nobody writes the model");
    if (end_others(leaver) < TRAINERS - 1)
        return;                 /* one has left for itself, and trained less than the others know */
    double all = examples_of_all();
    ck_assert_msg(examples_kept() == all, "%.0f examples, not %.0f, of:\n%s", examples_kept(), all,
                  said);
    does_not_say("lacks");
    o.trainers = 1;
    o.job = NULL;
    o.over_tcp = false;
    o.log = NULL;
    o.resume = true;
    o.epochs = epochs_begun() + 1;
    unsetenv("RANK");
    unsetenv("WORLD_SIZE");
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    does_not_say("anew");
    ck_assert_uint_eq(r.seen.n - r.own.n, (uint64_t)all);
    ck_assert_uint_ge(r.seen.n, (uint64_t)o.epochs * ROWS);
    uint64_t in_hand = TRAINERS * ((uint64_t)o.depth + 1) * CHUNK_ROWS;
    ck_assert_uint_le(r.seen.n, (uint64_t)o.epochs * ROWS + in_hand);
}
END_TEST

/* Rank 1 has a disk of its own, with the checkpoint of a run before, of the same data: as the
 * new writer it takes neither that run's sums nor its file for its own. */
START_TEST(a_file_of_another_run_is_not_taken_over)
{
    char own[sizeof model_file + 8], first[sizeof model_file], old[sizeof own + 8];
    struct train_options o = of_job();
    begin_all(&o);
    wait_file(model_file);
    end_others(-1);
    strcpy(first, model_file);
    snprintf(own, sizeof own, "%s.own", model_file);
    snprintf(old, sizeof old, "%s.old", own);
    ck_assert_int_eq(rename(model_file, own), 0);
    ck_assert_int_eq(unlink(log_file), 0);
    for (int k = 1; k < TRAINERS; k++)
        unlink(file_of(log_file, k));
    ino_t before = inode_of(own);
    unlink(said_file);
    for (int k = 0; k < TRAINERS; k++) {
        struct train_options of_rank = o;
        of_rank.checkpoint = k == 1 ? own : model_file;
        begin_one(&of_rank, k);
    }
    for (int k = 0; k < TRAINERS; k++)
        wait_trained(k, ROWS / 4);
    ck_assert(inode_of(own) == before);
    kill(pids[0], SIGTERM);
    ck_assert_msg(end_within(pids[0], 20) == 0, "%s", said);
    WAIT_UNTIL(inode_of(own) != before, "nobody writes the model");
    ck_assert(inode_of(old) == before);
    wait_said("model.safetensors.own exists and will be replaced", 1);
    end_others(0);
    strcpy(model_file, own);
    ck_assert_double_ge(examples_kept(), logged_of(0, "summary", "examples") + ROWS / 4);
    ck_assert_double_le(examples_kept(), examples_of_all());
    strcpy(model_file, first);
}
END_TEST

/* The first host is killed before it has left: the others say so, and another one writes
 * the model. */
START_TEST(one_is_told_and_dies)
{
    struct train_options o = of_job();
    begin_all(&o);
    kill(pids[0], SIGTERM);
    wait_said(") was told to end (SIGTERM): it leaves, and the others go on\n", 2);
    kill(pids[0], SIGKILL);
    ck_assert_int_eq(end_within(pids[0], 20), 128 + SIGKILL);
    wait_said("trainer 0 has died: 2 take part", 2);
    ino_t model = inode_of(model_file);
    WAIT_UNTIL(inode_of(model_file) != model, "nobody writes the model");
    end_others(0);
}
END_TEST

/* Its last mean waits for others that never come to one. */
START_TEST(another_signal_ends_it_at_once)
{
    struct train_options o = of_job();
    o.sync = "ma,every=1000000";
    o.checkpoint = NULL;            /* a disk may hold the end up */
    begin_all(&o);
    kill(pids[1], SIGTERM);
    wait_said("this trainer leaves, and the others go on; another one", 1);
    clock_sleep_until(clock_now_ns() + 1100000000);     /* the least that a person waits */
    kill(pids[1], SIGTERM);
    ck_assert_int_eq(end_within(pids[1], 20), 128 + SIGTERM);
    does_not_say("has left: SIGTERM");
    wait_said("trainer 1 has died: 2 take part", 2);
    end_others(1);
}
END_TEST

static bool is_cut_short;               /* a last exchange */

descant_status __real_descant_part(struct descant *job_, double most_s);
descant_status __wrap_descant_part(struct descant *job_, double most_s);
descant_status __wrap_descant_part(struct descant *job_, double most_s)
{
    if (is_cut_short && !(most_s > 15 && most_s <= 25))
        _exit(99);
    return __real_descant_part(job_, is_cut_short ? 0.5 : most_s);
}

/* The same. The leaver waits for as long as a spot notice allows, and says what it gave up. */
START_TEST(the_others_do_not_come)
{
    static const char begins[] = ") has left: SIGTERM; the others go on without its last ";
    struct train_options o = of_job();
    o.sync = "ma,every=1000000";
    o.checkpoint = NULL;
    is_cut_short = true;
    begin_all(&o);
    kill(pids[1], SIGTERM);
    ck_assert_msg(end_within(pids[1], 20) == 0, "%s", said);
    says("the others did not come within 0.5 s");
    says(begins);
    ck_assert_double_ge(strtod(strstr(said, begins) + strlen(begins), NULL),
                        logged_of(1, "summary", "examples") / (double)o.batch);
    end_others(1);
}
END_TEST

/* --- all hosts in one view --- */

/* In the last table. */
static void says_row(int host, const char *end)
{
    char begins[8], *at = NULL;
    snprintf(begins, sizeof begins, "\n  %d ", host);
    for (char *next = said; (next = strstr(next, begins)) != NULL; next++)
        at = next;
    ck_assert_msg(at != NULL, "no row of host %d in:\n%s", host, said);
    at[strcspn(at + 1, "\n") + 1] = 0;
    ck_assert_msg(strlen(end) <= strlen(at) &&
                      strcmp(at + strlen(at) - strlen(end), end) == 0,
                  "'%s' does not end the row%s", end, at);
    at[strlen(at)] = '\n';
}

/* The summary and the log have all hosts, and the slow one by name. Each example is trained
 * by one of them; the slow one gets fewer, so that no other waits for it at the end. */
START_TEST(the_summary_has_all_hosts_and_the_slow_one)
{
    struct train_options o = of_job();
    double all;
    o.epochs = 1;
    o.checkpoint = NULL;
    o.log_every = 0.1;
    for (int k = 0; k < TRAINERS; k++) {
        each_batch_us = k == 1 ? 20000 : 1000;
        begin_one(&o, k);
    }
    for (int k = 0; k < TRAINERS; k++)
        ck_assert_msg(end_within(pids[k], 60) == 0, "%s", said);
    says("  all 3 hosts          20000 ");
    says_row(1, "  slowest");
    all = examples_of_all();
    ck_assert_double_eq(all, ROWS);
    for (int k = 0; k < TRAINERS; k++)
        ck_assert_double_ge(logged_of(k, "summary", "examples"),
                            k == 1 ? 1 : 2 * logged_of(1, "summary", "examples"));
    ck_assert_double_eq(logged("summary", "job_examples"), all);
    ck_assert_double_eq(logged("summary", "job_hosts"), TRAINERS);
    ck_assert_double_eq(logged("summary", "slowest_host"), 1);
    ck_assert_double_eq_tol(logged("summary", "job_examples_per_s"),
                            all / logged("summary", "job_seconds"), 1);
    ck_assert_double_ge(logged("summary", "job_seconds"), logged_of(1, "summary", "seconds") - 0.5);
    ck_assert_double_eq(logged("whole", "examples"), all);
    ck_assert_double_eq(logged("whole", "hosts_at_work"), 0);
    ck_assert_double_ge(logged("whole", "seconds"), logged("summary", "job_seconds") / 2);
    for (int k = 1; k < TRAINERS; k++)
        ck_assert_double_eq(logged_of(k, "whole", "examples"), -1);
}
END_TEST

/* A slow one is killed while it has chunks in hand, and stays away or comes back: when all that
 * are there have ended, nothing is left for a run that goes on from their checkpoint. */
START_TEST(the_others_train_what_a_dead_one_had)
{
    struct train_options o = of_job();
    struct train_result r;
    o.epochs = 4;
    for (int k = 0; k < TRAINERS; k++) {
        each_batch_us = k == 2 ? 20000 : 2000;
        begin_one(&o, k);
    }
    wait_trained(2, 1);
    kill(pids[2], SIGKILL);
    ck_assert_int_eq(end_within(pids[2], 20), 128 + SIGKILL);
    wait_said("trainer 2 has died: 2 take part, and train its share of the data\n", 2);
    int n = _i ? TRAINERS : TRAINERS - 1;
    if (_i)
        begin_one(&o, 2);
    for (int k = 0; k < n; k++)
        ck_assert_msg(end_within(pids[k], 60) == 0, "%s", said);
    if (_i)
        ck_assert_double_gt(logged_of(2, "summary", "examples"), 0);
    o.trainers = 1;
    o.job = NULL;
    o.over_tcp = false;
    o.log = NULL;
    o.resume = true;
    unsetenv("RANK");
    unsetenv("WORLD_SIZE");
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    says("nothing is left to train");
    ck_assert_uint_eq(r.own.n, 0);
}
END_TEST

/* --examples is one limit for all hosts: exactly so many are trained, by need. */
enum { LIMIT = 2 * ROWS + 1 };

static void begin_limited(const char *sync, int each_ms, int slow_ms)
{
    struct train_options o = of_job();
    o.sync = sync;
    o.examples = LIMIT;
    o.workers = 2;
    o.checkpoint = NULL;
    for (int k = 0; k < TRAINERS; k++) {
        each_batch_us = 1000 * (useconds_t)(k == 2 ? slow_ms : each_ms);
        begin_one(&o, k);
    }
}

static void all_but_end(int gone)
{
    for (int k = 0; k < TRAINERS; k++)
        if (k != gone)
            ck_assert_msg(end_within(pids[k], 60) == 0, "%s", said);
}

START_TEST(a_limit_is_dealt_by_need)
{
    static const char *plans[] = {"shadow-easgd", "ma,every=40", "allreduce"};
    double least = INFINITY, most = 0;
    begin_limited(plans[_i], 1, 20);
    all_but_end(-1);
    ck_assert_msg(examples_of_all() == LIMIT, "%.0f examples", examples_of_all());
    for (int k = 0; k < TRAINERS; k++) {
        double s = logged_of(k, "summary", "seconds");
        least = fmin(least, s);
        most = fmax(most, s);
    }
    ck_assert_msg(most < least + 1, "hosts end from %g s to %g s", least, most);
    if (_i == 0)
        ck_assert_double_gt(logged_of(0, "summary", "examples"),
                            3 * logged_of(2, "summary", "examples"));
}
END_TEST

/* A trainer dies or leaves in the middle, or dies in its first steps when all the rest is done, so
 * that the first host does these alone. Where no exchange merges before the end the others train
 * the limit; else the leaver's steps count, too. */
START_TEST(what_a_host_loses_of_a_limit_is_trained_by_others)
{
    enum { DIES, LOSES, DIES_LATE, LEAVES };
    bool leaves = _i == LOSES || _i == LEAVES, late = _i == DIES_LATE;
    double all = 0;
    is_cut_short = _i == LOSES;
    begin_limited(_i == LEAVES ? "shadow-easgd" : "ma,every=1000000", late ? 1 : 12,
                  late ? 8000 : 20);
    int64_t in_work = 2 * of_job().batch;
    WAIT_UNTIL(logged("whole", "examples") >= (double)(late ? LIMIT - in_work : ROWS / 2), "%s",
               (read_said(), said));
    if (!late)
        wait_trained(2, 1);
    kill(pids[2], leaves ? SIGTERM : SIGKILL);
    ck_assert_int_eq(end_within(pids[2], 20), leaves ? 0 : 128 + SIGKILL);
    if (leaves)
        says(_i == LEAVES ? " has left: SIGTERM; its steps are with the others, which go on\n"
                          : " has left: SIGTERM; the others go on without its last ");
    all_but_end(2);
    if (late)
        says("a trainer ended or died with a part of the data: its chunks are trained by this one");
    for (int k = 0; k < (_i == LEAVES ? TRAINERS : TRAINERS - 1); k++)
        all += logged_of(k, "summary", "examples");
    ck_assert_msg(all == LIMIT, "%.0f examples:\n%s", all, said);
}
END_TEST

/* The first host evaluates, after so many examples of all, and ends the run for all. */
START_TEST(patience_ends_all)
{
    struct train_options o = of_job();
    o.eval = held_out;
    o.eval_every = 5 * ROWS;
    o.patience = 2;
    o.lr = 0.5;
    for (int k = 0; k < TRAINERS; k++)
        begin_one(&o, k);
    for (int k = 0; k < TRAINERS; k++)
        ck_assert_msg(end_within(pids[k], 60) == 0, "%s", said);
    char *why = strstr(said, "no gain in 2 evaluations; the best loss was ");
    ck_assert_msg(why && !strstr(why + 1, "no gain in"), "%s", said);
    double at = strtod(strstr(why, ", at ") + 5, NULL);
    ck_assert_msg(at >= 5 * ROWS && at < examples_of_all(), "%s", said);
    ck_assert_msg(fabs(logged("eval", "examples") - 15 * ROWS) < 12 * ROWS, "%g",
                  logged("eval", "examples"));
}
END_TEST

/* One is killed and one leaves: both stay in the table with what they did, also where the
 * first host is the one that leaves, and another one reports. */
START_TEST(those_that_have_gone_stay_in_the_table)
{
    static const int ways[][3] = {{1, 2, 0}, {2, 0, 1}};
    int killed = ways[_i][0], leaver = ways[_i][1], last = ways[_i][2];
    struct train_options o = of_job();
    char line[64];
    begin_all(&o);
    WAIT_UNTIL(logged("whole", "hosts") >= TRAINERS, "%g hosts", logged("whole", "hosts"));
    WAIT_UNTIL(logged("whole", "examples") > ROWS / 2, "%g examples",
               logged("whole", "examples"));
    kill(pids[killed], SIGKILL);
    ck_assert_int_eq(end_within(pids[killed], 20), 128 + SIGKILL);
    snprintf(line, sizeof line, "trainer %d has died: 2 take part", killed);
    wait_said(line, 2);
    kill(pids[leaver], SIGTERM);
    ck_assert_msg(end_within(pids[leaver], 20) == 0, "%s", said);
    WAIT_UNTIL(logged_of(last, "whole", "hosts_at_work") == 1, "%g",
               logged_of(last, "whole", "hosts_at_work"));
    kill(pids[last], SIGTERM);
    ck_assert_msg(end_within(pids[last], 20) == 128 + SIGTERM, "%s", said);
    says_row(killed, "died");
    says_row(leaver, "left");
    ck_assert_double_eq(logged_of(last, "summary", "job_hosts"), TRAINERS);
    ck_assert_double_ge(logged_of(last, "summary", "job_examples"),
                        logged_of(last, "summary", "examples") +
                            logged_of(leaver, "summary", "examples"));
}
END_TEST

/* Also where the first host's last checkpoint fails: that host has not ended well. */
START_TEST(all_end_where_that_is_asked)
{
    struct train_options o = of_job();
    char temporary[HOST_FILE];
    snprintf(temporary, sizeof temporary, "%s.tmp", model_file);
    o.on_term = ON_TERM_ALL;
    begin_all(&o);
    if (_i)
        WAIT_UNTIL(mkdir(temporary, 0700) == 0, "%s", temporary);
    kill(pids[1], SIGTERM);
    for (int k = 0; k < TRAINERS; k++)
        ck_assert_msg(end_within(pids[k], 20) == (k == 0 && _i), "%d: %s", k, said);
    says("descant: rank 1 (");
    says("): SIGTERM: the run ends with a last checkpoint");
    says("descant: trainer 1 (");
    says(") was told to end (SIGTERM): all trainers end with a last checkpoint\n");
    if (!_i)
        ck_assert_double_eq(examples_kept(), examples_of_all());
}
END_TEST

/* Of a job that waits for others: one is told, or all that are there. Their data is left. */
START_TEST(who_is_told_at_the_start_ends)
{
    struct train_options o = of_job();
    for (int k = _i; k < 2; k++) {
        begin_one(&o, k);
        /* Check's own handlers, which it begins with, catch SIGINT */
        WAIT_UNTIL(!catches(pids[k], SIGINT), "%s", (read_said(), said));
    }
    for (int k = _i; k < 2; k++)
        kill(pids[k], SIGTERM);
    for (int k = _i; k < 2; k++)
        ck_assert_int_eq(end_within(pids[k], 10), 128 + SIGTERM);
}
END_TEST

START_TEST(trainers_of_one_machine_end_together)
{
    struct train_options o = small();
    struct train_result r;
    o.on_term = ON_TERM_LEAVE;
    o.trainers = 2;
    ck_assert_int_eq(train(&o, &r), 1);
    says("--on-term leave needs trainers on several machines");
}
END_TEST

/* --- under mpirun --- */

/* One rank has a child that tells it, once the log has an interval; of ranks that would
 * leave, and of those that train the data once, none. */
static int rank_of_mpi(const char *data, const char *where, const char *way)
{
    bool leaves = strcmp(way, "leave") == 0, once = strcmp(way, "once") == 0;
    const char *open_mpi = getenv("OMPI_COMM_WORLD_RANK"), *pmi = getenv("PMI_RANK");
    const char *rank = open_mpi ? open_mpi : pmi ? pmi : "?";
    pid_t self_pid = getpid();
    snprintf(log_file, sizeof log_file, "%s/run.jsonl", where);
    snprintf(model_file, sizeof model_file, "%s/model.safetensors", where);
    struct train_options o = endless();
    o.data = data;
    o.trainers = 0;
    o.watched = true;
    o.job = "mpi";
    o.on_term = leaves ? ON_TERM_LEAVE : ON_TERM_AUTO;
    if (once) {
        o.epochs = 1;
        o.checkpoint = NULL;
    }
    if (!leaves && !once && strcmp(rank, "1") == 0 && fork() == 0) {
        wait_examples(ROWS / 4);
        kill(self_pid, SIGTERM);
        _exit(0);
    }
    train_know_plan(&o);
    return train_run(&o, stdout, stderr, NULL);
}

START_TEST(ranks_of_mpi_end_together)
{
    char what[PATH_MAX + 300];
    struct train_options o = endless();
    struct train_result r;
    if (!is_there((enum mpi_library)_i))
        return;
    snprintf(what, sizeof what, "-n 3 %s rank %s %s", self, clicks, folder);
    int status = mpirun((enum mpi_library)_i, "", what);
    ck_assert_msg(status == 0, "status %d: %s", status, said);
    says("descant: rank 1 (");
    says("): SIGTERM: the run ends with a last checkpoint");
    double kept = examples_kept();
    ck_assert_double_eq(kept, logged("summary", "examples"));
    o.log = NULL;
    o.resume = true;
    o.epochs = (int64_t)(kept / ROWS) + 2;
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    ck_assert_double_eq((double)(r.seen.n - r.own.n), kept);
}
END_TEST

/* MPICH can take the ranks of one machine for those of several. */
START_TEST(ranks_of_one_host_do_not_leave)
{
    char what[PATH_MAX + 300];
    if (!is_there(MPI_LIBRARY_MPICH))
        return;
    setenv("MPIR_CVAR_NUM_CLIQUES", "2", 1);
    snprintf(what, sizeof what, "-n 3 %s rank %s %s leave", self, clicks, folder);
    ck_assert_int_ne(mpirun(MPI_LIBRARY_MPICH, "", what), 0);
    says("--on-term leave needs one trainer a machine");
}
END_TEST

/* One of the two hosts has two ranks, which are one row. */
START_TEST(hosts_of_mpi_are_in_the_summary)
{
    char what[PATH_MAX + 300];
    if (!is_there(MPI_LIBRARY_MPICH))
        return;
    setenv("MPIR_CVAR_NUM_CLIQUES", "2", 1);
    snprintf(what, sizeof what, "-n 3 %s rank %s %s once", self, clicks, folder);
    ck_assert_msg(mpirun(MPI_LIBRARY_MPICH, "", what) == 0, "%s", said);
    says("the first of 2 hosts");
    says("\n  0 ");
    says("\n  1 ");
    says("  all 2 hosts          20000 ");
    ck_assert_double_eq(logged("summary", "job_examples"), ROWS);
    ck_assert_double_eq(logged("summary", "job_hosts"), 2);
    ck_assert_double_gt(logged("host", "trainers"), 0);
}
END_TEST

int main(int argc, char **argv)
{
    if (argc >= 4 && strcmp(argv[1], "rank") == 0)
        return rank_of_mpi(argv[2], argv[3], argc > 4 ? argv[4] : "");
    find_modules();
    TCase *leave = new_case("leave", 100), *twice = new_case("twice", 100);
    TCase *all = new_case("all", 100), *mpi = new_case("mpi", 100);
    TCase *whole = new_case("whole", 100);
    TCase *cases[] = {leave, twice, all, mpi, whole};
    for (int k = 0; k < N(cases); k++)
        tcase_add_checked_fixture(cases[k], set_up_training, remove_folder);
    tcase_add_test(leave, the_rule);
    tcase_add_test(leave, the_rule_holds_for_a_while);
    tcase_add_loop_test(leave, one_leaves_and_the_others_go_on, 0, few(2, 1));
    tcase_add_test(leave, the_first_one_that_ends_is_not_replaced);
    tcase_add_loop_test(leave, who_is_told_at_the_start_ends, 0, 2);
    tcase_add_test(leave, one_is_told_and_dies);
    tcase_add_test(leave, a_file_of_another_run_is_not_taken_over);
    tcase_add_test(whole, the_summary_has_all_hosts_and_the_slow_one);
    tcase_add_loop_test(whole, a_limit_is_dealt_by_need, 0, few(3, 1));
    tcase_add_loop_test(whole, what_a_host_loses_of_a_limit_is_trained_by_others, 0, few(4, 2));
    tcase_add_test(whole, patience_ends_all);
    tcase_add_loop_test(whole, the_others_train_what_a_dead_one_had, 0, few(2, 1));
    tcase_add_loop_test(whole, those_that_have_gone_stay_in_the_table, 0, few(2, 1));
    tcase_add_test(twice, another_signal_ends_it_at_once);
    tcase_add_test(twice, the_others_do_not_come);
    tcase_add_loop_test(all, all_end_where_that_is_asked, 0, few(2, 1));
    tcase_add_test(all, trainers_of_one_machine_end_together);
    tcase_add_test(mpi, ranks_of_one_host_do_not_leave);
    tcase_add_test(mpi, hosts_of_mpi_are_in_the_summary);
    tcase_add_loop_test(mpi, ranks_of_mpi_end_together, 0, LIBRARIES_RUN);
    make_clicks();
    return run_cases(leave, twice, all, mpi, whole, NULL);
}
