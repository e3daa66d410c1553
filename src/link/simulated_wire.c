/* SPDX-License-Identifier: MIT */
/* How messages travel in a simulated world (simulated.h has the costs).
 *
 * A message stays in its channel's list, in the order in which it was sent, until it is
 * taken. On its way it has at most these events: ANNOUNCE, by which the receiver knows of
 * bulk; LEAVE, when there is room for it; HEAD, its first byte at the receiver's host;
 * TAIL, its last. Where hosts take no time, HEAD is left out.
 *
 * A message is copied when it is taken, not when it is sent, so that tests notice a
 * sender that changes a message before it has ended. Words are copied when link.h
 * says. */
#include "link/simulated_parts.h"

#include <assert.h>
#include <string.h>

/* --- when --- */

static bool within(const struct span *span, uint64_t at_ns)
{
    return at_ns >= span->from_ns && at_ns < span->until_ns;
}

static const struct span *cut_between(const struct simulated *world, int a, int b)
{
    static const struct span none = {0, 0};
    size_t low = (size_t)(a < b ? a : b), high = (size_t)(a < b ? b : a);

    return world->cuts ? &world->cuts[low * (size_t)world->options.ranks + high] : &none;
}

/* When the two ranks reach each other, from at_ns on. */
static uint64_t reach(const struct simulated *world, const struct end *a,
                      const struct end *b, uint64_t at_ns)
{
    const struct span *spans[] = {cut_between(world, a->rank, b->rank), &a->apart,
                                  &b->apart};

    for (;;) {
        int side = within(&a->apart, at_ns) ? a->side : 0;
        int other = within(&b->apart, at_ns) ? b->side : 0;
        uint64_t until = UINT64_MAX;
        if ((side == other && !within(spans[0], at_ns)) || at_ns == UINT64_MAX)
            return at_ns;
        for (int k = 0; k < 3; k++)
            if (within(spans[k], at_ns) && spans[k]->until_ns < until)
                until = spans[k]->until_ns;
        at_ns = until;
    }
}

static uint64_t latency(const struct simulated *world, const struct end *from,
                        const struct end *to)
{
    return from->host == to->host ? world->options.near_latency_ns
                                  : world->options.latency_ns;
}

static uint64_t later(uint64_t at_ns, uint64_t by_ns)
{
    return at_ns < UINT64_MAX - by_ns ? at_ns + by_ns : UINT64_MAX;
}

uint64_t simulated_arrives(const struct simulated *world, const struct end *from,
                           const struct end *to, uint64_t at_ns)
{
    if (from->paused_ns > at_ns)
        at_ns = from->paused_ns;
    return later(reach(world, from, to, at_ns), latency(world, from, to));
}

static void push(struct simulated_message *m, enum event_kind kind, uint64_t at_ns)
{
    struct simulated *world = m->channel->to->world;

    m->n_events++;
    m->channel->n_events++;
    simulated_push(world,
                   (struct event){.at_ns = at_ns > world->now_ns ? at_ns : world->now_ns,
                                  .kind = kind,
                                  .of = m});
}

/* --- on the wire --- */

/* When a message begins to go through. */
static uint64_t occupy(struct way *way, bool word, uint64_t at_ns, uint64_t takes_ns)
{
    uint64_t *free_ns = word ? &way->words_ns : &way->bulk_ns;
    uint64_t starts = *free_ns > at_ns ? *free_ns : at_ns;

    *free_ns = starts + takes_ns;
    if (word)
        way->bulk_ns = (way->bulk_ns > starts ? way->bulk_ns : starts) + takes_ns;
    return starts;
}

static uint64_t takes(const struct simulated *world, const struct host_card *host,
                      size_t bytes)
{
    double rate = world->options.bytes_per_s;
    return rate > 0 ? (uint64_t)((double)bytes * 1e9 / rate * host->factor + 0.5) : 0;
}

static uint64_t jitter(struct simulated *world)
{
    uint64_t most = world->options.jitter_ns;
    return most ? rng_next(&world->rng) % (most + 1) : 0;
}

void simulated_leaves(struct simulated_message *m)
{
    struct end *from = m->channel->from, *to = m->channel->to;
    struct simulated *world = from->world;
    uint64_t now = world->now_ns, at = from->paused_ns > now ? from->paused_ns : now;

    if (m->state != MESSAGE_WAITS || (!m->word && !m->receive))
        return;                 /* the message left by another event, or its room has
                                   gone */
    at = reach(world, from, to, at);
    if (at > now) {
        push(m, EVENT_LEAVE, at);
        return;
    }
    m->state = MESSAGE_MOVES;
    uint64_t over = latency(world, from, to) + jitter(world);
    if (from->host == to->host || world->options.bytes_per_s <= 0) {
        push(m, EVENT_TAIL, now + over);
        return;
    }
    struct host_card *host = &world->hosts[from->host];
    uint64_t needs = takes(world, host, m->bytes);
    uint64_t starts = occupy(&host->out, m->word, now, needs);
    m->tail_ns = starts + needs + over;
    push(m, EVENT_HEAD, starts + over);
}

void simulated_head(struct simulated_message *m)
{
    struct simulated *world = m->channel->to->world;
    struct host_card *host = &world->hosts[m->channel->to->host];
    uint64_t needs = takes(world, host, m->bytes);
    uint64_t ends = occupy(&host->in, m->word, world->now_ns, needs) + needs;

    push(m, EVENT_TAIL, ends > m->tail_ns ? ends : m->tail_ns);
}

/* --- a channel's list --- */

static void free_message(struct simulated_message *m)
{
    simulated_give_record(m->channel->to->world, m->word ? RECORD_WORD : RECORD_BULK, m);
}

void simulated_message_free(struct simulated_message *m)
{
    if (m->dropped && m->n_events == 0)
        free_message(m);
}

static void free_receive(struct channel *c, struct receive *r)
{
    simulated_give_record(c->to->world, RECORD_RECEIVE, r);
}

static void drop(struct simulated_message *m)
{
    m->dropped = true;
    simulated_message_free(m);
}

/* Pairs messages and receives from the first that are not paired, after one list has
 * changed. */
static void count_pairs(struct channel *c)
{
    struct simulated_message *m = c->first;
    struct receive *r = c->receives;

    if (m && m->receive && m->receive != r)     /* from LINK_ANY */
        m = m->next;
    for (; m && m->receive; m = m->next)
        r = r->next;
    c->unpaired = m;
    c->spare = r;
}

static void unlink_message(struct channel *c, struct simulated_message *m)
{
    struct simulated_message **at = &c->first, *last = NULL;

    for (; *at != m; at = &(*at)->next)
        last = *at;
    *at = m->next;
    c->last = c->last == m ? last : c->last;
    c->unpaired = c->unpaired == m ? m->next : c->unpaired;
    c->copies -= m->copied;
}

/* --- a line for receives from LINK_ANY --- */

static void enter_line(struct channel *c)
{
    struct channel *any = c->any;

    if (c->in_line)
        return;
    c->in_line = true;
    c->line_next = NULL;
    c->line_before = any->line_last;
    *(any->line_last ? &any->line_last->line_next : &any->line) = c;
    any->line_last = c;
}

static void leave_line(struct channel *c)
{
    struct channel *any = c->any;

    if (!c->in_line)
        return;
    c->in_line = false;
    *(c->line_before ? &c->line_before->line_next : &any->line) = c->line_next;
    *(c->line_next ? &c->line_next->line_before : &any->line_last) = c->line_before;
}

/* --- taken --- */

static void end_sent(struct simulated_message *m, bool failed)
{
    struct end *from = m->channel->from;

    if (!m->open)
        return;
    m->open = false;
    from->n_open--;
    simulated_ended(from, (struct link_ended){.op = m->op, .failed = failed});
}

static void copy_word(struct simulated_message *m)
{
    memcpy(m->copy, m->p, m->bytes);
    m->p = m->copy;
    m->copied = true;
    m->channel->copies++;
    end_sent(m, false);
    simulated_leaves(m);
}

static void copy_next(struct channel *c)
{
    struct simulated_message *m = c->first;

    while (m && (!m->word || m->copied))
        m = m->next;
    if (m && c->copies < LINK_WORDS)
        copy_word(m);
}

static void take(struct channel *c)
{
    struct simulated_message *m = c->first;
    struct receive *r = m->receive;
    struct simulated_figures *figures = &c->to->world->figures;
    bool fits = m->bytes <= r->bytes, word = m->word;

    if (fits && m->bytes)
        memcpy(r->p, m->p, m->bytes);
    figures->messages++;
    figures->bytes += m->bytes;
    simulated_ended(c->to, (struct link_ended){.op = r->op, .from = c->from->rank,
                                               .bytes = fits ? m->bytes : LINK_TOO_LONG});
    end_sent(m, false);
    if (c->receives == r)
        c->receives = r->next;
    free_receive(c, r);
    unlink_message(c, m);
    drop(m);
    if (word)
        copy_next(c);
}

static bool pair_with_any(struct channel *c, struct simulated_message *m)
{
    struct channel *any = c->any;

    if (!any)
        return false;
    if (!any->receives) {
        enter_line(c);
        return false;
    }
    leave_line(c);
    m->receive = any->receives;
    any->receives = m->receive->next;
    c->unpaired = m->next;
    if (m->state == MESSAGE_WAITS)      /* the sender learns that there is room */
        push(m, EVENT_LEAVE,
             simulated_arrives(c->to->world, c->to, c->from, c->to->world->now_ns));
    return true;
}

/* The first message of the list takes a receive if it can, and is taken if it is here;
 * then the next one. */
static void settle(struct channel *c)
{
    struct simulated_message *m;

    while ((m = c->first)) {
        if (!m->receive &&
            ((m->state != MESSAGE_HERE && !m->announced) || !pair_with_any(c, m)))
            return;
        if (m->state != MESSAGE_HERE)
            return;
        take(c);
    }
}

void simulated_announced(struct simulated_message *m)
{
    struct channel *c = m->channel;

    m->announced = simulated_hears(c->to, c->from, c->series);
    if (m->announced && c->first == m)
        settle(c);
}

void simulated_tail(struct simulated_message *m)
{
    struct channel *c = m->channel;

    if (!simulated_hears(c->to, c->from, c->series)) {
        if (m->copied) {
            unlink_message(c, m);
            drop(m);
        }
        return;
    }
    m->state = MESSAGE_HERE;
    if (c->first == m)
        settle(c);
}

/* --- of the link's table --- */

static void leave_at(struct simulated_message *m, uint64_t at_ns)
{
    if (at_ns > m->channel->to->world->now_ns)
        push(m, EVENT_LEAVE, at_ns);
    else
        simulated_leaves(m);
}

bool simulated_send(struct channel *c, const void *p, size_t bytes, void *op)
{
    bool word = bytes <= LINK_WORD;
    struct simulated *world = c->to->world;
    struct simulated_message *m =
        simulated_record(world, word ? RECORD_WORD : RECORD_BULK);

    if (!m)
        return false;
    *m = (struct simulated_message){
        .channel = c, .p = p, .bytes = bytes, .op = op, .word = word, .open = true};
    c->from->n_open++;
    *(c->last ? &c->last->next : &c->first) = m;
    c->last = m;
    if (c->spare) {
        m->receive = c->spare;
        c->spare = c->spare->next;
    } else if (!c->unpaired) {
        c->unpaired = m;
    }
    if (word && c->copies < LINK_WORDS)
        copy_word(m);
    else if (!word && m->receive)
        leave_at(m, simulated_arrives(world, c->to, c->from, m->receive->since_ns));
    else if (!word)
        push(m, EVENT_ANNOUNCE, simulated_arrives(world, c->from, c->to, world->now_ns));
    return true;
}

static void pair_with_message(struct channel *c, struct receive *r)
{
    struct simulated_message *m = c->unpaired;
    struct simulated *world = c->to->world;

    m->receive = r;
    c->unpaired = m->next;
    leave_line(c);
    if (!m->word && m->state == MESSAGE_WAITS)
        push(m, EVENT_LEAVE, simulated_arrives(world, c->to, c->from, world->now_ns));
    if (c->first == m)
        settle(c);
}

bool simulated_receive(struct channel *c, void *p, size_t bytes, void *op)
{
    struct receive *r = simulated_record(c->to->world, RECORD_RECEIVE);

    if (!r)
        return false;
    assert(!c->any || !c->any->receives);       /* both named and from LINK_ANY */
    *r = (struct receive){
        .p = p, .bytes = bytes, .op = op, .since_ns = c->to->world->now_ns};
    *(c->receives ? &c->last_receive->next : &c->receives) = r;
    c->last_receive = r;
    if (c->from && c->unpaired)
        pair_with_message(c, r);
    else if (c->from && !c->spare)
        c->spare = r;
    while (c->receives && c->line)
        settle(c->line);
    return true;
}

/* --- the end --- */

/* A receive from LINK_ANY is open again, before others. */
static void open_again(struct channel *any, struct receive *r)
{
    r->next = any->receives;
    any->receives = r;
    if (!r->next)
        any->last_receive = r;
    while (any->receives && any->line)
        settle(any->line);
}

static bool by_any(const struct channel *c)
{
    return c->first && c->first->receive && c->first->receive != c->receives;
}

void simulated_sender_stops(struct channel *c, bool tell)
{
    struct receive *again = by_any(c) ? c->first->receive : NULL;
    struct simulated_message **at = &c->first, *kept = NULL, *next;

    for (; *at && (*at)->copied && (*at)->state != MESSAGE_WAITS; at = &(*at)->next)
        kept = *at;
    next = *at;
    *at = NULL;
    c->last = kept;
    for (struct simulated_message *m = next; m; m = next) {
        next = m->next;
        c->copies -= m->copied;
        if (tell)
            end_sent(m, true);
        drop(m);
    }
    leave_line(c);
    count_pairs(c);
    if (again && !c->first)
        open_again(c->any, again);
    settle(c);
}

static void free_receives(struct channel *c, bool tell)
{
    while (c->receives) {
        struct receive *r = c->receives;
        c->receives = r->next;
        if (tell)
            simulated_ended(
                c->to, (struct link_ended){.op = r->op,
                                           .failed = true,
                                           .from = c->from ? c->from->rank : LINK_ANY});
        free_receive(c, r);
    }
}

void simulated_receiver_closes(struct channel *c)
{
    struct receive *again = by_any(c) ? c->first->receive : NULL;

    for (struct simulated_message *m = c->first; m; m = m->next)
        m->receive = NULL;
    free_receives(c, false);
    free_receive(c, again);
    count_pairs(c);
}

void simulated_receiver_stops(struct channel *c, bool tell)
{
    struct receive *again = by_any(c) ? c->first->receive : NULL;

    leave_line(c);
    for (struct simulated_message *m = c->first, *next; m; m = next) {
        next = m->next;
        m->receive = NULL;
        m->announced = false;
        if (m->copied) {
            unlink_message(c, m);
            drop(m);
        } else {
            m->state = MESSAGE_WAITS;
        }
    }
    free_receives(c, tell);
    count_pairs(c);
    if (again && tell)
        open_again(c->any, again);
    else
        free_receive(c, again);
}

void simulated_channel_free(struct channel *c)
{
    if (by_any(c))
        free_receive(c, c->first->receive);
    while (c->first) {
        struct simulated_message *m = c->first;
        c->first = m->next;
        free_message(m);
    }
    free_receives(c, false);
    memory_give(c);
}
