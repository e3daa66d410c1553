/* SPDX-License-Identifier: MIT */
/* Bulletins: each rank tells its figures about once a second, so that one rank can show
 * those of the whole job.
 *
 *   1. The lowest rank that is there shows them, so it is told. The next one is told,
 *      too: when the lowest leaves or dies, the next one knows what all have done, also
 *      the ranks that have gone by then. Where the link is fixed rank 0 stays to the end,
 *      and is told alone. A hub is told, too, and tells nobody.
 *   2. A bulletin has no answer. A lost one is followed by the next, and no rank waits
 *      for one, counts one, or decides by one.
 *   3. A rank also tells before its final exchange arrives, and before it leaves: words
 *      of one rank are heard in order, so the coordinator has the last figures of all
 *      ranks before it closes the last round.
 *   4. A rank sends at most two words of sizeof(struct ranks_word) and sizeof(struct
 *      bulletin) bytes a second, less than 1 KB, and less often among more than 100
 *      ranks, so that the lowest hears 100 a second. A receiver that takes no words is
 *      not sent more.
 *
 * The memory for the others' bulletins is taken when the first one comes: only the
 * lowest ranks need it. Without memory there are no figures, and the job goes on. */
#include "ranks/ranks.h"

#include <string.h>

enum { TOLD = 2, OUT_MOST = 8 };        /* ranks, and a hub; words on their way to one */
#define SHARE_NS UINT64_C(10000000)     /* of a rank's time at the lowest one */

void ranks_bulletins_hear(struct ranks *m, int from, const struct ranks_word *word)
{
    struct fabric *f = &m->f;
    struct bulletin_slot *slots =
        atomic_load_explicit(&f->bulletins, memory_order_relaxed);
    struct bulletin bulletin;

    if (!slots) {
        slots = memory_take_array((size_t)m->place.size, sizeof *slots);
        if (!slots)
            return;
        f->n_bulletins = m->place.size;
        atomic_store_explicit(&f->bulletins, slots, memory_order_release);
    }
    memcpy(&bulletin, word + 1, sizeof bulletin);
    bulletin_put(&slots[from], from, &bulletin, m->now_ns);
}

static bool is_there(const struct ranks *m, int rank)
{
    return m->place.fixed ||
           (m->members[rank] && m->peers[rank].generation == m->members[rank]);
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
        if (m->peers[to[i]].words_out < OUT_MOST)
            ranks_tell(m, to[i], (struct ranks_word){.what = WORD_BULLETIN}, &own,
                       sizeof own);
}

void ranks_bulletins_fini(struct ranks *m)
{
    memory_give(atomic_load_explicit(&m->f.bulletins, memory_order_relaxed));
}
