/* SPDX-License-Identifier: MIT */
/* An ask is read, and answered or stepped by. Its bytes are a peer's, and are checked
 * before they are used. */
#include "owners/moves.h"

#include <math.h>
#include <string.h>

const char *ask_read(struct service *s, const unsigned char *message, size_t bytes,
                     struct read_ask *ask)
{
    const struct ask_head *head = &ask->head;

    ask->elsewhere = ask->early = false;
    if (bytes > ASK_BYTES || bytes < sizeof *head)
        return "what it asks is longer than an ask, or shorter than its head";
    memcpy(&ask->head, message, sizeof *head);
    if (head->kind < ASK_FETCH || head->kind > ASK_COPY || head->table >= s->n_tables ||
        !isfinite(head->rate))
        return "it asks for no table that there is, or in no known way";
    ask->table = &s->tables[head->table];
    if (head->kind == ASK_COPY && !(ask->table->shape.age > 0))
        return "it asks for copies of a table that has none";
    size_t id = row_id_bytes(ask->table), row = ask_row_bytes(ask->table, head->kind);
    size_t n = head->n, each = id + (head->kind == ASK_PUSH ? row : 0);
    if (n == 0 || n > ASK_BYTES / each || bytes != sizeof *head + n * each ||
        (head->kind != ASK_PUSH && n > ASK_BYTES / row))
        return "it asks for another number of rows than it names, or for too many";
    for (size_t k = 0; k < n; k++) {
        s->asked[k] = 0;
        memcpy(&s->asked[k], message + sizeof *head + k * id, id);
        if (!owned_has(ask->table, s->asked[k]))
            return "it asks for a row that there is not";
        int slice = owned_slice(ask->table, s->asked[k]);
        bool serves = moves_serves(s, slice);
        ask->elsewhere |= !serves;
        ask->early |= !serves && s->moves && s->moves->slices[slice].from != NOBODY;
    }
    ask->gradients = message + sizeof *head + n * id;
    return NULL;
}

void ask_keep_own(struct service *s, unsigned char *message, struct read_ask *ask)
{
    size_t row = owned_row_bytes(ask->table), n = 0;
    unsigned char *gradients = message + (ask->gradients - message);

    for (size_t k = 0; k < ask->head.n; k++) {
        if (!moves_serves(s, owned_slice(ask->table, s->asked[k])))
            continue;
        s->asked[n] = s->asked[k];
        memmove(gradients + n * row, gradients + k * row, row);
        n++;
    }
    ask->head.n = (uint32_t)n;
}

static void answer_records(struct service *s, const struct read_ask *ask,
                           unsigned char *out)
{
    size_t row = ask_row_bytes(ask->table, ASK_COPY), n = ask->head.n;

    for (size_t k = 0; k < OWNED_AHEAD; k++)
        owned_ask_for(ask->table, s->asked, NULL, k, n);
    for (size_t k = 0; k < n; k++, out += row) {
        owned_ask_for(ask->table, s->asked, NULL, k + OWNED_AHEAD, n);
        uint32_t follows = owned_record(ask->table, s->asked[k], s->row);
        memcpy(out, &follows, sizeof follows);
        memcpy(out + sizeof follows, s->row, row - sizeof follows);
    }
}

/* Some rows at a time, for their memory is asked for ahead. */
static size_t some_of(const struct owned *table, size_t left)
{
    size_t most = OWNED_COPIED / table->shape.width;

    return left < most ? left : most;
}

void ask_answer(struct service *s, const struct read_ask *ask, unsigned char *out)
{
    size_t row = owned_row_bytes(ask->table), width = ask->table->shape.width;

    if (ask->head.kind == ASK_COPY) {
        answer_records(s, ask, out);
        return;
    }
    for (size_t k = 0, n; k < ask->head.n; k += n) {
        n = some_of(ask->table, ask->head.n - k);
        owned_read(ask->table, s->asked + k, NULL, n, s->row);
        for (size_t i = 0; i < n; i++, out += row)
            owned_encode(ask->table, s->row + i * width, out, NULL);
    }
}

void ask_step(struct service *s, const struct read_ask *ask)
{
    size_t row = owned_row_bytes(ask->table), width = ask->table->shape.width, bad = 0;
    const unsigned char *from = ask->gradients;
    uint64_t bad_row = 0;

    for (size_t k = 0, n; k < ask->head.n; k += n) {
        n = some_of(ask->table, ask->head.n - k);
        for (size_t i = 0; i < n; i++, from += row)
            owned_decode(ask->table, from, s->row + i * width);
        bad += owned_push(ask->table, s->asked + k, NULL, n, s->row, ask->head.rate,
                          &bad_row);
    }
    owners_bad(s, ask->table, bad, bad_row);
}
