/* SPDX-License-Identifier: MIT */
/* The parts of a job, for the files that implement descant.h: job.c (its beginning),
 * drive.c (its rounds), step.c (workers), shadow.c (the sync thread), outer.c (reloads),
 * end.c, owners.c, agree.c, deal.c, events.c, figures.c, peers.c, waits.c, world.c (MPI on
 * one host). */
#ifndef JOB_H
#define JOB_H

#include "owners/service.h"
#include "sync/events.h"
#include "sync/stats.h"
#include "sync/tables.h"
#include "sync/waits.h"
#include "sync/workers.h"

enum job_state {
    JOB_OPEN, JOB_STARTED, JOB_PAUSED, JOB_FINISHED, JOB_BROKEN,
    JOB_SERVES                  /* a hub that has started; it does not train */
};

/* Tables with owners (owners.c). The list is the caller's, before start; `service` has
 * its own rules from start on. */
struct owners {
    struct owned *tables;
    size_t n, room;
    void *memory;                       /* this rank's rows, where it shares them with
                                           nobody; else NULL */
    char *shares;                       /* of the rows, as options have them; NULL: equal */
    int n_shares;                       /* ranks that have one; 0: see shares */
    bool moves;                         /* as options have them */
    double replica_s;
    struct owners_known known[OWNED_SLICES];    /* the thread's, by rank */
    int holds;                          /* of hold, before there is a service */
    struct service service;
    bool made, runs;                    /* the service; its thread */
    pthread_t thread;
    _Atomic bool over;                  /* the thread has ended; set by it */
    _Atomic size_t placed;              /* tables that have their memory. Set once, by
                                           start, release; who asks for figures reads it,
                                           acquire, before the tables */
};

struct rate_limit {
    uint64_t bytes, paid_ns;            /* moved so far; the time until which they are
                                           paid for */
};

struct descant {
    struct log log;
    struct plan plan;
    int workers_wanted;
    bool numbered;                      /* its address counts jobs (launcher.h) */
    double start_s, sync_cpu, sync_rate;
    double cores;                       /* cores allowed to this process when it opened
                                           the job */
    const unsigned char *parent;        /* a page that the kernel wipes in forked
                                           children: 1 here */
    _Atomic int state;                  /* enum job_state; any thread: BROKEN, else the
                                           caller's */
    struct fabric *fabric;
    struct fabric *world;               /* the MPI job whose ranks are all here; NULL
                                           (world.c) */
    struct replica replica;
    struct tables tables;               /* the list: the caller's, before start; rounds:
                                           guarded */
    struct owners owners;
    struct workers workers;
    struct stats stats;
    struct events events;
    struct descant *next_open;          /* guarded by events.c's lock */
    _Atomic uint64_t t;                 /* steps, in plans that count them exactly */
    _Atomic bool reload;                /* set by descant_reload, cleared by the next
                                           round */
    _Atomic int failure;                /* the status that broke the job; 0: none. Written
                                           under */
    pthread_mutex_t breaking;           /* `failure`; guards the next field */
    char failure_line[LOG_LINE];        /* the log line of the thread that broke the
                                           job */
    pthread_mutex_t sharing;            /* the fabric's alloc, share and start: one at a
                                           time */
    /* descant_show's: any thread writes, the thread that polls reads. Relaxed: they are
     * figures, each by itself */
    _Atomic uint32_t n_shown;
    _Atomic double shown[DESCANT_VALUES];
    _Atomic bool agreeing;              /* a thread makes an agreement; set and cleared by
                                           it */

    /* The machine: the holder of this lock advances the round. It guards all that
     * follows. */
    pthread_mutex_t machine;
    pthread_cond_t turn;                /* next_due has moved on */
    struct round round;
    bool round_made;
    bool hub;                           /* no trainer: hub.c; set by open */
    char *hub_tables;                   /* the trainers', as lines; NULL: they have
                                           none */
    void *outer_kept;                   /* loaded before start, which takes it; NULL:
                                           none */
    size_t outer_kept_bytes;
    uint64_t next_due;                  /* delayed plans: the number of the event to
                                           come */
    uint64_t begun_steps, begun_ns;     /* when the round in hand began */
    uint64_t brought_steps;             /* when the last one that is done began */
    uint64_t arrived_ns;                /* the round's result arrived, unmerged; 0: not
                                           so */
    uint64_t merged_steps;              /* at the last merge */
    struct waits_told told;             /* of the machine holder's wait */
    bool paused;                        /* from pause to reload */
    struct rate_limit pace;             /* sync_rate */
    bool introduced;                    /* allreduce: this trainer has given its state or
                                           taken one */
    uint64_t held_ns, held_since_ns;    /* by job_hold, so far */
    bool rows_turn;                     /* the shadow's last piece was offered to the
                                           tables */
    uint64_t round_cpu_ns;              /* the shadow's CPU in the round in hand or the
                                           last one */
    uint64_t round_began_cpu_ns;        /* all of the shadow's CPU, when that round
                                           began */
    uint64_t rows_after_ns;             /* no round of rows before, as nothing was
                                           touched */

    /* The shadow: started by start, joined by finish or close, in the caller's one
     * thread. */
    pthread_t shadow;
    bool shadow_runs;
    pthread_t courier;                  /* courier.c; as the shadow, but started by
                                           descant_deal_feed */
    bool courier_runs;
    _Atomic bool courier_stop;
    _Atomic bool shadow_stop;
    _Atomic uint32_t shadow_bell;       /* futex: rung by stop and by a delayed
                                           snapshot */
    _Atomic double budget;              /* in force; written by the shadow, read by
                                           stats */
    _Atomic uint64_t started_ns;        /* written by start, read by stats and by the
                                           shadow */
    /* as bulletin.depth. taken: descant_shown sets it, the next descant_show takes it;
     * relaxed, for one thread of the program's calls both. depth: that one sets it behind
     * the values; release, acquire */
    _Atomic uint64_t taken, depth;
    uint64_t process;                   /* as bulletin.process; set by start */
};

/* sync_rate: a round may begin once the bytes moved before are paid for, at `rate` bytes
 * a second. Unused bytes are saved for a second. */
#define PACE_SAVED_NS 1000000000u
bool pace_allows(struct rate_limit *pace, double rate, uint64_t bytes, uint64_t now_ns);

#define JOB_LIKELY(x) __builtin_expect(!!(x), 1)

/* OK in the state asked for; else ORDER, FORKED, or the status that broke the job. */
descant_status job_check(struct descant *job, enum job_state state, const char *call);

void job_becomes(struct descant *job, enum job_state from, enum job_state to);

/* Breaks the job by the fabric's status. The first failure stays; it is returned, and
 * becomes this thread's last error. */
descant_status job_break(struct descant *job, descant_status status);
descant_status job_broken(struct descant *job);

enum { ROWS_PATIENCE_NS = 1000000 };    /* a wait this long has time for a piece of
                                           rows */

/* Also of a half-opened job. keeps: descant_leave has prepared all memory of alloc. */
void job_destroy(struct descant *job, bool keeps);

/* With the machine held. */
void job_round_begins(struct descant *job, uint64_t steps, bool released);
void job_round_done(struct descant *job, uint64_t steps);

/* Does a piece of the round in hand. */
static inline enum round_progress job_advance(struct descant *job)
{
    enum round_progress progress = round_advance(&job->round);

    if (job->round.arrived && job->arrived_ns == 0)
        job->arrived_ns = clock_now_ns();
    return progress;
}

/* Advances until the round is done (or held, where `held`), sleeping when it must. Adds
 * the time slept to *waited_ns. until_ns 0: no bound, else TIMEOUT. */
descant_status job_drive(struct descant *job, bool held, uint64_t until_ns,
                         uint64_t *waited_ns);

/* Sleeps in the fabric until something moves, or until_ns (0: no bound), and adds the
 * time to *waited_ns. During a long wait rows go on, for the shadow cannot have the
 * machine, and the awaited trainers are logged. */
descant_status job_wait(struct descant *job, uint64_t until_ns, uint64_t *waited_ns);

/* To be called after each poll by the caller of job_wait: logs that the wait is over. */
void job_moves(struct descant *job);

/* Does a piece of the tables' rounds: WORKED, DONE, FAILED, or else there is nothing to
 * do now. */
enum round_progress job_rows(struct descant *job);

/* Other trainers need this one's answers at any time: it can be taken for dead, or they
 * make rounds without it. */
static inline bool job_answers(const struct descant *job)
{
    return (!job->fabric->fixed || job->plan.quorum > 0) && job->fabric->type->serve;
}

/* Whether the bytes moved so far are paid for by sync_rate. */
bool job_link_allows(struct descant *job);

/* allreduce: the mean of each trainer becomes a call (unless `called` already), then
 * states are given. */
descant_status job_introduce(struct descant *job, bool called, uint64_t *waited_ns);

/* --- hub.c --- */

/* Takes the plan and the segments of the first trainer that comes. Before start. */
descant_status hub_adopt(struct descant *job);
char *hub_manifest(const struct descant *job, char *manifest);
/* Sleeps until the trainers have ended and gone. */
descant_status hub_finish(struct descant *job);

/* --- owners.c --- */

/* Appends a line for each table with owners; as tables_manifest. */
char *owners_manifest(const struct descant *job, char *manifest);
/* After the first state. */
descant_status owners_take_options(struct descant *job, const struct descant_options *o);
/* Whether there are no more of them than ranks; else logged. */
bool owners_fit(const struct descant *job, int ranks);
descant_status owners_start(struct descant *job);
/* Until all that this trainer has pushed has been stepped by. Others may read it then. */
descant_status owners_flush(struct descant *job);
/* Any thread: of this rank's tables that grow. */
struct slab_figures owners_figures(struct descant *job);
/* Its rows go to others; not OK: some are still here, or it may not leave. */
descant_status owners_leave(struct descant *job, uint64_t until_ns);
/* Serves others until they need no rows any more; where the job is broken, ends at once.
 * Before the fabric's close. */
void owners_stop(struct descant *job);

/* --- outer.c --- */

/* The outer state that was loaded before start, if any. */
descant_status job_take_outer(struct descant *job);

/* --- peers.c --- */

/* Lets the fabric tell the others this trainer's figures. Before start. */
void peers_tell(struct descant *job);

/* --- world.c: an MPI job on one host --- */

/* After the fabric's open: where all ranks are on this host, the fabric becomes
 * job->world. */
descant_status world_settle(struct descant *job);

/* Waits for the world's ranks, and logs them where that lasts; without a world returns at
 * once. */
descant_status world_meet(struct descant *job, const char *manifest, int threads,
                          uint64_t until);

/* As job_drive, while others may not have met. */
descant_status world_drive(struct descant *job, uint64_t until, uint64_t *waited_ns);

descant_status shadow_start(struct descant *job);
void shadow_stop(struct descant *job);
void shadow_ring(struct descant *job);

/* --- courier.c: moves items' bytes --- */
descant_status courier_start(struct descant *job);      /* once */
void courier_stop(struct descant *job);

#endif
