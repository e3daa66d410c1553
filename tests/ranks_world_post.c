/* SPDX-License-Identifier: MIT */
/* Parcels of the trainers of ranks_world.h, instead of rounds: between rank 0 and each
 * other rank, both ways, of random lengths, taken at once or later. Each has a number, and
 * says who sent it to whom. The numbers are docs/members.md's, "Parcels":
 *
 *   1 `who` is 0 once its process was not heard for `dead`, and no number comes back
 *   2 a parcel is received once at most, as a whole, by the process that it was sent to
 *   3 a parcel to nobody is refused, which is said; one that is lost is said to be lost,
 *     and its lane is free at once
 *   4 a parcel that is here stays until it is taken
 *   5 where `who` is the same and the lane is free, the last parcel was taken
 *   6 where one of two processes gives the other up, both do */
#include "ranks_world.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { FLOATS = 3000, LONG_FLOATS = (1 << 18) + 500 /* two messages */ };
enum { STALE_TURNS = 2 /* until what was under way to one that has gone is back */ };

struct post_head {
    uint64_t number, from, to;
};

static float value_of(uint64_t number, size_t i)
{
    return (float)(number % 1000 + i % 7);
}

static bool is_lane(const struct ranks_world *w, int rank, int other)
{
    return other < w->options.ranks && (rank == 0) != (other == 0);
}

static const struct fabric_post *post = &ranks_post;

void world_post_start(struct ranks_world *w, int rank)
{
    struct world_trainer *t = &w->trainers[rank];

    w->parcel_room = w->long_parcels ? LONG_FLOATS : w->parcel_room;
    w->parcel_room = w->parcel_room ? w->parcel_room : FLOATS;
    for (int k = 0; k < w->options.ranks; k++)
        if (is_lane(w, rank, k) && (post->room(t->f, k, 0) != DESCANT_OK ||
                                    post->room(t->f, k, w->parcel_room) != DESCANT_OK))
            world_fail(w, rank, "no room for parcels");
    t->self = post->who(t->f, rank);
}

void world_post_hear(struct world_trainer *t, const char *line)
{
    const char *to = strstr(line, "a parcel to rank ");

    if (to)
        t->lanes[atoi(to + strlen("a parcel to rank "))].lost++;
}

/* --- one lane --- */

/* 1 and 6 */
static void look_who(struct ranks_world *w, int rank, int other)
{
    struct world_trainer *t = &w->trainers[rank];
    struct trainer_lane *lane = &t->lanes[other];
    const struct ranks *m = ranks_of(t->f);
    uint64_t who = post->who(t->f, other);

    if (who && who != lane->who && who == lane->met)
        world_fail(w, rank, "parcels: rank %d has come back as the same process", other);
    if (who && m->now_ns - m->peers[other].heard_ns > m->dead_ns)
        world_fail(w, rank, "parcels: rank %d was not heard for %g s, and is there", other,
                   (double)(m->now_ns - m->peers[other].heard_ns) * 1e-9);
    if (!who && lane->who && rank && rng_uniform(&w->rng) < 0.2)
        t->finishes = true;     /* as a module whose control has gone may */
    lane->who = who;
    lane->met = who ? who : lane->met;
}

/* 3 and 5: the lane of the last parcel. */
static void look_sent(struct ranks_world *w, int rank, int other)
{
    const struct world_trainer *to = &w->trainers[other];
    struct trainer_lane *lane = &w->trainers[rank].lanes[other];
    bool same = lane->who == lane->to, known = to->self == lane->to;
    bool taken = to->lanes[rank].taken >= lane->number;
    unsigned long long number = lane->number;

    if (!lane->number)
        return;
    if (!post->free(w->trainers[rank].f, other)) {
        lane->stale = same ? 0 : lane->stale + 1;
        if (lane->stale > STALE_TURNS)
            world_fail(w, rank, "parcels: the lane to rank %d is not free", other);
        return;
    }
    if (same && (lane->lost || (known && !taken)))
        world_fail(w, rank, "parcels: %llu to rank %d is free, and was not taken, lost %d",
                   number, other, lane->lost);
    if (!same && known && !taken && lane->lost != 1)
        world_fail(w, rank, "parcels: %llu to rank %d was lost, which is said %d times",
                   number, other, lane->lost);
    lane->number = 0;
    lane->stale = 0;
}

static void send(struct ranks_world *w, int rank, int other)
{
    struct world_trainer *t = &w->trainers[rank];
    struct trainer_lane *lane = &t->lanes[other];
    const struct post_head head = {++w->parcels, t->self, lane->who};
    bool is_long = w->long_parcels && rng_uniform(&w->rng) < 0.02;
    size_t n = is_long ? LONG_FLOATS : (size_t)(rng_uniform(&w->rng) * FLOATS);
    char bytes[POST_HEAD] = {0};
    float *box = post->box(t->f, other);

    memcpy(bytes, &head, sizeof head);
    for (size_t i = 0; i < n; i++)
        box[i] = value_of(head.number, i);
    lane->lost = 0;
    post->send(t->f, other, bytes, n);
    lane->number = lane->lost ? 0 : head.number;
    lane->to = lane->who;
    if (lane->lost != !lane->who || (lane->lost && !post->free(t->f, other)))
        world_fail(w, rank, "parcels: to rank %d, which is %s, is refused %d times", other,
                   lane->who ? "there" : "not there", lane->lost);
    lane->lost = 0;
}

/* 2 */
static void check_parcel(struct ranks_world *w, int rank, int other,
                         const struct parcel *parcel, const struct post_head *head)
{
    const struct world_trainer *t = &w->trainers[rank];
    const struct trainer_lane *lane = &t->lanes[other];
    size_t bad = 0;

    for (size_t i = 0; i < parcel->n; i++)
        bad += parcel->values[i] != value_of(head->number, i);
    if (bad || head->number <= lane->taken)
        world_fail(w, rank, "parcels: %llu of rank %d after %llu, and %zu floats are bad",
                   (unsigned long long)head->number, other,
                   (unsigned long long)lane->taken, bad);
    if (head->to != t->self || parcel->to != t->self || parcel->from != head->from)
        world_fail(w, rank, "parcels: %llu of rank %d is of another process, or to another",
                   (unsigned long long)head->number, other);
}

/* 2 and 4 */
static void look_here(struct ranks_world *w, int rank, int other, uint64_t now)
{
    struct world_trainer *t = &w->trainers[rank];
    struct trainer_lane *lane = &t->lanes[other];
    struct post_head head = {0};
    struct parcel parcel;
    bool is_here = post->look(t->f, other, &parcel);

    if (is_here)
        memcpy(&head, parcel.head, sizeof head);
    if (lane->here && lane->here != head.number)
        world_fail(w, rank, "parcels: %llu of rank %d was here, and is not",
                   (unsigned long long)lane->here, other);
    if (!is_here)
        return;
    if (!lane->here && rng_uniform(&w->rng) < 0.1)
        lane->takes_ns = now + (uint64_t)(rng_uniform(&w->rng) * 2e9 * w->dead_s);
    lane->here = head.number;
    if (now < lane->takes_ns)
        return;
    check_parcel(w, rank, other, &parcel, &head);
    lane->taken = head.number;
    lane->here = 0;
    lane->n_taken++;
    w->exchanges++;
    post->taken(t->f, other);
}

static uint64_t after(uint64_t at_ns, uint64_t now, uint64_t next)
{
    return at_ns > now && at_ns < next ? at_ns : next;
}

/* --- a trainer --- */

void world_post_turn(struct ranks_world *w, int rank)
{
    struct world_trainer *t = &w->trainers[rank];
    uint64_t now = simulated_now(w->link), next = UINT64_MAX;

    if (post->move(t->f) != DESCANT_OK)
        world_fail(w, rank, "parcels: move failed");
    for (int k = 0; k < w->options.ranks; k++) {
        struct trainer_lane *lane = &t->lanes[k];
        if (!is_lane(w, rank, k))
            continue;
        look_who(w, rank, k);
        look_sent(w, rank, k);
        look_here(w, rank, k, now);
        if (now >= lane->sends_ns && post->free(t->f, k) && !lane->number) {
            send(w, rank, k);
            lane->sends_ns = now + (uint64_t)(rng_uniform(&w->rng) * (double)w->step_ns);
        }
        next = after(lane->sends_ns, now, after(lane->takes_ns, now, next));
    }
    ranks_rest(ranks_of(t->f), next == UINT64_MAX ? 0 : next);
    if (t->finishes)
        world_leave(w, rank);
}

/* --- at the end --- */

static bool trains(const struct ranks_world *w, int rank)
{
    return w->trainers[rank].state == TRAINER_TRAINS && simulated_lives(w->link, rank);
}

/* 6: or one has given the other up, and so both have. */
static bool are_met(struct ranks_world *w, int rank)
{
    const struct world_trainer *a = &w->trainers[0], *b = &w->trainers[rank];

    if (!trains(w, 0) || !trains(w, rank))
        return false;
    uint64_t to = post->who(a->f, rank), from = post->who(b->f, 0);
    if ((to || from) && (to != b->self || from != a->self))
        world_fail(w, rank, "parcels: rank 0 and it do not agree whether they have met");
    return to && from;
}

/* Returns how many were met; those of them go on, both ways. */
static int go_on(struct ranks_world *w, double seconds)
{
    int before[WORLD_MOST], before_0[WORLD_MOST], n = 0;
    bool met[WORLD_MOST] = {false};

    for (int k = 1; k < w->options.ranks; k++) {
        met[k] = are_met(w, k);
        before[k] = w->trainers[k].lanes[0].n_taken;
        before_0[k] = w->trainers[0].lanes[k].n_taken;
        n += met[k];
    }
    world_run(w, seconds);
    for (int k = 1; k < w->options.ranks; k++)
        if (met[k] && (w->trainers[k].lanes[0].n_taken == before[k] ||
                       w->trainers[0].lanes[k].n_taken == before_0[k]))
            world_fail(w, k, "parcels: it does not go on with rank 0");
    return n;
}

int world_post_ends(struct ranks_world *w, double seconds)
{
    int met = go_on(w, seconds), ranks = w->options.ranks;
    bool was_there = trains(w, 0);

    if (!was_there)
        world_come(w, 0);
    world_run(w, seconds);
    for (int k = 1; k < ranks && !*w->why; k++) {
        if (are_met(w, k))
            continue;
        if (!was_there && trains(w, k))
            world_fail(w, k, "parcels: it does not meet the next process of rank 0");
        world_come(w, k);
    }
    world_run(w, seconds);
    if (go_on(w, seconds) != ranks - 1)
        world_fail(w, 0, "parcels: it has not met all the others");
    for (int k = 0; k < ranks && !*w->why; k++)
        world_leave(w, k);
    world_run(w, seconds);
    for (int k = 0; k < ranks; k++)
        if (w->trainers[k].state == TRAINER_LEAVES)
            world_fail(w, k, "parcels: it cannot leave");
    return met;
}
