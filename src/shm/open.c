/* SPDX-License-Identifier: MIT */
/* The shm fabric: processes of one machine, one piece of memory, no server. docs/shm.md
 * has the protocol; this file has the address, the order in which things are taken, and
 * the table.
 *
 *   arena   the memory: board, regions, the slots' lives
 *   meet    names: finding each other, the arena's descriptor, noticing deaths
 *   round   the exchanges; group, leader, mean, slices, state and elastic are its parts
 *   post    parcels between rank 0 and the others
 *   agree   agreements
 *
 * Nothing has a name in a file system. close leaves as a death would, and then gives
 * everything back; close takes half-opened handles, and is open's only cleanup path.
 *
 * The manifest, its figures and the blocks of share are written and compared inside the
 * door. The manifest's length is set last: a death before leaves the job unstarted, and
 * the next starts it. A trainer whose figures differ is refused. */
#include "machine/meeting.h"
#include "shm/shm.h"

#include <string.h>

struct address {
    char name[MEET_NAME + 1];
    struct emulated link;
};

/* The keys of an address. Only the first trainer's count; those of all others must be the
 * same. */
static const struct option keys[] = {
    {.name = "rate",
     .type = OPTION_RATE,
     .offset = offsetof(struct address, link.rate),
     .low = 1,
     .high = 1e15,
     .help = "emulated link: bytes a second"},
    {.name = "rtt",
     .type = OPTION_TIME,
     .offset = offsetof(struct address, link.rtt),
     .high = 60,
     .help = "emulated link: the time there and back"},
};

/* --- the address --- */

static bool name_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           c == '.' || c == '_' || c == '-';
}

static descant_status bad_address(const struct log *log, const char *text,
                                  const char *why)
{
    return log_fail(log, DESCANT_BAD_ADDRESS, "\"shm:%s\": %s", text, why);
}

/* "NAME", "NAME,rate=1gbit" and so on. The reason of a failure is logged with the whole
 * address. */
static descant_status parse_address(struct address *address, const char *text,
                                    const struct log *log)
{
    const char *whole = text ? text : "", *p = whole;
    char why[512];

    memset(address, 0, sizeof *address);
    while (name_char(*p))
        p++;
    if (p == whole || p - whole > MEET_NAME || (*p && *p != ','))
        return bad_address(log, whole,
                           "a name has 1 to 64 characters of A-Z a-z 0-9 . _ -");
    memcpy(address->name, whole, (size_t)(p - whole));
    while (*p == ',') {
        const char *key = p + 1, *end = key + strcspn(key, ",");
        const char *equals = memchr(key, '=', (size_t)(end - key));
        if (!equals)
            return bad_address(log, whole, "after the name come rate=.. and rtt=..");
        const struct option_text setting = {
            whole, key, equals + 1, (size_t)(equals - key), (size_t)(end - equals - 1)};
        if (!option_set((struct option_table){keys, sizeof keys / sizeof *keys}, &setting,
                        address, why, sizeof why))
            return bad_address(log, whole, why);
        p = end;
    }
    return DESCANT_OK;
}

/* --- open and close --- */

/* The others see that this trainer was told to end. */
static void show_told(struct shm *shm)
{
    if (atomic_load_explicit(&shm->fabric.told, memory_order_relaxed))
        atomic_store_explicit(&own_slot(shm)->told, shm->meet.generation,
                              memory_order_relaxed);
}

static void shm_close(struct fabric *f)
{
    struct shm *shm = shm_of(f);

    shm_tell_figures(shm);
    if (shm->meet.seated)
        show_told(shm);
    meeting_leave(&shm->meet);
    memory_give(shm->piece);
    memory_give(shm->moved);
    memory_give(shm->left);
    memory_give(shm->post);
    pthread_mutex_destroy(&shm->seeing);
    memory_give(shm);
}

/* Called inside the door. A board is new while its word is 0, for a word with a tag never
 * is; the first trainer fills it in and stores the word last, so that the next one does
 * it again where this one dies. Otherwise the link and the number of trainers must be the
 * job's; a trainer that names no number agrees with any. */
static descant_status agree(void *user)
{
    struct shm *shm = user;
    const struct emulated *link = &shm->link;
    uint32_t size = (uint32_t)shm->fabric.size;
    void *p = NULL;
    descant_status status = arena_map(&shm->meet.arena, region_at(REGION_BOARD),
                                      sizeof *shm->board, ARENA_WRITE, &p);
    struct shm_board *board = shm->board = p;

    if (!status && !load_word(board)) {
        status = arena_take(&shm->meet.arena, region_at(REGION_BOARD), sizeof *board);
        if (status)
            return status;
        board->link = *link;
        atomic_store_explicit(&board->word, word_make(1, WORD_OK), memory_order_release);
    }
    if (!status && memcmp(&board->link, link, sizeof *link) != 0)
        return log_fail(&shm->fabric.log, DESCANT_MISMATCH,
                        "the job's link has rate=%g,rtt=%g, here it is rate=%g,rtt=%g",
                        board->link.rate, board->link.rtt, link->rate, link->rtt);
    if (!status && size && board->size && size != board->size)
        return log_fail(&shm->fabric.log, DESCANT_BAD_SIZE,
                        "the job waits for %u trainers, here for %u", board->size, size);
    if (!status && size)
        board->size = size;
    return status;
}

/* --- a slot's next trainer --- */

static uint64_t word_now(const void *user)
{
    const struct shm *shm = user;
    return atomic_load_explicit(&shm->board->word, memory_order_seq_cst);
}

/* Whether a closer may be reading the lives of the dead, as it does after it has put
 * CLOSING into the word. */
static bool reads_dead(const void *user)
{
    return (word_now(user) & PHASES) != 0;
}

static bool frees_dead(const void *user, unsigned slot)
{
    shm_step(STEP_SEAT, slot);
    return (word_now(user) & PHASE_CLOSING) != 0;
}

/* Before the slot's life is JOINED, which orders these stores: nobody reads them
 * earlier. */
static void clear_arrival(void *user, unsigned slot)
{
    struct arrival *mine = &((struct shm *)user)->board->arrivals[slot];

    mine->in_place = 0;
    atomic_store_explicit(&mine->arrived, 0, memory_order_relaxed);
    atomic_store_explicit(&mine->whole, 0, memory_order_relaxed);
    atomic_store_explicit(&mine->pulled, 0, memory_order_relaxed);
    atomic_store_explicit(&mine->standby, STANDBY_NONE, memory_order_relaxed);
    atomic_store_explicit(&mine->put, 0, memory_order_relaxed);
    atomic_store_explicit(&mine->reduced, 0, memory_order_relaxed);
    atomic_store_explicit(&mine->hungry, 0, memory_order_relaxed);
    atomic_store_explicit(&mine->reducing, 0, memory_order_relaxed);
    atomic_store_explicit(&mine->threads, 1, memory_order_relaxed);
}

/* The slot's former trainer may have left bits and pages. Pages are given back, so that
 * new ones read as zeros. */
static void take_seat(void *user, unsigned slot)
{
    struct shm *shm = user;

    atomic_fetch_and_explicit(&shm->board->bad, ~slot_bit(slot), memory_order_relaxed);
    arena_punch(&shm->meet.arena, slot_region_at(slot, SLOT_REPLICA), SLOT_BYTES);
}

static const struct meet_user meet_user = {
    .agree = agree,
    .reads_dead = reads_dead,
    .frees_dead = frees_dead,
    .clear = clear_arrival,
    .seat = take_seat,
};

/* --- opening --- */

static descant_status check_options(const struct fabric_options *options)
{
    if (options->rank < -1)
        return log_fail(options->log, DESCANT_BAD_RANK, "rank %d", options->rank);
    if (options->size < 0 || options->size > MACHINE_SLOTS)
        return log_fail(options->log, DESCANT_BAD_SIZE,
                        "%d trainers; 0 to %d are possible", options->size,
                        MACHINE_SLOTS);
    return DESCANT_OK;
}

/* Nothing is sent, so nothing is encoded. An emulated link with encoding would show costs
 * that no real one has. */
static descant_status check_wire(const struct fabric_options *options,
                                 const struct address *address)
{
    const char *wire = wire_names[options->wire];

    if (options->wire == WIRE_F32)
        return DESCANT_OK;
    if (address->link.rate > 0)
        return log_fail(
            options->log, DESCANT_UNSUPPORTED,
            "wire=%s and rate=: the emulated link carries f32 alone; leave one out",
            wire);
    log_say(
        options->log, DESCANT_INFO,
        "wire=%s changes nothing here: trainers of one machine send nothing",
        wire);
    return DESCANT_OK;
}

/* Takes what can be refused without others first: the address, the options, the wire.
 * Then the trainer joins, which all others see. */
static descant_status shm_open(struct fabric **out, const struct fabric_options *options)
{
    struct address address;
    descant_status status = parse_address(&address, options->address, options->log);

    if (!status)
        status = check_options(options);
    if (!status)
        status = check_wire(options, &address);
    if (status)
        return status;
    struct shm *shm = memory_take(sizeof *shm);
    if (!shm)
        return log_fail(options->log, DESCANT_MEMORY, "no memory for a trainer");
    shm->fabric.type = &fabric_shm;
    if (options->log)
        shm->fabric.log = *options->log;
    shm->fabric.size = options->size;
    shm->fabric.any_memory = true;
    shm->kernels = kernels_best();
    shm->cores = machine_cores();
    pthread_mutex_init(&shm->seeing, NULL);
    shm->link = address.link;
    shm->fabric.rank = options->rank;
    meet_init(&shm->meet, address.name, options->start_s, &shm->fabric.log);
    shm->meet.n_regions = SHM_REGIONS;
    shm->meet.type = &meet_user;
    shm->meet.user = shm;
    shm->meet.cpu_ns = &shm->fabric.cpu_ns;
    status = meeting_join(&shm->meet, &shm->fabric.rank);
    if (status) {
        shm_close(&shm->fabric);
        return status;
    }
    shm->fabric.log.rank = shm->fabric.rank;
    shm->fabric.machine_threads = 1;
    *out = &shm->fabric;
    return DESCANT_OK;
}

/* --- memory --- */

/* `at` is the segment's place in the flat vector: the replica lies in one region of the
 * slot, so that peers find each float by its place. */
static float *shm_alloc(struct fabric *f, size_t at, size_t n)
{
    float *p = NULL;

    if (n > SIZE_MAX / sizeof(float) || at > SIZE_MAX / sizeof(float) - n ||
        (at + n) * sizeof(float) > (uint64_t)1 << 40) {
        log_fail(&f->log, DESCANT_MEMORY, "%zu floats are too many", n);
        return NULL;
    }
    return shm_map_own(shm_of(f), SLOT_REPLICA, at, n, &p) ? NULL : p;
}

static descant_status shm_share(struct fabric *f, const char *name, size_t bytes,
                                void **block)
{
    return meeting_share(&shm_of(f)->meet, name, bytes, block);
}

/* --- start --- */

static size_t n_locks(const struct fabric_start *start)
{
    return (start->n + ELASTIC_CHUNK - 1) / ELASTIC_CHUNK + 1;
}

static enum arena_use take(bool first)
{
    return first ? ARENA_TAKE : ARENA_WRITE;
}

/* The regions that all trainers share: the first trainer takes the pages. The result's
 * pages are for means; where only the last exchange can be a mean, that exchange takes
 * them (round.c). */
static descant_status map_common(struct shm *shm, const struct fabric_start *start,
                                 bool first)
{
    void *result, *center = NULL, *locks = NULL;
    descant_status status = arena_map(&shm->meet.arena, region_at(REGION_RESULT),
                                      start->room * sizeof(float),
                                      take(first && start->collective), &result);

    if (!status && start->center)
        status = arena_map(&shm->meet.arena, region_at(REGION_CENTER),
                           start->n * sizeof(float), take(first), &center);
    if (!status && start->center)
        status = arena_map(&shm->meet.arena, region_at(REGION_LOCKS),
                           n_locks(start) * sizeof(uint64_t), take(first), &locks);
    if (status)
        return status;
    shm->result = result;
    shm->fabric.center = center;
    shm->locks = locks;
    return DESCANT_OK;
}

static size_t manifest_bytes(const struct shm_board *board)
{
    return atomic_load_explicit(&board->manifest_bytes, memory_order_acquire);
}

/* manifest: the job's, line by line; the figures beside it differ where plans do. */
static descant_status compare(struct shm *shm, const struct fabric_start *start,
                              const char *manifest)
{
    const struct shm_board *board = board_of(shm);
    const struct log *log = &shm->fabric.log;
    descant_status status = manifest_check(manifest, start->manifest, log);

    if (!status &&
        (board->n != start->n || board->room != start->room ||
         board->collective != start->collective || board->center != start->center ||
         board->n_outer != (uint32_t)start->n_outer))
        return log_fail(log, DESCANT_MISMATCH,
                        "the job's vector has %llu floats, here it has %zu; or the plans "
                        "differ", (unsigned long long)board->n, start->n);
    return status;
}

/* Leaves the reason of the refusal on the board, where waiting trainers log it. */
static void leave_word(struct shm *shm)
{
    struct shm_board *board = board_of(shm);

    board->refused = shm->fabric.rank;
    snprintf(board->refusal, sizeof board->refusal, "%s", descant_last_error());
    atomic_fetch_add_explicit(&board->n_refused, 1, memory_order_release);
    roster_ring(roster_of(shm), ~(uint64_t)0);
}

/* Called inside the door. */
static descant_status start_common(struct shm *shm, const struct fabric_start *start)
{
    struct shm_board *board = board_of(shm);
    bool first = manifest_bytes(board) == 0;
    size_t bytes = first ? strlen(start->manifest) + 1 : manifest_bytes(board);
    void *manifest;
    descant_status status = arena_map(&shm->meet.arena, region_at(REGION_MANIFEST), bytes,
                                      take(first), &manifest);

    if (!status && !first && (status = compare(shm, start, manifest)))
        leave_word(shm);
    if (!status)
        status = map_common(shm, start, first);
    if (atomic_load_explicit(&board->formed, memory_order_relaxed))
        shm->round.n_refused =
            atomic_load_explicit(&board->n_refused, memory_order_relaxed);
    if (!status && first) {
        memcpy(manifest, start->manifest, bytes);
        board->n = start->n;
        board->room = start->room;
        board->collective = start->collective;
        board->center = start->center;
        board->n_outer = (uint32_t)start->n_outer;
        atomic_store_explicit(&board->manifest_bytes, bytes, memory_order_release);
    }
    return status;
}

/* What this trainer alone writes: the contribution, which peers read; the outer vectors,
 * which joiners copy; and, in this process's own memory, pieces to compute in. */
static descant_status start_own(struct shm *shm, const struct fabric_start *start)
{
    struct fabric *f = &shm->fabric;
    descant_status status = DESCANT_OK;

    if (!start->in_place)
        status = shm_map_own(shm, SLOT_CONTRIBUTION, 0,
                         shm_contribution_floats(start->room), &f->contribution);
    if (!start->in_place && !status) {
        shm->piece = memory_take_array(SLICE_CHUNK, sizeof(float));
        if (!shm->piece)
            return log_fail(&f->log, DESCANT_MEMORY, "no memory for means");
    }
    for (int k = 0; k < start->n_outer && !status; k++)
        status = shm_map_own(shm, (enum slot_region)(SLOT_OUTER0 + k), 0, start->n,
                             &f->outer[k]);
    if (status || !start->center)
        return status;
    shm->moved = memory_take_array(ELASTIC_CHUNK, sizeof(float));
    shm->left = memory_take_array(n_locks(start), sizeof(bool));
    if (!shm->moved || !shm->left)
        return log_fail(&f->log, DESCANT_MEMORY, "no memory for elastic exchanges");
    return DESCANT_OK;
}

/* The life goes on to WAITING with the first exchange, not here; `lives` makes the others
 * count this trainer's threads. */
static descant_status shm_start(struct fabric *f, const struct fabric_start *start)
{
    struct shm *shm = shm_of(f);
    struct arrival *mine = own_arrival(shm);

    if (shm->started || start->room < start->n || start->n_outer < 0 ||
        start->n_outer > 2)
        return log_fail(&f->log, DESCANT_ORDER, "start cannot be called so");
    descant_status status = meet_door_take(&shm->meet);
    if (status)
        return status;
    status = start_common(shm, start);
    meet_door_give(&shm->meet);
    if (!status)
        status = start_own(shm, start);
    if (!status)
        status = shm_agree_start(shm);
    if (status)
        return status;
    shm->start = *start;
    shm->start.manifest = NULL;
    mine->in_place = start->in_place;
    atomic_store_explicit(&mine->threads, start->threads, memory_order_relaxed);
    atomic_fetch_add_explicit(&roster_of(shm)->lives, 1, memory_order_release);
    shm->started = true;
    f->n_bulletins = MACHINE_SLOTS;
    atomic_store_explicit(&f->bulletins, board_of(shm)->bulletins, memory_order_release);
    return DESCANT_OK;
}

/* --- exchanges --- */

static descant_status shm_begin(struct fabric *f, const struct exchange *exchange)
{
    return shm_round_begin(shm_of(f), exchange);
}

static enum fabric_progress shm_poll(struct fabric *f, struct fabric_part *part)
{
    struct shm *shm = shm_of(f);
    show_told(shm);
    enum fabric_progress progress = shm_round_poll(shm, part);

    shm_waits_note(shm, progress);
    return progress;
}

/* Any thread, beside polls. A caller that asks for no sleep has asked for the figures. */
static void shm_wait(struct fabric *f, uint64_t until_ns)
{
    if (until_ns && until_ns <= clock_now_ns()) {
        shm_count_members(shm_of(f));        /* which the notes report */
        shm_note_changes(shm_of(f));
    }
    shm_waits_sleep(shm_of(f), until_ns);
}

const struct fabric_type fabric_shm = {
    .name = "shm",
    .address = "shm:NAME[,rate=1gbit][,rtt=1ms]",
    .post = &shm_post,
    .agree = &shm_agree,
    .shared = true,
    .help = "processes of one machine, in shared memory; rate and rtt emulate a link",
    .open = shm_open,
    .alloc = shm_alloc,
    .share = shm_share,
    .start = shm_start,
    .begin = shm_begin,
    .poll = shm_poll,
    .wait = shm_wait,
    .close = shm_close,
};
