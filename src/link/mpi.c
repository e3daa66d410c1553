/* SPDX-License-Identifier: MIT */
/* The link over MPI, up to where its module takes over: which library a process is to
 * use, and a watch of MPI_Init.
 *
 * A process that is linked to a library already must use that one. Else the launcher
 * decides: ranks that mpirun of one library has started cannot find each other through
 * another. DESCANT_MPI_MODULE says where modules lie elsewhere than module.c looks. */
#include "base/base.h"
#include "link/link.h"
#include "link/module.h"
#include "link/mpi.h"
#include "link/pmi.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SAY_NS UINT64_C(5000000000)

enum { ENTER_S = 10 };          /* in which MPI_Init normally returns */

/* RTLD_GLOBAL, since Open MPI loads parts of its own that look for its symbols there. */
#define MODULE(library_file, name, its_package)                                          \
    {                                                                                    \
        .file = library_file, .library = name, .package = its_package,                   \
        .wanted_by = "the address mpi", .variable = "DESCANT_MPI_MODULE",                \
        .symbol = LINK_SYMBOL, .version = LINK_VERSION, .flags = RTLD_GLOBAL,            \
        .advice = "",                                                                    \
    }
static const struct link_module modules[MPI_LIBRARIES] = {
    [MPI_LIBRARY_OPENMPI] = MODULE("descant-mpi-openmpi.so", "Open MPI",
                                   "libopenmpi-dev"),
    [MPI_LIBRARY_MPICH] = MODULE("descant-mpi-mpich.so", "MPICH", "libmpich-dev"),
};

/* A symbol that only this library has. */
static const char *const symbols[MPI_LIBRARIES] = {
    [MPI_LIBRARY_OPENMPI] = "ompi_mpi_comm_world",
    [MPI_LIBRARY_MPICH] = "MPII_Version_ABI",
};

bool mpi_module_find(enum mpi_library library, char *path, size_t room)
{
    return module_find(&modules[library], path, room);
}

const char *mpi_module_missing(char *text, size_t room)
{
    return module_missing(&modules[mpi_module_wanted()], text, room);
}

const char *mpi_module_name(enum mpi_library library)
{
    return modules[library].library;
}

/* --- which --- */

static bool is_set(const char *name)
{
    const char *value = getenv(name);
    return value && *value;
}

static bool by_pmi(void)
{
    return is_set("PMI_SIZE") || is_set("PMI_FD") || is_set("MPI_LOCALRANKID");
}

/* Slurm starts ranks of either library, by the way that --mpi names. */
enum mpi_launcher mpi_module_launcher(void)
{
    if (is_set("SLURM_STEP_ID") && !is_set("OMPI_COMM_WORLD_SIZE") &&
        !is_set("HYDI_CONTROL_FD") && (is_set("PMIX_RANK") || by_pmi()))
        return MPI_LAUNCHER_SLURM;
    if (is_set("OMPI_COMM_WORLD_SIZE") || is_set("PMIX_RANK"))
        return MPI_LAUNCHER_OPENMPI;
    return by_pmi() ? MPI_LAUNCHER_MPICH : MPI_LAUNCHER_NONE;
}

enum mpi_library mpi_module_wanted(void)
{
    char path[PATH_MAX];

    for (int k = 0; k < MPI_LIBRARIES; k++)
        if (dlsym(RTLD_DEFAULT, symbols[k]))
            return (enum mpi_library)k;
    if (is_set("OMPI_COMM_WORLD_SIZE") || is_set("PMIX_RANK"))
        return MPI_LIBRARY_OPENMPI;
    if (by_pmi())
        return MPI_LIBRARY_MPICH;
    return mpi_module_find(MPI_LIBRARY_OPENMPI, path, sizeof path) ||
                   !mpi_module_find(MPI_LIBRARY_MPICH, path, sizeof path)
               ? MPI_LIBRARY_OPENMPI : MPI_LIBRARY_MPICH;
}

static _Atomic bool loaded;     /* from now on MPI tells the launcher of this process */

/* --- meeting --- */

/* MPI_Init waits for all ranks, silently, without a bound, and cannot be given up. */
struct entrance {
    struct link_entry *entry;
    _Atomic uint32_t over;      /* MPI has been entered, or not; a futex */
};

static bool waits(struct entrance *e)
{
    return !atomic_load(&e->over) && !atomic_load(&e->entry->entered);
}

/* Logs the wait after 5, 10, 20, … seconds, as a start does. Ranks 0 and 1 log it, in
 * case rank 0 is the late one. */
static void *watch(void *of)
{
    struct entrance *e = of;
    double most_s = e->entry->start_s > ENTER_S ? e->entry->start_s : ENTER_S;
    uint64_t began = clock_now_ns(), next = began + SAY_NS, now;
    uint64_t until =
        e->entry->start_s > 0 ? began + (uint64_t)(most_s * 1e9) : UINT64_MAX;
    char who[32] = "this trainer", bound[32] = "";

    if (e->entry->rank >= 0)
        snprintf(who, sizeof who, "trainer %d", e->entry->rank);
    if (e->entry->start_s > 0)
        snprintf(bound, sizeof bound, ", at most %g s in all", most_s);
    while (waits(e) && (now = clock_now_ns()) < until) {
        futex_wait(&e->over, 0, next < until ? next : until);
        if (now < next || !waits(e))
            continue;
        next = now + (now - began);
        if (e->entry->rank < 2)
            log_say(e->entry->log, DESCANT_WARNING,
                    "%s waits in MPI_Init for ranks that have not "
                    "come to it%s",
                    who, bound);
    }
    if (!waits(e))
        return NULL;
    log_fail(e->entry->log, DESCANT_TIMEOUT,
             "some ranks did not come to MPI_Init in %g s: this "
             "process ends, because MPI_Init cannot be cancelled: start all ranks, or "
             "raise start_s "
             "(--start-s)",
             most_s);
    _exit(1);               /* the launcher sees the exit */
}

/* The launcher's option against binding each rank to one core, which launchers do by
 * default. */
static const char *unbinding(void)
{
    switch (mpi_module_launcher()) {
    case MPI_LAUNCHER_SLURM:
        return "srun --cpu-bind=none, or --cpus-per-task";
    case MPI_LAUNCHER_MPICH:
        return "mpirun -bind-to none";
    default:
        return "mpirun --bind-to none";
    }
}

static struct link *meet(struct link_entry *entry, struct link_place *place)
{
    const struct link_type *type =
        module_load(&modules[mpi_module_wanted()], entry->log);
    struct entrance e = {.entry = entry};
    pthread_t watcher;
    sigset_t before;

    entry->status = DESCANT_UNSUPPORTED;
    if (!type)
        return NULL;
    loaded = true;
    signals_hold(&before);
    bool watched = pthread_create(&watcher, NULL, watch, &e) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    struct link *link = type->meet(entry, place);
    place->unbind = unbinding();

    atomic_store(&e.over, 1);
    futex_wake_all(&e.over);
    if (watched)
        pthread_join(watcher, NULL);
    if (!link && entry->timed_out)
        entry->status = log_fail(entry->log, DESCANT_TIMEOUT,
                                 "some of %d ranks did not come in "
                                 "%g s",
                                 place->size, entry->start_s);
    else if (!link)
        log_fail(entry->log, DESCANT_UNSUPPORTED, "%s", entry->why);
    return link;
}

/* Only meet is here; the module has all other functions. */
const struct link_type link_mpi = {.version = LINK_VERSION, .name = "MPI", .meet = meet};

void mpi_module_abort(int status)
{
    if (by_pmi() && !loaded)
        pmi_abort(status);
}
