/* SPDX-License-Identifier: MIT */
/* The mpi fabric: the ranks of an MPI job, on one host or many. docs/mpi.md has the protocol; here
 * are the table, the order in which things are taken, and what one poll does:
 *
 *   1 lets messages move, and hears those that have come (each knows what it ends)
 *   2 rank 0: looks whether a round closes
 *   3 rows: what the round that is closed needs (mpi_rows.c)
 *   4 the floats of the round that is closed, a bounded piece; it is done to its end even if the
 *     exchange that brought it here has been given up
 *   5 the exchange that is open: looks at its vector, arrives, takes its part
 *
 * 1. Only begin, poll, and the caller's open, start and close call MPI: one thread at a time. wait
 *    may run beside them, and sleeps on figures that poll leaves.
 * 2. A round once closed is never begun again: the world is fixed, and who leaves stays until all
 *    have left, to do its part, to lead, and to serve its slice of the centre.
 * 3. What is sent lies in the contribution, in segments of the fabric's own, or in its buffers;
 *    never in the caller's memory, which may go at the next begin. */
#include "fabric/kernels.h"
#include "fabric/mpi_world.h"
#include "fabric/vector.h"

#include <string.h>

#define FAILED_STAYS_NS UINT64_C(2000000000)
#define SAY_LEAVING_NS UINT64_C(1000000000)

enum {
    LOOK_AT_ONCE = 1 << 17,     /* floats */
    LISTEN_AT_ONCE = 64,        /* words */
    MACHINE_RANKS = 64          /* that a job over shm has room for */
};

/* --- failures and messages --- */

void mpi_fail(struct mpi *m, descant_status status, const char *format, ...)
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

static bool broken(struct mpi *m, int rank)
{
    const char *name = rank >= 0 ? m->links->host(m->link, rank) : "any host";
    mpi_fail(m, DESCANT_SYSTEM, "%s: %s, in a message with rank %d on %s", m->links->name,
             m->links->why(m->link), rank, name);
    return false;
}

bool mpi_send_op(struct mpi *m, struct mpi_op *op, const void *p, size_t bytes, enum mpi_tag tag)
{
    op->busy = m->links->send(m->link, p, bytes, op->rank, (int)tag, op);
    return op->busy || broken(m, op->rank);
}

bool mpi_receive_op(struct mpi *m, struct mpi_op *op, void *p, size_t bytes, enum mpi_tag tag)
{
    op->busy = m->links->receive(m->link, p, bytes, op->rank, (int)tag, op);
    return op->busy || broken(m, op->rank);
}

/* True if something has ended. */
static bool collect(struct mpi *m)
{
    const struct mpi_ended *ended;
    int n = m->links->collect(m->link, &ended);

    if (n < 0)
        return broken(m, MPI_FROM_ANY);
    for (int i = 0; i < n; i++) {
        struct mpi_op *op = ended[i].op;
        op->ended(m, op, &ended[i]);
    }
    m->moved |= n > 0;
    return n > 0;
}

/* Words come one at a time, and one may close a round for which others lie ready. */
static void listen_all(struct mpi *m)
{
    for (int i = 0; i < LISTEN_AT_ONCE && collect(m); i++)
        ;
    if (m->lead)
        mpi_lead_turn(m);
}

/* --- open --- */

static descant_status check_place(const struct mpi *m, const struct fabric_options *options)
{
    const struct log *log = options->log;

    if (options->rank >= 0 && options->rank != m->place.rank)
        return log_fail(log, DESCANT_BAD_RANK, "rank %d: MPI has made this one rank %d",
                        options->rank, m->place.rank);
    if (options->size > 0 && options->size != m->place.size && m->place.size == 1)
        return log_fail(log, DESCANT_BAD_SIZE,
                        "size %d: %s knows of this rank alone; it was started by another "
                        "library's launcher, or under Slurm without --mpi=pmix",
                        options->size, m->links->name);
    if (options->size > 0 && options->size != m->place.size)
        return log_fail(log, DESCANT_BAD_SIZE, "size %d: the MPI job has %d ranks",
                        options->size, m->place.size);
    return DESCANT_OK;
}

static void say_place(const struct mpi *m)
{
    const struct mpi_place *p = &m->place;
    log_say(&m->f.log, p->rank ? DESCANT_DEBUG : DESCANT_INFO,
            "mpi: %s, %d rank%s on %d host%s, this one on %s; %s, MPI initialised by %s",
            p->version, p->size, p->size == 1 ? "" : "s", p->hosts, p->hosts == 1 ? "" : "s",
            m->links->host(m->link, p->rank), p->threads,
            p->initialised ? "Descant" : "the program");
}

static descant_status name_hosts(struct mpi *m)
{
    m->f.host_names = memory_take_array((size_t)m->place.size, sizeof *m->f.host_names);
    if (!m->f.host_names)
        return log_fail(&m->f.log, DESCANT_MEMORY, "no memory for the names of hosts");
    for (int k = 0; k < m->place.size; k++)
        m->f.host_names[k] = m->links->host(m->link, k);
    return DESCANT_OK;
}

/* Told so, for tests and to compare: ranks of one host by messages, too. */
static bool wants_messages(const struct fabric_options *options)
{
    return options->address && strcmp(options->address, "messages") == 0;
}

static descant_status go_up(struct mpi *m, const struct fabric_options *options)
{
    char why[256] = "";

    m->links = options->context ? *(const struct mpi_links *const *)options->context
                                : mpi_module_load(options->log);
    if (!m->links)
        return DESCANT_UNSUPPORTED;
    m->link = m->links->up(options->context, options->rank, &m->place, why, sizeof why);
    if (!m->link)
        return log_fail(options->log, options->context ? DESCANT_BAD_RANK : DESCANT_UNSUPPORTED,
                        "%s", why);
    descant_status status = check_place(m, options);
    if (status)
        return status;
    m->f.rank = m->f.log.rank = m->place.rank;
    m->f.size = m->place.size;
    m->f.many_hosts = m->place.hosts > 1;
    m->f.host = m->place.host_number;
    m->f.hosts = m->place.hosts;
    m->f.local_rank = m->place.local_rank;
    m->f.wire = m->f.size > 1 ? options->wire : WIRE_F32;
    if (m->place.hosts == 1 && m->place.size > 1 && m->place.size <= MACHINE_RANKS &&
        !wants_messages(options))
        m->f.machine_job = m->place.job;
    status = name_hosts(m);
    if (!status && m->f.rank == 0)
        status = mpi_lead_init(m);
    return status ? status : mpi_words_init(m);
}

static descant_status mpi_open(struct fabric **out, const struct fabric_options *options)
{
    if (options->address && *options->address && !wants_messages(options))
        return log_fail(options->log, DESCANT_BAD_ADDRESS, "\"mpi:%s\": the address is mpi, or "
                        "mpi:messages", options->address);
    struct mpi *m = memory_take(sizeof *m);
    if (!m)
        return log_fail(options->log, DESCANT_MEMORY, "no memory for a trainer");
    m->f.type = &fabric_mpi;
    if (options->log)
        m->f.log = *options->log;
    m->start_s = options->start_s;
    m->f.machine_threads = 1;
    descant_status status = go_up(m, options);
    if (status) {
        mpi_free(&m->f);
        return status;
    }
    say_place(m);
    *out = &m->f;
    return DESCANT_OK;
}

/* --- memory --- */

static bool add_segment(struct mpi *m, size_t at, size_t n, float *p)
{
    struct vector *v = &m->segments;

    if (v->n_extents == m->segments_room) {
        size_t room = m->segments_room ? 2 * m->segments_room : 16;
        struct extent *more = memory_take_array(room, sizeof *more);
        if (!more)
            return false;
        if (v->n_extents)
            memcpy(more, v->extents, v->n_extents * sizeof *more);
        memory_give(v->extents);
        v->extents = more;
        m->segments_room = room;
    }
    v->extents[v->n_extents++] = (struct extent){at, n, p};
    return true;
}

static float *mpi_alloc(struct fabric *f, size_t at, size_t n)
{
    struct mpi *m = mpi_of(f);
    float *p = memory_take_array(n, sizeof *p);

    if (p && add_segment(m, at, n, p))
        return p;
    memory_give(p);
    log_fail(&f->log, DESCANT_MEMORY, "no memory for %zu floats", n);
    return NULL;
}

/* Blocks are a matter of one machine: its ranks share them as an shm job of their own. */
static descant_status mpi_share(struct fabric *f, const char *name, size_t bytes, void **block)
{
    struct mpi *m = mpi_of(f);

    if (!m->machine) {
        struct fabric_options options = {.address = m->place.job, .rank = m->place.local_rank,
                                         .start_s = m->start_s, .log = &f->log};
        descant_status status = fabric_shm.open(&m->machine, &options);
        if (status)
            return status;
    }
    return fabric_shm.share(m->machine, name, bytes, block);
}

/* --- start --- */

static float *floats(size_t n)
{
    return memory_take_array(n ? n : 1, sizeof(float));
}

static descant_status start_memory(struct mpi *m, const struct fabric_start *start)
{
    struct fabric *f = &m->f;
    bool had = (m->result = floats(start->room > start->n ? start->room : start->n)) != NULL;

    if (had && !start->in_place)
        had = (f->contribution = floats(start->room)) != NULL;
    for (int i = 0; had && i < start->n_outer && i < 2; i++)
        had = (f->outer[i] = floats(start->n)) && (m->state_outer[i] = floats(start->n));
    if (had && start->center)
        had = (f->center = floats(start->n)) && mpi_elastic_init(m) == DESCANT_OK;
    had = had && mpi_lanes_init(m) == DESCANT_OK;
    if (had && f->wire != WIRE_F32)
        had = mpi_wire_init(m) == DESCANT_OK;
    if (had)
        return mpi_rows_init(m, start->rows_bytes);
    return log_fail(&f->log, DESCANT_MEMORY, "no memory for rounds of %zu floats", start->n);
}

static void manifest_sent(struct mpi *m, struct mpi_op *op, const struct mpi_ended *ended)
{
    (void)m;
    (void)ended;
    op->busy = false;
}

/* What all must have alike, as lines. */
static bool write_manifest(struct mpi *m, const struct fabric_start *start)
{
    const char *rest = start->manifest ? start->manifest : "";
    size_t room = strlen(rest) + 64;

    m->manifest = memory_take(room);
    if (m->manifest)
        snprintf(m->manifest, room, "descant %s\n%sfloats %zu\n", DESCANT_VERSION, rest,
                 start->n);
    return m->manifest != NULL;
}

static void say_hello(struct mpi *m, const struct fabric_start *start)
{
    struct mpi_word hello = {.what = WORD_HELLO, .threads = (uint32_t)start->threads,
                             .host = m->place.host, .manifest_bytes = strlen(m->manifest) + 1};

    m->manifest_op = (struct mpi_op){.ended = manifest_sent};
    mpi_tell(m, 0, hello, NULL, 0);
    if (m->f.rank)
        mpi_send_op(m, &m->manifest_op, m->manifest, hello.manifest_bytes, TAG_MANIFEST);
}

static descant_status mpi_start(struct fabric *f, const struct fabric_start *start)
{
    struct mpi *m = mpi_of(f);

    if (m->started)
        return log_fail(&f->log, DESCANT_ORDER, "the fabric has been started");
    m->n = start->n;
    m->room = start->room;
    m->in_place = start->in_place;
    m->collective = start->collective;
    m->n_outer = start->n_outer < 2 ? start->n_outer : 2;
    descant_status status = start_memory(m, start);
    if (status)
        return status;
    if (!write_manifest(m, start))
        return log_fail(&f->log, DESCANT_MEMORY, "no memory for the list of segments");
    m->segments.n = start->n;
    m->whole = (struct extent){0, start->room, f->contribution};
    m->copy = (struct vector){start->room, 1, &m->whole};
    m->started = true;
    f->machine_threads = start->threads;
    mpi_look_at_cores(m, start->threads);
    say_hello(m, start);
    return f->status;
}

/* --- begin --- */

static void moved_now(struct mpi *m)
{
    m->moved_ns = clock_now_ns();
    atomic_store_explicit(&m->still, 0, memory_order_relaxed);
    /* nothing that moves while a round gathers is of it: what rank 0 has told stands */
    if (m->stage != STAGE_ARRIVED || m->round.active || m->go_waits)
        fabric_unsay(&m->f);
}

/* A helper's vector: what was given is the contribution, or the segments themselves. */
static const struct vector *own_vector(const struct mpi *m)
{
    return m->f.contribution ? &m->copy : &m->segments;
}

/* The round that may be under way goes on without its exchange, whose vector may be gone. */
static void give_up(struct mpi *m)
{
    m->round.ours = false;
    m->round.in = own_vector(m);
}

static descant_status mpi_begin(struct fabric *f, const struct exchange *exchange)
{
    struct mpi *m = mpi_of(f);
    const struct limits limits = {m->n, m->room, m->started, m->had_state, f->center != NULL};
    descant_status status = f->status ? f->status : exchange_check(exchange, &limits, &f->log);

    if (status)
        return status;
    m->had_state |= exchange->kind == EXCHANGE_STATE;
    if (m->stage == STAGE_ARRIVED && !m->round.active && !m->go_waits)
        mpi_tell(m, 0, (struct mpi_word){.what = WORD_TAKE_BACK, .seq = m->seq}, NULL, 0);
    if (m->stage == STAGE_ALONE)
        mpi_elastic_stop(m);
    give_up(m);
    m->x = *exchange;
    m->seq++;
    m->looked = exchange->kind == EXCHANGE_MEAN ? 0 : exchange->n;
    m->bad = f->own_bad = false;
    m->stage = exchange->kind == EXCHANGE_ELASTIC ? STAGE_ALONE : STAGE_LOOK;
    if (m->stage == STAGE_ALONE)
        mpi_elastic_begin(m);
    mpi_set_rest(m);
    moved_now(m);
    return f->status;
}

/* --- a poll --- */

static void arrive(struct mpi *m)
{
    const struct exchange *x = &m->x;

    mpi_tell(m, 0, (struct mpi_word){.what = WORD_ARRIVE, .seq = m->seq,
                                     .kind = (uint32_t)x->kind, .final = x->final,
                                     .bad = m->bad, .refers = m->refers, .n = x->n,
                                     .agree = x->agree, .priority = x->priority,
                                     .weight = x->weight}, NULL, 0);
    m->stage = STAGE_ARRIVED;
    m->moved = true;
    if (m->lead)
        mpi_lead_turn(m);
}

/* Once nothing of before is under way here. */
static void look_and_arrive(struct mpi *m)
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
    } else if (!m->round.active && !m->go_waits && mpi_elastic_quiet(m)) {
        arrive(m);
    }
}

static void begin_round(struct mpi *m)
{
    const struct mpi_word *word = m->go;
    struct mpi_round *r = &m->round;

    memcpy(r->seats, word + 1, word->seats * sizeof *r->seats);
    m->go_waits = false;
    if (!m->word_op.busy)
        mpi_listen(m);
    r->active = true;
    r->kind = (enum exchange_kind)word->kind;
    r->final = word->final;
    r->wire = word->encoded ? m->f.wire : WIRE_F32;
    r->number = word->round;
    r->n = word->n;
    r->k = (int)word->seats;
    r->n_bad = 0;
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
        mpi_state_begin(m);
    else if (word->source >= 0)
        mpi_mean_begin(m);
    else
        r->n = 0;               /* nobody has anything good */
}

static enum fabric_progress end_mean(struct mpi *m, struct fabric_part *part)
{
    const struct mpi_round *r = &m->round;

    m->f.own_bad = r->seats[r->me].bad;
    atomic_fetch_add_explicit(&m->f.bad, r->n_bad, memory_order_relaxed);
    if (!r->n) {
        m->stage = STAGE_IDLE;
        return FABRIC_DONE;
    }
    if (!r->final)
        m->refers = r->number;
    atomic_fetch_add_explicit(&m->f.bytes, mpi_mean_bytes(r), memory_order_relaxed);
    *part = (struct fabric_part){.kind = EXCHANGE_MEAN, .out = m->result, .n = r->n};
    m->stage = STAGE_PART;
    return FABRIC_PART;
}

static enum fabric_progress end_state(struct mpi *m, struct fabric_part *part)
{
    const struct mpi_round *r = &m->round;

    m->stage = STAGE_IDLE;
    m->refers = r->number;
    if (r->me == r->source)
        return FABRIC_DONE;
    atomic_fetch_add_explicit(&m->f.bytes, r->n * sizeof(float), memory_order_relaxed);
    *part = (struct fabric_part){.kind = EXCHANGE_STATE, .out = m->result, .n = r->n};
    for (int i = 0; i < m->n_outer; i++)
        part->outer[i] = m->state_outer[i];
    m->stage = STAGE_PART;
    return FABRIC_PART;
}

/* The source's own part, before it gives. */
static enum fabric_progress show_state(struct mpi *m, struct fabric_part *part)
{
    struct mpi_round *r = &m->round;

    m->moved = true;
    if (!mpi_state_fill(m))
        return FABRIC_WORKED;
    r->shown = true;
    if (!r->ours)
        return FABRIC_WORKED;
    *part = (struct fabric_part){.kind = EXCHANGE_STATE, .n = r->n, .own = true};
    for (int i = 0; i < m->n_outer; i++)
        part->outer[i] = m->f.outer[i];
    vector_reach(r->in, 0, &part->out);
    return FABRIC_PART;
}

static enum fabric_progress end_round(struct mpi *m, struct fabric_part *part)
{
    struct mpi_round *r = &m->round;

    if (r->kind == EXCHANGE_STATE && m->f.center && !r->final)
        m->center_epoch++;
    if (r->kind == EXCHANGE_STATE && m->owed)
        mpi_wire_forgive(m);
    r->active = false;
    m->moved = true;
    if (m->f.center)
        mpi_elastic_serve(m);
    if (!r->ours)
        return FABRIC_WORKED;
    return r->kind == EXCHANGE_STATE ? end_state(m, part) : end_mean(m, part);
}

static enum fabric_progress step_round(struct mpi *m, struct fabric_part *part)
{
    struct mpi_round *r = &m->round;
    bool state = r->kind == EXCHANGE_STATE;

    if (state && !r->shown)
        return show_state(m, part);
    bool done = state ? r->fetching || mpi_state_step(m) : !r->n || mpi_mean_step(m);
    if (done && state && r->final && r->ours && m->f.center && !r->fetching) {
        mpi_elastic_fetch(m);
        r->fetching = true;
    }
    if (done && r->fetching)
        done = mpi_elastic_step(m, part) == FABRIC_DONE;
    return done && !m->f.status ? end_round(m, part) : FABRIC_WAITING;
}

static enum fabric_progress step_exchange(struct mpi *m, struct fabric_part *part)
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
        return mpi_elastic_step(m, part);
    case STAGE_PART:
        break;
    }
    m->stage = STAGE_IDLE;
    return FABRIC_DONE;
}

static enum fabric_progress turn(struct mpi *m, struct fabric_part *part)
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

static void note_moves(struct mpi *m)
{
    mpi_set_rest(m);
    if (m->moved)
        moved_now(m);
    else
        atomic_fetch_add_explicit(&m->still, 1, memory_order_relaxed);
}

void mpi_serve(struct mpi *m)
{
    struct fabric_part part;

    m->moved = false;
    if (!m->f.status)
        listen_all(m);
    if (!m->f.status)
        mpi_rows_step(m);
    if (!m->f.status && !m->round.active && m->go_waits && m->stage != STAGE_PART)
        begin_round(m);
    if (!m->f.status && m->round.active && !m->round.ours)
        step_round(m, &part);
    note_moves(m);
}

static enum fabric_progress mpi_poll(struct fabric *f, struct fabric_part *part)
{
    struct mpi *m = mpi_of(f);
    enum fabric_progress progress = FABRIC_WAITING;

    m->moved = false;
    if (!f->status)
        listen_all(m);
    if (!f->status)
        mpi_rows_step(m);
    if (!f->status)
        progress = turn(m, part);
    if (f->status)
        return FABRIC_FAILED;
    bool open = m->stage != STAGE_IDLE || m->round.active;
    note_moves(m);
    if (progress != FABRIC_WAITING)
        return progress;
    mpi_say(m);
    return m->moved && open ? FABRIC_WORKED : FABRIC_WAITING;
}

static void mpi_wait(struct fabric *f, uint64_t until_ns)
{
    mpi_rest(mpi_of(f), until_ns);
}

/* --- close --- */

/* Nothing of this rank is under way. */
static bool at_rest(const struct mpi *m)
{
    return !m->round.active && !m->go_waits && !m->words_out && !m->manifest_op.busy &&
           mpi_elastic_quiet(m) && mpi_rows_quiet(m);
}

void mpi_leave(struct fabric *f)
{
    struct mpi *m = mpi_of(f);

    if (m->stage == STAGE_ALONE)
        mpi_elastic_stop(m);
    mpi_rows_leave(m);
    m->stage = STAGE_IDLE;
    give_up(m);
    mpi_set_rest(m);
}

bool mpi_stay(struct fabric *f)
{
    struct mpi *m = mpi_of(f);
    struct fabric_part part;
    descant_status status = f->status;

    m->moved = false;
    f->status = DESCANT_OK;             /* what fails from now on is not heard any more */
    listen_all(m);
    mpi_rows_step(m);
    if (!m->left && mpi_elastic_quiet(m) && mpi_rows_quiet(m)) {
        m->left = true;
        mpi_tell(m, 0, (struct mpi_word){.what = WORD_LEAVE}, NULL, 0);
        if (m->lead)
            mpi_lead_turn(m);
    }
    if (!m->round.active && m->go_waits)
        begin_round(m);
    if (m->round.active)
        step_round(m, &part);
    f->status = status ? status : f->status;
    note_moves(m);
    return !(m->bye && at_rest(m));
}

void mpi_free(struct fabric *f)
{
    struct mpi *m = mpi_of(f);

    if (m->link)
        m->links->down(m->link, m->bye && at_rest(m));
    if (m->machine)
        fabric_shm.close(m->machine);
    for (size_t i = 0; i < m->segments.n_extents; i++)
        memory_give(m->segments.extents[i].p);
    memory_give(m->segments.extents);
    memory_give(f->host_names);
    memory_give(f->contribution);
    memory_give(f->center);
    for (int i = 0; i < 2; i++) {
        memory_give(f->outer[i]);
        memory_give(m->state_outer[i]);
    }
    memory_give(m->result);
    memory_give(m->manifest);
    mpi_wire_fini(m);
    mpi_lanes_fini(m);
    mpi_elastic_fini(m);
    mpi_rows_fini(m);
    mpi_lead_fini(m);
    mpi_words_fini(m);
    memory_give(m);
}

/* A job that has failed does not wait long for the others, who may never come. */
static void mpi_close(struct fabric *f)
{
    struct mpi *m = mpi_of(f);
    uint64_t began = clock_now_ns();
    bool said = false;

    mpi_leave(f);
    while (mpi_stay(f)) {
        uint64_t since = clock_now_ns() - began;
        if (f->status && since > FAILED_STAYS_NS)
            break;
        if (!said && since > SAY_LEAVING_NS)
            log_say(&f->log, DESCANT_INFO, "has left; it serves the other ranks until they have");
        said |= since > SAY_LEAVING_NS;
        mpi_rest(m, 0);
    }
    mpi_free(f);
}

const struct fabric_type fabric_mpi = {
    .name = "mpi",
    .address = "mpi",
    .rows = &mpi_rows,
    .help = "the ranks of an MPI job (mpirun, srun), on any number of hosts",
    .open = mpi_open,
    .alloc = mpi_alloc,
    .share = mpi_share,
    .start = mpi_start,
    .begin = mpi_begin,
    .poll = mpi_poll,
    .wait = mpi_wait,
    .close = mpi_close,
};
