/* SPDX-License-Identifier: MIT */
/* TLS between two ends that belong together, or not: secrets, certificates, other
 * programs, the bytes, and a module that is missing. */
#include "harness/certificates.h"
#include "harness/ends.h"
#include "harness/folder.h"
#include "harness/heard.h"
#include "link/secret.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>

/* --- secrets --- */

START_TEST(one_secret)
{
    char byte;
    open_same();
    for (int over = 0; over < 2; over++) {
        if (over)
            begin_tcp(0);
        else
            begin_pair();
        need_handshake();
        expect_text(DIALLED, "hello");
        expect_text(ACCEPTED, "and good day");
        for (int k = 0; k < 2; k++) {
            ck_assert_int_eq(sides[k].tls->type->shutdown(sides[k].peer), TLS_DONE);
            ck_assert_int_eq(sides[k].tls->type->shutdown(sides[k].peer), TLS_DONE);
            wait_bytes(!k);
            ck_assert_int_eq(get_bytes(!k, &byte, 1), TLS_CLOSED);
            ck_assert_int_eq(get_bytes(!k, &byte, 1), TLS_CLOSED);
        }
        end_both();
    }
}
END_TEST

START_TEST(another_secret)
{
    open_secrets(secret_file("a"), secret_file("b"));
    for (int over = 0; over < 2; over++) {
        if (over)
            begin_tcp(0);
        else
            begin_pair();
        do_handshake();
        for (int k = 0; k < 2; k++)
            end_says(k, "the other end has another secret: give both the same file");
        end_both();
    }
}
END_TEST

/* A connection that breaks is no goodbye. */
START_TEST(an_end_without_a_goodbye)
{
    char byte;
    open_same();
    begin_pair();
    need_handshake();
    expect_text(DIALLED, "hello");
    end_one(DIALLED);
    ck_assert_int_eq(get_bytes(ACCEPTED, &byte, 1), TLS_FAILED);
    why_has(ACCEPTED, "without TLS's goodbye");
    ck_assert_int_eq(put_bytes(ACCEPTED, "x", 1), TLS_FAILED);
    ck_assert_int_eq(sides[ACCEPTED].tls->type->shutdown(sides[ACCEPTED].peer),
                     TLS_FAILED);
    end_one(ACCEPTED);

    begin_pair();
    need_handshake();
    end_one(ACCEPTED);
    ck_assert_int_eq(put_bytes(DIALLED, "x", 1), TLS_FAILED);
    why_has(DIALLED, "Broken pipe");
    end_one(DIALLED);

    begin_pair();
    ck_assert_int_eq(get_bytes(ACCEPTED, &byte, 1), TLS_FAILED);
    why_has(ACCEPTED, "before its handshake");
    ck_assert_int_eq(put_bytes(DIALLED, "x", 1), TLS_FAILED);
    end_both();
}
END_TEST

/* --- certificates --- */

static const struct {
    const char *name, *authority; /* of the end that dialled; it wants the name */
    const char *wants;
    const char *other, *its_authority;
    const char *says[2]; /* NULL: it is done */
} pairs[] = {
    {"one", "ca", NULL, "two", "ca", {NULL, NULL}},
    {"one", "ca", "host", "two", "ca", {NULL, NULL}},
    {"one", "ca", "127.0.0.1", "two", "ca", {NULL, NULL}},
    {"one",
     "ca",
     "other",
     "two",
     "ca",
     {"certificate is refused: hostname mismatch", "refuses this one: bad certificate"}},
    {"one",
     "ca",
     "127.0.0.2",
     "two",
     "ca",
     {"certificate is refused: IP address mismatch",
      "refuses this one: bad certificate"}},
    {"one",
     "ca",
     NULL,
     "foreign",
     "ca",
     {"certificate is refused: unable to get local issuer certificate",
      "refuses this one: unknown CA"}},
    {"foreign",
     "ca",
     NULL,
     "two",
     "ca",
     {"refuses this one: unknown CA",
      "certificate is refused: unable to get local issuer certificate"}},
    {"one",
     "foreign-ca",
     NULL,
     "two",
     "ca",
     {"certificate is refused: ", "refuses this one: unknown CA"}},
    {"old",
     "ca",
     NULL,
     "two",
     "ca",
     {"refuses this one: certificate expired",
      "certificate is refused: certificate has expired"}},
    {"one",
     "ca",
     NULL,
     "old",
     "ca",
     {"certificate is refused: certificate has expired",
      "refuses this one: certificate expired"}},
};

/* What the end that dialled says may come with its first read. */
static void read_once(int k)
{
    char byte;
    ssize_t got = sides[k].state == TLS_DONE ? get_bytes(k, &byte, 1) : TLS_WANTS_READ;
    if (got == TLS_FAILED)
        sides[k].state = TLS_FAILED;
}

START_TEST(certificates)
{
    int pair[2];
    make_certificates();
    sides[DIALLED].tls = open_named(pairs[_i].name, pairs[_i].authority);
    sides[ACCEPTED].tls = open_named(pairs[_i].other, pairs[_i].its_authority);
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    begin_on(pair[0], pair[1], pairs[_i].wants);
    do_handshake();
    read_once(DIALLED);
    for (int k = 0; k < 2; k++)
        if (pairs[_i].says[k])
            end_says(k, pairs[_i].says[k]);
        else
            ck_assert_msg(sides[k].state == TLS_DONE, "%s", sides[k].peer->why);
    if (!pairs[_i].says[0])
        expect_text(DIALLED, "hello");
    end_both();
}
END_TEST

START_TEST(a_secret_at_one_end_and_certificates_at_the_other)
{
    make_certificates();
    for (int k = 0; k < 2; k++) {
        sides[k].tls = open_files(&(struct tls_files){.secret = secret_file("secret")});
        sides[!k].tls = open_named("one", "ca");
        begin_pair();
        do_handshake();
        end_says(k, "the other end has no secret, and this one has");
        end_says(!k, k == DIALLED ? "refuses this one: "
                                  : "refuses this one: handshake failure");
        end_both();
        for (int i = 0; i < 2; i++)
            sides[i].tls->type->close(sides[i].tls);
        sides[0].tls = sides[1].tls = NULL;
    }
}
END_TEST

static void refused(const struct tls_files *files, const char *words)
{
    struct tls *tls = NULL;
    heard = (struct heard_lines){.least = DESCANT_ERROR};
    ck_assert_int_eq(tls_open(&tls, files, &listening), DESCANT_INVALID);
    ck_assert_ptr_null(tls);
    ck_assert_int_eq(heard.n, 1);
    ck_assert_msg(strstr(heard.text, words) != NULL, "not '%s': %s", words, heard.text);
}

START_TEST(files_that_cannot_be_used)
{
    char cert[100], key[100], ca[100];
    make_certificates();
    snprintf(cert, sizeof cert, "%s", in_folder("one.crt"));
    snprintf(key, sizeof key, "%s", in_folder("one.key"));
    snprintf(ca, sizeof ca, "%s", in_folder("ca.crt"));
    refused(&(struct tls_files){.secret = "x", .ca = ca}, "exclude each other");
    refused(&(struct tls_files){.cert = cert, .key = key},
            "need all of cert=, key= and ca=");
    refused(&(struct tls_files){.secret = NULL}, "neither secret= nor cert=");
    refused(&(struct tls_files){.secret = "/nowhere"},
            "secret=/nowhere cannot be read: No such");
    refused(&(struct tls_files){.cert = "/nowhere", .key = key, .ca = ca},
            "cert=/nowhere: ");
    refused(&(struct tls_files){.cert = cert, .key = key, .ca = "/nowhere"},
            "ca=/nowhere: ");
    refused(&(struct tls_files){.cert = cert, .key = in_folder("two.key"), .ca = ca},
            "key=");
    refused(&(struct tls_files){.cert = key, .key = key, .ca = ca}, "cert=");
    lock_key("one", "password");
    refused(&(struct tls_files){.cert = cert, .key = key, .ca = ca},
            "key: it has a password");
    ck_assert_int_eq(chmod(key, 0640), 0);
    refused(&(struct tls_files){.cert = cert, .key = key, .ca = ca}, "chmod 600");
}
END_TEST

/* --- other programs --- */

static const char *const plain[] = {"GET / HTTP/1.1\r\n\r\n", "descant\n", "\x01",
                                    "\xff\xff\xff\xff\xff\xff"};

START_TEST(plain_text_at_an_end)
{
    char answer[4096];
    open_same();
    for (int k = 0; k < 2; k++) {
        begin_pair();
        end_one(!k);
        int pair[2];
        ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
        dup2(pair[0], sides[k].fd);
        close(pair[0]);
        ck_assert_int_eq(fcntl(sides[k].fd, F_SETFL, O_NONBLOCK), 0);
        ck_assert_int_gt(write(pair[1], plain[_i], strlen(plain[_i])), 0);
        for (int turn = 0; turn < 3; turn++)
            step_end(k);
        end_says(k, "does not talk TLS");
        /* what the plain end sees of the one that dialled */
        ssize_t n = recv(pair[1], answer, sizeof answer, MSG_DONTWAIT);
        ck_assert_int_eq(k == DIALLED, n > 3 && tls_begins(answer));
        ck_assert(!tls_begins(plain[_i]));
        close(pair[1]);
        end_one(k);
    }
}
END_TEST

/* OpenSSL as other programs use it, which dials. */
static void other_program(int version, const char *words)
{
    char byte;
    SSL_CTX *context = SSL_CTX_new(TLS_client_method());
    ck_assert(SSL_CTX_set_max_proto_version(context, version));
    begin_pair();
    SSL *other = SSL_new(context);
    SSL_set_fd(other, sides[DIALLED].fd);
    for (int turn = 0; turn < TURNS && !is_over(sides[ACCEPTED].state); turn++) {
        SSL_connect(other);
        step_end(ACCEPTED);
    }
    end_says(ACCEPTED, words);
    ck_assert(SSL_connect(other) != 1 || SSL_read(other, &byte, 1) <= 0);
    SSL_free(other);
    SSL_CTX_free(context);
    end_both();
}

START_TEST(other_programs)
{
    open_same();
    other_program(TLS1_3_VERSION, "the other end has no secret");
    other_program(TLS1_2_VERSION, "unsupported protocol");
    sides[ACCEPTED].tls->type->close(sides[ACCEPTED].tls);
    make_certificates();
    sides[ACCEPTED].tls = open_named("one", "ca");
    other_program(TLS1_2_VERSION, "unsupported protocol");
    other_program(TLS1_3_VERSION, "the other end has no certificate");
}
END_TEST

/* --- bytes --- */

/* As much as a test takes both ways. */
#define MANY ((size_t)few(64, 8) << 20)

static unsigned char byte_at(int k, size_t i)
{
    return (unsigned char)((i * 31 + (i >> 12) * 7 + (i >> 20)) ^ (size_t)k);
}

/* Both ways at once, in vectors of parts of any length. */
static void both_ways(size_t bytes, uint64_t seed)
{
    enum { PIECE = 100000, PARTS = 4 };
    static unsigned char out[PIECE], in[PIECE];
    size_t sent[2] = {0, 0}, got[2] = {0, 0};
    struct rng rng;
    rng_init(&rng, seed);
    while (got[0] < bytes || got[1] < bytes) {
        bool moved = false;
        for (int k = 0; k < 2; k++) {
            struct iovec parts[PARTS];
            size_t n = bytes - sent[k] < PIECE ? bytes - sent[k] : PIECE, at = 0;
            for (size_t i = 0; i < n; i++)
                out[i] = byte_at(k, sent[k] + i);
            for (int j = 0; j < PARTS; j++) {
                size_t part = j == PARTS - 1 ? n - at : rng_next(&rng) % (n - at + 1);
                part = rng_next(&rng) % 2 || j == PARTS - 1 ? part : part % 50;
                parts[j] = (struct iovec){out + at, part};
                at += part;
            }
            ssize_t took =
                n > 0 || sides[k].peer->unsent
                    ? sides[k].tls->type->write(sides[k].peer, parts, n ? PARTS : 0)
                    : 0;
            ck_assert_msg(took != TLS_FAILED, "%s", sides[k].peer->why);
            sent[k] += n > 0 && took > 0 ? (size_t)took : 0;
            moved |= took > 0;
            memset(out, 0, sizeof out); /* what was taken is done with */

            ssize_t came = got[k] < bytes ? get_bytes(!k, in, 1 + rng_next(&rng) % PIECE)
                                          : TLS_WANTS_READ;
            ck_assert_msg(came > 0 || came == TLS_WANTS_READ, "%zd: %s", came,
                          sides[!k].peer->why);
            for (ssize_t i = 0; i < came; i++)
                if (in[i] != byte_at(k, got[k] + (size_t)i))
                    ck_abort_msg("byte %zu of end %d is wrong", got[k] + (size_t)i, k);
            got[k] += came > 0 ? (size_t)came : 0;
            moved |= came > 0;
        }
        if (!moved) {
            struct pollfd fds[2] = {{.fd = sides[0].fd, .events = POLLIN},
                                    {.fd = sides[1].fd, .events = POLLIN}};
            for (int k = 0; k < 2; k++)
                fds[k].events |= (short)(sides[k].peer->unsent ? POLLOUT : 0);
            ck_assert_int_gt(poll(fds, 2, 20000), 0);
        }
    }
}

START_TEST(many_bytes_both_ways)
{
    open_same();
    begin_tcp(4096);
    need_handshake();
    both_ways(MANY, 1);
    end_both();
    begin_pair();
    need_handshake();
    both_ways(MANY / 8, 2);
    end_both();
}
END_TEST

/* What is written in several calls leaves together, when it is told to; and by itself once
 * it is much. */
START_TEST(what_is_written_leaves_together)
{
    static char many[40000];
    struct iovec part = {many, 1000};
    char got[5000];

    open_same();
    begin_wire();
    run_wire(SIZE_MAX, SIZE_MAX, SIZE_MAX);
    struct tls_peer *peer = sides[DIALLED].peer;
    for (int k = 0; k < 3; k++) {
        ck_assert_int_eq(peer->type->write(peer, &part, 1), 1000);
        ck_assert(peer->unsent);
        ck_assert_uint_eq(carry_bytes(DIALLED, SIZE_MAX), 0);
    }
    ck_assert_int_eq(peer->type->write(peer, NULL, 0), TLS_DONE);
    ck_assert(!peer->unsent);
    ck_assert_uint_gt(carry_bytes(DIALLED, SIZE_MAX), 3000);
    ck_assert_int_eq(get_bytes(ACCEPTED, got, sizeof got), 3000);
    part.iov_len = sizeof many;
    ck_assert_int_eq(peer->type->write(peer, &part, 1), sizeof many);
    ck_assert_uint_eq(carry_bytes(DIALLED, SIZE_MAX), 0);
    ck_assert_int_eq(peer->type->write(peer, &part, 1), sizeof many);
    ck_assert_uint_gt(carry_bytes(DIALLED, SIZE_MAX), 0);
    close_wire();
}
END_TEST

/* With new keys every seven records, of which a record on the wire tells. */
START_TEST(keys_are_made_anew)
{
    unsigned char secret[SECRET_BYTES] = {1, 2, 3};
    char why[TLS_WHY], byte;
    const struct tls_keys keys = {.secret = secret, .rekey_records = 7};
    open_same();
    const struct tls_type *type = sides[0].tls->type;
    for (int k = 0; k < 2; k++) {
        type->close(sides[k].tls);
        ck_assert_ptr_nonnull(sides[k].tls = type->open(&keys, why));
    }
    begin_tcp(4096);
    need_handshake();
    both_ways(MANY / 16, 3);
    end_both();

    begin_wire();
    run_wire(SIZE_MAX, SIZE_MAX, SIZE_MAX);
    size_t one = 0;
    for (int k = 0; k < 8; k++) {
        ck_assert_int_eq(put_bytes(DIALLED, "x", 1), 1);
        size_t n = carry_bytes(DIALLED, SIZE_MAX);
        one = k == 0 ? n : one;
        ck_assert_uint_eq(n, k < 7 ? one : 2 * one + 4); /* 4 bytes more than "x" */
        ck_assert_int_eq(get_bytes(ACCEPTED, &byte, 1), 1);
    }
    /* and what has room in one record is in one */
    char many[5000] = "";
    ck_assert_int_eq(put_bytes(DIALLED, many, sizeof many), (ssize_t)sizeof many);
    ck_assert_uint_eq(carry_bytes(DIALLED, SIZE_MAX), one - 1 + sizeof many);
    close_wire();
}
END_TEST
START_TEST(a_byte_at_a_time)
{
    open_same();
    begin_wire();
    run_wire(SIZE_MAX, SIZE_MAX, 1);
    ck_assert_int_eq(sides[0].state, TLS_DONE);
    ck_assert_int_eq(sides[1].state, TLS_DONE);
    for (int k = 0; k < 2; k++) {
        char out[1000], in[1000];
        size_t n = 0;
        for (size_t i = 0; i < sizeof out; i++)
            out[i] = (char)(i * 7);
        ck_assert(put_bytes(k, out, sizeof out) == (ssize_t)sizeof out);
        while (n < sizeof in && carry_bytes(k, wire.n[k] + 1) > 0) {
            ssize_t got = get_bytes(!k, in + n, sizeof in - n);
            ck_assert(got == TLS_WANTS_READ || got > 0);
            ck_assert(got > 0 || !sides[!k].peer->pending);
            n += got > 0 ? (size_t)got : 0;
        }
        ck_assert_mem_eq(in, out, sizeof in);
        ck_assert_uint_eq(carry_bytes(k, SIZE_MAX), 0);
    }
    close_wire();
}
END_TEST

/* A reader that stops learns that there is more, and sleeps when there is not. */
START_TEST(what_is_pending)
{
    char some[10];
    open_same();
    begin_pair();
    need_handshake();
    for (int k = 0; k < 3; k++)
        ck_assert_int_eq(put_bytes(DIALLED, "0123456789", 10), 10);
    for (int k = 0; k < 6; k++) {
        ck_assert_int_eq(get_bytes(ACCEPTED, some, 5), 5);
        ck_assert_int_eq(sides[ACCEPTED].peer->pending, k < 5);
    }
    ck_assert_int_eq(get_bytes(ACCEPTED, some, 5), TLS_WANTS_READ);
    ck_assert(!sides[ACCEPTED].peer->pending);
    /* the end is told once the bytes before it are read */
    ck_assert_int_eq(put_bytes(DIALLED, "01234", 5), 5);
    ck_assert_int_eq(sides[DIALLED].tls->type->shutdown(sides[DIALLED].peer), TLS_DONE);
    ck_assert_int_eq(get_bytes(ACCEPTED, some, 10), 5);
    ck_assert(sides[ACCEPTED].peer->pending);
    ck_assert_int_eq(get_bytes(ACCEPTED, some, 10), TLS_CLOSED);
    end_both();
}
END_TEST

/* A socket that takes nothing: what write has counted comes, once it takes again. */
START_TEST(what_is_unsent)
{
    static unsigned char out[1 << 20], in[1 << 20];
    size_t sent = 0, got = 0;
    ssize_t n;
    open_same();
    begin_tcp(4096);
    need_handshake();
    for (size_t i = 0; i < sizeof out; i++)
        out[i] = byte_at(0, i);
    while ((n = put_bytes(DIALLED, out + sent, sizeof out - sent)) > 0)
        sent += (size_t)n;
    ck_assert_int_eq(n, TLS_WANTS_WRITE);
    ck_assert(sides[DIALLED].peer->unsent);
    memset(out, 0, sizeof out);
    while (got < sent) {
        ssize_t came = get_bytes(ACCEPTED, in + got, sizeof in - got);
        got += came > 0 ? (size_t)came : 0;
        ck_assert_int_ne(sides[DIALLED].tls->type->write(sides[DIALLED].peer, NULL, 0),
                         TLS_FAILED);
    }
    ck_assert(!sides[DIALLED].peer->unsent);
    for (size_t i = 0; i < sent; i++)
        ck_assert_int_eq(in[i], byte_at(0, i));
    end_both();
}
END_TEST

/* --- the module --- */

static void unsupported(const char *words)
{
    struct tls *tls = NULL;
    heard = (struct heard_lines){.least = DESCANT_ERROR};
    ck_assert_int_eq(
        tls_open(&tls, &(struct tls_files){.secret = secret_file("secret")}, &listening),
        DESCANT_UNSUPPORTED);
    ck_assert_int_eq(heard.n, 1);
    ck_assert_msg(strstr(heard.text, words) != NULL, "not '%s': %s", words, heard.text);
}

START_TEST(no_module)
{
    char path[PATH_MAX];
    ck_assert(tls_module_find(path, sizeof path));
    setenv("DESCANT_TLS_MODULE", "/nowhere", 1);
    ck_assert(!tls_module_find(path, sizeof path));
    unsupported(
        "a job with a secret or certificates needs a module: there is no "
        "descant-tls.so, for OpenSSL 3, in /nowhere; make builds it where the package "
        "libssl-dev is installed, and DESCANT_TLS_MODULE says where");
    put_file(in_folder("descant-tls.so"), "no module", 9);
    setenv("DESCANT_TLS_MODULE", in_folder("descant-tls.so"), 1);
    unsupported("; it needs OpenSSL 3: install the package libssl3, or openssl-libs");
}
END_TEST

int main(void)
{
    find_tls_module();
    TCase *secrets = new_case("secrets", 60), *others = new_case("others", 60),
          *bytes = new_case("bytes", 200);
    TCase *all[] = {secrets, others, bytes};
    for (int k = 0; k < N(all); k++)
        tcase_add_checked_fixture(all[k], make_folder, close_ends);
    tcase_add_test(secrets, one_secret);
    tcase_add_test(secrets, another_secret);
    tcase_add_test(secrets, an_end_without_a_goodbye);
    tcase_add_loop_test(others, certificates, 0, N(pairs));
    tcase_add_test(others, a_secret_at_one_end_and_certificates_at_the_other);
    tcase_add_test(others, files_that_cannot_be_used);
    tcase_add_loop_test(others, plain_text_at_an_end, 0, N(plain));
    tcase_add_test(others, other_programs);
    tcase_add_test(others, no_module);
    tcase_add_test(bytes, many_bytes_both_ways);
    tcase_add_test(bytes, keys_are_made_anew);
    tcase_add_test(bytes, a_byte_at_a_time);
    tcase_add_test(bytes, what_is_pending);
    tcase_add_test(bytes, what_is_unsent);
    tcase_add_test(bytes, what_is_written_leaves_together);
    return run_cases(secrets, others, bytes, NULL);
}
