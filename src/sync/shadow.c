/* SPDX-License-Identifier: MIT */
/* The shadow: the thread that keeps a trainer's replica together with the others'.
 *
 * A round of a shadow plan is made without rests, but for looks where nothing wakes it,
 * and then paid for: after c seconds of CPU no other one begins until c / budget have
 * passed. A pull loses the steps that workers make between what their trainer gives and
 * what it takes; the shorter a round, the fewer these are. While it pays, the shadow
 * answers its peers between rests as long as those of a burst, about a millisecond of
 * work, or longer where an answer took more. Answers are paid for, too, but put its own
 * round off by no more than as long again, and debts above that are forgiven. So over any
 * long time it has its share of a core, or half as much again where peers ask for a lot.
 * The shadow heeds others' calls to a round once it has paid for all before its last one,
 * so that trainers meet although their rests differ a little, and one with a larger share
 * does not spend that of others.
 * Rounds of rows are many and small. Where a trainer has copies of tables all work is
 * done in bursts, each paid for by itself: a burst is long enough that refilling the
 * caches it emptied is small beside it.
 * Under the default budget the shadow pays 1.5 c, to cover its cost to the workers, too;
 * and where nothing wakes it, it pays for each look, so that it looks less often and
 * finds more. While rows of tables wait, the default budget is larger, under any plan. A
 * budget that was given is for the shadow's own CPU.
 * Delayed plans have a deadline, and there the budget yields: the exchange runs as soon
 * as it can, in short slices where a worker has the core, and the merge is the worker's.
 * Rounds of rows have no deadline in any plan, and wait until earlier work is paid for:
 * of the shadow's work in a shadow plan, of rows in others, whose exchanges cost what
 * they cost.
 * Where trainers come and go, the shadow answers the others under every plan, also while
 * no round is open: steps may be slower than the time after which a trainer counts as
 * dead.
 * With nothing to do the shadow sleeps on the fabric, longer each time, up to a bound
 * that costs a thousandth of a core.
 *
 * The shadow holds the machine for a piece at a time (tens of microseconds), so that a
 * worker of a delayed plan never waits longer for the machine. The shadow touches no
 * stall and no copy counter. */
#include "sync/job.h"

#include "base/budget.h"
#include "base/slice.h"
#include "sync/hold.h"

#include <pthread.h>

enum {
    REST_LEAST_NS = 1000000,
    REST_MOST_NS = 20000000,
    HELD_NS = 1000000000,
    GIVE_WAY_NS = 50000,        /* after a burst of a round, to who wants the machine */
    SLICE_NS = 100000
};

/* Rounds of the replica while rows wait: they get one part in so many of the shadow's
 * time; a late round gets more, and a round is late so many steps of all workers after
 * the last. */
enum { ROUND_SHARE = 4, LATE_SHARE = 2, LATE_STEPS = 250 };

/* The share of a core where no core is to spare. Rows need less of it over a link
 * that wakes its sleeper, so that nothing is paid for looks (look_ns). */
static const double BUDGET = 0.02, ROWS_BUDGET = 0.03, ROWS_LOOKS_BUDGET = 0.04;

static bool rows_wait(const struct descant *job)
{
    return atomic_load_explicit(&job->tables.stats.waiting, memory_order_relaxed) > 0;
}

/* The budget is a whole core only where every worker and every shadow of this machine has
 * one. */
static double budget_of(const struct descant *job)
{
    if (job->sync_cpu > 0)
        return job->sync_cpu;
    if (job->cores >=
        atomic_load_explicit(&job->fabric->machine_threads, memory_order_relaxed))
        return 1;
    if (!rows_wait(job))
        return BUDGET;
    return job->fabric->type->look_ns > 0 ? ROWS_LOOKS_BUDGET : ROWS_BUDGET;
}

/* Merges a hundred steps apart do no harm, but late rows do; merges many hundreds of
 * steps apart do, too, unless the plan asks for them. */
static bool rows_first(const struct descant *job, uint64_t new_steps, uint64_t gap)
{
    uint64_t late = gap < LATE_STEPS / 2 ? LATE_STEPS : 2 * gap;
    uint64_t parts = new_steps < late ? ROUND_SHARE : LATE_SHARE;
    return rows_wait(job) &&
           clock_thread_cpu_ns() - job->round_began_cpu_ns < parts * job->round_cpu_ns;
}

/* One turn of the shadow's loop. */
struct burst {
    bool paid;              /* all earlier work is */
    bool may_begin, heeds;  /* a round of its own; a call to one */
    bool in_round;          /* after its last piece, or a base is being taken */
    bool began, ended;      /* a round has */
    uint64_t held_ns;       /* job->held_ns */
    uint64_t rows_ns;       /* its CPU time that rows took */
};

/* Shadow plans: whether the next round may begin. */
static bool due(struct descant *job, enum round_progress progress,
                const struct burst *burst)
{
    if (job->plan.when != PLAN_SHADOW)
        return false;
    if (progress == ROUND_CALLED && burst->heeds)
        return true;
    uint64_t new_steps = workers_steps(&job->workers) - job->begun_steps;
    uint64_t least = job->plan.gap > 1 ? (uint64_t)job->plan.gap : 1;
    return atomic_load(&job->reload) ||
           (new_steps >= least && !rows_first(job, new_steps, least) &&
            job_link_allows(job) && burst->may_begin);
}

static bool has_worked(enum round_progress progress)
{
    return progress == ROUND_WORKED || progress == ROUND_DONE;
}

/* A worker does what the plan has to do. */
static enum round_progress answer(struct descant *job)
{
    if (!job_answers(job))
        return ROUND_HELD;
    job->fabric->type->serve(job->fabric);
    if (job->fabric->status == DESCANT_OK)
        return ROUND_RESTING;
    job_broken(job);
    return ROUND_FAILED;
}

static enum round_progress advance_round(struct descant *job, struct burst *burst)
{
    const struct round *r = &job->round;
    bool exchanges = (r->state == ROUND_EXCHANGING || r->state == ROUND_STEPPING) &&
                     !r->released && !r->arrived;
    if (job->plan.when != PLAN_SHADOW && !exchanges)
        return answer(job);
    enum round_progress progress = job_advance(job);
    burst->ended |= progress == ROUND_DONE;
    if (progress == ROUND_DONE)
        job_round_done(job, workers_steps(&job->workers));
    else if (progress == ROUND_FAILED)
        job_broken(job);
    else if ((progress == ROUND_RESTING || progress == ROUND_CALLED) &&
             due(job, progress, burst)) {
        job_round_begins(job, workers_steps(&job->workers), true);
        burst->began = true;
        job->round_began_cpu_ns = clock_thread_cpu_ns();
        job->round_cpu_ns = 0;
        progress = ROUND_WORKED;
    }
    return progress;
}

/* A shadow that only answers leaves the machine to its holder, who answers as well. */
static bool take_machine(struct descant *job, bool rows)
{
    bool works = rows || job->plan.when == PLAN_SHADOW || job->plan.delay > 0;
    if (!works)
        return pthread_mutex_trylock(&job->machine) == 0;
    pthread_mutex_lock(&job->machine);
    return true;
}

static enum round_progress advance_rows(struct descant *job, struct burst *burst)
{
    uint64_t before = clock_thread_cpu_ns();
    enum round_progress progress = job_rows(job);
    burst->rows_ns += clock_thread_cpu_ns() - before;
    return progress;
}

static bool has_rows(const struct descant *job)
{
    return tables_part_bytes(&job->tables) > 0;
}

/* One piece of the round, or of rows where all is paid for: in turns, while both have
 * work. */
static enum round_progress advance(struct descant *job, struct burst *burst)
{
    enum round_progress progress = ROUND_HELD;
    bool rows = burst->paid && has_rows(job);
    if (!take_machine(job, rows))
        return progress;
    if (!job->paused && !atomic_load(&job->failure)) {
        job->rows_turn = rows && !job->rows_turn;
        if (job->rows_turn)
            progress = advance_rows(job, burst);
        uint64_t before = rows ? clock_thread_cpu_ns() : 0;
        if (!job->rows_turn || !has_worked(progress)) {
            progress = advance_round(job, burst);
            job->round_cpu_ns += rows ? clock_thread_cpu_ns() - before : 0;
        }
        if (rows && !job->rows_turn && !has_worked(progress) &&
            has_worked(advance_rows(job, burst)))
            progress = ROUND_WORKED;
    }
    burst->in_round = job->round.state != ROUND_IDLE;
    burst->held_ns = job->held_ns;
    pthread_mutex_unlock(&job->machine);
    return progress;
}

static void rest_until(struct descant *job, uint64_t until_ns)
{
    while (!atomic_load(&job->shadow_stop) && clock_now_ns() < until_ns) {
        uint32_t bell = atomic_load(&job->shadow_bell);
        if (atomic_load(&job->shadow_stop))
            return;
        futex_wait(&job->shadow_bell, bell, until_ns);
    }
}

/* Sleeps as progress needs: until the peers have moved, or the bell has rung since it was
 * read; not for long where the machine's holder may stop answering. */
static void await(struct descant *job, enum round_progress progress, uint32_t bell,
                  uint64_t until_ns)
{
    if (progress == ROUND_WAITING || progress == ROUND_RESTING)
        job->fabric->type->wait(job->fabric, until_ns);
    else if ((progress == ROUND_HELD || progress == ROUND_FAILED) &&
             !atomic_load(&job->shadow_stop))
        futex_wait(&job->shadow_bell, bell,
                   has_rows(job) || job_answers(job) ? until_ns : until_ns + HELD_NS);
}

/* The shadow's own. */
struct debt {
    struct budget spent;
    uint64_t look_ns;       /* what a look costs where nothing wakes the shadow */
    uint64_t before_ns;     /* when all before the round in hand, or the last, is paid */
    uint64_t latest_ns;     /* when a round may begin, whatever is owed by then */
    uint64_t held_ns;       /* of job->held_ns, which pays for nothing */
    bool rested;            /* before the burst in hand */
};

static bool pays(const struct descant *job, double budget)
{
    return job->plan.when == PLAN_SHADOW && budget < 1;
}

/* A round has ended, and what it cost is owed: when the next may begin, if as much again
 * is spent on answers. */
static uint64_t latest(const struct debt *debt, uint64_t now)
{
    uint64_t until = debt->spent.until_ns, begun = debt->before_ns;
    return until <= now ? now : now + 2 * (until - (begun > now ? begun : now));
}

/* Pays for a burst: until when the shadow rests. */
static uint64_t pay(struct descant *job, struct debt *debt, const struct burst *burst,
                    double budget, bool looks)
{
    struct budget *spent = &debt->spent;
    uint64_t held = burst->held_ns - debt->held_ns, now = clock_now_ns();
    spent->until_ns += held;
    debt->before_ns += held;
    debt->latest_ns += held;
    debt->held_ns = burst->held_ns;
    if (burst->began)
        debt->before_ns = spent->until_ns;
    spent->wake_ns = debt->rested ? debt->look_ns : 0;
    bool shadows = job->plan.when == PLAN_SHADOW;
    double cost = budget_pay(spent, budget, shadows ? UINT64_MAX : burst->rows_ns);
    if (burst->ended) {
        debt->latest_ns = latest(debt, now);
        if (spent->until_ns > debt->latest_ns)
            spent->until_ns = debt->latest_ns;
    }
    if (!pays(job, budget))
        return now;
    if (has_rows(job))
        return spent->until_ns;
    double least = spent->cost * BUDGET_BURST_NS / budget;
    if (burst->in_round && !looks)
        cost = GIVE_WAY_NS;
    else if (!burst->in_round && cost < least)
        cost = least;
    uint64_t most = now + (uint64_t)cost;
    return spent->until_ns < most ? spent->until_ns : most;
}

/* Where rows go on after a round of theirs, so does the burst. */
static bool goes_on(const struct descant *job, enum round_progress progress)
{
    return progress == ROUND_WORKED || (progress == ROUND_DONE && has_rows(job));
}

static void *run(void *context)
{
    struct descant *job = context;
    uint64_t rest = REST_LEAST_NS;
    struct debt debt = {.rested = true};
    if (job->plan.when == PLAN_EVERY && job->plan.delay > 0)
        slice_ask(SLICE_NS);
    bool given = job->sync_cpu > 0;
    if (!given && job->plan.when == PLAN_SHADOW)
        debt.look_ns = job->fabric->type->look_ns;
    budget_begin(&debt.spent, given ? 1 : BUDGET_BURST_COST, debt.look_ns);
    while (!atomic_load(&job->shadow_stop)) {
        uint32_t bell = atomic_load(&job->shadow_bell);
        double budget = budget_of(job);
        atomic_store_explicit(&job->budget, budget, memory_order_relaxed);
        uint64_t now = clock_now_ns();
        bool paid = budget >= 1 || debt.spent.until_ns <= now;
        struct burst burst = {.paid = paid, .may_begin = paid || debt.latest_ns <= now,
                              .heeds = paid || debt.before_ns <= now,
                              .held_ns = debt.held_ns};
        enum round_progress progress;
        do
            progress = advance(job, &burst);
        while (goes_on(job, progress) && !budget_burst_over(&debt.spent) &&
               !atomic_load(&job->shadow_stop));
        bool looks = debt.look_ns > 0 && progress == ROUND_WAITING;
        uint64_t until = pay(job, &debt, &burst, budget, looks);
        atomic_store_explicit(&job->stats.shadow_cpu_ns, debt.spent.cpu_ns,
                              memory_order_relaxed);
        now = clock_now_ns();
        rest = has_worked(progress) ? REST_LEAST_NS
                                    : 2 * rest < REST_MOST_NS ? 2 * rest : REST_MOST_NS;
        debt.rested = !has_worked(progress) || !burst.in_round || has_rows(job);
        if (until <= now + (looks ? 0 : rest))      /* else one sleep will do */
            await(job, progress, bell, now + rest);
        rest_until(job, until);
    }
    return NULL;
}

descant_status shadow_start(struct descant *job)
{
    sigset_t before;
    signals_hold(&before);
    int error = memory_refuse() ? -1 : pthread_create(&job->shadow, NULL, run, job);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0)
        return log_fail(&job->log, DESCANT_SYSTEM,
                        "the shadow's thread cannot be started");
    job->shadow_runs = true;
    return DESCANT_OK;
}

void shadow_ring(struct descant *job)
{
    const struct fabric_type *type = job->fabric->type;
    atomic_fetch_add(&job->shadow_bell, 1);
    futex_wake_all(&job->shadow_bell);
    if (type->wake)
        type->wake(job->fabric);
}

void shadow_stop(struct descant *job)
{
    if (!job->shadow_runs)
        return;
    atomic_store(&job->shadow_stop, true);
    shadow_ring(job);
    pthread_join(job->shadow, NULL);
    job->shadow_runs = false;
}

void job_hold(struct descant *job)
{
    pthread_mutex_lock(&job->machine);
    job->held_since_ns = clock_now_ns();
}

void job_release(struct descant *job)
{
    job->held_ns += clock_now_ns() - job->held_since_ns;
    pthread_mutex_unlock(&job->machine);
}
