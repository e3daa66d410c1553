/* SPDX-License-Identifier: MIT */
/* Queues in place of MPI (mpi_loopback.h). A send is an entry of the world's list until a receive
 * that fits takes it; receives wait in their rank's list. Short messages are copied at once and
 * end for their sender; long ones end when they are taken. */
#include "mpi_loopback.h"

#include "ranks/ranks.h"

#include <assert.h>
#include <check.h>
#include <string.h>

enum { EAGER = 1024, DELAY = 6, LEAVE_TURNS = 1000 };

struct message {
    struct message *next;
    int from, to, tag;
    uint64_t ready;             /* the tick from which on it can be taken */
    const void *p;              /* the sender's, or copy */
    size_t bytes;
    void *op;                   /* NULL: it has ended for its sender */
    unsigned char copy[];
};

struct opened {
    struct opened *next;
    int from, tag;
    void *p, *op;
    size_t bytes;
};

struct end {
    struct link link;           /* first */
    struct loopback *world;
    int rank;
    struct opened *receives;
    struct link_ended *ended;
    int n_ended, room_ended;
    struct link_ended *told;     /* those of the last collect */
};

enum { MOST = 512, ENDED = 2048 };

struct loopback {
    int size;
    struct rng rng;
    uint64_t tick;
    struct message *messages;           /* oldest first */
    struct end *ranks[MOST];
    uint64_t sent[MOST];
    struct fabric *leaving[MOST];       /* closed, and serving those who have not, */
    bool gone[MOST];                    /* until they were told that all have left */
    int n_leaving, opened, per_host;
    char job[40];
    char names[MOST][LINK_NAME_ROOM];
};

static struct end *end_of(struct link *link)
{
    return (struct end *)(void *)link;
}

static struct link *meet(struct link_entry *entry, struct link_place *place)
{
    struct loopback *world = entry->context;
    int rank = entry->rank;

    for (int k = 0; rank < 0 && k < world->size; k++)
        rank = world->ranks[k] ? rank : k;
    if (rank < 0 || rank >= world->size || world->ranks[rank]) {
        entry->status = log_fail(entry->log, DESCANT_BAD_RANK, "rank %d is taken", rank);
        return NULL;
    }
    struct end *link = memory_take(sizeof *link);
    assert(link);
    link->ended = memory_take_array(ENDED, sizeof *link->ended);
    link->told = memory_take_array(ENDED, sizeof *link->told);
    assert(link->ended && link->told);
    link->link.type = &link_loopback;
    link->world = world;
    link->rank = rank;
    world->ranks[rank] = link;
    world->opened++;
    int per = world->per_host, host = rank / per, left = world->size - host * per;
    *place = (struct link_place){.rank = rank, .size = world->size, .host = host * per, .host_number = host,
                                .local_rank = rank % per, .local_size = left < per ? left : per,
                                .hosts = (world->size + per - 1) / per,
                                .most_local = per < world->size ? per : world->size,
                                .names = (const char (*)[LINK_NAME_ROOM])world->names,
                                .version = "loopback"};
    snprintf(place->job, sizeof place->job, "%s-%d", world->job, host);
    return &link->link;
}

static void end(struct end *link, void *op, int from, size_t bytes)
{
    assert(link->n_ended < ENDED);
    link->ended[link->n_ended++] = (struct link_ended){op, from, bytes};
}

static bool send_to(struct link *base, const void *p, size_t bytes, int to, int tag, void *op)
{
    struct end *link = end_of(base);
    struct loopback *world = link->world;
    struct message *message, **last = &world->messages;
    bool eager = bytes <= EAGER;

    message = memory_take(sizeof *message + (eager ? bytes : 0));
    assert(message);
    world->sent[link->rank] += tag == TAG_WORD || tag == TAG_MANIFEST ? 0 : bytes;
    *message = (struct message){.from = link->rank, .to = to, .tag = tag, .bytes = bytes,
                                .ready = world->tick + rng_next(&world->rng) % DELAY,
                                .p = eager ? message->copy : p, .op = op};
    if (eager) {
        memcpy(message->copy, p, bytes);
        message->op = NULL;
        end(link, op, 0, 0);
    }
    while (*last)
        last = &(*last)->next;
    *last = message;
    return true;
}

static bool receive_from(struct link *base, void *p, size_t bytes, int from, int tag, void *op)
{
    struct end *link = end_of(base);
    struct opened *receive = memory_take(sizeof *receive), **last = &link->receives;

    assert(receive);
    *receive = (struct opened){.from = from, .tag = tag, .p = p, .op = op, .bytes = bytes};
    while (*last)
        last = &(*last)->next;
    *last = receive;
    return true;
}

/* The oldest message for the receive of each sender counts, and only if its time has come. */
static struct message **fitting(const struct end *link, const struct opened *receive)
{
    bool passed[MOST] = {false};
    struct message **at = &link->world->messages;

    for (; *at; at = &(*at)->next) {
        struct message *message = *at;
        if (message->to != link->rank || message->tag != receive->tag ||
            passed[message->from] ||
            (receive->from != LINK_ANY && receive->from != message->from))
            continue;
        if (message->ready <= link->world->tick)
            return at;
        passed[message->from] = true;
    }
    return NULL;
}

static void take(struct end *link, struct opened *receive, struct message **at)
{
    struct message *message = *at;

    bool fits = message->bytes <= receive->bytes;

    memcpy(receive->p, message->p, fits ? message->bytes : receive->bytes);
    end(link, receive->op, message->from, fits ? message->bytes : LINK_TOO_LONG);
    if (message->op && link->world->ranks[message->from])
        end(link->world->ranks[message->from], message->op, 0, 0);
    *at = message->next;
    memory_give(message);
}

static int collect(struct link *base, const struct link_ended **ended, uint64_t *now_ns)
{
    struct end *link = end_of(base);

    *now_ns = clock_now_ns();
    link->world->tick++;
    for (struct opened **at = &link->receives; *at;) {
        struct opened *receive = *at;
        struct message **found = fitting(link, receive);
        if (!found) {
            at = &receive->next;
            continue;
        }
        take(link, receive, found);
        *at = receive->next;
        memory_give(receive);
    }
    int n = link->n_ended;
    if (n)
        memcpy(link->told, link->ended, (size_t)n * sizeof *link->told);
    link->n_ended = 0;
    *ended = link->told;
    return n;
}

static const char *why_of(const struct link *link)
{
    (void)link;
    return "";
}

static void sleep_for(struct link *link, uint64_t most_ns, uint64_t until_ns)
{
    uint64_t until = clock_now_ns() + most_ns;

    (void)link;
    clock_sleep_until(until_ns && until_ns < until ? until_ns : until);
}

static bool close_end(struct link *base, bool together)
{
    struct end *link = end_of(base);
    struct loopback *world = link->world;
    bool quiet = true;

    (void)together;
    for (const struct message *message = world->messages; message; message = message->next)
        quiet = quiet && (message->from != link->rank || !message->op);
    while (link->receives) {
        struct opened *receive = link->receives;
        link->receives = receive->next;
        memory_give(receive);
    }
    world->ranks[link->rank] = NULL;
    memory_give(link->ended);
    memory_give(link->told);
    memory_give(link);
    return quiet;
}

const struct link_type link_loopback = {
    .version = LINK_VERSION,
    .name = "loopback",
    .meet = meet,
    .send = send_to,
    .receive = receive_from,
    .collect = collect,
    .sleep = sleep_for,
    .why = why_of,
    .close = close_end,
};

struct loopback *loopback_create(int size, uint64_t seed)
{
    return loopback_create_hosts(size, size, seed);
}

struct loopback *loopback_create_hosts(int size, int per_host, uint64_t seed)
{
    struct loopback *world = memory_take(sizeof *world);

    assert(world && size <= MOST);
    world->size = size;
    world->per_host = per_host;
    for (int k = 0; k < size; k++)
        snprintf(world->names[k], sizeof world->names[k], "host%u", (unsigned)k % 1000);
    rng_init(&world->rng, seed);
    snprintf(world->job, sizeof world->job, "loopback-%llx",
             (unsigned long long)clock_now_ns());
    return world;
}

/* True while any is left. */
static bool serve_leaving(struct loopback *world)
{
    bool more = false;

    for (int k = 0; k < world->n_leaving; k++) {
        world->gone[k] = world->gone[k] || !ranks_stay(world->leaving[k]);
        more |= !world->gone[k];
    }
    return more;
}

void loopback_destroy(struct loopback *world)
{
    bool more = true;

    if (!world)
        return;
    for (int turn = 0; turn < LEAVE_TURNS && more; turn++)
        more = serve_leaving(world);
    ck_assert_msg(!more || world->opened < world->size, "the ranks do not leave");
    for (int k = 0; k < world->n_leaving; k++)
        ranks_free(world->leaving[k]);
    while (world->messages) {
        struct message *message = world->messages;
        world->messages = message->next;
        memory_give(message);
    }
    memory_give(world);
}

uint64_t loopback_sent(const struct loopback *world, int rank)
{
    return world->sent[rank];
}

/* --- the table --- */

static struct loopback *world_of(struct fabric *f)
{
    return end_of(ranks_of(f)->link)->world;
}

static descant_status loopback_open(struct fabric **out, const struct fabric_options *options)
{
    struct fabric_options over = *options;
    over.link = over.link ? over.link : &link_loopback;
    descant_status status = fabric_mpi.open(out, &over);
    if (status == DESCANT_OK)
        (*out)->type = &fabric_loopback;
    return status;
}

static float *loopback_alloc(struct fabric *f, size_t at, size_t n)
{
    return fabric_mpi.alloc(f, at, n);
}

static descant_status loopback_share(struct fabric *f, const char *name, size_t bytes,
                                     void **block)
{
    return fabric_mpi.share(f, name, bytes, block);
}

static descant_status loopback_start(struct fabric *f, const struct fabric_start *start)
{
    return fabric_mpi.start(f, start);
}

static descant_status loopback_begin(struct fabric *f, const struct exchange *exchange)
{
    return fabric_mpi.begin(f, exchange);
}

static enum fabric_progress loopback_poll(struct fabric *f, struct fabric_part *part)
{
    serve_leaving(world_of(f));
    return fabric_mpi.poll(f, part);
}

static descant_status loopback_rows_begin(struct fabric *f, const void *bytes, size_t n)
{
    return fabric_mpi.rows->begin(f, bytes, n);
}

static enum fabric_progress loopback_rows_poll(struct fabric *f, struct rows_part *part)
{
    serve_leaving(world_of(f));
    return fabric_mpi.rows->poll(f, part);
}

static bool loopback_rows_leave(struct fabric *f)
{
    return fabric_mpi.rows->leave(f);
}

static const struct fabric_rows loopback_rows = {loopback_rows_begin, loopback_rows_poll,
                                                 loopback_rows_leave};

static void loopback_wait(struct fabric *f, uint64_t until_ns)
{
    fabric_mpi.wait(f, until_ns);
}

static void loopback_close(struct fabric *f)
{
    struct loopback *world = world_of(f);

    ranks_leave(f);
    ranks_stay(f);
    world->leaving[world->n_leaving++] = f;
}

const struct fabric_type fabric_loopback = {
    .name = "mpi loopback",
    .rows = &loopback_rows,
    .post = &ranks_post,
    .open = loopback_open,
    .alloc = loopback_alloc,
    .share = loopback_share,
    .start = loopback_start,
    .begin = loopback_begin,
    .poll = loopback_poll,
    .wait = loopback_wait,
    .close = loopback_close,
};
