/* SPDX-License-Identifier: MIT */
/* The fabric of simulated trainers: what its table calls. Rounds are in sim_round.c; here each
 * trainer opens, begins, and takes what has become ready for it.
 *
 * A part of a joiner's state lies in one buffer of the world, held until its next poll. Outer
 * vectors that somebody holds outlive their trainer, until the world's end. */
#include "fabric/sim_world.h"

#include <string.h>

/* --- from open to the first exchange --- */

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
    t->f.many_hosts = w->options.per_host > 0;
    t->f.wire = options->wire;
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
    return blocks_alloc(&trainer_of(f)->segments, at, n, &f->log);
}

static descant_status sim_share(struct fabric *f, const char *name, size_t bytes, void **block)
{
    struct block **shares = world_shares(trainer_of(f)->world, f->rank);
    if (!shares)
        return log_fail(&f->log, DESCANT_MEMORY, "no memory for block \"%s\"", name);
    return blocks_share(shares, name, bytes, block, &f->log);
}

static void trainer_stop(struct trainer *t)
{
    memory_give(t->f.contribution);
    memory_give(t->f.outer[0]);
    memory_give(t->f.outer[1]);
    memory_give(t->out);
    memory_give(t->owed);
    t->f.contribution = t->f.outer[0] = t->f.outer[1] = t->out = t->owed = NULL;
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
        descant_status status = manifest_check(w->manifest,
                                               start->manifest ? start->manifest : "", &f->log);
        if (status)
            return status;
        if (start->n != w->n || start->room != w->room || !start->center != !w->center)
            return log_fail(&f->log, DESCANT_MISMATCH,
                            "the job has vectors of %zu floats, this trainer of %zu", w->n,
                            start->n);
    }
    bool had = w->manifest || world_shape(w, start);
    if (had && !start->in_place)
        had = (f->contribution = world_floats(start->room)) != NULL;
    for (int i = 0; had && i < start->n_outer && i < 2; i++)
        had = (f->outer[i] = world_floats(start->n)) != NULL;
    if (had && f->wire != WIRE_F32)
        had = (t->owed = world_floats(start->n)) != NULL;
    if (had && start->center)
        had = (t->out = world_floats(start->n < ELASTIC_CHUNK ? start->n : ELASTIC_CHUNK)) != NULL;
    if (had && start->rows_bytes)
        had = world_reserve_rows(w, start->rows_bytes);
    if (!had) {
        trainer_stop(t);
        return log_fail(&f->log, DESCANT_MEMORY, "no memory for rounds of %zu floats",
                        start->n);
    }
    f->center = w->center;
    t->in_place = start->in_place;
    t->threads = start->threads;
    t->n_outer = start->n_outer;
    t->rows_bytes = start->rows_bytes;
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
    const struct limits limits = {w->n, w->room, t->started, t->life != OPENED,
                                  t->f.center != NULL};
    return exchange_check(x, &limits, log);
}

static descant_status sim_begin(struct fabric *f, const struct exchange *exchange)
{
    struct trainer *t = trainer_of(f);
    struct sim_world *w = t->world;
    descant_status status = begin_check(t, exchange);
    if (status)
        return status;
    bool pulling = t->phase == PULLING || t->phase == JOINED;
    t->had_state = exchange->final && (t->had_state || trainer_settled(t));
    trainer_drop(t);
    t->x = *exchange;
    f->own_bad = false;
    if (exchange->final)
        trainer_become(t, FINAL);
    else if (t->life != MEMBER || (pulling && exchange->kind == EXCHANGE_STATE))
        trainer_become(t, WAITING);
    t->phase = ARRIVED;
    if (t->life == MEMBER && exchange->kind == EXCHANGE_ELASTIC && !world_caller(w))
        trainer_go_alone(t);
    if (w->collective && t->life == MEMBER)
        world_admit(w);
    world_turn(w);
    if (!w->collective && world_count(w, MEMBER))
        world_admit(w);
    return DESCANT_OK;
}

/* --- exchanges --- */

static void give_state(struct trainer *t, const struct trainer *source, const float *out,
                       struct fabric_part *part)
{
    *part = (struct fabric_part){.kind = EXCHANGE_STATE, .out = out, .n = source->x.n,
                                 .own = source == t, .note = source->x.note};
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

static int count_settled(const struct sim_world *w)
{
    int n = 0;
    for (int i = 0; i < w->n_trainers; i++)
        n += trainer_settled(w->trainers[i]);
    return n;
}

/* NULL: nobody now; beside a centre, while a state is on its way to it. */
static struct trainer *pull_source(const struct sim_world *w)
{
    if (!w->collective && w->reducing)
        return NULL;
    for (int i = 0; i < w->n_trainers; i++) {
        struct trainer *t = w->trainers[i];
        bool in_state = t->phase != IDLE && t->phase != ALONE && t->x.kind == EXCHANGE_STATE;
        if (trainer_settled(t) && (w->collective ? t->phase == ARRIVED : !in_state))
            return t;
    }
    return count_settled(w) ? NULL : world_standby(w);
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
        vector_gather(source->x.in, (struct chunk){0, n}, w->pull, false);
    else
        gather_resting(source, n, w->pull);
    w->puller = t;
    t->pulled = w->round;
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
    struct sim_world *w = t->world;
    w->puller = NULL;
    if (!w->collective && (w->reducing || w->round != t->pulled)) {
        t->phase = PULLING;         /* a state was given meanwhile */
        return FABRIC_WORKED;
    }
    t->f.joined = true;
    if (t->life != MEMBER)
        trainer_become(t, MEMBER);
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
        *part = (struct fabric_part){.kind = EXCHANGE_MEAN, .out = w->result, .n = t->x.n,
                                     .members = w->group};
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

static enum fabric_progress alone_bad(struct trainer *t)
{
    t->f.own_bad = true;
    atomic_fetch_add_explicit(&t->f.bad, 1, memory_order_relaxed);
    return done(t);
}

static enum fabric_progress poll_alone(struct trainer *t, struct fabric_part *part)
{
    const struct exchange *x = &t->x;
    if (t->world->now < t->ready_ns)
        return FABRIC_WAITING;
    if (!t->looked && !vector_finite(x->in, x->n))
        return alone_bad(t);
    t->looked = true;
    if (t->at >= x->n)
        return done(t);
    size_t left = x->n - t->at;
    struct chunk chunk = {t->at, left < ELASTIC_CHUNK ? left : ELASTIC_CHUNK};
    if (!vector_elastic(t->f.center, x->in, chunk, (float)x->alpha, t->out))
        return alone_bad(t);
    *part = (struct fabric_part){.kind = EXCHANGE_ELASTIC, .out = t->out, .from = chunk.from,
                                 .n = chunk.n};
    t->at += chunk.n;
    atomic_fetch_add_explicit(&t->f.bytes, 2 * chunk.n * sizeof(float), memory_order_relaxed);
    return FABRIC_PART;
}

static enum fabric_progress poll_idle(const struct trainer *t)
{
    const struct sim_world *w = t->world;
    if (t->life == MEMBER && !w->reducing && w->collective && world_count(w, WAITING))
        return FABRIC_CALLED;
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

/* --- waiting and leaving --- */

/* Time is the caller's; there is only to say for whom. */
static void sim_wait(struct fabric *f, uint64_t until_ns)
{
    struct trainer *t = trainer_of(f);
    (void)until_ns;
    if (t->life == DEAD || t->phase == IDLE)
        return;
    struct awaited awaited = trainer_waits(t);
    fabric_say(f, &awaited);
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
    .rows = &sim_rows,
    .open = sim_open,
    .alloc = sim_alloc,
    .share = sim_share,
    .start = sim_start,
    .begin = sim_begin,
    .poll = sim_poll,
    .wait = sim_wait,
    .close = sim_close,
};
