/* SPDX-License-Identifier: MIT */
/* A signal is for all trainers. The first thread that sees it acts on it: the monitor, a
 * worker between two batches, the reader, an evaluation. */
#include "run/signals.h"
#include "train/trainer.h"

bool trainer_heed(void *of)
{
    struct trainer *t = of;
    int signal = signals_heard();

    if (signal && board_signalled(t->board, signal)) {
        progress_end_line(&t->progress);
        if (t->host > 0)
            log_say(&t->log, DESCANT_WARNING,
                    "%s: this host stops training its part of the data; hosts without a "
                    "signal go on",
                    signal_name(signal));
        else
            signals_say_end(t->err, signal_name(signal),
                            !t->options->checkpoint ? RUN_KEEPS_NOTHING
                            : t->options->watched   ? RUN_KEEPS_NOW
                                                    : RUN_KEEPS_LAST, true);
    }
    enum board_stop stop = board_stopped(t->board);
    return signal || stop == STOP_SIGNAL || stop == STOP_NAN || stop == STOP_FAILED;
}
