/* SPDX-License-Identifier: MIT */
/* The plan's string: what every preset is, what is refused and with which words, that the
 * canonical text parses back, and what each step of each delay asks for. */
#include "harness/suite.h"
#include "sync/plan.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct plan good(const char *text)
{
    struct plan plan;
    memset(&plan, 0, sizeof plan);
    descant_status status = plan_parse(&plan, text, NULL);
    ck_assert_msg(status == DESCANT_OK, "%s: %s", text, descant_last_error());
    return plan;
}

static bool same(const struct plan *a, const struct plan *b)
{
    return strcmp(a->preset, b->preset) == 0 && a->when == b->when && a->what == b->what &&
           a->merge == b->merge && a->weight == b->weight && a->every == b->every &&
           a->delay == b->delay && a->gap == b->gap && !(a->alpha < b->alpha) &&
           !(a->alpha > b->alpha) && !(a->rate < b->rate) && !(a->rate > b->rate) &&
           !(a->momentum < b->momentum) && !(a->momentum > b->momentum) &&
           a->scale == b->scale && a->nesterov == b->nesterov &&
           a->heal == b->heal && a->wire == b->wire &&
           a->hot == b->hot && !(a->period < b->period) && !(a->period > b->period) &&
           a->bound == b->bound && !islessgreater(a->quorum, b->quorum) &&
           !islessgreater(a->grace, b->grace);
}

enum { HOT = 100 };     /* the default */
#define ALL 0, -0.1, PLAN_AS_ONE        /* quorum, grace and scale */
#define AUTO PLAN_AUTO

static const struct plan presets[] = {
    {"none", PLAN_NEVER, PLAN_NOTHING, PLAN_PULL,
     0, 0, 0, 0, 0, 0, 1, 1, 0, false, false, 0, HOT, ALL},
    {"allreduce", PLAN_EVERY, PLAN_GRADIENT, PLAN_PULL,
     0, 1, 0, 0, 0, 0, 1, 1, 0, false, false, 0, HOT, ALL},
    {"shadow-easgd", PLAN_SHADOW, PLAN_ELASTIC, PLAN_PULL,
     0, 0, 0, 0, 0, 0, .5, 1, 0, false, false, 0, HOT, ALL},
    {"shadow-ma", PLAN_SHADOW, PLAN_MEAN, PLAN_PULL,
     0, 0, 0, 0, 0, 0, .5, 1, 0, false, false, 0, HOT, ALL},
    {"shadow-delta", PLAN_SHADOW, PLAN_MEAN, PLAN_DELTA,
     0, 0, 0, 0, 0, 0, 1, 1, 0, false, false, 0, HOT, ALL},
    {"shadow-bmuf", PLAN_SHADOW, PLAN_BLOCK, PLAN_PULL,
     0, 0, 0, 0, 0, 0, .7, AUTO, AUTO, false, false, 0, HOT, ALL},
    {"easgd", PLAN_EVERY, PLAN_ELASTIC, PLAN_PULL,
     0, 8, 0, 0, 0, 0, .5, 1, 0, false, false, 0, HOT, ALL},
    {"ma", PLAN_EVERY, PLAN_MEAN, PLAN_PULL, 0, 8, 0, 0, 0, 0, 1, 1, 0, false, false, 0, HOT, ALL},
    {"bmuf", PLAN_EVERY, PLAN_BLOCK, PLAN_PULL,
     0, 8, 0, 0, 0, 0, 1, AUTO, AUTO, false, false, 0, HOT, ALL},
    {"dasgd", PLAN_EVERY, PLAN_MEAN, PLAN_PULL,
     0, 4, 1, 0, 0, 0, .75, 1, 0, false, false, 0, HOT, ALL},
    {"dasgd-delta", PLAN_EVERY, PLAN_MEAN, PLAN_DELTA,
     0, 4, 1, 0, 0, 0, 1, 1, 0, false, false, 0, HOT, ALL},
    {"diloco", PLAN_EVERY, PLAN_BLOCK, PLAN_PULL,
     0, 100, 0, 0, 0, 0, 1, AUTO, AUTO, true, false, 0, HOT, ALL},
    {"diloco-delta", PLAN_EVERY, PLAN_BLOCK, PLAN_DELTA,
     0, 100, 10, 0, 0, 0, 1, AUTO, AUTO, true, false, 0, HOT, ALL},
    {"bsp", PLAN_CONTROL, PLAN_SUM, PLAN_PULL,
     0, 0, 0, 0, .05, 16, 1, 1, 0, false, false, 0, HOT, ALL},
};
enum { N_PRESETS = sizeof presets / sizeof *presets };

START_TEST(preset_is_its_row)
{
    const struct plan *wanted = &presets[_i];
    struct plan plan = good(wanted->preset);
    ck_assert_str_eq(plan_presets[_i].name, wanted->preset);
    ck_assert(same(&plan, wanted));
}
END_TEST

START_TEST(presets_are_lines_of_text)
{
    char text[4096], whole[4096] = "", short_text[10];
    size_t n = descant_plans(text, sizeof text);

    for (int k = 0; k < N_PRESETS; k++)
        snprintf(whole + strlen(whole), sizeof whole - strlen(whole), "%s\t%s\t%s\n",
                 plan_presets[k].name, plan_presets[k].changes, plan_presets[k].help);
    ck_assert_str_eq(text, whole);
    ck_assert_uint_eq(n, strlen(whole));
    ck_assert_uint_eq(descant_plans(NULL, 0), n);
    ck_assert_uint_eq(descant_plans(short_text, sizeof short_text), n);
    ck_assert_uint_eq(strlen(short_text), sizeof short_text - 1);
}
END_TEST

START_TEST(presets_are_all_there)
{
    ck_assert_ptr_null(plan_presets[N_PRESETS].name);
}
END_TEST

/* a string and its canonical form */
static const char *const texts[][2] = {
    {"none", "none"},
    {"dasgd", "dasgd"},
    {"dasgd,every=4,delay=1,xi=0.25", "dasgd"},
    {"dasgd,every=8,delay=2", "dasgd,every=8,delay=2"},
    {"dasgd, every=8 ,delay=2 ", "dasgd,every=8,delay=2"},
    {"dasgd,delay=2,every=8", "dasgd,every=8,delay=2"},
    {"dasgd,delay=4", "dasgd,delay=4"},
    {"dasgd,alpha=0.1", "dasgd,alpha=0.1"},
    {"dasgd,xi=0.9", "dasgd,alpha=0.09999999999999998"},
    {"dasgd,xi=0", "dasgd,alpha=1"},
    {"dasgd,when=shadow", "dasgd,when=shadow"},
    {"dasgd,when=shadow,gap=7", "dasgd,when=shadow,gap=7"},
    {"dasgd,when=never", "dasgd,when=never,what=nothing"},
    {"diloco,nesterov=off", "diloco,nesterov=0"},
    {"diloco,rate=1e-3", "diloco,rate=0.001"},
    {"diloco,rate=auto,momentum=auto", "diloco"},
    {"diloco,rate=0.7,momentum=0.9", "diloco,rate=0.7,momentum=0.9"},
    {"bmuf,momentum=0", "bmuf,momentum=0"},
    {"when=shadow,what=block", "when=shadow,what=block"},
    {"when=shadow,what=block,momentum=auto", "when=shadow,what=block,momentum=auto"},
    {"diloco,what=mean", "diloco,what=mean"},
    {"easgd,merge=delta", "easgd,merge=delta"},
    {"bmuf,merge=delta,weight=steps", "bmuf,merge=delta,weight=steps"},
    {"ma,heal=yes", "ma,heal=1"},
    {"ma,wire=q8", "ma,wire=q8"},
    {"diloco,wire=bf16", "diloco,wire=bf16"},
    {"shadow-bmuf,wire=f32", "shadow-bmuf"},
    {"allreduce,every=1,delay=0", "allreduce"},
    {"when=every,what=mean,every=3", "when=every,what=mean,every=3"},
    {"what=elastic,when=shadow,alpha=1", "when=shadow,what=elastic"},
    {"when=every,what=gradient,every=1", "when=every,what=gradient,every=1"},
    {"when=never", "when=never"},
    {"none,when=shadow,what=block,rate=2", "none,when=shadow,what=block,rate=2"},
    {"bsp", "bsp"},
    {"bsp,period=50ms,bound=16", "bsp"},
    {"bsp,period=0.2s", "bsp,period=0.2s"},
    {"bsp,period=1ms,bound=0", "bsp,period=0.001s,bound=0"},
    {"bsp,every=8", "bsp,every=8"},
    {"when=control,every=3", "when=control,what=sum,every=3"},
    {"dasgd,when=control,period=7ms", "dasgd,when=control,what=sum,period=0.007s"},
    {"bsp,when=shadow,what=mean", "bsp,when=shadow,what=mean"},
    {"diloco,quorum=3", "diloco,quorum=3"},
    {"diloco,quorum=0", "diloco"},
    {"diloco,quorum=0.5,grace=0.1x", "diloco,quorum=0.5"},
    {"ma,quorum=0.75,grace=20ms", "ma,quorum=0.75,grace=0.02s"},
    {"dasgd-delta,grace=2x,quorum=2", "dasgd-delta,quorum=2,grace=2x"},
    {"shadow-bmuf,quorum=1,grace=0", "shadow-bmuf,quorum=1,grace=0s"},
};

START_TEST(text_is_canonical)
{
    char text[200];
    struct plan plan = good(texts[_i][0]);
    size_t length = plan_text(&plan, text, sizeof text);
    ck_assert_str_eq(text, texts[_i][1]);
    ck_assert_uint_eq(length, strlen(text));
    struct plan again = good(text);
    ck_assert(same(&plan, &again));
}
END_TEST

/* what a preset had and the changed plan has no use for goes back to its default */
START_TEST(useless_keys_are_reset)
{
    struct plan shadow = good("dasgd,when=shadow");
    ck_assert(shadow.every == 0 && shadow.delay == 0);
    struct plan mean = good("diloco,what=mean");
    ck_assert(!mean.nesterov && !(mean.momentum > 0) && mean.rate > 0.99 && mean.every == 100);
    struct plan never = good("dasgd-delta,when=never");
    ck_assert(never.what == PLAN_NOTHING && never.merge == PLAN_PULL && never.every == 0);
}
END_TEST

START_TEST(text_fits_any_room)
{
    char text[64];
    struct plan plan = good("dasgd,every=8,delay=2");
    ck_assert_uint_eq(plan_text(&plan, NULL, 0), 21);
    for (size_t room = 1; room < 30; room++) {
        memset(text, '#', sizeof text);
        ck_assert_uint_eq(plan_text(&plan, text, room), 21);
        ck_assert_uint_eq(strlen(text), room - 1 < 21 ? room - 1 : 21);
        ck_assert(strncmp(text, "dasgd,every=8,delay=2", strlen(text)) == 0);
        ck_assert_int_eq(text[room], '#');
    }
}
END_TEST

/* random plans: what is accepted must come back the same */
START_TEST(text_round_trip)
{
    static const char *const changes[] = {
        "when=every", "when=shadow", "what=mean", "what=block", "what=elastic", "merge=delta",
        "every=5", "every=123", "delay=0", "delay=5", "gap=3", "alpha=0.3", "xi=0.7",
        "rate=0.123456789012345678", "momentum=0.999", "rate=auto", "momentum=auto", "scale=root", "nesterov=1", "weight=steps", "heal=1",
        "wire=q8", "wire=bf16", "when=control", "what=sum", "period=20ms", "bound=3"};
    struct rng rng;
    int accepted = 0;
    rng_init(&rng, 7);
    for (int i = 0; i < 20000; i++) {
        char text[400], canonical[400];
        struct plan plan, again;
        snprintf(text, sizeof text, "%s", plan_presets[rng_next(&rng) % N_PRESETS].name);
        for (uint64_t n = rng_next(&rng) % 5; n > 0; n--) {
            const char *change = changes[rng_next(&rng) % (sizeof changes / sizeof *changes)];
            size_t used = strlen(text);
            snprintf(text + used, sizeof text - used, ",%s", change);
        }
        if (plan_parse(&plan, text, NULL) != DESCANT_OK)
            continue;
        accepted++;
        plan_text(&plan, canonical, sizeof canonical);
        again = good(canonical);
        ck_assert_msg(same(&plan, &again), "%s became %s", text, canonical);
        ck_assert(plan.delay <= plan.every);
    }
    ck_assert_int_gt(accepted, 2000);
}
END_TEST

/* a string that is refused, and words its message must have, separated by bars */
static const char *const refused[][2] = {
    {"", "empty"},
    {"dasgda", "unknown preset 'dasgda'|place 1|none, allreduce, shadow-easgd|diloco-delta"},
    {"DASGD", "unknown preset"},
    {"bsp,period=50", "period cannot be '50'|place 12|a time"},
    {"bsp,period=0", "period cannot be '0'|0.001s to 3600s"},
    {"bsp,period=20ms,every=4", "period at place 5|every at place 17|give one"},
    {"when=control", "when=control at place 1|period=TIME or every=GRADIENTS"},
    {"ma,period=50ms", "period at place 4|when=control"},
    {"ma,bound=3", "bound at place 4|when=control"},
    {"bsp,alpha=0.5", "alpha at place 5|what=mean"},
    {"bsp,hot=3", "hot at place 5|when=shadow"},
    {"bsp,when=shadow", "place 5|when=control and what=sum"},
    {"ma,what=sum", "place 4|when=control and what=sum"},
    {"dasgd,speed=1", "unknown key 'speed'|place 7|when, what, merge, every|heal"},
    {"dasgd,everyx=1", "unknown key 'everyx'|place 7"},
    {"dasgd,=1", "unknown key ''|place 7"},
    {"dasgd,", "nothing at place 7"},
    {"dasgd,,every=2", "nothing at place 7"},
    {"dasgd,every=8,", "nothing at place 15"},
    {",every=8", "unknown preset ''"},
    {"dasgd,diloco", "'diloco' at place 7|not key=value"},
    {"dasgd,every=", "every has no value|place 13|whole number"},
    {"dasgd,when=", "when has no value|place 12|never|shadow|every"},
    {"dasgd,every=0", "every cannot be '0'|place 13|from 1"},
    {"dasgd,every=-1", "every cannot be '-1'"},
    {"dasgd,every=1.5", "every cannot be '1.5'|whole number"},
    {"dasgd,every=99999999999999999999", "every cannot be"},
    {"dasgd,every=4x", "every cannot be '4x'"},
    {"dasgd,alpha=0", "alpha cannot be '0'|above 0 to 1"},
    {"dasgd,alpha=1.01", "alpha cannot be '1.01'|above 0 to 1"},
    {"dasgd,alpha=nan", "alpha cannot be 'nan'"},
    {"dasgd,alpha=0x1p-1", "alpha cannot be"},
    {"dasgd,alpha= 0.5", "alpha cannot be ' 0.5'"},
    {"dasgd,xi=1", "xi cannot be '1'"},
    {"dasgd,alpha=0.5,xi=0.5", "alpha at place 7|xi at place 17"},
    {"dasgd,xi=0.5,alpha=0.5", "alpha at place 14|xi at place 7"},
    {"dasgd,every=4,every=4", "every stands at place 7 and again at place 15"},
    {"dasgd,delay=5", "place 7|delay=5|every=4|0 to every"},
    {"dasgd,every=8,delay=9", "place 15|delay=9|every=8"},
    {"diloco-delta,every=5", "place 14|delay=10|every=5"},
    {"shadow-ma,every=4", "every at place 11|when=every"},
    {"shadow-ma,delay=0", "delay at place 11|when=every"},
    {"dasgd,when=shadow,delay=1", "delay at place 19|when=every"},
    {"dasgd,gap=4", "gap at place 7|when=shadow"},
    {"none,gap=4", "gap at place 6|when=shadow"},
    {"ma,rate=1", "rate at place 4|what=block"},
    {"ma,momentum=0", "momentum at place 4|what=block"},
    {"easgd,nesterov=1", "nesterov at place 7|what=block"},
    {"shadow-easgd,scale=root", "scale at place 14|what=block"},
    {"bmuf,scale=2", "scale cannot be '2'|mean|root"},
    {"bmuf,momentum=1", "momentum cannot be '1'"},
    {"bmuf,nesterov=2", "nesterov cannot be '2'|0 or 1"},
    {"bmuf,rate=0", "rate cannot be '0'|above 0 to 10, or auto"},
    {"bmuf,rate=-1", "rate cannot be '-1'|or auto"},
    {"bmuf,momentum=Auto", "momentum cannot be 'Auto'|0 to 0.9999, or auto"},
    {"ma,rate=auto", "rate at place 4|what=block"},
    {"dasgd,alpha=auto", "alpha cannot be 'auto'"},
    {"ma,merge=push", "merge cannot be 'push'|pull|delta"},
    {"ma,weight=step", "weight cannot be 'step'|equal|steps"},
    {"easgd,weight=steps", "weight at place 7|what=mean"},
    {"allreduce,quorum=2", "quorum at place 11|what=mean or what=block"},
    {"shadow-easgd,quorum=2", "quorum at place 14|what=mean or what=block"},
    {"ma,quorum=2.5", "quorum at place 4|whole number"},
    {"ma,quorum=-1", "quorum cannot be '-1'"},
    {"ma,grace=10ms", "grace at place 4|quorum="},
    {"ma,quorum=2,grace=10", "grace cannot be '10'|a time like 10ms or a factor like 0.1x"},
    {"ma,quorum=2,grace=-1x", "grace cannot be '-1x'"},
    {"ma,quorum=2,weight=steps", "quorum at place 4|weight=steps at place 13|twice"},
    {"bmuf,weight=steps,quorum=2", "quorum at place 19|weight=steps at place 6"},
    {"ma,wire=8", "wire cannot be '8'|f32|bf16|q8"},
    {"shadow-easgd,wire=q8", "wire at place 14|what=mean or what=block"},
    {"allreduce,wire=bf16", "wire at place 11|what=mean or what=block"},
    {"none,wire=bf16", "wire at place 6|what=mean or what=block"},
    {"allreduce,every=2", "place 11|gradient|every=1,delay=0"},
    {"allreduce,delay=1", "place 11|gradient"},
    {"allreduce,when=shadow", "place 11|gradient"},
    {"allreduce,alpha=0.5", "alpha at place 11|what=mean"},
    {"ma,what=gradient", "place 4|gradient|every=1"},
    {"none,what=mean", "what at place 6|when=shadow or when=every"},
    {"when=shadow", "when at place 1|what=mean"},
    {"when=every,what=mean", "every=STEPS"},
    {"none,merge=delta", "merge at place 6|what=mean"},
};

START_TEST(refusal_says_what_and_where)
{
    struct plan plan = {.every = 77};
    char words[200];
    snprintf(words, sizeof words, "%s", refused[_i][1]);
    ck_assert_int_eq(plan_parse(&plan, refused[_i][0], NULL), DESCANT_BAD_PLAN);
    ck_assert_int_eq(plan.every, 77);
    char *rest = words;
    for (char *word; (word = strsep(&rest, "|")) != NULL;)
        ck_assert_msg(strstr(descant_last_error(), word) != NULL, "no '%s' in: %s", word,
                      descant_last_error());
}
END_TEST

START_TEST(refusal_of_long_strings)
{
    struct plan plan;
    static char text[20000];
    memset(text, 'a', sizeof text - 1);
    ck_assert_int_eq(plan_parse(&plan, text, NULL), DESCANT_BAD_PLAN);
    memcpy(text, "ma,every=", 9);
    ck_assert_int_eq(plan_parse(&plan, text, NULL), DESCANT_BAD_PLAN);
    text[sizeof text - 2] = '=';
    memcpy(text, "ma,", 3);
    text[8] = 'x';
    ck_assert_int_eq(plan_parse(&plan, text, NULL), DESCANT_BAD_PLAN);
    ck_assert_int_eq(plan_parse(&plan, NULL, NULL), DESCANT_BAD_PLAN);
}
END_TEST

/* random bytes: refused or accepted, never worse */
START_TEST(random_bytes)
{
    static const char letters[] = "dasg,=everyltom.0123-|\x80";
    struct rng rng;
    rng_init(&rng, 11);
    for (int i = 0; i < 50000; i++) {
        char text[40] = "ma,";
        size_t n = rng_next(&rng) % 30;
        for (size_t k = 0; k < n; k++)
            text[k + (i % 2 ? 3 : 0)] = letters[rng_next(&rng) % (sizeof letters - 1)];
        struct plan plan;
        descant_status status = plan_parse(&plan, text, NULL);
        ck_assert(status == DESCANT_OK || status == DESCANT_BAD_PLAN);
    }
}
END_TEST

static void keep(void *user, enum descant_level level, const char *line)
{
    char *kept = user;
    ck_assert_int_eq(level, DESCANT_ERROR);
    snprintf(kept, 200, "%s", line);
}

START_TEST(refusal_is_logged)
{
    char line[200] = "";
    struct log log = {.fn = keep, .user = line, .rank = -1};
    struct plan plan;
    ck_assert_int_eq(plan_parse(&plan, "dasgd,every=0", &log), DESCANT_BAD_PLAN);
    ck_assert_ptr_nonnull(strstr(line, "every cannot be '0'"));
    ck_assert_ptr_nonnull(strstr(line, "dasgd,every=0"));
}
END_TEST

/* Rounds run by the rule's own words: begun after every tau steps, merged d steps later. */
START_TEST(due_follows_the_rule)
{
    for (int64_t every = 1; every <= 9; every++)
        for (int64_t delay = 0; delay <= every; delay++) {
            char text[64];
            snprintf(text, sizeof text, "dasgd,every=%d,delay=%d", (int)every, (int)delay);
            struct plan plan = good(text);
            int open = 0;
            ck_assert_int_eq(plan_due(&plan, 0), 0);
            for (int64_t t = 1; t < 60; t++) {
                bool merge = false;
                for (int64_t k = 1; k * every <= t; k++)
                    merge = merge || k * every + delay == t;
                int wanted = (t % every == 0 ? PLAN_DUE_SNAPSHOT : 0) |
                             (merge ? PLAN_DUE_MERGE : 0);
                ck_assert_int_eq(plan_due(&plan, (uint64_t)t), wanted);
                if (delay == 0)
                    continue;
                open -= merge;              /* merge first */
                ck_assert_int_ge(open, 0);
                open += (wanted & PLAN_DUE_SNAPSHOT) != 0;
                ck_assert_int_le(open, 1);
            }
        }
}
END_TEST

START_TEST(due_by_hand)
{
    enum { M = PLAN_DUE_MERGE, S = PLAN_DUE_SNAPSHOT };
    static const int delays[5][13] = {
        {0, 0, 0, 0, M | S, 0, 0, 0, M | S, 0, 0, 0, M | S},
        {0, 0, 0, 0, S, M, 0, 0, S, M, 0, 0, S},
        {0, 0, 0, 0, S, 0, M, 0, S, 0, M, 0, S},
        {0, 0, 0, 0, S, 0, 0, M, S, 0, 0, M, S},
        {0, 0, 0, 0, S, 0, 0, 0, M | S, 0, 0, 0, M | S},
    };
    struct plan plan = good("dasgd");
    for (plan.delay = 0; plan.delay <= 4; plan.delay++)
        for (uint64_t t = 0; t < 13; t++)
            ck_assert_int_eq(plan_due(&plan, t), delays[plan.delay][t]);
}
END_TEST

START_TEST(due_never_in_shadow)
{
    struct plan shadow = good("shadow-ma"), none = good("none");
    for (uint64_t t = 0; t < 20; t++) {
        ck_assert_int_eq(plan_due(&shadow, t), 0);
        ck_assert_int_eq(plan_due(&none, t), 0);
    }
}
END_TEST

START_TEST(snapshot_where_needed)
{
    static const struct { const char *text; bool needs; } rows[] = {
        {"none", false}, {"shadow-ma", false}, {"shadow-easgd", false},
        {"shadow-ma,merge=delta", true}, {"shadow-easgd,merge=delta", true}, {"ma", false},
        {"ma,merge=delta", false}, {"dasgd", true}, {"dasgd,delay=0", false},
        {"dasgd-delta", true}, {"diloco", false}, {"diloco-delta", true},
        {"allreduce", false}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct plan plan = good(rows[i].text);
        ck_assert_msg(plan_needs_snapshot(&plan) == rows[i].needs, "%s", rows[i].text);
    }
}
END_TEST

int main(void)
{
    TCase *tests = new_case("plan", 60);
    tcase_add_loop_test(tests, preset_is_its_row, 0, N_PRESETS);
    tcase_add_test(tests, presets_are_all_there);
    tcase_add_test(tests, presets_are_lines_of_text);
    tcase_add_loop_test(tests, text_is_canonical, 0, N(texts));
    tcase_add_test(tests, useless_keys_are_reset);
    tcase_add_test(tests, text_fits_any_room);
    tcase_add_test(tests, text_round_trip);
    tcase_add_loop_test(tests, refusal_says_what_and_where, 0, N(refused));
    tcase_add_test(tests, refusal_of_long_strings);
    tcase_add_test(tests, random_bytes);
    tcase_add_test(tests, refusal_is_logged);
    tcase_add_test(tests, due_follows_the_rule);
    tcase_add_test(tests, due_by_hand);
    tcase_add_test(tests, due_never_in_shadow);
    tcase_add_test(tests, snapshot_where_needed);
    return run_cases(tests, NULL);
}
