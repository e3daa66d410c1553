/* SPDX-License-Identifier: MIT */
/* Joint exchanges. Where a host has several ranks, the mates, each float of the centre
 * would go over the host's link once for each of them. So mates whose elastic exchanges
 * are open meet the centre together, one directly after the other:
 *
 *   W_1 = W + a_1 (w_1 - W),  W_2 = W_1 + a_2 (w_2 - W_1),  ...   mate i gets W_i
 *
 * For the owner these are a single pull, by A towards a mean of the w:
 *
 *   W_k = W + A (u - W),   1 - A = (1 - a_1) ... (1 - a_k),
 *                          A u = sum of a_i (1 - a_i+1) ... (1 - a_k) w_i
 *
 *   arrive     a mate waits, until the host's first rank closes a joint exchange of those
 *              that wait
 *   show       each member of it copies its vector to its place in the host's memory,
 *              piece by piece of all slices
 *   ask        for each slice of another host one member, the relay, asks the owner with
 *              A and u, and gets the W from before
 *   take       the relay makes W_1 ... W_k, each in its mate's view of the centre. For a
 *              slice of this host its owner makes them out of the centre itself
 *   done       each mate, also one that is no member, says that all of its slices are
 *              through. Then places and views are used no more
 *
 * With h hosts 2 (h-1)/h of the vector goes out of each host and as much comes in,
 * whatever the number of its ranks. The order of the mates begins with another one each
 * time, as the last one counts most.
 *
 * Mates wait for each other, but not for long (ranks_joint_closes): each as long as it
 * took to come after its last one, where its workers wait an eighth of that, a second at
 * most, and not for a mate that did not come the last time, until that comes.
 *
 * 1. A joint exchange closes when all mates are done with the one before.
 * 2. A place is written by its mate between its arrival and the end of what it shows,
 *    and a view by one rank for each slice, until that rank is done.
 * 3. A mate that ends early, for NaN or because it gives its exchange up, says so. Its
 *    pieces that were shown count; its other ones are left out, and so the first piece
 *    with NaN is. A given up exchange that goes on begins anew, and may pull twice.
 * 4. A member does its share of a joint exchange to the end, whatever its trainer begins.
 *    It neither arrives for a round nor leaves before that.
 *
 * Floats that a mate has not, between its segments or where one was detached, are not
 * pulled at: each mate's map says which it has, in units of RANKS_UNIT floats, with which
 * segments begin. An ask has the floats of one set of mates.
 *
 * All of this runs in the thread that holds the round machine. */
#include "ranks/joint_state.h"

#include <string.h>

#define WAIT_MOST_NS UINT64_C(1000000000)

enum { FEW_MATES = 8, PARKED_PART = 8 };

bool ranks_is_joint(const struct ranks *m)
{
    return m->place.hosts > 1 && m->place.local_size > 1 &&
           m->place.local_size <= MACHINE_SLOTS && !m->messages;
}

/* --- closing --- */

bool ranks_joint_closes(const struct joint_view *v)
{
    bool closes = v->here && (v->here | v->away) == v->all;

    for (uint64_t left = v->here; left && !closes; left &= left - 1) {
        int k = __builtin_ctzll(left);
        uint64_t apart_ns = v->came_ns[k] - v->closed_ns[k];
        uint64_t most_ns = v->parks ? apart_ns / PARKED_PART : apart_ns;
        closes = v->now_ns - v->came_ns[k] >=
                 (most_ns < WAIT_MOST_NS ? most_ns : WAIT_MOST_NS);
    }
    return closes;
}

/* The number of a joint exchange that all mates are done with. */
static bool is_over(const struct ranks *m, uint32_t number)
{
    for (int k = 0; k < m->place.local_size; k++) {
        uint32_t done =
            atomic_load_explicit(&m->joint->mates[k].done, memory_order_acquire);
        if ((int32_t)(done - number) < 0)
            return false;
    }
    return true;
}

/* Sees who has come since the last look. */
static struct joint_view see(struct ranks *m)
{
    struct ranks_joint *j = m->joint;
    struct joint_view v = {.now_ns = m->now_ns, .parks = m->parks, .came_ns = j->came_ns,
                           .closed_ns = j->closed_ns};

    for (int k = 0; k < m->place.local_size; k++) {
        uint32_t stand = atomic_load_explicit(&j->mates[k].stand, memory_order_relaxed);
        uint64_t bit = UINT64_C(1) << k;
        v.all |= stand != STAND_LEFT ? bit : 0;
        v.here |= stand == STAND_WAITS ? bit : 0;
        if (v.here & ~j->here & bit)
            j->came_ns[k] = m->now_ns;
        if (!j->closed_ns[k])
            j->closed_ns[k] = m->now_ns;
    }
    v.away = j->away &= v.all & ~v.here;
    j->here = v.here;
    return v;
}

static void close_next(struct ranks *m)
{
    struct ranks_joint *j = m->joint;
    struct joint_view view = see(m);
    uint64_t members = 0;

    if (!ranks_joint_closes(&view) || !is_over(m, j->number))
        return;
    for (int k = 0; k < m->place.local_size; k++) {
        uint32_t waits = STAND_WAITS;
        if (!atomic_compare_exchange_strong_explicit(&j->mates[k].stand, &waits, STAND_IN,
                                                     memory_order_acq_rel,
                                                     memory_order_relaxed))
            continue;
        members |= UINT64_C(1) << k;
        j->closed_ns[k] = m->now_ns;
    }
    if (!members)
        return;
    j->away = view.all & ~members;
    j->here &= ~members;
    j->head->members = members;
    atomic_store_explicit(&j->head->number, j->number + 1, memory_order_release);
    m->moved = true;
}

/* Slices of other hosts are numbered once all mates are known: they are when one of them
 * has arrived, after the first state. */
static void number_slices(struct ranks *m)
{
    struct ranks_joint *j = m->joint;
    int n = 0;

    for (int k = 0; k < m->place.local_size; k++) {
        uint32_t rank = atomic_load_explicit(&j->mates[k].rank, memory_order_relaxed);
        if (rank)
            j->foreign[rank - 1] = -1;
    }
    for (int slice = 0; slice < m->place.size; slice++)
        if (j->foreign[slice] >= 0)
            j->foreign[slice] = n++;
}

static void look(struct ranks *m)
{
    struct ranks_joint *j = m->joint;
    uint32_t number = atomic_load_explicit(&j->head->number, memory_order_acquire);
    int ranks = m->place.local_size;

    if (number == j->number)
        return;
    if (!j->number)
        number_slices(m);
    j->number = number;
    j->k = j->left = 0;
    j->state = 0;
    j->me = -1;
    for (int i = 0; i < ranks; i++) {
        int local = (int)((number + (uint32_t)i) % (uint32_t)ranks);
        if (!(j->head->members >> local & 1))
            continue;
        if (j->mates[local].state > j->state)
            j->state = j->mates[local].state;
        j->me = local == m->place.local_rank ? j->k : j->me;
        j->members[j->k++] = local;
    }
    if (j->me >= 0) {
        j->in = true;
        j->mine = number;
        j->pieces = 0;
        j->slice = 0;
    }
    for (int slice = 0; slice < m->place.size; slice++) {
        j->asked[slice] = 0;
        if (j->me >= 0)
            j->given[slice] = 0;
        j->left += relays(j, slice) && pieces_of(m, slice);
    }
    m->moved = true;
}

static enum joint_stand stand_of(const struct ranks *m)
{
    uint32_t stand = atomic_load_explicit(&own_mate(m)->stand, memory_order_acquire);
    return (enum joint_stand)stand;
}

static void stand_out(struct ranks *m)
{
    m->joint->in = false;
    atomic_store_explicit(&own_mate(m)->stand, STAND_OUT, memory_order_release);
    m->moved = true;
}

bool ranks_joint_turn(struct ranks *m)
{
    struct ranks_joint *j = m->joint;
    struct joint_mate *own = own_mate(m);

    if (m->place.local_rank == 0)
        close_next(m);
    look(m);
    ranks_joint_show(m);
    if (atomic_load_explicit(&own->done, memory_order_relaxed) != j->number &&
        ranks_joint_move_own(m) && !j->left) {
        atomic_store_explicit(&own->done, j->number, memory_order_release);
        m->moved = true;
    }
    if (j->in && !j->wanted && is_over(m, j->mine))
        stand_out(m);
    if (m->left && stand_of(m) == STAND_OUT)
        atomic_store_explicit(&own->stand, STAND_LEFT, memory_order_release);
    return j->left > 0;
}

/* --- this rank's exchange --- */

/* False: it is in a joint exchange already. */
static bool take_back(struct ranks *m)
{
    uint32_t waits = STAND_WAITS;
    return atomic_compare_exchange_strong_explicit(&own_mate(m)->stand, &waits, STAND_OUT,
                                                   memory_order_acq_rel,
                                                   memory_order_acquire) ||
           waits == STAND_OUT;
}

static void arrive(struct ranks *m)
{
    struct ranks_joint *j = m->joint;
    struct joint_mate *own = own_mate(m);

    j->wanted = true;
    j->ends = j->bad = false;
    own->alpha = (float)m->x.alpha;
    own->state = m->held.center;
    atomic_store_explicit(&own->stand, STAND_WAITS, memory_order_release);
    m->moved = true;
}

/* Makes a part of the next pieces that are in this rank's view; of its own slice, which
 * is the centre itself, they are in `own`. */
static bool hand_out(struct ranks *m, struct fabric_part *part)
{
    struct ranks_joint *j = m->joint;

    for (int slice = 0; slice < m->place.size; slice++) {
        uint64_t moved = atomic_load_explicit(&j->moved[slice], memory_order_acquire);
        int32_t since = (int32_t)((uint32_t)(moved >> 32) - j->mine);
        uint32_t shown = j->pieces * j->piece, ready = since == 0 ? (uint32_t)moved : 0;
        ready = since > 0 ? units_of(m, slice) : ready;
        ready = ready < shown ? ready : shown;
        if (ready <= j->given[slice])
            continue;
        struct chunk chunk = units_at(m, slice, j->given[slice], ready);
        const float *out = m->f.center + chunk.from;
        if (slice == m->f.rank)
            out = j->own + (size_t)j->given[slice] * RANKS_UNIT;
        *part = (struct fabric_part){.kind = EXCHANGE_ELASTIC, .out = out,
                                     .from = chunk.from, .n = chunk.n};
        j->given[slice] = ready;
        m->moved = true;
        return true;
    }
    return false;
}

enum joint_progress ranks_joint_step(struct ranks *m, bool ends, struct fabric_part *part)
{
    struct ranks_joint *j = m->joint;

    if (ends && take_back(m))
        return JOINT_GIVEN_UP;
    j->ends |= ends;
    if (stand_of(m) == STAND_OUT)
        arrive(m);
    if (!j->in || !j->wanted)
        return JOINT_WAITS;
    if (hand_out(m, part))
        return JOINT_PART;
    if (!is_over(m, j->mine))
        return JOINT_WAITS;
    stand_out(m);
    return ends ? JOINT_GIVEN_UP : JOINT_DONE;
}

bool ranks_joint_bad(const struct ranks *m)
{
    return m->joint->bad;
}

void ranks_joint_stop(struct ranks *m)
{
    m->joint->wanted = false;
    m->joint->ends |= !take_back(m);
}

bool ranks_joint_quiet(const struct ranks *m)
{
    return stand_of(m) == STAND_OUT || stand_of(m) == STAND_LEFT;
}

bool ranks_joint_busy(const struct ranks *m)
{
    uint32_t done = atomic_load_explicit(&own_mate(m)->done, memory_order_relaxed);
    return !ranks_joint_quiet(m) || done != m->joint->number || m->joint->here;
}

/* Adds the mates that have not arrived; or those that have not done their share, and if
 * this rank is one of these, the owners that it waits for. */
void ranks_joint_late(const struct ranks *m, struct awaited *awaited)
{
    const struct ranks_joint *j = m->joint;

    for (int k = 0; k < m->place.local_size; k++) {
        const struct joint_mate *mate = &j->mates[k];
        uint32_t done = atomic_load_explicit(&mate->done, memory_order_relaxed);
        uint32_t rank = atomic_load_explicit(&mate->rank, memory_order_relaxed);
        bool out =
            atomic_load_explicit(&mate->stand, memory_order_relaxed) == STAND_OUT;
        if (k != m->place.local_rank && (j->in ? (int32_t)(done - j->mine) < 0 : out))
            awaited_add(awaited, (int)rank - 1);
    }
    for (int slice = 0; j->in && slice < m->place.size; slice++)
        if (relays(j, slice) && moved_of(j, slice) < j->asked[slice])
            awaited_add(awaited, slice);
}

/* --- memory --- */

/* Blocks of other sizes mean that ranks have other models; the manifest says so. */
static descant_status share_memory(struct ranks *m, struct ranks_joint *j)
{
    size_t ranks = (size_t)m->place.local_size, size = (size_t)m->place.size;
    size_t head = sizeof *j->head + ranks * sizeof *j->mates + size * sizeof *j->moved;
    char name[64];
    void *block;

    j->stride = fabric_round_up(m->n);
    size_t of_each = 2 * j->stride * sizeof(float) + j->stride / RANKS_UNIT;
    head = fabric_round_up((head + sizeof(float) - 1) / sizeof(float)) * sizeof(float);
    snprintf(name, sizeof name, "centres of %zu", j->stride);
    descant_status status = ranks_share(&m->f, name, head + ranks * of_each, &block);
    if (status)
        return status;
    j->head = block;
    j->mates = (struct joint_mate *)(j->head + 1);
    j->moved = (_Atomic uint64_t *)(void *)(j->mates + ranks);
    j->places = (float *)(void *)((char *)block + head);
    j->views = j->places + ranks * j->stride;
    j->maps = (unsigned char *)(j->views + ranks * j->stride);
    return DESCANT_OK;
}

static descant_status take_memory(struct ranks *m, struct ranks_joint *j)
{
    size_t size = (size_t)m->place.size, mates = (size_t)m->place.local_size;
    size_t own = slice_at(m, m->f.rank + 1) - slice_at(m, m->f.rank);

    if (!(j->foreign = memory_take_array(size, sizeof *j->foreign)) ||
        !(j->asked = memory_take_array(size, sizeof *j->asked)) ||
        !(j->given = memory_take_array(size, sizeof *j->given)) ||
        !(j->own = memory_take_array(own + 1, sizeof *j->own)))
        return log_fail(&m->f.log, DESCANT_MEMORY, "no memory for joint exchanges");
    j->me = -1;
    j->piece = RANKS_PIECE / RANKS_UNIT;
    if (mates > FEW_MATES)
        j->piece = (uint32_t)(j->piece * FEW_MATES / mates);
    return share_memory(m, j);
}

static void give_memory(struct ranks_joint *j)
{
    memory_give(j->foreign);
    memory_give(j->asked);
    memory_give(j->given);
    memory_give(j->own);
    memory_give(j);
}

descant_status ranks_joint_init(struct ranks *m)
{
    struct ranks_joint *j = memory_take(sizeof *j);

    if (!j)
        return log_fail(&m->f.log, DESCANT_MEMORY, "no memory for joint exchanges");
    descant_status status = take_memory(m, j);
    if (status) {
        give_memory(j);
        return status;
    }
    m->joint = j;
    m->f.center = view_of(j, m->place.local_rank);
    atomic_store_explicit(&own_mate(m)->rank, (uint32_t)m->f.rank + 1,
                          memory_order_relaxed);
    return DESCANT_OK;
}

void ranks_joint_fini(struct ranks *m)
{
    if (m->joint)
        give_memory(m->joint);
}
