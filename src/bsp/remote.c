/* SPDX-License-Identifier: MIT */
/* Control's side of a branch (parcel.h). A sum stays in the fabric's memory until a
 * superstep reads it out, and no other sum comes from the branch before; a model that
 * waits for the one before it is not sent at all if a newer one comes first. So a slow
 * branch has one parcel under way in each direction, and costs the others nothing.
 *
 *   1. A sum counts if its branch had this run's model in its segments when the sum was
 *      read out, also if another process has the rank by now; else its gradients are
 *      undone.
 *   2. The bound on staleness holds for a sum as it comes here, too: a sum that was read
 *      out so many versions ago that its gradients could be older is refused, and
 *      counted.
 *   3. A branch whose segments have models of another run gets none before control has a
 *      version above theirs (taken_over, version; the next store). */
#include "bsp/remote.h"

#include "bsp/layout.h"
#include "kernels/kernels.h"

#include <inttypes.h>
#include <string.h>

struct remote {
    struct local head;
    struct remote_options o;
    uint64_t known;                 /* the process that has the rank */
    bool came, ever, ready, left;   /* of that process: HELLO, READY, LAST; ever: of
                                       any */
    bool welcome, shape, model, end;/* words to be sent */
    bool over;                      /* the run is over */
    bool foreign;                   /* its segments are of another run, up to */
    uint64_t foreign_version;
    uint64_t version, since;        /* of o.model */
    uint64_t join;                  /* its first version after a foreign run */
    uint64_t asked, told, answered, passed;     /* orders */
    struct up last;                 /* the newest head */
    struct local_figures before;    /* of processes that had the rank before */
    bool held;                      /* a sum waits for its read-out */
    struct parcel parcel;
    struct up sum;
    int modules;                    /* by the newest head that told them */
    uint64_t undone;                /* to be told at the next read-out */
    /* Gradients received, with those left out and those of an earlier control; and the
     * part of the rank's present process */
    uint64_t received, from_known;
    uint64_t stale, bad;            /* refused here */
    bool died;
};

static struct remote *remote_of(struct local *local)
{
    return (struct remote *)(void *)local;
}

static const struct remote *remote_in(const struct local *local)
{
    return (const struct remote *)(const void *)local;
}

static const struct fabric_post *post_of(const struct remote *r)
{
    return r->o.f->type->post;
}

/* --- parcels that come --- */

static void hear_state(struct remote *r, const struct up *up)
{
    r->last = *up;
    r->modules = (int)up->modules;
    if (up->asked > r->answered)
        r->answered = up->asked;
    if (up->what & UP_HELLO) {
        const uint64_t all = up->figures.gradients;
        uint64_t handed_on = all > up->pending ? all - up->pending : 0;
        r->received += handed_on - r->from_known;   /* they were among these */
        r->from_known = handed_on;
        r->came = r->ever = r->welcome = true;
        r->ready = r->left = r->shape = r->model = false;
        r->end = r->over;
        r->told = r->answered = r->asked;
    }
    bool foreign = up->what & (UP_HELLO | UP_ABOVE) && up->version && up->run != r->o.run;
    bool false_version = foreign && up->version > r->version + VERSION_LEAP;
    if (false_version && !r->left)
        log_say(r->o.log, DESCANT_WARNING,
                "rank %d says that its segments have version %" PRIu64
                ", which no run has come to: it is left out",
                r->o.rank, up->version);
    if (foreign && !false_version) {
        r->foreign = true;
        r->foreign_version = up->version;
    }
    if (up->what & UP_READY) {
        r->ready = r->shape = true;
        r->model = !r->over;
    }
    r->left |= false_version || up->what & UP_LAST;
}

/* --- coming and going --- */

static uint64_t lost(const struct remote *r)
{
    struct local_figures all = r->before;
    local_figures_add(&all, &r->last.figures);
    return r->died && all.gradients > r->received ? all.gradients - r->received : 0;
}

static void look_who(struct remote *r, uint64_t who)
{
    if (who == r->known)
        return;
    if (r->known && r->came && !r->left) {
        r->died = true;
        log_say(r->o.log, DESCANT_WARNING,
                "the local modules of rank %d have died, with %" PRIu64
                " gradients that were not read out%s",
                r->o.rank, lost(r), r->o.n_ranks > 1 ? "; the others go on" : "");
    }
    local_figures_add(&r->before, &r->last.figures);
    r->last = (struct up){0};
    r->before.attached = 0;
    r->came = r->ready = r->left = r->foreign = false;
    r->from_known = 0;
    r->known = who;
}

/* Of a head of the rank's former process only the sum counts. */
static bool hear(struct remote *r, uint64_t who)
{
    struct parcel parcel;
    struct up up;

    if (r->held || !post_of(r)->look(r->o.f, r->o.rank, &parcel))
        return false;
    if (parcel.from == who)
        look_who(r, who);
    memcpy(&up, parcel.head, sizeof up);
    if (parcel.from == r->known)
        hear_state(r, &up);
    if (up.what & UP_SUM) {
        bool ours = up.run == r->o.run;
        uint64_t all = up.sums.gradients + up.sums.undone + up.sums.not_finite;
        r->received += all;
        r->from_known += parcel.from == r->known ? all : 0;
        r->held = ours && up.sums.gradients && parcel.values;
        r->undone += r->held ? 0 : ours ? up.sums.undone : all;
        r->parcel = parcel;
        r->sum = up;
    }
    if (!r->held)
        post_of(r)->taken(r->o.f, r->o.rank);
    return true;
}

/* --- parcels that leave --- */

static size_t part_floats(const struct remote *r)
{
    return r->o.n_parts * sizeof *r->o.parts / sizeof(float);
}

static size_t room_of(const struct remote *r)
{
    return r->o.n > part_floats(r) ? r->o.n : part_floats(r);
}

static void send(struct remote *r)
{
    unsigned char head[POST_HEAD] = {0};
    size_t n = 0;
    struct down down = {.n_parts = r->o.n_parts,
                        .run = r->o.run,
                        .n = r->o.n,
                        .room = room_of(r),
                        .bound = r->o.bound,
                        .first_rank = r->o.first_rank,
                        .n_ranks = r->o.n_ranks,
                        .version = r->version,
                        .since = r->since > r->join ? r->since : r->join,
                        .asked = r->asked};

    if (!r->came || r->left || !post_of(r)->free(r->o.f, r->o.rank))
        return;
    if (r->welcome)
        down.what |= DOWN_WELCOME;
    if (r->end)
        down.what |= DOWN_END;
    if (r->ready && r->asked > r->told)
        down.what |= DOWN_READ;
    if (r->ready && r->shape) {
        down.what |= DOWN_SHAPE;
        n = part_floats(r);
    } else if (r->ready && r->model && !r->foreign) {
        down.what |= DOWN_MODEL;
        n = r->o.n;
    }
    if (!down.what)
        return;
    if (n)
        memcpy(post_of(r)->box(r->o.f, r->o.rank),
               down.what & DOWN_SHAPE ? (const void *)r->o.parts : r->o.model,
               n * sizeof(float));
    memcpy(head, &down, sizeof down);
    r->welcome = r->end = false;
    if (down.what & DOWN_READ)
        r->told = r->asked;
    r->shape &= !(down.what & DOWN_SHAPE);
    r->model &= !(down.what & DOWN_MODEL);
    post_of(r)->send(r->o.f, r->o.rank, head, n);
}

bool remote_turn(struct local *local)
{
    struct remote *r = remote_of(local);
    uint64_t who = post_of(r)->who(r->o.f, r->o.rank);

    /* the last parcel of a process that has died is here, since `who` is older */
    bool heard = hear(r, who);
    look_who(r, who);
    send(r);
    return heard;
}

/* --- orders --- */

void remote_ask(struct local *local, uint64_t order)
{
    remote_of(local)->asked = order;
    send(remote_of(local));
}

bool remote_awaited(const struct local *local, uint64_t order)
{
    const struct remote *r = remote_in(local);
    return r->came && r->ready && !r->left && !r->foreign && !r->held &&
           r->answered < order && r->answered >= r->passed;
}

void remote_pass_over(struct local *local, uint64_t order)
{
    if (remote_awaited(local, order))
        remote_of(local)->passed = order;
}

struct remote_news remote_news(const struct local *local)
{
    const struct remote *r = remote_in(local);
    return (struct remote_news){.here = r->known != 0,
                                .came = r->ever,
                                .welcome = r->came,
                                .left = r->left,
                                .held = r->held,
                                .modules = r->modules,
                                .lost = lost(r),
                                .crew = r->last.crew};
}

/* --- as a local module --- */

static void remote_close(struct local *local)
{
    const struct remote *r = remote_in(local);

    if (r->held)
        post_of(r)->taken(r->o.f, r->o.rank);
    memory_give(local);
}

static void remote_end(struct local *local)
{
    struct remote *r = remote_of(local);

    r->end = r->over = true;
    r->model = false;       /* the model may be bad, and the reason of the end */
    send(r);
}

static bool remote_taken_over(const struct local *local)
{
    return remote_in(local)->foreign;
}

static uint64_t remote_version(const struct local *local)
{
    const struct remote *r = remote_in(local);
    return r->foreign ? r->foreign_version : r->version;
}

/* A sum that comes so late that its gradients would be refused now is refused, and so is
 * one of several modules that is more than a float holds. */
static void remote_read_out(struct local *local, struct gradient *g,
                            struct local_sums *sums)
{
    struct remote *r = remote_of(local);
    const struct local_sums *s = &r->sum.sums;
    uint64_t behind = r->version - r->sum.version, most = s->lag_most + behind;

    sums->undone += r->undone;
    r->undone = 0;
    if (!r->held)
        return;
    sums->undone += s->undone;
    sums->not_finite += s->not_finite;
    if (r->sum.version > r->version || most > r->o.bound) {
        r->stale += s->gradients;
    } else if (!kernels_best()->finite(r->parcel.values, r->o.n)) {
        r->bad += s->gradients;
        sums->not_finite += s->gradients;
    } else {
        gradient_add(g, r->parcel.values);
        sums->gradients += s->gradients;
        sums->examples += s->examples;
        sums->lag += s->lag + behind * s->gradients;
        sums->lag_most = most > sums->lag_most ? most : sums->lag_most;
    }
    r->held = false;
    post_of(r)->taken(r->o.f, r->o.rank);
}

static void remote_store(struct local *local, const float *model, uint64_t version,
                         uint64_t since)
{
    struct remote *r = remote_of(local);

    if (r->foreign)
        r->join = version;
    r->foreign = false;
    r->o.model = model;
    r->version = version;
    r->since = since;
    r->model = true;
    send(r);
}

static void remote_figures(const struct local *local, struct local_figures *figures)
{
    const struct remote *r = remote_in(local);
    *figures = r->before;
    local_figures_add(figures, &r->last.figures);
    figures->stale += r->stale;
    figures->bad += r->bad;
}

static uint64_t remote_pending(const struct local *local)
{
    const struct remote *r = remote_in(local);
    return (r->came && !r->left ? r->last.pending : 0) +
           (r->held ? r->sum.sums.gradients : 0);
}

static const struct local_kind remote_kind = {
    .close = remote_close,
    .end = remote_end,
    .taken_over = remote_taken_over,
    .version = remote_version,
    .read_out = remote_read_out,
    .next = NULL,               /* it goes out of control's own copy, later */
    .store = remote_store,
    .figures = remote_figures,
    .pending = remote_pending,
};

/* The box for the model is mapped at once, for control takes all its memory while it
 * begins. */
descant_status remote_open(struct local **local, const struct remote_options *options)
{
    struct remote *made = memory_take(sizeof *made);

    if (!made)
        return log_fail(options->log, DESCANT_MEMORY, "no memory for local modules");
    made->head.kind = &remote_kind;
    made->o = *options;
    made->version = options->version;
    descant_status status = post_of(made)->room(options->f, options->rank, 0);
    if (status == DESCANT_OK)
        status = post_of(made)->room(options->f, options->rank, room_of(made));
    if (status != DESCANT_OK) {
        memory_give(made);
        return status;
    }
    *local = &made->head;
    return DESCANT_OK;
}
