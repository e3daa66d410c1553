/* SPDX-License-Identifier: MIT */
/* Which command was meant: a table, so that --help shows exactly what is understood. Nothing here
 * exits: main does, with what is returned. */
#include "cli/cli.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

struct command {
    const char *name, *help;
    int (*run)(const struct cli *cli);
};

#ifdef DESCANT_TRAIN
#define BENCHES "step, exchange, overlap, segment, train, parse"
#else
#define BENCHES "step, exchange, overlap, segment"
static const char *const left_out[] = {"train", "eval", "predict", "bsp", "gen", "report"};
#endif

static const struct command commands[] = {
    {"info", "version, build and machine; or what a file is and has", cli_info},
    {"plans", "the table of plans and their keys (--markdown)", cli_plans},
#ifdef DESCANT_TRAIN
    {"train", "train a click model or a network", cli_train},
    {"eval", "a trained model's figures on a held-out set", cli_eval},
    {"predict", "a trained model's scores", cli_predict},
    {"bsp", "train by the gradients of other programs, through shared memory",
     cli_bsp},
    {"gen", "make files to train with: ctr, click logs; cache, of other files", cli_gen},
    {"report", "a page that compares runs of descant train, from their logs", cli_report},
#endif
    {"bench", "measure: " BENCHES " (--json)", cli_bench},
};
enum { N_COMMANDS = sizeof commands / sizeof *commands, MOST_WORDS = 8 };

int cli_bad_use(const struct cli *cli, const char *format, ...)
{
    va_list list;
    const char *space = *cli->command ? " " : "";
    fprintf(cli->err, "descant%s%s: ", space, cli->command);
    va_start(list, format);
    vfprintf(cli->err, format, list);
    va_end(list);
    fprintf(cli->err, "\ntry: descant%s%s --help\n", space, cli->command);
    return CLI_BAD_USE;
}

bool cli_is_help(const char *word)
{
    return strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0;
}

int cli_unknown(const struct cli *cli, const char *what, const char *word,
                const char *const *names)
{
    char all[256] = "";
    struct guess guess = {.wrong = word, .length = strlen(word)};
    for (size_t n = 0; *names && n < sizeof all; names++) {
        guess_try(&guess, *names, strlen(*names));
        n += (size_t)snprintf(all + n, sizeof all - n, "%s%s", n ? ", " : "", *names);
    }
    return *word ? cli_bad_use(cli, "unknown %s '%s'%s; allowed: %s", what, word,
                               guess_text(&guess, ""), all)
                 : cli_bad_use(cli, "which one? allowed: %s", all);
}

static int unknown(const struct cli *cli, const char *wrong)
{
    const char *names[N_COMMANDS + 1] = {NULL};
#ifndef DESCANT_TRAIN
    for (size_t i = 0; i < sizeof left_out / sizeof *left_out; i++)
        if (strcmp(wrong, left_out[i]) == 0)
            return cli_bad_use(cli, "no '%s': this build is " DESCANT_WITHOUT, wrong);
#endif
    for (size_t i = 0; i < N_COMMANDS; i++)
        names[i] = commands[i].name;
    return cli_unknown(cli, "command", wrong, names);
}

static void help(FILE *out)
{
    fputs("descant keeps the replicas of a model together while their training runs on\n\n"
          "usage: descant COMMAND [OPTIONS]\n\n", out);
    for (int i = 0; i < N_COMMANDS; i++)
        fprintf(out, "  %-8s %s\n", commands[i].name, commands[i].help);
    fputs("\n  --help     this, or a command's options after the command; -h and help are the same\n"
          "  --version  the version\n", out);
}

static int run(struct cli *cli, const char *word)
{
    for (int i = 0; i < N_COMMANDS; i++)
        if (strcmp(word, commands[i].name) == 0) {
            cli->command = commands[i].name;
            return commands[i].run(cli);
        }
    return unknown(cli, word);
}

/* What follows "help": "bench step" is "bench step --help". */
static int help_on(struct cli *cli)
{
    static char option[] = "--help";
    char *words[MOST_WORDS + 1];
    const char *command = cli->argv[0];

    if (cli->argc > MOST_WORDS)
        return cli_bad_use(cli, "help takes a command");
    memcpy(words, cli->argv + 1, (size_t)(cli->argc - 1) * sizeof *words);
    words[cli->argc - 1] = option;
    cli->argv = words;
    return run(cli, command);
}

static int command(struct cli *cli, int argc, char **argv)
{
    if (argc < 2) {
        help(cli->err);
        return CLI_BAD_USE;
    }
    const char *word = argv[1];
    if (strcmp(word, "help") == 0 && argc > 2)
        return help_on(cli);
    if (cli_is_help(word) || strcmp(word, "help") == 0) {
        help(cli->out);
        return CLI_DONE;
    }
    if (strcmp(word, "--version") == 0) {
        fprintf(cli->out, "descant %s\n", descant_version());
        return CLI_DONE;
    }
    return run(cli, word);
}

enum { LEAST_STACK = 256 << 10 };

/* Paths, copies and BLAS lie on stacks, and a thread's is as large as the limit: with less a run
 * would end with SIGSEGV. */
static bool stack_good(FILE *err)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur >= LEAST_STACK)
        return true;
    fprintf(err, "descant: the stack may have %llu KiB, %d are needed: ulimit -s %d\n",
            (unsigned long long)limit.rlim_cur >> 10, LEAST_STACK >> 10, LEAST_STACK >> 10);
    return false;
}

/* All that is printed goes through two shown streams. Output that has not come where it should is a
 * failure; a file that may not grow any more is an error to be told, and no signal to die by. */
int cli_main(int argc, char **argv, FILE *out, FILE *err)
{
    struct cli cli = {.command = "", .argc = argc - 2, .argv = argv + 2,
                      .out = shown_open(out, true), .err = shown_open(err, false)};
    int status = CLI_FAILED, error = 0;

    signal(SIGXFSZ, SIG_IGN);
    if (cli.out && cli.err)
        status = stack_good(cli.err) ? command(&cli, argc, argv) : CLI_FAILED;
    else
        fputs("descant: no memory for the output\n", err);
    if (cli.out)
        error = shown_close(cli.out);
    if (error && status == CLI_DONE) {
        fprintf(cli.err, "descant: the output could not be written: %s\n", strerror(error));
        status = CLI_FAILED;
    }
    if (cli.err)
        shown_close(cli.err);
    return status;
}
