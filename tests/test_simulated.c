/* SPDX-License-Identifier: MIT */
/* The simulated link: what link.h promises, what a message costs in virtual time, and the
 * driver's functions. */
#include "harness/simulated.h"
#include "harness/suite.h"

enum { SEEDS = 40 };

static const struct simulated_options gigabyte = {.ranks = 4, .latency_ns = LATENCY,
                                                  .bytes_per_s = 1e9, .fixed = true};

/* --- the time that messages take --- */

START_TEST(a_message_takes_latency_and_its_bytes)
{
    struct side s, r;

    sim_open(&gigabyte);
    uint64_t began = simulated_now(world);
    sim_receive(1, 0, 1, &r);
    sim_send(0, 1, 1, 100, &s);
    sim_run_for(1000000);
    need_time(&s, began, 0);                    /* a word is copied */
    need_time(&r, began, LATENCY + 100);
    ck_assert_uint_eq(r.bytes, 100);
    ck_assert_int_eq(r.from, 0);

    sim_receive(1, 0, 1, &r);                       /* its sender knows of it in time */
    sim_run_for(LATENCY);
    began = simulated_now(world);
    sim_send(0, 1, 1, BULK, &s);
    sim_run_for(1000000);
    need_time(&r, began, LATENCY + BULK);
    need_time(&s, began, LATENCY + BULK);

    began = simulated_now(world);
    sim_send(0, 1, 1, BULK, &s);
    sim_run_for(1000000);
    ck_assert_int_eq(s.n_ended, 0);
    sim_receive(1, 0, 1, &r);
    sim_run_for(1000000);
    need_time(&r, began, 1000000 + 2 * LATENCY + BULK);

    began = simulated_now(world);
    sim_receive(1, LINK_ANY, 2, &r);                /* nobody knows who it is for */
    sim_send(0, 1, 2, BULK, &s);
    sim_run_for(1000000);
    need_time(&r, began, 3 * LATENCY + BULK);
    ck_assert_int_eq(r.from, 0);
    sim_close();
}
END_TEST

START_TEST(links_are_occupied_both_ways)
{
    struct side s[4], r[4];

    sim_open(&gigabyte);
    sim_receive(2, 0, 1, &r[0]);
    sim_receive(2, 1, 1, &r[1]);
    sim_run_for(LATENCY);
    uint64_t began = simulated_now(world);
    sim_send(0, 2, 1, BULK, &s[0]);                 /* two to one */
    sim_send(1, 2, 1, BULK, &s[1]);
    sim_run_for(1000000);
    need_time(&r[0], began, LATENCY + BULK);
    need_time(&r[1], began, LATENCY + 2 * BULK);

    sim_receive(1, 0, 1, &r[1]);
    sim_receive(2, 0, 1, &r[2]);
    sim_receive(2, 0, 3, &r[3]);
    sim_receive(3, 0, 1, &r[0]);
    sim_run_for(LATENCY);
    began = simulated_now(world);
    sim_send(0, 1, 1, BULK, &s[1]);                 /* one to two */
    sim_send(0, 2, 1, BULK, &s[2]);
    sim_send(0, 2, 3, 500, &s[3]);                  /* a word goes past both, */
    sim_send(0, 3, 1, BULK, &s[0]);
    sim_run_for(1000000);
    need_time(&r[1], began, LATENCY + BULK);
    need_time(&r[2], began, LATENCY + 2 * BULK);
    need_time(&r[3], began, LATENCY + 500);
    need_time(&r[0], began, LATENCY + 3 * BULK + 500);  /* and takes its part */

    sim_receive(0, 1, 1, &r[0]);
    sim_receive(1, 0, 1, &r[1]);
    sim_run_for(LATENCY);
    began = simulated_now(world);
    sim_send(0, 1, 1, BULK, &s[0]);                 /* there and back at once */
    sim_send(1, 0, 1, BULK, &s[1]);
    sim_run_for(1000000);
    need_time(&r[0], began, LATENCY + BULK);
    need_time(&r[1], began, LATENCY + BULK);
    sim_close();
}
END_TEST

START_TEST(hosts_have_one_link_and_some_are_slow)
{
    struct simulated_options options = gigabyte;
    struct simulated_fault slow = {.kind = SIMULATED_SLOW, .rank = 3, .factor = 4};
    struct side s[3], r[3];

    options.per_host = 2;
    options.near_latency_ns = 7;
    sim_open(&options);
    ck_assert_int_eq(places[3].host, 2);
    ck_assert_int_eq(places[3].local_rank, 1);
    ck_assert_int_eq(places[3].hosts, 2);
    sim_receive(2, 0, 1, &r[0]);
    sim_receive(3, 1, 1, &r[1]);
    sim_receive(1, 0, 1, &r[2]);
    sim_run_for(LATENCY);
    uint64_t began = simulated_now(world);
    sim_send(0, 2, 1, BULK, &s[0]);
    sim_send(1, 3, 1, BULK, &s[1]);
    sim_send(0, 1, 1, BULK, &s[2]);
    sim_run_for(1000000);
    need_time(&r[0], began, LATENCY + BULK);
    need_time(&r[1], began, LATENCY + 2 * BULK);
    need_time(&r[2], began, 7);

    ck_assert(simulated_fault(world, &slow));
    sim_receive(2, 0, 1, &r[0]);
    sim_receive(0, 2, 1, &r[1]);
    sim_run_for(LATENCY);
    began = simulated_now(world);
    sim_send(0, 2, 1, BULK, &s[0]);
    sim_send(2, 0, 1, BULK, &s[1]);
    sim_run_for(1000000);
    need_time(&r[0], began, LATENCY + 4 * BULK);
    need_time(&r[1], began, LATENCY + 4 * BULK);
    sim_close();
}
END_TEST

/* --- order, and what is read when --- */

START_TEST(one_tag_keeps_its_order_and_others_overtake)
{
    static struct side s[60], r[60];
    static int came[60];
    int n_came = 0, overtook = 0;
    const struct simulated_options options = {.ranks = 2,
                                              .seed = (uint64_t)_i,
                                              .fixed = true,
                                              .jitter_ns = 5000,
                                              .bytes_per_s = 1e9};

    sim_open(&options);
    for (int i = 0; i < 60; i++) {
        size_t bytes = i % 7 == 0 ? BULK : (size_t)i + 1;
        r[i] = s[i] = (struct side){0};
        ck_assert(link_simulated.receive(ends[1], buffers[1], bytes,
        &(struct link_message){0, i % 3, 0, &r[i]}));
        sim_send(0, 1, i % 3, bytes, &s[i]);
    }
    while (n_came < 60) {
        struct link_news news;
        ck_assert_uint_lt(simulated_next(world), UINT64_MAX);
        simulated_run(world, simulated_next(world));
        ck_assert(link_simulated.collect(ends[1], &news));
        for (int i = 0; i < news.n_ended; i++) {
            ck_assert(!news.ended[i].failed);
            came[n_came++] = (int)((struct side *)news.ended[i].op - r);
        }
    }
    for (int i = 0; i < 60; i++)
        for (int k = 0; k < i; k++) {
            ck_assert(came[k] < came[i] || came[k] % 3 != came[i] % 3);
            overtook += came[k] > came[i];
        }
    ck_assert_int_gt(overtook, 0);
    sim_close();
}
END_TEST

START_TEST(whoever_came_first_is_received_from_any)
{
    struct side s[4], r[4];

    sim_open(&gigabyte);
    sim_send(2, 0, 1, 100, &s[0]);
    sim_run_for(10);
    sim_send(3, 0, 1, BULK, &s[1]);
    sim_run_for(10);
    sim_send(1, 0, 1, 100, &s[2]);
    sim_send(2, 0, 1, 100, &s[3]);
    sim_run_for(1000000);
    for (int i = 0; i < 4; i++) {
        static const int from[] = {3, 2, 1, 2};
        sim_receive(0, LINK_ANY, 1, &r[i]);
        sim_run_for(1000000);
        ck_assert(r[i].n_ended == 1 && r[i].from == from[i]);
    }
    sim_close();
}
END_TEST

START_TEST(words_are_copied_and_bulk_is_read_when_it_comes)
{
    struct side s[2], r[2];

    sim_open(&gigabyte);
    memset(buffers[0], 1, BULK);
    sim_receive(1, 0, 1, &r[0]);
    sim_run_for(LATENCY);
    sim_send(0, 1, 1, LINK_WORD, &s[0]);
    sim_collect(0);
    ck_assert_int_eq(s[0].n_ended, 1);
    memset(buffers[0], 2, BULK);
    sim_run_for(1000000);
    ck_assert_int_eq(buffers[1][0], 1);
    sim_receive(1, 0, 1, &r[1]);
    sim_send(0, 1, 1, LINK_WORD + 1, &s[1]);
    sim_run_for(100);
    ck_assert_int_eq(s[1].n_ended, 0);
    memset(buffers[0], 3, BULK);
    sim_run_for(1000000);
    ck_assert_int_eq(s[1].n_ended, 1);
    ck_assert_int_eq(buffers[1][0], 3);
    sim_close();
}
END_TEST

/* Each tag has its room, and a word that has none stays with its sender. */
START_TEST(words_have_room_for_so_many)
{
    struct side s[LINK_WORDS + 2], r, other, taken;

    sim_open(&gigabyte);
    for (int i = 0; i < LINK_WORDS + 2; i++)
        sim_send(0, 1, 1, 10, &s[i]);
    sim_run_for(1000000);
    for (int i = 0; i < LINK_WORDS + 2; i++)
        ck_assert_int_eq(s[i].n_ended, i < LINK_WORDS);
    sim_send(0, 1, 2, 10, &other);
    sim_receive(1, 0, 2, &taken);
    sim_run_for(1000000);
    ck_assert_int_eq(taken.n_ended, 1);
    sim_receive(1, 0, 1, &r);
    sim_run_for(0);
    ck_assert_int_eq(r.n_ended, 1);
    ck_assert_int_eq(s[LINK_WORDS].n_ended, 1);
    ck_assert_int_eq(s[LINK_WORDS + 1].n_ended, 0);
    sim_close();
}
END_TEST

START_TEST(what_is_too_long_for_its_receive_is_not_written)
{
    struct side s, r = {0};
    unsigned char *small = malloc(10);

    sim_open(&gigabyte);
    ck_assert(link_simulated.receive(ends[1], small, 10,
        &(struct link_message){0, 1, 0, &r}));
    sim_send(0, 1, 1, BULK, &s);
    sim_run_for(1000000);
    ck_assert(!r.failed && r.n_ended == 1);
    ck_assert_uint_eq(r.bytes, LINK_TOO_LONG);
    ck_assert_int_eq(s.n_ended, 1);
    free(small);
    sim_close();
}
END_TEST

/* --- no tag waits for another one --- */

START_TEST(words_pass_bulk_that_nobody_receives)
{
    struct side bulk[2][20], words[2], r[2], late[2][20];

    sim_open(&gigabyte);
    for (int i = 0; i < 20; i++)
        for (int k = 0; k < 2; k++)
            sim_send(k, 1 - k, 1, BULK, &bulk[k][i]);
    for (int k = 0; k < 2; k++) {
        sim_send(k, 1 - k, 2, 100, &words[k]);
        sim_receive(1 - k, LINK_ANY, 2, &r[1 - k]);
    }
    sim_run_for(1000000);
    for (int k = 0; k < 2; k++) {
        ck_assert_int_eq(r[k].n_ended, 1);
        ck_assert_int_eq(bulk[k][0].n_ended, 0);
        for (int i = 0; i < 20; i++)
            sim_receive(k, 1 - k, 1, &late[k][i]);
    }
    sim_run_for(10000000);
    for (int i = 0; i < 20; i++)
        ck_assert(late[0][i].n_ended == 1 && late[1][i].n_ended == 1);
    sim_close();
}
END_TEST

enum { TALKS = 10, TALK_RANKS = 3, TALK_TAGS = 4, TALK_MESSAGES = 24 };

/* One of (sender, receiver, tag): all is sent, and received one after the other. */
struct talk {
    int from, to, tag, n_sent, n_received;
    struct side s[TALK_MESSAGES], r[TALK_MESSAGES];
};

/* A receiver opens receives of one tag only, in whatever order of senders and tags it
 * likes, and takes everything of that before it goes on. Each sender has sent all before.
 * */
static void hear_out(struct talk *talk)
{
    for (int i = 0; i < TALK_MESSAGES; i++) {
        sim_receive(talk->to, talk->from, talk->tag, &talk->r[i]);
        for (int turn = 0; talk->r[i].n_ended == 0; turn++) {
            ck_assert_msg(turn < 1000, "%d to %d, tag %d: message %d does not come",
                          talk->from, talk->to, talk->tag, i);
            sim_run_for(LATENCY);
        }
    }
}

START_TEST(no_order_of_receives_stops_the_others)
{
    static struct talk talks[TALK_RANKS * TALK_RANKS * TALK_TAGS];
    const struct simulated_options options = {.ranks = TALK_RANKS, .seed = (uint64_t)_i,
                                              .latency_ns = LATENCY, .jitter_ns = 3000,
                                              .bytes_per_s = 1e9, .fixed = true};
    struct talk *left[TALK_RANKS * TALK_RANKS * TALK_TAGS];
    struct rng rng;
    int n = 0;

    rng_init(&rng, (uint64_t)_i);
    sim_open(&options);
    for (int from = 0; from < TALK_RANKS; from++)
        for (int to = 0; to < TALK_RANKS; to++)
            for (int tag = 0; tag < TALK_TAGS && from != to; tag++)
                talks[n++] = (struct talk){.from = from, .to = to, .tag = tag};
    for (int k = 0; k < n; k++)
        for (int i = 0; i < TALK_MESSAGES; i++)
            sim_send(talks[k].from, talks[k].to, talks[k].tag,
                 rng_next(&rng) % 2 ? BULK : 100, &talks[k].s[i]);
    for (int k = 0; k < n; k++)
        left[k] = &talks[k];
    for (; n > 0; n--) {
        int k = (int)(rng_next(&rng) % (uint64_t)n);
        hear_out(left[k]);
        for (int i = 0; i < TALK_MESSAGES; i++)
            ck_assert_int_eq(left[k]->s[i].n_ended, 1);
        left[k] = left[n - 1];
    }
    sim_close();
}
END_TEST

/* --- the driver --- */

START_TEST(who_sleeps_is_woken_by_time_or_by_news)
{
    struct side s, r;
    int turned[4] = {0};

    sim_open(&gigabyte);
    for (int k = 0; k < 4; k++) {
        int rank = simulated_turn(world, UINT64_MAX);
        turned[rank]++;
        link_simulated.sleep(ends[rank], UINT64_C(1000000) << rank, 0);
        ck_assert(simulated_sleeps(world, rank));
    }
    for (int k = 0; k < 4; k++)
        ck_assert_int_eq(turned[k], 1);
    uint64_t began = simulated_now(world);
    sim_receive(3, 1, 1, &r);
    sim_send(1, 3, 1, 100, &s);                     /* ends at once: 1 has news */
    ck_assert_int_eq(simulated_turn(world, UINT64_MAX), 1);
    ck_assert_uint_eq(simulated_now(world), began);
    sim_collect(1);
    link_simulated.sleep(ends[1], 1000000000, began + 5000);
    ck_assert_int_eq(simulated_turn(world, UINT64_MAX), 3);
    ck_assert_uint_eq(simulated_now(world), began + LATENCY + 100);
    sim_collect(3);
    ck_assert_int_eq(r.n_ended, 1);
    link_simulated.sleep(ends[3], 1000000000, 0);
    ck_assert_int_eq(simulated_turn(world, began + 100), -1);   /* it never goes back */
    ck_assert_int_eq(simulated_turn(world, UINT64_MAX), 1);
    ck_assert_uint_eq(simulated_now(world), began + 5000);
    sim_fault(SIMULATED_PAUSE, 0, 0, 5000000);
    link_simulated.sleep(ends[1], 1000000000, 0);
    ck_assert_int_eq(simulated_turn(world, UINT64_MAX), 2);     /* and not 0 */
    link_simulated.sleep(ends[2], 1000000000, 0);
    ck_assert_int_eq(simulated_turn(world, UINT64_MAX), 0);
    ck_assert_uint_eq(simulated_now(world), began + 5000 + 5000000);
    sim_close();
}
END_TEST

/* A sleep that news has cut short leaves no event behind, however many there are. */
START_TEST(sleeps_cut_short_leave_one_event)
{
    struct side s, r;

    sim_open(&gigabyte);
    for (int i = 0; i < 1000; i++) {
        sim_receive(1, 0, 1, &r);
        link_simulated.sleep(ends[1], UINT64_C(1000000000), 0);
        sim_send(0, 1, 1, 100, &s);
        sim_run_for(10 * LATENCY);
        ck_assert(r.n_ended == 1 && !simulated_sleeps(world, 1));
    }
    uint64_t before = simulated_figures(world).events;
    link_simulated.sleep(ends[1], UINT64_C(3000000000), 0);     /* it ends in time */
    sim_run_for(UINT64_C(3000000000) - 1);
    ck_assert(simulated_sleeps(world, 1));
    sim_run_for(1);
    ck_assert(!simulated_sleeps(world, 1));
    ck_assert_uint_le(simulated_figures(world).events - before, 2);
    sim_close();
}
END_TEST

START_TEST(a_fixed_world_forgets_nobody)
{
    struct side s;

    sim_open(&gigabyte);
    ck_assert(places[0].fixed);
    ck_assert(!link_simulated.forget(ends[0], 1, LINK_PEER));
    ck_assert_str_ne(link_simulated.why(ends[0]), "");
    sim_send(0, 1, 1, BULK, &s);
    ck_assert(!link_simulated.close(ends[0], false));
    ends[0] = NULL;
    ck_assert(link_simulated.close(ends[1], true));
    ends[1] = NULL;
    sim_close();
}
END_TEST

/* --- no memory --- */

/* False: something had failed. */
static bool try_a_world(void)
{
    const struct simulated_options options = {.ranks = 4, .latency_ns = LATENCY,
                                              .bytes_per_s = 1e9};
    struct link_entry entry = {.rank = -1};
    struct link *both[2] = {NULL, NULL};
    struct link_news news;
    struct side side;

    world = simulated_create(&options);
    entry.context = world;
    bool good = world != NULL;
    for (int k = 0; k < 2 && good; k++)
        good = (both[k] = link_simulated.meet(&entry, &places[k])) != NULL;
    if (good)
        simulated_run(world, simulated_now(world) + LATENCY);
    for (int i = 0; i < 100 && good; i++)
        good = link_simulated.send(both[0], buffers[0], i % 2 ? 100 : BULK,
        &(struct link_message){1, i % 3, 0, &side}) &&
               link_simulated.receive(both[1], buffers[1], BULK,
        &(struct link_message){0, i % 3, 0, &side});
    const struct simulated_fault cut = {.kind = SIMULATED_CUT, .other = 1};
    good = good && simulated_fault(world, &cut);
    if (good)
        simulated_run(world, simulated_now(world) + 10000000);
    for (int k = 0; k < 2 && good; k++)
        good = link_simulated.collect(both[k], &news) && news.n_ended == 100;
    for (int k = 0; k < 2; k++)
        if (both[k])
            link_simulated.close(both[k], false);
    simulated_destroy(world);
    ck_assert_int_eq(memory_live(), 0);
    return good;
}

START_TEST(memory_may_run_out_at_any_time)
{
    long k = 1;

    for (;; k++) {
        memory_fail_at(k);
        bool good = try_a_world();
        memory_fail_at(0);
        if (good)
            break;
    }
    ck_assert_int_gt(k, 100);
}
END_TEST

int main(void)
{
    TCase *link = new_case("link", 120);
    tcase_add_test(link, a_message_takes_latency_and_its_bytes);
    tcase_add_test(link, links_are_occupied_both_ways);
    tcase_add_test(link, hosts_have_one_link_and_some_are_slow);
    tcase_add_loop_test(link, one_tag_keeps_its_order_and_others_overtake, 0, SEEDS);
    tcase_add_test(link, whoever_came_first_is_received_from_any);
    tcase_add_test(link, words_are_copied_and_bulk_is_read_when_it_comes);
    tcase_add_test(link, words_have_room_for_so_many);
    tcase_add_test(link, what_is_too_long_for_its_receive_is_not_written);
    tcase_add_test(link, words_pass_bulk_that_nobody_receives);
    tcase_add_loop_test(link, no_order_of_receives_stops_the_others, 0, TALKS);
    tcase_add_test(link, who_sleeps_is_woken_by_time_or_by_news);
    tcase_add_test(link, sleeps_cut_short_leave_one_event);
    tcase_add_test(link, a_fixed_world_forgets_nobody);
    tcase_add_test(link, memory_may_run_out_at_any_time);
    return run_cases(link, NULL);
}
