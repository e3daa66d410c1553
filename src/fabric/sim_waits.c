/* SPDX-License-Identifier: MIT */
/* Who waits for whom in a simulated world. It is asked in wait alone, which only those call who
 * are about to sleep: among many trainers each poll would cost as many looks. */
#include "fabric/sim_world.h"

/* Of 0 .. size-1 those that are not here; only their number where ranks are others. */
static void add_missing(const struct sim_world *w, int size, struct awaited *awaited)
{
    bool known = w->trainers[w->n_trainers - 1]->f.rank < size;
    for (int rank = 0, i = 0, left = size - w->n_trainers; left > 0 && rank < size; rank++) {
        if (known && i < w->n_trainers && w->trainers[i]->f.rank == rank) {
            i++;
            continue;
        }
        awaited_add(awaited, known ? rank : -1);
        left--;
    }
}

/* In whose hands it is that t goes on. */
static bool holds_up(const struct trainer *o, const struct trainer *t, bool formed)
{
    if (t->life == FINAL)
        return o->life != FINAL;
    if (!formed)
        return o->life == OPENED;
    if (t->phase == PULLED)
        return o->phase == TAKE || o->phase == TAKEN;
    return o->life == MEMBER && o->phase != ARRIVED;
}

struct awaited trainer_waits(const struct trainer *t)
{
    const struct sim_world *w = t->world;
    struct awaited awaited = {.wait = FABRIC_WAIT_ROUND, .kind = t->x.kind, .round = w->round};
    bool formed = world_count(w, MEMBER) > 0;
    int size = 0;
    if (t->phase == REDUCING || t->phase == ALONE || t->phase == PULLING) {
        awaited.wait = FABRIC_WAIT_LINK;
        return awaited;
    }
    if (t->life == WAITING)
        awaited.wait = FABRIC_WAIT_START;
    else if (t->x.final)
        awaited.wait = FABRIC_WAIT_FINISH;
    for (int i = 0; i < w->n_trainers; i++) {
        const struct trainer *o = w->trainers[i];
        size = o->life == WAITING && o->f.size > size ? o->f.size : size;
        if (o != t && holds_up(o, t, formed))
            awaited_add(&awaited, o->f.rank);
    }
    if (awaited.wait == FABRIC_WAIT_START && !formed)
        add_missing(w, size, &awaited);
    return awaited;
}
