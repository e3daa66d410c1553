/* SPDX-License-Identifier: MIT */
/* The messages of a machine's trainers when they meet: short messages over
 * sockets, with descriptors beside them. */
#ifndef MACHINE_MESSAGE_H
#define MACHINE_MESSAGE_H

#include "base/base.h"

/* Each answer's version is tested before its descriptors are used (meet.c), so it stands
 * for these messages and for the layout of the memory behind the arena's descriptor. */
#define MACHINE_MAGIC 0x6e616373u
#define MACHINE_VERSION 6u

/* A joiner says HELLO, with its pidfd, to each slot; a trainer there answers MEMBER with
 * its slot and generation, the arena's descriptor and its own pidfd. Then the joiner says
 * SEAT with the slot and generation that it will have, and each trainer that watches it
 * from then on answers SEATED. */
enum what { WHAT_HELLO = 1, WHAT_MEMBER, WHAT_SEAT, WHAT_SEATED };

struct message {
    uint32_t magic, version, what, slot, generation;
};

/* Fills in a message of this version. */
struct message message_of(enum what what, unsigned slot, uint32_t generation);

/* CUT: this process has no descriptors left for those that came along. */
enum heard { HEARD, HEARD_NOTHING, HEARD_NOISE, HEARD_CUT, HEARD_END };

/* Receives without waiting. The caller closes the descriptors; -1: none came. */
enum heard message_take(int fd, struct message *message, int fds[2]);

/* Sends a message with so many descriptors, two at most; true if it went as a whole. */
bool message_say(int fd, const struct message *message, const int *fds, size_t n_fds);
/* Receives a whole message of this version with so many descriptors, which the caller
 * closes. */
enum heard message_hear(int fd, struct message *message, int *fds, size_t n_fds);

void fd_close(int *fd);         /* closes it if it is open, and makes it -1 */
/* for poll: milliseconds, 0 if it is past, a minute at most */
int ms_until(uint64_t until_ns);
void nap(void);    /* sleeps a millisecond, where there is nothing to sleep on */

#endif
