/* SPDX-License-Identifier: MIT */
/* The contract of link.h, over each link that there is. A case is a script for all ranks:
 * over the simulated link and over TCP one thread plays it for all of them; over MPI each
 * process plays the lines of its own rank and skips the others, for which say and hear
 * return NULL. Comments give the numbers of the contract's rules. */
#include "link/simulated.h"
#include "link/tcp_parts.h"
#include "harness/mpi.h"
#include "harness/tcp.h"

#include <pthread.h>

enum { RANKS = 3, SEEDS = 20, LETTERS = 1024, BULK = 100000, SYNC_TAG = LINK_TAGS - 1 };
enum { COPIED = 3000 };         /* bytes, more than a word, that MPI libraries copy */
enum { GUARD = BULK, BLANK = 0xee };    /* beyond a message's memory, and in it */
enum { TURNS = 200000 };        /* of a wait, 20 s over a link of real time */

#define TURN_NS UINT64_C(100000)
#define SILENCE_NS UINT64_C(3600000000000)      /* in virtual time, */
#define REAL_SILENCE_NS UINT64_C(300000000)     /* and where time is real */

static struct simulated *world;                 /* NULL: time is real */
static struct tcp_options address;              /* over TCP */
static bool over_tcp;
static struct link *ends[RANKS];                /* NULL: of another process, or closed */
static struct link_place places[RANKS];
static struct link_peer peers[RANKS][RANKS];    /* as told last; generation 0: nothing */
static bool silent[RANKS];                      /* its thread does nothing */
static uint64_t series;                         /* of the letters from now on */

/* A message, as one of its ends sees it. */
struct contract_letter {
    unsigned char *p;
    size_t room, bytes;
    int from;
    bool in, open, failed;
};

static struct contract_letter letters[LETTERS];
static int n_letters;

static struct contract_letter *write_letter(size_t room, int number)
{
    struct contract_letter *l = &letters[n_letters++];

    NEED(n_letters < LETTERS);
    *l = (struct contract_letter){.p = malloc(room + GUARD), .room = room, .open = true};
    NEED(l->p);
    memset(l->p, number, room);
    memset(l->p + room, BLANK, GUARD);
    return l;
}

static void free_letters(void)
{
    for (int i = 0; i < n_letters; i++) {
        NEED(!letters[i].open);
        for (int k = 0; k < GUARD; k++)
            NEED(letters[i].p[letters[i].room + (size_t)k] == BLANK);
        free(letters[i].p);
    }
    n_letters = 0;
}

/* --- what ranks do --- */

static struct contract_letter *say(int from, int to, int tag, size_t bytes, int number)
{
    if (!ends[from])
        return NULL;
    struct contract_letter *l = write_letter(bytes, number);
    NEED(ends[from]->type->send(ends[from], l->p, bytes,
                                &(struct link_message){tcp_test_rank(&address, to), tag,
                                                       series, l}));
    return l;
}

static struct contract_letter *hear(int to, int from, int tag, size_t room)
{
    if (!ends[to])
        return NULL;
    struct contract_letter *l = write_letter(room, BLANK);
    l->in = true;
    NEED(ends[to]->type->receive(ends[to], l->p, room,
                                 &(struct link_message){tcp_test_rank(&address, from), tag,
                                                        series, l}));
    return l;
}

static void collect(int rank)
{
    struct link_news news;

    NEED(ends[rank]->type->collect(ends[rank], &news));
    NEED(news.now_ns > 0 && (news.n_peers == 0 || !places[rank].fixed));
    for (int i = 0; i < news.n_peers; i++) {
        const struct link_peer *is = &news.peers[i];
        struct link_peer *was = &peers[rank][tcp_test_process(&address, is->rank)];
        NEED(!was->gone || !is->gone);
        NEED(is->gone == (was->generation == is->generation));
        *was = *is;
    }
    for (int i = 0; i < news.n_ended; i++) {
        struct contract_letter *l = news.ended[i].op;
        NEED(l->open);
        l->open = false;
        l->failed = news.ended[i].failed;
        l->from = tcp_test_process(&address, news.ended[i].from);
        l->bytes = news.ended[i].bytes;
        NEED(places[rank].fixed || l->failed || !l->in ||
             peers[rank][l->from].generation);
    }
}

static void turn_one(int rank)
{
    collect(rank);
    ends[rank]->type->sleep(ends[rank], TURN_NS, 0);
}

/* Each rank of this process collects once, and then time goes on. */
static void turn(void)
{
    struct link *any = NULL;

    for (int k = 0; k < RANKS; k++)
        if (ends[k] && !silent[k]) {
            collect(k);
            any = ends[k];
        }
    if (world) {
        uint64_t next = simulated_next(world), most = simulated_now(world) + TURN_NS;
        simulated_run(world, next < most ? next : most);
    } else if (any) {
        any->type->sleep(any, TURN_NS, 0);
    }
}

static void await(const struct contract_letter *l)
{
    for (int n = 0; l && l->open; n++) {
        NEED(n < TURNS);
        turn();
    }
}

/* Long enough for everything on its way to arrive. */
static void let_pass(void)
{
    for (int i = 0; i < 300; i++)
        turn();
}

static bool is_open(const struct contract_letter *l)
{
    return !l || l->open;
}

static bool has_failed(const struct contract_letter *l)
{
    return !l || (!l->open && l->failed);
}

static void need_sent(const struct contract_letter *l)
{
    await(l);
    NEED(!l || !l->failed);
}

static void need_got(const struct contract_letter *l, int from, size_t bytes, int number)
{
    await(l);
    if (!l)
        return;
    NEED(!l->failed && l->from == from && l->bytes == bytes);
    for (size_t i = 0; i < l->room; i++)
        NEED(l->p[i] == (i < bytes ? number : BLANK));
}

/* All ranks have come to this line. */
static void sync_all(void)
{
    struct contract_letter *out[RANKS][RANKS] = {{NULL}}, *in[RANKS][RANKS] = {{NULL}};

    for (int k = 0; k < RANKS; k++)
        for (int j = 0; j < RANKS; j++)
            if (j != k) {
                out[k][j] = say(k, j, SYNC_TAG, 1, 1);
                in[k][j] = hear(k, j, SYNC_TAG, 1);
            }
    for (int k = 0; k < RANKS; k++)
        for (int j = 0; j < RANKS; j++) {
            need_sent(out[k][j]);
            need_sent(in[k][j]);
        }
}

static bool all_have_come(int rank)
{
    int n = 0;

    for (int k = 0; k < RANKS; k++)
        n += peers[rank][k].generation == places[k].generation && !peers[rank][k].gone;
    return n == RANKS - 1;
}

static void await_comings(int rank)
{
    for (int n = 0; ends[rank] && !places[rank].fixed && !all_have_come(rank); n++) {
        NEED(n < TURNS);
        turn();
    }
}

/* --- cases --- */

/* 2, 8: over a fixed link all are there; else nobody is before it is told. */
static void places_are_told(void)
{
    for (int k = 0; k < RANKS; k++) {
        struct link_place *p = &places[k];
        if (!ends[k])
            continue;
        NEED(p->rank == tcp_test_rank(&address, k) && p->size == RANKS && p->generation != 0);
        NEED(p->local_rank < p->local_size && p->local_size <= p->most_local);
        NEED(p->host_number < p->hosts && p->host <= p->rank && *p->names[k]);
        if (p->fixed || peers[k][(k + 1) % RANKS].generation)
            continue;           /* over TCP rank 0 collects while others meet */
        struct contract_letter *out = say(k, (k + 1) % RANKS, 1, BULK, 1);
        struct contract_letter *in = hear(k, (k + 1) % RANKS, 1, 1);
        collect(k);
        NEED(has_failed(out) && has_failed(in));
    }
    for (int k = 0; k < RANKS; k++)
        await_comings(k);
    sync_all();
}

/* 3, 7: words and bulk of a stream come in the order in which they were sent. */
static void streams_keep_their_order(void)
{
    enum { N = 30, TAGS = 3 };
    struct contract_letter *s[RANKS][N], *r[RANKS][N];

    for (int i = 0; i < N; i++)
        for (int k = 0; k < RANKS; k++) {
            s[k][i] = say(k, (k + 1) % RANKS, i % TAGS, i % 4 ? 10 : BULK, i + 1);
            r[k][i] = hear(k, (k + 2) % RANKS, i % TAGS, BULK);
        }
    for (int i = 0; i < N; i++)
        for (int k = 0; k < RANKS; k++) {
            need_got(r[k][i], (k + 2) % RANKS, i % 4 ? 10 : BULK, i + 1);
            need_sent(s[k][i]);
        }
}

/* 3, 6: bulk that nobody receives stops neither words nor bulk of other streams. */
static void streams_do_not_wait_for_others(void)
{
    enum { N = 10 };
    struct contract_letter *waits[2][N], *late[2][N], *s[2][2], *r[2][2];

    for (int k = 0; k < 2; k++)
        for (int i = 0; i < N; i++)
            waits[k][i] = say(k, 1 - k, 1, BULK, i);
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < 2; i++) {
            s[k][i] = say(k, 1 - k, 2 + i, i ? BULK : 10, 50 + k);
            r[k][i] = hear(k, 1 - k, 2 + i, BULK);
        }
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < 2; i++) {
            need_got(r[k][i], 1 - k, i ? BULK : 10, 51 - k);
            need_sent(s[k][i]);
        }
    sync_all();
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < N; i++)
            late[k][i] = hear(k, 1 - k, 1, BULK);
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < N; i++) {
            need_got(late[k][i], 1 - k, BULK, i);
            need_sent(waits[k][i]);
        }
}

/* 4, 5: words end before anybody receives them, and are copies then; those for which
 * there is no room come, too. */
static void words_are_copied(void)
{
    enum { N = LINK_WORDS + 5, TAGS = 2 };
    struct contract_letter *s[TAGS][N], *r[TAGS][N];

    for (int t = 0; t < TAGS; t++)
        for (int i = 0; i < N; i++)
            s[t][i] = say(0, 1, t, LINK_WORD, i + 1);
    for (int t = 0; t < TAGS; t++)
        for (int i = 0; i < LINK_WORDS; i++) {
            need_sent(s[t][i]);
            if (s[t][i])
                memset(s[t][i]->p, 0xff, LINK_WORD);
        }
    sync_all();
    for (int t = TAGS - 1; t >= 0; t--)
        for (int i = 0; i < N; i++) {
            r[t][i] = hear(1, 0, t, LINK_WORD);
            need_got(r[t][i], 0, LINK_WORD, i + 1);
        }
    for (int t = 0; t < TAGS; t++)
        for (int i = 0; i < N; i++)
            need_sent(s[t][i]);
}

/* 6: bulk of many pieces, of a byte more than a word, and of nothing, into receives that
 * are open and into receives that are late. */
static void bulk_is_whole(void)
{
    static const size_t sizes[] = {LINK_WORD + 1, 65537, 3000001, 0};
    enum { N = sizeof sizes / sizeof *sizes };
    struct contract_letter *s[2][N], *r[2][N];

    for (int i = 0; i < N; i++)
        r[0][i] = hear(2, 0, i, sizes[i] + 3);
    sync_all();
    for (int i = 0; i < N; i++) {
        s[0][i] = say(0, 2, i, sizes[i], i + 7);
        s[1][i] = say(0, 1, i, sizes[i], i + 9);
    }
    sync_all();
    for (int i = 0; i < N; i++)
        r[1][i] = hear(1, 0, i, sizes[i] + 3);
    for (int i = 0; i < N; i++) {
        need_got(r[0][i], 0, sizes[i], i + 7);
        need_got(r[1][i], 0, sizes[i], i + 9);
        need_sent(s[0][i]);
        need_sent(s[1][i]);
    }
}

/* 7: also where the message has come before its receive; the next one is whole. Over MPI
 * it is one that the library copies. */
static void too_long_is_told_and_not_written(void)
{
    struct contract_letter *s[4], *r[4];
    size_t bulk = world ? BULK : COPIED;

    for (int i = 0; i < 4; i++)
        s[i] = say(0, 1, i / 2, i % 2 ? 5 : i ? bulk : 100, i + 1);
    sync_all();
    for (int i = 0; i < 4; i++)
        r[i] = hear(1, 0, i / 2, 20);
    for (int i = 0; i < 4; i++) {
        await(r[i]);
        if (r[i] && i % 2 == 0)
            NEED(!r[i]->failed && r[i]->from == 0 && r[i]->bytes == LINK_TOO_LONG);
        else
            need_got(r[i], 0, 5, i + 1);
        need_sent(s[i]);
    }
}

/* 6, 7: each receive has one message, and those of a sender stay in order. */
static void any_takes_from_all(void)
{
    enum { N = 12 };
    struct contract_letter *s[RANKS][N], *r[2 * N];
    int n_from[RANKS] = {0};

    for (int i = 0; i < N; i++)
        for (int k = 1; k < RANKS; k++)
            s[k][i] = say(k, 0, 4, i % 3 ? 10 : BULK, 20 * k + i);
    for (int i = 0; i < 2 * N; i++)
        r[i] = hear(0, LINK_ANY, 4, BULK);
    for (int i = 0; i < 2 * N; i++) {
        await(r[i]);
        for (int k = r[i] ? r[i]->from : 0; k; k = 0) {
            int at = n_from[k]++;
            need_got(r[i], k, at % 3 ? 10 : BULK, 20 * k + at);
        }
    }
    for (int i = 0; i < N; i++)
        for (int k = 1; k < RANKS; k++)
            need_sent(s[k][i]);
    NEED(!ends[0] || (n_from[1] == N && n_from[2] == N));
}

/* Rank 2 is paused or cut off for an hour of virtual time. Over MPI it does not call its
 * link for a while. */
static void be_silent(bool cut)
{
    silent[2] = true;
    if (!world) {
        uint64_t until = clock_now_ns() + REAL_SILENCE_NS;
        while (clock_now_ns() < until)
            ends[2] ? clock_sleep_until(until) : turn();
        silent[2] = false;
        return;
    }
    uint64_t now = simulated_now(world), until = now + SILENCE_NS;
    for (int k = 0; k < (cut ? 2 : 1); k++) {
        const struct simulated_fault fault = {
            .kind = cut ? SIMULATED_CUT : SIMULATED_PAUSE, .rank = cut ? k : 2,
            .other = 2, .at_ns = now, .until_ns = until};
        NEED(simulated_fault(world, &fault));
    }
    silent[2] = !cut;
    while (simulated_now(world) < until) {
        uint64_t next = simulated_next(world);
        turn();
        if (next > until)
            simulated_run(world, until);
    }
    silent[2] = false;
}

/* 8: a peer that is only silent is not gone; open messages stay open, and go on later. */
static void silence_is_not_told(bool cut)
{
    struct contract_letter *bulk[2], *taken[2], *word, *heard, *other, *got;

    bulk[0] = say(0, 2, 1, BULK, 1);
    taken[1] = hear(1, 2, 1, BULK);
    heard = hear(0, 2, 2, 10);
    sync_all();
    other = say(0, 1, 3, BULK, 4);
    got = hear(1, 0, 3, BULK);
    be_silent(cut);
    need_got(got, 0, BULK, 4);
    need_sent(other);
    NEED(is_open(bulk[0]) && is_open(taken[1]) && is_open(heard));
    sync_all();
    taken[0] = hear(2, 0, 1, BULK);
    bulk[1] = say(2, 1, 1, BULK, 2);
    word = say(2, 0, 2, 10, 3);
    need_got(taken[0], 0, BULK, 1);
    need_got(taken[1], 2, BULK, 2);
    need_got(heard, 2, 10, 3);
    need_sent(bulk[0]);
    need_sent(bulk[1]);
    need_sent(word);
    for (int k = 0; k < RANKS; k++)
        NEED(!ends[k] || places[k].fixed || all_have_come(k));
}

static void a_pause_is_not_told(void)
{
    silence_is_not_told(false);
}

static void a_cut_is_not_told(void)
{
    silence_is_not_told(true);
}

static void forget(int rank, int other, uint64_t below)
{
    if (ends[rank])
        NEED(ends[rank]->type->forget(ends[rank], tcp_test_rank(&address, other), below));
    if (ends[rank])
        collect(rank);
}

/* 10: a round is given up, and the next follows; a fixed link has rounds that end. */
static void rounds_have_series(void)
{
    struct contract_letter *s[2], *r[2], *old[2] = {NULL, NULL};

    series = 7;
    if (!places[0].fixed && !places[1].fixed) {
        old[0] = say(0, 1, 5, BULK, 1);
        old[1] = hear(1, 0, 6, BULK);
        let_pass();
        for (int k = 0; k < 2; k++)
            forget(k, LINK_ANY, 8);
        NEED(has_failed(old[0]) && has_failed(old[1]));
    }
    for (int i = 0; i < 2; i++, series++) {
        series += series == 7;
        s[i] = say(0, 1, 5, i ? 10 : BULK, i + 2);
        r[i] = hear(1, 0, 5, BULK);
        need_got(r[i], 0, i ? 10 : BULK, i + 2);
        need_sent(s[i]);
    }
    series = 0;
}

/* The letter goes once more, in the series that is on now. */
static void again(struct contract_letter *l, int rank, int other)
{
    if (!l)
        return;
    l->open = true;
    const struct link_message message = {tcp_test_rank(&address, other), 5, series, l};
    NEED(l->in ? ends[rank]->type->receive(ends[rank], l->p, l->room, &message)
               : ends[rank]->type->send(ends[rank], l->p, l->room, &message));
}

/* 10: a round for each few steps of a month; more of them than a link may keep. Some have
 * bulk, which its receiver must ask for. */
static void series_need_no_end(void)
{
    struct contract_letter *s[2], *r[2], *bulk_s = NULL, *bulk_r = NULL;

    series = 100;
    for (int k = 0; k < 2; k++) {
        s[k] = say(k, 1 - k, 5, 10, k + 1);
        r[k] = hear(k, 1 - k, 5, 10);
    }
    while (series++ < 1400) {
        if (series % 50 == 0) {
            bulk_r = hear(1, 0, 6, BULK);
            bulk_s = say(0, 1, 6, BULK, 9);
            need_got(bulk_r, 0, BULK, 9);
            need_sent(bulk_s);
        }
        for (int k = 0; k < 2; k++) {
            need_got(r[k], 1 - k, 10, 2 - k);
            need_sent(s[k]);
        }
        for (int k = 0; k < 2; k++)
            again(s[k], k, 1 - k);
        turn();         /* so that it is the peer's message that begins a stream */
        for (int k = 0; k < 2; k++)
            again(r[k], k, 1 - k);
    }
    for (int k = 0; k < 2; k++) {
        need_got(r[k], 1 - k, 10, 2 - k);
        need_sent(s[k]);
    }
    series = 0;
}

/* 1: it may run beside the other functions, for so long at most. */
static void *sleep_beside(void *end)
{
    struct link *link = end;
    uint64_t began = clock_now_ns();

    link->type->sleep(link, UINT64_C(3600000000000), began + 20000000);
    link->type->sleep(link, 20000000, 0);
    link->type->sleep(link, UINT64_C(3600000000000), began);
    NEED(clock_now_ns() - began < UINT64_C(10000000000));
    return NULL;
}

static void sleep_is_bounded(void)
{
    pthread_t sleeper;

    for (int k = 0; k < RANKS && !world; k++)
        if (ends[k]) {
            NEED(pthread_create(&sleeper, NULL, sleep_beside, ends[k]) == 0);
            sync_all();
            pthread_join(sleeper, NULL);
        }
}

/* --- going, where the link is not fixed; else that it says so --- */

static void open_ends(void);

static void await_gone(int rank, int other)
{
    for (int n = 0; ends[rank] && !peers[rank][other].gone; n++) {
        NEED(n < TURNS);
        turn();
    }
}

/* 9: words that had ended come although their sender closes, and its end is told after
 * them; what else was open with it fails once it is forgotten. */
static void what_had_left_comes_before_the_end(void)
{
    enum { N = 5 };
    struct contract_letter *s[N], *r[N], *bulk, *extra, *any, *other;

    any = hear(0, LINK_ANY, 3, 10);
    for (int i = 0; i < N; i++)
        r[i] = i < N - 1 ? hear(0, 2, 1, 10) : NULL;
    for (int i = 0; i < N; i++)
        s[i] = say(2, 0, 1, 10, i + 1);
    for (int i = 0; i < N; i++)
        need_sent(s[i]);
    bulk = say(0, 2, 2, BULK, 1);
    NEED(ends[2]->type->close(ends[2], false));
    ends[2] = NULL;
    await_gone(0, 2);
    for (int i = 0; i < N - 1; i++) {
        NEED(!r[i]->open);
        need_got(r[i], 2, 10, i + 1);
    }
    r[N - 1] = hear(0, 2, 1, 10);               /* it had left before */
    need_got(r[N - 1], 2, 10, N);
    extra = hear(0, 2, 1, 10);
    let_pass();
    NEED(is_open(bulk) && is_open(extra));
    forget(0, 2, LINK_PEER);
    NEED(has_failed(bulk) && has_failed(extra) && is_open(any));
    extra = hear(0, 2, 1, 10);
    collect(0);
    NEED(has_failed(extra));
    other = say(1, 0, 3, 10, 9);
    need_got(any, 1, 10, 9);
    need_sent(other);
}

/* 2, 8, 9: it comes again as another, to those alone that have forgotten the old one. */
static void a_process_that_meets_again_is_another(void)
{
    uint64_t before = peers[0][2].generation;

    open_ends();
    NEED(places[2].generation != before);
    await_comings(0);
    let_pass();
    NEED(peers[0][2].generation == places[2].generation);
    NEED(peers[1][2].gone && peers[1][2].generation == before && !all_have_come(2));
    forget(1, 2, LINK_PEER);
    for (int k = 0; k < RANKS; k++)
        await_comings(k);
    sync_all();
}

/* 9: a receive from LINK_ANY that bulk of one peer had taken goes to that of another, once
 * the first one is forgotten. */
static void a_receive_goes_on_to_another(void)
{
    enum { LONG = 50 * BULK, PASS = 20 };
    struct contract_letter *any = hear(0, LINK_ANY, 5, LONG), *lost, *other;

    lost = say(2, 0, 5, LONG, 1);
    turn();
    silent[2] = true;           /* it has asked for room, and sends nothing more */
    for (int i = 0; i < PASS; i++)
        turn();
    other = say(1, 0, 5, BULK, 2);
    for (int i = 0; i < PASS; i++)
        turn();
    NEED(is_open(lost) && is_open(any) && is_open(other));
    NEED(ends[2]->type->close(ends[2], false));
    ends[2] = NULL;
    silent[2] = lost->open = false;
    await_gone(0, 2);
    forget(0, 2, LINK_PEER);
    need_got(any, 1, BULK, 2);
    need_sent(other);
    await_gone(1, 2);
    forget(1, 2, LINK_PEER);
    open_ends();
    for (int k = 0; k < RANKS; k++)
        await_comings(k);
}

/* 9: the other end is told; neither hears the other until one has met anew. */
static void who_is_forgotten_is_told(void)
{
    struct contract_letter *s = say(1, 0, 1, BULK, 1), *r = hear(1, 0, 2, 10), *again;

    forget(0, 1, LINK_PEER);
    await_gone(1, 0);
    NEED(is_open(s) && is_open(r));
    forget(1, 0, LINK_PEER);
    NEED(has_failed(s) && has_failed(r));
    let_pass();
    again = hear(0, 1, 2, 10);
    collect(0);
    NEED(has_failed(again) && peers[1][0].gone);
}

static void a_fixed_link_forgets_nobody(void)
{
    for (int k = 0; k < RANKS; k++)
        if (ends[k]) {
            NEED(!ends[k]->type->forget(ends[k], (k + 1) % RANKS, LINK_PEER));
            NEED(*ends[k]->type->why(ends[k]));
        }
}

/* --- over each link --- */

static const struct {
    const char *name;
    void (*play)(void);
} cases[] = {
    {"places are told", places_are_told},
    {"streams keep their order", streams_keep_their_order},
    {"streams do not wait for others", streams_do_not_wait_for_others},
    {"words are copied", words_are_copied},
    {"bulk is whole", bulk_is_whole},
    {"too long is told and not written", too_long_is_told_and_not_written},
    {"any takes from all", any_takes_from_all},
    {"a pause is not told", a_pause_is_not_told},
    {"a cut is not told", a_cut_is_not_told},
    {"rounds have series", rounds_have_series},
    {"series need no end", series_need_no_end},
    {"sleep is bounded", sleep_is_bounded},
};

static void open_one(int rank, const struct link_type *type)
{
    struct link_entry entry = {.context = world, .rank = rank};

    if (over_tcp)
        entry = tcp_test_entry(&address, rank);
    entry.start_s = 30;
    struct link_place place = {.rank = -1};
    struct link *link = type->meet(&entry, &place);

    NEED(link && place.rank >= 0 && place.rank < RANKS);
    int process = tcp_test_process(&address, place.rank);
    memset(peers[process], 0, sizeof peers[process]);
    ends[process] = link;
    places[process] = place;
}

/* Ranks above 0 meet beside rank 0, whose link answers them in collect. */
static void *open_beside(void *rank)
{
    open_one((int)(intptr_t)rank, &link_tcp);
    return NULL;
}

static void open_beside_first(int rank)
{
    pthread_t thread;

    NEED(pthread_create(&thread, NULL, open_beside, (void *)(intptr_t)rank) == 0);
    while (pthread_tryjoin_np(thread, NULL) != 0)
        turn_one(0);
}

/* Those that are closed, over the simulated link or TCP. */
static void open_ends(void)
{
    for (int k = 0; k < RANKS; k++)
        if (!ends[k] && over_tcp && k > 0)
            open_beside_first(k);
        else if (!ends[k])
            open_one(k, over_tcp ? &link_tcp : &link_simulated);
}

static void play_all(void)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cases[i].play();
        free_letters();
    }
}

static int part_contract(void)
{
    open_one(-1, &link_mpi);
    play_all();
    a_fixed_link_forgets_nobody();
    for (int k = 0; k < RANKS; k++)
        if (ends[k])
            NEED(ends[k]->type->close(ends[k], true));
    return 0;
}

START_TEST(simulated_ranks_keep_it)
{
    const struct simulated_options options = {.ranks = RANKS, .fixed = _i % 2,
                                              .seed = (uint64_t)_i, .latency_ns = 1000,
                                              .jitter_ns = 3000, .bytes_per_s = 1e9};

    world = simulated_create(&options);
    ck_assert_ptr_nonnull(world);
    open_ends();
    play_all();
    if (options.fixed) {
        a_fixed_link_forgets_nobody();
    } else {
        what_had_left_comes_before_the_end();
        a_process_that_meets_again_is_another();
        a_receive_goes_on_to_another();
        who_is_forgotten_is_told();
    }
    for (int k = 0; k < RANKS; k++)
        link_simulated.close(ends[k], true);
    free_letters();
    simulated_destroy(world);
}
END_TEST

static void close_ends(void)
{
    for (int k = RANKS - 1; k >= 0; k--) {
        if (ends[k])
            NEED(ends[k]->type->close(ends[k], true));
        ends[k] = NULL;
    }
}

/* 8: connections that break while both ends live are not told, and cost no message. Some
 * receives are late. */
static void broken_connections_are_mended(void)
{
    enum { N = 24, TAGS = 3, LONG = 5 * BULK };
    struct contract_letter *s[RANKS][N], *r[RANKS][N];
    struct rng rng;

    rng_init(&rng, 1);
    for (int i = 0; i < N; i++)
        for (int k = 0; k < RANKS; k++) {
            s[k][i] = say(k, (k + 1) % RANKS, i % TAGS, i % 4 ? 500 : LONG, i + 1);
            r[k][i] = i < N / 2 ? hear(k, (k + 2) % RANKS, i % TAGS, LONG) : NULL;
        }
    for (int i = 0; i < 300; i++) {
        turn();
        if (rng_uniform(&rng) < 0.2)
            tcp_test_break(ends[rng_next(&rng) % RANKS], rng_next(&rng));
    }
    for (int i = 0; i < N; i++)
        for (int k = 0; k < RANKS; k++) {
            r[k][i] = r[k][i] ? r[k][i] : hear(k, (k + 2) % RANKS, i % TAGS, LONG);
            need_got(r[k][i], (k + 2) % RANKS, i % 4 ? 500 : LONG, i + 1);
        }
    for (int i = 0; i < N; i++)
        for (int k = 0; k < RANKS; k++)
            need_sent(s[k][i]);
    for (int k = 0; k < RANKS; k++)
        NEED(all_have_come(k));
}

START_TEST(ranks_over_tcp_keep_it)
{
    over_tcp = true;
    tcp_test_address(&address, _i % 2 ? "[::1]" : "127.0.0.1", RANKS);
    address.star = _i / 2;
    open_ends();
    play_all();
    broken_connections_are_mended();
    free_letters();
    what_had_left_comes_before_the_end();
    a_process_that_meets_again_is_another();
    a_receive_goes_on_to_another();
    who_is_forgotten_is_told();
    free_letters();
    close_ends();
}
END_TEST

START_TEST(ranks_of_mpi_keep_it)
{
    if (is_there((enum mpi_library)_i))
        need_good((enum mpi_library)_i, RANKS, "contract");
}
END_TEST

static const struct mpi_part parts[] = {{"contract", part_contract}};

int main(int argc, char **argv)
{
    TCase *all = tcase_create("contract");
    tcase_add_loop_test(all, simulated_ranks_keep_it, 0, few(SEEDS, 3));
    tcase_add_loop_test(all, ranks_over_tcp_keep_it, few(0, 1), few(4, 3));
    tcase_add_loop_test(all, ranks_of_mpi_keep_it, 0, LIBRARIES_RUN);
    return run_mpi(argc, argv, parts, sizeof parts / sizeof *parts, all);
}
