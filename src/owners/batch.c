/* SPDX-License-Identifier: MIT */
/* A batch of rows, as callers use it. Rows that lie here are read when the caller waits,
 * and stepped when it pushes, by the caller's own thread. Rows that have copies here are
 * read when they are fetched, as others are then on their way. A caller that fetches
 * right after a push leaves it to the fetch to wake the turning thread for both. */
#include "owners/service.h"

#include <string.h>

#define LOOK_NS UINT64_C(20000000)      /* at a failure */
#define SAY_NS UINT64_C(10000000000)

/* --- its memory --- */

static void say_wait(const struct service *s, const struct descant_rows *batch)
{
    char ranks[200] = "";

    for (int k = 0; k < batch->owners; k++)
        if (k != s->rank && batch->first[(k + 1) * COPY_USES] >
                                batch->first[k * COPY_USES + COPY_ASK])
            snprintf(ranks + strlen(ranks), sizeof ranks - strlen(ranks), "%s%d",
                     *ranks ? ", " : "", k);
    log_say(&s->log, DESCANT_WARNING,
            "rows of table '%s' have not come for 10 s; they are with some of the "
            "ranks %s", batch->table->name, ranks);
}

/* A long wait counts while it lasts, lest it seem to be of the moment when it ends. */
static void count_stall(struct service *s, const struct descant_rows *batch,
                        uint64_t *counted, uint64_t now)
{
    if (batch->stalls)
        owners_count(&s->stats.stall_ns, now - *counted);
    *counted = now;
}

/* Until all answers are in the block. False: the service has failed. */
static bool await(struct service *s, struct descant_rows *batch)
{
    uint32_t missing = atomic_load(&batch->missing);
    uint64_t began = missing ? clock_now_ns() : 0, say = began + SAY_NS, now = began;
    uint64_t counted = began;

    while (missing && !atomic_load(&s->status)) {
        futex_wait(&batch->missing, missing, now + LOOK_NS);
        now = clock_now_ns();
        count_stall(s, batch, &counted, now);
        if (now >= say) {
            say_wait(s, batch);
            say = now + SAY_NS;
        }
        missing = atomic_load(&batch->missing);
    }
    return missing == 0;
}

void batches_fini(struct service *s)
{
    for (struct descant_rows *batch = s->made, *next; batch; batch = next) {
        next = batch->next_made;
        memory_give(batch->rows);
        memory_give(batch->uses);
        memory_give(batch->places);
        memory_give(batch->block);
        memory_give(batch->first);
        memory_give(batch);
    }
}

/* For so many owners, and own rows that are on their way. */
static bool reserve_buckets(struct descant_rows *batch, int owners)
{
    return memory_grow(&batch->first, &batch->buckets, 0,
                       ((size_t)owners + 1) * COPY_USES + 1, sizeof *batch->first);
}

static bool reserve(struct descant_rows *batch, size_t n, size_t width)
{
    size_t rows = batch->room, places = batch->room, uses = batch->room;

    if (!memory_grow(&batch->rows, &rows, 0, n, sizeof *batch->rows) ||
        !memory_grow(&batch->uses, &uses, 0, n, sizeof *batch->uses) ||
        !memory_grow(&batch->places, &places, 0, n, sizeof *batch->places))
        return false;
    batch->room = rows < places ? rows : places;
    batch->room = batch->room < uses ? batch->room : uses;
    return memory_grow(&batch->block, &batch->floats, 0, n * width,
                       sizeof *batch->block);
}

static struct descant_rows *make(struct service *s)
{
    struct descant_rows *batch = memory_take(sizeof *batch);

    if (!batch)
        return NULL;
    pthread_mutex_lock(&s->lock);
    batch->next_made = s->made;
    s->made = batch;
    pthread_mutex_unlock(&s->lock);
    return batch;
}

static struct descant_rows *take(struct service *s, size_t n, size_t width)
{
    pthread_mutex_lock(&s->lock);
    struct descant_rows *batch = s->free;
    if (batch)
        s->free = batch->next;
    pthread_mutex_unlock(&s->lock);
    if (!batch)
        batch = make(s);
    if (batch) {
        atomic_store(&batch->missing, 0);
        atomic_store(&batch->held, 1);
        batch->stalls = false;
        if (reserve(batch, n ? n : 1, width))
            return batch;
        batch_let_go(s, batch);
    }
    log_fail(&s->log, DESCANT_MEMORY, "no memory for a batch of %zu rows", n);
    return NULL;
}

/* --- by owner --- */

/* Rows that have copies are read from them now. */
static void look_at_copies(struct service *s, struct descant_rows *batch,
                           struct copies *copies)
{
    const struct owned *table = batch->table;
    uint64_t now = s->now_ns(), cached = 0;

    for (size_t k = 0; k < batch->n; k++) {
        if (k + OWNED_AHEAD < batch->n)
            copies_ask_for(copies, batch->rows[k + OWNED_AHEAD]);
        if (owned_here(table, batch->rows[k]))
            continue;
        float *row = batch->block + k * table->shape.width;
        const struct copy_times times = {
            now, s->map.since_ns[owned_slice(table, batch->rows[k])]};
        enum copy_use use = copies_look(copies, batch->rows[k], &times, row);
        batch->uses[k] = (unsigned char)use;
        cached += use == COPY_READ;
    }
    owners_count(&s->stats.cached, cached);
}

/* Own rows that are on their way come behind all owners. */
static size_t bucket_of(const struct descant_rows *batch, int owners, size_t k)
{
    const struct owned *table = batch->table;
    int slice = owned_slice(table, batch->rows[k]), owner = table->map->owner[slice];
    bool here = owner != table->rank || !table->map->shut[slice];

    return (size_t)(here ? owner : owners) * COPY_USES + batch->uses[k];
}

/* places: the rows of owner k are places[first[b], first[b + COPY_USES]) with b = k
 * COPY_USES, by their use, and in their order. False: there is no memory. */
static bool group(struct service *s, struct descant_rows *batch, bool copies)
{
    int owners = s->map.size;
    size_t buckets = ((size_t)owners + 1) * COPY_USES;

    if (!reserve_buckets(batch, owners))
        return false;
    size_t *first = batch->first;
    batch->version = s->map.version;
    batch->owners = owners;
    memset(first, 0, (buckets + 1) * sizeof *first);
    if (owners == 1 && !copies && !s->moves) {
        for (size_t k = 0; k < batch->n; k++)
            batch->places[k] = (uint32_t)k;
        for (size_t k = COPY_USES; k <= buckets; k++)
            first[k] = batch->n;
        return true;
    }
    for (size_t k = 0; k < batch->n; k++)
        first[bucket_of(batch, owners, k) + 1]++;
    for (size_t k = 0; k < buckets; k++)
        first[k + 1] += first[k];
    for (size_t k = 0; k < batch->n; k++)
        batch->places[first[bucket_of(batch, owners, k)]++] = (uint32_t)k;
    memmove(first + 1, first, buckets * sizeof *first);
    first[0] = 0;
    return true;
}

/* The batch's rows that are here: n of them, from places[*at] on. */
static size_t own(const struct service *s, const struct descant_rows *batch, size_t *at)
{
    *at = 0;
    if (s->rank >= batch->owners)
        return 0;
    *at = batch->first[s->rank * COPY_USES];
    return batch->first[(s->rank + 1) * COPY_USES] - *at;
}

/* --- asks --- */

/* What owners are asked. */
struct asking {
    struct service *s;
    struct descant_rows *batch;
    enum ask_kind kind;
    const float *gradients;             /* of a push */
    float rate;
    struct copies *copies;              /* that a push steps; NULL: there are none */
};

/* Rows that one ask can have. */
static size_t most_of(const struct owned *table, enum ask_kind kind)
{
    size_t id = row_id_bytes(table), row = ask_row_bytes(table, kind);
    size_t room = ASK_BYTES - sizeof(struct ask_head);

    if (kind == ASK_PUSH)
        return room / (id + row);
    return room / id < ASK_BYTES / row ? room / id : ASK_BYTES / row;
}

static void put_ids(unsigned char *to, const struct descant_rows *batch, size_t at,
                    size_t n)
{
    size_t bytes = row_id_bytes(batch->table);

    for (size_t k = 0; k < n; k++)      /* the low bytes come first */
        memcpy(to + k * bytes, &batch->rows[batch->places[at + k]], bytes);
}

static void put_gradients(unsigned char *to, const struct descant_rows *batch,
                          const float *gradients, size_t at, size_t n)
{
    static _Atomic uint64_t pushes;
    const struct owned *table = batch->table;
    size_t bytes = owned_row_bytes(table);
    uint64_t chance = atomic_fetch_add(&pushes, 1) * UINT64_C(0x9e3779b97f4a7c15);

    for (size_t k = 0; k < n; k++)
        owned_encode(table, gradients + batch->places[at + k] * table->shape.width,
                     to + k * bytes, &chance);
}

/* A push waits while too many bytes are on their way. The owners that take none are not
 * known here: the bytes are counted for all of them together. */
static void wait_for_room(struct service *s, const struct descant_rows *batch)
{
    uint32_t rung = atomic_load(&s->unqueued);
    uint64_t counted = 0, say = 0, now = 0;

    while (atomic_load(&s->queued) > ASKS_QUEUED && !atomic_load(&s->status)) {
        now = clock_now_ns();
        if (!say) {
            counted = now;
            say = now + SAY_NS;
        } else if (now >= say) {
            log_say(&s->log, DESCANT_WARNING,
                    "a push of rows has waited for room for 10 s: %zu MB of pushes are "
                    "on their way to their owners", atomic_load(&s->queued) / 1000000);
            say = now + SAY_NS;
        }
        service_wake(s);
        futex_wait(&s->unqueued, rung, now + LOOK_NS);
        count_stall(s, batch, &counted, clock_now_ns());
        rung = atomic_load(&s->unqueued);
    }
}

/* Posts a push, and steps copies by its gradients as they travel, so that they step as
 * the owner does. */
static void post_push(const struct asking *a, struct ask *ask, size_t at, size_t n)
{
    const uint64_t *rows = a->batch->rows;
    const uint32_t *places = a->batch->places + at;
    size_t row = owned_row_bytes(a->batch->table);
    const unsigned char *g = ask->message + ask->bytes - n * row;

    if (a->copies)
        atomic_fetch_add(&ask->held, 1);
    ask_post(a->s, ask);
    if (!a->copies)
        return;
    for (size_t k = 0; k < n; k++) {
        if (k + OWNED_AHEAD < n)
            copies_ask_for(a->copies, rows[places[k + OWNED_AHEAD]]);
        copies_push(a->copies, rows[places[k]], ask->number, g + k * row, a->rate);
    }
    ask_let_go(a->s, ask);
}

/* Asks an owner for n rows, from places[at] on, or pushes their gradients. */
static bool ask_one(const struct asking *a, int owner, size_t at, size_t n)
{
    struct descant_rows *batch = a->batch;
    struct owned *table = batch->table;
    bool pushes = a->kind == ASK_PUSH;
    size_t row = ask_row_bytes(table, a->kind), ids = n * row_id_bytes(table);
    struct ask_head head = {.kind = (uint8_t)a->kind, .n = (uint32_t)n, .rate = a->rate,
                            .table = (uint16_t)(table - a->s->tables)};
    struct ask *ask = ask_take(a->s, sizeof head + ids + (pushes ? n * row : 0),
                               pushes ? 0 : n * (row + sizeof *ask->places));

    if (!ask)
        return false;
    ask->kind = a->kind;
    ask->owner = owner;
    ask->batch = pushes ? NULL : batch;
    ask->n = n;
    ask->version = batch->version;
    ask->row_bytes = row;
    ask->places = pushes ? NULL : (uint32_t *)(ask->answer + n * row);
    if (!pushes)
        memcpy(ask->places, batch->places + at, n * sizeof *ask->places);
    memcpy(ask->message, &head, sizeof head);
    put_ids(ask->message + sizeof head, batch, at, n);
    ask->bytes = sizeof head + ids;
    if (pushes) {
        put_gradients(ask->message + ask->bytes, batch, a->gradients, at, n);
        ask->bytes += n * row;
        post_push(a, ask, at, n);
    } else {
        atomic_fetch_add(&batch->held, 1);
        atomic_fetch_add(&batch->missing, 1);
        ask_post(a->s, ask);
    }
    return true;
}

/* Asks an owner for the rows from places[at] to places[end]. */
static bool ask_some(const struct asking *a, int owner, size_t at, size_t end)
{
    size_t most = most_of(a->batch->table, a->kind), n;

    for (; at < end; at += n) {
        n = end - at < most ? end - at : most;
        if (!ask_one(a, owner, at, n))
            break;
    }
    bool good = at == end;
    for (; at < end && a->kind == ASK_COPY; at++)
        copies_forget(a->copies, a->batch->rows[a->batch->places[at]]);
    return good;
}

/* Asks other owners for rows, and for records that become copies. */
static bool fetch_all(struct service *s, struct descant_rows *batch,
                      struct copies *copies)
{
    const struct asking rows = {.s = s, .batch = batch, .kind = ASK_FETCH};
    const struct asking records = {.s = s, .batch = batch, .kind = ASK_COPY,
                                   .copies = copies};
    bool good = true;

    for (int k = 0; k <= batch->owners; k++) {
        const size_t *first = batch->first + k * COPY_USES;
        int owner = k < batch->owners ? k : s->rank;
        if (k == s->rank)
            continue;
        good &= ask_some(&records, owner, first[COPY_ASK], first[COPY_ASK + 1]);
        good &= ask_some(&rows, owner, first[COPY_FETCH], first[COPY_FETCH + 1]);
    }
    service_wake(s);
    return good;
}

static bool push_all(const struct asking *a)
{
    struct service *s = a->s;
    bool good = true;

    for (int k = 0; good && k <= a->batch->owners; k++) {
        const size_t *first = a->batch->first + k * COPY_USES;
        if (k != s->rank)
            good = ask_some(a, k < a->batch->owners ? k : s->rank, first[0],
                            first[COPY_USES]);
    }
    return good;
}

/* --- calls --- */

static bool has_rows(const struct service *s, const struct owned *table,
                     const uint64_t *rows, size_t n)
{
    for (size_t k = 0; k < n; k++)
        if (!owned_has(table, rows[k])) {
            log_fail(&s->log, DESCANT_INVALID, "table '%s' has %llu rows, and no row "
                     "%lld", table->name, (unsigned long long)table->shape.rows,
                     (long long)rows[k]);
            return false;
        }
    return true;
}

/* copies NULL: all rows come from their owners. */
static descant_status fetch(struct service *s, int table, const uint64_t *rows, size_t n,
                            struct copies *copies, struct descant_rows **out)
{
    struct owned *of = &s->tables[table];

    if (n > UINT32_MAX || !has_rows(s, of, rows, n))
        return DESCANT_INVALID;
    struct descant_rows *batch = take(s, n, of->shape.width);
    if (!batch)
        return DESCANT_MEMORY;
    batch->table = of;
    batch->n = n;
    if (n)
        memcpy(batch->rows, rows, n * sizeof *rows);
    memset(batch->uses, COPY_FETCH, n);
    gate_in(s);
    if (copies)
        look_at_copies(s, batch, copies);
    bool good = group(s, batch, copies != NULL) && fetch_all(s, batch, copies);
    gate_out(s);
    owners_count(&s->stats.fetched, n);
    if (!good) {
        batch_let_go(s, batch);
        return DESCANT_MEMORY;
    }
    *out = batch;
    return DESCANT_OK;
}

descant_status batch_fetch(struct service *s, int table, const uint64_t *rows, size_t n,
                           struct descant_rows **out)
{
    bool past = atomic_load(&s->past_copies);

    return fetch(s, table, rows, n, past ? NULL : copies_of(s, &s->tables[table]), out);
}

descant_status batch_ask(struct service *s, int table, const uint64_t *rows, size_t n,
                         struct descant_rows **out)
{
    return fetch(s, table, rows, n, NULL, out);
}

size_t batch_rows(const struct descant_rows *batch)
{
    return batch->n;
}

bool batch_ready(const struct descant_rows *batch)
{
    return atomic_load_explicit(&batch->missing, memory_order_acquire) == 0;
}

/* Own rows that have been given away since the batch was grouped come first among them,
 * and are own no more: how many. A push groups anew. */
static size_t part_left(const struct service *s, struct descant_rows *batch)
{
    size_t at, n = own(s, batch, &at), left = 0;
    uint32_t *places = batch->places + at;

    for (size_t k = 0; k < n; k++) {
        uint32_t place = places[k];
        if (owned_here(batch->table, batch->rows[place]))
            continue;
        places[k] = places[left];
        places[left++] = place;
    }
    for (int use = 0; n && use < COPY_USES; use++)
        batch->first[s->rank * COPY_USES + use] = at + left;
    return left;
}

/* Own rows are read; if some have been given away, none is, and these are asked for: how
 * many. False: there is no memory. */
static bool read_own(struct service *s, struct descant_rows *batch, size_t *left)
{
    const struct asking rows = {.s = s, .batch = batch, .kind = ASK_FETCH};
    size_t at, n = own(s, batch, &at);

    gate_in(s);
    *left = s->moves && batch->version != s->map.version ? part_left(s, batch) : 0;
    if (!*left)
        owned_read(batch->table, batch->rows, batch->places + at, n, batch->block);
    bool asked = !*left || ask_some(&rows, s->rank, at, at + *left);
    gate_out(s);
    if (*left)
        service_wake(s);
    return asked;
}

bool batch_here(struct service *s, struct descant_rows *batch)
{
    size_t left;

    return batch_ready(batch) && read_own(s, batch, &left) && !left;
}

float *batch_wait(struct service *s, struct descant_rows *batch)
{
    size_t left;

    do
        if (!await(s, batch) || !read_own(s, batch, &left))
            return NULL;
    while (left);
    return batch->block;
}

/* Own rows are stepped, and the others posted. False: there is no memory. */
static bool push(const struct asking *a)
{
    struct service *s = a->s;
    struct descant_rows *batch = a->batch;
    size_t at, n, bad;
    uint64_t bad_row = 0;

    if (s->moves && batch->version != s->map.version &&
        !group(s, batch, a->copies != NULL))
        return false;
    bool pushed = push_all(a);
    n = own(s, batch, &at);
    bad = owned_push(batch->table, batch->rows, batch->places + at, n, a->gradients,
                     a->rate, &bad_row);
    owners_bad(s, batch->table, bad, bad_row);
    return pushed;
}

descant_status batch_push_more(struct service *s, struct descant_rows *batch,
                               const float *gradients, float rate)
{
    const struct asking pushes = {.s = s, .batch = batch, .kind = ASK_PUSH,
                                  .gradients = gradients, .rate = rate,
                                  .copies = copies_of(s, batch->table)};

    owners_count(&s->stats.pushed, batch->n);
    wait_for_room(s, batch);
    gate_in(s);
    bool pushed = push(&pushes);
    gate_out(s);
    batch_let_go(s, batch);
    int status = atomic_load(&s->status);
    return status ? (descant_status)status : pushed ? DESCANT_OK : DESCANT_MEMORY;
}

descant_status batch_push(struct service *s, struct descant_rows *batch,
                          const float *gradients, float rate)
{
    descant_status status = batch_push_more(s, batch, gradients, rate);

    service_wake(s);
    return status;
}
