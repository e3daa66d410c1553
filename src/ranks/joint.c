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
 * took to come after its last one, a second at most, and not for a mate that did not come
 * the last time, until that comes.
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
 * Pieces have no gaps cut out: floats between segments are zero in each vector.
 *
 * All of this runs in the thread that holds the round machine. */
#include "ranks/joint.h"

#include "kernels/kernels.h"
#include "machine/roster.h"

#include <string.h>

#define WAIT_MOST_NS UINT64_C(1000000000)

enum { CACHE_LINE = 64, FEW_MATES = 8, LANDING = 32 };

enum stand { STAND_OUT, STAND_WAITS, STAND_IN, STAND_LEFT };

/* shown: {number 32, ended 1, pieces 31} */
#define SHOWN_ENDED UINT64_C(0x80000000)

/* In the host's memory, by local rank; zero at first. */
struct mate {
    /* enum stand. The mate writes OUT, WAITS and LEFT, and the host's first rank IN in
     * place of WAITS; release. Who sees WAITS or IN, acquire, may read alpha and state. */
    _Alignas(CACHE_LINE) _Atomic uint32_t stand;
    float alpha;                    /* of the exchange; the mate writes before WAITS, */
    uint64_t state;                 /* and the state that its centre is of; others read
                                       it while it is IN */
    /* So many pieces of each slice are in the mate's place, in the joint exchange of that
     * number. The mate writes, release; others acquire, and read those pieces. */
    _Atomic uint64_t shown;
    /* The last joint exchange in which the mate has done its share. The mate writes,
     * release; others acquire, and use the views, or close the next one. */
    _Atomic uint32_t done;
    _Atomic uint32_t rank;          /* + 1, from init on; relaxed */
};

/* In the host's memory. The host's first rank writes members, then number, release;
 * others acquire the number, and read the members until they are done. */
struct joint_head {
    _Alignas(CACHE_LINE) _Atomic uint32_t number;
    uint64_t members;               /* by local rank */
};

struct ranks_joint {
    struct joint_head *head;
    struct mate *mates;             /* (local_size) */
    /* (size) by slice: {number 32, pieces 32} that are in the members' views. The slice's
     * owner or relay writes, release; members acquire, and read those pieces. */
    _Atomic uint64_t *moved;
    float *places, *views;          /* (local_size, stride) each */
    size_t stride, piece;
    int *foreign;                   /* (size) by slice: a number among those of other
                                       hosts; -1: a mate owns it */
    /* the joint exchange that is closed */
    uint32_t number;
    int k, me;                      /* members, in the order of their pulls; me: this
                                       rank's place, or -1 */
    int members[MACHINE_SLOTS];     /* local ranks */
    uint64_t state;                 /* the newest of theirs */
    uint32_t *asked, *landed;       /* (size) by slice that this rank relays: pieces asked
                                       for; bit i: piece moved + i is here */
    int left;                       /* slices that this rank relays, and are not through */
    /* this rank's exchange */
    uint32_t mine;                  /* the number of its joint exchange, or of the last */
    bool in;                        /* it is in that one, and the caller has not had its
                                       end; */
    bool wanted;                    /* nor given it up */
    bool ends, bad;                 /* it shows no more */
    uint32_t pieces;                /* shown of each slice, */
    int slice;                      /* and of the next piece up to this slice */
    uint32_t *given;                /* (size) by slice: pieces that were parts */
    float *own;                     /* (own slice) this rank's W_i of it */
    /* the host's first rank */
    uint64_t here, away;
    uint64_t came_ns[MACHINE_SLOTS], closed_ns[MACHINE_SLOTS];
    /* of the piece in hand */
    const float *inputs[MACHINE_SLOTS];
    float alphas[MACHINE_SLOTS];
    double shares[MACHINE_SLOTS];
};

/* --- decisions --- */

bool ranks_joint_closes(const struct joint_view *v)
{
    bool closes = v->here && (v->here | v->away) == v->all;

    for (int k = 0; k < MACHINE_SLOTS && !closes; k++)
        if (v->here >> k & 1) {
            uint64_t apart_ns = v->came_ns[k] - v->closed_ns[k];
            closes = v->now_ns - v->came_ns[k] >=
                     (apart_ns < WAIT_MOST_NS ? apart_ns : WAIT_MOST_NS);
        }
    return closes;
}

float ranks_joint_pull(const float *alphas, int k, double *shares)
{
    double rest = 1, all = 0;

    for (int i = k; i-- > 0; rest *= 1 - (double)alphas[i])
        all += shares[i] = rest * (double)alphas[i];
    for (int i = 0; i < k && all > 0; i++)
        shares[i] /= all;
    return (float)all;
}

/* --- places --- */

bool ranks_is_joint(const struct ranks *m)
{
    return m->place.hosts > 1 && m->place.local_size > 1 &&
           m->place.local_size <= MACHINE_SLOTS && !m->messages;
}

static struct mate *own_mate(const struct ranks *m)
{
    return &m->joint->mates[m->place.local_rank];
}

static float *view_of(const struct ranks_joint *j, int local_rank)
{
    return j->views + (size_t)local_rank * j->stride;
}

static float *place_of(const struct ranks_joint *j, int local_rank)
{
    return j->places + (size_t)local_rank * j->stride;
}

static uint32_t pieces_of(const struct ranks *m, int slice)
{
    size_t n = ranks_slice_at(m->n, m->place.size, slice + 1) -
               ranks_slice_at(m->n, m->place.size, slice);
    return (uint32_t)((n + m->joint->piece - 1) / m->joint->piece);
}

static struct chunk piece_at(const struct ranks *m, int slice, uint32_t piece)
{
    size_t at = ranks_slice_at(m->n, m->place.size, slice) + piece * m->joint->piece;
    size_t left = ranks_slice_at(m->n, m->place.size, slice + 1) - at;
    return (struct chunk){at, left < m->joint->piece ? left : m->joint->piece};
}

/* Puts the places and alphas of the members that have shown the piece into inputs and
 * alphas, and the members into `who`. Returns how many; -1: one may still show it. */
static int gather(struct ranks *m, struct chunk chunk, uint32_t piece, int *who)
{
    struct ranks_joint *j = m->joint;
    int n = 0;

    for (int i = 0; i < j->k; i++) {
        const struct mate *mate = &j->mates[j->members[i]];
        uint64_t shown = atomic_load_explicit(&mate->shown, memory_order_acquire);
        bool current = (uint32_t)(shown >> 32) == j->number;
        if (current && (shown & (SHOWN_ENDED - 1)) > piece) {
            j->inputs[n] = place_of(j, j->members[i]) + chunk.from;
            j->alphas[n] = mate->alpha;
            who[n++] = i;
        } else if (!current || !(shown & SHOWN_ENDED)) {
            return -1;
        }
    }
    return n;
}

static uint32_t moved_of(const struct ranks_joint *j, int slice)
{
    uint64_t moved = atomic_load_explicit(&j->moved[slice], memory_order_relaxed);
    return (uint32_t)(moved >> 32) == j->number ? (uint32_t)moved : 0;
}

static void tell_moved(struct ranks *m, int slice, uint32_t pieces)
{
    struct ranks_joint *j = m->joint;

    atomic_store_explicit(&j->moved[slice], (uint64_t)j->number << 32 | pieces,
                          memory_order_release);
    m->moved = true;
}

/* W_1 ... W_k of the piece, from W, which becomes W_k, into the members' views; this
 * rank's to `own`, if that is not NULL, for its view of its own slice is W. */
static void pull_all(struct ranks *m, struct chunk chunk, float *W, int n_in,
                     const int *who, float *own)
{
    struct ranks_joint *j = m->joint;

    for (int i = 0; i < n_in; i++)
        kernels_best()->elastic(W, j->inputs[i],
                                own && who[i] == j->me
                                    ? own
                                    : view_of(j, j->members[who[i]]) + chunk.from,
                                j->alphas[i], chunk.n);
}

/* --- relays --- */

static bool relays(const struct ranks_joint *j, int slice)
{
    return j->me >= 0 && j->foreign[slice] >= 0 && j->foreign[slice] % j->k == j->me;
}

/* Another piece of a slice that this rank relays is through. Answers may overtake each
 * other. */
static void landed(struct ranks *m, int slice, uint32_t piece)
{
    struct ranks_joint *j = m->joint;
    uint32_t moved = moved_of(j, slice), before = moved;

    for (j->landed[slice] |= 1U << (piece - moved); j->landed[slice] & 1; moved++)
        j->landed[slice] >>= 1;
    if (moved > before)
        tell_moved(m, slice, moved);
    j->left -= moved > before && moved == pieces_of(m, slice);
}

bool ranks_joint_ask(struct ranks *m, int slice, struct ask *ask)
{
    struct ranks_joint *j = m->joint;
    int who[MACHINE_SLOTS], n_in = 0;
    uint32_t end = pieces_of(m, slice);

    if (!relays(j, slice))
        return false;
    for (; j->asked[slice] < end; j->asked[slice]++) {
        uint32_t piece = j->asked[slice];
        struct chunk chunk = piece_at(m, slice, piece);
        if (piece - moved_of(j, slice) == LANDING ||
            (n_in = gather(m, chunk, piece, who)) < 0)
            return false;
        if (n_in == 0) {                /* all have ended */
            landed(m, slice, piece);
            continue;
        }
        *ask = (struct ask){.state = j->state, .n_runs = 1, .before = 1,
                            .alpha = ranks_joint_pull(j->alphas, n_in, j->shares),
                            .from = chunk.from, .runs = {{0, (uint32_t)chunk.n}}};
        kernels_best()->mean(ask->floats, j->inputs, j->shares, n_in, chunk.n, false);
        j->asked[slice]++;
        return true;
    }
    return false;
}

void ranks_joint_take(struct ranks *m, struct ask *answer)
{
    int who[MACHINE_SLOTS], slice = ranks_center_slice(m, answer->from);
    size_t at = answer->from - ranks_slice_at(m->n, m->place.size, slice);
    uint32_t piece = (uint32_t)(at / m->joint->piece);
    struct chunk chunk = {answer->from, answer->runs[0].n};
    int n_in = gather(m, chunk, piece, who);    /* as when it was asked for */

    pull_all(m, chunk, answer->floats, n_in, who, NULL);
    landed(m, slice, piece);
}

/* --- the share of each rank --- */

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
    struct joint_view v = {.now_ns = m->now_ns, .came_ns = j->came_ns,
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
        j->asked[slice] = j->landed[slice] = 0;
        if (j->me >= 0)
            j->given[slice] = 0;
        j->left += relays(j, slice) && pieces_of(m, slice);
    }
    m->moved = true;
}

static uint32_t most_pieces(const struct ranks *m)
{
    uint32_t most = 0;

    for (int slice = 0; slice < m->place.size; slice++)
        most = pieces_of(m, slice) > most ? pieces_of(m, slice) : most;
    return most;
}

/* This rank's exchange is in the joint exchange of `number`, and shows its floats. */
static bool shows(const struct ranks *m)
{
    const struct ranks_joint *j = m->joint;
    uint64_t shown = atomic_load_explicit(&own_mate(m)->shown, memory_order_relaxed);
    return j->me >= 0 && !(shown >> 32 == j->number && shown & SHOWN_ENDED);
}

/* Shows the next piece of each slice, some floats at a time. */
static void show(struct ranks *m)
{
    struct ranks_joint *j = m->joint;
    float *place = place_of(j, m->place.local_rank);
    size_t floats = 0;

    while (!j->ends && j->slice < m->place.size && floats < RANKS_PIECE) {
        if (j->pieces < pieces_of(m, j->slice)) {
            struct chunk chunk = piece_at(m, j->slice, j->pieces);
            j->bad = !vector_gather(m->x.in, chunk, place + chunk.from, false);
            j->ends = j->bad;
            floats += chunk.n;
        }
        j->slice++;
    }
    if (!j->ends && j->slice == m->place.size) {
        j->pieces++;
        j->slice = 0;
    }
    j->ends |= j->pieces >= most_pieces(m);
    atomic_store_explicit(&own_mate(m)->shown,
                          (uint64_t)j->number << 32 | (j->ends ? SHOWN_ENDED : 0) |
                              j->pieces,
                          memory_order_release);
    m->moved = true;
}

/* Moves a piece of this rank's own slice for all members. True: the slice is through. */
static bool move_own(struct ranks *m)
{
    struct ranks_joint *j = m->joint;
    int who[MACHINE_SLOTS], slice = m->f.rank;
    uint32_t piece = moved_of(j, slice);

    if (piece == pieces_of(m, slice))
        return true;
    struct chunk chunk = piece_at(m, slice, piece);
    int n_in = m->held.center < j->state ? -1 : gather(m, chunk, piece, who);
    if (n_in < 0)
        return false;
    pull_all(m, chunk, m->f.center + chunk.from, n_in, who,
             j->own + (chunk.from - ranks_slice_at(m->n, m->place.size, slice)));
    tell_moved(m, slice, piece + 1);
    return piece + 1 == pieces_of(m, slice);
}

static enum stand stand_of(const struct ranks *m)
{
    return (enum stand)atomic_load_explicit(&own_mate(m)->stand, memory_order_acquire);
}

static void stand_out(struct ranks *m)
{
    m->joint->in = false;
    atomic_store_explicit(&own_mate(m)->stand, STAND_OUT, memory_order_release);
    m->moved = true;
}

void ranks_joint_turn(struct ranks *m)
{
    struct ranks_joint *j = m->joint;
    struct mate *own = own_mate(m);

    if (m->place.local_rank == 0)
        close_next(m);
    look(m);
    if (shows(m))
        show(m);
    if (atomic_load_explicit(&own->done, memory_order_relaxed) != j->number &&
        move_own(m) && !j->left) {
        atomic_store_explicit(&own->done, j->number, memory_order_release);
        m->moved = true;
    }
    if (j->in && !j->wanted && is_over(m, j->mine))
        stand_out(m);
    if (m->left && stand_of(m) == STAND_OUT)
        atomic_store_explicit(&own->stand, STAND_LEFT, memory_order_release);
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
    struct mate *own = own_mate(m);

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
        uint32_t ready = since > 0    ? pieces_of(m, slice)
                         : since == 0 ? (uint32_t)moved
                                      : 0;
        ready = ready < j->pieces ? ready : j->pieces;
        if (ready <= j->given[slice])
            continue;
        size_t from = piece_at(m, slice, j->given[slice]).from;
        struct chunk last = piece_at(m, slice, ready - 1);
        const float *out = slice == m->f.rank
                               ? j->own - ranks_slice_at(m->n, m->place.size, slice)
                               : m->f.center;
        *part = (struct fabric_part){.kind = EXCHANGE_ELASTIC, .out = out + from,
                                     .from = from, .n = last.from + last.n - from};
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
        const struct mate *mate = &j->mates[k];
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
    head = fabric_round_up((head + sizeof(float) - 1) / sizeof(float)) * sizeof(float);
    snprintf(name, sizeof name, "centres of %zu", j->stride);
    descant_status status =
        ranks_share(&m->f, name, head + 2 * ranks * j->stride * sizeof(float), &block);
    if (status)
        return status;
    j->head = block;
    j->mates = (struct mate *)(j->head + 1);
    j->moved = (_Atomic uint64_t *)(void *)(j->mates + ranks);
    j->places = (float *)(void *)((char *)block + head);
    j->views = j->places + ranks * j->stride;
    return DESCANT_OK;
}

descant_status ranks_joint_init(struct ranks *m)
{
    struct ranks_joint *j = memory_take(sizeof *j);
    size_t size = (size_t)m->place.size, mates = (size_t)m->place.local_size;
    size_t own = ranks_slice_at(m->n, m->place.size, m->f.rank + 1) -
                 ranks_slice_at(m->n, m->place.size, m->f.rank);

    m->joint = j;
    if (!j || !(j->foreign = memory_take_array(size, sizeof *j->foreign)) ||
        !(j->asked = memory_take_array(size, sizeof *j->asked)) ||
        !(j->landed = memory_take_array(size, sizeof *j->landed)) ||
        !(j->given = memory_take_array(size, sizeof *j->given)) ||
        !(j->own = memory_take_array(own + 1, sizeof *j->own)))
        return log_fail(&m->f.log, DESCANT_MEMORY, "no memory for joint exchanges");
    j->me = -1;
    j->piece = mates <= FEW_MATES ? RANKS_PIECE
                                  : RANKS_PIECE * FEW_MATES / mates / RANKS_UNIT *
                                        RANKS_UNIT;
    descant_status status = share_memory(m, j);
    if (status)
        return status;
    m->f.center = view_of(j, m->place.local_rank);
    atomic_store_explicit(&own_mate(m)->rank, (uint32_t)m->f.rank + 1,
                          memory_order_relaxed);
    return DESCANT_OK;
}

void ranks_joint_fini(struct ranks *m)
{
    if (!m->joint)
        return;
    memory_give(m->joint->foreign);
    memory_give(m->joint->asked);
    memory_give(m->joint->landed);
    memory_give(m->joint->given);
    memory_give(m->joint->own);
    memory_give(m->joint);
}
