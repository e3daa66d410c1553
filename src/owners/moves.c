/* SPDX-License-Identifier: MIT */
/* What an owner does with its slices (moves.h): it copies them to others, gives them
 * away, and answers for those it has given until nobody asks for them any more. */
#include "owners/moves.h"

#include <string.h>

#define CLAIM_NS UINT64_C(10000000000)  /* for a slice without an owner */
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
    m->sweep = OWNED_SLICES;
    m->plan = true;
    if (!m->peers || !m->records || !m->rows)
        return false;
    for (int k = 0; k < options->n && k < s->place.size; k++)
        m->peers[k] = (struct moves_peer){.share = options->shares[k], .counts = true};
    m->peers[s->rank] = (struct moves_peer){.share = options->share, .counts = true};
    for (int slice = 0; slice < OWNED_SLICES; slice++) {
        struct moving *of = &m->slices[slice];
        of->from = of->giver = of->says = of->claims = NOBODY;
        of->to[TO_MOVE].rank = of->to[TO_FOLLOW].rank = of->to[TO_OLD].rank = NOBODY;
        if (options->late && s->map.owner[slice] == s->rank) {
            s->map.shut[slice] = true;  /* another one has it, and will say so */
            m->shut++;
        }
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

/* --- words --- */

static struct ask *take(struct service *s, int rank, enum ask_kind kind, size_t bytes)
{
    struct ask *ask = ask_take(s, bytes, 0);

    if (!ask) {
        service_fail(s, DESCANT_MEMORY, "no memory for slices of tables that move");
        return NULL;
    }
    ask->kind = kind;
    ask->owner = rank;
    ask->batch = NULL;
    ask->places = NULL;
    ask->n = 0;
    ask->row_bytes = 0;
    ask->bytes = bytes;
    atomic_fetch_add(&s->queued, ask_room(ask));
    s->n_asks++;
    return ask;
}

bool moves_say(struct service *s, int rank, int kind, const struct moves_entry *entries,
               int n, float rate, int of)
{
    struct ask_head head = {.kind = (uint8_t)kind, .n = (uint32_t)n, .rate = rate,
                            .of = (uint32_t)of};
    size_t bytes = (size_t)n * sizeof *entries;

    if (!s->peers[rank].there)
        return true;
    struct ask *ask = take(s, rank, ASK_KINDS, sizeof head + bytes);
    if (!ask)
        return false;
    memcpy(ask->message, &head, sizeof head);
    if (n)
        memcpy(ask->message + sizeof head, entries, bytes);
    return ask_send(s, ask);
}

bool moves_say_all(struct service *s, int kind, const struct moves_entry *entries, int n,
                   float rate)
{
    bool good = true;

    for (int k = 0; good && k < s->place.size; k++)
        if (k != s->rank)
            good = moves_say(s, k, kind, entries, n, rate, 0);
    return good;
}

static struct moves_entry entry_of(const struct service *s, int slice, int rank)
{
    return (struct moves_entry){(uint16_t)slice, (uint16_t)rank, s->map.epoch[slice]};
}

static double own_share(const struct service *s)
{
    return atomic_load(&s->moves->leaves) ? 0 : s->moves->peers[s->rank].share;
}

bool moves_come(struct service *s, int rank)
{
    struct moves_entry moved[OWNED_SLICES], open[OWNED_SLICES];
    struct moves_peer *peer = &s->moves->peers[rank];
    int n = 0, n_open = 0;

    for (int slice = 0; slice < OWNED_SLICES; slice++) {
        int owner = s->map.owner[slice];
        if (s->map.epoch[slice])
            moved[n++] = entry_of(s, slice, owner);
        if (peer->opens[slice / 64] >> slice % 64 & 1 && owner == s->rank)
            open[n_open++] = entry_of(s, slice, owner);
    }
    *peer = (struct moves_peer){.counts = peer->counts, .share = peer->share};
    return moves_say(s, rank, ASK_MAP, moved, n, (float)own_share(s), 0) &&
           moves_say(s, rank, ASK_OPEN, open, n_open, 0, 0);
}

/* --- the map --- */

static void shut_locked(struct service *s, int slice, bool shut)
{
    s->moves->shut += shut - s->map.shut[slice];
    s->map.shut[slice] = shut;
    s->map.version++;
    s->moves->routes = true;
}

/* Before this rank's callers may use a slice themselves, what they have posted of it is
 * served: they read their own pushes. */
static bool serve_posted(struct service *s, int slice)
{
    return s->map.owner[slice] != s->rank || s->map.shut[slice] ||
           (route_all(s) && route_inbox(s));
}

bool moves_shut(struct service *s, int slice, bool shut)
{
    if (s->map.shut[slice] == shut)
        return true;
    pthread_rwlock_wrlock(&s->gate);
    shut_locked(s, slice, shut);
    bool good = serve_posted(s, slice);
    pthread_rwlock_unlock(&s->gate);
    return good;
}

static void change_locked(struct service *s, int slice, int owner, uint32_t epoch,
                          bool shut)
{
    struct moving *of = &s->moves->slices[slice];

    owned_map_change(&s->map, slice, owner, epoch);
    shut_locked(s, slice, shut || (s->peers[owner].gone && !s->peers[owner].done));
    of->giver = NOBODY;
    of->orphan = s->peers[owner].gone && !s->peers[owner].done;
    s->moves->plan = true;
}

bool moves_change(struct service *s, int slice, int owner, uint32_t epoch, bool shut)
{
    pthread_rwlock_wrlock(&s->gate);
    change_locked(s, slice, owner, epoch, shut);
    bool good = serve_posted(s, slice);
    pthread_rwlock_unlock(&s->gate);
    return good;
}

bool moves_take_part(struct service *s, int slice)
{
    bool good = true;

    pthread_rwlock_wrlock(&s->gate);
    for (int k = 0; good && k < s->n_tables; k++)
        good = owned_part_take(&s->tables[k], slice);
    for (int k = 0; !good && k < s->n_tables; k++)
        owned_part_give(&s->tables[k], slice);
    pthread_rwlock_unlock(&s->gate);
    return good;
}

void moves_comes(struct service *s, int slice, int from)
{
    struct moving *of = &s->moves->slices[slice];

    s->moves->coming += (from != NOBODY) - (of->from != NOBODY);
    of->from = from;
    of->complete = false;
}

void moves_give_part(struct service *s, int slice)
{
    moves_comes(s, slice, NOBODY);
    pthread_rwlock_wrlock(&s->gate);
    for (int k = 0; k < s->n_tables; k++)
        owned_part_give(&s->tables[k], slice);
    pthread_rwlock_unlock(&s->gate);
}

double moves_full(const struct service *s)
{
    const struct moves *m = s->moves;
    double others = 0;
    size_t has = owned_slices(&s->map, s->rank);

    for (int k = 0; k < s->place.size; k++)
        others += k != s->rank && m->peers[k].counts ? m->peers[k].share : 0;
    return has < OWNED_SLICES ? others * (double)has / (double)(OWNED_SLICES - has) : 1;
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

/* The next rank that is there and has a share. */
static int neighbour(const struct service *s)
{
    const struct moves *m = s->moves;

    for (int k = 1; k < s->place.size; k++) {
        int rank = (s->rank + k) % s->place.size;
        if (takes(s, rank) && m->peers[rank].share > 0)
            return rank;
    }
    return NOBODY;
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
    struct moves_entry entry = entry_of(s, slice, 0);
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
        f->state = same->state == FOLLOW_FOLLOWS ? FOLLOW_FOLLOWS : FOLLOW_ENDS;
    s->moves->rests = false;
    return rank != NOBODY || which != TO_FOLLOW || drop(s, slice, TO_OLD);
}

static bool plan(struct service *s)
{
    struct moves *m = s->moves;
    double shares[OWNED_SLICES] = {0}, sum = 0;
    int target[OWNED_SLICES];
    int n = s->place.size < OWNED_SLICES ? s->place.size : OWNED_SLICES;
    bool good = true, moves = !m->holds_now && !frozen(s);

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
        bool mine = s->map.owner[slice] == s->rank && !s->map.shut[slice];
        bool settled = m->slices[slice].giver == NOBODY;
        int to = sum > 0 && mine && moves && settled ? target[slice] : NOBODY;
        int follows = mine && m->follow_s > 0 ? neighbour(s) : NOBODY;
        to = to != s->rank && to != NOBODY && takes(s, to) ? to : NOBODY;
        if (s->map.owner[slice] != s->rank) {
            for (int k = 0; k < TO_ALL; k++)
                m->slices[slice].to[k].rank = NOBODY;
            continue;
        }
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
    ask = take(s, rank, ASK_SET, sizeof head + ids + records);
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
    return f->rank != NOBODY && f->state != FOLLOW_BEGINS && f->state != FOLLOW_REFUSED;
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

static bool begin(struct service *s, int slice, struct follow *f, bool replica)
{
    struct moves_entry entry = entry_of(s, slice, s->rank);
    bool good = true;

    pthread_rwlock_wrlock(&s->gate);
    for (int k = 0; good && k < s->n_tables; k++)
        good = owned_part_follow(&s->tables[k], slice);
    pthread_rwlock_unlock(&s->gate);
    if (!good)
        return service_fail(s, DESCANT_MEMORY, "no memory to note which rows change");
    *f = (struct follow){.rank = f->rank, .state = FOLLOW_COPIES};
    return moves_say(s, f->rank, ASK_BEGIN, &entry, 1, replica, 0);
}

static bool copy_some(struct service *s, int slice, struct follow *f)
{
    struct moves *m = s->moves;
    struct moves_entry entry = entry_of(s, slice, s->rank);

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

static void owe(struct service *s, int slice)
{
    struct moving *of = &s->moves->slices[slice];

    of->left = true;
    of->owed = 0;
    s->moves->left++;
    for (int k = 0; k < s->place.size; k++)
        if (k != s->rank && s->peers[k].there) {
            s->moves->peers[k].owes[slice / 64] |= UINT64_C(1) << slice % 64;
            of->owed++;
        }
}

static bool end_owed(struct service *s, int slice)
{
    struct moving *of = &s->moves->slices[slice];
    int owner = s->map.owner[slice];
    struct moves_entry entry = entry_of(s, slice, owner);

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

static bool give(struct service *s, int slice)
{
    struct moving *of = &s->moves->slices[slice];
    int to = of->to[TO_MOVE].rank;
    struct moves_entry entry = {(uint16_t)slice, (uint16_t)to, s->map.epoch[slice] + 2};

    pthread_rwlock_wrlock(&s->gate);
    of->to[TO_FOLLOW].rank = of->to[TO_OLD].rank = NOBODY;
    bool good = send_changed(s, slice);
    change_locked(s, slice, to, entry.epoch, true);
    let_copies_age(s);
    pthread_rwlock_unlock(&s->gate);
    of->to[TO_MOVE].rank = NOBODY;
    of->giver = s->rank;
    owe(s, slice);
    return good && moves_say(s, to, ASK_END, &entry, 1, 0, 0) &&
           moves_say_all(s, ASK_MOVED, &entry, 1, 0) &&
           moves_say(s, to, ASK_FENCED, &entry, 1, 0, s->rank);
}

bool moves_yield(struct service *s, int slice, int to, uint32_t epoch)
{
    struct moves_entry entry = {(uint16_t)slice, (uint16_t)to, epoch};

    for (int k = 0; k < TO_ALL; k++)
        s->moves->slices[slice].to[k].rank = NOBODY;
    if (!moves_change(s, slice, to, epoch, false))
        return false;
    owe(s, slice);
    return moves_say_all(s, ASK_MOVED, &entry, 1, 0);
}

bool moves_fenced(struct service *s, int slice, int rank)
{
    struct moving *of = &s->moves->slices[slice];
    struct moves_entry entry = entry_of(s, slice, s->map.owner[slice]);
    uint64_t *owes = &s->moves->peers[rank].owes[slice / 64];
    uint64_t bit = UINT64_C(1) << slice % 64;

    if (!(*owes & bit))
        return true;
    *owes &= ~bit;
    of->owed--;
    return moves_say(s, entry.rank, ASK_FENCED, &entry, 1, 0, rank) && end_owed(s, slice);
}

bool moves_followed(struct service *s, int slice, int rank)
{
    struct moving *of = &s->moves->slices[slice];

    for (int k = 0; k < TO_ALL; k++)
        if (of->to[k].rank == rank && of->to[k].state == FOLLOW_ENDS)
            of->to[k].state = FOLLOW_FOLLOWS;
    s->moves->rests = false;
    return of->to[TO_FOLLOW].rank != rank || of->to[TO_FOLLOW].state != FOLLOW_FOLLOWS ||
           drop(s, slice, TO_OLD);
}

void moves_refused(struct service *s, int slice, int rank)
{
    struct moving *of = &s->moves->slices[slice];

    for (int k = 0; k < TO_ALL; k++)
        if (of->to[k].rank == rank)
            of->to[k].state = FOLLOW_REFUSED;
    s->moves->refused = true;
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
    ask = take(s, owner, ASK_PUSH, sizeof head + n * (id + row));
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

bool moves_pass_on(struct service *s, const struct read_ask *ask)
{
    bool goes[ASK_BYTES / sizeof(uint32_t)], good = true;

    if (!s->moves->left)
        return true;
    for (size_t k = 0; k < ask->head.n; k++)
        goes[k] = s->moves->slices[owned_slice(ask->table, s->asked[k])].left;
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

/* --- a rank goes --- */

static bool claim(struct service *s, int slice)
{
    moves_comes(s, slice, NOBODY);
    if (!moves_change(s, slice, s->rank, s->map.epoch[slice] + 1, false))
        return false;
    s->moves->heard = true;
    struct moves_entry entry = entry_of(s, slice, s->rank);
    return moves_say_all(s, ASK_CLAIM, &entry, 1, 0);
}

bool moves_settle(struct service *s, int slice)
{
    struct moving *of = &s->moves->slices[slice];
    int owner = s->map.owner[slice];
    uint32_t epoch = s->map.epoch[slice];
    bool gone = owner != s->rank && (of->orphan || !s->peers[owner].there);
    bool unsure = of->giver != NOBODY && of->giver != s->rank && s->map.shut[slice] &&
                  s->peers[of->giver].gone && !s->peers[of->giver].done;

    if (!gone && !unsure)
        return true;
    if (of->says != NOBODY && of->said >= epoch + gone && s->peers[of->says].there)
        return moves_change(s, slice, of->says, of->said, false);
    if (unsure && owner == s->rank)
        return moves_shut(s, slice, false);
    if (of->claims != NOBODY && s->peers[of->claims].there &&
        (unsure || of->claimed > epoch))
        return moves_change(s, slice, of->claims, of->claimed, false);
    if (of->from == owner && of->complete && s->moves->follow_s > 0)
        return claim(s, slice);
    /* else a rank that came late has not met its owner yet */
    return (!of->orphan && !unsure) || moves_shut(s, slice, true);
}

/* What had been on its way to or from the rank that has gone. */
static bool let_go(struct service *s, int slice, int rank)
{
    struct moving *of = &s->moves->slices[slice];

    for (int k = 0; k < TO_ALL; k++)
        of->to[k].rank = of->to[k].rank == rank ? NOBODY : of->to[k].rank;
    if (of->giver == rank && s->map.owner[slice] == s->rank)
        of->giver = NOBODY;
    if (of->from == rank)
        moves_give_part(s, slice);
    if (!(s->moves->peers[rank].owes[slice / 64] >> slice % 64 & 1))
        return true;
    of->owed--;
    return end_owed(s, slice);
}

enum moves_loss moves_go(struct service *s, int rank)
{
    struct moves *m = s->moves;
    bool lost = false, done = s->peers[rank].done;

    m->peers[rank].counts = false;
    m->plan = m->routes = m->heard = true;
    for (int slice = 0; slice < OWNED_SLICES; slice++) {
        m->slices[slice].orphan |= s->map.owner[slice] == rank && !done;
        if (!moves_settle(s, slice) || !let_go(s, slice, rank))
            return MOVES_FAILED;
        lost |= s->map.owner[slice] == rank && !done;
    }
    memset(m->peers[rank].owes, 0, sizeof m->peers[rank].owes);
    return lost && !(m->follow_s > 0) ? MOVES_LOST : MOVES_GOES_ON;
}

/* --- a turn --- */

/* The next slice that has something to be done. */
static bool go_on(struct service *s, bool *worked)
{
    struct moves *m = s->moves;

    for (int k = 0; k < OWNED_SLICES; k++) {
        int slice = (m->at + k) % OWNED_SLICES;
        struct moving *of = &m->slices[slice];
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

/* A part of the slices whose changed rows are due. */
static bool sweep(struct service *s, uint64_t now_ns)
{
    struct moves *m = s->moves;
    uint64_t due_ns = (uint64_t)(m->follow_s * 0.5e9);

    if (m->sweep == OWNED_SLICES && now_ns - m->swept_ns >= due_ns) {
        m->swept_ns = now_ns;
        m->sweep = 0;
    }
    while (m->sweep < OWNED_SLICES && m->queued < MOVES_QUEUED) {
        const struct follow *f = &m->slices[m->sweep].to[TO_FOLLOW];
        if (f->rank != NOBODY && f->state == FOLLOW_FOLLOWS && !send_changed(s, m->sweep))
            return false;
        m->sweep++;
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

/* Slices whose owner has gone: somebody is to claim them. */
static bool look_for_claims(struct service *s, uint64_t now_ns)
{
    struct moves *m = s->moves;
    int lost = NOBODY;

    for (int slice = 0; m->shut && slice < OWNED_SLICES; slice++)
        if (s->map.shut[slice] && m->slices[slice].orphan)
            lost = s->map.owner[slice];
    m->waits_ns = lost == NOBODY ? 0 : m->waits_ns ? m->waits_ns : now_ns;
    return lost == NOBODY || now_ns - m->waits_ns < CLAIM_NS ||
           service_fail(s, DESCANT_ENDED, "rank %d has gone, and no rank has taken its "
                        "rows of the tables: start again from a checkpoint", lost);
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
        good = moves_say_all(s, ASK_SHARE, NULL, 0, 0);
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
    if (!m->rests && m->queued < MOVES_QUEUED && !go_on(s, worked))
        return false;
    if (m->follow_s > 0 && !sweep(s, now_ns))
        return false;
    if (m->routes) {
        m->routes = false;
        *worked = true;
        if (!route_all(s))
            return false;
    }
    *worked |= m->plan;
    return look_for_claims(s, now_ns);
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
