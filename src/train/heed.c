/* SPDX-License-Identifier: MIT */
/* A signal is for all trainers of this machine. The first thread that sees it acts on it:
 * the monitor, a worker between two batches, the reader, an evaluation. */
#include "run/signals.h"
#include "train/trainer.h"

#include <signal.h>
#include <unistd.h>

/* Of SIGTERM in a job of several machines: which host was told, and what follows. */
static void say_told(struct trainer *t, char *why, size_t room)
{
    char host[64] = "";

    gethostname(host, sizeof host - 1);
    snprintf(why, room, "rank %d (%s): SIGTERM", t->rank, host);
    if (t->term == TERM_LEAVES)
        fprintf(t->err, "descant: %s: this trainer leaves, and the others go on; "
                SIGNALS_AGAIN "it at once\n", why);
}

static void say(struct trainer *t, int signal)
{
    char why[96];
    bool term = signal == SIGTERM && t->term != TERM_ENDS_RUN;

    progress_end_line(&t->progress);
    snprintf(why, sizeof why, "%s", signal_name(signal));
    if (term)
        say_told(t, why, sizeof why);
    if (term && t->term == TERM_LEAVES)
        return;
    if (t->host > 0 && !term)
        log_say(&t->log, DESCANT_WARNING,
                "%s: this host stops training; hosts without a signal train the rest of "
                "the data",
                why);
    else
        signals_say_end(t->err, why,
                        !t->options->checkpoint ? RUN_KEEPS_NOTHING
                        : t->options->watched   ? RUN_KEEPS_NOW
                                                : RUN_KEEPS_LAST, true);
}

bool trainer_heed(void *of)
{
    struct trainer *t = of;
    int signal = signals_heard();

    if (signal == SIGTERM)
        others_tell(t);
    if (signal && board_signalled(t->board, signal))
        say(t, signal);
    enum board_stop stop = board_stopped(t->board);
    return signal || stop == STOP_SIGNAL || stop == STOP_NAN || stop == STOP_FAILED;
}
