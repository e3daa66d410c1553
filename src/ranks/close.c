/* SPDX-License-Identifier: MIT */
/* The end of a job: a rank says that it leaves, and serves others until all have left. */
#include "machine/blocks.h"
#include "machine/meeting.h"
#include "ranks/fetch.h"
#include "ranks/joint.h"
#include "ranks/lead.h"

#define FAILED_STAYS_NS UINT64_C(2000000000)
#define SAY_LEAVING_NS UINT64_C(1000000000)

static bool is_quiet(const struct ranks *m)
{
    bool fetches = m->place.fixed && m->fetch && !ranks_fetch_quiet(m->fetch);

    return ranks_elastic_quiet(m) && ranks_rows_quiet(m) && ranks_post_quiet(m) &&
           (!m->place.fixed || ranks_versions_quiet(m)) && !fetches;
}

/* Nothing of this rank is under way. */
static bool at_rest(const struct ranks *m)
{
    bool fixed = m->place.fixed;

    return is_quiet(m) &&
           (!fixed || (!m->round.active && !m->go_waits && !m->words_out &&
                       !m->peers[0].manifest_op.busy));
}

void ranks_leave(struct fabric *f)
{
    struct ranks *m = ranks_of(f);

    if (m->stage == STAGE_ALONE)
        ranks_elastic_stop(m);
    ranks_rows_leave(m);
    if (m->carries && !m->outer_set) {      /* its caller leaves in the midst of a part */
        m->quorum.leavers_give = false;
        ledger_set_quorum(m->ledger, &m->quorum);
    }
    m->stage = STAGE_IDLE;
    m->bulletin_ns = 0;
    ranks_deal_soon(m);
    ranks_abandon(m);
    ranks_set_rest(m);
}

static void say_leaving(struct ranks *m)
{
    struct ranks_word own = {.what = WORD_HERE};

    m->left = true;
    m->left_ns = m->now_ns;
    if (m->started)
        ranks_members_leave(m);
    if (m->place.fixed)
        ranks_tell(m, 0, (struct ranks_word){.what = WORD_LEAVE}, NULL, 0);
    own.ledger.leaves = true;
    if (m->lead && !m->place.fixed)
        ranks_lead_hear_here(m, m->f.rank, &own);
    if (m->lead)
        ranks_lead_turn(m);
}

/* Whether no word is under way to a rank that is there. A rank that is paused takes none,
 * and does not count. */
static bool has_told(const struct ranks *m)
{
    for (int k = 0; m->words_out && k < m->place.size; k++)
        if (m->peers[k].words_out && m->now_ns - m->peers[k].heard_ns < m->dead_ns)
            return false;
    return true;
}

/* All others have gone, and not only fallen silent. */
static bool is_last(const struct ranks *m)
{
    for (int k = 0; k < m->place.size; k++)
        if (k != m->f.rank && m->peers[k].generation)
            return false;
    return true;
}

/* Where ranks come and go: this rank is no member any more, and the others have been
 * told. It goes without that where all others have gone, which may have ended with it, or
 * where it is cut off from the job's majority. */
static bool is_out(const struct ranks *m)
{
    bool member = m->founded && ledger_view(m->ledger).member;
    uint64_t since = m->now_ns - m->left_ns;

    return (!member && (has_told(m) || since > FAILED_STAYS_NS)) || is_last(m) ||
           since > 2 * m->dead_ns;
}

/* Heirs of slices of the centre go on from what they have seen last (center.c). A rank
 * that was told to end stays until the others have seen its last exchange. */
static bool is_seen(const struct ranks *m)
{
    bool told = atomic_load_explicit(&m->f.told, memory_order_relaxed), seen = true;

    if (m->place.fixed || !told || m->now_ns - m->leaving_ns > m->dead_ns / 4)
        return true;
    for (int k = 0; k < m->place.size; k++) {
        const struct lead_peer *peer = &m->lead->peers[k];
        bool works = k != m->f.rank && m->members[k] && !peer->left && !peer->finished;
        seen &= !works || ranks_center_seen(m, k);
    }
    return seen;
}

bool ranks_stay(struct fabric *f)
{
    struct ranks *m = ranks_of(f);
    descant_status status = f->status;

    if (m->broken)
        return false;                   /* no rank can be served any more */
    f->status = DESCANT_OK;             /* later failures are dropped */
    ranks_serve(&m->f);
    if (!m->leaving_ns)
        ranks_center_watch(m);
    m->leaving_ns = m->leaving_ns ? m->leaving_ns : m->now_ns;
    bool waited = !m->place.fixed && m->now_ns - m->leaving_ns > m->dead_ns;
    if (!m->left && (waited || (is_quiet(m) && is_seen(m))))
        say_leaving(m);
    if (!m->place.fixed && m->left)
        m->bye = is_out(m);
    f->status = status ? status : f->status;
    return !(m->bye && (at_rest(m) || waited));
}

/* Jobs that were kept, linked by `next`: for tests, and so that leak checkers see them. A
 * close pushes, release. */
static struct ranks *_Atomic kept;

static void keep(struct ranks *m)
{
    log_say(&m->f.log, DESCANT_DEBUG,
            "messages are under way still: their memory is kept");
    for (size_t i = 0; i < m->segments.n_extents; i++)
        kept_hold(m->segments.extents[i].p);
    m->next = atomic_load_explicit(&kept, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(
        &kept, &m->next, m, memory_order_release, memory_order_relaxed))
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
    ranks_names_fini(m);
    if (!m->host)
        memory_give(f->contribution);
    if (m->state_center != f->center)
        memory_give(m->state_center);
    if (!m->joint)
        memory_give(f->center);
    for (int i = 0; i < 2; i++) {
        memory_give(f->outer[i]);
        memory_give(m->state_outer[i]);
        memory_give(m->next_outer[i]);
    }
    memory_give(m->result);
    memory_give(m->manifest);
    ranks_wire_fini(m);
    ranks_lanes_fini(m);
    ranks_host_fini(m);
    ranks_joint_fini(m);
    ranks_elastic_fini(m);
    ranks_rows_fini(m);
    ranks_rows_lead_fini(m);
    ranks_post_fini(m);
    ranks_agree_lead_fini(m);
    ranks_agree_fini(m);
    ranks_deal_fini(m);
    ranks_bulletins_fini(m);
    ranks_lead_fini(m);
    ranks_words_fini(m);
    ranks_members_fini(m);
    ranks_versions_fini(m);
    ranks_peers_fini(m);
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

/* A job that has failed does not wait long for the others, which may never come. */
void ranks_close(struct fabric *f)
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
            log_say(&f->log, DESCANT_INFO,
                    "this rank has left, and serves the others until they have");
        said |= since > SAY_LEAVING_NS;
        ranks_rest(m, 0);
    }
    ranks_free(f);
}

