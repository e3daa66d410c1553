/* SPDX-License-Identifier: MIT */
/* Programs under mpirun. */
#include "harness/mpi.h"

#include <libgen.h>

static const struct {
    const char *mpirun, *flags;
} launchers[MPI_LIBRARIES] = {
    {"mpirun.openmpi", "--oversubscribe --bind-to none"},
    {"mpirun.mpich", ""},
};

void to_stderr(void *user, enum descant_level level, const char *line)
{
    (void)user;
    (void)level;
    fprintf(stderr, "%s\n", line);
}

void find_modules(void)
{
    char path[PATH_MAX], folder[PATH_MAX + 8];
    find_self();
    snprintf(path, sizeof path, "%s", self);
    snprintf(folder, sizeof folder, "%s/..", dirname(path));
    setenv("DESCANT_MPI_MODULE", folder, 1);
    setenv("ASAN_OPTIONS", "detect_leaks=0", 1);        /* MPI's own */
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
}

bool is_there(enum mpi_library library)
{
    char path[PATH_MAX], command[100];
    snprintf(command, sizeof command, "command -v %s >/dev/null",
             launchers[library].mpirun);
    if (mpi_module_find(library, path, sizeof path) && system(command) == 0)
        return true;
    printf("%s: not tested, there is no %s or no module\n", mpi_module_name(library),
           launchers[library].mpirun);
    return false;
}

int mpirun(enum mpi_library library, const char *binding, const char *what)
{
    char command[5 * PATH_MAX];
    size_t n = 0, got;
    snprintf(command, sizeof command, "timeout -k 5 60 %s %s %s %s 2>&1", binding,
             launchers[library].mpirun, launchers[library].flags, what);
    FILE *out = popen(command, "r");
    ck_assert_ptr_nonnull(out);
    while ((got = fread(said + n, 1, sizeof said - 1 - n, out)) > 0)
        n += got;
    said[n] = 0;
    int status = pclose(out);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

void mpirun_command(char *command, size_t room, enum mpi_library library, int ranks)
{
    snprintf(command, room, "exec timeout -k 5 100 %s %s -n %d %s",
             launchers[library].mpirun, launchers[library].flags, ranks, self);
}

int launch(enum mpi_library library, int ranks, const char *part)
{
    char what[PATH_MAX + 100];
    snprintf(what, sizeof what, "-n %d %s %s", ranks, self, part);
    return mpirun(library, "", what);
}

void need_good(enum mpi_library library, int ranks, const char *part)
{
    int status = launch(library, ranks, part);
    ck_assert_msg(status == 0, "%s, %s on %d ranks: status %d\n%.3000s",
                  mpi_module_name(library), part, ranks, status, said);
}

int run_mpi(int argc, char **argv, const struct mpi_part *parts, size_t n_parts,
            TCase *tests)
{
    for (size_t k = 0; argc > 1 && k < n_parts; k++)
        if (strcmp(argv[1], parts[k].name) == 0)
            return parts[k].run();
    find_modules();
    tcase_set_timeout(tests, 200);
    return run_cases(tests, NULL);
}
