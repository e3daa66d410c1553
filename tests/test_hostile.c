/* SPDX-License-Identifier: MIT */
/* What one rank sends that it must not: each kind of word and of piece, too short, too
 * long, out of turn, or with a number that means nothing. The job ends for those who
 * hear it, with a line that names the peer and what it sent; never by a crash, a hang,
 * or memory without a bound. */
#include "harness/suite.h"
#include "hostile.h"
#include "ranks/elastic.h"

#include <check.h>
#include <string.h>

enum { RANKS = 3, N = 900, TURNS = 400 };
enum { ENCODED = HOSTILE_JOBS /* means, as q8 */, SLEEPS /* means, and a rank sleeps */ };

enum act {
    SET,            /* `size` bytes at `at` become `value` */
    ADD,            /* so many bytes more, or fewer */
    TWICE,
    MORE            /* before it goes a word of kind `value` */
};

struct hostile_lie {
    int job;                        /* enum hostile_job, or ENCODED, or SLEEPS */
    int liar, tag, what;        /* what: of words; the first such letter is the lie */
    enum act act;
    size_t at;
    unsigned size;
    int64_t value;
    const char *says;
};

#define WORD(field)                                                                      \
    offsetof(struct ranks_word, field), sizeof(((struct ranks_word *)0)->field)
/* All three seats are one run. */
#define RUN(field)                                                                       \
    sizeof(struct ranks_word) + offsetof(struct ranks_run, field),                       \
        sizeof(((struct ranks_run *)0)->field)
#define WORD_BYTES (int)sizeof(struct ranks_word)
#define NAN_BITS INT64_C(0x7ff8000000000000)
#define TWO_BITS INT64_C(0x4000000000000000)
#define M HOSTILE_MEANS
#define C HOSTILE_CENTER
#define R HOSTILE_ROWS
#define P HOSTILE_POST
#define PART(k, field)                                                                   \
    sizeof(struct ranks_word) + k * sizeof(struct rows_seat) +                           \
        offsetof(struct rows_seat, field),                                               \
        sizeof(((struct rows_seat *)0)->field)
#define LATE(field)                                                                      \
    sizeof(struct ranks_word) + offsetof(struct awaited, field),                         \
        sizeof(((struct awaited *)0)->field)
#define BULLETIN(field)                                                                  \
    sizeof(struct ranks_word) + offsetof(struct bulletin, field),                        \
        sizeof(((struct bulletin *)0)->field)
#define ASK(field) offsetof(struct ask, field), sizeof(((struct ask *)0)->field)

static const struct hostile_lie lies[] = {
    /* words of any kind */
    {M, 1, TAG_WORD, WORD_HERE, SET, WORD(what), N_WORDS,
     "a word of kind 30"},
    {M, 1, TAG_WORD, WORD_HERE, SET, WORD(what), -1, "a word of kind 4294967295"},
    {M, 1, TAG_WORD, WORD_HERE, ADD, 0, 0, -1, "a word of"},
    {M, 1, TAG_WORD, WORD_HERE, ADD, 0, 0, 7 - WORD_BYTES, "a word of 7 bytes"},
    {M, 1, TAG_WORD, WORD_HERE, ADD, 0, 0, 8, "HERE: "},
    {M, 1, TAG_WORD, WORD_HERE, ADD, 0, 0, 20000, "a word of too many bytes"},
    {M, 1, TAG_WORD, WORD_HERE, SET, WORD(what), WORD_GO, "GO: rank 0 alone says it"},
    {M, 1, TAG_WORD, WORD_HERE, SET, WORD(what), WORD_CALL, "CALL: rank 0 alone says it"},
    {M, 1, TAG_WORD, WORD_HERE, SET, WORD(what), WORD_VOID, "VOID: rank 0 alone says it"},
    {M, 1, TAG_WORD, WORD_HERE, SET, WORD(what), WORD_MEMBERS, "MEMBERS: rank 0 alone"},
    {M, 1, TAG_WORD, WORD_HERE, SET, WORD(what), WORD_LATE, "LATE: rank 0 alone says it"},
    {M, 1, TAG_WORD, WORD_HERE, SET, WORD(what), WORD_FAIL, "FAIL: rank 0 alone says it"},
    {M, 1, TAG_WORD, WORD_HERE, SET, WORD(what), WORD_BYE, "BYE: rank 0 alone says it"},
    {M, 1, TAG_WORD, WORD_HERE, SET, WORD(what), WORD_AGREED,
     "AGREED: rank 0 alone says it"},
    {R, 1, TAG_WORD, WORD_ROWS, SET, WORD(what), WORD_ROWS_CALL,
     "ROWS_CALL: rank 0 alone"},
    {R, 1, TAG_WORD, WORD_ROWS, SET, WORD(what), WORD_ROWS_GO, "ROWS_GO: rank 0 alone"},
    {R, 1, TAG_WORD, WORD_ROWS, SET, WORD(what), WORD_ROWS_TAKE,
     "ROWS_TAKE: rank 0 alone"},
    {R, 1, TAG_WORD, WORD_ROWS, SET, WORD(what), WORD_LEAD, "LEAD: rank 0 alone says it"},
    {M, 0, TAG_WORD, WORD_GO, MORE, 0, 0, WORD_HERE, "HERE: it is for rank 0 alone"},
    {M, 0, TAG_WORD, WORD_GO, MORE, 0, 0, WORD_HELLO, "HELLO: it is for rank 0 alone"},
    {M, 0, TAG_WORD, WORD_GO, MORE, 0, 0, WORD_LEAVE, "LEAVE: it is for rank 0 alone"},
    {M, 0, TAG_WORD, WORD_GO, MORE, 0, 0, WORD_ROWS, "ROWS: it is for rank 0 alone"},
    {M, 0, TAG_WORD, WORD_GO, MORE, 0, 0, WORD_ROWS_HAVE,
     "ROWS_HAVE: it is for rank 0 alone"},

    {M, 0, TAG_WORD, WORD_GO, MORE, 0, 0, WORD_AGREE, "AGREE: it is for rank 0 alone"},
    {M, 0, TAG_WORD, WORD_GO, MORE, 0, 0, WORD_AGREE_HAVE, "AGREE_HAVE: out of turn"},
    {M, 1, TAG_WORD, WORD_HERE, MORE, 0, 0, WORD_AGREE_HAVE, "AGREE_HAVE: out of turn"},
    {M, 0, TAG_WORD, WORD_GO, MORE, 0, 0, WORD_ITEMS, "ITEMS: it is for rank 0 alone"},
    {M, 1, TAG_WORD, WORD_HERE, SET, WORD(what), WORD_DEAL, "DEAL: rank 0 alone says it"},
    {M, 1, TAG_WORD, WORD_HERE, MORE, 0, 0, WORD_ITEMS, "ITEMS: "},
    {M, 1, TAG_WORD, WORD_AGREE, SET, WORD(kind), 9, "AGREE: a value of kind 9"},
    {M, 1, TAG_WORD, WORD_AGREE, SET, WORD(n), 4104, "AGREE: a value of 4104 bytes"},
    {M, 1, TAG_WORD, WORD_AGREE, SET, WORD(n), 8, "where"},
    {M, 1, TAG_WORD, WORD_AGREE, ADD, 0, 0, 8, "where"},
    {M, 1, TAG_WORD, WORD_AGREE, SET, WORD(seq), 0, "AGREE: agreement 1 of epoch 0, offer 0"},
    {M, 1, TAG_WORD, WORD_AGREE, SET, WORD(agree), INT64_C(1) << 40, "AGREE: agreement"},
    {M, 1, TAG_WORD, WORD_AGREE, SET, WORD(status), 1, "AGREE: a value of kind 1, status 1"},
    {M, 0, TAG_WORD, WORD_AGREED, SET, WORD(final), 2, "AGREED: final 2"},
    {M, 0, TAG_WORD, WORD_AGREED, SET, WORD(agree), 0, "AGREED: agreement 0"},
    {M, 0, TAG_WORD, WORD_AGREED, SET, WORD(agree), -1, "AGREED: agreement"},
    {M, 0, TAG_WORD, WORD_AGREED, SET, WORD(status), 99, "AGREED: a value of kind 1"},
    {M, 0, TAG_WORD, WORD_AGREED, SET, WORD(kind), 0, "AGREED: a value of kind 0"},
    {M, 0, TAG_WORD, WORD_AGREED, ADD, 0, 0, -1, "AGREED: "},

    {M, 1, TAG_WORD, WORD_HELLO, TWICE, 0, 0, 0, "HELLO: out of turn"},
    {M, 1, TAG_WORD, WORD_HELLO, SET, WORD(threads), 65537, "HELLO: threads 65537"},
    {M, 1, TAG_WORD, WORD_HELLO, SET, WORD(host), 3, "HELLO: host 3"},
    {M, 1, TAG_WORD, WORD_HELLO, SET, WORD(host), -1, "HELLO: host -1"},
    {M, 1, TAG_WORD, WORD_HELLO, SET, WORD(host), 2, "HELLO: local rank 0 of host 2"},
    {M, 1, TAG_WORD, WORD_HELLO, SET, WORD(host), 0, "HELLO: local rank 0 of host 0"},
    {M, 1, TAG_WORD, WORD_HELLO, SET, WORD(local_rank), 1, "HELLO: local_rank 1"},
    {M, 1, TAG_WORD, WORD_HELLO, SET, WORD(local_rank), -1, "HELLO: local_rank -1"},
    {M, 1, TAG_WORD, WORD_HELLO, SET, WORD(manifest_bytes), 0, "HELLO: manifest_bytes 0"},
    {M, 1, TAG_WORD, WORD_HELLO, SET, WORD(manifest_bytes), INT64_C(1) << 40,
     "manifest_bytes 1"},
    {M, 1, TAG_WORD, WORD_HELLO, SET, WORD(manifest_bytes), -1,
     "HELLO: manifest_bytes -1"},

    {M, 1, TAG_WORD, WORD_HELLO, MORE, 0, 0, WORD_HERE, "HERE: out of turn"},
    {R, 1, TAG_WORD, WORD_ROWS, MORE, 0, 0, WORD_LEAVE, "ROWS: out of turn"},
    {M, 1, TAG_WORD, WORD_HERE, SET, WORD(kind), 3, "HERE: kind 3"},
    {M, 1, TAG_WORD, WORD_HERE, SET, WORD(kind), 1, "HERE: an elastic exchange"},
    {M, 1, TAG_WORD, WORD_HERE, SET, WORD(final), 2, "HERE: final 2"},
    {M, 1, TAG_WORD, WORD_HERE, SET, WORD(bad), 256, "HERE: bad 256"},
    {M, 1, TAG_WORD, WORD_HERE, SET, WORD(weight), NAN_BITS, "HERE: weight nan"},
    {M, 1, TAG_WORD, WORD_HERE, SET, WORD(weight), INT64_MIN | TWO_BITS,
     "HERE: weight -2"},
    {M, 1, TAG_WORD, WORD_HERE, SET, WORD(ledger.epoch), 2,
     "HERE: generation 1 in epoch 2"},
    {M, 1, TAG_WORD, WORD_HERE, SET, WORD(ledger.generation), 7, "HERE: generation 7"},
    {M, 1, TAG_WORD, WORD_HERE, SET, WORD(ledger.leaves), 1, "HERE: generation 1"},
    {M, 1, TAG_WORD, WORD_HERE, SET, WORD(ledger.ballot), 9, "HERE: generation 1"},
    {M, 1, TAG_WORD, WORD_HERE, SET, WORD(ledger.about), 0, "HERE: generation 1"},
    {M, 1, TAG_WORD, WORD_HERE, MORE, 0, 0, WORD_STANDS, "STANDS: out of turn"},
    {M, 0, TAG_WORD, WORD_GO, MORE, 0, 0, WORD_FENCE, "FENCE: out of turn"},
    {M, 0, TAG_WORD, WORD_GO, MORE, 0, 0, WORD_PROPOSE, "PROPOSE: out of turn"},
    {M, 0, TAG_WORD, WORD_GO, MORE, 0, 0, WORD_STANDS, "STANDS: out of turn"},
    {M, 0, TAG_WORD, WORD_GO, MORE, 0, 0, WORD_TAKE, "TAKE: out of turn"},
    {M, 1, TAG_WORD, WORD_HERE, MORE, 0, 0, WORD_ROWS, "ROWS: out of turn"},
    {M, 1, TAG_WORD, WORD_HERE, MORE, 0, 0, WORD_ROWS_HAVE, "ROWS_HAVE: out of turn"},

    {M, 0, TAG_WORD, WORD_GO, SET, WORD(kind), EXCHANGE_ELASTIC, "GO: kind 1"},
    {M, 0, TAG_WORD, WORD_GO, SET, WORD(kind), 77, "GO: kind 77"},
    {M, 0, TAG_WORD, WORD_GO, SET, WORD(final), 9, "GO: final 9"},
    {M, 0, TAG_WORD, WORD_GO, SET, WORD(encoded), 1, "GO: encoded 1"},
    {M, 0, TAG_WORD, WORD_GO, SET, WORD(source), 3, "GO: source 3"},
    {M, 0, TAG_WORD, WORD_GO, SET, WORD(source), -2, "GO: source -2"},
    {M, 0, TAG_WORD, WORD_GO, SET, WORD(source), -1, "GO: source -1 of a state"},
    {M, 0, TAG_WORD, WORD_GO, SET, WORD(members), 4, "GO: members 4"},
    {M, 0, TAG_WORD, WORD_GO, SET, WORD(n), N + 1, "GO: n 901"},
    {M, 0, TAG_WORD, WORD_GO, SET, WORD(n), -1, "GO: n -1"},
    {M, 0, TAG_WORD, WORD_GO, SET, WORD(seats), 0, "GO: seats 0"},
    {M, 0, TAG_WORD, WORD_GO, SET, WORD(seats), 4, "GO: seats 4"},
    {M, 0, TAG_WORD, WORD_GO, SET, WORD(seats), -1, "GO: seats 4294967295"},
    {M, 0, TAG_WORD, WORD_GO, SET, WORD(seats), 2, "bytes, where"},
    {M, 0, TAG_WORD, WORD_GO, ADD, 0, 0, -8, "bytes, where"},
    {M, 0, TAG_WORD, WORD_GO, SET, WORD(round), 0, "GO: round 0 after round 0"},
    {M, 0, TAG_WORD, WORD_GO, TWICE, 0, 0, 0, "GO: round 1 after round 1"},
    {M, 0, TAG_WORD, WORD_GO, SET, RUN(first.rank), -1, "GO: a seat of rank -1"},
    {M, 0, TAG_WORD, WORD_GO, SET, RUN(first.rank), 3, "GO: a seat of rank 3"},
    {M, 0, TAG_WORD, WORD_GO, SET, RUN(first.rank), 1,
     "GO: 3 seats from that of rank 1 on"},
    {M, 0, TAG_WORD, WORD_GO, SET, RUN(first.host), 3, "GO: 3 seats from that of rank 0"},
    {M, 0, TAG_WORD, WORD_GO, SET, RUN(first.host), -1, "GO: the seat of rank 0"},
    {M, 0, TAG_WORD, WORD_GO, SET, RUN(first.local_rank), -1,
     "GO: 3 seats from that of rank 0"},
    {M, 0, TAG_WORD, WORD_GO, SET, RUN(n), 0, "GO: 0 seats from that of rank 0"},
    {M, 0, TAG_WORD, WORD_GO, SET, RUN(n), 4, "GO: 4 seats from that of rank 0"},
    {M, 0, TAG_WORD, WORD_GO, SET, RUN(n), -1, "GO: 4294967295 seats"},
    {M, 0, TAG_WORD, WORD_GO, SET, RUN(n), 1, "GO: no seat of rank"},
    {M, 0, TAG_WORD, WORD_GO, SET, RUN(apart), 2, "GO: 3 seats from that of rank 0"},
    {M, 0, TAG_WORD, WORD_GO, SET, RUN(apart), 0, "at place 1 of host 0"},
    {M, 0, TAG_WORD, WORD_GO, SET, RUN(first.threads), -1, "GO: the seat of rank 0"},
    {M, 0, TAG_WORD, WORD_GO, SET, RUN(first.bad), 2, "GO: the seat of rank 0: bad 2"},
    {M, 0, TAG_WORD, WORD_GO, SET, RUN(first.share), NAN_BITS, "GO: the seat of rank 0"},
    {M, 0, TAG_WORD, WORD_GO, SET, RUN(first.share), TWO_BITS, "share 2"},
    {M, 0, TAG_WORD, WORD_GO, SET, RUN(first.seq), 7, "GO: exchange 7 of this rank"},
    {M, 0, TAG_WORD, WORD_GO, SET, WORD(kind), EXCHANGE_MEAN, "GO: shares that make 0"},
    {M, 0, TAG_WORD, WORD_MEMBERS, SET, WORD(source), 3, "MEMBERS: source 3"},
    {M, 0, TAG_WORD, WORD_MEMBERS, SET, WORD(source), -1, "MEMBERS: source -1"},
    {M, 0, TAG_WORD, WORD_MEMBERS, SET, WORD(members), -1, "MEMBERS: members 4294967295"},
    {M, 0, TAG_WORD, WORD_MEMBERS, SET, WORD(final), 3, "MEMBERS: final 3"},
    {SLEEPS, 0, TAG_WORD, WORD_LATE, SET, LATE(n), -1,
     "LATE: wait 2, kind 0, for -1 ranks"},
    {SLEEPS, 0, TAG_WORD, WORD_LATE, SET, LATE(n_named), 17, "LATE: wait 2"},
    {SLEEPS, 0, TAG_WORD, WORD_LATE, SET, LATE(ranks[0]), 3,
     "LATE: rank 3 after rank -1"},
    {SLEEPS, 0, TAG_WORD, WORD_LATE, ADD, 0, 0, -4, "LATE: "},
    {M, 0, TAG_WORD, WORD_GO, MORE, 0, 0, WORD_BYE, "BYE: out of turn"},
    {M, 0, TAG_WORD, WORD_GO, MORE, 0, 0, WORD_LATE, "LATE: "},
    {M, 0, TAG_WORD, WORD_GO, MORE, 0, 0, WORD_FAIL, "FAIL: "},
    {M, 0, TAG_WORD, WORD_GO, MORE, 0, 0, WORD_ROWS_CALL, "ROWS_CALL: out of turn"},
    {M, 0, TAG_WORD, WORD_GO, MORE, 0, 0, WORD_ROWS_GO, "ROWS_GO: out of turn"},
    {M, 0, TAG_WORD, WORD_GO, MORE, 0, 0, WORD_ROWS_TAKE, "ROWS_TAKE: out of turn"},
    {C, 0, TAG_WORD, WORD_MEMBERS, SET, WORD(what), WORD_ROWS_TAKE,
     "ROWS_TAKE: out of turn"},
    {M, 0, TAG_WORD, WORD_GO, SET, WORD(what), WORD_VOID, "VOID: "},

    {M, 1, TAG_WORD, WORD_BULLETIN, ADD, 0, 0, -8, "BULLETIN: "},
    {M, 1, TAG_WORD, WORD_BULLETIN, ADD, 0, 0, 8, "BULLETIN: "},
    {M, 1, TAG_WORD, WORD_BULLETIN, SET, WORD(refers), -1, "BULLETIN: figures of rank"},
    {M, 1, TAG_WORD, WORD_BULLETIN, SET, BULLETIN(steps), -1, "BULLETIN: figures of"},
    {M, 1, TAG_WORD, WORD_BULLETIN, SET, BULLETIN(gap), NAN_BITS, "with a gap of"},
    {M, 1, TAG_WORD, WORD_BULLETIN, SET, BULLETIN(n_values), 17, "3 steps, 0 rounds, 17"},
    {M, 0, TAG_WORD, WORD_GO, MORE, 0, 0, WORD_BULLETIN, "BULLETIN: "},

    {R, 1, TAG_WORD, WORD_ROWS, SET, WORD(n), 1 << 13, "ROWS: n 8192"},
    {R, 1, TAG_WORD, WORD_ROWS, SET, WORD(n), -1, "ROWS: n -1"},
    {R, 1, TAG_WORD, WORD_ROWS, TWICE, 0, 0, 0, "ROWS: out of turn"},
    {R, 1, TAG_WORD, WORD_ROWS_HAVE, TWICE, 0, 0, 0, "ROWS_HAVE: out of turn"},
    {R, 1, TAG_WORD, WORD_ROWS_HAVE, SET, WORD(bad), 2, "ROWS_HAVE: bad 2"},
    {R, 1, TAG_WORD, WORD_ROWS, MORE, 0, 0, WORD_ROWS_HAVE, "ROWS_HAVE: out of turn"},
    {R, 0, TAG_WORD, WORD_ROWS_GO, SET, WORD(seats), 4, "ROWS_GO: seats 4"},
    {R, 0, TAG_WORD, WORD_ROWS_GO, SET, WORD(seats), 0, "ROWS_GO: seats 0"},
    {R, 0, TAG_WORD, WORD_ROWS_GO, SET, WORD(seats), -1, "ROWS_GO: seats 4294967295"},
    {R, 0, TAG_WORD, WORD_ROWS_GO, ADD, 0, 0, -16, "ROWS_GO: "},
    {R, 0, TAG_WORD, WORD_ROWS_GO, TWICE, 0, 0, 0, "ROWS_GO: out of turn"},
    {R, 0, TAG_WORD, WORD_ROWS_GO, SET, PART(0, bytes), -1, "ROWS_GO: a part of rank 0"},
    {R, 0, TAG_WORD, WORD_ROWS_GO, SET, PART(0, bytes), 4097,
     "ROWS_GO: a part of rank 0 of 4097"},
    {R, 0, TAG_WORD, WORD_ROWS_GO, SET, PART(0, rank), -1, "ROWS_GO: a part of rank -1"},
    {R, 0, TAG_WORD, WORD_ROWS_GO, SET, PART(2, rank), 3, "ROWS_GO: a part of rank 3"},
    {R, 0, TAG_WORD, WORD_ROWS_GO, SET, PART(1, rank), 0, "ROWS_GO: a part of rank 0"},
    {R, 0, TAG_WORD, WORD_ROWS_GO, SET, PART(1, bytes), 999,
     "ROWS_GO: no part of 1001 bytes"},
    {R, 0, TAG_WORD, WORD_ROWS_TAKE, SET, WORD(bad), 2, "ROWS_TAKE: bad 2"},
    {R, 0, TAG_WORD, WORD_ROWS_TAKE, TWICE, 0, 0, 0, "ROWS_TAKE: out of turn"},
    {R, 0, TAG_WORD, WORD_ROWS_GO, MORE, 0, 0, WORD_ROWS_TAKE, "ROWS_TAKE: out of turn"},

    /* pieces */
    {M, 1, TAG_MANIFEST, 0, ADD, 0, 0, -1, "a manifest of"},
    {M, 1, TAG_MANIFEST, 0, ADD, 0, 0, 1, "a manifest of too many bytes"},
    {M, 0, TAG_STATE, 0, ADD, 0, 0, -4,
     "a piece of a state of 3596 bytes, where 3600 belong"},
    {M, 0, TAG_STATE, 0, ADD, 0, 0, 4,
     "a piece of a state of too many bytes, where 3600 belong"},
    {M, 1, TAG_GIVE, 0, ADD, 0, 0, -1, "a part of a mean of"},
    {M, 1, TAG_GIVE, 0, ADD, 0, 0, 60000, "a part of a mean of too many bytes"},
    {M, 1, TAG_TELL, 0, ADD, 0, 0, -1, "a piece of a mean of"},
    {M, 1, TAG_TELL, 0, ADD, 0, 0, 1, "a piece of a mean of too many bytes"},
    {ENCODED, 1, TAG_GIVE, 0, ADD, 0, 0, -1, "a part of a mean of"},
    {ENCODED, 1, TAG_TELL, 0, ADD, 0, 0, 1, "a piece of a mean of too many bytes"},
    {C, 1, TAG_ASK, 0, ADD, 0, 0, -1, "it asks for no piece"},
    {C, 1, TAG_ASK, 0, ADD, 0, 0, 9000, "an ask of too many bytes"},
    {C, 1, TAG_ASK, 0, ADD, 0, 0, -1200, "it asks for"},
    {C, 1, TAG_ASK, 0, SET, ASK(seat), 16, "it asks for no piece"},
    {C, 1, TAG_ASK, 0, SET, ASK(fetch), 2, "it asks for no piece"},
    {C, 1, TAG_ASK, 0, SET, ASK(before), 2, "it asks for no piece"},
    {C, 1, TAG_ASK, 0, SET, ASK(n_runs), 0, "it asks for no piece"},
    {C, 1, TAG_ASK, 0, SET, ASK(n_runs), 25, "it asks for no piece"},
    {C, 1, TAG_ASK, 0, SET, ASK(n_runs), -1, "it asks for no piece"},
    {C, 1, TAG_ASK, 0, SET, ASK(alpha), TWO_BITS >> 32, "it asks for no piece"},
    {C, 1, TAG_ASK, 0, SET, ASK(alpha), NAN_BITS >> 29, "it asks for no piece"},
    {C, 1, TAG_ASK, 0, SET, ASK(from), N, "it asks for no piece"},
    {C, 1, TAG_ASK, 0, SET, ASK(from), -4, "it asks for no piece"},
    {C, 1, TAG_ASK, 0, SET, ASK(runs[0].at), -4, "it asks for no piece"},
    {C, 1, TAG_ASK, 0, SET, ASK(runs[0].n), 0, "it asks for no piece"},
    {C, 1, TAG_ASK, 0, SET, ASK(runs[0].n), -1, "it asks for no piece"},
    {C, 1, TAG_ANSWER, 0, ADD, 0, 0, -1, "an answer of"},
    {C, 1, TAG_ANSWER, 0, ADD, 0, 0, 4, "an answer of too many bytes"},
    {C, 1, TAG_ANSWER, 0, SET, ASK(from), 5, "it answers an ask that was not made"},
    {C, 1, TAG_ANSWER, 0, SET, ASK(n_runs), -1, "it answers an ask that was not made"},
    {C, 1, TAG_ANSWER, 0, SET, ASK(runs[0].n), -1, "it answers an ask that was not made"},
    {R, 1, TAG_ROWS, 0, ADD, 0, 0, -1, "a part of rows of 1000 bytes, where 1001 belong"},
    {R, 1, TAG_ROWS, 0, ADD, 0, 0, 1, "a part of rows of too many bytes"},
    {P, 1, TAG_POST, 0, SET, 0, 8, N + 1, "a parcel of 901 floats, room for 900"},
    {P, 1, TAG_POST, 0, SET, 0, 8, -1, "floats, room for 900"},
    {P, 1, TAG_POST, 0, ADD, 0, 0, -1, "a parcel of"},
    {P, 1, TAG_POST, 0, ADD, 0, 0, 1, "a parcel of too many bytes"},
    {P, 1, TAG_POST, 0, TWICE, 0, 0, 0, "a parcel of 200 bytes, where 3600 belong"},
    {P, 1, TAG_POST_TAKEN, 0, ADD, 0, 0, 1, "a parcel's answer of too many bytes"},
};

struct liar {
    const struct hostile_lie *lie;
    bool lied;
};

static void alter(void *context, struct letter *letter, struct letter *more)
{
    struct liar *liar = context;
    const struct hostile_lie *lie = liar->lie;
    struct ranks_word word = {.what = 0};

    if (liar->lied || letter->tag != lie->tag)
        return;
    memcpy(&word, letter->p, letter->bytes < sizeof word ? letter->bytes : sizeof word);
    if (lie->tag == TAG_WORD && word.what != (uint32_t)lie->what)
        return;
    liar->lied = true;
    switch (lie->act) {
    case SET:
        memcpy(letter->p + lie->at, &lie->value, lie->size);
        break;
    case ADD:
        if (lie->value > 0)
            memset(letter->p + letter->bytes, 0, (size_t)lie->value);
        letter->bytes += (size_t)lie->value;
        break;
    case TWICE:
        letter->times = 2;
        break;
    case MORE:
        word =
            (struct ranks_word){.what = (uint32_t)lie->value, .protocol = RANKS_PROTOCOL};
        memcpy(more->p, &word, sizeof word);
        more->times = 1;
    }
}

/* --- one lie --- */

START_TEST(a_lie_ends_the_job_with_its_line)
{
    struct liar liar = {.lie = &lies[_i]};
    int what = lies[_i].job;
    struct hostile job = {.job = what < ENCODED ? (enum hostile_job)what : HOSTILE_MEANS,
                          .size = RANKS,
                          .liar = lies[_i].liar,
                          .n = N,
                          .wire = what == ENCODED ? WIRE_Q8 : WIRE_F32,
                          .last_sleeps = what == SLEEPS,
                          .turns = TURNS,
                          .alter = alter,
                          .context = &liar};
    struct hostile_end ends[RANKS];
    char peer[40];
    int told = 0;

    hostile_run(&job, ends);
    ck_assert_msg(liar.lied, "lie %d: no such letter", _i);
    snprintf(peer, sizeof peer, "rank %d (host%d) breaks the protocol", job.liar,
             job.liar);
    for (int k = 0; k < RANKS; k++) {
        if (k == job.liar || !ends[k].status)
            continue;
        ck_assert_msg(ends[k].status == DESCANT_MISMATCH && strstr(ends[k].says, peer) &&
                          strstr(ends[k].says, lies[_i].says),
                      "lie %d, rank %d: %s", _i, k, ends[k].says);
        told++;
    }
    ck_assert_msg(told > 0, "lie %d, \"%s\": nobody has heard it", _i, lies[_i].says);
    ck_assert_int_eq(memory_live(), 0);
}
END_TEST

static void say_truth(void *context, struct letter *letter, struct letter *more)
{
    (void)context;
    (void)letter;
    (void)more;
}

START_TEST(who_does_not_lie_is_heard_to_the_end)
{
    struct hostile job = {.job = (enum hostile_job)(_i % HOSTILE_JOBS),
                          .size = 2 + _i % 2,
                          .per_host = 1 + _i / 24,
                          .n = N,
                          .wire = (enum wire)(_i % 3),
                          .turns = 4000,
                          .alter = say_truth};
    struct hostile_end ends[RANKS];

    hostile_run(&job, ends);
    for (int k = 0; k < job.size; k++)
        ck_assert_msg(ends[k].done && !ends[k].status, "rank %d: %s", k, ends[k].says);
    ck_assert_int_eq(memory_live(), 0);
}
END_TEST

/* All who arrive bring more floats than there are. */
static void bring_more(void *context, struct letter *letter, struct letter *more)
{
    const uint64_t n = N + 1;
    struct ranks_word word = {.what = 0};

    (void)context;
    (void)more;
    memcpy(&word, letter->p, letter->bytes < sizeof word ? letter->bytes : sizeof word);
    if (letter->tag == TAG_WORD && word.what == WORD_HERE)
        memcpy(letter->p + offsetof(struct ranks_word, n), &n, sizeof n);
}

START_TEST(who_lies_together_is_found_by_rank_0)
{
    struct hostile job = {.job = HOSTILE_MEANS,
                          .size = RANKS,
                          .liar = HOSTILE_ALL,
                          .n = N,
                          .turns = TURNS,
                          .first_leaves = true,
                          .alter = bring_more};
    struct hostile_end ends[RANKS];

    hostile_run(&job, ends);
    for (int k = 1; k < RANKS; k++)
        ck_assert_msg(strstr(ends[k].says, "breaks the protocol: HERE: n 901"),
                      "rank %d: %s", k, ends[k].says);
    ck_assert_int_eq(memory_live(), 0);
}
END_TEST

/* --- what is not a lie, but costs --- */

enum {
    NOBODY_RECEIVES = LINK_TAGS - 2,
    SLOW_BYTES = 2000,
    FEW_BLOCKS = 600,
    LONG = 5000
};

/* Rank 2 takes no word from rank 0, and rank 1 makes rank 0 say as many as it can: an
 * arrival that ends at once, and then the next. Both are never through. */
static void flood(void *context, struct letter *letter, struct letter *more)
{
    bool *begun = context;
    struct ranks_word word = {.what = 0};

    memcpy(&word, letter->p, letter->bytes < sizeof word ? letter->bytes : sizeof word);
    bool ended = letter->tag == TAG_WORD && word.what == WORD_VOID;
    if (letter->from && letter->tag == TAG_ASK)
        letter->times = 0;
    if (ended && letter->to == 2) {
        letter->tag = NOBODY_RECEIVES;
        letter->bytes = SLOW_BYTES;
    }
    if ((ended && letter->to == 1) ||
        (!*begun && letter->from == 1 && letter->tag == TAG_ASK)) {
        *begun = true;
        word = (struct ranks_word){.what = WORD_HERE, .protocol = RANKS_PROTOCOL,
                                   .kind = EXCHANGE_ELASTIC};
        memcpy(more->p, &word, sizeof word);
        more->from = 1;
        more->to = 0;
        more->times = 1;
    }
}

START_TEST(words_that_are_not_taken_hold_up_those_that_come)
{
    bool begun = false;
    struct hostile job = {.job = HOSTILE_CENTER,
                          .size = RANKS,
                          .liar = HOSTILE_ALL,
                          .n = N,
                          .turns = LONG,
                          .alter = flood,
                          .context = &begun};
    struct hostile_end ends[RANKS];
    long most = hostile_run(&job, ends);

    ck_assert(begun);
    ck_assert_int_lt(most, FEW_BLOCKS);
    ck_assert_int_eq(memory_live(), 0);
}
END_TEST

static void say_escapes(void *context, struct letter *letter, struct letter *more)
{
    static const char text[] = "\033[2J\nrank 9: all is well\r\007";
    const struct ranks_word word = {.what = WORD_FAIL, .protocol = RANKS_PROTOCOL,
                                    .status = DESCANT_TIMEOUT};

    (void)context;
    (void)letter;
    memcpy(more->p, &word, sizeof word);
    memcpy(more->p + sizeof word, text, sizeof text);
    more->bytes = sizeof word + sizeof text;
    more->times = 1;
}

START_TEST(a_failure_s_text_is_one_line)
{
    struct hostile job = {.job = HOSTILE_MEANS, .size = RANKS, .n = N, .turns = TURNS,
                          .alter = say_escapes};
    struct hostile_end ends[RANKS];

    hostile_run(&job, ends);
    ck_assert_int_eq(ends[1].status, DESCANT_TIMEOUT);
    ck_assert(strstr(ends[1].says, "all is well"));
    for (const char *p = ends[1].says; *p; p++)
        ck_assert_msg(*p >= ' ' && *p < 127, "%s", ends[1].says);
    ck_assert_int_eq(memory_live(), 0);
}
END_TEST

/* --- lies by chance --- */

enum { SEEDS = 3000 };

static void run_seed(uint64_t seed)
{
    unsigned char bytes[64];
    struct rng rng;

    rng_init(&rng, seed);
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (unsigned char)(rng_next(&rng) >> 40);
    size_t n = 6 + (size_t)(rng_next(&rng) % (sizeof bytes - 6));
    hostile_run_bytes(bytes, n);
}

START_TEST(lies_by_chance_crash_nobody)
{
    for (uint64_t seed = 0; seed < (uint64_t)few(SEEDS, 100); seed++) {
        mark_point();
        run_seed(seed);
    }
}
END_TEST

int main(void)
{
    TCase *peers = new_case("peers", 60);
    tcase_add_loop_test(peers, who_does_not_lie_is_heard_to_the_end, 0, 48);
    tcase_add_loop_test(peers, a_lie_ends_the_job_with_its_line, 0, N(lies));
    tcase_add_test(peers, who_lies_together_is_found_by_rank_0);
    tcase_add_test(peers, words_that_are_not_taken_hold_up_those_that_come);
    tcase_add_test(peers, a_failure_s_text_is_one_line);
    tcase_add_test(peers, lies_by_chance_crash_nobody);
    return run_cases(peers, NULL);
}
