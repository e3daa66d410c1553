/* SPDX-License-Identifier: MIT */
/* A module written in Python, on a segment of this process: segment_module.py says what it looks
 * at; here is what comes out of it. Nothing is tested where there is no NumPy. */
#include "harness/segments.h"
#include "harness/suite.h"

#include <libgen.h>
#include <limits.h>
#include <sys/wait.h>

enum { FLOATS = 1000 };

static pid_t start_python(void)
{
    char self[PATH_MAX], library[PATH_MAX + 32];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    ck_assert_int_gt(n, 0);
    self[n] = 0;
    snprintf(library, sizeof library, "%s/libdescant.so", dirname(dirname(self)));
    setenv("DESCANT_LIBRARY", library, 1);
    setenv("DESCANT_SEGMENT", segment_name, 1);
    setenv("PYTHONPATH", "python", 1);
    setenv("PYTHONDONTWRITEBYTECODE", "1", 1);
    pid_t child = fork();
    if (child == 0) {
        execlp("python3", "python3", "tests/segment_module.py", (char *)NULL);
        _exit(1);
    }
    ck_assert_int_gt(child, 0);
    return child;
}

/* The second sum is left for the test; the module looks at it where it lies. */
START_TEST(numpy_adds_through_the_segment)
{
    struct segment *segment = make_segment(FLOATS, 2, 0);
    struct segment_taken taken;
    pid_t child = start_python();
    int status = 0;
    bool first = false;
    while (waitpid(child, &status, first ? 0 : WNOHANG) == 0) {
        first = segment_take(segment, 0, &taken);
        if (!first) {
            clock_sleep_until(clock_now_ns() + 1000000);
            continue;
        }
        ck_assert(taken.gradients == 1 && taken.examples == 4);
        for (int i = 0; i < FLOATS; i++)
            ck_assert_float_eq(taken.values[i], 4 * (float)i);
        store_model(segment, 2);
    }
    ck_assert_int_eq(status, 0);
    ck_assert(segment_take(segment, 0, &taken));
    ck_assert(taken.gradients == 1 && taken.examples == 2 && taken.oldest == 2);
    for (int i = 0; i < FLOATS; i++)
        ck_assert_float_eq(taken.values[i], i ? 2 : 6);
    segment_close(segment);
}
END_TEST

int main(void)
{
    if (system("python3 -c 'import numpy' 2>/dev/null") != 0) {
        printf("skipped: python3 has no numpy\n");
        return 77;
    }
    TCase *tests = new_case("python", 60);
    tcase_add_test(tests, numpy_adds_through_the_segment);
    return run_cases(tests, NULL);
}
