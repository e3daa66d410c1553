/* SPDX-License-Identifier: MIT */
/* Rounds: the protocol of docs/shm.md, in bounded pieces. One thread at a time runs begin
 * and poll; wait may run beside them and touches atomic fields only.
 *
 *   1. Each step of the round's word has one owner: the leader closes and fails, the
 *      trainer that counts the last chunk (or sees the last pull) commits. Every step is
 *      a compare-and-swap on the whole word, so that of a commit and a failure one wins.
 *   2. Between its arrival at T and its arrival at T+1 a trainer finds the record, the
 *      offers and the result of T unchanged: T+1 cannot close without that trainer.
 *   3. No trainer arrives while it writes a chunk, hence none writes into a later round's
 *      result.
 *   4. An exchange that is given up after arriving stays in its round as a helper: it
 *      reduces and says pulled, and takes nothing. Only a mean out of live memory cannot
 *      help without its vector; then the round is failed, and begun again with the
 *      trainer's later vector.
 *   5. A vector in live memory is copied whole into the contribution where others take it
 *      whole: before a state arrives, and for a joiner that waits for a vector (`whole`).
 *
 * Not collective: elastic exchanges touch the centre alone, under a lock a chunk. Only a
 * STATE makes a round, called by `board.called`; elastic exchanges then arrive at it,
 * too.
 *
 *   group    the members: admitting and forming
 *   leader   closing a round, and failing it
 *   mean, slices, state, elastic   the exchanges */
#include "shm/shm.h"

#include <string.h>

#define SPIN_NS 20000u

/* A mean in slices: nothing is copied before the round is closed. */
static bool puts_out_later(const struct shm *shm)
{
    return shm->round.live && shm->start.collective &&
           shm->round.exchange.kind == EXCHANGE_MEAN;
}

/* Copies a vector that others will take whole, or reduce, to where they can read it. */
static bool put_out_first(struct shm *shm)
{
    return shm->round.live && !puts_out_later(shm) &&
           shm->round.exchange.kind != EXCHANGE_ELASTIC && shm_put_whole(shm);
}

/* Offers this trainer's vector to the round. The offer is written before `arrived`, by
 * which others read it. Trainers that wait for members are admitted first, so that this
 * round counts on them. Only the leader and those that are late are rung: the others
 * sleep on until the round is closed. */
static void arrive(struct shm *shm, uint64_t word)
{
    struct shm_board *board = board_of(shm);
    struct arrival *mine = own_arrival(shm);
    const struct exchange *exchange = &shm->round.exchange;
    uint32_t tag = word_tag(word);
    uint64_t members;

    if (shm->start.collective && !exchange->final)
        shm_admit_waiting(shm);
    mine->kind = (uint32_t)exchange->kind;
    mine->live = puts_out_later(shm);
    mine->n = exchange->n;
    mine->priority = exchange->priority;
    mine->agree = exchange->agree;
    mine->note = exchange->note;
    atomic_store_explicit(&mine->reducing, mine->live ? tag : 0, memory_order_relaxed);
    mine->weight = exchange->weight;
    atomic_store_explicit(&mine->hungry, 0, memory_order_relaxed);
    shm->round.tag = tag;
    shm->round.stage = SHM_ARRIVED;
    shm->round.seen = shm->round.part_out = false;
    shm->round.filled = 0;
    if (mine->live)
        shm->round.whole = 0;
    else
        atomic_store_explicit(&mine->whole, tag, memory_order_release);
    if (!shm->start.collective && exchange->kind == EXCHANGE_STATE)
        atomic_store_explicit(&board->called, tag, memory_order_release);
    atomic_store_explicit(&mine->arrived, tag, memory_order_seq_cst);
    members = load_members(shm);
    roster_ring(roster_of(shm),
                (shm_late(board, members, tag) | (members & -members)) & ~own_bit(shm));
}

/* --- the ends of a round --- */

static void count_bad(struct shm *shm)
{
    const struct round_record *record = &board_of(shm)->record;

    shm->fabric.own_bad = (record->bad & own_bit(shm)) != 0;
    for (unsigned s = 0; record->bad && s < MACHINE_SLOTS; s++)
        if (record->bad & slot_bit(s))
            notes_add(shm->fabric.notes, DESCANT_EVENT_BAD,
                      roster_of(shm)->slots[s].rank);
    atomic_fetch_add_explicit(&shm->fabric.bad,
                              (uint64_t)__builtin_popcountll(record->bad),
                              memory_order_relaxed);
}

static enum fabric_progress fail_differing(struct shm *shm)
{
    const struct shm_board *board = board_of(shm);
    struct offer mine = shm_offer_of(shm, shm->meet.slot), other = mine;
    char text[LOG_LINE];

    for (unsigned s = 0; s < MACHINE_SLOTS && !offers_differ(&mine, &other); s++)
        if (board->record.group & slot_bit(s))
            other = shm_offer_of(shm, s);
    offers_say(text, sizeof text, &mine, &other);
    log_fail(&shm->fabric.log, DESCANT_MISMATCH, "%s", text);
    return shm_fail(shm, DESCANT_MISMATCH);
}

/* The round has a result. Under an emulated link the result is held back until its time
 * has come; `ready_ns` wakes this trainer then. */
static enum fabric_progress committed(struct shm *shm, struct fabric_part *part)
{
    const struct round_record *record = &board_of(shm)->record;
    struct shm_round *round = &shm->round;

    if (record->differ)
        return fail_differing(shm);
    if (record->kind == EXCHANGE_STATE) {
        if (own_life(shm) == LIFE_WAITING)
            shm_become(shm, LIFE_MEMBER);
        round->stage = SHM_IDLE;
        return FABRIC_DONE;
    }
    if (clock_now_ns() < record->ready_ns && !record->empty) {
        atomic_store_explicit(&shm->ready_ns, record->ready_ns, memory_order_relaxed);
        return FABRIC_WAITING;
    }
    count_bad(shm);
    if (record->empty || !record->n) {
        round->stage = SHM_IDLE;
        return FABRIC_DONE;
    }
    int k = __builtin_popcountll(record->group);
    shm_count_bytes(shm,
                    (size_t)(2.0 * (k - 1) / k * (double)(record->n * sizeof(float))));
    *part = (struct fabric_part){
        .kind = EXCHANGE_MEAN, .out = shm->result, .n = record->n, .members = k};
    round->stage = SHM_DONE;
    return FABRIC_PART;
}

/* The tag has moved on. A failed round is begun again, with the same exchange; one that
 * was given up is forgotten, and the exchange begun meanwhile comes to its turn. */
static enum fabric_progress ended(struct shm *shm, uint64_t word,
                                  struct fabric_part *part)
{
    const struct shm_board *board = board_of(shm);
    struct shm_round *round = &shm->round;
    bool ok = word_tag(word) == next_tag(round->tag) && word & WORD_OK;

    if (ok && !round->abandoned)
        return committed(shm, part);
    if (!ok && shm_left_group(board, load_members(shm)))
        atomic_fetch_add_explicit(&shm->fabric.restarts, 1, memory_order_relaxed);
    round->abandoned = false;
    round->stage = SHM_BEGUN;
    return FABRIC_WORKED;
}

/* Round T gathers, and this trainer has arrived. A joiner may wait for a whole vector. */
static enum fabric_progress gathering(struct shm *shm)
{
    struct arrival *mine = own_arrival(shm);
    uint32_t tag = shm->round.tag;

    if (!mine->live || atomic_load_explicit(&mine->whole, memory_order_relaxed) == tag)
        return FABRIC_WAITING;
    uint64_t joiners = shm_slots_in(shm, LIFE_WAITING) & load_members(shm);
    if (!joiners)
        return FABRIC_WAITING;
    if (shm->round.live && shm_put_whole(shm))
        return FABRIC_WORKED;
    atomic_store_explicit(&mine->whole, tag, memory_order_release);
    roster_ring(roster_of(shm), joiners);
    return FABRIC_WORKED;
}

static enum fabric_progress arrived(struct shm *shm, uint64_t word,
                                    struct fabric_part *part)
{
    if (word_tag(word) != shm->round.tag)
        return ended(shm, word, part);
    if (shm_lead(shm, word))
        return FABRIC_WORKED;
    const struct round_record *record = &board_of(shm)->record;
    if (!(word & PHASE_REDUCE))
        return gathering(shm);
    if (!(record->group & own_bit(shm)))
        return FABRIC_WAITING;
    if (record->kind == EXCHANGE_STATE)
        return shm_take_state(shm, word, part);
    return record->live ? shm_reduce_slices(shm, word) : shm_reduce(shm, word);
}

/* An exchange that has not arrived: a group may have to be formed; a newcomer looks for a
 * state to take; a trainer at its end shows its own; a member leads, and then arrives, if
 * the word is still the one that this poll began with. */
static enum fabric_progress begun(struct shm *shm, uint64_t word,
                                  struct fabric_part *part)
{
    struct shm_board *board = board_of(shm);
    bool waiting = own_life(shm) == LIFE_WAITING, any = false;

    shm_form(shm);
    uint64_t members = load_members(shm);   /* read once: a later member looks again */
    if (waiting && (!shm->start.collective || !members || members & own_bit(shm))) {
        unsigned source = shm_find_source(shm, word, &any);
        if (source < MACHINE_SLOTS)
            return shm_pull(shm, word, source, part);
    }
    shm_step(STEP_LOOK, shm->meet.slot);
    if (!(members & own_bit(shm)))
        return shm_show(shm, word) ? FABRIC_WORKED : FABRIC_WAITING;
    if (shm_lead(shm, word))
        return FABRIC_WORKED;
    if (any || word & PHASES || load_word(board) != word)
        return load_word(board) != word ? FABRIC_WORKED : FABRIC_WAITING;
    if (!put_out_first(shm))
        arrive(shm, word);
    return FABRIC_WORKED;
}

/* --- the functions of the table --- */

static descant_status check(const struct shm *shm, const struct exchange *exchange)
{
    const struct limits limits = {shm->start.n, shm->start.room, shm->started,
                                  own_life(shm) >= LIFE_MEMBER,
                                  shm->fabric.center != NULL};
    return exchange_check(exchange, &limits, &shm->fabric.log);
}

/* Leaves the rounds: the last group is formed once all members have. The arrival is taken
 * back first, lest the last group close on an old offer; a round that counts on it is
 * begun again. */
static void retire(struct shm *shm)
{
    struct arrival *mine = own_arrival(shm);
    bool settled =
        own_life(shm) == LIFE_MEMBER ||
        atomic_load_explicit(&mine->standby, memory_order_relaxed) != STANDBY_NONE;

    atomic_store_explicit(&mine->standby, !settled ? STANDBY_NONE : shm->round.live
                                              ? STANDBY_HOLDS : STANDBY_SHOWS,
                          memory_order_release);
    atomic_store_explicit(&mine->arrived, 0, memory_order_seq_cst);
    shm->round.abandoned = false;
    shm->round.stage = SHM_BEGUN;
    shm_become(shm, LIFE_FINAL);
    shm_step(STEP_RETIRE, shm->meet.slot);
    if (atomic_fetch_and_explicit(&roster_of(shm)->members, ~own_bit(shm),
                                  memory_order_seq_cst) &
        own_bit(shm))
        atomic_fetch_add_explicit(&roster_of(shm)->epoch, 1, memory_order_release);
    roster_ring(roster_of(shm), ~(uint64_t)0);
}

/* Whether the exchange's vector lies where peers cannot read it. */
static bool is_live(const struct shm *shm, const struct vector *in)
{
    return !shm->start.in_place && in->n_extents &&
           in->extents[0].p != shm->fabric.contribution + in->extents[0].at;
}

descant_status shm_round_begin(struct shm *shm, const struct exchange *exchange)
{
    struct shm_round *round = &shm->round;
    descant_status status = check(shm, exchange);

    if (!status && exchange->final && exchange->kind == EXCHANGE_MEAN &&
        !shm->start.collective)
        status = arena_take(&shm->meet.arena, region_at(REGION_RESULT),
                            exchange->n * sizeof(float));
    if (status)
        return status;
    if (round->stage == SHM_ARRIVED && !exchange->final)
        round->abandoned = true;
    round->exchange = *exchange;
    if (exchange->final)
        shm->bulletin_ns = 0;
    round->live = is_live(shm, exchange->in);
    round->whole = 0;
    if (!round->abandoned)
        round->stage = SHM_BEGUN;
    atomic_store_explicit(&shm->ready_ns, 0, memory_order_relaxed);
    shm->fabric.own_bad = false;
    if (exchange->kind == EXCHANGE_ELASTIC && !round->abandoned)
        shm_begin_elastic(shm);
    if (exchange->final)
        retire(shm);
    else if (own_life(shm) == LIFE_JOINED)
        shm_become(shm, LIFE_WAITING);
    return DESCANT_OK;
}

void shm_tell_figures(struct shm *shm)
{
    struct fabric *f = &shm->fabric;
    struct bulletin own;

    if (!f->figures || !shm->started)
        return;
    f->figures(f->figures_of, &own);
    bulletin_put(&board_of(shm)->bulletins[shm->meet.slot], f->rank, &own,
                 clock_now_ns());
}

bool shm_is_ready(const struct shm *shm)
{
    uint64_t ready = atomic_load_explicit(&shm->ready_ns, memory_order_relaxed);

    return ready && ready <= clock_now_ns();
}

enum fabric_progress shm_round_poll(struct shm *shm, struct fabric_part *part)
{
    struct shm_round *round = &shm->round;

    if (shm->fabric.figures && clock_now_ns() >= shm->bulletin_ns) {
        shm->bulletin_ns = clock_now_ns() + BULLETIN_NS;
        shm_tell_figures(shm);
    }
    atomic_store_explicit(
        &shm->seen_bell, atomic_load_explicit(&own_slot(shm)->bell, memory_order_acquire),
        memory_order_relaxed);
    if (shm_is_ready(shm))
        atomic_store_explicit(&shm->ready_ns, 0, memory_order_relaxed);
    shm_refresh(shm);
    if (shm->fabric.status)
        return FABRIC_FAILED;
    uint64_t word = load_word(board_of(shm));
    switch (round->stage) {
    case SHM_IDLE:
        return shm->started && shm_is_called(shm, word) ? FABRIC_CALLED : FABRIC_WAITING;
    case SHM_BEGUN:
        if (round->exchange.kind == EXCHANGE_ELASTIC && !shm_is_called(shm, word)) {
            shm_begin_elastic(shm);
            return FABRIC_WORKED;
        }
        return begun(shm, word, part);
    case SHM_ARRIVED:
        return arrived(shm, word, part);
    case SHM_PULLING:
        return shm_pulled(shm);
    case SHM_ELASTIC:
        if (shm_is_called(shm, word)) {
            round->stage = SHM_BEGUN;
            return FABRIC_WORKED;
        }
        return shm_elastic(shm, part);
    case SHM_DONE:
        break;
    }
    round->stage = SHM_IDLE;
    return FABRIC_DONE;
}

/* Looks for SPIN_NS before the thread sleeps. With more threads than cores it does not,
 * since it would take the core that another thread needs. */
static void spin(const struct shm *shm, _Atomic uint32_t *bell, uint32_t seen)
{
    uint64_t until = clock_now_ns() + SPIN_NS;

    if (shm->cores <
        atomic_load_explicit(&shm->fabric.machine_threads, memory_order_relaxed))
        return;
    while (atomic_load_explicit(bell, memory_order_relaxed) == seen &&
           clock_now_ns() < until)
        ;
}

void shm_round_wait(struct shm *shm, uint64_t until_ns)
{
    _Atomic uint32_t *bell = &own_slot(shm)->bell;
    uint32_t seen = atomic_load_explicit(&shm->seen_bell, memory_order_relaxed);
    uint64_t ready = atomic_load_explicit(&shm->ready_ns, memory_order_relaxed);

    if (ready && (!until_ns || ready < until_ns))
        until_ns = ready;
    spin(shm, bell, seen);
    futex_wait(bell, seen, until_ns);
}
