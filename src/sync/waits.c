/* SPDX-License-Identifier: MIT */
/* descant_waits: the waits of this trainer's calls and rounds, in words. The fabric has
 * the awaited trainers as relaxed figures in its head (fabric.h), which are read here
 * without a lock, so that descant_waits can be called at any time, also while a call that
 * waits holds the machine. A start that takes too long, and a round that holds up a
 * worker, are logged in the same words. */
#include "sync/waits.h"

#include "sync/job.h"

struct text {
    char *at;
    size_t room;
    int n;              /* the length that it would have with enough room */
};

static void add(struct text *text, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void add(struct text *text, const char *format, ...)
{
    size_t used = (size_t)text->n < text->room ? (size_t)text->n : text->room;
    va_list list;
    va_start(list, format);
    int n = vsnprintf(text->at ? text->at + used : NULL, text->room - used, format, list);
    va_end(list);
    text->n += n > 0 ? n : 0;
}

static bool is_hub(const struct fabric *f, int rank)
{
    return f->star && rank == f->size - 1;
}

/* "trainer 3", "trainers 1, 3 and 4", "trainers 1 (beta), 2 (gamma) and 7 more", "2
 * trainers", "the hub" */
static void add_names(struct text *text, const struct fabric *f, const struct awaited *a)
{
    int more = a->n - a->n_named;
    if (a->n_named == 0) {
        add(text, "%d trainer%s", a->n, a->n == 1 ? "" : "s");
        return;
    }
    if (a->n == 1 && is_hub(f, a->ranks[0])) {
        add(text, "the hub");
        return;
    }
    add(text, "trainer%s", a->n == 1 ? "" : "s");
    for (int i = 0; i < a->n_named; i++) {
        add(text, "%s%d", i == 0 ? " " : i + 1 < a->n_named || more > 0 ? ", " : " and ",
            a->ranks[i]);
        if (f->host_names)
            add(text, " (%s)",
                atomic_load_explicit(&f->host_names[a->ranks[i]], memory_order_acquire));
    }
    if (more > 0)
        add(text, " and %d more", more);
}

void waits_name(const struct fabric *f, int rank, char *room, size_t bytes)
{
    const struct awaited one = {.n = 1, .n_named = 1, .ranks = {rank}};
    struct text text = {room, bytes, 0};
    add_names(&text, f, &one);
}

void waits_agreement(struct descant *job, char *room, size_t bytes)
{
    const struct fabric_agree *type = job->fabric->type->agree;
    struct awaited a = {.n = 0};
    struct text text = {room, bytes, 0};
    if (type != NULL && job->fabric->type->serve == NULL) {
        type->missing(job->fabric, &a);
    } else if (type != NULL && pthread_mutex_trylock(&job->machine) == 0) {
        type->missing(job->fabric, &a);
        pthread_mutex_unlock(&job->machine);
    }
    if (a.n > 0)
        add_names(&text, job->fabric, &a);
    else
        add(&text, "the others");
}

int waits_text(const struct fabric *f, char *room, size_t bytes)
{
    static const char *const kinds[] = {"mean", "elastic", "state"};
    struct awaited a = fabric_hear(f);
    struct text text = {room, bytes, 0};
    if (bytes > 0)
        *room = '\0';
    if (a.wait == FABRIC_WAIT_NONE)
        return 0;
    if (f->hub)
        add(&text, "the hub waits ");
    else
        add(&text, "trainer %d waits ", f->rank);
    if (a.wait == FABRIC_WAIT_START)
        add(&text, "at its start");
    else if (a.wait == FABRIC_WAIT_FINISH)
        add(&text, "at its finish");
    else if (a.round == 0)
        add(&text, "in an %s exchange", kinds[EXCHANGE_ELASTIC]);
    else
        add(&text, "in round %u (%s)", a.round, kinds[a.kind]);
    add(&text, " for ");
    if (a.wait == FABRIC_WAIT_LINK)
        add(&text, "the link");
    else if (a.n > 0)
        add_names(&text, f, &a);
    else
        add(&text, "the others");
    return text.n;
}

uint64_t waits_due(const struct waits_told *told, uint64_t now_ns)
{
    uint64_t first = (told->since_ns ? told->since_ns : now_ns) + WAITS_FIRST_NS;
    return first > told->next_ns ? first : told->next_ns;
}

void waits_tell(struct waits_told *told, const struct fabric *f, uint64_t since_ns,
                uint64_t now_ns, const struct log *log)
{
    char who[512];
    enum fabric_wait wait = fabric_hear(f).wait;
    if (wait != FABRIC_WAIT_ROUND && wait != FABRIC_WAIT_CENTER) {
        if (told->said && f->status == DESCANT_OK)
            log_say(log, DESCANT_WARNING, "trainer %d goes on after %.0f s", f->rank,
                    (double)(now_ns - told->since_ns) * 1e-9);
        told->since_ns = 0;
        told->said = false;
        return;
    }
    if (told->since_ns == 0)
        told->since_ns = since_ns;
    if (now_ns < waits_due(told, now_ns) || waits_text(f, who, sizeof who) == 0)
        return;
    log_say(log, DESCANT_WARNING, "%s, %.0f s so far", who,
            (double)(now_ns - told->since_ns) * 1e-9);
    told->next_ns = now_ns + WAITS_AGAIN_NS;
    told->said = true;
}

/* Of the trainers that have come the first one logs it for all; a joiner logs its own
 * wait. */
static bool comes_first(const struct fabric *f)
{
    struct awaited a = fabric_hear(f);
    int below = 0;
    if (atomic_load_explicit(&f->members, memory_order_relaxed) > 0)
        return true;
    for (int i = 0; i < a.n_named; i++)
        below += a.ranks[i] < f->rank;
    return below == f->rank || a.n > a.n_named;
}

void waits_say_start(struct fabric *f, double seconds, const struct log *log)
{
    char who[512];
    f->type->wait(f, 1);        /* as below */
    if (comes_first(f) && waits_text(f, who, sizeof who) > 0)
        log_say(log, DESCANT_WARNING, "%s, at most %g s in all", who, seconds);
}

descant_status waits_timeout(struct fabric *f, double seconds, const struct log *log)
{
    char who[512];
    f->type->wait(f, 1);        /* with a bound that is past wait looks again, and names
                                   trainers */
    struct awaited a = fabric_hear(f);
    struct text text = {who, sizeof who, 0};
    if (a.wait == FABRIC_WAIT_START && f->size > 0 && a.n > 0) {
        add_names(&text, f, &a);
        return log_fail(log, DESCANT_TIMEOUT, "%s of %d did not come in %g s", who,
                        f->size, seconds);
    }
    if (waits_text(f, who, sizeof who) == 0)
        add(&text, "trainer %d has met the others too late", f->rank);
    return log_fail(log, DESCANT_TIMEOUT, "the start took more than %g s: %s", seconds,
                    who);
}

size_t descant_waits(struct descant *job, char *room, size_t bytes)
{
    static const char *const states[] = {[ROUND_IDLE] = "idle",
                                         [ROUND_SNAPSHOT] = "taking its snapshot",
                                         [ROUND_EXCHANGING] = "exchanging",
                                         [ROUND_STEPPING] = "stepping",
                                         [ROUND_MERGING] = "merging"};
    if (job == NULL || *job->parent == 0)
        return 0;
    /* the caller may hold the machine for long */
    const char *state = "in the hands of a waiting caller";
    bool rows = false;
    if (pthread_mutex_trylock(&job->machine) == 0) {
        state = states[job->round.state];
        rows = job->tables.state == TABLES_EXCHANGING;
        pthread_mutex_unlock(&job->machine);
    }
    struct text text = {room, bytes, 0};
    char fabric[512];
    pthread_mutex_lock(&job->workers.lock);
    add(&text, "trainer %d of %d: round %s; %d of %d workers parked\n", job->fabric->rank,
        atomic_load(&job->fabric->members), state, job->workers.parked,
        job->workers.registered);
    pthread_mutex_unlock(&job->workers.lock);
    if (waits_text(job->fabric, fabric, sizeof fabric) > 0)
        add(&text, "%s\n", fabric);
    if (atomic_load(&job->agreeing)) {
        waits_agreement(job, fabric, sizeof fabric);
        add(&text, "trainer %d waits for %s to agree\n", job->fabric->rank, fabric);
    }
    if (rows)
        add(&text, "trainer %d waits for rows of tables from other machines\n",
            job->fabric->rank);
    return (size_t)text.n;
}
