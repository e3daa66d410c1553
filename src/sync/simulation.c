/* SPDX-License-Identifier: MIT */
/* The driver of simulated jobs. The clock is the simulated link's, and jumps from event
 * to event: a trainer's step ends, or its link has news. At each moment first all steps
 * that end then are made, in the order of ranks; then each of those ranks, and each rank
 * with news, does all that it can, and sleeps. A trainer that a plan makes wait is
 * blocked: its next step begins when its round is done.
 *
 * The gradient plan is an exception here, too: its exchange carries gradients, so the
 * driver talks to the fabric itself, as descant_mean does. A merge takes no virtual time.
 *
 * Rounds of rows go on beside, one after the other while there are steps. A trainer that
 * has made its steps stays until all rows are everywhere; in plans that count steps it
 * meanwhile waits in a final exchange, as descant_finish does. Then it serves the others,
 * and where trainers come and go it leaves, for rounds of latecomers would wait for
 * it. */
#include "sync/simulation.h"

#include "sync/round.h"

#include <string.h>

struct simulated_trainer {
    struct fabric *fabric;
    struct replica replica;
    struct round round;
    struct tables tables;
    uint64_t rows_steps;        /* at the start of the last round of rows */
    bool round_made, started, dead, gone, blocked, mean_open, final_open;
    bool stepped;               /* at this moment, and it is to go on */
    bool counted;               /* as one that has finished */
    float *w, *g;
    float *own;                 /* attached memory */
    uint64_t t, t0;             /* steps made; a joiner counts from t0 */
    uint64_t step_ends_ns, rounds, begun_steps, merged_steps, gap_sum;
    struct rng rng;
};

struct simulation {
    struct simulation_options o;
    struct plan plan;
    const struct fabric_type *type;
    struct simulated *world;
    struct simulated_trainer *trainers;
    bool fixed;                 /* no trainer comes late, or dies */
    uint64_t began_ns;
    uint64_t next_ns;           /* no step ends, and no trainer comes, before */
    uint64_t moved_ns;          /* a step, or a round, ended last */
    int left;                   /* trainers that have not finished, */
    int to_start;               /* of the trainers that do not come late, those without a
                                   state */
};

/* The time for which all may wait for each other with no step to be made. */
#define FOREVER_NS UINT64_C(10000000000000)

static double of(const double *values, int i, double otherwise)
{
    return values ? values[i] : otherwise;
}

static void plan_step(struct simulation *s, int i, uint64_t now)
{
    struct simulated_trainer *x = &s->trainers[i];
    double chance = 1 + s->o.spread * (2 * rng_uniform(&x->rng) - 1);
    double seconds = s->o.step_s * of(s->o.slow, i, 1) * chance;
    x->step_ends_ns = now + (uint64_t)(seconds * 1e9);
    s->next_ns = x->step_ends_ns < s->next_ns ? x->step_ends_ns : s->next_ns;
    s->moved_ns = now;
}

/* ------------------------------------------------------------------ a trainer's coming
 */

static descant_status enter_tables(struct simulation *s, int i)
{
    struct simulated_trainer *x = &s->trainers[i];
    descant_status status = DESCANT_OK;
    char name[32];
    float *w;
    tables_init(&x->tables, x->fabric, &s->plan);
    if (s->o.rows_part > 0)
        x->tables.part_room = s->o.rows_part;
    for (size_t k = 0; k < s->o.n_tables && status == DESCANT_OK; k++) {
        snprintf(name, sizeof name, "table%zu", k);
        status =
            tables_add(&x->tables, name, s->o.tables[k].rows, s->o.tables[k].width, &w);
        if (status == DESCANT_OK && s->o.tables[k].state > 0)
            status = tables_add_state(&x->tables, w, s->o.tables[k].state, &w);
    }
    if (status == DESCANT_OK && s->o.rows != NULL)
        s->o.rows(s->o.context, i, 0, &x->tables);
    return status;
}

static descant_status enter(struct simulation *s, int i)
{
    struct simulated_trainer *x = &s->trainers[i];
    int late = 0;
    for (int k = 0; k < s->o.trainers; k++)
        late += of(s->o.join_s, k, 0) > 0;
    struct fabric_options options = {.address = "",
                                     .rank = i,
                                     .size = s->o.trainers - late,
                                     .joins = of(s->o.join_s, i, 0) > 0,
                                     .wire = (enum wire)s->plan.wire,
                                     .log = s->o.log,
                                     .link = s->o.fabric->link,
                                     .context = s->world};
    replica_init(&x->replica);
    descant_status status = s->type->open(&x->fabric, &options);
    size_t at;
    if (status == DESCANT_OK)
        status = replica_check(&x->replica, "w", s->o.n, &at, s->o.log);
    if (status != DESCANT_OK)
        return status;
    x->g = memory_take_array(s->o.n, sizeof(float));
    x->own = s->o.attached ? memory_take_array(s->o.n, sizeof(float)) : NULL;
    x->w = s->o.attached ? x->own : s->type->alloc(x->fabric, at, s->o.n);
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
    start.rows_base = tables_base(&x->tables);
    status = manifest ? s->type->start(x->fabric, &start) : DESCANT_MEMORY;
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

static void begin(struct simulated_trainer *x, bool released)
{
    round_begin(&x->round, (double)(x->t - x->begun_steps), released);
    x->begun_steps = x->t;
    while (x->round.state == ROUND_SNAPSHOT && round_advance(&x->round) == ROUND_WORKED)
        ;
}

/* The state is here, and training begins: for trainers that are there from the start when
 * all have the state, for a joiner where the others are. */
static void started(struct simulation *s, int i, uint64_t now)
{
    struct simulated_trainer *x = &s->trainers[i];
    x->started = true;
    x->step_ends_ns = UINT64_MAX;
    bool joins = of(s->o.join_s, i, 0) > 0;
    s->to_start -= !joins;
    for (int k = 0; k < s->o.trainers && !joins && s->to_start == 0; k++)
        if (s->trainers[k].started)
            plan_step(s, k, now);
    if (joins)
        plan_step(s, i, now);
    bool collective = s->plan.what == PLAN_MEAN || s->plan.what == PLAN_BLOCK;
    if (!x->fabric->joined || s->plan.when != PLAN_EVERY || !collective)
        return;
    x->t0 = (uint64_t)s->plan.every;
    begin(x, s->plan.delay == 0);
    x->blocked = s->plan.delay == 0;
}

/* ------------------------------------------------------------------ steps */

static void apply(struct simulation *s, struct simulated_trainer *x)
{
    float rate = (float)s->o.rate;
    for (size_t k = 0; k < s->o.n; k++)
        x->w[k] -= rate * x->g[k];
}

static void make_step(struct simulation *s, int i)
{
    struct simulated_trainer *x = &s->trainers[i];
    x->t++;
    if (s->o.rows != NULL)
        s->o.rows(s->o.context, i, x->t, &x->tables);
    s->o.gradient(s->o.context, i, x->t, x->w, x->g, s->o.n);
    if (s->plan.what == PLAN_GRADIENT) {
        struct exchange exchange = {.kind = EXCHANGE_MEAN, .n = s->o.n, .weight = 1,
                                    .in = &x->round.copy};
        x->round.copy_extent.n = s->o.n;
        memcpy(x->fabric->contribution, x->g, s->o.n * sizeof(float));
        s->type->begin(x->fabric, &exchange);
        x->blocked = x->mean_open = true;
    } else {
        apply(s, x);
        if (s->plan.when == PLAN_EVERY) {
            int due = plan_due(&s->plan, x->t0 + x->t);
            if (round_ends(&x->round, due)) {
                /* its snapshot, if any, when it is merged */
                round_release(&x->round);
                x->blocked = true;
            } else if (due & PLAN_DUE_SNAPSHOT) {
                begin(x, s->plan.delay == 0);
                x->blocked = s->plan.delay == 0;
            }
        }
    }
    uint64_t die = s->o.die_at ? s->o.die_at[i] : 0;
    if (die != 0 && x->t >= die) {
        const struct simulated_fault death = {.kind = SIMULATED_DIE, .rank = i,
                                              .at_ns = x->step_ends_ns};
        x->dead = x->counted = simulated_fault(s->world, &death);
        s->left -= x->dead;
        simulated_run(s->world, x->step_ends_ns);
    }
    if (x->dead || x->t >= s->o.steps)
        tables_stop(&x->tables);
    plan_step(s, i, x->step_ends_ns);
}

static void round_done(struct simulation *s, int i, uint64_t now)
{
    struct simulated_trainer *x = &s->trainers[i];
    if (!x->started) {
        started(s, i, now);
        return;
    }
    s->moved_ns = now;
    if (x->final_open)
        return;
    x->rounds++;
    x->gap_sum += x->t - x->merged_steps;
    x->merged_steps = x->t;
    bool was_blocked = x->blocked;
    x->blocked = false;
    if (was_blocked)
        plan_step(s, i, now);
    if (s->plan.when == PLAN_EVERY && s->plan.delay > 0 && was_blocked &&
        (plan_due(&s->plan, x->t0 + x->t) & PLAN_DUE_SNAPSHOT))
        begin(x, false);                     /* merge first, then snapshot */
}

/* ------------------------------------------------------------------ rounds */

static bool advance_mean(struct simulation *s, int i, uint64_t now)
{
    struct simulated_trainer *x = &s->trainers[i];
    struct fabric_part part;
    switch (s->type->poll(x->fabric, &part)) {
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

/* One piece of trainer i; false when nothing of it moves. */
static bool advance(struct simulation *s, int i, uint64_t now, bool *failed)
{
    struct simulated_trainer *x = &s->trainers[i];
    uint64_t least = s->plan.gap > 1 ? (uint64_t)s->plan.gap : 1;
    bool shadow = s->plan.when == PLAN_SHADOW;
    if (x->started && s->plan.what == PLAN_GRADIENT && !x->final_open)
        return advance_mean(s, i, now);
    switch (round_advance(&x->round)) {
    case ROUND_WORKED:
        return true;
    case ROUND_DONE:
        round_done(s, i, now);
        return true;
    case ROUND_CALLED:
        if (shadow)
            begin(x, true);
        return shadow;
    case ROUND_RESTING:
        if (!shadow || !x->started || x->t - x->begun_steps < least)
            return false;
        begin(x, true);
        return true;
    case ROUND_HELD:                /* the trainer serves the others meanwhile */
        s->type->serve(x->fabric);
        return false;
    case ROUND_FAILED:
        *failed = true;
        return false;
    default:
        return false;
    }
}

/* Does one piece of a trainer's tables. */
static bool advance_rows(struct simulated_trainer *x, uint64_t now, bool *failed)
{
    enum round_progress progress =
        x->started ? tables_advance(&x->tables) : ROUND_RESTING;
    *failed |= progress == ROUND_FAILED;
    if (progress == ROUND_WORKED || progress == ROUND_DONE)
        return true;
    bool due =
        progress == ROUND_CALLED || x->t > x->rows_steps || tables_stopping(&x->tables);
    if (!x->started || !due || !tables_can_begin(&x->tables))
        return false;
    x->rows_steps = x->t;
    tables_begin(&x->tables, now);
    return true;
}

static bool trained(const struct simulation *s, const struct simulated_trainer *x)
{
    return x->dead || (x->started && !x->blocked && x->t >= s->o.steps);
}

static bool finished(const struct simulation *s, const struct simulated_trainer *x)
{
    return x->dead || (trained(s, x) && tables_ended(&x->tables));
}

/* In plans that count steps a trainer that has made its steps waits for the others' rows,
 * and counts in no quorum; a shadow serves to the end. True: the trainer has begun
 * something. */
static bool end_training(struct simulation *s, struct simulated_trainer *x)
{
    if (s->plan.when != PLAN_EVERY || x->final_open || x->gone || !trained(s, x))
        return false;
    if (!finished(s, x) || (s->fixed && s->plan.quorum > 0)) {
        round_begin_state(&x->round, 0, true);
        x->final_open = true;
        return true;
    }
    if (!s->fixed) {
        s->o.fabric->leave(x->fabric);
        x->gone = true;
    }
    return false;
}

/* Drives a trainer until it can do no more, and sleeps. */
static descant_status go_on(struct simulation *s, int i)
{
    struct simulated_trainer *x = &s->trainers[i];
    bool failed = false;

    x->stepped = false;
    if (x->fabric == NULL || x->dead)
        return DESCANT_OK;
    do {
        uint64_t now = simulated_now(s->world);
        while (!x->gone && !failed &&
               (advance(s, i, now, &failed) || advance_rows(x, now, &failed) ||
                end_training(s, x)))
            ;
        if (x->gone)
            s->o.fabric->stay(x->fabric);
        s->type->wait(x->fabric, 0);
    } while (!failed && !simulated_sleeps(s->world, i));
    if (!x->counted && finished(s, x)) {
        x->counted = true;
        s->left--;
    }
    return failed ? x->fabric->status : DESCANT_OK;
}

static bool steps(const struct simulation *s, const struct simulated_trainer *x)
{
    return x->started && !x->blocked && !trained(s, x);
}

/* Lets trainers come, and ends the steps that end now. */
static descant_status at_moment(struct simulation *s, uint64_t now)
{
    descant_status status = DESCANT_OK;

    s->next_ns = UINT64_MAX;
    for (int i = 0; i < s->o.trainers && status == DESCANT_OK; i++) {
        struct simulated_trainer *x = &s->trainers[i];
        uint64_t joins = s->began_ns + (uint64_t)(of(s->o.join_s, i, 0) * 1e9);
        uint64_t due = x->fabric == NULL ? joins
                       : steps(s, x)     ? x->step_ends_ns
                                         : UINT64_MAX;
        x->stepped = due <= now;
        if (x->stepped && x->fabric == NULL)
            status = enter(s, i);
        else if (x->stepped)
            make_step(s, i);
        else if (due < s->next_ns)
            s->next_ns = due;
        if (x->stepped && steps(s, x) && x->step_ends_ns < s->next_ns)
            s->next_ns = x->step_ends_ns;
    }
    for (int i = 0; i < s->o.trainers && status == DESCANT_OK; i++)
        if (s->trainers[i].stepped)
            status = go_on(s, i);
    return status;
}

static descant_status run(struct simulation *s)
{
    descant_status status = DESCANT_OK;

    s->left = s->o.trainers;
    for (int i = 0; i < s->o.trainers; i++)
        s->to_start += of(s->o.join_s, i, 0) <= 0;
    while (status == DESCANT_OK && s->left > 0) {
        uint64_t now = simulated_now(s->world), next = s->next_ns;
        if (next <= now) {
            status = at_moment(s, now);
            continue;
        }
        int rank =
            simulated_turn(s->world, next < UINT64_MAX ? next : s->moved_ns + FOREVER_NS);
        if (rank >= 0 && simulated_now(s->world) < next)
            status = go_on(s, rank);
        else if (rank < 0 && next == UINT64_MAX)
            status =
                log_fail(s->o.log, DESCANT_SYSTEM, "%d trainers wait for ever", s->left);
    }
    return status;
}

descant_status simulation_run(struct simulation **out, const struct simulation_options *o)
{
    struct plan plan;
    descant_status status = plan_parse(&plan, o->plan, o->log);
    if (status == DESCANT_OK && plan.when == PLAN_CONTROL)
        status = log_fail(o->log, DESCANT_UNSUPPORTED, "the plan bsp is not simulated");
    if (status != DESCANT_OK)
        return status;
    struct simulation *s = memory_take(sizeof *s);
    if (s == NULL)
        return DESCANT_MEMORY;
    s->o = *o;
    s->plan = plan;
    s->type = o->fabric->type;
    s->fixed = o->die_at == NULL && o->join_s == NULL;
    const struct simulated_options world = {
        .ranks = o->trainers,
        .per_host = o->world.per_host,
        .seed = o->world.seed,
        .fixed = s->fixed,
        .latency_ns = (uint64_t)(o->world.latency_s * 1e9),
        .jitter_ns = (uint64_t)(o->world.jitter_s * 1e9),
        .bytes_per_s = o->world.bytes_per_s};
    s->world = simulated_create(&world);
    s->trainers = memory_take_array((size_t)o->trainers, sizeof *s->trainers);
    if (s->world == NULL || s->trainers == NULL) {
        simulation_destroy(s);
        return log_fail(o->log, DESCANT_MEMORY, "no memory for %d trainers", o->trainers);
    }
    s->began_ns = simulated_now(s->world);
    for (int i = 0; i < o->trainers; i++)
        rng_init(&s->trainers[i].rng, o->world.seed * 1000003 + (uint64_t)i);
    status = run(s);
    if (status != DESCANT_OK) {
        simulation_destroy(s);
        return status;
    }
    *out = s;
    return DESCANT_OK;
}

struct simulation_trainer simulation_look(const struct simulation *s, int trainer)
{
    const struct simulated_trainer *x = &s->trainers[trainer];
    return (struct simulation_trainer){
        .w = x->w,
        .steps = x->t,
        .tables = &x->tables,
        .rounds = x->rounds,
        .dead = x->dead,
        .center = x->fabric->center,
        .gap_mean = x->rounds ? (double)x->gap_sum / (double)x->rounds : 0,
    };
}

void simulation_destroy(struct simulation *s)
{
    if (s == NULL)
        return;
    for (int i = 0; s->trainers != NULL && i < s->o.trainers; i++) {
        struct simulated_trainer *x = &s->trainers[i];
        if (x->round_made)
            round_fini(&x->round);
        tables_stop(&x->tables);
        if (x->fabric != NULL) {
            s->o.fabric->free(x->fabric);
            replica_fini(&x->replica);
        }
        tables_fini(&x->tables);
        memory_give(x->g);
        memory_give(x->own);
    }
    memory_give(s->trainers);
    simulated_destroy(s->world);
    s->o.fabric->free_kept();
    memory_give(s);
}
