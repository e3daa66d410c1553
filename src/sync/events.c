/* SPDX-License-Identifier: MIT */
/* Events: trainers that come, leave, die or are left out for NaN, a run without rounds,
 * an end without finish. Half of the compute of a job can vanish without a failing call,
 * since no trainer waits for it; so events are logged by default.
 *
 *   1. Fabrics and calls only note what they see (notes.c). One thread a job, which holds
 *      no lock of the job's and makes no step and no round, composes the lines and calls
 *      the program's function, however long that takes.
 *   2. The thread looks five times a second, since no other may look: a fabric notes
 *      trainers that have gone when it is asked (fabric.h, wait). It looks also where no
 *      function takes events, since descant_peers says what became of each trainer.
 *   3. Of one kind and rank there is a line at once, then after 10 s, 20 s, …, an hour,
 *      with the number of events.
 *   4. A process that ends with an open job calls no callback, whose data may be gone:
 *      its line goes to standard error. Forked children log nothing.
 *
 * One trainer alone loses nothing by an end without finish, and by rounds that are not
 * made. */
#include "sync/job.h"

#include <inttypes.h>
#include <stdlib.h>

#define LOOK_NS UINT64_C(200000000)
#define AGAIN_NS UINT64_C(10000000000)
#define PACE_FIRST_NS UINT64_C(1000000000)
#define AGAIN_MOST_NS UINT64_C(3600000000000)

static pthread_mutex_t open_lock = PTHREAD_MUTEX_INITIALIZER;
static struct descant *open_jobs;       /* started jobs, linked by next_open; guarded by
                                           open_lock */

void events_init(struct events *events, const struct descant_options *options)
{
    notes_init(&events->notes);
    events->fn = options->on_event;
    events->user = options->event_user;
}

void events_fini(struct events *events)
{
    notes_fini(&events->notes);
}

/* ------------------------------------------------------------------ words */

/* Why there may have been no round, and what to do. */
static const char *no_round_advice(const struct plan *plan)
{
    if (plan->what == PLAN_GRADIENT)
        return "only descant_mean averages gradients; call it before each step";
    if (plan->when == PLAN_SHADOW)
        return "descant_waits names the trainers that are awaited; sync_cpu and "
               "sync_rate limit how often rounds are made";
    return "a smaller `every` in the plan makes them earlier; descant_waits names the "
           "trainers that are awaited";
}

static const char *bad_advice(const struct plan *plan, bool company)
{
    if (plan->what == PLAN_GRADIENT || !company)
        return "a lower learning rate may avoid it";
    if (!plan->heal)
        return "heal=1 in the plan gives it the others' values, a lower learning rate "
               "may avoid it";
    return "heal=1 gives it the others' values, but its optimizer's state keeps its NaN "
           "unless descant_state or Python's optimizer= shares that state";
}

/* Of a trainer that is gone for good. */
static const char its_work[] = "they get the items that the job dealt it, and nobody "
                               "does other work that it had";

static void compose(struct descant *job, const struct fabric_note *note, int members,
                    char *line, size_t room)
{
    char who[96] = "another trainer", often[32] = "";
    bool company = atomic_load(&job->events.company);
    if (note->rank >= 0 && note->kind == DESCANT_EVENT_TOLD)
        waits_name(job->fabric, note->rank, who, sizeof who);
    else if (note->rank >= 0)
        snprintf(who, sizeof who, "trainer %d", note->rank);
    if (note->count > 1)
        snprintf(often, sizeof often, " (%" PRIu64 " times)", note->count);
    switch (note->kind) {
    case DESCANT_EVENT_JOINED:
        snprintf(line, room, "%s has come%s: %d take part", who, often, members);
        break;
    case DESCANT_EVENT_LEFT:
    case DESCANT_EVENT_FINISHED:
        snprintf(line, room, "%s has %s%s: %d take part", who,
                 note->kind == DESCANT_EVENT_LEFT ? "left" : "finished", often, members);
        break;
    case DESCANT_EVENT_LOST:
        snprintf(line, room,
                 "%s has died%s: %d take part; %s", who, often, members, its_work);
        break;
    case DESCANT_EVENT_BAD:
        snprintf(line, room, "%s has NaN or Inf in its values%s%s; %s", who,
                 company ? " and was left out of a round" : "", often,
                 bad_advice(&job->plan, company));
        break;
    case DESCANT_EVENT_NO_ROUND:
        snprintf(line, room,
                 "no round has been made in %" PRIu64
                 " steps and %.1f s, so nothing is kept together: %s",
                 workers_steps(&job->workers),
                 (double)(clock_now_ns() - job->started_ns) * 1e-9,
                 no_round_advice(&job->plan));
        break;
    case DESCANT_EVENT_UNFINISHED:
        if (note->rank != job->fabric->rank)
            snprintf(line, room,
                     "%s has left without descant_finish%s: %d take part; %s", who, often,
                     members, its_work);
        else
            snprintf(
                line, room,
                "the job ends without descant_finish after %" PRIu64
                " steps: this trainer's model is its own, without what the others know",
                workers_steps(&job->workers));
        break;
    case DESCANT_EVENT_TOLD:
        snprintf(line, room, "%s was told to end", who);
        break;
    case DESCANT_EVENT_BROKEN:
        pthread_mutex_lock(&job->breaking);
        snprintf(line, room, "%s", job->failure_line);
        pthread_mutex_unlock(&job->breaking);
    }
}

/* ------------------------------------------------------------------ telling */

/* Without room, the line of rank -1, as in notes.c. */
static struct event_line *told_of(struct events *events, enum descant_event_kind kind,
                                  int rank)
{
    for (int i = 0; i < events->n_told; i++)
        if (events->told[i].kind == kind && events->told[i].rank == rank)
            return &events->told[i];
    if (events->n_told >= EVENTS_TOLD - N_EVENT_KINDS && rank >= 0)
        return told_of(events, kind, -1);
    events->told[events->n_told] = (struct event_line){.kind = kind, .rank = rank};
    return &events->told[events->n_told++];
}

static void say(struct descant *job, struct event_line *told, uint64_t now, int members)
{
    char line[LOG_LINE];
    struct fabric_note note = {told->kind, told->rank, told->count};
    enum descant_level level =
        told->kind == DESCANT_EVENT_LEFT || told->kind == DESCANT_EVENT_FINISHED
            ? DESCANT_DEBUG                                 /* all leave in the end */
        : told->kind == DESCANT_EVENT_JOINED ? DESCANT_INFO
                                             : DESCANT_WARNING;
    compose(job, &note, members, line, sizeof line);
    log_say(&job->log, level, "%s", line);
    told->count = 0;
    told->every_ns = told->every_ns == 0                  ? AGAIN_NS
                     : 2 * told->every_ns < AGAIN_MOST_NS ? 2 * told->every_ns
                                                          : AGAIN_MOST_NS;
    told->next_ns = now + told->every_ns;
}

static void tell(struct descant *job, const struct fabric_note *note, uint64_t now,
                 int members)
{
    struct events *events = &job->events;
    char line[LOG_LINE];
    bool tells = note->kind == DESCANT_EVENT_JOINED || note->kind == DESCANT_EVENT_LEFT ||
                 note->kind == DESCANT_EVENT_LOST ||
                 note->kind == DESCANT_EVENT_UNFINISHED ||
                 note->kind == DESCANT_EVENT_FINISHED;
    if (tells && note->rank >= 0 && note->rank < EVENTS_RANKS)
        atomic_store_explicit(&events->last[note->rank], (unsigned char)note->kind,
                              memory_order_relaxed);
    if (note->kind == DESCANT_EVENT_UNFINISHED && job->plan.when == PLAN_NEVER)
        return;                 /* its work was not to be kept together */
    compose(job, note, members, line, sizeof line);
    struct descant_event event = {note->kind, note->rank, members, note->count, line};
    bool quiet = events->fn && events->fn(events->user, &event) != 0;
    if (quiet || note->kind == DESCANT_EVENT_BROKEN)        /* the log has that already */
        return;
    struct event_line *told = told_of(events, note->kind, note->rank);
    told->count += note->count;
    if (told->next_ns <= now)
        say(job, told, now, members);
}

static bool lacks_a_round(const struct descant *job)
{
    return atomic_load(&job->events.company) && job->plan.when != PLAN_NEVER &&
           atomic_load_explicit(&job->stats.rounds, memory_order_relaxed) == 0;
}

static void look_for_rounds(struct descant *job, uint64_t now)
{
    struct events *events = &job->events;
    const struct plan *plan = &job->plan;
    uint64_t due = events->no_round_ns ? 2 * events->no_round_ns : AGAIN_NS;
    /* after which a round should have been begun */
    int64_t steps = plan->what == PLAN_GRADIENT ? 2
                    : plan->when == PLAN_EVERY  ? plan->every + plan->delay + 1
                    : plan->gap > 1             ? plan->gap
                                                : 1;
    if (!lacks_a_round(job) || atomic_load(&job->state) != JOB_STARTED ||
        now - job->started_ns < due ||
        workers_steps(&job->workers) < (uint64_t)steps)
        return;
    events->no_round_ns = due;
    notes_add(&events->notes, DESCANT_EVENT_NO_ROUND, job->fabric->rank);
}

static void tell_all(struct descant *job, bool last)
{
    struct events *events = &job->events;
    struct fabric_note notes[NOTES];
    int n = notes_take(&events->notes, notes);
    int members = atomic_load_explicit(&job->fabric->members, memory_order_relaxed);
    uint64_t now = clock_now_ns();
    for (int i = 0; i < n; i++)
        tell(job, &notes[i], now, members);
    for (int i = 0; i < events->n_told; i++)
        /* held back */
        if (events->told[i].count > 0 && (last || events->told[i].next_ns <= now))
            say(job, &events->told[i], now, members);
}

/* For a log at the level debug: the figures that explain how many rounds there are. */
static void tell_pace(struct descant *job, bool last)
{
    struct events *events = &job->events;
    struct descant_stats s;
    uint64_t now = clock_now_ns(), due = events->pace_ns ? AGAIN_NS : PACE_FIRST_NS;
    char waits[512];
    if ((!last && now - (events->pace_ns ? events->pace_ns : job->started_ns) < due) ||
        descant_stats(job, &s) != DESCANT_OK)
        return;
    events->pace_ns = now;
    log_say(&job->log, DESCANT_DEBUG,
            "%" PRIu64 " steps, %" PRIu64
            " rounds in %.1f s; %.4g steps from one to the next, of 99 in 100 below "
            "%.4g; an exchange takes %.2g s; %.2g of a core used, %.2g allowed; %s",
            s.steps, s.rounds, s.wall_s, s.gap_mean, s.gap_p99, s.exchange_p50_s,
            s.shadow_cpu_s / s.wall_s, s.budget,
            waits_text(job->fabric, waits, sizeof waits) > 0 ? waits
                                                             : "no trainer is awaited");
}

static void look(struct descant *job)
{
    /* with a bound that is past wait looks, and notes */
    job->fabric->type->wait(job->fabric, 1);
    if (atomic_load_explicit(&job->fabric->members, memory_order_relaxed) > 1)
        atomic_store(&job->events.company, true);
}

/* The job whose events this thread reports; NULL: no such thread. */
static _Thread_local const struct descant *told_here;

descant_status events_refuse(const struct descant *job, const char *call)
{
    if (told_here != job)
        return DESCANT_OK;
    return log_fail(NULL, DESCANT_INVALID,
                    "%s: not in a callback of the job's events, whose thread it would "
                    "wait for; let a thread of the program's own call it",
                    call);
}

static void *run(void *context)
{
    struct descant *job = context;
    told_here = job;
    struct events *events = &job->events;
    bool stop;
    do {
        uint32_t bell = atomic_load(&events->notes.bell);
        stop = atomic_load(&events->stop);
        look(job);
        look_for_rounds(job, clock_now_ns());
        if (atomic_load(&job->failure) && !events->broken) {
            events->broken = true;
            notes_add(&events->notes, DESCANT_EVENT_BROKEN, job->fabric->rank);
        }
        tell_all(job, stop);
        tell_pace(job, stop);
        atomic_store_explicit(&job->stats.events_cpu_ns, clock_thread_cpu_ns(),
                              memory_order_relaxed);
        if (!stop)
            futex_wait(&events->notes.bell, bell, clock_now_ns() + LOOK_NS);
    } while (!stop);
    return NULL;
}

/* ------------------------------------------------------------------ ends */

static bool is_unfinished(struct descant *job)
{
    enum job_state state = (enum job_state)atomic_load(&job->state);
    return (state == JOB_STARTED || state == JOB_PAUSED) &&
           atomic_load(&job->events.company) && job->plan.when != PLAN_NEVER &&
           workers_steps(&job->workers) > 0;
}

static void at_exit(void)
{
    /* in a forked child the lock may be held for ever */
    if (pthread_mutex_trylock(&open_lock) != 0)
        return;
    for (struct descant *job = open_jobs; job != NULL; job = job->next_open) {
        char line[LOG_LINE];
        struct fabric_note note = {DESCANT_EVENT_UNFINISHED, job->fabric->rank, 1};
        struct log log = {.rank = job->fabric->rank};
        if (*job->parent == 0 || !is_unfinished(job) || log_default(&log) != DESCANT_OK)
            continue;
        compose(job, &note, 0, line, sizeof line);
        log_say(&log, DESCANT_WARNING,
                "the process ends, and descant_close was not called: %s", line);
    }
    pthread_mutex_unlock(&open_lock);
}

static void watch_exit(void)
{
    atexit(at_exit);
}

descant_status events_start(struct descant *job)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct events *events = &job->events;
    sigset_t before;
    look(job);                  /* members that are there have not come */
    pthread_once(&once, watch_exit);
    pthread_mutex_lock(&open_lock);
    job->next_open = open_jobs;
    open_jobs = job;
    pthread_mutex_unlock(&open_lock);
    signals_hold(&before);
    int error = memory_refuse() ? -1 : pthread_create(&events->thread, NULL, run, job);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0)
        return log_fail(&job->log, DESCANT_SYSTEM,
                        "the thread of events cannot be started");
    events->runs = true;
    return DESCANT_OK;
}

void events_stop(struct descant *job)
{
    struct events *events = &job->events;
    pthread_mutex_lock(&open_lock);
    struct descant **at = &open_jobs;
    while (*at != NULL && *at != job)
        at = &(*at)->next_open;
    if (*at != NULL)
        *at = job->next_open;
    pthread_mutex_unlock(&open_lock);
    if (events->runs) {
        if (lacks_a_round(job) && workers_steps(&job->workers) > 0 &&
            !atomic_load(&job->failure))
            notes_add(&events->notes, DESCANT_EVENT_NO_ROUND, job->fabric->rank);
        if (is_unfinished(job))
            notes_add(&events->notes, DESCANT_EVENT_UNFINISHED, job->fabric->rank);
        atomic_store(&events->stop, true);
        notes_ring(&events->notes);
        pthread_join(events->thread, NULL);
        events->runs = false;
    }
    if (job->fabric)
        job->fabric->notes = NULL;
}
