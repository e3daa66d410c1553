/* SPDX-License-Identifier: MIT */
/* The link over TCP as a star: ranks above 0 connect to rank 0 alone and reach each other
 * through it. Most ranks are played by one thread here; some are processes that die, or
 * sockets that say what no rank would. tests/test_link_contract.c has the contract. */
#include "harness/heard.h"
#include "harness/processes.h"
#include "harness/suite.h"
#include "harness/tcp.h"
#include "link/tcp_parts.h"

#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/prctl.h>

enum { RANKS = 5, LETTERS = 2048, TURN_NS = 100000, WAIT_S = 10, LONG = 300000 };

struct letter {
    unsigned char *p;
    size_t room, bytes;
    int from;
    bool open, failed;
};

static struct tcp_options at;
static struct link *ends[RANKS];                /* NULL: another process, or closed */
static struct link_place places[RANKS];
static struct link_peer peers[RANKS][RANKS];    /* as told last */
static bool silent[RANKS];
static struct letter letters[LETTERS];
static int n_letters, n_ranks;
static _Atomic bool *hub_closes;                /* the process that is the hub obeys */

static struct tcp_link *link_of(int rank)
{
    return (struct tcp_link *)(void *)ends[rank];
}

static struct letter *write_letter(size_t room, int number)
{
    struct letter *l = &letters[n_letters++];

    ck_assert_int_lt(n_letters, LETTERS);
    *l = (struct letter){.p = malloc(room + 1), .room = room, .open = true};
    ck_assert_ptr_nonnull(l->p);
    memset(l->p, number, room);
    return l;
}

static struct letter *say(int from, int to, int tag, size_t bytes, int number)
{
    struct letter *l = write_letter(bytes, number);

    ck_assert(link_tcp.send(ends[from], l->p, bytes, &(struct link_message){tcp_test_rank(&at, to), tag, 0, l}));
    return l;
}

static struct letter *hear_from(int to, int from, int tag, size_t room)
{
    struct letter *l = write_letter(room, 0);

    ck_assert(link_tcp.receive(ends[to], l->p, room, &(struct link_message){tcp_test_rank(&at, from), tag, 0, l}));
    return l;
}

static void collect(int rank)
{
    struct link_news news;

    ck_assert_msg(link_tcp.collect(ends[rank], &news), "%s", link_tcp.why(ends[rank]));
    for (int i = 0; i < news.n_peers; i++) {
        const struct link_peer *is = &news.peers[i];
        struct link_peer *was = &peers[rank][tcp_test_process(&at, is->rank)];
        ck_assert(is->gone == (was->generation == is->generation));
        *was = *is;
    }
    for (int i = 0; i < news.n_ended; i++) {
        struct letter *l = news.ended[i].op;
        ck_assert(l->open);
        l->open = false;
        l->failed = news.ended[i].failed;
        l->from = tcp_test_process(&at, news.ended[i].from);
        l->bytes = news.ended[i].bytes;
    }
}

static void turn(void)
{
    int last = -1;

    for (int k = 0; k < RANKS; k++)
        if (ends[k] && !silent[k])
            collect(last = k);
    link_tcp.sleep(ends[last], TURN_NS, 0);
}

#define AWAIT(condition)                                                                \
    for (uint64_t until_ns = clock_now_ns() + WAIT_S * UINT64_C(1000000000);            \
         !(condition); turn())                                                          \
        ck_assert_msg(clock_now_ns() < until_ns, "line %d: %s", __LINE__, #condition)

static void pass(double s)
{
    for (uint64_t until = clock_now_ns() + (uint64_t)(s * 1e9); clock_now_ns() < until;)
        turn();
}

static void need_got(struct letter *l, int from, size_t bytes, int number)
{
    AWAIT(!l->open);
    ck_assert(!l->failed && l->from == from && l->bytes == bytes);
    for (size_t i = 0; i < bytes; i++)
        ck_assert_int_eq(l->p[i], number);
}

static void need_sent(struct letter *l)
{
    AWAIT(!l->open);
    ck_assert(!l->failed);
}

static void exchange(int a, int b)
{
    struct letter *s[2], *r[2];

    for (int k = 0; k < 2; k++) {
        s[k] = say(k ? b : a, k ? a : b, 9, k ? 100 : 5000, 7);
        r[k] = hear_from(k ? a : b, k ? b : a, 9, 5000);
    }
    for (int k = 0; k < 2; k++) {
        need_got(r[k], k ? b : a, k ? 100 : 5000, 7);
        need_sent(s[k]);
    }
}

static void *open_beside(void *rank)
{
    int k = (int)(intptr_t)rank;
    struct link_entry entry = tcp_test_entry(&at, k);

    entry.start_s = 20;
    ends[k] = link_tcp.meet(&entry, &places[k]);
    memset(peers[k], 0, sizeof peers[k]);
    return NULL;
}

/* Rank 0, if it is played here, answers meanwhile. */
static void open_rank(int k)
{
    pthread_t thread;

    if (k == 0 || !ends[0]) {
        open_beside((void *)(intptr_t)k);
    } else {
        ck_assert_int_eq(pthread_create(&thread, NULL, open_beside, (void *)(intptr_t)k), 0);
        while (pthread_tryjoin_np(thread, NULL) != 0) {
            collect(0);
            link_tcp.sleep(ends[0], TURN_NS, 0);
        }
    }
    ck_assert_ptr_nonnull(ends[k]);
    ck_assert(places[k].rank == tcp_test_rank(&at, k) && places[k].star);
}

static bool has_come(int rank, int other)
{
    const struct link_peer *is = &peers[rank][other];
    return is->generation && !is->gone &&
           (!ends[other] || is->generation == places[other].generation);
}

static void meet_from(int first, int n)
{
    n_ranks = n;
    for (int k = first; k < n; k++)
        open_rank(k);
    for (int k = first; k < n; k++)
        for (int j = 0; j < n; j++)
            AWAIT(j == k || has_come(k, j));
}

static void prepare(int most)
{
    tcp_test_address(&at, "127.0.0.1", most);
    at.star = true;
}

static void forget(int rank, int other)
{
    ck_assert(link_tcp.forget(ends[rank], tcp_test_rank(&at, other), LINK_PEER));
    peers[rank][other] = (struct link_peer){.rank = other};
}

static void *close_beside(void *end)
{
    ck_assert(link_tcp.close(end, true));
    return NULL;
}

/* Each in a thread: one waits for the other ends to close. */
static void close_all(void)
{
    pthread_t threads[RANKS];

    for (int k = 0; k < RANKS; k++)
        if (ends[k])
            ck_assert_int_eq(pthread_create(&threads[k], NULL, close_beside, ends[k]), 0);
    for (int k = 0; k < RANKS; k++)
        if (ends[k])
            pthread_join(threads[k], NULL);
    for (int i = 0; i < n_letters; i++)
        free(letters[i].p);
}

/* --- ranks --- */

/* Each has one connection, but rank 0, and listens nowhere. */
static void look_like_a_star(void)
{
    for (int k = 0; k < n_ranks; k++) {
        int n = 0;
        for (const struct tcp_connection *c = link_of(k)->connections; c; c = c->next)
            n += c->state == TCP_OPEN;
        ck_assert_int_eq(n, k ? 1 : n_ranks - 1);
        ck_assert_int_eq(link_of(k)->listener >= 0, k == 0);
    }
}

/* Words and bulk between all, of which connections break at all ends by chance. */
START_TEST(all_reach_each_other)
{
    enum { N = 12, TAGS = 3 };
    static struct letter *s[RANKS][RANKS][N], *r[RANKS][RANKS][N];
    struct rng rng;

    prepare(RANKS);
    meet_from(0, RANKS);
    rng_init(&rng, (uint64_t)_i);
    for (int i = 0; i < N; i++)
        for (int k = 0; k < RANKS; k++)
            for (int j = 0; j < RANKS; j++)
                if (j != k) {
                    s[k][j][i] = say(k, j, i % TAGS, i % 4 ? 500 : LONG, 1 + i);
                    r[k][j][i] = i < N / 2 ? hear_from(k, j, i % TAGS, LONG) : NULL;
                }
    for (int i = 0; _i && i < 400; i++) {
        turn();
        if (rng_uniform(&rng) < 0.1)
            tcp_test_break(ends[rng_next(&rng) % RANKS], rng_next(&rng));
    }
    for (int i = 0; i < N; i++)
        for (int k = 0; k < RANKS; k++)
            for (int j = 0; j < RANKS; j++)
                if (j != k) {
                    if (!r[k][j][i])
                        r[k][j][i] = hear_from(k, j, i % TAGS, LONG);
                    need_got(r[k][j][i], j, i % 4 ? 500 : LONG, 1 + i);
                    need_sent(s[j][k][i]);
                }
    for (int k = 0; k < RANKS; k++)
        for (int j = 0; j < RANKS; j++)
            ck_assert(j == k || has_come(k, j));
    look_like_a_star();
    close_all();
}
END_TEST

/* A process of its own: it forgets peers that are gone. */
static pid_t begin_process(int rank)
{
    pid_t pid = fork();
    struct link_news news;

    ck_assert_int_ge(pid, 0);
    if (pid)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    memset(ends, 0, sizeof ends);
    open_beside((void *)(intptr_t)rank);
    while (ends[rank] && link_tcp.collect(ends[rank], &news) && !(*hub_closes && !rank)) {
        for (int i = 0; i < news.n_peers; i++)
            if (news.peers[i].gone)
                link_tcp.forget(ends[rank], news.peers[i].rank, LINK_PEER);
        link_tcp.sleep(ends[rank], 1000000, 0);
    }
    if (ends[rank])
        link_tcp.close(ends[rank], false);
    _exit(0);
}

/* Rank 0 is killed, or closes, in the midst of messages, and begins anew as another: the
 * others keep their generations, lose nobody but rank 0, and no message. */
START_TEST(a_hub_begins_anew)
{
    enum { N = 24, TAGS = 3, FIRST = 1, LAST = 3 };
    struct letter *s[RANKS][N], *r[RANKS][N];
    uint64_t generations[RANKS];

    prepare(RANKS);
    hub_closes = share_memory(sizeof *hub_closes);
    pid_t hub = begin_process(0);
    meet_from(FIRST, LAST + 1);
    for (int i = 0; i < N; i++)
        for (int k = FIRST; k <= LAST; k++) {
            s[k][i] = say(k, k % LAST + 1, i % TAGS, i % 4 ? 500 : LONG, 1 + i);
            r[k][i] = i < N / 2 ? hear_from(k, (k + 1) % LAST + 1, i % TAGS, LONG) : NULL;
        }
    for (int i = 0; i < 20 * _i; i++)
        turn();
    if (_i % 2)
        *hub_closes = true;
    else
        kill(hub, SIGKILL);
    end_of(hub);
    *hub_closes = false;
    for (int k = FIRST; k <= LAST; k++) {
        AWAIT(peers[k][0].gone);
        generations[k] = peers[k][0].generation;
        forget(k, 0);
    }
    pass(0.5);
    for (int k = FIRST; k <= LAST; k++)
        for (int j = FIRST; j <= LAST; j++)
            ck_assert(j == k || has_come(k, j));
    hub = begin_process(0);
    for (int k = FIRST; k <= LAST; k++) {
        AWAIT(has_come(k, 0));
        ck_assert_uint_gt(peers[k][0].generation, generations[k]);
    }
    for (int i = 0; i < N; i++)
        for (int k = FIRST; k <= LAST; k++) {
            int from = (k + 1) % LAST + 1;
            r[k][i] = r[k][i] ? r[k][i] : hear_from(k, from, i % TAGS, LONG);
            need_got(r[k][i], from, i % 4 ? 500 : LONG, 1 + i);
            need_sent(s[from][i]);
        }
    for (int k = FIRST; k <= LAST; k++)
        for (int j = FIRST; j <= LAST; j++)
            ck_assert(j == k || has_come(k, j));
    close_all();
    kill(hub, SIGKILL);
    end_of(hub);
}
END_TEST

/* A rank that is stopped is not gone; one that is killed is, for all. Its next process
 * comes to those that have forgotten it. */
START_TEST(a_killed_rank_is_gone)
{
    prepare(RANKS);
    hub_closes = share_memory(sizeof *hub_closes);
    meet_from(0, 2);
    pid_t pid = begin_process(2);
    AWAIT(has_come(0, 2) && has_come(1, 2));
    kill(pid, SIGSTOP);
    struct letter *waits = say(1, 2, 1, LONG, 1);
    pass(TCP_CLOSED_MS / 1e3 + 1);
    ck_assert(has_come(0, 2) && has_come(1, 2));
    kill(pid, SIGKILL);
    end_of(pid);
    uint64_t before = peers[1][2].generation, began = clock_now_ns();
    AWAIT(peers[0][2].gone && peers[1][2].gone);
    ck_assert_uint_lt(clock_now_ns() - began, (TCP_CLOSED_MS + 1000) * TCP_MS);
    pid = begin_process(2);
    pass(0.3);
    ck_assert(peers[0][2].gone && peers[1][2].gone && waits->open);
    forget(0, 2);
    AWAIT(has_come(0, 2));
    pass(0.3);
    ck_assert(peers[1][2].gone && peers[1][2].generation == before);
    forget(1, 2);
    AWAIT(!waits->open && has_come(1, 2));
    ck_assert(waits->failed && peers[1][2].generation > before);
    exchange(0, 1);
    kill(pid, SIGKILL);
    end_of(pid);
    close_all();
}
END_TEST

static struct tcp_connection *connection_of(int rank, int other)
{
    return link_of(rank)->peers[other].connection;
}

/* A hub that still has words for one rank closes: to that rank nobody else is gone. */
START_TEST(a_hub_that_closes_tells_of_no_death)
{
    enum { MUCH = 64 << 20 };
    pthread_t thread;
    struct letter *in, *word;

    prepare(RANKS);
    meet_from(0, 4);
    in = hear_from(1, 0, 1, MUCH);
    pass(0.1);
    silent[1] = true;
    say(0, 1, 1, MUCH, 1);
    pass(0.3);
    say(0, 1, 2, 5, 2);
    ck_assert_int_eq(pthread_create(&thread, NULL, close_beside, ends[0]), 0);
    ends[0] = NULL;
    AWAIT(peers[2][0].gone && peers[3][0].gone);
    silent[1] = false;
    word = hear_from(1, 0, 2, 5);
    AWAIT(peers[1][0].gone);
    need_got(word, 0, 5, 2);
    ck_assert(in->open && has_come(1, 2) && has_come(1, 3) && has_come(2, 3));
    pthread_join(thread, NULL);
    close_all();
}
END_TEST

/* Words of a rank that has closed come before the news that it is gone, also where its next
 * process is there before they are read. */
START_TEST(words_come_before_the_end)
{
    enum { WORDS = LINK_WORDS, MUCH = 32 << 20 };
    struct letter *in, *r[WORDS];

    prepare(64);
    meet_from(0, 4);
    in = hear_from(2, 3, 2, MUCH);
    pass(0.1);
    silent[2] = true;                   /* what is for it stays with rank 0 */
    say(3, 2, 2, MUCH, 1);
    pass(0.3);
    for (int i = 0; i < WORDS; i++)
        need_sent(say(1, 2, 1, LINK_WORD, i + 1));
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, close_beside, ends[1]), 0);
    ends[1] = NULL;
    AWAIT(peers[0][1].gone && peers[3][1].gone);
    pthread_join(thread, NULL);
    ck_assert_uint_gt(link_of(0)->peers[1].pairs[2].held, WORDS * LINK_WORD);
    forget(0, 1);
    forget(3, 1);
    if (_i) {
        open_rank(1);
        AWAIT(has_come(0, 1) && has_come(3, 1) && has_come(1, 3));
        ck_assert(!peers[1][2].generation);
    }
    silent[2] = false;
    AWAIT(peers[2][1].gone);
    for (int i = 0; i < WORDS; i++) {
        r[i] = hear_from(2, 1, 1, LINK_WORD);
        need_got(r[i], 1, LINK_WORD, i + 1);
    }
    forget(2, 1);
    if (!_i)
        open_rank(1);
    AWAIT(has_come(2, 1) && has_come(1, 2));
    exchange(1, 2);
    need_got(in, 3, MUCH, 1);
    close_all();
}
END_TEST

/* Of a rank that does nothing the connection has broken: it is gone only where its host had
 * closed it. */
START_TEST(a_rank_that_is_cut_off_stays)
{
    prepare(RANKS);
    meet_from(0, 3);
    silent[2] = true;
    connection_of(0, 2)->error = ETIMEDOUT;
    tcp_drop(connection_of(0, 2));
    pass(TCP_CLOSED_MS / 1e3 + 1);
    ck_assert(has_come(0, 2) && has_come(1, 2));
    silent[2] = false;
    exchange(1, 2);
    silent[2] = true;
    connection_of(0, 2)->error = ECONNRESET;
    tcp_drop(connection_of(0, 2));
    pass(TCP_CLOSED_MS / 1e3 / 2);
    ck_assert(has_come(0, 2) && has_come(1, 2));
    AWAIT(peers[0][2].gone && peers[1][2].gone);
    exchange(0, 1);
    close_all();
}
END_TEST

/* --- the address --- */

START_TEST(both_or_neither_have_a_star)
{
    static struct tcp_options other;
    struct link_entry entry = {.context = &other, .rank = 1, .start_s = 20,
                               .log = &listening};
    const char *words[] = {"its address says star=1, and that of rank 0 does not",
                           "its address does not say star=1, and that of the hub does"};

    prepare(RANKS);
    other = at;
    at.star = _i;
    other.star = !_i;
    *places = (struct link_place){.rank = -1};
    open_beside((void *)(intptr_t)0);
    ck_assert_ptr_nonnull(ends[0]);
    pid_t pid = fork();
    if (pid == 0) {
        struct link *none = link_tcp.meet(&entry, &places[1]);
        bool told = strstr(descant_last_error(), words[_i]) != NULL;
        _exit(!none && entry.status == DESCANT_BAD_RANK && told ? 0 : 1);
    }
    int status = -1;
    AWAIT(waitpid(pid, &status, WNOHANG) == pid);
    ck_assert_int_eq(status, 0);
    close_all();
}
END_TEST

START_TEST(the_key_is_read)
{
    static const char *const with[] = {"a:1,star=1", "a:1,star", "a:1,star,ranks=3"};
    struct tcp_options o;

    for (int i = 0; i < N(with); i++)
        ck_assert(tcp_options_read(&o, with[i], &listening) == DESCANT_OK && o.star);
    ck_assert(tcp_options_read(&o, "a:1,star=0", &listening) == DESCANT_OK && !o.star);
    ck_assert(tcp_options_read(&o, "a:1", &listening) == DESCANT_OK && !o.star);
}
END_TEST

/* --- a rank that is a socket here --- */

enum { LIAR = 3 };
static int liar = -1;
static unsigned char said_to[1 << 20];  /* [0, n_said) is what it was told */
static size_t n_said;
static uint32_t turns[RANKS];           /* in which it meets others */
static int byes;

static void tell(struct tcp_frame frame, const void *bytes)
{
    unsigned char all[sizeof frame + TCP_PART + 8];
    size_t n = sizeof frame + frame.bytes, done = 0;

    memcpy(all, &frame, sizeof frame);
    if (frame.bytes && bytes)
        memcpy(all + sizeof frame, bytes, frame.bytes);
    while (done < n) {
        ssize_t k = send(liar, all + done, n - done, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (k < 0 && errno != EAGAIN)
            return;             /* it was thrown out */
        done += k > 0 ? (size_t)k : 0;
        if (k < 0)
            turn();
    }
}

static void listen_as_liar(void)
{
    ssize_t n = recv(liar, said_to + n_said, sizeof said_to - n_said, MSG_DONTWAIT);
    struct tcp_frame f;

    n_said += n > 0 ? (size_t)n : 0;
    while (n_said >= sizeof f) {
        memcpy(&f, said_to, sizeof f);
        size_t whole = sizeof f + f.bytes;
        struct tcp_place place;
        if (n_said < whole)
            return;
        if (f.what == TCP_PEER) {
            memcpy(&place, said_to + sizeof f, sizeof place);
            turns[place.rank] = place.turn;
        }
        byes += f.what == TCP_BYE;
        memmove(said_to, said_to + whole, n_said - whole);
        n_said -= whole;
    }
}

static void meet_as_liar(void)
{
    struct tcp_hello hello = {.magic = "descant", .protocol = TCP_PROTOCOL, .rank = LIAR,
                              .generation = 1, .star = 1, .name = "liar"};
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)atoi(at.port)),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};

    liar = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(connect(liar, (struct sockaddr *)&to, sizeof to), 0);
    tell((struct tcp_frame){.what = TCP_HELLO, .bytes = sizeof hello}, &hello);
    AWAIT((listen_as_liar(), turns[1] && turns[2]));
}

static void begin_liar(void)
{
    meet_as_liar();
    tell((struct tcp_frame){.what = TCP_GOES_ON}, NULL);
    for (uint16_t k = 1; k < 3; k++)
        tell((struct tcp_frame){.what = TCP_GOES_ON, .rank = k, .turn = turns[k]}, NULL);
    AWAIT(has_come(0, LIAR) && has_come(1, LIAR) && has_come(2, LIAR));
}

static const unsigned char bytes[TCP_PART + 8] = {1};
static const struct tcp_place of_two = {.rank = 2, .port = 5, .generation = INT64_MAX,
                                        .turn = 1};

/* .rank 1: in the turn that the liar has with it */
static const struct lie {
    struct tcp_frame frame;
    const void *bytes;
} lies[] = {
    {{.what = TCP_WORD, .tag = 1, .bytes = 1, .rank = LIAR}, bytes},
    {{.what = TCP_WORD, .tag = 1, .bytes = 1, .rank = RANKS}, bytes},
    {{.what = TCP_WORD, .tag = 1, .bytes = 1, .rank = UINT16_MAX}, bytes},
    {{.what = TCP_PEER, .bytes = sizeof of_two}, &of_two},
    {{.what = TCP_PEER, .bytes = sizeof of_two, .rank = 1}, &of_two},
    {{.what = TCP_ROOM, .rank = 1, .total = INT64_MAX}, NULL},
    {{.what = TCP_REFUSED, .rank = 1}, NULL},
    {{.what = TCP_HELLO, .rank = 1}, NULL},
    {{.what = TCP_GOES_ON, .rank = 1, .bytes = 1}, bytes},
    {{.what = TCP_TAKEN, .rank = 1, .bytes = 8}, bytes},
    {{.what = TCP_WORD, .rank = 1, .bytes = LINK_WORD + 1}, bytes},
    {{.what = TCP_BULK, .rank = 1, .bytes = TCP_PART + 1, .total = TCP_CHUNK}, bytes},
    {{.what = TCP_BULK, .rank = 1, .total = TCP_CHUNK}, NULL},
};

/* It is heard under its own rank, and in a turn alone. What no rank says ends its own
 * connection, and nothing else. */
START_TEST(a_rank_speaks_for_itself_alone)
{
    prepare(RANKS);
    meet_from(0, 3);
    begin_liar();
    struct tcp_frame word = {.what = TCP_WORD, .tag = 1, .bytes = 1, .rank = 1,
                             .turn = turns[1]};
    struct letter *others = hear_from(1, 2, 1, 10), *own = hear_from(1, LIAR, 1, 10);
    word.turn = turns[1] + 50;
    tell(word, bytes);
    pass(0.1);
    ck_assert(own->open);
    word.turn = turns[1];
    tell(word, bytes);
    need_got(own, LIAR, 1, 1);
    struct tcp_frame lie = lies[_i].frame;
    lie.turn = turns[1];
    tell(lie, lies[_i].bytes);
    AWAIT(peers[0][LIAR].gone && peers[1][LIAR].gone && peers[2][LIAR].gone);
    exchange(1, 2);
    exchange(0, 1);
    ck_assert(others->open);
    close_all();
}
END_TEST

/* A message that rank 0 passes on, and that breaks the order of its stream: for its
 * receiver alone its sender is gone, and hears of it. */
START_TEST(a_stream_out_of_order_ends_for_one)
{
    prepare(RANKS);
    meet_from(0, 3);
    begin_liar();
    tell((struct tcp_frame){.what = _i ? TCP_BULK : TCP_WORD, .tag = 1, .bytes = 5,
                            .total = _i ? 2000 : 0, .rank = 1, .turn = turns[1], .index = 7},
         bytes);
    AWAIT(peers[1][LIAR].gone);
    AWAIT((listen_as_liar(), byes == 1));
    exchange(1, 2);
    exchange(0, 1);
    ck_assert(has_come(0, LIAR) && has_come(2, LIAR));
    close_all();
}
END_TEST

/* A message of a rank that has not come takes no receive. */
START_TEST(nobody_speaks_before_coming)
{
    prepare(RANKS);
    meet_from(0, 3);
    meet_as_liar();
    struct letter *any = hear_from(1, LINK_ANY, 1, 10), *s;
    tell((struct tcp_frame){.what = TCP_WORD, .tag = 1, .bytes = 5, .rank = 1,
                            .turn = turns[1]}, bytes);
    AWAIT((listen_as_liar(), byes == 1));
    ck_assert(any->open && !peers[1][LIAR].generation);
    s = say(2, 1, 1, 5, 6);
    need_got(any, 2, 5, 6);
    need_sent(s);
    close_all();
}
END_TEST

/* --- what rank 0 holds --- */

static uint32_t held(int from, int to)
{
    return link_of(0)->peers[from].pairs[to].held;
}

enum { HUGE = 64 << 20, MOST = 64 };

/* Bulk for a rank that reads nothing: rank 0 holds no more of it than it says, nobody else
 * waits, and it goes on later. */
START_TEST(a_slow_rank_holds_up_nobody)
{
    uint32_t most = 0, bound;

    prepare(MOST);
    meet_from(0, 4);
    bound = tcp_window(link_of(0)) + sizeof(struct tcp_frame);
    ck_assert_uint_lt(bound, 300000);
    struct letter *in = hear_from(2, 1, 1, HUGE), *out = NULL;
    pass(0.1);
    silent[2] = true;
    out = say(1, 2, 1, HUGE, 3);
    uint64_t since = clock_now_ns();
    while (clock_now_ns() - since < 300 * TCP_MS) {
        uint32_t before = held(1, 2);
        turn();
        since = held(1, 2) != before || before == 0 ? clock_now_ns() : since;
        most = held(1, 2) > most ? held(1, 2) : most;
        ck_assert_uint_le(held(1, 2), bound);
    }
    ck_assert_uint_gt(most, bound / 2);
    struct letter *s = say(1, 3, 2, 10 * LONG, 4), *r = hear_from(3, 1, 2, 10 * LONG);
    exchange(0, 1);
    exchange(0, 3);
    exchange(1, 3);
    need_got(r, 1, 10 * LONG, 4);
    need_sent(s);
    ck_assert(in->open && out->open);
    silent[2] = false;
    need_got(in, 1, HUGE, 3);
    need_sent(out);
    exchange(1, 2);
    close_all();
}
END_TEST

/* Frames of a turn that is over, which may be under way, take no room. */
START_TEST(earlier_turns_take_no_room)
{
    prepare(MOST);
    meet_from(0, 3);
    begin_liar();
    silent[2] = true;
    for (int i = 0; i < HUGE / LINK_WORD; i++) {
        tell((struct tcp_frame){.what = TCP_WORD, .bytes = LINK_WORD, .rank = 2,
                                .turn = turns[2] + 50}, bytes);
        if (i % 64 == 0)
            turn();
        ck_assert_uint_eq(held(LIAR, 2), 0);
    }
    silent[2] = false;
    exchange(1, 2);
    ck_assert(has_come(0, LIAR) && has_come(1, LIAR) && has_come(2, LIAR));
    close_all();
}
END_TEST

/* A rank that sends another one more than rank 0 has told it that there is room for. */
START_TEST(who_ignores_room_is_thrown_out)
{
    prepare(MOST);
    meet_from(0, 3);
    begin_liar();
    silent[2] = true;
    for (int i = 0; i < HUGE / TCP_PART && !peers[0][LIAR].gone; i++) {
        tell((struct tcp_frame){.what = TCP_BULK, .bytes = TCP_PART, .rank = 2,
                                .turn = turns[2], .total = HUGE}, bytes);
        turn();
        ck_assert_uint_le(held(LIAR, 2),
                          tcp_window(link_of(0)) + sizeof(struct tcp_frame));
    }
    AWAIT(peers[0][LIAR].gone && peers[1][LIAR].gone);
    silent[2] = false;
    AWAIT(peers[2][LIAR].gone);
    exchange(1, 2);
    close_all();
}
END_TEST

int main(void)
{
    TCase *all = new_case("star", 60), *lied = new_case("lies", 60);
    TCase *dead = new_case("deaths", 60);

    tcase_add_loop_test(all, all_reach_each_other, 0, 6);
    tcase_add_loop_test(all, both_or_neither_have_a_star, 0, 2);
    tcase_add_test(all, the_key_is_read);
    tcase_add_test(all, a_slow_rank_holds_up_nobody);
    tcase_add_loop_test(dead, a_hub_begins_anew, 0, 6);
    tcase_add_test(dead, a_hub_that_closes_tells_of_no_death);
    tcase_add_loop_test(dead, words_come_before_the_end, 0, 2);
    tcase_add_test(dead, a_killed_rank_is_gone);
    tcase_add_test(dead, a_rank_that_is_cut_off_stays);
    tcase_add_loop_test(lied, a_rank_speaks_for_itself_alone, 0, N(lies));
    tcase_add_loop_test(lied, a_stream_out_of_order_ends_for_one, 0, 2);
    tcase_add_test(lied, nobody_speaks_before_coming);
    tcase_add_test(lied, earlier_turns_take_no_room);
    tcase_add_test(lied, who_ignores_room_is_thrown_out);
    return run_cases(all, dead, lied, NULL);
}
