/* SPDX-License-Identifier: MIT */
/* What --tables auto chooses, for every case of a grid, beside the rules in plain words and the
 * figures that were measured. */
#include "harness/suite.h"
#include "train/alike.h"
#include "train/tables_auto.h"

#include <math.h>
#include <string.h>

/* The DLRM of the defaults, with as many rows as were measured. */
static const struct tables_case usual = {
    .hosts = 2, .fits = true, .rows = 2.6e6, .row_floats = 16, .sent_bytes = 64, .fields = 26,
    .example_s = 27e-6, .workers = 1};

START_TEST(measured_jobs)
{
    struct tables_case c = usual;
    struct tables_choice two = tables_choose(&c);
    ck_assert_double_eq_tol(two.late_s, 2.6e6 / 15000, 1);
    ck_assert_int_eq(two.why, TABLES_ALIKE);
    c.hosts = 4;
    struct tables_choice four = tables_choose(&c);
    ck_assert_double_eq_tol(four.late_s, 2 * two.late_s, 1e-6);
    ck_assert_int_eq(four.why, TABLES_LATE);
    c.budget = 1;
    ck_assert_int_eq(tables_choose(&c).why, TABLES_ALIKE);
    /* bench/sharded.py speed: 0.82 and 0.71 to 0.75 of the speed, with all that is lost */
    ck_assert(two.speed > 0.82 && two.speed < 0.9);
    ck_assert(four.speed > 0.75 && four.speed < two.speed);
    /* linear has 39 ids of one float, and no time for messages */
    c = (struct tables_case){.hosts = 8, .fits = true, .rows = 1e8, .row_floats = 1,
                             .sent_bytes = 4, .fields = 39, .example_s = 0.3e-6, .workers = 1};
    ck_assert_int_eq(tables_choose(&c).why, TABLES_SLOW);
}
END_TEST

/* Bytes of an example by hand: (1,664 + 1,664 + 208) (k - 1) / k. */
START_TEST(a_link_that_carries_too_little)
{
    struct tables_case c = usual;
    c.rows = 1e9;
    for (int k = 2; k <= 64; k *= 2)
        for (int workers = 1; workers <= 64; workers *= 2) {
            c.hosts = k;
            c.workers = workers;
            double needs = 3536.0 * (k - 1) / k * workers / 27e-6;
            c.link = 0.6 * needs;
            struct tables_choice choice = tables_choose(&c);
            ck_assert_double_eq_tol(choice.speed, 0.6, 1e-9);
            ck_assert_int_eq(choice.why, TABLES_SLOW);
            c.link = 2 * needs;
            ck_assert_int_eq(tables_choose(&c).why, TABLES_LATE);
            c.link = 0;                         /* 1 Gb/s */
            ck_assert_int_eq(tables_choose(&c).why,
                             125e6 < 0.7 * needs ? TABLES_SLOW : TABLES_LATE);
        }
}
END_TEST

/* To each other host on its own: 68 bytes a row. */
START_TEST(a_shadow_that_may_send_so_much)
{
    struct tables_case c = usual;
    c.rows = 1e6;
    for (int k = 2; k < 40; k++) {
        c.hosts = k;
        c.rate = 1e4;
        ck_assert_double_eq_tol(tables_choose(&c).late_s, 1e6 * 68 * (k - 1) / 1e4, 1e-6);
        c.rate = 1e9;                           /* then CPU is what lacks */
        ck_assert_double_eq_tol(tables_choose(&c).late_s, 1e6 * k / 30000, 1e-6);
    }
}
END_TEST

static const double sizes[] = {1, 1e4, 1e6, 2.6e6, 2.6e7, 1e9, 1e12};
static const double floats[] = {1, 17, 32, 2048};
static const double shares[] = {0, 0.001, 0.04, 1, 64};
static const double rates[] = {0, 1, 1e6, 1e9};
static const int hosts[] = {1, 2, 3, 8, 4096};

static bool sound(const struct tables_case *c)
{
    char text[160];
    struct tables_choice x = tables_choose(c), y;
    bool late = x.late_s > 300, slow = x.speed < 0.7;
    enum tables_why wanted = c->hosts == 1 ? TABLES_ONE_HOST
                             : !c->fits    ? TABLES_NO_ROOM
                             : !late       ? TABLES_ALIKE
                             : slow        ? TABLES_SLOW
                                           : TABLES_LATE;
    bool good = x.why == wanted && isfinite(x.late_s) && x.speed > 0 && x.speed <= 1;
    bool owned = tables_owned(x.why);
    good &= owned == (strncmp(tables_choice_text(&x, text, sizeof text), "shard: ", 7) == 0);
    good &= owned || strncmp(text, "replicate: ", 11) == 0;
    good &= strlen(text) < sizeof text - 1;
    struct tables_case more = *c;
    more.rows *= 10;                    /* copies only get worse */
    y = tables_choose(&more);
    good &= !owned || tables_owned(y.why);
    good &= c->hosts == 1 || y.late_s > x.late_s;
    more = *c;
    more.budget = c->budget > 0 ? 2 * c->budget : 1;            /* copies only get better */
    y = tables_choose(&more);
    good &= y.late_s <= x.late_s && (owned || !tables_owned(y.why));
    more = *c;
    more.link = 1e12;                   /* fetching only gets better */
    y = tables_choose(&more);
    good &= y.speed >= x.speed && (!owned || tables_owned(y.why));
    more = *c;
    more.fits = false;
    return good && tables_owned(tables_choose(&more).why) == (c->hosts > 1);
}

START_TEST(every_case_by_the_rules)
{
    struct tables_case c = usual;
    int whys[TABLES_LATE + 1] = {0};
    for (int a = 0; a < N(sizes); a++)
        for (int b = 0; b < N(floats); b++)
            for (int d = 0; d < N(shares); d++)
                for (int e = 0; e < N(rates); e++)
                    for (int k = 0; k < N(hosts); k++)
                        for (int fits = 0; fits < 2; fits++) {
                            c.rows = sizes[a];
                            c.row_floats = floats[b];
                            c.sent_bytes = 4 * floats[b];
                            c.budget = shares[d];
                            c.rate = rates[e];
                            c.hosts = hosts[k];
                            c.fits = fits;
                            ck_assert_msg(sound(&c), "%g rows of %g floats, %g of a core, %g B/s, "
                                          "%d hosts, fits %d", c.rows, c.row_floats, c.budget,
                                          c.rate, c.hosts, fits);
                            whys[tables_choose(&c).why]++;
                        }
    for (int why = TABLES_ONE_HOST; why <= TABLES_LATE; why++)
        ck_assert_int_gt(whys[why], 0);
}
END_TEST

static const struct {
    const char *error;
    bool differ;
} errors[] = {
    {"rank 1 (b) has \"segment dlrm,shard,data=7 14\", rank 0 (a) \"segment dlrm,data=7\"", true},
    {"rank 1 (b) has \"segment dlrm,data=7 14\", rank 0 (a) \"segment dlrm,shard,data=7\"", true},
    {"rank 1 (b) has \"segment dlrm,shard,data=8\", rank 0 \"segment dlrm,shard,data=7\"", false},
    {"rank 1 (b) has \"segment dlrm,data=8 14\", rank 0 (a) \"segment dlrm,data=7 14\"", false},
    {"rank 1 (b,shard) has \"plan none\", rank 0 (a) \"plan shadow-ma\"", false},
    {"rank 1 has \"segment dlrm,shard", false},
    {"\"segment ", false},
    {"", false},
};

START_TEST(hosts_that_chose_otherwise)
{
    ck_assert_int_eq(alike_but_owners(errors[_i].error), errors[_i].differ);
}
END_TEST

#define TWO(one, other) "rank 1 (b) has \"segment " one " 14\", rank 0 (a) \"segment " other " 14\""

static const struct {
    const char *error;
    bool differ;
} of_steps[] = {
    {TWO("dlrm,data=7,steps=0000000a", "dlrm,data=7,steps=0000000b"), true},
    {TWO("dlrm,data=7,steps=0000000a", "dlrm,data=7,steps=0000000a"), false},
    {TWO("dlrm,data=7,steps=0000000a", "dlrm,data=8,steps=0000000b"), false},
    {TWO("dlrm,data=7,steps=0000000a", "linear,data=7,steps=0000000b"), false},
    {TWO("dlrm,data=7,steps=0000000a", "dlrm,data=7"), false},
    {TWO("dlrm,data=7", "dlrm,data=7,steps=0000000b"), false},
    {TWO("dlrm,data=7,steps=", "dlrm,data=7,steps=0000000b"), false},
    {TWO("dlrm,steps=0000000a", "dlrm,steps=0000000b"), true},
    {TWO("dlrm,data=7,steps=0000000a 1", "dlrm,data=7,steps=0000000b 2"), false},
    {TWO("dlrm,data=7,steps=0000000a", "dlrm,data=7,steps=0000000b 2"), false},
    {"rank 1 has \"segment dlrm,data=7,steps=0000000a\"", false},
    {"rank 1 has \"segment dlrm,steps=0000000a\", rank 0 \"segment dlrm,steps=0", false},
    {"", false},
};

START_TEST(hosts_that_step_otherwise)
{
    ck_assert_int_eq(alike_but_steps(of_steps[_i].error), of_steps[_i].differ);
}
END_TEST

/* Each setting of the steps is in the name where it means something, and no other one but
 * those that a name always has. */
START_TEST(settings_that_are_alike)
{
    static const char *const values[] = {"0.5", "7", "sgd", "adam", "adamw", "adagrad", "cosine",
                                         "rowwise-adagrad"};
    char name[ALIKE_ROOM], other[ALIKE_ROOM], why[256];
    const struct alike all = {"linear", true, true, true, UINT64_MAX};
    int of = 0;
    bool steps = false;
    struct train_options o = train_options_default();
    o.checkpoint = "model";
    alike_name(&o, &all, name);
    ck_assert_msg(strlen(name) < ALIKE_ROOM - 1 && strstr(name, ",steps="), "%s", name);
    for (const struct option *s = train_settings; s < train_settings + n_train_settings; s++) {
        bool last = strcmp(s->name, "warmup") == 0, differs = false;
        steps |= strcmp(s->name, "optimizer") == 0;
        for (int k = 0; k < N(values); k++) {
            o = train_options_default();
            o.checkpoint = "model";
            if (s->type == OPTION_TEXT || !option_parse(s, values[k], &o, why, sizeof why))
                continue;
            o.checkpoint = "model";
            alike_name(&o, &all, other);
            differs |= strcmp(name, other) != 0;
        }
        train_options_default();
        ck_assert_msg(differs == (steps && config_matters(&o, s->name)) || differs == steps,
                      "%s", s->name);
        of += differs;
        steps &= !last;
    }
    ck_assert_int_ge(of, 7);
    alike_name(&o, &(struct alike){.model = "dlrm"}, other);
    ck_assert_int_eq(strncmp(other, "dlrm,steps=", 11), 0);
    ck_assert_int_eq((int)strlen(other), 11 + 8);
}
END_TEST

/* Each rule alone says no. */
START_TEST(rows_that_move)
{
    static const int64_t ranks[] = {0, 2, 64, 1023, 1024, 1025, 4096};
    for (int tcp = 0; tcp < 2; tcp++)
        for (int k = 0; k < N(ranks); k++) {
            const struct tables_moving m = {tcp, ranks[k]};
            ck_assert_int_eq(tables_move(&m), tcp && k <= 4);
        }
}
END_TEST

int main(void)
{
    TCase *all = new_case("tables_auto", 20);

    tcase_add_test(all, measured_jobs);
    tcase_add_test(all, a_link_that_carries_too_little);
    tcase_add_test(all, a_shadow_that_may_send_so_much);
    tcase_add_test(all, every_case_by_the_rules);
    tcase_add_test(all, rows_that_move);
    tcase_add_loop_test(all, hosts_that_chose_otherwise, 0, N(errors));
    tcase_add_loop_test(all, hosts_that_step_otherwise, 0, N(of_steps));
    tcase_add_test(all, settings_that_are_alike);
    return run_cases(all, NULL);
}
