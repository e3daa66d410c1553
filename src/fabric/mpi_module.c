/* SPDX-License-Identifier: MIT */
/* Which MPI library a process is to use, and where its module is. A process that is already
 * linked to a library must use that one. Else the launcher decides: ranks that mpirun of one
 * library has started cannot find each other through another. DESCANT_MPI_MODULE says where a
 * module lies (a folder, or the file itself); else it lies beside the library or the program that
 * asks, where a build has put it, or where an install has, wherever that was moved to: in
 * descant/ beside the library, in ../lib/descant of the program; or in the folder that was
 * compiled in.
 *
 * A module is loaded with RTLD_GLOBAL, since Open MPI loads parts of its own that look for its
 * symbols there, and is never unloaded, since MPI cannot be initialised twice. */
#include "base/base.h"
#include "fabric/mpi_link.h"
#include "fabric/pmi.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef DESCANT_MODULES
#define DESCANT_MODULES "/usr/local/lib/descant"
#endif

static const struct library {
    const char *name, *file, *package, *symbol;     /* symbol: it alone has it */
} libraries[MPI_LIBRARIES] = {
    [MPI_LIBRARY_OPENMPI] = {"Open MPI", "descant-mpi-openmpi.so", "libopenmpi-dev",
                             "ompi_mpi_comm_world"},
    [MPI_LIBRARY_MPICH] = {"MPICH", "descant-mpi-mpich.so", "libmpich-dev", "MPII_Version_ABI"},
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
    return is_file(path) && strcmp(slash ? slash + 1 : path, libraries[library].file) == 0;
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

/* Length of the path of the folder that a file or a folder is in. */
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

/* Where modules are looked for, in this order. */
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
        return is_module(place, library) && (size_t)snprintf(path, room, "%s", place) < room;
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
        snprintf(text + n, room - n, "; make builds it where the package %s is installed, and "
                 "DESCANT_MPI_MODULE says where it lies elsewhere", library->package);
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
    if (is_set("SLURM_STEP_ID") && !is_set("OMPI_COMM_WORLD_SIZE") && !is_set("HYDI_CONTROL_FD") &&
        (is_set("PMIX_RANK") || by_pmi()))
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

static _Atomic bool loaded;     /* so MPI's launcher hears of this process by MPI */

const struct mpi_links *mpi_module_load(const struct log *log)
{
    char path[PATH_MAX], missing[LOG_LINE];

    if (!mpi_module_find(mpi_module_wanted(), path, sizeof path)) {
        log_fail(log, DESCANT_UNSUPPORTED, "the address mpi needs a module: %s",
                 mpi_module_missing(missing, sizeof missing));
        return NULL;
    }
    void *module = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    const struct mpi_links *links = module ? dlsym(module, MPI_LINKS_SYMBOL) : NULL;
    if (!links) {
        log_fail(log, DESCANT_UNSUPPORTED, "%s cannot be loaded: %s", path, dlerror());
        return NULL;
    }
    if (links->version != MPI_LINKS_VERSION) {
        log_fail(log, DESCANT_UNSUPPORTED, "%s is of another version of Descant", path);
        return NULL;
    }
    loaded = true;
    return links;
}

void mpi_module_abort(int status, const char *job)
{
    if (by_pmi() && !loaded && (!job || strncmp(job, "mpi", 3) == 0))
        pmi_abort(status);
}
