/* SPDX-License-Identifier: MIT */
/* The search for a module, and its loading.
 *
 * The module's variable of the environment gives a folder, or the file itself. Without
 * the variable the module is searched in this order: beside the library or program that
 * asks, as a build puts it; in descant/ beside the library and ../lib/descant of the
 * program, as an install puts it, also one that was moved; in the folder that was
 * compiled in.
 *
 * A module is never unloaded: MPI cannot be initialised twice, and OpenSSL leaves
 * functions to be called when the process exits. */
#include "link/module.h"
#include "base/base.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#ifndef DESCANT_MODULES
#define DESCANT_MODULES "/usr/local/lib/descant"
#endif

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

static bool is_named(const char *path, const char *file)
{
    const char *slash = strrchr(path, '/');
    return is_file(path) && strcmp(slash ? slash + 1 : path, file) == 0;
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
    static const char inside = 0;
    Dl_info here;
    return dladdr(&inside, &here) && here.dli_fname && realpath(here.dli_fname, path);
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

static const char *told(const struct link_module *module)
{
    const char *place = getenv(module->variable);
    return place && *place ? place : NULL;
}

bool module_find(const struct link_module *module, char *path, size_t room)
{
    const char *file = module->file, *place = told(module);
    struct folders f;

    if (place && in_folder(place, strlen(place), file, path, room))
        return true;
    if (place)
        return is_named(place, file) &&
               (size_t)snprintf(path, room, "%s", place) < room;
    list_folders(&f);
    for (int k = 0; k < f.n; k++)
        if (in_folder(f.at[k], strlen(f.at[k]), file, path, room))
            return true;
    return false;
}

const char *module_missing(const struct link_module *module, char *text, size_t room)
{
    struct folders f = {.n = 0};
    const char *place = told(module);
    size_t n = (size_t)snprintf(text, room, "there is no %s, for %s, in ", module->file,
                                module->library);

    if (place)
        add(&f, place, (int)strlen(place), "");
    else
        list_folders(&f);
    for (int k = 0; k < f.n && n < room; k++)
        n += (size_t)snprintf(text + n, room - n, "%s%s", k ? ", " : "", f.at[k]);
    if (n < room)
        snprintf(text + n, room - n,
                 "; make builds it where the package %s is installed, and "
                 "%s says where it lies elsewhere",
                 module->package, module->variable);
    return text;
}

/* --- loading --- */

const void *module_load(const struct link_module *module, const struct log *log)
{
    char path[PATH_MAX], missing[LOG_LINE];

    if (!module_find(module, path, sizeof path)) {
        log_fail(log, DESCANT_UNSUPPORTED, "%s needs a module: %s", module->wanted_by,
                 module_missing(module, missing, sizeof missing));
        return NULL;
    }
    void *loaded = dlopen(path, RTLD_NOW | module->flags);
    const int *table = loaded ? dlsym(loaded, module->symbol) : NULL;
    if (!table) {
        log_fail(log, DESCANT_UNSUPPORTED, "%s cannot be loaded: %s%s", path, dlerror(),
                 module->advice);
        return NULL;
    }
    if (*table != module->version) {
        log_fail(log, DESCANT_UNSUPPORTED, "%s is of another version of Descant", path);
        return NULL;
    }
    return table;
}
