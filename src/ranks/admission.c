/* SPDX-License-Identifier: MIT */
/* The coordinator admits ranks. Each says HELLO and sends its manifest.
 *
 *   fixed link   the group forms once all ranks have said HELLO, their manifests are the
 *                same, and each has begun its first state
 *   founding     where ranks come and go, rank 0 or the hub founds epoch 1 once as many
 *                ranks as are to found the job have come with the same manifest, where
 *                tables have owners only the first ones by number
 *   newcomers    a rank that comes later is heard by the ledger once its manifest is
 *                the same and it has the rows
 *
 * Before the job has begun a manifest that differs ends it for all; later the newcomer
 * alone is turned away. */
#include "ranks/lead.h"

#include <inttypes.h>
#include <string.h>

/* A manifest that differs ends the job for all before it has begun; later the rank alone
 * fails. */
static void turn_away(struct ranks *m, int rank, const char *text)
{
    struct ranks_word word = {.what = WORD_FAIL, .status = DESCANT_MISMATCH};

    if (m->place.fixed || (!m->founded && m->founders <= m->place.size)) {
        ranks_lead_fail(m, DESCANT_MISMATCH, text);
        return;
    }
    m->lead->peers[rank].compared = false;
    log_say(&m->f.log, DESCANT_WARNING, "turned away: %s", text);
    ranks_tell(m, rank, word, text, strlen(text) + 1);
}

/* Lets the ledger hear a newcomer's HERE once the newcomer's manifest is the same and it
 * has the rows. */
void ranks_admission_admit(struct ranks *m, int rank)
{
    struct lead_peer *peer = &m->lead->peers[rank];
    struct ranks_word *here = peer->here;

    if (!here || !peer->compared || !ranks_rows_lead_admits(m, rank))
        return;
    peer->here = NULL;
    ranks_members_hear(m, rank, here);
    memory_give(here);
}

static void compare(struct ranks *m, int rank)
{
    struct lead_peer *peer = &m->lead->peers[rank];
    struct differing d;
    char text[RANKS_TEXT];

    peer->compared = true;
    if (m->manifest && manifests_differ(peer->manifest, m->manifest, &d)) {
        snprintf(text, sizeof text, "rank %d (%s) has \"%.*s\", rank %d (%s) \"%.*s\"",
                 rank, ranks_host_name(m, rank), d.n[0], d.text[0], m->f.rank,
                 ranks_host_name(m, m->f.rank), d.n[1], d.text[1]);
        turn_away(m, rank, text);
    }
    memory_give(peer->manifest);
    peer->manifest = NULL;
    m->ledger_moved = true;
    ranks_admission_admit(m, rank);
}

/* A hub that has not started keeps what has come until it has. */
static void manifest_came(struct ranks *m, struct ranks_op *op,
                          const struct link_ended *ended)
{
    struct lead_peer *peer = &m->lead->peers[op->rank];

    op->busy = false;
    if (ended->failed) {
        memory_give(peer->manifest);
        peer->manifest = NULL;
    } else if (m->f.rank == m->hub && !m->started) {
        peer->waits = true;
    } else {
        compare(m, op->rank);
    }
}

void ranks_admission_started(struct ranks *m)
{
    for (int k = 0; m->lead && k < m->place.size; k++) {
        if (m->lead->peers[k].waits)
            compare(m, k);
        m->lead->peers[k].waits = false;
    }
}

const char *ranks_admission_manifest(const struct ranks *m)
{
    for (int k = 0; k < m->place.size; k++)
        if (m->lead->peers[k].waits)
            return m->lead->peers[k].manifest;
    return NULL;
}

static void hear_hello(struct ranks *m, int from, const struct ranks_word *word)
{
    struct lead_peer *peer = &m->lead->peers[from];
    size_t bytes = word->manifest_bytes;

    peer->hello = true;
    peer->threads = word->threads;
    peer->host = word->host;
    peer->local_rank = word->local_rank;
    peer->compared = from == m->f.rank;
    if (peer->compared)
        return;
    if (peer->manifest) {
        ranks_refuse(m, from, "HELLO twice");
        return;
    }
    peer->manifest = memory_take(bytes + 1);
    peer->manifest_op =
        (struct ranks_op){.ended = manifest_came, .rank = from, .even_failed = true};
    if (!peer->manifest)
        ranks_lead_fail(m, DESCANT_MEMORY, "no memory for the lists of segments");
    else
        ranks_receive_op(m, &peer->manifest_op, peer->manifest, bytes, TAG_MANIFEST);
}

/* Where ranks come and go: founds epoch 1 of the ranks that have come. Where the first
 * ranks are to found it, others that are here become members after them. */
void ranks_admission_found(struct ranks *m)
{
    struct ranks_word word = {.what = WORD_FORM};
    int n = 0, may = m->place.size;

    if (m->numbered && m->founders < may)
        may = m->founders;
    memset(m->list, 0, (size_t)m->place.size * sizeof *m->list);
    for (int k = 0; k < may; k++)
        if (k == m->f.rank || (m->lead->peers[k].compared && m->peers[k].generation)) {
            m->list[k].generation =
                k == m->f.rank ? m->place.generation : m->peers[k].generation;
            m->entries[n++] =
                (struct ranks_entry){.rank = k, .generation = m->list[k].generation};
        }
    if (n < m->founders)
        return;
    word.seats = (uint32_t)n;
    for (int k = 0; k < m->place.size; k++)
        if (m->list[k].generation && k != m->f.rank)
            ranks_tell(m, k, word, m->entries, word.seats * sizeof *m->entries);
    ranks_members_form(m);
}

/* Where ranks come and go the group is there once all members have arrived once. */
static bool form_epoch(struct ranks *m)
{
    struct ledger_gathering g = ledger_gathering(m->ledger, NULL);

    m->lead->formed = ledger_view(m->ledger).held.number > 0 || g.arrived == g.members;
    return m->lead->formed;
}

/* True once the group is there. */
bool ranks_admission_form(struct ranks *m)
{
    struct ranks_lead *lead = m->lead;
    char text[RANKS_TEXT];

    if (!m->place.fixed)
        return form_epoch(m);
    for (int k = 0; lead->n_left && k < m->place.size; k++)
        if (lead->peers[k].left) {
            snprintf(text, sizeof text, "rank %d (%s) has left before the start", k,
                     ranks_host_name(m, k));
            ranks_lead_fail(m, DESCANT_TIMEOUT, text);
            return false;
        }
    if (ledger_gathering(m->ledger, NULL).arrived < m->place.size)
        return false;
    for (int k = 0; k < m->place.size; k++)
        if (!lead->peers[k].compared)
            return false;
    lead->formed = true;
    lead->epoch++;
    return true;
}

/* Whether the place that a HELLO claims is another rank's: the ranks of a host have
 * places in the order of their ranks, and one of them is the first. */
static bool place_is_taken(const struct ranks *m, int from, const struct ranks_word *word)
{
    const struct lead_peer *peers = m->lead->peers;
    int hosts = 0;

    for (int k = 0; k < m->place.size; k++) {
        if (!peers[k].hello)
            continue;
        hosts += peers[k].local_rank == 0;
        bool before = peers[k].local_rank < word->local_rank,
             after = peers[k].local_rank > word->local_rank;
        if (peers[k].host == word->host && !(k < from ? before : after))
            return true;
    }
    return word->local_rank == 0 && hosts >= m->place.hosts;
}

/* The word is not checked yet, so its numbers are only compared here. */
void ranks_admission_facts(const struct ranks *m, int from, const struct ranks_word *word,
                      struct word_facts *facts)
{
    const struct lead_peer *peer = &m->lead->peers[from];

    size_t more = m->f.hub && !m->started ? CHECK_FIRST : CHECK_MANIFEST;
    facts->manifest = more + (m->manifest ? strlen(m->manifest) + 1 : 0);
    if (!m->place.fixed) {
        facts->turns |= 1U << WORD_HELLO | 1U << WORD_HERE;
        return;
    }
    facts->turns |= (uint32_t)!peer->left << WORD_LEAVE |
                    (uint32_t)(!peer->left && !peer->hello) << WORD_HELLO |
                    (uint32_t)peer->hello << WORD_HERE;
    facts->place_taken = word->what == WORD_HELLO && place_is_taken(m, from, word);
}

void ranks_admission_hear(struct ranks *m, int from, const struct ranks_word *word)
{
    m->ledger_moved = true;
    if (word->what == WORD_HELLO)
        hear_hello(m, from, word);
    else
        ranks_lead_hear_leave(m, from);
}

/* Whether a coordinator has admitted the rank to a list that this rank has accepted: that
 * list may need the rank's promise to stand. */
static bool was_admitted(const struct ranks *m, int rank, uint64_t generation)
{
    int coordinator;
    bool accepted = ledger_accepted(m->ledger, m->list, &coordinator);

    return accepted && m->list[rank].generation == generation;
}

bool ranks_admission_admits(struct ranks *m, int from, const struct ranks_word *word)
{
    struct lead_peer *peer = &m->lead->peers[from];
    bool newcomer = m->founded && m->members[from] != word->ledger.generation;

    if (m->place.fixed || from == m->f.rank || !newcomer)
        return true;
    if (peer->taken != word->n) {
        peer->taken = word->n;
        ledger_await(m->ledger, from, true);
        ranks_rows_lead_moved(m, from);
        m->lead->held_ns = m->lead->held_ns ? m->now_ns : 0;
    }
    if (word->ledger.epoch < ledger_view(m->ledger).epoch ||
        (peer->compared && (ranks_rows_lead_admits(m, from) ||
                            was_admitted(m, from, word->ledger.generation))))
        return true;
    if (!word->seats && !peer->here)
        peer->here = memory_take(sizeof *word);
    if (!word->seats && peer->here)     /* else the rank says HERE again */
        *peer->here = *word;
    return false;
}

void ranks_admission_gone(struct ranks *m, int rank)
{
    struct lead_peer *peer = &m->lead->peers[rank];

    peer->hello = peer->compared = false;
    if (peer->waits) {
        memory_give(peer->manifest);
        peer->manifest = NULL;
        peer->waits = false;
    }
    memory_give(peer->here);
    peer->here = NULL;
    ledger_await(m->ledger, rank, true);
    peer->void_seq = 0;
    peer->owes_void = peer->owes_call = false;
    m->ledger_moved = true;
    ranks_rows_lead_gone(m, rank);
}
