/* SPDX-License-Identifier: MIT */
/* A local module. Its segment may be one that was there before: its counts begin where that one's
 * are, and a sum with a gradient on a model older than this run's first is left out as a whole.
 * Such sums are those that nobody had taken when the last keeper died, and what a module puts in
 * between looking at the version and publishing while the segment changes hands. */
#include "bsp/local.h"

#include "bsp/gradient.h"
#include "bsp/object.h"

#include <string.h>

struct local {
    struct segment *segment;
    char name[OBJECT_NAME + 1];
    uint64_t since;                         /* the run's first version */
    struct local_figures before;            /* as it was opened */
    uint64_t bad[SEGMENT_SLOTS];            /* that local_bad has told */
};

static struct local_figures all_figures(const struct local *local)
{
    struct local_figures all = {0};
    for (int s = 0; s < segment_slots(local->segment); s++) {
        struct segment_figures f;
        segment_figures(local->segment, s, &f);
        all.gradients += f.gradients;
        all.examples += f.examples;
        all.stale += f.stale;
        all.bad += f.bad;
        all.owners += f.owners;
        all.attached += f.pid != 0;
    }
    return all;
}

descant_status local_open(struct local **local, const struct segment_options *options)
{
    struct local *made = memory_take(sizeof *made);
    if (!made)
        return log_fail(options->log, DESCANT_MEMORY, "no memory for a local module");
    descant_status status = segment_open(&made->segment, options);
    if (status != DESCANT_OK) {
        memory_give(made);
        return status;
    }
    snprintf(made->name, sizeof made->name, "%s", options->name);
    made->since = options->version;
    made->before = all_figures(made);
    for (int s = 0; s < segment_slots(made->segment); s++) {
        struct segment_figures f;
        segment_figures(made->segment, s, &f);
        made->bad[s] = f.bad;
    }
    segment_sweep(made->segment);
    *local = made;
    return DESCANT_OK;
}

void local_close(struct local *local)
{
    if (!local)
        return;
    segment_close(local->segment);
    memory_give(local);
}

void local_end(struct local *local)
{
    segment_end(local->segment);
}

const char *local_name(const struct local *local)
{
    return local->name;
}

bool local_taken_over(const struct local *local)
{
    return segment_taken_over(local->segment);
}

uint64_t local_version(const struct local *local)
{
    uint64_t version;
    segment_model(local->segment, &version);
    return version;
}

void local_read_out(struct local *local, float *sum, struct local_sums *sums)
{
    struct segment_taken taken;
    for (int s = 0; s < segment_slots(local->segment); s++) {
        if (!segment_take(local->segment, s, &taken))
            continue;
        if (taken.oldest < local->since) {
            sums->undone += taken.gradients;
            continue;
        }
        gradient_add(sum, taken.values, segment_n(local->segment));
        sums->gradients += taken.gradients;
        sums->examples += taken.examples;
        sums->lag += taken.lag;
        if (taken.lag_most > sums->lag_most)
            sums->lag_most = taken.lag_most;
    }
}

void local_store(struct local *local, const float *model, uint64_t version, uint64_t since)
{
    memcpy(segment_next(local->segment), model, segment_n(local->segment) * sizeof *model);
    segment_store(local->segment, version);
    local->since = since;
}

void local_figures(const struct local *local, struct local_figures *figures)
{
    struct local_figures all = all_figures(local);
    *figures = (struct local_figures){
        .gradients = all.gradients - local->before.gradients,
        .examples = all.examples - local->before.examples,
        .stale = all.stale - local->before.stale,
        .bad = all.bad - local->before.bad,
        .owners = all.owners - local->before.owners,
        .attached = all.attached,
    };
}

uint64_t local_bad(struct local *local, int *pid)
{
    for (int s = 0; s < segment_slots(local->segment); s++) {
        struct segment_figures f;
        segment_figures(local->segment, s, &f);
        uint64_t bad = f.bad - local->bad[s];
        local->bad[s] = f.bad;
        *pid = f.pid;
        if (bad)
            return bad;
    }
    return 0;
}

int local_sweep(struct local *local)
{
    return segment_sweep(local->segment);
}
