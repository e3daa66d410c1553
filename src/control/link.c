/* SPDX-License-Identifier: MIT */
/* How the processes of a BSP job meet: by an address, or by their launcher's variables.
 * No process is woken by a parcel: each polls, soon after a parcel came, and ever less
 * often until the next. */
#include "control/control.h"
#include "sync/launcher.h"

#include <string.h>

#define LOOK_MIN_NS UINT64_C(200000)
#define LOOK_MOST_NS UINT64_C(5000000)

enum { LOOK_PART = 8, MEET_S = 30, SHM_RANKS = 64 };

/* The next look is away by an eighth of the time since something came, within two
 * bounds. */
uint64_t bsp_link_look(const struct bsp_link *link)
{
    uint64_t now = clock_now_ns(), part = (now - link->heard_ns) / LOOK_PART;
    return now + (part < LOOK_MIN_NS    ? LOOK_MIN_NS
                  : part > LOOK_MOST_NS ? LOOK_MOST_NS
                                        : part);
}

/* The lowest free rank but 0, which is control's. */
static descant_status open_any(struct fabric **f, const struct fabric_type *type,
                               struct fabric_options options, const struct log *log)
{
    descant_status status = DESCANT_BAD_RANK;
    options.log = NULL;
    for (int rank = 1; rank < SHM_RANKS && status == DESCANT_BAD_RANK; rank++) {
        options.rank = rank;
        status = type->open(f, &options);
    }
    if (status != DESCANT_OK)
        return log_fail(log, status, "%s", descant_last_error());
    (*f)->log = *log;
    (*f)->log.rank = (*f)->rank;
    return DESCANT_OK;
}

static descant_status open_fabric(struct bsp_link *link, enum bsp_role role,
                                  const struct bsp_options *o,
                                  const struct launcher *launcher, const struct log *log)
{
    const struct fabric_type *type;
    const char *rest;
    sigset_t old;
    descant_status status = launcher_fabric(launcher, &type, &rest, log);
    if (status != DESCANT_OK)
        return status;
    if (!type->post)
        return log_fail(log, DESCANT_BAD_ADDRESS,
                        "%s: control and local modules meet over shm:NAME, "
                        "tcp:HOST:PORT, or mpi",
                        launcher->address);
    struct fabric_options options = {.address = rest,
                                     .rank = launcher->rank,
                                     .size = launcher->size,
                                     .most = role == BSP_LOCAL ? 0 : (int)o->locals + 1,
                                     .start_s = MEET_S,
                                     .log = log};
    if (launcher->rank < 0 && type != &fabric_mpi) {
        options.rank = role == BSP_LOCAL ? (int)o->number + 1 : 0;
        if (options.rank == 0 && role == BSP_LOCAL && type == fabric_of_host)
            return open_any(&link->f, type, options, log);
        if (options.rank == 0 && role == BSP_LOCAL)
            options.rank = -1;  /* control says which one is free */
        options.joins = role == BSP_LOCAL;
    }
    /* blocks signals before MPI starts threads of its own: these would take the signals
     * that the process waits for where it sleeps, and end it */
    signals_hold(&old);
    status = type->open(&link->f, &options);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return status;
}

/* The sweeper is started before the fabric is opened: MPI has threads, with which a
 * process must not fork. */
descant_status bsp_link_open(struct bsp_link **link, enum bsp_role role,
                             const struct bsp_options *o, const struct log *log)
{
    struct descant_options options = descant_options_default();
    struct launcher launcher;
    *link = NULL;
    options.job = o->address;
    descant_status status = launcher_read(&launcher, &options, log);
    if (status != DESCANT_OK)
        return status;
    if (role == BSP_RUN && strcmp(launcher.address, "self") == 0)
        return DESCANT_OK;
    if (launcher_may_be_mpi(launcher.address))
        status = bsp_sweeper_start(o->name, log);
    if (status != DESCANT_OK)
        return status;
    struct bsp_link *made = memory_take(sizeof *made);
    if (!made)
        return log_fail(log, DESCANT_MEMORY, "no memory for a job");
    status = open_fabric(made, role, o, &launcher, log);
    if (status != DESCANT_OK) {
        memory_give(made);
        return status;
    }
    bool known = launcher.size > 0 || made->f->fixed;
    made->ranks = known ? made->f->size : (int)o->locals + 1;
    made->heard_ns = clock_now_ns();
    *link = made;
    return DESCANT_OK;
}

void bsp_link_close(struct bsp_link *link, bool good)
{
    if (!link)
        return;
    if (good || !link->f->fixed)
        link->f->type->close(link->f);
    memory_give(link);
}
