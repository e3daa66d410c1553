/* SPDX-License-Identifier: MIT */
/* Which MPI library a process is to use, and where its module is. A process that is already
 * linked to a library must use that one. Else the launcher decides: ranks that mpirun of one
 * library has started cannot find each other through another. A module lies beside the program or
 * the library that asks, or in the folder that `make install` fills, or where DESCANT_MPI_MODULE
 * says (a folder, or the file itself).
 *
 * A module is loaded with RTLD_GLOBAL, since Open MPI loads parts of its own that look for its
 * symbols there, and is never unloaded, since MPI cannot be initialised twice. */
#include "base/base.h"
#include "fabric/mpi_link.h"

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

static bool beside(const char *program, const char *file, char *path, size_t room)
{
    const char *slash = strrchr(program, '/');
    return slash && in_folder(program, (size_t)(slash - program), file, path, room);
}

static bool is_module(const char *path, enum mpi_library library)
{
    const char *slash = strrchr(path, '/');
    return is_file(path) && strcmp(slash ? slash + 1 : path, libraries[library].file) == 0;
}

bool mpi_module_find(enum mpi_library library, char *path, size_t room)
{
    const char *file = libraries[library].file, *told = getenv("DESCANT_MPI_MODULE");
    char program[PATH_MAX];
    Dl_info here;

    if (told && *told) {
        if (in_folder(told, strlen(told), file, path, room))
            return true;
        return is_module(told, library) && (size_t)snprintf(path, room, "%s", told) < room;
    }
    if (dladdr(libraries, &here) && here.dli_fname && beside(here.dli_fname, file, path, room))
        return true;
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    if (n > 0) {
        program[n] = 0;
        if (beside(program, file, path, room))
            return true;
    }
    return in_folder(DESCANT_MODULES, strlen(DESCANT_MODULES), file, path, room);
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

const struct mpi_links *mpi_module_load(const struct log *log)
{
    const struct library *library = &libraries[mpi_module_wanted()];
    char path[PATH_MAX];

    if (!mpi_module_find(mpi_module_wanted(), path, sizeof path)) {
        log_fail(log, DESCANT_UNSUPPORTED,
                 "the address mpi needs %s, for %s: it is built by make where the package %s is "
                 "installed; DESCANT_MPI_MODULE says where it lies elsewhere", library->file,
                 library->name, library->package);
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
    return links;
}
