/* SPDX-License-Identifier: MIT */
/* Evaluations and failed checkpoints go from the keeper to the monitor, which writes the
 * log. At the end there is no monitor, and they go into the log at once. */
#include "train/monitor.h"

#include <string.h>

/* Notes a checkpoint that has failed: the run goes on. */
void news_failed_checkpoint(struct trainer *t)
{
    if (!t->monitor_started) {      /* at the end there is no monitor */
        train_log_checkpoint(t, descant_last_error());
        return;
    }
    progress_end_line(&t->progress);
    fputs("descant: this checkpoint failed; training goes on\n", t->err);
    pthread_mutex_lock(&t->monitor_mutex);
    snprintf(t->checkpoint_why, sizeof t->checkpoint_why, "%s", descant_last_error());
    pthread_mutex_unlock(&t->monitor_mutex);
}

/* Hands figures to the monitor, which takes them within a tick, unless a disk holds it up
 * for very long. */
void news_eval(struct trainer *t, const struct held_out *h)
{
    pthread_mutex_lock(&t->monitor_mutex);
    if (t->n_points < TRAIN_POINTS)
        t->points[t->n_points++] = *h;
    pthread_mutex_unlock(&t->monitor_mutex);
}

void news_take(struct trainer *t)
{
    struct held_out points[TRAIN_POINTS];
    char why[sizeof t->checkpoint_why];

    pthread_mutex_lock(&t->monitor_mutex);
    int n = t->n_points;
    memcpy(points, t->points, (size_t)n * sizeof *points);
    memcpy(why, t->checkpoint_why, sizeof why);
    t->n_points = 0;
    *t->checkpoint_why = 0;
    pthread_mutex_unlock(&t->monitor_mutex);
    if (*why)
        train_log_checkpoint(t, why);
    for (int k = 0; k < n; k++) {
        train_log_eval(t, &points[k]);
        held_out_show(&t->progress, &points[k]);
    }
}
