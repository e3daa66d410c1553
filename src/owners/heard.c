/* SPDX-License-Identifier: MIT */
/* Others say that slices come and go (moves.h): this rank follows. */
#include "owners/moves.h"

#include <limits.h>
#include <math.h>
#include <string.h>

/* --- who owns what --- */

/* Its owner is there, and says itself what becomes of it. */
static bool speaks(const struct service *s, int slice)
{
    const struct owners_peer *owner = &s->peers[s->map.owner[slice]];

    return owner->there && owner->mapped &&
           owner->generation == s->moves->owner_is[slice];
}

/* A slice has another owner, as `from` says, who may be unsure. */
static bool learn(struct service *s, int from, const struct moves_entry *e, bool unsure)
{
    struct moving *of = &s->moves->slices[e->slice];
    bool mine = moves_owns(s, e->slice);
    int old = s->map.owner[e->slice];
    uint32_t epoch = s->map.epoch[e->slice];
    bool ours = e->rank == s->rank && e->generation == s->place.generation;
    bool newer = !ours && (e->epoch > epoch || (e->epoch == epoch && e->rank < old));

    if (from == e->rank && e->generation == s->peers[from].generation &&
        (of->says == NOBODY || e->epoch >= of->said)) {
        of->says = from;
        of->said = e->epoch;
    }
    if (speaks(s, e->slice) || !newer || (mine && unsure))
        return moves_settle(s, e->slice);
    if (mine)                           /* it had claimed it */
        return moves_yield(s, e);
    if (!moves_change_to(s, e, unsure))
        return false;
    of->unsure = unsure;
    if (of->from == old)
        moves_give_part(s, e->slice);
    return moves_settle(s, e->slice);
}

/* A rank takes a slice whose owner has died, as it knows. */
static bool hear_claim(struct service *s, int from, const struct moves_entry *e)
{
    struct moving *of = &s->moves->slices[e->slice];
    int owner = s->map.owner[e->slice];
    uint32_t epoch = s->map.epoch[e->slice];
    bool mine = moves_owns(s, e->slice);

    if (mine && e->epoch > epoch)
        return service_fail(s, DESCANT_ENDED, "rank %d has taken the rows of this rank, "
                            "which the others have taken for dead", from);
    if (e->epoch == epoch && from < owner)      /* which has claimed it, too */
        return mine ? moves_yield(s, e) : moves_change_to(s, e, false);
    if (of->claims == NOBODY || e->epoch > of->claimed ||
        (e->epoch == of->claimed && from < of->claims)) {
        of->claims = from;
        of->claimed = e->epoch;
    }
    if (e->epoch == epoch + 1 && owner != s->rank && !s->peers[owner].there)
        return moves_change_to(s, e, false);    /* it may never have come here */
    if (e->epoch == epoch + 1 && speaks(s, e->slice) && !service_lose(s, owner))
        return false;
    return moves_settle(s, e->slice);
}

/* This rank is the replica of the slice, and goes on with it, if it has all of it. An
 * owner that is not there yet cannot hear the answer, and waits for none (hear_end). One
 * that has died before it was heard of leaves the slice to this rank. */
static bool join(struct service *s, int from, const struct moves_entry *e, bool changed)
{
    struct moving *of = &s->moves->slices[e->slice];
    bool there = s->peers[e->rank].there, has = of->from == from && of->complete;

    if (!changed || !has || (!there && !moves_orphan(s, e->slice)))
        return moves_say(s, e->rank, ASK_REFUSED, e, 1, 0, 0);
    moves_comes(s, e->slice, e->rank);
    of->complete = of->joined = true;
    of->begun = e->epoch;
    return moves_orphan(s, e->slice) || moves_say(s, e->rank, ASK_FOLLOWED, e, 1, 0, 0);
}

/* Its giver is the sender; the rank stops to ask there. */
static bool hear_moved(struct service *s, int from, const struct moves_entry *e,
                       int replica)
{
    struct moving *of = &s->moves->slices[e->slice];
    bool yields = e->epoch == s->map.epoch[e->slice] && s->map.owner[e->slice] == from;
    bool changes = e->rank != s->rank && (e->epoch > s->map.epoch[e->slice] || yields);

    of->says = of->says == from ? NOBODY : of->says;
    of->claims = of->claims == from ? NOBODY : of->claims;
    if (changes) {
        if (!moves_change_to(s, e, true))
            return false;
        of->giver = from;
    }
    if (replica == s->rank && e->rank != s->rank && !join(s, from, e, changes))
        return false;
    if (of->from == from && e->rank != s->rank)
        moves_give_part(s, e->slice);
    return moves_say(s, from, ASK_FENCE, e, 1, 0, 0) && moves_settle(s, e->slice);
}

static bool hear_open(struct service *s, int from, const struct moves_entry *e)
{
    return s->map.owner[e->slice] != from || s->map.epoch[e->slice] != e->epoch ||
           moves_shut(s, e->slice, false);
}

static bool hear_fenced(struct service *s, const struct moves_entry *e, int of)
{
    if (s->map.owner[e->slice] != s->rank || of >= s->place.size)
        return true;
    if (of == s->rank) {
        s->moves->plan = true;
        return moves_shut(s, e->slice, false);
    }
    if (!s->peers[of].there)
        s->moves->peers[of].opens[e->slice / 64] |= UINT64_C(1) << e->slice % 64;
    return moves_say(s, of, ASK_OPEN, e, 1, 0, 0);
}

/* --- rows that come --- */

/* There is no memory for a slice that was to come: this rank wants no more. */
static bool wants_no_more(struct service *s)
{
    struct moves_peer *own = &s->moves->peers[s->rank];

    if (owned_slices(&s->map, s->rank) == OWNED_SLICES)
        return true;
    own->share = moves_full(s);
    s->moves->plan = true;
    return moves_say_all(s, ASK_SHARE, NULL, 0, (float)own->share, 0);
}

static bool hear_begin(struct service *s, int from, const struct moves_entry *e,
                       bool replica, int number)
{
    struct moving *of = &s->moves->slices[e->slice];

    if (e->epoch < s->map.epoch[e->slice] ||    /* it has given it away since then */
        (of->from != NOBODY && e->epoch < of->begun))
        return moves_say(s, from, ASK_REFUSED, e, 1, 0, number);
    of->joined = false;
    of->begun = e->epoch;
    of->number = number;
    if (of->from == from)               /* all that it has, or newer, comes again */
        return true;
    if (of->from != NOBODY)
        moves_give_part(s, e->slice);
    if (moves_serves(s, e->slice) || atomic_load(&s->moves->leaves))
        return moves_say(s, from, ASK_REFUSED, e, 1, 0, number);
    if (moves_take_part(s, e->slice)) {
        moves_comes(s, e->slice, from);
        return true;
    }
    if (!s->moves->said)
        log_say(&s->log, DESCANT_WARNING, "no memory for more rows of tables, of which "
                "rank %d has %s", from, replica ? "no replica here now" : "to keep some");
    s->moves->said = true;
    return moves_say(s, from, ASK_REFUSED, e, 1, 0, number) &&
           (replica || wants_no_more(s));
}

/* n rows of a table, their slots, and their records. */
static const char *set_rows(struct service *s, int from, struct owned *table, size_t n,
                            const unsigned char *rows)
{
    size_t record = table->record * sizeof(float);
    const unsigned char *slots = rows + n * sizeof(uint64_t);
    const unsigned char *records = rows + n * moves_row_bytes(table);
    uint64_t row;
    uint32_t slot = 0;

    for (size_t k = 0; k < n; k++) {
        memcpy(&row, rows + k * sizeof row, sizeof row);
        if (table->shape.grows)
            memcpy(&slot, slots + k * sizeof slot, sizeof slot);
        if (!owned_has(table, row) || slot >= table->per_slice)
            return "it sends a row that there is not, or to no slot that there is";
        if (s->moves->slices[owned_slice(table, row)].from != from)
            continue;           /* there was no memory for it */
        memcpy(s->row, records + k * record, record);
        owned_part_set(table, row, slot, s->row);
    }
    return NULL;
}

static const char *hear_rows(struct service *s, int from, const unsigned char *message,
                             size_t bytes)
{
    const unsigned char *at = message + sizeof(struct ask_head), *end = message + bytes;
    struct ask_head head;
    struct moves_part part;
    const char *why = NULL;

    memcpy(&head, message, sizeof head);
    for (uint32_t k = 0; !why && k < head.n; k++) {
        if ((size_t)(end - at) < sizeof part)
            return "it sends fewer parts than it names";
        memcpy(&part, at, sizeof part);
        at += sizeof part;
        if (part.table >= (uint32_t)s->n_tables)
            return "it sends rows of no table that there is";
        struct owned *table = &s->tables[part.table];
        size_t each = moves_row_bytes(table) + table->record * sizeof(float);
        if (part.n == 0 || part.n > (size_t)(end - at) / each)
            return "it sends another number of rows than it names";
        why = set_rows(s, from, table, part.n, at);
        at += part.n * each;
    }
    return why || at == end ? why : "it sends more than it names";
}

static bool hear_complete(struct service *s, int from, const struct moves_entry *e)
{
    struct moving *of = &s->moves->slices[e->slice];

    if (of->from != from)
        return true;
    of->complete = true;
    return moves_say(s, from, ASK_FOLLOWED, e, 1, 0, of->number);
}

/* The slice is this rank's. Its callers may use it when their own FENCE has come. Its
 * replica is to join, if it is the process that the giver knew, and has met this rank: it
 * has, once its MAP has come. */
static bool hear_end(struct service *s, int from, const struct moves_entry *e,
                     int replica, const char **no_ask)
{
    struct moving *of = &s->moves->slices[e->slice];
    struct moves_entry own = *e;

    if (of->from != from || !of->complete || e->epoch <= s->map.epoch[e->slice] ||
        e->rank != s->rank || replica >= s->place.size) {
        *no_ask = "it gives a slice that has not come";
        return false;
    }
    own.generation = s->place.generation;
    moves_comes(s, e->slice, NOBODY);
    bool early = of->early == replica && of->early_of == e->epoch;
    const struct owners_peer *other = &s->peers[replica];
    bool joins = replica != s->rank && other->there && other->mapped &&
                 other->generation == e->generation && (!early || of->early_joins);
    of->early = NOBODY;
    memset(of->to, 0, sizeof of->to);
    if (joins)
        of->to[0] = (struct follow){.rank = replica, .roles = TO_OLD,
                                    .state = early ? FOLLOW_FOLLOWS : FOLLOW_JOINS};
    if (joins && !moves_note_changes(s, e->slice))
        return false;
    if (!moves_change_to(s, &own, true))        /* shut: serves nothing */
        return false;
    of->giver = from;
    s->moves->heard = true;
    return moves_say_all(s, ASK_OWN, &own, 1, 0, 0);
}

/* --- all of these --- */

static bool hear_one(struct service *s, int from, const struct ask_head *head,
                     const struct moves_entry *e, const char **no_ask)
{
    struct moving *of = &s->moves->slices[e->slice];
    bool own_word = head->kind == ASK_OWN || head->kind == ASK_CLAIM;

    if (own_word && e->rank != from) {
        *no_ask = "it says that it has a slice of another rank";
        return false;
    }
    switch ((int)head->kind) {
    case ASK_UNSURE:
    case ASK_MAP:
    case ASK_OWN:
        return learn(s, from, e, head->kind == ASK_UNSURE);
    case ASK_CLAIM:
        return hear_claim(s, from, e) && moves_say(s, from, ASK_FENCE, e, 1, 0, 0);
    case ASK_BEGIN:
        return hear_begin(s, from, e, head->rate > 0, (int)head->of);
    case ASK_COMPLETE:
        return hear_complete(s, from, e);
    case ASK_FOLLOWED:
        return moves_followed(s, from, e, (int)head->of);
    case ASK_REFUSED:
        moves_refused(s, from, e, (int)head->of);
        break;
    case ASK_DROP:
        if (of->from == from)
            moves_give_part(s, e->slice);
        break;
    case ASK_END:
        return hear_end(s, from, e, (int)head->of, no_ask);
    case ASK_MOVED:
        return hear_moved(s, from, e, (int)head->of);
    case ASK_FENCE:
        return moves_fenced(s, from, e);
    case ASK_FENCED:
        return hear_fenced(s, e, (int)head->of);
    case ASK_OPEN:
        return hear_open(s, from, e);
    case ASK_SETTLED:
        of->giver = of->giver == from ? NOBODY : of->giver;
        s->moves->plan = true;
        break;
    default:
        *no_ask = "it says what this version does not know";
    }
    return *no_ask == NULL;
}

/* The peer's share, and that it has said which slices have moved. */
static bool hear_share(struct service *s, int from, const struct ask_head *head)
{
    struct moves_peer *peer = &s->moves->peers[from];
    bool first = head->kind == ASK_MAP && !s->peers[from].mapped;

    peer->share = (double)head->rate;
    peer->counts = true;
    s->moves->plan = true;
    if (!first)
        return true;
    s->peers[from].mapped = true;
    return moves_met(s, from, head->of != 0) && route_waiting(s, from);
}

bool moves_heard(struct service *s, int rank, const unsigned char *message, size_t bytes,
           const char **no_ask)
{
    struct ask_head head;
    struct moves_entry e;
    bool shares, good = true;

    memcpy(&head, message, sizeof head);
    if (head.kind == ASK_SET) {
        *no_ask = hear_rows(s, rank, message, bytes);
        return *no_ask == NULL;
    }
    shares = head.kind == ASK_MAP || head.kind == ASK_SHARE;
    bool numbered = head.kind == ASK_BEGIN || head.kind == ASK_FOLLOWED ||
                    head.kind == ASK_REFUSED;
    if (head.n > OWNED_SLICES || bytes != sizeof head + head.n * sizeof e ||
        head.of > (numbered ? INT_MAX : OWNED_SLICES) ||
        (shares && !(head.rate >= 0 && head.rate <= 1e9f)))
        *no_ask = "it says of slices what cannot be";
    for (size_t k = 0; !*no_ask && good && k < head.n; k++) {
        memcpy(&e, message + sizeof head + k * sizeof e, sizeof e);
        if (e.slice >= OWNED_SLICES || e.rank >= s->place.size ||
            e.rank >= OWNED_SLICES || e.epoch > UINT32_MAX - 8 ||
            e.generation > INT64_MAX)
            *no_ask = "it names no slice or rank that there is";
        else
            good = hear_one(s, rank, &head, &e, no_ask);
    }
    if (!*no_ask && good && shares)
        good = hear_share(s, rank, &head);
    return !*no_ask && good;
}
