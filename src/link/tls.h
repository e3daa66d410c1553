/* SPDX-License-Identifier: MIT */
/* TLS 1.3 over a connected stream socket, between a link's frames and a socket that
 * leaves the machine. Both ends prove that they belong to the job: by a secret that they
 * share (secret.h), or by certificates of one authority. Nothing else is accepted: no
 * older version, no ticket, no data before the handshake is done.
 *
 * OpenSSL does the work, in a module that alone links it and that tls_open loads.
 *
 * 1. Threads. Several threads may use one struct tls; a peer, one thread at a time.
 * 2. Sockets. The descriptor stays the caller's; the caller closes it after `end`. No
 *    call blocks, raises SIGPIPE, or changes the descriptor's flags.
 * 3. Waiting. TLS_WANTS_READ and TLS_WANTS_WRITE say for which event of the socket the
 *    caller waits before it calls again. While `pending` is true, `read` has
 *    bytes of which the socket will not tell.
 * 4. Gathering. Bytes that `write` has counted are the caller's again. They are kept in
 *    the peer as ciphertext, up to 80 KiB, and leave when there are more than 64 KiB, or
 *    when `write` is called with n = 0: so what is written in several calls leaves
 *    together, and wakes the other end once. While `unsent` is true, some are kept. If
 *    that call returns TLS_WANTS_WRITE, the caller waits until the socket takes bytes,
 *    and calls it again.
 * 5. Strangers. Until its handshake is done, a peer holds less than TLS_STRANGER bytes; a
 *    peer that has accepted and received nothing holds some hundred. Reading a
 *    certificate takes 20 KB for as long as the call lasts. The caller bounds the time. A
 *    handshake that is recorded and sent again is never done: its answer needs keys made
 *    anew.
 * 6. Failing. A peer that has failed stays so. `why` has the reason, to be put behind the
 *    other end's address and a colon. */
#ifndef LINK_TLS_H
#define LINK_TLS_H

#include "descant.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#define TLS_SYMBOL "descant_tls"    /* of the module: its struct tls_type */

enum { TLS_VERSION = 2, TLS_WHY = 256, TLS_STRANGER = 64 << 10 };
enum { TLS_RECORD = 17 << 10 };     /* bytes of a record on the wire, at most */

enum { TLS_DONE = 1, TLS_CLOSED = 0, TLS_WANTS_READ = -1, TLS_WANTS_WRITE = -2,
       TLS_FAILED = -3 };

struct log;
struct tls_type;

/* The head of the module's own structs. */
struct tls {
    const struct tls_type *type;
};

struct tls_peer {
    const struct tls_type *type;
    bool pending, unsent;       /* (3), (4) */
    char why[TLS_WHY];          /* (6) */
};

/* The module's keys: a secret's bytes, or the names of three files of PEM. */
struct tls_keys {
    const unsigned char *secret;    /* (SECRET_BYTES), or NULL */
    const char *cert, *key, *ca;
    uint32_t rekey_records;     /* new keys after so many records sent; 0: the cipher's
                                   limit */
};

struct tls_type {
    int version;                /* TLS_VERSION */
    const char *name;           /* of the loaded library, with its version */

    /* NULL: `why` has the reason. */
    struct tls *(*open)(const struct tls_keys *keys, char why[TLS_WHY]);
    void (*close)(struct tls *tls);     /* after the last of its peers; NULL is allowed */

    /* One end of a connection: the one that dialled, or the one that accepted. name: the
     * name or address that the other end's certificate must have; NULL: any that ca= has
     * signed. NULL: no memory. */
    struct tls_peer *(*begin)(struct tls *tls, int fd, bool dialled, const char *name);
    void (*end)(struct tls_peer *peer);     /* sends nothing to the other end; NULL is
                                               allowed */

    /* TLS_DONE, TLS_WANTS_READ, TLS_WANTS_WRITE or TLS_FAILED. With certificates the end
     * that dialled is done before the other one has seen its certificate: if the
     * certificate is refused, the first read fails. */
    int (*handshake)(struct tls_peer *peer);

    /* Returns the number of bytes that have come, up to n > 0; or TLS_CLOSED: the other
     * end sends no more; TLS_WANTS_READ, TLS_WANTS_WRITE or TLS_FAILED. */
    ssize_t (*read)(struct tls_peer *peer, void *into, size_t n);
    /* Returns the number of bytes taken, from the vector's beginning on; or
     * TLS_WANTS_WRITE or TLS_FAILED. n = 0: what is kept leaves, and TLS_DONE says that
     * nothing is unsent. Short parts share a record. */
    ssize_t (*write)(struct tls_peer *peer, const struct iovec *parts, int n);

    /* Tells the other end, behind all bytes written, that no more come: TLS_DONE,
     * TLS_WANTS_WRITE or TLS_FAILED. */
    int (*shutdown)(struct tls_peer *peer);
};

/* --- tls.c --- */

/* Names of files, as in an address: a secret, or the other three; NULL: not given. */
struct tls_files {
    const char *secret, *cert, *key, *ca;
};

/* Loads the module and reads the files. A failure is logged: UNSUPPORTED, the module or
 * OpenSSL is not there; INVALID, the files cannot be used. */
descant_status tls_open(struct tls **tls, const struct tls_files *files,
                        const struct log *log);

bool tls_module_find(char *path, size_t room);      /* its file, where there is one */

/* Whether the first bytes of a stream, 3 or more, are those of TLS: by them an end
 * without keys knows that the other one wants TLS. */
static inline bool tls_begins(const void *bytes)
{
    const unsigned char *at = bytes;
    return at[0] == 22 && at[1] == 3 && at[2] <= 4;
}

#endif
