/* SPDX-License-Identifier: MIT */
/* The plan's string, and the work that a step calls for.
 *
 * A string is a preset and changes to it, "dasgd,every=8,delay=2", or changes alone, made
 * to the defaults. A preset's row is itself such a string, read by the same parser, so a
 * user could write any preset.
 *
 * 1. A key that the finished plan has no use for is an error where the user gave it, and
 *    goes back to its default where only the preset had it: "dasgd,when=shadow" has no
 *    delay.
 * 2. alpha and xi = 1 - alpha are one field; a plan keeps alpha, and plan_text writes
 *    that.
 * 3. plan_text writes the keys that differ from the preset, so its text parses to the
 *    same plan. Numbers are written as in the C locale, with as many digits as reading
 *    back needs.
 *
 * The rule of the delayed plans: after every tau steps a round begins, d steps later its
 * result is merged, 0 <= d <= tau; at one step merge first, then snapshot. */
#include "sync/plan.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* The plan that is being parsed, and values that it does not keep. The table's offsets
 * are in it. */
struct draft {
    struct plan plan;
    double xi;
};

enum plan_key {
    KEY_WHEN,
    KEY_WHAT,
    KEY_MERGE,
    KEY_EVERY,
    KEY_DELAY,
    KEY_GAP,
    KEY_PERIOD,
    KEY_BOUND,
    KEY_ALPHA,
    KEY_XI,
    KEY_RATE,
    KEY_MOMENTUM,
    KEY_SCALE,
    KEY_NESTEROV,
    KEY_WEIGHT,
    KEY_HEAL,
    KEY_WIRE,
    KEY_HOT,
    KEY_QUORUM,
    KEY_GRACE,
    N_KEYS
};

enum { MESSAGE_ROOM = 900, MAX_STEPS = 1000000000 };

#define AT(field) offsetof(struct draft, field)
const struct option plan_options[] = {
    [KEY_WHEN] = {.name = "when",
                  .type = OPTION_CHOICE,
                  .offset = AT(plan.when),
                  .choices = "never|shadow|every|control",
                  .help = "when a round runs"},
    [KEY_WHAT] = {.name = "what",
                  .type = OPTION_CHOICE,
                  .offset = AT(plan.what),
                  .choices = "nothing|mean|elastic|block|gradient|sum",
                  .help = "the result of an exchange"},
    [KEY_MERGE] = {.name = "merge",
                   .type = OPTION_CHOICE,
                   .offset = AT(plan.merge),
                   .choices = "pull|delta",
                   .help = "how the result is merged"},
    [KEY_EVERY] = {.name = "every",
                   .type = OPTION_INT,
                   .offset = AT(plan.every),
                   .low = 1,
                   .high = MAX_STEPS,
                   .help = "steps between the starts of two rounds; bsp: gradients "
                           "between two supersteps, instead of a period"},
    [KEY_DELAY] = {.name = "delay",
                   .type = OPTION_INT,
                   .offset = AT(plan.delay),
                   .low = 0,
                   .high = MAX_STEPS,
                   .help =
                       "steps from a round's start to its merge; 0: workers wait for it"},
    [KEY_GAP] = {.name = "gap",
                 .type = OPTION_INT,
                 .offset = AT(plan.gap),
                 .low = 0,
                 .high = MAX_STEPS,
                 .help = "shadow: at least so many steps between rounds"},
    [KEY_PERIOD] = {.name = "period",
                    .type = OPTION_TIME,
                    .offset = AT(plan.period),
                    .low = 0.001,
                    .high = 3600,
                    .help = "bsp: time between two supersteps"},
    [KEY_BOUND] = {.name = "bound",
                   .type = OPTION_INT,
                   .offset = AT(plan.bound),
                   .low = 0,
                   .high = MAX_STEPS,
                   .help = "bsp: versions that a gradient may be behind"},
    [KEY_ALPHA] = {.name = "alpha",
                   .type = OPTION_REAL,
                   .offset = AT(plan.alpha),
                   .low = OPTION_ABOVE_0,
                   .high = 1,
                   .help = "how far a merge pulls towards the global version"},
    [KEY_XI] = {.name = "xi",
                .type = OPTION_REAL,
                .offset = AT(xi),
                .low = 0,
                .high = 0.9999,
                .help = "1 - alpha, as DaSGD writes it"},
    [KEY_RATE] = {.name = "rate",
                  .type = OPTION_REAL,
                  .offset = AT(plan.rate),
                  .low = OPTION_ABOVE_0,
                  .high = 10,
                  .choices = "auto",
                  .help = "block: the outer learning rate"},
    [KEY_MOMENTUM] = {.name = "momentum",
                      .type = OPTION_REAL,
                      .offset = AT(plan.momentum),
                      .low = 0,
                      .high = 0.9999,
                      .choices = "auto",
                      .help = "block: the outer momentum; auto: by the interval and the "
                              "rounds so far (docs/plans.md)"},
    [KEY_SCALE] = {.name = "scale",
                   .type = OPTION_CHOICE,
                   .offset = AT(plan.scale),
                   .choices = "mean|root",
                   .help = "block: root: more outer momentum, so that steady changes go "
                           "further by the root of the number of trainers"},
    [KEY_NESTEROV] = {.name = "nesterov",
                      .type = OPTION_BOOL,
                      .offset = AT(plan.nesterov),
                      .high = 1,
                      .help = "block: momentum looks ahead"},
    [KEY_WEIGHT] = {.name = "weight",
                    .type = OPTION_CHOICE,
                    .offset = AT(plan.weight),
                    .choices = "equal|steps",
                    .help = "how trainers weigh in a mean"},
    [KEY_HEAL] = {.name = "heal",
                  .type = OPTION_BOOL,
                  .offset = AT(plan.heal),
                  .high = 1,
                  .help = "after NaN or Inf a trainer takes the global version"},
    [KEY_WIRE] = {.name = "wire",
                  .type = OPTION_CHOICE,
                  .offset = AT(plan.wire),
                  .choices = "f32|bf16|q8",
                  .help = "how means and rows are sent: in floats of 32, 16 or 8 bits"},
    [KEY_HOT] = {.name = "hot",
                 .type = OPTION_INT,
                 .offset = AT(plan.hot),
                 .low = 0,
                 .high = MAX_STEPS,
                 .help = "rows touched more often than this between rounds are averaged "
                         "over machines, others summed; 0: all are summed"},
    [KEY_QUORUM] = {.name = "quorum",
                    .type = OPTION_REAL,
                    .offset = AT(plan.quorum),
                    .low = 0,
                    .high = MAX_STEPS,
                    .help = "trainers that are enough for a round, once the grace is "
                            "over: a number, or below 1 a share; 0: all"},
    [KEY_GRACE] = {.name = "grace",
                   .type = OPTION_LAPSE,
                   .offset = AT(plan.grace),
                   .low = 0,
                   .high = 3600,
                   .help = "the time for which a round with its quorum waits for others "
                           "that were in the round before; 0.1x: a tenth of what the "
                           "quorum took"},
};
#undef AT
const size_t plan_n_options = N_KEYS;
_Static_assert(sizeof plan_options / sizeof *plan_options == N_KEYS,
               "one row for each key");

const struct plan_preset plan_presets[] = {
    {"none", "when=never", "no rounds: the upper bound on speed"},
    {"allreduce", "when=every,what=gradient,every=1",
     "synchronous minibatch SGD, as DDP"},
    {"shadow-easgd", "when=shadow,what=elastic,alpha=0.5", "ShadowSync S-EASGD"},
    {"shadow-ma", "when=shadow,what=mean,alpha=0.5", "ShadowSync S-MA"},
    {"shadow-delta", "when=shadow,what=mean,merge=delta", "S-MA with the merge of CoCoD"},
    {"shadow-bmuf", "when=shadow,what=block,alpha=0.7,rate=auto,momentum=auto",
     "ShadowSync S-BMUF"},
    {"easgd", "when=every,what=elastic,every=8,alpha=0.5", "EASGD, FR-EASGD"},
    {"ma", "when=every,what=mean,every=8", "local SGD, FR-MA"},
    {"bmuf", "when=every,what=block,every=8,rate=auto,momentum=auto",
     "BMUF, SlowMo, FR-BMUF"},
    {"dasgd", "when=every,what=mean,every=4,delay=1,xi=0.25", "DaSGD"},
    {"dasgd-delta", "when=every,what=mean,merge=delta,every=4,delay=1",
     "CoCoD, DGA: delayed averaging"},
    {"diloco", "when=every,what=block,every=100,rate=auto,momentum=auto,nesterov=1",
     "DiLoCo"},
    {"diloco-delta",
     "when=every,what=block,merge=delta,every=100,delay=10,rate=auto,momentum=auto,"
     "nesterov=1",
     "overlapped DiLoCo"},
    {"bsp", "when=control,what=sum,period=50ms,bound=16", "BSP with shared memory"},
    {NULL, NULL, NULL},
};

static const struct plan defaults = {
    .preset = "custom", .alpha = 1, .rate = 1, .hot = 100, .grace = -0.1};

/* The string and, for each key it has, the place it stands at, from 1; 0: not given. */
struct plan_text {
    const char *text;
    size_t place[N_KEYS];
    char message[MESSAGE_ROOM];
};

/* The condition that the plan lacks for the key to have a meaning; NULL: it lacks none.
 */
static const char *lacks(const struct plan *plan, int key)
{
    switch (key) {
    case KEY_EVERY:
        return plan->when == PLAN_EVERY || (plan->when == PLAN_CONTROL && plan->every)
                   ? NULL
                   : "when=every or when=control";
    case KEY_DELAY:
        return plan->when == PLAN_EVERY ? NULL : "when=every";
    case KEY_GAP:
        return plan->when == PLAN_SHADOW ? NULL : "when=shadow";
    case KEY_PERIOD:
        return plan->when == PLAN_CONTROL && plan->period > 0 ? NULL : "when=control";
    case KEY_BOUND:
        return plan->when == PLAN_CONTROL ? NULL : "when=control";
    case KEY_RATE:
    case KEY_MOMENTUM:
    case KEY_SCALE:
    case KEY_NESTEROV:
        return plan->what == PLAN_BLOCK ? NULL : "what=block";
    case KEY_WEIGHT:
    case KEY_WIRE:
    case KEY_QUORUM:
        return plan->what == PLAN_MEAN || plan->what == PLAN_BLOCK
                   ? NULL
                   : "what=mean or what=block";
    case KEY_GRACE:
        return plan->quorum > 0 ? NULL : "a plan with quorum=";
    case KEY_HOT:
        return plan->when == PLAN_NEVER || plan->when == PLAN_CONTROL
                   ? "when=shadow or when=every"
                   : NULL;
    case KEY_MERGE:
    case KEY_ALPHA:
    case KEY_XI:
    case KEY_HEAL:
        return plan->what == PLAN_MEAN || plan->what == PLAN_ELASTIC ||
                       plan->what == PLAN_BLOCK
                   ? NULL
                   : "what=mean, what=elastic or what=block";
    default:
        return NULL;
    }
}

#define FAIL(source, ...)                                                                \
    (snprintf((source)->message, sizeof(source)->message, __VA_ARGS__), false)

static bool check_uses(struct draft *draft, struct plan_text *source)
{
    static const size_t sizes[] = {
        [OPTION_INT] = sizeof(int64_t), [OPTION_REAL] = sizeof(double),
        [OPTION_BOOL] = sizeof(bool),   [OPTION_CHOICE] = sizeof(int),
        [OPTION_RATE] = sizeof(double), [OPTION_TIME] = sizeof(double),
        [OPTION_LAPSE] = sizeof(double),
    };
    const struct draft none = {.plan = defaults};
    for (int key = 0; key < N_KEYS; key++) {
        const struct option *option = &plan_options[key];
        const char *needed = lacks(&draft->plan, key);
        if (needed && source->place[key])
            return FAIL(source, "%s at place %zu is only for %s", option->name,
                        source->place[key], needed);
        if (needed)
            memcpy((char *)draft + option->offset, (const char *)&none + option->offset,
                   sizes[option->type]);
    }
    return true;
}

static size_t later(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Supersteps come after a period or after so many gradients: a plan has one of the
 * two. */
static bool check_control(struct plan *plan, struct plan_text *source)
{
    const size_t *place = source->place;
    if (!place[KEY_WHAT])
        plan->what = PLAN_SUM;
    if (place[KEY_PERIOD] && place[KEY_EVERY])
        return FAIL(source, "period at place %zu and every at place %zu: give one",
                    place[KEY_PERIOD], place[KEY_EVERY]);
    if (place[KEY_PERIOD])
        plan->every = 0;
    if (place[KEY_EVERY])
        plan->period = 0;
    if (plan->every == 0 && !(plan->period > 0))
        return FAIL(source,
                    "when=control at place %zu needs period=TIME or every=GRADIENTS",
                    place[KEY_WHEN]);
    return true;
}

/* The rules between keys. Keys that the caller did not set, and that have no meaning
 * after a change of when or what, are reset. */
static bool check_rules(struct draft *draft, struct plan_text *source)
{
    struct plan *plan = &draft->plan;
    const size_t *place = source->place;
    if (plan->when == PLAN_CONTROL && !check_control(plan, source))
        return false;
    if (plan->when == PLAN_NEVER && !place[KEY_WHAT])
        plan->what = PLAN_NOTHING;
    if (plan->what == PLAN_NOTHING && !place[KEY_WHEN] && place[KEY_WHAT])
        plan->when = PLAN_NEVER;
    if (!check_uses(draft, source))
        return false;
    size_t at = later(place[KEY_WHEN], place[KEY_WHAT]);
    if (plan->when == PLAN_NEVER && plan->what != PLAN_NOTHING)
        return FAIL(source, "what at place %zu needs when=shadow or when=every",
                    place[KEY_WHAT]);
    if (plan->when != PLAN_NEVER && plan->what == PLAN_NOTHING)
        return FAIL(source,
                    "when at place %zu needs what=mean, elastic, block or gradient", at);
    if ((plan->when == PLAN_CONTROL) != (plan->what == PLAN_SUM))
        return FAIL(source, "at place %zu: when=control and what=sum go together", at);
    if (plan->when == PLAN_EVERY && plan->every == 0)
        return FAIL(source, "when=every at place %zu needs every=STEPS", at);
    at = later(at, later(place[KEY_EVERY], place[KEY_DELAY]));
    if (plan->what == PLAN_GRADIENT &&
        (plan->when != PLAN_EVERY || plan->every != 1 || plan->delay != 0))
        return FAIL(source,
                    "at place %zu: what=gradient is only for when=every,every=1,delay=0",
                    at);
    if (plan->quorum >= 1 && plan->quorum > floor(plan->quorum))
        return FAIL(source, "quorum at place %zu: a whole number, or a share below 1",
                    place[KEY_QUORUM]);
    if (plan->quorum > 0 && plan->weight == PLAN_STEPS)
        return FAIL(source,
                    "quorum at place %zu with weight=steps at place %zu: work that comes "
                    "late would count twice",
                    place[KEY_QUORUM], place[KEY_WEIGHT]);
    if (plan->delay > plan->every)
        return FAIL(source,
                    "at place %zu: delay=%lld is above every=%lld; allowed: 0 to every",
                    at, (long long)plan->delay, (long long)plan->every);
    return true;
}

/* One "key=value" at text[0, length). */
static bool parse_change(struct draft *draft, struct plan_text *source, const char *text,
                         size_t length)
{
    size_t place = (size_t)(text - source->text) + 1;
    const char *equals = memchr(text, '=', length);
    if (!length)
        return FAIL(source, "nothing at place %zu, where key=value should be", place);
    if (!equals)
        return FAIL(source, "'%.*s' at place %zu is not key=value", (int)length, text,
                    place);
    size_t key_length = (size_t)(equals - text);
    const struct option_text change = {source->text, text, equals + 1, key_length,
                                       length - key_length - 1};
    if (!option_set((struct option_table){plan_options, N_KEYS}, &change, draft,
                    source->message, sizeof source->message))
        return false;
    const struct option *option = option_find(plan_options, N_KEYS, text, key_length);
    size_t key = (size_t)(option - plan_options);
    if (source->place[key])
        return FAIL(source, "%s stands at place %zu and again at place %zu",
                    plan_options[key].name, source->place[key], place);
    source->place[key] = place;
    if (source->place[KEY_ALPHA] && source->place[KEY_XI])
        return FAIL(source,
                    "alpha at place %zu and xi at place %zu: xi is 1 - alpha, give one",
                    source->place[KEY_ALPHA], source->place[KEY_XI]);
    if (key == KEY_XI)
        draft->plan.alpha = 1 - draft->xi;
    return true;
}

static bool parse_changes(struct draft *draft, struct plan_text *source, const char *at)
{
    for (;;) {
        at += strspn(at, " ");
        size_t length = strcspn(at, ","), used = length;
        while (used && at[used - 1] == ' ')
            used--;
        if (!parse_change(draft, source, at, used))
            return false;
        if (!at[length])
            return check_rules(draft, source);
        at += length + 1;
    }
}

static const struct plan_preset *find_preset(const char *name, size_t length)
{
    for (const struct plan_preset *row = plan_presets; row->name; row++)
        if (strlen(row->name) == length && memcmp(row->name, name, length) == 0)
            return row;
    return NULL;
}

static bool parse_preset(struct draft *draft, struct plan_text *source, size_t length)
{
    const struct plan_preset *row = find_preset(source->text, length);
    struct plan_text own = {0};
    if (row) {
        own.text = row->changes;
        draft->plan.preset = row->name;
        if (!parse_changes(draft, &own, row->changes))
            return FAIL(source, "preset %s: %.800s", row->name, own.message);
        return true;
    }
    struct guess guess = {.wrong = source->text, .length = length};
    for (row = plan_presets; row->name; row++)
        guess_try(&guess, row->name, strlen(row->name));
    int used = snprintf(source->message, sizeof source->message,
                        "unknown preset '%.*s' at place 1%s; allowed: ",
                        (int)(length < 200 ? length : 200), source->text,
                        guess_text(&guess, ""));
    for (row = plan_presets; row->name; row++)
        used += snprintf(source->message + used, sizeof source->message - (size_t)used,
                         "%s%s", row == plan_presets ? "" : ", ", row->name);
    return false;
}

static bool parse(struct draft *draft, struct plan_text *source)
{
    const char *text = source->text;
    size_t length = strcspn(text, ",");
    if (!*text)
        return FAIL(source, "it is empty; give a preset or key=value");
    if (memchr(text, '=', length))
        return parse_changes(draft, source, text);
    if (!parse_preset(draft, source, length))
        return false;
    return !text[length] || parse_changes(draft, source, text + length + 1);
}

descant_status plan_parse(struct plan *plan, const char *text, const struct log *log)
{
    struct draft draft = {.plan = defaults};
    struct plan_text source = {.text = text ? text : ""};
    if (!parse(&draft, &source))
        return log_fail(log, DESCANT_BAD_PLAN, "plan \"%.100s\": %s", source.text,
                        source.message);
    *plan = draft.plan;
    return DESCANT_OK;
}

struct writer {
    char *text;
    size_t room, used;
};

static void put(struct writer *w, const char *piece)
{
    for (; *piece; piece++, w->used++)
        if (w->used + 1 < w->room)
            w->text[w->used] = *piece;
}

size_t plan_text(const struct plan *plan, char *text, size_t room)
{
    struct writer w = {.text = text, .room = room};
    char before[64], after[64];
    struct draft from = {.plan = defaults}, to = {.plan = *plan};
    const struct plan_preset *row = find_preset(plan->preset, strlen(plan->preset));
    if (row) {
        struct plan_text source = {.text = row->name};
        parse(&from, &source);
        put(&w, row->name);
    }
    for (int key = 0; key < N_KEYS; key++) {
        const struct option *option = &plan_options[key];
        if (key == KEY_XI || lacks(plan, key))
            continue;
        option_write(option, &from, before, sizeof before);
        if (strcmp(before, option_write(option, &to, after, sizeof after)) == 0)
            continue;
        if (w.used)
            put(&w, ",");
        put(&w, option->name);
        put(&w, "=");
        put(&w, after);
    }
    if (!w.used)
        put(&w, "when=never");
    if (room)
        text[w.used < room ? w.used : room - 1] = 0;
    return w.used;
}

int plan_due(const struct plan *plan, uint64_t t)
{
    if (plan->when != PLAN_EVERY || t == 0)
        return 0;
    uint64_t every = (uint64_t)plan->every, delay = (uint64_t)plan->delay;
    int due = t % every == 0 ? PLAN_DUE_SNAPSHOT : 0;
    if (t >= every + delay && (t - delay) % every == 0)
        due |= PLAN_DUE_MERGE;
    return due;
}

bool plan_needs_snapshot(const struct plan *plan)
{
    if (plan->when == PLAN_EVERY)
        return plan->delay > 0;
    return plan->when == PLAN_SHADOW && plan->merge == PLAN_DELTA;
}

bool plan_keeps_squares(const struct plan *plan)
{
    return plan->what != PLAN_BLOCK && plan->merge != PLAN_DELTA;
}

bool plan_carries(const struct plan *plan)
{
    return plan->quorum > 0 && (plan->what == PLAN_BLOCK || plan->merge == PLAN_DELTA);
}

bool plan_has_central(const struct plan *plan)
{
    return plan->what == PLAN_ELASTIC || plan->what == PLAN_BLOCK;
}

size_t descant_plans(char *text, size_t room)
{
    size_t n = 0;
    for (const struct plan_preset *row = plan_presets; row->name; row++) {
        size_t left = n < room ? room - n : 0;
        n += (size_t)snprintf(left ? text + n : NULL, left, "%s\t%s\t%s\n", row->name,
                              row->changes, row->help);
    }
    return n;
}
