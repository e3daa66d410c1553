/* SPDX-License-Identifier: MIT */
/* The ranks of a job, on one host or many, over a link: MPI, so far. docs/mpi.md has the protocol;
 * here are the table, the order in which things are taken, and what one poll does (start.c comes
 * before it):
 *
 *   1 lets messages move, and hears those that have come (each knows what it ends)
 *   2 rank 0: looks whether a round closes
 *   3 rows: what the round that is closed needs (rows.c)
 *   4 the floats of the round that is closed, a bounded piece; it is done to its end even if the
 *     exchange that brought it here has been given up
 *   5 the exchange that is open: looks at its vector, arrives, takes its part
 *
 * 1. Only begin, poll, and the caller's open, start and close call the link: one thread at a
 *    time. wait may run beside them, and sleeps on figures that poll leaves.
 * 2. A round once closed is never begun again: the world is fixed, and who leaves stays until all
 *    have left, to do its part, to lead, and to serve its slice of the centre.
 * 3. What is sent lies in the contribution, in segments of the fabric's own, or in its buffers;
 *    never in the caller's memory, which may go at the next begin.
 * 4. What is sent or received stays until the link is through with it. A job that closes with
 *    messages under way, because others do not take or send what belongs to them, keeps all of its memory
 *    as long as the process lives: nobody can tell when they come, or which of it the link still
 *    has. */
#include "fabric/kernels.h"
#include "fabric/vector.h"
#include "machine/blocks.h"
#include "machine/meeting.h"
#include "ranks/ranks.h"

#include <string.h>

#define FAILED_STAYS_NS UINT64_C(2000000000)
#define SAY_LEAVING_NS UINT64_C(1000000000)

enum {
    LOOK_AT_ONCE = 1 << 17,     /* floats */
    LISTEN_AT_ONCE = 64         /* words */
};

/* --- failures and messages --- */

void ranks_fail(struct ranks *m, descant_status status, const char *format, ...)
{
    char text[LOG_LINE];
    va_list list;

    if (m->f.status)
        return;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    m->f.status = log_fail(&m->f.log, status, "%s", text);
}

static bool broken(struct ranks *m, int rank)
{
    const char *name = rank >= 0 ? m->place.names[rank] : "any host";
    ranks_fail(m, DESCANT_SYSTEM, "%s: %s, in a message with rank %d on %s", m->link->type->name,
             m->link->type->why(m->link), rank, name);
    return false;
}

void ranks_refuse(struct ranks *m, int rank, const char *format, ...)
{
    char text[RANKS_TEXT];
    va_list list;
    int n = snprintf(text, sizeof text, "rank %d (%s) breaks the protocol: ", rank,
                     m->place.names[rank]);

    va_start(list, format);
    vsnprintf(text + n, sizeof text - (size_t)n, format, list);
    va_end(list);
    if (m->lead)
        ranks_lead_fail(m, DESCANT_MISMATCH, text);
    else
        ranks_fail(m, DESCANT_MISMATCH, "%s", text);
}

bool ranks_send_op(struct ranks *m, struct ranks_op *op, const void *p, size_t bytes, enum ranks_tag tag)
{
    op->most = 0;
    op->busy = m->link->type->send(m->link, p, bytes, op->rank, (int)tag, op);
    return op->busy || broken(m, op->rank);
}

static bool receive(struct ranks *m, struct ranks_op *op, void *p, size_t most, enum ranks_tag tag)
{
    op->tag = (uint16_t)tag;
    op->most = (uint32_t)most;
    op->busy = m->link->type->receive(m->link, p, most, op->rank, (int)tag, op);
    return op->busy || broken(m, op->rank);
}

bool ranks_receive_op(struct ranks *m, struct ranks_op *op, void *p, size_t bytes, enum ranks_tag tag)
{
    op->any_length = false;
    return receive(m, op, p, bytes, tag);
}

bool ranks_receive_any(struct ranks *m, struct ranks_op *op, void *p, size_t most, enum ranks_tag tag)
{
    op->any_length = true;
    return receive(m, op, p, most, tag);
}

/* What has come is as long as it should be; else nothing of it is used. */
static bool length_is_good(struct ranks *m, struct ranks_op *op, const struct link_ended *ended)
{
    static const char *const names[] = {
        [TAG_WORD] = "a word", [TAG_MANIFEST] = "a manifest", [TAG_GIVE] = "a part of a mean",
        [TAG_TELL] = "a piece of a mean", [TAG_STATE] = "a piece of a state",
        [TAG_ASK] = "an ask", [TAG_ROWS] = "a part of rows", [TAG_POST] = "a parcel",
        [TAG_POST_TAKEN] = "a parcel's answer", [TAG_ANSWER] = "an answer"};
    char length[24] = "too many";

    if (!op->most || ended->bytes == op->most || (op->any_length && ended->bytes < op->most))
        return true;
    op->busy = false;
    if (ended->bytes != LINK_TOO_LONG)
        snprintf(length, sizeof length, "%zu", ended->bytes);
    ranks_refuse(m, ended->from, "%s of %s bytes, where %u belong%s",
                 names[op->tag < TAG_ANSWER ? op->tag : TAG_ANSWER], length, op->most,
                 op->any_length ? " at most" : "");
    return false;
}

/* True if something has ended. */
static bool collect(struct ranks *m)
{
    const struct link_ended *ended;
    int n = m->link->type->collect(m->link, &ended, &m->now_ns);

    if (!m->moved_ns)
        m->moved_ns = m->now_ns;
    if (n < 0)
        return broken(m, LINK_ANY);
    for (int i = 0; i < n; i++) {
        struct ranks_op *op = ended[i].op;
        if (length_is_good(m, op, &ended[i]))
            op->ended(m, op, &ended[i]);
    }
    m->moved |= n > 0;
    return n > 0;
}

/* Words come one at a time, and one may close a round for which others lie ready. */
static void listen_all(struct ranks *m)
{
    ranks_listen(m);
    for (int i = 0; i < LISTEN_AT_ONCE && collect(m); i++)
        ;
    if (m->lead)
        ranks_lead_turn(m);
}

/* --- begin --- */

static void moved_now(struct ranks *m)
{
    m->moved_ns = m->now_ns;
    atomic_store_explicit(&m->still, 0, memory_order_relaxed);
    /* nothing that moves while a round gathers is of it: what rank 0 has told stands */
    if (m->stage != STAGE_ARRIVED || m->round.active || m->go_waits)
        fabric_unsay(&m->f);
}

/* A helper's vector: what was given is the contribution, or the segments themselves. */
static const struct vector *own_vector(const struct ranks *m)
{
    return m->f.contribution ? &m->copy : &m->segments;
}

/* The round that may be under way goes on without its exchange, whose vector may be gone. */
static void give_up(struct ranks *m)
{
    m->round.ours = false;
    m->round.in = own_vector(m);
}

static descant_status ranks_begin(struct fabric *f, const struct exchange *exchange)
{
    struct ranks *m = ranks_of(f);
    const struct limits limits = {m->n, m->room, m->started, m->had_state, f->center != NULL};
    descant_status status = f->status ? f->status : exchange_check(exchange, &limits, &f->log);

    if (status)
        return status;
    m->had_state |= exchange->kind == EXCHANGE_STATE;
    if (m->stage == STAGE_ARRIVED && !m->round.active && !m->go_waits)
        ranks_tell(m, 0, (struct ranks_word){.what = WORD_TAKE_BACK, .seq = m->seq}, NULL, 0);
    if (m->stage == STAGE_ALONE)
        ranks_elastic_stop(m);
    give_up(m);
    m->x = *exchange;
    m->seq++;
    m->looked = exchange->kind == EXCHANGE_MEAN ? 0 : exchange->n;
    m->bad = f->own_bad = false;
    m->stage = exchange->kind == EXCHANGE_ELASTIC ? STAGE_ALONE : STAGE_LOOK;
    if (m->stage == STAGE_ALONE)
        ranks_elastic_begin(m);
    ranks_set_rest(m);
    moved_now(m);
    m->moved_ns = 0;            /* the time of the next poll: the last may be long ago */
    return f->status;
}

/* --- a poll --- */

static void arrive(struct ranks *m)
{
    const struct exchange *x = &m->x;

    ranks_tell(m, 0, (struct ranks_word){.what = WORD_ARRIVE, .seq = m->seq,
                                     .kind = (uint32_t)x->kind, .final = x->final,
                                     .bad = m->bad, .refers = m->refers, .n = x->n,
                                     .agree = x->agree, .priority = x->priority,
                                     .note = x->note, .weight = x->weight}, NULL, 0);
    m->stage = STAGE_ARRIVED;
    m->moved = true;
    if (m->lead)
        ranks_lead_turn(m);
}

/* Once nothing of before is under way here. */
static void look_and_arrive(struct ranks *m)
{
    size_t left = m->x.n - m->looked, n = left < LOOK_AT_ONCE ? left : LOOK_AT_ONCE;

    if (n) {
        for (size_t at = m->looked, run; at < m->looked + n; at += run) {
            const float *p;
            run = vector_reach(m->x.in, at, &p);
            run = run < m->looked + n - at ? run : m->looked + n - at;
            m->bad |= p && !kernels_best()->finite(p, run);
        }
        m->looked += n;
        m->moved = true;
    } else if (!m->round.active && !m->go_waits && ranks_elastic_quiet(m)) {
        arrive(m);
    }
}

static void begin_round(struct ranks *m)
{
    const struct ranks_word *word = m->go;
    struct ranks_round *r = &m->round;

    memcpy(r->seats, word + 1, word->seats * sizeof *r->seats);
    m->go_waits = false;
    ranks_listen(m);
    r->active = true;
    r->kind = (enum exchange_kind)word->kind;
    r->final = word->final;
    r->wire = word->encoded ? m->f.wire : WIRE_F32;
    r->number = word->round;
    r->n = word->n;
    r->k = (int)word->seats;
    r->n_bad = 0;
    r->note = word->note;
    r->source = -1;
    r->fetching = false;
    for (int i = 0; i < r->k; i++) {
        r->n_bad += r->seats[i].bad;
        r->me = r->seats[i].rank == m->f.rank ? i : r->me;
        r->source = r->seats[i].rank == word->source ? i : r->source;
    }
    r->ours = m->stage == STAGE_ARRIVED && r->seats[r->me].seq == m->seq;
    r->in = r->ours ? m->x.in : own_vector(m);
    atomic_store_explicit(&m->f.machine_threads, (int)r->seats[r->me].threads,
                          memory_order_relaxed);
    m->moved = true;
    if (r->kind == EXCHANGE_STATE)
        ranks_state_begin(m);
    else if (word->source >= 0)
        ranks_mean_begin(m);
    else
        r->n = 0;               /* nobody has anything good */
}

static enum fabric_progress end_mean(struct ranks *m, struct fabric_part *part)
{
    const struct ranks_round *r = &m->round;

    m->f.own_bad = r->seats[r->me].bad;
    atomic_fetch_add_explicit(&m->f.bad, r->n_bad, memory_order_relaxed);
    for (int i = 0; r->n_bad && i < r->k; i++)
        if (r->seats[i].bad)
            notes_add(m->f.notes, DESCANT_EVENT_BAD, r->seats[i].rank);
    if (!r->n) {
        m->stage = STAGE_IDLE;
        return FABRIC_DONE;
    }
    if (!r->final)
        m->refers = r->number;
    atomic_fetch_add_explicit(&m->f.bytes, ranks_mean_bytes(m), memory_order_relaxed);
    *part = (struct fabric_part){.kind = EXCHANGE_MEAN, .out = m->mean, .n = r->n,
                                 .members = r->k};
    m->stage = STAGE_PART;
    return FABRIC_PART;
}

static enum fabric_progress end_state(struct ranks *m, struct fabric_part *part)
{
    const struct ranks_round *r = &m->round;

    m->stage = STAGE_IDLE;
    m->refers = r->number;
    if (r->me == r->source)
        return FABRIC_DONE;
    atomic_fetch_add_explicit(&m->f.bytes, r->n * sizeof(float), memory_order_relaxed);
    *part = (struct fabric_part){.kind = EXCHANGE_STATE, .out = m->result, .n = r->n,
                                 .note = r->note};
    for (int i = 0; i < m->n_outer; i++)
        part->outer[i] = m->state_outer[i];
    m->stage = STAGE_PART;
    return FABRIC_PART;
}

/* The source's own part, before it gives. */
static enum fabric_progress show_state(struct ranks *m, struct fabric_part *part)
{
    struct ranks_round *r = &m->round;

    m->moved = true;
    if (!ranks_state_fill(m))
        return FABRIC_WORKED;
    r->shown = true;
    if (!r->ours)
        return FABRIC_WORKED;
    *part = (struct fabric_part){.kind = EXCHANGE_STATE, .n = r->n, .own = true,
                                 .note = r->note};
    for (int i = 0; i < m->n_outer; i++)
        part->outer[i] = m->f.outer[i];
    vector_reach(r->in, 0, &part->out);
    return FABRIC_PART;
}

static enum fabric_progress end_round(struct ranks *m, struct fabric_part *part)
{
    struct ranks_round *r = &m->round;

    if (r->kind == EXCHANGE_STATE && m->f.center && !r->final)
        m->center_epoch++;
    if (r->kind == EXCHANGE_STATE && m->owed)
        ranks_wire_forgive(m);
    r->active = false;
    m->moved = true;
    if (m->f.center)
        ranks_elastic_serve(m);
    if (!r->ours)
        return FABRIC_WORKED;
    return r->kind == EXCHANGE_STATE ? end_state(m, part) : end_mean(m, part);
}

static enum fabric_progress step_round(struct ranks *m, struct fabric_part *part)
{
    struct ranks_round *r = &m->round;
    bool state = r->kind == EXCHANGE_STATE;

    if (state && !r->shown)
        return show_state(m, part);
    bool done = state ? r->fetching || ranks_state_step(m) : !r->n || ranks_mean_step(m);
    if (done && state && r->final && r->ours && m->f.center && !r->fetching) {
        ranks_elastic_fetch(m);
        r->fetching = true;
    }
    if (done && r->fetching)
        done = ranks_elastic_step(m, part) == FABRIC_DONE;
    return done && !m->f.status ? end_round(m, part) : FABRIC_WAITING;
}

static enum fabric_progress step_exchange(struct ranks *m, struct fabric_part *part)
{
    switch (m->stage) {
    case STAGE_IDLE:
        return m->called ? FABRIC_CALLED : FABRIC_WAITING;
    case STAGE_LOOK:
        look_and_arrive(m);
        return FABRIC_WAITING;
    case STAGE_ARRIVED:
        return FABRIC_WAITING;
    case STAGE_ALONE:
        return ranks_elastic_step(m, part);
    case STAGE_PART:
        break;
    }
    m->stage = STAGE_IDLE;
    return FABRIC_DONE;
}

static enum fabric_progress turn(struct ranks *m, struct fabric_part *part)
{
    enum fabric_progress progress = FABRIC_WAITING;

    if (m->stage == STAGE_PART)
        return step_exchange(m, part);
    if (!m->round.active && m->go_waits)
        begin_round(m);
    if (m->round.active)
        progress = step_round(m, part);
    if (progress == FABRIC_WAITING)
        progress = step_exchange(m, part);
    return progress;
}

static void note_moves(struct ranks *m)
{
    ranks_set_rest(m);
    if (m->moved)
        moved_now(m);
    else
        atomic_fetch_add_explicit(&m->still, 1, memory_order_relaxed);
}

void ranks_serve(struct ranks *m)
{
    struct fabric_part part;

    m->moved = false;
    if (!m->f.status)
        listen_all(m);
    if (!m->f.status)
        ranks_rows_step(m);
    if (!m->f.status && !m->round.active && m->go_waits && m->stage != STAGE_PART)
        begin_round(m);
    if (!m->f.status && m->round.active && !m->round.ours)
        step_round(m, &part);
    note_moves(m);
}

static enum fabric_progress ranks_poll(struct fabric *f, struct fabric_part *part)
{
    struct ranks *m = ranks_of(f);
    enum fabric_progress progress = FABRIC_WAITING;

    m->moved = false;
    if (!f->status)
        listen_all(m);
    if (!f->status)
        ranks_rows_step(m);
    if (!f->status)
        progress = turn(m, part);
    if (f->status)
        return FABRIC_FAILED;
    bool open = m->stage != STAGE_IDLE || m->round.active;
    note_moves(m);
    if (progress != FABRIC_WAITING)
        return progress;
    ranks_say(m);
    return m->moved && open ? FABRIC_WORKED : FABRIC_WAITING;
}

static void ranks_wait(struct fabric *f, uint64_t until_ns)
{
    ranks_rest(ranks_of(f), until_ns);
}

/* --- close --- */

/* Nothing of this rank is under way. */
static bool at_rest(const struct ranks *m)
{
    return !m->round.active && !m->go_waits && !m->words_out && !m->manifest_op.busy &&
           ranks_elastic_quiet(m) && ranks_rows_quiet(m) && ranks_post_quiet(m);
}

void ranks_leave(struct fabric *f)
{
    struct ranks *m = ranks_of(f);

    if (m->stage == STAGE_ALONE)
        ranks_elastic_stop(m);
    ranks_rows_leave(m);
    m->stage = STAGE_IDLE;
    give_up(m);
    ranks_set_rest(m);
}

bool ranks_stay(struct fabric *f)
{
    struct ranks *m = ranks_of(f);
    struct fabric_part part;
    descant_status status = f->status;

    m->moved = false;
    f->status = DESCANT_OK;             /* what fails from now on is not heard any more */
    listen_all(m);
    ranks_rows_step(m);
    if (!m->left && ranks_elastic_quiet(m) && ranks_rows_quiet(m) && ranks_post_quiet(m)) {
        m->left = true;
        ranks_tell(m, 0, (struct ranks_word){.what = WORD_LEAVE}, NULL, 0);
        if (m->lead)
            ranks_lead_turn(m);
    }
    if (!m->round.active && m->go_waits)
        begin_round(m);
    if (m->round.active)
        step_round(m, &part);
    f->status = status ? status : f->status;
    note_moves(m);
    return !(m->bye && at_rest(m));
}

/* By `next`, for tests, and so that it is not taken for lost. Whoever closes pushes, release. */
static struct ranks *_Atomic kept;

static void keep(struct ranks *m)
{
    log_say(&m->f.log, DESCANT_DEBUG, "messages are under way still: their memory is kept");
    for (size_t i = 0; i < m->segments.n_extents; i++)
        kept_hold(m->segments.extents[i].p);
    m->next = atomic_load_explicit(&kept, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(&kept, &m->next, m, memory_order_release,
                                                  memory_order_relaxed))
        ;
}

static void release(struct ranks *m)
{
    struct fabric *f = &m->f;

    if (m->machine)
        meeting_close(m->machine);
    blocks_give(&m->blocks);
    for (size_t i = 0; i < m->segments.n_extents; i++)
        if (!kept_has(m->segments.extents[i].p))
            memory_give(m->segments.extents[i].p);
    memory_give(m->segments.extents);
    memory_give(f->host_names);
    if (!m->host)
        memory_give(f->contribution);
    memory_give(f->center);
    for (int i = 0; i < 2; i++) {
        memory_give(f->outer[i]);
        memory_give(m->state_outer[i]);
    }
    memory_give(m->result);
    memory_give(m->manifest);
    ranks_wire_fini(m);
    ranks_lanes_fini(m);
    ranks_host_fini(m);
    ranks_elastic_fini(m);
    ranks_rows_fini(m);
    ranks_post_fini(m);
    ranks_lead_fini(m);
    ranks_words_fini(m);
    memory_give(m);
}

void ranks_free(struct fabric *f)
{
    struct ranks *m = ranks_of(f);

    if (!m->link || m->link->type->close(m->link, m->bye && at_rest(m)))
        release(m);
    else
        keep(m);
}

void ranks_free_kept(void)
{
    struct ranks *m = atomic_exchange_explicit(&kept, NULL, memory_order_acquire), *next;

    for (; m; m = next) {
        next = m->next;
        release(m);
    }
}

/* A job that has failed does not wait long for the others, who may never come. */
static void ranks_close(struct fabric *f)
{
    struct ranks *m = ranks_of(f);
    uint64_t began = 0;
    bool said = false;

    ranks_leave(f);
    while (ranks_stay(f)) {
        began = began ? began : m->now_ns;
        uint64_t since = m->now_ns - began;
        if (f->status && since > FAILED_STAYS_NS)
            break;
        if (!said && since > SAY_LEAVING_NS)
            log_say(&f->log, DESCANT_INFO, "has left; it serves the other ranks until they have");
        said |= since > SAY_LEAVING_NS;
        ranks_rest(m, 0);
    }
    ranks_free(f);
}

const struct fabric_type fabric_mpi = {
    .name = "mpi",
    .address = "mpi",
    .rows = &ranks_rows,
    .post = &ranks_post,
    .look_ns = 300000,
    .help = "the ranks of an MPI job (mpirun, srun), on any number of hosts",
    .open = ranks_open,
    .alloc = ranks_alloc,
    .share = ranks_share,
    .start = ranks_start,
    .begin = ranks_begin,
    .poll = ranks_poll,
    .wait = ranks_wait,
    .close = ranks_close,
};
