/* SPDX-License-Identifier: MIT */
/* Rounds of rows, as rank 0 leads them, also when its trainer has left: who leads each host, who
 * has given a part, when the round closes, and whether all take it. rows.c has the words. */
#include "ranks/check.h"

/* Rank 0's, of each rank. */
struct rows_peer {
    int host;
    bool leads, given, called, seated, has, bad;
    uint64_t bytes;
};

struct ranks_rows_lead {
    struct rows_peer *peers;        /* (size) */
    struct rows_seat *closing;      /* (hosts) */
    bool closed;
};

bool ranks_rows_lead_init(struct ranks *m)
{
    struct ranks_rows_lead *rows = m->rows_lead = memory_take(sizeof *rows);

    if (!rows)
        return false;
    rows->peers = memory_take_array((size_t)m->place.size, sizeof *rows->peers);
    rows->closing = memory_take_array((size_t)m->place.hosts, sizeof *rows->closing);
    return rows->peers && rows->closing;
}

void ranks_rows_lead_fini(struct ranks *m)
{
    if (!m->rows_lead)
        return;
    memory_give(m->rows_lead->peers);
    memory_give(m->rows_lead->closing);
    memory_give(m->rows_lead);
}

static void undo_or_take(struct ranks *m)
{
    struct ranks_rows_lead *rows = m->rows_lead;
    uint32_t bad = 0;

    for (int k = 0; k < m->place.size; k++)
        bad |= rows->peers[k].seated && rows->peers[k].bad;
    rows->closed = false;
    for (int k = 0; k < m->place.size; k++) {
        struct rows_peer *peer = &rows->peers[k];
        if (!peer->seated)
            continue;
        peer->seated = false;
        peer->given = bad && !peer->bad;
        ranks_tell(m, k, (struct ranks_word){.what = WORD_ROWS_TAKE, .bad = bad}, NULL, 0);
    }
}

static void close_rows(struct ranks *m)
{
    struct ranks_rows_lead *rows = m->rows_lead;
    struct ranks_word word = {.what = WORD_ROWS_GO};

    for (int k = 0; k < m->place.size; k++) {
        struct rows_peer *peer = &rows->peers[k];
        peer->seated = peer->leads;
        peer->has = peer->bad = peer->called = false;
        if (peer->leads)
            rows->closing[word.seats++] = (struct rows_seat){.rank = k, .bytes = peer->bytes};
    }
    rows->closed = true;
    for (uint32_t i = 0; i < word.seats; i++)
        ranks_tell(m, rows->closing[i].rank, word, rows->closing,
                 word.seats * sizeof *rows->closing);
}

static void call_others(struct ranks *m)
{
    for (int k = 0; k < m->place.size; k++) {
        struct rows_peer *peer = &m->rows_lead->peers[k];
        if (!peer->leads || peer->given || peer->called)
            continue;
        peer->called = true;
        ranks_tell(m, k, (struct ranks_word){.what = WORD_ROWS_CALL}, NULL, 0);
    }
}

static void turn(struct ranks *m)
{
    const struct rows_peer *peers = m->rows_lead->peers;
    int leaders = 0, given = 0;

    for (int k = 0; k < m->place.size && m->rows_lead->closed; k++)
        if (peers[k].seated && !peers[k].has)
            return;
    if (m->rows_lead->closed)
        undo_or_take(m);
    for (int k = 0; k < m->place.size; k++) {
        leaders += peers[k].leads;
        given += peers[k].leads && peers[k].given;
    }
    if (given && given == leaders)
        close_rows(m);
    else if (given)
        call_others(m);
}

static void find_heir(struct ranks *m, int from)
{
    struct rows_peer *peers = m->rows_lead->peers;
    int host = peers[from].host;

    peers[from].host = -1;
    if (!peers[from].leads)
        return;
    peers[from].leads = peers[from].given = false;
    for (int k = 0; k < m->place.size; k++)
        if (peers[k].host == host) {
            peers[k].leads = true;
            ranks_tell(m, k, (struct ranks_word){.what = WORD_LEAD}, NULL, 0);
            return;
        }
}

void ranks_rows_lead_hear(struct ranks *m, int from, const struct ranks_word *word)
{
    struct rows_peer *peer = m->rows_lead ? &m->rows_lead->peers[from] : NULL;

    if (!peer)
        return;
    switch ((enum ranks_what)word->what) {
    case WORD_HELLO:
        peer->host = word->host;
        peer->leads = word->host == from;
        return;
    case WORD_ROWS:
        peer->given = true;
        peer->bytes = word->n;
        break;
    case WORD_ROWS_HAVE:
        peer->has = true;
        peer->bad = word->bad;
        break;
    default:
        find_heir(m, from);
    }
    turn(m);
}

void ranks_rows_lead_facts(const struct ranks *m, int from, struct word_facts *facts)
{
    const struct ranks_rows_lead *rows = m->rows_lead;
    const struct rows_peer *peer = &rows->peers[from];

    word_allow(facts, WORD_ROWS, peer->leads && !peer->given);
    word_allow(facts, WORD_ROWS_HAVE, rows->closed && peer->seated && !peer->has);
}

bool ranks_rows_closed(const struct ranks *m)
{
    return m->rows_lead && m->rows_lead->closed;
}

