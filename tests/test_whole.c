/* SPDX-License-Identifier: MIT */
/* The figures of all hosts, merged: every state, hosts of several trainers, hosts that
 * come, go and are slow, and numbers that no trainer can have. */
#include "harness/suite.h"
#include "train/trainer.h"

#include <math.h>
#include <stdio.h>

static struct whole w;
static struct descant_peer peers[8];

static void set_up(void)
{
    memset(&w, 0, sizeof w);
    memset(peers, 0, sizeof peers);
    ck_assert(whole_room(&w, 8));
}

static void tear_down(void)
{
    whole_fini(&w);
    ck_assert_int_eq(memory_live(), 0);
}

/* Trainer k, of that host, with n examples in so many seconds. */
static struct descant_peer *put(int k, int host, double n, double seconds)
{
    struct descant_peer *p = &peers[k];

    *p = (struct descant_peer){.rank = k, .workers = 2, .host = "alpha", .rounds = 10,
                               .gap_mean = 4, .age_s = 0.25, .n_values = N_SHOWN};
    p->values[SHOWN_LAYOUT] = SHOWN_LAYOUT_NOW;
    p->values[SHOWN_HOST] = host;
    p->values[SHOWN_N] = n;
    p->values[SHOWN_LOSS] = n / 2;
    p->values[SHOWN_POSITIVE] = n / 4;
    p->values[SHOWN_CORRECT] = n / 5;
    p->values[SHOWN_PREDICTED] = n / 8;
    p->values[SHOWN_SECONDS] = seconds;
    p->values[SHOWN_PLACE] = p->values[SHOWN_LEFT_S] = -1;
    return p;
}

static void merge(size_t n)
{
    whole_merge(&w, peers, n);
}

/* --- states --- */

static enum host_state state_by_rule(enum descant_event_kind last, bool ended)
{
    return last == DESCANT_EVENT_LOST                 ? HOST_DIED
           : last == DESCANT_EVENT_UNFINISHED         ? HOST_FAILED
           : last == DESCANT_EVENT_LEFT               ? HOST_LEFT
           : ended                                    ? HOST_DONE
                                                      : HOST_TRAINS;
}

START_TEST(states_follow_from_events)
{
    for (int last = DESCANT_EVENT_JOINED; last <= DESCANT_EVENT_FINISHED; last++)
        for (int ended = 0; ended < 2; ended++) {
            put(3, 0, 100, 10);
            peers[3].last = (enum descant_event_kind)last;
            peers[3].values[SHOWN_ENDED] = ended;
            whole_merge(&w, &peers[3], 1);
            ck_assert_uint_eq(w.n, 1);
            ck_assert_int_eq(w.hosts[0].state,
                             state_by_rule((enum descant_event_kind)last, ended));
            ck_assert_int_eq(w.at_work, w.hosts[0].state == HOST_TRAINS);
        }
}
END_TEST

/* Of two trainers of one host: it trains as long as one does, else it is as the worse. */
START_TEST(a_host_is_as_its_trainers)
{
    static const struct {
        enum descant_event_kind last;
        bool ended;
        enum host_state state;
    } ways[] = {{DESCANT_EVENT_JOINED, false, HOST_TRAINS},
                {DESCANT_EVENT_FINISHED, true, HOST_DONE},
                {DESCANT_EVENT_UNFINISHED, false, HOST_FAILED},
                {DESCANT_EVENT_LOST, false, HOST_DIED}};

    for (int a = 0; a < N(ways); a++)
        for (int b = 0; b < N(ways); b++) {
            put(0, 5, 100, 10)->last = ways[a].last;
            peers[0].values[SHOWN_ENDED] = ways[a].ended;
            peers[0].values[SHOWN_PLACE] = ways[a].ended ? 1 : 0.5;
            put(1, 5, 60, 20)->last = ways[b].last;
            peers[1].values[SHOWN_ENDED] = ways[b].ended;
            peers[1].values[SHOWN_PLACE] = ways[b].ended ? 1 : 0.5;
            peers[1].rounds = 0;
            merge(2);
            enum host_state x = ways[a].state, y = ways[b].state;
            ck_assert_uint_eq(w.n, 1);
            const struct host_figures *h = &w.hosts[0];
            ck_assert_int_eq(h->state, !x || !y ? HOST_TRAINS : x > y ? x : y);
            ck_assert(h->host == 5 && h->trainers == 2 && h->seen.n == 160);
            ck_assert_double_eq(h->seconds, 20);
            ck_assert_double_eq(h->worker_s, 2 * 10 + 2 * 20);
            ck_assert_double_eq(h->per_s, 8);
            ck_assert_double_eq(h->place, ways[a].ended || ways[b].ended ? 1 : 0.5);
            ck_assert_double_eq(h->gap, 4);     /* of the one that has merged */
            ck_assert_double_eq(h->seen.loss, 80);
        }
}
END_TEST

/* --- the job --- */

/* A checkpoint has the own host's sums from its board, and the others' from here, also of
 * those that have gone. */
START_TEST(the_others_of_a_host)
{
    put(0, 0, 400, 10);
    put(1, 2, 1000, 10);
    put(2, 2, 3000, 10);
    put(3, 5, 200, 10)->last = DESCANT_EVENT_LOST;
    merge(4);
    static const struct {
        int host;
        uint64_t n;
    } of[] = {{0, 4200}, {2, 600}, {5, 4400}, {1, 4600}};
    for (int k = 0; k < N(of); k++) {
        struct metrics m = whole_others(&w, of[k].host);
        ck_assert(m.n == of[k].n && m.positive == m.n / 4 && m.correct == m.n / 5);
        ck_assert_double_eq(m.loss, (double)m.n / 2);
        ck_assert_double_eq(m.predicted, (double)m.n / 8);
    }
}
END_TEST

/* A trainer that comes again shows the sums of its earlier process, too, and its own
 * place. Numbers that no trainer can have are not added. */
START_TEST(a_trainer_goes_on_from_its_earlier_process)
{
    double earlier[N_SHOWN], *now = put(0, 1, 100, 10)->values;

    memcpy(earlier, put(1, 1, 4000, 30)->values, sizeof earlier);
    ck_assert(whole_add_earlier(now, earlier, N_SHOWN));
    ck_assert(now[SHOWN_N] == 4100 && now[SHOWN_SECONDS] == 40);
    ck_assert(now[SHOWN_LOSS] == 2050 && now[SHOWN_POSITIVE] == 1025);
    ck_assert(now[SHOWN_PLACE] == -1 && now[SHOWN_HOST] == 1);
    ck_assert(!whole_add_earlier(now, earlier, 0));
    ck_assert(!whole_add_earlier(now, earlier, N_SHOWN - 1));
    earlier[SHOWN_N] = (double)NAN;
    ck_assert(!whole_add_earlier(now, earlier, N_SHOWN));
    ck_assert(now[SHOWN_N] == 4100);
}
END_TEST

/* In any order of ranks and hosts. */
START_TEST(hosts_add_up)
{
    static const int orders[][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0},
                                    {2, 0, 1}, {2, 1, 0}};

    for (int i = 0; i < N(orders); i++) {
        for (int k = 0; k < 3; k++) {
            int host = orders[i][k];
            put(k, host, 20000, 5 + 20 * (host == 1));
            peers[k].gap_mean = 1 + host;
            peers[k].age_s = 0.1 * (host + 1);
            peers[k].values[SHOWN_STALL_S] = 1;
            peers[k].values[SHOWN_PLACE] = 0.2 * (host + 1);
            peers[k].values[SHOWN_LEFT_S] = 10 * (host + 1);
        }
        merge(3);
        ck_assert_uint_eq(w.n, 3);
        for (int k = 0; k < 3; k++)
            ck_assert_int_eq(w.hosts[k].host, k);
        ck_assert(w.seen.n == 60000 && w.at_work == 3);
        ck_assert_double_eq(w.seconds, 25);
        ck_assert_double_eq(w.per_s, 2400);
        ck_assert_double_eq(w.gap.least, 1);
        ck_assert_double_eq(w.gap.most, 3);
        ck_assert_double_eq_tol(w.age_s.most, 0.3, 1e-12);
        ck_assert_double_eq_tol(w.stall_share, 3.0 / (2 * 35), 1e-12);
        ck_assert_double_eq_tol(w.place, 0.4, 1e-12);
        ck_assert_double_eq(w.left_s, 30);
        bool slow;
        ck_assert_int_eq(whole_slowest(&w, false, &slow), 1);
        ck_assert(slow);
    }
}
END_TEST

START_TEST(what_is_not_known_stays_unknown)
{
    bool slow;

    merge(0);
    ck_assert(w.n == 0 && w.per_s == 0 && isnan(w.gap.least));
    ck_assert_int_eq(whole_slowest(&w, false, &slow), -1);
    put(0, 0, 0, 0)->rounds = 0;
    merge(1);
    ck_assert(w.n == 1 && w.hosts[0].per_s == 0 && isnan(w.gap.most));
    ck_assert_int_eq(whole_slowest(&w, false, &slow), -1);
    put(0, 0, 100, 10)->values[SHOWN_PLACE] = 0.5;
    put(1, 1, 100, 10);
    merge(2);
    ck_assert(w.place < 0 && w.left_s < 0 && !isnan(w.gap.most));
    peers[1].rounds = 0;
    merge(2);
    ck_assert(isnan(w.hosts[1].gap) && w.gap.least == 4 && w.gap.most == 4);
}
END_TEST

/* Less than half of what the others have in the mean. */
START_TEST(a_slow_host_is_named)
{
    for (int n = 2; n <= 6; n++)
        for (int k = 0; k < n; k++)
            for (int tenths = 0; tenths <= 12; tenths++) {
                bool slow;
                for (int i = 0; i < n; i++)
                    put(i, i, 1000, 10);
                put(k, k, 100 * tenths, 10);
                merge((size_t)n);
                int slowest = whole_slowest(&w, false, &slow);
                ck_assert_int_eq(slow, tenths < 5);
                if (tenths < 10)
                    ck_assert_int_eq(slowest, k);
            }
}
END_TEST

/* --- lately --- */

START_TEST(a_rate_is_of_the_last_seconds)
{
    bool slow;

    for (int s = 1; s <= 20; s++) {
        put(0, 0, 1000 * s, s);
        put(1, 1, s < 10 ? 1000 * s : 9000 + 100 * (s - 9), s);
        merge(2);
        ck_assert_double_eq(w.hosts[0].lately, 1000);
        if (s < 10)
            ck_assert_double_eq(w.hosts[1].lately, 1000);
        if (s >= 15)
            ck_assert_double_eq(w.hosts[1].lately, 100);
        ck_assert_double_eq(w.lately, w.hosts[0].lately + w.hosts[1].lately);
        merge(2);                               /* a look more changes nothing */
        whole_slowest(&w, true, &slow);
        ck_assert_msg(s < 15 || slow, "%d", s);
    }
    ck_assert_double_eq(w.hosts[1].per_s, 10100.0 / 20);
    peers[1].heard_s = 6;                       /* it is silent */
    merge(2);
    ck_assert_double_eq(w.hosts[1].lately, 0);
    ck_assert_int_eq(whole_slowest(&w, true, &slow), 1);
    ck_assert(slow);
    peers[1].last = DESCANT_EVENT_LOST;         /* it is no longer awaited */
    merge(2);
    ck_assert_int_eq(whole_slowest(&w, true, &slow), -1);
    ck_assert(!slow && w.at_work == 1 && w.seen.n == 30100);
    put(1, 1, 50, 1);                           /* it comes again, and begins anew */
    merge(2);
    ck_assert_double_eq(w.hosts[1].lately, 50);
}
END_TEST

/* The past goes with its host, wherever that stands in the list. */
START_TEST(hosts_that_come_between_change_no_rate)
{
    put(0, 2, 2000, 10);
    merge(1);
    put(1, 2, 4000, 20);
    put(0, 1, 100, 1);
    put(2, 7, 100, 1);
    merge(3);
    ck_assert_uint_eq(w.n, 3);
    ck_assert_double_eq(w.hosts[1].lately, 200);
    ck_assert_double_eq(w.hosts[0].lately, 100);
    put(0, 2, 6000, 30);
    merge(1);
    ck_assert_uint_eq(w.n, 1);
    ck_assert_double_eq(w.hosts[0].lately, 200);
}
END_TEST

/* Of tables that grow, over trainers of a host and over hosts. */
START_TEST(rows_are_summed)
{
    for (int k = 0; k < 3; k++) {
        struct descant_peer *p = put(k, k / 2, 100, 10);
        p->values[SHOWN_ROWS] = 10 + k;
        p->values[SHOWN_EVICTED] = 100 + k;
        p->values[SHOWN_REFUSED] = 1000 + k;
    }
    merge(3);
    ck_assert_double_eq(w.hosts[0].rows.live, 21);
    ck_assert_double_eq(w.rows.live, 33);
    ck_assert_double_eq(w.rows.evicted, 303);
    ck_assert_double_eq(w.rows.refused, 3003);
    merge(1);
    ck_assert_double_eq(w.rows.live, 10);
}
END_TEST

/* --- numbers that no trainer can have --- */

START_TEST(odd_numbers_are_left_out)
{
    static const double odd[] = {(double)NAN, (double)INFINITY, -(double)INFINITY, -1, 1e300,
                                 -1e300, 1.5e15, 5e-324, 0, 1};

    for (int at = 0; at < N_SHOWN; at++)
        for (int i = 0; i < N(odd); i++) {
            put(0, 0, 100, 10);
            put(1, 1, 100, 10)->values[at] = odd[i];
            merge(2);
            ck_assert(w.n >= 1 && w.n <= 2);
            ck_assert(isfinite(w.per_s) && isfinite(w.seconds) && isfinite(w.lately));
            ck_assert(isfinite(w.place) && isfinite(w.left_s) && isfinite(w.stall_share));
            ck_assert(w.place <= 1 && w.seen.n >= 100);
            ck_assert(w.rows.live >= 0 && w.rows.evicted >= 0 && w.rows.refused >= 0);
            bool must_go = (at <= SHOWN_CORRECT || at == SHOWN_SECONDS || at == SHOWN_STALL_S ||
                            (at >= SHOWN_ROWS && at <= SHOWN_SERVED)) &&
                           !(odd[i] >= 0 && odd[i] <= 1e15);
            ck_assert_msg(!must_go || w.n == 1, "value %d: %g", at, odd[i]);
        }
    for (size_t n = 0; n < N_SHOWN; n++) {
        put(0, 0, 100, 10)->n_values = n;
        merge(1);
        ck_assert_uint_eq(w.n, 0);
    }
}
END_TEST

/* --- words --- */

static char text[4096];

static const char *printed(void)
{
    FILE *out = fmemopen(text, sizeof text, "w");
    whole_print(&w, out);
    fclose(out);
    return text;
}

START_TEST(the_table_has_all_hosts)
{
    put(0, 0, 20000, 5.4)->values[SHOWN_ENDED] = 1 + 20;
    put(1, 1, 20000, 25)->values[SHOWN_ENDED] = 1 + 0.3;
    peers[0].heard_s = 0.4;
    put(2, 2, 1000, 4.2)->last = DESCANT_EVENT_LOST;
    put(3, 3, 9000, 2.5)->last = DESCANT_EVENT_LEFT;
    put(4, 4, 9000, 2.5)->heard_s = 12;
    peers[1].host = "beta";
    peers[1].gap_mean = 1;
    merge(5);
    const char *is = printed();
    static const char *const lines[] = {
        "  host              examples examples/s seconds    stall    gap      age\n",
        "  0 alpha              20000       3704     5.4    0.0 %    4.0 250.0 ms\n",
        "  1 beta               20000        800    25.0    0.0 %    1.0 250.0 ms\n",
        "  2 alpha               1000        238     4.2    0.0 %    4.0 250.0 ms  slowest, died\n",
        "  3 alpha               9000       3600     2.5    0.0 %    4.0 250.0 ms  left\n",
        "  4 alpha               9000       3600     2.5    0.0 %    4.0 250.0 ms  not heard for 12 s\n",
        "  all 5 hosts          59000       2360    25.0    0.0 %\n",
        "  gap of a host              1.0 to 4.0 steps\n",
        "  age of a merge             250.0 ms\n",
        "  last host to end           1 beta, 20.1 s after the others\n"};
    for (int i = 0; i < N(lines); i++)
        ck_assert_msg(strstr(is, lines[i]) != NULL, "'%s' is not in:\n%s", lines[i], is);
}
END_TEST

/* A column for the rows that each rank has served, where some have; a host's are its trainers'. */
START_TEST(the_table_has_the_rows_that_were_served)
{
    put(0, 0, 1000, 10)->values[SHOWN_SERVED] = 70;
    put(1, 0, 1000, 10)->values[SHOWN_SERVED] = 5;
    put(2, 1, 1000, 10)->last = DESCANT_EVENT_LOST;
    merge(3);
    const char *is = printed();
    ck_assert_msg(strstr(is, "gap      age  rows served\n") != NULL, "%s", is);
    ck_assert_msg(strstr(is, "4.0 250.0 ms           75\n") != NULL, "%s", is);
    ck_assert_msg(strstr(is, "4.0 250.0 ms            0  died\n") != NULL, "%s", is);
    peers[0].values[SHOWN_SERVED] = peers[1].values[SHOWN_SERVED] = 0;
    merge(3);
    ck_assert(strstr(printed(), "rows served") == NULL);
}
END_TEST

/* Whatever they hold, lines are short, and nothing is cut within. */
START_TEST(large_numbers_fit)
{
    put(0, 1 << 20, 1e15, 1e9)->host = "a-name-that-is-longer-than-its-column";
    peers[0].gap_mean = peers[0].age_s = 1e18;
    put(1, 0, 1e15, 1)->values[SHOWN_STALL_S] = 1e15;
    merge(2);
    for (const char *line = printed(); *line; line = strchr(line, '\n') + 1)
        ck_assert_msg(strcspn(line, "\n") <= 110, "%s", line);
}
END_TEST

START_TEST(the_progress_names_a_slow_host)
{
    char line[96];

    for (int k = 0; k < 3; k++)
        put(k, k, 1000, 10);
    merge(3);
    ck_assert_str_eq(whole_text(&w, line, sizeof line), "3 hosts  gap 4.0-4.0");
    put(1, 1, 0, 10)->host = "beta";
    merge(3);
    merge(3);
    for (int k = 0; k < 3; k++)
        put(k, k, k == 1 ? 30 : 2000, 20);
    peers[1].host = "beta";
    merge(3);
    ck_assert_str_eq(whole_text(&w, line, sizeof line), "3 hosts, slow: host 1 beta 3/s");
    peers[2].last = DESCANT_EVENT_LOST;
    merge(3);
    ck_assert_str_eq(whole_text(&w, line, sizeof line),
                     "2 of 3 hosts, slow: host 1 beta 3/s");
    peers[0].last = DESCANT_EVENT_LEFT;
    peers[0].values[SHOWN_ENDED] = 1;
    merge(3);
    ck_assert_str_eq(whole_text(&w, line, sizeof line), "1 of 3 hosts: host 1 beta");
    peers[1].last = DESCANT_EVENT_LOST;
    merge(3);
    ck_assert_str_eq(whole_text(&w, line, sizeof line), "0 of 3 hosts");
    for (size_t room = 1; room < sizeof line; room++)
        ck_assert_uint_lt(strlen(whole_text(&w, line, room)), room);
}
END_TEST

START_TEST(room_is_made)
{
    struct whole more = {.n = 0};

    for (long k = 1; k <= 4; k++) {
        memory_fail_at(k);
        ck_assert(!whole_room(&more, 3));
        ck_assert_uint_eq(more.room, 0);
    }
    memory_fail_at(0);
    ck_assert(whole_room(&more, 2));
    put(0, 0, 1000, 10);
    put(1, 1, 500, 10);
    whole_merge(&more, peers, 2);
    ck_assert(whole_room(&more, 5));
    ck_assert(more.room == 5 && more.n == 2 && more.hosts[1].seen.n == 500);
    put(1, 1, 600, 20);
    whole_merge(&more, peers, 2);
    ck_assert_double_eq(more.hosts[1].lately, 10);
    whole_fini(&more);
}
END_TEST

int main(void)
{
    TCase *all = new_case("whole", 10);

    tcase_add_checked_fixture(all, set_up, tear_down);
    tcase_add_test(all, states_follow_from_events);
    tcase_add_test(all, a_host_is_as_its_trainers);
    tcase_add_test(all, the_others_of_a_host);
    tcase_add_test(all, a_trainer_goes_on_from_its_earlier_process);
    tcase_add_test(all, hosts_add_up);
    tcase_add_test(all, what_is_not_known_stays_unknown);
    tcase_add_test(all, a_slow_host_is_named);
    tcase_add_test(all, a_rate_is_of_the_last_seconds);
    tcase_add_test(all, hosts_that_come_between_change_no_rate);
    tcase_add_test(all, rows_are_summed);
    tcase_add_test(all, odd_numbers_are_left_out);
    tcase_add_test(all, the_table_has_all_hosts);
    tcase_add_test(all, the_table_has_the_rows_that_were_served);
    tcase_add_test(all, large_numbers_fit);
    tcase_add_test(all, the_progress_names_a_slow_host);
    tcase_add_test(all, room_is_made);
    return run_cases(all, NULL);
}
