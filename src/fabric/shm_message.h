/* SPDX-License-Identifier: MIT */
/* What trainers of a machine say to one another when they meet: short messages over sockets,
 * with descriptors beside them. */
#ifndef SHM_MESSAGE_H
#define SHM_MESSAGE_H

#include "fabric/shm_arena.h"

enum what { WHAT_HELLO = 1, WHAT_MEMBER, WHAT_SEAT, WHAT_SEATED };

struct message {
    uint32_t magic, version, what, slot, generation;
};

struct message message_of(enum what what, unsigned slot, uint32_t generation);

/* CUT: this process has no descriptors left for those that came along. */
enum heard { HEARD, HEARD_NOTHING, HEARD_NOISE, HEARD_CUT, HEARD_END };

/* What is there to hear; descriptors that came along, -1 for none, are the caller's to close. */
enum heard message_take(int fd, struct message *message, int fds[2]);

/* True, and HEARD, if it went, or came, as one whole message of ours with that many descriptors, two
 * at most. What is heard is the caller's to close. */
bool message_say(int fd, const struct message *message, const int *fds, size_t n_fds);
enum heard message_hear(int fd, struct message *message, int *fds, size_t n_fds);

void fd_close(int *fd);         /* if it is open; it is -1 then */
bool pidfd_dead(int pidfd);

/* For poll: milliseconds until then, 0 if it is past, a minute at most. */
int ms_until(uint64_t until_ns);
void nap(void);                 /* a millisecond, where there is nothing to sleep on */

#endif
