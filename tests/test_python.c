/* SPDX-License-Identifier: MIT */
/* The Python package: each module of tests/python is one check. DESCANT_PYTHON names other
 * Pythons, with spaces between; nothing is tested where there is no NumPy, only arrays where there
 * is no PyTorch, and Trainer, Accelerate and Lightning where these are installed. */
#include "base/base.h"
#include "harness/suite.h"

#include <check.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct { const char *name, *needs; } modules[] = {
    {"test_arrays", "numpy"},    {"test_interrupts", "numpy"}, {"test_torch", "torch"},
    {"test_gradients", "torch"}, {"test_states", "torch"},     {"test_staging", "torch"},
    {"test_loops", "torch"},     {"test_launchers", "torch"},  {"test_examples", "torch"},
    {"test_bsp_module", "torch"}, {"test_wheel", "numpy"},     {"test_frameworks", "torch"},
    {"test_moments", "torch"},   {"test_devices", "torch"},  {"test_agreements", "numpy"},
    {"test_embedding", "torch"},
};
enum { N_MODULES = sizeof modules / sizeof *modules, MAX_CHECKS = 4 * N_MODULES };

static struct { const char *python, *module; } checks[MAX_CHECKS];
static int n_checks;

static int run(const char *python, const char *arguments)
{
    char command[PATH_MAX];
    snprintf(command, sizeof command, "%s %s", python, arguments);
    return system(command);
}

static bool has(const char *python, const char *package)
{
    char arguments[64];
    snprintf(arguments, sizeof arguments, "-c 'import %s' 2>/dev/null", package);
    return run(python, arguments) == 0;
}

/* What this Python can run becomes checks. */
static void look_at(const char *python)
{
    bool has_torch = has(python, "torch");
    if (!has(python, "numpy")) {
        printf("skipped: %s has no numpy\n", python);
        return;
    }
    if (!has_torch)
        printf("only arrays are tested: %s has no torch\n", python);
    for (int i = 0; i < N_MODULES && n_checks < MAX_CHECKS; i++)
        if (strcmp(modules[i].needs, "torch") == 0 ? has_torch : has(python, modules[i].needs)) {
            checks[n_checks].python = python;
            checks[n_checks++].module = modules[i].name;
        }
}

static void name_paths(void)
{
    char self[PATH_MAX], library[PATH_MAX + 32];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    self[n > 0 ? n : 0] = 0;
    snprintf(library, sizeof library, "%s/libdescant.so", dirname(dirname(self)));
    setenv("DESCANT_LIBRARY", library, 1);
    setenv("PYTHONPATH", "python:tests/python", 1);
    setenv("PYTHONDONTWRITEBYTECODE", "1", 1);
    setenv("OMP_NUM_THREADS", "1", 1);
}

START_TEST(a_module_of_tests_passes)
{
    char arguments[64];
    snprintf(arguments, sizeof arguments, "-m unittest %s 2>&1", checks[_i].module);
    printf("-- %s with %s\n", checks[_i].module, checks[_i].python);
    fflush(stdout);
    ck_assert_msg(run(checks[_i].python, arguments) == 0, "%s with %s fails", checks[_i].module,
                  checks[_i].python);
}
END_TEST

int main(void)
{
    TCase *tests = new_case("python", 900);
    const char *wanted = getenv("DESCANT_PYTHON");
    char *pythons = strdup(wanted ? wanted : "python3");
    name_paths();
    for (char *python = strtok(pythons, " "); python; python = strtok(NULL, " "))
        look_at(python);
    if (n_checks == 0)
        return 77;
    tcase_add_loop_test(tests, a_module_of_tests_passes, 0, n_checks);
    int failed = run_cases(tests, NULL);
    free(pythons);
    return failed;
}
