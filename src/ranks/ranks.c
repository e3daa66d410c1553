/* SPDX-License-Identifier: MIT */
/* The ranks of a job, on one host or many, over a link. docs/mpi.md has the protocol;
 * this file has the tables, one for each link. start.c has the time before the first
 * poll, turn.c a poll, close.c the end.
 *
 * 1. Only begin, poll, and the caller's open, start and close call the link: one thread
 *    at a time. wait may run beside them, and sleeps on figures that poll leaves.
 * 2. Where the link is fixed a round that has closed is never begun again, and a rank
 *    that leaves stays until all have left, to do its part, to lead, and to serve its
 *    slice of the centre. Where ranks come and go a round may be given up
 *    (docs/members.md).
 * 3. Messages are sent out of the contribution, the fabric's own segments, or the
 *    fabric's buffers; never out of the caller's memory, which may go at the next begin.
 * 4. A message's memory stays until the link has ended the message. A job that closes
 *    with messages under way, because their peers neither take nor send, keeps all of its
 *    memory as long as the process lives: the link may still use any of it. */
#include "ranks/lead.h"

#include "link/tcp.h"

#include <string.h>

static descant_status open_mpi(struct fabric **out, const struct fabric_options *options)
{
    struct fabric_options with = *options;
    const char *address = options->address;

    if (address && *address && strcmp(address, "messages") != 0)
        return log_fail(options->log, DESCANT_BAD_ADDRESS,
                        "\"mpi:%s\": the address is mpi, or mpi:messages", address);
    if (!with.link)
        with.link = &link_mpi;
    return ranks_open(out, &fabric_mpi, &with);
}

static descant_status open_tcp(struct fabric **out, const struct fabric_options *options)
{
    struct fabric_options with = *options;
    struct tcp_options at;
    descant_status status = tcp_options_read(&at, options->address, options->log);

    if (status)
        return status;
    if (options->most)
        at.most = options->most;
    if (!with.size)
        with.size = 1;          /* the first trainer begins alone, and others come to
                                   it */
    with.size += options->hub;
    if (at.most < with.size)
        at.most = with.size;
    with.dead_s = at.dead_s;
    with.link = &link_tcp;
    with.context = &at;
    return ranks_open(out, &fabric_tcp, &with);
}

static void ranks_wait(struct fabric *f, uint64_t until_ns)
{
    ranks_rest(ranks_of(f), until_ns);
}

static void wake(struct fabric *f)
{
    struct link *link = ranks_of(f)->link;
    if (link->type->wake)
        link->type->wake(link);
}

static const char *manifest(struct fabric *f)
{
    ranks_serve(f);
    return ranks_admission_manifest(ranks_of(f));
}

static void refuse(struct fabric *f, descant_status status, const char *why)
{
    const struct ranks_word word = {.what = WORD_FAIL, .status = (uint32_t)status};
    char text[RANKS_TEXT];

    snprintf(text, sizeof text, "%s", why);
    ranks_lead_tell_all(ranks_of(f), word, text, strlen(text) + 1);
}

static descant_status rows_begin(struct fabric *f, const void *bytes, size_t n)
{
    descant_status status = ranks_rows_begin(f, bytes, n);
    ranks_set_rest(ranks_of(f));
    return status;
}

static enum fabric_progress rows_poll(struct fabric *f, struct rows_part *part)
{
    struct ranks *m = ranks_of(f);
    if (!ranks_rows_taking(m))
        ranks_serve(&m->f);
    return f->status ? FABRIC_FAILED : ranks_rows_poll(m, part);
}

static const struct fabric_rows rows = {
    .joins = true, .begin = rows_begin, .poll = rows_poll, .leave = ranks_rows_takes};

const struct fabric_agree ranks_agree = {.offer = ranks_agree_offer,
                                         .look = ranks_agree_look,
                                         .wait = ranks_wait,
                                         .missing = ranks_agree_missing,
                                         .made = ranks_agree_made};

/* The functions that all links share. */
#define RANKS_TYPE                                                                      \
    .rows = &rows, .post = &ranks_post, .agree = &ranks_agree, .deal = &ranks_deals,    \
    .alloc = ranks_alloc,                                                               \
    .share = ranks_share, .serve = ranks_serve, .wake = wake,                           \
    .manifest = manifest, .refuse = refuse,                                             \
    .beside = ranks_beside, .start = ranks_start, .begin = ranks_begin,                 \
    .poll = ranks_poll, .wait = ranks_wait, .close = ranks_close

const struct fabric_type fabric_mpi = {
    .name = "mpi",
    .address = "mpi",
    .look_ns = 300000,
    .help = "the ranks of an MPI job (mpirun, srun), on any number of hosts",
    .open = open_mpi,
    RANKS_TYPE,
};

const struct fabric_type fabric_tcp = {
    .name = "tcp",
    .address = "tcp:HOST:PORT[,ranks=64]",
    .help = "hosts that come and go; rank 0, or the first process, listens at HOST:PORT",
    .open = open_tcp,
    RANKS_TYPE,
};
