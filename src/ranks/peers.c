/* SPDX-License-Identifier: MIT */
/* Which ranks are there, on a link on which they come and go.
 *
 *   coming      the link tells. A rank that is in no epoch says HELLO to the coordinator
 *               that it knows, and sends its manifest
 *   going       the link tells that the rank's process has died, or closed. The rank is
 *               forgotten, with all messages to and from it
 *   silence     nothing came for `dead`. Messages to and from the rank stay, since it may
 *               only be paused
 *
 * Silence counts where words are due: the coordinator says HERE to all members, and all
 * members to the coordinator, each dead / 4; in a round that lasts as long, all ranks of
 * the round say ALIVE to each other. A round begins here once all its ranks are there.
 *
 * All of this runs in the thread that holds the round machine. */
#include "ranks/ranks.h"

#include <string.h>

enum { LOOKS = 8 /* for silent ranks, in the time `dead` */ };

descant_status ranks_peers_init(struct ranks *m)
{
    size_t size = (size_t)m->place.size;

    m->peers = memory_take_array(size, sizeof *m->peers);
    m->members = memory_take_array(size, sizeof *m->members);
    m->f.takes_part = memory_take_array(size, sizeof *m->f.takes_part);
    for (size_t k = 0; m->peers && m->place.fixed && k < size; k++)
        m->peers[k].generation = m->place.generation;
    return m->peers && m->members && m->f.takes_part
               ? DESCANT_OK
               : log_fail(&m->f.log, DESCANT_MEMORY, "no memory for %zu peers", size);
}

void ranks_peers_fini(struct ranks *m)
{
    memory_give(m->peers);
    memory_give(m->members);
    memory_give(m->f.takes_part);
}

/* A name that another one replaces may be read still. */
static void name_host(struct ranks *m, int rank, const char *name)
{
    if (!name || !*name || strcmp(name, ranks_host_name(m, rank)) == 0)
        return;
    struct ranks_name *made = memory_take(sizeof *made);
    if (!made)
        return;                 /* it is for people alone */
    snprintf(made->text, sizeof made->text, "%s", name);
    made->before = m->names;
    m->names = made;
    atomic_store_explicit(&m->f.host_names[rank], made->text, memory_order_release);
}

void ranks_names_fini(struct ranks *m)
{
    while (m->names) {
        struct ranks_name *name = m->names;
        m->names = name->before;
        memory_give(name);
    }
    memory_give(m->f.host_names);
}

/* Trainers of a star reach nobody without it. */
static void say_hub(struct ranks *m, bool gone)
{
    if (gone)
        log_say(&m->f.log, DESCANT_WARNING,
                "the hub has gone: rounds wait until it is started again");
    else if (m->founded)
        log_say(&m->f.log, DESCANT_INFO, "the hub is there again");
}

void ranks_peers_met(struct ranks *m, const struct link_peer *peer)
{
    struct ranks_peer *p = &m->peers[peer->rank];

    if (peer->rank == m->hub)
        say_hub(m, peer->gone);
    if (!peer->gone) {
        p->told &= p->generation == peer->generation;
        p->generation = peer->generation;
        p->heard_ns = m->now_ns;
        p->came_look = m->looks;
        p->silent &= p->generation != m->members[peer->rank];
        name_host(m, peer->rank, peer->host);
        ranks_members_came(m, peer->rank);
    } else if (p->generation && p->generation == peer->generation) {
        p->generation = 0;
        m->link->type->forget(m->link, peer->rank, LINK_PEER);
        p->silent = true;
        ranks_admission_gone(m, peer->rank);
        if (m->center)
            ranks_center_serve(m);
        ranks_members_silent(m, peer->rank);
    }
    m->moved = true;
}

/* --- HELLO --- */

static void manifest_sent(struct ranks *m, struct ranks_op *op,
                          const struct link_ended *ended)
{
    (void)m;
    (void)ended;
    op->busy = false;
}

bool ranks_peers_hello(struct ranks *m, int rank)
{
    struct ranks_word hello = {.what = WORD_HELLO, .threads = (uint32_t)m->threads,
                             .host = m->place.host, .local_rank = m->place.local_rank,
                             .manifest_bytes = strlen(m->manifest) + 1};

    struct ranks_op *op = &m->peers[rank].manifest_op;

    *op = (struct ranks_op){.ended = manifest_sent, .rank = rank};
    if (!ranks_tell(m, rank, hello, NULL, 0))
        return false;
    return m->f.rank == rank ||
           ranks_send_op(m, op, m->manifest, hello.manifest_bytes, TAG_MANIFEST);
}

static void introduce_to(struct ranks *m, int rank)
{
    struct ranks_peer *peer = &m->peers[rank];

    if (peer->greeted != peer->generation && peer->generation &&
        !peer->manifest_op.busy && ranks_peers_hello(m, rank))
        peer->greeted = peer->generation;
}

/* Says HELLO once to each process that this rank takes for the leader: where the
 * coordinator has gone the candidate must know a newcomer that is in an accepted list.
 * And to each hub, which has no manifest of its own. */
static void introduce(struct ranks *m)
{
    if (m->left)
        return;
    if (m->members[m->f.rank] != m->place.generation)
        introduce_to(m, m->leader);
    if (m->hub >= 0 && m->hub != m->f.rank)
        introduce_to(m, m->hub);
}

/* --- silence --- */

static bool is_there(const struct ranks *m, int rank)
{
    return rank == m->f.rank || m->peers[rank].generation == m->members[rank];
}

/* Seats are in the order of ranks. */
static bool is_seated(const struct ranks_round *r, int rank)
{
    int from = 0, to = r->k;

    while (from < to) {
        int at = from + (to - from) / 2;
        if (r->seats[at].rank == rank)
            return true;
        if (r->seats[at].rank < rank)
            from = at + 1;
        else
            to = at;
    }
    return false;
}

/* Whether the rank is in a round that is under way here, or is to begin. */
static bool is_in_round(const struct ranks *m, int rank)
{
    const struct ranks_round *r = &m->round;
    return (r->active && is_seated(r, rank)) ||
           (m->go_waits && ranks_run_of(ranks_runs(m->go), m->go->seats, rank));
}

bool ranks_peers_seated(const struct ranks *m)
{
    const struct ranks_run *run = ranks_runs(m->go), *end = run + m->go->seats;
    bool all = true;

    for (; run < end; run++)
        for (int i = 0; i < (int)run->n; i++)
            all &= is_there(m, run->first.rank + i);
    return all;
}

static uint64_t since(const struct ranks *m, int rank, uint64_t from_ns)
{
    bool counts = !m->members[rank] || is_there(m, rank);
    uint64_t heard = counts ? m->peers[rank].heard_ns : 0;

    heard = heard > from_ns ? heard : from_ns;     /* before from_ns no words were due */
    return m->now_ns > heard ? m->now_ns - heard : 0;
}

/* Where a hub leads its word on who is silent is enough. */
static bool hub_leads(const struct ranks *m)
{
    return m->hub >= 0 && m->leader == m->hub;
}

/* The leader watches all that it is to hear of; all watch the leader; members of a round
 * watch each other. */
static bool is_silent(const struct ranks *m, int rank)
{
    uint64_t round_ns = m->go_waits ? m->go_ns : m->round.began_ns;

    if (m->leader == m->f.rank || rank == m->leader)
        return since(m, rank, m->leader_ns) > m->dead_ns;
    if (hub_leads(m))
        return false;
    uint64_t rows_ns = ranks_rows_since(m, rank);
    return (is_in_round(m, rank) && since(m, rank, round_ns) > m->dead_ns) ||
           (rows_ns && since(m, rank, rows_ns) > m->dead_ns);
}

/* While the coordinator is silent, the lowest rank that is not silent leads
 * (docs/members.md). */
static void follow_leader(struct ranks *m)
{
    int leader = m->coordinator;

    for (int k = 0; m->peers[leader].silent && k < m->place.size; k++)
        if (m->members[k] && !m->peers[k].silent) {
            leader = k;
            break;
        }
    if (leader != m->leader)
        m->leader_ns = m->now_ns;
    m->leader = leader;
}

/* All members of a new epoch have promised it, so all are heard anew. */
void ranks_peers_changed(struct ranks *m)
{
    m->leader = m->coordinator;
    m->leader_ns = m->now_ns;
    for (int k = 0; k < m->place.size; k++) {
        if (k == m->f.rank || !m->members[k] || !m->peers[k].silent)
            continue;
        m->peers[k].silent = !is_there(m, k);
        if (is_there(m, k))
            ranks_members_heard(m, k);
        else
            ranks_members_silent(m, k);
    }
}

static void look_at(struct ranks *m, int rank)
{
    struct ranks_peer *peer = &m->peers[rank];
    bool is_heard = is_there(m, rank) && m->now_ns - peer->heard_ns < m->dead_ns;

    if (!m->members[rank] && !peer->generation)
        return;
    if (is_silent(m, rank)) {
        peer->silent = true;
        ranks_members_silent(m, rank);
    } else if (peer->silent && is_heard) {
        peer->silent = false;
        ranks_members_heard(m, rank);
    }
}

/* A process that was started again vouches for the death of the one before it, which was
 * a member. It could know of no newer epoch after `dead` among ranks that hear each other
 * (docs/members.md). Looks are counted, not time: in a pause this rank hears nothing. */
static bool is_replaced(const struct ranks *m, int rank)
{
    const struct ranks_peer *peer = &m->peers[rank];
    return peer->generation > m->members[rank] && m->looks - peer->came_look > LOOKS;
}

/* Vouches only where each member of the epoch is heard, or replaced: then no process is
 * left that may know of a newer epoch. */
static void vouch(struct ranks *m)
{
    int replaced = 0;

    for (int k = 0; k < m->place.size; k++) {
        bool is_here = is_there(m, k) && !m->peers[k].silent;
        if (m->members[k] && !is_here && !is_replaced(m, k))
            return;
        replaced += m->members[k] && !is_here;
    }
    for (int k = 0; replaced && k < m->place.size; k++)
        if (m->members[k] && !is_there(m, k))
            ranks_members_lost(m, k);
}

static void say_alive(struct ranks *m)
{
    const struct ranks_round *r = &m->round;
    uint64_t rows_ns = ranks_rows_since(m, m->f.rank), lasts = m->dead_ns / 4;
    bool rows = rows_ns && m->now_ns - rows_ns >= lasts;
    bool round = r->active && m->now_ns - r->began_ns >= lasts;

    if ((!round && !rows) || m->now_ns - m->alive_ns < lasts)
        return;
    m->alive_ns = m->now_ns;
    const struct ranks_word alive = {.what = WORD_ALIVE};
    for (int k = 0; k < m->place.size; k++)
        if (k != m->f.rank && (!hub_leads(m) || k == m->hub) &&
            ((round && is_seated(r, k)) || (rows && ranks_rows_since(m, k))))
            ranks_tell(m, k, alive, NULL, 0);
}

/* Says to all ranks that this one was told to end: once where the link is fixed, else
 * again and again, since words may be lost. */
void ranks_peers_tell(struct ranks *m)
{
    const struct ranks_word told = {.what = WORD_ALIVE, .final = 1};

    if (!m->started || m->left ||
        !atomic_load_explicit(&m->f.told, memory_order_relaxed) ||
        (m->told_ns && (m->place.fixed || m->now_ns - m->told_ns < m->dead_ns / 4)))
        return;
    m->told_ns = m->now_ns;
    for (int k = 0; k < m->place.size; k++)
        if (k != m->f.rank)
            ranks_tell(m, k, told, NULL, 0);
}

void ranks_peers_time(struct ranks *m)
{
    if (!m->started)
        return;
    introduce(m);
    say_alive(m);
    if (m->now_ns - m->looked_ns < m->dead_ns / LOOKS)
        return;
    m->looked_ns = m->now_ns;
    m->looks++;
    ranks_lead_time(m);
    m->n_silent = 0;
    for (int k = 0; k < m->place.size; k++) {
        if (k != m->f.rank)
            look_at(m, k);
        m->n_silent += m->peers[k].generation && m->peers[k].silent;
    }
    follow_leader(m);
    if (!m->place.fixed && m->members[m->f.rank] == m->place.generation)
        vouch(m);
}
