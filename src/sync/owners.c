/* SPDX-License-Identifier: MIT */
/* Tables with owners: their calls, and the thread that serves their rows (src/owners/).
 *
 * Between ranks the service has a link of its own, beside the one of exchanges, and a
 * thread: the shadow's share of a core is far too little to serve rows. On one machine
 * all trainers own all rows, in memory that they share, and there is neither. */
#include "sync/job.h"

#include "link/link.h"
#include "owners/moves.h"

#include <string.h>

#define SLEEP_NS UINT64_C(100000000)
#define SERVE_NS UINT64_C(5000000)
#define LOOK_NS UINT64_C(1000000)
#define STUCK_NS UINT64_C(1000000000)

/* Over a link that wakes nobody: the thread looks again after so long. */
enum { LOOK_LEAST_NS = 20000, LOOK_MOST_NS = 1000000 };

struct descant_owned descant_owned_default(void)
{
    return (struct descant_owned){.optimizer = DESCANT_ROWS_ADAGRAD, .beta1 = 0.9,
                                  .beta2 = 0.999, .epsilon = 1e-8, .admit = 1};
}

static bool among_ranks(const struct descant *job)
{
    return job->fabric->many_hosts;
}

/* --- declared --- */

static descant_status check_new(struct descant *job, const char *name,
                                const struct descant_owned *shape, const int *table)
{
    const struct owners *o = &job->owners;

    if (!table)
        return log_fail(&job->log, DESCANT_INVALID,
                        "descant_owned_table: nowhere to put its number");
    if (!owned_check(name, shape, &job->log))
        return DESCANT_INVALID;
    for (size_t k = 0; k < o->n; k++)
        if (strcmp(o->tables[k].name, name) == 0)
            return log_fail(&job->log, DESCANT_DUPLICATE, "there is a table '%s'", name);
    if (o->n == OWNED_MOST)
        return log_fail(&job->log, DESCANT_INVALID, "a job has at most %d such tables",
                        OWNED_MOST);
    if (among_ranks(job) && job->fabric->star)
        return log_fail(&job->log, DESCANT_UNSUPPORTED,
                        "tables with owners need connections between all ranks, which a "
                        "star has not");
    return DESCANT_OK;
}

descant_status descant_owned_table(struct descant *job, const char *name,
                                   const struct descant_owned *shape, int *table)
{
    descant_status status = job_check(job, JOB_OPEN, "descant_owned_table");

    if (status == DESCANT_OK)
        status = check_new(job, name, shape, table);
    if (status != DESCANT_OK)
        return status;
    struct owners *o = &job->owners;
    if (!memory_grow(&o->tables, &o->room, o->n, o->n + 1, sizeof *o->tables) ||
        !owned_init(&o->tables[o->n], name, shape, (int)o->n))
        return log_fail(&job->log, DESCANT_MEMORY, "no memory for table '%s'", name);
    *table = (int)o->n++;
    return DESCANT_OK;
}

/* The ranks that there are at the start. */
static int ranks_of(const struct descant *job)
{
    const struct fabric *f = job->fabric;
    int size = !among_ranks(job) ? 1 : f->fixed ? f->size : f->begins_with;

    return size < OWNED_SLICES ? size : OWNED_SLICES;
}

static int owners_of(const struct descant *job)
{
    const struct owners *o = &job->owners;

    return among_ranks(job) && o->n_shares ? o->n_shares : ranks_of(job);
}

static descant_status take_shares(struct descant *job, const char *text)
{
    struct owners *o = &job->owners;
    double shares[OWNED_SLICES];

    if (!text)
        return DESCANT_OK;
    o->n_shares = owned_shares(text, shares, OWNED_SLICES);
    if (o->n_shares < 0)
        return log_fail(&job->log, DESCANT_INVALID,
                        "owned_shares is \"%s\": a number for each of the first ranks, "
                        "as 2,1,1, and one above 0", text);
    o->shares = memory_take(strlen(text) + 1);
    if (!o->shares)
        return log_fail(&job->log, DESCANT_MEMORY, "no memory for the shares of rows");
    memcpy(o->shares, text, strlen(text));
    return DESCANT_OK;
}

descant_status owners_take_options(struct descant *job, const struct descant_options *o)
{
    if (o->owned_replica_s != 0 &&
        !(o->owned_replica_s >= 0.1 && o->owned_replica_s <= 1e6))
        return log_fail(&job->log, DESCANT_INVALID,
                        "owned_replica_s is 0, or 0.1 to 1e6 seconds");
    if (o->owned_replica_s > 0 && !o->owned_moves)
        return log_fail(&job->log, DESCANT_INVALID, "owned_replica_s needs owned_moves");
    job->owners.moves = o->owned_moves;
    job->owners.replica_s = o->owned_replica_s;
    return take_shares(job, o->owned_shares);
}

bool owners_fit(const struct descant *job, int ranks)
{
    const struct owners *o = &job->owners;

    if (o->n_shares <= ranks)
        return true;
    log_fail(&job->log, DESCANT_INVALID,
             "owned_shares (of descant train, --rows-shares) has shares for %d ranks, "
             "and the job begins with %d",
             o->n_shares, ranks);
    return false;
}

/* They become the map. */
static descant_status apply_shares(struct descant *job)
{
    struct owners *o = &job->owners;
    double shares[OWNED_SLICES];

    if (!o->n_shares || !among_ranks(job))
        return DESCANT_OK;
    if (!owners_fit(job, ranks_of(job)))
        return DESCANT_INVALID;
    owned_shares(o->shares, shares, OWNED_SLICES);
    owned_map_share(&o->service.map, shares, o->n_shares);
    return DESCANT_OK;
}

char *owners_manifest(const struct descant *job, char *manifest)
{
    const struct owners *o = &job->owners;
    size_t had = manifest ? strlen(manifest) : 0, room = had + 1;
    const char *shares = among_ranks(job) && o->shares ? o->shares : "equal";

    if (!manifest || o->n == 0)
        return manifest;
    for (size_t k = 0; k < o->n; k++)
        room += strlen(o->tables[k].name) + strlen(shares) + 640;
    char *more = memory_take(room);
    if (more) {
        memcpy(more, manifest, had);
        for (size_t k = 0; k < o->n; k++) {
            const struct descant_owned *x = &o->tables[k].shape;
            had += (size_t)snprintf(
                more + had, room - had,
                "owned %s: %llu rows of %zu floats, wire %d, optimizer %d "
                "(%g, %g, %g, %g), spread %g, zeros %zu, seed %llu, grows %d (%llu "
                "bytes, admit %g, unused %g s), age %g, cached %zu, %d owners (%s), "
                "moves %d, replicas %g\n",
                o->tables[k].name,
                (unsigned long long)x->rows, x->width, (int)x->wire, (int)x->optimizer,
                x->momentum, x->beta1, x->beta2, x->epsilon, x->spread, x->zeros,
                (unsigned long long)x->seed, x->grows != 0, (unsigned long long)x->memory,
                x->admit, x->unused_s, x->age, x->cached, owners_of(job), shares,
                o->moves && among_ranks(job), o->replica_s);
        }
    }
    memory_give(manifest);
    return more;
}

/* --- memory --- */

/* By options.owned_shares, and without them equal ones of the ranks of the start, and of
 * those that come. */
static double share_of(const struct descant *job, int rank, bool comes)
{
    const struct owners *o = &job->owners;
    double shares[OWNED_SLICES];
    int n = o->n_shares ? owned_shares(o->shares, shares, OWNED_SLICES) : ranks_of(job);

    return rank >= n ? comes && !o->n_shares : o->n_shares ? shares[rank] : 1;
}

/* Why rows cannot move; NULL: they can. */
static const char *unmovable(const struct descant *job, const struct link_place *at)
{
    const struct owners *o = &job->owners;

    if (at->fixed)
        return "over mpi no rank comes or leaves: use tcp:HOST:PORT";
    if (at->size > OWNED_SLICES)
        return "the job may have more than 1,024 ranks";
    for (size_t k = 0; k < o->n; k++) {
        if (o->tables[k].record > MOVES_WIDEST)
            return "a row with its optimizer's state has more than 8183 floats";
    }
    return NULL;
}

static descant_status let_move(struct descant *job, const struct link_place *at)
{
    struct owners *o = &job->owners;
    double shares[OWNED_SLICES];
    int n = owners_of(job);
    const struct moves_options options = {
        .shares = shares, .n = n, .share = share_of(job, at->rank, true),
        .late = job->fabric->joined, .follow_s = o->replica_s};

    if (!o->moves || !among_ranks(job))
        return DESCANT_OK;
    const char *why = unmovable(job, at);
    if (why)
        return log_fail(&job->log, DESCANT_UNSUPPORTED, "owned_moves: %s", why);
    for (int k = 0; k < n; k++)
        shares[k] = share_of(job, k, false);
    if (!moves_init(&o->service, &options))
        return log_fail(&job->log, DESCANT_MEMORY, "no memory for rows that move");
    atomic_store(&o->service.moves->holds, o->holds);
    return DESCANT_OK;
}

/* One block for all tables. */
static descant_status place_all(struct descant *job)
{
    struct owners *o = &job->owners;
    const struct owned_map *map = &o->service.map;
    int rank = o->service.rank;
    size_t bytes = 64;                  /* so that a rank without rows has a block */
    void *memory = NULL;

    bool late = among_ranks(job) && o->service.moves && job->fabric->joined;
    for (size_t k = 0; !late && k < o->n; k++)
        bytes += (owned_bytes(&o->tables[k], map, rank) + 63) / 64 * 64;
    if (among_ranks(job)) {
        memory = o->memory = memory_take(bytes);
        if (!memory)
            return log_fail(&job->log, DESCANT_MEMORY, "no memory for the %zu bytes of "
                            "this rank's rows", bytes);
    } else {
        pthread_mutex_lock(&job->sharing);
        descant_status status =
            job->fabric->type->share(job->fabric, "rows with owners", bytes, &memory);
        pthread_mutex_unlock(&job->sharing);
        if (status != DESCANT_OK)
            return status;
    }
    unsigned char *at = memory;
    for (size_t k = 0; k < o->n; k++) {
        if (!owned_place(&o->tables[k], map, rank, at))
            return log_fail(&job->log, DESCANT_SYSTEM, "table '%s': another trainer "
                            "began to prepare its memory, and has not ended after 10 s: "
                            "start the job again", o->tables[k].name);
        at += (owned_bytes(&o->tables[k], map, rank) + 63) / 64 * 64;
    }
    atomic_store_explicit(&o->placed, o->n, memory_order_release);
    return DESCANT_OK;
}

struct slab_figures owners_figures(struct descant *job)
{
    struct owners *o = &job->owners;
    size_t placed = atomic_load_explicit(&o->placed, memory_order_acquire);
    struct slab_figures sum = {0};

    if (!placed)
        return sum;
    gate_in(&o->service);
    for (size_t k = 0; k < placed; k++) {
        struct slab_figures of = owned_figures(&o->tables[k]);
        sum.live += of.live;
        sum.evicted += of.evicted;
        sum.refused += of.refused;
    }
    gate_out(&o->service);
    return sum;
}

static descant_status make_service(struct descant *job)
{
    struct owners *o = &job->owners;
    struct link *link = NULL;
    struct link_place at = {0};
    descant_status status =
        among_ranks(job) ? job->fabric->type->beside(job->fabric, &link, &at)
                         : DESCANT_OK;

    if (status != DESCANT_OK)
        return status;
    o->made = true;
    status = service_init(&o->service, link, &at, owners_of(job), &job->log);
    if (status == DESCANT_OK)
        status = apply_shares(job);
    if (status == DESCANT_OK)
        status = let_move(job, &at);
    if (status == DESCANT_OK)
        status = place_all(job);
    return status == DESCANT_OK ? service_open(&o->service, o->tables, (int)o->n)
                                : status;
}

/* --- the thread --- */

/* A rank that the job knows to be gone, or that is silent for too long: the link beside
 * the job's may not see it. */
static bool look_for_lost(struct descant *job, uint64_t now_ns)
{
    struct owners *o = &job->owners;
    const struct service *s = &o->service;
    bool good = true;

    for (int rank = 0; good && rank < s->place.size && rank < OWNED_SLICES; rank++) {
        struct rank_life of = notes_life(&job->events.notes, rank);
        struct owners_life is = {.lives = of.life + 1, .ended = of.ended, .lost = of.lost,
                                 .parted = of.parted, .came = s->peers[rank].came};
        if (owners_is_lost(&o->known[rank], &is, now_ns))
            good = service_lose(&o->service, rank);
    }
    return good;
}

static void count_cpu(struct service *s)
{
    atomic_store_explicit(&s->stats.cpu_ns, clock_thread_cpu_ns(), memory_order_relaxed);
}

static void *serve_rows(void *of)
{
    struct descant *job = of;
    struct service *s = &job->owners.service;
    uint64_t rest = LOOK_LEAST_NS, looked = 0;
    uint32_t bell = 0, turns = 0;
    int turn;

    while ((turn = service_turn(s)) == OWNERS_WORKED || turn == OWNERS_RESTS) {
        uint64_t now = turn == OWNERS_RESTS || turns++ % 256 == 0 ? clock_now_ns() : 0;
        if (now > looked + SLEEP_NS) {
            if (!look_for_lost(job, now)) {
                turn = OWNERS_FAILED;
                break;
            }
            count_cpu(s);
            looked = now;
        }
        if (turn == OWNERS_WORKED) {
            rest = LOOK_LEAST_NS;
            continue;
        }
        service_sleep(s, s->place.wakes ? SLEEP_NS : rest, &bell);
        rest = 2 * rest < LOOK_MOST_NS ? 2 * rest : LOOK_MOST_NS;
    }
    if (turn == OWNERS_FAILED)
        service_part(s);
    count_cpu(s);
    atomic_store(&job->owners.over, true);
    return NULL;
}

descant_status owners_start(struct descant *job)
{
    struct owners *o = &job->owners;
    sigset_t before;

    if (o->n == 0)
        return DESCANT_OK;
    descant_status status = make_service(job);
    if (status != DESCANT_OK || !among_ranks(job))
        return status;
    signals_hold(&before);
    o->runs = !memory_refuse() && pthread_create(&o->thread, NULL, serve_rows, job) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return o->runs ? DESCANT_OK
                   : log_fail(&job->log, DESCANT_SYSTEM,
                              "no thread to serve the rows of tables");
}

/* A call has failed; where the service has, its thread has logged why. */
static descant_status owners_lost(struct descant *job, descant_status status)
{
    const struct service *s = &job->owners.service;
    int of_service = atomic_load(&s->status);

    return of_service ? log_fail(NULL, (descant_status)of_service, "%s", s->why) : status;
}

/* Rows of each owner are fetched: an owner serves the asks of a rank in their order,
 * whatever table they are of. Of a slice that is on its way, too, since what was pushed
 * to it may be on another way than its owner's answer. A table may be too small to have a
 * row of each. */
static descant_status settle(struct descant *job)
{
    struct owners *o = &job->owners;
    struct service *s = &o->service;
    uint64_t rows[OWNED_SLICES];

    for (size_t k = 0; o->runs && k < o->n; k++) {
        struct descant_rows *batch = NULL;
        gate_in(s);
        size_t n = owned_of_each(&o->tables[k], rows);
        gate_out(s);
        descant_status status = batch_ask(s, (int)k, rows, n, &batch);
        if (status != DESCANT_OK)
            return status;
        bool come = batch_wait(s, batch) != NULL;
        batch_let_go(s, batch);
        if (!come)
            return owners_lost(job, DESCANT_ENDED);
        if (owned_has(&o->tables[k], OWNED_SLICES - 1))
            break;
    }
    return DESCANT_OK;
}

/* From here on no copies are read: what all ranks have pushed by their finish is seen. */
descant_status owners_flush(struct descant *job)
{
    service_past_copies(&job->owners.service);
    return settle(job);
}

static size_t has_slices(struct service *s)
{
    gate_in(s);
    size_t n = owned_slices(&s->map, s->rank);
    gate_out(s);
    return n;
}

/* Until this rank has no rows, or nobody may take them for a second. */
static void wait_away(struct service *s, uint64_t until_ns)
{
    uint64_t now = clock_now_ns(), taken_ns = now;

    while (!atomic_load(&s->moves->away) && !atomic_load(&s->status) && now < until_ns &&
           now - taken_ns < STUCK_NS) {
        clock_sleep_until(now + LOOK_NS);
        now = clock_now_ns();
        taken_ns = atomic_load(&s->moves->stuck) ? taken_ns : now;
    }
}

descant_status owners_leave(struct descant *job, uint64_t until_ns)
{
    struct owners *o = &job->owners;
    struct service *s = &o->service;

    if (!o->runs || (!s->moves && has_slices(s) == 0))
        return DESCANT_OK;
    if (!s->moves)
        return log_fail(&job->log, DESCANT_UNSUPPORTED, "rank %d owns rows of tables, "
                        "and cannot leave before the others: set owned_moves", s->rank);
    moves_leave(s);
    wait_away(s, until_ns);
    if (atomic_load(&s->moves->away))
        return DESCANT_OK;
    if (atomic_load(&s->status))
        return owners_lost(job, DESCANT_ENDED);
    return log_fail(&job->log, DESCANT_TIMEOUT, "%zu of 1024 parts of the rows are still "
                    "with rank %d, which cannot leave%s", has_slices(s), s->rank,
                    atomic_load(&s->moves->stuck) ? ": no other rank has a share of them"
                                                  : " yet");
}

/* Others may still need this rank's answers in their rounds. */
static void stay(struct descant *job)
{
    const struct fabric_type *type = job->fabric->type;

    while (!atomic_load(&job->owners.over)) {
        if (type->serve) {
            pthread_mutex_lock(&job->machine);
            type->serve(job->fabric);
            pthread_mutex_unlock(&job->machine);
        }
        clock_sleep_until(clock_now_ns() + SERVE_NS);
    }
}

/* A job that has not finished goes as if it had died: others may wait for its end. */
void owners_stop(struct descant *job)
{
    struct owners *o = &job->owners;

    if (o->runs) {
        if (atomic_load(&job->state) == JOB_FINISHED)
            service_end(&o->service);
        else
            service_give_up(&o->service);
        stay(job);
        pthread_join(o->thread, NULL);
    }
    if (o->made)
        service_fini(&o->service);
    for (size_t k = 0; k < o->n; k++)
        owned_fini(&o->tables[k]);
    memory_give(o->memory);
    memory_give(o->shares);
    memory_give(o->tables);
    *o = (struct owners){0};
}

/* --- batches --- */

static descant_status check(struct descant *job, const char *call)
{
    if (job == NULL || *job->parent == 0 || atomic_load(&job->failure) != 0)
        return job_check(job, JOB_STARTED, call);
    int state = atomic_load(&job->state);
    return state == JOB_STARTED || state == JOB_FINISHED
               ? DESCANT_OK : job_check(job, JOB_STARTED, call);
}

/* `given`: so are its other arguments. */
static descant_status check_table(struct descant *job, int table, bool given,
                                  const char *call)
{
    descant_status status = check(job, call);

    if (status != DESCANT_OK)
        return status;
    if (table < 0 || (size_t)table >= job->owners.n)
        return log_fail(&job->log, DESCANT_INVALID, "%s: table %d of %zu", call, table,
                        job->owners.n);
    return given ? DESCANT_OK
                 : log_fail(&job->log, DESCANT_INVALID, "%s: an argument is NULL", call);
}

descant_status descant_rows_fetch(struct descant *job, int table, const uint64_t *rows,
                                  size_t n, struct descant_rows **batch)
{
    descant_status status =
        check_table(job, table, batch && (rows || !n), "descant_rows_fetch");

    if (status != DESCANT_OK)
        return status;
    struct owners *o = &job->owners;
    struct descant_rows *made = NULL;
    status = atomic_load(&o->service.status)
                 ? owners_lost(job, DESCANT_OK)
                 : batch_fetch(&o->service, table, rows, n, &made);
    if (status == DESCANT_OK)
        *batch = made;
    return status;
}

int descant_rows_ready(struct descant *job, const struct descant_rows *batch)
{
    return check(job, "descant_rows_ready") == DESCANT_OK && batch && batch_ready(batch);
}

descant_status descant_rows_wait(struct descant *job, struct descant_rows *batch,
                                 float **block)
{
    descant_status status = check(job, "descant_rows_wait");

    if (status == DESCANT_OK && (!batch || !block))
        status = log_fail(&job->log, DESCANT_INVALID,
                          "descant_rows_wait: no batch, or nowhere to put its rows");
    if (status != DESCANT_OK)
        return status;
    batch->stalls = workers_has_me(&job->workers);
    float *rows = batch_wait(&job->owners.service, batch);
    if (!rows)
        return owners_lost(job, DESCANT_ENDED);
    *block = rows;
    return DESCANT_OK;
}

typedef descant_status push_fn(struct service *s, struct descant_rows *batch,
                               const float *gradients, float rate);

static descant_status push(struct descant *job, struct descant_rows *batch,
                           const float *gradients, double rate, push_fn *by)
{
    descant_status status = check(job, "descant_rows_push");
    float step = (float)rate;

    if (status != DESCANT_OK)
        return status;
    if (!batch)
        return log_fail(&job->log, DESCANT_INVALID, "descant_rows_push: no batch");
    if ((!gradients && batch_rows(batch)) || !(step * 0 == 0)) {
        bool none = !gradients && batch_rows(batch);
        batch_let_go(&job->owners.service, batch);
        return none ? log_fail(&job->log, DESCANT_INVALID,
                               "descant_rows_push: no gradients")
                    : log_fail(&job->log, DESCANT_INVALID,
                               "descant_rows_push: the rate is %g", rate);
    }
    batch->stalls = workers_has_me(&job->workers);
    status = by(&job->owners.service, batch, gradients, step);
    return status == DESCANT_OK ? status : owners_lost(job, status);
}

descant_status descant_rows_push(struct descant *job, struct descant_rows *batch,
                                 const float *gradients, double rate)
{
    return push(job, batch, gradients, rate, batch_push);
}

descant_status descant_rows_push_more(struct descant *job, struct descant_rows *batch,
                                      const float *gradients, double rate)
{
    return push(job, batch, gradients, rate, batch_push_more);
}

descant_status descant_rows_drop(struct descant *job, struct descant_rows *batch)
{
    descant_status status = check(job, "descant_rows_drop");

    if (status == DESCANT_OK && batch)
        batch_let_go(&job->owners.service, batch);
    return status;
}

descant_status descant_rows_settle(struct descant *job)
{
    descant_status status = check(job, "descant_rows_settle");

    return status == DESCANT_OK ? settle(job) : status;
}

/* --- checkpoints --- */

descant_status descant_owned_floats(struct descant *job, int table, size_t *floats)
{
    descant_status status = check_table(job, table, floats, "descant_owned_floats");

    if (status == DESCANT_OK)
        *floats = job->owners.tables[table].record;
    return status;
}

descant_status descant_owned_ranks(struct descant *job, int *ranks)
{
    if (job == NULL || *job->parent == 0)
        return job_check(job, JOB_OPEN, "descant_owned_ranks");
    if (ranks == NULL)
        return log_fail(&job->log, DESCANT_INVALID,
                        "descant_owned_ranks: nowhere to put their number");
    *ranks = owners_of(job);
    return DESCANT_OK;
}

descant_status descant_owned_next(struct descant *job, int table, uint64_t *at,
                                  size_t room, uint64_t *rows, float *records, size_t *n)
{
    descant_status status =
        check_table(job, table, at && rows && n, "descant_owned_next");

    if (status != DESCANT_OK)
        return status;
    gate_in(&job->owners.service);
    *n = owned_next(&job->owners.tables[table], at, room, rows, records);
    gate_out(&job->owners.service);
    return DESCANT_OK;
}

descant_status descant_owned_hold(struct descant *job, int hold)
{
    bool open = job && *job->parent && atomic_load(&job->state) == JOB_OPEN;
    descant_status status = open ? job_check(job, JOB_OPEN, "descant_owned_hold")
                                 : check(job, "descant_owned_hold");

    if (status != DESCANT_OK)
        return status;
    struct service *s = &job->owners.service;
    if (open)
        job->owners.holds += hold ? 1 : -1;
    if (!job->owners.runs || !s->moves)
        return DESCANT_OK;
    moves_hold(s, hold != 0);
    while (hold && !atomic_load(&s->moves->still) && !atomic_load(&s->status) &&
           atomic_load(&s->moves->holds) > 0)
        clock_sleep_until(clock_now_ns() + LOOK_NS);
    bool ended = hold && atomic_load(&s->moves->holds) <= 0 && !atomic_load(&s->status);
    return ended ? log_fail(NULL, DESCANT_ORDER, "descant_owned_hold: another thread has "
                            "let rows move again before this call returned")
                 : owners_lost(job, DESCANT_OK);
}

descant_status descant_owned_parts(struct descant *job, int n, int *parts, int *moved)
{
    descant_status status = check(job, "descant_owned_parts");

    if (status == DESCANT_OK && (n < 0 || (n && !parts)))
        status = log_fail(&job->log, DESCANT_INVALID,
                          "descant_owned_parts: nowhere to put them");
    if (status != DESCANT_OK)
        return status;
    struct service *s = &job->owners.service;
    int changed = 0;
    gate_in(s);
    for (int k = 0; k < n; k++)
        parts[k] = (int)owned_slices(&s->map, k);
    for (int slice = 0; slice < OWNED_SLICES; slice++)
        changed += s->map.epoch[slice] != 0;
    gate_out(s);
    if (moved)
        *moved = changed;
    return DESCANT_OK;
}

descant_status descant_owned_set(struct descant *job, int table, const uint64_t *rows,
                                 size_t n, const float *records)
{
    descant_status status =
        check_table(job, table, !n || (rows && records), "descant_owned_set");

    if (status != DESCANT_OK)
        return status;
    struct owned *of = &job->owners.tables[table];
    for (size_t k = 0; k < n; k++)
        if (!owned_has(of, rows[k]))
            return log_fail(&job->log, DESCANT_INVALID,
                            "descant_owned_set: table '%s' has no row %llu", of->name,
                            (unsigned long long)rows[k]);
    gate_in(&job->owners.service);
    owned_set(of, rows, n, records);
    gate_out(&job->owners.service);
    return DESCANT_OK;
}
