/* SPDX-License-Identifier: MIT */
/* The service's thread: what has come from its callers, from the link and from others is
 * done in a turn. At the end each rank tells the others that it asks for nothing more
 * (DONE). One that owns rows serves until all have told it, or are gone. Then it tells
 * them that it has ended (ENDED): a rank that goes without that word was killed, and
 * still owes its rows, also after DONE. */
#include "owners/moves.h"

#define END_NS UINT64_C(10000000000)    /* for owners that were never there */
#define PART_NS UINT64_C(10000000)

enum { PART_TURNS = 10 };

/* --- begin and end --- */

descant_status service_init(struct service *s, struct link *link,
                            const struct link_place *place, int owners,
                            const struct log *log)
{
    s->log = *log;
    pthread_rwlockattr_t kind;

    pthread_mutex_init(&s->lock, NULL);
    pthread_rwlockattr_init(&kind);     /* else callers might keep the thread out */
    pthread_rwlockattr_setkind_np(&kind, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
    pthread_rwlock_init(&s->gate, &kind);
    pthread_rwlockattr_destroy(&kind);
    s->inbox_last = &s->inbox;
    s->blames = -1;
    s->now_ns = clock_now_ns;
    owned_map_make(&s->map, owners);
    if (!link)
        return DESCANT_OK;
    s->link = link;
    s->place = *place;
    s->rank = place->rank;
    s->n_lanes = 256 / place->size;
    s->n_lanes = s->n_lanes < 2 ? 2 : s->n_lanes > OWNERS_LANES ? OWNERS_LANES
                                                                 : s->n_lanes;
    s->peers = memory_take_array((size_t)place->size, sizeof *s->peers);
    s->asked = memory_take_array(ASK_BYTES / sizeof(uint32_t), sizeof *s->asked);
    s->row = memory_take_array(OWNED_COPIED, sizeof *s->row);
    if (!s->peers || !s->asked || !s->row)
        return log_fail(log, DESCANT_MEMORY, "no memory for the rows of %d ranks",
                        place->size);
    for (int k = 0; k < place->size; k++)
        s->peers[k].last = &s->peers[k].waiting;
    s->peers[s->rank].generation = place->generation;
    return DESCANT_OK;
}

void service_fini(struct service *s)
{
    if (s->link && !s->link->type->close(s->link, s->over))
        return;                 /* the link may still use any of this memory */
    serve_fini(s);
    asks_fini(s);
    batches_fini(s);
    for (int k = 0; s->copies && k < s->n_tables; k++)
        copies_destroy(s->copies[k]);
    memory_give(s->copies);
    memory_give(s->peers);
    memory_give(s->asked);
    memory_give(s->row);
    moves_fini(s);
    pthread_rwlock_destroy(&s->gate);
    pthread_mutex_destroy(&s->lock);
}

void service_end(struct service *s)
{
    atomic_store(&s->ends, true);
    service_wake(s);
}

void service_give_up(struct service *s)
{
    atomic_store(&s->gives_up, true);
    service_wake(s);
}

void service_past_copies(struct service *s)
{
    atomic_store(&s->past_copies, true);
}

/* --- peers --- */

/* Its DONE and its ENDED may come before this rank's next turn, and its end with them:
 * both receives are open from the start, since a word that has none is lost when the
 * peer is forgotten. Where the link is fixed nobody says ENDED. */
static bool receive_words(struct service *s, int rank)
{
    struct owners_peer *peer = &s->peers[rank];
    bool good = true;

    for (int k = 0; good && k < (s->place.fixed ? 1 : OWNERS_WORDS); k++) {
        peer->heard[k] = (struct owners_op){OP_DONE, peer};
        good = service_receive(s, rank, OWNERS_DONE, &peer->hears[k],
                               sizeof peer->hears[k], &peer->heard[k]);
    }
    return good;
}

static bool comes(struct service *s, int rank, uint64_t generation)
{
    struct owners_peer *peer = &s->peers[rank];

    peer->there = true;
    peer->generation = generation;
    peer->came++;
    peer->mapped = !s->moves;
    peer->gone = peer->done = peer->ended = peer->told = false;
    peer->said = (struct owners_op){OP_SAID_DONE, peer};
    return serve_open(s, rank) && receive_words(s, rank) &&
           (s->moves ? moves_come(s, rank) : route_waiting(s, rank));
}

static bool open_all(struct service *s)
{
    for (int k = 0; s->place.fixed && k < s->place.size; k++)
        if (k != s->rank && !comes(s, k, 1))
            return false;
    return true;
}

/* Of tables that have an age, where other ranks own rows. */
static descant_status make_copies(struct service *s)
{
    bool owns_all = !s->moves && s->rank < s->map.size &&
                    s->map.slices[s->rank] == OWNED_SLICES;
    bool any = false;

    for (int k = 0; k < s->n_tables; k++)
        any |= s->link && !owns_all && s->tables[k].shape.age > 0;
    if (!any)
        return DESCANT_OK;
    s->copies = memory_take_array((size_t)s->n_tables, sizeof *s->copies);
    for (int k = 0; s->copies && k < s->n_tables; k++) {
        if (!(s->tables[k].shape.age > 0))
            continue;
        s->copies[k] = copies_create(&s->tables[k]);
        if (!s->copies[k])
            return log_fail(&s->log, DESCANT_MEMORY, "no memory for copies of rows of "
                            "table '%s': set fewer as `cached`", s->tables[k].name);
    }
    return s->copies ? DESCANT_OK
                     : log_fail(&s->log, DESCANT_MEMORY, "no memory for copies of rows");
}

descant_status service_open(struct service *s, struct owned *tables, int n_tables)
{
    s->tables = tables;
    s->n_tables = n_tables;
    descant_status status = make_copies(s);
    if (status != DESCANT_OK)
        return status;
    return !s->link || open_all(s) ? DESCANT_OK : (descant_status)atomic_load(&s->status);
}

/* --- a turn --- */

/* It says what it may not; why NULL: the service has failed. */
static bool breaks(struct service *s, int rank, const char *why)
{
    if (!why)
        return false;
    log_say(&s->log, DESCANT_WARNING, "rows of tables: rank %d breaks the protocol: %s",
            rank, why);
    return service_goes(s, rank);
}

static bool hear_ask(struct service *s, struct lane *lane, const struct link_ended *ended)
{
    const char *why = NULL;

    return !s->peers[lane->rank].there || serve_heard(s, lane, ended, &why) ||
           breaks(s, lane->rank, why);
}

/* It is done, it has ended, or another rank's rows are lost. */
static bool hear_word(struct service *s, const struct link_ended *ended)
{
    const struct owners_op *op = ended->op;
    struct owners_peer *peer = op->of;
    int rank = (int)(peer - s->peers), word = peer->hears[op - peer->heard];

    if (ended->bytes != sizeof *peer->hears || word < WORD_ENDED)
        return breaks(s, rank, "it says of its end what this version does not know");
    if (word >= 0)
        return (s->moves && s->moves->follow_s > 0) || owned_slices(&s->map, word) == 0 ||
               service_loses(s, word);
    peer->done = true;
    peer->ended = word == WORD_ENDED;
    if (s->moves)
        s->moves->plan = true;
    return true;
}

static bool one_ended(struct service *s, const struct link_ended *ended)
{
    struct owners_op *op = ended->op;

    if (op->kind == OP_SERVED)
        return serve_answered(s, op->of);
    if (op->kind == OP_ASKED || op->kind == OP_ANSWER)
        return route_ended(s, op->of, ended);
    if (ended->failed)
        return true;            /* its peer was forgotten */
    switch (op->kind) {
    case OP_HEARD:
        return hear_ask(s, op->of, ended);
    case OP_DONE:
        return hear_word(s, ended);
    default:
        return true;
    }
}

static bool hear(struct service *s, const struct link_news *news)
{
    bool good = true;

    for (int k = 0; good && k < news->n_peers; k++)
        if (!news->peers[k].gone)
            good = comes(s, news->peers[k].rank, news->peers[k].generation);
    for (int k = 0; good && k < news->n_ended; k++)
        good = one_ended(s, &news->ended[k]);
    for (int k = 0; good && k < news->n_peers; k++)
        if (news->peers[k].gone && s->peers[news->peers[k].rank].there)
            good = service_goes(s, news->peers[k].rank);
    return good;
}

/* Tells all that are there. True: all have told it, too, or this rank owns nothing that
 * they need. */
static bool all_done(struct service *s, uint64_t now_ns, bool *failed)
{
    bool all = true, owns = s->place.fixed || owned_slices(&s->map, s->rank) > 0 ||
                            (s->moves && moves_has(s));

    for (int k = 0; k < s->place.size; k++) {
        struct owners_peer *peer = &s->peers[k];
        if (k == s->rank)
            continue;
        if (peer->there && !peer->told) {
            peer->told = true;
            peer->says = WORD_DONE;
            *failed |= !service_send(s, k, OWNERS_DONE, &peer->says, sizeof peer->says,
                                     &peer->said);
        }
        bool never = !peer->there && !peer->gone && owned_slices(&s->map, k) > 0;
        all &= peer->there ? peer->done : !never || now_ns - s->ends_ns > END_NS;
    }
    return all || !owns;
}

/* The last word, which the link brings before it tells that this rank is gone. */
static bool say_ended(struct service *s)
{
    static const int32_t word = WORD_ENDED;
    bool good = true;

    for (int k = 0; !s->place.fixed && good && k < s->place.size; k++)
        if (k != s->rank && s->peers[k].there)
            good = service_send(s, k, OWNERS_DONE, &word, sizeof word, &s->peers[k].said);
    return good;
}

/* What other threads have said; false: it fails. */
static bool heed(struct service *s)
{
    if (!atomic_load(&s->gives_up))
        return true;
    snprintf(s->why, sizeof s->why, "this trainer has closed its job");
    atomic_store(&s->status, (int)DESCANT_ENDED);
    futex_wake_all(&s->unqueued);
    return false;
}

/* Asks that have come before the slice that they are of. */
static bool hear_again(struct service *s)
{
    const char *why = NULL;

    for (int k = 0; k < s->place.size; k++) {
        if (!s->peers[k].there || serve_again(s, k, &why))
            continue;
        if (!breaks(s, k, why))
            return false;
    }
    return true;
}

static bool move(struct service *s, uint64_t now_ns, bool *worked)
{
    if (!s->moves)
        return true;
    if (!moves_turn(s, now_ns, worked) || !moves_wait_for_claims(s, now_ns))
        return false;
    if (!s->moves->heard)
        return true;
    s->moves->heard = false;
    *worked = true;
    return hear_again(s);
}

int service_turn(struct service *s)
{
    struct link_news news;
    bool ends = atomic_load(&s->ends), failed = false, worked = false;

    if (atomic_load(&s->status) || !heed(s) || !route_inbox(s) ||
        !service_works(s, s->link->type->collect(s->link, &news)) || !hear(s, &news) ||
        !move(s, news.now_ns, &worked))
        return OWNERS_FAILED;
    if (ends && !s->ends_ns)
        s->ends_ns = news.now_ns;
    bool rests = ends && s->n_asks == 0;
    s->done |= rests;
    bool over = rests && all_done(s, news.now_ns, &failed);
    if (failed || (over && !s->over && !say_ended(s)))
        return OWNERS_FAILED;
    s->over = over;
    return s->over ? OWNERS_ENDED
           : news.n_ended || news.n_peers || worked ? OWNERS_WORKED : OWNERS_RESTS;
}

static void move_on(struct service *s)
{
    struct link_news news;

    for (int turn = 0; turn < PART_TURNS; turn++)
        if (s->link->type->collect(s->link, &news))
            s->link->type->sleep(s->link, PART_NS, 0);
}

/* First the others are told whose rows are lost, lest they blame this rank. */
void service_part(struct service *s)
{
    if (s->place.fixed)
        return;
    for (int k = 0; k < s->place.size; k++) {
        struct owners_peer *peer = &s->peers[k];
        struct link_message message = {.rank = k, .tag = OWNERS_DONE, .op = &peer->said};
        peer->says = s->blames >= 0 ? s->blames : s->rank;
        if (peer->there)
            s->link->type->send(s->link, &peer->says, sizeof peer->says, &message);
    }
    move_on(s);
    for (int k = 0; k < s->place.size; k++)
        if (k != s->rank)
            s->link->type->forget(s->link, k, LINK_PEER);
    move_on(s);
}
