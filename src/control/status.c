/* SPDX-License-Identifier: MIT */
/* descant bsp status: looks at a run's segments twice, and prints their state and the
 * changes between. It writes nothing into them, and the run does not know of it. */
#include "control/control.h"

#include "bsp/object.h"
#include "machine/process.h"

#include <string.h>

/* The words of a slot, or a segment, as they were read: one by one, while modules and the
 * run change them. So figures of one look may be of moments slightly apart. */
struct slot_look {
    uint64_t owner, pin, gradients, examples, stale, bad, owners;
};

struct look {
    uint64_t at_ns, version, bound, keeper, ended;
    struct slot_look slots[SEGMENT_SLOTS];
};

static uint64_t read_word(const _Atomic uint64_t *word)
{
    return atomic_load_explicit(word, memory_order_relaxed);
}

static void look_at(const struct object *object, struct look *look)
{
    const struct segment_header *h = object->header;
    const struct segment_slot *slots =
        segment_place(object->header, object->layout.slots_at);
    look->at_ns = clock_now_ns();
    look->version = newest_version(read_word(&h->newest));
    look->bound = read_word(&h->bound);
    look->keeper = read_word(&h->keeper);
    look->ended = read_word(&h->ended);
    for (unsigned s = 0; s < object->layout.slots; s++) {
        const struct segment_slot *slot = &slots[s];
        look->slots[s] = (struct slot_look){
            .owner = read_word(&slot->owner),
            .pin = read_word(&slot->pin),
            .gradients = read_word(&slot->gradients),
            .examples = read_word(&slot->examples),
            .stale = read_word(&slot->stale),
            .bad = read_word(&slot->bad),
            .owners = read_word(&slot->owners),
        };
    }
}

/* A second, between the two looks. */
static double rate(uint64_t from, uint64_t to, const struct look looks[2])
{
    return (double)(to - from) / ((double)(looks[1].at_ns - looks[0].at_ns) * 1e-9);
}

/* The versions that the slot's pinned model is behind; -1: the slot has none. */
static int64_t behind(const struct look *look, const struct slot_look *slot)
{
    if (slot->pin == 0 || slot->pin == PIN_WANTED)
        return -1;
    return (int64_t)(look->version - newest_version(slot->pin));
}

/* Whether the run has died without ending its segment. */
static bool is_dead(const struct look *look)
{
    return !look->ended && !process_alive(look->keeper);
}

static const char *keeper_text(const struct look *look)
{
    return look->ended ? "has ended" : is_dead(look) ? "is dead" : "runs";
}

static const char *owner_text(uint64_t owner)
{
    return owner == 0 ? "free" : process_alive(owner) ? "attached" : "dead";
}

/* One slot as an object on a line of its own, with the figures of its segment. */
static void print_json(FILE *out, const char *name, unsigned s,
                       const struct look looks[2])
{
    const struct slot_look *was = &looks[0].slots[s], *is = &looks[1].slots[s];
    struct json json;
    json_begin(&json, out);
    json_text(&json, "segment", name);
    json_text(&json, "run", keeper_text(&looks[1]));
    json_int(&json, "version", (int64_t)looks[1].version);
    json_real(&json, "versions_per_s", rate(looks[0].version, looks[1].version, looks));
    json_int(&json, "slot", s);
    json_text(&json, "owner", owner_text(is->owner));
    json_int(&json, "pid", process_pid(is->owner));
    json_int(&json, "gradients", (int64_t)is->gradients);
    json_real(&json, "gradients_per_s", rate(was->gradients, is->gradients, looks));
    json_int(&json, "examples", (int64_t)is->examples);
    json_real(&json, "examples_per_s", rate(was->examples, is->examples, looks));
    json_int(&json, "behind", behind(&looks[1], is));
    json_int(&json, "refused_stale", (int64_t)is->stale);
    json_int(&json, "refused_not_finite", (int64_t)is->bad);
    json_int(&json, "owners", (int64_t)is->owners);
    json_end(&json);
}

static void print(FILE *out, const char *name, const struct segment_header *h,
                  const struct look looks[2])
{
    fprintf(out,
            "%s: %llu floats in %u part%s; version %llu, %.1f a second; bound %llu; "
            "the run (process %d) %s\n",
            name, (unsigned long long)h->n, h->n_parts, h->n_parts == 1 ? "" : "s",
            (unsigned long long)looks[1].version,
            rate(looks[0].version, looks[1].version, looks),
            (unsigned long long)looks[1].bound, process_pid(looks[1].keeper),
            keeper_text(&looks[1]));
    fprintf(out, "  %4s  %-8s %8s %11s %9s %13s %10s %7s %6s %6s %6s\n", "slot", "module",
            "process", "gradients", "a second", "examples", "a second", "behind", "stale",
            "NaN", "owners");
    for (unsigned s = 0; s < h->slots; s++) {
        const struct slot_look *was = &looks[0].slots[s], *is = &looks[1].slots[s];
        int64_t age = behind(&looks[1], is);
        char pin[32] = "-";
        if (age >= 0)
            snprintf(pin, sizeof pin, "%lld", (long long)age);
        fprintf(out,
                "  %4u  %-8s %8d %11llu %9.1f %13llu %10.0f %7s %6llu %6llu %6llu\n", s,
                owner_text(is->owner), process_pid(is->owner),
                (unsigned long long)is->gradients,
                rate(was->gradients, is->gradients, looks),
                (unsigned long long)is->examples,
                rate(was->examples, is->examples, looks), pin,
                (unsigned long long)is->stale, (unsigned long long)is->bad,
                (unsigned long long)is->owners);
    }
}

/* Opens the run's segments on this machine, *n of them, with their numbers. A segment
 * that ends meanwhile is passed over. TIMEOUT: there is none. After a failure, too, *n
 * segments are open. */
static descant_status open_segments(const char *run, struct object *objects, int *numbers,
                                    int *n)
{
    char name[BSP_SEGMENT];
    descant_status status = DESCANT_TIMEOUT;
    int found = bsp_find_segments(run, numbers);
    *n = 0;
    for (int k = 0; k < found && (status == DESCANT_OK || status == DESCANT_TIMEOUT);
         k++) {
        numbers[*n] = numbers[k];
        local_name(run, numbers[k], name, sizeof name);
        status = object_open(&objects[*n], name, NULL);
        *n += status == DESCANT_OK;
        if (status == DESCANT_OK)
            status = object_guard(&objects[*n - 1], name, NULL);
    }
    return status == DESCANT_TIMEOUT && *n > 0 ? DESCANT_OK : status;
}

bool bsp_status(const char *run, double over_s, bool as_json, FILE *out, FILE *err)
{
    static struct look looks[BSP_MODULES][2];       /* about 450 KiB */
    struct object objects[BSP_MODULES] = {{0}};
    char name[BSP_SEGMENT];
    int n, numbers[BSP_MODULES];
    bool dead = false;
    descant_status status = open_segments(run, objects, numbers, &n);
    for (int at = 0; at < 2 && status == DESCANT_OK; at++) {
        for (int k = 0; k < n; k++)
            look_at(&objects[k], &looks[k][at]);
        if (at == 0)
            clock_sleep_until(clock_now_ns() + (uint64_t)(over_s * 1e9));
    }
    for (int k = 0; k < n && status == DESCANT_OK; k++) {
        const struct segment_header *h = &objects[k].layout;
        local_name(run, numbers[k], name, sizeof name);
        for (unsigned s = 0; s < h->slots && as_json; s++)
            print_json(out, name, s, looks[k]);
        if (!as_json)
            print(out, name, h, looks[k]);
        dead |= is_dead(&looks[k][1]);
    }
    if (status == DESCANT_TIMEOUT)
        fprintf(err,
                "descant: there is no run %s: no segment %s-0, or of another number\n",
                run, run);
    else if (status != DESCANT_OK)
        fprintf(err, "descant: %s\n", descant_last_error());
    for (int k = 0; k < n; k++)
        object_close(&objects[k]);
    return status == DESCANT_OK && !dead;
}
