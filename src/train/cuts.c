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
 * thread, hands it the cut that is wanted, and waits for the outcome; the mutex guards
 * the fields of both. A rank that comes to be the first goes on from the order that the
 * one before has given, which had settled it before it left.
 *
 * The thread also tells others.c which lower ranks have left, by the mark of the one that
 * would be the first: a rank that came late has heard no event of it. */
#include "train/cuts.h"

#include "run/tick.h"
#include "train/cut.h"
#include "train/trainer.h"

#include <string.h>

enum { ROW_OF_ORDER = CUT_RANKS, N_ROWS };              /* rows of the table */
enum { LEAST_NS = 10000000, MOST_NS = 100000000 };      /* between looks */
#define FINISH_NS UINT64_C(30000000000) /* how long a rank that ENDS waits for a first
                                           rank without a mark; and a first rank, for
                                           others to see that it is over */

/* How this rank's run goes; it only grows. FINISHES: the job is finished; ENDS: and this
 * rank makes no more cuts; LEAVES: it has parted; STOPS: it goes without finish. */
enum goes { GOES_ON, GOES_FINISHES, GOES_ENDS, GOES_LEAVES, GOES_STOPS };

/* As the last look has found them. */
struct view {
    struct cut_order order;
    struct cut_mark marks[CUT_RANKS];
};

struct cuts {
    struct trainer *t;
    cuts_write *write;
    pthread_t thread;
    int table;
    /* the thread's: */
    struct view view;
    bool lost[CUT_RANKS], owns[CUT_RANKS];
    int parts[CUT_RANKS], moved;            /* of all rows, as this rank knows */
    int n_shown;                            /* above each rank that has shown itself, by
                                               the last look at all */
    uint64_t gone;                          /* the last cut that is, by any mark so far */
    struct cut_mark mine;
    struct cut_self self;
    struct cut_order given;             /* where this rank leads, */
    uint64_t ordered;                   /* and its last cut */
    bool leads, others, mark_lost;      /* others: the order is not as this rank has
                                           written it; mark_lost: this rank's
                                           mark is not as it has written it */
    bool over;                          /* no more cuts, or this rank has left */
    uint64_t ends_ns;                   /* it ENDS since then; 0 */
    uint64_t over_ns;                   /* there are no more cuts, by this rank's own
                                           order; 0 */
    float mark_row[CUT_FLOATS], order_row[CUT_FLOATS];  /* as they are in the table */
    float seen_row[CUT_FLOATS];         /* the order as it came last */
    struct descant_rows *batch;         /* of the look that is under way, */
    uint64_t asked[N_ROWS];             /* (n_asked) and its rows */
    size_t n_asked;
    uint32_t rest_ns;                   /* until the next look */
    /* of both threads: */
    pthread_mutex_t mutex;              /* guards these: */
    pthread_cond_t moved_on;
    struct cut_order wanted;            /* id, tidy and kept, to be given */
    bool changed;                       /* they have not been given yet */
    uint64_t cut;                       /* that the other thread waits for; 0: it has its
                                           outcome, */
    enum cut_state outcome;             /* this, */
    enum cut_fault fault;               /* where it has failed: so, */
    int who;                            /* by that rank, */
    uint64_t rows[CUT_RANKS];           /* with these rows of each shard, */
    int n_shards;
    bool any_moved;                     /* of rows that have moved since the start */
    uint64_t last;                      /* cut that was ordered, as seen */
    enum goes goes;
    bool asks_hold;                     /* the thread waits until its rows are held */
    bool ended;                         /* the thread, */
    descant_status status;              /* with this, */
    char why[LOG_LINE];                 /* for that reason */
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
    if (t->rank >= CUT_RANKS)
        return log_fail(&t->log, DESCANT_BAD_RANK,
                        "rank %d: --tables shard with --checkpoint has room for %d ranks",
                        t->rank, (int)CUT_RANKS);
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
static bool give(struct cuts *c, uint64_t row, float *is, const float *to, int details)
{
    size_t bytes = (size_t)(CUT_FLOATS - details) * sizeof *to;
    float first[CUT_FLOATS];

    if (memcmp(is + details, to + details, bytes) != 0) {
        memcpy(first, is, sizeof first);
        memcpy(first + details, to + details, bytes);
        if (!push_row(c, row, is, first) ||
            descant_rows_settle(c->t->job) != DESCANT_OK)
            return false;
    }
    return push_row(c, row, is, to);
}

static bool give_mark(struct cuts *c)
{
    float row[CUT_FLOATS];

    cut_put_mark(&c->mine, row);
    c->mark_lost = false;
    return give(c, (uint64_t)c->t->rank, c->mark_row, row, CUT_MARK_DETAILS);
}

static bool give_order(struct cuts *c)
{
    float row[CUT_FLOATS];

    cut_put_order(&c->given, row);
    return give(c, ROW_OF_ORDER, c->order_row, row, CUT_ORDER_DETAILS);
}

/* Asks for the order, this rank's mark, and those of the ranks up to the first one or, if
 * all are wanted, of all; of a rank that holds its rows also those in which a cut may be
 * gone. No order is given before they are taken. */
static bool ask(struct cuts *c, bool all)
{
    uint64_t rows[N_ROWS] = {ROW_OF_ORDER, (uint64_t)c->t->rank};
    int n = others_first(c->t) + 1;

    n = c->self.holds && c->n_shown > n ? c->n_shown : n;
    c->n_asked = 2;
    for (int k = 0; k < (all ? CUT_RANKS : n); k++)
        if (k != c->t->rank)
            rows[c->n_asked++] = (uint64_t)k;
    memcpy(c->asked, rows, sizeof c->asked);
    return descant_rows_fetch(c->t->job, c->table, rows, c->n_asked, &c->batch) ==
           DESCANT_OK;
}

static void note_last(struct cuts *c, const struct cut_order *order)
{
    pthread_mutex_lock(&c->mutex);
    c->last = order->cut > c->last ? order->cut : c->last;
    c->last = order->done > c->last ? order->done : c->last;
    pthread_mutex_unlock(&c->mutex);
}

/* A mark that has come. ENDED stays: that rank may have gone, and then nobody repairs its
 * mark. */
static void take_mark(struct cuts *c, int rank, const float *row)
{
    struct cut_mark *mark = &c->view.marks[rank];
    bool ended = mark->stand == CUT_ENDED;

    *mark = cut_get_mark(row);
    mark->stand = ended ? CUT_ENDED : mark->stand;
    c->gone = mark->gone > c->gone ? mark->gone : c->gone;
    if (rank < c->t->rank)
        others_seen(c->t, rank, cut_passed(mark, rank, c->t->owners));
    if (mark->stand != CUT_AWAY && rank >= c->n_shown)
        c->n_shown = rank + 1;
}

/* The rows that were asked for become the view. */
static bool take(struct cuts *c)
{
    float *block;

    if (descant_rows_wait(c->t->job, c->batch, &block) != DESCANT_OK)
        return false;
    memcpy(c->seen_row, block, sizeof c->seen_row);
    c->others |= c->leads && memcmp(block, c->order_row, sizeof c->order_row) != 0;
    c->view.order = cut_get_order(block);
    for (size_t k = 1; k < c->n_asked; k++)
        take_mark(c, (int)c->asked[k], block + k * CUT_FLOATS);
    /* at first it is that of a process of this rank before this one */
    c->mark_lost |= c->mine.stand != CUT_AWAY &&
                    memcmp(c->mark_row, block + CUT_FLOATS, sizeof c->mark_row) != 0;
    memcpy(c->mark_row, block + CUT_FLOATS, sizeof c->mark_row);
    note_last(c, &c->view.order);
    return descant_rows_drop(c->t->job, c->batch) == DESCANT_OK;
}

static bool look(struct cuts *c, bool all)
{
    return ask(c, all) && take(c);
}

static enum goes goes(struct cuts *c)
{
    pthread_mutex_lock(&c->mutex);
    enum goes goes = c->goes;
    pthread_mutex_unlock(&c->mutex);
    return goes;
}

/* --- acts --- */

static bool look_at_parts(struct cuts *c)
{
    return descant_owned_parts(c->t->job, CUT_RANKS, c->parts, &c->moved) == DESCANT_OK;
}

/* Waits until the rows rest. cuts_end ends the wait, with a release of its own. */
static bool wait_hold(struct cuts *c)
{
    pthread_mutex_lock(&c->mutex);
    bool stops = c->goes == GOES_STOPS;
    c->asks_hold = !stops;
    pthread_mutex_unlock(&c->mutex);
    if (stops)
        return false;
    descant_status status = descant_owned_hold(c->t->job, 1);
    pthread_mutex_lock(&c->mutex);
    stops = !c->asks_hold;
    c->asks_hold = false;
    pthread_mutex_unlock(&c->mutex);
    return status == DESCANT_OK && !stops;
}

static bool hold(struct cuts *c, uint64_t cut)
{
    if (!c->self.holds && !wait_hold(c))
        return false;
    c->self.holds = cut;
    c->mine.held = cut;
    return give_mark(c);
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

/* Whether the shard has the parts that this rank was counted with: the rank may have
 * taken the place of one that died meanwhile. */
static bool write_shard(struct cuts *c)
{
    const struct cut_order *order = &c->view.order;
    struct cuts_shard shard = {.generation = order->write, .id = order->id};

    for (int k = 0; k < CUT_RANKS; k++) {
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
    case CUT_DROPS:             /* known before any row moves */
        c->mine.gone = order->cut;
        return give_mark(c) && descant_rows_settle(c->t->job) == DESCANT_OK;
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

static struct cut_ranks ranks_of(struct cuts *c)
{
    struct cut_ranks ranks = {.marks = c->view.marks, .lost = c->lost, .owns = c->owns,
                              .n = CUT_RANKS, .finished = goes(c) >= GOES_FINISHES};

    for (int k = 0; k < CUT_RANKS; k++) {
        c->lost[k] = rank_is(&c->t->lost, k);
        c->owns[k] = c->parts[k] > 0;
        ranks.parts += (uint64_t)c->parts[k];
    }
    return ranks;
}

static void tell(struct cuts *c, enum cut_state state)
{
    const struct cut_ranks ranks = ranks_of(c);
    int who;
    enum cut_fault fault = cut_fault(&c->given, &ranks, &who);

    pthread_mutex_lock(&c->mutex);
    c->outcome = state;
    c->fault = fault;
    c->who = who;
    c->n_shards = 0;
    for (int k = 0; k < CUT_RANKS; k++)
        if (cut_writes(&c->given, &c->view.marks[k]))
            c->rows[c->n_shards++] = c->view.marks[k].rows;
    c->any_moved = c->moved > 0;
    c->cut = 0;
    pthread_cond_broadcast(&c->moved_on);
    pthread_mutex_unlock(&c->mutex);
}

static uint64_t wanted(struct cuts *c)
{
    pthread_mutex_lock(&c->mutex);
    uint64_t cut = c->cut;
    pthread_mutex_unlock(&c->mutex);
    return cut;
}

/* Whether this rank leads is settled at each turn. A rank that was not the first before
 * looks at all marks, and at the order of the rank that was. */
static bool settle_lead(struct cuts *c)
{
    int me = c->t->rank;
    bool first = others_first(c->t) == me;

    if (first && (!c->leads || c->others) && !look(c, true))
        return false;
    struct cut_chair chair = {.first = first && others_first(c->t) == me,
                              .leads = c->leads, .others = c->others,
                              .wanted = wanted(c)};
    chair.mine = chair.wanted == c->ordered;
    bool begins = cut_takes_over(&chair);
    if (begins) {
        memcpy(c->order_row, c->seen_row, sizeof c->order_row);
        c->given = cut_goes_on(&c->view.order, &c->given, c->view.marks, CUT_RANKS);
        note_last(c, &c->given);
    }
    chair.ordered = c->given.cut;
    if (cut_gives_up(&chair))
        tell(c, CUT_FAILED);
    c->leads = chair.first;
    c->others = false;
    return !begins || give_order(c);
}

/* Gives the order that the other thread has left. */
static bool give_changed(struct cuts *c)
{
    struct cut_order *given = &c->given;

    pthread_mutex_lock(&c->mutex);
    const struct cut_order wanted = c->wanted;
    uint64_t cut = c->cut;
    bool ends = c->goes == GOES_ENDS, changed = c->changed;
    c->changed = false;
    pthread_mutex_unlock(&c->mutex);
    if (!c->leads || !(changed || cut > given->cut || (ends && !given->over)))
        return true;
    given->over |= ends;
    if (cut > given->cut) {
        given->cut = c->ordered = cut;
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

static enum cut_state judge(struct cuts *c, int *who)
{
    const struct cut_ranks ranks = ranks_of(c);

    return cut_judge(&c->given, &ranks, who);
}

/* Brings the cut that is under way further. */
static bool lead(struct cuts *c)
{
    struct cut_order *given = &c->given;
    uint64_t cut = wanted(c);
    int who;

    if (!cut || !c->leads || c->others || given->cut != cut || c->ordered != cut)
        return true;
    if (!look_at_parts(c))
        return false;
    enum cut_state state = judge(c, &who);
    if (!cut_acts(state))
        return true;
    if (!look(c, true) || !look_at_parts(c))
        return false;
    if (c->others || judge(c, &who) != state)
        return true;
    if (state == CUT_HELD || state == CUT_MISSING) {
        given->settle = cut;
        given->round++;
    } else if (state == CUT_SETTLED) {
        given->write = cut;
    } else {
        given->done = cut;
    }
    if (!give_order(c))
        return false;
    if (given->done == cut)
        tell(c, state);
    return true;
}

/* --- the thread --- */

/* Until it is time for the next look, or there is an order to give. After an act the next
 * one is near; where nothing happens looks become rare. False: the thread is to end. */
static bool rest(struct cuts *c)
{
    pthread_mutex_lock(&c->mutex);
    if (!c->changed && c->goes < GOES_LEAVES)
        tick_wait(&c->moved_on, &c->mutex, c->rest_ns);
    if (c->changed)
        c->rest_ns = LEAST_NS;
    bool stops = c->goes == GOES_STOPS;
    pthread_mutex_unlock(&c->mutex);
    c->rest_ns = 2 * c->rest_ns < MOST_NS ? 2 * c->rest_ns : MOST_NS;
    return !stops;
}

/* Shows that this rank needs no leader any more: LEFT, since its rows are with others,
 * and so is all that it has pushed; or ENDED. */
static bool leave(struct cuts *c, enum cut_stand stand)
{
    c->over = true;
    c->mine.stand = stand;
    return release(c) && give_mark(c) && descant_rows_settle(c->t->job) == DESCANT_OK;
}

/* All ranks that are there finish together: a first rank whose mark does not say so for
 * long was never there for this one. */
static bool led(struct cuts *c)
{
    int first = others_first(c->t);
    uint64_t now = clock_now_ns();

    c->ends_ns = c->self.ends && !c->ends_ns ? now : c->ends_ns;
    enum cut_stand stand = c->view.marks[first].stand;
    bool seen = first == c->t->rank || stand == CUT_FINISHED || stand == CUT_ENDED;
    return others_led(c->t) && (seen || !c->ends_ns || now - c->ends_ns < FINISH_NS);
}

static enum cut_act next(struct cuts *c)
{
    c->self.ends = goes(c) == GOES_ENDS;
    c->self.led = led(c);
    /* the first rank judges its cut by these marks */
    c->self.gone = others_first(c->t) == c->t->rank ? 0 : c->gone;
    return cut_act(&c->view.order, &c->mine, &c->self);
}

/* The first rank, which mends the order while others may not have seen the last one. */
static bool stays(struct cuts *c)
{
    struct cut_ranks ranks = {.marks = c->view.marks, .lost = c->lost, .n = CUT_RANKS};
    uint64_t now = clock_now_ns();

    if (!c->leads || !c->view.order.over)
        return false;
    for (int k = 0; k < CUT_RANKS; k++)
        c->lost[k] = rank_is(&c->t->lost, k);
    c->over_ns = c->over_ns ? c->over_ns : now;
    return !cut_all_know(&ranks, c->t->rank) && now - c->over_ns < FINISH_NS;
}

static bool say_finished(struct cuts *c)
{
    enum goes how = goes(c);

    if (c->mine.stand != CUT_THERE || (how != GOES_FINISHES && how != GOES_ENDS))
        return true;
    c->mine.stand = CUT_FINISHED;
    return give_mark(c);
}

/* A look, and what follows from it. Rows that were asked for come during the rest, so
 * that a look waits for nothing, which would count as a stall; an act does. False: the
 * job has failed, or there are no more cuts. */
static bool turn(struct cuts *c)
{
    if (!settle_lead(c) || !give_changed(c) || !say_finished(c) ||
        (c->mark_lost && !give_mark(c)) || !ask(c, wanted(c) != 0 || c->over_ns))
        return false;
    if (!rest(c) || !take(c))
        return false;
    if (goes(c) == GOES_LEAVES)
        return leave(c, CUT_LEFT) && false;
    enum cut_act act = next(c);
    if (act != CUT_RESTS) {             /* for the details */
        c->rest_ns = LEAST_NS;
        if (!look(c, act == CUT_HOLDS || act == CUT_WRITES || act == CUT_ENDS ||
                  wanted(c)))
            return false;
        act = next(c);
    }
    if (act == CUT_ENDS && stays(c))
        return true;
    if (act == CUT_ENDS && !c->view.order.over)
        log_say(&c->t->log, DESCANT_WARNING, "rank %d, which writes the checkpoints, has "
                "gone without a word: there is no last one", others_first(c->t));
    if (act == CUT_ENDS)
        return leave(c, CUT_ENDED) && false;
    return follow(c, act) && lead(c);
}

static void *follow_orders(void *of)
{
    struct cuts *c = of;

    while (turn(c))
        ;
    pthread_mutex_lock(&c->mutex);
    if (!c->over && c->goes < GOES_LEAVES) {
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

/* A rank that comes late has heard no event of those that had died before. Of these only
 * ranks of the start, and those with a mark, are ever waited for. */
static void look_who_is_there(struct cuts *c)
{
    for (int k = 0; c->t->late && k < CUT_RANKS; k++) {
        enum cut_stand stand = c->view.marks[k].stand;
        if (k != c->t->rank && (k < c->t->owners || stand == CUT_THERE ||
                                stand == CUT_FINISHED))
            others_look(c->t, k);
    }
}

/* The mark is there before this rank trains: a cut must wait for what it pushes. */
descant_status cuts_start(struct trainer *t)
{
    struct cuts *c = t->cuts;

    if (!c)
        return DESCANT_OK;
    bool good = look(c, true);
    look_who_is_there(c);
    c->rest_ns = LEAST_NS;
    c->mine.stand = CUT_THERE;
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

static descant_status say_fault(const struct trainer *t, enum cut_fault fault, int who)
{
    static const char *const faults[] = {
        [CUT_FAULT_SHARD] = "could not write its shard, and has said why",
        [CUT_FAULT_GONE] = "has gone; the next checkpoint is of the ranks that are there",
        [CUT_FAULT_DEAD] = "has taken this rank for dead"};

    if (fault == CUT_FAULT_ORDER)
        return log_fail(&t->log, DESCANT_SYSTEM,
                        "no checkpoint is written: its order was lost with a rank that "
                        "has gone, or another rank has led meanwhile");
    return log_fail(&t->log, DESCANT_SYSTEM, "no checkpoint is written: rank %d %s", who,
                    faults[fault]);
}

descant_status cuts_make(struct trainer *t, struct shards *s)
{
    struct cuts *c = t->cuts;

    pthread_mutex_lock(&c->mutex);
    c->cut = s->generation;
    c->wanted.id = s->id;
    c->changed = true;
    pthread_cond_broadcast(&c->moved_on);
    while (c->cut && !c->ended)
        pthread_cond_wait(&c->moved_on, &c->mutex);
    bool ended = c->cut != 0;
    const char *why = c->why[0] ? c->why : "the ranks that own rows are not all there";
    enum cut_state outcome = c->outcome;
    enum cut_fault fault = c->fault;
    int who = c->who;
    pthread_mutex_unlock(&c->mutex);
    s->rows = c->rows;
    s->n = c->n_shards;
    s->moved = c->any_moved;
    if (ended)
        return log_fail(&t->log, DESCANT_ENDED,
                        "no checkpoint is written: %s", why);
    return outcome == CUT_WRITTEN ? DESCANT_OK : say_fault(t, fault, who);
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
    t->cuts->goes = GOES_FINISHES;
    pthread_mutex_unlock(&t->cuts->mutex);
}

uint64_t cuts_last(struct trainer *t)
{
    pthread_mutex_lock(&t->cuts->mutex);
    uint64_t last = t->cuts->last;
    pthread_mutex_unlock(&t->cuts->mutex);
    return last;
}

static void end(struct cuts *c, enum goes goes)
{
    if (!c || !c->started)
        return;
    pthread_mutex_lock(&c->mutex);
    c->goes = goes;
    bool holds = c->asks_hold && goes == GOES_STOPS;
    c->asks_hold &= !holds;
    pthread_cond_broadcast(&c->moved_on);
    pthread_mutex_unlock(&c->mutex);
    if (holds)
        descant_owned_hold(c->t->job, 0);
    pthread_join(c->thread, NULL);
    c->started = false;
}

void cuts_leave(struct trainer *t)
{
    end(t->cuts, GOES_LEAVES);
}

void cuts_end(struct trainer *t, bool finished)
{
    end(t->cuts, finished ? GOES_ENDS : GOES_STOPS);
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
