/* SPDX-License-Identifier: MIT */
/* Descant keeps the replicas of a model together while their training loops run on.
 *
 * A trainer opens a job, hands over its parameters as named segments, starts, and calls
 * descant_step after each optimizer step. What that does is the plan's business: in shadow
 * plans it counts and returns. All calls may come from any thread unless they say otherwise;
 * open, alloc, attach, table, start, pause, reload, finish and close belong to one thread at a time.
 *
 * Every function that can fail returns a status, zero being success, and sets its outputs
 * only then. The details of a failure go to the log callback, and to descant_last_error. */
#ifndef DESCANT_H
#define DESCANT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define DESCANT_API __attribute__((visibility("default")))
#else
#define DESCANT_API
#endif

#define DESCANT_VERSION "0.1.0"

/* name, what descant_status_text says */
#define DESCANT_STATUS_LIST(X)                                                               \
    X(OK, "success")                                                                         \
    X(INVALID, "an argument is not valid")                                                   \
    X(BAD_PLAN, "the plan is not valid")                                                     \
    X(BAD_ADDRESS, "the job address is not valid")                                           \
    X(BAD_RANK, "the rank is not valid or is taken")                                         \
    X(BAD_SIZE, "the number of trainers is not valid or differs")                            \
    X(MISMATCH, "the trainers of this job do not agree")                                     \
    X(MEMORY, "memory cannot be had")                                                        \
    X(SYSTEM, "the operating system refused")                                                \
    X(ORDER, "the call came in the wrong order")                                             \
    X(FORKED, "the job belongs to the parent process")                                       \
    X(TIMEOUT, "other trainers did not come in time")                                        \
    X(UNSUPPORTED, "the plan or this machine does not allow it")                             \
    X(DUPLICATE, "the name is taken")                                                        \
    X(CORRUPT, "the saved state is damaged or belongs to another model")                     \
    X(STALE, "the gradient is of a model that is too old")                                   \
    X(NOT_FINITE, "the gradient has NaN or Inf")                                             \
    X(ENDED, "the job has ended")

typedef enum descant_status {
#define X(name, text) DESCANT_##name,
    DESCANT_STATUS_LIST(X)
#undef X
} descant_status;

enum descant_level { DESCANT_DEBUG, DESCANT_INFO, DESCANT_WARNING, DESCANT_ERROR };

/* Called with one line without its end, from any thread of the library, one at a time for the whole
 * process. It must not call Descant: what fails there would log, and wait for itself. */
typedef void descant_log(void *user, enum descant_level level, const char *line);

/* A job: one trainer's part in it. */
struct descant;

/* Events about the job's trainers. Each is a line of the log, too: INFO for JOINED, DEBUG for LEFT,
 * WARNING for the rest; what happens to a trainer again and again is a line at once, then after
 * 10 s, 20 s, 40 s, up to an hour, with how often. */
enum descant_event_kind {
    DESCANT_EVENT_JOINED,       /* rank takes part from now on */
    DESCANT_EVENT_LEFT,         /* rank has called finish, before this trainer did */
    DESCANT_EVENT_LOST,         /* rank has died, and its share of the compute with it */
    DESCANT_EVENT_BAD,          /* NaN or Inf in what rank brought: it was left out of a round */
    DESCANT_EVENT_NO_ROUND,     /* this trainer steps beside others, and no round has been made: for
                                   10 s, 20 s, 40 s, …, or up to its finish or close */
    DESCANT_EVENT_UNFINISHED,   /* rank has left without finish, as after an exception, before this
                                   trainer's end. If rank is this trainer, it closes without finish,
                                   and its model is its own */
    DESCANT_EVENT_BROKEN        /* a round has failed for good, and so will every call */
};

struct descant_event {
    enum descant_event_kind kind;
    int rank;                   /* the trainer it is about; -1: several, or it is not known */
    int members;                /* that take part in rounds now */
    uint64_t count;             /* how often, since the last event of this kind and rank */
    const char *text;           /* as the log has it; valid until the return */
};

/* Called between start and close, by a thread of the job's own that does nothing else: no step and no
 * round waits for it, events that come meanwhile do, and close does. It may call descant_stats,
 * descant_members and descant_waits; finish, close and leave, which would wait for it, refuse with
 * DESCANT_INVALID there. Returns 0, or anything else if the log is to have no line. */
typedef int descant_on_event(void *user, const struct descant_event *event);

/* Strings are copied by open, and may change or go after it. What log_user and event_user point to is
 * the caller's, and stays until close has returned. */
struct descant_options {
    const char *job;     /* "self", "shm:NAME[,rate=1gbit][,rtt=1ms]", "mpi"; NULL: see descant_open */
    const char *plan;    /* "shadow-easgd", "dasgd,every=8,delay=2"; NULL: DESCANT_PLAN */
    int rank;            /* -1: the launcher's variable, else the lowest that is free */
    int size;            /* trainers to wait for at the start; 0: the launcher's, else nobody */
    int workers;         /* threads that will call descant_step */
    double sync_cpu;     /* of one core, at most, what the shadow uses; 0: a core if spare, else
                            0.02, and 0.04 while rows of tables wait, with what it costs the
                            workers beside that */
    double sync_rate;    /* bytes a second for a shadow plan's rounds; unused ones are saved for
                            a second; 0: no limit. Other plans go by their steps alone */
    double start_s;      /* seconds that open and start wait for the other trainers, 300
                            if not set; for whom, a warning says after 5, 10, 20, … Over mpi
                            the process ends where ranks have not come to MPI_Init in start_s,
                            10 at least; 0: it waits there for them */
    descant_log *log;    /* NULL: standard error, as the variable DESCANT_LOG says: debug, info
                            (if not set), warning, error, off */
    void *log_user;
    descant_on_event *on_event;     /* NULL: the log alone is told */
    void *event_user;
};

DESCANT_API struct descant_options descant_options_default(void);

/* Joins the job. Without an address: "mpi" for a rank that mpirun or srun has started, where the
 * library's module is there; "shm:" and a name made from the launcher's rendezvous
 * where WORLD_SIZE is above 1 (torchrun on one machine), else "self". That name counts the jobs
 * that the process has started under one, so all trainers start theirs in the same order, and who
 * is started anew comes to the first; trainers that are threads of one process give a name instead.
 * A given one is taken as it is. Ranks of "mpi" that are all on one machine exchange in its memory;
 * those of "mpi:messages" do not. The plan, where none is given, is the variable DESCANT_PLAN, else
 * "shadow-easgd". close releases. */
DESCANT_API descant_status descant_open(struct descant **job,
                                        const struct descant_options *options);

/* What the job's plan, perhaps one of DESCANT_PLAN, wants from the training loop. After open. */
struct descant_needs {
    int gradients;      /* 1: descant_mean of each step's gradients, before the optimizer's step */
    int waits;          /* 1: step or mean may wait for other trainers */
    int squares;        /* 1: descant_state takes sums of squares */
    int central;        /* 1: DESCANT_FINAL_CENTRAL is there */
};

DESCANT_API descant_status descant_needs(struct descant *job, struct descant_needs *out);

/* A named segment of the replica. alloc: n floats, zero, of the job's own memory (peers read
 * it in place), valid until close; NULL where it cannot be had. attach: the caller's memory,
 * which must stay until detach or close. Both before start. All trainers of a job declare the
 * same names and counts in the same order. The name is copied. */
DESCANT_API float *descant_alloc(struct descant *job, const char *name, size_t n);
DESCANT_API descant_status descant_attach(struct descant *job, const char *name, float *memory,
                                          size_t n);

/* State of the optimizer, kept in step with the parameters: attach, with what the plan does to
 * parameters done to momentum or moments; without it each trainer has its own. squares: 1 for sums and
 * means of squares, as Adam's second moments, which no merge may take below zero: UNSUPPORTED under
 * what=block and merge=delta, which go beyond a mean. Zero in all trainers at start, or the first one's. */
DESCANT_API descant_status descant_state(struct descant *job, const char *name, float *memory,
                                         size_t n, int squares);

/* After it Descant never touches the segment's memory again; peers go on with its last value.
 * Not from inside a step. */
DESCANT_API descant_status descant_detach(struct descant *job, const char *name);

/* A block of bytes, zero at first, that is one and the same for all trainers of this machine
 * which ask for the name. Their accesses are theirs to order. Valid until close. Not for children
 * of fork. */
DESCANT_API descant_status descant_share(struct descant *job, const char *name, size_t bytes,
                                         void **block);

/* An embedding table: rows x width floats, zero at first, one copy for all trainers of this
 * machine, valid until close. Its memory is Descant's; workers write it in place, without locks.
 * Before start, in the same order everywhere. Where trainers are on several machines
 * each machine has its own copy, and a second one for what all have agreed on, so twice the memory
 * and a byte a row. Each fills it before start, with the same values, else MISMATCH; then rows that
 * were touched are exchanged in the background, under every plan but "none", and finish leaves the
 * same rows on all. Updates of a row that is rarely touched add up; those of one that every machine
 * touches all the time are averaged, by degrees: the plan's key `hot`, and hot=0 adds up all.
 * Optimizer state is exchanged where it is the table's state. */
DESCANT_API descant_status descant_table(struct descant *job, const char *name, size_t rows,
                                         size_t width, float **table);

/* State of a table's optimizer: (rows, width) zeroed floats, which have their rows' touches and are
 * kept as they are. For what adds up over updates, as Adagrad's sums do: else each machine's rate
 * falls by its own gradients alone, and their updates together are too long. Once a table. */
DESCANT_API descant_status descant_table_state(struct descant *job, const float *table,
                                               size_t width, float **state);

/* n rows of the table were changed; by the worker, after it, between start and finish. A few ns
 * a row, and nothing at all where there is one machine: no argument is looked at. A row that is not
 * touched is not sent, and finish takes back what was changed in it. */
DESCANT_API descant_status descant_touch(struct descant *job, const float *table,
                                         const uint64_t *rows, size_t n);

/* Waits for options.size trainers; then all have the first one's values. Where the job is
 * running already, the trainer gets a living one's state, in elastic plans the central copy, and
 * becomes a member. (Under "none" attached segments show what they were at their own start.) */
DESCANT_API descant_status descant_start(struct descant *job);

/* After each optimizer step, by the thread that made it. Shadow plans: counts, never waits.
 * Delayed plans: the worker whose step makes the count merges and snapshots. Foreground plans:
 * every registered worker waits here for the round; the first call registers a thread, its end
 * or descant_worker_done takes it out. Whom a worker waits for is a warning after a second, and
 * every ten while that lasts; and one says that it goes on. */
DESCANT_API descant_status descant_step(struct descant *job);
DESCANT_API descant_status descant_worker_done(struct descant *job);

/* buffer becomes its mean over the trainers, who all pass the same n, else all get MISMATCH. Only
 * under the plan "allreduce"; a second thread of the same trainer waits for the first. */
DESCANT_API descant_status descant_mean(struct descant *job, float *buffer, size_t n);

/* A checkpoint is taken up so: pause; overwrite the replica; outer_load, if it was saved; reload.
 * Nobody of this trainer steps meanwhile (ORDER). pause gives up the round in hand, and none
 * touches the replica until reload. At the next round all trainers take it, and the outer
 * state begins anew from it, or is what was loaded; that round waits for all, also in elastic
 * plans. Who has called finish before takes it in the final round (not in a final mean, to which
 * it brings what it has). Of several that reload at once the lowest rank counts. Not under the
 * plan "none". */
DESCANT_API descant_status descant_pause(struct descant *job);
DESCANT_API descant_status descant_reload(struct descant *job);

/* The outer state (global version and momentum, or the central copy). save: *bytes is the
 * room at memory, and becomes what is needed; memory NULL only asks; it waits for the end of a
 * merge, and can be called after finish, too. load: between pause and reload only. */
DESCANT_API descant_status descant_outer_save(struct descant *job, void *memory, size_t *bytes);
DESCANT_API descant_status descant_outer_load(struct descant *job, const void *memory,
                                              size_t bytes);

struct descant_members {
    int rank;          /* this trainer's */
    int size;          /* trainers that take part in rounds now */
    uint32_t epoch;    /* changes whenever somebody comes or goes */
    int host, hosts;   /* this trainer's machine, from 0, of so many */
    int local_rank;    /* among the trainers of its machine */
};

/* At any time, from any thread. */
DESCANT_API descant_status descant_members(struct descant *job, struct descant_members *out);

struct descant_stats {
    uint64_t steps;              /* of all workers of this trainer */
    uint64_t rounds;             /* merged */
    uint64_t restarts;           /* rounds begun again because one of their trainers left */
    uint64_t bad;                /* contributions left out for NaN or Inf, of any trainer */
    uint64_t bytes;              /* moved by this trainer's rounds, as on a link */
    uint64_t stall_ns;           /* workers waiting, summed over workers */
    uint64_t copy_ns;            /* workers copying and merging */
    uint64_t gap_max;            /* steps between two merges */
    double gap_mean, gap_p50, gap_p99;
    double gap_per_worker;       /* gap_mean by a worker's own steps: ÷ workers */
    double age_steps, age_s;     /* from the last round's begin to its merge, in steps and seconds */
    double exchange_p50_s, exchange_p99_s;  /* from a round's begin until its result is here, or
                                               merged where it need not wait for its step */
    double shadow_cpu_s;         /* CPU time of Descant's own threads */
    double wall_s;               /* since start */
    double budget;               /* of one core, what the shadow may use at most now */
    double distance;             /* ‖w − g‖ ÷ ‖g‖ at the last merge; 0 where w has NaN or Inf */
    /* tables across machines: of the trainer that exchanges for its machine, 0 for others */
    uint64_t rows_rounds;
    uint64_t rows_sent;          /* updates of rows */
    uint64_t rows_bad;           /* left out for NaN or Inf */
    uint64_t rows_bytes;         /* moved for rows; not among bytes */
    uint64_t rows_waiting;       /* touched rows that had no place in the last round */
    double rows_age_s;           /* none of them has waited for longer */
    /* plans whose outer step has momentum, as diloco: of the last round */
    double outer_rate, outer_momentum;
    double outer_cosine;         /* of what a round changed and the momentum before it, a mean of
                                    late: at 0 or below the step overshoots; near 1, with a rate
                                    below 1 and little momentum, it lags. A warning says so, once */
};

/* At any time, from any thread; disturbs nobody. */
DESCANT_API descant_status descant_stats(struct descant *job, struct descant_stats *out);

/* The presets of plans: a line each of a name, what it changes and what it is published as, with tabs
 * between. Returns the length needed. */
DESCANT_API size_t descant_plans(char *text, size_t room);

/* Every wait this job is in now, as text: who waits for whom. Returns the length needed. */
DESCANT_API size_t descant_waits(struct descant *job, char *text, size_t room);

enum descant_final {
    DESCANT_FINAL_LOCAL,      /* the first present trainer's local version; the first of those
                                 that have taken the most reloads */
    DESCANT_FINAL_MEAN,       /* the mean of those present */
    DESCANT_FINAL_CENTRAL     /* the central copy, or the global version */
};

/* Ends training: leaves the rounds, waits asleep for the trainers still at work, and gives all
 * that are present the same final model; all ask for the same one, else MISMATCH. One that
 * does not want it calls close alone. After pause, no round has a part in what was overwritten
 * since: its final version is that. */
DESCANT_API descant_status descant_finish(struct descant *job, enum descant_final which);

/* Leaves the job and releases everything; over mpi it serves the other ranks, asleep, until all
 * have left. NULL is allowed. */
DESCANT_API descant_status descant_close(struct descant *job);

/* As close; but what descant_alloc gave stays where it is, with its values, as this process's own,
 * until it is freed, each segment alone: for languages whose objects may look into it for longer than
 * the job lasts. DESCANT_MEMORY: there is none for that, and the job is as it was. */
DESCANT_API descant_status descant_leave(struct descant *job);
DESCANT_API descant_status descant_free(float *memory);      /* NULL is allowed */

/* What a status means, in a few words, as above. */
DESCANT_API const char *descant_status_text(descant_status status);

/* What this thread's last failing call had to say; "" before the first. A round that fails breaks
 * the job: from then on every call of every thread fails so, and says what was said then. */
DESCANT_API const char *descant_last_error(void);

/* DESCANT_VERSION of the library that is loaded, which the header's may differ from. */
DESCANT_API const char *descant_version(void);

#ifdef __cplusplus
}
#endif
#endif
