/* SPDX-License-Identifier: MIT */
/* Sockets that are made up, in memory, for a link over TCP in one thread: the linker puts
 * these functions before the kernel's (Makefile, SOCKETS). Bytes come when a test puts
 * them, and in pieces as it likes; time goes on when it says so. Between sockets_begin and
 * sockets_end all sockets are made up; else the kernel has them. */
#ifndef SOCKETS_H
#define SOCKETS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SOCKETS = 48 };          /* open at a time; more fail with EMFILE */
enum { SOCKETS_FIRST = 1 << 20 };       /* their descriptors are from there on */

enum sockets_dial { SOCKETS_COME, SOCKETS_REFUSED, SOCKETS_REFUSED_LATER, SOCKETS_HANG,
                    SOCKETS_RESET };

struct sockets_calls {
    void (*rests)(void);        /* somebody waits for events: time may go on, bytes come */
    void (*sent)(int fd, const uint8_t *bytes, size_t n);
    void (*closed)(int fd);     /* so that its number may mean another one */
};

void sockets_begin(const struct sockets_calls *calls);
int sockets_end(void);          /* how many are still open, which are closed */
void *sockets_timer(void);      /* as epoll knows the timer; NULL: there is none */
void sockets_pass(uint64_t ns);
void sockets_dial(enum sockets_dial how);       /* what becomes of connects from now on */
void sockets_unknown(int times);        /* so many look-ups of a name fail */
uint64_t sockets_paced(void);   /* the rate that was set last, bytes a second; 0: none */

/* Descriptors. -1: there is none. */
int sockets_stranger(void);     /* a connection to the listener, that it may accept */
int sockets_nth(unsigned k);    /* one of those that are connected, or may come to be */
void sockets_hang_up(int fd, bool reset);
void sockets_connect(int fd);   /* one that hangs has connected */
void sockets_put(int fd, const void *bytes, size_t n);
/* A read gives so many bytes at most; so many fit before the socket takes no more. */
void sockets_limit(int fd, size_t read_most, size_t room);
size_t sockets_low(int fd);     /* so many bytes make it readable */

#endif
