/* SPDX-License-Identifier: MIT */
/* The owner's side. A lane is a receive for what a peer asks; each ask is served in its
 * turn, and its lane opened again. (Over MPI a short message may end before a long one
 * that was sent before it.) A peer that takes no answers is served OWNERS_ANSWERS of
 * them, and then heard no more until it takes one. */
#include "owners/service.h"

#include <math.h>
#include <string.h>

/* Opens those that are free, in their order. */
static bool open_lanes(struct service *s, int rank)
{
    struct owners_peer *peer = &s->peers[rank];

    while (peer->there && peer->opened - peer->served < (uint64_t)s->n_lanes &&
           peer->n_answers < OWNERS_ANSWERS) {
        struct lane *lane = &peer->lanes[peer->opened++ % (uint64_t)s->n_lanes];
        lane->heard = false;
        if (!service_receive(s, rank, OWNERS_ASK, lane->message, ASK_BYTES, &lane->op))
            return false;
    }
    return true;
}

bool serve_open(struct service *s, int rank)
{
    struct owners_peer *peer = &s->peers[rank];
    size_t lanes = (size_t)s->n_lanes;

    if (!peer->lanes) {
        peer->lanes = memory_take(lanes * (sizeof *peer->lanes + ASK_BYTES));
        if (!peer->lanes)
            return service_fail(s, DESCANT_MEMORY,
                                "no memory to hear what rank %d asks for", rank);
    }
    unsigned char *messages = (unsigned char *)(peer->lanes + lanes);
    for (int k = 0; k < s->n_lanes; k++)
        peer->lanes[k] = (struct lane){.op = {OP_HEARD, &peer->lanes[k]}, .rank = rank,
                                       .message = messages + (size_t)k * ASK_BYTES};
    peer->opened = peer->served = 0;
    return open_lanes(s, rank);
}

/* --- an ask is read --- */

struct read_ask {
    struct ask_head head;
    struct owned *table;
    const unsigned char *gradients;
};

/* NULL, or why it is no ask. */
static const char *read_ask(const struct service *s, const unsigned char *message,
                            size_t bytes, struct read_ask *ask)
{
    const struct ask_head *head = &ask->head;

    if (bytes > ASK_BYTES || bytes < sizeof *head)
        return "what it asks is longer than an ask, or shorter than its head";
    memcpy(&ask->head, message, sizeof *head);
    if (head->kind < ASK_FETCH || head->kind > ASK_COPY ||
        head->table >= s->n_tables || !isfinite(head->rate))
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
        if (!owned_has(ask->table, s->asked[k]) ||
            !owned_here(ask->table, s->asked[k]))
            return "it asks for a row that is another rank's";
    }
    ask->gradients = message + sizeof *head + n * id;
    return NULL;
}

static struct answer *make_answer(struct service *s)
{
    struct answer *answer = memory_take(sizeof *answer);

    if (answer) {
        answer->next_made = s->made_answers;
        s->made_answers = answer;
    }
    return answer;
}

static bool answer(struct service *s, int rank, const struct read_ask *ask)
{
    struct answer *answer = s->free_answers;
    size_t row = ask_row_bytes(ask->table, ask->head.kind), bytes = ask->head.n * row;

    if (answer)
        s->free_answers = answer->next;
    else
        answer = make_answer(s);
    if (!answer)
        return service_fail(s, DESCANT_MEMORY, "no memory to answer rank %d", rank);
    answer->op = (struct owners_op){OP_SERVED, answer};
    answer->rank = rank;
    for (size_t k = 0; k < ask->head.n; k++) {
        owned_ask_for(ask->table, s->asked, NULL, k + OWNED_AHEAD, ask->head.n);
        if (ask->head.kind == ASK_COPY) {
            uint32_t follows = owned_record(ask->table, s->asked[k], s->row);
            memcpy(answer->rows + k * row, &follows, sizeof follows);
            memcpy(answer->rows + k * row + sizeof follows, s->row, row - sizeof follows);
            continue;
        }
        owned_read(ask->table, &s->asked[k], NULL, 1, s->row);
        owned_encode(ask->table, s->row, answer->rows + k * row, NULL);
    }
    s->peers[rank].n_answers++;
    owners_count(&s->stats.bytes, bytes);
    return service_send(s, rank, OWNERS_ANSWER, answer->rows, bytes, &answer->op);
}

static bool serve(struct service *s, const struct lane *lane, const char **no_ask)
{
    struct read_ask ask;
    size_t row, bad = 0;
    uint64_t bad_row = 0;

    *no_ask = read_ask(s, lane->message, lane->bytes, &ask);
    if (*no_ask)
        return false;
    owners_count(&s->stats.served, ask.head.n);
    owners_count(&s->stats.bytes, lane->bytes);
    if (ask.head.kind != ASK_PUSH)
        return answer(s, lane->rank, &ask);
    row = owned_row_bytes(ask.table);
    for (size_t k = 0; k < ask.head.n; k++) {
        owned_ask_for(ask.table, s->asked, NULL, k + OWNED_AHEAD, ask.head.n);
        owned_decode(ask.table, ask.gradients + k * row, s->row);
        bad += owned_push(ask.table, &s->asked[k], NULL, 1, s->row, ask.head.rate,
                          &bad_row);
    }
    owners_bad(s, ask.table, bad, bad_row);
    return true;
}

bool serve_heard(struct service *s, struct lane *lane, const struct link_ended *ended,
                 const char **no_ask)
{
    struct owners_peer *peer = &s->peers[lane->rank];

    lane->heard = true;
    lane->bytes = ended->bytes;
    while (peer->served < peer->opened) {
        const struct lane *next = &peer->lanes[peer->served % (uint64_t)s->n_lanes];
        if (!next->heard)
            break;
        if (!serve(s, next, no_ask))
            return false;
        peer->served++;
    }
    return open_lanes(s, lane->rank);
}

bool serve_answered(struct service *s, struct answer *answer)
{
    answer->next = s->free_answers;
    s->free_answers = answer;
    s->peers[answer->rank].n_answers--;
    return open_lanes(s, answer->rank);
}

void serve_fini(struct service *s)
{
    for (struct answer *answer = s->made_answers, *next; answer; answer = next) {
        next = answer->next_made;
        memory_give(answer);
    }
    for (int k = 0; s->peers && k < s->place.size; k++)
        memory_give(s->peers[k].lanes);
}
