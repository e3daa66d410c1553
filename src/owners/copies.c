/* SPDX-License-Identifier: MIT */
/* A table's copies. The rule of a single row, and the choice of the way that a row takes,
 * are functions of what a set knows; around them are the sets, their locks and the pushes
 * that are kept. */
#include "owners/copies.h"

#include <string.h>

enum { HALVED_AFTER = 128 };    /* fetches of a set's rows */
enum { COUNTERS = 256 };        /* two bytes of a hash name two of them */
enum { KEPT_LEAST = 64 };       /* pushes, and one more for each 4 copies */

struct set {
    pthread_mutex_t lock;
    uint32_t fetches;           /* since counts were halved */
    uint64_t since_ns;          /* the counters count from then on */
    struct copy copies[SET_WAYS];
    uint8_t counters[COUNTERS];
};

struct kept_push {
    uint64_t number;
    float rate;
    uint32_t next;              /* an older one of its copy, or a free one; 0: none */
};

struct copies {
    const struct owned *table;
    struct copy_rule rule;
    size_t n_sets;
    int ways;
    struct set *sets;           /* (n_sets) */
    float *records;             /* (n_sets, ways, record) */
    size_t n_kept;
    struct kept_push *kept;     /* (n_kept), from 1; those of a copy are its set's */
    float *gradients;           /* (n_kept, width) of them */
    pthread_mutex_t lock;       /* guards free */
    uint32_t free;
};

/* --- the rule --- */

static void count(uint8_t *n)
{
    if (*n < UINT8_MAX)
        ++*n;
}

static enum copy_use asked_at(struct copy *copy, uint64_t now_ns)
{
    copy->state = COPY_ASKED;
    copy->since_ns = now_ns;
    copy->reads = 0;
    return COPY_ASK;
}

enum copy_use copy_look(struct copy *copy, const struct copy_rule *rule,
                        const struct copy_times *times)
{
    bool old = times->now_ns >= copy->since_ns + rule->age_ns ||
               (times->from_ns && copy->since_ns <= times->from_ns);

    count(&copy->heat);
    if (copy->state != COPY_HERE)
        return COPY_FETCH;
    if (!old) {
        count(&copy->reads);
        return COPY_READ;
    }
    if (copy->reads + 1u >= rule->worth)
        return asked_at(copy, times->now_ns);
    *copy = (struct copy){0};
    return COPY_FETCH;
}

int copy_victim(const struct copy *copies, int ways, unsigned heat)
{
    int best = -1;

    for (int k = 0; k < ways; k++) {
        if (copies[k].state == COPY_NONE)
            return k;
        if (copies[k].state == COPY_ASKED || copies[k].state == COPY_SPOILED ||
            copies[k].heat >= heat)
            continue;
        heat = copies[k].heat;
        best = k;
    }
    return best;
}

/* --- memory --- */

/* 12 at most: of Adam's three floats for each of a row, where that is a byte on the
 * wire. */
static unsigned worth_of(const struct owned *table)
{
    size_t row = owned_row_bytes(table), record = table->record * sizeof(float);
    size_t worth = (record + row - 1) / row;

    return worth < 2 ? 2 : (unsigned)worth;
}

static size_t rooms_of(const struct owned *table)
{
    size_t rows = table->shape.cached;

    if (rows == 0)
        rows = COPIES_BYTES / (table->record * sizeof(float));
    if (!table->shape.grows && rows > table->shape.rows)
        rows = (size_t)table->shape.rows;
    return rows < UINT32_MAX ? rows : UINT32_MAX;
}

struct copies *copies_create(const struct owned *table)
{
    struct copies *c = memory_take(sizeof *c);
    size_t rooms = rooms_of(table);

    if (!c)
        return NULL;
    pthread_mutex_init(&c->lock, NULL);
    c->table = table;
    c->rule = (struct copy_rule){(uint64_t)(table->shape.age * 1e9), worth_of(table)};
    c->ways = rooms < SET_WAYS ? (int)rooms : SET_WAYS;
    c->n_sets = rooms / (size_t)c->ways;
    c->n_kept = rooms / 4 + KEPT_LEAST;
    c->sets = memory_take_array(c->n_sets, sizeof *c->sets);
    for (size_t k = 0; c->sets && k < c->n_sets; k++)
        pthread_mutex_init(&c->sets[k].lock, NULL);
    c->records = memory_take_array(copies_rooms(c), table->record * sizeof(float));
    c->kept = memory_take_array(c->n_kept + 1, sizeof *c->kept);
    c->gradients = memory_take_array(c->n_kept + 1, table->shape.width * sizeof(float));
    if (!c->sets || !c->records || !c->kept || !c->gradients) {
        copies_destroy(c);
        return NULL;
    }
    for (size_t k = 1; k <= c->n_kept; k++)
        c->kept[k].next = k < c->n_kept ? (uint32_t)k + 1 : 0;
    c->free = 1;
    return c;
}

void copies_destroy(struct copies *c)
{
    if (!c)
        return;
    for (size_t k = 0; c->sets && k < c->n_sets; k++)
        pthread_mutex_destroy(&c->sets[k].lock);
    pthread_mutex_destroy(&c->lock);
    memory_give(c->sets);
    memory_give(c->records);
    memory_give(c->kept);
    memory_give(c->gradients);
    memory_give(c);
}

size_t copies_rooms(const struct copies *c)
{
    return c->n_sets * (size_t)c->ways;
}

/* --- sets --- */

static struct set *set_of(const struct copies *c, uint64_t hash)
{
    return &c->sets[(hash >> 32) * c->n_sets >> 32];
}

void copies_ask_for(const struct copies *c, uint64_t row)
{
    const char *set = (const char *)set_of(c, rng_mixed(row));

    for (size_t at = 0; at < offsetof(struct set, counters); at += 64)
        __builtin_prefetch(set + at, 1);
}

/* The set of the row with this hash, locked. */
static struct set *enter(struct copies *c, uint64_t hash)
{
    struct set *set = set_of(c, hash);

    pthread_mutex_lock(&set->lock);
    return set;
}

static void leave(struct set *set)
{
    pthread_mutex_unlock(&set->lock);
}

static struct copy *find(const struct copies *c, struct set *set, uint64_t row)
{
    for (int k = 0; k < c->ways; k++)
        if (set->copies[k].row == row && set->copies[k].state != COPY_NONE)
            return &set->copies[k];
    return NULL;
}

static float *record_of(const struct copies *c, const struct set *set,
                        const struct copy *copy)
{
    size_t way = (size_t)(set - c->sets) * (size_t)c->ways +
                 (size_t)(copy - set->copies);
    return c->records + way * c->table->record;
}

/* One more fetch of a set's rows. The counters begin anew with each age: a row that comes
 * seldom in an age is not worth its record, however often it came in others. */
static void cool(struct set *set, uint64_t age_ns, uint64_t now_ns)
{
    if (now_ns >= set->since_ns + age_ns) {
        memset(set->counters, 0, sizeof set->counters);
        set->since_ns = now_ns;
    }
    if (++set->fetches < HALVED_AFTER)
        return;
    set->fetches = 0;
    for (int k = 0; k < COUNTERS; k++)
        set->counters[k] /= 2;
    for (int k = 0; k < SET_WAYS; k++)
        set->copies[k].heat /= 2;
}

static uint8_t *counter_of(struct set *set, uint64_t bits)
{
    return &set->counters[bits % COUNTERS];
}

/* Counts a row without a way. Returns how often it has come, or more: the lower one of
 * its two counters, which count other rows, too. */
static uint8_t heat_of(struct set *set, uint64_t hash)
{
    uint8_t *a = counter_of(set, hash), *b = counter_of(set, hash >> 8);
    uint8_t least = *a < *b ? *a : *b;

    if (*a == least)
        count(a);
    if (*b == least)
        count(b);
    return *a < *b ? *a : *b;
}

/* A row without a way is fetched. */
static enum copy_use admit(struct copies *c, struct set *set, uint64_t row,
                           uint64_t now_ns)
{
    uint8_t heat = heat_of(set, rng_mixed(row));
    int way = heat <= c->rule.worth ? -1 : copy_victim(set->copies, c->ways, heat);

    if (way < 0)
        return COPY_FETCH;
    set->copies[way] = (struct copy){.row = row, .heat = heat};
    return asked_at(&set->copies[way], now_ns);
}

enum copy_use copies_look(struct copies *c, uint64_t row, const struct copy_times *times,
                          float *out)
{
    struct set *set = enter(c, rng_mixed(row));
    struct copy *copy = find(c, set, row);

    cool(set, c->rule.age_ns, times->now_ns);
    enum copy_use use = copy ? copy_look(copy, &c->rule, times)
                             : admit(c, set, row, times->now_ns);
    if (use == COPY_READ)
        c->table->kernels->copy(out, record_of(c, set, copy), c->table->shape.width);
    leave(set);
    return use;
}

/* --- pushes that are kept --- */

/* All that the copy keeps is free. */
static void free_kept(struct copies *c, struct copy *copy)
{
    uint32_t last = copy->kept;

    if (!last)
        return;
    while (c->kept[last].next)
        last = c->kept[last].next;
    pthread_mutex_lock(&c->lock);
    c->kept[last].next = c->free;
    c->free = copy->kept;
    pthread_mutex_unlock(&c->lock);
    copy->kept = 0;
}

static float *gradient_of(const struct copies *c, uint32_t kept)
{
    return c->gradients + (size_t)kept * c->table->shape.width;
}

static void keep(struct copies *c, struct copy *copy, struct kept_push push,
                 const float *g)
{
    pthread_mutex_lock(&c->lock);
    uint32_t at = c->free;
    c->free = c->kept[at].next;
    pthread_mutex_unlock(&c->lock);
    if (!at) {
        free_kept(c, copy);
        copy->state = COPY_SPOILED;
        return;
    }
    push.next = copy->kept;
    c->kept[at] = push;
    c->table->kernels->copy(gradient_of(c, at), g, c->table->shape.width);
    copy->kept = at;
}

void copies_push(struct copies *c, uint64_t row, uint64_t number, const void *gradient,
                 float rate)
{
    struct set *set = enter(c, rng_mixed(row));
    struct copy *copy = find(c, set, row);
    float g[OWNED_WIDEST];

    if (copy && (copy->state == COPY_ASKED ||
                 (copy->state == COPY_HERE && number > copy->number))) {
        owned_decode(c->table, gradient, g);
        bool finite = c->table->kernels->finite(g, c->table->shape.width);
        if (finite && copy->state == COPY_HERE)
            owned_step(c->table, record_of(c, set, copy), g, rate);
        else if (finite)
            keep(c, copy, (struct kept_push){number, rate, 0}, g);
    }
    leave(set);
}

/* --- records that come --- */

/* The oldest is the first. */
static void step_kept(const struct copies *c, struct copy *copy, float *record)
{
    uint32_t oldest = 0, next;

    for (uint32_t at = copy->kept; at; at = next) {
        next = c->kept[at].next;
        c->kept[at].next = oldest;
        oldest = at;
    }
    copy->kept = oldest;
    for (uint32_t at = oldest; at; at = c->kept[at].next)
        if (c->kept[at].number > copy->number)
            owned_step(c->table, record, gradient_of(c, at), c->kept[at].rate);
}

void copies_fill(struct copies *c, uint64_t row, uint64_t number, const float *record)
{
    struct set *set = enter(c, rng_mixed(row));
    struct copy *copy = find(c, set, row);

    if (copy && copy->state == COPY_ASKED) {
        float *to = record_of(c, set, copy);
        c->table->kernels->copy(to, record, c->table->record);
        copy->state = COPY_HERE;
        copy->number = number;
        step_kept(c, copy, to);
        free_kept(c, copy);
    } else if (copy && copy->state == COPY_SPOILED) {
        *copy = (struct copy){0};
    }
    leave(set);
}

void copies_forget(struct copies *c, uint64_t row)
{
    struct set *set = enter(c, rng_mixed(row));
    struct copy *copy = find(c, set, row);

    if (copy) {
        free_kept(c, copy);
        *copy = (struct copy){0};
    }
    *counter_of(set, rng_mixed(row)) = *counter_of(set, rng_mixed(row) >> 8) = 0;
    leave(set);
}
