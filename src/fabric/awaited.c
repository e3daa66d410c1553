/* SPDX-License-Identifier: MIT */
/* The ranks that an exchange waits for: a list that stays short however many there are,
 * and its way into the head of a fabric, where any thread may read it. The thread that
 * sleeps in wait makes the list once the sleep has lasted, so an exchange that no rank
 * holds up pays nothing.
 *
 * The head's copy is made of relaxed atomics without a common order: a reader may see the
 * count of one moment with the ranks of the next. The list is for people; no decision
 * depends on it. */
#include "fabric/fabric.h"

void awaited_add(struct awaited *awaited, int rank)
{
    int k = awaited->n_named;

    awaited->n++;
    if (rank < 0 || (k == FABRIC_NAMED && awaited->ranks[k - 1] < rank))
        return;
    if (k == FABRIC_NAMED)
        k--;
    else
        awaited->n_named++;
    for (; k > 0 && awaited->ranks[k - 1] > rank; k--)
        awaited->ranks[k] = awaited->ranks[k - 1];
    awaited->ranks[k] = rank;
}

static void set(_Atomic int *figure, int value)
{
    atomic_store_explicit(figure, value, memory_order_relaxed);
}

static int get(const _Atomic int *figure)
{
    return atomic_load_explicit(figure, memory_order_relaxed);
}

void fabric_say(struct fabric *f, const struct awaited *awaited)
{
    for (int i = 0; i < awaited->n_named; i++)
        set(&f->wait_ranks[i], awaited->ranks[i]);
    set(&f->wait_named, awaited->n_named);
    set(&f->wait_n, awaited->n);
    set(&f->wait_kind, (int)awaited->kind);
    atomic_store_explicit(&f->wait_round, awaited->round, memory_order_relaxed);
    set(&f->wait, (int)awaited->wait);
}

void fabric_unsay(struct fabric *f)
{
    if (get(&f->wait) != FABRIC_WAIT_NONE)
        set(&f->wait, FABRIC_WAIT_NONE);
}

struct awaited fabric_hear(const struct fabric *f)
{
    struct awaited awaited = {
        .wait = (enum fabric_wait)get(&f->wait),
        .kind = (enum exchange_kind)get(&f->wait_kind),
        .round = atomic_load_explicit(&f->wait_round, memory_order_relaxed),
        .n = get(&f->wait_n),
        .n_named = get(&f->wait_named),
    };

    for (int i = 0; i < awaited.n_named; i++)
        awaited.ranks[i] = get(&f->wait_ranks[i]);
    return awaited;
}
