/* SPDX-License-Identifier: MIT */
/* The ledger's driver (ledger.h): events of this rank and words of others go in, and the
 * ledger's decisions are said or done. Every rank has a ledger from open on, which says
 * nothing before the rank has started.
 *
 *   HERE        to the coordinator: the ledger's state and, if the rank has arrived, its
 *               exchange
 *   GO          from the coordinator: the round has closed; lead_round.c has written it
 *               into m->go. The ledger hears a GO only when its round can begin, so that
 *               it never gives up the round before
 *   FENCE, PROPOSE, STANDS, TAKE    as in ledger.h; a list follows the second and third
 *   FORM        from rank 0, where ranks come and go: epoch 1 has this list. Where the
 *               link is fixed all ranks are members of epoch 1 from the start
 *
 * A member that is in a closed round neither with an arrival nor as a helper holds the
 * round's version at once, with the state that it has (ledger.c, 6).
 *
 * All of this runs in the thread that holds the round machine. */
#include "ranks/check.h"

#include <string.h>

#define LAZY_NS UINT64_C(50000000)

enum { AGAIN = 4 /* words that are owed are said again each dead / 4 */ };

static const enum ranks_what kinds[] = {
    [LEDGER_HERE] = WORD_HERE,       [LEDGER_FENCE] = WORD_FENCE,
    [LEDGER_PROPOSE] = WORD_PROPOSE, [LEDGER_STANDS] = WORD_STANDS,
    [LEDGER_GO] = WORD_GO,           [LEDGER_TAKE] = WORD_TAKE,
};

static struct ledger_options options_of(const struct ranks *m)
{
    return (struct ledger_options){.rank = m->place.rank,
                                   .ranks = m->place.size,
                                   .generation = m->place.generation,
                                   .again_ns = m->dead_ns / AGAIN,
                                   .lazy_ns = LAZY_NS,
                                   .dead_ns = m->dead_ns,
                                   .quorum = m->quorum,
                                   .fixed = m->place.fixed,
                                   .star = m->hub >= 0};
}

descant_status ranks_members_init(struct ranks *m)
{
    const struct ledger_options options = options_of(m);
    size_t size = (size_t)m->place.size;

    m->ledger_memory = memory_take(ledger_bytes(m->place.size));
    m->list = memory_take_array(size, sizeof *m->list);
    if (!m->ledger_memory || !m->list)
        return log_fail(&m->f.log, DESCANT_MEMORY, "no memory for the list of members");
    for (size_t k = 0; k < size; k++)
        m->list[k].generation = 1;
    m->founded = m->place.fixed;
    m->coordinator = m->leader = ranks_founder(m);
    m->leads = m->founded && m->f.rank == 0;
    const struct ledger_entry *first = m->place.fixed ? m->list : NULL;
    m->ledger = ledger_init(m->ledger_memory, &options, 0, first, m->coordinator);
    return DESCANT_OK;
}

void ranks_members_fini(struct ranks *m)
{
    memory_give(m->ledger_memory);
    memory_give(m->list);
}

/* --- words --- */

static struct ranks_ledger pack(const struct ledger_decision *d)
{
    return (struct ranks_ledger){
        .generation = d->generation,
        .epoch = d->epoch,
        .ballot = d->ballot,
        .accepted = d->accepted,
        .arrival = d->seq,
        .version = d->version,
        .base = d->base,
        .coordinator = d->coordinator,
        .about = d->about,
        .fresh = d->fresh,
        .vouched = d->vouched,
        .leaves = d->leaves,
        .final = d->final,
        .absent = d->absent,
        .cannot_give = d->cannot_give,
        .hollow = d->hollow,
        .slow = d->slow,
        .slow_ns = d->slow_ns,
    };
}

static struct ledger_decision unpack(const struct ranks *m, int from,
                                     const struct ranks_word *word)
{
    const struct ranks_ledger *w = &word->ledger;
    struct ledger_decision d = {.from = from,
                                .to = m->f.rank,
                                .generation = w->generation,
                                .epoch = w->epoch,
                                .ballot = w->ballot,
                                .accepted = w->accepted,
                                .seq = w->arrival,
                                .version = w->version,
                                .base = w->base,
                                .coordinator = w->coordinator,
                                .about = w->about,
                                .fresh = w->fresh,
                                .vouched = w->vouched,
                                .leaves = w->leaves,
                                .final = w->final,
                                .absent = w->absent,
                                .cannot_give = w->cannot_give,
                                .hollow = w->hollow,
                                .slow = w->slow,
                                .slow_ns = w->slow_ns};

    while (kinds[d.what] != (enum ranks_what)word->what)
        d.what++;
    return d;
}

/* A rank without the state of the version that it holds offers its vectors as a state,
 * which counts where no rank has a better one. */
struct ranks_word ranks_members_arrival(const struct ranks *m)
{
    const struct exchange *x = &m->x;
    bool hollow = ledger_view(m->ledger).hollow && !x->final;

    return (struct ranks_word){.what = WORD_HERE,
                               .seq = m->seq,
                               .kind = hollow ? EXCHANGE_STATE : (uint32_t)x->kind,
                               .final = x->final,
                               .bad = m->bad,
                               .refers = m->refers,
                               .n = x->n,
                               .agree = x->agree,
                               .priority = x->priority,
                               .note = x->note,
                               .weight = x->weight};
}

static void say_go(struct ranks *m, const struct ledger_decision *d)
{
    struct ranks_word word = *m->go;

    word.ledger = pack(d);
    ranks_tell(m, d->to, word, m->go + 1, word.seats * sizeof(struct ranks_run));
}

/* A list is sent as the entries of its members. */
static void say_listed(struct ranks *m, const struct ledger_decision *d)
{
    struct ranks_word word = {
        .what = kinds[d->what], .ledger = pack(d), .n = ranks_versions_pieces(m)};

    bool founds = d->what == LEDGER_PROPOSE || d->what == LEDGER_STANDS;
    if (founds && !ranks_agree_tell(m, d->to))
        return;                 /* no rank becomes a member without the last result */
    for (int k = 0; d->listed && k < m->place.size; k++)
        if (m->list[k].generation)
            m->entries[word.seats++] =
                (struct ranks_entry){.rank = k, .generation = m->list[k].generation};
    ranks_tell(m, d->to, word, m->entries, word.seats * sizeof *m->entries);
}

/* An arrival has an exchange, and no list. */
static void say_here(struct ranks *m, const struct ledger_decision *d)
{
    struct ranks_word word = ranks_members_arrival(m);

    if (!d->seq) {
        say_listed(m, d);
        return;
    }
    word.ledger = pack(d);
    ranks_tell(m, d->to, word, NULL, 0);
}

/* --- decisions --- */

static bool is_absent(const struct ranks *m)
{
    return m->x.final || m->left;
}

static bool waits_for_round(const struct ranks *m)
{
    return m->stage == STAGE_ARRIVED && !m->round.active && !m->go_waits;
}

/* A state for all has a seq of its own, so that the list of what is merged tells whether
 * it was in a round (is_overtaken in versions.c). */
static void make_ready(struct ranks *m)
{
    bool replaces = m->x.kind == EXCHANGE_STATE && m->has_state && !m->x.final;

    if (replaces && m->brought != m->seq)
        ledger_renumber(m->ledger);
    uint64_t arrival = ledger_ready(m->ledger, m->x.final, replaces);
    if (arrival) {
        m->arrived = m->seq;
        m->arrived_as = arrival;
    }
    if (replaces && arrival) {
        m->brought = m->seq;
        m->brought_as = arrival;
    }
}

/* Where late members carry their work, those at their end take each result, too: it may
 * be asked of them, and their vectors are to be upon it in the last mean. */
static bool passes_over(const struct ranks *m)
{
    return m->passes || (is_absent(m) && !m->carries);
}

/* The open round is not this rank's, which is at its end, or needs no result of a round
 * that it has missed. An arrival that waits is offered again, upon the version that is
 * held now. */
static void pass_over(struct ranks *m)
{
    if (!is_absent(m))
        atomic_fetch_add_explicit(&m->f.missed, 1, memory_order_relaxed);
    ledger_whole(m->ledger, m->now_ns);
    if (waits_for_round(m))
        make_ready(m);
}

/* Another epoch stands, with the members in m->list. */
static void change(struct ranks *m)
{
    struct ledger_view view = ledger_view(m->ledger);
    int others = 0;

    for (int k = 0; k < m->place.size; k++) {
        if (m->list[k].generation && m->list[k].generation != m->members[k])
            atomic_store_explicit(&m->f.ended, false, memory_order_relaxed);
        m->members[k] = m->list[k].generation;
        others += m->members[k] && k != m->f.rank;
    }
    atomic_store_explicit(&m->f.others, others, memory_order_release);
    m->founded = m->changed = true;
    if (view.coordinator >= 0)          /* -1: all have left */
        m->coordinator = view.coordinator;
    m->leads = view.member && view.coordinator == m->f.rank;
    m->stands_ns = m->now_ns;
    ranks_center_changed(m);
    if (!m->place.fixed)
        ranks_rows_changed(m);
}

static void obey(struct ranks *m, const struct ledger_decision *d)
{
    switch (d->what) {
    case LEDGER_HERE:
        say_here(m, d);
        break;
    case LEDGER_GO:
        say_go(m, d);
        break;
    case LEDGER_FENCE:
    case LEDGER_PROPOSE:
    case LEDGER_STANDS:
    case LEDGER_TAKE:
        say_listed(m, d);
        break;
    case LEDGER_OPEN:
        if (!m->list[m->f.rank].seq && passes_over(m))
            pass_over(m);
        break;
    case LEDGER_VOID:       /* where the link is fixed, of a round without this rank */
        m->voided = !m->place.fixed;
        break;
    case LEDGER_EPOCH:
        change(m);
        break;
    case LEDGER_FETCH:
        ranks_versions_want(m, d);
        break;
    case LEDGER_OUT:
    case LEDGER_MERGED:
        break;                  /* the list and the version say the same */
    }
}

static void obey_all(struct ranks *m)
{
    struct ledger_decision d;

    m->ledger_moved = true;
    while (m->started && ledger_next(m->ledger, &d, m->list))
        obey(m, &d);
}

/* --- events --- */

void ranks_members_time(struct ranks *m)
{
    bool knew = m->started && ledger_view(m->ledger).epoch > 0;
    uint64_t due = ledger_wakes(m->ledger);

    ledger_now(m->ledger, m->now_ns);
    if (!m->started || m->now_ns < due)
        return;
    ledger_time(m->ledger, m->now_ns);
    if (knew && !ledger_view(m->ledger).epoch) {    /* of a job that has ended */
        ranks_rows_forget(m);
        ranks_agree_forget(m);
        ranks_deal_forget(m);
    }
    obey_all(m);
}

void ranks_members_ready(struct ranks *m)
{
    make_ready(m);
    obey_all(m);
}

void ranks_members_unready(struct ranks *m)
{
    ledger_unready(m->ledger);
    obey_all(m);
}

void ranks_members_leave(struct ranks *m)
{
    if (m->place.fixed)
        ledger_retire(m->ledger);
    else
        ledger_leave(m->ledger);
    obey_all(m);
}

void ranks_members_silent(struct ranks *m, int rank)
{
    ledger_silent(m->ledger, rank);
    obey_all(m);
}

void ranks_members_lost(struct ranks *m, int rank)
{
    ledger_lost(m->ledger, rank);
    obey_all(m);
}

void ranks_members_came(struct ranks *m, int rank)
{
    ledger_came(m->ledger, rank);
    obey_all(m);
}

void ranks_members_heard(struct ranks *m, int rank)
{
    ledger_heard(m->ledger, rank);
    obey_all(m);
}

void ranks_members_form(struct ranks *m)
{
    const struct ledger_options options = options_of(m);

    m->ledger = ledger_init(m->ledger_memory, &options, m->now_ns, m->list, 0);
    ranks_agree_form(m);
    if (waits_for_round(m))
        make_ready(m);
    obey_all(m);
}

bool ranks_members_took(struct ranks *m, const struct ranks_taken *taken)
{
    bool took = ledger_took(m->ledger, taken->version, m->list, taken->hollow);

    obey_all(m);
    return took;
}

void ranks_members_close(struct ranks *m)
{
    struct ledger_view view = ledger_view(m->ledger);

    m->go->ledger.version = (struct ledger_version){view.epoch, view.held.number + 1};
    if (ledger_close(m->ledger))
        obey_all(m);
}

void ranks_members_hear(struct ranks *m, int from, const struct ranks_word *word)
{
    const struct ranks_entry *entries = (const struct ranks_entry *)(word + 1);
    struct ledger_decision d = unpack(m, from, word);
    bool listed = d.what == LEDGER_PROPOSE || d.what == LEDGER_STANDS || d.accepted;

    /* A list may be empty: all have left. */
    if (listed)
        memset(m->list, 0, (size_t)m->place.size * sizeof *m->list);
    for (uint32_t i = 0; listed && i < word->seats; i++)
        m->list[entries[i].rank].generation = entries[i].generation;
    ledger_hear(m->ledger, &d, listed ? m->list : NULL);
    obey_all(m);
}

/* Begins the round of m->go. False: this rank's ledger has no part in it. */
bool ranks_members_begin(struct ranks *m)
{
    const struct ranks_run *runs = ranks_runs(m->go), *end = runs + m->go->seats;
    const struct ranks_run *own = ranks_run_of(runs, m->go->seats, m->f.rank);
    struct ledger_decision d = unpack(m, m->coordinator, m->go);

    memset(m->list, 0, (size_t)m->place.size * sizeof *m->list);
    for (const struct ranks_run *run = runs; run < end; run++)
        for (uint32_t i = 0; i < run->n; i++)
            m->list[run->first.rank + (int)i] =
                (struct ledger_entry){m->go->ledger.generation, run->first.arrival};
    if (!m->leads && (!own || own->first.arrival || !m->place.fixed)) {
        ledger_hear(m->ledger, &d, m->list);
        obey_all(m);
    }
    bool is_last = m->place.fixed ||
                   ledger_series(m->ledger) == ledger_series_of(d.version);
    if (!own || !own->first.arrival)
        return own && is_last;
    return ledger_view(m->ledger).open && is_last;
}

void ranks_members_whole(struct ranks *m)
{
    ledger_whole(m->ledger, m->now_ns);
    obey_all(m);
}
