/* SPDX-License-Identifier: MIT */
/* Waits as text. */
#ifndef WAITS_H
#define WAITS_H

#include "fabric/fabric.h"

/* Describes the wait of the fabric's exchange: "trainer 0 waits in round 17 (mean) for
 * trainers 2, 3"; empty if it does not wait. Returns as snprintf. */
int waits_text(const struct fabric *f, char *text, size_t room);

/* "trainer 3", or "trainer 3 (beta)". */
void waits_name(const struct fabric *f, int rank, char *text, size_t room);

/* The trainers that the open agreement waits for, or "the others", where the fabric does
 * not know them or another thread has the machine. */
struct descant;
void waits_agreement(struct descant *job, char *text, size_t room);

/* The log lines about a wait that holds up a worker. Guarded by the machine. */
struct waits_told {
    uint64_t since_ns;      /* 0: no wait */
    uint64_t next_ns;       /* no line before: ten seconds after the last, of this wait or
                               others */
    bool said;
};

#define WAITS_FIRST_NS UINT64_C(1000000000)
#define WAITS_AGAIN_NS UINT64_C(10000000000)

/* Logs the trainers that a round waits for: after a second, then every ten; and once that
 * the round goes on. To be called after each sleep, with the time at which the sleep
 * began. Waits of starts, finishes and links are not logged. */
void waits_tell(struct waits_told *told, const struct fabric *f, uint64_t since_ns,
                uint64_t now_ns, const struct log *log);

/* When there may be a line to log. */
uint64_t waits_due(const struct waits_told *told, uint64_t now_ns);

/* Logs the trainers that a start waits for. */
void waits_say_start(struct fabric *f, double seconds, const struct log *log);

/* Fails with the reason why a start took too long. */
descant_status waits_timeout(struct fabric *f, double seconds, const struct log *log);

#endif
