/* SPDX-License-Identifier: MIT */
/* One rank of a job over TCP, and all that others may do to it: a script in bytes, over
 * sockets that are made up (sockets.h). */
#ifndef TCP_BYTES_H
#define TCP_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The first byte of a script says which rank this is (bits 0-1; 3: -1), that rank 0
 * answers it (4), whether reads give 1 byte, 7, 60 or all (8, 16), and a size of the job
 * (32), and whether it may be flooded (64 and 128), once, as that takes long, or is in a
 * star (64 alone). Then come
 * steps: a step's low half-byte, an argument in its high one, and bytes
 * of its own, 0 where the script has ended. A step that cannot be done is left out. */
enum tcp_step {
    STEP_COLLECT,               /* argument: how much time passes before it */
    STEP_STRANGER,              /* somebody connects */
    STEP_RAW,                   /* argument: the connection; n; n bytes as they are */
    STEP_HELLO,                 /* connection; rank and generation; what is wrong in it */
    STEP_WORD,                  /* connection; stream; size; what is wrong in it */
    STEP_BULK,                  /* connection; stream; size; what is wrong in it */
    STEP_WANT,                  /* connection; stream; size; what is wrong in it */
    STEP_TAKEN,                 /* connection; stream; how many; what is wrong in it */
    STEP_TALK,                  /* connection; which frame; a byte of it */
    STEP_RECEIVE,               /* rank; stream; size */
    STEP_SEND,                  /* rank; stream; size */
    STEP_BREAK,                 /* connection; 1: by a reset */
    STEP_FORGET,                /* rank, or any; below which series */
    STEP_LIMIT,                 /* connection; how much it gives and takes at once */
    STEP_DIAL,                  /* how connects end; or one that hangs has connected */
    STEP_FLOOD                  /* connection; kind of frame; 8 times: so many streams */
};

/* False: a rule is broken, which `why`, of 512 bytes, names. */
bool tcp_bytes_run(const uint8_t *bytes, size_t n, char *why);

/* Counts over all runs so far. */
struct tcp_bytes_sum {
    long met, known, words, bulk, sent, failed, gone, goes_on, dropped, refused, passed;
};
extern struct tcp_bytes_sum tcp_bytes_sum;

/* Scripts that reach something. */
struct tcp_bytes_seed {
    const char *name;
    const uint8_t *bytes;
    size_t n;
};
extern const struct tcp_bytes_seed tcp_bytes_seeds[];
extern const int n_tcp_bytes_seeds;

#endif
