/* SPDX-License-Identifier: MIT */
/* The trainers of other machines: which were told to end, which have gone, and the effect
 * on this one.
 *
 * SIGTERM is the notice of a host that goes. A trainer over TCP then leaves by itself
 * (TERM_LEAVES): its workers stop, its steps go into a last exchange, and the others go
 * on. Where no rank can leave, as under MPI, all trainers end with a last checkpoint
 * (TERM_ENDS_ALL). The library carries the word (descant_tell), and this trainer hears it
 * as an event. If all trainers were told, as by a launcher at the end of its time, nobody
 * is there to go on: the run ends as one that a signal has stopped. Those signals do not
 * come in the same instant, so a trainer that was told looks for a second whether all
 * were. A trainer that leaves is no member at once, but the events' thread may say so
 * only at its next look: until then the members that are left seem to be told, all of
 * them. So all count as told once they have been for longer than that.
 * Where others have finished that were not told, all data is dealt, and they wait for
 * this trainer: it finishes with them.
 *
 * The first host writes the model, evaluates and reports. Once it has left, or was told
 * and is lost, the lowest rank that has not does. A host that has died untold is awaited:
 * it may be cut off alone, and two writers of one file must not be. A rank that came late
 * has not heard which ranks had left before, and takes them for present, but where ranks
 * show each other marks (cuts.c).
 *
 * on_event runs in a thread of the library's, heed in any thread. Bits of ranks are
 * relaxed: they order nothing. */
#include "run/run.h"
#include "run/signals.h"
#include "train/trainer.h"

#include <signal.h>
#include <string.h>

#define RELAXED memory_order_relaxed
#define ALL_WITHIN_NS UINT64_C(1000000000)
#define STEADY_NS UINT64_C(250000000)   /* events.c looks each 200 ms */
#define LOOK_NS UINT64_C(10000000)

bool rank_is(const struct rank_bits *bits, int rank)
{
    return rank >= 0 && rank < RANK_BITS &&
           atomic_load_explicit(&bits->word[rank / 64], RELAXED) >> rank % 64 & 1;
}

static void set_rank(struct rank_bits *bits, int rank, bool on)
{
    if (rank < 0 || rank >= RANK_BITS)
        return;
    uint64_t bit = UINT64_C(1) << rank % 64;
    if (on)
        atomic_fetch_or_explicit(&bits->word[rank / 64], bit, RELAXED);
    else
        atomic_fetch_and_explicit(&bits->word[rank / 64], ~bit, RELAXED);
}

enum term_end term_judge(enum term term, bool told, int members, int others_told,
                         bool others_wait)
{
    if (told && others_wait && term != TERM_ENDS_RUN)
        return TERM_END_ALL;
    if (term == TERM_ENDS_RUN || (told && others_told + 1 >= members))
        return TERM_END_SIGNAL;
    return term == TERM_LEAVES && told ? TERM_END_LEFT : TERM_END_ALL;
}

bool term_known(enum term term, enum term_end end, uint64_t looked_ns, uint64_t all_ns)
{
    return end == TERM_END_SIGNAL ? term != TERM_LEAVES || all_ns >= STEADY_NS
                                  : looked_ns >= ALL_WITHIN_NS;
}

/* The trainers of one machine share tables, board and data, so they end together. */
descant_status others_settle(struct trainer *t)
{
    const struct train_options *o = t->options;
    if (o->on_term == ON_TERM_LEAVE && !t->deals)
        return log_fail(&t->log, DESCANT_UNSUPPORTED,
                        "--on-term leave needs trainers on several machines; trainers "
                        "of one machine share tables and end together: use --on-term "
                        "all");
    if (o->on_term == ON_TERM_LEAVE && t->local_rank > 0)
        return log_fail(&t->log, DESCANT_UNSUPPORTED,
                        "--on-term leave needs one trainer a machine; here one has "
                        "several, which share tables and end together: use --on-term "
                        "all");
    /* a rank whose rows do not move cannot leave */
    bool stays = o->tables != TABLES_REPLICATE && !t->moves;
    t->term = !t->deals && !o->watched      ? TERM_ENDS_RUN
              : o->on_term == ON_TERM_LEAVE ? TERM_LEAVES
              : o->on_term == ON_TERM_ALL || o->watched || stays ? TERM_ENDS_ALL
                                                        : TERM_LEAVES;
    return DESCANT_OK;
}

/* --- hearing --- */

static void hear_told(struct trainer *t, const struct descant_event *event)
{
    set_rank(&t->told, event->rank, true);
    if (t->term == TERM_LEAVES && !signals_heard())
        log_say(&t->log, DESCANT_WARNING,
                "%s (SIGTERM): it leaves, and the others go on", event->text);
    if (t->term != TERM_ENDS_ALL || !board_signalled(t->board, SIGTERM))
        return;
    progress_end_line(&t->progress);
    fprintf(t->err, "descant: %s (SIGTERM): all trainers end%s\n", event->text,
            t->options->checkpoint ? " with a last checkpoint" : "");
}

bool others_hear(struct trainer *t, const struct descant_event *event)
{
    bool was_told = rank_is(&t->told, event->rank);
    bool was_lost = rank_is(&t->lost, event->rank);
    bool lost = event->kind == DESCANT_EVENT_LOST ||
                event->kind == DESCANT_EVENT_UNFINISHED ||
                event->kind == DESCANT_EVENT_LEFT;

    bool finished = event->kind == DESCANT_EVENT_FINISHED;

    if (lost || event->kind == DESCANT_EVENT_JOINED)
        set_rank(&t->lost, event->rank, lost);
    if (lost || finished || event->kind == DESCANT_EVENT_JOINED)
        set_rank(&t->waits, event->rank, finished && !was_told);
    switch (event->kind) {
    case DESCANT_EVENT_TOLD:
        hear_told(t, event);
        return true;
    case DESCANT_EVENT_JOINED:
        set_rank(&t->told, event->rank, false);
        set_rank(&t->gone, event->rank, false);
        if (was_lost)
            log_say(&t->log, DESCANT_WARNING, "trainer %d has come again: %d take part",
                    event->rank, event->members);
        return was_lost;
    case DESCANT_EVENT_LEFT:            /* it was told, if it has not said so yet */
        set_rank(&t->gone, event->rank, t->term == TERM_LEAVES);
        return true;
    case DESCANT_EVENT_LOST:
        set_rank(&t->gone, event->rank, was_told && t->term == TERM_LEAVES);
        return false;
    case DESCANT_EVENT_FINISHED:
        set_rank(&t->told, event->rank, false);         /* it ends with all */
        return was_told;
    default:
        return false;
    }
}

/* The library's line has it that nobody does the share of the rank, but chunks of files
 * go by need. Not so where the job ends with the rank, as under an MPI launcher, or with
 * its rows. */
void others_say_lost(struct trainer *t, const struct descant_event *event)
{
    const struct train_options *o = t->options;
    bool ends = o->watched || (t->owned && t->deals && !(o->rows_replica > 0));
    bool train_on = !ends && strcmp(o->data, "-") != 0;
    char who[32] = "another trainer", often[48] = "";

    if (event->rank >= 0)
        snprintf(who, sizeof who, "trainer %d", event->rank);
    if (event->count > 1)
        snprintf(often, sizeof often, " (%llu times)", (unsigned long long)event->count);
    log_say(&t->log, DESCANT_WARNING, "%s has %s%s: %d take part%s", who,
            event->kind == DESCANT_EVENT_LOST ? "died" : "left without descant_finish",
            often, event->members, train_on ? ", and train its share of the data" : "");
}

/* The library changes its answer first, and then notes the event. So a rank that comes or
 * dies meanwhile is seen here, or its event comes later, and counts. */
void others_look(struct trainer *t, int rank)
{
    int is = 1;

    while (!rank_is(&t->lost, rank) &&
           descant_is_member(t->job, rank, &is) == DESCANT_OK && !is) {
        set_rank(&t->lost, rank, true);
        if (descant_is_member(t->job, rank, &is) == DESCANT_OK && is)
            set_rank(&t->lost, rank, false);
    }
}

bool others_is_first(const struct trainer *t)
{
    bool first = true;

    for (int k = 0; t->host > 0 && k < t->rank - t->local_rank && first; k++)
        first = rank_is(&t->gone, k);
    return first;
}

int others_first(const struct trainer *t)
{
    int first = 0;

    while (first < t->rank && rank_is(&t->gone, first))
        first++;
    return first;
}

bool others_led(const struct trainer *t)
{
    int first = others_first(t);
    return first == t->rank || !rank_is(&t->lost, first);
}

/* Where an event said that the rank left or died (it is in `lost`), the event counts, not
 * the older mark. */
void others_seen(struct trainer *t, int rank, bool passed)
{
    if (passed || (rank_is(&t->gone, rank) && !rank_is(&t->lost, rank)))
        set_rank(&t->gone, rank, passed);
}

bool others_leave(const struct trainer *t)
{
    bool leave = false;

    for (int k = 0; t->term == TERM_LEAVES && k < RANK_BITS && !leave; k++)
        leave = rank_is(&t->told, k) && !rank_is(&t->gone, k) && !rank_is(&t->lost, k);
    return leave;
}

/* --- being told --- */

void others_tell(struct trainer *t)
{
    uint64_t not_yet = 0, now = clock_now_ns();
    struct descant_members members;

    if (t->term == TERM_ENDS_RUN || atomic_load(&t->told_ns) ||
        descant_members(t->job, &members) != DESCANT_OK)
        return;
    atomic_store(&t->told_of, members.size);
    if (atomic_compare_exchange_strong(&t->told_ns, &not_yet, now))
        descant_tell(t->job);
}

static int members_now(struct trainer *t)
{
    struct descant_members members;

    if (t->term != TERM_LEAVES)
        return atomic_load(&t->told_of);
    return descant_members(t->job, &members) == DESCANT_OK ? members.size : 1;
}

static int others_told(const struct trainer *t)
{
    int n = 0;

    for (int k = 0; k < RANK_BITS; k++)
        n += k != t->rank && rank_is(&t->told, k) && !rank_is(&t->gone, k);
    return n;
}

static bool others_wait(const struct trainer *t)
{
    uint64_t any = 0;

    for (int k = 0; k < RANK_BITS / 64; k++)
        any |= atomic_load_explicit(&t->waits.word[k], RELAXED);
    return any;
}

enum term_end others_end(struct trainer *t)
{
    uint64_t began_ns = clock_now_ns(), all_ns = 0;

    for (;;) {
        if (signals_heard() == SIGTERM)
            others_tell(t);
        uint64_t told_ns = atomic_load(&t->told_ns);
        enum term_end end =
            term_judge(t->term, told_ns > 0, members_now(t), others_told(t),
                       others_wait(t));
        uint64_t now = clock_now_ns(), since_ns = told_ns ? told_ns : began_ns;
        all_ns = end != TERM_END_SIGNAL ? 0 : all_ns ? all_ns : now;
        if (term_known(t->term, end, now - since_ns, now - all_ns))
            return end;
        if (told_ns)
            descant_tell(t->job);
        clock_sleep_until(now + LOOK_NS);
    }
}
