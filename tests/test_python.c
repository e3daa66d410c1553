/* SPDX-License-Identifier: MIT */
/* The Python package: each module of tests/python is one check. DESCANT_PYTHON names another
 * Python; nothing is tested where there is no NumPy, and only arrays where there is no PyTorch. */
#include "base/base.h"

#include <check.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct { const char *name, *needs; } modules[] = {
    {"test_arrays", "numpy"}, {"test_torch", "torch"}, {"test_loops", "torch"},
};
enum { N_MODULES = sizeof modules / sizeof *modules };

static int python(const char *arguments)
{
    char command[PATH_MAX];
    const char *program = getenv("DESCANT_PYTHON");
    snprintf(command, sizeof command, "%s %s", program ? program : "python3", arguments);
    return system(command);
}

static bool has(const char *package)
{
    char arguments[64];
    snprintf(arguments, sizeof arguments, "-c 'import %s' 2>/dev/null", package);
    return python(arguments) == 0;
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
    snprintf(arguments, sizeof arguments, "-m unittest %s 2>&1", modules[_i].name);
    ck_assert_msg(python(arguments) == 0, "%s fails", modules[_i].name);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("python");
    TCase *tests = tcase_create("python");
    name_paths();
    if (!has("numpy")) {
        printf("skipped: python3 has no numpy\n");
        return 77;
    }
    tcase_set_timeout(tests, 300);
    for (int i = 0; i < N_MODULES; i++)
        if (has(modules[i].needs))
            tcase_add_loop_test(tests, a_module_of_tests_passes, i, i + 1);
        else
            printf("%s is skipped: python3 has no %s\n", modules[i].name, modules[i].needs);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
