/* SPDX-License-Identifier: MIT */
/* A job of one trainer. Nothing is sent, yet every exchange has the effect that it would
 * have among many, so that a plan behaves alone as in company: the mean of one is a copy,
 * the state is the trainer's own, and the elastic exchange really moves its centre,
 *     W <- W + alpha (w - W),
 * one chunk a poll. A contribution with NaN or Inf is left out: the exchange is done
 * without a part and the centre keeps its values.
 *
 * One thread, no waiting, nothing taken after start. */
#include "fabric/fabric.h"
#include "kernels/vector.h"
#include "machine/blocks.h"

enum self_phase { SELF_IDLE, SELF_BEGUN, SELF_GIVING, SELF_LAST };

struct self {
    struct fabric f;
    struct memory_block *segments, *shares;
    bool started;
    bool had_state;
    size_t n;                   /* floats of the flat vector */
    size_t room;
    float *result;              /* room floats, where contributions are read in place */
    float *out;                 /* one chunk, for elastic exchanges */
    struct exchange x;
    enum self_phase phase;
    size_t at;                  /* elastic: the next chunk */
};

static struct self *self_of(struct fabric *f)
{
    return (struct self *)(void *)f;
}

static descant_status self_open(struct fabric **out, const struct fabric_options *options)
{
    if (options->rank > 0)
        return log_fail(options->log, DESCANT_BAD_RANK,
                        "rank %d: a job \"self\" has rank 0 alone", options->rank);
    if (options->size > 1)
        return log_fail(options->log, DESCANT_BAD_SIZE,
                        "size %d: a job \"self\" has one trainer", options->size);
    struct self *self = memory_take(sizeof *self);
    if (!self)
        return log_fail(options->log, DESCANT_MEMORY, "no memory for the job");
    self->f.type = &fabric_self;
    if (options->log)
        self->f.log = *options->log;
    self->f.log.rank = 0;
    self->f.size = 1;
    *out = &self->f;
    return DESCANT_OK;
}

static float *self_alloc(struct fabric *f, size_t at, size_t n)
{
    return blocks_alloc(&self_of(f)->segments, at, n, &f->log);
}

static descant_status self_share(struct fabric *f, const char *name, size_t bytes,
                                 void **block)
{
    return blocks_share(&self_of(f)->shares, name, bytes, block, &f->log);
}

static float *floats(size_t n)
{
    return memory_take_array(n ? n : 1, sizeof(float));
}

static void self_stop(struct self *self)
{
    memory_give(self->f.contribution);
    memory_give(self->result);
    memory_give(self->f.center);
    memory_give(self->out);
    memory_give(self->f.outer[0]);
    memory_give(self->f.outer[1]);
    self->f.contribution = self->f.center = self->f.outer[0] = self->f.outer[1] = NULL;
    self->result = self->out = NULL;
}

static descant_status self_start(struct fabric *f, const struct fabric_start *start)
{
    struct self *self = self_of(f);
    if (self->started)
        return log_fail(&f->log, DESCANT_ORDER, "the fabric has been started");
    bool had = true;
    if (start->in_place && start->collective)
        had = (self->result = floats(start->room)) != NULL;
    else if (!start->in_place)
        had = (f->contribution = floats(start->room)) != NULL;
    if (had && start->center)
        had = (f->center = floats(start->n)) && (self->out = floats(ELASTIC_CHUNK));
    for (int i = 0; had && i < start->n_outer && i < 2; i++)
        had = (f->outer[i] = floats(start->n)) != NULL;
    if (!had) {
        self_stop(self);
        return log_fail(&f->log, DESCANT_MEMORY, "no memory for rounds of %zu floats",
                        start->n);
    }
    self->n = start->n;
    self->room = start->room;
    self->started = true;
    f->machine_threads = start->threads;
    return DESCANT_OK;
}

static descant_status self_begin(struct fabric *f, const struct exchange *exchange)
{
    struct self *self = self_of(f);
    const struct limits limits = {self->n, self->room, self->started, self->had_state,
                                  f->center != NULL};
    descant_status status = exchange_check(exchange, &limits, &f->log);
    if (status)
        return status;
    self->had_state |= exchange->kind == EXCHANGE_STATE;
    self->x = *exchange;
    self->phase = SELF_BEGUN;
    self->at = 0;
    f->own_bad = false;
    if (!atomic_load_explicit(&f->members, memory_order_relaxed)) {
        atomic_store_explicit(&f->members, 1, memory_order_relaxed);
        atomic_fetch_add_explicit(&f->epoch, 1, memory_order_relaxed);
    }
    return DESCANT_OK;
}

static enum fabric_progress self_done(struct self *self)
{
    self->phase = SELF_IDLE;
    return FABRIC_DONE;
}

static enum fabric_progress self_bad(struct self *self)
{
    self->f.own_bad = true;
    atomic_fetch_add_explicit(&self->f.bad, 1, memory_order_relaxed);
    notes_add(self->f.notes, DESCANT_EVENT_BAD, self->f.rank);
    return self_done(self);
}

static enum fabric_progress self_mean(struct self *self, struct fabric_part *part)
{
    const struct exchange *x = &self->x;
    const float *out = NULL;
    /* the last mean, of one: the trainer has the result */
    if (!self->result && !self->f.contribution)
        return vector_finite(x->in, x->n) ? self_done(self) : self_bad(self);
    bool whole = !self->result && vector_reach(x->in, 0, &out) >= x->n && out;
    if (!whole) {
        float *into = self->result ? self->result : self->f.contribution;
        if (!vector_gather(x->in, (struct chunk){0, x->n}, into, false))
            return self_bad(self);
        out = into;
    } else if (!vector_finite(x->in, x->n)) {
        return self_bad(self);
    }
    *part = (struct fabric_part){.kind = EXCHANGE_MEAN, .out = out, .n = x->n,
                                 .members = 1};
    self->phase = SELF_LAST;
    return FABRIC_PART;
}

static enum fabric_progress self_elastic(struct self *self, struct fabric_part *part)
{
    const struct exchange *x = &self->x;
    if (self->phase == SELF_BEGUN && !vector_finite(x->in, x->n))
        return self_bad(self);
    self->phase = SELF_GIVING;
    if (self->at >= x->n)
        return self_done(self);
    size_t left = x->n - self->at;
    struct chunk chunk = {self->at, left < ELASTIC_CHUNK ? left : ELASTIC_CHUNK};
    if (!vector_elastic(self->f.center, x->in, chunk, (float)x->alpha, self->out))
        return self_bad(self);
    *part = (struct fabric_part){.kind = EXCHANGE_ELASTIC, .out = self->out,
                                 .from = chunk.from, .n = chunk.n};
    self->at += chunk.n;
    return FABRIC_PART;
}

static enum fabric_progress self_state(struct self *self, struct fabric_part *part)
{
    if (self->f.center && !self->x.final)
        vector_gather(self->x.in, (struct chunk){0, self->x.n}, self->f.center, false);
    *part = (struct fabric_part){.kind = EXCHANGE_STATE, .n = self->x.n, .own = true,
                                 .note = self->x.note};
    for (int i = 0; i < 2; i++)
        part->outer[i] = self->f.outer[i];
    vector_reach(self->x.in, 0, &part->out);
    self->phase = SELF_LAST;
    return FABRIC_PART;
}

static enum fabric_progress self_poll(struct fabric *f, struct fabric_part *part)
{
    struct self *self = self_of(f);
    if (self->phase == SELF_IDLE)
        return FABRIC_WAITING;
    if (self->phase == SELF_LAST)
        return self_done(self);
    switch (self->x.kind) {
    case EXCHANGE_MEAN:
        return self_mean(self, part);
    case EXCHANGE_ELASTIC:
        return self_elastic(self, part);
    case EXCHANGE_STATE:
        break;
    }
    return self_state(self, part);
}

/* Only this trainer moves anything, so wait sleeps until the bound. */
static void self_wait(struct fabric *f, uint64_t until_ns)
{
    (void)f;
    if (until_ns)
        clock_sleep_until(until_ns);
}

static void self_close(struct fabric *f)
{
    struct self *self = self_of(f);
    self_stop(self);
    blocks_give(&self->segments);
    blocks_give(&self->shares);
    memory_give(self);
}

const struct fabric_type fabric_self = {
    .name = "self",
    .address = "self",
    .help = "one trainer, alone",
    .open = self_open,
    .alloc = self_alloc,
    .share = self_share,
    .start = self_start,
    .begin = self_begin,
    .poll = self_poll,
    .wait = self_wait,
    .close = self_close,
};
