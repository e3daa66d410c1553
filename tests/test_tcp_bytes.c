/* SPDX-License-Identifier: MIT */
/* A rank over TCP, and scripts of all that others may do to it: those that reach
 * something, and those of chance. tests/fuzz_tcp.c has more time for it. */
#include "harness/heard.h"
#include "harness/suite.h"
#include "link/tcp_parts.h"
#include "sockets.h"
#include "tcp_bytes.h"

#include <arpa/inet.h>
#include <string.h>

#ifdef __SANITIZE_ADDRESS__
enum { SEEDS = 1000 };
#else
enum { SEEDS = 4000 };
#endif
enum { LONGEST = 300 };

START_TEST(scripts_reach_something)
{
    const struct tcp_bytes_seed *seed = &tcp_bytes_seeds[_i];
    const struct tcp_bytes_sum *sum = &tcp_bytes_sum;
    char why[512];

    ck_assert_msg(tcp_bytes_run(seed->bytes, seed->n, why), "%s: %s", seed->name, why);
    ck_assert_int_eq(sum->met, 1);
    ck_assert_int_eq(sum->known > 0, strcmp(seed->name, "forgets") != 0);
    if (strcmp(seed->name, "messages") == 0)
        ck_assert(sum->words == 3 && sum->bulk == 2);   /* bulk: one was too long */
    if (strcmp(seed->name, "sends") == 0)
        ck_assert_int_eq(sum->sent, 2);
    if (strcmp(seed->name, "breaks") == 0)
        ck_assert(sum->bulk == 1 && sum->sent == 1 && sum->goes_on == 2 && sum->gone == 1);
    if (strcmp(seed->name, "gives_up") == 0)
        ck_assert_int_eq(sum->failed, 2);
    if (strcmp(seed->name, "dials") == 0)
        ck_assert(sum->known == 2 && sum->gone == 1);
    if (strcmp(seed->name, "dies") == 0)        /* it is told in time, */
        ck_assert(sum->known == 1 && sum->gone == 1);
    if (strcmp(seed->name, "strangers") == 0)
        ck_assert(sum->refused == 1 && sum->goes_on == 1);
    if (strcmp(seed->name, "streams") == 0)
        ck_assert_int_eq(sum->gone, 0);
    if (strcmp(seed->name, "words") == 0)
        ck_assert_int_eq(sum->gone, 1);
    if (strcmp(seed->name, "hub") == 0)
        ck_assert(sum->known == 2 && sum->passed == 3 && sum->gone == 1);
    if (strcmp(seed->name, "far") == 0)
        ck_assert(sum->known == 2 && sum->words == 1 && sum->bulk == 1 && sum->sent == 1);
    if (strcmp(seed->name, "lies") == 0)
        ck_assert(sum->gone == 1 && sum->sent == 0);
}
END_TEST

/* Half of them begin as a script that reaches something. */
static size_t make_script(struct rng *rng, uint8_t *bytes)
{
    const struct tcp_bytes_seed *seed =
        &tcp_bytes_seeds[rng_next(rng) % (uint64_t)n_tcp_bytes_seeds];
    size_t n = rng_next(rng) % LONGEST, kept = rng_next(rng) % (2 * seed->n);

    kept = kept > seed->n ? 0 : kept;
    for (size_t i = 0; i < n; i++)
        bytes[i] = i < kept && rng_next(rng) % 32 ? seed->bytes[i] : (uint8_t)rng_next(rng);
    return n;
}

START_TEST(scripts_of_chance)
{
    uint8_t bytes[LONGEST];
    char why[512];
    uint64_t begun = clock_now_ns();

    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        struct rng rng;
        rng_init(&rng, seed);
        size_t n = make_script(&rng, bytes);
        ck_assert_msg(tcp_bytes_run(bytes, n, why), "seed %d: %s", (int)seed, why);
    }
    const struct tcp_bytes_sum *s = &tcp_bytes_sum;
    printf("%d scripts in %.2f s: %ld peers, %ld gone, %ld connections, %ld refused; %ld "
           "words and %ld bulk came, %ld messages left, %ld failed; %ld were passed on\n",
           SEEDS,
           (double)(clock_now_ns() - begun) / 1e9, s->known, s->gone, s->dropped,
           s->refused, s->words, s->bulk, s->sent, s->failed, s->passed);
    ck_assert(s->known > SEEDS / 10 && s->gone > SEEDS / 40 && s->refused > SEEDS / 100);
    ck_assert(s->passed > SEEDS / 200);
    ck_assert(s->words > SEEDS / 40 && s->bulk > SEEDS / 200 && s->sent > SEEDS / 40);
}
END_TEST

static void nothing(void)
{
}

static void nothing_sent(int fd, const uint8_t *bytes, size_t n)
{
    (void)fd, (void)bytes, (void)n;
}

static void nothing_closed(int fd)
{
    (void)fd;
}

/* A name that its server does not know yet, as of a pod that begins, is looked up again for
 * as long as ranks wait for each other. */
START_TEST(a_name_that_is_known_late)
{
    static const struct sockets_calls calls = {nothing, nothing_sent, nothing_closed};
    static struct tcp_options options = {.host = "node0", .port = "7000", .most = 2,
                                         .insecure = true};
    struct link_entry entry = {.context = &options, .start_s = 10, .log = &listening};
    struct link_place place;

    sockets_begin(&calls);
    sockets_unknown(5);
    struct link *link = link_tcp.meet(&entry, &place);
    ck_assert_ptr_nonnull(link);
    ck_assert_int_eq(heard.n, 1);
    ck_assert_msg(strstr(heard.text, "the host node0 of the job's address is not known: "
                                     "Name or service not known; it is looked up again for "
                                     "10 s"), "%s", heard.text);
    ck_assert(link_tcp.close(link, true));
    uint64_t begun = clock_now_ns();
    sockets_unknown(1000);
    ck_assert_ptr_null(link_tcp.meet(&entry, &place));
    ck_assert_int_eq(entry.status, DESCANT_BAD_ADDRESS);
    ck_assert(!strstr(descant_last_error(), "again"));
    double waited_s = (double)(clock_now_ns() - begun) / 1e9;
    ck_assert_msg(waited_s >= 10 && waited_s < 11, "%g s", waited_s);
    sockets_unknown(0);
    ck_assert_int_eq(sockets_end(), 0);
}
END_TEST

/* Of the job's rate, a megabyte a second at least. */
START_TEST(connections_are_paced)
{
    static const struct sockets_calls calls = {nothing, nothing_sent, nothing_closed};
    static const double rates[] = {0, 1000, 5e6};
    static const uint64_t set[] = {0, 1 << 20, 5000000};
    static struct tcp_options options = {.host = "127.0.0.1", .port = "7000", .most = 2};
    struct link_entry entry = {.context = &options, .start_s = 10, .rate = rates[_i],
                               .log = &listening};
    struct link_place place;
    struct link_news news;

    sockets_begin(&calls);
    struct link *link = link_tcp.meet(&entry, &place);
    ck_assert_ptr_nonnull(link);
    ck_assert_int_ge(sockets_stranger(), 0);
    ck_assert(link_tcp.collect(link, &news));
    ck_assert_uint_eq(sockets_paced(), set[_i]);
    ck_assert(link_tcp.close(link, true));
    sockets_end();
}
END_TEST

/* Of IPv6 that holds on one interface alone: this rank's to rank 0. */
START_TEST(places_on_this_interface)
{
    static const char *const addresses[] = {"fe80::2", "2001:db8::2"};
    struct tcp_link link = {.rank = 2, .size = 3, .met = true};
    struct sockaddr_in6 *meeting = (struct sockaddr_in6 *)&link.meeting;

    *meeting = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_scope_id = 7};
    ck_assert(tcp_make_peers(&link));
    struct tcp_connection c = {.link = &link, .peer = &link.peers[0], .state = TCP_OPEN};
    for (uint64_t k = 0; k < 2; k++) {
        struct tcp_place place = {.rank = 1, .port = htons(9), .family = AF_INET6,
                                  .generation = k + 1};
        const struct tcp_frame frame = {.what = TCP_PEER, .bytes = sizeof place};
        ck_assert_int_eq(inet_pton(AF_INET6, addresses[k], place.address), 1);
        ck_assert(tcp_meet_heard(&c, &frame, (const unsigned char *)&place));
        const struct sockaddr_in6 *at = (struct sockaddr_in6 *)&link.peers[1].address;
        ck_assert_mem_eq(&at->sin6_addr, place.address, sizeof place.address);
        ck_assert_uint_eq(at->sin6_scope_id, k ? 0 : 7);
    }
    memory_give(link.peers);
    memory_give(link.names);
}
END_TEST

/* --- a lazy link, by the messages of one stream --- */

enum { LAZY_BULK = 2000, LAZY_ROOM = 8 };

static unsigned char lazy_bulk[LAZY_BULK];

static void open_bulk(struct tcp_peer *peer)
{
    ck_assert(tcp_receive(peer, lazy_bulk, LAZY_BULK, &(struct link_message){.tag = 3}));
}

/* The frame that leaves next: its kind; -1: none. */
static int next_frame(struct tcp_peer *peer, struct tcp_frame *frame)
{
    static unsigned char bytes[TCP_OUT];
    const unsigned char *chunk;
    size_t chunk_bytes;
    struct tcp_out *of;
    size_t n = tcp_write(peer, bytes, sizeof bytes, &chunk, &chunk_bytes, &of);

    memcpy(frame, bytes, sizeof *frame);
    return n ? (int)frame->what : -1;
}

/* Message k comes, and its receive is opened again. */
static void come_bulk(struct tcp_peer *peer, uint64_t k)
{
    const struct tcp_frame frame = {.what = TCP_BULK, .tag = 3, .index = k,
                                    .bytes = LAZY_BULK, .total = LAZY_BULK};
    struct tcp_in *stream;
    unsigned char *into;
    const char *why;

    ck_assert(tcp_hear(peer, &frame, NULL, &stream, &into, &why));
    ck_assert_ptr_eq(into, lazy_bulk);
    tcp_came(peer, stream, LAZY_BULK);
    open_bulk(peer);
}

static void takes(struct tcp_peer *peer, uint64_t received)
{
    struct tcp_frame frame;

    ck_assert_int_eq(next_frame(peer, &frame), TCP_TAKEN);
    ck_assert_uint_eq(frame.index, received);
    ck_assert_uint_eq(frame.total, received + LAZY_ROOM);
    ck_assert_int_eq(next_frame(peer, &frame), -1);
}

/* _i: it is lazy. */
START_TEST(what_came_is_told_late)
{
    struct tcp_link link = {.rank = 1, .size = 2, .met = true, .lazy = _i, .now_ns = 1};
    const struct tcp_frame want = {.what = TCP_WANT, .tag = 3, .index = 10,
                                   .total = LAZY_BULK};
    struct tcp_frame frame;
    struct tcp_in *stream;
    unsigned char *into;
    const char *why;

    ck_assert(tcp_make_peers(&link));
    struct tcp_peer *peer = &link.peers[0];
    peer->goes_on = peer->told_goes_on = true;
    for (int k = 0; k < LAZY_ROOM; k++)
        open_bulk(peer);
    takes(peer, 0);                     /* at once, for else nothing could come */
    for (uint64_t k = 0; k < 4; k++) {
        come_bulk(peer, k);
        if (!_i)
            takes(peer, k + 1);
        ck_assert_int_eq(next_frame(peer, &frame), -1);
    }
    link.now_ns += LINK_LAZY_NS;        /* not yet, */
    ck_assert_int_eq(next_frame(peer, &frame), -1);
    link.now_ns++;
    if (_i)
        takes(peer, 4);                 /* and now; */
    for (uint64_t k = 4; k < 9; k++) {  /* when half of the room is left; */
        ck_assert_int_eq(next_frame(peer, &frame), -1);
        come_bulk(peer, k);
        if (!_i || k == 8)
            takes(peer, k + 1);
    }
    come_bulk(peer, 9);                 /* where the sender asks; */
    if (!_i)
        takes(peer, 10);
    ck_assert_int_eq(next_frame(peer, &frame), -1);
    ck_assert(tcp_hear(peer, &want, NULL, &stream, &into, &why));
    if (_i)
        takes(peer, 10);
    ck_assert_int_eq(next_frame(peer, &frame), -1);
    come_bulk(peer, 10);                /* and with what leaves anyway */
    ck_assert(tcp_send(peer, "x", 1, &(struct link_message){.tag = 4}));
    ck_assert_int_eq(next_frame(peer, &frame), TCP_TAKEN);
    ck_assert_int_eq(next_frame(peer, &frame), TCP_WORD);
    ck_assert_int_eq(next_frame(peer, &frame), -1);
    tcp_give_up(peer, LINK_PEER);
    memory_give(link.ended);
    memory_give(link.peers);
    memory_give(link.names);
}
END_TEST

int main(void)
{
    TCase *all = new_case("bytes", 120);
    tcase_add_loop_test(all, scripts_reach_something, 0, n_tcp_bytes_seeds);
    tcase_add_test(all, scripts_of_chance);
    tcase_add_test(all, a_name_that_is_known_late);
    tcase_add_test(all, places_on_this_interface);
    tcase_add_loop_test(all, what_came_is_told_late, 0, 2);
    tcase_add_loop_test(all, connections_are_paced, 0, 3);
    return run_cases(all, NULL);
}
