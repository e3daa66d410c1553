/* SPDX-License-Identifier: MIT */
/* Two ends of TLS in one thread, and a wire between them that can be cut anywhere. */
#ifndef HARNESS_ENDS_H
#define HARNESS_ENDS_H

#include "harness/suite.h"
#include "link/tls.h"

enum { DIALLED, ACCEPTED, TURNS = 100000 };

extern struct tls_side {
    struct tls *tls;
    struct tls_peer *peer;
    int fd, state;              /* of its handshake */
} sides[2];

void find_tls_module(void);     /* of this build; main calls it */

/* --- keys, in the test's folder --- */

const char *secret_file(const char *name);
void open_secrets(const char *a, const char *b);
void open_same(void);           /* both ends have one secret */
/* An authority, ca, and its one, two, and old, which has expired; foreign of
 * foreign-ca. */
void make_certificates(void);
/* With the certificate of that name, and an authority's. */
struct tls *open_named(const char *name, const char *authority);
struct tls *open_files(const struct tls_files *files);
void close_ends(void);          /* a fixture, with remove_folder */

/* --- connections --- */

/* Over these sockets; the end that dialled wants the name. */
void begin_on(int dialled, int accepted, const char *name);
void begin_pair(void);
void begin_tcp(int buffer);     /* of the kernel, in bytes; 0: as it is */
void end_one(int k);
void end_both(void);

bool is_over(int state);
int step_end(int k);            /* of its handshake */
void do_handshake(void);        /* both in turn, until both are over */
void need_handshake(void);      /* and both are done */

ssize_t put_bytes(int k, const void *bytes, size_t n);
ssize_t get_bytes(int k, void *into, size_t n);
void wait_bytes(int k);         /* until some have come to it */
void expect_text(int from, const char *text);   /* the other end reads it */
void why_has(int k, const char *words);
void end_says(int k, const char *words);        /* its handshake has failed so */

/* --- a wire --- */

extern struct tls_wire {
    int fd[2];                  /* next to the ends' */
    size_t n[2];                /* bytes that have come from that end, */
    unsigned char bytes[2][8192];       /* and which */
} wire;

void begin_wire(void);
/* What has come from end k goes to the other one, up to so many bytes in all. */
size_t carry_bytes(int k, size_t most);
/* Both ends and the wire in turn, until nothing moves any more. */
void run_wire(size_t most_dialled, size_t most_accepted, size_t at_a_time);
void close_wire(void);

#endif
