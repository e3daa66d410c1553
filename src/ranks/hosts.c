/* SPDX-License-Identifier: MIT */
/* Means by hosts. Where a host has several ranks, each float of a mean would go over the
 * host's link once for each of them. So the ranks of a host that are in a round, the
 * mates, have their vectors and the result in memory that they share, and for each slice
 * of another host one mate, the relay, exchanges with the slice's owner:
 *
 *   show      each vector comes to its place in shared memory: the contribution lies
 *             there already, a live vector is copied, piece by piece of all slices
 *   give      the relay gives the owner the mean of the mates' parts, with the sum of
 *             their shares
 *   reduce    the owner takes its own mates' parts out of their places, and one part of
 *             each other host
 *   learn     the relay learns the slice into the result of its host
 *   done      each mate says that it has moved all of its floats. When all mates have,
 *             the result is whole, and the vectors are read no more
 *
 * With h hosts 2 (h-1)/h of the vector goes out of each host and as much comes in,
 * whatever the number of its ranks. The only difference in the result is that a host's
 * part is rounded to floats, as the mean is. Messages, owners and pieces are those of
 * mean.c, which takes a rank by itself for a host.
 *
 * 1. A result is written to from the next round's closing on. By then all mates have
 *    begun other exchanges, so the result before is no longer used.
 * 2. A vector in its place is not changed before its trainer is told that the round is
 *    done, or, where the trainer has given up the exchange, that a later round is
 *    (fabric.h).
 * 3. Encoded means do not go by hosts: a relay's rounding would be owed by no rank. Nor
 *    do means under a quorum: a mate that is late may still use the result before (1).
 *
 * All of this runs in the thread that holds the round machine. */
#include "kernels/kernels.h"
#include "kernels/vector.h"
#include "machine/blocks.h"
#include "machine/meeting.h"
#include "machine/roster.h"
#include "ranks/ranks.h"

#include <math.h>
#include <string.h>

enum { CACHE_LINE = 64 };

/* In the host's memory, by local rank; zero at first. */
struct mate {
    /* {round 32, pieces 32}: so many pieces of every slice are in the mate's place. The
     * mate writes, release; others acquire, and read those pieces. */
    _Alignas(CACHE_LINE) _Atomic uint64_t shown;
    /* The last round of which the mate has done its part. The mate writes, release;
     * others acquire, and use the result. */
    _Atomic uint32_t done;
};

struct ranks_host {
    struct mate *mates;             /* (local_size) */
    float *vectors;                 /* (local_size, stride) */
    size_t stride;
    /* of the round */
    int k, me;                      /* mates; this rank's place among them */
    struct ranks_seat *seats;         /* (local_size) of the mates */
    double share;                   /* the sum of the mates' shares */
    int *count;                     /* (size) members of each host */
    double *shares;                 /* (size) the sum of each host's shares */
    int *places;                    /* (size) of each member among those of its host */
};

/* --- memory --- */

/* The ranks of one machine meet under the job's name to share blocks. A rank that has the
 * machine to itself takes memory that can have huge pages, which shared memory has in few
 * systems: rows of tables are read all over. */
descant_status ranks_share(struct fabric *f, const char *name, size_t bytes, void **block)
{
    struct ranks *m = ranks_of(f);

    if (m->place.local_size == 1)
        return blocks_share(&m->blocks, name, bytes, block, &f->log);
    descant_status status = DESCANT_OK;
    if (!m->machine)
        status = meeting_open(&m->machine, m->place.job, m->place.local_rank, m->start_s,
                              &f->log);
    return status ? status : meeting_share(m->machine, name, bytes, block);
}

bool ranks_by_hosts(const struct ranks *m)
{
    return m->place.hosts > 1 && m->place.most_local > 1 &&
           m->place.most_local <= MACHINE_SLOTS && m->f.wire == WIRE_F32 &&
           !m->messages && !(m->quorum.arrivals > 0);
}

/* Blocks of other sizes mean that ranks have other models; the manifest says so. */
static descant_status share_memory(struct ranks *m, struct ranks_host *host)
{
    size_t ranks = (size_t)m->place.local_size;
    size_t head = fabric_round_up(ranks * sizeof(struct mate) / sizeof(float));
    char name[64];
    void *block;

    host->stride = fabric_round_up(m->room > m->n ? m->room : m->n);
    size_t floats = head + (ranks + 1) * host->stride;
    snprintf(name, sizeof name, "means of %zu", host->stride);
    descant_status status = ranks_share(&m->f, name, floats * sizeof(float), &block);
    if (status)
        return status;
    host->mates = block;
    m->mean = (float *)block + head;
    host->vectors = m->mean + host->stride;
    return DESCANT_OK;
}

static float *vector_of(const struct ranks_host *host, int local_rank)
{
    return host->vectors + (size_t)local_rank * host->stride;
}

descant_status ranks_host_init(struct ranks *m)
{
    struct ranks_host *host = memory_take(sizeof *host);
    size_t size = (size_t)m->place.size, ranks = (size_t)m->place.local_size;

    m->host = host;
    if (!host)
        return DESCANT_MEMORY;
    host->seats = memory_take_array(ranks, sizeof *host->seats);
    host->count = memory_take_array(size, sizeof *host->count);
    host->shares = memory_take_array(size, sizeof *host->shares);
    host->places = memory_take_array(size, sizeof *host->places);
    if (!host->seats || !host->count || !host->shares || !host->places)
        return DESCANT_MEMORY;
    descant_status status = share_memory(m, host);
    if (!status && !m->in_place)
        m->f.contribution = vector_of(host, m->place.local_rank);
    return status;
}

void ranks_host_fini(struct ranks *m)
{
    if (!m->host)
        return;
    memory_give(m->host->seats);
    memory_give(m->host->count);
    memory_give(m->host->shares);
    memory_give(m->host->places);
    memory_give(m->host);
}

/* --- a round --- */

static void count_members(struct ranks *m)
{
    const struct ranks_round *r = &m->round;
    struct ranks_host *host = m->host;

    for (int i = 0; i < r->k; i++) {
        host->count[r->seats[i].host] = 0;
        host->shares[r->seats[i].host] = 0;
    }
    host->k = 0;
    for (int i = 0; i < r->k; i++) {
        const struct ranks_seat *seat = &r->seats[i];
        host->places[i] = host->count[seat->host]++;
        host->shares[seat->host] += seat->share;
        if (seat->host == m->place.host)
            host->seats[host->k++] = *seat;
    }
}

void ranks_host_begin(struct ranks *m)
{
    count_members(m);
    m->host->share = m->host->shares[m->place.host];
    m->round.shown_pieces = 0;
}

double ranks_host_share(const struct ranks *m, int member)
{
    return m->host->shares[m->round.seats[member].host];
}

/* The ranks of a host take turns: each relays to one owner of another host. */
bool ranks_host_relays(const struct ranks *m, int member)
{
    const struct ranks_host *host = m->host;
    int other = m->round.seats[member].host, place = host->places[m->round.me];

    return other != m->place.host && host->places[member] == place % host->count[other];
}

bool ranks_host_relayed(const struct ranks *m, int member)
{
    const struct ranks_host *host = m->host;
    int mine = m->place.host, place = host->places[m->round.me];

    return m->round.seats[member].host != mine &&
           place == host->places[member] % host->count[mine];
}

static void tell_shown(struct ranks *m, uint64_t pieces)
{
    atomic_store_explicit(&m->host->mates[m->place.local_rank].shown,
                          (uint64_t)m->round.number << 32 | pieces, memory_order_release);
}

/* Shows the first piece of each slice, then the second of each, which is the order of
 * reducing. */
bool ranks_host_show(struct ranks *m)
{
    struct ranks_round *r = &m->round;
    size_t k = (size_t)r->k, piece = r->shown_pieces / k, most = 0;
    int member = (int)(r->shown_pieces % k);

    for (int i = 0; i < r->k; i++)
        most = ranks_round_pieces(r, i) > most ? ranks_round_pieces(r, i) : most;
    if (piece >= most)
        return false;
    if (!m->in_place) {
        r->shown_pieces = most * k;
        tell_shown(m, most);
        return true;
    }
    if (piece < ranks_round_pieces(r, member)) {
        struct chunk part = ranks_round_piece(r, member, piece);
        float *place = vector_of(m->host, m->place.local_rank);
        vector_gather(r->in, part, place + part.from, false);
    }
    if (++r->shown_pieces % k == 0)
        tell_shown(m, piece + 1);
    return true;
}

bool ranks_host_shown(const struct ranks *m, size_t piece)
{
    const struct ranks_host *host = m->host;

    for (int i = 0; i < host->k; i++) {
        const struct mate *mate = &host->mates[host->seats[i].local_rank];
        uint64_t shown = atomic_load_explicit(&mate->shown, memory_order_acquire);
        if (shown >> 32 != m->round.number || (uint32_t)shown <= piece)
            return false;
    }
    return true;
}

int ranks_host_inputs(struct ranks *m, size_t at)
{
    const struct ranks_host *host = m->host;
    int n_in = 0;

    for (int i = 0; i < host->k; i++)
        if (host->seats[i].share > 0) {
            m->inputs[n_in] = vector_of(host, host->seats[i].local_rank) + at;
            m->shares[n_in++] = host->seats[i].share;
        }
    return n_in;
}

/* A piece of which no mate has a good part is NaN, and its owner leaves it out. */
const float *ranks_host_give(struct ranks *m, struct chunk piece, float *out)
{
    int n_in = ranks_host_inputs(m, piece.from);

    if (n_in == 1)
        return m->inputs[0];
    for (int i = 0; i < n_in; i++)
        m->shares[i] /= m->host->share;
    if (!ranks_mean_inputs(m, out, n_in, piece.n))
        out[0] = NAN;
    return out;
}

/* A mate may also have done a later round, which does not wait for a rank that leaves. */
static bool is_done(const struct ranks *m, const struct ranks_seat *seat)
{
    uint32_t done = atomic_load_explicit(&m->host->mates[seat->local_rank].done,
                                         memory_order_acquire);
    return (int32_t)(done - m->round.number) >= 0;
}

bool ranks_host_done(struct ranks *m)
{
    const struct ranks_host *host = m->host;

    atomic_store_explicit(&host->mates[m->place.local_rank].done, m->round.number,
                          memory_order_release);
    for (int i = 0; i < host->k; i++)
        if (!is_done(m, &host->seats[i]))
            return false;
    return true;
}

void ranks_host_late(const struct ranks *m, struct awaited *awaited)
{
    for (int i = 0; i < m->host->k; i++)
        if (m->host->seats[i].rank != m->f.rank && !is_done(m, &m->host->seats[i]))
            awaited_add(awaited, m->host->seats[i].rank);
}
