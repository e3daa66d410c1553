/* SPDX-License-Identifier: MIT */
/* The owner's side. A lane is a receive for what a peer asks; each ask is served in its
 * turn, and its lane opened again. (Over MPI a short message may end before a long one
 * that was sent before it.) A peer that takes no answers is served OWNERS_ANSWERS of
 * them, and then heard no more until it takes one. */
#include "owners/moves.h"

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
    size_t bytes = ask->head.n * ask_row_bytes(ask->table, ask->head.kind);

    if (answer)
        s->free_answers = answer->next;
    else
        answer = make_answer(s);
    if (!answer)
        return service_fail(s, DESCANT_MEMORY, "no memory to answer rank %d", rank);
    answer->op = (struct owners_op){OP_SERVED, answer};
    answer->rank = rank;
    ask_answer(s, ask, answer->rows);
    s->peers[rank].n_answers++;
    owners_count(&s->stats.bytes, bytes);
    return service_send(s, rank, OWNERS_ANSWER, answer->rows, bytes, &answer->op);
}

/* *waits: the slices of some of its rows are about to be here, and it is to be served
 * then. A push of which other rows are of no slice that comes here has lost these
 * (moves.h). */
static bool serve(struct service *s, const struct lane *lane, bool *waits,
                  const char **no_ask)
{
    struct read_ask ask;

    *waits = false;
    owners_count(&s->stats.bytes, lane->bytes);
    if (s->moves && lane->bytes <= ASK_BYTES && lane->bytes >= sizeof ask.head &&
        *lane->message >= ASK_SET)
        return moves_heard(s, lane->rank, lane->message, lane->bytes, no_ask);
    *no_ask = ask_read(s, lane->message, lane->bytes, &ask);
    if (!*no_ask && ask.elsewhere && !ask.early &&
        !(s->moves && ask.head.kind == ASK_PUSH))
        *no_ask = "it asks for a row that is another rank's";
    if (*no_ask)
        return false;
    *waits = ask.early;
    if (ask.early)
        return true;
    if (ask.elsewhere)
        ask_keep_own(s, lane->message, &ask);
    owners_count(&s->stats.served, ask.head.n);
    if (ask.head.kind != ASK_PUSH)
        return answer(s, lane->rank, &ask);
    ask_step(s, &ask);
    return !s->moves || moves_pass_on(s, &ask);
}

bool serve_again(struct service *s, int rank, const char **no_ask)
{
    struct owners_peer *peer = &s->peers[rank];

    while (peer->served < peer->opened) {
        const struct lane *next = &peer->lanes[peer->served % (uint64_t)s->n_lanes];
        bool waits;
        if (!next->heard)
            break;
        if (!serve(s, next, &waits, no_ask))
            return false;
        if (waits)
            break;
        peer->served++;
    }
    return open_lanes(s, rank);
}

bool serve_heard(struct service *s, struct lane *lane, const struct link_ended *ended,
                 const char **no_ask)
{
    lane->heard = true;
    lane->bytes = ended->bytes;
    return serve_again(s, lane->rank, no_ask);
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
