/* SPDX-License-Identifier: MIT */
/* A branch (parcel.h). Its segments are made when the first model comes, and are then
 * kept until branch_close: when control dies, the branch waits for another one, and the
 * modules run on with the model they have.
 *
 *   1. Sums are read out into the fabric's box when control has ordered it and the box is
 *      free; until then gradients gather in the segments, and no module waits.
 *   2. Sums of another run in a segment are never counted: a segment that was taken over
 *      begins with the first model that is stored there, and a model that is not above
 *      all segments' is refused. */
#include "bsp/branch.h"

#include <inttypes.h>
#include <string.h>

#define FIGURES_NS UINT64_C(20000000)

struct branch {
    struct branch_options o;
    struct segment_part *parts;     /* NULL: not yet */
    struct local **locals;          /* (o.modules), n_locals of them open */
    int n_locals;
    uint64_t control, self;         /* the processes of rank 0, and of this rank */
    bool called;                    /* there has been a control */
    struct gradient gradient;       /* of a read-out, summed in the box */
    struct down job;                /* WELCOME */
    uint64_t run;                   /* of the segments' models */
    uint64_t asked, answered;
    uint64_t sent;                  /* gradients of the last parcel */
    bool hello, ready, above, last, last_sent, ended;
    bool drained;                   /* of the state before this run */
    uint64_t above_version;
    struct crew_figures crew;
    struct local_figures told;      /* the last figures sent, and when */
    struct crew_figures told_crew;
    uint64_t told_ns;
    descant_status status;
};

static const struct fabric_post *post_of(const struct branch *b)
{
    return b->o.f->type->post;
}

descant_status branch_open(struct branch **branch, const struct branch_options *options)
{
    struct branch *made = memory_take(sizeof *made);
    struct local **locals = memory_take_array((size_t)options->modules, sizeof *locals);

    if (!made || !locals ||
        !gradient_init(&made->gradient, NULL, 0, options->modules * SEGMENT_SLOTS)) {
        memory_give(made);
        memory_give(locals);
        return log_fail(options->log, DESCANT_MEMORY, "no memory for local modules");
    }
    made->o = *options;
    made->locals = locals;
    descant_status status = post_of(made)->room(options->f, 0, 0);
    if (status != DESCANT_OK) {
        branch_close(made);
        return status;
    }
    made->self = post_of(made)->who(options->f, options->f->rank);
    *branch = made;
    return DESCANT_OK;
}

void branch_close(struct branch *b)
{
    if (!b)
        return;
    for (int k = 0; k < b->n_locals; k++)
        local_close(b->locals[k]);
    gradient_fini(&b->gradient);
    memory_give(b->locals);
    memory_give(b->parts);
    memory_give(b);
}

/* --- words of control --- */

static descant_status hear_welcome(struct branch *b, const struct down *down)
{
    if (b->parts && (down->n != b->job.n || down->n_parts != b->job.n_parts))
        return log_fail(b->o.log, DESCANT_MISMATCH,
                        "control has a model of %" PRIu64
                        " floats in %u parts, these segments are of %" PRIu64 " in %u",
                        down->n, down->n_parts, b->job.n, b->job.n_parts);
    if (down->n == 0 || down->n > SEGMENT_FLOATS || down->n_parts == 0 ||
        down->n_parts > SEGMENT_PARTS || down->room < down->n ||
        down->room < down->n_parts * sizeof *b->parts / sizeof(float))
        return log_fail(b->o.log, DESCANT_CORRUPT, "rank 0 is not control of a BSP job");
    b->job = *down;
    b->ready = true;
    return post_of(b)->room(b->o.f, 0, down->room);
}

static descant_status hear_shape(struct branch *b, const struct parcel *parcel)
{
    size_t bytes = b->job.n_parts * sizeof *b->parts;
    struct segment_part now;

    if (!parcel->values || parcel->n * sizeof(float) != bytes)
        return log_fail(b->o.log, DESCANT_CORRUPT,
                        "control has sent what are no parts of a model");
    /* compares a new control's parts with the segments': names come from another
     * machine */
    for (uint32_t i = 0; b->parts && i < b->job.n_parts; i++) {
        const struct segment_part *part = &b->parts[i];
        memcpy(&now, (const char *)parcel->values + i * sizeof now, sizeof now);
        if (strncmp(part->name, now.name, sizeof now.name) != 0 || part->n != now.n)
            return log_fail(b->o.log, DESCANT_MISMATCH,
                            "control has another model: its part %u is '%.*s' of %" PRIu64
                            " floats, that of these segments '%.*s' of %" PRIu64,
                            i, (int)sizeof now.name, now.name, now.n,
                            (int)sizeof part->name, part->name, part->n);
    }
    if (b->parts)
        return DESCANT_OK;
    b->parts = memory_take_array(b->job.n_parts, sizeof *b->parts);
    if (!b->parts)
        return log_fail(b->o.log, DESCANT_MEMORY, "no memory for a list of parts");
    memcpy(b->parts, parcel->values, bytes);
    return DESCANT_OK;
}

int branch_first(const struct branch *b)
{
    return (b->o.f->rank - b->job.first_rank) * b->o.modules;
}

int branch_all(const struct branch *b)
{
    return b->job.n_ranks * b->o.modules;
}

static uint64_t newest_of(const struct branch *b)
{
    uint64_t most = 0;

    for (int k = 0; k < b->n_locals; k++) {
        uint64_t version = local_version(b->locals[k]);
        most = version > most ? version : most;
    }
    return most;
}

static descant_status hear_model(struct branch *b, const float *model,
                                 const struct down *down)
{
    bool first = b->n_locals == 0, taken_over = false;
    const struct local_range range = {b->o.name, branch_first(b), b->o.modules};
    const struct segment_options options = {.slots = b->o.slots, .bound = b->job.bound,
                                            .parts = b->parts, .n_parts = b->job.n_parts,
                                            .model = model, .version = down->version,
                                            .log = b->o.log};
    descant_status status =
        first ? local_open_range(b->locals, &b->n_locals, &range, options) : DESCANT_OK;

    if (status != DESCANT_OK)
        return status;
    for (int k = 0; k < b->n_locals; k++)
        taken_over |= local_taken_over(b->locals[k]);
    uint64_t newest = newest_of(b);
    if (!first && b->run == down->run && newest >= down->version)
        return DESCANT_OK;      /* control's sum is still here */
    if (newest > down->version || (newest == down->version && (!first || taken_over))) {
        b->above = true;
        b->above_version = newest;
        return DESCANT_OK;
    }
    for (int k = 0; k < b->n_locals; k++) {
        struct local *local = b->locals[k];
        uint64_t since = local_taken_over(local) ? down->version : down->since;
        if (local_version(local) < down->version)
            local_store(local, model, down->version, since);
    }
    b->drained &= b->run == down->run;
    b->run = down->run;
    return DESCANT_OK;
}

static descant_status hear(struct branch *b, const struct parcel *parcel)
{
    struct down down;
    descant_status status = DESCANT_OK;

    memcpy(&down, parcel->head, sizeof down);
    if (b->job.n == 0 && !(down.what & DOWN_WELCOME))
        return DESCANT_OK;      /* the parcel is for the rank's former process */
    if (down.what & DOWN_WELCOME)
        status = hear_welcome(b, &down);
    if (status == DESCANT_OK && down.what & DOWN_SHAPE)
        status = hear_shape(b, parcel);
    if (status == DESCANT_OK && down.what & DOWN_MODEL && (!b->parts || !parcel->values))
        status = log_fail(b->o.log, DESCANT_CORRUPT,
                          "control has sent a model without its parts");
    if (status == DESCANT_OK && down.what & DOWN_MODEL)
        status = hear_model(b, parcel->values, &down);
    if (down.what & DOWN_READ)
        b->asked = down.asked;
    b->ended |= (down.what & DOWN_END) != 0;
    return status;
}

/* --- words to control --- */

static uint64_t pending(const struct branch *b)
{
    uint64_t all = 0;

    for (int k = 0; k < b->n_locals; k++)
        all += local_pending(b->locals[k]);
    return all;
}

/* Writes the sum into the box; returns its floats. */
static size_t read_out(struct branch *b, struct local_sums *sums)
{
    size_t n = (size_t)b->job.n;
    float *box = post_of(b)->box(b->o.f, 0);

    *sums = (struct local_sums){0};
    if (b->drained && pending(b) == 0)
        return 0;
    b->drained = true;
    b->gradient.sum = box;
    b->gradient.n = n;
    gradient_clear(&b->gradient);
    for (int k = 0; k < b->n_locals; k++)
        local_read_out(b->locals[k], &b->gradient, sums);
    gradient_gather(&b->gradient);
    return sums->gradients ? n : 0;
}

static uint32_t what_to_say(const struct branch *b, const struct local_figures *now)
{
    const struct local_figures *told = &b->told;
    uint32_t what = 0;
    bool moved = now->gradients != told->gradients || now->stale != told->stale ||
                 now->bad != told->bad || now->owners != told->owners ||
                 now->attached != told->attached ||
                 memcmp(&b->crew, &b->told_crew, sizeof b->crew) != 0;

    if (b->hello)
        return UP_HELLO;
    if (b->ready)
        what |= UP_READY;
    if (b->above)
        what |= UP_ABOVE;
    if (b->asked > b->answered && b->n_locals)
        what |= UP_SUM;
    if (b->last && !b->last_sent)
        what |= UP_LAST | (b->n_locals ? UP_SUM : 0u);
    if (!what && moved && clock_now_ns() - b->told_ns >= FIGURES_NS)
        what = UP_FIGURES;
    return what;
}

static void send(struct branch *b)
{
    unsigned char head[POST_HEAD] = {0};
    struct up up = {.modules = (uint32_t)b->o.modules, .run = b->run, .asked = b->asked,
                    .crew = b->crew};
    size_t n = 0;

    if (!b->control || !post_of(b)->free(b->o.f, 0))
        return;
    up.figures = local_figures_of(b->locals, b->n_locals);
    up.what = what_to_say(b, &up.figures);
    if (!up.what)
        return;
    up.version = up.what & UP_ABOVE ? b->above_version : newest_of(b);
    if (up.what & UP_ABOVE)
        up.run = 0;
    if (up.what & UP_SUM)
        n = read_out(b, &up.sums);
    up.pending = pending(b);
    b->sent = up.sums.gradients;
    memcpy(head, &up, sizeof up);
    b->hello &= !(up.what & UP_HELLO);
    b->ready &= !(up.what & UP_READY);
    b->above &= !(up.what & UP_ABOVE);
    b->answered = up.what & UP_SUM ? up.asked : b->answered;
    b->last_sent |= (up.what & UP_LAST) != 0;
    b->told = up.figures;
    b->told_crew = up.crew;
    b->told_ns = clock_now_ns();
    post_of(b)->send(b->o.f, 0, head, n);
}

/* --- a turn --- */

descant_status branch_turn(struct branch *b, bool *heard)
{
    struct parcel parcel;
    uint64_t who = post_of(b)->who(b->o.f, 0);

    /* the last parcel of a control that has gone is here, since `who` is older */
    *heard = false;
    while (b->status == DESCANT_OK && post_of(b)->look(b->o.f, 0, &parcel)) {
        if (parcel.to == b->self && b->control && parcel.from == b->control)
            b->status = hear(b, &parcel);
        post_of(b)->taken(b->o.f, 0);
        *heard = true;
    }
    if (who != b->control && who) {
        b->hello = true;
        b->asked = b->answered = 0;
        if (b->called)
            log_say(b->o.log, DESCANT_WARNING, "there is a control again");
        b->called = true;
    } else if (who != b->control && !b->ended) {
        log_say(b->o.log, DESCANT_WARNING,
                "control is gone: segments and modules go on; another one is awaited");
    }
    b->control = who;
    if (b->status == DESCANT_OK)
        send(b);
    return b->status;
}

void branch_say_crew(struct branch *b, const struct crew_figures *crew)
{
    b->crew = *crew;
}

int branch_locals(const struct branch *b)
{
    return b->n_locals == b->o.modules ? b->n_locals : 0;
}

struct local *branch_local(const struct branch *b, int k)
{
    return b->locals[k];
}

bool branch_ended(const struct branch *b)
{
    return b->ended;
}

bool branch_alone(const struct branch *b)
{
    return b->control == 0;
}

void branch_end(struct branch *b)
{
    for (int k = 0; k < b->n_locals; k++)
        local_end(b->locals[k]);
}

void branch_last(struct branch *b)
{
    b->last = true;
}

bool branch_done(const struct branch *b)
{
    return b->last_sent && post_of(b)->free(b->o.f, 0);
}

uint64_t branch_untaken(const struct branch *b)
{
    bool taken = b->control || post_of(b)->free(b->o.f, 0);
    /* a control that lives will take them */
    return pending(b) + (taken ? 0 : b->sent);
}
