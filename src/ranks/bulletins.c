/* SPDX-License-Identifier: MIT */
/* Bulletins: each rank tells its figures about once a second, so that one rank can show
 * those of the whole job.
 *
 *   1. The lowest rank that is there shows them, so it is told. The next one is told,
 *      too: when the lowest leaves or dies, the next one knows what all have done, also
 *      the ranks that have gone by then. Where the link is fixed rank 0 stays to the end,
 *      and is told alone. A hub is told, too, and tells nobody.
 *   2. A bulletin has no answer but that of rule 4. A lost one is followed by the next,
 *      and no rank waits for one, counts one, or decides by one.
 *   3. A rank also tells before its final exchange arrives, and before it leaves: words
 *      of one rank are heard in order, so the coordinator has the last figures of all
 *      ranks before it closes the last round.
 *   4. A rank that comes again begins with figures at 0. A rank that hears its first
 *      bulletin answers with the last one that its earlier process told, and with the figures of
 *      ranks that are not there, seven of them at most. The rank adds its own figures to
 *      the earlier ones, and says so (depth); until then ranks that have the earlier
 *      ones keep them. So what a dead process has done is not lost, and not counted twice.
 *   5. But for these answers a rank sends at most two words of sizeof(struct ranks_word)
 *      and sizeof(struct bulletin) bytes a second, less than 1 KB, and less often among
 *      more than 100 ranks, so that the lowest hears 100 a second. A receiver that takes
 *      no words is not sent more.
 *
 * The memory for the others' bulletins is taken when the first one comes: only the
 * lowest ranks need it. Without memory there are no figures, and the job goes on. */
#include "ranks/ranks.h"

#include <string.h>

enum { TOLD = 2, OUT_MOST = 8 };        /* ranks, and a hub; words on their way to one */
#define SOON_NS (BULLETIN_NS / 4)       /* until a program goes on from earlier figures */
#define SHARE_NS UINT64_C(10000000)     /* of a rank's time at the lowest one */

/* NULL: no memory. */
static struct bulletin_slot *slots_of(struct ranks *m)
{
    struct fabric *f = &m->f;
    struct bulletin_slot *slots =
        atomic_load_explicit(&f->bulletins, memory_order_relaxed);

    if (slots)
        return slots;
    slots = memory_take_array((size_t)m->place.size, sizeof *slots);
    if (slots)
        f->n_bulletins = m->place.size;
    atomic_store_explicit(&f->bulletins, slots, memory_order_release);
    return slots;
}

static bool is_there(const struct ranks *m, int rank)
{
    return m->place.fixed ||
           (m->members[rank] && m->peers[rank].generation == m->members[rank]);
}

static void send(struct ranks *m, int to, int of, const struct bulletin *bulletin)
{
    uint64_t refers = of == m->f.rank ? 0 : (uint64_t)of + 1;

    if (m->peers[to].words_out < OUT_MOST)
        ranks_tell(m, to, (struct ranks_word){.what = WORD_BULLETIN, .refers = refers},
                   bulletin, sizeof *bulletin);
}

/* Tells a rank that has come what is kept of ranks that are not there. */
static void send_gone(struct ranks *m, int to, const struct bulletin_slot *slots)
{
    struct bulletin kept;
    uint64_t heard_ns;
    int rank;

    for (int k = 0; k < m->place.size; k++)
        if (k != to && k != m->f.rank && !is_there(m, k) &&
            bulletin_get(&slots[k], &kept, &rank, &heard_ns))
            send(m, to, k, &kept);
}

/* Another rank has this one's figures, maybe of this very process, or of one that came
 * before another one that has told its own. */
static void hear_own(struct ranks *m, struct bulletin_slot *slot,
                     const struct bulletin *told)
{
    struct bulletin own = {0}, known = {0};
    uint64_t heard_ns;
    int rank;

    if (m->f.figures)
        m->f.figures(m->f.figures_of, &own);
    bulletin_get(slot, &known, &rank, &heard_ns);
    if (told->process == own.process || told->depth < own.depth ||
        told->depth <= known.depth || told->depth > BULLETIN_DEPTH)
        return;
    bulletin_put(slot, m->f.rank, told, m->now_ns);
    m->bulletin_ns = m->now_ns + SOON_NS;
}

void ranks_bulletins_hear(struct ranks *m, int from, const struct ranks_word *word)
{
    int of = word->refers ? (int)word->refers - 1 : from, rank;
    struct bulletin_slot *slots = slots_of(m);
    struct bulletin told, kept = {0};
    uint64_t heard_ns;

    memcpy(&told, word + 1, sizeof told);
    if (!slots || (of != from && of != m->f.rank && is_there(m, of)))
        return;
    if (of == m->f.rank) {
        hear_own(m, &slots[of], &told);
        return;
    }
    bool known = bulletin_get(&slots[of], &kept, &rank, &heard_ns);
    bool another = !known || told.process != kept.process;
    if (of == from && known && !bulletin_goes_on(&kept, &told))
        send(m, from, of, &kept);       /* first, for there is room for few words */
    else if (of == from || (another && told.depth > kept.depth))
        bulletin_put(&slots[of], of, &told, m->now_ns);
    if (of == from && another)
        send_gone(m, from, slots);
}

/* The ranks to tell; *all: how many ranks tell. */
static int choose(const struct ranks *m, int to[TOLD + 1], int *all)
{
    int n = 0, most = m->place.fixed ? 1 : TOLD;

    *all = 0;
    for (int k = 0; k < m->place.size; k++) {
        if (!is_there(m, k) && k != m->f.rank)
            continue;
        if (k != m->f.rank && (n < most || k == m->hub))
            to[n++] = k;
        ++*all;
    }
    return m->place.fixed && m->f.rank == 0 ? 0 : n;
}

uint64_t ranks_bulletins_due(const struct ranks *m)
{
    return m->f.figures && m->started && !m->left ? m->bulletin_ns : UINT64_MAX;
}

void ranks_bulletins_tell(struct ranks *m)
{
    int to[TOLD + 1], all;
    struct bulletin own;

    if (m->now_ns < ranks_bulletins_due(m))
        return;
    int n = choose(m, to, &all);
    uint64_t each = SHARE_NS * (uint64_t)all;
    m->bulletin_ns = m->now_ns + (each > BULLETIN_NS ? each : BULLETIN_NS);
    if (n)
        m->f.figures(m->f.figures_of, &own);
    for (int i = 0; i < n; i++)
        send(m, to[i], m->f.rank, &own);
}

void ranks_bulletins_fini(struct ranks *m)
{
    memory_give(atomic_load_explicit(&m->f.bulletins, memory_order_relaxed));
}
