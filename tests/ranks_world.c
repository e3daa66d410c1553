/* SPDX-License-Identifier: MIT */
#include "ranks_world.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>
#include <stdlib.h>

#define NS 1e9

enum { TURNS_AT_ONCE = 100000 /* without time going on */, WORDS_MOST = 64 };

/* --- the fabric --- */

static descant_status open_ranks(struct fabric **out, const struct fabric_options *options);

static void wait_ranks(struct fabric *f, uint64_t until_ns)
{
    ranks_rest(ranks_of(f), until_ns);
}

static const struct fabric_type fabric_ranks = {
    .name = "ranks",
    .open = open_ranks,
    .alloc = ranks_alloc,
    .share = ranks_share,
    .start = ranks_start,
    .begin = ranks_begin,
    .poll = ranks_poll,
    .wait = wait_ranks,
    .close = ranks_free,
};

static descant_status open_ranks(struct fabric **out, const struct fabric_options *options)
{
    descant_status status = ranks_open(out, &fabric_ranks, options);

    if (status == DESCANT_OK)
        (*out)->type = &fabric_ranks;
    return status;
}

/* --- what is wrong --- */

void world_fail(struct ranks_world *w, int rank, const char *format, ...)
{
    char text[400];
    va_list list;

    if (*w->why)
        return;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    snprintf(w->why, sizeof w->why, "at %.6f s, rank %d: %s", world_now(w), rank, text);
}

/* Ranks that are lied to may come to anything. */
#define wrong(w, ...) ((w)->lied_to ? (void)0 : world_fail(w, __VA_ARGS__))

/* It brings nothing, and comes to rounds alone. */
static bool is_hub(const struct ranks_world *w, int rank)
{
    return w->options.star && rank == w->options.ranks - 1;
}

static int rank_of(const struct world_trainer *t)
{
    return (int)(t - t->world->trainers);
}

/* A liar that leads the others can make any of them look like one. */
static void hear_blame(struct ranks_world *w, const struct world_trainer *by,
                       const char *line)
{
    char liar[40];
    bool by_liar = w->lied_to && (rank_of(by) == w->liar ||
                                  (by->f && ranks_of(by->f)->coordinator == w->liar));

    snprintf(liar, sizeof liar, "rank %d (host%d) breaks", w->liar, w->liar);
    bool of_liar = w->lied_to && strstr(line, liar);
    w->refused += of_liar;
    if (!by_liar && !of_liar)
        world_fail(w, rank_of(by), "%s", line);
}

static void hear_log(void *user, enum descant_level level, const char *line)
{
    struct world_trainer *t = user;
    struct ranks_world *w = t->world;

    if (w->verbose)
        printf("  %.6f %s\n", world_now(w), line);
    if (level >= DESCANT_WARNING)
        snprintf(w->said, sizeof w->said, "%s", line);
    world_post_hear(t, line);
    if (strstr(line, "breaks the protocol"))
        hear_blame(w, t, line);
}

/* --- versions --- */

/* Four at a time, which do not wait for each other. */
static uint64_t hash_of(const float *p, size_t n)
{
    uint64_t lanes[4] = {0, 1, 2, 3};

    for (size_t i = 0; i < n; i++) {
        uint64_t *lane = &lanes[i % 4];
        uint32_t bits;
        memcpy(&bits, &p[i], sizeof bits);
        *lane = (*lane ^ bits) * UINT64_C(0x9e3779b97f4a7c15);
        *lane ^= *lane >> 29;
    }
    return lanes[0] ^ lanes[1] * 3 ^ lanes[2] * 5 ^ lanes[3] * 7;
}

/* 1: a version is the same bits in all that hold it, and so is the mean that made it,
 * which those have not seen that took a state: 0. */
static void see(struct ranks_world *w, int rank, uint64_t mean)
{
    struct world_trainer *t = &w->trainers[rank];
    struct ledger_version held = ledger_view(ranks_of(t->f)->ledger).held;
    uint64_t series = ledger_series_of(held), hash = hash_of(t->G, w->n);

    for (size_t i = w->n_seen; i-- > 0;)
        if (w->seen[i].series == series) {
            uint64_t *other = &w->seen[i].mean;
            if (w->seen[i].hash != hash || (mean && *other && *other != mean))
                wrong(w, rank, "version %llu.%llu is not what others have",
                      (unsigned long long)held.epoch, (unsigned long long)held.number);
            *other = mean ? mean : *other;
            return;
        }
    if (w->n_seen == w->seen_room) {
        w->seen_room = w->seen_room ? 2 * w->seen_room : 64;
        struct version_seen *more = memory_take_array(w->seen_room, sizeof *more);
        assert(more);
        if (w->n_seen)
            memcpy(more, w->seen, w->n_seen * sizeof *more);
        memory_give(w->seen);
        w->seen = more;
    }
    w->seen[w->n_seen++] = (struct version_seen){series, hash, mean};
}

/* --- a trainer --- */

static uint64_t count_lost(const struct world_trainer *t)
{
    return ledger_view(ranks_of(t->f)->ledger).lost;
}

/* 2, of the own contributions: as many are in G as this trainer knows of, and the one on
 * its way. A state that it brought, or lent, may have been lost, too. A G without any of
 * them has only those of its former selves, and not always the ones that G had before.
 * A G of another reload may lack any number, so then only this holds: no more were lost
 * than were given. */
static void check_own(struct ranks_world *w, int rank)
{
    struct world_trainer *t = &w->trainers[rank];
    struct ranks *m = ranks_of(t->f);
    uint64_t in = (uint64_t)t->G[rank], lost = count_lost(t) - t->lost;
    uint64_t given = t->begun - (t->came ? t->looked : t->lost);

    t->lost += lost;
    if (w->wire != WIRE_F32)
        return;
    ledger_merged(m->ledger, m->list);
    if (!t->came) {
        t->confirmed = t->former = in;
    } else if (m->list[rank].generation != m->place.generation) {
        t->confirmed += in - t->former;
        t->former = in;
    }
    t->came = true;
    if (in > t->confirmed + 1 || in + lost < t->confirmed ||
        in + lost > t->confirmed + given)
        wrong(w, rank, "%llu of its contributions are in, and it knows of %llu, %llu lost",
              (unsigned long long)in, (unsigned long long)t->confirmed,
              (unsigned long long)lost);
    t->confirmed = in;
    t->looked = t->begun;
}

/* The floats are columns, as many as there are: one of each trainer, one that says of which
 * reload they are, and one in which each exchange of a trainer is another one. */
static size_t lineage(const struct ranks_world *w)
{
    return (size_t)w->options.ranks;
}

static size_t mark(const struct ranks_world *w)
{
    return (size_t)w->options.ranks + 1;
}

static size_t columns(const struct ranks_world *w)
{
    return (size_t)w->options.ranks + 2;
}

/* Of the next float. No division: each float of each exchange comes by here. */
static size_t next_column(const struct ranks_world *w, size_t column)
{
    return column + 1 < columns(w) ? column + 1 : 0;
}

static void add_to_column(const struct ranks_world *w, float *p, size_t column, float x)
{
    for (size_t i = column; i < w->n; i += columns(w))
        p[i] += x;
}

/* Of each exchange that is encoded, so that it is rounded. */
static float grain(const struct ranks_world *w, size_t i)
{
    return w->wire != WIRE_F32 ? (float)(i * UINT64_C(0x9e3779b97f4a7c15) >> 57) * 0.003F : 0;
}

static void need_columns(struct ranks_world *w, int rank, const float *p)
{
    for (size_t i = columns(w); i < w->n; i++)
        if (p[i] != p[i - columns(w)])
            wrong(w, rank, "float %zu is %g, and float %zu is %g", i, (double)p[i],
                  i - columns(w), (double)p[i - columns(w)]);
}

/* 5: once the last of those in the mean has taken it. */
static void settle(struct ranks_world *w, int rank, const struct fabric_part *part)
{
    struct world_trainer *t = &w->trainers[rank];
    const struct ranks *m = ranks_of(t->f);
    struct ledger_version held = ledger_view(m->ledger).held;
    struct settled *s = &w->settled[held.number % WORLD_MOST];
    double *sum = s->sum ? s->sum : memory_take_array(w->n, sizeof *sum);

    assert(sum);
    if (s->series != ledger_series_of(held))
        memset(sum, 0, w->n * sizeof *sum);
    *s = (struct settled){ledger_series_of(held),
                          s->series == ledger_series_of(held) ? s->n + 1 : 1, sum};
    for (size_t i = 0; i < w->n; i++) {
        double brings = (double)t->f->contribution[i] - (double)t->G[i];
        sum[i] += brings / part->members + (double)t->owed[i] - (double)m->owed[i];
    }
    for (size_t i = 0; i < w->n && s->n == m->round.k; i++)
        if (fabs((double)part->out[i] - (double)t->G[i] - sum[i]) >
            1e-4 + 2e-7 * fabs((double)t->G[i]))     /* a float of G is rounded */
            wrong(w, rank, "float %zu moves by %g in a mean of %d, where they brought %g", i,
                  (double)part->out[i] - (double)t->G[i], part->members, sum[i]);
}

static void take_mean(struct ranks_world *w, int rank, const struct fabric_part *part)
{
    struct world_trainer *t = &w->trainers[rank];

    memcpy(t->next, part->out, w->n * sizeof *t->next);
    if (w->pulls) {
        for (size_t i = lineage(w); i < w->n; i += columns(w))
            t->next[i] = (float)t->lineage;
        for (size_t i = mark(w); i < w->n; i += columns(w))
            t->next[i] = 0;
        return;
    }
    if (w->wire != WIRE_F32) {
        settle(w, rank, part);
        return;
    }
    for (size_t i = 0, column = 0; i < w->n; i++, column = next_column(w, column)) {
        float more = (float)part->members * (part->out[i] - t->G[i]), whole = rintf(more);
        t->next[i] = column == mark(w) ? 0 : t->G[i] + whole;
        /* an owner that reloads may give the reload's number for that of absent members */
        if (w->quorum > 0 && column == lineage(w)) {
            t->next[i] = (float)t->lineage;
            continue;
        }
        if (column != mark(w) && (fabsf(more - whole) > 0.1F || whole < 0 || whole > 1))
            wrong(w, rank, "float %zu grows by %g in a mean of %d, from %g", i, (double)more,
                  part->members, (double)t->G[i]);
    }
    need_columns(w, rank, t->next);
    if (t->next[rank] != t->G[rank] + !is_hub(w, rank))
        wrong(w, rank, "its contribution is not in the mean");
    if (t->next[lineage(w)] != (float)t->lineage)
        wrong(w, rank, "a mean of reload %g, where its own is of %llu",
              (double)t->next[lineage(w)], (unsigned long long)t->lineage);
}

/* 4: what the giver has arrived with, upon the version: all of it of one exchange. */
static void check_state(struct ranks_world *w, int rank, const struct fabric_part *part)
{
    const float *outer = part->outer[0];
    int giver = -1;

    for (int k = 0; k < w->options.ranks; k++)
        giver = part->out[k] - outer[k] > 0.5F ? k : giver;
    float marked = w->wire == WIRE_F32 ? part->out[mark(w)] : 0;
    for (size_t i = 0, column = 0; i < w->n; i++, column = next_column(w, column)) {
        float brings = column == mark(w) && w->wire == WIRE_F32 ? marked : (int)column == giver;
        brings += giver >= 0 ? grain(w, i) : 0;
        if (fabsf(part->out[i] - outer[i] - brings) > 1e-3F)
            wrong(w, rank, "float %zu of a state is %g, where %g belongs", i,
                  (double)part->out[i], (double)(outer[i] + brings));
    }
    if (w->wire != WIRE_F32)
        return;
    need_columns(w, rank, outer);
    if (outer[lineage(w)] != (float)part->note || outer[mark(w)] != 0)
        wrong(w, rank, "a state of reload %g has note %llu", (double)outer[lineage(w)],
              (unsigned long long)part->note);
}

/* No float of it may be anything but what somebody has brought. */
static void check_center(struct ranks_world *w, int rank, const struct fabric_part *part)
{
    for (size_t i = 0; i < part->n; i++)
        if (!(part->out[i] >= 1 && part->out[i] <= (float)(1 + w->reloads)))
            wrong(w, rank, "float %zu of the centre is %g", part->from + i,
                  (double)part->out[i]);
}

/* Members that a coordinator puts aside after a round of four or more, in which its own word
 * is not enough. */
static void count_aside(struct ranks_world *w, struct world_trainer *t)
{
    const struct ranks *m = ranks_of(t->f);
    uint32_t aside = 0;

    for (int k = 0; m->leads && k < w->options.ranks; k++)
        aside |= (uint32_t)ledger_is_aside(m->ledger, k) << k;
    w->aside += t->seats > 3 ? (uint64_t)__builtin_popcount(aside & ~t->aside) : 0;
    t->aside = aside;
    t->seats = m->round.k;
}

/* in_round: it has come to the end of its round, and else fetched the result. */
static void take_part(struct ranks_world *w, int rank, const struct fabric_part *part,
                      bool in_round)
{
    struct world_trainer *t = &w->trainers[rank];

    if (part->kind == EXCHANGE_ELASTIC) {
        check_center(w, rank, part);
        return;
    }
    t->took = !part->own;
    t->states += part->own;
    if (part->own)
        return;
    if (part->n != w->n)
        wrong(w, rank, "a part of %zu floats", part->n);
    else if (part->kind == EXCHANGE_STATE) {
        if (w->pulls && t->states && part->note == t->lineage)
            wrong(w, rank, "a state replaces what it has trained, and nobody has reloaded");
        (w->elastic ? check_center : check_state)(w, rank, part);
        memcpy(t->next, w->elastic ? part->out : part->outer[0], w->n * sizeof *t->next);
        t->came &= t->lineage == part->note;
        t->lineage = part->note;
        world_deal_loses(w, rank);
    }
    else if (t->finished || (is_hub(w, rank) && ranks_of(t->f)->round.final))
        t->took = false;
    else {
        take_mean(w, rank, part);
        t->mean = hash_of(part->out, w->n) | 1;
        w->fetched += !in_round && part->members > 1;
    }
    if (w->verbose) {
        struct ledger_view view = ledger_view(ranks_of(t->f)->ledger);
        printf("  %.6f rank %d: %s, version %llu.%llu, %d members, G %g %g %g\n", world_now(w),
               rank, part->kind == EXCHANGE_STATE ? "state" : "mean",
               (unsigned long long)view.held.epoch, (unsigned long long)view.held.number,
               part->members, (double)t->next[0], (double)t->next[1], (double)t->next[2]);
    }
    count_aside(w, t);
    t->states += part->kind == EXCHANGE_STATE;
    t->rounds += part->kind == EXCHANGE_MEAN;
    if (t->took) {
        memcpy(t->G, t->next, w->n * sizeof *t->G);
        if (!w->elastic)
            memcpy(t->f->outer[0], t->G, w->n * sizeof *t->G);
        t->f->outer_note = t->lineage;
    }
}

/* A contribution that has been in no round yet goes on upon the newer G. */
static void take_base(struct ranks_world *w, int rank, const struct fabric_part *part)
{
    struct world_trainer *t = &w->trainers[rank];
    float *brings = t->finished ? t->live_extent.p : t->f->contribution;
    const float *G = part->outer[0];

    if (w->wire == WIRE_F32)
        need_columns(w, rank, G);
    if (part->note != t->lineage || (w->wire == WIRE_F32 && (G[lineage(w)] != (float)part->note ||
                                                             G[mark(w)] != 0)))
        wrong(w, rank, "a base of reload %g has note %llu, its own is of %llu",
              (double)G[lineage(w)], (unsigned long long)part->note,
              (unsigned long long)t->lineage);
    for (size_t i = 0; i < w->n; i++) {
        brings[i] += t->open && !part->merged ? G[i] - t->G[i] : 0;
        t->G[i] = t->f->outer[0][i] = G[i];
    }
    if (w->verbose) {
        struct ledger_view view = ledger_view(ranks_of(t->f)->ledger);
        printf("  %.6f rank %d: base%s, version %llu.%llu, G %g %g %g\n", world_now(w), rank,
               part->merged ? " and result" : "", (unsigned long long)view.held.epoch,
               (unsigned long long)view.held.number, (double)G[w->options.ranks - 1], (double)G[1], (double)G[2]);
    }
    w->missed++;
    see(w, rank, 0);
    check_own(w, rank);
    t->looked -= t->open && !part->merged;  /* it may still be in a round */
}

/* Its next exchange is its last: it begins none in the midst of an agreement. */
static bool ends(const struct world_trainer *t)
{
    return t->finishes && !t->agree.open;
}

static void begin(struct ranks_world *w, int rank, enum exchange_kind kind)
{
    struct world_trainer *t = &w->trainers[rank];
    struct exchange x = {.kind = kind, .n = w->n, .weight = 1, .final = ends(t),
                         .priority = t->reloads, .note = t->lineage};
    struct ranks *m = ranks_of(t->f);

    if (w->elastic && kind == EXCHANGE_MEAN)
        x.kind = ends(t) ? EXCHANGE_STATE : EXCHANGE_ELASTIC;
    x.alpha = 0.3;
    for (size_t i = 0; w->elastic && !t->states && !t->reloads && i < w->n; i++)
        t->G[i] = 1;
    bool live = t->reloads || ends(t);      /* peers may still read the contribution */
    float *brings = live ? t->live_extent.p : t->f->contribution;
    x.in = live ? &t->live : &m->copy;
    memcpy(brings, t->G, w->n * sizeof *t->G);
    if (m->owed)
        memcpy(t->owed, m->owed, w->n * sizeof *t->owed);
    t->begun++;
    bool adds = x.kind == EXCHANGE_MEAN && !ends(t) && !is_hub(w, rank);
    for (size_t i = 0; adds && w->wire != WIRE_F32 && i < w->n; i++)
        brings[i] += grain(w, i);
    if (adds)
        add_to_column(w, brings, (size_t)rank, 1);
    if (adds && w->wire == WIRE_F32)
        add_to_column(w, brings, mark(w), (float)(1 + t->begun % 64));
    t->reloads = false;
    t->finished = ends(t);
    t->open = true;
    world_deal_begins(w, rank);
    if (t->f->type->begin(t->f, &x) != DESCANT_OK)
        wrong(w, rank, "begin failed");
}

/* What it has open is given up. */
static void begin_reload(struct ranks_world *w, int rank)
{
    struct world_trainer *t = &w->trainers[rank];

    if (w->verbose)
        printf("  %.6f rank %d: reloads\n", world_now(w), rank);
    t->reloading = true;
    t->lineage = ++w->reloads;
    for (size_t i = w->elastic ? 0 : lineage(w); i < w->n; i += w->elastic ? 1 : columns(w))
        t->G[i] = (float)(w->elastic ? 1 + w->reloads : t->lineage);
    if (!w->elastic)
        memcpy(t->f->outer[0], t->G, w->n * sizeof *t->G);
    t->f->outer_note = t->lineage;
    begin(w, rank, EXCHANGE_STATE);
}

static void done(struct ranks_world *w, int rank)
{
    struct world_trainer *t = &w->trainers[rank];

    t->open = t->reloading = false;
    w->exchanges++;
    t->exchanges++;
    if (w->elastic || w->pulls || t->took)
        world_deal_merges(w, rank);
    if (t->took && !t->finished && !w->elastic && !w->pulls) {
        see(w, rank, t->mean);
        check_own(w, rank);
    }
    t->took = false;
    t->mean = 0;
    t->step_ends_ns =
        simulated_now(w->link) + (uint64_t)(rng_uniform(&w->rng) * (double)w->step_ns);
}

static void hear_notes(struct world_trainer *t)
{
    struct fabric_note list[NOTES];
    int n = notes_take(&t->notes, list);

    for (int i = 0; i < n; i++)
        t->n_notes[list[i].kind]++;
}

/* 0: never. */
static uint64_t earlier(uint64_t a_ns, uint64_t b_ns)
{
    return !a_ns || (b_ns && b_ns < a_ns) ? b_ns : a_ns;
}

/* A hub has no rows. */
static bool is_without_rows(const struct ranks_world *w, int rank)
{
    const struct world_trainer *t = &w->trainers[rank];
    return is_hub(w, rank) && w->rows && t->states &&
           atomic_load_explicit(&t->f->others, memory_order_relaxed) == 0;
}

/* 6 */
static void check_words(struct ranks_world *w, int rank)
{
    const struct ranks *m = ranks_of(w->trainers[rank].f);

    for (int k = 0; k < w->options.ranks; k++)
        if (m->peers[k].words_out > WORDS_MOST)
            wrong(w, rank, "%d words are on their way to rank %d", m->peers[k].words_out, k);
}

static void train(struct ranks_world *w, int rank)
{
    struct world_trainer *t = &w->trainers[rank];
    uint64_t now = simulated_now(w->link);
    struct fabric_part part;

    check_words(w, rank);
    if (!is_hub(w, rank) && world_rows_turn(w, rank))
        return;
    if (is_without_rows(w, rank)) {
        t->state = TRAINER_FAILED;
        return;
    }
    bool hub = is_hub(w, rank);
    if (!hub)
        world_agree_turn(w, rank);
    if (!hub)
        world_deal_turn(w, rank);
    bool in_round = ranks_of(t->f)->round.active;
    bool hurries = w->hasty && ends(t) && t->states;

    if (t->reloads && t->states && !t->finishes && !t->reloading)
        begin_reload(w, rank);
    else if (!t->finished && !(hub && t->states) &&
             ((!t->open && now >= t->step_ends_ns) || hurries))
        begin(w, rank, t->states ? EXCHANGE_MEAN : EXCHANGE_STATE);
    switch (t->f->type->poll(t->f, &part)) {
    case FABRIC_PART:
        if (part.base)
            take_base(w, rank, &part);
        else
            take_part(w, rank, &part, in_round);
        break;
    case FABRIC_DONE:
        done(w, rank);
        break;
    case FABRIC_CALLED:
        if (!t->finished)
            begin(w, rank, EXCHANGE_MEAN);
        break;
    case FABRIC_WAITING:
        hear_notes(t);
        t->f->type->wait(t->f, earlier(earlier(t->open || t->finished || hub ? 0
                                                                             : t->step_ends_ns,
                                               world_agree_due(w, rank)),
                                       earlier(world_rows_due(w, rank),
                                               world_deal_due(w, rank))));
        break;
    case FABRIC_WORKED:
        break;
    case FABRIC_FAILED:
        t->state = TRAINER_FAILED;
        break;
    }
}

static void let_go(struct ranks_world *w, int rank, enum trainer_state state)
{
    struct world_trainer *t = &w->trainers[rank];

    if (t->f) {
        t->f->notes = NULL;
        ranks_free(t->f);
        notes_fini(&t->notes);
    }
    t->f = NULL;
    t->state = state;
    memory_give(t->G);
    memory_give(t->next);
    memory_give(t->owed);
    memory_give(t->live_extent.p);
    world_rows_free(t);
    t->G = t->next = t->owed = t->live_extent.p = NULL;
    (void)w;
}

static void step(struct ranks_world *w, int rank)
{
    struct world_trainer *t = &w->trainers[rank];

    if (t->state == TRAINER_TRAINS)
        (w->post ? world_post_turn : train)(w, rank);
    else if (t->state == TRAINER_LEAVES && !ranks_stay(t->f))
        let_go(w, rank, TRAINER_AWAY);
    else if (t->state == TRAINER_LEAVES)
        ranks_rest(ranks_of(t->f), 0);
    else if (t->state == TRAINER_FAILED)
        let_go(w, rank, TRAINER_DEAD);
}

/* Its exchanges that it has begun, as steps. */
static void tell_figures(void *of, struct bulletin *own)
{
    const struct world_trainer *t = of;

    t->world->told++;
    *own = (struct bulletin){.steps = t->begun, .workers = 1};
    if (!t->world->goes_on)
        return;
    struct bulletin earlier = {0};
    uint64_t heard_ns;
    int rank;
    const struct bulletin_slot *slots = t->f->bulletins;
    if (slots)
        bulletin_get(&slots[t->f->rank], &earlier, &rank, &heard_ns);
    own->process = (uint64_t)t->lives;
    own->depth = earlier.depth + 1;
    own->n_values = 1;
    own->values[0] = (double)t->begun + earlier.values[0];
}

/* --- a world --- */

void world_come(struct ranks_world *w, int rank)
{
    struct world_trainer *t = &w->trainers[rank];
    const struct log log = {hear_log, t, rank};
    struct fabric_options options = {.address = "", .rank = rank, .size = w->founders,
                                     .start_s = 5, .dead_s = w->dead_s, .log = &log,
                                     .joins = t->lives > 0, .wire = w->wire,
                                     .link = w->over ? w->over : &link_simulated,
                                     .context = w->link};
    struct fabric_start start = {.manifest = w->manifest, .n = w->n, .room = w->n,
                                       .collective = !w->elastic, .n_outer = !w->elastic,
                                       .quorum = w->elastic ? 0 : w->quorum, .grace = -0.1,
                                       .carries = !w->elastic && !w->pulls && w->quorum > 0,
                                       .center = w->elastic, .threads = 1,
                                       .gradients = w->gradients,
                                       .numbered = w->numbered};
    int lives = t->lives + 1;

    let_go(w, rank, TRAINER_AWAY);
    memset(t, 0, sizeof *t);
    t->world = w;
    t->lives = lives;
    world_deal_start(w, rank);
    world_rows_start(w, rank, &start);
    if (is_hub(w, rank))
        start.rows_base = NULL;
    if (fabric_ranks.open(&t->f, &options) != DESCANT_OK ||
        (!w->post && fabric_ranks.start(t->f, &start) != DESCANT_OK)) {
        wrong(w, rank, "it cannot start");
        return;
    }
    notes_init(&t->notes);
    t->f->notes = &t->notes;
    t->f->figures_of = t;
    t->f->figures = w->figures ? tell_figures : NULL;
    t->G = memory_take_array(w->n, sizeof *t->G);
    t->next = memory_take_array(w->n, sizeof *t->next);
    t->owed = memory_take_array(w->n, sizeof *t->owed);
    t->live_extent = (struct extent){0, w->n, memory_take_array(w->n, sizeof *t->G)};
    t->live = (struct vector){w->n, 1, &t->live_extent};
    assert(t->G && t->next && t->owed && t->live_extent.p);
    t->state = TRAINER_TRAINS;
    t->confirmed = 0;
    if (w->post)
        world_post_start(w, rank);
}

void world_leave(struct ranks_world *w, int rank)
{
    struct world_trainer *t = &w->trainers[rank];

    if (t->state != TRAINER_TRAINS)
        return;
    if (w->verbose)
        printf("  %.6f rank %d: leaves\n", world_now(w), rank);
    ranks_leave(t->f);
    t->state = TRAINER_LEAVES;
}

void world_reload(struct ranks_world *w, int rank)
{
    w->trainers[rank].reloads = !is_hub(w, rank);
}

void world_finish(struct ranks_world *w, int rank)
{
    w->trainers[rank].finishes = !is_hub(w, rank);
}

void world_open(struct ranks_world *w, const struct simulated_options *options, int founders)
{
    memset(w, 0, sizeof *w);
    w->options = *options;
    w->link = simulated_create(options);
    assert(w->link);
    w->founders = founders;
    w->n = WORLD_FLOATS;
    w->dead_s = 1;
    w->step_ns = 10000000;
    w->manifest = "plan x\n";
    rng_init(&w->rng, options->seed);
}

void world_close(struct ranks_world *w)
{
    for (int k = 0; k < w->options.ranks; k++)
        let_go(w, k, TRAINER_AWAY);
    memory_give(w->seen);
    memory_give(w->rows_seen);
    for (int k = 0; k < WORLD_MOST; k++)
        memory_give(w->settled[k].sum);
    simulated_destroy(w->link);
}

/* Those that died are found so. */
static void bury(struct ranks_world *w)
{
    for (int k = 0; k < w->options.ranks; k++)
        if (w->trainers[k].f && !simulated_lives(w->link, k))
            let_go(w, k, TRAINER_DEAD);
}

void world_run(struct ranks_world *w, double seconds)
{
    uint64_t until = simulated_now(w->link) + (uint64_t)(seconds * NS), last = 0;
    int rank, turns = 0;

    while (!*w->why && (rank = simulated_turn(w->link, until)) >= 0) {
        turns = simulated_now(w->link) == last ? turns + 1 : 0;
        last = simulated_now(w->link);
        if (turns > TURNS_AT_ONCE)
            world_fail(w, rank, "it never sleeps");
        if (w->trainers[rank].f)
            step(w, rank);
    }
    bury(w);
}

double world_now(const struct ranks_world *w)
{
    return (double)simulated_now(w->link) / NS - 1;
}

void world_fault(struct ranks_world *w, enum simulated_fault_kind kind, double at_s,
                 double for_s, int rank, int other, double factor)
{
    uint64_t at = (uint64_t)((1 + at_s) * NS);
    const struct simulated_fault fault = {.kind = kind, .at_ns = at,
                                          .until_ns = at + (uint64_t)(for_s * NS),
                                          .rank = rank, .other = other, .factor = factor};

    static const char *const names[] = {
        [SIMULATED_SLOW] = "slow", [SIMULATED_PAUSE] = "pause", [SIMULATED_CUT] = "cut",
        [SIMULATED_PART] = "part", [SIMULATED_DIE] = "die", [SIMULATED_VANISH] = "vanish"};

    if (w->verbose)
        printf("  %.6f rank %d: %s, %d, for %g s, factor %g\n", at_s, rank, names[kind], other,
               for_s, factor);
    if (!simulated_fault(w->link, &fault))
        wrong(w, rank, "no memory for a fault");
}

static const struct ranks *live(const struct ranks_world *w, int k)
{
    return w->trainers[k].f && simulated_lives(w->link, k) ? ranks_of(w->trainers[k].f) : NULL;
}

/* Of a list: whether those who live may go on from it. */
static bool may_go_on(const struct ranks_world *w, const uint64_t *list, int coordinator)
{
    int members = 0, n = 0;
    bool first = false;

    for (int k = 0; k < w->options.ranks; k++) {
        const struct ranks *m = live(w, k);
        bool here = m && list[k] == m->place.generation;
        members += list[k] != 0;
        n += here;
        first |= here && k == coordinator;
    }
    return ledger_may_go_on(members, n, first);
}

/* A list that one of them has accepted may have been made to stand by another who is
 * dead. */
bool world_may_go_on(const struct ranks_world *w)
{
    const struct ranks *newest = NULL;
    uint64_t list[WORLD_MOST];
    int coordinator;

    for (int k = 0; k < w->options.ranks; k++) {
        const struct ranks *m = live(w, k);
        if (m && ledger_view(m->ledger).member &&
            (!newest || ledger_view(m->ledger).epoch > ledger_view(newest->ledger).epoch))
            newest = m;
    }
    if (!newest || !may_go_on(w, newest->members, newest->coordinator))
        return false;
    for (int k = 0; k < w->options.ranks; k++) {
        const struct ranks *m = live(w, k);
        if (!m || !newest->members[k] ||
            ledger_view(m->ledger).epoch != ledger_view(newest->ledger).epoch ||
            !ledger_accepted(m->ledger, m->list, &coordinator))
            continue;
        for (int r = 0; r < w->options.ranks; r++)
            list[r] = m->list[r].generation;
        if (!may_go_on(w, list, coordinator))
            return false;
    }
    return true;
}

uint64_t world_rounds(const struct ranks_world *w)
{
    uint64_t most = 0;

    if (w->elastic || w->post)
        return w->exchanges;
    for (int k = 0; k < w->options.ranks; k++) {
        const struct ranks *m = live(w, k);
        uint64_t number = m ? ledger_view(m->ledger).held.number : 0;
        most = number > most ? number : most;
    }
    return most;
}

void world_tell(const struct ranks_world *w)
{
    for (int k = 0; k < w->options.ranks; k++) {
        const struct world_trainer *t = &w->trainers[k];
        if (!t->f)
            continue;
        const struct ranks *m = ranks_of(t->f);
        struct ledger_view view = ledger_view(m->ledger);
        printf("  rank %d: trainer %d, stage %d, round %d, go %d, epoch %llu of %d, held "
               "%llu.%llu,%s%s%s peers", k, t->state, m->stage, m->round.active, m->go_waits,
               (unsigned long long)view.epoch, view.coordinator,
               (unsigned long long)view.held.epoch, (unsigned long long)view.held.number,
               view.member ? " member" : "", view.open ? " open" : "",
               view.fenced ? " fenced" : "");
        for (int r = 0; r < w->options.ranks; r++)
            printf(" %llu/%llu(%d)", (unsigned long long)m->members[r],
                   (unsigned long long)m->peers[r].generation, m->peers[r].words_out);
        printf(" [wanted %llu.%llu x.final %d kind %d seq %u arrived %u as %llu in %d]", (unsigned long long)view.wanted.epoch, (unsigned long long)view.wanted.number, m->x.final, (int)m->x.kind, m->seq, m->arrived, (unsigned long long)m->arrived_as, (int)m->round.ours);
        printf(" pieces open %d waits %d%s\n", m->pieces_open, m->held.state_waits,
               t->agree.open ? " agrees" : "");
    }
}
