/* SPDX-License-Identifier: MIT */
/* When a rank that has ended is started again.
 *
 * 1. A rank waits 1 s before its first restart, and twice as long before each next one,
 *    up to 30 s. Once it has run for a minute all counts begin anew: a job of weeks on
 *    machines that are taken away every few hours does not run out of restarts.
 * 2. With --restarts N it is started again N times in a row, whatever it ended by.
 * 3. Without it, the kind of its end decides. A signal and a lost host are not the
 *    program's doing: no limit. A status other than 0 is the program's own, and will most
 *    likely come again: three times in a row.
 * 4. If the host cannot run the command at the first start, the rank is given up at once.
 * 5. So it is if the command refuses its options at the first start, and then the run
 *    ends: all ranks have the same command, and those that have started may wait for this
 *    one. Status 2 within a minute says so, as of descant, shells, Python's argparse.
 *    After a start that went well the options are good, and 2 is a status as any other.
 *
 * A shell gives a signal as a status above 128, and so does ssh, which has 255 for its
 * own failures. A program that ends with such a status by itself counts as killed, or as
 * lost. */
#include "hosts/hosts.h"

#define S UINT64_C(1000000000)

enum { FAILURES = 3, MOST_WAIT_S = 30, LONG_S = 60, MOST_DOUBLINGS = 5 };
enum {
    CANNOT_RUN = 126,
    NOT_FOUND = 127,
    BAD_USE = 2,
    BY_SIGNAL = 128,
    SIGNALS = 64,
    SSH_FAILS = 255
};

enum rank_end rank_end(int status, bool over_ssh)
{
    if (status == 0)
        return RANK_DONE;
    if (status == CANNOT_RUN || status == NOT_FOUND)
        return RANK_NO_COMMAND;
    if (status == BAD_USE)
        return RANK_REFUSES;
    if (status == SSH_FAILS && over_ssh)
        return RANK_LOST;
    return status > BY_SIGNAL && status <= BY_SIGNAL + SIGNALS ? RANK_KILLED
                                                               : RANK_FAILED;
}

bool restarts_never(const struct restarts *r, enum rank_end end, uint64_t ran_ns)
{
    return end == RANK_REFUSES && !r->ran && ran_ns < LONG_S * S;
}

bool restarts_again(struct restarts *r, enum rank_end end, uint64_t ran_ns,
                    uint64_t *wait_ns)
{
    bool no_command = end == RANK_NO_COMMAND && !r->ran;
    bool refuses = restarts_never(r, end, ran_ns);

    r->ran |= end != RANK_NO_COMMAND;
    if (ran_ns >= LONG_S * S)
        r->in_row = r->failed = 0;
    if (end == RANK_DONE || no_command || refuses)
        return false;
    bool fails =
        end == RANK_FAILED || end == RANK_NO_COMMAND || end == RANK_REFUSES;
    if (r->most == RESTARTS_AUTO ? fails && r->failed == FAILURES : r->in_row >= r->most)
        return false;
    int doublings = r->in_row < MOST_DOUBLINGS ? r->in_row : MOST_DOUBLINGS;
    uint64_t wait_s = UINT64_C(1) << doublings;
    *wait_ns = (wait_s < MOST_WAIT_S ? wait_s : MOST_WAIT_S) * S;
    r->failed += fails;
    r->in_row += r->in_row < HOSTS_RANKS;       /* no limit */
    return true;
}
