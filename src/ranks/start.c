/* SPDX-License-Identifier: MIT */
/* The ranks up to their first poll: they meet, each looks up its place, takes segments
 * and the memory of rounds, and tells the coordinator all that must be the same. */
#include "kernels/vector.h"
#include "machine/roster.h"
#include "ranks/joint.h"

#include <limits.h>
#include <string.h>

#define DEAD_NS UINT64_C(10000000000)

/* --- open --- */

static descant_status check_place(const struct ranks *m,
                                  const struct fabric_options *options)
{
    const struct log *log = options->log;

    if (options->rank >= 0 && options->rank != m->place.rank)
        return log_fail(log, DESCANT_BAD_RANK, "rank %d: %s has made this one rank %d",
                        options->rank, m->link->type->name, m->place.rank);
    if (!m->place.fixed)
        return options->size <= m->place.size
                   ? DESCANT_OK
                   : log_fail(log, DESCANT_BAD_SIZE,
                              "size %d: the job has at most %d ranks", options->size,
                              m->place.size);
    if (options->size > 0 && options->size != m->place.size && m->place.size == 1)
        return log_fail(log, DESCANT_BAD_SIZE,
                        "size %d: %s knows of this rank alone, which was started by "
                        "another library's launcher, or under Slurm without --mpi=pmix",
                        options->size, m->link->type->name);
    if (options->size > 0 && options->size != m->place.size)
        return log_fail(log, DESCANT_BAD_SIZE, "size %d: the MPI job has %d ranks",
                        options->size, m->place.size);
    return DESCANT_OK;
}

static void say_place(const struct ranks *m)
{
    const struct link_place *p = &m->place;
    log_say(&m->f.log, DESCANT_DEBUG,
            "%s: %s, %s%d rank%s on %s%d host%s, this one on %s; %s", m->f.type->name,
            p->version, p->fixed ? "" : "room for ", p->size, p->size == 1 ? "" : "s",
            p->fixed ? "" : "up to ", p->hosts, p->hosts == 1 ? "" : "s",
            p->names[p->rank], p->about);
}

static descant_status name_hosts(struct ranks *m)
{
    m->f.host_names = memory_take_array((size_t)m->place.size, sizeof *m->f.host_names);
    if (!m->f.host_names)
        return log_fail(&m->f.log, DESCANT_MEMORY, "no memory for the names of hosts");
    for (int k = 0; k < m->place.size; k++)
        atomic_init(&m->f.host_names[k], m->place.names[k]);
    return DESCANT_OK;
}

/* The address asks ranks of one host to use messages, too, for tests and comparisons. */
static bool wants_messages(const struct fabric_options *options)
{
    return options->address && strcmp(options->address, "messages") == 0;
}

/* Where ranks come and go each is its own host, also among ranks of one host. */
static void stand_alone(struct ranks *m, const struct fabric_options *options)
{
    struct link_place *p = &m->place;

    m->founders = options->joins ? INT_MAX : options->size > 0 ? options->size : p->size;
    if (options->dead_s > 0)
        m->dead_ns = (uint64_t)(options->dead_s * 1e9);
    p->host = p->host_number = p->rank;
    p->hosts = p->size;
    p->local_rank = 0;
    p->local_size = p->most_local = 1;
}

static descant_status go_up(struct ranks *m, const struct fabric_options *options)
{
    const struct link_type *type = options->link;
    struct link_entry entry = {.context = options->context, .rank = options->rank,
                               .start_s = options->start_s, .rate = options->rate,
                               .joins = options->joins, .hub = options->hub,
                               .threads = options->owned,
                               .log = options->log};

    m->link = type->meet(&entry, &m->place);
    if (!m->link)
        return entry.status;
    m->hub = m->place.star ? m->place.size - 1 : -1;
    m->f.star = m->place.star;
    m->f.hub = m->hub == m->place.rank;
    descant_status status = check_place(m, options);
    if (status)
        return status;
    m->f.begins_with = m->place.hosts;
    if (!m->place.fixed) {
        stand_alone(m, options);
        m->f.begins_with = options->size > 0 ? options->size : m->place.size;
    }
    if (m->place.fixed)
        m->place.generation = 1;        /* of each rank */
    m->f.rank = m->place.rank;
    m->f.log.rank = m->f.hub ? -1 : m->f.rank;
    m->f.size = m->place.size;
    m->f.many_hosts = m->place.hosts > 1;
    m->f.host = m->place.host_number;
    m->f.hosts = m->place.hosts;
    m->f.local_rank = m->place.local_rank;
    m->parks = options->parks;
    m->f.wire = m->f.size > 1 ? options->wire : WIRE_F32;
    m->messages = wants_messages(options);
    if (m->place.hosts == 1 && m->place.size > 1 && m->place.size <= MACHINE_SLOTS &&
        !m->messages)
        m->f.machine_job = m->place.job;
    status = name_hosts(m);
    if (!status)
        status = ranks_peers_init(m);
    if (!status && (m->f.rank == 0 || !m->place.fixed))
        status = ranks_lead_init(m);
    if (!status)
        status = ranks_members_init(m);
    return status ? status : ranks_words_init(m);
}

descant_status ranks_open(struct fabric **out, const struct fabric_type *type,
                          const struct fabric_options *options)
{
    struct ranks *m = memory_take(sizeof *m);

    if (!m)
        return log_fail(options->log, DESCANT_MEMORY, "no memory for a trainer");
    m->f.type = type;
    m->hear = ranks_hear;
    m->met = ranks_peers_met;
    m->dead_ns = DEAD_NS;
    m->blame = ranks_blame_alone;
    if (options->log)
        m->f.log = *options->log;
    m->start_s = options->start_s;
    m->f.machine_threads = 1;
    descant_status status = go_up(m, options);
    if (status) {
        ranks_free(&m->f);
        return status;
    }
    m->f.fixed = m->place.fixed;
    m->f.quorums = true;
    say_place(m);
    *out = &m->f;
    return DESCANT_OK;
}

descant_status ranks_beside(struct fabric *f, struct link **link,
                            struct link_place *place)
{
    struct ranks *m = ranks_of(f);
    struct link_entry entry = {.rank = m->place.rank, .start_s = m->start_s,
                               .log = &f->log, .lazy = true};

    if (!m->link->type->beside)
        return log_fail(&f->log, DESCANT_UNSUPPORTED,
                        "tables with owners need a second link between the ranks, which "
                        "%s has not", m->link->type->name);
    *link = m->link->type->beside(m->link, &entry, place);
    if (!*link && entry.timed_out)
        return log_fail(&f->log, DESCANT_TIMEOUT,
                        "some of %d ranks did not come for the rows of tables in %g s",
                        m->place.size, entry.start_s);
    if (!*link && m->place.fixed)
        return log_fail(&f->log, DESCANT_UNSUPPORTED, "%s", entry.why);
    return *link ? DESCANT_OK : entry.status;
}

/* --- memory --- */

static bool add_segment(struct ranks *m, size_t at, size_t n, float *p)
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

float *ranks_alloc(struct fabric *f, size_t at, size_t n)
{
    struct ranks *m = ranks_of(f);
    float *p = memory_take_array(n, sizeof *p);

    if (p && add_segment(m, at, n, p))
        return p;
    memory_give(p);
    log_fail(&f->log, DESCANT_MEMORY, "no memory for %zu floats", n);
    return NULL;
}

/* --- start --- */

static float *floats(size_t n)
{
    return memory_take_array(n ? n : 1, sizeof(float));
}

static descant_status start_memory(struct ranks *m, const struct fabric_start *start)
{
    struct fabric *f = &m->f;
    size_t most = start->room > start->n ? start->room : start->n;
    bool had = (m->result = floats(most)) != NULL;

    m->mean = m->result;
    if (had && ranks_by_hosts(m)) {
        descant_status status = ranks_host_init(m);
        if (status)
            return status;
    } else if (had && !start->in_place) {
        had = (f->contribution = floats(start->room)) != NULL;
    }
    for (int i = 0; had && i < start->n_outer && i < 2; i++)
        had = (f->outer[i] = floats(start->n)) &&
              (m->state_outer[i] = floats(start->n)) &&
              (!start->carries || (m->next_outer[i] = floats(start->n)));
    if (had && start->center && ranks_is_joint(m)) {
        descant_status status = ranks_joint_init(m);
        if (status)
            return status;
    } else if (had && start->center) {
        had = (f->center = floats(start->n)) != NULL;
    }
    if (had && start->center)
        had = ranks_elastic_init(m) == DESCANT_OK;
    m->state_center = had && f->center && !m->place.fixed ? floats(start->n) : f->center;
    had = had && (!f->center || m->state_center);
    had = had && ranks_lanes_init(m) == DESCANT_OK;
    if (had && (!m->place.fixed || m->quorum.arrivals > 0))
        had = ranks_versions_init(m) == DESCANT_OK;
    if (had && f->wire != WIRE_F32)
        had = ranks_wire_init(m) == DESCANT_OK;
    if (had)
        had = ranks_agree_init(m) == DESCANT_OK;
    if (had && m->lead)
        had = ranks_agree_lead_init(m) == DESCANT_OK;
    if (had)
        had = ranks_deal_init(m) == DESCANT_OK;
    if (had)
        return ranks_rows_init(m, start);
    return log_fail(&f->log, DESCANT_MEMORY, "no memory for rounds of %zu floats",
                    start->n);
}

/* The manifest: the values that must be the same in all ranks, as lines. */
static bool write_manifest(struct ranks *m, const struct fabric_start *start)
{
    const char *rest = start->manifest ? start->manifest : "";
    size_t room = strlen(rest) + 64;

    m->manifest = memory_take(room);
    if (m->manifest)
        snprintf(m->manifest, room, "descant %s\n%sfloats %zu\n", DESCANT_VERSION, rest,
                 start->n);
    return m->manifest != NULL;
}

descant_status ranks_start(struct fabric *f, const struct fabric_start *start)
{
    struct ranks *m = ranks_of(f);

    if (m->started)
        return log_fail(&f->log, DESCANT_ORDER, "the fabric has been started");
    m->n = start->n;
    m->room = start->room;
    m->in_place = start->in_place;
    m->collective = start->collective;
    m->gradients = start->gradients;
    m->carries = start->carries;
    m->numbered = start->numbered;
    m->passes = start->quorum > 0 && !start->carries;
    m->quorum = (struct ledger_quorum){
        .arrivals = start->quorum,
        .grace_ns = start->grace > 0 ? (uint64_t)(start->grace * 1e9) : 0,
        .grace_share = start->grace < 0 ? -start->grace : 0,
        .leavers_give = start->carries};
    ledger_set_quorum(m->ledger, &m->quorum);
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
    ranks_admission_started(m);
    m->threads = start->threads;
    f->machine_threads = start->threads;
    ranks_look_at_cores(m, start->threads);
    if (m->place.fixed || m->f.rank == ranks_founder(m))
        ranks_peers_hello(m, ranks_founder(m));
    return f->status;
}
