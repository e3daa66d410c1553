/* SPDX-License-Identifier: MIT */
/* The hash table of rows: against a naive map; its growth, evictions and bytes, and the work of one
 * call, which is bounded; threads, and processes that are killed at any moment. A record's first
 * two floats have the bits of its id, so that a row with another row's values is seen. */
#include "harness/processes.h"
#include "harness/suite.h"
#include "owners/slab.h"

#include <math.h>
#include <pthread.h>
#include <sys/wait.h>

enum { RECORD = 5, IDS = 3000, LINE = 64 };
/* Bytes of a row, as docs/owners.md has them. */
enum { EACH = (16 + RECORD * 4 + 15) / 16 * 16 + 4 };

static struct slab slab;
static unsigned char *block;
static size_t block_bytes;
static uint64_t now;                    /* of the rows' clock */

static void place(void *memory, size_t stripes, size_t bytes, uint64_t unused_ns)
{
    ck_assert_uint_ge(bytes, slab_least(stripes, RECORD));
    ck_assert(slab_place(&slab, stripes, RECORD, unused_ns, memory, bytes));
}

/* With a guard behind. */
static void begin(size_t stripes, size_t bytes, uint64_t unused_ns)
{
    block_bytes = bytes;
    block = memory_take(bytes + LINE);
    ck_assert_ptr_nonnull(block);
    memset(block + bytes, 77, LINE);
    now = 1;
    place(block, stripes, bytes, unused_ns);
}

static void end(void)
{
    for (int k = 0; k < LINE; k++)
        ck_assert(block[block_bytes + (size_t)k] == 77);
    memory_give(block);
    ck_assert_int_eq(memory_live(), 0);
}

static size_t bytes_for(size_t stripes, size_t rows)    /* of each */
{
    return slab_least(stripes, RECORD) + (rows - SLAB_LEAST) * EACH * stripes;
}

static struct slab_row row_of(uint64_t id)
{
    return (struct slab_row){.id = id, .now_ns = now, .stripe = rng_mixed(id) % slab.stripes};
}

static void name(float *record, uint64_t id)
{
    memcpy(record, &id, sizeof id);
}

static bool has_name(const float *record, uint64_t id)
{
    return memcmp(record, &id, sizeof id) == 0;
}

static uint64_t looked(const struct slab_row *row)
{
    return slab.stripe[row->stripe].looked;
}

static uint64_t most_looked;            /* by one call of push */
static _Atomic uint64_t changed[64];    /* a bit for each slot of one stripe, where push was */

/* Adds 1 to the row's third float; it is made where it is not there. False: it was not. */
static bool push(uint64_t id)
{
    struct slab_row row = row_of(id);
    uint64_t before = looked(&row);

    slab_open(&slab, &row);
    bool there = row.record != NULL;
    if (!there) {
        float *record = slab_make(&slab, &row);
        memset(record, 0, RECORD * sizeof *record);
        name(record, id);
        slab_keep(&slab, &row);
    }
    ck_assert(has_name(row.record, id));
    row.record[2]++;
    if (slab.stripes == 1)
        changed[row.slot / 64 % 64] |= UINT64_C(1) << row.slot % 64;
    uint64_t steps = looked(&row) - before;
    most_looked = steps > most_looked ? steps : most_looked;
    slab_close(&slab, &row);
    return there;
}

/* What was pushed to the row; -1: it is not there. */
static float read_row(uint64_t id)
{
    struct slab_row row = row_of(id);

    slab_open(&slab, &row);
    float value = row.record ? row.record[2] : -1;
    ck_assert(!row.record || has_name(row.record, id));
    slab_close(&slab, &row);
    return value;
}

static bool is_there(uint64_t id)
{
    return read_row(id) >= 0;
}

/* By one walk: each row once, with its own record, and where it is looked for. */
static uint64_t count_rows(void)
{
    enum { ROOM = 37 };
    uint64_t ids[ROOM], sum = 0;
    float records[ROOM * RECORD];
    const struct slab_some some = {.n = ROOM, .ids = ids, .records = records};

    for (size_t stripe = 0; stripe < slab.stripes; stripe++)
        for (size_t at = 0, n = ROOM; n == ROOM;) {
            n = slab_next(&slab, stripe, &at, &some);
            for (size_t k = 0; k < n; k++, sum++) {
                ck_assert(has_name(records + k * RECORD, ids[k]));
                ck_assert(read_row(ids[k]) == records[k * RECORD + 2]);
            }
        }
    return sum;
}

/* ------------------------------------------------------------------ alone */

static uint64_t odd_id(uint64_t k)      /* neighbours, multiples, and both ends */
{
    return k % 3 == 0 ? k : k % 3 == 1 ? UINT64_MAX - k : k << 40;
}

START_TEST(random_operations_are_those_of_a_map)
{
    static float map[IDS];
    static bool seen[IDS];
    struct rng rng;

    rng_init(&rng, (uint64_t)_i);
    begin((size_t)(1 + 6 * _i), bytes_for((size_t)(1 + 6 * _i), 2 * IDS), _i % 2 ? 1000 : 0);
    for (int k = 0; k < IDS; k++)
        map[k] = -1;
    for (int step = 0; step < 60000; step++) {
        uint64_t k = rng_next(&rng) % IDS;
        if (rng_next(&rng) % 2) {
            ck_assert(push(odd_id(k)) == (map[k] >= 0));
            map[k] = map[k] < 0 ? 1 : map[k] + 1;
        } else {
            ck_assert(read_row(odd_id(k)) == map[k]);
        }
    }
    uint64_t live = 0;
    for (int k = 0; k < IDS; k++) {
        seen[k] = map[k] >= 0;
        live += seen[k];
    }
    ck_assert_uint_eq(count_rows(), live);
    ck_assert_uint_eq(slab_figures(&slab).live, live);
    ck_assert_uint_eq(slab_figures(&slab).evicted, 0);
    end();
}
END_TEST

/* No row costs much more than another, however large the table has become. */
START_TEST(growth_is_in_small_moves)
{
    enum { ROWS = 300000 };
    uint64_t first = 0;

    begin(4, bytes_for(4, ROWS), 0);
    for (uint64_t k = 0; k < ROWS; k++) {
        ck_assert(!push(k * k));
        if (k == ROWS / 8)
            first = most_looked;
    }
    ck_assert_uint_eq(slab_figures(&slab).live, ROWS);
    ck_assert_msg(most_looked <= 40, "one push has looked at %d slots, of the first eighth at %d",
                  (int)most_looked, (int)first);
    uint64_t before = 0, after = 0;
    for (size_t k = 0; k < 4; k++)
        before += slab.stripe[k].looked;
    for (uint64_t k = 0; k < ROWS; k++)
        ck_assert(read_row(k * k) == 1);
    for (size_t k = 0; k < 4; k++)
        after += slab.stripe[k].looked;
    ck_assert((double)(after - before) < 1.7 * ROWS);
    end();
}
END_TEST

static bool all_zero(const void *from, size_t bytes)
{
    const unsigned char *at = from;

    for (size_t k = 0; k < bytes; k++)
        if (at[k])
            return false;
    return true;
}

/* The same at 50 % as at 90 %, and up to 9 % for stripes that are fuller than others. Beyond what
 * counts as in use, nothing was written. */
START_TEST(bytes_of_a_row_are_as_documented)
{
    enum { STRIPES = 128, ROOM = 4000 };
    uint64_t id = 0;

    begin(STRIPES, bytes_for(STRIPES, ROOM), 0);
    ck_assert_uint_eq(slab.room, ROOM);
    for (int percent = 50; percent <= 90; percent += 40) {
        size_t rows = (size_t)STRIPES * ROOM * (size_t)percent / 100;
        while (slab_figures(&slab).live < rows)
            for (int k = 0; k < 1000; k++)
                push(id++);
        struct slab_figures f = slab_figures(&slab);
        size_t most = (f.bytes - LINE - STRIPES * sizeof(struct slab_stripe)) / STRIPES / EACH;
        double a_row = (double)f.bytes / (double)f.live;
        ck_assert_uint_eq(f.evicted, 0);
        ck_assert_msg(a_row > EACH && a_row < 1.09 * EACH, "%d %%: %g bytes a row",
                      percent, a_row);
        const size_t layer = STRIPES * slab.stride;
        ck_assert(!all_zero(slab.slots + (most - 1) * layer, layer));
        ck_assert(all_zero(slab.slots + most * layer, (ROOM - most) * layer));
        ck_assert(all_zero(&slab.buckets[most * STRIPES], (ROOM - most) * STRIPES * 4));
    }
    while (slab_figures(&slab).evicted == 0)
        push(id++);
    ck_assert((double)slab_figures(&slab).live / (STRIPES * ROOM) > 0.92);
    ck_assert_uint_le(slab_figures(&slab).bytes, block_bytes);
    end();
}
END_TEST

/* Rows that are used stay, those that come once go. No push fails. */
START_TEST(the_least_used_go_when_memory_is_full)
{
    enum { STRIPES = 8, ROOM = 100, HOT = 300 };
    uint64_t cold = 1000000, hot_lost = 0;

    begin(STRIPES, bytes_for(STRIPES, ROOM), 0);
    for (int round = 0; round < 200; round++) {
        for (uint64_t k = 0; k < HOT; k++)
            hot_lost += !push(k) && round > 0;
        for (int k = 0; k < 150; k++, cold++) {
            push(cold);
            ck_assert(read_row(cold) == 1);
        }
        ck_assert_uint_le(slab_figures(&slab).live, STRIPES * ROOM);
    }
    struct slab_figures f = slab_figures(&slab);
    ck_assert_uint_gt(f.live, STRIPES * ROOM * 9 / 10);
    ck_assert_uint_eq(f.evicted + f.live, HOT + hot_lost + 200 * 150);
    ck_assert_msg(hot_lost < 200 * HOT / 100, "%d rows in use were evicted", (int)hot_lost);
    ck_assert_uint_eq(count_rows(), f.live);
    ck_assert_uint_le(most_looked, SLAB_STEPS);
    end();
}
END_TEST

START_TEST(rows_that_nobody_uses_go_after_a_time)
{
    enum { ROWS = 500 };
    const uint64_t unused = 1000000;

    begin(3, bytes_for(3, 4000), unused);
    for (uint64_t k = 0; k < ROWS; k++)
        push(k);
    for (int step = 0; step < 20; step++) {
        now += unused / 10;
        for (uint64_t k = 0; k < ROWS / 2; k++)         /* half of them are read */
            ck_assert(is_there(k));
        for (uint64_t k = 0; k < ROWS / 5; k++)         /* and the hand moves */
            push((uint64_t)(step + 1) * 10000 + k);
        if (step < 9)
            ck_assert_uint_eq(slab_figures(&slab).evicted, 0);
    }
    for (uint64_t k = 0; k < ROWS; k++)
        ck_assert(is_there(k) == (k < ROWS / 2));
    ck_assert_uint_eq(count_rows(), slab_figures(&slab).live);
    for (uint64_t k = 0; k < ROWS / 2; k++)
        ck_assert(is_there(k));
    now -= unused / 20;                                 /* a thread that looked at its clock before */
    for (uint64_t k = 0; k < 3 * ROWS; k++)
        push(500000 + k);
    for (uint64_t k = 0; k < ROWS / 2; k++)
        ck_assert(is_there(k));
    for (uint64_t k = 0; k < 20000; k++) {              /* their places are taken again */
        now += unused / 1000;
        push(1000000 + k);
    }
    ck_assert_uint_le(slab_figures(&slab).bytes, bytes_for(3, 1900));
    end();
}
END_TEST

/* The number whose rng_mixed is h. */
static uint64_t unmixed(uint64_t h)
{
    h ^= h >> 31 ^ h >> 62;
    h *= UINT64_C(0x319642b2d24d8ec3);
    h ^= h >> 27 ^ h >> 54;
    h *= UINT64_C(0x96de1b173f119089);
    return h ^ h >> 30 ^ h >> 60;
}

/* By ids that somebody has chosen to lie in one bucket. */
START_TEST(a_chain_is_never_long)
{
    begin(1, bytes_for(1, 20000), 0);
    for (uint64_t k = 0; k < 3000; k++) {
        uint64_t id = unmixed(UINT64_C(5) << 32 | k);
        ck_assert_uint_eq(rng_mixed(id), UINT64_C(5) << 32 | k);
        push(id);
        ck_assert(is_there(id));
        push(k);
    }
    ck_assert_uint_le(most_looked, SLAB_STEPS);
    uint64_t live = count_rows();       /* others that lie in the bucket take places, too */
    ck_assert(live <= 3000 + SLAB_CHAIN && live > 3000 - SLAB_CHAIN);
    ck_assert_uint_eq(slab_figures(&slab).evicted, 6000 - live);
    end();
}
END_TEST

START_TEST(rows_are_admitted_by_chance)
{
    enum { ROWS = 4000 };
    const double admit = _i ? 0.05 : 0.5;
    double sum = 0;

    begin(7, bytes_for(7, ROWS), 0);
    for (uint64_t id = 0; id < ROWS; id++) {
        struct slab_row row = row_of(id);
        slab_open(&slab, &row);
        int pushes = 1;
        while (!slab_admits(&slab, &row, admit))
            pushes++;
        sum += pushes;
        slab_close(&slab, &row);
    }
    double mean = 1 / admit, deviation = sqrt(1 - admit) / admit;
    ck_assert_msg(fabs(sum / ROWS - mean) < 5 * deviation / sqrt(ROWS), "%g pushes, not %g",
                  sum / ROWS, mean);
    ck_assert_uint_eq(slab_figures(&slab).refused, (uint64_t)sum - ROWS);
    struct slab_row row = row_of(1);
    slab_open(&slab, &row);
    ck_assert(slab_admits(&slab, &row, 1));
    slab_close(&slab, &row);
    end();
}
END_TEST

/* ------------------------------------------------------------------ copies */

/* A row of another stripe comes to the slot that it has there. */
static void copy_row(const struct slab *copy, uint64_t id, uint32_t slot, const float *record)
{
    struct slab_row row = {.id = id, .now_ns = now};
    uint64_t before = copy->stripe->looked;

    slab_open(copy, &row);
    bool there = row.record && row.slot == slot;
    float *to = there ? row.record : slab_make_at(copy, &row, slot);
    memcpy(to, record, RECORD * sizeof *to);
    if (!there)
        slab_keep(copy, &row);
    slab_close(copy, &row);
    uint64_t steps = copy->stripe->looked - before;
    most_looked = steps > most_looked ? steps : most_looked;
}

/* All rows of `slab`, or those that have changed: to its copy, or they are compared. */
static size_t go_over(const struct slab *copy, _Atomic uint64_t *only, bool compare)
{
    enum { ROOM = 5 };
    uint64_t ids[ROOM];
    uint32_t slots[ROOM];
    float records[ROOM * RECORD];
    const struct slab_some some = {ROOM, ids, slots, records, only};
    size_t at = 0, sum = 0;

    for (size_t n = ROOM; n == ROOM; sum += n) {
        n = slab_next(&slab, 0, &at, &some);
        for (size_t k = 0; k < n; k++) {
            struct slab_row row = {.id = ids[k], .now_ns = now};
            if (!compare) {
                copy_row(copy, ids[k], slots[k], records + k * RECORD);
                continue;
            }
            slab_open(copy, &row);
            ck_assert(row.record && row.slot == slots[k]);
            ck_assert_mem_eq(row.record, records + k * RECORD, RECORD * sizeof(float));
            slab_close(copy, &row);
        }
    }
    return sum;
}

/* Where both are full, and rows are evicted all the time, or where some are unused for too long. A
 * copy that makes rows itself has lost no slot, and its rows are new. */
START_TEST(a_copy_has_the_rows_of_its_stripe)
{
    enum { ROOM = 300 };
    const size_t bytes = bytes_for(1, ROOM);
    const uint64_t unused = _i % 2 ? 100000 : 0;
    struct slab copy;
    struct rng rng;
    size_t took = 0;

    rng_init(&rng, (uint64_t)_i);
    begin(1, bytes, unused);
    void *memory = memory_take(bytes);
    ck_assert(slab_place(&copy, 1, RECORD, unused, memory, bytes));
    for (int k = 0; k < 200; k++)
        push(rng_next(&rng) % 500);
    go_over(&copy, NULL, false);        /* all that it has, and then what changes */
    for (int round = 0; round < 100; round++) {
        for (int k = 0; k < 30; k++)
            push(rng_next(&rng) % (_i < 2 ? 250 : 3000));
        now += unused / 70;
        took += go_over(&copy, changed, false);
        ck_assert_uint_eq(go_over(&copy, NULL, true), slab_figures(&slab).live);
        ck_assert_uint_eq(go_over(&copy, changed, false), 0);
    }
    ck_assert(took > 1000 && took <= 200 + 100 * 30);
    ck_assert(_i < 1 || slab_figures(&slab).evicted > 0);
    ck_assert_uint_eq(slab_figures(&copy).evicted, 0);
    memory_give(block);
    slab = copy;
    block = memory;
    uint64_t live = count_rows();
    ck_assert_uint_eq(slab_figures(&slab).live, live);
    now += 10 * unused;
    push(5000);
    ck_assert_uint_eq(slab_figures(&slab).evicted, live == ROOM);
    while (slab_figures(&slab).live < ROOM)
        ck_assert(!push(6000 + live++));
    ck_assert_uint_eq(count_rows(), ROOM);
    ck_assert_uint_le(most_looked, SLAB_STEPS);
    memory_give(block);
}
END_TEST

/* Whatever rows somebody sends, to whatever slots. */
START_TEST(a_copy_of_chosen_rows_is_bounded)
{
    enum { ROOM = 4000 };
    float record[RECORD] = {0};

    begin(1, bytes_for(1, ROOM), 0);
    for (uint64_t k = 0; k < 6000; k++) {
        uint64_t id = unmixed(UINT64_C(5) << 32 | k % 3000);
        name(record, id);
        copy_row(&slab, id, (uint32_t)(k * 1999 % ROOM), record);
        ck_assert(is_there(id));
    }
    ck_assert_uint_le(most_looked, SLAB_STEPS);
    ck_assert_uint_eq(count_rows(), slab_figures(&slab).live);
    ck_assert_uint_le(slab_figures(&slab).live, SLAB_CHAIN);
    end();
}
END_TEST

/* ------------------------------------------------------------------ threads */

enum { THREADS = 4, SHARED_STRIPES = 4, SHARED_ROOM = 60, UNIVERSE = 500 };

static _Atomic uint64_t strange;        /* records with another row's values */

/* There is room for half of the ids: each push evicts another row. */
static void push_any(struct rng *rng)
{
    struct slab_row row = row_of(rng_next(rng) % UNIVERSE);

    slab_open(&slab, &row);
    bool there = row.record != NULL;
    if (!there && rng_next(rng) % 2) {
        float *record = slab_make(&slab, &row);
        for (int k = 0; k + 1 < RECORD; k += 2)
            name(record + k, row.id);
        slab_keep(&slab, &row);
    } else if (there && (!has_name(row.record, row.id) || !has_name(row.record + 2, row.id))) {
        strange++;
    } else if (there) {
        row.record[4]++;
    }
    slab_close(&slab, &row);
}

static void *pushes(void *of)
{
    struct rng rng;
    uint64_t id;
    float record[RECORD];
    const struct slab_some some = {.n = 1, .ids = &id, .records = record};

    rng_init(&rng, (uint64_t)(uintptr_t)of);
    for (int k = 0; k < 60000; k++) {
        push_any(&rng);
        size_t at = rng_next(&rng) % SHARED_ROOM, stripe = rng_next(&rng) % SHARED_STRIPES;
        slab_ask_slot(&slab, stripe, at);
        if (k % 8 == 0 && slab_next(&slab, stripe, &at, &some) && !has_name(record, id))
            strange++;
    }
    return NULL;
}

START_TEST(no_thread_sees_another_rows_values)
{
    pthread_t threads[THREADS];

    begin(SHARED_STRIPES, bytes_for(SHARED_STRIPES, SHARED_ROOM), 0);
    for (int k = 0; k < THREADS; k++)
        ck_assert_int_eq(pthread_create(&threads[k], NULL, pushes, (void *)(uintptr_t)(k + 1)), 0);
    for (int k = 0; k < THREADS; k++)
        pthread_join(threads[k], NULL);
    ck_assert_uint_eq(strange, 0);
    struct slab_figures f = slab_figures(&slab);
    ck_assert_uint_gt(f.evicted, 1000);
    ck_assert_uint_le(f.live, SHARED_STRIPES * SHARED_ROOM);
    end();
}
END_TEST

/* ------------------------------------------------------------------ processes */

static void begin_shared(void)
{
    size_t bytes = bytes_for(SHARED_STRIPES, SHARED_ROOM);

    now = 1;
    block = share_memory(bytes);
    place(block, SHARED_STRIPES, bytes, 0);
}

static pid_t child_of(void (*does)(void *), void *of)
{
    pid_t pid = fork();

    if (pid == 0) {
        does(of);
        _exit(0);
    }
    return pid;
}

static void wait_for(pid_t pid)
{
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
}

/* Rows that the child holds the lock of, and leaves in any state. */
static void dies_under_the_lock(void *of)
{
    struct slab_row row = row_of(UINT64_C(1) << 50);

    slab_open(&slab, &row);
    if (*(int *)of == 1) {
        slab_make(&slab, &row);         /* and has not kept it */
    } else if (*(int *)of == 2) {
        for (size_t k = 0; k < slab.room; k++)
            slab.buckets[k * slab.stripes + row.stripe] = 1;
        slab.stripe[row.stripe].free = 3;
        slab.stripe[row.stripe].live = 9;
    }
    _exit(0);
}

START_TEST(a_lock_whose_owner_died_is_taken)
{
    begin_shared();
    for (uint64_t k = 0; k < 100; k++)
        push(k);
    wait_for(child_of(dies_under_the_lock, &_i));
    ck_assert_uint_eq(count_rows(), 100);
    for (uint64_t k = 0; k < 100; k++)
        ck_assert(read_row(k) == 1);
    ck_assert(!is_there(UINT64_C(1) << 50));
    ck_assert(!push(UINT64_C(1) << 50));
    ck_assert_uint_eq(slab_figures(&slab).live, 101);
    for (uint64_t k = 1000; k < 3000; k++)
        push(k);
    ck_assert_uint_eq(slab_figures(&slab).live, count_rows());
    ck_assert_uint_eq(slab_figures(&slab).live, slab.stripes * slab.room);     /* none is lost */
}
END_TEST

static void pushes_for_ever(void *of)
{
    struct rng rng;
    _Atomic uint64_t *page = of;

    rng_init(&rng, (uint64_t)getpid());
    for (;;) {
        push_any(&rng);
        atomic_fetch_add(&page[0], 1);
        atomic_fetch_add(&page[1], atomic_exchange(&strange, 0));
    }
}

/* Each child is killed after some pushes, at whatever it does; others go on. */
START_TEST(a_process_that_is_killed_harms_no_other)
{
    enum { CHILDREN = 3, KILLS = 150 };
    _Atomic uint64_t *page = share_memory(2 * sizeof *page);
    pid_t children[CHILDREN];
    struct rng rng;

    begin_shared();
    rng_init(&rng, 1);
    for (int k = 0; k < CHILDREN; k++)
        children[k] = child_of(pushes_for_ever, page);
    for (int k = 0; k < KILLS; k++) {
        uint64_t until = atomic_load(&page[0]) + 1 + rng_next(&rng) % 300;
        while (atomic_load(&page[0]) < until)
            push_any(&rng);
        kill(children[k % CHILDREN], SIGKILL);
        wait_for(children[k % CHILDREN]);
        children[k % CHILDREN] = child_of(pushes_for_ever, page);
    }
    for (int k = 0; k < CHILDREN; k++) {
        kill(children[k], SIGKILL);
        wait_for(children[k]);
    }
    ck_assert_uint_eq(page[1] + strange, 0);
    uint64_t live = count_rows();
    ck_assert_uint_eq(slab_figures(&slab).live, live);
    for (uint64_t k = 1000; k < 4000; k++)
        push(k);
    ck_assert_uint_eq(count_rows(), slab.stripes * slab.room);
    ck_assert_uint_eq(slab_figures(&slab).live, slab.stripes * slab.room);
}
END_TEST

static void places_and_pushes(void *of)
{
    const size_t bytes = bytes_for(SHARED_STRIPES, SHARED_ROOM);

    if (!slab_place(&slab, SHARED_STRIPES, RECORD, 0, of, bytes))
        _exit(1);
    for (int k = 0; k < 100; k++)
        push(7);
}

/* All begin at once with a block of zeros, or with one that a dead process was at. */
START_TEST(one_process_prepares_the_block)
{
    enum { CHILDREN = 4, TIMES = 30 };
    const size_t bytes = bytes_for(SHARED_STRIPES, SHARED_ROOM);
    pid_t pids[CHILDREN], dead = fork();

    if (dead == 0)
        _exit(0);
    wait_for(dead);
    for (int time = 0; time < TIMES; time++) {
        struct slab_head *head = share_memory(bytes);
        if (time % 2)
            atomic_store(&head->prepared, (uint32_t)dead);
        for (int k = 0; k < CHILDREN; k++)
            pids[k] = child_of(places_and_pushes, head);
        for (int k = 0; k < CHILDREN; k++) {
            int status;
            ck_assert(waitpid(pids[k], &status, 0) == pids[k] && status == 0);
        }
        place(head, SHARED_STRIPES, bytes, 0);
        ck_assert(read_row(7) == 100 * CHILDREN);
    }
}
END_TEST

static void says_and_places(void *of)
{
    atomic_store(&((struct slab_head *)of)[1].prepared, 1);
    places_and_pushes(of);
}

/* While another process is at it, a block is left alone. */
START_TEST(one_that_prepares_is_waited_for)
{
    const size_t bytes = bytes_for(SHARED_STRIPES, SHARED_ROOM);
    struct slab_head *head = share_memory(bytes);
    int status;

    atomic_store(&head->prepared, (uint32_t)getpid());
    pid_t pid = child_of(says_and_places, head);
    while (!atomic_load(&head[1].prepared))     /* beside the head nothing lies there */
        usleep(100);
    for (uint64_t until = clock_now_ns() + 20000000; clock_now_ns() < until; usleep(100))
        ck_assert_uint_eq(atomic_load(&head->prepared), (uint32_t)getpid());
    atomic_store(&head->prepared, 0);
    ck_assert(waitpid(pid, &status, 0) == pid && status == 0);
    place(head, SHARED_STRIPES, bytes, 0);
    ck_assert(read_row(7) == 100);
}
END_TEST

int main(void)
{
    TCase *alone = new_case("alone", 60), *threads = new_case("threads", 60),
          *beside = new_case("beside", 60);

    tcase_add_loop_test(alone, random_operations_are_those_of_a_map, 0, 4);
    tcase_add_test(alone, growth_is_in_small_moves);
    tcase_add_test(alone, bytes_of_a_row_are_as_documented);
    tcase_add_test(alone, the_least_used_go_when_memory_is_full);
    tcase_add_test(alone, rows_that_nobody_uses_go_after_a_time);
    tcase_add_test(alone, a_chain_is_never_long);
    tcase_add_loop_test(alone, rows_are_admitted_by_chance, 0, 2);
    tcase_add_loop_test(alone, a_copy_has_the_rows_of_its_stripe, 0, 4);
    tcase_add_test(alone, a_copy_of_chosen_rows_is_bounded);
    tcase_add_test(threads, no_thread_sees_another_rows_values);
    tcase_add_loop_test(beside, a_lock_whose_owner_died_is_taken, 0, 3);
    tcase_add_test(beside, a_process_that_is_killed_harms_no_other);
    tcase_add_test(beside, one_process_prepares_the_block);
    tcase_add_test(beside, one_that_prepares_is_waited_for);
    return THREADS_ALONE ? run_cases(threads, NULL) : run_cases(alone, threads, beside, NULL);
}
