/* SPDX-License-Identifier: MIT */
/* The link over MPI, up to where its module takes over: which library a process is to
 * use, where its module is, and a watch of MPI_Init.
 *
 * A process that is linked to a library already must use that one. Else the launcher
 * decides: ranks that mpirun of one library has started cannot find each other through
 * another. DESCANT_MPI_MODULE says where a module lies (a folder, or the file itself);
 * else it lies beside the library or the program that asks, where a build has put it, or
 * where an install has, wherever that was moved to: in descant/ beside the library, in
 * ../lib/descant of the program; or in the folder that was compiled in.
 *
 * A module is loaded with RTLD_GLOBAL, since Open MPI loads parts of its own that look
 * for its symbols there, and is never unloaded, since MPI cannot be initialised twice. */
#include "base/base.h"
#include "link/link.h"
#include "link/mpi.h"
#include "link/pmi.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef DESCANT_MODULES
#define DESCANT_MODULES "/usr/local/lib/descant"
#endif

#define SAY_NS UINT64_C(5000000000)

enum { ENTER_S = 10 };          /* in which MPI_Init normally returns */

static const struct library {
    const char *name, *file, *package, *symbol;     /* symbol: only this library has it */
} libraries[MPI_LIBRARIES] = {
    [MPI_LIBRARY_OPENMPI] = {"Open MPI", "descant-mpi-openmpi.so", "libopenmpi-dev",
                             "ompi_mpi_comm_world"},
    [MPI_LIBRARY_MPICH] = {"MPICH", "descant-mpi-mpich.so", "libmpich-dev",
                           "MPII_Version_ABI"},
};

/* --- where --- */

static bool is_file(const char *path)
{
    struct stat found;
    return stat(path, &found) == 0 && S_ISREG(found.st_mode);
}

static bool in_folder(const char *folder, size_t length, const char *file, char *path,
                      size_t room)
{
    int n = snprintf(path, room, "%.*s/%s", (int)length, folder, file);
    return n > 0 && (size_t)n < room && is_file(path);
}

static bool is_module(const char *path, enum mpi_library library)
{
    const char *slash = strrchr(path, '/');
    return is_file(path) &&
           strcmp(slash ? slash + 1 : path, libraries[library].file) == 0;
}

enum { FOLDERS = 5 };
struct folders {
    char at[FOLDERS][PATH_MAX];
    int n;
};

static void add(struct folders *f, const char *folder, int length, const char *tail)
{
    int n = snprintf(f->at[f->n], PATH_MAX, "%.*s%s", length, folder, tail);
    f->n += n > 0 && n < PATH_MAX;
}

/* The length of the path of the folder that a file or a folder is in. */
static int up(const char *path, int length)
{
    while (length > 0 && path[length - 1] != '/')
        length--;
    return length > 0 ? length - 1 : 0;
}

static bool this_library(char *path)
{
    Dl_info here;
    return dladdr(libraries, &here) && here.dli_fname && realpath(here.dli_fname, path);
}

/* The folders in which modules are searched, in this order. */
static void list_folders(struct folders *f)
{
    char library[PATH_MAX] = "", program[PATH_MAX] = "";
    int in = 0;

    f->n = 0;
    if (!realpath("/proc/self/exe", program))
        *program = 0;
    if (this_library(library) && strcmp(library, program) != 0) {
        in = up(library, (int)strlen(library));
        add(f, library, in, "");
        add(f, library, in, "/descant");
    }
    if (*program) {
        in = up(program, (int)strlen(program));
        add(f, program, in, "");
        add(f, program, up(program, in), "/lib/descant");
    }
    add(f, DESCANT_MODULES, (int)strlen(DESCANT_MODULES), "");
}

static const char *told(void)
{
    const char *place = getenv("DESCANT_MPI_MODULE");
    return place && *place ? place : NULL;
}

bool mpi_module_find(enum mpi_library library, char *path, size_t room)
{
    const char *file = libraries[library].file, *place = told();
    struct folders f;

    if (place && in_folder(place, strlen(place), file, path, room))
        return true;
    if (place)
        return is_module(place, library) &&
               (size_t)snprintf(path, room, "%s", place) < room;
    list_folders(&f);
    for (int k = 0; k < f.n; k++)
        if (in_folder(f.at[k], strlen(f.at[k]), file, path, room))
            return true;
    return false;
}

const char *mpi_module_missing(char *text, size_t room)
{
    const struct library *library = &libraries[mpi_module_wanted()];
    struct folders f = {.n = 0};
    size_t n = (size_t)snprintf(text, room, "there is no %s, for %s, in ", library->file,
                                library->name);

    if (told())
        add(&f, told(), (int)strlen(told()), "");
    else
        list_folders(&f);
    for (int k = 0; k < f.n && n < room; k++)
        n += (size_t)snprintf(text + n, room - n, "%s%s", k ? ", " : "", f.at[k]);
    if (n < room)
        snprintf(text + n, room - n,
                 "; make builds it where the package %s is installed, and "
                 "DESCANT_MPI_MODULE says where it lies elsewhere",
                 library->package);
    return text;
}

const char *mpi_module_name(enum mpi_library library)
{
    return libraries[library].name;
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
        if (dlsym(RTLD_DEFAULT, libraries[k].symbol))
            return (enum mpi_library)k;
    if (is_set("OMPI_COMM_WORLD_SIZE") || is_set("PMIX_RANK"))
        return MPI_LIBRARY_OPENMPI;
    if (by_pmi())
        return MPI_LIBRARY_MPICH;
    return mpi_module_find(MPI_LIBRARY_OPENMPI, path, sizeof path) ||
                   !mpi_module_find(MPI_LIBRARY_MPICH, path, sizeof path)
               ? MPI_LIBRARY_OPENMPI : MPI_LIBRARY_MPICH;
}

/* --- loading --- */

static _Atomic bool loaded;     /* from now on MPI tells the launcher of this process */

static const struct link_type *load(const struct log *log)
{
    char path[PATH_MAX], missing[LOG_LINE];

    if (!mpi_module_find(mpi_module_wanted(), path, sizeof path)) {
        log_fail(log, DESCANT_UNSUPPORTED, "the address mpi needs a module: %s",
                 mpi_module_missing(missing, sizeof missing));
        return NULL;
    }
    void *module = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    const struct link_type *type = module ? dlsym(module, LINK_SYMBOL) : NULL;
    if (!type) {
        log_fail(log, DESCANT_UNSUPPORTED, "%s cannot be loaded: %s", path, dlerror());
        return NULL;
    }
    if (type->version != LINK_VERSION) {
        log_fail(log, DESCANT_UNSUPPORTED, "%s is of another version of Descant", path);
        return NULL;
    }
    loaded = true;
    return type;
}

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
    const struct link_type *type = load(entry->log);
    struct entrance e = {.entry = entry};
    pthread_t watcher;
    sigset_t before;

    entry->status = DESCANT_UNSUPPORTED;
    if (!type)
        return NULL;
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
