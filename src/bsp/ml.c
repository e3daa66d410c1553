/* SPDX-License-Identifier: MIT */
/* An ML module's side of a segment, as descant_ml.h promises it.
 *
 * Adding a gradient writes the committed sum plus the gradient into the sum that the
 * keeper neither has nor can take, and publishes that by one compare-and-swap. If the
 * keeper took the committed sum meanwhile, the swap fails, and the gradient alone is
 * written and published: now the slot is empty, the keeper does not touch its word, and
 * the swap succeeds. So a gradient is read twice at most, no side waits, and:
 *   1. a gradient is in the sums from its swap on, and in none before it: a module that
 *      dies while it adds leaves an unpublished sum, which the next owner of the slot
 *      overwrites;
 *   2. a published sum is taken by exactly one atomic AND of the keeper;
 *   3. a refused gradient was written to an unpublished sum, so nothing has to be undone.
 *
 * Pinning a model is described in segment.c. Staleness is tested as a gradient comes: a
 * model that is stored in the instants between that look and the swap counts as stored
 * after it.
 *
 * The struct lies on pages of its own that the kernel wipes in forked children: a wiped
 * struct means a forked child. */
#include "bsp/ml.h"

#include "bsp/object.h"
#include "kernels/sums.h"
#include "machine/process.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define POLL_NS UINT64_C(10000000)      /* for a segment that is not there yet */
#define WAIT_MOST_S 1e9                 /* 30 years, that a clock of nanoseconds can
                                           hold */

struct descant_ml {
    struct segment_header *h;           /* NULL: this is a forked child */
    struct object object;               /* none if the memory is the keeper's */
    struct segment_slot *slot;
    unsigned slot_number;
    bool has_version;
    uint64_t version;                   /* of the model pinned last */
    float *staged;                      /* of h->n; NULL until the first stage */
    struct descant_ml_stats stats;
};

void (*ml_hook)(enum ml_step step);

static void at_step(enum ml_step step)
{
    if (ml_hook)
        ml_hook(step);
}

static descant_status check(const struct descant_ml *ml, const char *call)
{
    if (!ml)
        return log_fail(NULL, DESCANT_INVALID, "%s: not attached to a segment", call);
    if (!ml->h)
        return log_fail(NULL, DESCANT_FORKED,
                        "%s: the slot belongs to the parent process", call);
    return DESCANT_OK;
}

static bool is_ended(const struct segment_header *h)
{
    return atomic_load_explicit(&h->ended, memory_order_relaxed) != 0;
}

/* --- attaching --- */

/* A free slot, else one whose owner has died. */
static descant_status find_slot(struct descant_ml *ml, struct segment_header *h)
{
    uint64_t self = process_self(NULL);
    if (self == 0)
        return DESCANT_SYSTEM;
    for (int dead = 0; dead < 2; dead++)
        for (unsigned s = 0; s < h->slots; s++) {
            struct segment_slot *slot = segment_slot(h, s);
            uint64_t owner = atomic_load_explicit(&slot->owner, memory_order_acquire);
            if ((owner != 0 && (!dead || process_alive(owner))) ||
                !atomic_compare_exchange_strong_explicit(&slot->owner, &owner, self,
                                                         memory_order_acq_rel,
                                                         memory_order_relaxed))
                continue;
            atomic_store_explicit(&slot->pin, 0, memory_order_seq_cst);
            atomic_fetch_add_explicit(&slot->owners, 1, memory_order_relaxed);
            ml->slot = slot;
            ml->slot_number = s;
            return DESCANT_OK;
        }
    return log_fail(NULL, DESCANT_BAD_SIZE,
                    "the segment's %u slots are taken by modules that live", h->slots);
}

descant_status ml_attach_at(struct descant_ml **ml, struct segment_header *memory)
{
    size_t room = sizeof(struct descant_ml);
    struct descant_ml *made = memory_refuse() ? MAP_FAILED
                                              : mmap(NULL, room, PROT_READ | PROT_WRITE,
                                                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED)
        return log_fail(NULL, DESCANT_MEMORY, "no memory for an ML module");
    descant_status status = DESCANT_OK;
    if (madvise(made, room, MADV_WIPEONFORK) != 0)
        status = log_fail(NULL, DESCANT_SYSTEM, "madvise(MADV_WIPEONFORK): %s",
                          strerror(errno));
    if (status == DESCANT_OK)
        status = find_slot(made, memory);
    if (status != DESCANT_OK) {
        munmap(made, room);
        return status;
    }
    made->h = memory;
    *ml = made;
    return DESCANT_OK;
}

/* A segment that has ended counts as none, for its keeper is about to remove its name. */
static descant_status open_living(struct object *object, const char *name)
{
    descant_status status = object_open(object, name, NULL);
    if (status == DESCANT_OK && is_ended(object->header)) {
        object_close(object);
        return DESCANT_TIMEOUT;
    }
    return status;
}

static descant_status await(struct object *object, const char *name, double wait_s)
{
    if (!(wait_s >= 0))     /* nor NaN */
        return log_fail(NULL, DESCANT_INVALID, "a wait of %g s cannot be", wait_s);
    double most = wait_s < WAIT_MOST_S ? wait_s : WAIT_MOST_S;
    uint64_t now = clock_now_ns(), until = now + (uint64_t)(most * 1e9);
    descant_status status = open_living(object, name);
    while (status == DESCANT_TIMEOUT && (now = clock_now_ns()) < until) {
        clock_sleep_until(until - now < POLL_NS ? until : now + POLL_NS);
        status = open_living(object, name);
    }
    if (status == DESCANT_TIMEOUT)
        return log_fail(NULL, status, "there is no segment '%s' (waited %g s)", name,
                        most);
    return status;
}

descant_status descant_ml_attach(struct descant_ml **ml, const char *name, double wait_s)
{
    struct object object = {0};
    if (!name)
        name = getenv("DESCANT_SEGMENT");
    if (!name)
        return log_fail(NULL, DESCANT_BAD_ADDRESS,
                        "no segment is named, and DESCANT_SEGMENT is not set");
    descant_status status = object_check_name(name, NULL);
    if (status == DESCANT_OK)
        status = await(&object, name, wait_s);
    if (status == DESCANT_OK)
        status = ml_attach_at(ml, object.header);
    if (status == DESCANT_OK)
        (*ml)->object = object;
    else
        object_close(&object);
    return status;
}

descant_status descant_ml_detach(struct descant_ml *ml)
{
    if (!ml)
        return DESCANT_OK;
    descant_status status = check(ml, "descant_ml_detach");
    if (status != DESCANT_OK)
        return status;
    atomic_store_explicit(&ml->slot->pin, 0, memory_order_seq_cst);
    atomic_store_explicit(&ml->slot->owner, 0, memory_order_release);
    object_close(&ml->object);
    memory_give(ml->staged);
    munmap(ml, sizeof *ml);
    return DESCANT_OK;
}

/* --- the model --- */

size_t descant_ml_size(const struct descant_ml *ml)
{
    return check(ml, "descant_ml_size") == DESCANT_OK ? ml->h->n : 0;
}

size_t descant_ml_parts(const struct descant_ml *ml)
{
    return check(ml, "descant_ml_parts") == DESCANT_OK ? ml->h->n_parts : 0;
}

descant_status descant_ml_part(const struct descant_ml *ml, size_t i,
                               struct descant_ml_part *part)
{
    descant_status status = check(ml, "descant_ml_part");
    if (status != DESCANT_OK)
        return status;
    if (i >= ml->h->n_parts)
        return log_fail(NULL, DESCANT_INVALID, "descant_ml_part: %zu of %u", i,
                        ml->h->n_parts);
    const struct segment_part *p = segment_parts(ml->h) + i;
    *part = (struct descant_ml_part){p->name, p->first, p->n};
    return DESCANT_OK;
}

descant_status descant_ml_pin(struct descant_ml *ml, struct descant_ml_model *model)
{
    descant_status status = check(ml, "descant_ml_pin");
    if (status != DESCANT_OK)
        return status;
    if (is_ended(ml->h))
        return log_fail(NULL, DESCANT_ENDED, "the segment's job has ended");
    uint64_t pin = PIN_WANTED;
    atomic_store_explicit(&ml->slot->pin, pin, memory_order_seq_cst);
    uint64_t newest = atomic_load_explicit(&ml->h->newest, memory_order_seq_cst);
    at_step(ML_PINNING);
    if (!atomic_compare_exchange_strong_explicit(
            &ml->slot->pin, &pin, newest, memory_order_seq_cst, memory_order_seq_cst))
        newest = pin;       /* the keeper has set the pin */
    ml->version = newest_version(newest);
    ml->has_version = true;
    *model = (struct descant_ml_model){segment_copy(ml->h, newest_copy(newest)),
                                       ml->version};
    return DESCANT_OK;
}

descant_status descant_ml_unpin(struct descant_ml *ml)
{
    descant_status status = check(ml, "descant_ml_unpin");
    if (status == DESCANT_OK)
        atomic_store_explicit(&ml->slot->pin, 0, memory_order_seq_cst);
    return status;
}

/* --- gradients --- */

static void count(_Atomic uint64_t *figure, uint64_t *own, uint64_t n)
{
    atomic_fetch_add_explicit(figure, n, memory_order_relaxed);
    *own += n;
}

/* Logs the first value at fault. */
static descant_status not_finite(struct descant_ml *ml, const float *gradient)
{
    const struct segment_part *part = segment_parts(ml->h);
    uint64_t i = 0;
    count(&ml->slot->bad, &ml->stats.bad, 1);
    while (i < ml->h->n && isfinite(gradient[i]))
        i++;
    if (i == ml->h->n)
        return log_fail(NULL, DESCANT_NOT_FINITE,
                        "refused: with this gradient the sum is more than a float holds");
    while (i - part->first >= part->n)
        part++;
    return log_fail(NULL, DESCANT_NOT_FINITE,
                    "refused: the gradient of '%s' has %s at %llu", part->name,
                    isnan(gradient[i]) ? "NaN" : "Inf",
                    (unsigned long long)(i - part->first));
}

static descant_status check_gradient(struct descant_ml *ml, uint64_t examples,
                                     uint64_t *lag)
{
    if (is_ended(ml->h))
        return log_fail(NULL, DESCANT_ENDED, "the segment's job has ended");
    if (!ml->has_version)
        return log_fail(NULL, DESCANT_ORDER, "a gradient is on a model; pin one first");
    if (examples == 0)
        return log_fail(NULL, DESCANT_INVALID, "a gradient over no examples");
    uint64_t newest = atomic_load_explicit(&ml->h->newest, memory_order_relaxed);
    uint64_t bound = atomic_load_explicit(&ml->h->bound, memory_order_relaxed);
    /* wraps for a version of a run that was undone */
    *lag = newest_version(newest) - ml->version;
    if (*lag <= bound)
        return DESCANT_OK;
    count(&ml->slot->stale, &ml->stats.stale, 1);
    return log_fail(NULL, DESCANT_STALE,
                    "refused: the gradient is on version %llu, the model is at %llu, "
                    "allowed: %llu behind",
                    (unsigned long long)ml->version,
                    (unsigned long long)newest_version(newest),
                    (unsigned long long)bound);
}

static descant_status put(struct descant_ml *ml, const float *gradient, uint64_t examples)
{
    static const struct segment_tally none = {.oldest = UINT64_MAX};
    struct segment_header *h = ml->h;
    struct segment_tally *tallies = ml->slot->tallies;
    uint64_t lag = 0, flip = atomic_load_explicit(&ml->slot->flip, memory_order_acquire);
    descant_status status = check_gradient(ml, examples, &lag);
    if (status != DESCANT_OK)
        return status;
    do {
        unsigned to = flip_writing(flip), from = flip_committed(flip);
        bool full = flip & FLIP_FULL;
        if (!sums_add(segment_sum(h, ml->slot_number, to),
                      full ? segment_sum(h, ml->slot_number, from) : NULL, gradient,
                      (float)examples, h->n))
            return not_finite(ml, gradient);
        const struct segment_tally *was = full ? &tallies[from] : &none;
        tallies[to] = (struct segment_tally){
            .gradients = was->gradients + 1,
            .examples = was->examples + examples,
            .oldest = was->oldest < ml->version ? was->oldest : ml->version,
            .lag = was->lag + lag,
            .lag_most = was->lag_most > lag ? was->lag_most : lag};
        at_step(ML_PUBLISHING);
    } while (!atomic_compare_exchange_strong_explicit(
        &ml->slot->flip, &flip, flip_published(flip), memory_order_acq_rel,
        memory_order_acquire));
    count(&ml->slot->gradients, &ml->stats.gradients, 1);
    count(&ml->slot->examples, &ml->stats.examples, examples);
    return DESCANT_OK;
}

descant_status descant_ml_add(struct descant_ml *ml, const float *gradient,
                              uint64_t examples)
{
    descant_status status = check(ml, "descant_ml_add");
    return status == DESCANT_OK ? put(ml, gradient, examples) : status;
}

static void forget(struct descant_ml *ml)
{
    if (ml->staged)
        memset(ml->staged, 0, ml->h->n * sizeof *ml->staged);
}

descant_status descant_ml_stage(struct descant_ml *ml, size_t first, const float *piece,
                                size_t n)
{
    descant_status status = check(ml, "descant_ml_stage");
    if (status != DESCANT_OK)
        return status;
    if (first > ml->h->n || n > ml->h->n - first)
        return log_fail(NULL, DESCANT_INVALID,
                        "a piece of %zu floats from %zu: the model has %llu", n, first,
                        (unsigned long long)ml->h->n);
    if (!ml->staged)
        ml->staged = memory_take_array(ml->h->n, sizeof *ml->staged);
    if (!ml->staged)
        return log_fail(NULL, DESCANT_MEMORY, "no memory for a staged gradient");
    for (size_t i = 0; i < n; i++)
        ml->staged[first + i] += piece[i];
    return DESCANT_OK;
}

descant_status descant_ml_commit(struct descant_ml *ml, uint64_t examples)
{
    descant_status status = check(ml, "descant_ml_commit");
    if (status != DESCANT_OK)
        return status;
    if (!ml->staged)
        return log_fail(NULL, DESCANT_ORDER, "nothing was ever staged");
    status = put(ml, ml->staged, examples);
    forget(ml);
    return status;
}

descant_status descant_ml_drop(struct descant_ml *ml)
{
    descant_status status = check(ml, "descant_ml_drop");
    if (status == DESCANT_OK)
        forget(ml);
    return status;
}

descant_status descant_ml_stats(struct descant_ml *ml, struct descant_ml_stats *out)
{
    descant_status status = check(ml, "descant_ml_stats");
    if (status == DESCANT_OK)
        *out = ml->stats;
    return status;
}
