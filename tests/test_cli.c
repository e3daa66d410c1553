/* SPDX-License-Identifier: MIT */
/* The programs, called as functions: what they say to bad use, that their help names
 * everything, and the tables they print. */
#include "harness/suite.h"
#include "programs.h"
#include "sync/plan.h"

#include <check.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>

static char *out, *err;

/* Runs "descant" and the words of the line. */
static int run(const char *line)
{
    char copy[256], program[] = "descant", *argv[16] = {program};
    size_t n_out, n_err;
    int argc = 1;
    snprintf(copy, sizeof copy, "%s", line);
    for (char *word = strtok(copy, " "); word && argc < 15; word = strtok(NULL, " "))
        argv[argc++] = word;
    free(out);
    free(err);
    FILE *to = open_memstream(&out, &n_out), *complaints = open_memstream(&err, &n_err);
    ck_assert(to && complaints);
    int status = call_program(argc, argv, to, complaints);
    fclose(to);
    fclose(complaints);
    return status;
}

static const struct {
    const char *line, *says;
} bad[] = {
    {"", "usage: descant COMMAND [OPTIONS]"},
    {"inof", "unknown command 'inof' (did you mean info?); allowed: info, plans, "},
    {"inof", ", bench\ntry: descant --help"},
    {"help inof", "unknown command 'inof'"},
    {"--verbose", "unknown command '--verbose'; allowed"},
    {"info --now", "descant info: '--now': info takes names of files, and no options"},
    {"plans --html", "descant plans: unknown option --html\n"},
    {"secret --out x", "descant secret: '--out': the command takes nothing, and writes to stdout"},
    {"plans --markdwon", "unknown option --markdwon (did you mean --markdown?)\n"},
    {"plans --markdown=1", "--markdown takes no value"},
    {"run", "descant run: there is no COMMAND after --\n"},
    {"run --", "there is no COMMAND after --"},
    {"run -n 2 hello", "'hello' is not an option"},
    {"run -n 0 -- true", "--per-host 0: allowed is a whole number from 1 to 4096"},
    {"run -n -- true", "--per-host needs a value"},
    {"run --host a -- true", "unknown option --host (did you mean --hosts?)"},
    {"run --port 65536 -- true", "--port 65536: allowed is a whole number from 0 to 65535"},
    {"run --restarts -1 -- true", "--restarts -1: allowed is a number from 0 to 100000, or auto"},
    {"bench step --calls 500 --calls 600", "--calls is given twice"},
    {"bench step --json --json", "--json is given twice"},
#ifdef DESCANT_TRAIN
    {"train --data /dev/null --data /dev/null", "--data is given twice"},
    {"train --data /dev/null --eval-every 5", "--eval-every needs --eval"},
    {"train --data /dev/null --sync dasdg", "unknown preset 'dasdg' at place 1 (did you mean dasgd?)"},
    {"train --data /dev/null --sync dasgd,evry=4", "'evry' at place 7 (did you mean every?)"},
    {"train --data /dev/null --sync ma,what=maen", "'maen' at place 9 (did you mean mean?)"},
    {"train --data /dev/null --eval_every=5", "--eval_every=5 (did you mean --eval-every?)"},
    {"train --data /dev/null --model dlmr", "--model dlmr: allowed is linear|fm|dlrm|mlp (did you mean dlrm?)"},
    {"tarin", "unknown command 'tarin' (did you mean train?)"},
    {"gen cach", "unknown data 'cach' (did you mean cache?); allowed: ctr, cache"},
    {"bsp controll", "unknown command 'controll' (did you mean control?); allowed: run, control"},
    {"eval --checkpiont x", "unknown option --checkpiont (did you mean --checkpoint?)"},
    {"train --data a.tsv b.tsv", "'b.tsv' is not an option: several files of --data have commas"},
    {"train --data a.tsv --eval b.tsv c.tsv", "'c.tsv' is not an option: several files of --eval"},
    {"train --log a.jsonl b.tsv", "'b.tsv' is not an option\n"},
    {"report x --uot y", "unknown option --uot (did you mean --out?)"},
    {"eval --checkpoint a --data b --out c", "unknown option --out"},
    {"predict --checkpoint a --data b --json", "unknown option --json"},
    {"predict --checkpoint a --data b --workers 2", "unknown option --workers"},
#endif
    {"bench", "which one? allowed: step, exchange, overlap, segment"},
    {"bench all", "unknown benchmark 'all'; allowed: step, exchange, overlap, segment"},
    {"bench exchagne", "unknown benchmark 'exchagne' (did you mean exchange?)"},
#ifdef DESCANT_TRAIN
    {"bench all", ", segment, train, parse, modules\n"},
    {"bench modules --slow 10", "--slow needs --modules 2 or more"},
#endif
    {"bench step 3", "descant bench step: '3' is not an option"},
    {"bench step --workers", "--workers needs a value"},
    {"bench step --workers 0", "--workers 0: allowed is a whole number from 1 to 64\n"},
    {"bench step --workers two", "--workers two: allowed is a whole number from 1"},
    {"bench step --workers 1.5", "--workers 1.5: allowed is a whole number from 1"},
    {"bench step --plan shadow-esgd", "unknown preset 'shadow-esgd' at place 1"},
    {"bench exchange --what sum", "--what sum: allowed is mean|elastic"},
    {"bench exchange --bytes 64Q",
     "--bytes 64Q: allowed is bytes, like 65536, 64K or 64MiB, from 4096 to 1e+12\n"},
    {"bench exchange --bytes 1KiB", "--bytes 1KiB: allowed is bytes, like"},
    {"bench exchange --bytes nan", "--bytes nan: allowed is"},
    {"bench overlap --run-s 5ms",
     "--run-s 5ms: allowed is seconds, or a time like 10ms, from 0.01 to 3600\n"},
    {"bench exchange --trainers 65",
     "--trainers 65: allowed is a whole number from 1 to 64\n"},
    {"bench exchange --what elastic --memory buffer", "--memory buffer is only for --what mean"},
    {"bench exchange --memory buffer --sync-cpu 0.5", "--sync-cpu does not bound --memory buffer"},
    {"bench overlap --link fast", "--link fast: allowed is none or RATE,RTT as 1gbit,1ms"},
    {"bench overlap --plan dasgd,delay=9", "delay=9 is above every=4"},
};
enum { N_BAD = sizeof bad / sizeof *bad };

START_TEST(bad_use_is_said)
{
    ck_assert_int_eq(run(bad[_i].line), CLI_BAD_USE);
    ck_assert_msg(strstr(err, bad[_i].says) != NULL, "\"%s\" said: %s", bad[_i].line, err);
    ck_assert_msg(strstr(err, "--help") != NULL, "%s", err);
    ck_assert_str_eq(out, "");
}
END_TEST

START_TEST(help_and_version)
{
    static const char *const lines[] = {"--help", "info --help", "plans --help", "run --help", "bench --help",
                                        "bench step --help", "bench exchange --help",
                                        "bench overlap --help", "bench segment --help", "-h",
                                        "info -h", "plans -h", "secret -h", "bench -h", "bench step -h"};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        ck_assert_int_eq(run(lines[i]), CLI_DONE);
        ck_assert_ptr_nonnull(strstr(out, "usage: descant"));
        ck_assert_str_eq(err, "");
    }
    ck_assert_int_eq(run("--version"), CLI_DONE);
    ck_assert_str_eq(out, "descant " DESCANT_VERSION "\n");
}
END_TEST

START_TEST(help_knows_commands)
{
    char *by_option;
    ck_assert_int_eq(run("plans --help"), CLI_DONE);
    by_option = strdup(out);
    ck_assert_int_eq(run("help plans"), CLI_DONE);
    ck_assert_str_eq(out, by_option);
    free(by_option);
    ck_assert_int_eq(run("help"), CLI_DONE);
    ck_assert_ptr_nonnull(strstr(out, "overlap, segment"));
#ifdef DESCANT_TRAIN
    ck_assert_int_eq(run("help train"), CLI_DONE);
    ck_assert_ptr_nonnull(strstr(out, "usage: descant train"));
#else
    ck_assert_int_eq(run("train --data clicks.tsv"), CLI_BAD_USE);
    ck_assert_ptr_nonnull(strstr(err, "no 'train': this build is without training, for lack of "));
#endif
}
END_TEST

/* $D is the program descant; a copy of it has nobody beside it. */
static const struct {
    const char *commands, *says;
    int status;
} benches[] = {
    {"$D help bench step", "usage: descant bench step [OPTIONS]", CLI_DONE},
    {"$D bench step --calls 1", "descant bench step: --calls 1: allowed is", CLI_BAD_USE},
    {"$D bench", "descant bench: which one?", CLI_BAD_USE},
    {"mkdir bin; printf '#!/bin/sh\necho \"found $*\"; exit 7' >bin/descant-bench; "
     "chmod 755 bin/descant-bench; cp $D .; "
     "PATH=$PWD/bin:$PATH ./descant bench 'a b' --json",
     "found a b --json\n", 7},
    {"cp $D .; PATH=/bin ./descant bench step", "/descant-bench: No such file or directory; "
     "make install puts it beside descant, else it must be in a folder of PATH\n", CLI_FAILED},
};
enum { N_BENCHES = sizeof benches / sizeof *benches };

START_TEST(bench_is_a_program_beside_this_one)
{
    char program[PATH_MAX], script[1024], said[4096];
    ck_assert_ptr_nonnull(realpath("/proc/self/exe", program));
    strcpy(strstr(program, "/tests/"), "/descant");
    setenv("D", program, 1);
    snprintf(script, sizeof script, "exec 2>&1; d=$(mktemp -d) && cd \"$d\" || exit; "
             "trap 'rm -r \"$d\"' EXIT; %s", benches[_i].commands);
    FILE *shell = popen(script, "r");
    said[fread(said, 1, sizeof said - 1, shell)] = 0;
    int status = pclose(shell);
    ck_assert_msg(strstr(said, benches[_i].says), "%s: %s", benches[_i].commands, said);
    ck_assert_int_eq(WEXITSTATUS(status), benches[_i].status);
}
END_TEST

/* In a process of its own, where check runs each test. */
START_TEST(a_little_stack_is_refused)
{
    static const struct rlimit little = {128 << 10, 128 << 10};
    ck_assert_int_eq(setrlimit(RLIMIT_STACK, &little), 0);
    ck_assert_int_eq(run("plans"), CLI_FAILED);
    ck_assert_msg(strstr(err, "the stack may have 128 KiB, 256 are needed: ulimit -s 256"),
                  "%s", err);
}
END_TEST

START_TEST(output_that_is_lost_is_a_failure)
{
    static const char *const words[] = {"--help", "--version", "info", "plans"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        char program[] = "descant", word[16], *argv[] = {program, word};
        size_t n;
        snprintf(word, sizeof word, "%s", words[i]);
        free(err);
        FILE *full = fopen("/dev/full", "we"), *complaints = open_memstream(&err, &n);
        ck_assert(full && complaints);
        ck_assert_int_eq(cli_main(2, argv, full, complaints), CLI_FAILED);
        fclose(complaints);
        fclose(full);
        ck_assert_str_eq(err, "descant: the output could not be written: No space left on "
                              "device\n");
    }
}
END_TEST

START_TEST(info_names_the_fabrics)
{
    ck_assert_int_eq(run("info"), CLI_DONE);
    ck_assert_ptr_nonnull(strstr(out, DESCANT_VERSION));
    ck_assert_ptr_nonnull(strstr(out, "self"));
    ck_assert_ptr_nonnull(strstr(out, "shm"));
    ck_assert_ptr_nonnull(strstr(out, "mpi"));
    ck_assert_ptr_null(strstr(out, "sim"));     /* a link of tests and simulations, no address */
}
END_TEST

START_TEST(plans_are_all_shown)
{
    static const char *const lines[] = {"plans", "plans --markdown"};
    for (int k = 0; k < 2; k++) {
        ck_assert_int_eq(run(lines[k]), CLI_DONE);
        for (const struct plan_preset *row = plan_presets; row->name; row++) {
            ck_assert_ptr_nonnull(strstr(out, row->name));
            ck_assert_ptr_nonnull(strstr(out, row->changes));
        }
        for (size_t i = 0; i < plan_n_options; i++)
            ck_assert_ptr_nonnull(strstr(out, plan_options[i].name));
    }
}
END_TEST

START_TEST(percentiles)
{
    double values[] = {4, 1, 3, 2};
    ck_assert_double_eq(bench_percentile(values, 4, 0), 1);
    ck_assert_double_eq(bench_percentile(values, 4, 0.5), 2.5);
    ck_assert_double_eq(bench_percentile(values, 4, 1), 4);
    ck_assert_double_eq(bench_percentile(values, 1, 0.5), 1);
}
END_TEST

START_TEST(ratios_of_pairs_in_two_orders)
{
    const double ordered[] = {1.1, 0.9, 1.1, 0.9, 1.1}, noisy[] = {1, 4, 2, 9, 3}, one[] = {0.8};
    struct bench_ratio r = bench_pairs(ordered, 5);
    ck_assert_double_eq_tol(r.middle, sqrt(0.99), 1e-12);
    ck_assert_double_eq_tol(r.low, r.middle, 1e-12);
    ck_assert_double_eq_tol(r.high, r.middle, 1e-12);
    r = bench_pairs(noisy, 5);
    ck_assert_double_eq_tol(r.middle, sqrt(2 * 6.5), 1e-12);
    ck_assert(r.low < r.middle && r.high > r.middle);
    r = bench_pairs(one, 1);
    ck_assert_double_eq_tol(r.middle, 0.8, 1e-12);
}
END_TEST

static bool half_fails(struct bench *bench, int rank, const void *how, void *result)
{
    (void)how;
    *(int *)result = rank;
    return rank == 0 && bench_barrier(bench, 2);      /* waits for one that never comes */
}

static bool all_meet(struct bench *bench, int rank, const void *how, void *result)
{
    (void)how;
    *(int *)result = 10 + rank;
    return bench_barrier(bench, bench->trainers);
}

START_TEST(trainers_give_results_or_end_the_run)
{
    int results[3];
    FILE *nowhere = fopen("/dev/null", "w");
    struct bench bench = {.trainers = 3, .err = nowhere};
    ck_assert(bench_run(&bench, all_meet, NULL, results, sizeof *results));
    ck_assert(results[0] == 10 && results[1] == 11 && results[2] == 12);
    bench.trainers = 2;
    ck_assert(!bench_run(&bench, half_fails, NULL, results, sizeof *results));
    fclose(nowhere);
}
END_TEST

static const char *const benchmarks[] = {
    "bench step --calls 1000 --json",
    "bench exchange --bytes 64K --runs 15 --json",
    "bench exchange --bytes 64K --runs 15 --memory attached --json",
    "bench exchange --bytes 64K --runs 15 --memory buffer --json",
    "bench exchange --bytes 64K --runs 15 --what elastic --sync-cpu 0.5 --json",
    "bench overlap --bytes 64K --step-ms 0.2 --pairs 1 --run-s 0.02 --json",
    "bench segment --bytes 64K --turns 9 --json",
#ifdef DESCANT_TRAIN
    "bench modules --bytes 64K --batch 8 --modules 2 --pairs 1 --run-s 0.1 --json",
    "bench modules --bytes 64K --modules 2 --slow 3 --pairs 2 --run-s 0.1 --json",
#endif
};
enum { N_BENCHMARKS = sizeof benchmarks / sizeof *benchmarks };

START_TEST(benchmarks_run)
{
    ck_assert_msg(run(benchmarks[_i]) == CLI_DONE, "%s: %s", benchmarks[_i], err);
    ck_assert_int_eq(strncmp(out, "{\"bench\":\"", 10), 0);
    ck_assert_ptr_eq(strchr(out, '\n'), out + strlen(out) - 1);
}
END_TEST

static double figure(const char *key)
{
    char quoted[64];
    snprintf(quoted, sizeof quoted, "\"%s\":", key);
    const char *at = strstr(out, quoted);
    ck_assert_msg(at != NULL, "no %s in %s", quoted, out);
    return strtod(at + strlen(quoted), NULL);
}

/* 4 MiB under 5 % of a core take a twentieth of a second: more than a run, far less than all of
 * them. */
START_TEST(overlap_keeps_a_round_that_is_longer_than_a_run)
{
    static const char *const keys[] = {"steps_per_s", "none_steps_per_s", "efficiency",
                                       "stall_share", "copy_share", "gap_mean", "gap_p99",
                                       "shadow_cpu_share", "rounds"};
    ck_assert_int_eq(run("bench overlap --plan=shadow-ma --bytes=4M --step-ms=5 --pairs=60 "
                         "--run-s=0.02 --sync-cpu=0.05 --json"), CLI_DONE);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        ck_assert_double_ge(figure(keys[i]), 0);
    ck_assert_double_ge(figure("rounds"), 1);
    ck_assert_double_gt(figure("gap_mean"), 0);
    ck_assert_double_gt(figure("shadow_cpu_share"), 0);
    ck_assert_double_gt(figure("efficiency"), 0);
}
END_TEST

int main(void)
{
    TCase *all = new_case("cli", 60);
    tcase_add_loop_test(all, bad_use_is_said, 0, few_threads(N_BAD, 0));
    tcase_add_test(all, help_and_version);
    tcase_add_test(all, help_knows_commands);
    tcase_add_loop_test(all, bench_is_a_program_beside_this_one, 0, few_threads(N_BENCHES, 0));
    tcase_add_test(all, a_little_stack_is_refused);
    tcase_add_test(all, output_that_is_lost_is_a_failure);
    tcase_add_test(all, info_names_the_fabrics);
    tcase_add_test(all, plans_are_all_shown);
    tcase_add_test(all, percentiles);
    tcase_add_test(all, ratios_of_pairs_in_two_orders);
    tcase_add_test(all, trainers_give_results_or_end_the_run);
    tcase_add_loop_test(all, benchmarks_run, 0, N_BENCHMARKS);
    tcase_add_loop_test(all, overlap_keeps_a_round_that_is_longer_than_a_run, 0, few_threads(1, 0));
    return run_cases(all, NULL);
}
