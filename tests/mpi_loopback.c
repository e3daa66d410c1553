/* SPDX-License-Identifier: MIT */
/* The ranks of one simulated world in one thread (mpi_loopback.h). */
#include "mpi_loopback.h"

#include "link/simulated.h"
#include "ranks/ranks.h"

#include <assert.h>
#include <check.h>
#include <string.h>

enum { TICK_NS = 1000, DELAY_NS = 5 * TICK_NS, LEAVE_TURNS = 1000, MOST = 512 };

struct loopback {
    struct simulated *simulated;
    int size, per_host, opened, n_leaving;
    bool fixed;
    uint64_t sent[MOST], sent_out[MOST];        /* by rank; sent_out: by host */
    struct fabric *leaving[MOST];       /* closed, and serving those who have not, */
    bool gone[MOST];                    /* until they were told that all have left */
};

/* --- the link: link_simulated with a clock that goes on by itself --- */

struct loopback_end {
    struct link link;                   /* first */
    struct link *inner;
    struct loopback *world;
    int rank;
};

static struct loopback_end *end_of(struct link *link)
{
    return (struct loopback_end *)(void *)link;
}

static struct link *meet(struct link_entry *entry, struct link_place *place)
{
    struct loopback *world = entry->context;
    struct loopback_end *end = memory_take(sizeof *end);

    assert(end);
    entry->context = world->simulated;
    end->link.type = &link_loopback;
    end->world = world;
    end->inner = link_simulated.meet(entry, place);
    entry->context = world;
    end->rank = place->rank;
    if (!end->inner) {
        memory_give(end);
        return NULL;
    }
    world->opened++;
    return &end->link;
}

static bool send_to(struct link *link, const void *p, size_t bytes,
                    const struct link_message *message)
{
    struct loopback_end *end = end_of(link);
    bool word = message->tag == TAG_WORD || message->tag == TAG_MANIFEST;

    int host = end->rank / end->world->per_host;
    bool out = message->rank / end->world->per_host != host;

    end->world->sent[end->rank] += word ? 0 : bytes;
    end->world->sent_out[host] += word || !out ? 0 : bytes;
    return link_simulated.send(end->inner, p, bytes, message);
}

static bool receive_from(struct link *link, void *p, size_t bytes,
                         const struct link_message *message)
{
    return link_simulated.receive(end_of(link)->inner, p, bytes, message);
}

static bool collect(struct link *link, struct link_news *news)
{
    struct loopback_end *end = end_of(link);
    struct simulated *simulated = end->world->simulated;

    simulated_run(simulated, simulated_now(simulated) + TICK_NS);
    return link_simulated.collect(end->inner, news);
}

static void sleep_for(struct link *link, uint64_t most_ns, uint64_t until_ns)
{
    struct loopback_end *end = end_of(link);
    struct simulated *simulated = end->world->simulated;

    link_simulated.sleep(end->inner, most_ns, until_ns);
    while (simulated_sleeps(simulated, end->rank))
        simulated_run(simulated, simulated_next(simulated));
}

static bool forget(struct link *link, int rank, uint64_t below)
{
    return link_simulated.forget(end_of(link)->inner, rank, below);
}

static const char *why_of(const struct link *link)
{
    return link_simulated.why(((const struct loopback_end *)(const void *)link)->inner);
}

static bool close_end(struct link *link, bool together)
{
    struct loopback_end *end = end_of(link);
    bool quiet = link_simulated.close(end->inner, together);

    memory_give(end);
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
    .forget = forget,
    .why = why_of,
    .close = close_end,
};

/* --- the world --- */

struct loopback *loopback_create(int size, uint64_t seed)
{
    return loopback_create_hosts(size, size, seed);
}

static struct loopback *create(int size, int per_host, bool fixed, uint64_t seed)
{
    const struct simulated_options options = {.ranks = size,
                                              .per_host = per_host,
                                              .seed = seed,
                                              .fixed = fixed,
                                              .jitter_ns = DELAY_NS};
    struct loopback *world = memory_take(sizeof *world);

    assert(world && size <= MOST);
    world->size = size;
    world->per_host = per_host;
    world->fixed = fixed;
    world->simulated = simulated_create(&options);
    assert(world->simulated);
    return world;
}

struct loopback *loopback_create_hosts(int size, int per_host, uint64_t seed)
{
    return create(size, per_host, true, seed);
}

struct loopback *loopback_create_free(int most, uint64_t seed)
{
    return create(most, 1, false, seed);
}

/* True while any is left. */
static bool serve_leaving(struct loopback *world)
{
    bool more = false;

    for (int k = 0; k < world->n_leaving; k++) {
        if (world->gone[k] || (world->gone[k] = !ranks_stay(world->leaving[k])))
            continue;
        more = true;
    }
    for (int k = 0; k < world->n_leaving && !world->fixed; k++)
        if (world->gone[k]) {           /* another process may have its rank */
            ranks_free(world->leaving[k]);
            world->leaving[k] = world->leaving[--world->n_leaving];
            world->gone[k] = world->gone[world->n_leaving];
            k--;
        }
    return more;
}

void loopback_destroy(struct loopback *world)
{
    struct simulated *simulated = world ? world->simulated : NULL;
    bool more = true;

    if (!world)
        return;
    for (int turn = 0; turn < LEAVE_TURNS && more; turn++) {
        more = serve_leaving(world);
        if (!world->fixed && simulated_next(simulated) < UINT64_MAX)
            simulated_run(simulated, simulated_next(simulated));
    }
    ck_assert_msg(!more || !world->fixed || world->opened < world->size,
                  "the ranks do not leave");
    for (int k = 0; k < world->n_leaving; k++)
        ranks_free(world->leaving[k]);
    simulated_destroy(world->simulated);
    memory_give(world);
}

uint64_t loopback_now(const struct loopback *world)
{
    return simulated_now(world->simulated);
}

void loopback_kill(struct loopback *world, struct fabric *f)
{
    const struct simulated_fault death = {.kind = SIMULATED_DIE, .rank = f->rank,
                                          .at_ns = simulated_now(world->simulated)};
    bool noted = simulated_fault(world->simulated, &death);

    assert(noted);
    simulated_run(world->simulated, simulated_now(world->simulated));
    ranks_free(f);
}

uint64_t loopback_sent(const struct loopback *world, int rank)
{
    return world->sent[rank];
}

uint64_t loopback_sent_out(const struct loopback *world, int host)
{
    return world->sent_out[host];
}

/* --- the table --- */

static struct loopback *world_of(struct fabric *f)
{
    return end_of(ranks_of(f)->link)->world;
}

static descant_status loopback_open(struct fabric **out,
                                    const struct fabric_options *options)
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

static const struct fabric_rows loopback_rows = {.joins = true, .begin = loopback_rows_begin,
                                                 .poll = loopback_rows_poll,
                                                 .leave = loopback_rows_leave};

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
    .agree = &ranks_agree,
    .open = loopback_open,
    .alloc = loopback_alloc,
    .share = loopback_share,
    .start = loopback_start,
    .begin = loopback_begin,
    .poll = loopback_poll,
    .serve = ranks_serve,
    .wait = loopback_wait,
    .close = loopback_close,
};
