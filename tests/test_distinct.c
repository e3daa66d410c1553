/* SPDX-License-Identifier: MIT */
/* The estimate of different numbers, against their number, and what follows from it: how many ids
 * have their row with another one, against ids that are counted; and the lines of descant info. */
#include "data/distinct.h"
#include "harness/folder.h"
#include "harness/processes.h"
#include "harness/program.h"
#include "harness/suite.h"

#include <math.h>

static const double counts[] = {0, 1, 2, 50, 3000, 20000, 45000, 70000, 300000, 2000000};

/* Within four standard errors, however often each comes. */
START_TEST(different_numbers_are_told)
{
    static struct distinct d;
    double n = counts[_i];
    for (uint64_t seed = 1; seed < 4; seed++) {
        memset(&d, 0, sizeof d);
        for (uint64_t k = 0; k < (uint64_t)n; k++)
            for (uint64_t times = 0; times < 1 + k % 2; times++)
                distinct_add(&d, seed << 40 | k);
        double is = distinct_count(&d);
        ck_assert_msg(fabs(is - n) <= 4 * DISTINCT_ERROR * n, "%.0f, not %.0f", is, n);
    }
}
END_TEST

/* Ids by chance in rows, as a table has them. */
static const struct {
    int ids, rows;
} loads[] = {{1, 1000}, {100, 1000}, {1000, 1000}, {5000, 1000}, {20000, 50000}};

START_TEST(rows_are_shared_as_it_is_said)
{
    enum { TURNS = 40 };
    static int in_row[50000];
    double shared = 0, used = 0;
    struct rng rng;
    int ids = loads[_i].ids, rows = loads[_i].rows;
    rng_init(&rng, 11);
    for (int turn = 0; turn < TURNS; turn++) {
        memset(in_row, 0, sizeof in_row);
        for (int k = 0; k < ids; k++)
            in_row[rng_next(&rng) % (uint64_t)rows]++;
        for (int k = 0; k < rows; k++) {
            shared += in_row[k] > 1 ? in_row[k] : 0;
            used += in_row[k] > 0;
        }
    }
    ck_assert_double_eq_tol(shared / TURNS / ids, collisions_share(ids, rows), 0.01);
    ck_assert_double_eq_tol(collisions_ids(used / TURNS, rows) / ids, 1, 0.03);
}
END_TEST

START_TEST(ends_of_the_range)
{
    ck_assert_double_eq(collisions_share(0, 10), 0);
    ck_assert_double_eq(collisions_share(1, 1), 0);
    ck_assert_double_eq(collisions_share(2, 1), 1);
    ck_assert_double_eq(collisions_ids(0, 100), 0);
    ck_assert_double_eq_tol(collisions_ids(1, 4294967296.0), 1, 1e-6);
    double most = collisions_ids(100, 100);     /* all are used: a number, and not infinite */
    ck_assert(most > 400 && most < 1000);
}
END_TEST

static void tell(const char *file)
{
    ck_assert_msg(program("info %s", file) == 0, "%s", err_text);
}

static bool told(const char *text)
{
    return strstr(out_text, text) != NULL;
}

/* 300 examples: in the first field 300 ids, in the others 3; of a million rows. */
START_TEST(info_tells_of_data)
{
    const char *file = in_folder("clicks.tsv");
    FILE *out = fopen(file, "we");
    ck_assert_ptr_nonnull(out);
    for (int k = 0; k < 300; k++) {
        fprintf(out, "%d\t1\t2\t3\t4\t5\t6\t7\t8\t9\t10\t11\t12\t13\t%08x", k % 2, k * 7919 + 1);
        for (int f = 1; f < 26; f++)
            fprintf(out, "\t%08x", k % 3);
        fputc('\n', out);
    }
    ck_assert_int_eq(fclose(out), 0);
    tell(file);
    const char *line = strstr(out_text, "different ids");
    double all = 0, most = 0;
    ck_assert_ptr_nonnull(line);
    ck_assert_int_eq(sscanf(line, "different ids about %lf, hashed, up to %lf", &all, &most), 2);
    ck_assert_double_eq_tol(all, 375, 4);
    ck_assert_double_eq_tol(most, 300, 4);
    ck_assert(told("of them in one table of --rows") && told("with a table for each field (dlrm)"));
    file = in_folder("pairs.svm");
    put_file(file, "1 3:1 5:1\n0 3:1 9:1\n", 20);
    tell(file);
    ck_assert(told("different ids") && told("about 3, hashed") && !told("dlrm"));
}
END_TEST

int main(void)
{
    find_self();
    TCase *rules = new_case("rules", 30), *info = new_case("info", 30);
    tcase_add_loop_test(rules, different_numbers_are_told, 0, N(counts));
    tcase_add_loop_test(rules, rows_are_shared_as_it_is_said, 0, N(loads));
    tcase_add_test(rules, ends_of_the_range);
    tcase_add_checked_fixture(info, make_folder, remove_folder);
    tcase_add_test(info, info_tells_of_data);
    return run_cases(rules, info, NULL);
}
