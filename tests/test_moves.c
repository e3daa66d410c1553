/* SPDX-License-Identifier: MIT */
/* Slices that come and go (moves.h): who is to have which; and worlds in which ranks come, leave
 * and die while all push: each push arrives once, but those that a death may take with it. */
#include "fabric/fabric.h"
#include "harness/rows.h"
#include "harness/suite.h"

#include <math.h>

enum { ROWS = RANKS_ROWS, WIDTH = RANKS_WIDTH };

/* ------------------------------------------------------------------ who is to have what */

/* All have their parts, no slice goes from a rank that has its part or less, and who has all that
 * it is to have keeps it. */
static void change_map(uint64_t seed)
{
    static struct owned_map map;
    int target[OWNED_SLICES], again[OWNED_SLICES];
    double shares[8], sum = 0;
    struct rng rng;

    rng_init(&rng, seed);
    int before = 1 + (int)(rng_next(&rng) % 8), n = 1 + (int)(rng_next(&rng) % 8);
    n = n < before ? before : n;
    owned_map_make(&map, before);
    for (int k = 0; k < n; k++) {
        shares[k] = rng_next(&rng) % 4 ? (double)(rng_next(&rng) % 5) / 2 : 1;
        sum += shares[k];
    }
    shares[n - 1] += !(sum > 0);
    sum += !(sum > 0);
    owned_map_target(&map, shares, n, target);
    int counts[8] = {0}, moved = 0, least = 0;
    for (int s = 0; s < OWNED_SLICES; s++) {
        ck_assert(target[s] >= 0 && target[s] < n && shares[target[s]] > 0);
        counts[target[s]]++;
        moved += target[s] != map.owner[s];
    }
    for (int k = 0; k < n; k++) {
        double part = OWNED_SLICES * shares[k] / sum;
        ck_assert_msg(fabs(counts[k] - part) < 1, "rank %d of %d: %d, not %g", k, n, counts[k],
                      part);
        least += map.slices[k] > counts[k] ? map.slices[k] - counts[k] : 0;
    }
    ck_assert_int_eq(moved, least);
    for (int s = 0; s < OWNED_SLICES; s++)      /* one after the other, in any order */
        if (target[s] != map.owner[s] && rng_next(&rng) % 2)
            owned_map_change(&map, s, target[s], 2);
    owned_map_target(&map, shares, n, again);
    int other = 0;
    for (int s = 0; s < OWNED_SLICES; s++)
        other += again[s] != target[s];
    ck_assert_int_le(other, 2 * n);     /* as what is left by rounding may go elsewhere */
}

START_TEST(few_slices_move)
{
    for (uint64_t seed = 0; seed < 200; seed++)
        change_map(seed);
}
END_TEST

/* ------------------------------------------------------------------ what the job has lost */

enum { COMES_TO_LINK, JOB_LOSES, JOB_JOINS, LOOKS };

/* Processes 1, 2, … of a rank come to the link one after the other; the job hears of the end of
 * each, and of the next one, when it likes. */
struct one_rank {
    struct notes notes;
    struct owners_known known;
    int link, job;                      /* the process there; link 0: none */
    bool ended;                         /* the job's */
    bool lags;                          /* the link was behind the job */
};

static void look_at(struct one_rank *one)
{
    struct rank_life of = notes_life(&one->notes, 0);
    struct owners_life is = {.lives = of.life + 1, .ended = of.ended, .lost = of.lost,
                             .came = (uint32_t)one->link};
    bool lost = owners_is_lost(&one->known, &is, 1);

    ck_assert_msg(!lost || one->job > one->link || (one->job == one->link && one->ended),
                  "process %d is lost, but the job knows %d", one->link, one->job);
    ck_assert(lost || one->lags || !(one->ended && one->job == one->link));
}

static void play(struct one_rank *one, int event)
{
    if (event == COMES_TO_LINK) {
        one->link++;
    } else if (event == JOB_LOSES && !one->ended) {
        notes_add(&one->notes, DESCANT_EVENT_LOST, 0);
        one->ended = true;
    } else if (event == JOB_JOINS && (one->ended || one->job == 1)) {
        notes_add(&one->notes, DESCANT_EVENT_JOINED, 0);
        one->job += one->ended;
        one->ended = false;
    } else if (event == LOOKS) {
        look_at(one);
    }
    one->lags |= one->link < one->job;
}

/* In all orders. _i 0: the first process comes late to the link, or never; 2: there is a look
 * after each event. */
START_TEST(a_newer_process_is_not_taken_for_the_lost_one)
{
    enum { LONG = 8 };

    for (int order = 0; order < 1 << 2 * LONG; order++) {
        struct one_rank one = {.link = _i > 0, .job = 1, .lags = _i < 2};
        notes_init(&one.notes);
        look_at(&one);
        for (int k = 0; k < LONG; k++) {
            play(&one, order >> 2 * k & 3);
            if (_i == 2)
                look_at(&one);
        }
        notes_fini(&one.notes);
    }
}
END_TEST

/* ------------------------------------------------------------------ worlds */

static struct rng rng;

enum { SETTLES_NS = 700000000 };        /* until all that moves has moved */
enum { GROWS = 1200000 };               /* seeds from there on: the table grows */

static uint64_t memory;                 /* of a table that grows, on each rank; 0: enough */
static double age;                      /* of copies of hot rows; 0: none */

/* `later` more ranks may come. Slow enough that slices are on their way for a while. */
static void open_moving(int seed, int ranks, int later, double follow_s)
{
    rng_init(&rng, (uint64_t)seed);
    memset(rows_pushed, 0, sizeof rows_pushed);
    rows_way = (struct rows_way){.moves = true, .grows = seed >= GROWS, .memory = memory,
                                 .follow_s = follow_s, .later = later, .age = age};
    rows_open_world((struct simulated_options){.seed = (uint64_t)seed, .jitter_ns = 200000,
                                               .bytes_per_s = 2e7},
                    ranks + later, ranks);
}

static struct moves *moves_of(int rank)
{
    return rows_sides[rank].service.moves;
}

static int slices_of(int rank)
{
    return (int)owned_slices(&rows_sides[rank].service.map, rank);
}

static int any_open(void)
{
    int rank;

    do
        rank = (int)(rng_next(&rng) % (uint64_t)rows_n);
    while (!rows_sides[rank].open);
    return rank;
}

static int open_ranks(void)
{
    int n = 0;

    for (int k = 0; k < rows_n; k++)
        n += rows_sides[k].open;
    return n;
}

static void cut(int rank, int other, uint64_t ns)
{
    const struct simulated_fault cut = {.kind = SIMULATED_CUT, .rank = rank, .other = other,
                                        .at_ns = simulated_now(rows_world),
                                        .until_ns = simulated_now(rows_world) + ns};
    ck_assert(simulated_fault(rows_world, &cut));
}

static void push_a_while(int batches)
{
    for (int k = 0; k < batches; k++) {
        rows_push_some(any_open(), &rng, rng_next(&rng) % (k % 4 ? 80 : 3000));
        rows_run(rng_next(&rng) % 300000);
    }
}

static void leave(int rank)
{
    moves_leave(&rows_sides[rank].service);
    for (int k = 0; k < 100 && !atomic_load(&moves_of(rank)->away); k++) {
        rows_push_some(any_open(), &rng, 60);
        rows_run(20000000);
    }
    ck_assert(atomic_load(&moves_of(rank)->away));
    service_end(&rows_sides[rank].service);
    rows_run(SETTLES_NS);
    ck_assert_int_eq(service_turn(&rows_sides[rank].service), OWNERS_ENDED);
    rows_close(rank);
    rows_run(10000000);
}

/* All that are there know the same map, and have equal parts. */
static void check_map(void)
{
    int first = any_open();

    for (int k = 0; k < rows_n; k++) {
        const struct service *s = &rows_sides[k].service;
        if (!rows_sides[k].open)
            continue;
        ck_assert_mem_eq(s->map.owner, rows_sides[first].service.map.owner, sizeof s->map.owner);
        ck_assert_int_eq(s->moves->shut, 0);
        ck_assert_int_eq(s->moves->left, 0);
        ck_assert_ptr_null(s->moves->held);
        ck_assert_uint_eq(atomic_load(&s->queued), 0);
        ck_assert_msg(abs(slices_of(k) - OWNED_SLICES / open_ranks()) <= 1, "rank %d has %d", k,
                      slices_of(k));
    }
}

START_TEST(ranks_come_and_leave)
{
    int ranks = 1 + _i % 3, later = 1 + _i % 2;

    open_moving(_i, ranks, later, _i % 4 == 3 ? 0.1 : 0);
    push_a_while(4);
    for (int k = ranks; k < ranks + later; k++) {
        rows_open_late(k);
        push_a_while(6);
    }
    rows_run(SETTLES_NS);
    check_map();
    rows_check(any_open());
    for (int k = 0; k < 2 && open_ranks() > 1; k++) {
        int rank = any_open();
        leave(rank);
        rows_run(SETTLES_NS);
        check_map();
        push_a_while(3);
        if (k == 0 && _i % 5 == 0) {
            rows_open_late(rank);               /* and comes again */
            push_a_while(3);
        }
    }
    rows_run(SETTLES_NS);
    check_map();
    for (int k = 0; k < rows_n; k++)
        if (rows_sides[k].open)
            rows_check(k);
    rows_end_all();
    ck_assert_str_eq(rows_logged, "");
    rows_close_world();
}
END_TEST

/* Also of slices that move meanwhile, and from copies of hot rows. */
START_TEST(a_rank_reads_its_own_pushes)
{
    enum { BATCH = 400 };
    static uint64_t rows[BATCH];
    static float g[BATCH * WIDTH];
    static int mine[ROWS];

    age = (double[]){1e3, 0, 0.06}[_i / 2 % 3];
    open_moving(_i, 3, 2, 0);
    memset(mine, 0, sizeof mine);
    for (int k = 0; k < BATCH * WIDTH; k++)
        g[k] = -1;
    int leaver = _i % 2 ? 1 : 0, pusher = _i % 3 == 0 ? 2 : 1 - leaver;
    for (int step = 0; step < 60; step++) {
        for (int k = 0; k < BATCH; k++)
            rows[k] = (uint64_t)(k * 13 + step % 3) % ROWS;
        struct descant_rows *batch = rows_fetch(pusher, rows, BATCH);
        const float *block = rows_come(pusher, batch);
        ck_assert_ptr_nonnull(block);
        for (int k = 0; k < BATCH; k++)
            ck_assert_msg(block[k * WIDTH] == (float)mine[rows[k]], "step %d, row %d: %g, not %d",
                          step, (int)rows[k], (double)block[k * WIDTH], mine[rows[k]]);
        for (int k = 0; k < BATCH; k++)
            mine[rows[k]]++;
        ck_assert_int_eq(batch_push(&rows_sides[pusher].service, batch, g, 1), DESCANT_OK);
        if (step == 5 || step == 25)
            rows_open_late(step == 5 ? 3 : 4);
        if (step == 15)
            moves_leave(&rows_sides[leaver].service);
        if (step == 40 && _i % 5 < 4)    /* what it has got, it gives away again */
            moves_leave(&rows_sides[pusher].service);
        if (step % 2)                   /* what it has said comes late, also after it has gone */
            cut(leaver, step % 4 == 1 ? 3 : pusher, 5000000);
        else
            cut(pusher, 3 + step / 2 % 2, 3000000);
        if (rows_sides[leaver].open && atomic_load(&moves_of(leaver)->away)) {
            service_end(&rows_sides[leaver].service);
            if (service_turn(&rows_sides[leaver].service) == OWNERS_ENDED)
                rows_close(leaver);
        }
        rows_run(rng_next(&rng) % 2000000);
    }
    ck_assert_int_gt(slices_of(3), 0);
    ck_assert(!rows_sides[leaver].open || slices_of(leaver) == 0);
    ck_assert((atomic_load(&rows_sides[pusher].service.stats.cached) > 100) == (age > 0));
    rows_end_all();
    rows_close_world();
}
END_TEST

struct word {
    struct ask_head head;
    struct moves_entry entry;
};

static const char *hear(struct service *s, int from, struct word word)
{
    const char *why = NULL;

    word.head.n = 1;
    ck_assert(moves_heard(s, from, (const unsigned char *)&word, sizeof word, &why) == !why);
    return why;
}

/* It hears from two others what a third one has, before it meets that one. */
START_TEST(an_owner_may_be_met_last)
{
    const struct word map = {{.kind = ASK_MAP, .rate = 1}, {.slice = 7, .rank = 2, .epoch = 2}};

    open_moving(0, 3, 1, 0);
    rows_open_late(3);
    struct service *s = &rows_sides[3].service;
    for (int from = 0; from < 2; from++)
        ck_assert_ptr_null(hear(s, from, map));
    ck_assert(s->map.owner[7] == 2 && s->map.epoch[7] == 2 && !s->map.shut[7]);
    rows_close_world();
}
END_TEST

/* Its owner died before it met this rank. */
START_TEST(a_claim_is_heard_of_an_owner_that_never_came)
{
    open_moving(0, 3, 1, 1e3);
    rows_open_late(3);
    struct service *s = &rows_sides[3].service;
    ck_assert_int_eq(s->map.owner[8], 2);
    ck_assert_ptr_null(hear(s, 1, (struct word){{.kind = ASK_CLAIM}, {8, 1, 1, 9}}));
    ck_assert_int_eq(s->map.owner[8], 1);
    rows_close_world();
}
END_TEST

/* One owner's word comes after that of the next one. */
START_TEST(the_last_owner_is_remembered)
{
    open_moving(0, 4, 0, 1e3);
    rows_run(10000000);
    struct service *s = &rows_sides[0].service;
    uint64_t is[4];
    for (int k = 0; k < 4; k++)
        is[k] = s->peers[k].generation;
    ck_assert_ptr_null(hear(s, 3, (struct word){{.kind = ASK_OWN}, {5, 3, 4, is[3]}}));
    ck_assert_ptr_null(hear(s, 2, (struct word){{.kind = ASK_OWN}, {5, 2, 2, is[2]}}));
    ck_assert(service_goes(s, 2) && service_goes(s, 1));        /* 1 owned it at the start */
    ck_assert(s->map.owner[5] == 3 && !s->map.shut[5]);
    rows_close_world();
}
END_TEST

/* Others cannot make a rank own what has not come to it. */
START_TEST(words_of_others_give_nothing)
{
    open_moving(0, 3, 0, 1e3);
    rows_run(10000000);
    struct service *s = &rows_sides[0].service;
    uint64_t own = s->place.generation;
    ck_assert_ptr_nonnull(hear(s, 1, (struct word){{.kind = ASK_OWN}, {7, 0, 8, own}}));
    ck_assert_ptr_nonnull(hear(s, 1, (struct word){{.kind = ASK_CLAIM}, {7, 0, 1, own}}));
    hear(s, 1, (struct word){{.kind = ASK_MOVED}, {7, 0, 8, own}});
    hear(s, 1, (struct word){{.kind = ASK_MAP, .rate = 1}, {7, 0, 8, own}});
    hear(s, 1, (struct word){{.kind = ASK_UNSURE}, {7, 0, 8, own}});
    ck_assert_int_eq(s->map.owner[7], 1);
    hear(s, 2, (struct word){{.kind = ASK_MAP, .rate = 1}, {7, 0, 8, own - 1}});
    ck_assert(!moves_serves(s, 7));     /* a process before this one had it */
    rows_close_world();
}
END_TEST

/* A row of the table that grows, from one that has begun to send its slice, or has not. */
START_TEST(a_row_comes_to_a_slot_that_there_is)
{
    struct __attribute__((packed)) {
        struct ask_head head;
        struct moves_part part;
        uint64_t row;
        uint32_t slot;
        float record[WIDTH];
    } rows = {.head = {.kind = ASK_SET, .n = 1}, .part = {0, 1}, .record = {3, 4, 5}};
    const char *why = NULL;

    open_moving(GROWS, 3, 0, 0);
    rows_run(10000000);
    struct service *s = &rows_sides[0].service;
    struct owned *table = &rows_sides[0].tables[0];
    while (owned_owner(table, rows.row) != 1)
        rows.row++;
    int slice = owned_slice(table, rows.row);
    const unsigned char *message = (const unsigned char *)&rows;
    ck_assert(moves_heard(s, 1, message, sizeof rows, &why));   /* as after REFUSED */
    ck_assert_ptr_null(table->memory[slice]);
    ck_assert_ptr_null(hear(s, 1, (struct word){{.kind = ASK_BEGIN}, {(uint16_t)slice, 1, 0, 9}}));
    rows.slot = (uint32_t)table->per_slice - 1;
    ck_assert(moves_heard(s, 1, message, sizeof rows, &why));
    ck_assert_uint_eq(table->parts[slice].slab->stripe->live, 1);
    ck_assert(!moves_heard(s, 1, message, sizeof rows - 4, &why) && why);
    why = NULL;
    rows.slot++;
    ck_assert(!moves_heard(s, 1, message, sizeof rows, &why) && why);
    rows_close_world();
}
END_TEST

/* The last words of the old owner come behind the first ones of the new owner. */
START_TEST(an_old_owner_begins_late)
{
    struct word begin = {{.kind = ASK_BEGIN, .rate = 1}, {.slice = 7, .rank = 2, .epoch = 2}};

    open_moving(0, 3, 0, 1e3);
    rows_run(10000000);
    struct service *s = &rows_sides[0].service;
    ck_assert_ptr_null(hear(s, 2, begin));
    begin.entry.epoch = 0;
    ck_assert_ptr_null(hear(s, 1, begin));
    ck_assert_int_eq(s->moves->slices[7].from, 2);
    ck_assert(moves_change(s, 8, 2, 2, false));
    begin.entry.slice = 8;
    ck_assert_ptr_null(hear(s, 1, begin));
    ck_assert_int_ne(s->moves->slices[8].from, 1);
    rows_close_world();
}
END_TEST

/* The answers to a first copy, which was dropped, come when the second one waits for its own. */
START_TEST(answers_are_of_their_begin)
{
    open_moving(0, 3, 0, 1e3);
    rows_run(10000000);
    struct service *s = &rows_sides[0].service;
    const uint64_t own = s->place.generation;
    struct follow *f = &s->moves->slices[0].to[0];
    *f = (struct follow){.rank = 1, .roles = TO_FOLLOW, .state = FOLLOW_ENDS, .number = 77};
    s->moves->slices[0].to[1].roles = 0;
    ck_assert_ptr_null(hear(s, 1, (struct word){{.kind = ASK_FOLLOWED, .of = 76}, {0, 0, 0, own}}));
    ck_assert_int_eq(f->state, FOLLOW_ENDS);
    ck_assert_ptr_null(hear(s, 1, (struct word){{.kind = ASK_REFUSED, .of = 76}, {0, 0, 0, own}}));
    ck_assert_int_eq(f->state, FOLLOW_ENDS);
    ck_assert_ptr_null(hear(s, 1, (struct word){{.kind = ASK_FOLLOWED, .of = 77}, {0, 0, 0, own}}));
    ck_assert_int_eq(f->state, FOLLOW_FOLLOWS);
    rows_close_world();
}
END_TEST

/* And a rank names the BEGIN that it answers: it takes the first copy, and refuses the second. */
START_TEST(a_copy_that_is_refused_is_not_believed)
{
    open_moving(0, 2, 0, 1e3);
    rows_run(SETTLES_NS);
    struct service *s = &rows_sides[0].service, *r = &rows_sides[1].service;
    struct follow *f = &s->moves->slices[0].to[0];
    const struct moves_entry e = moves_entry_of(s, 0);
    ck_assert(f->roles == TO_FOLLOW && f->state == FOLLOW_FOLLOWS && f->number > 0);
    *f = (struct follow){.rank = 1, .roles = TO_FOLLOW, .state = FOLLOW_ENDS, .number = 9001};
    ck_assert_ptr_null(hear(r, 0, (struct word){{.kind = ASK_DROP}, e}));
    ck_assert_ptr_null(hear(r, 0, (struct word){{.kind = ASK_BEGIN, .of = 9000}, e}));
    ck_assert_ptr_null(hear(r, 0, (struct word){{.kind = ASK_COMPLETE}, e}));
    ck_assert_ptr_null(hear(r, 0, (struct word){{.kind = ASK_DROP}, e}));
    r->map.epoch[0] = 2;
    ck_assert_ptr_null(hear(r, 0, (struct word){{.kind = ASK_BEGIN, .of = 9001}, e}));
    ck_assert_ptr_null(hear(r, 0, (struct word){{.kind = ASK_COMPLETE}, e}));
    rows_run(10000000);
    ck_assert_int_eq(f->state, FOLLOW_REFUSED);
    r->map.epoch[0] = 0;
    rows_run(200000000);                /* it is offered again */
    ck_assert_int_eq(f->state, FOLLOW_FOLLOWS);
    rows_close_world();
}
END_TEST

static bool same_rows(int owner, int replica, int slice)
{
    const struct owned *a = &rows_sides[owner].tables[0], *b = &rows_sides[replica].tables[0];

    return memcmp(a->memory[slice], b->memory[slice],
                  a->per_slice * a->record * sizeof(float)) == 0;
}

/* Half of the slices of rank 0 have their replicas on rank 2, which may be about to own some, too.
 * The other replicas are on rank 1. A slice that rank 2 is about to own, and whose rows it cannot
 * take, it has no more: else it might claim old rows. */
START_TEST(a_rank_that_takes_nothing_stops_no_other)
{
    enum { FULL = 2 * MOVES_QUEUED };
    int full = 1 + _i, behind = 0;

    open_moving(0, 3, 0, 0.1);
    rows_run(SETTLES_NS);
    struct service *s = &rows_sides[0].service;
    struct moves *m = s->moves;
    for (int slice = 3; slice < OWNED_SLICES; slice += 6)
        m->slices[slice].to[0] = (struct follow){.rank = 2, .roles = TO_FOLLOW};
    m->rests = false;
    rows_run(SETTLES_NS);
    for (int slice = 0; slice < OWNED_SLICES; slice += 3)
        ck_assert_int_eq(m->slices[slice].to[0].state, FOLLOW_FOLLOWS);
    struct follow *to = &m->slices[6].to[1];    /* about to get a slice of which 1 is the replica */
    *to = (struct follow){.rank = 2, .roles = TO_MOVE, .state = FOLLOW_ENDS};
    struct service *next = &rows_sides[2].service;
    const struct moving *there = &next->moves->slices[6];
    const struct moves_entry e = moves_entry_of(s, 6);
    ck_assert_ptr_null(hear(next, 0, (struct word){{.kind = ASK_BEGIN, .of = 9}, e}));
    ck_assert_ptr_null(hear(next, 0, (struct word){{.kind = ASK_COMPLETE}, e}));
    ck_assert(there->from == 0 && there->complete);
    m->peers[full].queued += FULL;
    for (int k = 0; k < 4; k++)
        rows_push_some(0, &rng, 3000);
    rows_run(100000000);
    for (int slice = 0; slice < OWNED_SLICES; slice += 3) {
        int replica = slice % 2 ? 2 : 1;
        ck_assert_msg(replica == full || same_rows(0, replica, slice), "slice %d", slice);
        behind += !same_rows(0, replica, slice);
    }
    ck_assert_int_gt(behind, 100);
    ck_assert_int_eq(to->state, full == 2 ? FOLLOW_BEGINS : FOLLOW_ENDS);
    ck_assert_int_eq(there->complete, full != 2);
    ck_assert_int_eq(there->from, full == 2 ? NOBODY : 0);
    moves_unqueue(s, full, FULL);
    to->roles = 0;
    rows_run(100000000);
    for (int slice = 0; slice < OWNED_SLICES; slice += 3)
        ck_assert_msg(same_rows(0, slice % 2 ? 2 : 1, slice), "slice %d", slice);
    rows_close_world();
}
END_TEST

/* Rows of many slices that have changed are one message, also where slices go to several ranks by
 * turns. */
START_TEST(changed_rows_travel_together)
{
    open_moving(0, 2 + _i, 0, 0.1);
    rows_run(SETTLES_NS);
    struct moves *m = moves_of(0);
    for (int slice = 0; _i && slice < OWNED_SLICES; slice += 6)
        m->slices[slice].to[1] = (struct follow){.rank = 2, .roles = TO_OLD};
    m->rests = false;
    rows_run(SETTLES_NS);
    const struct owners_peer *from = &rows_sides[1].service.peers[0];
    uint64_t sent = from->served, moved = rows_sides[0].service.stats.moved;
    uint64_t rows[ROWS / 2];
    float g[ROWS / 2 * WIDTH] = {0};
    size_t n = (size_t)(ROWS / (2 + _i));
    for (uint64_t k = 0; k < n; k++)
        rows[k] = (2 + (uint64_t)_i) * k;       /* all of rank 0, or many of them */
    struct descant_rows *batch = rows_fetch(0, rows, n);
    ck_assert_int_eq(batch_push(&rows_sides[0].service, batch, g, 1), DESCANT_OK);
    rows_run(SETTLES_NS);
    ck_assert_uint_ge(rows_sides[0].service.stats.moved - moved, _i ? 600 : ROWS / 2);
    ck_assert_uint_le(from->served - sent, 2 * ROWS / 2 * 20 / ASK_BYTES + 4);
    rows_close_world();
}
END_TEST

/* Pushes wait for pushes alone: an owner may have rows on their way to many ranks. */
START_TEST(no_push_waits_for_rows_that_are_copied)
{
    enum { OWN = ROWS / 3 };
    uint64_t rows[OWN];
    float g[OWN * WIDTH] = {0};
    size_t most = 0;

    open_moving(0, 3, 0, 0.1);
    rows_run(SETTLES_NS);
    struct service *s = &rows_sides[0].service;
    for (uint64_t k = 0; k < OWN; k++)
        rows[k] = 3 * k;                /* most of them are of rank 0 */
    ck_assert_int_eq(batch_push(s, rows_fetch(0, rows, OWN), g, 1), DESCANT_OK);
    for (int k = 0; k < 1000 && atomic_load(&s->queued) > 0; k++)
        rows_run(10000);
    for (int k = 0; k < 2000; k++) {
        rows_run(100000);
        most = s->moves->peers[1].queued > most ? s->moves->peers[1].queued : most;
        ck_assert_uint_eq(atomic_load(&s->queued), 0);
    }
    ck_assert_uint_gt(most, ASK_BYTES / 2);
    rows_close_world();
}
END_TEST

/* Two parts, of which the first has two rows. A message of any other length, or with other numbers,
 * is none. */
START_TEST(rows_that_lie_are_refused)
{
    enum { FIRST = 8 + 2 * (8 + 4 * WIDTH), SECOND = 8 + 8 + 4 * 10, ALL = 16 + FIRST + SECOND };
    static const struct {
        size_t at;
        uint64_t value;                 /* of 4 bytes, or of a row */
    } lies[] = {{4, 1}, {4, 3}, {4, UINT32_MAX}, {16, 2}, {16, UINT32_MAX}, {20, 0}, {20, 3},
                {20, UINT32_MAX}, {24, ROWS}, {24, UINT64_MAX}, {16 + FIRST, 7},
                {16 + FIRST + 4, 0}, {16 + FIRST + 4, 2}};
    static const uint32_t parts[2][2] = {{0, 2}, {1, 1}};
    unsigned char good[ALL] = {ASK_SET, [4] = 2}, message[ALL];
    const char *why = NULL;

    open_moving(0, 2, 0, 1e3);
    struct service *s = &rows_sides[0].service;
    memcpy(good + 16, parts[0], 8);
    memcpy(good + 16 + FIRST, parts[1], 8);
    ck_assert_uint_eq(s->tables[1].record, 10);
    ck_assert(moves_heard(s, 1, good, ALL, &why) && !why);
    for (size_t bytes = 16; bytes < ALL; bytes++) {
        unsigned char *exact = malloc(bytes);   /* so that a read behind it is found */
        memcpy(exact, good, bytes);
        why = NULL;
        ck_assert(!moves_heard(s, 1, exact, bytes, &why) && why);
        free(exact);
    }
    for (int k = 0; k < N(lies); k++) {
        memcpy(message, good, ALL);
        memcpy(message + lies[k].at, &lies[k].value, lies[k].at == 24 ? 8 : 4);
        why = NULL;
        ck_assert_msg(!moves_heard(s, 1, message, ALL, &why) && why, "lie %d", k);
    }
    rows_close_world();
}
END_TEST

/* As after the deaths of those that had it, a push comes to a rank that has not the slice. Its
 * other rows arrive, and its sender stays. */
START_TEST(a_push_to_a_wrong_rank_is_dropped)
{
    const uint64_t rows[] = {0, 1, 3, 4};       /* of ranks 0, 1, 0 and 1 */
    const float g[4 * WIDTH] = {-1, -1, -1, -2, -2, -2, -3, -3, -3, -4, -4, -4};
    float values[4 * WIDTH];

    open_moving(0, 3, 0, 1e3);
    rows_run(10000000);
    struct service *s = &rows_sides[2].service;
    struct descant_rows *batch = rows_fetch(2, rows, 4);
    ck_assert_ptr_nonnull(rows_come(2, batch));
    ck_assert_int_eq(s->map.owner[1], 1);
    ck_assert(moves_change(s, 1, 0, 2, false));
    ck_assert_int_eq(batch_push(s, batch, g, 1), DESCANT_OK);
    rows_run(10000000);
    for (int owner = 0; owner < 2; owner++)
        owned_read(&rows_sides[owner].tables[0], rows + owner, NULL, 1, values + owner * WIDTH);
    owned_read(&rows_sides[0].tables[0], rows + 2, NULL, 1, values + 2 * WIDTH);
    owned_read(&rows_sides[1].tables[0], rows + 3, NULL, 1, values + 3 * WIDTH);
    ck_assert(values[0] == 1 && values[WIDTH] == 0 && values[2 * WIDTH] == 3 &&
              values[3 * WIDTH] == 4);
    ck_assert(rows_sides[0].service.peers[2].there);
    ck_assert_str_eq(rows_logged, "");
    batch = rows_fetch(2, rows, 4);     /* but nobody asks for rows of another rank */
    rows_run(10000000);
    ck_assert_ptr_nonnull(strstr(rows_logged, "a row that is another rank's"));
    batch_let_go(s, batch);
    rows_close_world();
}
END_TEST

/* A push of which a row is lost still waits for another row, whose slice is about to come. */
START_TEST(a_lost_row_takes_no_early_one_along)
{
    const uint64_t rows[] = {0, 1, 4};          /* of rank 0, and of rank 1 */
    const float g[3 * WIDTH] = {-1, -1, -1, -2, -2, -2, -3, -3, -3};
    float values[2 * WIDTH];

    open_moving(0, 3, 0, 1e3);
    rows_run(10000000);
    struct service *s = &rows_sides[2].service, *owner = &rows_sides[0].service;
    struct descant_rows *batch = rows_fetch(2, rows, 3);
    ck_assert_ptr_nonnull(rows_come(2, batch));
    struct word word = {{.kind = ASK_BEGIN, .of = 5}, moves_entry_of(owner, 4)};
    ck_assert_ptr_null(hear(owner, 1, word));
    owner->moves->slices[4].complete = true;
    ck_assert(moves_change(s, 1, 0, 2, false) && moves_change(s, 4, 0, 2, false));
    ck_assert_int_eq(batch_push(s, batch, g, 1), DESCANT_OK);
    rows_run(10000000);
    owned_read(&rows_sides[0].tables[0], rows, NULL, 1, values);
    ck_assert(values[0] == 0);
    word.head = (struct ask_head){.kind = ASK_END, .of = 0};
    word.entry = (struct moves_entry){4, 0, 2, owner->place.generation};
    ck_assert_ptr_null(hear(owner, 1, word));
    rows_run(10000000);
    owned_read(&rows_sides[0].tables[0], rows, NULL, 1, values);
    owned_read(&rows_sides[0].tables[0], rows + 2, NULL, 1, values + WIDTH);
    ck_assert(values[0] == 1 && values[WIDTH] == 3);
    ck_assert_str_eq(rows_logged, "");
    rows_close_world();
}
END_TEST

/* One slice has found an owner before another one loses its own. */
START_TEST(each_slice_waits_for_itself)
{
    const uint64_t second = 1000000000;

    open_moving(0, 3, 0, 1e3);
    rows_run(10000000);
    struct service *s = &rows_sides[0].service;
    for (int slice = 4; slice < 6; slice++) {
        ck_assert(moves_shut(s, slice, true));
        s->moves->slices[slice].unsure = true;
        ck_assert(moves_wait_for_claims(s, (uint64_t)(slice - 3) * 9 * second));
    }
    ck_assert(moves_shut(s, 4, false));
    ck_assert(moves_wait_for_claims(s, 27 * second));
    ck_assert(!moves_wait_for_claims(s, 28 * second));
    rows_close_world();
}
END_TEST

/* The replica of a slice that comes is waited for only where its answer is sure to come. */
START_TEST(a_replica_that_has_not_met_its_owner_does_not_join)
{
    bool met = _i;

    open_moving(0, 3, 0, 1e3);
    rows_run(10000000);
    struct service *s = &rows_sides[0].service, *r = &rows_sides[2].service;
    struct word word = {{.kind = ASK_BEGIN, .of = 5}, moves_entry_of(s, 7)};
    ck_assert_ptr_null(hear(s, 1, word));
    word.head.kind = ASK_COMPLETE;
    ck_assert_ptr_null(hear(s, 1, word));
    s->peers[2].mapped = met;
    word.head = (struct ask_head){.kind = ASK_END, .of = 2};
    word.entry = (struct moves_entry){7, 0, 2, s->peers[2].generation};
    ck_assert_ptr_null(hear(s, 1, word));
    ck_assert_int_eq(s->map.owner[7], 0);
    ck_assert_int_eq(s->moves->slices[7].to[0].roles, met ? TO_OLD : 0);
    moves_comes(r, 7, 1);
    r->moves->slices[7].complete = true;
    r->peers[0].there = met;
    word.head = (struct ask_head){.kind = ASK_MOVED, .of = 2};
    word.entry.generation = s->place.generation;
    ck_assert_ptr_null(hear(r, 1, word));
    ck_assert_int_eq(r->moves->slices[7].from, met ? 0 : NOBODY);
    rows_close_world();
}
END_TEST

/* What a rank had asked the giver of a slice comes before its OPEN, but not where the giver has
 * died; then the owner's word is enough. One that has ended properly had passed all on. */
START_TEST(a_slice_opens_without_its_giver_only_where_that_died)
{
    struct word own = {{.kind = ASK_OWN}, {.slice = 7, .rank = 2, .epoch = 2}};
    bool there = _i == 0, ended = _i == 1;

    open_moving(0, 3, 0, 1e3);          /* so that rank 1 may go */
    rows_run(10000000);
    struct service *s = &rows_sides[0].service;
    ck_assert(moves_change(s, 7, 2, 2, true));
    own.entry.generation = s->peers[2].generation;
    s->moves->slices[7].giver = 1;
    s->peers[1].done = _i > 0;
    s->peers[1].ended = ended;
    ck_assert(there || service_goes(s, 1));
    ck_assert_ptr_null(hear(s, 2, own));
    ck_assert_int_eq(s->map.shut[7], there || ended);
    rows_close_world();
}
END_TEST

/* As the thread of a rank does: it closes as soon as nobody needs it. */
static void end(int rank)
{
    service_end(&rows_sides[rank].service);
    for (int k = 0; k < 5000 && rows_sides[rank].open; k++)
        if (service_turn(&rows_sides[rank].service) == OWNERS_ENDED)
            rows_close(rank);
        else
            rows_run(100000);
}

/* A rank that comes late never meets the one of the start that had left. It counts on the others
 * alone, and so can leave. */
START_TEST(a_rank_that_has_left_gets_nothing)
{
    open_moving(_i, 3, 1, 0);
    push_a_while(3);
    leave(1);
    rows_open_late(3);
    push_a_while(3);
    rows_run(2000000000);
    ck_assert_int_gt(slices_of(3), 0);
    leave(2);
    leave(3);
    check_map();
    rows_check(0);
    rows_end_all();
    ck_assert_str_eq(rows_logged, "");
    rows_close_world();
}
END_TEST

/* A rank that has left says DONE and ENDED in one turn, and closes. Another one that looks only
 * then hears both words, and the end. */
START_TEST(all_words_of_a_rank_come_before_its_end)
{
    open_moving(0, 3, 0, 1e3);
    rows_run(SETTLES_NS);
    struct service *s = &rows_sides[1].service;
    const struct owners_peer *peer = &rows_sides[0].service.peers[1];
    moves_leave(s);
    for (int k = 0; k < 100 && !atomic_load(&s->moves->away); k++)
        rows_run(20000000);
    ck_assert(atomic_load(&s->moves->away));
    service_end(s);
    while (service_turn(s) != OWNERS_ENDED)
        ;
    rows_close(1);
    ck_assert(peer->there && !peer->done);
    simulated_run(rows_world, simulated_now(rows_world) + 1000000000);
    for (int k = 0; k < 100 && peer->there; k++)
        service_turn(&rows_sides[0].service);
    ck_assert(!peer->there && peer->done && peer->ended);
    rows_close_world();
}
END_TEST

/* At any moment: before it knows that slices have moved to others, or with some on their way to
 * it. One that has some by then stays until the others end; the others leave as ever. */
START_TEST(one_that_ends_keeps_nobody)
{
    open_moving(_i, 3, 2, 0);
    push_a_while(3);
    rows_open_late(3);
    if (_i % 2)                         /* it is to have none, and others are on their way */
        moves_leave(&rows_sides[3].service);
    rows_run(rng_next(&rng) % 2000000);
    rows_open_late(4);
    rows_run(rng_next(&rng) % (_i % 3 ? 3000000 : 15000000));
    end(3);
    push_a_while(3);
    rows_run(SETTLES_NS);
    for (int k = 0; k < 5; k++) {
        const struct service *s = &rows_sides[k].service;
        if (!rows_sides[k].open)
            continue;
        ck_assert(s->moves->left == 0 && s->moves->shut == 0);
        for (int slice = 0; slice < OWNED_SLICES; slice++)
            ck_assert(rows_sides[s->map.owner[slice]].open);
        rows_check(k);
    }
    if (!rows_sides[3].open)
        leave((int)(rng_next(&rng) % 3));
    rows_end_all();
    ck_assert_str_eq(rows_logged, "");
    rows_close_world();
}
END_TEST

static void die(int rank)
{
    const struct simulated_fault death = {.kind = SIMULATED_DIE, .rank = rank,
                                          .at_ns = simulated_now(rows_world)};
    ck_assert(simulated_fault(rows_world, &death));
    simulated_run(rows_world, simulated_now(rows_world) + 1);
    rows_close(rank);
}

/* One after the other, and each may come again, before the others know that it has died, too. */
START_TEST(replicas_take_the_rows_of_the_dead)
{
    open_moving(_i, 3 + _i % 2, 0, 0.1);
    push_a_while(5);
    rows_run(SETTLES_NS);
    for (int k = 0; k < 2; k++) {
        int rank = any_open();
        die(rank);
        if (_i % 4 == 1)
            rows_open_late(rank);
        rows_run(SETTLES_NS);
        for (int i = 0; i < rows_n; i++)
            if (rows_sides[i].open)
                rows_check(i);
        check_map();
        push_a_while(3);
        if (_i % 4 == 3) {
            rows_open_late(rank);
            push_a_while(3);
        }
        rows_run(SETTLES_NS);
        check_map();
    }
    rows_check(any_open());
    rows_end_all();
    ck_assert_int_gt(rows_inherited, 0);
    ck_assert_str_eq(rows_logged, "");
    rows_close_world();
}
END_TEST

/* One dies, comes again, and is killed while it gets its part, at any moment: what it was given had
 * another whole copy by then. */
START_TEST(one_that_dies_as_it_comes_takes_no_rows_along)
{
    open_moving(_i, 3 + _i % 2, 0, 0.1);
    push_a_while(5);
    rows_run(SETTLES_NS);
    int dies = any_open();
    for (int k = 0; k < 3; k++) {
        die(dies);
        rows_run(1 + rng_next(&rng) % (_i % 3 ? 100000 : 30000000));
        rows_open_late(dies);
        rows_run(1 + rng_next(&rng) % (_i % 5 ? 30000000 : 200000000));
    }
    die(dies);
    rows_run(SETTLES_NS);
    for (int k = 0; k < rows_n; k++)
        if (rows_sides[k].open)
            rows_check(k);
    check_map();
    rows_end_all();
    ck_assert_str_eq(rows_logged, "");
    rows_close_world();
}
END_TEST

/* Each slice has a whole replica all the time, also where it goes to the rank that was it. */
START_TEST(a_slice_that_moves_has_a_replica)
{
    open_moving(_i, 3, 0, 0.1);
    push_a_while(5);
    rows_run(SETTLES_NS);
    moves_leave(&rows_sides[0].service);
    for (int k = 0; k < 20000 && !atomic_load(&moves_of(0)->away); k++) {
        rows_run(100000);
        for (int slice = 0; slice < OWNED_SLICES; slice++) {
            int owner = rows_sides[0].service.map.owner[slice];
            const struct service *s = &rows_sides[owner].service;
            bool has = s->map.owner[slice] != owner;    /* its word is on its way */
            for (int i = 0; i < TO_MOST; i++) {
                const struct follow *f = &s->moves->slices[slice].to[i];
                has |= f->roles && (f->state == FOLLOW_FOLLOWS ||
                                    f->state == FOLLOW_JOINS);
            }
            ck_assert_msg(has, "slice %d of rank %d has no replica", slice, owner);
        }
    }
    ck_assert(atomic_load(&moves_of(0)->away));
    rows_end_all();
    rows_close_world();
}
END_TEST

/* Random rows of a table that grows, for fewer of which there is memory. */
static void push_rows(int rank, size_t n)
{
    static uint64_t rows[3000];
    static float g[3000 * WIDTH];

    for (size_t k = 0; k < n; k++) {
        rows[k] = rng_next(&rng) % 300000;
        for (int i = 0; i < WIDTH; i++)
            g[k * WIDTH + (size_t)i] = -1 - (float)(rows[k] % 7);
    }
    struct descant_rows *batch = rows_fetch(rank, rows, n);
    ck_assert_ptr_nonnull(rows_come(rank, batch));
    ck_assert_int_eq(batch_push(&rows_sides[rank].service, batch, g, 1), DESCANT_OK);
}

/* The rows of each slice of the growing table are in the same slots of its replica. How many. */
static size_t check_replicas(void)
{
    enum { ROOM = 4000 };
    static uint64_t ids[2][ROOM];
    static uint32_t slots[2][ROOM];
    static float records[2][ROOM * WIDTH];
    size_t sum = 0;

    for (int slice = 0; slice < OWNED_SLICES; slice++) {
        int owner = rows_sides[any_open()].service.map.owner[slice], replicas = 0;
        for (int k = 0; k < rows_n; k++) {
            size_t at[2] = {0}, n[2];
            if (!rows_sides[k].open || k == owner || !rows_sides[k].tables[0].parts[slice].slab)
                continue;
            for (int which = 0; which < 2; which++) {
                const struct owned_some some = {ROOM, ids[which], records[which], slots[which]};
                n[which] = owned_part_next(&rows_sides[which ? k : owner].tables[0], slice, false,
                                           &at[which], &some);
            }
            for (size_t a = 0, b = 0; a < n[0]; a++, b++) {     /* the replica may have more */
                while (b < n[1] && slots[1][b] < slots[0][a])
                    b++;
                ck_assert(b < n[1] && slots[1][b] == slots[0][a] && ids[1][b] == ids[0][a]);
                ck_assert_mem_eq(records[0] + a * WIDTH, records[1] + b * WIDTH,
                                 WIDTH * sizeof(float));
            }
            sum += n[0];
            replicas++;
        }
        ck_assert_int_eq(replicas, 1);
    }
    return sum;
}

/* Where memory is full, and each push evicts rows: also after slices have moved, and ranks have
 * died. */
START_TEST(replicas_have_the_rows_of_a_full_table)
{
    memory = OWNED_SLICES * 1000;       /* for 70 rows of each slice */
    open_moving(GROWS + _i, 3, 1, 0.1);
    for (int step = 0; step < 36; step++) {
        push_rows(any_open(), 3000);
        if (step == 20)
            rows_open_late(3);
        if (step == 26)
            die(_i % 3);
        rows_run(step % 10 == 5 ? SETTLES_NS : 1000000);
    }
    rows_run(SETTLES_NS);
    check_map();
    size_t sum = check_replicas(), live = 0, evicted = 0;
    for (int k = 0; k < rows_n; k++)
        if (rows_sides[k].open) {
            live += owned_figures(&rows_sides[k].tables[0]).live;
            evicted += owned_figures(&rows_sides[k].tables[0]).evicted;
        }
    size_t room = OWNED_SLICES * rows_sides[3].tables[0].per_slice;
    ck_assert_uint_eq(sum, live);
    ck_assert_msg(live > room * 9 / 10 && live <= room && evicted > 10000,
                  "%zu rows of %zu, %zu evicted", live, room, evicted);
    rows_end_all();
    ck_assert_str_eq(rows_logged, "");
    rows_close_world();
}
END_TEST

/* While all push, and slices move, with their replicas: what is lost is a part of what was pushed
 * in the last moments, and no rank waits for ever. Also where the one that dies has just got
 * slices, and where it comes again at once. */
START_TEST(a_death_loses_little)
{
    static double before[ROWS];
    static uint64_t rows[ROWS];
    int lost = 0;

    open_moving(_i, 3, 1, 0.1);
    push_a_while(6);
    rows_run(SETTLES_NS);
    memcpy(before, rows_pushed, sizeof before);
    if (_i % 3)
        rows_open_late(3);
    push_a_while(1 + _i % 5);
    int dead = _i % 3 == 1 ? 3 : (int)(rng_next(&rng) % 3);
    die(dead);
    if (_i % 4 > 1)
        rows_open_late(dead);
    push_a_while(3);
    rows_run(SETTLES_NS);
    int reader = any_open();
    for (uint64_t k = 0; k < ROWS; k++)
        rows[k] = k;
    struct descant_rows *batch = rows_fetch(reader, rows, ROWS);
    const float *block = rows_come(reader, batch);
    ck_assert_ptr_nonnull(block);
    for (size_t k = 0; k < ROWS; k++) {
        double is = (double)block[k * WIDTH];
        ck_assert_msg(is >= before[k] && is <= rows_pushed[k], "row %zu: %g, not %g to %g", k, is,
                      before[k], rows_pushed[k]);
        lost += is < rows_pushed[k];
    }
    batch_let_go(&rows_sides[reader].service, batch);
    ck_assert_int_lt(lost, ROWS / 2);
    check_map();
    rows_end_all();
    rows_close_world();
}
END_TEST

/* One that asks for nothing more, and is then killed, still owes its rows: its replica takes them,
 * also where that rank asks for nothing more, and without replicas it ends for those that need
 * them. */
START_TEST(one_that_is_killed_after_its_end_owes_its_rows)
{
    bool moves = _i < 4, replicas = moves && _i % 2, both = _i & 2;

    open_moving(_i, 3, 0, replicas ? 0.1 : 0);
    if (!moves) {
        rows_close_world();
        rows_way = (struct rows_way){0};
        rows_open_world((struct simulated_options){.seed = 1}, 3, 3);
    }
    push_a_while(5);
    rows_run(SETTLES_NS);
    service_end(&rows_sides[1].service);
    if (both)
        service_end(&rows_sides[2].service);
    rows_run(100000000);
    ck_assert(rows_sides[0].service.peers[1].done && !rows_sides[0].service.peers[1].ended);
    die(1);
    rows_run(100000000);
    if (replicas) {
        rows_push_some(0, &rng, 900);
        rows_check(0);
        rows_end_all();
        ck_assert_str_eq(rows_logged, "");
    } else {
        ck_assert_int_eq(service_turn(&rows_sides[0].service), OWNERS_FAILED);
        ck_assert_int_eq(atomic_load(&rows_sides[2].service.status), both ? 0 : DESCANT_ENDED);
    }
    rows_close_world();
}
END_TEST

/* Without replicas a death ends it for all, also while slices move. */
START_TEST(without_replicas_rows_die_with_their_owner)
{
    open_moving(_i, 3, 1, 0);
    push_a_while(3);
    rows_open_late(3);
    rows_run((uint64_t)(_i % GROWS) * 700000);
    die(_i % 3);
    rows_run(SETTLES_NS);
    for (int k = 0; k < 3; k++)         /* the last hears it of these, but not in this world */
        if (rows_sides[k].open)
            ck_assert_int_eq(service_turn(&rows_sides[k].service), OWNERS_FAILED);
    ck_assert_ptr_nonnull(strstr(rows_logged, "has gone, and with it its rows"));
    rows_close_world();
}
END_TEST

START_TEST(nothing_moves_while_a_rank_holds)
{
    static int owner[OWNED_SLICES];

    open_moving(_i, 2, 1, _i % 2 ? 0.1 : 0);
    push_a_while(3);
    for (int k = 0; k < 2; k++)
        moves_hold(&rows_sides[k].service, true);
    rows_run(SETTLES_NS);
    memcpy(owner, rows_sides[0].service.map.owner, sizeof owner);
    rows_open_late(2);
    for (int k = 0; k < 2; k++)
        ck_assert(atomic_load(&moves_of(k)->still));
    push_a_while(5);
    rows_run(SETTLES_NS);
    ck_assert_mem_eq(owner, rows_sides[0].service.map.owner, sizeof owner);
    moves_hold(&rows_sides[0].service, false);
    rows_run(SETTLES_NS);
    ck_assert_int_gt(slices_of(2), 100);
    ck_assert_int_eq(slices_of(1), OWNED_SLICES / 2);   /* it still holds */
    moves_hold(&rows_sides[1].service, false);
    rows_run(SETTLES_NS);
    check_map();
    rows_check(2);
    rows_end_all();
    rows_close_world();
}
END_TEST

int main(void)
{
    const TTest *const also_growing[] = {
        ranks_come_and_leave, a_rank_reads_its_own_pushes, one_that_ends_keeps_nobody,
        replicas_take_the_rows_of_the_dead, a_death_loses_little,
        one_that_dies_as_it_comes_takes_no_rows_along,
        without_replicas_rows_die_with_their_owner, nothing_moves_while_a_rank_holds};
    int seeds = getenv("MOVES_MANY") ? atoi(getenv("MOVES_MANY")) : pick(12, 4, 1);
    TCase *map = new_case("map", 20), *words = new_case("words", 20),
          *worlds = new_case("worlds", 120), *growing = new_case("growing", 120);

    tcase_add_test(map, few_slices_move);
    tcase_add_loop_test(map, a_newer_process_is_not_taken_for_the_lost_one, 0, 3);
    tcase_add_loop_test(worlds, ranks_come_and_leave, 0, seeds);
    tcase_add_loop_test(worlds, a_rank_reads_its_own_pushes, 0, seeds / 2);
    tcase_add_test(words, an_owner_may_be_met_last);
    tcase_add_test(words, an_old_owner_begins_late);
    tcase_add_test(words, answers_are_of_their_begin);
    tcase_add_test(words, a_copy_that_is_refused_is_not_believed);
    tcase_add_loop_test(words, a_rank_that_takes_nothing_stops_no_other, 0, 2);
    tcase_add_loop_test(words, changed_rows_travel_together, 0, 2);
    tcase_add_test(words, no_push_waits_for_rows_that_are_copied);
    tcase_add_test(words, all_words_of_a_rank_come_before_its_end);
    tcase_add_test(words, rows_that_lie_are_refused);
    tcase_add_test(words, a_push_to_a_wrong_rank_is_dropped);
    tcase_add_test(words, a_lost_row_takes_no_early_one_along);
    tcase_add_test(words, each_slice_waits_for_itself);
    tcase_add_loop_test(words, a_replica_that_has_not_met_its_owner_does_not_join, 0, 2);
    tcase_add_test(words, a_claim_is_heard_of_an_owner_that_never_came);
    tcase_add_test(words, the_last_owner_is_remembered);
    tcase_add_test(words, words_of_others_give_nothing);
    tcase_add_loop_test(words, a_slice_opens_without_its_giver_only_where_that_died, 0, 3);
    tcase_add_loop_test(worlds, a_rank_that_has_left_gets_nothing, 0, 3);
    tcase_add_loop_test(worlds, one_that_ends_keeps_nobody, 0, seeds);
    tcase_add_loop_test(worlds, replicas_take_the_rows_of_the_dead, 0, seeds / 2);
    tcase_add_loop_test(worlds, one_that_dies_as_it_comes_takes_no_rows_along, 0, seeds);
    tcase_add_test(worlds, a_slice_that_moves_has_a_replica);
    tcase_add_loop_test(worlds, a_death_loses_little, 0, seeds);
    tcase_add_loop_test(worlds, one_that_is_killed_after_its_end_owes_its_rows, 0, 7);
    tcase_add_loop_test(worlds, without_replicas_rows_die_with_their_owner, 0, seeds / 2);
    tcase_add_loop_test(worlds, nothing_moves_while_a_rank_holds, 0, 2);
    tcase_add_test(growing, a_row_comes_to_a_slot_that_there_is);
    tcase_add_loop_test(growing, replicas_have_the_rows_of_a_full_table, 0, (seeds + 11) / 12);
    for (int k = 0; k < N(also_growing); k++)
        tcase_add_loop_test(growing, also_growing[k], GROWS, GROWS + (seeds + 3) / 6);
    return run_cases(map, words, worlds, growing, NULL);
}
