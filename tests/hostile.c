/* SPDX-License-Identifier: MIT */
/* The job of hostile.h. Every rank's link is the tests' own with another send and
 * another clock. Trainers follow a script for their job, and one that has failed only
 * serves the others, as its close would. */
#include "hostile.h"

#include "mpi_loopback.h"

#include <check.h>
#include <string.h>

enum {
    LEAVE_TURNS = 60,
    NOW_AND_THEN = 32,
    LOST = LINK_TAGS - 1 /* a tag that nobody receives */,
    MEANS = 3,
    ROUNDS_OF_ROWS = 2,
    PARCELS = 2,
    ROWS_BYTES = 1 << 12
};

struct honest_trainer {
    struct fabric *f;
    struct extent extent;
    struct vector in;
    int begun;                  /* exchanges */
    int rows, parcels;          /* rounds, or parcels, that are done */
    bool rows_open, open, agrees, done, left, ended;
    void *part;                 /* of rows */
};

struct sent {
    struct sent *next;
    struct ranks_op op;
    unsigned char p[];
};

/* One at a time, in one thread. */
static struct {
    const struct hostile *job;
    struct honest_trainer trainers[HOSTILE_RANKS];
    struct hostile_end *ends;
    struct sent *sent;          /* copies: the link reads them when they are taken */
    unsigned char letters[2][LETTER_ROOM];
    uint64_t now_ns;
    struct link *links[HOSTILE_RANKS];
    long live, most_live;
} world;

/* --- the link --- */

static struct link_type forged;

static struct link *meet(struct link_entry *entry, struct link_place *place)
{
    struct link *link = link_loopback.meet(entry, place);

    link->type = &forged;
    world.links[place->rank] = link;
    return link;
}

static void ignore(struct ranks *m, struct ranks_op *op, const struct link_ended *ended)
{
    (void)m;
    (void)op;
    (void)ended;
}

/* op: NULL, it is a copy more. */
static void deliver(struct link *link, const struct letter *letter, void *op)
{
    struct sent *sent = memory_take(sizeof *sent + letter->bytes);

    ck_assert_ptr_nonnull(sent);
    world.live++;
    sent->next = world.sent;
    sent->op.ended = ignore;
    world.sent = sent;
    memcpy(sent->p, letter->p, letter->bytes);
    link_loopback.send(link, sent->p, letter->bytes,
        &(struct link_message){letter->to, letter->tag, 0, op ? op : &sent->op});
}

static bool lie(struct link *link, const void *p, size_t bytes,
                       const struct link_message *message)
{
    int to = message->rank, tag = message->tag;
    void *op = message->op;
    int from = 0;

    while (link != world.links[from])
        from++;
    struct letter letter = {from, to, tag, 1, bytes, world.letters[0]};
    struct letter more = {
        from, to, TAG_WORD, 0, sizeof(struct ranks_word), world.letters[1]};
    if ((from != world.job->liar && world.job->liar != HOSTILE_ALL) ||
        bytes > LETTER_ROOM)
        return link_loopback.send(link, p, bytes, message);
    memcpy(letter.p, p, bytes);
    memset(more.p, 0, sizeof(struct ranks_word));
    world.job->alter(world.job->context, &letter, &more);
    for (int i = 0; i < more.times; i++)
        deliver(world.links[more.from], &more, NULL);
    if (letter.times == 0)          /* short, so that it ends for its sender */
        return link_loopback.send(link, "", 1,
        &(struct link_message){to, LOST, 0, op});
    for (int i = 0; i < letter.times; i++)
        deliver(link, &letter, i ? NULL : op);
    return true;
}

static bool collect(struct link *link, struct link_news *news)
{
    bool works = link_loopback.collect(link, news);

    news->now_ns = world.now_ns += 1000000;
    return works;
}

/* --- trainers --- */

static void note_end(int k)
{
    struct hostile_end *end = &world.ends[k];

    if (end->status || !world.trainers[k].f->status)
        return;
    end->status = world.trainers[k].f->status;
    snprintf(end->says, sizeof end->says, "%s",
             ranks_of(world.trainers[k].f)->left ? "(it had left)" : descant_last_error());
}

/* Which exchange comes after those that are begun. False: none. */
static bool next_exchange(const struct honest_trainer *t, struct exchange *x)
{
    bool center = world.job->job == HOSTILE_CENTER;

    *x = (struct exchange){.in = &t->in, .n = world.job->n, .weight = 1, .alpha = 0.5,
                           .kind = t->begun == 0 ? EXCHANGE_STATE
                                   : center ? EXCHANGE_ELASTIC : EXCHANGE_MEAN};
    if (t->begun == 2 && t->f->rank == world.job->size - 1)
        x->kind = EXCHANGE_STATE;               /* calls the others */
    x->final = t->begun == 1 + MEANS;
    if (x->final)
        x->kind = center ? EXCHANGE_STATE : EXCHANGE_MEAN;
    if (world.job->first_leaves && t->f->rank == 0)
        return t->begun < 1;
    return t->begun < 2 + MEANS;
}

static void begin(struct honest_trainer *t)
{
    struct exchange x;

    if (!next_exchange(t, &x)) {
        t->done = world.job->job != HOSTILE_ROWS || t->rows >= ROUNDS_OF_ROWS;
        return;
    }
    t->begun++;
    t->open = t->f->type->begin(t->f, &x) == DESCANT_OK;
}

static float seen;              /* so that all that comes is read */

static void use(const struct fabric_part *part)
{
    const struct ranks *m = ranks_of(world.trainers[0].f);

    for (size_t i = 0; i < part->n && part->out; i++)
        seen += part->out[i];
    for (int k = 0; k < 2; k++)
        for (size_t i = 0; i < m->n && part->outer[k]; i++)
            seen += part->outer[k][i];
}

static void step_rows(struct honest_trainer *t)
{
    const struct fabric_rows *rows = t->f->type->rows;
    struct rows_part part;

    if (!t->rows_open && t->rows < ROUNDS_OF_ROWS && t->begun > 1)
        t->rows_open =
            rows->begin(t->f, t->part, 1000 + (size_t)t->f->rank) == DESCANT_OK;
    switch (rows->poll(t->f, &part)) {
    case FABRIC_PART:
        for (size_t i = 0; i < part.n; i++)
            seen += ((const char *)part.bytes)[i];
        break;
    case FABRIC_DONE:
        t->rows++;
        t->rows_open = false;
        break;
    default:
        break;
    }
}

/* Beside means, each trainer makes one agreement after the other. */
static void step_agree(struct honest_trainer *t)
{
    struct agree_value value = {.kind = AGREE_MEAN, .n = 2 * sizeof(double)};

    if (t->agrees && ranks_agree.look(t->f, &value)) {
        for (size_t i = 0; i < value.n; i++)
            seen += value.bytes[i];
        t->agrees = false;
    } else if (!t->agrees && t->begun > 1 && t->begun <= MEANS) {
        t->agrees = true;
        ranks_agree.offer(t->f, &value);
    }
}

static void step_trainer(struct honest_trainer *t)
{
    struct fabric_part part;

    if (!t->open && !t->done)
        begin(t);
    switch (t->f->type->poll(t->f, &part)) {
    case FABRIC_PART:
        use(&part);
        if (t->f->wire != WIRE_F32 && part.out && !part.own && part.from == 0)
            memcpy(t->f->outer[0], part.out, part.n * sizeof(float));
        break;
    case FABRIC_DONE:
        t->open = false;
        break;
    default:
        break;
    }
    if (world.job->job == HOSTILE_ROWS && !t->f->status)
        step_rows(t);
    if (world.job->job == HOSTILE_MEANS && !t->f->status)
        step_agree(t);
}

/* All send to rank 0, and that answers. */
static void step_post(struct honest_trainer *t)
{
    const struct fabric_post *post = t->f->type->post;
    int from = t->f->rank ? 0 : 1, to = t->f->rank ? 1 : world.job->size;
    bool done = true;

    for (int k = from; k < to && post->move(t->f) == DESCANT_OK; k++) {
        unsigned char head[POST_HEAD] = {0};
        struct parcel parcel;
        bool here = post->look(t->f, k, &parcel);
        for (size_t i = 0; here && i < parcel.n; i++)
            seen += parcel.values[i];
        if (here)
            post->taken(t->f, k);
        t->parcels += here;
        if (post->free(t->f, k) &&
            (t->f->rank ? t->begun <= t->parcels && t->begun < PARCELS : here)) {
            memset(post->box(t->f, k), 0, world.job->n * sizeof(float));
            post->send(t->f, k, head, world.job->n);
            t->begun++;
        }
    }
    done = t->parcels >= (t->f->rank ? PARCELS : PARCELS * (world.job->size - 1));
    t->done = done && !t->f->status;
}

/* --- the job --- */

static void tell_figures(void *of, struct bulletin *own)
{
    (void)of;
    *own = (struct bulletin){.steps = 3, .gap = 0.5, .n_values = 1};
}

static void open_trainer(int k, void *context)
{
    const struct hostile *job = world.job;
    struct honest_trainer *t = &world.trainers[k];
    const struct fabric_options options = {.rank = k, .link = &forged, .context = context,
                                           .wire = job->wire};
    const struct fabric_start start = {.manifest = "x\n",
                                       .n = job->n,
                                       .room = job->n,
                                       .threads = 1,
                                       .collective = job->job != HOSTILE_CENTER,
                                       .center = job->job == HOSTILE_CENTER,
                                       .n_outer = job->wire != WIRE_F32,
                                       .rows_bytes =
                                           job->job == HOSTILE_ROWS ? ROWS_BYTES : 0};

    *t = (struct honest_trainer){.part = memory_take(ROWS_BYTES)};
    ck_assert_int_eq(fabric_mpi.open(&t->f, &options), DESCANT_OK);
    if (job->job == HOSTILE_POST)
        return;
    ck_assert_int_eq(fabric_mpi.start(t->f, &start), DESCANT_OK);
    t->f->figures = tell_figures;
    t->extent = (struct extent){0, job->n, t->f->contribution};
    for (size_t i = 0; i < job->n; i++)
        t->extent.p[i] = (float)(i % 7 + (size_t)k);
    t->in = (struct vector){job->n, 1, &t->extent};
}

static void open_lanes(void)
{
    for (int k = 1; k < world.job->size; k++)
        for (int round = 0; round < 2; round++) {
            size_t n = round ? world.job->n : 0;
            fabric_mpi.post->room(world.trainers[k].f, 0, n);
            fabric_mpi.post->room(world.trainers[0].f, k, n);
        }
}

static void step(int k)
{
    struct honest_trainer *t = &world.trainers[k];
    bool post = world.job->job == HOSTILE_POST;

    if ((t->f->status || t->done) && !t->left) {
        note_end(k);
        t->left = true;
        ranks_leave(t->f);
    }
    if (t->left)
        t->ended = !ranks_stay(t->f);
    else if (post)
        step_post(t);
    else
        step_trainer(t);
    note_end(k);
    world.most_live = memory_live() - world.live > world.most_live
                          ? memory_live() - world.live
                          : world.most_live;
}

static bool all_left(void)
{
    for (int k = 0; k < world.job->size; k++)
        if (!world.trainers[k].left)
            return false;
    return true;
}

static void close_all(void)
{
    for (int turn = 0; turn < LEAVE_TURNS; turn++)
        for (int k = 0; k < world.job->size; k++)
            step(k);
    for (int k = 0; k < world.job->size; k++) {
        world.ends[k].done = world.trainers[k].done;
        world.ends[k].waits = !world.trainers[k].ended && !world.ends[k].status;
        if (!world.trainers[k].left)
            ranks_leave(world.trainers[k].f);
    }
    for (int k = 0; k < world.job->size; k++)
        ranks_free(world.trainers[k].f);
}

long hostile_run(const struct hostile *job, struct hostile_end *ends)
{
    struct loopback *context = loopback_create_hosts(
        job->size, job->per_host ? job->per_host : 1, 1);

    forged = link_loopback;
    forged.meet = meet;
    forged.send = lie;
    forged.collect = collect;
    world.job = job;
    world.ends = ends;
    world.now_ns = 1;
    world.live = memory_live();
    world.most_live = 0;
    memset(ends, 0, (size_t)job->size * sizeof *ends);
    for (int k = 0; k < job->size; k++)
        open_trainer(k, context);
    if (job->job == HOSTILE_POST)
        open_lanes();
    for (int turn = 0; turn < job->turns && !all_left(); turn++)
        for (int k = 0; k < job->size; k++)
            if (!job->last_sleeps || k < job->size - 1 || turn % NOW_AND_THEN == 0)
                step(k);
    close_all();
    loopback_destroy(context);
    ranks_free_kept();
    for (int k = 0; k < job->size; k++)
        memory_give(world.trainers[k].part);
    while (world.sent) {
        struct sent *sent = world.sent;
        world.sent = sent->next;
        memory_give(sent);
    }
    return world.most_live;
}

/* --- lies by bytes --- */

enum { TURNS = 160, MANY_OWNERS = 40000 /* floats of which each rank owns some */ };

/* If rank 0 has refused a peer, nobody else waits for the job's end without a bound. */
static void need_no_wait(const struct hostile *job, const struct hostile_end *ends)
{
    for (int k = 0; k < job->size && job->liar && ends[0].status; k++)
        ck_assert_msg(k == job->liar || !ends[k].waits, "rank %d waits, rank 0 says: %s", k,
                      ends[0].says);
}

/* Those who have not lied are not blamed by each other. Rank 0 may lie about it; and of
 * two ranks that want one place on a host, nobody knows which one lies. */
static void need_no_blame(const struct hostile *job, const struct hostile_end *ends)
{
    for (int k = 0; k < job->size; k++)
        for (int other = 0; other < job->size && k != job->liar && job->liar; other++) {
            char blame[60];
            snprintf(blame, sizeof blame, "rank %d (host%d) breaks the protocol", other,
                     other);
            ck_assert_msg(other == job->liar || !strstr(ends[k].says, blame) ||
                              strstr(ends[k].says, "HELLO: local rank"),
                          "rank %d says: %s", k, ends[k].says);
            ck_assert(ends[k].status == DESCANT_OK || *ends[k].says);
        }
}

void hostile_run_bytes(const uint8_t *bytes, size_t n)
{
    static const size_t floats[] = {100, 1, 17, 900, 100, 300, 900, 3000};
    static struct lies s;
    struct hostile_end ends[HOSTILE_RANKS];

    s.bytes = bytes;
    s.left = n;
    s.n_kept = 0;
    struct hostile job = {.job = (enum hostile_job)(lies_next(&s) % HOSTILE_JOBS),
                          .turns = TURNS,
                          .size = 2 + (int)(lies_next(&s) % 2),
                          .alter = lies_alter,
                          .context = &s};
    job.liar = (int)(lies_next(&s) % (unsigned)job.size);
    job.wire = (enum wire)(lies_next(&s) % 3);
    unsigned size = lies_next(&s);
    job.per_host = 1 + (size >> 3) % 2;
    job.last_sleeps = (size >> 4) % 4 == 3;
    job.n = size == 255 ? MANY_OWNERS : floats[size % 8];
    s.skip = lies_next(&s) % 64;
    s.size = job.size;
    s.liar = job.liar;
    s.floats = job.n;
    long live = memory_live();
    hostile_run(&job, ends);
    need_no_blame(&job, ends);
    need_no_wait(&job, ends);
    ck_assert_int_eq(memory_live(), live);
}
