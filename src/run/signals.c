/* SPDX-License-Identifier: MIT */
/* Two ways to take a signal, and one rule for its meaning, first_signal_note. A handler
 * calls that, too: it does one compare-and-swap, and nothing that a handler may not
 * do. */
#include "run/signals.h"

#include <time.h>
#include <unistd.h>

#define SECOND_NS UINT64_C(1000000000)
/* bounds what sigtimedwait gets, however far the caller's time is */
#define MOST_SLEEP_NS (3600 * SECOND_NS)
/* the low byte of the time in nanoseconds gives its place to the signal */
#define SIGNAL_BITS UINT64_C(0xff)

static struct first_signal heard;   /* by the handler */

/* A time before the first signal's, as of a handler that was held up, is not later. */
enum signal_means first_signal_note(struct first_signal *first, int signal,
                                    uint64_t now_ns)
{
    uint64_t was = 0, word = (now_ns & ~SIGNAL_BITS) | (uint64_t)signal;
    if (atomic_compare_exchange_strong(&first->word, &was, word))
        return SIGNAL_ENDS;
    bool later = word > was && (word | SIGNAL_BITS) - (was | SIGNAL_BITS) > SECOND_NS;
    return later ? SIGNAL_HURRIES : SIGNAL_NOTHING;
}

int first_signal(const struct first_signal *first)
{
    return (int)(atomic_load(&first->word) & SIGNAL_BITS);
}

const char *signal_name(int signal)
{
    return signal == SIGINT ? "SIGINT" : "SIGTERM";
}

/* --- taken where a process sleeps --- */

/* Threads that are started afterwards have these signals blocked, too, so that only
 * signals_rest takes them. */
void signals_block(struct signals *s)
{
    static const int held[] = {SIGINT, SIGTERM, SIGCHLD, SIGPIPE};
    *s = (struct signals){.came = 0};
    sigemptyset(&s->held);
    for (size_t k = 0; k < sizeof held / sizeof *held; k++)
        sigaddset(&s->held, held[k]);
    signal(SIGCHLD, SIG_DFL);       /* ignored, as inherited, it tells of no child's
                                       end */
    sigprocmask(SIG_BLOCK, &s->held, &s->old);
}

void signals_give_back(struct signals *s)
{
    const struct timespec none = {0};
    while (sigtimedwait(&s->held, NULL, &none) > 0)
        continue;
    sigprocmask(SIG_SETMASK, &s->old, NULL);
}

enum signal_means signals_rest(struct signals *s, uint64_t when_ns)
{
    uint64_t now = clock_now_ns(), ns = when_ns > now ? when_ns - now : 0;
    ns = ns < MOST_SLEEP_NS ? ns : MOST_SLEEP_NS;
    const struct timespec most = {(time_t)(ns / SECOND_NS), (long)(ns % SECOND_NS)};
    int signal = sigtimedwait(&s->held, NULL, &most);
    if (signal != SIGINT && signal != SIGTERM)
        return SIGNAL_NOTHING;
    s->came = signal;
    enum signal_means means = first_signal_note(&s->first, signal, clock_now_ns());
    s->hurried |= means == SIGNAL_HURRIES;
    return means;
}

/* --- noted by a handler --- */

static void note(int signal)
{
    if (first_signal_note(&heard, signal, clock_now_ns()) == SIGNAL_HURRIES)
        _exit(128 + signal);
}

/* SA_RESTART: a read or a write that a signal interrupts goes on; its caller sees
 * signals_heard at its next look. */
void signals_heed(void)
{
    struct sigaction action = {.sa_handler = note, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

int signals_heard(void)
{
    return first_signal(&heard);
}

void signals_forget(void)
{
    atomic_store(&heard.word, 0);
}

/* --- texts for people --- */

void signals_say_end(FILE *err, const char *why, enum run_keeps keeps, bool by_signal)
{
    static const char *const with[] = {
        [RUN_KEEPS_NOTHING] = "",
        [RUN_KEEPS_LAST] = " with a last checkpoint",
        [RUN_KEEPS_NOW] = (" with a last checkpoint, which is written now if the "
                           "launcher leaves the time"),
    };
    fprintf(err, "descant: %s: the run ends%s%s\n", why, with[keeps],
            by_signal ? "; " SIGNALS_AGAIN "it at once" : "");
    fflush(err);
}
