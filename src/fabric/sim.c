/* SPDX-License-Identifier: MIT */
/* The rounds of docs/shm.md among any number of trainers in one thread, on a clock that moves
 * only when it is told. No message, no thread, no wait: world_turn looks at everybody after
 * each change and does what has become possible; the rest waits for the clock.
 *
 *   forming    nobody is a member, and `size` trainers wait with a STATE (later: any): they are
 *   gather     members begin; the round closes when all have
 *   reduce     at ready_ns (the emulated link, latency, chance) the result is computed once,
 *                  mean = sum of weight_k / total x_k, in double, by rank,
 *              into the one result buffer of the world
 *   take       each takes it; the next round cannot close before all members begin again
 *
 * 1. A trainer that leaves, dies or begins anew while the round reduces puts it back to gather;
 *    it closes again at once among those who stay. So too when the source of a state goes
 *    before all have pulled.
 * 2. The closing of a round waits for every member, also those just admitted, so whoever a
 *    joiner pulls from stays where it is until the joiner has begun the same round.
 * 3. A final exchange takes its trainer out of the members; when nobody is a member or waits,
 *    and all alive have begun one, they become the members of the last round.
 * 4. An elastic exchange is between one trainer and the centre, whose link is busy with one
 *    at a time. While a STATE gathers it becomes an arrival there.
 *
 * A part of a joiner's state lies in one buffer of the world, held until its next poll. Outer
 * vectors that somebody holds outlive their trainer, until the world's end. */
#include "fabric/sim.h"
#include "fabric/kernels.h"

#include <assert.h>
#include <string.h>

enum phase {
    IDLE,
    ARRIVED,            /* begun, the round gathers (or, WAITING: not yet admitted) */
    REDUCING,           /* in the closed group */
    TAKE, TAKEN,        /* the result is there; its part is out */
    PULLED,             /* state: waits for the others of the group */
    PULLING, JOINED,    /* an admitted joiner, and when its part is out */
    ALONE               /* elastic */
};

enum life { OPENED, WAITING, MEMBER, FINAL, DEAD };

struct trainer {
    struct fabric f;
    struct sim_world *world;
    struct block *segments;
    enum life life;
    enum phase phase;
    bool started, in_place;
    int threads;
    int n_outer;
    struct exchange x;
    uint64_t ready_ns;          /* PULLING, ALONE */
    bool looked;                /* ALONE: its values are finite */
    size_t at;                  /* ALONE: the next chunk */
    float *out;                 /* ALONE: one chunk */
    const struct trainer *from; /* whose outer vectors the part that is out shows */
};

struct sim_world {
    struct sim_options options;
    struct rng rng;
    uint64_t now;
    struct trainer **trainers;  /* alive, by rank */
    int n_trainers, room_trainers;
    const float **piece;        /* of a mean: room_trainers of each */
    const struct vector **vectors;
    double *share;
    struct block *shares, *graves;
    /* as the first that started had it */
    char *manifest;
    size_t n, room;
    bool collective;
    float *result, *pull, *center;
    const struct trainer *puller;       /* holds `pull` */
    bool formed;
    bool turning;
    /* the round */
    uint32_t round;                     /* its number, from 1 */
    bool reducing;
    enum exchange_kind kind;
    struct trainer *source;             /* state: NULL when all have pulled */
    uint64_t ready_ns;
    bool empty;                         /* a mean without a good contribution */
    uint64_t center_busy_ns;
};

static void world_turn(struct sim_world *w);

static struct trainer *trainer_of(struct fabric *f)
{
    return (struct trainer *)(void *)f;
}

static float *floats(size_t n)
{
    return memory_take_array(n ? n : 1, sizeof(float));
}

/* --- the world --- */

struct sim_world *sim_world_create(const struct sim_options *options)
{
    struct sim_world *w = memory_take(sizeof *w);
    if (!w)
        return NULL;
    w->options = *options;
    rng_init(&w->rng, options->seed);
    w->round = 1;
    return w;
}

static void world_unshape(struct sim_world *w)
{
    memory_give(w->manifest);
    memory_give(w->result);
    memory_give(w->pull);
    memory_give(w->center);
    w->manifest = NULL;
    w->result = w->pull = w->center = NULL;
    w->puller = NULL;
    w->formed = false;
}

void sim_world_destroy(struct sim_world *w)
{
    if (!w)
        return;
    assert(!w->n_trainers);
    world_unshape(w);
    blocks_give(&w->shares);
    blocks_give(&w->graves);
    memory_give(w->trainers);
    memory_give(w->piece);
    memory_give(w->vectors);
    memory_give(w->share);
    memory_give(w);
}

uint64_t sim_world_now(const struct sim_world *w)
{
    return w->now;
}

void sim_world_advance(struct sim_world *w, uint64_t to_ns)
{
    if (to_ns > w->now)
        w->now = to_ns;
    world_turn(w);
}

uint64_t sim_world_next(const struct sim_world *w)
{
    uint64_t next = UINT64_MAX;
    if (w->reducing && w->ready_ns > w->now)
        next = w->ready_ns;
    for (int i = 0; i < w->n_trainers; i++) {
        const struct trainer *t = w->trainers[i];
        if ((t->phase == PULLING || t->phase == ALONE) && t->ready_ns > w->now &&
            t->ready_ns < next)
            next = t->ready_ns;
    }
    return next;
}

static uint64_t delay_ns(struct sim_world *w, uint64_t link_ns)
{
    double more = w->options.latency_s;
    if (w->options.jitter_s > 0)
        more += w->options.jitter_s * rng_uniform(&w->rng);
    return link_ns + (uint64_t)(more * 1e9 + 0.5);
}

static uint64_t rtt_ns(const struct sim_world *w)
{
    return link_mean_ns(&w->options.link, 0, 1);
}

/* --- who takes part --- */

static int count_life(const struct sim_world *w, enum life life)
{
    int n = 0;
    for (int i = 0; i < w->n_trainers; i++)
        n += w->trainers[i]->life == life;
    return n;
}

static void world_changed(struct sim_world *w)
{
    int members = count_life(w, MEMBER), threads = 0;
    for (int i = 0; i < w->n_trainers; i++)
        threads += w->trainers[i]->started ? w->trainers[i]->threads : 0;
    for (int i = 0; i < w->n_trainers; i++) {
        struct fabric *f = &w->trainers[i]->f;
        atomic_store_explicit(&f->members, members, memory_order_relaxed);
        atomic_fetch_add_explicit(&f->epoch, 1, memory_order_relaxed);
        f->machine_threads = threads;
    }
}

static void set_life(struct trainer *t, enum life life)
{
    bool was = t->life == MEMBER;
    t->life = life;
    if (was != (life == MEMBER))
        world_changed(t->world);
}

static bool in_round(const struct sim_world *w, const struct trainer *t)
{
    if (w->reducing)
        return t->phase == REDUCING;
    return w->kind == EXCHANGE_STATE && w->source &&
           (t->phase == TAKE || t->phase == TAKEN || t->phase == PULLED);
}

/* Back to gather, all with the same inputs. */
static void round_restart(struct sim_world *w)
{
    for (int i = 0; i < w->n_trainers; i++) {
        struct trainer *t = w->trainers[i];
        if (!in_round(w, t))
            continue;
        atomic_fetch_add_explicit(&t->f.restarts, 1, memory_order_relaxed);
        t->phase = ARRIVED;
        t->f.own_bad = false;
    }
    w->reducing = false;
    w->source = NULL;
}

static void round_drop(struct trainer *t)
{
    struct sim_world *w = t->world;
    bool inside = in_round(w, t);
    t->phase = IDLE;
    t->from = NULL;
    if (w->puller == t)
        w->puller = NULL;
    if (inside && (w->reducing || w->source == t))
        round_restart(w);
}

static void world_form(struct sim_world *w)
{
    if (count_life(w, MEMBER))
        return;
    int waiting = count_life(w, WAITING), size = 1;
    for (int i = 0; i < w->n_trainers; i++)
        if (w->trainers[i]->life == WAITING && w->trainers[i]->f.size > size)
            size = w->trainers[i]->f.size;
    enum life from = WAITING;
    if (!waiting) {
        if (!w->n_trainers || count_life(w, FINAL) < w->n_trainers)
            return;
        from = FINAL;
    } else if (!w->formed && waiting < size) {
        return;
    }
    w->formed = true;
    for (int i = 0; i < w->n_trainers; i++)
        if (w->trainers[i]->life == from)
            w->trainers[i]->life = MEMBER;
    world_changed(w);
}

static void admit(struct trainer *t)
{
    t->phase = PULLING;
    t->ready_ns = t->world->now +
                  delay_ns(t->world, link_busy_ns(&t->world->options.link, t->x.n) +
                                     rtt_ns(t->world));
    if (t->world->collective)
        set_life(t, MEMBER);
}

static void admit_waiting(struct sim_world *w)
{
    for (int i = 0; i < w->n_trainers; i++)
        if (w->trainers[i]->life == WAITING && w->trainers[i]->phase == ARRIVED)
            admit(w->trainers[i]);
}

static bool settled(const struct trainer *t)
{
    return t->life == MEMBER && t->phase != PULLING;
}

/* Joiners whose last member has gone wait for a group again. */
static void world_orphans(struct sim_world *w)
{
    for (int i = 0; i < w->n_trainers; i++)
        if (settled(w->trainers[i]))
            return;
    for (int i = 0; i < w->n_trainers; i++)
        if (w->trainers[i]->phase == PULLING) {
            w->trainers[i]->phase = ARRIVED;
            set_life(w->trainers[i], WAITING);
        }
}

/* --- a round --- */

static bool before(const struct trainer *a, const struct trainer *b)
{
    return !b || a->x.priority > b->x.priority;     /* ranks ascend */
}

static struct trainer *state_gatherer(const struct sim_world *w)
{
    struct trainer *best = NULL;
    for (int i = 0; i < w->n_trainers; i++) {
        struct trainer *t = w->trainers[i];
        if (t->life == MEMBER && t->phase == ARRIVED && t->x.kind == EXCHANGE_STATE &&
            before(t, best))
            best = t;
    }
    return best;
}

static void go_alone(struct trainer *t)
{
    struct sim_world *w = t->world;
    uint64_t start = w->center_busy_ns > w->now ? w->center_busy_ns : w->now;
    w->center_busy_ns = start + link_busy_ns(&w->options.link, t->x.n);
    t->phase = ALONE;
    t->looked = false;
    t->at = 0;
    t->ready_ns = w->center_busy_ns + delay_ns(w, rtt_ns(w));
}

static void round_close(struct sim_world *w)
{
    struct trainer *source = state_gatherer(w);
    int group = 0;
    size_t n = 0;
    if (!source)        /* elastic arrivals whose STATE has gone */
        for (int i = 0; i < w->n_trainers; i++)
            if (w->trainers[i]->life == MEMBER && w->trainers[i]->phase == ARRIVED &&
                w->trainers[i]->x.kind == EXCHANGE_ELASTIC)
                go_alone(w->trainers[i]);
    for (int i = 0; i < w->n_trainers; i++) {
        struct trainer *t = w->trainers[i];
        if (t->life != MEMBER)
            continue;
        if (t->phase != ARRIVED)
            return;
        group++;
        n = t->x.n;
    }
    if (!group)
        return;
    for (int i = 0; i < w->n_trainers; i++)
        if (w->trainers[i]->life == MEMBER)
            w->trainers[i]->phase = REDUCING;
    w->kind = source ? EXCHANGE_STATE : EXCHANGE_MEAN;
    w->source = source;
    w->reducing = true;
    w->ready_ns = w->now + delay_ns(w, link_mean_ns(&w->options.link, n, group));
}

static bool mean_piece(struct sim_world *w, int n_in, size_t at, size_t *n)
{
    bool all = true;
    for (int k = 0; k < n_in; k++) {
        size_t run = vector_reach(w->vectors[k], at, &w->piece[k]);
        *n = run < *n ? run : *n;
        all = all && w->piece[k];
    }
    return all;
}

/* Shares of the good; all zero counts as all equal. Returns how many there are. */
static int mean_shares(struct sim_world *w)
{
    int good = 0, n_in = 0;
    double total = 0;
    uint64_t bad = 0;
    for (int i = 0; i < w->n_trainers; i++) {
        struct trainer *t = w->trainers[i];
        if (t->phase != REDUCING)
            continue;
        t->f.own_bad = !vector_finite(t->x.in, t->x.n);
        bad += t->f.own_bad;
        good += !t->f.own_bad;
        total += t->f.own_bad ? 0 : t->x.weight;
    }
    for (int i = 0; i < w->n_trainers; i++) {
        struct trainer *t = w->trainers[i];
        if (t->phase != REDUCING)
            continue;
        atomic_fetch_add_explicit(&t->f.bad, bad, memory_order_relaxed);
        if (t->f.own_bad || (total > 0 && !(t->x.weight > 0)))
            continue;
        w->vectors[n_in] = t->x.in;
        w->share[n_in++] = total > 0 ? t->x.weight / total : 1.0 / good;
    }
    return n_in;
}

static void round_mean(struct sim_world *w, size_t n)
{
    int n_in = mean_shares(w);
    w->empty = !n_in;
    for (size_t at = 0, run; n_in && at < n; at += run) {
        run = n - at;
        if (mean_piece(w, n_in, at, &run))
            kernels_best()->mean(w->result + at, w->piece, w->share, n_in, run, false);
        else
            memset(w->result + at, 0, run * sizeof(float));
    }
}

static void round_state(struct sim_world *w)
{
    vector_gather(w->source->x.in, w->source->x.n, w->result);
    if (w->center)
        memcpy(w->center, w->result, w->source->x.n * sizeof(float));
}

static void round_commit(struct sim_world *w)
{
    int group = 0;
    size_t n = 0;
    for (int i = 0; i < w->n_trainers; i++)
        if (w->trainers[i]->phase == REDUCING) {
            group++;
            n = w->trainers[i]->x.n;
        }
    if (w->kind == EXCHANGE_STATE)
        round_state(w);
    else
        round_mean(w, n);
    double bytes = w->kind == EXCHANGE_STATE ? 1 : 2.0 * (group - 1) / group;
    for (int i = 0; i < w->n_trainers; i++) {
        struct trainer *t = w->trainers[i];
        if (t->phase != REDUCING)
            continue;
        t->phase = TAKE;
        if (t != w->source)
            atomic_fetch_add_explicit(&t->f.bytes,
                                      (uint64_t)(bytes * (double)(n * sizeof(float))),
                                      memory_order_relaxed);
    }
    w->reducing = false;
    w->round++;
}

static void world_turn(struct sim_world *w)
{
    world_orphans(w);
    world_form(w);
    if (!w->reducing)
        round_close(w);
    if (w->reducing && w->now >= w->ready_ns)
        round_commit(w);
}

/* --- the trainer --- */

static bool world_grow(struct sim_world *w)
{
    if (w->n_trainers < w->room_trainers)
        return true;
    size_t room = w->room_trainers ? 2 * (size_t)w->room_trainers : 16;
    struct trainer **trainers = memory_take_array(room, sizeof *trainers);
    const float **piece = memory_take_array(room, sizeof *piece);
    const struct vector **vectors = memory_take_array(room, sizeof *vectors);
    double *share = memory_take_array(room, sizeof *share);
    bool had = trainers && piece && vectors && share;
    if (had) {
        if (w->n_trainers)
            memcpy(trainers, w->trainers, (size_t)w->n_trainers * sizeof *trainers);
        w->room_trainers = (int)room;
    }
#define TAKE_OVER(array) do { memory_give(had ? w->array : array); \
                              w->array = had ? array : w->array; } while (0)
    TAKE_OVER(trainers);
    TAKE_OVER(piece);
    TAKE_OVER(vectors);
    TAKE_OVER(share);
#undef TAKE_OVER
    return had;
}

static descant_status sim_open(struct fabric **out, const struct fabric_options *options)
{
    struct sim_world *w = options->context;
    if (!w)
        return log_fail(options->log, DESCANT_BAD_ADDRESS, "sim: no world");
    int rank = options->rank, place = 0;
    for (int i = 0; i < w->n_trainers; i++) {
        int other = w->trainers[i]->f.rank;
        if (options->rank >= 0 && other == rank)
            return log_fail(options->log, DESCANT_BAD_RANK, "rank %d is taken", rank);
    }
    if (rank < 0)
        for (rank = 0; rank < w->n_trainers && w->trainers[rank]->f.rank == rank; )
            rank++;
    while (place < w->n_trainers && w->trainers[place]->f.rank < rank)
        place++;
    struct trainer *t = memory_take(sizeof *t);
    if (!t || !world_grow(w)) {
        memory_give(t);
        return log_fail(options->log, DESCANT_MEMORY, "no memory for trainer %d", rank);
    }
    t->f.type = &fabric_sim;
    if (options->log)
        t->f.log = *options->log;
    t->f.log.rank = t->f.rank = rank;
    t->f.size = options->size;
    t->world = w;
    memmove(w->trainers + place + 1, w->trainers + place,
            (size_t)(w->n_trainers - place) * sizeof *w->trainers);
    w->trainers[place] = t;
    w->n_trainers++;
    *out = &t->f;
    return DESCANT_OK;
}

static float *sim_alloc(struct fabric *f, size_t at, size_t n)
{
    float *memory = NULL;
    if (n <= SIZE_MAX / sizeof(float))
        memory = block_take(&trainer_of(f)->segments, NULL, at, n * sizeof(float));
    if (!memory)
        log_fail(&f->log, DESCANT_MEMORY, "no memory for %zu floats", n);
    return memory;
}

static descant_status sim_share(struct fabric *f, const char *name, size_t bytes, void **block)
{
    struct sim_world *w = trainer_of(f)->world;
    struct block *known = block_find(w->shares, name);
    if (known && known->bytes != bytes)
        return log_fail(&f->log, DESCANT_MISMATCH, "block \"%s\" has %zu bytes, not %zu", name,
                        known->bytes, bytes);
    void *memory = known ? known->memory : block_take(&w->shares, name, 0, bytes);
    if (!memory)
        return log_fail(&f->log, DESCANT_MEMORY, "no memory for block \"%s\"", name);
    *block = memory;
    return DESCANT_OK;
}

/* Names the first line in which the two differ. */
static descant_status compare(const struct log *log, const char *theirs, const char *mine)
{
    int line = 1;
    for (;; line++) {
        size_t a = strcspn(theirs, "\n"), b = strcspn(mine, "\n");
        if (a != b || memcmp(theirs, mine, a))
            return log_fail(log, DESCANT_MISMATCH,
                            "line %d: the job has \"%.*s\", this trainer \"%.*s\"", line,
                            (int)(a < 200 ? a : 200), theirs, (int)(b < 200 ? b : 200), mine);
        if (!theirs[a] && !mine[b])
            return DESCANT_OK;
        theirs += a + (theirs[a] != 0);
        mine += b + (mine[b] != 0);
    }
}

static bool world_shape(struct sim_world *w, const struct fabric_start *start)
{
    const char *manifest = start->manifest ? start->manifest : "";
    size_t length = strlen(manifest) + 1;
    w->manifest = memory_take(length);
    w->result = floats(start->room > start->n ? start->room : start->n);
    w->pull = floats(start->n);
    w->center = start->center ? floats(start->n) : NULL;
    if (!w->manifest || !w->result || !w->pull || (start->center && !w->center)) {
        world_unshape(w);
        return false;
    }
    memcpy(w->manifest, manifest, length);
    w->n = start->n;
    w->room = start->room;
    w->collective = start->collective;
    return true;
}

static bool world_started(const struct sim_world *w)
{
    for (int i = 0; i < w->n_trainers; i++)
        if (w->trainers[i]->started)
            return true;
    return false;
}

static void trainer_stop(struct trainer *t)
{
    memory_give(t->f.contribution);
    memory_give(t->f.outer[0]);
    memory_give(t->f.outer[1]);
    memory_give(t->out);
    t->f.contribution = t->f.outer[0] = t->f.outer[1] = t->out = NULL;
}

static descant_status sim_start(struct fabric *f, const struct fabric_start *start)
{
    struct trainer *t = trainer_of(f);
    struct sim_world *w = t->world;
    if (t->started)
        return log_fail(&f->log, DESCANT_ORDER, "the fabric has been started");
    if (!world_started(w))
        world_unshape(w);
    if (w->manifest) {
        descant_status status = compare(&f->log, w->manifest,
                                        start->manifest ? start->manifest : "");
        if (status)
            return status;
        if (start->n != w->n || start->room != w->room || !start->center != !w->center)
            return log_fail(&f->log, DESCANT_MISMATCH,
                            "the job has vectors of %zu floats, this trainer of %zu", w->n,
                            start->n);
    }
    bool had = w->manifest || world_shape(w, start);
    if (had && !start->in_place)
        had = (f->contribution = floats(start->room)) != NULL;
    for (int i = 0; had && i < start->n_outer && i < 2; i++)
        had = (f->outer[i] = floats(start->n)) != NULL;
    if (had && start->center)
        had = (t->out = floats(start->n < CHUNK_FLOATS ? start->n : CHUNK_FLOATS)) != NULL;
    if (!had) {
        trainer_stop(t);
        return log_fail(&f->log, DESCANT_MEMORY, "no memory for rounds of %zu floats",
                        start->n);
    }
    f->center = w->center;
    t->in_place = start->in_place;
    t->threads = start->threads;
    t->n_outer = start->n_outer;
    t->started = true;
    world_changed(w);
    return DESCANT_OK;
}

static descant_status begin_check(struct trainer *t, const struct exchange *x)
{
    struct sim_world *w = t->world;
    const struct log *log = &t->f.log;
    if (t->life == DEAD || t->f.status)
        return t->f.status ? t->f.status : DESCANT_ORDER;
    if (!t->started)
        return log_fail(log, DESCANT_ORDER, "an exchange before start");
    if (t->life == OPENED && x->kind != EXCHANGE_STATE && !x->final)
        return log_fail(log, DESCANT_ORDER, "the first exchange after start is the state");
    if (x->kind == EXCHANGE_ELASTIC && !t->f.center)
        return log_fail(log, DESCANT_ORDER, "an elastic exchange without a centre");
    size_t most = x->kind == EXCHANGE_MEAN && w->room > w->n ? w->room : w->n;
    if (x->n > most)
        return log_fail(log, DESCANT_INVALID, "an exchange of %zu floats, room for %zu", x->n,
                        most);
    for (int i = 0; i < w->n_trainers; i++) {
        const struct trainer *o = w->trainers[i];
        if (o != t && o->phase == ARRIVED && o->x.kind == x->kind && o->x.n != x->n)
            return log_fail(log, DESCANT_MISMATCH,
                            "an exchange of %zu floats, but rank %d began one of %zu", x->n,
                            o->f.rank, o->x.n);
    }
    return DESCANT_OK;
}

static descant_status sim_begin(struct fabric *f, const struct exchange *exchange)
{
    struct trainer *t = trainer_of(f);
    struct sim_world *w = t->world;
    descant_status status = begin_check(t, exchange);
    if (status)
        return status;
    bool pulling = t->phase == PULLING || t->phase == JOINED;
    round_drop(t);
    t->x = *exchange;
    f->own_bad = false;
    if (exchange->final)
        set_life(t, FINAL);
    else if (t->life != MEMBER || (pulling && exchange->kind == EXCHANGE_STATE))
        set_life(t, WAITING);
    t->phase = ARRIVED;
    if (t->life == MEMBER && exchange->kind == EXCHANGE_ELASTIC && !state_gatherer(w))
        go_alone(t);
    if (w->collective && t->life == MEMBER)
        admit_waiting(w);
    world_turn(w);
    if (!w->collective && count_life(w, MEMBER))
        admit_waiting(w);
    return DESCANT_OK;
}

static void give_state(struct trainer *t, const struct trainer *source, const float *out,
                       struct fabric_part *part)
{
    *part = (struct fabric_part){.kind = EXCHANGE_STATE, .out = out, .n = source->x.n,
                                 .own = source == t};
    t->from = source;
    for (int i = 0; i < 2; i++)
        part->outer[i] = source->f.outer[i];
}

/* What a member has when it is in no exchange: its contribution, or its segments. */
static void gather_resting(const struct trainer *t, size_t n, float *out)
{
    if (t->f.contribution) {
        memcpy(out, t->f.contribution, n * sizeof *out);
        return;
    }
    memset(out, 0, n * sizeof *out);
    for (const struct block *b = t->segments; b; b = b->next) {
        size_t m = b->bytes / sizeof *out;
        if (b->at < n)
            memcpy(out + b->at, b->memory, (m < n - b->at ? m : n - b->at) * sizeof *out);
    }
}

static struct trainer *pull_source(const struct sim_world *w)
{
    for (int i = 0; i < w->n_trainers; i++) {
        struct trainer *t = w->trainers[i];
        bool in_state = t->phase != IDLE && t->phase != ALONE && t->x.kind == EXCHANGE_STATE;
        if (settled(t) && (w->collective ? t->phase == ARRIVED : !in_state))
            return t;
    }
    return NULL;
}

static enum fabric_progress poll_pulling(struct trainer *t, struct fabric_part *part)
{
    struct sim_world *w = t->world;
    struct trainer *source = pull_source(w);
    if (!source || w->puller || w->now < t->ready_ns)
        return FABRIC_WAITING;
    size_t n = t->x.n;
    if (w->center)
        memcpy(w->pull, w->center, n * sizeof(float));
    else if (source->phase != IDLE && source->x.n == n)
        vector_gather(source->x.in, n, w->pull);
    else
        gather_resting(source, n, w->pull);
    w->puller = t;
    give_state(t, source, w->pull, part);
    part->n = n;
    t->phase = JOINED;
    atomic_fetch_add_explicit(&t->f.bytes, n * sizeof(float), memory_order_relaxed);
    return FABRIC_PART;
}

static enum fabric_progress done(struct trainer *t)
{
    t->phase = IDLE;
    t->from = NULL;
    return FABRIC_DONE;
}

static enum fabric_progress poll_joined(struct trainer *t)
{
    t->world->puller = NULL;
    t->f.joined = true;
    if (t->life != MEMBER)
        set_life(t, MEMBER);
    return done(t);
}

static enum fabric_progress poll_take(struct trainer *t, struct fabric_part *part)
{
    struct sim_world *w = t->world;
    if (w->kind == EXCHANGE_STATE) {
        give_state(t, w->source, w->result, part);
    } else {
        if (w->empty)
            return done(t);
        *part = (struct fabric_part){.kind = EXCHANGE_MEAN, .out = w->result, .n = t->x.n};
    }
    t->phase = TAKEN;
    return FABRIC_PART;
}

/* The state is done for all when the last has pulled. */
static enum fabric_progress poll_pulled(struct trainer *t)
{
    struct sim_world *w = t->world;
    t->phase = PULLED;
    t->from = NULL;
    for (int i = 0; w->source && i < w->n_trainers; i++)
        if (w->trainers[i]->phase == TAKE || w->trainers[i]->phase == TAKEN)
            return FABRIC_WAITING;
    w->source = NULL;
    return done(t);
}

static enum fabric_progress poll_alone(struct trainer *t, struct fabric_part *part)
{
    const struct exchange *x = &t->x;
    if (t->world->now < t->ready_ns)
        return FABRIC_WAITING;
    if (!t->looked && !vector_finite(x->in, x->n)) {
        t->f.own_bad = true;
        atomic_fetch_add_explicit(&t->f.bad, 1, memory_order_relaxed);
        return done(t);
    }
    t->looked = true;
    if (t->at >= x->n)
        return done(t);
    size_t left = x->n - t->at;
    struct chunk chunk = {t->at, left < CHUNK_FLOATS ? left : CHUNK_FLOATS};
    vector_elastic(t->f.center, x->in, &chunk, (float)x->alpha, t->out);
    *part = (struct fabric_part){.kind = EXCHANGE_ELASTIC, .out = t->out, .from = chunk.from,
                                 .n = chunk.n};
    t->at += chunk.n;
    atomic_fetch_add_explicit(&t->f.bytes, 2 * chunk.n * sizeof(float), memory_order_relaxed);
    return FABRIC_PART;
}

static enum fabric_progress poll_idle(const struct trainer *t)
{
    const struct sim_world *w = t->world;
    if (t->life == MEMBER && !w->reducing)
        for (int i = 0; i < w->n_trainers; i++)
            if (w->trainers[i]->life == MEMBER && w->trainers[i]->phase == ARRIVED)
                return FABRIC_CALLED;
    return FABRIC_WAITING;
}

static enum fabric_progress sim_poll(struct fabric *f, struct fabric_part *part)
{
    struct trainer *t = trainer_of(f);
    fabric_unsay(f);
    if (f->status)
        return FABRIC_FAILED;
    switch (t->phase) {
    case IDLE:
        return poll_idle(t);
    case ARRIVED:
    case REDUCING:
        return FABRIC_WAITING;
    case TAKE:
        return poll_take(t, part);
    case TAKEN:
        return t->world->kind == EXCHANGE_STATE ? poll_pulled(t) : done(t);
    case PULLED:
        return poll_pulled(t);
    case PULLING:
        return poll_pulling(t, part);
    case JOINED:
        return poll_joined(t);
    case ALONE:
        break;
    }
    return poll_alone(t, part);
}

/* Of 0 .. size-1 those that are not here; only their number where ranks are others. */
static void add_missing(const struct sim_world *w, int size, struct awaited *awaited)
{
    bool known = w->trainers[w->n_trainers - 1]->f.rank < size;
    for (int rank = 0, i = 0, left = size - w->n_trainers; left > 0 && rank < size; rank++) {
        if (known && i < w->n_trainers && w->trainers[i]->f.rank == rank) {
            i++;
            continue;
        }
        awaited_add(awaited, known ? rank : -1);
        left--;
    }
}

/* In whose hands it is that t goes on. */
static bool holds_up(const struct trainer *o, const struct trainer *t, bool formed)
{
    if (t->life == FINAL)
        return o->life != FINAL;
    if (!formed)
        return o->life == OPENED;
    if (t->phase == PULLED)
        return o->phase == TAKE || o->phase == TAKEN;
    return o->life == MEMBER && o->phase != ARRIVED;
}

static struct awaited waits_of(const struct trainer *t)
{
    const struct sim_world *w = t->world;
    struct awaited awaited = {.wait = FABRIC_WAIT_ROUND, .kind = t->x.kind, .round = w->round};
    bool formed = count_life(w, MEMBER) > 0;
    int size = 0;
    if (t->phase == REDUCING || t->phase == ALONE || t->phase == PULLING) {
        awaited.wait = FABRIC_WAIT_LINK;
        return awaited;
    }
    if (t->life == WAITING)
        awaited.wait = FABRIC_WAIT_START;
    else if (t->x.final)
        awaited.wait = FABRIC_WAIT_FINISH;
    for (int i = 0; i < w->n_trainers; i++) {
        const struct trainer *o = w->trainers[i];
        size = o->life == WAITING && o->f.size > size ? o->f.size : size;
        if (o != t && holds_up(o, t, formed))
            awaited_add(&awaited, o->f.rank);
    }
    if (awaited.wait == FABRIC_WAIT_START && !formed)
        add_missing(w, size, &awaited);
    return awaited;
}

/* Time is the caller's; there is only to say for whom. */
static void sim_wait(struct fabric *f, uint64_t until_ns)
{
    struct trainer *t = trainer_of(f);
    (void)until_ns;
    if (t->life == DEAD || t->phase == IDLE)
        return;
    struct awaited awaited = waits_of(t);
    fabric_say(f, &awaited);
}

static void world_remove(struct trainer *t)
{
    struct sim_world *w = t->world;
    int i = 0;
    while (i < w->n_trainers && w->trainers[i] != t)
        i++;
    if (i == w->n_trainers)
        return;
    round_drop(t);
    w->n_trainers--;
    memmove(w->trainers + i, w->trainers + i + 1,
            (size_t)(w->n_trainers - i) * sizeof *w->trainers);
    t->life = DEAD;
    world_changed(w);
    world_turn(w);
}

void sim_world_kill(struct sim_world *w, struct fabric *f)
{
    assert(trainer_of(f)->world == w);
    world_remove(trainer_of(f));
    f->status = DESCANT_SYSTEM;
}

/* Somebody still reads its outer vectors: they stay in the world. */
static void bury_outer(struct trainer *t)
{
    struct sim_world *w = t->world;
    bool held = false;
    for (int i = 0; i < w->n_trainers; i++)
        held = held || w->trainers[i]->from == t;
    for (int i = 0; held && i < 2; i++) {
        struct block *grave = memory_take(sizeof *grave + 1);
        if (!grave)
            return;
        grave->memory = t->f.outer[i];
        grave->next = w->graves;
        w->graves = grave;
        t->f.outer[i] = NULL;
    }
}

static void sim_close(struct fabric *f)
{
    struct trainer *t = trainer_of(f);
    world_remove(t);
    bury_outer(t);
    for (int i = 0; i < t->world->n_trainers; i++)
        if (t->world->trainers[i]->from == t)
            t->world->trainers[i]->from = NULL;
    trainer_stop(t);
    blocks_give(&t->segments);
    memory_give(t);
}

const struct fabric_type fabric_sim = {
    .name = "sim",
    .address = "sim",
    .help = "any number of simulated trainers in one thread, in virtual time",
    .open = sim_open,
    .alloc = sim_alloc,
    .share = sim_share,
    .start = sim_start,
    .begin = sim_begin,
    .poll = sim_poll,
    .wait = sim_wait,
    .close = sim_close,
};
