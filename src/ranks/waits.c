/* SPDX-License-Identifier: MIT */
/* Sleeping, the ranks that are waited for, and the number of cores. MPI moves nothing by
 * itself and its own waits burn a core, so a rank that waits sleeps and looks again:
 * after 50 us first, then after twice as long each time that nothing had moved. The
 * longest sleep is 0.5 ms while pieces are in flight, since a link of 10 Gb/s empties
 * them in about that time; 2 ms while a round gathers; and 20 ms while nothing is open,
 * which is what an idle owner of a slice costs its askers. A shadow under the default
 * budget rests for longer (look_ns). Where the link wakes its sleeper, a rank never looks
 * in vain.
 *
 * While floats move a rank knows by itself which ranks it waits for. For arrivals the
 * coordinator looks, and tells the ranks that wait; if it does not tell, they wait for
 * the coordinator. All of this happens in poll, since only poll may call the link. */
#include "ranks/joint.h"

#include <sched.h>
#include <unistd.h>

#define REST_LEAST_NS UINT64_C(50000)
#define SAY_FIRST_NS UINT64_C(10000000)
#define SAY_AGAIN_NS UINT64_C(100000000)
#define SILENT_NS UINT64_C(300000000)   /* the coordinator, which tells after 50 ms, has
                                           said nothing for so long */

enum { REST_MOVING_US = 500, REST_OPEN_US = 2000, REST_IDLE_US = 20000 };

void ranks_rest(struct ranks *m, uint64_t until_ns)
{
    uint32_t still = atomic_load_explicit(&m->still, memory_order_relaxed);
    uint32_t most_us = atomic_load_explicit(&m->rest_most_us, memory_order_relaxed);
    uint64_t most = 1000 * (uint64_t)most_us;
    uint64_t rest = REST_LEAST_NS << (still < 9 ? still : 9);

    if (m->place.wakes && still)
        rest = most;

    m->link->type->sleep(m->link, rest < most ? rest : most, until_ns);
}

/* The time of the next thing that a poll has to do by itself. */
static uint32_t until_due_us(const struct ranks *m, bool open)
{
    uint64_t due = m->started ? ledger_wakes(m->ledger) : UINT64_MAX;
    uint64_t most = m->dead_ns / 8, told = ranks_bulletins_due(m);

    due = told < due ? told : due;
    if (open && SAY_AGAIN_NS < most)
        most = SAY_AGAIN_NS;
    due = due > m->now_ns ? due - m->now_ns : 0;
    return (uint32_t)((due < most ? due : most) / 1000 + 1);
}

void ranks_set_rest(struct ranks *m)
{
    bool open = m->stage != STAGE_IDLE || ranks_rows_open(m);
    bool serves = m->quorum.arrivals > 0;       /* rounds and versions of others, too */
    uint32_t most = open || serves ? REST_OPEN_US : REST_IDLE_US;

    bool joint = m->joint && ranks_joint_busy(m);
    if (m->round.active || m->stage == STAGE_ALONE || joint || !ranks_rows_quiet(m) ||
        !ranks_versions_quiet(m) || ranks_donor_gives(m))
        most = REST_MOVING_US;
    /* mates wake no sleeper */
    if (m->place.wakes && !(m->host && m->round.active) && !m->joint)
        most = until_due_us(m, open);
    atomic_store_explicit(&m->rest_most_us, most, memory_order_relaxed);
}

/* --- awaited ranks --- */

static void moving_late(const struct ranks *m, struct awaited *awaited)
{
    const struct ranks_round *r = &m->round;

    awaited->round = r->number;
    awaited->kind = r->kind;
    if (r->kind == EXCHANGE_MEAN)
        ranks_mean_late(m, awaited);
    if (r->kind == EXCHANGE_STATE && r->me != r->source)
        awaited_add(awaited, r->seats[r->source].rank);
}

/* The coordinator tells which ranks are late; if it does not, it is the one that is
 * awaited. */
static bool lead_is_silent(const struct ranks *m)
{
    return !m->leads && m->stage == STAGE_ARRIVED &&
           m->now_ns - m->moved_ns >= SILENT_NS &&
           fabric_hear(&m->f).wait == FABRIC_WAIT_NONE;
}

static void lead_late(const struct ranks *m, struct awaited *awaited)
{
    awaited->wait = atomic_load_explicit(&m->f.epoch, memory_order_relaxed) == 0
                        ? FABRIC_WAIT_START
                    : m->x.final ? FABRIC_WAIT_FINISH : FABRIC_WAIT_ROUND;
    awaited->round = m->round.number + 1;
    awaited_add(awaited, m->coordinator);
}

static bool look(struct ranks *m)
{
    struct awaited awaited = {.wait = FABRIC_WAIT_ROUND, .kind = m->x.kind};

    if (m->stage == STAGE_ALONE) {
        awaited.wait = FABRIC_WAIT_CENTER;
        ranks_elastic_late(m, &awaited);
    } else if (m->round.active) {
        moving_late(m, &awaited);
    } else if (lead_is_silent(m)) {
        lead_late(m, &awaited);
    } else {
        return false;
    }
    fabric_say(&m->f, &awaited);
    return true;
}

void ranks_say(struct ranks *m)
{
    if (m->leads)
        ranks_lead_tell_late(m);
    if (m->stage == STAGE_IDLE || m->now_ns - m->moved_ns < SAY_FIRST_NS ||
        m->now_ns - m->said_ns < SAY_AGAIN_NS)
        return;
    if (look(m))
        m->said_ns = m->now_ns;
}

/* --- members that hold a mean up --- */

void ranks_late_begin(struct ranks *m)
{
    struct ranks_round *r = &m->round;

    r->late = (struct awaited){.n = 0};
    for (int i = 0; i < r->k; i++)
        m->peers[r->seats[i].rank].late_ns = 0;
}

/* Where this rank waits for several members, which are half of all or more, it is late
 * itself, or the link is slow. Where not all members are owners, those that own nothing
 * cannot see whose parts are late. */
void ranks_late_look(struct ranks *m)
{
    struct ranks_round *r = &m->round;
    struct awaited *late = &r->late;

    if (!(m->quorum.arrivals > 0) || r->kind != EXCHANGE_MEAN || r->owners < r->k)
        return;
    for (int i = 0; i < late->n_named; i++)
        m->peers[late->ranks[i]].late_ns += m->now_ns - r->looked_ns;
    r->looked_ns = m->now_ns;
    *late = (struct awaited){.n = 0};
    if (!m->moved)
        ranks_mean_late(m, late);
    if ((late->n > 1 && 2 * late->n >= r->k) || late->n > FABRIC_NAMED)
        late->n_named = 0;
}

void ranks_late_end(struct ranks *m)
{
    const struct ranks_round *r = &m->round;
    uint64_t most = 0;
    int rank = -1;

    ranks_late_look(m);
    for (int i = 0; i < r->k; i++) {
        uint64_t ns = m->peers[r->seats[i].rank].late_ns;
        rank = ns > most ? r->seats[i].rank : rank;
        most = ns > most ? ns : most;
    }
    ledger_waited(m->ledger, rank, most);
}

/* --- cores --- */

/* Warns where launchers bind each rank to one core, on which its workers and shadow take
 * turns. */
void ranks_look_at_cores(struct ranks *m, int threads)
{
    cpu_set_t set;
    long online = sysconf(_SC_NPROCESSORS_ONLN);

    if (m->place.local_rank || sched_getaffinity(0, sizeof set, &set) != 0)
        return;
    int bound = CPU_COUNT(&set);
    if (m->place.unbind && bound < threads && bound < online)
        log_say(&m->f.log, DESCANT_WARNING,
                "this rank runs %d threads and is bound to %d of %ld cores of %s; free "
                "it with %s", threads, bound, online, m->place.names[m->f.rank],
                m->place.unbind);
}
