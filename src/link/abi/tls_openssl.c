/* SPDX-License-Identifier: MIT */
/* TLS by OpenSSL 3 (tls.h). Compiled into a module with one symbol; the only source that
 * sees OpenSSL's headers.
 *
 * With a secret the handshake is TLS 1.3's with an external PSK and a Diffie-Hellman
 * exchange (psk_dhe_ke): the PSK proves both ends, the exchange makes the keys, so
 * traffic that was recorded stays secret when the secret does not. Where one end has no
 * PSK, OpenSSL would go on with certificates: here there are none, no authority is
 * trusted, and a handshake that was done without the PSK is refused at its end.
 *
 * Between OpenSSL and the socket is a BIO of our own. It gathers the records that OpenSSL
 * makes (`rest`), and `flush` sends some of them at once, without SIGPIPE; so OpenSSL
 * never waits for the socket in the middle of a record, and what `write` has counted is
 * done with. A read that was not full has emptied the socket, which the same call of
 * `read` does not ask again. And the BIO looks at what a stranger sends before OpenSSL
 * does (`admit`), because OpenSSL takes memory for a message as soon as it has read how
 * long the message claims to be: up to 175 KB for a ClientHello.
 *
 * OpenSSL gives its buffers back whenever they are empty, so that a connection at rest is
 * small, and takes them again by malloc. It registers nothing for the process's exit,
 * where threads of a job may still run. Its errors lie in a queue of the thread, which
 * the program may use for itself: the queue is empty before each call, and left empty. */
#include "link/secret.h"
#include "link/tls.h"

#include <openssl/core_names.h>
#include <openssl/err.h>
#include <openssl/kdf.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

enum { RECORD = SSL3_RT_MAX_PLAIN_LENGTH, RECORD_HEAD = 5, HEADS = RECORD_HEAD + 4 };
enum { HELLO_MOST = 2048, CERTIFICATES_MOST = 8 << 10 };
enum { REST_MOST = 64 << 10, READ_ROOM = 64 << 10 };
enum { REKEY_RECORDS = 1 << 22 };       /* AES-GCM's keys are good for 2^24.5 records (RFC
                                           8446, 5.5) */

static const unsigned char identity[] = "descant";
static const char label[] = "descant tls 1 psk";    /* of HKDF; 1: of all that is here */

struct context {
    struct tls tls;             /* first */
    SSL_CTX *ssl;
    BIO_METHOD *socket;
    uint32_t rekey_records;
    bool by_secret;
    unsigned char psk[SECRET_BYTES];
};

struct openssl_peer {
    struct tls_peer head;       /* first */
    struct context *context;
    SSL *ssl;                   /* NULL: it has accepted, and nothing has come */
    int fd;
    bool known, failed, ended;  /* ended: the socket's end was read */
    bool drained;               /* this call of `read` has emptied the socket */
    uint32_t records;           /* sent with these keys */
    unsigned char *rest;        /* (rest_room): records in [rest_at, rest_n) */
    size_t rest_at, rest_n, rest_room;
    unsigned char start[HEADS]; /* admit's: n_start bytes of a record, */
    size_t n_start, skip;       /* of which so many to come need no look */
};

extern const struct tls_type descant_tls;

/* --- failing --- */

__attribute__((format(printf, 2, 3)))
static int fail(struct openssl_peer *p, const char *format, ...)
{
    va_list list;

    va_start(list, format);
    if (!p->failed)
        vsnprintf(p->head.why, sizeof p->head.why, format, list);
    va_end(list);
    p->failed = true;
    return TLS_FAILED;
}

static const char *reason(unsigned long error)
{
    const char *text = ERR_SYSTEM_ERROR(error) ? strerror(ERR_GET_REASON(error))
                                               : ERR_reason_error_string(error);
    return text ? text : "no reason is known";
}

/* Why OpenSSL has failed, in words. */
static int explain(struct openssl_peer *p)
{
    unsigned long error = ERR_peek_error();
    int why = ERR_GET_LIB(error) == ERR_LIB_SSL ? ERR_GET_REASON(error) : 0;
    int alert = why > SSL_AD_REASON_OFFSET ? why - SSL_AD_REASON_OFFSET : 0;
    bool secret = p->context->by_secret && !p->known;

    if (p->ended && p->known)
        return fail(p, "the connection ended without TLS's goodbye: the other end has "
                       "died, or the bytes were cut off");
    if (p->ended)
        return fail(p, "the other end closed the connection before the handshake was "
                       "done");
    if (secret && (why == SSL_R_BINDER_DOES_NOT_VERIFY ||
                   alert == SSL_AD_ILLEGAL_PARAMETER || alert == SSL_AD_DECRYPT_ERROR))
        return fail(p, "the other end has another secret: give both the same file");
    if (secret && (why == SSL_R_CERTIFICATE_VERIFY_FAILED ||
                   why == SSL_R_NO_SUITABLE_SIGNATURE_ALGORITHM ||
                   alert == SSL_AD_HANDSHAKE_FAILURE))
        return fail(p, "the other end has no secret, and this one has: give both the "
                       "same file");
    if (why == SSL_R_CERTIFICATE_VERIFY_FAILED)
        return fail(p, "the other end's certificate is refused: %s",
                    X509_verify_cert_error_string(SSL_get_verify_result(p->ssl)));
    if (why == SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE)
        return fail(p, "the other end has no certificate");
    if (alert)
        return fail(p, "the other end refuses this one: %s",
                    SSL_alert_desc_string_long(alert));
    return fail(p, "TLS fails: %s", reason(error));
}

/* --- the socket --- */

/* Looks at a stranger's bytes: at the heads of records, and of a hello, which our own
 * ends send in a record of its own. */
static int admit(struct openssl_peer *p, const unsigned char *bytes, size_t n)
{
    const unsigned char *at = p->start;

    for (size_t k; n > 0; bytes += k, n -= k) {
        k = p->skip == 0 ? 1 : p->skip < n ? p->skip : n;
        if (p->skip > 0) {
            p->skip -= k;
            continue;
        }
        p->start[p->n_start++] = *bytes;
        size_t record = (size_t)at[3] << 8 | at[4];
        size_t hello = ((size_t)at[6] << 16 | (size_t)at[7] << 8 | at[8]) + 4;
        if (at[0] < SSL3_RT_CHANGE_CIPHER_SPEC || at[0] > SSL3_RT_APPLICATION_DATA)
            return fail(p, "the other end does not talk TLS (its first byte is 0x%02x): "
                           "give it the same secret or certificates", at[0]);
        if (p->n_start == HEADS && (record > HELLO_MOST || record != hello))
            return fail(p, "the other end's hello has %zu bytes in a record of %zu: it "
                           "is no Descant", hello, record);
        if (p->n_start == HEADS)
            p->skip = record - 4;
        else if (p->n_start == RECORD_HEAD && at[0] != SSL3_RT_HANDSHAKE)
            p->skip = record;
        else
            continue;
        p->n_start = 0;
    }
    return TLS_DONE;
}

static int socket_read(BIO *bio, char *into, int n)
{
    struct openssl_peer *p = BIO_get_data(bio);
    ssize_t got;

    BIO_clear_retry_flags(bio);
    if (p->drained) {
        BIO_set_retry_read(bio);
        return -1;
    }
    do
        got = recv(p->fd, into, (size_t)n, MSG_DONTWAIT);
    while (got < 0 && errno == EINTR);
    p->ended |= got == 0;
    p->drained = p->known && got > 0 && got < n;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        BIO_set_retry_read(bio);
    else if (got < 0)
        fail(p, "the connection has failed: %s", strerror(errno));
    else if (!p->known && admit(p, (unsigned char *)into, (size_t)got) == TLS_FAILED)
        return -1;
    return (int)got;
}

static int socket_write(BIO *bio, const char *bytes, int n)
{
    struct openssl_peer *p = BIO_get_data(bio);
    size_t held = p->rest_n - p->rest_at, wanted = held + (size_t)n;

    BIO_clear_retry_flags(bio);
    if (held > REST_MOST) {     /* the other end asks for answers and reads none */
        BIO_set_retry_write(bio);
        return -1;
    }
    if (p->rest_at > 0)
        memmove(p->rest, p->rest + p->rest_at, held);
    p->rest_at = 0;
    p->rest_n = held;
    if (wanted > p->rest_room) {
        unsigned char *room = OPENSSL_realloc(p->rest, wanted);
        if (!room) {
            fail(p, "no memory for a record");
            return -1;
        }
        p->rest = room;
        p->rest_room = wanted;
    }
    memcpy(p->rest + held, bytes, (size_t)n);
    p->rest_n = wanted;
    p->head.unsent = true;
    return n;
}

static long socket_ctrl(BIO *bio, int command, long value, void *more)
{
    struct openssl_peer *p = BIO_get_data(bio);

    (void)value, (void)more;
    return command == BIO_CTRL_EOF ? p->ended : command == BIO_CTRL_FLUSH;
}

/* Sends the rest: TLS_DONE, TLS_WANTS_WRITE or TLS_FAILED. */
static int flush(struct openssl_peer *p)
{
    while (p->rest_at < p->rest_n) {
        ssize_t sent = send(p->fd, p->rest + p->rest_at, p->rest_n - p->rest_at,
                            MSG_DONTWAIT | MSG_NOSIGNAL);
        p->head.unsent = sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
        if (p->head.unsent)
            return TLS_WANTS_WRITE;
        if (sent < 0 && errno != EINTR)
            return fail(p, "the connection has failed: %s", strerror(errno));
        p->rest_at += sent > 0 ? (size_t)sent : 0;
    }
    p->rest_at = p->rest_n = 0;
    p->head.unsent = false;
    return TLS_DONE;
}

/* The meaning of a call of OpenSSL that did not succeed. */
static int outcome(struct openssl_peer *p, int returned)
{
    int what = SSL_get_error(p->ssl, returned), result = TLS_FAILED;

    if (what == SSL_ERROR_WANT_READ)
        result = TLS_WANTS_READ;
    else if (what == SSL_ERROR_WANT_WRITE)
        result = TLS_WANTS_WRITE;
    else if (what == SSL_ERROR_ZERO_RETURN && p->known)
        result = TLS_CLOSED;
    else {
        explain(p);
        flush(p);               /* OpenSSL has told the other end */
    }
    ERR_clear_error();
    return p->failed ? TLS_FAILED : result;
}

/* --- the context --- */

static bool derive(struct context *c, const unsigned char *secret)
{
    EVP_KDF *kind = EVP_KDF_fetch(NULL, "HKDF", NULL);
    EVP_KDF_CTX *kdf = EVP_KDF_CTX_new(kind);
    char digest[] = "SHA256", info[sizeof label];
    unsigned char key[SECRET_BYTES];
    const OSSL_PARAM how[] = {
        OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest, 0),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, key, sizeof key),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, info, sizeof label - 1),
        OSSL_PARAM_construct_end(),
    };

    memcpy(key, secret, sizeof key);
    memcpy(info, label, sizeof label);
    bool good = kdf && EVP_KDF_derive(kdf, c->psk, sizeof c->psk, how) == 1;
    OPENSSL_cleanse(key, sizeof key);
    EVP_KDF_CTX_free(kdf);
    EVP_KDF_free(kind);
    return good;
}

/* The PSK, in the form in which OpenSSL takes one. NULL: no memory. */
static SSL_SESSION *session(SSL *ssl)
{
    static const unsigned char aes_128_gcm_sha256[] = {0x13, 0x01};
    const struct context *c = ((struct openssl_peer *)SSL_get_app_data(ssl))->context;
    const SSL_CIPHER *cipher = SSL_CIPHER_find(ssl, aes_128_gcm_sha256);
    SSL_SESSION *s = SSL_SESSION_new();

    if (s && cipher && SSL_SESSION_set1_master_key(s, c->psk, sizeof c->psk) &&
        SSL_SESSION_set1_id_context(s, identity, sizeof identity - 1) &&
        SSL_SESSION_set_cipher(s, cipher) &&
        SSL_SESSION_set_protocol_version(s, TLS1_3_VERSION))
        return s;
    SSL_SESSION_free(s);
    return NULL;
}

static int use_session(SSL *ssl, const EVP_MD *digest, const unsigned char **id,
                       size_t *id_bytes, SSL_SESSION **s)
{
    (void)digest;
    *id = identity;
    *id_bytes = sizeof identity - 1;
    *s = session(ssl);
    return *s != NULL;
}

static int find_session(SSL *ssl, const unsigned char *id, size_t n, SSL_SESSION **s)
{
    bool ours = n == sizeof identity - 1 && memcmp(id, identity, n) == 0;

    *s = ours ? session(ssl) : NULL;
    return !ours || *s;
}

/* Else OpenSSL would ask the terminal for it. */
static int no_password(char *into, int room, int writing, void *asked)
{
    (void)into, (void)room, (void)writing;
    *(bool *)asked = true;
    return -1;
}

static bool load(SSL_CTX *ssl, const struct tls_keys *keys, char why[TLS_WHY])
{
    const char *option = NULL, *file = NULL;
    bool asked = false;

    SSL_CTX_set_default_passwd_cb(ssl, no_password);
    SSL_CTX_set_default_passwd_cb_userdata(ssl, &asked);
    if (SSL_CTX_use_certificate_chain_file(ssl, keys->cert) != 1)
        option = "cert", file = keys->cert;
    else if (SSL_CTX_use_PrivateKey_file(ssl, keys->key, SSL_FILETYPE_PEM) != 1)
        option = "key", file = keys->key;
    else if (SSL_CTX_load_verify_file(ssl, keys->ca) != 1)
        option = "ca", file = keys->ca;
    if (option)
        snprintf(why, TLS_WHY, "%s=%.150s: %s", option, file,
                 asked ? "it has a password, which cannot be asked for"
                       : reason(ERR_peek_error()));
    return !option;
}

static bool set_up(struct context *c)
{
    char groups[] = "X25519:P-256";

    c->ssl = SSL_CTX_new(TLS_method());
    c->socket = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "descant");
    if (!c->ssl || !c->socket)
        return false;
    SSL_CTX_clear_options(c->ssl,
                          SSL_OP_ENABLE_MIDDLEBOX_COMPAT | SSL_OP_ALLOW_NO_DHE_KEX);
    SSL_CTX_set_options(c->ssl, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION |
                                    SSL_OP_NO_COMPRESSION);
    SSL_CTX_set_mode(c->ssl, SSL_MODE_RELEASE_BUFFERS |
                                 SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_session_cache_mode(c->ssl, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_verify(c->ssl, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    SSL_CTX_set_max_cert_list(c->ssl, CERTIFICATES_MOST);
    return SSL_CTX_set_min_proto_version(c->ssl, TLS1_3_VERSION) &&
           SSL_CTX_set_max_proto_version(c->ssl, TLS1_3_VERSION) &&
           SSL_CTX_set_ciphersuites(c->ssl, "TLS_AES_128_GCM_SHA256") &&
           SSL_CTX_set1_groups_list(c->ssl, groups) &&
           SSL_CTX_set_num_tickets(c->ssl, 0) &&
           SSL_CTX_set_max_send_fragment(c->ssl, HELLO_MOST) &&
           SSL_CTX_set_session_id_context(c->ssl, identity, sizeof identity - 1) &&
           BIO_meth_set_read(c->socket, socket_read) &&
           BIO_meth_set_write(c->socket, socket_write) &&
           BIO_meth_set_ctrl(c->socket, socket_ctrl);
}

static void close_context(struct tls *tls)
{
    struct context *c = (struct context *)tls;

    if (!c)
        return;
    SSL_CTX_free(c->ssl);
    BIO_meth_free(c->socket);
    OPENSSL_clear_free(c, sizeof *c);
}

static struct tls *open_context(const struct tls_keys *keys, char why[TLS_WHY])
{
    OPENSSL_init_ssl(OPENSSL_INIT_NO_ATEXIT, NULL);
    ERR_clear_error();
    *why = 0;
    struct context *c = OPENSSL_zalloc(sizeof *c);
    bool good = c && set_up(c);
    if (good && keys->secret) {
        SSL_CTX_set_psk_use_session_callback(c->ssl, use_session);
        SSL_CTX_set_psk_find_session_callback(c->ssl, find_session);
    }
    if (good && (keys->secret ? derive(c, keys->secret) : load(c->ssl, keys, why))) {
        c->tls.type = &descant_tls;
        c->by_secret = keys->secret != NULL;
        c->rekey_records = keys->rekey_records ? keys->rekey_records : REKEY_RECORDS;
        return &c->tls;
    }
    if (!*why)
        snprintf(why, TLS_WHY, "OpenSSL cannot be set up: %s", reason(ERR_peek_error()));
    ERR_clear_error();
    close_context((struct tls *)c);
    return NULL;
}

/* --- a peer --- */

static void end(struct tls_peer *peer)
{
    struct openssl_peer *p = (struct openssl_peer *)peer;

    if (!p)
        return;
    SSL_free(p->ssl);
    OPENSSL_free(p->rest);
    OPENSSL_free(p);
}

static bool make_ssl(struct openssl_peer *p, bool dialled, const char *name)
{
    BIO *bio = BIO_new(p->context->socket);
    SSL *ssl = p->ssl = bio ? SSL_new(p->context->ssl) : NULL;

    if (!ssl) {
        BIO_free(bio);
        return false;
    }
    BIO_set_data(bio, p);
    BIO_set_init(bio, 1);
    SSL_set_bio(ssl, bio, bio);
    SSL_set_hostflags(ssl, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    (dialled ? SSL_set_connect_state : SSL_set_accept_state)(ssl);
    return SSL_set_app_data(ssl, p) && (!name || SSL_set1_host(ssl, name));
}

static struct tls_peer *begin(struct tls *tls, int fd, bool dialled, const char *name)
{
    struct openssl_peer *p = OPENSSL_zalloc(sizeof *p);

    if (!p)
        return NULL;
    p->head.type = &descant_tls;
    p->context = (struct context *)tls;
    p->fd = fd;
    if (!dialled || make_ssl(p, true, name))
        return &p->head;
    ERR_clear_error();
    end(&p->head);
    return NULL;
}

static int handshake(struct tls_peer *peer)
{
    struct openssl_peer *p = (struct openssl_peer *)peer;
    char first;

    if (p->failed || p->known)
        return p->failed ? TLS_FAILED : flush(p);
    /* the end that accepts takes memory once bytes, or the end of all, have come */
    if (!p->ssl && recv(p->fd, &first, 1, MSG_PEEK | MSG_DONTWAIT) < 0 &&
        (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
        return TLS_WANTS_READ;
    ERR_clear_error();
    if (!p->ssl && !make_ssl(p, false, NULL))
        return fail(p, "no memory for its handshake");
    int returned = SSL_do_handshake(p->ssl);
    int result = returned == 1 ? TLS_DONE : outcome(p, returned);
    if (result == TLS_DONE && p->context->by_secret && !SSL_session_reused(p->ssl))
        result = fail(p, "the other end has not shown that it has the secret");
    if (result == TLS_DONE) {
        p->known = true;        /* its next buffers may be large: it has none now */
        SSL_set_max_send_fragment(p->ssl, RECORD);
        SSL_set_split_send_fragment(p->ssl, RECORD);
        SSL_set_read_ahead(p->ssl, 1);
        SSL_set_default_read_buffer_len(p->ssl, READ_ROOM);
    }
    int sent = result == TLS_FAILED ? TLS_DONE : flush(p);
    return sent == TLS_DONE ? result : sent;
}

static bool is_known(struct openssl_peer *p)
{
    if (!p->known)
        fail(p, "it was used before its handshake was done");
    return !p->failed;
}

static ssize_t read_some(struct tls_peer *peer, void *into, size_t n)
{
    struct openssl_peer *p = (struct openssl_peer *)peer;
    size_t done = 0, got;
    int result = is_known(p) ? TLS_DONE : TLS_FAILED;

    p->drained = false;
    ERR_clear_error();
    while (result == TLS_DONE && done < n) {
        int returned = SSL_read_ex(p->ssl, (char *)into + done, n - done, &got);
        if (returned == 1)
            done += got;
        else
            result = outcome(p, returned);
    }
    if (!p->failed && flush(p) == TLS_FAILED)   /* answers to the other end's requests */
        result = TLS_FAILED;
    /* the end, or the failure, is for the next call */
    p->head.pending = done > 0 && (result == TLS_CLOSED || result == TLS_FAILED ||
                                   (result == TLS_DONE && SSL_has_pending(p->ssl)));
    return done > 0 ? (ssize_t)done : result;
}

/* Workers may write meanwhile (kernels.h), so ThreadSanitizer is to see no memcpy. */
#ifdef __SANITIZE_THREAD__
__attribute__((no_sanitize("thread"))) static void
copy_live(unsigned char *to, const unsigned char *from, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] = from[i];
}
#else
#define copy_live memcpy
#endif

/* The parts' bytes from the place `from` on, up to a record. */
static size_t gather(const struct iovec *parts, int n, size_t from,
                     unsigned char record[RECORD])
{
    size_t have = 0;

    for (; n > 0 && have < RECORD; parts++, n--) {
        size_t left = from < parts->iov_len ? parts->iov_len - from : 0;
        size_t k = left < RECORD - have ? left : RECORD - have;
        if (k > 0)
            copy_live(record + have, (const unsigned char *)parts->iov_base + from, k);
        have += k;
        from = left > 0 ? 0 : from - parts->iov_len;
    }
    return have;
}

static ssize_t write_some(struct tls_peer *peer, const struct iovec *parts, int n)
{
    struct openssl_peer *p = (struct openssl_peer *)peer;
    unsigned char record[RECORD];
    size_t done = 0, bytes = n > 0, put;
    int result = is_known(p) ? TLS_DONE : TLS_FAILED;

    if (result == TLS_DONE && (n == 0 || p->rest_n - p->rest_at > REST_MOST))
        result = flush(p);
    ERR_clear_error();
    while (result == TLS_DONE && bytes > 0) {
        bytes = gather(parts, n, done, record);
        if (bytes > 0 && p->records++ >= p->context->rekey_records &&
            SSL_key_update(p->ssl, SSL_KEY_UPDATE_NOT_REQUESTED))
            p->records = 0;
        int returned = bytes > 0 ? SSL_write_ex(p->ssl, record, bytes, &put) : 1;
        done += returned == 1 ? bytes : 0;
        if (returned != 1)
            result = outcome(p, returned);
        else if (p->rest_n - p->rest_at > REST_MOST)
            result = flush(p);
    }
    return p->failed ? TLS_FAILED : done > 0 ? (ssize_t)done : result;
}

static int shut_down(struct tls_peer *peer)
{
    struct openssl_peer *p = (struct openssl_peer *)peer;

    if (!is_known(p))
        return TLS_FAILED;
    ERR_clear_error();
    bool said = SSL_get_shutdown(p->ssl) & SSL_SENT_SHUTDOWN;
    int returned = said ? 0 : SSL_shutdown(p->ssl);
    return returned < 0 ? outcome(p, returned) : flush(p);
}

__attribute__((visibility("default"))) const struct tls_type descant_tls = {
    .version = TLS_VERSION,
    .name = OPENSSL_VERSION_TEXT,
    .open = open_context,
    .close = close_context,
    .begin = begin,
    .end = end,
    .handshake = handshake,
    .read = read_some,
    .write = write_some,
    .shutdown = shut_down,
};
