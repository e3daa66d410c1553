/* SPDX-License-Identifier: MIT */
/* The keeper's side of a segment.
 *
 * Storing a model. There are two copies more than slots: one is the newest, one is to be written,
 * and each slot pins at most one. A module pins in three steps: it says that it wants to, reads
 * which copy is the newest, and sets its pin to that from "wanted" by compare-and-swap. Between
 * the second and the third the copy may have become old. So before the keeper looks which copies
 * are pinned, it sets every pin that is wanted to the newest itself. A module's swap then fails,
 * and it has what the keeper gave it. Whoever says later that he wants to, reads the newest later,
 * too. Thus:
 *   1. a copy that is pinned, or is going to be, is not written;
 *   2. a pin takes three steps whatever the keeper does, and gives a model as new as the newest
 *      when it began;
 *   3. a store takes as many steps as there are slots, and finds a copy, however many modules
 *      have died with a pin. (Chen and Burns, 1997, for readers that keep what they read.)
 * The help comes before a store and not after it, so that a new keeper gives it for one that died.
 *
 * Taking a sum is one atomic and (layout.h). The sum is then the keeper's until it takes the next
 * one of that slot: giving it back costs nothing. What is left out: a sum that a keeper had taken
 * as it died is not taken again, for nobody knows what had become of it.
 *
 * A keeper that dies leaves a segment that modules go on with. The next keeper takes its place by
 * a compare-and-swap of `keeper`; tests/models has both protocols for spin. */
#include "bsp/segment.h"

#include "bsp/object.h"
#include "bsp/process.h"

#include <string.h>
#include <unistd.h>

enum { TRIES = 3 };

struct segment {
    struct object object;               /* none in the caller's memory */
    struct segment_header *h;           /* object's or the caller's; NULL while opening */
    char name[OBJECT_NAME + 1];
    const struct log *log;
    uint64_t self;                      /* this process */
    bool taken_over;
    unsigned next;                      /* the copy that segment_next gave */
};

/* --- opening --- */

/* Adds up *n, which is 0. */
static descant_status check_options(const struct segment_options *o, uint64_t *n)
{
    descant_status status = object_check_name(o->name, o->log);
    if (status != DESCANT_OK)
        return status;
    if (o->slots < 1 || o->slots > SEGMENT_SLOTS)
        return log_fail(o->log, DESCANT_INVALID, "segment '%s': %d slots; allowed: 1 to %d",
                        o->name, o->slots, SEGMENT_SLOTS);
    for (uint32_t i = 0; i < o->n_parts && *n <= SEGMENT_FLOATS; i++) {
        if (!memchr(o->parts[i].name, 0, SEGMENT_PART_NAME) || o->parts[i].n > SEGMENT_FLOATS)
            return log_fail(o->log, DESCANT_INVALID, "segment '%s': part %u is not valid", o->name,
                            i);
        *n += o->parts[i].n;
    }
    if (*n < 1 || *n > SEGMENT_FLOATS || o->n_parts > SEGMENT_PARTS)
        return log_fail(o->log, DESCANT_INVALID,
                        "segment '%s': a model of %llu floats in %u parts; allowed: 1 to 2^40 in "
                        "up to %d", o->name, (unsigned long long)*n, o->n_parts, SEGMENT_PARTS);
    return DESCANT_OK;
}

static bool same_shape(struct segment_header *h, const struct segment_options *o)
{
    const struct segment_part *parts = segment_parts(h);
    if (h->slots != (uint32_t)o->slots || h->n_parts != o->n_parts)
        return false;
    for (uint32_t i = 0; i < o->n_parts; i++)
        if (strcmp(parts[i].name, o->parts[i].name) != 0 || parts[i].n != o->parts[i].n)
            return false;
    return true;
}

static void fill(struct segment_header *h, const struct segment_options *o, uint64_t keeper)
{
    struct segment_part *parts = segment_parts(h);
    uint64_t first = 0;
    for (uint32_t i = 0; i < o->n_parts; i++) {
        parts[i] = o->parts[i];
        parts[i].first = first;
        first += parts[i].n;
    }
    for (unsigned s = 0; s < h->slots; s++)
        atomic_init(&segment_slot(h, s)->flip, FLIP_FIRST);
    memcpy(segment_copy(h, 0), o->model, h->n * sizeof *o->model);
    atomic_init(&h->newest, newest_make(o->version, 0));
    atomic_init(&h->bound, o->bound);
    atomic_init(&h->keeper, keeper);
}

/* DUPLICATE: somebody was quicker. */
static descant_status make_new(struct segment *segment, const struct segment_options *o, uint64_t n)
{
    const struct segment_header layout = object_layout(n, (uint32_t)o->slots, o->n_parts);
    int fd;
    descant_status status = object_make(&segment->object, o->name, &layout, &fd, o->log);
    if (status != DESCANT_OK)
        return status;
    fill(segment->object.header, o, segment->self);
    status = object_show(fd, o->name, o->log);
    close(fd);
    if (status != DESCANT_OK)
        object_close(&segment->object);
    return status;
}

/* Makes this process the keeper of a segment that is there. */
static descant_status become_keeper(struct segment *segment, struct segment_header *h)
{
    _Atomic uint64_t *keeper = &h->keeper;
    uint64_t now = atomic_load_explicit(keeper, memory_order_acquire);
    if (!process_alive(now) &&
        atomic_compare_exchange_strong_explicit(keeper, &now, segment->self, memory_order_acq_rel,
                                                memory_order_acquire))
        return DESCANT_OK;
    return log_fail(segment->log, DESCANT_DUPLICATE,
                    "segment '%s' is kept by process %d, which lives", segment->name,
                    process_pid(now));
}

/* One try. *again: what was there is gone, or another one came meanwhile. */
static descant_status try_open(struct segment *segment, const struct segment_options *o, uint64_t n,
                               bool *again)
{
    *again = false;
    descant_status status = object_open(&segment->object, o->name, o->log);
    if (status == DESCANT_TIMEOUT) {
        status = make_new(segment, o, n);
        *again = status == DESCANT_DUPLICATE;
        return status;
    }
    if (status == DESCANT_OK)
        status = become_keeper(segment, segment->object.header);
    if (status != DESCANT_OK)
        return status;
    struct segment_header *h = segment->object.header;
    if (same_shape(h, o) && !atomic_load_explicit(&h->ended, memory_order_relaxed)) {
        segment->taken_over = true;
        atomic_store_explicit(&h->bound, o->bound, memory_order_relaxed);
        return DESCANT_OK;
    }
    atomic_store_explicit(&h->ended, 1, memory_order_relaxed);
    object_hide(&segment->object, o->name);
    object_close(&segment->object);
    *again = true;
    return DESCANT_DUPLICATE;
}

static descant_status find_or_make(struct segment *segment, const struct segment_options *o,
                                   uint64_t n)
{
    descant_status status = DESCANT_OK;
    bool again = true;
    for (int i = 0; i < TRIES && again; i++)
        status = try_open(segment, o, n, &again);
    if (again)
        log_fail(o->log, status, "segment '%s': others take and leave the name", o->name);
    return status;
}

/* The same in memory that has no name. */
static descant_status fill_or_keep(struct segment *segment, const struct segment_options *o,
                                   uint64_t n)
{
    struct segment_header *h = o->memory;
    const struct segment_header layout = object_layout(n, (uint32_t)o->slots, o->n_parts);
    if (h->magic == 0) {
        memcpy(h, &layout, sizeof layout);
        h->pid_namespace = process_namespace();
        fill(h, o, segment->self);
        return DESCANT_OK;
    }
    if (h->bytes != layout.bytes || !same_shape(h, o))
        return log_fail(o->log, DESCANT_MISMATCH, "segment '%s' is of another shape", o->name);
    segment->taken_over = true;
    return become_keeper(segment, h);
}

uint64_t segment_bytes(const struct segment_options *o)
{
    uint64_t n = 0;
    return check_options(o, &n) == DESCANT_OK
               ? object_layout(n, (uint32_t)o->slots, o->n_parts).bytes
               : 0;
}

descant_status segment_open(struct segment **segment, const struct segment_options *o)
{
    uint64_t n = 0;
    descant_status status = check_options(o, &n);
    if (status != DESCANT_OK)
        return status;
    struct segment *made = memory_take(sizeof *made);
    if (!made)
        return log_fail(o->log, DESCANT_MEMORY, "no memory for a segment");
    made->log = o->log;
    snprintf(made->name, sizeof made->name, "%s", o->name);
    made->self = process_self(o->log);
    status = made->self == 0 ? DESCANT_SYSTEM
             : o->memory     ? fill_or_keep(made, o, n)
                             : find_or_make(made, o, n);
    if (status != DESCANT_OK) {
        object_close(&made->object);
        memory_give(made);
        return status;
    }
    made->h = o->memory ? o->memory : made->object.header;
    *segment = made;
    return DESCANT_OK;
}

bool segment_taken_over(const struct segment *segment)
{
    return segment->taken_over;
}

void segment_end(struct segment *segment)
{
    atomic_store_explicit(&segment->h->ended, 1, memory_order_relaxed);
}

void segment_close(struct segment *segment)
{
    if (!segment)
        return;
    segment_end(segment);
    if (segment->object.header)
        object_hide(&segment->object, segment->name);
    object_close(&segment->object);
    memory_give(segment);
}

uint64_t segment_n(const struct segment *segment)
{
    return segment->h->n;
}

int segment_slots(const struct segment *segment)
{
    return (int)segment->h->slots;
}

struct segment_header *segment_memory(struct segment *segment)
{
    return segment->h;
}

/* --- models --- */

const float *segment_model(const struct segment *segment, uint64_t *version)
{
    uint64_t newest = atomic_load_explicit(&segment->h->newest, memory_order_relaxed);
    *version = newest_version(newest);
    return segment_copy(segment->h, newest_copy(newest));
}

/* The copy that a slot has pinned, or is going to; any number that is none: nothing. */
static unsigned pinned(struct segment_slot *slot, uint64_t newest)
{
    uint64_t pin = PIN_WANTED;
    if (atomic_compare_exchange_strong_explicit(&slot->pin, &pin, newest, memory_order_seq_cst,
                                                memory_order_seq_cst))
        return newest_copy(newest);
    return pin ? newest_copy(pin) : SEGMENT_SLOTS + 2;
}

float *segment_next(struct segment *segment)
{
    struct segment_header *h = segment->h;
    uint64_t newest = atomic_load_explicit(&h->newest, memory_order_relaxed);
    bool taken[SEGMENT_SLOTS + 2] = {false};
    taken[newest_copy(newest)] = true;
    for (unsigned s = 0; s < h->slots; s++) {
        unsigned copy = pinned(segment_slot(h, s), newest);
        if (copy < h->copies)
            taken[copy] = true;
    }
    unsigned copy = 0;
    while (taken[copy])
        copy++;
    segment->next = copy;
    return segment_copy(h, copy);
}

void segment_store(struct segment *segment, uint64_t version)
{
    atomic_store_explicit(&segment->h->newest, newest_make(version, segment->next),
                          memory_order_seq_cst);
}

/* --- gradients --- */

bool segment_take(struct segment *segment, int slot, struct segment_taken *taken)
{
    struct segment_slot *s = segment_slot(segment->h, (unsigned)slot);
    uint64_t flip = atomic_fetch_and_explicit(&s->flip, ~FLIP_FULL, memory_order_acq_rel);
    if (!(flip & FLIP_FULL))
        return false;
    const unsigned sum = flip_committed(flip);
    const struct segment_tally *tally = &s->tallies[sum];
    *taken = (struct segment_taken){.values = segment_sum(segment->h, (unsigned)slot, sum),
                                    .gradients = tally->gradients, .examples = tally->examples,
                                    .oldest = tally->oldest, .lag = tally->lag,
                                    .lag_most = tally->lag_most};
    return true;
}

void segment_figures(const struct segment *segment, int slot, struct segment_figures *figures)
{
    const struct segment_slot *s = segment_slot(segment->h, (unsigned)slot);
    *figures = (struct segment_figures){
        .gradients = atomic_load_explicit(&s->gradients, memory_order_relaxed),
        .examples = atomic_load_explicit(&s->examples, memory_order_relaxed),
        .stale = atomic_load_explicit(&s->stale, memory_order_relaxed),
        .bad = atomic_load_explicit(&s->bad, memory_order_relaxed),
        .owners = atomic_load_explicit(&s->owners, memory_order_relaxed),
        .pid = process_pid(atomic_load_explicit(&s->owner, memory_order_acquire)),
    };
}

/* The slot is this process's while it is cleared, so that no module can have it. */
static bool sweep(struct segment_slot *slot, uint64_t self)
{
    uint64_t owner = atomic_load_explicit(&slot->owner, memory_order_acquire);
    if (owner == 0 || owner == self || process_alive(owner) ||
        !atomic_compare_exchange_strong_explicit(&slot->owner, &owner, self, memory_order_acq_rel,
                                                 memory_order_relaxed))
        return false;
    atomic_store_explicit(&slot->pin, 0, memory_order_seq_cst);
    atomic_store_explicit(&slot->owner, 0, memory_order_release);
    return true;
}

int segment_sweep(struct segment *segment)
{
    int swept = 0;
    for (unsigned s = 0; s < segment->h->slots; s++)
        swept += sweep(segment_slot(segment->h, s), segment->self);
    return swept;
}
