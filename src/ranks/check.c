/* SPDX-License-Identifier: MIT */
/* One table says for each kind of word which ranks may say it, what follows it, and which
 * of its numbers are used; one list has the bounds of each number. All other rules of a
 * word are functions of their own below. The file is pure: a test goes through all kinds,
 * numbers and lengths.
 *
 * 1. The length is tested before anything but the head, and must be exact.
 * 2. A number that a kind of word does not use is not read, here or by the rank that
 *    hears the word.
 * 3. No list has more entries than there are ranks, no rank is in it twice, and none is
 *    outside the job: so a list fits where there is room for one entry of each rank. */
#include "ranks/check.h"

#include "ranks/leases.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>

#define SHARES_ERR 1e-6     /* of the sum of a mean's shares, which is 1 */

struct check {
    const struct word_facts *facts;
    int from;
    const struct ranks_word *word;
    size_t tail;                    /* bytes that follow it */
    char *why;
};

static bool refuse(const struct check *c, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static bool refuse(const struct check *c, const char *format, ...)
{
    va_list list;

    va_start(list, format);
    vsnprintf(c->why, CHECK_WHY, format, list);
    va_end(list);
    return false;
}

/* --- numbers --- */

/* name, field, least, most */
#define NUMBERS(X)                                                        \
    X(KIND, kind, 0, EXCHANGE_STATE)                                      \
    X(FINAL, final, 0, 1)                                                 \
    X(BAD, bad, 0, 1)                                                     \
    X(ENCODED, encoded, 0, f->encodes)                                    \
    X(SOURCE, source, -1, f->place->size - 1)                              \
    X(GONE, source, 0, f->place->size - 1)                                 \
    X(MEMBERS, members, 0, f->place->size)                                 \
    X(STATUS, status, 1, DESCANT_ENDED)                                   \
    X(THREADS, threads, 0, CHECK_THREADS)                                 \
    X(HOST, host, 0, f->place->size - 1)                                   \
    X(LOCAL_RANK, local_rank, 0, f->place->most_local - 1)                 \
    X(FLOATS, n, 0, f->room)                                              \
    X(PART, n, 0, f->part)                                                \
    X(MANIFEST, manifest_bytes, 1, f->manifest)

enum {
#define X(name, field, least, most) NUMBER_##name,
    NUMBERS(X)
#undef X
#define X(name, field, least, most) name = 1 << NUMBER_##name,
    NUMBERS(X)
#undef X
};

/* --- rules beyond numbers --- */

static bool hello(const struct check *c)
{
    const struct word_facts *f = c->facts;
    const struct ranks_word *word = c->word;
    bool own = word->host == f->place->host;

    if (f->place_taken || word->host > c->from ||
        (word->host == c->from) != (word->local_rank == 0) ||
        (own && word->local_rank >= f->place->local_size))
        return refuse(c, "local rank %d of host %d", word->local_rank, word->host);
    return true;
}

/* Ascending. */
static bool entries_are_good(const struct check *c)
{
    const struct ranks_entry *entries = (const struct ranks_entry *)(c->word + 1);
    int last = -1;

    for (uint32_t i = 0; i < c->word->seats; i++) {
        if (entries[i].rank <= last || entries[i].rank >= c->facts->place->size)
            return refuse(c, "member %d after member %d", entries[i].rank, last);
        last = entries[i].rank;
    }
    return true;
}

/* Where the link is fixed epoch 1 is the only one, and each rank is there once. TAKE
 * names a donor. */
static bool suits_the_link(const struct check *c)
{
    const struct ranks_ledger *w = &c->word->ledger;
    bool about = w->about == -1 || c->word->what == WORD_TAKE;

    return !c->facts->place->fixed ||
           (w->generation == 1 && w->epoch == 1 && !w->ballot && !w->accepted &&
            !w->leaves && about && !c->word->seats) ||
           refuse(c, "generation %" PRIu64 " in epoch %" PRIu64 " of a job whose ranks "
                  "are the same from start to end", w->generation, w->epoch);
}

/* A HERE has the numbers of an exchange only where the rank has arrived. */
static bool here(const struct check *c)
{
    if (!suits_the_link(c))
        return false;
    if (!c->word->ledger.arrival)
        return entries_are_good(c);
    if (c->word->seats)
        return refuse(c, "an arrival with a list of %u", c->word->seats);
    if (!(c->word->weight >= 0 && isfinite(c->word->weight)))
        return refuse(c, "weight %g", c->word->weight);
    if (c->word->kind == EXCHANGE_ELASTIC && (!c->facts->center || c->word->final))
        return refuse(c, "an elastic exchange, final %u", c->word->final);
    return true;
}

static bool take(const struct check *c)
{
    int lead = c->facts->coordinator;

    if (c->facts->place->fixed && c->from != lead)
        return refuse(c, "rank %d alone says it", lead);
    return suits_the_link(c) && entries_are_good(c);
}

/* All ranks of a run are on one host, or each is alone on its host: the last one has the
 * highest host. */
static bool run_is_good(const struct check *c, const struct ranks_run *run)
{
    const struct word_facts *f = c->facts;
    const struct ranks_seat *seat = &run->first;
    int size = f->place->size, n = (int)run->n;

    if (seat->rank < 0 || seat->rank >= size)
        return refuse(c, "a seat of rank %d", seat->rank);
    if (run->n < 1 || run->n > (uint32_t)(size - seat->rank) || run->apart > 1 ||
        (run->apart ? seat->local_rank != 0 || seat->host > size - n
                    : seat->local_rank > size - n))
        return refuse(c, "%u seats from that of rank %d on, of host %d from place %d on",
                      run->n, seat->rank, seat->host, seat->local_rank);
    if (seat->bad > 1 || !seat->seq != !seat->arrival || seat->threads > INT_MAX ||
        seat->host < 0 ||
        seat->host >= size || seat->local_rank < 0 ||
        !(seat->share >= 0 && seat->share <= 1))
        return refuse(
            c,
            "the seat of rank %d: bad %u, %u threads, host %d, local rank %d, share %g",
            seat->rank, seat->bad, seat->threads, seat->host, seat->local_rank,
            seat->share);
    return true;
}

/* The ranks of this host are at places that the host has, ascending. */
static bool places_are_good(const struct check *c, const struct ranks_run *run,
                            int *last_here)
{
    const struct link_place *place = c->facts->place;
    int i = place->host - run->first.host, first = run->first.local_rank;

    if (i < 0 || i >= (run->apart ? (int)run->n : 1))
        return true;
    int last = run->apart ? 0 : first + (int)run->n - 1;
    if (last >= place->local_size)
        return refuse(c, "the seat of rank %d at place %d of host %d",
                      run->first.rank + (run->apart ? i : (int)run->n - 1), last,
                      place->host);
    if (first <= *last_here)
        return refuse(c, "the seat of rank %d after that of place %d", run->first.rank,
                      *last_here);
    *last_here = last;
    return true;
}

/* Ascending, also on this host; this rank is among them. */
static bool seats_are_good(const struct check *c, const struct ranks_run **own)
{
    const struct word_facts *f = c->facts;
    const struct ranks_run *runs = ranks_runs(c->word);
    int last = -1, last_here = -1;

    *own = NULL;
    for (uint32_t i = 0; i < c->word->seats; i++) {
        const struct ranks_run *run = &runs[i];
        if (!run_is_good(c, run))
            return false;
        if (run->first.rank <= last)
            return refuse(c, "the seat of rank %d after that of rank %d", run->first.rank,
                          last);
        if (!places_are_good(c, run, &last_here))
            return false;
        last = run->first.rank + (int)run->n - 1;
        *own = f->rank >= run->first.rank && f->rank <= last ? run : *own;
    }
    if (!*own)
        return !f->place->fixed || f->quorum || refuse(c, "no seat of rank %d", f->rank);
    const uint32_t nth = (uint32_t)(f->rank - (*own)->first.rank);
    const struct ranks_seat seat = ranks_run_seat(*own, nth);
    return (seat.host == f->place->host && seat.local_rank == f->place->local_rank) ||
           refuse(c, "a seat of rank %d at place %d of host %d", f->rank, seat.local_rank,
                  seat.host);
}

static bool sums_to_one(const struct check *c)
{
    const struct ranks_run *runs = ranks_runs(c->word);
    double sum = 0;

    for (uint32_t i = 0; i < c->word->seats; i++)
        sum += runs[i].n * runs[i].first.share;
    sum += c->word->weight;
    return fabs(sum - 1) <= SHARES_ERR || refuse(c, "shares that make %g", sum);
}

static bool mean_is_good(const struct check *c)
{
    const struct ranks_word *word = c->word;

    if (word->source > 0)
        return refuse(c, "source %d of a mean", word->source);
    if (word->encoded && (word->final || word->source < 0 || word->n > c->facts->n))
        return refuse(c, "an encoded mean of %" PRIu64 " floats, final %u, source %d",
                      word->n, word->final, word->source);
    if (!(word->weight >= 0) ||
        (word->weight > 0 && (!c->facts->carries || word->n > c->facts->n)))
        return refuse(c, "a share %g of absent ranks", word->weight);
    return word->source < 0 || sums_to_one(c);
}

static bool state_is_good(const struct check *c)
{
    const struct ranks_word *word = c->word;

    if (word->n != c->facts->n || word->encoded)
        return refuse(c, "a state of %" PRIu64 " floats, encoded %u", word->n,
                      word->encoded);
    return ranks_run_of(ranks_runs(word), word->seats, word->source) ||
           refuse(c, "source %d of a state", word->source);
}

/* A round of this rank's own exchange must be as this rank has asked. Where ranks come
 * and go, or under a quorum, the vectors of a hollow rank may become the state, whatever
 * it has asked for. */
static bool fits_exchange(const struct check *c, uint32_t own_seq)
{
    const struct exchange *x = c->facts->arrived;
    const struct ranks_word *word = c->word;
    bool source = word->source == c->facts->rank;

    if ((int32_t)(c->facts->seq - own_seq) < 0)
        return refuse(c, "exchange %u of this rank, which is to come", own_seq);
    if (!x || own_seq != c->facts->seq ||
        (word->kind == EXCHANGE_STATE
             ? !source || x->kind == EXCHANGE_STATE || !c->facts->place->fixed ||
                   c->facts->quorum
             : x->kind == EXCHANGE_MEAN && x->n == word->n))
        return true;
    return refuse(
        c, "kind %u of %" PRIu64 " floats, where this rank has asked for kind %d of %zu",
        word->kind, word->n, (int)x->kind, x->n);
}

static bool go(const struct check *c)
{
    const struct ranks_word *word = c->word;
    const struct ranks_run *own;

    if (word->kind == EXCHANGE_ELASTIC)
        return refuse(c, "kind %u", word->kind);
    if (c->facts->place->fixed && (int32_t)(word->round - c->facts->round) <= 0)
        return refuse(c, "round %u after round %u", word->round, c->facts->round);
    return seats_are_good(c, &own) &&
           (word->kind == EXCHANGE_STATE ? state_is_good(c) : mean_is_good(c)) &&
           (!own || fits_exchange(c, own->first.seq));
}

static bool goes_alone(const struct check *c)
{
    const struct exchange *x = c->facts->arrived;

    if (x && c->word->seq == c->facts->seq && x->kind != EXCHANGE_ELASTIC)
        return refuse(c, "arrival %u, which is of kind %d", c->word->seq, (int)x->kind);
    return true;
}

static bool late(const struct check *c)
{
    struct awaited awaited;
    int last = -1;

    memcpy(&awaited, c->word + 1, sizeof awaited);
    if ((unsigned)awaited.wait > FABRIC_WAIT_LINK ||
        (unsigned)awaited.kind > EXCHANGE_STATE || awaited.n < 0 ||
        awaited.n > c->facts->place->size || awaited.n_named < 0 ||
        awaited.n_named > awaited.n || awaited.n_named > FABRIC_NAMED)
        return refuse(c, "wait %d, kind %d, for %d ranks, %d by name", (int)awaited.wait,
                      (int)awaited.kind, awaited.n, awaited.n_named);
    for (int i = 0; i < awaited.n_named; i++) {
        if (awaited.ranks[i] <= last || awaited.ranks[i] >= c->facts->place->size)
            return refuse(c, "rank %d after rank %d", awaited.ranks[i], last);
        last = awaited.ranks[i];
    }
    return true;
}

static bool fail(const struct check *c)
{
    const char *text = (const char *)(c->word + 1);

    return text[c->tail - 1] == 0 ||
           refuse(c, "a text of %zu bytes without an end", c->tail);
}

/* Where ranks come and go: no sum of two numbers overflows. */
static bool rows_are_good(const struct check *c)
{
    const struct ranks_ledger *w = &c->word->ledger;
    const uint64_t most = UINT64_C(1) << 39, epochs = UINT64_C(1) << 24;

    if (c->facts->place->fixed ||
        (w->version.epoch < epochs && w->version.number < most &&
         w->base.epoch < epochs && w->base.number < most && w->arrival < most &&
         c->word->n <= c->facts->part))
        return true;
    return refuse(c, "rows of %" PRIu64 ".%" PRIu64 " and %" PRIu64 ".%" PRIu64,
                  w->version.epoch, w->version.number, w->base.epoch, w->base.number);
}

/* The numbers of agreements, and the epoch of a result, grow by 1: none of them
 * overflows. A HAVE has no value where it only names it. */
static bool agree_value_is_good(const struct check *c)
{
    const struct ranks_word *w = c->word;
    const struct agree_value value = {.kind = w->kind, .status = w->status,
                                      .from = w->source, .n = (uint32_t)w->n};
    bool none = w->what == WORD_AGREE_HAVE && !w->kind && !w->n;
    bool result = w->what != WORD_AGREE;
    const char *text = (const char *)(w + 1);

    if (w->agree >= UINT64_C(1) << 40 || w->refers >= UINT64_C(1) << 24 ||
        (w->what == WORD_AGREE && !w->seq) || (w->what == WORD_AGREED && !w->agree))
        return refuse(c, "agreement %" PRIu64 " of epoch %" PRIu64 ", offer %u", w->agree,
                      w->refers, w->seq);
    if (!none && (!agree_is_good(&value, result) ||
                  (w->status && text[c->tail - 1] != 0)))
        return refuse(c, "a value of kind %u, status %u, %" PRIu64 " bytes, from rank %d",
                      w->kind, w->status, w->n, w->source);
    return true;
}

static bool bulletin(const struct check *c)
{
    struct bulletin b;

    memcpy(&b, c->word + 1, sizeof b);
    if (c->word->refers > (uint64_t)c->facts->place->size)
        return refuse(c, "figures of rank %" PRIu64, c->word->refers - 1);
    return bulletin_is_good(&b) ||
           refuse(c, "figures of %" PRIu64 " steps, %" PRIu64 " rounds, %" PRIu64
                  " values, with a gap of %g", b.steps, b.rounds, b.n_values, b.gap);
}

/* Of the tail, by its own numbers; where these are wrong, of its head alone. */
static size_t items_bytes(const struct check *c)
{
    struct ranks_items head = {0};
    size_t n = 0;

    if (c->tail >= sizeof head)
        memcpy(&head, c->word + 1, sizeof head);
    for (int k = 0; k < 3; k++)
        n += head.n[k] <= LEASES_RUNS ? head.n[k] : 0;
    return sizeof head + n * sizeof(struct run);
}

static bool items(const struct check *c)
{
    const char *at = (const char *)(c->word + 1);
    struct ranks_items head;
    struct run run;

    memcpy(&head, at, sizeof head);
    if (head.feeder_rank < -1 || head.feeder_rank >= c->facts->place->size ||
        (head.feeder_rank < 0 && head.feeder))
        return refuse(c, "bytes of items of rank %d", head.feeder_rank);
    if (head.flags > 31 || head.n[0] > LEASES_RUNS || head.n[1] > LEASES_RUNS ||
        head.n[2] > LEASES_RUNS)
        return refuse(c, "lists of %u, %u and %u, flags %u", head.n[0], head.n[1],
                      head.n[2], head.flags);
    const char *end = at + c->tail;
    for (at += sizeof head; at < end; at += sizeof run) {
        memcpy(&run, at, sizeof run);
        if (run.from >= run.to)
            return refuse(c, "items from %" PRIu64 " to %" PRIu64, run.from, run.to);
    }
    return true;
}

static bool rows_go(const struct check *c)
{
    const struct rows_seat *seats = (const struct rows_seat *)(const void *)(c->word + 1);
    bool own = false;
    int last = -1;

    for (uint32_t i = 0; i < c->word->seats; i++) {
        if (seats[i].rank <= last || seats[i].rank >= c->facts->place->size ||
            seats[i].bytes > c->facts->part)
            return refuse(c,
                          "a part of rank %d of %" PRIu64 " bytes, after that of rank %d",
                          seats[i].rank, seats[i].bytes, last);
        last = seats[i].rank;
        own |= last == c->facts->rank && seats[i].bytes == c->facts->own_part;
    }
    if (!c->facts->place->fixed)        /* the word may be late */
        return rows_are_good(c);
    return own || refuse(c, "no part of %" PRIu64 " bytes of rank %d", c->facts->own_part,
                         c->facts->rank);
}

/* --- kinds --- */

enum word_tail { TAIL_NONE, TAIL_ENTRIES, TAIL_SEATS, TAIL_PARTS, TAIL_LATE, TAIL_TEXT,
                 TAIL_VALUE, TAIL_BULLETIN, TAIL_ITEMS };

enum says { TO_LEAD, BY_LEAD, ANY };

static const struct rule {
    const char *name;
    enum says says;             /* where the link is not fixed TO_LEAD is ANY, for ranks
                                   may differ about the coordinator */
    unsigned numbers;
    enum word_tail tail;
    bool (*more)(const struct check *c);
} rules[] = {
    [WORD_HELLO] = {"HELLO", TO_LEAD, THREADS | HOST | LOCAL_RANK | MANIFEST, TAIL_NONE,
                    hello},
    [WORD_HERE] = {"HERE", TO_LEAD, KIND | FINAL | BAD, TAIL_ENTRIES, here},
    [WORD_LEAVE] = {"LEAVE", TO_LEAD, 0, TAIL_NONE, NULL},
    [WORD_CALL] = {"CALL", BY_LEAD, 0, TAIL_NONE, NULL},
    [WORD_GO] = {"GO", BY_LEAD, KIND | FINAL | ENCODED | SOURCE | MEMBERS | FLOATS,
                 TAIL_SEATS, go},
    [WORD_VOID] = {"VOID", BY_LEAD, 0, TAIL_NONE, goes_alone},
    [WORD_MEMBERS] = {"MEMBERS", BY_LEAD, FINAL | BAD | GONE | MEMBERS, TAIL_NONE, NULL},
    [WORD_LATE] = {"LATE", BY_LEAD, 0, TAIL_LATE, late},
    [WORD_FAIL] = {"FAIL", BY_LEAD, STATUS, TAIL_TEXT, fail},
    [WORD_BYE] = {"BYE", BY_LEAD, 0, TAIL_NONE, NULL},
    [WORD_ROWS] = {"ROWS", TO_LEAD, PART, TAIL_NONE, rows_are_good},
    [WORD_ROWS_CALL] = {"ROWS_CALL", BY_LEAD, 0, TAIL_NONE, rows_are_good},
    [WORD_ROWS_GO] = {"ROWS_GO", BY_LEAD, 0, TAIL_PARTS, rows_go},
    [WORD_ROWS_HAVE] = {"ROWS_HAVE", TO_LEAD, BAD, TAIL_NONE, rows_are_good},
    [WORD_ROWS_TAKE] = {"ROWS_TAKE", BY_LEAD, BAD, TAIL_NONE, rows_are_good},
    [WORD_ROWS_NONE] = {"ROWS_NONE", TO_LEAD, 0, TAIL_NONE, rows_are_good},
    [WORD_ROWS_LACK] = {"ROWS_LACK", BY_LEAD, GONE, TAIL_NONE, rows_are_good},
    [WORD_LEAD] = {"LEAD", BY_LEAD, 0, TAIL_NONE, NULL},
    [WORD_FENCE] = {"FENCE", ANY, 0, TAIL_ENTRIES, entries_are_good},
    [WORD_PROPOSE] = {"PROPOSE", ANY, 0, TAIL_ENTRIES, entries_are_good},
    [WORD_STANDS] = {"STANDS", ANY, 0, TAIL_ENTRIES, entries_are_good},
    [WORD_TAKE] = {"TAKE", ANY, 0, TAIL_ENTRIES, take},
    [WORD_FORM] = {"FORM", BY_LEAD, 0, TAIL_ENTRIES, entries_are_good},
    [WORD_ALIVE] = {"ALIVE", ANY, FINAL, TAIL_NONE, NULL},
    [WORD_AGREE] = {"AGREE", TO_LEAD, 0, TAIL_VALUE, agree_value_is_good},
    [WORD_AGREE_HAVE] = {"AGREE_HAVE", ANY, 0, TAIL_VALUE, agree_value_is_good},
    [WORD_AGREED] = {"AGREED", BY_LEAD, FINAL, TAIL_VALUE, agree_value_is_good},
    [WORD_BULLETIN] = {"BULLETIN", ANY, 0, TAIL_BULLETIN, bulletin},
    [WORD_ITEMS] = {"ITEMS", TO_LEAD, 0, TAIL_ITEMS, items},
    [WORD_DEAL] = {"DEAL", BY_LEAD, 0, TAIL_ITEMS, items},
};

_Static_assert(sizeof rules / sizeof *rules == N_WORDS, "a rule for each word");

static bool tail_is_good(const struct check *c, enum word_tail tail)
{
    const struct link_place *place = c->facts->place;
    uint64_t seats = c->word->seats, least = 0;

    switch (tail) {
    case TAIL_NONE:
        break;
    case TAIL_ENTRIES:
        if (seats > (uint64_t)place->size)
            return refuse(c, "a list of %" PRIu64, seats);
        least = seats * sizeof(struct ranks_entry);
        break;
    case TAIL_SEATS:
    case TAIL_PARTS:
        if (seats < 1 ||
            seats > (uint64_t)(tail == TAIL_SEATS ? place->size : place->hosts))
            return refuse(c, "seats %" PRIu64, seats);
        least = seats * (tail == TAIL_SEATS ? sizeof(struct ranks_run)
                                            : sizeof(struct rows_seat));
        break;
    case TAIL_LATE:
        least = sizeof(struct awaited);
        break;
    case TAIL_VALUE:
        if (c->word->n > AGREE_BYTES)
            return refuse(c, "a value of %" PRIu64 " bytes", c->word->n);
        least = c->word->n;
        break;
    case TAIL_BULLETIN:
        least = sizeof(struct bulletin);
        break;
    case TAIL_ITEMS:
        least = items_bytes(c);
        break;
    case TAIL_TEXT:
        least = c->tail < 1 ? 1 : c->tail > RANKS_TEXT ? RANKS_TEXT : c->tail;
    }
    return c->tail == least ||
           refuse(c, "%zu bytes, where %zu belong", sizeof *c->word + c->tail,
                  sizeof *c->word + (size_t)least);
}

static bool numbers_are_good(const struct check *c, unsigned numbers)
{
    const struct word_facts *f = c->facts;
    const struct ranks_word *w = c->word;

#define X(name, field, least, most) /* a number that is below the least wraps */         \
    if (numbers & name &&                                                                \
        (uint64_t)w->field - (uint64_t)(least) > (uint64_t)(most) - (uint64_t)(least))   \
        return refuse(c, #field " %" PRId64, (int64_t)w->field);
    NUMBERS(X)
#undef X
    return true;
}

static bool may_say(const struct check *c, const struct rule *rule)
{
    int lead = c->facts->coordinator;

    if (rule->says == TO_LEAD && c->facts->rank != lead && c->facts->place->fixed)
        return refuse(c, "it is for rank %d alone", lead);
    if (rule->says == BY_LEAD && c->from != lead)
        return refuse(c, "rank %d alone says it", lead);
    return c->facts->turns >> c->word->what & 1 || refuse(c, "out of turn");
}

bool word_is_good(const struct word_facts *facts, int from, const struct ranks_word *word,
                  size_t bytes, char why[CHECK_WHY])
{
    struct check c = {.facts = facts, .from = from, .word = word, .why = why};
    char more[CHECK_WHY];

    if (bytes < sizeof *word)
        return refuse(&c, "a word of %zu bytes", bytes);
    c.tail = bytes - sizeof *word;
    if (word->what >= N_WORDS)
        return refuse(&c, "a word of kind %u", word->what);
    const struct rule *rule = &rules[word->what];
    c.why = more;
    if (may_say(&c, rule) && tail_is_good(&c, rule->tail) &&
        numbers_are_good(&c, rule->numbers) && (!rule->more || rule->more(&c)))
        return true;
    c.why = why;
    return refuse(&c, "%s: %s", rule->name, more);
}
