/* SPDX-License-Identifier: MIT */
/* Copies of hot rows of other owners: which rows are kept, for how long, and that a rank reads its
 * own pushes, in each order of an ask, its answer and pushes; then between ranks over the simulated
 * link, with jitter, cuts and liars. */
#include "harness/suite.h"
#include "link/simulated.h"
#include "owners/service.h"

#include <math.h>
#include <pthread.h>
#include <sched.h>

enum { WIDTH = 3, AGE_NS = 1000000000 };

static struct descant_owned shape_of(uint64_t rows, enum descant_rows_optimizer optimizer)
{
    return (struct descant_owned){.rows = rows, .width = WIDTH, .optimizer = optimizer,
                                  .beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-3, .seed = 5,
                                  .age = 1};
}

/* ------------------------------------------------------------------ the rule */

static const struct copy_rule rule = {AGE_NS, 4};

/* Each state, young and old, after few and many reads, against the rule in words. _i: by which the
 * old one is: its age, or its row has had another owner since it was asked for. */
START_TEST(what_a_fetch_does_with_a_row)
{
    int uses[COPY_USES] = {0};

    for (int state = COPY_ASKED; state <= COPY_HERE; state++)
        for (int old = 0; old < 2; old++)
            for (int n = 0; n <= UINT8_MAX; n++) {
                uint64_t now = 100 + AGE_NS - (uint64_t)(!old || _i > 0);
                uint64_t from = old && _i > 0 ? 99 + (uint64_t)_i : _i > 0 ? 99 : 0;
                int one_more = n < UINT8_MAX ? n + 1 : n;
                struct copy copy = {.row = 9, .since_ns = 100, .state = (uint8_t)state,
                                    .heat = (uint8_t)n, .reads = (uint8_t)n};
                enum copy_use use = copy_look(&copy, &rule, &(struct copy_times){now, from});
                bool pays = n + 1 >= (int)rule.worth;
                enum copy_use need = state != COPY_HERE ? COPY_FETCH
                                     : !old ? COPY_READ : pays ? COPY_ASK : COPY_FETCH;
                ck_assert_msg(use == need, "state %d, old %d, %d: %d, not %d", state, old, n, use,
                              need);
                uses[use]++;
                if (state == COPY_HERE && use == COPY_FETCH) {
                    ck_assert_int_eq(copy.state, COPY_NONE);
                    continue;
                }
                ck_assert(copy.row == 9 && copy.heat == one_more);
                ck_assert_uint_eq(copy.since_ns, use == COPY_ASK ? now : 100);
                ck_assert_int_eq(copy.state, use == COPY_ASK ? COPY_ASKED : state);
                ck_assert_int_eq(copy.reads, use == COPY_ASK ? 0 : use == COPY_READ ? one_more : n);
            }
    for (int use = 0; use < COPY_USES; use++)
        ck_assert_int_gt(uses[use], 0);
}
END_TEST

/* A thread that has read the clock before another one is not misled. */
START_TEST(a_clock_that_was_read_early_makes_nothing_old)
{
    struct copy copy = {.since_ns = 100, .state = COPY_HERE};

    ck_assert_int_eq(copy_look(&copy, &rule, &(struct copy_times){99, 0}), COPY_READ);
}
END_TEST

START_TEST(the_coldest_way_is_taken)
{
    struct rng rng;

    rng_init(&rng, 1);
    for (int time = 0; time < 20000; time++) {
        struct copy set[SET_WAYS] = {{0}};
        int ways = 1 + (int)(rng_next(&rng) % SET_WAYS), none = -1, best = -1;
        unsigned heat = (unsigned)(rng_next(&rng) % 6);
        for (int k = 0; k < ways; k++) {
            set[k].state = (uint8_t)(rng_next(&rng) % 12 ? COPY_ASKED + rng_next(&rng) % 3
                                                         : COPY_NONE);
            set[k].heat = (uint8_t)(rng_next(&rng) % 6);
            if (set[k].state == COPY_NONE && none < 0)
                none = k;
            if (set[k].state == COPY_HERE && set[k].heat < heat &&
                (best < 0 || set[k].heat < set[best].heat))
                best = k;
        }
        ck_assert_int_eq(copy_victim(set, ways, heat), none >= 0 ? none : best);
    }
}
END_TEST

/* ------------------------------------------------------------------ what is kept */

static struct owned table;
static struct copies *copies;

static enum copy_use look(struct copies *of, uint64_t row, uint64_t now_ns, float *out)
{
    return copies_look(of, row, &(struct copy_times){now_ns, 0}, out);
}

static void begin_copies(const struct descant_owned *shape)
{
    ck_assert(owned_init(&table, "t", shape, 0));
    copies = copies_create(&table);
    ck_assert_ptr_nonnull(copies);
}

static void end_copies(void)
{
    copies_destroy(copies);
    owned_fini(&table);
    ck_assert_int_eq(memory_live(), 0);
}

/* A fetch whose answer comes at once. */
static enum copy_use come(uint64_t row, uint64_t now_ns)
{
    static uint64_t number;
    float out[WIDTH], record[3 * WIDTH + 1] = {(float)row};
    enum copy_use use = look(copies, row, now_ns, out);

    if (use == COPY_ASK)
        copies_fill(copies, row, ++number, record);
    else if (use == COPY_READ)
        ck_assert(out[0] == (float)row);
    return use;
}

enum { MANY = 100000, KEPT = 5000, DRAWS = 300000 };
static double below[MANY];      /* the chance of the rows 0 to k */

static void make_zipf(double power)
{
    double sum = 0;

    for (int k = 0; k < MANY; k++)
        below[k] = sum += pow(k + 1, -power);
    for (int k = 0; k < MANY; k++)
        below[k] /= sum;
}

static uint64_t draw(struct rng *rng)
{
    double x = rng_uniform(rng);
    int low = 0, high = MANY - 1;

    while (low < high) {
        int middle = (low + high) / 2;
        if (below[middle] <= x)
            low = middle + 1;
        else
            high = middle;
    }
    return (uint64_t)low;
}

/* The share of fetches that copies serve, of rows that are shifted by so many. */
static double share(struct rng *rng, uint64_t shift)
{
    int reads = 0;

    for (int k = 0; k < DRAWS; k++)
        reads += come((draw(rng) + shift) % MANY, 5) == COPY_READ;
    return (double)reads / DRAWS;
}

/* At least 9 parts in 10 of what the hottest rows would save, if they were known; also after others
 * have become hot. */
START_TEST(hot_rows_are_kept)
{
    static const double powers[] = {0.8, 1, 1.2};
    struct descant_owned shape = shape_of(MANY, DESCANT_ROWS_ADAGRAD);
    struct rng rng;

    shape.cached = KEPT;
    make_zipf(powers[_i]);
    rng_init(&rng, 7);
    begin_copies(&shape);
    share(&rng, 0);
    double best = below[KEPT - 1], warm = share(&rng, 0);
    share(&rng, MANY / 2);
    double moved = share(&rng, MANY / 2);
    ck_assert_msg(warm > 0.9 * best && moved > 0.9 * best && warm <= best + 0.01,
                  "%g, then %g, of %g", warm, moved, best);
    end_copies();
}
END_TEST

/* Rows that come once push out none that comes in each batch, and get no records but where their
 * counters are those of others, too. */
START_TEST(rows_that_come_once_push_out_none)
{
    enum { HOT = 300, COLD = 3000, BATCHES = 90, WARM = 30 };
    struct descant_owned shape = shape_of(UINT64_C(1) << 40, DESCANT_ROWS_SGD);
    uint64_t cold = HOT;
    int missed = 0, asked = 0;

    shape.cached = 1000;
    begin_copies(&shape);
    for (int batch = 0; batch < BATCHES; batch++) {
        for (uint64_t row = 0; row < HOT; row++)
            missed += come(row, 5) != COPY_READ && batch > WARM;
        for (int k = 0; k < COLD; k++, cold++)
            asked += come(cold, 5) == COPY_ASK && batch > WARM;
    }
    ck_assert_int_le(missed, HOT * (BATCHES - WARM) / 100);
    ck_assert_int_le(asked, COLD * (BATCHES - WARM) / 100);
    end_copies();
}
END_TEST

/* However few: never more than `cached` rows have copies. */
START_TEST(no_more_are_kept_than_allowed)
{
    static const size_t most[] = {1, 2, 7, 8, 9, 100, 1000};
    enum { ROWS = 500 };

    for (int i = 0; i < N(most); i++) {
        struct descant_owned shape = shape_of(ROWS, DESCANT_ROWS_SGD);
        shape.cached = most[i];
        begin_copies(&shape);
        int reads = 0;
        for (uint64_t row = 0; row < ROWS; row++)
            for (int time = 0; time < 20; time++)
                reads += come(row, 5) == COPY_READ;
        ck_assert_int_gt(reads, 0);
        ck_assert_uint_le(copies_rooms(copies), most[i]);
        ck_assert_uint_le(copies_rooms(copies), ROWS);
        size_t kept = 0;        /* what this asks for does not come */
        float out[WIDTH];
        for (uint64_t row = 0; row < ROWS; row++)
            kept += look(copies, row, 5, out) == COPY_READ;
        ck_assert_msg(kept <= most[i] && (kept > 0 || most[i] < 100), "%zu of %zu", kept, most[i]);
        end_copies();
    }
    struct descant_owned shape = shape_of(UINT64_C(1) << 40, DESCANT_ROWS_SGD);
    begin_copies(&shape);
    ck_assert_uint_le(copies_rooms(copies), COPIES_BYTES / (WIDTH * sizeof(float)));
    ck_assert_uint_gt(copies_rooms(copies), COPIES_BYTES / (WIDTH * sizeof(float)) - SET_WAYS);
    end_copies();
}
END_TEST

/* A copy is read until it is as old as it may be. A row that comes too rarely for its record to
 * pay has none. */
START_TEST(copies_have_an_age)
{
    struct descant_owned shape = shape_of(1000, DESCANT_ROWS_SGD);

    begin_copies(&shape);
    ck_assert_int_eq(come(3, 10), COPY_FETCH);
    ck_assert_int_eq(come(3, 10), COPY_FETCH);
    ck_assert_int_eq(come(3, 10), COPY_ASK);
    ck_assert_int_eq(come(3, 10), COPY_READ);
    ck_assert_int_eq(come(3, 10 + AGE_NS - 1), COPY_READ);
    ck_assert_int_eq(come(3, 10 + AGE_NS), COPY_ASK);
    ck_assert_int_eq(come(3, 10 + 2 * (uint64_t)AGE_NS - 1), COPY_READ);
    ck_assert_int_eq(come(3, 10 + 2 * (uint64_t)AGE_NS), COPY_ASK);
    ck_assert_int_eq(come(3, 10 + 3 * (uint64_t)AGE_NS), COPY_FETCH);     /* it was not read */
    for (uint64_t k = 4; k < 100; k++) {
        ck_assert_int_eq(come(3, 10 + k * AGE_NS), COPY_FETCH);
        ck_assert_int_eq(come(k, 10 + k * AGE_NS), COPY_FETCH);
    }
    end_copies();
}
END_TEST

/* ------------------------------------------------------------------ own pushes */

/* The owner's row, as asks and pushes come to it in the order of their numbers. */
static struct {
    uint64_t number;
    uint64_t pushes[2];         /* numbers; 0: not posted */
    uint64_t asked;
} owner;

static const float by[] = {1, 10};

static void push_copy(uint64_t row, int which)
{
    float g[WIDTH] = {-by[which], 0, 0};
    copies_push(copies, row, owner.pushes[which], g, 1);
}

static void fill_copy(uint64_t row)
{
    float record[WIDTH] = {0};

    for (int k = 0; k < 2; k++)
        if (owner.pushes[k] && owner.pushes[k] < owner.asked)
            record[0] += by[k];
    copies_fill(copies, row, owner.asked, record);
}

/* All orders of the ask for a record (0: it is said to be asked for, 1: posted, 2: its answer
 * comes) and of two pushes (0: posted, 1: it comes to the copy). */
static int orders(int ask, int first, int second, int *events, int n)
{
    int done = 0;

    if (n < 7) {
        events[n] = 0;
        done += ask < 3 ? orders(ask + 1, first, second, events, n + 1) : 0;
        events[n] = 1;
        done += first < 2 ? orders(ask, first + 1, second, events, n + 1) : 0;
        events[n] = 2;
        return done + (second < 2 ? orders(ask, first, second + 1, events, n + 1) : 0);
    }
    static uint64_t now = 10;           /* the copy of the last order is too old */
    float out[WIDTH], all = 0;
    int asked = 0, posted[2] = {0};
    now += AGE_NS;
    owner.asked = owner.pushes[0] = owner.pushes[1] = 0;
    for (int k = 0; k < n; k++) {
        int push = events[k] - 1;
        if (push < 0 && asked++ == 0)
            ck_assert_int_eq(look(copies, 3, now, out), COPY_ASK);
        else if (push < 0 && asked == 2)
            owner.asked = ++owner.number;
        else if (push < 0)
            fill_copy(3);
        else if (posted[push]++ == 0)
            owner.pushes[push] = ++owner.number;
        else
            push_copy(3, push);
    }
    for (int k = 0; k < 2; k++)
        all += by[k];
    ck_assert_int_eq(look(copies, 3, now, out), COPY_READ);
    ck_assert_msg(out[0] == all, "order %d%d%d%d%d%d%d: %g", events[0], events[1], events[2],
                  events[3], events[4], events[5], events[6], (double)out[0]);
    return 1;
}

START_TEST(own_pushes_are_read_in_each_order)
{
    struct descant_owned shape = shape_of(1000, DESCANT_ROWS_SGD);
    int events[7];

    begin_copies(&shape);
    while (come(3, 10) != COPY_READ)
        ;
    ck_assert_int_eq(orders(0, 0, 0, events, 0), 210);
    end_copies();
}
END_TEST

/* Fetches a row until its record is asked for. */
static void ask_for(uint64_t row, uint64_t now_ns)
{
    float out[WIDTH];

    for (int k = 0; look(copies, row, now_ns, out) != COPY_ASK; k++)
        ck_assert_int_lt(k, 3);
}

/* Too many pushes while a record is on its way: it is not kept, and the next one is. */
START_TEST(too_many_pushes_spoil_a_copy)
{
    enum { TIMES = 50, FEW_PUSHES = 20, MANY_PUSHES = 200 };
    struct descant_owned shape = shape_of(1000, DESCANT_ROWS_SGD);
    float out[WIDTH], record[WIDTH] = {0};
    const float g[WIDTH] = {-1, 0, 0};
    uint64_t number = 0;

    shape.cached = 8;
    begin_copies(&shape);
    for (int time = 0; time < TIMES; time++) {
        uint64_t now = 10 + (uint64_t)time * AGE_NS, asked = ++number;
        int pushes = time % 2 ? MANY_PUSHES : FEW_PUSHES;
        ask_for(3, now);
        for (int k = 0; k < pushes; k++)
            copies_push(copies, 3, ++number, g, 1);
        copies_fill(copies, 3, asked, record);
        if (pushes == FEW_PUSHES) {
            ck_assert_int_eq(look(copies, 3, now, out), COPY_READ);
            ck_assert(out[0] == FEW_PUSHES);
            continue;
        }
        ask_for(3, now);                /* and this ask could not be posted: */
        copies_push(copies, 3, ++number, g, 1);
        copies_forget(copies, 3);
    }
    end_copies();
}
END_TEST

START_TEST(gradients_that_are_not_finite_leave_copies_alone)
{
    struct descant_owned shape = shape_of(1000, DESCANT_ROWS_ADAGRAD);
    const float bad[] = {1, NAN, 1}, worse[] = {1, 1, INFINITY};
    float out[WIDTH], record[2 * WIDTH] = {7, 8, 9, 1, 1, 1};

    begin_copies(&shape);
    ask_for(3, 10);
    copies_push(copies, 3, 2, bad, 1);          /* while it is on its way, */
    copies_fill(copies, 3, 1, record);
    copies_push(copies, 3, 3, worse, 1);        /* and after that */
    ck_assert_int_eq(look(copies, 3, 10, out), COPY_READ);
    ck_assert_mem_eq(out, record, sizeof out);
    end_copies();
}
END_TEST

START_TEST(without_memory_there_are_no_copies)
{
    struct descant_owned shape = shape_of(1000, DESCANT_ROWS_ADAM);
    int failed = 0;

    ck_assert(owned_init(&table, "t", &shape, 0));
    long live = memory_live();
    for (long at = 1; at < 20; at++) {
        memory_fail_at(at);
        copies = copies_create(&table);
        memory_fail_at(0);
        failed += copies == NULL;
        copies_destroy(copies);
        ck_assert_int_eq(memory_live(), live);
    }
    ck_assert_int_eq(failed, 5);
    owned_fini(&table);
}
END_TEST

/* --- by several threads --- */

enum { PUSHERS = 3, PUSHES = 4000, HOT_ROWS = 12, QUEUED = 1 << 16, AHEAD = 50 };

/* An owner in another thread: what is posted is done in the order of the numbers. */
static struct {
    pthread_mutex_t lock;
    struct posted {
        uint64_t row;
        int by;                 /* 0: an ask for its record */
    } queue[QUEUED];
    _Atomic uint32_t posted, done;
    _Atomic bool over;
    float sums[HOT_ROWS];
    _Atomic uint64_t now_ns;
} far;

static uint64_t post(uint64_t row, int amount)
{
    pthread_mutex_lock(&far.lock);
    uint32_t number = atomic_load(&far.posted) + 1;
    ck_assert_uint_lt(number, QUEUED);
    far.queue[number] = (struct posted){row, amount};
    atomic_store(&far.posted, number);
    pthread_mutex_unlock(&far.lock);
    return number;
}

static void *serve_far(void *unused)
{
    (void)unused;
    while (!atomic_load(&far.over) || atomic_load(&far.done) < atomic_load(&far.posted)) {
        uint32_t done = atomic_load(&far.done);
        if (done == atomic_load(&far.posted)) {
            sched_yield();
            continue;
        }
        struct posted next = far.queue[++done];
        float record[WIDTH] = {far.sums[next.row]};
        if (next.by)
            far.sums[next.row] += (float)next.by;
        else
            copies_fill(copies, next.row, done, record);
        atomic_store(&far.done, done);
    }
    return NULL;
}

static void *push_far(void *of)
{
    struct rng rng;
    float out[WIDTH], mine[HOT_ROWS] = {0};
    uint64_t me = (uint64_t)(size_t)of;

    rng_init(&rng, me);
    for (int k = 0; k < PUSHES; k++) {
        while (atomic_load(&far.posted) - atomic_load(&far.done) > AHEAD)
            sched_yield();
        uint64_t row = rng_next(&rng) % HOT_ROWS;
        uint64_t now = atomic_fetch_add(&far.now_ns, AGE_NS / 500);
        enum copy_use use = look(copies, row, now, out);
        if (use == COPY_ASK)
            post(row, 0);
        if (use == COPY_READ)
            ck_assert(out[0] >= mine[row]);
        float g[WIDTH] = {-1, 0, 0};
        uint64_t number = post(row, 1);
        mine[row]++;
        copies_push(copies, row, number, g, 1);
    }
    return NULL;
}

START_TEST(threads_read_what_they_have_pushed)
{
    struct descant_owned shape = shape_of(HOT_ROWS, DESCANT_ROWS_SGD);
    pthread_t threads[PUSHERS + 1];
    float out[WIDTH];
    int reads = 0;

    pthread_mutex_init(&far.lock, NULL);
    begin_copies(&shape);
    for (int k = 0; k <= PUSHERS; k++)
        pthread_create(&threads[k], NULL, k < PUSHERS ? push_far : serve_far, (void *)(size_t)k);
    for (int k = 0; k < PUSHERS; k++)
        pthread_join(threads[k], NULL);
    atomic_store(&far.over, true);
    pthread_join(threads[PUSHERS], NULL);
    for (uint64_t row = 0; row < HOT_ROWS; row++)
        if (look(copies, row, atomic_load(&far.now_ns), out) == COPY_READ) {
            ck_assert_msg(out[0] == far.sums[row], "row %d: %g, not %g", (int)row, (double)out[0],
                          (double)far.sums[row]);
            reads++;
        }
    ck_assert_int_gt(reads, 0);
    end_copies();
}
END_TEST

/* ------------------------------------------------------------------ between ranks */

enum { RANKS = 4, ROWS = 400, BATCH = 60, STEPS = 300, SEEDS = 8 };
#define LATENCY_NS UINT64_C(1000)
#define JITTER_NS UINT64_C(50000)
#define LAG_NS UINT64_C(1000000)        /* more than a message takes where no link is cut */

static struct simulated *world;
static struct descant_owned shape;
static struct side {
    struct service service;
    struct owned table;
    void *memory;
    bool open;
} sides[RANKS];
static int n_ranks, owners;
static char logged[4096];

static void note(void *user, enum descant_level level, const char *line)
{
    (void)user;
    if (level >= DESCANT_WARNING)
        snprintf(logged + strlen(logged), sizeof logged - strlen(logged), "%s\n", line);
}

static uint64_t virtual_now(void)
{
    return simulated_now(world);
}

static struct link *meet(int rank, struct link_place *at)
{
    struct link_entry entry = {.context = world, .rank = rank};
    struct link *link = link_simulated.meet(&entry, at);

    ck_assert_ptr_nonnull(link);
    return link;
}

static descant_status open_side(int rank)
{
    struct side *side = &sides[rank];
    struct service *s = &side->service;
    struct link_place at;
    struct link *link = meet(rank, &at);
    const struct log log = {note, NULL, rank};

    memset(s, 0, sizeof *s);
    side->open = true;
    ck_assert_int_eq(service_init(s, link, &at, owners, &log), DESCANT_OK);
    s->now_ns = virtual_now;
    ck_assert(owned_init(&side->table, "t", &shape, 0));
    side->memory = memory_take(owned_bytes(&side->table, &s->map, rank) + 64);
    ck_assert(owned_place(&side->table, &s->map, rank, side->memory));
    return service_open(s, &side->table, 1);
}

/* Rank 0 may be somebody else. */
static void open_world(struct simulated_options options, int ranks, int of_them, int from)
{
    options.ranks = ranks;
    options.latency_ns = LATENCY_NS;
    world = simulated_create(&options);
    ck_assert_ptr_nonnull(world);
    n_ranks = ranks;
    owners = of_them;
    *logged = 0;
    for (int k = from; k < ranks; k++)
        ck_assert_int_eq(open_side(k), DESCANT_OK);
}

/* All turn at each event until then. */
static void run(uint64_t ns)
{
    uint64_t until = simulated_now(world) + ns;

    for (;;) {
        bool works = false;
        for (int k = 0; k < n_ranks; k++)
            while (sides[k].open && service_turn(&sides[k].service) == OWNERS_WORKED)
                works = true;
        uint64_t next = simulated_next(world);
        if (!works && simulated_now(world) >= until)
            return;
        if (!works)
            simulated_run(world, next < until ? next : until);
    }
}

static void close_side(int rank)
{
    if (!sides[rank].open)
        return;
    sides[rank].open = false;
    service_fini(&sides[rank].service);
    owned_fini(&sides[rank].table);
    memory_give(sides[rank].memory);
}

static void close_world(void)
{
    for (int k = 0; k < n_ranks; k++)
        close_side(k);
    simulated_destroy(world);
    ck_assert_int_eq(memory_live(), 0);
}

static struct descant_rows *fetch(int rank, const uint64_t *rows, size_t n)
{
    struct descant_rows *batch = NULL;

    ck_assert_int_eq(batch_fetch(&sides[rank].service, 0, rows, n, &batch), DESCANT_OK);
    return batch;
}

static float *rows_of(int rank, struct descant_rows *batch)
{
    for (int k = 0; k < 1000 && atomic_load(&batch->missing); k++)
        run(LAG_NS);
    ck_assert_uint_eq(atomic_load(&batch->missing), 0);
    return batch_wait(&sides[rank].service, batch);
}

static bool reads_copies(int rank, uint64_t row)
{
    const struct owned *t = &sides[rank].table;
    return owned_owner(t, row) != rank;
}

/* Of rows that another rank owns; most are of the first 40. */
static uint64_t some_row(int rank, struct rng *rng)
{
    uint64_t row;

    do
        row = rng_next(rng) % (rng_next(rng) % 4 ? 40 : ROWS);
    while (!reads_copies(rank, row));
    return row;
}

static float pushed[RANKS][ROWS];       /* by each rank, so far */

static void push(int rank, struct descant_rows *batch, struct rng *rng)
{
    float g[BATCH * WIDTH] = {0};

    for (size_t k = 0; k < batch->n; k++) {
        float amount = (float)(1 + rng_next(rng) % 3);
        pushed[rank][batch->rows[k]] += amount;
        g[k * WIDTH] = -amount;
        g[k * WIDTH + 1] = -2 * amount;
    }
    ck_assert_int_eq(batch_push(&sides[rank].service, batch, g, 1), DESCANT_OK);
}

static double share_of_copies(int rank)
{
    const struct owners_stats *x = &sides[rank].service.stats;
    return (double)x->cached / (double)x->fetched;
}

static struct simulated_options world_of(int seed)
{
    return (struct simulated_options){.seed = (uint64_t)seed, .jitter_ns = JITTER_NS,
                                      .bytes_per_s = seed % 2 ? 1e8 : 0};
}

static void prepare(int seed, struct rng *rng, double age)
{
    shape = shape_of(ROWS, DESCANT_ROWS_SGD);
    shape.age = age;
    shape.cached = 64;
    rng_init(rng, (uint64_t)seed);
    memset(pushed, 0, sizeof pushed);
}

/* A row of which this rank has a copy is there at once; asked for past copies it comes from its
 * owner, behind all that this rank had pushed. */
START_TEST(owners_are_asked_past_copies)
{
    struct rng rng;
    uint64_t row = 0;

    prepare(1, &rng, 1000);
    open_world(world_of(1), 2, 2, 0);
    while (!reads_copies(0, row))
        row++;
    for (int k = 0; k < 20; k++) {
        struct descant_rows *batch = fetch(0, &row, 1);
        rows_of(0, batch);
        push(0, batch, &rng);
    }
    struct descant_rows *copy = fetch(0, &row, 1), *asked = NULL;
    ck_assert(batch_ready(copy));
    push(0, copy, &rng);
    ck_assert_int_eq(batch_ask(&sides[0].service, 0, &row, 1, &asked), DESCANT_OK);
    ck_assert(!batch_ready(asked));
    const float *block = rows_of(0, asked);
    ck_assert(block[0] >= pushed[0][row] && block[0] <= pushed[0][row]);
    batch_let_go(&sides[0].service, asked);
    copy = fetch(0, &row, 1);           /* and copies go on */
    ck_assert(batch_ready(copy));
    batch_let_go(&sides[0].service, copy);
    close_world();
}
END_TEST

/* Ranks that are alone in pushing a row read exactly what they have pushed before they asked: with
 * several batches under way, copies that are asked for again, cuts, a rank that owns nothing. */
START_TEST(ranks_read_exactly_their_own_pushes)
{
    enum { DEPTH = 3 };
    struct {
        struct descant_rows *batch;
        float need[BATCH];
    } flights[RANKS][DEPTH] = {0};
    struct rng rng;

    prepare(_i, &rng, 2e-3);
    open_world(world_of(_i), RANKS, RANKS - 1, 0);
    for (int step = 0; step < STEPS; step++)
        for (int rank = 0; rank < RANKS; rank++) {
            uint64_t rows[BATCH], now = simulated_now(world);
            const struct simulated_fault cut = {.kind = SIMULATED_CUT, .rank = rank,
                                                .other = (rank + 1) % RANKS, .at_ns = now,
                                                .until_ns = now + rng_next(&rng) % 3000000};
            if (step % 20 == 0 && _i % 4 >= 2)
                ck_assert(simulated_fault(world, &cut));
            if (flights[rank][step % DEPTH].batch) {
                struct descant_rows *batch = flights[rank][step % DEPTH].batch;
                const float *block = rows_of(rank, batch);
                for (int k = 0; k < BATCH; k++)
                    ck_assert_msg(block[k * WIDTH] == flights[rank][step % DEPTH].need[k] &&
                                  block[k * WIDTH + 1] == 2 * block[k * WIDTH],
                                  "step %d, rank %d, row %d: %g, not %g", step, rank,
                                  (int)batch->rows[k], (double)block[k * WIDTH],
                                  (double)flights[rank][step % DEPTH].need[k]);
                push(rank, batch, &rng);
            }
            for (int k = 0; k < BATCH; k++) {
                do
                    rows[k] = some_row(rank, &rng);
                while (rows[k] / 3 % RANKS != (uint64_t)rank);
                flights[rank][step % DEPTH].need[k] = pushed[rank][rows[k]];
            }
            flights[rank][step % DEPTH].batch = fetch(rank, rows, BATCH);
            run(rng_next(&rng) % 100000);
        }
    for (int rank = 0; rank < RANKS; rank++) {
        for (int k = 0; k < DEPTH; k++)
            batch_let_go(&sides[rank].service, flights[rank][k].batch);
        ck_assert_msg(share_of_copies(rank) > 0.2, "%g", share_of_copies(rank));
    }
    ck_assert_str_eq(logged, "");
    close_world();
}
END_TEST

/* What others have pushed is seen within an age; and once no copies are read, at once. */
START_TEST(others_see_pushes_within_an_age)
{
    static float history[STEPS][ROWS];
    static uint64_t times[STEPS];
    static uint64_t all[ROWS];
    const uint64_t age_ns = 20000000;
    struct rng rng;
    int old = 0;

    prepare(_i, &rng, (double)age_ns * 1e-9);
    open_world(world_of(_i), RANKS, RANKS, 0);
    for (int step = 0; step < STEPS; step++) {
        int rank = (int)(rng_next(&rng) % RANKS);
        uint64_t rows[BATCH], asked = times[step] = simulated_now(world);
        memset(history[step], 0, sizeof history[step]);
        for (int k = 0; k < ROWS; k++)
            for (int of = 0; of < RANKS; of++)
                history[step][k] += pushed[of][k];
        for (int k = 0; k < BATCH; k++)
            rows[k] = some_row(rank, &rng);
        struct descant_rows *batch = fetch(rank, rows, BATCH);
        const float *block = rows_of(rank, batch);
        while (times[old] + age_ns + LAG_NS < asked)
            old++;              /* all pushed before this step must be seen */
        for (int k = 0; k < BATCH; k++) {
            float v = block[k * WIDTH], least = old ? history[old - 1][rows[k]] : 0;
            ck_assert_msg(v >= least && v >= pushed[rank][rows[k]] && v <= history[step][rows[k]],
                          "step %d, row %d: %g of %g to %g", step, (int)rows[k], (double)v,
                          (double)least, (double)history[step][rows[k]]);
        }
        push(rank, batch, &rng);
        run(rng_next(&rng) % 200000);
    }
    run(2 * LAG_NS);                    /* copies are not too old yet */
    for (uint64_t k = 0; k < ROWS; k++)
        all[k] = k;
    for (int rank = 0; rank < RANKS; rank++) {
        ck_assert_msg(share_of_copies(rank) > 0.2, "%g", share_of_copies(rank));
        service_past_copies(&sides[rank].service);
        uint64_t before = sides[rank].service.stats.cached;
        struct descant_rows *batch = fetch(rank, all, ROWS);
        const float *block = rows_of(rank, batch);
        for (uint64_t k = 0; k < ROWS; k++)
            ck_assert(block[k * WIDTH] ==
                      pushed[0][k] + pushed[1][k] + pushed[2][k] + pushed[3][k]);
        ck_assert_uint_eq(sides[rank].service.stats.cached, before);
        batch_let_go(&sides[rank].service, batch);
    }
    ck_assert_int_gt(old, STEPS / 2);
    close_world();
}
END_TEST

/* Of one pusher, with each optimizer and wire: its copies have the owner's bits. So they have in
 * tables that grow, where a push of a row that is not there may be refused. */
START_TEST(copies_step_as_their_owner)
{
    enum { EACH = 40 };
    struct rng rng;
    int seen = 0;

    prepare(_i, &rng, 0.1);
    shape.optimizer = (enum descant_rows_optimizer)(_i % 4);
    shape.wire = (enum descant_rows_wire)(_i / 4 % 3);
    shape.momentum = _i >= 12 ? 0.9 : 0;
    shape.spread = 0.5;
    if (_i >= 13) {
        shape.grows = 1;
        shape.rows = 0;
        shape.memory = 4 << 20;
        shape.admit = _i == 13 ? 1 : 0.3;
        ck_assert(owned_check("t", &shape, &(struct log){.rank = -1}));
    }
    open_world(world_of(1), 2, 1, 0);
    for (int step = 0; step < EACH; step++) {
        uint64_t rows[BATCH];
        float g[BATCH * WIDTH];
        for (int k = 0; k < BATCH; k++)
            rows[k] = some_row(1, &rng);
        for (int k = 0; k < BATCH * WIDTH; k++)
            g[k] = (float)rng_normal(&rng);
        struct descant_rows *batch = fetch(1, rows, BATCH);
        if (step % 3)
            rows_of(1, batch);
        ck_assert_int_eq(batch_push(&sides[1].service, batch, g, 0.0625f), DESCANT_OK);
    }
    run(LAG_NS * 10);
    for (uint64_t row = 0; row < ROWS; row++) {
        float here[WIDTH], there[3 * WIDTH + 1];
        if (look(sides[1].service.copies[0], row, virtual_now(), here) != COPY_READ)
            continue;
        owned_record(&sides[0].table, row, there);
        ck_assert_msg(memcmp(here, there, sizeof here) == 0, "row %d: %g, not %g", (int)row,
                      (double)here[0], (double)there[0]);
        seen++;
    }
    ck_assert_int_gt(seen, 20);
    close_world();
}
END_TEST

/* An owner that sets a row is seen within an age, too. */
START_TEST(others_see_rows_that_are_set_within_an_age)
{
    const uint64_t row = 1, age_ns = 5000000;
    const float record[WIDTH] = {7, 8, 9};
    struct rng rng;
    int reads = 0;

    prepare(1, &rng, (double)age_ns * 1e-9);
    open_world(world_of(1), 2, 1, 0);
    for (int k = 0; k < 6; k++) {
        struct descant_rows *batch = fetch(1, &row, 1);
        ck_assert(*rows_of(1, batch) == 0);
        batch_let_go(&sides[1].service, batch);
    }
    owned_set(&sides[0].table, &row, 1, record);
    uint64_t until = simulated_now(world) + age_ns;
    for (float seen = 0; seen != *record;) {
        uint64_t asked = simulated_now(world);
        struct descant_rows *batch = fetch(1, &row, 1);
        seen = *rows_of(1, batch);
        batch_let_go(&sides[1].service, batch);
        ck_assert(seen == *record || asked < until);
        reads += seen == 0;
        run(LAG_NS / 10);
    }
    ck_assert_int_gt(reads, 5);         /* from the copy */
    close_world();
}
END_TEST

/* Left out and counted by the owner alone; the copy stays as it is. */
START_TEST(a_bad_gradient_is_counted_once)
{
    const uint64_t row = 1;
    float bad[WIDTH] = {0, NAN, 0}, good[WIDTH] = {-1, -1, -1};
    struct rng rng;

    prepare(1, &rng, 100);
    open_world(world_of(1), 2, 1, 0);
    for (int k = 0; k < 9; k++) {
        struct descant_rows *batch = fetch(1, &row, 1);
        const float *block = rows_of(1, batch);
        ck_assert(block[1] == (float)(k - (k > 5)));
        ck_assert_int_eq(batch_push(&sides[1].service, batch, k == 5 ? bad : good, 1), DESCANT_OK);
    }
    run(LAG_NS);
    ck_assert_uint_eq(sides[0].service.stats.bad, 1);
    ck_assert_uint_eq(sides[1].service.stats.bad, 0);
    ck_assert_uint_ge(sides[1].service.stats.cached, 5);
    close_world();
}
END_TEST

START_TEST(where_nothing_can_be_copied_there_are_no_copies)
{
    struct service alone = {0};
    struct rng rng;

    prepare(1, &rng, 1);
    open_world(world_of(1), 1, 1, 0);
    ck_assert_ptr_null(sides[0].service.copies);
    close_world();
    open_world(world_of(1), 2, 1, 0);
    ck_assert(sides[1].service.copies && sides[1].service.copies[0]);
    close_world();
    shape.age = 0;
    open_world(world_of(1), 2, 2, 0);
    ck_assert(!sides[0].service.copies && !sides[1].service.copies);
    close_world();
    shape.age = 1;                      /* on one machine */
    ck_assert_int_eq(service_init(&alone, NULL, NULL, 1, &(struct log){.rank = -1}), DESCANT_OK);
    ck_assert(owned_init(&sides[0].table, "t", &shape, 0));
    ck_assert_int_eq(service_open(&alone, &sides[0].table, 1), DESCANT_OK);
    ck_assert_ptr_null(alone.copies);
    service_fini(&alone);
    owned_fini(&sides[0].table);
    ck_assert_int_eq(memory_live(), 0);
}
END_TEST

/* Each taking of memory fails once. A fetch that fails leaves no row that is said to be asked for:
 * all are read from copies in the end. */
START_TEST(fetches_without_memory_fail_alone)
{
    uint64_t rows[8];
    struct rng rng;
    int failed = 0;

    for (long at = 1; at < 12; at++) {
        prepare(1, &rng, 100);
        shape.optimizer = DESCANT_ROWS_ADAGRAD;         /* its records need more room than rows */
        open_world(world_of(1), 2, 1, 0);
        run(LAG_NS);
        for (uint64_t k = 0; k < 8; k++)
            rows[k] = k;
        for (int time = 0; time < 6; time++) {
            struct descant_rows *batch = NULL;
            memory_fail_at(time == 2 ? at : 0);         /* records are asked for the first time */
            descant_status status = batch_fetch(&sides[1].service, 0, rows, 8, &batch);
            memory_fail_at(0);
            failed += status != DESCANT_OK;
            if (status == DESCANT_OK) {
                rows_of(1, batch);
                batch_let_go(&sides[1].service, batch);
            }
            run(LAG_NS);
        }
        uint64_t before = sides[1].service.stats.cached;
        batch_let_go(&sides[1].service, fetch(1, rows, 8));
        ck_assert_uint_eq(sides[1].service.stats.cached, before + 8);
        close_world();
    }
    ck_assert_int_gt(failed, 0);
    prepare(1, &rng, 100);
    open_world(world_of(1), 2, 1, 1);
    for (int k = 0; k < 6; k++) {       /* of the list, and of five blocks */
        close_side(1);
        simulated_destroy(world);
        world = simulated_create(&(struct simulated_options){.ranks = 2, .latency_ns = 1});
        sides[1].open = true;
        memset(&sides[1].service, 0, sizeof sides[1].service);
        struct link_place at;
        struct link *link = meet(1, &at);
        ck_assert_int_eq(service_init(&sides[1].service, link, &at, 1, &(struct log){.rank = -1}),
                         DESCANT_OK);
        ck_assert(owned_init(&sides[1].table, "t", &shape, 0));
        sides[1].memory = NULL;
        memory_fail_at(k + 1);
        ck_assert_int_eq(service_open(&sides[1].service, &sides[1].table, 1), DESCANT_MEMORY);
        memory_fail_at(0);
    }
    close_world();
}
END_TEST

/* ------------------------------------------------------------------ liars */

static unsigned char heard[2 * ASK_BYTES];

/* The owner is a liar: it answers two fetches, and then an ask for a copy as if it were a third. */
START_TEST(a_record_of_another_length_is_refused)
{
    const uint64_t row = 1;
    struct rng rng;
    struct link_place at;
    struct link_news news;

    prepare(1, &rng, 1);
    shape.optimizer = DESCANT_ROWS_ADAGRAD;
    open_world((struct simulated_options){.seed = 1}, 2, 1, 1);
    struct link *liar = meet(0, &at);
    ck_assert(link_simulated.collect(liar, &news));
    run(LAG_NS);
    for (int time = 0; time < 3; time++) {
        struct descant_rows *batch = fetch(1, &row, 1);
        ck_assert(link_simulated.receive(liar, heard, sizeof heard,
                                         &(struct link_message){1, OWNERS_ASK, 0, NULL}));
        run(LAG_NS);
        ck_assert(link_simulated.collect(liar, &news));
        ck_assert_int_eq(((struct ask_head *)(void *)heard)->kind, time < 2 ? ASK_FETCH : ASK_COPY);
        ck_assert(link_simulated.send(liar, heard, WIDTH * sizeof(float),
                                      &(struct link_message){1, OWNERS_ANSWER, 0, NULL}));
        run(LAG_NS);
        ck_assert(link_simulated.collect(liar, &news));
        ck_assert_uint_eq(atomic_load(&batch->missing), time == 2);
        batch_let_go(&sides[1].service, batch);
    }
    ck_assert_int_eq(atomic_load(&sides[1].service.status), DESCANT_CORRUPT);
    ck_assert_ptr_nonnull(strstr(logged, "has answered 1 rows by 12 bytes"));
    link_simulated.close(liar, false);
    close_world();
}
END_TEST

/* Asks for copies of what is not there, or of too much: that rank is forgotten. */
START_TEST(what_is_no_ask_for_copies_is_refused)
{
    static const struct {
        struct ask_head head;
        uint32_t row;
        size_t bytes;
        const char *why;
    } lies[] = {
        {{.kind = ASK_COPY, .n = 1}, ROWS, 20, "a row that there is not"},
        {{.kind = ASK_COPY, .n = 1}, 1, 20, "another rank's"},
        {{.kind = ASK_COPY, .n = 1}, 0, 24, "another number of rows"},
        {{.kind = ASK_COPY, .n = 0}, 0, 16, "another number of rows"},
        {{.kind = ASK_COPY, .n = ASK_BYTES / (8 * WIDTH) + 1}, 0,
         16 + 4 * (ASK_BYTES / (8 * WIDTH) + 1), "another number of rows"},
        {{.kind = ASK_COPY, .n = 1, .table = 1}, 0, 20, "no table"},
        {{.kind = ASK_COPY + 1, .n = 1}, 0, 20, "no known way"},
    };
    struct rng rng;
    struct link_place at;
    struct link_news news;

    prepare(1, &rng, 1);
    shape.optimizer = DESCANT_ROWS_ADAGRAD;
    open_world((struct simulated_options){.seed = 1}, 3, 2, 0);
    close_side(2);
    run(LAG_NS);
    struct link *liar = meet(2, &at);
    run(LAG_NS);
    ck_assert(link_simulated.collect(liar, &news));
    memset(heard, 0, sizeof heard);
    memcpy(heard, &lies[_i].head, sizeof lies[_i].head);
    memcpy(heard + sizeof lies[_i].head, &lies[_i].row, sizeof lies[_i].row);
    ck_assert(link_simulated.send(liar, heard, lies[_i].bytes,
                                  &(struct link_message){0, OWNERS_ASK, 0, NULL}));
    run(LAG_NS * 10);
    const char *line = strstr(logged, "rank 2 breaks the protocol");
    ck_assert_msg(line && strstr(line, lies[_i].why), "%d: %s", _i, logged);
    link_simulated.close(liar, false);
    close_world();
}
END_TEST

int main(void)
{
    TCase *kept = new_case("kept", 60), *pushes = new_case("pushes", 60),
          *threads = new_case("threads", 60), *ranks = new_case("ranks", 60),
          *liars = new_case("liars", 60);

    tcase_add_loop_test(kept, what_a_fetch_does_with_a_row, 0, 3);
    tcase_add_test(kept, a_clock_that_was_read_early_makes_nothing_old);
    tcase_add_test(kept, the_coldest_way_is_taken);
    tcase_add_loop_test(kept, hot_rows_are_kept, 0, 3);
    tcase_add_test(kept, rows_that_come_once_push_out_none);
    tcase_add_test(kept, no_more_are_kept_than_allowed);
    tcase_add_test(kept, copies_have_an_age);
    tcase_add_test(pushes, own_pushes_are_read_in_each_order);
    tcase_add_test(pushes, too_many_pushes_spoil_a_copy);
    tcase_add_test(pushes, gradients_that_are_not_finite_leave_copies_alone);
    tcase_add_test(pushes, without_memory_there_are_no_copies);
    tcase_add_test(threads, threads_read_what_they_have_pushed);
    tcase_add_test(ranks, owners_are_asked_past_copies);
    tcase_add_loop_test(ranks, ranks_read_exactly_their_own_pushes, 0, few(SEEDS, 2));
    tcase_add_loop_test(ranks, others_see_pushes_within_an_age, 0, few(SEEDS, 2));
    tcase_add_loop_test(ranks, copies_step_as_their_owner, 0, 15);
    tcase_add_test(ranks, others_see_rows_that_are_set_within_an_age);
    tcase_add_test(ranks, a_bad_gradient_is_counted_once);
    tcase_add_test(ranks, where_nothing_can_be_copied_there_are_no_copies);
    tcase_add_test(ranks, fetches_without_memory_fail_alone);
    tcase_add_test(liars, a_record_of_another_length_is_refused);
    tcase_add_loop_test(liars, what_is_no_ask_for_copies_is_refused, 0, 7);
    return THREADS_ALONE ? run_cases(threads, NULL)
                         : run_cases(kept, pushes, threads, ranks, liars, NULL);
}
