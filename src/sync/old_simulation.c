/* SPDX-License-Identifier: MIT */
/* The driver of simulated jobs over the sim fabric, until simulation.c has them all. The
 * clock jumps from event to event: a trainer's step ends, or the fabric has something ready. At each moment first all steps that end then are made, in order
 * of rank, then all rounds are advanced, in order of rank, until nothing moves. A trainer that a
 * plan makes wait is blocked: its next step begins when its round is done.
 *
 * The gradient plan is the exception that it is everywhere: its exchange carries gradients, so
 * the driver talks to the fabric itself, as descant_mean does. A merge takes no virtual time.
 *
 * Rounds of rows go on beside, one after the other while there are steps. Who has made its steps
 * stays until all rows are everywhere; in plans that count steps it meanwhile waits in a final
 * exchange, as descant_finish does. */
#include "sync/old_simulation.h"

#include "sync/round.h"

#include <string.h>

struct trainer {
    struct fabric *fabric;
    struct replica replica;
    struct round round;
    struct tables tables;
    uint64_t rows_steps;        /* at the start of the last round of rows */
    bool round_made, started, dead, gone, blocked, mean_open, final_open;
    float *w, *g;
    float *own;                 /* attached memory */
    uint64_t t, t0;             /* steps made; a joiner counts from t0 */
    uint64_t step_ends_ns, stopped_ns, blocked_ns, rounds, begun_steps, merged_steps, gap_sum;
    struct rng rng;
};

struct old_simulation {
    struct old_simulation_options o;
    struct plan plan;
    struct sim_world *world;
    struct trainer *trainers;
};

static double of(const double *values, int i, double otherwise)
{
    return values ? values[i] : otherwise;
}

static void plan_step(struct old_simulation *s, int i, uint64_t now)
{
    struct trainer *x = &s->trainers[i];
    double chance = 1 + s->o.spread * (2 * rng_uniform(&x->rng) - 1);
    double seconds = s->o.step_s * of(s->o.slow, i, 1) * chance;
    x->step_ends_ns = now + (uint64_t)(seconds * 1e9);
}

/* ------------------------------------------------------------------ a trainer's coming */

static descant_status enter_tables(struct old_simulation *s, int i)
{
    struct trainer *x = &s->trainers[i];
    descant_status status = DESCANT_OK;
    char name[32];
    float *w;
    tables_init(&x->tables, x->fabric, &s->plan);
    if (s->o.rows_part > 0)
        x->tables.part_room = s->o.rows_part;
    for (size_t k = 0; k < s->o.n_tables && status == DESCANT_OK; k++) {
        snprintf(name, sizeof name, "table%zu", k);
        status = tables_add(&x->tables, name, s->o.tables[k].rows, s->o.tables[k].width, &w);
        if (status == DESCANT_OK && s->o.tables[k].state > 0)
            status = tables_add_state(&x->tables, w, s->o.tables[k].state, &w);
    }
    if (status == DESCANT_OK && s->o.rows != NULL)
        s->o.rows(s->o.context, i, 0, &x->tables);
    return status;
}

static descant_status enter(struct old_simulation *s, int i)
{
    struct trainer *x = &s->trainers[i];
    int late = 0;
    for (int k = 0; k < s->o.trainers; k++)
        late += of(s->o.join_s, k, 0) > 0;
    struct fabric_options options = {.rank = i, .size = s->o.trainers - late,
                                     .wire = (enum wire)s->plan.wire, .log = s->o.log,
                                     .context = s->world};
    if (of(s->o.join_s, i, 0) > 0)
        options.size = 0;
    replica_init(&x->replica);
    descant_status status = fabric_sim.open(&x->fabric, &options);
    size_t at;
    if (status == DESCANT_OK)
        status = replica_check(&x->replica, "w", s->o.n, &at, s->o.log);
    if (status != DESCANT_OK)
        return status;
    x->g = memory_take_array(s->o.n, sizeof(float));
    x->own = s->o.attached ? memory_take_array(s->o.n, sizeof(float)) : NULL;
    x->w = s->o.attached ? x->own : fabric_sim.alloc(x->fabric, at, s->o.n);
    if (x->g == NULL || x->w == NULL)
        return log_fail(s->o.log, DESCANT_MEMORY, "no memory for trainer %d", i);
    if (i == 0 && s->o.start != NULL)
        memcpy(x->w, s->o.start, s->o.n * sizeof(float));
    replica_add(&x->replica, x->w, s->o.n, s->o.attached);
    status = enter_tables(s, i);
    if (status != DESCANT_OK)
        return status;
    char plan[256];
    plan_text(&s->plan, plan, sizeof plan);
    char *manifest = replica_manifest(&x->replica, plan);
    manifest = manifest ? tables_manifest(&x->tables, manifest) : NULL;
    struct fabric_start start = round_needs(&s->plan, x->fabric, &x->replica);
    if (s->plan.what == PLAN_GRADIENT)
        start.room = start.n;
    start.manifest = manifest;
    start.threads = 1;
    start.rows_bytes = tables_part_bytes(&x->tables);
    status = manifest ? fabric_sim.start(x->fabric, &start) : DESCANT_MEMORY;
    memory_give(manifest);
    if (status == DESCANT_OK)
        status = tables_start(&x->tables);
    if (status == DESCANT_OK)
        status = replica_fix(&x->replica);
    if (status == DESCANT_OK)
        status = round_init(&x->round, &s->plan, x->fabric, &x->replica);
    x->round_made = status == DESCANT_OK;
    if (x->round_made)
        round_begin_state(&x->round, 0, false);
    return status;
}

static void begin(struct trainer *x, bool released)
{
    round_begin(&x->round, (double)(x->t - x->begun_steps), released);
    x->begun_steps = x->t;
    while (x->round.state == ROUND_SNAPSHOT && round_advance(&x->round) == ROUND_WORKED)
        ;
}

static void mean_begin(struct old_simulation *s, struct trainer *x)
{
    struct exchange exchange = {.kind = EXCHANGE_MEAN, .n = s->o.n, .weight = 1};
    x->round.copy_extent.n = s->o.n;
    exchange.in = &x->round.copy;
    memcpy(x->fabric->contribution, x->g, s->o.n * sizeof(float));
    fabric_sim.begin(x->fabric, &exchange);
    x->blocked = x->mean_open = true;
}

/* The state is here: training begins, for a joiner where the others are. */
static void started(struct old_simulation *s, int i, uint64_t now)
{
    struct trainer *x = &s->trainers[i];
    x->started = true;
    plan_step(s, i, now);
    bool collective = s->plan.what == PLAN_MEAN || s->plan.what == PLAN_BLOCK;
    if (!x->fabric->joined || s->plan.when != PLAN_EVERY || !collective)
        return;
    x->t0 = (uint64_t)s->plan.every;
    begin(x, s->plan.delay == 0);
    x->blocked = s->plan.delay == 0;
}

/* ------------------------------------------------------------------ steps */

static void apply(struct old_simulation *s, struct trainer *x)
{
    float rate = (float)s->o.rate;
    for (size_t k = 0; k < s->o.n; k++)
        x->w[k] -= rate * x->g[k];
}

static void make_step(struct old_simulation *s, int i)
{
    struct trainer *x = &s->trainers[i];
    x->t++;
    if (s->o.rows != NULL)
        s->o.rows(s->o.context, i, x->t, &x->tables);
    s->o.gradient(s->o.context, i, x->t, x->w, x->g, s->o.n);
    if (s->plan.what == PLAN_GRADIENT) {
        mean_begin(s, x);
    } else {
        apply(s, x);
        if (s->plan.when == PLAN_EVERY) {
            int due = plan_due(&s->plan, x->t0 + x->t);
            if (due != 0 && x->round.state != ROUND_IDLE) {
                round_release(&x->round);       /* its snapshot, if any, when it is merged */
                x->blocked = true;
            } else if (due & PLAN_DUE_SNAPSHOT) {
                begin(x, s->plan.delay == 0);
                x->blocked = s->plan.delay == 0;
            }
        }
    }
    x->stopped_ns = x->step_ends_ns;
    uint64_t die = s->o.die_at ? s->o.die_at[i] : 0;
    if (die != 0 && x->t >= die) {
        sim_world_kill(s->world, x->fabric);
        x->dead = true;
    }
    if (x->dead || x->t >= s->o.steps)
        tables_stop(&x->tables);
    plan_step(s, i, x->step_ends_ns);
}

static void unblock(struct old_simulation *s, int i, uint64_t now)
{
    struct trainer *x = &s->trainers[i];
    if (!x->blocked)
        return;
    x->blocked = false;
    x->blocked_ns += now - x->stopped_ns;
    plan_step(s, i, now);
}

static void round_done(struct old_simulation *s, int i, uint64_t now)
{
    struct trainer *x = &s->trainers[i];
    if (!x->started) {
        started(s, i, now);
        return;
    }
    if (x->final_open)
        return;
    x->rounds++;
    x->gap_sum += x->t - x->merged_steps;
    x->merged_steps = x->t;
    bool was_blocked = x->blocked;
    unblock(s, i, now);
    if (s->plan.when == PLAN_EVERY && s->plan.delay > 0 && was_blocked &&
        (plan_due(&s->plan, x->t0 + x->t) & PLAN_DUE_SNAPSHOT))
        begin(x, false);                     /* merge first, then snapshot */
}

/* ------------------------------------------------------------------ rounds */

static bool advance_mean(struct old_simulation *s, int i, uint64_t now)
{
    struct trainer *x = &s->trainers[i];
    struct fabric_part part;
    switch (fabric_sim.poll(x->fabric, &part)) {
    case FABRIC_PART:
        memcpy(x->g + part.from, part.out, part.n * sizeof(float));
        return true;
    case FABRIC_WORKED:
        return true;
    case FABRIC_DONE:
        x->mean_open = false;
        apply(s, x);
        round_done(s, i, now);
        return true;
    default:
        return false;
    }
}

static bool may_begin(const struct old_simulation *s, const struct trainer *x)
{
    uint64_t least = s->plan.gap > 1 ? (uint64_t)s->plan.gap : 1;
    return s->plan.when == PLAN_SHADOW && x->started && x->t - x->begun_steps >= least;
}

/* One piece of trainer i; false when nothing of it moves. */
static bool advance(struct old_simulation *s, int i, uint64_t now, bool *failed)
{
    struct trainer *x = &s->trainers[i];
    if (x->mean_open)
        return advance_mean(s, i, now);
    if (x->started && s->plan.what == PLAN_GRADIENT && !x->final_open)
        return false;
    switch (round_advance(&x->round)) {
    case ROUND_WORKED:
        return true;
    case ROUND_DONE:
        round_done(s, i, now);
        return true;
    case ROUND_CALLED:
        if (s->plan.when != PLAN_SHADOW)
            return false;
        begin(x, true);
        return true;
    case ROUND_RESTING:
        if (!may_begin(s, x))
            return false;
        begin(x, true);
        return true;
    case ROUND_FAILED:
        *failed = true;
        return false;
    default:
        return false;
    }
}

/* One piece of its tables. */
static bool advance_rows(struct trainer *x, uint64_t now, bool *failed)
{
    enum round_progress progress = x->started ? tables_advance(&x->tables) : ROUND_RESTING;
    *failed |= progress == ROUND_FAILED;
    if (progress == ROUND_WORKED || progress == ROUND_DONE)
        return true;
    bool due = progress == ROUND_CALLED || x->t > x->rows_steps || tables_stopping(&x->tables);
    if (!x->started || !due || !tables_can_begin(&x->tables))
        return false;
    x->rows_steps = x->t;
    tables_begin(&x->tables, now);
    return true;
}

static bool trained(const struct old_simulation *s, const struct trainer *x)
{
    return x->dead || (x->started && !x->blocked && x->t >= s->o.steps);
}

static bool finished(const struct old_simulation *s, const struct trainer *x)
{
    return x->dead || (trained(s, x) && tables_ended(&x->tables));
}

static descant_status settle(struct old_simulation *s, uint64_t now)
{
    bool failed = false;
    for (bool moved = true; moved;) {
        moved = false;
        for (int i = 0; i < s->o.trainers; i++) {
            struct trainer *x = &s->trainers[i];
            if (x->fabric == NULL || x->dead || x->gone)
                continue;
            while (advance(s, i, now, &failed) || advance_rows(x, now, &failed))
                moved = true;
            if (failed)
                return x->fabric->status;
        }
    }
    return DESCANT_OK;
}

/* In plans that count steps, one that has made its steps leaves, and the others go on; a shadow
 * serves to the end. Says whether anybody left. */
static bool leave_finished(struct old_simulation *s)
{
    bool left = false;
    for (int i = 0; s->plan.when == PLAN_EVERY && i < s->o.trainers; i++) {
        struct trainer *x = &s->trainers[i];
        if (x->fabric == NULL || x->gone || x->dead || !trained(s, x))
            continue;
        if (!finished(s, x)) {
            left = left || !x->final_open;
            if (!x->final_open)
                round_begin_state(&x->round, 0, true);
            x->final_open = true;
            continue;
        }
        sim_world_kill(s->world, x->fabric);
        x->gone = left = true;
    }
    return left;
}

static uint64_t join_ns(const struct old_simulation *s, int i)
{
    return (uint64_t)(of(s->o.join_s, i, 0) * 1e9);
}

/* The next moment at which something happens; UINT64_MAX: never. *left: who still trains. */
static uint64_t next_event(struct old_simulation *s, int *left)
{
    uint64_t next = sim_world_next(s->world);
    *left = 0;
    for (int i = 0; i < s->o.trainers; i++) {
        struct trainer *x = &s->trainers[i];
        if (x->fabric == NULL) {
            *left += 1;
            next = join_ns(s, i) < next ? join_ns(s, i) : next;
        } else if (!finished(s, x)) {
            *left += 1;
            if (x->started && !x->blocked && !trained(s, x) && x->step_ends_ns < next)
                next = x->step_ends_ns;
        }
    }
    return next;
}

static descant_status at_moment(struct old_simulation *s, uint64_t now)
{
    for (int i = 0; i < s->o.trainers; i++) {
        struct trainer *x = &s->trainers[i];
        descant_status status = DESCANT_OK;
        if (x->fabric == NULL && join_ns(s, i) <= now)
            status = enter(s, i);
        else if (x->fabric != NULL && x->started && !x->blocked && !trained(s, x) &&
                 x->step_ends_ns <= now)
            make_step(s, i);
        if (status != DESCANT_OK)
            return status;
    }
    descant_status status = settle(s, now);
    return status == DESCANT_OK && leave_finished(s) ? settle(s, now) : status;
}

static descant_status run(struct old_simulation *s)
{
    descant_status status = at_moment(s, 0);
    while (status == DESCANT_OK) {
        int left;
        uint64_t now = next_event(s, &left);
        if (left == 0)
            return DESCANT_OK;
        if (now == UINT64_MAX)
            return log_fail(s->o.log, DESCANT_SYSTEM, "%d trainers wait for ever", left);
        if (now > sim_world_now(s->world))
            sim_world_advance(s->world, now);
        status = at_moment(s, sim_world_now(s->world));
    }
    return status;
}

descant_status old_simulation_run(struct old_simulation **out, const struct old_simulation_options *o)
{
    struct plan plan;
    descant_status status = plan_parse(&plan, o->plan, o->log);
    if (status == DESCANT_OK && plan.when == PLAN_CONTROL)
        status = log_fail(o->log, DESCANT_UNSUPPORTED, "the plan bsp is not simulated");
    if (status != DESCANT_OK)
        return status;
    struct old_simulation *s = memory_take(sizeof *s);
    if (s == NULL)
        return DESCANT_MEMORY;
    s->o = *o;
    s->plan = plan;
    s->world = sim_world_create(&o->world);
    s->trainers = memory_take_array((size_t)o->trainers, sizeof *s->trainers);
    if (s->world == NULL || s->trainers == NULL) {
        old_simulation_destroy(s);
        return log_fail(o->log, DESCANT_MEMORY, "no memory for %d trainers", o->trainers);
    }
    for (int i = 0; i < o->trainers; i++)
        rng_init(&s->trainers[i].rng, o->world.seed * 1000003 + (uint64_t)i);
    status = run(s);
    if (status != DESCANT_OK) {
        old_simulation_destroy(s);
        return status;
    }
    *out = s;
    return DESCANT_OK;
}

struct old_simulation_trainer old_simulation_look(const struct old_simulation *s, int trainer)
{
    const struct trainer *x = &s->trainers[trainer];
    return (struct old_simulation_trainer){
        .w = x->w,
        .steps = x->t,
        .tables = &x->tables,
        .rounds = x->rounds,
        .dead = x->dead,
        .blocked_s = (double)x->blocked_ns * 1e-9,
        .gap_mean = x->rounds ? (double)x->gap_sum / (double)x->rounds : 0,
    };
}

const float *old_simulation_center(const struct old_simulation *s)
{
    return s->trainers[0].fabric->center;
}

double old_simulation_seconds(const struct old_simulation *s)
{
    return (double)sim_world_now(s->world) * 1e-9;
}

void old_simulation_destroy(struct old_simulation *s)
{
    if (s == NULL)
        return;
    for (int i = 0; s->trainers != NULL && i < s->o.trainers; i++) {
        struct trainer *x = &s->trainers[i];
        if (x->round_made)
            round_fini(&x->round);
        tables_stop(&x->tables);
        if (x->fabric != NULL) {
            fabric_sim.close(x->fabric);
            replica_fini(&x->replica);
        }
        tables_fini(&x->tables);
        memory_give(x->g);
        memory_give(x->own);
    }
    memory_give(s->trainers);
    if (s->world != NULL)
        sim_world_destroy(s->world);
    memory_give(s);
}
