/* SPDX-License-Identifier: MIT */
/* The link over TCP: ranks that come late, die, and are cut off. One rank, 0, listens at
 * the job's address, and each other rank goes there first. Rank 0 gives a rank to a
 * process that names none, and tells all ranks of each other. They then connect to each
 * other, the higher rank to the lower. A job goes on without rank 0, but no process can
 * join until rank 0 has been started again at the same address.
 *
 * The bytes of a connection are frames (struct tcp_frame, as it lies in memory; all
 * machines have their low byte first). The first one each way is a HELLO:
 *
 *   HELLO     the sender's rank, the rank that it believes to reach, and its own port
 *   REFUSED   the reason, as text, why the sender closes the connection
 *
 *   WORD      a whole message of at most LINK_WORD bytes
 *   BULK      a part of a longer message, from `offset` on
 *   WANT      the next message of this stream is longer, and waits for room
 *   TAKEN     of the stream in the other direction: the number of messages that have come
 *             whole (index), and of those for which there is or was a receive (total)
 *   GOES_ON   all TAKEN of a connection that follows another one have been sent
 *   PEER      a rank, its generation and the address at which it listens
 *   BYE       nothing follows: the link is closed, or has forgotten this peer
 *   ROOM      in a star: how many bytes for another rank rank 0 has room for
 *
 * A stream's messages are numbered from 0. A word may leave once fewer than LINK_WORDS of
 * the messages before it lack a receive; bulk, once it has a receive of its own. So a
 * receiver can read all that comes, and one connection to each peer is enough.
 *
 * Beyond this machine all frames go through TLS (tls.h): both ends of a connection show
 * that they have the job's secret, or certificates of its authority.
 *
 * A connection that breaks is mended: each end keeps every message until the other end
 * has said that it has the message whole, the higher rank connects anew, and both go on
 * where TAKEN says. A peer is gone once no process, or another one, listens at its
 * port.
 *
 * In a star, whose address says star=1, all connections are with rank 0, the hub. A rank
 * above 0 listens nowhere, so it may be behind a NAT, and one connection that it has made
 * is enough. Ranks above 0 send each other the same frames, which the hub passes on
 * unread (tcp_pass.c; tcp_star.c says when such a peer comes and goes). Each connection
 * has its own TLS, so the hub has all that they say in the clear: run it on a host that
 * may read the model. If the hub is gone, so is rank 0 for all, and the other ranks are
 * out of reach until a hub is started again at the address. */
#ifndef LINK_TCP_H
#define LINK_TCP_H

#include "link/link.h"

enum { TCP_TEXT = 256 };

/* link_entry.context of this link. */
struct tcp_options {
    char host[TCP_TEXT], port[16];
    int64_t most;               /* ranks that the job can have */
    double dead_s;              /* a rank that is silent for so long counts as dead */
    bool star;                  /* all connections are with rank 0, which passes on what
                                   others send each other */
    bool insecure;              /* nothing is encrypted, and any process may join */
    /* names of files, or empty: the secret of all ranks, or this rank's certificate */
    char secret[TCP_TEXT], cert[TCP_TEXT], key[TCP_TEXT], ca[TCP_TEXT];
    /* a rank above 0 comes from the address of this interface and listens there, at one
       of these ports; empty, 0: it may be any */
    char interface[TCP_TEXT], ports[TCP_TEXT];
    int first_port, last_port;
    int64_t rows_port;          /* where rank 0 is met by the link beside this one; 0: the
                                   port after its own */
    bool beside;                /* this is that link */
};

/* Of "HOST:PORT[,key=value…]", an IPv6 address in brackets. */
descant_status tcp_options_read(struct tcp_options *options, const char *address,
                                const struct log *log);

#endif
