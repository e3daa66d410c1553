/* SPDX-License-Identifier: MIT */
/* The floats of a joint exchange (joint.c): shown by its members, moved in the centre by
 * owners of this host, asked for by relays, and put into the members' views.
 *
 * A piece of a slice moves once each member has shown it, or has ended before it. Members
 * may have different parts of it: it moves in runs, each of units that the same members
 * have.
 *
 * All of this runs in the thread that holds the round machine. */
#include "ranks/joint_state.h"

#include "kernels/kernels.h"

#include <string.h>

float ranks_joint_pull(const float *alphas, int k, double *shares)
{
    double rest = 1, all = 0;

    for (int i = k; i-- > 0; rest *= 1 - (double)alphas[i])
        all += shares[i] = rest * (double)alphas[i];
    for (int i = 0; i < k && all > 0; i++)
        shares[i] /= all;
    return (float)all;
}

/* Which members have shown the unit's piece. False: one may still do so. */
static bool find_shown(struct ranks *m, uint32_t unit)
{
    struct ranks_joint *j = m->joint;

    j->n_shown = 0;
    for (int i = 0; i < j->k; i++) {
        const struct joint_mate *mate = &j->mates[j->members[i]];
        uint64_t shown = atomic_load_explicit(&mate->shown, memory_order_acquire);
        bool current = (uint32_t)(shown >> 32) == j->number;
        if (current && (shown & (SHOWN_ENDED - 1)) > unit / j->piece)
            j->shown[j->n_shown++] = i;
        else if (!current || !(shown & SHOWN_ENDED))
            return false;
    }
    return true;
}

/* Which of them have the unit, and up to which unit it is the same ones. */
static uint32_t find_run(struct ranks *m, int slice, uint32_t unit, uint32_t end)
{
    struct ranks_joint *j = m->joint;
    size_t first = slice_at(m, slice) / RANKS_UNIT;

    j->n_in = 0;
    j->set = 0;
    for (int i = 0; i < j->n_shown; i++) {
        int member = j->shown[i], mate = j->members[member];
        const unsigned char *map = map_of(j, mate) + first;
        const unsigned char *change = memchr(map + unit, !map[unit], end - unit);
        end = change ? (uint32_t)(change - map) : end;
        if (!map[unit])
            continue;
        j->who[j->n_in] = member;
        j->alphas[j->n_in] = j->mates[mate].alpha;
        j->inputs[j->n_in++] = place_of(j, mate) + (first + unit) * RANKS_UNIT;
        j->set |= UINT64_C(1) << member;
    }
    return end;
}

static void tell_moved(struct ranks *m, int slice, uint32_t units)
{
    struct ranks_joint *j = m->joint;

    atomic_store_explicit(&j->moved[slice], (uint64_t)j->number << 32 | units,
                          memory_order_release);
    m->moved = true;
}

/* W_1 ... W_k of the run in hand, from W, which becomes W_k, into the members' views;
 * this rank's to `own`, if that is not NULL, for its view of its own slice is W. */
static void pull_all(struct ranks *m, struct chunk chunk, float *W, float *own)
{
    struct ranks_joint *j = m->joint;

    for (int i = 0; i < j->n_in; i++) {
        float *out = view_of(j, j->members[j->who[i]]) + chunk.from;
        if (own && j->who[i] == j->me)
            out = own;
        kernels_best()->elastic(W, j->inputs[i], out, j->alphas[i], chunk.n);
    }
}

/* --- relays --- */

/* Tells how much of a slice that this rank relays is through. Answers may overtake each
 * other. */
static void tell_landed(struct ranks *m, int slice)
{
    struct ranks_joint *j = m->joint;
    uint32_t units = j->asked[slice];

    for (int k = 0; k < ASK_SEATS; k++)
        if (j->flights[k].busy && j->flights[k].slice == slice &&
            j->flights[k].unit < units)
            units = j->flights[k].unit;
    if (units == moved_of(j, slice))
        return;
    tell_moved(m, slice, units);
    j->left -= units == units_of(m, slice);
}

/* Fills an ask with runs of one piece that the same members have. */
static void fill(struct ranks *m, int slice, struct ask *ask)
{
    struct ranks_joint *j = m->joint;
    uint32_t *unit = &j->asked[slice], end = piece_end(m, slice, *unit), next;
    uint64_t set = 0;
    float *p = ask->floats;

    *ask = (struct ask){.state = j->state, .before = 1};
    for (; *unit < end && ask->n_runs < ASK_RUNS; *unit = next) {
        next = find_run(m, slice, *unit, end);
        struct chunk chunk = units_at(m, slice, *unit, next);
        if (!j->n_in)
            continue;
        if (set && j->set != set)
            return;
        if (!set) {
            set = j->set;
            ask->from = chunk.from;
            ask->alpha = ranks_joint_pull(j->alphas, j->n_in, j->shares);
        }
        ask->runs[ask->n_runs].at = (uint32_t)(chunk.from - ask->from);
        ask->runs[ask->n_runs++].n = (uint32_t)chunk.n;
        kernels_best()->mean(p, j->inputs, j->shares, j->n_in, chunk.n, false);
        p += chunk.n;
    }
}

bool ranks_joint_ask(struct ranks *m, int slice, struct ask *ask)
{
    struct ranks_joint *j = m->joint;
    int k = 0;

    if (!relays(j, slice))
        return false;
    while (j->asked[slice] < units_of(m, slice)) {
        if (!find_shown(m, j->asked[slice]))
            return false;
        fill(m, slice, ask);
        if (ask->n_runs == 0) {             /* nobody has any of it */
            tell_landed(m, slice);
            continue;
        }
        while (j->flights[k].busy)
            k++;
        size_t at = ask->from - slice_at(m, slice);
        j->flights[k] = (struct joint_flight){true, slice, (uint32_t)(at / RANKS_UNIT)};
        return true;
    }
    return false;
}

/* Its members have the floats still that they had when it was asked for. */
void ranks_joint_take(struct ranks *m, struct ask *answer)
{
    struct ranks_joint *j = m->joint;
    int slice = ranks_center_slice(m, answer->from);
    size_t at = answer->from - slice_at(m, slice);
    float *p = answer->floats;

    find_shown(m, (uint32_t)(at / RANKS_UNIT));
    for (uint32_t k = 0; k < answer->n_runs; k++) {
        uint32_t unit = (uint32_t)((at + answer->runs[k].at) / RANKS_UNIT);
        find_run(m, slice, unit, unit + 1);
        pull_all(m, (struct chunk){answer->from + answer->runs[k].at, answer->runs[k].n},
                 p, NULL);
        p += answer->runs[k].n;
    }
    for (int k = 0; k < ASK_SEATS; k++)
        if (j->flights[k].slice == slice && j->flights[k].unit == at / RANKS_UNIT)
            j->flights[k].busy = false;
    tell_landed(m, slice);
}

/* --- members and owners --- */

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

/* Copies a piece to its place, and marks the units of it that this rank has. */
static bool show_piece(struct ranks *m, struct chunk chunk)
{
    struct ranks_joint *j = m->joint;
    float *place = place_of(j, m->place.local_rank);
    unsigned char *map = map_of(j, m->place.local_rank);
    size_t end = chunk.from + chunk.n, has = end < m->x.n ? end : m->x.n;

    memset(map + chunk.from / RANKS_UNIT, 0, (chunk.n + RANKS_UNIT - 1) / RANKS_UNIT);
    for (size_t at = chunk.from, run; at < has; at += run) {
        const float *p;
        run = vector_reach(m->x.in, at, &p);
        run = run < has - at ? run : has - at;
        size_t unit = at / RANKS_UNIT, last = (at + run + RANKS_UNIT - 1) / RANKS_UNIT;
        if (p)
            memset(map + unit, 1, last - unit);
    }
    return vector_gather(m->x.in, chunk, place + chunk.from, false);
}

/* The next piece of each slice, some floats at a time. */
void ranks_joint_show(struct ranks *m)
{
    struct ranks_joint *j = m->joint;
    size_t floats = 0;

    if (!shows(m))
        return;
    while (!j->ends && j->slice < m->place.size && floats < RANKS_PIECE) {
        uint32_t unit = j->pieces * j->piece;
        if (j->pieces < pieces_of(m, j->slice)) {
            struct chunk chunk =
                units_at(m, j->slice, unit, piece_end(m, j->slice, unit));
            j->ends = j->bad = !show_piece(m, chunk);
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

bool ranks_joint_move_own(struct ranks *m)
{
    struct ranks_joint *j = m->joint;
    int slice = m->f.rank;
    uint32_t unit = moved_of(j, slice), end = piece_end(m, slice, unit), next;

    if (unit == units_of(m, slice))
        return true;
    if (m->held.center < j->state || !find_shown(m, unit))
        return false;
    for (; unit < end; unit = next) {
        next = find_run(m, slice, unit, end);
        struct chunk chunk = units_at(m, slice, unit, next);
        pull_all(m, chunk, m->f.center + chunk.from,
                 j->own + (size_t)unit * RANKS_UNIT);
    }
    tell_moved(m, slice, end);
    return end == units_of(m, slice);
}
