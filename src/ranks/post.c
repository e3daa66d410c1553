/* SPDX-License-Identifier: MIT */
/* Parcels. A parcel is a note (head and number of floats) and then its floats, in
 * messages of 1 MiB or more, all begun at once. A rank that has received the note begins
 * to receive the floats, and answers with a byte when its caller has taken them. Until
 * then no other parcel goes that way, so that a slow host has one parcel in flight, and
 * one buffer, whatever the others do.
 *
 * Where ranks come and go a lane is with one process of its rank at a time:
 *
 *   1. A parcel to a process that has gone is lost, which is logged once, and the lane is
 *      free for the rank's next process. No parcel is sent twice.
 *   2. A parcel counts once it is here as a whole, also when its sender has gone since;
 *      it is answered only if the sender has not gone.
 *   3. Both sides say ALIVE each dead / 4. A process that was not heard for `dead` is
 *      forgotten, as if it had gone, and learns of that.
 *
 * All of this runs in the one thread that calls the lane, which moves parcels at least
 * each dead / 4 where ranks come and go. */
#include "ranks/ranks.h"

#include <limits.h>
#include <string.h>

enum { PIECES = 64, AGAIN = 4,
       THREADS = 2 /* at least: this process, and a module's */ };
#define PIECE_LEAST ((size_t)1 << 18)       /* floats: 1 MiB */

struct note {
    uint64_t n;
    _Alignas(uint64_t) unsigned char head[POST_HEAD];
};

/* The lane to one other rank. */
struct post_lane {
    bool open, full;                /* full: a parcel is here, whole */
    bool unacked;                   /* the last one sent has not been taken */
    bool broken;                    /* a message of the parcel that is coming has
                                       failed */
    uint64_t generation, from;      /* the rank's process, as the lane knows; the sender
                                       of the parcel here */
    uint64_t said_ns;
    size_t n, piece;                /* floats of room; floats of a message */
    int sending, coming, acks;      /* messages on their way */
    struct note out, in;
    float *floats_out, *floats_in;  /* (n) */
    unsigned char ack;
    struct ranks_op note_op, note_in_op, ack_op, ack_in_op;
    struct ranks_op out_ops[PIECES], in_ops[PIECES];
};

struct ranks_post {
    struct post_lane *lanes;        /* by rank */
};

static struct post_lane *lane_of(struct ranks *m, int rank)
{
    return &m->post->lanes[rank];
}

/* Where the link is fixed no process comes again. */
static uint64_t who(struct fabric *f, int rank)
{
    const struct ranks *m = ranks_of(f);

    if (m->place.fixed)
        return (uint64_t)rank + 1;
    return rank == f->rank ? m->place.generation : m->peers[rank].generation;
}

static struct ranks_op lane_op(const struct ranks *m,
                               void (*ended)(struct ranks *, struct ranks_op *,
                                             const struct link_ended *), int rank)
{
    return (struct ranks_op){
        .ended = ended, .rank = rank, .even_failed = !m->place.fixed};
}

/* --- messages that have ended --- */

static void sent(struct ranks *m, struct ranks_op *op, const struct link_ended *ended)
{
    (void)ended;
    op->busy = false;
    lane_of(m, op->rank)->sending--;
}

static void acked(struct ranks *m, struct ranks_op *op, const struct link_ended *ended)
{
    op->busy = false;
    lane_of(m, op->rank)->unacked &= ended->failed;
}

static void ack_sent(struct ranks *m, struct ranks_op *op, const struct link_ended *ended)
{
    (void)ended;
    op->busy = false;
    lane_of(m, op->rank)->acks--;
}

static void piece_came(struct ranks *m, struct ranks_op *op,
                       const struct link_ended *ended)
{
    struct post_lane *lane = lane_of(m, op->rank);

    op->busy = false;
    lane->broken |= ended->failed;
    lane->full = --lane->coming == 0 && !lane->broken;
}

static size_t piece_floats(const struct post_lane *lane, size_t n, int k)
{
    size_t at = (size_t)k * lane->piece;
    return n - at < lane->piece ? n - at : lane->piece;
}

static int count_pieces(const struct post_lane *lane, size_t n)
{
    return n ? (int)((n + lane->piece - 1) / lane->piece) : 0;
}

static void note_came(struct ranks *m, struct ranks_op *op,
                      const struct link_ended *ended)
{
    struct post_lane *lane = lane_of(m, op->rank);
    size_t n = lane->in.n;

    op->busy = false;
    if (ended->failed)
        return;
    if (n > lane->n) {
        ranks_refuse(m, ended->from, "a parcel of %zu floats, room for %zu", n, lane->n);
        return;
    }
    lane->coming = count_pieces(lane, n);
    lane->broken = false;
    lane->from = who(&m->f, op->rank);
    lane->full = n == 0;
    for (int k = 0; k < count_pieces(lane, n); k++) {
        lane->in_ops[k] = lane_op(m, piece_came, op->rank);
        ranks_receive_op(m, &lane->in_ops[k], lane->floats_in + (size_t)k * lane->piece,
                       piece_floats(lane, n, k) * sizeof(float), TAG_POST);
    }
}

static descant_status listen(struct ranks *m, int rank)
{
    struct post_lane *lane = lane_of(m, rank);

    lane->note_in_op = lane_op(m, note_came, rank);
    ranks_receive_op(m, &lane->note_in_op, &lane->in, sizeof lane->in, TAG_POST);
    return m->f.status;
}

/* --- memory --- */

static descant_status open_lane(struct ranks *m, int rank)
{
    const struct log *log = &m->f.log;

    if (rank < 0 || rank >= m->place.size || (rank == 0) == (m->f.rank == 0))
        return log_fail(log, DESCANT_BAD_RANK, "no parcels go between ranks %d and %d",
                        m->f.rank, rank);
    if (!m->post) {
        struct post_lane *lanes = memory_take_array((size_t)m->place.size, sizeof *lanes);
        m->post = lanes ? memory_take(sizeof *m->post) : NULL;
        if (!m->post) {
            memory_give(lanes);
            return log_fail(log, DESCANT_MEMORY, "no memory for parcels");
        }
        m->post->lanes = lanes;
        ranks_look_at_cores(m, THREADS);
    }
    if (lane_of(m, rank)->open)
        return DESCANT_OK;
    lane_of(m, rank)->open = true;
    return m->place.fixed ? listen(m, rank) : DESCANT_OK;
}

static descant_status room(struct fabric *f, int rank, size_t n)
{
    struct ranks *m = ranks_of(f);
    descant_status status = open_lane(m, rank);

    if (status != DESCANT_OK || n == 0)
        return status;
    struct post_lane *lane = lane_of(m, rank);
    if (lane->n)
        return lane->n == n ? DESCANT_OK
                            : log_fail(&f->log, DESCANT_ORDER,
                                       "there is room for parcels of %zu", lane->n);
    size_t piece = (n + PIECES - 1) / PIECES;
    lane->piece = piece < PIECE_LEAST ? PIECE_LEAST : piece;
    if (lane->piece > INT_MAX / sizeof(float))
        return log_fail(&f->log, DESCANT_UNSUPPORTED,
                        "%zu floats are too many for a message", n);
    lane->floats_out = memory_take_array(n, sizeof *lane->floats_out);
    lane->floats_in = memory_take_array(n, sizeof *lane->floats_in);
    if (!lane->floats_out || !lane->floats_in)
        return log_fail(&f->log, DESCANT_MEMORY,
                        "no memory for parcels of %zu floats", n);
    lane->n = n;
    return DESCANT_OK;
}

void ranks_post_fini(struct ranks *m)
{
    if (!m->post)
        return;
    for (int k = 0; k < m->place.size; k++) {
        memory_give(m->post->lanes[k].floats_out);
        memory_give(m->post->lanes[k].floats_in);
    }
    memory_give(m->post->lanes);
    memory_give(m->post);
}

bool ranks_post_quiet(const struct ranks *m)
{
    for (int k = 0; m->post && k < m->place.size; k++) {
        const struct post_lane *lane = &m->post->lanes[k];
        if (lane->sending || lane->coming || lane->acks)
            return false;
    }
    return true;
}

/* --- the table --- */

static void say_lost(struct ranks *m, int rank)
{
    log_say(&m->f.log, DESCANT_WARNING, "a parcel to rank %d (%s) is lost: the process "
            "that had the rank has gone", rank, ranks_host_name(m, rank));
}

/* The rank has another process now, or none. Messages under way come back first. */
static void look_who(struct ranks *m, int rank)
{
    struct post_lane *lane = lane_of(m, rank);
    uint64_t generation = m->peers[rank].generation;

    if (generation && m->now_ns - m->peers[rank].heard_ns > m->dead_ns) {
        log_say(&m->f.log, DESCANT_WARNING, "rank %d (%s) has not been heard for %.3g s, "
                "and is given up", rank, ranks_host_name(m, rank),
                (double)m->dead_ns * 1e-9);
        m->met(m, &(struct link_peer){rank, generation, true, NULL});
        return;
    }
    if (lane->generation == generation || lane->sending || lane->coming || lane->acks ||
        lane->note_in_op.busy || lane->ack_in_op.busy)
        return;
    if (lane->unacked)
        say_lost(m, rank);
    lane->unacked = false;
    lane->generation = generation;
    if (generation && !lane->full)
        listen(m, rank);
}

static void keep_up(struct ranks *m, int rank)
{
    struct post_lane *lane = lane_of(m, rank);

    look_who(m, rank);
    if (!lane->generation || m->now_ns - lane->said_ns < m->dead_ns / AGAIN)
        return;
    lane->said_ns = m->now_ns;
    ranks_tell(m, rank, (struct ranks_word){.what = WORD_ALIVE}, NULL, 0);
}

static descant_status move(struct fabric *f)
{
    struct ranks *m = ranks_of(f);

    ranks_serve(&m->f);
    for (int k = 0; m->post && !m->place.fixed && k < m->place.size; k++)
        if (lane_of(m, k)->open)
            keep_up(m, k);
    return f->status;
}

static bool is_free(struct fabric *f, int rank)
{
    const struct post_lane *lane = lane_of(ranks_of(f), rank);
    return !lane->unacked && !lane->sending;
}

static float *box(struct fabric *f, int rank)
{
    return lane_of(ranks_of(f), rank)->floats_out;
}

static void send(struct fabric *f, int rank, const void *head, size_t n)
{
    struct ranks *m = ranks_of(f);
    struct post_lane *lane = lane_of(m, rank);
    int pieces = count_pieces(lane, n);

    if (!m->place.fixed && (!lane->generation || lane->generation != who(f, rank))) {
        say_lost(m, rank);
        return;
    }
    lane->out.n = n;
    memcpy(lane->out.head, head, sizeof lane->out.head);
    lane->unacked = true;
    lane->sending = 1 + pieces;
    lane->ack_in_op = lane_op(m, acked, rank);
    lane->note_op = lane_op(m, sent, rank);
    ranks_receive_op(m, &lane->ack_in_op, &lane->ack, sizeof lane->ack, TAG_POST_TAKEN);
    ranks_send_op(m, &lane->note_op, &lane->out, sizeof lane->out, TAG_POST);
    for (int k = 0; k < pieces; k++) {
        lane->out_ops[k] = lane_op(m, sent, rank);
        ranks_send_op(m, &lane->out_ops[k], lane->floats_out + (size_t)k * lane->piece,
                    piece_floats(lane, n, k) * sizeof(float), TAG_POST);
    }
    atomic_fetch_add_explicit(&f->bytes, n * sizeof(float), memory_order_relaxed);
}

static bool look(struct fabric *f, int rank, struct parcel *parcel)
{
    const struct post_lane *lane = lane_of(ranks_of(f), rank);

    if (!lane->full)
        return false;
    *parcel = (struct parcel){.from = lane->from, .to = who(f, f->rank),
                              .head = lane->in.head, .values = lane->floats_in,
                              .n = lane->in.n};
    return true;
}

static void taken(struct fabric *f, int rank)
{
    static const unsigned char ack = 1;
    struct ranks *m = ranks_of(f);
    struct post_lane *lane = lane_of(m, rank);

    lane->full = false;
    if (lane->from == who(f, rank)) {
        lane->acks++;
        lane->ack_op = lane_op(m, ack_sent, rank);
        ranks_send_op(m, &lane->ack_op, &ack, sizeof ack, TAG_POST_TAKEN);
    }
    if (m->place.fixed || (lane->generation && lane->generation == who(f, rank)))
        listen(m, rank);
}

const struct fabric_post ranks_post = {
    .room = room,
    .who = who,
    .move = move,
    .free = is_free,
    .box = box,
    .send = send,
    .look = look,
    .taken = taken,
};
