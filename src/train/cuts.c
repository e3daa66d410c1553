/* SPDX-License-Identifier: MIT */
/* The ranks show each other orders and marks in rows of a table with owners, which any
 * rank may read and change as long as the job is open: before, during and after its
 * finish, under each plan, and nobody waits for a round.
 *
 * Row k is the mark of rank k; the last row is the first rank's order. A rank keeps what
 * its row has now, and pushes the difference to what it is to have, at a rate of 1: whole
 * numbers below 2^24, so the sum is exact.
 *
 * The thread alone uses the table. The keeper of the first rank, or at the end its main
 * thread, hands it what is wanted, and waits for the outcome; the mutex guards what both
 * use. A rank that comes to be the first goes on from the order that the one before has
 * given, which had settled it before it left. */
#include "train/cuts.h"

#include "run/tick.h"
#include "train/cut.h"
#include "train/trainer.h"

#include <string.h>

enum { MARKS = 1024, ROW_OF_ORDER = MARKS, N_ROWS };    /* ranks; rows of the table */
enum { LEAST_NS = 10000000, MOST_NS = 100000000 };      /* between looks */

/* What a look has found. */
struct view {
    struct cut_order order;
    struct cut_mark marks[MARKS];
};

struct cuts {
    struct trainer *t;
    cuts_write *write;
    pthread_t thread;
    int table;
    /* the thread's: */
    struct view view;
    bool lost[MARKS], owns[MARKS];
    int parts[MARKS], moved;            /* of all rows, as this rank knows */
    struct cut_mark mine;
    struct cut_self self;
    struct cut_order given;             /* where this rank leads */
    bool leads;
    bool over;                          /* no more cuts, or this rank has left */
    float mark_row[CUT_FLOATS], order_row[CUT_FLOATS];  /* as they are in the table */
    float seen_row[CUT_FLOATS];         /* the order as it came last */
    struct descant_rows *batch;         /* of the look that is under way, */
    uint64_t asked[N_ROWS];             /* (n_asked) and its rows */
    size_t n_asked;
    uint32_t rest_ns;                   /* until the next look */
    /* of both threads: */
    pthread_mutex_t mutex;              /* guards these: */
    pthread_cond_t moved_on;
    struct cut_order wanted;            /* cut, id, tidy, kept and over, to be given */
    bool changed;                       /* they have not been given yet */
    uint64_t cut;                       /* that the other thread waits for; 0: it has its
                                           outcome, */
    enum cut_state outcome;             /* this, */
    int who;                            /* by that rank, */
    uint64_t rows[MARKS];               /* with these rows of each shard, */
    int n;                              /* of so many, */
    bool any_moved;                     /* of rows that have moved since the start */
    uint64_t last;                      /* cut that was ordered, as seen */
    bool ended;                         /* the thread, */
    descant_status status;              /* with this, */
    char why[LOG_LINE];                 /* for that reason */
    bool finished;                      /* this rank, so that owners alone count, */
    bool ends;                          /* and it makes no more cuts */
    bool leaves;                        /* it has parted: the thread says so, and ends */
    bool stop;                          /* it goes without finish: the thread ends */
    bool started;                       /* the main thread's */
};

descant_status cuts_declare(struct trainer *t, cuts_write *write)
{
    struct descant_owned shape = descant_owned_default();
    struct cuts *c = t->cuts = memory_take(sizeof *c);

    if (!c)
        return log_fail(&t->log, DESCANT_MEMORY, "no memory for checkpoints in shards");
    pthread_mutex_init(&c->mutex, NULL);
    tick_init(&c->moved_on);
    if (t->rank >= MARKS)
        return log_fail(&t->log, DESCANT_BAD_RANK,
                        "rank %d: --tables shard with --checkpoint has room for %d ranks",
                        t->rank, (int)MARKS);
    c->t = t;
    c->write = write;
    shape.rows = N_ROWS;
    shape.width = CUT_FLOATS;
    shape.optimizer = DESCANT_ROWS_SGD;
    return descant_owned_table(t->job, "train.cuts", &shape, &c->table);
}

/* --- rows --- */

static bool push_row(struct cuts *c, uint64_t row, float *is, const float *to)
{
    struct descant_rows *batch;
    float gradient[CUT_FLOATS];

    for (int k = 0; k < CUT_FLOATS; k++)
        gradient[k] = is[k] - to[k];
    if (descant_rows_fetch(c->t->job, c->table, &row, 1, &batch) != DESCANT_OK ||
        descant_rows_push(c->t->job, batch, gradient, 1) != DESCANT_OK)
        return false;
    memcpy(is, to, sizeof gradient);
    return true;
}

/* The details first. */
static bool give_mark(struct cuts *c)
{
    struct cut_mark details = cut_get_mark(c->mark_row);
    float row[CUT_FLOATS];

    details.rows = c->mine.rows;
    details.parts = c->mine.parts;
    cut_put_mark(&details, row);
    if (!push_row(c, (uint64_t)c->t->rank, c->mark_row, row) ||
        descant_rows_settle(c->t->job) != DESCANT_OK)
        return false;
    cut_put_mark(&c->mine, row);
    return push_row(c, (uint64_t)c->t->rank, c->mark_row, row);
}

static bool give_order(struct cuts *c)
{
    struct cut_order details = cut_get_order(c->order_row);
    float row[CUT_FLOATS];

    details.id = c->given.id;
    memcpy(details.kept, c->given.kept, sizeof details.kept);
    cut_put_order(&details, row);
    if (!push_row(c, ROW_OF_ORDER, c->order_row, row) ||
        descant_rows_settle(c->t->job) != DESCANT_OK)
        return false;
    cut_put_order(&c->given, row);
    return push_row(c, ROW_OF_ORDER, c->order_row, row);
}

/* Asks for the order, this rank's mark and, if all are wanted, all marks. */
static bool ask(struct cuts *c, bool all)
{
    uint64_t rows[N_ROWS] = {ROW_OF_ORDER, (uint64_t)c->t->rank};

    c->n_asked = 2;
    for (uint64_t k = 0; all && k < MARKS; k++)
        if (k != rows[1])
            rows[c->n_asked++] = k;
    memcpy(c->asked, rows, sizeof c->asked);
    return descant_rows_fetch(c->t->job, c->table, rows, c->n_asked, &c->batch) ==
           DESCANT_OK;
}

/* What was asked for becomes the view. */
static bool take(struct cuts *c)
{
    float *block;

    if (descant_rows_wait(c->t->job, c->batch, &block) != DESCANT_OK)
        return false;
    memcpy(c->seen_row, block, sizeof c->seen_row);
    c->view.order = cut_get_order(block);
    for (size_t k = 1; k < c->n_asked; k++)
        c->view.marks[c->asked[k]] = cut_get_mark(block + k * CUT_FLOATS);
    if (!c->mine.there)                 /* of a process of this rank before this one */
        memcpy(c->mark_row, block + CUT_FLOATS, sizeof c->mark_row);
    pthread_mutex_lock(&c->mutex);
    c->last = c->view.order.cut > c->view.order.done ? c->view.order.cut
                                                     : c->view.order.done;
    pthread_mutex_unlock(&c->mutex);
    return descant_rows_drop(c->t->job, c->batch) == DESCANT_OK;
}

/* --- acts --- */

static bool look_at_parts(struct cuts *c)
{
    return descant_owned_parts(c->t->job, MARKS, c->parts, &c->moved) == DESCANT_OK;
}

static bool hold(struct cuts *c, uint64_t cut)
{
    bool held = c->self.holds > 0;

    c->self.holds = cut;
    c->mine.held = cut;
    return (held || descant_owned_hold(c->t->job, 1) == DESCANT_OK) && give_mark(c);
}

static bool release(struct cuts *c)
{
    bool held = c->self.holds > 0;

    c->self.holds = 0;
    return !held || descant_owned_hold(c->t->job, 0) == DESCANT_OK;
}

static bool settle(struct cuts *c, uint64_t round)
{
    if (descant_rows_settle(c->t->job) != DESCANT_OK || !look_at_parts(c))
        return false;
    c->mine.settled = round;
    c->mine.parts = (uint64_t)c->parts[c->t->rank];
    return give_mark(c);
}

/* Whether the shard has what this rank was counted with: it may have taken the place of
 * one that died meanwhile. */
static bool write_shard(struct cuts *c)
{
    const struct cut_order *order = &c->view.order;
    struct cuts_shard shard = {.generation = order->write, .id = order->id};

    for (int k = 0; k < MARKS; k++) {
        bool writes = cut_writes(order, k == c->t->rank ? &c->mine : &c->view.marks[k]);
        shard.n += writes;
        shard.k += writes && k < c->t->rank;
    }
    bool good = c->write(c->t, &shard, &c->mine.rows) == DESCANT_OK;
    if (!look_at_parts(c))
        return false;
    bool moved = (uint64_t)c->parts[c->t->rank] != c->mine.parts;
    if (good && moved)
        log_say(&c->t->log, DESCANT_WARNING, "rows have come to this rank while it wrote "
                "its shard, since another rank has died: the checkpoint is left out");
    if (good && !moved)
        c->mine.written = order->write;
    else
        c->mine.failed = order->write;
    return give_mark(c);
}

static bool follow(struct cuts *c, enum cut_act act)
{
    const struct cut_order *order = &c->view.order;

    switch (act) {
    case CUT_HOLDS:
        return hold(c, order->cut);
    case CUT_SETTLES:
        return settle(c, order->round);
    case CUT_WRITES:
        return write_shard(c);
    case CUT_RELEASES:
        return release(c);
    case CUT_TIDIES:
        shards_tidy(c->t->options->checkpoint, order->tidy, order->kept, CUT_KEPT);
        c->self.tidied = order->tidy;
        return true;
    case CUT_RESTS:
    case CUT_ENDS:
        break;
    }
    return true;
}

/* --- the first rank --- */

/* Gives the order that the other thread has left. A rank that was not the first before
 * has seen the order of the one that was. */
static bool give_changed(struct cuts *c)
{
    struct cut_order *given = &c->given;

    bool begins = !c->leads, first = others_is_first(c->t);
    c->leads = first;
    if (first && begins) {
        memcpy(c->order_row, c->seen_row, sizeof c->order_row);
        *given = c->view.order;
        given->done = given->cut;       /* the one that ordered it has gone */
    }
    pthread_mutex_lock(&c->mutex);
    const struct cut_order wanted = c->wanted;
    bool changed = c->changed || (c->ends && !given->over);
    changed |= begins && given->done > c->view.order.done;
    c->changed = false;
    given->over |= c->ends;
    pthread_mutex_unlock(&c->mutex);
    if (!first || !changed)
        return true;
    if (wanted.cut > given->cut) {
        given->cut = wanted.cut;
        given->id = wanted.id;
        if (!c->t->moves) {             /* there is nothing to hold */
            given->settle = given->cut;
            given->round++;
        }
    }
    if (wanted.tidy > given->tidy) {
        given->tidy = wanted.tidy;
        memcpy(given->kept, wanted.kept, sizeof given->kept);
    }
    return give_order(c);
}

static void tell(struct cuts *c, enum cut_state state, int who)
{
    pthread_mutex_lock(&c->mutex);
    c->outcome = state;
    c->who = who;
    c->n = 0;
    for (int k = 0; k < MARKS; k++)
        if (cut_writes(&c->given, &c->view.marks[k]))
            c->rows[c->n++] = c->view.marks[k].rows;
    c->any_moved = c->moved > 0;
    c->cut = 0;
    pthread_cond_broadcast(&c->moved_on);
    pthread_mutex_unlock(&c->mutex);
}

static enum cut_state judge(struct cuts *c, int *who)
{
    struct cut_ranks ranks = {c->view.marks, c->lost, c->owns, MARKS, false, 0};

    pthread_mutex_lock(&c->mutex);
    ranks.finished = c->finished;
    pthread_mutex_unlock(&c->mutex);
    for (int k = 0; k < MARKS; k++) {
        c->lost[k] = rank_is(&c->t->lost, k);
        c->owns[k] = c->parts[k] > 0;
        ranks.parts += (uint64_t)c->parts[k];
    }
    return cut_judge(&c->given, &ranks, who);
}

/* Brings the cut that is under way further. */
static bool lead(struct cuts *c)
{
    struct cut_order *given = &c->given;
    int who;

    pthread_mutex_lock(&c->mutex);
    uint64_t cut = c->cut;
    pthread_mutex_unlock(&c->mutex);
    if (cut && !others_is_first(c->t)) {        /* the one before this has come again */
        tell(c, CUT_FAILED, c->t->rank);
        return true;
    }
    if (!cut || !c->leads || given->cut != cut)
        return true;
    if (!look_at_parts(c))
        return false;
    enum cut_state state = judge(c, &who);
    switch (state) {
    case CUT_HELD:
    case CUT_MISSING:
        given->settle = cut;
        given->round++;
        return give_order(c);
    case CUT_SETTLED:
        given->write = cut;
        return give_order(c);
    case CUT_WRITTEN:
    case CUT_FAILED:
        break;
    case CUT_HOLDING:
    case CUT_SETTLING:
    case CUT_WRITING:
        return true;
    }
    given->done = cut;
    if (!give_order(c) || !ask(c, true) || !take(c))    /* for the details */
        return false;
    tell(c, state, who);
    return true;
}

/* --- the thread --- */

/* Until it is time for the next look, or there is an order to give. After an act the next
 * one is near; where nothing happens looks become rare. False: the thread is to end. */
static bool rest(struct cuts *c)
{
    pthread_mutex_lock(&c->mutex);
    bool stop = c->stop;
    if (!c->changed && !stop && !c->leaves)
        tick_wait(&c->moved_on, &c->mutex, c->rest_ns);
    if (c->changed)
        c->rest_ns = LEAST_NS;
    stop = c->stop;
    pthread_mutex_unlock(&c->mutex);
    c->rest_ns = 2 * c->rest_ns < MOST_NS ? 2 * c->rest_ns : MOST_NS;
    return !stop;
}

static bool leads(struct cuts *c)
{
    pthread_mutex_lock(&c->mutex);
    bool leads = c->cut != 0;
    pthread_mutex_unlock(&c->mutex);
    return leads;
}

/* Its rows are with others, and so is all that it has pushed. */
static bool leave(struct cuts *c)
{
    c->over = true;
    c->mine.there = false;
    return release(c) && give_mark(c) && descant_rows_settle(c->t->job) == DESCANT_OK;
}

static bool leaves(struct cuts *c)
{
    pthread_mutex_lock(&c->mutex);
    bool leaves = c->leaves;
    pthread_mutex_unlock(&c->mutex);
    return leaves;
}

static enum cut_act next(struct cuts *c)
{
    c->self.led = others_led(c->t);
    return cut_act(&c->view.order, &c->mine, &c->self);
}

/* A look, and what follows from it. Rows that were asked for come during the rest, so
 * that a look waits for nothing, which would count as a stall; an act does. False: the
 * job has failed, or there are no more cuts. */
static bool turn(struct cuts *c)
{
    if (!give_changed(c) || !ask(c, leads(c)))
        return false;
    if (!rest(c) || !take(c))
        return false;
    if (leaves(c))
        return leave(c) && false;
    enum cut_act act = next(c);
    if (act != CUT_RESTS) {             /* for the details */
        c->rest_ns = LEAST_NS;
        if (!ask(c, act == CUT_WRITES || leads(c)) || !take(c))
            return false;
        act = next(c);
    }
    c->over = act == CUT_ENDS;
    return !c->over && follow(c, act) && lead(c);
}

static void *follow_orders(void *of)
{
    struct cuts *c = of;

    while (turn(c))
        ;
    pthread_mutex_lock(&c->mutex);
    if (!c->over && !c->stop && !c->leaves) {
        snprintf(c->why, sizeof c->why, "%s", descant_last_error());
        c->status = DESCANT_ENDED;
        board_stop(c->t->board, STOP_FAILED, "trainer %d: checkpoints: %s", c->t->rank,
                   c->why);
    }
    c->ended = true;
    pthread_cond_broadcast(&c->moved_on);
    pthread_mutex_unlock(&c->mutex);
    return NULL;
}

/* The mark is there before this rank trains: a cut must wait for what it pushes. */
descant_status cuts_start(struct trainer *t)
{
    struct cuts *c = t->cuts;

    if (!c)
        return DESCANT_OK;
    bool good = ask(c, false) && take(c);
    c->rest_ns = LEAST_NS;
    c->mine.there = true;
    c->self.tidied = c->view.order.tidy;        /* `kept` may be of a later one already */
    if (!good || !give_mark(c) || descant_rows_settle(t->job) != DESCANT_OK)
        return log_fail(&t->log, DESCANT_ENDED,
                        "the ranks that own rows are not all there");
    c->started = pthread_create(&c->thread, NULL, follow_orders, c) == 0;
    c->ended = !c->started;
    return c->started ? DESCANT_OK
                      : log_fail(&t->log, DESCANT_SYSTEM, "no thread for checkpoints");
}

/* --- orders --- */

descant_status cuts_make(struct trainer *t, struct shards *s)
{
    struct cuts *c = t->cuts;

    pthread_mutex_lock(&c->mutex);
    c->wanted.cut = c->cut = s->generation;
    c->wanted.id = s->id;
    c->changed = true;
    pthread_cond_broadcast(&c->moved_on);
    while (c->cut && !c->ended)
        pthread_cond_wait(&c->moved_on, &c->mutex);
    bool ended = c->cut != 0;
    const char *why = c->why[0] ? c->why : "the ranks that own rows are not all there";
    enum cut_state outcome = c->outcome;
    int who = c->who;
    pthread_mutex_unlock(&c->mutex);
    s->rows = c->rows;
    s->n = c->n;
    s->moved = c->any_moved;
    if (ended)
        return log_fail(&t->log, DESCANT_ENDED,
                        "no checkpoint is written: %s", why);
    return outcome == CUT_WRITTEN
               ? DESCANT_OK
               : log_fail(&t->log, DESCANT_SYSTEM,
                          "no checkpoint is written: rank %d could not write its shard, "
                          "and has said why, or has gone", who);
}

void cuts_tidy(struct trainer *t, uint64_t last, const uint64_t *kept)
{
    struct cuts *c = t->cuts;

    pthread_mutex_lock(&c->mutex);
    c->wanted.tidy = last;
    memcpy(c->wanted.kept, kept, sizeof c->wanted.kept);
    c->changed = true;
    pthread_cond_broadcast(&c->moved_on);
    pthread_mutex_unlock(&c->mutex);
}

descant_status cuts_status(struct trainer *t)
{
    struct cuts *c = t->cuts;
    char why[LOG_LINE];

    if (!c)
        return DESCANT_OK;
    pthread_mutex_lock(&c->mutex);
    descant_status status = c->status;
    snprintf(why, sizeof why, "%s", c->why);
    pthread_mutex_unlock(&c->mutex);
    return status == DESCANT_OK ? DESCANT_OK : log_fail(&t->log, status, "%s", why);
}

void cuts_finished(struct trainer *t)
{
    if (!t->cuts)
        return;
    pthread_mutex_lock(&t->cuts->mutex);
    t->cuts->finished = true;
    pthread_mutex_unlock(&t->cuts->mutex);
}

uint64_t cuts_last(struct trainer *t)
{
    pthread_mutex_lock(&t->cuts->mutex);
    uint64_t last = t->cuts->last;
    pthread_mutex_unlock(&t->cuts->mutex);
    return last;
}

static void join(struct cuts *c)
{
    pthread_cond_broadcast(&c->moved_on);
    pthread_mutex_unlock(&c->mutex);
    pthread_join(c->thread, NULL);
    c->started = false;
}

void cuts_leave(struct trainer *t)
{
    struct cuts *c = t->cuts;

    if (!c || !c->started)
        return;
    pthread_mutex_lock(&c->mutex);
    c->leaves = true;
    join(c);
}

void cuts_end(struct trainer *t, bool finished)
{
    struct cuts *c = t->cuts;

    if (!c || !c->started)
        return;
    pthread_mutex_lock(&c->mutex);
    c->stop = !finished;
    c->ends = finished;
    join(c);
}

void cuts_fini(struct trainer *t)
{
    struct cuts *c = t->cuts;

    if (!c)
        return;
    cuts_end(t, false);
    pthread_cond_destroy(&c->moved_on);
    pthread_mutex_destroy(&c->mutex);
    memory_give(c);
    t->cuts = NULL;
}
