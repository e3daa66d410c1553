/* SPDX-License-Identifier: MIT */
/* What an owner does with its slices (moves.h): it copies them to others, gives them
 * away, and answers for those it has given until nobody asks for them any more. */
#include "owners/moves.h"

#include <string.h>

#define AGAIN_NS UINT64_C(50000000)     /* until what was refused is offered again */

enum { MESSAGES = 2 };                  /* of rows, in a turn */

/* --- begin and end --- */

bool moves_init(struct service *s, const struct moves_options *options)
{
    struct moves *m = s->moves = memory_take(sizeof *m);

    if (!m)
        return false;
    m->peers = memory_take_array((size_t)s->place.size, sizeof *m->peers);
    m->records = memory_take(ASK_BYTES);
    m->rows = memory_take(ASK_BYTES);
    m->last = &m->held;
    m->follow_s = options->follow_s;
    m->late = options->late;
    m->sweep = OWNED_SLICES;
    m->plan = true;
    if (!m->peers || !m->records || !m->rows)
        return false;
    /* late: those of the start that have not left will say so */
    for (int k = 0; k < options->n && k < s->place.size; k++)
        m->peers[k] = (struct moves_peer){.share = options->shares[k],
                                          .counts = !options->late};
    m->peers[s->rank] = (struct moves_peer){.share = options->share, .counts = true};
    for (int slice = 0; slice < OWNED_SLICES; slice++) {
        struct moving *of = &m->slices[slice];
        of->from = of->giver = of->says = of->claims = of->early.rank = NOBODY;
        of->to[TO_MOVE].rank = of->to[TO_FOLLOW].rank = of->to[TO_OLD].rank = NOBODY;
        if (s->map.owner[slice] != s->rank)
            continue;
        /* late: another process had it, and who has it now will say so */
        of->owner_is = s->place.generation - options->late;
        s->map.shut[slice] = options->late;
        m->shut += options->late;
    }
    return true;
}

void moves_fini(struct service *s)
{
    struct moves *m = s->moves;

    if (!m)
        return;
    memory_give(m->peers);
    memory_give(m->records);
    memory_give(m->rows);
    memory_give(m);
    s->moves = NULL;
}

static double own_share(const struct service *s)
{
    return atomic_load(&s->moves->leaves) ? 0 : s->moves->peers[s->rank].share;
}

bool moves_come(struct service *s, int rank)
{
    struct moves_entry moved[OWNED_SLICES], open[OWNED_SLICES], unsure[OWNED_SLICES],
        joined[OWNED_SLICES];
    struct moves_peer *peer = &s->moves->peers[rank];
    int n = 0, n_open = 0, n_unsure = 0, n_joined = 0;

    for (int slice = 0; slice < OWNED_SLICES; slice++) {
        const struct moving *of = &s->moves->slices[slice];
        if (of->joined && of->from == rank)
            joined[n_joined++] = moves_entry_of(s, slice);
        bool sure = !s->map.shut[slice] || s->map.owner[slice] == s->rank;
        if (s->map.epoch[slice])
            *(sure ? &moved[n++] : &unsure[n_unsure++]) = moves_entry_of(s, slice);
        if (peer->opens[slice / 64] >> slice % 64 & 1 && s->map.owner[slice] == s->rank)
            open[n_open++] = moves_entry_of(s, slice);
    }
    *peer = (struct moves_peer){.counts = peer->counts, .share = peer->share};
    return moves_say(s, rank, ASK_UNSURE, unsure, n_unsure, 0, 0) &&
           moves_say(s, rank, ASK_MAP, moved, n, (float)own_share(s), s->moves->late) &&
           moves_say(s, rank, ASK_OPEN, open, n_open, 0, 0) &&
           moves_say(s, rank, ASK_FOLLOWED, joined, n_joined, 0, 0);
}

/* --- who is to have what --- */

static bool frozen(const struct service *s)
{
    bool freeze = atomic_load(&s->ends);

    for (int k = 0; k < s->place.size; k++)
        freeze |= s->peers[k].there && s->peers[k].done;
    return freeze && !atomic_load(&s->moves->leaves);
}

/* It is there, and will be. */
static bool takes(const struct service *s, int rank)
{
    const struct owners_peer *peer = &s->peers[rank];

    return peer->there && peer->mapped && !peer->done && s->moves->peers[rank].counts;
}

/* The next rank that is there and has a share, and, where there are others, not the one
 * that is to have the slice. */
static int neighbour(const struct service *s, int but)
{
    const struct moves *m = s->moves;
    int found = NOBODY;

    for (int k = 1; (found == NOBODY || found == but) && k < s->place.size; k++) {
        int rank = (s->rank + k) % s->place.size;
        if (takes(s, rank) && m->peers[rank].share > 0)
            found = rank;
    }
    return found;
}

/* The same rank gets the rows for another reason, too. */
static struct follow *same_as(struct moving *of, int which)
{
    for (int k = 0; k < TO_ALL; k++)
        if (k != which && of->to[k].rank == of->to[which].rank)
            return &of->to[k];
    return NULL;
}

static bool drop(struct service *s, int slice, int which)
{
    struct moving *of = &s->moves->slices[slice];
    struct moves_entry entry = moves_entry_of(s, slice);
    int rank = of->to[which].rank;
    struct follow *same = same_as(of, which);

    if (rank != NOBODY && same && same->state == FOLLOW_ENDS)
        *same = of->to[which];          /* which goes on with the copy */
    of->to[which].rank = NOBODY;
    return rank == NOBODY || same || moves_say(s, rank, ASK_DROP, &entry, 1, 0, 0);
}

/* A replica stays until the next one is there. */
static bool set_follow(struct service *s, int slice, int which, int rank)
{
    struct moving *of = &s->moves->slices[slice];
    struct follow *f = &of->to[which];
    bool stays = which == TO_FOLLOW && rank != NOBODY && f->state == FOLLOW_FOLLOWS;

    if (f->rank == rank)
        return true;
    if (f->rank != NOBODY && stays) {
        if (!drop(s, slice, TO_OLD))
            return false;
        of->to[TO_OLD] = *f;
        f->rank = NOBODY;
    }
    if (!drop(s, slice, which))
        return false;
    *f = (struct follow){.rank = rank};
    struct follow *same = same_as(of, which);
    if (rank != NOBODY && same)         /* it has its rows, or gets them */
        f->state = same->state == FOLLOW_FOLLOWS || same->state == FOLLOW_JOINS
                       ? same->state : FOLLOW_ENDS;
    s->moves->rests = false;
    return rank != NOBODY || which != TO_FOLLOW || drop(s, slice, TO_OLD);
}

static void forget_followers(struct moving *of)
{
    for (int k = 0; k < TO_ALL; k++)
        of->to[k].rank = NOBODY;
}

static bool plan(struct service *s)
{
    struct moves *m = s->moves;
    double shares[OWNED_SLICES] = {0}, sum = 0;
    int target[OWNED_SLICES];
    int n = s->place.size < OWNED_SLICES ? s->place.size : OWNED_SLICES;
    bool good = true, still = frozen(s), moves = !m->holds_now && !still;

    for (int k = 0; k < n; k++) {
        shares[k] = k == s->rank ? own_share(s)
                                 : m->peers[k].counts && !s->peers[k].done
                                       ? m->peers[k].share : 0;
        sum += shares[k];
    }
    atomic_store(&m->stuck, !(sum > 0));
    if (sum > 0)
        owned_map_target(&s->map, shares, n, target);
    for (int slice = 0; good && slice < OWNED_SLICES; slice++) {
        struct moving *of = &m->slices[slice];
        bool settled = of->giver == NOBODY;
        int to = sum > 0 && moves && settled ? target[slice] : NOBODY;
        if (s->map.owner[slice] != s->rank) {
            forget_followers(of);
            continue;
        }
        if (s->map.shut[slice] || of->owed > 0)
            continue;
        to = to != s->rank && to != NOBODY && takes(s, to) ? to : NOBODY;
        int follows = !(m->follow_s > 0) ? NOBODY
                      : still            ? of->to[TO_FOLLOW].rank
                                         : neighbour(s, to);
        good = set_follow(s, slice, TO_FOLLOW, follows) &&
               set_follow(s, slice, TO_MOVE, to);
    }
    m->plan = false;
    return good;
}

/* --- rows that are sent --- */

static size_t most_of(const struct owned *table)
{
    return (ASK_BYTES - sizeof(struct ask_head)) /
           (sizeof(uint64_t) + table->record * sizeof(float));
}

/* m->rows and records. */
static bool send_rows(struct service *s, int rank, int table, size_t n)
{
    const struct owned *of = &s->tables[table];
    struct ask_head head = {.kind = ASK_SET, .n = (uint32_t)n, .table = (uint16_t)table};
    size_t ids = n * sizeof(uint64_t), records = n * of->record * sizeof(float);
    struct ask *ask;

    if (!s->peers[rank].there || n == 0)
        return true;
    ask = moves_ask(s, rank, ASK_SET, sizeof head + ids + records);
    if (!ask)
        return false;
    memcpy(ask->message, &head, sizeof head);
    memcpy(ask->message + sizeof head, s->moves->rows, ids);
    memcpy(ask->message + sizeof head + ids, s->moves->records, records);
    s->moves->queued += ask_room(ask);
    owners_count(&s->stats.moved, n);
    return ask_send(s, ask);
}

static bool has_begun(const struct follow *f)
{
    return f->rank != NOBODY && (f->state == FOLLOW_COPIES || f->state == FOLLOW_ENDS ||
                                 f->state == FOLLOW_FOLLOWS);
}

/* One of them is in that state. */
static bool one_is(const struct moving *of, enum follow_state state)
{
    bool is = false;

    for (int k = 0; k < TO_ALL; k++)
        is |= of->to[k].rank != NOBODY && of->to[k].state == state;
    return is;
}

/* Of those that are the same rank. */
static bool is_first(const struct follow *to, int which)
{
    int first = 0;

    while (to[first].rank != to[which].rank || !has_begun(&to[first]))
        first++;
    return first == which;
}

/* The rows of a slice that have changed, to all that have begun to get it. */
static bool send_changed(struct service *s, int slice)
{
    struct moves *m = s->moves;
    const struct follow *to = m->slices[slice].to;
    bool good = true;

    for (int k = 0; good && k < s->n_tables; k++) {
        size_t at = 0, most = most_of(&s->tables[k]), n = most;
        if (!s->tables[k].parts[slice].dirty)
            continue;
        while (good && n == most) {
            n = owned_part_next(&s->tables[k], slice, true, &at, most, m->rows,
                                m->records);
            for (int i = 0; good && i < TO_ALL; i++)
                if (has_begun(&to[i]) && is_first(to, i))
                    good = send_rows(s, to[i].rank, k, n);
        }
    }
    return good;
}

bool moves_note_changes(struct service *s, int slice)
{
    bool good = true;

    pthread_rwlock_wrlock(&s->gate);
    for (int k = 0; good && k < s->n_tables; k++)
        good = owned_part_follow(&s->tables[k], slice);
    pthread_rwlock_unlock(&s->gate);
    return good || service_fail(s, DESCANT_MEMORY,
                                "no memory to note which rows change");
}

static bool begin(struct service *s, int slice, struct follow *f, bool replica)
{
    struct moves_entry entry = moves_entry_of(s, slice);

    if (!moves_note_changes(s, slice))
        return false;
    *f = (struct follow){.rank = f->rank, .state = FOLLOW_COPIES};
    return moves_say(s, f->rank, ASK_BEGIN, &entry, 1, replica, 0);
}

static bool copy_some(struct service *s, int slice, struct follow *f)
{
    struct moves *m = s->moves;
    struct moves_entry entry = moves_entry_of(s, slice);

    for (int k = 0; k < MESSAGES && f->table < s->n_tables; k++) {
        size_t most = most_of(&s->tables[f->table]);
        size_t n = owned_part_next(&s->tables[f->table], slice, false, &f->at, most,
                                   m->rows, m->records);
        if (!send_rows(s, f->rank, f->table, n))
            return false;
        if (n < most) {
            f->table++;
            f->at = 0;
        }
    }
    if (f->table < s->n_tables)
        return true;
    f->state = FOLLOW_ENDS;
    return send_changed(s, slice) && moves_say(s, f->rank, ASK_COMPLETE, &entry, 1, 0, 0);
}

/* --- a slice is given away --- */

void moves_owe(struct service *s, int slice)
{
    struct moving *of = &s->moves->slices[slice];

    of->owed = 0;
    for (int k = 0; k < s->place.size; k++)
        if (k != s->rank && s->peers[k].there) {
            s->moves->peers[k].owes[slice / 64] |= UINT64_C(1) << slice % 64;
            of->owed++;
        }
}

static void leave(struct service *s, int slice)
{
    s->moves->left += !s->moves->slices[slice].left;
    s->moves->slices[slice].left = true;
    moves_owe(s, slice);
}

bool moves_end_owed(struct service *s, int slice)
{
    struct moving *of = &s->moves->slices[slice];
    int owner = s->map.owner[slice];
    struct moves_entry entry = moves_entry_of(s, slice);

    s->moves->plan |= owner == s->rank;
    if (!of->left || of->owed > 0)
        return true;
    of->left = false;
    s->moves->left--;
    moves_give_part(s, slice);
    return owner == s->rank || moves_say(s, owner, ASK_SETTLED, &entry, 1, 0, 0);
}

/* Copies that are older than its leaving lack what this rank has pushed to its own. */
static void let_copies_age(struct service *s)
{
    double age = 0;

    for (int k = 0; k < s->n_tables; k++)
        age = s->tables[k].shape.age > age ? s->tables[k].shape.age : age;
    if (age > 0)
        atomic_store(&s->copies_from_ns, s->now_ns() + (uint64_t)(age * 1e9));
}

/* The rank that has a whole replica, and goes on with it; `to`: there is none. */
static int replica_of(const struct moving *of, int to)
{
    for (int k = TO_FOLLOW; k < TO_ALL; k++)
        if (of->to[k].rank != NOBODY && of->to[k].state == FOLLOW_FOLLOWS)
            return of->to[k].rank;
    return to;
}

static bool give(struct service *s, int slice)
{
    struct moving *of = &s->moves->slices[slice];
    int to = of->to[TO_MOVE].rank, replica = replica_of(of, to);
    struct moves_entry moved = {(uint16_t)slice, (uint16_t)to, s->map.epoch[slice] + 2,
                                s->peers[to].generation};
    struct moves_entry end = moved;

    end.generation = s->peers[replica].generation;
    pthread_rwlock_wrlock(&s->gate);
    bool good = send_changed(s, slice);
    moves_change_locked(s, &moved, true);
    let_copies_age(s);
    pthread_rwlock_unlock(&s->gate);
    forget_followers(of);
    of->giver = s->rank;
    leave(s, slice);
    return good && moves_say(s, to, ASK_END, &end, 1, 0, replica) &&
           moves_say_all(s, ASK_MOVED, &moved, 1, 0, replica) &&
           moves_say(s, to, ASK_FENCED, &moved, 1, 0, s->rank);
}

bool moves_yield(struct service *s, const struct moves_entry *e)
{
    forget_followers(&s->moves->slices[e->slice]);
    if (!moves_change_to(s, e, false))
        return false;
    let_copies_age(s);
    leave(s, e->slice);
    return moves_say_all(s, ASK_MOVED, e, 1, 0, e->rank);
}

bool moves_fenced(struct service *s, int rank, const struct moves_entry *e)
{
    struct moving *of = &s->moves->slices[e->slice];
    struct moves_entry entry = moves_entry_of(s, e->slice);
    uint64_t *owes = &s->moves->peers[rank].owes[e->slice / 64];
    uint64_t bit = UINT64_C(1) << e->slice % 64;
    bool of_claim = e->rank == s->rank;

    if (!(*owes & bit) || of_claim == of->left)
        return true;
    *owes &= ~bit;
    of->owed--;
    return (of_claim || moves_say(s, entry.rank, ASK_FENCED, &entry, 1, 0, rank)) &&
           moves_end_owed(s, e->slice);
}

/* It is of a gift that has not come yet. */
static bool is_early(struct service *s, int rank, const struct moves_entry *e,
                     enum follow_state state)
{
    struct moving *of = &s->moves->slices[e->slice];

    if (e->epoch <= s->map.epoch[e->slice])
        return false;
    of->early = (struct follow){.rank = rank, .state = state};
    of->early_of = e->epoch;
    return true;
}

bool moves_followed(struct service *s, int rank, const struct moves_entry *e)
{
    struct moving *of = &s->moves->slices[e->slice];
    struct moves_entry entry = moves_entry_of(s, e->slice);
    bool knows = false;

    if (is_early(s, rank, e, FOLLOW_FOLLOWS))
        return true;
    for (int k = 0; k < TO_ALL; k++) {
        struct follow *f = &of->to[k];
        knows |= f->rank == rank;
        if (f->rank == rank && (f->state == FOLLOW_ENDS || f->state == FOLLOW_JOINS))
            f->state = FOLLOW_FOLLOWS;
    }
    s->moves->rests = false;
    if (!knows)
        return moves_say(s, rank, ASK_DROP, &entry, 1, 0, 0);
    return of->to[TO_FOLLOW].rank != rank || of->to[TO_FOLLOW].state != FOLLOW_FOLLOWS ||
           drop(s, e->slice, TO_OLD);
}

void moves_refused(struct service *s, int rank, const struct moves_entry *e)
{
    struct moving *of = &s->moves->slices[e->slice];

    if (is_early(s, rank, e, FOLLOW_REFUSED))
        return;
    for (int k = 0; k < TO_ALL; k++) {
        struct follow *f = &of->to[k];
        if (f->rank != rank || f->state == FOLLOW_FOLLOWS)
            continue;
        if (k == TO_OLD)
            f->rank = NOBODY;
        f->state = FOLLOW_REFUSED;
    }
    s->moves->refused = true;
    s->moves->rests = false;
}

/* Those rows of the ask in s->asked whose slices rank `owner` has now. */
static bool pass_to(struct service *s, const struct read_ask *from, int owner,
                    const bool *goes)
{
    size_t id = row_id_bytes(from->table), row = owned_row_bytes(from->table), n = 0;
    struct ask_head head = from->head;
    struct ask *ask;

    for (size_t k = 0; k < from->head.n; k++)
        n += goes[k] && owned_owner(from->table, s->asked[k]) == owner;
    if (!s->peers[owner].there || n == 0)
        return true;
    ask = moves_ask(s, owner, ASK_PUSH, sizeof head + n * (id + row));
    if (!ask)
        return false;
    head.n = (uint32_t)n;
    memcpy(ask->message, &head, sizeof head);
    unsigned char *ids = ask->message + sizeof head, *gradients = ids + n * id;
    for (size_t k = 0; k < from->head.n; k++) {
        if (!goes[k] || owned_owner(from->table, s->asked[k]) != owner)
            continue;
        memcpy(ids, &s->asked[k], id);
        memcpy(gradients, from->gradients + k * row, row);
        ids += id;
        gradients += row;
    }
    return ask_send(s, ask);
}

/* This rank has given it away, and its owner has not died. */
static bool passes(const struct service *s, int slice)
{
    return s->moves->slices[slice].left && !moves_orphan(s, slice);
}

bool moves_pass_on(struct service *s, const struct read_ask *ask)
{
    bool goes[ASK_BYTES / sizeof(uint32_t)], good = true;

    if (!s->moves->left)
        return true;
    for (size_t k = 0; k < ask->head.n; k++)
        goes[k] = passes(s, owned_slice(ask->table, s->asked[k]));
    for (size_t k = 0; good && k < ask->head.n; k++) {
        int owner = owned_owner(ask->table, s->asked[k]);
        if (!goes[k])
            continue;
        good = pass_to(s, ask, owner, goes);
        for (size_t i = k; i < ask->head.n; i++)
            goes[i] &= owned_owner(ask->table, s->asked[i]) != owner;
    }
    return good;
}

/* --- a turn --- */

/* The next slice that has something to be done. */
static bool go_on(struct service *s, bool *worked)
{
    struct moves *m = s->moves;

    for (int k = 0; k < OWNED_SLICES; k++) {
        int slice = (m->at + k) % OWNED_SLICES;
        struct moving *of = &m->slices[slice];
        if (one_is(of, FOLLOW_JOINS))
            continue;
        for (int i = 0; i < TO_ALL; i++) {
            struct follow *f = &of->to[i];
            if (f->rank == NOBODY || f->state == FOLLOW_ENDS ||
                f->state == FOLLOW_REFUSED ||
                (f->state == FOLLOW_FOLLOWS && i != TO_MOVE))
                continue;
            m->at = slice;
            *worked = true;
            return f->state == FOLLOW_BEGINS   ? begin(s, slice, f, i == TO_FOLLOW)
                   : f->state == FOLLOW_COPIES ? copy_some(s, slice, f)
                                               : give(s, slice);
        }
    }
    m->rests = true;
    return true;
}

/* A part of the slices whose changed rows are due. These go before copies: they may fill
 * the queue beyond its bound, as what has changed is to come in time. */
static bool sweep(struct service *s, uint64_t now_ns)
{
    struct moves *m = s->moves;
    uint64_t due_ns = (uint64_t)(m->follow_s * 0.5e9);

    if (m->sweep == OWNED_SLICES && now_ns - m->swept_ns >= due_ns) {
        m->swept_ns = now_ns;
        m->sweep = 0;
    }
    for (; m->sweep < OWNED_SLICES && m->queued < 2 * MOVES_QUEUED; m->sweep++) {
        const struct moving *of = &m->slices[m->sweep];
        if ((one_is(of, FOLLOW_FOLLOWS) || one_is(of, FOLLOW_ENDS)) &&
            !send_changed(s, m->sweep))
            return false;
    }
    return true;
}

/* Those that were refused are offered again. */
static void offer_again(struct service *s, uint64_t now_ns)
{
    struct moves *m = s->moves;

    m->refused_ns = m->refused && !m->refused_ns ? now_ns : m->refused_ns;
    if (!m->refused || now_ns - m->refused_ns < AGAIN_NS)
        return;
    for (int slice = 0; slice < OWNED_SLICES; slice++)
        for (int k = 0; k < TO_ALL; k++)
            if (m->slices[slice].to[k].state == FOLLOW_REFUSED)
                m->slices[slice].to[k].state = FOLLOW_BEGINS;
    m->refused = m->rests = false;
    m->refused_ns = 0;
}

bool moves_has(const struct service *s)
{
    return owned_slices(&s->map, s->rank) > 0 || s->moves->left > 0 ||
           s->moves->coming > 0;
}

/* What other threads want, and what they are told. */
static bool tell(struct service *s)
{
    struct moves *m = s->moves;
    bool leaves = atomic_load(&m->leaves), holds = atomic_load(&m->holds) > 0;
    bool good = true;

    if (leaves && m->peers[s->rank].share > 0) {
        m->peers[s->rank].share = 0;
        m->plan = true;
        good = moves_say_all(s, ASK_SHARE, NULL, 0, 0, 0);
    }
    if (holds != m->holds_now) {
        m->holds_now = holds;
        m->plan = true;
    }
    atomic_store(&m->still, holds && !m->plan && m->shut == 0);
    atomic_store(&m->away, leaves && !m->shut && !moves_has(s));
    return good;
}

bool moves_turn(struct service *s, uint64_t now_ns, bool *worked)
{
    struct moves *m = s->moves;

    if (m->plan && !plan(s))
        return false;
    if (!tell(s))
        return false;
    offer_again(s, now_ns);
    if (m->follow_s > 0 && !sweep(s, now_ns))
        return false;
    if (!m->rests && m->queued < MOVES_QUEUED && !go_on(s, worked))
        return false;
    if (m->routes) {
        m->routes = false;
        *worked = true;
        if (!route_all(s))
            return false;
    }
    *worked |= m->plan;
    return true;
}

/* --- any thread --- */

void moves_leave(struct service *s)
{
    atomic_store(&s->moves->leaves, true);
    service_wake(s);
}

void moves_hold(struct service *s, bool hold)
{
    atomic_fetch_add(&s->moves->holds, hold ? 1 : -1);
    service_wake(s);
}
