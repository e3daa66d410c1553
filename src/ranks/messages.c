/* SPDX-License-Identifier: MIT */
/* Messages on their way out and in, and what is wrong with them. */
#include "ranks/ranks.h"

#include <stdarg.h>
#include <stdio.h>

void ranks_fail(struct ranks *m, descant_status status, const char *format, ...)
{
    char text[LOG_LINE];
    va_list list;

    if (m->f.status)
        return;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    m->f.status = log_fail(&m->f.log, status, "%s", text);
}

static bool broken(struct ranks *m, int rank)
{
    const char *name = rank >= 0 ? m->place.names[rank] : "any host";
    ranks_fail(m, DESCANT_SYSTEM, "%s: %s, in a message with rank %d on %s", m->link->type->name,
             m->link->type->why(m->link), rank, name);
    return false;
}

void ranks_refuse(struct ranks *m, int rank, const char *format, ...)
{
    char text[RANKS_TEXT];
    va_list list;
    int n = snprintf(text, sizeof text, "rank %d (%s) breaks the protocol: ", rank,
                     m->place.names[rank]);

    va_start(list, format);
    vsnprintf(text + n, sizeof text - (size_t)n, format, list);
    va_end(list);
    m->deaf = true;
    m->blame(m, DESCANT_MISMATCH, text);
}

bool ranks_send_op(struct ranks *m, struct ranks_op *op, const void *p, size_t bytes, enum ranks_tag tag)
{
    op->most = 0;
    op->busy = m->link->type->send(m->link, p, bytes, op->rank, (int)tag, op);
    return op->busy || broken(m, op->rank);
}

static bool receive(struct ranks *m, struct ranks_op *op, void *p, size_t most, enum ranks_tag tag)
{
    op->tag = (uint16_t)tag;
    op->most = (uint32_t)most;
    op->busy = m->link->type->receive(m->link, p, most, op->rank, (int)tag, op);
    return op->busy || broken(m, op->rank);
}

bool ranks_receive_op(struct ranks *m, struct ranks_op *op, void *p, size_t bytes, enum ranks_tag tag)
{
    op->any_length = false;
    return receive(m, op, p, bytes, tag);
}

bool ranks_receive_any(struct ranks *m, struct ranks_op *op, void *p, size_t most, enum ranks_tag tag)
{
    op->any_length = true;
    return receive(m, op, p, most, tag);
}

/* What has come is as long as it should be; else nothing of it is used. */
static bool length_is_good(struct ranks *m, struct ranks_op *op, const struct link_ended *ended)
{
    static const char *const names[] = {
        [TAG_WORD] = "a word", [TAG_MANIFEST] = "a manifest", [TAG_GIVE] = "a part of a mean",
        [TAG_TELL] = "a piece of a mean", [TAG_STATE] = "a piece of a state",
        [TAG_ASK] = "an ask", [TAG_ROWS] = "a part of rows", [TAG_POST] = "a parcel",
        [TAG_POST_TAKEN] = "a parcel's answer", [TAG_ANSWER] = "an answer"};
    char length[24] = "too many";

    if (!op->most || ended->bytes == op->most || (op->any_length && ended->bytes < op->most))
        return true;
    op->busy = false;
    if (ended->bytes != LINK_TOO_LONG)
        snprintf(length, sizeof length, "%zu", ended->bytes);
    ranks_refuse(m, ended->from, "%s of %s bytes, where %u belong%s",
                 names[op->tag < TAG_ANSWER ? op->tag : TAG_ANSWER], length, op->most,
                 op->any_length ? " at most" : "");
    return false;
}

/* True if something has ended. */
bool ranks_collect(struct ranks *m)
{
    struct link_news news;
    bool works = m->link->type->collect(m->link, &news);

    m->now_ns = news.now_ns;
    if (!m->moved_ns)
        m->moved_ns = m->now_ns;
    if (!works)
        return broken(m, LINK_ANY);
    for (int i = 0; i < news.n_ended; i++) {
        struct ranks_op *op = news.ended[i].op;
        if (news.ended[i].failed)
            broken(m, op->rank);
        else if (length_is_good(m, op, &news.ended[i]))
            op->ended(m, op, &news.ended[i]);
    }
    m->moved |= news.n_ended > 0;
    return news.n_ended > 0;
}

