/* SPDX-License-Identifier: MIT */
/* Tests of real processes, started by the mpirun of each MPI library that is there. A program is
 * both sides: under Check it starts itself, with the name of a part and under mpirun, and a part
 * that finds something wrong prints it and exits with 1. */
#ifndef MPI_LAUNCH_H
#define MPI_LAUNCH_H

#include "fabric/fabric.h"
#include "link/mpi.h"

#include <check.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* AddressSanitizer makes these minutes. */
#ifdef __SANITIZE_ADDRESS__
enum { LIBRARIES_RUN = 1 };
#else
enum { LIBRARIES_RUN = MPI_LIBRARIES };
#endif

/* --- the side of the ranks --- */

#define NEED(condition)                                                                       \
    do {                                                                                      \
        if (!(condition)) {                                                                   \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition,                \
                    descant_last_error());                                                    \
            exit(1);                                                                          \
        }                                                                                     \
    } while (0)

static inline void to_stderr(void *user, enum descant_level level, const char *line)
{
    (void)user;
    (void)level;
    fprintf(stderr, "%s\n", line);
}

static inline float value(int k, size_t i, int r)
{
    return (float)sin((double)i * 0.37 + k * 1.7 + r * 0.9) * (float)(k + 1);
}

struct part {
    const char *name;
    int (*run)(void);
};

/* --- the side of Check --- */

static char folder[PATH_MAX], program[PATH_MAX], said[1 << 16];

static const struct {
    const char *mpirun, *flags;
} launchers[MPI_LIBRARIES] = {
    {"mpirun.openmpi", "--oversubscribe --bind-to none"},
    {"mpirun.mpich", ""},
};

static inline bool is_there(enum mpi_library library)
{
    char path[PATH_MAX], command[100];

    snprintf(command, sizeof command, "command -v %s >/dev/null", launchers[library].mpirun);
    if (mpi_module_find(library, path, sizeof path) && system(command) == 0)
        return true;
    printf("%s: not tested, there is no %s or no module\n", mpi_module_name(library),
           launchers[library].mpirun);
    return false;
}

enum { TOLD = 3000 };           /* characters of `said` that fit into a failure's message */

/* Runs the part on so many ranks; its exit status, and what it said in `said`. */
static inline int launch_bound(const char *binding, enum mpi_library library, int ranks,
                        const char *part)
{
    char command[3 * PATH_MAX];
    size_t n = 0, got;

    snprintf(command, sizeof command, "timeout -k 5 60 %s %s %s -n %d %s %s 2>&1", binding,
             launchers[library].mpirun, launchers[library].flags, ranks, program, part);
    FILE *out = popen(command, "r");
    ck_assert_ptr_nonnull(out);
    while ((got = fread(said + n, 1, sizeof said - 1 - n, out)) > 0)
        n += got;
    said[n] = 0;
    int status = pclose(out);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

static inline int launch(enum mpi_library library, int ranks, const char *part)
{
    return launch_bound("", library, ranks, part);
}

static inline void need_good(enum mpi_library library, int ranks, const char *part)
{
    int status = launch(library, ranks, part);
    ck_assert_msg(status == 0, "%s, %s on %d ranks: status %d\n%.*s", mpi_module_name(library),
                  part, ranks, status, TOLD, said);
}

static inline void need_said(const char *text)
{
    ck_assert_msg(strstr(said, text), "\"%s\" was not said, but\n%.*s", text, TOLD, said);
}

static inline void find_program(void)
{
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    if (n <= 0)
        exit(1);
    snprintf(folder, sizeof folder, "%.*s/..", (int)(strrchr(program, '/') - program), program);
    setenv("DESCANT_MPI_MODULE", folder, 1);
    setenv("ASAN_OPTIONS", "detect_leaks=0", 1);        /* MPI's own */
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
}

/* main, with the parts that ranks may be told to be. */
static inline int run_mpi(int argc, char **argv, const struct part *parts, size_t n_parts,
                          TCase *tests)
{
    for (size_t k = 0; argc > 1 && k < n_parts; k++)
        if (strcmp(argv[1], parts[k].name) == 0)
            return parts[k].run();
    find_program();
    Suite *suite = suite_create("mpi");
    tcase_set_timeout(tests, 200);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}

#endif
