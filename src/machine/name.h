/* SPDX-License-Identifier: MIT */
/* The names of a job's door and slots: each a socket's name that one process can hold. */
#ifndef MACHINE_NAME_H
#define MACHINE_NAME_H

#include <stdbool.h>

enum { NAME_DOOR = -1 };        /* where a slot is asked for */

/* A listener of that name, or -1 and errno: EADDRINUSE, the name is taken. */
int name_hold(const char *job, int slot);
/* A connection to the name's holder, or -1 and errno: ECONNREFUSED, no process listens;
 * EAGAIN, the queue is full. */
int name_reach(const char *job, int slot);

struct holder {
    unsigned uid;
    int pid;                    /* 0: not known */
};

/* The process at the other end, or the name's holder, listening or not. False: the kernel
 * does not say. */
bool name_peer(int fd, struct holder *who);
bool name_holder(const char *job, int slot, struct holder *who);

#endif
