/* SPDX-License-Identifier: MIT */
/* The liar's link is the simulated one with another send. What it sends is copied: the
 * link reads the copies until they are taken. */
#include "liars.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

enum {
    LOST = LINK_TAGS - 1 /* a tag that nobody receives */,
    MOST_LIVE = 20000 /* blocks of memory */
};

struct sent {
    struct sent *next;
    struct ranks_op op;
    unsigned char p[];
};

/* One at a time, in one thread. */
static struct {
    liars_alter *alter;
    void *context;
    int liar;
    struct sent *sent;
    unsigned char letters[2][LETTER_ROOM];
} lying;

static struct link_type first, forged;      /* that meets, and as it is then */

static void ignore(struct ranks *m, struct ranks_op *op, const struct link_ended *ended)
{
    (void)m;
    (void)op;
    (void)ended;
}

/* op: NULL, it is a copy more. */
static bool deliver(struct link *link, const struct letter *letter, uint64_t series,
                    void *op)
{
    struct sent *sent = memory_take(sizeof *sent + letter->bytes);

    assert(sent);
    sent->next = lying.sent;
    sent->op = (struct ranks_op){.ended = ignore, .rank = letter->to};
    lying.sent = sent;
    memcpy(sent->p, letter->p, letter->bytes);
    return link_simulated.send(link, sent->p, letter->bytes,
                               &(struct link_message){letter->to, letter->tag, series,
                                                      op ? op : &sent->op});
}

static bool lie(struct link *link, const void *p, size_t bytes,
                const struct link_message *message)
{
    int to = message->rank, tag = message->tag, from = lying.liar;
    struct letter letter = {from, to, tag, 1, bytes, lying.letters[0]};
    struct letter more = {from, to, TAG_WORD, 0, sizeof(struct ranks_word),
                          lying.letters[1]};
    bool works = true;

    if (bytes > LETTER_ROOM - (1 << 13))
        return link_simulated.send(link, p, bytes, message);
    memcpy(letter.p, p, bytes);
    memset(more.p, 0, sizeof(struct ranks_word));
    lying.alter(lying.context, &letter, &more);
    for (int i = 0; i < more.times && works; i++)
        works = deliver(link, &more, 0, NULL);
    if (letter.times == 0)      /* short, so that it ends for its sender */
        return link_simulated.send(link, "", 1,
                                   &(struct link_message){to, LOST, 0, message->op});
    for (int i = 0; i < letter.times && works; i++)
        works = deliver(link, &letter, message->series, i ? NULL : message->op);
    return works;
}

static struct link *meet(struct link_entry *entry, struct link_place *place)
{
    struct link *link = link_simulated.meet(entry, place);

    if (link && place->rank == lying.liar)
        link->type = &forged;
    return link;
}

void liars_open(struct ranks_world *w, int liar, liars_alter *alter, void *context)
{
    forged = link_simulated;
    forged.send = lie;
    first = link_simulated;
    first.meet = meet;
    w->over = &first;
    w->lied_to = true;
    w->liar = liar;
    lying.alter = alter;
    lying.context = context;
    lying.liar = liar;
}

void liars_close(struct ranks_world *w)
{
    world_close(w);
    while (lying.sent) {
        struct sent *sent = lying.sent;
        lying.sent = sent->next;
        memory_give(sent);
    }
}

/* --- a world --- */

/* The liar is a member, one that comes later, or one that is put out for a while. */
static void live(struct ranks_world *w, struct lies *lies, int founders)
{
    int liar = lies->liar, other = (liar + 1) % w->options.ranks;
    unsigned what = lies_next(lies);

    for (int k = 0; k < founders; k++)
        world_come(w, k);
    world_run(w, 0.2);
    for (int k = founders; k < w->options.ranks; k++)
        world_come(w, k);
    if (what % 4 == 1)
        world_fault(w, SIMULATED_PART, world_now(w), 1, liar, 1, 0);
    if (what % 8 == 2)
        world_fault(w, SIMULATED_DIE, world_now(w) + 0.3, 0, other, 0, 0);
    if (what % 8 == 3)
        world_fault(w, SIMULATED_PAUSE, world_now(w), 1, liar, 0, 0);
    if (what % 8 == 4)
        world_reload(w, liar);
    if (what % 8 == 6)
        world_leave(w, liar);
    world_run(w, 1.5);
}

bool liars_run(const uint8_t *bytes, size_t n, bool verbose, char *why)
{
    static struct ranks_world w;
    static struct lies lies;
    long before = memory_live();

    lies.bytes = bytes;
    lies.left = n;
    lies.n_kept = 0;
    const struct simulated_options options = {.ranks = 2 + (int)(lies_next(&lies) % 4),
                                              .seed = lies_next(&lies),
                                              .latency_ns = 100000,
                                              .jitter_ns = 1000000,
                                              .bytes_per_s = 1e7};
    unsigned kind = lies_next(&lies);
    world_open(&w, &options, options.ranks - (int)(kind & 1));
    w.n = kind >> 5 ? WORLD_FLOATS : 9000;
    w.wire = kind % 32 < 8 ? WIRE_Q8 : WIRE_F32;
    w.elastic = kind % 32 >= 24;
    w.verbose = verbose;
    w.figures = true;
    w.dead_s = 0.4;
    w.step_ns = 100000000;
    w.agree_ns = kind >> 1 & 1 ? 50000000 : 0;
    lies.size = options.ranks;
    lies.liar = (int)(lies_next(&lies) % (unsigned)options.ranks);
    lies.floats = w.n;
    lies.skip = lies_next(&lies);
    liars_open(&w, lies.liar, lies_alter, &lies);
    live(&w, &lies, w.founders);
    if (memory_live() - before > MOST_LIVE)
        snprintf(w.why, sizeof w.why, "%ld blocks of memory", memory_live() - before);
    memcpy(why, w.why, sizeof w.why);
    liars_close(&w);
    if (!*why && memory_live() != before)
        snprintf(why, sizeof w.why, "%ld blocks of memory are left",
                 memory_live() - before);
    return !*why;
}
