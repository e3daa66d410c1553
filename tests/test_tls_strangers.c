/* SPDX-License-Identifier: MIT */
/* TLS among strangers: handshakes that are cut, changed, made up, repeated or never done,
 * and what they cost of memory, which is counted and can be made to run out. */
#include "base/base.h"
#include "harness/ends.h"
#include "harness/folder.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

/* --- OpenSSL's memory --- */

static struct {
    size_t now, most;     /* bytes */
    long blocks, fail_in; /* fail_in: the so many-th next taking fails; 0: none */
} memory;

enum { BEFORE = 16 }; /* a block's size lies before it */

static void *take_again(void *old, size_t bytes, const char *file, int line)
{
    char *before = old ? (char *)old - BEFORE : NULL;
    size_t had = 0;
    (void)file, (void)line;
    if (memory.fail_in > 0 && --memory.fail_in == 0)
        return NULL;
    if (before)
        memcpy(&had, before, sizeof had);
    before = realloc(before, BEFORE + bytes);
    memcpy(before, &bytes, sizeof bytes);
    (void)file, (void)line;
    memory.blocks += !old;
    memory.now += bytes - had;
    memory.most = memory.now > memory.most ? memory.now : memory.most;
    return before + BEFORE;
}

static void *take(size_t bytes, const char *file, int line)
{
    return take_again(NULL, bytes, file, line);
}

static void give(void *taken, const char *file, int line)
{
    size_t had;
    (void)file, (void)line;
    if (!taken)
        return;
    memcpy(&had, (char *)taken - BEFORE, sizeof had);
    memory.now -= had;
    memory.blocks--;
    free((char *)taken - BEFORE);
}

/* But for the texts of OpenSSL's queue of errors. */
static void nothing_is_left(long blocks)
{
    ck_assert_msg(memory.blocks <= blocks + 40, "%ld blocks are left",
                  memory.blocks - blocks);
}

/* --- cuts --- */

/* At each byte, in each direction: the end that lacks the rest waits, and fails when it
 * is cut off. */
static void cut_everywhere(void)
{
    begin_wire();
    run_wire(SIZE_MAX, SIZE_MAX, SIZE_MAX);
    ck_assert_int_eq(sides[0].state, TLS_DONE);
    ck_assert_int_eq(sides[1].state, TLS_DONE);
    size_t whole[2] = {wire.n[0], wire.n[1]};
    close_wire();
    long blocks = memory.blocks;
    for (int k = 0; k < 2; k++)
        for (size_t cut = 0; cut < whole[k] - 64; cut += (size_t)pick(1, 2, 9)) {
            begin_wire();
            run_wire(k == DIALLED ? cut : SIZE_MAX, k == ACCEPTED ? cut : SIZE_MAX,
                     SIZE_MAX);
            ck_assert_msg(sides[!k].state == TLS_WANTS_READ, "cut at %zu: %d, %s", cut,
                          sides[!k].state, sides[!k].peer->why);
            close(wire.fd[!k]);
            wire.fd[!k] = -1;
            step_end(!k);
            end_says(!k, "closed the connection before the handshake");
            close_wire();
        }
    nothing_is_left(blocks);
}

START_TEST(cut_at_every_byte)
{
    open_same();
    cut_everywhere();
}
END_TEST

START_TEST(certificates_cut_at_every_byte)
{
    make_certificates();
    sides[DIALLED].tls = open_named("one", "ca");
    sides[ACCEPTED].tls = open_named("two", "ca");
    cut_everywhere();
}
END_TEST

/* Whatever an end that dialled has sent: sent again it is never enough. */
START_TEST(a_recorded_handshake_is_useless)
{
    static unsigned char record[8192];
    open_same();
    begin_wire();
    run_wire(SIZE_MAX, SIZE_MAX, SIZE_MAX);
    ck_assert_int_eq(sides[ACCEPTED].state, TLS_DONE);
    size_t n = wire.n[DIALLED];
    memcpy(record, wire.bytes[DIALLED], n);
    close_wire();

    begin_pair();
    for (size_t i = 0; i < n; i++) {
        ck_assert_int_eq(send(sides[DIALLED].fd, record + i, 1, MSG_NOSIGNAL), 1);
        ck_assert_int_ne(step_end(ACCEPTED), TLS_DONE);
    }
    end_says(ACCEPTED, "TLS fails: ");
    end_both();
}
END_TEST

/* --- rubbish --- */

/* A handshake in which bytes are changed, left out, doubled or made up. Neither end is
 * done that has read a byte which the other one did not send. */
START_TEST(rubbish)
{
    open_same();
    long blocks = memory.blocks;
    for (uint64_t seed = 1; seed <= (uint64_t)pick(3000, 2000, 250); seed++) {
        struct rng rng;
        rng_init(&rng, seed);
        begin_wire();
        int k = (int)(rng_next(&rng) % 2);
        size_t good = rng_next(&rng) % 400;
        run_wire(k == DIALLED ? good : SIZE_MAX, k == ACCEPTED ? good : SIZE_MAX,
                 SIZE_MAX);
        bool early = sides[!k].state == TLS_DONE; /* it needs nothing more */
        for (int burst = 0; burst < 4; burst++) {
            unsigned char made[600];
            size_t n = 1 + rng_next(&rng) % (sizeof made - 1);
            ssize_t took = recv(wire.fd[k], made, n, MSG_DONTWAIT);
            for (size_t i = took > 0 ? (size_t)took : 0; i < n; i++)
                made[i] = (unsigned char)rng_next(&rng);
            made[rng_next(&rng) % (took > 0 ? (size_t)took : n)] ^=
                (unsigned char)(1 + rng_next(&rng) % 255);
            send(wire.fd[!k], made, n, MSG_NOSIGNAL);
            for (int turn = 0; turn < 4; turn++)
                step_end(!k);
        }
        ck_assert_msg(early || sides[!k].state != TLS_DONE, "seed %d", (int)seed);
        close_wire();
    }
    nothing_is_left(blocks);
}
END_TEST

/* After the handshake a changed byte ends the connection; none of its record comes. */
START_TEST(a_changed_record)
{
    char in[100];
    open_same();
    for (int at = 0; at < 60; at++) {
        begin_wire();
        run_wire(SIZE_MAX, SIZE_MAX, SIZE_MAX);
        ck_assert_int_eq(
            put_bytes(DIALLED, "0123456789012345678901234567890123456789", 40), 40);
        unsigned char record[100];
        ssize_t n = recv(wire.fd[DIALLED], record, sizeof record, MSG_DONTWAIT);
        ck_assert_int_gt(n, 60);
        record[at] ^= 1;
        ck_assert_int_eq(send(wire.fd[ACCEPTED], record, (size_t)n, 0), n);
        ssize_t got = get_bytes(ACCEPTED, in, sizeof in);
        ck_assert_msg(got == TLS_FAILED || got == TLS_WANTS_READ, "byte %d: %zd", at,
                      got);
        ck_assert(got == TLS_FAILED || at == 3 || at == 4); /* a longer record */
        close_wire();
    }
}
END_TEST

/* --- strangers --- */

/* Memory of the end that accepted: now; the most between two calls, and within one. */
struct cost {
    size_t now, held, most;
};

static void step_counting(struct cost *cost)
{
    size_t before = memory.now;
    memory.most = memory.now;
    step_end(ACCEPTED);
    size_t most = cost->now + memory.most - before;
    cost->now += memory.now - before;
    cost->held = cost->now > cost->held ? cost->now : cost->held;
    cost->most = most > cost->most ? most : cost->most;
}

static void costs_at_most(const struct cost *cost, size_t most, const char *what)
{
    printf("%s: %zu bytes of memory, %zu within a call\n", what, cost->held, cost->most);
    ck_assert_msg(cost->most <= most, "%s: %zu bytes, not %zu", what, cost->most, most);
}

/* What it costs to hear such bytes, so many times, from somebody unknown. */
static void strange(const char *what, const void *bytes, size_t n, int times, size_t most)
{
    size_t before = memory.now;
    int pair[2];
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    sides[ACCEPTED].fd = pair[0];
    sides[ACCEPTED].state = TLS_WANTS_READ;
    sides[ACCEPTED].peer =
        sides[ACCEPTED].tls->type->begin(sides[ACCEPTED].tls, pair[0], false, NULL);
    struct cost cost = {.now = memory.now - before};
    step_counting(&cost);
    for (int k = 0; k < times && !is_over(sides[ACCEPTED].state); k++) {
        ck_assert_int_eq(send(pair[1], bytes, n, MSG_NOSIGNAL), (ssize_t)n);
        step_counting(&cost);
    }
    ck_assert_int_eq(sides[ACCEPTED].state, times > 1 ? TLS_FAILED : TLS_WANTS_READ);
    costs_at_most(&cost, most, what);
    close(pair[1]);
    end_one(ACCEPTED);
}

START_TEST(strangers_cost_little)
{
    static const unsigned char nothing[] = {20, 3, 3, 0, 1, 1},
                               half[] = {22, 3, 1, 4, 0, 1, 0, 3, 252, 3, 3},
                               long_record[] = {22, 3, 1, 64, 0, 1, 0, 63, 252},
                               long_hello[] = {22, 3, 1, 0, 200, 1, 2, 1, 0};
    open_same();
    strange("a stranger that says nothing", "", 0, 1, 1000);
    strange("half a hello", half, sizeof half, 1, TLS_STRANGER);
    strange("a hello in a long record", long_record, sizeof long_record, 2, TLS_STRANGER);
    strange("a hello that claims to be long", long_hello, sizeof long_hello, 2,
            TLS_STRANGER);
    strange("records without end", nothing, sizeof nothing, 20000, TLS_STRANGER);
}
END_TEST

/* A whole handshake, with a secret, then with certificates. */
START_TEST(a_handshake_costs_little)
{
    if (_i) {
        make_certificates();
        sides[DIALLED].tls = open_named("one", "ca");
        sides[ACCEPTED].tls = open_named("two", "ca");
    } else {
        open_same();
    }
    begin_pair();
    need_handshake(); /* so that OpenSSL has what all connections share */
    end_both();
    begin_pair();
    struct cost cost = {0};
    while (!is_over(sides[ACCEPTED].state)) {
        step_end(DIALLED);
        step_counting(&cost);
    }
    ck_assert_int_eq(sides[ACCEPTED].state, TLS_DONE);
    /* OpenSSL makes a list of all that it could decode the certificate's key with */
    costs_at_most(&cost, TLS_STRANGER + (_i ? 20 << 10 : 0),
                  _i ? "certificates" : "a secret");
    ck_assert_uint_le(cost.held, TLS_STRANGER);
    printf("and once it is known: %zu\n", cost.now);
    end_both();
}
END_TEST

/* An end that asks for new keys again and again, and reads none of the answers. */
START_TEST(answers_are_bounded)
{
    char some[100];
    make_certificates();
    sides[DIALLED].tls = open_named("one", "ca");
    sides[ACCEPTED].tls = open_named("two", "ca");
    SSL_CTX *context = SSL_CTX_new(TLS_client_method());
    ck_assert(
        SSL_CTX_use_certificate_file(context, in_folder("one.crt"), SSL_FILETYPE_PEM));
    ck_assert(
        SSL_CTX_use_PrivateKey_file(context, in_folder("one.key"), SSL_FILETYPE_PEM));
    begin_pair();
    SSL *other = SSL_new(context);
    SSL_set_fd(other, sides[DIALLED].fd);
    while (!is_over(sides[ACCEPTED].state)) {
        SSL_connect(other);
        step_end(ACCEPTED);
    }
    ck_assert_int_eq(sides[ACCEPTED].state, TLS_DONE);

    ssize_t got = TLS_WANTS_READ;
    size_t before = memory.now;
    int asked = 0;
    for (; got == TLS_WANTS_READ && asked < 100000; asked++) {
        ck_assert(SSL_key_update(other, SSL_KEY_UPDATE_REQUESTED));
        ck_assert_int_eq(SSL_do_handshake(other), 1);
        got = get_bytes(ACCEPTED, some, sizeof some);
        ck_assert(asked > 0 || !sides[ACCEPTED].peer->unsent);
    }
    ck_assert_int_eq(got, TLS_WANTS_WRITE);
    ck_assert(sides[ACCEPTED].peer->unsent);
    ck_assert_uint_le(memory.now - before, 200 << 10);

    /* once it reads them all is well */
    ck_assert_int_eq(SSL_write(other, "hello", 5), 5);
    for (got = TLS_WANTS_WRITE; got < 0; got = get_bytes(ACCEPTED, some, sizeof some)) {
        ck_assert_msg(got != TLS_FAILED, "%s", sides[ACCEPTED].peer->why);
        SSL_read(other, some, sizeof some);
    }
    ck_assert_int_eq(got, 5);
    ck_assert_int_eq(put_bytes(ACCEPTED, "hello", 5), 5);
    ck_assert_int_eq(SSL_read(other, some, sizeof some), 5);
    SSL_free(other);
    SSL_CTX_free(context);
    end_both();
}
END_TEST
/* --- no memory --- */

START_TEST(memory_runs_out)
{
    const char *secret = secret_file("secret");
    long k = 1;
    open_secrets(secret, secret);
    begin_pair();
    need_handshake();
    end_both();
    long blocks = memory.blocks;
    for (bool good = false; !good; k++) {
        memory.fail_in = k;
        const struct tls_type *type = sides[0].tls->type;
        int pair[2];
        ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
        bool begun = true;
        for (int i = 0; i < 2; i++) {
            fcntl(pair[i], F_SETFL, O_NONBLOCK);
            sides[i].fd = pair[i];
            sides[i].state = TLS_WANTS_READ;
            sides[i].peer = type->begin(sides[i].tls, pair[i], i == DIALLED, NULL);
            begun &= sides[i].peer != NULL;
        }
        if (begun) {
            do_handshake();
            good = sides[0].state == TLS_DONE && sides[1].state == TLS_DONE;
            for (int i = 0; i < 2; i++)
                ck_assert(sides[i].state == TLS_DONE || *sides[i].peer->why);
        }
        good &= memory.fail_in > 0;
        memory.fail_in = 0;
        end_both();
        nothing_is_left(blocks);
    }
    printf("a handshake takes memory %ld times\n", k);
    ck_assert_int_gt(k, 50);
}
END_TEST

int main(void)
{
    if (!CRYPTO_set_mem_functions(take, take_again, give))
        return 1;
    find_tls_module();
    TCase *wires = new_case("wires", 120), *costs = new_case("costs", 120);
    tcase_add_checked_fixture(wires, make_folder, close_ends);
    tcase_add_checked_fixture(costs, make_folder, close_ends);
    tcase_add_test(wires, cut_at_every_byte);
    tcase_add_test(wires, certificates_cut_at_every_byte);
    tcase_add_test(wires, a_recorded_handshake_is_useless);
    tcase_add_test(wires, rubbish);
    tcase_add_test(wires, a_changed_record);
    tcase_add_test(costs, strangers_cost_little);
    tcase_add_loop_test(costs, a_handshake_costs_little, 0, 2);
    tcase_add_test(costs, answers_are_bounded);
    tcase_add_test(costs, memory_runs_out);
    return run_cases(wires, costs, NULL);
}
