/* SPDX-License-Identifier: MIT */
/* The standard input of rank 0 feeds the trainers of all hosts. A thread there reads it,
 * cuts it into chunks of whole lines (data/cut.c), and hands each chunk to the job as an
 * item with bytes (descant_deal_put), whose room bounds how far the thread reads ahead.
 * Every trainer, that of rank 0 too, takes items by need and parses them itself.
 *
 * An item is the number of lines before it, and its text.
 *
 * Another process that takes rank 0's place, as one that is started again, reads nothing:
 * the lines that the first one had read are gone with it. Then the input has ended where
 * it was, and all train what they have. */
#include "train/trainer.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HEAD = 8, PAD = 64 };
#define MOMENT_S 0.05           /* until the reading is given up */
#define KEPT ((size_t)256 << 20)        /* bytes, or KEPT_CHUNKS chunks */
enum { KEPT_CHUNKS = 8 };

static size_t kept_bytes(const struct trainer *t)
{
    size_t chunks = KEPT_CHUNKS * ((size_t)t->options->chunk + DATA_LINE_MOST);
    return chunks > KEPT ? chunks : KEPT;
}

static bool is_over(void *of)
{
    const struct trainer *t = of;
    return atomic_load(&t->piped.stop) || board_stopped(t->board) != STOP_NOT;
}

static descant_status give(struct trainer *t, const struct data_text *text)
{
    struct piped *p = &t->piped;
    descant_status status = DESCANT_TIMEOUT;

    if (!memory_grow(&p->item, &p->item_room, 0, HEAD + text->n, 1))
        return log_fail(&t->log, DESCANT_MEMORY, "no memory for a chunk of stdin");
    memcpy(p->item, &text->lines, HEAD);
    memcpy(p->item + HEAD, text->at, text->n);
    while (status == DESCANT_TIMEOUT && !is_over(t))
        status = descant_deal_put(t->job, MOMENT_S, p->item, HEAD + text->n);
    return status;
}

/* A trainer that is told to leave serves the others until it has left, which ends their
 * input. */
static void *read_stdin(void *of)
{
    struct trainer *t = of;
    struct data_text text;
    enum data_got got = DATA_BLOCK;
    descant_status status = DESCANT_OK;
    uint64_t chunks = 0;

    while (status == DESCANT_OK && got == DATA_BLOCK && !is_over(t)) {
        got = data_cut(t->piped.cutter, &text, &status);
        if (got == DATA_BLOCK)
            status = give(t, &text);
        chunks += got == DATA_BLOCK && status == DESCANT_OK;
    }
    if (status == DESCANT_ENDED)
        log_say(&t->log, DESCANT_WARNING,
                "stdin is not read on: the other hosts have taken this one for dead, and "
                "end with what they have");
    else if (status != DESCANT_OK && status != DESCANT_TIMEOUT)
        board_stop(t->board, STOP_FAILED, "trainer %d: %s", t->rank,
                   descant_last_error());
    if (got == DATA_END)
        descant_deal_end(t->job, chunks);
    return NULL;
}

/* Trainers of one machine that a launcher has started read stdin in turn, which is the
 * same pipe for all only where the launcher has left it so. */
descant_status piped_check(struct trainer *t)
{
    uint64_t none = 0, mine = FNV_BEGIN;
    struct stat of;

    if (strcmp(t->options->data, "-") != 0 || t->deals || t->options->trainers ||
        fstat(STDIN_FILENO, &of) != 0)
        return DESCANT_OK;
    mine = fnv_add(mine, &of.st_dev, sizeof of.st_dev);
    mine = fnv_add(mine, &of.st_ino, sizeof of.st_ino);
    if (atomic_compare_exchange_strong(&t->board->input, &none, mine) || none == mine)
        return DESCANT_OK;
    return log_fail(&t->log, DESCANT_UNSUPPORTED,
                    "the trainers of this machine have different standard inputs, and "
                    "read one in turn: start them with --trainers N, or let them meet "
                    "over TCP (descant run --port), where that of rank 0 is for all");
}

descant_status piped_begin(struct trainer *t)
{
    struct piped *p = &t->piped;
    struct descant_members members;

    if (!piped_is(t))
        return DESCANT_OK;
    descant_status status = descant_members(t->job, &members);
    if (status == DESCANT_OK)
        status = descant_deal_feed(t->job, 0, kept_bytes(t));
    if (status != DESCANT_OK || t->rank != 0 || members.late)
        return status;
    const struct data_options options = {.chunk_bytes = (size_t)t->options->chunk,
                                         .stopped = is_over, .of = t, .log = &t->log};
    return data_cut_open(&p->cutter, &options);
}

descant_status piped_start(struct trainer *t)
{
    struct piped *p = &t->piped;

    if (!p->cutter)
        return DESCANT_OK;
    if (pthread_create(&p->thread, NULL, read_stdin, t) != 0)
        return log_fail(&t->log, DESCANT_SYSTEM, "no thread to read stdin");
    p->started = true;
    return DESCANT_OK;
}

void piped_end(struct trainer *t)
{
    struct piped *p = &t->piped;

    atomic_store(&p->stop, true);
    if (p->started)
        pthread_join(p->thread, NULL);
    p->started = false;
    data_cut_close(p->cutter);
    p->cutter = NULL;
    memory_give(p->item);
    p->item = NULL;
    p->item_room = 0;
}

void piped_fini(struct trainer *t)
{
    piped_end(t);
    memory_give(t->piped.text);
}

/* Into memory that grows with the largest chunk. Lost chunks are said once. */
descant_status piped_fetch(void *of, uint64_t chunk, struct data_text *text)
{
    struct trainer *t = of;
    struct piped *p = &t->piped;
    size_t n = 0;
    descant_status status;

    do {
        if (!memory_grow(&p->text, &p->text_room, 0, n + PAD, 1))
            return log_fail(&t->log, DESCANT_MEMORY, "no memory for a chunk of stdin");
        status = descant_deal_get(t->job, MOMENT_S, chunk, p->text, p->text_room - PAD,
                                  &n);
    } while (status == DESCANT_OK && n > p->text_room - PAD);
    *text = (struct data_text){0};
    if (status == DESCANT_ENDED) {
        if (!p->lost++)
            log_say(&t->log, DESCANT_WARNING,
                    "chunk %llu of stdin is lost with the host that read it, and maybe "
                    "others: they are not trained", (unsigned long long)chunk);
        return DESCANT_OK;
    }
    if (status != DESCANT_OK)
        return status;
    if (n == 0)
        return DESCANT_OK;
    if (n < HEAD)
        return log_fail(&t->log, DESCANT_CORRUPT, "a chunk of stdin of %zu bytes", n);
    memcpy(&text->lines, p->text, HEAD);
    text->at = p->text + HEAD;
    text->n = n - HEAD;
    memset(p->text + n, 0, PAD);
    return DESCANT_OK;
}
