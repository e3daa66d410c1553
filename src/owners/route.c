/* SPDX-License-Identifier: MIT */
/* Where asks go. Mostly to the rank by which their caller has grouped them. Where slices
 * have moved since then, an ask is split by the owners of its rows. Rows whose slice is
 * on its way are held until it has come, and rows that have come here meanwhile are
 * served here. An ask whose owner has gone is sent anew; a push is not, for it may have
 * been stepped by. */
#include "owners/moves.h"

#include <string.h>

enum { HELD = -1 };

static int goes_to(const struct service *s, const struct owned *table, uint64_t row)
{
    int slice = owned_slice(table, row);

    return s->map.shut[slice] ? HELD : s->map.owner[slice];
}

static void hold(struct service *s, struct ask *ask)
{
    ask->next = NULL;
    *s->moves->last = ask;
    s->moves->last = &ask->next;
}

/* Rows that are here now. */
static void serve_here(struct service *s, struct ask *ask)
{
    struct read_ask read;

    if (ask_read(s, ask->message, ask->bytes, &read) != NULL || read.elsewhere)
        ;                       /* cannot be: this rank has made it */
    else if (ask->batch) {
        ask_answer(s, &read, ask->answer);
        ask_answered(s, ask);
    } else {
        ask_step(s, &read);
    }
    ask_done(s, ask);
}

/* An ask all of whose rows have one owner. */
static bool send_to(struct service *s, struct ask *ask, int owner)
{
    ask->owner = owner;
    ask->version = s->map.version;
    ask->sent = ask->lost = false;
    ask->answered = !ask->batch;
    if (owner == HELD) {
        hold(s, ask);
        return true;
    }
    if (owner == s->rank) {
        serve_here(s, ask);
        return true;
    }
    struct owners_peer *peer = &s->peers[owner];
    if (peer->there && peer->mapped && !peer->waiting)
        return ask_send(s, ask);
    ask->next = NULL;
    *peer->last = ask;
    peer->last = &ask->next;
    return true;
}

/* The rows of an ask that go to the owner of row `first`: an ask of their own. taken: the
 * rows that have been taken out of it. */
static bool split(struct service *s, const struct ask *ask, const struct read_ask *read,
                  const uint64_t *rows, bool *taken, size_t first)
{
    const struct owned *table = read->table;
    size_t id = row_id_bytes(table), row = ask->row_bytes, n = 0;
    size_t g = ask->batch ? 0 : row;
    struct ask *part = ask_take(s, sizeof read->head + ask->n * (id + g),
                                ask->batch ? ask->n * (row + sizeof *ask->places) : 0);
    unsigned char *ids, *gradients;
    int owner = goes_to(s, table, rows[first]);
    struct ask_head head = read->head;

    if (!part)
        return service_fail(s, DESCANT_MEMORY, "no memory for rows on their way");
    for (size_t k = first; k < ask->n; k++)
        n += !taken[k] && goes_to(s, table, rows[k]) == owner;
    ids = part->message + sizeof head;
    gradients = ids + n * id;
    part->places = ask->batch ? (uint32_t *)(part->answer + n * row) : NULL;
    part->n = 0;
    for (size_t k = first; k < ask->n; k++) {
        if (taken[k] || goes_to(s, table, rows[k]) != owner)
            continue;
        taken[k] = true;
        memcpy(ids + part->n * id, &rows[k], id);
        if (ask->batch)
            part->places[part->n] = ask->places[k];
        else
            memcpy(gradients + part->n * row, read->gradients + k * row, row);
        part->n++;
    }
    head.n = (uint32_t)n;
    memcpy(part->message, &head, sizeof head);
    part->kind = ask->kind;
    part->number = ask->number;
    part->batch = ask->batch;
    part->bytes = sizeof head + n * (id + g);
    part->row_bytes = row;
    if (ask->batch) {
        atomic_fetch_add(&ask->batch->held, 1);
        atomic_fetch_add(&ask->batch->missing, 1);
    } else {
        atomic_fetch_add(&s->queued, ask_room(part));
    }
    s->n_asks++;
    return send_to(s, part, owner);
}

/* As ask_read, of an ask that this rank has made. */
static void read_own(const struct service *s, const struct ask *ask,
                     struct read_ask *read, uint64_t *rows)
{
    memcpy(&read->head, ask->message, sizeof read->head);
    read->table = &s->tables[read->head.table];
    size_t id = row_id_bytes(read->table);
    const unsigned char *ids = ask->message + sizeof read->head;
    rows[0] = 0;                /* an ask has one at least */
    for (size_t k = 0; k < ask->n; k++) {
        rows[k] = 0;
        memcpy(&rows[k], ids + k * id, id);
    }
    read->gradients = ids + ask->n * id;
}

bool route_anew(struct service *s, struct ask *ask)
{
    enum { MOST = ASK_BYTES / sizeof(uint32_t) };
    uint64_t rows[MOST];
    bool taken[MOST] = {false}, good = true;
    struct read_ask read;
    size_t same = 1;

    read_own(s, ask, &read, rows);
    int owner = goes_to(s, read.table, rows[0]);
    while (same < ask->n && goes_to(s, read.table, rows[same]) == owner)
        same++;
    if (same == ask->n)
        return send_to(s, ask, owner);
    for (size_t k = 0; good && k < ask->n; k++)
        if (!taken[k])
            good = split(s, ask, &read, rows, taken, k);
    if (good)
        ask_done(s, ask);
    return good;
}

static bool route(struct service *s, struct ask *ask)
{
    if (s->moves && (s->moves->shut || ask->version != s->map.version))
        return route_anew(s, ask);
    return send_to(s, ask, ask->owner);
}

static bool route_list(struct service *s, struct ask *ask)
{
    bool good = true;

    for (struct ask *next; good && ask; ask = next) {
        next = ask->next;
        good = route(s, ask);
    }
    return good;
}

bool route_inbox(struct service *s)
{
    bool good = true;

    for (struct ask *ask = asks_inbox(s), *next; good && ask; ask = next) {
        next = ask->next;
        s->n_asks++;
        good = route(s, ask);
    }
    return good;
}

bool route_waiting(struct service *s, int rank)
{
    struct owners_peer *peer = &s->peers[rank];
    struct ask *list = peer->waiting;

    peer->waiting = NULL;
    peer->last = &peer->waiting;
    return route_list(s, list);
}

/* Those that wait for a peer were posted before those that are held: what is held now was
 * shut when it came, and would else have gone to the peer's list. */
bool route_all(struct service *s)
{
    struct ask *held = s->moves->held;
    bool good = true;

    s->moves->held = NULL;
    s->moves->last = &s->moves->held;
    for (int k = 0; good && k < s->place.size; k++)
        if (s->peers[k].waiting)
            good = route_waiting(s, k);
    return good && route_list(s, held);
}

bool route_ended(struct service *s, struct ask *ask, const struct link_ended *ended)
{
    if (!asks_ended(s, ask, ended))
        return false;
    if (!ask->sent || !ask->answered)
        return true;
    if (ask->lost)              /* without moves the service fails, as its caller sees */
        return !s->moves || route_anew(s, ask);
    if (s->moves && ask->kind == ASK_SET)
        moves_unqueue(s, ask->owner, ask_room(ask));
    ask_done(s, ask);
    return true;
}
