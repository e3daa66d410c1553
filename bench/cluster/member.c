/* SPDX-License-Identifier: MIT */
/* A trainer of a job whose hosts come and go, which tells how it fares: member PLAN BYTES
 * WORK_MS [STEP_MS [ITEMS STEPS]]. The job is the launcher's: DESCANT_JOB, RANK, WORLD_SIZE.
 *
 * A step begins STEP_MS, 5, after the one before, or at once where that is past: time that is
 * lost is not made up. It works on the replica for WORK_MS. So a step that waits is lost,
 * and the CPU that others take, such as trainers that start, is seen apart from that:
 * queued_ns is the time for which this thread was ready to run and had no core.
 *
 * JSON lines, with times in ms of CLOCK_MONOTONIC, which all hosts of a machine share:
 * start, once the job has let it in; about every 100 ms a window, with counts since the
 * start; and after SIGTERM, the final mean, end, with a hash of the model.
 *
 * After SIGUSR1 it leaves alone, within 25 s, and tells how that went: left.
 *
 * With ITEMS it is dealt so many, makes STEPS steps for each, and ends when all are done; a
 * line `item` tells of each one. Rank 3 does alone, after the finish, what has died with
 * others, and ends with a line `known`: how many items are done, in how many runs.
 *
 * The lines start, window and end have the times at which main began, the job was opened, there was memory for the model, and the
 * first step was done. */
#include <descant.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define LEAVES_S 25.0

enum { WINDOW_MS = 100, PIECE = 4096, LAST = 3 /* rank */ };

static volatile sig_atomic_t ends;
static double main_ms, opened_ms, memory_ms, stepped_ms;
static int64_t work_ns, step_ns = 5000000;
static unsigned long long items, steps_each = 1;

static void note(int signal)
{
    ends = signal;
}

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static double now_ms(void)
{
    return (double)now_ns() * 1e-6;
}

static void fail(const char *what)
{
    fprintf(stderr, "member: %s: %s\n", what, descant_last_error());
    exit(1);
}

/* Goes on through the model, and around, each rank to another value. */
static void work(float *w, size_t n, float goal)
{
    static size_t at;
    int64_t until_ns = now_ns() + work_ns;
    do {
        for (size_t i = 0; i < PIECE; i++)
            w[at + i] += 0.01f * (goal - w[at + i]);
        at = (at + PIECE) % n;
    } while (now_ns() < until_ns);
}

/* /proc/PID/schedstat: ns on a core, ns in the queue for one. */
static unsigned long long queued_ns(void)
{
    unsigned long long ns = 0;
    FILE *in = fopen("/proc/thread-self/schedstat", "re");
    if (!in || fscanf(in, "%*u %llu", &ns) != 1)
        fail("schedstat");
    fclose(in);
    return ns;
}

static void say(struct descant *job, const char *kind, const float *w, size_t n)
{
    struct descant_stats s;
    struct descant_members m;
    uint64_t hash = UINT64_C(14695981039346656037);
    if (descant_stats(job, &s) || descant_members(job, &m))
        fail(kind);
    for (size_t i = 0; w && i < n; i++) {
        union { float f; uint32_t bits; } of = {w[i]};
        hash = (hash ^ of.bits) * UINT64_C(1099511628211);
    }
    printf("{\"kind\":\"%s\",\"ms\":%.3f,\"main_ms\":%.3f,\"opened_ms\":%.3f,"
           "\"memory_ms\":%.3f,\"stepped_ms\":%.3f,\"rank\":%d,\"steps\":%llu,"
           "\"rounds\":%llu,\"stall_ns\":%llu,\"queued_ns\":%llu,\"members\":%d,"
           "\"epoch\":%u,\"missed\":%llu,\"merged\":%llu,\"hash\":\"%llx\"}\n",
           kind, now_ms(), main_ms, opened_ms, memory_ms, stepped_ms, m.rank,
           (unsigned long long)s.steps, (unsigned long long)s.rounds,
           (unsigned long long)s.stall_ns, queued_ns(), m.size, m.epoch,
           (unsigned long long)s.missed, (unsigned long long)s.merged,
           (unsigned long long)hash);
    fflush(stdout);
}

/* A step, at its time, and a line if one is due. */
static void step(struct descant *job, float *w, size_t n, int rank)
{
    static int64_t due_ns, said_ns;
    due_ns = due_ns ? due_ns : now_ns();
    said_ns = said_ns ? said_ns : due_ns;
    work(w, n, (float)rank);
    if (descant_step(job))
        fail("step");
    int64_t now = now_ns();
    stepped_ms = stepped_ms > 0 ? stepped_ms : now_ms();
    if (now - said_ns >= WINDOW_MS * INT64_C(1000000)) {
        say(job, "window", NULL, 0);
        said_ns = now;
    }
    due_ns = due_ns + step_ns > now ? due_ns + step_ns : now;
    struct timespec due = {due_ns / 1000000000, due_ns % 1000000000};
    while (!ends && clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, NULL))
        ;
}

static void say_item(struct descant *job, uint64_t item, int rank)
{
    printf("{\"kind\":\"item\",\"ms\":%.3f,\"rank\":%d,\"item\":%llu}\n", now_ms(), rank,
           (unsigned long long)item);
    fflush(stdout);
    if (descant_deal_done(job, item))
        fail("deal_done");
}

static void train(struct descant *job, float *w, size_t n, int rank)
{
    uint64_t item = 0;
    if (!items) {
        while (!ends)
            step(job, w, n, rank);
        return;
    }
    if (descant_deal_begin(job, NULL, 0) || descant_deal_end(job, items))
        fail("deal_begin");
    while (!ends) {
        descant_status status = descant_deal_take(job, 0.1, &item);
        if (status == DESCANT_TIMEOUT)
            continue;
        if (status != DESCANT_OK)
            fail("deal_take");
        if (item == DESCANT_NO_ITEM)
            break;
        for (unsigned long long k = 0; k < steps_each && !ends; k++)
            step(job, w, n, rank);
        if (!ends)
            say_item(job, item, rank);
    }
    descant_worker_done(job);
}

/* After the finish: steps are not made any more, for nobody would have them. */
static void do_rest(struct descant *job, int rank)
{
    static struct descant_items known[4096];
    unsigned long long done = 0;
    uint64_t item = 0;
    size_t runs = 0;
    if (descant_deal_rest(job))
        fail("deal_rest");
    while (descant_deal_take(job, 0, &item) == DESCANT_OK && item != DESCANT_NO_ITEM)
        say_item(job, item, rank);
    if (descant_deal_known(job, known, 4096, &runs))
        fail("deal_known");
    for (size_t k = 0; k < runs && k < 4096; k++)
        done += known[k].to - known[k].from;
    printf("{\"kind\":\"known\",\"rank\":%d,\"done\":%llu,\"runs\":%zu}\n", rank, done, runs);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    struct descant_options o = descant_options_default();
    struct sigaction action = {.sa_handler = note};
    struct descant_members m;
    struct descant *job;
    float *w = NULL;
    main_ms = now_ms();
    if (argc != 4 && argc != 5 && argc != 7)
        return 2;
    size_t n = strtoull(argv[2], NULL, 10) / sizeof *w / PIECE * PIECE;
    o.plan = argv[1];
    work_ns = (int64_t)(1e6 * strtod(argv[3], NULL));
    if (argc == 7) {
        items = strtoull(argv[5], NULL, 10);
        steps_each = strtoull(argv[6], NULL, 10);
    }
    if (argc > 4)
        step_ns = (int64_t)(1e6 * strtod(argv[4], NULL));
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGUSR1, &action, NULL);
    if (descant_open(&job, &o))
        fail("open");
    opened_ms = now_ms();
    if (!(w = descant_alloc(job, "w", n)))
        fail("alloc");
    memory_ms = now_ms();
    if (descant_start(job))
        fail("start");
    say(job, "start", NULL, 0);
    if (descant_members(job, &m))
        fail("members");
    train(job, w, n, m.rank);
    if (ends == SIGUSR1) {
        double told_ms = now_ms();
        descant_tell(job);
        descant_status status = descant_part(job, LEAVES_S);
        printf("{\"kind\":\"left\",\"ms\":%.3f,\"told_ms\":%.3f,\"why\":\"%s\"}\n", now_ms(),
               told_ms, descant_status_text(status));
        fflush(stdout);
        return descant_close(job) != DESCANT_OK;
    }
    if (descant_finish(job, DESCANT_FINAL_MEAN))
        fail("finish");
    say(job, "end", w, n);
    if (items && m.rank == LAST)
        do_rest(job, m.rank);
    return descant_close(job) != DESCANT_OK;
}
