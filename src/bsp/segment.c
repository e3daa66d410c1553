/* SPDX-License-Identifier: MIT */
/* The keeper's side of a segment.
 *
 * Storing a model. There are two copies more than slots: one is the newest, one is to be
 * written, and each slot pins at most one. A module pins in three steps: it sets its pin
 * to "wanted", reads which copy is the newest, and sets its pin from "wanted" to that
 * copy by compare-and-swap. Between the second and the third step the copy may have
 * become old. So before the keeper looks which copies are pinned, it sets every pin that
 * is wanted to the newest itself. The module's swap then fails, and it has the copy that
 * the keeper set. A module that sets "wanted" later reads the newest later, too. Thus:
 *   1. a copy that is pinned, or is going to be, is not written;
 *   2. a pin takes three steps whatever the keeper does, and gives a model as new as the
 *      newest when it began;
 *   3. a store takes as many steps as there are slots, and finds a copy, however many
 *      modules have died with a pin. (Chen and Burns, 1997, for readers that keep a copy
 *      for long.)
 * The keeper sets wanted pins before a store and not after it, so that a new keeper does
 * it for one that died.
 *
 * Taking a sum is one atomic AND (layout.h). The sum is then the keeper's until it takes
 * the slot's next one, so giving it back costs nothing. Left out on purpose: a sum that a
 * keeper had taken as it died is not taken again, for it may be in a step already.
 *
 * Modules can write every byte here. So the keeper uses a layout of its own, keeps its
 * own record of the models and sums that it has, and tests every word of a module before
 * using it: the places that it reads and writes are always inside the segment, and every
 * value could have been written in good order. A word that could not makes the keeper
 * detach the segment. The keeper's callers test the floats, which may change at any time.
 *
 * A keeper that dies leaves a segment that modules go on with. The next keeper takes its
 * place by a compare-and-swap of `keeper`; tests/models has both protocols for spin. */
#include "bsp/segment.h"

#include "bsp/guard.h"
#include "bsp/object.h"
#include "machine/process.h"

#include <string.h>
#include <unistd.h>

enum { TRIES = 3 };
#define VERSION_MOST ((uint64_t)1 << 47)        /* below; a new run's is above the last
                                                   one's */
#define COUNT_MOST ((uint64_t)1 << 40)          /* gradients, or examples, between two
                                                   looks */

struct segment {
    struct object object;               /* none in the caller's memory */
    struct segment_header *h;           /* object's or the caller's; NULL while opening */
    struct segment_header layout;       /* the header's constant part */
    char name[OBJECT_NAME + 1];
    const struct log *log;
    uint64_t self;                      /* this process */
    bool taken_over, ended, detached;
    unsigned next;                      /* the copy that segment_next gave */
    uint64_t newest, bound;             /* values that the header must have */
    unsigned kept[SEGMENT_SLOTS];       /* the sum of each slot that is the keeper's */
    struct segment_figures seen[SEGMENT_SLOTS];
};

static struct segment_slot *slot_of(const struct segment *segment, unsigned slot)
{
    return (struct segment_slot *)segment_place(segment->h, segment->layout.slots_at) +
           slot;
}

static float *copy_of(const struct segment *segment, unsigned copy)
{
    return segment_place(segment->h, segment->layout.copies_at +
                                         copy * segment->layout.copy_bytes);
}

/* --- words that a module may have written --- */

static void detach(struct segment *segment, const char *why)
{
    segment->detached = true;
    segment_end(segment);
    if (segment->object.header)
        object_hide(&segment->object, segment->name);
    log_say(segment->log, DESCANT_WARNING,
            "segment '%s' is detached: a module has %s; its gradients since the last "
            "read-out are left out",
            segment->name, why);
}

static bool newest_sound(uint64_t newest, const struct segment_header *layout)
{
    return newest_copy(newest) < layout->copies && newest_version(newest) < VERSION_MOST;
}

/* Whether a pin is empty, or of a model that was stored. */
static bool pin_sound(uint64_t pin, const struct segment *segment)
{
    return pin == 0 || pin == PIN_WANTED ||
           (newest_sound(pin, &segment->layout) &&
            newest_version(pin) <= newest_version(segment->newest));
}

static bool flip_sound(uint64_t flip)
{
    return flip < 2 * FLIP_FULL && flip_committed(flip) < SEGMENT_SUMS &&
           flip_drained(flip) < SEGMENT_SUMS &&
           flip_committed(flip) != flip_drained(flip);
}

/* The keeper's sum, by the word. */
static unsigned flip_kept(uint64_t flip)
{
    return flip & FLIP_FULL ? flip_drained(flip) : flip_committed(flip);
}

static bool tally_sound(const struct segment_tally *tally, uint64_t version)
{
    return tally->gradients > 0 && tally->gradients < COUNT_MOST &&
           tally->examples >= tally->gradients && tally->examples < COUNT_MOST &&
           tally->oldest <= version && tally->lag_most <= version &&
           tally->lag / tally->gradients <= tally->lag_most;
}

static bool grown(uint64_t from, uint64_t to)
{
    return to - from < COUNT_MOST;
}

static bool figures_sound(const struct segment_figures *was,
                          const struct segment_figures *is)
{
    return grown(was->gradients, is->gradients) && grown(was->examples, is->examples) &&
           grown(was->stale, is->stale) && grown(was->bad, is->bad) &&
           grown(was->owners, is->owners);
}

/* To be called before every use of a segment; true: it is detached, and not to be
 * used. */
static bool detached(struct segment *segment)
{
    const struct segment_header *h = segment->h;
    if (segment->detached)
        return true;
    if (guard_tripped(segment->object.header))
        detach(segment, "cut it short");
    else if (memcmp(h, &segment->layout, SEGMENT_CONSTANT) != 0)
        detach(segment, "changed its header");
    else if (atomic_load_explicit(&h->newest, memory_order_relaxed) != segment->newest ||
             atomic_load_explicit(&h->bound, memory_order_relaxed) != segment->bound ||
             atomic_load_explicit(&h->keeper, memory_order_relaxed) != segment->self ||
             (atomic_load_explicit(&h->ended, memory_order_relaxed) != 0) !=
                 segment->ended)
        detach(segment, "changed a word of the keeper's");
    return segment->detached;
}

/* --- opening --- */

/* Adds the parts' floats up in *n, which is 0. */
static descant_status check_options(const struct segment_options *o, uint64_t *n)
{
    descant_status status = object_check_name(o->name, o->log);
    if (status != DESCANT_OK)
        return status;
    if (o->slots < 1 || o->slots > SEGMENT_SLOTS)
        return log_fail(o->log, DESCANT_INVALID,
                        "segment '%s': %d slots; allowed: 1 to %d", o->name, o->slots,
                        SEGMENT_SLOTS);
    for (uint32_t i = 0; i < o->n_parts && *n <= SEGMENT_FLOATS; i++) {
        if (!memchr(o->parts[i].name, 0, SEGMENT_PART_NAME) ||
            o->parts[i].n > SEGMENT_FLOATS)
            return log_fail(o->log, DESCANT_INVALID, "segment '%s': part %u is not valid",
                            o->name, i);
        *n += o->parts[i].n;
    }
    if (*n < 1 || *n > SEGMENT_FLOATS || o->n_parts > SEGMENT_PARTS)
        return log_fail(o->log, DESCANT_INVALID,
                        "segment '%s': a model of %llu floats in %u parts; allowed: 1 to "
                        "2^40 in up to %d",
                        o->name, (unsigned long long)*n, o->n_parts, SEGMENT_PARTS);
    return DESCANT_OK;
}

static bool same_shape(struct segment_header *h, const struct segment_header *layout,
                       const struct segment_options *o)
{
    const struct segment_part *parts = segment_place(h, layout->parts_at);
    if (layout->slots != (uint32_t)o->slots || layout->n_parts != o->n_parts)
        return false;
    for (uint32_t i = 0; i < o->n_parts; i++)
        if (strcmp(parts[i].name, o->parts[i].name) != 0 || parts[i].n != o->parts[i].n)
            return false;
    return true;
}

static void fill(struct segment_header *h, const struct segment_options *o,
                 uint64_t keeper)
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

/* Tests a segment of an earlier keeper: its words must be such as modules write. */
static bool sound(struct segment *segment, struct segment_header *h,
                  const struct segment_options *o)
{
    const struct segment_header *layout = &segment->layout;
    const struct segment_slot *slots = segment_place(h, layout->slots_at);
    segment->newest = atomic_load_explicit(&h->newest, memory_order_relaxed);
    bool good = newest_sound(segment->newest, layout) &&
                newest_version(segment->newest) <= o->version + VERSION_LEAP;
    for (unsigned s = 0; s < layout->slots && good; s++)
        good =
            flip_sound(atomic_load_explicit(&slots[s].flip, memory_order_acquire)) &&
            pin_sound(atomic_load_explicit(&slots[s].pin, memory_order_relaxed), segment);
    return good;
}

/* DUPLICATE: another process was quicker. */
static descant_status make_new(struct segment *segment, const struct segment_options *o,
                               uint64_t n)
{
    const struct segment_header layout = object_layout(n, (uint32_t)o->slots, o->n_parts);
    int fd;
    descant_status status = object_make(&segment->object, o->name, &layout, &fd, o->log);
    if (status != DESCANT_OK)
        return status;
    fill(segment->object.header, o, segment->self);
    segment->layout = segment->object.layout;
    status = object_guard(&segment->object, o->name, o->log);
    if (status == DESCANT_OK)
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
        atomic_compare_exchange_strong_explicit(
            keeper, &now, segment->self, memory_order_acq_rel, memory_order_acquire))
        return DESCANT_OK;
    return log_fail(segment->log, DESCANT_DUPLICATE,
                    "segment '%s' is kept by process %d, which lives", segment->name,
                    process_pid(now));
}

/* Tries once. *again: the old segment is gone, or another one came meanwhile. */
static descant_status try_open(struct segment *segment, const struct segment_options *o,
                               uint64_t n, bool *again)
{
    *again = false;
    descant_status status = object_open(&segment->object, o->name, o->log);
    if (status == DESCANT_TIMEOUT) {
        status = make_new(segment, o, n);
        *again = status == DESCANT_DUPLICATE;
        return status;
    }
    if (status == DESCANT_OK)
        status = object_guard(&segment->object, o->name, o->log);
    if (status == DESCANT_OK)
        status = become_keeper(segment, segment->object.header);
    if (status != DESCANT_OK)
        return status;
    struct segment_header *h = segment->object.header;
    segment->layout = segment->object.layout;
    if (same_shape(h, &segment->layout, o) && sound(segment, h, o) &&
        !atomic_load_explicit(&h->ended, memory_order_relaxed)) {
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

static descant_status find_or_make(struct segment *segment,
                                   const struct segment_options *o, uint64_t n)
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
static descant_status fill_or_keep(struct segment *segment,
                                   const struct segment_options *o, uint64_t n)
{
    struct segment_header *h = o->memory;
    segment->layout = object_layout(n, (uint32_t)o->slots, o->n_parts);
    segment->layout.pid_namespace = process_namespace();
    if (h->magic == 0) {
        memcpy(h, &segment->layout, sizeof segment->layout);
        fill(h, o, segment->self);
        return DESCANT_OK;
    }
    if (memcmp(h, &segment->layout, SEGMENT_CONSTANT) != 0 ||
        !same_shape(h, &segment->layout, o))
        return log_fail(o->log, DESCANT_MISMATCH, "segment '%s' is of another shape",
                        o->name);
    descant_status status = become_keeper(segment, h);
    if (status != DESCANT_OK)
        return status;
    if (!sound(segment, h, o))
        return log_fail(o->log, DESCANT_CORRUPT,
                        "segment '%s': a module has written invalid values to it",
                        o->name);
    atomic_store_explicit(&h->bound, o->bound, memory_order_relaxed);
    segment->taken_over = true;
    return DESCANT_OK;
}

static void look_at(const struct segment *segment, unsigned slot,
                    struct segment_figures *figures)
{
    const struct segment_slot *s = slot_of(segment, slot);
    *figures = (struct segment_figures){
        .gradients = atomic_load_explicit(&s->gradients, memory_order_relaxed),
        .examples = atomic_load_explicit(&s->examples, memory_order_relaxed),
        .stale = atomic_load_explicit(&s->stale, memory_order_relaxed),
        .bad = atomic_load_explicit(&s->bad, memory_order_relaxed),
        .owners = atomic_load_explicit(&s->owners, memory_order_relaxed),
        .pid = process_pid(atomic_load_explicit(&s->owner, memory_order_acquire)),
    };
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
    /* from here on these values must be found */
    if (!made->taken_over)
        made->newest = newest_make(o->version, 0);
    made->bound = o->bound;
    for (unsigned s = 0; s < made->layout.slots; s++) {
        uint64_t flip =
            atomic_load_explicit(&slot_of(made, s)->flip, memory_order_acquire);
        made->kept[s] = flip_kept(flip);
        look_at(made, s, &made->seen[s]);
    }
    *segment = made;
    return DESCANT_OK;
}

bool segment_taken_over(const struct segment *segment)
{
    return segment->taken_over;
}

bool segment_detached(const struct segment *segment)
{
    return segment->detached;
}

void segment_end(struct segment *segment)
{
    segment->ended = true;
    atomic_store_explicit(&segment->h->ended, 1, memory_order_relaxed);
}

void segment_close(struct segment *segment)
{
    if (!segment)
        return;
    segment_end(segment);
    if (segment->object.header && !segment->detached)
        object_hide(&segment->object, segment->name);
    object_close(&segment->object);
    memory_give(segment);
}

uint64_t segment_n(const struct segment *segment)
{
    return segment->layout.n;
}

int segment_slots(const struct segment *segment)
{
    return (int)segment->layout.slots;
}

struct segment_header *segment_memory(struct segment *segment)
{
    return segment->h;
}

/* --- models --- */

const float *segment_model(const struct segment *segment, uint64_t *version)
{
    *version = newest_version(segment->newest);
    return copy_of(segment, newest_copy(segment->newest));
}

/* The model that a slot has pinned, or is going to pin; 0: none. */
static uint64_t pinned(struct segment_slot *slot, uint64_t newest)
{
    uint64_t pin = PIN_WANTED;
    return atomic_compare_exchange_strong_explicit(
               &slot->pin, &pin, newest, memory_order_seq_cst, memory_order_seq_cst)
               ? newest
               : pin;
}

float *segment_next(struct segment *segment)
{
    bool taken[SEGMENT_SLOTS + 2] = {false};
    if (detached(segment))
        return NULL;
    taken[newest_copy(segment->newest)] = true;
    for (unsigned s = 0; s < segment->layout.slots; s++) {
        uint64_t pin = pinned(slot_of(segment, s), segment->newest);
        if (!pin_sound(pin, segment)) {
            detach(segment, "pinned a model that never was");
            return NULL;
        }
        if (pin)
            taken[newest_copy(pin)] = true;
    }
    unsigned copy = 0;
    while (taken[copy])
        copy++;
    segment->next = copy;
    return copy_of(segment, copy);
}

void segment_store(struct segment *segment, uint64_t version)
{
    segment->newest = newest_make(version, segment->next);
    atomic_store_explicit(&segment->h->newest, segment->newest, memory_order_seq_cst);
}

/* --- gradients --- */

bool segment_take(struct segment *segment, int slot, struct segment_taken *taken)
{
    struct segment_slot *s = slot_of(segment, (unsigned)slot);
    if (detached(segment))
        return false;
    uint64_t flip = atomic_fetch_and_explicit(&s->flip, ~FLIP_FULL, memory_order_acq_rel);
    if (!flip_sound(flip) || flip_kept(flip) != segment->kept[slot]) {
        detach(segment, "changed the owners of its sums");
        return false;
    }
    if (!(flip & FLIP_FULL))
        return false;
    const unsigned sum = flip_committed(flip);
    const struct segment_tally tally = s->tallies[sum];
    if (!tally_sound(&tally, newest_version(segment->newest))) {
        detach(segment, "given a sum with impossible figures");
        return false;
    }
    segment->kept[slot] = sum;
    uint64_t number = (uint64_t)slot * SEGMENT_SUMS + sum;
    size_t at = segment->layout.sums_at + number * segment->layout.sum_bytes;
    *taken = (struct segment_taken){.values = segment_place(segment->h, at),
                                    .gradients = tally.gradients,
                                    .examples = tally.examples,
                                    .oldest = tally.oldest,
                                    .lag = tally.lag,
                                    .lag_most = tally.lag_most};
    return true;
}

void segment_figures(struct segment *segment, int slot, struct segment_figures *figures)
{
    struct segment_figures *seen = &segment->seen[slot], now = *seen;
    if (!detached(segment))
        look_at(segment, (unsigned)slot, &now);
    if (figures_sound(seen, &now))
        *seen = now;
    else
        detach(segment, "changed its counts");
    *figures = *seen;
    if (segment->detached)
        figures->pid = 0;
}

/* The slot is this process's while it is cleared, so that no module can have it. */
int segment_sweep(struct segment *segment)
{
    int swept = 0;
    for (unsigned s = 0; s < segment->layout.slots && !detached(segment); s++) {
        struct segment_slot *slot = slot_of(segment, s);
        uint64_t owner = atomic_load_explicit(&slot->owner, memory_order_acquire);
        if (owner == 0 || owner == segment->self || process_alive(owner) ||
            !atomic_compare_exchange_strong_explicit(&slot->owner, &owner, segment->self,
                                                     memory_order_acq_rel,
                                                     memory_order_relaxed))
            continue;
        atomic_store_explicit(&slot->pin, 0, memory_order_seq_cst);
        atomic_store_explicit(&slot->owner, 0, memory_order_release);
        swept++;
    }
    return swept;
}
