/* SPDX-License-Identifier: MIT */
/* Which words may be acted upon: every kind, from every sender, of every length, with
 * every number at and beyond its bounds. The bounds are written here once more. */
#include "harness/suite.h"
#include "ranks/check.h"
#include "ranks/leases.h"

#include <check.h>
#include <math.h>
#include <string.h>

enum { SIZE = 4, HOSTS = 3, SELF = 1, FLOATS = 100, ROOM = 150, PART = 64, OWN_PART = 10,
       MANIFEST = 50, SEQ = 5, ROUND = 9,
       TAIL_ROOM = RANKS_TEXT + 8 /* bytes; seats have fewer */ };

/* Ranks 1 and 2 are on one host. */
static struct link_place place = {.rank = SELF,
                                        .size = SIZE,
                                        .fixed = true,
                                        .host = 1,
                                        .local_size = 2,
                                        .hosts = HOSTS,
                                        .most_local = 2};
static struct exchange asked;

static struct checked_letter {
    struct ranks_word word;
    _Alignas(8) unsigned char tail[TAIL_ROOM];
} letter;
static size_t bytes;

static bool to_lead(uint32_t what)
{
    return what == WORD_HELLO || what == WORD_HERE ||
           what == WORD_LEAVE || what == WORD_ROWS || what == WORD_ROWS_HAVE ||
           what == WORD_ROWS_NONE || what == WORD_AGREE || what == WORD_ITEMS;
}

static struct word_facts facts_for(uint32_t what)
{
    return (struct word_facts){.rank = to_lead(what) ? 0 : SELF,
                               .place = &place,
                               .turns = 1U << what,
                               .encodes = true, .center = true,
                               .n = FLOATS,
                               .room = ROOM,
                               .part = PART,
                               .own_part = OWN_PART,
                               .manifest = MANIFEST,
                               .round = ROUND,
                               .seq = SEQ,
                               .arrived = &asked};
}

/* Where ranks come and go. */
static bool by_any(uint32_t what)
{
    return what == WORD_FENCE || what == WORD_PROPOSE || what == WORD_STANDS ||
           what == WORD_ALIVE ||
           what == WORD_AGREE_HAVE || what == WORD_BULLETIN;
}

/* Three lists, of 2, 0 and 1 runs. */
static struct ranks_items *items_head(void)
{
    return (struct ranks_items *)(void *)letter.tail;
}

static void fill_items(void)
{
    static const struct run runs[3] = {{5, 7}, {0, 1}, {0, UINT64_MAX}};

    *items_head() = (struct ranks_items){.serial = 1, .n = {2, 0, 1}, .flags = 3};
    memcpy(items_head() + 1, runs, sizeof runs);
    bytes += sizeof *items_head() + sizeof runs;
}

static bool good(uint32_t what)
{
    const struct word_facts facts = facts_for(what);
    char why[CHECK_WHY] = "";
    bool is_good = word_is_good(&facts, to_lead(what) ? 2 : 0, &letter.word, bytes, why);

    ck_assert(is_good || *why);
    return is_good;
}

/* As they are in a GO whose seats differ: in runs of one. */
static struct ranks_run *run(int i)
{
    return (struct ranks_run *)(void *)letter.tail + i;
}

static struct ranks_seat *seat(int i)
{
    return &run(i)->first;
}

static struct rows_seat *parts(void)
{
    return (struct rows_seat *)(void *)letter.tail;
}

/* Of three ranks, this one and its mate among them. */
static void fill_go(enum exchange_kind kind)
{
    static const int hosts[] = {1, 1, 3}, local[] = {0, 1, 0};

    letter.word.kind = kind;
    letter.word.n = asked.n;
    letter.word.round = ROUND + 1;
    letter.word.members = letter.word.seats = 3;
    letter.word.source = kind == EXCHANGE_STATE ? 3 : 0;
    for (int i = 0; i < 3; i++)
        *run(i) = (struct ranks_run){
            .first = {.rank = i + 1,
                      .seq = SEQ,
                      .arrival = 1,
                      .threads = 2,
                      .host = hosts[i],
                      .local_rank = local[i],
                      .share = kind == EXCHANGE_MEAN ? (i + 1) / 6.0 : 0},
            .n = 1};
    bytes = sizeof(struct ranks_word) + 3 * sizeof(struct ranks_run);
}

/* A word of that kind with which nothing is wrong. */
static void fill(uint32_t what)
{
    struct awaited awaited = {
        .wait = FABRIC_WAIT_ROUND, .n = 3, .n_named = 2, .ranks = {0, 3}};

    memset(&letter, 0, sizeof letter);
    asked = (struct exchange){.kind = EXCHANGE_MEAN, .n = FLOATS};
    letter.word.what = what;
    letter.word.protocol = RANKS_PROTOCOL;
    bytes = sizeof(struct ranks_word);
    switch ((enum ranks_what)what) {
    case WORD_HELLO:
        letter.word.threads = 3;
        letter.word.host = letter.word.local_rank = 1;
        letter.word.manifest_bytes = MANIFEST;
        break;
    case WORD_HERE:
        letter.word.ledger = (struct ranks_ledger){
            .generation = 1, .epoch = 1, .arrival = 1, .about = -1};
        break;
    case WORD_TAKE:
        letter.word.ledger = (struct ranks_ledger){.generation = 1, .epoch = 1, .about = 2};
        break;
    case WORD_GO:
        fill_go(EXCHANGE_MEAN);
        break;
    case WORD_LATE:
        memcpy(letter.tail, &awaited, sizeof awaited);
        bytes += sizeof awaited;
        break;
    case WORD_FAIL:
        letter.word.status = DESCANT_MISMATCH;
        memcpy(letter.tail, "why", 4);
        bytes += 4;
        break;
    case WORD_ROWS_GO:
        letter.word.seats = 2;
        parts()[0] = (struct rows_seat){.rank = 1, .bytes = OWN_PART};
        parts()[1] = (struct rows_seat){.rank = 3, .bytes = PART};
        bytes += 2 * sizeof(struct rows_seat);
        break;
    case WORD_AGREE:
    case WORD_AGREE_HAVE:
    case WORD_AGREED:
        letter.word.seq = 1;
        letter.word.agree = letter.word.refers = 3;
        letter.word.kind = AGREE_BROADCAST;
        letter.word.n = 16;
        bytes += 16;
        break;
    case WORD_BULLETIN:
        bytes += sizeof(struct bulletin);
        break;
    case WORD_ITEMS:
    case WORD_DEAL:
        fill_items();
        break;
    default:
        break;
    }
}

START_TEST(a_word_with_which_nothing_is_wrong_is_good)
{
    fill((uint32_t)_i);
    ck_assert(good((uint32_t)_i));
}
END_TEST

START_TEST(only_the_right_rank_says_it_and_hears_it_in_its_turn)
{
    uint32_t what = (uint32_t)_i;
    char why[CHECK_WHY];

    fill(what);
    struct word_facts facts = facts_for(what);
    for (int from = 1; from < SIZE && !to_lead(what) && !by_any(what); from++)
        ck_assert(!word_is_good(&facts, from, &letter.word, bytes, why));
    facts.turns = ~facts.turns;
    ck_assert(!word_is_good(&facts, to_lead(what) ? 2 : 0, &letter.word, bytes, why));
    facts.turns = ~facts.turns;
    facts.rank = 3;
    if (to_lead(what))
        ck_assert(!word_is_good(&facts, 2, &letter.word, bytes, why));
}
END_TEST

/* FAIL has a text of any length, whose end is its last byte. */
START_TEST(its_length_is_exact)
{
    uint32_t what = (uint32_t)_i;
    size_t right;

    fill(what);
    right = bytes;
    for (bytes = 0; bytes <= sizeof letter; bytes++) {
        bool text = what == WORD_FAIL && bytes > sizeof letter.word &&
                    !letter.tail[bytes - 1 - sizeof letter.word];
        ck_assert_msg(good(what) == (bytes == right ||
                                     (text && bytes <= sizeof letter.word + RANKS_TEXT)),
                      "kind %u of %zu bytes", what, bytes);
    }
    bytes = LINK_TOO_LONG;
    ck_assert(!good(what));
}
END_TEST

START_TEST(lists_of_items_have_runs)
{
    uint32_t what = _i ? WORD_DEAL : WORD_ITEMS;
    struct run *runs = (struct run *)(void *)(items_head() + 1);

    fill(what);
    runs[1] = (struct run){9, 9};
    ck_assert(!good(what));
    fill(what);
    runs[2] = (struct run){9, 8};
    ck_assert(!good(what));
    fill(what);
    items_head()->flags = 31;
    ck_assert(good(what));
    items_head()->flags = 32;
    ck_assert(!good(what));
    fill(what);
    items_head()->feeder_rank = -1;
    items_head()->feeder = 0;
    ck_assert(good(what));
    items_head()->feeder = 1;
    ck_assert(!good(what));
    items_head()->feeder_rank = 1;
    ck_assert(good(what));
    items_head()->feeder_rank = -2;
    ck_assert(!good(what));
    items_head()->feeder_rank = place.size;
    ck_assert(!good(what));
    for (int k = 0; k < 3; k++) {
        fill(what);
        items_head()->n[k]++;
        ck_assert(!good(what));
        items_head()->n[k] = UINT32_MAX;
        ck_assert(!good(what));
        items_head()->n[k] = LEASES_RUNS + 1;
        bytes = sizeof letter.word + sizeof *items_head();
        ck_assert(!good(what));
    }
}
END_TEST

START_TEST(other_kinds_are_refused)
{
    static const uint32_t kinds[] = {N_WORDS, N_WORDS + 1, 31, 32, 1000, UINT32_MAX};
    char why[CHECK_WHY];

    fill(WORD_HERE);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        for (int rank = 0; rank < 2; rank++) {
            struct word_facts facts = facts_for(WORD_HERE);
            facts.rank = rank;
            facts.turns = UINT32_MAX;
            letter.word.what = kinds[i];
            ck_assert(!word_is_good(&facts, 0, &letter.word, bytes, why));
        }
}
END_TEST

/* --- numbers --- */

#define U32(what, field, least, most)                                                    \
    {                                                                                    \
        WORD_##what, #field, offsetof(struct ranks_word, field), 4, least, most          \
    }
#define U64(what, field, least, most)                                                    \
    {                                                                                    \
        WORD_##what, #field, offsetof(struct ranks_word, field), 8, least, most          \
    }
#define SEAT(field, least, most)                                                         \
    {                                                                                    \
        WORD_GO, "seat " #field,                                                         \
            sizeof(struct ranks_word) + sizeof(struct ranks_run) +                       \
                offsetof(struct ranks_run, first.field),                                 \
            sizeof(((struct ranks_run *)0)->first.field), least, most                    \
    }
#define RUN(field, least, most)                                                          \
    {                                                                                    \
        WORD_GO, "run " #field,                                                          \
            sizeof(struct ranks_word) + sizeof(struct ranks_run) +                       \
                offsetof(struct ranks_run, field),                                       \
            sizeof(((struct ranks_run *)0)->field), least, most                          \
    }
#define LATE(field, least, most)                                                         \
    {                                                                                    \
        WORD_LATE, "late " #field,                                                       \
            sizeof(struct ranks_word) + offsetof(struct awaited, field), 4, least, most  \
    }
#define ROWS(k, field, least, most)                                                      \
    {                                                                                    \
        WORD_ROWS_GO, "part " #field,                                                    \
            sizeof(struct ranks_word) + k * sizeof(struct rows_seat) +                   \
                offsetof(struct rows_seat, field),                                       \
            sizeof(((struct rows_seat *)0)->field), least, most                          \
    }

/* Seat 1 is of rank 2, which is this rank's mate. */
static const struct {
    uint32_t what;
    const char *name;
    size_t at;
    unsigned size;
    int64_t least, most;
} numbers[] = {
    U32(HELLO, threads, 0, 65536),
    U32(HELLO, host, 0, 1),
    U32(HELLO, local_rank, 1, 1),
    U64(HELLO, manifest_bytes, 1, MANIFEST),
    U32(HERE, kind, 0, 2),
    U32(HERE, final, 0, 1),
    U32(HERE, bad, 0, 1),
    U32(GO, kind, 0, 0),
    U32(GO, final, 0, 1),
    U32(GO, encoded, 0, 1),
    U32(GO, source, -1, 0),
    U32(GO, members, 0, SIZE),
    U32(GO, seats, 3, 3),
    U64(GO, n, FLOATS, FLOATS),
    SEAT(rank, 2, 2),
    SEAT(threads, 0, INT32_MAX),
    SEAT(bad, 0, 1),
    SEAT(host, 0, SIZE - 1),
    SEAT(local_rank, 1, 1),
    RUN(n, 1, 1),
    RUN(apart, 0, 0),
    U32(MEMBERS, members, 0, SIZE),
    U32(MEMBERS, source, 0, SIZE - 1),
    U32(MEMBERS, final, 0, 1),
    LATE(wait, 0, FABRIC_WAIT_LINK),
    LATE(kind, 0, 2),
    LATE(n, 2, SIZE),
    LATE(n_named, 0, 2),
    LATE(ranks[0], 0, 2),
    LATE(ranks[1], 1, SIZE - 1),
    U32(FAIL, status, 1, DESCANT_ENDED),
    U64(ROWS, n, 0, PART),
    U32(ROWS_HAVE, bad, 0, 1),
    U32(ROWS_TAKE, bad, 0, 1),
    U32(ROWS_GO, seats, 2, 2),
    ROWS(0, rank, 1, 1),
    ROWS(0, bytes, OWN_PART, OWN_PART),
    ROWS(1, rank, 2, SIZE - 1),
    ROWS(1, bytes, 0, PART),
    U32(AGREE, status, 0, DESCANT_ENDED),
    U64(AGREE, n, 16, 16),
    U64(AGREE, agree, 0, (INT64_C(1) << 40) - 1),
    U32(AGREE_HAVE, status, 0, DESCANT_ENDED),
    U64(AGREE_HAVE, agree, 0, (INT64_C(1) << 40) - 1),
    U64(AGREE_HAVE, refers, 0, (1 << 24) - 1),
    U32(AGREED, status, 0, DESCANT_ENDED),
    U32(AGREED, final, 0, 1),
    U64(AGREED, n, 16, 16),
    U64(AGREED, agree, 1, (INT64_C(1) << 40) - 1),
};

START_TEST(each_number_is_within_its_bounds)
{
    static const int64_t far[] = {
        INT64_MIN, INT32_MIN, -2,  -1,  0,     1,         2,          3,
        4,         5,         255, 256, 65537, INT32_MAX, UINT32_MAX, INT64_C(1) << 32,
        INT64_MAX};
    int64_t least = numbers[_i].least, most = numbers[_i].most;
    const int64_t near[] = {least - 1, least, most, most + 1};
    enum { NEAR = sizeof near / sizeof *near, FAR = sizeof far / sizeof *far };

    for (int i = 0; i < NEAR + FAR; i++) {
        int64_t value = i < NEAR ? near[i] : far[i - NEAR];
        if (numbers[_i].size == 4)
            value = (int32_t)value;
        fill(numbers[_i].what);
        memcpy((char *)&letter + numbers[_i].at, &value, numbers[_i].size);
        ck_assert_msg(good(numbers[_i].what) == (value >= least && value <= most),
                      "%s %lld", numbers[_i].name, (long long)value);
    }
}
END_TEST

START_TEST(weights_and_shares_are_numbers)
{
    static const struct {
        double value;
        bool weight, share;
    } rows[] = {{0, true, false},    {-0.0, true, false},  {2 / 6.0, true, true},
                {1, true, false},    {1e300, true, false}, {INFINITY, false, false},
                {NAN, false, false}, {-1, false, false},   {-INFINITY, false, false}};

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fill(WORD_HERE);
        letter.word.weight = rows[i].value;
        ck_assert_msg(good(WORD_HERE) == rows[i].weight, "weight %g", rows[i].value);
        fill(WORD_GO);
        seat(1)->share = rows[i].value;
        ck_assert_msg(good(WORD_GO) == rows[i].share, "share %g", rows[i].value);
    }
}
END_TEST

/* --- agreements --- */

static bool good_value(uint32_t what, uint32_t kind, uint32_t status, uint64_t n)
{
    fill(what);
    letter.word.kind = kind;
    letter.word.status = status;
    letter.word.n = n;
    bytes = sizeof letter.word + n;
    return good(what);
}

START_TEST(a_value_is_as_its_kind)
{
    static const uint32_t kinds[] = {WORD_AGREE, WORD_AGREE_HAVE, WORD_AGREED};

    for (int i = 0; i < 3; i++) {
        uint32_t what = kinds[i];
        ck_assert(good_value(what, AGREE_MEAN, 0, 8) && good_value(what, AGREE_ANY, 0, 1));
        ck_assert(good_value(what, AGREE_BROADCAST, 0, 0));
        ck_assert(!good_value(what, AGREE_MEAN, 0, 9) && !good_value(what, AGREE_MEAN, 0, 0));
        ck_assert(!good_value(what, AGREE_ANY, 0, 2) && !good_value(what, 4, 0, 8));
        ck_assert(good_value(what, AGREE_NONE, 0, 0) == (what == WORD_AGREE_HAVE));
        ck_assert(!good_value(what, AGREE_NONE, 0, 8));
        ck_assert(good_value(what, AGREE_ANY, 3, 9) == (what != WORD_AGREE));
        letter.tail[8] = 'x';                   /* a text has an end */
        ck_assert(!good(what));
        ck_assert(!good_value(what, AGREE_ANY, 3, 0));
        fill(what);
        letter.word.n = AGREE_BYTES + 8;
        bytes = sizeof letter.word + AGREE_BYTES + 8;
        ck_assert(!good(what));
    }
    fill(WORD_AGREE);
    letter.word.seq = 0;
    ck_assert(!good(WORD_AGREE));
}
END_TEST

/* --- rounds --- */

START_TEST(only_a_centre_is_for_elastic_exchanges)
{
    struct word_facts facts = facts_for(WORD_HERE);
    char why[CHECK_WHY];

    fill(WORD_HERE);
    letter.word.kind = EXCHANGE_ELASTIC;
    ck_assert(word_is_good(&facts, 2, &letter.word, bytes, why));
    letter.word.final = 1;
    ck_assert(!word_is_good(&facts, 2, &letter.word, bytes, why));
    letter.word.final = 0;
    facts.center = false;
    ck_assert(!word_is_good(&facts, 2, &letter.word, bytes, why));
}
END_TEST

/* Their numbers may come to their end, and begin again. */
START_TEST(a_round_comes_once)
{
    static const uint32_t last[] = {0, ROUND, INT32_MAX, UINT32_MAX};
    char why[CHECK_WHY];

    for (int i = 0; i < 4; i++)
        for (int step = -2; step <= 2; step++) {
            struct word_facts facts = facts_for(WORD_GO);
            fill(WORD_GO);
            facts.round = last[i];
            letter.word.round = last[i] + (uint32_t)step;
            ck_assert(word_is_good(&facts, 0, &letter.word, bytes, why) == (step > 0));
        }
}
END_TEST

START_TEST(a_place_on_a_host_is_one_rank_s)
{
    struct word_facts facts = facts_for(WORD_HELLO);
    char why[CHECK_WHY];

    fill(WORD_HELLO);
    facts.place_taken = true;
    ck_assert(!word_is_good(&facts, 2, &letter.word, bytes, why));
    fill(WORD_GO);
    seat(2)->host = 1;                /* there is no third on this host */
    seat(2)->local_rank = 2;
    ck_assert(!good(WORD_GO));
    seat(2)->local_rank = 1;
    ck_assert(!good(WORD_GO));
    fill(WORD_GO);
    for (int i = 0; i < 3; i++)
        seat(i)->rank += i > 0;       /* a rank behind the last */
    ck_assert(!good(WORD_GO));
    fill(WORD_GO);
    seat(0)->rank = 0;                /* this rank is not in it */
    ck_assert(!good(WORD_GO));
    fill(WORD_GO);
    ck_assert(good(WORD_GO));
    seat(0)->host = 1 - seat(0)->host;      /* or is elsewhere */
    ck_assert(!good(WORD_GO));
}
END_TEST

/* Under a quorum rounds are made without a rank, which is told of them, and may be hollow. */
START_TEST(a_round_may_be_without_this_rank_under_a_quorum)
{
    char why[CHECK_WHY];

    for (int quorum = 0; quorum < 2; quorum++) {
        fill(WORD_GO);
        struct word_facts facts = facts_for(WORD_GO);
        facts.quorum = quorum;
        seat(0)->rank = 0;
        seat(0)->host = 0;
        ck_assert(word_is_good(&facts, 0, &letter.word, bytes, why) == quorum);
        fill(WORD_GO);
        fill_go(EXCHANGE_STATE);
        letter.word.source = SELF;
        ck_assert(word_is_good(&facts, 0, &letter.word, bytes, why) == quorum);
        seat(0)->host = 1 - seat(0)->host;
        ck_assert(!word_is_good(&facts, 0, &letter.word, bytes, why));
    }
}
END_TEST

/* Over a fixed link the coordinator alone says TAKE, in the one epoch that there is. */
START_TEST(a_version_to_take_suits_the_link)
{
    char why[CHECK_WHY];

    for (int fixed = 0; fixed < 2; fixed++) {
        place.fixed = fixed;
        fill(WORD_TAKE);
        const struct word_facts facts = facts_for(WORD_TAKE);
        ck_assert(word_is_good(&facts, 2, &letter.word, bytes, why) == !fixed);
        letter.word.ledger.generation = 2;
        ck_assert(good(WORD_TAKE) == !fixed);
        fill(WORD_TAKE);
        letter.word.ledger.epoch = 2;
        ck_assert(good(WORD_TAKE) == !fixed);
        fill(WORD_TAKE);
        letter.word.ledger.ballot = 4;
        ck_assert(good(WORD_TAKE) == !fixed);
    }
}
END_TEST

START_TEST(a_state_comes_from_one_of_its_members)
{
    for (int source = -2; source <= SIZE; source++) {
        fill(WORD_GO);
        fill_go(EXCHANGE_STATE);
        letter.word.source = source;
        ck_assert_msg(good(WORD_GO) == (source == 2 || source == 3), "source %d", source);
    }
    fill_go(EXCHANGE_STATE);
    letter.word.source = SELF;          /* which has not asked for one, */
    ck_assert(!good(WORD_GO));
    place.fixed = false;                /* but may be hollow here */
    ck_assert(good(WORD_GO));
    place.fixed = true;
    asked.kind = EXCHANGE_STATE;
    ck_assert(good(WORD_GO));
    letter.word.encoded = 1;
    ck_assert(!good(WORD_GO));
    letter.word.encoded = 0;
    letter.word.n = FLOATS + 1;
    ck_assert(!good(WORD_GO));
    letter.word.n = FLOATS - 1;         /* the rest of the replicas would differ */
    ck_assert(!good(WORD_GO));
}
END_TEST

/* As runs of one each, which say the same. */
static void expand(void)
{
    struct ranks_seat all[SIZE];
    int n = ranks_runs_seats(run(0), letter.word.seats, all);

    for (int i = 0; i < n; i++)
        *run(i) = (struct ranks_run){.first = all[i], .n = 1};
    letter.word.seats = (uint32_t)n;
    bytes = sizeof(struct ranks_word) + (size_t)n * sizeof(struct ranks_run);
}

/* A run is good where its seats are, one by one. */
START_TEST(a_run_is_as_good_as_its_seats)
{
    int n_good = 0;

    for (int i = 0; i < SIZE * (SIZE + 1) * 2 * (SIZE + 2) * 4; i++) {
        int k = i, rank = k % SIZE, n = (k /= SIZE) % (SIZE + 1), apart = (k /= SIZE + 1) % 2,
            host = (k /= 2) % (SIZE + 2) - 1, local = k / (SIZE + 2) - 1;
        fill(WORD_GO);
        letter.word.source = -1;
        *run(0) = (struct ranks_run){.first = {.rank = rank, .seq = SEQ, .arrival = 1,
                                               .host = host, .local_rank = local},
                                     .n = (uint32_t)n, .apart = (uint32_t)apart};
        letter.word.seats = 1;
        bytes = sizeof(struct ranks_word) + sizeof(struct ranks_run);
        bool is_good = good(WORD_GO);
        if (n == 0 || rank + n > SIZE || (apart && local))
            ck_assert(!is_good);
        else
            expand();
        ck_assert_msg(is_good == (letter.word.seats && good(WORD_GO)),
                      "%d from %d, apart %d, host %d, place %d", n, rank, apart, host, local);
        n_good += is_good;
    }
    ck_assert_int_gt(n_good, 5);
}
END_TEST

/* Seats in which each field has one of two values, in all orders: what comes out of the
 * runs is what was put in, and where all are alike it is one run. */
START_TEST(runs_have_the_seats_that_are_put_in)
{
    struct ranks_run runs[SIZE];
    struct ranks_seat seats[SIZE], out[SIZE];
    int one = 0;

    for (uint32_t way = 0; way < 1U << 2 * 7; way++) {
        uint32_t n = 0;
        memset(seats, 0, sizeof seats);
        for (uint32_t i = 0; i < 3; i++) {
            uint32_t bit = i ? way >> 7 * (i - 1) : 0;
            seats[i] = (struct ranks_seat){
                .rank = i ? seats[i - 1].rank + 1 + (int)(bit & 1) : 0,
                .seq = 4 + (bit >> 1 & 1),
                .arrival = 7 + (bit >> 2 & 1),
                .threads = 1 + (bit >> 3 & 1),
                .bad = bit >> 4 & 1,
                .host = i ? seats[i - 1].host + (int)(bit >> 5 & 1) : 0,
                .local_rank = i && !(bit >> 5 & 1) ? seats[i - 1].local_rank + 1 : 0,
                .share = bit >> 6 & 1 ? 0.25 : 0.5};
            n = ranks_runs_add(runs, n, &seats[i]);
        }
        ck_assert_int_eq(ranks_runs_seats(runs, n, out), 3);
        ck_assert(memcmp(out, seats, 3 * sizeof *seats) == 0);
        for (int rank = 0, at = 0; rank < 8; rank++) {
            bool has = at < 3 && seats[at].rank == rank;
            ck_assert((ranks_run_of(runs, n, rank) != NULL) == has);
            at += has;
        }
        one += n == 1;
    }
    ck_assert_int_eq(one, 2);           /* all on one host, or each alone */
}
END_TEST

START_TEST(a_mean_is_of_what_was_asked_for)
{
    fill(WORD_GO);
    seat(0)->seq = SEQ + 1;           /* which is to come */
    ck_assert(!good(WORD_GO));
    asked.n = 7;                        /* this one it only helps */
    seat(0)->seq = SEQ - 1;
    ck_assert(good(WORD_GO));
    seat(0)->seq = SEQ;
    ck_assert(!good(WORD_GO));
    letter.word.n = 7;
    ck_assert(good(WORD_GO));
    asked.kind = EXCHANGE_ELASTIC;
    ck_assert(!good(WORD_GO));
    fill(WORD_GO);
    letter.word.source = -1;            /* nobody has anything good */
    for (int i = 0; i < 3; i++)
        seat(i)->share = 0;
    ck_assert(good(WORD_GO));
    letter.word.encoded = 1;
    ck_assert(!good(WORD_GO));
}
END_TEST

START_TEST(only_plain_means_are_encoded)
{
    char why[CHECK_WHY];

    fill(WORD_GO);
    letter.word.encoded = 1;
    struct word_facts facts = facts_for(WORD_GO);
    ck_assert(word_is_good(&facts, 0, &letter.word, bytes, why));
    facts.encodes = false;
    ck_assert(!word_is_good(&facts, 0, &letter.word, bytes, why));
    letter.word.final = 1;
    ck_assert(!good(WORD_GO));
    letter.word.final = 0;
    letter.word.n = asked.n = FLOATS + 1;       /* of which there is no reference */
    ck_assert(!good(WORD_GO));
    letter.word.encoded = 0;
    ck_assert(good(WORD_GO));
}
END_TEST

START_TEST(only_an_elastic_exchange_goes_on_alone)
{
    fill(WORD_VOID);
    letter.word.seq = SEQ;
    ck_assert(!good(WORD_VOID));
    asked.kind = EXCHANGE_ELASTIC;
    ck_assert(good(WORD_VOID));
    asked.kind = EXCHANGE_STATE;
    letter.word.seq = SEQ - 1;
    ck_assert(good(WORD_VOID));
}
END_TEST

int main(void)
{
    TCase *words = tcase_create("words");
    tcase_add_loop_test(words, a_word_with_which_nothing_is_wrong_is_good, 0, N_WORDS);
    tcase_add_loop_test(words, only_the_right_rank_says_it_and_hears_it_in_its_turn, 0,
                        N_WORDS);
    tcase_add_loop_test(words, its_length_is_exact, 0, N_WORDS);
    tcase_add_loop_test(words, lists_of_items_have_runs, 0, 2);
    tcase_add_test(words, other_kinds_are_refused);
    tcase_add_loop_test(words, each_number_is_within_its_bounds, 0, N(numbers));
    tcase_add_test(words, weights_and_shares_are_numbers);
    tcase_add_test(words, a_value_is_as_its_kind);
    tcase_add_test(words, only_a_centre_is_for_elastic_exchanges);
    tcase_add_test(words, a_round_comes_once);
    tcase_add_test(words, a_place_on_a_host_is_one_rank_s);
    tcase_add_test(words, a_state_comes_from_one_of_its_members);
    tcase_add_test(words, a_round_may_be_without_this_rank_under_a_quorum);
    tcase_add_test(words, a_version_to_take_suits_the_link);
    tcase_add_test(words, a_mean_is_of_what_was_asked_for);
    tcase_add_test(words, a_run_is_as_good_as_its_seats);
    tcase_add_test(words, runs_have_the_seats_that_are_put_in);
    tcase_add_test(words, only_plain_means_are_encoded);
    tcase_add_test(words, only_an_elastic_exchange_goes_on_alone);
    return run_cases(words, NULL);
}
