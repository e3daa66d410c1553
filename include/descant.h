/* SPDX-License-Identifier: MIT */
/* Descant keeps the replicas of a model together while their training loops run on.
 *
 * A trainer opens a job, hands over its parameters as named segments, starts, and calls
 * descant_step after each optimizer step. The plan decides what a step does: in shadow
 * plans it counts and returns. All calls may come from any thread unless they say
 * otherwise; open, alloc, attach, table, start, pause, reload, finish and close belong to
 * one thread at a time.
 *
 * Every function that can fail returns a status, zero being success, and sets its outputs
 * only then. The details of a failure go to the log callback, and to descant_last_error.
 */
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

/* name, text of descant_status_text */
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

/* Gets one line of the log, without its end. Any thread of the library may call it, but
 * never two at once in one process. It must not call Descant: a call that fails there
 * would log, and so wait for itself. */
typedef void descant_log(void *user, enum descant_level level, const char *line);

/* One trainer's part in a job. */
struct descant;

/* Events about the job's trainers. Each is also a line of the log: INFO for JOINED, DEBUG
 * for LEFT and FINISHED, WARNING for the rest. An event that repeats for one trainer is
 * logged at once, then after 10 s, 20 s, 40 s and so on up to an hour, each time with a
 * count. */
enum descant_event_kind {
    DESCANT_EVENT_JOINED,       /* rank takes part from now on */
    DESCANT_EVENT_LEFT,         /* rank has gone after descant_tell: its steps are with
                                   the others, which go on */
    DESCANT_EVENT_LOST,         /* rank has died. The job deals the items that it had to
                                   others (descant_deal_begin); nobody does work that the
                                   program has given to the rank itself */
    DESCANT_EVENT_BAD,          /* rank's values had NaN or Inf: a round left them out */
    DESCANT_EVENT_NO_ROUND,     /* this trainer and others step, but no round has been
                                   made: for 10 s, 20 s, 40 s and so on, or until its
                                   finish or close */
    DESCANT_EVENT_UNFINISHED,   /* rank has left without finish, for example after an
                                   exception, before this trainer's end. If rank is this
                                   trainer, it closes without finish, and keeps a model of
                                   its own */
    DESCANT_EVENT_BROKEN,       /* a round has failed for good, and every later call will
                                   fail */
    DESCANT_EVENT_TOLD,         /* rank was told to end: it has called descant_tell */
    DESCANT_EVENT_FINISHED      /* rank has called finish before this trainer did */
};

struct descant_event {
    enum descant_event_kind kind;
    int rank;                   /* the trainer it is about; -1: several, or unknown */
    int members;                /* trainers that take part in rounds now */
    uint64_t count;             /* occurrences since the last event of this kind and
                                   rank */
    const char *text;           /* the log's line; valid until the callback returns */
};

/* Gets one event, between start and close. A thread of the job calls it and does nothing
 * else, so no step and no round waits for it; later events and close do. It may call
 * descant_stats, descant_members and descant_waits. It cannot call finish, close or
 * leave, which would wait for it: they return DESCANT_INVALID there. Returns 0, or
 * another number to keep the line out of the log. */
typedef int descant_on_event(void *user, const struct descant_event *event);

/* open copies the strings, so the caller may change or free them after it. The memory
 * that log_user and event_user point to is the caller's, and must stay until close has
 * returned. */
struct descant_options {
    const char *job;     /* "self", "shm:NAME[,rate=1gbit][,rtt=1ms]", "mpi",
                            "tcp:HOST:PORT[,ranks=64]"; NULL: see descant_open */
    const char *plan;    /* "shadow-easgd", "dasgd,every=8,delay=2"; NULL: DESCANT_PLAN */
    int rank;            /* -1: the launcher's variable, or else the lowest free one */
    int size;            /* trainers to wait for at the start; 0: the launcher's number,
                            or else no other trainer */
    int workers;         /* threads that will call descant_step */
    double sync_cpu;     /* the most that the shadow uses, as a share of one core, over
                            many rounds: each is made at once, and then paid for. 0: a
                            whole core where one is spare, else 0.02, or 0.04 (over tcp
                            0.03) while rows of tables wait, in which the workers'
                            losses count, too */
    double sync_rate;    /* bytes a second for the rounds of a shadow plan; 0: no limit.
                            Bytes that were not used are saved for a second. Over tcp the
                            kernel also spaces the bytes of each connection, at this rate,
                            or 1 MB/s where it is less. The rounds of other plans follow
                            their steps alone */
    double start_s;      /* seconds that open and start wait for the other trainers;
                            default 300. Warnings after 5, 10, 20, … name the trainers
                            that are missing. Over mpi the process ends if ranks have not
                            called MPI_Init within start_s, 10 at least; 0: it waits for
                            them there */
    descant_log *log;    /* NULL: standard error, at the level of the variable
                            DESCANT_LOG: debug, info (default), warning, error, off */
    void *log_user;
    descant_on_event *on_event;     /* NULL: events go to the log alone */
    void *event_user;
    int hub;             /* 1: this process is the hub of the job "tcp:HOST:PORT,star",
                            where it listens, and no trainer. Its plan and segments are
                            those of the first trainer that comes, for which start waits,
                            and for `size` of them; finish waits for the end of all */
    int owned;           /* 1: there will be tables with owners; over mpi alone this must
                            be known before */
    const char *owned_shares;   /* "2,1,1": how the rows of such tables are parted among
                            the first ranks; others, and those with 0, own none. NULL:
                            equal parts. The same everywhere */
    int owned_moves;     /* 1, over tcp: rows go to ranks that come, and from those that
                            part. 0: they stay */
    double owned_replica_s;     /* 0.1 or more, with owned_moves: another rank has a
                            replica of each row, at most so many seconds old, and owns it
                            where its owner dies. Twice the memory. 0: none */
};

DESCANT_API struct descant_options descant_options_default(void);

/* Joins the job. close releases it.
 *
 * Without an address in the options the variable DESCANT_JOB has it; else the launcher
 * decides. Ranks that mpirun or srun has started use "mpi", if the library's module for
 * it is installed. Without MPI, ranks of several hosts that torchrun or srun has started
 * use "tcp:HOST:PORT" at the host of rank 0, followed by the keys in the variable
 * DESCANT_TCP, such as secret=FILE; the port is MASTER_PORT + 1, or made from the numbers
 * of Slurm's job and step. Where WORLD_SIZE is above 1 (torchrun on one machine) the
 * address is "shm:" and a name made from the launcher's rendezvous. Otherwise it is
 * "self". A name or port that is made in this way also has in it the number of jobs that
 * this process has started so before. So all trainers must start their jobs in the same
 * order, and a trainer that is started anew comes to the first job; trainers that are
 * threads of one process must give a name instead. An address that is given, or in
 * DESCANT_JOB, is used as it is.
 *
 * Ranks of "mpi" that are all on one machine exchange in its memory; ranks of
 * "mpi:messages" do not. Without a plan the variable DESCANT_PLAN has it, or else it is
 * "shadow-easgd". */
DESCANT_API descant_status descant_open(struct descant **job,
                                        const struct descant_options *options);

/* The demands of the job's plan on the training loop. Call it after open: the plan may
 * come from DESCANT_PLAN. */
struct descant_needs {
    int gradients;      /* 1: descant_mean of each step's gradients, before the
                           optimizer's step */
    int waits;          /* 1: step or mean may wait for other trainers */
    int squares;        /* 1: descant_state accepts sums of squares */
    int central;        /* 1: DESCANT_FINAL_CENTRAL can be asked for */
};

DESCANT_API descant_status descant_needs(struct descant *job, struct descant_needs *out);

/* A named segment of the replica, declared before start. All trainers of a job declare
 * the same names and counts in the same order; the name is copied. alloc returns n zeroed
 * floats of the job's own memory, which peers read in place; they are valid until close.
 * It returns NULL if there is no memory. attach uses the caller's memory, which must stay
 * until detach or close. */
DESCANT_API float *descant_alloc(struct descant *job, const char *name, size_t n);
DESCANT_API descant_status descant_attach(struct descant *job, const char *name,
                                          float *memory, size_t n);

/* Attaches a part of the optimizer's state: the plan treats momentum or moments as it
 * treats parameters. Without this call each trainer keeps a state of its own. squares is
 * 1 for sums and means of squares, such as Adam's second moments, which no merge may take
 * below zero; what=block and merge=delta go beyond a mean, and return UNSUPPORTED. The
 * state must be zero in all trainers at start, or it becomes the first trainer's. */
DESCANT_API descant_status descant_state(struct descant *job, const char *name,
                                         float *memory, size_t n, int squares);

/* For parameters in memory that Descant cannot use, as a device's: each has a segment of
 * alloc beside it, and the caller copies between the two. segments has `count` of them,
 * of sizes[k] floats each. shown and values are two vectors with the floats of all, one
 * segment behind the other; shown is zero at first. values comes with the parameters'
 * floats. The changes since the last fold, values - shown, are added to the segments;
 * shown becomes what the segments have now; and values what is to be added to the
 * parameters, which is what rounds have changed. NULL for a segment leaves it out, with
 * its part of both vectors. Under shadow plans any thread may call it while training goes
 * on. Returns 1, or 0 if a segment has NaN or Inf. */
DESCANT_API int descant_fold(float *const *segments, const size_t *sizes, size_t count,
                             float *shown, float *values);

/* Takes the segment out of the job: Descant never touches its memory again, and peers go
 * on with its last value. No step of this trainer may be under way. */
DESCANT_API descant_status descant_detach(struct descant *job, const char *name);

/* A zeroed block of bytes that all trainers of this machine share if they ask for the
 * same name. The callers order their accesses themselves. Before start or after it, from
 * any thread. Valid until close, but not in forked children. */
DESCANT_API descant_status descant_share(struct descant *job, const char *name,
                                         size_t bytes, void **block);

/* An embedding table of rows x width zeroed floats: one copy for all trainers of this
 * machine, valid until close. The memory is Descant's; workers write it in place, without
 * locks. Tables are declared before start, in the same order everywhere.
 *
 * On several machines each machine has a copy of its own, and a second copy of the rows
 * that all have agreed on: twice the memory, and a byte for each row. Each machine fills
 * its copy before start, with the same values, or start returns MISMATCH. Then touched
 * rows are exchanged in the background under every plan but "none", and finish leaves the
 * same rows on all machines. Updates of a rarely touched row add up; updates of a row
 * that every machine touches all the time are averaged, by degrees (the plan's key `hot`;
 * hot=0 adds up all). The optimizer's state is exchanged only if descant_table_state has
 * made it. */
DESCANT_API descant_status descant_table(struct descant *job, const char *name,
                                         size_t rows, size_t width, float **table);

/* State of a table's optimizer: (rows, width) zeroed floats, exchanged together with the
 * table's rows; once for each table. It is for sums over updates, such as Adagrad's:
 * without it the rate on each machine falls by that machine's gradients alone, and all
 * updates together are too long. */
DESCANT_API descant_status descant_table_state(struct descant *job, const float *table,
                                               size_t width, float **state);

/* Tells that the calling worker has just changed n rows of the table; between start and
 * finish. It takes a few ns for each row. On a single machine it does nothing, and reads
 * no argument. A row that was changed but not told is not sent, and finish undoes the
 * change. */
DESCANT_API descant_status descant_touch(struct descant *job, const float *table,
                                         const uint64_t *rows, size_t n);

/* Tables whose rows have owners, for those that are too large for a copy on each machine.
 * Each row lies on one rank, its owner, with the state of its optimizer; the ranks have
 * equal parts. Rows of a batch are fetched ahead, and gradients are pushed to the
 * owners, which step at once, in any order (Hogwild). There are no rounds of rows, and no
 * trainer waits for another one. On one machine all trainers own all rows in memory that
 * they share. */
enum descant_rows_optimizer {
    DESCANT_ROWS_SGD,               /* v = momentum v + g; w -= rate v */
    DESCANT_ROWS_ADAGRAD,           /* s += g g; w -= rate g / (sqrt(s) + epsilon) */
    DESCANT_ROWS_ROWWISE_ADAGRAD,   /* the same with one s a row, of the mean of g g */
    DESCANT_ROWS_ADAM               /* as PyTorch's; t counts the row's pushes */
};

/* How rows and gradients travel between ranks. In fewer bits, a row's values are rounded
 * to the nearest, and gradients by chance, so that their mean is exact. */
enum descant_rows_wire {
    DESCANT_ROWS_F32, DESCANT_ROWS_BF16,
    DESCANT_ROWS_Q8                 /* 8 bits, and a scale for each row */
};

struct descant_owned {
    uint64_t rows;                  /* numbered from 0; 0 where the table grows */
    size_t width;                   /* floats of a row, 1 to 4096 */
    enum descant_rows_optimizer optimizer;
    enum descant_rows_wire wire;
    double momentum, beta1, beta2, epsilon;
    double spread;                  /* first values are uniform in [-spread, spread), */
    uint64_t seed;                  /* and follow from the seed and the row's number; */
    size_t zeros;                   /* but the first so many of a row are 0 */
    double age;                     /* seconds for which a rank may use a copy of another
                                       owner's row; 0: no copies */
    size_t cached;                  /* rows that a rank keeps copies of, at most; 0: as
                                       many as 16 MB hold, with their optimizer's state */
    int grows;                      /* 1: rows are named by any 64-bit numbers, and made
                                       by pushes; then also: */
    uint64_t memory;                /* bytes that the table may take on each rank (by its
                                       share, where options.owned_shares are not equal),
                                       or on one machine in all. When they are full, a row
                                       that is made takes the place of one that is little
                                       used. With options.owned_moves: what a rank takes
                                       at the start; one that gets parts of others takes
                                       as much for them as they did */
    double admit;                   /* the probability with which a push makes a row,
                                       above 0 to 1 */
    double unused_s;                /* rows that nobody fetches or pushes for so long
                                       may be evicted; 0: none for that */
};

/* Adagrad, with PyTorch's betas and epsilon, and admit 1; width, spread, and rows, or
 * grows and memory, are to be set. */
DESCANT_API struct descant_owned descant_owned_default(void);

/* Declares such a table; before start, the same ones in the same order everywhere. Over
 * several machines the job needs options.size (or WORLD_SIZE), the number of ranks that
 * own rows; ranks that come later own none. *table: its number, for fetch. UNSUPPORTED
 * where ranks have no second link to each other: in a star, and over mpi without
 * options.owned, which asks MPI for MPI_THREAD_MULTIPLE.
 *
 * In a table that grows, a row that is not there reads as its first values, and a fetch
 * does not make it. A push makes it with the probability `admit`. A gradient that makes
 * no row is dropped, and counted (stats.rows_refused): with admit = 1/k a row is made by
 * its k-th push in the mean, and nothing counts before. An evicted row begins anew
 * (stats.rows_evicted). docs/owners.md has what a row costs, and when the memory counts
 * as full. */
DESCANT_API descant_status descant_owned_table(struct descant *job, const char *name,
                                               const struct descant_owned *shape,
                                               int *table);

/* A batch of rows. Any thread may use these, between start and close; a batch belongs to
 * one thread at a time.
 *
 * fetch: asks for n rows, and returns. A row may be named more than once. The numbers are
 * copied. Several batches may be under way. wait: sets *block to (n, width) floats, the
 * rows in the order in which they were named; valid until the batch is pushed or dropped.
 * Rows of this rank are read now, others as they were when their owner was asked. ready:
 * 1 if wait would not wait, else 0. push: gives gradients, (n, width), in the same order,
 * and returns. The owners step by them at the given rate. It waits only while 32 MB of
 * pushes are on their way. Gradients with NaN or Inf are left out, counted
 * (stats.rows_bad) and named. push_more: the same, for a loop that fetches next. The
 * gradients are sent with that fetch, and a thread is woken once instead of twice;
 * without a fetch they are sent within 0.1 s. drop: the batch has no gradients. push and
 * drop give the batch back, also where they fail, but for ORDER and FORKED. sync_cpu and
 * sync_rate do not limit them.
 *
 * A rank reads its own pushes. settle: returns when the owners have stepped by all that
 * this trainer's threads had pushed before the call. ENDED: a rank that owns rows has
 * gone, and its rows with it.
 *
 * With an age, a rank keeps copies of those rows of other owners that its batches have
 * most often. It steps a copy by its own pushes, too, but sees those of others only when
 * it asks again, once per age. After descant_finish all rows come from their owners. */
struct descant_rows;
DESCANT_API descant_status descant_rows_fetch(struct descant *job, int table,
                                              const uint64_t *rows, size_t n,
                                              struct descant_rows **batch);
DESCANT_API descant_status descant_rows_wait(struct descant *job,
                                             struct descant_rows *batch, float **block);
DESCANT_API int descant_rows_ready(struct descant *job, const struct descant_rows *batch);
DESCANT_API descant_status descant_rows_push(struct descant *job,
                                             struct descant_rows *batch,
                                             const float *gradients, double rate);
DESCANT_API descant_status descant_rows_push_more(struct descant *job,
                                                  struct descant_rows *batch,
                                                  const float *gradients, double rate);
DESCANT_API descant_status descant_rows_drop(struct descant *job,
                                             struct descant_rows *batch);
DESCANT_API descant_status descant_rows_settle(struct descant *job);

/* Checkpoints of such tables; after start, but `ranks` at any time: the ranks below it
 * own rows; 1 where trainers of one machine share them. A record is a row's values and
 * then the state of its optimizer, `floats` floats in all. next: the next rows that this
 * rank owns and that have ever been pushed or set, from *at on, which is 0 at first: up
 * to `room` of them, with their records; `records` NULL: without. Sets *n; 0: there are
 * no more. Rows come in the same order each time, but for tables that grow. Together the
 * ranks have all; on one machine each trainer has. set: takes the records of those of n
 * rows that this rank owns, and passes over others, so that a job of any number of ranks
 * can take what another one has saved. Let no trainer fetch before all have set theirs:
 * what was pushed to a row is overwritten (descant_agree_any waits for all), and a rank
 * that has a copy of it may read that for the table's age. What is pushed while another
 * thread calls next may be in a record or not.
 *
 * With options.owned_moves. hold 1: from its return on no rows come to this rank, or go,
 * until it calls with 0 as often. The holds of all threads of the rank are counted together:
 * where other threads have called with 0 as often before the call with 1 returns, it returns
 * ORDER, and no hold is left. If all ranks hold, and each saves the rows that it owns, every
 * row is saved once. Before start it returns at once, and rows stay where they are at the
 * start. parts: sets parts[k], for k < n, to how many of the 1,024 parts of all rows
 * rank k owns, as this rank knows now; *moved: how many have ever had another owner than
 * at the start. On one machine rank 0 stands for all. */
DESCANT_API descant_status descant_owned_floats(struct descant *job, int table,
                                                size_t *floats);
DESCANT_API descant_status descant_owned_hold(struct descant *job, int hold);
DESCANT_API descant_status descant_owned_parts(struct descant *job, int n, int *parts,
                                               int *moved);
DESCANT_API descant_status descant_owned_ranks(struct descant *job, int *ranks);
DESCANT_API descant_status descant_owned_next(struct descant *job, int table,
                                              uint64_t *at, size_t room, uint64_t *rows,
                                              float *records, size_t *n);
DESCANT_API descant_status descant_owned_set(struct descant *job, int table,
                                             const uint64_t *rows, size_t n,
                                             const float *records);

/* Waits for options.size trainers, which then all have the first trainer's values. If the
 * job is running already, this trainer gets a living trainer's state (in elastic plans
 * the central copy) and becomes a member. Under "none" attached segments keep the values
 * of their own start. */
DESCANT_API descant_status descant_start(struct descant *job);

/* Call it after each optimizer step, in the thread that made the step. Under shadow plans
 * it counts, and never waits. Under delayed plans the worker whose step completes the
 * count merges and takes the snapshot. Under foreground plans all registered workers wait
 * here for the round. A thread's first call registers it as a worker; its end, or
 * descant_worker_done, takes it out. A warning names the trainers that a worker has
 * waited for, after one second and then every ten, and another line says when the worker
 * goes on. */
DESCANT_API descant_status descant_step(struct descant *job);
DESCANT_API descant_status descant_worker_done(struct descant *job);

/* Makes buffer the mean over the trainers' buffers. All pass the same n, or all get
 * MISMATCH. Only under the plan "allreduce"; a second thread of the same trainer waits
 * for the first. */
DESCANT_API descant_status descant_mean(struct descant *job, float *buffer, size_t n);

/* Agreements: small values of all trainers, for early stopping, schedules and evaluation,
 * under every plan. All make the same agreements in the same order, each in the thread
 * that calls, one at a time, between start and finish. A call sleeps until the others
 * have made it; rounds, the shadow and other workers go on meanwhile. A trainer that
 * dies, leaves or begins its finish is not waited for. All that get a result get the same
 * bits. All get MISMATCH if the calls differ; such an agreement counts as made. Under
 * plans whose steps wait, all make the same number of steps between agreements, or the
 * job stands still. Not from on_event.
 *
 * A trainer that comes late joins the others' next agreement of the same kind and size as
 * its first call. So where trainers come late, the agreements that are repeated differ
 * from each other in kind, size or giver, and only agreed values decide which one is
 * next.
 *
 * mean: each of the n values, 1 to 512, becomes its mean. any: the flag becomes 1 if some
 * trainer's is not 0, else 0. broadcast: the trainer of rank `from` gives *n bytes, at
 * most 4096, and all get them, and their number in *n; room: bytes at `bytes`. A receiver
 * without room for them gets INVALID, and the agreement is made. All get INVALID if the
 * giver has too many, and BAD_RANK if `from` is not at work: both count as made. */
DESCANT_API descant_status descant_agree_mean(struct descant *job, double *values,
                                              size_t n);
DESCANT_API descant_status descant_agree_any(struct descant *job, int *flag);
DESCANT_API descant_status descant_agree_broadcast(struct descant *job, void *bytes,
                                                   size_t room, size_t *n, int from);

/* How many agreements the job has made, as far as this trainer knows, and the values of
 * the last one: NaN where that was not a mean of n values; n may be 0. It waits while
 * this trainer takes no part, as one that has just come late. Then it knows of all that
 * were made without it. If *made is 0 its next agreement is the first one, and the others
 * wait for it there; else they do not wait. */
DESCANT_API descant_status descant_agreed(struct descant *job, uint64_t *made,
                                          double *values, size_t n);

struct descant_items {
    uint64_t from, to;              /* from, from + 1, … to - 1 */
};

#define DESCANT_NO_ITEM UINT64_MAX

/* Work by need: numbered items (chunks of files, batches, samples: 0, 1, 2 and so on) are
 * dealt to the trainers of several machines (mpi, tcp). A slow trainer gets fewer, one
 * that comes late gets its share, and what a dead one had goes to the others. Each
 * trainer has as much work in stock as it does in the time after which it counts as dead,
 * so it works on where it is cut off for less. When nothing is left to be dealt, stocks
 * are shared out anew, and in the end each trainer has one item, or as many as it took at
 * once: all end together. A trainer may finish early; what it has not done is for others.
 *
 * An item is done once an exchange has merged that began after descant_deal_done: then
 * others have its steps. No item is left out. An item is done twice only where its
 * trainer died, or was cut off for so long that it counted as dead. Any thread may call
 * these, after start.
 *
 * begin: this trainer will take items. `done`: n runs of items that were done before, as
 * a checkpoint has them; all trainers' lists are joined. UNSUPPORTED where all trainers
 * are on one machine: they share memory, and can count in it. end: there are no items
 * from `end` on; the least end that any trainer gives counts.
 *
 * take: sets *item to this trainer's next item. TIMEOUT: none was there for wait_s
 * seconds, and one may come. DESCANT_NO_ITEM: all have been dealt, and this trainer may
 * finish once it has done those that it took. done: all steps of the item were made.
 * back: the item is for others.
 *
 * known: writes the first `room` runs of items that are done, as far as this trainer
 * knows, and those that it has made all steps of, and into *n how many runs there are: a
 * checkpoint of its replica has to name these. rest: after finish, `take` gives this
 * trainer all items that nobody has done, since they were with a trainer that died at the
 * end. One trainer does them, alone. */
DESCANT_API descant_status descant_deal_begin(struct descant *job,
                                              const struct descant_items *done, size_t n);
DESCANT_API descant_status descant_deal_end(struct descant *job, uint64_t end);
DESCANT_API descant_status descant_deal_take(struct descant *job, double wait_s,
                                             uint64_t *item);
DESCANT_API descant_status descant_deal_done(struct descant *job, uint64_t item);
DESCANT_API descant_status descant_deal_back(struct descant *job, uint64_t item);
DESCANT_API descant_status descant_deal_known(struct descant *job,
                                              struct descant_items *out, size_t room,
                                              size_t *n);
DESCANT_API descant_status descant_deal_rest(struct descant *job);

/* Items with bytes: input that one trainer alone can read, as from a pipe. That trainer
 * cuts it into items, and the others get the bytes of the items that they are dealt,
 * fetched in the background and ahead of need. It keeps an item's bytes until the item is
 * done, so the bytes of one whose trainer dies go to another one. An item is dealt once
 * its bytes are there.
 *
 * feed: before descant_deal_begin, in all trainers, with the same values: the trainer of
 * that rank gives the bytes, and keeps at most `most` of them, which also is the most
 * that an item may have. Another process that comes for that rank later gives none.
 *
 * put: in that trainer, item 0, then 1, 2 and so on; the bytes are copied.
 * descant_deal_end follows the last one, and this trainer takes items as all do. TIMEOUT:
 * for wait_s seconds there was no room, since `most` bytes are of items that are not
 * done. Where no trainer can go on without more, the oldest bytes that a trainer has are
 * let go, with a warning, and are lost if it dies. ENDED: the others have taken this
 * trainer for dead, and go on without its input.
 *
 * get: the bytes of an item that was taken, into `room` bytes of memory, and into *n how
 * many there are; where these are more than `room` nothing is written, and get may be
 * called again. It gives them once. TIMEOUT: they have not come for wait_s seconds. *n 0:
 * another trainer has done the item meanwhile. ENDED: they are lost with the trainer that
 * read them. In both cases there is nothing to do: call descant_deal_done. */
DESCANT_API descant_status descant_deal_feed(struct descant *job, int rank, size_t most);
DESCANT_API descant_status descant_deal_put(struct descant *job, double wait_s,
                                            const void *bytes, size_t n);
DESCANT_API descant_status descant_deal_get(struct descant *job, double wait_s,
                                            uint64_t item, void *bytes, size_t room,
                                            size_t *n);

/* A limit on the work of all trainers together, dealt by need beside the items: units
 * (steps, examples) 0 to limit - 1, of which each trainer takes some before it works, and
 * with which it does as with items. So exactly `limit` units are spent in steps that
 * results have, also where trainers die; a unit is spent twice only where an item would
 * be done twice.
 *
 * limit: this trainer will spend units. The first `spent` were spent before this job;
 * each: what it takes at once, at most. All trainers give the same numbers. spend: sets
 * *units to up to `most` that this trainer may spend. TIMEOUT as take; from
 * DESCANT_NO_ITEM: all have been dealt. spent: their steps were made, or, where `made` is
 * 0, they are for others. After descant_deal_rest spend gives what nobody has spent. */
DESCANT_API descant_status descant_deal_limit(struct descant *job, uint64_t spent,
                                              uint64_t limit, uint64_t each);
DESCANT_API descant_status descant_deal_spend(struct descant *job, double wait_s,
                                              uint64_t most, struct descant_items *units);
DESCANT_API descant_status descant_deal_spent(struct descant *job,
                                              const struct descant_items *units, int made);

/* To load a checkpoint: pause; overwrite the replica; outer_load, if an outer state was
 * saved; reload. No worker of this trainer steps in between, or gets ORDER. pause gives
 * up the open round, and no round touches the replica until reload. In the next round all
 * trainers take the loaded replica, and the outer state begins anew from it, or is the
 * loaded one; that round waits for all trainers, also in elastic plans. A trainer that
 * has called finish already takes the replica in the final round, except in a final mean,
 * to which it brings its own. If several trainers reload at once, the lowest rank's
 * replica counts. Not under the plan "none". */
DESCANT_API descant_status descant_pause(struct descant *job);
DESCANT_API descant_status descant_reload(struct descant *job);

/* The outer state: global version and momentum, or the central copy. save takes the room
 * at memory in *bytes, and sets it to the bytes needed; with memory NULL it only asks. It
 * waits for the end of a merge, and may also be called after finish. load is for use
 * between pause and reload, or before start once all segments are there. A state that was
 * loaded before start is given to all trainers by the start, with the replica of the one
 * that has loaded it; of several, with the lowest rank's. No steps are lost then; a
 * reload replaces all that the others have trained since its pause. A trainer that comes
 * to a running job takes the state of that job, also if it has loaded another one. */
DESCANT_API descant_status descant_outer_save(struct descant *job, void *memory,
                                              size_t *bytes);
DESCANT_API descant_status descant_outer_load(struct descant *job, const void *memory,
                                              size_t bytes);

struct descant_members {
    int rank;          /* this trainer's */
    int size;          /* trainers that take part in rounds now */
    uint32_t epoch;    /* changes whenever a trainer comes or goes */
    int host, hosts;   /* the number of this trainer's machine, from 0, and how many there
                          are */
    int local_rank;    /* this trainer's number on its machine */
    int late;          /* 1: the job was running when this trainer came; known after
                          start */
};

/* At any time, from any thread. */
DESCANT_API descant_status descant_members(struct descant *job,
                                           struct descant_members *out);

/* Whether the trainer of that rank takes part, as far as this one knows. Events tell of
 * all that comes and goes from then on; a trainer that comes late has heard none of those
 * that had died before. At any time, from any thread. */
DESCANT_API descant_status descant_is_member(struct descant *job, int rank, int *is);

struct descant_stats {
    uint64_t steps;              /* of all workers of this trainer */
    uint64_t rounds;             /* merged */
    uint64_t restarts;           /* rounds begun again because one of their trainers
                                    left */
    uint64_t bad;                /* contributions left out for NaN or Inf, of any
                                    trainer */
    uint64_t bytes;              /* moved by this trainer's rounds, as on a link */
    uint64_t stall_ns;           /* time that workers have waited, summed over workers */
    uint64_t copy_ns;            /* time that workers have copied and merged */
    uint64_t gap_max;            /* steps between two merges */
    double gap_mean, gap_p50, gap_p99;
    double gap_per_worker;       /* gap_mean ÷ workers: in steps of one worker */
    double age_steps, age_s;     /* from the last round's begin to its merge, in steps and
                                    seconds */
    /* from a round's begin until its result is here, or is merged, if it need not wait
       for its step */
    double exchange_p50_s, exchange_p99_s;
    double shadow_cpu_s;         /* CPU time of Descant's own threads */
    double wall_s;               /* since start */
    double budget;               /* the share of one core that the shadow may use now */
    double distance;             /* ‖w − g‖ ÷ ‖g‖ at the last merge; 0 where w has NaN or
                                    Inf */
    /* of tables on several machines: counted by the trainer that exchanges for its
       machine; 0 in the others */
    uint64_t rows_rounds;
    uint64_t rows_sent;          /* updates of rows */
    uint64_t rows_bad;           /* left out for NaN or Inf */
    uint64_t rows_bytes;         /* moved for rows; not counted in bytes */
    uint64_t rows_waiting;       /* touched rows that had no place in the last round */
    double rows_age_s;           /* the longest that one of them has waited */
    /* of the last round, under plans whose outer step has momentum, such as diloco */
    double outer_rate, outer_momentum;
    double outer_cosine;         /* the cosine between a round's change and the momentum
                                    before it, a mean over recent rounds. At 0 or below
                                    the step overshoots; near 1, with a rate below 1 and
                                    little momentum, it lags. One warning says so */
    /* under plans with quorum= */
    uint64_t missed;             /* rounds that have closed without this trainer */
    uint64_t merged;             /* steps of this trainer that results have; the others
                                    are still to come, or were lost with a state */
    /* of tables with owners; their bytes are in rows_bytes, gradients that were left out
       here in rows_bad */
    uint64_t rows_fetched, rows_pushed;     /* by this trainer */
    uint64_t rows_cached;        /* of rows_fetched: read from copies */
    uint64_t rows_served;        /* that others have asked this rank for, or pushed to
                                    it */
    uint64_t rows_stall_ns;      /* time that threads which make steps have waited, since
                                    their first step, for rows or for room to push */
    double rows_cpu_s;           /* CPU time of the thread that serves them */
    uint64_t rows_moved;         /* that this rank has sent to others, to own or as
                                    replicas; their bytes are in rows_bytes */
    /* of those that grow, where this rank owns them (on one machine, of all trainers): */
    uint64_t rows_live;          /* rows that are there */
    uint64_t rows_evicted;
    uint64_t rows_refused;       /* gradients that made no row */
};

/* At any time, from any thread; no step and no round waits for it. */
DESCANT_API descant_status descant_stats(struct descant *job, struct descant_stats *out);

enum { DESCANT_VALUES = 16 };

struct descant_peer {
    int rank;
    int workers;
    enum descant_event_kind last;   /* JOINED: it takes part; FINISHED, LEFT, UNFINISHED,
                                       LOST: how it went. Only where events are logged or
                                       go to on_event, and below rank 4096 */
    const char *host;               /* the name of its machine, valid until close; "": not
                                       known */
    double heard_s;                 /* the age of these figures, seconds; 0: this
                                       trainer's own */
    uint64_t steps, rounds, bytes, stall_ns;        /* as in descant_stats */
    double gap_mean, age_s, exchange_p99_s, distance, wall_s;
    size_t n_values;                /* that its program has given to descant_show */
    double values[DESCANT_VALUES];  /* any bits: a peer may have sent NaN */
};

/* Gives n numbers of the program's own, 16 at most, to the trainers that get this one's
 * figures: examples, loss, and so on. They replace those of the call before. At any time,
 * from any thread. */
DESCANT_API descant_status descant_show(struct descant *job, const double *values,
                                        size_t n);

/* Reads the numbers that an earlier process of this rank, which has died or left, showed
 * last: `room` at most to values, and into *n how many there are. *n is 0 where there was
 * no such process, where no trainer has told of it yet (up to 2 s after the start), and
 * on one machine. Call it before start and before each descant_show, in one thread, and
 * show the sum of both: the other trainers keep the old numbers until the new ones
 * include them. Numbers that are shown without such a call replace the old ones. */
DESCANT_API descant_status descant_shown(struct descant *job, double *values, size_t room,
                                         size_t *n);

/* The figures of all trainers, so that one of them can show the whole job. Each trainer
 * tells its own about once a second: over shm to all others, between machines to the two
 * lowest ranks that are there, which costs less than 1 KB a second; and once more at its
 * finish and its close. No step and no round waits for figures, and those of a trainer
 * that has gone stay. A trainer tells them in its rounds and in calls that wait, so under
 * the plan "none" without tables they come at its finish.
 *
 * Writes the figures of the `room` lowest ranks that are known, this trainer among them,
 * ascending by rank, and into *n how many are known. At any time, from any thread. */
DESCANT_API descant_status descant_peers(struct descant *job, struct descant_peer *out,
                                         size_t room, size_t *n);

/* The presets of plans, a line for each: its name, the keys that it sets and the paper
 * that it comes from, with tabs between. Returns the length needed. */
DESCANT_API size_t descant_plans(char *text, size_t room);

/* All waits of this job now, as text: which trainer waits for which. Returns the length
 * needed. */
DESCANT_API size_t descant_waits(struct descant *job, char *text, size_t room);

enum descant_final {
    DESCANT_FINAL_LOCAL,      /* the local version of the first trainer present, among
                                 those that have taken the most reloads */
    DESCANT_FINAL_MEAN,       /* the mean over the trainers present */
    DESCANT_FINAL_CENTRAL     /* the central copy, or the global version */
};

/* Ends training: leaves the rounds, sleeps until the trainers still at work have come,
 * and gives all that are present the same final model. All ask for the same kind, or all
 * get MISMATCH. A trainer that does not want the final model calls close alone. After
 * pause the overwritten replica is this trainer's final version. */
DESCANT_API descant_status descant_finish(struct descant *job, enum descant_final which);

/* Tells all trainers that this one was told to end, as by the signal of a host that goes:
 * each gets DESCANT_EVENT_TOLD once. It never waits, and any thread may call it. The word
 * leaves with this trainer's rounds, or with this call where it is called again and
 * again. */
DESCANT_API descant_status descant_tell(struct descant *job);

/* Ends this trainer's training alone, while the others train on: its last steps go into
 * one more exchange, and its touched rows into rounds of rows. Then it may only close.
 * Call it in place of descant_finish, after the last step. In elastic plans that exchange
 * needs no other trainer; a mean waits for the others, most_s seconds in all. TIMEOUT,
 * after a line in the log: the others did not come, and have this trainer's work up to
 * its last round. Over mpi descant_close waits for the others all the same. */
DESCANT_API descant_status descant_part(struct descant *job, double most_s);

/* Leaves the job and releases everything. Over mpi it sleeps, and serves the other ranks,
 * until all have left. NULL is allowed. */
DESCANT_API descant_status descant_close(struct descant *job);

/* As close, but memory from descant_alloc stays where it is, with its values, as this
 * process's own, until descant_free frees each segment: for languages whose objects may
 * outlive the job. DESCANT_MEMORY: there is no memory for that, and the job is as it was.
 */
DESCANT_API descant_status descant_leave(struct descant *job);
DESCANT_API descant_status descant_free(float *memory);      /* NULL is allowed */

/* The meaning of a status, in the words of the list above. */
DESCANT_API const char *descant_status_text(descant_status status);

/* The message of this thread's last failing call; "" before the first. A round that fails
 * breaks the job: from then on every call of every thread fails with the same message. */
DESCANT_API const char *descant_last_error(void);

/* DESCANT_VERSION of the loaded library, which may differ from the header's. */
DESCANT_API const char *descant_version(void);

#ifdef __cplusplus
}
#endif
#endif
