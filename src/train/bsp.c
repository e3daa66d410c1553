/* SPDX-License-Identifier: MIT */
/* Workers of all trainers are ML modules of one segment, in memory that the trainers
 * share: each pins the newest model, computes a gradient on that, adds the gradient, and
 * waits for no other worker. The trainer that reports has control: a thread reads the
 * sums out, makes one step of the optimizer by their mean, and stores the model. Its
 * replica is the global model; the others' are not used until the end.
 *
 *   1. The first trainer makes the segment before any trainer starts. When the trainer
 *      that has control dies, the next reporter takes the segment over and goes on with
 *      the newest model in it, and with the gradients that were given meanwhile: it is
 *      the same run. The optimizer's state is shared, too, and stays as an unfinished
 *      step has left it. The gradients that were read out for that step are lost.
 *   2. A superstep holds `lock`. A checkpoint's copy is of exactly one superstep, made
 *      for the checkpoint, so that it has all gradients that were given before.
 *   3. Training is over when no slot has an owner. A worker leaves its slot as it ends,
 *      and the slots of the dead are swept. Control then makes the last superstep, and
 *      sets `over` on the board.
 *
 * With every=K the worker that adds the K-th gradient wakes control, which sleeps on a
 * futex. */
#include "train/bsp.h"

#include "bsp/control.h"
#include "bsp/ml.h"
#include "train/monitor.h"

#include <string.h>

#define RELAXED memory_order_relaxed
#define TICK_NS UINT64_C(20000000)

struct bsp {
    struct trainer *t;
    struct board_bsp *board;            /* in t's */
    struct segment_options segment;     /* without a log, for an heir that comes too
                                           early */
    struct segment_part *parts;
    struct descant_ml *modules[BOARD_WORKERS];
    struct descant_ml *reader;          /* while a copy of the model is read */
    float *copy;                        /* (n, and the state) of a checkpoint; NULL: none
                                           is kept */
    size_t n_state;
    _Atomic bool left;                  /* this trainer's workers have left; release,
                                           acquire */
    pthread_t thread;
    bool started;
    struct ticket_lock lock;            /* guards control, t->w and t->state where there
                                           is one, and what this trainer writes on the
                                           board then */
    struct control *control;
    struct local *local;                /* control's; figures and sweeps are the
                                           thread's */
    double lr;                          /* of the step that is made; as control */
    uint64_t due_ns;                    /* the thread's, and before it the main
                                           thread's */
};

static bool is_over(const struct bsp *b)
{
    return atomic_load_explicit(&b->board->over, memory_order_acquire) != 0;
}

/* --- control --- */

static uint64_t period_ns(const struct bsp *b)
{
    return (uint64_t)(b->t->options->plan_period_s * 1e9);
}

/* Called by control_superstep for each piece of the model, in order. The rate is fixed
 * with the first piece, so that one step has one rate. */
static void step(void *of, const struct control_piece *piece)
{
    struct bsp *b = of;
    struct trainer *t = b->t;
    const struct optimizer_piece p = {piece->w,  piece->g, t->state,
                                      piece->at, piece->n, t->n};
    if (piece->at == 0)
        b->lr = t->options->lr * get(&b->board->rate);
    optimizer_step_piece(&t->optimizer, &p, b->lr, piece->step);
    atomic_store(&t->steps, piece->step);
}

/* Called while no model is being stored. */
static void take_newest(struct bsp *b)
{
    struct segment_header *h = b->segment.memory;
    uint64_t newest = atomic_load_explicit(&h->newest, memory_order_acquire);
    memcpy(b->t->w, segment_copy(h, newest_copy(newest)), b->t->n * sizeof(float));
}

/* Makes the segment, or takes it over from a trainer that died. DUPLICATE: its keeper
 * lives. */
static descant_status take_control(struct bsp *b)
{
    struct trainer *t = b->t;
    descant_status status = local_open(&b->local, &b->segment);
    if (status != DESCANT_OK)
        return status;
    if (local_taken_over(b->local))
        take_newest(b);
    uint64_t steps = local_taken_over(b->local) ? atomic_load(&b->board->steps)
                                                : atomic_load(&t->steps);
    const struct control_options options = {
        .locals = &b->local, .n_locals = 1, .n = t->n, .w = t->w,
        .version = local_version(b->local), .steps = steps, .bound = b->segment.bound,
        .since = b->segment.version, .step = step, .of = b, .log = &t->log,
    };
    atomic_store(&t->steps, steps);
    atomic_store(&b->board->steps, steps);
    ticket_take(&b->lock);
    status = control_create(&b->control, &options);
    ticket_give(&b->lock);
    b->due_ns = clock_now_ns() + period_ns(b);
    return status;
}

/* Gradients that were given and are in no superstep: a trainer that died had read them
 * out, or a step by them has broken the model. */
static void count_lost(struct bsp *b)
{
    struct segment_header *h = b->segment.memory;
    uint64_t given = 0, in = atomic_load_explicit(&b->board->gradients, RELAXED);
    for (unsigned s = 0; s < h->slots; s++)
        given += atomic_load_explicit(&segment_slot(h, s)->gradients, RELAXED);
    atomic_store_explicit(&b->board->lost, given > in ? given - in : 0, RELAXED);
}

static void end(struct bsp *b)
{
    if (b->local)
        local_end(b->local);
    count_lost(b);
    atomic_store_explicit(&b->board->over, 1, memory_order_release);
    futex_wake_all(&b->board->over);
}

static void add(_Atomic uint64_t *figure, uint64_t n)
{
    atomic_store_explicit(figure, atomic_load_explicit(figure, RELAXED) + n, RELAXED);
}

static void rise(_Atomic uint64_t *most, uint64_t to)
{
    if (to > atomic_load_explicit(most, RELAXED))
        atomic_store_explicit(most, to, RELAXED);
}

/* Reads the sums out, makes the step, and stores the model; no step if no gradient came.
 * A model that is no longer finite stops the run and ends the plan. */
static void superstep(struct bsp *b)
{
    struct board_bsp *on = b->board;
    struct superstep s;
    char where[96], advice[96];
    uint64_t cpu = clock_thread_cpu_ns();
    ticket_take(&b->lock);
    atomic_store_explicit(&on->taken, atomic_load_explicit(&on->added, RELAXED), RELAXED);
    descant_status status = control_superstep(b->control, &s);
    if (status == DESCANT_OK && s.stepped) {
        add(&on->supersteps, 1);
        add(&on->gradients, s.sums.gradients);
        add(&on->examples, s.sums.examples);
        add(&on->lag, s.sums.lag);
        rise(&on->lag_most, s.sums.lag_most);
        rise(&on->lag_lately, s.sums.lag_most);
        atomic_store_explicit(&on->steps, control_steps(b->control), RELAXED);
    }
    put(&on->cpu_s, get(&on->cpu_s) + (double)(clock_thread_cpu_ns() - cpu) * 1e-9);
    ticket_give(&b->lock);
    if (status == DESCANT_OK)
        return;
    if (board_halt(b->t->board, STOP_NAN)) {
        diverged_where(b->t, where, sizeof where);
        diverged_advice(b->t, advice, sizeof advice);
        board_explain(b->t->board, "superstep %llu has broken the model: %s; %s",
                      (unsigned long long)atomic_load(&on->supersteps) + 1, where,
                      advice);
    }
    end(b);
}

static bool is_due(const struct bsp *b)
{
    uint64_t every = (uint64_t)b->t->options->plan_every;
    uint32_t waiting = atomic_load_explicit(&b->board->added, RELAXED) -
                       atomic_load_explicit(&b->board->taken, RELAXED);
    return every ? waiting >= every : clock_now_ns() >= b->due_ns;
}

/* Until the next superstep may be due, or a tick. */
static void rest(struct bsp *b)
{
    uint64_t until = clock_now_ns() + TICK_NS;
    uint32_t added = atomic_load_explicit(&b->board->added, RELAXED);
    if (!b->t->options->plan_every)
        clock_sleep_until(b->due_ns < until ? b->due_ns : until);
    else if (!is_due(b))
        futex_wait(&b->board->added, added, until);
}

/* False while this trainer's own workers train: only then are slots of the dead swept,
 * and the others' counted. */
static bool all_left(struct bsp *b)
{
    struct local_figures f;
    if (!atomic_load_explicit(&b->left, memory_order_acquire))
        return false;
    local_sweep(b->local);
    local_figures(b->local, &f);
    return f.attached == 0;
}

/* True: the trainer that had control is dead, and this one has it now. */
static bool inherits(struct bsp *b)
{
    if (!board_reports(b->t->board, b->t->seat))
        return false;
    descant_status status = take_control(b);
    if (status == DESCANT_OK || status == DESCANT_DUPLICATE)
        return status == DESCANT_OK;
    board_stop(b->t->board, STOP_FAILED, "trainer %d: %s", b->t->rank,
               descant_last_error());
    end(b);
    return false;
}

/* Every trainer has this thread. Where another has control it looks for that one's death;
 * where this one has it, it makes supersteps until no slot has an owner, then the last
 * one. */
static void *control(void *of)
{
    struct bsp *b = of;
    nn_thread_init();
    while (!is_over(b)) {
        if (!b->control && !inherits(b)) {
            futex_wait(&b->board->over, 0, clock_now_ns() + TICK_NS);
        } else if (is_due(b)) {
            b->due_ns = clock_now_ns() + period_ns(b);
            superstep(b);
        } else if (all_left(b)) {
            superstep(b);
            end(b);
        } else {
            rest(b);
        }
    }
    return NULL;
}

/* --- opening --- */

/* One block: the segment, and behind it the optimizer's state. */
static descant_status share(struct bsp *b)
{
    struct trainer *t = b->t;
    uint64_t bytes = segment_bytes(&b->segment);
    void *block;
    if (bytes == 0)
        return log_fail(&t->log, DESCANT_INVALID, "%s", descant_last_error());
    descant_status status = descant_share(
        t->job, "train.bsp", bytes + SEGMENT_ROUND + b->n_state * sizeof(float), &block);
    if (status == DESCANT_MEMORY)
        log_fail(&t->log, status,
                 "the segment takes %.2f GiB, for each worker four times the %zu "
                 "parameters; fewer --workers make it smaller",
                 (double)bytes / (double)(1 << 30), t->n);
    if (status != DESCANT_OK)
        return status;
    uintptr_t at = ((uintptr_t)block + SEGMENT_ROUND - 1) / SEGMENT_ROUND * SEGMENT_ROUND;
    b->segment.memory = (void *)at;
    t->state = (float *)(at + bytes);
    return DESCANT_OK;
}

/* Waits for the first trainer to make the segment. MEMORY also stands for another end of
 * the run, whose reason is on the board. */
static descant_status await(struct bsp *b)
{
    struct trainer *t = b->t;
    uint64_t now = clock_now_ns(), until = now + (uint64_t)(t->options->start_s * 1e9);
    for (uint32_t bell;
         bell = atomic_load(&b->board->made.bell), !board_done(&b->board->made);) {
        if (board_stopped(t->board))
            return log_fail(&t->log, DESCANT_MEMORY, "%s", board_why(t->board));
        if ((now = clock_now_ns()) > until)
            return log_fail(&t->log, DESCANT_TIMEOUT,
                            "trainer 0 has not made the segment in %g s",
                            t->options->start_s);
        futex_wait(&b->board->made.bell, bell, now + TICK_NS);
    }
    return DESCANT_OK;
}

descant_status bsp_open(struct trainer *t)
{
    size_t n;
    const struct tensor *tensors = model_tensors(t->model, &n);
    struct bsp *b = t->bsp = memory_take(sizeof *b);
    if (!b)
        return log_fail(&t->log, DESCANT_MEMORY, "no memory for the plan bsp");
    b->t = t;
    b->board = &t->board->bsp;
    b->parts = memory_take_array(n, sizeof *b->parts);
    b->n_state = optimizer_floats(&t->optimizer, t->n);
    if (t->options->checkpoint)
        b->copy = memory_take_array(t->n + b->n_state, sizeof *b->copy);
    if (!b->parts || (t->options->checkpoint && !b->copy))
        return log_fail(&t->log, DESCANT_MEMORY, "no memory for a copy of the model");
    for (size_t k = 0; k < n; k++) {
        snprintf(b->parts[k].name, sizeof b->parts[k].name, "%s", tensors[k].name);
        b->parts[k].n = tensors[k].n;
    }
    b->segment = (struct segment_options){
        .name = "train",
        .slots = (int)(t->options->trainers * t->options->workers) + 1,
        .bound = (uint64_t)t->options->plan_bound,
        .parts = b->parts,
        .n_parts = (uint32_t)n,
        .model = t->w,
        .version = 1,
    };
    return share(b);
}

descant_status bsp_meet(struct bsp *b)
{
    descant_status status;
    if (b->t->rank == 0) {
        b->segment.log = &b->t->log;
        status = take_control(b);
        b->segment.log = NULL;
        if (status != DESCANT_OK)
            board_stop(b->t->board, STOP_FAILED, "%s", descant_last_error());
        board_end(&b->board->made, status == DESCANT_OK);
    } else {
        status = await(b);
    }
    if (status != DESCANT_OK)
        return status;
    for (int k = 0; k < (int)b->t->options->workers && status == DESCANT_OK; k++)
        status = ml_attach_at(&b->modules[k], b->segment.memory);
    return status == DESCANT_OK
               ? status
               : log_fail(&b->t->log, status, "%s", descant_last_error());
}

void bsp_close(struct bsp *b)
{
    if (!b)
        return;
    for (int k = 0; k < BOARD_WORKERS; k++)
        bsp_leave(b, k);
    bsp_let_go(b);
    control_destroy(b->control);
    local_close(b->local);
    memory_give(b->parts);
    memory_give(b->copy);
    memory_give(b);
}

descant_status bsp_start(struct bsp *b)
{
    b->started = pthread_create(&b->thread, NULL, control, b) == 0;
    return b->started ? DESCANT_OK
                      : log_fail(&b->t->log, DESCANT_SYSTEM, "no thread for control");
}

/* --- a worker --- */

const float *bsp_model(struct bsp *b, int worker)
{
    struct descant_ml_model model;
    return descant_ml_pin(b->modules[worker], &model) == DESCANT_OK ? model.values : NULL;
}

void bsp_add(struct bsp *b, int worker, const float *gradient, size_t examples,
             double rate)
{
    struct seat *seat = b->t->seat;
    struct board_bsp *on = b->board;
    uint32_t every = (uint32_t)b->t->options->plan_every;
    put(&on->rate, rate);
    switch (descant_ml_add(b->modules[worker], gradient, examples)) {
    case DESCANT_OK:            /* the one that makes the number wakes control */
        if (every && atomic_fetch_add_explicit(&on->added, 1, RELAXED) + 1 -
                             atomic_load_explicit(&on->taken, RELAXED) >= every)
            futex_wake_all(&on->added);
        break;
    case DESCANT_STALE:
        atomic_fetch_add_explicit(&seat->stale, 1, RELAXED);
        break;
    case DESCANT_NOT_FINITE:
        if (atomic_fetch_add_explicit(&seat->not_finite, 1, RELAXED) == 0)
            log_say(&b->t->log, DESCANT_WARNING, "%s", descant_last_error());
        break;
    default:        /* it is over */
        break;
    }
}

void bsp_leave(struct bsp *b, int worker)
{
    descant_ml_detach(b->modules[worker]);
    b->modules[worker] = NULL;
}

/* --- the reporter --- */

bool bsp_ready(struct bsp *b)
{
    if (!b)
        return true;
    ticket_take(&b->lock);
    bool has = b->control != NULL;
    ticket_give(&b->lock);
    return has;
}

const float *bsp_look(struct trainer *t)
{
    struct bsp *b = t->bsp;
    struct descant_ml_model model;
    if (b && !is_over(b) && ml_attach_at(&b->reader, b->segment.memory) == DESCANT_OK &&
        descant_ml_pin(b->reader, &model) == DESCANT_OK)
        return model.values;
    return t->w;
}

void bsp_let_go(struct bsp *b)
{
    if (!b)
        return;
    descant_ml_detach(b->reader);
    b->reader = NULL;
}

struct dense bsp_copy(struct trainer *t)
{
    struct bsp *b = t->bsp;
    struct dense copy = {t->w, t->state, atomic_load(&t->steps)};
    if (!b || is_over(b))
        return copy;
    superstep(b);
    ticket_take(&b->lock);
    memcpy(b->copy, t->w, t->n * sizeof *b->copy);
    memcpy(b->copy + t->n, t->state, b->n_state * sizeof *b->copy);
    copy.steps = atomic_load(&t->steps);
    ticket_give(&b->lock);
    copy.w = b->copy;
    copy.state = b->copy + t->n;
    return copy;
}

/* --- the end --- */

/* Leaves the workers' slots, and waits until control, here or elsewhere, has made the
 * last superstep. */
void bsp_finish(struct bsp *b)
{
    if (!b)
        return;
    for (int k = 0; k < BOARD_WORKERS; k++)
        bsp_leave(b, k);
    atomic_store_explicit(&b->left, true, memory_order_release);
    if (b->started)
        pthread_join(b->thread, NULL);
    else if (b->control)
        end(b);
    b->started = false;
    if (!b->control && is_over(b))
        take_newest(b);
    /* the first trainer here saves */
    atomic_store(&b->t->steps, atomic_load(&b->board->steps));
}
